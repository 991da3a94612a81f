//! Admission is deferred: a job waits in a queue, the most urgent first, and is asked for whenever something
//! has ended. It is promised its deadline when it starts. When that cannot be kept any more it waits for room
//! that nobody else needs, without a promise; whoever has done so for too long comes before all but urgent
//! ones, so that nobody waits for ever. The queue is of this module: the broker's own has the order in which requests came.
//!
//! Who is less urgent goes first only where nobody is delayed by it who can still be in time: those are
//! planned in their order, by what running jobs requested (conservative backfill, by deadlines). Where classes
//! count, the order is by class first.
//!
//! Whoever can be in time all the same leaves some nodes free, as many as the square root of all: for who comes next
//! and cannot wait. What comes at random varies by about so much (square-root staffing; W. Whitt, "Understanding the
//! efficiency of multi-server service systems", Management Science 38, 1992).
//!
//! Who needs nodes that are away is passed: nobody knows when they are back. What the engine does not even grant while
//! nothing runs and all nodes are there is refused: it would wait for ever.

use super::profile::Profile;
use super::reservations::{Asked, Reservations};
use super::{Action, Policy, latest_start, with_starts};
use crate::trace::{Class, Submission};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The most urgent first.
const CLASSES: [Class; 2] = [Class::Urgent, Class::Normal];
/// So many of each class of those that wait are planned, the most urgent first.
const PLANNED_MAX: usize = 500;
/// So many times as long as was requested for it a late job lets others go first. Shorter patience has more jobs late,
/// since wide ones keep many nodes waiting for their last; without an end to it they waited for months.
const PATIENCE: u64 = 20;

/// A queue in front of reservations that all begin at once.
#[derive(Debug, Clone)]
pub struct Queued {
    reservations: Reservations,
    /// The same cluster, on which nothing runs and of which nothing is away: what it does not grant never will be.
    idle: Reservations,
    /// Which of those that were refused it does grant.
    possible: BTreeSet<usize>,
    /// Nodes that are there and that nobody has reserved.
    free: u32,
    /// How many nodes are away.
    away: u32,
    /// All nodes, those that are away among them.
    all: u32,
    /// Whether classes count.
    classes: bool,
    /// By class, and by the latest start at which the deadline can be kept.
    waiting: BTreeMap<(Class, Nanos, usize), Submission>,
    /// For whom it is too late, by class and in the order of their submission.
    late: BTreeMap<(Class, usize), Submission>,
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

/// What came of a job that could start.
enum Tried {
    Started,
    /// There is no room yet: others have the nodes, or rates, or nodes are away. With when it may have room, if anybody
    /// knows.
    Waits(Option<Nanos>),
    /// It would not even fit if nobody were in its way.
    Hopeless,
}

impl Queued {
    /// No queue in front of so many nodes.
    pub fn new(reservations: Reservations, nodes: u32) -> Self {
        let (waiting, late, running, possible) = Default::default();
        let (free, away, all, classes, changed) = (nodes, 0, nodes, false, false);
        let idle = reservations.clone();
        Self {
            reservations,
            idle,
            possible,
            free,
            away,
            all,
            classes,
            waiting,
            late,
            running,
            changed,
        }
    }

    /// A queue in which urgent jobs come before all others.
    pub fn by_class(reservations: Reservations, nodes: u32) -> Self {
        Self { classes: true, ..Self::new(reservations, nodes) }
    }

    /// The class that counts.
    fn class(&self, submission: &Submission) -> Class {
        if self.classes { submission.class } else { Class::default() }
    }

    fn pass_over_late(&mut self, now: Nanos) {
        for class in CLASSES {
            let of_class = (class, Nanos::new(0), 0)..(class, now, 0);
            let late: Vec<_> =
                self.waiting.range(of_class).map(|(key, job)| (*key, *job)).collect();
            for (key, submission) in late {
                self.waiting.remove(&key);
                self.late.insert((class, key.2), submission);
                self.changed = true;
            }
        }
    }

