//! Messages arrive whole, in order, and at whom they were sent to, or their senders are told.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, WAYS, Way, told, until};
use keeptime_fabric::directory::client::Client;
use keeptime_fabric::flow::{AHEAD_MOST, WINDOW, WINDOW_CARRIED, charge};
use keeptime_fabric::frame::{Carrier, Greeting};
use keeptime_fabric::id::Place;
use keeptime_fabric::{
    BitsPerSecond, Buffer, Carriers, Context, ContextId, Match, Message, Reason, RecvError,
    Resource, ResourceId, SendError, Tag, Wait, attrs,
};
use nix::sys::socket::{Backlog, listen};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const EAGER: usize = 64 << 10;

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ seed) as u8).collect()
}

fn pair(node: &Node, way: Way) -> ((Context, Resource), (Context, Resource)) {
    let one = || {
        let context = node.context(way);
        let resource = context.register(attrs! { "test" => "pair" }).unwrap();
        (context, resource)
    };
    (one(), one())
}

/// However long somebody is ready to wait: longer than any clock counts, too.
#[test]
fn any_time_can_be_waited_for() {
    let node = Node::start("n1", &[]);
    let context = node.context(Way::Memory(Wait::Block));
    let own = context.register(attrs! { "test" => "patient" }).unwrap();
    let query = attrs! { "test" => "patient" };
    let found = context.find(query.clone()).one_of_any_within(Duration::MAX).unwrap();
    own.send_within(found, Tag(1), b"soon", Duration::MAX).unwrap();
    let message = own.recv_within(Match::tag(1), Duration::MAX).unwrap();
    assert_eq!(message.from, own.id());
    let (_, watcher) = context.find(query).watch().unwrap();
    drop(own);
    assert!(watcher.next_within(Duration::MAX).is_some());
    assert_eq!(context.close(Duration::MAX), Ok(()));
}

/// Lengths around every limit, lent and given, over every transport and way of waiting.
#[test]
fn messages_arrive_whole_and_in_order() {
    let node = Node::start("n1", &[]);
    let lengths =
        [0, 1, 8, 16, 17, 63, 4096, 8192, EAGER - 1, EAGER, EAGER + 1, 300_000, 3_000_000];
    for &way in WAYS {
        let ((_here, sender), (_there, receiver)) = pair(&node, way);
        let to = receiver.id();
        thread::scope(|scope| {
            scope.spawn(|| {
                for (number, length) in lengths.into_iter().cycle().take(60).enumerate() {
                    let data = bytes(length, number);
                    let tag = Tag(number as u64);
                    let sent = if number % 2 == 0 {
                        sender.send(to, tag, &data)
                    } else {
                        sender.send(to, tag, data)
                    };
                    sent.unwrap();
                }
                // The sender stays until all is received, as a program would.
                assert_eq!(sender.recv(Match::any()).unwrap().data, b"done");
            });
            for (number, length) in lengths.into_iter().cycle().take(60).enumerate() {
                let message = receiver.recv(Match::any()).unwrap();
                assert_eq!(message.tag, Tag(number as u64), "{way:?}");
                assert_eq!(message.from, sender.id());
                assert!(message.data == bytes(length, number), "{length} bytes, {way:?}");
            }
            receiver.send(sender.id(), Tag(0), b"done").unwrap();
        });
    }
}

#[test]
fn a_given_buffer_is_not_copied_within_a_process() {
    let node = Node::start("n1", &[]);
    let context = node.context(Way::Memory(Wait::Block));
    let one = context.register(attrs! {}).unwrap();
    let other = context.register(attrs! {}).unwrap();
    let data = bytes(1_000_000, 1);
    let place = data.as_ptr();
    one.send(other.id(), Tag(1), data).unwrap();
    let Message { from, data, .. } = other.recv(Match::any()).unwrap();
    assert_eq!((from, data.as_ptr()), (one.id(), place));
}

/// Neither is memory of another kind; its owner is dropped with the message, or when the send fails.
#[test]
fn memory_with_an_owner_is_not_copied_within_a_process() {
    let node = Node::start("n1", &[]);
    let context = node.context(Way::Memory(Wait::Block));
    let one = context.register(attrs! {}).unwrap();
    let other = context.register(attrs! {}).unwrap();
    let owner: Arc<[u8]> = bytes(1_000_000, 1).into();
    let uses = || Arc::strong_count(&owner);
    one.send(other.id(), Tag(1), Buffer::from_owner(owner.clone())).unwrap();
    let message = other.recv(Match::any()).unwrap();
    assert_eq!((message.data.as_ptr(), uses()), (owner.as_ptr(), 2));
    drop(message);
    assert_eq!(uses(), 1);

    // Nobody takes it.
    let to = other.id();
    one.send(to, Tag(2), Buffer::from_owner(owner.clone())).unwrap();
    assert_eq!(uses(), 2);
    drop(other);
    assert_eq!(uses(), 1);
    let gone = one.send(to, Tag(3), Buffer::from_owner(owner.clone()));
    assert_eq!((gone, uses()), (Err(SendError::Gone(to)), 1));
}

