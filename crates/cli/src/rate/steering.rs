//! From progress to schedules: finds full speed first, then holds the target. Reads no clock and asks
//! nobody itself: instants come as arguments, and the nodes are behind [`Nodes`].
//!
//! All that a controller knows is its [`Memory`], a value with a text form: another one goes on from it.
//!
//! Where ranks work alike, one node stands for all, the one that uses most; where they do not, each has a share of its
//! own. Their period is the same.

use super::counted::Told;
use keeptime_control::{
    Calibration, Controller, FullSpeed, Health, Outcome, Policy, Proposal, Report, Schedule,
    Settings,
};
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};

/// The nodes of one job.
pub trait Nodes {
    /// Keeps what is known just before something is changed: who goes on from it sees on the nodes whether it was.
    fn remember(&mut self, _memory: &Memory) {}
    /// The CPU time that the job has used so far on each; nothing if one does not answer.
    fn used(&mut self) -> Option<Vec<Nanos>>;
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

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The part of full speed.
    #[serde(rename = "target_ppm")]
    pub target: Share,
    /// How far from it is near enough, in parts of full speed.
    #[serde(rename = "threshold_ppm")]
    pub threshold: Share,
    /// How schedules are found.
    pub policy: Policy,
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
}

/// What people are shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The part of full speed that was asked for.
    #[serde(rename = "target_ppm")]
    pub target: Share,
    /// How far it is.
    pub phase: Phase,
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

/// Holds one job at its rate.
#[derive(Debug)]
pub struct Steering<N> {
    nodes: N,
    memory: Memory,
}

/// All that is known of one job and of its way to its rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    wanted: Wanted,
    /// What a node has while full speed is measured.
    full: CpuPpm,
    /// How many nodes there are.
    nodes: usize,
    stage: Stage,
    /// What steered before somebody asked for another target, until that is answered.
    former: Option<Box<Controller>>,
    /// Where the next report begins.
    mark: Option<Mark>,
    /// It does not begin before then: what was done earlier is about another schedule.
    fresh_from: Nanos,
    /// Since when nothing was told, while full speed is measured.
    silent: Option<Nanos>,
    /// For how long that may be so.
    patience: Nanos,
    /// Full speed is not tried to be measured again before then.
    again_from: Nanos,
    /// Full speed, when it was just measured.
    found: Option<FullSpeed>,
    /// A change that could not be made yet.
    waiting: Option<Waiting>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Waiting {
    proposal: Proposal,
    turn: Turn,
}

/// When a change may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Turn {
    /// At once: somebody has asked for it.
    Now,
    /// In turn with other jobs: a correction, asked for at this instant.
    Waits { asked: Nanos },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Stage {
    Measured {
        calibration: Calibration,
        reports: u32,
    },
    Steered(Box<Controller>),
    /// Full speed is a guess, the share of the CPU is not.
    Unreported(Box<Controller>),
}

/// An instant at which both are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    at: Nanos,
    work: u64,
    used: Vec<Nanos>,
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
            mark: None,
            fresh_from,
            silent: None,
            patience: SILENT_MOST,
            again_from: fresh_from,
            found: None,
            waiting: None,
        })
    }

    /// Of one whose full speed is known, on nodes that have what [`Wanted::first_schedules`] says.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn knowing(
        wanted: Wanted,
        full: CpuPpm,
        nodes: usize,
        full_speed: FullSpeed,
    ) -> Result<Self, Invalid> {
        let memory = Self::new(wanted, full, nodes)?;
        // What it proposes is what they have, as who goes on from here sees.
        let (controller, _) = memory.start(full_speed, Nanos::default())?;
        Ok(Self { stage: Stage::Steered(Box::new(controller)), ..memory })
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Measured { .. } => Phase::Measured,
            Stage::Steered(controller) if controller.view().health == Health::Steered => {
                Phase::Steered
            }
            Stage::Steered(_) | Stage::Unreported(_) => Phase::Unreported,
        }
    }

    /// How it stands.
    pub fn state(&self) -> State {
        let (target, phase) = (self.wanted.target, self.phase());
        let (actual, full_speed, schedule, rank_cpu_ppm) = (None, None, None, Vec::new());
        let measured =
            State { target, phase, actual, full_speed, schedule, rank_cpu_ppm, refused: 0 };
        let (controller, is_told) = match &self.stage {
            Stage::Measured { .. } => return measured,
            Stage::Steered(controller) => (controller, true),
            Stage::Unreported(controller) => (controller, false),
        };
        let view = controller.view();
        let each = view.schedules.iter().map(|schedule| schedule.cpu());
        State {
            actual: view.actual,
            full_speed: is_told.then_some(view.full_speed),
            schedule: view.schedules.iter().copied().max_by_key(|schedule| schedule.cpu()),
            rank_cpu_ppm: if view.schedules.len() > 1 { each.collect() } else { Vec::new() },
            refused: view.refused,
            ..measured
        }
    }

    fn start(&self, full_speed: FullSpeed, now: Nanos) -> Result<(Controller, Proposal), Invalid> {
        Controller::start(self.wanted.settings(self.full, full_speed)?, now)
    }
}

