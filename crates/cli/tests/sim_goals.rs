//! `keeptime sim goals`: what users have of a cluster who ask for goals, that it is the same again, and what is refused.

#![allow(clippy::unwrap_used, reason = "tests")]

mod simulation;

use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use serde_json::Value;
use simulation::{refused, said, sim};
use std::fs;
use tempfile::TempDir;

const APPLICATION: &str = "name = \"solver\"\ncommand = [\"solver\"]\npattern = \"pairs\"\nnodes = [2]\n\
    cpu = \"50 %\"\ntimeout = \"1 h\"\ntime = \"wall\"\n";

/// An application whose unit takes a second and what 100 Mbit for each flow take, and its profile; and the file's path.
fn measured() -> (TempDir, String) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("solver.toml");
    fs::write(&path, APPLICATION).unwrap();
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(10_000),
        process_cpu_ppm: CpuPpm::from_percent(50),
        processor: "made up".into(),
        mpi: "none".into(),
        command: vec!["solver".into()],
        program: None,
    };
    let mut profile = Profile::empty("solver".parse().unwrap(), conditions, vec![]);
    for mbit in [50_u64, 100, 200, 400] {
        let time = Nanos::from_millis(1_000 + 100_000 / mbit);
        profile.record(&Default::default(), 2, BitsPerSecond::from_mbit(mbit), time);
    }
    let text = serde_json::to_vec(&profile).unwrap();
    fs::write(directory.path().join("solver.json"), text).unwrap();
    let path = path.display().to_string();
    (directory, path)
}

fn simulated(arguments: &[&str]) -> Value {
    let output = sim("goals", &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

// Goal: whom the broker admits has what was wanted, and with too many users it admits fewer, where nobody decides fewer have
// what they want; the result is repeated from its header. Method: a few users, and many, on four nodes.
#[test]
fn who_is_admitted_has_what_was_wanted() {
    let (directory, path) = measured();
    let wanted = format!("{path}=2s");
    let profiles = ["--profiles", directory.path().to_str().unwrap()];
    let of = |every: &str| {
        let arguments = [&[wanted.as_str(), "--topology", "star:4"], &profiles[..]].concat();
        simulated(&[&arguments, &["--every", every, "--requests", "120"][..]].concat())
    };
    let few = of("10 min");
    for summary in few["summaries"].as_array().unwrap() {
        assert_eq!(summary["in_time_percent"], 100.0, "{summary}");
    }
    let many = of("1 s");
    let [keeptime, none] = [0, 1].map(|at| &many["summaries"][at]);
    let admitted = keeptime["admitted_percent"].as_f64().unwrap();
    assert!((10.0..95.0).contains(&admitted), "{keeptime}");
    assert_eq!(keeptime["in_time_percent"], keeptime["admitted_percent"]);
    assert!(keeptime["time_of_wanted"]["most"].as_f64().unwrap() <= 1.0, "{keeptime}");
    assert_eq!(none["admitted_percent"], 100.0);
    assert!(none["in_time_percent"].as_f64().unwrap() < admitted, "{none}");
    let header = &many["header"];
    let of = |field: &str| header[field].as_str().map_or(header[field].to_string(), Into::into);
    let fields = ["topology", "every", "requests", "units", "wait", "prefer", "seed"];
    let again: Vec<_> = fields.iter().flat_map(|field| [format!("--{field}"), of(field)]).collect();
    let again =
        again.iter().map(String::as_str).chain(profiles).chain(header["applications"][0].as_str());
    assert_eq!(simulated(&again.collect::<Vec<_>>()), many);
}

// Goal: who waits for room has more often what was wanted than who does not, and later.
#[test]
fn who_waits_is_admitted_later() {
    let (directory, path) = measured();
    let wanted = format!("{path}=2s");
    let profiles = directory.path().to_str().unwrap();
    let of = |wait| {
        let arguments = [&wanted, "--topology", "star:4", "--profiles", profiles, "--every", "4 s"];
        let result = simulated(
            &[&arguments[..], &["--policy", "keeptime", "--requests", "200", "--wait", wait]]
                .concat(),
        );
        result["summaries"][0].clone()
    };
    let (at_once, later) = (of("0 s"), of("1 min"));
    let in_time = |summary: &Value| summary["in_time_percent"].as_f64().unwrap();
    assert!(in_time(&later) > in_time(&at_once), "{at_once} {later}");
    assert_eq!(at_once["wait_seconds"]["most"], 0.0);
    assert!(later["wait_seconds"]["p95"].as_f64().unwrap() > 0.0, "{later}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (directory, path) = measured();
    let profiles = directory.path().to_str().unwrap();
    let refused_with = |code, wanted: &str, others: &[&str], expected: &[&str]| {
        let arguments = [&[wanted, "--topology", "star:4"], others].concat();
        refused("goals", &arguments, code, expected);
    };
    // What makes no sense as an argument, and what is not there.
    let unread =
        |wanted: &str, others: &[&str], expected| refused_with(64, wanted, others, expected);
    let refused =
        |wanted: &str, others: &[&str], expected| refused_with(2, wanted, others, expected);
    let there = ["--profiles", profiles];
    unread(&path, &there, &["APPLICATION=WITHIN"]);
    unread(&format!("{path}=soon"), &there, &["soon"]);
    unread(&format!("{path}=0s"), &there, &["within"]);
    refused("nobody=1s", &there, &["no application \"nobody\""]);
    refused(
        &format!("{path}=1s"),
        &["--profiles", "nowhere"],
        &["no profile at nowhere/solver.json"],
    );
    unread(&format!("{path}=1s"), &["--policy", "all"], &["keeptime, keeptime-spare, none"]);
}
