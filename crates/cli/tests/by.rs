//! Runs that must be done by a time, on a real lab: planned beside what is reserved, reserved in advance, begun
//! when their time comes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_model::units::Nanos;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use world::{PATIENCE, Program, World, assert_code, said, wait};

/// Ranks that do next to nothing; each has 15 % of a processor at full speed.
const SCRIPT: &str = "sleep 1; echo time 1";

fn run(world: &World, program: &Program, words: &[&str], code: i32) -> Value {
    let output = world.ask("run", program, &[words, &["--json"]].concat()).output().unwrap();
    assert_code(&output, code);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A run that has said that it waits, and what else it says.
fn waiting(world: &World, program: &Program, words: &[&str]) -> (Child, Lines<impl BufRead>) {
    let mut asked = world.ask("run", program, words);
    let mut run = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("asking again for"), "{first}");
    (run, lines)
}

/// Reserves so many per cent of both nodes.
fn reserve(world: &World, percent: &str, span: &str) -> Value {
    let words = ["reserve", "--nodes", "n1,n2", "--cpu", percent, "--for", span, "--json"];
    let output = world.keeptime(&words).output().unwrap();
    assert_code(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn nanos(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

// Goal: the whole way. Method: others have most of the nodes, so that it runs slower; then all of them for a while,
// so that it waits; then all of them for too long.
#[test]
fn a_run_is_slower_or_deferred_or_refused() {
    let Some(world) = World::new("by", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    reserve(&world, "30 %", "600s");
    let slower = run(&world, &program, &["--by", "+120s", "--takes", "20s"], 0);
    let stretch = &slower["plan"];
    // 10 of the 15 % that it takes at full speed.
    assert_eq!(stretch["rate_ppm"], 666_666, "{slower}");
    assert!(nanos(&slower["ended_unix_nanos"]) <= nanos(&slower["by_unix_nanos"]));

    let rest = reserve(&world, "10 %", "10s");
    let deferred = run(&world, &program, &["--by", "+120s", "--takes", "20s"], 0);
    let (from, until) = (&deferred["plan"]["from_unix_nanos"], &rest["until_unix_nanos"]);
    assert_eq!(nanos(from), nanos(until), "{deferred}");
    assert!(nanos(&deferred["ended_unix_nanos"]) >= nanos(until), "{deferred}");

    let refused = run(&world, &program, &["--by", "+20s", "--takes", "60s"], 1);
    assert!(nanos(&refused["earliest_unix_nanos"]) > nanos(&refused["by_unix_nanos"]), "{refused}");
    let words = ["--by", "+20s", "--takes", "60s"];
    let text = said(&world.ask("run", &program, &words).output().unwrap());
    assert!(text.contains("too late") && text.contains("it could be done by"), "{text}");
    wait("what was held for the runs to be given back", PATIENCE, || {
        world.jobs().iter().all(|job| job.assignment.cpu_ppm.get() == 300_000)
    });
}

// Goal: what a run takes is reckoned as the last runs say, not as it was measured once. Method: a program that becomes slower than
// its profile says, planned before and after two runs that were promised a time.
#[test]
fn a_run_by_a_time_has_as_much_longer_as_runs_have_become() {
    let Some(world) = World::new("drift", 40) else { return };
    // Nodes see that, and not what is in /tmp.
    let takes = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let script = format!("sleep $(cat {})", takes.path().display());
    let program = world.program_of_whole_runs(&script, "60 s", &[(5, 4.0)]);
    let length = || {
        let plan = &run(&world, &program, &["--by", "+120s"], 0)["plan"];
        nanos(&plan["to_unix_nanos"]) - nanos(&plan["from_unix_nanos"])
    };
    fs::write(takes.path(), "1").unwrap();
    let before = length();
    fs::write(takes.path(), "4.6").unwrap();
    for _ in 0..2 {
        run(&world, &program, &["--within", "10s"], 0);
    }
    let after = length();
    assert!(after > before + before / 20, "{before} ns, then {after} ns");
}

// Goal: of 40 %, somebody has 20 for good, and a run that has time 15. One that is urgent needs 14: it gets them, the
// first goes slower meanwhile and faster after, which it tells, and both are in time.
#[test]
fn a_run_that_has_time_is_slower_for_one_that_is_urgent() {
    let Some(world) = World::new("way", 40) else { return };
    let script = "for i in $(seq 25); do sleep 1; echo step; done; echo time 1";
    let patient = world.program(script, "60 s", &[(5, 1.0)]);
    reserve(&world, "20 %", "600s");
    let mut asked = world.ask("run", &patient, &["--by", "+180s", "--takes", "60s"]);
    let first = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let share_of = |job: &str, ppm: std::ops::Range<u32>| {
        let jobs = world.jobs();
        let its = jobs.iter().filter(|status| status.assignment.job.as_str() == job);
        its.filter(|status| ppm.contains(&status.assignment.cpu_ppm.get())).count() == 2
    };
    wait("the patient run to begin", PATIENCE, || share_of("r2", 150_000..150_001));
    // What agents have begin together on all nodes, in slices of at least 10 ms.
    let period_of = |job: &str| {
        let jobs = world.jobs();
        let its = jobs.iter().find(|status| status.assignment.job.as_str() == job);
        its.and_then(|status| status.assignment.cpu_period_nanos)
    };
    assert_eq!(period_of("r2"), Some(Nanos::from_millis(80)));

    let urgent = world.program("sleep 4; echo time 1", "60 s", &[(5, 1.0)]);
    let words = ["--by", "+35s", "--takes", "28s", "--json"];
    let mut asked = world.ask("run", &urgent, &words);
    let second = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("the patient run to be slower", PATIENCE, || share_of("r2", 1..100_000));
    assert_eq!(period_of("r2"), Some(Nanos::from_millis(80)), "slower, and together as before");
    let output = second.wait_with_output().unwrap();
    assert_code(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nanos(&told["ended_unix_nanos"]) <= nanos(&told["by_unix_nanos"]), "{told}");
    let output = first.wait_with_output().unwrap();
    assert_code(&output, 0);
    let text = said(&output);
    for expected in [
        "from now on, 15 % until now",
        "r2: 15 % of each node's CPU from now on",
        "before its deadline",
    ] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
    let history = world.run(&["why", "r2", "--json"], 0);
    let history: Value = serde_json::from_str(&history).unwrap();
    let shares = history["records"].as_array().unwrap().iter();
    let shares: Vec<_> = shares
        .filter_map(|happened| {
            happened["event"]["modified"]["modified"]["grant"]["cpu_ppm"].as_u64()
        })
        .collect();
    assert!(shares[0] < 100_000 && shares.last() == Some(&150_000), "{shares:?}");
}

// Goal: a run whose deadline leaves no room for a lower share to its end makes way for somebody short all the same, and what it
// was promised to have after that is had though the broker is dead by then. Method: it needs three quarters of what it has;
// others get all but a third of that for twelve seconds.
#[test]
fn a_run_makes_way_for_a_while_and_its_nodes_make_up_for_that() {
    let Some(world) = World::new("dip", 40) else { return };
    let script = "for i in $(seq 30); do sleep 1; done; echo time 1";
    let patient = world.program(script, "60 s", &[(5, 1.0)]);
    reserve(&world, "20 %", "600s");
    let mut asked = world.ask("run", &patient, &["--by", "+58s", "--takes", "40s", "--json"]);
    let run = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let shares = || -> Vec<u32> {
        let jobs = world.jobs();
        let its = jobs.iter().filter(|status| status.assignment.job.as_str() == "r2");
        its.map(|status| status.assignment.cpu_ppm.get()).collect()
    };
    wait("the run to begin", PATIENCE, || shares() == [150_000; 2]);
    reserve(&world, "15 %", "12s");
    assert!(shares().iter().all(|share| *share <= 50_000), "{:?}", shares());
    let shown = world.run(&["show", "r2"], 0);
    assert!(shown.contains(", 15 % from "), "{shown}");
    world.kill_broker();
    wait("the run to have its share again", PATIENCE, || shares() == [150_000; 2]);
    world.start_broker();
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nanos(&told["ended_unix_nanos"]) <= nanos(&told["by_unix_nanos"]), "{told}");
}

// Goal: a run that was to begin later begins when there is room, and tells that. Method: others have all of the nodes for two
// minutes, and give them back as soon as it has its time.
#[test]
fn a_run_that_is_to_begin_later_begins_when_there_is_room() {
    let Some(world) = World::new("sooner", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    let all = reserve(&world, "40 %", "120s");
    let mut asked = world.ask("run", &program, &["--by", "+240s", "--takes", "20s"]);
    let mut run = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("r2: "), "{first}");
    world.run(&["cancel", "r1"], 0);
    let told: Vec<_> = lines.map(|line| line.unwrap()).collect();
    assert!(run.wait().unwrap().success(), "{told:?}");
    let has = |words: &str| told.iter().any(|line| line.contains(words));
    assert!(has("there is room, so it begins") && has("before its deadline"), "{told:?}");
    let found: Value = serde_json::from_str(&world.run(&["show", "r2", "--json"], 0)).unwrap();
    assert!(nanos(&found["from_unix_nanos"]) < nanos(&all["until_unix_nanos"]), "{found}");
}

// Goal: what cannot be promised is run all the same, at once where there is room, and is promised its deadline after all where
// others give back what that takes. Method: others have most of the nodes, and then all of them until they are told not to.
#[test]
fn a_run_that_may_wait_is_run_all_the_same() {
    let Some(world) = World::new("late", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    reserve(&world, "30 %", "600s");
    let late = run(&world, &program, &["--by", "+20s", "--takes", "15s", "--wait", "60s"], 0);
    assert_eq!(late["promised"], false, "{late}");
    assert_eq!(late["course"]["by_unix_nanos"], late["by_unix_nanos"], "{late}");
    assert_eq!(late["plan"]["rate_ppm"], 666_666, "of 15 %, 10 are free: {late}");

    let rest = reserve(&world, "10 %", "600s");
    let words = ["--by", "+40s", "--takes", "15s", "--wait", "60s"];
    let (mut run, lines) = waiting(&world, &program, &words);
    world.run(&["cancel", rest["handle"].as_str().unwrap()], 0);
    let told: Vec<_> = lines.map(|line| line.unwrap()).collect();
    assert!(run.wait().unwrap().success(), "{told:?}");
    assert!(!told.iter().any(|line| line.contains("promised nothing")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("before its deadline")), "{told:?}");
}

// Goal: who is told to stop while it waits was not refused, and says so.
#[test]
fn a_run_that_is_interrupted_while_it_waits_was_not_refused() {
    let Some(world) = World::new("stop", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    reserve(&world, "40 %", "600s");
    let words = ["--by", "+20s", "--takes", "15s", "--wait", "300s"];
    let (run, lines) = waiting(&world, &program, &words);
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 2);
    assert!(said(&output).contains("interrupted"), "{}", said(&output));
    assert_eq!(lines.map_while(Result::ok).collect::<Vec<_>>(), [""; 0]);
}

// Goal: who has waited for long is promised a time, not nothing. Method: others have all of the nodes for 30 s. What takes 4.4 s,
// with the tenth more that is reserved, can be promised within a quarter of what it has waited after 28 s.
#[test]
fn a_run_that_has_waited_is_promised_a_later_time() {
    let Some(world) = World::new("later", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    let rest = reserve(&world, "40 %", "30s");
    let late = run(&world, &program, &["--by", "+5s", "--takes", "4s", "--wait", "60s"], 0);
    assert_eq!(late["promised"], false, "{late}");
    let [by, until] = [&late["promised_by_unix_nanos"], &late["plan"]["to_unix_nanos"]].map(nanos);
    let deadline = nanos(&late["by_unix_nanos"]);
    assert!((deadline + 28_000_000_000..deadline + 34_000_000_000).contains(&by), "{late}");
    assert!(until <= by, "{late}");
    let begins = nanos(&late["plan"]["from_unix_nanos"]);
    assert!(begins >= nanos(&rest["until_unix_nanos"]), "{late}");
}

// Goal: who can wait has the first time at which the goal can be kept, and is told it; who cannot is refused as ever. Method:
// others have most of the nodes for a while.
#[test]
fn a_run_waits_for_room_as_long_as_it_is_told() {
    let Some(world) = World::new("wait", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    let rest = reserve(&world, "30 %", "20s");
    let goal = |wait: &str, code| {
        let output = world.ask("run", &program, &["--within", "60s", "--wait", wait]).output();
        let output = output.unwrap();
        assert_code(&output, code);
        said(&output)
    };
    let refused = goal("100ms", 1);
    assert!(refused.contains("the same would be admitted from"), "{refused}");
    let waited = goal("60s", 0);
    assert!(waited.contains("waiting") && waited.contains("actual: "), "{waited}");
    let listed: Value = serde_json::from_str(&world.run(&["list", "--all", "--json"], 0)).unwrap();
    let starts = listed.as_array().unwrap().iter().map(|found| nanos(&found["from_unix_nanos"]));
    assert!(starts.max() >= Some(nanos(&rest["until_unix_nanos"])), "{listed}");
    // Who need not wait is told that it was not long.
    let at_once = run(&world, &program, &["--within", "60s", "--wait", "60s"], 0);
    assert!((1..60_000_000_000).contains(&nanos(&at_once["waited_nanos"])), "{at_once}");
}

// Goal: room that nobody knew of beforehand goes to who waits for it. Method: others have the nodes for longer than anybody
// waits, and give them back.
#[test]
fn a_run_waits_for_what_others_give_back() {
    let Some(world) = World::new("back", 40) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    let rest = reserve(&world, "30 %", "1h");
    let mut command = world.ask("run", &program, &["--within", "60s", "--wait", "300s"]);
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    let waits = lines.by_ref().any(|line| line.contains("waiting for what others give back"));
    assert!(waits, "{:?}", run.wait());
    world.run(&["cancel", rest["handle"].as_str().unwrap()], 0);
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(run.wait().unwrap().success(), "{text}");
    assert!(text.contains("room after ") && text.contains("actual: "), "{text}");
}

// Goal: what is planned to be done by a time is not ended before by the time limit of its application, which is that of
// a run at full speed. Method: a limit that is shorter than the run.
#[test]
fn a_run_that_has_time_is_not_ended_by_the_limit_of_one_that_has_not() {
    let Some(world) = World::new("limit", 40) else { return };
    let program = world.program("sleep 5; echo time 1", "3 s", &[(5, 1.0)]);
    let ran = run(&world, &program, &["--by", "+60s", "--takes", "30s"], 0);
    assert!(nanos(&ran["ended_unix_nanos"]) <= nanos(&ran["by_unix_nanos"]), "{ran}");
}

/// A program in the directory in which commands are typed, and no application file.
fn solver(world: &World, script: &str) {
    let path = world.directory.path().join("solver");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

// Goal: a program is done by its time without an application file or a profile, on the fewest of the nodes that were
// stated. Method: what its users type, with the launcher that they are used to.
#[test]
fn a_program_is_run_by_its_words() {
    let Some(world) = World::new("words", 40) else { return };
    solver(&world, "echo solved $1");
    let words = ["run", "--by", "+120s", "--takes", "20s", "-n", "2..8", "--cpu", "30 %"];
    let run = |end: &[&str]| {
        let words = [&words[..], end, &["--", "mpiexec", "./solver", "all"]].concat();
        let output = world.keeptime(&words).output().unwrap();
        assert_code(&output, 0);
        output
    };
    let ran: Value = serde_json::from_slice(&run(&["--json"]).stdout).unwrap();
    assert_eq!(ran["plan"]["nodes"].as_array().unwrap().len(), 2, "{ran}");
    assert_eq!(ran["plan"]["rate_ppm"], 1_000_000, "{ran}");
    assert!(nanos(&ran["ended_unix_nanos"]) <= nanos(&ran["by_unix_nanos"]), "{ran}");
    let text = said(&run(&[]));
    assert_eq!(text.matches("| solved all").count(), 2, "{text}");
    assert!(text.contains("solver on n1, n2 at 100 %"), "{text}");
}

/// A program of 30 steps of a second, which is said to take half of that.
fn slow(world: &World, by: &str, more: &[&str]) -> Command {
    solver(world, "for i in $(seq 30); do sleep 1; echo step; done");
    let words = ["run", "--by", by, "--takes", "15s", "-n", "2", "--cpu", "15 %"];
    world.keeptime(&[&words[..], more, &["--", "./solver"]].concat())
}

// Goal: a program that takes longer than was planned has the time for that until its deadline, also where nobody knows how much
// that is; and no more. Method: one that has time enough, and one that has not.
#[test]
fn a_run_without_a_word_of_its_progress_goes_on_until_its_deadline() {
    let Some(world) = World::new("onward", 40) else { return };
    let output = slow(&world, "+90s", &["--json"]).output().unwrap();
    assert_code(&output, 0);
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nanos(&ran["ended_unix_nanos"]) <= nanos(&ran["by_unix_nanos"]), "{ran}");
    assert!(ran["course"]["work_total"].is_null(), "{ran}");
    let text = said(&output);
    assert!(text.contains("r1 takes longer than was planned: it has 15 %"), "{text}");

    let began = Instant::now();
    let output = slow(&world, "+24s", &["--json"]).output().unwrap();
    assert_code(&output, 2);
    let text = said(&output);
    assert!(text.contains("0 s before its deadline"), "{text}");
    assert!(text.contains("the reservation was lost"), "{text}");
    assert!(began.elapsed() > Duration::from_secs(22), "{text}");
}

// Goal: a program that is slower than was planned has the time that it takes, for which others make way. Method: others, who
// have time, are to have the nodes from then on.
#[test]
fn a_run_that_is_slower_than_planned_has_what_it_takes() {
    let Some(world) = World::new("course", 40) else { return };
    let told = ["--progress", "step", "--work", "60"];
    let mut asked = slow(&world, "+90s", &told);
    let run = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("the run to begin", PATIENCE, || world.jobs().len() == 2);
    let words = ["reserve", "--nodes", "n1,n2", "--cpu", "40 %", "--from", "+18s", "--for", "20s"];
    world.run(&[&words[..], &["--by", "+300s"]].concat(), 0);
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 0);
    let text = said(&output);
    for expected in ["r1 takes longer than was planned: it has 15 %", "before its deadline"] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
}

// Goal: whoever can have no more is told at once when it will be done, and when it is ended. Method: others have the nodes from
// then on, and make way for nobody.
#[test]
fn a_run_that_can_have_no_more_is_told_so_while_it_runs() {
    let Some(world) = World::new("short", 40) else { return };
    let told = ["--progress", "step", "--work", "60"];
    let mut asked = slow(&world, "+25s", &told);
    let mut run = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait("the run to begin", PATIENCE, || world.jobs().len() == 2);
    let words = ["reserve", "--nodes", "n1,n2", "--cpu", "40 %", "--from", "+18s", "--for", "600s"];
    world.run(&words, 0);
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("has no more")).unwrap();
    for expected in ["after its deadline", "it is ended at", "CPU of n1"] {
        assert!(line.contains(expected), "{line} should contain {expected}");
    }
    assert!(run.try_wait().unwrap().is_none(), "it runs still");
    let views: Value = serde_json::from_str(&world.run(&["top", "--json"], 0)).unwrap();
    let view = &views[0];
    assert!(nanos(&view["expected_end_unix_nanos"]) > nanos(&view["by_unix_nanos"]), "{view}");
    assert!(view["refusal"].as_str().unwrap().contains("CPU of n1"), "{view}");
    let table = world.run(&["top", "--once"], 0);
    assert!(table.contains("expected end") && table.contains(" of 60 "), "{table}");
    let rest: Vec<_> = lines.collect();
    assert_eq!(run.wait().unwrap().code(), Some(2), "{rest:?}");
}

// Goal: a run at a rate has as much more time than at full speed, for which its limit is. Method: a limit that is
// shorter than the run, and longer at its rate.
#[test]
fn a_run_at_a_rate_is_not_ended_by_the_limit_of_full_speed() {
    let Some(world) = World::new("slow", 40) else { return };
    solver(&world, "sleep 6");
    let words = ["run", "--rate", "10 %", "-n", "2", "--cpu", "30 %", "--limit", "4s", "--json"];
    let words = [&words[..], &["--", "mpiexec", "./solver"]].concat();
    let output = world.keeptime(&words).output().unwrap();
    assert_code(&output, 0);
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nanos(&ran["actual_nanos"]) > 6_000_000_000, "{ran}");
    assert_eq!(ran["rate"]["application"], "solver", "{ran}");
}

// Goal: who makes a run slower gives it the time that it takes then, and it is told. Method: one that sleeps for longer than
// its limit at its first rate, and for less than at the second.
#[test]
fn a_run_that_is_made_slower_has_as_much_more_time() {
    let Some(world) = World::new("slower", 40) else { return };
    solver(&world, "sleep 14");
    let words = ["run", "--rate", "50 %", "-n", "2", "--cpu", "30 %", "--limit", "6s", "--json"];
    let words = [&words[..], &["--", "./solver"]].concat();
    let mut asked = world.keeptime(&words);
    let child = asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let view = || -> Value {
        let views: Value = serde_json::from_str(&world.run(&["top", "--json"], 0)).unwrap();
        views[0].clone()
    };
    wait("the run to be steered", PATIENCE, || !view()["reservation"].is_null());
    let first = view();
    assert_eq!(nanos(&first["limit_nanos"]), 12_000_000_000, "{first}");
    let job = first["reservation"].as_str().unwrap();
    let text = world.run(&["rate", "set", job, "10 %"], 0);
    assert!(text.contains("is ended when it has run for"), "{text}");
    let slower = nanos(&view()["limit_nanos"]);
    assert!(slower > 12_000_000_000, "{slower}");
    world.run(&["rate", "set", job, "50 %"], 0);
    assert_eq!(nanos(&view()["limit_nanos"]), slower, "a higher rate takes no time away");
    let output = child.wait_with_output().unwrap();
    assert_code(&output, 0);
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(nanos(&ran["actual_nanos"]) > 14_000_000_000, "{ran}");
}

#[test]
fn words_that_make_no_deadline_are_named() {
    let Some(world) = World::new("noby", 20) else { return };
    let program = world.program(SCRIPT, "60 s", &[(5, 1.0)]);
    let cases: [(&[&str], &str); 5] = [
        (&["--by", "yesterday"], "by: \"yesterday\""),
        (&["--by", "+1h"], "takes"),
        (&["--by", "+1h", "--takes", "1s", "--nodes", "3..8"], "one that the profile has: 2"),
        (&["--by", "+1h", "--rate", "30 %"], "--rate"),
        (&["--within", "1s", "--nodes", "2..8"], "a range goes with --by"),
    ];
    for (words, expected) in cases {
        let output = world.ask("run", &program, words).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {text} should contain {expected}");
    }
}
