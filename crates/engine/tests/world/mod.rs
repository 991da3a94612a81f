//! An engine among agents that do as they are told, or not, and a record that outlasts it.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses a part")]

use keeptime_engine::agents::{Act, Enforcement, Order, Session};
use keeptime_engine::book::Snapshot;
use keeptime_engine::{
    Answer, Call, CallError, Caller, Cluster, Engine, Event, Input, Moment, Output, Policy,
    Refusal, Step, Ticket,
};
use keeptime_model::application::Application;
use keeptime_model::assignment::{Assignment, TrafficClass};
use keeptime_model::capability::Guarantee;
use keeptime_model::extension::ExtensionFlow;
use keeptime_model::goal::Goal;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// How an agent behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    #[default]
    Obeys,
    Refuses,
    /// Refuses more than 60 % of a CPU.
    Small,
    /// Takes orders and does not answer.
    Silent,
}

/// What an agent is, seen from outside.
#[derive(Debug, Clone, Default)]
pub struct Agent {
    pub manner: Manner,
    pub session: Option<Session>,
    /// What it says that it cannot enforce.
    pub refused: BTreeSet<Guarantee>,
    /// It takes all that it is told and enforces nothing.
    pub is_unenforced: bool,
    pub holding: BTreeMap<Name, Assignment>,
    pub inbox: VecDeque<Order>,
}

pub struct World {
    pub topology: Topology,
    pub engine: Engine,
    pub now: WallTime,
    /// Goes on whatever becomes of `now`.
    pub steady: Nanos,
    pub agents: Vec<Agent>,
    /// All events that are durable.
    pub record: Vec<(WallTime, Event)>,
    /// All that was let go.
    pub outputs: Vec<Output>,
    pub answers: BTreeMap<u64, Result<Answer, CallError>>,
    next: u64,
}

pub const SECOND: u64 = 1_000_000_000;
/// 1 January 2026, 00:00 UTC.
pub const START: WallTime = WallTime::from_unix_nanos(1_767_225_600 * SECOND);

pub fn policy() -> Policy {
    Policy::default()
}

/// `count` nodes of 100 % CPU and a disk of 100 MB/s behind one switch, links of 100 Mbit/s.
pub fn star(count: u32) -> Topology {
    let mut text = String::from("name = \"star\"\nswitches = [{ name = \"s1\" }]\n");
    for n in 1..=count {
        let disk = "disk = { device = \"8:0\", read = \"100 MB/s\", write = \"100 MB/s\" }";
        writeln!(
            text,
            "[[nodes]]\nname = \"n{n}\"\ncpu = \"100 %\"\naddress = \"10.0.{}.{}\"\n{disk}",
            n / 250,
            n % 250 + 1
        )
        .unwrap();
    }
    for n in 1..=count {
        writeln!(text, "[[links]]\nbetween = [\"n{n}\", \"s1\"]\nrate = \"100 Mbit/s\"").unwrap();
    }
    Topology::from_toml(&text).unwrap()
}

pub fn cluster(topology: &Topology) -> Cluster {
    Cluster::new(topology.clone(), |rate| rate).unwrap()
}

impl World {
    /// `count` nodes, all agents connected.
    pub fn star(count: u32) -> Self {
        Self::with(star(count), policy())
    }

    pub fn with(topology: Topology, policy: Policy) -> Self {
        let moment = Moment { wall: START, steady: Nanos::new(0) };
        let engine = Engine::new(cluster(&topology), policy, moment);
        let agents = vec![Agent::default(); topology.nodes().len()];
        let mut world = Self {
            topology,
            engine,
            now: START,
            steady: moment.steady,
            agents,
            record: Vec::new(),
            outputs: Vec::new(),
            answers: BTreeMap::new(),
            next: 1,
        };
        world.connect_all();
        world
    }

    /// `count` nodes, all agents connected, and an application that [`goal`] is about. Its file says
    /// `more`.
    pub fn with_application(count: u32, more: &str) -> Self {
        let mut world = Self::star(count);
        let (application, profile) = application_with(more);
        let (application, profile) = (Box::new(application), Box::new(profile));
        let registered = world.call("root", Call::Register { application, profile });
        assert_eq!(registered, Some(Ok(Answer::Registered)));
        world
    }

    pub fn connect_all(&mut self) {
        for node in 0..self.agents.len() as u32 {
            self.connect(node);
        }
    }

    pub fn connect(&mut self, node: u32) {
        self.next += 1;
        let session = Session(self.next);
        let agent = &mut self.agents[node as usize];
        agent.session = Some(session);
        agent.inbox.clear();
        let now = self.now;
        agent.holding.retain(|_, assignment| assignment.until_unix_nanos > now);
        let holding = agent.holding.values().cloned().collect();
        let agent = &self.agents[node as usize];
        let enforcement = match agent.is_unenforced {
            true => Enforcement::Nothing,
            false => Enforcement::AllBut(agent.refused.clone()),
        };
        self.input(Input::Connected { node: NodeIndex(node), session, enforcement, holding });
    }

