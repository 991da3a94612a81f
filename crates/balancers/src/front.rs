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
    if let Some(change) = changes.iter().find(|c| !observed.servers.contains_key(&c.server)) {
        let there = observed.servers.keys().map(Name::as_str).collect::<Vec<_>>().join(", ");
        return Err(BalancerError::UnknownServer {
            balancer: balancer.name().into(),
            server: change.server.to_string(),
            there,
        });
    }
    balancer.tell(&changes)?;
    *told = changes;
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