    fn start_what_is_due(&mut self, now: Nanos) -> Vec<Action> {
        let ends = self.running.values().map(|running| (running.ends, running.nodes));
        let mut profile = Profile::new(now, self.free, ends);
        let mut actions = Vec::new();
        self.plan_class(now, Class::Urgent, &mut profile, &mut actions);
        let overdue = self.overdue(now);
        if let Some((key, submission)) = overdue {
            actions.extend(self.plan_late(now, key, &submission, &mut profile, true));
        }
        self.plan_class(now, Class::Normal, &mut profile, &mut actions);
        let others =
            self.late.iter().filter(|(key, _)| overdue.is_none_or(|(had, _)| had != **key));
        let others: Vec<_> = others.take(PLANNED_MAX).map(|(key, job)| (*key, *job)).collect();
        for (at, (key, submission)) in others.into_iter().enumerate() {
            // The first of them is not delayed by those behind it.
            actions.extend(self.plan_late(now, key, &submission, &mut profile, at == 0));
        }
        actions
    }

    /// Who has let others go first for too long, if anybody: the first that could run if nobody else did.
    fn overdue(&self, now: Nanos) -> Option<((Class, usize), Submission)> {
        let found = self.late.iter().find(|(_, Submission { deadline, requested, nodes, .. })| {
            let patience = Nanos::from_secs(*requested).get().saturating_mul(PATIENCE);
            let until = Nanos::from_secs(*deadline).saturating_add(Nanos::new(patience));
            until < now && *nodes <= self.all - self.away
        });
        found.map(|(key, submission)| (*key, *submission))
    }

    /// Plans those of a class that can be in time.
    fn plan_class(
        &mut self,
        now: Nanos,
        class: Class,
        profile: &mut Profile,
        actions: &mut Vec<Action>,
    ) {
        let of_class = (class, Nanos::new(0), 0)..=(class, Nanos::new(u64::MAX), usize::MAX);
        let waiting = self.waiting.range(of_class).take(PLANNED_MAX);
        let waiting: Vec<_> = waiting.map(|(key, submission)| (*key, *submission)).collect();
        for (key, submission) in waiting {
            actions.extend(self.plan_waiting(now, key, &submission, profile));
        }
    }

    /// Starts one that can be in time if there is room for it now, and promises it that; if there is not, what is planned
    /// after this leaves it the first room that there will be.
    fn plan_waiting(
        &mut self,
        now: Nanos,
        key: (Class, Nanos, usize),
        submission: &Submission,
        profile: &mut Profile,
    ) -> Option<Action> {
        let (class, latest, job) = key;
        let (nodes, length) = size(submission);
        let sparing = profile.earliest(now, self.with_spare(class, nodes), length);
        let sparing = sparing.filter(|from| *from <= latest);
        let from = sparing.or_else(|| profile.earliest(now, nodes, length))?;
        let (held, action) = match self.try_from(now, from, job, submission, profile) {
            Tried::Started => {
                self.waiting.remove(&key);
                (Some(now), Some(Action::Promise(job)))
            }
            Tried::Waits(from) => (from, None),
            Tried::Hopeless => {
                self.waiting.remove(&key);
                return Some(self.refuse(job));
            }
        };
        // Whoever would be late is not waited for: jobs often take less than was requested for them.
        if let Some(from) = held.filter(|from| *from <= latest) {
            profile.take(from, length, nodes);
        }
        action
    }

    /// Starts a late one if there is room for it now; if there is not, and it `holds`, what is planned after this leaves
    /// it the first room that there will be.
    fn plan_late(
        &mut self,
        now: Nanos,
        key: (Class, usize),
        submission: &Submission,
        profile: &mut Profile,
        holds: bool,
    ) -> Option<Action> {
        let ((nodes, length), job) = (size(submission), key.1);
        let from = profile.earliest(now, nodes, length)?;
        match self.try_from(now, from, job, submission, profile) {
            Tried::Started => {
                self.late.remove(&key);
                profile.take(now, length, nodes);
            }
            Tried::Waits(Some(from)) if holds => profile.take(from, length, nodes),
            Tried::Waits(_) => {}
            Tried::Hopeless => {
                self.late.remove(&key);
                return Some(self.refuse(job));
            }
        }
        None
    }

