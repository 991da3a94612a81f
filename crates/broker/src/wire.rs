//! The JSON of the interface, both ends. Quantities are integers in the unit that the field names.

use crate::words;
use keeptime_engine::book::Reservation;
use keeptime_engine::{CallError, Event, Refusal};
use keeptime_ledger::Revision;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::drain::{DrainReason, Drained, NodeSet};
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Grant, Handle, Request, RequestKey, State, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use keeptime_planner::drift::Observation;
pub use keeptime_sites::history::SECONDS_MAX;
pub use keeptime_sites::overview::{
    LoadSource, LoadView, MoveView, NodeView, Overview, Second, SiteView, Unfinished,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

/// The header with a request's key, where the body does not have it.
pub const KEY_HEADER: &str = "idempotency-key";

/// `POST /v1/reservations`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Chosen anew for each request; sent again with the same key, it is carried out once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<RequestKey>,
    /// What.
    pub request: Request,
}

/// The answer to `POST /v1/consider`: it would be granted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Possible {
    /// From when on.
    pub from_unix_nanos: WallTime,
    /// Until when; nothing = without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_nanos: Option<WallTime>,
    /// What.
    pub grant: Grant,
}

/// `POST /v1/reservations/{handle}/runs`: a run with the reservation has ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    /// What it took.
    pub actual_nanos: Nanos,
}

/// `POST /v1/reservations/{handle}/finish`: the run that it was for is over.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finished {
    /// How that ended.
    pub run: RunEnd,
}

/// `PUT /v1/applications/{name}`, and what `GET` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The application.
    pub application: Application,
    /// What was measured of it.
    pub profile: Profile,
}

/// What `GET /v1/applications/{name}/runs` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs {
    /// What the last ones took, oldest first: promises follow them.
    pub runs: Vec<Observation>,
}

/// The query of `GET /v1/reservations`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Only those of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<UserName>,
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Only those that hold something now or will, and those that wait for room; or only those that are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
    /// Only those on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
    /// Only those after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Handle>,
    /// At most so many, up to [`LIST_MAX`]; fewer where they are long ([`LIST_BYTES`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Reservations of one answer.
pub const LIST_MAX: usize = 1_000;
/// Bytes of one answer, about: with the reservation that reaches them it ends.
pub const LIST_BYTES: usize = 4 << 20;

/// The answer to `GET /v1/reservations`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listing {
    /// In the order of their handles.
    pub reservations: Vec<Arc<Reservation>>,
    /// There may be more: ask again with `after` this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Handle>,
}

/// The answer to `GET /v1/reservations/{handle}/history`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct History {
    /// Oldest first.
    pub records: Vec<Happened>,
    /// What a long one leaves out; nothing = these are all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// Records between the first and the last of a history that are not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// How many of those that are told come before them.
    pub after: usize,
    /// How many they are.
    pub count: usize,
}

/// Something that happened and is durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    /// The batch that it is in,
    pub revision: u64,
    /// and its position there; not told in a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// When.
    pub time_unix_nanos: WallTime,
    /// For people.
    pub text: String,
    /// For programs.
    pub event: Event,
}

/// A moment, in a query.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct At {
    /// Nanoseconds since 1970; nothing = now.
    #[serde(default, rename = "at", skip_serializing_if = "Option::is_none")]
    pub at_unix_nanos: Option<WallTime>,
}

/// The answer to `GET /v1/whoami`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoAmI {
    /// As whom the caller is known.
    pub user: UserName,
    /// Whether as an operator, who may change the reservations of others.
    pub operator: bool,
}

/// The answer to `GET /v1/nodes`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Nodes {
    /// For which moment.
    pub at_unix_nanos: WallTime,
    /// All of them.
    pub nodes: Vec<Node>,
}

/// One node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: Name,
    /// Its address on the cluster's network, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// Its processor, as its kernel names it, while its agent is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Whether its agent is connected now.
    pub connected: bool,
    /// When the agent was heard of last.
    pub heard_unix_nanos: WallTime,
    /// Who took it out of service, since when and why; nothing = it is in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Drained>,
    /// CPU that can be reserved, and what of it is.
    pub cpu_ppm: CpuPpm,
    /// Reserved then.
    pub cpu_reserved_ppm: CpuPpm,
    /// What can be read from its disk.
    pub disk_read_bytes_per_second: BytesPerSecond,
    /// Reserved then.
    pub disk_read_reserved_bytes_per_second: BytesPerSecond,
    /// What can be written to its disk.
    pub disk_write_bytes_per_second: BytesPerSecond,
    /// Reserved then.
    pub disk_write_reserved_bytes_per_second: BytesPerSecond,
    /// What its agent was told to enforce now or soon.
    pub told: Vec<Handle>,
    /// What it cannot enforce, and why.
    pub not_enforced: Vec<String>,
}

