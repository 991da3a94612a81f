//! Which run the profiler makes next, so that a curve is known well after few runs.
//!
//! A point is measured once to see the shape, and as often as wanted only if the curve needs it:
//!
//! 1. **Coarse**: the least and the greatest bandwidth of the grid, the middle one, and the one that
//!    is halfway in 1 / bandwidth; once each.
//! 2. **Knee**: between the measured points on both sides of the 5 % line, the grid point where
//!    interpolation expects the crossing, and then its neighbour below, until two neighbours of the
//!    grid lie on the two sides.
//! 3. **Bends**: a measured point is predicted from its two measured neighbours (leave one out). If
//!    that is off by more than [`ERROR_PERCENT`], the middle of the wider gap beside it is measured;
//!    a gap whose two ends differ by no more than that is left alone, since times are monotone. A
//!    gap over which the time falls by more than [`GAP_PERCENT`] is halved in any case: a step in
//!    it can escape the prediction of its ends.
//! 4. **Samples**: once the shape is settled, the points that it needs are run again in rounds, the
//!    second sample of all before the third of any, so that drift falls on all alike. The ends, the
//!    knee and its neighbour are needed, and every point that the other needed ones do not predict;
//!    what turned out superfluous keeps its one sample. If new medians unsettle the shape, it is
//!    settled first.
//!
//! What holds, on 12 bandwidths x 3 samples (36 runs for the full grid), in the tests below: 16 runs
//! on average for smooth and saturating curves, 22 at most; 18 and 26 with a step of up to 30 %
//! somewhere. Interpolation is within 5 % of the truth for curves without steps, with noise of 2 %
//! too; beside a step it can be off by 12 %, in one curve of a hundred. The knee is that of the
//! full grid where there is no noise, and within one grid step with 2 % in 99 curves of a hundred.
//!
//! Noise: on which side of the 5 % line a point lies is decided by the medians that there are, and
//! again after each further sample. A near-tie is thus decided by all the samples wanted and no
//! more; where it is closer than the noise, the knee can be off by a grid step, or by several where
//! the curve runs along the line. Its true time is never above the line by more than the noise.

use crate::curve::{FittedCurve, FittedPoint, KNEE_PERCENT, within_knee};
use keeptime_model::Invalid;
use keeptime_model::profile::{Curve, Point};
use keeptime_model::units::{BitsPerSecond, Nanos};

/// A point that its neighbours predict this well need not be refined.
pub const ERROR_PERCENT: u64 = 5;

/// A gap over which the time falls by more than this, of the faster end's time, is halved.
pub const GAP_PERCENT: u64 = 60;

/// The bandwidths at which a curve may be measured: at least one, above zero, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid(Vec<BitsPerSecond>);

impl Grid {
    /// Checks `bandwidths`.
    ///
    /// # Errors
    /// If there is none, or they do not ascend from above zero.
    pub fn new(bandwidths: Vec<BitsPerSecond>) -> Result<Self, Invalid> {
        let ascending = bandwidths.is_sorted_by(|a, b| a < b);
        if ascending && bandwidths.first().is_some_and(|b| *b > BitsPerSecond::ZERO) {
            return Ok(Self(bandwidths));
        }
        let given: Vec<_> = bandwidths.iter().map(BitsPerSecond::to_string).collect();
        let expected = "at least one bandwidth above 0 bit/s, ascending, each once";
        Err(Invalid::new("bandwidth grid", given.join(", "), expected))
    }

    /// The bandwidths, ascending.
    pub fn bandwidths(&self) -> &[BitsPerSecond] {
        &self.0
    }
}

/// The bandwidth of the next run, or nothing when the curve is known. `so_far` may be empty; points
/// that are not on the grid do not count. Depends on nothing but its arguments, so that a profiler
/// that was interrupted goes on where it was. O(grid^2).
pub fn next(grid: &Grid, so_far: &Curve, samples_wanted: u32) -> Option<BitsPerSecond> {
    let shape = Shape::new(grid, so_far);
    let index = shape.missing().or_else(|| shape.undersampled(samples_wanted))?;
    Some(grid.0[index])
}

