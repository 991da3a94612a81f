//! What is recorded: everything that happens to applications and reservations. The state is what
//! the events add up to ([`crate::book`]).

use crate::refusal::Refusal;
use keeptime_model::application::Application;
use keeptime_model::drain::DrainReason;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Grant, Handle, Request, RequestKey, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::site::SiteSpec;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::drift::Observation;
use keeptime_planner::outline::Outline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Event {
    /// An application and its profile became known, or were replaced.
    Registered {
        /// The application.
        application: Box<Application>,
        /// What was measured of it.
        profile: Box<Profile>,
    },
    /// A reservation was granted.
    Granted {
        /// Its handle.
        handle: Handle,
        /// Who asked, what, and what was given.
        granted: Box<Granted>,
    },
    /// A request did not fit.
    Refused {
        /// Its handle.
        handle: Handle,
        /// Who asked, what, and why it was refused.
        refused: Box<Refused>,
    },
    /// A reservation was changed.
    Modified {
        /// Granted or active, and what it was before.
        handle: Handle,
        /// By whom, and what it is now.
        modified: Box<Modified>,
    },
    /// The time of a reservation came, and all agents have it.
    Started {
        /// Granted until now; active from now on.
        handle: Handle,
        /// Nodes whose agents enforce none of it. Older records do not tell.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unenforced: Vec<Name>,
    },
    /// Its time was over.
    Ended {
        /// Granted or active until now.
        handle: Handle,
    },
    /// The run that it was for is over: it was given back.
    Finished {
        /// Granted or active until now.
        handle: Handle,
        /// How that ended.
        run: RunEnd,
    },
    /// Somebody gave it back.
    Cancelled {
        /// Granted or active until now.
        handle: Handle,
        /// Its owner or an operator.
        by: UserName,
    },
    /// Its holder said nothing for its lease: it was given back.
    Abandoned {
        /// One that has a lease; granted or active until now.
        handle: Handle,
    },
    /// A run with it took so long.
    Ran {
        /// An active one, which goes on.
        handle: Handle,
        /// Of one result, as the run said.
        actual_nanos: Nanos,
        /// What that says of its application, if it was granted for a goal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        observation: Option<Observation>,
    },
    /// An agent could not enforce it.
    Failed {
        /// Granted or active until now.
        handle: Handle,
        /// Where its agent runs.
        node: Name,
        /// Why, in the agent's words.
        why: String,
    },
    /// A node of it went away.
    Lost {
        /// Granted or active until now.
        handle: Handle,
        /// The node.
        node: Name,
        /// What could be had instead, for the time that is left.
        instead: Option<Box<Grant>>,
    },
    /// It was over long ago, and its key can be used again.
    Forgotten {
        /// One that is over; it may be granted no more.
        handle: Handle,
    },
    /// A web site is to have nodes, or is described anew.
    SiteAdded {
        /// What it is.
        site: Box<SiteSpec>,
    },
    /// A web site is to be removed when its nodes are drained.
    SiteLeaving {
        /// One that was added.
        site: Name,
    },
    /// A web site has no nodes any more, and is gone.
    SiteRemoved {
        /// One that was to be removed.
        site: Name,
    },
    /// Nothing new comes to these nodes, and what they have stays; or another reason was given for that.
    Drained {
        /// Those of the named ones for which that is new, at least one.
        nodes: BTreeSet<Name>,
        /// Who said so.
        by: UserName,
        /// In the words of who said so.
        reason: DrainReason,
    },
    /// These nodes, which were drained, are to be had again.
    Resumed {
        /// Those of the named ones that were drained.
        nodes: BTreeSet<Name>,
        /// Who said so.
        by: UserName,
    },
    /// Somebody said that the clock is right, which shows less than what is recorded: time goes on from here.
    ClockAccepted {
        /// When the record before was made, by a clock that was ahead.
        recorded_unix_nanos: WallTime,
    },
}

/// A reservation as it was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Granted {
    /// Whose it is.
    pub owner: UserName,
    /// The key of the request.
    pub key: RequestKey,
    /// What was asked.
    pub request: Request,
    /// From when on.
    pub from_unix_nanos: WallTime,
    /// Until when; nothing = without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_nanos: Option<WallTime>,
    /// What was given.
    pub grant: Grant,
    /// The lost reservation whose place it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Handle>,
    /// How it was decided, if it was a goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<Outline>>,
}

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// Who asked.
    pub owner: UserName,
    /// The key of the request.
    pub key: RequestKey,
    /// What was asked.
    pub request: Request,
    /// Why not, and what else.
    pub refusal: Refusal,
    /// The lost reservation whose place it was to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Handle>,
    /// How it was decided, if it was a goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<Outline>>,
}

/// What a reservation was changed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modified {
    /// By whom.
    pub by: UserName,
    /// What is asked now.
    pub request: Request,
    /// From when on.
    pub from_unix_nanos: WallTime,
    /// Until when; nothing = without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_nanos: Option<WallTime>,
    /// What is given now.
    pub grant: Grant,
    /// How it was decided, if it was a goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<Outline>>,
}

impl Event {
    /// How the goal that it is about was decided, if it is about one.
    pub fn decision(&self) -> Option<&Outline> {
        match self {
            Self::Granted { granted, .. } => granted.decision.as_deref(),
            Self::Refused { refused, .. } => refused.decision.as_deref(),
            Self::Modified { modified, .. } => modified.decision.as_deref(),
            _ => None,
        }
    }

    /// What kind of event it is.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Registered { .. } => "registered",
            Self::Granted { .. } => "granted",
            Self::Refused { .. } => "refused",
            Self::Modified { .. } => "modified",
            Self::Started { .. } => "started",
            Self::Ended { .. } => "ended",
            Self::Finished { .. } => "finished",
            Self::Cancelled { .. } => "cancelled",
            Self::Abandoned { .. } => "abandoned",
            Self::Ran { .. } => "ran",
            Self::Failed { .. } => "failed",
            Self::Lost { .. } => "lost",
            Self::Forgotten { .. } => "forgotten",
            Self::SiteAdded { .. } => "site-added",
            Self::SiteLeaving { .. } => "site-leaving",
            Self::SiteRemoved { .. } => "site-removed",
            Self::Drained { .. } => "drained",
            Self::Resumed { .. } => "resumed",
            Self::ClockAccepted { .. } => "clock-accepted",
        }
    }

    /// The reservation that it is about; none if it is about an application, a web site, nodes or the clock.
    pub fn handle(&self) -> Option<Handle> {
        match self {
            Self::Registered { .. }
            | Self::SiteAdded { .. }
            | Self::SiteLeaving { .. }
            | Self::SiteRemoved { .. }
            | Self::Drained { .. }
            | Self::Resumed { .. }
            | Self::ClockAccepted { .. } => None,
            Self::Granted { handle, .. }
            | Self::Refused { handle, .. }
            | Self::Modified { handle, .. }
            | Self::Started { handle, .. }
            | Self::Ended { handle }
            | Self::Finished { handle, .. }
            | Self::Cancelled { handle, .. }
            | Self::Abandoned { handle }
            | Self::Ran { handle, .. }
            | Self::Failed { handle, .. }
            | Self::Lost { handle, .. }
            | Self::Forgotten { handle } => Some(*handle),
        }
    }
}
