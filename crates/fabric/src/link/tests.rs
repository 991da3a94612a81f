//! Two links over a wire of memory, in any order of steps, with a wire that is full, slow or
//! breaks: every message is taken or told, once and in order, and nothing holds more than its
//! bound.

mod stranger;

use super::delivery::Delivery;
use super::out::ANSWERS_MOST;
use super::*;
use crate::flow::{CHARGE_LEAST, GONE_MOST, WINDOW};
use crate::frame::{EAGER_MOST, Frame, HEAD, Head};
use crate::inbox::{Body, Inbox, Inboxes, Taken};
use crate::links::Links;
use crate::matching::Match;
use crate::payload::{Buffer, Payload};
use crate::progress::Wait;
use crate::transport::{self, Receiver, Sender, Sending, Sent as Carried, Sink};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::mem;

/// Frames that fit on the wire.
const CAPACITY: usize = 6;

#[derive(Default)]
struct Wire {
    frames: VecDeque<([u8; HEAD], Vec<u8>)>,
    broken: bool,
    /// What was taken before is not carried.
    stuck: bool,
    /// Whoever reads tells when half of it is free.
    writer_asleep: bool,
    /// That was told, and nobody has heard it.
    is_rung: bool,
}

impl Wire {
    fn tell_room(&mut self) {
        if self.writer_asleep && self.frames.len() <= CAPACITY / 2 {
            (self.writer_asleep, self.is_rung) = (false, true);
        }
    }
}

type SharedWire = Arc<Mutex<Wire>>;

/// What a message says that says nothing.
fn nothing() -> Payload<'static> {
    Payload::Lent(&[])
}

struct WireSender(SharedWire);

struct WireReceiver(SharedWire);

impl Sender for WireSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Carried, Broken> {
        let mut wire = lock(&self.0);
        if wire.broken {
            return Err(Broken::Closed);
        }
        if wire.frames.len() >= CAPACITY {
            return Ok(Carried::Full);
        }
        wire.frames.push_back((*head, payload.to_vec()));
        Ok(Carried::Whole)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        Ok(!lock(&self.0).stuck)
    }

    fn falls_asleep(&mut self) -> bool {
        let mut wire = lock(&self.0);
        let is_full = wire.frames.len() >= CAPACITY;
        wire.writer_asleep |= is_full;
        is_full
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    fn is_drained(&mut self) -> bool {
        true
    }
}

impl Receiver for WireReceiver {
    /// One frame at a time, besides that by which messages begin.
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        loop {
            let (frame, broken) = {
                let mut wire = lock(&self.0);
                let frame = wire.frames.pop_front();
                wire.tell_room();
                (frame, wire.broken)
            };
            let Some((head, payload)) = frame else {
                return if broken { Err(Broken::Closed) } else { Ok(0) };
            };
            let head = Head::decode(&head)?;
            let mut buffer = transport::buffer(sink, &head)?;
            buffer.extend_from_slice(&payload);
            sink.frame(&head, buffer.into())?;
            if !matches!(head.frame, Frame::Begun { .. }) {
                return Ok(1);
            }
        }
    }

    fn falls_asleep(&mut self) -> bool {
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {}
}

/// One of two contexts.
struct Side {
    id: ContextId,
    inboxes: Inboxes,
    links: Links,
    progress: Progress,
    notices: Mutex<Vec<Undelivered>>,
}

impl Side {
    /// Reads all that there is.
    fn read(&self, link: &Arc<Link>) {
        loop {
            match link.receive(self) {
                Ok(0) => return,
                Ok(_) => {}
                Err(broken) => return self.lost(link, broken),
            }
        }
    }

    fn lost(&self, link: &Arc<Link>, why: Broken) {
        link.end(why, self);
        self.links.remove(link);
        self.inboxes.each(|inbox| inbox.forget(link.id));
    }
}

/// One link, as each of both sides has it: what the first one sends is on the first wire.
fn connect(sides: &[Side; 2], wires: &[SharedWire; 2]) -> [Arc<Link>; 2] {
    [0_usize, 1].map(|side| end(&sides[side], sides[1 - side].id, &wires[side], &wires[1 - side]))
}

/// A link to `peer` as `side` has it.
fn end(side: &Side, peer: ContextId, out: &SharedWire, input: &SharedWire) -> Arc<Link> {
    let ends = Ends {
        sender: Sending::new(WireSender(out.clone())),
        receiver: Receiving::new(WireReceiver(input.clone())),
        readable: Vec::new(),
        writable: None,
        in_memory: true,
        poll_is_enough: false,
        glance: None,
    };
    side.links.insert(|number| Link::new(number, peer, ends))
}

