//! What is held and not granted yet: new reservations and changes that wait for their agents.

use crate::admission::Denied;
use crate::engine::Ticket;
use crate::queue::Asked;
use keeptime_calendar::Span;
use keeptime_model::reservation::{Grant, Handle, Request, RequestKey, UserName};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::translate::Decision;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All offers, by handle: a reservation has one at a time.
pub(crate) type Offers = BTreeMap<Handle, Offer>;

/// Resources that are held while agents are asked.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub kind: Kind,
    pub proposal: Proposal,
    /// Agents that have not accepted yet.
    pub waiting: BTreeSet<NodeIndex>,
    /// Agents of other jobs that may still let those use what is held here.
    pub yielding: BTreeSet<(NodeIndex, Handle)>,
    /// Who is to be answered: several if the request was repeated.
    pub tickets: Vec<Ticket>,
    /// Until then, by the steady clock.
    pub deadline: Nanos,
}

impl Offer {
    /// Whether nobody has to be waited for.
    pub fn is_ready(&self) -> bool {
        self.waiting.is_empty() && self.yielding.is_empty()
    }
}

/// What is offered.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    pub owner: UserName,
    pub key: RequestKey,
    pub request: Request,
    pub from: WallTime,
    pub until: Option<WallTime>,
    pub grant: Grant,
    /// How it was decided, if it was a goal.
    pub decision: Option<Arc<Decision>>,
}

/// A request that comes to no proposal.
pub(crate) struct Declined {
    pub denied: Denied,
    /// How it was decided, if it was a goal.
    pub decision: Option<Arc<Decision>>,
}

impl<D: Into<Denied>> From<D> for Declined {
    fn from(denied: D) -> Self {
        Self { denied: denied.into(), decision: None }
    }
}

/// What becomes of it.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// A new reservation.
    New {
        /// The lost one whose place it takes.
        replaces: Option<Handle>,
        /// What goes back to its place in the queue if its agents do not take it, but for who is to be answered; nothing =
        /// it would not have waited.
        waits: Option<Box<Asked>>,
        /// Until then, by the steady clock, it is offered elsewhere; nothing = it is offered for the first time.
        elsewhere_until: Option<Nanos>,
    },
    /// A change of a reservation that is there.
    Change {
        /// By whom.
        by: UserName,
        /// It is right only if all have agreed by then; nothing = whenever they have.
        agreed_by: Option<WallTime>,
    },
}

impl Kind {
    /// Whether it takes the place of this lost reservation.
    pub fn takes_the_place_of(&self, lost: Handle) -> bool {
        matches!(self, Self::New { replaces: Some(replaced), .. } if *replaced == lost)
    }
}

impl Proposal {
    /// When.
    pub fn span(&self) -> Span {
        span(self.from, self.until)
    }
}

/// From `from` until `until`, or without an end; empty if it ends before it starts.
pub(crate) fn span(from: WallTime, until: Option<WallTime>) -> Span {
    match until {
        None => Span::since(from),
        Some(until) => Span::lasting(from, until.saturating_since(from)),
    }
}
