//! Which run the profiler makes next where other numbers of nodes of the same setting are known: their model
//! ([`crate::scaling`]) says what to expect, so that the first runs are made where that has to be confirmed rather than
//! where the shape of a curve shows.
//!
//! 1. **Ends**: the least and the greatest bandwidth of the grid, in any case: nothing is planned beyond them.
//! 2. **Knee**: where the model of all numbers, with those two runs among theirs, expects it.
//! 3. **Where least is known**: planning goes by the runs of this curve alone, so that what a time may be off by is what
//!    the model may be off by, and what this curve says otherwise than the model.
//! 4. **Enough** is known when that is within the precision that is wanted at every bandwidth of the grid, after
//!    [`RUNS_MIN`] runs.
//!
//! Where there is no such model, since fewer than three other numbers of nodes were measured, or since the runs (these
//! too) reject it, all is as without ([`refine`]); and so it is once a curve has had as many runs as it takes at least
//! without. A guess never costs a curve more runs than it may take.

use crate::prediction::Prediction;
use crate::refine::{self, Grid, Wanted, knee, least_known, on_grid, run_count, samples_at};
use crate::scaling::{NUMBERS_MIN, Scaling};
use keeptime_model::application::Parameters;
use keeptime_model::pattern::Pattern;
use keeptime_model::profile::{Curve, Point, Profile};
use keeptime_model::units::BitsPerSecond;

/// Both ends, the knee, and one where the model could be most wrong.
pub const RUNS_MIN: usize = 4;

/// Curves of one setting on other numbers of nodes, and how the program communicates.
#[derive(Debug, Clone)]
pub struct Others<'a> {
    pattern: &'a Pattern,
    curves: Vec<&'a Curve>,
}

impl<'a> Others<'a> {
    /// All but the one on `nodes` nodes.
    pub fn of(
        pattern: &'a Pattern,
        profile: &'a Profile,
        parameters: &Parameters,
        nodes: u32,
    ) -> Self {
        let is_other = |curve: &&Curve| curve.parameters == *parameters && curve.nodes != nodes;
        let is_measured = |curve: &&Curve| !curve.points.is_empty();
        let curves = profile.curves.iter().filter(is_other).filter(is_measured);
        Self { pattern, curves: curves.collect() }
    }

    fn with<'b>(&'b self, own: &'b Curve) -> Vec<&'b Curve> {
        self.curves.iter().copied().chain([own]).collect()
    }
}

/// The bandwidth of the next run, or nothing when the curve is known; as [`refine::next`] with others' help.
pub fn next(
    grid: &Grid,
    so_far: &Curve,
    wanted: &Wanted,
    others: &Others<'_>,
) -> Option<BitsPerSecond> {
    let alone = refine::next(grid, so_far, wanted)?;
    if others.curves.len() < NUMBERS_MIN {
        return Some(alone);
    }
    // Alone it begins with the shape of the curve, however late a guess is given up.
    if run_count(&on_grid(grid, so_far)) >= wanted.runs.max(RUNS_MIN) {
        return None;
    }
    match Guided::new(grid, so_far, others) {
        Some(guided) if guided.is_known(wanted) => None,
        Some(guided) if guided.runs() < refine::RUNS_MIN => guided.choice(wanted).or(Some(alone)),
        _ => Some(alone),
    }
}

/// By how much any time of the grid may be off, as a part of it; as [`refine::uncertainty`] with others' help.
pub fn uncertainty(grid: &Grid, so_far: &Curve, others: &Others<'_>) -> f64 {
    let alone = refine::uncertainty(grid, so_far);
    Guided::new(grid, so_far, others).map_or(alone, |guided| alone.min(guided.off_most()))
}

/// A curve whose ends are measured, beside what is expected of it.
struct Guided<'a> {
    grid: &'a Grid,
    nodes: u32,
    points: Vec<Point>,
    /// What planning goes by.
    alone: Prediction,
    model: Scaling,
}

impl<'a> Guided<'a> {
    fn new(grid: &'a Grid, so_far: &Curve, others: &Others<'_>) -> Option<Self> {
        let points = on_grid(grid, so_far);
        let bandwidths = grid.bandwidths();
        let is_measured = |end: Option<&BitsPerSecond>| {
            end.is_some_and(|bandwidth| samples_at(&points, *bandwidth) > 0)
        };
        let has_ends = is_measured(bandwidths.first()) && is_measured(bandwidths.last());
        // A single node exchanges nothing: one bandwidth is all of its curve.
        if so_far.nodes < 2 || others.curves.len() < NUMBERS_MIN || !has_ends {
            return None;
        }
        let own = Curve { points, parameters: Parameters::new(), nodes: so_far.nodes };
        let model = Scaling::fit(others.pattern, &others.with(&own)).ok()?;
        let alone = Prediction::new(&own.points);
        Some(Self { grid, nodes: own.nodes, points: own.points, alone, model })
    }

    fn runs(&self) -> usize {
        run_count(&self.points)
    }

    fn is_known(&self, wanted: &Wanted) -> bool {
        let is_known = self.off_most() <= wanted.precision.as_f64();
        is_known && self.runs() >= RUNS_MIN && self.unmeasured_knee().is_none()
    }

    fn choice(&self, wanted: &Wanted) -> Option<BitsPerSecond> {
        let widest = || least_known(self.grid, &self.points, wanted, |b| self.off(*b));
        self.unmeasured_knee().or_else(widest)
    }

    /// Planning goes by measured points.
    fn unmeasured_knee(&self) -> Option<BitsPerSecond> {
        let seconds = |bandwidth| Some(self.model.seconds_at(self.nodes, bandwidth));
        knee(self.grid, seconds).filter(|knee| samples_at(&self.points, *knee) == 0)
    }

