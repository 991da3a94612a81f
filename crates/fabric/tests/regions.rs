//! One-sided regions: one version or none, whoever answers, whatever becomes of the publisher and of the
//! network between.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way};
use keeptime_fabric::region::room::{MEMORY_MOST, REGIONS_OF_A_USER};
use keeptime_fabric::region::{
    ATTRIBUTE, Address, AnsweredBy, CELL, Layout, Memories, PlainMemories, PublishError, Reader,
    Reading, Region, RegionError, RegionServer, RegionServerConfig, look,
};
use keeptime_fabric::{Attributes, Context, Match, Record, Wait, attrs};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket,
};
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const WAYS: [(Way, AnsweredBy); 3] = [
    (Way::Memory(Wait::Block), AnsweredBy::Memory),
    (Way::Tcp(Wait::Block), AnsweredBy::Responder),
    (Way::Tcp(Wait::Spin), AnsweredBy::Responder),
];

fn regions_of(node: &Node) -> RegionServer {
    let config = RegionServerConfig { name: node.config.name.clone(), port: 0 };
    RegionServer::start(&config, |_| Ok(Box::new(PlainMemories))).unwrap()
}

/// A connection to where regions are handed over.
fn asking(node: &Node) -> OwnedFd {
    let name = format!("{}/regions", node.config.name);
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    let asking = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
    connect(asking.as_raw_fd(), &address).unwrap();
    asking
}

/// The first record of `query` that `wanted` accepts: a context hears a moment later of what another has
/// registered.
fn found(context: &Context, query: &Attributes, wanted: impl Fn(&Record) -> bool) -> Record {
    let start = Instant::now();
    loop {
        let records = context.find(query.clone()).all().unwrap();
        match records.into_iter().find(&wanted) {
            Some(record) => return record,
            None => assert!(start.elapsed() < LONG, "nobody finds {query:?}"),
        }
        thread::yield_now();
    }
}

fn opened(context: &Context, wanted: impl Fn(&Record) -> bool) -> Reader {
    let record = found(context, &attrs! { "test" => "region" }, wanted);
    context.open_region(&record).unwrap()
}

fn opened_as(context: &Context, region: &Region) -> Reader {
    opened(context, |record| record.id == region.id())
}

fn published(context: &Context, layout: Layout) -> Region {
    context.publish(attrs! { "test" => "region" }, layout).unwrap()
}

#[test]
fn what_is_published_is_read_and_added_to() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    for (way, by) in WAYS {
        let (here, there) = (node.context(way), node.context(way));
        // Of three slots, and of more than one packet.
        for bytes in [48, 150, 10_000] {
            let region = published(&there, Layout::new(3, bytes).unwrap().with_adds());
            let reader = opened_as(&here, &region);
            assert_eq!((reader.id(), reader.layout()), (region.id(), region.layout()));
            let mut data = vec![1; bytes as usize];
            let unwritten = reader.read(2, &mut data).unwrap();
            assert_eq!(unwritten, Reading { sequence: 0, counter: 0, by });
            assert!(data.iter().all(|byte| *byte == 0), "{way:?}");
            let written: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            region.write(2, &written).unwrap();
            assert_eq!(region.fetch_add(2, 4), Ok(0));
            assert_eq!(reader.fetch_add(2, 3), Ok((4, by)));
            assert_eq!(reader.fetch_add(2, 0), Ok((7, by)));
            assert_eq!(region.counter(2), Ok(7));
            assert_eq!(reader.read(2, &mut data), Ok(Reading { sequence: 2, counter: 7, by }));
            assert!(data == written, "{way:?}, {bytes}");
            assert_eq!(reader.read(1, &mut data).unwrap().sequence, 0, "its neighbour");
        }
    }
}

/// Memory that is handed over for reading is not written by whoever opens it anew: only by the daemon's own user.
#[test]
fn memory_for_reading_is_opened_for_writing_by_nobody_else() {
    let mut memories = PlainMemories;
    let memory = memories.create(Layout::cells(1).unwrap()).unwrap();
    let handed_over = File::from(memories.for_reading(memory.as_fd()).unwrap());
    assert_eq!(handed_over.metadata().unwrap().mode() & 0o777, 0o600);
}

