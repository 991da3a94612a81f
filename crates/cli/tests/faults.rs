//! The whole program on real labs: promises, refusals, and what is left when something is killed.
//! Programs are shell scripts that tell a time, and profiles are written as if they had been
//! measured: what is tested is the way from a goal to a run and back, not speed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::files::{load_application, save_json};
use keeptime::machine::Machine;
use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::clock::now;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_linux::tc::{Attach, Handle, Op, Place, apply};
use keeptime_linux::testing::skip;
use keeptime_model::assignment::Assignment;
use keeptime_model::profile::Conditions;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use world::{
    BELOW_A_LEASE, KEEPTIME, PATIENCE, RATE, World, application_text, assert_code, json,
    profile_under, said, wait,
};

/// Time = volume / bandwidth: knees at the last point.
const CURVE: [(u64, f64); 3] = [(10, 2.0), (20, 1.0), (40, 0.5)];
const NOBODY: u32 = 65_534;

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process as i32), signal).unwrap();
}

/// Starts a command whose output nobody reads.
fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A job on the first node with one flow to the second.
fn assignment(world: &World, job: &str, lease: Duration) -> Assignment {
    let until = now().saturating_add(lease.into());
    let assignment = Assignment::new(job.parse().unwrap(), CpuPpm::from_percent(10), until);
    Assignment { flows: vec![world.flow()], ..assignment }
}

#[test]
fn a_goal_is_kept_and_told_or_refused_with_what_would_be_admitted() {
    let Some(world) = World::new("goal", 15) else { return };
    let program = world.program("echo time 0.5", "60 s", &CURVE);
    let run = |words: &[&str]| world.ask("run", &program, words).output().unwrap();

    let kept = run(&["--within", "1s", "--json"]);
    assert_code(&kept, 0);
    let told = json(&kept);
    assert_eq!(told["actual_nanos"], 500_000_000);
    assert_eq!(told["reserved"], true);
    let text = run(&["--within", "1s"]);
    assert_code(&text, 0);
    assert!(said(&text).contains("promised: ") && said(&text).contains("actual: 500 ms"));

    let unprotected = run(&["--within", "1s", "--unprotected", "--json"]);
    assert_code(&unprotected, 0);
    assert_eq!(json(&unprotected)["reserved"], false);

    let refused = run(&["--within", "100ms", "--json"]);
    assert_code(&refused, 1);
    let told = json(&refused);
    assert_eq!(told["reserved"], false);
    let refusal = &told["decision"]["verdict"]["refused"];
    assert_eq!(refusal["reason"]["kind"], "too-fast", "{refusal}");
    let offers = refusal["counter_offers"].as_array().unwrap();
    assert!(!offers.is_empty(), "{refusal}");
    for offer in offers {
        let within = format!("{} ns", offer["goal"]["within_nanos"]);
        assert_code(&run(&["--within", &within]), 0);
    }
    let text = said(&run(&["--within", "100ms"]));
    assert!(text.contains("refused: 100 ms cannot be promised"), "{text}");
    assert!(text.contains("would be admitted now, with a longer time"), "{text}");

    // More for each flow than the links have.
    program.set_profile(&world.profile(&program, &[(400, 1.0), (800, 0.5)]));
    let slow = run(&["--within", "1s"]);
    assert_code(&slow, 1);
    let replaced = "the broker plans with this say from now on, for everybody";
    assert!(said(&slow).contains(replaced), "{}", said(&slow));
    assert!(!text.contains(replaced), "it was the same: {text}");
    assert!(said(&slow).contains("the network is too slow"), "{}", said(&slow));
    assert!(said(&slow).contains("n1 > s1") || said(&slow).contains("n2 > s1"), "{}", said(&slow));
}

