//! Load inside a lab: greedy flows that go on until dropped, and measured transfers.

use crate::cluster::{Cluster, own_path};
use crate::reach::exec_line;
use crate::traffic::{Received, Window};
use anyhow::{Context, Result, ensure};
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::BitsPerSecond;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Ports are used in turn, so that a connection that lingers does not meet the next receiver.
static NEXT_PORT: AtomicU16 = AtomicU16::new(20_000);

/// Greedy connections from one node to another: among four nodes, 12 out of each. With one alone, a
/// job of two flows would have nearly half of a link without any reservation.
const FLOWS_A_PAIR: usize = 4;
/// Where nobody listens (RFC 863).
const DISCARD_PORT: u16 = 9;

/// One sender and one receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Where bytes come from.
    pub from: NodeIndex,
    /// Where they go.
    pub to: NodeIndex,
}

/// A command on a node, ended when it is dropped.
#[derive(Debug)]
struct Remote(Child);

/// Greedy TCP flows, as many connections as pairs, that go on until this is dropped.
#[derive(Debug)]
pub struct Flood {
    _processes: Vec<Remote>,
}

/// Datagrams at a rate, which go on until this is dropped.
#[derive(Debug)]
pub struct Blast {
    _sender: Remote,
}

/// Programs that compute on a node without end, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    _loops: Vec<Remote>,
}

/// A transfer whose receiver counts what arrives.
#[derive(Debug)]
pub struct Transfer {
    receiver: Child,
    _senders: Vec<Remote>,
}

impl Flood {
    /// Starts `FLOWS_A_PAIR` best-effort connections from every node to every other. They are
    /// bounded: each ends by itself after `limit`.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn on_all_links(cluster: &Cluster, limit: Duration) -> Result<Self> {
        let pairs = all_pairs(cluster.topology().nodes().len() as u32);
        Self::between(cluster, &pairs, FLOWS_A_PAIR, limit)
    }

    /// Starts so many best-effort connections for each of `pairs`. They are bounded: each ends by itself after
    /// `limit`.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn between(
        cluster: &Cluster,
        pairs: &[Pair],
        connections: usize,
        limit: Duration,
    ) -> Result<Self> {
        let mut processes = Vec::new();
        for pair in pairs {
            let (warmup, cooldown) = Default::default();
            let window = Window { warmup, length: limit, cooldown };
            let transfer = Transfer::start(cluster, None, None, *pair, connections, window)?;
            processes.extend(transfer._senders);
            processes.push(Remote(transfer.receiver));
        }
        Ok(Self { _processes: processes })
    }

    /// What is started on a cluster of `nodes` nodes, in words.
    pub fn description(nodes: usize) -> String {
        let each = FLOWS_A_PAIR * nodes.saturating_sub(1);
        format!("{} greedy TCP flows, {each} out of every node, to all others", each * nodes)
    }
}

impl Blast {
    /// Starts it. It is bounded: it ends by itself after `limit`.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(
        cluster: &Cluster,
        pair: Pair,
        rate: BitsPerSecond,
        limit: Duration,
    ) -> Result<Self> {
        let to = format!("{}:{DISCARD_PORT}", cluster.address(pair.to)?);
        let words = [&own_path()?.display().to_string(), "traffic", "blast", &to].map(String::from);
        let (rate, limit) = (rate.to_string(), format!("{} ns", limit.as_nanos()));
        let options = ["--rate".into(), rate, "--limit".into(), limit];
        let command = [&words[..], &options].concat();
        let sender = spawn(cluster, pair.from, None, &command, Stdio::null())?;
        Ok(Self { _sender: Remote(sender) })
    }
}

impl Busy {
    /// Starts so many of them on a node, on nobody's account. They are bounded: each ends by itself after a
    /// minute of computing.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn on(cluster: &Cluster, node: NodeIndex, programs: usize) -> Result<Self> {
        let command = ["/bin/sh", "-c", "ulimit -t 60; while :; do :; done"].map(String::from);
        let start = |_| spawn(cluster, node, None, &command, Stdio::null()).map(Remote);
        Ok(Self { _loops: (0..programs).map(start).collect::<Result<_>>()? })
    }
}

impl Transfer {
    /// Starts `connections` connections from one node to another: the senders count to job
    /// `sending`, the receiver to job `receiving`.
    ///
    /// # Errors
    /// If a process cannot be started.
    pub fn start(
        cluster: &Cluster,
        sending: Option<&Name>,
        receiving: Option<&Name>,
        pair: Pair,
        connections: usize,
        window: Window,
    ) -> Result<Self> {
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let own = own_path()?.display().to_string();
        let nanos = |span: Duration| format!("{} ns", span.as_nanos());
        let receive = [
            vec![own.clone(), "traffic".into(), "receive".into()],
            vec![
                "--port".into(),
                port.to_string(),
                "--connections".into(),
                connections.to_string(),
            ],
            vec!["--warmup".into(), nanos(window.warmup), "--length".into(), nanos(window.length)],
            vec!["--cooldown".into(), nanos(window.cooldown)],
        ];
        let receiver = spawn(cluster, pair.to, receiving, &receive.concat(), Stdio::piped())?;
        let to = format!("{}:{port}", cluster.address(pair.to)?);
        let limit = nanos(window.warmup + 2 * window.length + window.cooldown);
        let send = [own, "traffic".into(), "send".into(), to, "--limit".into(), limit];
        let sender = |_| spawn(cluster, pair.from, sending, &send, Stdio::null()).map(Remote);
        let senders = (0..connections).map(sender).collect::<Result<_>>()?;
        Ok(Self { receiver, _senders: senders })
    }

    /// Waits for the window to pass and tells what arrived, one entry a connection.
    ///
    /// # Errors
    /// If the receiver failed.
    pub fn finish(self) -> Result<Vec<Received>> {
        let output = self.receiver.wait_with_output().context("while waiting for a receiver")?;
        ensure!(output.status.success(), "a receiver failed: {}", output.status);
        serde_json::from_slice(&output.stdout).context("a receiver told something else")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Killing the command that entered the node ends what it started there with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(
    cluster: &Cluster,
    node: NodeIndex,
    job: Option<&Name>,
    command: &[String],
    stdout: Stdio,
) -> Result<Child> {
    let lab = cluster.lab("load that nobody reserved")?;
    let line = exec_line(lab, cluster.topology().node(node).name.as_str(), job, command)?;
    Command::new(&line[0])
        .args(&line[1..])
        .stdin(Stdio::null())
        .stdout(stdout)
        .spawn()
        .with_context(|| format!("cannot start {}", command.join(" ")))
}

/// Every node sends to every other.
fn all_pairs(nodes: u32) -> Vec<Pair> {
    let indices = || (0..nodes).map(NodeIndex);
    let pairs = indices().flat_map(|from| indices().map(move |to| Pair { from, to }));
    pairs.filter(|pair| pair.from != pair.to).collect()
}
