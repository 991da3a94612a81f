//! `keeptime sim` on a large cluster: how long 100,000 jobs on 10,000 nodes take under each policy, and how
//! many requests a second the broker's engine decides meanwhile.
//!
//! Timed: all of a simulation, its topology and its agents' answers included; so the engine alone is faster
//! than what is stated. Jobs are made by the model of Lublin and Feitelson and say nothing to each
//! other, which leaves the engine the slot tables of the nodes.

use crate::figures::{Figures, Target};
use crate::quick;
use anyhow::Result;
use keeptime::machine::Machine;
use keeptime_model::units::Share;
use keeptime_whatif::policy::Choice;
use keeptime_whatif::simulate::{WhatIf, simulate};
use keeptime_whatif::summary::Summary;
use keeptime_whatif::trace::lublin;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    topology: String,
    load: f64,
    seed: u64,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    seconds: f64,
    summary: Summary,
}

/// Simulates under every policy and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (shape, jobs) = if quick() { ("fat-tree:200", 200) } else { ("fat-tree:10000", 100_000) };
    let shape: keeptime_whatif::shape::Shape = shape.parse()?;
    let log = lublin::log(shape.nodes, jobs, LOAD, SEED);
    let mut figures = Figures::new("sim");
    let mut runs = Vec::new();
    for policy in Choice::ALL {
        let what = WhatIf { shape, policy, communication: Share::default() };
        let start = Instant::now();
        let outcome = simulate(&what, &log.jobs, &mut |_| {})?;
        let seconds = start.elapsed().as_secs_f64();
        let summary = outcome.summary(&log.jobs, shape.nodes);
        add_figures(&summary, seconds, &mut figures);
        runs.push(Run { seconds, summary });
    }
    let raw =
        Raw { machine: Machine::here(), topology: shape.to_string(), load: LOAD, seed: SEED, runs };
    figures.finish(out, &raw)
}

fn add_figures(summary: &Summary, seconds: f64, figures: &mut Figures) {
    let policy = summary.policy;
    let decided = summary.jobs as f64 / seconds;
    let least = (policy == Choice::Keeptime).then_some(Target::AtLeast(2_000.0));
    let mut value = |name: &str, unit: &str, value: f64, target| {
        figures.value(format!("{policy}: {name}"), unit, value, &[value], None, target);
    };
    value("jobs decided a second", "1/s", decided, least);
    value("time of a simulation", "s", seconds, None);
    value("admitted", "%", summary.admission_percent, None);
    value("in time", "%", summary.in_time_percent, None);
    value("utilisation", "%", summary.utilisation_percent, None);
    let kept = (policy == Choice::Keeptime).then_some(Target::AtMost(0.0));
    value("promises broken", "", summary.broken as f64, kept);
}

const LOAD: f64 = 0.8;
const SEED: u64 = 2_008;
