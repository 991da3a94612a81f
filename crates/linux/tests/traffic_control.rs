//! What the kernel makes of our messages, in network namespaces of our own.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::egress::{Flow, Link, plan};
use keeptime_linux::flows::FlowTable;
use keeptime_linux::netlink::Socket;
use keeptime_linux::tc::{
    Attach, Class, Filter, Handle, Leaf, Match, Op, Place, QdiscKind, Queue, Shaper, TREE_MAJOR,
    Tree, apply, diff, observe, removal,
};
use keeptime_linux::testing::in_network_namespace;
use keeptime_linux::testing::rig::SHAPER_MAJOR;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes, Share};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Instant;

const LOOPBACK: u32 = 1;

fn class(parent: u16, rate: BitsPerSecond, ceil: BitsPerSecond, queue: Option<Queue>) -> Class {
    Class {
        parent,
        rate,
        ceil,
        burst: Bytes::new(20_000),
        cburst: Bytes::new(40_000),
        leaf: (parent != 0).then_some(Leaf { prio: 2, quantum: 3_000, queue }),
    }
}

fn tree(place: Place) -> Tree {
    let mbit = BitsPerSecond::from_mbit;
    let classes = BTreeMap::from([
        (1, class(0, mbit(100_000), mbit(100_000), None)),
        (2, class(1, mbit(1), mbit(100_000), Some(Queue::Bytes(65_536)))),
        (0x10, class(1, mbit(80), mbit(80), Some(Queue::Packets(100)))),
        (0x11, class(1, BitsPerSecond::new(12_345_678), mbit(40_000), None)),
    ]);
    let filters = BTreeMap::from([
        (1, Filter { matches: Match::Arp, minor: 0x10 }),
        (2, Filter { matches: Match::Dscp(46), minor: 0x11 }),
    ]);
    Tree { place, default_minor: 2, classes, filters }
}

fn bring_to(socket: &mut Socket, wanted: &Tree) -> Vec<Op> {
    let ops = diff(wanted, &observe(socket, LOOPBACK).unwrap()).unwrap();
    apply(socket, &wanted.place, &ops).unwrap();
    let left = diff(wanted, &observe(socket, LOOPBACK).unwrap()).unwrap();
    assert_eq!(left, Vec::new(), "what was written is not what is read");
    ops
}

#[test]
fn a_tree_is_read_back_as_it_was_written() {
    in_network_namespace(&["htb"], || {
        let mut socket = Socket::open().unwrap();
        let place = Place { ifindex: LOOPBACK, attach: Attach::Root, major: TREE_MAJOR };
        let mut wanted = tree(place);
        bring_to(&mut socket, &wanted);
        let found = observe(&mut socket, LOOPBACK).unwrap();
        let handle = |minor| Handle { major: TREE_MAJOR, minor };
        assert_eq!(found.classes[&handle(1)].class.rate, BitsPerSecond::from_mbit(100_000));
        assert_eq!(found.classes[&handle(0x10)].class.burst, Bytes::new(20_000));

        wanted.classes.get_mut(&0x10).unwrap().rate = BitsPerSecond::from_mbit(20);
        assert_eq!(bring_to(&mut socket, &wanted).len(), 1);
        wanted.classes.remove(&0x11);
        wanted.filters.insert(2, Filter { matches: Match::Dscp(48), minor: 0x10 });
        wanted.classes.get_mut(&2).unwrap().leaf.as_mut().unwrap().queue = None;
        wanted.classes.get_mut(&0x10).unwrap().leaf.as_mut().unwrap().queue =
            Some(Queue::Bytes(9_000));
        assert_eq!(bring_to(&mut socket, &wanted).len(), 5);
        // The whole structure changes: a leaf becomes a parent, and a leaf again.
        wanted.classes.get_mut(&0x10).unwrap().leaf = None;
        wanted.filters.clear();
        wanted.classes.insert(
            0x20,
            class(0x10, BitsPerSecond::from_mbit(5), BitsPerSecond::from_mbit(5), None),
        );
        bring_to(&mut socket, &wanted);
        bring_to(&mut socket, &tree(place));

        let ops = removal(&place, &observe(&mut socket, LOOPBACK).unwrap());
        apply(&mut socket, &place, &ops).unwrap();
        let found = observe(&mut socket, LOOPBACK).unwrap();
        assert!(
            found.classes.is_empty() && found.at(Handle::ROOT).is_none_or(|q| q.handle.major == 0)
        );
    });
}

