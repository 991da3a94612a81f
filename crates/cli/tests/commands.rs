//! The program as people call it: exit codes, and errors that say what would be accepted.

#![allow(clippy::unwrap_used, reason = "tests")]

use clap::CommandFactory;
use keeptime::arguments::Arguments;
use keeptime_agent::client::Client;
use keeptime_agent::clock::now;
use keeptime_linux::testing::skip;
use keeptime_model::assignment::Assignment;
use keeptime_model::units::{CpuPpm, Nanos};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// For what has to happen at some time: no machine is so busy that it takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn keeptime(arguments: &[&str]) -> Output {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    Command::new(env!("CARGO_BIN_EXE_keeptime")).args(arguments).current_dir(root).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn bad_input_names_the_value_and_what_would_be_accepted() {
    let mechanisms = "auto, bandwidth, deadline or user-level";
    let cases: [(&[&str], i32, &str); 27] = [
        (&["plan", "raycast", "--within", "1parsec"], 64, "a number and a unit"),
        (&["plan", "raycast", "--prefer", "nicest"], 64, "fastest, best, cheapest or balanced"),
        (&["run", "raycast", "--mechanism", "edf"], 64, mechanisms),
        (&["reserve", "--until", "18:00", "--wait", "1min"], 64, "cannot be used with"),
        (&["plan", "no-such-app"], 2, "no application \"no-such-app\""),
        (&["plan", "raycast", "--lab", "no-such-lab"], 2, "no lab called no-such-lab"),
        (&["lab", "up", "t-bad", "--nodes", "17"], 64, "17"),
        (&["lab", "up", "t-bad", "--nodes", "0"], 64, "0"),
        (&["lab", "up", "T/bad"], 64, "a lower-case letter"),
        (&["lab", "down", "no-such-lab"], 2, "no-such-lab"),
        (&["agent", "status", "/nowhere/agent.sock"], 2, "does not answer"),
        (
            &["agent", "run", "--config", "/nowhere/agent.toml"],
            2,
            "cannot read /nowhere/agent.toml",
        ),
        (&["lab", "up", "t-bad", "--cpu", "much"], 64, "much"),
        (&["lab", "up", "t-bad", "--switches", "0"], 64, "at least 1"),
        (&["report", "/nowhere"], 2, "/nowhere"),
        (&["bind", "job", "--socket", "/nowhere/agent.sock"], 64, "--pid"),
        (
            &["bind", "job", "--pid", "7", "--socket", "/nowhere/agent.sock"],
            2,
            "agent.sock does not answer: No such file or directory (os error 2); asking again for 10 s\n",
        ),
        (
            &["bind", "job", "--flow", "n2:80", "--socket", "/nowhere/agent.sock"],
            64,
            "LOCAL-REMOTE",
        ),
        (
            &["mpi", "environment", "--class", "premium", "--service-level", "16"],
            64,
            "a whole number from 0 to 15",
        ),
        (&["mpi", "attach", "r1", "--class", "gold"], 64, "expected premium or best-effort"),
        (&["mpi", "attach", "r1", "--class", "low-latency"], 64, "expected premium or best-effort"),
        (&["watch", "--after", "foo"], 64, "after: \"foo\" is not accepted; expected the id of an"),
        (
            &["node", "drain", "n[1-4", "--reason", "x"],
            64,
            "expected names of nodes, as in n1,n2 or n[",
        ),
        (&["run", "raycast", "--among", "n[1-2],N3"], 64, "name: \"N3\""),
        (
            &["sim", "run", "--topology", "star:4", "--trace", "README.md"],
            64,
            "README.md, line 1: \"2 fields\" is not accepted",
        ),
        (
            &["list", "--broker", "https://head:7411", "--client-config", "/dev/null"],
            64,
            "--ca, KEEPTIME_CA, or `ca` in client.toml",
        ),
        (&["no-such-command"], 64, "no-such-command"),
    ];
    for (arguments, code, expected) in cases {
        let output = keeptime(arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text} should contain {expected}");
    }
}

