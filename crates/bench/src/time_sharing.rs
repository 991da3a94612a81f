//! `make eval-time-sharing`: Figures 2 to 15 of the time-sharing paper, done again with real programs on a lab, through
//! broker, agents and kernel; the paper's own policy beside ours on the same programs, and Slurm's gang scheduling where
//! programs share nodes. What of it is simulated (`bench-control`, `bench-deadline`) is on the same page.
//!
//! Scaled: iterations of a tenth of a second in the place of sixteen seconds, reports of a second; nodes of less than
//! half a processor, since the machine has two; disks and memory in proportion. Rates are counted by the lines
//! that programs print, against full speed as the controller follows it.

mod figures;
mod gang;
mod page;
mod watched;

use crate::awake::Awake;
use crate::figures as results;
use crate::lab::BenchLab;
use crate::mpi::ranks::{Library, Ranks};
use crate::parts::Parts;
use crate::quick;
use anyhow::{Context, Result, bail};
use gang::{Gang, Slurm};
use keeptime::commands::Session;
use keeptime::commands::rate::FullSpeedFrom;
use keeptime::interrupt;
use keeptime::load::Busy;
use keeptime::machine::Machine;
use keeptime::rate::steering::Wanted;
use keeptime_control::{Policy, Schedule};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, thread};
use watched::{Steered, Trace};

const NAME: &str = "time-sharing";
const NODES: u32 = 4;
const LINK: BitsPerSecond = BitsPerSecond::from_mbit(200);
/// Of a node. Programs have 38 %: what is left is for who starts them.
const NODE: CpuPpm = CpuPpm::from_percent(42);
/// Of a program, on each node, as in its application file.
const PROGRAM: CpuPpm = CpuPpm::from_percent(38);
/// What the paper allows, in percent of full speed.
const THRESHOLD: f64 = 3.0;
/// From a new target on: what is counted later is the steady state.
const SETTLE: f64 = 5.0;
/// The paper states errors as means of 20 reports.
const REPORTS_A_MEAN: f64 = 20.0;

/// A bulk-synchronous program: its name, computing to communicating, and milliseconds of computing in an iteration.
type Shape = (&'static str, f64, u32);

const HIGH: Shape = ("5:1", 5.0, 40);
const MEDIUM: Shape = ("1:1", 1.0, 25);
const LOW: Shape = ("1:5", 0.2, 10);
const THREE: Shape = ("3:1", 3.0, 30);
const HALF: Shape = ("1:2", 0.5, 20);
/// That nearly only computes: of Figure 13 and of Figure 15 (a).
const ALONE: Shape = ("145:1", 145.0, 80);
/// Of Figure 15 (b).
const SEVEN: Shape = ("7:1", 7.0, 40);
/// Of Figure 14, besides.
const DISK_RATIOS: [Shape; 4] =
    [("65:1", 65.0, 80), ("2:1", 2.0, 40), HALF, ("1:3", 1.0 / 3.0, 20)];
/// MiB that each rank writes in an iteration, of Figure 13 and of Figure 14.
const DISK_MIB: [u32; 6] = [0, 1, 2, 5, 10, 20];
const DISK_MIB_OF_RATIOS: u32 = 2;
/// MiB of each of both programs of Figure 15, and their targets.
const MEMORY: [(u32, u32); 2] = [(600, 30), (700, 40)];
/// Thresholds of Figure 5, in percent.
const THRESHOLDS: [f64; 4] = [3.0, 2.0, 1.0, 0.5];
/// Programs at once, of Figure 12; the paper stops at six.
const PROGRAMS: [u32; 6] = [2, 3, 4, 5, 6, 8];
/// Of Figure 2.
const PERIODS_MS: [u64; 5] = [20, 40, 80, 160, 320];
const SHARES: [u32; 6] = [10, 25, 40, 55, 70, 90];

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    /// By name of their programs: how these run with nobody else there and nothing reserved. The noise floor.
    alone: Vec<(String, Trace)>,
    /// Figure 2.
    range: Range,
    /// All others.
    runs: Vec<Run>,
    /// Figures 11 and 12, by Slurm.
    gang: Gang,
}

