//! Owns what a cluster that is not there would do with a log of jobs, or with web sites; never decides what is
//! reserved, nor which node serves which site: that is for the real engine and the real pools.
//!
//! * [`trace`]: jobs as they are submitted: logs in Standard Workload Format, and models of them;
//! * [`shape`]: clusters in a word: `star:64`, `fat-tree:10000`; what is needed of any cluster;
//! * [`network`]: flows that share links by max-min fairness unless their rate is reserved;
//! * [`failures`]: when nodes, links and switches fail and are back;
//! * [`reach`]: which nodes that leaves;
//! * [`machine`]: jobs on nodes, how fast they are, and when they end;
//! * [`policy`]: who starts when and where: Keeptime in five ways, first-come with backfill, nobody;
//! * [`simulate`]: a log on a cluster under a policy, in virtual time;
//! * [`summary`]: what came of it;
//! * [`broker`]: the real engine in virtual time;
//! * [`goals`]: users who ask for goals of measured applications, of that broker or of nobody;
//! * [`users`]: such users as they come at random, and what they have;
//! * [`contention`]: how long programs take that share all there is;
//! * [`sites`]: web sites that share the nodes, as their load changes.
//!
//! Pure: no I/O, no clock, and every chance comes from a seed. The same arguments give the same outcome.
//!
//! ```
//! use keeptime_whatif::{policy::Choice, shape::Shape, simulate::Trial, trace::lublin};
//!
//! let shape: Shape = "star:64".parse()?;
//! let log = lublin::log(64, 50, 0.7, 1);
//! let trial = Trial::of(shape, Choice::Keeptime, "20 %".parse()?);
//! let outcome = trial.run(&log.jobs, &mut |_| {})?;
//! assert_eq!(outcome.summary(&log.jobs, 64).broken, 0);
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod broker;
pub mod contention;
pub mod failures;
pub mod goals;
pub mod machine;
pub mod network;
pub mod policy;
pub mod reach;
pub mod shape;
pub mod simulate;
pub mod sites;
pub mod summary;
pub mod trace;
pub mod users;
