//! A cluster of two tiers that exists on paper, what is asked for on it, and a broker for it: a
//! process of its own, as on a real cluster, which an end of the benchmark ends too.

use crate::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use keeptime::cluster::own_path;
use keeptime_broker::client::Client;
use keeptime_broker::config::{Config, PolicyFile};
use keeptime_broker::records;
use keeptime_credentials::dates::now;
use keeptime_engine::Step;
use keeptime_engine::event::{Event, Granted};
use keeptime_ledger::{Ledger, SqliteLedger};
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Grant, Handle, NodeChoice, Request, Resources};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Nodes of one request.
pub const JOB_NODES: u64 = 8;
/// Nodes behind one switch.
const LEAF_NODES: u64 = 32;
const JOB_TIME: Nanos = Nanos::from_secs(1_800);
/// Starts lie within so many of [`JOB_TIME`]: a month.
const SLOTS: u64 = 30 * 48;
/// Events of one batch when a ledger is filled.
const PAGE: usize = 1_000;
/// Far longer than any start takes.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// When the month begins in which reservations are asked for: in advance, so that no agent is asked,
/// and what is measured is the broker.
#[derive(Debug, Clone, Copy)]
pub struct Month(WallTime);

impl Month {
    /// From tomorrow on.
    pub fn from_tomorrow() -> Self {
        Self(now().saturating_add(Nanos::from_secs(24 * 3_600)))
    }

    fn slot(self, number: u64) -> WallTime {
        self.0.saturating_add(Nanos::new(JOB_TIME.get() * (number % SLOTS)))
    }

    /// Half an hour of any eight nodes: a processor, a hypercube of flows and some disk on each. The
    /// numbers' starts are spread over the month, and seldom the same.
    pub fn request(self, number: u64) -> Request {
        // Any odd number above the seconds of a slot scatters them.
        let seconds = number.wrapping_mul(7_919) % (JOB_TIME.get() / 1_000_000_000);
        let from = self.slot(number.wrapping_mul(601)).saturating_add(Nanos::from_secs(seconds));
        Request {
            from_unix_nanos: Some(from),
            duration_nanos: Some(JOB_TIME),
            ..Request::new(Ask::Resources(resources(NodeChoice::Any(JOB_NODES as u32))))
        }
    }
}

fn resources(nodes: NodeChoice) -> Resources {
    Resources {
        nodes,
        cpu_ppm: CpuPpm::from_percent(100),
        rank_cpu_ppm: Vec::new(),
        cpu_period_nanos: Some(Nanos::from_millis(20)),
        pattern: Some(Pattern::Hypercube),
        bits_per_second: BitsPerSecond::from_mbit(100),
        disk_read_bytes_per_second: BytesPerSecond::new(50_000_000),
        disk_write_bytes_per_second: BytesPerSecond::new(50_000_000),
    }
}

/// A broker on a cluster of so many nodes.
pub struct Broker {
    config: Config,
    child: Child,
}

impl Broker {
    /// The files of a broker that was never started, called `name`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn files(scratch: &Scratch, name: &str, nodes: u64) -> Result<Config> {
        let directory = scratch.directory().join(name);
        fs::create_dir_all(&directory)?;
        let policy = PolicyFile { user_reservations: u32::MAX, ..PolicyFile::default() };
        let requests_per_second = 1_000_000;
        let config = Config { requests_per_second, policy, ..Config::in_directory(&directory) };
        fs::write(&config.topology, topology(nodes))?;
        fs::write(directory.join("broker.toml"), config.to_toml())?;
        Ok(config)
    }

    /// Starts it, and waits for its first answer.
    ///
    /// # Errors
    /// If it does not answer; its log says why.
    pub fn start(config: Config) -> Result<Self> {
        let directory = config.topology.parent().context("no directory")?;
        let log = File::create(directory.join("broker.log"))?;
        let file = directory.join("broker.toml");
        let words: [OsString; 4] = ["broker".into(), "run".into(), "--config".into(), file.into()];
        let mut broker = Self { child: start_keeptime(&words, log)?, config };
        let (client, start) = (broker.client()?, Instant::now());
        while client.reservation(Handle::new(1)).is_err_and(|e| e.problem().is_none()) {
            let ended = broker.child.try_wait()?;
            if ended.is_some() || start.elapsed() > READY_WITHIN {
                let log = broker.config.topology.with_file_name("broker.log");
                let log = fs::read_to_string(log).unwrap_or_default();
                bail!("the broker does not answer: {}", log.trim());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(broker)
    }

    /// For one thread.
    ///
    /// # Errors
    /// If the process has no more file descriptors.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(&self.config.socket)?)
    }

    /// What it has in memory, and the most that it had: bytes.
    ///
    /// # Errors
    /// If it is gone.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
        };
        of("VmRSS:").zip(of("VmHWM:")).context("the kernel does not tell the broker's memory")
    }

    /// Ends it, as an init system does.
    ///
    /// # Errors
    /// If it ended otherwise.
    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the broker ended with {status}");
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It has ended already, unless the benchmark failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `keeptime` with these words; an end of the benchmark ends it too.
///
/// # Errors
/// If it cannot be started.
pub fn start_keeptime(words: &[OsString], log: File) -> Result<Child> {
    let mut command = Command::new(own_path()?);
    command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: prctl is allowed between fork and exec.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
    Ok(command.spawn()?)
}