/// Descriptors that come with a question, whatever it says, are not kept: everybody may ask, and the daemon has only so
/// many.
#[test]
fn what_is_handed_over_unasked_is_closed() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let (mut kept, given) = UnixStream::pair().unwrap();
    for count in [1, 2, 7] {
        let asking = asking(&node);
        let fds = vec![given.as_raw_fd(); count];
        let (parts, control) = ([IoSlice::new(b"what?")], [ControlMessage::ScmRights(&fds)]);
        sendmsg::<()>(asking.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
    }
    drop(given);
    kept.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(kept.read(&mut [0]).unwrap(), 0, "nobody has the other end");
}

/// However many there may be, they take so much of a node's memory, and what is given back can be had again. Nobody writes
/// to these, so that they take none in truth.
#[test]
fn the_regions_of_one_user_have_so_much_of_a_nodes_memory() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let context = node.context(Way::Memory(Wait::Block));
    let largest = Layout::cells((1 << 20) - 1).unwrap();
    let count = MEMORY_MOST / largest.memory();
    let mut all: Vec<_> = (0..count).map(|_| published(&context, largest)).collect();
    let one_more = || context.publish(attrs! { "test" => "region" }, Layout::CELL);
    let refused = one_more();
    let is_told =
        matches!(&refused, Err(PublishError::Daemon(why)) if why.ends_with(" has 0 left"));
    assert!(is_told, "{refused:?}");
    drop(all.pop());
    let start = Instant::now();
    while one_more().is_err() {
        assert!(start.elapsed() < LONG, "nothing is given back");
        thread::yield_now();
    }
}

/// A publisher that writes as fast as it can: every reader sees whole versions, later ones later.
#[test]
fn no_reader_sees_parts_of_two_versions() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    for (way, _) in WAYS {
        let (here, there) = (node.context(way), node.context(way));
        let region = published(&there, Layout::new(1, 4000).unwrap());
        let reader = opened_as(&here, &region);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for version in 0_u64.. {
                    region.write(0, &version.to_le_bytes().repeat(500)).unwrap();
                    if done.load(Relaxed) {
                        break;
                    }
                    // Pieces across the network have to fit between two versions.
                    thread::sleep(Duration::from_micros(300));
                }
            });
            let mut last = 0;
            let mut data = vec![0; 4000];
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(300)
                || (last == 0 && start.elapsed() < LONG)
            {
                let Ok(reading) = reader.read(0, &mut data) else { continue };
                let (words, _) = data.as_chunks();
                assert!(words.iter().all(|word| *word == words[0]), "{way:?}");
                let version = u64::from_le_bytes(words[0]);
                assert!(version >= last && version == (reading.sequence / 2).saturating_sub(1));
                last = version;
            }
            done.store(true, Relaxed);
            assert!(last > 0, "{way:?}");
        });
    }
}

/// A look at many regions: each says what it has or why not, and however many do not answer, it takes as long as one.
#[test]
fn a_look_finds_what_there_is_and_waits_for_all_together() {
    const TIME: Duration = Duration::from_secs(1);
    let node = Node::start("n1", &[]);
    let regions = regions_of(&node);
    let (near, far) = (node.context(Way::Memory(Wait::Block)), node.context(Way::Tcp(Wait::Block)));
    let (cells, more) = (Layout::cells(2).unwrap(), Layout::new(1, 100).unwrap());
    let published = [cells, cells, more].map(|layout| published(&near, layout));
    published[0].write(1, &[1; CELL]).unwrap();
    published[1].write(1, &[2; CELL]).unwrap();
    let mut readers = vec![opened_as(&near, &published[0])];
    readers.extend(published.iter().map(|region| opened_as(&far, region)));
    let all: Vec<_> = readers.iter().collect();
    let found = |record, time| look(&all, record, time);
    let reading = |by| Reading { sequence: 2, counter: 0, by };
    let (memory, daemon) = (reading(AnsweredBy::Memory), reading(AnsweredBy::Responder));
    let length = RegionError::Length { given: CELL, bytes: 100 };
    let data = |byte, reading| Ok(([byte; CELL], reading));
    assert_eq!(found(1, LONG), [data(1, memory), data(1, daemon), data(2, daemon), Err(length)]);
    let no_record = RegionError::NoRecord { record: 2, records: 2 };
    assert_eq!(found(2, LONG)[..3], [1, 2, 3].map(|_| Err(no_record.clone())));
    let [first, second, _third] = published;
    let gone = RegionError::Gone(first.id());
    drop(first);
    let start = Instant::now();
    while found(1, LONG)[1] != Err(gone.clone()) {
        assert!(start.elapsed() < LONG);
    }
    assert_eq!((&found(1, LONG)[0], &found(1, LONG)[2]), (&Err(gone), &data(2, daemon)));
    // A hundred that nobody answers for: one after the other they would take longer than anybody waits.
    let silent: Vec<_> = (0..100).map(|_| opened_as(&far, &second)).collect();
    drop(regions);
    let start = Instant::now();
    let found = look(&silent.iter().collect::<Vec<_>>(), 0, TIME);
    assert!(found.iter().all(|found| matches!(found, Err(RegionError::Unreachable { .. }))));
    assert!(start.elapsed() < TIME * 50, "{:?}", start.elapsed());
}

