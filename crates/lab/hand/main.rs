//! The tests' own program: it holds labs as `keeptime` does, makes them so that it can be killed
//! while it does, and is what runs on nodes.
#![forbid(unsafe_code)]

use keeptime_lab::{Exec, LabError, Labs, Spec, exit_code, holder_main, isolation};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

fn main() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let texts: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let code = match texts.as_slice() {
        ["lab-holder", ..] => holder_main(&words[1..]),
        ["lab-holder-when-told", directory] => {
            wait_until_told(Path::new(directory));
            holder_main(&words[1..])
        }
        ["up", runtime, name, nodes, cpu] => report(up(&labs(runtime), name, nodes, cpu)),
        ["up-when-told", runtime, name, nodes, cpu] => {
            report(up(&held_when_told(labs(runtime)), name, nodes, cpu))
        }
        ["down", runtime, name] => {
            report(labs(runtime).down(&name.parse().expect("a name")).map(|_| ()))
        }
        ["exec", runtime, name, node, kind, command @ ..] => {
            report(exec(runtime, name, node, kind, command).map(|code| std::process::exit(code)))
        }
        ["compute", steps] => {
            isolation::compute(steps.parse().expect("a number"));
            0
        }
        _ => 64,
    };
    std::process::exit(code);
}

fn labs(runtime: &str) -> Labs {
    Labs::of_this_user().in_directory(runtime)
}

/// Until the file `go` is in the lab's directory, or that has been removed. The file `waits` says who does.
fn wait_until_told(directory: &Path) {
    std::fs::write(directory.join("waits"), std::process::id().to_string()).expect("a directory");
    while directory.exists() && !directory.join("go").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// With holders that begin when they are told to.
fn held_when_told(labs: Labs) -> Labs {
    let program = std::env::current_exe().expect("its own path");
    labs.held_by([program.into_os_string(), "lab-holder-when-told".into()])
}

fn up(labs: &Labs, name: &str, nodes: &str, cpu: &str) -> Result<(), LabError> {
    let nodes = nodes.parse().expect("a number of nodes");
    let cpu: CpuPpm = cpu.parse()?;
    let spec = Spec::star(name.parse()?, nodes, BitsPerSecond::from_mbit(200), cpu)?;
    let lab = labs.up(&spec)?;
    for reason in lab.status().not_enforced {
        println!("not enforced: {reason}");
    }
    Ok(())
}

fn exec(
    runtime: &str,
    name: &str,
    node: &str,
    kind: &str,
    command: &[&str],
) -> Result<i32, LabError> {
    let lab = labs(runtime).open(&name.parse()?)?;
    let exec = match kind {
        "shell" => Exec::shell(node, command.iter().copied()),
        "bound" => Exec::new(node, command.iter().copied()).die_with_parent(),
        _ => Exec::new(node, command.iter().copied()),
    };
    lab.exec(exec).map(exit_code)
}

fn report(result: Result<(), LabError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            2
        }
    }
}