/// What is known of a curve, by position in the grid.
struct Shape<'g> {
    grid: &'g [BitsPerSecond],
    /// The measured positions, ascending, with their fitted points.
    known: Vec<(usize, FittedPoint)>,
}

impl<'g> Shape<'g> {
    fn new(grid: &'g Grid, so_far: &Curve) -> Self {
        let on_grid = |p: &&Point| grid.0.binary_search(&p.bandwidth_bits_per_second).is_ok();
        let points = so_far.points.iter().filter(on_grid).cloned().collect();
        let curve = Curve { points, ..so_far.clone() };
        let fitted = FittedCurve::through_all(&curve);
        let place = |p: &FittedPoint| {
            grid.0.binary_search(&p.bandwidth_bits_per_second).ok().map(|at| (at, *p))
        };
        let known = fitted.iter().flat_map(|f| f.points().iter().filter_map(place)).collect();
        Self { grid: &grid.0, known }
    }

    /// A position to measure for the first time.
    fn missing(&self) -> Option<usize> {
        let last = self.grid.len() - 1;
        // Halfway between the ends in 1 / bandwidth is a little less than twice the least.
        let twice = self.grid[0].get().saturating_mul(2);
        let low = self.grid.partition_point(|b| b.get() < twice).saturating_sub(1);
        let coarse = [0, last, last / 2, low.max(1).min(last)];
        let unknown = |at: &usize| self.known.iter().all(|(known, _)| known != at);
        let coarse = coarse.into_iter().find(unknown);
        coarse
            .or_else(|| self.knee_candidate())
            .or_else(|| self.bend_candidate())
            .or_else(|| self.gap_candidate())
    }

    /// The first known position (of `known`) within 5 % of the best time, and so the knee.
    fn knee(&self) -> Option<usize> {
        let best = self.known.last()?.1.time_nanos;
        self.known.iter().position(|(_, p)| within_knee(p.time_nanos, best))
    }

    /// A position between the two known ones beside the 5 % line.
    fn knee_candidate(&self) -> Option<usize> {
        let knee = self.knee()?;
        let (above, left) = &self.known[knee.checked_sub(1)?];
        let (inside, right) = &self.known[knee];
        if above + 1 == *inside {
            return None;
        }
        let best = self.known.last()?.1.time_nanos;
        let line = Nanos::new(best.get().saturating_mul(100 + KNEE_PERCENT) / 100);
        let expected = |at: &usize| predicted(left, right, self.grid[*at]) <= line;
        let crossing = (above + 1..*inside).find(expected);
        // Expected at the known point itself: its neighbour below must show that it is not earlier.
        Some(crossing.unwrap_or(inside - 1))
    }

    /// The middle of the wider gap beside a point that its neighbours do not predict.
    fn bend_candidate(&self) -> Option<usize> {
        let wide = |pair: &[(usize, FittedPoint)]| {
            let [(a, slow), (b, fast)] = pair else { return None };
            let open = b - a > 1 && !is_near(slow.time_nanos, fast.time_nanos);
            open.then_some((b - a, a + (b - a) / 2))
        };
        let around = |three: &[(usize, FittedPoint)]| {
            let [(_, left), (_, point), (_, right)] = three else { return None };
            let expected = predicted(left, right, point.bandwidth_bits_per_second);
            if is_near(point.time_nanos, expected) {
                return None;
            }
            wide(&three[..2]).max(wide(&three[1..]))
        };
        self.known.windows(3).filter_map(around).max().map(|(_, middle)| middle)
    }

    /// The middle of the widest gap over which the time falls by too much.
    fn gap_candidate(&self) -> Option<usize> {
        let steep = |pair: &[(usize, FittedPoint)]| {
            let [(a, slow), (b, fast)] = pair else { return None };
            let fall = error_ppm(slow.time_nanos, fast.time_nanos);
            let open = b - a > 1 && fall > u128::from(GAP_PERCENT) * 10_000;
            open.then_some((b - a, a + (b - a) / 2))
        };
        self.known.windows(2).filter_map(steep).max().map(|(_, middle)| middle)
    }

