//! A real program held at a part of its full speed, on a lab: through broker, agents and kernel.
//!
//! `bsp` runs on two nodes. Its rate is counted here, by the lines that it prints, and not taken from what the
//! controller believes; full speed, which wanders, is what it did at 100 % before and after each target.

use crate::figures::{Figures, Target, quantile};
use crate::lab::BenchLab;
use crate::quick;
use anyhow::{Context, Result, bail};
use keeptime::cluster::Cluster;
use keeptime::commands::rate::{FullSpeedFrom, Held};
use keeptime::machine::Machine;
use keeptime::rate::door::{Answer, Asked, RateView, ask};
use keeptime::rate::steering::{Phase, Wanted};
use keeptime_control::Policy;
use keeptime_launch::process::Said;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::goal::Goal;
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Share};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NODES: u32 = 2;
const CPU: CpuPpm = CpuPpm::from_percent(45);
const TARGETS: [u32; 4] = [30, 60, 20, 50];
const THRESHOLD: u32 = 2;
/// From a new target on: what is counted later is the steady state.
const SETTLE: Duration = Duration::from_secs(10);
/// The paper states errors as means over 20 reports; a report is a second here.
const COUNTED: Duration = Duration::from_secs(20);
/// It reads its start, and full speed is measured for five seconds.
const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longer than everything takes; it is stopped before.
const SECONDS_MAX: &str = "3600";
/// Reports until one is within the threshold; more count as never.
const REPORTS_MAX: u32 = 10;

#[derive(Serialize)]
struct Raw {
    machine: Machine,
    trials: Vec<Trial>,
}

/// One target between two times at full speed.
#[derive(Serialize)]
struct Trial {
    target_percent: u32,
    /// Iterations a second at 100 %, before and after.
    full: [f64; 2],
    /// The same at the target.
    rate: f64,
    /// What the controller took full speed to be then.
    full_believed: f64,
    /// Reports until one was within the threshold.
    reports: u32,
}

impl Trial {
    /// In percentage points of full speed.
    fn error(&self) -> f64 {
        let full = (self.full[0] + self.full[1]) / 2.0;
        (100.0 * self.rate / full - f64::from(self.target_percent)).abs()
    }

    fn error_believed(&self) -> f64 {
        (100.0 * self.rate / self.full_believed - f64::from(self.target_percent)).abs()
    }

    fn wander(&self) -> f64 {
        100.0 * (self.full[1] / self.full[0] - 1.0).abs()
    }
}

/// Measures and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let bench = BenchLab::star("bench-rate", NODES, BitsPerSecond::from_mbit(200), CPU)?;
    let mut session = bench.session("bsp", &out.join("rate").join("none.json"))?;
    session.application = session.application.with_constant("seconds".parse()?, SECONDS_MAX);
    let goal = Goal { nodes: Some(NODES), ..Goal::default() };
    let (target, threshold) = (percent(100)?, percent(THRESHOLD)?);
    let wanted = Wanted { target, threshold, policy: Policy::predictive() };
    let held = Held::new(&session, &goal, wanted, FullSpeedFrom::Measured, CpuMechanism::Auto)?;
    let (job, word) = (held.handle(), session.application.progress().context("no progress")?);
    let (ended, lines) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let trials = std::thread::scope(|scope| {
        let stopped = || ended.load(Ordering::SeqCst);
        let runs = scope.spawn(move || {
            // It is stopped, and so never ends well.
            let ran = held.run(&stopped, &mut |said| {
                let is_told = |line: &str| line.split_whitespace().next() == Some(word);
                let told = matches!(said, Said::Out(line) if is_told(line));
                lines.fetch_add(u64::from(told), Ordering::SeqCst);
            });
            ran.err()
        });
        let run = Watched { cluster: bench.cluster(), job, lines };
        let trials = run.trials();
        ended.store(true, Ordering::SeqCst);
        let why = runs.join().ok().flatten();
        trials.with_context(|| format!("the run: {why:?}"))
    })?;
    figures(&trials).finish(out, &Raw { machine: Machine::here(), trials })
}

