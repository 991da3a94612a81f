//! Real processes: killed at any moment, two at a time, and on a disk that is full.
//!
//! The children are this test program again, told by the environment which part to play.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{batch, scratch, skip, tail};
use keeptime_ledger::{
    Batch, Ledger, LedgerError, Record, Revision, Snapshot, SqliteLedger, Subject, Writer,
};
use keeptime_model::units::WallTime;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

/// Tells a child where its ledger is.
const LEDGER: &str = "KEEPTIME_TEST_LEDGER";
const CALLERS: u64 = 8;

/// This program again, running only the test `part`, on the ledger at `path`.
fn child(part: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", part, "--nocapture"]).env(LEDGER, path);
    command
}

fn spawn(part: &str, path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut command = child(part, path);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// Where this process is to write, if it is a child.
fn ledger_of_child() -> Option<PathBuf> {
    std::env::var_os(LEDGER).map(PathBuf::from)
}

/// Says a line at once, also to a test that kills us next.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn numbered(caller: u64, number: u64) -> Batch {
    let record = |part: u64| Record {
        kind: "test".parse().unwrap(),
        subject: Some(Subject::new(caller)),
        time: WallTime::from_unix_nanos(number),
        payload: part.to_le_bytes().to_vec(),
    };
    Batch::new((0..3).map(record).collect()).unwrap()
}

/// The part of the writer that gets killed: callers without end, and snapshots between.
#[test]
fn part_appends_until_killed() {
    let Some(path) = ledger_of_child() else { return };
    let ledger = SqliteLedger::open(&path).unwrap();
    let first = ledger.status().head.get();
    let writer = Writer::start(ledger).unwrap();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let writer = &writer;
            scope.spawn(move || {
                for number in first.. {
                    let revision = writer.append(numbered(caller, number)).unwrap();
                    say(&format!("acknowledged {revision} {caller} {number}"));
                }
            });
        }
        loop {
            let revision = writer.status().head;
            if revision > writer.status().snapshot.unwrap_or_default() {
                let state = revision.get().to_le_bytes().repeat(1 << 18);
                writer.save_snapshot(Snapshot { revision, state }).unwrap();
                writer.compact(vec![Subject::new(0)]).unwrap();
            }
        }
    });
}

#[test]
fn what_was_acknowledged_survives_kill_9_at_any_moment() {
    let directory = scratch();
    let path = directory.path().join("ledger.db");
    let mut acknowledged: Vec<(u64, u64, u64)> = Vec::new();
    for round in 0..12_usize {
        let (mut child, output) = spawn("part_appends_until_killed", &path);
        // Killed after more and more lines; in the first round while it begins.
        let mut left = round * round * 7;
        for line in output.lines().map_while(Result::ok) {
            if left == 0 {
                child.kill().unwrap();
            }
            left = left.saturating_sub(1);
            let Some(numbers) = line.strip_prefix("acknowledged ") else { continue };
            let numbers: Vec<_> = numbers.split(' ').map(|n| n.parse::<u64>().ok()).collect();
            // The last line may be cut off.
            if let [Some(revision), Some(caller), Some(number)] = numbers[..] {
                acknowledged.push((revision, caller, number));
            }
        }
        child.wait().unwrap();
        check(&path, &acknowledged);
    }
    assert!(acknowledged.len() > 100, "only {} were acknowledged", acknowledged.len());
}

fn check(path: &Path, acknowledged: &[(u64, u64, u64)]) {
    let ledger = SqliteLedger::open(path).unwrap();
    let status = ledger.status();
    let last = acknowledged.iter().map(|a| a.0).max().unwrap_or(0);
    assert!(status.head.get() >= last, "{status:?} and {last} acknowledged");
    if let Some(snapshot) = ledger.snapshot().unwrap() {
        assert!(snapshot.state == snapshot.revision.get().to_le_bytes().repeat(1 << 18));
    }
    let entries = tail(&ledger, status.compacted_to);
    assert_eq!(entries.len() as u64, status.head.get() - status.compacted_to.get());
    for (revision, caller, number) in acknowledged {
        let expected = numbered(*caller, *number);
        if *revision > status.compacted_to.get() {
            let at = (revision - status.compacted_to.get() - 1) as usize;
            assert_eq!(entries[at].batch, expected);
        }
    }
    for caller in 1..CALLERS {
        let history = ledger.history(Subject::new(caller), usize::MAX).unwrap();
        let there: std::collections::BTreeSet<_> =
            history.iter().map(|r| (r.revision.get(), r.record.time.unix_nanos())).collect();
        let own = acknowledged.iter().filter(|a| a.1 == caller);
        assert!(own.map(|a| (a.0, a.2)).all(|a| there.contains(&a)), "history of {caller}");
    }
}

