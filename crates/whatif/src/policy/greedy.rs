//! A job is promised its deadline as soon as it is submitted, and has its resources reserved, or is refused.
//!
//! It is asked for now. If that does not fit, whoever reserves in advance takes the start that the refusal
//! offers, when the deadline can be kept from there.

use super::reservations::{Asked, Reservations};
use super::{Action, Policy, latest_start, with_starts};
use crate::trace::Submission;
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
}

impl Policy for Greedy {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        let Some(latest) = latest_start(submission).filter(|latest| *latest >= now) else {
            return vec![Action::Refuse(job)];
        };
        let mut asked = self.reservations.ask(now, job, submission, now);
        if let Asked::Later(from) = asked
            && self.in_advance
            && from <= latest
        {
            asked = self.reservations.ask(now, job, submission, from);
        }
        let promised = asked == Asked::Granted;
        let action = if promised { Action::Promise(job) } else { Action::Refuse(job) };
        with_starts(vec![action], &mut self.reservations)
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.reservations.give_back(now, job);
        with_starts(vec![], &mut self.reservations)
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.reservations.pass(now);
        with_starts(vec![], &mut self.reservations)
    }

    fn next(&self) -> Option<Nanos> {
        self.reservations.next()
    }
}