impl<N: Nodes> Steering<N> {
    /// Goes on at `now` from what is remembered of a job, by whomever: it has what it had, and is steered from there.
    /// Whoever steered it before must have ended.
    pub fn resume(nodes: N, memory: Memory, now: Nanos) -> Self {
        let mut steering = Self { nodes, memory };
        // What was done while nobody looked is no report, nor was it silence.
        (steering.memory.mark, steering.memory.silent) = (None, None);
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
        // If a node does not answer now, the report is as much longer.
        let Some(used) = self.nodes.used() else { return };
        self.pass(Mark { at, work, used });
    }

    /// The program's MPI calls have told so much.
    pub fn counted(&mut self, told: Told) {
        let Told { work, at, used, is_recounted } = told;
        if is_recounted {
            self.recount();
        }
        self.hear(at);
        if self.is_due(at) {
            self.pass(Mark { at, work, used });
        }
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
    /// Why it cannot be had now, in the user's words; the former one stays, unless nobody knows.
    pub fn set(&mut self, target: Share) -> Result<(), String> {
        check("rate", target).map_err(|invalid| invalid.to_string())?;
        let Some(controller) = self.memory.stage.controller() else {
            self.memory.wanted.target = target;
            return Ok(());
        };
        if let Some(Waiting { proposal, .. }) = self.memory.waiting.take() {
            controller.resolve(proposal.sequence, Outcome::Withdrawn);
        }
        let before = Box::new(controller.clone());
        let proposal = controller.retarget(target, None).map_err(|invalid| invalid.to_string())?;
        self.memory.former = Some(before.clone());
        let applied = self.carry_out(proposal, Turn::Now);
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
            Applied::InForce { .. } => {
                self.memory.wanted.target = target;
                Ok(())
            }
            Applied::NotYet => {
                self.memory.wanted.target = target;
                Err("it is being changed; the rate follows in a moment".into())
            }
            Applied::Unknown => {
                self.memory.wanted.target = target;
                Err("the broker does not answer; the rate follows when it does".into())
            }
        }
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
        if matches!(self.memory.stage, Stage::Unreported(_)) {
            self.measure_again(at);
        }
    }

    fn is_due(&self, at: Nanos) -> bool {
        match &self.memory.mark {
            None => at >= self.memory.fresh_from,
            Some(mark) => at.saturating_sub(mark.at) >= REPORT_LEAST,
        }
    }

