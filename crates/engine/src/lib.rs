//! Owns the broker as a state machine: from state, time and an input to records, orders and answers;
//! never does I/O, reads no clock.
//!
//! * [`engine`]: the machine: [`Engine::step`], [`Engine::restore`];
//! * [`call`]: what users ask and are answered;
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
//! later than [`Policy::tell_ahead`](policy::Policy::tell_ahead) is granted by the slot tables
//! alone; its agents are told when that time comes.
#![forbid(unsafe_code)]

pub mod admission;
pub mod agents;
pub mod book;
pub mod call;
pub mod cluster;
pub mod engine;
pub mod event;
pub mod policy;

mod earliest;
mod offers;

pub use call::{Answer, Call, CallError, Caller, Refusal};
pub use cluster::Cluster;
pub use engine::{Engine, Input, Moment, Output, Step, Ticket};
pub use event::Event;
pub use policy::Policy;
