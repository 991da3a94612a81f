//! Which bandwidths of a curve keep a bound of its time.

use super::FittedCurve;
use super::segment::{Segment, step_down};
use crate::promise::MedianBounds;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use serde::{Deserialize, Serialize};

/// Bandwidths of one curve that satisfy a goal, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRange {
    /// The least that satisfies the time bounds.
    pub least_bits_per_second: BitsPerSecond,
    /// The knee, or less where the knee is too fast for the goal.
    pub greatest_bits_per_second: BitsPerSecond,
}

/// Whether bandwidths between measured points count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// Only measured points (the thesis).
    Measured,
    /// Interpolated ones too, never beyond the measured range.
    #[default]
    Interpolated,
}

impl FittedCurve {
    /// The least bandwidth whose [`Self::time_at`] is at most `most`, rounded up to a whole
    /// [`BANDWIDTH_STEP`](super::BANDWIDTH_STEP) unless that passes the next measured point.
    /// `None` if no measured time is that short. O(log points).
    pub fn least_bandwidth(&self, most: Nanos) -> Option<BitsPerSecond> {
        let at = self.points.partition_point(|p| p.time_nanos > most);
        let right = self.points.get(at)?;
        match at.checked_sub(1) {
            None => Some(right.bandwidth_bits_per_second),
            Some(left) => Some(Segment::between(&self.points[left], right).least_bandwidth(most)),
        }
    }

    /// The greatest bandwidth whose [`Self::time_at`] is at least `least`, rounded down to a whole
    /// [`BANDWIDTH_STEP`](super::BANDWIDTH_STEP) unless that passes the measured point before.
    /// `None` if no measured time is that long. O(log points).
    pub fn greatest_bandwidth(&self, least: Nanos) -> Option<BitsPerSecond> {
        let after = self.points.partition_point(|p| p.time_nanos >= least);
        let left = self.points.get(after.checked_sub(1)?)?;
        match self.points.get(after) {
            None => Some(left.bandwidth_bits_per_second),
            Some(right) => Some(Segment::between(left, right).greatest_bandwidth(least)),
        }
    }

    /// The bandwidths up to the knee whose median time is within `bounds`. O(log points).
    pub fn range(&self, bounds: MedianBounds, between: Between) -> Option<BandwidthRange> {
        let (least, greatest) = match between {
            Between::Measured => {
                let first = self.points.partition_point(|p| p.time_nanos > bounds.most);
                let after = self.points.partition_point(|p| p.time_nanos >= bounds.least);
                let last = after.checked_sub(1)?.min(self.knee);
                let least = self.points.get(first)?.bandwidth_bits_per_second;
                (least, self.points[last].bandwidth_bits_per_second)
            }
            Between::Interpolated => {
                let knee = self.knee().bandwidth_bits_per_second;
                let greatest = self.greatest_bandwidth(bounds.least)?.min(knee);
                (self.least_bandwidth(bounds.most)?, greatest)
            }
        };
        (least <= greatest).then_some(BandwidthRange {
            least_bits_per_second: least,
            greatest_bits_per_second: greatest,
        })
    }

    /// The greatest bandwidth of `range` that is at most `held`: the first point of the walk from
    /// the knee down that can be held. An interpolated one is a whole
    /// [`BANDWIDTH_STEP`](super::BANDWIDTH_STEP).
    pub fn greatest_held(
        &self,
        range: BandwidthRange,
        held: BitsPerSecond,
        between: Between,
    ) -> Option<BitsPerSecond> {
        if held >= range.greatest_bits_per_second {
            return Some(range.greatest_bits_per_second);
        }
        let after = self.points.partition_point(|p| p.bandwidth_bits_per_second <= held);
        let measured = after.checked_sub(1).map(|at| self.points[at].bandwidth_bits_per_second);
        let chosen = match between {
            Between::Measured => measured?,
            Between::Interpolated => step_down(held).max(measured?),
        };
        (chosen >= range.least_bits_per_second).then_some(chosen)
    }

    /// Whether any point, beyond the knee too, has a median time within `bounds`. O(log points).
    pub fn has_time_within(&self, bounds: MedianBounds, between: Between) -> bool {
        let slower = self.points.partition_point(|p| p.time_nanos > bounds.most);
        let admitted = self.points.get(slower).is_some_and(|p| bounds.admit(p.time_nanos));
        // Between a slower point and a faster one, some bandwidth has any time in between.
        let crossed = slower > 0 && slower < self.points.len();
        admitted || (between == Between::Interpolated && crossed)
    }

