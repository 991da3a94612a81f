//! Runs that outlive their terminal, on a real lab: what was told before, what goes on, how it is ended, and that nothing
//! is left of what nobody was told of.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use world::{PATIENCE, Program, World, assert_code, json, said, wait};

/// A goal that is kept wherever there is room.
const GOAL: [&str; 3] = ["--within", "60s", "--detach"];
/// Ranks that do next to nothing.
const SHORT: &str = "echo unit; echo time 1";

/// Ranks that work until [`let_end`].
fn lasting(world: &World) -> Program {
    let end = world.directory.path().join("end");
    let script =
        format!("echo unit; until [ -e {} ]; do sleep 0.05; done; echo time 1", end.display());
    world.program(&script, "600 s", &[(5, 1.0)])
}

fn let_end(world: &World) {
    fs::write(world.directory.path().join("end"), "").unwrap();
}

/// What is in a file when the run that adds to it has ended.
fn ended(file: &Path) -> String {
    let text = || fs::read_to_string(file).unwrap_or_default();
    let is_last = |line: &str| line.starts_with("ended ") || line.starts_with("{\"ended");
    wait("the last line", PATIENCE, || {
        let text = text();
        text.ends_with('\n') && text.lines().next_back().is_some_and(is_last)
    });
    text()
}

/// Files of runs for which none was named.
fn usual_files(world: &World) -> Vec<PathBuf> {
    let found = fs::read_dir(world.directory.path()).unwrap().map(|entry| entry.unwrap().path());
    found.filter(|path| path.extension().is_some_and(|end| end == "out")).collect()
}

/// The session and the controlling terminal of a process.
fn session(process: u32) -> (u32, i32) {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[3].parse().unwrap(), fields[4].parse().unwrap())
}

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process as i32), signal).unwrap();
}

// Goal: a run outlives its terminal, and its file says how it ended. Method: the outputs of the command are read until
// nobody has them any more, as ssh does; then its process is looked at, and let end.
#[test]
fn a_run_goes_on_without_its_terminal() {
    let Some(world) = World::new("detach", 40) else { return };
    let before = world.processes();
    let program = lasting(&world);
    let file = world.directory.path().canonicalize().unwrap().join("a.out");
    fs::write(&file, "before\n").unwrap();
    let words = [&GOAL[..], &["--output", "a.out"]].concat();
    let output = world.ask("run", &program, &words).output().unwrap();
    assert_code(&output, 0);
    let text = said(&output);
    for expected in ["r1 goes on without this terminal, as process ", "keeptime cancel r1"] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
    let process = text.split("as process ").nth(1).unwrap().split(';').next().unwrap();
    let process: u32 = process.parse().unwrap();
    assert_eq!(session(process), (process, 0));
    let descriptor = |number: i32| fs::read_link(format!("/proc/{process}/fd/{number}")).unwrap();
    assert_eq!([0, 1, 2].map(descriptor), [PathBuf::from("/dev/null"), file.clone(), file.clone()]);
    world.wait_until_running();
    let_end(&world);
    let text = ended(&file);
    for expected in ["before\n", "  | unit\n", "actual: ", ": done, exit code 0\n"] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
    assert!(!text.contains("goes on"), "what was told there is not told again: {text}");
    world.wait_until_idle(&before, PATIENCE);
    assert!(world.run(&["show", "r1"], 0).starts_with("r1 done, root"));
    let done = world.run(&["list", "--state", "done"], 0);
    assert!(done.lines().nth(1).unwrap().starts_with("r1   done   root  "), "{done}");
}

// Goal: who looks later sees which runs failed, and how. Method: a program that fails, one that takes too long, and one
// whose run is told to stop, which is cancelled.
#[test]
fn a_run_that_did_not_do_its_part_is_told_as_such() {
    let Some(world) = World::new("failed", 40) else { return };
    let before = world.processes();
    let curve = [(5, 1.0)];
    for (script, limit) in [("exit 3", "60 s"), ("echo unit; sleep 600", "2 s")] {
        let program = world.program(script, limit, &curve);
        let output = world.ask("run", &program, &["--within", "60s"]).output().unwrap();
        assert_code(&output, 2);
    }
    let program = lasting(&world);
    let going =
        json(&world.ask("run", &program, &[&GOAL[..], &["--json"]].concat()).output().unwrap());
    world.wait_until_running();
    signal(u32::try_from(going["process"].as_u64().unwrap()).unwrap(), Signal::SIGTERM);
    world.wait_until_idle(&before, PATIENCE);
    let all = world.run(&["list", "--all"], 0);
    let ends =
        [("failed", " exit code 3; "), ("failed", " ended at its limit; "), ("cancelled", "")];
    for ((number, line), (state, how)) in (1..).zip(all.lines().skip(1)).zip(ends) {
        assert!(line.starts_with(&format!("r{number}   {state:<9}  root  ")), "{all}");
        assert!(line.contains(how), "{all}");
    }
    assert_eq!(all.lines().count(), 1 + ends.len(), "{all}");
    assert!(world.run(&["why", "r1"], 0).ends_with("r1 failed (exit code 3): its run is over\n"));
    let shown: Value = serde_json::from_str(&world.run(&["show", "r1", "--json"], 0)).unwrap();
    assert_eq!(shown["run"], serde_json::json!({ "exit-code": 3 }));
}

