//! All that is known of one job and of its way to its rate: a value with a text form, from which another controller
//! goes on, and what people are shown of it.

use super::reports::Marks;
use super::wanted::{Begins, Wanted};
use keeptime_control::{Calibration, Controller, FullSpeed, Health, Proposal, Schedule};
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};

/// All that is known of one job and of its way to its rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub(super) wanted: Wanted,
    /// What a node has while full speed is measured.
    pub(super) full: CpuPpm,
    /// How many nodes there are.
    pub(super) nodes: usize,
    pub(super) stage: Stage,
    /// What steered before somebody asked for another target, until that is answered.
    pub(super) former: Option<Box<Controller>>,
    /// Where the next report begins.
    pub(super) marks: Marks,
    /// CPU time was told last at this instant.
    pub(super) answered: Nanos,
    /// It does not begin before then: what was done earlier is about another schedule.
    pub(super) fresh_from: Nanos,
    /// Since when nothing was told, while full speed is measured.
    pub(super) silent: Option<Nanos>,
    /// Since when nodes do not tell what it uses, though it tells how far it is.
    #[serde(default)]
    pub(super) untold: Option<Nanos>,
    /// For how long nothing may be told.
    pub(super) patience: Nanos,
    /// Full speed is not tried to be measured again before then.
    pub(super) again_from: Nanos,
    /// Full speed, when it was just measured.
    pub(super) found: Option<FullSpeed>,
    /// Full speed is what an earlier run has found.
    #[serde(default)]
    pub(super) is_known: bool,
    /// So many reports, one after the other, are nothing like what follows from full speed.
    #[serde(default)]
    pub(super) unlike: u32,
    /// A change that could not be made yet.
    pub(super) waiting: Option<Waiting>,
    /// Another target was asked for, and no report is of it yet.
    #[serde(default)]
    pub(super) is_adjusting: bool,
    /// Why what was asked of its nodes last is not so, in the user's words.
    #[serde(default)]
    pub(super) not_done: Option<String>,
}

/// A change that could not be made yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) proposal: Proposal,
    pub(super) turn: Turn,
}

/// When a change may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Turn {
    /// At once: somebody has asked for it.
    Now,
    /// In turn with other jobs: a correction, asked for at this instant.
    Waits { asked: Nanos },
}

/// How far a job is, and what it is steered by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Stage {
    Measured {
        calibration: Calibration,
        reports: u32,
    },
    Steered(Box<Controller>),
    /// Full speed is a guess, the share of the CPU is not.
    Unreported(Box<Controller>),
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Phase {
    /// It runs at full speed, to find out what that is.
    Measured,
    /// It is held at its rate.
    Steered,
    /// It tells no progress: it has the part of the CPU, whatever it makes of it.
    Unreported,
    /// It tells its progress, but its nodes do not tell the CPU time that it uses: it has the part of the CPU, as well.
    Unmeasured,
}

/// What people are shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The part of full speed that was asked for.
    #[serde(rename = "target_ppm")]
    pub target: Share,
    /// How far it is.
    pub phase: Phase,
    /// The target is new: what the last report told was under the former one.
    #[serde(default, rename = "adjusting")]
    pub is_adjusting: bool,
    /// Full speed is what an earlier run has found, and does not fit: it is measured when its nodes have room for that.
    #[serde(default, rename = "doubted", skip_serializing_if = "std::ops::Not::not")]
    pub is_doubted: bool,
    /// It is not held at its target yet: why, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_held_yet: Option<String>,
    /// The part of full speed that the last report told.
    pub actual: Option<f64>,
    /// Work in a second at full speed, now.
    pub full_speed: Option<f64>,
    /// What the node has that has most; nothing = as at full speed.
    pub schedule: Option<Schedule>,
    /// CPU of each node, in order of rank, where they work unequally; nothing = that of the schedule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rank_cpu_ppm: Vec<CpuPpm>,
    /// Corrections that were refused.
    pub refused: u64,
}

impl Memory {
    /// Of a job on so many nodes, which have `full` each: its full speed is measured first.
    ///
    /// # Errors
    /// A target or a threshold of nothing.
    pub fn new(wanted: Wanted, full: CpuPpm, nodes: usize) -> Result<Self, Invalid> {
        wanted.check()?;
        let fresh_from = Nanos::default();
        Ok(Self {
            wanted,
            full,
            nodes,
            stage: Stage::measured(nodes),
            former: None,
            marks: Marks::default(),
            answered: fresh_from,
            fresh_from,
            silent: None,
            untold: None,
            patience: SILENT_MOST,
            again_from: fresh_from,
            found: None,
            is_known: false,
            unlike: 0,
            waiting: None,
            is_adjusting: false,
            not_done: None,
        })
    }

