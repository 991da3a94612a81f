//! The program as people call it: exit codes, and errors that say what would be accepted.

use std::process::{Command, Output};

fn keeptime(arguments: &[&str]) -> Output {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    Command::new(env!("CARGO_BIN_EXE_keeptime")).args(arguments).current_dir(root).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn bad_input_names_the_value_and_what_would_be_accepted() {
    let cases: [(&[&str], i32, &str); 9] = [
        (&["plan", "raycast", "--within", "1parsec"], 64, "a number and a unit"),
        (&["plan", "raycast", "--prefer", "nicest"], 64, "fastest, best or cheapest"),
        (&["plan", "no-such-app"], 2, "no application \"no-such-app\""),
        (&["plan", "raycast", "--lab", "no-such-lab"], 2, "no lab called no-such-lab"),
        (&["lab", "up", "t-bad", "--nodes", "17"], 64, "17"),
        (&["lab", "up", "t-bad", "--nodes", "0"], 64, "0"),
        (&["lab", "up", "T/bad"], 64, "a lower-case letter"),
        (&["lab", "down", "no-such-lab"], 2, "no-such-lab"),
        (&["agent", "status", "/nowhere/agent.sock"], 2, "does not answer"),
    ];
    for (arguments, code, expected) in cases {
        let output = keeptime(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text} should contain {expected}");
    }
}

#[test]
fn every_command_has_help_that_says_what_it_does() {
    let cases: [(&[&str], &str); 7] = [
        (&["--help"], "Predictable response times"),
        (&["lab", "--help"], "network namespaces"),
        (&["lab", "up", "--help"], "--nodes"),
        (&["profile", "--help"], "--under-load"),
        (&["plan", "--help"], "without reserving"),
        (&["run", "--help"], "--unprotected"),
        (&["agent", "--help"], "enforces"),
    ];
    for (arguments, expected) in cases {
        let output = keeptime(arguments);
        assert!(output.status.success());
        assert!(said(&output).contains(expected), "{arguments:?} should contain {expected}");
    }
}

#[test]
fn a_missing_compiler_names_the_packages() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
    let output = Command::new("make")
        .args(["-C", root, "MPICXX=/nowhere/mpicxx", "MPI_NAME=missing-compiler"])
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(format!("{root}/build/missing-compiler"));
    assert!(!output.status.success());
    assert!(said(&output).contains("libopenmpi-dev"), "{}", said(&output));
}
