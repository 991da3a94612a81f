//! The directories of several nodes in virtual time: messages are delayed, connections end, break or
//! swallow everything, servers crash and come back, with their nodes or without, some do not reach each other for minutes,
//! programs come and go, in any order. What has been confirmed is found by everybody who can be reached, or could be a
//! moment ago; and when the trouble is over, all know the same, which is the truth.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::directory::protocol::{Answer, ContextInfo, Reply, Request, Update, VERSION};
use keeptime_fabric::directory::state::{
    ALIVE_EVERY, ConnectionId, Directory, Input, Output, SILENCE_MOST,
};
use keeptime_fabric::frame;
use keeptime_fabric::id::Place;
use keeptime_fabric::{Attributes, Callers, Carriers, ContextId, Protocol, ResourceId, attrs};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

const NODES: usize = 4;
const USER: u32 = 1000;
/// The question that every program keeps open.
const EVERYTHING: u32 = 1_000_000;

#[derive(Debug, Clone)]
enum Op {
    Open { node: usize },
    End { program: usize },
    Register { program: usize },
    Drop { program: usize, which: usize },
    Deliver { wire: usize, messages: usize },
    Cut { wire: usize },
    Swallow { wire: usize },
    Crash { node: usize },
    Start { node: usize },
    Restart { node: usize },
    Pass { millis: u64 },
    Part { parted: Parted, seconds: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let usual = prop_oneof![
        3 => (0..NODES).prop_map(|node| Op::Open { node }),
        1 => (0..8_usize).prop_map(|program| Op::End { program }),
        6 => (0..8_usize).prop_map(|program| Op::Register { program }),
        3 => (0..8_usize, 0..8_usize).prop_map(|(program, which)| Op::Drop { program, which }),
        12 => (0..24_usize, 1..4_usize).prop_map(|(wire, messages)| Op::Deliver { wire, messages }),
        1 => (0..24_usize).prop_map(|wire| Op::Cut { wire }),
        1 => (0..24_usize).prop_map(|wire| Op::Swallow { wire }),
        1 => (0..NODES).prop_map(|node| Op::Crash { node }),
        2 => (0..NODES).prop_map(|node| Op::Start { node }),
        1 => (0..NODES).prop_map(|node| Op::Restart { node }),
        6 => (1..2000_u64).prop_map(|millis| Op::Pass { millis }),
    ];
    // Long, and thus rare.
    let op = prop_oneof![99 => usual, 1 => part()];
    prop::collection::vec(op, 0..120)
}

/// For longer than servers were once remembered.
fn part() -> impl Strategy<Value = Op> {
    let node = || (0..NODES).prop_map(|node| 1_usize << node);
    let nodes = || 1..(1_usize << NODES);
    let sets = prop_oneof![(node(), node()), (nodes(), nodes())];
    (sets, 301..400_u64).prop_map(|((these, those), seconds)| {
        let parted = Parted { these, those };
        Op::Part { parted, seconds }
    })
}

/// Two sets of nodes, as bits. None of the one reaches any of the other.
#[derive(Debug, Clone, Copy, Default)]
struct Parted {
    these: usize,
    those: usize,
}

impl Parted {
    fn is_between(self, one: usize, other: usize) -> bool {
        let has = |set: usize, node: usize| (set >> node) & 1 == 1;
        let across = |from, to| has(self.these, from) && has(self.those, to);
        one != other && (across(one, other) || across(other, one))
    }
}

/// A connection that `from` made to tell `to`.
struct Wire {
    from: usize,
    to: usize,
    ends: [ConnectionId; 2],
    updates: VecDeque<Update>,
    replies: VecDeque<Reply>,
    /// `from` has been welcomed.
    welcome: bool,
    /// Nothing arrives any more, and nobody is told.
    swallows: bool,
    /// Which of the ends has closed it, if one has: the other is told after what was said before.
    closed_by: Option<usize>,
    /// When each end has heard something last.
    heard: [Duration; 2],
}

struct Program {
    node: usize,
    connection: ConnectionId,
    context: ContextId,
    registered: BTreeSet<Place>,
    /// What it has been told that there is.
    told: BTreeSet<ResourceId>,
    /// How often it has been told that something is there now, or is not.
    events: usize,
    next: u32,
}

#[derive(Default)]
struct World {
    now: Duration,
    nodes: Vec<Option<Directory>>,
    wires: Vec<Wire>,
    programs: Vec<Program>,
    /// Where each node is told that others are.
    members: Vec<Vec<SocketAddr>>,
    parted: Parted,
    /// From and to whom connections have ended, and until when the one may not take the other for gone.
    cut_off: BTreeMap<(usize, usize), Duration>,
    last: u64,
}

/// Over what a context can be called, as unlike others as may be.
fn carriers(context: ContextId) -> Carriers {
    let all = [Protocol::Udp, Protocol::Libfabric, Protocol::Ucx].into_iter().enumerate();
    let spoken = all.filter(|(bit, _)| (context.number() >> bit) & 1 == 1);
    spoken.fold(Carriers::default(), |carriers, (_, protocol)| carriers.with(protocol))
}

fn address(node: usize) -> SocketAddr {
    ([10, 0, 0, node as u8 + 1], 7).into()
}

fn other_address(node: usize) -> SocketAddr {
    ([10, 1, 0, node as u8 + 1], 7).into()
}

/// Each node knows one other, and itself and one at the address that they have on another network; the
/// rest is learned.
fn ring() -> Vec<Vec<SocketAddr>> {
    let other = |node: usize| other_address(node % NODES);
    let members = |node: usize| vec![address((node + 1) % NODES), other(node), other(node + 1)];
    (0..NODES).map(members).collect()
}

/// All know the first, as the documentation has it.
fn star() -> Vec<Vec<SocketAddr>> {
    vec![vec![address(0)]; NODES]
}

impl World {
    fn new(members: Vec<Vec<SocketAddr>>) -> Self {
        let nodes = (0..NODES).map(|_| None).collect();
        let mut world = Self { nodes, members, ..Self::default() };
        (0..NODES).for_each(|node| world.start(node));
        world
    }

    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            let run = self.fresh();
            let members = self.members[node].clone();
            let directory = Directory::new(format!("n{node}"), run, address(node), members, None);
            self.nodes[node] = Some(directory);
        }
    }

    fn step(&mut self, node: usize, input: Input) {
        let now = self.now;
        let Some(directory) = &mut self.nodes[node] else { return };
        for output in directory.step(now, input) {
            self.carry_out(node, output);
        }
    }

    fn carry_out(&mut self, node: usize, output: Output) {
        match output {
            Output::Answer(to, answer) => self.answered(node, to, answer),
            Output::Update(on, update) => {
                if let Some(wire) = self.wires.iter_mut().find(|wire| wire.ends[0] == on) {
                    wire.updates.push_back(update);
                }
            }
            Output::Reply(on, heard) => {
                if let Some(wire) = self.wires.iter_mut().find(|wire| wire.ends[1] == on) {
                    wire.replies.push_back(heard);
                }
            }
            Output::Dial(to) => self.dial(node, to),
            Output::Close(on) => self.close(on),
            Output::Warn(_) => {}
        }
    }

    fn dial(&mut self, from: usize, to: SocketAddr) {
        let is_there = |node: &usize| address(*node) == to || other_address(*node) == to;
        let answers =
            |node: &usize| self.nodes[*node].is_some() && !self.parted.is_between(from, *node);
        let reached = (0..NODES).find(|node| is_there(node) && answers(node));
        let Some(to_node) = reached else { return self.step(from, Input::Unreachable(to)) };
        let ends = [ConnectionId(self.fresh()), ConnectionId(self.fresh())];
        self.wires.push(Wire {
            from,
            to: to_node,
            ends,
            updates: VecDeque::new(),
            replies: VecDeque::new(),
            welcome: false,
            swallows: false,
            closed_by: None,
            heard: [self.now; 2],
        });
        let reached_at = address(from);
        self.step(from, Input::Dialed { address: to, connection: ends[0], reached_at });
    }

    fn answered(&mut self, node: usize, to: ConnectionId, answer: Answer) {
        let Some(program) = self.programs.iter_mut().find(|p| p.connection == to) else { return };
        let is_event = matches!(answer, Answer::Appeared { .. } | Answer::Gone { .. });
        program.events += usize::from(is_event);
        match answer {
            Answer::FoundPart { .. } => panic!("there is not so much"),
            Answer::Found { records, .. } => {
                program.told = records.iter().map(|record| record.id).collect();
            }
            Answer::Appeared { record, .. } => assert!(program.told.insert(record.id), "twice"),
            Answer::Gone { id, .. } => assert!(program.told.remove(&id), "gone and never there"),
            Answer::Done { number } => {
                let place = Place { slot: number, generation: 0 };
                let id = ResourceId { context: program.context, place };
                let there = program.registered.contains(&place);
                self.confirmed(node, id, there);
            }
            // While others take its node for the one that it was before a crash.
            Answer::Refused { number: Some(slot), .. } => {
                program.registered.remove(&Place { slot, generation: 0 });
            }
            Answer::Welcome { .. } | Answer::Refused { .. } | Answer::Resolved { .. } => {}
        }
    }

    /// Every server that can be reached from `node` has it, and every one that could before it may count as gone.
    fn confirmed(&self, node: usize, id: ResourceId, there: bool) {
        let reaches = |wire: &&Wire| wire.from == node && wire.welcome && wire.closed_by.is_none();
        let reached = self.wires.iter().filter(reaches).map(|wire| wire.to);
        let cut_off = self.cut_off.iter().filter(|(_, until)| self.now < **until);
        let cut_off = cut_off.filter(|((from, _), _)| *from == node).map(|((_, to), _)| *to);
        for to in reached.chain(cut_off) {
            let Some(other) = &self.nodes[to] else { continue };
            let found = other.find(&Attributes::new()).iter().any(|record| record.id == id);
            assert!(!there || found, "n{to} does not know {id}, which n{node} has confirmed");
        }
    }

    /// A connection ends for who has made it, and who waits for the other end until so long after its last sign. That one
    /// has what it was told by this connection or another for so long after it has heard something by that.
    fn remember(&mut self, at: usize) {
        let wire = &self.wires[at];
        let pair = (wire.from, wire.to);
        let same = self.wires.iter().filter(|other| (other.from, other.to) == pair);
        let last = same.map(|other| other.heard[1]).fold(wire.heard[0], Duration::min);
        if wire.welcome {
            let until = self.cut_off.entry(pair).or_default();
            *until = (last + SILENCE_MOST).max(*until);
        }
    }

    /// One end closes a connection, as TCP does: it hears nothing more of it, and the other one what was said before.
    fn close(&mut self, on: ConnectionId) {
        let Some(at) = self.wires.iter().position(|wire| wire.ends.contains(&on)) else { return };
        let wire = &mut self.wires[at];
        let end = usize::from(wire.ends[1] == on);
        let before = wire.closed_by.replace(end);
        if end == 0 {
            self.remember(at);
        }
        if before.is_some_and(|before| before != end) {
            self.wires.remove(at);
        }
    }

    /// It breaks: both ends are told at once, and what was said is not delivered, which is the worst that can happen.
    fn cut(&mut self, at: usize) {
        self.remember(at);
        let wire = self.wires.remove(at);
        self.step(wire.from, Input::Closed(wire.ends[0]));
        self.step(wire.to, Input::Closed(wire.ends[1]));
    }

    fn deliver(&mut self, at: usize) -> bool {
        let parted = self.parted;
        let carries = |wire: &Wire| !wire.swallows && !parted.is_between(wire.from, wire.to);
        let Some(wire) = self.wires.get_mut(at).filter(|wire| carries(wire)) else { return false };
        let (from, to, ends, closed_by) = (wire.from, wire.to, wire.ends, wire.closed_by);
        let (update, heard) = (wire.updates.pop_front(), wire.replies.pop_front());
        // Who has closed it hears nothing.
        let update = update.filter(|_| closed_by != Some(1));
        let heard = heard.filter(|_| closed_by != Some(0));
        wire.welcome |= matches!(heard, Some(Reply::Welcome { .. }));
        for (end, hears) in [heard.is_some(), update.is_some()].into_iter().enumerate() {
            if hears {
                wire.heard[end] = self.now;
            }
        }
        let any = update.is_some() || heard.is_some();
        if let (Some(by), false) = (closed_by, any) {
            let other = 1 - by;
            if other == 0 {
                self.remember(at);
            }
            self.wires.remove(at);
            self.step([from, to][other], Input::Closed(ends[other]));
            return true;
        }
        if let Some(heard) = heard {
            self.step(from, Input::Reply(ends[0], heard));
        }
        if let Some(update) = update {
            self.step(to, Input::Update(ends[1], update));
        }
        any
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + ALIVE_EVERY).min(end);
            (0..NODES).for_each(|node| self.step(node, Input::Tick));
        }
    }

    fn open(&mut self, node: usize) {
        if self.nodes[node].is_none() {
            return;
        }
        // None, until it joins.
        let connection = ConnectionId(0);
        let context = ContextId::new(self.fresh());
        let (registered, told) = (BTreeSet::new(), BTreeSet::new());
        let program = Program { node, connection, context, registered, told, events: 0, next: 0 };
        self.programs.push(program);
        self.join(self.programs.len() - 1);
    }

    /// A program says everything to its node's server: it is new, or the server is.
    fn join(&mut self, program: usize) {
        let connection = ConnectionId(self.fresh());
        let program = &mut self.programs[program];
        program.connection = connection;
        let (node, context) = (program.node, program.context);
        let registered: Vec<_> = program.registered.iter().copied().collect();
        let info = ContextInfo {
            id: context,
            node: String::new(),
            owner: USER,
            callers: Callers::SameUser,
            addresses: Vec::new(),
            carriers: carriers(context),
            speaks: frame::VERSION,
        };
        let hello = Request::Hello { version: VERSION, context: info, claim: None };
        self.step(node, Input::Request(connection, USER, hello));
        for place in registered {
            let request = registration(place);
            self.step(node, Input::Request(connection, USER, request));
        }
        let everything = Request::Subscribe { number: EVERYTHING, query: Attributes::new() };
        self.step(node, Input::Request(connection, USER, everything));
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Open { node } => self.open(node),
            Op::End { program } if program < self.programs.len() => {
                let program = self.programs.remove(program);
                self.step(program.node, Input::Closed(program.connection));
            }
            Op::Register { program } => {
                let Some(program) = self.programs.get_mut(program) else { return };
                let number = program.next;
                program.next += 1;
                let place = Place { slot: number, generation: 0 };
                program.registered.insert(place);
                let request = registration(place);
                let (node, connection) = (program.node, program.connection);
                self.step(node, Input::Request(connection, USER, request));
            }
            Op::Drop { program, which } => {
                let Some(program) = self.programs.get_mut(program) else { return };
                let Some(place) = program.registered.iter().nth(which).copied() else { return };
                program.registered.remove(&place);
                let request = Request::Drop { number: place.slot, place };
                let (node, connection) = (program.node, program.connection);
                self.step(node, Input::Request(connection, USER, request));
            }
            Op::Deliver { wire, messages } => (0..messages).for_each(|_| {
                self.deliver(wire);
            }),
            Op::Cut { wire } if wire < self.wires.len() => self.cut(wire),
            Op::Swallow { wire } => {
                if let Some(wire) = self.wires.get_mut(wire) {
                    wire.swallows = true;
                }
            }
            Op::Crash { node } => {
                self.programs.retain(|program| program.node != node);
                self.end(node);
            }
            Op::Start { node } => self.start(node),
            Op::Restart { node } => {
                self.end(node);
                self.start(node);
                let its = (0..self.programs.len()).filter(|at| self.programs[*at].node == node);
                its.collect::<Vec<_>>().into_iter().for_each(|program| self.join(program));
            }
            Op::Pass { millis } => self.pass(Duration::from_millis(millis)),
            Op::Part { parted, seconds } => self.part(parted, Duration::from_secs(seconds)),
            Op::End { .. } | Op::Cut { .. } => {}
        }
    }

    /// The server of a node ends, and all its connections with it.
    fn end(&mut self, node: usize) {
        self.nodes[node] = None;
        while let Some(at) = self.wires.iter().position(|w| w.from == node || w.to == node) {
            self.cut(at);
        }
        // What comes next there is another.
        self.cut_off.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Some do not reach each other for so long; then all do.
    fn part(&mut self, parted: Parted, time: Duration) {
        self.parted = parted;
        self.run(time);
        self.parted = Parted::default();
    }

    /// No more trouble. Nobody was out of reach for longer than all this has lasted: a tenth of that
    /// later everybody has been called again.
    fn settle(&mut self) {
        self.run(Duration::from_secs(20) + self.now / 10);
    }

    /// Time passes, and everything arrives that can.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.pass(ALIVE_EVERY);
            for _ in 0..1000 {
                let wires = self.wires.len();
                let any = (0..wires).filter(|at| self.deliver(*at)).count() > 0;
                if !any {
                    break;
                }
            }
        }
    }

    /// What programs have registered.
    fn truth(&self) -> BTreeSet<ResourceId> {
        let of = |p: &Program| -> Vec<_> {
            let context = p.context;
            p.registered.iter().map(|place| ResourceId { context, place: *place }).collect()
        };
        self.programs.iter().flat_map(of).collect()
    }

    /// What the directory of this node has, if it runs. Of each it says over what its context can be called.
    fn found(&self, node: usize) -> Option<BTreeSet<ResourceId>> {
        let all = self.nodes[node].as_ref()?.find(&Attributes::new());
        assert!(all.iter().all(|record| record.home.carriers == carriers(record.id.context)));
        Some(all.iter().map(|record| record.id).collect())
    }

    /// All that run know the truth, and so do their programs.
    fn agree(&self) {
        let truth = self.truth();
        for node in 0..NODES {
            if let Some(found) = self.found(node) {
                assert_eq!(found, truth, "n{node}");
            }
        }
        for program in &self.programs {
            assert_eq!(program.told, truth, "a program on n{}", program.node);
        }
    }
}

