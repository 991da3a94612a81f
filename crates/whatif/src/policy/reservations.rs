//! The broker's real engine, with an agent on every node that does as it is told: what policies that
//! reserve ask for.
//!
//! A job is asked for as a user would: its nodes with their processors and a rate for each flow, for as long
//! as was requested. A job that ends early gives the rest back.

use crate::machine::{Start, Traffic};
use crate::shape;
use crate::trace::Submission;
use keeptime_engine::agents::Session;
use keeptime_engine::policy::Policy as Limits;
use keeptime_engine::{
    Answer, Call, CallError, Caller, Cluster, Engine, Event, Input, Moment, Output, Step, Ticket,
};
use keeptime_model::Invalid;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, WallTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An engine, and which reservation is for which job.
#[derive(Debug, Clone)]
pub struct Reservations {
    engine: Engine,
    caller: Caller,
    traffic: Traffic,
    now: Nanos,
    /// Calls so far: tickets and keys.
    calls: u64,
    jobs: BTreeMap<Handle, usize>,
    handles: BTreeMap<usize, Handle>,
    /// What has begun since somebody looked.
    begun: Vec<Handle>,
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
    /// An engine for this cluster, all agents connected.
    ///
    /// # Errors
    /// If the engine cannot have such a cluster.
    pub fn new(topology: Topology, traffic: Traffic) -> Result<Self, Invalid> {
        let nodes = topology.node_indices();
        let cluster = Cluster::new(topology, shape::reservable)?;
        let moment = moment(Nanos::new(0));
        let mut engine = Engine::new(cluster, limits(), moment);
        for node in nodes {
            let (refused, holding) = (BTreeSet::new(), vec![]);
            engine.step(moment, Input::Connected { node, session: SESSION, refused, holding });
        }
        Ok(Self {
            engine,
            caller: Caller { user: "log".parse()?, operator: true },
            traffic,
            now: Nanos::new(0),
            calls: 0,
            jobs: BTreeMap::new(),
            handles: BTreeMap::new(),
            begun: vec![],
        })
    }

    /// Asks for a job at `now`, to begin at `from`.
    pub fn ask(&mut self, now: Nanos, job: usize, submission: &Submission, from: Nanos) -> Asked {
        self.now = now;
        let Ok(key) = format!("k{}", self.calls).parse() else { return Asked::Never };
        let request = self.request(submission, from);
        match self.call(Call::Reserve { key, request }) {
            Some(Ok(Answer::Reservation(reservation))) => {
                let handle = reservation.handle;
                self.jobs.insert(handle, job);
                self.handles.insert(job, handle);
                Asked::Granted
            }
            Some(Err(error)) => match *error {
                CallError::Refused { refusal, .. } => {
                    let start = refusal.earliest_start_unix_nanos;
                    start.map_or(Asked::Never, |start| Asked::Later(start.saturating_since(START)))
                }
                // More nodes or flows than one reservation can have.
                _ => Asked::Never,
            },
            _ => Asked::Never,
        }
    }

    /// A job has ended at `now` and needs nothing any more.
    pub fn give_back(&mut self, now: Nanos, job: usize) {
        self.now = now;
        let Some(handle) = self.handles.remove(&job) else { return };
        self.jobs.remove(&handle);
        // One that takes just what was requested is over by itself.
        self.call(Call::Cancel { handle });
    }

    /// It is `now`.
    pub fn pass(&mut self, now: Nanos) {
        self.now = now;
        self.step(Input::Passed);
    }

    /// The jobs that have begun since this was called last.
    pub fn begun(&mut self) -> Vec<Start> {
        let begun = std::mem::take(&mut self.begun);
        begun.into_iter().filter_map(|handle| self.start(handle)).collect()
    }

    /// When something begins or ends next.
    pub fn next(&self) -> Option<Nanos> {
        // While nothing is promised, only leases of agents are left, which never end.
        let idle = self.engine.idle().filter(|_| !self.jobs.is_empty())?;
        Some(self.now.saturating_add(idle))
    }

    fn start(&self, handle: Handle) -> Option<Start> {
        let job = *self.jobs.get(&handle)?;
        let reservation = self.engine.book().reservations().get(&handle)?;
        let names = reservation.grant.as_ref()?.nodes.iter();
        let nodes = names.map(|name| self.engine.cluster().node(name).ok());
        Some(Start { job, nodes: nodes.collect::<Option<_>>()?, reserved: true })
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
            from_unix_nanos: Some(START.saturating_add(from)),
            duration_nanos: Some(Nanos::from_secs(submission.requested)),
            ..Request::new(Ask::Resources(resources))
        }
    }

    fn call(&mut self, call: Call) -> Option<Result<Answer, Box<CallError>>> {
        self.calls += 1;
        let (ticket, caller) = (Ticket(self.calls), self.caller.clone());
        self.step(Input::Call { ticket, caller, call })
    }

    /// One input, and all that agents answer to what follows.
    fn step(&mut self, input: Input) -> Option<Result<Answer, Box<CallError>>> {
        let mut answered = None;
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Step { events, outputs, .. } = self.engine.step(moment(self.now), input);
            self.begun.extend(events.into_iter().filter_map(|event| match event {
                Event::Started { handle } => Some(handle),
                _ => None,
            }));
            for output in outputs {
                match output {
                    Output::Order { node, session, order } => {
                        let number = order.number;
                        inputs.push_back(Input::Answered { node, session, number, refusal: None });
                    }
                    Output::Answer { answer, .. } => answered = Some(answer),
                    // No agent is ever silent.
                    Output::HangUp { .. } => {}
                }
            }
        }
        answered
    }
}

fn moment(now: Nanos) -> Moment {
    Moment { wall: START.saturating_add(now), steady: now }
}

/// Nobody is asked for a sign of life, and what is over is forgotten at once: memory stays bounded.
fn limits() -> Limits {
    Limits {
        agent_lease_nanos: FOR_EVER,
        tell_ahead_nanos: Nanos::new(0),
        remember_nanos: Nanos::from_secs(1),
        user_reservations: u32::MAX,
        ..Limits::default()
    }
}

const SESSION: Session = Session(1);
/// Longer than any log.
const FOR_EVER: Nanos = Nanos::new(u64::MAX / 4);
/// 1 January 2026, 00:00 UTC.
const START: WallTime = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
