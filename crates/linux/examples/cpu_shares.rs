//! What a busy loop gets of what it was promised, by `SCHED_DEADLINE` and by the bandwidth of its
//! control group, in turns, beside two ordinary busy loops for each processor. Needs root.
//!
//!     cargo run --release -p keeptime-linux --example cpu_shares -- [ROUNDS]
use keeptime_linux::cgroup::{Group, Hierarchies, MARK};
use keeptime_linux::deadline;
use keeptime_model::units::{CpuPpm, Nanos};
use std::error::Error;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Slice and period in milliseconds.
const SETTINGS: [(u32, u32); 5] = [(10, 20), (50, 100), (2, 10), (5, 100), (1, 5)];
const SPAN: Duration = Duration::from_secs(2);
const BUSY: &str = "while :; do :; done";

/// A process that is killed when this is dropped.
struct Loop(Child);

impl Loop {
    fn start() -> std::io::Result<Self> {
        Command::new("sh").args(["-c", BUSY]).spawn().map(Self)
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

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    let name = format!("_example-{}", std::process::id());
    let group = Hierarchies::discover()?.group(Path::new(MARK).join(name))?;
    group.create()?;
    let measured = measure(&group, rounds);
    group.kill_all()?;
    group.remove()?;
    println!(
        "{:>8} {:>12} {:>30} {:>30}",
        "slice ms", "period ms", "deadline, % of it", "bandwidth, % of it"
    );
    for ((slice, period), [by_deadline, by_bandwidth]) in SETTINGS.into_iter().zip(measured?) {
        let [left, right] = [summary(by_deadline), summary(by_bandwidth)];
        println!("{slice:>8} {period:>12} {left:>30} {right:>30}");
    }
    Ok(())
}

/// Per cent of what was promised, for each setting: by deadlines, by bandwidth.
fn measure(group: &Group, rounds: usize) -> Result<Vec<[Vec<f64>; 2]>, Box<dyn Error>> {
    let processors = std::thread::available_parallelism()?.get();
    let _others = (0..2 * processors).map(|_| Loop::start()).collect::<Result<Vec<_>, _>>()?;
    let mut measured = vec![[Vec::new(), Vec::new()]; SETTINGS.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for ((slice, period), [by_deadline, by_bandwidth]) in
            SETTINGS.into_iter().zip(&mut measured)
        {
            let cpu = CpuPpm::new(1_000_000 / period * slice);
            let period = Nanos::from_millis(u64::from(period));
            by_deadline.push(share(group, cpu, period, true)?);
            by_bandwidth.push(share(group, cpu, period, false)?);
        }
    }
    Ok(measured)
}

fn share(
    group: &Group,
    cpu: CpuPpm,
    period: Nanos,
    deadlines: bool,
) -> Result<f64, Box<dyn Error>> {
    let job = Loop::start()?;
    group.join(job.pid())?;
    if deadlines {
        // No limit beside the schedule that could be the one that shows.
        group.set_cpu_in_periods(CpuPpm::from_percent(100), period)?;
        deadline::enforce(cpu, period, &[job.pid()])?.map_err(|obstacle| obstacle.to_string())?;
    } else {
        group.set_cpu_in_periods(cpu, period)?;
    }
    std::thread::sleep(Duration::from_millis(300));
    let (start, before) = (Instant::now(), group.cpu_usage()?);
    std::thread::sleep(SPAN);
    let used = group.cpu_usage()?.as_secs_f64() - before.as_secs_f64();
    let promised = f64::from(cpu.get()) / 1e6 * start.elapsed().as_secs_f64();
    Ok(100.0 * used / promised)
}

/// Median, least and most.
fn summary(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let (least, most) = (samples[0], samples[samples.len() - 1]);
    format!("{:.1} ({least:.1} to {most:.1})", samples[samples.len() / 2])
}
