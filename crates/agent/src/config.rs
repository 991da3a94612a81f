//! The agent's configuration file.

use crate::dial::{Broker, BrokerTls};
use keeptime_linux::cgroup::{CgroupError, Hierarchies, MARK};
use keeptime_linux::load::Scope;
use keeptime_model::Invalid;
use keeptime_model::disk::{Disk, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{self, BitsPerSecond, CpuPpm};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One agent's configuration (TOML).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The node's name in the topology.
    pub node: Name,
    /// The Unix socket on which the agent is asked.
    pub socket: PathBuf,
    /// Where the agent keeps what it was assigned.
    pub assignments: PathBuf,
    /// The device of the cluster's network.
    pub device: String,
    /// Where on the device Keeptime's classes go: `root`, or a parent such as `1:1` under a
    /// shaper that belongs to somebody else.
    #[serde(default = "root")]
    pub attach: String,
    /// The device's rate.
    #[serde(with = "units::text")]
    pub rate: BitsPerSecond,
    /// CPU that jobs may have on this node.
    #[serde(with = "units::text")]
    pub cpu: CpuPpm,
    /// The node's control group below the root of each hierarchy, and below `keeptime` there; jobs are its children.
    /// Without it (no root) nothing is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// The node is a part of a machine, as in a lab: how busy it is, is what its control group uses of `cpu`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub part_of_machine: bool,
    /// Users' processes may leave the control groups of Slurm (version 2, `proctrack/cgroup`) for those of jobs: its limits of
    /// memory, cores and devices do not hold then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_slurm: bool,
    /// Users' processes may leave control groups that limit their memory, processors or disks for those of jobs: these
    /// limits do not hold then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_limits: bool,
    /// Processes and threads that each job may have on this node: no more are started then.
    #[serde(default = "job_tasks")]
    pub job_tasks: u32,
    /// The broker's socket for agents. Without it the agent serves whoever asks on this node alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker: Option<PathBuf>,
    /// The broker's address for agents instead, where it is another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_tls: Option<BrokerTls>,
    /// Disks whose rates may be reserved. Others are nobody's to promise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
}

fn root() -> String {
    "root".into()
}

/// Many for a program, and few enough to be looked at again and again.
pub const fn job_tasks() -> u32 {
    8_192
}

/// The kernel has no more numbers of processes than this (`PID_MAX_LIMIT`).
const TASKS_MAX: u32 = 4_194_304;

impl Config {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn from_toml(text: &str) -> Result<Self, Invalid> {
        let config: Self = toml::from_str(text)
            .map_err(|error| Invalid::in_toml("agent configuration", text, &error))?;
        config.attach_parent()?;
        if config.rate == BitsPerSecond::ZERO {
            return Err(Invalid::new("rate", config.rate, "more than 0 bit/s"));
        }
        if config.device.is_empty() || config.device.len() > 15 {
            return Err(Invalid::new("device", &config.device, "a network device's name"));
        }
        if config.cgroup.as_deref() == Some(Path::new(MARK)) {
            // All that is below it would be the agent's: labs of the same machine too.
            let expected = format!("a group below it, such as {MARK}/node");
            return Err(Invalid::new("cgroup", MARK, expected));
        }
        if !(1..=TASKS_MAX).contains(&config.job_tasks) {
            let expected = format!("1 to {TASKS_MAX}");
            return Err(Invalid::new("job_tasks", config.job_tasks, expected));
        }
        if config.disk_rates().len() < config.disks.len() {
            let devices: Vec<_> = config.disks.iter().map(|disk| disk.device.to_string()).collect();
            return Err(Invalid::new("disks", devices.join(", "), "each device once"));
        }
        if let (Some(socket), Some(_)) = (&config.broker, &config.broker_tls) {
            let expected = "either this or [broker_tls]: a node has one broker";
            return Err(Invalid::new("broker", socket.display(), expected));
        }
        Ok(config)
    }

    /// What may be reserved of each disk.
    pub fn disk_rates(&self) -> BTreeMap<DiskId, DiskRates> {
        let rates = |disk: &Disk| DiskRates {
            read_bytes_per_second: Some(disk.read),
            write_bytes_per_second: Some(disk.write),
        };
        self.disks.iter().map(|disk| (disk.device, rates(disk))).collect()
    }

