//! The broker as a process: killed at any moment, asked by others than its owner. No agents: what is
//! reserved in advance is granted by the slot tables alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod process;

use keeptime_broker::client::Client;
use keeptime_broker::config::Config;
use keeptime_broker::wire::Filter;
use keeptime_engine::book::Reservation;
use keeptime_linux::testing::skip;
use keeptime_model::reservation::Handle;
use keeptime_model::units::Nanos;
use process::{Broker, KEEPTIME, said, small, tomorrow};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

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
                assert!(start.elapsed() < Duration::from_secs(60), "callers are not served");
                std::thread::sleep(Duration::from_micros(200));
            }
            broker.kill();
        });
        broker.start();
        let found = everything(&broker.client());
        for (handle, granted) in acknowledged.lock().unwrap().iter() {
            assert_eq!(
                found.get(handle).map(AsRef::as_ref),
                Some(granted),
                "{handle} was acknowledged"
            );
        }
    }
    assert!(acknowledged.into_inner().unwrap().len() > 200);
}

fn everything(client: &Client) -> BTreeMap<Handle, Arc<Reservation>> {
    let all = client.all_reservations(Filter::default()).unwrap();
    all.into_iter().map(|found| (found.handle, found)).collect()
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
    let refused = broker.keeptime(&["node", "drain", "n1", "--reason", "mine"], Some(NOBODY));
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("only operators may drain nodes"), "{}", said(&refused));
    let operator = broker.keeptime(&["cancel", "r2"], None);
    assert_eq!(operator.status.code(), Some(0), "{}", said(&operator));
    let list = said(&broker.keeptime(&["list"], Some(NOBODY)));
    assert!(list.contains("\nr1   granted  root  ") && !list.contains("r2"), "{list}");
    let why = said(&broker.keeptime(&["why", "r2"], Some(NOBODY)));
    assert!(why.contains("cancelled by root"), "{why}");
}