#[test]
fn receivers_choose_by_tag_and_sender() {
    let node = Node::start("n1", &[]);
    let ((_here, one), (_there, other)) = pair(&node, Way::Memory(Wait::Block));
    for tag in [3, 1, 2, 1] {
        one.send(other.id(), Tag(tag), &tag.to_le_bytes()).unwrap();
    }
    let third = one.id();
    assert_eq!(other.recv(Match::tag(1).from(third)).unwrap().tag, Tag(1));
    assert_eq!(other.recv(Match::tag(2)).unwrap().tag, Tag(2));
    assert_eq!(other.recv(Match::any()).unwrap().tag, Tag(3));
    assert_eq!(other.try_recv(Match::any().from(other.id())).unwrap(), None);
    assert_eq!(other.recv_within(Match::any(), LONG).unwrap().tag, Tag(1));
    let none = other.recv_within(Match::any(), Duration::from_millis(20));
    assert_eq!(none, Err(RecvError::TimedOut));
}

/// A resource goes while messages for it are on the way and in its inbox, and its slot is used
/// again.
#[test]
fn stale_identifiers_give_an_error_and_never_another_receiver() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let ((here, sender), (there, first)) = pair(&node, way);
        let old = first.id();
        sender.send(old, Tag(1), b"unread").unwrap();
        sender.send(old, Tag(2), bytes(EAGER * 2, 0)).unwrap();
        // Both have arrived when this has.
        let witness = there.register(attrs! {}).unwrap();
        sender.send(witness.id(), Tag(3), b"").unwrap();
        witness.recv(Match::tag(3)).unwrap();
        drop(first);
        let second = there.register(attrs! { "test" => "again" }).unwrap();
        assert_eq!(second.id().place.slot, old.place.slot, "the slot is used again");
        sender.send(old, Tag(4), b"late").unwrap();
        for tag in [1, 2, 4] {
            // Answers to what was asked of the other context come when it works.
            let told = thread::scope(|scope| {
                scope.spawn(|| second.recv_within(Match::tag(99), LONG).unwrap());
                let told = sender.recv_within(Match::any(), LONG);
                sender.send(second.id(), Tag(99), b"enough").unwrap();
                told
            });
            let Err(RecvError::Undelivered(lost)) = told else { panic!("{told:?}, {way:?}") };
            assert_eq!((lost.to, lost.tag, lost.reason), (old, Tag(tag), Reason::Gone), "{way:?}");
        }
        assert_eq!(second.try_recv(Match::any()).unwrap(), None);
        // Within a context it is told at once.
        let gone = here.register(attrs! {}).unwrap().id();
        assert_eq!(sender.send(gone, Tag(5), b""), Err(SendError::Gone(gone)));
    }
}

/// One receiver does not take anything: its sender is held up within a window, others on the same
/// link are not.
/// Long messages are fetched before they are wanted, so many bytes at most; who goes meanwhile has not got them, and
/// their sender is told of each.
#[test]
fn what_was_fetched_ahead_for_one_that_goes_is_told() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let ((_here, sender), (there, receiver)) = pair(&node, way);
        let old = receiver.id();
        let count = 2 * AHEAD_MOST / (1 << 20);
        (0..count)
            .for_each(|tag| sender.send(old, Tag(tag), bytes(1 << 20, tag as usize)).unwrap());
        let witness = there.register(attrs! {}).unwrap();
        thread::scope(|scope| {
            // Long ones go out while their sender waits for something.
            let sends = scope.spawn(|| {
                let told = (1..count).map(|_| match sender.recv_within(Match::any(), LONG) {
                    Err(RecvError::Undelivered(lost)) => (lost.to, lost.reason, lost.tag.0),
                    other => panic!("{other:?}, {way:?}"),
                });
                let mut told: Vec<_> = told.collect();
                told.sort_unstable_by_key(|(_, _, tag)| *tag);
                let each = (1..count).map(|tag| (old, Reason::Gone, tag));
                assert!(told.into_iter().eq(each), "{way:?}");
                sender.send(witness.id(), Tag(99), bytes(1 << 20, 99)).unwrap();
                assert_eq!(sender.recv(Match::any()).unwrap().data, b"done");
            });
            let first = receiver.recv_within(Match::any(), LONG).unwrap();
            assert!(first.data == bytes(1 << 20, 0), "{way:?}");
            drop(receiver);
            // The link is whole, and there is room for more.
            let last = witness.recv_within(Match::tag(99), LONG).unwrap();
            assert!(last.data == bytes(1 << 20, 99), "{way:?}");
            witness.send(last.from, Tag(0), b"done").unwrap();
            sends.join().unwrap();
        });
    }
}

#[test]
fn a_slow_receiver_holds_up_only_its_own_senders() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((_here, sender), (there, slow)) = pair(&node, way);
        let fast = there.register(attrs! {}).unwrap();
        let data = bytes(8192, 0);
        let accepted =
            (0..1000).take_while(|_| sender.try_send(slow.id(), Tag(0), &data).is_ok()).count();
        let window = if matches!(way, Way::Memory(_)) { WINDOW } else { WINDOW_CARRIED };
        let most = (window / u64::from(charge(data.len()))) as usize;
        assert!((20..=most).contains(&accepted), "{accepted} messages of 8 KiB, {way:?}");
        let late = sender.send_within(slow.id(), Tag(0), &data, Duration::from_millis(20));
        assert_eq!(late, Err(SendError::TimedOut));
        for _ in 0..100 {
            sender.send(fast.id(), Tag(1), &data).unwrap();
            fast.recv(Match::tag(1)).unwrap();
        }
        for _ in 0..accepted {
            slow.recv(Match::any()).unwrap();
        }
        sender.send_within(slow.id(), Tag(2), &data, LONG).unwrap();
        assert_eq!(slow.recv(Match::any()).unwrap().tag, Tag(2));
    }
}

