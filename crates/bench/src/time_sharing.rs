//! `make eval-time-sharing`: Figures 2 to 15 of the time-sharing paper, done again with real programs on a lab, through
//! broker, agents and kernel; the paper's own policy beside ours on the same programs, and Slurm's gang scheduling where
//! programs share nodes. What of it is simulated (`bench-control`, `bench-deadline`) is on the same page.
//!
//! Scaled: iterations of a tenth of a second in the place of sixteen seconds, reports of a second; nodes of less than
//! half a processor, since the machine has two; disks and memory in proportion. Rates are counted by the lines
//! that programs print, against full speed as the controller follows it.

mod asked;
mod figures;
mod gang;
mod page;
mod plan;
mod program;
mod study;
mod together;
mod watched;

pub use asked::FigureRange;

use crate::awake::Awake;
use crate::figures as results;
use crate::lab::BenchLab;
use crate::parts::Parts;
use crate::quick;
use anyhow::Result;
use asked::is_asked;
use keeptime::interrupt;
use keeptime::machine::Machine;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use plan::{Experiment, Piece};
use serde::{Deserialize, Serialize};
use std::path::Path;
use study::Study;
use watched::Trace;

const NAME: &str = "time-sharing";
const NODES: u32 = 4;
const LINK: BitsPerSecond = BitsPerSecond::from_mbit(200);
/// Of a node. Programs have 38 %: what is left is for who starts them.
const NODE: CpuPpm = CpuPpm::from_percent(42);
/// Of a program, on each node, as in its application file.
const PROGRAM: CpuPpm = CpuPpm::from_percent(38);
/// What the paper allows, in percent of full speed.
const THRESHOLD: f64 = 3.0;
/// Thresholds of Figure 5, in percent.
const THRESHOLDS: [f64; 4] = [3.0, 2.0, STABLE_THRESHOLD, 0.5];
/// Of these, the one at which rates are to be stable; the paper's are not.
const STABLE_THRESHOLD: f64 = 1.0;
/// From a new target on: what is counted later is the steady state.
const SETTLE: f64 = 5.0;
/// The paper states errors as means of 20 reports.
const REPORTS_A_MEAN: f64 = 20.0;
/// The part that says which Slurm it was.
const SLURM: &str = "Slurm";

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Raw {
    machine: Machine,
    /// By name of their programs: how these run with nobody else there and nothing reserved. The noise floor.
    alone: Vec<(String, Trace)>,
    /// Figure 2.
    range: Option<Range>,
    /// All others: figure by figure, ours first.
    runs: Vec<Run>,
    /// Its version, where programs ran in turns.
    slurm: Option<String>,
    /// What is not measured yet.
    missing: Vec<String>,
}

/// How fast a program runs with every schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

impl Stage {
    fn of(target: u32, (from, to): (f64, f64)) -> Self {
        Self { target, from, to }
    }
}

/// Measures what is asked for and was not measured by an interrupted run; writes figures, raw data and the page of all
/// that there is then, also where it is interrupted itself, or fails.
pub fn run(out: &Path, asked: &[FigureRange]) -> Result<()> {
    interrupt::listen()?;
    // Measured by other commands; better to know now that they are missing.
    let simulated = ["control", "deadline"].map(|name| results::read(out, name));
    let [control, deadline] = simulated;
    let (control, deadline) = (control?, deadline?);
    let mut parts = Parts::open(&out.join(NAME))?;
    let machine = parts.machine()?;
    let pieces = plan::pieces(quick());
    let measured = measure(&pieces, asked, &mut parts, out);
    let raw = Raw::of(machine, &pieces, &parts)?;
    let is_whole = raw.missing.is_empty();
    if !raw.is_empty() {
        let figures = figures::all(&raw);
        page::write(&raw, figures.all(), [&control, &deadline], out)?;
        figures.finish(out, &raw)?;
    }
    measured?;
    if is_whole { parts.finish() } else { Ok(()) }
}

/// Measures the parts that are asked for and not kept, and keeps them.
fn measure(pieces: &[Piece], asked: &[FigureRange], parts: &mut Parts, out: &Path) -> Result<()> {
    let mut todo = pieces.to_vec();
    todo.retain(|piece| is_asked(asked, piece.experiment.figures()) && !parts.has(&piece.key()));
    if todo.is_empty() {
        return Ok(());
    }
    if todo.iter().any(|piece| piece.by == By::Gang) {
        // It comes last; better to know now that it is not installed.
        parts.part(SLURM, keeptime::slurm::version)?;
    }
    let _awake = Awake::begin()?;
    let lab = BenchLab::star("eval-time-sharing", NODES, LINK, NODE)?;
    let study = Study::on(&lab, out)?;
    for shape in plan::watched_alone(&todo, quick()) {
        parts.part(&plan::alone_key(shape), || study.alone(shape))?;
    }
    for piece in todo {
        let key = piece.key();
        eprintln!("{key}");
        match piece.experiment {
            Experiment::Range => drop(parts.part(&key, || study.range())?),
            _ => drop(parts.part(&key, || study.runs(piece))?),
        }
    }
    Ok(())
}

