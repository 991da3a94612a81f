//! The MPI implementations: how each is found and how each starts ranks across nodes.

use keeptime_model::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use thiserror::Error;

/// An MPI implementation that Keeptime knows how to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Flavour {
    /// Open MPI 4.
    OpenMpi,
    /// MPICH 4 and later, over UCX or libfabric.
    Mpich,
}

/// An MPI implementation that was found on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mpi {
    /// Which one.
    pub flavour: Flavour,
    /// Its version as it tells it.
    pub version: String,
    /// Its launcher.
    pub mpiexec: PathBuf,
}

/// What a launch across nodes needs beside the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch<'a> {
    /// Address or name of the node of each rank.
    pub hosts: &'a [String],
    /// The program that is called as `REMOTE HOST COMMAND…` to start a command on another node.
    pub remote: &'a Path,
    /// What that program is to what it starts.
    pub bond: Bond,
    /// The network that everything goes over.
    pub network: Network,
}

/// What binds the remote program to the command that it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// The command goes on when the program has ended.
    Loose,
    /// The program lasts as long as the command, and with it the command ends.
    Lasting,
}

/// The cluster's network by the names that launchers and libraries want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// `ADDRESS/PREFIX`, of the nodes alone: what ranks send goes over it.
    pub ranks: String,
    /// The same with the machine where the launcher starts; nothing if they have no network in common, and any will
    /// do that leads from one to the other.
    pub launchers: Option<String>,
    /// Its device where the launcher starts.
    pub front_end_device: String,
    /// Its device on every node; nothing if each is told its own where it is started.
    pub node_device: Option<String>,
}

/// MPI cannot be used here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// The launcher is not installed.
    #[error("{launcher} was not found: install {packages}")]
    Missing {
        /// The program looked for.
        launcher: String,
        /// The distribution's packages that have it.
        packages: &'static str,
    },
    /// The launcher is there but does not answer as expected.
    #[error("{launcher} --version did not tell a version of {flavour}")]
    Unknown {
        /// The program asked.
        launcher: String,
        /// What it was expected to be.
        flavour: Flavour,
    },
}

impl Flavour {
    const fn launcher(self) -> &'static str {
        match self {
            Self::OpenMpi => "mpirun.openmpi",
            Self::Mpich => "mpiexec.hydra",
        }
    }

    const fn packages(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi-bin and libopenmpi-dev",
            Self::Mpich => "mpich and libmpich-dev",
        }
    }
}

impl Mpi {
    /// Finds the launcher of `flavour` by asking it for its version.
    ///
    /// # Errors
    /// If it is not installed (and which packages have it), or is something else.
    pub fn find(flavour: Flavour) -> Result<Self, MpiError> {
        Self::at(flavour, Path::new(flavour.launcher()))
    }

    /// The launcher at `mpiexec`, checked to be of `flavour`.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn at(flavour: Flavour, mpiexec: &Path) -> Result<Self, MpiError> {
        let launcher = mpiexec.display().to_string();
        let output = Command::new(mpiexec).arg("--version").output().map_err(|_| {
            MpiError::Missing { launcher: launcher.clone(), packages: flavour.packages() }
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = parse_version(flavour, &text);
        let version = version.ok_or(MpiError::Unknown { launcher, flavour })?;
        Ok(Self { flavour, version, mpiexec: mpiexec.into() })
    }

    /// The command line that starts `command` once on each of the hosts, in rank order.
    ///
    /// TCP alone is used between ranks, so that the link's reservation is what they feel, and
    /// ranks that wait give their core away: nodes may have less than a core.
    pub fn command_line(&self, launch: &Launch<'_>, command: &[String]) -> Vec<String> {
        let mut line = vec![self.mpiexec.display().to_string()];
        match self.flavour {
            Flavour::OpenMpi => {
                let hosts: Vec<_> = launch.hosts.iter().map(|h| format!("{h}:1")).collect();
                line.extend(["--allow-run-as-root".into(), "--bind-to".into(), "none".into()]);
                line.extend(["-np".into(), hosts.len().to_string()]);
                line.extend(["-host".into(), hosts.join(",")]);
                for (name, value) in open_mpi_parameters(launch) {
                    line.extend(["-mca".to_string(), name.to_string(), value]);
                }
            }
            Flavour::Mpich => {
                line.extend(["-launcher".into(), "ssh".into()]);
                line.extend(["-launcher-exec".into(), launch.remote.display().to_string()]);
                line.extend(["-iface".into(), launch.network.front_end_device.clone()]);
                line.extend(["-hosts".into(), launch.hosts.join(",")]);
                line.extend(["-np".into(), launch.hosts.len().to_string()]);
                for (name, value) in mpich_environment(launch) {
                    line.extend(["-genv".to_string(), name.to_string(), value]);
                }
            }
        }
        line.extend(command.iter().cloned());
        line
    }
}

/// By which MPICH's libraries are told the device that they are to use.
pub const DEVICE_VARIABLES: [&str; 2] = ["UCX_NET_DEVICES", "FI_TCP_IFACE"];

fn open_mpi_parameters(launch: &Launch<'_>) -> Vec<(&'static str, String)> {
    let mut parameters = vec![
        ("plm", "rsh".into()),
        ("plm_rsh_agent", launch.remote.display().to_string()),
        // Every daemon is started by the head: one level, and no need of our program on the nodes.
        ("plm_rsh_no_tree_spawn", "1".into()),
        // And so each of them has a connection to the head alone.
        ("routed", "direct".into()),
        ("pml", "ob1".into()),
        ("btl", "tcp,self".into()),
        ("btl_tcp_if_include", launch.network.ranks.clone()),
        ("mpi_yield_when_idle", "1".into()),
        ("orte_abort_on_non_zero_status", "1".into()),
    ];
    parameters.extend(launch.network.launchers.clone().map(|net| ("oob_tcp_if_include", net)));
    if launch.bond == Bond::Lasting {
        // Daemons stay what was started, instead of going on by themselves.
        parameters.push(("orte_leave_session_attached", "1".into()));
        // All of them at once: each remote program lasts until the end.
        parameters.push(("plm_rsh_num_concurrent", launch.hosts.len().max(128).to_string()));
    }
    parameters
}

/// Both network modules of MPICH 4 are told to use TCP on the cluster's device: which of them the
/// library was built with cannot be seen from outside.
fn mpich_environment(launch: &Launch<'_>) -> Vec<(&'static str, String)> {
    let device = launch.network.node_device.iter();
    let devices = device.flat_map(|device| DEVICE_VARIABLES.map(|name| (name, device.clone())));
    let transports = [("UCX_TLS", "tcp,self".into()), ("FI_PROVIDER", "tcp".into())];
    transports.into_iter().chain(devices).collect()
}

/// `"mpirun (Open MPI) 4.1.4"`, `"mpirun.openmpi (OpenRTE) 4.1.4"`, or a line `Version: 4.0.2` of MPICH's build details.
fn parse_version(flavour: Flavour, text: &str) -> Option<String> {
    let word = match flavour {
        // Called by its own name it says Open MPI, by another the name of its runtime.
        Flavour::OpenMpi => text
            .lines()
            .find_map(|line| line.split_once("(Open MPI)").or(line.split_once("(OpenRTE)")))
            .map(|(_, version)| version),
        Flavour::Mpich => text
            .lines()
            .filter(|_| text.contains("HYDRA"))
            .find_map(|line| line.trim().strip_prefix("Version:")),
    }?;
    let version = word.trim();
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_string())
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        })
    }
}

