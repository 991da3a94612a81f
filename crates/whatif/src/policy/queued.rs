//! Admission is deferred: a job waits in a queue, the most urgent first, and is asked for whenever something
//! has ended. It is promised its deadline when it starts, and refused when that cannot be kept any more.

use super::reservations::{Asked, Reservations};
use super::{Action, Policy, latest_start, with_starts};
use crate::trace::Submission;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// A queue in front of reservations that all begin at once.
#[derive(Debug, Clone)]
pub struct Queued {
    reservations: Reservations,
    nodes: u32,
    /// Nodes that nobody has reserved.
    free: u32,
    /// By the latest start at which the deadline can be kept.
    waiting: BTreeMap<(Nanos, usize), Submission>,
    /// How many nodes each job has that runs.
    running: BTreeMap<usize, u32>,
    /// Whether anything came or went since the queue was looked at last.
    changed: bool,
}

impl Queued {
    /// No queue in front of so many nodes.
    pub fn new(reservations: Reservations, nodes: u32) -> Self {
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        Self { reservations, nodes, free: nodes, waiting, running, changed: false }
    }

    /// Those for which it is too late at `now`.
    fn refuse_late(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 < now
        {
            let (_, job) = first.remove_entry().0;
            actions.push(Action::Refuse(job));
        }
        actions
    }

    fn start_what_fits(&mut self, now: Nanos) -> Vec<Action> {
        let mut started = Vec::new();
        for ((latest, job), submission) in &self.waiting {
            let fits = submission.nodes <= self.free;
            if fits && self.reservations.ask(now, *job, submission, now) == Asked::Granted {
                self.free -= submission.nodes;
                self.running.insert(*job, submission.nodes);
                started.push((*latest, *job));
            }
        }
        for key in &started {
            self.waiting.remove(key);
        }
        started.into_iter().map(|(_, job)| Action::Promise(job)).collect()
    }
}

impl Policy for Queued {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        match latest_start(submission).filter(|latest| *latest >= now) {
            Some(latest) if submission.nodes <= self.nodes => {
                self.waiting.insert((latest, job), *submission);
                self.changed = true;
                vec![]
            }
            _ => vec![Action::Refuse(job)],
        }
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.reservations.give_back(now, job);
        self.free += self.running.remove(&job).unwrap_or(0);
        self.changed = true;
        vec![]
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.reservations.pass(now);
        let mut actions = self.refuse_late(now);
        if std::mem::take(&mut self.changed) {
            actions.append(&mut self.start_what_fits(now));
        }
        with_starts(actions, &mut self.reservations)
    }

    fn next(&self) -> Option<Nanos> {
        let first = self.waiting.first_key_value();
        let too_late = first.map(|((latest, _), _)| latest.saturating_add(Nanos::new(1)));
        [self.reservations.next(), too_late].into_iter().flatten().min()
    }
}
