//! The edge of a DiffServ network: a token bucket drops what comes too fast, and a sender that the
//! kernel paces never comes too fast (figure 1 of MPICH-GQ, small).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::World;
use keeptime_lab::Lab;
use keeptime_linux::police::{Policed, Policer};
use keeptime_linux::testing::can;
use keeptime_model::units::{BitsPerSecond, Bytes};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const EF: i32 = 46 << 2;
const POLICER: Policer =
    Policer { rate: BitsPerSecond::from_mbit(40), depth: Bytes::new(10_000), dscp: 46 };
/// How often a busy machine may come between.
const TRIES: usize = 8;

fn address(lab: &Lab, node: &str) -> Ipv4Addr {
    let node = lab.topology().find_node(&node.parse().unwrap()).unwrap();
    lab.topology().node(node).address.unwrap()
}

fn policed(lab: &Lab) -> Policed {
    lab.policed("n1").unwrap().unwrap()
}

#[test]
fn a_burst_passes_as_deep_as_the_bucket_and_what_is_not_marked_passes() {
    let Some(world) = World::new() else { return };
    if !can(&["bpf"]) {
        return;
    }
    let lab = world.up(2, 5);
    lab.police("n1", Some(&POLICER)).unwrap();
    let to = (address(&lab, "n2"), 9);
    let sender = lab.network("n1").unwrap().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let datagram = [0; 958];
    // Nobody listens: the receiver's refusals are not of interest.
    let burst = || (0..200).for_each(|_| drop(sender.send_to(&datagram, to)));
    burst();
    assert_eq!(policed(&lab), Policed::default(), "it is about marked packets");
    setsockopt(&sender, sockopt::Ipv4Tos, &EF).unwrap();
    // The card of 200 Mbit/s lets 200 packets go over 8 ms; a busy machine may take until all may pass.
    let has_dropped = (0..TRIES).any(|_| {
        let (start, before) = (Instant::now(), policed(&lab));
        burst();
        let mut now = before;
        common::wait_for("all to have come in", || {
            now = policed(&lab);
            now.passed_packets + now.dropped_packets
                == before.passed_packets + before.dropped_packets + 200
        });
        // 1,000 bytes on the wire each.
        let (passed, span) = (now.passed_packets - before.passed_packets, start.elapsed());
        assert_eq!(now.passed.get() - before.passed.get(), 1_000 * passed);
        let most = 10_000.0 + span.as_secs_f64() * 40e6 / 8.0;
        assert!(1_000.0 * (passed as f64) <= most, "{passed} of 200 passed in {span:?}");
        passed < 200
    });
    assert!(has_dropped, "all passed, {TRIES} times");
    assert!(policed(&lab).passed_packets >= 10, "a bucket is full at first");
    lab.police("n1", None).unwrap();
    assert_eq!(lab.policed("n1").unwrap(), None);
    world.down(&lab);
}

/// Sends for two seconds, marked, and tells the payload's Mbit/s.
fn send(lab: &Lab, pace: Option<u64>) -> f64 {
    let listener = lab.network("n2").unwrap();
    let to = address(lab, "n2");
    let listener = listener.run(|| TcpListener::bind((to, 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let mut sender = lab.network("n1").unwrap().run(|| TcpStream::connect(to).unwrap()).unwrap();
    let mut receiver = listener.accept().unwrap().0;
    let start = Instant::now();
    // Kernels do not pace the first ten segments of a connection.
    sender.set_nodelay(true).unwrap();
    (0..12).for_each(|_| sender.write_all(&[0]).unwrap());
    setsockopt(&sender, sockopt::Ipv4Tos, &EF).unwrap();
    if let Some(bytes_per_second) = pace {
        set_pace(&sender, bytes_per_second);
    }
    let reading = std::thread::spawn(move || {
        let (mut block, mut bytes) = (vec![0; 65_536], 0);
        while start.elapsed() < Duration::from_secs(2) {
            match receiver.read(&mut block).unwrap() {
                0 => break,
                more => bytes += more,
            }
        }
        bytes as f64 * 8e-6 / start.elapsed().as_secs_f64()
    });
    let block = vec![0; 65_536];
    // Until the receiver hangs up.
    while sender.write_all(&block).is_ok() {}
    reading.join().unwrap()
}

fn set_pace(stream: &TcpStream, bytes_per_second: u64) {
    let value = bytes_per_second.to_ne_bytes();
    // SAFETY: `value` lives through the call, and its size is given.
    let result = unsafe {
        let (level, name) = (nix::libc::SOL_SOCKET, nix::libc::SO_MAX_PACING_RATE);
        nix::libc::setsockopt(stream.as_raw_fd(), level, name, value.as_ptr().cast(), 8)
    };
    assert_eq!(result, 0);
}

#[test]
fn a_sender_that_paces_loses_nothing_and_one_that_does_not_loses() {
    let Some(world) = World::new() else { return };
    if !can(&["bpf"]) {
        return;
    }
    let lab = world.up(2, 5);
    lab.police("n1", Some(&POLICER)).unwrap();
    let bursty = send(&lab, None);
    let lost = policed(&lab);
    assert!(lost.dropped_packets > 0, "{lost:?}");
    // A busy machine may hold up what was paced, and let it go at once.
    let loses_nothing = (0..TRIES).any(|_| {
        lab.police("n1", Some(&POLICER)).unwrap();
        // 36 Mbit/s of payload are 37.6 Mbit/s on the wire.
        let paced = send(&lab, Some(36_000_000 / 8));
        let kept = policed(&lab);
        println!("Mbit/s: bursty {bursty:.1}, {lost:?}; paced {paced:.1}, {kept:?}");
        // Late, maybe, and never early; who bursts has a fifth of it.
        assert!(paced < 36.5, "{paced:.1} Mbit/s");
        kept.dropped_packets == 0 && paced > 2.0 * bursty
    });
    assert!(loses_nothing, "it lost, or had no more than who bursts, {TRIES} times");
    world.down(&lab);
}
