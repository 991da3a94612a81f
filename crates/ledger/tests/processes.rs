//! Real processes: killed at any moment, and two at a time (`hand/main.rs`).

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{append, scratch, tail};
use keeptime_ledger::{Ledger, LedgerError, Record, Revision, SqliteLedger, Subject};
use keeptime_locks::lock;
use keeptime_model::units::WallTime;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

/// One test at a time: between fork and exec, a child has all files of this process open, and so
/// keeps a lock that was given back.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    lock(&TURN)
}

fn spawn(part: &str, path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut hand = Command::new(env!("CARGO_BIN_EXE_keeptime-ledger-hand"));
    hand.arg(part).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = hand.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// What a caller was told.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    revision: u64,
    caller: u64,
    number: u64,
}

impl Acknowledged {
    fn parse(line: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> =
            line.strip_prefix("acknowledged ")?.split(' ').map(str::parse).collect();
        let [revision, caller, number] = numbers.ok()?[..] else { return None };
        Some(Self { revision, caller, number })
    }

    fn is_of(&self, records: &[Record]) -> bool {
        let is_of = |record: &Record| {
            record.subject == Some(Subject::new(self.caller))
                && record.time == WallTime::from_unix_nanos(self.number)
        };
        records.len() == 3 && records.iter().all(is_of)
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9_at_any_moment() {
    let _turn = turn();
    let directory = scratch();
    let path = directory.path().join("ledger.db");
    let mut acknowledged = Vec::new();
    for round in 0..12_usize {
        let (mut child, output) = spawn("append", &path);
        let mut lines = output.lines().map_while(Result::ok);
        // Killed after more and more lines; in the first round while it begins.
        let mut whole: Vec<_> = lines.by_ref().take(round * round * 7).collect();
        child.kill().unwrap();
        // What it had said before it died; of the last line, a part may be missing.
        whole.extend(lines);
        child.wait().unwrap();
        let told = whole.iter().filter_map(|line| Acknowledged::parse(line));
        let cut_off = whole.last().is_some_and(|line| Acknowledged::parse(line).is_none());
        acknowledged.extend(told);
        assert!(!cut_off || round > 0, "{whole:?}");
        check(&path, &acknowledged);
    }
    assert!(acknowledged.len() > 1_000, "only {} were acknowledged", acknowledged.len());
}

fn check(path: &Path, acknowledged: &[Acknowledged]) {
    let ledger = SqliteLedger::open(path).unwrap();
    let status = ledger.status();
    let last = acknowledged.iter().map(|a| a.revision).max().unwrap_or(0);
    assert!(status.head.get() >= last, "{status:?} and {last} acknowledged");
    if let Some(snapshot) = ledger.snapshot().unwrap() {
        assert!(snapshot.state == snapshot.revision.get().to_le_bytes().repeat(1 << 18));
    }
    let compacted_to = status.compacted_to.get();
    let entries = tail(&ledger, status.compacted_to);
    assert_eq!(entries.len() as u64, status.head.get() - compacted_to);
    for told in acknowledged.iter().filter(|told| told.revision > compacted_to) {
        let entry = &entries[(told.revision - compacted_to - 1) as usize];
        assert!(told.is_of(entry.batch.records()), "{told:?} and {entry:?}");
    }
    // Compaction forgets caller 0 only.
    for caller in 1..8 {
        let history = ledger.history(Subject::new(caller), usize::MAX).unwrap();
        let there: BTreeSet<_> =
            history.iter().map(|r| (r.revision.get(), r.record.time.unix_nanos())).collect();
        assert_eq!(there.len() * 3, history.len(), "half a batch in the history of {caller}");
        let mut own = acknowledged.iter().filter(|told| told.caller == caller);
        assert!(own.all(|told| there.contains(&(told.revision, told.number))), "{caller}");
    }
}

#[test]
fn a_second_process_is_refused_and_an_overtaken_one_cannot_write() {
    let _turn = turn();
    let directory = scratch();
    let path = directory.path().join("ledger.db");
    let (mut child, output) = spawn("hold", &path);
    let mut lines = output.lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("holds"));
    match SqliteLedger::open(&path) {
        Err(error @ LedgerError::InUse { holder: Some(pid), .. }) => {
            assert_eq!(pid, child.id());
            assert!(error.to_string().contains("ledger.db is in use by process"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Someone removes what looks like a lock that was forgotten.
    fs::remove_file(directory.path().join("ledger.db-writer")).unwrap();
    let mut second = SqliteLedger::open(&path).unwrap();
    child.stdin.take().unwrap().write_all(b"write\n").unwrap();
    let told = lines.next().unwrap();
    assert!(told.contains("and writer 2 has taken over"), "{told}");
    assert!(child.wait().unwrap().success());
    assert_eq!(append(&mut second, [1]), Revision::new(2));
    drop(second);
    assert_eq!(SqliteLedger::open(&path).unwrap().status().head, Revision::new(2));
}
