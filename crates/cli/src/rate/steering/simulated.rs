//! A simulated run for tests: a program on two nodes in virtual time, and what steers it.

use super::{Applied, Begins, Memory, Nodes, Phase, Steering, Used, Wanted};
use crate::rate::counted::{Count, Counts, Look, Unit};
use keeptime_control::plant::Plant;
use keeptime_control::plant::bsp::{BspPlant, Machine, Program, Waiting};
use keeptime_control::schedule::utilisation;
use keeptime_control::{Policy, Report, Schedule};
use keeptime_model::units::{CpuPpm, Nanos, Share};
use std::cell::RefCell;
use std::rc::Rc;

/// What nodes tell of the CPU time that was used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    Used,
    /// As where nothing is enforced.
    Zero,
    /// They do not answer.
    Nothing,
}

/// A simulated program on two nodes that do as the test says.
pub(super) struct Simulated {
    pub(super) plant: BspPlant,
    pub(super) used: Vec<Nanos>,
    pub(super) tells: Tells,
    /// Of both nodes.
    pub(super) schedules: Option<Vec<Schedule>>,
    /// What nodes answer to a schedule.
    pub(super) answer: Option<Applied>,
    /// They do it all the same.
    pub(super) obeys: bool,
    /// Another job has just been changed, again and again.
    pub(super) is_others_turn: bool,
    /// What each could have.
    pub(super) free: Option<Vec<CpuPpm>>,
    /// What each counts.
    pub(super) looks: Option<Vec<Look>>,
    /// What was known, as text, when something was to be changed last.
    pub(super) remembered: Option<String>,
    /// How often something was changed.
    pub(super) changes: usize,
}

pub(super) const FULL: CpuPpm = CpuPpm::from_percent(100);

#[derive(Clone)]
pub(super) struct Shared(pub(super) Rc<RefCell<Simulated>>);

impl Shared {
    fn of(program: Program) -> Self {
        let plant = BspPlant::new(program, Machine::default(), 11);
        let world = Simulated {
            plant,
            used: vec![Nanos::default(); 2],
            tells: Tells::Used,
            schedules: None,
            answer: None,
            obeys: false,
            is_others_turn: false,
            free: None,
            looks: None,
            remembered: None,
            changes: 0,
        };
        Self(Rc::new(RefCell::new(world)))
    }
}

impl Nodes for Shared {
    fn remember(&mut self, memory: &Memory) {
        self.0.borrow_mut().remembered = Some(serde_json::to_string(memory).unwrap());
    }

