//! Reservations on a real lab: from the command line to the kernel of every node and back, and what
//! lasts when the broker or an agent is killed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::server::now;
use keeptime_model::units::WallTime;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::Output;
use std::time::Duration;
use world::{World, assert_code, said, wait};

const LIMIT: Duration = Duration::from_secs(20);

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(output)))
}

fn run(world: &World, words: &[&str], code: i32) -> String {
    let output = world.keeptime(words).output().unwrap();
    assert_code(&output, code);
    said(&output)
}

const PAIR: [&str; 8] =
    ["--nodes", "n1,n2", "--pattern", "pairs", "--rate", "20 Mbit/s", "--cpu", "10%"];

#[test]
fn a_reservation_is_enforced_by_every_kernel_until_it_is_given_back() {
    let Some(world) = World::new("resv", 30) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min"]].concat();
    let text = run(&world, &reserve, 0);
    assert!(text.starts_with("r1 active, "), "{text}");
    for node in ["n1", "n2"] {
        assert!(world.has_tree(node), "the kernel of {node} enforces it");
    }
    let statuses = world.statuses();
    assert!(statuses.iter().all(|status| World::promised(status) == 20_000_000), "{statuses:?}");
    assert!(run(&world, &["nodes"], 0).contains("enforces now or soon: r1"));
    assert!(run(&world, &["links"], 0).contains("20 Mbit/s of"));

    let refused = run(&world, &["reserve", "--nodes", "2", "--cpu", "25%", "--for", "1min"], 1);
    assert!(refused.contains("would be admitted from"), "{refused}");
    let wider = run(&world, &["modify", "r1", "--rate", "30 Mbit/s"], 0);
    assert!(wider.contains("30 Mbit/s for each flow"), "{wider}");
    wait("the wider class", LIMIT, || {
        world.statuses().iter().all(|status| World::promised(status) == 30_000_000)
    });
    run(&world, &["cancel", "r1"], 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty());
    wait("the end of its classes", LIMIT, || !world.has_tree("n1") && !world.has_tree("n2"));
    let why = run(&world, &["why", "r1"], 0);
    for word in ["granted to root", "started", "changed by root", "cancelled by root"] {
        assert!(why.contains(word), "{word} in {why}");
    }
}

#[test]
fn what_begins_later_is_told_to_agents_at_once_and_enforced_from_its_start_on() {
    let Some(world) = World::new("ahead", 30) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--from", "+3s", "--for", "10min"]].concat();
    let text = run(&world, &reserve, 0);
    assert!(text.starts_with("r1 granted, "), "{text}");
    let shown = json(&world.keeptime(&["show", "r1", "--json"]).output().unwrap());
    let start = WallTime::from_unix_nanos(shown["from_unix_nanos"].as_u64().unwrap());
    let told = world.jobs();
    assert_eq!(told.len(), 2, "both agents have it in their books");
    assert!(told.iter().all(|job| job.assignment.from_unix_nanos == start), "{told:?}");
    let stood = ["n1", "n2"].map(|node| world.has_tree(node));
    // Unless this machine is so slow that the look came too late.
    assert!(now() >= start || stood == [false; 2], "enforced before its start: {stood:?}");
    wait("its start", LIMIT, || world.has_tree("n1") && world.has_tree("n2"));
    assert!(now() >= start);
    wait("the record of it", LIMIT, || run(&world, &["show", "r1"], 0).starts_with("r1 active"));
}

#[test]
fn killed_brokers_and_agents_come_back_and_jobs_do_not_notice() {
    let Some(world) = World::new("kill9", 30) else { return };
    run(&world, &[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let short = ["reserve", "--nodes", "n1", "--cpu", "5%", "--for", "6s"];
    run(&world, &short, 0);
    world.kill_broker();
    assert!(world.has_tree("n1") && world.jobs().len() == 3);
    wait("the end of what was short, without a broker", LIMIT, || world.jobs().len() == 2);
    world.start_broker();
    world.wait_for_agents();
    let shown = json(&world.keeptime(&["show", "r1", "--json"]).output().unwrap());
    assert_eq!(shown["state"], "active");
    wait("its end in the record", LIMIT, || {
        run(&world, &["show", "r2"], 0).starts_with("r2 ended")
    });
    assert_eq!(world.jobs().len(), 2);

    world.kill_agent("n1");
    assert!(world.has_tree("n1"), "the kernel goes on");
    world.start_agent("n1");
    world.wait_for_agents();
    assert!(run(&world, &["show", "r1"], 0).starts_with("r1 active"));
    world.kill_broker();
    world.start_broker();
    world.wait_for_agents();
    run(&world, &["cancel", "r1"], 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty() && !world.has_tree("n1"));
}

#[test]
fn what_was_given_back_while_an_agent_was_away_is_withdrawn_when_it_comes_back() {
    let Some(world) = World::new("away", 30) else { return };
    run(&world, &["reserve", "--nodes", "n1", "--cpu", "10%", "--for", "10min"], 0);
    world.kill_agent("n1");
    run(&world, &["cancel", "r1"], 0);
    world.start_agent("n1");
    world.wait_for_agents();
    wait("the withdrawal", LIMIT, || world.jobs().is_empty());
}

#[test]
fn an_agent_that_hangs_longer_than_its_lease_is_given_up_and_taken_back() {
    let Some(world) = World::new("hung", 30) else { return };
    run(&world, &[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let agent = Pid::from_raw(world.agent("n1") as i32);
    kill(agent, Signal::SIGSTOP).unwrap();
    wait("its loss", LIMIT, || run(&world, &["show", "r1"], 0).starts_with("r1 lost"));
    kill(agent, Signal::SIGCONT).unwrap();
    world.wait_for_agents();
    wait("what is lost to be given back", LIMIT, || world.jobs().is_empty());
    run(&world, &[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
}

#[test]
fn a_lab_goes_with_its_broker() {
    let Some(world) = World::new("down", 15) else { return };
    let socket = world.cluster().broker_socket();
    assert!(world.has_broker());
    run(&world, &["lab", "down"], 0);
    assert!(world.processes().is_empty(), "{:?}", world.processes());
    assert!(!socket.exists());
}
