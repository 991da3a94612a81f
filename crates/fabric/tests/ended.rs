//! What comes of messages of contexts that have ended, and of those whose node's daemon has.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way, until};
use keeptime_fabric::directory::Server;
use keeptime_fabric::{
    Context, Match, RecvError, Resource, ResourceId, SendError, Tag, Wait, attrs,
};
use std::collections::BTreeSet;
use std::time::Duration;

const WAYS: [Way; 4] = [
    Way::Memory(Wait::SpinFor(Duration::from_micros(50))),
    Way::Memory(Wait::Spin),
    Way::Tcp(Wait::SpinFor(Duration::from_micros(50))),
    Way::Tcp(Wait::Block),
];

fn open(node: &Node, way: Way) -> (Context, Resource) {
    let context = node.context(way);
    let resource = context.register(attrs! {}).unwrap();
    (context, resource)
}

/// A context that sends one message to `to` and ends when that is carried. Returns who has sent it.
fn send_and_end(node: &Node, way: Way, to: ResourceId, tag: Tag) -> ResourceId {
    let (context, sender) = open(node, way);
    sender.send(to, tag, b"last words").unwrap();
    let from = sender.id();
    drop(sender);
    assert_eq!(context.close(LONG), Ok(()));
    from
}

/// Goal: nobody is told that a sender is gone before he has what that one sent. Method: a sender that has ended when its
/// receiver looks first, so that its call still waits; many times, since it is a race with the directory's answer.
#[test]
fn last_words_come_before_the_end_is_told() {
    let node = Node::start("n1", &[]);
    for way in WAYS {
        let (_context, receiver) = open(&node, way);
        for round in 0..25 {
            let from = send_and_end(&node, way, receiver.id(), Tag(round));
            let wanted = Match::any().from(from);
            let told = receiver.recv_within(wanted, LONG).map(|message| message.tag);
            assert_eq!(told, Ok(Tag(round)), "{way:?}");
            let after = receiver.recv_within(wanted, LONG);
            assert_eq!(after, Err(RecvError::Gone(from.context)), "{way:?}");
        }
    }
}

/// The same where it is known already that the sender is gone.
#[test]
fn last_words_come_though_the_end_is_known() {
    let node = Node::start("n1", &[]);
    for way in WAYS {
        let (context, receiver) = open(&node, way);
        let from = send_and_end(&node, way, receiver.id(), Tag(1));
        until(|| context.locate(from).unwrap().is_none().then_some(()));
        let answered = receiver.send(from, Tag(2), b"");
        assert_eq!(answered, Err(SendError::NoContext(from.context)), "{way:?}");
        let told = receiver.recv_within(Match::any().from(from), LONG).map(|m| m.tag);
        assert_eq!(told, Ok(Tag(1)), "{way:?}");
    }
}

/// Goal: however many call one that computes, it has the messages of all of them, though they have ended. Method: three times
/// as many as may be silent at a time, before the receiver looks for the first time.
#[test]
fn callers_that_have_ended_before_they_are_taken_are_heard() {
    const CALLERS: u64 = 200;
    let node = Node::start("n1", &[]);
    for way in [Way::Memory(Wait::Block), Way::Tcp(Wait::Block)] {
        let (_context, receiver) = open(&node, way);
        let to = receiver.id();
        (0..CALLERS).for_each(|caller| {
            send_and_end(&node, way, to, Tag(caller));
        });
        let missing = || receiver.recv_within(Match::any(), Duration::from_secs(2)).ok();
        let heard: BTreeSet<u64> = std::iter::from_fn(missing).map(|m| m.tag.0).take(200).collect();
        assert_eq!(heard.len() as u64, CALLERS, "{way:?}");
    }
}

/// Goal: a context is not gone because its node's daemon is, and one that has ended meanwhile is. Method: the daemon of one of
/// two nodes is away for longer than others remember what it has told, while somebody waits for messages of two programs there.
#[test]
fn whoever_lives_is_not_gone_with_its_daemon() {
    let way = Way::Tcp(Wait::Block);
    let here = Node::start("n1", &[]);
    let there = Node::start("n2", &[here.address()]);
    let (own, receiver) = open(&here, way);
    let ((context, sender), ends) = (open(&there, way), open(&there, way));
    let [wanted, ending] = [&sender, &ends.1].map(|sender| Match::any().from(sender.id()));
    let is_known = |sender: &Resource| own.locate(sender.id()).unwrap();
    until(|| is_known(&sender).and(is_known(&ends.1)));
    // Nobody has called anybody yet.
    for wanted in [wanted, ending] {
        let early = receiver.recv_within(wanted, Duration::from_millis(20));
        assert_eq!(early, Err(RecvError::TimedOut));
    }
    let Node { server, config } = there;
    drop(server);
    until(|| is_known(&sender).is_none().then_some(()));
    drop(ends);
    let gone = |wanted: Match| Err(RecvError::Gone(wanted.from.unwrap().context));
    assert_eq!(receiver.recv_within(ending, LONG), gone(ending));
    let told = receiver.recv_within(wanted, Duration::from_millis(300));
    assert_eq!(told, Err(RecvError::TimedOut));
    let _server = Server::start(config).unwrap();
    until(|| is_known(&sender));
    sender.send(receiver.id(), Tag(1), b"here I am").unwrap();
    assert_eq!(receiver.recv_within(wanted, LONG).unwrap().tag, Tag(1));
    drop((sender, context));
    assert_eq!(receiver.recv_within(wanted, LONG), gone(wanted));
}

/// Goal: what a context has sent before it ended is not lost when its receiver sends to it. Method: both were connected, and
/// the receiver's answer is the first to find the connection broken.
#[test]
fn last_words_are_not_lost_by_an_answer() {
    let node = Node::start("n1", &[]);
    for way in WAYS {
        for round in 0..10 {
            let (_context, receiver) = open(&node, way);
            let (context, sender) = open(&node, way);
            let from = sender.id();
            sender.send(receiver.id(), Tag(1), b"hello").unwrap();
            assert_eq!(receiver.recv_within(Match::any(), LONG).unwrap().tag, Tag(1));
            sender.send(receiver.id(), Tag(2), b"last words").unwrap();
            drop(sender);
            assert_eq!(context.close(LONG), Ok(()));
            let answered = (0..1000).find_map(|_| receiver.send(from, Tag(3), b"answer").err());
            let wanted = Match::tag(2).from(from);
            let told = until(|| match receiver.recv_within(wanted, LONG) {
                Err(RecvError::Undelivered(_)) => None,
                told => Some(told.map(|message| message.tag)),
            });
            assert_eq!(told, Ok(Tag(2)), "{way:?}, {round}, {answered:?}");
        }
    }
}