/// Both send more than any window holds before either receives: given buffers wait in their
/// context.
#[test]
fn two_that_send_to_each_other_first_do_not_lock_up() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let ((_here, one), (_there, other)) = pair(&node, way);
        let (a, b) = (one.id(), other.id());
        let exchange = |own: &Resource, peer| {
            for number in 0..5 {
                own.send(peer, Tag(number), bytes(2_000_000, number as usize)).unwrap();
            }
            for number in 0..5 {
                let data = own.recv(Match::tag(number)).unwrap().data;
                assert!(data == bytes(2_000_000, number as usize), "{way:?}");
            }
        };
        // Each stays until the other has everything.
        let done = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                exchange(&one, b);
                one.send(b, Tag(9), b"").unwrap();
                one.recv(Match::tag(9)).unwrap();
                done.wait();
            });
            exchange(&other, a);
            other.send(a, Tag(9), b"").unwrap();
            other.recv(Match::tag(9)).unwrap();
            done.wait();
        });
    }
}

#[test]
fn many_threads_on_one_link_each_get_their_answers() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let (here, there) = (node.context(way), node.context(way));
        let pairs: Vec<_> = (0..8)
            .map(|_| (here.register(attrs! {}).unwrap(), there.register(attrs! {}).unwrap()))
            .collect();
        // Spinning threads that are more than cores take turns of a whole time slice.
        let rounds =
            if matches!(way, Way::Memory(Wait::Spin) | Way::Tcp(Wait::Spin)) { 20 } else { 300 };
        thread::scope(|scope| {
            for (number, (asks, answers)) in pairs.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..rounds {
                        let question = (number * 1000 + round).to_le_bytes();
                        asks.send(answers.id(), Tag(1), &question).unwrap();
                        assert_eq!(asks.recv(Match::tag(2)).unwrap().data, question, "{way:?}");
                    }
                });
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let message = answers.recv(Match::tag(1)).unwrap();
                        answers.send(message.from, Tag(2), message.data).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn several_threads_share_one_resource() {
    let node = Node::start("n1", &[]);
    let ((_here, sender), (_there, shared)) = pair(&node, Way::Tcp(Wait::Block));
    thread::scope(|scope| {
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut numbers = Vec::new();
                    loop {
                        let message = shared.recv(Match::any()).unwrap();
                        if message.tag == Tag(1) {
                            return numbers;
                        }
                        numbers.push(u32::from_le_bytes(message.data[..].try_into().unwrap()));
                    }
                })
            })
            .collect();
        for number in 0..1000_u32 {
            sender.send(shared.id(), Tag(0), &number.to_le_bytes()).unwrap();
        }
        for _ in 0..4 {
            sender.send(shared.id(), Tag(1), b"").unwrap();
        }
        let mut all: Vec<u32> = receivers.into_iter().flat_map(|r| r.join().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>(), "each message goes to one of them");
    });
}

#[test]
fn too_long_a_message_is_refused_at_either_end() {
    let node = Node::start("n1", &[]);
    let mut small = node.settings(Way::Tcp(Wait::Block));
    small.message_most = 1_000_000;
    let (here, there) = (node.context(Way::Tcp(Wait::Block)), Context::open(small).unwrap());
    let (one, other) = (here.register(attrs! {}).unwrap(), there.register(attrs! {}).unwrap());
    let data = bytes(1_000_001, 0);
    let refused = other.send(one.id(), Tag(0), &data);
    assert_eq!(refused, Err(SendError::TooLong { bytes: 1_000_001, most: 1_000_000 }));
    thread::scope(|scope| {
        scope.spawn(|| other.recv_within(Match::any(), LONG).unwrap());
        assert_eq!(one.send(other.id(), Tag(0), &data), Err(SendError::Rejected(Reason::TooLong)));
        one.send(other.id(), Tag(0), b"enough").unwrap();
    });
}

/// Noise on the port of a context, and a caller that means another context: nobody notices.
#[test]
fn strangers_are_not_let_in() {
    let node = Node::start("n1", &[]);
    let ((here, one), (_there, other)) = pair(&node, Way::Tcp(Wait::Block));
    let records = here.find(attrs! { "test" => "pair" }).all().unwrap();
    for record in &records {
        for address in &record.home.addresses {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            stream.write_all(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n").unwrap();
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            let (from, to) = (one.id().context, ContextId::new(1));
            let (carrier, is_rail) = (Carrier::Itself, false);
            stream
                .write_all(
                    &Greeting { from, to, carrier, attempt: 1, is_rail, pass: None }.encode(),
                )
                .unwrap();
        }
    }
    one.send(other.id(), Tag(1), b"all is well").unwrap();
    assert_eq!(other.recv(Match::any()).unwrap().data, b"all is well");
    other.send(one.id(), Tag(1), b"here too").unwrap();
    assert_eq!(one.recv(Match::any()).unwrap().data, b"here too");
}

#[test]
fn a_thread_of_the_context_takes_what_arrives_while_nobody_waits() {
    let node = Node::start("n1", &[]);
    for way in [Way::Tcp(Wait::Block), Way::Memory(Wait::Block)] {
        let mut settings = node.settings(way);
        settings.progress_thread = true;
        let (here, there) = (Context::open(settings).unwrap(), node.context(way));
        let (giver, taker) =
            (here.register(attrs! {}).unwrap(), there.register(attrs! {}).unwrap());
        // Longer than the kernel and the ring hold: somebody has to go on sending.
        giver.send(taker.id(), Tag(1), bytes(30_000_000, 7)).unwrap();
        assert!(taker.recv_within(Match::any(), LONG).unwrap().data == bytes(30_000_000, 7));
    }
}

/// Two flows over one connection, one with a reserved rate: it takes as long as that rate says, the
/// other does not.
#[test]
fn a_reserved_rate_is_a_limit_for_its_flow_alone() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((_here, sender), (there, paced)) = pair(&node, way);
        let free = there.register(attrs! {}).unwrap();
        sender.reserve(paced.id(), BitsPerSecond::from_mbit(40)).unwrap();
        let data = bytes(10_000, 0);
        let time = |to: &Resource| {
            let start = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| (0..50).for_each(|_| drop(to.recv(Match::any()).unwrap())));
                (0..50).for_each(|_| sender.send(to.id(), Tag(0), &data).unwrap());
            });
            start.elapsed()
        };
        // 50 x 10,000 bytes at 5 MB/s are 100 ms; the first goes at once, and 2 ms may be made up
        // for.
        let held_back = time(&paced);
        assert!(held_back >= Duration::from_millis(95), "{held_back:?}, {way:?}");
        // Often enough that a busy machine does not hold up all of them.
        let is_free = |to: &Resource| (0..50).any(|_| time(to) < held_back / 2);
        assert!(is_free(&free), "{way:?}");
        let refused = (0..10).find_map(|_| sender.try_send(paced.id(), Tag(0), &data).err());
        assert_eq!(refused, Some(SendError::WouldBlock), "ten messages at once are too many");
        sender.release(paced.id());
        assert!(is_free(&paced), "{way:?}");
    }
}