// Goal: what goes on is ended in order by its reservation, and by its process; its file says so. Method: both, with one
// answer in JSON each, in files for which no name was given.
#[test]
fn a_run_that_goes_on_is_ended_by_its_job_or_its_process() {
    let Some(world) = World::new("ends", 40) else { return };
    let before = world.processes();
    let program = lasting(&world);
    for (by_job, why) in [(true, "the reservation was lost"), (false, "told to stop")] {
        let words = [&GOAL[..], &["--json"]].concat();
        let output = world.ask("run", &program, &words).output().unwrap();
        assert_code(&output, 0);
        let going = json(&output);
        let process = u32::try_from(going["process"].as_u64().unwrap()).unwrap();
        let file = PathBuf::from(going["output"].as_str().unwrap());
        assert_eq!(file.file_name().unwrap().to_str(), Some(&*format!("keeptime-{process}.out")));
        world.wait_until_running();
        match by_job {
            true => drop(world.run(&["cancel", going["reservation"].as_str().unwrap()], 0)),
            false => signal(process, Signal::SIGTERM),
        }
        let text = ended(&file);
        let last: Value = serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
        assert_eq!(last["exit_code"], 2, "{text}");
        assert!(text.contains(why), "{text} should contain {why}");
        world.wait_until_idle(&before, PATIENCE);
        assert_eq!(world.run(&["list"], 0), "nothing is reserved\n");
    }
}

// Goal: what cannot go on is told as ever, and leaves nothing. Method: a goal that cannot be kept; a file that cannot be
// written, for which nobody is asked anything.
#[test]
fn what_does_not_go_on_leaves_nothing() {
    let Some(world) = World::new("refused", 40) else { return };
    let program = world.program(SHORT, "60 s", &[(5, 1.0)]);
    let refused = world.ask("run", &program, &["--within", "1ms", "--detach"]).output().unwrap();
    assert_code(&refused, 1);
    assert_eq!(usual_files(&world), Vec::<PathBuf>::new(), "{}", said(&refused));
    let asked = world.run(&["list", "--all", "--json"], 0);
    let words = [&GOAL[..], &["--output", "none/a.out"]].concat();
    let unwritten = world.ask("run", &program, &words).output().unwrap();
    assert_code(&unwritten, 2);
    assert!(said(&unwritten).contains("--output names another file"), "{}", said(&unwritten));
    assert_eq!(world.run(&["list", "--all", "--json"], 0), asked);
}

// Goal: whoever hangs up before they were told has nothing reserved. Method: a broker that stands still, so that nothing
// can have been told; the command is interrupted, and ended as nothing in it can prevent.
#[test]
fn a_run_that_nobody_was_told_of_ends() {
    let Some(world) = World::new("hangup", 40) else { return };
    let before = world.processes();
    let program = lasting(&world);
    let broker = world.broker_socket().with_file_name("broker.pid");
    let broker = fs::read_to_string(broker).unwrap();
    let broker: u32 = broker.split(' ').next().unwrap().parse().unwrap();
    let file = world.directory.path().join("a.out");
    for (how, code) in [(Signal::SIGINT, Some(2)), (Signal::SIGKILL, None)] {
        signal(broker, Signal::SIGSTOP);
        let mut command = world.ask("run", &program, &[&GOAL[..], &["--output", "a.out"]].concat());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut asked = command.spawn().unwrap();
        wait("the run in its own session", PATIENCE, || file.exists());
        signal(asked.id(), how);
        if how == Signal::SIGKILL {
            assert_eq!(asked.wait().unwrap().code(), None);
        }
        signal(broker, Signal::SIGCONT);
        assert_eq!(asked.wait().unwrap().code(), code, "{how}");
        wait("its file to go", PATIENCE, || !file.exists());
        world.wait_until_idle(&before, PATIENCE);
        assert_eq!(world.run(&["list"], 0), "nothing is reserved\n", "{how}");
    }
}

