//! Programs that end without closing what they have opened.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Node, Way};
use keeptime_fabric::{Config, Context, Match, Protocol, ResourceId, Tag, Wait, attrs};
use std::process::Command;

const MESSAGES: u64 = 200;

/// Not a test: the program that sends and ends.
#[test]
fn program_that_ends() {
    let var = |name: &str| std::env::var(format!("FABRIC_TEST_{name}"));
    let Ok(directory) = var("DIRECTORY") else { return };
    let to: ResourceId = var("TO").unwrap().parse().unwrap();
    let mut config = Config::default();
    (config.directory, config.shared_memory) = (directory, false);
    if var("UDP").is_ok() {
        config.between_nodes = Protocol::Udp;
    }
    let context = Context::open(config).unwrap();
    let own = context.register(attrs! {}).unwrap();
    for number in 0..MESSAGES {
        own.send(to, Tag(number), b"0123456789").unwrap();
    }
    if var("LONG").is_ok() {
        own.send(to, Tag(MESSAGES), vec![0; 1 << 20]).unwrap();
    }
    std::process::exit(7);
}

/// Has it send to `to`, and end.
fn run(node: &Node, to: ResourceId, more: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program_that_ends"]);
    command.env("FABRIC_TEST_DIRECTORY", &node.config.name);
    command.env("FABRIC_TEST_TO", to.to_string());
    command.envs(more.iter().map(|name| (format!("FABRIC_TEST_{name}"), "1")));
    assert_eq!(command.output().unwrap().status.code(), Some(7));
}

#[test]
fn what_was_sent_is_carried_before_a_program_ends() {
    let node = Node::start("n1", &[]);
    let (tcp, udp) = (Way::Tcp(Wait::Block), Way::Udp(Wait::Block));
    for (way, more) in [(tcp, &[][..]), (udp, &["UDP"]), (tcp, &[]), (tcp, &["LONG"])] {
        let mut config = node.settings(way);
        // Nobody takes connections otherwise until the program has ended.
        config.progress_thread = true;
        let context = Context::open(config).unwrap();
        let resource = context.register(attrs! {}).unwrap();
        run(&node, resource.id(), more);
        for number in 0..MESSAGES {
            let message = resource.recv_within(Match::any(), LONG);
            assert_eq!(message.unwrap().tag, Tag(number), "{more:?}");
        }
    }
}
