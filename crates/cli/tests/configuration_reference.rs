//! docs/formats/configuration.md has every key that the programs accept, and no other.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_broker::config::{Config, PolicyFile};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/formats/configuration.md");
const FABRICD: &str = include_str!("../../fabricd/src/main.rs");

/// What reads a file of each kind, whose path comes behind it, and does nothing else when that is wrong.
const BROKER: &[&str] = &["broker", "run", "--check", "--config"];
const AGENT: &[&str] = &["agent", "run", "--check", "--config"];
const CLIENT: &[&str] = &["list", "--client-config"];

/// A heading of the page, what reads such a file, and how the table begins there.
const TABLES: [(&str, &[&str], &str); 8] = [
    ("## `broker.toml`", BROKER, ""),
    ("### `[policy]`", BROKER, "[policy]\n"),
    ("### `[tcp]`", BROKER, "[tcp]\n"),
    ("## `agent.toml`", AGENT, ""),
    ("### `[broker_tls]`", AGENT, "[broker_tls]\n"),
    ("### `[[disks]]`", AGENT, "[[disks]]\n"),
    ("## `client.toml`", CLIENT, ""),
    ("### `[nodes]`", CLIENT, "[nodes]\n"),
];
/// The options of the fabric's daemon, which has no file.
const OPTIONS: &str = "## `keeptime-fabricd`";
/// A key that no file has.
const UNKNOWN: &str = "no-such-key";

/// The keys of a table, as the program names them to whoever writes another.
fn accepted(reads: &[&str], table: &str) -> BTreeSet<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.toml");
    fs::write(&file, format!("{table}{UNKNOWN} = 1\n")).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    let output = program.args(reads).arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = format!("unknown field `{UNKNOWN}`\" is not accepted; expected ");
    let expected = told.lines().find_map(|line| Some(line.split_once(&refused)?.1));
    let expected = expected.unwrap_or_else(|| panic!("{reads:?} {table}: {told}"));
    expected.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// The rows of the table below a heading, without its head.
fn rows(heading: &str) -> Vec<&'static str> {
    let (_, below) = PAGE
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("the page has no {heading}"));
    let is_heading = |line: &&str| line.starts_with("## ") || line.starts_with("### ");
    let own = below.lines().take_while(|line| !is_heading(line));
    own.filter(|line| line.starts_with("| `")).collect()
}

/// What the first column of such a row names: a key, a table in its brackets, an option.
fn name(row: &str) -> &str {
    row.split('`').nth(1).unwrap()
}

fn documented(heading: &str) -> BTreeSet<String> {
    let names: Vec<_> = rows(heading).into_iter().map(name).collect();
    let keys: BTreeSet<_> =
        names.iter().map(|name| name.trim_matches(['[', ']']).to_owned()).collect();
    assert_eq!(keys.len(), names.len(), "{heading} has a key twice: {names:?}");
    keys
}

/// The options that are declared in the daemon's source: each has its field's name, or another that is given.
fn options() -> BTreeSet<String> {
    let (_, below) = FABRICD.split_once("\nstruct Arguments {\n").unwrap();
    let (fields, _) = below.split_once("\n}\n").unwrap();
    let (mut options, mut given) = (BTreeSet::new(), None);
    for line in fields.lines().map(str::trim) {
        if line.starts_with("//") {
            continue;
        }
        if line.starts_with("#[") {
            let long = line.split_once("long = \"");
            given = long.and_then(|(_, rest)| rest.split('"').next());
        } else if let Some((field, _)) = line.split_once(": ") {
            let long = given.take().map_or_else(|| field.replace('_', "-"), str::to_owned);
            options.insert(format!("--{long}"));
        }
    }
    options
}

// Goal: whoever looks a key up finds it, and finds none that is refused. Method: each program is given a key that it does not
// know, and names those that it does.
#[test]
fn the_keys_of_the_page_are_those_that_are_accepted() {
    for (heading, reads, table) in TABLES {
        let accepted = accepted(reads, table);
        assert!(accepted.len() > 2, "{heading}: {accepted:?}");
        assert_eq!(documented(heading), accepted, "{heading}");
    }
}

// A table that is written as such has a heading of its own, and the test above looks at it.
#[test]
fn every_table_of_the_page_is_compared() {
    let tables: BTreeSet<_> = TABLES.iter().map(|(heading, ..)| (*heading).to_owned()).collect();
    let all_rows = TABLES.iter().flat_map(|(heading, ..)| rows(heading));
    let named = all_rows.map(name).filter(|name| name.starts_with('['));
    let named: BTreeSet<_> = named.map(|name| format!("### `{name}`")).collect();
    assert_eq!(named.len(), 5, "{named:?}");
    assert!(named.is_subset(&tables), "{named:?}");
}

// Goal: a default that is changed is changed on the page too. Method: the page's are a file of their own.
#[test]
fn the_defaults_of_the_policy_are_those_of_the_page() {
    let line = |row: &str| {
        let default = row.split('|').nth(3).unwrap().trim().trim_matches('`');
        format!("{} = {default}\n", name(row))
    };
    let policy: String = rows("### `[policy]`").into_iter().map(line).collect();
    let text = format!(
        "topology = \"t\"\nledger = \"l\"\nsocket = \"s\"\nagents = \"a\"\n[policy]\n{policy}"
    );
    let config = Config::from_toml(&text).unwrap();
    assert_eq!(config.policy, PolicyFile::default());
}

#[test]
fn the_options_of_the_daemon_are_those_of_the_page() {
    let options = options();
    assert!(options.len() > 10 && options.contains("--member"), "{options:?}");
    assert_eq!(documented(OPTIONS), options);
}
