//! Rate control on simulated bulk-synchronous programs: the paper's policy and ours.
//!
//! Programs compute five times, once and a fifth of as long as they communicate; they poll or sleep while they
//! wait, and their processors' speed wanders by 5 %. Both policies have reports of at least a second, as
//! `keeptime run` makes them: the paper's iterations, each of them a report, took 16 s, while a single one of a
//! tenth of a second may fall into a pause of its schedule or not. Real programs are measured elsewhere; this
//! shows what the policies do where everything else is equal.

use crate::figures::{Figures, NEVER, Target};
use crate::quick;
use anyhow::Result;
use keeptime::machine::Machine;
use keeptime_control::plant::bsp::{BspPlant, Machine as Processors, Program, Waiting};
use keeptime_control::plant::{Plant, steer};
use keeptime_control::{Controller, Policy, Report, Schedule, Settings};
use keeptime_model::Invalid;
use keeptime_model::units::{Nanos, Share};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

const RATIOS: [(&str, f64); 3] = [("5:1", 5.0), ("1:1", 1.0), ("1:5", 0.2)];
/// How ranks wait, and whether reports say what they computed.
const WAITINGS: [(&str, Waiting, bool); 3] = [
    ("sleeps", Waiting::Blocks, false),
    ("polls", Waiting::Polls, true),
    ("polls, tells nothing", Waiting::Polls, false),
];
/// CPU seconds of an iteration.
const COMPUTE: f64 = 0.05;
/// Reports before a new target, and after it.
const BEFORE: usize = 60;
const AFTER: usize = 200;
/// The paper states errors as means over so many reports.
const REPORTS_A_MEAN: usize = 20;
/// As `keeptime run` makes them.
const REPORT_LEAST: Nanos = Nanos::from_secs(1);
/// What stands beside ours.
const PAPERS: &str = "the paper's policy";

/// One program under one policy, from one target to another.
#[derive(Serialize)]
struct Run {
    program: String,
    policy: &'static str,
    targets: [u32; 2],
    threshold_percent: f64,
    seed: u64,
    /// Reports from the new target until one is within the threshold; in JSON null where none was.
    response: f64,
    /// |mean error| of each group of reports once it had time to settle, in per cent of full speed.
    errors: Vec<f64>,
    /// Changes of the schedule in the same time.
    changes: usize,
}

/// Runs all and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let seeds = if quick() { 1 } else { 10 };
    let mut figures = Figures::new("control");
    let mut runs = Vec::new();
    for (ratio_name, ratio) in RATIOS {
        for (waiting_name, waiting, tells_computing) in WAITINGS {
            let program = format!("{ratio_name}, {waiting_name}");
            let mut both = Vec::new();
            for (policy_name, policy) in
                [("paper", Policy::paper()), ("ours", Policy::predictive())]
            {
                let mut of_policy = Vec::new();
                for seed in 0..seeds {
                    for targets in [[30, 50], [50, 20], [10, 80]] {
                        let plant = Program::balanced(4, COMPUTE, ratio, waiting);
                        let processors = Processors { tells_computing, ..Processors::default() };
                        let plant = Told(BspPlant::new(plant, processors, seed));
                        let settings = (policy.clone(), targets, 2.0);
                        of_policy.push(one(&program, policy_name, plant, settings, seed)?);
                    }
                }
                both.push(of_policy);
            }
            let [paper, ours] = &both[..] else { continue };
            add_figures(&program, paper, ours, &mut figures);
            runs.extend(both.into_iter().flatten());
        }
    }
    decision_time(&mut figures)?;
    figures.finish(out, &(Machine::here(), runs))
}

/// A program whose reports span a second at least.
struct Told(BspPlant);

impl Plant for Told {
    fn apply(&mut self, schedules: &[Schedule]) {
        self.0.apply(schedules);
    }

    fn next_report(&mut self) -> Report {
        let mut told = self.0.next_report();
        while told.to().saturating_sub(told.from()) < REPORT_LEAST {
            told = joined(&told, &self.0.next_report());
        }
        told
    }

    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn pass(&mut self, until: Nanos) {
        self.0.pass(until);
    }
}

/// What one report says of two that follow each other.
fn joined(first: &Report, second: &Report) -> Report {
    let sum = |first: &[Nanos], second: &[Nanos]| -> Vec<_> {
        first.iter().zip(second).map(|(first, second)| first.saturating_add(*second)).collect()
    };
    let work = first.work() + second.work();
    let used = sum(first.used(), second.used());
    Report::new(first.from(), second.to(), work, &used).map_or_else(
        |_| second.clone(),
        |report| report.with_computed(&sum(first.computed(), second.computed())),
    )
}