impl FromStr for Flavour {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "open-mpi" | "openmpi" => Ok(Self::OpenMpi),
            "mpich" => Ok(Self::Mpich),
            _ => Err(Invalid::new("mpi", text, "open-mpi or mpich")),
        }
    }
}

impl fmt::Display for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.flavour, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_read_from_what_the_launchers_print() {
        let open = "mpirun (Open MPI) 4.1.4\n\nReport bugs to …\n";
        assert_eq!(parse_version(Flavour::OpenMpi, open).as_deref(), Some("4.1.4"));
        let named = "mpirun.openmpi (OpenRTE) 4.1.4\n";
        assert_eq!(parse_version(Flavour::OpenMpi, named).as_deref(), Some("4.1.4"));
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(parse_version(Flavour::Mpich, hydra).as_deref(), Some("4.0.2"));
        assert_eq!(parse_version(Flavour::Mpich, open), None);
        assert_eq!(parse_version(Flavour::OpenMpi, hydra), None);
    }

    #[test]
    fn each_host_gets_one_rank_in_order() {
        let hosts = ["10.0.0.1".to_string(), "10.0.0.3".to_string()];
        let network = Network {
            ranks: "10.0.0.0/16".into(),
            launchers: Some("10.0.0.0/8".into()),
            front_end_device: "switch0".into(),
            node_device: Some("eth0".into()),
        };
        let (remote, bond) = (Path::new("/run/rsh"), Bond::Loose);
        let launch = Launch { hosts: &hosts, remote, bond, network };
        let command = ["./a".to_string(), "--size".into(), "512".into()];
        for (flavour, list) in
            [(Flavour::OpenMpi, "10.0.0.1:1,10.0.0.3:1"), (Flavour::Mpich, "10.0.0.1,10.0.0.3")]
        {
            let mpi = Mpi { flavour, version: "4".into(), mpiexec: "mpiexec".into() };
            let line = mpi.command_line(&launch, &command);
            assert!(line.iter().any(|w| w == list), "{line:?}");
            assert!(line.iter().any(|w| w == "/run/rsh"));
            assert!(line.ends_with(&command));
            let lasting = Launch { bond: Bond::Lasting, ..launch.clone() };
            let stays = |line: &[String]| line.iter().any(|w| w == "orte_leave_session_attached");
            assert!(!stays(&line));
            // Those of MPICH do by themselves.
            let is_open = flavour == Flavour::OpenMpi;
            assert_eq!(stays(&mpi.command_line(&lasting, &command)), is_open);
        }
    }

    #[test]
    fn a_missing_launcher_names_the_packages() {
        let error = Mpi::at(Flavour::OpenMpi, Path::new("/nowhere/mpirun")).unwrap_err();
        assert!(error.to_string().contains("openmpi-bin"), "{error}");
        let error = Mpi::at(Flavour::OpenMpi, Path::new("/bin/true")).unwrap_err();
        assert!(matches!(error, MpiError::Unknown { .. }));
    }

    proptest! {
        #[test]
        fn any_version_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = (parse_version(Flavour::OpenMpi, &text), parse_version(Flavour::Mpich, &text));
        }
    }
}