    /// Starts one for which `profile` has nodes from `from` on, if that is now. Nodes are not all that it needs: where the
    /// engine refuses it, it waits until that knows room for it. While nothing runs, nodes that are away are in its way, and
    /// nobody knows until when.
    fn try_from(
        &mut self,
        now: Nanos,
        from: Nanos,
        job: usize,
        submission: &Submission,
        profile: &Profile,
    ) -> Tried {
        if from > now {
            return Tried::Waits(Some(from));
        }
        let tried = self.start(now, job, submission);
        let Tried::Waits(until) = tried else { return tried };
        let (nodes, length) = size(submission);
        let until = until.filter(|_| !self.running.is_empty());
        Tried::Waits(until.and_then(|until| profile.earliest(until, nodes, length)))
    }

    /// How many have to be free for one of `class` that takes `nodes` and leaves some free: all that are there at the most.
    /// Urgent ones leave none: those are for them.
    fn with_spare(&self, class: Class, nodes: u32) -> u32 {
        let spare = if class == Class::Urgent { 0 } else { self.all.isqrt() };
        (nodes + spare).min(self.all - self.away).max(nodes)
    }

    /// Asks the engine. That it knows no start at all proves nothing while others run: its search is bounded. So what it
    /// refuses is asked for once where nothing runs.
    fn start(&mut self, now: Nanos, job: usize, submission: &Submission) -> Tried {
        let asked = self.reservations.ask(now, job, submission, now);
        if asked != Asked::Granted {
            if self.possible.contains(&job) || self.idle.would_grant(now, job, submission) {
                self.possible.insert(job);
                return Tried::Waits(asked.later());
            }
            return Tried::Hopeless;
        }
        self.possible.remove(&job);
        let (nodes, length) = size(submission);
        self.free -= nodes;
        self.running.insert(job, Running { nodes, ends: now.saturating_add(length) });
        Tried::Started
    }

    /// A job has left its nodes.
    fn leave(&mut self, job: usize) {
        self.free += self.running.remove(&job).map_or(0, |running| running.nodes);
        self.changed = true;
    }

    /// Others may be planned in its place.
    fn refuse(&mut self, job: usize) -> Action {
        self.changed = true;
        Action::Refuse(job)
    }
}

fn size(submission: &Submission) -> (u32, Nanos) {
    (submission.nodes, Nanos::from_secs(submission.requested))
}

impl Policy for Queued {
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        let class = self.class(submission);
        match latest_start(submission).filter(|latest| *latest >= now) {
            Some(latest) => drop(self.waiting.insert((class, latest, job), *submission)),
            None => drop(self.late.insert((class, job), *submission)),
        }
        self.changed = true;
        vec![]
    }

    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action> {
        self.reservations.give_back(now, job);
        self.leave(job);
        vec![]
    }

    fn failed(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        self.reservations.fail(now, nodes, hit);
        let lost = self.reservations.lost();
        debug_assert!(lost.is_empty(), "everything that is reserved has begun: {lost:?}");
        hit.iter().for_each(|job| self.leave(*job));
        self.free -= nodes.len() as u32;
        self.away += nodes.len() as u32;
        vec![]
    }

    fn repaired(&mut self, now: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        self.reservations.repair(now, nodes);
        self.free += nodes.len() as u32;
        self.away -= nodes.len() as u32;
        self.changed = true;
        vec![]
    }

    fn passed(&mut self, now: Nanos) -> Vec<Action> {
        self.reservations.pass(now);
        self.pass_over_late(now);
        let mut actions = Vec::new();
        while std::mem::take(&mut self.changed) {
            actions.append(&mut self.start_what_is_due(now));
        }
        with_starts(actions, &mut self.reservations)
    }

    fn next(&self) -> Option<Nanos> {
        let first_of = |class| self.waiting.range((class, Nanos::new(0), 0)..).next();
        let too_late = |class| {
            let ((of, latest, _), _) = first_of(class)?;
            (*of == class).then(|| latest.saturating_add(Nanos::new(1)))
        };
        let late = CLASSES.map(too_late);
        [self.reservations.next()].into_iter().chain(late).flatten().min()
    }
}
