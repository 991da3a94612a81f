//! One graph-curve as the planner sees it: monotone, with a knee, between its points too.
//!
//! From the fitted times on, all of it is integer arithmetic that rounds toward safety (times up,
//! bandwidths so that the bound holds), so that no float and no NaN can reach a reservation.

mod knee;
mod line;
pub(crate) mod monotone;
mod range;
mod segment;
#[cfg(test)]
mod testing;

pub use knee::KNEE_PERCENT;
pub use line::Line;
pub use range::{BandwidthRange, Between};
pub use segment::BANDWIDTH_STEP;

pub(crate) use segment::time_between;

use crate::drift::Drift;
use crate::prediction::{Method, Prediction};
use crate::promise::{Deviations, Interval, Promise};
use keeptime_model::application::Parameters;
use keeptime_model::profile::Curve;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use knee::{knee_index, useful_most};
use segment::Segment;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A measured point after the fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedPoint {
    /// Per flow and direction.
    pub bandwidth_bits_per_second: BitsPerSecond,
    /// The execution time that planning goes by: never greater than that of a smaller bandwidth.
    pub time_nanos: Nanos,
    /// The median of the samples as measured.
    pub median_nanos: Nanos,
    /// How many runs stand behind it.
    pub samples: u32,
}

/// A curve `G_i` with its knee `K` (thesis, 3.5.1). Its points are in ascending order of bandwidth
/// and in non-increasing order of time, which is the model's, or where the runs reject that
/// ([`crate::prediction`]) their median; where noise makes the median rise with bandwidth, isotonic
/// regression (pool adjacent violators, weighted by the number of samples) replaces the offending
/// medians by their mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedCurve {
    parameters: Arc<Parameters>,
    nodes: u32,
    points: Arc<[FittedPoint]>,
    knee: usize,
    method: Method,
    deviations: Deviations,
    lent: Deviations,
    /// What an infinite bandwidth would leave of the time, as measured.
    computing: Nanos,
    /// See [`Self::useful_most`].
    useful_most: Option<BitsPerSecond>,
    drift: Drift,
}

impl FittedCurve {
    /// Fits `curve`, by the model where its runs allow ([`crate::prediction`]). `None` for a curve
    /// without points.
    pub fn new(curve: &Curve) -> Option<Self> {
        Self::from(curve, Prediction::new(&curve.points))
    }

    /// Fits `curve` by `method`, whatever its runs say of that.
    pub fn by(method: Method, curve: &Curve) -> Option<Self> {
        Self::from(curve, Prediction::by(method, &curve.points))
    }

    fn from(curve: &Curve, prediction: Prediction) -> Option<Self> {
        let knee = knee_index(prediction.points())?;
        let deviations = prediction.deviations();
        Some(Self {
            parameters: Arc::new(curve.parameters.clone()),
            nodes: curve.nodes,
            points: prediction.points().into(),
            method: prediction.method(),
            knee,
            lent: deviations.clone(),
            deviations,
            computing: computing(prediction.points()),
            useful_most: useful_most(&curve.points),
            drift: Drift::NONE,
        })
    }

    /// With the deviations of a whole profile, for promises that its own are too few for.
    pub fn with_lent(self, lent: Deviations) -> Self {
        Self { lent, ..self }
    }

    /// The curve as it is now that computing has changed by `drift`. What became slower is promised
    /// later; what became faster is not promised earlier (the last runs may have had less company
    /// than the next one), only expected so: [`Self::expected_at`].
    pub fn with_drift(mut self, drift: Drift) -> Self {
        let (before, after) = (self.lateness(), drift.lateness(self.computing));
        let moved = |point: &FittedPoint| {
            let time_nanos = point.time_nanos.saturating_sub(before).saturating_add(after);
            FittedPoint { time_nanos, ..*point }
        };
        self.points = self.points.iter().map(moved).collect();
        self.knee = knee_index(&self.points).unwrap_or(self.knee);
        self.drift = drift;
        self
    }

    /// By how much the times of this curve are later than measured.
    fn lateness(&self) -> Nanos {
        self.drift.lateness(self.computing)
    }

    /// The application's parameters.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// `N`, the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The points, ascending by bandwidth; at least one.
    pub fn points(&self) -> &Arc<[FittedPoint]> {
        &self.points
    }

    /// The position of the knee among [`Self::points`].
    pub fn knee_index(&self) -> usize {
        self.knee
    }

