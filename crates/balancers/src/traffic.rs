//! What a node gets of a site's requests, what is wanted, and what has to be told for it.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

/// A node as balancers know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name; the server's name in HAProxy's configuration.
    pub name: Name,
    /// Where it serves.
    pub address: SocketAddr,
}

/// A node's share of requests against that of others, 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Weight(u8);

/// What a node gets of a site's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Nothing.
    Off,
    /// Nothing new; it may end what it works on.
    Drain,
    /// Its share.
    On(Weight),
}

/// A node at one balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What it gets.
    pub traffic: Traffic,
    /// Requests that it works on.
    pub in_flight: u64,
    /// Requests that it was sent since the balancer started, where the balancer counts them, and none were missed
    /// since the time before.
    pub served: Option<u64>,
}

/// A site at one balancer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// Every node that stands in its configuration.
    pub servers: BTreeMap<Name, Seen>,
    /// Nodes that are to get requests, and get none, since it finds that they do not answer.
    pub down: BTreeSet<Name>,
    /// Requests that wait for a node.
    pub queued: u64,
    /// Processes of before a reload: they work on requests that nobody counts, on any node.
    pub lingering: usize,
}

/// A node is to get something else from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The node.
    pub server: Name,
    /// What it is to get.
    pub traffic: Traffic,
}

/// In what a balancer differs from what is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Difference {
    /// What has to be told.
    pub changes: Vec<Change>,
    /// Nodes that it has no server for. They get nothing: that is wrong of those that are to be on, and of no others.
    pub lacking: Vec<Name>,
}

/// In what `observed` differs from what is `wanted`. Nodes that nobody said anything about are left alone.
pub fn diff(wanted: &BTreeMap<Name, Traffic>, observed: &Observed) -> Difference {
    let mut difference = Difference::default();
    for (server, traffic) in wanted {
        match observed.servers.get(server) {
            None => difference.lacking.push(server.clone()),
            Some(seen) if seen.traffic != *traffic => {
                difference.changes.push(Change { server: server.clone(), traffic: *traffic });
            }
            Some(_) => {}
        }
    }
    difference
}

impl Traffic {
    /// Whether it gets a share of what is new.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On(_))
    }
}

impl Weight {
    /// The greatest share, and the usual one.
    pub const FULL: Self = Self(100);

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Weight {
    type Error = Invalid;
    fn try_from(weight: u8) -> Result<Self, Invalid> {
        if (1..=100).contains(&weight) {
            return Ok(Self(weight));
        }
        Err(Invalid::new("weight", weight, "1 to 100"))
    }
}

impl From<Weight> for u8 {
    fn from(weight: Weight) -> u8 {
        weight.0
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Drain => f.pad("drain"),
            Self::On(weight) => write!(f, "on, weight {}", weight.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_told_and_only_of_those_that_somebody_asked_for() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let seen = |traffic| Seen { traffic, in_flight: 0, served: None };
        let on = Traffic::On(Weight::FULL);
        let observed = Observed {
            servers: [("a", Traffic::Off), ("b", on), ("c", on)]
                .map(|(n, traffic)| (name(n), seen(traffic)))
                .into(),
            ..Observed::default()
        };
        let wanted = [("a", on), ("b", on), ("d", Traffic::Drain), ("e", Traffic::Off)];
        let wanted = wanted.map(|(n, traffic)| (name(n), traffic)).into();
        let changes = vec![Change { server: name("a"), traffic: on }];
        let lacking = ["d", "e"].map(name).into();
        assert_eq!(diff(&wanted, &observed), Difference { changes, lacking });
        assert!(Weight::try_from(0).is_err() && Weight::try_from(101).is_err());
    }
}
