//! Nodes for tests: network namespaces with cables between them, each with a real daemon.

#![allow(dead_code, reason = "not every test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::{Attributes, Config, Context, Resource, attrs};
use keeptime_linux::testing::rig::Space;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// For anything, on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);
pub const PORT: u16 = 7400;

/// A node: where it is, and its daemon.
pub struct Node {
    pub name: &'static str,
    pub space: Arc<Space>,
    /// What its daemon is told beside.
    pub arguments: Vec<String>,
    daemon: Option<Child>,
}

impl Node {
    pub fn new(name: &'static str) -> Self {
        Self { name, space: Arc::new(Space::new().unwrap()), arguments: Vec::new(), daemon: None }
    }

    /// A cable, on the network of this number; the other end's daemon is where this one's looks.
    pub fn plug(&mut self, other: &Self, number: u8) {
        let addresses = [1, 2].map(|host| Ipv4Addr::new(10, number, 0, host));
        self.space.plug(&other.space, &format!("net{number}"), addresses).unwrap();
        self.arguments.extend(["--member".into(), format!("{}:{PORT}", addresses[1])]);
    }

    /// A cable that has addresses of IPv6 alone, on the network of this number.
    pub fn plug_ipv6(&mut self, other: &Self, number: u8) {
        self.space
            .plug(&other.space, &format!("net{number}"), [Ipv4Addr::new(10, number, 0, 1); 2])
            .unwrap();
        for (node, host) in [(&*self, 1), (other, 2)] {
            // Where it is switched off for new namespaces.
            let switch = format!("/proc/sys/net/ipv6/conf/net{number}/disable_ipv6");
            node.space.run(move || std::fs::write(switch, "0").unwrap());
            node.ip(format!("addr flush dev net{number}"));
            node.ip(format!("addr add fd00:{number}::{host}/64 dev net{number} nodad"));
        }
        self.arguments.extend(["--member".into(), format!("[fd00:{number}::2]:{PORT}")]);
    }

    /// Starts its daemon, and waits until programs can use it.
    pub fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime-fabricd"));
        command.args(["--node", self.name, "--address", &format!("[::]:{PORT}")]);
        command.arg("--key").arg(key());
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        self.daemon = Some(self.space.run(move || command.spawn().unwrap()));
        wait_for(|| self.space.run(|| Context::open(Config::default()).is_ok()));
    }

    /// Whether its daemon was started and not killed.
    pub fn is_there(&self) -> bool {
        self.daemon.is_some()
    }

    /// As a node that crashes: nobody is told.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            kill(Pid::from_raw(daemon.id() as i32), Signal::SIGKILL).unwrap();
            daemon.wait().unwrap();
        }
    }

    /// Has its daemon stop, or go on.
    pub fn signal(&self, signal: Signal) {
        let daemon = self.daemon.as_ref().unwrap();
        kill(Pid::from_raw(daemon.id() as i32), signal).unwrap();
    }

    pub fn open(&self, name: &'static str) -> Resource {
        self.open_with(name, Config::default())
    }

    pub fn open_with(&self, name: &'static str, mut config: Config) -> Resource {
        self.space.run(move || {
            // What is sent before the end is to be sent.
            config.close_time = LONG;
            let context = Context::open(config).unwrap();
            context.register(attrs! { "name" => name }).unwrap()
        })
    }

    /// How many resources with `query` this node's programs find.
    pub fn count(&self, query: Attributes) -> usize {
        self.space.run(move || {
            let context = Context::open(Config::default()).unwrap();
            context.find(query).all().unwrap().len()
        })
    }

    pub fn knows(&self, nodes: usize) {
        wait_for(|| self.count(attrs! { "service" => "echo" }) == nodes);
    }

    pub fn ip(&self, words: impl Into<String>) {
        let words = words.into();
        self.space.run(move || {
            let done = Command::new("ip").args(words.split(' ')).status();
            assert!(done.unwrap().success(), "ip {words}");
        });
    }

    /// Bytes that were sent by an interface.
    pub fn sent_by(&self, interface: &'static str) -> u64 {
        let all = self.space.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = all.lines().find_map(|line| line.trim().strip_prefix(interface)).unwrap();
        line.trim_start_matches(':').split_whitespace().nth(8).unwrap().parse().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// That of all nodes of a test.
fn key() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.key", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime-fabricd"));
        assert!(command.arg("--make-key").arg(&path).status().unwrap().success());
        path
    })
}

/// Starts all daemons, one after the other, and waits until each node knows all of them.
pub fn start_all(nodes: &mut [&mut Node]) {
    nodes.iter_mut().for_each(|node| node.start());
    nodes.iter().for_each(|node| node.knows(nodes.len()));
}

pub fn wait_for(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "not within a minute");
        thread::park_timeout(Duration::from_millis(20));
    }
}
