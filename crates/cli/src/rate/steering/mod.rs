//! From progress to schedules: finds full speed first, then holds the target. Reads no clock and asks
//! nobody itself: instants come as arguments, and the nodes are behind [`Nodes`].
//!
//! All that a controller knows is its [`Memory`], a value with a text form: another one goes on from it.
//!
//! Where ranks work alike, one node stands for all, the one that uses most; where they do not, each has a share of its
//! own. Their period is the same.
//!
//! * `memory`: what is known of a job, and shown; `wanted`: what is asked for, and what a job begins with;
//! * `reports`: what was done between two instants.

mod memory;
mod reports;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
mod wanted;

pub use memory::{Memory, Phase, State};
pub use wanted::{Begins, Wanted};

use super::counted::Told;
use keeptime_control::{Controller, FullSpeed, Outcome, Proposal, Report, Schedule};
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share};
use memory::{PATIENCE_MOST, SILENT_MOST, Stage, Turn, Waiting, guessed};
use reports::{Mark, Marks, of_one, uses_all};
use serde::{Deserialize, Serialize};
use wanted::check;

/// The nodes of one job.
pub trait Nodes {
    /// Keeps what is known just before something is changed: who goes on from it sees on the nodes whether it was.
    fn remember(&mut self, _memory: &Memory) {}
    /// The CPU time that the job has used so far on each; nothing if one does not answer.
    fn used(&mut self) -> Option<Used>;
    /// Puts schedules of the same period in force, one for each node or one for all: on all, or on none. `in_turn`: as
    /// soon as no other job of theirs has been changed just now.
    fn apply(&mut self, schedules: &[Schedule], in_turn: bool) -> Applied;
    /// Gives each so much, as it comes: what they had before there were schedules. On all, or on none.
    fn release(&mut self, full: CpuPpm) -> Applied;
    /// What each has; nothing if nobody knows.
    fn observed(&mut self) -> Option<Vec<Schedule>>;
    /// The CPU that each could have until its reservation ends, with what it has of that; nothing if nobody knows.
    fn available(&mut self) -> Option<Vec<CpuPpm>>;
}

/// The CPU time that a job had used on each of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// When all had told.
    pub at: Nanos,
    /// By rank.
    pub each: Vec<Nanos>,
}

/// What came of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Applied {
    /// All nodes have it.
    InForce {
        /// Since then.
        since: Nanos,
    },
    /// No node has it.
    Refused {
        /// Why, in the user's words.
        reason: String,
    },
    /// No node has it yet: it is another job's turn, or it is being changed.
    NotYet,
    /// Nobody answered.
    Unknown,
}

/// When another target is aimed at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aimed {
    /// From now on.
    Now,
    /// Without being asked for again, but not yet.
    Later {
        /// Why not, in the user's words.
        reason: String,
    },
}

/// Holds one job at its rate.
#[derive(Debug)]
pub struct Steering<N> {
    nodes: N,
    memory: Memory,
}

impl<N: Nodes> Steering<N> {
    /// Goes on at `now` from what is remembered of a job, by whomever: it has what it had, and is steered from there.
    /// Whoever steered it before must have ended.
    pub fn resume(nodes: N, memory: Memory, now: Nanos) -> Self {
        let mut steering = Self { nodes, memory };
        // What was done while nobody looked is no report, nor was it silence.
        (steering.memory.marks, steering.memory.silent) = (Marks::default(), None);
        steering.memory.answered = Nanos::default();
        steering.memory.fresh_from = steering.memory.fresh_from.max(now);
        // What waits for its turn is in force nowhere.
        if steering.memory.waiting.is_none() {
            let proposal = steering.settle(now);
            steering.carry_out(proposal, Turn::Now);
        }
        steering
    }

    /// What another one would go on from.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Full speed, once each time that it was measured.
    pub fn take_found(&mut self) -> Option<FullSpeed> {
        self.memory.found.take()
    }

