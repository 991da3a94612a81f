//! Owns the nouns of Keeptime and their invariants; decides nothing and does no I/O.
//!
//! * [`units`]: rates, sizes, times and shares as integer types;
//! * [`topology`]: nodes, switches, full-duplex links and the path between any two nodes;
//! * [`application`]: what a program is, its parameters and its communication pattern;
//! * [`profile`]: measured graph-curves with every sample kept;
//! * [`goal`]: what a user asks for;
//! * [`reservation`], [`loss`]: what the broker is asked for and grants, what becomes of it when a node
//!   goes away;
//! * [`drain`]: nodes that are out of service, and why;
//! * [`site`]: web sites that share nodes, and their load balancers;
//! * [`node_load`]: what a node's kernel counts of its work;
//! * [`extension`]: what a program asks for beside, while it runs;
//! * [`assignment`]: what one node is told to enforce for one job;
//! * [`shares`]: a share of the CPU that changes once, and the CPU time that it comes to;
//! * [`disk`], [`connection`]: a block device and its rates, open connections by their ends;
//! * [`capability`]: what a node can enforce, against what an assignment asks for;
//! * [`errors`]: an error with its causes in one line;
//! * [`text`]: how values are written.
//!
//! ```
//! use keeptime_model::units::{BitsPerSecond, Bytes};
//! let link: BitsPerSecond = "200 Mbit/s".parse().unwrap();
//! assert_eq!(Bytes::new(25_000_000).time_at_ceil(link).unwrap().as_secs_f64(), 1.0);
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod application;
pub mod assignment;
pub mod capability;
pub mod connection;
pub mod disk;
pub mod drain;
pub mod errors;
pub mod extension;
pub mod goal;
pub mod invalid;
pub mod loss;
pub mod name;
pub mod node_load;
pub mod pattern;
pub mod profile;
pub mod reservation;
pub mod run_end;
pub mod service;
pub mod shares;
pub mod site;
pub mod text;
pub mod topology;
pub mod units;

pub use invalid::Invalid;
