//! The flow program in the kernel: what it does to packets, and how it outlives its agent.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::egress::{BEST_EFFORT_MINOR, CONTROL_MINOR, FLOW_MINOR_MIN, Flow, Link};
use keeptime_linux::flows::{FlowKey, FlowMark, FlowOp, FlowTable, Flows, Settings, diff};
use keeptime_linux::netlink::Socket;
use keeptime_linux::sockets::{Connection, connections, of_processes};
use keeptime_linux::tc::{Handle, Hook, TREE_MAJOR, programs};
use keeptime_linux::testing::rig::Rig;
use keeptime_linux::testing::{can, in_network_namespace, marks, skip};
use keeptime_locks::lock;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Share};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const LOOPBACK: u32 = 1;

/// A test that makes sockets in a job's group takes this whole process there: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static GROUP: Mutex<()> = Mutex::new(());
    lock(&GROUP)
}

fn table(entries: &[(u64, Option<u8>, u16)]) -> FlowTable {
    let entry = |(cgroup_id, host, minor): &(u64, Option<u8>, u16)| {
        let destination = host.map(|host| Ipv4Addr::new(10, 0, 0, host));
        let class = Handle { major: TREE_MAJOR, minor: *minor };
        (FlowKey { cgroup_id: *cgroup_id, destination }, FlowMark { class, dscp: 46 })
    };
    FlowTable { entries: entries.iter().map(entry).collect::<BTreeMap<_, _>>() }
}

// What is behind the header of an Ethernet frame is read where that is: other frames would be changed anywhere.
#[test]
fn a_device_whose_frames_are_others_is_refused() {
    in_network_namespace(&[], || {
        let mut socket = Socket::open().unwrap();
        Flows::check_device(&mut socket, LOOPBACK).unwrap();
        let made = Command::new("ip").args(["tuntap", "add", "dev", "t0", "mode", "tun"]).status();
        let Ok(tunnel) = nix::net::if_::if_nametoindex("t0") else {
            return skip(&["tun".into()], &format!("there can be no tunnel: {made:?}"));
        };
        let refused = Flows::check_device(&mut socket, tunnel).unwrap_err().to_string();
        assert!(refused.contains("of kind NONE") && refused.contains("Ethernet"), "{refused}");
    });
}

