//! CPU schedules, disk rates and binding on a real lab: what is assigned is what the kernel does,
//! what cannot be enforced is refused by name, and what was borrowed is given back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::clock::now;
use keeptime_agent::wire::JobStatus;
use keeptime_lab::Exec;
use keeptime_linux::cgroup::{Group, Hierarchies};
use keeptime_linux::disk::disks;
use keeptime_linux::tc::{Hook, detach_programs};
use keeptime_linux::testing::{marks, skip};
use keeptime_model::assignment::{Assignment, CpuMechanism};
use keeptime_model::capability::{Answer, Feature};
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::service::ServiceName;
use keeptime_model::units::{BytesPerSecond, CpuPpm, Nanos};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use world::{KEEPTIME, PATIENCE, World, assert_code, said, wait};

const LEASE: Nanos = Nanos::from_secs(600);
const JOB: &str = "job";

fn assignment(percent: u32) -> Assignment {
    let until = now().saturating_add(LEASE);
    Assignment::new(JOB.parse().unwrap(), CpuPpm::from_percent(percent), until)
}

/// The agent of the first node, and what it says of the one job.
struct Node<'a> {
    world: &'a World,
    socket: PathBuf,
}

impl<'a> Node<'a> {
    fn first(world: &'a World) -> Self {
        Self { world, socket: world.socket("n1") }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    fn job(&self) -> Option<JobStatus> {
        self.client().status().unwrap().jobs.into_iter().next()
    }

    fn group(&self) -> Group {
        let path = self.world.lab().group_path(&"n1".parse().unwrap()).unwrap();
        Hierarchies::discover().unwrap().group(path).unwrap()
    }

    /// Starts a shell line on the node, in the job or outside, that begins by telling its number
    /// there.
    fn start(&self, in_job: bool, line: &str) -> (Program, u32) {
        let line = format!("echo $$; {line}");
        let job: &[&str] = if in_job { &["--job", JOB] } else { &[] };
        let words = [&["lab", "exec", "--die-with-parent"], job].concat();
        let mut command = self.world.keeptime(&words);
        command.args([self.world.name.as_str(), "n1", "--", "/bin/sh", "-c", &line]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut number = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut number).unwrap();
        (Program(child), number.trim().parse().unwrap())
    }

    /// Waits until the job has used so much of a processor for such a span. From the next tick on at the latest it does, but
    /// for what a busy machine takes from it now and then.
    fn uses(&self, wanted: RangeInclusive<f64>, span: Duration) {
        let used = || self.job().unwrap().cpu_used_nanos.as_secs_f64();
        let uses = (0..10).any(|_| {
            let (start, before) = (Instant::now(), used());
            std::thread::sleep(span);
            let share = (used() - before) / start.elapsed().as_secs_f64();
            println!("{:.2} % of {wanted:?}", 100.0 * share);
            wanted.contains(&share)
        });
        assert!(uses, "it never used {wanted:?}");
    }

    fn bind(&self, words: &[&str]) -> Output {
        let words = [&["bind", JOB, "--node", "n1"], words].concat();
        self.world.keeptime(&words).output().unwrap()
    }

    /// Takes everything off the node, from inside.
    fn clear(&self, words: &[&str]) -> Output {
        let exec = ["lab", "exec", self.world.name.as_str(), "n1", "--", KEEPTIME];
        let mut clear = self.world.keeptime(&exec);
        let config = self.socket.with_file_name("agent.toml");
        clear.args(["agent", "clear", "--config"]).arg(config).args(words).output().unwrap()
    }
}

/// A command that is ended with the test.
struct Program(Child);

impl Program {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refusal(answer: Result<(), ClientError>) -> String {
    let Err(ClientError::Refused { reason }) = answer else { panic!("{answer:?}") };
    reason
}

#[test]
fn a_probe_says_what_works_and_how_that_was_found_out() {
    let probe = |words: &[&str]| {
        let output = Command::new(KEEPTIME).args(["agent", "probe"]).args(words).output().unwrap();
        assert_code(&output, 0);
        said(&output)
    };
    let table = probe(&[]);
    for feature in Feature::ALL {
        assert!(table.contains(&feature.to_string()), "{table}");
    }
    assert!(table.contains("found out by") && table.contains("fq was put on"), "{table}");
    let told: Value = serde_json::from_str(&probe(&["--json"])).unwrap();
    let found = told["capabilities"].as_array().unwrap();
    assert_eq!(found.len(), Feature::ALL.len());
    for one in found {
        let answer = &one["answer"];
        assert!(answer == "yes" || answer["no"].is_string() || answer["unknown"].is_string());
        assert!(one["tried"].as_str().is_some_and(|tried| tried.len() > 10), "{one}");
    }
}

#[test]
fn a_period_is_kept_by_deadlines_where_processes_can_carry_them() {
    let Some(world) = World::new("cpu", 40) else { return };
    let node = Node::first(&world);
    let capabilities = node.client().status().unwrap().capabilities.unwrap();
    if !capabilities.has(Feature::CpuDeadline) {
        return skip(
            &["deadline".into()],
            &capabilities.answer(Feature::CpuDeadline).unwrap().to_string(),
        );
    }
    let period = Some(Nanos::from_millis(20));
    let wanted = Assignment { cpu_period_nanos: period, ..assignment(20) };
    node.client().enforce(wanted.clone()).unwrap();
    let busy = "while :; do :; done";
    let (program, _) = node.start(true, busy);
    // Somebody else computes on the node meanwhile.
    let (_other, _) = node.start(false, busy);
    let kept_by = |mechanism| node.job().is_some_and(|job| job.cpu_kept_by == Some(mechanism));
    wait("the schedule", PATIENCE, || kept_by(CpuMechanism::Deadline));
    let uses = |wanted| node.uses(wanted, Duration::from_secs(1));
    uses(0.17..=0.22);

    // The agent dies and comes back: the schedule stays, and is changed.
    world.kill_agent("n1");
    world.start_agent("n1");
    wait("the schedule", PATIENCE, || kept_by(CpuMechanism::Deadline));
    node.client()
        .enforce(Assignment { cpu_ppm: CpuPpm::from_percent(10), ..wanted.clone() })
        .unwrap();
    uses(0.08..=0.12);
    node.client()
        .enforce(Assignment { cpu_mechanism: CpuMechanism::Bandwidth, ..wanted.clone() })
        .unwrap();
    assert!(kept_by(CpuMechanism::Bandwidth));
    uses(0.14..=0.22);
    // Who has had deadlines has none again, which the kernel might not keep: another process does.
    node.client().enforce(wanted).unwrap();
    let obstacle = || node.job().unwrap().cpu_obstacle.unwrap_or_default();
    assert!(obstacle().contains("has had deadlines before"), "{}", obstacle());
    assert!(kept_by(CpuMechanism::Bandwidth));
    drop(program);
    let (mut program, _) = node.start(true, busy);
    wait("the schedule", PATIENCE, || kept_by(CpuMechanism::Deadline));
    uses(0.17..=0.22);

    // One that is bound to a processor cannot carry a schedule: nobody does then, and it is told why.
    if std::thread::available_parallelism().unwrap().get() > 1 {
        // Again where the agent was quicker: who has a schedule is not bound any more.
        let pinned = format!("while ! taskset -c 0 sh -c '{busy}'; do :; done");
        let (_pinned, _) = node.start(true, &pinned);
        let is_told = || obstacle().contains("is bound to some of the processors");
        wait("the obstacle", PATIENCE, is_told);
        assert!(kept_by(CpuMechanism::Bandwidth));
        let status = Command::new(KEEPTIME).args(["agent", "status"]).arg(&node.socket).output();
        let text = said(&status.unwrap());
        assert!(
            text.contains("by bandwidth") && text.contains("not by SCHED_DEADLINE: "),
            "{text}"
        );
    }
    node.client().withdraw(&JOB.parse().unwrap()).unwrap();
    wait("the end of the program", PATIENCE, || program.has_ended());
}

/// A shell that computes in one process after the other, each of which needs some 10 ms of a processor.
const ONE_AFTER_THE_OTHER: &str =
    "while :; do sh -c 'i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done'; done";

// Goal: a job whose processes end before they are found has its share, which their deadlines do not give it; it is told so,
// the next agent knows, and a process that stays has deadlines again. Who asked for deadlines keeps them. Method: beside a
// loop that could take all that is left.
#[test]
fn a_job_of_processes_that_end_at_once_has_its_share() {
    let Some(world) = World::new("brief", 40) else { return };
    let node = Node::first(&world);
    let capabilities = node.client().status().unwrap().capabilities.unwrap();
    if !capabilities.has(Feature::CpuDeadline) {
        let answer = capabilities.answer(Feature::CpuDeadline).unwrap();
        return skip(&["deadline".into()], &answer.to_string());
    }
    let period = Some(Nanos::from_millis(20));
    let wanted = Assignment { cpu_period_nanos: period, ..assignment(30) };
    node.client().enforce(wanted.clone()).unwrap();
    let (program, _) = node.start(true, ONE_AFTER_THE_OTHER);
    let (_other, _) = node.start(false, "while :; do :; done");
    let kept_by = || node.job().and_then(|job| job.cpu_kept_by);
    wait("the bandwidth", PATIENCE, || kept_by() == Some(CpuMechanism::Bandwidth));
    node.uses(0.27..=0.32, Duration::from_secs(1));
    let told = || {
        let status = Command::new(KEEPTIME).args(["agent", "status"]).arg(&node.socket).output();
        said(&status.unwrap())
    };
    let text = told();
    let why = "it computes in processes that end soon after they start";
    assert!(text.contains("by bandwidth"), "{text}");
    assert!(text.contains(&format!("not by SCHED_DEADLINE: {why}")), "{text}");

    // The next agent does not have to see it again.
    world.kill_agent("n1");
    world.start_agent("n1");
    wait("the job", PATIENCE, || kept_by().is_some());
    assert_eq!(kept_by(), Some(CpuMechanism::Bandwidth));

    let said = Assignment { cpu_mechanism: CpuMechanism::Deadline, ..wanted.clone() };
    node.client().enforce(said).unwrap();
    let text = told();
    assert!(text.contains("by deadline"), "{text}");
    assert!(text.contains(&format!("not all of it by SCHED_DEADLINE: {why}")), "{text}");
    node.client().enforce(wanted).unwrap();
    assert_eq!(kept_by(), Some(CpuMechanism::Bandwidth));

    drop(program);
    let (_program, _) = node.start(true, "while :; do :; done");
    wait("the deadlines", PATIENCE, || kept_by() == Some(CpuMechanism::Deadline));
    assert_eq!(node.job().unwrap().cpu_obstacle, None);
    node.uses(0.27..=0.32, Duration::from_secs(1));
}

/// A program that computes without end, for 100 ms in its only thread and for 100 ms in another by turns.
const BY_TURNS: &str = r#"
#include <pthread.h>
#include <time.h>
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
static void *compute(void *nothing) {
    double until = now() + 0.1;
    while (now() < until) {}
    return nothing;
}
int main(void) {
    for (;;) {
        pthread_t other;
        compute(0);
        if (pthread_create(&other, 0, compute, 0) || pthread_join(other, 0)) return 1;
    }
}
"#;

// Goal: a job whose process has several threads at some looks and one at others has its share, and what keeps that does not
// change with every look. Method: beside a loop that could take all that is left; what it has used over several seconds.
#[test]
fn a_job_whose_threads_come_and_go_has_its_share() {
    const SPAN: Duration = Duration::from_secs(5);
    let Some(world) = World::new("turns", 40) else { return };
    let node = Node::first(&world);
    let capabilities = node.client().status().unwrap().capabilities.unwrap();
    if !capabilities.has(Feature::CpuDeadline) {
        let answer = capabilities.answer(Feature::CpuDeadline).unwrap();
        return skip(&["deadline".into()], &answer.to_string());
    }
    let [source, program] = ["turns.c", "turns"].map(|name| world.directory.path().join(name));
    fs::write(&source, BY_TURNS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let period = Some(Nanos::from_millis(20));
    node.client().enforce(Assignment { cpu_period_nanos: period, ..assignment(30) }).unwrap();
    let (_program, _) = node.start(true, &format!("exec {}", program.display()));
    let (_other, _) = node.start(false, "while :; do :; done");
    let kept_by = || node.job().and_then(|job| job.cpu_kept_by);
    // At the first look that finds two threads; it is found with one soon after.
    let why = || node.job().and_then(|job| job.cpu_obstacle).unwrap_or_default();
    wait("the threads", PATIENCE, || why().contains("has 2 threads"));
    let (start, before) = (Instant::now(), node.job().unwrap().cpu_used_nanos);
    let mut deadlines = 0;
    while start.elapsed() < SPAN {
        deadlines += usize::from(kept_by() == Some(CpuMechanism::Deadline));
        std::thread::sleep(Duration::from_millis(50));
    }
    let used = node.job().unwrap().cpu_used_nanos.saturating_sub(before);
    let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
    assert_eq!(deadlines, 0, "it has used {share}");
    assert!((0.27..=0.32).contains(&share), "{share}");
    assert!(why().contains("has 2 threads"), "{}", why());
}

/// What the kernel says of a process, by its number here.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

// Goal: a share that is kept from user space is had beside others, as exactly as by the kernel, and nothing is left standing
// still by an agent that was killed, whether another comes or not. Method: a loop that ran before is bound to a job and
// computes beside another; the agent is killed while the loop is held, again and again, and the last one knows of no job.
#[test]
fn a_share_is_kept_from_user_space_and_nothing_stands_still_after_a_kill() {
    let Some(world) = World::new("edf", 40) else { return };
    let node = Node::first(&world);
    let capabilities = node.client().status().unwrap().capabilities.unwrap();
    if let Some(answer) = capabilities.answer(Feature::CpuUserLevel).filter(|a| **a != Answer::Yes)
    {
        return skip(&["user-level".into()], &answer.to_string());
    }
    let wanted = Assignment {
        cpu_period_nanos: Some(Nanos::from_millis(50)),
        cpu_mechanism: CpuMechanism::UserLevel,
        ..assignment(20)
    };
    node.client().enforce(wanted.clone()).unwrap();
    let busy = "while :; do :; done";
    let (_other, _) = node.start(false, busy);
    let (mut program, number) = node.start(false, busy);
    assert_code(&node.bind(&["--pid", &number.to_string()]), 0);
    assert_eq!(node.job().unwrap().cpu_kept_by, Some(CpuMechanism::UserLevel));
    let status = Command::new(KEEPTIME).args(["agent", "status"]).arg(&node.socket).output();
    let text = said(&status.unwrap());
    assert!(text.contains("by user-level") && !text.contains("not by"), "{text}");
    let uses = |wanted| node.uses(wanted, Duration::from_secs(2));
    uses(0.18..=0.22);
    // The next agent takes it up again.
    world.kill_agent("n1");
    world.start_agent("n1");
    uses(0.18..=0.22);

    // Its slice is over for most of each second: at one of these kills it is.
    let little = Assignment {
        cpu_ppm: CpuPpm::from_percent(2),
        cpu_period_nanos: Some(Nanos::from_secs(1)),
        ..wanted
    };
    node.client().enforce(little).unwrap();
    let pids = node.group().child(JOB).unwrap().pids().unwrap();
    let [pid] = pids[..] else { panic!("{pids:?}") };
    for _ in 0..3 {
        wait("the end of its slice", PATIENCE, || state(pid) == 'T');
        world.kill_agent("n1");
        wait("the loop to go on without an agent", PATIENCE, || state(pid) == 'R');
        world.start_agent("n1");
    }
    // A guard that does nothing is in nobody's way, and what it leaves is not lost.
    wait("the end of its slice", PATIENCE, || state(pid) == 'T');
    let mut guards = node.group().child("_agent").unwrap().pids().unwrap();
    let agent = world.agent("n1") as i32;
    guards.retain(|pid| *pid != agent);
    let [guard] = guards[..] else { panic!("{guards:?}") };
    kill(Pid::from_raw(guard), Signal::SIGSTOP).unwrap();
    wait("the guard to stop", PATIENCE, || state(guard) == 'T');
    world.kill_agent("n1");
    std::fs::write(node.socket.with_file_name("assignments.json"), "{}").unwrap();
    world.start_agent("n1");
    wait("the loop to go on", PATIENCE, || state(pid) == 'R');
    assert!(node.job().is_none() && !program.has_ended());
    let rest = node.group().rest().unwrap();
    wait("where it was before", PATIENCE, || rest.pids().unwrap().contains(&pid));
    assert_eq!(state(pid), 'R');
}

#[test]
fn what_was_bound_counts_to_the_job_and_goes_back_when_it_ends() {
    let Some(world) = World::new("bind", 20) else { return };
    let node = Node::first(&world);
    let unknown = node.bind(&["--pid", "1"]);
    assert_code(&unknown, 2);
    assert!(said(&unknown).contains("no job job is assigned here"), "{}", said(&unknown));
    node.client().enforce(Assignment { flows: vec![world.flow()], ..assignment(10) }).unwrap();

    // A sender whose connection is open before anything is bound.
    let name = world.name.as_str();
    let receive = ["lab", "exec", "--die-with-parent", name, "n2", "--", KEEPTIME, "traffic"];
    let receive = [&receive[..], &["receive", "--warmup", "0s", "--length", "600s"]].concat();
    let mut receive = world.keeptime(&receive);
    let receiver = receive.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _receiver = Program(receiver.spawn().unwrap());
    let to = format!("{}:5001", world.address(1));
    let (mut sender, pid) = node.start(false, &format!("exec '{KEEPTIME}' traffic send {to}"));
    let (mut launched, _) = node.start(true, "exec sleep 100");
    let sent = || node.job().unwrap().flows[0].sent_bytes.get();
    let connected = || node.bind(&["--flow", &to]).status.success();
    wait("the connection", PATIENCE, connected);
    wait("traffic of the connection", PATIENCE, || sent() > 200_000);
    assert_eq!(node.job().unwrap().bound_sockets, 1);
    let bound = node.bind(&["--pid", &pid.to_string(), "--pid", "999999"]);
    assert_code(&bound, 0);
    let job = node.job().unwrap();
    assert_eq!((job.borrowed.as_slice(), job.bound_sockets), ([pid].as_slice(), 1));
    assert_eq!(job.processes.len(), 2);

    // What is wrong is named, and nothing changes.
    for (words, expected) in [
        (["--pid", "1"], "process 1 is the agent or the first of this node"),
        (["--pid", "999999"], "process 999999 is not there"),
        (["--flow", "10.9.9.9"], "job job has no flow to 10.9.9.9"),
        (["--flow", &format!("{}:1", world.address(1))], "an open TCP connection of this node"),
    ] {
        let output = node.bind(&words);
        assert_code(&output, 2);
        assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
    }
    assert_eq!(node.job().unwrap().borrowed, [pid]);

    // The next agent finds both, and the end of the job ends what was started for it and nothing else.
    world.kill_agent("n1");
    world.start_agent("n1");
    let job = node.job().unwrap();
    assert_eq!((job.borrowed.as_slice(), job.bound_sockets), ([pid].as_slice(), 1));
    let before = sent();
    wait("more traffic", PATIENCE, || sent() > before + 100_000);
    let rest = node.group().rest().unwrap();
    let others = rest.pids().unwrap().len();
    node.client().withdraw(&JOB.parse().unwrap()).unwrap();
    wait("the end of what was launched", PATIENCE, || launched.has_ended());
    assert!(!sender.has_ended(), "what was bound goes on");
    assert_eq!(rest.pids().unwrap().len(), others + 1, "where it was before");
    assert!(!world.has_tree("n1"));
}

#[test]
fn a_node_is_cleared_when_no_agent_runs_and_no_job_is_left_or_it_may_end() {
    let Some(world) = World::new("clear", 20) else { return };
    let node = Node::first(&world);
    node.client().enforce(Assignment { flows: vec![world.flow()], ..assignment(10) }).unwrap();
    let (mut launched, _) = node.start(true, "exec sleep 100");
    let (mut other, _) = node.start(false, "exec sleep 100");
    let group = node.group();

    let beside_an_agent = node.clear(&["--end-jobs"]);
    assert_code(&beside_an_agent, 2);
    assert!(said(&beside_an_agent).contains("an agent runs here"), "{}", said(&beside_an_agent));
    world.kill_agent("n1");
    let beside_a_job = node.clear(&[]);
    assert_code(&beside_a_job, 1);
    assert!(said(&beside_a_job).contains("still enforced on n1: job"), "{}", said(&beside_a_job));
    assert!(world.has_tree("n1") && !launched.has_ended(), "nothing was touched");

    // What is on a device that only has another name would stay.
    let config = node.socket.with_file_name("agent.toml");
    let (text, device) = (fs::read_to_string(&config).unwrap(), world.lab().device());
    let renamed = text.replace(&format!("{device:?}"), "\"gone0\"");
    assert_ne!(renamed, text);
    fs::write(&config, renamed).unwrap();
    let elsewhere = node.clear(&["--end-jobs"]);
    assert_code(&elsewhere, 2);
    let told = format!("no network device gone0, and {device} has what an agent puts there");
    assert!(said(&elsewhere).contains(&told), "{}", said(&elsewhere));
    assert!(world.has_tree("n1") && !launched.has_ended(), "nothing was touched");
    fs::write(&config, text).unwrap();

    let cleared = node.clear(&["--end-jobs"]);
    assert_code(&cleared, 0);
    assert!(said(&cleared).contains("ended: job"), "{}", said(&cleared));
    wait("the end of what was started in the job", PATIENCE, || launched.has_ended());
    assert!(!other.has_ended(), "what is of no job goes on");
    assert!(!world.has_tree("n1") && !group.exists());
    assert!(world.programs("n1").is_empty(), "an idle node has one, a cleared node has none");
    assert!(!node.socket.exists() && !node.socket.with_file_name("assignments.json").exists());
    assert!(!node.socket.with_extension("sock.lock").exists());
}

// Goal: on a node where nothing is reserved nobody has a class at switches by a socket option, by IPv4 or IPv6, whether
// its agent lives or not. Method: datagrams that ask for EF, and what arrives on the other node, while the agent is killed
// and started, its program taken off, and a reservation comes and goes; once more when the node is cleared, where it
// has to arrive as it was sent, or the test would show nothing.
#[test]
fn a_node_without_reservations_sends_no_code_point_that_nobody_reserved() {
    const EF_AND_ECN: u8 = 46 << 2 | 1;
    let Some(world) = World::new("marks", 20) else { return };
    let node = Node::first(&world);
    let inside = |node: &str| world.lab().network(node).unwrap();
    let mut addresses = vec![IpAddr::from(world.address(1))];
    let device = world.lab().device();
    let own = [1, 2].map(|last| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last));
    let given = ["n1", "n2"]
        .into_iter()
        .zip(own)
        .try_for_each(|(node, own)| inside(node).run(|| marks::give_ipv6(device, own)).unwrap());
    match given {
        Ok(()) => addresses.push(own[1].into()),
        Err(reason) => skip(&["ipv6".into()], &reason),
    }
    let assert_arrives = |expected: u8, when: &str| {
        for to in &addresses {
            let receiver = inside("n2").run(|| marks::receiver(*to).unwrap()).unwrap();
            let to = receiver.local_addr().unwrap();
            let sender = inside("n1").run(|| marks::sender(to, EF_AND_ECN).unwrap()).unwrap();
            sender.send_to(b"x", to).unwrap();
            assert_eq!(marks::received(&receiver).unwrap(), expected, "{when}, to {to}");
        }
    };
    let program = world.programs("n1");
    assert!(program.len() == 1 && !world.has_tree("n1"), "{program:?}, and no classes");
    assert_arrives(1, "nothing is reserved");
    world.kill_agent("n1");
    assert_arrives(1, "no agent is there");
    world.start_agent("n1");
    assert_eq!(world.programs("n1"), program, "the next agent takes it up");

    world.on_device("n1", |socket, index| detach_programs(socket, index, Hook::Egress).unwrap());
    wait("another program", PATIENCE, || world.programs("n1").len() == 1);
    assert_arrives(1, "it was taken off and is back");

    let wanted = Assignment { flows: vec![world.flow()], ..assignment(10) };
    node.client().enforce(wanted).unwrap();
    assert!(world.has_tree("n1"));
    assert_arrives(1, "something is reserved for a job");
    node.client().withdraw(&JOB.parse().unwrap()).unwrap();
    assert!(!world.has_tree("n1") && world.programs("n1").len() == 1);
    assert_arrives(1, "what was reserved is over");

    world.kill_agent("n1");
    assert_code(&node.clear(&[]), 0);
    assert!(world.programs("n1").is_empty());
    assert_arrives(EF_AND_ECN, "nothing of Keeptime's is there");
}

#[test]
fn disk_rates_are_set_for_the_job_and_for_all_others_and_end_with_it() {
    let Some(world) = World::new("disk", 20) else { return };
    let node = Node::first(&world);
    let hierarchies = Hierarchies::discover().unwrap();
    let (Some(disk), Some(throttle)) = (disks().first().copied(), hierarchies.throttle()) else {
        return skip(&["blkio".into()], "no disk, or nothing that throttles it");
    };
    let writing = |mega_bytes| {
        let rate = Some(BytesPerSecond::from_mega_bytes(mega_bytes));
        DiskRates::default().with(DiskDirection::Write, rate)
    };
    let wanted = Assignment { disks: [(disk, writing(30))].into(), ..assignment(10) };
    let reason = refusal(node.client().enforce(wanted.clone()));
    assert!(reason.contains("this node can reserve no disk"), "{reason}");

    // The node gets a disk to promise.
    let config = world.lab().node_directory(&"n1".parse().unwrap()).join("agent.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let entry =
        format!("\n[[disks]]\ndevice = \"{disk}\"\nread = \"100 MB/s\"\nwrite = \"50 MB/s\"\n");
    world.kill_agent("n1");
    std::fs::write(&config, text + &entry).unwrap();
    world.start_agent("n1");
    node.client().enforce(wanted.clone()).unwrap();
    let over = Assignment { job: "other".parse().unwrap(), ..wanted.clone() };
    let reason = refusal(node.client().enforce(over));
    assert!(reason.contains("20 MB/s of 50 MB/s is free"), "{reason}");
    let limits = |group: &Group| throttle.observe(group.path()).unwrap().get(&disk).copied();
    let rest = node.group().rest().unwrap();
    assert_eq!(limits(&node.group().child(JOB).unwrap()), Some(writing(30)));
    assert_eq!(limits(&rest), Some(writing(20)), "others share what is left");
    assert!(node.job().unwrap().disks.contains_key(&disk));
    // What somebody else sets lasts until the next look.
    let job = node.group().child(JOB).unwrap();
    job.set_disks(&[(disk, writing(49))].into()).unwrap();
    rest.set_disks(&[(disk, writing(50))].into()).unwrap();
    job.lift_cpu().unwrap();
    let repaired = || limits(&job) == Some(writing(30)) && limits(&rest) == Some(writing(20));
    wait("the rates of disks", PATIENCE, repaired);
    let limited = || job.cpu_limit().unwrap() == Some(CpuPpm::from_percent(10));
    wait("the limit of the CPU", PATIENCE, limited);
    // An agent that comes back finds limits that it does not remember to have set.
    world.kill_agent("n1");
    world.start_agent("n1");
    node.client().withdraw(&JOB.parse().unwrap()).unwrap();
    assert_eq!(limits(&rest), None);
    let unknown: DiskId = "511:255".parse().unwrap();
    let wanted = Assignment { disks: [(unknown, writing(1))].into(), ..assignment(10) };
    let reason = refusal(node.client().enforce(wanted));
    assert!(reason.contains("on disk 511:255, and this node can reserve"), "{reason}");
}

#[test]
fn a_job_that_begins_later_is_nothing_until_then() {
    let Some(world) = World::new("later", 20) else { return };
    let node = Node::first(&world);
    let begin = now().saturating_add(Nanos::from_secs(4));
    let later = Assignment { from_unix_nanos: begin, ..assignment(20) };
    // Before it there is room, across it there is none.
    let before =
        Assignment { until_unix_nanos: begin, job: "before".parse().unwrap(), ..assignment(20) };
    let across = Assignment { job: "across".parse().unwrap(), ..assignment(1) };
    node.client().enforce(later).unwrap();
    node.client().enforce(before.clone()).unwrap();
    let reason = refusal(node.client().enforce(across));
    assert!(reason.contains("across asks for 1 % CPU and 0"), "{reason}");
    let beyond = begin.saturating_add(Nanos::from_secs(1));
    let reason = refusal(node.client().renew(&before.job, beyond));
    assert!(reason.contains("before asks for 20 %"), "{reason}");
    let exists = node.group().child(JOB).unwrap().exists();
    // Unless this machine is so slow that the look came too late.
    assert!(now() >= begin || !exists, "enforced before its begin");
    assert_eq!(node.client().status().unwrap().jobs.len(), 2);
    let group = node.group();
    let began = || group.child(JOB).unwrap().exists();
    wait("its begin", PATIENCE, began);
    assert!(now() >= begin);
    assert!(!group.child("before").unwrap().exists());
}

#[test]
fn a_service_counts_to_the_job_that_names_it_and_goes_on_when_that_ends() {
    let Some(world) = World::new("service", 20) else { return };
    let node = Node::first(&world);
    let start = |service: &str| {
        let exec = Exec::shell("n1", ["sleep 600 & wait"]).of_service(service.parse().unwrap());
        world.lab().spawn_daemon(exec).unwrap();
    };
    let naming = |service: &str| {
        let services = vec![service.parse::<ServiceName>().unwrap()];
        node.client().enforce(Assignment { services, ..assignment(10) })
    };
    let running = |service: &str| {
        let unit = service.parse::<ServiceName>().unwrap().unit();
        node.group().service_processes(&unit).unwrap().len()
    };
    let borrowed = || node.job().unwrap().borrowed.len();
    ["web@shop", "web@blog"].iter().for_each(|service| start(service));
    wait("both services", PATIENCE, || (running("web@shop"), running("web@blog")) == (2, 2));

    let reason = refusal(naming("wbe@shop"));
    assert!(reason.contains("service wbe@shop has no process on this node"), "{reason}");
    assert!(node.job().is_none());
    naming("web@shop").unwrap();
    assert_eq!((borrowed(), running("web@shop"), running("web@blog")), (2, 0, 2));
    // What is started later joins.
    start("web@shop");
    wait("the later ones", PATIENCE, || borrowed() == 4 && running("web@shop") == 0);
    // Another agent knows whose they are, and hands the job from one service to the other.
    world.kill_agent("n1");
    world.start_agent("n1");
    assert_eq!(borrowed(), 4);
    naming("web@blog").unwrap();
    assert_eq!((borrowed(), running("web@shop"), running("web@blog")), (2, 4, 0));
    let reason = refusal(naming("wbe@blog"));
    assert!(reason.contains("wbe@blog"), "{reason}");
    assert_eq!((borrowed(), running("web@shop"), running("web@blog")), (2, 4, 0));
    node.client().withdraw(&JOB.parse().unwrap()).unwrap();
    assert_eq!((running("web@shop"), running("web@blog")), (4, 2), "all go on where they were");
}
