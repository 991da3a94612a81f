//! A table in virtual time: servers join, leave and are killed, messages between two arrive in order
//! and among others in any, the directory tells late who is gone. What was stored is found, or told to
//! be lost if a server was killed; and when the trouble is over, everybody is answered through every
//! partition.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_dht::chart::{Chart, Living, of_server, of_table};
use keeptime_dht::extent::Extent;
use keeptime_dht::host::{Host, Order};
use keeptime_dht::message::{Answer, Message, Outcome, Record, Request, Version};
use keeptime_dht::partition::{Output, Partition};
use keeptime_fabric::id::Place;
use keeptime_fabric::{ContextId, ResourceId};
use proptest::prelude::*;
use serde_bytes::ByteBuf;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

const KEYS: usize = 12;
const WANTED: usize = 3;
const SERVERS_MOST: usize = 6;
/// Rounds after which everything is to be quiet; a few are enough.
const ROUNDS_MOST: usize = 400;
const LOG_MOST: usize = 60;

#[derive(Debug, Clone)]
enum Op {
    Start,
    Leave {
        server: usize,
    },
    Kill {
        server: usize,
        swallows: bool,
    },
    Notice {
        which: usize,
    },
    Deliver {
        wire: usize,
        messages: usize,
    },
    Step {
        server: usize,
        millis: u64,
    },
    Look {
        partition: usize,
    },
    Store {
        key: usize,
        entry: usize,
    },
    Query {
        key: usize,
        entry: usize,
    },
    /// One node's directory hears of all that is on another.
    Meet {
        from: usize,
        to: usize,
    },
    /// Or forgets it.
    Part {
        from: usize,
        to: usize,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let number = 0..1000_usize;
    let op = prop_oneof![
        2 => Just(Op::Start),
        1 => number.clone().prop_map(|server| Op::Leave { server }),
        1 => (number.clone(), any::<bool>())
            .prop_map(|(server, swallows)| Op::Kill { server, swallows }),
        2 => number.clone().prop_map(|which| Op::Notice { which }),
        30 => (number.clone(), 1..4_usize).prop_map(|(wire, messages)| Op::Deliver { wire, messages }),
        10 => (number.clone(), 1..1000_u64).prop_map(|(server, millis)| Op::Step { server, millis }),
        6 => number.clone().prop_map(|partition| Op::Look { partition }),
        8 => (0..KEYS, number.clone()).prop_map(|(key, entry)| Op::Store { key, entry }),
        8 => (0..KEYS, number.clone()).prop_map(|(key, entry)| Op::Query { key, entry }),
        4 => (number.clone(), number.clone()).prop_map(|(from, to)| Op::Meet { from, to }),
        1 => (number.clone(), number).prop_map(|(from, to)| Op::Part { from, to }),
    ];
    prop::collection::vec(op, 0..400)
}

struct Machine {
    context: u64,
    slots: u32,
    host: Host,
    partitions: BTreeMap<ResourceId, Partition>,
    /// Has had a look when there was a table.
    seen: bool,
    leaves: bool,
}

#[derive(Debug, Clone)]
enum Parcel {
    Says(Message),
    Answers(u64, Answer),
}

/// What one key's client, which stores greater values from time to time, knows.
#[derive(Debug, Default)]
struct Key {
    confirmed: u64,
    attempted: u64,
    /// Until it is confirmed: its time and the numbers under which it was sent.
    pending: Option<(u64, Vec<u64>)>,
    time: u64,
    /// Values that were sent more than once: a copy may be on its way for long.
    repeated: BTreeSet<u64>,
}

#[derive(Default)]
struct World {
    now: Duration,
    contexts: u64,
    machines: Vec<Machine>,
    directory: Chart,
    /// Dead, and the directory does not know it yet.
    ghosts: Vec<ResourceId>,
    /// Contexts, and those that do not know of them.
    unknown: BTreeSet<(u64, u64)>,
    /// New servers and the others do not know of each other at first. While that is so there are several
    /// tables, and what one has the others have not.
    splits: bool,
    is_over: bool,
    wires: BTreeMap<(ResourceId, ResourceId), VecDeque<Parcel>>,
    keys: Vec<Key>,
    /// Questions: the key and what was confirmed when it was asked.
    questions: BTreeMap<u64, (usize, u64)>,
    numbers: u64,
    killed: bool,
    random: u64,
    answered: usize,
    /// What happened last, for whoever looks for a mistake.
    log: VecDeque<String>,
}

fn id(context: u64, slot: u32) -> ResourceId {
    ResourceId { context: ContextId::new(context), place: Place { slot, generation: 0 } }
}

/// All clients.
fn client() -> ResourceId {
    id(u64::MAX, 0)
}

fn key(number: usize) -> ByteBuf {
    ByteBuf::from(format!("key {number}"))
}

fn value(number: u64) -> ByteBuf {
    ByteBuf::from(number.to_le_bytes())
}

/// What the directory of one node says.
fn view(all: &Chart, unknown: &BTreeSet<(u64, u64)>, at: u64) -> Chart {
    let is_known = |id: ResourceId| !unknown.contains(&(id.context.number(), at));
    let mut chart = Chart::default();
    for server in all.servers().iter().filter(|id| is_known(**id)) {
        chart.appeared(*server, &of_server("t"));
    }
    for living in all.partitions().filter(|living| is_known(living.id)) {
        let Living { id, extent, generation, giver } = *living;
        chart.appeared(id, &Living::attributes(of_table("t"), extent, generation, giver));
    }
    chart
}

impl World {
    fn new() -> Self {
        let mut world = Self::default();
        world.random = 1;
        world.keys.resize_with(KEYS, Key::default);
        world
    }

