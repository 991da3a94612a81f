//! A job is promised its deadline as soon as it is submitted, and has its resources reserved, or is refused.
//!
//! It is asked for now. If that does not fit, whoever reserves in advance takes the start that the refusal
//! offers, when the deadline can be kept from there. What should begin on a node that is away is moved, or asked
//! for again in the same way.

use super::reservations::{Asked, Reservations};
use super::{Action, Policy, latest_start, with_starts};
use crate::trace::Submission;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;

/// First come, first promised.
#[derive(Debug, Clone)]
pub struct Greedy {
    reservations: Reservations,
    in_advance: bool,
}

impl Greedy {
    /// Promises what begins at once.
    pub fn at_once(reservations: Reservations) -> Self {
        Self { reservations, in_advance: false }
    }

    /// Promises what begins later, too.
    pub fn in_advance(reservations: Reservations) -> Self {
        Self { reservations, in_advance: true }
    }

    /// Whether a job has what it has asked for, or has it in advance where that is in time.
    fn is_granted(
        &mut self,
        now: Nanos,
        job: usize,
        submission: &Submission,
        asked: Asked,
    ) -> bool {
        match (asked, latest_start(submission)) {
            (Asked::Granted, _) => true,
            (Asked::Later(from), Some(latest)) if self.in_advance && from <= latest => {
                self.reservations.ask(now, job, submission, from) == Asked::Granted
            }
            _ => false,
        }
    }

    /// `actions`, what becomes of jobs that should have begun on a node that is away, and the start of what has begun.
    fn settled(&mut self, now: Nanos, mut actions: Vec<Action>) -> Vec<Action> {
        for lost in self.reservations.lost() {
            let asked = self.reservations.move_lost(now, &lost);
            if !self.is_granted(now, lost.job, &lost.submission, asked) {
                actions.push(Action::Refuse(lost.job));
            }
        }
        with_starts(actions, &mut self.reservations)
    }
}

impl Policy for Greedy {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        if latest_start(submission).is_none_or(|latest| latest < now) {
            return vec![Action::Refuse(job)];
        }
        let asked = self.reservations.ask(now, job, submission, now);
        let promised = self.is_granted(now, job, submission, asked);
        let action = if promised { Action::Promise(job) } else { Action::Refuse(job) };
        self.settled(now, vec![action])
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.reservations.give_back(now, job);
        self.settled(now, vec![])
    }

    fn failed(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        self.reservations.fail(now, nodes, hit);
        self.settled(now, vec![])
    }

    fn repaired(&mut self, now: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        self.reservations.repair(now, nodes);
        self.settled(now, vec![])
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.reservations.pass(now);
        self.settled(now, vec![])
    }

    fn next(&self) -> Option<Nanos> {
        self.reservations.next()
    }
}
