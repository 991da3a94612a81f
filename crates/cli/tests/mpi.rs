//! MPI programs that ask for quality of service, on a real lab: from an attribute to the kernel of
//! every node and back, and what lasts when an agent, the broker or a rank is killed. The library and
//! the programs are those of `mpi/` (`make workloads` builds them).

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::reach::lab_network;
use keeptime_lab::FRONT_END;
use keeptime_launch::mpi::{Bond, Flavour, Launch, Mpi};
use keeptime_linux::segments;
use keeptime_linux::testing::skip;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use world::{KEEPTIME, World, assert_code, wait};

const LIMIT: Duration = Duration::from_secs(60);
/// 10 Mbit/s of payload in messages of 1 MiB.
const WIRE: BitsPerSecond = BitsPerSecond::new(10_561_513);

/// A program under the lab's first reservation, with the library preloaded.
struct Running<'a> {
    world: &'a World,
    child: Child,
    output: PathBuf,
}

/// As `Cluster::remote_launcher`, with the program in the place of this one: a script in a directory of the
/// lab's, which its front end sees.
fn remote(world: &World) -> PathBuf {
    let path = world.broker_socket().with_file_name("remote");
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
         exec '{KEEPTIME}' lab exec --die-with-parent --job r1 {} \"$host\" -- /bin/sh -c \"$*\"\n",
        world.name,
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// The file that lets programs go, in a directory that the lab's nodes see.
fn until(world: &World) -> PathBuf {
    world.broker_socket().with_file_name("let-go")
}

fn folder(flavour: Flavour) -> PathBuf {
    let name = match flavour {
        Flavour::OpenMpi => "open-mpi",
        _ => "mpich",
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mpi/build").join(name)
}

/// A lab of two nodes; nothing where that cannot be.
fn lab(tag: &str, flavour: Flavour) -> Option<World> {
    let library = folder(flavour).join("libkeeptime_mpi.so");
    if !library.exists() || !folder(flavour).join("holds").exists() {
        skip(&["mpi".to_owned()], &format!("{} is not built", library.display()));
        return None;
    }
    let root = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
    World::of(tag, &["--nodes", "2"], 40, root.to_str())
}

/// The same with a reservation on both of its nodes.
fn reserved(tag: &str, flavour: Flavour) -> Option<World> {
    let world = lab(tag, flavour)?;
    let reserve = ["reserve", "--nodes", "n1,n2", "--cpu", "30%", "--for", "10min"];
    assert_code(&world.keeptime(&reserve).output().unwrap(), 0);
    Some(world)
}

impl<'a> Running<'a> {
    fn start(world: &'a World, flavour: Flavour, words: &[&str]) -> Self {
        let hosts = [0, 1].map(|node| world.address(node).to_string());
        let remote = remote(world);
        let (network, bond) = (lab_network(&world.lab()), Bond::Loose);
        let passed = &["PATH".to_owned()];
        let launch = Launch { hosts: &hosts, remote: &remote, bond, network, passed };
        let folder = fs::canonicalize(folder(flavour)).unwrap();
        let program = folder.join(words[0]).display().to_string();
        let preload = format!("LD_PRELOAD={}", folder.join("libkeeptime_mpi.so").display());
        let mut command = vec!["env".to_string(), preload, program];
        command.extend(words[1..].iter().map(|word| (*word).to_string()));
        let line = Mpi::find(flavour).unwrap().command_line(&launch, &command).unwrap();
        let output = world.directory.path().join("output");
        let file = File::create(&output).unwrap();
        let exec = ["lab", "exec", "--die-with-parent", world.name.as_str(), FRONT_END, "--"];
        let mut start = world.keeptime(&exec);
        // MPICH starts ranks where it was started: nodes have to see that too.
        start.current_dir(&folder);
        start.args(&line).stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
        Self { world, child: start.spawn().unwrap(), output }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    fn wait_to_say(&self, text: &str, times: usize) {
        let start = std::time::Instant::now();
        while self.said().matches(text).count() < times {
            assert!(start.elapsed() < LIMIT, "no {text} in {}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets a program go that holds what it has until then.
    fn let_go(&self) {
        File::create(until(self.world)).unwrap();
    }

    fn end(mut self) -> (Option<i32>, String) {
        wait("the end of the program", LIMIT, || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap().code(), self.said())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a new agent of the first node, and waits until the rank there has called it.
fn start_agent_and_wait_for_its_rank(world: &World) {
    world.start_agent("n1");
    let sockets = format!("/proc/{}/net/unix", world.agent("n1"));
    let own = world.socket("n1").display().to_string();
    let is_connected = |line: &str| line.ends_with(&own) && line.contains(" 03 ");
    let mut looks = 0;
    wait("the rank to call the new agent", LIMIT, || {
        let is_there = fs::read_to_string(&sockets).unwrap().lines().any(is_connected);
        looks = if is_there { looks + 1 } else { 0 };
        // Others call, too, and do not stay.
        looks == 20
    });
}

/// What every node promises to send to the other.
fn premium(world: &World) -> Vec<Vec<BitsPerSecond>> {
    let rates = |status: keeptime_agent::wire::Status| {
        let flows = status.jobs.into_iter().flat_map(|job| job.assignment.flows);
        let premium = flows.filter(|flow| flow.class == TrafficClass::Premium);
        premium.map(|flow| flow.bits_per_second).collect()
    };
    world.statuses().into_iter().map(rates).collect()
}

fn wait_until_nothing_is_left(world: &World) {
    wait("the flows to be given back", LIMIT, || premium(world).iter().all(Vec::is_empty));
    assert_eq!(world.jobs().len(), 2, "the reservation stays");
}

#[test]
fn an_attribute_becomes_flows_on_every_node_and_goes_with_the_program() {
    for flavour in [Flavour::OpenMpi, Flavour::Mpich] {
        if let Err(error) = Mpi::find(flavour) {
            skip(&["mpi".to_owned()], &error.to_string());
            continue;
        }
        let Some(world) = reserved("attr", flavour) else { continue };
        let end = until(&world).display().to_string();
        let program = Running::start(&world, flavour, &["holds", "10000", &end]);
        program.wait_to_say("state 2", 2);
        assert_eq!(premium(&world), [[WIRE], [WIRE]]);
        assert!(["n1", "n2"].iter().all(|node| world.has_tree(node)));
        program.let_go();
        println!("{flavour}: {}", program.said());
        // MPICH may hang in MPI_Finalize: then the library has given back all the same.
        wait_until_nothing_is_left(&world);
        if flavour == Flavour::OpenMpi {
            let (code, said) = program.end();
            assert_eq!((code, said.matches(" ended").count()), (Some(0), 2), "{said}");
        }
        let why = world.keeptime(&["why", "r1"]).output().unwrap();
        let why = world::said(&why);
        assert_eq!(why.matches("changed by root").count(), 2, "one change there, one back: {why}");
        assert!(why.contains("for its program beside: n1 > n2 10.6 Mbit/s premium"), "{why}");
    }
}

#[test]
fn more_than_the_link_has_is_refused_with_the_reason_and_the_program_goes_on() {
    let Some(world) = reserved("much", Flavour::OpenMpi) else { return };
    let (code, said) = Running::start(&world, Flavour::OpenMpi, &["holds", "200000", "1"]).end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("state 3").count(), 2, "{said}");
    assert!(said.contains("link n1 > s1 lacks"), "{said}");
    assert!(premium(&world).iter().all(Vec::is_empty));
    let (code, said) = Running::start(&world, Flavour::OpenMpi, &["holds", "0", "1", "0.5"]).end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("state 3") && said.contains("not for a goal"), "{said}");
}

// One agent is killed meanwhile: the one that takes its place knows what was there before ours.
#[test]
fn nodes_hand_over_short_packets_until_a_program_that_asks_for_low_latency_ends() {
    let Some(world) = reserved("short", Flavour::OpenMpi) else { return };
    let observed = || {
        ["n1", "n2"]
            .map(|node| world.on_device(node, |s, index| segments::observe(s, index).unwrap()))
    };
    let a_frame = Some(Bytes::new(1_514));
    let is_short = |now: &segments::Observed| segments::diff(a_frame, now).is_empty();
    let before = observed();
    assert!(!before.iter().any(is_short), "{before:?}");
    let end = until(&world).display().to_string();
    let program = Running::start(&world, Flavour::OpenMpi, &["holds", "0", &end]);
    program.wait_to_say("state 2", 2);
    assert!(observed().iter().all(is_short), "{:?}", observed());
    world.kill_agent("n1");
    start_agent_and_wait_for_its_rank(&world);
    assert!(observed().iter().all(is_short), "{:?}", observed());
    program.let_go();
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    wait("what was there before", LIMIT, || observed() == before);
}

// Profiled: half the time with twice the bandwidth. Reserved for 2 s; its program asks for less.
#[test]
fn a_goal_becomes_the_rates_that_the_profile_of_the_job_says() {
    let Some(world) = lab("within", Flavour::OpenMpi) else { return };
    let profiled = [(10, 2.0), (20, 1.0), (40, 0.5)];
    let application = world.program_with_cpu("echo time 1", "60 s", &profiled, 30);
    assert_code(&world.ask("register", &application, &[]).output().unwrap(), 0);
    let goal =
        ["reserve", "--app", "say", "--within", "2s", "--prefer", "cheapest", "--for", "10min"];
    assert_code(&world.keeptime(&goal).output().unwrap(), 0);
    let mbit = BitsPerSecond::from_mbit;
    assert_eq!(premium(&world), [[mbit(10)], [mbit(10)]]);
    let end = until(&world).display().to_string();
    let program = Running::start(&world, Flavour::OpenMpi, &["holds", "0", &end, "0.5"]);
    program.wait_to_say("state 2", 2);
    assert_eq!(premium(&world), [[mbit(10), mbit(30)], [mbit(10), mbit(30)]]);
    program.let_go();
    let (code, said) = program.end();
    assert_eq!((code, said.matches("0.5 s promised").count()), (Some(0), 2), "{said}");
    wait("what its goal took to be given back", LIMIT, || {
        premium(&world) == [[mbit(10)], [mbit(10)]]
    });
    let (code, said) = Running::start(&world, Flavour::OpenMpi, &["holds", "0", "1", "0.1"]).end();
    assert_eq!((code, said.matches("state 3").count()), (Some(0), 2), "{said}");
    let why = "within: 100 ms cannot be promised: say takes 500 ms at any bandwidth";
    assert!(said.contains(why), "{said}");
}

#[test]
fn all_that_a_program_sees_of_the_attribute() {
    let Some(world) = reserved("seen", Flavour::OpenMpi) else { return };
    let program = Running::start(&world, Flavour::OpenMpi, &["attributes", "2"]);
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    // One connection, seen from both sides.
    assert_eq!(said.matches("endpoint").count(), 2, "{said}");
    wait_until_nothing_is_left(&world);
}

#[test]
fn what_was_granted_lasts_when_agents_and_brokers_are_killed_and_ends_with_the_program() {
    let Some(world) = reserved("kill", Flavour::OpenMpi) else { return };
    let end = until(&world).display().to_string();
    let program = Running::start(&world, Flavour::OpenMpi, &["holds", "10000", &end]);
    program.wait_to_say("state 2", 2);
    world.kill_agent("n1");
    assert!(world.has_tree("n1"), "the kernel goes on");
    start_agent_and_wait_for_its_rank(&world);
    assert_eq!(premium(&world), [[WIRE], [WIRE]]);
    world.kill_broker();
    world.start_broker();
    // Each tells then what its rank asks for.
    world.wait_for_agents();
    assert_eq!(premium(&world), [[WIRE], [WIRE]]);
    program.let_go();
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("turned to"), "{said}");
    wait_until_nothing_is_left(&world);
}

#[test]
fn what_a_program_had_that_ended_while_an_agent_was_away_is_given_back() {
    let Some(world) = reserved("away", Flavour::OpenMpi) else { return };
    let end = until(&world).display().to_string();
    let program = Running::start(&world, Flavour::OpenMpi, &["holds", "10000", &end]);
    program.wait_to_say("state 2", 2);
    world.kill_agent("n1");
    program.let_go();
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    world.start_agent("n1");
    wait_until_nothing_is_left(&world);
}

#[test]
fn a_job_whose_program_nobody_may_change_is_given_flows_from_outside() {
    let Some(world) = reserved("attach", Flavour::OpenMpi) else { return };
    let attach = |words: &[&str]| {
        world.keeptime(&[&["mpi", "attach", "r1"], words].concat()).output().unwrap()
    };
    let ten = ["--class", "premium", "--bandwidth", "10Mbit", "--message-size", "1 MiB"];
    assert_code(&attach(&[&ten[..], &["--ranks", "0,1"]].concat()), 0);
    assert_eq!(premium(&world), [[WIRE], [WIRE]]);
    assert!(["n1", "n2"].iter().all(|node| world.has_tree(node)));
    // What is refused leaves what holds.
    assert_code(&attach(&["--class", "premium", "--bandwidth", "200Mbit"]), 1);
    let odd = attach(&[&ten[..], &["--ranks", "0,2"]].concat());
    assert_code(&odd, 64);
    assert!(world::said(&odd).contains("ranks below 2"), "{}", world::said(&odd));
    assert_eq!(premium(&world), [[WIRE], [WIRE]]);
    assert_code(&attach(&["--class", "best-effort"]), 0);
    wait_until_nothing_is_left(&world);
}

#[test]
fn ranks_that_die_give_back_what_they_had() {
    let Some(world) = reserved("dies", Flavour::OpenMpi) else { return };
    let program = Running::start(&world, Flavour::OpenMpi, &["abort", "kill"]);
    let world = program.world;
    let (code, said) = program.end();
    assert_ne!(code, Some(0), "{said}");
    wait_until_nothing_is_left(world);
}

#[test]
fn progress_is_inferred_from_what_repeats_itself() {
    let Some(world) = reserved("progress", Flavour::OpenMpi) else { return };
    let program = Running::start(&world, Flavour::OpenMpi, &["busy"]);
    let mut seen = Vec::new();
    wait("two reports of its rate", LIMIT, || {
        let progress = world.jobs().into_iter().filter_map(|job| job.progress);
        seen.extend(progress.filter(|progress| progress.iterations_per_second > 0.0));
        seen.len() > 1
    });
    let (code, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    let total: f64 =
        said.split("iterations ").nth(1).unwrap().trim().lines().next().unwrap().parse().unwrap();
    // It ran for three seconds, though not at the same rate in each.
    let rate = seen.last().unwrap().iterations_per_second;
    let is_about = (0.3..3.0).contains(&(rate / (total / 3.0)));
    assert!(!seen[0].told && is_about, "{rate} of {total} in 3 s");
}
