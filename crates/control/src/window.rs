//! What reports say of the schedule that is in force, summed up: what was expected of it, what was seen before the
//! last change, moved by what that was to do, and what was seen since.

use serde::{Deserialize, Serialize};

/// What one report says: the part of full speed, over so many seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Rate / full speed.
    pub fraction: f64,
    /// How long.
    pub seconds: f64,
}

/// A mean over time that forgets: what is old counts less and less, and what stands apart counts once
/// it came twice.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    count: f64,
    seconds: f64,
    sum: f64,
    /// The last one, if it stood apart.
    apart: Option<Sample>,
    /// What counts as so many samples as soon as it is known how long one takes.
    expected: Option<Expected>,
}

/// A mean that nobody has seen, and how many samples would say as much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    mean: f64,
    count: f64,
}

impl Window {
    /// Before anything was seen: `mean` is expected, and counts as `count` samples.
    pub fn expecting(mean: f64, count: f64) -> Self {
        Self { expected: Some(Expected { mean, count }), ..Self::default() }
    }

    /// The same after a change that is to move what is seen by `by`: as if it had been so before, and counts as `count`
    /// samples at the most.
    #[must_use]
    pub fn moved(self, by: f64, count: f64) -> Self {
        let expected = self.expected.map(|expected| Expected {
            mean: expected.mean + by,
            count: expected.count.min(count),
        });
        let part = if self.count > count { count / self.count } else { 1.0 };
        let sum = (self.sum + by * self.seconds) * part;
        Self { count: self.count * part, seconds: self.seconds * part, sum, apart: None, expected }
    }

    /// Takes a sample in. One that is further than `far` from the mean, or from what is expected, waits for a second on the
    /// same side: then these two are what counts from now on.
    pub fn add(&mut self, sample: Sample, far: f64) {
        let mean = self.mean();
        let side = |sample: &Sample| sample.fraction > mean;
        let can_tell = self.expected.is_some() || self.count >= MANY;
        let is_far = can_tell && (sample.fraction - mean).abs() > far;
        match self.apart.take() {
            None if is_far => {
                self.apart = Some(sample);
                return;
            }
            Some(first) if is_far && side(&first) == side(&sample) => {
                *self = Self::default();
                self.take(first);
            }
            Some(first) => self.take(first),
            None => {}
        }
        self.take(sample);
    }

    /// Whether nothing was seen, nor is anything expected.
    pub fn is_empty(&self) -> bool {
        self.expected.is_none() && self.seconds <= 0.0
    }

    /// So many samples count.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// So long they took.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The mean over time: what is expected if there are none, and zero if nothing is.
    pub fn mean(&self) -> f64 {
        match self.expected {
            Some(expected) => expected.mean,
            None if self.seconds > 0.0 => self.sum / self.seconds,
            None => 0.0,
        }
    }

    fn take(&mut self, sample: Sample) {
        if let Some(Expected { mean, count }) = self.expected.take() {
            let seconds = count * sample.seconds;
            (self.count, self.seconds, self.sum) = (count, seconds, mean * seconds);
        }
        if self.count >= REMEMBERED {
            self.count /= 2.0;
            self.seconds /= 2.0;
            self.sum /= 2.0;
        }
        // A single one that took for ever would be all that counts.
        let longest = match self.count >= MANY {
            true => LONGEST * self.seconds / self.count,
            false => f64::INFINITY,
        };
        let seconds = sample.seconds.min(longest);
        self.count += 1.0;
        self.seconds += seconds;
        self.sum += seconds * sample.fraction;
    }
}

/// One counts for so many times as long as they are on average at the most.
const LONGEST: f64 = 4.0;
/// Then all that was seen counts half.
const REMEMBERED: f64 = 64.0;
/// So many make a mean that one can stand apart from.
const MANY: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(fraction: f64) -> Sample {
        Sample { fraction, seconds: 1.0 }
    }

    fn window(fractions: &[f64]) -> Window {
        let mut window = Window::default();
        fractions.iter().for_each(|fraction| window.add(sample(*fraction), 0.1));
        window
    }

    #[test]
    fn the_mean_is_over_time() {
        let mut window = window(&[0.3]);
        window.add(Sample { fraction: 0.6, seconds: 3.0 }, 1.0);
        assert!((window.mean() - 0.525).abs() < 1e-12);
        assert_eq!(Window::default().mean(), 0.0);
    }

    #[test]
    fn one_that_stands_apart_counts_no_more_than_another() {
        assert_eq!(window(&[0.3, 0.3, 0.3, 0.3, 0.9]).mean(), 0.3);
        assert!((window(&[0.3, 0.3, 0.3, 0.3, 0.9, 0.3]).mean() - 0.4).abs() < 1e-12);
    }

    // A program stood still for ten minutes.
    #[test]
    fn one_that_took_for_ever_counts_as_four_others() {
        let mut window = window(&[0.3; 8]);
        window.add(Sample { fraction: 0.0, seconds: 600.0 }, 0.1);
        assert_eq!(window.mean(), 0.3);
        window.add(sample(0.3), 0.1);
        assert!((window.mean() - 0.3 * 9.0 / 13.0).abs() < 1e-12, "{}", window.mean());
    }

    #[test]
    fn two_that_stand_apart_are_the_new_state() {
        assert_eq!(window(&[0.3, 0.3, 0.3, 0.3, 0.6, 0.6]).mean(), 0.6);
        // On both sides they are noise.
        assert!((window(&[0.3, 0.3, 0.3, 0.3, 0.6, 0.0]).mean() - 0.3).abs() < 1e-9);
    }

    #[test]
    fn what_is_expected_counts_as_so_many_samples() {
        let mut expecting = Window::expecting(0.3, 3.0);
        assert_eq!((expecting.mean(), expecting.count()), (0.3, 0.0));
        expecting.add(sample(0.5), 1.0);
        assert!((expecting.mean() - 0.35).abs() < 1e-12 && expecting.count() == 4.0);
        assert_eq!(Window::expecting(0.3, 3.0).moved(0.1, 1.0), Window::expecting(0.4, 1.0));
    }

    // The first report after a change may have met half of each.
    #[test]
    fn one_that_is_far_from_what_is_expected_waits_for_another() {
        let mut expecting = Window::expecting(0.6, 1.0);
        expecting.add(sample(0.45), 0.1);
        assert_eq!(expecting.mean(), 0.6);
        let mut other = expecting.clone();
        expecting.add(sample(0.6), 0.1);
        assert!((expecting.mean() - 0.55).abs() < 1e-12);
        other.add(sample(0.45), 0.1);
        assert_eq!((other.mean(), other.count()), (0.45, 2.0));
    }

    #[test]
    fn what_was_seen_before_a_change_counts_as_if_it_had_been_so_before() {
        let moved = window(&[0.3, 0.32]).moved(0.1, 1.0);
        assert!((moved.mean() - 0.41).abs() < 1e-12 && moved.count() == 1.0);
        assert_eq!(window(&[0.3]).moved(0.0, 9.0), window(&[0.3]));
        assert_eq!(Window::default().moved(0.1, 9.0), Window::default());
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut slow = window(&[0.30; 100]);
        (0..200).for_each(|_| slow.add(sample(0.35), 0.1));
        assert!(slow.mean() > 0.345 && slow.count() <= REMEMBERED, "{slow:?}");
    }
}
