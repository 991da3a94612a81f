//! Nodes that have IPv6 alone, with real daemons: network namespaces and cables between them. Needs root; says so where it
//! cannot run.

#![allow(clippy::unwrap_used, reason = "tests")]

mod nodes;

use keeptime_fabric::echo::{self, Probe};
use keeptime_fabric::region::{AnsweredBy, Layout};
use keeptime_fabric::{Config, Context, Match, Protocol, Tag, attrs};
use keeptime_linux::testing::can;
use nodes::{LONG, Node, start_all};

/// A round trip to the daemon of another node, as `keeptime fabric ping` makes it.
fn ping(from: &Node, to: &'static str, over: Protocol) {
    from.space.run(move || {
        let mut config = Config::default();
        config.between_nodes = over;
        let context = Context::open(config).unwrap();
        let peer = context.find(echo::query().with("node", to)).one_of_any_within(LONG).unwrap();
        let mut probe = Probe::new(&context, peer).unwrap();
        probe.round_trip(&[7; 10_000], LONG).unwrap();
    });
}

/// Messages over each carrier, to a daemon and to a program, and a region, with no option but where daemons listen.
#[test]
fn nodes_with_ipv6_alone_have_all_of_it() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    here.plug_ipv6(&there, 80);
    start_all(&mut [&mut there, &mut here]);
    for over in [Protocol::Tcp, Protocol::Udp] {
        ping(&here, "there", over);
        ping(&there, "here", over);
    }
    let (one, other) = (here.open("one"), there.open("other"));
    let to = other.id();
    let sending = here.space.clone();
    let sent = std::thread::spawn(move || {
        sending.run(move || one.send(to, Tag(1), &vec![7; 1 << 20][..]).map(|()| one))
    });
    let message = there.space.run(move || other.recv_within(Match::any(), LONG)).unwrap();
    assert_eq!(message.data.len(), 1 << 20);
    let _one = sent.join().unwrap().unwrap();

    let published = there.space.run(|| {
        let context = Context::open(Config::default()).unwrap();
        let region = context.publish(attrs! { "name" => "cells" }, Layout::CELL).unwrap();
        region.write(0, &[3; 48]).unwrap();
        (context, region)
    });
    let (by, data) = here.space.run(|| {
        let context = Context::open(Config::default()).unwrap();
        let query = attrs! { "name" => "cells" };
        context.find(query.clone()).one_of_any_within(LONG).unwrap();
        let found = context.find(query).all().unwrap();
        let reader = context.open_region(&found[0]).unwrap();
        let mut data = [0; 48];
        (reader.read(0, &mut data).unwrap().by, data)
    });
    assert_eq!((by, data), (AnsweredBy::Responder, [3; 48]));
    drop(published);
}

/// A node on a network of IPv4 and one on a network of IPv6, with a bridge that is on both.
#[test]
fn a_bridge_carries_between_ipv4_and_ipv6() {
    if !can(&[]) {
        return;
    }
    let (mut here, mut there) = (Node::new("here"), Node::new("there"));
    let mut middle = Node::new("middle");
    here.plug(&middle, 80);
    there.plug_ipv6(&middle, 81);
    start_all(&mut [&mut middle, &mut here, &mut there]);
    ping(&here, "there", Protocol::Tcp);
    ping(&there, "here", Protocol::Tcp);
}
