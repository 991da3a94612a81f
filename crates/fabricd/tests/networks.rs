//! Nodes with several networks between them, and nodes with none in common, with real daemons: network
//! namespaces and cables between them. Needs root; says so where it cannot run.

#![allow(clippy::unwrap_used, reason = "tests")]

mod nodes;

use keeptime_fabric::bridge::{
    self,
    request::{Refusal, Whom},
    routes::Way,
};
use keeptime_fabric::{Config, Context, Match, Reason, RecvError, Resource, Tag};
use keeptime_linux::testing::can;
use nodes::{LONG, Node, PORT, start_all, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// Messages from one resource to another, of many lengths, as long as the test goes on: each arrives
/// once and in order, and if one is missing the sender was told.
struct Traffic {
    taken: Arc<AtomicU64>,
    more: Arc<AtomicU64>,
    sending: thread::JoinHandle<Vec<(u64, String)>>,
    receiving: thread::JoinHandle<BTreeSet<u64>>,
}

const LAST: Tag = Tag(u64::MAX);

fn data(number: u64) -> Vec<u8> {
    let length = match number % 16 {
        0 => 300_000,
        1 => 65_536,
        2 | 3 => 20_000,
        length => length as usize,
    };
    vec![number as u8; length]
}

impl Traffic {
    /// Sends until it is told to end; what was not delivered is noted, not sent again.
    fn between(here: &Node, there: &Node) -> Self {
        let (from, to) = ((here, here.open("one")), (there, there.open("other")));
        let (taken, more) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let (space, sender, peer, goes_on) =
            (from.0.space.clone(), from.1, to.1.id(), more.clone());
        let send = move || {
            let (mut told, mut number) = (Vec::new(), 0);
            while goes_on.load(SeqCst) == 1 {
                if let Err(error) = sender.send(peer, Tag(number), data(number)) {
                    told.push((number, error.to_string()));
                    thread::park_timeout(Duration::from_millis(5));
                }
                if let Err(RecvError::Undelivered(lost)) = sender.try_recv(Match::any()) {
                    assert_eq!(lost.reason, Reason::Unconfirmed);
                    told.push((lost.tag.0, lost.to_string()));
                }
                number += 1;
            }
            while sender.send(peer, LAST, number.to_le_bytes().as_slice()).is_err() {
                thread::park_timeout(Duration::from_millis(5));
            }
            // Until it is known that it was taken.
            loop {
                match sender.recv(Match::any()) {
                    Ok(answer) if answer.tag == LAST => break,
                    Ok(_) => {}
                    Err(RecvError::Undelivered(lost)) if lost.tag == LAST => {
                        let _ = sender.send(peer, LAST, number.to_le_bytes().as_slice());
                    }
                    Err(RecvError::Undelivered(lost)) => {
                        told.push((lost.tag.0, lost.to_string()));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            told
        };
        // A thread of its own, which is in the namespace as the one that makes it.
        let sending = space.run(move || thread::spawn(send));
        let (space, receiver, counted) = (to.0.space.clone(), to.1, taken.clone());
        let receive = move || {
            let mut numbers = BTreeSet::new();
            loop {
                let message = receiver.recv(Match::any()).unwrap();
                if message.tag == LAST {
                    while receiver.send(message.from, LAST, b"").is_err() {
                        thread::park_timeout(Duration::from_millis(5));
                    }
                    return numbers;
                }
                let number = message.tag.0;
                assert!(message.data == data(number), "{number} is another message's");
                assert!(
                    numbers.last().is_none_or(|last| *last < number),
                    "{number} is out of order"
                );
                numbers.insert(number);
                counted.fetch_add(1, SeqCst);
            }
        };
        let receiving = space.run(move || thread::spawn(receive));
        Self { taken, more, sending, receiving }
    }

    /// Waits until `count` more have arrived.
    fn goes_on(&self, count: u64) {
        let before = self.taken.load(SeqCst);
        wait_for(|| self.taken.load(SeqCst) >= before + count);
    }

    /// Ends it. Returns how many arrived, and which were told not to have, and why.
    fn end(self) -> (u64, BTreeMap<u64, String>) {
        self.more.store(0, SeqCst);
        let told = self.sending.join().unwrap();
        let taken = self.receiving.join().unwrap();
        let all = 0..taken.last().copied().unwrap_or(0);
        let told_once: BTreeMap<_, _> = told.iter().cloned().collect();
        assert_eq!(told.len(), told_once.len(), "told twice: {told:?}");
        for number in all {
            assert!(
                taken.contains(&number) || told_once.contains_key(&number),
                "{number} was lost silently"
            );
        }
        (taken.len() as u64, told_once)
    }
}

/// Two nodes, and bridges that are each on a network with either.
fn bridged(bridges: &[&'static str]) -> (Node, Node, Vec<Node>) {
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    let mut middle = Vec::new();
    for (number, name) in (80..).step_by(2).zip(bridges) {
        let bridge = Node::new(name);
        here.plug(&bridge, number);
        there.plug(&bridge, number + 1);
        middle.push(bridge);
    }
    (here, there, middle)
}

#[test]
fn nodes_without_a_common_network_talk_over_a_bridge() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    // In an order in which each has to be waited for.
    start_all(&mut [&mut there, &mut here, &mut bridges[0]]);
    let forth = Traffic::between(&here, &there);
    forth.goes_on(500);
    assert_eq!(forth.end().1, BTreeMap::new());
    let back = Traffic::between(&there, &here);
    back.goes_on(500);
    assert_eq!(back.end().1, BTreeMap::new());
}

/// Whatever else listens on a node is not reached over a bridge.
#[test]
fn a_bridge_carries_to_contexts_and_directories_alone() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    start_all(&mut [&mut there, &mut here, &mut bridges[0]]);
    let (near, far) = (Ipv4Addr::new(10, 80, 0, 2), Ipv4Addr::new(10, 81, 0, 1));
    let stranger = there.space.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    let stranger = stranger.local_addr().unwrap().port();
    let held = there.open("one");
    let resource = held.id();
    let asks = here.space.run(|| Context::open(Config::default()).unwrap());
    let bridge = asks.find(bridge::query()).one_of_any_within(LONG).unwrap();
    let known = bridge::known(&asks.find(bridge::query()).all().unwrap());
    let at = asks.locate(resource).unwrap().unwrap().addresses[0].port();
    let call = |port: u16, whom| {
        let hops = vec![(near, known[0].port).into(), (far, port).into()];
        let called = here.space.run(move || bridge::call(&Way { hops }, whom).map(drop));
        called.map_err(|error| error.to_string())
    };
    let (it, another) = (Whom::Context(resource.context), Whom::Context(bridge.context));
    let unknown = Err(Refusal::Unknown.to_string());
    assert_eq!(call(at, it), Ok(()));
    assert_eq!(call(PORT, Whom::Directory), Ok(()));
    for (port, whom) in
        [(stranger, it), (stranger, Whom::Directory), (at, another), (at, Whom::Directory)]
    {
        assert_eq!(call(port, whom), unknown, "{port} as {whom:?}");
    }
}

#[test]
fn messages_pass_more_than_one_bridge() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut first, mut second, mut there) =
        (Node::new("here"), Node::new("first"), Node::new("second"), Node::new("there"));
    here.plug(&first, 80);
    second.plug(&first, 81);
    there.plug(&second, 82);
    start_all(&mut [&mut here, &mut first, &mut second, &mut there]);
    let traffic = Traffic::between(&here, &there);
    traffic.goes_on(300);
    assert_eq!(traffic.end().1, BTreeMap::new());
}

/// One of two bridges is killed, comes back, then the other one is: nothing is lost, nothing comes
/// twice, and nobody has to be told anything.
#[test]
fn a_killed_bridge_loses_nothing_while_there_is_another() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["left", "right"]);
    let [left, right] = &mut bridges[..] else { panic!("two bridges") };
    start_all(&mut [left, right, &mut here, &mut there]);
    let traffic = Traffic::between(&here, &there);
    for (killed, other) in [(0, 1), (1, 0)] {
        traffic.goes_on(300);
        bridges[killed].kill();
        traffic.goes_on(300);
        bridges[killed].start();
        // Until its connections are made again.
        let interface = ["net80", "net82"][killed];
        let before = here.sent_by(interface);
        wait_for(|| here.sent_by(interface) > before + 1_000_000);
        assert!(bridges[other].is_there());
    }
    assert_eq!(traffic.end().1, BTreeMap::new());
}