/// Long messages, lent and given, over a flow with a reserved rate: none arrives much before its time. The first of its
/// sixteen or more pieces goes at once; a busy machine only makes it later.
#[test]
fn a_long_message_takes_as_long_as_its_reserved_rate_says() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((_here, sender), (_there, receiver)) = pair(&node, way);
        let (from, to) = (sender.id(), receiver.id());
        sender.reserve(to, BitsPerSecond::from_mbit(100)).unwrap();
        let data = bytes(4 << 20, 0);
        // 4 MiB at 12.5 MB/s.
        let due = Duration::from_millis(335);
        for is_given in [false, true] {
            let start = Instant::now();
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(receiver.recv_within(Match::any(), LONG).unwrap().data == data);
                    receiver.send(from, Tag(1), b"done").unwrap();
                });
                let sent = if is_given {
                    sender.send(to, Tag(0), data.clone())
                } else {
                    sender.send(to, Tag(0), &data)
                };
                sent.unwrap();
                // What is given is sent while its sender waits for something.
                assert_eq!(sender.recv_within(Match::any(), LONG).unwrap().data, b"done");
            });
            let took = start.elapsed();
            assert!(took >= due.mul_f64(0.8), "{took:?}, given: {is_given}, {way:?}");
        }
    }
}

/// A long message that is held back by its reserved rate holds back no other of the same receiver: the first would take
/// longer than the test waits.
#[test]
fn a_long_message_that_is_held_back_lets_others_pass() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((here, slow), (_there, receiver)) = pair(&node, way);
        let (free, to) = (here.register(attrs! {}).unwrap(), receiver.id());
        slow.reserve(to, BitsPerSecond::new(8_000)).unwrap();
        slow.send(to, Tag(1), bytes(1_000_000, 1)).unwrap();
        free.send(to, Tag(2), bytes(1_000_000, 2)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let first = receiver.recv(Match::tag(1)).unwrap();
                assert!(first.data == bytes(1_000_000, 1), "{way:?}");
                receiver.send(free.id(), Tag(3), b"both").unwrap();
            });
            scope.spawn(|| {
                let second = receiver.recv_within(Match::tag(2), LONG).unwrap();
                assert!(second.data == bytes(1_000_000, 2), "{way:?}");
                receiver.send(free.id(), Tag(2), b"one").unwrap();
            });
            let one = free.recv_within(Match::tag(2), LONG);
            // Released, the first goes on at once.
            slow.release(to);
            let both = free.recv_within(Match::tag(3), LONG);
            assert_eq!(one.unwrap().data, b"one");
            assert_eq!(both.unwrap().data, b"both");
        });
    }
}

/// Goal: who does not want to wait is not held up by a long message that comes slowly, loses nothing of it, and gets what
/// others send meanwhile. Method: its reserved rate would have it take minutes, until it is released.
#[test]
fn nobody_waits_longer_than_asked_for_a_long_message() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let ((here, slow), (_there, receiver)) = pair(&node, way);
        let (other, to) = (here.register(attrs! {}).unwrap(), receiver.id());
        slow.reserve(to, BitsPerSecond::new(80_000)).unwrap();
        let data = bytes(2_000_000, 1);
        thread::scope(|scope| {
            scope.spawn(|| slow.send(to, Tag(1), &data).unwrap());
            let start = Instant::now();
            let mut late = Duration::ZERO;
            while start.elapsed() < Duration::from_millis(300) {
                let begun = Instant::now();
                assert_eq!(receiver.try_recv(Match::any()), Ok(None), "{way:?}");
                late = late.max(begun.elapsed());
            }
            let within = receiver.recv_within(Match::any(), Duration::from_millis(100));
            assert_eq!(within, Err(RecvError::TimedOut), "{way:?}");
            other.send(to, Tag(2), b"meanwhile").unwrap();
            let next = receiver.recv_within(Match::any(), LONG).unwrap();
            assert_eq!((next.from, &next.data[..]), (other.id(), &b"meanwhile"[..]), "{way:?}");
            assert!(start.elapsed() < LONG / 2 && late < LONG / 4, "{late:?}, {way:?}");
            slow.release(to);
            let long = receiver.recv_within(Match::any(), LONG).unwrap();
            assert!(long.tag == Tag(1) && long.data == data, "{way:?}");
        });
    }
}

