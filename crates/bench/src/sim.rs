//! `keeptime sim` on a large cluster: how long 100,000 jobs on 10,000 nodes take under each policy, and how
//! many requests a second the broker's engine decides meanwhile.
//!
//! Timed: all of a simulation, its topology and its agents' answers included; so the engine alone is faster
//! than what is stated. Jobs are made by the model of Lublin and Feitelson and say nothing to each
//! other, which leaves the engine the slot tables of the nodes. Then users ask for goals, all with one preference.

mod preferences;

use crate::figures::{Figures, Target};
use crate::quick;
use anyhow::Result;
use keeptime::machine::Machine;
use keeptime_model::units::Share;
use keeptime_whatif::policy::Choice;
use keeptime_whatif::shape::Shape;
use keeptime_whatif::simulate::Trial;
use keeptime_whatif::summary::Summary;
use keeptime_whatif::trace::{Submission, lublin};
use preferences::Preferred;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    topology: String,
    seed: u64,
    runs: Vec<Run>,
    preferences: Vec<Preferred>,
}

#[derive(Serialize)]
struct Run {
    load: f64,
    seconds: f64,
    summary: Summary,
}

/// Simulates under every policy and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (shape, jobs) = if quick() { ("fat-tree:200", 200) } else { ("fat-tree:10000", 100_000) };
    let shape: Shape = shape.parse()?;
    let log = lublin::log(shape.nodes, jobs, LOAD, SEED);
    let mut figures = Figures::new("sim");
    let mut runs = Vec::new();
    // Jobs that ask by themselves are decided one after the other, each beside all that is reserved of every node:
    // `make bench-deadline`.
    for policy in Choice::WHOLE {
        let run = replay(shape, policy, LOAD, &log.jobs)?;
        add_figures(&run, &mut figures);
        runs.push(run);
    }
    let log = lublin::log(shape.nodes, jobs, FULL, SEED);
    for policy in [Choice::KeeptimeClasses, Choice::KeeptimeQueue, Choice::FcfsBackfill] {
        runs.push(replay(shape, policy, FULL, &log.jobs)?);
    }
    if let [.., classes, queue, backfill] = runs.as_slice() {
        compare(queue, backfill, &mut figures);
        let [urgent, without] = [classes, queue].map(|run| run.summary.urgent_in_time_percent);
        let name = format!("load {FULL}: urgent jobs in time, with classes (or without)");
        figures.value(name, "%", urgent, &[urgent], Some(without), None);
    }
    let preferences = preferences::run(&mut figures)?;
    let (machine, topology) = (Machine::here(), shape.to_string());
    let raw = Raw { machine, topology, seed: SEED, runs, preferences };
    figures.finish(out, &raw)
}

fn replay(shape: Shape, policy: Choice, load: f64, jobs: &[Submission]) -> Result<Run> {
    let start = Instant::now();
    let outcome = Trial::of(shape, policy, Share::default()).run(jobs, &mut |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Run { load, seconds, summary: outcome.summary(jobs, shape.nodes) })
}

/// Who is late when the cluster is all but full.
fn compare(queue: &Run, backfill: &Run, figures: &mut Figures) {
    let missed = |run: &Run| 100.0 - run.summary.in_time_percent;
    let name = format!("load {FULL}: jobs in time, behind a queue (or by backfill)");
    let [in_time, by_backfill] = [queue, backfill].map(|run| run.summary.in_time_percent);
    figures.value(name, "%", in_time, &[in_time], Some(by_backfill), None);
    let name = format!("load {FULL}: utilisation, behind a queue (or by backfill)");
    let [used, by_backfill] = [queue, backfill].map(|run| run.summary.utilisation_percent);
    figures.value(name, "%", used, &[used], Some(by_backfill), None);
    let ratio = missed(backfill) / missed(queue);
    let name = format!("load {FULL}: late jobs by backfill for each behind a queue");
    figures.value(name, "", ratio, &[ratio], None, Some(Target::AtLeast(5.0)));
}

fn add_figures(Run { summary, seconds, .. }: &Run, figures: &mut Figures) {
    let policy = summary.policy;
    let decided = summary.jobs as f64 / seconds;
    let least = (policy == Choice::Keeptime).then_some(Target::AtLeast(2_000.0));
    let mut value = |name: &str, unit: &str, value: f64, target| {
        figures.value(format!("{policy}: {name}"), unit, value, &[value], None, target);
    };
    value("jobs decided a second", "1/s", decided, least);
    value("time of a simulation", "s", *seconds, None);
    value("admitted", "%", summary.admission_percent, None);
    value("in time", "%", summary.in_time_percent, None);
    value("utilisation", "%", summary.utilisation_percent, None);
    let kept = (policy == Choice::Keeptime).then_some(Target::AtMost(0.0));
    value("promises broken", "", summary.broken as f64, kept);
}

const LOAD: f64 = 0.8;
/// Deadlines are hard to keep when nearly all is in use.
const FULL: f64 = 0.95;
const SEED: u64 = 2_008;
