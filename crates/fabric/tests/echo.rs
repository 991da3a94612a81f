//! Round trips and streams, answered as a node's daemon answers them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, WAYS};
use keeptime_fabric::echo::{BYTES_MOST, Echo, Probe, ProbeError, TAKEN, query};
use keeptime_fabric::{Match, SendError, Tag, attrs};
use std::time::Duration;

#[test]
fn probes_are_answered_over_every_transport() {
    for &way in WAYS {
        let node = Node::start("n1", &[]);
        let echo = Echo::start(node.settings(way), "n1", node.address()).unwrap();
        let context = node.context(way);
        let peer = context.find(query().with("node", "n1")).one_of_any().unwrap();
        let mut probe = Probe::new(&context, peer).unwrap();
        for bytes in [0, 64, BYTES_MOST] {
            probe.round_trip(&vec![7; bytes], LONG).unwrap();
            probe.stream(&vec![7; bytes], 50, LONG).unwrap();
        }
        let most = BYTES_MOST as u64;
        let too_long = ProbeError::Send(SendError::TooLong { bytes: BYTES_MOST + 1, most });
        assert_eq!(probe.round_trip(&[0; BYTES_MOST + 1], LONG), Err(too_long));
        drop(echo);
        assert!(probe.round_trip(&[], Duration::from_secs(1)).is_err(), "{way:?}: it is gone");
    }
}

/// One program asks and never takes an answer; another is answered all the same.
#[test]
fn who_takes_no_answers_holds_up_nobody() {
    let node = Node::start("n1", &[]);
    let way = WAYS[0];
    let _echo = Echo::start(node.settings(way), "n1", node.address()).unwrap();
    let (deaf, other) = (node.context(way), node.context(way));
    let peer = other.find(query()).one_of_any().unwrap();
    let asks = deaf.register(attrs! { "test" => "deaf" }).unwrap();
    // Far more than the windows of both hold.
    for number in 0..100 {
        asks.send_within(peer, Tag(TAKEN.0 + 1 + number), &[7; BYTES_MOST], LONG).unwrap();
    }
    let mut probe = Probe::new(&other, peer).unwrap();
    probe.round_trip(&[7; 64], LONG).unwrap();
    // What was answered is there for it.
    assert_eq!(asks.recv_within(Match::any(), LONG).unwrap().data.len(), BYTES_MOST);
}