/// How fast a program runs with every schedule.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Range {
    /// Iterations a second at full speed.
    full_speed: f64,
    /// Parts of what is used at full speed, seconds of a period, iterations a second.
    points: Vec<(f64, f64, f64)>,
}

/// A program in one of the paper's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Run {
    /// Of the paper.
    figure: u32,
    /// Which of those in the figure.
    label: String,
    /// Who decides.
    by: By,
    /// In percent of full speed.
    threshold: f64,
    stages: Vec<Stage>,
    trace: Trace,
}

/// Who decides what a program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum By {
    Ours,
    Paper,
    /// What was right at the start, and nobody corrects it.
    Nobody,
    /// Nothing is reserved.
    Unprotected,
    /// Slurm's gang scheduling.
    Gang,
}

/// A time with one target, in seconds since the beginning of the figure.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Stage {
    /// In percent of full speed.
    target: u32,
    from: f64,
    to: f64,
}

/// Measures what an interrupted run has not, and writes figures, raw data and the page.
pub fn run(out: &Path) -> Result<()> {
    interrupt::listen()?;
    // Measured by other commands; better to know now that they are missing.
    let simulated = ["control", "deadline"].map(|name| results::read(out, name));
    let [control, deadline] = simulated;
    let (control, deadline) = (control?, deadline?);
    let mut parts = Parts::open(&out.join(NAME))?;
    let machine = parts.machine()?;
    let raw = measure(machine, &mut parts, out)?;
    let figures = figures::all(&raw);
    page::write(&raw, figures.all(), [&control, &deadline], out)?;
    figures.finish(out, &raw)?;
    parts.finish()
}

fn measure(machine: Machine, parts: &mut Parts, out: &Path) -> Result<Raw> {
    let _awake = Awake::begin()?;
    let lab = BenchLab::star("eval-time-sharing", NODES, LINK, NODE)?;
    let study = Study { lab, out: std::path::absolute(out)? };
    let mut alone = Vec::new();
    for shape in if quick() { &[MEDIUM][..] } else { &[HIGH, MEDIUM, LOW, THREE, HALF] } {
        let name = shape.0.to_owned();
        // With it, full speed is known to what comes later.
        alone.push((name, parts.part(&format!("alone, {}", shape.0), || study.alone(*shape))?));
    }
    let mut runs = Vec::new();
    let mut figure = |name: &str, measure: &dyn Fn() -> Result<Vec<Run>>| -> Result<()> {
        let measure = || {
            eprintln!("{name}");
            measure()
        };
        runs.extend(parts.part(name, measure)?);
        Ok(())
    };
    if quick() {
        figure("figure 8", &|| Ok(vec![study.changing(MEDIUM)?]))?;
        let gang = parts.part("gang scheduling", || study.in_turns())?;
        return Ok(Raw { machine, alone, range: Range::default(), runs, gang });
    }
    figure("figure 3", &|| study.drift(MEDIUM))?;
    for shape in [HIGH, MEDIUM, LOW] {
        for by in [By::Ours, By::Paper] {
            let name = format!("figures 4, 6 and 7, {}, {by:?}", shape.0);
            figure(&name, &|| Ok(vec![study.responding(shape, by)?]))?;
        }
    }
    for by in [By::Ours, By::Paper] {
        figure(&format!("figure 5, {by:?}"), &|| study.thresholds(MEDIUM, by))?;
    }
    figure("figure 8", &|| Ok(vec![study.changing(MEDIUM)?]))?;
    figure("figure 9", &|| study.loaded(THREE))?;
    figure("figure 10", &|| Ok(vec![study.sorting()?]))?;
    figure("figure 11", &|| study.both(MEDIUM))?;
    for count in PROGRAMS {
        figure(&format!("figure 12, {count}"), &|| study.many(THREE, count))?;
    }
    for mib in DISK_MIB {
        figure(&format!("figure 13, {mib} MiB"), &|| Ok(vec![study.writing(13, ALONE, mib)?]))?;
    }
    for shape in DISK_RATIOS {
        let measure = || Ok(vec![study.writing(14, shape, DISK_MIB_OF_RATIOS)?]);
        figure(&format!("figure 14, {}", shape.0), &measure)?;
    }
    for shape in [ALONE, SEVEN] {
        figure(&format!("figure 15, {}", shape.0), &|| study.touching(shape))?;
    }
    let range = parts.part("figure 2", || study.range(HALF))?;
    let gang = parts.part("gang scheduling", || study.in_turns())?;
    Ok(Raw { machine, alone, range, runs, gang })
}