    /// One report ends here, and the next one begins.
    fn pass(&mut self, next: Mark) {
        if let Some(before) = self.memory.mark.replace(next.clone())
            && let Some(report) = report(&before, &next)
        {
            self.take(&report);
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
                let report = match controller.settings().full_speed.nodes() {
                    1 => &of_one(report),
                    _ => report,
                };
                controller.report(report).unwrap_or_default()
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
            // It did nothing meanwhile, or used no CPU: it is measured again.
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
        // As if it had done one unit of work.
        let guess = FullSpeed::new(1.0 / silent.as_secs_f64(), &[self.memory.full]);
        let started = guess.and_then(|full_speed| self.memory.start(full_speed, now));
        if let Ok((controller, proposal)) = started {
            // One that tells something more rarely is waited for longer the next time.
            let patience = self.memory.patience;
            self.memory.patience = patience.saturating_add(patience).min(PATIENCE_MOST);
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
            (self.memory.mark, self.memory.waiting) = (None, None);
            self.memory.fresh_from = since;
            self.memory.stage = Stage::measured(self.memory.nodes);
        }
    }

    /// Work is counted in other units from now on, which full speed says nothing about.
    fn recount(&mut self) {
        self.memory.mark = None;
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
            let Some(controller) = self.memory.stage.controller() else { break };
            next = match &outcome {
                Applied::InForce { since } => {
                    self.memory.mark = None;
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

impl Wanted {
    /// # Errors
    /// A target or a threshold of nothing.
    pub fn check(&self) -> Result<(), Invalid> {
        check("rate", self.target)?;
        check("threshold", self.threshold)
    }

    /// What each node has at first, or the one that stands for all, of a program whose full speed is known; at full
    /// speed a node has `full`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn first_schedules(
        &self,
        full: CpuPpm,
        full_speed: &FullSpeed,
    ) -> Result<Vec<Schedule>, Invalid> {
        self.check()?;
        let settings = self.settings(full, full_speed.clone())?;
        let (_, Proposal { schedules, .. }) = Controller::start(settings, Nanos::default())?;
        Ok(schedules)
    }

    fn settings(&self, full: CpuPpm, full_speed: FullSpeed) -> Result<Settings, Invalid> {
        let Self { target, threshold, policy } = self.clone();
        // The paper's utilisation is a part of all that a node gives, whatever the program makes of it.
        let full_speed = match policy {
            Policy::Paper(_) => FullSpeed::new(full_speed.rate(), &[full])?.polling(true),
            _ => full_speed,
        };
        Ok(Settings { policy, ..Settings::new(target, threshold, full_speed) })
    }
}

impl Stage {
    /// Nothing is measured yet, on so many nodes.
    fn measured(nodes: usize) -> Self {
        Self::Measured { calibration: Calibration::new(nodes), reports: 0 }
    }

    fn controller(&mut self) -> Option<&mut Controller> {
        match self {
            Self::Measured { .. } => None,
            Self::Steered(controller) | Self::Unreported(controller) => Some(controller),
        }
    }
}

fn check(field: &str, share: Share) -> Result<(), Invalid> {
    match share.ppm() {
        0 => Err(Invalid::new(field, share, "more than 0 %")),
        _ => Ok(()),
    }
}

/// What was done between two marks, with what each node used, as if the busiest used no more than [`UNEQUAL_MOST`] times
/// that. Nothing if a counter went back: an agent began anew.
fn report(from: &Mark, to: &Mark) -> Option<Report> {
    let used = from.used.iter().zip(&to.used);
    let used = used.map(|(from, to)| (to >= from).then(|| to.saturating_sub(*from)));
    let mut used = used.collect::<Option<Vec<_>>>()?;
    let least = Nanos::new(used.iter().max()?.get() / UNEQUAL_MOST);
    used.iter_mut().for_each(|used| *used = least.max(*used));
    let work = to.work.checked_sub(from.work)?;
    Report::new(from.at, to.at, work as f64, &used).ok()
}

/// Whether these, one for each node or one for all, are no more than each could have.
fn fit(schedules: &[Schedule], free: &[CpuPpm]) -> bool {
    match schedules {
        [all] => free.iter().all(|free| all.cpu() <= *free),
        each => each.iter().zip(free).all(|(schedule, free)| schedule.cpu() <= *free),
    }
}

/// The same with what the node used that used most.
fn of_one(report: &Report) -> Report {
    report.clone().with_used(&[most(report)])
}

fn most(report: &Report) -> Nanos {
    report.used().iter().copied().max().unwrap_or_default()
}

/// Whether it takes whatever it is given: then what it uses says nothing about what it does.
fn uses_all(report: &Report, given: CpuPpm) -> bool {
    let all = given.time_in_floor(report.to().saturating_sub(report.from()));
    most(report).as_secs_f64() >= USES_ALL * all.as_secs_f64()
}

/// How often it is asked for a turn: while it is, nobody comes first who asked later.
const ASK_AGAIN: Nanos = Nanos::from_millis(250);
/// Reports span at least this: longer than the longest period, and few questions to the agents.
const REPORT_LEAST: Nanos = Nanos::from_secs(1);
/// So many reports tell full speed.
const CALIBRATION: u32 = 5;
/// Programs read their input first; after this nothing is expected any more. It is doubled each time, since something
/// may come all the same,
const SILENT_MOST: Nanos = Nanos::from_secs(60);
/// but that no program keeps all its CPU for much longer than a quarter of an hour.
const PATIENCE_MOST: Nanos = Nanos::from_secs(16 * 60);
/// How often all CPU is asked for that nodes do not have: each time is a change that is refused.
const MEASURE_AGAIN: Nanos = Nanos::from_secs(10);
/// What people would type in.
const TENTH_OF_PERCENT: u32 = 1_000;
const USES_ALL: f64 = 0.9;
/// Nodes that use so much of what the busiest does have the same share.
const ALIKE: f64 = 0.8;
/// The busiest of a program's nodes has no more than so many times what another has: a slice of less than a millisecond
/// cannot be kept, and what is nearly idle would make the periods of all as much longer.
const UNEQUAL_MOST: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::counted::{Count, Counts, Look, Unit};
    use keeptime_control::plant::Plant;
    use keeptime_control::plant::bsp::{BspPlant, Machine, Program, Waiting};
    use keeptime_control::schedule::utilisation;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// A simulated program on two nodes that do as the test says.
    struct Simulated {
        plant: BspPlant,
        used: Vec<Nanos>,
        /// Of both nodes.
        schedules: Option<Vec<Schedule>>,
        /// What nodes answer to a schedule.
        answer: Option<Applied>,
        /// They do it all the same.
        obeys: bool,
        /// Another job has just been changed, again and again.
        is_others_turn: bool,
        /// What each could have.
        free: Option<Vec<CpuPpm>>,
        /// What each counts.
        looks: Option<Vec<Look>>,
        /// What was known, as text, when something was to be changed last.
        remembered: Option<String>,
        /// How often something was changed.
        changes: usize,
    }

    const FULL: CpuPpm = CpuPpm::from_percent(100);

    #[derive(Clone)]
    struct Shared(Rc<RefCell<Simulated>>);

    impl Nodes for Shared {
        fn remember(&mut self, memory: &Memory) {
            self.0.borrow_mut().remembered = Some(serde_json::to_string(memory).unwrap());
        }

        fn used(&mut self) -> Option<Vec<Nanos>> {
            Some(self.0.borrow().used.clone())
        }

        fn apply(&mut self, schedules: &[Schedule], in_turn: bool) -> Applied {
            let world = &mut *self.0.borrow_mut();
            if in_turn && world.is_others_turn {
                return Applied::NotYet;
            }
            if world.answer.is_none() || world.obeys {
                let each = match schedules {
                    [all] => vec![*all; 2],
                    each => each.to_vec(),
                };
                world.plant.apply(&each);
                world.schedules = Some(each);
                world.changes += 1;
            }
            let since = world.plant.now();
            world.answer.clone().unwrap_or(Applied::InForce { since })
        }

        fn release(&mut self, full: CpuPpm) -> Applied {
            self.apply(&[Schedule::new(full, Nanos::from_millis(10))], false)
        }

        fn observed(&mut self) -> Option<Vec<Schedule>> {
            self.0.borrow().schedules.clone()
        }

        fn available(&mut self) -> Option<Vec<CpuPpm>> {
            self.0.borrow().free.clone()
        }
    }

    struct Run {
        world: Shared,
        steering: Steering<Shared>,
        work: u64,
    }

    fn percent(value: u32) -> Share {
        Share::from_percent(value).unwrap()
    }

    fn wanted(target: u32, threshold: u32) -> Wanted {
        let (target, threshold) = (percent(target), percent(threshold));
        Wanted { target, threshold, policy: Policy::predictive() }
    }

    impl Run {
        fn start(target: u32) -> Self {
            Self::of(Program::balanced(2, 0.04, 1.0, Waiting::Blocks), target)
        }

        /// The second rank computes for a part of what the first does.
        fn unequal(part: f64, target: u32) -> Self {
            let mut program = Program::balanced(2, 0.04, 1.0, Waiting::Blocks);
            program.compute[1] *= part;
            Self::of(program, target)
        }

        fn of(program: Program, target: u32) -> Self {
            let plant = BspPlant::new(program, Machine::default(), 11);
            let world = Simulated {
                plant,
                used: vec![Nanos::default(); 2],
                schedules: None,
                answer: None,
                obeys: false,
                is_others_turn: false,
                free: None,
                looks: None,
                remembered: None,
                changes: 0,
            };
            let memory = Memory::new(wanted(target, 2), FULL, 2).unwrap();
            Self::going_on(Shared(Rc::new(RefCell::new(world))), memory)
        }

        fn going_on(world: Shared, memory: Memory) -> Self {
            let steering = Steering::resume(world.clone(), memory, Nanos::default());
            Self { world, steering, work: 0 }
        }

        /// Its controller is killed, and another goes on from what was known at the last change, or from what is known now.
        fn killed(&mut self, at_last_change: bool) {
            let now = self.world.0.borrow().plant.now();
            let remembered = self.world.0.borrow().remembered.clone();
            let text = match remembered.filter(|_| at_last_change) {
                Some(text) => text,
                None => serde_json::to_string(self.steering.memory()).unwrap(),
            };
            let memory = serde_json::from_str(&text).unwrap();
            self.steering = Steering::resume(self.world.clone(), memory, now);
        }

        fn changes(&self) -> usize {
            self.world.0.borrow().changes
        }

        /// One unit of work that nobody is told of.
        fn work(&mut self) -> Report {
            let world = &mut *self.world.0.borrow_mut();
            let report = world.plant.next_report();
            for (sum, used) in world.used.iter_mut().zip(report.used()) {
                *sum = sum.saturating_add(*used);
            }
            self.work += 1;
            report
        }

        /// The seconds that it took, and the part of full speed at which it was done.
        fn done(&self, report: &Report) -> (f64, f64) {
            let full = self.world.0.borrow().plant.full_rate_at(report.to());
            (report.seconds(), report.rate() / full)
        }

        /// One unit of work, which a line tells.
        fn step(&mut self) -> (f64, f64) {
            let report = self.work();
            self.steering.progress(self.work, report.to());
            self.done(&report)
        }

        /// One unit of work, which MPI calls tell at the first look of each second.
        fn counted_step(&mut self, counts: &mut Counts) -> (f64, f64) {
            let (report, unit) = (self.work(), Unit::Operations(6));
            let (from, at) = (report.from(), report.to());
            if from.get() / 1_000_000_000 < at.get() / 1_000_000_000 {
                let count = Some(Count { work: self.work, at, unit });
                let world = &mut *self.world.0.borrow_mut();
                let look = |used: &Nanos| Look { at, used: *used, count };
                world.looks = Some(world.used.iter().map(look).collect());
            }
            let looks = self.world.0.borrow().looks.clone();
            if let Some(told) = looks.and_then(|looks| counts.take(looks)) {
                self.steering.counted(told);
            }
            self.done(&report)
        }

        /// The mean part of full speed over so many units of work.
        fn mean(&mut self, steps: usize) -> f64 {
            self.mean_by(steps, Self::step)
        }

        fn mean_by(&mut self, steps: usize, mut step: impl FnMut(&mut Self) -> (f64, f64)) -> f64 {
            let seen: Vec<_> = (0..steps).map(|_| step(self)).collect();
            let seconds: f64 = seen.iter().map(|(seconds, _)| seconds).sum();
            seen.iter().map(|(seconds, fraction)| seconds * fraction).sum::<f64>() / seconds
        }

        /// For so many seconds it reads its input, with 5 % of a processor, and tells nothing.
        fn read_input(&mut self, seconds: u64) {
            for second in 0..=seconds {
                self.world.0.borrow_mut().used = vec![Nanos::from_millis(50 * second); 2];
                self.steering.tick(Nanos::from_secs(second));
            }
        }

        fn steered(target: u32) -> Self {
            let mut run = Self::start(target);
            run.mean(200);
            assert_eq!(run.steering.state().phase, Phase::Steered);
            run
        }

        /// Of the first node.
        fn share(&self) -> f64 {
            self.shares()[0]
        }

        fn shares(&self) -> [f64; 2] {
            let world = self.world.0.borrow();
            let schedules = world.schedules.as_deref().unwrap();
            [0, 1].map(|node: usize| utilisation(schedules[node].cpu()))
        }

        fn answer(&mut self, answer: Option<Applied>, obeys: bool) {
            let mut world = self.world.0.borrow_mut();
            (world.answer, world.obeys) = (answer, obeys);
        }
    }

    // Goal: a program that uses half a processor at full speed runs at the rate that was asked for, and at another
    // one. Method: a simulated program; the mean over hundreds of iterations.
    #[test]
    fn full_speed_is_found_and_then_the_rate_is_held() {
        let mut run = Run::start(30);
        assert_eq!(run.steering.state().phase, Phase::Measured);
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
        assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
        run.steering.set(percent(60)).unwrap();
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - 0.6).abs() < 0.02, "{mean}");
        let state = run.steering.state();
        assert!(state.actual.is_some() && state.full_speed.is_some_and(|rate| rate > 5.0));
    }

    // Goal: who knows full speed has no more than its part, from the first moment on. Method: the full speed that one
    // run has found, for another.
    #[test]
    fn a_full_speed_that_is_known_needs_no_full_speed() {
        let mut first = Run::start(30);
        first.mean(200);
        let full_speed = first.steering.take_found().unwrap();
        assert_eq!(first.steering.take_found(), None, "it is told once");
        let begins = wanted(30, 2).first_schedules(FULL, &full_speed).unwrap();
        assert_eq!(begins.len(), 1, "ranks that work alike");
        let Run { mut world, .. } = Run::start(30);
        // That was reserved.
        world.apply(&begins, false);
        let memory = Memory::knowing(wanted(30, 2), FULL, 2, full_speed).unwrap();
        let mut run = Run::going_on(world, memory);
        assert_eq!(run.steering.state().phase, Phase::Steered);
        assert_eq!(run.steering.state().schedule, Some(begins[0]));
        assert_eq!(run.changes(), 1, "it has that already");
        assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
        run.mean(100);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
        assert_eq!(run.steering.take_found(), None, "nothing was measured");
    }

    // Goal: ranks that work unequally have shares of their own, so that nothing is reserved that nobody uses, and the
    // rate is held all the same. Method: one rank computes half of what the other does, or hardly anything.
    #[test]
    fn ranks_that_work_unequally_have_unequal_shares() {
        for (part, expected) in [(0.5, 0.5..0.75), (0.01, 0.24..0.26)] {
            let mut run = Run::unequal(part, 30);
            run.mean(200);
            let mean = run.mean(400);
            assert!((mean - 0.3).abs() < 0.02, "{part}: {mean}");
            let [busy, other] = run.shares();
            assert!(expected.contains(&(other / busy)), "{part}: {busy} and {other}");
            let state = run.steering.state();
            assert_eq!(state.rank_cpu_ppm.len(), 2);
            assert_eq!(Some(state.rank_cpu_ppm[0]), state.schedule.map(|s| s.cpu()));
            run.steering.set(percent(60)).unwrap();
            run.mean(200);
            let mean = run.mean(400);
            assert!((mean - 0.6).abs() < 0.02, "{part}: {mean}");
        }
    }

    #[test]
    fn the_papers_utilisation_is_a_part_of_all_that_a_node_gives() {
        let full_speed = FullSpeed::new(10.0, &[CpuPpm::from_percent(20)]).unwrap();
        let paper = Wanted { policy: Policy::paper(), ..wanted(50, 3) };
        let cpu = |wanted: &Wanted| {
            wanted.first_schedules(CpuPpm::from_percent(40), &full_speed).unwrap()[0].cpu()
        };
        assert_eq!(cpu(&paper), CpuPpm::from_percent(20));
        assert_eq!(cpu(&wanted(50, 3)), CpuPpm::from_percent(10));
    }

    #[test]
    fn a_rate_that_cannot_be_had_changes_nothing_and_says_why() {
        let mut run = Run::steered(30);
        let (share, reason) = (run.share(), "n1 has 3 % of its CPU left".to_owned());
        run.answer(Some(Applied::Refused { reason: reason.clone() }), false);
        assert_eq!(run.steering.set(percent(80)), Err(reason));
        assert_eq!(run.steering.state().target, percent(30));
        assert_eq!(run.share(), share);
        run.answer(None, false);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "it is held as before: {mean}");
        assert!(run.steering.set(percent(0)).unwrap_err().contains("more than 0 %"));
    }