    fn off_most(&self) -> f64 {
        self.grid.bandwidths().iter().map(|b| self.off(*b)).fold(0.0, f64::max)
    }

    /// By how much what planning goes by may be off at `bandwidth`, as a part of it.
    fn off(&self, bandwidth: BitsPerSecond) -> f64 {
        let expected = self.model.seconds_at(self.nodes, bandwidth);
        let otherwise =
            self.alone.seconds_at(bandwidth).map(|alone| (alone / expected - 1.0).abs());
        // Not a number if nothing is expected: that is not known either.
        let off = otherwise.map(|part| part + self.model.uncertainty_at(self.nodes, bandwidth));
        off.filter(|off| !off.is_nan()).unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Lcg, Scaled, conditions};
    use keeptime_model::units::Nanos;

    const SAMPLES: u32 = 3;

    fn grid() -> Grid {
        Grid::new(Scaled::GRID.map(BitsPerSecond::from_mbit).to_vec()).unwrap()
    }

    /// What was measured of `program` on these numbers of nodes.
    fn profile(program: &Scaled, numbers: &[u32], random: &mut Lcg) -> Profile {
        let grid = grid().bandwidths().to_vec();
        let profile = Profile::empty("ray".parse().unwrap(), conditions(), grid);
        let curves = numbers.iter().map(|nodes| program.curve(*nodes, 2, random)).collect();
        Profile { curves, ..profile }
    }

    fn others(profile: &Profile) -> Others<'_> {
        static RING: Pattern = Pattern::Ring;
        Others::of(&RING, profile, &Parameters::new(), 16)
    }

    /// The profiler's loop on 16 nodes to its end, and what it left.
    fn measured(program: &Scaled, others: &Others<'_>, seed: u64) -> Profile {
        let mut random = Lcg(seed);
        let unknown = Curve { parameters: Parameters::new(), nodes: 16, points: Vec::new() };
        let mut profile = profile(program, &[], &mut random);
        let wanted = Wanted::of(&grid(), SAMPLES);
        loop {
            let so_far = profile.curve(&unknown.parameters, 16).unwrap_or(&unknown);
            let Some(bandwidth) = next(&grid(), so_far, &wanted, others) else { return profile };
            let time = program.run(16, bandwidth.get() / 1_000_000, &mut random);
            profile.record(&unknown.parameters, 16, bandwidth, time);
            assert!(profile.run_count() <= wanted.runs, "more than a third of the full grid's");
        }
    }

    /// By how much what planning goes by is off the truth, at each bandwidth of the grid.
    fn errors(program: &Scaled, profile: &Profile) -> Vec<f64> {
        let prediction = Prediction::new(&profile.curves[0].points);
        let error = |mbit: u64| {
            let found = prediction.seconds_at(BitsPerSecond::from_mbit(mbit)).unwrap();
            (found / program.seconds(16, mbit) - 1.0).abs()
        };
        Scaled::GRID.map(error).to_vec()
    }

    // Goal: where four numbers of nodes say what the next one takes, it is known after a quarter fewer runs, within what
    // is wanted. Method: 12 profiles with 1 % of noise.
    #[test]
    fn a_further_number_of_nodes_takes_fewer_runs_and_is_known_as_well() {
        let program = Scaled { noise: 0.01, ..Scaled::EXACT };
        let (mut guided, mut alone, mut off) = (0, 0, Vec::new());
        for seed in 0..12 {
            let known = profile(&program, &[1, 2, 4, 8], &mut Lcg(100 + seed));
            let found = measured(&program, &others(&known), seed);
            let none = profile(&program, &[], &mut Lcg(seed));
            guided += found.run_count();
            alone += measured(&program, &others(&none), seed).run_count();
            off.extend(errors(&program, &found));
            let said = uncertainty(&grid(), &found.curves[0], &others(&known));
            assert!(said <= 0.05 || found.run_count() == Wanted::of(&grid(), SAMPLES).runs);
        }
        off.sort_by(f64::total_cmp);
        assert!(4 * guided <= 3 * alone, "{guided} runs, {alone} alone");
        assert!(off[off.len() * 9 / 10] <= 0.05, "{off:?}");
    }

    // Goal: who does otherwise on this number of nodes, or has too few others, is measured as if nothing was known.
    #[test]
    fn without_a_model_all_is_as_alone() {
        let noise = Scaled { noise: 0.02, ..Scaled::EXACT };
        let changes = Scaled { factor: |nodes| if nodes == 16 { 0.4 } else { 1.0 }, ..noise };
        for (program, numbers) in [(changes, &[1, 2, 4, 8][..]), (noise, &[1, 4][..])] {
            let known = profile(&program, numbers, &mut Lcg(7));
            let none = profile(&program, &[], &mut Lcg(7));
            let with = measured(&program, &others(&known), 1);
            assert_eq!(with.curves, measured(&program, &others(&none), 1).curves);
            let curve = &with.curves[0];
            let said = uncertainty(&grid(), curve, &others(&known));
            assert_eq!(said.to_bits(), refine::uncertainty(&grid(), curve).to_bits());
        }
    }

    #[test]
    fn other_settings_and_the_curve_itself_are_no_others() {
        let mut profile = profile(&Scaled::EXACT, &[1, 2, 4, 16], &mut Lcg(1));
        let other: Parameters = [("size".parse().unwrap(), "1".to_string())].into_iter().collect();
        profile.record(&other, 8, BitsPerSecond::from_mbit(4), Nanos::from_millis(1));
        let nodes: Vec<_> = others(&profile).curves.iter().map(|curve| curve.nodes).collect();
        assert_eq!(nodes, [1, 2, 4]);
    }
}