    /// `K`: the least measured bandwidth whose fitted time is within [`KNEE_PERCENT`] of the time
    /// at the greatest measured bandwidth.
    pub fn knee(&self) -> FittedPoint {
        self.points[self.knee]
    }

    /// The greatest measured bandwidth that did not slow runs down: with more, medians of the runs are more than
    /// [`KNEE_PERCENT`] above the least of all. `None` if that was not seen. The fitted times do not tell it,
    /// since they never rise. What comes at once has to be taken at once, which processors may have no time for.
    pub fn useful_most(&self) -> Option<BitsPerSecond> {
        self.useful_most
    }

    /// How much of a run is computing: the time that no bandwidth shortens, by the [`Line`] through the
    /// first and the last point.
    pub fn computing(&self) -> Nanos {
        self.computing
    }

    /// How the curve goes on beyond the greatest measured bandwidth, by its last two points. Not by all: what
    /// saturates has volume over bandwidth at low rates and none any more at high ones, where ranks cannot send
    /// faster than they do. For simulations alone: nothing is promised beyond what was measured.
    pub fn beyond(&self) -> Line {
        let last = self.points.len() - 1;
        Line::through(&self.points[last.saturating_sub(1)], &self.points[last])
    }

    /// The median time at `bandwidth` as measured, whatever the drift since.
    pub fn measured_at(&self, bandwidth: BitsPerSecond) -> Option<Nanos> {
        Some(self.time_at(bandwidth)?.saturating_sub(self.lateness()))
    }

    /// The time that half of the runs at `bandwidth` take now: as measured, and the drift since.
    pub fn expected_at(&self, bandwidth: BitsPerSecond) -> Option<Nanos> {
        let earliness = self.drift.earliness(self.computing);
        Some(self.time_at(bandwidth)?.saturating_sub(earliness))
    }

    /// The median time at `bandwidth` that promises are made from, rounded up to whole nanoseconds;
    /// `None` outside the measured range. O(log points).
    ///
    /// Between two measured points it is linear in 1 / bandwidth: an execution time is computation
    /// plus volume / bandwidth, for which this is exact, and it is monotone for any two points.
    pub fn time_at(&self, bandwidth: BitsPerSecond) -> Option<Nanos> {
        let at = self.points.partition_point(|p| p.bandwidth_bits_per_second < bandwidth);
        let right = self.points.get(at)?;
        if right.bandwidth_bits_per_second == bandwidth {
            return Some(right.time_nanos);
        }
        let left = self.points.get(at.checked_sub(1)?)?;
        Some(Segment::between(left, right).time_ceil(bandwidth))
    }

    /// How many runs stand behind the time at `bandwidth`: all of the curve for the model, otherwise
    /// those of the point, or of the weaker of its two neighbours. 0 outside the measured range.
    pub fn samples_behind(&self, bandwidth: BitsPerSecond) -> u32 {
        let at = self.points.partition_point(|p| p.bandwidth_bits_per_second < bandwidth);
        let near = match (at.checked_sub(1).map(|left| &self.points[left]), self.points.get(at)) {
            (_, Some(point)) if point.bandwidth_bits_per_second == bandwidth => point.samples,
            (Some(left), Some(right)) => left.samples.min(right.samples),
            _ => return 0,
        };
        let all = || self.points.iter().fold(0u32, |sum, point| sum.saturating_add(point.samples));
        if self.method == Method::Model { all() } else { near }
    }

    /// What makes a time of this curve hold for `quantile` of the runs: by its own deviations if they
    /// are enough for that, otherwise by those of the profile. What more would give is less than what
    /// curves differ: short runs scatter several times as much as long ones.
    pub fn promise(&self, quantile: Share) -> Promise {
        self.deviations_for(quantile).promise(quantile)
    }

    /// Between what `share` of the runs lie, with as many beyond on either side.
    pub fn interval(&self, share: Share) -> Interval {
        self.deviations_for(Interval::greater_end(share)).interval(share)
    }

    fn deviations_for(&self, quantile: Share) -> &Deviations {
        if self.deviations.are_enough_for(quantile) { &self.deviations } else { &self.lent }
    }

    /// How far runs were from what this curve says of them without them.
    pub fn deviations(&self) -> &Deviations {
        &self.deviations
    }

    /// How the times follow from the runs.
    pub fn method(&self) -> Method {
        self.method
    }
}

