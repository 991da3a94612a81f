//! Reads that the kernel answers on an interface: across a cable between two network namespaces. Needs root
//! and eBPF; says so where it cannot run.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::directory::{Server, ServerConfig};
use keeptime_fabric::region::packet::{Answer, Asked, Question, Refusal};
use keeptime_fabric::region::{
    ATTRIBUTE, Address, AnsweredBy, Layout, Memories, Reader, Region, RegionError, RegionServer,
    RegionServerConfig,
};
use keeptime_fabric::{Attributes, Config, Context, attrs};
use keeptime_fabricd::KernelMemories;
use keeptime_linux::testing::{can, rig::Space};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

const NAME: &str = "keeptime-fabric";
/// Of the publishing node on the cable where the kernel answers, and on the one where it does not.
const ANSWERING: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const PLAIN: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);

/// Two nodes with two cables: one daemon each.
struct Cluster {
    here: Space,
    there: Space,
    _daemons: [Server; 2],
    regions: RegionServer,
}

impl Cluster {
    fn new() -> Self {
        let (here, there) = (Space::new().unwrap(), Space::new().unwrap());
        for (name, prefix) in [("net0", 78), ("net1", 79)] {
            let address = |host| Ipv4Addr::new(10, prefix, 0, host);
            here.plug(&there, name, [address(1), address(2)]).unwrap();
        }
        let regions = there.run(start_regions);
        let address = SocketAddr::from((PLAIN, 7400));
        let far = there.run(move || daemon("there", address, vec![]));
        let near = here.run(move || daemon("here", ([10, 79, 0, 1], 7400).into(), vec![address]));
        Self { here, there, _daemons: [far, near], regions }
    }

    fn publish(&self, layout: Layout) -> (Context, Region) {
        self.there.run(move || {
            // Found at this address, so the kernel's is the one that is asked.
            let mut config = Config::default();
            config.listen = (ANSWERING, 0).into();
            let context = Context::open(config).unwrap();
            let region = context.publish(attrs! { "test" => "kernel" }, layout).unwrap();
            (context, region)
        })
    }

    fn open(&self) -> (Context, Reader) {
        self.here.run(|| {
            let context = Context::open(Config::default()).unwrap();
            let query: Attributes = attrs! { "test" => "kernel" };
            context.find(query.clone()).one_of_any_within(Duration::from_secs(30)).unwrap();
            let records = context.find(query).all().unwrap();
            let reader = context.open_region(&records[0]).unwrap();
            (context, reader)
        })
    }
}

/// Answered for by the kernel on `net0`.
fn start_regions() -> RegionServer {
    let config = RegionServerConfig { name: NAME.into(), port: 0 };
    let kernel = |port| -> std::io::Result<Box<dyn Memories>> {
        Ok(Box::new(KernelMemories::new(port, &["net0".into()]).unwrap()))
    };
    RegionServer::start(&config, kernel).unwrap()
}

fn daemon(node: &str, address: SocketAddr, members: Vec<SocketAddr>) -> Server {
    Server::start(ServerConfig {
        name: NAME.into(),
        node: node.into(),
        address,
        members,
        key: None,
    })
    .unwrap()
}

#[test]
fn the_kernel_answers_for_regions_of_any_length() {
    if !can(&["bpf"]) {
        return;
    }
    let cluster = Cluster::new();
    for bytes in [48, 1000, 10_000] {
        let layout = Layout::new(3, bytes).unwrap().with_adds();
        let (_context, region) = cluster.publish(layout);
        let (_here, reader) = cluster.open();
        let by = AnsweredBy::NetworkProgram;
        let written: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        region.write(1, &written).unwrap();
        region.fetch_add(1, 40).unwrap();
        let mut data = vec![0; bytes as usize];
        let reading = reader.read(1, &mut data).unwrap();
        assert_eq!((reading.sequence, reading.counter, reading.by), (2, 40, by));
        assert!(data == written);
        for number in 0..20 {
            assert_eq!(reader.fetch_add(1, 2), Ok((40 + 2 * number, by)));
        }
        assert_eq!(region.counter(1), Ok(80));
        assert_eq!(reader.read(0, &mut data).unwrap().sequence, 0);
        drop(region);
        let start = Instant::now();
        while reader.read(1, &mut data).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(30));
        }
        assert_eq!(reader.read(1, &mut data), Err(RegionError::Gone(reader.id())));
    }
}