/// What a program says to register `place`, each time the same.
fn registration(place: Place) -> Request {
    let attributes = attrs! { "number" => place.slot.to_string() };
    Request::Register { number: place.slot, place, attributes }
}

/// Nodes that all know the first, with a resource on each that runs.
fn world_with_resources(running: impl IntoIterator<Item = usize>) -> World {
    let mut world = World::new(star());
    world.settle();
    for (program, node) in running.into_iter().enumerate() {
        world.open(node);
        world.apply(&Op::Register { program });
    }
    world.settle();
    world.agree();
    world
}

/// Goal: two nodes that did not reach each other for minutes find each other again, although they
/// know each other only from the one that both were told of, and talk to it all the time.
#[test]
fn two_that_were_parted_for_minutes_find_each_other_by_their_neighbour() {
    let mut world = world_with_resources(0..NODES);
    let parted = Parted { these: 1 << 1, those: 1 << 2 };
    world.part(parted, Duration::from_secs(400));
    assert_ne!(world.found(1), Some(world.truth()), "what cannot be reached is not found");
    assert_eq!(world.found(0), Some(world.truth()));
    world.settle();
    world.agree();
}

/// Goal: nodes find each other again after minutes without a network, although the only one that
/// they were told of is gone.
#[test]
fn all_that_were_parted_for_minutes_find_each_other_without_the_one_they_were_told_of() {
    let mut world = world_with_resources(1..NODES);
    world.apply(&Op::Crash { node: 0 });
    let all = (1 << NODES) - 1;
    world.part(Parted { these: all, those: all }, Duration::from_secs(400));
    for node in 1..NODES {
        assert_eq!(world.found(node).unwrap().len(), 1, "n{node} finds its own alone");
    }
    world.settle();
    world.agree();
}

