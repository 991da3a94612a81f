//! The experiments themselves: which programs run on the lab, at which targets, and what happens to them meanwhile.

use super::gang::Gang;
use super::plan::{ALONE, Experiment, HALF, MEDIUM, Piece, Shape, THREE};
use super::program::Program;
use super::together::steered_at_once;
use super::watched::{self, Trace};
use super::{By, NAME, NODES, PROGRAM, Range, Run, STABLE_THRESHOLD, Stage, THRESHOLD, THRESHOLDS};
use crate::lab::BenchLab;
use crate::mpi::ranks::{Library, Ranks};
use crate::quick;
use anyhow::{Context, Result, bail};
use keeptime::load::Busy;
use keeptime_control::Schedule;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Of Figure 2.
const PERIODS_MS: [u64; 5] = [20, 40, 80, 160, 320];
const SHARES: [u32; 6] = [10, 25, 40, 55, 70, 90];
/// MiB of each of both programs of Figure 15, and their targets.
const MEMORY: [(u32, u32); 2] = [(600, 30), (700, 40)];
/// MiB that each rank writes in an iteration, of Figure 14.
const DISK_MIB_OF_RATIOS: u32 = 2;
/// Seconds at a target where programs share nodes.
const TOGETHER: f64 = 46.0;
/// Seconds at a target in a quick run: until it is steady, and one more.
const QUICK: f64 = 6.0;

/// A lab, and what is known of the programs on it.
pub struct Study<'a> {
    lab: &'a BenchLab,
    /// Where results go.
    out: PathBuf,
    /// Labels and nodes of programs whose full speed was measured in this run, not in one that was interrupted: the
    /// paper's policy does not follow what that has become since.
    measured: RefCell<BTreeSet<(String, u32)>>,
    /// Started when it is first needed.
    gang: OnceCell<Gang<'a>>,
    /// Iterations a second of programs that Slurm runs alone, by name.
    alone_by_slurm: RefCell<BTreeMap<&'static str, f64>>,
}

impl<'a> Study<'a> {
    /// On `lab`; results go to `out`.
    ///
    /// # Errors
    /// If there is no current directory that `out` could be below.
    pub fn on(lab: &'a BenchLab, out: &Path) -> Result<Self> {
        Ok(Self {
            lab,
            out: std::path::absolute(out)?,
            measured: RefCell::default(),
            gang: OnceCell::new(),
            alone_by_slurm: RefCell::default(),
        })
    }

    /// Full speed, which is kept, and how the program runs with nothing reserved.
    ///
    /// # Errors
    /// If it cannot be started, or ends too early. So it is with all that follows.
    pub fn alone(&self, shape: Shape) -> Result<Trace> {
        let program = self.patterns(shape, &[])?;
        self.know(&program)?;
        let begin = Instant::now();
        watched::unprotected(&program.session, NODES, begin, |run| {
            run.wait_for_first()?;
            run.wait(if quick() { 5.0 } else { 30.0 })
        })
    }

    /// Figure 2.
    ///
    /// # Errors
    /// As [`Self::alone`].
    pub fn range(&self) -> Result<Range> {
        let program = self.patterns(HALF, &[])?;
        let (full_speed, used) = program.measured()?;
        let (each, seconds) = if quick() { (2, 1.0) } else { (usize::MAX, 4.0) };
        let mut points = Vec::new();
        let mut stages = Vec::new();
        let trace = watched::still(&program.session, NODES, Instant::now(), |run| {
            run.watched().wait_for_first()?;
            for share in SHARES.into_iter().take(each) {
                for period in PERIODS_MS.into_iter().take(each) {
                    let cpu = CpuPpm::new((used * f64::from(share) * 1e4) as u32);
                    run.apply(Schedule::new(cpu, Nanos::from_millis(period)))?;
                    run.watched().wait(1.0)?;
                    let (from, to) = run.watched().span(seconds)?;
                    stages.push((share, period, from, to));
                }
            }
            run.watched().wait(1.0)
        })?;
        for (share, period, from, to) in stages {
            points.push((f64::from(share) / 100.0, period as f64 / 1e3, trace.rate(from, to)));
        }
        Ok(Range { full_speed, points })
    }