    /// `work` units were done in all when it was `at`.
    pub fn progress(&mut self, work: u64, at: Nanos) {
        self.hear(at);
        if !self.is_due(at) {
            return;
        }
        // What was told while a node was slow to answer is of before that answer: no CPU time is of then.
        if at < self.memory.answered {
            return;
        }
        // If a node does not answer now, or does too late, the report is as much longer.
        let Some(Used { at: answered, each: used }) = self.nodes.used() else {
            // The others are not asked again for each line.
            self.memory.answered = at.saturating_add(REPORT_LEAST);
            return self.miss(at);
        };
        self.memory.answered = answered;
        self.pass(Mark { at, work, used, late: answered.saturating_sub(at) });
    }

    /// The program's MPI calls have told so much.
    pub fn counted(&mut self, told: Told) {
        let Told { work, at, used, is_recounted } = told;
        if is_recounted {
            self.recount();
        }
        self.hear(at);
        if self.is_due(at) {
            // CPU time is that of the same instant.
            self.pass(Mark { at, work, used, late: Nanos::default() });
        }
    }

    /// Nodes of which the CPU time is asked do not tell it.
    pub fn uncounted(&mut self, at: Nanos) {
        self.miss(at);
    }

    /// They do again, though nothing is to be told of the program yet.
    pub fn answered(&mut self) {
        self.memory.untold = None;
    }

    /// To be called every now and then.
    pub fn tick(&mut self, now: Nanos) {
        self.ask_again(now);
        if self.memory.waiting.is_some() {
            return;
        }
        let Some(controller) = self.memory.stage.controller() else {
            return self.tick_measured(now);
        };
        let is_settled = controller.pending().is_none() && !controller.view().schedules.is_empty();
        let proposal = if is_settled { controller.tick(now) } else { self.settle(now) };
        self.carry_out(proposal, Turn::Now);
    }

    /// Another target.
    ///
    /// # Errors
    /// Why it cannot be had, in the user's words; the former one stays.
    pub fn set(&mut self, target: Share) -> Result<Aimed, String> {
        check("rate", target).map_err(|invalid| invalid.to_string())?;
        let Some(controller) = self.memory.stage.controller() else {
            self.memory.wanted.target = target;
            return Ok(Aimed::Now);
        };
        if let Some(Waiting { proposal, .. }) = self.memory.waiting.take() {
            controller.resolve(proposal.sequence, Outcome::Withdrawn);
        }
        let before = Box::new(controller.clone());
        let proposal = controller.retarget(target, None).map_err(|invalid| invalid.to_string())?;
        let follows = proposal.is_none() && controller.pending().is_some();
        self.memory.former = Some(before.clone());
        let applied = match follows {
            // What was asked for before is not answered yet.
            true => Applied::Unknown,
            false => self.carry_out(proposal, Turn::Now),
        };
        self.memory.former = None;
        match applied {
            Applied::Refused { reason } => {
                let greatest = self.greatest_below(target, &before);
                if let Some(controller) = self.memory.stage.controller() {
                    *controller = *before;
                }
                Err(match greatest {
                    Some(most) => format!("{reason}; {most} of full speed can be had now"),
                    None => reason,
                })
            }
            Applied::InForce { .. } => Ok(self.aim_at(target, Aimed::Now)),
            Applied::NotYet => Ok(self.aim_at(target, Aimed::later(BEING_CHANGED))),
            Applied::Unknown => Ok(self.aim_at(target, Aimed::later(NO_ANSWER))),
        }
    }

    /// Reports so far are of another target than this one.
    fn aim_at(&mut self, target: Share, aimed: Aimed) -> Aimed {
        self.memory.is_adjusting |= target != self.memory.wanted.target;
        self.memory.wanted.target = target;
        aimed
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.memory.phase()
    }

    /// How it stands.
    pub fn state(&self) -> State {
        self.memory.state()
    }

