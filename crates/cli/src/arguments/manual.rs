//! What long help texts say below their arguments, as manual pages do. The examples of configurations are
//! read by a test, so that they stay what is accepted.

/// Below `keeptime broker run --help`.
pub const BROKER_RUN: &str = r#"Configuration (TOML; --print-config shows every default):

  topology = "/etc/keeptime/topology.toml"
  ledger = "/var/lib/keeptime/ledger.db"       # on a local disk; made if there is none
  socket = "/run/keeptime/broker.sock"         # for users of this machine
  agents = "/run/keeptime/agents.sock"         # for an agent on this machine
  operators = ["ada"]                          # beside root and the broker's own user
  requests_per_second = 200                    # of one user, in the long run

  [policy]
  agent_lease = "10 s"         # a node that says nothing for so long is away
  answer_within = "2 s"        # agents accept within this time, or nothing is granted
  tell_ahead = "600 s"         # agents are told so long before a reservation starts
  ahead_max = "8784 h"         # reservations start at most so far ahead
  search_ahead = "8784 h"      # the earliest start is sought so far ahead
  remember = "24 h"            # what is over is remembered for so long
  user_cpu = "50 %"            # of all CPU, one user's at any time
  user_bandwidth = "50 %"      # of what all nodes can send, one user's at any time
  user_reservations = 1000     # of one user at a time

  [tcp]                                        # users and agents elsewhere; TLS always
  address = "0.0.0.0:7411"
  agents = "0.0.0.0:7412"
  certificate = "/etc/keeptime/pki/broker.pem"
  key = "/etc/keeptime/pki/broker-key.pem"     # mode 0600
  client_ca = "/etc/keeptime/pki/ca.pem"
  revoked = "/etc/keeptime/pki/revoked.pem"
  tokens = "/etc/keeptime/tokens.toml"         # mode 0600; see keeptime broker token

Signals:
  SIGTERM, SIGINT   end; what is granted stays granted, and agents keep it until its end
  SIGHUP            read certificates and tokens again (done within a second of a change, too)

Exit codes: 0 ended as told, 2 error, 64 the configuration is wrong.

See also: keeptime broker certificates --help, keeptime broker token --help, docs/security.md,
contrib/systemd/keeptime-broker.service."#;

/// Below `keeptime agent run --help`.
pub const AGENT_RUN: &str = r#"Configuration (TOML):

  node = "n1"                                  # as in the topology
  socket = "/run/keeptime/agent.sock"          # for programs on this node
  assignments = "/var/lib/keeptime/assignments.json"
  device = "eth0"                              # of the cluster's network
  attach = "root"                              # or a class such as 1:1 under somebody else's shaper
  rate = "10 Gbit/s"                           # of the device
  cpu = "1600 %"                               # for jobs; 100 % is one processor
  cgroup = "keeptime"                          # below the root of each hierarchy

  [broker_tls]                                 # or, on the broker's machine, broker = "/run/keeptime/agents.sock"
  address = "broker.example:7412"
  certificate = "/etc/keeptime/n1.pem"         # names keeptime:node:n1
  key = "/etc/keeptime/n1-key.pem"             # mode 0600
  ca = "/etc/keeptime/ca.pem"                  # who issued the broker's certificate

Certificates are read for each connection: a renewed one is used when the former expires.
What the kernel enforces stays when the agent ends; the next one takes it up.

Exit codes: 0 checked (--check), 2 error, 64 the configuration is wrong.

See also: docs/formats/agent-link.md, docs/security.md, contrib/systemd/keeptime-agent.service."#;

/// Below `keeptime --help`.
pub const OVERVIEW: &str = "A first round, as root:
  keeptime lab up                          a cluster of 4 nodes on this machine
  keeptime profile raycast --nodes 2,4     measure the volume renderer once
  keeptime plan raycast --within 1s --set interleave=0
  keeptime run raycast --within 1s --set interleave=0
  keeptime lab down

Exit codes: 0 done, 1 refused (the goal cannot be kept), 2 error, 64 usage.

Environment (arguments come first):
  KEEPTIME_BROKER           --broker: a socket, or https://HOST:PORT
  KEEPTIME_CA, KEEPTIME_CERTIFICATE, KEEPTIME_CERTIFICATE_KEY, KEEPTIME_TOKEN_FILE
                            what is shown and trusted there
  KEEPTIME_CLIENT_CONFIG    a file with the same [default: ~/.config/keeptime/client.toml]
  KEEPTIME_LAB              --lab
  KEEPTIME_LOG              what is logged, as in debug or keeptime_broker=debug";

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in a text: the lines that are indented, up to what follows it.
    fn example(text: &str, end: &str) -> String {
        let body = text.split_once(":\n\n").unwrap().1;
        body.split(end).next().unwrap().lines().map(|line| format!("{}\n", line.trim())).collect()
    }

    #[test]
    fn examples_are_what_is_accepted() {
        let broker = example(BROKER_RUN, "Signals:");
        let broker = keeptime_broker::config::Config::from_toml(&broker).unwrap();
        assert!(broker.tcp.is_some());
        let agent = example(AGENT_RUN, "Certificates are read");
        let agent = keeptime_agent::config::Config::from_toml(&agent).unwrap();
        assert!(agent.place().is_some());
    }

    #[test]
    fn variables_that_are_told_are_those_that_count() {
        use clap::CommandFactory;
        let command = crate::arguments::Arguments::command();
        let list = command.find_subcommand("list").unwrap();
        let known: Vec<_> = list.get_arguments().filter_map(|a| a.get_env()).collect();
        for name in known {
            assert!(OVERVIEW.contains(name.to_str().unwrap()), "{name:?}");
        }
    }
}
