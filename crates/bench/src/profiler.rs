//! How few runs are enough: full grids of measured curves, and what the profiler would have made of
//! them.
//!
//! The full grid is measured once. The profiler's choice (`keeptime_planner::refine`) is then
//! replayed against it: the k-th sample that it asks for at a bandwidth is the k-th that was measured
//! there. So both curves come from the same runs, and differ by nothing but the choice.

use crate::figures::{Figures, Target, quantile};
use crate::lab::{BenchLab, bandwidth_grid};
use crate::quick;
use anyhow::{Context, Result, ensure};
use keeptime::commands::Session;
use keeptime::machine::Machine;
use keeptime::profiler::{Order, measure, places};
use keeptime::{files, interrupt};
use keeptime_model::application::Parameters;
use keeptime_model::goal::parse_setting;
use keeptime_model::profile::{Curve, Point, Profile};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::curve::{Deviations, FittedCurve};
use keeptime_planner::refine::{self, Grid};
use serde::Serialize;
use std::path::Path;

const SAMPLES: u32 = 3;
const BANDWIDTHS: u32 = 12;
/// Frames are drawn for so long in a run. Shorter runs scatter by more than the 5 % at which the
/// profiler takes a point for a bend, and it looks closer where there is nothing to see.
const SECONDS: &str = "4";

/// Settings and nodes.
const CURVES: [(&str, &str, u32); 4] = [
    ("size=512", "interleave=0", 4),
    ("size=256", "interleave=0", 4),
    ("size=512", "interleave=2", 4),
    ("size=512", "interleave=2", 2),
];

/// What one curve came to.
#[derive(Debug, Serialize)]
struct Outcome {
    curve: String,
    runs: usize,
    full_grid: usize,
    /// Positions in the grid.
    knee: usize,
    knee_of_full_grid: usize,
    /// In percent of the medians of the full grid, one for each bandwidth.
    errors: Vec<f64>,
    /// What the profiler asked for, in this order.
    asked_bits_per_second: Vec<BitsPerSecond>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    outcomes: Vec<Outcome>,
    full_grid: Profile,
}

/// Measures the full grids, replays the profiler and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let machine = Machine::here();
    let link = BitsPerSecond::from_mbit(100);
    let lab = BenchLab::star("bench-profiler", 4, link, CpuPpm::from_percent(40))?;
    interrupt::listen()?;
    let session = lab.session("raycast", &out.join("profiler/full-grid.json"))?;
    let (curves, bandwidths) = if quick() { (&CURVES[2..3], 4) } else { (&CURVES[..], BANDWIDTHS) };
    let grid = bandwidth_grid(4.0, 45.0, bandwidths)?;
    let conditions = session.cluster.conditions(&session.application, &session.mpi.to_string());
    let name = session.application.name().clone();
    let mut profile = Profile::empty(name, conditions, grid.bandwidths().to_vec());
    let mut outcomes = Vec::new();
    for (number, (size, interleave, nodes)) in curves.iter().enumerate() {
        let title = format!("{size}, {interleave}, {nodes} nodes");
        eprintln!("curve {} of {}: {title}", number + 1, curves.len());
        let parameters = [*size, *interleave].into_iter().map(parse_setting);
        let parameters: Parameters = parameters.collect::<Result<_, _>>()?;
        measure_all(&session, &grid, (&parameters, *nodes), &mut profile)?;
        let full = profile.curve(&parameters, *nodes).context("nothing was measured")?;
        let outcome = compare(title, &grid, full)?;
        eprintln!("  {} of {} runs would do", outcome.runs, outcome.full_grid);
        outcomes.push(outcome);
    }
    figures(&outcomes).finish(out, &Raw { machine, outcomes, full_grid: profile })
}

fn measure_all(
    session: &Session,
    grid: &Grid,
    (parameters, nodes): (&Parameters, u32),
    profile: &mut Profile,
) -> Result<()> {
    let application =
        session.application.clone().with_constant("seconds".parse()?, SECONDS.to_owned());
    let curves = vec![(parameters.clone(), nodes)];
    let places = places(&session.cluster, &application, [nodes])?;
    let order = Order { curves, places, grid: grid.clone(), samples: SAMPLES, full: true };
    let (path, stopped) = (&session.profile_path, &interrupt::stopped);
    measure(&session.cluster, &session.mpi, &application, &order, profile, path, stopped)?;
    files::save_json(path, profile)
}