    /// What became of what nobody has answered to is seen on the nodes; nothing if nobody tells, or if nothing is to change.
    fn settle(&mut self, now: Nanos) -> Option<Proposal> {
        // What full speed is measured with is no schedule.
        self.memory.stage.controller()?;
        let had = self.nodes.observed()?;
        let controller = self.memory.stage.controller()?;
        let one = had.first().filter(|first| had.iter().all(|each| each == *first));
        let stands_for_all = controller.settings().full_speed.nodes() == 1;
        let one = one.filter(|_| stands_for_all).map(std::slice::from_ref);
        let had = one.unwrap_or(&had);
        // A target that the nodes do not have was not agreed to.
        if let Some(former) = self.memory.former.take()
            && controller.pending().is_none_or(|pending| pending.schedules != had)
        {
            *controller = *former;
        }
        let proposal = controller.resume(now, had);
        self.memory.wanted.target = controller.settings().target;
        proposal
    }

    /// Something is told.
    fn hear(&mut self, at: Nanos) {
        self.memory.silent = None;
        self.ask_again(at);
        // Where nodes do not tell what it uses, there is nothing to measure yet.
        let is_measurable = self.memory.untold.is_none();
        let is_unreported = matches!(self.memory.stage, Stage::Unreported(_));
        if is_measurable && (is_unreported || self.memory.is_doubted()) {
            self.measure_again(at);
        }
    }

    fn is_due(&self, at: Nanos) -> bool {
        match self.memory.marks.began() {
            None => at >= self.memory.fresh_from,
            Some(began) => at.saturating_sub(began) >= REPORT_LEAST,
        }
    }

    /// A report may end here, and the next one begin.
    fn pass(&mut self, next: Mark) {
        let Some(report) = self.memory.marks.pass(next) else { return };
        // Nobody counts it there, as where nothing is enforced.
        if report.used().iter().all(|used| *used == Nanos::default()) {
            return self.miss(report.to());
        }
        self.memory.untold = None;
        self.take(&report);
    }

    /// What the program has used until then is not told. If that lasts while full speed is measured, it has its part of the
    /// CPU of its file.
    fn miss(&mut self, at: Nanos) {
        let since = *self.memory.untold.get_or_insert(at);
        let is_measured = matches!(self.memory.stage, Stage::Measured { .. });
        if is_measured && at.saturating_sub(since) >= UNTOLD_MOST {
            self.fall_back(SILENT_MOST, at);
        }
    }

    fn take(&mut self, report: &Report) {
        let proposal = match &mut self.memory.stage {
            Stage::Measured { calibration, reports } => {
                // It says what every node used, as it should.
                *reports += u32::from(calibration.observe(report).is_ok());
                if *reports < CALIBRATION {
                    return;
                }
                let polls = uses_all(report, self.memory.full);
                let found = calibration.finish();
                let found = found.map(|found| found.polling(polls).as_one_if_alike(ALIKE));
                return self.begin(found, report.to());
            }
            Stage::Steered(controller) => {
                let report = match controller.settings().full_speed.nodes_told() {
                    1 => &of_one(report),
                    _ => report,
                };
                // Until its schedules are in force, reports are of the former target.
                let is_of_target = self.memory.waiting.is_none() && controller.pending().is_none();
                let proposal = controller.report(report).unwrap_or_default();
                if is_of_target {
                    self.memory.is_adjusting = false;
                    let unlike = if is_unlike(controller) { self.memory.unlike + 1 } else { 0 };
                    self.memory.unlike = unlike;
                }
                proposal
            }
            // Its nodes cannot have all CPU now: there is no full speed to compare with.
            Stage::Unreported(_) => return,
        };
        self.carry_out(proposal, Turn::Waits { asked: report.to() });
    }