impl Raw {
    /// All that is kept.
    fn of(machine: Machine, pieces: &[Piece], parts: &Parts) -> Result<Self> {
        let missing = plan::missing(pieces, |piece| parts.has(&piece.key()));
        let mut raw = Self { machine, slurm: parts.kept(SLURM)?, missing, ..Self::default() };
        for ((name, ..), key) in plan::all_alone() {
            raw.alone.extend(parts.kept(&key)?.map(|trace: Trace| (name.to_owned(), trace)));
        }
        for piece in pieces {
            match piece.experiment {
                Experiment::Range => raw.range = parts.kept(&piece.key())?,
                _ => {
                    let runs: Option<Vec<Run>> = parts.kept(&piece.key())?;
                    raw.runs.extend(runs.into_iter().flatten());
                }
            }
        }
        // In the order in which they were measured, policies take turns at being first.
        raw.runs.sort_by_key(|run| (run.figure, run.by));
        Ok(raw)
    }

    fn is_empty(&self) -> bool {
        self.alone.is_empty() && self.range.is_none() && self.runs.is_empty()
    }
}

impl By {
    /// Whether a controller follows a target; who does not stands beside those that do.
    fn is_controller(self) -> bool {
        matches!(self, Self::Ours | Self::Paper)
    }

    /// What people read.
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "the paper's policy",
            Self::Nobody => "nobody corrects",
            Self::Unprotected => "nothing reserved",
            Self::Gang => "gang scheduling",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn run(figure: u32, by: By) -> Run {
        let (label, trace) = ("1:1".into(), Trace::default());
        Run { figure, label, by, threshold: THRESHOLD, stages: Vec::new(), trace }
    }

    // Goal: a page has all that is kept, whoever was first, and says what it has not.
    #[test]
    fn what_is_kept_is_on_the_page_and_what_is_not_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut parts = Parts::open(directory.path()).unwrap();
        let pieces = plan::pieces(false);
        let empty = Raw::of(Machine::default(), &pieces, &parts).unwrap();
        assert!(empty.is_empty());
        parts.part("figure 9, Paper", || Ok(vec![run(9, By::Paper)])).unwrap();
        parts.part("figure 9", || Ok(vec![run(9, By::Ours), run(9, By::Unprotected)])).unwrap();
        parts.part("figure 8", || Ok(vec![run(8, By::Ours)])).unwrap();
        parts.part("alone, 3:1", || Ok(Trace::default())).unwrap();
        let raw = Raw::of(Machine::default(), &pieces, &parts).unwrap();
        let found: Vec<_> = raw.runs.iter().map(|run| (run.figure, run.by)).collect();
        let expected = [(8, By::Ours), (9, By::Ours), (9, By::Paper), (9, By::Unprotected)];
        assert_eq!(found, expected);
        assert_eq!(raw.alone.len(), 1);
        let has = |name: &str| raw.missing.iter().any(|missing| missing == name);
        assert!(has("figure 8, the paper's policy") && has("figure 2") && has("figure 12"));
        assert!(!raw.missing.iter().any(|missing| missing.starts_with("figure 9")));
    }

    // Goal: nothing is measured again for figures that are kept, and no lab is made. Method: a lab would be seen by its
    // failure, or by the part that comes first.
    #[test]
    fn what_is_kept_needs_no_lab() {
        let directory = tempfile::tempdir().unwrap();
        let mut parts = Parts::open(directory.path()).unwrap();
        let pieces = plan::pieces(false);
        for key in ["figure 10", "figure 10, Paper"] {
            parts.part(key, || Ok(vec![run(10, By::Ours)])).unwrap();
        }
        let asked = ["10".parse().unwrap()];
        measure(&pieces, &asked, &mut parts, directory.path()).unwrap();
        assert!(!parts.has("alone, 1:1"));
        let again = || -> Result<Vec<Run>> { bail!("measured again") };
        assert_eq!(parts.part("figure 10", again).unwrap().len(), 1);
    }
}