fn compare(title: String, grid: &Grid, full: &Curve) -> Result<Outcome> {
    let (chosen, asked) = replay(grid, full)?;
    let fit = |curve| FittedCurve::new(curve, &Deviations::default()).context("an empty curve");
    let (fitted, fitted_full) = (fit(&chosen)?, fit(full)?);
    let place = |curve: &FittedCurve| {
        let knee = curve.knee().bandwidth_bits_per_second;
        grid.bandwidths().partition_point(|b| *b < knee)
    };
    let error = |point: &Point| {
        let median = median_seconds(point);
        let time = fitted.time_at(point.bandwidth_bits_per_second);
        time.map(|t| 100.0 * (t.as_secs_f64() / median - 1.0).abs())
    };
    let errors = full.points.iter().map(error).collect::<Option<Vec<_>>>();
    Ok(Outcome {
        curve: title,
        runs: asked.len(),
        full_grid: full.points.iter().map(|p| p.samples_nanos.len()).sum(),
        knee: place(&fitted),
        knee_of_full_grid: place(&fitted_full),
        errors: errors.context("the chosen curve does not reach the ends of the grid")?,
        asked_bits_per_second: asked,
    })
}

/// The curve that the profiler would have measured, and what it would have asked for.
fn replay(grid: &Grid, full: &Curve) -> Result<(Curve, Vec<BitsPerSecond>)> {
    let mut chosen = Curve { points: Vec::new(), ..full.clone() };
    let mut asked = Vec::new();
    while let Some(bandwidth) = refine::next(grid, &chosen, SAMPLES) {
        let key = |p: &Point| p.bandwidth_bits_per_second;
        let at = chosen.points.partition_point(|p| key(p) < bandwidth);
        if chosen.points.get(at).map(key) != Some(bandwidth) {
            let new = Point { bandwidth_bits_per_second: bandwidth, samples_nanos: Vec::new() };
            chosen.points.insert(at, new);
        }
        let samples = &mut chosen.points[at].samples_nanos;
        let measured = full.points.iter().find(|p| key(p) == bandwidth);
        let next = measured.and_then(|p| p.samples_nanos.get(samples.len()));
        samples.push(*next.with_context(|| format!("no further run at {bandwidth}"))?);
        asked.push(bandwidth);
        ensure!(asked.len() < 1_000, "the profiler does not come to an end");
    }
    Ok((chosen, asked))
}

fn median_seconds(point: &Point) -> f64 {
    let seconds: Vec<_> = point.samples_nanos.iter().map(|s| s.as_secs_f64()).collect();
    quantile(&seconds, 0.5)
}

fn figures(outcomes: &[Outcome]) -> Figures {
    let mut figures = Figures::new("profiler");
    let each = |value: fn(&Outcome) -> f64| outcomes.iter().map(value).collect::<Vec<_>>();
    let sum = |value: fn(&Outcome) -> usize| outcomes.iter().map(value).sum::<usize>() as f64;
    let shares = each(|o| 100.0 * o.runs as f64 / o.full_grid as f64);
    let share = 100.0 * sum(|o| o.runs) / sum(|o| o.full_grid);
    let half = Some(Target::AtMost(50.0));
    figures.value("runs needed, of the full grid's", "%", share, &shares, None, half);
    let steps = each(|o| o.knee.abs_diff(o.knee_of_full_grid) as f64);
    let one = Some(Target::AtMost(1.0));
    figures.value("knee off, greatest", "steps", quantile(&steps, 1.0), &steps, None, one);
    for outcome in outcomes {
        let name = |part: &str| format!("interpolation error, {part}: {}", outcome.curve);
        figures.median(name("median"), "%", &outcome.errors, None, None);
        let worst = quantile(&outcome.errors, 1.0);
        let target = Some(Target::AtMost(5.0));
        figures.value(name("worst"), "%", worst, &outcome.errors, None, target);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    // Goal: the replay uses recorded runs only and ends on the same curve. Method: a full grid of
    // computation plus volume / bandwidth.
    #[test]
    fn a_replay_needs_fewer_runs_and_finds_the_same_curve() {
        let grid = bandwidth_grid(8.0, 96.0, BANDWIDTHS).unwrap();
        let point = |b: &BitsPerSecond| Point {
            bandwidth_bits_per_second: *b,
            samples_nanos: vec![Nanos::new(100_000_000 + 10_000_000_000_000_000 / b.get()); 3],
        };
        let points = grid.bandwidths().iter().map(point).collect();
        let full = Curve { parameters: Parameters::new(), nodes: 4, points };
        let outcome = compare("test".into(), &grid, &full).unwrap();
        assert_eq!((outcome.full_grid, outcome.knee), (36, outcome.knee_of_full_grid));
        assert!(outcome.runs <= 22, "{outcome:?}");
        assert!(quantile(&outcome.errors, 1.0) < 0.1, "{outcome:?}");
    }
}
