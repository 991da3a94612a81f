//! Simulated programs to try controllers on: deterministic, the same for the same seed.
//!
//! * [`bsp`]: ranks that compute and communicate in turns under schedules like the kernel's;
//! * [`gain`]: a plant of which all that matters is known exactly: gain, delay, noise, drift, steps;
//! * [`steer`]: a controller on a plant, report by report.

pub mod bsp;
pub mod gain;

use crate::controller::{Controller, Outcome, Proposal};
use crate::report::Report;
use crate::schedule::Schedule;
use keeptime_model::Invalid;
use keeptime_model::units::Nanos;

pub use keeptime_random::Random;

/// A program on nodes that keep schedules.
pub trait Plant {
    /// Puts schedules in force on all nodes, at once.
    fn apply(&mut self, schedules: &[Schedule]);
    /// Runs until the next report.
    fn next_report(&mut self) -> Report;
    /// The time now.
    fn now(&self) -> Nanos;
    /// Runs until then, and tells nothing of it.
    fn pass(&mut self, until: Nanos) {
        while self.now() < until {
            self.next_report();
        }
    }
}

/// Carries `proposal` out and then runs `plant` under `controller` for so many reports; `see` is shown
/// each report with the schedules that are in force after it.
///
/// # Errors
/// If the controller refuses a report.
pub fn steer(
    controller: &mut Controller,
    mut proposal: Option<Proposal>,
    plant: &mut impl Plant,
    reports: usize,
    mut see: impl FnMut(&Report, &Controller),
) -> Result<(), Invalid> {
    for _ in 0..reports {
        while let Some(Proposal { sequence, schedules }) = proposal {
            plant.apply(&schedules);
            let period = schedules.first().map_or(Nanos::default(), |schedule| schedule.period());
            let since = plant.now();
            proposal = controller.resolve(sequence, Outcome::InForce { since });
            // The first period is one of transition: a report that began in it would not count.
            plant.pass(since.saturating_add(period));
        }
        let report = plant.next_report();
        proposal = controller.report(&report)?;
        see(&report, controller);
    }
    Ok(())
}