#[test]
fn what_is_wrong_is_named() {
    let node = Node::start("n1", &[]);
    let regions = regions_of(&node);
    for (way, _) in WAYS {
        let (here, there) = (node.context(way), node.context(way));
        let plain = there.register(attrs! { "test" => "plain" }).unwrap();
        let is_it = |record: &Record| record.id == plain.id();
        let record = found(&here, &attrs! { "test" => "plain" }, is_it);
        let opened_plain = here.open_region(&record).map(|_| ());
        assert_eq!(opened_plain, Err(RegionError::NoRegion(plain.id())));

        let region = published(&there, Layout::cells(2).unwrap());
        let reader = opened_as(&here, &region);
        let length = RegionError::Length { given: 47, bytes: 48 };
        assert_eq!(region.write(0, &[0; 47]), Err(length.clone()));
        assert_eq!(reader.read(0, &mut [0; 47]), Err(length));
        let no_record = RegionError::NoRecord { record: 2, records: 2 };
        assert_eq!(region.write(2, &[0; 48]), Err(no_record.clone()));
        assert_eq!(reader.read(2, &mut [0; 48]), Err(no_record.clone()));
        assert_eq!(reader.fetch_add(2, 1), Err(no_record));
        assert_eq!(reader.fetch_add(0, 1), Err(RegionError::NotAllowed));

        // Another region in the same place is not taken for this one.
        let id = region.id();
        drop(region);
        while reader.read(0, &mut [0; 48]).is_ok() {
            thread::yield_now();
        }
        let next = published(&there, Layout::cells(2).unwrap());
        next.write(0, &[7; 48]).unwrap();
        assert_eq!(reader.read(0, &mut [0; 48]), Err(RegionError::Gone(id)));
        assert_eq!(opened_as(&here, &next).id(), next.id());
    }
    let context = node.context(Way::Memory(Wait::Block));
    let region = published(&context, Layout::cells(1).unwrap());
    assert!(region.is_served());
    drop(regions);
    while region.is_served() {
        thread::yield_now();
    }
    let refused = context.publish(attrs! {}, Layout::cells(1).unwrap());
    assert!(matches!(refused, Err(PublishError::Daemon(_))), "{refused:?}");
}

/// What a region looks like any program can say of any. Who believed it would read behind the memory's end, and be killed.
#[test]
fn a_region_that_is_less_than_its_resource_says_is_not_opened() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let context = node.context(Way::Memory(Wait::Block));
    let region = published(&context, Layout::cells(1).unwrap());
    let is_it = |record: &Record| record.id == region.id();
    let mut record = found(&context, &attrs! { "test" => "region" }, is_it);
    let address: Address = record.attributes.value(ATTRIBUTE).unwrap().parse().unwrap();
    let layout = Layout::cells(10_000).unwrap();
    let said = Address { layout, ..address }.to_string();
    record.attributes = record.attributes.with(ATTRIBUTE, said);
    let opened = context.open_region(&record).map(|_| ());
    assert!(matches!(opened, Err(RegionError::Unreachable { .. })), "{opened:?}");
}

