//! Crashes and damage of a ledger's files: what was lost before it was acknowledged is gone whole,
//! everything else comes back as it was or is refused with words.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{append, batch, scratch, tail};
use keeptime_ledger::sqlite::salvage;
use keeptime_ledger::{
    Entry, Ledger, LedgerError, Recorded, Revision, Snapshot, SqliteLedger, Subject,
};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const DATABASE: &str = "ledger.db";
const LOG: &str = "ledger.db-wal";
const WRITER: &str = "ledger.db-writer";
/// Of the log: a page with its header.
const FRAME_BYTES: usize = 24 + (16 << 10);

/// The files of a ledger at one moment.
#[derive(Debug, Clone)]
struct Files(Vec<(&'static str, Vec<u8>)>);

impl Files {
    /// As they are now, with the ledger open: what a power failure would leave, if everything that
    /// was written got to the disk.
    fn of(directory: &Path) -> Self {
        let names = [DATABASE, LOG, WRITER].into_iter();
        Self(names.filter_map(|n| Some((n, fs::read(directory.join(n)).ok()?))).collect())
    }

    fn without(mut self, name: &str) -> Self {
        self.0.retain(|(there, _)| *there != name);
        self
    }

    fn bytes(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.0.iter_mut().find(|(there, _)| *there == name).unwrap().1
    }

    /// Puts them into a directory of their own.
    fn put(&self) -> (TempDir, PathBuf) {
        let directory = scratch();
        for (name, bytes) in &self.0 {
            fs::write(directory.path().join(name), bytes).unwrap();
        }
        let path = directory.path().join(DATABASE);
        (directory, path)
    }
}

/// Everything that a ledger says.
#[derive(Debug, Clone, PartialEq)]
struct Content {
    snapshot: Option<Snapshot>,
    compacted_to: Revision,
    entries: Vec<Entry>,
    history: Vec<Vec<Recorded>>,
}

fn content(ledger: &impl Ledger) -> Content {
    let compacted_to = ledger.status().compacted_to;
    Content {
        snapshot: ledger.snapshot().unwrap(),
        compacted_to,
        entries: tail(ledger, compacted_to),
        history: (0..5).map(|s| ledger.history(Subject::new(s), 10_000).unwrap()).collect(),
    }
}

fn snapshot(revision: u64, bytes: usize) -> Snapshot {
    Snapshot { revision: Revision::new(revision), state: vec![revision as u8; bytes] }
}

/// A ledger with snapshots and compacted batches in the database, and more batches in the log.
fn grown() -> (Files, Content) {
    let directory = scratch();
    let path = directory.path().join(DATABASE);
    let mut ledger = SqliteLedger::open(&path).unwrap();
    append(&mut ledger, 0..20);
    ledger.save_snapshot(&snapshot(10, 9_000)).unwrap();
    append(&mut ledger, 20..40);
    ledger.save_snapshot(&snapshot(35, 5_000)).unwrap();
    ledger.compact(&[Subject::new(3)], 1_000).unwrap();
    // Closing moves the log into the database.
    drop(ledger);
    let mut ledger = SqliteLedger::open(&path).unwrap();
    append(&mut ledger, 40..50);
    let content = content(&ledger);
    (Files::of(directory.path()), content)
}

#[test]
fn a_log_that_ends_anywhere_leaves_whole_batches() {
    let directory = scratch();
    let mut ledger = SqliteLedger::open(&directory.path().join(DATABASE)).unwrap();
    let mut lengths = Vec::new();
    for number in 0..8 {
        append(&mut ledger, [number]);
        lengths.push(fs::metadata(directory.path().join(LOG)).unwrap().len());
    }
    let files = Files::of(directory.path()).without(WRITER);
    let full = files.clone().bytes(LOG).len();
    // Every byte about the ends of frames, and some in each.
    let in_frame = |at: usize| (at - 32) % FRAME_BYTES;
    let near = |at: usize| in_frame(at) < 40 || in_frame(at) > FRAME_BYTES - 10;
    for length in (0..=full).filter(|at| *at < 64 || near(*at) || at % 509 == 0) {
        let mut cut = files.clone();
        cut.bytes(LOG).truncate(length);
        let (_directory, path) = cut.put();
        let mut ledger = SqliteLedger::open(&path).unwrap();
        let durable = lengths.iter().filter(|end| **end <= length as u64).count() as u64;
        assert_eq!(ledger.status().head, Revision::new(durable), "cut at {length}");
        for (number, entry) in (0..).zip(tail(&ledger, Revision::ZERO)) {
            assert_eq!(entry.batch, batch(number));
        }
        append(&mut ledger, [99]);
    }
}

#[test]
fn what_was_acknowledged_and_is_gone_is_damage_with_a_last_good_point() {
    let directory = scratch();
    let mut ledger = SqliteLedger::open(&directory.path().join(DATABASE)).unwrap();
    append(&mut ledger, 0..4);
    let length = fs::metadata(directory.path().join(LOG)).unwrap().len();
    append(&mut ledger, 4..8);
    let mut files = Files::of(directory.path());
    files.bytes(LOG)[length as usize + FRAME_BYTES + 5_000] ^= 1;
    let (_directory, path) = files.put();
    match SqliteLedger::open(&path) {
        Err(error @ LedgerError::Corrupt { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("end at revision 4, but its writer had acknowledged 8"),
                "{text}"
            );
            assert!(text.contains("ledger.db") && text.contains("up to revision 4"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let into = path.with_file_name("new.db");
    let salvaged = salvage(&path, &into).unwrap();
    assert_eq!(salvaged.last_good_revision, Revision::new(4));
    assert!(!salvaged.lost_history);
    let mut ledger = SqliteLedger::open(&into).unwrap();
    assert_eq!(append(&mut ledger, 4..5), Revision::new(5));
    assert_eq!(tail(&ledger, Revision::ZERO).len(), 5);
    assert!(SqliteLedger::open(&path).is_err(), "the damaged one is as it was");
}

#[test]
fn a_missing_log_or_database_is_damage() {
    let (files, _) = grown();
    let (_directory, path) = files.clone().without(LOG).put();
    let error = SqliteLedger::open(&path).unwrap_err();
    let LedgerError::Corrupt { last_good_revision, .. } = error else { panic!("{error}") };
    assert_eq!(last_good_revision, Revision::new(40));
    let (_directory, path) = files.without(DATABASE).without(LOG).put();
    let error = SqliteLedger::open(&path).unwrap_err();
    assert!(error.to_string().contains("it is empty, but"), "{error}");
}

#[test]
fn other_files_are_refused_and_stay_as_they_are() {
    let directory = scratch();
    let path = directory.path().join("notes.txt");
    fs::write(&path, "buy milk, and more text than a header is long, so that it is read").unwrap();
    let error = SqliteLedger::open(&path).unwrap_err();
    assert!(matches!(error, LedgerError::NotALedger { .. }), "{error:?}");
    assert!(fs::read_to_string(&path).unwrap().starts_with("buy milk"));

    let path = directory.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE t (a); PRAGMA application_id = 77").unwrap();
    let error = SqliteLedger::open(&path).unwrap_err();
    assert!(error.to_string().contains("application id 77"), "{error}");

    let path = directory.path().join("later.db");
    drop(SqliteLedger::open(&path).unwrap());
    let later = rusqlite::Connection::open(&path).unwrap();
    later.pragma_update(None, "user_version", 2).unwrap();
    drop(later);
    let error = SqliteLedger::open(&path).unwrap_err();
    assert!(error.to_string().contains("schema version 2; this program knows version 1"));

    let error = SqliteLedger::open(Path::new("/nonexistent/ledger.db")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/ledger.db-writer"), "{error}");
}

/// What `data/version-1.sql` is a dump of: written by the first version, never to be changed.
fn first(ledger: &mut SqliteLedger) {
    append(ledger, 0..8);
    ledger.save_snapshot(&snapshot(3, 20)).unwrap();
    append(ledger, 8..12);
    ledger.save_snapshot(&snapshot(6, 10)).unwrap();
    ledger.compact(&[Subject::new(1)], 1_000).unwrap();
}

#[test]
fn a_ledger_of_version_1_is_read() {
    let directory = scratch();
    let mut ledger = SqliteLedger::open(&directory.path().join("now.db")).unwrap();
    first(&mut ledger);
    let path = directory.path().join(DATABASE);
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(include_str!("data/version-1.sql")).unwrap();
    drop(old);
    assert_eq!(content(&SqliteLedger::open(&path).unwrap()), content(&ledger));
}

#[test]
fn records_changed_with_other_tools_are_found() {
    let (files, _) = grown();
    let changes = [
        ("UPDATE record SET payload = x'00' WHERE key = (SELECT max(key) FROM record)", 49),
        ("DELETE FROM record WHERE key >> 12 = 45", 44),
        ("DELETE FROM record WHERE key >> 12 = 50 AND key & 4095 = 0", 49),
        ("UPDATE record SET subject = 1 WHERE key >> 12 = 4 AND subject = 0", 50),
        ("UPDATE snapshot_part SET bytes = x'00' WHERE key >> 16 = 35", 50),
        ("DELETE FROM snapshot_part WHERE key >> 16 = 10", 50),
        ("UPDATE meta SET epoch = 1", 50),
        ("DELETE FROM meta", 50),
        ("DELETE FROM record WHERE key >> 12 = 20", 50),
        ("DELETE FROM record WHERE key >> 12 > 30", 35),
        ("CREATE TABLE more (a)", 0),
        ("DROP INDEX record_subject", 0),
    ];
    for (change, good) in changes {
        let (_directory, path) = files.put();
        let tool = rusqlite::Connection::open(&path).unwrap();
        tool.execute_batch(change).unwrap();
        drop(tool);
        let error = SqliteLedger::open(&path).unwrap_err();
        let LedgerError::Corrupt { last_good_revision, .. } = error else {
            panic!("{change}: {error}");
        };
        assert_eq!(last_good_revision, Revision::new(good), "{change}: {error}");
        let salvaged = salvage(&path, &path.with_extension("new"));
        assert_eq!(salvaged.is_ok(), good > 0, "{change}: {salvaged:?}");
    }
}

#[test]
fn a_good_ledger_is_salvaged_whole_and_never_over_another() {
    let (files, before) = grown();
    let (directory, path) = files.put();
    let into = directory.path().join("copy.db");
    let salvaged = salvage(&path, &into).unwrap();
    assert_eq!((salvaged.faults.len(), salvaged.lost_history), (0, false));
    assert_eq!(content(&SqliteLedger::open(&into).unwrap()), before);
    assert_eq!(Files::of(directory.path()).0, files.0, "reading changed the ledger");
    assert!(matches!(salvage(&path, &into), Err(LedgerError::NotALedger { .. })));
    // What is left of another ledger would spoil the new one.
    let (logged, away) = (directory.path().join("new.db"), directory.path().join("new.db-wal"));
    fs::write(&away, files.clone().bytes(LOG)).unwrap();
    let error = salvage(&path, &logged).unwrap_err();
    assert!(error.to_string().contains("new.db-wal is not a ledger"), "{error}");
    fs::remove_file(away).unwrap();
    assert!(salvage(&directory.path().join("none.db"), &directory.path().join("new.db")).is_err());
}

/// Whatever `found` has is in `before` at the same place, and it ends where it says.
fn is_a_part_of(found: &Content, before: &Content, good: Revision) {
    // Where nothing tells any more that it was compacted, the first batches may be whole still.
    let written: Vec<_> = (found.compacted_to.get()..good.get()).map(batch).collect();
    let there: Vec<_> = found.entries.iter().map(|entry| entry.batch.clone()).collect();
    assert_eq!(there, written);
    for (found, before) in found.history.iter().zip(&before.history) {
        assert!(found.iter().all(|record| before.contains(record)));
    }
    let snapshots = [Some(snapshot(10, 9_000)), Some(snapshot(35, 5_000)), None];
    assert!(snapshots.contains(&found.snapshot));
}

#[test]
fn random_damage_never_gives_wrong_records() {
    let (files, before) = grown();
    let head = before.entries.last().unwrap().revision;
    let lengths: Vec<_> = files.0.iter().map(|(_, bytes)| bytes.len()).collect();
    let damage = (0..files.0.len()).prop_flat_map(move |file| {
        let change = (0..lengths[file], 1..=255u8);
        (Just(file), prop::collection::vec(change, 1..4), prop::option::of(0..lengths[file]))
    });
    let config = ProptestConfig { cases: 1_500, ..ProptestConfig::default() };
    proptest!(config, |((file, changes, end) in damage)| {
        let mut damaged = files.clone();
        let bytes = &mut damaged.0[file].1;
        for (at, change) in changes {
            bytes[at] ^= change;
        }
        // One time in eight the file is shorter, too.
        if let Some(end) = end.filter(|end| end % 4 == 0) {
            bytes.truncate(end);
        }
        let (_directory, path) = damaged.put();
        match SqliteLedger::open(&path) {
            Ok(ledger) => prop_assert_eq!(content(&ledger), before.clone()),
            Err(LedgerError::Corrupt { last_good_revision, .. }) => {
                let into = path.with_extension("new");
                match salvage(&path, &into) {
                    Ok(salvaged) => {
                        prop_assert_eq!(salvaged.last_good_revision, last_good_revision);
                        let ledger = SqliteLedger::open(&into).unwrap();
                        prop_assert_eq!(ledger.status().head, last_good_revision);
                        prop_assert!(last_good_revision <= head);
                        is_a_part_of(&content(&ledger), &before, last_good_revision);
                    }
                    Err(error) => {
                        prop_assert_eq!(last_good_revision, Revision::ZERO, "{}", error);
                    }
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("ledger.db"), "{}", error),
        }
    });
}
