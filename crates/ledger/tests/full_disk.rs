//! A disk that is full: refused with words, nothing half done, and on again when there is room.
//! On a file system of its own, in a mount namespace that only the test's thread has.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{append, batch, scratch, tail};
use keeptime_ledger::{Ledger, LedgerError, Revision, Snapshot, SqliteLedger};
use keeptime_linux::testing::{mount_tiny, skip};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;

#[test]
fn a_full_disk_is_told_and_the_ledger_goes_on_when_there_is_room() {
    let directory = scratch();
    let mount_point = directory.path().to_owned();
    let thread = thread::spawn(move || match mount_tiny(&mount_point) {
        Ok(()) => fill_again_and_again(&mount_point),
        Err(errno) => skip(&["tmpfs".into()], &format!("no file system of its own: {errno}")),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn fill_again_and_again(directory: &Path) {
    let (path, filler) = (directory.join("ledger.db"), directory.join("filler"));
    let mut ledger = SqliteLedger::open(&path).unwrap();
    append(&mut ledger, [0]);
    let mut expected = vec![batch(0)];
    let mut number = 0;
    for round in 0..4 {
        fill(&filler, 40_000 * round);
        let error = loop {
            number += 1;
            match ledger.append(&[batch(number)]) {
                Ok(_) => expected.push(batch(number)),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LedgerError::Full { .. }), "{error:?}");
        assert!(error.is_retryable() && error.to_string().contains("ledger.db"), "{error}");
        assert!(matches!(ledger.append(&[batch(number)]), Err(LedgerError::Full { .. })));
        let revision = ledger.status().head;
        let snapshot = Snapshot { revision, state: vec![1; 3 << 20] };
        let refusal = ledger.save_snapshot(&snapshot).unwrap_err();
        assert!(matches!(refusal, LedgerError::Full { .. }), "round {round}: {refusal:?}");
        assert_eq!(tail(&ledger, Revision::ZERO).len(), expected.len());
        if round == 2 {
            // A broker that is started on a full disk says so, and loses nothing.
            drop(ledger);
            fill(&filler, 0);
            let refusal = SqliteLedger::open(&path).unwrap_err();
            assert!(matches!(refusal, LedgerError::Full { .. }), "{refusal:?}");
            fs::remove_file(&filler).unwrap();
            ledger = SqliteLedger::open(&path).unwrap();
        } else {
            fs::remove_file(&filler).unwrap();
        }
        let snapshot = Snapshot { revision, state: vec![1; 300_000] };
        ledger.save_snapshot(&snapshot).unwrap();
        append(&mut ledger, [number]);
        expected.push(batch(number));
        let batches: Vec<_> =
            tail(&ledger, Revision::ZERO).into_iter().map(|entry| entry.batch).collect();
        assert_eq!(batches, expected);
    }
}

/// Takes all room on the file system but `spare` bytes.
fn fill(path: &Path, spare: usize) {
    let mut file = File::create(path).unwrap();
    let mut written = 0_u64;
    while let Ok(count) = file.write(&[0; 4_096]) {
        written += count as u64;
    }
    file.set_len(written.saturating_sub(spare as u64)).unwrap();
}
