//! `keeptime fabric` among the daemons of two nodes, which are processes of this machine.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_fabric::{Config, Context, attrs};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const KEEPTIME: &str = env!("CARGO_BIN_EXE_keeptime");

/// A node's daemon, as it is installed.
struct Daemon {
    process: Child,
    directory: String,
    address: String,
}

impl Daemon {
    fn start(test: &str, node: &str, member: Option<&Daemon>) -> Self {
        let program = Path::new(KEEPTIME).with_file_name("keeptime-fabricd");
        assert!(program.exists(), "{} is missing: `make build` makes it", program.display());
        let directory = format!("t{}-{test}-{node}", std::process::id());
        let mut command = Command::new(program);
        command.args(["--node", node, "--name", &directory, "--address", "127.0.0.1:0"]);
        command.arg("--key").arg(key(test));
        command.args(member.iter().flat_map(|other| ["--member", &other.address]));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // "listening on ADDRESS, answering on port PORT": everything is there then.
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split([' ', ',']).nth(2).unwrap().to_string();
        Self { process, directory, address }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(KEEPTIME);
        command.arg("fabric").args(words).args(["--directory", &self.directory]);
        command.output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.ask(&[words, &["--json"]].concat());
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// That of the nodes of a test.
fn key(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = path.join(format!("{test}-{}.key", std::process::id()));
    if !path.exists() {
        let mut command = Command::new(Path::new(KEEPTIME).with_file_name("keeptime-fabricd"));
        assert!(command.arg("--make-key").arg(&path).status().unwrap().success());
    }
    path
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Both daemons, each of which knows the other.
fn pair(test: &str) -> (Daemon, Daemon) {
    let one = Daemon::start(test, "n1", None);
    let other = Daemon::start(test, "n2", Some(&one));
    for daemon in [&one, &other] {
        for node in ["n1", "n2"] {
            let node = format!("node={node}");
            let found = daemon.ask(&["find", "service=echo", &node, "--within", "30s"]);
            assert!(found.status.success(), "{}", said(&found));
        }
    }
    (one, other)
}

#[test]
fn what_is_registered_on_one_node_is_listed_and_found_on_the_other() {
    let (one, other) = pair("find");
    let mut config = Config::default();
    config.directory.clone_from(&one.directory);
    let context = Context::open(config).unwrap();
    let table = context.register(attrs! { "name" => "dhash", "range" => "0=9" }).unwrap();
    let id = table.id().to_string();

    let found = other.ask(&["find", "name=dhash", "range=0=9", "--within", "30s"]);
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), id);
    let listed = other.json(&["ls", "name=dhash"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["id"], &listed[0]["node"]), (&id.clone().into(), &"n1".into()));
    assert_eq!(listed[0]["attributes"]["range"], "0=9");
    let owner = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    assert_eq!((&listed[0]["owner"], &listed[0]["any_user"]), (&owner.into(), &false.into()));
    assert_eq!(other.json(&["find", "name=dhash"]), listed[0]);
    assert!(said(&other.ask(&["ls"])).contains("name=dhash range=0=9"));
    let echoes = other.json(&["ls", "service=echo"]);
    assert!(echoes.as_array().unwrap().iter().all(|echo| echo["any_user"] == true), "{echoes}");

    drop(table);
    let none = other.ask(&["find", "name=dhash"]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    assert!(said(&none).contains("no resource has name=dhash"), "{}", said(&none));
    let none = other.ask(&["find", "name=dhash", "--json"]);
    assert_eq!(none.status.code(), Some(1), "{}", said(&none));
    assert_eq!(String::from_utf8_lossy(&none.stdout).trim(), "null");
}

#[test]
fn every_node_is_pinged_over_every_carrier() {
    let (one, _other) = pair("ping");
    for over in ["usual", "tcp", "udp"] {
        let answers = one.json(&["ping", "--over", over, "--count", "5", "--within", "30s"]);
        let answers = answers.as_array().unwrap();
        let nodes: Vec<_> = answers.iter().map(|answer| answer["node"].as_str()).collect();
        assert_eq!(nodes, [Some("n1"), Some("n2")]);
        for answer in answers {
            assert_eq!((&answer["sent"], &answer["answered"]), (&5.into(), &5.into()), "{answer}");
            assert!(answer["median_nanos"].as_u64().unwrap() > 0, "{answer}");
        }
    }
}

/// Its daemon is stopped: it is known, and does not answer.
#[test]
fn a_node_that_does_not_answer_is_told() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    let (one, other) = pair("stopped");
    let id = Pid::from_raw(other.process.id() as i32);
    kill(id, Signal::SIGSTOP).unwrap();
    let output = one.ask(&["ping", "n1", "n2", "--within", "2s"]);
    kill(id, Signal::SIGCONT).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("n1: 10 of 10 answered"), "{}", said(&output));
    assert!(said(&output).contains("n2: 0 of 1 answered"), "{}", said(&output));
}

#[test]
fn a_bench_has_a_figure_for_each_kind_and_length() {
    let (one, _other) = pair("bench");
    let figures = one.json(&["bench", "n2", "--rounds", "3"]);
    let names: Vec<_> =
        figures.as_array().unwrap().iter().map(|f| (&f["name"], &f["unit"])).collect();
    let (trip, stream) =
        ((&"round trip".into(), &"us".into()), (&"stream".into(), &"Mbit/s".into()));
    assert_eq!(names, [trip, trip, stream, stream]);
    assert!(
        figures.as_array().unwrap().iter().all(|f| f["median"].as_f64() > Some(0.0)),
        "{figures}"
    );
}

#[test]
fn bad_input_names_what_would_be_accepted() {
    let daemon = Daemon::start("input", "n1", None);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["find", "dhash"], 64, "NAME=VALUE"),
        (&["find"], 64, "NAME=VALUE"),
        (&["ls", "a=1", "a=2"], 64, "one value for each name"),
        (&["ping", "--bytes", "65537"], 64, "65536"),
        (&["ping", "n9"], 2, "no daemon answers on node \"n9\": there are n1"),
        (&["bench", "n9"], 2, "there are n1"),
    ];
    for (words, code, expected) in cases {
        let output = daemon.ask(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
    }
    let output = Command::new(KEEPTIME).args(["fabric", "ls", "--directory", "t-none"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("start keeptime-fabricd --name t-none"), "{}", said(&output));
}

/// A daemon that others reach, or that calls others, says whom it believes.
#[test]
fn a_daemon_that_others_reach_needs_a_key() {
    let program = Path::new(KEEPTIME).with_file_name("keeptime-fabricd");
    let run = |words: &[&str]| Command::new(&program).args(words).output().unwrap();
    let place = tempfile::tempdir().unwrap();
    let short = place.path().join("short.key");
    std::fs::write(&short, "secret\n").unwrap();
    let path = short.to_str().unwrap();
    let keyed = ["--node", "n1", "--key", path];
    for (words, text) in [
        (&["--node", "n1", "--address", "0.0.0.0:0"][..], "expected --key FILE"),
        (&["--node", "n1", "--member", "127.0.0.1:9"], "expected --key FILE"),
        (&keyed, "others could read a secret; expected 0600"),
        (&["--make-key", path], "is there already"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(said(&output).contains(text), "{words:?}: {}", said(&output));
    }
    std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
    let told = said(&run(&keyed));
    assert!(told.contains("at least 32 bytes") && !told.contains("secret\n"), "{told}");
}
