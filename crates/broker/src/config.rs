//! The broker's configuration file.

use crate::tcp::config::Tcp;
use keeptime_engine::Policy;
use keeptime_model::Invalid;
use keeptime_model::reservation::UserName;
use keeptime_model::units::{self, Bytes, Nanos, Share};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The broker's configuration (TOML).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The topology file: nodes with addresses, switches, links.
    pub topology: PathBuf,
    /// The ledger's file; made if there is none. On a local file system.
    pub ledger: PathBuf,
    /// The Unix socket for users.
    pub socket: PathBuf,
    /// The Unix socket for agents.
    pub agents: PathBuf,
    /// Users who may change everybody's reservations, beside root and the broker's own user.
    #[serde(default)]
    pub operators: Vec<UserName>,
    /// Whether users of this machine are served who have no name here, each number as a user of its own.
    #[serde(default)]
    pub nameless_users: bool,
    /// Requests of one user in a second, in the long run.
    #[serde(default = "requests_per_second")]
    pub requests_per_second: u32,
    /// The fabric in which nodes publish their loads, as the `--name` of the keeptime-fabricd of this machine.
    /// Without it agents are asked for the loads of web sites' nodes, of 256 at the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// Whether the balancers of web sites are told what to do. A broker on a copy of a ledger, that is to be looked at,
    /// leaves them to the one that runs.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub sites: bool,
    /// Times and limits.
    #[serde(default)]
    pub policy: PolicyFile,
    /// The door over TCP; without it there are the Unix sockets alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Tcp>,
}

/// More than people and scripts need, and a small part of what the broker can serve: each request may
/// leave a record of a kilobyte for as long as refusals are remembered.
pub const REQUESTS_PER_SECOND: u32 = 200;

/// More than a thread can carry out.
const REQUESTS_PER_SECOND_MAX: u32 = 1_000_000;

/// What the names of its sockets leave.
const FABRIC_BYTES_MAX: usize = 64;

/// A hundred of the longest reservations.
const USER_MEMORY_MIN: Bytes = Bytes::new(64_000_000);

/// Each has a connection meanwhile, of which there are 1,024.
const WAITING_MAX: u32 = 512;

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

fn requests_per_second() -> u32 {
    REQUESTS_PER_SECOND
}

/// [`Policy`] as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyFile {
    /// A node whose agent has said nothing for so long is away, and what runs there is lost.
    #[serde(with = "units::text")]
    pub agent_lease: Nanos,
    /// Agents accept within this time, or what was held is given back.
    #[serde(with = "units::text")]
    pub answer_within: Nanos,
    /// So long before its start an agent is told of a reservation.
    #[serde(with = "units::text")]
    pub tell_ahead: Nanos,
    /// Reservations start at most so far ahead.
    #[serde(with = "units::text")]
    pub ahead_max: Nanos,
    /// The earliest start is sought so far ahead.
    #[serde(with = "units::text")]
    pub search_ahead: Nanos,
    /// What is over is remembered for so long, with its key.
    #[serde(with = "units::text")]
    pub remember: Nanos,
    /// The part of all CPU that one user may have reserved at any time.
    #[serde(with = "units::text")]
    pub user_cpu: Share,
    /// The part of what all nodes can send that one user may have reserved at any time.
    #[serde(with = "units::text")]
    pub user_bandwidth: Share,
    /// Reservations that one user may have at a time, with those that wait for room, for agents or for others.
    pub user_reservations: u32,
    /// What one user's reservations may take of the broker's memory, about, with those that are over and remembered.
    #[serde(with = "units::text")]
    pub user_memory: Bytes,
    /// Requests that may wait for room at a time.
    pub waiting_requests: u32,
    /// Of one user.
    pub user_waiting_requests: u32,
}

