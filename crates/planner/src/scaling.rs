//! How times go with the number of nodes: one model for all curves of a setting.
//!
//! `constant + computing / N + synchronisation * log2 N + sum of volume(N) / min(bandwidth, saturation)`
//!
//! What every rank does, whatever their number, what they part among them, and what waiting for all of them takes where
//! they meet in a tree: on one number of nodes nothing tells these apart (`planner::phases` has them as one term), on
//! three or more their shapes do. How the volume of a flow goes with N depends on who talks to whom, and on whether
//! nodes are added to the same problem or bring their own part of it: each pattern has a few such laws, and non-negative
//! least squares chooses among them, with a saturation at each measured bandwidth as on one number of nodes.
//!
//! The runs may reject it: where medians are farther from it than chance explains, as on one number of nodes; and where
//! some number of nodes between others is not what the others say. It never goes beyond the measured numbers of nodes
//! and bandwidths, and nobody is promised anything by it: it chooses which runs are made ([`crate::guided`]), and tells
//! what to expect where nothing was measured. How far that may be off is what runs at numbers that are left out are off.

use crate::phases::inverse;
use crate::prediction::{TURNS_MAX, jackknife, lacks_fit, split};
use crate::promise::{Deviations, Interval};
use crate::robust::{self, Row, SHORTEST, middle, product};
use keeptime_model::pattern::Pattern;
use keeptime_model::profile::{Curve, Point};
use keeptime_model::units::{BitsPerSecond, Nanos, Share};

/// On fewer numbers of nodes nothing is left to contradict three terms.
pub const NUMBERS_MIN: usize = 3;

/// Who is farther off than this at a number that was left out, at half of its bandwidths, does not help to choose runs.
const LEFT_OUT_MOST: f64 = 0.25;

/// A model for all numbers of nodes, and what says how far it may be off.
#[derive(Debug, Clone)]
pub struct Scaling {
    whole: Model,
    /// Without some of the runs each.
    turns: Vec<Model>,
    /// Measured, ascending.
    numbers: Vec<u32>,
    /// Least and greatest measured between nodes; nothing if all was measured on one.
    bandwidths: Option<[BitsPerSecond; 2]>,
    /// Of single runs from what the others say.
    single: Deviations,
    /// Of runs from what other numbers of nodes say.
    left_out: Deviations,
}

/// Why there is no such model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoModel {
    /// Fewer than [`NUMBERS_MIN`] numbers of nodes were measured.
    TooFew,
    /// The runs contradict it.
    Rejected,
}

/// The terms that no bandwidth changes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fixed {
    /// On any number of nodes.
    pub constant: f64,
    /// On one node; on N of them the N-th part.
    pub computing: f64,
    /// For each doubling of the nodes.
    pub synchronisation: f64,
}

/// Runs on one number of nodes.
#[derive(Debug, Clone)]
struct Runs {
    nodes: u32,
    points: Vec<Point>,
}

/// A run that was left out.
struct Run {
    nodes: u32,
    bandwidth: BitsPerSecond,
    time: Nanos,
}

#[derive(Debug, Clone)]
struct Model {
    growths: &'static [Growth],
    /// Saturations, in seconds a megabit.
    knots: Vec<f64>,
    /// Three fixed terms, then a volume for each growth and knot.
    coefficients: Vec<f64>,
}

/// How what a rank sends, one flow after the other, goes with the number of nodes. One node sends nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// It stays.
    Same,
    /// The problem is parted among the nodes.
    Parted,
    /// It is parted, and each part once more among those who receive it.
    PartedTwice,
    /// The same in each of log2 N exchanges.
    Rounds,
    /// The N-th part in each of them.
    PartedRounds,
    /// Half of the one before in each of them, as where pictures are merged.
    Halves,
}

