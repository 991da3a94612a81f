//! Owns the rules that turn what an MPI program asks of its communicators into flows, CPU and disk
//! rates of its job's reservation; never talks to anybody.
//!
//! * [`wire`]: what a rank asks its node's agent and is answered;
//! * [`overhead`]: what a payload costs on the wire, how deep a token bucket must be, how fast a
//!   sender may hand out: arithmetic;
//! * [`desk`]: all that the ranks of one job ask for, as one extension of its reservation;
//! * [`transports`]: what cards are told of a class that are driven from the program.
//!
//! This is the MPI QoS agent that MPICH-GQ describes and did not build (its sections 4 and 4.1).
//!
//! ```
//! use keeptime_model::units::{BitsPerSecond, Bytes};
//! use keeptime_mpiqos::overhead;
//!
//! // 400 kbit/s in messages of 5 KB: four segments with 66 bytes of headers each, and MPI's own.
//! let reserved = overhead::wire_rate(BitsPerSecond::new(400_000), Bytes::new(5_000)).unwrap();
//! assert!((1.06..1.08).contains(&(reserved.get() as f64 / 400_000.0)));
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod desk;
pub mod overhead;
pub mod transports;
pub mod wire;