// Goal: whoever has no application file is told what is missing or not possible, before a broker is looked for.
#[test]
fn a_program_without_an_application_file_is_refused_with_what_to_do() {
    let rate = ["--rate", "30 %", "-n", "4"];
    let by = ["--by", "+1h", "-n", "2..8"];
    let cases: [(&[&str], &[&str], &str); 14] = [
        (&[], &[], "required arguments were not provided"),
        (&[], &["./solver"], "--nodes with either --rate, or --by and --takes"),
        (&["--rate", "30 %"], &["./solver"], "--nodes"),
        (&["-n", "4"], &["./solver"], "keeptime profile NAME"),
        (&["-n", "4", "--within", "1s"], &["./solver"], "keeptime profile NAME"),
        (&by, &["./solver"], "takes is missing"),
        (&["--rate", "30 %", "-n", "2..8"], &["./solver"], "a range goes with --by"),
        (&rate, &["mpiexec", "-n", "4", "./solver"], "one rank on each of --nodes"),
        (&rate, &["mpirun"], "the program right after the launcher"),
        (&rate, &["mpirun", "./a", ":", "./b"], "one program for all ranks"),
        (&[&rate[..], &["--cpu", "0 %"]].concat(), &["./solver"], "cpu: "),
        (&[&rate[..], &["--pattern", "cube"]].concat(), &["./solver"], "hypercube"),
        (&[&rate[..], &["--steady"]].concat(), &["./solver"], "cannot be used with"),
        (&[&["bsp"], &rate[..]].concat(), &["./solver"], "cannot be used with"),
    ];
    for (options, program, expected) in cases {
        let end: &[&str] = if program.is_empty() { &[] } else { &["--"] };
        let arguments = [&["run"], options, end, program].concat();
        let output = keeptime(&arguments);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text} should contain {expected}");
    }
    let of_a_file = keeptime(&["run", "bsp", "--rate", "30 %", "--cpu", "50 %"]);
    assert_eq!(of_a_file.status.code(), Some(64), "{}", said(&of_a_file));
    assert!(said(&of_a_file).contains("--cpu"), "{}", said(&of_a_file));
}

// Goal: figures become a page, a damaged file beside them is told, and a directory without any is refused with what
// would be accepted. Method: the files as a benchmark leaves them.
#[test]
fn figures_are_reported_and_damaged_ones_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    fs::write(directory.path().join("torn.json"), "[{").unwrap();
    let refused = keeptime(&["report", path]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("make bench-NAME"), "{}", said(&refused));

    let figure = serde_json::json!([{
        "name": "a plan", "value": 7.25, "unit": "ms", "samples": 30, "spread": 0.5, "baseline": 9,
        "target": "<= 10", "met": true, "command": "make bench-plan"
    }]);
    fs::write(directory.path().join("plan.json"), figure.to_string()).unwrap();
    let output = keeptime(&["report", path]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("left out: torn.json: not figures"), "{}", said(&output));
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("1 figure, 1 target: 1 met.") && page.contains("<svg"), "{page}");
}