/// The lab, and where results go.
struct Study {
    lab: BenchLab,
    out: PathBuf,
}

/// A program that can be started.
struct Program {
    session: Session,
    nodes: u32,
    label: String,
}

impl Study {
    /// The integer sort.
    fn sort(&self) -> Result<Program> {
        self.program("is", "eval/time-sharing/is.toml", NODES, &[])
    }

    /// A bulk-synchronous program, with what else is filled in.
    fn patterns(&self, shape: Shape, others: &[(&str, u32)]) -> Result<Program> {
        let (name, ratio, compute) = shape;
        let path = self.out.join(NAME).join(format!("{}.shape.json", file_name(name)));
        // What an iteration of this ratio is depends on the machine: found once.
        let [steps, bytes]: [u32; 2] = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged: remove it", path.display()))?,
            Err(_) => {
                let (compute, ratio) = (compute.to_string(), ratio.to_string());
                let words = ["bsp", "--compute", &compute, "--ratio", &ratio, "--iterations", "20"];
                let ranks = Ranks::on(&self.lab, PROGRAM)?;
                let told =
                    ranks.run(NODES as usize, Library::Absent, &words, "seconds_per_iteration")?;
                let found =
                    [told.numbers("steps")?[0] as u32, (told.numbers("bytes")?[0] as u32).max(1)];
                eprintln!("{name}: {} thousand steps, {} bytes", found[0], found[1]);
                keeptime::files::save_json(&path, &found)?;
                found
            }
        };
        let mut constants = vec![("steps", steps), ("bytes", bytes)];
        constants.extend(others);
        self.program(name, "eval/time-sharing/patterns.toml", NODES, &constants)
    }

    fn program(
        &self,
        name: &str,
        file: &str,
        nodes: u32,
        constants: &[(&str, u32)],
    ) -> Result<Program> {
        let others = constants.iter().filter(|(name, _)| !["steps", "bytes"].contains(name));
        let label =
            others.fold(name.to_owned(), |label, (name, value)| format!("{label}, {name} {value}"));
        // Full speed is kept beside it, by what is filled in.
        let profile = self.out.join(NAME).join(format!("{}.json", file_name(&label)));
        let mut session = self.lab.session(file, &profile)?;
        let out = [("out", self.out.display().to_string())].into_iter();
        let constants = constants.iter().map(|(name, value)| (*name, value.to_string()));
        for (name, value) in out.chain(constants) {
            session.application = session.application.with_constant(name.parse()?, value);
        }
        Ok(Program { session, nodes, label })
    }

    /// Full speed, which is kept, and how the program runs with nothing reserved.
    fn alone(&self, shape: Shape) -> Result<Trace> {
        let program = self.patterns(shape, &[])?;
        program.measured()?;
        let begin = Instant::now();
        watched::unprotected(&program.session, NODES, begin, |run| {
            run.wait_for_first()?;
            run.wait(if quick() { 5.0 } else { 30.0 })
        })
    }

    /// Figure 2.
    fn range(&self, shape: Shape) -> Result<Range> {
        let program = self.patterns(shape, &[])?;
        let (full_speed, used) = program.measured()?;
        let mut points = Vec::new();
        let mut stages = Vec::new();
        let trace = watched::still(&program.session, NODES, Instant::now(), |run| {
            run.watched().wait_for_first()?;
            for share in SHARES {
                for period in PERIODS_MS {
                    let cpu = CpuPpm::new((used * f64::from(share) * 1e4) as u32);
                    run.apply(Schedule::new(cpu, Nanos::from_millis(period)))?;
                    run.watched().wait(1.0)?;
                    let from = run.watched().now();
                    run.watched().wait(4.0)?;
                    stages.push((share, period, from, run.watched().now()));
                }
            }
            run.watched().wait(1.0)
        })?;
        for (share, period, from, to) in stages {
            points.push((f64::from(share) / 100.0, period as f64 / 1e3, trace.rate(from, to)));
        }
        Ok(Range { full_speed, points })
    }

    /// Figure 3: on two nodes, as there.
    fn drift(&self, shape: Shape) -> Result<Vec<Run>> {
        let program = Program { nodes: 2, ..self.patterns(shape, &[])? };
        program.measured()?;
        let target = 50;
        let ours = program.run(3, By::Ours, THRESHOLD, &[(target, 90.0)], |_| Ok(()))?;
        let seen = ours.trace.seen.first().copied().context("nothing was seen")?;
        let (share, period) = seen.share.zip(seen.period).context("it had no schedule")?;
        let period = Nanos::from_secs_f64(period).context("it had no period")?;
        let schedule = Schedule::new(CpuPpm::new((share * 1e6).round() as u32), period);
        let mut stage = (0.0, 0.0);
        let trace = watched::still(&program.session, 2, Instant::now(), |run| {
            run.apply(schedule)?;
            run.watched().wait_for_first()?;
            let from = run.watched().now();
            run.watched().wait(90.0)?;
            stage = (from, run.watched().now());
            Ok(())
        })?;
        let stages = vec![Stage { target, from: stage.0, to: stage.1 }];
        // Against the full speed that the other one had in the same second of its run, for want of its own.
        let trace = Trace { seen: ours.trace.seen.clone(), ..trace };
        let nobody = Run { by: By::Nobody, stages, trace, ..ours.clone() };
        Ok(vec![ours, nobody])
    }

    /// Figures 4, 6 and 7: from target to target, and the last one for longer.
    fn responding(&self, shape: Shape, by: By) -> Result<Run> {
        let program = self.patterns(shape, &[])?;
        let targets = [(30, 26.0), (60, 26.0), (20, 26.0), (50, 46.0)];
        program.run(4, by, THRESHOLD, &targets, |_| Ok(()))
    }

    /// Figure 5: the same target with less and less room for errors.
    fn thresholds(&self, shape: Shape, by: By) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[])?;
        let one = |threshold: f64| program.run(5, by, threshold, &[(50, 35.0)], |_| Ok(()));
        THRESHOLDS.into_iter().map(one).collect()
    }

    /// Figure 8.
    fn changing(&self, shape: Shape) -> Result<Run> {
        let program = self.patterns(shape, &[])?;
        let seconds = if quick() { 6.0 } else { 20.0 };
        let targets = [30, 60, 20, 80, 40].map(|target| (target, seconds));
        program.run(8, By::Ours, THRESHOLD, &targets, |_| Ok(()))
    }

    /// Figure 9: another program wants all of one node's processor from the middle on; and the same where nothing is
    /// reserved. The second stage is the one with that program.
    fn loaded(&self, shape: Shape) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[])?;
        let (target, seconds) = (50, 30.0);
        let busy = || Busy::on(self.lab.cluster(), NodeIndex(0), 1);
        let mut ours = program.run(9, By::Ours, THRESHOLD, &[(target, seconds)], |run| {
            let _busy = busy()?;
            run.wait(seconds)
        })?;
        let middle = ours.stages[0].to;
        ours.stages.push(Stage { target, from: middle, to: middle + seconds });
        let mut stages = Vec::new();
        let trace = watched::unprotected(&program.session, NODES, Instant::now(), |run| {
            run.wait_for_first()?;
            run.wait(1.0)?;
            let from = run.now();
            run.wait(seconds)?;
            let middle = run.now();
            let _busy = busy()?;
            run.wait(seconds)?;
            stages = vec![(from, middle), (middle, run.now())];
            Ok(())
        })?;
        let stage = |(from, to)| Stage { target: 100, from, to };
        let stages = stages.into_iter().map(stage).collect();
        let bare = Run { by: By::Unprotected, stages, trace, ..ours.clone() };
        Ok(vec![ours, bare])
    }

    /// Figure 10: ranks with unequal work at half of full speed.
    fn sorting(&self) -> Result<Run> {
        let program = self.sort()?;
        program.measured()?;
        program.run(10, By::Ours, THRESHOLD, &[(50, 46.0)], |_| Ok(()))
    }

    /// Figure 11.
    fn both(&self, shape: Shape) -> Result<Vec<Run>> {
        steered_at_once(11, self.two(shape)?, 46.0)
    }

    /// Figure 12.
    fn many(&self, shape: Shape, count: u32) -> Result<Vec<Run>> {
        let runs = steered_at_once(12, self.alike(shape, count)?, 46.0)?;
        Ok(labelled(runs, &count.to_string()))
    }

    /// Figures 11 and 12 by Slurm, which knows no targets.
    fn in_turns(&self) -> Result<Gang> {
        eprintln!("gang scheduling");
        let slurm = Slurm::start(self.lab.cluster())?;
        let version = slurm.version().to_owned();
        let alone = slurm.alone(&self.patterns(MEDIUM, &[])?)?;
        let mut runs = slurm.in_turns(11, self.two(MEDIUM)?, alone)?;
        if !quick() {
            let alone = slurm.alone(&self.patterns(THREE, &[])?)?;
            for count in PROGRAMS {
                let many = slurm.in_turns(12, self.alike(THREE, count)?, alone)?;
                runs.extend(labelled(many, &count.to_string()));
            }
        }
        Ok(Gang { version, runs })
    }

    /// The programs of Figure 11, and the parts of full speed that they are to run at, in percent.
    fn two(&self, shape: Shape) -> Result<Vec<(Program, u32)>> {
        [30, 40].into_iter().map(|target| Ok((self.patterns(shape, &[])?, target))).collect()
    }

    /// Those of Figure 12.
    fn alike(&self, shape: Shape, count: u32) -> Result<Vec<(Program, u32)>> {
        (0..count).map(|_| Ok((self.patterns(shape, &[])?, 10))).collect()
    }

    /// Figures 13 and 14: a program that waits for its disk, too.
    fn writing(&self, figure: u32, shape: Shape, mib: u32) -> Result<Run> {
        let program = self.patterns(shape, &[("disk", mib)])?;
        // Programs that are ended leave what they have written, and take nobody's files for theirs.
        let files: Vec<_> =
            (0..NODES).map(|rank| self.out.join(NAME).join(format!("disk.{rank}"))).collect();
        let remove = || files.iter().for_each(|file| drop(fs::remove_file(file)));
        remove();
        program.measured()?;
        remove();
        let run = program.run(figure, By::Ours, THRESHOLD, &[(50, 26.0)], |_| Ok(()));
        remove();
        run
    }

    /// Figure 15: two programs that touch much memory.
    fn touching(&self, shape: Shape) -> Result<Vec<Run>> {
        let program = |(mib, target): (u32, u32)| -> Result<(Program, u32)> {
            let program = self.patterns(shape, &[("memory", mib / NODES)])?;
            program.measured()?;
            Ok((program, target))
        };
        let programs = MEMORY.into_iter().map(program).collect::<Result<_>>()?;
        Ok(labelled(steered_at_once(15, programs, 46.0)?, shape.0))
    }
}

