//! Jobs as reservations of the broker: what policies that reserve ask for.
//!
//! A job is asked for as a user would: its nodes with their processors and a rate for each flow, for as long
//! as was requested. A job that ends early gives the rest back. When a node of a job is gone, its reservation
//! is lost; one that should begin then is moved, as its owner may ask.

use crate::broker::Broker;
use crate::machine::{Hold, Start, Traffic};
use crate::shape;
use crate::trace::Submission;
use keeptime_engine::{Answer, Call, CallError, Cluster};
use keeptime_model::Invalid;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::BTreeMap;

/// A broker, and which reservation is for which job.
#[derive(Debug, Clone)]
pub struct Reservations {
    broker: Broker,
    traffic: Traffic,
    /// What a job has of each of its nodes: all.
    cpu: CpuPpm,
    jobs: BTreeMap<Handle, (usize, Submission)>,
    handles: BTreeMap<usize, Handle>,
}

/// A job whose reservation was lost before it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    handle: Handle,
    /// Its number.
    pub job: usize,
    /// What was asked for.
    pub submission: Submission,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It has its resources, from then on.
    Granted,
    /// It would have them, from then on.
    Later(Nanos),
    /// It is more than the cluster has.
    Never,
}

impl Asked {
    /// When it would have its resources, if not now.
    pub fn later(self) -> Option<Nanos> {
        match self {
            Self::Later(from) => Some(from),
            Self::Granted | Self::Never => None,
        }
    }
}

impl Reservations {
    /// A broker for this cluster, all agents connected.
    ///
    /// # Errors
    /// If the engine cannot have such a cluster, or its nodes are not alike.
    pub fn new(topology: Topology, traffic: Traffic) -> Result<Self, Invalid> {
        let cpu = shape::cpu_of_each(&topology)?;
        let broker = Broker::new(Cluster::new(topology, shape::reservable)?);
        Ok(Self { broker, traffic, cpu, jobs: BTreeMap::new(), handles: BTreeMap::new() })
    }

    /// Asks for a job at `now`, to begin at `from`.
    pub fn ask(&mut self, now: Nanos, job: usize, submission: &Submission, from: Nanos) -> Asked {
        self.broker.set_time(now);
        let key = self.broker.new_key();
        let request = self.request(submission, from);
        self.call(Call::Reserve { key, request }, job, submission)
    }

    /// Whether a job that has nothing would be granted at `now`; it still has nothing then.
    pub fn would_grant(&mut self, now: Nanos, job: usize, submission: &Submission) -> bool {
        let granted = self.ask(now, job, submission, now) == Asked::Granted;
        self.give_back(now, job);
        self.broker.begun();
        granted
    }

    /// Asks at `now` that a reservation that should begin is moved to other nodes.
    pub fn move_lost(&mut self, now: Nanos, lost: &Lost) -> Asked {
        self.broker.set_time(now);
        self.call(Call::Move { handle: lost.handle }, lost.job, &lost.submission)
    }

    /// Asks for what a job is to have.
    fn call(&mut self, call: Call, job: usize, submission: &Submission) -> Asked {
        match self.broker.call(call) {
            Some(Ok(Answer::Reservation(reservation))) => {
                let handle = reservation.handle;
                self.jobs.insert(handle, (job, *submission));
                self.handles.insert(job, handle);
                Asked::Granted
            }
            Some(Err(error)) => match *error {
                CallError::Refused { refusal, .. } => {
                    let start = refusal.earliest_start_unix_nanos;
                    start.map_or(Asked::Never, |start| Asked::Later(Broker::since_start(start)))
                }
                // More nodes or flows than one reservation can have.
                _ => Asked::Never,
            },
            _ => Asked::Never,
        }
    }

    /// A job has ended at `now` and needs nothing any more.
    pub fn give_back(&mut self, now: Nanos, job: usize) {
        self.broker.set_time(now);
        let Some(handle) = self.forget(job) else { return };
        // One that takes just what was requested is over by itself.
        self.broker.call(Call::Cancel { handle });
    }

    /// Nodes are gone at `now`, and with them the jobs `hit`, which ran there: they have nothing reserved any more.
    pub fn fail(&mut self, now: Nanos, nodes: &[NodeIndex], hit: &[usize]) {
        self.broker.set_time(now);
        for job in hit {
            self.forget(*job);
        }
        self.broker.fail(nodes);
    }

    /// Nodes are back at `now`.
    pub fn repair(&mut self, now: Nanos, nodes: &[NodeIndex]) {
        self.broker.set_time(now);
        self.broker.repair(nodes);
    }

    /// The jobs that should have begun since this was called last, on a node that is gone.
    pub fn lost(&mut self) -> Vec<Lost> {
        let lost = self.broker.lost();
        lost.into_iter().filter_map(|handle| self.lose(handle)).collect()
    }

    fn lose(&mut self, handle: Handle) -> Option<Lost> {
        let (job, submission) = *self.jobs.get(&handle)?;
        self.forget(job);
        Some(Lost { handle, job, submission })
    }

