//! The tests' own program: a writer that can be killed, and one that does not notice that another
//! has taken over.
#![forbid(unsafe_code)]

use keeptime_ledger::{
    Batch, Ledger, LedgerError, Record, Snapshot, SqliteLedger, Subject, WriteError, Writer,
};
use keeptime_model::units::WallTime;
use std::io::Write;
use std::path::Path;
use std::thread;

/// How many append at a time.
const CALLERS: u64 = 8;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["append", path] => append_until_killed(Path::new(path)).expect("a ledger"),
        ["hold", path] => hold_until_told(Path::new(path)).expect("a ledger"),
        _ => std::process::exit(64),
    }
}

/// Callers without end, and snapshots between.
fn append_until_killed(path: &Path) -> Result<(), WriteError> {
    let ledger = SqliteLedger::open(path)?;
    let first = ledger.status().head.get();
    let writer = Writer::start(ledger).expect("a thread");
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let writer = &writer;
            scope.spawn(move || {
                for number in first.. {
                    let revision = writer.append(batch(caller, number)).expect("room");
                    say(&format!("acknowledged {revision} {caller} {number}"));
                }
            });
        }
        loop {
            let revision = writer.status().head;
            if revision > writer.status().snapshot.unwrap_or_default() {
                let state = revision.get().to_le_bytes().repeat(1 << 18);
                writer.save_snapshot(Snapshot { revision, state })?;
                writer.compact(vec![Subject::new(0)])?;
            }
        }
    })
}

/// Appends once, says so, and appends again when there is a line to read.
fn hold_until_told(path: &Path) -> Result<(), LedgerError> {
    let mut ledger = SqliteLedger::open(path)?;
    ledger.append(&[batch(0, 0)])?;
    say("holds");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    match ledger.append(&[batch(0, 1)]) {
        Ok(_) => say("appended"),
        Err(error) => say(&error.to_string()),
    }
    Ok(())
}

/// Three records about `caller`.
fn batch(caller: u64, number: u64) -> Batch {
    let record = |part: u64| Record {
        kind: "test".parse().expect("a name"),
        subject: Some(Subject::new(caller)),
        time: WallTime::from_unix_nanos(number),
        payload: part.to_le_bytes().to_vec(),
    };
    Batch::new((0..3).map(record).collect()).expect("a batch")
}

/// Says a line at once, also to a test that kills us next.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).expect("a reader");
    out.flush().expect("a reader");
}
