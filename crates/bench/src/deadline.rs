//! Deadline jobs: how many are late on a batch log, as `keeptime run --by --wait` asks the broker for them, behind the
//! broker's queue, under first-come with backfill, and where everything starts at once.
//!
//! The log is one in Standard Workload Format (`--log FILE`) or, without one, three made by a published
//! model ([`lublin`]) from a seed (`--seed`). A log says nothing of deadlines: each job is given one, its submission and 1.5 to
//! 5 times what its user requested. All schedulers have the same jobs with the same deadlines on the
//! same nodes, know what was requested and not how long a job really takes, and run every job to its end:
//! one that is refused runs on what is left, and is late if it ends late. So what is done is
//! the same, and so is the utilisation but for the last hours.
//!
//! * As `keeptime run --by --wait` asks (`keeptime-by` of `keeptime sim`): the broker's engine reserves for each job, one
//!   after the other, what `planner::deadline::booking` asks for, and has those that run go slower and faster. It may promise
//!   90 % of a node, since that is what the kernel admits; all others use all.
//! * The broker's queue (`keeptime-queue`): its engine grants whole nodes at one rate, and a job is promised its deadline when
//!   it starts.
//! * Nobody decides (`none`): processors are shared as if that cost nothing, and as if there was memory for all.

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use anyhow::{Context, Result};
use keeptime::machine::Machine;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, Share};
use keeptime_whatif::policy::{Action, Choice, Policy};
use keeptime_whatif::shape::Shape;
use keeptime_whatif::simulate::Trial;
use keeptime_whatif::trace::{Log, Submission, lublin, swf};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// What became of a log under one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// For each job, when it ended.
    ended: Vec<u64>,
    /// For each job, whether it was promised its deadline.
    promised: Vec<bool>,
}

impl Outcome {
    fn late(&self, jobs: &[Submission]) -> usize {
        self.ended.iter().zip(jobs).filter(|(ended, job)| **ended > job.deadline).count()
    }

    /// For each job, by how many seconds it ended after its deadline.
    fn lateness(&self, jobs: &[Submission]) -> Vec<f64> {
        let late = |(ended, job): (&u64, &Submission)| ended.saturating_sub(job.deadline) as f64;
        self.ended.iter().zip(jobs).map(late).collect()
    }

    fn broken(&self, jobs: &[Submission]) -> usize {
        let promised = self.ended.iter().zip(jobs).zip(&self.promised);
        promised.filter(|((ended, job), promised)| **promised && **ended > job.deadline).count()
    }

    /// What was done by the last submission, of what all nodes could have done by then.
    fn done_by_last_submission(&self, jobs: &[Submission], nodes: u32) -> f64 {
        let last = last_submission(jobs);
        let by_then = self.ended.iter().zip(jobs).filter(|(ended, _)| **ended <= last);
        let done: u64 = by_then.map(|(_, job)| work(job)).sum();
        done as f64 / (f64::from(nodes) * last.max(1) as f64)
    }

    /// The part of all nodes' time that was used from the first submission to the last end.
    fn utilisation(&self, jobs: &[Submission], nodes: u32) -> f64 {
        let used: u64 = jobs.iter().map(work).sum();
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
    asked: Outcome,
    queued: Outcome,
    backfilled: Outcome,
    shared: Outcome,
    /// How long each moment took in which a job asked for the first time, in milliseconds, in their order: what the job and the
    /// broker work out. Who asks again does so at moments of its own, which are not here.
    decisions: Vec<f64>,
    /// What all four replays took.
    seconds: f64,
}

/// A policy, and how long it takes to decide.
struct Timed<'a> {
    policy: Box<dyn Policy>,
    /// In milliseconds.
    decisions: &'a mut Vec<f64>,
    /// Somebody has come who asks now.
    asks: bool,
}

/// Logs that are made.
#[derive(Debug, Clone)]
pub struct Made {
    /// How many nodes there are.
    pub nodes: u32,
    /// What is asked of these, a log each; none = three.
    pub loads: Vec<f64>,
}

/// Replays the first `jobs` of `log`, or of logs that are made from `seed`, under all four and writes the figures.
pub fn run(out: &Path, log: Option<&Path>, made: &Made, jobs: usize, seed: u64) -> Result<()> {
    let logs = match log {
        Some(path) => vec![read(path, jobs, seed)?],
        None => {
            let loads = if made.loads.is_empty() { &LOADS[..] } else { &made.loads };
            let make = |load: &f64| {
                let log = lublin::log(made.nodes, jobs, *load, seed);
                (format!("model, load {load}"), log)
            };
            loads.iter().map(make).collect()
        }
    };
    let mut figures = Figures::new("deadline");
    let mut runs = Vec::new();
    for (name, Log { nodes, jobs }) in logs {
        let run = Run::of(name, nodes, jobs)?;
        eprintln!("{}: {} jobs replayed in {:.1} s", run.log, run.jobs.len(), run.seconds);
        run.add_figures(&mut figures);
        runs.push(run);
    }
    figures.finish(out, &Raw { machine: Machine::here(), runs })
}

/// By a policy of `keeptime sim`, on nodes that have nothing to say to each other, and how long each decision took, in
/// milliseconds.
fn simulated(policy: Choice, nodes: u32, jobs: &[Submission]) -> Result<(Outcome, Vec<f64>)> {
    let trial = Trial::of(Shape::star(nodes)?, policy, Share::default());
    let mut decisions = Vec::new();
    let outcome = trial.run_watched(jobs, &mut |_| {}, |policy| {
        Box::new(Timed { policy, decisions: &mut decisions, asks: false })
    })?;
    let promised = outcome.fates.iter().map(|fate| fate.promised).collect();
    Ok((Outcome { ended: outcome.ended(), promised }, decisions))
}