impl Home for Side {
    fn message_most(&self) -> u64 {
        1 << 20
    }

    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        match self.inboxes.give(to, message, |inbox, message| inbox.deliver(message, None)) {
            Ok(delivered) => delivered.map(|_| None),
            Err(reason) => Ok(Some(reason)),
        }
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        for (before, why) in self.links.begun(link, number, self)? {
            self.lost(&before, why);
        }
        Ok(())
    }

    // Nobody sleeps.
    fn fetched(&self, _: Place) {}

    fn notify(&self, _: Place, notice: Undelivered) {
        lock(&self.notices).push(notice);
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Short(usize),
    Given(usize),
    Lent(usize),
}

#[derive(Debug, Clone)]
enum Step {
    Send {
        to: usize,
        kind: Kind,
    },
    /// A frame arrives: at the receiver, or back at the sender.
    Arrive {
        back: bool,
    },
    Take {
        at: usize,
    },
    Close {
        at: usize,
    },
    /// Who lends a message of which nothing was sent gives up.
    GiveUp,
    Break,
}

fn steps() -> impl Strategy<Value = (Vec<Step>, bool)> {
    (prop::collection::vec(step(), 0..150), any::<bool>())
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        (0..=EAGER_MOST).prop_map(Kind::Short),
        (0..200_usize).prop_map(Kind::Short),
        (EAGER_MOST + 1..300_000).prop_map(Kind::Given),
        (EAGER_MOST + 1..300_000).prop_map(Kind::Lent),
        Just(Kind::Given((1 << 20) + 1)),
    ];
    prop_oneof![
        12 => (0..3_usize, kind).prop_map(|(to, kind)| Step::Send { to, kind }),
        20 => any::<bool>().prop_map(|back| Step::Arrive { back }),
        8 => (0..3_usize).prop_map(|at| Step::Take { at }),
        1 => (0..3_usize).prop_map(|at| Step::Close { at }),
        2 => Just(Step::GiveUp),
        1 => Just(Step::Break),
    ]
}

struct World {
    sides: [Side; 2],
    links: [Arc<Link>; 2],
    wires: [SharedWire; 2],
    from: Place,
    to: Vec<Place>,
    next: u64,
    /// Lent messages that are not sent: tag, token, data, how much of it.
    lent: Vec<(u64, u32, Vec<u8>, usize)>,
    taken: Vec<BTreeSet<u64>>,
    /// What senders were told by a call.
    failed: BTreeSet<u64>,
    /// What had arrived and was not taken when its receiver went.
    unread: BTreeSet<u64>,
    /// What was taken that another has sent.
    strayed: Vec<Strayed>,
}

/// A message of another: the name of its offer, if it was long.
struct Strayed {
    tag: Tag,
    token: Option<u32>,
    data: Buffer,
}

impl World {
    fn new() -> Self {
        let wires: [SharedWire; 2] = Default::default();
        let side = |number| Side {
            id: ContextId::new(number),
            inboxes: Inboxes::new(),
            links: Links::default(),
            progress: Progress::new(Wait::Block).unwrap(),
            notices: Mutex::default(),
        };
        let sides = [side(1), side(2)];
        let links = connect(&sides, &wires);
        let from = sides[0].inboxes.open().unwrap();
        let to: Vec<_> = (0..3).map(|_| sides[1].inboxes.open().unwrap()).collect();
        Self {
            sides,
            links,
            wires,
            from,
            to,
            next: 0,
            lent: Vec::new(),
            taken: vec![BTreeSet::new(); 3],
            failed: BTreeSet::new(),
            unread: BTreeSet::new(),
            strayed: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Send { to, kind } => self.send(to, kind),
            Step::Arrive { back } => self.arrive(usize::from(!back)),
            Step::Take { at } => self.take(at),
            Step::Close { at } => self.close(at),
            Step::GiveUp => self.give_up(),
            Step::Break => self.wires.iter().for_each(|wire| {
                let mut wire = lock(wire);
                wire.broken = true;
                wire.frames.clear();
            }),
        }
        self.go_on();
    }

    fn send(&mut self, to: usize, kind: Kind) {
        let (tag, link, to) = (self.next, &self.links[0], self.to[to]);
        let data = |length: usize| vec![tag as u8; length];
        let result = match kind {
            Kind::Short(length) => {
                link.message(self.from, to, Tag(tag), &mut data(length).into(), 0)
            }
            Kind::Given(length) => {
                let mut given = Buffer::from(data(length));
                link.offer_given(self.from, to, Tag(tag), &mut given)
            }
            Kind::Lent(length) => link.offer_lent(self.from, to, Tag(tag), length).map(|token| {
                let Some(token) = token else { return Attempt::Wait };
                self.lent.push((tag, token, data(length), 0));
                Attempt::Done
            }),
        };
        // A message that was not taken by the link is its caller's.
        self.next += u64::from(result.is_ok_and(|attempt| attempt != Attempt::Wait));
    }

