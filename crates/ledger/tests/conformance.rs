//! What must hold for every ledger: one suite, run over each of them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{append, batch, record, scratch, tail};
use keeptime_ledger::record::{RECORD_BYTES_MAX, SNAPSHOT_PART_BYTES_MAX};
use keeptime_ledger::{
    Batch, COMPACTION_SUBJECTS_MAX, Entry, Epoch, Ledger, LedgerError, MemoryDisk, MemoryLedger,
    Record, Revision, Snapshot, SnapshotPart, SqliteLedger, Subject,
};
use keeptime_model::units::WallTime;
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// Where a ledger is kept while processes come and go.
trait World {
    type Ledger: Ledger + 'static;

    fn new() -> Self;
    fn open(&self) -> Self::Ledger;
    /// Opens it although another writer has it open, as a broker does after the first was cut off.
    fn take_over(&self) -> Self::Ledger;
}

struct InMemory(MemoryDisk);

impl World for InMemory {
    type Ledger = MemoryLedger;

    fn new() -> Self {
        Self(MemoryDisk::default())
    }

    fn open(&self) -> MemoryLedger {
        MemoryLedger::open(&self.0).unwrap()
    }

    fn take_over(&self) -> MemoryLedger {
        self.open()
    }
}

struct InFile(TempDir);

impl InFile {
    fn path(&self) -> PathBuf {
        self.0.path().join("ledger.db")
    }
}

impl World for InFile {
    type Ledger = SqliteLedger;

    fn new() -> Self {
        Self(scratch())
    }

    fn open(&self) -> SqliteLedger {
        SqliteLedger::open(&self.path()).unwrap()
    }

    fn take_over(&self) -> SqliteLedger {
        // Whoever removes the lock file has two brokers: the second must still win cleanly.
        fs::remove_file(self.0.path().join("ledger.db-writer")).unwrap();
        self.open()
    }
}

macro_rules! suite {
    ($($name:ident)*) => {
        mod in_memory {
            $(#[test] fn $name() { super::$name::<super::InMemory>(); })*
        }
        mod in_file {
            $(#[test] fn $name() { super::$name::<super::InFile>(); })*
        }
    };
}

suite! {
    a_new_ledger_is_empty
    what_was_appended_is_read_in_order_before_and_after_reopening
    every_value_of_every_field_comes_back
    reading_resumes_at_any_revision_in_pages_of_any_size
    a_history_has_its_first_and_its_last_records_and_their_number
    a_read_ends_behind_a_long_record_and_the_next_goes_on
    a_writer_that_was_overtaken_can_write_no_more
    the_newest_finished_snapshot_counts
    snapshots_out_of_place_are_refused
    an_interrupted_snapshot_leaves_the_former
    compaction_keeps_what_history_and_snapshots_need
    compaction_goes_in_steps
    no_step_of_a_compaction_looks_for_many
    what_a_compaction_that_was_cut_short_has_left_is_found_and_goes
    any_sequence_of_operations_matches_the_model
}

fn snapshot(revision: u64, bytes: usize) -> Snapshot {
    let state = (0..bytes).map(|at| (at as u64 * 7 + revision) as u8).collect();
    Snapshot { revision: Revision::new(revision), state }
}

fn numbers(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.revision.get()).collect()
}

fn a_new_ledger_is_empty<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    let status = ledger.status();
    assert_eq!((status.epoch, status.head), (Epoch::new(1), Revision::ZERO));
    assert_eq!((status.snapshot, status.compacted_to), (None, Revision::ZERO));
    assert_eq!(ledger.read(Revision::ZERO, 10).unwrap(), vec![]);
    assert_eq!(ledger.read(Revision::new(u64::MAX / 2), 10).unwrap(), vec![]);
    assert_eq!(ledger.history(Subject::new(1), 10).unwrap(), vec![]);
    assert_eq!(ledger.snapshot().unwrap(), None);
    assert_eq!(ledger.append(&[]).unwrap(), Revision::ZERO);
    assert_eq!(ledger.compact(&[], 10).unwrap().removed, 0);
}

fn what_was_appended_is_read_in_order_before_and_after_reopening<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    assert_eq!(ledger.append(&[batch(0), batch(1)]).unwrap(), Revision::new(2));
    assert_eq!(ledger.append(&[batch(2)]).unwrap(), Revision::new(3));
    drop(ledger);
    let mut ledger = world.open();
    assert_eq!(ledger.status().epoch, Epoch::new(2));
    assert_eq!(ledger.append(&[batch(3)]).unwrap(), Revision::new(4));
    for round in 0..2 {
        let entries = tail(&ledger, Revision::ZERO);
        assert_eq!(numbers(&entries), [1, 2, 3, 4]);
        for (number, entry) in (0..).zip(&entries) {
            assert_eq!(entry.batch, batch(number));
            assert_eq!(entry.epoch, Epoch::new(if number < 3 { 1 } else { 2 }), "round {round}");
        }
        drop(ledger);
        ledger = world.open();
    }
}