    // Goal: who asks for more than there is learns what can be had, and has it then. Method: a program that uses 52 %
    // of a processor at full speed, where the fuller of two nodes could give 26 %.
    #[test]
    fn a_rate_that_cannot_be_had_is_refused_with_the_greatest_that_can() {
        let mut run = Run::steered(30);
        run.world.0.borrow_mut().free = Some([40, 26].map(CpuPpm::from_percent).to_vec());
        run.answer(Some(Applied::Refused { reason: "n2 is short".into() }), false);
        let said = run.steering.set(percent(80)).unwrap_err();
        let most = said.strip_prefix("n2 is short; ").unwrap();
        let most: Share =
            most.strip_suffix(" of full speed can be had now").unwrap().parse().unwrap();
        assert!((0.44..0.54).contains(&most.as_f64()), "{said}");
        assert_eq!(run.steering.state().target, percent(30));
        run.answer(None, false);
        run.steering.set(most).unwrap();
        assert!((0.24..=0.26).contains(&run.share()), "{}", run.share());
    }

    // Goal: a correction waits for its turn, is made then, and what a user asks for does not wait. Method: a program that
    // is given too little, on nodes where it is always another job's turn, and then is not.
    #[test]
    fn a_correction_waits_for_its_turn() {
        let mut run = Run::steered(30);
        run.world.0.borrow_mut().is_others_turn = true;
        let before = run.shares();
        {
            // Nodes give less than they say.
            let world = &mut *run.world.0.borrow_mut();
            let less = world.schedules.iter().flatten();
            let less = less.map(|s| Schedule::new(CpuPpm::new(s.cpu().get() / 5 * 4), s.period()));
            world.plant.apply(&less.collect::<Vec<_>>());
        }
        run.mean(100);
        assert!(run.steering.memory.waiting.is_some());
        assert_eq!((run.shares(), run.steering.state().refused), (before, 0));
        let now = run.world.0.borrow().plant.now();
        run.steering.tick(now);
        assert!(run.steering.memory.waiting.is_some(), "it waits and is not given up");
        run.world.0.borrow_mut().is_others_turn = false;
        run.step();
        assert!(run.steering.memory.waiting.is_none());
        assert_ne!(run.shares(), before);
        run.world.0.borrow_mut().is_others_turn = true;
        run.steering.set(percent(60)).unwrap();
        run.mean(20);
        assert!(run.share() > before[0] * 1.5, "{}", run.share());
    }