/// What was sent after a long message does not overtake it while it comes, but for who wants that alone. Nobody works for the
/// sender at first, so that it does not come: but UDP and the libraries, which have threads that do.
#[test]
fn a_long_message_that_comes_stays_the_first_of_its_sender() {
    let node = Node::start("n1", &[]);
    for &way in WAYS.iter().filter(|way| matches!(way, Way::Memory(_) | Way::Tcp(_))) {
        let ((_here, sender), (_there, receiver)) = pair(&node, way);
        let (to, from) = (receiver.id(), sender.id());
        sender.send(to, Tag(1), bytes(1_000_000, 1)).unwrap();
        for tag in 2..5 {
            sender.send(to, Tag(tag), &[tag as u8]).unwrap();
        }
        let tag_of = |message: Message| message.tag.0;
        assert_eq!(tag_of(receiver.recv(Match::tag(3)).unwrap()), 3, "all are there");
        (0..100).for_each(|_| assert_eq!(receiver.try_recv(Match::any()), Ok(None), "{way:?}"));
        let time = Duration::from_millis(20);
        assert_eq!(receiver.recv_within(Match::any(), time), Err(RecvError::TimedOut), "{way:?}");
        assert_eq!(receiver.try_recv(Match::tag(4)).unwrap().map(tag_of), Some(4), "{way:?}");
        thread::scope(|scope| {
            scope.spawn(|| sender.recv_within(Match::any(), LONG).unwrap());
            let first = receiver.recv_within(Match::any().from(from), LONG).unwrap();
            assert!(first.tag == Tag(1) && first.data == bytes(1_000_000, 1), "{way:?}");
            receiver.send(from, Tag(0), b"enough").unwrap();
        });
        assert_eq!(receiver.try_recv(Match::any()).unwrap().map(tag_of), Some(2), "{way:?}");
    }
}

/// Goal: what came behind a long message is not held up by one that never comes. Method: its context ends before anything of
/// it was sent, and the receiver is not the one who finds that out.
#[test]
fn a_long_message_that_never_comes_holds_up_nothing() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let mut settings = node.settings(way);
        settings.close_time = Duration::ZERO;
        let (here, there) = (Context::open(settings).unwrap(), node.context(way));
        let [sender, receiver, bystander] =
            [&here, &there, &there].map(|context| context.register(attrs! {}).unwrap());
        let to = receiver.id();
        sender.send(to, Tag(1), bytes(1_000_000, 1)).unwrap();
        sender.send(to, Tag(2), b"behind").unwrap();
        sender.send(to, Tag(3), b"both are there").unwrap();
        receiver.recv(Match::tag(3)).unwrap();
        thread::scope(|scope| {
            // It sleeps first, and hears of the end.
            scope.spawn(|| bystander.recv_within(Match::tag(4), LONG).unwrap());
            thread::sleep(Duration::from_millis(20));
            let waits = scope.spawn(|| receiver.recv_within(Match::any(), LONG));
            thread::sleep(Duration::from_millis(50));
            drop((sender, here));
            let ended = Instant::now();
            let taken = waits.join().unwrap();
            receiver.send(bystander.id(), Tag(4), b"enough").unwrap();
            assert_eq!(taken.unwrap().data, b"behind", "{way:?}");
            assert!(ended.elapsed() < LONG / 2, "it was found when time was up, {way:?}");
        });
    }
}

/// 50 kB at 8 kbit/s take 50 s, longer than the next message waits for its turn: it only gets one if it hears of what
/// is reserved instead.
#[test]
fn who_waits_for_a_turn_hears_that_the_reservation_has_changed() {
    let node = Node::start("n1", &[]);
    let ((_here, sender), (_there, receiver)) = pair(&node, Way::Memory(Wait::Block));
    let to = receiver.id();
    let changes: [fn(&Resource, ResourceId); 2] = [
        |sender, to| sender.release(to),
        |sender, to| sender.reserve(to, BitsPerSecond::from_mbit(100)).unwrap(),
    ];
    for change in changes {
        sender.reserve(to, BitsPerSecond::new(8_000)).unwrap();
        let lent = bytes(50_000, 0);
        sender.send(to, Tag(0), &lent).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| sender.send_within(to, Tag(1), b"next", LONG));
            // Until it waits, most likely: if it does not yet, it need not hear.
            thread::park_timeout(Duration::from_millis(50));
            change(&sender, to);
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        for tag in [0, 1] {
            assert_eq!(receiver.recv(Match::any()).unwrap().tag, Tag(tag));
        }
    }
}

/// A context of `node` at whose addresses, so many, nobody is taken: it is called for two seconds at each.
fn silent(
    node: &Node,
    listener: &TcpListener,
    addresses: u8,
) -> (Client, ResourceId, Vec<TcpStream>) {
    let port = listener.local_addr().unwrap().port();
    let at = |host: u8| SocketAddr::from(([127, 0, 0, host], port));
    // The kernel takes one or two for it, and nobody after these. One that comes late on a busy machine says nothing.
    listen(listener, Backlog::new(0_i32).unwrap()).unwrap();
    let (mut early, mut in_vain) = (Vec::new(), 0);
    while in_vain < 3 {
        match TcpStream::connect_timeout(&at(1), Duration::from_millis(300)) {
            Ok(stream) => {
                early.push(stream);
                in_vain = 0;
            }
            Err(_) => in_vain += 1,
        }
    }
    let (id, addresses) = (ContextId::new(port.into()), (1..=addresses).map(at).collect());
    let info = told(id, addresses, Carriers::default());
    let client = Client::connect(&node.config.name, info).unwrap();
    let place = Place { slot: 0, generation: 0 };
    (client, ResourceId { context: id, place }, early)
}

