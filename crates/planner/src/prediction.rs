//! How times follow from the runs of a curve, and how far what follows may be off.
//!
//! Two ways: the model (`planner::phases`), and the measured medians made monotone with lines in
//! 1 / bandwidth between them. The model needs fewer runs, since each tells something about all
//! bandwidths; it stands unless the medians lie farther from it than runs at one bandwidth lie from
//! each other (the F test for lack of fit). Where nothing was run twice nothing says what is chance,
//! and the medians stand.
//!
//! How far it may be off comes from leaving runs out (jackknife): what the other runs say of a run
//! is as far from it as from one that is still to come; and how much single runs matter tells how
//! much the times themselves may be off.

use crate::curve::{FittedPoint, monotone::non_increasing, time_between};
use crate::phases::{Phases, inverse};
use crate::promise::Deviations;
use keeptime_model::profile::Point;
use keeptime_model::units::{BitsPerSecond, Nanos};

/// Runs are left out in so many turns at the most: one in each, as long as there are no more.
pub(crate) const TURNS_MAX: usize = 40;

/// The model is rejected if medians scatter around it by more than so many times the variance that runs
/// at one bandwidth have: what a right model exceeds in one case of a hundred, by the number of
/// repetitions, for four bandwidths more than terms (F(4, 1), F(4, 2), ... at 99 %); where there are
/// more repetitions, the last one. A right model is worth more than the chance of a wrong one: where
/// that is off by more than chance, further runs soon tell.
const LACK_OF_FIT: [f64; 10] = [5625.0, 99.2, 28.7, 16.0, 11.4, 9.15, 7.85, 7.01, 6.42, 5.99];

/// Squared; what is nearer to the model than this is on it.
const ROUNDING: f64 = 1e-14;

/// How times follow from runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The model: computing, and volumes over bandwidth with saturation.
    Model,
    /// Measured medians, and lines in 1 / bandwidth between neighbours.
    Interpolation,
}

/// Times that follow from runs, and what would follow from some of these.
#[derive(Debug, Clone)]
pub(crate) struct Prediction {
    whole: Fit,
    turns: Vec<Turn>,
}

/// Some runs, and the fit to all others.
#[derive(Debug, Clone)]
struct Turn {
    left_out: Vec<(BitsPerSecond, Nanos)>,
    rest: Fit,
}

#[derive(Debug, Clone)]
struct Fit {
    points: Vec<FittedPoint>,
    model: Option<Phases>,
}

impl Prediction {
    /// By the model, unless `points` speak against it. O(runs) fits, at most [`TURNS_MAX`].
    pub(crate) fn new(points: &[Point]) -> Self {
        let model = Phases::fit(points);
        let expected = |point: &Point| model.seconds_at(point.bandwidth_bits_per_second);
        let method = match lacks_fit(points.iter().map(|p| (p, expected(p))), model.terms()) {
            true => Method::Interpolation,
            false => Method::Model,
        };
        Self::by(method, points)
    }

    /// By a method that was chosen.
    pub(crate) fn by(method: Method, points: &[Point]) -> Self {
        let runs = points.iter().map(|p| p.samples_nanos.len()).sum::<usize>();
        let turns = (0..TURNS_MAX.min(runs)).filter_map(|turn| {
            let (left_out, rest) = split(points, |run| run % TURNS_MAX == turn);
            (!rest.is_empty()).then(|| Turn { left_out, rest: Fit::new(method, &rest) })
        });
        Self { whole: Fit::new(method, points), turns: turns.collect() }
    }

    /// How the times were made.
    pub(crate) fn method(&self) -> Method {
        match self.whole.model {
            Some(_) => Method::Model,
            None => Method::Interpolation,
        }
    }

    /// The measured bandwidths, with times that never rise.
    pub(crate) fn points(&self) -> &[FittedPoint] {
        &self.whole.points
    }

    /// The time at `bandwidth`; nothing where the runs say nothing about it.
    pub(crate) fn seconds_at(&self, bandwidth: BitsPerSecond) -> Option<f64> {
        self.whole.seconds_at(bandwidth)
    }

