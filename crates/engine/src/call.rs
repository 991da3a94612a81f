//! What users ask of the broker, and what they are answered.

use crate::book::Reservation;
use crate::refusal::Refusal;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::drain::{DrainReason, NodeSet};
use keeptime_model::extension::Extension;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Grant, Handle, Request, RequestKey, State, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::site::SiteSpec;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::translate::Decision;
use std::sync::Arc;
use thiserror::Error;

/// Who asks, as the door found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// By the name of the account, as the socket or the certificate says.
    pub user: UserName,
    /// Whether the reservations of others are theirs to change.
    pub operator: bool,
}

/// What changes the state. Everything else is read from the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Makes an application and its profile known, or replaces them. Operators only.
    Register {
        /// The application.
        application: Box<Application>,
        /// What was measured of it.
        profile: Box<Profile>,
    },
    /// Reserves now or in advance. Sent again with the same key, it gives the same reservation. What may wait
    /// ([`Request::wait_nanos`]) and has no room is answered when it has, or when its wait is over.
    Reserve {
        /// Chosen by the client.
        key: RequestKey,
        /// On what, from when on and for how long.
        request: Request,
    },
    /// As [`Call::Reserve`], but only answers whether and when.
    Consider {
        /// As for [`Call::Reserve`].
        request: Request,
    },
    /// Puts another request in the place of a reservation's. All of it is changed, or nothing. Others make way for it, as for
    /// [`Call::Reserve`].
    Modify {
        /// One of the caller's that is granted or active; of anybody for operators.
        handle: Handle,
        /// What is wanted instead. Without a start, that of the reservation stays.
        request: Request,
    },
    /// As [`Call::Modify`], in turn: not within a second of another job's change on one of its nodes, and nobody makes way. What
    /// a controller asks for by itself.
    Correct {
        /// As for [`Call::Modify`].
        handle: Handle,
        /// What is wanted instead.
        request: Request,
    },
    /// Gives a running program more than was reserved for it, or takes it back: its nodes and its
    /// time stay. Replaces what it was given so before.
    Extend {
        /// As for [`Call::Modify`].
        handle: Handle,
        /// All that it has beside what is reserved; an empty one takes everything back.
        extension: Extension,
    },
    /// Gives everything back.
    Cancel {
        /// Granted, active, waiting for room, or being decided; of the caller, or of anybody for operators.
        handle: Handle,
    },
    /// Gives everything back: the run that it was for is over.
    Finish {
        /// Granted or active, also while it is being changed.
        handle: Handle,
        /// How that ended.
        run: RunEnd,
    },
    /// Gives back a node that serves a web site, if that can do without. Operators only.
    Spare {
        /// The node's reservation.
        handle: Handle,
    },
    /// Moves a lost reservation: the same is asked for again on other nodes, for the time that is left.
    /// Asked again, it gives the same reservation.
    Move {
        /// The lost one.
        handle: Handle,
    },
    /// The holder of a reservation lives: its lease begins anew.
    Keep {
        /// Granted or active, also while it is being changed. It need not have a lease.
        handle: Handle,
    },
    /// A run with the reservation took so long. Promises follow what runs took.
    Report {
        /// An active one.
        handle: Handle,
        /// From the beginning of one result to its end; more than 0.
        actual: Nanos,
    },
    /// Explains how a goal would be decided, step by step. Nothing is reserved.
    Explain {
        /// One that asks for a goal.
        request: Request,
    },
    /// Makes a web site known, or describes it anew. Operators only.
    AddSite {
        /// What it is.
        site: Box<SiteSpec>,
    },
    /// Removes a web site when its nodes are drained. Operators only.
    RemoveSite {
        /// One that is known and is not being removed.
        site: Name,
    },
    /// Takes nodes out of service: nothing new comes to them, and what they have stays. Operators only. Said again, it
    /// gives another reason.
    Drain {
        /// Of the cluster; with one that it does not have, none is drained.
        nodes: NodeSet,
        /// What users are told who ask for these nodes.
        reason: DrainReason,
    },
    /// Lets nodes be had again that were drained. Operators only.
    Resume {
        /// As for [`Call::Drain`]; those that are in service stay so.
        nodes: NodeSet,
    },
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It is known now.
    Registered,
    /// It is recorded.
    Recorded,
    /// The reservation as it is now.
    Reservation(Arc<Reservation>),
    /// It would be granted.
    Possible {
        /// From when on.
        from: WallTime,
        /// Until when; nothing = without an end.
        until: Option<WallTime>,
        /// On which nodes, with how much of each.
        grant: Box<Grant>,
    },
    /// So a goal would be decided.
    Decided(Arc<Decision>),
}

/// Why a call was not carried out. Nothing has changed then, but that refusals are remembered.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It makes sense and does not fit.
    #[error("{refusal}")]
    Refused {
        /// Under which the refusal is remembered, where it is.
        handle: Option<Handle>,
        /// Why, and what would be admitted.
        refusal: Box<Refusal>,
    },
    /// There is no such reservation.
    #[error("there is no reservation {handle}")]
    NotFound {
        /// As it was given.
        handle: Handle,
    },
    /// It belongs to somebody else.
    #[error("{handle} belongs to {owner}")]
    NotYours {
        /// Somebody else's.
        handle: Handle,
        /// To whom.
        owner: UserName,
    },
    /// Only operators may do this.
    #[error("only operators may {what}")]
    OperatorsOnly {
        /// What was asked for, to be read after "may".
        what: &'static str,
    },
    /// It is over.
    #[error("{handle} is {state}")]
    Over {
        /// One that was ended, given back, lost or refused.
        handle: Handle,
        /// Since then.
        state: State,
    },
    /// It waits for room: there is nothing yet that could be kept or changed.
    #[error("{handle} waits for room, and can only be cancelled")]
    Waits {
        /// One that has no nodes yet.
        handle: Handle,
    },
    /// It is being granted or changed; to be tried again.
    #[error("{handle} is being changed; try again")]
    Busy {
        /// One whose agents have not answered yet.
        handle: Handle,
    },
    /// It is another job's turn; to be tried again.
    #[error(
        "{handle} waits for its turn, {wait} at the least: another job of its nodes was just changed, or comes first"
    )]
    NotYet {
        /// One that shares a node with what was changed.
        handle: Handle,
        /// Asked sooner, it is answered so again.
        wait: Nanos,
    },
    /// The key was used for another request.
    #[error("the key {key} was used for another request, {handle}")]
    KeyReused {
        /// The key.
        key: RequestKey,
        /// What it was used for.
        handle: Handle,
    },
}
