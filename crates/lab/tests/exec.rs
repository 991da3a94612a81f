//! Programs on nodes behave as if they were started here: input, output, end, signals.

mod common;

use common::{HAND, World, output, processes_of, wait_for};
use keeptime_lab::{Exec, Lab, LabError, Sight};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn hand(world: &World, lab: &Lab, node: &str, kind: &str, command: &[&str]) -> Command {
    let mut hand = Command::new(HAND);
    hand.args(["exec", world.runtime(), lab.name().as_str(), node, kind]).args(command);
    hand
}

#[test]
fn input_output_and_end_are_those_of_the_program() {
    let Some(world) = World::new() else { return };
    let lab = world.up(2, 5);
    let mut cat = hand(&world, &lab, "n1", "plain", &["cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    cat.stdin.take().unwrap().write_all(b"there and back").unwrap();
    let mut text = String::new();
    cat.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), cat.wait().unwrap().code()), ("there and back", Some(0)));

    let code = |kind: &str, command: &[&str]| {
        hand(&world, &lab, "n2", kind, command).status().unwrap().code()
    };
    assert_eq!(code("plain", &["sh", "-c", "exit 42"]), Some(42));
    assert_eq!(code("plain", &["sh", "-c", "kill -9 $$"]), Some(128 + 9));
    // As a launcher of MPI gives it: words that are shell text together.
    assert_eq!(code("shell", &["X=5 ;", "export X ;", "test", "$X", "-eq 5 && exit 9"]), Some(9));
    let missing = lab.spawn(Exec::new("n1", ["no-such-program"])).unwrap_err().to_string();
    assert!(missing.contains("execve of no-such-program"), "{missing}");
    let job = Exec::new("n1", ["true"]).for_job("nobodys".parse().unwrap());
    let error = lab.spawn(job).unwrap_err().to_string();
    assert!(error.contains("a job that is assigned to n1"), "{error}");
    assert!(matches!(lab.spawn(Exec::new("n9", ["true"])), Err(LabError::UnknownNode { .. })));
    world.down(&lab);
}

#[test]
fn a_node_sees_what_was_around_when_its_lab_was_made() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 5);
    let elsewhere = tempfile::tempdir_in("/tmp").unwrap();
    let sight = |path: &Path| lab.sight("n1", path).unwrap();
    assert_eq!(sight(Path::new("/bin/sh")), Sight::Same);
    assert_eq!(sight(lab.directory()), Sight::Same);
    assert_eq!(sight(Path::new("/tmp")), Sight::Another);
    assert_eq!(sight(elsewhere.path()), Sight::Nothing);
    // What is not there yet is seen where it would be.
    assert_eq!(sight(&elsewhere.path().join("picture.png")), Sight::Nothing);
    assert_eq!(sight(&lab.directory().join("picture.png")), Sight::Same);
    assert_eq!(sight(Path::new("/nowhere/at/all")), Sight::Same);
    world.down(&lab);
}

#[test]
fn a_job_is_in_its_group_from_the_first_instruction_on() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 10);
    let group = lab.group(&lab.topology().nodes()[0].name).unwrap().child("job-1").unwrap();
    group.create().unwrap();
    group.set_cpu(keeptime_model::units::CpuPpm::from_percent(5)).unwrap();
    let exec = Exec::shell("n1", ["cat /proc/self/cgroup"]).for_job("job-1".parse().unwrap());
    let (_, groups) = output(&lab, exec);
    let inside = groups.lines().filter(|line| line.ends_with("/n1/job-1")).count();
    assert!(inside >= 1, "{groups}");
    let sleeper = Exec::new("n1", ["sleep", "1000"]).for_job("job-1".parse().unwrap());
    let sleeper = lab.spawn(sleeper).unwrap();
    assert_eq!(group.pids().unwrap(), [sleeper.pid()]);
    assert!(group.id().is_ok_and(|id| id.level >= 4 && id.id > 1));
    group.kill_all().unwrap();
    assert_eq!(sleeper.wait().unwrap().signal(), Some(9));
    assert!(group.cpu_usage().unwrap().get() > 0);
    group.remove().unwrap();
    assert!(lab.group(&lab.topology().nodes()[0].name).is_some(), "the node's own group stays");
    world.down(&lab);
}

#[test]
fn signals_reach_the_program() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 5);
    let line = "trap 'exit 33' TERM; echo ready; while :; do sleep 0.01; done";
    let mut exec = hand(&world, &lab, "n1", "plain", &["sh", "-c", line])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    exec.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    kill(Pid::from_raw(exec.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(exec.wait().unwrap().code(), Some(33));
    world.down(&lab);
}

#[test]
fn a_program_dies_with_who_started_it_only_where_asked() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 5);
    for (kind, seconds) in [("plain", "1001"), ("bound", "1002")] {
        let mut exec = hand(&world, &lab, "n1", kind, &["sleep", seconds]).spawn().unwrap();
        let running = || {
            let is_it = |pid: &i32| {
                let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                words == format!("sleep\0{seconds}\0").as_bytes()
            };
            processes_of(lab.name()).iter().any(is_it)
        };
        wait_for("the program", running);
        exec.kill().unwrap();
        exec.wait().unwrap();
        match kind {
            "bound" => wait_for("its end", || !running()),
            _ => assert!(running(), "nobody asked for its end"),
        }
    }
    world.down(&lab);
}

#[test]
fn a_daemon_is_buried_by_the_node_and_ends_with_it() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 5);
    let name = lab.topology().nodes()[0].name.clone();
    lab.spawn_daemon(Exec::shell("n1", ["exec sleep 1003"])).unwrap();
    let error = lab.spawn_daemon(Exec::new("n1", ["no-such-program"])).unwrap_err().to_string();
    assert!(error.contains("execve of no-such-program"), "{error}");
    let parents = "ps -eo ppid=,args= | grep '[s]leep 1003'";
    assert_eq!(output(&lab, Exec::shell("n1", [parents])).1.trim(), "1 sleep 1003");
    assert_eq!(lab.group(&name).unwrap().pids().unwrap().len(), 2);
    assert_eq!(world.down(&lab), 0, "it ends with the node, and needs no end of its own");
}
