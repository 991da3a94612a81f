//! The flow program in the kernel: what it does to packets, and how it outlives its agent.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::counters::interface_counters;
use keeptime_linux::egress::{BEST_EFFORT_MINOR, FLOW_MINOR_MIN, Flow, Link};
use keeptime_linux::flows::{
    ControlCgroup, FlowKey, FlowMark, FlowOp, FlowTable, Flows, Settings, diff,
};
use keeptime_linux::netlink::Socket;
use keeptime_linux::sockets::{Connection, connections, of_process};
use keeptime_linux::tc::{Handle, Hook, TREE_MAJOR, programs};
use keeptime_linux::testing::rig::Rig;
use keeptime_linux::testing::{can, in_network_namespace};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Share};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LOOPBACK: u32 = 1;

/// A test that makes sockets in a job's group takes this whole process there: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static GROUP: Mutex<()> = Mutex::new(());
    GROUP.lock().unwrap_or_else(PoisonError::into_inner)
}

fn table(entries: &[(u64, Option<u8>, u16)]) -> FlowTable {
    let entry = |(cgroup_id, host, minor): &(u64, Option<u8>, u16)| {
        let destination = host.map(|host| Ipv4Addr::new(10, 0, 0, host));
        let class = Handle { major: TREE_MAJOR, minor: *minor };
        (FlowKey { cgroup_id: *cgroup_id, destination }, FlowMark { class, dscp: 46 })
    };
    FlowTable { entries: entries.iter().map(entry).collect::<BTreeMap<_, _>>() }
}

// Install, forget, adopt: the table and the settings are those of the forgotten agent, changes
// hold, and at the end nothing is left.
#[test]
fn a_restarted_agent_finds_the_table_of_the_one_before() {
    in_network_namespace(&["bpf"], || {
        let mut socket = Socket::open().unwrap();
        let settings = Settings {
            job_level: 2,
            control: Some(ControlCgroup { id: 99, level: 1 }),
            control_class: Some(Handle { major: TREE_MAJOR, minor: 2 }),
            major: TREE_MAJOR,
        };
        assert!(Flows::adopt(&mut socket, LOOPBACK).unwrap().is_none());
        let before = table(&[(7, Some(2), 0x10), (7, None, 2), (8, Some(3), 0x11)]);
        drop(Flows::install(&mut socket, LOOPBACK, &settings, &before).unwrap());
        let mut adopted = Flows::adopt(&mut socket, LOOPBACK).unwrap().unwrap();
        assert_eq!(adopted.read().unwrap(), before);
        assert_eq!(adopted.settings().unwrap(), settings);
        let after = table(&[(7, Some(2), 0x12), (9, Some(3), 0x11)]);
        let ops = diff(&after, &before);
        assert_eq!(ops.len(), 4);
        adopted.apply(&ops).unwrap();
        let program = programs(&mut socket, LOOPBACK, Hook::Egress).unwrap();
        drop(adopted);
        let mut adopted = Flows::adopt(&mut socket, LOOPBACK).unwrap().unwrap();
        assert_eq!(adopted.read().unwrap(), after);
        // A new version of the program takes the place of the old one: there is never a second.
        Flows::install(&mut socket, LOOPBACK, &settings, &before).unwrap();
        let replaced = programs(&mut socket, LOOPBACK, Hook::Egress).unwrap();
        assert_eq!((program.len(), replaced.len()), (1, 1));
        assert_ne!(program, replaced);
        let gone = FlowKey { cgroup_id: 1, destination: None };
        let error = adopted.apply(&[FlowOp::Remove(gone)]).unwrap_err();
        assert!(error.to_string().contains("cgroup 1"), "{error}");
        Flows::remove(&mut socket, LOOPBACK).unwrap();
        Flows::remove(&mut socket, LOOPBACK).unwrap();
        assert!(Flows::adopt(&mut socket, LOOPBACK).unwrap().is_none());
    });
}