/// By the line through the first and the last point.
fn computing(points: &[FittedPoint]) -> Nanos {
    let ends = points.first().zip(points.last());
    ends.map_or(Nanos::new(0), |(first, last)| Line::through(first, last).computing)
}

#[cfg(test)]
mod tests {
    use super::testing::{any_curve, curve, fitted};
    use super::*;
    use keeptime_model::profile::Point;
    use proptest::prelude::*;

    #[test]
    fn a_curve_without_points_has_no_fit() {
        assert_eq!(FittedCurve::new(&curve(&[])), None);
    }

    #[test]
    fn interpolation_is_exact_for_compute_plus_volume_over_bandwidth() {
        // 0.5 s + 1 Mbit / B
        let curve = fitted(&[(1_000, &[1_500]), (4_000, &[750])]);
        let at = |kbit: u64| curve.time_at(BitsPerSecond::new(kbit * 1_000));
        assert_eq!(at(2_000), Some(Nanos::from_millis(1_000)));
        assert_eq!(at(3_200), Some(Nanos::new(812_500_000)));
        assert_eq!((at(999), at(4_001)), (None, None));
        let least = curve.least_bandwidth(Nanos::from_millis(1_000));
        assert_eq!(least, Some(BitsPerSecond::new(2_000_000)));
    }

    // Goal: only computing drifts; what became slower moves times and knee, what became faster only
    // what is expected. Method: 0.5 s + 1 Mbit / B, 20 % slower, then faster, then as measured.
    #[test]
    fn a_drift_moves_the_computing_part_only_and_promises_only_to_later() {
        let drift = |ppm: i64| Drift::try_from(ppm).unwrap();
        let measured = fitted(&[(1_000, &[1_500]), (4_000, &[750]), (20_000, &[550])]);
        assert_eq!(measured.computing(), Nanos::from_millis(500));
        let at = BitsPerSecond::new(2_000_000);
        let times = |curve: &FittedCurve| {
            let times = [curve.time_at(at), curve.expected_at(at), curve.measured_at(at)];
            times.map(|time| time.unwrap().as_secs_f64())
        };
        assert_eq!(times(&measured), [1.0, 1.0, 1.0]);
        let slower = measured.clone().with_drift(drift(200_000));
        assert_eq!(times(&slower), [1.1, 1.1, 1.0]);
        let faster = slower.with_drift(drift(-200_000));
        assert_eq!(times(&faster), [1.0, 0.9, 1.0]);
        assert_eq!(faster.with_drift(Drift::NONE), measured);
        // The only point may be computing as a whole.
        assert_eq!(fitted(&[(1, &[7])]).computing(), Nanos::from_millis(7));
    }

    // What saturates gains nothing any more; a line through the first and the last point would say that it does.
    #[test]
    fn beyond_what_was_measured_a_curve_goes_on_as_it_ended() {
        let seconds = |points: &[(u64, &[u64])], mbit: u64| {
            let medians = FittedCurve::by(Method::Interpolation, &curve(points)).unwrap();
            medians.beyond().seconds_at(BitsPerSecond::from_mbit(mbit))
        };
        let near = |seconds: f64, expected: f64| (seconds - expected).abs() < 1e-9;
        let saturated: [(u64, &[u64]); 4] =
            [(10_000, &[2_000]), (20_000, &[1_500]), (40_000, &[1_250]), (80_000, &[1_250])];
        assert!(near(seconds(&saturated, 1_000), 1.25));
        assert!(near(seconds(&saturated[..2], 100), 1.1));
        assert!(near(seconds(&saturated[..1], 100), 2.0));
    }

    #[test]
    fn a_single_sample_has_no_deviation_and_a_promise_says_so() {
        let promise = fitted(&[(1, &[10]), (2, &[9])]).promise(Share::from_percent(90).unwrap());
        assert_eq!(promise, Promise { excess_ppm: 0, deviations: 0 });
    }

    #[test]
    fn a_curve_with_few_deviations_borrows_those_of_the_profile() {
        let own = curve(&[(1, &[10, 10])]);
        let many = Deviations::new((0..20).map(|d| f64::from(d) / 1_000.0));
        let fitted = FittedCurve::new(&own).unwrap().with_lent(many);
        let promise = fitted.promise(Share::from_percent(90).unwrap());
        assert_eq!(promise, Promise { excess_ppm: 18_000, deviations: 20 });
    }

