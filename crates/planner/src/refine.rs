//! Which run the profiler makes next, so that a curve is known well after few runs.
//!
//! 1. **Coarse**: the least and the greatest bandwidth of the grid, the middle one, and the one that
//!    is halfway in 1 / bandwidth; once each.
//! 2. **Where least is known**: the bandwidth of the grid whose time may be farthest off, relative
//!    to itself ([`crate::prediction`]), is measured next, for the first time or again. For the model
//!    these are the places that say most about its terms, as in optimal designs (Fedorov, Theory of
//!    Optimal Experiments, 1972); for a curve that the model does not fit, its gaps and its bends.
//! 3. **Knee**: planning goes by measured points, so that the knee that is expected is measured, if it
//!    was not, as the last run or when all else is known.
//! 4. **Enough** is known when every bandwidth of the grid is within the precision that is wanted, or
//!    when the runs are used up. With four runs little can be left out, so that what they say of
//!    their own precision is chance: there are [`RUNS_MIN`] at least.
//!
//! What holds on 12 bandwidths x 3 samples (36 runs for the full grid) and at most 12 runs, in the tests
//! below, on 1,000 random curves each. Smooth and saturating curves: 6.7 runs on average and exact
//! without noise; with 2 % of noise 7.3 runs, and 95 % of all times within 1.6 % of the truth; with
//! 10 % of noise 11.5 runs, and within 7.3 %. With a step of up to 30 % somewhere: 10 runs, 95 % of all
//! times exact, and the others off by at most 21 %, between measured points beside the step; with 2 %
//! of noise 9 runs, and 95 % within 5.5 %. The knee is that of the full grid, or beside it, in 99
//! smooth curves of a hundred with noise of 2 %, and in 96 with a step.

use crate::curve::KNEE_PERCENT;
use crate::prediction::Prediction;
use keeptime_model::Invalid;
use keeptime_model::profile::{Curve, POINTS_MAX, Point};
use keeptime_model::units::{BitsPerSecond, Share};

/// With fewer runs the model's terms cannot be told from chance.
pub const RUNS_MIN: usize = 6;

/// The part of the full grid's runs that is made where nothing else is asked for: one in three.
pub const GRID_PART: usize = 3;

/// When a curve is known well enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Every time of the grid is known to so much of itself.
    pub precision: Share,
    /// A bandwidth is measured so often at the most.
    pub samples: u32,
    /// A curve takes so many runs at the most; the first four are made in any case.
    pub runs: usize,
}

impl Wanted {
    /// Within 5 %, with a third of the runs that `samples` at each bandwidth of `grid` are, or
    /// [`RUNS_MIN`] where that is less.
    pub fn of(grid: &Grid, samples: u32) -> Self {
        const FIVE: Share = Share::from_percent(5).expect("at most 100");
        let runs = (grid.0.len() * samples as usize).div_ceil(GRID_PART).max(RUNS_MIN);
        Self { precision: FIVE, samples, runs }
    }
}

/// The bandwidths at which a curve may be measured: at least one, [`POINTS_MAX`] at the most, above zero, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid(Vec<BitsPerSecond>);