    // Goal: whoever does not answer may have done it or not; either way it goes on from what the nodes have.
    #[test]
    fn what_nobody_answered_to_is_seen_on_the_nodes() {
        let runs: [fn() -> Run; 2] = [|| Run::start(30), || Run::unequal(0.5, 30)];
        for (obeys, run) in [false, true].into_iter().flat_map(|o| runs.map(|run| (o, run))) {
            let mut run = run();
            run.mean(200);
            run.answer(Some(Applied::Unknown), obeys);
            let error = run.steering.set(percent(60)).unwrap_err();
            assert!(error.contains("follows"), "{error}");
            run.answer(None, false);
            let now = run.world.0.borrow().plant.now();
            run.steering.tick(now);
            // Where it was not done, the target is aimed at anew from what there is.
            run.mean(400);
            let mean = run.mean(400);
            assert!((mean - 0.6).abs() < 0.03, "obeys: {obeys}: {mean}");
        }
    }

    // Goal: what a program uses while it tells nothing does not decide what it has: it may read its input then. Method:
    // one that uses hardly anything for a minute has its part of all CPU of its file, and so at another target.
    #[test]
    fn a_program_that_tells_nothing_has_its_part_of_the_cpu() {
        let mut run = Run::start(25);
        run.read_input(62);
        let state = run.steering.state();
        assert_eq!((state.phase, state.actual), (Phase::Unreported, None));
        assert!((run.share() - 0.25).abs() < 0.001, "{}", run.share());
        run.steering.set(percent(50)).unwrap();
        assert!((run.share() - 0.5).abs() < 0.001, "{}", run.share());
    }

