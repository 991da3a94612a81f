//! Packets that an interface is handed, in network namespaces of our own.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::egress::{BEST_EFFORT_MINOR, Flow, Link};
use keeptime_linux::link::{End, add_cable, interfaces, set_segment_max, set_segments_max};
use keeptime_linux::netlink::Socket;
use keeptime_linux::segments::{Op, diff, limit, observe};
use keeptime_linux::tc::{Handle, TREE_MAJOR};
use keeptime_linux::testing::rig::Rig;
use keeptime_linux::testing::{can, in_network_namespace};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes};
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE: u32 = 30;
/// Long enough for a few hundred packets of 100 Mbit/s.
const PHASE: Duration = Duration::from_millis(700);
/// How long a busy machine may take.
const LIMIT: Duration = Duration::from_secs(60);

fn frames(count: u64) -> Option<Bytes> {
    Some(Bytes::new(count * 1_514))
}

/// A device whose limit somebody had set, or not.
fn with_device(limit: Option<u16>, test: impl FnOnce(&mut Socket) + Send + 'static) {
    in_network_namespace(&[], move || {
        let mut socket = Socket::open().unwrap();
        let end = |name, ifindex| End { name, ifindex, process: None, mtu: 1_500 };
        socket.batch(&[add_cable(&end("p0", DEVICE), &end("p1", 31))]).unwrap();
        socket.batch(&[set_segments_max(DEVICE, limit)]).unwrap();
        test(&mut socket);
    });
}

// Each step by a socket of its own, as after `kill -9` of who took the one before.
#[test]
fn a_limit_is_set_changed_and_given_back_by_whoever_comes() {
    with_device(Some(300), |socket| {
        let found = observe(socket, DEVICE).unwrap();
        assert_eq!(diff(frames(1), &found), [Op::Remember, Op::Limit(1)]);
        for count in [1, 7] {
            limit(&mut Socket::open().unwrap(), DEVICE, frames(count)).unwrap();
            let now = observe(socket, DEVICE).unwrap();
            assert_eq!(diff(frames(count), &now), []);
            assert_eq!(diff(None, &now), [Op::Limit(300), Op::Forget]);
        }
        limit(&mut Socket::open().unwrap(), DEVICE, None).unwrap();
        assert_eq!(observe(socket, DEVICE).unwrap(), found);
    });
}

#[test]
fn less_that_somebody_else_has_set_stays() {
    with_device(Some(1), |socket| {
        let found = observe(socket, DEVICE).unwrap();
        limit(socket, DEVICE, frames(2)).unwrap();
        limit(socket, DEVICE, None).unwrap();
        assert_eq!(observe(socket, DEVICE).unwrap(), found);
    });
}

#[test]
fn no_such_device_is_told() {
    with_device(None, |socket| {
        let error = limit(socket, 77, frames(1)).unwrap_err().to_string();
        assert!(error.contains("RTM_GETLINK of interface 77"), "{error}");
    });
}

/// Bytes in a packet, on the average, as best effort of the first node hands them to its class: until they are as
/// `wanted`, since what waits already passes first, and what they are in the end.
fn mean_packet(rig: &Rig, wanted: impl Fn(f64) -> bool) -> f64 {
    let start = Instant::now();
    loop {
        let before = handed_over(rig);
        std::thread::sleep(PHASE);
        let after = handed_over(rig);
        let mean = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
        let is_known = after.1 > before.1 + 50;
        if start.elapsed() > LIMIT || (is_known && wanted(mean)) {
            return mean;
        }
    }
}

/// Bytes and packets that the class let pass: `Sent 12345 bytes …`, and of whom it had the rate for each
/// packet, whole as it was handed over: `lended: 12 borrowed: 34 …`.
fn handed_over(rig: &Rig) -> (u64, u64) {
    let class = Handle { major: TREE_MAJOR, minor: BEST_EFFORT_MINOR }.to_string();
    let shown = rig.node(0).run(move || {
        let show = ["-s", "class", "show", "dev", "eth0", "classid", &class];
        Command::new("tc").args(show).output().unwrap().stdout
    });
    let shown = String::from_utf8_lossy(&shown);
    let after = |word: &str| -> u64 {
        let rest = shown.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in {shown}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    (after("Sent "), after("lended: ") + after("borrowed: "))
}

// A connection that is open before anybody asks for more than best effort: from then on it hands over single
// frames, and long packets again when nobody asks any more.
#[test]
fn open_connections_hand_over_short_packets_while_others_ask_for_more_than_best_effort() {
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let rig = Rig::new(2, &Link::new("test", BitsPerSecond::from_mbit(100))).unwrap();
    // The rig's wire cuts what is longer than its bucket by itself, before the classes see it.
    rig.node(0).run(|| {
        let mut socket = Socket::open().unwrap();
        let all = interfaces(&mut socket).unwrap();
        let (_, index) = all.into_iter().find(|(name, _)| name == "eth0").unwrap();
        socket.batch(&[set_segment_max(index, 12_000)]).unwrap();
    });
    let (_, cgroup_id) = rig.job("job").unwrap();
    let destination = Some(rig.address(1));
    let flow = |class| {
        let rate = BitsPerSecond::from_mbit(1);
        Flow { cgroup_id, destination, rate, up_to: rate, burst: None, class }
    };
    rig.enforce(0, &[flow(TrafficClass::BestEffort)]).unwrap();
    let _traffic = rig.send(0, 1, None, 0).unwrap();
    let (is_long, is_short) = (|mean| mean > 3_028.0, |mean| mean <= 1_514.0);
    let long = mean_packet(&rig, is_long);
    rig.enforce(0, &[flow(TrafficClass::LowLatency)]).unwrap();
    let short = mean_packet(&rig, is_short);
    rig.enforce(0, &[flow(TrafficClass::BestEffort)]).unwrap();
    let again = mean_packet(&rig, is_long);
    println!("{long:.0}, then {short:.0}, then {again:.0} bytes in a packet");
    assert!(is_long(long) && is_long(again), "{long} and {again} bytes");
    assert!(is_short(short), "{short} bytes");
    rig.release(0).unwrap();
}
