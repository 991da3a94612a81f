//! The paper's control algorithm (section 4.2), as it stands there.
//!
//! The utilisation is the target, always. At first the period is long; whenever the error is beyond
//! the threshold it becomes shorter by a step, and at the least it starts again from the longest: a
//! linear search for the longest period that satisfies. Within the threshold nothing is done.

use super::{Aim, Setting};
use crate::window::Sample;
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};

/// The search: its constants, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperSearch {
    start_nanos: Nanos,
    step_nanos: Nanos,
    least_nanos: Nanos,
    period_nanos: Nanos,
    /// The last report's part of full speed, in millionths.
    last_ppm: Option<i64>,
}

impl Default for PaperSearch {
    /// "Such as 200 ms"; the step of the paper's evaluation; its least period is not stated, here
    /// it is what its scheduler can do without special kernel features.
    fn default() -> Self {
        Self::new(Nanos::from_millis(200), Nanos::from_millis(2), Nanos::from_millis(10))
    }
}

impl PaperSearch {
    /// From `start` downwards in steps of `step` to `least`.
    pub fn new(start: Nanos, step: Nanos, least: Nanos) -> Self {
        Self {
            start_nanos: start,
            step_nanos: step,
            least_nanos: least,
            period_nanos: start,
            last_ppm: None,
        }
    }

    pub(super) fn start(&mut self, aim: &Aim) -> Setting {
        self.period_nanos = self.start_nanos;
        self.setting(aim)
    }

    pub(super) fn observe(&mut self, aim: &Aim, sample: Sample) -> Option<Setting> {
        self.last_ppm = Some((sample.fraction * 1e6) as i64);
        self.search(aim, sample.fraction).then(|| self.setting(aim))
    }

    /// "Recomputes the error"; and "always maintains the target utilisation", whatever it is.
    pub(super) fn retarget(&mut self, aim: &Aim) -> Option<Setting> {
        if let Some(ppm) = self.last_ppm {
            self.search(aim, ppm as f64 / 1e6);
        }
        Some(self.setting(aim))
    }

    pub(super) fn refused(&mut self, in_force: Setting) {
        self.period_nanos = in_force.period;
    }

    fn search(&mut self, aim: &Aim, fraction: f64) -> bool {
        let beyond = (fraction - aim.target).abs() > aim.threshold;
        if beyond {
            self.period_nanos = self.period_nanos.saturating_sub(self.step_nanos);
            if self.period_nanos <= self.least_nanos {
                self.period_nanos = self.start_nanos;
            }
        }
        beyond
    }

    fn setting(&self, aim: &Aim) -> Setting {
        Setting { period: self.period_nanos, share: aim.target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Range;

    fn aim(target: f64) -> Aim {
        Aim {
            target,
            threshold: 0.03,
            range: Range::default(),
            iteration_seconds: 1.0,
            waiting_seconds: 0.0,
            utilisation_most: 1.0,
            utilisation_least: 1.0,
            sleeps: false,
            is_followed: false,
            share_now: None,
            share_most: 1.0,
        }
    }

    fn sample(fraction: f64) -> Sample {
        Sample { fraction, seconds: 1.0 }
    }

    fn millis(setting: Option<Setting>) -> Option<u64> {
        setting.map(|setting| setting.period.get() / 1_000_000)
    }

    #[test]
    fn the_period_goes_down_in_steps_while_the_error_is_beyond_the_threshold() {
        let mut search = PaperSearch::default();
        assert_eq!(millis(Some(search.start(&aim(0.5)))), Some(200));
        assert_eq!(millis(search.observe(&aim(0.5), sample(0.54))), Some(198));
        assert_eq!(millis(search.observe(&aim(0.5), sample(0.46))), Some(196));
        assert_eq!(search.observe(&aim(0.5), sample(0.529)), None);
    }

    #[test]
    fn at_the_least_it_starts_again() {
        let mut search = PaperSearch::default();
        search.start(&aim(0.5));
        let mut visited = vec![];
        for _ in 0..95 {
            visited.extend(millis(search.observe(&aim(0.5), sample(0.0))));
        }
        assert_eq!(visited[93], 12);
        assert_eq!(visited[94], 200);
    }

    #[test]
    fn what_was_refused_is_tried_again_and_a_new_start_is_one() {
        let mut search = PaperSearch::default();
        let in_force = search.start(&aim(0.5));
        for _ in 0..2 {
            assert_eq!(millis(search.observe(&aim(0.5), sample(0.9))), Some(198));
            search.refused(in_force);
        }
        search.observe(&aim(0.5), sample(0.9));
        assert_eq!(search.start(&aim(0.5)), in_force);
    }

    #[test]
    fn the_utilisation_is_the_target_always() {
        let mut search = PaperSearch::default();
        assert_eq!(search.start(&aim(0.5)).share, 0.5);
        assert_eq!(search.observe(&aim(0.5), sample(0.9)).unwrap().share, 0.5);
        // Within the threshold of what runs the period stays.
        search.observe(&aim(0.5), sample(0.5));
        let near = search.retarget(&aim(0.51)).unwrap();
        assert_eq!((near.period, near.share), (Nanos::from_millis(198), 0.51));
        let far = search.retarget(&aim(0.3)).unwrap();
        assert_eq!((far.period, far.share), (Nanos::from_millis(196), 0.3));
    }
}