impl Config {
    /// A broker with all its files in `directory`, by their usual names, without a door over TCP.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            topology: directory.join("topology.toml"),
            ledger: directory.join("ledger.db"),
            socket: directory.join("broker.sock"),
            agents: directory.join("agents.sock"),
            operators: Vec::new(),
            nameless_users: false,
            requests_per_second: REQUESTS_PER_SECOND,
            fabric: None,
            sites: true,
            policy: PolicyFile::default(),
            tcp: None,
        }
    }

    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let config: Self = toml::from_str(text)
            .map_err(|error| Invalid::in_toml("broker configuration", text, &error))?;
        config.check_paths()?;
        if !(1..=REQUESTS_PER_SECOND_MAX).contains(&config.requests_per_second) {
            let expected = format!("1 to {REQUESTS_PER_SECOND_MAX}");
            return Err(Invalid::new("requests_per_second", config.requests_per_second, expected));
        }
        if let Some(name) = &config.fabric
            && (name.is_empty() || name.len() > FABRIC_BYTES_MAX)
        {
            let expected = format!("1 to {FABRIC_BYTES_MAX} bytes, as keeptime-fabricd --name has");
            return Err(Invalid::new("fabric", name, expected));
        }
        config.policy.check()?;
        config.tcp.as_ref().map_or(Ok(()), Tcp::check)?;
        Ok(config)
    }

    /// Each is there, and none is used twice: one would take the place of the other.
    fn check_paths(&self) -> Result<(), Invalid> {
        let paths = [
            ("topology", &self.topology),
            ("ledger", &self.ledger),
            ("socket", &self.socket),
            ("agents", &self.agents),
        ];
        for (at, (field, path)) in paths.iter().enumerate() {
            if path.as_os_str().is_empty() {
                return Err(Invalid::new(*field, "", "a path"));
            }
            if let Some((other, _)) = paths[..at].iter().find(|(_, before)| before == path) {
                let expected = format!("another path than that of {other}");
                return Err(Invalid::new(*field, path.display(), expected));
            }
        }
        Ok(())
    }

    /// The file that [`Self::from_toml`] reads back, with every default written out.
    pub fn to_toml(&self) -> String {
        // Strings, numbers and paths: serialisation fails for paths that are not UTF-8 alone.
        toml::to_string_pretty(self).unwrap_or_default()
    }
}

