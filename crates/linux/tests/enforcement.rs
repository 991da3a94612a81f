//! Reserved flows against greedy ones, with real TCP over emulated 100 Mbit/s links.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::egress::{Flow, Link, PREMIUM_MINOR};
use keeptime_linux::police::Policer;
use keeptime_linux::testing::can;
use keeptime_linux::testing::rig::{Rig, Traffic, measure};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes, Share};
use std::time::{Duration, Instant};

/// Payload of what a class lets pass: 1,448 of 1,514 bytes.
const PAYLOAD: f64 = 1448.0 / 1514.0;
const SETTLE: Duration = Duration::from_millis(700);
const PHASE: Duration = Duration::from_millis(1_500);
/// What may wait in a node's card when its flow is given another rate, and pass a port after that: seconds of it.
const BURST: f64 = 0.05;

fn link() -> Link {
    let control_share = Share::from_percent(2).expect("2 % is a share");
    Link { name: "test".into(), rate: BitsPerSecond::from_mbit(100), control_share }
}

/// How long a busy machine may take for what takes [`PHASE`].
const LIMIT: Duration = Duration::from_secs(60);
/// How often a busy machine may come between.
const TRIES: usize = 6;

/// After a moment to settle: what the first connection gets.
fn share(traffic: &[Traffic]) -> f64 {
    std::thread::sleep(SETTLE);
    measure(&[&traffic[0]], PHASE)[0]
}

/// The first connection has what is reserved for it, but for what a busy machine takes from it; and what the kernel
/// lets pass at the switch as premium is never more.
fn assert_has(rig: &Rig, traffic: &[Traffic], mbit: f64) {
    let premium = || rig.port_counters(1).unwrap()[&PREMIUM_MINOR].bytes as f64 * 8e-6;
    let has_it = (0..TRIES).any(|_| {
        std::thread::sleep(SETTLE);
        let (start, before) = (Instant::now(), premium());
        let arrived = measure(&[&traffic[0]], PHASE)[0];
        let passed = premium() - before;
        let most = mbit * (start.elapsed().as_secs_f64() + BURST);
        println!(
            "reserved {mbit} Mbit/s: {arrived:.2}; {passed:.2} Mbit passed, at most {most:.2}"
        );
        assert!(passed <= most, "a reservation is a limit: {passed:.2} Mbit passed of {most:.2}");
        arrived >= 0.85 * mbit * PAYLOAD
    });
    assert!(has_it, "less than {mbit} Mbit/s, {TRIES} times");
}

// One flow of a job against three greedy flows from its own node and three from another to the
// same destination: without a reservation, with 40 Mbit/s, changed to 20, and without again. Each
// change is made as by an agent that has just started. Two greedy flows claim to be premium.
#[test]
fn a_reserved_flow_has_its_rate_whatever_others_do() {
    if !can(&["htb", "tbf", "bpf", "cgroup2", "speed"]) {
        return;
    }
    let rig = Rig::new(3, &link()).unwrap();
    let (directory, cgroup_id) = rig.job("job").unwrap();
    let flow = |mbit| Flow {
        cgroup_id,
        destination: Some(rig.address(1)),
        rate: BitsPerSecond::from_mbit(mbit),
        up_to: BitsPerSecond::from_mbit(mbit),
        burst: None,
        class: TrafficClass::Premium,
    };
    rig.protect_ports().unwrap();
    for node in 0..3 {
        rig.enforce(node, &[]).unwrap();
    }
    let mut traffic = vec![rig.send(0, 1, Some(&directory), 0).unwrap()];
    for from in [0, 0, 0, 2, 2, 2] {
        let tos = if traffic.len() % 3 == 0 { 0xb8 } else { 0 };
        traffic.push(rig.send(from, 1, None, tos).unwrap());
    }
    let has_little = |when: &str| {
        let has_little = (0..TRIES).any(|_| share(&traffic) < 30.0);
        assert!(has_little, "{when}, one of seven had much of all, {TRIES} times");
    };
    has_little("unreserved");
    rig.enforce(0, &[flow(40)]).unwrap();
    // Those who only claim to be premium are none at the switch.
    assert_has(&rig, &traffic, 40.0);
    rig.enforce(0, &[flow(20)]).unwrap();
    assert_has(&rig, &traffic, 20.0);
    rig.enforce(0, &[]).unwrap();
    has_little("unreserved again");
    rig.release(0).unwrap();
}

