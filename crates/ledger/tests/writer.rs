//! The writer: what callers are told when commits are shared and when they fail.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{batch, scratch, tail};
use keeptime_ledger::{
    Fault, Ledger, LedgerError, MemoryDisk, MemoryLedger, Revision, Snapshot, SqliteLedger,
    Subject, WriteError, Writer,
};
use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

fn on_disk() -> (MemoryDisk, Writer) {
    let disk = MemoryDisk::default();
    let writer = Writer::start(MemoryLedger::open(&disk).unwrap()).unwrap();
    (disk, writer)
}

/// Keeps the writer busy until the sender is dropped, so that what is submitted then waits.
fn occupy(writer: &Writer) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (entered, inside) = mpsc::channel();
    let writer = writer.clone();
    thread::spawn(move || {
        writer.call(move |_| {
            entered.send(()).unwrap();
            released.recv().ok();
        })
    });
    inside.recv().unwrap();
    release
}

fn submit(
    writer: &Writer,
    number: u64,
    after: Option<u64>,
) -> mpsc::Receiver<Result<Revision, WriteError>> {
    let (answer, answered) = mpsc::channel();
    let after = after.map(Revision::new);
    writer
        .submit(vec![batch(number)], after, move |outcome| answer.send(outcome).unwrap())
        .unwrap();
    answered
}

