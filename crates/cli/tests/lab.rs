//! Runs on a real lab: promises are reserved, and whatever breaks in the middle is cleaned up.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime::cluster::Cluster;
use keeptime::files;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_model::application::Parameters;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::units::{BitsPerSecond, Nanos};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A lab of two nodes with an application of the test's own and a profile made by hand.
struct World {
    lab: String,
    directory: tempfile::TempDir,
}

fn keeptime(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

impl World {
    /// Nothing, with the reason printed, where labs cannot enforce or there is no MPI.
    fn new(name: &str, script: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || Mpi::find(Flavour::OpenMpi).is_err() {
            println!("skipped: a lab that enforces needs root and Open MPI");
            return None;
        }
        let lab = format!("t{}-{name}", std::process::id());
        let up = keeptime(&["lab", "up", &lab, "--nodes", "2", "--cpu", "20 %"]).output().unwrap();
        assert!(up.status.success(), "{}", said(&up));
        let world = Self { lab, directory: tempfile::tempdir().unwrap() };
        let application = format!(
            "name = \"script\"\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\npattern = \"pairs\"\n\
             nodes = [2]\ncpu = \"10 %\"\ntimeout = \"4 s\"\ntime = {{ stdout = \"time\" }}\n"
        );
        std::fs::write(world.application(), application).unwrap();
        world.write_profile(|_| {});
        Some(world)
    }

    fn application(&self) -> PathBuf {
        self.directory.path().join("script.toml")
    }

    fn profile(&self) -> PathBuf {
        self.directory.path().join("script.json")
    }

    /// Half a second at 10 Mbit/s, a quarter at 40.
    fn write_profile(&self, change: impl Fn(&mut Profile)) {
        let name: Name = self.lab.parse().unwrap();
        let application =
            files::load_application(self.application().to_str().unwrap(), Flavour::OpenMpi)
                .unwrap();
        let mpi = Mpi::find(Flavour::OpenMpi).unwrap().to_string();
        let conditions = Cluster::open(&name).unwrap().conditions(&application, &mpi);
        let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
        for (mbit, millis) in [(10, 500), (40, 250)] {
            for _ in 0..3 {
                let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
                profile.record(&Parameters::new(), 2, rate, time);
            }
        }
        change(&mut profile);
        files::save_json(&self.profile(), &profile).unwrap();
    }

    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let (application, profile) = (self.application(), self.profile());
        let mut command = keeptime(&[verb, application.to_str().unwrap(), "--lab", &self.lab]);
        command.args(["--profile", profile.to_str().unwrap()]).args(more);
        command
    }

    /// What the agents tell: (jobs, processes of jobs) on all nodes.
    fn jobs(&self) -> (usize, usize) {
        let output = keeptime(&["lab", "status", &self.lab, "--json"]).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let agents = status["agents"].as_array().unwrap();
        let jobs = || agents.iter().flat_map(|a| a["Ok"]["jobs"].as_array().into_iter().flatten());
        let processes = jobs().map(|job| job["processes"].as_array().map_or(0, Vec::len)).sum();
        (jobs().count(), processes)
    }

    /// Waits for a state of the jobs.
    fn wait_for(&self, what: &str, within: u64, is_so: impl Fn((usize, usize)) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(within);
        while !is_so(self.jobs()) {
            assert!(Instant::now() < deadline, "not {what} within {within} s: {:?}", self.jobs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn on_node(&self, command: &str) -> String {
        let output =
            keeptime(&["lab", "exec", &self.lab, "n1", "--", "/bin/sh", "-c", command]).output();
        said(&output.unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = keeptime(&["lab", "down", &self.lab]).output();
    }
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_goal_is_planned_reserved_run_and_compared() {
    let Some(world) = World::new("run", "echo time 0.25") else { return };
    let output = world.command("run", &["--within", "400ms", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["actual_nanos"], 250_000_000);
    assert_eq!(outcome["reserved"], true);
    world.wait_for("given back", 5, |jobs| jobs == (0, 0));
    // A node without reservations carries packets as before: the queue that we leave is no dead end.
    let output = world.command("run", &["--unprotected"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn an_impossible_bound_is_refused_and_its_counter_offer_is_admitted() {
    let Some(world) = World::new("bound", "echo time 0.25") else { return };
    let output = world.command("plan", &["--within", "100ms", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let decision: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let refusal = &decision["verdict"]["refused"];
    assert_eq!(refusal["reason"]["kind"], "too-fast");
    let within = format!("{} ns", refusal["counter_offers"][0]["goal"]["within_nanos"]);
    let output = world.command("plan", &["--within", &within]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_link_slower_than_anything_measured_is_named() {
    let Some(world) = World::new("slow", "echo time 0.25") else { return };
    world.write_profile(|profile| {
        for curve in &mut profile.curves {
            for point in &mut curve.points {
                let rate = point.bandwidth_bits_per_second.checked_mul(100).unwrap();
                point.bandwidth_bits_per_second = rate;
            }
        }
    });
    let output = world.command("plan", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains("too slow") && text.contains("n1 > s1"), "{text}");
}

#[test]
fn a_profile_of_another_cluster_is_refused_with_the_difference() {
    let Some(world) = World::new("other", "echo time 0.25") else { return };
    world.write_profile(|profile| {
        profile.conditions.link_bits_per_second = BitsPerSecond::from_mbit(7);
    });
    let output = world.command("plan", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = said(&output);
    assert!(text.contains("link rate: measured with 7 Mbit/s, here 100 Mbit/s"), "{text}");
}

#[test]
fn what_crashes_hangs_or_says_nothing_is_ended_and_gives_everything_back() {
    let cases = [
        ("crash", "echo no such volume >&2; exit 7", "no such volume"),
        ("hang", "sleep 1000", "took longer than 4 s"),
        ("mute", "true", "without telling its time"),
    ];
    for (name, script, expected) in cases {
        let Some(world) = World::new(name, script) else { return };
        let output = world.command("run", &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
        assert!(said(&output).contains(expected), "{name}: {}", said(&output));
        world.wait_for("given back", 5, |jobs| jobs == (0, 0));
        assert!(!world.on_node("ps -e -o args").contains("sleep 1000"));
    }
}

#[test]
fn a_command_that_is_killed_is_cleaned_up_by_the_agents() {
    let Some(world) = World::new("kill", "sleep 1000") else { return };
    let mut run = start(world.command("run", &[]));
    world.wait_for("running", 10, |(jobs, processes)| jobs == 2 && processes > 0);
    run.kill().unwrap();
    run.wait().unwrap();
    // The lease is ten seconds.
    world.wait_for("cleaned up", 15, |jobs| jobs == (0, 0));
    assert!(!world.on_node("ps -e -o args").contains("sleep 1000"));
}

#[test]
fn an_agent_that_is_killed_is_followed_by_one_that_adopts() {
    let Some(world) = World::new("adopt", "sleep 1000") else { return };
    let mut run = start(world.command("run", &[]));
    world.wait_for("running", 10, |(jobs, processes)| jobs == 2 && processes > 0);
    let name: Name = world.lab.parse().unwrap();
    let cluster = Cluster::open(&name).unwrap();
    let before = cluster.statuses().unwrap();
    let out = world.on_node("kill -9 $(pgrep -f 'agent run')");
    assert!(cluster.statuses().is_err(), "{out}");
    let lab = keeptime_lab::Labs::of_this_user().open(&name).unwrap();
    let agent = keeptime(&["lab", "exec", &world.lab, "n1", "--", env!("CARGO_BIN_EXE_keeptime")])
        .args(["agent", "run", "--config"])
        .arg(lab.node_directory(&"n1".parse().unwrap()).join("agent.toml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut agent = agent.unwrap();
    world.wait_for("adopted", 10, |(jobs, _)| jobs == 2);
    let after = cluster.statuses().unwrap();
    assert_ne!(before[0].process, after[0].process);
    assert_eq!(before[0].jobs[0].assignment.flows, after[0].jobs[0].assignment.flows);
    assert_eq!(before[0].jobs[0].processes, after[0].jobs[0].processes);
    run.kill().unwrap();
    run.wait().unwrap();
    world.wait_for("cleaned up", 15, |jobs| jobs == (0, 0));
    agent.kill().unwrap();
    agent.wait().unwrap();
}