/// The only bridge is killed, and another one is there a moment later: what was on the way goes by
/// that one.
#[test]
fn what_a_killed_bridge_had_goes_by_the_next_one() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["left", "right"]);
    start_all(&mut [&mut bridges[0], &mut here, &mut there]);
    let traffic = Traffic::between(&here, &there);
    traffic.goes_on(300);
    bridges[0].kill();
    bridges[1].start();
    traffic.goes_on(300);
    // Whether it was there in time depends on how busy the machine is: if not, all that is missing
    // was told.
    traffic.end();
}

/// The only bridge is killed and none takes its place: every message has arrived or is told.
#[test]
fn where_no_way_is_left_senders_are_told() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    start_all(&mut [&mut bridges[0], &mut here, &mut there]);
    let traffic = Traffic::between(&here, &there);
    traffic.goes_on(300);
    bridges[0].kill();
    let before = traffic.taken.load(SeqCst);
    // Longer than a stream waits for a way.
    thread::park_timeout(Duration::from_secs(12));
    bridges[0].start();
    wait_for(|| traffic.taken.load(SeqCst) > before + 100);
    let (_, told) = traffic.end();
    assert!(!told.is_empty(), "what was on the way, or what could not be sent");
}

/// Whoever sends to a peer that has ended is told, over a bridge as well.
#[test]
fn a_peer_that_ends_behind_a_bridge_is_told() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    start_all(&mut [&mut bridges[0], &mut here, &mut there]);
    let (one, other) = (here.open("one"), there.open("other"));
    let to = other.id();
    let sent = here.space.run(move || {
        one.send(to, Tag(1), b"unread").unwrap();
        one
    });
    there.space.run(move || drop(other));
    let told = here.space.run(move || {
        // Until it is said, more goes the same way.
        let start = Instant::now();
        loop {
            match sent.send_within(to, Tag(2), b"again", Duration::from_secs(1)) {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(start.elapsed() < LONG),
            }
            if let Err(RecvError::Undelivered(lost)) =
                sent.recv_within(Match::any(), Duration::from_millis(50))
            {
                break lost.to_string();
            }
        }
    });
    assert!(!told.is_empty());
}

