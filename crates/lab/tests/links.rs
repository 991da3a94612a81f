//! Links carry what their rate says, in each direction, whoever else sends: real TCP.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{RATE, World};
use keeptime_lab::{Lab, Spec};
use keeptime_linux::testing::skip;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use nix::sys::socket::{getsockopt, sockopt};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_millis(700);
const LENGTH: Duration = Duration::from_secs(2);
/// Payload of a full packet over its length on the wire.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;

/// A connection between two nodes: the sending and the receiving end.
fn connect(lab: &Lab, from: &str, to: &str) -> (TcpStream, TcpStream) {
    let node = lab.topology().find_node(&to.parse().unwrap()).unwrap();
    let address: Ipv4Addr = lab.topology().node(node).address.unwrap();
    let listener = lab.network(to).unwrap();
    let listener = listener.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let sender = lab.network(from).unwrap().run(|| TcpStream::connect(to).unwrap()).unwrap();
    (sender, listener.accept().unwrap().0)
}

/// Sends on all connections at once: Mbit/s of payload that each received.
fn rates(lab: &Lab, pairs: &[(&str, &str)]) -> Vec<f64> {
    let connections: Vec<_> = pairs.iter().map(|(from, to)| connect(lab, from, to)).collect();
    std::thread::scope(|scope| {
        let measuring: Vec<_> = connections
            .into_iter()
            .map(|(mut sender, receiver)| {
                scope.spawn(move || {
                    let block = vec![0; 65_536];
                    // Until the receiver hangs up.
                    while sender.write_all(&block).is_ok() {}
                });
                scope.spawn(move || receive(receiver))
            })
            .collect();
        measuring.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn receive(mut from: TcpStream) -> f64 {
    let mut block = vec![0; 65_536];
    let start = Instant::now();
    let (mut counted, mut first, mut last) = (0, None, start);
    while start.elapsed() < WARM_UP + LENGTH {
        let bytes = from.read(&mut block).unwrap();
        if start.elapsed() >= WARM_UP {
            last = Instant::now();
            // What arrived before the first stamp does not count.
            if first.is_some() {
                counted += bytes;
            }
            first.get_or_insert(last);
        }
    }
    counted as f64 * 8e-6 / (last - first.unwrap()).as_secs_f64()
}

fn assert_near(rates: &[f64], wanted: f64) {
    println!("Mbit/s: {rates:.1?}, wanted {wanted:.1}");
    for rate in rates {
        assert!((rate / wanted - 1.0).abs() <= 0.03, "{rate:.1} of {wanted:.1} Mbit/s");
    }
}

#[test]
fn one_flow_two_pairs_and_both_directions_have_their_rate() {
    let Some(world) = World::new() else { return };
    let lab = world.up(4, 5);
    let wanted = RATE.as_mbit_f64() * PAYLOAD;
    let (sender, _) = connect(&lab, "n1", "n2");
    let algorithm = getsockopt(&sender, sockopt::TcpCongestion).unwrap();
    assert_eq!(algorithm.to_str().unwrap().trim_end_matches('\0'), "cubic");
    assert_near(&rates(&lab, &[("n1", "n2")]), wanted);
    assert_near(&rates(&lab, &[("n1", "n2"), ("n3", "n4")]), wanted);
    assert_near(&rates(&lab, &[("n1", "n2"), ("n2", "n1")]), wanted);
    // Two senders share the port of one receiver.
    let incast = rates(&lab, &[("n1", "n3"), ("n2", "n3")]);
    assert_near(&[incast.iter().sum()], wanted);
    world.down(&lab);
}

#[test]
fn an_uplink_is_shared_by_those_below() {
    let Some(world) = World::new() else { return };
    let uplink = BitsPerSecond::from_mbit(100);
    let cpu = CpuPpm::from_percent(5);
    let spec = Spec::two_tier(world.name("up"), 4, 2, RATE, uplink, cpu).unwrap();
    let lab = world.labs.up(&spec).unwrap();
    let across = rates(&lab, &[("n1", "n3"), ("n2", "n4")]);
    assert_near(&[across.iter().sum()], uplink.as_mbit_f64() * PAYLOAD);
    // Below one switch nothing crosses the uplink.
    assert_near(&rates(&lab, &[("n1", "n2")]), RATE.as_mbit_f64() * PAYLOAD);
    world.down(&lab);
}

#[test]
fn a_fast_link_is_fast() {
    let Some(world) = World::new() else { return };
    let (rate, cpu) = (BitsPerSecond::from_mbit(1_000), CpuPpm::from_percent(5));
    let lab = world.labs.up(&Spec::star(world.name("fast"), 2, rate, cpu).unwrap()).unwrap();
    let got = rates(&lab, &[("n1", "n2")]);
    // A busy machine may not have the CPU for it.
    if got[0] < 0.9 * rate.as_mbit_f64() * PAYLOAD {
        skip(&["fast".to_owned()], &format!("{:.0} Mbit/s was all that went", got[0]));
    }
    world.down(&lab);
}