/// Goal: programs of other nodes are told nothing when a server is started again and its programs are still there; what
/// has ended meanwhile is told when a silent server would have been given up. Method: each node's server in turn, and a
/// program of the last that ends with the server and does not come again.
#[test]
fn a_server_that_is_started_again_was_never_gone_for_others() {
    let mut world = world_with_resources(0..NODES);
    let events = |world: &World, but: usize| -> Vec<usize> {
        let others = world.programs.iter().filter(|program| program.node != but);
        others.map(|program| program.events).collect()
    };
    for node in 0..NODES {
        let before = events(&world, node);
        world.apply(&Op::Restart { node });
        world.settle();
        world.agree();
        assert_eq!(events(&world, node), before, "n{node}");
    }
    let last = NODES - 1;
    let before = events(&world, last);
    world.programs.retain(|program| program.node != last);
    world.apply(&Op::Restart { node: last });
    world.run(SILENCE_MOST - ALIVE_EVERY * 2);
    assert_eq!(events(&world, last), before);
    assert_ne!(world.found(0), Some(world.truth()), "it may come again");
    world.run(ALIVE_EVERY * 3);
    world.agree();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn directories_agree_on_the_truth_when_the_trouble_is_over(
        members in prop_oneof![Just(ring()), Just(star())],
        ops in ops(),
    ) {
        let mut world = World::new(members);
        for op in &ops {
            world.apply(op);
        }
        (0..NODES).for_each(|node| world.start(node));
        world.settle();
        world.agree();
    }
}