fn every_value_of_every_field_comes_back<W: World>() {
    let world = W::new();
    let edge = |number: u64, payload: Vec<u8>| Record {
        kind: "a".repeat(40).parse().unwrap(),
        subject: Some(Subject::new(number)),
        time: WallTime::from_unix_nanos(number),
        payload,
    };
    let all_bytes: Vec<u8> = (0..=255).collect();
    let records = vec![
        edge(0, vec![]),
        edge(u64::MAX, all_bytes),
        edge(i64::MAX as u64 + 1, vec![0; 70_000]),
    ];
    let batch = Batch::new(records).unwrap();
    world.open().append(std::slice::from_ref(&batch)).unwrap();
    let ledger = world.open();
    assert_eq!(ledger.read(Revision::ZERO, 1).unwrap()[0].batch, batch);
    let last = ledger.history(Subject::new(u64::MAX), 1).unwrap();
    assert_eq!(last[0].record, batch.records()[1]);
}

fn reading_resumes_at_any_revision_in_pages_of_any_size<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..9);
    for after in 0..=10 {
        for limit in 0..12 {
            let read = ledger.read(Revision::new(after), limit).unwrap();
            let expected: Vec<u64> = (after + 1..=9).take(limit).collect();
            assert_eq!(numbers(&read), expected, "after {after}, {limit} at most");
        }
    }
}

fn a_history_has_its_first_and_its_last_records_and_their_number<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..40);
    for subject in 0..6 {
        let subject = Subject::new(subject);
        let entries = tail(&ledger, Revision::ZERO);
        let all: Vec<_> = entries
            .iter()
            .flat_map(|entry| entry.batch.records().iter().map(|r| (entry.revision, r)))
            .filter(|(_, record)| record.subject == Some(subject))
            .collect();
        for limit in [0, 1, 4, 100] {
            let read = ledger.history(subject, limit).unwrap();
            let read: Vec<_> = read.iter().map(|r| (r.revision, &r.record)).collect();
            assert_eq!(read, all[all.len().saturating_sub(limit)..]);
            let read = ledger.beginning(subject, limit).unwrap();
            let read: Vec<_> = read.iter().map(|r| (r.revision, &r.record)).collect();
            assert_eq!(read, all[..all.len().min(limit)]);
        }
        assert_eq!(ledger.count(subject).unwrap(), all.len());
    }
}

fn a_read_ends_behind_a_long_record_and_the_next_goes_on<W: World>() {
    // The longest record is kept whole, and nobody who reads holds many of them at a time.
    let world = W::new();
    let mut ledger = world.open();
    let subject = Some(Subject::new(1));
    let about = |payload| Batch::new(vec![Record { subject, payload, ..record(0) }]).unwrap();
    let long = about(vec![7; RECORD_BYTES_MAX]);
    ledger.append(&[about(vec![1]), long.clone(), about(vec![2]), long.clone()]).unwrap();
    drop(ledger);
    let ledger = world.open();
    let first = ledger.read(Revision::ZERO, 10).unwrap();
    assert_eq!(numbers(&first), [1, 2]);
    assert!(first[1].batch == long);
    assert_eq!(numbers(&ledger.read(Revision::new(2), 10).unwrap()), [3, 4]);
    let history = ledger.history(Subject::new(1), 10).unwrap();
    let revisions: Vec<_> = history.iter().map(|recorded| recorded.revision.get()).collect();
    assert_eq!(revisions, [4], "older ones would be too much");
    let beginning = ledger.beginning(Subject::new(1), 10).unwrap();
    let revisions: Vec<_> = beginning.iter().map(|recorded| recorded.revision.get()).collect();
    assert_eq!(revisions, [1, 2], "later ones would be too much");
    assert_eq!(ledger.count(Subject::new(1)).unwrap(), 4);
}