    /// Among the needed points, the first of those with the fewest samples, if they are too few.
    fn undersampled(&self, samples_wanted: u32) -> Option<usize> {
        let needed = self.needed();
        let points = needed.into_iter().map(|k| &self.known[k]);
        let (at, point) = points.min_by_key(|(at, p)| (p.samples, *at))?;
        (point.samples < samples_wanted).then_some(*at)
    }

    /// Positions in `known` of the points without which the curve would look different, ascending.
    fn needed(&self) -> Vec<usize> {
        let Some(knee) = self.knee() else { return Vec::new() };
        let mut needed = vec![0, knee.saturating_sub(1), knee, self.known.len() - 1];
        needed.sort_unstable();
        needed.dedup();
        while let Some(worst) = self.worst_predicted(&needed) {
            needed.insert(needed.partition_point(|n| *n < worst), worst);
        }
        needed
    }

    /// The point that the needed ones predict worst, if any is off by too much.
    fn worst_predicted(&self, needed: &[usize]) -> Option<usize> {
        let off = |pair: &[usize]| {
            let (left, right) = (&self.known[pair[0]].1, &self.known[pair[1]].1);
            let error = |k: usize| {
                let point = &self.known[k].1;
                let expected = predicted(left, right, point.bandwidth_bits_per_second);
                let near = is_near(point.time_nanos, expected);
                (!near).then(|| (error_ppm(point.time_nanos, expected), k))
            };
            (pair[0] + 1..pair[1]).filter_map(error).max()
        };
        needed.windows(2).filter_map(off).max().map(|(_, k)| k)
    }
}

fn predicted(left: &FittedPoint, right: &FittedPoint, bandwidth: BitsPerSecond) -> Nanos {
    crate::curve::time_between(left, right, bandwidth)
}

/// Whether two times differ by at most [`ERROR_PERCENT`] of the second.
fn is_near(time: Nanos, other: Nanos) -> bool {
    error_ppm(time, other) <= u128::from(ERROR_PERCENT) * 10_000
}