    // Goal: a program is held at its rate, however long it has told nothing at first. Method: 70 seconds of input, then
    // a simulated program: it is measured as at its start, and what it used before does not count.
    #[test]
    fn a_program_that_begins_to_tell_is_measured_and_held() {
        let mut run = Run::start(30);
        run.read_input(70);
        assert_eq!(run.steering.phase(), Phase::Unreported);
        run.step();
        assert_eq!(run.steering.phase(), Phase::Measured);
        assert!((run.share() - 1.0).abs() < 0.001, "all CPU again: {}", run.share());
        run.mean(200);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
        assert!((run.share() - 0.3 * 0.52).abs() < 0.02, "{}", run.share());
        assert!(run.steering.take_found().is_some(), "later runs know it");
    }

    // Goal: nodes that others have filled meanwhile keep no program from being held later. Method: they refuse, and
    // then do not.
    #[test]
    fn all_cpu_that_cannot_be_had_is_asked_for_again() {
        let mut run = Run::start(30);
        run.read_input(70);
        run.answer(Some(Applied::Refused { reason: "n1 is full".into() }), false);
        run.mean(20);
        assert_eq!(run.steering.phase(), Phase::Unreported);
        assert!((run.share() - 0.3).abs() < 0.001, "{}", run.share());
        run.answer(None, false);
        run.mean(400);
        assert_eq!(run.steering.phase(), Phase::Steered);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
    }

