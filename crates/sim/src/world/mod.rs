//! The simulated cluster: what happens, one thing after the other, and what must hold after each.
//!
//! A run goes in rounds. In each, some kinds of faults are on for a while; then they stop, and within
//! [`CALM`] everything must be as it should be: every call is answered, every agent is connected and
//! enforces exactly what the record says, the slot tables are those of the array.
//!
//! * `asking`: users; `deciding`: the broker's side; `enforcing`: the agents' side;
//! * `failing`: what goes wrong; `checking`: what must hold; `telling`: what happens, in words.

mod asking;
mod checking;
mod deciding;
mod enforcing;
mod failing;
mod telling;

use crate::Violation;
use crate::agenda::Agenda;
use crate::broker::{Broker, Happened};
use crate::clock::WallClock;
use crate::fault::{Effects, Kind, Kinds};
use crate::history::History;
use crate::network::{ConnectionId, End, Network};
use crate::node::Node;
use crate::seams::Seams;
use crate::users::Users;
use keeptime_engine::agents::Order;
use keeptime_engine::{Answer, Call, CallError, Caller, Policy};
use keeptime_ledger::MemoryDisk;
use keeptime_model::assignment::Assignment;
use keeptime_model::topology::Topology;
use keeptime_model::units::{Nanos, Share};
use keeptime_random::Random;
use std::collections::{BTreeMap, VecDeque};

/// When faults have stopped, everything is as it should be after this time: late messages arrive
/// within 15 s, machines are up within 60 s, agents dial every 3 s, users ask again after 3 s.
pub const CALM: Nanos = Nanos::from_secs(90);
/// Happenings of a round before it calms down.
const ROUND: u64 = 4_000;
/// Whoever gets no answer asks again after this time.
const PATIENCE: Nanos = Nanos::from_secs(3);
/// Of the time that the broker takes for an answer, what its disk and its clock may take.
const SLACK: Nanos = Nanos::from_secs(2);
/// What the broker's clock thread does: at least so often it looks at the clock.
const LOOK_EVERY: Nanos = Nanos::from_secs(1);
/// How long the disk takes.
const DISK: std::ops::Range<Nanos> = Nanos::from_millis(1)..Nanos::from_millis(30);
/// Waits between two attempts of an agent to dial: doubled from the first up to the last.
const WAIT_FIRST: Nanos = Nanos::from_millis(100);
const WAIT_LAST: Nanos = Nanos::from_secs(3);
/// An agent says something so often in the time of a lease.
const BEATS: u64 = 3;
/// Slots that are compared with the slot tables when all is calm.
const SLOTS_COMPARED: usize = 600;
/// When all is calm, something that has just begun is done within so many happenings.
const SETTLES_WITHIN: usize = 2_000;
/// Lines of the log that are kept.
const LOG_MAX: usize = 120;

/// Something that happens.
#[derive(Debug, Clone)]
enum Happening {
    /// Somebody thinks of a call.
    Think,
    /// A call arrives at the broker.
    Asked { call: u64, caller: Caller, what: Box<Call> },
    /// Its answer arrives.
    Told { call: u64, answer: Box<Result<Answer, Box<CallError>>> },
    /// Somebody loses patience.
    AskAgain { call: u64 },
    /// Something arrives at an agent.
    ToAgent { node: usize, connection: ConnectionId, said: ToAgent },
    /// Something arrives at the broker.
    FromAgent { node: usize, connection: ConnectionId, said: FromAgent },
    /// An end learns that its connection broke.
    Broken { node: usize, connection: ConnectionId, end: End },
    /// An agent tries to reach the broker.
    Dial { node: usize, process: u64 },
    /// An agent says that it lives.
    Beat { node: usize, connection: ConnectionId },
    /// An agent looks at its clock.
    Tick { node: usize, process: u64 },
    /// An agent is started.
    AgentStarts { node: usize },
    /// A broker is started.
    BrokerStarts,
    /// Time has passed for the broker.
    Due { broker: u64 },
    /// The broker's disk is done.
    Written { broker: u64 },
    /// Something goes wrong.
    Trouble { kind: Kind, round: u64 },
    /// A node's kernel does as it is told again.
    KernelIsWell { node: usize },
}

#[derive(Debug, Clone)]
enum ToAgent {
    Order(Order),
    HungUp,
}

#[derive(Debug, Clone)]
enum FromAgent {
    Hello(Vec<Assignment>),
    Answer { number: u64, refusal: Option<String> },
    Beat,
    HungUp,
}

/// Where in its work the broker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    Decided,
    HandedOver,
    Writing,
    Durable,
    Leaving,
}