/// Whoever sends to a context that does not answer waits no longer than he wants, and nobody else does. On a busy machine
/// its call may be over before it was looked: then once more, with others.
#[test]
fn a_context_that_does_not_answer_holds_up_nobody_else() {
    let node = Node::start("n1", &[]);
    until(|| {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let (_client, to, _early) = silent(&node, &listener, 2);
        let ((_here, sender), (_there, one)) = pair(&node, Way::Tcp(Wait::Block));
        let (_far, other) = pair(&node, Way::Tcp(Wait::Block)).0;
        let late = sender.send_within(to, Tag(1), b"nobody", Duration::from_millis(100));
        let (is_called, called) = thread::scope(|scope| {
            let calls = scope.spawn(|| sender.send(to, Tag(2), b"nobody"));
            sender.send(one.id(), Tag(3), b"somebody").unwrap();
            sender.send_within(other.id(), Tag(4), b"somebody", LONG).unwrap();
            (!calls.is_finished(), calls.join().unwrap())
        });
        assert_eq!(one.recv(Match::any()).unwrap().tag, Tag(3));
        assert_eq!(other.recv(Match::any()).unwrap().tag, Tag(4));
        let is_told = matches!(called, Err(SendError::Unreachable { .. }));
        (late == Err(SendError::TimedOut) && is_called && is_told).then_some(())
    });
}

/// It would take half a minute.
#[test]
fn closing_waits_for_no_connection_that_is_made() {
    let node = Node::start("n1", &[]);
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let (_client, to, _early) = silent(&node, &listener, 250);
    let context = node.context(Way::Tcp(Wait::Block));
    let sender = context.register(attrs! {}).unwrap();
    let late = sender.send_within(to, Tag(1), b"nobody", Duration::from_millis(100));
    assert_eq!(late, Err(SendError::TimedOut));
    let begun = Instant::now();
    drop(sender);
    assert_eq!(context.close(LONG), Ok(()));
    assert!(begun.elapsed() < LONG / 3, "{:?}", begun.elapsed());
}

/// The name of a directory that is `node`'s, and takes so long to hear and to answer.
fn slow_directory(node: &Node, delay: Duration) -> String {
    let name = format!("{}-slow", node.config.name);
    let at = |name: &str| UnixAddress::from_abstract_name(format!("{name}/directory")).unwrap();
    let (listener, directory) =
        (UnixListener::bind_addr(&at(&name)).unwrap(), at(&node.config.name));
    thread::spawn(move || {
        for program in listener.incoming().map_while(Result::ok) {
            let Ok(directory) = UnixStream::connect_addr(&directory) else { continue };
            let back = (directory.try_clone().unwrap(), program.try_clone().unwrap());
            thread::spawn(move || carry(program, directory, delay));
            thread::spawn(move || carry(back.0, back.1, delay));
        }
    });
    name
}

/// Passes on what comes, so much later, and its end.
fn carry(mut from: UnixStream, mut to: UnixStream, delay: Duration) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        thread::park_timeout(delay);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Whoever comes again and again with less time than a connection takes would never have one.
#[test]
fn a_connection_is_made_for_who_has_less_time_than_it_takes() {
    let node = Node::start("n1", &[]);
    let slow = slow_directory(&node, Duration::from_millis(20));
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let mut settings = node.settings(way);
        settings.directory.clone_from(&slow);
        let (here, there) = (Context::open(settings).unwrap(), node.context(way));
        let sender = here.register(attrs! {}).unwrap();
        let receiver = there.register(attrs! {}).unwrap();
        let send = || sender.send_within(receiver.id(), Tag(1), b"", Duration::from_millis(1));
        until(|| send().ok());
        assert_eq!(receiver.recv(Match::any()).unwrap().from, sender.id());
    }
}

#[test]
fn a_rate_of_nothing_is_refused() {
    let node = Node::start("n1", &[]);
    let ((_here, sender), (_there, receiver)) = pair(&node, Way::Memory(Wait::Block));
    let refused = sender.reserve(receiver.id(), BitsPerSecond::ZERO).unwrap_err();
    assert_eq!(refused.field, "rate");
    assert!(refused.to_string().contains("more than 0 bit/s"), "{refused}");
    sender.send_within(receiver.id(), Tag(0), b"free", LONG).unwrap();
}

/// A long message that was given is with its receiver when that has taken it, and not before.
#[test]
fn closing_tells_what_nobody_has_taken() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((here, sender), (_there, receiver)) = pair(&node, way);
        let to = receiver.id();
        sender.send(to, Tag(1), bytes(1_000_000, 1)).unwrap();
        drop(sender);
        let unsent = here.close(Duration::from_millis(50)).unwrap_err();
        assert_eq!((unsent.count, unsent.first), (1, to), "{way:?}");

        let ((here, sender), (_there, receiver)) = pair(&node, way);
        sender.send(receiver.id(), Tag(1), bytes(1_000_000, 1)).unwrap();
        drop(sender);
        thread::scope(|scope| {
            let takes = scope.spawn(|| receiver.recv_within(Match::any(), LONG).unwrap());
            assert_eq!(here.close(LONG), Ok(()), "{way:?}");
            assert!(takes.join().unwrap().data == bytes(1_000_000, 1), "{way:?}");
        });
    }
}

