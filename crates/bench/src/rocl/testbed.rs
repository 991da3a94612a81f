//! Nodes with three networks: two fast ones that only some share, and a slow one that all share. A node
//! is a network namespace with its own daemon, and a control group with a share of the CPU: else two cores
//! would be all that eight nodes have, and four nodes as many.

use anyhow::{Context as _, Result, anyhow, ensure};
use keeptime::cluster::own_path;
use keeptime_fabric::{Config, Context, echo};
use keeptime_linux::cgroup::{Group, Hierarchies};
use keeptime_linux::testing::rig::Space;
use keeptime_model::units::CpuPpm;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const PORT: u16 = 7400;
/// For anything, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A network of the testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// What Myrinet is in the paper.
    First,
    /// What Gigabit Ethernet is.
    Second,
    /// What Fast Ethernet is.
    Slow,
}

/// Nodes and the switches between them.
pub struct Testbed {
    _switch: Space,
    nodes: Vec<Node>,
}

/// One node.
pub struct Node {
    pub name: String,
    space: Arc<Space>,
    addresses: Vec<(Network, Ipv4Addr)>,
    group: Option<Group>,
    daemon: Option<Process>,
}

/// A program on a node; it does not outlast this.
pub struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
    /// It opens them again when it begins.
    _joins: Vec<Arc<File>>,
}

impl Network {
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Slow];

    /// In Mbit/s.
    pub const fn rate(self) -> u32 {
        match self {
            Self::First => 800,
            Self::Second => 500,
            Self::Slow => 100,
        }
    }

    /// As it is called on the page.
    pub const fn label(self) -> &'static str {
        match self {
            Self::First => "first (800 Mbit/s)",
            Self::Second => "second (500 Mbit/s)",
            Self::Slow => "slow (100 Mbit/s)",
        }
    }

    const fn number(self) -> u8 {
        self as u8
    }

    fn address(self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 71 + self.number(), 0, node as u8 + 1)
    }
}

impl Testbed {
    /// Nodes by name, each with its networks and the same share of a CPU; without one, as much as there
    /// is. One that is a bridge passes on what others say.
    pub fn new(
        nodes: &[(String, Vec<Network>)],
        bridge: Option<&str>,
        cpu: Option<CpuPpm>,
    ) -> Result<Self> {
        let switch = space()?;
        for network in Network::ALL {
            ip(&switch, format!("link add br{} type bridge", network.number()))?;
            ip(&switch, format!("link set br{} up", network.number()))?;
        }
        let mut made = Vec::new();
        for (at, (name, networks)) in nodes.iter().enumerate() {
            made.push(Node::new(&switch, at, name, networks, cpu)?);
        }
        let mut testbed = Self { _switch: switch, nodes: made };
        for at in 0..testbed.nodes.len() {
            let (before, rest) = testbed.nodes.split_at_mut(at);
            let node = &mut rest[0];
            // Whoever was there before and has a network with it.
            let member = before.iter().find_map(|other| node.shares_with(other));
            node.start_daemon(member, bridge == Some(node.name.as_str()))?;
        }
        let count = testbed.nodes.len();
        testbed.nodes.iter().try_for_each(|node| node.run(move || knows(count)))?;
        Ok(testbed)
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.iter().find(|node| node.name == name).with_context(|| format!("no node {name}"))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Sets every node's share; as much as there is while tables are filled.
    pub fn set_cpu(&self, cpu: CpuPpm) -> Result<()> {
        let groups = self.nodes.iter().filter_map(|node| node.group.as_ref());
        Ok(groups.into_iter().try_for_each(|group| group.set_cpu(cpu))?)
    }
}

impl Node {
    fn new(
        switch: &Space,
        at: usize,
        name: &str,
        networks: &[Network],
        cpu: Option<CpuPpm>,
    ) -> Result<Self> {
        let space = space()?;
        let mut addresses = Vec::new();
        for network in networks {
            let (number, address) = (network.number(), network.address(at));
            let device = format!("w{at}n{number}");
            // The switch's end needs an address for a moment only.
            let far = Ipv4Addr::new(10, 71 + number, 0, 254);
            space.plug(switch, &device, [address, far]).map_err(anyhow::Error::msg)?;
            ip(switch, format!("addr flush dev {device}"))?;
            ip(switch, format!("link set {device} master br{number}"))?;
            for end in [&space, switch] {
                let rate = network.rate();
                let qdisc = format!(
                    "qdisc add dev {device} root tbf rate {rate}mbit burst 128k latency 20ms"
                );
                run(end, "tc", qdisc)?;
            }
            addresses.push((*network, address));
        }
        let group = cpu.map(|cpu| group(name, cpu)).transpose()?;
        Ok(Self { name: name.into(), space: Arc::new(space), addresses, group, daemon: None })
    }

