//! The rate that somebody wants, and what the nodes of a program have at first for it.

use super::memory::{SILENT_MOST, guessed};
use keeptime_control::{Controller, FullSpeed, Policy, Proposal, Schedule, Settings};
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The part of full speed.
    #[serde(rename = "target_ppm")]
    pub target: Share,
    /// How far from it is near enough, in parts of full speed.
    #[serde(rename = "threshold_ppm")]
    pub threshold: Share,
    /// How schedules are found.
    pub policy: Policy,
}

/// How a program begins.
#[derive(Debug, Clone, PartialEq)]
pub enum Begins {
    /// With all CPU of its file, by which full speed is found.
    Measured,
    /// With its part of what it uses at full speed, as an earlier run has found it.
    Known(FullSpeed),
    /// With its part of the CPU of its file: nothing will ever tell how far it is.
    Unreported,
}

impl Wanted {
    /// # Errors
    /// A target or a threshold of nothing.
    pub fn check(&self) -> Result<(), Invalid> {
        check("rate", self.target)?;
        check("threshold", self.threshold)
    }

    /// What each node has at first, or the one that stands for all, of a program that begins so; nothing = all that it has
    /// at full speed, which is `full`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn first_schedules(
        &self,
        full: CpuPpm,
        begins: &Begins,
    ) -> Result<Option<Vec<Schedule>>, Invalid> {
        self.check()?;
        let full_speed = match begins {
            Begins::Measured => return Ok(None),
            Begins::Known(full_speed) => full_speed.clone(),
            Begins::Unreported => guessed(full, SILENT_MOST)?,
        };
        let settings = self.settings(full, full_speed)?;
        let (_, Proposal { schedules, .. }) = Controller::start(settings, Nanos::default())?;
        Ok(Some(schedules))
    }

    pub(super) fn settings(
        &self,
        full: CpuPpm,
        full_speed: FullSpeed,
    ) -> Result<Settings, Invalid> {
        let Self { target, threshold, policy } = self.clone();
        // The paper's utilisation is a part of all that a node gives, whatever the program makes of it.
        let full_speed = match policy {
            Policy::Paper(_) => FullSpeed::new(full_speed.rate(), &[full])?.polling(true),
            _ => full_speed.given(full),
        };
        Ok(Settings { policy, ..Settings::new(target, threshold, full_speed) })
    }
}

/// More than nothing.
pub(super) fn check(field: &str, share: Share) -> Result<(), Invalid> {
    match share.ppm() {
        0 => Err(Invalid::new(field, share, "more than 0 %")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::steering::Memory;
    use crate::rate::steering::simulated::{FULL, wanted};

    #[test]
    fn the_papers_utilisation_is_a_part_of_all_that_a_node_gives() {
        let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(20)]).unwrap();
        let paper = Wanted { policy: Policy::paper(), ..wanted(50, 3) };
        let known = Begins::Known(full_speed);
        let cpu = |wanted: &Wanted| {
            let schedules = wanted.first_schedules(CpuPpm::from_percent(40), &known).unwrap();
            schedules.unwrap()[0].cpu()
        };
        assert_eq!(cpu(&paper), CpuPpm::from_percent(20));
        assert_eq!(cpu(&wanted(50, 3)), CpuPpm::from_percent(10));
    }

    // Goal: of a program on nodes that had a part of their processors at full speed, less is known to be waiting for others.
    #[test]
    fn what_nodes_had_at_full_speed_is_told() {
        let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(20)]).unwrap();
        let settings = wanted(50, 3).settings(CpuPpm::from_percent(40), full_speed).unwrap();
        assert!((settings.full_speed.waiting_seconds() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_no_rate() {
        for (wanted, field) in [(wanted(0, 2), "rate"), (wanted(30, 0), "threshold")] {
            assert_eq!(Memory::new(wanted, FULL, 2).unwrap_err().field, field);
        }
    }
}
