//! Owns the choice of a (period, slice) on every node such that an application runs at the rate that
//! was asked for; never measures a rate or sets a schedule.
//!
//! * [`controller`]: one for each application: reports in, proposals out;
//! * [`policy`]: how the next schedule is found: the paper's search, or by a model and feedback;
//! * [`full_speed`]: what "100 %" is: found at the start, followed as it wanders;
//! * [`schedule`]: (period, slice), and what a node's scheduler takes;
//! * [`admission`]: whether the scheduler in user space can give what a node was promised: the EDF bound;
//! * [`pace`]: a run that is held at the time that was promised for it, with less CPU than it has;
//! * [`phase`]: periods that begin on all nodes at the same time;
//! * `plant` (feature `plant`): simulated programs to try controllers on.
//!
//! "The paper" is Lin, Sundararaj and Dinda, "Time-sharing parallel applications through
//! performance-targeted feedback-controlled real-time scheduling". It sets the utilisation U of every
//! node to the target rate r. A program that sleeps while it waits uses less than a whole processor
//! even at full speed; for it U = r would be far too much. Here the utilisation of a node is
//! **r times what the node uses at full speed**, which is the paper's U = r for programs that compute
//! or poll all the time.
//!
//! ```
//! use keeptime_control::{Controller, FullSpeed, Outcome, Report, Settings};
//! use keeptime_model::units::{CpuPpm, Nanos};
//!
//! // Ten iterations a second alone on the nodes, of which one computes more than the other.
//! let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(100), CpuPpm::from_percent(50)])?;
//! let settings = Settings::new("30 %".parse()?, "2 %".parse()?, full_speed);
//! let start = Nanos::from_secs(1);
//! let (mut controller, proposal) = Controller::start(settings, start)?;
//! assert_eq!(proposal.schedules[0].cpu(), CpuPpm::new(300_000));
//! assert_eq!(proposal.schedules[1].cpu(), CpuPpm::new(150_000));
//! controller.resolve(proposal.sequence, Outcome::InForce { since: start });
//!
//! // One iteration took 0.4 s instead of 0.33: a little more for both nodes.
//! let second = Nanos::from_secs(2);
//! let used = [Nanos::from_millis(100), Nanos::from_millis(50)];
//! let report = Report::new(second, second.saturating_add(Nanos::from_millis(400)), 1.0, &used)?;
//! let proposal = controller.report(&report)?.unwrap();
//! assert!(proposal.schedules[0].cpu() > CpuPpm::new(300_000));
//! # Ok::<(), keeptime_model::Invalid>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admission;
pub mod controller;
pub mod full_speed;
pub mod noise;
pub mod pace;
pub mod phase;
#[cfg(feature = "plant")]
pub mod plant;
pub mod policy;
pub mod report;
pub mod schedule;
pub mod window;

pub use controller::{Controller, Health, Outcome, Proposal, Settings, View};
pub use full_speed::{Calibration, FullSpeed};
pub use pace::Pace;
pub use policy::Policy;
pub use report::Report;
pub use schedule::{Range, Schedule};
