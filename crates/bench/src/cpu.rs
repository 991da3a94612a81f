//! Shares of CPU: what a busy loop gets of what it was promised, by `SCHED_DEADLINE` and by the bandwidth of its control
//! group, in turns beside two ordinary busy loops for each processor; how much of the machine `SCHED_DEADLINE` can give
//! out; and how soon a change that an agent is told of is in force.

use crate::figures::{Figures, Target};
use crate::lab::BenchLab;
use anyhow::{Context, Result, anyhow, ensure};
use keeptime::cluster::socket_in;
use keeptime_agent::client::Client;
use keeptime_agent::clock::now;
use keeptime_linux::cgroup::{Group, Hierarchies, MARK};
use keeptime_linux::deadline;
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde::Serialize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "cpu";
/// Slice and period in milliseconds.
const SETTINGS: [(u32, u32); 5] = [(10, 20), (50, 100), (2, 10), (5, 100), (1, 5)];
const ROUNDS: usize = 5;
const SPAN: Duration = Duration::from_secs(2);
/// Until a loop has begun, and a schedule is the one that it was given.
const SETTLES: Duration = Duration::from_millis(300);
const BUSY: &str = "while :; do :; done";
const PERIOD: Nanos = Nanos::from_millis(20);
/// Changes that are timed.
const CHANGES: usize = 200;
/// Between which shares.
const SHARES: [CpuPpm; 2] = [CpuPpm::from_percent(20), CpuPpm::from_percent(30)];
const LEASE: Nanos = Nanos::from_secs(600);

/// Everything that was measured, one entry a round.
#[derive(Debug, Default, Serialize)]
struct Raw {
    settings: Vec<Setting>,
    /// What the kernel promises, of all processors, in percent.
    promised_percent: Vec<f64>,
    /// What those get to whom all of it was promised.
    got_percent: Vec<f64>,
    /// From asking an agent to its answer, when the kernel has the new limit.
    change_millis: Vec<f64>,
}

/// In percent of what was promised.
#[derive(Debug, Serialize)]
struct Setting {
    slice_millis: u32,
    period_millis: u32,
    by_deadline: Vec<f64>,
    by_bandwidth: Vec<f64>,
}

/// Measures and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let mut raw = Raw::default();
    let group = Hierarchies::discover()?.group(Path::new(MARK).join("_bench-cpu"))?;
    group.create()?;
    let measured = measure(&group, &mut raw);
    group.kill_all()?;
    group.remove()?;
    measured?;
    raw.change_millis = changes()?;
    figures(&raw).finish(out, &raw)
}

fn measure(group: &Group, raw: &mut Raw) -> Result<()> {
    raw.settings = SETTINGS
        .map(|(slice_millis, period_millis)| {
            let (by_deadline, by_bandwidth) = Default::default();
            Setting { slice_millis, period_millis, by_deadline, by_bandwidth }
        })
        .into();
    let processors = thread::available_parallelism()?.get();
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}", round + 1);
        let (promised, got) = given_out(group, processors)?;
        raw.promised_percent.push(promised);
        raw.got_percent.push(got);
        let _others = loops(2 * processors)?;
        for setting in &mut raw.settings {
            let cpu = CpuPpm::new(1_000_000 / setting.period_millis * setting.slice_millis);
            let period = Nanos::from_millis(setting.period_millis.into());
            setting.by_deadline.push(share(group, cpu, period, true)?);
            setting.by_bandwidth.push(share(group, cpu, period, false)?);
        }
    }
    Ok(())
}