impl Program {
    /// Measures full speed, which is kept for later: iterations a second, and the part of a node's processor.
    fn measured(&self) -> Result<(f64, f64)> {
        let wanted = wanted(100, THRESHOLD, By::Ours)?;
        let how = (wanted, FullSpeedFrom::Measured);
        let act = |run: &Steered<'_>| {
            run.ready()?;
            run.wait(1.0)
        };
        let trace = watched::steered(&self.session, self.nodes, how, Instant::now(), act)?;
        let of = |seen: &watched::Seen| Some((seen.full_speed?, seen.share?));
        trace.seen.iter().find_map(of).context("full speed was not found")
    }

    /// Runs it at one target after the other, each for so many seconds, and then does `last`.
    fn run(
        &self,
        figure: u32,
        by: By,
        threshold: f64,
        targets: &[(u32, f64)],
        last: impl FnOnce(&Steered<'_>) -> Result<()>,
    ) -> Result<Run> {
        let mut stages = Vec::new();
        let first = targets.first().context("no targets")?.0;
        let how = (wanted(first, threshold, by)?, FullSpeedFrom::Known);
        let trace = watched::steered(&self.session, self.nodes, how, Instant::now(), |run| {
            run.ready()?;
            for (target, seconds) in targets {
                if !stages.is_empty() {
                    run.set(percent(f64::from(*target))?)?;
                }
                let from = run.now();
                run.wait(*seconds)?;
                stages.push(Stage { target: *target, from, to: run.now() });
            }
            last(run)
        })?;
        Ok(Run { figure, label: self.label.clone(), by, threshold, stages, trace })
    }
}

