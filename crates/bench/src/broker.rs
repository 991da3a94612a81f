//! How fast a broker grants, through its socket and with every grant on the disk, and how soon it
//! serves again after a restart. Reservations are in advance, so that no agent is asked: what is
//! measured is the broker, its engine and its ledger.

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use crate::scratch::Scratch;
use anyhow::{Context, Result, anyhow, ensure};
use keeptime::machine::Machine;
use keeptime_broker::client::Client;
use keeptime_broker::config::{Config, PolicyFile};
use keeptime_broker::core::now;
use keeptime_broker::records;
use keeptime_broker::server::{self, ServeError};
use keeptime_engine::Step;
use keeptime_engine::event::{Event, Granted};
use keeptime_ledger::{Ledger, SqliteLedger};
use keeptime_model::reservation::{Ask, Grant, Handle, NodeChoice, Request, Resources};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const NODES: u64 = 64;
const CLIENTS: [usize; 3] = [1, 16, 64];
/// In which a broker is to serve again.
const RESTART_SECONDS: f64 = 3.0;
/// Events of one batch when a ledger is filled.
const PAGE: usize = 1_000;
const MINUTE: Nanos = Nanos::from_secs(60);

/// How much is measured.
struct Extent {
    rounds: usize,
    window: Duration,
    reservations: u64,
    restarts: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    clients: Vec<Clients>,
    reservations: u64,
    /// Seconds from the start to the first answer.
    restarts: Vec<f64>,
}

/// So many clients, each of which asks for one reservation after the other.
#[derive(Debug, Serialize)]
struct Clients {
    clients: usize,
    /// Grants per second, round by round.
    per_second: Vec<f64>,
    /// What clients waited, milliseconds.
    wait_ms: Vec<f64>,
}

/// Measures on the disk that `out` is on, and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let window = Duration::from_secs(2);
    let extent = match quick() {
        true => Extent { rounds: 1, window: window / 10, reservations: 1_000, restarts: 1 },
        false => Extent { rounds: 5, window, reservations: 100_000, restarts: 5 },
    };
    let scratch = Scratch::new(out, "broker")?;
    let clients = measure_grants(&scratch, &extent)?;
    let restarts = measure_restarts(&scratch, &extent)?;
    let machine = Machine::here();
    let raw = Raw { machine, clients, reservations: extent.reservations, restarts };
    figures(&raw).finish(out, &raw)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("broker");
    for Clients { clients, per_second, wait_ms } in &raw.clients {
        let name = format!("grants, durable and answered, {clients} clients");
        figures.median(name, "1/s", per_second, None, None);
        let name = format!("a grant until it is answered, {clients} clients: median");
        figures.median(name, "ms", wait_ms, None, None);
        let name = format!("a grant until it is answered, {clients} clients: 99th percentile");
        figures.value(name, "ms", quantile(wait_ms, 0.99), wait_ms, None, None);
    }
    let name = format!("from start to first answer with {} reservations", raw.reservations);
    figures.median(name, "s", &raw.restarts, None, Some(Target::AtMost(RESTART_SECONDS)));
    figures
}

fn measure_grants(scratch: &Scratch, extent: &Extent) -> Result<Vec<Clients>> {
    let broker = Broker::start(config(scratch, "grants")?)?;
    let number = AtomicU64::new(0);
    let mut all =
        CLIENTS.map(|clients| Clients { clients, per_second: Vec::new(), wait_ms: Vec::new() });
    for _ in 0..extent.rounds {
        for clients in &mut all {
            clients.measure(&broker, &number, extent.window)?;
        }
    }
    broker.stop()?;
    Ok(all.into())
}

impl Clients {
    /// Lets them ask for about `window`.
    fn measure(&mut self, broker: &Broker, number: &AtomicU64, window: Duration) -> Result<()> {
        let start = Instant::now();
        let ask_until_over = || -> Result<Vec<f64>> {
            let (client, mut waits) = (broker.client()?, Vec::new());
            while start.elapsed() < window {
                let number = number.fetch_add(1, Ordering::Relaxed);
                let (key, asked) = (format!("k{number}").parse()?, request(number));
                let begin = Instant::now();
                client.reserve(key, asked)?;
                waits.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            Ok(waits)
        };
        let waits = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients).map(|_| scope.spawn(ask_until_over)).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        let waits = waits.concat();
        self.per_second.push(waits.len() as f64 / start.elapsed().as_secs_f64());
        self.wait_ms.extend(waits);
        Ok(())
    }
}