    /// Of one that begins so, on nodes that have what [`Wanted::first_schedules`] says, or all if full speed is measured.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn beginning(
        wanted: Wanted,
        full: CpuPpm,
        nodes: usize,
        begins: Begins,
    ) -> Result<Self, Invalid> {
        let memory = Self::new(wanted, full, nodes)?;
        let start = |full_speed| {
            // What it proposes is what they have, as who goes on from here sees.
            let (controller, _) = memory.start(full_speed, Nanos::default())?;
            Ok::<_, Invalid>(Box::new(controller))
        };
        let is_known = matches!(begins, Begins::Known(_));
        let stage = match begins {
            Begins::Measured => Stage::measured(nodes),
            Begins::Known(full_speed) => Stage::Steered(start(full_speed)?),
            Begins::Unreported => Stage::Unreported(start(guessed(full, SILENT_MOST)?)?),
        };
        Ok(Self { stage, is_known, ..memory })
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Measured { .. } => Phase::Measured,
            Stage::Steered(controller) if controller.view().health == Health::Steered => {
                Phase::Steered
            }
            Stage::Steered(_) | Stage::Unreported(_) if self.untold.is_some() => Phase::Unmeasured,
            Stage::Steered(_) | Stage::Unreported(_) => Phase::Unreported,
        }
    }

    /// Whether its full speed is another than an earlier run has found.
    pub(super) fn is_doubted(&self) -> bool {
        self.is_known && self.unlike >= UNLIKE_MOST
    }

    /// How it stands.
    pub fn state(&self) -> State {
        let (target, phase, is_adjusting) = (self.wanted.target, self.phase(), self.is_adjusting);
        let (actual, full_speed, schedule, rank_cpu_ppm) = (None, None, None, Vec::new());
        let refused = 0;
        let measured = State {
            target,
            phase,
            is_adjusting,
            is_doubted: self.is_doubted(),
            not_held_yet: None,
            actual,
            full_speed,
            schedule,
            rank_cpu_ppm,
            refused,
        };
        let (controller, is_told) = match &self.stage {
            Stage::Measured { .. } => return measured,
            Stage::Steered(controller) => (controller, true),
            Stage::Unreported(controller) => (controller, false),
        };
        let view = controller.view();
        let each = view.schedules.iter().map(|schedule| schedule.cpu());
        let not_held_yet = self.not_done.clone().filter(|_| !controller.is_at_target());
        State {
            not_held_yet,
            actual: view.actual,
            full_speed: is_told.then_some(view.full_speed),
            schedule: view.schedules.iter().copied().max_by_key(|schedule| schedule.cpu()),
            rank_cpu_ppm: if view.schedules.len() > 1 { each.collect() } else { Vec::new() },
            refused: view.refused,
            ..measured
        }
    }

    pub(super) fn start(
        &self,
        full_speed: FullSpeed,
        now: Nanos,
    ) -> Result<(Controller, Proposal), Invalid> {
        Controller::start(self.wanted.settings(self.full, full_speed)?, now)
    }
}

impl Stage {
    /// Nothing is measured yet, on so many nodes.
    pub(super) fn measured(nodes: usize) -> Self {
        Self::Measured { calibration: Calibration::new(nodes), reports: 0 }
    }

    pub(super) fn controller(&mut self) -> Option<&mut Controller> {
        match self {
            Self::Measured { .. } => None,
            Self::Steered(controller) | Self::Unreported(controller) => Some(controller),
        }
    }
}

/// What stands for the full speed of a program that tells nothing for so long: it uses all that it is given, and has done
/// one unit of work.
pub(super) fn guessed(full: CpuPpm, silent: Nanos) -> Result<FullSpeed, Invalid> {
    FullSpeed::new(1.0 / silent.as_secs_f64(), &[full])
}

/// So many reports are no hiccup of a machine.
const UNLIKE_MOST: u32 = 10;
/// Programs read their input first; after this nothing is expected any more. It is doubled each time, since something
/// may come all the same,
pub(super) const SILENT_MOST: Nanos = Nanos::from_secs(60);
/// but that no program keeps all its CPU for much longer than a quarter of an hour.
pub(super) const PATIENCE_MOST: Nanos = Nanos::from_secs(16 * 60);