    /// Goal: a 90 % promise holds for about 90 % of new runs, although it comes from few samples.
    /// Method: curves of 5 points x 3 samples with uniform or triangular noise from a seeded
    /// generator, and new runs of the same kind.
    #[test]
    fn a_promise_of_ninety_percent_covers_about_ninety_percent_of_new_runs() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        for noises in [1, 2, 4] {
            let mut run = |time: f64| {
                let noise: f64 = (0..noises).map(|_| uniform() - 0.5).sum();
                Nanos::new((time * (1.0 + 0.1 * noise)) as u64)
            };
            let (mut held, mut all) = (0, 0);
            for _ in 0..400 {
                let truth = |bandwidth: u64| 1e9 + 2e9 / bandwidth as f64;
                let point = |bandwidth: u64, run: &mut dyn FnMut(f64) -> Nanos| Point {
                    bandwidth_bits_per_second: BitsPerSecond::new(bandwidth),
                    samples_nanos: (0..3).map(|_| run(truth(bandwidth))).collect(),
                };
                let points = (1..6).map(|b| point(b, &mut run)).collect();
                let curve = Curve { parameters: Parameters::new(), nodes: 1, points };
                let curve = FittedCurve::new(&curve).unwrap();
                let promise = curve.promise(Share::from_percent(90).unwrap());
                for point in curve.points().iter() {
                    let new = run(truth(point.bandwidth_bits_per_second.get()));
                    held += u32::from(new <= promise.time(point.time_nanos));
                    all += 1;
                }
            }
            let share = f64::from(held) / f64::from(all);
            assert!((0.88..0.96).contains(&share), "{noises}: {share}");
        }
    }

    proptest! {
        #[test]
        fn medians_that_are_monotone_already_are_kept(curve in any_curve()) {
            let fitted = FittedCurve::by(Method::Interpolation, &curve).unwrap();
            let times: Vec<_> = fitted.points().iter().map(|p| p.time_nanos).collect();
            let medians: Vec<_> = curve.points.iter().map(Point::median).collect();
            if medians.is_sorted_by(|a, b| a >= b) {
                prop_assert_eq!(&times, &medians);
            }
            let (low, high) = (medians.iter().min().unwrap(), medians.iter().max().unwrap());
            prop_assert!(times.iter().all(|t| low <= t && t <= high));
        }

        #[test]
        fn every_fit_is_monotone(curve in any_curve()) {
            for fitted in [FittedCurve::new(&curve), FittedCurve::by(Method::Model, &curve)] {
                let fitted = fitted.unwrap();
                prop_assert!(fitted.points().is_sorted_by(|a, b| a.time_nanos >= b.time_nanos));
                prop_assert_eq!(fitted.points().len(), curve.points.len());
            }
        }

        #[test]
        fn interpolation_is_monotone_inside_and_nothing_outside(
            curve in any_curve(), a in 1u64..100_000_000, b in 1u64..100_000_000
        ) {
            let curve = FittedCurve::new(&curve).unwrap();
            let (a, b) = (a.min(b), a.max(b));
            let at = |bits| curve.time_at(BitsPerSecond::new(bits));
            if let (Some(slow), Some(fast)) = (at(a), at(b)) {
                prop_assert!(slow >= fast);
            }
            let first = curve.points()[0].bandwidth_bits_per_second.get();
            let last = curve.points().last().unwrap().bandwidth_bits_per_second.get();
            prop_assert_eq!(at(a).is_some(), (first..=last).contains(&a));
        }

        #[test]
        fn fits_of_the_greatest_times_and_rates_do_not_overflow(
            times in prop::collection::vec(u64::MAX - 9..=u64::MAX, 1..5), bits in 1u64..u64::MAX
        ) {
            let points = times.iter().enumerate().map(|(index, time)| Point {
                bandwidth_bits_per_second: BitsPerSecond::new(if index == 0 { 1 } else { u64::MAX - 9 + index as u64 }),
                samples_nanos: vec![Nanos::new(*time), Nanos::new(1)],
            }).collect();
            let curve = Curve { parameters: Parameters::new(), nodes: 1, points };
            let curve = FittedCurve::new(&curve).unwrap();
            let _ = (curve.time_at(BitsPerSecond::new(bits)), curve.least_bandwidth(Nanos::new(bits)));
            let _ = curve.greatest_bandwidth(Nanos::new(bits));
            prop_assert!(curve.promise(Share::ONE).time(Nanos::new(u64::MAX)) >= Nanos::new(1));
        }
    }
}
