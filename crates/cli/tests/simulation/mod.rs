//! `keeptime sim` as a process: what it says, and what it refuses.

use std::process::{Command, Output};

/// Runs `keeptime sim WHAT` with these arguments.
pub fn sim(what: &str, arguments: &[&str]) -> Output {
    let keeptime = env!("CARGO_BIN_EXE_keeptime");
    Command::new(keeptime).args(["sim", what]).args(arguments).output().unwrap()
}

/// Errors, then results.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// It ends with this code and says all of `expected`.
pub fn refused(what: &str, arguments: &[&str], code: i32, expected: &[&str]) {
    let output = sim(what, arguments);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for expected in expected {
        assert!(text.contains(expected), "{arguments:?}: {text} should contain {expected}");
    }
}
