//! The engine's thread on a ledger that fails on request: what was not recorded did not happen, and
//! nobody was told that it did.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_broker::agents::Hub;
use keeptime_broker::core::{Core, CoreError, Counters, Handle, SNAPSHOT_EVERY, Unavailable};
use keeptime_broker::records;
use keeptime_credentials::dates::now;
use keeptime_engine::book::Book;
use keeptime_engine::{Answer, Call, Caller, Cluster, Event, Policy, Step};
use keeptime_ledger::{
    Batch, Compaction, Entry, Fault, Ledger, LedgerError, MemoryDisk, MemoryLedger, Recorded,
    Revision, Snapshot, SnapshotPart, SqliteLedger, Status, Subject, Writer,
};
use keeptime_model::reservation::{self, Request};
use keeptime_model::topology::Topology;
use keeptime_model::units::{Nanos, WallTime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::runtime::Runtime;
use world::{World, request, topology, wait};

struct Bare {
    runtime: Runtime,
    handle: Handle,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<Result<(), CoreError>>>,
}

impl Bare {
    fn on(disk: &MemoryDisk) -> Self {
        Self::with(MemoryLedger::open(disk).unwrap())
    }

    fn with(ledger: impl Ledger + 'static) -> Self {
        Self::begin(ledger).unwrap()
    }

    fn begin(ledger: impl Ledger + 'static) -> Result<Self, CoreError> {
        let topology = Topology::from_toml(&topology(1)).unwrap();
        let cluster = Cluster::new(topology, |rate| rate).unwrap();
        let writer = Writer::start(ledger).unwrap();
        let hub = Arc::new(Hub::default());
        let (core, handle, _, counters) = Core::new(cluster, Policy::default(), writer, hub)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let thread = Some(std::thread::spawn(move || core.run()));
        Ok(Self { runtime, handle, counters, thread })
    }

    /// In two hours, so that no agent has to be asked. The same request every time.
    fn reserve(&self, key: &str) -> Result<String, Unavailable> {
        self.reserve_at(key, 0)
    }

    fn reserve_at(&self, key: &str, minute: u64) -> Result<String, Unavailable> {
        static FROM: OnceLock<WallTime> = OnceLock::new();
        let from = *FROM.get_or_init(|| now().saturating_add(Nanos::from_secs(7_200)));
        let from = from.saturating_add(Nanos::from_secs(60 * minute));
        let request = Request { from_unix_nanos: Some(from), ..request(1, 1, 0, 60) };
        let call = Call::Reserve { key: key.parse().unwrap(), request };
        let caller = Caller { user: "ada".parse().unwrap(), operator: false };
        match self.runtime.block_on(self.handle.call(caller, call))?.unwrap() {
            Answer::Reservation(reservation) => Ok(reservation.handle.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn count(&self) -> usize {
        let look = |engine: &keeptime_engine::Engine| engine.book().reservations().len();
        self.runtime.block_on(self.handle.read(look)).unwrap()
    }

    /// What time it is there.
    fn now(&self) -> WallTime {
        self.runtime.block_on(self.handle.read(|engine| engine.now())).unwrap()
    }

    fn stop(mut self) -> Result<(), CoreError> {
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
fn a_full_disk_refuses_with_a_reason_and_goes_on_when_there_is_room() {
    let disk = MemoryDisk::default();
    let broker = Bare::on(&disk);
    assert_eq!(broker.reserve("a").unwrap(), "r1");
    disk.fail_append(1, Fault::Full);
    let error = broker.reserve("b").unwrap_err();
    assert!(matches!(error, Unavailable::Unrecorded { .. }), "{error}");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!(broker.count(), 1, "what was not recorded did not happen");
    assert!(broker.reserve("c").is_err(), "it pauses, so that a full disk is not hammered");
    wait("the end of the pause", || broker.reserve("b").is_ok());
    assert_eq!(broker.reserve("b").unwrap(), "r2");
    broker.stop().unwrap();
    let again = Bare::on(&disk);
    assert_eq!(again.count(), 2);
    assert_eq!(again.reserve("b").unwrap(), "r2", "keys outlast the broker");
    again.stop().unwrap();
}

#[test]
fn a_write_of_unknown_outcome_ends_the_broker_and_everyone_is_told() {
    for is_written in [false, true] {
        let disk = MemoryDisk::default();
        let broker = Bare::on(&disk);
        broker.reserve("a").unwrap();
        disk.fail_append(1, Fault::Unknown { is_written });
        let error = broker.reserve("b").unwrap_err();
        assert!(matches!(error, Unavailable::Unknown { .. }), "{error}");
        let ended = broker.stop().unwrap_err();
        assert!(matches!(ended, CoreError::Write(_)), "{ended}");
        // Whether it is there is told by the ledger, and the same key finds it or makes it.
        let again = Bare::on(&disk);
        assert_eq!(again.count(), 1 + usize::from(is_written));
        assert_eq!(again.reserve("b").unwrap(), "r2");
        again.stop().unwrap();
    }
}

#[test]
fn a_broker_with_a_snapshot_begins_from_there() {
    let disk = MemoryDisk::default();
    let broker = Bare::on(&disk);
    for number in 0..SNAPSHOT_EVERY {
        broker.reserve_at(&format!("k{number}"), number).unwrap();
    }
    let saved = || broker.counters.snapshots.load(Ordering::Relaxed) == 1;
    wait("the snapshot", saved);
    broker.reserve("one-more").unwrap();
    broker.stop().unwrap();
    let ledger = MemoryLedger::open(&disk).unwrap();
    assert_eq!(ledger.status().snapshot.unwrap().get(), SNAPSHOT_EVERY);
    drop(ledger);
    let again = Bare::on(&disk);
    assert_eq!(again.count() as u64, SNAPSHOT_EVERY + 1);
    assert_eq!(again.reserve_at("k7", 7).unwrap(), "r8", "keys are in the snapshot");
    again.stop().unwrap();
}

/// A ledger that notes whether a snapshot was ever to be saved of what it does not hold.
struct Watched {
    ledger: MemoryLedger,
    was_early: Arc<AtomicBool>,
}

impl Ledger for Watched {
    fn status(&self) -> Status {
        self.ledger.status()
    }

    fn append(&mut self, batches: &[Batch]) -> Result<Revision, LedgerError> {
        self.ledger.append(batches)
    }

    fn read(&self, after: Revision, limit: usize) -> Result<Vec<Entry>, LedgerError> {
        self.ledger.read(after, limit)
    }

    fn history(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        self.ledger.history(subject, limit)
    }

    fn beginning(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        self.ledger.beginning(subject, limit)
    }

    fn count(&self, subject: Subject) -> Result<usize, LedgerError> {
        self.ledger.count(subject)
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, LedgerError> {
        self.ledger.snapshot()
    }

    fn save_snapshot_part(&mut self, part: SnapshotPart<'_>) -> Result<(), LedgerError> {
        if part.revision > self.status().head {
            self.was_early.store(true, Ordering::SeqCst);
        }
        self.ledger.save_snapshot_part(part)
    }

    fn compact(&mut self, forget: &[Subject], limit: usize) -> Result<Compaction, LedgerError> {
        self.ledger.compact(forget, limit)
    }

    fn kept(&self, kind: &str) -> Result<Vec<(Revision, Subject)>, LedgerError> {
        self.ledger.kept(kind)
    }
}

#[test]
fn what_was_undone_is_in_no_snapshot() {
    // The disk is full for the batch with which a snapshot is due: what it has decided did not happen.
    let (disk, was_early) = (MemoryDisk::default(), Arc::new(AtomicBool::new(false)));
    let ledger = MemoryLedger::open(&disk).unwrap();
    let broker = Bare::with(Watched { ledger, was_early: Arc::clone(&was_early) });
    for number in 1..SNAPSHOT_EVERY {
        broker.reserve_at(&format!("k{number}"), number).unwrap();
    }
    disk.fail_append(1, Fault::Full);
    assert!(broker.reserve("undone").is_err());
    wait("the end of the pause", || broker.reserve("after").is_ok());
    broker.stop().unwrap();
    assert!(!was_early.load(Ordering::SeqCst));
}

/// Records that a reservation of this number has ended and was forgotten.
fn forget(ledger: &mut impl Ledger, time: WallTime, number: u64) {
    let handle = reservation::Handle::new(number);
    let events = vec![Event::Ended { handle }, Event::Forgotten { handle }];
    let step = Step { time, events, outputs: Vec::new() };
    ledger.append(&records::batches(&step).unwrap()).unwrap();
}

// Goal: a broker for which time would stand still for a day says so, and goes on by the clock when somebody has said that it
// is right. Method: the ledger of one whose clock was ahead; a little is nothing to speak of.
#[test]
fn a_clock_far_behind_what_is_recorded_is_refused_until_somebody_accepts_it() {
    let disk = MemoryDisk::default();
    let open = || MemoryLedger::open(&disk).unwrap();
    forget(&mut open(), now().saturating_add(Nanos::from_secs(20)), 1);
    Bare::on(&disk).stop().unwrap();
    let ahead = now().saturating_add(Nanos::from_secs(86_400));
    forget(&mut open(), ahead, 2);
    let refused = Bare::begin(open()).err().unwrap();
    let CoreError::ClockBehind { recorded, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*recorded, ahead);
    let words = refused.to_string();
    assert!(words.contains(&ahead.to_string()) && words.contains("accept-clock"), "{words}");
    assert_eq!(records::accept_clock(&mut open(), now()).unwrap(), Some(ahead));
    for key in ["a", "b"] {
        let broker = Bare::on(&disk);
        broker.reserve(key).unwrap();
        let off = broker.now().saturating_since(now());
        assert!(off < Nanos::from_secs(3_600), "{off} ahead");
        broker.stop().unwrap();
    }
}

// Goal: what a broker was about to remove when it was killed is removed by the next, though nothing else tells what that was.
// Method: the first step of a compaction alone; of the last reservation snapshots do not cover all.
#[test]
fn what_was_left_by_a_broker_that_was_killed_while_it_compacted_is_removed_by_the_next() {
    let world = World::with(1, |config| {
        let mut ledger = SqliteLedger::open(&config.ledger).unwrap();
        (1..=4).for_each(|number| forget(&mut ledger, now(), number));
        for revision in [3, 4].map(Revision::new) {
            let state = serde_json::to_vec(&Book::default().snapshot()).unwrap();
            ledger.save_snapshot(&Snapshot { revision, state }).unwrap();
        }
        let step = ledger.compact(&[1, 2, 3].map(Subject::new), 3).unwrap();
        assert_eq!((step.removed, step.has_more), (3, true));
    });
    let client = world.client();
    let is_gone = |number| {
        let told = client.history(reservation::Handle::new(number));
        told.is_err_and(|error| error.problem().is_some_and(|problem| problem.status == 404))
    };
    wait("what was left to be removed", || (1..=3).all(is_gone));
    assert!(!is_gone(4));
}