    /// How far runs are from what the others say, relative to that. Without the model others say
    /// something only where they have the same bandwidth: what lines between neighbours are off by is
    /// no deviation of runs.
    pub(crate) fn deviations(&self) -> Deviations {
        let off = |turn: &Turn, (bandwidth, time): &(BitsPerSecond, Nanos)| {
            let is_known =
                turn.rest.says_more_than_itself() || turn.rest.point_at(*bandwidth).is_some();
            let expected = turn.rest.seconds_at(*bandwidth).filter(|_| is_known)?;
            Some(time.as_secs_f64() / expected - 1.0)
        };
        let of_turn =
            |turn: &Turn| turn.left_out.iter().filter_map(|run| off(turn, run)).collect::<Vec<_>>();
        Deviations::new(self.turns.iter().flat_map(of_turn))
    }

    /// By how much the time at `bandwidth` may be off, as a part of it: two standard errors by the
    /// jackknife (Tukey, 1958), which is about what holds in 19 of 20 cases, and the room that the
    /// shape of the curve leaves between measured points; no less than a median is away from the model,
    /// since one of both is wrong. Infinite where nothing is known: beyond the
    /// measured points, or from a single run.
    pub(crate) fn uncertainty_at(&self, bandwidth: BitsPerSecond) -> f64 {
        let Some(time) = self.whole.seconds_at(bandwidth) else { return f64::INFINITY };
        let without = self.turns.iter().map(|turn| turn.rest.seconds_at(bandwidth));
        let said = jackknife(time, without) + self.whole.room_at(bandwidth) / time;
        said.max(self.whole.misfit_at(bandwidth))
    }
}

impl Fit {
    /// The model's times where they are asked for, and are times; otherwise those between neighbours.
    fn new(method: Method, points: &[Point]) -> Self {
        let fitted = |(point, time_nanos): (&Point, Nanos)| FittedPoint {
            bandwidth_bits_per_second: point.bandwidth_bits_per_second,
            time_nanos,
            median_nanos: point.median(),
            samples: count(point),
        };
        let all = |times: Vec<Nanos>| points.iter().zip(times).map(fitted).collect();
        if method == Method::Model {
            let model = Phases::fit(points);
            let seconds = points.iter().map(|p| model.seconds_at(p.bandwidth_bits_per_second));
            if let Some(times) = seconds.map(Nanos::from_secs_f64).collect() {
                return Self { points: all(times), model: Some(model) };
            }
        }
        let medians: Vec<_> = points.iter().map(|p| (p.median(), count(p))).collect();
        Self { points: all(non_increasing(&medians)), model: None }
    }

    /// Whether it has a model that its runs could have contradicted.
    fn says_more_than_itself(&self) -> bool {
        let runs = self.points.iter().map(|point| point.samples as usize).sum::<usize>();
        self.model.as_ref().is_some_and(|model| model.terms() < runs)
    }

    fn point_at(&self, bandwidth: BitsPerSecond) -> Option<&FittedPoint> {
        let key = |p: &FittedPoint| p.bandwidth_bits_per_second;
        let at = self.points.binary_search_by_key(&bandwidth, key).ok()?;
        Some(&self.points[at])
    }

    /// How far what was measured at `bandwidth` is from its time, as a part of that.
    fn misfit_at(&self, bandwidth: BitsPerSecond) -> f64 {
        let Some(point) = self.point_at(bandwidth) else { return 0.0 };
        let FittedPoint { median_nanos, time_nanos, .. } = point;
        (median_nanos.as_secs_f64() / time_nanos.as_secs_f64() - 1.0).abs()
    }