#[test]
fn a_user_has_so_many_regions_of_a_node_and_no_more() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let context = node.context(Way::Memory(Wait::Block));
    let layout = Layout::cells(1).unwrap();
    let publish = || context.publish(attrs! {}, layout);
    let mut all: Vec<_> = (0..REGIONS_OF_A_USER).map(|_| publish().unwrap()).collect();
    let error = publish().map(|_| ()).unwrap_err().to_string();
    let why = format!("have {REGIONS_OF_A_USER} regions on this node, which is the most");
    assert!(error.ends_with(&why), "{error}");
    all.pop();
    let start = Instant::now();
    while publish().is_err() {
        assert!(start.elapsed() < LONG, "nothing is given back");
        thread::yield_now();
    }
}

/// Goal: whoever connects and says nothing takes no more room than the daemon gives a user, and what is published stays. Method: a
/// quarter of all connections, of which one has a region; with the next one the oldest of the others ends, which never said
/// anything.
#[test]
fn connections_that_say_nothing_make_way() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let context = node.context(Way::Memory(Wait::Block));
    let region = published(&context, Layout::CELL);
    let silent: Vec<_> =
        (0..2 * REGIONS_OF_A_USER).map(|_| UnixStream::from(asking(&node))).collect();
    let mut oldest = &silent[0];
    oldest.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(oldest.read(&mut [0]).unwrap(), 0, "it has made way");
    assert!(region.is_served());
    published(&context, Layout::CELL);
}

/// Between reader and responder every third datagram is lost, every fifth sent twice, and copies come
/// late: reads are whole, and what is added is added once.
#[test]
fn loss_and_copies_do_not_matter() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let way = Way::Tcp(Wait::Block);
    let (here, there) = (node.context(way), node.context(way));
    let region = published(&there, Layout::new(1, 3000).unwrap().with_adds());
    region.write(0, &[9; 3000]).unwrap();
    let records = here.find(attrs! { "test" => "region" }).all().unwrap();
    let address: Address = records[0].attributes.value(ATTRIBUTE).unwrap().parse().unwrap();
    let stop = AtomicBool::new(false);
    let outer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = outer.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| disturb(&outer, address.port, &stop));
        let mut record = records[0].clone();
        let there = Address { port, ..address }.to_string();
        record.attributes = record.attributes.with(ATTRIBUTE, there);
        let reader = here.open_region(&record).unwrap();
        for number in 0..60 {
            assert_eq!(reader.fetch_add(0, 1), Ok((number, AnsweredBy::Responder)));
            let mut data = vec![0; 3000];
            assert_eq!(reader.read(0, &mut data).unwrap().counter, number + 1);
            assert!(data.iter().all(|byte| *byte == 9));
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(region.counter(0), Ok(60));
}

/// Carries datagrams between whoever sends to `outer` and `port`, badly.
fn disturb(outer: &UdpSocket, port: u16, stop: &AtomicBool) {
    let inner = UdpSocket::bind("127.0.0.1:0").unwrap();
    inner.connect(("127.0.0.1", port)).unwrap();
    for socket in [outer, &inner] {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    let (mut client, mut number, mut late) = (None, 0_u32, Vec::new());
    let mut bytes = [0; 2000];
    while !stop.load(Relaxed) {
        if let Ok((length, from)) = outer.recv_from(&mut bytes) {
            client = Some(from);
            number += 1;
            if !number.is_multiple_of(3) {
                inner.send(&bytes[..length]).unwrap();
            }
            if number.is_multiple_of(5) {
                late.push(bytes[..length].to_vec());
            }
            if late.len() > 4 {
                inner.send(&late.remove(0)).unwrap();
            }
        }
        if let (Ok(length), Some(client)) = (inner.recv(&mut bytes), client) {
            number += 1;
            if !number.is_multiple_of(3) {
                outer.send_to(&bytes[..length], client).unwrap();
            }
        }
    }
}

#[test]
fn nobody_there_is_told_and_not_waited_for() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    let way = Way::Tcp(Wait::Block);
    let (here, there) = (node.context(way), node.context(way));
    let _region = published(&there, Layout::cells(1).unwrap());
    let mut records = here.find(attrs! { "test" => "region" }).all().unwrap();
    let address: Address = records[0].attributes.value(ATTRIBUTE).unwrap().parse().unwrap();
    // Listens, and never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = Address { port, ..address }.to_string();
    records[0].attributes = records[0].attributes.clone().with(ATTRIBUTE, text);
    let start = Instant::now();
    let unreachable = here.open_region(&records[0]).map(|_| ());
    assert!(matches!(unreachable, Err(RegionError::Unreachable { .. })), "{unreachable:?}");
    assert!(start.elapsed() < LONG);
}

