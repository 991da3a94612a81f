//! How fast a ledger makes batches durable, and how soon a broker has read it again.
//!
//! What a disk can do is measured in the same minute, beside the ledger's own files: how long it
//! takes to append 4 KiB and sync them. The rounds go through all numbers of callers in turn, so that
//! each finds the disk as the others did. The replay is read twice: from memory, as after a broker
//! was killed, and from the disk, as after the machine was.

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use crate::scratch::{Scratch, timed};
use anyhow::{Result, ensure};
use keeptime::machine::Machine;
use keeptime_ledger::{Batch, Ledger, Record, Revision, SqliteLedger, Subject, Writer};
use keeptime_model::units::WallTime;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::Serialize;
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const BARE_SYNC: &str = "a sync of 4 KiB";
/// What a grant with its request and reason comes to.
const PAYLOAD_BYTES: usize = 2_048;
const CALLERS: [u64; 3] = [1, 16, 64];
/// Batches that a broker reads page by page when it starts.
const PAGE: usize = 1_000;
/// Of the three seconds in which a broker is to serve again.
const REPLAY_SECONDS: f64 = 1.5;

/// How much is measured.
struct Extent {
    rounds: usize,
    syncs: usize,
    window: Duration,
    batches: u64,
    replays: usize,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    /// Milliseconds to append 4 KiB and sync them, round by round.
    sync_ms: Vec<Vec<f64>>,
    callers: Vec<Callers>,
    batches: u64,
    file_bytes: u64,
    replays: Vec<Replay>,
}

/// So many callers, each of which waits for one batch after the other.
#[derive(Debug, Serialize)]
struct Callers {
    callers: u64,
    /// Durable batches per second, round by round.
    per_second: Vec<f64>,
    /// What callers waited, milliseconds.
    wait_ms: Vec<f64>,
}

/// One start of a broker: milliseconds.
#[derive(Debug, Serialize)]
struct Replay {
    is_cold: bool,
    open_ms: f64,
    read_ms: f64,
}

impl Replay {
    fn seconds(&self) -> f64 {
        (self.open_ms + self.read_ms) / 1e3
    }
}

/// Measures on the disk that `out` is on, and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let window = Duration::from_secs(2);
    let extent = match quick() {
        true => Extent { rounds: 1, syncs: 20, window: window / 20, batches: 2_000, replays: 1 },
        false => Extent { rounds: 5, syncs: 200, window, batches: 100_000, replays: 5 },
    };
    let scratch = Scratch::new(out, "ledger")?;
    let machine = Machine::here();
    let (sync_ms, callers) = measure_appends(&scratch, &extent)?;
    let path = scratch.directory().join("replay.db");
    fill(&path, extent.batches)?;
    let file_bytes = fs::metadata(&path)?.len();
    let replays = measure_replays(&path, &extent)?;
    let raw = Raw { machine, sync_ms, callers, batches: extent.batches, file_bytes, replays };
    figures(&raw).finish(out, &raw)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("ledger");
    let syncs: Vec<f64> = raw.sync_ms.iter().flatten().copied().collect();
    figures.median("append 4 KiB and sync: median", "ms", &syncs, None, None);
    let p99 = quantile(&syncs, 0.99);
    figures.value("append 4 KiB and sync: 99th percentile", "ms", p99, &syncs, None, None);
    let syncs_per_second = 1e3 / quantile(&syncs, 0.5);
    for Callers { callers, per_second, wait_ms } in &raw.callers {
        let name = format!("durable batches of 2 KiB, {callers} callers");
        let figure = figures.median(name, "1/s", per_second, Some(syncs_per_second), None);
        figure.against(BARE_SYNC);
        let name = format!("a batch until durable, {callers} callers: 99th percentile");
        let wait = quantile(wait_ms, 0.99);
        figures.value(name, "ms", wait, wait_ms, Some(p99), None).against(BARE_SYNC);
    }
    for (is_cold, from) in [(false, "memory"), (true, "disk")] {
        let of_kind = raw.replays.iter().filter(|replay| replay.is_cold == is_cold);
        let seconds: Vec<f64> = of_kind.map(Replay::seconds).collect();
        let name = format!("{} batches checked and read from {from}", raw.batches);
        figures.median(name, "s", &seconds, None, Some(Target::AtMost(REPLAY_SECONDS)));
    }
    let payload = raw.batches as f64 * PAYLOAD_BYTES as f64 / 1e6;
    let size = [raw.file_bytes as f64 / 1e6];
    let name = format!("file with {} batches, beside its payload", raw.batches);
    figures.median(name, "MB", &size, Some(payload), None).against("the payload");
    figures
}

