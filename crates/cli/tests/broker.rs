//! The broker as a process: killed at any moment, asked by others than its owner. No agents: what is
//! reserved in advance is granted by the slot tables alone.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_broker::client::Client;
use keeptime_broker::config::Config;
use keeptime_broker::wire::Filter;
use keeptime_engine::book::Reservation;
use keeptime_linux::testing::skip;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, Resources};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const KEEPTIME: &str = env!("CARGO_BIN_EXE_keeptime");
const NOBODY: u32 = 65_534;
const TOPOLOGY: &str = "name = \"pair\"\nswitches = [{ name = \"s1\" }]\n\
    [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
    [[nodes]]\nname = \"n2\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n\
    [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n\
    [[links]]\nbetween = [\"n2\", \"s1\"]\nrate = \"100 Mbit/s\"\n";

struct Broker {
    directory: tempfile::TempDir,
    config: Config,
    process: Option<Child>,
}

impl Broker {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Other users reach the socket.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("topology.toml"), TOPOLOGY).unwrap();
        let config = Config::in_directory(directory.path());
        fs::write(at("broker.toml"), config.to_toml()).unwrap();
        let mut broker = Self { directory, config, process: None };
        broker.start();
        broker
    }

    fn start(&mut self) {
        let path = self.directory.path().join("broker.toml");
        let mut command = Command::new(KEEPTIME);
        command.args(["broker", "run", "--config"]).arg(path).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        let start = Instant::now();
        while self.client().nodes(None).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "the broker does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn client(&self) -> Client {
        Client::new(&self.config.socket).unwrap()
    }

    fn keeptime(&self, words: &[&str], user: Option<u32>) -> Output {
        let mut command = Command::new(KEEPTIME);
        command.args(words).arg("--broker").arg(&self.config.socket).current_dir("/");
        if let Some(user) = user {
            command.gid(user).uid(user);
        }
        command.output().unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A tenth of a percent of one node for a minute, in a day.
fn small(from: WallTime) -> Request {
    let resources = Resources {
        nodes: NodeChoice::Any(1),
        cpu_ppm: CpuPpm::new(1_000),
        ..Resources::nothing()
    };
    Request {
        from_unix_nanos: Some(from),
        duration_nanos: Some(Nanos::from_secs(60)),
        ..Request::new(Ask::Resources(resources))
    }
}

fn tomorrow() -> WallTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    WallTime::from_unix_nanos((now.as_secs() + 86_400) * 1_000_000_000)
}

#[test]
fn what_was_acknowledged_survives_kill_9_in_the_middle_of_commits() {
    let mut broker = Broker::new();
    let acknowledged = Mutex::new(BTreeMap::new());
    for round in 0..5_usize {
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let (client, acknowledged, count) = (broker.client(), &acknowledged, &count);
                scope.spawn(move || {
                    // Another minute for each, so that all fit.
                    for number in 0.. {
                        let minutes = (round * 4 + caller) as u64 * 2_000 + number;
                        let from = tomorrow().saturating_add(Nanos::from_secs(60 * minutes));
                        let key = format!("{round}:{caller}:{number}").parse().unwrap();
                        let Ok(granted) = client.reserve(key, small(from)) else { return };
                        acknowledged.lock().unwrap().insert(granted.handle, granted);
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // Killed after more and more; in the first round at the first.
            let start = Instant::now();
            while count.load(Ordering::SeqCst) < 1 + round * 40 {
                assert!(start.elapsed() < Duration::from_secs(20), "callers are not served");
                std::thread::sleep(Duration::from_micros(200));
            }
            broker.kill();
        });
        broker.start();
        let found = everything(&broker.client());
        for (handle, granted) in acknowledged.lock().unwrap().iter() {
            assert_eq!(found.get(handle), Some(granted), "{handle} was acknowledged");
        }
    }
    assert!(acknowledged.into_inner().unwrap().len() > 200);
}

fn everything(client: &Client) -> BTreeMap<Handle, Reservation> {
    let mut filter = Filter::default();
    let mut all = BTreeMap::new();
    loop {
        let listing = client.reservations(&filter).unwrap();
        all.extend(listing.reservations.into_iter().map(|found| (found.handle, found)));
        filter.after = listing.next;
        if filter.after.is_none() {
            return all;
        }
    }
}

#[test]
fn only_its_owner_and_operators_change_a_reservation() {
    if !nix::unistd::geteuid().is_root() {
        return skip(&["other users".to_owned()], "not root");
    }
    let mut version = Command::new(KEEPTIME);
    version.arg("--version").current_dir("/").gid(NOBODY).uid(NOBODY);
    if let Err(error) = version.output() {
        let reason = format!("an ordinary user cannot run the program: {error}");
        return skip(&["other users".to_owned()], &reason);
    }
    let broker = Broker::new();
    let reserve = ["reserve", "--nodes", "1", "--cpu", "10%", "--from", "+2h", "--for", "1h"];
    let mine = broker.keeptime(&reserve, None);
    assert_eq!(mine.status.code(), Some(0), "{}", said(&mine));
    assert!(said(&mine).starts_with("r1 granted, root, "), "{}", said(&mine));
    let of_other = broker.keeptime(&reserve, Some(NOBODY));
    assert_eq!(of_other.status.code(), Some(0), "{}", said(&of_other));
    for words in [&["cancel", "r1"][..], &["modify", "r1", "--cpu", "5%"]] {
        let refused = broker.keeptime(words, Some(NOBODY));
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains("r1 belongs to root"), "{}", said(&refused));
    }
    let operator = broker.keeptime(&["cancel", "r2"], None);
    assert_eq!(operator.status.code(), Some(0), "{}", said(&operator));
    let list = said(&broker.keeptime(&["list"], Some(NOBODY)));
    assert!(list.contains("r1 granted, root") && !list.contains("r2"), "{list}");
    let why = said(&broker.keeptime(&["why", "r2"], Some(NOBODY)));
    assert!(why.contains("cancelled by root"), "{why}");
}

