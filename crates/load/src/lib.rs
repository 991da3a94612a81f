//! Owns sending requests to web sites at given times and telling what came of them; never waits for
//! an answer before it sends the next request, never sends one twice.
//!
//! * [`target`]: what is asked for, GET or POST, one path or many by Zipf's law;
//! * [`schedule`]: when: at random (Poisson), in bursts for each site in turn, or by counts of a real
//!   log; pure, and the same for the same seed;
//! * [`http`]: one request and its answer on a connection;
//! * [`run`]: so many connections, and what is to be sent when;
//! * [`report`]: what came of it.
//!
//! The time that counts begins when a request was *meant* to be sent. A generator that waits for a
//! slow server before it sends the next request leaves out the very requests that would have been slow.
//! All is bounded: connections, requests that wait for one, time for an answer, requests of a run.
//! What cannot be sent within these bounds is counted, not forgotten.
//!
//! ```
//! use keeptime_load::schedule::{Arrivals, Schedule};
//! use keeptime_model::units::Nanos;
//!
//! let arrivals = Arrivals::bursts(200.0, 50)?;
//! let schedule = Schedule::new(arrivals, 2, Nanos::from_secs(1), 7);
//! let targets: Vec<_> = schedule.map(|request| request.target).collect();
//! assert!((150..250).contains(&targets.len()));
//! assert!(targets[..50].iter().all(|target| *target == 0));
//! assert!(targets[50..100].iter().all(|target| *target == 1));
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]

pub mod http;
pub mod report;
pub mod run;
pub mod schedule;
pub mod target;
