//! A node on which nobody has made anything yet, as after a boot.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_agent::config::Config;
use keeptime_agent::enforce::{Cleared, Node, check_device, clear, enforcer};
use keeptime_linux::cgroup::Hierarchies;
use keeptime_linux::testing::{in_network_namespace, skip};
use std::collections::BTreeSet;
use std::process::Command;

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

// Goal: a node has one agent, whatever its socket and record are called: another would end the first one's jobs. Method: one
// that is there, and another with its control group, or with its device; who would clear the node as either.
#[test]
fn agents_with_other_sockets_share_neither_group_nor_device() {
    in_network_namespace(&["cgroup2", "bpf"], || {
        let path = |name: &str| format!("keeptime/_test-{name}-{}", std::process::id());
        let first = config("lo", &path("first"));
        let same_group = Config { socket: "/elsewhere/agent.sock".into(), ..first.clone() };
        let same_device = config("lo", &path("second"));
        let agent = match enforcer(&first, &[]).unwrap() {
            Node::Kernel(agent) => agent,
            Node::Unenforced(why) => panic!("{why:?}"),
        };
        for (other, part) in [(&same_group, "the control group"), (&same_device, "the device lo")] {
            for refused in [enforcer(other, &[]).err(), clear(other, true).err()] {
                let refused = refused.unwrap().to_string();
                let is_told = refused.contains("an agent runs here") && refused.contains(part);
                assert!(is_told, "{refused}");
            }
        }
        drop(agent);
        for config in [&same_group, &same_device] {
            assert_eq!(clear(config, false).unwrap(), Cleared::Done(BTreeSet::new()));
        }
    });
}

// Goal: a node whose flows could not be told apart is known before its agent takes anything. Method: a tunnel; the loopback
// device, whose frames are as those of Ethernet; none at all, which may come.
#[test]
fn an_agent_of_a_device_that_is_not_ethernet_does_not_start() {
    in_network_namespace(&["cgroup2"], || {
        let path = format!("keeptime/_test-tunnel-{}", std::process::id());
        let made = Command::new("ip").args(["tuntap", "add", "dev", "t0", "mode", "tun"]).status();
        if !made.is_ok_and(|status| status.success()) {
            return skip(&["tun".into()], "there can be no tunnel");
        }
        let tunnel = config("t0", &path);
        for refused in [check_device(&tunnel).err(), enforcer(&tunnel, &[]).err()] {
            let refused = refused.unwrap().to_string();
            assert!(refused.contains("device t0") && refused.contains("Ethernet"), "{refused}");
        }
        assert!(!Hierarchies::discover_any().unwrap().group(&path).unwrap().exists());
        for fine in [config("lo", &path), config("gone0", &path)] {
            check_device(&fine).unwrap();
        }
        // Where nothing is enforced, any will do.
        check_device(&Config { cgroup: None, ..tunnel }).unwrap();
    });
}
