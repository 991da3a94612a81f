//! What the broker's record says of sites and nodes, and what is asked of it.

use keeptime_model::name::Name;
use keeptime_model::site::{HostedSite, SiteSpec};
use keeptime_model::units::CpuPpm;
use std::net::Ipv4Addr;

/// Everything that is recorded, as it is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// By name.
    pub sites: Vec<HostedSite>,
    /// All of the cluster, always in the same order.
    pub nodes: Vec<NodeStanding>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStanding {
    /// Its name.
    pub name: Name,
    /// Its address on the cluster's network, where it is known.
    pub address: Option<Ipv4Addr>,
    /// The site that it serves.
    pub site: Option<Name>,
    /// Whether its agent is there.
    pub is_connected: bool,
    /// Whether an operator has taken it out of service: a site that has it gives it back when it can.
    pub is_out_of_service: bool,
    /// Its CPU.
    pub cpu: CpuPpm,
    /// What of it a site could have from now on, since nobody else has it. What the site has that it serves is a part of
    /// that.
    pub cpu_free: CpuPpm,
}

impl NodeStanding {
    /// Whether it can be given to a site: its agent is there, and it is in service.
    pub fn is_there(&self) -> bool {
        self.is_connected && !self.is_out_of_service
    }

    /// Whether it serves this site.
    pub fn serves(&self, site: &Name) -> bool {
        self.site.as_ref() == Some(site)
    }

    /// Whether it could be had by a site that is described so.
    pub fn fits(&self, site: &SiteSpec) -> bool {
        self.is_there() && self.cpu_free >= site.cpu_ppm.unwrap_or(self.cpu)
    }
}

/// A node is to serve another site from now on. Nothing is in flight on it, or its old site waits for that no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The node.
    pub node: Name,
    /// The site that it served; nothing if it was a spare.
    pub from: Option<Name>,
    /// The site that it will serve; nothing if it becomes a spare.
    pub to: Option<Name>,
}

/// The broker, as a controller sees it. Nothing here waits for agents.
pub trait Record {
    /// What is recorded; nothing if that cannot be said now.
    fn standing(&mut self) -> Option<Standing>;

    /// Begins a change. What became of it is among [`Self::answers`] later, once.
    fn ask(&mut self, change: &Change);

    /// The nodes whose changes have ended since this was called last: recorded, or why not.
    fn answers(&mut self) -> Vec<(Name, Result<(), String>)>;
}
