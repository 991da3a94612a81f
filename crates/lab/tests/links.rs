//! Links carry what their rate says, in each direction, whoever else sends: real TCP.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{RATE, World};
use keeptime_lab::{Lab, Spec};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use nix::sys::socket::{getsockopt, sockopt};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const LENGTH: Duration = Duration::from_millis(1_200);
/// Payload of a full packet over its length on the wire.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// The part of a rate that proves that a connection shares its link with nobody.
const ENOUGH: f64 = 0.7;
/// What links pass at once beyond their rate, in bits.
const BURST: f64 = 4e6;
/// How often a busy machine may give it less.
const TRIES: usize = 8;

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

/// What a connection received, in bits of payload, and how long after all began to send.
#[derive(Debug, Clone, Copy)]
struct Received {
    bits: f64,
    seconds: f64,
}

impl Received {
    fn together(all: &[Self]) -> Vec<Self> {
        let bits = all.iter().map(|received| received.bits).sum();
        let seconds = all.iter().map(|received| received.seconds).fold(0.0, f64::max);
        vec![Self { bits, seconds }]
    }
}

/// Sends on all connections at once.
fn receive_all(lab: &Lab, pairs: &[(&str, &str)]) -> Vec<Received> {
    let connections: Vec<_> = pairs.iter().map(|(from, to)| connect(lab, from, to)).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let receiving: Vec<_> = connections
            .into_iter()
            .map(|(mut sender, receiver)| {
                scope.spawn(move || {
                    let block = vec![0; 65_536];
                    // Until the receiver hangs up.
                    while sender.write_all(&block).is_ok() {}
                });
                scope.spawn(move || receive(receiver, start))
            })
            .collect();
        receiving.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn receive(mut from: TcpStream, start: Instant) -> Received {
    let (mut block, mut bytes) = (vec![0; 65_536], 0);
    while start.elapsed() < LENGTH {
        bytes += from.read(&mut block).unwrap();
    }
    Received { bits: 8.0 * bytes as f64, seconds: start.elapsed().as_secs_f64() }
}

/// Each has `rate`, but for what a busy machine takes from it, and never more: nothing passes before it is sent.
fn assert_have(enough: f64, rate: BitsPerSecond, measure: impl Fn() -> Vec<Received>) {
    let wanted = rate.as_mbit_f64() * PAYLOAD * 1e6;
    let have_enough = (0..TRIES).any(|_| {
        let all = measure();
        println!("{all:.3?}, {wanted:.0} bit/s wanted");
        for Received { bits, seconds } in &all {
            assert!(*bits <= wanted * seconds + BURST, "more than {rate}: {all:?}");
        }
        all.iter().all(|received| received.bits >= enough * wanted * received.seconds)
    });
    assert!(have_enough, "less than {rate}, {TRIES} times");
}

#[test]
fn one_flow_two_pairs_and_both_directions_have_their_rate() {
    let Some(world) = World::to_measure() else { return };
    let lab = world.up(4, 5);
    let (sender, _) = connect(&lab, "n1", "n2");
    let algorithm = getsockopt(&sender, sockopt::TcpCongestion).unwrap();
    assert_eq!(algorithm.to_str().unwrap().trim_end_matches('\0'), "cubic");
    assert_have(ENOUGH, RATE, || receive_all(&lab, &[("n1", "n2")]));
    assert_have(ENOUGH, RATE, || receive_all(&lab, &[("n1", "n2"), ("n3", "n4")]));
    assert_have(ENOUGH, RATE, || receive_all(&lab, &[("n1", "n2"), ("n2", "n1")]));
    // Two senders share the port of one receiver.
    assert_have(ENOUGH, RATE, || {
        Received::together(&receive_all(&lab, &[("n1", "n3"), ("n2", "n3")]))
    });
    world.down(&lab);
}

#[test]
fn an_uplink_is_shared_by_those_below() {
    let Some(world) = World::to_measure() else { return };
    let uplink = BitsPerSecond::from_mbit(100);
    let cpu = CpuPpm::from_percent(5);
    let spec = Spec::two_tier(world.name("up"), 4, 2, RATE, uplink, cpu).unwrap();
    let lab = world.labs.up(&spec).unwrap();
    let across = || Received::together(&receive_all(&lab, &[("n1", "n3"), ("n2", "n4")]));
    assert_have(ENOUGH, uplink, across);
    // Below one switch nothing crosses the uplink.
    assert_have(ENOUGH, RATE, || receive_all(&lab, &[("n1", "n2")]));
    world.down(&lab);
}

#[test]
fn a_fast_link_is_fast() {
    let Some(world) = World::to_measure() else { return };
    let (rate, cpu) = (BitsPerSecond::from_mbit(1_000), CpuPpm::from_percent(5));
    let lab = world.labs.up(&Spec::star(world.name("fast"), 2, rate, cpu).unwrap()).unwrap();
    // More than a slower link lets pass; for all of it a busy machine may not have the CPU.
    assert_have(0.4, rate, || receive_all(&lab, &[("n1", "n2")]));
    world.down(&lab);
}