/// Fills a broker's ledger with so many granted reservations and no snapshot, so that all of them have
/// to be read at its next start.
///
/// # Errors
/// If they do not fit the cluster, or cannot be written.
pub fn fill(path: &Path, nodes: u64, month: Month, reservations: u64) -> Result<()> {
    let groups = nodes / JOB_NODES;
    ensure!(reservations <= groups * SLOTS, "{nodes} nodes have no room for {reservations}");
    let mut ledger = SqliteLedger::open(path)?;
    let numbers: Vec<u64> = (0..reservations).collect();
    for page in numbers.chunks(PAGE) {
        let events = page.iter().map(|n| granted(*n, groups, month)).collect::<Result<_>>()?;
        let step = Step { time: now(), events, outputs: Vec::new() };
        ledger.append(&records::batches(&step)?)?;
    }
    Ok(())
}

/// Eight neighbours for one slot: no two grants share anything at any time but the switches' links.
fn granted(number: u64, groups: u64, month: Month) -> Result<Event> {
    let (group, from) = (number % groups, month.slot(number / groups));
    let names = (1..=JOB_NODES).map(|n| Ok(format!("n{}", group * JOB_NODES + n).parse()?));
    let names = names.collect::<Result<Vec<_>>>()?;
    let asked = resources(NodeChoice::Named(names.clone()));
    let grant = Grant {
        nodes: names,
        cpu_ppm: asked.cpu_ppm,
        rank_cpu_ppm: asked.rank_cpu_ppm.clone(),
        later: None,
        cpu_period_nanos: asked.cpu_period_nanos,
        cpu_mechanism: Default::default(),
        pattern: asked.pattern.clone(),
        bits_per_second: asked.bits_per_second,
        disk_read_bytes_per_second: asked.disk_read_bytes_per_second,
        disk_write_bytes_per_second: asked.disk_write_bytes_per_second,
        promise: None,
        services: Vec::new(),
        extension: Default::default(),
    };
    let request = Request {
        from_unix_nanos: Some(from),
        duration_nanos: Some(JOB_TIME),
        ..Request::new(Ask::Resources(asked))
    };
    let granted = Granted {
        owner: "ada".parse()?,
        key: format!("filled-{number}").parse()?,
        request,
        from_unix_nanos: from,
        until_unix_nanos: Some(from.saturating_add(JOB_TIME)),
        grant,
        replaces: None,
        decision: None,
    };
    Ok(Event::Granted { handle: Handle::new(number + 1), granted: Box::new(granted) })
}

/// Switches of 32 nodes at 10 Gbit/s, joined by one switch at 100 Gbit/s.
fn topology(nodes: u64) -> String {
    let leaves = nodes.div_ceil(LEAF_NODES);
    let mut text = String::from("name = \"two-tier\"\n[[switches]]\nname = \"core\"\n");
    // Writing to a string does not fail.
    for leaf in 1..=leaves {
        let _ = writeln!(text, "[[switches]]\nname = \"s{leaf}\"");
        let _ =
            writeln!(text, "[[links]]\nbetween = [\"s{leaf}\", \"core\"]\nrate = \"100 Gbit/s\"");
    }
    for n in 1..=nodes {
        let [third, fourth] = ((n - 1) as u16).to_be_bytes();
        let leaf = (n - 1) / LEAF_NODES + 1;
        let _ = writeln!(text, "[[nodes]]\nname = \"n{n}\"\ncpu = \"800 %\"");
        let _ = writeln!(text, "address = \"10.0.{third}.{fourth}\"");
        let _ = writeln!(
            text,
            "disk = {{ device = \"8:0\", read = \"2000 MB/s\", write = \"2000 MB/s\" }}"
        );
        let _ =
            writeln!(text, "[[links]]\nbetween = [\"n{n}\", \"s{leaf}\"]\nrate = \"10 Gbit/s\"");
    }
    text
}