/// A call that has reached the broker and is not answered.
#[derive(Debug)]
struct Asked {
    call: u64,
    caller: Caller,
    what: Call,
    /// When it did.
    at: Nanos,
}

/// The cluster.
pub struct World {
    seams: Box<dyn Seams>,
    agenda: Agenda<Happening>,
    faults: Kinds,
    /// Those of this round.
    on: Kinds,
    round: u64,
    is_calm: bool,
    chance: Random,
    troubles: BTreeMap<Kind, Random>,
    topology: Topology,
    policy: Policy,
    network: Network,
    users: Users,
    thinks_every: Nanos,
    nodes: Vec<Node>,
    disk: MemoryDisk,
    broker: Option<Broker>,
    brokers: u64,
    broker_clock: WallClock,
    doom: Option<Point>,
    fills_up: bool,
    /// Of all but the network and the kernels, which know their own.
    effects: Effects,
    /// What the broker before handed over and was not told to be durable.
    unsettled: Vec<Vec<Happened>>,
    tickets: BTreeMap<u64, Asked>,
    next_ticket: u64,
    /// What is durable.
    pub history: History,
    /// Happenings so far.
    pub happenings: u64,
    /// Calls that somebody thought of.
    pub calls: u64,
    /// Changes with everything that happens: the same for the same run.
    pub digest: u64,
    log: Option<VecDeque<String>>,
}

impl World {
    /// A cluster whose every chance comes from `seed`; `faults` can happen. With `log`, the last lines
    /// of what happened are kept.
    ///
    /// # Errors
    /// If the broker cannot be started.
    pub fn new(
        seed: u64,
        faults: Kinds,
        seams: Box<dyn Seams>,
        log: bool,
    ) -> Result<Self, Violation> {
        let mut chance = Random::of(seed, 1);
        let count = chance.within(2..6) as u32;
        let topology = crate::users::topology(count, chance.within(1..3) as u32);
        let policy = policy(&mut chance, &faults);
        let indices = topology.node_indices();
        let nodes: Vec<_> = indices.map(|index| Node::new(&topology, index)).collect();
        let purpose = |kind: &Kind| (*kind, Random::of(seed, 100 + *kind as u64));
        let start = WallClock::default().read(Nanos::new(0));
        let mut world = Self {
            seams,
            agenda: Agenda::default(),
            on: Kinds::of(&[]),
            faults,
            round: 0,
            is_calm: false,
            chance,
            troubles: Kind::ALL.iter().map(purpose).collect(),
            network: Network::new(Random::of(seed, 2), nodes.len()),
            users: Users::new(Random::of(seed, 3), &topology),
            thinks_every: Nanos::from_secs(1),
            history: History::new(topology.clone(), policy.clone(), start),
            topology,
            policy,
            nodes,
            disk: MemoryDisk::default(),
            broker: None,
            brokers: 0,
            broker_clock: WallClock::default(),
            doom: None,
            fills_up: false,
            effects: Effects::default(),
            unsettled: Vec::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            happenings: 0,
            calls: 0,
            digest: seed,
            log: log.then(VecDeque::new),
        };
        world.agenda.after(Nanos::new(0), Happening::BrokerStarts);
        for node in 0..world.nodes.len() {
            world.agenda.after(Nanos::new(1), Happening::AgentStarts { node });
        }
        let call = world.users.register();
        world.agenda.after(Nanos::from_secs(1), Happening::AskAgain { call });
        world.agenda.after(Nanos::from_secs(2), Happening::Think);
        Ok(world)
    }

    /// Goes on until so many things have happened, or so many calls were thought of; calm moments are
    /// not counted.
    ///
    /// # Errors
    /// What does not hold.
    pub fn run(&mut self, happenings: u64, calls: u64) -> Result<(), Violation> {
        while self.happenings < happenings && self.calls < calls {
            self.begin_round();
            let end = happenings.min(self.happenings + ROUND);
            while self.happenings < end && self.calls < calls {
                self.happenings += 1;
                self.go_on()?;
            }
            self.calm_down()?;
        }
        Ok(())
    }

    /// The last things that happened, if they were written down.
    pub fn log(&self) -> Vec<String> {
        self.log.iter().flatten().cloned().collect()
    }

    /// True time since the beginning.
    pub fn now(&self) -> Nanos {
        self.agenda.now()
    }

    /// How many brokers there were.
    pub fn brokers(&self) -> u64 {
        self.brokers
    }