#[test]
fn a_tree_stands_inside_of_a_shaper_that_can_be_changed() {
    in_network_namespace(&["htb", "tbf"], || {
        let mut socket = Socket::open().unwrap();
        let mut shaper = Shaper {
            ifindex: LOOPBACK,
            major: SHAPER_MAJOR,
            rate: BitsPerSecond::from_mbit(100),
            burst: Bytes::new(25_000),
            limit: 100_000,
        };
        let wanted = tree(shaper.inside(TREE_MAJOR));
        for mbit in [100, 40_000, 3] {
            shaper.rate = BitsPerSecond::from_mbit(mbit);
            apply(&mut socket, &shaper.place(), &[Op::SetShaper(shaper)]).unwrap();
            let found = observe(&mut socket, LOOPBACK).unwrap();
            let QdiscKind::Tbf { rate, burst, limit } = found.at(Handle::ROOT).unwrap().kind else {
                panic!("{found:?}");
            };
            assert_eq!((rate, limit), (shaper.rate, shaper.limit));
            // In ticks of 64 ns, of which each is 320 bytes at 40 Gbit/s.
            assert!(burst.get().abs_diff(shaper.burst.get()) < 320, "{burst}");
            let added = bring_to(&mut socket, &wanted).len();
            assert!(mbit == 100 || added == 0, "changing the shaper keeps the tree inside");
        }
        let found = observe(&mut socket, LOOPBACK).unwrap();
        let other = tree(Place { attach: Attach::Root, ..shaper.inside(TREE_MAJOR) });
        assert!(diff(&other, &found).unwrap_err().to_string().contains("tbf 4b53:"));
        let place = shaper.place();
        apply(&mut socket, &place, &removal(&place, &found)).unwrap();
        assert!(observe(&mut socket, LOOPBACK).unwrap().classes.is_empty());
    });
}

// The real tool must see the rates and bursts that we meant.
#[test]
fn tc_shows_what_was_meant() {
    in_network_namespace(&["htb"], || {
        let mut socket = Socket::open().unwrap();
        let place = Place { ifindex: LOOPBACK, attach: Attach::Root, major: TREE_MAJOR };
        bring_to(&mut socket, &tree(place));
        let run = |what: &[&str]| {
            let output = Command::new("tc").args(what).args(["show", "dev", "lo"]).output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let Some(classes) = run(&["-s", "-d", "class"]) else {
            return keeptime_linux::testing::skip(&["tc".to_owned()], "there is no tc program");
        };
        let line = |id: &str| {
            classes
                .lines()
                .find(|line| line.contains(&format!("class htb {id} ")))
                .unwrap_or_default()
        };
        for (id, parts) in [
            ("4b54:1", &["root", "rate 100Gbit", "ceil 100Gbit"][..]),
            ("4b54:2", &["parent 4b54:1", "rate 1Mbit", "ceil 100Gbit"]),
            ("4b54:10", &["prio 2", "quantum 3000", "rate 80Mbit", "ceil 80Mbit"]),
            ("4b54:11", &["rate 12345Kbit", "ceil 40Gbit"]),
        ] {
            for part in parts {
                assert!(line(id).contains(part), "{part} of {id} in {classes}");
            }
        }
        // 20,000 B burst and 40,000 B cburst, as tc rounds them.
        assert!(line("4b54:10").contains("burst 20000b"), "{classes}");
        let filters = run(&["filter"]).unwrap();
        assert!(filters.contains("match 00b80000/00fc0000 at 0"), "{filters}");
        let queues = run(&["qdisc"]).unwrap();
        assert!(queues.contains("limit 64Kb") && queues.contains("limit 100p"), "{queues}");
    });
}

// All-to-all on a great cluster: a thousand flows are added, changed and removed in few calls,
// and read back as they are.
#[test]
fn a_thousand_flows_are_one_batch() {
    in_network_namespace(&["htb"], || {
        let mut socket = Socket::open().unwrap();
        let place = Place { ifindex: LOOPBACK, attach: Attach::Root, major: TREE_MAJOR };
        let name = "lo".to_owned();
        let rate = BitsPerSecond::from_mbit(10_000);
        let link = Link { name, rate, control_share: Share::from_percent(2).unwrap() };
        let flows = |mbit| -> Vec<Flow> {
            let flow = |host: u32| Flow {
                cgroup_id: 7,
                destination: Some(Ipv4Addr::from(0x0a00_0000 + host)),
                rate: BitsPerSecond::from_mbit(mbit),
                up_to: BitsPerSecond::from_mbit(mbit),
                burst: None,
                class: TrafficClass::Premium,
            };
            (1..=1_000).map(flow).collect()
        };
        for (what, flows) in [("added", flows(5)), ("changed", flows(6)), ("removed", Vec::new())] {
            let wanted = plan(&link, place, &flows, &FlowTable::default()).unwrap();
            let start = Instant::now();
            bring_to(&mut socket, &wanted.tree);
            println!("1,000 classes {what} and read back in {:?}", start.elapsed());
        }
    });
}
