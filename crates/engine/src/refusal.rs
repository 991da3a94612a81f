//! Why a request is not granted, and what would be instead.

use keeptime_model::assignment::CpuMechanism;
use keeptime_model::capability::Guarantee;
use keeptime_model::drain::{DrainReason, Drained};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Resources, UserName};
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos, WallTime};
use keeptime_planner::refusal::{self, CounterOffer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a refusal names one by one: of more, people read no further, and every refusal is recorded.
pub const NAMED_MAX: usize = 8;

/// A request that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The first thing that was in the way.
    pub reason: Reason,
    /// What is short, where the reason does not name it: at most [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<Lacking>,
    /// Nodes that do not count, since their agents are away or cannot enforce it: at most
    /// [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<Name>,
    /// So many nodes do not count, since they are drained.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drained: u32,
    /// Nodes that are kept for others, which wait for room and were passed too often: at most [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Name>,
    /// Nodes on which the mechanism that was asked for keeps no share of the CPU: at most [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_mechanism: Vec<WithoutMechanism>,
    /// The same, so much later, would be admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earliest_start_unix_nanos: Option<WallTime>,
    /// The same, from the time that was asked for on, would be admitted until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_end_unix_nanos: Option<WallTime>,
    /// Other goals that would be admitted at the time that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counter_offers: Vec<CounterOffer>,
    /// Less of the resources that would be admitted at the time that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_offers: Vec<ResourceOffer>,
}

/// A node that is drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainedNode {
    /// One that the request would have needed.
    pub node: Name,
    /// Who said why.
    pub by: UserName,
    /// In their words.
    pub reason: DrainReason,
}

/// A node on which a mechanism does not serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithoutMechanism {
    /// One that was named or would have been taken.
    pub node: Name,
    /// What was asked for.
    pub asked: CpuMechanism,
    /// What serves there.
    pub serve: Vec<CpuMechanism>,
}

/// Less of the resources that were refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceOffer {
    /// What is less.
    pub change: Less,
    /// What to ask for.
    pub resources: Resources,
}

/// What of an offer is less than what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Less {
    /// The number of nodes.
    FewerNodes,
    /// The rate of each flow.
    LessBandwidth,
}

/// Why a request does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Reason {
    /// The goal cannot be kept.
    Goal(refusal::Reason),
    /// Some resources have too little free: of more than [`NAMED_MAX`], the first.
    Lacking(Vec<Lacking>),
    /// Nodes do not have it at all, whatever is given back.
    Never(Beyond),
    /// Too few nodes have the CPU and disk rates.
    TooFewNodes {
        /// So many are asked for.
        needs: u32,
        /// So many have them.
        has: u32,
    },
    /// No set of nodes was found whose links hold every flow.
    LinksBusy {
        /// What every flow needs.
        flow_needs_bits_per_second: BitsPerSecond,
        /// What it could have.
        flow_has_bits_per_second: BitsPerSecond,
        /// The link that allows no more.
        link: String,
    },
    /// The agents of these nodes are not connected.
    NodesAway(Vec<Name>),
    /// These nodes are kept for others, which wait for room and were passed too often.
    NodesKept(Vec<Name>),
    /// Nothing new comes to these nodes: of more than [`NAMED_MAX`], the first.
    NodesDrained(Vec<DrainedNode>),
    /// These nodes cannot enforce what is asked of them.
    NotEnforced {
        /// What kind of promise.
        asked: Guarantee,
        /// As many as are named.
        nodes: Vec<Name>,
    },
    /// It starts too far ahead.
    TooFarAhead {
        /// At most so far.
        ahead_max_nanos: Nanos,
    },
    /// The user has so many reservations already.
    TooMany {
        /// At most.
        user_reservations: u32,
    },
    /// What the user has, and what is remembered of them, takes so much of the broker's memory already. This refusal is not
    /// remembered.
    TooMuch {
        /// At most, about.
        user_memory_bytes: Bytes,
    },
    /// It does not fit now, and so many requests wait for room already.
    TooManyWait {
        /// At most.
        waiting_requests: u32,
    },
    /// It does not fit now, and so many requests of the user wait for room already.
    TooManyOfUserWait {
        /// At most.
        user_waiting_requests: u32,
    },
    /// The agent of a node cannot enforce it.
    AgentRefused {
        /// Where it runs.
        node: Name,
        /// In its own words.
        why: String,
    },
    /// Agents did not answer in time.
    AgentsSilent(Vec<Name>),
    /// It was given back before it was granted.
    Cancelled,
}

/// More of something than nodes have at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beyond {
    /// Of CPU, or of a disk, either way.
    pub share: NodeShare,
    /// How much of it, in the user's words.
    pub asked: String,
    /// The most that can be granted on the nodes that are named, or on as many as are asked for; nothing = they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<String>,
    /// So many nodes are asked for.
    pub needs: u32,
    /// Those that have no more, where nodes were named: at most [`NAMED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Name>,
}

/// What each node has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NodeShare {
    /// CPU.
    Cpu,
    /// What is read from its disk.
    Read,
    /// What is written to its disk.
    Write,
}

/// A resource with too little free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lacking {
    /// In the user's words: `"link n1 > s1"`, `"CPU of n3"`.
    pub resource: String,
    /// How much less would fit.
    pub lacking: String,
    /// The first instant at which it does not fit.
    pub first_unix_nanos: WallTime,
}

impl Refusal {
    /// Which resource, where and when, in people's words; `show` writes a time.
    pub fn words(&self, show: &dyn Fn(WallTime) -> String) -> String {
        let mut parts = vec![self.reason.words(show)];
        parts.extend(self.beside(show));
        parts.join("; ")
    }