    /// Full speed is known.
    fn begin(&mut self, found: Result<FullSpeed, Invalid>, now: Nanos) {
        let started = found.and_then(|full_speed| {
            let started = self.memory.start(full_speed.clone(), now)?;
            Ok((full_speed, started))
        });
        match started {
            Ok((full_speed, (controller, proposal))) => {
                self.memory.found = Some(full_speed);
                self.memory.stage = Stage::Steered(Box::new(controller));
                self.carry_out(Some(proposal), Turn::Now);
            }
            // It did nothing meanwhile: it is measured again.
            Err(_) => self.memory.stage = Stage::measured(self.memory.nodes),
        }
    }

    /// A program that tells nothing for long enough has its part of the CPU of its file. What it used until then says
    /// nothing of what it needs: it may have read its input.
    fn tick_measured(&mut self, now: Nanos) {
        let silent = now.saturating_sub(*self.memory.silent.get_or_insert(now));
        if silent < self.memory.patience {
            return;
        }
        // One that tells something more rarely is waited for longer the next time.
        let patience = self.memory.patience;
        self.memory.patience = patience.saturating_add(patience).min(PATIENCE_MOST);
        self.fall_back(silent, now);
    }

    /// It has its part of the CPU of its file from `now` on, as if it took so long for a unit of work.
    fn fall_back(&mut self, unit: Nanos, now: Nanos) {
        let guess = guessed(self.memory.full, unit);
        let started = guess.and_then(|full_speed| self.memory.start(full_speed, now));
        if let Ok((controller, proposal)) = started {
            self.memory.silent = None;
            self.memory.stage = Stage::Unreported(Box::new(controller));
            self.carry_out(Some(proposal), Turn::Now);
        }
    }

    /// Full speed is measured as at the start, since by now there is something to measure. Nodes that cannot have all
    /// CPU for that are asked again later.
    fn measure_again(&mut self, now: Nanos) {
        if now < self.memory.again_from {
            return;
        }
        self.memory.again_from = now.saturating_add(MEASURE_AGAIN);
        if let Applied::InForce { since } = self.nodes.release(self.memory.full) {
            (self.memory.marks, self.memory.waiting) = (Marks::default(), None);
            self.memory.fresh_from = since;
            self.memory.stage = Stage::measured(self.memory.nodes);
            self.memory.is_known = false;
        }
    }

    /// Work is counted in other units from now on, which full speed says nothing about.
    fn recount(&mut self) {
        self.memory.marks = Marks::default();
        self.memory.again_from = Nanos::default();
        let former = std::mem::replace(&mut self.memory.stage, Stage::measured(self.memory.nodes));
        if let Stage::Steered(controller) | Stage::Unreported(controller) = former {
            self.memory.stage = Stage::Unreported(controller);
        }
    }

    /// The greatest target below one that was refused, in tenths of a per cent, for which every node could have what it
    /// takes.
    fn greatest_below(&mut self, refused: Share, controller: &Controller) -> Option<Share> {
        let free = self.nodes.available()?;
        let fits = |target: &Share| match controller.clone().retarget(*target, None) {
            Ok(Some(proposal)) => fit(&proposal.schedules, &free),
            // It has that already.
            Ok(None) => true,
            Err(_) => false,
        };
        let below = (1..refused.ppm().div_ceil(TENTH_OF_PERCENT)).rev();
        let mut targets =
            below.filter_map(|tenths| Share::try_from(tenths * TENTH_OF_PERCENT).ok());
        targets.find(fits)
    }

    /// Carries a proposal out, and what follows it; what came of the last.
    fn carry_out(&mut self, proposal: Option<Proposal>, turn: Turn) -> Applied {
        let mut outcome = Applied::InForce { since: self.memory.fresh_from };
        let mut next = proposal;
        while let Some(proposal) = next {
            let Proposal { sequence, schedules } = &proposal;
            let Some(schedule) = schedules.first() else { break };
            self.nodes.remember(&self.memory);
            outcome = self.nodes.apply(schedules, matches!(turn, Turn::Waits { .. }));
            self.memory.not_done = outcome.why_not();
            let Some(controller) = self.memory.stage.controller() else { break };
            next = match &outcome {
                Applied::InForce { since } => {
                    self.memory.marks = Marks::default();
                    self.memory.fresh_from = since.saturating_add(schedule.period());
                    controller.resolve(*sequence, Outcome::InForce { since: *since })
                }
                Applied::Refused { .. } => controller.resolve(*sequence, Outcome::Refused),
                Applied::NotYet => {
                    self.memory.waiting = Some(Waiting { proposal, turn });
                    None
                }
                Applied::Unknown => None,
            };
        }
        outcome
    }

