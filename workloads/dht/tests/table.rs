//! Servers and clients of a table in one process, with a directory on the loopback address: as far
//! apart for the fabric as on several nodes. Needs no privilege.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_dht::client::{Client, ClientError, Found};
use keeptime_dht::message::{KEY_MOST, VALUE_MOST};
use keeptime_dht::misses::Misses;
use keeptime_dht::server::Server;
use keeptime_fabric::Config;
use keeptime_fabric::directory::{Server as Directory, ServerConfig};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const PARTITIONS: usize = 6;
const KEYS: u32 = 200;

struct Node {
    config: Config,
    _directory: Directory,
}

impl Node {
    fn new(test: &str) -> Self {
        let name = format!("dht-{test}-{}", std::process::id());
        let (node, address) = ("n0".into(), ([127, 0, 0, 1], 0).into());
        let server =
            ServerConfig { name: name.clone(), node, address, members: Vec::new(), key: None };
        let mut config = Config::default();
        config.directory = name;
        Self { config, _directory: Directory::start(server).unwrap() }
    }

    fn server(&self) -> Server {
        Server::start(self.config.clone(), "t", PARTITIONS, Misses::NONE).unwrap()
    }

    fn client(&self, misses: Misses) -> Client {
        Client::open(self.config.clone(), "t", LONG, misses).unwrap()
    }
}

/// Until the table has so many partitions.
fn has(client: &Client, partitions: usize) {
    let start = Instant::now();
    while client.chart().unwrap().partitions().len() != partitions {
        assert!(start.elapsed() < LONG, "{:?}", client.chart().unwrap().partitions().len());
        thread::park_timeout(Duration::from_millis(10));
    }
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 100 * number as usize]
}

fn fill(client: &mut Client) {
    for number in 0..KEYS {
        client.store(&number.to_le_bytes(), &value(number)).unwrap();
    }
}

#[test]
fn what_was_stored_is_found_while_servers_join_and_leave() {
    let node = Node::new("joins");
    let mut servers = vec![node.server()];
    let mut client = node.client(Misses::NONE);
    fill(&mut client);
    // Asked all the time, from another thread.
    let mut asking = node.client(Misses::NONE);
    thread::scope(|scope| {
        let asks = scope.spawn(move || {
            for round in 0..10 {
                for number in 0..KEYS {
                    let found = asking.query(&number.to_le_bytes()).unwrap();
                    assert!(found == Found::Value(value(number)), "{number} in round {round}");
                }
            }
        });
        servers.extend((0..2).map(|_| node.server()));
        has(&client, 3 * PARTITIONS);
        assert_eq!(servers.remove(0).leave(LONG), 0);
        has(&client, 3 * PARTITIONS);
        assert_eq!(servers.remove(0).leave(LONG), 0);
        asks.join().unwrap();
    });
    for number in 0..KEYS {
        assert_eq!(client.query(&number.to_le_bytes()).unwrap(), Found::Value(value(number)));
    }
    assert_eq!(client.query(b"never stored").unwrap(), Found::Nothing);
    // Nobody is left to take it.
    assert!(servers.remove(0).leave(LONG) > 0);
}

/// A server that ends without a word to others is, for them, one that was killed.
#[test]
fn what_a_server_had_that_ended_is_told_to_be_lost() {
    let node = Node::new("ends");
    let (stays, ends) = (node.server(), node.server());
    let mut client = node.client(Misses::NONE);
    has(&client, 2 * PARTITIONS);
    fill(&mut client);
    drop(ends);
    let mut lost = 0;
    for number in 0..KEYS {
        match client.query(&number.to_le_bytes()).unwrap() {
            Found::Value(found) => assert!(found == value(number)),
            Found::Lost => lost += 1,
            Found::Nothing => panic!("{number} was stored"),
        }
    }
    assert!((1..KEYS).contains(&lost), "{lost} of {KEYS} were lost with half of the partitions");
    fill(&mut client);
    for number in 0..KEYS {
        assert_eq!(client.query(&number.to_le_bytes()).unwrap(), Found::Value(value(number)));
    }
    drop(stays);
}

#[test]
fn the_directory_can_be_asked_for_every_message() {
    let node = Node::new("misses");
    let _server = node.server();
    let mut client = node.client(Misses::new(1.0).unwrap());
    client.store(b"key", b"one").unwrap();
    client.store(b"key", b"two").unwrap();
    assert_eq!(client.query(b"key").unwrap(), Found::Value(b"two".into()));
    assert_eq!(Misses::new(1.5), None);
    assert_eq!(Misses::new(f64::NAN), None);
}

#[test]
fn what_cannot_be_is_told() {
    let node = Node::new("bad");
    let short = Duration::from_millis(100);
    let mut nobody = Client::open(node.config.clone(), "t", short, Misses::NONE).unwrap();
    let error = nobody.query(b"key").unwrap_err().to_string();
    assert_eq!(error, "table \"t\": no answer within 0.1 s (no partition is there)");
    let long = nobody.store(&[0; KEY_MOST + 1], b"").unwrap_err();
    assert_eq!(long.to_string(), "a key of 1025 bytes: at most 1024 are stored");
    let long = nobody.store(b"key", &vec![0; VALUE_MOST + 1]).unwrap_err();
    assert!(matches!(long, ClientError::TooLong { what: "value", .. }));
}