    fn give_up(&mut self) {
        let link = &self.links[0];
        let withdrawn = self.lent.iter().position(|(_, token, ..)| link.withdraw(*token));
        if let Some(at) = withdrawn {
            let (tag, ..) = self.lent.remove(at);
            self.failed.insert(tag);
        }
    }

    fn arrive(&mut self, side: usize) {
        if let Err(broken) = self.links[side].receive(&self.sides[side]) {
            self.sides[side].lost(&self.links[side], broken);
        }
    }

    /// What threads would do that wait: lenders send, receivers take over what has arrived.
    fn go_on(&mut self) {
        for side in [0, 1] {
            let _ = self.links[side].pump(&self.sides[side]);
        }
        let link = &self.links[0];
        self.lent.retain_mut(|(tag, token, data, sent)| match link.send_lent(*token, data, sent) {
            Ok(None) => true,
            Ok(Some(Ok(()))) => false,
            Ok(Some(Err(_))) | Err(_) => {
                self.failed.insert(*tag);
                false
            }
        });
    }

    fn take(&mut self, at: usize) {
        let place = self.to[at];
        let taken = self.sides[1].inboxes.with(place, |inbox| {
            let taken = inbox.take(&Match::any()).0;
            inbox.fetch(place, &Match::any(), taken.as_ref());
            taken
        });
        let Some(Some(Taken::Message(message, credit))) = taken else { return };
        if let Some(bytes) = credit {
            self.answer_by(message.link, Frame::Credit { place, bytes });
        }
        self.answer(place);
        let tag = message.tag.0;
        let (data, token) = match message.body {
            Body::Whole(data) => (data, None),
            Body::Offered(offered) => match offered.link.assembled(offered.token) {
                Some(data) => (data.into(), Some(offered.token)),
                None => return,
            },
        };
        if message.from.context != self.sides[0].id {
            return self.strayed.push(Strayed { tag: message.tag, token, data });
        }
        assert!(data.iter().all(|byte| *byte == tag as u8), "another message's bytes");
        assert!(self.taken[at].last().is_none_or(|last| *last < tag), "{tag} was overtaken");
        self.taken[at].insert(tag);
    }

    /// If the receiver owes much, it gives that back with a message of its own: as `Core::send_at_once` does it.
    fn answer(&self, place: Place) {
        let (link, inboxes) = (&self.links[1], &self.sides[1].inboxes);
        let credit = inboxes.at(place).map_or(0, |inbox| inbox.credit_with_message(link.id));
        let send = || link.message(place, self.from, Tag(0), &mut nothing(), credit);
        if credit > 0 && send() != Ok(Attempt::Done) {
            inboxes.with(place, |inbox| inbox.put_back(link.id, credit));
        }
    }

    /// The receiver goes, and another takes its slot: as `Core::close` does it.
    fn close(&mut self, at: usize) {
        let place = self.to[at];
        let left = self.sides[1].inboxes.close(place).unwrap();
        for (link, bytes) in left.owed {
            self.answer_by(link, Frame::Credit { place, bytes });
        }
        for message in left.messages {
            self.unread.insert(message.tag.0);
            let (from, tag, bytes) = (message.from.place, message.tag, message.charge);
            let (to, reason) = (place, Refusal::Gone);
            let rejected = |token| Frame::Rejected { from, to, tag, token, bytes, reason };
            match message.body {
                Body::Offered(offered) => {
                    offered.link.reject_offer(offered.token, rejected(offered.token));
                }
                Body::Whole(_) => self.answer_by(message.link, rejected(0)),
            }
        }
        self.to[at] = self.sides[1].inboxes.open().unwrap();
        assert_ne!(self.to[at], place);
    }

    /// By the link of this number of the receivers', if it is there.
    fn answer_by(&self, number: u32, frame: Frame) {
        self.sides[1].links.numbered(number).iter().for_each(|link| link.answer(frame));
    }

