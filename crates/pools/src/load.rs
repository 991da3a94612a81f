//! What was seen of sites and nodes since it was last looked. Silence counts as loaded: a node that
//! is too busy to report is the last one to take away or to think idle.

use crate::holdings::{Holdings, Place};
use crate::pool::SiteIndex;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use serde::{Deserialize, Serialize};

/// What a site's balancers saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteLoad {
    /// Requests that arrived in the interval.
    pub arrived: u64,
    /// Requests that were answered in the interval.
    pub completed: u64,
    /// Requests that wait for a node now.
    pub queued: u64,
    /// Requests that nodes work on now.
    pub in_flight: u64,
}

/// All that was seen in one interval; nothing where nothing was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loads {
    /// How long was looked.
    pub interval: Nanos,
    /// Of each site, in the order of the pool.
    pub sites: Vec<Option<SiteLoad>>,
    /// The part of the interval in which each node was busy, in the order of the pool.
    pub nodes: Vec<Option<Share>>,
    /// The part of its CPU that each node used, whoever for, in the same order; nothing of it where nobody looks.
    /// What others do there is no site's need, but a reason to take another node.
    pub cpu: Vec<Share>,
}

impl Loads {
    /// Nothing was heard of any of them.
    pub fn silent(sites: usize, nodes: usize, interval: Nanos) -> Self {
        let cpu = vec![Share::default(); nodes];
        Self { interval, sites: vec![None; sites], nodes: vec![None; nodes], cpu }
    }

    /// How busy `node` is.
    pub fn busy(&self, node: NodeIndex) -> Share {
        self.nodes[node.0 as usize].unwrap_or(Share::ONE)
    }

    /// How much of `node` is taken, by requests or by anybody else.
    pub fn taken(&self, node: NodeIndex) -> Share {
        self.busy(node).max(self.cpu[node.0 as usize])
    }

    /// How busy the nodes that serve `site` are on average; without nodes it is as loaded as can be.
    pub fn busy_site(&self, site: SiteIndex, holdings: &Holdings) -> Share {
        let serving = holdings.nodes().filter(|(_, place)| *place == Place::Serving(site));
        let (mut sum, mut count) = (0u64, 0u64);
        for (node, _) in serving {
            sum += u64::from(self.busy(node).ppm());
            count += 1;
        }
        let mean = sum.checked_div(count).and_then(|mean| u32::try_from(mean).ok());
        mean.and_then(|ppm| Share::try_from(ppm).ok()).unwrap_or(Share::ONE)
    }
}