impl Scaling {
    /// Fits `curves` of one setting, each on another number of nodes, of a program with this `pattern`. O(runs) fits,
    /// 40 and one for each number of nodes at most.
    ///
    /// # Errors
    /// If there are too few numbers of nodes, or the runs reject the model.
    pub fn fit(pattern: &Pattern, curves: &[&Curve]) -> Result<Self, NoModel> {
        let all = runs(curves);
        if all.len() < NUMBERS_MIN {
            return Err(NoModel::TooFew);
        }
        let whole = Model::fit(pattern, &all);
        if whole.lacks_fit(&all) {
            return Err(NoModel::Rejected);
        }
        let left_out = leave_numbers_out(pattern, &all).ok_or(NoModel::Rejected)?;
        let (turns, single) = leave_runs_out(pattern, &all);
        let numbers = all.iter().map(|runs| runs.nodes).collect();
        let bandwidths = bandwidths(&all);
        let bandwidths = bandwidths.first().zip(bandwidths.last()).map(|(a, b)| [*a, *b]);
        Ok(Self { whole, turns, numbers, bandwidths, single, left_out })
    }

    /// What half of the runs on so many nodes are expected to take; nothing beyond the numbers of nodes and the
    /// bandwidths that were measured.
    pub fn expected_at(&self, nodes: u32, bandwidth: BitsPerSecond) -> Option<Nanos> {
        let [least, greatest] = self.bandwidths?;
        let (fewest, most) = (*self.numbers.first()?, *self.numbers.last()?);
        let is_inside = (fewest..=most).contains(&nodes) && (least..=greatest).contains(&bandwidth);
        is_inside.then(|| Nanos::from_secs_f64(self.seconds_at(nodes, bandwidth))).flatten()
    }

    /// Between what `share` of single runs lie, relative to what is expected. On a number of nodes that was not measured
    /// no nearer than where it was, and no nearer than numbers that were left out.
    pub fn interval(&self, nodes: u32, share: Share) -> Interval {
        let single = self.single.interval(share);
        if self.numbers.contains(&nodes) {
            return single;
        }
        let left_out = self.left_out.interval(share);
        Interval {
            least_ppm: single.least_ppm.min(left_out.least_ppm),
            greatest_ppm: single.greatest_ppm.max(left_out.greatest_ppm),
            deviations: left_out.deviations,
        }
    }

    /// What no bandwidth changes.
    pub fn fixed(&self) -> Fixed {
        let at = |index: usize| self.whole.coefficients.get(index).copied().unwrap_or(0.0);
        Fixed { constant: at(0), computing: at(1), synchronisation: at(2) }
    }

    /// What is expected, inside of what was measured and beyond.
    pub(crate) fn seconds_at(&self, nodes: u32, bandwidth: BitsPerSecond) -> f64 {
        self.whole.seconds_at(nodes, bandwidth)
    }

    /// By how much that may be off, as a part of it: two standard errors, by what follows without some of the runs.
    pub(crate) fn uncertainty_at(&self, nodes: u32, bandwidth: BitsPerSecond) -> f64 {
        let without = self.turns.iter().map(|model| Some(model.seconds_at(nodes, bandwidth)));
        jackknife(self.seconds_at(nodes, bandwidth), without)
    }
}

impl Model {
    fn fit(pattern: &Pattern, all: &[Runs]) -> Self {
        let growths = Growth::of_pattern(pattern);
        // What is saturated at the least bandwidth already is no volume.
        let knots: Vec<_> = bandwidths(all).iter().skip(1).map(|b| inverse(*b)).collect();
        let mut rows = Vec::new();
        for Runs { nodes, points } in all {
            rows.extend(points.iter().map(|point| {
                let bandwidth = point.bandwidth_bits_per_second;
                Row::new(point, columns(growths, &knots, *nodes, bandwidth))
            }));
        }
        let coefficients = robust::fit(FIXED + growths.len() * knots.len(), rows);
        Self { growths, knots, coefficients }
    }