/// Programs that are started apart go on together from here.
struct Gate {
    count: usize,
    ready: AtomicUsize,
    failed: AtomicBool,
}

impl Gate {
    /// Waits for all others; `wait` lets so many seconds pass, and fails if its own program has ended.
    fn pass(&self, wait: impl Fn(f64) -> Result<()>) -> Result<()> {
        self.ready.fetch_add(1, Ordering::SeqCst);
        self.until(self.count, wait)
    }

    /// The same until so many are here, without being one of them.
    fn until(&self, count: usize, wait: impl Fn(f64) -> Result<()>) -> Result<()> {
        while self.ready.load(Ordering::SeqCst) < count {
            if self.failed.load(Ordering::SeqCst) {
                bail!("another one has failed");
            }
            wait(0.1)?;
        }
        Ok(())
    }
}

/// Runs programs at once, each by `one`, which is told its number, from 0 on.
fn at_once<P: Sync>(
    programs: &[P],
    one: impl Fn(usize, &P, &Gate) -> Result<Run> + Sync,
) -> Result<Vec<Run>> {
    let gate =
        &Gate { count: programs.len(), ready: AtomicUsize::new(0), failed: AtomicBool::new(false) };
    let one = &one;
    let run = move |(number, program)| {
        one(number, program, gate).inspect_err(|_| gate.failed.store(true, Ordering::SeqCst))
    };
    thread::scope(|scope| {
        let start = |program| scope.spawn(move || run(program));
        let running: Vec<_> = programs.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Run>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}

/// The same, each held at its target for so many seconds from when all of them run.
fn steered_at_once(figure: u32, programs: Vec<(Program, u32)>, seconds: f64) -> Result<Vec<Run>> {
    let begin = Instant::now();
    at_once(&programs, |_, (program, target), gate| {
        let mut stages = Vec::new();
        let how = (wanted(*target, THRESHOLD, By::Ours)?, FullSpeedFrom::Known);
        let trace = watched::steered(&program.session, program.nodes, how, begin, |run| {
            run.ready()?;
            gate.pass(|seconds| run.wait(seconds))?;
            let from = run.now();
            run.wait(seconds)?;
            stages.push(Stage { target: *target, from, to: run.now() });
            Ok(())
        })?;
        let label = format!("{} at {target} %", program.label);
        Ok(Run { figure, label, by: By::Ours, threshold: THRESHOLD, stages, trace })
    })
}

fn labelled(runs: Vec<Run>, label: &str) -> Vec<Run> {
    runs.into_iter().map(|run| Run { label: label.into(), ..run }).collect()
}

fn wanted(target: u32, threshold: f64, by: By) -> Result<Wanted> {
    let policy = match by {
        By::Paper => Policy::paper(),
        _ => Policy::predictive(),
    };
    Ok(Wanted { target: percent(f64::from(target))?, threshold: percent(threshold)?, policy })
}

fn percent(value: f64) -> Result<Share> {
    Ok(Share::try_from((value * 1e4).round() as u32)?)
}

fn file_name(label: &str) -> String {
    label.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}