    /// By how many seconds the time at `bandwidth` can differ from the line between its neighbours, if
    /// they are right. Without the model it is between theirs. The model is convex in 1 / bandwidth:
    /// it is not above that line, and not below the lines through the points beyond; where there is
    /// none, times grow no faster than 1 / bandwidth, and do not fall any more.
    fn room_at(&self, bandwidth: BitsPerSecond) -> f64 {
        let after = self.points.partition_point(|p| p.bandwidth_bits_per_second < bandwidth);
        let at = |index: usize| self.points.get(index).map(position);
        let before = |count: usize| after.checked_sub(count).and_then(at);
        let (Some(slow), Some(fast)) = (before(1), at(after)) else { return 0.0 };
        if self.point_at(bandwidth).is_some() {
            return 0.0;
        }
        let x = inverse(bandwidth);
        let line = along(slow, fast, x);
        if self.model.is_none() {
            return (slow.1 - line).max(line - fast.1);
        }
        let steepest = along(before(2).unwrap_or((0.0, 0.0)), slow, x);
        let flattest = at(after + 1).map_or(fast.1, |beyond| along(beyond, fast, x));
        (line - steepest.max(flattest).max(fast.1)).max(0.0)
    }

    fn seconds_at(&self, bandwidth: BitsPerSecond) -> Option<f64> {
        if let Some(model) = &self.model {
            return Some(model.seconds_at(bandwidth));
        }
        let at = self.points.partition_point(|p| p.bandwidth_bits_per_second < bandwidth);
        let right = self.points.get(at)?;
        if right.bandwidth_bits_per_second == bandwidth {
            return Some(right.time_nanos.as_secs_f64());
        }
        let left = self.points.get(at.checked_sub(1)?)?;
        Some(time_between(left, right, bandwidth).as_secs_f64())
    }
}

/// Two standard errors of `time`, as a part of it, by what follows `without` some of the runs each; infinite where
/// there is one such part, or nothing follows without it.
pub(crate) fn jackknife(time: f64, without: impl ExactSizeIterator<Item = Option<f64>>) -> f64 {
    let turns = without.len() as f64;
    if turns < 2.0 {
        return f64::INFINITY;
    }
    let squared = |without: Option<f64>| match without {
        Some(without) => ((without - time) / time).powi(2),
        None => f64::INFINITY,
    };
    let variance = without.map(squared).sum::<f64>() * (turns - 1.0) / turns;
    2.0 * variance.sqrt()
}

/// Whether the medians of points are farther from what a model of so many terms expects, in seconds, than chance
/// explains.
pub(crate) fn lacks_fit<'a>(
    points: impl IntoIterator<Item = (&'a Point, f64)>,
    terms: usize,
) -> bool {
    let (mut chance, mut repeats) = (0.0, 0);
    let (mut lack, mut medians) = (0.0, 0);
    for (point, expected) in points {
        let median = point.median().as_secs_f64();
        let part = |time: f64| (time / median - 1.0).powi(2);
        chance += point.samples_nanos.iter().map(|time| part(time.as_secs_f64())).sum::<f64>();
        repeats += point.samples_nanos.len().saturating_sub(1);
        lack += part(expected) * f64::from(count(point));
        medians += 1;
    }
    let free = medians.max(terms + 1) - terms;
    let explained = match repeats {
        0 => 0.0,
        some => LACK_OF_FIT[some.min(LACK_OF_FIT.len()) - 1] * chance / some as f64,
    };
    lack / free as f64 > explained + ROUNDING
}

/// The runs whose number, counted through all points, is asked for; and all points without them.
pub(crate) fn split(
    points: &[Point],
    is_asked: impl Fn(usize) -> bool,
) -> (Vec<(BitsPerSecond, Nanos)>, Vec<Point>) {
    let (mut asked, mut rest, mut number) = (Vec::new(), Vec::new(), 0);
    for point in points {
        let mut samples_nanos = Vec::new();
        for time in &point.samples_nanos {
            match is_asked(number) {
                true => asked.push((point.bandwidth_bits_per_second, *time)),
                false => samples_nanos.push(*time),
            }
            number += 1;
        }
        if !samples_nanos.is_empty() {
            rest.push(Point { samples_nanos, ..*point });
        }
    }
    (asked, rest)
}

