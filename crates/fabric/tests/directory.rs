//! Finding: subsets of attributes, now and later, across nodes that come, go and fail.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way, told, until};
use keeptime_fabric::directory::Server;
use keeptime_fabric::directory::client::{Client, DirectoryError};
use keeptime_fabric::directory::protocol::{Answer, VERSION, decode, encode};
use keeptime_fabric::region::{PlainMemories, RegionServer, RegionServerConfig};
use keeptime_fabric::{
    Carriers, Config, Context, ContextId, Event, FindError, Match, Protocol, Record, RegisterError,
    Tag, Wait, attrs,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

const WAY: Way = Way::Tcp(Wait::Block);

/// Nodes that know the first one, and all of each other when this returns.
fn cluster(size: usize) -> Vec<Node> {
    let first = Node::start("n0", &[]);
    let seed = first.server.address();
    let mut nodes = vec![first];
    nodes.extend((1..size).map(|number| Node::start(&format!("n{number}"), &[seed])));
    let contexts: Vec<_> = nodes.iter().map(|node| node.context(WAY)).collect();
    let beacons: Vec<_> = contexts
        .iter()
        .map(|context| context.register(attrs! { "beacon" => "1" }).unwrap())
        .collect();
    for context in &contexts {
        let (mut there, watcher) = context.find(attrs! { "beacon" => "1" }).watch().unwrap();
        while there.len() < size {
            match watcher.next_within(LONG) {
                Some(Event::Appeared(record)) => there.push(record),
                Some(Event::Disappeared(id)) => there.retain(|record| record.id != id),
                other => panic!("{other:?} with {} of {size} nodes", there.len()),
            }
        }
    }
    drop(beacons);
    nodes
}

/// Whoever could say that he is elsewhere would have bridges connect there for him, to whatever listens.
#[test]
fn nobody_is_said_to_be_where_his_node_is_not() {
    let node = Node::start("n0", &[]);
    let (own, foreign): (SocketAddr, SocketAddr) =
        (([127, 0, 0, 1], 7).into(), ([192, 0, 2, 1], 22).into());
    let (id, addresses) = (ContextId::new(7), vec![foreign, own]);
    let carriers = Carriers::default().with(Protocol::Ucx);
    let context = told(id, addresses, carriers);
    let client = Client::connect(&node.config.name, context).unwrap();
    let found = client.resolve(id).unwrap().unwrap();
    assert_eq!((found.context.addresses, found.context.carriers), (vec![own], carriers));
}

/// One that is older or newer than its daemon is not left to take it for a silent one.
#[test]
fn a_program_of_another_version_is_told_so() {
    let node = Node::start("n0", &[]);
    let name = format!("{}/directory", node.config.name);
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    for version in [VERSION - 1, VERSION + 1] {
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // A hello, its version, and what hellos of that version may have.
        let mut said = Vec::new();
        encode(&(0_u8, version, "something else"), &mut said);
        stream.write_all(&said).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        let why = format!("version {version} of the protocol: this server speaks {VERSION}");
        let refused = Answer::Refused { number: None, why };
        assert_eq!(decode(&heard), Ok(Some((refused, heard.len()))));
    }
}

/// Not a test: the program that watches, and is stopped meanwhile. It ends well when it takes the last resource for all that
/// there are.
#[test]
fn program_that_watches() {
    let Ok(directory) = std::env::var("FABRIC_TEST_DIRECTORY") else { return };
    let mut config = Config::default();
    config.directory = directory;
    let context = Context::open(config).unwrap();
    let (mut there, watcher) = context.find(attrs! { "told" => "all" }).watch().unwrap();
    let _own = context.register(attrs! { "name" => "watcher" }).unwrap();
    let is_last = |record: &Record| record.attributes.value("last").is_some();
    while there.len() != 1 || !there.iter().all(is_last) {
        match watcher.next_within(LONG) {
            Some(Event::Appeared(record)) => there.push(record),
            Some(Event::Disappeared(id)) => there.retain(|record| record.id != id),
            other => panic!("{other:?}"),
        }
    }
    std::process::exit(7);
}

/// Goal: a program that is stopped for so long that its daemon gives it up, and goes on, sees what is there then, and is there
/// itself. Method: more happens meanwhile than is kept for it; of all that one resource is left, which it did not know.
#[test]
fn a_watcher_that_was_stopped_sees_what_is_there() {
    let node = Node::start("n0", &[]);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program_that_watches"]);
    let mut stopped = command.env("FABRIC_TEST_DIRECTORY", &node.config.name).spawn().unwrap();
    let signal = |signal| kill(Pid::from_raw(stopped.id() as i32), signal).unwrap();
    let context = node.context(WAY);
    let long = |number: u32| {
        let attributes = (0..20).fold(attrs! { "told" => "all" }, |all, at| {
            all.with(format!("{at}{}", "a".repeat(250)), format!("{number}{}", "b".repeat(250)))
        });
        context.register(attributes).unwrap()
    };
    let known = long(0);
    until(|| context.find(attrs! { "name" => "watcher" }).only().ok());
    signal(Signal::SIGSTOP);
    let given_up = (1..5_000).find(|number| {
        // No more is taken for it by then, and it has had a second to read.
        if *number == 100 {
            thread::sleep(Duration::from_millis(1_500));
        }
        drop(long(*number));
        context.find(attrs! { "name" => "watcher" }).all().unwrap().is_empty()
    });
    drop(known);
    let _last = context.register(attrs! { "told" => "all", "last" => "1" }).unwrap();
    signal(Signal::SIGCONT);
    assert_eq!(stopped.wait().unwrap().code(), Some(7));
    // Each with some 10 KB.
    assert!(given_up.is_some_and(|after| after < 800), "{given_up:?}");
}

#[test]
fn any_subset_finds_one_or_all() {
    let node = Node::start("n0", &[]);
    let context = node.context(WAY);
    let server = context.register(attrs! { "name" => "dhash", "type" => "server" }).unwrap();
    let parts: Vec<_> = ["0-1", "2-3"]
        .map(|range| attrs! { "name" => "dhash", "type" => "partition", "range" => range })
        .into_iter()
        .map(|attributes| context.register(attributes).unwrap())
        .collect();
    let find = |attributes| context.find(attributes);
    assert_eq!(find(attrs! { "type" => "server" }).only().unwrap(), server.id());
    assert_eq!(find(attrs! { "name" => "dhash" }).all().unwrap().len(), 3);
    assert_eq!(find(attrs! {}).all().unwrap().len(), 3);
    let found = find(attrs! { "name" => "dhash", "range" => "2-3" }).one_of_any().unwrap();
    assert_eq!(found, parts[1].id());
    let several = find(attrs! { "type" => "partition" }).only().unwrap_err();
    assert_eq!(several.to_string(), "2 resources have type=partition, one was asked for");
    let none = find(attrs! { "name" => "dhash", "range" => "7" }).one_of_any();
    assert_eq!(none, Err(FindError::None("name=dhash range=7".into())));
    drop(server);
    let gone = find(attrs! { "type" => "server" });
    while gone.only().is_ok() {
        thread::yield_now();
    }
    let error = context.register(attrs! { "x" => "y".repeat(300) }).unwrap_err();
    assert!(error.to_string().contains("at most 256 are accepted"), "{error}");
    assert!(matches!(error, RegisterError::Attributes(_)));
}

#[test]
fn what_appears_later_is_waited_for_and_watched() {
    let node = Node::start("n0", &[]);
    let (here, there) = (node.context(WAY), node.context(WAY));
    let query = attrs! { "name" => "late" };
    let early = loop {
        match here.find(query.clone()).one_of_any_within(Duration::from_millis(20)) {
            // A busy machine may hold the server up.
            Err(FindError::Directory(DirectoryError::Silent)) => {}
            early => break early,
        }
    };
    assert!(matches!(early, Err(FindError::None(_))));
    let (now, watcher) = here.find(query.clone()).watch().unwrap();
    assert!(now.is_empty());
    thread::scope(|scope| {
        let waits = scope.spawn(|| here.find(query.clone()).one_of_any_within(LONG).unwrap());
        let late = there.register(query.clone()).unwrap();
        assert_eq!(waits.join().unwrap(), late.id());
        let Some(Event::Appeared(record)) = watcher.next_within(LONG) else { panic!() };
        assert_eq!((record.id, &record.attributes), (late.id(), &query));
        let id = late.id();
        drop(late);
        assert_eq!(watcher.next_within(LONG), Some(Event::Disappeared(id)));
    });
}

/// One call for each time, whether it waits already or not.
#[test]
fn who_watches_is_woken() {
    let node = Node::start("n0", &[]);
    let context = node.context(WAY);
    let (_, watcher) = context.find(attrs! { "name" => "nobody" }).watch().unwrap();
    watcher.wake();
    assert_eq!(watcher.next_within(Duration::MAX), Some(Event::Woken));
    assert_eq!(watcher.next_within(Duration::ZERO), None);
    thread::scope(|scope| {
        let waits = scope.spawn(|| watcher.next_within(Duration::MAX));
        // Most probably it waits by then.
        thread::park_timeout(Duration::from_millis(20));
        watcher.wake();
        assert_eq!(waits.join().unwrap(), Some(Event::Woken));
    });
}

/// `register` returns when every node answers with the resource: nobody has to wait or ask twice.
#[test]
fn a_registered_resource_is_found_at_once_on_every_node() {
    let nodes = cluster(4);
    let contexts: Vec<_> = nodes.iter().map(|node| node.context(WAY)).collect();
    for round in 0..50 {
        let home = &contexts[round % contexts.len()];
        let resource = home.register(attrs! { "round" => round.to_string() }).unwrap();
        for context in &contexts {
            // A new question each time, which no cache answers.
            let query = attrs! { "round" => round.to_string() };
            assert_eq!(context.find(query).only().unwrap(), resource.id());
        }
    }
    let (one, other) = (&contexts[0], &contexts[3]);
    let (asks, answers) = (one.register(attrs! {}).unwrap(), other.register(attrs! {}).unwrap());
    asks.send(answers.id(), Tag(1), b"across nodes").unwrap();
    assert_eq!(answers.recv(Match::any()).unwrap().data, b"across nodes");
}

/// Answers that programs have kept are right as soon as `register` has returned, that there was none
/// as well.
#[test]
fn what_is_registered_is_found_at_once_by_those_who_asked_before() {
    let nodes = cluster(2);
    let home = nodes[0].context(WAY);
    let others = [nodes[0].context(WAY), nodes[0].context(WAY), nodes[1].context(WAY)];
    for round in 0..300 {
        let query = attrs! { "asked before" => round.to_string() };
        for context in others.iter().chain([&home]) {
            assert!(context.find(query.clone()).only().is_err());
        }
        let resource = home.register(query.clone()).unwrap();
        for context in others.iter().chain([&home]) {
            assert_eq!(context.find(query.clone()).only().unwrap(), resource.id(), "round {round}");
        }
    }
}

/// A server ends and another takes its place: programs say everything again, others forget and
/// learn.
#[test]
fn a_server_that_is_started_again_knows_its_programs() {
    let mut nodes = cluster(3);
    let here = nodes[0].context(WAY);
    let there = nodes[2].context(WAY);
    let resource = there.register(attrs! { "name" => "stays" }).unwrap();
    assert_eq!(here.find(attrs! { "name" => "stays" }).only().unwrap(), resource.id());
    let Node { server, mut config } = nodes.pop().unwrap();
    config.members = vec![nodes[0].server.address()];
    config.address = server.address();
    let (_, watcher) = here.find(attrs! { "name" => "stays" }).watch().unwrap();
    drop(server);
    assert_eq!(watcher.next_within(LONG), Some(Event::Disappeared(resource.id())));
    let _server = Server::start(config).unwrap();
    let Some(Event::Appeared(record)) = watcher.next_within(LONG) else { panic!("not again") };
    assert_eq!(record.id, resource.id());
}

/// Goal: a server that is started again at once makes nobody believe that what is there was gone: neither programs of its
/// own node nor those of others. Method: watchers on both, whose next event is what is registered when all is as before.
/// A machine that is busy may take longer than servers wait, so it is tried a few times.
#[test]
fn a_server_that_is_started_again_at_once_is_not_noticed_by_watchers() {
    let mut nodes = cluster(3);
    assert!((0..5).any(|attempt| restarts_quietly(&mut nodes, attempt)));
}

/// The server of the last node is started again.
fn restarts_quietly(nodes: &mut Vec<Node>, attempt: u32) -> bool {
    let query = attrs! { "attempt" => attempt.to_string() };
    let Node { server, mut config } = nodes.pop().unwrap();
    let last = Node { server, config: config.clone() };
    let contexts = [nodes[0].context(WAY), last.context(WAY)];
    let _stay = contexts.each_ref().map(|context| context.register(query.clone()).unwrap());
    let all_find_both = || {
        let all = |context: &Context| context.find(query.clone()).all();
        contexts.iter().all(|context| all(context).is_ok_and(|all| all.len() == 2)).then_some(())
    };
    until(all_find_both);
    let watch = |context: &Context| context.find(query.clone()).watch().unwrap().1;
    let watchers = contexts.each_ref().map(watch);
    config.members = vec![nodes[0].server.address()];
    config.address = last.server.address();
    drop(last);
    nodes.push(Node { server: Server::start(config.clone()).unwrap(), config });
    until(all_find_both);
    // By the server that was started again, after all that was there before; others may take that one for a second of its
    // name for a moment.
    let marker = until(|| contexts[1].register(query.clone()).ok());
    watchers.iter().all(|watcher| match watcher.next_within(LONG) {
        Some(Event::Appeared(record)) => record.id == marker.id(),
        _ => false,
    })
}

#[test]
fn a_second_node_of_the_same_name_is_refused() {
    let nodes = cluster(2);
    let twin = Node::start("n1", &[nodes[0].server.address()]);
    let context = twin.context(WAY);
    let error = loop {
        // Until it has been told.
        match context.register(attrs! { "name" => "twin" }) {
            Ok(resource) => drop(resource),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("the name n1 is taken by the node at"), "{error}");
    let other = nodes[0].context(WAY);
    assert!(other.find(attrs! { "name" => "twin" }).one_of_any().is_err());
    let second = Server::start(twin.config.clone());
    assert!(second.is_err(), "one server of a name on a machine");
}

/// Whoever starts one is told what is in the way, and who finds none, what to start.
#[test]
fn a_name_belongs_to_one_daemon() {
    let node = Node::start("n0", &[]);
    let name = &node.config.name;
    let (process, user) = (std::process::id(), nix::unistd::geteuid());
    let holder = format!("process {process} of user {user}");
    let text = format!(
        "the name {name:?} is taken on this node, by {holder}: a daemon, or whoever was first"
    );
    let again = Server::start(node.config.clone()).unwrap_err();
    assert_eq!(again.to_string(), text);
    let regions = RegionServerConfig { name: name.clone(), port: 0 };
    let memories = || RegionServer::start(&regions, |_| Ok(Box::new(PlainMemories)));
    let _first = memories().unwrap();
    assert_eq!(memories().unwrap_err().to_string(), text);
    let mut config = Config::default();
    config.directory = format!("{name}-not");
    let none = Context::open(config).unwrap_err().to_string();
    assert!(none.ends_with(&format!("start keeptime-fabricd --name {name}-not")), "{none}");
}