    // Goal: a program whose units of work take longer than it is waited for is not at full speed for most of each for
    // ever. Method: the first takes 90 seconds, and so long is waited for the second, which never comes.
    #[test]
    fn a_program_that_tells_rarely_is_waited_for_longer() {
        let mut run = Run::start(30);
        run.read_input(89);
        assert_eq!(run.steering.phase(), Phase::Unreported);
        run.steering.progress(1, Nanos::from_secs(90));
        for second in 91..180 {
            run.steering.tick(Nanos::from_secs(second));
        }
        assert_eq!(run.steering.phase(), Phase::Measured);
        for second in 180..230 {
            run.steering.tick(Nanos::from_secs(second));
        }
        assert_eq!(run.steering.phase(), Phase::Unreported, "two minutes are too long");
    }

    // Goal: a program that prints nothing is held by what its MPI calls tell. Method: a simulated one that is looked at
    // once a second; then iterations are found to be others, and it is measured anew.
    #[test]
    fn mpi_calls_tell_as_much_as_lines() {
        let (mut run, mut counts) = (Run::start(30), Counts::default());
        let mut step = |run: &mut Run| run.counted_step(&mut counts);
        run.mean_by(600, &mut step);
        assert_eq!(run.steering.phase(), Phase::Steered);
        let mean = run.mean_by(1_000, &mut step);
        assert!((mean - 0.3).abs() < 0.03, "{mean}");
        run.steering.recount();
        run.mean_by(30, &mut step);
        assert_eq!(run.steering.phase(), Phase::Measured);
        run.mean_by(600, &mut step);
        assert_eq!(run.steering.phase(), Phase::Steered);
    }