    /// Which reservation a job had, if it had one.
    fn forget(&mut self, job: usize) -> Option<Handle> {
        let handle = self.handles.remove(&job)?;
        self.jobs.remove(&handle);
        Some(handle)
    }

    /// It is `now`.
    pub fn pass(&mut self, now: Nanos) {
        self.broker.set_time(now);
        self.broker.pass();
    }

    /// The jobs that have begun since this was called last.
    pub fn begun(&mut self) -> Vec<Start> {
        let begun = self.broker.begun();
        begun.into_iter().filter_map(|handle| self.start(handle)).collect()
    }

    /// When something begins or ends next.
    pub fn next(&self) -> Option<Nanos> {
        // While nothing is promised, only leases of agents are left, which never end.
        self.broker.next().filter(|_| !self.jobs.is_empty())
    }

    fn start(&self, handle: Handle) -> Option<Start> {
        let (job, _) = *self.jobs.get(&handle)?;
        Some(Start { job, nodes: self.broker.nodes(handle)?, hold: Hold::Reserved(self.cpu) })
    }

    fn request(&self, submission: &Submission, from: Nanos) -> Request {
        let nodes = NodeChoice::Any(submission.nodes);
        let resources = Resources { cpu_ppm: self.cpu, ..self.traffic.resources(nodes) };
        Request {
            from_unix_nanos: Some(Broker::wall(from)),
            duration_nanos: Some(Nanos::from_secs(submission.requested)),
            ..Request::new(Ask::Resources(resources))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Class;
    use keeptime_model::units::{BitsPerSecond, Share};

    /// Three nodes behind a switch, and jobs that do not talk.
    fn three_nodes() -> Reservations {
        let topology = crate::shape::Shape::star(3).unwrap().topology();
        let communication = Share::from_percent(0).unwrap();
        Reservations::new(topology, Traffic { communication, flow: BitsPerSecond::ZERO }).unwrap()
    }

    fn job(nodes: u32) -> Submission {
        let class = Class::Normal;
        Submission { submitted: 0, run: 100, requested: 100, nodes, deadline: 1_000, class }
    }

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    /// A job of two nodes that is to begin at 5,000 s, and the first of them, which is gone from 10 s on.
    fn lost_ahead() -> (Reservations, NodeIndex) {
        let mut reservations = three_nodes();
        assert_eq!(reservations.ask(at(0), 7, &job(2), at(5_000)), Asked::Granted);
        let node = reservations.broker.nodes(reservations.handles[&7]).unwrap()[0];
        reservations.fail(at(10), &[node], &[]);
        assert!(reservations.lost().is_empty(), "it may be back by then");
        (reservations, node)
    }

    // Goal: what is to begin on a node that is away stays until then, is lost when the node is not back, and is moved to
    // nodes that are there.
    #[test]
    fn what_should_begin_on_a_node_that_is_away_is_lost_and_moved() {
        let (mut reservations, node) = lost_ahead();
        // When its agents are to be told.
        reservations.pass(at(4_400));
        assert!(reservations.lost().is_empty(), "it may be back by then");
        reservations.pass(at(5_000));
        let lost = reservations.lost();
        assert_eq!(lost.iter().map(|lost| lost.job).collect::<Vec<_>>(), [7]);
        assert!(reservations.begun().is_empty());
        assert_eq!(reservations.move_lost(at(5_000), &lost[0]), Asked::Granted);
        let begun = reservations.begun();
        assert_eq!(begun.len(), 1, "{begun:?}");
        assert!(begun[0].nodes.len() == 2 && !begun[0].nodes.contains(&node), "{begun:?}");
    }

    #[test]
    fn what_is_to_begin_on_a_node_that_is_back_begins_there() {
        let (mut reservations, node) = lost_ahead();
        reservations.repair(at(20), &[node]);
        reservations.pass(at(4_400));
        reservations.pass(at(5_000));
        let begun = reservations.begun();
        assert!(begun.len() == 1 && begun[0].nodes.contains(&node), "{begun:?}");
        assert!(reservations.lost().is_empty());
    }

    // Goal: of a node that is away nothing is given until it is back, and what ran there is given back elsewhere.
    #[test]
    fn a_node_that_is_away_is_given_to_nobody_until_it_is_back() {
        let mut reservations = three_nodes();
        assert_eq!(reservations.ask(at(0), 0, &job(3), at(0)), Asked::Granted);
        let begun = reservations.begun();
        let node = begun[0].nodes[0];
        reservations.fail(at(10), &[node], &[0]);
        assert!(reservations.lost().is_empty(), "who was hit knows it already");
        assert_eq!(reservations.ask(at(10), 1, &job(2), at(10)), Asked::Granted);
        assert!(!reservations.begun()[0].nodes.contains(&node));
        assert_ne!(reservations.ask(at(11), 2, &job(1), at(11)), Asked::Granted);
        reservations.repair(at(20), &[node]);
        assert_eq!(reservations.ask(at(20), 3, &job(1), at(20)), Asked::Granted);
        assert_eq!(reservations.begun()[0].nodes, [node]);
    }
}
