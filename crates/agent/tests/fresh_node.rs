//! A node on which nobody has made anything yet, as after a boot.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_agent::config::Config;
use keeptime_agent::enforce::{Cleared, clear};
use keeptime_linux::cgroup::Hierarchies;
use keeptime_linux::testing::in_network_namespace;
use std::collections::BTreeSet;

// Goal: an agent needs nobody who makes its node's control group, and taking it off the node leaves none. Method: what an
// agent opens is opened and taken off again, on the loopback device of a namespace of its own.
#[test]
fn the_group_of_a_node_is_made_when_it_is_not_there() {
    in_network_namespace(&["cgroup2"], || {
        let path = format!("keeptime/_test-fresh-{}", std::process::id());
        let text = format!(
            r#"
            node = "n1"
            socket = "/nowhere/agent.sock"
            assignments = "/nowhere/assignments.json"
            device = "lo"
            rate = "100 Mbit/s"
            cpu = "10 %"
            cgroup = "{path}"
            "#
        );
        let config = Config::from_toml(&text).unwrap();
        let group = Hierarchies::discover_any().unwrap().group(&path).unwrap();
        assert!(!group.exists());
        assert_eq!(clear(&config, false).unwrap(), Cleared::Done(BTreeSet::new()));
        assert!(!group.exists());
    });
}
