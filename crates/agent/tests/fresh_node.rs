//! A node on which nobody has made anything yet, as after a boot.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_agent::config::Config;
use keeptime_agent::enforce::{Cleared, clear};
use keeptime_linux::cgroup::Hierarchies;
use keeptime_linux::testing::in_network_namespace;
use std::collections::BTreeSet;

/// The configuration of a node with this device, whose group is at `path`.
fn config(device: &str, path: &str) -> Config {
    let text = format!(
        r#"
        node = "n1"
        socket = "/nowhere/agent.sock"
        assignments = "/nowhere/assignments.json"
        device = "{device}"
        rate = "100 Mbit/s"
        cpu = "10 %"
        cgroup = "{path}"
        "#
    );
    Config::from_toml(&text).unwrap()
}

// Goal: an agent needs nobody who makes its node's control group, and taking it off the node leaves none. Method: what an
// agent opens is opened and taken off again, on the loopback device of a namespace of its own.
#[test]
fn the_group_of_a_node_is_made_when_it_is_not_there() {
    in_network_namespace(&["cgroup2"], || {
        let path = format!("keeptime/_test-fresh-{}", std::process::id());
        let group = Hierarchies::discover_any().unwrap().group(&path).unwrap();
        assert!(!group.exists());
        let cleared = clear(&config("lo", &path), false);
        assert_eq!(cleared.unwrap(), Cleared::Done(BTreeSet::new()));
        assert!(!group.exists());
    });
}

// Goal: a node whose network device was taken out, or has another name by now, can be cleared. Method: a job's group, and a
// device that is not there.
#[test]
fn a_node_without_its_device_is_cleared() {
    in_network_namespace(&["cgroup2"], || {
        let path = format!("keeptime/_test-gone-{}", std::process::id());
        let group = Hierarchies::discover_any().unwrap().group(&path).unwrap();
        group.create_known().unwrap();
        group.child("job").unwrap().create().unwrap();
        let (config, jobs) = (config("gone0", &path), BTreeSet::from(["job".parse().unwrap()]));
        assert_eq!(clear(&config, false).unwrap(), Cleared::Not(jobs.clone()));
        assert_eq!(clear(&config, true).unwrap(), Cleared::Done(jobs));
        assert!(!group.exists());
    });
}