/// Percent of the machine that the kernel promises to loops, one for each processor, and that they get, beside
/// ordinary loops.
fn given_out(group: &Group, processors: usize) -> Result<(f64, f64)> {
    let whole = CpuPpm::new(1_000_000 * u32::try_from(processors)?);
    let jobs = loops(processors)?;
    jobs.iter().try_for_each(|job| group.join(job.pid()))?;
    group.set_cpu_in_periods(whole, PERIOD)?;
    let asked = deadline::admissible()?;
    let pids: Vec<i32> = jobs.iter().map(Loop::pid).collect();
    deadline::enforce(asked, PERIOD, &pids)?.map_err(|obstacle| anyhow!("{obstacle}"))?;
    let _others = loops(processors)?;
    let of_machine = |share: f64| 100.0 * share / processors as f64;
    Ok((of_machine(f64::from(asked.get()) / 1e6), of_machine(used(group)?)))
}

/// Percent of what it was promised that a loop gets.
fn share(group: &Group, cpu: CpuPpm, period: Nanos, by_deadline: bool) -> Result<f64> {
    let job = Loop::start()?;
    group.join(job.pid())?;
    if by_deadline {
        // No limit beside the schedule that could be the one that shows.
        group.set_cpu_in_periods(CpuPpm::from_percent(100), period)?;
        let carried = deadline::enforce(cpu, period, &[job.pid()])?;
        carried.map_err(|obstacle| anyhow!("{obstacle}"))?;
    } else {
        group.set_cpu_in_periods(cpu, period)?;
    }
    Ok(100.0 * used(group)? * 1e6 / f64::from(cpu.get()))
}

/// Processors that the group uses, on average over [`SPAN`].
fn used(group: &Group) -> Result<f64> {
    thread::sleep(SETTLES);
    let (start, before) = (Instant::now(), group.cpu_usage()?);
    thread::sleep(SPAN);
    let used = group.cpu_usage()?.as_secs_f64() - before.as_secs_f64();
    Ok(used / start.elapsed().as_secs_f64())
}

/// Milliseconds that changes of a job's share take, from asking the agent of a node until it says that it is done.
fn changes() -> Result<Vec<f64>> {
    let rate = BitsPerSecond::from_mbit(100);
    let bench = BenchLab::star("bench-cpu", 2, rate, CpuPpm::from_percent(40))?;
    let (lab, job): (_, Name) = (bench.lab()?, "job".parse()?);
    let node = &lab.topology().nodes()[0].name;
    let mut client = Client::connect(&socket_in(&lab.node_directory(node)))?;
    let path = lab.group_path(node).context("nodes have no control groups here")?;
    let group = Hierarchies::discover()?.group(path)?.child(job.as_str())?;
    let mut millis = Vec::with_capacity(CHANGES);
    for cpu in SHARES.into_iter().cycle().take(CHANGES) {
        let assignment = Assignment::new(job.clone(), cpu, now().saturating_add(LEASE));
        let start = Instant::now();
        client.enforce(assignment)?;
        millis.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(group.cpu_limit()? == Some(cpu), "the agent said that it is done, and was not");
    }
    client.withdraw(&job)?;
    Ok(millis)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new(NAME);
    for Setting { slice_millis, period_millis, by_deadline, by_bandwidth } in &raw.settings {
        let of = |by| format!("{slice_millis} of {period_millis} ms by {by}, of what was promised");
        figures.median(of("SCHED_DEADLINE"), "%", by_deadline, None, None);
        figures.median(of("the group's bandwidth"), "%", by_bandwidth, None, None);
    }
    let name = "promised by SCHED_DEADLINE, of the machine";
    figures.median(name, "%", &raw.promised_percent, None, Some(Target::AtLeast(90.0)));
    let name = "got of that, of the machine";
    figures.median(name, "%", &raw.got_percent, None, None);
    let name = "a change of a job's share in force";
    figures.median(name, "ms", &raw.change_millis, None, Some(Target::AtMost(1.0)));
    figures
}

fn loops(count: usize) -> Result<Vec<Loop>> {
    (0..count).map(|_| Loop::start()).collect()
}

/// A busy process that is killed when this is dropped.
struct Loop(Child);

impl Loop {
    fn start() -> Result<Self> {
        Ok(Self(Command::new("sh").args(["-c", BUSY]).stdin(Stdio::null()).spawn()?))
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
