//! How fast a broker grants eight nodes with their links, CPU and disk, through its socket and with
//! every grant on the disk, without and with 100,000 live reservations; how soon it says whether and
//! when something could be had; how soon it serves again after a restart; and its memory.
//!
//! Two brokers of 1,024 nodes take turns, one that was empty and one that was full. What the disk takes
//! for a sync is measured in the same rounds.

pub mod cluster;

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use crate::scratch::{Scratch, timed};
use anyhow::{Result, ensure};
use cluster::{Broker, Month, fill};
use keeptime::machine::Machine;
use keeptime_broker::client::ClientError;
use keeptime_broker::config::Config;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::units::CpuPpm;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: [usize; 3] = [1, 16, 64];
/// Of [`CLIENTS`], those that targets are stated for.
const TARGET_CLIENTS: usize = 16;
const NODES: u64 = 1_024;
/// The status of a refusal.
const REFUSED: u16 = 409;
/// Of the cluster on which memory is measured.
const MANY_NODES: u64 = 10_000;

/// How much is measured.
struct Extent {
    rounds: usize,
    window: Duration,
    live: u64,
    syncs: usize,
    questions: u64,
    restarts: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    live: u64,
    sync_ms: Vec<f64>,
    grants: Vec<Grants>,
    questions: Vec<Questions>,
    /// Seconds from the start to the first answer, with `live` reservations.
    restarts: Vec<f64>,
    /// Bytes, now and at most, with `live` reservations on [`MANY_NODES`].
    memory: (u64, u64),
}

/// So many clients, each of which asks for one reservation after the other.
#[derive(Debug, Serialize)]
struct Grants {
    /// Before them.
    live: u64,
    clients: usize,
    /// Grants per second, round by round.
    per_second: Vec<f64>,
    /// What clients waited, milliseconds.
    wait_ms: Vec<f64>,
}

/// One kind of question whether and when something could be had.
#[derive(Debug, Serialize)]
struct Questions {
    kind: &'static str,
    /// What the client waited, milliseconds.
    wait_ms: Vec<f64>,
}

/// Measures on the disk that `out` is on, and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let window = Duration::from_secs(2);
    let extent = match quick() {
        true => Extent {
            rounds: 1,
            window: window / 10,
            live: 1_000,
            syncs: 10,
            questions: 20,
            restarts: 1,
        },
        false => {
            Extent { rounds: 5, window, live: 100_000, syncs: 100, questions: 2_000, restarts: 5 }
        }
    };
    let (scratch, month) = (Scratch::new(out, "broker")?, Month::from_tomorrow());
    let full = Broker::files(&scratch, "full", NODES)?;
    fill(&full.ledger, NODES, month, extent.live)?;
    let restarts = measure_restarts(&full, &extent)?;
    let empty = Broker::files(&scratch, "empty", NODES)?;
    let (full, empty) = (Broker::start(full)?, Broker::start(empty)?);
    let questions = measure_questions(&full, month, &extent)?;
    let (sync_ms, grants) = measure_grants(&scratch, &empty, &full, month, &extent)?;
    empty.stop()?;
    full.stop()?;
    let memory = measure_memory(&scratch, month, extent.live)?;
    let machine = Machine::here();
    let raw = Raw { machine, live: extent.live, sync_ms, grants, questions, restarts, memory };
    figures(&raw).finish(out, &raw)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("broker");
    let sync = quantile(&raw.sync_ms, 0.5);
    figures.median("append 4 KiB and sync", "ms", &raw.sync_ms, None, None);
    for Grants { live, clients, per_second, wait_ms } in &raw.grants {
        let is_target = *clients == TARGET_CLIENTS;
        let with = format!("{clients} clients, {live} live");
        let name = format!("grants of eight nodes, durable and answered, {with}");
        let target = is_target.then_some(Target::AtLeast(1_000.0));
        figures.median(name, "1/s", per_second, None, target);
        let p99 = quantile(wait_ms, 0.99);
        let name = format!("a grant until it is answered, {with}: median");
        figures.median(name, "ms", wait_ms, None, None);
        let name = format!("a grant until it is answered, {with}: 99th percentile");
        figures.value(name, "ms", p99, wait_ms, None, None);
        let name = format!("the same, above the median of a sync, {with}");
        let target = is_target.then_some(Target::AtMost(10.0));
        figures.value(name, "ms", p99 - sync, wait_ms, None, target);
    }
    let rates = |live: u64| {
        let mut all = raw.grants.iter();
        let of = all.find(|g| g.live == live && g.clients == TARGET_CLIENTS);
        of.map(|g| g.per_second.clone()).unwrap_or_default()
    };
    let (empty, full) = (rates(0), rates(raw.live));
    let ratios: Vec<f64> = empty.iter().zip(&full).map(|(a, b)| a / b).collect();
    let name = format!("grants a second without live reservations, of those with {}", raw.live);
    figures.median(name, "x", &ratios, None, Some(Target::AtMost(2.0)));
    for Questions { kind, wait_ms } in &raw.questions {
        let name = format!("can you, and when? {kind}, {} live: median", raw.live);
        figures.median(name, "ms", wait_ms, None, None);
        let name = format!("can you, and when? {kind}, {} live: 99th percentile", raw.live);
        let target = Some(Target::AtMost(5.0));
        figures.value(name, "ms", quantile(wait_ms, 0.99), wait_ms, None, target);
    }
    let name = format!("from start to first answer with {} reservations", raw.live);
    figures.median(name, "s", &raw.restarts, None, Some(Target::AtMost(3.0)));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let name = format!("memory with {} reservations on {MANY_NODES} nodes", raw.live);
    let target = Some(Target::AtMost(1_024.0));
    figures.median(format!("{name}, serving"), "MiB", &[mib(raw.memory.0)], None, None);
    figures.median(format!("{name}, at most"), "MiB", &[mib(raw.memory.1)], None, target);
    figures
}

