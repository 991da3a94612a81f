//! Owns a cluster in virtual time, and what must hold in it whatever fails; never decides what is
//! granted: the engine, its records, the ledger's contract and the agents are the real ones.
//!
//! * [`agenda`], [`clock`]: virtual time, clocks that are wrong: the core of any simulation;
//! * [`fault`]: what goes wrong, and how often;
//! * [`network`]: connections that are slow, break and are cut off;
//! * [`node`]: a machine with an agent, a kernel that outlives it and a clock;
//! * [`broker`]: the engine, its ledger and what waits for the disk, as a process that can die;
//! * [`users`]: who asks for what, and asks again;
//! * [`world`]: all of it together;
//! * [`slots`]: an array of slots: what every resource gives at each second;
//! * [`history`]: what is durable, and whether each event of it may have happened;
//! * [`seams`]: where a part can be replaced by a wrong one, to see that it is found;
//! * [`run`]: a seed in, a report out, or the first thing that did not hold and how to repeat it.
//!
//! The same seed gives the same run. Users and the broker's wall clock count in whole seconds, so that
//! the end of one reservation often is the start of another, and an array with one slot for each second
//! is exact.
//!
//! ```
//! use keeptime_sim::run::{Options, run};
//!
//! let report = run(&Options { events: 500, ..Options::of_seed(7) }).expect("everything holds");
//! assert_eq!(report.events, 500);
//! ```
#![forbid(unsafe_code)]

pub mod agenda;
pub mod broker;
pub mod clock;
pub mod fault;
pub mod history;
pub mod network;
pub mod node;
pub mod run;
pub mod seams;
pub mod slots;
pub mod users;
pub mod world;

use std::fmt;

/// Something that must hold does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl Violation {
    /// In words.
    pub fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}