fn a_writer_that_was_overtaken_can_write_no_more<W: World>() {
    let world = W::new();
    let mut first = world.open();
    append(&mut first, 0..2);
    let mut second = world.take_over();
    let is_fenced = |outcome: Result<(), LedgerError>| match outcome {
        Err(LedgerError::Fenced { own, current, .. }) => {
            assert_eq!((own, current), (Epoch::new(1), Epoch::new(2)));
        }
        other => panic!("{other:?}"),
    };
    is_fenced(first.append(&[batch(9)]).map(drop));
    is_fenced(first.save_snapshot(&snapshot(2, 5)));
    is_fenced(first.compact(&[], 1).map(drop));
    assert_eq!(append(&mut second, 2..4), Revision::new(4));
    is_fenced(first.append(&[batch(9)]).map(drop));
    assert_eq!(tail(&second, Revision::new(2)).len(), 2);
}

fn the_newest_finished_snapshot_counts<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..9);
    let sizes = [0, 1, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_PART_BYTES_MAX + 1, 0];
    for (revision, bytes) in (2..).zip(sizes) {
        let snapshot = snapshot(revision, bytes);
        ledger.save_snapshot(&snapshot).unwrap();
        assert_eq!(ledger.status().snapshot, Some(snapshot.revision));
        assert_eq!(ledger.snapshot().unwrap().as_ref(), Some(&snapshot));
        drop(ledger);
        ledger = world.open();
        assert_eq!(ledger.status().snapshot, Some(snapshot.revision));
        assert!(ledger.snapshot().unwrap() == Some(snapshot));
    }
    assert_eq!(tail(&ledger, Revision::ZERO).len(), 9, "nothing is removed without compaction");
}

fn snapshots_out_of_place_are_refused<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..5);
    let refused = |outcome: Result<(), LedgerError>, words: &str| match outcome {
        Err(LedgerError::Invalid(invalid)) => {
            assert!(invalid.to_string().contains(words), "{invalid}");
        }
        other => panic!("{other:?}"),
    };
    refused(ledger.save_snapshot(&snapshot(6, 1)), "expected 1 to 5");
    refused(ledger.save_snapshot(&snapshot(0, 1)), "expected 1 to 5");
    ledger.save_snapshot(&snapshot(5, 1)).unwrap();
    refused(ledger.save_snapshot(&snapshot(5, 1)), "a revision after 5, when there is one");
    append(&mut ledger, 5..7);
    let part =
        |number, bytes| SnapshotPart { revision: Revision::new(6), number, is_last: false, bytes };
    refused(ledger.save_snapshot_part(part(1, &[])), "snapshot.number");
    let long = vec![0; SNAPSHOT_PART_BYTES_MAX + 1];
    refused(ledger.save_snapshot_part(part(0, &long)), "at most 1048576 bytes");
    ledger.save_snapshot_part(part(0, &[1])).unwrap();
    refused(ledger.save_snapshot_part(part(2, &[])), "expected 0 or 1");
    assert_eq!(ledger.snapshot().unwrap().unwrap(), snapshot(5, 1));
}

fn an_interrupted_snapshot_leaves_the_former<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..8);
    ledger.save_snapshot(&snapshot(3, 9)).unwrap();
    let longer = snapshot(5, 3 * SNAPSHOT_PART_BYTES_MAX);
    for part in longer.parts().take(2) {
        ledger.save_snapshot_part(part).unwrap();
    }
    assert_eq!(ledger.snapshot().unwrap().unwrap(), snapshot(3, 9));
    drop(ledger);
    let mut ledger = world.open();
    assert_eq!(ledger.snapshot().unwrap().unwrap(), snapshot(3, 9));
    // The rest of what was begun before does not follow anything now; another can be saved.
    let last = longer.parts().nth(2).unwrap();
    assert!(matches!(ledger.save_snapshot_part(last), Err(LedgerError::Invalid(_))));
    for part in longer.parts().take(2) {
        ledger.save_snapshot_part(part).unwrap();
    }
    ledger.save_snapshot(&snapshot(4, 2)).unwrap();
    ledger.save_snapshot(&longer).unwrap();
    drop(ledger);
    assert!(world.open().snapshot().unwrap().unwrap() == longer);
}

