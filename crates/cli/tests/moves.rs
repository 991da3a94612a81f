//! An agent hangs for longer than its lease on a real lab: what its node had is lost, and moved or
//! offered elsewhere, as the request or the application says.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use world::{PATIENCE, Program, World, assert_code, json, said, wait};

/// Time = volume / bandwidth.
const CURVE: [(u64, f64); 3] = [(10, 2.0), (20, 1.0), (40, 0.5)];

/// An agent that is alive and silent, until this is dropped.
struct Hung(Pid);

impl Hung {
    fn agent_of(world: &World, node: &str) -> Self {
        let agent = Pid::from_raw(world.agent(node) as i32);
        kill(agent, Signal::SIGSTOP).unwrap();
        Self(agent)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// A program that takes half a second, whose reservations are moved when they are lost; the broker knows it.
fn moving(world: &World) -> Program {
    let program = world.program("echo time 0.5", "20 s", &CURVE);
    program.say("on_loss = \"move\"");
    assert_code(&world.ask("register", &program, &[]).output().unwrap(), 0);
    program
}

/// Whether there is a reservation that begins so when it is shown.
fn is(world: &World, handle: &str, words: &str) -> bool {
    let output = world.keeptime(&["show", handle]).output().unwrap();
    said(&output).starts_with(&format!("{handle} {words}"))
}

fn nodes(world: &World, handle: &str) -> Vec<String> {
    let shown = json(&world.keeptime(&["show", handle, "--json"]).output().unwrap());
    let nodes = shown["grant"]["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node.as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_lost_is_moved_or_offered_as_its_application_says_or_its_request() {
    let Some(world) = World::of("moves", &["--nodes", "3"], 20, None) else { return };
    moving(&world);
    let goal = ["reserve", "--application", "say", "--within", "3s", "--for", "10min"];
    assert!(world.run(&goal, 0).starts_with("r1 active, "));
    let running = world.run(&["move", "r1"], 64);
    assert!(running.contains("one that was lost: it is active"), "{running}");

    let gone = nodes(&world, "r1").remove(0);
    let hung = Hung::agent_of(&world, &gone);
    wait("the loss", PATIENCE, || is(&world, "r1", "lost"));
    wait("the move", PATIENCE, || is(&world, "r2", "active"));
    let there = nodes(&world, "r2");
    assert!(there.len() == 2 && !there.contains(&gone), "{there:?} without {gone}");
    assert!(there.iter().all(|node| world.has_tree(node)), "their kernels enforce it");
    let shown = json(&world.keeptime(&["show", "r2", "--json"]).output().unwrap());
    assert_eq!(shown["replaces"], "r1");
    drop(hung);
    world.wait_for_agents();
    wait("the end of what is lost", PATIENCE, || !world.has_tree(&gone));
    let again = world.run(&["move", "r1"], 0);
    assert!(again.starts_with("r2 active"), "it was moved: {again}");
    world.run(&["cancel", "r2"], 0);

    let offer = [&goal[..], &["--on-loss", "offer"]].concat();
    assert!(world.run(&offer, 0).starts_with("r3 active, "));
    let gone = nodes(&world, "r3").remove(0);
    let hung = Hung::agent_of(&world, &gone);
    wait("the loss", PATIENCE, || is(&world, "r3", "lost"));
    let why = world.run(&["why", "r3"], 0);
    let instead = format!("lost: {gone} went away; instead: ");
    assert!(why.contains(&instead) && why.contains("keeptime move r3 asks for it"), "{why}");
    assert_eq!(world.run(&["list"], 0), "nothing is reserved\n", "unless it is asked for");
    let moved = world.run(&["move", "r3"], 0);
    assert!(moved.starts_with("r4 active"), "{moved}");
    assert!(!nodes(&world, "r4").contains(&gone));
    assert_eq!(world.run(&["move", "r3"], 0), moved, "asked again");
    drop(hung);
    world.wait_for_agents();

    // Why and how is in the record, whatever becomes of the broker.
    world.kill_broker();
    world.start_broker();
    let why = world.run(&["why", "r3"], 0);
    assert!(why.contains("goal: ") && why.contains("6. 1 chosen"), "{why}");

    let stay = world.run(&[&goal[..], &["--on-loss", "stay"]].concat(), 64);
    assert!(stay.contains("offer or move"), "{stay}");
}

#[test]
fn a_run_begins_anew_where_its_reservation_is_moved_to() {
    let Some(world) = World::of("rerun", &["--nodes", "3"], 20, None) else { return };
    // Until it is lost it takes longer than anybody waits.
    let is_lost = world.directory.path().join("is-lost");
    let script = format!("test -e {} || sleep 90; echo time 0.5", is_lost.display());
    let program = world.program(&script, "100 s", &CURVE);
    program.say("on_loss = \"move\"");
    let mut command = world.ask("run", &program, &["--within", "3s"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    world.wait_until_running();
    let gone = nodes(&world, "r1").remove(0);
    let hung = Hung::agent_of(&world, &gone);
    wait("the loss", PATIENCE, || is(&world, "r1", "lost"));
    std::fs::write(&is_lost, "").unwrap();
    let output = running.wait_with_output().unwrap();
    assert_code(&output, 0);
    let (told, lost) = (said(&output), format!("lost: {gone} went away"));
    for words in [lost.as_str(), "begins anew as r2", "actual: 500 ms"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    drop(hung);
    world.wait_for_agents();
    wait("the end of all jobs", PATIENCE, || world.jobs().is_empty());
}

/// A run that ends well though an agent of what it waits for hangs from then on, until that is lost; what that was.
fn lost_before_it_began(world: &World, mut run: Command) -> String {
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    let waits = lines.by_ref().find_map(|line| Some(line.split_once(" begins at")?.0.to_owned()));
    let handle = waits.unwrap();
    let _hung = Hung::agent_of(world, &nodes(world, &handle)[0]);
    wait("the loss", PATIENCE, || is(world, &handle, "lost"));
    let told = lines.collect::<Vec<_>>().join("\n");
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 0);
    let lost = format!("{handle} was lost before it began");
    for words in [lost.as_str(), "begins anew as r", "actual: 500 ms"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    handle
}

// Goal: who waits for a reservation has what takes its place, where it is lost before it begins. Method: one of before, which stays,
// and one that there is room for later.
#[test]
fn a_run_that_waits_begins_where_its_reservation_is_moved_to() {
    let Some(world) = World::of("await", &["--nodes", "3"], 20, None) else { return };
    let program = moving(&world);
    let goal = ["reserve", "--app", "say", "--within", "3s", "--for", "10min", "--from", "+25s"];
    assert!(world.run(&goal, 0).starts_with("r1 granted, "));
    let lost = lost_before_it_began(&world, world.ask("run", &program, &["--in", "r1"]));
    assert_eq!(lost, "r1");
    assert!(is(&world, "r2", "active"), "it is kept");
    world.run(&["cancel", "r2"], 0);
    world.wait_for_agents();

    world.run(&["reserve", "--nodes", "n1,n2,n3", "--cpu", "20 %", "--for", "25s"], 0);
    let waits = world.ask("run", &program, &["--within", "3s", "--wait", "60s"]);
    lost_before_it_began(&world, waits);
    world.wait_for_agents();
    wait("the end of all jobs", PATIENCE, || world.jobs().is_empty());
}