    pub fn disconnect(&mut self, node: u32) {
        let agent = &mut self.agents[node as usize];
        agent.inbox.clear();
        if let Some(session) = agent.session.take() {
            self.input(Input::Disconnected { node: NodeIndex(node), session });
        }
    }

    /// What the shell does: records, then lets go.
    pub fn input(&mut self, input: Input) -> Step {
        let step = self.engine.step(self.moment(), input);
        self.settle(&step);
        step
    }

    pub fn moment(&self) -> Moment {
        Moment { wall: self.now, steady: self.steady }
    }

    fn settle(&mut self, step: &Step) {
        self.record.extend(step.events.iter().map(|event| (step.time, event.clone())));
        self.outputs.extend(step.outputs.iter().cloned());
        for output in step.outputs.clone() {
            match output {
                Output::Answer { ticket, answer } => {
                    if let Ok(Answer::Reservation(told)) = &answer {
                        let recorded = self.engine.book().reservations().get(&told.handle);
                        let seen = recorded.map(|found| self.engine.seen(found));
                        assert_eq!(seen.as_ref(), Some(told), "told as it is recorded");
                    }
                    self.answers.insert(ticket.0, answer.map_err(|error| *error));
                }
                Output::HangUp { node, session } => {
                    let agent = &mut self.agents[node.0 as usize];
                    if agent.session == Some(session) {
                        agent.session = None;
                        agent.inbox.clear();
                    }
                }
                Output::Order { node, session, order } => {
                    let agent = &mut self.agents[node.0 as usize];
                    if agent.session == Some(session) {
                        agent.inbox.push_back(order);
                    }
                }
            }
        }
    }

    /// Lets one agent do one order. Whether there was one.
    pub fn obey(&mut self, node: u32) -> bool {
        let now = self.now;
        let agent = &mut self.agents[node as usize];
        let (Some(session), Some(order)) = (agent.session, agent.inbox.pop_front()) else {
            return false;
        };
        agent.holding.retain(|_, assignment| assignment.until_unix_nanos > now);
        let refusal = match (&order.act, agent.manner) {
            (_, Manner::Silent) => return true,
            (Act::Withdraw(job), _) => {
                agent.holding.remove(job);
                None
            }
            (Act::Enforce(_), Manner::Refuses) => Some("it will not".to_string()),
            (Act::Enforce(assignment), Manner::Small)
                if assignment.cpu_ppm > CpuPpm::from_percent(60) =>
            {
                Some("it has 60 %".to_string())
            }
            (Act::Enforce(assignment), Manner::Small | Manner::Obeys) => {
                agent.holding.insert(assignment.job.clone(), Assignment::clone(assignment));
                None
            }
        };
        let (node, number) = (NodeIndex(node), order.number);
        self.input(Input::Answered { node, session, number, refusal });
        true
    }

    /// Until no agent has anything to do.
    pub fn pump(&mut self) {
        while (0..self.agents.len() as u32).fold(false, |any, node| self.obey(node) | any) {}
    }

    /// Time goes on; agents that are connected say so every few seconds.
    pub fn pass(&mut self, seconds: u64) {
        let mut left = Nanos::from_secs(seconds);
        while left > Nanos::new(0) {
            let idle = self.engine.idle().unwrap_or(left);
            let span = idle.max(Nanos::new(1)).min(Nanos::from_secs(3)).min(left);
            left = left.saturating_sub(span);
            self.now = self.now.saturating_add(span);
            self.steady = self.steady.saturating_add(span);
            self.input(Input::Passed);
            for node in 0..self.agents.len() as u32 {
                if let Some(session) = self.agents[node as usize].session {
                    self.input(Input::Heard { node: NodeIndex(node), session });
                }
            }
            self.pump();
        }
    }

    /// Who asks what; the number of the call.
    pub fn begin(&mut self, user: &str, call: Call) -> u64 {
        self.next += 1;
        let ticket = Ticket(self.next);
        let caller = caller(user);
        self.input(Input::Call { ticket, caller, call: Box::new(call) });
        ticket.0
    }

    /// The same, until it is answered or nothing moves any more.
    pub fn call(&mut self, user: &str, call: Call) -> Option<Result<Answer, CallError>> {
        let ticket = self.begin(user, call);
        self.pump();
        self.answers.get(&ticket).cloned()
    }

    pub fn reserve(&mut self, key: &str, request: Request) -> Result<Handle, CallError> {
        let call = Call::Reserve { key: key.parse().unwrap(), request };
        match self.call("ada", call).expect("it is answered")? {
            Answer::Reservation(reservation) => Ok(reservation.handle),
            other => panic!("{other:?}"),
        }
    }