    /// All others.
    ///
    /// # Errors
    /// As [`Self::alone`].
    pub fn runs(&self, Piece { experiment, by }: Piece) -> Result<Vec<Run>> {
        match experiment {
            Experiment::Range => bail!("figure 2 has no runs"),
            Experiment::Drift => self.drift(MEDIUM),
            Experiment::Responding(shape) => {
                let targets = [(30, 26.0), (60, 26.0), (20, 26.0), (50, 46.0)];
                self.target_to_target(4, shape, by, &targets)
            }
            Experiment::Thresholds => self.thresholds(MEDIUM, by),
            Experiment::Changing => {
                let targets = [30, 60, 20, 80, 40].map(|target| (target, 20.0));
                self.target_to_target(8, MEDIUM, by, &targets)
            }
            Experiment::Loaded => self.loaded(THREE, by),
            Experiment::Sorting => self.sorting(by),
            Experiment::Both => self.together(11, MEDIUM, by, self.two(MEDIUM)?),
            Experiment::Many(count) => {
                let runs = self.together(12, THREE, by, self.alike(THREE, count)?)?;
                Ok(labelled(runs, &count.to_string()))
            }
            Experiment::Writing(mib) => self.writing(13, ALONE, mib, by),
            Experiment::WritingAt(shape) => self.writing(14, shape, DISK_MIB_OF_RATIOS, by),
            Experiment::Touching(shape) => {
                let runs = self.together(15, shape, by, self.touching(shape)?)?;
                Ok(labelled(runs, shape.0))
            }
        }
    }

    /// Figure 3: on two nodes, as there.
    fn drift(&self, shape: Shape) -> Result<Vec<Run>> {
        let program = Program { nodes: 2, ..self.patterns(shape, &[])? };
        self.know(&program)?;
        let (target, seconds) = (50, span(90.0));
        let ours = program.run(3, By::Ours, THRESHOLD, &[(target, seconds)], |_| Ok(()))?;
        let seen = ours.trace.seen.first().copied().context("nothing was seen")?;
        let (share, period) = seen.share.zip(seen.period).context("it had no schedule")?;
        let period = Nanos::from_secs_f64(period).context("it had no period")?;
        let schedule = Schedule::new(CpuPpm::new((share * 1e6).round() as u32), period);
        let mut stage = (0.0, 0.0);
        let trace = watched::still(&program.session, 2, Instant::now(), |run| {
            run.apply(schedule)?;
            run.watched().wait_for_first()?;
            stage = run.watched().span(seconds)?;
            Ok(())
        })?;
        let stages = vec![Stage::of(target, stage)];
        // Against the full speed that the other one had in the same second of its run, for want of its own.
        let trace = Trace { seen: ours.trace.seen.clone(), ..trace };
        let nobody = Run { by: By::Nobody, stages, trace, ..ours.clone() };
        Ok(vec![ours, nobody])
    }

