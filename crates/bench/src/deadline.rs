//! Deadline jobs: how many are late on a batch log, under the planner and under first-come with backfill.
//!
//! The log is one in Standard Workload Format (`--log FILE`) or, without one, three made by a published
//! model ([`lublin`]). A log says nothing of deadlines: each job is given one, its submission and 1.5 to
//! 5 times what its user requested. Both schedulers have the same jobs with the same deadlines on the
//! same nodes, know what was requested and not how long a job really takes, and run every job to its end:
//! one that the planner refuses runs on what is left, and is late if it ends late. So what is done is
//! the same, and so is the utilisation but for the last hours.
//!
//! The planner may promise 90 % of a node, since that is what the kernel admits; the baseline uses all.

mod replay;

use crate::figures::{Figures, Target};
use crate::quick;
use anyhow::{Context, Result};
use keeptime::machine::Machine;
use keeptime_model::units::Share;
use keeptime_whatif::policy::Choice;
use keeptime_whatif::shape::Shape;
use keeptime_whatif::simulate::{WhatIf, simulate};
use keeptime_whatif::trace::{Log, Submission, lublin, swf};
use serde::Serialize;
use std::path::Path;

/// What became of a log under one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// For each job, when it ended.
    ended: Vec<u64>,
    /// For each job, whether it was promised its deadline; nothing where nothing is promised.
    promised: Vec<bool>,
}

impl Outcome {
    fn late(&self, jobs: &[Submission]) -> usize {
        self.ended.iter().zip(jobs).filter(|(ended, job)| **ended > job.deadline).count()
    }

    fn broken(&self, jobs: &[Submission]) -> usize {
        let promised = self.ended.iter().zip(jobs).zip(&self.promised);
        promised.filter(|((ended, job), promised)| **promised && **ended > job.deadline).count()
    }

    /// The part of all nodes' time that was used from the first submission to the last end.
    fn utilisation(&self, jobs: &[Submission], nodes: u32) -> f64 {
        let used: u64 = jobs.iter().map(|job| job.run * u64::from(job.nodes)).sum();
        let from = jobs.iter().map(|job| job.submitted).min().unwrap_or(0);
        let to = self.ended.iter().copied().max().unwrap_or(0);
        used as f64 / (f64::from(nodes) * (to - from).max(1) as f64)
    }
}

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Run {
    log: String,
    load: f64,
    nodes: u32,
    jobs: Vec<Submission>,
    planned: Outcome,
    backfilled: Outcome,
}

/// Replays under both and writes the figures.
pub fn run(out: &Path, log: Option<&Path>) -> Result<()> {
    let logs = match log {
        Some(path) => vec![read(path)?],
        None => {
            let made = |load| lublin::log(NODES, jobs(), load, SEED);
            LOADS.map(|load| (format!("model, load {load}"), made(load))).into()
        }
    };
    let mut figures = Figures::new("deadline");
    let mut runs = Vec::new();
    for (name, Log { nodes, jobs }) in logs {
        let planned = replay::planned(nodes, &jobs)?;
        let backfilled = backfilled(nodes, &jobs)?;
        let run = Run { load: load(nodes, &jobs), log: name, nodes, jobs, planned, backfilled };
        add_figures(&run, &mut figures);
        runs.push(run);
    }
    figures.finish(out, &Raw { machine: Machine::here(), runs })
}

/// First come, first served, with backfill, on whole nodes that have nothing to say to each other.
fn backfilled(nodes: u32, jobs: &[Submission]) -> Result<Outcome> {
    let (shape, policy) = (Shape::star(nodes)?, Choice::FcfsBackfill);
    let what = WhatIf { shape, policy, communication: Share::default() };
    Ok(Outcome { ended: simulate(&what, jobs, &mut |_| {})?.ended(), promised: vec![] })
}

fn add_figures(run: &Run, figures: &mut Figures) {
    let Run { log, nodes, jobs, planned, backfilled, .. } = run;
    let part = |late: usize| 100.0 * late as f64 / jobs.len() as f64;
    let (ours, theirs) = (planned.late(jobs), backfilled.late(jobs));
    let lateness = |outcome: &Outcome| -> Vec<f64> {
        let late = |(ended, job): (&u64, &Submission)| ended.saturating_sub(job.deadline) as f64;
        outcome.ended.iter().zip(jobs).map(late).collect()
    };
    let samples = lateness(planned);
    let mut value = |name: &str, unit: &str, value: f64, baseline, target| {
        figures.value(format!("{log}: {name}"), unit, value, &samples, baseline, target);
    };
    value("late", "% of jobs", part(ours), Some(part(theirs)), None);
    // One more on either side: none late would be infinitely fewer.
    let fewer = (theirs + 1) as f64 / (ours + 1) as f64;
    value("times fewer late than by backfill", "", fewer, None, Some(Target::AtLeast(5.0)));
    value("promises broken", "", planned.broken(jobs) as f64, None, Some(Target::AtMost(0.0)));
    let (used, baseline) =
        (planned.utilisation(jobs, *nodes), backfilled.utilisation(jobs, *nodes));
    value("utilisation", "%", 100.0 * used, Some(100.0 * baseline), None);
}

/// What is asked of the nodes while jobs are submitted.
fn load(nodes: u32, jobs: &[Submission]) -> f64 {
    let used: u64 = jobs.iter().map(|job| job.run * u64::from(job.nodes)).sum();
    let last = jobs.iter().map(|job| job.submitted).max().unwrap_or(0);
    used as f64 / (f64::from(nodes) * last.max(1) as f64)
}

fn read(path: &Path) -> Result<(String, Log)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let log = swf::read(&text, jobs(), SEED).with_context(|| format!("in {}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, log))
}

fn jobs() -> usize {
    if quick() { 100 } else { 2_000 }
}

const NODES: u32 = 64;
const LOADS: [f64; 3] = [0.5, 0.7, 0.85];
const SEED: u64 = 2_008;
