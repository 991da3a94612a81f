//! All balancers in front of one site: what each node is to get, told to all of them, and told again
//! to one that forgot.

use crate::asking::{Asked, SLOW, Wanted};
use crate::balancer::{Balancer, BalancerError};
use crate::traffic::{Change, Observed, Traffic};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A site's balancers and what is wanted of them.
#[derive(Debug)]
pub struct Front {
    balancers: Vec<Asked>,
    wanted: Wanted,
}

/// One balancer, as it was found and left.
#[derive(Debug)]
pub struct Sight {
    /// Which.
    pub balancer: String,
    /// What it had to be told. After a restart that is all that it was told before.
    pub told: Vec<Change>,
    /// Nodes that it had no server for when it answered last, of those of which something is wanted.
    pub lacking: Vec<Name>,
    /// How it is after that.
    pub observed: Result<Observed, BalancerError>,
    /// When it was so.
    pub at: Instant,
}

impl Sight {
    /// Whether it was asked, and has not answered yet.
    pub fn is_silent(&self) -> bool {
        matches!(self.observed, Err(BalancerError::Silent { .. }))
    }

    /// Why it could not be asked or told. One that has ended has nothing in flight, and is told everything when it is back.
    pub fn failure(&self) -> Option<String> {
        match &self.observed {
            Ok(_) | Err(BalancerError::Ended { .. }) => None,
            Err(error) => Some(chain(error)),
        }
    }
}

impl Front {
    /// These balancers; nothing is wanted of them yet.
    pub fn new(balancers: Vec<Box<dyn Balancer>>) -> Self {
        let balancers = balancers.into_iter().map(Asked::new).collect();
        Self { balancers, wanted: Wanted::default() }
    }

    /// What `server` is to get from the next [`Self::ask`] on.
    pub fn want(&mut self, server: &Name, traffic: Traffic) {
        if self.wanted.get(server) != Some(&traffic) {
            Arc::make_mut(&mut self.wanted).insert(server.clone(), traffic);
        }
    }

    /// What is wanted.
    pub fn wanted(&self) -> &BTreeMap<Name, Traffic> {
        &self.wanted
    }

    /// Asks every balancer and tells it what differs. One that fails leaves the others alone, and one that is slow is asked by a
    /// thread of its own: this blocks for long once, when one begins to hang. Where the caller `is_late`, all are, and it does
    /// not block. Whether a thread was begun.
    pub fn ask(&mut self, is_late: bool) -> bool {
        let (began, mut begun) = (Instant::now(), false);
        for asked in &mut self.balancers {
            begun |= asked.ask(&self.wanted, is_late || began.elapsed() > SLOW);
        }
        begun
    }

    /// What every balancer answered to [`Self::ask`], when all have; if one has not by `until`, [`BalancerError::Silent`] of
    /// all: what is known of some alone is of no use.
    pub fn sights(&mut self, until: Instant) -> Vec<Sight> {
        let Self { balancers, wanted } = self;
        let mut all_have = true;
        for asked in &mut *balancers {
            let within = until.saturating_duration_since(Instant::now());
            all_have &= asked.has_answered(within);
        }
        let sight =
            |asked: &mut Asked| if all_have { asked.sight(wanted) } else { asked.silence() };
        balancers.iter_mut().map(sight).collect()
    }

    /// Whether a thread asks some of them.
    pub fn is_away(&self) -> bool {
        self.balancers.iter().any(Asked::is_away)
    }

    /// Asks, and waits for all answers, for a minute at most.
    pub fn reconcile(&mut self) -> Vec<Sight> {
        self.ask(false);
        self.sights(Instant::now() + Duration::from_secs(60))
    }

    /// Has every balancer end what it has in flight on `server`, which is to be off; what came of it, in the order of
    /// [`Self::sights`]. Blocks for as long as all of them take.
    pub fn end(&mut self, server: &Name) -> Vec<Result<(), BalancerError>> {
        self.balancers.iter_mut().map(|asked| asked.end(server)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Seen, Weight};
    use std::io::ErrorKind;

    /// Does what it is told of the servers that it has.
    #[derive(Debug)]
    struct Obedient {
        servers: BTreeMap<Name, Traffic>,
        /// Then it hangs.
        answers: u32,
    }

    impl Balancer for Obedient {
        fn name(&self) -> &str {
            "obedient"
        }

        fn observe(&mut self) -> Result<Observed, BalancerError> {
            self.answers = self.answers.checked_sub(1).ok_or_else(|| {
                let (balancer, source) = (self.name().into(), ErrorKind::TimedOut.into());
                BalancerError::Unreachable { balancer, source }
            })?;
            let seen = |(name, traffic): (&Name, &Traffic)| {
                (name.clone(), Seen { traffic: *traffic, in_flight: 0, served: None })
            };
            let servers = self.servers.iter().map(seen).collect();
            Ok(Observed { servers, ..Observed::default() })
        }

        fn tell(&mut self, changes: &[Change]) -> Result<(), BalancerError> {
            for Change { server, traffic } in changes {
                let before = self.servers.insert(server.clone(), *traffic);
                assert!(before.is_some(), "it has no {server}");
            }
            Ok(())
        }
    }

    // Goal: a balancer that was started again with one node less in its configuration, where all are off, serves by the
    // others, and is as it should be unless one that it lacks is to serve; what it lacks is known whatever becomes of a look.
    // Method: one that lacks the first and the last, and hangs in the end.
    #[test]
    fn a_node_that_is_missing_keeps_no_other_from_being_told() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let servers = ["n2", "n3"].map(|node| (name(node), Traffic::Off)).into();
        let mut front = Front::new(vec![Box::new(Obedient { servers, answers: 4 })]);
        let on = Traffic::On(Weight::FULL);
        for (node, traffic) in [("n1", Traffic::Off), ("n2", on), ("n3", Traffic::Off), ("n4", on)]
        {
            front.want(&name(node), traffic);
        }
        let lacking = ["n1", "n4"].map(name);
        let sight = front.reconcile().remove(0);
        assert_eq!(sight.told, [Change { server: name("n2"), traffic: on }]);
        assert_eq!(sight.lacking, lacking, "n1 too, which is off");
        let error = sight.observed.unwrap_err().to_string();
        assert!(error.contains("\"n4\"") && error.contains("n2, n3"), "{error}");
        let sight = front.reconcile().remove(0);
        assert!(sight.told.is_empty(), "it serves by n2");
        assert!(matches!(sight.observed, Err(BalancerError::UnknownServer { .. })));
        assert!(sight.failure().is_some());
        for nothing_new in [Traffic::Drain, Traffic::Off] {
            front.want(&name("n4"), nothing_new);
            let sight = front.reconcile().remove(0);
            assert!(sight.failure().is_none() && sight.told.is_empty(), "{sight:?}");
        }
        let sight = front.reconcile().remove(0);
        assert_eq!(sight.lacking, lacking, "as it said last");
        let why = sight.failure().unwrap();
        assert!(why.starts_with("obedient cannot be reached: "), "its cause is told, too: {why}");
    }
}