/// Waits for a condition.
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent without a control group, which anybody can run, with its files in `directory`.
fn agent(directory: &Path) -> Command {
    let at = |name: &str| directory.join(name);
    let text = format!(
        "node = \"n1\"\nsocket = {:?}\nassignments = {:?}\ndevice = \"lo\"\n\
         rate = \"100 Mbit/s\"\ncpu = \"10 %\"\n",
        at("agent.sock"),
        at("assignments.json")
    );
    fs::write(at("agent.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(["agent", "run", "--config"]).arg(at("agent.toml"));
    command
}

/// One that runs, and answers.
fn running_agent(directory: &Path) -> Running {
    let agent = Running(agent(directory).stderr(Stdio::null()).spawn().unwrap());
    wait("the agent", || UnixStream::connect(directory.join("agent.sock")).is_ok());
    agent
}

/// The same with a job: `r1`.
fn agent_with_job(directory: &Path) -> Running {
    let agent = running_agent(directory);
    let until = now().saturating_add(Nanos::from_secs(3_600));
    let assigned = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(1), until);
    Client::connect(&directory.join("agent.sock")).unwrap().enforce(assigned).unwrap();
    agent
}

/// A command of that job.
fn in_job(directory: &Path, options: &[&str], command: &[&str]) -> Command {
    let mut exec = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    exec.args(["agent", "exec", "--job", "r1", "--socket"]).arg(directory.join("agent.sock"));
    exec.args(options).arg("--").args(command);
    exec
}

// Goal: what holds nothing ends at the first signal, so that systemd does not wait for it in vain.
#[test]
fn an_agent_ends_at_the_first_signal() {
    let directory = tempfile::tempdir().unwrap();
    let mut agent = running_agent(directory.path());
    kill(Pid::from_raw(agent.0.id() as i32), Signal::SIGTERM).unwrap();
    wait("its end", || agent.0.try_wait().unwrap().is_some());
    let ended = agent.0.wait().unwrap();
    assert_eq!(ended.signal(), Some(Signal::SIGTERM as i32));
}

// Goal: what cannot work is noticed where the configuration is checked, all of it at once and by the exit code, since what
// follows is `&& systemctl enable --now`; and what was found right is told.
#[test]
fn a_check_fails_where_the_agent_could_not_work() {
    let directory = tempfile::tempdir().unwrap();
    let checked = |device: &str, more: &str| {
        let mut command = agent(directory.path());
        let path = directory.path().join("agent.toml");
        let text = fs::read_to_string(&path).unwrap().replace("\"lo\"", device);
        fs::write(&path, text + "cgroup = \"keeptime/t-check\"\n" + more).unwrap();
        command.arg("--check").output().unwrap()
    };
    let files = "[broker_tls]\naddress = \"head:7412\"\ncertificate = \"/nowhere/a.pem\"\n\
                 key = \"/nowhere/a-key.pem\"\nca = \"/nowhere/ca.pem\"\n";
    let missing = checked("\"nowhere0\"", files);
    assert_eq!(missing.status.code(), Some(2), "{}", said(&missing));
    let told = String::from_utf8_lossy(&missing.stderr);
    assert!(told.contains("there is no network device nowhere0, "), "{told}");
    assert!(told.contains("those that are there: "), "{told}");
    assert!(told.contains("ca: cannot read /nowhere/ca.pem: "), "{told}");
    assert!(told.ends_with("could not work: 4 wrong\n"), "{told}");
    let right = String::from_utf8_lossy(&missing.stdout);
    assert!(right.contains("cpu: ") && !right.contains("device"), "{right}");
    let found = checked("\"lo\"", "");
    assert!(!said(&found).contains("no network device"), "{}", said(&found));
}

// Goal: what an agent enforces and records is not touched by another that is started beside it. Method: its record becomes
// one with which none could start, which is met by who looks at it.
#[test]
fn an_agent_beside_another_says_so_before_it_looks_at_anything() {
    let directory = tempfile::tempdir().unwrap();
    let first = running_agent(directory.path());
    fs::write(directory.path().join("assignments.json"), "no record").unwrap();
    let output = agent(directory.path()).output().unwrap();
    assert!(!output.status.success());
    let running = format!("an agent runs here: process {} holds", first.0.id());
    assert!(said(&output).contains(&running), "{}", said(&output));
}

// Goal: of agents that are started in the same instant one serves the node.
#[test]
fn of_agents_that_start_together_one_serves() {
    let directory = tempfile::tempdir().unwrap();
    let mut commands = [(); 4].map(|()| agent(directory.path()));
    let mut agents =
        commands.each_mut().map(|agent| Running(agent.stderr(Stdio::null()).spawn().unwrap()));
    let mut ended = || {
        let ended = agents.iter_mut().filter_map(|agent| agent.0.try_wait().unwrap());
        ended.map(|status| status.code()).collect::<Vec<_>>()
    };
    wait("the end of all others", || ended().len() == 3);
    wait("the one", || UnixStream::connect(directory.path().join("agent.sock")).is_ok());
    assert_eq!(ended(), [Some(2); 3]);
}

// Goal: whoever has read enough, as `head` has, is no fault of a command, which says nothing and ends as by SIGPIPE.
// Method: nobody reads from the beginning on.
#[test]
fn output_that_nobody_reads_ends_a_command_silently() {
    for words in [&["mpi", "environment", "--class", "premium"][..], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
        let output = command.args(words).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{}", said(&output));
        assert_eq!(said(&output), "");
    }
}

// Goal: whose output cannot be written is told so, by a code of its own kind and not as by a bug. Method: a disk that is
// always full.
#[test]
fn output_for_which_there_is_no_room_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(["mpi", "environment", "--class", "premium"]).stdout(full);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).starts_with("keeptime: cannot write to standard output: "));
    assert!(!said(&output).contains("panicked"), "{}", said(&output));
}