/// The run, from outside.
struct Watched<'a> {
    cluster: &'a Cluster,
    job: Handle,
    lines: &'a AtomicU64,
}

impl Watched<'_> {
    fn trials(&self) -> Result<Vec<Trial>> {
        let start = Instant::now();
        while !matches!(self.state(), Ok(view) if view.state.phase == Phase::Steered) {
            if start.elapsed() > READY_WITHIN {
                bail!("full speed was not found within {READY_WITHIN:?}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let rounds = if quick() { 1 } else { 2 };
        let mut trials = Vec::new();
        std::thread::sleep(SETTLE);
        let mut before = self.rate();
        for target_percent in TARGETS.into_iter().cycle().take(rounds * TARGETS.len()) {
            let reports = self.set(target_percent)?;
            let rate = self.rate();
            let full_believed = self.state()?.state.full_speed.unwrap_or(f64::NAN);
            self.set(100)?;
            let after = self.rate();
            eprintln!(
                "{target_percent} %: {rate:.2} of {before:.2} and {after:.2} iterations a second"
            );
            let full = [before, after];
            trials.push(Trial { target_percent, full, rate, full_believed, reports });
            before = after;
        }
        Ok(trials)
    }

    /// Iterations a second, for as long as is counted.
    fn rate(&self) -> f64 {
        let (start, before) = (Instant::now(), self.lines.load(Ordering::SeqCst));
        std::thread::sleep(COUNTED);
        let done = self.lines.load(Ordering::SeqCst) - before;
        done as f64 / start.elapsed().as_secs_f64()
    }

    /// Another target, and time to settle; after how many reports one was within the threshold.
    fn set(&self, target_percent: u32) -> Result<u32> {
        let start = Instant::now();
        let target = percent(target_percent)?;
        if let Answer::Refused { reason } =
            ask(&self.cluster.rates_directory(), self.job, Asked::Set { target })?
        {
            bail!("{target_percent} % was refused: {reason}");
        }
        let mut last = self.state()?.state.actual;
        let (mut reports, mut within) = (0, None);
        while start.elapsed() < SETTLE {
            std::thread::sleep(LOOK_EVERY);
            let actual = self.state()?.state.actual;
            if actual == last {
                continue;
            }
            (last, reports) = (actual, reports + 1);
            let error = actual.map(|actual| (actual - target.as_f64()).abs());
            if error.is_some_and(|error| error <= f64::from(THRESHOLD) / 100.0) {
                within.get_or_insert(reports);
            }
        }
        Ok(within.unwrap_or(REPORTS_MAX))
    }

    fn state(&self) -> Result<RateView> {
        match ask(&self.cluster.rates_directory(), self.job, Asked::State)? {
            Answer::State(view) => Ok(*view),
            Answer::Course(view) => bail!("{} is not held at a rate", view.job),
            Answer::Refused { reason } => bail!(reason),
        }
    }
}

fn figures(trials: &[Trial]) -> Figures {
    let all = |of: fn(&Trial) -> f64| trials.iter().map(of).collect::<Vec<_>>();
    let mut figures = Figures::new("rate");
    let wander = quantile(&all(Trial::wander), 0.5);
    let name = "rate error over 20 s, full speed as it was before and after";
    let points = "% points";
    let target = Some(Target::AtMost(1.0));
    let figure = figures.median(name, points, &all(Trial::error), Some(wander), target);
    figure.against("full speed from one time to the next");
    let name = "rate error over 20 s, full speed as followed";
    figures.median(name, points, &all(Trial::error_believed), None, Some(Target::AtMost(1.0)));
    let reports = all(|trial| f64::from(trial.reports));
    let figure = figures.median("reports to a new target", "", &reports, Some(2.0), target);
    figure.against("the paper's iterations");
    let worst = reports.iter().copied().fold(0.0, f64::max);
    let name = "reports to a new target, worst";
    figures.value(name, "", worst, &reports, None, Some(Target::AtMost(3.0)));
    figures.median("full speed from one time to the next", "%", &all(Trial::wander), None, None);
    figures
}

fn percent(value: u32) -> Result<Share> {
    Share::from_percent(value).with_context(|| format!("{value} % is no share"))
}
