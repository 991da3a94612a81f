//! The examples, as somebody runs them: `cargo test` builds them beside its tests.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way};
use keeptime_fabric::region::{PlainMemories, RegionServer, RegionServerConfig};
use keeptime_fabric::{Tag, Wait, attrs};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Its process, in what has a daemon of this name.
fn example(name: &str, daemon: &str, arguments: &[&str]) -> Child {
    let tests = std::env::current_exe().unwrap();
    let path: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    let mut command = Command::new(&path);
    command.args(arguments).env("KEEPTIME_FABRIC", daemon).env_remove("KEEPTIME_FABRIC_WAIT");
    let spawned = command.stdout(Stdio::piped()).spawn();
    spawned.unwrap_or_else(|error| panic!("{}, which `cargo test` builds: {error}", path.display()))
}

/// What it says, when it has ended as it should.
fn said(example: Child) -> String {
    let output = example.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Goal: a server goes on when a client has not waited for its answer. Method: one that asks and is gone, and then one that
/// asks ten times.
#[test]
fn ping_is_answered_whoever_has_gone_before() {
    let node = Node::start("n1", &[]);
    let name = &node.config.name;
    let mut answering = example("ping", name, &["answer"]);
    let context = node.context(Way::Tcp(Wait::Block));
    let query = attrs! { "example" => "ping", "role" => "answers" };
    let peer = context.find(query).one_of_any_within(LONG).unwrap();
    let gone = context.register(attrs! {}).unwrap();
    gone.send(peer, Tag(1), &[]).unwrap();
    drop((gone, context));
    let start = Instant::now();
    let asked = said(example("ping", name, &[]));
    assert_eq!(asked.lines().count(), 10, "{asked}");
    assert!(start.elapsed() < LONG && answering.try_wait().unwrap().is_none(), "it has ended");
    answering.kill().unwrap();
    answering.wait().unwrap();
}

#[test]
fn watch_tells_what_comes_and_goes() {
    let node = Node::start("n1", &[]);
    let told = said(example("watch", &node.config.name, &[]));
    assert!(
        told.contains(" has appeared on n1\n") && told.contains(" has disappeared\n"),
        "{told}"
    );
}

#[test]
fn what_is_published_by_one_process_is_read_by_another() {
    let node = Node::start("n1", &[]);
    let config = RegionServerConfig { name: node.config.name.clone(), port: 0 };
    let _regions = RegionServer::start(&config, |_| Ok(Box::new(PlainMemories))).unwrap();
    let publishing = example("region", &node.config.name, &["publish"]);
    let told = said(example("region", &node.config.name, &[]));
    assert!(told.contains("read by Memory") && told.ends_with("0 have read it before\n"), "{told}");
    said(publishing);
}
