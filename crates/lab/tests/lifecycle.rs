//! Labs come and go, also when they are killed at any moment, and nothing of them stays.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HAND, RATE, World, leftovers, output, processes_of, wait_for};
use keeptime_lab::{Exec, LabError, LabState, Spec};
use keeptime_linux::process::Identity;
use keeptime_model::name::Name;
use keeptime_model::units::CpuPpm;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn sigkill(pid: i32) {
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn a_lab_of_four_nodes_stands_and_goes_without_a_trace() {
    let Some(world) = World::new() else { return };
    let lab = world.up(4, 8);
    let status = lab.status();
    assert_eq!(status.not_enforced, Vec::<String>::new());
    assert!(status.nodes.iter().all(|node| node.cpu_nanos.is_some()));

    let sh = |node: &str, line: &str| output(&lab, Exec::shell(node, [line]));
    assert_eq!(sh("n2", "hostname; exit 7"), (Some(7), "n2".into()));
    assert_eq!(sh("10.75.0.3", "echo $KEEPTIME_NODE"), (Some(0), "n3".into()));
    assert_eq!(
        sh("n1", "getent hosts n4").1.split_whitespace().collect::<Vec<_>>(),
        ["10.75.0.4", "n4"]
    );
    assert_eq!(sh("n1", "ls /tmp/secret || echo > /tmp/secret; ls /sys/class/net").0, Some(0));
    assert_ne!(sh("n2", "test -e /tmp/secret").0, Some(0), "another node sees its /tmp");
    assert_eq!(sh("n1", "ls /sys/class/net").1, "eth0\nlo");
    assert_eq!(sh("n1", "test \"$(cat /proc/1/comm)\" = keeptime-lab-ha").0, Some(0));
    let group = format!("/keeptime/_lab.{}/n3/_rest", lab.name());
    let groups = sh("n3", "cat /proc/self/cgroup").1;
    assert!(groups.lines().filter(|line| line.ends_with(&group)).count() >= 1, "{groups}");
    // Nobody waits for it: process 1 must, and `down` must end it.
    lab.spawn(Exec::shell("n4", ["sleep 1000 & sleep 1000 &"])).unwrap().wait().unwrap();
    world.down(&lab);
    assert!(!world.labs.runtime().exists());
}

#[test]
fn two_labs_do_not_see_each_other() {
    let Some(world) = World::new() else { return };
    let (one, two) = (world.up(2, 5), world.up(2, 5));
    let again = Spec::star(one.name().clone(), 1, RATE, CpuPpm::from_percent(1)).unwrap();
    assert!(matches!(world.labs.up(&again), Err(LabError::Exists { .. })));
    assert_eq!(one.topology().nodes()[0].address, two.topology().nodes()[0].address);
    assert_ne!(
        one.network("n1").unwrap().inode(),
        two.network("n1").unwrap().inode(),
        "the same namespace"
    );
    world.down(&one);
    assert_eq!(two.status().state, LabState::Up);
    assert_eq!(output(&two, Exec::shell("n1", ["hostname"])).1, "n1");
    world.down(&two);
    let error = world.labs.down(one.name()).unwrap_err().to_string();
    assert!(error.contains("there is no lab called") && error.contains("none at all"), "{error}");
}

#[test]
fn cpu_is_not_given_twice() {
    let Some(world) = World::new() else { return };
    let processors = std::thread::available_parallelism().unwrap().get() as u32;
    let most = 100 * processors - 30;
    let spec =
        |percent| Spec::star(world.name("cpu"), 1, RATE, CpuPpm::from_percent(percent)).unwrap();
    let error = world.labs.up(&spec(most + 1)).unwrap_err().to_string();
    assert!(error.contains(&format!("at most {most} % together")), "{error}");
    let lab = world.labs.up(&spec(most)).unwrap();
    let error = world.labs.up(&spec(1)).unwrap_err().to_string();
    assert!(error.contains("for other labs"), "{error}");
    world.down(&lab);
}

#[test]
fn a_killed_holder_takes_everything_with_it() {
    let Some(world) = World::new() else { return };
    let lab = world.up(3, 5);
    let sleeper = lab.spawn(Exec::new("n2", ["sleep", "1000"])).unwrap();
    let (name, none) = ([lab.name().clone()], [].as_slice());
    let listed = || (world.labs.list().unwrap(), world.labs.ended().unwrap());
    assert_eq!(listed(), (name.to_vec(), none.to_vec()));
    sigkill(lab.status().holder_pid.unwrap());
    assert!(!sleeper.wait().unwrap().success());
    wait_for("all processes", || processes_of(lab.name()).is_empty());
    assert_eq!(lab.status().state, LabState::Ended);
    assert_eq!(listed(), (none.to_vec(), name.to_vec()));
    assert!(matches!(lab.spawn(Exec::new("n1", ["true"])), Err(LabError::Ended { .. })));
    let again = Spec::star(lab.name().clone(), 1, RATE, CpuPpm::from_percent(1)).unwrap();
    assert!(matches!(world.labs.up(&again), Err(LabError::Exists { .. })));
    world.down(&lab);
    assert_eq!(listed(), (none.to_vec(), none.to_vec()));
}

// As systems do with the files of users who have logged out, or old ones: all of them, or one by one.
#[test]
fn a_lab_whose_files_are_taken_away_goes_by_itself() {
    let Some(world) = World::new() else { return };
    for takes_all in [true, false] {
        let lab = world.up(2, 5);
        let sleeper = lab.spawn(Exec::new("n2", ["sleep", "1000"])).unwrap();
        match takes_all {
            true => std::fs::remove_dir_all(world.labs.runtime()).unwrap(),
            false => std::fs::remove_file(lab.directory().join("holder.pid")).unwrap(),
        }
        // It is a child of this process: until that has waited for it, the kernel keeps process 1 of its node.
        assert!(!sleeper.wait().unwrap().success());
        let left = || leftovers(world.labs.runtime(), lab.name());
        wait_for("the lab to go by itself", || left().is_empty());
        world.nothing_left(lab.name());
    }
}

#[test]
fn a_crashed_node_is_told_and_the_others_go_on() {
    let Some(world) = World::new() else { return };
    let lab = world.up(3, 5);
    sigkill(lab.status().nodes[1].pid.unwrap());
    wait_for("the crash", || lab.status().state == LabState::Damaged);
    let running: Vec<_> = lab.status().nodes.iter().map(|node| node.pid.is_some()).collect();
    assert_eq!(running, [true, false, true]);
    let error = lab.spawn(Exec::new("n2", ["true"])).unwrap_err().to_string();
    assert!(error.contains("node n2"), "{error}");
    assert_eq!(output(&lab, Exec::shell("n3", ["hostname"])).1, "n3");
    world.down(&lab);
}

fn start_up(world: &World, name: &Name) -> Child {
    Command::new(HAND)
        .args(["up", world.runtime(), name.as_str(), "4", "5 %"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

// Whatever the moment: either the lab stands, or it goes by itself, or `down` removes it.
#[test]
fn an_up_that_is_killed_at_any_moment_leaves_nothing() {
    let Some(world) = World::new() else { return };
    let mut outcomes = [0; 2];
    for millis in [0, 1, 2, 4, 7, 11, 16, 23, 32, 45, 64, 90, 130, 200] {
        let name = world.name("killed");
        let mut up = start_up(&world, &name);
        std::thread::sleep(Duration::from_millis(millis));
        let _ = up.kill();
        let finished = up.wait().unwrap().success();
        outcomes[usize::from(finished)] += 1;
        if !finished && millis % 2 == 0 {
            // The holder has the lock over all labs until it is decided, and `up` looks at what is free under it.
            let most = CpuPpm::from_percent(10_000);
            let refused = world.labs.up(&Spec::star(world.name("other"), 1, RATE, most).unwrap());
            assert!(refused.is_err());
            // It was killed too late, when the lab had been taken, or what stands goes.
            let stands = || {
                let lab = world.labs.open(&name);
                lab.is_ok_and(|lab| lab.status().state == LabState::Up)
            };
            wait_for("the lab to stand or to go by itself", || {
                stands()
                    || leftovers(world.labs.runtime(), &name).is_empty()
                    || world.labs.open(&name).is_err()
                    || processes_of(&name).is_empty()
            });
        }
        match world.labs.down(&name) {
            Ok(_) | Err(LabError::Unknown { .. }) => {}
            Err(error) => panic!("after {millis} ms: {error}"),
        }
        world.nothing_left(&name);
    }
    println!("killed {}, finished before {}", outcomes[0], outcomes[1]);
}

// The holder itself is killed while it builds: `up` tells, and nothing is left.
#[test]
fn a_holder_that_is_killed_while_it_builds_leaves_nothing() {
    let Some(world) = World::new() else { return };
    for millis in [0, 3, 8, 15, 30, 60] {
        let name = world.name("holder");
        let mut up = start_up(&world, &name);
        let written = world.labs.runtime().join("labs").join(name.as_str()).join("holder.pid");
        let mut holder = None;
        wait_for("the holder", || {
            holder =
                std::fs::read_to_string(&written).ok().and_then(|t| t.parse::<Identity>().ok());
            holder.is_some()
        });
        std::thread::sleep(Duration::from_millis(millis));
        if let Some(process) = holder.unwrap().open().unwrap() {
            process.signal(Signal::SIGKILL).unwrap();
        }
        if up.wait().unwrap().success() {
            world.labs.down(&name).unwrap();
        }
        world.nothing_left(&name);
    }
}

#[test]
fn a_process_that_has_the_number_of_a_dead_holder_is_not_killed() {
    let Some(world) = World::new() else { return };
    let lab = world.up(1, 5);
    sigkill(lab.status().holder_pid.unwrap());
    wait_for("the end", || lab.status().state == LabState::Ended);
    let mut innocent = Command::new("sleep").arg("1000").spawn().unwrap();
    let identity = Identity::of(innocent.id() as i32).unwrap().unwrap();
    let older = Identity { start: identity.start - 1, ..identity };
    std::fs::write(lab.directory().join("holder.pid"), format!("{older}\n")).unwrap();
    assert_eq!(lab.status().holder_pid, None);
    world.down(&lab);
    assert!(identity.is_alive(), "it was killed for the number it has");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
}