fn measure_restarts(scratch: &Scratch, extent: &Extent) -> Result<Vec<f64>> {
    let config = config(scratch, "restarts")?;
    fill(&config.ledger, extent.reservations)?;
    let mut seconds = Vec::new();
    for _ in 0..extent.restarts {
        let start = Instant::now();
        let broker = Broker::start(config.clone())?;
        seconds.push(start.elapsed().as_secs_f64());
        let last = broker.client()?.reservation(Handle::new(extent.reservations));
        ensure!(last.is_ok(), "the last reservation is not there: {last:?}");
        broker.stop()?;
    }
    Ok(seconds)
}

/// A ledger with so many granted reservations and no snapshot: all of them have to be read.
fn fill(path: &Path, reservations: u64) -> Result<()> {
    let mut ledger = SqliteLedger::open(path)?;
    let numbers: Vec<u64> = (1..=reservations).collect();
    for page in numbers.chunks(PAGE) {
        let events = page.iter().map(|number| granted(*number)).collect::<Result<_>>()?;
        let step = Step { time: now(), events, outputs: Vec::new() };
        ledger.append(&records::batches(&step)?)?;
    }
    Ok(())
}

fn granted(number: u64) -> Result<Event> {
    let request = request(number);
    let from = request.from_unix_nanos.unwrap_or_default();
    let grant = Grant {
        nodes: vec![format!("n{}", number % NODES + 1).parse()?],
        cpu_ppm: CpuPpm::new(1_000),
        cpu_period_nanos: None,
        pattern: None,
        bits_per_second: BitsPerSecond::ZERO,
        disk_read_bytes_per_second: BytesPerSecond::default(),
        disk_write_bytes_per_second: BytesPerSecond::default(),
        promise: None,
    };
    let granted = Granted {
        owner: "ada".parse()?,
        key: format!("k{number}").parse()?,
        request,
        from_unix_nanos: from,
        until_unix_nanos: Some(from.saturating_add(MINUTE)),
        grant,
        replaces: None,
    };
    Ok(Event::Granted { handle: Handle::new(number), granted: Box::new(granted) })
}

/// A minute of a little CPU, some time in the month after tomorrow.
fn request(number: u64) -> Request {
    const DAY: u64 = 24 * 3_600;
    let seconds = now().unix_nanos() / 1_000_000_000 + DAY + number * 37 % (30 * DAY);
    let cpu_ppm = CpuPpm::new(1_000);
    let resources = Resources { nodes: NodeChoice::Any(1), cpu_ppm, ..Resources::nothing() };
    Request {
        from_unix_nanos: Some(WallTime::from_unix_nanos(seconds * 1_000_000_000)),
        duration_nanos: Some(MINUTE),
        ..Request::new(Ask::Resources(resources))
    }
}

/// A broker on a thread.
struct Broker {
    config: Config,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ServeError>>,
}

impl Broker {
    /// Starts it, and waits for its first answer.
    fn start(config: Config) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, for_thread) = (Arc::clone(&stop), config.clone());
        let thread =
            thread::spawn(move || server::run(&for_thread, || told.load(Ordering::SeqCst)));
        let broker = Self { config, stop, thread };
        let client = broker.client()?;
        while client.nodes(None).is_err() {
            ensure!(!broker.thread.is_finished(), "the broker has ended");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(broker)
    }

    fn client(&self) -> Result<Client> {
        Ok(Client::new(&self.config.socket)?)
    }

    fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        Ok(self.thread.join().map_err(|_| anyhow!("the broker panicked"))??)
    }
}

/// A configuration of a broker of its own, called `name`.
fn config(scratch: &Scratch, name: &str) -> Result<Config> {
    let directory = scratch.directory().join(name);
    fs::create_dir_all(&directory)?;
    let policy = PolicyFile { user_reservations: u32::MAX, ..PolicyFile::default() };
    let requests_per_second = 1_000_000;
    let config = Config { requests_per_second, policy, ..Config::in_directory(&directory) };
    fs::write(&config.topology, star())?;
    Ok(config)
}

fn star() -> String {
    let mut text = String::from("name = \"star\"\nswitches = [{ name = \"s1\" }]\n");
    // Writing to a string does not fail.
    for n in 1..=NODES {
        let _ = writeln!(text, "[[nodes]]\nname = \"n{n}\"\ncpu = \"800 %\"");
        let _ = writeln!(text, "address = \"10.0.0.{n}\"");
    }
    for n in 1..=NODES {
        let _ = writeln!(text, "[[links]]\nbetween = [\"n{n}\", \"s1\"]\nrate = \"1 Gbit/s\"");
    }
    text
}
