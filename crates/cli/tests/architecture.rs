//! Which crate uses which is what ARCHITECTURE.md says, and data flows one way.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// (crate, the project's crates that it uses) in the order of the document's table.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("| crate | owns | uses |").nth(1).unwrap();
    let names =
        |cell: &str| cell.split('`').skip(1).step_by(2).map(String::from).collect::<Vec<_>>();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        (names(cells[1]).remove(0), names(cells[3]).into_iter().collect())
    })
    .collect()
}

/// What a crate's manifest depends on, tests aside.
fn used(name: &str) -> BTreeSet<String> {
    let path = root().join("crates").join(name).join("Cargo.toml");
    let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
    let dependencies = manifest.get("dependencies").and_then(|d| d.as_table());
    // A package that is called otherwise here is meant by its own name.
    let package = |(key, value): (&String, &toml::Value)| {
        value.get("package").and_then(|name| name.as_str()).unwrap_or(key).to_string()
    };
    let names = dependencies.into_iter().flatten().map(package);
    // The package of the commands is called as the program is.
    let short = |key: String| match key.as_str() {
        "keeptime" => Some("cli".to_string()),
        other => other.strip_prefix("keeptime-").map(String::from),
    };
    names.filter_map(short).collect()
}

#[test]
fn every_crate_uses_what_the_table_says_and_only_rows_above() {
    let table = documented();
    let listed: BTreeSet<_> = table.iter().map(|(name, _)| name.clone()).collect();
    let there: BTreeSet<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, there, "the table lists the crates that there are");
    let mut above = BTreeSet::new();
    for (name, uses) in table {
        assert_eq!(uses, used(&name), "what {name} uses");
        assert!(uses.is_subset(&above), "{name} uses a crate that does not stand above it");
        above.insert(name);
    }
}
