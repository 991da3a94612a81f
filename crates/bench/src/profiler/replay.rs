//! What a profiler would have made of runs that were recorded: which it would have asked for, what
//! follows from these, and how that agrees with all others (pure).
//!
//! The k-th run that it asks for at a bandwidth is the k-th that was recorded there, or, since there are
//! more than it may ask for, the k-th after another: so every set of recorded runs is replayed as
//! often as there are runs at a bandwidth. What was not asked for was not seen, and is what times and
//! intervals are held against.

use anyhow::{Context, Result, ensure};
use keeptime_model::application::Application;
use keeptime_model::profile::{Curve, Point, Profile};
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use keeptime_planner::curve::FittedCurve;
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::prediction::Method;
use keeptime_planner::refine::{self, Grid, Wanted};
use serde::Serialize;

/// Of the intervals and promises that are tried.
const NINETY: Share = Share::from_percent(90).expect("at most 100");

/// Recorded runs, as a profiler saw some of them.
#[derive(Debug)]
pub struct Replay {
    /// What it measured.
    pub seen: Curve,
    /// What is left.
    pub unseen: Curve,
    /// The bandwidths that it asked for, in this order.
    pub asked: Vec<BitsPerSecond>,
}

/// How far from runs that were not seen it is what follows from those that were; all curves and all
/// replays together.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Runs asked for, by curve and replay.
    pub runs: Vec<f64>,
    /// In percent of the median of the unseen runs at each bandwidth: by the model, whether the runs
    /// reject it or not.
    pub by_model: Vec<f64>,
    /// By the medians of what was seen.
    pub by_medians: Vec<f64>,
    /// By what planning goes by.
    pub chosen: Vec<f64>,
    /// 100 for each curve and replay where the model stood, else 0.
    pub models: Vec<f64>,
    /// 100 for each unseen run inside of the 90 % interval, else 0.
    pub inside: Vec<f64>,
    /// 100 for each unseen run that took no longer than is promised for 90 %, else 0.
    pub kept: Vec<f64>,
    /// The widths of the intervals, in percent of the expected time.
    pub widths: Vec<f64>,
    /// Steps of the grid between the knee found and the knee of all recorded runs.
    pub knees_off: Vec<f64>,
}

impl Replay {
    /// What the profiler would have seen of `recorded` if `first` had been the first run everywhere.
    pub fn new(grid: &Grid, recorded: &Curve, wanted: &Wanted, first: usize) -> Result<Self> {
        let turned = |point: &Point| {
            let mut point = point.clone();
            let runs = point.samples_nanos.len().max(1);
            point.samples_nanos.rotate_left(first % runs);
            point
        };
        let points = recorded.points.iter().map(turned).collect();
        let mut unseen = Curve { points, ..recorded.clone() };
        let mut seen = Curve { points: Vec::new(), ..recorded.clone() };
        let mut asked = Vec::new();
        while let Some(bandwidth) = refine::next(grid, &seen, wanted) {
            let left = unseen.points.iter_mut().find(|p| p.bandwidth_bits_per_second == bandwidth);
            let left = left.filter(|point| !point.samples_nanos.is_empty());
            let run = left.with_context(|| format!("no further run at {bandwidth}"))?;
            add(&mut seen, bandwidth, run.samples_nanos.remove(0));
            asked.push(bandwidth);
            ensure!(asked.len() < 1_000, "the profiler does not come to an end");
        }
        unseen.points.retain(|point| !point.samples_nanos.is_empty());
        Ok(Self { seen, unseen, asked })
    }
}