    /// Asks again for what could not be done yet.
    fn ask_again(&mut self, now: Nanos) {
        let is_due = |waiting: &mut Waiting| match waiting.turn {
            Turn::Now => true,
            Turn::Waits { asked } => now.saturating_sub(asked) >= ASK_AGAIN,
        };
        let Some(Waiting { proposal, turn }) = self.memory.waiting.take_if(is_due) else { return };
        let turn = match turn {
            Turn::Now => Turn::Now,
            Turn::Waits { .. } => Turn::Waits { asked: now },
        };
        self.carry_out(Some(proposal), turn);
    }
}

impl Applied {
    /// Why not all nodes have it, in the user's words; nothing if they do.
    fn why_not(&self) -> Option<String> {
        match self {
            Self::InForce { .. } => None,
            Self::Refused { reason } => Some(reason.clone()),
            Self::NotYet => Some(BEING_CHANGED.to_owned()),
            Self::Unknown => Some(NO_ANSWER.to_owned()),
        }
    }
}

impl Aimed {
    fn later(reason: &str) -> Self {
        Self::Later { reason: reason.to_owned() }
    }
}

/// Whether it runs at less than half of its target, or does other work than that of which full speed is known. One that polls does
/// not tell what work costs, unless by how much faster it is: one that sleeps may be faster since it waits for its disk.
fn is_unlike(controller: &Controller) -> bool {
    let Some(actual) = controller.view().actual else { return false };
    let settings = controller.settings();
    let [target, threshold] = [settings.target, settings.threshold].map(Share::as_f64);
    let is_slow = actual < target / UNLIKE_FROM;
    let is_fast = actual > target * UNLIKE_FROM && !settings.full_speed.is_followed();
    let is_off = (is_slow || is_fast) && (actual - target).abs() > threshold;
    is_off || settings.full_speed.has_changed()
}

/// Whether these, one for each node or one for all, are no more than each could have.
fn fit(schedules: &[Schedule], free: &[CpuPpm]) -> bool {
    match schedules {
        [all] => free.iter().all(|free| all.cpu() <= *free),
        each => each.iter().zip(free).all(|(schedule, free)| schedule.cpu() <= *free),
    }
}

const BEING_CHANGED: &str = "it is being changed";
const NO_ANSWER: &str = "the broker does not answer";
/// How often it is asked for a turn: while it is, nobody comes first who asked later.
const ASK_AGAIN: Nanos = Nanos::from_millis(250);
/// Reports span at least this: longer than the longest period, and few questions to the agents.
const REPORT_LEAST: Nanos = Nanos::from_secs(1);
/// So many reports tell full speed.
const CALIBRATION: u32 = 5;
/// How often all CPU is asked for that nodes do not have: each time is a change that is refused.
const MEASURE_AGAIN: Nanos = Nanos::from_secs(10);
/// For how long it has all its CPU while its nodes do not tell what it uses of that: one who is asked through a remote shell
/// may take half a minute to be found away.
const UNTOLD_MOST: Nanos = Nanos::from_secs(30);
/// Neither feedback nor processors are so far off.
const UNLIKE_FROM: f64 = 2.0;
/// What people would type in.
const TENTH_OF_PERCENT: u32 = 1_000;
/// Nodes that use so much of what the busiest does have the same share.
const ALIKE: f64 = 0.8;