fn measure_appends(scratch: &Scratch, extent: &Extent) -> Result<(Vec<Vec<f64>>, Vec<Callers>)> {
    let ledger = SqliteLedger::open(&scratch.directory().join("appends.db"))?;
    let writer = Writer::start(ledger)?;
    let mut sync_ms = Vec::new();
    let mut all =
        CALLERS.map(|callers| Callers { callers, per_second: Vec::new(), wait_ms: Vec::new() });
    for _ in 0..extent.rounds {
        sync_ms.push(scratch.sync_ms(extent.syncs)?);
        for callers in &mut all {
            callers.measure(&writer, extent.window)?;
        }
    }
    Ok((sync_ms, all.into()))
}

impl Callers {
    /// Lets them append for about `window`.
    fn measure(&mut self, writer: &Writer, window: Duration) -> Result<()> {
        let start = Instant::now();
        let append_until_over = |caller| -> Result<Vec<f64>> {
            let mut waits = Vec::new();
            while start.elapsed() < window {
                let batch = batch(caller)?;
                waits.push(timed(|| Ok(writer.append(batch)?))?.0);
            }
            Ok(waits)
        };
        let waits = thread::scope(|scope| {
            let spawn = |caller| scope.spawn(move || append_until_over(caller));
            let threads: Vec<_> = (0..self.callers).map(spawn).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            joined.collect::<Result<Vec<_>>>()
        })?;
        let waits = waits.concat();
        self.per_second.push(waits.len() as f64 / start.elapsed().as_secs_f64());
        self.wait_ms.extend(waits);
        Ok(())
    }
}

/// A ledger with so many batches and no snapshot: all of them have to be read.
fn fill(path: &Path, batches: u64) -> Result<()> {
    let mut ledger = SqliteLedger::open(path)?;
    // Three about each reservation: granted, started, ended.
    let batches = (0..batches).map(|number| batch(number / 3)).collect::<Result<Vec<_>>>()?;
    batches.chunks(PAGE).try_for_each(|chunk| Ok(ledger.append(chunk).map(drop)?))
}

fn measure_replays(path: &Path, extent: &Extent) -> Result<Vec<Replay>> {
    let mut replays = Vec::new();
    for number in 0..2 * extent.replays {
        let is_cold = number % 2 == 1;
        if is_cold {
            leave_memory(path)?;
        }
        let (open_ms, ledger) = timed(|| Ok(SqliteLedger::open(path)?))?;
        let (read_ms, count) = timed(|| read_all(&ledger))?;
        ensure!(count == extent.batches, "{count} batches were read of {}", extent.batches);
        replays.push(Replay { is_cold, open_ms, read_ms });
    }
    Ok(replays)
}

/// As a broker reads what came after its snapshot.
fn read_all(ledger: &impl Ledger) -> Result<u64> {
    let mut after = Revision::ZERO;
    while let Some(last) = ledger.read(after, PAGE)?.last() {
        after = last.revision;
    }
    Ok(after.get())
}

/// Asks the kernel to forget what it keeps of a file that is on the disk.
fn leave_memory(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}

fn batch(subject: u64) -> Result<Batch> {
    let words = br#"{"node": "n1", "rate_bits_per_second": 80000000, "reason": "granted"}, "#;
    let record = Record {
        kind: "reservation-granted".parse()?,
        subject: Some(Subject::new(subject)),
        time: WallTime::from_unix_nanos(subject),
        payload: words.iter().copied().cycle().take(PAYLOAD_BYTES).collect(),
    };
    Ok(Batch::new(vec![record])?)
}