    /// The engine is killed and begins again from the record; agents do not notice, and come back.
    pub fn restart(&mut self) {
        self.restart_with(self.engine.policy().clone());
    }

    /// The same, with another configuration.
    pub fn restart_with(&mut self, policy: Policy) {
        let record = self.record.iter().cloned();
        let begun = Engine::restore(cluster(&self.topology), policy, None, record, self.moment());
        self.take_over(begun.unwrap());
    }

    /// The same, from a snapshot of all that is recorded.
    pub fn restart_from_snapshot(&mut self) {
        self.restart_from(self.engine.book().snapshot());
    }

    /// The same, from another snapshot.
    pub fn restart_from(&mut self, snapshot: Snapshot) {
        let (policy, saved) = (self.engine.policy().clone(), Some(snapshot));
        let begun = Engine::restore(cluster(&self.topology), policy, saved, [], self.moment());
        self.take_over(begun.unwrap());
    }

    fn take_over(&mut self, (engine, step): (Engine, Step)) {
        self.engine = engine;
        for agent in &mut self.agents {
            agent.session = None;
            agent.inbox.clear();
        }
        self.settle(&step);
    }

    /// What the record adds up to.
    pub fn replayed(&self) -> Engine {
        let policy = self.engine.policy().clone();
        let record = self.record.iter().cloned();
        let moment = Moment { wall: self.engine.now(), steady: self.steady };
        let restored = Engine::restore(cluster(&self.topology), policy, None, record, moment);
        restored.unwrap().0
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.record.iter().map(|(_, event)| event.kind()).collect()
    }

    pub fn jobs_of(&self, node: u32) -> Vec<String> {
        self.agents[node as usize].holding.keys().map(Name::to_string).collect()
    }
}

pub fn caller(user: &str) -> Caller {
    Caller { user: user.parse().unwrap(), operator: user == "root" }
}

pub fn at(seconds: u64) -> WallTime {
    START.saturating_add(Nanos::from_secs(seconds))
}

/// CPU and an all-to-all rate on `nodes` nodes, from `from` seconds for `seconds`.
pub fn request(nodes: NodeChoice, percent: u32, mbit: u64, from: u64, seconds: u64) -> Request {
    let resources = Resources {
        nodes,
        cpu_ppm: CpuPpm::from_percent(percent),
        pattern: (mbit > 0).then_some(Pattern::AllToAll),
        bits_per_second: BitsPerSecond::from_mbit(mbit),
        disk_write_bytes_per_second: BytesPerSecond::new(0),
        ..Resources::nothing()
    };
    Request {
        from_unix_nanos: (from > 0).then(|| at(from)),
        duration_nanos: (seconds > 0).then(|| Nanos::from_secs(seconds)),
        ..Request::new(Ask::Resources(resources))
    }
}

/// A goal of [`application`].
pub fn goal(millis: u64, from: u64, seconds: u64) -> Request {
    let goal = Goal { within: Some(Nanos::from_millis(millis)), ..Goal::default() };
    let ask = Ask::Goal { application: "ray".parse().unwrap(), goal };
    Request { ask, ..request(NodeChoice::Any(1), 1, 0, from, seconds) }
}

/// Why it was refused.
pub fn refused<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> Refusal {
    match outcome.unwrap_err() {
        CallError::Refused { refusal, .. } => *refusal,
        other => panic!("{other}"),
    }
}

/// Beside the pattern, premium.
pub fn flow(from: u32, to: u32, mbit: u64) -> ExtensionFlow {
    let bits_per_second = BitsPerSecond::from_mbit(mbit);
    ExtensionFlow { from, to, bits_per_second, burst_bytes: None, class: TrafficClass::Premium }
}

pub fn named(names: &[&str]) -> NodeChoice {
    NodeChoice::Named(names.iter().map(|name| name.parse().unwrap()).collect())
}

/// An application of two nodes whose time is 1 s at 80 Mbit/s for each flow, 2 s at 10.
pub fn application() -> (Application, Profile) {
    application_with("")
}

fn application_with(more: &str) -> (Application, Profile) {
    let text = format!(
        "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"pairs\"\nnodes = [2]\ncpu = \"20 %\"\n\
         timeout = \"60 s\"\ntime = \"wall\"\n{more}\n"
    );
    let application = Application::from_toml(&text).unwrap();
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(100),
        process_cpu_ppm: CpuPpm::from_percent(20),
        processor: "any".into(),
        mpi: "any".into(),
        command: vec!["ray".into()],
        program: None,
    };
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    for (mbit, millis) in [(10, 2_000), (80, 1_000)] {
        let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
        profile.record(&Default::default(), 2, rate, time);
    }
    (application, profile)
}
