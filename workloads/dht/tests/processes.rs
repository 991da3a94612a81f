//! The program itself, on nodes that are network namespaces: servers that start at the same moment, one
//! that leaves, one that is killed, and nodes that reach each other over a bridge alone. Needs root;
//! says so where it cannot run.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::Config;
use keeptime_fabric::bridge::Bridge;
use keeptime_fabric::directory::{Server as Directory, ServerConfig};
use keeptime_fabric::echo::Echo;
use keeptime_linux::testing::{can, rig::Space};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const PORT: u16 = 7400;
const PARTITIONS: usize = 4;

struct Node {
    space: Arc<Space>,
    _daemon: (Directory, Echo, Option<Bridge>),
}

impl Node {
    fn run(&self, words: &str) -> Output {
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        self.space.run(move || command(&words).output().unwrap())
    }

    fn server(&self) -> Server {
        let words = format!("serve --partitions {PARTITIONS}");
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        self.space.run(move || Server(command(&words).stdout(Stdio::null()).spawn().unwrap()))
    }

    /// What `status` tells here: the range of each partition.
    fn ranges(&self) -> Vec<String> {
        let told = String::from_utf8(self.run("status").stdout).unwrap();
        let range = |line: &str| line.split_once(' ').map(|(range, _)| range.to_owned());
        told.lines().filter_map(range).filter(|range| range.contains('-')).collect()
    }

    fn store(&self, keys: std::ops::Range<u32>) {
        for key in keys {
            let output = self.run(&format!("store key{key} value{key}"));
            assert!(output.status.success(), "{output:?}");
        }
    }

    /// What is printed for a key, and the exit code.
    fn get(&self, key: u32) -> (String, Option<i32>) {
        let output = self.run(&format!("get key{key}"));
        let told = [output.stdout, output.stderr].concat();
        (String::from_utf8(told).unwrap(), output.status.code())
    }
}

/// Until all nodes know of one table with so many partitions. Before they do there may be several tables, and what
/// is stored in one is not found in another.
fn has(nodes: &[Node], partitions: usize) {
    let start = Instant::now();
    loop {
        let told: Vec<_> = nodes.iter().map(Node::ranges).collect();
        let is_one = |ranges: &Vec<String>| {
            let once: BTreeSet<_> = ranges.iter().collect();
            let has_root = ranges.iter().any(|range| range == "0-4294967295");
            has_root && once.len() == partitions && ranges.len() == partitions
        };
        if told.iter().all(is_one) {
            return;
        }
        assert!(start.elapsed() < LONG, "not {partitions} partitions:\n{told:?}");
        thread::park_timeout(Duration::from_millis(50));
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime-dht"));
    command.args(words).stdin(Stdio::null());
    command
}

/// A server's process; it does not outlast its test.
struct Server(Child);

impl Server {
    fn end(mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Most have ended by now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nodes in a row: each has a network with the one before and one with the next, and passes on what
/// these say to each other.
fn row(length: u8) -> Vec<Node> {
    let spaces: Vec<_> = (0..length).map(|_| Arc::new(Space::new().unwrap())).collect();
    let mut members = vec![Vec::new(); spaces.len()];
    for (number, pair) in spaces.windows(2).enumerate() {
        let addresses = [1, 2].map(|host| Ipv4Addr::new(10, 40 + number as u8, 0, host));
        pair[0].plug(&pair[1], &format!("net{number}"), addresses).unwrap();
        members[number + 1].push((addresses[0], PORT).into());
    }
    let start = |(number, (space, members)): (usize, (Arc<Space>, Vec<_>))| {
        let start = move || {
            let (name, node) = (Config::default().directory, format!("n{number}"));
            let address = (Ipv4Addr::UNSPECIFIED, PORT).into();
            let directory = ServerConfig { name, node: node.clone(), address, members, key: None };
            let directory = Directory::start(directory).unwrap();
            // Bridges carry to directories that daemons tell of.
            let echo = Echo::start(Config::default(), &node, directory.address()).unwrap();
            (directory, echo, Bridge::start(Config::default(), &node, 0).unwrap())
        };
        Node { _daemon: space.run(start), space }
    };
    spaces.into_iter().zip(members).enumerate().map(start).collect()
}

#[test]
fn servers_start_at_once_and_one_leaves() {
    if !can(&[]) {
        return;
    }
    // The ends have no network in common.
    let nodes = row(3);
    let servers: Vec<_> = nodes.iter().map(Node::server).collect();
    has(&nodes, 3 * PARTITIONS);
    nodes[0].store(0..20);
    let mut servers = servers.into_iter();
    let (first, second, third) =
        (servers.next().unwrap(), servers.next().unwrap(), servers.next().unwrap());
    assert_eq!(second.end(Signal::SIGTERM), Some(0), "it hands everything over");
    for key in 0..20 {
        assert_eq!(nodes[2].get(key), (format!("value{key}\n"), Some(0)));
    }
    has(&nodes, 3 * PARTITIONS);
    assert_eq!(first.end(Signal::SIGTERM), Some(0));
    // Nobody is left to take it, and that is told.
    assert_eq!(third.end(Signal::SIGTERM), Some(1));
}

#[test]
fn what_a_killed_server_had_is_told_to_be_lost() {
    if !can(&[]) {
        return;
    }
    let nodes = row(2);
    let (stays, killed) = (nodes[0].server(), nodes[1].server());
    has(&nodes, 2 * PARTITIONS);
    nodes[1].store(0..40);
    killed.end(Signal::SIGKILL);
    let told: Vec<_> = (0..40).map(|key| (key, nodes[1].get(key))).collect();
    let lost = told.iter().filter(|(key, got)| match got {
        (text, Some(0)) => {
            assert_eq!(*text, format!("value{key}\n"));
            false
        }
        (text, Some(1)) => {
            assert!(text.contains("it may have been lost with a server"), "{text}");
            true
        }
        other => panic!("{other:?}"),
    });
    assert!(lost.count() > 0, "half of the partitions were there");
    nodes[1].store(0..40);
    for key in 0..40 {
        assert_eq!(nodes[0].get(key), (format!("value{key}\n"), Some(0)));
    }
    stays.end(Signal::SIGTERM);
}

#[test]
fn clients_on_every_node_are_answered_right() {
    if !can(&[]) {
        return;
    }
    let nodes = row(3);
    let servers = [nodes[0].server(), nodes[2].server()];
    has(&nodes, 2 * PARTITIONS);
    let keys = "--keys 50 --value-bytes 20000";
    assert!(nodes[1].run(&format!("bench --fill {keys}")).status.success());
    for (node, misses) in [(0, "0"), (1, "0.5"), (2, "1")] {
        let words = format!("bench {keys} --clients 3 --seconds 0.3 --misses {misses}");
        let output = nodes[node].run(&words);
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["queries"].as_u64() > Some(0), "{report}");
    }
    for server in servers {
        server.end(Signal::SIGTERM);
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (words, code, text) in [
        ("serve --misses 2", 64, "expected a number from 0 to 1"),
        ("serve --partitions 0", 64, "0 is not in 1..=1024"),
        (
            "get key --directory nobody-is-called-so",
            2,
            "start keeptime-fabricd --name nobody-is-called-so",
        ),
    ] {
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        let output = command(&words).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && told.contains(text), "{told}");
    }
}
