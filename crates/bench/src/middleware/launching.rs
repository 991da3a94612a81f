//! How long runs of the lab took beside their frames: to be launched, to draw the first one, to end. Simulated runs
//! draw theirs from those with the same parameters; all of a renderer start as many processes.

use super::Experiment;
use super::arms::{Arm, Measured, Outcome};
use super::tasks::SubTask;
use anyhow::{Context, Result};
use keeptime_control::plant::Random;
use keeptime_model::units::Nanos;

/// Of one renderer, each run as it was measured.
#[derive(Debug, Clone)]
pub struct Launching {
    /// In seconds, by [`super::tasks::Renderer::settings`].
    by_setting: Vec<Vec<f64>>,
}

impl Launching {
    /// As all runs with Keeptime have it.
    pub fn of(measured: &Measured, experiments: &[Experiment]) -> Self {
        let mut by_setting = vec![Vec::new(); measured.renderer.settings().len()];
        for experiment in experiments.iter().filter(|e| e.load.renderer == measured.renderer) {
            let outcomes = &experiment.arm(Arm::Keeptime).outcomes;
            for (request, outcome) in experiment.requests.iter().zip(outcomes) {
                let frames = measured.drawing(request).drawn();
                by_setting[request.setting].extend(beside(outcome, frames));
            }
        }
        Self { by_setting }
    }

    /// For each of these requests what one run took. Where none with its parameters was measured, one of any. The same
    /// seed gives the same.
    ///
    /// # Errors
    /// If nothing was measured at all.
    pub fn draw(&self, requests: &[SubTask], seed: u64) -> Result<Vec<Nanos>> {
        let mut random = Random::new(seed);
        let all = self.by_setting.concat();
        let one = |request: &SubTask| {
            let own = &self.by_setting[request.setting];
            let measured = if own.is_empty() { &all } else { own };
            let at = (random.part() * measured.len() as f64) as usize;
            let seconds = measured.get(at).context("nothing was admitted")?;
            Nanos::from_secs_f64(*seconds).context("a time below zero")
        };
        requests.iter().map(one).collect()
    }
}

/// What a run took that drew so many frames, without those; nothing if it did not end.
fn beside(outcome: &Outcome, frames: u32) -> Option<f64> {
    let seconds = outcome.wall_seconds? - outcome.seconds? * f64::from(frames);
    Some(seconds.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(settings: &[usize]) -> Vec<SubTask> {
        let of = |setting: &usize| SubTask {
            task: 0,
            at_nanos: Nanos::default(),
            setting: *setting,
            within_percent: 150,
        };
        settings.iter().map(of).collect()
    }

    // Goal: each run has its own launching, a measured one of its own parameters, and a seed repeats. Method: 400 draws
    // of two times that were measured, and of none.
    #[test]
    fn launching_is_drawn_from_what_was_measured_with_the_same_parameters() {
        let launching = Launching { by_setting: vec![vec![1.0, 2.0], vec![], vec![4.0]] };
        let drawn = |settings: &[usize], seed| launching.draw(&requests(settings), seed).unwrap();
        let [one, two, four] = [1, 2, 4].map(Nanos::from_secs);
        let own = drawn(&[0; 400], 7);
        let ones = own.iter().filter(|time| **time == one).count();
        assert!((150..250).contains(&ones), "{ones}");
        assert!(own.iter().all(|time| [one, two].contains(time)));
        assert_eq!(drawn(&[2; 3], 7), [four; 3]);
        let any = drawn(&[1; 400], 7);
        assert!([one, two, four].iter().all(|time| any.contains(time)));
        assert_eq!(own, drawn(&[0; 400], 7));
        assert_ne!(own, drawn(&[0; 400], 8));
        let nothing = Launching { by_setting: vec![vec![]] };
        assert!(nothing.draw(&requests(&[0]), 7).is_err());
    }

    #[test]
    fn what_is_beside_the_frames_is_the_rest_of_the_run() {
        let of = |wall, frame| {
            let outcome =
                Outcome { wall_seconds: wall, seconds: Some(frame), ..Outcome::default() };
            beside(&outcome, 10)
        };
        assert_eq!(of(Some(7.0), 0.5), Some(2.0));
        assert_eq!(of(Some(4.0), 0.5), Some(0.0), "frames are means, and cannot take more");
        assert_eq!(of(None, 0.5), None);
    }
}