#[test]
fn what_is_wrong_with_a_request_is_named_before_anything_runs() {
    let Some(world) = World::new("bad", 15) else { return };
    let program = world.program("echo time 0.5", "60 s", &CURVE);
    let expect = |words: &[&str], code: i32, expected: &str| {
        let output = world.ask("plan", &program, words).output().unwrap();
        assert_code(&output, code);
        let text = said(&output);
        assert!(text.contains(expected), "{words:?}: {text} should contain {expected}");
    };
    expect(&["--within", "1s"], 0, "plan: size 64 on");
    expect(&["--within", "1s", "--among", "n1"], 1, "no other nodes may be used than n1 (--among");
    expect(&["--set", "colour=red"], 64, "a parameter of say: size");
    expect(&["--set", "size=65"], 64, "size");
    expect(&["--set", "size"], 64, "size");
    expect(&["--set", "size=64", "--set", "size=64"], 64, "each parameter once");
    expect(&["--nodes", "3"], 64, "nodes");
    expect(&["--mpi", "no-mpi"], 64, "mpich");

    let mut command = world.ask("plan", &program, &["--within", "1s"]);
    let without_mpi = command.env("PATH", "/nowhere").output().unwrap();
    assert_code(&without_mpi, 2);
    assert!(said(&without_mpi).contains("openmpi-bin"), "{}", said(&without_mpi));

    let mut elsewhere = world.profile(&program, &CURVE);
    elsewhere.conditions.link_bits_per_second = BitsPerSecond::from_mbit(300);
    program.set_profile(&elsewhere);
    expect(&["--within", "1s"], 2, "measured on another cluster");
    expect(&["--within", "1s"], 2, "measured with 300 Mbit/s, here 100 Mbit/s");
    program.set_profile_text("{\"version\": 1, \"appl");
    expect(&["--within", "1s"], 2, "say.json is not a profile");
    program.remove_profile();
    expect(&["--within", "1s"], 2, "`keeptime profile` measures one");
    assert!(world.jobs().is_empty());
}

