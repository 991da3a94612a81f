//! Reserved flows against greedy ones, with real TCP over emulated 100 Mbit/s links.
use keeptime_linux::egress::{Flow, Link, PREMIUM_MINOR};
use keeptime_linux::testing::can;
use keeptime_linux::testing::rig::{Rig, Traffic, measure};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Share};
use std::time::{Duration, Instant};

/// Payload of what a class lets pass: 1,448 of 1,514 bytes.
const PAYLOAD: f64 = 1448.0 / 1514.0;
const SETTLE: Duration = Duration::from_millis(700);
const PHASE: Duration = Duration::from_secs(2);

fn link() -> Link {
    let control_share = Share::from_percent(2).expect("2 % is a share");
    Link { name: "test".into(), rate: BitsPerSecond::from_mbit(100), control_share }
}

/// After a moment to settle: what the first connection gets, and all others together.
fn shares(traffic: &[Traffic]) -> (f64, f64) {
    std::thread::sleep(SETTLE);
    let rates = measure(&traffic.iter().collect::<Vec<_>>(), PHASE);
    (rates[0], rates[1..].iter().sum())
}

// One flow of a job against three greedy flows from its own node and three from another to the
// same destination: without a reservation, with 40 Mbit/s, changed to 20, and without again. Each
// change is made as by an agent that has just started. Two greedy flows claim to be premium.
#[test]
fn a_reserved_flow_has_its_rate_whatever_others_do() {
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let rig = Rig::new(3, &link()).unwrap();
    let (directory, cgroup_id) = rig.job("job").unwrap();
    let flow = |mbit| Flow {
        cgroup_id,
        destination: Some(rig.address(1)),
        rate: BitsPerSecond::from_mbit(mbit),
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
    let (before, _) = shares(&traffic);
    assert!(before < 30.0, "unreserved, one of seven: {before:.1} Mbit/s");
    rig.enforce(0, &[flow(40)]).unwrap();
    let before_port = rig.port_counters(1).unwrap()[&PREMIUM_MINOR];
    let start = Instant::now();
    let (reserved, others) = shares(&traffic);
    // Those who only claim to be premium are none at the switch.
    let port = rig.port_counters(1).unwrap()[&PREMIUM_MINOR];
    let premium = (port.bytes - before_port.bytes) as f64 * 8e-6 / start.elapsed().as_secs_f64();
    assert!(premium <= 1.05 * 40.0, "premium at the switch: {premium:.1} Mbit/s");
    println!("unreserved {before:.2}, reserved 40: {reserved:.2} + {others:.2} Mbit/s");
    assert!(reserved >= 0.95 * 40.0 * PAYLOAD, "reserved 40: {reserved:.1} Mbit/s");
    assert!(reserved <= 1.02 * 40.0 * PAYLOAD, "a reservation is a limit: {reserved:.1} Mbit/s");
    rig.enforce(0, &[flow(20)]).unwrap();
    let (reserved, others) = shares(&traffic);
    println!("reserved 20: {reserved:.2} + {others:.2} Mbit/s");
    assert!(reserved >= 0.95 * 20.0 * PAYLOAD, "reserved 20: {reserved:.1} Mbit/s");
    assert!(reserved <= 1.02 * 20.0 * PAYLOAD, "reserved 20: {reserved:.1} Mbit/s");
    rig.enforce(0, &[]).unwrap();
    let (after, _) = shares(&traffic);
    assert!(after < 30.0, "unreserved again: {after:.1} Mbit/s");
    rig.release(0).unwrap();
}