impl Outcome {
    /// Of all replays of `recorded`, each bandwidth of which was run `samples` times.
    pub fn of(
        application: &Application,
        recorded: &Profile,
        wanted: &Wanted,
        samples: usize,
    ) -> Result<Self> {
        let grid = Grid::new(recorded.bandwidth_grid_bits_per_second.clone())?;
        let mut outcome = Self::default();
        for first in 0..samples {
            let replay = |curve: &Curve| Replay::new(&grid, curve, wanted, first);
            let replays = recorded.curves.iter().map(replay).collect::<Result<Vec<_>>>()?;
            let curves = replays.iter().map(|replay| replay.seen.clone()).collect();
            let fitted =
                FittedProfile::new(application.clone(), &Profile { curves, ..recorded.clone() })?;
            for (replay, all) in replays.iter().zip(&recorded.curves) {
                outcome.add(&grid, replay, all, &fitted)?;
            }
        }
        Ok(outcome)
    }

    fn add(
        &mut self,
        grid: &Grid,
        replay: &Replay,
        all: &Curve,
        fitted: &FittedProfile,
    ) -> Result<()> {
        let Replay { seen, unseen, asked } = replay;
        let chosen = fitted.curve(&seen.parameters, seen.nodes).context("a curve without runs")?;
        let by = |method| FittedCurve::by(method, seen).context("a curve without runs");
        self.by_model.extend(errors(&by(Method::Model)?, unseen)?);
        self.by_medians.extend(errors(&by(Method::Interpolation)?, unseen)?);
        self.chosen.extend(errors(chosen, unseen)?);
        self.runs.push(asked.len() as f64);
        self.models.push(percent(chosen.method() == Method::Model));
        let (interval, promise) = (chosen.interval(NINETY), chosen.promise(NINETY));
        self.widths.push((interval.greatest_ppm - interval.least_ppm) as f64 / 1e4);
        for point in &unseen.points {
            let expected = time_at(chosen, point)?;
            for time in &point.samples_nanos {
                self.inside.push(percent(interval.admits(expected, *time)));
                self.kept.push(percent(*time <= promise.time(expected)));
            }
        }
        let known = FittedCurve::new(all).context("a curve without runs")?;
        let place = |curve: &FittedCurve| {
            let knee = curve.knee().bandwidth_bits_per_second;
            grid.bandwidths().partition_point(|b| *b < knee)
        };
        self.knees_off.push(place(chosen).abs_diff(place(&known)) as f64);
        Ok(())
    }
}

fn add(curve: &mut Curve, bandwidth: BitsPerSecond, time: Nanos) {
    let points = &mut curve.points;
    match points.binary_search_by_key(&bandwidth, |p| p.bandwidth_bits_per_second) {
        Ok(at) => points[at].samples_nanos.push(time),
        Err(at) => {
            let samples_nanos = vec![time];
            points.insert(at, Point { bandwidth_bits_per_second: bandwidth, samples_nanos });
        }
    }
}

/// Against the medians of runs that `curve` does not know, in percent of them.
fn errors(curve: &FittedCurve, unseen: &Curve) -> Result<Vec<f64>> {
    let error = |point: &Point| {
        let median = point.median().as_secs_f64();
        Ok(100.0 * (time_at(curve, point)?.as_secs_f64() / median - 1.0).abs())
    };
    unseen.points.iter().map(error).collect()
}

fn time_at(curve: &FittedCurve, point: &Point) -> Result<Nanos> {
    let time = curve.time_at(point.bandwidth_bits_per_second);
    time.context("the ends of the grid were not measured")
}