// Goal: a log that goes into a file is text. Method: an agent that says something before it ends.
#[test]
fn what_is_logged_into_a_file_has_no_colours() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let mut agent = agent(directory.path());
    agent.env_remove("NO_COLOR").env("TERM", "xterm-256color").env("KEEPTIME_LOG", "trace");
    let _agent = Running(agent.stderr(fs::File::create(&log).unwrap()).spawn().unwrap());
    let logged = || fs::read_to_string(&log).unwrap_or_default();
    wait("a line", || logged().contains('\n'));
    assert!(!logged().contains('\x1b'), "{}", logged());
}

// Goal: a launcher on this machine can be told to end, whatever who started it has blocked to wait for it, and so can a rank
// that it starts by itself, where this machine is one of the nodes. Method: what is started in its place tells what is
// blocked in it.
#[test]
fn what_a_run_starts_has_no_signal_blocked() {
    let directory = tempfile::tempdir().unwrap();
    let _agent = agent_with_job(directory.path());
    let blocked: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    let look = ["grep", "SigBlk", "/proc/self/status"];
    blocked.thread_block().unwrap();
    let near = keeptime(&[&["launch", "near", "--"][..], &look].concat());
    let on_node = in_job(directory.path(), &[], &look).output().unwrap();
    blocked.thread_unblock().unwrap();
    for output in [near, on_node] {
        assert_eq!(said(&output), "SigBlk:\t0000000000000000\n");
    }
}

// Goal: who is started by a run that is killed just then does not go on for nobody. Method: one that is told of another
// parent than it has, before it does anything else.
#[test]
fn who_was_left_before_it_could_hear_of_that_ends() {
    let (own, other) = (std::process::id().to_string(), i32::MAX.to_string());
    let near = |parent: &str| keeptime(&["launch", "near", "--parent", parent, "--", "echo", "on"]);
    assert_eq!(said(&near(&own)), "on\n");
    let bound = ["--die-with-parent", "--parent", other.as_str()];
    let exec = in_job(Path::new("/nowhere"), &bound, &["echo", "on"]).output().unwrap();
    let lab = [&["lab", "exec"], &bound[..], &["no-such-lab", "n1", "--", "echo", "on"]].concat();
    for output in [near(&other), exec, keeptime(&lab)] {
        assert_eq!(output.status.signal(), Some(Signal::SIGKILL as i32), "{}", said(&output));
        assert_eq!(said(&output), "");
    }
}