#[test]
fn people_are_answered_in_their_words() {
    let broker = Broker::new();
    let keeptime = |words: &[&str]| {
        let output = broker.keeptime(words, None);
        (output.status.code().unwrap(), said(&output))
    };
    let all = ["reserve", "--nodes", "n1", "--cpu", "100%", "--from", "+2h", "--for", "1h"];
    assert_eq!(keeptime(&all).0, 0);
    let (code, text) = keeptime(&all);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("r2 refused: ") && text.contains("would be admitted from"), "{text}");
    let (code, text) = keeptime(&["why", "r2"]);
    assert!(code == 0 && text.contains("refused to "), "{text}");
    let (code, text) = keeptime(&["modify", "r1", "--cpu", "50%"]);
    assert!(code == 0 && text.contains("50 % of a CPU each"), "{text}");
    let (code, text) = keeptime(&["nodes", "--at", "+150min"]);
    assert!(
        code == 0 && text.contains("n1: 50 % of 100 % CPU reserved, its agent is away"),
        "{text}"
    );
    let (code, text) = keeptime(&["links"]);
    assert!(code == 0 && text.contains("n1 > s1") && text.contains("100 Mbit/s"), "{text}");
    let (code, text) = keeptime(&["timeline", "--to", "+4h"]);
    assert!(code == 0 && text.contains("CPU of n1") && text.contains('█'), "{text}");
    let (code, text) = keeptime(&["watch", "r2"]);
    assert!(code == 0 && text.contains("refused to"), "{text}");
    let soon = ["reserve", "--nodes", "1", "--cpu", "1%", "--for", "1h"];
    let (code, text) = keeptime(&soon);
    assert_eq!(code, 1, "nobody can enforce it now: {text}");
    let (code, text) = keeptime(&["reserve", "--nodes", "n9", "--cpu", "1%", "--from", "+2h"]);
    assert!(code == 64 && text.contains("n9"), "{code}: {text}");
    let (code, text) = keeptime(&["show", "r99"]);
    assert!(code == 2 && text.contains("there is no reservation r99"), "{code}: {text}");
    let (code, text) = keeptime(&["show", "17"]);
    assert!(code == 64 && text.contains("as in r17"), "{code}: {text}");
    let (code, text) = keeptime(&["cancel", "r1", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &value["state"]), (0, &"cancelled".into()));
}

#[test]
fn a_configuration_is_checked_and_shown() {
    let broker = Broker::new();
    let path = broker.directory.path().join("broker.toml");
    let run = |more: &str| {
        let mut command = Command::new(KEEPTIME);
        command.args(["broker", "run", "--config"]).arg(&path).arg(more);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), said(&output))
    };
    let (code, shown) = run("--print-config");
    assert_eq!(code, 0);
    assert_eq!(Config::from_toml(&shown).unwrap(), broker.config);
    assert_eq!(run("--check"), (0, String::new()));
    fs::write(&path, shown.replace("agent_lease = \"10 s\"", "agent_lease = \"soon\"")).unwrap();
    let (code, text) = run("--check");
    assert!(code == 64 && text.contains("soon"), "{code}: {text}");
}