    fn start(&mut self) {
        if self.machines.len() >= SERVERS_MOST {
            return;
        }
        // So that identifiers do not come in order.
        self.contexts += 1;
        let context = self.contexts.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
        let me = id(context, 0);
        if self.splits {
            let others = self.machines.iter().map(|machine| machine.context);
            self.unknown.extend(others.flat_map(|other| [(context, other), (other, context)]));
        }
        self.directory.appeared(me, &of_server("t"));
        self.machines.push(Machine {
            context,
            slots: 1,
            host: Host::new(me, WANTED),
            partitions: BTreeMap::new(),
            seen: false,
            leaves: false,
        });
    }

    fn step(&mut self, at: usize) {
        let random = &mut self.random;
        let mut draw = |below: u64| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*random >> 16) % below
        };
        let chart = view(&self.directory, &self.unknown, self.machines[at].context);
        let machine = &mut self.machines[at];
        machine.seen |= chart.partitions().len() > 0;
        let own: Vec<_> = machine.partitions.keys().copied().collect();
        let orders = machine.host.step(self.now, &chart, &own, &mut draw);
        self.orders(at, orders);
    }

    fn orders(&mut self, at: usize, orders: Vec<Order>) {
        let me = id(self.machines[at].context, 0);
        for order in orders {
            match order {
                Order::Send(to, message) => self.send(me, to, Parcel::Says(message)),
                Order::Open { extent, generation, giver } => {
                    let open = |me| Partition::joining(me, extent, generation, giver);
                    let id = self.open(at, extent, generation, Some(giver), open);
                    self.send(id, giver, Parcel::Says(Message::Identified));
                    self.machines[at].host.opened(self.now);
                }
                Order::Found { is_new } => {
                    if is_new {
                        self.begin_anew();
                    }
                    self.open(at, Extent::ALL, 0, None, |me| Partition::founded(me, is_new));
                }
                Order::Left { behind } => {
                    let ids: Vec<_> = self.machines[at].partitions.keys().copied().collect();
                    self.killed |= behind > 0;
                    self.machines.remove(at);
                    ids.into_iter().chain([me]).for_each(|id| self.directory.gone(id));
                    return;
                }
            }
        }
    }

    /// Of the table that there was, nobody is left who knows it.
    fn begin_anew(&mut self) {
        if self.splits {
            return;
        }
        let stays = |machine: &&Machine| !machine.leaves;
        assert!(self.machines.iter().filter(stays).all(|machine| !machine.seen), "somebody knew");
        self.questions.clear();
        self.wires.retain(|(_, to), _| *to != client());
        for key in &mut self.keys {
            (key.confirmed, key.pending) = (0, None);
        }
    }

    fn open(
        &mut self,
        at: usize,
        extent: Extent,
        generation: u32,
        giver: Option<ResourceId>,
        open: impl FnOnce(ResourceId) -> Partition,
    ) -> ResourceId {
        let machine = &mut self.machines[at];
        let id = id(machine.context, machine.slots);
        machine.slots += 1;
        machine.partitions.insert(id, open(id));
        let attributes = Living::attributes(of_table("t"), extent, generation, giver);
        self.note(format!("{id} appears: {attributes}"));
        self.directory.appeared(id, &attributes);
        self.look(id);
        id
    }

    fn look(&mut self, id: ResourceId) {
        let chart = view(&self.directory, &self.unknown, id.context.number());
        let partition = self.machines.iter_mut().find_map(|m| m.partitions.get_mut(&id));
        let outputs = partition.map(|partition| partition.look(&chart)).unwrap_or_default();
        self.outputs(id, outputs);
    }

    fn outputs(&mut self, from: ResourceId, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(to, message) => self.send(from, to, Parcel::Says(message)),
                Output::Answer(to, number, answer) => {
                    self.send(from, to, Parcel::Answers(number, answer));
                }
                Output::Look => self.look(from),
                Output::Ended => {
                    for machine in &mut self.machines {
                        machine.partitions.remove(&from);
                    }
                    self.directory.gone(from);
                }
            }
        }
    }

    fn send(&mut self, from: ResourceId, to: ResourceId, parcel: Parcel) {
        self.wires.entry((from, to)).or_default().push_back(parcel);
    }

    fn deliver(&mut self, wire: usize, messages: usize) {
        let Some(ends) = self.wires.keys().nth(wire % self.wires.len().max(1)).copied() else {
            return;
        };
        for _ in 0..messages {
            let Some(parcels) = self.wires.get_mut(&ends) else { return };
            let Some(parcel) = parcels.pop_front() else { return };
            if parcels.is_empty() {
                self.wires.remove(&ends);
            }
            self.arrive(ends, parcel);
        }
    }

    fn note(&mut self, what: String) {
        self.log.push_back(what);
        if self.log.len() > LOG_MOST {
            self.log.pop_front();
        }
    }

    fn arrive(&mut self, (from, to): (ResourceId, ResourceId), parcel: Parcel) {
        self.note(format!("{from} -> {to}: {parcel:?}"));
        let message = match parcel {
            Parcel::Answers(number, answer) => return self.answered(number, answer),
            Parcel::Says(message) => message,
        };
        let at = self.machines.iter().position(|machine| machine.context == to.context.number());
        let Some(at) = at else { return self.undelivered(from, to) };
        if to.place.slot == 0 && self.machines[at].leaves {
            return self.undelivered(from, to);
        }
        if to.place.slot == 0 {
            let orders = self.machines[at].host.hear(self.now, from, message);
            return self.orders(at, orders);
        }
        match self.machines[at].partitions.get_mut(&to) {
            Some(partition) => {
                let outputs = partition.hear(from, message);
                self.outputs(to, outputs);
            }
            None => self.undelivered(from, to),
        }
    }

    fn undelivered(&mut self, from: ResourceId, to: ResourceId) {
        if let Some(sender) = self.machines.iter_mut().find_map(|m| m.partitions.get_mut(&from)) {
            sender.undelivered(to);
        }
    }

    fn kill(&mut self, at: usize, swallows: bool) {
        let machine = self.machines.remove(at);
        self.note(format!("{:016x} is killed", machine.context));
        self.killed = true;
        self.ghosts.extend(machine.partitions.keys().copied().chain([id(machine.context, 0)]));
        if swallows {
            self.wires.retain(|(from, _), _| from.context.number() != machine.context);
        }
    }

    fn ask(&mut self, entry: usize, request: impl FnOnce(u64) -> Request) -> Option<u64> {
        let count = self.directory.partitions().len();
        let entry = self.directory.partitions().nth(entry % count.max(1))?.id;
        self.numbers += 1;
        let message = Message::Routed { hops: 0, request: request(self.numbers) };
        self.send(client(), entry, Parcel::Says(message));
        Some(self.numbers)
    }

    fn store(&mut self, at: usize, entry: usize) {
        let known = &mut self.keys[at];
        if known.pending.is_none() {
            known.attempted += 1;
            known.time += 1;
            known.pending = Some((known.time, Vec::new()));
        } else {
            known.repeated.insert(known.attempted);
        }
        let time = known.pending.as_ref().map_or(0, |pending| pending.0);
        let version = Version { time, origin: client() };
        let record = Record { key: key(at), version, value: value(known.attempted) };
        let number = self.ask(entry, |number| Request::Store { client: client(), number, record });
        if let (Some((_, numbers)), Some(number)) = (&mut self.keys[at].pending, number) {
            numbers.push(number);
        }
    }

    fn query(&mut self, at: usize, entry: usize) {
        let question = |number| Request::Query { client: client(), number, key: key(at) };
        if let Some(number) = self.ask(entry, question) {
            self.questions.insert(number, (at, self.keys[at].confirmed));
        }
    }

    fn answered(&mut self, number: u64, Answer { outcome, .. }: Answer) {
        self.answered += 1;
        if let Some((at, confirmed)) = self.questions.remove(&number) {
            let known = &self.keys[at];
            if self.splits {
                assert_ne!((self.is_over, &outcome), (true, &Outcome::Busy), "nobody has key {at}");
                return;
            }
            match outcome {
                Outcome::Found(found) => {
                    let found = u64::from_le_bytes(found.as_slice().try_into().unwrap());
                    let is_new = (confirmed..=known.attempted).contains(&found);
                    let is_late = self.killed && known.repeated.contains(&found);
                    assert!(is_new || is_late, "key {at}: {found} after {confirmed}");
                }
                Outcome::NotFound => assert_eq!(confirmed, 0, "key {at} was stored"),
                Outcome::Lost => assert!(self.killed, "key {at}: nobody was killed"),
                Outcome::Busy => {}
                other => panic!("{other:?} to a query"),
            }
            return;
        }
        for known in &mut self.keys {
            let Some((time, numbers)) = &mut known.pending else { continue };
            if !numbers.contains(&number) {
                continue;
            }
            match outcome {
                Outcome::Stored => {
                    known.confirmed = known.attempted;
                    known.pending = None;
                }
                Outcome::Older { time: newer } => {
                    known.time = known.time.max(newer + 1);
                    *time = known.time;
                }
                Outcome::Busy => {}
                other => panic!("{other:?} to a store"),
            }
            return;
        }
    }

    fn notice(&mut self, which: usize) {
        if !self.ghosts.is_empty() {
            let ghost = self.ghosts.remove(which % self.ghosts.len());
            self.note(format!("{ghost} is gone"));
            self.directory.gone(ghost);
        }
    }

    fn apply(&mut self, op: &Op) {
        let some = |number: &usize, count: usize| (count > 0).then(|| number % count);
        match op {
            Op::Start => self.start(),
            Op::Leave { server } => {
                if let Some(at) = some(server, self.machines.len()) {
                    let machine = &mut self.machines[at];
                    machine.host.leave();
                    machine.leaves = true;
                    self.directory.gone(id(machine.context, 0));
                }
            }
            Op::Kill { server, swallows } => {
                if let Some(at) = some(server, self.machines.len()) {
                    self.kill(at, *swallows);
                }
            }
            Op::Notice { which } => self.notice(*which),
            Op::Deliver { wire, messages } => self.deliver(*wire, *messages),
            Op::Step { server, millis } => {
                self.now += Duration::from_millis(*millis);
                if let Some(at) = some(server, self.machines.len()) {
                    self.step(at);
                }
            }
            Op::Look { partition } => {
                let ids: Vec<_> =
                    self.machines.iter().flat_map(|m| m.partitions.keys().copied()).collect();
                if let Some(at) = some(partition, ids.len()) {
                    self.look(ids[at]);
                }
            }
            Op::Store { key, entry } => self.store(*key, *entry),
            Op::Query { key, entry } => self.query(*key, *entry),
            Op::Meet { from, to } | Op::Part { from, to } => {
                let context =
                    |number| some(number, self.machines.len()).map(|at| self.machines[at].context);
                let (Some(from), Some(to)) = (context(from), context(to)) else { return };
                if matches!(op, Op::Meet { .. }) {
                    self.unknown.remove(&(from, to));
                } else if self.splits && from != to {
                    self.unknown.insert((from, to));
                }
            }
        }
    }

    /// No more trouble: until nothing is on its way and nobody wants anything.
    fn settle(&mut self) {
        let mut quiet = 0;
        self.unknown.clear();
        for _ in 0..ROUNDS_MOST {
            while !self.ghosts.is_empty() {
                self.notice(0);
            }
            let mut delivered = 0;
            while !self.wires.is_empty() {
                self.deliver(delivered, 1);
                delivered += 1;
                assert!(delivered < 100_000, "messages go round for ever");
            }
            self.now += Duration::from_secs(6);
            let mut at = 0;
            while at < self.machines.len() {
                let before = self.machines.len();
                self.step(at);
                at += usize::from(self.machines.len() == before);
            }
            let ids: Vec<_> =
                self.machines.iter().flat_map(|m| m.partitions.keys().copied()).collect();
            ids.into_iter().for_each(|id| self.look(id));
            quiet = if self.wires.is_empty() { quiet + 1 } else { 0 };
            if quiet > 3 {
                return;
            }
        }
        panic!("not quiet after {ROUNDS_MOST} rounds");
    }

    /// Every key is answered through every partition.
    fn check(&mut self) {
        let count = self.directory.partitions().len();
        self.is_over = true;
        if self.machines.is_empty() {
            return;
        }
        assert!(count > 0 && self.directory.root().is_some(), "there is no table");
        for at in 0..KEYS {
            for entry in 0..count {
                self.query(at, entry);
                let number = self.numbers;
                let before = self.answered;
                while !self.wires.is_empty() {
                    self.deliver(0, 1);
                }
                assert_eq!(self.answered, before + 1, "question {number} is not answered");
                assert!(!self.questions.contains_key(&number));
            }
        }
        // What is stored now is found, whatever was lost.
        for at in 0..KEYS {
            for entry in [0, 1] {
                if entry == 0 || self.keys[at].pending.is_some() {
                    self.store(at, entry);
                    while !self.wires.is_empty() {
                        self.deliver(0, 1);
                    }
                }
            }
            assert!(self.keys[at].pending.is_none(), "key {at} cannot be stored");
        }
    }
}

/// Tells what happened last when a check fails.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.log.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

fn run<'a>(ops: impl IntoIterator<Item = &'a Op>, splits: bool) {
    let mut world = World::new();
    world.splits = splits;
    (0..2).for_each(|_| world.start());
    ops.into_iter().for_each(|op| world.apply(op));
    world.settle();
    world.check();
    if splits {
        // From now on it is one table like any other. (Some of it counts as lost.)
        (world.splits, world.killed) = (false, true);
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_while_servers_join_and_leave(ops in ops()) {
        run(ops.iter().filter(|op| !matches!(op, Op::Kill { .. })), false);
    }

    #[test]
    fn what_is_lost_with_killed_servers_is_told(ops in ops()) {
        run(&ops, false);
    }

    #[test]
    fn tables_of_nodes_that_meet_become_one(ops in ops()) {
        run(ops.iter().filter(|op| !matches!(op, Op::Kill { .. } | Op::Leave { .. })), true);
    }
}
