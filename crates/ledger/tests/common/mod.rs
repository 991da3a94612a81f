//! What the tests of ledgers share.

#![allow(dead_code, reason = "not every test uses all of it")]

use keeptime_ledger::{Batch, Entry, Ledger, Record, Revision, Subject};
use keeptime_model::units::WallTime;
use std::path::Path;
use tempfile::TempDir;

/// A directory in memory where there is one: tests are about the order of syncs, not their speed.
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
}

/// The record whose every field follows from `number`.
pub fn record(number: u64) -> Record {
    let kinds = ["reservation-granted", "reservation-modified", "note"];
    Record {
        kind: kinds[number as usize % 3].parse().unwrap(),
        subject: (number % 3 != 2).then_some(Subject::new(number / 3 % 5)),
        time: WallTime::from_unix_nanos(number * 1_000),
        payload: format!("{{\"number\": {number}}}").repeat(number as usize % 7).into_bytes(),
    }
}

/// A batch of one to four records, made out of `number`.
pub fn batch(number: u64) -> Batch {
    let records = (0..=number % 4).map(|at| record(number * 4 + at)).collect();
    Batch::new(records).unwrap()
}

/// Appends batches made out of `numbers`, each by itself.
pub fn append(ledger: &mut impl Ledger, numbers: impl IntoIterator<Item = u64>) -> Revision {
    for number in numbers {
        ledger.append(&[batch(number)]).unwrap();
    }
    ledger.status().head
}

/// Everything that can be read after `revision`.
pub fn tail(ledger: &impl Ledger, revision: Revision) -> Vec<Entry> {
    let (mut entries, mut after) = (Vec::new(), revision);
    loop {
        let page = ledger.read(after, 3).unwrap();
        let Some(last) = page.last() else { return entries };
        after = last.revision;
        entries.extend(page);
    }
}