#[test]
fn a_program_that_fails_hangs_or_is_silent_gives_everything_back() {
    let Some(world) = World::new("ends", 15) else { return };
    let idle = world.processes();
    let cases = [
        ("echo no such volume >&2; exit 7", "60 s", "no such volume"),
        ("kill -SEGV $$", "60 s", "the run failed"),
        ("sleep 300 & sleep 300; wait", "3 s", "it took longer than 3 s"),
        (
            "echo time; echo done",
            "60 s",
            "without telling its time; expected a line \"time SECONDS\"",
        ),
        ("exec /no/such/program", "60 s", "/no/such/program"),
    ];
    for (script, limit, expected) in cases {
        let program = world.program(script, limit, &CURVE);
        let output = world.ask("run", &program, &["--within", "2s"]).output().unwrap();
        assert_code(&output, 2);
        let text = said(&output);
        assert!(text.contains(expected), "{script}: {text} should contain {expected}");
        // Given back when the command ends, not when its lease does.
        world.wait_until_idle(&idle, BELOW_A_LEASE);
    }
    let status = json(&world.keeptime(&["lab", "status", "--json"]).output().unwrap());
    let agents = status["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 2);
    assert!(agents.iter().all(|a| a["status"]["jobs"] == Value::Array(vec![])), "{status}");
}

#[test]
fn of_a_killed_run_nothing_is_left_after_its_lease() {
    let Some(world) = World::new("kill", 15) else { return };
    let idle = world.processes();
    let program = world.program("sleep 300", "200 s", &CURVE);
    let mut run = start(world.ask("run", &program, &["--within", "2s"]));
    world.wait_until_running();
    assert!(world.has_tree("n1") && world.has_tree("n2"));
    signal(run.id(), Signal::SIGKILL);
    run.wait().unwrap();
    world.wait_until_idle(&idle, PATIENCE);
    // The lab is as good as before.
    let program = world.program("echo time 0.5", "60 s", &CURVE);
    assert_code(&world.ask("run", &program, &["--within", "1s"]).output().unwrap(), 0);
}

#[test]
fn an_interrupted_run_gives_back_at_once() {
    let Some(world) = World::new("stop", 15) else { return };
    let idle = world.processes();
    let program = world.program("sleep 300", "200 s", &CURVE);
    for how in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = world.ask("run", &program, &["--within", "2s"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let run = command.spawn().unwrap();
        world.wait_until_running();
        signal(run.id(), how);
        let output = run.wait_with_output().unwrap();
        assert_code(&output, 2);
        assert!(said(&output).contains("it was told to stop"), "{}", said(&output));
        world.wait_until_idle(&idle, BELOW_A_LEASE);
    }
}

// Goal: a user's signal is for the program, and ends no run that holds something for it. Method: ranks that end well by one;
// and one by which the launcher of MPICH would end.
#[test]
fn what_a_user_signals_to_a_run_is_for_its_ranks() {
    let Some(world) = World::new("usr", 15) else { return };
    let at = |name: &str| world.directory.path().join(name);
    for (flavour, mpi) in [(Flavour::OpenMpi, "open-mpi"), (Flavour::Mpich, "mpich")] {
        if let Err(error) = Mpi::find(flavour) {
            skip(&[mpi.to_owned()], &error.to_string());
            continue;
        }
        let ready = at(mpi).display().to_string();
        let script = format!(
            "trap 'echo heard $KEEPTIME_NODE; echo time 0.5; exit 0' USR1; \
             touch {ready}-$KEEPTIME_NODE; while :; do sleep 0.1; done"
        );
        let program = world.program(&script, "60 s", &CURVE);
        program.set_profile(&world.profile_by(flavour, &program, &CURVE));
        let mut command = world.ask("run", &program, &["--within", "2s", "--mpi", mpi]);
        let file = File::create(at("said")).unwrap();
        command.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
        let mut run = command.spawn().unwrap();
        let told = || std::fs::read_to_string(at("said")).unwrap();
        let is_ready = |node: &str| Path::new(&format!("{ready}-{node}")).exists();
        wait("both ranks", PATIENCE, || is_ready("n1") && is_ready("n2"));
        if flavour == Flavour::Mpich {
            signal(run.id(), Signal::SIGUSR2);
            wait("it to be dropped", PATIENCE, || told().contains("SIGUSR2 is dropped"));
        }
        signal(run.id(), Signal::SIGUSR1);
        assert_eq!(run.wait().unwrap().code(), Some(0), "{}", told());
        // MPICH signals each rank twice, and what it has started.
        for node in ["n1", "n2"] {
            assert!(told().contains(&format!("| heard {node}")), "{}", told());
        }
    }
}

#[test]
fn a_run_outlives_an_agent_that_restarts_and_one_that_does_not() {
    let Some(world) = World::new("outlive", 15) else { return };
    let program = world.program("sleep 4; echo time 0.5", "60 s", &CURVE);
    let start = || {
        let mut command = world.ask("run", &program, &["--within", "2s", "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let run = start();
    world.wait_until_running();
    world.kill_agent("n1");
    world.start_agent("n1");
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 0);
    assert_eq!(json(&output)["actual_nanos"], 500_000_000);
    wait("the new agent to hear of the end", PATIENCE, || world.jobs().is_empty());

    // Shorter than the broker waits for an agent that says nothing.
    let program = world.program("sleep 4; echo time 0.5", "60 s", &CURVE);
    let mut command = world.ask("run", &program, &["--within", "2s", "--json"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    world.wait_until_running();
    world.kill_agent("n2");
    assert_code(&run.wait_with_output().unwrap(), 0);
    let alone = world.ask("plan", &program, &["--within", "2s"]).output().unwrap();
    assert_code(&alone, 1);
    let short = "not connected, or not able to enforce it: n2\n";
    assert!(said(&alone).contains(short), "{}", said(&alone));
    assert!(world.has_tree("n2"), "nobody could give it back");
    world.start_agent("n2");
    wait("the end of it", PATIENCE, || world.jobs().is_empty());
    wait("the end of the classes", PATIENCE, || !world.has_tree("n2"));
}

#[test]
fn a_run_whose_agent_does_not_come_back_is_told_that_its_reservation_is_lost() {
    let Some(world) = World::new("lost", 15) else { return };
    let program = world.program("sleep 300", "200 s", &CURVE);
    let mut command = world.ask("run", &program, &["--within", "2s"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    world.wait_until_running();
    world.kill_agent("n2");
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 2);
    assert!(said(&output).contains("lost: n2 went away"), "{}", said(&output));
    let rest = || Client::connect(&world.socket("n1")).unwrap().status().unwrap().jobs;
    wait("the end of the rest", PATIENCE, || rest().is_empty());
}

#[test]
fn a_run_does_not_notice_a_broker_that_is_killed_and_comes_back() {
    let Some(world) = World::new("norun", 15) else { return };
    let program = world.program("sleep 4; echo time 0.5", "60 s", &CURVE);
    let mut command = world.ask("run", &program, &["--within", "2s"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    world.wait_until_running();
    world.kill_broker();
    let status = world.run(&["lab", "status"], 0);
    assert!(status.contains("\nthe broker at ") && status.contains("not answer: "), "{status}");
    world.start_broker();
    let status = world.run(&["lab", "status"], 0);
    assert!(status.contains("\nbroker at ") && status.contains(".sock: up\n"), "{status}");
    let output = run.wait_with_output().unwrap();
    assert_code(&output, 0);
    assert!(said(&output).contains("actual: 500 ms"), "{}", said(&output));
    wait("the end of it", PATIENCE, || world.jobs().is_empty());
    let why = said(&world.keeptime(&["why", "r1"]).output().unwrap());
    for word in ["granted to root", "a run with it took 500 ms", "done: its run is over"] {
        assert!(why.contains(word), "{word} in {why}");
    }
}

#[test]
fn an_agent_that_hangs_makes_nobody_wait_for_ever() {
    let Some(world) = World::new("hang", 15) else { return };
    let program = world.program("echo time 0.5", "60 s", &CURVE);
    let agent = world.agent("n2");
    signal(agent, Signal::SIGSTOP);
    let ask = || {
        let mut command = world.ask("run", &program, &["--within", "2s"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let outputs = [ask(), ask()].map(|run| run.wait_with_output().unwrap());
    signal(agent, Signal::SIGCONT);
    // For one the agent is waited for; what is held meanwhile is not there for the other.
    let codes = outputs.each_ref().map(|output| output.status.code().unwrap());
    let all = outputs.each_ref().map(said).join("\n");
    assert_eq!(codes, [1, 1], "{all}");
    assert!(all.contains("did not answer: n2"), "{all}");
    wait("an idle lab", PATIENCE, || world.jobs().is_empty());
    world.wait_for_agents();
    assert_code(&world.ask("run", &program, &["--within", "2s"]).output().unwrap(), 0);
}

// Goal: a run that is held at a rate ends with its program and gives back what it has, also while an agent hangs that it asks.
// Method: one that tells how far it is many times after that; before the node's lease is over, it ends.
#[test]
fn a_run_at_a_rate_ends_with_its_program_though_an_agent_hangs() {
    let Some(world) = World::new("hungrate", 30) else { return };
    let script =
        "until [ -e over ]; do echo unit | tee -a told; sleep 0.05; done; echo time 0.5; exit 0";
    let program = world.program(script, "600 s", &CURVE);
    // The first that is asked.
    let agent = world.agent("n1");
    let mut run = world.ask("run", &program, &["--rate", "50 %"]);
    let mut run = run.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let told = || std::fs::metadata(world.directory.path().join("told")).map_or(0, |of| of.len());
    wait("it to tell", PATIENCE, || told() > 0);
    signal(agent, Signal::SIGSTOP);
    // Seconds of lines of five bytes each, from two ranks: by each of most the agent is asked, as far as nobody minds that it
    // has not answered the last one.
    let before = told();
    wait("it to tell more", PATIENCE, || told() > before + 5 * 160);
    File::create(world.directory.path().join("over")).unwrap();
    wait("its end", PATIENCE, || run.try_wait().unwrap().is_some());
    signal(agent, Signal::SIGCONT);
    wait("an idle lab", PATIENCE, || world.jobs().is_empty());
}

// Goal: whoever has had their share is refused like anybody, with the reason, in words and in JSON. Method: a broker
// that lets users have one reservation each, and one that lasts.
#[test]
fn a_run_beyond_its_users_share_is_refused_with_the_reason() {
    let Some(world) = World::new("had", 15) else { return };
    let mut config = world.broker_config();
    config.policy.user_reservations = 1;
    world.configure_broker(&config);
    world.kill_broker();
    world.start_broker();
    world.wait_for_agents();
    world.run(&["reserve", "--nodes", "n1", "--cpu", "1%", "--from", "+2h", "--for", "1h"], 0);
    let program = world.program_with_cpu("echo time 0.5", "60 s", &CURVE, 10);
    let run = |words: &[&str]| world.ask("run", &program, words).output().unwrap();
    let refused = run(&["--within", "1s"]);
    assert_code(&refused, 1);
    let text = said(&refused);
    assert!(text.contains("refused: a user may have 1 reservations at a time"), "{text}");
    let refused = run(&["--within", "1s", "--json"]);
    assert_code(&refused, 1);
    let told = json(&refused);
    assert_eq!(told["refusal"]["reason"]["too-many"]["user_reservations"], 1, "{told}");
}

#[test]
fn a_run_whose_lab_dies_fails_and_the_lab_can_be_removed() {
    let Some(world) = World::new("dies", 15) else { return };
    let program = world.program("sleep 300", "200 s", &CURVE);
    let mut command = world.ask("run", &program, &["--within", "2s"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = command.spawn().unwrap();
    world.wait_until_running();
    let holder = world.lab().status().holder_pid.unwrap();
    signal(holder as u32, Signal::SIGKILL);
    assert_code(&run.wait_with_output().unwrap(), 2);
    let status = world.keeptime(&["lab", "status"]).output().unwrap();
    assert_code(&status, 0);
    assert!(said(&status).contains(&format!("lab {}: ended", world.name)), "{}", said(&status));
    // Its broker is there still, and knows that no node is.
    let again = world.ask("run", &program, &["--within", "2s"]).output().unwrap();
    assert_code(&again, 1);
    assert_code(&world.keeptime(&["lab", "down"]).output().unwrap(), 0);
    wait("the end of all processes", PATIENCE, || world.processes().is_empty());
}

// As one is whose `lab up` was killed right after it had started it.
#[test]
fn a_broker_that_no_file_names_goes_with_its_lab() {
    let Some(world) = World::new("unnamed", 15) else { return };
    std::fs::remove_file(world.lab().directory().join("broker/broker.pid")).unwrap();
    assert!(world.has_broker());
    assert_code(&world.keeptime(&["lab", "down"]).output().unwrap(), 0);
    wait("the end of all processes", PATIENCE, || world.processes().is_empty());
}

#[test]
fn the_kernel_keeps_a_reservation_without_its_agent_and_a_new_one_adopts_it() {
    let Some(world) = World::new("agent", 15) else { return };
    let socket = world.socket("n1");
    let wanted = assignment(&world, "adopted", Duration::from_secs(600));
    Client::connect(&socket).unwrap().enforce(wanted.clone()).unwrap();
    let name = world.name.as_str();
    let receive = ["lab", "exec", "--die-with-parent", name, "n2", "--", KEEPTIME, "traffic"];
    let receive = [&receive[..], &["receive", "--warmup", "0s", "--length", "600s"]].concat();
    let mut receiver = start(world.keeptime(&receive));
    let to = format!("{}:5001", world.address(1));
    let send = ["lab", "exec", "--job", "adopted", name, "n1", "--", KEEPTIME, "traffic", "send"];
    let mut sender = start(world.keeptime(&[&send[..], &[&to]].concat()));
    let job = || Client::connect(&socket).ok()?.status().ok()?.jobs.into_iter().next();
    let sent = || job().map_or(0, |job| job.flows[0].sent_bytes.get());
    wait("traffic", PATIENCE, || sent() > 200_000);

    let before = sent();
    world.kill_agent("n1");
    assert!(world.has_tree("n1"), "the kernel keeps the classes");
    world.start_agent("n1");
    let adopted = job().expect("the job is adopted");
    assert_eq!(adopted.assignment, wanted);
    assert!(!adopted.processes.is_empty(), "the sender goes on");
    assert!(adopted.flows[0].sent_bytes.get() >= before, "the class was made anew: {adopted:?}");
    wait("more traffic", PATIENCE, || sent() > before);

    let soon = now().saturating_add(Duration::from_millis(200).into());
    Client::connect(&socket).unwrap().renew(&wanted.job, soon).unwrap();
    wait("the end of the lease", PATIENCE, || job().is_none());
    wait("the end of the sender", PATIENCE, || sender.try_wait().unwrap().is_some());
    receiver.kill().unwrap();
    receiver.wait().unwrap();
    wait("the end of its class", PATIENCE, || !world.has_tree("n1"));
}

// Goal: of a lab nothing is left that somebody did not want any more while its daemons were started. Method:
// interrupted when its broker has a directory; again where that came too late, or others had the CPU just then.
#[test]
fn an_interrupted_start_of_a_lab_leaves_nothing() {
    let Some(world) = World::new("half", 15) else { return };
    let directory = world.lab().directory().to_path_buf();
    world.run(&["lab", "down"], 0);
    let up = ["lab", "up", world.name.as_str(), "--nodes", "2", "--cpu", "5 %"];
    let mut told = String::new();
    wait("a start that is interrupted", PATIENCE, || {
        let _ = world.keeptime(&["lab", "down"]).output();
        let mut command = world.keeptime(&up);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut starting = command.spawn().unwrap();
        let is_over = |starting: &mut Child| starting.try_wait().unwrap().is_some();
        while !directory.join("broker").exists() && !is_over(&mut starting) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !is_over(&mut starting) {
            signal(starting.id(), Signal::SIGINT);
        }
        let output = starting.wait_with_output().unwrap();
        told = said(&output);
        output.status.code() == Some(2)
    });
    assert!(told.contains("interrupted"), "{told}");
    assert!(!directory.exists(), "{told}");
    assert!(world.processes().is_empty(), "{:?}", world.processes());
}

/// Control groups of nobody known to Keeptime, removed with this.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn beside_ours() -> Self {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"];
        let roots = roots.iter().filter(|root| Path::new(root).join("cgroup.procs").exists());
        let name = format!("keeptime-not-ours-{}", std::process::id());
        let groups: Vec<_> = roots.map(|root| Path::new(root).join(&name)).collect();
        groups.iter().for_each(|group| std::fs::create_dir(group).unwrap());
        assert!(!groups.is_empty());
        Self(groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.0.iter().for_each(|group| drop(std::fs::remove_dir(group)));
    }
}

#[test]
fn what_belongs_to_somebody_else_is_told_and_left_alone() {
    let Some(world) = World::new("foreign", 15) else { return };
    let groups = Groups::beside_ours();
    // Where Keeptime's classes would go, somebody else's stand.
    let at = Attach::Under(Handle { major: 1, minor: 1 });
    let place = |ifindex| Place { ifindex, attach: at, major: 0x77 };
    world.on_device("n1", |socket, ifindex| {
        let add = [Op::AddTree { default_minor: 1 }];
        // The lab's own queue may stand there.
        let _ = apply(socket, &place(ifindex), &[Op::RemovePlace]);
        apply(socket, &place(ifindex), &add).unwrap();
    });
    let theirs = || world.observed("n1").qdiscs.iter().any(|qdisc| qdisc.handle.major == 0x77);
    assert!(theirs());
    let mut client = Client::connect(&world.socket("n1")).unwrap();
    let wanted = assignment(&world, "refused", Duration::from_secs(600));
    let answer = client.enforce(wanted.clone());
    let Err(ClientError::Failed { error }) = answer else { panic!("{answer:?}") };
    assert!(error.contains("77:") && error.contains("is not Keeptime's"), "{error}");
    assert!(theirs() && !world.has_tree("n1"));
    assert!(world.jobs().is_empty(), "what failed is not kept");
    let program = world.program("echo time 0.5", "60 s", &CURVE);
    let run = world.ask("run", &program, &["--within", "1s"]).output().unwrap();
    assert_code(&run, 1);
    assert!(
        said(&run).contains("n1") && said(&run).contains("is not Keeptime's"),
        "{}",
        said(&run)
    );
    wait("the other node to give back", BELOW_A_LEASE, || world.jobs().is_empty());

    // Gone, it is in nobody's way.
    world.on_device("n1", |socket, ifindex| {
        apply(socket, &place(ifindex), &[Op::RemovePlace]).unwrap();
    });
    client.enforce(wanted).unwrap();
    assert!(world.has_tree("n1"));
    assert_code(&world.keeptime(&["lab", "down"]).output().unwrap(), 0);
    assert!(groups.0.iter().all(|group| group.is_dir()), "groups of others stay");
}

#[test]
fn runs_at_once_never_hold_more_than_there_is() {
    let Some(world) = World::new("race", 30) else { return };
    // The first gets 60 Mbit/s, the second what is left; nothing is left for the third.
    let points = [(20, 3.0), (60, 1.0)];
    // They run until each has been decided about.
    let decided = world.directory.path().join("decided");
    let script = format!("until [ -e {} ]; do sleep 0.05; done; echo time 1", decided.display());
    let program = world.program_with_cpu(&script, "60 s", &points, 10);
    let words = ["--within", "3s", "--json"];
    let start = |_| {
        let mut command = world.ask("run", &program, &words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut runs: Vec<Child> = (0..3).map(start).collect();
    let mut most_jobs = 0;
    loop {
        let ended = runs.iter_mut().filter_map(|run| run.try_wait().unwrap()).count();
        if ended == runs.len() {
            break;
        }
        if ended > 0 && most_jobs == 2 {
            std::fs::write(&decided, "").unwrap();
        }
        for status in world.statuses() {
            assert!(World::promised(&status) <= World::reservable(), "{status:?}");
            most_jobs = most_jobs.max(status.jobs.len());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let outputs: Vec<_> = runs.into_iter().map(|run| run.wait_with_output().unwrap()).collect();
    let mut codes: Vec<_> = outputs.iter().map(|output| output.status.code().unwrap()).collect();
    codes.sort_unstable();
    let all: Vec<_> = outputs.iter().map(said).collect();
    assert_eq!(codes, [0, 0, 1], "{}", all.join("\n"));
    assert_eq!(most_jobs, 2);
    let planned = |output: &Output| {
        json(output)["decision"]["verdict"]["planned"]["bandwidth_bits_per_second"].as_u64()
    };
    let rates: Vec<u64> = outputs.iter().filter_map(planned).collect();
    assert!(rates.len() == 2 && rates.contains(&60_000_000), "{rates:?}");
    assert!(rates.iter().sum::<u64>() <= World::reservable(), "{rates:?}");
    let refused = outputs.iter().find(|output| output.status.code() == Some(1)).unwrap();
    assert_eq!(json(refused)["decision"]["verdict"]["refused"]["reason"]["kind"], "link-busy");
}

/// Removes an ordinary user's lab, also when the test fails.
struct OfNobody<'a> {
    runtime: &'a Path,
    name: &'a str,
}

impl OfNobody<'_> {
    fn keeptime(&self, words: &[&str]) -> std::io::Result<Output> {
        let mut command = Command::new(KEEPTIME);
        command.args(words).env("XDG_RUNTIME_DIR", self.runtime).env("KEEPTIME_LAB", self.name);
        command.current_dir("/");
        if nix::unistd::geteuid().is_root() {
            // With the user, the standard library drops root's other groups.
            command.gid(NOBODY).uid(NOBODY);
        }
        command.output()
    }

    /// What such a user is told by commands that enforce nothing.
    fn plans_and_reserves(&self, directory: &Path) {
        let run = |words: &[&str]| {
            let output = self.keeptime(words).unwrap();
            assert_code(&output, 0);
            said(&output)
        };
        let reserve = ["reserve", "--nodes", "n1,n2", "--cpu", "2%", "--for", "10min"];
        assert!(run(&reserve).starts_with("r1 active, "));
        assert!(run(&["list"]).contains("\nr1   active  "));
        let timeline = run(&["timeline", "--to", "+1h"]);
        assert!(timeline.contains("CPU of n1") && timeline.contains('█'), "{timeline}");
        let nodes = run(&["nodes"]);
        assert!(nodes.contains("r1") && nodes.contains("not enforced"), "{nodes}");

        let at = |name: &str| directory.join(name).to_str().unwrap().to_owned();
        let (file, profile) = (at("say.toml"), at("say.json"));
        std::fs::write(&file, application_text("echo time 0.5", "20 s", 2)).unwrap();
        let plan = ["plan", &file, "--profile", &profile, "--within", "1s"];
        let mpi = match Mpi::find(Flavour::OpenMpi) {
            Ok(mpi) => mpi.to_string(),
            Err(error) => return skip(&["mpi".to_owned()], &error.to_string()),
        };
        let unmeasured = self.keeptime(&plan).unwrap();
        assert_code(&unmeasured, 2);
        assert!(said(&unmeasured).contains("`keeptime profile` measures one"));
        let application = load_application(&file, Flavour::OpenMpi).unwrap();
        let conditions = Conditions {
            link_bits_per_second: RATE,
            process_cpu_ppm: application.cpu(),
            processor: Machine::here().processor,
            mpi,
            command: application.command_template().to_vec(),
            program: None,
        };
        let measured = profile_under(conditions, &application, &CURVE);
        save_json(Path::new(&profile), &measured).unwrap();
        let planned = run(&plan);
        assert!(planned.contains("plan: size 64 on"), "{planned}");
        assert!(run(&["cancel", "r1"]).starts_with("r1 cancelled, "));
    }

    /// Why an ordinary user cannot have a lab here.
    fn obstacle(&self) -> Option<String> {
        match self.keeptime(&["--version"]) {
            Err(error) => return Some(format!("an ordinary user cannot run the program: {error}")),
            Ok(output) if !output.status.success() => return Some(said(&output)),
            Ok(_) => {}
        }
        let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").ok()?;
        (limit.trim() == "0").then(|| "user.max_user_namespaces is 0".to_owned())
    }
}

impl Drop for OfNobody<'_> {
    fn drop(&mut self) {
        let _ = self.keeptime(&["lab", "down"]);
    }
}

#[test]
fn without_root_a_lab_stands_plans_and_reserves_and_tells_what_it_does_not_enforce() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let name = format!("t{}-nobody", std::process::id());
    let user = OfNobody { runtime: directory.path(), name: &name };
    if let Some(reason) = user.obstacle() {
        return skip(&["userns".to_owned()], &reason);
    }
    let up = user.keeptime(&["lab", "up", "--nodes", "2", "--cpu", "10 %"]).unwrap();
    if !up.status.success() && said(&up).contains("user namespace") {
        return skip(&["userns".to_owned()], &said(&up));
    }
    assert_code(&up, 0);
    assert!(said(&up).contains("not enforced: "), "{}", said(&up));
    let status = user.keeptime(&["lab", "status"]).unwrap();
    assert_code(&status, 0);
    let text = said(&status);
    assert!(text.contains("up, without root"), "{text}");
    assert!(text.contains("not enforced: CPU and bandwidth of jobs: "), "{text}");
    let exec =
        user.keeptime(&["lab", "exec", &name, "n2", "--", "/bin/sh", "-c", "hostname; exit 3"]);
    let exec = exec.unwrap();
    assert_code(&exec, 3);
    assert_eq!(said(&exec).trim(), "n2");
    user.plans_and_reserves(directory.path());
    let down = user.keeptime(&["lab", "down"]).unwrap();
    assert_code(&down, 0);
    assert_eq!(
        std::fs::read_dir(directory.path().join("keeptime/labs")).map_or(0, Iterator::count),
        0
    );
}