    /// The least bandwidth up to the knee, and no less than is `held`, with which `quantile` of the runs take
    /// at most `within`; and the time that is promised for it.
    ///
    /// # Errors
    /// The least time that can be promised so.
    pub fn least_for(
        &self,
        within: Nanos,
        quantile: Share,
        held: BitsPerSecond,
    ) -> Result<(BitsPerSecond, Nanos), Nanos> {
        let promise = self.promise(quantile);
        let range = self.range(promise.median_bounds(None, Some(within)), Between::Interpolated);
        let knee = self.knee();
        let least = range.ok_or(promise.time(knee.time_nanos))?.least_bits_per_second;
        // More than was measured is promised no earlier.
        let measured = least.max(held.min(knee.bandwidth_bits_per_second));
        let time = self.time_at(measured).unwrap_or(knee.time_nanos);
        Ok((least.max(held), promise.time(time)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::BANDWIDTH_STEP;
    use crate::curve::testing::any_curve;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_inverse_is_the_least_and_the_greatest_bandwidth_for_a_bound(
            curve in any_curve(), nanos in 1u64..1 << 40
        ) {
            let curve = FittedCurve::new(&curve).unwrap();
            let bound = Nanos::new(nanos);
            let first = curve.points()[0].bandwidth_bits_per_second.get();
            let last = curve.points().last().unwrap().bandwidth_bits_per_second.get();
            let at = |bits| curve.time_at(BitsPerSecond::new(bits)).unwrap();
            match curve.least_bandwidth(bound).map(BitsPerSecond::get) {
                None => prop_assert!(at(last) > bound),
                Some(least) => {
                    prop_assert!(at(least) <= bound);
                    let before = (least - 1) / BANDWIDTH_STEP * BANDWIDTH_STEP;
                    prop_assert!(before < first || at(before) > bound);
                }
            }
            match curve.greatest_bandwidth(bound).map(BitsPerSecond::get) {
                None => prop_assert!(at(first) < bound),
                Some(greatest) => {
                    prop_assert!(at(greatest) >= bound);
                    let after = (greatest / BANDWIDTH_STEP + 1) * BANDWIDTH_STEP;
                    prop_assert!(after > last || at(after) < bound);
                }
            }
        }

        // Against every bandwidth one step below, and every measured point up to the knee.
        #[test]
        fn what_promises_a_time_promises_it_and_less_does_not(
            curve in any_curve(), nanos in 1u64..1 << 41, held in 0u64..100_000_000, percent in 50u32..100
        ) {
            let curve = FittedCurve::new(&curve).unwrap();
            let (within, quantile) = (Nanos::new(nanos), Share::from_percent(percent).unwrap());
            let promise = curve.promise(quantile);
            let promised = |bandwidth| Some(promise.time(curve.time_at(bandwidth)?));
            match curve.least_for(within, quantile, BitsPerSecond::new(held)) {
                Ok((bandwidth, time)) => {
                    prop_assert!(time <= within && bandwidth.get() >= held);
                    let before = BitsPerSecond::new(bandwidth.get().saturating_sub(BANDWIDTH_STEP));
                    let less = promised(before).filter(|_| before.get() >= held);
                    prop_assert!(less.is_none_or(|time| time > within));
                }
                Err(least) => {
                    prop_assert!(least > within);
                    prop_assert_eq!(promised(curve.knee().bandwidth_bits_per_second), Some(least));
                }
            }
        }

        #[test]
        fn a_range_holds_exactly_the_points_up_to_the_knee_that_satisfy_the_bounds(
            curve in any_curve(), a in 0u64..1 << 40, b in 0u64..1 << 40
        ) {
            let curve = FittedCurve::new(&curve).unwrap();
            let bounds = MedianBounds { least: Nanos::new(a.min(b)), most: Nanos::new(a.max(b)) };
            let knee = curve.knee_index();
            for between in [Between::Measured, Between::Interpolated] {
                let range = curve.range(bounds, between);
                for (index, point) in curve.points().iter().enumerate() {
                    let bandwidth = point.bandwidth_bits_per_second;
                    let inside = range.is_some_and(|r| r.least_bits_per_second <= bandwidth
                        && bandwidth <= r.greatest_bits_per_second);
                    prop_assert_eq!(inside, index <= knee && bounds.admit(point.time_nanos));
                }
                if let Some(range) = range {
                    for end in [range.least_bits_per_second, range.greatest_bits_per_second] {
                        prop_assert!(bounds.admit(curve.time_at(end).unwrap()));
                    }
                }
            }
        }
    }
}