fn error_ppm(time: Nanos, other: Nanos) -> u128 {
    u128::from(time.get().abs_diff(other.get())) * 1_000_000 / u128::from(other.get().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Deviations;
    use crate::testing::Lcg;
    use keeptime_model::application::Parameters;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    const SAMPLES: u32 = 3;

    /// Twelve bandwidths, each `percent` more than the one before.
    fn grid(percent: u64) -> Grid {
        let rates = std::iter::successors(Some(1_000_000), |b| Some(b * (100 + percent) / 100));
        Grid::new(rates.take(12).map(BitsPerSecond::new).collect()).unwrap()
    }

    /// The truth behind a curve, in seconds.
    #[derive(Debug, Clone)]
    struct Truth {
        compute: f64,
        megabits: f64,
        /// No faster than this, as when something else than the network limits.
        floor: f64,
        /// Faster by this share from this bandwidth (Mbit/s) on, as when a buffer fits at last.
        step: (f64, f64),
    }

    impl Truth {
        fn time(&self, bandwidth: BitsPerSecond) -> f64 {
            let mbit = bandwidth.as_mbit_f64();
            let smooth = (self.compute + self.megabits / mbit).max(self.floor);
            if mbit >= self.step.1 { smooth * (1.0 - self.step.0) } else { smooth }
        }

        fn knee(&self, grid: &Grid) -> usize {
            let best = self.time(grid.0[11]);
            grid.0.iter().position(|b| self.time(*b) <= best * 1.05).unwrap()
        }
    }

    fn truth(step: f64) -> impl Strategy<Value = Truth> {
        let floor = prop_oneof![Just(0.0), 0.5f64..3.0];
        (0.1f64..2.0, 0.05f64..20.0, floor, 0.0..=step, 1f64..90.0).prop_map(
            |(compute, megabits, floor, step, at)| Truth {
                compute,
                megabits,
                floor,
                step: (step, at),
            },
        )
    }

    /// Runs the profiler's loop to its end: the curve, and how many runs it took.
    fn profile(grid: &Grid, truth: &Truth, noise: f64, seed: u64) -> (Curve, u32) {
        let mut random = Lcg(seed);
        let mut curve = Curve { parameters: Parameters::new(), nodes: 2, points: Vec::new() };
        let mut runs = 0;
        while let Some(bandwidth) = next(grid, &curve, SAMPLES) {
            let uniform = random.below(2_000_001) as f64 / 1e6 - 1.0;
            let time = Nanos::from_secs_f64(truth.time(bandwidth) * (1.0 + noise * uniform));
            record(&mut curve, bandwidth, time.unwrap());
            runs += 1;
            assert!(runs <= 12 * SAMPLES, "more runs than the full grid");
        }
        (curve, runs)
    }

    fn record(curve: &mut Curve, bandwidth: BitsPerSecond, time: Nanos) {
        match curve.points.binary_search_by_key(&bandwidth, |p| p.bandwidth_bits_per_second) {
            Ok(at) => curve.points[at].samples_nanos.push(time),
            Err(at) => {
                let samples_nanos = vec![time];
                let point = Point { bandwidth_bits_per_second: bandwidth, samples_nanos };
                curve.points.insert(at, point);
            }
        }
    }

    /// The knee's position in the grid, and the greatest error of interpolation on the grid.
    fn found(grid: &Grid, truth: &Truth, curve: &Curve) -> (usize, f64) {
        let fitted = FittedCurve::new(curve, &Deviations::default()).unwrap();
        let knee = fitted.knee().bandwidth_bits_per_second;
        let error = |b: &BitsPerSecond| {
            let expected = truth.time(*b);
            (fitted.time_at(*b).unwrap().as_secs_f64() - expected).abs() / expected
        };
        let worst = grid.0.iter().map(error).fold(0.0, f64::max);
        (grid.0.binary_search(&knee).unwrap(), worst)
    }

    /// What the profiler's loop came to on many random curves.
    struct Outcome {
        runs_mean: f64,
        runs_most: u32,
        error_most: f64,
        /// Share of curves whose error is above 5 %.
        errors: f64,
        /// Share of curves whose knee is more than one grid step from the true one.
        knees_off: f64,
        /// The greatest true time at a knee found, as a multiple of the best time.
        knee_time_most: f64,
    }

    fn outcome(step: f64, noise: f64) -> Outcome {
        const CURVES: u32 = 2_000;
        let mut runner = TestRunner::deterministic();
        let mut out = Outcome {
            runs_mean: 0.0,
            runs_most: 0,
            error_most: 0.0,
            errors: 0.0,
            knees_off: 0.0,
            knee_time_most: 0.0,
        };
        let each = 1.0 / f64::from(CURVES);
        for seed in 0..CURVES {
            let (truth, percent) =
                (truth(step), 30u64..60).new_tree(&mut runner).unwrap().current();
            let grid = grid(percent);
            let (curve, runs) = profile(&grid, &truth, noise, seed.into());
            let (knee, error) = found(&grid, &truth, &curve);
            out.runs_mean += f64::from(runs) * each;
            out.runs_most = out.runs_most.max(runs);
            out.error_most = out.error_most.max(error);
            out.errors += if error > 0.05 { each } else { 0.0 };
            out.knees_off += if knee.abs_diff(truth.knee(&grid)) > 1 { each } else { 0.0 };
            let ratio = truth.time(grid.0[knee]) / truth.time(grid.0[11]);
            out.knee_time_most = out.knee_time_most.max(ratio);
        }
        eprintln!(
            "step {step} noise {noise}: {:.1} runs, at most {}; error at most {:.3}, {:.4} above 5 %; \
             knees off {:.4}, at most {:.3}",
            out.runs_mean,
            out.runs_most,
            out.error_most,
            out.errors,
            out.knees_off,
            out.knee_time_most
        );
        out
    }

    #[test]
    fn smooth_and_saturating_curves_take_less_than_half_of_the_runs() {
        let exact = outcome(0.0, 0.0);
        assert!(exact.runs_mean <= 18.0 && exact.runs_most <= 22);
        assert!(exact.error_most <= 0.05 && exact.knees_off == 0.0);
        assert!(exact.knee_time_most <= 1.05 + 1e-6);
        let noisy = outcome(0.0, 0.02);
        assert!(noisy.runs_mean <= 18.0 && noisy.runs_most <= 26);
        assert!(noisy.error_most <= 0.05 && noisy.knees_off < 0.01);
        assert!(noisy.knee_time_most <= 1.05 * 1.02 / 0.98 + 1e-6);
    }

    #[test]
    fn steps_are_found_or_cost_little() {
        let exact = outcome(0.3, 0.0);
        assert!(exact.runs_most <= 26 && exact.error_most <= 0.12 && exact.errors < 0.02);
        assert!(exact.knees_off == 0.0);
        let noisy = outcome(0.3, 0.02);
        assert!(noisy.runs_most <= 30 && noisy.error_most <= 0.14 && noisy.errors < 0.02);
        assert!(noisy.knees_off < 0.02);
        assert!(noisy.knee_time_most <= 1.05 * 1.02 / 0.98 + 1e-6);
        let mixed = [outcome(0.0, 0.0), outcome(0.0, 0.02), exact, noisy];
        assert!(mixed.iter().map(|o| o.runs_mean).sum::<f64>() / 4.0 <= 18.0);
    }

    #[test]
    fn a_flat_curve_is_known_after_two_points() {
        let flat = Truth { compute: 1.0, megabits: 0.0, floor: 0.0, step: (0.0, 1.0) };
        let (curve, runs) = profile(&grid(50), &flat, 0.0, 1);
        let thrice = curve.points.iter().filter(|p| p.samples_nanos.len() == 3).count();
        assert_eq!((runs, thrice, curve.points.len()), (8, 2, 4));
    }

    #[test]
    fn points_off_the_grid_do_not_count_and_one_bandwidth_is_enough() {
        let single = Grid::new(vec![BitsPerSecond::from_mbit(5)]).unwrap();
        let mut curve = Curve { parameters: Parameters::new(), nodes: 1, points: Vec::new() };
        record(&mut curve, BitsPerSecond::from_mbit(7), Nanos::from_millis(1));
        for _ in 0..SAMPLES {
            assert_eq!(next(&single, &curve, SAMPLES), Some(BitsPerSecond::from_mbit(5)));
            record(&mut curve, BitsPerSecond::from_mbit(5), Nanos::from_millis(1));
        }
        assert_eq!(next(&single, &curve, SAMPLES), None);
    }

    #[test]
    fn bad_grids_are_refused() {
        let rates = |mbit: &[u64]| mbit.iter().map(|m| BitsPerSecond::from_mbit(*m)).collect();
        for bad in [&[][..], &[0, 1], &[2, 1], &[1, 1]] {
            assert_eq!(Grid::new(rates(bad)).unwrap_err().field, "bandwidth grid");
        }
    }

    proptest! {
        #[test]
        fn any_times_on_any_grid_come_to_an_end(
            rates in prop::collection::btree_set(1u64..1 << 40, 1..12),
            seed: u64, wanted in 0u32..5
        ) {
            let grid = Grid::new(rates.into_iter().map(BitsPerSecond::new).collect()).unwrap();
            let mut curve = Curve { parameters: Parameters::new(), nodes: 2, points: Vec::new() };
            let mut random = Lcg(seed);
            let most = grid.bandwidths().len() as u32 * wanted.max(1);
            for _ in 0..most {
                let Some(bandwidth) = next(&grid, &curve, wanted) else { break };
                record(&mut curve, bandwidth, Nanos::new(1 + random.below(1 << 30)));
            }
            prop_assert_eq!(next(&grid, &curve, wanted), None);
            prop_assert!(curve.points.iter().all(|p| p.samples_nanos.len() <= wanted.max(1) as usize));
            prop_assert_eq!(curve.points[0].bandwidth_bits_per_second, grid.bandwidths()[0]);
        }
    }
}