#[test]
fn every_caller_learns_its_own_revision() {
    let directory = scratch();
    let ledger = SqliteLedger::open(&directory.path().join("ledger.db")).unwrap();
    let writer = Writer::start(ledger).unwrap();
    let told: Vec<(Revision, u64)> = thread::scope(|scope| {
        let append = |caller: u64| {
            let writer = writer.clone();
            scope.spawn(move || {
                let numbers = (0..20).map(|n| caller * 20 + n);
                numbers.map(|n| (writer.append(batch(n)).unwrap(), n)).collect::<Vec<_>>()
            })
        };
        let callers: Vec<_> = (0..16).map(append).collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let revisions: BTreeSet<_> = told.iter().map(|(revision, _)| revision.get()).collect();
    assert_eq!(revisions, (1..=320).collect());
    assert_eq!(writer.status().head, Revision::new(320));
    assert!(writer.status().sync_time.is_some());
    let entries = writer.call(|ledger| ledger.read(Revision::ZERO, 1_000).unwrap()).unwrap();
    for (revision, number) in told {
        assert_eq!(entries[revision.get() as usize - 1].batch, batch(number));
    }
}

#[test]
fn what_waits_is_committed_together() {
    let (disk, writer) = on_disk();
    // The second append from now must not happen.
    disk.fail_append(2, Fault::Full);
    let release = occupy(&writer);
    let answers: Vec<_> = (0..50).map(|number| submit(&writer, number, None)).collect();
    drop(release);
    for (revision, answer) in (1..).zip(answers) {
        assert_eq!(answer.recv().unwrap().unwrap(), Revision::new(revision));
    }
}

#[test]
fn after_a_failure_nothing_that_builds_on_it_is_written() {
    let (disk, writer) = on_disk();
    disk.fail_append(2, Fault::Full);
    assert_eq!(submit(&writer, 0, Some(0)).recv().unwrap().unwrap(), Revision::new(1));
    let release = occupy(&writer);
    let (second, third) = (submit(&writer, 1, Some(1)), submit(&writer, 2, Some(2)));
    drop(release);
    for answer in [second, third] {
        match answer.recv().unwrap() {
            Err(WriteError::Ledger(error)) => assert!(error.is_retryable()),
            other => panic!("{other:?}"),
        }
    }
    // Decided before the failure was known, handed over after it.
    match submit(&writer, 3, Some(3)).recv().unwrap() {
        Err(WriteError::NotNext { expected, head }) => {
            assert_eq!((expected, head), (Revision::new(3), Revision::new(1)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(submit(&writer, 1, Some(1)).recv().unwrap().unwrap(), Revision::new(2));
}

#[test]
fn a_write_of_unknown_outcome_leaves_all_or_nothing_and_a_ledger_to_be_opened_again() {
    for is_written in [false, true] {
        let (disk, writer) = on_disk();
        disk.fail_append(2, Fault::Unknown { is_written });
        writer.append(batch(0)).unwrap();
        let release = occupy(&writer);
        let answers: Vec<_> = (1..4).map(|number| submit(&writer, number, None)).collect();
        drop(release);
        for answer in answers {
            let Err(WriteError::Ledger(error)) = answer.recv().unwrap() else { panic!() };
            assert!(error.needs_reopening());
        }
        let Err(WriteError::Ledger(error)) = writer.append(batch(9)) else { panic!() };
        assert!(matches!(*error, LedgerError::Poisoned { .. }), "{error}");
        drop(writer);
        let entries = tail(&MemoryLedger::open(&disk).unwrap(), Revision::ZERO);
        assert_eq!(entries.len(), if is_written { 4 } else { 1 });
        for (number, entry) in (0..).zip(entries) {
            assert_eq!(entry.batch, batch(number));
        }
    }
}

// Goal: of a step that takes several batches no part is there alone. Method: one write for all of them, and
// the second of the ledger fails.
#[test]
fn what_is_handed_over_together_is_written_together() {
    let (disk, writer) = on_disk();
    disk.fail_append(2, Fault::Full);
    let together = |numbers: std::ops::Range<u64>, after: u64| {
        let (answer, answered) = mpsc::channel();
        let told = move |outcome| answer.send(outcome).unwrap();
        let after = Some(Revision::new(after));
        writer.submit(numbers.map(batch).collect(), after, told).unwrap();
        answered.recv().unwrap()
    };
    assert_eq!(together(0..3, 0).unwrap(), Revision::new(3), "that of the last one");
    assert!(matches!(together(3..6, 3), Err(WriteError::Ledger(_))));
    assert_eq!(writer.status().head, Revision::new(3));
    assert_eq!(together(3..6, 3).unwrap(), Revision::new(6));
    let entries = writer.call(|ledger| ledger.read(Revision::ZERO, 9).unwrap()).unwrap();
    assert!((0..6).zip(&entries).all(|(number, entry)| entry.batch == batch(number)));
}

#[test]
fn a_lost_tail_is_damage_until_it_is_accepted() {
    let (disk, writer) = on_disk();
    for number in 0..5 {
        writer.append(batch(number)).unwrap();
    }
    drop(writer);
    disk.lose_tail(2);
    match MemoryLedger::open(&disk) {
        Err(LedgerError::Corrupt { last_good_revision, fault, .. }) => {
            assert_eq!(last_good_revision, Revision::new(3));
            assert!(fault.contains("acknowledged 5"), "{fault}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(disk.salvage(), Revision::new(3));
    assert_eq!(MemoryLedger::open(&disk).unwrap().status().head, Revision::new(3));
}

#[test]
fn a_snapshot_is_saved_between_commits() {
    let (_disk, writer) = on_disk();
    writer.append(batch(0)).unwrap();
    let release = occupy(&writer);
    let saving = {
        let (writer, state) = (writer.clone(), vec![7; 20 << 20]);
        let snapshot = Snapshot { revision: Revision::new(1), state };
        thread::spawn(move || writer.save_snapshot(snapshot))
    };
    let appends: Vec<_> = (1..100).map(|number| submit(&writer, number, None)).collect();
    drop(release);
    assert!(appends.into_iter().all(|answer| answer.recv().unwrap().is_ok()));
    saving.join().unwrap().unwrap();
    assert_eq!(writer.status().snapshot, Some(Revision::new(1)));
    // A second one for the same revision is refused, and nothing is worse for it.
    let outcome = writer.save_snapshot(Snapshot { revision: Revision::new(1), state: vec![] });
    assert!(matches!(outcome, Err(WriteError::Ledger(error)) if !error.needs_reopening()));
    writer.save_snapshot(Snapshot { revision: Revision::new(100), state: vec![] }).unwrap();
    assert_eq!(writer.compact(vec![]).unwrap(), 0);
    assert_eq!(writer.status().compacted_to, Revision::new(1));
}

#[test]
fn a_compaction_goes_on_until_all_are_forgotten() {
    let (_disk, writer) = on_disk();
    for number in 0..30 {
        writer.append(batch(number)).unwrap();
    }
    for revision in [28, 29].map(Revision::new) {
        writer.save_snapshot(Snapshot { revision, state: vec![] }).unwrap();
    }
    let covered: usize = (0..28).map(|number| batch(number).records().len()).sum();
    // Those that there is something about come last.
    let all = (0..2_000).rev().map(Subject::new).collect();
    assert_eq!(writer.compact(all).unwrap(), covered);
    assert_eq!(writer.status().compacted_to, Revision::new(28));
}

#[test]
fn a_stopped_writer_gives_its_ledger_back_and_refuses() {
    let (_disk, writer) = on_disk();
    let answer = submit(&writer, 0, None);
    let other = writer.clone();
    assert!(!other.has_ended());
    let mut ledger = writer.stop().unwrap();
    assert!(other.has_ended());
    assert_eq!(answer.recv().unwrap().unwrap(), Revision::new(1));
    assert_eq!(ledger.append(&[batch(1)]).unwrap(), Revision::new(2));
    assert!(matches!(other.append(batch(2)), Err(WriteError::Stopped)));
    assert!(matches!(other.compact(vec![Subject::new(1)]), Err(WriteError::Stopped)));
    assert!(other.stop().is_none());
}

#[test]
fn a_panic_in_a_call_stops_the_writer_and_frees_the_ledger() {
    let directory = scratch();
    let path = directory.path().join("ledger.db");
    let writer = Writer::start(SqliteLedger::open(&path).unwrap()).unwrap();
    writer.append(batch(0)).unwrap();
    let outcome = writer.call(|_| panic!("on purpose"));
    assert!(matches!(outcome, Err(WriteError::Stopped)));
    assert!(matches!(writer.append(batch(1)), Err(WriteError::Stopped)));
    while !writer.has_ended() {
        thread::yield_now();
    }
    drop(writer);
    assert_eq!(SqliteLedger::open(&path).unwrap().status().head, Revision::new(1));
}
