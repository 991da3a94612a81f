//! A model of a run's time: `computing + sum of volume / min(bandwidth, saturation)`.
//!
//! A parallel program computes, waits for others, and moves data; a phase that moves data gains
//! from bandwidth up to its saturation, where something else limits it (a processor that copies, a
//! window, the slowest partner). Computing and synchronisation, which no bandwidth shortens, are one
//! term here: on one number of nodes nothing tells them apart.
//!
//! Each measured bandwidth but the least is a possible saturation, and non-negative least squares chooses those
//! that there are, mostly one or two. Nothing else has to be decided beforehand. In 1 / bandwidth the
//! time is then convex, never falls, and is linear between measured bandwidths, so that
//! interpolation between them ([`crate::curve`]) is the model itself.

use crate::robust::{self, Row};
use keeptime_model::profile::Point;
use keeptime_model::units::BitsPerSecond;

/// What a program does while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Phases {
    /// Seconds.
    computing: f64,
    /// Megabits, with the saturation in seconds a megabit; of those that there are.
    volumes: Vec<(f64, f64)>,
}

impl Phases {
    /// Those that come nearest to the runs of all `points`, relative to what they take; a run that is
    /// far off has less weight. O(points^4) at the worst.
    pub(crate) fn fit(points: &[Point]) -> Self {
        let inverses: Vec<_> =
            points.iter().map(|point| inverse(point.bandwidth_bits_per_second)).collect();
        // What is saturated at the least bandwidth already is a constant here, as computing is.
        let knots = inverses.get(1..).unwrap_or_default();
        let row = |(point, &at): (&Point, &f64)| {
            let moving = knots.iter().map(|knot| at.max(*knot));
            Row::new(point, std::iter::once(1.0).chain(moving).collect())
        };
        let rows = points.iter().zip(&inverses).map(row).collect();
        let solution = robust::fit(1 + knots.len(), rows);
        let volumes = solution[1..].iter().zip(knots).filter(|(volume, _)| **volume > 0.0);
        let volumes = volumes.map(|(volume, knot)| (*volume, *knot)).collect();
        Self { computing: solution[0], volumes }
    }

    /// How many numbers were chosen to fit.
    pub(crate) fn terms(&self) -> usize {
        usize::from(self.computing > 0.0) + self.volumes.len()
    }

    /// The time at `bandwidth`, inside what was measured and beyond.
    pub(crate) fn seconds_at(&self, bandwidth: BitsPerSecond) -> f64 {
        let inverse = inverse(bandwidth);
        let moving = |(volume, saturation): &(f64, f64)| volume * inverse.max(*saturation);
        self.volumes.iter().map(moving).fold(self.computing, |sum, seconds| sum + seconds)
    }
}

/// Seconds a megabit.
pub(crate) fn inverse(bandwidth: BitsPerSecond) -> f64 {
    1.0 / bandwidth.as_mbit_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;
    use proptest::prelude::*;

    fn point(mbit: u64, seconds: &[f64]) -> Point {
        let nanos = |s: &f64| Nanos::from_secs_f64(*s).unwrap();
        Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(mbit),
            samples_nanos: seconds.iter().map(nanos).collect(),
        }
    }

    #[test]
    fn computing_volume_and_saturation_are_found_again() {
        let truth = |mbit: u64| 0.5 + 6.0 / (mbit as f64).min(20.0);
        let points: Vec<_> = [4, 8, 20, 40, 80].map(|b| point(b, &[truth(b)])).into();
        let phases = Phases::fit(&points);
        assert!((phases.computing - 0.5).abs() < 1e-6, "{phases:?}");
        let [(volume, saturation)] = phases.volumes[..] else { panic!("{phases:?}") };
        assert!((volume - 6.0).abs() < 1e-6 && saturation == 1.0 / 20.0, "{phases:?}");
        for mbit in [5, 10, 30, 100] {
            let off = phases.seconds_at(BitsPerSecond::from_mbit(mbit)) - truth(mbit);
            assert!(off.abs() < 1e-6, "{mbit}: {off}");
        }
    }

    // Goal: one run that hung is not believed. Method: exact runs, with little noise, and one of
    // three times what it should be.
    #[test]
    fn a_run_far_off_hardly_counts() {
        let truth = |mbit: u64| 0.5 + 6.0 / mbit as f64;
        let runs = |b: u64| [truth(b) * 0.99, truth(b), truth(b) * 1.01];
        let mut points: Vec<_> = [4, 8, 20, 40].map(|b| point(b, &runs(b))).into();
        points[2] = point(20, &[truth(20) * 3.0, truth(20)]);
        let phases = Phases::fit(&points);
        for mbit in [4, 8, 20, 40] {
            let off = phases.seconds_at(BitsPerSecond::from_mbit(mbit)) / truth(mbit) - 1.0;
            assert!(off.abs() < 0.02, "{mbit}: {off}");
        }
    }

    proptest! {
        #[test]
        fn whatever_was_measured_the_time_never_rises_with_bandwidth(
            times in prop::collection::btree_map(1u64..1000, prop::collection::vec(1e-6..1e4f64, 1..4), 1..10)
        ) {
            let points: Vec<_> = times.iter().map(|(mbit, seconds)| point(*mbit, seconds)).collect();
            let phases = Phases::fit(&points);
            let at = |mbit: u64| phases.seconds_at(BitsPerSecond::from_mbit(mbit));
            let all: Vec<_> = (1..1000).map(at).collect();
            prop_assert!(all.iter().all(|t| t.is_finite() && *t >= 0.0));
            prop_assert!(all.is_sorted_by(|a, b| a >= b));
        }
    }
}