    /// Its address on a network.
    pub fn address(&self, network: Network) -> Result<Ipv4Addr> {
        let own = self.addresses.iter().find(|(of, _)| *of == network);
        own.map(|(_, address)| *address)
            .with_context(|| format!("{} is not on {network:?}", self.name))
    }

    /// The other one's address on a network that both have: the slow one, if there is one. A daemon is known
    /// to others by the address that it calls from, so it should be one that all can reach.
    fn shares_with(&self, other: &Self) -> Option<Ipv4Addr> {
        self.addresses.iter().rev().find_map(|(network, _)| other.address(*network).ok())
    }

    fn start_daemon(&mut self, member: Option<Ipv4Addr>, is_bridge: bool) -> Result<()> {
        // Whoever is on a testbed is the testbed's.
        let mut words = vec!["--node".into(), self.name.clone(), "--open".into()];
        words.extend(["--address".into(), format!("0.0.0.0:{PORT}")]);
        words.extend(member.iter().flat_map(|m| ["--member".into(), format!("{m}:{PORT}")]));
        words.extend((!is_bridge).then(|| "--no-bridge".to_owned()));
        let mut daemon = self.start("keeptime-fabricd", &words)?;
        daemon.line()?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// The thread on this node, to keep.
    pub fn space(&self) -> Arc<Space> {
        self.space.clone()
    }

    /// Runs on this node's thread; what that makes is on the node.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.space.run(work)
    }

    /// Starts a program that was built with this one.
    pub fn start(&self, program: &str, words: &[String]) -> Result<Process> {
        let path = own_path()?.with_file_name(program);
        ensure!(path.exists(), "{} is not there: `make build` makes it", path.display());
        let joins = match &self.group {
            Some(group) => group.open_to_join()?.into_iter().map(Arc::new).collect(),
            None => Vec::new(),
        };
        let (words, of_thread) = (words.to_vec(), joins.clone());
        let mut child = self.run(move || spawn(&path, &words, &of_thread))?;
        let said = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Process { child, said, _joins: joins })
    }
}

/// The program is in its group before it begins: later, a thread of it may have a schedule that the
/// group does not take.
fn spawn(path: &Path, words: &[String], joins: &[Arc<File>]) -> Result<Child> {
    let own = std::process::id();
    let joins = joins.iter().map(|join| format!("echo 0 >/proc/{own}/fd/{} && ", join.as_raw_fd()));
    let script = format!("{}exec \"$@\"", joins.collect::<String>());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(path).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.spawn().with_context(|| path.display().to_string())
}

impl Process {
    /// The next line that it prints.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a program has ended without a word");
        Ok(line.trim().into())
    }

    /// Says a line to it.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("its input")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// What it prints until it ends, if it ends well.
    pub fn finish(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "a program has ended with {status}: {rest}");
        Ok(rest)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.daemon = None;
        if let Some(group) = &self.group
            && let Err(error) = group.kill_all().and_then(|()| group.remove())
        {
            eprintln!("control group of {} is left: {error:#}", self.name);
        }
    }
}

/// Waits until the daemon of this thread's node knows so many.
fn knows(count: usize) -> Result<()> {
    let context = Context::open(Config::default())?;
    wait_for("daemons that know each other", || {
        Ok(context.find(echo::query()).all()?.len() == count)
    })
}

/// Waits until `is_so`.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        thread::park_timeout(Duration::from_millis(50));
    }
    Ok(())
}

fn space() -> Result<Space> {
    Space::new().map_err(|error| anyhow!(error).context("this needs root"))
}

fn group(name: &str, cpu: CpuPpm) -> Result<Group> {
    let path = format!("keeptime/_eval-rocl-{}-{name}", std::process::id());
    let group = Hierarchies::discover()?.group(path)?;
    group.create()?;
    group.set_cpu(cpu)?;
    Ok(group)
}

fn ip(space: &Space, words: String) -> Result<()> {
    run(space, "ip", words)
}

fn run(space: &Space, program: &'static str, words: String) -> Result<()> {
    space.run(move || {
        let output = Command::new(program).args(words.split(' ')).output().context(program)?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {words}: {told}");
        Ok(())
    })
}