    /// Figures 4, 6, 7 and 8. A quick run has two targets.
    fn target_to_target(
        &self,
        figure: u32,
        shape: Shape,
        by: By,
        targets: &[(u32, f64)],
    ) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[])?;
        self.know(&program)?;
        let each = if quick() { 2 } else { usize::MAX };
        let targets = targets.iter().take(each).map(|(target, seconds)| (*target, span(*seconds)));
        let targets: Vec<_> = targets.collect();
        Ok(vec![program.run(figure, by, THRESHOLD, &targets, |_| Ok(()))?])
    }

    /// Figure 5.
    fn thresholds(&self, shape: Shape, by: By) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[])?;
        self.know(&program)?;
        let one = |threshold: f64| {
            // Time for 200 reports of a little more than a second once the rate has settled.
            let seconds = if threshold == STABLE_THRESHOLD { 225.0 } else { 35.0 };
            program.run(5, by, threshold, &[(50, span(seconds))], |_| Ok(()))
        };
        let each = if quick() { 1 } else { usize::MAX };
        THRESHOLDS.into_iter().take(each).map(one).collect()
    }

    /// Figure 9: another program wants all of one node's processor from the middle on; beside ours the same where
    /// nothing is reserved. The second stage is the one with that program.
    fn loaded(&self, shape: Shape, by: By) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[])?;
        self.know(&program)?;
        let (target, seconds) = (50, span(30.0));
        let busy = || Busy::on(self.lab.cluster(), NodeIndex(0), 1);
        let mut held = program.run(9, by, THRESHOLD, &[(target, seconds)], |run| {
            let _busy = busy()?;
            run.wait(seconds)
        })?;
        let middle = held.stages[0].to;
        held.stages.push(Stage { target, from: middle, to: middle + seconds });
        if by != By::Ours {
            return Ok(vec![held]);
        }
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
        let stages = stages.into_iter().map(|span| Stage::of(100, span)).collect();
        let bare = Run { by: By::Unprotected, stages, trace, ..held.clone() };
        Ok(vec![held, bare])
    }

    /// Figure 10: ranks with unequal work at half of full speed.
    fn sorting(&self, by: By) -> Result<Vec<Run>> {
        let program = self.sort()?;
        self.know(&program)?;
        Ok(vec![program.run(10, by, THRESHOLD, &[(50, span(106.0))], |_| Ok(()))?])
    }

    /// Figures 13 and 14: a program that waits for its disk, too.
    fn writing(&self, figure: u32, shape: Shape, mib: u32, by: By) -> Result<Vec<Run>> {
        let program = self.patterns(shape, &[("disk", mib)])?;
        // Programs that are ended leave what they have written, and take nobody's files for theirs.
        let files: Vec<_> =
            (0..NODES).map(|rank| self.out.join(NAME).join(format!("disk.{rank}"))).collect();
        let remove = || files.iter().for_each(|file| drop(fs::remove_file(file)));
        remove();
        self.know(&program)?;
        remove();
        let run = program.run(figure, by, THRESHOLD, &[(50, span(26.0))], |_| Ok(()));
        remove();
        Ok(vec![run?])
    }

    /// Figures 11, 12 and 15: programs of one shape, each with its target in percent. Slurm knows no targets.
    fn together(
        &self,
        figure: u32,
        shape: Shape,
        by: By,
        programs: Vec<(Program, u32)>,
    ) -> Result<Vec<Run>> {
        if by == By::Gang {
            let gang = self.gang()?;
            let alone = self.alone_by_slurm(gang, shape)?;
            return gang.in_turns(figure, programs, alone);
        }
        programs.iter().try_for_each(|(program, _)| self.know(program))?;
        steered_at_once(figure, by, &programs, span(TOGETHER))
    }

    /// The programs of Figure 11.
    fn two(&self, shape: Shape) -> Result<Vec<(Program, u32)>> {
        [30, 40].into_iter().map(|target| Ok((self.patterns(shape, &[])?, target))).collect()
    }

    /// Those of Figure 12.
    fn alike(&self, shape: Shape, count: u32) -> Result<Vec<(Program, u32)>> {
        (0..count).map(|_| Ok((self.patterns(shape, &[])?, 10))).collect()
    }

    /// Those of Figure 15.
    fn touching(&self, shape: Shape) -> Result<Vec<(Program, u32)>> {
        let program = |(mib, target): (u32, u32)| -> Result<(Program, u32)> {
            Ok((self.patterns(shape, &[("memory", mib / NODES)])?, target))
        };
        MEMORY.into_iter().map(program).collect()
    }

    fn gang(&self) -> Result<&Gang<'a>> {
        if let Some(gang) = self.gang.get() {
            return Ok(gang);
        }
        let started = Gang::start(self.lab.cluster())?;
        Ok(self.gang.get_or_init(|| started))
    }

    fn alone_by_slurm(&self, gang: &Gang<'_>, shape: Shape) -> Result<f64> {
        let known = self.alone_by_slurm.borrow().get(shape.0).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = gang.alone(&self.patterns(shape, &[])?)?;
        self.alone_by_slurm.borrow_mut().insert(shape.0, found);
        Ok(found)
    }

    /// Measures a program's full speed, unless this run has.
    fn know(&self, program: &Program) -> Result<()> {
        let of = (program.label.clone(), program.nodes);
        let is_known = self.measured.borrow().contains(&of);
        if !is_known {
            program.measured()?;
            self.measured.borrow_mut().insert(of);
        }
        Ok(())
    }

    /// The integer sort.
    fn sort(&self) -> Result<Program> {
        self.program("is", "eval/time-sharing/is.toml", &[])
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
                let ranks = Ranks::on(self.lab, PROGRAM)?;
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
        self.program(name, "eval/time-sharing/patterns.toml", &constants)
    }

    fn program(&self, name: &str, file: &str, constants: &[(&str, u32)]) -> Result<Program> {
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
        Ok(Program { session, nodes: NODES, label })
    }
}

/// So many seconds, or what a quick run has in their place.
fn span(seconds: f64) -> f64 {
    if quick() { QUICK } else { seconds }
}

fn labelled(runs: Vec<Run>, label: &str) -> Vec<Run> {
    runs.into_iter().map(|run| Run { label: label.into(), ..run }).collect()
}

fn file_name(label: &str) -> String {
    label.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}
