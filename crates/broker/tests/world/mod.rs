//! A broker on a thread, among agents that keep the record of a node and enforce nothing: the real
//! sockets, the real ledger, no privilege.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses a part")]

use keeptime_agent::agent::Agent;
use keeptime_agent::book::Capacity;
use keeptime_agent::dial::Broker;
use keeptime_agent::enforce::Unenforced;
use keeptime_agent::link;
use keeptime_agent::store::Store;
use keeptime_broker::client::Client;
use keeptime_broker::config::{Config, PolicyFile};
use keeptime_broker::server::{self, ServeError};
use keeptime_credentials::dates::now;
use keeptime_linux::load::Scope;
use keeptime_model::disk::DiskRates;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos};
use std::fmt::Write;
use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub struct World {
    pub directory: tempfile::TempDir,
    pub config: Config,
    pub agents: Vec<Arc<Mutex<Agent<Unenforced>>>>,
    broker: Option<Running>,
}

struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ServeError>>,
}

impl World {
    /// Nodes n1, n2 and so on behind one switch, each with a processor and 100 Mbit/s; all there.
    pub fn new(nodes: usize) -> Self {
        Self::with(nodes, |_| {})
    }

    /// As [`Self::new`], with something else in the broker's configuration.
    pub fn with(nodes: usize, change: impl FnOnce(&mut Config)) -> Self {
        Self::of(nodes, 0, change)
    }

    /// The same, and the agents of so many nodes can say how busy they are.
    pub fn of(nodes: usize, counting: usize, change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("topology.toml"), topology(nodes)).unwrap();
        let policy = PolicyFile { agent_lease: Nanos::from_secs(4), ..PolicyFile::default() };
        let mut config = Config { policy, ..Config::in_directory(directory.path()) };
        change(&mut config);
        let mut world = Self { config, agents: vec![], broker: None, directory };
        world.start();
        for number in 1..=nodes {
            world.add_agent(number, (number <= counting).then_some(Scope::Machine));
        }
        world.wait_until_all_are_there();
        world
    }

    fn add_agent(&mut self, number: usize, scope: Option<Scope>) {
        let store = Store::at(&self.directory.path().join(format!("n{number}.json")));
        let rate = Some(BytesPerSecond::from_mega_bytes(100));
        let rates = DiskRates { read_bytes_per_second: rate, write_bytes_per_second: rate };
        let capacity = Capacity {
            cpu: CpuPpm::from_percent(100),
            reservable: BitsPerSecond::from_mbit(100),
            disks: [("8:0".parse().unwrap(), rates)].into(),
            capabilities: None,
            schedules: None,
        };
        let enforcer = Unenforced { reason: "a test".into(), capabilities: None };
        let name = format!("n{number}").parse().unwrap();
        let agent = Agent::start(name, capacity, store, enforcer, now()).unwrap();
        let agent = Arc::new(Mutex::new(agent));
        self.agents.push(Arc::clone(&agent));
        let broker = Broker::Socket(self.config.agents.clone());
        // It ends with the test program.
        std::thread::spawn(move || link::keep(&agent, &broker, scope.as_ref()));
    }

    pub fn start(&mut self) {
        let stop = Arc::new(AtomicBool::new(false));
        let (config, told) = (self.config.clone(), Arc::clone(&stop));
        let stopped = move || told.load(Ordering::SeqCst);
        let thread = std::thread::spawn(move || server::run(&config, &stopped));
        self.broker = Some(Running { stop, thread });
        wait("the broker", || self.client().nodes(None).is_ok());
    }

    pub fn stop(&mut self) {
        if let Some(Running { stop, thread }) = self.broker.take() {
            stop.store(true, Ordering::SeqCst);
            thread.join().unwrap().unwrap();
        }
    }

    /// Waits until the broker has ended by itself.
    pub fn end(&mut self) -> Result<(), ServeError> {
        let Running { thread, .. } = self.broker.take().unwrap();
        wait("the broker's end", || thread.is_finished());
        thread.join().unwrap()
    }

    pub fn wait_until_all_are_there(&self) {
        wait("all agents", || {
            let nodes = self.client().nodes(None);
            nodes.is_ok_and(|nodes| nodes.nodes.iter().all(|node| node.connected))
        });
    }

    pub fn client(&self) -> Client {
        Client::new(&self.config.socket).unwrap()
    }

    /// What the agent of node `number` holds.
    pub fn jobs(&self, number: usize) -> Vec<String> {
        let agent = self.agents[number - 1].lock().unwrap();
        agent.assignments().map(|assignment| assignment.job.to_string()).collect()
    }

    /// Says `text` on a new connection, and returns all that is answered until it is closed.
    pub fn say(&self, text: &str) -> String {
        let mut stream = UnixStream::connect(&self.config.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The broker may have hung up before all was said.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// One request, as `curl` would send it.
    pub fn request(&self, method: &str, path: &str, body: &str) -> String {
        self.say(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(Running { stop, thread }) = self.broker.take() {
            stop.store(true, Ordering::SeqCst);
            let _ = thread.join();
        }
    }
}

pub fn topology(nodes: usize) -> String {
    let mut text = String::from("name = \"star\"\nswitches = [{ name = \"s1\" }]\n");
    for n in 1..=nodes {
        let disk = "disk = { device = \"8:0\", read = \"100 MB/s\", write = \"100 MB/s\" }";
        let address = format!("10.0.{}.{}", n / 250, n % 250 + 1);
        writeln!(
            text,
            "[[nodes]]\nname = \"n{n}\"\ncpu = \"100 %\"\naddress = \"{address}\"\n{disk}"
        )
        .unwrap();
    }
    for n in 1..=nodes {
        writeln!(text, "[[links]]\nbetween = [\"n{n}\", \"s1\"]\nrate = \"100 Mbit/s\"").unwrap();
    }
    text
}

/// CPU on any nodes, and a rate between each pair of them, from now on for so long.
pub fn request(nodes: u32, percent: u32, mbit: u64, seconds: u64) -> Request {
    let resources = Resources {
        nodes: NodeChoice::Any(nodes),
        cpu_ppm: CpuPpm::from_percent(percent),
        pattern: (mbit > 0).then_some(Pattern::AllToAll),
        bits_per_second: BitsPerSecond::from_mbit(mbit),
        ..Resources::nothing()
    };
    Request {
        duration_nanos: (seconds > 0).then(|| Nanos::from_secs(seconds)),
        ..Request::new(Ask::Resources(resources))
    }
}

/// Waits for a condition.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
