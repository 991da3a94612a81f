//! Labs come and go, also when they are killed at any moment, and nothing of them stays.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{HAND, RATE, World, leftovers, output, processes_of, wait_for};
use keeptime_lab::{Exec, LabError, LabState, Spec};
use keeptime_linux::process::{Identity, Process};
use keeptime_model::name::Name;
use keeptime_model::units::CpuPpm;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::path::PathBuf;
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

/// How far a lab has come that is being made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    /// Its holder has started, and nothing says so yet.
    Unwritten,
    /// Its first node is there.
    Begun,
    /// All of it stands, and who makes it has not taken notice.
    Stands,
}

const POINTS: [Point; 3] = [Point::Unwritten, Point::Begun, Point::Stands];

/// A lab that is being made: `up` is stopped, so that it takes notice of nothing, and its holder waits or goes on.
struct Making<'a> {
    world: &'a World,
    name: Name,
    directory: PathBuf,
    up: Child,
    holder: Process,
}

impl<'a> Making<'a> {
    fn until(world: &'a World, point: Point) -> Self {
        let name = world.name("killed");
        let directory = world.labs.runtime().join("labs").join(name.as_str());
        let up = Command::new(HAND)
            .args(["up-when-told", world.runtime(), name.as_str(), "4", "5 %"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let written = directory.join("waits");
        let mut holder = None;
        wait_for("the holder", || {
            let pid = std::fs::read_to_string(&written).ok().and_then(|text| text.parse().ok());
            holder = pid.and_then(|pid| Identity::of(pid).unwrap()?.open().unwrap());
            holder.is_some()
        });
        let pid = Pid::from_raw(up.id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
        let making = Self { world, name, directory, up, holder: holder.unwrap() };
        making.reach(point);
        making
    }

    fn reach(&self, point: Point) {
        let lab = || self.world.labs.open(&self.name).unwrap();
        if point != Point::Unwritten {
            self.let_go();
        }
        match point {
            Point::Unwritten => {}
            // Besides `up` and the holder.
            Point::Begun => wait_for("its first node", || processes_of(&self.name).len() > 2),
            Point::Stands => wait_for("all of it", || lab().status().state == LabState::Up),
        }
    }

    /// The holder goes on, if it waits.
    fn let_go(&self) {
        std::fs::write(self.directory.join("go"), "").unwrap();
    }

    fn kill_up(&mut self) {
        self.up.kill().unwrap();
        self.up.wait().unwrap();
    }

    fn kill_holder(&self) {
        self.holder.signal(Signal::SIGKILL).unwrap();
        assert!(self.holder.wait(Duration::from_secs(60)).unwrap());
    }

    /// Nothing is left, nor anything to remove.
    fn is_gone(&self) {
        self.world.nothing_left(&self.name);
        let down = self.world.labs.down(&self.name);
        assert!(matches!(down, Err(LabError::Unknown { .. })), "{down:?}");
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        // A test that fails leaves it stopped.
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

// Nobody knows of the lab: it goes by itself, and nobody makes or removes labs until it has.
#[test]
fn a_lab_whose_up_is_killed_goes_by_itself() {
    let Some(world) = World::new() else { return };
    for point in POINTS {
        println!("{point:?}");
        let mut making = Making::until(&world, point);
        assert_eq!(world.labs.ended().unwrap(), [], "it may still come to stand");
        making.kill_up();
        if point == Point::Unwritten {
            making.let_go();
        }
        let most = CpuPpm::from_percent(10_000);
        let other = world.labs.up(&Spec::star(world.name("other"), 1, RATE, most).unwrap());
        assert!(matches!(other, Err(LabError::Invalid(_))), "{other:?}");
        assert!(!making.directory.exists(), "others had their turn before it was gone");
        assert!(making.holder.wait(Duration::from_secs(60)).unwrap());
        making.is_gone();
    }
}

// Whoever makes it says why it does not stand, and has removed it by then.
#[test]
fn a_lab_whose_holder_is_killed_is_removed_by_who_makes_it() {
    let Some(world) = World::new() else { return };
    for point in POINTS {
        println!("{point:?}");
        let mut making = Making::until(&world, point);
        making.kill_holder();
        kill(Pid::from_raw(making.up.id() as i32), Signal::SIGCONT).unwrap();
        assert_eq!(making.up.wait().unwrap().code(), Some(2));
        making.is_gone();
    }
}

// As with a machine that is short of memory. No process is left, no list has it, and what it had is there until `down`.
#[test]
fn a_lab_of_which_all_is_killed_waits_for_down() {
    let Some(world) = World::new() else { return };
    for point in POINTS {
        println!("{point:?}");
        let mut making = Making::until(&world, point);
        making.kill_holder();
        making.kill_up();
        wait_for("all processes", || processes_of(&making.name).is_empty());
        assert_eq!(world.labs.list().unwrap(), []);
        assert_eq!(world.labs.ended().unwrap(), [making.name.clone()]);
        let left = leftovers(world.labs.runtime(), &making.name);
        assert_eq!(left[0], making.directory.display().to_string());
        let are_groups = left[1..].iter().all(|other| other.starts_with("/sys/fs/cgroup"));
        let may_have_groups = point != Point::Unwritten || left.len() == 1;
        assert!(are_groups && may_have_groups, "{left:?}");
        let report = world.labs.down(&making.name).unwrap();
        assert_eq!((report.was_running, report.stragglers), (false, 0));
        making.is_gone();
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
