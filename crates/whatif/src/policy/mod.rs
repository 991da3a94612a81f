//! Who starts when and where.

mod backfill;
mod by_deadline;
mod greedy;
mod profile;
mod queued;
mod reservations;
mod unmanaged;

use crate::machine::{Hold, Start, Traffic};
use crate::trace::Submission;
use backfill::Backfill;
use by_deadline::ByDeadline;
use greedy::Greedy;
use keeptime_model::Invalid;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::Nanos;
use queued::Queued;
use reservations::Reservations;
use serde::Serialize;
use unmanaged::Unmanaged;

/// Which policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The real engine: a job is promised its deadline when it is submitted and has its resources
    /// reserved, now or in advance, or is refused.
    Keeptime,
    /// The real engine, of which only what can start at once is promised: greedy, as in the thesis.
    KeeptimeGreedy,
    /// The real engine behind a queue: a job is promised its deadline when it starts.
    KeeptimeQueue,
    /// The real engine behind a queue in which urgent jobs come before all others.
    KeeptimeClasses,
    /// As `keeptime run --by --wait` asks: jobs have parts of their nodes, which they share, and go slower for others as
    /// far as their deadlines allow.
    KeeptimeBy,
    /// First come, first served, with backfill as EASY does it.
    FcfsBackfill,
    /// No middleware: everything starts at once and shares.
    None,
}

/// What a policy decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The job will be done by its deadline.
    Promise(usize),
    /// The job will not be run, or not again.
    Refuse(usize),
    /// The job starts now.
    Start(Start),
    /// The job does not begin where it was to: a node of it is away. It waits anew.
    Lose(usize),
    /// The job, which runs, has something else from now on.
    Change(usize, Hold),
}

/// Decides about jobs, which it knows by their numbers. Times never go back.
pub trait Policy {
    /// A job is submitted, of at most as many nodes as the cluster has and the broker gives one job. One
    /// whose node is away is submitted anew.
    fn submitted(&mut self, now: Nanos, job: usize, submission: &Submission) -> Vec<Action>;
    /// A job that was started has ended.
    fn ended(&mut self, now: Nanos, job: usize) -> Vec<Action>;
    /// Nodes are away, all at once, and with them the jobs `hit`, all that ran there. Nothing starts on them until they
    /// are back.
    fn failed(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action>;
    /// Nodes that were away are back.
    fn repaired(&mut self, now: Nanos, nodes: &[NodeIndex]) -> Vec<Action>;
    /// All that is due by now is done.
    fn passed(&mut self, now: Nanos) -> Vec<Action>;
    /// When it wants to decide next, if nothing happens before.
    fn next(&self) -> Option<Nanos>;
}

impl Choice {
    /// Those under which a job that runs has whole nodes, or shares them alike: how long it takes is plain.
    pub const WHOLE: [Self; 6] = [
        Self::Keeptime,
        Self::KeeptimeGreedy,
        Self::KeeptimeQueue,
        Self::KeeptimeClasses,
        Self::FcfsBackfill,
        Self::None,
    ];

    /// The policy for this cluster, on which nothing runs.
    ///
    /// # Errors
    /// If the engine cannot have such a cluster, or its nodes are not alike.
    pub fn begin(self, topology: Topology, traffic: Traffic) -> Result<Box<dyn Policy>, Invalid> {
        let nodes = topology.nodes().len() as u32;
        let reserved = |topology| Reservations::new(topology, traffic);
        Ok(match self {
            Self::Keeptime => Box::new(Greedy::in_advance(reserved(topology)?)),
            Self::KeeptimeGreedy => Box::new(Greedy::at_once(reserved(topology)?)),
            Self::KeeptimeQueue => Box::new(Queued::new(reserved(topology)?, nodes)),
            Self::KeeptimeClasses => Box::new(Queued::by_class(reserved(topology)?, nodes)),
            Self::KeeptimeBy => Box::new(ByDeadline::new(topology, traffic)?),
            Self::FcfsBackfill => Box::new(Backfill::new(nodes)),
            Self::None => Box::new(Unmanaged::new(nodes)),
        })
    }
}

/// The last instant at which a job can start that is to be done in time by what was requested for it;
/// nothing if that is before time began.
fn latest_start(submission: &Submission) -> Option<Nanos> {
    submission.deadline.checked_sub(submission.requested).map(Nanos::from_secs)
}

/// `actions`, and the start of what has begun.
fn with_starts(mut actions: Vec<Action>, reservations: &mut Reservations) -> Vec<Action> {
    actions.extend(reservations.begun().into_iter().map(Action::Start));
    actions
}

keeptime_model::named!(
    Choice, "policy", one_of:
    Keeptime "keeptime",
    KeeptimeGreedy "keeptime-greedy",
    KeeptimeQueue "keeptime-queue",
    KeeptimeClasses "keeptime-classes",
    KeeptimeBy "keeptime-by",
    FcfsBackfill "fcfs-backfill",
    None "none",
);
