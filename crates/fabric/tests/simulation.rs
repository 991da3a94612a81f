//! The directories of several nodes in virtual time: messages are delayed, connections break or
//! swallow everything, servers crash and come back, programs come and go, in any order. What has
//! been confirmed is found by everybody who can be reached; and when the trouble is over, all know
//! the same, which is the truth.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::directory::protocol::{Answer, ContextInfo, Heard, Request, Telling, VERSION};
use keeptime_fabric::directory::state::{ALIVE_EVERY, ConnectionId, Directory, Input, Output};
use keeptime_fabric::id::Place;
use keeptime_fabric::{Attributes, Callers, ContextId, ResourceId, attrs};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
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
    Pass { millis: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..NODES).prop_map(|node| Op::Open { node }),
        1 => (0..8_usize).prop_map(|program| Op::End { program }),
        6 => (0..8_usize).prop_map(|program| Op::Register { program }),
        3 => (0..8_usize, 0..8_usize).prop_map(|(program, which)| Op::Drop { program, which }),
        12 => (0..24_usize, 1..4_usize).prop_map(|(wire, messages)| Op::Deliver { wire, messages }),
        1 => (0..24_usize).prop_map(|wire| Op::Cut { wire }),
        1 => (0..24_usize).prop_map(|wire| Op::Swallow { wire }),
        1 => (0..NODES).prop_map(|node| Op::Crash { node }),
        2 => (0..NODES).prop_map(|node| Op::Start { node }),
        6 => (1..2000_u64).prop_map(|millis| Op::Pass { millis }),
    ];
    prop::collection::vec(op, 0..120)
}

/// A connection that `from` made to tell `to`.
struct Wire {
    from: usize,
    to: usize,
    ends: [ConnectionId; 2],
    tellings: VecDeque<Telling>,
    hearings: VecDeque<Heard>,
    /// `from` has been welcomed.
    welcome: bool,
    /// Nothing arrives any more, and nobody is told.
    swallows: bool,
}

struct Program {
    node: usize,
    connection: ConnectionId,
    context: ContextId,
    registered: BTreeSet<Place>,
    /// What it has been told that there is.
    told: BTreeSet<ResourceId>,
    next: u32,
}

#[derive(Default)]
struct World {
    now: Duration,
    nodes: Vec<Option<Directory>>,
    wires: Vec<Wire>,
    programs: Vec<Program>,
    last: u64,
}

fn address(node: usize) -> SocketAddr {
    ([10, 0, 0, node as u8 + 1], 7).into()
}

fn other_address(node: usize) -> SocketAddr {
    ([10, 1, 0, node as u8 + 1], 7).into()
}

