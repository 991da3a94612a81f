//! The systemd units leave agent and broker what they need.

const AGENT: &str = include_str!("../../../contrib/systemd/keeptime-agent.service");
const BROKER: &str = include_str!("../../../contrib/systemd/keeptime-broker.service");

fn says(unit: &str, setting: &str) -> bool {
    unit.lines().any(|line| line == setting)
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