/// The same is told of a context that goes on.
#[test]
fn flushing_waits_until_all_is_taken() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((here, sender), (_there, receiver)) = pair(&node, way);
        let to = receiver.id();
        sender.send(to, Tag(1), bytes(1_000_000, 1)).unwrap();
        let unsent = here.flush(Duration::ZERO).unwrap_err();
        assert_eq!((unsent.count, unsent.first), (1, to), "{way:?}");
        thread::scope(|scope| {
            let takes = scope.spawn(|| receiver.recv_within(Match::any(), LONG).unwrap());
            assert_eq!(here.flush(LONG), Ok(()), "{way:?}");
            assert!(takes.join().unwrap().data == bytes(1_000_000, 1), "{way:?}");
        });
        sender.send(to, Tag(2), b"on").unwrap();
        assert_eq!(receiver.recv_within(Match::any(), LONG).unwrap().data, b"on");
    }
}

/// Given messages that nobody takes are bounded, within a context as well; the one for which there is no room stays with its
/// sender, the same buffer, and is sent when there is.
#[test]
fn a_buffer_that_is_not_sent_is_kept() {
    const LENGTH: usize = 1 << 20;
    let node = Node::start("n1", &[]);
    let ((here, sender), (_there, receiver)) = pair(&node, Way::Memory(Wait::Block));
    for receiver in [here.register(attrs! {}).unwrap(), receiver] {
        let (to, mut sent) = (receiver.id(), 0);
        let mut kept = loop {
            let mut data = Buffer::from(vec![7; LENGTH]);
            match sender.try_send(to, Tag(0), &mut data) {
                Ok(()) => assert!(data.is_empty(), "it is given"),
                Err(SendError::WouldBlock) => break data,
                Err(error) => panic!("{error}"),
            }
            sent += 1;
        };
        assert_eq!(sent, 64);
        let place = kept.as_ptr();
        let time = Duration::ZERO;
        let in_vain = sender.send_within(to, Tag(0), &mut kept, time);
        assert_eq!(in_vain, Err(SendError::TimedOut));
        assert_eq!((kept.as_ptr(), kept.len()), (place, LENGTH));
        thread::scope(|scope| {
            let takes = scope.spawn(|| receiver.recv_within(Match::any(), LONG).unwrap());
            sender.send_within(to, Tag(0), &mut kept, LONG).unwrap();
            assert!(takes.join().unwrap().data == vec![7; LENGTH]);
        });
        assert!(kept.is_empty(), "it is given");
    }
}

/// A message is rejected when the resource that has sent it is gone, and cannot be told: that is told when its context
/// is closed.
#[test]
fn closing_tells_what_no_resource_could_be_told() {
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let ((here, sender), (there, receiver)) = pair(&node, way);
        let witness = there.register(attrs! {}).unwrap();
        let (stays, to) = (here.register(attrs! {}).unwrap(), receiver.id());
        sender.send(to, Tag(1), b"unread").unwrap();
        // The first has arrived when this has; and the answer comes after what is said of it.
        sender.send(witness.id(), Tag(2), b"").unwrap();
        witness.recv(Match::tag(2)).unwrap();
        drop(sender);
        drop(receiver);
        witness.send(stays.id(), Tag(3), b"").unwrap();
        stays.recv(Match::tag(3)).unwrap();
        let unsent = here.close(LONG).unwrap_err();
        assert_eq!((unsent.count, unsent.first), (1, to), "{way:?}");
    }
}

/// What the process is sent that is to answer twice, the second time with that.
const TWICE: Tag = Tag(9);

/// The same of one that is to send a long message after its answer, which takes minutes.
const SLOWLY: Tag = Tag(10);

/// Not a test: the process that [`kill`] kills.
#[test]
fn peer_process() {
    let Ok(name) = std::env::var("FABRIC_TEST_DIRECTORY") else { return };
    let mut config = keeptime_fabric::Config::default();
    config.directory = name;
    config.shared_memory = std::env::var("FABRIC_TEST_MEMORY").is_ok();
    let context = Context::open(config).unwrap();
    let resource = context.register(attrs! { "test" => "peer" }).unwrap();
    println!("peer {}", resource.id());
    let first = resource.recv(Match::any()).unwrap();
    resource.send(first.from, Tag(2), b"seen").unwrap();
    if first.tag == TWICE {
        resource.send(first.from, TWICE, b"seen").unwrap();
    }
    if first.tag == SLOWLY {
        resource.reserve(first.from, BitsPerSecond::new(80_000)).unwrap();
        resource.send(first.from, SLOWLY, &[0; 2_000_000]).unwrap();
    }
    // Takes nothing more, and waits to be killed.
    let _ = resource.recv(Match::tag(77));
}

