//! A plant of which all that matters for control is known exactly.

use super::{Plant, Random};
use crate::report::Report;
use crate::schedule::{Schedule, utilisation};
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::VecDeque;

/// What it does with the share that it is given.
#[derive(Debug, Clone)]
pub struct Gain {
    /// Seconds of an iteration at full speed.
    pub iteration_seconds: f64,
    /// What each node uses at full speed.
    pub cpu: Vec<CpuPpm>,
    /// The rate at the share that is aimed at, as a part of it: 1 as the model says.
    pub efficiency: f64,
    /// How much more of the rate there is for more of the share, relative to the efficiency.
    pub slope: f64,
    /// The share around which the slope holds.
    pub around: f64,
    /// So many iterations pass before a change of the schedule is felt.
    pub delay: usize,
    /// The deviation of single iterations, as a part of the rate.
    pub noise: f64,
    /// How much the efficiency wanders, as a part of it, and over how many iterations.
    pub drift: f64,
    /// Iterations of one wave.
    pub drift_iterations: f64,
    /// Instants are told in multiples of this.
    pub clock_step: Nanos,
}

/// It, running.
#[derive(Debug, Clone)]
pub struct GainPlant {
    gain: Gain,
    now: f64,
    iterations: u64,
    /// The shares of the last changes, oldest first, as far as they have yet to be felt.
    felt: VecDeque<f64>,
    share: f64,
    random: Random,
}

impl GainPlant {
    /// From time zero, at full speed until a schedule is applied.
    pub fn new(gain: Gain, seed: u64) -> Self {
        let (felt, random) = (VecDeque::new(), Random::new(seed));
        Self { gain, now: 0.0, iterations: 0, felt, share: 1.0, random }
    }

    /// The part of full speed that it runs at, without noise.
    pub fn fraction(&self) -> f64 {
        let share = self.felt.front().copied().unwrap_or(self.share);
        let Gain { efficiency, slope, around, .. } = self.gain;
        let wave = std::f64::consts::TAU * self.iterations as f64 / self.gain.drift_iterations;
        let drift = 1.0 + self.gain.drift * wave.sin();
        (efficiency * (around + slope * (share - around)) * drift).max(around / 100.0)
    }

    fn instant(&self) -> Nanos {
        let step = self.gain.clock_step.get().max(1);
        Nanos::new((self.now * 1e9) as u64 / step * step)
    }
}

impl Plant for GainPlant {
    fn apply(&mut self, schedules: &[Schedule]) {
        let least = schedules.iter().zip(&self.gain.cpu);
        let shares = least.map(|(schedule, cpu)| utilisation(schedule.cpu()) / utilisation(*cpu));
        let before = self.share;
        self.share = shares.fold(f64::INFINITY, f64::min);
        self.felt.extend(std::iter::repeat_n(before, self.gain.delay));
    }

    fn next_report(&mut self) -> Report {
        let from = self.instant();
        let noise = 1.0 + self.gain.noise * self.random.normal().clamp(-4.0, 4.0);
        let seconds = self.gain.iteration_seconds / self.fraction() * noise.max(0.1);
        self.now += seconds;
        self.iterations += 1;
        self.felt.pop_front();
        let to = self.instant().max(from.saturating_add(Nanos::new(1)));
        let used = |cpu: &CpuPpm| {
            let nanos = utilisation(*cpu) * self.gain.iteration_seconds * 1e9;
            Nanos::new(nanos as u64)
        };
        let used: Vec<_> = self.gain.cpu.iter().map(used).collect();
        // `to` is after `from`, and the work is a number.
        Report::new(from, to, 1.0, &used).expect("a report")
    }

    fn now(&self) -> Nanos {
        self.instant()
    }
}