    fn used(&mut self) -> Option<Used> {
        let world = self.0.borrow();
        let each = match world.tells {
            Tells::Used => world.used.clone(),
            Tells::Zero => vec![Nanos::default(); 2],
            Tells::Nothing => return None,
        };
        Some(Used { at: world.plant.now(), each })
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

pub(super) struct Run {
    pub(super) world: Shared,
    pub(super) steering: Steering<Shared>,
    work: u64,
}

pub(super) fn percent(value: u32) -> Share {
    Share::from_percent(value).unwrap()
}

pub(super) fn wanted(target: u32, threshold: u32) -> Wanted {
    let (target, threshold) = (percent(target), percent(threshold));
    Wanted { target, threshold, policy: Policy::predictive() }
}

impl Run {
    pub(super) fn start(target: u32) -> Self {
        Self::of(Program::balanced(2, 0.04, 1.0, Waiting::Blocks), target)
    }

    /// The second rank computes for a part of what the first does.
    pub(super) fn unequal(part: f64, target: u32) -> Self {
        let mut program = Program::balanced(2, 0.04, 1.0, Waiting::Blocks);
        program.compute[1] *= part;
        Self::of(program, target)
    }

    pub(super) fn of(program: Program, target: u32) -> Self {
        let memory = Memory::new(wanted(target, 2), FULL, 2).unwrap();
        Self::going_on(Shared::of(program), memory)
    }

    /// One that begins so, with what was reserved for that.
    pub(super) fn beginning(target: u32, begins: Begins) -> Self {
        let mut world = Shared::of(Program::balanced(2, 0.04, 1.0, Waiting::Blocks));
        let first = wanted(target, 2).first_schedules(FULL, &begins).unwrap().unwrap();
        assert_eq!(first.len(), 1, "ranks that work alike");
        world.apply(&first, false);
        let memory = Memory::beginning(wanted(target, 2), FULL, 2, begins).unwrap();
        let run = Self::going_on(world, memory);
        assert_eq!(run.steering.state().schedule, Some(first[0]));
        run
    }

    pub(super) fn going_on(world: Shared, memory: Memory) -> Self {
        let steering = Steering::resume(world.clone(), memory, Nanos::default());
        Self { world, steering, work: 0 }
    }

    /// Its controller is killed, and another goes on from what was known at the last change, or from what is known now.
    pub(super) fn killed(&mut self, at_last_change: bool) {
        let now = self.world.0.borrow().plant.now();
        let remembered = self.world.0.borrow().remembered.clone();
        let text = match remembered.filter(|_| at_last_change) {
            Some(text) => text,
            None => serde_json::to_string(self.steering.memory()).unwrap(),
        };
        let memory = serde_json::from_str(&text).unwrap();
        self.steering = Steering::resume(self.world.clone(), memory, now);
    }

    pub(super) fn changes(&self) -> usize {
        self.world.0.borrow().changes
    }

    /// One unit of work that nobody is told of.
    pub(super) fn work(&mut self) -> Report {
        let world = &mut *self.world.0.borrow_mut();
        let report = world.plant.next_report();
        for (sum, used) in world.used.iter_mut().zip(report.used()) {
            *sum = sum.saturating_add(*used);
        }
        self.work += 1;
        report
    }

    /// The seconds that it took, and the part of full speed at which it was done.
    pub(super) fn done(&self, report: &Report) -> (f64, f64) {
        let full = self.world.0.borrow().plant.full_rate_at(report.to());
        (report.seconds(), report.rate() / full)
    }

    /// One unit of work, which a line tells.
    pub(super) fn step(&mut self) -> (f64, f64) {
        let report = self.work();
        self.steering.progress(self.work, report.to());
        self.done(&report)
    }

    /// Units of work for so many seconds, which lines tell while an agent does not answer: all of them are heard once it
    /// does. How many.
    pub(super) fn told_late(&mut self, seconds: f64) -> usize {
        let from = self.world.0.borrow().plant.now();
        let mut told = Vec::new();
        while self.world.0.borrow().plant.now().saturating_sub(from).as_secs_f64() < seconds {
            let at = self.work().to();
            told.push((self.work, at));
        }
        told.iter().for_each(|(work, at)| self.steering.progress(*work, *at));
        told.len()
    }

    /// One unit of work, which MPI calls tell at the first look of each second.
    pub(super) fn counted_step(&mut self, counts: &mut Counts) -> (f64, f64) {
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
    pub(super) fn mean(&mut self, steps: usize) -> f64 {
        self.mean_by(steps, Self::step)
    }

    pub(super) fn mean_by(
        &mut self,
        steps: usize,
        mut step: impl FnMut(&mut Self) -> (f64, f64),
    ) -> f64 {
        let seen: Vec<_> = (0..steps).map(|_| step(self)).collect();
        let seconds: f64 = seen.iter().map(|(seconds, _)| seconds).sum();
        seen.iter().map(|(seconds, fraction)| seconds * fraction).sum::<f64>() / seconds
    }

    /// For so many seconds it reads its input, with 5 % of a processor, and tells nothing.
    pub(super) fn read_input(&mut self, seconds: u64) {
        for second in 0..=seconds {
            self.world.0.borrow_mut().used = vec![Nanos::from_millis(50 * second); 2];
            self.steering.tick(Nanos::from_secs(second));
        }
    }

    pub(super) fn steered(target: u32) -> Self {
        let mut run = Self::start(target);
        run.mean(200);
        assert_eq!(run.steering.state().phase, Phase::Steered);
        run
    }

    /// Of the first node.
    pub(super) fn share(&self) -> f64 {
        self.shares()[0]
    }

    pub(super) fn shares(&self) -> [f64; 2] {
        let world = self.world.0.borrow();
        let schedules = world.schedules.as_deref().unwrap();
        [0, 1].map(|node: usize| utilisation(schedules[node].cpu()))
    }

    pub(super) fn answer(&mut self, answer: Option<Applied>, obeys: bool) {
        let mut world = self.world.0.borrow_mut();
        (world.answer, world.obeys) = (answer, obeys);
    }
}