fn compaction_keeps_what_history_and_snapshots_need<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..30);
    let history = |ledger: &W::Ledger| {
        (0..5).map(|s| ledger.history(Subject::new(s), 1_000).unwrap()).collect::<Vec<_>>()
    };
    let before = history(&ledger);
    ledger.save_snapshot(&snapshot(20, 4)).unwrap();
    assert_eq!(ledger.compact(&[], 1_000).unwrap().removed, 0, "one snapshot may be damaged");
    ledger.save_snapshot(&snapshot(25, 4)).unwrap();
    let notes = (0..20).flat_map(|n| batch(n).into_records()).filter(|r| r.subject.is_none());
    assert_eq!(ledger.compact(&[], 1_000).unwrap().removed, notes.count());
    for _ in 0..2 {
        assert_eq!(ledger.status().compacted_to, Revision::new(20));
        assert_eq!(tail(&ledger, Revision::new(20)).len(), 10);
        assert_eq!(history(&ledger), before);
        match ledger.read(Revision::new(19), 1) {
            Err(LedgerError::Compacted { after, compacted_to }) => {
                assert_eq!((after, compacted_to), (Revision::new(19), Revision::new(20)));
            }
            other => panic!("{other:?}"),
        }
        drop(ledger);
        ledger = world.open();
    }
    let forgotten = [Subject::new(1), Subject::new(99)];
    ledger.compact(&forgotten, 1_000).unwrap();
    let after = history(&ledger);
    assert_eq!((&after[0], &after[2..]), (&before[0], &before[2..]));
    assert!(after[1].iter().all(|r| r.revision > Revision::new(20)));
    assert!(!after[1].is_empty() && after[1].len() < before[1].len());
    append(&mut ledger, 30..33);
    drop(ledger);
    assert_eq!(tail(&world.open(), Revision::new(20)).len(), 13);
}

fn compaction_goes_in_steps<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..30);
    ledger.save_snapshot(&snapshot(28, 4)).unwrap();
    ledger.save_snapshot(&snapshot(29, 4)).unwrap();
    let subjects: Vec<_> = (0..5).map(Subject::new).collect();
    let (mut removed, mut steps) = (0, 0);
    loop {
        let step = ledger.compact(&subjects, 4).unwrap();
        (removed, steps) = (removed + step.removed, steps + 1);
        drop(ledger);
        ledger = world.open();
        if !step.has_more {
            break;
        }
    }
    let covered: usize = (0..28).map(|number| batch(number).records().len()).sum();
    assert_eq!((removed, steps), (covered, covered / 4 + 1));
    assert_eq!(tail(&ledger, Revision::new(28)).len(), 2);
}

fn no_step_of_a_compaction_looks_for_many<W: World>() {
    // Batches wait for a step, also where there is nothing about most of those that are to be forgotten.
    let world = W::new();
    let mut ledger = world.open();
    append(&mut ledger, 0..30);
    ledger.save_snapshot(&snapshot(28, 4)).unwrap();
    ledger.save_snapshot(&snapshot(29, 4)).unwrap();
    let subjects: Vec<_> = (5..2_000).chain(0..5).map(Subject::new).collect();
    let (mut rest, mut removed) = (subjects.as_slice(), 0);
    loop {
        let step = ledger.compact(rest, 10).unwrap();
        assert!(step.removed <= 10 && step.forgotten <= COMPACTION_SUBJECTS_MAX, "{step:?}");
        removed += step.removed;
        rest = &rest[step.forgotten..];
        if !step.has_more {
            break;
        }
    }
    let covered: usize = (0..28).map(|number| batch(number).records().len()).sum();
    assert_eq!((removed, rest.len()), (covered, 0));
    assert_eq!(tail(&ledger, Revision::new(28)).len(), 2);
}

fn what_a_compaction_that_was_cut_short_has_left_is_found_and_goes<W: World>() {
    let world = W::new();
    let mut ledger = world.open();
    let about = |kind: &str, subject| {
        let (kind, subject) = (kind.parse().unwrap(), Some(Subject::new(subject)));
        Batch::new(vec![Record { kind, subject, ..record(0) }]).unwrap()
    };
    for subject in 0..4 {
        ledger.append(&[about("granted", subject), about("forgotten", subject)]).unwrap();
    }
    ledger.append(&[about("granted", 4)]).unwrap();
    ledger.save_snapshot(&snapshot(8, 4)).unwrap();
    ledger.save_snapshot(&snapshot(9, 4)).unwrap();
    let subjects: Vec<_> = (0..4).map(Subject::new).collect();
    let step = ledger.compact(&subjects, 3).unwrap();
    assert_eq!((step.removed, step.forgotten, step.has_more), (3, 1, true));
    drop(ledger);
    let mut ledger = world.open();
    assert_eq!(ledger.status().compacted_to, Revision::new(8));
    let left = ledger.kept("forgotten").unwrap();
    let numbers: Vec<_> = left.iter().map(|(at, subject)| (at.get(), subject.get())).collect();
    assert_eq!(numbers, [(4, 1), (6, 2), (8, 3)]);
    let rest: Vec<_> = left.into_iter().map(|(_, subject)| subject).collect();
    let step = ledger.compact(&rest, 1_000).unwrap();
    assert_eq!((step.removed, step.forgotten, step.has_more), (5, 3, false));
    drop(ledger);
    let ledger = world.open();
    assert_eq!(ledger.kept("forgotten").unwrap(), vec![]);
    let counts: Vec<_> = (0..5).map(|s| ledger.count(Subject::new(s)).unwrap()).collect();
    assert_eq!(counts, [0, 0, 0, 0, 1]);
}