// Goal: who sends a user's signal to all processes, as batch systems do, does not end a command by ending what has started
// it for its job; and what a run passes on comes to its launcher, which has what others send to all by itself. Method: a
// command that says its number, and what it has heard. Of several signals the lowest is heard first.
#[test]
fn a_users_signal_is_for_the_command_of_a_job() {
    let directory = tempfile::tempdir().unwrap();
    let _agent = agent_with_job(directory.path());
    let script = "trap 'echo another' USR1; trap 'echo heard; exit 3' USR2; echo $$; \
                  while :; do sleep 0.05; done";
    for options in [&["--die-with-parent"][..], &[]] {
        let mut exec = in_job(directory.path(), options, &["sh", "-c", script]);
        let mut exec = Running(exec.stdout(Stdio::piped()).spawn().unwrap());
        let mut output = BufReader::new(exec.0.stdout.take().unwrap());
        let (mut command, mut rest) = (String::new(), String::new());
        output.read_line(&mut command).unwrap();
        let others = format!("kill -USR1 {}", exec.0.id());
        assert!(Command::new("sh").args(["-c", &others]).status().unwrap().success());
        let tell = |process: i32| kill(Pid::from_raw(process), Signal::SIGUSR2).unwrap();
        tell(exec.0.id() as i32);
        if options.is_empty() {
            tell(command.trim().parse().unwrap());
        }
        wait("its end", || exec.0.try_wait().unwrap().is_some());
        assert_eq!(exec.0.wait().unwrap().code(), Some(3), "{options:?}");
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "heard\n", "{options:?}");
    }
}

/// A run whose broker does not answer; and that broker, as long as it is to wait for it.
fn run_that_asks_in_vain(words: &[&str]) -> (Running, impl Sized) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("broker.sock");
    let silent = UnixListener::bind(&socket).unwrap();
    silent.set_nonblocking(true).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(["run", "bsp", "--broker"]).arg(&socket).args(words).current_dir(root);
    // In a group of its own, as the jobs of a shell are: the kernel does not stop one that no shell would set going again.
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = Running(command.spawn().unwrap());
    // It listens for signals before it asks.
    let mut connection = None;
    wait("its question", || {
        connection = silent.accept().ok();
        connection.is_some()
    });
    (run, (directory, silent, connection))
}

// Goal: a run does not lose what it holds by Ctrl-Z, and says so; and a signal for its program does not end it. Method: one
// whose broker has not answered yet.
#[test]
fn a_run_is_neither_stopped_at_its_terminal_nor_ended_by_what_its_program_is_told() {
    let (mut run, _broker) = run_that_asks_in_vain(&["--within", "1s"]);
    let process = Pid::from_raw(run.0.id() as i32);
    for signal in [Signal::SIGUSR1, Signal::SIGTSTP] {
        kill(process, signal).unwrap();
    }
    let mut told = String::new();
    BufReader::new(run.0.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("not stopped: "), "{told}");
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    assert!(!status.contains("State:\tT"), "{status}");
}

// Goal: who loses the connection to their terminal leaves nothing running. Method: requests that nobody answers, for
// longer than the test waits; what is held ends in order, with a report.
#[test]
fn what_runs_at_a_terminal_ends_in_order_when_that_is_closed() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    // Whatever ran the tests may ignore the signal, and what it starts would.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_keeptime"), "load", &url]);
    command.args(["--rate", "10", "--duration", "1h", "--timeout", "1s", "--connections", "4"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = Running(command.spawn().unwrap());
    // It has begun, and listened for signals before that.
    let _connection = silent.accept().unwrap();
    kill(Pid::from_raw(load.0.id() as i32), Signal::SIGHUP).unwrap();
    wait("its end", || load.0.try_wait().unwrap().is_some());
    assert_eq!(load.0.wait().unwrap().code(), Some(0));
}

// Goal: a script that sends load to sites that are not there knows it. Method: a port at which nobody listens.
#[test]
fn load_that_nothing_answers_is_an_error_that_is_told_behind_the_report() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}/");
    let load = keeptime(&["load", &url, "--rate", "20", "--duration", "1s"]);
    assert_eq!(load.status.code(), Some(2), "{}", said(&load));
    let told = said(&load);
    assert!(told.contains("requests was answered") && told.contains("not sent"), "{told}");
}