/// Two cables between two nodes: both are used, one that goes down loses nothing, and one that comes
/// back is used again.
#[test]
fn two_networks_are_used_together_and_either_alone() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug(&there, 90);
    here.plug(&there, 91);
    start_all(&mut [&mut here, &mut there]);
    are_used_together_and_either_alone(&here, &there, ["net90", "net91"]);
}

/// Of two cables a program uses the one that it is told, whoever calls.
#[test]
fn a_program_keeps_to_the_networks_that_it_is_told() {
    const MESSAGES: u64 = 20;
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug(&there, 92);
    here.plug(&there, 93);
    start_all(&mut [&mut here, &mut there]);
    let mut config = Config::default();
    config.networks = vec!["10.93.0.0/24".parse().unwrap()];
    // How much goes over either, when `sender` of a node sends to one of the other.
    let sends = |(from, sender): (&Node, Resource), (to, receiver): (&Node, Resource)| {
        let before = ["net92", "net93"].map(|interface| from.sent_by(interface));
        let peer = receiver.id();
        let send = move || {
            // Lent: what is given is carried while its sender calls.
            let data = vec![7; 1 << 20];
            let all = (0..MESSAGES).map(|_| sender.send(peer, Tag(1), data.as_slice()));
            all.collect::<Result<Vec<_>, _>>().map(|_| sender)
        };
        let receive = move || {
            let all = (0..MESSAGES).map(|_| receiver.recv_within(Match::any(), LONG));
            all.collect::<Result<Vec<_>, _>>().map(|_| receiver)
        };
        // Threads of their own, in the namespace of whoever makes them.
        let receiving = to.space.run(move || thread::spawn(receive));
        let sending = from.space.run(move || thread::spawn(send));
        let ends = (sending.join().unwrap().unwrap(), receiving.join().unwrap().unwrap());
        let [left, used] = ["net92", "net93"].map(|interface| from.sent_by(interface));
        ([left - before[0], used - before[1]], ends)
    };
    let keeps = here.open_with("keeps", config);
    let ([left, used], (keeps, _)) = sends((&here, keeps), (&there, there.open("is called")));
    assert!(left < 1 << 20 && used > MESSAGES << 20, "{left} and {used} bytes");
    let ([left, used], _) = sends((&there, there.open("calls")), (&here, keeps));
    assert!(left < 1 << 20 && used > MESSAGES << 20, "{left} and {used} bytes");
    let (both, _) = sends((&here, here.open("usual")), (&there, there.open("is called by it")));
    assert!(both.iter().all(|sent| *sent > 1 << 20), "{both:?} bytes");
}

