//! A lab as a testbed: an edge that polices, and contention that is bounded.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use serde_json::Value;
use world::{PATIENCE, World, assert_code, said, wait};

fn policed(world: &World) -> Value {
    let output = world.keeptime(&["lab", "police", "--node", "n1", "--json"]).output().unwrap();
    assert_code(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["policed"].clone()
}

#[test]
fn what_is_beyond_the_bucket_is_dropped_at_the_edge() {
    let Some(world) = World::new("testbed", 20) else { return };
    assert_eq!(policed(&world), Value::Null);
    // Datagrams are best effort; what is of another class passes.
    let police = ["lab", "police", "--node", "n1", "--rate", "1Mbit", "--depth", "4kB"];
    world.run(&[&police[..], &["--class", "best-effort"]].concat(), 0);
    let blast = ["--from", "n1", "--to", "n2", "--rate", "20Mbit"];
    let mut load = world.keeptime(&[&["lab", "load", "--for", "1h"], &blast[..]].concat());
    let mut load = load.spawn().unwrap();
    wait("packets to be dropped", PATIENCE, || {
        let [passed, dropped] =
            ["passed_packets", "dropped_packets"].map(|key| policed(&world)[key].as_u64().unwrap());
        passed > 0 && dropped > passed
    });
    // Counts begin anew with each policer; these packets are of a class that this one is not about.
    world.run(&[&police[..], &["--class", "premium"]].concat(), 0);
    assert_eq!(policed(&world)["dropped_packets"], 0);
    world.run(&[&police[..], &["--class", "best-effort"]].concat(), 0);
    // The load ends with its command, also when that is killed.
    load.kill().unwrap();
    load.wait().unwrap();
    wait("nothing to be sent any more", PATIENCE, || {
        let before = policed(&world);
        std::thread::sleep(std::time::Duration::from_millis(200));
        policed(&world)["dropped_packets"] == before["dropped_packets"]
    });
    world.run(&["lab", "police", "--node", "n1", "--off"], 0);
    assert_eq!(policed(&world), Value::Null);
}

#[test]
fn loads_and_policers_that_make_no_sense_are_refused() {
    let Some(world) = World::new("testbed-bad", 20) else { return };
    let refused = |words: &[&str], code: i32, expected: &str| {
        let output = world.keeptime(&[&["lab"], words].concat()).output().unwrap();
        assert_code(&output, code);
        assert!(said(&output).contains(expected), "{}", said(&output));
    };
    refused(&["load", "--for", "2h"], 64, "at most");
    refused(&["load", "--from", "n1"], 64, "--to");
    refused(&["load", "--from", "n1", "--to", "n1", "--rate", "1Mbit"], 64, "another node");
    refused(
        &["load", "--from", "n7", "--to", "n1", "--rate", "1Mbit"],
        64,
        "a node of the lab: n1, n2",
    );
    refused(&["police", "--node", "n7"], 64, "n7");
    refused(&["police", "--node", "n1", "--rate", "1Mbit"], 64, "--depth");
    refused(&["police", "--node", "n1", "--rate", "0", "--depth", "1kB"], 64, "0");
}
