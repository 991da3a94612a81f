//! The systemd units leave agent, broker and fabric's daemon what they need, and go with what the documents say.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_agent::config::Config;
use std::path::Path;

const AGENT: &str = include_str!("../../../contrib/systemd/keeptime-agent.service");
const BROKER: &str = include_str!("../../../contrib/systemd/keeptime-broker.service");
const FABRICD: &str = include_str!("../../../contrib/systemd/keeptime-fabricd.service");
const CLUSTERS: &str = include_str!("../../../docs/clusters.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

fn says(unit: &str, setting: &str) -> bool {
    unit.lines().any(|line| line == setting)
}

fn value<'u>(unit: &'u str, setting: &str) -> &'u str {
    unit.lines().find_map(|line| line.strip_prefix(setting)?.strip_prefix('=')).unwrap()
}

/// The lines below such a header: systemd overlooks what stands below another one.
fn section<'u>(unit: &'u str, header: &str) -> Vec<&'u str> {
    let lines = unit.lines().skip_while(|line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

// The agent finds out what its node's network can enforce in a network namespace of its own, and refuses all bandwidth
// when it can make none; it needs no other kind.
#[test]
fn the_agent_may_make_network_namespaces_and_no_others() {
    assert!(says(AGENT, "RestrictNamespaces=net"));
    assert_eq!(AGENT.matches("\nRestrictNamespaces=").count(), 1);
    assert!(says(BROKER, "RestrictNamespaces=yes"));
}

// Both have their sockets in one directory, where they are on one machine: it stays when one of them is stopped.
#[test]
fn the_directory_of_the_sockets_outlasts_either_unit() {
    for unit in [AGENT, BROKER] {
        assert!(says(unit, "RuntimeDirectory=keeptime"));
        assert!(says(unit, "RuntimeDirectoryPreserve=yes"));
    }
}

// What ends five times within ten seconds, as where an address or a name comes late after a boot, is started no more
// unless its unit says otherwise.
#[test]
fn no_unit_is_given_up() {
    for unit in [AGENT, BROKER, FABRICD] {
        assert!(section(unit, "[Unit]").contains(&"StartLimitIntervalSec=0"));
        assert!(section(unit, "[Service]").contains(&"Restart=always"));
    }
}

// The agent leaves the group that systemd made for it, by which the journal knows what belongs to which unit.
#[test]
fn the_documents_look_for_the_agent_in_the_journal_by_its_name() {
    let search = format!("journalctl -t {}`", value(AGENT, "SyslogIdentifier"));
    for text in [CLUSTERS, OPERATIONS] {
        assert!(text.contains(&search));
        assert!(!text.contains("journalctl -u keeptime-agent"));
    }
}

// Elsewhere it could not write them: the rest of the file system is read-only to it.
#[test]
fn the_files_of_the_agent_are_in_the_directories_of_its_unit() {
    // As the loop there does for each node.
    let text = CLUSTERS.replace("@NODE@", "n1");
    let mut blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let config = blocks.find_map(|block| Config::from_toml(block).ok()).unwrap();
    let below = |root: &str, setting: &str| Path::new(root).join(value(AGENT, setting));
    assert_eq!(config.socket.parent(), Some(below("/run", "RuntimeDirectory").as_path()));
    assert_eq!(config.assignments.parent(), Some(below("/var/lib", "StateDirectory").as_path()));
}

// With `--answer-on`, as the unit says itself, memory is handed out that can only be read.
#[test]
fn the_daemon_of_the_fabric_may_hand_out_what_it_publishes() {
    assert!(value(FABRICD, "CapabilityBoundingSet").split(' ').any(|may| may == "CAP_SYS_ADMIN"));
}

// What users may take of the broker's memory is for its configuration: a bound in bytes that is less would end it again
// and again.
#[test]
fn the_memory_of_the_broker_is_bounded_by_that_of_the_machine() {
    assert!(value(BROKER, "MemoryMax").ends_with('%'));
}