/// Whatever is asked, sensible or not: the program on one cable and the daemon on the other say the same.
#[test]
fn the_kernel_decides_as_the_daemon_does() {
    if !can(&["bpf"]) {
        return;
    }
    let cluster = Cluster::new();
    let (_context, region) = cluster.publish(Layout::new(3, 200).unwrap().with_adds());
    let (_other, closed) = cluster.publish(Layout::cells(2).unwrap());
    region.write(2, &[3; 200]).unwrap();
    let addresses = {
        let context = cluster.here.run(|| Context::open(Config::default()).unwrap());
        // Until this node's daemon knows the other's.
        let records = loop {
            let records = context.find(attrs! { "test" => "kernel" }).all().unwrap();
            if records.len() == 2 {
                break records;
            }
            std::thread::yield_now();
        };
        let address = |id| {
            let record = records.iter().find(|record| record.id == id).unwrap();
            record.attributes.value(ATTRIBUTE).unwrap().parse::<Address>().unwrap()
        };
        [address(region.id()), address(closed.id())]
    };
    let port = cluster.regions.port();
    // Whoever does not answer it has seen it when he answers the one behind it.
    let behind = {
        let Address { key, slot: region, .. } = addresses[0];
        let asked = Asked::Read { offset: 0, slots: 1 };
        Question { number: u64::MAX, key, region, record: 0, asked }
    };
    let ask = move |to: Ipv4Addr, question: &Question| -> Option<(Result<u64, _>, Vec<u8>, _)> {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((to, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.send(&question.encode()).unwrap();
        socket.send(&behind.encode()).unwrap();
        let mut bytes = [0; 2000];
        loop {
            let length = socket.recv(&mut bytes).ok()?;
            let (answer, slots) = Answer::decode(&bytes[..length]).unwrap();
            if answer.question == behind {
                // Time for the daemon, should the kernel have left the other one to it.
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                continue;
            }
            assert_eq!(answer.question, *question);
            let slots = if answer.result.is_ok() { slots.to_vec() } else { Vec::new() };
            return Some((answer.result, slots, answer.by));
        }
    };
    let mut questions = Vec::new();
    for (address, key_off) in [(addresses[0], 0), (addresses[0], 1), (addresses[1], 0)] {
        let question = move |number, record, asked| {
            let (key, region) = (address.key.wrapping_add(key_off), address.slot);
            Question { number, key, region, record, asked }
        };
        for record in [0, 2, 3, u32::MAX] {
            for (offset, slots) in [(0, 1), (0, 4), (3, 1), (1, 3), (4, 1), (0, 5), (u32::MAX, 20)]
            {
                questions.push(question(1, record, Asked::Read { offset, slots }));
            }
        }
        let session = 7 + key_off;
        let add = Asked::Add { session, amount: 5 };
        questions.push(question(1, 0, add));
        questions.push(question(9, 0, Asked::Open { session }));
        // Once, again, the next, a late copy, one that is too early, and no such record.
        for (number, record) in [(1, 0), (1, 0), (2, 0), (1, 0), (4, 0), (3, 7), (3, 0)] {
            questions.push(question(number, record, add));
        }
    }
    questions.push(Question { region: 1023, ..questions[0] });
    questions.push(Question { region: 5_000_000, ..questions[0] });
    let answers = cluster.here.run(move || {
        let both = |question| (ask(ANSWERING, question), ask(PLAIN, question));
        questions.iter().map(|question| (*question, both(question))).collect::<Vec<_>>()
    });
    for (question, (kernel, daemon)) in answers {
        let by = |answer: &Option<(_, _, AnsweredBy)>| answer.as_ref().map(|answer| answer.2);
        assert!(matches!(by(&kernel), None | Some(AnsweredBy::NetworkProgram)), "{question:?}");
        assert!(matches!(by(&daemon), None | Some(AnsweredBy::Responder)), "{question:?}");
        let same = |answer: Option<(Result<u64, _>, Vec<u8>, _)>| {
            // Each has added for itself.
            let is_add = matches!(question.asked, Asked::Add { .. });
            answer.map(|(result, slots, _)| {
                let slots: Vec<u8> = slots
                    .into_iter()
                    .enumerate()
                    .map(|(at, byte)| if (8..16).contains(&at) { 0 } else { byte })
                    .collect();
                (result.map(|value| if is_add { 0 } else { value }), slots)
            })
        };
        assert_eq!(same(kernel), same(daemon), "{question:?}");
    }
    // 5 for number 1, 2 and 3, on each cable.
    assert_eq!(region.counter(0), Ok(30));
}

/// A node whose interfaces are in a bridge: what is asked of a host behind it arrives there, what is asked of the
/// node itself the kernel answers.
#[test]
fn what_is_for_another_host_passes_through() {
    if !can(&["bpf"]) {
        return;
    }
    let [here, there, beyond] = [(); 3].map(|()| Space::new().unwrap());
    let other = Ipv4Addr::new(10, 78, 0, 3);
    here.plug(&there, "net0", [Ipv4Addr::new(10, 78, 0, 1), ANSWERING]).unwrap();
    there.plug(&beyond, "net1", [Ipv4Addr::new(10, 78, 0, 4), other]).unwrap();
    there.run(bridge);
    let regions = there.run(start_regions);
    let port = regions.port();
    let asking = here.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let behind = beyond.run(move || UdpSocket::bind((other, port)).unwrap());
    let asked = Asked::Read { offset: 0, slots: 1 };
    let question = Question { number: 1, key: 1, region: 0, record: 0, asked };
    // Asked again until something arrives: a bridge that has just come up may lose what comes first.
    let arrives = |to: Ipv4Addr, at: &UdpSocket| {
        at.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (start, mut bytes) = (Instant::now(), vec![0; 2000]);
        loop {
            asking.send_to(&question.encode(), (to, port)).unwrap();
            if let Ok((length, from)) = at.recv_from(&mut bytes) {
                bytes.truncate(length);
                return (bytes, from);
            }
            assert!(start.elapsed() < Duration::from_secs(30), "asked at {to}");
        }
    };
    let (bytes, from) = arrives(other, &behind);
    assert_eq!(Question::decode(&bytes), Some(question));
    assert_eq!(from.ip(), Ipv4Addr::new(10, 78, 0, 1));
    let (bytes, from) = arrives(ANSWERING, &asking);
    let (answer, _) = Answer::decode(&bytes).unwrap();
    assert_eq!((answer.by, answer.result), (AnsweredBy::NetworkProgram, Err(Refusal::Gone)));
    assert_eq!(from, SocketAddr::from((ANSWERING, port)));
}

/// Makes a switch of this namespace with the address that `net0` had.
fn bridge() {
    let own = format!("addr add {ANSWERING}/24 dev br0");
    let flush = ["addr flush dev net0", "addr flush dev net1"];
    let plug = ["link add br0 type bridge", "link set net0 master br0", "link set net1 master br0"];
    for words in flush.into_iter().chain(plug).chain([own.as_str(), "link set br0 up"]) {
        let done = Command::new("ip").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "ip {words}");
    }
}