    fn seconds_at(&self, nodes: u32, bandwidth: BitsPerSecond) -> f64 {
        product(&columns(self.growths, &self.knots, nodes, bandwidth), &self.coefficients)
    }

    /// How far a run is from what is expected, as a part of that.
    fn off(&self, run: &Run) -> f64 {
        run.time.as_secs_f64() / self.seconds_at(run.nodes, run.bandwidth).max(SHORTEST) - 1.0
    }

    fn lacks_fit(&self, all: &[Runs]) -> bool {
        let expected = all.iter().flat_map(|Runs { nodes, points }| {
            points.iter().map(move |p| (p, self.seconds_at(*nodes, p.bandwidth_bits_per_second)))
        });
        lacks_fit(expected, self.coefficients.iter().filter(|term| **term > 0.0).count())
    }
}

impl Growth {
    /// What each pattern's volumes may be. Who talks to a fixed number of others sends the same or a part; who talks to
    /// all the others, to each a part of that as well; who exchanges with one after the other does so log2 N times.
    fn of_pattern(pattern: &Pattern) -> &'static [Self] {
        match pattern {
            Pattern::Hypercube => &[Self::Rounds, Self::PartedRounds, Self::Halves],
            Pattern::AllToAll => &[Self::Same, Self::Parted, Self::PartedTwice],
            _ => &[Self::Same, Self::Parted],
        }
    }

    fn at(self, nodes: f64) -> f64 {
        if nodes <= 1.0 {
            return 0.0;
        }
        match self {
            Self::Same => 1.0,
            Self::Parted => 1.0 / nodes,
            Self::PartedTwice => 1.0 / (nodes * nodes),
            Self::Rounds => nodes.log2(),
            Self::PartedRounds => nodes.log2() / nodes,
            Self::Halves => 1.0 - 1.0 / nodes,
        }
    }
}

impl Runs {
    fn count(&self) -> usize {
        self.points.iter().map(|point| point.samples_nanos.len()).sum()
    }
}

/// Those that were measured, by ascending numbers of nodes.
fn runs(curves: &[&Curve]) -> Vec<Runs> {
    let measured = curves.iter().filter(|curve| !curve.points.is_empty());
    let of = |curve: &&Curve| Runs { nodes: curve.nodes, points: curve.points.clone() };
    let mut all: Vec<_> = measured.map(of).collect();
    all.sort_by_key(|runs| runs.nodes);
    all
}