#[derive(Debug, Clone)]
enum Operation {
    Append(Vec<u64>),
    Reopen,
    TakeOver,
    Snapshot { back: u64, bytes: usize },
    Compact { forget: Vec<u64>, limit: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => prop::collection::vec(0..1_000u64, 1..5).prop_map(Operation::Append),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::TakeOver),
        2 => (0..4u64, 0..100usize).prop_map(|(back, bytes)| Operation::Snapshot { back, bytes }),
        2 => (prop::collection::vec(0..5u64, 0..3), 1..20usize)
            .prop_map(|(forget, limit)| Operation::Compact { forget, limit }),
    ]
}

/// What a ledger is to hold, as plain lists.
#[derive(Default)]
struct Model {
    batches: Vec<Batch>,
    snapshots: Vec<Snapshot>,
    compacted_to: usize,
    /// (revision, record) of everything that history shows.
    history: Vec<(usize, Record)>,
}

impl Model {
    fn append(&mut self, batches: &[Batch]) {
        for batch in batches {
            self.batches.push(batch.clone());
            let revision = self.batches.len();
            self.history.extend(batch.records().iter().map(|r| (revision, r.clone())));
        }
    }

    fn compact(&mut self, forget: &[Subject]) {
        let [.., older, _] = self.snapshots.as_slice() else { return };
        self.compacted_to = older.revision.get() as usize;
        self.history.retain(|(revision, record)| {
            let kept = record.subject.is_some_and(|subject| !forget.contains(&subject));
            *revision > self.compacted_to || kept
        });
    }

    fn check(&self, ledger: &impl Ledger) {
        assert_eq!(ledger.status().head, Revision::new(self.batches.len() as u64));
        assert_eq!(ledger.snapshot().unwrap(), self.snapshots.last().cloned());
        let after = Revision::new(self.compacted_to as u64);
        assert_eq!(ledger.status().compacted_to, after);
        let batches: Vec<_> = tail(ledger, after).into_iter().map(|entry| entry.batch).collect();
        assert_eq!(batches, self.batches[self.compacted_to..]);
        for subject in (0..5).map(Subject::new) {
            let read = ledger.history(subject, usize::MAX).unwrap();
            let read: Vec<_> =
                read.into_iter().map(|r| (r.revision.get() as usize, r.record)).collect();
            let about = self.history.iter().filter(|(_, r)| r.subject == Some(subject));
            assert_eq!(read, about.cloned().collect::<Vec<_>>());
        }
    }
}

fn any_sequence_of_operations_matches_the_model<W: World>() {
    let config = ProptestConfig { cases: 60, ..ProptestConfig::default() };
    proptest!(config, |(operations in prop::collection::vec(operation(), 1..40))| {
        let world = W::new();
        let (mut ledger, mut model) = (world.open(), Model::default());
        for operation in operations {
            match operation {
                Operation::Append(numbers) => {
                    let batches: Vec<_> = numbers.into_iter().map(batch).collect();
                    ledger.append(&batches).unwrap();
                    model.append(&batches);
                }
                Operation::Reopen => {
                    drop(ledger);
                    ledger = world.open();
                }
                Operation::TakeOver => {
                    let newer = world.take_over();
                    assert!(ledger.append(&[Batch::new(vec![record(0)]).unwrap()]).is_err());
                    ledger = newer;
                }
                Operation::Snapshot { back, bytes } => {
                    let revision = (model.batches.len() as u64).saturating_sub(back);
                    let newest = model.snapshots.last().map_or(0, |s| s.revision.get());
                    let outcome = ledger.save_snapshot(&snapshot(revision, bytes));
                    prop_assert_eq!(outcome.is_ok(), revision > newest);
                    if outcome.is_ok() {
                        model.snapshots.push(snapshot(revision, bytes));
                    }
                }
                Operation::Compact { forget, limit } => {
                    let forget: Vec<_> = forget.into_iter().map(Subject::new).collect();
                    while ledger.compact(&forget, limit).unwrap().has_more {}
                    model.compact(&forget);
                }
            }
            model.check(&ledger);
        }
    });
}