/// Another process of this program, until this is dropped.
struct Process(Child);

impl Process {
    /// One that does what the test `named` does when it is given `value` as `variable`. Returns as well what it says
    /// after `word`.
    fn start(named: &str, variable: &str, value: &str, word: &str) -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", named, "--nocapture"]).env(variable, value);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let process = Self(child);
        let said = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once(word).map(|(_, said)| said.to_owned())
        });
        (process, said.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: the daemon that `whoever_has_mapped…` kills.
#[test]
fn daemon_process() {
    if std::env::var("FABRIC_TEST_DAEMON").is_err() {
        return;
    }
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    println!("serving {}", node.config.name);
    loop {
        thread::park();
    }
}

/// One that is killed takes nothing away, and what is mapped stays as it was: readers are told all the same, whether or
/// not the publisher has been killed with it.
#[test]
fn whoever_has_mapped_a_region_is_told_that_its_daemon_was_killed() {
    for is_with_publisher in [true, false] {
        let (mut daemon, name) =
            Process::start("daemon_process", "FABRIC_TEST_DAEMON", "1", "serving ");
        let (mut publisher, _) =
            Process::start("publisher_process", "FABRIC_TEST_PUBLISHER", &name, "published ");
        let mut config = keeptime_fabric::Config::default();
        config.directory = name;
        let context = Context::open(config).unwrap();
        let reader = opened(&context, |_| true);
        let mut data = [0; 48];
        assert_eq!(reader.read(0, &mut data).unwrap().by, AnsweredBy::Memory);
        assert_eq!(data, [5; 48]);
        daemon.kill();
        if is_with_publisher {
            publisher.kill();
        }
        let start = Instant::now();
        while reader.read(0, &mut data).is_ok() {
            assert!(start.elapsed() < LONG, "it is read as if nothing had happened");
            thread::yield_now();
        }
        let gone = RegionError::Gone(reader.id());
        assert_eq!(reader.read(0, &mut data), Err(gone.clone()));
        assert_eq!(reader.fetch_add(0, 1), Err(gone));
    }
}

/// Not a test: the process that `a_publisher…` stops and kills.
#[test]
fn publisher_process() {
    let Ok(name) = std::env::var("FABRIC_TEST_PUBLISHER") else { return };
    let mut config = keeptime_fabric::Config::default();
    config.directory = name;
    let context = Context::open(config).unwrap();
    let region = published(&context, Layout::cells(1).unwrap().with_adds());
    region.write(0, &[5; 48]).unwrap();
    println!("published {}", region.id());
    // Waits to be killed.
    let _ = region.resource().recv(Match::tag(77));
}

#[test]
fn a_publisher_that_is_stopped_is_read_and_one_that_is_killed_is_gone() {
    let node = Node::start("n1", &[]);
    let _regions = regions_of(&node);
    for (way, by) in WAYS {
        let (mut publisher, _) = Process::start(
            "publisher_process",
            "FABRIC_TEST_PUBLISHER",
            &node.config.name,
            "published ",
        );
        let pid = nix::unistd::Pid::from_raw(publisher.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
        let context = node.context(way);
        let reader = opened(&context, |_| true);
        let mut data = [0; 48];
        assert_eq!(reader.read(0, &mut data).unwrap().by, by);
        assert_eq!(data, [5; 48]);
        assert_eq!(reader.fetch_add(0, 1), Ok((0, by)));
        publisher.kill();
        let start = Instant::now();
        while reader.read(0, &mut data).is_ok() {
            assert!(start.elapsed() < LONG, "{way:?}");
        }
        assert_eq!(reader.read(0, &mut data), Err(RegionError::Gone(reader.id())));
        while !context.find(attrs! { "test" => "region" }).all().unwrap().is_empty() {
            thread::yield_now();
        }
    }
}
