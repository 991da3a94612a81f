//! What people are told of sites and moves.

pub use keeptime_balancers::transfer::Unfinished;
use keeptime_model::name::Name;
use keeptime_model::site::SiteSpec;
use keeptime_model::units::{Nanos, Share, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Moves that are remembered for people; what they led to is in the ledger.
pub const MOVES_MAX: usize = 256;

/// Everything, as it was seen last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// By name.
    pub sites: Vec<SiteView>,
    /// All of the cluster, in the topology's order.
    #[serde(default)]
    pub nodes: Vec<NodeView>,
    /// The last moves, oldest first.
    pub moves: VecDeque<MoveView>,
    /// Moves before whose end a node's requests had not ended within the limit of the site that it left, since the
    /// broker started.
    #[serde(default)]
    pub moves_unfinished: u64,
}

/// One site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteView {
    /// What it is.
    pub spec: SiteSpec,
    /// Whether it is removed when its nodes are drained.
    pub is_leaving: bool,
    /// The nodes that serve it by the record, also those that drain.
    pub nodes: Vec<Name>,
    /// What its balancers saw; nothing if one of them does not answer.
    pub load: Option<LoadView>,
    /// Its last minute, oldest second first; the last one is not over.
    #[serde(default)]
    pub past: Vec<Second>,
    /// What is wrong with its balancers, in their words.
    pub problems: Vec<String>,
}

/// A second of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Second {
    /// Nodes that served it at its end, also those that drained.
    pub nodes: u32,
    /// The most requests that waited and were worked on at one time; nothing if a balancer did not answer.
    pub requests: Option<u64>,
}

/// A site's load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadView {
    /// Requests that arrive in a second.
    pub arrivals_per_second: f64,
    /// Requests that wait for a node.
    pub queued: u64,
    /// Requests that nodes work on.
    pub in_flight: u64,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: Name,
    /// The site that it serves by the record.
    pub site: Option<Name>,
    /// How much of it is taken; nothing if nobody says, and it counts as loaded.
    pub load_ppm: Option<Share>,
    /// Who says so.
    pub known_from: Option<LoadSource>,
    /// Threads that run or wait for a processor of its machine, by its own counters.
    pub runnable: Option<u32>,
}

/// Who says how busy a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LoadSource {
    /// The balancers: whether they have a request in flight on it.
    Balancers,
    /// The node itself: the part of its CPU that was used.
    Counters,
}

/// One move that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveView {
    /// When it ended.
    pub at_unix_nanos: WallTime,
    /// From the decision on.
    pub took_nanos: Nanos,
    /// The node.
    pub node: Name,
    /// The site that it left; nothing if it was a spare.
    pub from: Option<Name>,
    /// The site that it joined; nothing if it became a spare.
    pub to: Option<Name>,
    /// Why it was made.
    pub why: String,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
    /// What was in flight on the node when the limit for its drain was over; nothing if it was drained.
    #[serde(default)]
    pub unfinished: Option<Unfinished>,
}

impl Overview {
    pub(crate) fn remember(&mut self, moved: MoveView) {
        self.moves_unfinished += u64::from(moved.unfinished.is_some());
        self.moves.push_back(moved);
        if self.moves.len() > MOVES_MAX {
            self.moves.pop_front();
        }
    }
}
