//! All balancers in front of one site: what each node is to get, told to all of them, and told again
//! to one that forgot.

use crate::balancer::{Balancer, BalancerError};
use crate::traffic::{Change, Observed, Traffic, diff};
use keeptime_model::name::Name;
use std::collections::BTreeMap;

/// A site's balancers and what is wanted of them.
#[derive(Debug)]
pub struct Front {
    balancers: Vec<Box<dyn Balancer>>,
    wanted: BTreeMap<Name, Traffic>,
}

/// One balancer, as it was found and left.
#[derive(Debug)]
pub struct Sight {
    /// Which.
    pub balancer: String,
    /// What it had to be told. After a restart that is all that it was told before.
    pub told: Vec<Change>,
    /// How it is after that.
    pub observed: Result<Observed, BalancerError>,
}

impl Sight {
    /// Why it could not be asked or told. One that has ended has nothing in flight, and is told everything when it is back.
    pub fn failure(&self) -> Option<String> {
        match &self.observed {
            Ok(_) | Err(BalancerError::Ended { .. }) => None,
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Front {
    /// These balancers; nothing is wanted of them yet.
    pub fn new(balancers: Vec<Box<dyn Balancer>>) -> Self {
        Self { balancers, wanted: BTreeMap::new() }
    }

    /// What `server` is to get from the next [`Self::reconcile`] on.
    pub fn want(&mut self, server: &Name, traffic: Traffic) {
        self.wanted.insert(server.clone(), traffic);
    }

    /// What is wanted.
    pub fn wanted(&self) -> &BTreeMap<Name, Traffic> {
        &self.wanted
    }

    /// Asks every balancer and tells it what differs. One that fails leaves the others alone.
    /// Blocks for as long as the slowest of them takes.
    pub fn reconcile(&mut self) -> Vec<Sight> {
        let wanted = &self.wanted;
        self.balancers.iter_mut().map(|balancer| sight(balancer.as_mut(), wanted)).collect()
    }

    /// Has every balancer end what it has in flight on `server`, which is to be off; what came of it, in the order of
    /// [`Self::reconcile`]'s sights. Blocks as that does.
    pub fn end(&mut self, server: &Name) -> Vec<Result<(), BalancerError>> {
        self.balancers.iter_mut().map(|balancer| balancer.end(server)).collect()
    }
}

fn sight(balancer: &mut dyn Balancer, wanted: &BTreeMap<Name, Traffic>) -> Sight {
    let name = balancer.name().to_string();
    let mut told = Vec::new();
    let observed = settle(balancer, wanted, &mut told);
    Sight { balancer: name, told, observed }
}

fn settle(
    balancer: &mut dyn Balancer,
    wanted: &BTreeMap<Name, Traffic>,
    told: &mut Vec<Change>,
) -> Result<Observed, BalancerError> {
    let observed = balancer.observe()?;
    let changes = diff(wanted, &observed);
    if changes.is_empty() {
        return Ok(observed);
    }
    let is_there = |change: &Change| observed.servers.contains_key(&change.server);
    let (known, unknown): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_there);
    // One that lacks a node since its configuration was changed needs to be told of the others all the more.
    if !known.is_empty() {
        balancer.tell(&known)?;
        *told = known;
    }
    if let Some(change) = unknown.first() {
        let there = observed.servers.keys().map(Name::as_str).collect::<Vec<_>>().join(", ");
        return Err(BalancerError::UnknownServer {
            balancer: balancer.name().into(),
            server: change.server.to_string(),
            there,
        });
    }
    let observed = balancer.observe()?;
    match diff(wanted, &observed).first() {
        None => Ok(observed),
        Some(change) => Err(BalancerError::Unexpected {
            balancer: balancer.name().into(),
            command: format!("{} {}", change.server, change.traffic),
            problem: "it took the change and did not make it".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Seen, Weight};

    /// Does what it is told of the servers that it has.
    #[derive(Debug)]
    struct Obedient(BTreeMap<Name, Traffic>);

    impl Balancer for Obedient {
        fn name(&self) -> &str {
            "obedient"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            let seen = |(name, traffic): (&Name, &Traffic)| {
                (name.clone(), Seen { traffic: *traffic, in_flight: 0, served: None })
            };
            let servers = self.0.iter().map(seen).collect();
            Ok(Observed { servers, ..Observed::default() })
        }

        fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
            for Change { server, traffic } in changes {
                assert!(self.0.insert(server.clone(), *traffic).is_some(), "it has no {server}");
            }
            Ok(())
        }
    }

    // Goal: a balancer that was started again with one node less in its configuration, where all are off, serves by the
    // others, and is as it should be unless one that it lacks is to serve. Method: one that lacks the first and the last.
    #[test]
    fn a_node_that_is_missing_keeps_no_other_from_being_told() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let there = ["n2", "n3"].map(|node| (name(node), Traffic::Off)).into();
        let mut front = Front::new(vec![Box::new(Obedient(there))]);
        let on = Traffic::On(Weight::FULL);
        for (node, traffic) in [("n1", Traffic::Off), ("n2", on), ("n3", Traffic::Off), ("n4", on)]
        {
            front.want(&name(node), traffic);
        }
        let sight = front.reconcile().remove(0);
        assert_eq!(sight.told, [Change { server: name("n2"), traffic: on }]);
        let error = sight.observed.unwrap_err().to_string();
        assert!(error.contains("\"n4\"") && error.contains("n2, n3"), "{error}");
        let sight = front.reconcile().remove(0);
        assert!(sight.told.is_empty(), "it serves by n2");
        assert!(matches!(sight.observed, Err(BalancerError::UnknownServer { .. })));
        assert!(sight.failure().is_some());
        front.want(&name("n4"), Traffic::Off);
        let sight = front.reconcile().remove(0);
        assert!(sight.failure().is_none() && sight.told.is_empty(), "{sight:?}");
    }
}