fn add_figures(program: &str, paper: &[Run], ours: &[Run], figures: &mut Figures) {
    let responses = |runs: &[Run]| runs.iter().map(|run| run.response).collect::<Vec<_>>();
    let errors = |runs: &[Run]| runs.iter().flat_map(|run| run.errors.clone()).collect::<Vec<_>>();
    let changes = |runs: &[Run]| runs.iter().map(|run| run.changes as f64).collect::<Vec<_>>();
    let mut median = |name: &str, unit: &str, of: &dyn Fn(&[Run]) -> Vec<f64>, target| {
        let baseline = crate::figures::quantile(&of(paper), 0.5);
        let name = format!("{program}: {name}");
        let figure = figures.median(name, unit, &of(ours), Some(baseline), target);
        figure.against(PAPERS).or_never();
    };
    median("reports to a new target", "", &responses, Some(Target::AtMost(1.0)));
    median("error, mean of 20 reports", "% points", &errors, Some(Target::AtMost(1.0)));
    median("changes in the steady state", "", &changes, None);
    let worst = responses(ours).into_iter().fold(0.0, f64::max);
    let baseline = responses(paper).into_iter().fold(0.0, f64::max);
    let name = format!("{program}: reports to a new target, worst");
    let target = Some(Target::AtMost(3.0));
    let figure = figures.value(name, "", worst, &responses(ours), Some(baseline), target);
    figure.against(PAPERS).or_never();
}

fn one(
    program: &str,
    policy_name: &'static str,
    mut plant: Told,
    (policy, targets, threshold_percent): (Policy, [u32; 2], f64),
    seed: u64,
) -> Result<Run, Invalid> {
    let [first, second] = targets.map(|target| Share::from_percent(target).unwrap_or(Share::ONE));
    let threshold = Share::try_from((threshold_percent * 1e4) as u32)?;
    let mut full_speed = plant.0.full_speed(30)?;
    if matches!(policy, Policy::Paper(_)) {
        // The paper's utilisation is of a whole processor.
        let whole = vec![keeptime_model::units::CpuPpm::from_percent(100); full_speed.nodes()];
        full_speed = keeptime_control::FullSpeed::new(full_speed.rate(), &whole)?;
    }
    let settings = Settings { policy, ..Settings::new(first, threshold, full_speed) };
    let (mut controller, proposal) = Controller::start(settings, plant.now())?;
    steer(&mut controller, Some(proposal), &mut plant, BEFORE, |_, _| {})?;

    let proposal = match controller.pending().cloned() {
        Some(pending) => {
            controller.retarget(second, None)?;
            Some(pending)
        }
        None => controller.retarget(second, None)?,
    };
    // Seconds, and the part of full speed.
    let mut seen: Vec<(f64, f64)> = Vec::new();
    let mut changes = 0;
    let truth = plant.0.clone();
    steer(&mut controller, proposal, &mut plant, AFTER, |report, controller| {
        seen.push((report.seconds(), report.rate() / truth.full_rate_at(report.to())));
        changes += usize::from(seen.len() > AFTER / 2 && controller.pending().is_some());
    })?;
    let error = |fraction: f64| 100.0 * (fraction - second.as_f64()).abs();
    let within = seen.iter().position(|(_, fraction)| error(*fraction) <= threshold_percent);
    let response = within.map_or(NEVER, |at| (at + 1) as f64);
    let settled = seen[AFTER / 2..].chunks_exact(REPORTS_A_MEAN);
    let mean = |group: &[(f64, f64)]| {
        let done: f64 = group.iter().map(|(seconds, fraction)| seconds * fraction).sum();
        error(done / group.iter().map(|(seconds, _)| seconds).sum::<f64>())
    };
    let (errors, program) = (settled.map(mean).collect(), program.to_owned());
    Ok(Run {
        program,
        policy: policy_name,
        targets,
        threshold_percent,
        seed,
        response,
        errors,
        changes,
    })
}

/// What one report costs the controller of an application on 64 nodes.
fn decision_time(figures: &mut Figures) -> Result<()> {
    let program = Program::balanced(64, COMPUTE, 1.0, Waiting::Blocks);
    let mut plant = BspPlant::new(program, Processors::default(), 1);
    let half = Share::from_percent(50).unwrap_or(Share::ONE);
    let threshold = Share::from_percent(2).unwrap_or(Share::ONE);
    let settings = Settings::new(half, threshold, plant.full_speed(30)?);
    let (mut controller, proposal) = Controller::start(settings, plant.now())?;
    plant.apply(&proposal.schedules);
    let in_force = keeptime_control::Outcome::InForce { since: plant.now() };
    controller.resolve(proposal.sequence, in_force);
    let mut samples = Vec::new();
    for _ in 0..2_000 {
        let report = plant.next_report();
        let start = Instant::now();
        let proposal = controller.report(&report)?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        if let Some(proposal) = proposal {
            plant.apply(&proposal.schedules);
            let in_force = keeptime_control::Outcome::InForce { since: plant.now() };
            controller.resolve(proposal.sequence, in_force);
        }
    }
    figures.median("one report, 64 nodes", "us", &samples, None, None);
    Ok(())
}