    // Goal: a controller that is killed leaves schedules as they are, and the next one goes on from them without a bump.
    // Method: one after the other is killed, seven reports apart; nothing is measured anew, and what is corrected then is
    // a correction.
    #[test]
    fn a_controller_that_is_killed_is_followed_by_one_that_goes_on() {
        let runs: [fn() -> Run; 2] = [|| Run::start(30), || Run::unequal(0.5, 30)];
        for start in runs {
            let mut run = start();
            run.mean(200);
            assert_eq!(run.steering.phase(), Phase::Steered);
            for _ in 0..20 {
                let (before, changes) = (run.shares(), run.changes());
                run.killed(false);
                assert_eq!((run.shares(), run.changes()), (before, changes), "nothing is changed");
                assert_eq!(run.steering.phase(), Phase::Steered, "nothing is measured");
                run.mean(30);
                // Both are within the threshold of the target, as parts of less than a processor.
                let bump = run.share() - before[0];
                assert!(bump.abs() < 0.04, "{bump} after {before:?}");
            }
            let mean = run.mean(400);
            assert!((mean - 0.3).abs() < 0.02, "{mean}");
            assert!(run.steering.take_found().is_some(), "what the first one has found");
        }
    }

    // Goal: one that is killed while it changes something is followed by one that sees whether that was done. Method: a
    // new target that nodes have, or refuse, and of which the controller did not hear before it was killed.
    #[test]
    fn what_a_killed_controller_was_changing_is_seen_on_the_nodes() {
        for (refused, expected) in [(false, 60), (true, 30)] {
            let mut run = Run::steered(30);
            let before = run.shares();
            let reason = "n1 is full".to_owned();
            run.answer(refused.then_some(Applied::Refused { reason }), false);
            assert_eq!(run.steering.set(percent(60)).is_err(), refused);
            run.answer(None, false);
            let (after, changes) = (run.shares(), run.changes());
            assert_eq!(before == after, refused);
            run.killed(true);
            assert_eq!((run.shares(), run.changes()), (after, changes));
            assert_eq!(run.steering.state().target, percent(expected));
            run.mean(200);
            let mean = run.mean(400);
            assert!((mean - f64::from(expected) / 100.0).abs() < 0.02, "{expected}: {mean}");
        }
    }

    // Goal: full speed that is being measured is measured on, and a broker that is away when a controller begins is asked
    // later. Method: one is killed between two reports; one while nobody answers.
    #[test]
    fn a_controller_can_be_killed_at_any_stage() {
        let mut run = Run::start(30);
        run.mean(20);
        assert_eq!(run.steering.phase(), Phase::Measured);
        run.killed(false);
        run.mean(200);
        assert_eq!(run.steering.phase(), Phase::Steered);

        let schedules = run.world.0.borrow_mut().schedules.take();
        run.answer(Some(Applied::Unknown), false);
        run.steering.set(percent(50)).unwrap_err();
        run.killed(true);
        assert_eq!(run.steering.state().target, percent(30), "nobody knows yet");
        run.answer(None, false);
        run.world.0.borrow_mut().schedules = schedules;
        let (shares, now) = (run.shares(), run.world.0.borrow().plant.now());
        run.steering.tick(now);
        assert_eq!((run.shares(), run.steering.state().target), (shares, percent(30)));
        run.mean(100);
        let mean = run.mean(400);
        assert!((mean - 0.3).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_report_over_an_agents_restart_does_not_count() {
        let mut run = Run::start(30);
        for _ in 0..4 {
            run.mean(15);
            // It counts from nothing again.
            run.world.0.borrow_mut().used = vec![Nanos::default(); 2];
        }
        run.mean(200);
        assert!((run.mean(400) - 0.3).abs() < 0.02);
    }

    #[test]
    fn nothing_is_no_rate() {
        for (wanted, field) in [(wanted(0, 2), "rate"), (wanted(30, 0), "threshold")] {
            assert_eq!(Memory::new(wanted, FULL, 2).unwrap_err().field, field);
        }
    }
}