/// Asks for the type of service of each datagram.
fn receive_tos(socket: &UdpSocket) {
    let (on, length) = (1i32, size_of::<i32>() as u32);
    let (level, name) = (nix::libc::IPPROTO_IP, nix::libc::IP_RECVTOS);
    // SAFETY: `on` is an int that lives through the call, and `length` is its size.
    let result = unsafe {
        nix::libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), length)
    };
    assert_eq!(result, 0);
}

/// Sends one datagram with this type of service and says which one arrives.
fn tos_after(rig: &Rig, job: Option<&Path>, tos: i32) -> u8 {
    datagram(rig, job, tos, None)
}

fn datagram(rig: &Rig, job: Option<&Path>, tos: i32, class: Option<Handle>) -> u8 {
    let receiver = receiver(rig);
    let bind = || rig.node(0).run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let sender = job.map_or_else(bind, |directory| rig.in_job(directory, bind));
    setsockopt(&sender, sockopt::Ipv4Tos, &tos).unwrap();
    if let Some(class) = class {
        // After the type of service, which sets a priority of its own.
        setsockopt(&sender, sockopt::Priority, &class.to_u32().cast_signed()).unwrap();
    }
    sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
    received_tos(&receiver)
}

/// On the second node, which says what type of service arrives.
fn receiver(rig: &Rig) -> UdpSocket {
    let target = rig.address(1);
    let receiver = rig.node(1).run(move || UdpSocket::bind((target, 0)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    receive_tos(&receiver);
    receiver
}

fn received_tos(receiver: &UdpSocket) -> u8 {
    let (mut byte, mut space) = ([0], nix::cmsg_space!(u8));
    let mut parts = [IoSliceMut::new(&mut byte)];
    let fd = receiver.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let found = message.cmsgs().unwrap().find_map(|part| match part {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    });
    found.unwrap()
}

// The receiver sees what the program made of the mark (and that the header's checksum is right,
// or nothing would arrive): EF for the job's flow, CS6 for its other destinations, nothing for who
// claims either; the two congestion bits and other marks stay as they were.
#[test]
fn marks_are_given_to_flows_and_taken_from_everybody_else() {
    let _alone = alone();
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let control_share = Share::from_percent(2).unwrap();
    let rate = BitsPerSecond::from_mbit(100);
    let rig = Rig::new(2, &Link { name: "test".into(), rate, control_share }).unwrap();
    let (directory, cgroup_id) = rig.job("job").unwrap();
    let (other_directory, other_id) = rig.job("other").unwrap();
    let flow = |cgroup_id, destination, class| {
        let rate = BitsPerSecond::from_mbit(10);
        Flow { cgroup_id, destination, rate, up_to: rate, burst: None, class }
    };
    let flows = [
        flow(cgroup_id, Some(rig.address(1)), TrafficClass::Premium),
        flow(other_id, None, TrafficClass::LowLatency),
    ];
    rig.enforce(0, &flows).unwrap();
    let (job, other) = (Some(directory.as_path()), Some(other_directory.as_path()));
    assert_eq!(tos_after(&rig, job, 0x00), 46 << 2);
    assert_eq!(tos_after(&rig, job, 0x02), 46 << 2 | 2);
    assert_eq!(tos_after(&rig, job, 0x20), 46 << 2);
    assert_eq!(tos_after(&rig, other, 0x01), 48 << 2 | 1);
    assert_eq!(tos_after(&rig, None, 46 << 2 | 1), 1);
    assert_eq!(tos_after(&rig, None, 48 << 2), 0);
    assert_eq!(tos_after(&rig, None, 10 << 2), 10 << 2);
    let classes = rig.node_counters(0).unwrap();
    assert_eq!(classes[&FLOW_MINOR_MIN].packets, 3);
    assert_eq!(classes[&BEST_EFFORT_MINOR].packets, 3);
    // Nor can anybody walk into the class by its number.
    let stolen = Handle { major: TREE_MAJOR, minor: FLOW_MINOR_MIN };
    datagram(&rig, None, 0, Some(stolen));
    let classes = rig.node_counters(0).unwrap();
    assert_eq!(classes[&FLOW_MINOR_MIN].packets, 3);
    assert_eq!(classes[&BEST_EFFORT_MINOR].packets, 4);
    // The control group may mark as it likes, once the settings say so, from then on.
    let (directory, id) = rig.job("control").unwrap();
    rig.node(0).run(move || {
        let index = nix::net::if_::if_nametoindex("eth0").unwrap();
        let mut flows = Flows::adopt(&mut Socket::open().unwrap(), index).unwrap().unwrap();
        let settings = flows.settings().unwrap();
        let control = Some(ControlCgroup { id, level: settings.job_level });
        flows.set_settings(&Settings { control, ..settings }).unwrap();
    });
    assert_eq!(tos_after(&rig, Some(directory.as_path()), 48 << 2), 48 << 2);
    assert_eq!(tos_after(&rig, None, 48 << 2), 0);
    let sent = rig.node(0).run(|| {
        let index = nix::net::if_::if_nametoindex("eth0").unwrap();
        interface_counters(&mut Socket::open().unwrap(), index).unwrap().sent
    });
    assert!(sent.packets >= 7 && sent.drops == 0, "{sent:?}");
}

// A socket that was made before its process belonged to any job: nothing that moves the process
// changes its packets; bound by its cookie, they are the job's from the next packet on, and an agent
// that starts again finds it bound. A job without a flow to there changes nothing.
#[test]
fn a_socket_that_is_open_already_is_bound_and_let_go() {
    let _alone = alone();
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let rig = Rig::new(3, &Link::new("test", BitsPerSecond::from_mbit(100))).unwrap();
    let (directory, cgroup_id) = rig.job("job").unwrap();
    let flow = Flow {
        cgroup_id,
        destination: Some(rig.address(1)),
        rate: BitsPerSecond::from_mbit(10),
        up_to: BitsPerSecond::from_mbit(10),
        burst: None,
        class: TrafficClass::Premium,
    };
    rig.enforce(0, &[flow]).unwrap();
    let receiver = receiver(&rig);
    let to = receiver.local_addr().unwrap();
    let sender = rig.node(0).run(move || {
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        sender.connect(to).unwrap();
        sender
    });
    let tos = || {
        sender.send(b"x").unwrap();
        received_tos(&receiver)
    };
    assert_eq!(tos(), 0);
    // The socket stays where it was made although its whole process is in the job's group now.
    assert_eq!(rig.in_job(&directory, tos), 0);

    let local = sender.local_addr().unwrap();
    let with_flows = move |work: fn(&mut Flows, u64, u64)| {
        rig.node(0).run(move || {
            let index = nix::net::if_::if_nametoindex("eth0").unwrap();
            let mut flows = Flows::adopt(&mut Socket::open().unwrap(), index).unwrap().unwrap();
            let all = connections().unwrap();
            let own = of_process(std::process::id() as i32, &all).unwrap();
            let is_it = |c: &&Connection| SocketAddr::V4(c.local) == local;
            let cookie = own.iter().find(is_it).unwrap().cookie;
            work(&mut flows, cookie, cgroup_id);
        });
    };
    with_flows(|flows, cookie, cgroup_id| flows.bind(cookie, cgroup_id).unwrap());
    assert_eq!(tos(), 46 << 2);
    with_flows(|flows, cookie, cgroup_id| {
        assert_eq!(flows.bound().unwrap(), BTreeMap::from([(cookie, cgroup_id)]));
        flows.retain_bound(|bound, _| bound == cookie).unwrap();
        // Of a job that has no flow to there, or none any more.
        flows.bind(cookie, 1).unwrap();
    });
    assert_eq!(tos(), 0);
    with_flows(|flows, cookie, cgroup_id| {
        flows.bind(cookie, cgroup_id).unwrap();
        flows.retain_bound(|bound, _| bound != cookie).unwrap();
    });
    assert_eq!(tos(), 0);
}