impl Grid {
    /// Checks `bandwidths`.
    ///
    /// # Errors
    /// If there is none, or too many, or they do not ascend from above zero.
    pub fn new(bandwidths: Vec<BitsPerSecond>) -> Result<Self, Invalid> {
        if bandwidths.len() > POINTS_MAX {
            let expected = format!("at most {POINTS_MAX} bandwidths");
            return Err(Invalid::new("bandwidth grid", bandwidths.len(), expected));
        }
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
/// that was interrupted goes on where it was.
pub fn next(grid: &Grid, so_far: &Curve, wanted: &Wanted) -> Option<BitsPerSecond> {
    let points = on_grid(grid, so_far);
    let samples = |bandwidth: BitsPerSecond| samples_at(&points, bandwidth);
    if let Some(unknown) = coarse(grid).into_iter().find(|b| samples(*b) == 0) {
        return Some(unknown);
    }
    let runs = run_count(&points);
    let prediction = Prediction::new(&points);
    let off = |bandwidth: &BitsPerSecond| prediction.uncertainty_at(*bandwidth);
    let is_known = |bandwidth: &BitsPerSecond| off(bandwidth) <= wanted.precision.as_f64();
    if runs >= wanted.runs {
        return None;
    }
    let all_known = runs >= RUNS_MIN && grid.0.iter().all(is_known);
    if all_known || runs + 1 == wanted.runs {
        let knee = knee(grid, |bandwidth| prediction.seconds_at(bandwidth));
        let unmeasured = knee.filter(|knee| samples(*knee) == 0);
        if all_known || unmeasured.is_some() {
            return unmeasured;
        }
    }
    least_known(grid, &points, wanted, off)
}

/// Of the bandwidths that may be measured once more the one that is `off` by most; nothing if there is none.
pub(crate) fn least_known(
    grid: &Grid,
    points: &[Point],
    wanted: &Wanted,
    off: impl Fn(&BitsPerSecond) -> f64,
) -> Option<BitsPerSecond> {
    let samples = |bandwidth: &BitsPerSecond| samples_at(points, *bandwidth);
    let open = grid.0.iter().filter(|bandwidth| samples(bandwidth) < wanted.samples as usize);
    // Where all is equal, where there are fewest runs.
    let order = |a: &&BitsPerSecond, b: &&BitsPerSecond| {
        off(a).total_cmp(&off(b)).then(samples(b).cmp(&samples(a)))
    };
    open.max_by(order).copied()
}

/// The least bandwidth that is expected within 5 % of the best time.
pub(crate) fn knee(
    Grid(grid): &Grid,
    seconds_at: impl Fn(BitsPerSecond) -> Option<f64>,
) -> Option<BitsPerSecond> {
    let best = seconds_at(*grid.last()?)?;
    let least = best * (100 + KNEE_PERCENT) as f64 / 100.0;
    let is_near = |b: &&BitsPerSecond| seconds_at(**b).is_some_and(|t| t <= least);
    grid.iter().find(is_near).copied()
}

/// By how much any time of the grid may be off, as a part of it; infinite before all that is coarse
/// is measured.
pub fn uncertainty(grid: &Grid, so_far: &Curve) -> f64 {
    let prediction = Prediction::new(&on_grid(grid, so_far));
    grid.0.iter().map(|b| prediction.uncertainty_at(*b)).fold(0.0, f64::max)
}

/// What shows the shape: the ends, the middle, and what is halfway in 1 / bandwidth, which is a
/// little less than twice the least.
fn coarse(Grid(grid): &Grid) -> [BitsPerSecond; 4] {
    let last = grid.len() - 1;
    let twice = grid[0].get().saturating_mul(2);
    let low = grid.partition_point(|b| b.get() < twice).saturating_sub(1);
    [0, last, last / 2, low.max(1).min(last)].map(|at| grid[at])
}

/// What of a curve counts.
pub(crate) fn on_grid(grid: &Grid, curve: &Curve) -> Vec<Point> {
    let is_on = |p: &&Point| grid.0.binary_search(&p.bandwidth_bits_per_second).is_ok();
    curve.points.iter().filter(is_on).cloned().collect()
}

/// How many runs there are at a bandwidth.
pub(crate) fn samples_at(points: &[Point], bandwidth: BitsPerSecond) -> usize {
    let of = points.iter().find(|p| p.bandwidth_bits_per_second == bandwidth);
    of.map_or(0, |p| p.samples_nanos.len())
}

/// How many runs there are in all.
pub(crate) fn run_count(points: &[Point]) -> usize {
    points.iter().map(|p| p.samples_nanos.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::FittedCurve;
    use crate::testing::Lcg;
    use keeptime_model::application::Parameters;
    use keeptime_model::units::Nanos;
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
        let wanted = Wanted::of(grid, SAMPLES);
        while let Some(bandwidth) = next(grid, &curve, &wanted) {
            let uniform = random.below(2_000_001) as f64 / 1e6 - 1.0;
            let time = Nanos::from_secs_f64(truth.time(bandwidth) * (1.0 + noise * uniform));
            record(&mut curve, bandwidth, time.unwrap());
            runs += 1;
            assert!(runs <= 12 * SAMPLES / 3, "more runs than a third of the full grid's");
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

    /// The knee's position in the grid, and the errors of all times of the grid.
    fn found(grid: &Grid, truth: &Truth, curve: &Curve) -> (usize, Vec<f64>) {
        let fitted = FittedCurve::new(curve).unwrap();
        let knee = fitted.knee().bandwidth_bits_per_second;
        let error = |b: &BitsPerSecond| {
            let expected = truth.time(*b);
            (fitted.time_at(*b).unwrap().as_secs_f64() - expected).abs() / expected
        };
        (grid.0.binary_search(&knee).unwrap(), grid.0.iter().map(error).collect())
    }

    /// What the profiler's loop came to on many random curves.
    struct Outcome {
        runs_mean: f64,
        /// What 95 % of all times of the grids are nearer to the truth than.
        error_p95: f64,
        error_most: f64,
        /// Share of curves whose knee is more than one grid step from the true one.
        knees_off: f64,
        /// The greatest true time at a knee found, as a multiple of the best time.
        knee_time_most: f64,
    }

    fn outcome(step: f64, noise: f64) -> Outcome {
        const CURVES: u32 = 1_000;
        let mut runner = TestRunner::deterministic();
        let (mut all, mut knees_off, mut knee_time_most) = (0, 0, 0.0f64);
        let mut errors = Vec::new();
        for seed in 0..CURVES {
            let (truth, percent) =
                (truth(step), 30u64..60).new_tree(&mut runner).unwrap().current();
            let grid = grid(percent);
            let (curve, runs) = profile(&grid, &truth, noise, seed.into());
            let (knee, off) = found(&grid, &truth, &curve);
            errors.extend(off);
            all += runs;
            knees_off += u32::from(knee.abs_diff(truth.knee(&grid)) > 1);
            knee_time_most = knee_time_most.max(truth.time(grid.0[knee]) / truth.time(grid.0[11]));
        }
        errors.sort_by(f64::total_cmp);
        let each = 1.0 / f64::from(CURVES);
        let out = Outcome {
            runs_mean: f64::from(all) * each,
            error_p95: errors[errors.len() * 95 / 100],
            error_most: errors[errors.len() - 1],
            knees_off: f64::from(knees_off) * each,
            knee_time_most,
        };
        eprintln!(
            "step {step} noise {noise}: {:.1} runs; error p95 {:.4}, at most {:.3}; knees off {:.4}, at most {:.3}",
            out.runs_mean, out.error_p95, out.error_most, out.knees_off, out.knee_time_most
        );
        out
    }

    #[test]
    fn smooth_and_saturating_curves_take_a_third_of_the_runs() {
        let exact = outcome(0.0, 0.0);
        assert!(exact.error_p95 <= 0.001 && exact.runs_mean <= 8.0);
        assert!(exact.knees_off == 0.0 && exact.knee_time_most <= 1.05 + 1e-6);
        let noisy = outcome(0.0, 0.02);
        assert!(noisy.error_p95 <= 0.02 && noisy.runs_mean <= 9.0);
        assert!(noisy.knees_off < 0.01 && noisy.knee_time_most <= 1.1);
        let noisier = outcome(0.0, 0.1);
        assert!(noisier.error_p95 <= 0.08 && noisier.error_most <= 0.4);
    }

    #[test]
    fn steps_are_found_or_cost_little() {
        let exact = outcome(0.3, 0.0);
        assert!(exact.error_p95 <= 0.01 && exact.error_most <= 0.25);
        assert!(exact.knees_off < 0.02);
        let noisy = outcome(0.3, 0.02);
        assert!(noisy.error_p95 <= 0.06 && noisy.knees_off < 0.06);
    }

    #[test]
    fn points_off_the_grid_do_not_count_and_one_bandwidth_is_enough() {
        let single = Grid::new(vec![BitsPerSecond::from_mbit(5)]).unwrap();
        let wanted = Wanted { runs: 2, ..Wanted::of(&single, SAMPLES) };
        let mut curve = Curve { parameters: Parameters::new(), nodes: 1, points: Vec::new() };
        record(&mut curve, BitsPerSecond::from_mbit(7), Nanos::from_millis(1));
        for _ in 0..wanted.runs {
            assert_eq!(next(&single, &curve, &wanted), Some(BitsPerSecond::from_mbit(5)));
            record(&mut curve, BitsPerSecond::from_mbit(5), Nanos::from_millis(1));
        }
        assert_eq!(next(&single, &curve, &wanted), None);
    }

    #[test]
    fn bad_grids_are_refused() {
        let rates = |mbit: &[u64]| mbit.iter().map(|m| BitsPerSecond::from_mbit(*m)).collect();
        for bad in [&[][..], &[0, 1], &[2, 1], &[1, 1]] {
            assert_eq!(Grid::new(rates(bad)).unwrap_err().field, "bandwidth grid");
        }
        let first = |count: u64| rates(&(1..=count).collect::<Vec<u64>>());
        assert!(Grid::new(first(POINTS_MAX as u64)).is_ok());
        let error = Grid::new(first(65)).unwrap_err().to_string();
        assert_eq!(error, "bandwidth grid: \"65\" is not accepted; expected at most 64 bandwidths");
    }

    proptest! {
        #[test]
        fn any_times_on_any_grid_come_to_an_end(
            rates in prop::collection::btree_set(1u64..1 << 40, 1..12),
            seed: u64, samples in 1u32..5, runs in 0usize..50
        ) {
            let grid = Grid::new(rates.into_iter().map(BitsPerSecond::new).collect()).unwrap();
            let wanted = Wanted { runs, ..Wanted::of(&grid, samples) };
            let mut curve = Curve { parameters: Parameters::new(), nodes: 2, points: Vec::new() };
            let mut random = Lcg(seed);
            let most = runs.min(grid.bandwidths().len() * samples as usize).max(4);
            for _ in 0..most {
                let Some(bandwidth) = next(&grid, &curve, &wanted) else { break };
                record(&mut curve, bandwidth, Nanos::new(1 + random.below(1 << 30)));
            }
            prop_assert_eq!(next(&grid, &curve, &wanted), None);
            prop_assert!(curve.points.iter().all(|p| p.samples_nanos.len() <= samples as usize));
            prop_assert_eq!(curve.points[0].bandwidth_bits_per_second, grid.bandwidths()[0]);
        }
    }
}