impl Node {
    /// Whether something new may come to it now.
    pub fn is_to_be_had(&self) -> bool {
        self.connected && self.drained.is_none()
    }
}

/// `POST /v1/nodes/drain`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Which.
    pub nodes: NodeSet,
    /// Why, for whoever is refused them.
    pub reason: DrainReason,
}

/// `POST /v1/nodes/resume`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Which; those of them that are in service stay so.
    pub nodes: NodeSet,
}

/// The answer to `GET /v1/links`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Links {
    /// For which moment.
    pub at_unix_nanos: WallTime,
    /// Every direction of every link.
    pub links: Vec<Link>,
}

/// One direction of a link.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Link {
    /// `n1 > s1`.
    pub link: String,
    /// What it carries.
    pub bits_per_second: BitsPerSecond,
    /// What of it can be reserved.
    pub reservable_bits_per_second: BitsPerSecond,
    /// Reserved then.
    pub reserved_bits_per_second: BitsPerSecond,
}

/// The query of `GET /v1/timeline`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// From then on; nothing = now.
    #[serde(default, rename = "from", skip_serializing_if = "Option::is_none")]
    pub from_unix_nanos: Option<WallTime>,
    /// Until then.
    #[serde(rename = "to")]
    pub to_unix_nanos: WallTime,
}

/// The answer to `GET /v1/timeline`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timeline {
    /// From then on.
    pub from_unix_nanos: WallTime,
    /// Until then.
    pub to_unix_nanos: WallTime,
    /// Resources of which something is reserved at some time in between.
    pub resources: Vec<ResourceLine>,
    /// Live reservations that overlap it, in the order of their handles.
    pub reservations: Vec<ReservationLine>,
}

/// What of a resource is reserved when.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ResourceLine {
    /// Which.
    pub resource: ResourceName,
    /// What is counted here; nothing where an older broker tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<ResourceUnit>,
    /// How much there is, in its unit.
    pub capacity: u64,
    /// In the order of time; each with another amount than its neighbours.
    pub levels: Vec<Level>,
}

/// A resource and its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResourceName {
    /// A link direction, in bit/s.
    Link(String),
    /// A node's CPU, in parts per million of one.
    Cpu(Name),
    /// Reading at a node, in bytes per second.
    DiskRead(Name),
    /// Writing at a node, in bytes per second.
    DiskWrite(Name),
}

/// What amounts of a resource are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResourceUnit {
    /// Of links.
    #[serde(rename = "bit/s")]
    BitsPerSecond,
    /// Of CPU: parts per million of one.
    #[serde(rename = "ppm")]
    Ppm,
    /// Of disks.
    #[serde(rename = "B/s")]
    BytesPerSecond,
}

impl ResourceName {
    /// What its amounts are counted in.
    pub fn unit(&self) -> ResourceUnit {
        match self {
            Self::Link(_) => ResourceUnit::BitsPerSecond,
            Self::Cpu(_) => ResourceUnit::Ppm,
            Self::DiskRead(_) | Self::DiskWrite(_) => ResourceUnit::BytesPerSecond,
        }
    }
}

/// A span on which the same amount is reserved.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Level {
    /// From then on.
    pub from_unix_nanos: WallTime,
    /// Until then.
    pub to_unix_nanos: WallTime,
    /// In the resource's unit.
    pub reserved: u64,
}

/// A reservation on the timeline.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReservationLine {
    /// Which.
    pub handle: Handle,
    /// Whose.
    pub owner: UserName,
    /// What its user calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// How it stands.
    pub state: State,
    /// From when on.
    pub from_unix_nanos: WallTime,
    /// Until when; nothing = without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_nanos: Option<WallTime>,
    /// Where.
    pub nodes: Vec<Name>,
}