    fn settle(&mut self) {
        for _ in 0..2_000 {
            self.arrive(0);
            self.arrive(1);
            (0..3).for_each(|at| self.take(at));
            self.go_on();
            if self.is_quiet() {
                break;
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let empty = self.wires.iter().all(|wire| {
            let wire = lock(wire);
            wire.frames.is_empty() && !wire.broken
        });
        let idle = self.links.iter().all(|link| !link.has_backlog());
        let taken = (0..3).all(|at| self.queued(at) == 0);
        empty && idle && taken && self.lent.is_empty()
    }

    fn queued(&self, at: usize) -> u64 {
        self.sides[1].inboxes.with(self.to[at], |inbox| inbox.charged()).unwrap_or(0)
    }

    /// All that was sent was taken or told, when all is quiet.
    fn expect_all_told(&self, broke: bool) -> Result<(), TestCaseError> {
        let told: Vec<u64> = lock(&self.sides[0].notices).iter().map(|n| n.tag.0).collect();
        let told_once: BTreeSet<u64> = told.iter().copied().collect();
        prop_assert_eq!(told.len(), told_once.len(), "told twice: {:?}", told);
        prop_assert!(told_once.is_disjoint(&self.failed), "told by the call and by a notice");
        for tag in 0..self.next {
            let taken = self.taken.iter().any(|taken| taken.contains(&tag));
            let told = told_once.contains(&tag) || self.failed.contains(&tag);
            // Whether that it was not read can still be told depends on the connection.
            let unread = broke && self.unread.contains(&tag);
            prop_assert!(taken || told || unread, "{} was lost", tag);
            prop_assert!(broke || !(taken && told), "{} was taken and told as lost", tag);
        }
        // Nothing waits, and without a break all windows are open again.
        prop_assert!(self.lent.is_empty());
        if !broke {
            prop_assert_eq!(lock(&self.links[0].out).offers.held(), (0, 0));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_message_is_taken_or_told((steps, breaks) in steps()) {
        let mut world = World::new();
        let mut broke = false;
        for step in &steps {
            if matches!(step, Step::Break) {
                if !breaks {
                    continue;
                }
                broke = true;
            }
            world.apply(step);
            for at in 0..3 {
                prop_assert!(world.queued(at) <= WINDOW);
            }
        }
        world.settle();
        world.expect_all_told(broke)?;
    }
}

/// Who gives up a message knows what became of it: neither that its receiver goes, nor that the connection breaks, is
/// told to it after that, and closing does not count it.
#[test]
fn what_was_given_up_is_not_told_again() {
    for breaks in [false, true] {
        let mut world = World::new();
        world.send(0, Kind::Lent(100_000));
        world.give_up();
        assert_eq!((world.lent.len(), world.failed.len()), (0, 1));
        assert!(world.links[0].unsent().is_empty());
        world.arrive(1);
        assert_eq!(world.queued(0), u64::from(CHARGE_LEAST), "the offer has not arrived");
        if breaks {
            world.apply(&Step::Break);
        } else {
            world.close(0);
        }
        world.arrive(0);
        assert!(lock(&world.sides[0].notices).is_empty());
        assert_eq!(lock(&world.links[0].out).offers.held(), (0, 0));
    }
}

/// A message that was given up when its receiver had begun to fetch it: whether the receiver hears of that before it goes
/// or after, and also if it takes it, the sender is not told again, and has its window back.
#[test]
fn what_was_given_up_while_it_was_fetched_is_not_told_again() {
    for (hears_first, takes) in [(true, false), (false, false), (true, true)] {
        let mut world = World::new();
        let to = world.to[0];
        world.send(0, Kind::Lent(100_000));
        world.give_up();
        world.arrive(1);
        let token = lock(&world.links[0].out).offers.last_token();
        // Asks for it.
        world.take(0);
        world.arrive(0);
        if hears_first {
            world.arrive(1);
        }
        if takes {
            // Finds that it never comes.
            world.take(0);
            world.go_on();
        }
        world.close(0);
        world.settle();
        assert!(lock(&world.sides[0].notices).is_empty());
        let nothing = Err(Malformed::Unknown("credit"));
        assert_eq!(lock(&world.links[0].out).flow.credit(to, 1), nothing);
        assert!(world.links.iter().all(|link| link.broken().is_none() && !link.has_taken(token)));
    }
}

/// An end that reads nothing has no number of answers kept for it, even if its transport carries nothing of what it
/// took before.
#[test]
fn answers_that_are_not_read_end_the_link() {
    let world = World::new();
    lock(&world.wires[0]).stuck = true;
    let answer = Frame::Credit { place: world.from, bytes: 1 };
    (0..CAPACITY + ANSWERS_MOST).for_each(|_| world.links[0].answer(answer));
    assert_eq!(world.links[0].pump(&world.sides[0]), Ok(()));
    world.links[0].answer(answer);
    let waiting = ANSWERS_MOST + 1;
    assert_eq!(world.links[0].pump(&world.sides[0]), Err(Broken::Unread { waiting }));
}

/// A long message that is lent and was taken: its offer.
fn lend(world: &mut World, data: &[u8]) -> u32 {
    let offered = world.links[0].offer_lent(world.from, world.to[0], Tag(1), data.len());
    let token = offered.unwrap().unwrap();
    world.arrive(1);
    world.links[1].take_offer(token, world.to[0], data.len()).unwrap();
    world.arrive(0);
    token
}

/// Who has something long to send finds room when it is about to sleep, and fills it: it is told of the next room as well.
#[test]
fn who_fills_the_room_that_it_found_is_told_of_the_next() {
    let mut world = World::new();
    let data = vec![0_u8; (CAPACITY + 2) * EAGER_MOST];
    let (token, mut sent) = (lend(&mut world, &data), 0);
    let link = &world.links[0];
    link.enlist(&Parker::current());
    assert!(!lock(&world.wires[0]).writer_asleep, "there is room");
    assert_eq!(link.send_lent(token, &data, &mut sent), Ok(None));
    assert!(sent > 0 && lock(&world.wires[0]).writer_asleep, "{sent} bytes were sent");
}

/// So is one that finds room, which others have filled when it tries again.
#[test]
fn who_finds_no_room_any_more_is_told_of_the_next() {
    let world = World::new();
    let (link, to) = (&world.links[0], world.to[0]);
    let send = || link.message(world.from, to, Tag(1), &mut nothing(), 0).unwrap();
    link.enlist(&Parker::current());
    // Behind that by which messages begin.
    for _ in 1..CAPACITY {
        assert_eq!(send(), Attempt::Done);
    }
    assert!(!lock(&world.wires[0]).writer_asleep, "there was room for all of these");
    assert_eq!(send(), Attempt::Wait);
    assert!(lock(&world.wires[0]).writer_asleep);
}

/// As long as nobody is about to sleep, the other end makes no call to tell anybody.
#[test]
fn who_looks_for_room_itself_is_not_told() {
    let world = World::new();
    let (link, to) = (&world.links[0], world.to[0]);
    let send = || link.message(world.from, to, Tag(1), &mut nothing(), 0).unwrap();
    while send() == Attempt::Done {}
    assert!(!lock(&world.wires[0]).writer_asleep);
}

/// What a thread has to send.
enum Load {
    /// So many short messages.
    Short(usize),
    /// What it lends by this offer, from here on.
    Lent(u32, usize),
}

/// What a thread does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Try,
    Enlist,
    TryAgain,
    Sleep,
    Nothing,
}

/// A thread that sends by the first link, one thing after the other as [`Progress::wait`] has it.
struct Thread {
    parker: Arc<Parker>,
    to: Place,
    load: Load,
    next: Next,
}

impl Thread {
    fn new(to: Place, load: Load) -> Self {
        // Each thread has one of its own.
        let parker = std::thread::spawn(Parker::current).join().unwrap();
        Self { parker, to, load, next: Next::Try }
    }

    fn step(&mut self, world: &World, data: &[u8]) {
        let link = &world.links[0];
        match self.next {
            Next::Try => self.tries(world, data, Next::Enlist),
            Next::Enlist => {
                link.enlist(&self.parker);
                self.next = Next::TryAgain;
            }
            Next::TryAgain => self.tries(world, data, Next::Sleep),
            Next::Sleep => {
                let is_told = !lock(&link.waiting).iter().any(|p| Arc::ptr_eq(p, &self.parker));
                self.next = if is_told { Next::Try } else { Next::Sleep };
            }
            Next::Nothing => {}
        }
    }

    /// Sends a short message, or what there is room for of a long one. If it is not through, it goes on with `without`.
    fn tries(&mut self, world: &World, data: &[u8], without: Next) {
        let link = &world.links[0];
        let is_all = match &mut self.load {
            Load::Short(left) => {
                let attempt = link.message(world.from, self.to, Tag(2), &mut nothing(), 0).unwrap();
                let is_sent = attempt == Attempt::Done;
                *left -= usize::from(is_sent);
                is_sent.then_some(*left == 0)
            }
            Load::Lent(token, sent) => {
                link.send_lent(*token, data, sent).unwrap().map(|sent| sent.is_ok())
            }
        };
        self.next = match is_all {
            None => without,
            Some(false) => Next::Try,
            Some(true) => Next::Nothing,
        };
    }
}

/// Hears that there is room, if that was told.
fn hear_bell(world: &World) {
    let is_rung = std::mem::take(&mut lock(&world.wires[0]).is_rung);
    if is_rung {
        world.links[0].signalled(&world.sides[0]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// However threads that send by one link come between each other's steps, and the other end between them: nobody sleeps
    /// until there is room without being told of it.
    #[test]
    fn nobody_sleeps_on_when_there_is_room(order in prop::collection::vec(0..5_usize, 0..300)) {
        let mut world = World::new();
        let data = vec![0_u8; 2 * CAPACITY * EAGER_MOST];
        let lent = Load::Lent(lend(&mut world, &data), 0);
        let loads = [lent, Load::Short(8), Load::Short(8)];
        let mut threads: Vec<_> =
            world.to.iter().zip(loads).map(|(to, load)| Thread::new(*to, load)).collect();
        for step in order {
            match step {
                3 => world.arrive(1),
                4 => hear_bell(&world),
                thread => threads[thread].step(&world, &data),
            }
        }
        // Many times what all of it takes.
        for _ in 0..1_000 {
            world.arrive(1);
            hear_bell(&world);
            threads.iter_mut().for_each(|thread| thread.step(&world, &data));
            if threads.iter().all(|thread| thread.next == Next::Nothing) {
                break;
            }
        }
        let left: Vec<_> = threads.iter().map(|thread| thread.next).collect();
        prop_assert_eq!(left, [Next::Nothing; 3]);
    }
}

/// However often an offer is taken, it is sent once, and kept in mind once.
#[test]
fn an_offer_that_is_taken_again_is_sent_once() {
    let world = World::new();
    let (link, side) = (&world.links[0], &world.sides[0]);
    // Longer than the wire holds.
    let mut data = Buffer::from(vec![0_u8; 2 * CAPACITY * EAGER_MOST]);
    assert_eq!(link.offer_given(world.from, world.to[0], Tag(1), &mut data), Ok(Attempt::Done));
    let token = lock(&link.out).offers.last_token();
    let head = Head { frame: Frame::Clear { token }, length: 0, seen: 0 };
    for _ in 0..3 {
        Delivery { link, home: side }.frame(&head, Buffer::default()).unwrap();
    }
    assert_eq!(lock(&link.out).offers.waiting(), [1]);
}

/// What the other end says to have counts as parked no longer, although not all of it was sent: others would wait for its
/// room for ever.
#[test]
fn what_the_other_end_says_to_have_takes_no_room() {
    let world = World::new();
    let (link, side) = (&world.links[0], &world.sides[0]);
    let mut data = Buffer::from(vec![0_u8; 100_000]);
    assert_eq!(link.offer_given(world.from, world.to[0], Tag(1), &mut data), Ok(Attempt::Done));
    assert_eq!(lock(&link.out).offers.held(), (1, 100_000));
    let token = lock(&link.out).offers.last_token();
    let head = Head { frame: Frame::Done { token }, length: 0, seen: 0 };
    Delivery { link, home: side }.frame(&head, Buffer::default()).unwrap();
    assert_eq!(lock(&link.out).offers.held(), (0, 0));
}

/// Goal: an end that gives one name to several of its messages mixes them up for nobody. Method: all of the first is there,
/// and its receiver is just to get it, when another receiver asks for the second.
#[test]
fn messages_of_one_name_are_not_mixed_up() {
    let world = World::new();
    let (from, link, side) = (world.from, &world.links[1], &world.sides[1]);
    let mut delivery = Delivery { link, home: side };
    let offer = |to, token| {
        let frame = Frame::Offer { from, to, tag: Tag(1), size: 3, token };
        let head = Head { frame, length: 0, seen: 0 };
        Delivery { link, home: side }.frame(&head, Buffer::default())
    };
    let look = |to| {
        let taken = side.inboxes.with(to, |inbox| {
            let taken = inbox.take(&Match::any()).0;
            inbox.fetch(to, &Match::any(), taken.as_ref());
            taken
        });
        taken.flatten()
    };
    let data = |taken| match taken {
        Some(Taken::Message(Arrived { body: Body::Offered(offered), .. }, _)) => {
            offered.link.assembled(offered.token)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(offer(world.to[0], 0), Err(Malformed::Unknown("an offer")), "that is no name");
    offer(world.to[0], 1).unwrap();
    assert!(look(world.to[0]).is_none(), "it is asked for");
    let mut piece = delivery.buffer_of_piece(1, 3).unwrap();
    piece.extend_from_slice(&[7; 3]);
    let head = Head { frame: Frame::Piece { token: 1 }, length: 3, seen: 0 };
    delivery.frame(&head, piece.into()).unwrap();
    let first = look(world.to[0]);
    offer(world.to[1], 1).unwrap();
    assert!(look(world.to[1]).is_none(), "it is asked for");
    assert_eq!(data(look(world.to[1])), None);
    assert_eq!(data(first), Some(vec![7; 3]));
    let said =
        lock(&world.wires[1]).frames.pop_back().map(|(head, _)| Head::decode(&head).unwrap());
    let reason = Refusal::NoRoom { left: 0 };
    let rejected =
        Frame::Rejected { from, to: world.to[1], tag: Tag(1), token: 1, bytes: 0, reason };
    assert_eq!(said.map(|head| head.frame), Some(rejected));
}

/// A thread that panics while it sends has nothing held up for those that only carry what waits.
#[test]
fn what_waits_is_carried_after_a_panic() {
    let world = World::new();
    let link = &world.links[0];
    let answer = Frame::Credit { place: world.from, bytes: 1 };
    (0..=CAPACITY).for_each(|_| link.answer(answer));
    assert!(link.has_backlog());
    let sender = link.clone();
    let panicked = std::thread::spawn(move || {
        let _out = lock(&sender.out);
        panic!("as is wanted");
    });
    assert!(panicked.join().is_err() && link.out.is_poisoned());
    lock(&world.wires[0]).frames.clear();
    assert_eq!(link.pump_if_free(&world.sides[0]), Ok(()));
    assert_eq!((lock(&world.wires[0]).frames.len(), link.has_backlog()), (1, false));
}

/// Goal: what a sender was told of comes before what it sends after that, or never. Method: its connection is over for it
/// with a message on its way, and it sends another by a later one. The first has arrived by then, or arrives after the
/// other; its receiver has heard of that connection before, or has not.
#[test]
fn what_was_given_up_does_not_come_after_what_is_sent_later() {
    for (is_heard, has_arrived) in [(true, true), (true, false), (false, true), (false, false)] {
        let world = World::new();
        let ([here, there], [own, other]) = (&world.sides, &world.links);
        let (from, to) = (world.from, world.to[0]);
        let send = |link: &Link, tag| {
            assert_eq!(link.message(from, to, Tag(tag), &mut nothing(), 0), Ok(Attempt::Done));
        };
        send(own, 0);
        if is_heard {
            there.read(other);
        }
        send(own, 1);
        let mut coming = VecDeque::new();
        if !has_arrived {
            std::mem::swap(&mut coming, &mut lock(&world.wires[0]).frames);
        }
        here.lost(own, Broken::Closed);
        let later = connect(&world.sides, &Default::default());
        send(&later[0], 2);
        there.read(&later[1]);
        lock(&world.wires[0]).frames.append(&mut coming);
        there.read(other);

        let take = || there.inboxes.with(to, |inbox| inbox.take(&Match::any()).0).flatten();
        let taken = std::iter::from_fn(take).map(|taken| match taken {
            Taken::Message(message, _) => message.tag.0,
            Taken::Notice(notice) => panic!("{notice}"),
        });
        let wanted: &[u64] = match (is_heard, has_arrived) {
            (true, true) => &[0, 1, 2],
            (true, false) => &[0, 2],
            // There is no way to know what it says before it is read.
            (false, _) => &[2],
        };
        assert_eq!(taken.collect::<Vec<_>>(), wanted, "{is_heard}, {has_arrived}");
        let told: Vec<_> =
            lock(&here.notices).iter().map(|notice| (notice.tag.0, notice.reason)).collect();
        assert_eq!(told, [(0, Reason::Unconfirmed), (1, Reason::Unconfirmed)]);
        assert_eq!(other.broken(), Some(&Broken::Closed));
        assert!(later.iter().all(|link| link.broken().is_none()));
    }
}

/// A receiver that holds all that it may refuses what comes, says how much was asked for and what is left, and takes the
/// next when there is room again.
#[test]
fn without_room_a_sender_is_told_what_is_left() {
    const LEFT: u32 = 50;
    let mut world = World::new();
    let (to, there) = (world.to[0], &world.sides[1]);
    let from = ResourceId { context: world.sides[0].id, place: world.from };
    for (at, link) in (10..).take((GONE_MOST / WINDOW_CARRIED) as usize).enumerate() {
        let charge = WINDOW_CARRIED as u32 - if at == 0 { LEFT } else { 0 };
        let body = Body::Whole(Buffer::default());
        let held = Arrived { from, tag: Tag(99), body, link, charge };
        assert_eq!(there.deliver(to, held), Ok(None));
        there.inboxes.with(to, |inbox| inbox.forget(link));
    }
    world.send(0, Kind::Short(1000));
    world.send(0, Kind::Given(100_000));
    world.send(0, Kind::Lent(100_000));
    world.sides[1].read(&world.links[1]);
    world.sides[0].read(&world.links[0]);
    let no_room = |asked| Reason::NoRoom { asked, left: LEFT.into() };
    let told: Vec<_> =
        lock(&world.sides[0].notices).iter().map(|notice| (notice.tag.0, notice.reason)).collect();
    assert_eq!(told, [(0, no_room(1064)), (1, no_room(64))]);
    let (_, token, data, mut sent) = world.lent.remove(0);
    let sent = world.links[0].send_lent(token, &data, &mut sent);
    assert_eq!(sent, Ok(Some(Err(no_room(64)))), "who lends is told by its call");
    world.take(0);
    world.send(0, Kind::Short(1000));
    world.sides[1].read(&world.links[1]);
    let link = world.links[1].id;
    let arrived = world.sides[1].inboxes.with(to, |inbox| inbox.charged_by(link));
    assert_eq!((arrived, lock(&world.sides[0].notices).len()), (Some(1064), 2));
}

/// A long message for which there is no memory when it is fetched: as `Core::fetch` says it.
#[test]
fn without_memory_a_sender_is_told_how_much_was_asked() {
    let mut world = World::new();
    world.send(0, Kind::Given(100_000));
    world.arrive(1);
    let (from, to, tag) = (world.from, world.to[0], Tag(0));
    let token = lock(&world.links[0].out).offers.last_token();
    let reason = Refusal::NoRoom { left: 0 };
    world.links[1].answer(Frame::Rejected { from, to, tag, token, bytes: 0, reason });
    world.arrive(0);
    let told: Vec<_> = lock(&world.sides[0].notices).iter().map(|notice| notice.reason).collect();
    assert_eq!(told, [Reason::NoRoom { asked: 100_000, left: 0 }]);
}

/// Goal: an end that says of more than it was sent that it was not delivered is found out, before what it says takes the room
/// of what senders are to be told. Method: less is given back each time than there was, so that the window alone allows more.
#[test]
fn who_rejects_what_it_was_never_sent_is_found_out() {
    let world = World::new();
    let (link, side, to) = (&world.links[0], &world.sides[0], world.to[0]);
    let rejects = |from: Place, token: u32, bytes: u32| {
        let (tag, reason) = (Tag(1), Refusal::Gone);
        let frame = Frame::Rejected { from, to, tag, token, bytes, reason };
        Delivery { link, home: side }.frame(&Head { frame, length: 0, seen: 0 }, Buffer::default())
    };
    let never = Err(Malformed::Unknown("a message"));
    let mut message = Payload::from(vec![0_u8; 1000]);
    assert_eq!(link.message(world.from, to, Tag(1), &mut message, 0), Ok(Attempt::Done));
    for (token, bytes) in [(0, 0), (9, 0), (0, CHARGE_LEAST - 1)] {
        assert_eq!(rejects(world.from, token, bytes), never, "{token}, {bytes}");
    }
    assert_eq!(rejects(world.from, 0, CHARGE_LEAST), Ok(()));
    assert_eq!(rejects(world.from, 0, CHARGE_LEAST), never);
    let mut data = Buffer::from(vec![0_u8; 100_000]);
    assert_eq!(link.offer_given(world.from, to, Tag(1), &mut data), Ok(Attempt::Done));
    let token = lock(&link.out).offers.last_token();
    assert_eq!(rejects(world.to[1], token, 0), never, "another has sent it");
    assert_eq!(rejects(world.from, token, 0), Ok(()));
    assert_eq!(rejects(world.from, token, 0), never);
    assert_eq!(lock(&side.notices).len(), 2);
}

/// What comes after a mistake of the other end is not to be trusted, whoever looks for it.
#[test]
fn nothing_is_read_after_a_mistake() {
    let world = World::new();
    let (link, side, to) = (&world.links[1], &world.sides[1], world.to[0]);
    let sent = world.links[0].message(world.from, to, Tag(1), &mut nothing(), 0);
    assert_eq!(sent, Ok(Attempt::Done));
    let wire = world.wires.iter().find(|wire| !lock(wire).frames.is_empty()).unwrap();
    lock(wire).frames.push_front(([0xff; HEAD], Vec::new()));
    assert!(matches!(link.receive(side), Err(Broken::Malformed(_))));
    assert_eq!((link.receive_all(side), link.receive(side)), (Ok(()), Ok(0)));
    assert_eq!(side.inboxes.with(to, |inbox| inbox.charged()), Some(0));
}

/// More is always there.
struct Endless;

impl Receiver for Endless {
    fn poll(&mut self, _: &mut dyn Sink) -> Result<usize, Broken> {
        Ok(1)
    }

    fn has_more(&self) -> bool {
        true
    }

    fn falls_asleep(&mut self) -> bool {
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {}
}

/// A link of which more is always there is read on for a while, and then the kernel is asked what else there is; one of
/// which nothing more is expected is not read on.
#[test]
fn a_link_that_is_read_on_does_not_hold_up_others() {
    let world = World::new();
    let side = &world.sides[0];
    let ends = Ends {
        sender: Sending::new(WireSender(SharedWire::default())),
        receiver: Receiving::new(Endless),
        readable: Vec::new(),
        writable: None,
        in_memory: false,
        poll_is_enough: false,
        glance: None,
    };
    let link = Arc::new(Link::new(7, world.sides[1].id, ends));
    assert!(!link.is_read_on(), "the kernel has said nothing");
    for _ in 0..2 {
        link.signalled(side).unwrap();
        let read = std::iter::repeat_with(|| link.is_read_on() && link.receive(side) == Ok(1));
        let count = read.take(100).take_while(|is_read| *is_read).count();
        assert!((2..100).contains(&count), "{count}");
    }
    world.links[0].signalled(side).unwrap();
    assert!(!world.links[0].is_read_on());
}