/// Grants of the broker that was empty and the full one in turns, and syncs of the same rounds.
fn measure_grants(
    scratch: &Scratch,
    empty: &Broker,
    full: &Broker,
    month: Month,
    extent: &Extent,
) -> Result<(Vec<f64>, Vec<Grants>)> {
    let number = AtomicU64::new(0);
    let (mut sync_ms, mut all) = (Vec::new(), Vec::new());
    for live in [0, extent.live] {
        for clients in CLIENTS {
            all.push(Grants { live, clients, per_second: Vec::new(), wait_ms: Vec::new() });
        }
    }
    for _ in 0..extent.rounds {
        sync_ms.extend(scratch.sync_ms(extent.syncs)?);
        for grants in &mut all {
            let broker = if grants.live == 0 { empty } else { full };
            grants.measure(broker, month, &number, extent.window)?;
        }
    }
    Ok((sync_ms, all))
}

impl Grants {
    /// Lets them ask for about `window`.
    fn measure(
        &mut self,
        broker: &Broker,
        month: Month,
        number: &AtomicU64,
        window: Duration,
    ) -> Result<()> {
        let start = Instant::now();
        let ask_until_over = || -> Result<Vec<f64>> {
            let (client, mut waits) = (broker.client()?, Vec::new());
            while start.elapsed() < window {
                let number = number.fetch_add(1, Ordering::Relaxed);
                let (key, asked) = (format!("k{number}").parse()?, month.request(number));
                waits.push(timed(|| Ok(client.reserve(key, asked)?))?.0);
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

/// What is asked by a number.
type Question<'a> = &'a dyn Fn(u64) -> Result<Request>;

/// What fits at once, and what has to wait: the whole of eight nodes, which are in use.
fn measure_questions(broker: &Broker, month: Month, extent: &Extent) -> Result<Vec<Questions>> {
    let any = |number| Ok(month.request(number));
    let whole = |number: u64| -> Result<Request> {
        let names = (0..cluster::JOB_NODES).map(|n| format!("n{}", (number * 37 + n) % NODES + 1));
        let names = names.map(|name| name.parse()).collect::<Result<_, _>>()?;
        let cpu_ppm = CpuPpm::from_percent(800);
        let nodes = NodeChoice::Named(names);
        let ask = Ask::Resources(Resources { nodes, cpu_ppm, ..Resources::nothing() });
        Ok(Request { ask, ..month.request(number) })
    };
    let kinds: [(&str, Question); 2] =
        [("any eight nodes", &any), ("the whole of eight nodes in use", &whole)];
    let client = broker.client()?;
    let mut all = kinds.map(|(kind, _)| Questions { kind, wait_ms: Vec::new() });
    for number in 0..extent.questions {
        for ((_, question), Questions { wait_ms, .. }) in kinds.iter().zip(&mut all) {
            let request = question(number)?;
            let (milliseconds, answer) = timed(|| Ok(client.consider(&request)))?;
            // A refusal tells when.
            let is_refused = |e: &ClientError| e.problem().is_some_and(|p| p.status == REFUSED);
            if let Err(error) = answer
                && !is_refused(&error)
            {
                return Err(error.into());
            }
            wait_ms.push(milliseconds);
        }
    }
    Ok(all.into())
}

fn measure_restarts(config: &Config, extent: &Extent) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for _ in 0..extent.restarts {
        let (milliseconds, broker) = timed(|| Broker::start(config.clone()))?;
        seconds.push(milliseconds / 1e3);
        let last = broker.client()?.reservation(Handle::new(extent.live));
        ensure!(last.is_ok(), "the last reservation is not there: {last:?}");
        broker.stop()?;
    }
    Ok(seconds)
}

fn measure_memory(scratch: &Scratch, month: Month, live: u64) -> Result<(u64, u64)> {
    let config = Broker::files(scratch, "many", MANY_NODES)?;
    fill(&config.ledger, MANY_NODES, month, live)?;
    let broker = Broker::start(config)?;
    let client = broker.client()?;
    // It has answered what each part of it is needed for.
    for number in 0..100 {
        client.reserve(format!("k{number}").parse()?, month.request(number))?;
    }
    let memory = broker.memory()?;
    broker.stop()?;
    Ok(memory)
}
