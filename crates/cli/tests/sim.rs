//! `keeptime sim run`: what it says of a small cluster, that it says the same again, and what it refuses.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Jobs of 100 s on all of four nodes, and of 50 s on two of them, twice; requested are 100 s.
const LOG: &str = "\
; MaxProcs: 4
1  0 -1 100 4 -1 -1 4 100 -1 1 1 1 1 1 1 -1 -1
2 10 -1  50 2 -1 -1 2 100 -1 1 1 1 1 1 1 -1 -1
3 20 -1  50 2 -1 -1 2 100 -1 1 1 1 1 1 1 -1 -1
";

const EVERY_POLICY: &str =
    "keeptime,keeptime-greedy,keeptime-queue,keeptime-classes,fcfs-backfill,none";

fn sim(arguments: &[&str]) -> Output {
    let run = ["sim", "run"];
    Command::new(env!("CARGO_BIN_EXE_keeptime")).args(run).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Vec<Value> {
    let output = sim(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// A file with this log, as long as the directory is there.
fn trace(log: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("jobs.swf");
    std::fs::write(&path, log).unwrap();
    (directory, path)
}

// Goal: the numbers are those that can be counted on fingers: the first has the cluster until 100 s, the others wait
// for it and have half of it each, or share with it and take longer.
#[test]
fn a_log_of_three_jobs_is_replayed_under_every_policy() {
    let (_directory, path) = trace(LOG);
    let arguments = ["--topology", "star:4", "--trace", path.to_str().unwrap()];
    let summaries = json(&[&arguments[..], &["--policy", EVERY_POLICY]].concat());
    let names: Vec<_> = summaries.iter().map(|of| of["policy"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), EVERY_POLICY);
    let [ours @ .., backfill, none] = &summaries[..] else { panic!() };
    for of in ours {
        let count = |field: &str| of[field].as_u64().unwrap();
        assert_eq!((count("jobs"), count("broken"), count("admitted_late")), (3, 0, 0), "{of}");
        assert_eq!(count("promised") + count("refused"), 3, "{of}");
        assert_eq!(of["stretch"]["most"], 1.0, "{of}");
    }
    assert_eq!(backfill["wait_seconds"]["median"], 80.0, "{backfill}");
    assert_eq!(backfill["wait_seconds"]["most"], 90.0, "{backfill}");
    assert_eq!(backfill["utilisation_percent"], 100.0, "{backfill}");
    assert_eq!(none["wait_seconds"]["most"], 0.0, "{none}");
    assert_eq!(none["stretch"]["most"], 2.0, "{none}");
}

#[test]
fn a_table_has_a_column_for_each_policy() {
    let (_directory, path) = trace(LOG);
    let output = sim(&["--topology", "star:4", "--trace", path.to_str().unwrap()]);
    let table = String::from_utf8(output.stdout).unwrap();
    let first: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(first, ["keeptime", "fcfs-backfill", "none"]);
    assert!(table.contains("promises broken"), "{table}");
    assert!(table.lines().all(|line| line.len() == table.lines().next().unwrap().len()), "{table}");
}

#[test]
fn the_same_seed_says_the_same_and_another_one_something_else() {
    let of = |generator, seed| {
        let made = ["--generate", generator, "--jobs", "60", "--seed", seed];
        let cluster = ["--topology", "fat-tree:80:8", "--communication", "30 %"];
        json(&[&made[..], &cluster, &["--policy", EVERY_POLICY]].concat())
    };
    for generator in ["model", "chains"] {
        assert_eq!(of(generator, "1"), of(generator, "1"));
        assert_ne!(of(generator, "1"), of(generator, "2"));
    }
}

#[test]
fn bad_input_names_the_field_the_value_and_what_would_be_accepted() {
    let made: &[&str] = &["--topology", "star:4", "--generate", "model"];
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (&["--topology", "ring:4", "--generate", "model"], 64, &["ring:4", "star:NODES"]),
        (&["--topology", "star:0", "--generate", "model"], 64, &["0", "1 to 50000"]),
        (&["--topology", "star:4"], 64, &["--trace <FILE>"]),
        (&["--topology", "star:4", "--trace", "/nowhere.swf"], 2, &["cannot read /nowhere.swf"]),
        (&[made, &["--trace", "x.swf"]].concat(), 64, &["--generate", "--trace"]),
        (&[made, &["--policy", "fifo"]].concat(), 64, &["fifo", "keeptime-classes, fcfs-backfill"]),
        (&[made, &["--communication", "120 %"]].concat(), 64, &["120 %"]),
        (&[made, &["--jobs", "0"]].concat(), 64, &["--jobs", "0"]),
        (&[made, &["--load", "9"]].concat(), 64, &["load", "\"9\"", "0.01 to 2"]),
    ];
    for (arguments, code, expected) in cases {
        refused(arguments, code, expected);
    }
}

#[test]
fn a_bad_log_names_the_line_the_field_and_what_would_be_accepted() {
    let cases = [
        (LOG.replace("2 10 -1", "2 soon -1"), "line 3.submit time (field 2): \"soon\""),
        (LOG.replace("2 10 -1", "2 10"), "line 3.numbers: \"17\" is not accepted; expected 18"),
        (LOG.replace("; MaxProcs: 4", ""), "header: \"nothing\" is not accepted; expected a line"),
        (
            LOG.lines().next().unwrap().into(),
            "jobs: \"none\" is not accepted; expected at least one",
        ),
    ];
    for (log, expected) in cases {
        let (_directory, path) = trace(&log);
        let path = path.to_str().unwrap();
        refused(&["--topology", "star:4", "--trace", path], 64, &[path, expected]);
    }
}

fn refused(arguments: &[&str], code: i32, expected: &[&str]) {
    let output = sim(arguments);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for expected in expected {
        assert!(text.contains(expected), "{arguments:?}: {text} should contain {expected}");
    }
}