/// The part of a broker that does not notice that it was cut off.
#[test]
fn part_holds_until_told() {
    let Some(path) = ledger_of_child() else { return };
    let mut ledger = SqliteLedger::open(&path).unwrap();
    ledger.append(&[batch(0)]).unwrap();
    say("holds");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match ledger.append(&[batch(1)]) {
        Ok(_) => say("appended"),
        Err(error) => say(&error.to_string()),
    }
}

#[test]
fn a_second_process_is_refused_and_an_overtaken_one_cannot_write() {
    let directory = scratch();
    let path = directory.path().join("ledger.db");
    let (mut child, output) = spawn("part_holds_until_told", &path);
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "holds"));
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
    let told: Vec<_> = lines.collect();
    let words = "and writer 2 has taken over";
    assert!(told.iter().any(|line| line.contains(words)), "{told:?}");
    assert!(child.wait().unwrap().success());
    assert_eq!(second.append(&[batch(1)]).unwrap(), Revision::new(2));
    drop(second);
    assert_eq!(SqliteLedger::open(&path).unwrap().status().head, Revision::new(2));
}

/// The part on a file system of its own that is full again and again.
#[test]
fn part_fills_its_disk() {
    let Some(path) = ledger_of_child() else { return };
    let filler = path.with_file_name("filler");
    let mut ledger = SqliteLedger::open(&path).unwrap();
    let mut expected = Vec::new();
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
        assert!(matches!(ledger.append(&[batch(0)]), Err(LedgerError::Full { .. })));
        let revision = ledger.status().head;
        let snapshot = Snapshot { revision, state: vec![1; 3 << 20] };
        assert!(matches!(ledger.save_snapshot(&snapshot), Err(LedgerError::Full { .. })));
        assert_eq!(tail(&ledger, Revision::ZERO).len(), expected.len());
        fs::remove_file(&filler).unwrap();
        ledger.append(&[batch(number)]).unwrap();
        expected.push(batch(number));
        let snapshot = Snapshot { revision: ledger.status().head, state: vec![1; 300_000] };
        ledger.save_snapshot(&snapshot).unwrap();
        if round % 2 == 1 {
            drop(ledger);
            ledger = SqliteLedger::open(&path).unwrap();
        }
        let batches: Vec<_> =
            tail(&ledger, Revision::ZERO).into_iter().map(|entry| entry.batch).collect();
        assert_eq!(batches, expected);
    }
    say("survived");
}

/// Takes all room on the file system but `spare` bytes.
fn fill(path: &Path, spare: usize) {
    let mut file = fs::File::create(path).unwrap();
    let mut written = 0_u64;
    while let Ok(count) = file.write(&[0; 4_096]) {
        written += count as u64;
    }
    file.set_len(written.saturating_sub(spare as u64)).unwrap();
}

#[test]
fn a_full_disk_is_told_and_the_ledger_goes_on_when_there_is_room() {
    let directory = scratch();
    let mount = directory.path().join("tiny");
    fs::create_dir(&mount).unwrap();
    let tiny = |command: &str, arguments: &[&str]| {
        let script = format!("mount -t tmpfs -o size=4m tmpfs '{}' && {command}", mount.display());
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--", "sh", "-c", &script, "sh"]).args(arguments);
        unshare.env(LEDGER, mount.join("ledger.db")).output()
    };
    match tiny("true", &[]) {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            return skip("tmpfs", &format!("no file system of its own: {}", reason.trim()));
        }
        Err(error) => return skip("tmpfs", &format!("cannot start unshare: {error}")),
    }
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let output = tiny("exec \"$@\"", &[program, "--exact", "part_fills_its_disk", "--nocapture"]);
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("survived"), "{text}{errors}");
}