    /// What is short besides, and which nodes do not count, in people's words; `show` writes a time.
    pub fn beside(&self, show: &dyn Fn(WallTime) -> String) -> Vec<String> {
        let mut parts: Vec<_> = self.lacking.iter().map(|lacking| lacking.words(show)).collect();
        if !self.unusable.is_empty() {
            let nodes = list(&self.unusable);
            parts.push(format!("not connected, or not able to enforce it: {nodes}"));
        }
        match self.drained {
            0 => {}
            1 => parts.push("1 node is drained".into()),
            count => parts.push(format!("{count} nodes are drained")),
        }
        if !self.kept.is_empty() {
            parts.push(format!("kept for who waits longer: {}", list(&self.kept)));
        }
        parts.extend(self.without_mechanism.iter().map(ToString::to_string));
        parts
    }
}

impl fmt::Display for Refusal {
    /// With times in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(&|time| time.to_string()))
    }
}

impl Reason {
    fn words(&self, show: &dyn Fn(WallTime) -> String) -> String {
        match self {
            Self::Goal(reason) => reason.to_string(),
            Self::Lacking(all) => {
                let all: Vec<_> = all.iter().map(|lacking| lacking.words(show)).collect();
                all.join("; ")
            }
            Self::Never(beyond) => beyond.to_string(),
            Self::TooFewNodes { needs, has } => {
                format!("{needs} nodes are needed, and {has} have the CPU and disk rates free")
            }
            Self::LinksBusy { flow_needs_bits_per_second, flow_has_bits_per_second, link } => {
                format!(
                    "each flow needs {}, and link {link} has {} for it",
                    flow_needs_bits_per_second.rounded_up(),
                    flow_has_bits_per_second.rounded_down()
                )
            }
            Self::NodesAway(names) => {
                format!("the agents of these nodes are not connected: {}", list(names))
            }
            Self::NodesKept(names) => {
                format!("these nodes are kept for who waits longer: {}", list(names))
            }
            Self::NodesDrained(nodes) => list(nodes),
            Self::NotEnforced { asked, nodes } => {
                format!("these nodes cannot enforce {asked}: {}", list(nodes))
            }
            Self::TooFarAhead { ahead_max_nanos } => {
                format!("reservations start at most {} ahead", ahead_max_nanos.rounded_down())
            }
            Self::TooMany { user_reservations } => {
                format!("a user may have {user_reservations} reservations at a time")
            }
            Self::TooMuch { user_memory_bytes } => format!(
                "a user's reservations may take {user_memory_bytes} of the broker's memory, with those that are \
                 over and not forgotten yet"
            ),
            Self::TooManyWait { waiting_requests } => {
                format!(
                    "it does not fit now, and {waiting_requests} requests wait for room already"
                )
            }
            Self::TooManyOfUserWait { user_waiting_requests } => format!(
                "it does not fit now, and a user may have {user_waiting_requests} requests wait for room"
            ),
            Self::AgentRefused { node, why } => format!("{node} cannot enforce it: {why}"),
            Self::AgentsSilent(names) => {
                format!("the agents of these nodes did not answer: {}", list(names))
            }
            Self::Cancelled => "it was cancelled".into(),
        }
    }
}

impl Lacking {
    /// In people's words; `show` writes a time.
    pub fn words(&self, show: &dyn Fn(WallTime) -> String) -> String {
        format!(
            "{} lacks {}, first at {}",
            self.resource,
            self.lacking,
            show(self.first_unix_nanos)
        )
    }
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { share, asked, most, needs, nodes } = self;
        let what = match share {
            NodeShare::Cpu => "of a CPU",
            NodeShare::Read => "read from disk",
            NodeShare::Write => "written to disk",
        };
        write!(f, "{asked} {what} can never be granted: ")?;
        match (most, nodes.as_slice()) {
            (Some(most), [node]) => write!(f, "{node} has {most} for jobs"),
            (Some(most), []) if *needs == 1 => write!(f, "no node has more than {most} for jobs"),
            (Some(most), []) => write!(f, "no {needs} nodes have more than {most} each for jobs"),
            (Some(most), nodes) => {
                write!(f, "{} have no more than {most} each for jobs", list(nodes))
            }
            (None, []) if *needs == 1 => f.write_str("no disk of a node is in the topology"),
            (None, []) => write!(f, "no disks of {needs} nodes are in the topology"),
            (None, nodes) => write!(f, "no disk of {} is in the topology", list(nodes)),
        }
    }
}

impl DrainedNode {
    /// `node`, which is so.
    pub(crate) fn new(node: Name, Drained { by, reason, .. }: &Drained) -> Self {
        Self { node, by: by.clone(), reason: reason.clone() }
    }
}

impl fmt::Display for DrainedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, by, reason } = self;
        write!(f, "{node} is drained ({by}: {reason})")
    }
}

impl fmt::Display for WithoutMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, asked, serve } = self;
        write!(f, "{node} keeps no share of the CPU by {asked}, ")?;
        match serve.as_slice() {
            [] => f.write_str("nor by anything else"),
            serve => write!(f, "but by {}", list(serve)),
        }
    }
}

impl fmt::Display for ResourceOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.change {
            Less::FewerNodes if self.resources.nodes.count() == 1 => f.write_str("1 node"),
            Less::FewerNodes => write!(f, "{} nodes", self.resources.nodes.count()),
            Less::LessBandwidth => {
                write!(f, "{} for each flow", self.resources.bits_per_second.rounded_down())
            }
        }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn list(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self {
            reason,
            lacking: Vec::new(),
            unusable: Vec::new(),
            drained: 0,
            kept: Vec::new(),
            without_mechanism: Vec::new(),
            earliest_start_unix_nanos: None,
            latest_end_unix_nanos: None,
            counter_offers: Vec::new(),
            resource_offers: Vec::new(),
        }
    }
}
