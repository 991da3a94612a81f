//! Owns how much of every resource is reserved when; never decides who should have it.
//!
//! * [`span`]: when something is reserved, and when something may start;
//! * [`table`]: one resource: a link direction, a node's CPU, a disk's read or write rate;
//! * [`calendar`]: many resources: all demands of a reservation are held, or none; and which bundles of
//!   them are alike.
//!
//! The slot table is that of GARA, the resource manager of MPICH-GQ (section 4.2): entries are
//! added, changed and deleted, and admission asks whether an amount is free over a span. GARA says
//! nothing of how a table is kept. Here it is a B-tree over the instants at which the reserved
//! amount changes; `docs/decisions/0001-slot-tables.md` compares it with others.
//!
//! Amounts are plain integers in the unit of their resource (bit/s, millionths of a CPU, byte/s);
//! times are [`WallTime`](keeptime_model::units::WallTime) in nanoseconds, and none is too early or
//! too late. Nothing is rounded. The same calls in the same order give the same answers: what searches
//! note down for later ones changes only how long those take. Because of those notes a calendar can be
//! sent to another thread, but not be shared by several.
//!
//! ```
//! use keeptime_calendar::{Calendar, Demand, ReservationId, Span, When};
//! use keeptime_model::units::{Nanos, WallTime};
//!
//! let mut calendar = Calendar::new();
//! let link = calendar.add_resource(1_000);
//! let cpu = calendar.add_resource(4);
//! let nine = WallTime::from_unix_nanos(9_000);
//! let hour = Nanos::new(1_000);
//!
//! let both = [Demand::new(link, 700), Demand::new(cpu, 1)];
//! calendar.reserve(ReservationId(1), Span::lasting(nine, hour), &both)?;
//! let refusal = calendar.reserve(ReservationId(2), Span::lasting(nine, hour), &both).unwrap_err();
//! assert_eq!(refusal.to_string(), "resource 0 lacks 400 from 9000 ns on");
//!
//! let start = calendar.earliest_fit(When::after(nine, hour), &both)?;
//! assert_eq!(start, Some(WallTime::from_unix_nanos(10_000)));
//! # Ok::<(), keeptime_calendar::Refusal>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod calendar;
pub mod span;
pub mod table;

mod alike;
mod note;
mod search;
mod stairs;
mod tree;

pub use calendar::{BundleId, Calendar, Demand, Refusal, ReservationId, ResourceId};
pub use span::{Span, When};
pub use table::{Lack, SlotTable};

// The model that tests compare with serves unit and integration tests alike.
#[cfg(test)]
extern crate self as keeptime_calendar;
#[cfg(test)]
#[path = "../tests/naive/mod.rs"]
mod naive;
