//! `keeptime sim sites`: what it says of two sites on a few nodes, that it says the same again, and what it refuses.

#![allow(clippy::unwrap_used, reason = "tests")]

mod simulation;

use serde_json::{Value, json};
use simulation::said;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// Nodes answer 20 requests a second each, and load goes up and down within the hour.
const PACE: [&str; 10] =
    ["--hours", "1", "--service", "50 ms", "--within", "1 s", "--period", "1h", "--swing", "80 %"];

fn sim(arguments: &[&str]) -> Output {
    simulation::sim("sites", arguments)
}

fn simulated(arguments: &[&str]) -> Value {
    let output = sim(&[arguments, &PACE, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A site of one node at least.
fn site(name: &str, load: Value) -> Value {
    let guarantee = json!({ "hard": 1, "soft": 2, "max": 3 });
    let spec = json!({ "name": name, "guarantee": guarantee, "priority": 1 });
    json!({ "spec": spec, "load": load })
}

fn load(per_second: f64) -> Value {
    json!({ "arrivals_per_second": per_second })
}

/// A site that says how long its requests take.
fn served(service: Value) -> Value {
    let mut site = site("shop", load(1.0));
    site["service"] = service;
    site
}

/// A file with these sites, as long as the directory is there.
fn file(sites: &[Value]) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sites.json");
    std::fs::write(&path, json!({ "sites": sites }).to_string()).unwrap();
    (directory, path)
}

/// Two that ask for 30 requests a second each, in the mean.
fn shop_and_blog() -> (TempDir, PathBuf) {
    file(&["shop", "blog"].map(|name| site(name, load(30.0))))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

// Goal: under our policy every site has what it is promised and more is answered in time than where nothing moves; the
// result says all that it comes of, and comes of it again.
#[test]
fn nodes_go_along_with_the_load_and_the_result_is_repeated_from_its_header() {
    let (_directory, path) = shop_and_blog();
    let arguments = ["--topology", "star:4", "--sites", text(&path)];
    let result = simulated(&arguments);
    let header = &result["header"];
    let of = |field: &str| header[field].as_str().map_or(header[field].to_string(), Into::into);
    let fields = ["topology", "sites", "hours", "swing", "period", "service", "within", "seed"];
    let again: Vec<_> = fields.iter().flat_map(|field| [format!("--{field}"), of(field)]).collect();
    let again: Vec<_> = again.iter().map(String::as_str).collect();
    // Once, however often it is named.
    let repeated = sim(&[&again[..], &["--policy", "keeptime,keeptime", "--json"]].concat());
    let repeated: Value = serde_json::from_slice(&repeated.stdout).unwrap();
    assert_eq!(repeated["summaries"].as_array().unwrap().len(), 1);
    assert_eq!(repeated["header"], result["header"]);
    assert_eq!(repeated["summaries"][0], result["summaries"][0]);
    assert_eq!(header["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(header["failures"], Value::Null);

    let [ours, rigid] = &result["summaries"].as_array().unwrap()[..] else { panic!("{result}") };
    assert_eq!(
        (ours["policy"].as_str(), rigid["policy"].as_str()),
        (Some("keeptime"), Some("rigid"))
    );
    assert!(ours["moves"].as_u64().unwrap() > 0 && rigid["moves"] == 0, "{result}");
    for at in 0..2_usize {
        let of = |summary: &Value, field: &str| summary["sites"][at][field].as_f64().unwrap();
        assert_eq!(of(ours, "hard_met_percent"), 100.0, "{ours}");
        assert_eq!(of(ours, "below_hard_seconds"), 0.0, "{ours}");
        assert!(of(ours, "in_time_percent") > of(rigid, "in_time_percent"), "{result}");
        assert!(of(ours, "requests") > 50_000.0, "{ours}");
    }
}

// Goal: what the file says of one site is said of that one alone: its requests all take longer than is in time, and
// those of the other are answered as before.
#[test]
fn a_site_says_itself_how_long_its_requests_take() {
    let service = json!({ "distribution": "lognormal", "mean": "1001 ms", "variation": 0 });
    let mut slow = site("slow", load(0.5));
    slow["service"] = service;
    let (_directory, path) = file(&[slow, site("quick", load(0.5))]);
    let result = simulated(&["--topology", "star:4", "--sites", text(&path)]);
    for of in result["summaries"].as_array().unwrap() {
        let [slow, quick] = [0, 1].map(|at: usize| of["sites"][at]["in_time_percent"].as_f64());
        assert_eq!(slow, Some(0.0), "{of}");
        assert!(quick > Some(99.0), "{of}");
    }
}

// Goal: nodes that fail are counted, and a table has a line for each site.
#[test]
fn failures_are_counted_and_told_in_the_table() {
    let (_directory, path) = shop_and_blog();
    let cluster = ["--topology", "star:16", "--sites", text(&path), "--swing", "0 %"];
    let fails = ["--failures", "1h", "--repair", "1 min", "--policy", "keeptime"];
    let pace = ["--hours", "1", "--service", "50 ms"];
    let output = sim(&[&cluster[..], &fails, &pace].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("keeptime: moves "), "{table}");
    assert!(!lines[0].contains("nodes away 0,"), "{table}");
    assert!(lines[1].starts_with("site ") && lines[2].starts_with("shop "), "{table}");
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{table}");
    let ended = String::from_utf8(output.stderr).unwrap();
    assert!(ended.contains("keeptime has ended: moves "), "{ended}");
}

#[test]
fn bad_input_names_the_field_the_value_and_what_would_be_accepted() {
    let (_directory, path) = shop_and_blog();
    let good: &[&str] = &["--topology", "star:4", "--sites", text(&path)];
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (&["--topology", "ring:4", "--sites", text(&path)], 64, &["ring:4", "FILE.toml"]),
        (&["--topology", "star:4"], 64, &["--sites <FILE>"]),
        (&["--topology", "star:4", "--sites", "/no.json"], 2, &["cannot read /no.json"]),
        (&[good, &["--hours", "0"]].concat(), 64, &["--hours", "0"]),
        (&[good, &["--policy", "fifo"]].concat(), 64, &["fifo", "reconf-pq, keeptime"]),
        (&[good, &["--swing", "101 %"]].concat(), 64, &["--swing", "101 %"]),
        (&[good, &["--service", "0 s"]].concat(), 64, &["--service", "1 ms to"]),
        (&[good, &["--repair", "1h"]].concat(), 64, &["--repair", "--failures"]),
        (&["--topology", "star:1", "--sites", text(&path)], 64, &[text(&path)]),
    ];
    for (arguments, code, expected) in cases {
        refused(arguments, code, expected);
    }
}

#[test]
fn a_file_that_lacks_something_is_told_what() {
    let cases = [
        (vec![], "sites.json: sites: \"0\""),
        (vec![site("shop", Value::Null)], "sites.shop.load is missing"),
        (vec![site("shop", load(-1.0))], "sites.shop.load.arrivals_per_second: \"-1\""),
        (vec![json!({ "load": load(1.0) })], "missing field `spec`"),
        (vec![site("Shop", load(1.0))], "a lower-case letter"),
        (
            vec![served(json!({ "distribution": "uniform", "mean": "8 ms" }))],
            "unknown variant `uniform`, expected `exponential` or `lognormal`",
        ),
        (
            vec![served(json!({ "distribution": "exponential", "mean": "8 ms", "variation": 1 }))],
            "unknown field `variation`",
        ),
        (
            vec![served(json!({ "distribution": "lognormal", "mean": "8 ms" }))],
            "missing field `variation`",
        ),
        (
            vec![served(json!({ "distribution": "exponential", "mean": "2 min" }))],
            "sites.shop.service.mean: ",
        ),
        (
            vec![served(json!({ "distribution": "lognormal", "mean": "8 ms", "variation": 11 }))],
            "sites.shop.service.variation: \"11\" is not accepted; expected 0 to 10",
        ),
    ];
    for (sites, expected) in cases {
        let (_directory, path) = file(&sites);
        refused(&["--topology", "star:4", "--sites", text(&path)], 64, &[text(&path), expected]);
    }
}

fn refused(arguments: &[&str], code: i32, expected: &[&str]) {
    simulation::refused("sites", arguments, code, expected);
}
