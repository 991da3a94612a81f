//! Reservations on a real lab: from the command line to the kernel of every node and back, and what
//! lasts when the broker or an agent is killed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::clock::now;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::units::WallTime;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};
use world::sending::Sending;
use world::{PAIR, World, assert_code, json, said, wait};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_reservation_is_enforced_by_every_kernel_until_it_is_given_back() {
    let Some(world) = World::new("resv", 30) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min"]].concat();
    let text = world.run(&[&reserve[..], &["--name", "solver"]].concat(), 0);
    assert!(text.starts_with("r1 active, root for solver, "), "{text}");
    assert!(world.run(&["timeline"], 0).contains("r1 root solver n1 n2 "));
    for node in ["n1", "n2"] {
        assert!(world.has_tree(node), "the kernel of {node} enforces it");
    }
    let statuses = world.statuses();
    assert!(statuses.iter().all(|status| World::promised(status) == 20_000_000), "{statuses:?}");
    assert!(world.run(&["nodes"], 0).contains("enforces now or soon: r1"));
    assert!(world.run(&["links"], 0).contains("20 Mbit/s of"));

    let refused = world.run(&["reserve", "--nodes", "2", "--cpu", "25%", "--for", "1min"], 1);
    assert!(refused.contains("would be admitted from"), "{refused}");
    let waits = ["reserve", "--nodes", "2", "--cpu", "25%", "--for", "1min", "--wait", "2s"];
    let waits = world.keeptime(&[&waits[..], &["--json"]].concat()).output().unwrap();
    assert_code(&waits, 1);
    let told = json(&waits);
    assert!(told["waited_nanos"].as_u64().unwrap() >= 2_000_000_000, "{told}");
    let told = String::from_utf8_lossy(&waits.stderr);
    assert!(told.contains("waits for room, place 1 in line, until "), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    let wider = world.run(&["modify", "r1", "--rate", "30 Mbit/s"], 0);
    assert!(wider.contains("root for solver, "), "{wider}");
    assert!(wider.contains("30 Mbit/s for each flow"), "{wider}");
    wait("the wider class", LIMIT, || {
        world.statuses().iter().all(|status| World::promised(status) == 30_000_000)
    });
    world.run(&["cancel", "r1"], 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty());
    wait("the end of its classes", LIMIT, || !world.has_tree("n1") && !world.has_tree("n2"));
    let why = world.run(&["why", "r1"], 0);
    for word in ["granted to root for solver", "started", "changed by root", "cancelled by root"] {
        assert!(why.contains(word), "{word} in {why}");
    }
}

#[test]
fn what_is_spare_is_used_until_somebody_reserves_it() {
    let Some(world) = World::of("spare", &["--nodes", "3"], 30, None) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min", "--spare"]].concat();
    let text = world.run(&reserve, 0);
    assert!(text.contains("20 Mbit/s for each flow (pairs), and what is spare"), "{text}");
    // What the flow from the first node to the second may use, by its agent.
    let up_to = || {
        let jobs = world.statuses().remove(0).jobs;
        let job = jobs.iter().find(|job| job.assignment.job.as_str() == "r1").unwrap();
        job.assignment.flows[0].limit().get()
    };
    wait("all of the link", LIMIT, || up_to() == World::reservable());
    let status = world.run(&["lab", "status"], 0);
    assert!(status.contains("premium 20 Mbit/s (up to 97 Mbit/s now)"), "{status}");

    let other = ["reserve", "--nodes", "n3,n2", "--pattern", "0>1", "--rate", "50 Mbit/s"];
    world.run(&[&other[..], &["--cpu", "10%", "--for", "10min"]].concat(), 0);
    // Before that was answered.
    assert_eq!(up_to(), World::reservable() - 50_000_000);
    world.run(&["cancel", "r2"], 0);
    wait("all of the link again", LIMIT, || up_to() == World::reservable());
    world.run(&["modify", "r1", "--spare=false"], 0);
    assert_eq!(up_to(), 20_000_000);
}

// Goal: bandwidth alone is reserved, enforced and told, beside one who has all of the CPU, and what sends by it has CPU all
// the same; nothing at all is no reservation. Method: a job that sends as much as it can.
#[test]
fn bandwidth_is_reserved_without_cpu() {
    let Some(world) = World::new("flows", 30) else { return };
    let flows = ["reserve", "--nodes", "n1,n2", "--pattern", "0>1", "--rate", "20 Mbit/s"];
    let text = world.run(&[&flows[..], &["--for", "10min"]].concat(), 0);
    assert!(text.ends_with(": n1 n2, 20 Mbit/s for each flow (0>1)\n"), "{text}");
    let all = ["reserve", "--nodes", "n1,n2", "--cpu", "30%", "--for", "10min"];
    assert!(world.run(&all, 0).starts_with("r2 active, "));
    let quiet = world.keeptime(&[&all[..], &["--quiet"]].concat()).output().unwrap();
    assert_code(&quiet, 1);
    assert!(quiet.stdout.is_empty(), "a script takes it for a handle: {}", said(&quiet));
    assert!(said(&quiet).contains("refused: CPU of n1 lacks 30 %"), "{}", said(&quiet));
    let mut sending = Sending::start(&world, "r1");
    let before = Instant::now();
    let sent = || world.jobs()[0].flows[0].sent_bytes.get();
    let first = sent();
    std::thread::sleep(Duration::from_secs(2));
    let rate = 8.0 * (sent() - first) as f64 / before.elapsed().as_secs_f64();
    assert!(rate < 21_000_000.0, "{rate} bit/s of 20 Mbit/s");
    sending.assert_undisturbed();
    let status = world.run(&["lab", "status"], 0);
    assert!(status.contains("r1: no CPU reserved, 1 processes, "), "{status}");

    // The agent that follows another finds it as it was.
    world.kill_agent("n1");
    world.start_agent("n1");
    sending.assert_undisturbed();
    let more = world.run(&["modify", "r1", "--cpu", "5%"], 1);
    assert!(more.contains("CPU of n1 lacks 5 %"), "{more}");
    world.run(&["cancel", "r2"], 0);
    assert!(
        world.run(&["modify", "r1", "--cpu", "5%"], 0).contains("5 % of a CPU each, 20 Mbit/s")
    );
    let nothing = world.run(&["reserve", "--nodes", "2"], 64);
    assert!(nothing.contains("cpu is missing; expected something to reserve"), "{nothing}");
}

// Goal: what is said to keep a share comes to the agents, and stays when something else is changed; where it does not
// serve, it is refused with what does, and nothing changes. Method: each of them, as the node's agent found out.
#[test]
fn what_keeps_a_share_is_said_or_refused_where_it_does_not_serve() {
    let Some(world) = World::new("means", 30) else { return };
    let found = world.statuses().remove(0).capabilities.unwrap();
    let told = || {
        let jobs = world.statuses().remove(0).jobs;
        jobs.iter().map(|job| job.assignment.cpu_mechanism).collect::<Vec<_>>()
    };
    let share = ["--nodes", "n1", "--cpu", "5%", "--for", "10min", "--mechanism"];
    for mechanism in CpuMechanism::EACH {
        let name = mechanism.to_string();
        let reserve = [&["reserve"], &share[..], &[name.as_str()]].concat();
        if !found.keeps_by(mechanism) {
            let refused = world.run(&reserve, 1);
            let expected = format!("n1 keeps no share of the CPU by {name}, but by ");
            assert!(refused.contains(&expected) && told().is_empty(), "{refused}");
            continue;
        }
        let granted = world.run(&reserve, 0);
        assert!(granted.contains(&format!("5 % of a CPU each by {name}")), "{granted}");
        assert_eq!(told(), [mechanism]);
        let handle = granted.split(' ').next().unwrap();
        world.run(&["modify", handle, "--cpu", "6%"], 0);
        assert_eq!(told(), [mechanism], "another share is kept in the same way");
        world.run(&["cancel", handle], 0);
        wait("the end of it", LIMIT, || told().is_empty());
    }
    let unknown = world.run(&[&["reserve"], &share[..], &["edf"]].concat(), 64);
    assert!(unknown.contains("auto, bandwidth, deadline or user-level"), "{unknown}");
}

#[test]
fn what_begins_later_is_told_to_agents_at_once_and_enforced_from_its_start_on() {
    let Some(world) = World::new("ahead", 30) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--from", "+3s", "--for", "10min"]].concat();
    let text = world.run(&reserve, 0);
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
    wait("the record of it", LIMIT, || world.run(&["show", "r1"], 0).starts_with("r1 active"));
}

#[test]
fn runs_in_a_reservation_wait_for_it_and_leave_it_to_its_owner() {
    let Some(world) = World::new("in", 30) else { return };
    let program = world.program("echo time 1.5", "60 s", &[(5, 2.0), (20, 1.0)]);
    assert_code(&world.ask("register", &program, &[]).output().unwrap(), 0);
    let goal = ["--app", "say", "--within", "60s"];
    world.run(&[&["reserve"], &goal[..], &["--from", "+6s", "--for", "10min"]].concat(), 0);
    let waited = world.ask("run", &program, &["--in", "r1"]).output().unwrap();
    assert_code(&waited, 0);
    let text = said(&waited);
    assert!(text.contains("r1 begins at"), "{text}");
    assert!(text.contains("with its reservation, 50 % later than promised"), "{text}");
    let again = world.ask("run", &program, &["--in", "r1", "--json"]).output().unwrap();
    assert_eq!(json(&again)["reservation"], "r1");
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"), "it is kept");
    let why = world.run(&["why", "r1"], 0);
    assert_eq!(why.matches("a run with it took 1.5 s").count(), 2, "{why}");

    world.run(&["cancel", "r1"], 0);
    let over = said(&world.ask("run", &program, &["--in", "r1"]).output().unwrap());
    assert!(over.contains("r1 is cancelled"), "{over}");
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let other = said(&world.ask("run", &program, &["--in", "r2"]).output().unwrap());
    assert!(other.contains("in") && other.contains("reserve --app say"), "{other}");
}

// Goal: whoever waits for a reservation to begin goes on waiting while the broker is away. Method: the broker is killed
// when the run has said that it waits, and is away for several of its looks.
#[test]
fn a_run_waits_for_its_reservation_also_while_the_broker_is_away() {
    let Some(world) = World::new("wait", 30) else { return };
    let program = world.program("echo time 1.5", "60 s", &[(5, 2.0), (20, 1.0)]);
    assert_code(&world.ask("register", &program, &[]).output().unwrap(), 0);
    let goal = ["--app", "say", "--within", "60s"];
    world.run(&[&["reserve"], &goal[..], &["--from", "+20s", "--for", "10min"]].concat(), 0);
    let mut command = world.ask("run", &program, &["--in", "r1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("r1 begins at"), "{first}");
    world.kill_broker();
    std::thread::sleep(Duration::from_secs(1));
    world.start_broker();
    let rest = lines.map(Result::unwrap).collect::<Vec<_>>().join("\n");
    assert_code(&run.wait_with_output().unwrap(), 0);
    assert!(rest.contains("with its reservation, 50 % later than promised"), "{rest}");
}

#[test]
fn killed_brokers_and_agents_come_back_and_jobs_do_not_notice() {
    let Some(world) = World::new("kill9", 30) else { return };
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let short = ["reserve", "--nodes", "n1", "--cpu", "5%", "--for", "10s"];
    world.run(&short, 0);
    world.kill_broker();
    assert!(world.has_tree("n1") && world.jobs().len() == 3);
    wait("the end of what was short, without a broker", LIMIT, || world.jobs().len() == 2);
    world.start_broker();
    world.wait_for_agents();
    let shown = json(&world.keeptime(&["show", "r1", "--json"]).output().unwrap());
    assert_eq!(shown["state"], "active");
    wait("its end in the record", LIMIT, || world.run(&["show", "r2"], 0).starts_with("r2 ended"));
    assert_eq!(world.jobs().len(), 2);

    world.kill_agent("n1");
    assert!(world.has_tree("n1"), "the kernel goes on");
    world.start_agent("n1");
    world.wait_for_agents();
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 active"));
    world.kill_broker();
    world.start_broker();
    world.wait_for_agents();
    world.run(&["cancel", "r1"], 0);
    wait("the end of it", LIMIT, || world.jobs().is_empty() && !world.has_tree("n1"));
}

/// The agent is killed at moments spread over the time that a reservation takes from the question to
/// the answer, so that some fall into the middle of what it tells the kernel.
#[test]
fn an_agent_that_is_killed_while_it_applies_leaves_all_or_nothing() {
    const MOMENTS: u32 = 12;
    let Some(world) = World::new("torn", 30) else { return };
    let reserve = [&["reserve"], &PAIR[..], &["--for", "10min", "--json"]].concat();
    let begin = Instant::now();
    let first = json(&world.keeptime(&reserve).output().unwrap());
    let takes = begin.elapsed();
    let give_back = |id: &Value| {
        world.run(&["cancel", id.as_str().unwrap()], 0);
    };
    give_back(&first["handle"]);
    let is_idle =
        || world.jobs().is_empty() && ["n1", "n2"].iter().all(|node| !world.has_tree(node));
    wait("the end of the first", LIMIT, is_idle);
    for moment in 0..MOMENTS {
        let asking = world.keeptime(&reserve).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(takes * moment / MOMENTS);
        world.kill_agent("n1");
        world.start_agent("n1");
        let answer = asking.wait_with_output().unwrap();
        world.wait_for_agents();
        match answer.status.code() {
            Some(0) => {
                wait("all of it", LIMIT, || {
                    world.jobs().len() == 2 && world.has_tree("n1") && world.has_tree("n2")
                });
                give_back(&json(&answer)["handle"]);
            }
            Some(1) => {}
            _ => panic!("moment {moment}: {}", said(&answer)),
        }
        wait("nothing to be left", LIMIT, is_idle);
    }
}

#[test]
fn what_was_given_back_while_an_agent_was_away_is_withdrawn_when_it_comes_back() {
    let Some(world) = World::new("away", 30) else { return };
    world.run(&["reserve", "--nodes", "n1", "--cpu", "10%", "--for", "10min"], 0);
    world.kill_agent("n1");
    world.run(&["cancel", "r1"], 0);
    world.start_agent("n1");
    world.wait_for_agents();
    wait("the withdrawal", LIMIT, || world.jobs().is_empty());
}

#[test]
fn an_agent_that_hangs_longer_than_its_lease_is_given_up_and_taken_back() {
    let Some(world) = World::new("hung", 30) else { return };
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let agent = Pid::from_raw(world.agent("n1") as i32);
    kill(agent, Signal::SIGSTOP).unwrap();
    wait("its loss", LIMIT, || world.run(&["show", "r1"], 0).starts_with("r1 lost"));
    kill(agent, Signal::SIGCONT).unwrap();
    world.wait_for_agents();
    wait("what is lost to be given back", LIMIT, || world.jobs().is_empty());
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
}

#[test]
fn a_lab_goes_with_its_broker() {
    let Some(world) = World::new("down", 15) else { return };
    let socket = world.broker_socket();
    assert!(world.has_broker());
    world.run(&["lab", "down"], 0);
    assert!(world.processes().is_empty(), "{:?}", world.processes());
    assert!(!socket.exists());
}

#[test]
fn a_lab_of_sixteen_nodes_is_made_told_used_and_removed() {
    let Some(world) = World::of("many", &["--nodes", "16"], 5, None) else { return };
    let status = json(&world.keeptime(&["lab", "status", "--json"]).output().unwrap());
    let agents = status["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 16);
    let idle = Value::Array(Vec::new());
    assert!(agents.iter().all(|agent| agent["status"]["jobs"] == idle), "{status}");
    let all = ["reserve", "--nodes", "16", "--pattern", "hypercube", "--rate", "1 Mbit/s"];
    let text = world.run(&[&all[..], &["--cpu", "1%", "--for", "10min"]].concat(), 0);
    assert!(text.starts_with("r1 active, "), "{text}");
    assert_eq!(world.jobs().len(), 16);
    assert!(world.statuses().iter().all(|status| World::promised(status) == 4_000_000));
    world.run(&["lab", "down"], 0);
    assert!(world.processes().is_empty(), "{:?}", world.processes());
}