/// An error (`application/problem+json`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// The HTTP status again.
    pub status: u16,
    /// What kind of problem.
    pub title: String,
    /// In people's words.
    pub detail: String,
    /// Which field was not accepted,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// its value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// and what would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Which reservation it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// Why a request was refused, and what would be admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<Refusal>>,
}

impl Happened {
    /// `event` at its place in the ledger.
    pub fn new(revision: Revision, index: Option<u32>, time: WallTime, event: Event) -> Self {
        let text = words::event(&event);
        Self { revision: revision.get(), index, time_unix_nanos: time, text, event }
    }

    /// Where a watch goes on after it; behind all of its batch if its position there is not told.
    pub fn position(&self) -> Position {
        let behind = Position::behind(Revision::new(self.revision));
        self.index.map_or(behind, |index| Position { index, ..behind })
    }
}

/// A place in the ledger: what `Last-Event-ID` says. In text `12-0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The batch.
    pub revision: Revision,
    /// The event in it.
    pub index: u32,
}

impl Position {
    /// Behind all of the batch at `revision`.
    pub fn behind(revision: Revision) -> Self {
        Self { revision, index: u32::MAX }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.revision, self.index)
    }
}

impl FromStr for Position {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parse = || {
            let (revision, index) = text.split_once('-')?;
            let revision = Revision::new(revision.parse().ok()?);
            Some(Self { revision, index: index.parse().ok()? })
        };
        let expected = "the id of an event, as in 12-0";
        parse().ok_or_else(|| Invalid::new("last-event-id", text, expected))
    }
}

/// The kinds of problem with which a moment later the same may be done.
const BUSY: &str = "busy";
const NOT_YET: &str = "not yet";

impl Problem {
    /// Whether only the moment is wrong: it is being changed, or it is another job's turn.
    pub fn is_for_later(&self) -> bool {
        [BUSY, NOT_YET].contains(&self.title.as_str())
    }

    /// A problem of this kind.
    pub fn new(status: u16, title: &str, detail: impl Into<String>) -> Self {
        let (title, detail) = (title.into(), detail.into());
        let (field, value, expected, handle, refusal) = (None, None, None, None, None);
        Self { status, title, detail, field, value, expected, handle, refusal }
    }

    /// About this reservation.
    #[must_use]
    pub fn about(mut self, handle: Option<Handle>) -> Self {
        self.handle = handle;
        self
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let detail = invalid.to_string();
        let Invalid { field, value, expected } = invalid;
        let (field, expected) = (Some(field), Some(expected));
        Self { field, value, expected, ..Self::new(400, "not accepted", detail) }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let detail = error.to_string();
        let problem = |status, title| Self::new(status, title, detail.clone());
        match error {
            CallError::Invalid(invalid) => invalid.into(),
            CallError::Refused { handle, refusal } => {
                Self { refusal: Some(refusal), ..problem(409, "refused").about(handle) }
            }
            CallError::NotFound { handle } => problem(404, "not found").about(Some(handle)),
            CallError::NotYours { handle, .. } => problem(403, "not yours").about(Some(handle)),
            CallError::OperatorsOnly { .. } => problem(403, "operators only"),
            CallError::Over { handle, .. } => problem(409, "over").about(Some(handle)),
            CallError::Waits { handle } => problem(409, "waits").about(Some(handle)),
            CallError::Busy { handle } => problem(409, BUSY).about(Some(handle)),
            CallError::NotYet { handle, .. } => problem(409, NOT_YET).about(Some(handle)),
            CallError::KeyReused { handle, .. } => problem(422, "key reused").about(Some(handle)),
            _ => problem(500, "not understood"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bad_input_is_told_field_by_field() {
        let problem = Problem::from(Invalid::new("nodes", 0, "1 to 4"));
        let text = serde_json::to_value(&problem).unwrap();
        assert_eq!(text["status"], 400);
        assert_eq!(text["field"], "nodes");
        assert_eq!(text["value"], "0");
        assert_eq!(text["expected"], "1 to 4");
        assert!(text.get("refusal").is_none());
    }

    proptest! {
        #[test]
        fn positions_read_back(revision: u64, index: u32) {
            let position = Position { revision: Revision::new(revision), index };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }

        #[test]
        fn any_position_and_body_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = (text.parse::<Position>(), serde_json::from_str::<Reserve>(&text));
        }
    }
}
