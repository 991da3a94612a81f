//! Jobs as reservations of the broker: what policies that reserve ask for.
//!
//! A job is asked for as a user would: its nodes with their processors and a rate for each flow, for as long
//! as was requested. A job that ends early gives the rest back.

use crate::broker::Broker;
use crate::machine::{Start, Traffic};
use crate::shape;
use crate::trace::Submission;
use keeptime_engine::{Answer, Call, CallError, Cluster};
use keeptime_model::Invalid;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use std::collections::BTreeMap;

/// A broker, and which reservation is for which job.
#[derive(Debug, Clone)]
pub struct Reservations {
    broker: Broker,
    traffic: Traffic,
    jobs: BTreeMap<Handle, usize>,
    handles: BTreeMap<usize, Handle>,
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

impl Reservations {
    /// A broker for this cluster, all agents connected.
    ///
    /// # Errors
    /// If the engine cannot have such a cluster.
    pub fn new(topology: Topology, traffic: Traffic) -> Result<Self, Invalid> {
        let broker = Broker::new(Cluster::new(topology, shape::reservable)?)?;
        Ok(Self { broker, traffic, jobs: BTreeMap::new(), handles: BTreeMap::new() })
    }

    /// Asks for a job at `now`, to begin at `from`.
    pub fn ask(&mut self, now: Nanos, job: usize, submission: &Submission, from: Nanos) -> Asked {
        self.broker.set_time(now);
        let Ok(key) = self.broker.new_key() else { return Asked::Never };
        let request = self.request(submission, from);
        match self.broker.call(Call::Reserve { key, request }) {
            Some(Ok(Answer::Reservation(reservation))) => {
                let handle = reservation.handle;
                self.jobs.insert(handle, job);
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
        let Some(handle) = self.handles.remove(&job) else { return };
        self.jobs.remove(&handle);
        // One that takes just what was requested is over by itself.
        self.broker.call(Call::Cancel { handle });
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
        let job = *self.jobs.get(&handle)?;
        Some(Start { job, nodes: self.broker.nodes(handle)?, reserved: true })
    }

    fn request(&self, submission: &Submission, from: Nanos) -> Request {
        let talks = self.traffic.communication.ppm() > 0 && submission.nodes > 1;
        let resources = Resources {
            nodes: NodeChoice::Any(submission.nodes),
            cpu_ppm: CpuPpm::from_percent(100),
            pattern: talks.then_some(Pattern::Ring),
            bits_per_second: if talks { self.traffic.flow } else { BitsPerSecond::ZERO },
            ..Resources::nothing()
        };
        Request {
            from_unix_nanos: Some(Broker::wall(from)),
            duration_nanos: Some(Nanos::from_secs(submission.requested)),
            ..Request::new(Ask::Resources(resources))
        }
    }
}