    /// The file that [`Self::from_toml`] reads back.
    pub fn to_toml(&self) -> String {
        // Strings and paths only: serialisation fails for paths that are not UTF-8 alone.
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// What counts as the node's load.
    ///
    /// # Errors
    /// If the machine has no control groups, and it should be one's.
    pub fn load_scope(&self) -> Result<Scope, CgroupError> {
        match self.cgroup.as_ref().filter(|_| self.part_of_machine) {
            Some(path) => {
                let group = Hierarchies::discover()?.group(path)?;
                Ok(Scope::Part { group, cpu: Some(self.cpu) })
            }
            None => Ok(Scope::Machine),
        }
    }

    /// Where the broker is, if there is one.
    pub fn place(&self) -> Option<Broker> {
        let socket = self.broker.clone().map(Broker::Socket);
        socket.or_else(|| self.broker_tls.clone().map(Broker::Tls))
    }

    /// `attach` as (major, minor) of a parent class; nothing for the device's root.
    ///
    /// # Errors
    /// If it is neither `root` nor `MAJOR:MINOR` in hexadecimal.
    pub fn attach_parent(&self) -> Result<Option<(u16, u16)>, Invalid> {
        if self.attach == "root" {
            return Ok(None);
        }
        let hex = |text: &str| u16::from_str_radix(text, 16).ok();
        let parent = self.attach.split_once(':').and_then(|(a, b)| Some((hex(a)?, hex(b)?)));
        let refuse = || Invalid::new("attach", &self.attach, "root, or MAJOR:MINOR as in 1:1");
        parent.map(Some).ok_or_else(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"
        node = "n1"
        socket = "/run/keeptime/agent.sock"
        assignments = "/run/keeptime/assignments.json"
        device = "eth0"
        attach = "1:1"
        rate = "200 Mbit/s"
        cpu = "40 %"
        cgroup = "keeptime/lab/n1"
        broker = "/run/keeptime/agents.sock"
        [[disks]]
        device = "254:0"
        read = "200 MB/s"
        write = "100 MB/s"
    "#;

    #[test]
    fn a_file_reads_back() {
        let config = Config::from_toml(FILE).unwrap();
        assert_eq!(config.attach_parent(), Ok(Some((1, 1))));
        assert_eq!(Config::from_toml(&config.to_toml()), Ok(config));
    }

    #[test]
    fn bad_files_name_the_field() {
        let cases = [
            ("\"1:1\"", "\"one\"", "attach: \"one\""),
            ("\"200 Mbit/s\"", "\"0 bit/s\"", "rate"),
            ("\"200 Mbit/s\"", "\"fast\"", "rate: \"fast\""),
            ("\"eth0\"", "\"\"", "device"),
            ("device", "devise", "unknown field `devise`"),
            ("node =", "job_tasks = 0\nnode =", "job_tasks: \"0\""),
            ("node =", "job_tasks = 4194305\nnode =", "1 to 4194304"),
            ("keeptime/lab/n1", "keeptime", "such as keeptime/node"),
            ("254:0", "vda", "MAJOR:MINOR"),
            ("\"100 MB/s\"", "\"100 Mbit/s\"", "disks[0].write: \"100 Mbit/s\""),
            (
                "[[disks]]",
                "[[disks]]\ndevice=\"254:0\"\nread=\"1 B/s\"\nwrite=\"1 B/s\"\n[[disks]]",
                "each device once",
            ),
        ];
        for (from, to, expected) in cases {
            let error = Config::from_toml(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    const TLS: &str = r#"
        [broker_tls]
        address = "broker.example:7412"
        certificate = "/etc/keeptime/n1.pem"
        key = "/etc/keeptime/n1-key.pem"
        ca = "/etc/keeptime/ca.pem"
    "#;

    #[test]
    fn a_broker_is_near_or_far_and_not_both() {
        let near = Config::from_toml(FILE).unwrap();
        assert!(matches!(near.place(), Some(Broker::Socket(_))));
        let alone = FILE.replace("broker = \"/run/keeptime/agents.sock\"", "");
        assert_eq!(Config::from_toml(&alone).unwrap().place(), None);
        let far = Config::from_toml(&format!("{alone}{TLS}")).unwrap();
        assert_eq!(far.place().unwrap().to_string(), "broker.example:7412");
        assert_eq!(Config::from_toml(&far.to_toml()), Ok(far));
        let both = Config::from_toml(&format!("{FILE}{TLS}")).unwrap_err().to_string();
        assert!(both.contains("either this or [broker_tls]"), "{both}");
        let nowhere = format!("{alone}{TLS}").replace("broker.example:7412", "broker.example");
        let nowhere = Config::from_toml(&nowhere).unwrap_err().to_string();
        assert!(nowhere.contains("HOST:PORT, as in"), "{nowhere}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = Config::from_toml(&text);
        }
    }
}
