//! First come, first served, with backfill as EASY does it. Whole nodes; the first in the queue has a
//! reservation by what running jobs requested; who can run without delaying it may start.

use super::{Action, Policy};
use crate::machine::{Hold, Start};
use crate::trace::Submission;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A queue in front of whole nodes.
#[derive(Debug, Clone)]
pub struct Backfill {
    free: BTreeSet<NodeIndex>,
    /// How many nodes are away.
    away: u32,
    queue: VecDeque<Waiting>,
    running: BTreeMap<usize, Running>,
    /// Whether anything came or went since it was looked at last.
    changed: bool,
}

#[derive(Debug, Clone)]
struct Waiting {
    job: usize,
    nodes: u32,
    requested: Nanos,
}

#[derive(Debug, Clone)]
struct Running {
    nodes: Vec<NodeIndex>,
    /// When it would end if it took what was requested.
    ends: Nanos,
}

impl Backfill {
    /// So many free nodes and no queue.
    pub fn new(nodes: u32) -> Self {
        let free = (0..nodes).map(NodeIndex).collect();
        let (queue, running) = (VecDeque::new(), BTreeMap::new());
        Self { free, away: 0, queue, running, changed: false }
    }

    fn start(&mut self, now: Nanos, waiting: &Waiting) -> Action {
        let nodes: Vec<_> = self.free.iter().take(waiting.nodes as usize).copied().collect();
        for node in &nodes {
            self.free.remove(node);
        }
        let ends = now.saturating_add(waiting.requested);
        self.running.insert(waiting.job, Running { nodes: nodes.clone(), ends });
        Action::Start(Start { job: waiting.job, nodes, hold: Hold::Shared })
    }

    fn give_back(&mut self, job: usize) {
        if let Some(running) = self.running.remove(&job) {
            self.free.extend(running.nodes);
            self.changed = true;
        }
    }

    /// When the first in the queue can start at the latest, and how many nodes it leaves then. Nodes that are
    /// away count as back when others end: whoever waits for them would be passed by for ever. When nobody else runs any
    /// more and they are away still, nobody knows when they are back, and others go first.
    fn reservation(&self, wanted: u32) -> (Nanos, u32) {
        let mut ends: Vec<_> =
            self.running.values().map(|r| (r.ends, r.nodes.len() as u32)).collect();
        ends.sort_unstable();
        let mut free = self.free.len() as u32 + self.away;
        let mut ends = ends.into_iter().peekable();
        while let Some((at, nodes)) = ends.next() {
            free += nodes;
            // All that end at the same time leave their nodes then.
            if free >= wanted && ends.peek().is_none_or(|(next, _)| *next > at) {
                return (at, free - wanted);
            }
        }
        (Nanos::new(u64::MAX), 0)
    }
}

impl Policy for Backfill {
    fn submitted(&mut self, _: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        let Submission { nodes, requested, .. } = *submission;
        self.queue.push_back(Waiting { job, nodes, requested: Nanos::from_secs(requested) });
        self.changed = true;
        vec![]
    }

    fn ended(&mut self, _: Nanos, job: usize) -> Vec<Action> {
        self.give_back(job);
        vec![]
    }

    fn failed(&mut self, _: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        hit.iter().for_each(|job| self.give_back(*job));
        for node in nodes {
            self.free.remove(node);
        }
        self.away += nodes.len() as u32;
        vec![]
    }

    fn repaired(&mut self, _: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        self.free.extend(nodes);
        self.away -= nodes.len() as u32;
        self.changed = true;
        vec![]
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        if !std::mem::take(&mut self.changed) {
            return actions;
        }
        let fits = |queue: &VecDeque<Waiting>, free: usize| {
            queue.front().is_some_and(|first| first.nodes as usize <= free)
        };
        while fits(&self.queue, self.free.len())
            && let Some(first) = self.queue.pop_front()
        {
            actions.push(self.start(now, &first));
        }
        let Some(first) = self.queue.pop_front() else { return actions };
        let (shadow, mut spare) = self.reservation(first.nodes);
        let mut left = VecDeque::from([first]);
        for waiting in std::mem::take(&mut self.queue) {
            let in_time = now.saturating_add(waiting.requested) <= shadow;
            let fits = waiting.nodes as usize <= self.free.len();
            if !fits || !(in_time || waiting.nodes <= spare) {
                left.push_back(waiting);
                continue;
            }
            if !in_time {
                spare -= waiting.nodes;
            }
            actions.push(self.start(now, &waiting));
        }
        self.queue = left;
        actions
    }

    fn next(&self) -> Option<Nanos> {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::Choice;
    use crate::shape::Shape;
    use crate::simulate::Trial;
    use crate::trace::{Class, Submission};
    use keeptime_model::units::Share;

    fn job(submitted: u64, run: u64, requested: u64, nodes: u32) -> Submission {
        Submission { submitted, run, requested, nodes, deadline: 0, class: Class::Normal }
    }

    fn ended(jobs: &[Submission]) -> Vec<u64> {
        let communication = Share::try_from(0).unwrap();
        let shape = Shape::star(4).unwrap();
        let trial = Trial::of(shape, Choice::FcfsBackfill, communication);
        trial.run(jobs, &mut |_| {}).unwrap().ended()
    }

    #[test]
    fn the_first_in_the_queue_is_not_delayed() {
        let jobs = [
            job(0, 100, 100, 3),
            // Waits for all four nodes.
            job(1, 50, 50, 4),
            // Ends before that: may run beside.
            job(2, 90, 90, 1),
            // Would not.
            job(3, 200, 200, 1),
        ];
        assert_eq!(ended(&jobs), [100, 150, 92, 350]);
    }

    #[test]
    fn nodes_that_the_first_leaves_are_used() {
        let jobs = [job(0, 100, 100, 3), job(1, 50, 50, 3), job(2, 500, 500, 1)];
        assert_eq!(ended(&jobs), [100, 150, 502]);
    }

    // Goal: two end at the same time, and one of them would do for the first; what the other leaves is left as well.
    #[test]
    fn nodes_that_others_leave_at_the_same_time_are_used() {
        let jobs =
            [job(0, 100, 100, 1), job(0, 100, 100, 2), job(1, 50, 50, 2), job(2, 500, 500, 1)];
        assert_eq!(ended(&jobs), [100, 100, 150, 502]);
    }

    #[test]
    fn who_requested_too_much_ends_early() {
        let jobs = [job(0, 10, 100, 4), job(1, 50, 50, 4)];
        assert_eq!(ended(&jobs), [10, 60]);
    }
}