// Goal: what waits does so without its terminal: for room, and in a reservation of before, which is kept. Method: others
// have the nodes, and give them back.
#[test]
fn a_run_waits_without_its_terminal() {
    let Some(world) = World::new("waits", 40) else { return };
    let program = world.program(SHORT, "60 s", &[(5, 1.0)]);
    let words = ["reserve", "--nodes", "n1,n2", "--cpu", "30 %", "--for", "1h", "--json"];
    let rest = json(&world.keeptime(&words).output().unwrap());
    let file = world.directory.path().join("a.out");
    let words = [&GOAL[..], &["--wait", "300s", "--output", "a.out"]].concat();
    let output = world.ask("run", &program, &words).output().unwrap();
    assert_code(&output, 0);
    let text = said(&output);
    for expected in ["waiting for what others give back", "it waits for room without", "kill "] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
    wait("its place in the list", PATIENCE, || {
        let waits = world.run(&["list", "--state", "waiting"], 0);
        waits.contains("  waiting  root  ") && waits.contains("place 1 in line, until ")
    });
    world.run(&["cancel", rest["handle"].as_str().unwrap()], 0);
    let text = ended(&file);
    for expected in ["room after ", "its reservation is r", "actual: ", "done, exit code 0\n"] {
        assert!(text.contains(expected), "{text} should contain {expected}");
    }
    let words = ["reserve", "--app", "say", "--within", "60s", "--from", "+3s", "--for", "10min"];
    let lent = world.run(&words, 0).split(' ').next().unwrap().to_owned();
    let words = ["--in", &lent, "--detach", "--output", "in.out"];
    let output = world.ask("run", &program, &words).output().unwrap();
    assert_code(&output, 0);
    assert!(said(&output).contains(&format!("{lent} goes on")), "{}", said(&output));
    let text = ended(&file.with_file_name("in.out"));
    assert!(text.contains("actual: ") && text.ends_with("done, exit code 0\n"), "{text}");
    assert!(world.run(&["show", &lent], 0).contains(&format!("{lent} active")));
}

// Goal: runs by a time and at a rate leave their terminal with all that they start, as a controller. Method: a program by
// its words; the command's outputs are read until nobody has them.
#[test]
fn a_program_goes_on_by_a_time_and_at_a_rate() {
    let Some(world) = World::new("goes", 40) else { return };
    let before = world.processes();
    let solver = world.directory.path().join("solver");
    fs::write(&solver, "#!/bin/sh\nuntil [ -e $1 ]; do sleep 0.05; done\n").unwrap();
    fs::set_permissions(&solver, fs::Permissions::from_mode(0o755)).unwrap();
    let end = world.directory.path().join("end");
    for how in [&["--by", "+120s", "--takes", "20s"][..], &["--rate", "50 %"]] {
        let words = ["-n", "2", "--cpu", "30 %", "--detach", "--output", "a.out", "--", "./solver"];
        let words = [&["run"], how, &words[..], &[end.to_str().unwrap()]].concat();
        let output = world.keeptime(&words).output().unwrap();
        assert_code(&output, 0);
        assert!(said(&output).contains("goes on without this terminal"), "{}", said(&output));
        world.wait_until_running();
        let_end(&world);
        let text = ended(&world.directory.path().join("a.out"));
        assert!(text.ends_with("done, exit code 0\n"), "{how:?}: {text}");
        world.wait_until_idle(&before, PATIENCE);
        fs::remove_file(&end).unwrap();
        fs::remove_file(world.directory.path().join("a.out")).unwrap();
    }
}

// Goal: a run that has not left its terminal ends with it, and gives back what it has. Method: what comes when that is closed: a
// shell passes SIGHUP on, and the kernel sends it once more; at the end of a session SIGTERM comes, too.
#[test]
fn a_run_ends_in_order_when_its_terminal_is_closed() {
    let Some(world) = World::new("hup", 40) else { return };
    let before = world.processes();
    let program = lasting(&world);
    let asked = world.ask("run", &program, &["--within", "60s"]);
    // Whatever ran the tests may ignore the signal, and what it starts would.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(asked.get_program()).args(asked.get_args());
    command.env("KEEPTIME_LAB", world.name.as_str()).current_dir(world.directory.path());
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    world.wait_until_running();
    for one in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGHUP] {
        signal(run.id(), one);
    }
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 2);
    assert!(said(&output).contains("told to stop"), "{}", said(&output));
    world.wait_until_idle(&before, PATIENCE);
    assert_eq!(world.run(&["list"], 0), "nothing is reserved\n");
}