/// Of a point, in 1 / bandwidth and seconds.
fn position(point: &FittedPoint) -> (f64, f64) {
    (inverse(point.bandwidth_bits_per_second), point.time_nanos.as_secs_f64())
}

/// The line through two positions, at `x`.
fn along(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
    b.1 + (a.1 - b.1) * (x - b.0) / (a.0 - b.0)
}

fn count(point: &Point) -> u32 {
    u32::try_from(point.samples_nanos.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lcg;
    use keeptime_model::units::Share;

    const GRID: [u64; 8] = [4, 6, 9, 13, 18, 25, 35, 50];

    /// Computing, a volume with a saturation, and from 13 Mbit/s on less by `step`, with noise of as
    /// much either way.
    struct Program {
        step: f64,
        noise: f64,
    }

    impl Program {
        fn truth(&self, mbit: u64) -> f64 {
            let smooth = 0.3 + 4.0 / (mbit as f64).min(25.0);
            if mbit < 13 { smooth } else { smooth * (1.0 - self.step) }
        }

        fn points(&self, seed: u64, samples: usize) -> Vec<Point> {
            let mut random = Lcg(seed);
            let mut run = |mbit| {
                let chance = random.below(2_000_001) as f64 / 1e6 - 1.0;
                Nanos::from_secs_f64(self.truth(mbit) * (1.0 + self.noise * chance)).unwrap()
            };
            let point = |mbit: &u64| Point {
                bandwidth_bits_per_second: BitsPerSecond::from_mbit(*mbit),
                samples_nanos: (0..samples).map(|_| run(*mbit)).collect(),
            };
            GRID.iter().map(point).collect()
        }

        /// How many of 200 profiles the model stands for.
        fn models(&self, samples: usize) -> usize {
            let method = |seed| Prediction::new(&self.points(seed, samples)).method();
            (0..200).filter(|seed| method(*seed) == Method::Model).count()
        }
    }

    #[test]
    fn the_model_stands_unless_repetitions_speak_against_it() {
        assert!(Program { step: 0.0, noise: 0.05 }.models(2) >= 190);
        assert!(Program { step: 0.3, noise: 0.05 }.models(2) <= 10);
        // Nothing says that it is chance; and nothing that has to be chance.
        assert_eq!(Program { step: 0.0, noise: 0.05 }.models(1), 0);
        assert_eq!(Program { step: 0.0, noise: 0.0 }.models(1), 200);
    }

    // Goal: times are no farther off than they are said to be, in nine of ten cases where the model is
    // right and in three of four beside a step, and are said to be less far off with more runs. Method:
    // 200 profiles, every bandwidth of the grid.
    #[test]
    fn times_are_as_near_to_the_truth_as_they_are_said_to_be() {
        for (step, noise, least) in [(0.0, 0.1, 0.85), (0.3, 0.05, 0.75)] {
            let program = Program { step, noise };
            let mut said = Vec::new();
            for samples in [2, 8] {
                let (mut held, mut sum) = (0, 0.0);
                for seed in 0..200 {
                    let prediction = Prediction::new(&program.points(seed, samples));
                    for mbit in GRID {
                        let bandwidth = BitsPerSecond::from_mbit(mbit);
                        let error = prediction.seconds_at(bandwidth).unwrap() / program.truth(mbit);
                        let off = prediction.uncertainty_at(bandwidth);
                        held += u32::from((error - 1.0).abs() <= off);
                        sum += off;
                    }
                }
                let share = f64::from(held) / (200.0 * GRID.len() as f64);
                assert!(share >= least, "{samples} samples: {share}");
                said.push(sum);
            }
            assert!(said[1] < 0.7 * said[0], "{said:?}");
        }
    }

    #[test]
    fn nothing_is_known_from_one_run_or_beyond_the_measured_medians() {
        let points = Program { step: 0.3, noise: 0.05 }.points(1, 3);
        let medians = Prediction::by(Method::Interpolation, &points);
        let at = |mbit| medians.uncertainty_at(BitsPerSecond::from_mbit(mbit));
        assert!(at(3).is_infinite() && at(51).is_infinite() && at(50).is_finite());
        let one = Prediction::new(&points[..1]);
        assert!(one.uncertainty_at(BitsPerSecond::from_mbit(4)).is_finite());
        let run =
            Point { samples_nanos: points[0].samples_nanos[..1].to_vec(), ..points[0].clone() };
        assert!(Prediction::new(&[run]).uncertainty_at(BitsPerSecond::from_mbit(4)).is_infinite());
    }

    #[test]
    fn a_bend_between_measured_points_leaves_room_and_a_line_does_not() {
        let at = |mbit: u64, seconds: f64| Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(mbit),
            samples_nanos: vec![Nanos::from_secs_f64(seconds).unwrap(); 2],
        };
        let line: Vec<_> = [4, 8, 16, 48].map(|b| at(b, 0.5 + 4.0 / b as f64)).into();
        let bent: Vec<_> = [4, 8, 16, 48].map(|b| at(b, 0.5 + 4.0 / (b as f64).min(12.0))).into();
        let room = |points: &[Point], mbit| {
            Prediction::new(points).uncertainty_at(BitsPerSecond::from_mbit(mbit))
        };
        assert!(room(&line, 12) < 1e-6);
        // As low as 0.5 + 4 / 12, where the line between its neighbours is at 0.888.
        assert!((room(&bent, 12) - 0.0625).abs() < 1e-3, "{}", room(&bent, 12));
    }

    #[test]
    fn beside_the_first_and_the_last_interval_the_origin_and_the_level_bound_the_room() {
        let at = |mbit: u64, seconds: f64| Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(mbit),
            samples_nanos: vec![Nanos::from_secs_f64(seconds).unwrap(); 2],
        };
        let points = [at(4, 1.9), at(8, 1.0), at(16, 0.75), at(48, 0.65)];
        let room = |method, mbit| Fit::new(method, &points).room_at(BitsPerSecond::from_mbit(mbit));
        // Between 4 and 8 Mbit/s times are above those of the line through the next two, and of the one to the origin.
        let expected = [
            (Method::Interpolation, 3, 0.0),
            (Method::Interpolation, 4, 0.0),
            (Method::Interpolation, 6, 0.6),
            (Method::Interpolation, 5, 0.54),
            (Method::Interpolation, 49, 0.0),
        ];
        for (method, mbit, expected) in expected {
            let room = room(method, mbit);
            assert!((room - expected).abs() < 1e-9, "{method:?} {mbit}: {room}");
        }
        // The model's own times are the ends of its lines: here those that were measured.
        let model =
            Fit { model: Some(Phases::fit(&points)), ..Fit::new(Method::Interpolation, &points) };
        let expected = [
            (3, 0.0),
            (4, 0.0),
            // 1.3 on the line; 1.9 * 4 / 6 through the origin, and 1 + 4 / 24 through the next two.
            (6, 1.3 - 1.9 * 4.0 / 6.0),
            // 1 - 3.2 / 48 on the line, with 4 Mbit/s and 8 in front and 16 and 48 behind.
            (12, (0.75 + 4.0 / 48.0) - (0.75 + 2.4 / 48.0)),
            (24, (0.65 + 2.4 / 48.0) - (0.75 - 4.0 / 48.0)),
            // No faster than at 48 Mbit/s.
            (40, 2.4 * (1.0 / 40.0 - 1.0 / 48.0)),
            (49, 0.0),
        ];
        for (mbit, expected) in expected {
            let room = model.room_at(BitsPerSecond::from_mbit(mbit));
            assert!((room - expected).abs() < 1e-9, "{mbit}: {room} {expected}");
        }
    }

    // Method: of a mean the jackknife tells the standard error that textbooks do.
    #[test]
    fn of_a_mean_the_jackknife_tells_two_standard_errors() {
        let times = [2.0, 2.5, 3.0, 3.25, 4.0, 5.25];
        let (count, sum) = (times.len() as f64, times.iter().sum::<f64>());
        let mean = sum / count;
        let without = times.iter().map(|time| Some((sum - time) / (count - 1.0)));
        let squares = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>();
        let error = (squares / (count - 1.0) / count).sqrt();
        assert!((jackknife(mean, without) - 2.0 * error / mean).abs() < 1e-12);
        assert!(jackknife(1.0, [Some(1.0)].into_iter()).is_infinite());
        assert!(jackknife(1.0, [Some(1.0), None].into_iter()).is_infinite());
        assert!(jackknife(1.0, [Some(1.0), Some(1.0)].into_iter()) < 1e-12);
    }

    // Goal: a model is rejected just where medians are farther from it than the F test allows. Method: three runs at each
    // bandwidth, the median and one of 10 % on either side; medians that are off by so many times as much.
    #[test]
    fn medians_may_be_as_far_off_as_the_test_allows() {
        let lacks = |medians: usize, terms, off: f64| {
            let run = |factor| Nanos::from_secs_f64(2.0 * factor).unwrap();
            let point = Point {
                bandwidth_bits_per_second: BitsPerSecond::from_mbit(1),
                samples_nanos: [0.9, 1.0, 1.1].map(run).to_vec(),
            };
            lacks_fit(vec![(&point, 2.0 * (1.0 + 0.1 * off)); medians], terms)
        };
        // Three runs weigh on each median, and two of them tell the variance.
        let cases = [
            (2, 1, 4, 16.0),
            (3, 1, 6, 9.15),
            (5, 1, 10, 5.99),
            (10, 4, 20, 5.99),
            (3, 5, 6, 9.15),
        ];
        for (medians, terms, repeats, ratio) in cases {
            let free = medians.max(terms + 1) - terms;
            assert_eq!(repeats, 2 * medians);
            let bound = (ratio * free as f64 / (3 * medians) as f64).sqrt();
            assert!(!lacks(medians, terms, 0.999 * bound), "{medians} {terms}");
            assert!(lacks(medians, terms, 1.001 * bound), "{medians} {terms}");
            assert!(lacks(medians, terms, -1.001 * bound), "{medians} {terms}");
        }
    }

    // Goal: a run is compared with what others say, where they say anything. Method: two runs, one, and two.
    #[test]
    fn runs_are_as_far_off_as_they_are_from_the_others() {
        let at = |mbit: u64, times: &[f64]| Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(mbit),
            samples_nanos: times.iter().map(|t| Nanos::from_secs_f64(*t).unwrap()).collect(),
        };
        let points = [at(4, &[1.0, 1.2]), at(8, &[0.7]), at(16, &[0.5, 0.5])];
        let medians = Prediction::by(Method::Interpolation, &points).deviations();
        assert_eq!(medians.count(), 4, "between medians nothing is expected of a run");
        let all = medians.interval(Share::ONE);
        assert_eq!((all.least_ppm, all.greatest_ppm), (-166_666, 200_000));
        assert_eq!(Prediction::by(Method::Model, &points).deviations().count(), 5);
        let alone = [at(4, &[1.0]), at(8, &[0.7])];
        let none = Prediction::by(Method::Model, &alone).deviations();
        assert_eq!(none.count(), 0, "from one run a model is as that was");
    }

    #[test]
    fn a_run_is_left_out_in_one_turn_and_all_others_stay() {
        let points = Program { step: 0.0, noise: 0.1 }.points(1, 6);
        let all: Vec<_> = points.iter().flat_map(|p| p.samples_nanos.clone()).collect();
        let (asked, rest) = split(&points, |run| run % TURNS_MAX == 3);
        let asked: Vec<_> = asked.into_iter().map(|(_, time)| time).collect();
        assert_eq!(asked, [all[3], all[43]], "48 runs: some turns have two");
        assert_eq!(rest.iter().map(|point| point.samples_nanos.len()).sum::<usize>(), 46);
        let (asked, rest) = split(&points[..1], |_| true);
        assert_eq!((asked.len(), rest.len()), (6, 0));
        assert_eq!(Prediction::new(&points).turns.len(), TURNS_MAX);
    }
}
