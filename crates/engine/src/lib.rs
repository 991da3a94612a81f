//! Owns the broker as a state machine: from state, time and an input to records, orders and answers;
//! never does I/O, reads no clock.
//!
//! * [`engine`]: the machine: [`Engine::step`], [`Engine::restore`];
//! * [`call`]: what users ask and are answered; [`refusal`]: why not, and what would be granted instead;
//! * [`event`]: what is recorded; replaying the records gives the same state;
//! * [`book`]: what the records add up to;
//! * [`admission`]: whether a request fits, where, and otherwise when;
//! * [`cluster`]: the slot table of each link direction, CPU and disk;
//! * [`agents`]: what every agent was told and has accepted;
//! * [`policy`]: times and limits.
//!
//! A reservation is granted in two steps: its resources are held in the slot tables and every agent
//! is told its part; when all have accepted, the grant is recorded, and answered when the record
//! is durable. An agent that refuses, or says nothing in time, gives everything back. What begins
//! later than [`Policy::tell_ahead_nanos`] is granted by the slot tables
//! alone; its agents are told when that time comes. A node that is away counts for it if it has not been away for too
//! long (`absences`).
//!
//! ```
//! use keeptime_engine::{Call, Caller, Cluster, Engine, Input, Moment, Output, Policy, Ticket};
//! use keeptime_model::topology::Topology;
//! use keeptime_model::units::{Nanos, WallTime};
//!
//! let topology = Topology::from_toml(r#"
//!     name = "two"
//!     links = [{ between = ["n1", "n2"], rate = "1 Gbit/s" }]
//!     [[nodes]]
//!     name = "n1"
//!     cpu = "400 %"
//!     address = "10.0.0.1"
//!     [[nodes]]
//!     name = "n2"
//!     cpu = "400 %"
//!     address = "10.0.0.2"
//! "#)?;
//! let wall = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
//! let moment = Moment { wall, steady: Nanos::new(0) };
//! let cluster = Cluster::new(topology, |rate| rate)?;
//! let mut engine = Engine::new(cluster, Policy::default(), moment);
//!
//! // Two CPUs of one node, in an hour, for a minute.
//! let hour = wall.saturating_add(Nanos::from_secs(3_600)).unix_nanos();
//! let request = serde_json::from_str(&format!(r#"{{
//!     "ask": {{ "resources": {{ "nodes": {{ "any": 1 }}, "cpu_ppm": 2000000 }} }},
//!     "from_unix_nanos": {hour}, "duration_nanos": 60000000000 }}"#))?;
//! let call = Call::Reserve { key: "mine".parse()?, request };
//! let caller = Caller { user: "ada".parse()?, operator: false };
//! let step = engine.step(moment, Input::Call { ticket: Ticket(1), caller, call: Box::new(call) });
//! assert_eq!(step.events[0].kind(), "granted");
//! assert!(matches!(step.outputs[0], Output::Answer { ticket: Ticket(1), answer: Ok(_) }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admission;
pub mod agents;
pub mod book;
pub mod call;
pub mod cluster;
pub mod engine;
pub mod event;
pub mod policy;
pub mod refusal;

mod absences;
mod beyond;
mod claims;
mod earliest;
mod index;
mod latest;
mod less;
mod malleable;
mod mask;
mod offers;
mod pieces;
mod queue;
mod room;
mod spare;
mod turns;
mod weight;

pub use call::{Answer, Call, CallError, Caller};
pub use cluster::Cluster;
pub use engine::{Engine, Input, Moment, Output, Step, Ticket};
pub use event::Event;
pub use policy::Policy;
pub use refusal::Refusal;