/// Another process with a resource, over `way`.
fn start_peer(node: &Node, way: Way) -> (Child, ResourceId) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "peer_process", "--nocapture"]);
    command.env("FABRIC_TEST_DIRECTORY", &node.config.name).stdout(Stdio::piped());
    if matches!(way, Way::Memory(_)) {
        command.env("FABRIC_TEST_MEMORY", "1");
    }
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let peer = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("peer ").and_then(|(_, id)| id.parse().ok()));
    (child, peer.unwrap())
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Goal: nobody waits for messages of a process that is gone, and none that it had sent is lost. Method: it is killed while one
/// thread waits for it, and another one has not taken what it has sent.
#[test]
fn who_waits_for_a_killed_peer_is_told() {
    let node = Node::start("n1", &[]);
    for &way in WAYS {
        let context = node.context(way);
        let (own, other) =
            (context.register(attrs! {}).unwrap(), context.register(attrs! {}).unwrap());
        let bystander = context.register(attrs! {}).unwrap();
        let (child, peer) = start_peer(&node, way);
        let wanted = Match::any().from(peer);
        assert_eq!(own.recv_within(wanted, Duration::from_millis(20)), Err(RecvError::TimedOut));
        other.send(peer, TWICE, b"hello").unwrap();
        let gone = Err(RecvError::Gone(peer.context));
        let (told, took) = thread::scope(|scope| {
            // It sleeps first, and hears of the end for the others.
            scope.spawn(|| bystander.recv_within(Match::tag(3), LONG).unwrap());
            thread::sleep(Duration::from_millis(20));
            let waits = scope.spawn(|| (own.recv_within(wanted, LONG), Instant::now()));
            other.recv(Match { tag: Some(TWICE), ..wanted }).unwrap();
            thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "it is there");
            kill(child);
            let killed = Instant::now();
            let (told, when) = waits.join().unwrap();
            own.send(bystander.id(), Tag(3), b"").unwrap();
            (told, when.saturating_duration_since(killed))
        });
        assert_eq!(told, gone, "{way:?}");
        assert!(took < Duration::from_secs(5), "{took:?}, {way:?}");
        assert_eq!(other.recv(Match::tag(2).from(peer)).unwrap().data, b"seen", "{way:?}");
        // It is known now.
        assert_eq!(other.try_recv(wanted), Err(RecvError::Gone(peer.context)), "{way:?}");
        assert_eq!(other.recv(Match::tag(2).from(peer)), gone);
        assert_eq!(other.try_recv(Match::any()), Ok(None), "others are there");
    }
}

/// Of one that is not known yet that is found out; who looks again and again hears of it, too.
#[test]
fn who_waits_for_nobody_is_told() {
    let node = Node::start("n1", &[]);
    let context = node.context(Way::Memory(Wait::Block));
    let own = context.register(attrs! {}).unwrap();
    let [first, second, third] =
        [1, 2, 3].map(|number| ResourceId { context: ContextId::new(number), ..own.id() });
    let told = own.recv_within(Match::any().from(first), LONG);
    assert_eq!(told, Err(RecvError::Gone(first.context)));
    let told = until(|| own.try_recv(Match::tag(1).from(second)).err());
    assert_eq!(told, RecvError::Gone(second.context));
    assert_eq!(own.send(third, Tag(1), b""), Err(SendError::NoContext(third.context)));
    assert_eq!(own.try_recv(Match::any().from(third)), Err(RecvError::Gone(third.context)));
    // The own context is there as long as its resources are.
    let own_place = context.register(attrs! {}).unwrap().id();
    assert_eq!(own.try_recv(Match::any().from(own_place)), Ok(None));
}

/// What has begun to come and never will is nothing, and holds up nobody.
#[test]
fn a_peer_that_is_killed_in_the_middle_of_a_message_is_gone() {
    let node = Node::start("n1", &[]);
    for &way in WAYS.iter().filter(|way| node.settings(**way).wait == Wait::Block) {
        let context = node.context(way);
        let own = context.register(attrs! {}).unwrap();
        let (child, peer) = start_peer(&node, way);
        own.send(peer, SLOWLY, b"hello").unwrap();
        let wanted = Match::any().from(peer);
        assert_eq!(own.recv_within(wanted, LONG).unwrap().data, b"seen", "{way:?}");
        for _ in 0..2 {
            let late = own.recv_within(wanted, Duration::from_millis(100));
            assert_eq!(late, Err(RecvError::TimedOut), "{way:?}");
        }
        kill(child);
        let gone = own.recv_within(wanted, LONG);
        assert_eq!(gone, Err(RecvError::Gone(peer.context)), "{way:?}");
        own.send(own.id(), Tag(1), b"own").unwrap();
        assert_eq!(own.try_recv(Match::any()).unwrap().unwrap().data, b"own", "{way:?}");
    }
}

/// `kill -9` with messages on the way: those that were not confirmed are told, the directory forgets
/// the peer, and nothing waits for it.
#[test]
fn a_killed_peer_is_told_for_each_message_that_it_may_not_have_seen() {
    let node = Node::start("n1", &[]);
    for &way in WAYS.iter().filter(|way| node.settings(**way).wait == Wait::Block) {
        let context = node.context(way);
        let own = context.register(attrs! {}).unwrap();
        let (child, peer) = start_peer(&node, way);
        own.send(peer, Tag(1), b"hello").unwrap();
        assert_eq!(own.recv(Match::any()).unwrap().data, b"seen");
        let _ = own.try_send(peer, Tag(3), b"small");
        own.send(peer, Tag(4), bytes(1_000_000, 0)).unwrap();
        kill(child);
        let mut told: Vec<Tag> = (0..2)
            .map(|_| match own.recv_within(Match::any(), LONG) {
                Err(RecvError::Undelivered(lost)) => {
                    assert_eq!((lost.to, lost.reason), (peer, Reason::Unconfirmed), "{way:?}");
                    lost.tag
                }
                other => panic!("{other:?}, {way:?}"),
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, [Tag(3), Tag(4)], "the first was answered: it is not told");
        let watcher = context.find(attrs! { "test" => "peer" });
        while watcher.one_of_any().is_ok() {
            thread::yield_now();
        }
        let again = own.send(peer, Tag(5), b"");
        assert_eq!(again, Err(SendError::NoContext(peer.context)));
    }
}
