//! The header, the library and the manual pages, as C programs use them.

#![allow(clippy::unwrap_used, reason = "tests")]

use fabric::directory::{Server, ServerConfig};
use fabric::region::{PlainMemories, RegionServer, RegionServerConfig};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const HEADER: &str = include_str!("../include/keeptime_fabric.h");
const STRICT: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// Where the library is, by the names that `make install-fabric` gives it.
fn library() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // Cargo leaves it beside this program.
        let built = std::env::current_exe().unwrap().with_file_name("libkeeptime_fabric_c.so");
        assert!(built.exists(), "{} is not there", built.display());
        // The name for the compiler and the one for the loader.
        let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
        fs::create_dir_all(&installed).unwrap();
        for name in ["libkeeptime_fabric.so", "libkeeptime_fabric.so.0"] {
            let _ = fs::remove_file(installed.join(name));
            symlink(&built, installed.join(name)).unwrap();
        }
        installed
    })
}

/// Compiles one of our programs as a user would, and returns where it is.
fn compiled(source: &str, name: &str, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("cc")
        .args(STRICT)
        .arg("-I")
        .arg(root.join("include"))
        .args(more)
        .arg(root.join(source))
        .arg("-o")
        .arg(&program)
        .args(["-pthread", "-L"])
        .arg(library())
        .args(["-lkeeptime_fabric"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The daemon of a node, in this process.
fn daemon(name: &str) -> (Server, RegionServer) {
    let (node, address) = ("n1".into(), ([127, 0, 0, 1], 0).into());
    let regions = RegionServerConfig { name: name.into(), port: 0 };
    let regions = RegionServer::start(&regions, |_| Ok(Box::new(PlainMemories))).unwrap();
    let directory = ServerConfig { name: name.into(), node, address, members: vec![], key: None };
    (Server::start(directory).unwrap(), regions)
}

fn runs(mut command: Command, says: &str) {
    let output = command.env("LD_LIBRARY_PATH", library()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(says), "{said}\n{told}");
}

#[test]
fn every_function_does_what_the_header_says() {
    let name = format!("c-{}", std::process::id());
    let _daemon = daemon(&name);
    let mut command =
        Command::new(compiled("tests/c/everything.c", "everything", &["-D_GNU_SOURCE"]));
    command.arg(&name);
    runs(command, "all is well");
}

/// The same under a memory checker: nothing is leaked, freed twice, or read before it is written.
#[test]
fn no_memory_is_lost_or_used_wrongly() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        // Past what captures the output of tests that pass.
        let _ = writeln!(std::io::stdout(), "skipped: valgrind: it is not installed");
        return;
    }
    let name = format!("c-valgrind-{}", std::process::id());
    let _daemon = daemon(&name);
    let program = compiled("tests/c/everything.c", "everything-checked", &["-D_GNU_SOURCE"]);
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command.arg(program).arg(&name);
    runs(command, "all is well");
}

/// The examples of which one process is there for another.
#[test]
fn the_examples_of_two_processes_run() {
    for (example, first, says) in [
        ("ktf_ping", "answer", "round trip 9"),
        ("ktf_region", "publish", "in memory\n0 have read it before"),
    ] {
        let name = format!("c-{example}-{}", std::process::id());
        let _daemon = daemon(&name);
        let program = compiled(&format!("examples/{example}.c"), example, &[]);
        let mut offering = Command::new(&program);
        offering.arg(first).env("KEEPTIME_FABRIC", &name).env("LD_LIBRARY_PATH", library());
        let mut offering = offering.spawn().unwrap();
        let mut command = Command::new(&program);
        command.env("KEEPTIME_FABRIC", &name);
        runs(command, says);
        assert!(offering.wait().unwrap().success());
    }
}

/// Goal: a server goes on when a client has not waited for its answer. Method: one that asks and is gone, and then one that asks
/// as often as is answered.
#[test]
fn the_example_answers_whoever_has_gone_before() {
    let name = format!("c-gone-{}", std::process::id());
    let _daemon = daemon(&name);
    let program = compiled("examples/ktf_ping.c", "ktf_ping-gone", &[]);
    let mut answering = Command::new(&program);
    answering.arg("answer").env("KEEPTIME_FABRIC", &name).env("LD_LIBRARY_PATH", library());
    let mut answering = answering.spawn().unwrap();
    let mut config = fabric::Config::default();
    config.directory.clone_from(&name);
    let context = fabric::Context::open(config).unwrap();
    let query = fabric::attrs! { "example" => "ktf_ping", "role" => "answers" };
    let peer = context.find(query).one_of_any_within(Duration::from_secs(10)).unwrap();
    let gone = context.register(fabric::attrs! {}).unwrap();
    gone.send(peer, fabric::Tag(1), &[]).unwrap();
    drop((gone, context));
    let mut command = Command::new(&program);
    command.env("KEEPTIME_FABRIC", &name);
    runs(command, "round trip 9");
    assert!(answering.wait().unwrap().success());
}

#[test]
fn the_example_of_watching_runs() {
    let name = format!("c-watching-{}", std::process::id());
    let _daemon = daemon(&name);
    let mut command = Command::new(compiled("examples/ktf_watch.c", "ktf_watch", &[]));
    command.env("KEEPTIME_FABRIC", &name);
    runs(command, " has disappeared");
}

/// The sum says that the reader has seen every buffer as it was when it was given.
#[test]
fn the_example_of_giving_runs() {
    let name = format!("c-giving-{}", std::process::id());
    let _daemon = daemon(&name);
    let mut command = Command::new(compiled("examples/ktf_give.c", "ktf_give", &[]));
    command.env("KEEPTIME_FABRIC", &name);
    // 2^18 times the numbers from 0 to 99.
    runs(command, "whose sum is 1297612800");
}

/// Its last messages are gathered still when it ends.
#[test]
fn a_program_that_ends_has_carried_what_it_has_sent() {
    let name = format!("c-exits-{}", std::process::id());
    let _daemon = daemon(&name);
    let mut command = Command::new(compiled("tests/c/exits.c", "exits", &["-D_GNU_SOURCE"]));
    command.arg(&name);
    runs(command, "all came once");
}

#[test]
fn layouts_are_the_same_on_both_sides_and_the_header_is_cplusplus_too() {
    compiled("tests/c/layouts.c", "layouts.o", &["-c"]);
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/keeptime_fabric.h");
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]);
    assert!(command.arg(header).status().unwrap().success());
}

/// What the header declares is what the library has, and each has its manual page.
#[test]
fn header_library_and_manual_pages_have_the_same_functions() {
    let declared: BTreeSet<String> = HEADER
        .lines()
        .filter(|line| !line.starts_with([' ', '\t', '/', '*', '}']))
        .filter_map(|line| line.split_once('(')?.0.split([' ', '*']).next_back().map(str::to_owned))
        .filter(|name| name.starts_with("ktf_"))
        .collect();
    let library = library().join("libkeeptime_fabric.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().unwrap();
    let symbols = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| name.starts_with("ktf_"))
        .map(str::to_owned)
        .collect();
    assert!(declared.len() > 25, "{declared:?}");
    assert_eq!(declared, exported);
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    for name in declared {
        let page = std::fs::read_to_string(manual.join(format!("{name}.3")));
        assert!(page.is_ok(), "man/{name}.3 is not there");
    }
    let output = Command::new("objdump").arg("-p").arg(&library).output().unwrap();
    let headers = String::from_utf8(output.stdout).unwrap();
    assert!(headers.contains("libkeeptime_fabric.so.0"), "its name for the loader");
}
