//! Admission is deferred: a job waits in a queue, the most urgent first, and is asked for whenever something
//! has ended. It is promised its deadline when it starts. When that cannot be kept any more it waits for room
//! that nobody else needs, without a promise.
//!
//! Who is less urgent goes first only where nobody is delayed by it who can still be in time: those are
//! planned in their order, by what running jobs requested (conservative backfill, by deadlines).

use super::profile::Profile;
use super::reservations::{Asked, Reservations};
use super::{Action, Policy, latest_start, with_starts};
use crate::trace::Submission;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// So many of those that wait are planned, the most urgent first.
const PLANNED_MAX: usize = 500;

/// A queue in front of reservations that all begin at once.
#[derive(Debug, Clone)]
pub struct Queued {
    reservations: Reservations,
    nodes: u32,
    /// Nodes that nobody has reserved.
    free: u32,
    /// By the latest start at which the deadline can be kept.
    waiting: BTreeMap<(Nanos, usize), Submission>,
    /// For whom it is too late, in the order of their submission.
    late: BTreeMap<usize, Submission>,
    /// Jobs that run.
    running: BTreeMap<usize, Running>,
    /// Whether anything came or went since the queue was looked at last.
    changed: bool,
}

/// A job that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    nodes: u32,
    /// When it would end if it took what was requested.
    ends: Nanos,
}

impl Queued {
    /// No queue in front of so many nodes.
    pub fn new(reservations: Reservations, nodes: u32) -> Self {
        let (waiting, late, running) = Default::default();
        Self { reservations, nodes, free: nodes, waiting, late, running, changed: false }
    }

    fn pass_over_late(&mut self, now: Nanos) {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 < now
        {
            let ((_, job), submission) = first.remove_entry();
            self.late.insert(job, submission);
            self.changed = true;
        }
    }

    fn start_what_is_due(&mut self, now: Nanos) -> Vec<Action> {
        let ends = self.running.values().map(|running| (running.ends, running.nodes));
        let mut profile = Profile::new(now, self.free, ends);
        let mut promised = Vec::new();
        let urgent: Vec<_> = self.waiting.iter().take(PLANNED_MAX).map(|(k, s)| (*k, *s)).collect();
        for ((latest, job), submission) in urgent {
            let (nodes, length) = size(&submission);
            let Some(from) = profile.earliest(nodes, length) else { continue };
            if from == now && self.start(now, job, &submission) {
                self.waiting.remove(&(latest, job));
                promised.push(Action::Promise(job));
            }
            // Whoever would be late is not waited for: jobs often take less than was requested for them.
            if from <= latest {
                profile.take(from, length, nodes);
            }
        }
        let late: Vec<_> = self.late.iter().take(PLANNED_MAX).map(|(k, s)| (*k, *s)).collect();
        for (at, (job, submission)) in late.into_iter().enumerate() {
            let (nodes, length) = size(&submission);
            let Some(from) = profile.earliest(nodes, length) else { continue };
            if from == now && self.start(now, job, &submission) {
                self.late.remove(&job);
                profile.take(from, length, nodes);
            } else if at == 0 {
                // The first of them gets its turn: it is not passed by for ever.
                profile.take(from, length, nodes);
            }
        }
        promised
    }

    /// Whether the engine grants it.
    fn start(&mut self, now: Nanos, job: usize, submission: &Submission) -> bool {
        let (nodes, length) = size(submission);
        let granted = self.reservations.ask(now, job, submission, now) == Asked::Granted;
        if granted {
            self.free -= nodes;
            self.running.insert(job, Running { nodes, ends: now.saturating_add(length) });
        }
        granted
    }
}

fn size(submission: &Submission) -> (u32, Nanos) {
    (submission.nodes, Nanos::from_secs(submission.requested))
}

impl Policy for Queued {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        if submission.nodes > self.nodes {
            return vec![Action::Refuse(job)];
        }
        match latest_start(submission).filter(|latest| *latest >= now) {
            Some(latest) => drop(self.waiting.insert((latest, job), *submission)),
            None => drop(self.late.insert(job, *submission)),
        }
        self.changed = true;
        vec![]
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.reservations.give_back(now, job);
        self.free += self.running.remove(&job).map_or(0, |running| running.nodes);
        self.changed = true;
        vec![]
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.reservations.pass(now);
        self.pass_over_late(now);
        let changed = std::mem::take(&mut self.changed);
        let actions = if changed { self.start_what_is_due(now) } else { vec![] };
        with_starts(actions, &mut self.reservations)
    }

    fn next(&self) -> Option<Nanos> {
        let first = self.waiting.first_key_value();
        let too_late = first.map(|((latest, _), _)| latest.saturating_add(Nanos::new(1)));
        [self.reservations.next(), too_late].into_iter().flatten().min()
    }
}