/// At which anything was exchanged, ascending.
fn bandwidths(all: &[Runs]) -> Vec<BitsPerSecond> {
    let points = all.iter().filter(|runs| runs.nodes > 1).flat_map(|runs| &runs.points);
    let mut found: Vec<_> = points.map(|point| point.bandwidth_bits_per_second).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// How much a run has of each term.
fn columns(growths: &[Growth], knots: &[f64], nodes: u32, bandwidth: BitsPerSecond) -> Vec<f64> {
    let (count, at) = (f64::from(nodes.max(1)), inverse(bandwidth));
    let fixed: [f64; FIXED] = [1.0, 1.0 / count, count.log2()];
    let moving = growths.iter().flat_map(|growth| {
        let volume = growth.at(count);
        knots.iter().map(move |knot| volume * at.max(*knot))
    });
    fixed.into_iter().chain(moving).collect()
}

/// The models without some runs each, and how far these are from what the others say.
fn leave_runs_out(pattern: &Pattern, all: &[Runs]) -> (Vec<Model>, Deviations) {
    let count = all.iter().map(Runs::count).sum::<usize>();
    let (mut models, mut offs) = (Vec::new(), Vec::new());
    for turn in 0..TURNS_MAX.min(count) {
        let (left_out, rest) = split_all(all, turn);
        let model = Model::fit(pattern, &rest);
        offs.extend(left_out.iter().map(|run| model.off(run)));
        models.push(model);
    }
    (models, Deviations::new(offs))
}

/// Runs whose turn it is, counted through all numbers of nodes, and all without them.
fn split_all(all: &[Runs], turn: usize) -> (Vec<Run>, Vec<Runs>) {
    let (mut asked, mut rest, mut before) = (Vec::new(), Vec::new(), 0);
    for runs in all {
        let nodes = runs.nodes;
        let (times, points) = split(&runs.points, |run| (before + run) % TURNS_MAX == turn);
        asked.extend(times.into_iter().map(|(bandwidth, time)| Run { nodes, bandwidth, time }));
        if !points.is_empty() {
            rest.push(Runs { nodes, points });
        }
        before += runs.count();
    }
    (asked, rest)
}

/// How far runs on each number of nodes between others are from what the others say; nothing if some number is farther
/// off than is of use.
fn leave_numbers_out(pattern: &Pattern, all: &[Runs]) -> Option<Deviations> {
    let mut offs = Vec::new();
    for (index, Runs { nodes, points }) in all.iter().enumerate().take(all.len() - 1).skip(1) {
        let rest = [&all[..index], &all[index + 1..]].concat();
        let model = Model::fit(pattern, &rest);
        let off = |point: &Point, time: Nanos| {
            let bandwidth = point.bandwidth_bits_per_second;
            model.off(&Run { nodes: *nodes, bandwidth, time })
        };
        let medians = points.iter().map(|point| off(point, point.median()).abs()).collect();
        if middle(medians) > LEFT_OUT_MOST {
            return None;
        }
        for point in points {
            offs.extend(point.samples_nanos.iter().map(|time| off(point, *time)));
        }
    }
    Some(Deviations::new(offs))
}

/// Terms that no bandwidth changes.
const FIXED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Lcg, Scaled};

    const NINETY: Share = Share::from_percent(90).expect("at most 100");

    fn curves(program: &Scaled, numbers: &[u32], samples: usize, random: &mut Lcg) -> Vec<Curve> {
        numbers.iter().map(|nodes| program.curve(*nodes, samples, random)).collect()
    }

    fn fit(pattern: &Pattern, curves: &[Curve]) -> Result<Scaling, NoModel> {
        Scaling::fit(pattern, &curves.iter().collect::<Vec<_>>())
    }

    fn near(found: f64, truth: f64, part: f64) -> bool {
        (found / truth - 1.0).abs() <= part
    }

    // Goal: what a program is made of is found again. Method: five profiles with 0.1 % of noise.
    #[test]
    fn computing_a_constant_and_synchronisation_are_told_apart() {
        let program = Scaled { noise: 0.001, ..Scaled::EXACT };
        for seed in 1..6 {
            let measured = curves(&program, &[1, 2, 4, 8, 16], 2, &mut Lcg(seed));
            let fixed = fit(&Pattern::Ring, &measured).unwrap().fixed();
            assert!(near(fixed.computing, program.computing, 0.01), "{fixed:?}");
            assert!(near(fixed.synchronisation, program.synchronisation, 0.15), "{fixed:?}");
            assert!(near(fixed.constant, program.constant, 0.25), "{fixed:?}");
        }
    }

    // Goal: each pattern's own laws of volume are known, and nothing is said beyond what was measured. Method: exact
    // runs on 1, 2, 8 and 16 nodes; what they say of 4.
    #[test]
    fn what_was_not_measured_between_follows_and_nothing_beyond() {
        type Law = fn(f64) -> f64;
        let laws: [(Pattern, Law); 6] = [
            (Pattern::Ring, |_| 4.0),
            (Pattern::Ring, |nodes| 4.0 / nodes),
            (Pattern::Hypercube, |nodes| 4.0 * nodes.log2()),
            (Pattern::Hypercube, |nodes| 4.0 * nodes.log2() / nodes),
            (Pattern::Hypercube, |nodes| 4.0 - 4.0 / nodes),
            (Pattern::AllToAll, |nodes| 4.0 / (nodes * nodes)),
        ];
        for (pattern, volume) in laws {
            let program = Scaled { volume, ..Scaled::EXACT };
            let measured = curves(&program, &[1, 2, 8, 16], 2, &mut Lcg(1));
            let model = fit(&pattern, &measured).unwrap();
            let at = |nodes: u32, mbit: u64| {
                model.expected_at(nodes, BitsPerSecond::from_mbit(mbit)).map(Nanos::as_secs_f64)
            };
            for mbit in Scaled::GRID {
                let (found, truth) = (at(4, mbit).unwrap(), program.seconds(4, mbit));
                assert!(near(found, truth, 0.001), "{pattern}, {mbit}: {found}, {truth}");
            }
            assert_eq!([at(32, 9), at(4, 3), at(4, 36)], [None; 3]);
        }
    }

    #[test]
    fn two_numbers_are_too_few_and_programs_that_do_otherwise_are_rejected() {
        fn refused(factor: fn(u32) -> f64, numbers: &[u32]) -> Option<NoModel> {
            let program = Scaled { factor, noise: 0.02, ..Scaled::EXACT };
            fit(&Pattern::Ring, &curves(&program, numbers, 2, &mut Lcg(2))).err()
        }
        let all = [1, 2, 4, 8, 16];
        assert_eq!(refused(|_| 1.0, &[2, 4]), Some(NoModel::TooFew));
        assert_eq!(refused(|_| 1.0, &[2, 4, 8]), None);
        assert_eq!(refused(|_| 1.0, &all), None);
        // From eight nodes on all of it fits into caches; four nodes have slow links.
        let cached = refused(|nodes| if nodes >= 8 { 0.5 } else { 1.0 }, &all);
        assert_eq!(cached, Some(NoModel::Rejected));
        let slow = refused(|nodes| if nodes == 4 { 1.7 } else { 1.0 }, &all);
        assert_eq!(slow, Some(NoModel::Rejected));
        // No number of nodes is far off, and all that were measured are by more than chance.
        let uneven = refused(|nodes| if nodes == 4 { 1.2 } else { 1.0 }, &all);
        assert_eq!(uneven, Some(NoModel::Rejected));
    }

    // Goal: a number of nodes that the others do not foresee is noticed without any repetition that would say what is
    // chance.
    #[test]
    fn a_number_of_nodes_that_others_do_not_foresee_speaks_against_it() {
        fn is_foreseen(factor: fn(u32) -> f64) -> bool {
            let program = Scaled { factor, noise: 0.02, ..Scaled::EXACT };
            let measured = curves(&program, &[1, 2, 4, 8, 16], 1, &mut Lcg(1));
            let measured: Vec<_> = measured.iter().collect();
            leave_numbers_out(&Pattern::Ring, &runs(&measured)).is_some()
        }
        assert!(is_foreseen(|_| 1.0));
        assert!(!is_foreseen(|nodes| if nodes == 4 { 2.0 } else { 1.0 }));
    }

    // Goal: all runs tell how far others are from them, each in one turn; of numbers of nodes, those between others.
    #[test]
    fn every_run_is_left_out_once_and_every_number_of_nodes_between_others() {
        let program = Scaled { noise: 0.02, ..Scaled::EXACT };
        let measured = curves(&program, &[1, 2, 4, 8], 3, &mut Lcg(1));
        let measured: Vec<_> = measured.iter().collect();
        let all = runs(&measured);
        let of = |runs: &Runs| runs.points.iter().flat_map(|p| p.samples_nanos.clone()).collect();
        let times: Vec<Nanos> = all.iter().flat_map(|runs| -> Vec<_> { of(runs) }).collect();
        for turn in 0..TURNS_MAX {
            let (left_out, rest) = split_all(&all, turn);
            let left_out: Vec<_> = left_out.iter().map(|run| run.time).collect();
            let asked: Vec<_> = times.iter().skip(turn).step_by(TURNS_MAX).copied().collect();
            assert_eq!(left_out, asked, "{turn}");
            let kept = rest.iter().map(Runs::count).sum::<usize>();
            assert_eq!(kept + asked.len(), times.len());
        }
        let grid = Scaled::GRID.len();
        assert_eq!(leave_numbers_out(&Pattern::Ring, &all).unwrap().count(), 2 * 3 * grid);
        // Runs on four nodes are as far off as they are from all that does not know them.
        let factor = |nodes| if nodes == 4 { 1.2 } else { 1.0 };
        let four = Scaled { factor, ..Scaled::EXACT };
        let four = curves(&four, &[1, 2, 4, 8, 16], 1, &mut Lcg(1));
        let off = leave_numbers_out(&Pattern::Ring, &runs(&four.iter().collect::<Vec<_>>()));
        assert!(off.unwrap().interval(Share::ONE).greatest_ppm >= 199_000);
        let (models, offs) = leave_runs_out(&Pattern::Ring, &all);
        assert_eq!((models.len(), offs.count()), (TURNS_MAX, times.len()));
    }

    // One node sends nothing: at which bandwidth it does so is no bandwidth of the model's.
    #[test]
    fn what_one_node_was_given_bounds_nothing() {
        let mut measured = curves(&Scaled::EXACT, &[1, 2, 4, 8], 2, &mut Lcg(1));
        measured[0].points[0].bandwidth_bits_per_second = BitsPerSecond::from_mbit(1_000);
        let model = fit(&Pattern::Ring, &measured).unwrap();
        assert!(model.expected_at(4, BitsPerSecond::from_mbit(35)).is_some());
        assert_eq!(model.expected_at(4, BitsPerSecond::from_mbit(36)), None);
    }

    /// The share of as many further runs on `asked` nodes that lie within the 90 % intervals of 100 profiles.
    fn coverage(measured: &[u32], asked: &[u32]) -> f64 {
        let program = Scaled { noise: 0.02, ..Scaled::EXACT };
        let (mut held, mut all) = (0, 0);
        for seed in 0..100 {
            let mut random = Lcg(seed);
            let model = fit(&Pattern::Ring, &curves(&program, measured, 2, &mut random)).unwrap();
            for further in curves(&program, asked, 2, &mut random) {
                let interval = model.interval(further.nodes, NINETY);
                for point in &further.points {
                    let bandwidth = point.bandwidth_bits_per_second;
                    let expected = model.expected_at(further.nodes, bandwidth).unwrap();
                    let inside = point.samples_nanos.iter();
                    held += inside.filter(|time| interval.admits(expected, **time)).count();
                    all += point.samples_nanos.len();
                }
            }
        }
        held as f64 / all as f64
    }

    // Goal: the interval of 90 % holds for nine in ten runs that it does not know; and for no fewer on a number of nodes
    // of which nothing was measured.
    #[test]
    fn nine_in_ten_unseen_runs_lie_within_the_interval() {
        let measured = coverage(&[1, 2, 4, 8, 16], &[2, 4, 8, 16]);
        assert!((0.88..=0.92).contains(&measured), "{measured}");
        let between = coverage(&[1, 2, 8, 16], &[4]);
        assert!(between >= 0.88, "{between}");
    }

    #[test]
    fn more_runs_leave_less_uncertain() {
        let program = Scaled { noise: 0.05, ..Scaled::EXACT };
        let off = |samples: usize| -> f64 {
            let measured = curves(&program, &[1, 2, 4, 8], samples, &mut Lcg(3));
            let model = fit(&Pattern::Ring, &measured).unwrap();
            let at = |mbit: u64| model.uncertainty_at(8, BitsPerSecond::from_mbit(mbit));
            Scaled::GRID.map(at).iter().sum()
        };
        assert!(off(12) < off(2), "{}, {}", off(12), off(2));
    }
}