// Goal: who takes a node out of service is told when nothing is left there, and nothing new has come since, whatever becomes
// of the broker. Method: in advance, since there are no agents.
#[test]
fn a_drained_node_gets_nothing_new_until_it_is_resumed() {
    let mut broker = Broker::new();
    let keeptime = |broker: &Broker, words: &[&str]| {
        let output = broker.keeptime(words, None);
        (output.status.code().unwrap(), said(&output))
    };
    let on_n1 = ["reserve", "--nodes", "n1", "--cpu", "10%", "--from", "+2h", "--for", "1h"];
    assert_eq!(keeptime(&broker, &on_n1).0, 0);
    let drain = ["node", "drain", "n1", "--reason", "new disk"];
    let (code, text) = keeptime(&broker, &drain);
    let expected = "n1 drained: nothing new comes there\nstill reserved there: r1 of ";
    assert!(code == 0 && text.starts_with(expected), "{text}");
    broker.kill();
    broker.start();
    let (code, text) = keeptime(&broker, &on_n1);
    assert!(code == 1 && text.starts_with("r2 refused: n1 is drained ("), "{code}: {text}");
    let any = ["reserve", "--nodes", "2", "--cpu", "10%", "--from", "+4h", "--for", "1h"];
    let (code, text) = keeptime(&broker, &any);
    assert!(code == 1 && text.contains("; 1 node is drained\n"), "{code}: {text}");
    let (code, text) = keeptime(&broker, &["nodes"]);
    assert!(code == 0 && text.contains("  drained by ") && text.contains(": new disk\n"), "{text}");
    assert_eq!(text.matches("still reserved there: r1 of ").count(), 1, "{text}");
    let (_, text) = keeptime(&broker, &["nodes", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["nodes"][0]["drained"]["reason"], "new disk");
    assert_eq!(value["nodes"][1].get("drained"), None);

    // If this fails, it would wait for as long as there is no broker.
    let mut waits = Command::new("timeout");
    waits
        .args(["60", KEEPTIME])
        .args(drain)
        .arg("--wait")
        .arg("--broker")
        .arg(&broker.config.socket);
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(waits.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "n1 drained: nothing new comes there");
    assert!(lines.next().unwrap().starts_with("still reserved there: r1 of "));
    assert_eq!(keeptime(&broker, &["cancel", "r1"]).0, 0);
    assert_eq!(lines.collect::<Vec<_>>(), ["nothing is reserved there"]);
    assert!(waits.wait().unwrap().success());

    let (code, text) = keeptime(&broker, &["node", "resume", "n1"]);
    assert_eq!((code, text.as_str()), (0, "n1 in service\n"));
    assert_eq!(keeptime(&broker, &on_n1).0, 0);
    let (code, text) = keeptime(&broker, &["node", "drain", "n9", "--reason", "gone"]);
    assert!(code == 64 && text.contains("nodes of the cluster, as n1, n2"), "{code}: {text}");
    for odd in [&["n1"][..], &["--reason", "none"], &["n1", "--all", "--reason", "both"]] {
        assert_eq!(keeptime(&broker, &[&["node", "drain"][..], odd].concat()).0, 64, "{odd:?}");
    }
    let (code, text) = keeptime(&broker, &["node", "drain", "--all", "--reason", "up", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, value["nodes"].as_array().map(Vec::len)), (0, Some(2)));
    assert_eq!(value["reservations"][0]["grant"]["nodes"][0], "n1");
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

// Goal: of several reservations each is given back that can be, and whoever cannot have that is told of each. Method: some
// that are there, around one that is not.
#[test]
fn several_are_cancelled_and_what_cannot_be_is_told() {
    let broker = Broker::new();
    let keeptime = |words: &[&str]| {
        let output = broker.keeptime(words, None);
        let told = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code().unwrap(), told)
    };
    for _ in 0..4 {
        let reserve = ["reserve", "--nodes", "1", "--cpu", "10%", "--from", "+2h", "--for", "1h"];
        assert_eq!(keeptime(&reserve).0, 0);
    }
    let (code, [told, failed]) = keeptime(&["cancel", "r1", "r9", "r2"]);
    let starts: Vec<_> = told.lines().filter_map(|line| Some(line.split_once(", ")?.0)).collect();
    assert_eq!((code, starts), (2, vec!["r1 cancelled", "r2 cancelled"]), "{told}{failed}");
    assert_eq!(
        failed,
        "keeptime: r9 is not cancelled: there is no reservation r9\n\
         keeptime: 1 of 3 reservations not cancelled\n"
    );
    let (code, [told, failed]) = keeptime(&["cancel", "r3", "r4", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&told).unwrap();
    let states = [0, 1].map(|at| (value[at]["handle"].as_str(), value[at]["state"].as_str()));
    assert_eq!((code, failed.as_str()), (0, ""));
    assert_eq!(states, [(Some("r3"), Some("cancelled")), (Some("r4"), Some("cancelled"))]);
    assert_eq!(keeptime(&["cancel"]).0, 64);

    assert_eq!(keeptime(&["list"]), (0, ["nothing is reserved\n", ""].map(String::from)));
    assert_eq!(keeptime(&["list", "--json"]), (0, ["[]\n", ""].map(String::from)));
    let other = keeptime(&["list", "--node", "n1", "--state", "active"]);
    assert_eq!(other, (0, ["no such reservation\n", ""].map(String::from)));
    // What was refused hides nothing of what was not, and is told to who asks for it, and to programs.
    let refused = ["reserve", "--nodes", "1", "--cpu", "9000%", "--for", "1h"];
    assert_eq!(keeptime(&refused).0, 1);
    let (_, [all, _]) = keeptime(&["list", "--all"]);
    let firsts: Vec<_> = all.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(firsts, ["job", "r1", "r2", "r3", "r4", "1"], "{all}");
    assert!(all.ends_with("\n1 refused: --state refused shows them\n"), "{all}");
    let (_, [told, _]) = keeptime(&["list", "--state", "refused"]);
    assert!(told.contains("\nr5   refused  root  ") && told.contains("9000 %"), "{told}");
    let (_, [told, _]) = keeptime(&["list", "--all", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (value[4]["handle"].as_str(), value[4]["state"].as_str()),
        (Some("r5"), Some("refused"))
    );
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
