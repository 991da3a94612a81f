//! What a policy wants: moves in their order, all for one site, and why.

use crate::pool::SiteIndex;
use keeptime_model::topology::NodeIndex;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanId(pub u64);

/// One node goes from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// The node.
    pub node: NodeIndex,
    /// The site that it serves; nothing if it is a spare.
    pub from: Option<SiteIndex>,
    /// The site that it will serve; nothing if it becomes a spare.
    pub to: Option<SiteIndex>,
}

/// Why nodes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The site has less than its hard guarantee.
    BelowHard,
    /// The site needs more than it has, and has less than its soft guarantee.
    BelowSoft,
    /// The site needs more than it has, beyond its soft guarantee.
    BelowNeed,
    /// The site's nodes are busier than the threshold.
    HighLoad,
    /// The site was found to have more than it needs.
    LowLoad,
    /// The site has more than it may.
    BeyondMost,
}

/// Moves that belong together: each begins when the one before it has ended, and all their nodes are
/// reserved to the plan until then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The site whose need, or lack of it, is the cause.
    pub site: SiteIndex,
    /// Why.
    pub reason: Reason,
    /// In order.
    pub steps: Vec<Step>,
}

/// A step that is to be done now: drain the node for `from`, then let it serve `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Move {
    /// The plan that it belongs to.
    pub plan: PlanId,
    /// The node.
    pub node: NodeIndex,
    /// The site that it leaves.
    pub from: Option<SiteIndex>,
    /// The site that it goes to.
    pub to: Option<SiteIndex>,
    /// For which site.
    pub site: SiteIndex,
    /// Why.
    pub reason: Reason,
}

impl Plan {
    /// One node at once.
    pub fn direct(site: SiteIndex, reason: Reason, step: Step) -> Self {
        Self { site, reason, steps: vec![step] }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BelowHard => "below its hard guarantee",
            Self::BelowSoft => "needs more, below its soft guarantee",
            Self::BelowNeed => "needs more, beyond its soft guarantee",
            Self::HighLoad => "its nodes are busy",
            Self::LowLoad => "its nodes are idle",
            Self::BeyondMost => "has more nodes than it may",
        })
    }
}
