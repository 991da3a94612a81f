//! How few runs are enough: full grids of measured curves, and what the profiler would have made of
//! parts of them.
//!
//! Every bandwidth of the grid is run [`RECORDED`] times, in rounds, and kept in
//! OUT/profiler/recorded.json: a repetition goes on with it unless it is removed. The profiler's choice
//! is then replayed ([`replay`]) with several shares of the runs that the grid has with three samples
//! at each bandwidth; times and intervals are held against the recorded runs that it did not see.

mod replay;

use crate::figures::{Figures, Target, quantile};
use crate::lab::{BenchLab, bandwidth_grid};
use crate::profiles::{gone_on_with, parameters};
use crate::quick;
use anyhow::Result;
use keeptime::machine::Machine;
use keeptime::profiler::{Extent, Order, measure, places};
use keeptime::{files, interrupt};
use keeptime_model::profile::Profile;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Share};
use keeptime_planner::refine::Wanted;
use replay::Outcome;
use serde::Serialize;
use std::path::Path;

/// What a profile of the full grid has at each bandwidth.
const SAMPLES: u32 = 3;
/// What is recorded: two are unseen even where the profiler asks for all that it may.
const RECORDED: u32 = 5;
const BANDWIDTHS: u32 = 12;
/// Frames are drawn for so long in a run: shorter ones scatter more, longer ones take the benchmark
/// longer than a quarter of an hour.
const SECONDS: &str = "2";
/// Of the grid's runs, as a fraction.
const SHARES: [(usize, usize); 5] = [(1, 6), (1, 4), (1, 3), (1, 2), (1, 1)];

/// Settings and nodes.
const CURVES: [(&[&str], u32); 4] = [
    (&["size=512", "interleave=0"], 4),
    (&["size=256", "interleave=0"], 4),
    (&["size=512", "interleave=2"], 4),
    (&["size=512", "interleave=2"], 2),
];

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    /// As the profiler is called by default.
    usual: Outcome,
    /// With so many runs of each curve, however well it is known before.
    shares: Vec<(usize, Outcome)>,
    recorded: Profile,
}

/// Measures what is not recorded yet, replays the profiler and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let machine = Machine::here();
    let link = BitsPerSecond::from_mbit(100);
    let lab = BenchLab::star("bench-profiler", 4, link, CpuPpm::from_percent(40))?;
    interrupt::listen()?;
    let session = lab.session("raycast", &out.join("profiler/recorded.json"))?;
    let (curves, bandwidths) = if quick() { (&CURVES[2..3], 4) } else { (&CURVES[..], BANDWIDTHS) };
    let grid = bandwidth_grid(4.0, 45.0, bandwidths)?;
    let mut recorded = gone_on_with(&session, &grid, false)?;
    let application =
        session.application.clone().with_constant("seconds".parse()?, SECONDS.to_owned());
    let curve = |(set, nodes): &(&[&str], u32)| -> Result<_> { Ok((parameters(set)?, *nodes)) };
    let order = Order {
        curves: curves.iter().map(curve).collect::<Result<_>>()?,
        places: places(&session.cluster, &application, curves.iter().map(|(_, nodes)| *nodes))?,
        grid: grid.clone(),
        extent: Extent::Full { samples: RECORDED },
    };
    let (path, stopped) = (&session.profile_path, &interrupt::stopped);
    measure(&session.cluster, &session.mpi, &application, &order, &mut recorded, path, stopped)?;
    files::save_json(path, &recorded)?;
    let outcome = |wanted| Outcome::of(&application, &recorded, &wanted, RECORDED as usize);
    let usual = Wanted::of(&grid, SAMPLES);
    let precision = Share::try_from(0)?;
    let all = grid.bandwidths().len() * SAMPLES as usize;
    let with = |(part, whole): &(usize, usize)| -> Result<_> {
        let runs = (all * part).div_ceil(*whole);
        Ok((runs, outcome(Wanted { precision, runs, ..usual })?))
    };
    let shares = SHARES.iter().map(with).collect::<Result<_>>()?;
    let raw = Raw { machine, usual: outcome(usual)?, shares, recorded };
    figures(&raw, all).finish(out, &raw)
}

fn figures(raw: &Raw, all: usize) -> Figures {
    let mut figures = Figures::new("profiler");
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let share = |runs: f64| 100.0 * runs / all as f64;
    let usual = &raw.usual;
    let runs: Vec<_> = usual.runs.iter().map(|runs| share(*runs)).collect();
    let third = Some(Target::AtMost(100.0 / 3.0));
    figures.value("runs, of the full grid's", "%", mean(&runs), &runs, None, third);
    let one = Some(Target::AtMost(1.0));
    let steps = &usual.knees_off;
    figures.value("knee off, greatest", "steps", quantile(steps, 1.0), steps, None, one);
    let mut error = |name: &str, outcome: &Outcome, errors: &[f64], target: Option<Target>| {
        for (part, q, target) in [("p50", 0.5, None), ("p95", 0.95, target)] {
            let medians = Some(quantile(&outcome.by_medians, q));
            let name = format!("{name}, {part}");
            figures.value(name, "%", quantile(errors, q), errors, medians, target);
        }
    };
    let seven = Some(Target::AtMost(7.0));
    error("prediction error (medians)", usual, &usual.chosen, seven);
    for (runs, outcome) in &raw.shares {
        let with = format!("{runs} of {all} runs: error");
        error(&format!("{with}, model (medians)"), outcome, &outcome.by_model, None);
        error(&format!("{with}, as chosen (medians)"), outcome, &outcome.chosen, None);
    }
    let ninety = Some(Target::Within(88.0, 92.0));
    let mut coverage = |name: &str, outcome: &Outcome, target: Option<Target>| {
        let held = |part: &str| format!("{name}: {part}");
        let Outcome { inside, kept, widths, models, .. } = outcome;
        figures.value(
            held("unseen runs in the 90 % interval"),
            "%",
            mean(inside),
            inside,
            None,
            target,
        );
        figures.value(
            held("unseen runs that keep a 90 % promise"),
            "%",
            mean(kept),
            kept,
            None,
            None,
        );
        figures.median(held("width of the 90 % interval"), "%", widths, None, None);
        figures.value(
            held("curves that the model stands for"),
            "%",
            mean(models),
            models,
            None,
            None,
        );
    };
    coverage("as usual", usual, ninety);
    for (runs, outcome) in &raw.shares {
        coverage(&format!("{runs} of {all} runs"), outcome, None);
    }
    figures
}