// Goal: who waits for an agent that stands still knows for what. Method: a socket that takes calls, and says nothing.
#[test]
fn bind_tells_which_agent_it_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent.sock");
    let _silent = UnixListener::bind(&socket).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(["bind", "job", "--pid", "7", "--socket"]).arg(&socket);
    let mut bind = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut told = String::new();
    BufReader::new(bind.0.stderr.take().unwrap()).read_line(&mut told).unwrap();
    let expected = format!("waiting for the agent at {}", socket.display());
    assert!(told.contains(&expected), "{told}");
}

// Goal: a command is about one cluster, and what is typed says which. Method: a lab that is not there is asked for, in
// a shell that was set up for a broker which is not there either.
#[test]
fn a_lab_that_is_typed_is_meant() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let list = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
        command.arg("list").args(words).env("KEEPTIME_BROKER", "/nowhere/broker.sock");
        command.current_dir(root).output().unwrap()
    };
    assert!(said(&list(&["--lab", "no-such-lab"])).contains("no lab called no-such-lab"));
    assert!(said(&list(&[])).contains("the broker at /nowhere/broker.sock does not answer"));
    let both = list(&["--lab", "lab", "--broker", "/nowhere/broker.sock"]);
    assert_eq!(both.status.code(), Some(64), "{}", said(&both));
}

// Goal: whoever mistypes a name, or is in another directory, is told what would do. Method: both.
#[test]
fn an_application_that_is_not_there_is_told_with_those_that_are() {
    let mistyped = said(&keeptime(&["plan", "no-such-app"]));
    assert!(mistyped.contains("there are bsp, raycast, render, or any file"), "{mistyped}");
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    let output = command.args(["plan", "raycast"]).current_dir(elsewhere.path()).output().unwrap();
    assert!(said(&output).contains("or a directory with apps/"), "{}", said(&output));
}

#[test]
fn the_agent_that_is_asked_is_the_one_that_the_environment_names() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    command.args(["agent", "status"]).env("KEEPTIME_AGENT", "/nowhere/agent.sock");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let expected = "the agent at /nowhere/agent.sock does not answer";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn more_cpu_than_the_machine_has_is_refused_with_what_it_has() {
    let processors = std::thread::available_parallelism().unwrap();
    let (name, each) = (format!("t{}-cpu", std::process::id()), format!("{processors}00 %"));
    let output = keeptime(&["lab", "up", &name, "--nodes", "2", "--cpu", &each]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains(&format!("the machine has {processors} CPUs")), "{text}");
    assert!(!said(&keeptime(&["lab", "list"])).contains(&name));
}

#[test]
fn every_command_has_help_that_says_what_it_does() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut waiting = vec![(Vec::new(), Arguments::command())];
    let mut seen = 0;
    while let Some((path, command)) = waiting.pop() {
        let about = command.get_about().map(|about| words(&about.to_string())).unwrap_or_default();
        assert!(!about.is_empty(), "{path:?} does not say what it does");
        let arguments: Vec<_> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let output = keeptime(&arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        let help = words(&said(&output));
        assert!(help.contains(&about), "{arguments:?} should contain {about:?}: {help}");
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            let path = path.iter().cloned().chain([inner.get_name().to_string()]).collect();
            waiting.push((path, inner.clone()));
        }
        seen += 1;
    }
    assert!(seen > 10, "only {seen} commands");
}

