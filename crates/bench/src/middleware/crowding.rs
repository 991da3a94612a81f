//! How much launching crowds others: what it computes is nowhere measured by itself, but runs are slower beside it. By how
//! much, against the same beside a run that draws, is what of its time it computes. It is seen in the arm with plain HTB,
//! where processors are shared as without Keeptime: what is held against that arm is measured in another.

use super::Experiment;
use super::arms::{Arm, Measured};
use super::tasks::{Renderer, SubTask};
use super::wandering::measured_seconds;
use anyhow::Result;
use serde::Serialize;

/// What launching takes of processors, of one renderer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Crowding {
    /// Which.
    pub renderer: Renderer,
    /// What of its time a run computes while it is launched, in parts of what one that draws does.
    pub launching: f64,
    /// By so many runs that had company.
    pub runs: usize,
}

/// A run: in parts of its time, the others that drew and those that were launched beside it, and how many times as long
/// it took as alone.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Crowded {
    drawing: f64,
    launching: f64,
    slowed: f64,
}

/// When a run was launched, drew its first frame and had ended, in seconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    launched: f64,
    began: f64,
    ended: f64,
}

/// With fewer others than a node has processors nobody has to wait for one.
const OTHERS_LEAST: f64 = 2.0;

impl Crowding {
    /// By the runs of all experiments with a renderer. Where too little was seen, launching is in nobody's way.
    pub fn of(measured: &Measured, experiments: &[Experiment]) -> Result<Self> {
        let renderer = measured.renderer;
        let mut all = Vec::new();
        for experiment in experiments.iter().filter(|e| e.load.renderer == renderer) {
            all.extend(crowded(measured, experiment)?);
        }
        let launching = in_parts_of_drawing(&all).unwrap_or(0.0).clamp(0.0, 1.0);
        Ok(Self { renderer, launching, runs: all.len() })
    }
}

/// Those of its runs that had to share processors.
fn crowded(measured: &Measured, experiment: &Experiment) -> Result<Vec<Crowded>> {
    let outcomes = &experiment.arm(Arm::Htb).outcomes;
    let mut runs = Vec::new();
    for (request, outcome) in experiment.requests.iter().zip(outcomes) {
        let Some((seconds, wall)) = outcome.seconds.zip(outcome.wall_seconds) else { continue };
        let drew = seconds * f64::from(measured.drawing(request).drawn());
        let times = Times::of(request, drew, wall);
        let alone = measured_seconds(&measured.alone, measured.setting(request))?;
        runs.push((times, seconds / alone / experiment.slowness.unwrap_or(1.0)));
    }
    let all = (0..runs.len()).map(|at| {
        let others = runs.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<_> = others.map(|(_, (times, _))| *times).collect();
        let (times, slowed) = runs[at];
        times.beside(&others, slowed)
    });
    Ok(all.filter(|run| run.drawing + run.launching > OTHERS_LEAST).collect())
}

impl Times {
    /// Of a run that was launched when it was asked for, and drew at its end.
    fn of(request: &SubTask, drew: f64, wall: f64) -> Self {
        let launched = request.at_nanos.as_secs_f64();
        let ended = launched + wall;
        Self { launched, began: (ended - drew).max(launched), ended }
    }

    fn beside(self, others: &[Self], slowed: f64) -> Crowded {
        let both = |from: f64, to: f64| (to.min(self.ended) - from.max(self.began)).max(0.0);
        let part = |seconds: f64| seconds / (self.ended - self.began);
        Crowded {
            drawing: part(others.iter().map(|other| both(other.began, other.ended)).sum()),
            launching: part(others.iter().map(|other| both(other.launched, other.began)).sum()),
            slowed,
        }
    }
}

/// How much slower one more that is launched makes a run, in parts of what one more that draws does: by least squares,
/// with both at once. Nothing where they cannot be told apart.
fn in_parts_of_drawing(all: &[Crowded]) -> Option<f64> {
    let count = all.len() as f64;
    let mean = |of: fn(&Crowded) -> f64| all.iter().map(of).sum::<f64>() / count;
    let means = [mean(|c| c.drawing), mean(|c| c.launching), mean(|c| c.slowed)];
    let from_means =
        |c: &Crowded| [c.drawing - means[0], c.launching - means[1], c.slowed - means[2]];
    let sum = |one: usize, other: usize| {
        let product = |c: &Crowded| from_means(c)[one] * from_means(c)[other];
        all.iter().map(product).sum::<f64>()
    };
    // Both slopes have the same denominator.
    let by_launching = sum(1, 2) * sum(0, 0) - sum(0, 2) * sum(0, 1);
    let by_drawing = sum(0, 2) * sum(1, 1) - sum(1, 2) * sum(0, 1);
    (by_drawing > 0.0).then(|| by_launching / by_drawing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    // Goal: what one that is launched costs is told from what one that draws costs. Method: every other that draws costs 0.6,
    // and every other that is launched 0.15; where always as many of both are there, nothing is told.
    #[test]
    fn launching_is_told_from_drawing() {
        let run = |drawing: f64, launching: f64| Crowded {
            drawing,
            launching,
            slowed: 0.4 + 0.6 * drawing + 0.15 * launching,
        };
        let all = [run(2.0, 0.5), run(3.0, 0.0), run(4.0, 2.0), run(1.5, 1.0)];
        let told = in_parts_of_drawing(&all).unwrap();
        assert!((told - 0.25).abs() < 1e-9, "{told}");
        assert_eq!(in_parts_of_drawing(&[run(2.0, 2.0), run(3.0, 3.0)]), None);
        assert_eq!(in_parts_of_drawing(&[]), None);
    }

    // Goal: company is counted while a run draws. Method: it draws from 2 to 6 s; another draws from 1 to 4 s, a third is
    // launched from 3 to 5 s and draws on.
    #[test]
    fn company_counts_while_a_run_draws() {
        let request =
            SubTask { task: 0, at_nanos: Nanos::from_secs(1), setting: 0, within_percent: 150 };
        let own = Times::of(&request, 4.0, 5.0);
        let others = [(0.0, 1.0, 4.0), (3.0, 5.0, 9.0)];
        let others = others.map(|(launched, began, ended)| Times { launched, began, ended });
        let expected = Crowded { drawing: 0.75, launching: 0.5, slowed: 1.5 };
        assert_eq!(own.beside(&others, 1.5), expected);
    }
}