    /// How often faults took effect.
    pub fn effects(&self) -> Effects {
        let mut effects = self.effects.clone();
        effects.extend(self.network.effects());
        effects.add(Kind::Kernels, self.nodes.iter().map(Node::refused).sum());
        effects
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.is_calm = false;
        self.on = self.faults.some(&mut self.chance);
        self.network.suffer(self.on.clone());
        self.history.expect_agents_to_be_well(self.faults.spare_agents());
        let most = *self.chance.pick(&[300, 2_000, 6_000]).unwrap_or(&300);
        self.thinks_every = Nanos::from_millis(most);
        self.note(|world| format!("---- round {}: {}", world.round, world.on));
        for kind in self.on.clone().iter() {
            self.plan_trouble(kind);
        }
    }

    fn calm_down(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        self.doom = None;
        self.fills_up = false;
        self.network.suffer(Kinds::of(&[]));
        self.note(|_| "---- faults stop".into());
        self.broker_clock.set_right();
        for node in 0..self.nodes.len() {
            let went_back = self.nodes[node].calm_down(self.agenda.now());
            self.compare_anew(node, went_back);
        }
        let end = self.now().saturating_add(CALM);
        while self.now() < end {
            self.go_on()?;
        }
        // A clock that was ahead stands still until it is caught up with: mostly that is waited for.
        if !self.chance.is_one_in(4) {
            while self.is_clock_behind() {
                self.go_on()?;
            }
        }
        for _ in 0..SETTLES_WITHIN {
            let is_done = |b: &Broker| b.is_settled() && b.engine.offer_count() == 0;
            if self.broker.as_ref().is_some_and(is_done) {
                break;
            }
            self.go_on()?;
        }
        self.check_calm()
    }

    fn is_clock_behind(&self) -> bool {
        let reads = self.broker_clock.read_seconds(self.now());
        self.broker.as_ref().is_some_and(|broker| broker.engine.now() > reads)
    }

    fn go_on(&mut self) -> Result<(), Violation> {
        let Some(happening) = self.agenda.advance() else {
            return Err(Violation::new("nothing will ever happen any more"));
        };
        if !happening.is_routine() {
            self.note(|_| happening.to_string());
        }
        self.mix(self.now().get());
        self.happen(happening)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Think => self.think(),
            Happening::Asked { call, caller, what } => self.asked(call, caller, *what)?,
            Happening::Told { call, answer } => self.users.told(call, *answer),
            Happening::AskAgain { call } => self.ask(call),
            Happening::ToAgent { node, connection, said } => {
                if self.network.land(connection, End::Agent) {
                    self.agent_hears(node, connection, said);
                    self.check_node(node)?;
                }
            }
            Happening::FromAgent { node, connection, said } => {
                if self.network.land(connection, End::Broker) {
                    self.broker_hears(node, connection, said)?;
                    self.check_node(node)?;
                }
            }
            Happening::Broken { connection, end: End::Broker, .. } => self.lost(connection)?,
            Happening::Broken { node, connection, end: End::Agent } => {
                self.hung_up(node, connection);
            }
            Happening::Dial { node, process } => self.dial(node, process),
            Happening::Beat { node, connection } => self.beat(node, connection),
            Happening::Tick { node, process } => self.tick(node, process)?,
            Happening::AgentStarts { node } => self.agent_starts(node)?,
            Happening::BrokerStarts => self.broker_starts()?,
            Happening::Due { broker } => self.due(broker)?,
            Happening::Written { broker } => self.written(broker)?,
            Happening::Trouble { kind, round } => self.trouble(kind, round),
            Happening::KernelIsWell { node } => self.nodes[node].refuse(false, self.agenda.now()),
        }
        Ok(())
    }

    fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.log.is_none() {
            return;
        }
        let line = format!("{:>14.6} {}", self.now().as_secs_f64(), what(self));
        if let Some(log) = &mut self.log {
            log.push_back(line);
            if log.len() > LOG_MAX {
                log.pop_front();
            }
        }
    }

    fn mix(&mut self, word: u64) {
        self.digest = (self.digest ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }
}

/// Times and limits, some of them at random.
fn policy(random: &mut Random, faults: &Kinds) -> Policy {
    let share = |percent| Share::from_percent(percent).unwrap_or(Share::ONE);
    let shares = [share(100), share(60)];
    let part = shares[random.below(2) as usize];
    // An agent does not know when an assignment begins: what it is told ahead of its time takes room
    // at once, and it refuses what would follow. Where no refusal is expected, none is told ahead.
    let ahead = *random.pick(&[0, 30, 600]).unwrap_or(&0);
    let ahead = if faults.spare_agents() { 0 } else { ahead };
    Policy {
        tell_ahead_nanos: Nanos::from_secs(ahead),
        remember_nanos: Nanos::from_secs(600),
        user_cpu: part,
        user_bandwidth: part,
        user_reservations: 60,
        ..Policy::default()
    }
}
