//! From which bandwidth on more of it gains little.

use super::FittedPoint;
use keeptime_model::profile::Point;
use keeptime_model::units::{BitsPerSecond, Nanos};

/// The knee's time is at most this much above the time at the greatest bandwidth (thesis, 3.3:
/// "a percentage value under 5 percent").
pub const KNEE_PERCENT: u64 = 5;

/// The first point within [`KNEE_PERCENT`] of the last one's time.
pub(super) fn knee_index(points: &[FittedPoint]) -> Option<usize> {
    let last = points.last()?.time_nanos;
    points.iter().position(|p| within_knee(p.time_nanos, last))
}

/// See [`super::FittedCurve::useful_most`].
pub(super) fn useful_most(points: &[Point]) -> Option<BitsPerSecond> {
    let measured = || points.iter().filter(|point| !point.samples_nanos.is_empty());
    let least = measured().map(Point::median).min()?;
    let useful = measured().rfind(|point| within_knee(point.median(), least))?;
    let last = measured().next_back()?;
    (useful != last).then_some(useful.bandwidth_bits_per_second)
}

/// Whether `time` is at most [`KNEE_PERCENT`] above `least`.
fn within_knee(time: Nanos, least: Nanos) -> bool {
    u128::from(time.get()) * 100 <= u128::from(least.get()) * u128::from(100 + KNEE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::testing::fitted;

    #[test]
    fn more_than_was_useful_is_what_made_runs_slower() {
        let useful = |points: &[(u64, &[u64])]| {
            fitted(points).useful_most().map(|bandwidth| bandwidth.get() / 1_000)
        };
        assert_eq!(
            useful(&[(10, &[900]), (20, &[500]), (40, &[520]), (80, &[600, 640])]),
            Some(40)
        );
        assert_eq!(useful(&[(10, &[900]), (20, &[500]), (40, &[520])]), None, "within the knee's");
        assert_eq!(useful(&[(10, &[900]), (20, &[500])]), None);
        assert_eq!(useful(&[(10, &[900])]), None);
    }

    #[test]
    fn the_knee_is_the_least_bandwidth_within_five_percent() {
        let curve = fitted(&[(1, &[1060]), (2, &[1050]), (3, &[1040]), (4, &[1000])]);
        assert_eq!(curve.knee().bandwidth_bits_per_second, BitsPerSecond::new(2_000));
        assert_eq!(fitted(&[(1, &[1040]), (2, &[1000])]).knee_index(), 0);
        assert_eq!(fitted(&[(1, &[7])]).knee_index(), 0);
    }
}