// A flow with 20 Mbit/s that may use 70: it does while nobody else has anything, beside three greedy flows too, which
// are best effort; and it has its 20 and no more than is left when another has 60 of the link.
#[test]
fn a_flow_that_may_use_more_does_and_leaves_others_what_they_have() {
    if !can(&["htb", "tbf", "bpf", "cgroup2", "speed"]) {
        return;
    }
    let rig = Rig::new(3, &link()).unwrap();
    let jobs = ["job", "other"].map(|name| rig.job(name).unwrap());
    let flow = |job: usize, mbit, up_to| Flow {
        cgroup_id: jobs[job].1,
        destination: Some(rig.address(1)),
        rate: BitsPerSecond::from_mbit(mbit),
        up_to: BitsPerSecond::from_mbit(up_to),
        burst: None,
        class: TrafficClass::Premium,
    };
    rig.protect_ports().unwrap();
    for node in 0..3 {
        rig.enforce(node, &[]).unwrap();
    }
    let mut traffic = vec![rig.send(0, 1, Some(&jobs[0].0), 0).unwrap()];
    for _ in 0..3 {
        traffic.push(rig.send(0, 1, None, 0).unwrap());
    }
    rig.enforce(0, &[flow(0, 20, 70)]).unwrap();
    assert_has(&rig, &traffic, 70.0);
    rig.enforce(0, &[flow(0, 20, 70), flow(1, 60, 60)]).unwrap();
    let other = [rig.send(0, 1, Some(&jobs[1].0), 0).unwrap()];
    let both_have = (0..TRIES).any(|_| {
        std::thread::sleep(SETTLE);
        let arrived = measure(&[&traffic[0], &other[0]], PHASE);
        println!("20 and what is left: {:.2}, 60: {:.2}", arrived[0], arrived[1]);
        let has = |at: usize, mbit: f64| arrived[at] >= 0.85 * mbit * PAYLOAD;
        has(0, 20.0) && has(1, 60.0) && arrived[0] <= 45.0
    });
    assert!(both_have, "somebody had less than is reserved, {TRIES} times");
    rig.release(0).unwrap();
}

// A flow that states a bucket of four frames, and a sender that does not pace at all, through a policer
// with that bucket: the class alone keeps all of it, from the first packet on.
#[test]
fn what_leaves_a_class_passes_a_policer_of_the_depth_it_states() {
    if !can(&["htb", "tbf", "bpf", "cgroup2", "speed"]) {
        return;
    }
    let rig = Rig::new(2, &link()).unwrap();
    let (directory, cgroup_id) = rig.job("job").unwrap();
    let (rate, depth) = (BitsPerSecond::from_mbit(2), Bytes::new(4 * 1_514));
    let class = TrafficClass::Premium;
    let destination = Some(rig.address(1));
    let flow = Flow { cgroup_id, destination, rate, up_to: rate, burst: Some(depth), class };
    rig.enforce(0, &[flow]).unwrap();
    rig.police(0, Policer { rate, depth, dscp: class.dscp() }).unwrap();
    let start = Instant::now();
    let _traffic = rig.send(0, 1, Some(&directory), 0).unwrap();
    let wanted = rate.bytes_in_floor(PHASE.into());
    let mut policed = rig.policed(0).unwrap().unwrap();
    // As long as it takes: late is no loss.
    while policed.passed < wanted {
        assert!(start.elapsed() < LIMIT, "{policed:?} after {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
        policed = rig.policed(0).unwrap().unwrap();
    }
    println!("{policed:?} in {:?}", start.elapsed());
    assert_eq!(policed.dropped_packets, 0, "{policed:?}");
    rig.release(0).unwrap();
}
