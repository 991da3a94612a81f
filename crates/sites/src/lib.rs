//! Owns the way from loads to moves: asks the balancers of web sites, lets `pools` decide, drains, and
//! has every change recorded before a balancer follows it; never keeps a record of its own.
//!
//! * [`record`]: what the broker's record says, and what is asked of it;
//! * [`steering`]: which node is on which way (pure);
//! * [`meter`]: loads from what balancers counted, and nodes (pure);
//! * [`cpu`]: how busy nodes are by their own counters (pure);
//! * [`fronts`]: the balancers that sites name;
//! * [`controller`]: the loop's body, with its input and output;
//! * [`history`]: what sites had in the last minute (pure);
//! * [`overview`]: what people are told.
//!
//! ```text
//!  nodes ──counters──────────┐
//!  balancers ──counts──> meter ──loads──> steering (pools) ──drain──> balancers of the old site
//!      ^                                      ^    │ nothing in flight
//!      └── who serves, by the record ── record <───┘ the change, durable
//! ```
//!
//! The record alone says which site a node serves. It changes when the old site's balancers have no
//! request in flight on the node, or have had one for as long as the site waits, and the new site's
//! balancers follow it. So a controller that is killed at any moment is replaced by one that reads the
//! record and tells all balancers what follows from it: a node that was being drained serves its site
//! again, and has all the time to drain anew when it is to leave; one that had changed hands joins the
//! new one.
#![forbid(unsafe_code)]

pub mod controller;
pub mod cpu;
pub mod fronts;
pub mod history;
pub mod meter;
pub mod overview;
pub mod record;
pub mod steering;