// Without root it would measure for minutes, and show that nothing was kept.
#[test]
fn the_demonstration_is_refused_to_who_cannot_have_anything_enforced() {
    let nobody = 65_534;
    let mut demo = Command::new(env!("CARGO_BIN_EXE_keeptime"));
    demo.args(["demo", "--out", "/nowhere/demo"]).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        demo.gid(nobody).uid(nobody);
    }
    match demo.output() {
        Err(error) => {
            let reason = format!("an ordinary user cannot run the program: {error}");
            skip(&["other users".to_owned()], &reason);
        }
        Ok(refused) => {
            assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
            assert!(said(&refused).contains("needs root"), "{}", said(&refused));
        }
    }
}

#[test]
fn a_missing_compiler_names_the_packages() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads");
    let output = Command::new("make")
        .args(["-C", root, "MPICXX=/nowhere/mpicxx", "MPI_NAME=missing-compiler"])
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(format!("{root}/build/missing-compiler"));
    assert!(!output.status.success());
    assert!(said(&output).contains("libopenmpi-dev"), "{}", said(&output));
}

// What distributions have is older than what the project needs: that is said before cargo stumbles over it.
#[test]
fn a_missing_or_old_rust_is_told_with_what_is_needed() {
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    let directory = tempfile::tempdir().unwrap();
    let says = |version: &str| {
        let path = directory.path().join(version);
        fs::write(&path, format!("#!/bin/sh\necho 'cargo {version} (of a test)'\n")).unwrap();
        path
    };
    let check = |cargo: &Path| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/rust");
        // By a shell: a file that was just written can be executed when no other test's child has it open.
        let cargo = format!("/bin/sh {}", cargo.display());
        let output = Command::new(script).env("CARGO", cargo).output().unwrap();
        (output.status.code().unwrap(), said(&output))
    };
    let (older, old) = (says("1.9.1"), says("1.63.0"));
    for cargo in [Path::new("/nowhere/cargo"), older.as_path(), old.as_path()] {
        let (code, text) = check(cargo);
        assert!(code == 1 && text.contains("https://rustup.rs"), "{code}: {text}");
        assert!(text.contains(&format!("Rust {wanted} or later")), "{text}");
    }
    let this = format!("{wanted}.0");
    for version in [this.as_str(), "1.1000.0", "2.0.0-nightly"] {
        let (code, text) = check(&says(version));
        assert_eq!(code, 0, "{version}: {text}");
    }
}

/// The libraries themselves say that they know the variables and take the values.
#[test]
fn transports_understand_what_they_are_told_of_a_class() {
    let words = ["mpi", "environment", "--class", "premium", "--service-level", "3"];
    let output = keeptime(&words);
    let lines = String::from_utf8(output.stdout).unwrap();
    let exported = lines.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    let environment: Vec<_> = exported.collect();
    let asked = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(arguments).envs(environment.iter().copied()).output();
        output.map(|output| said(&output)).unwrap_or_else(|error| panic!("{program}: {error}"))
    };
    let ucx = asked("ucx_info", &["-c"]);
    for transport in ["RC_VERBS", "UD_VERBS"] {
        let has = |line: &str| ucx.lines().any(|told| told == line);
        assert!(has(&format!("UCX_{transport}_TRAFFIC_CLASS=184")), "{ucx}");
        assert!(has(&format!("UCX_{transport}_SL=3")), "{ucx}");
    }
    let open_mpi = asked("ompi_info", &["--param", "btl", "openib", "--level", "9"]);
    let level = open_mpi.lines().find(|line| line.contains("\"btl_openib_ib_service_level\""));
    if open_mpi.contains("btl_openib_") {
        assert!(level.is_some_and(|line| line.contains("current value: \"3\"")), "{level:?}");
    } else {
        // Since version 5 it leaves such cards to UCX and libfabric.
        skip(&["openib".to_owned()], "this Open MPI has no transport openib");
    }

    let json = keeptime(&[&words[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["told"]["dscp"], 46);
    assert_eq!(json["environment"]["UCX_IB_SL"], "3");
}
