//! The reports since the last change of a schedule, summed up.

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
}

impl Window {
    /// Takes a sample in. One that is further than `far` from the mean waits for a second on the same
    /// side: then these two are what counts from now on.
    pub fn add(&mut self, sample: Sample, far: f64) {
        let mean = self.mean();
        let side = |sample: &Sample| sample.fraction > mean;
        let is_far = self.count >= MANY && (sample.fraction - mean).abs() > far;
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

    /// So many samples count.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// So long they took.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The mean over time; zero if there are none.
    pub fn mean(&self) -> f64 {
        if self.seconds > 0.0 { self.sum / self.seconds } else { 0.0 }
    }

    fn take(&mut self, sample: Sample) {
        if self.count >= REMEMBERED {
            self.count /= 2.0;
            self.seconds /= 2.0;
            self.sum /= 2.0;
        }
        self.count += 1.0;
        self.seconds += sample.seconds;
        self.sum += sample.seconds * sample.fraction;
    }
}

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

    #[test]
    fn two_that_stand_apart_are_the_new_state() {
        assert_eq!(window(&[0.3, 0.3, 0.3, 0.3, 0.6, 0.6]).mean(), 0.6);
        // On both sides they are noise.
        assert!((window(&[0.3, 0.3, 0.3, 0.3, 0.6, 0.0]).mean() - 0.3).abs() < 1e-9);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut slow = window(&[0.30; 100]);
        (0..200).for_each(|_| slow.add(sample(0.35), 0.1));
        assert!(slow.mean() > 0.345 && slow.count() <= REMEMBERED, "{slow:?}");
    }
}