impl World {
    fn new() -> Self {
        let mut world = Self { nodes: (0..NODES).map(|_| None).collect(), ..Self::default() };
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
            // Each knows one other, and itself and one at the address that they have on another
            // network; the rest is learned.
            let other = |node| other_address(node % NODES);
            let known = [address((node + 1) % NODES), other(node), other(node + 1)];
            let directory = Directory::new(format!("n{node}"), run, address(node), known, None);
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
            Output::Tell(on, telling) => {
                if let Some(wire) = self.wires.iter_mut().find(|wire| wire.ends[0] == on) {
                    wire.tellings.push_back(telling);
                }
            }
            Output::Hear(on, heard) => {
                if let Some(wire) = self.wires.iter_mut().find(|wire| wire.ends[1] == on) {
                    wire.hearings.push_back(heard);
                }
            }
            Output::Dial(to) => self.dial(node, to),
            Output::Close(on) => {
                // What was said before is not delivered: the worst that can happen.
                if let Some(at) = self.wires.iter().position(|wire| wire.ends.contains(&on)) {
                    self.cut(at);
                }
            }
            Output::Complain(_) => {}
        }
    }

    fn dial(&mut self, from: usize, to: SocketAddr) {
        let is_there = |node: &usize| address(*node) == to || other_address(*node) == to;
        let reached = (0..NODES).find(|node| is_there(node) && self.nodes[*node].is_some());
        let Some(to_node) = reached else { return self.step(from, Input::Unreachable(to)) };
        let ends = [ConnectionId(self.fresh()), ConnectionId(self.fresh())];
        self.wires.push(Wire {
            from,
            to: to_node,
            ends,
            tellings: VecDeque::new(),
            hearings: VecDeque::new(),
            welcome: false,
            swallows: false,
        });
        let reached_at = address(from);
        self.step(from, Input::Dialed { address: to, connection: ends[0], reached_at });
    }

    fn answered(&mut self, node: usize, to: ConnectionId, answer: Answer) {
        let Some(program) = self.programs.iter_mut().find(|p| p.connection == to) else { return };
        match answer {
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

    /// Every server that can be reached from `node` has it.
    fn confirmed(&self, node: usize, id: ResourceId, there: bool) {
        for wire in self.wires.iter().filter(|wire| wire.from == node && wire.welcome) {
            let Some(other) = &self.nodes[wire.to] else { continue };
            let found = other.find(&Attributes::new()).iter().any(|record| record.id == id);
            assert!(
                !there || found,
                "n{} does not know {id}, which n{node} has confirmed",
                wire.to
            );
        }
    }

    fn cut(&mut self, at: usize) {
        let wire = self.wires.remove(at);
        self.step(wire.from, Input::Closed(wire.ends[0]));
        self.step(wire.to, Input::Closed(wire.ends[1]));
    }

    fn deliver(&mut self, at: usize) -> bool {
        let Some(wire) = self.wires.get_mut(at).filter(|wire| !wire.swallows) else { return false };
        let (from, to, ends) = (wire.from, wire.to, wire.ends);
        let (telling, heard) = (wire.tellings.pop_front(), wire.hearings.pop_front());
        wire.welcome |= matches!(heard, Some(Heard::Welcome { .. }));
        let any = telling.is_some() || heard.is_some();
        if let Some(heard) = heard {
            self.step(from, Input::Heard(ends[0], heard));
        }
        // That may have closed it.
        if let Some(telling) = telling
            && self.wires.iter().any(|wire| wire.ends == ends)
        {
            self.step(to, Input::Told(ends[1], telling));
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
        let connection = ConnectionId(self.fresh());
        let context = ContextId::new(self.fresh());
        let (registered, told) = (BTreeSet::new(), BTreeSet::new());
        self.programs.push(Program { node, connection, context, registered, told, next: 0 });
        let info = ContextInfo {
            id: context,
            node: String::new(),
            owner: USER,
            callers: Callers::SameUser,
            addresses: Vec::new(),
        };
        let hello = Request::Hello { version: VERSION, context: info };
        self.step(node, Input::Asked(connection, USER, hello));
        let everything = Request::Subscribe { number: EVERYTHING, query: Attributes::new() };
        self.step(node, Input::Asked(connection, USER, everything));
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
                let attributes = attrs! { "number" => number.to_string() };
                let request = Request::Register { number, place, attributes };
                let (node, connection) = (program.node, program.connection);
                self.step(node, Input::Asked(connection, USER, request));
            }
            Op::Drop { program, which } => {
                let Some(program) = self.programs.get_mut(program) else { return };
                let Some(place) = program.registered.iter().nth(which).copied() else { return };
                program.registered.remove(&place);
                let request = Request::Drop { number: place.slot, place };
                let (node, connection) = (program.node, program.connection);
                self.step(node, Input::Asked(connection, USER, request));
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
                self.nodes[node] = None;
                self.programs.retain(|program| program.node != node);
                while let Some(at) = self.wires.iter().position(|w| w.from == node || w.to == node)
                {
                    self.cut(at);
                }
            }
            Op::Start { node } => self.start(node),
            Op::Pass { millis } => self.pass(Duration::from_millis(millis)),
            Op::End { .. } | Op::Cut { .. } => {}
        }
    }

    /// No more trouble: time passes, and everything arrives.
    fn settle(&mut self) {
        (0..NODES).for_each(|node| self.start(node));
        for _ in 0..40 {
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
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn directories_agree_on_the_truth_when_the_trouble_is_over(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
        }
        world.settle();
        let truth: BTreeSet<ResourceId> = world
            .programs
            .iter()
            .flat_map(|p| p.registered.iter().map(|place| ResourceId { context: p.context, place: *place }))
            .collect();
        for (number, node) in world.nodes.iter().enumerate() {
            let all = node.as_ref().unwrap().find(&Attributes::new());
            let found: BTreeSet<_> = all.iter().map(|record| record.id).collect();
            prop_assert_eq!(&found, &truth, "n{}", number);
        }
        for program in &world.programs {
            prop_assert_eq!(&program.told, &truth, "a program on n{}", program.node);
        }
    }
}