impl PolicyFile {
    /// For the engine.
    pub fn policy(&self) -> Policy {
        Policy {
            agent_lease_nanos: self.agent_lease,
            answer_within_nanos: self.answer_within,
            tell_ahead_nanos: self.tell_ahead,
            ahead_max_nanos: self.ahead_max,
            search_ahead_nanos: self.search_ahead,
            remember_nanos: self.remember,
            user_cpu: self.user_cpu,
            user_bandwidth: self.user_bandwidth,
            user_reservations: self.user_reservations,
            user_memory: self.user_memory,
            waiting_requests: self.waiting_requests,
            user_waiting_requests: self.user_waiting_requests,
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        const YEAR: Nanos = Nanos::from_secs(366 * 24 * 3600);
        let second = Nanos::from_secs(1);
        let bounds = [
            ("agent_lease", self.agent_lease, second, Nanos::from_secs(3600)),
            // A user waits for it.
            ("answer_within", self.answer_within, Nanos::from_millis(10), Nanos::from_secs(8)),
            ("tell_ahead", self.tell_ahead, second, Nanos::from_secs(24 * 3600)),
            ("ahead_max", self.ahead_max, second, Nanos::new(10 * YEAR.get())),
            ("search_ahead", self.search_ahead, second, Nanos::new(10 * YEAR.get())),
            ("remember", self.remember, second, YEAR),
        ];
        for (field, value, least, most) in bounds {
            if value < least || value > most {
                let expected = format!("{} to {}", least.rounded(), most.rounded());
                return Err(Invalid::new(field, value, expected).within("policy"));
            }
        }
        if self.user_reservations == 0 {
            let expected = "at least 1";
            return Err(Invalid::new("user_reservations", 0, expected).within("policy"));
        }
        if self.user_memory < USER_MEMORY_MIN {
            let expected = format!("{USER_MEMORY_MIN} or more");
            return Err(Invalid::new("user_memory", self.user_memory, expected).within("policy"));
        }
        if self.waiting_requests > WAITING_MAX {
            let expected = format!("{WAITING_MAX} at most");
            let invalid = Invalid::new("waiting_requests", self.waiting_requests, expected);
            return Err(invalid.within("policy"));
        }
        Ok(())
    }
}

impl Default for PolicyFile {
    fn default() -> Self {
        let policy = Policy::default();
        Self {
            agent_lease: policy.agent_lease_nanos,
            answer_within: policy.answer_within_nanos,
            tell_ahead: policy.tell_ahead_nanos,
            ahead_max: policy.ahead_max_nanos,
            search_ahead: policy.search_ahead_nanos,
            remember: policy.remember_nanos,
            user_cpu: policy.user_cpu,
            user_bandwidth: policy.user_bandwidth,
            user_reservations: policy.user_reservations,
            user_memory: policy.user_memory,
            waiting_requests: policy.waiting_requests,
            user_waiting_requests: policy.user_waiting_requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"
        topology = "/etc/keeptime/topology.toml"
        ledger = "/var/lib/keeptime/ledger.db"
        socket = "/run/keeptime/broker.sock"
        agents = "/run/keeptime/agents.sock"
        operators = ["ada"]
        fabric = "keeptime-fabric"

        [policy]
        agent_lease = "10 s"
        user_cpu = "50 %"
    "#;

    #[test]
    fn a_file_reads_back_with_its_defaults() {
        let config = Config::from_toml(FILE).unwrap();
        assert_eq!(config.policy.user_cpu, Share::from_percent(50).unwrap());
        assert_eq!(config.policy.remember, Policy::default().remember_nanos);
        assert_eq!(Config::from_toml(&config.to_toml()), Ok(config));
    }

    #[test]
    fn bad_files_name_the_field() {
        let cases = [
            ("\"10 s\"", "\"10 ms\"", "policy.agent_lease: \"10 ms\""),
            ("\"50 %\"", "\"150 %\"", "policy.user_cpu: \"150 %\""),
            ("agents.sock", "broker.sock", "another path than that of socket"),
            ("/run/keeptime/broker.sock", "/var/lib/keeptime/ledger.db", "than that of ledger"),
            ("/run/keeptime/agents.sock", "/etc/keeptime/topology.toml", "than that of topology"),
            ("/var/lib/keeptime/ledger.db", "", "ledger: \"\""),
            ("operators", "operator", "unknown field `operator`"),
            ("\"keeptime-fabric\"", "\"\"", "fabric: \"\" is not accepted; expected 1 to 64 bytes"),
            ("\"ada\"", "\"a b\"", "operators: \"a b\""),
            ("[policy]", "requests_per_second = 0\n[policy]", "expected 1 to 1000000"),
            (
                "user_cpu",
                "user_memory = \"63 MB\"\n        user_cpu",
                "policy.user_memory: \"63 MB\"",
            ),
            (
                "user_cpu",
                "waiting_requests = 513\n        user_cpu",
                "policy.waiting_requests: \"513\"",
            ),
        ];
        for (from, to, expected) in cases {
            let error = Config::from_toml(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    const TCP: &str = r#"
        [tcp]
        address = "0.0.0.0:7411"
        agents = "[::]:7412"
        certificate = "/etc/keeptime/broker.pem"
        key = "/etc/keeptime/broker-key.pem"
        client_ca = "/etc/keeptime/ca.pem"
        tokens = "/etc/keeptime/tokens.toml"
    "#;

    #[test]
    fn the_door_over_tcp_has_tls_and_somebody_to_let_in() {
        let with =
            |from: &str, to: &str| Config::from_toml(&format!("{FILE}{}", TCP.replace(from, to)));
        let config = with("", "").unwrap();
        assert_eq!(config.tcp.as_ref().unwrap().files().count(), 4);
        assert_eq!(Config::from_toml(&config.to_toml()), Ok(config));
        let cases = [
            ("        key", "        #", "tcp.key is missing"),
            ("        certificate", "        #", "tcp.certificate is missing"),
            ("client_ca", "# client_ca", "tcp.client_ca is missing"),
            ("0.0.0.0:7411", "broker.example", "ADDRESS:PORT, as in 0.0.0.0:7411"),
            ("0.0.0.0:7411", "[::]:7412", "another port than that of address"),
            ("tokens", "token", "unknown field `token`"),
        ];
        for (from, to, expected) in cases {
            let error = with(from, to).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
        let nobody =
            "client_ca = \"/etc/keeptime/ca.pem\"\n        tokens = \"/etc/keeptime/tokens.toml\"";
        let error = with(nobody, "").unwrap_err().to_string();
        assert!(error.contains("nobody could come in"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Config::from_toml(&text);
        }
    }
}