fn percent(is_so: bool) -> f64 {
    if is_so { 100.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::quantile;
    use crate::lab::bandwidth_grid;
    use crate::plan::Random;
    use keeptime_model::application::Parameters;
    use keeptime_model::profile::Conditions;
    use keeptime_model::units::CpuPpm;

    const RECORDED: usize = 6;

    fn application() -> Application {
        Application::from_toml(
            r#"
            name = "ray"
            command = ["ray", "{size}"]
            pattern = "ring"
            nodes = [4]
            cpu = "20 %"
            timeout = "60 s"
            time = "wall"
            parameters = [{ name = "size", values = ["0", "1", "2", "3", "4", "5", "6", "7"] }]
            "#,
        )
        .unwrap()
    }

    /// Eight programs that compute, and move volumes up to a saturation, with as much noise.
    fn recorded(noise: f64) -> Profile {
        let mut random = Random(7);
        let grid = bandwidth_grid(4.0, 45.0, 12).unwrap();
        let application = application();
        let conditions = Conditions {
            link_bits_per_second: BitsPerSecond::from_mbit(100),
            process_cpu_ppm: CpuPpm::from_percent(20),
            processor: String::new(),
            mpi: String::new(),
            command: vec![],
            program: None,
        };
        let name = application.name().clone();
        let mut profile = Profile::empty(name, conditions, grid.bandwidths().to_vec());
        for size in 0..8u32 {
            let parameters: Parameters =
                [("size".parse().unwrap(), size.to_string())].into_iter().collect();
            let (compute, saturation) = (0.1 * f64::from(1 + size), 12.0 + 5.0 * f64::from(size));
            for bandwidth in grid.bandwidths() {
                for _ in 0..RECORDED {
                    let chance =
                        (0..4).map(|_| random.below(2_001) as f64 / 1e3 - 1.0).sum::<f64>();
                    let exact = compute + 4.0 / bandwidth.as_mbit_f64().min(saturation);
                    let time =
                        Nanos::from_secs_f64(exact * (1.0 + noise * chance / 1.155)).unwrap();
                    profile.record(&parameters, 4, *bandwidth, time);
                }
            }
        }
        profile
    }

    fn outcome(noise: f64, runs: usize) -> Outcome {
        let recorded = recorded(noise);
        let grid = Grid::new(recorded.bandwidth_grid_bits_per_second.clone()).unwrap();
        let precision = Share::from_percent(0).unwrap();
        let wanted = Wanted { precision, runs, ..Wanted::of(&grid, 3) };
        Outcome::of(&application(), &recorded, &wanted, RECORDED).unwrap()
    }

    #[test]
    fn seen_and_unseen_runs_are_all_that_were_recorded() {
        let recorded = recorded(0.05);
        let grid = Grid::new(recorded.bandwidth_grid_bits_per_second.clone()).unwrap();
        let count =
            |curve: &Curve| curve.points.iter().map(|p| p.samples_nanos.len()).sum::<usize>();
        for first in 0..RECORDED {
            let replay =
                Replay::new(&grid, &recorded.curves[0], &Wanted::of(&grid, 3), first).unwrap();
            assert_eq!(count(&replay.seen), replay.asked.len());
            assert_eq!(count(&replay.seen) + count(&replay.unseen), 12 * RECORDED);
            let least = |curve: &Curve| curve.points[0].samples_nanos.clone();
            let all = &least(&recorded.curves[0]);
            assert_eq!(least(&replay.seen)[0], all[first]);
        }
    }

    // Goal: with a third of the runs the model is nearer to what was not seen than medians are, and a
    // 90 % interval holds nine in ten of it. Method: 8 programs x 6 replays, 3 % noise.
    #[test]
    fn a_third_of_the_runs_tells_what_others_take_and_how_far_they_lie_apart() {
        let outcome = outcome(0.03, 12);
        assert_eq!(quantile(&outcome.runs, 1.0), 12.0);
        let p95 = |errors: &[f64]| quantile(errors, 0.95);
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        eprintln!(
            "model {:.2} medians {:.2} chosen {:.2}, stood {:.1} %, inside {:.1} %, kept {:.1} % of {}",
            p95(&outcome.by_model),
            p95(&outcome.by_medians),
            p95(&outcome.chosen),
            mean(&outcome.models),
            mean(&outcome.inside),
            mean(&outcome.kept),
            outcome.inside.len(),
        );
        assert!(p95(&outcome.by_model) < p95(&outcome.by_medians));
        assert!(p95(&outcome.chosen) < 7.0);
        assert!((86.0..94.0).contains(&mean(&outcome.inside)));
        assert!((86.0..95.0).contains(&mean(&outcome.kept)));
    }
}
