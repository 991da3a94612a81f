//! How far single reports lie apart though nothing changed: what a controller must not chase.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The spread of single reports, from how neighbours differ: slow drift hardly counts, and of the
/// differences the upper quartile, so that one hiccup does not count either. (The median would be nothing of a program
/// whose iterations take one of two times, and the same one mostly.)
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// What is taken for the deviation before anything was seen.
    prior: f64,
    last: Option<f64>,
    differences: VecDeque<f64>,
}

impl Noise {
    /// A deviation of `prior` until reports tell.
    pub fn new(prior: f64) -> Self {
        Self { prior, last: None, differences: VecDeque::new() }
    }

    /// Takes one value in.
    pub fn observe(&mut self, value: f64) {
        if let Some(last) = self.last.replace(value) {
            if self.differences.len() == REMEMBERED {
                self.differences.pop_front();
            }
            self.differences.push_back((value - last).abs());
        }
    }

    /// What comes next is not to be compared with what came before: something was changed.
    pub fn interrupt(&mut self) {
        self.last = None;
    }

    /// Values are `times` as large from now on, and differ by as much more.
    pub fn scale(&mut self, times: f64) {
        self.interrupt();
        self.differences.iter_mut().for_each(|difference| *difference *= times);
    }

    /// The standard deviation of single values.
    pub fn deviation(&self) -> f64 {
        let mut sorted: Vec<f64> = self.differences.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let seen = sorted.get(sorted.len() * 3 / 4).map_or(0.0, |upper| upper / UPPER_QUARTILE);
        let weight = sorted.len() as f64;
        let squares = PRIOR_WEIGHT * self.prior * self.prior + weight * seen * seen;
        (squares / (PRIOR_WEIGHT + weight)).sqrt()
    }
}

/// Enough for a median within a few per cent, few enough to follow a program whose phases differ.
const REMEMBERED: usize = 32;
/// The prior counts as so many differences.
const PRIOR_WEIGHT: f64 = 2.0;
/// That of |x - y| for two values of a normal distribution with deviation 1: sqrt(2) * 1.1503.
const UPPER_QUARTILE: f64 = 1.6268;

#[cfg(test)]
mod tests {
    use super::*;

    /// Deviation 1, nearly: the quantiles of a normal distribution in a mixed order.
    const VALUES: [f64; 10] = [-0.39, 1.64, -1.04, 0.13, -0.67, 0.67, -1.64, 0.39, 1.04, -0.13];

    fn observed(values: impl IntoIterator<Item = f64>) -> Noise {
        let mut noise = Noise::new(0.02);
        values.into_iter().for_each(|value| noise.observe(value));
        noise
    }

    #[test]
    fn the_prior_holds_until_reports_tell() {
        assert_eq!(observed([]).deviation(), 0.02);
        assert_eq!(observed([0.5]).deviation(), 0.02);
        assert!(observed([0.5; 64]).deviation() < 0.006);
    }

    #[test]
    fn the_deviation_is_found_beside_drift_and_hiccups() {
        let noisy = |at: usize| 0.3 + 0.001 * at as f64 + 0.05 * VALUES[at % VALUES.len()];
        let steady = observed((0..60).map(noisy)).deviation();
        assert!((0.035..0.075).contains(&steady), "{steady}");
        let hiccups = (0..60).map(|at| if at % 20 == 0 { 0.0 } else { noisy(at) });
        let beside = observed(hiccups).deviation();
        assert!((beside / steady - 1.0).abs() < 0.35, "{beside} {steady}");
    }

    #[test]
    fn noise_grows_with_what_it_is_of() {
        let values = |times: f64| VALUES.map(|value| times * (0.3 + 0.05 * value));
        let mut scaled = observed(values(1.0).repeat(4));
        scaled.scale(2.0);
        let twice = observed(values(2.0).repeat(4));
        assert!((scaled.deviation() / twice.deviation() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_change_is_no_noise() {
        let mut noise = observed([0.3; 20]);
        noise.interrupt();
        noise.observe(0.6);
        assert!(noise.deviation() < 0.01);
    }
}