impl Policy for Timed<'_> {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        self.asks = true;
        self.policy.submitted(now, job, submission)
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.policy.ended(now, job)
    }

    fn failed(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        self.policy.failed(now, nodes, hit)
    }

    fn repaired(&mut self, now: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        self.policy.repaired(now, nodes)
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        let start = Instant::now();
        let actions = self.policy.passed(now);
        if std::mem::take(&mut self.asks) {
            self.decisions.push(start.elapsed().as_secs_f64() * 1e3);
        }
        actions
    }

    fn next(&self) -> Option<Nanos> {
        self.policy.next()
    }
}

impl Run {
    fn of(log: String, nodes: u32, jobs: Vec<Submission>) -> Result<Self> {
        let start = Instant::now();
        let (asked, decisions) = simulated(Choice::KeeptimeBy, nodes, &jobs)?;
        let (queued, _) = simulated(Choice::KeeptimeQueue, nodes, &jobs)?;
        let (backfilled, _) = simulated(Choice::FcfsBackfill, nodes, &jobs)?;
        let (shared, _) = simulated(Choice::None, nodes, &jobs)?;
        let (load, seconds) = (load(nodes, &jobs), start.elapsed().as_secs_f64());
        Ok(Self { log, load, nodes, jobs, asked, queued, backfilled, shared, decisions, seconds })
    }

    fn add_figures(&self, figures: &mut Figures) {
        self.add_of("", &self.asked, figures);
        self.add_of("broker's queue, ", &self.queued, figures);
        let Self { log, nodes, jobs, shared, backfilled, decisions, .. } = self;
        let [late, theirs] =
            [shared, backfilled].map(|one| 100.0 * one.late(jobs) as f64 / jobs.len() as f64);
        let name = format!("{log}: nobody decides, late");
        figures.value(name, "% of jobs", late, &[late], Some(theirs), None).against(BACKFILL);
        for (part, q) in [("median", 0.5), ("p99", 0.99), ("worst", 1.0)] {
            let name = format!(
                "{log}: a job asks for the first time and is answered, on {nodes} nodes, {part}"
            );
            figures.value(name, "ms", quantile(decisions, q), decisions, None, None);
        }
    }

    /// Those of one scheduler, called `by`, beside backfill.
    fn add_of(&self, by: &str, ours: &Outcome, figures: &mut Figures) {
        let Self { log, nodes, jobs, backfilled, .. } = self;
        let part = |late: usize| 100.0 * late as f64 / jobs.len() as f64;
        let (late, theirs) = (ours.late(jobs), backfilled.late(jobs));
        // A log has one outcome: what is told of it has no spread.
        let mut value = |name: &str, unit: &str, value: f64, baseline: Option<f64>, target| {
            let name = format!("{log}: {by}{name}");
            let figure = figures.value(name, unit, value, &[value], baseline, target);
            if baseline.is_some() {
                figure.against(BACKFILL);
            }
        };
        value("late", "% of jobs", part(late), Some(part(theirs)), None);
        // One more on either side: none late would be infinitely fewer.
        let fewer = (theirs + 1) as f64 / (late + 1) as f64;
        value("times fewer late than by backfill", "", fewer, None, Some(Target::AtLeast(5.0)));
        value("promises broken", "", ours.broken(jobs) as f64, None, Some(Target::AtMost(0.0)));
        let [used, baseline] = [ours, backfilled].map(|one| one.utilisation(jobs, *nodes));
        value("utilisation", "%", 100.0 * used, Some(100.0 * baseline), None);
        let done = |one: &Outcome| 100.0 * one.done_by_last_submission(jobs, *nodes);
        value("done by the last submission", "%", done(ours), Some(done(backfilled)), None);
        let latest = |one: &Outcome| one.lateness(jobs).into_iter().fold(0.0, f64::max) / DAY;
        value("latest after its deadline", "days", latest(ours), Some(latest(backfilled)), None);
    }
}

/// What is asked of the nodes while jobs are submitted.
fn load(nodes: u32, jobs: &[Submission]) -> f64 {
    let used: u64 = jobs.iter().map(work).sum();
    used as f64 / (f64::from(nodes) * last_submission(jobs).max(1) as f64)
}

fn last_submission(jobs: &[Submission]) -> u64 {
    jobs.iter().map(|job| job.submitted).max().unwrap_or(0)
}

/// What a job takes of all its nodes, in seconds of one.
fn work(job: &Submission) -> u64 {
    job.run * u64::from(job.nodes)
}

fn read(path: &Path, jobs: usize, seed: u64) -> Result<(String, Log)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let log = swf::read(&text, jobs, seed).with_context(|| format!("in {}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, log))
}

/// How many of a log are replayed.
pub fn jobs() -> usize {
    if quick() { 100 } else { JOBS }
}

/// Beside what figures stand.
const BACKFILL: &str = "FCFS with backfill";
/// Of logs that are made.
pub const NODES: u32 = 64;
/// In seconds.
const DAY: f64 = 86_400.0;
/// Of a log.
const JOBS: usize = 10_000;
const LOADS: [f64; 3] = [0.5, 0.7, 0.85];
/// That of the first logs.
pub const SEED: u64 = 2_008;