// Install, forget, adopt: the table and the settings are those of the forgotten agent, changes
// hold, and at the end nothing is left.
#[test]
fn a_restarted_agent_finds_the_table_of_the_one_before() {
    in_network_namespace(&["bpf"], || {
        let mut socket = Socket::open().unwrap();
        let settings = Settings {
            job_level: 2,
            resolution: Some(Handle { major: TREE_MAJOR, minor: CONTROL_MINOR }),
            major: TREE_MAJOR,
        };
        assert!(Flows::adopt(&mut socket, LOOPBACK).unwrap().is_none());
        let before = table(&[(7, Some(2), 0x10), (7, None, 2), (8, Some(3), 0x11)]);
        drop(Flows::install(&mut socket, LOOPBACK, &settings, &before).unwrap());
        let mut adopted = Flows::adopt(&mut socket, LOOPBACK).unwrap().unwrap();
        assert_eq!(adopted.read().unwrap(), before);
        assert_eq!(adopted.settings().unwrap(), settings);
        assert!(adopted.is_current(), "its name came back from the kernel");
        // This one has its jobs elsewhere.
        let moved = Settings { job_level: 3, resolution: None, ..settings };
        adopted.keep_settings(&moved).unwrap();
        assert_eq!(adopted.settings().unwrap(), moved);
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

// Goal: where somebody polices what comes in, a program for what leaves is refused: the kernel would take it, and give it
// what comes in.
#[test]
fn a_program_for_what_leaves_is_not_put_where_packets_come_in() {
    in_network_namespace(&["bpf"], || {
        let added = Command::new("tc").args(["qdisc", "add", "dev", "lo", "ingress"]).output();
        let Some(true) = added.ok().map(|output| output.status.success()) else {
            return skip(&["tc".to_owned()], "no ingress qdisc can be made");
        };
        let mut socket = Socket::open().unwrap();
        let settings = Settings { job_level: 2, resolution: None, major: TREE_MAJOR };
        let refused = Flows::install(&mut socket, LOOPBACK, &settings, &FlowTable::default());
        assert!(refused.is_err());
        for hook in [Hook::Ingress, Hook::Egress] {
            assert_eq!(programs(&mut socket, LOOPBACK, hook).unwrap(), []);
        }
    });
}

/// Sends one datagram with this type of service and says which one arrives.
fn tos_after(rig: &Rig, job: Option<&Path>, tos: u8) -> u8 {
    datagram(rig, job, rig.address(1).into(), tos, None)
}

/// Sends one datagram to an address of the second node with this traffic class and says which one arrives.
fn datagram(rig: &Rig, job: Option<&Path>, to: IpAddr, asked: u8, class: Option<Handle>) -> u8 {
    let receiver = receiver(rig, to);
    let to = receiver.local_addr().unwrap();
    let make = || rig.node(0).run(move || marks::sender(to, asked).unwrap());
    let sender = job.map_or_else(make, |directory| rig.in_job(directory, make));
    if let Some(class) = class {
        // After the type of service, which sets a priority of its own.
        setsockopt(&sender, sockopt::Priority, &class.to_u32().cast_signed()).unwrap();
    }
    sender.send_to(b"x", to).unwrap();
    marks::received(&receiver).unwrap()
}

/// On the second node, which says what traffic class arrives.
fn receiver(rig: &Rig, address: IpAddr) -> UdpSocket {
    rig.node(1).run(move || marks::receiver(address).unwrap())
}

/// Both nodes have IPv6 from now on: the address of the second, or nothing where the kernel has none.
fn with_ipv6(rig: &Rig) -> Option<IpAddr> {
    let address = |node: u16| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, node + 1);
    for node in 0..2 {
        let own = address(node);
        let given = rig.node(node.into()).run(move || marks::give_ipv6("eth0", own));
        if let Err(reason) = given {
            skip(&["ipv6".into()], &reason);
            return None;
        }
    }
    Some(address(1).into())
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
    // With one datagram of the job's: what asks for an address waits behind nobody.
    assert!(classes[&CONTROL_MINOR].packets > 1);
    // Nor can anybody walk into the class by its number.
    let stolen = Handle { major: TREE_MAJOR, minor: FLOW_MINOR_MIN };
    datagram(&rig, None, rig.address(1).into(), 0, Some(stolen));
    let classes = rig.node_counters(0).unwrap();
    assert_eq!(classes[&FLOW_MINOR_MIN].packets, 3);
    assert_eq!(classes[&BEST_EFFORT_MINOR].packets, 4);
}

// Goal: IPv6 is no way around: EF and CS6 that nobody reserved are removed there too, the congestion bits and other marks
// stay, and a job's flow to everywhere has its class; one to an address of IPv4 says nothing of IPv6. The nodes find
// each other (neighbour discovery) through the program, and what is longer than a packet arrives whole.
#[test]
fn marks_are_given_and_taken_in_ipv6_as_well() {
    let _alone = alone();
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let rig = Rig::new(2, &Link::new("test", BitsPerSecond::from_mbit(100))).unwrap();
    let (everywhere, everywhere_id) = rig.job("everywhere").unwrap();
    let (elsewhere, elsewhere_id) = rig.job("elsewhere").unwrap();
    let rate = BitsPerSecond::from_mbit(10);
    let flow = |cgroup_id, destination, class| Flow {
        cgroup_id,
        destination,
        rate,
        up_to: rate,
        burst: None,
        class,
    };
    let flows = [
        flow(everywhere_id, None, TrafficClass::LowLatency),
        flow(elsewhere_id, Some(rig.address(1)), TrafficClass::Premium),
    ];
    rig.enforce(0, &flows).unwrap();
    let Some(to) = with_ipv6(&rig) else { return };
    let after = |job: Option<&Path>, asked: u8| datagram(&rig, job, to, asked, None);
    assert_eq!(after(None, 46 << 2 | 1), 1);
    assert_eq!(after(None, 48 << 2 | 2), 2);
    assert_eq!(after(None, 10 << 2), 10 << 2);
    assert_eq!(after(None, 3), 3);
    assert!(rig.node_counters(0).unwrap()[&CONTROL_MINOR].packets > 0, "what asks for an address");
    assert_eq!(after(Some(everywhere.as_path()), 46 << 2 | 2), 48 << 2 | 2);
    assert_eq!(after(Some(everywhere.as_path()), 0), 48 << 2);
    assert_eq!(after(Some(elsewhere.as_path()), 46 << 2), 0);
    // As with IPv4, nobody walks into the class by its number.
    let classes = || rig.node_counters(0).unwrap()[&FLOW_MINOR_MIN].packets;
    let before = classes();
    let stolen = Handle { major: TREE_MAJOR, minor: FLOW_MINOR_MIN };
    datagram(&rig, None, to, 0, Some(stolen));
    assert_eq!(classes(), before);

    let listener = rig.node(1).run(move || TcpListener::bind((to, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let mut sender = rig.node(0).run(move || TcpStream::connect(to).unwrap());
    setsockopt(&sender, sockopt::Ipv6TClass, &(46 << 2)).unwrap();
    let mut receiver = listener.accept().unwrap().0;
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let sent: Vec<u8> = (0..1_000_000u32).map(|at| at as u8).collect();
    let mut arrived = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&sent).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        receiver.read_to_end(&mut arrived).unwrap();
    });
    assert!(arrived == sent, "{} bytes of {}", arrived.len(), sent.len());
}

/// What the frames below end with.
const MARKED: &[u8] = b"keeptime";

/// A frame to everybody with so many VLAN tags in it, whose packet asks for EF.
fn tagged_frame(tags: usize) -> Vec<u8> {
    let mut header =
        [0x45, 46 << 2 | 1, 0, 28, 0, 0, 0, 0, 64, 253, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
    let check = !sum_of(&header);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    let mut frame = [[0xff_u8; 6], [2, 0, 0, 0, 0, 1]].concat();
    frame.extend([0x81_u8, 0, 0, 5].repeat(tags));
    frame.extend([0x08_u8, 0]);
    frame.extend(header);
    frame.extend(MARKED);
    frame
}

/// Of an IP header, as its checksum is reckoned.
fn sum_of(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The IP header of the next marked frame, whatever tags are in front of it.
fn received_header(listening: &OwnedFd) -> Vec<u8> {
    loop {
        let mut frame = [0; 2_048];
        let length = recv(listening.as_raw_fd(), &mut frame, MsgFlags::empty()).unwrap();
        let frame = &frame[..length];
        if let Some(packet) = frame.strip_suffix(MARKED) {
            return packet[packet.len() - 20..].to_vec();
        }
    }
}

// Goal: a VLAN tag in the frame hides no code point. Method: frames are written as a device of a VLAN would hand them to
// the one below it, and read on the other node; the header's checksum is that of what it has become.
#[test]
fn a_tag_in_the_frame_hides_no_mark() {
    let _alone = alone();
    if !can(&["htb", "tbf", "bpf", "cgroup2"]) {
        return;
    }
    let rig = Rig::new(2, &Link::new("test", BitsPerSecond::from_mbit(100))).unwrap();
    rig.enforce(0, &[]).unwrap();
    let listening = rig.node(1).run(|| {
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        socket(family, kind, SockFlag::empty(), SockProtocol::EthAll).unwrap()
    });
    setsockopt(&listening, sockopt::ReceiveTimeout, &TimeVal::new(60, 0)).unwrap();
    for tags in 0..=2 {
        let frame = tagged_frame(tags);
        rig.node(0).run(move || {
            let own = getifaddrs().unwrap().filter(|one| one.interface_name == "eth0");
            let device = own.filter_map(|one| one.address?.as_link_addr().copied()).next();
            let (family, kind) = (AddressFamily::Packet, SockType::Raw);
            let sending = socket(family, kind, SockFlag::empty(), None).unwrap();
            sendto(sending.as_raw_fd(), &frame, &device.unwrap(), MsgFlags::empty()).unwrap();
        });
        let header = received_header(&listening);
        assert_eq!((header[1], sum_of(&header)), (1, 0xffff), "{tags} tags");
    }
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
    let receiver = receiver(&rig, rig.address(1).into());
    let to = receiver.local_addr().unwrap();
    let sender = rig.node(0).run(move || {
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        sender.connect(to).unwrap();
        sender
    });
    let tos = || {
        sender.send(b"x").unwrap();
        marks::received(&receiver).unwrap()
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
            let own = of_processes(&[std::process::id() as i32], &all).unwrap();
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