/// The same where both lead to a bridge alone: a call over one of them says nothing of how much it carries.
#[test]
fn two_networks_to_one_bridge_are_used_together_and_either_alone() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    here.plug(&bridges[0], 90);
    start_all(&mut [&mut here, &mut there, &mut bridges[0]]);
    are_used_together_and_either_alone(&here, &there, ["net80", "net90"]);
}

fn are_used_together_and_either_alone(here: &Node, there: &Node, [one, other]: [&'static str; 2]) {
    let traffic = Traffic::between(here, there);
    let is_used = |interface| {
        let before = here.sent_by(interface);
        wait_for(|| here.sent_by(interface) > before + 5_000_000);
    };
    is_used(one);
    is_used(other);
    for interface in [one, other] {
        here.ip(format!("link set {interface} down"));
        traffic.goes_on(500);
        here.ip(format!("link set {interface} up"));
        is_used(interface);
    }
    assert_eq!(traffic.end().1, BTreeMap::new());
}

/// Two nodes with one network, which goes down without anybody telling: the kernel would go on with what is on its way
/// for a quarter of an hour, and its sender is told within seconds.
#[test]
fn a_node_that_is_gone_is_noticed_although_something_is_on_its_way() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug(&there, 95);
    start_all(&mut [&mut here, &mut there]);
    tells_what_is_lost(&here, &there, "link set net95 down");
}

/// The same behind a bridge, whose kernel is the only one that can find it out: that of the sender has everything
/// confirmed by the bridge.
#[test]
fn a_node_behind_a_bridge_that_is_gone_is_noticed_although_something_is_on_its_way() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there, mut bridges) = bridged(&["middle"]);
    start_all(&mut [&mut bridges[0], &mut here, &mut there]);
    tells_what_is_lost(&here, &there, "link set net81 down");
}

/// Sends what does not arrive, as `down` takes `there` off its only network, and waits until this is told.
fn tells_what_is_lost(here: &Node, there: &Node, down: &'static str) {
    let (one, other) = (here.open("one"), there.open("other"));
    let to = other.id();
    let one = here.space.run(move || {
        one.send(to, Tag(1), b"hello").unwrap();
        one
    });
    let _other = there.space.run(move || {
        other.recv(Match::any()).unwrap();
        other
    });
    there.ip(down);
    // That the first was taken may not have come back in time; it is told, too, then.
    let told = here.space.run(move || {
        one.send(to, Tag(2), b"lost").unwrap();
        let next = || match one.recv_within(Match::any(), LONG) {
            Err(RecvError::Undelivered(lost)) => (lost.tag, lost.reason),
            other => panic!("{other:?}"),
        };
        let first = next();
        if first.0 == Tag(1) { next() } else { first }
    });
    assert_eq!(told, (Tag(2), Reason::Unconfirmed));
}
