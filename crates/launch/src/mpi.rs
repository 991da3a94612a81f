//! The MPI implementations: how each is found and how each starts ranks across nodes.

use keeptime_model::Invalid;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::{OsStr, OsString};
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
    /// Open MPI 4 and 5.
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
    /// The program that is called as `REMOTE HOST COMMAND…` to start a command on another node: a script for `/bin/sh`.
    pub remote: &'a Path,
    /// What that program is to what it starts.
    pub bond: Bond,
    /// The network that everything goes over.
    pub network: Network,
    /// Variables of the launcher's environment that ranks may get from there. MPICH's passes all of them on if nothing is said,
    /// also what says of a node where the launcher is, in the place of what the rank's own node has told; Open MPI's none.
    pub passed: &'a [String],
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
    #[error("{launcher} was not found: install {}{}", .flavour.packages(), .flavour.otherwise())]
    Missing {
        /// The program looked for.
        launcher: String,
        /// What has it.
        flavour: Flavour,
    },
    /// The launcher is there but does not answer as expected.
    #[error("{launcher} --version did not tell a version of {flavour}{}", .flavour.otherwise())]
    Unknown {
        /// The program asked.
        launcher: String,
        /// What it was expected to be.
        flavour: Flavour,
    },
}

impl Flavour {
    /// The one that is meant where none is named: MPICH where the first `mpirun` in `PATH` is MPICH's, as where its module is
    /// loaded, and else Open MPI.
    pub fn usual() -> Self {
        Self::usual_in(&path())
    }

    fn usual_in(path: &OsStr) -> Self {
        let mpirun = first_in(path, "mpirun");
        match mpirun.is_some_and(|mpirun| Mpi::at(Self::Mpich, &mpirun).is_ok()) {
            true => Self::Mpich,
            false => Self::OpenMpi,
        }
    }

    /// The names that its launcher may have, in the order in which they are tried: one that was built from source, or
    /// comes with an environment module, has its own; what a distribution calls it is there beside others.
    const fn launchers(self) -> &'static [&'static str] {
        match self {
            Self::OpenMpi => &["mpirun", "mpirun.openmpi"],
            Self::Mpich => &["mpiexec.hydra"],
        }
    }

    /// Whether its launcher passes a user's signal on to all ranks. That of MPICH does so with SIGUSR1 alone: the other one
    /// ends it.
    pub fn passes_on(self, signal: Signal) -> bool {
        match self {
            Self::OpenMpi => true,
            Self::Mpich => signal == Signal::SIGUSR1,
        }
    }

    const fn packages(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi-bin and libopenmpi-dev",
            Self::Mpich => "mpich and libmpich-dev",
        }
    }

    /// What to say where the other one is wanted.
    const fn otherwise(self) -> &'static str {
        match self {
            Self::OpenMpi => "; for MPICH: --mpi mpich",
            Self::Mpich => "; for Open MPI: --mpi open-mpi",
        }
    }
}

impl Mpi {
    /// Finds the launcher of `flavour` in `PATH` by asking what could be it for its version.
    ///
    /// # Errors
    /// If it is not installed (and which packages have it), or is something else.
    pub fn find(flavour: Flavour) -> Result<Self, MpiError> {
        Self::find_in(flavour, &path())
    }

    fn find_in(flavour: Flavour, path: &OsStr) -> Result<Self, MpiError> {
        let launcher = flavour.launchers().join(" or ");
        let mut found = Err(MpiError::Missing { launcher, flavour });
        for name in flavour.launchers() {
            let Some(mpiexec) = first_in(path, name) else { continue };
            found = Self::at(flavour, &mpiexec);
            if found.is_ok() {
                break;
            }
        }
        found
    }

    /// The launcher at `mpiexec`, checked to be of `flavour`.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn at(flavour: Flavour, mpiexec: &Path) -> Result<Self, MpiError> {
        let launcher = mpiexec.display().to_string();
        let output = Command::new(mpiexec).arg("--version").output();
        let output =
            output.map_err(|_| MpiError::Missing { launcher: launcher.clone(), flavour })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = parse_version(flavour, &text);
        let version = version.ok_or(MpiError::Unknown { launcher, flavour })?;
        Ok(Self { flavour, version, mpiexec: mpiexec.into() })
    }

    /// The command line that starts `command` once on each of the hosts, in rank order.
    ///
    /// TCP alone is used between ranks, so that the link's reservation is what they feel, and
    /// ranks that wait give their core away: nodes may have less than a core.
    ///
    /// # Errors
    /// If launchers would take a word of the command for what parts two programs.
    pub fn command_line(
        &self,
        launch: &Launch<'_>,
        command: &[String],
    ) -> Result<Vec<String>, Invalid> {
        if command.iter().any(|word| word == PARTS_PROGRAMS) {
            return Err(Invalid::new("command", command.join(" "), ONE_PROGRAM));
        }
        let mut line = vec![self.mpiexec.display().to_string()];
        match self.flavour {
            Flavour::OpenMpi => {
                let hosts: Vec<_> = launch.hosts.iter().map(|h| format!("{h}:1")).collect();
                line.extend(["--allow-run-as-root".into(), "--bind-to".into(), "none".into()]);
                line.extend(["-np".into(), hosts.len().to_string()]);
                line.extend(["-host".into(), hosts.join(",")]);
                // By any other mapping the node where it is started comes first, and flows are reserved between ranks.
                line.extend(["--map-by".into(), "seq".into()]);
                line.extend(self.prefix());
                let of_runtime = match self.has_prrte() {
                    true => prrte_options(launch),
                    false => orte_options(launch),
                };
                line.extend(of_runtime);
                line.extend(options("--mca", open_mpi_parameters(launch)));
            }
            Flavour::Mpich => {
                line.extend(["-launcher".into(), "ssh".into()]);
                line.extend(["-launcher-exec".into(), launch.remote.display().to_string()]);
                line.extend(["-iface".into(), launch.network.front_end_device.clone()]);
                line.extend(["-hosts".into(), launch.hosts.join(",")]);
                line.extend(["-np".into(), launch.hosts.len().to_string()]);
                line.extend(["-genvlist".into(), launch.passed.join(",")]);
                line.extend(options("-genv", mpich_environment(launch)));
            }
        }
        line.extend(command.iter().cloned());
        Ok(line)
    }

    /// Where an Open MPI is on all nodes, if shells there would not find its daemons by themselves: they have no module loaded.
    fn prefix(&self) -> Vec<String> {
        let directory = self.mpiexec.parent().filter(|directory| directory.ends_with("bin"));
        let prefix = directory.and_then(Path::parent).filter(|prefix| prefix.is_absolute());
        match prefix {
            Some(prefix) if !SYSTEMS_PREFIXES.iter().any(|known| prefix == Path::new(known)) => {
                vec!["--prefix".into(), prefix.display().to_string()]
            }
            _ => Vec::new(),
        }
    }

    /// Whether an Open MPI starts its ranks by PRRTE, and not by the runtime that it had itself before.
    fn has_prrte(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major >= PRRTE_SINCE)
    }
}

fn path() -> OsString {
    env::var_os("PATH").unwrap_or_default()
}

/// The program `name` that comes first in `path`.
fn first_in(path: &OsStr, name: &str) -> Option<PathBuf> {
    // What is found from here alone is not where nodes look for it.
    let directories = env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|place| place.is_file())
}

/// Every shell looks for programs there.
const SYSTEMS_PREFIXES: [&str; 3] = ["/", "/usr", "/usr/local"];

/// Behind it launchers begin with another program, wherever among a program's words it stands.
const PARTS_PROGRAMS: &str = ":";
const ONE_PROGRAM: &str = "one program for all ranks: launchers of MPI take a word that is a colon alone for the end of one. \
     A shell can have it, as in sh -c 'exec ./program :'";

/// The first Open MPI that starts ranks by PRRTE.
const PRRTE_SINCE: u32 = 5;

/// By which MPICH's libraries are told the device that they are to use.
pub const DEVICE_VARIABLES: [&str; 2] = ["UCX_NET_DEVICES", "FI_TCP_IFACE"];

/// `OPTION NAME VALUE` for each.
fn options(option: &str, parameters: Vec<(&'static str, String)>) -> Vec<String> {
    let words = |(name, value): (&str, String)| [option.to_string(), name.to_string(), value];
    parameters.into_iter().flat_map(words).collect()
}

/// What the library of Open MPI is told, whatever starts it.
fn open_mpi_parameters(launch: &Launch<'_>) -> Vec<(&'static str, String)> {
    vec![
        ("pml", "ob1".into()),
        ("btl", "tcp,self".into()),
        ("btl_tcp_if_include", launch.network.ranks.clone()),
        ("mpi_yield_when_idle", "1".into()),
    ]
}

/// What Open MPI 4 is told of its own runtime.
fn orte_options(launch: &Launch<'_>) -> Vec<String> {
    let mut parameters = vec![
        ("plm", "rsh".into()),
        ("plm_rsh_agent", agent(launch)),
        // Every daemon is started by the head: one level, and no need of our program on the nodes.
        ("plm_rsh_no_tree_spawn", "1".into()),
        // And so each of them has a connection to the head alone.
        ("routed", "direct".into()),
        ("orte_abort_on_non_zero_status", "1".into()),
    ];
    parameters.extend(launch.network.launchers.clone().map(|net| ("oob_tcp_if_include", net)));
    if launch.bond == Bond::Lasting {
        // Daemons stay what was started, instead of going on by themselves.
        parameters.push(("orte_leave_session_attached", "1".into()));
        parameters.push(("plm_rsh_num_concurrent", all_at_once(launch)));
    }
    options("--mca", parameters)
}

/// The same for PRRTE, which ends all ranks when one fails without being told. Its parameters have an option of their own:
/// some of its versions take those of the old runtime for the new ones by `--mca`, others pass them over.
fn prrte_options(launch: &Launch<'_>) -> Vec<String> {
    let mut parameters = vec![
        ("plm", "ssh".into()),
        ("plm_ssh_agent", agent(launch)),
        ("plm_ssh_no_tree_spawn", "1".into()),
        // Daemons connect to each other as a tree. It has one level where the head has room for all of them.
        ("rml_base_radix", launch.hosts.len().max(PRRTE_RADIX).to_string()),
    ];
    parameters.extend(launch.network.launchers.clone().map(|net| ("prte_if_include", net)));
    let mut stays = Vec::new();
    if launch.bond == Bond::Lasting {
        parameters.push(("plm_ssh_num_concurrent", all_at_once(launch)));
        stays.push("--leave-session-attached".to_string());
    }
    [stays, options("--prtemca", parameters)].concat()
}

/// The remote program, as a script. Daemons on other nodes are told of it as well, and one of Open MPI 4.1 that does not find the
/// first word there crashes: the script is on this machine alone.
fn agent(launch: &Launch<'_>) -> String {
    format!("/bin/sh {}", launch.remote.display())
}

/// So many daemons each one of PRRTE has below it, if nothing is said.
const PRRTE_RADIX: usize = 64;

/// How many remote programs may run beside each other: each lasts until the end.
fn all_at_once(launch: &Launch<'_>) -> String {
    launch.hosts.len().max(128).to_string()
}

/// Both network modules of MPICH 4 are told to use TCP on the cluster's device: which of them the
/// library was built with cannot be seen from outside.
fn mpich_environment(launch: &Launch<'_>) -> Vec<(&'static str, String)> {
    let device = launch.network.node_device.iter();
    let devices = device.flat_map(|device| DEVICE_VARIABLES.map(|name| (name, device.clone())));
    let transports = [("UCX_TLS", "tcp,self".into()), ("FI_PROVIDER", "tcp".into())];
    transports.into_iter().chain(devices).collect()
}

/// `"mpirun (Open MPI) 4.1.4"` and so in 5, `"mpirun.openmpi (OpenRTE) 4.1.4"`, or a line `Version: 4.0.2` of MPICH's build details.
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
        let five = "mpirun.openmpi (Open MPI) 5.0.7\n\nReport bugs to …\n";
        assert_eq!(parse_version(Flavour::OpenMpi, five).as_deref(), Some("5.0.7"));
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(parse_version(Flavour::Mpich, hydra).as_deref(), Some("4.0.2"));
        assert_eq!(parse_version(Flavour::Mpich, open), None);
        assert_eq!(parse_version(Flavour::OpenMpi, hydra), None);
    }

    fn network() -> Network {
        Network {
            ranks: "10.0.0.0/16".into(),
            launchers: Some("10.0.0.0/8".into()),
            front_end_device: "switch0".into(),
            node_device: Some("eth0".into()),
        }
    }

    /// The command line for `./a --size 512` on two hosts.
    fn line_of(flavour: Flavour, version: &str, bond: Bond) -> Vec<String> {
        let hosts = ["10.0.0.1".to_string(), "10.0.0.3".to_string()];
        let (remote, network) = (Path::new("/run/rsh"), network());
        let passed = &["PATH".to_owned(), "HOME".to_owned()];
        let launch = Launch { hosts: &hosts, remote, bond, network, passed };
        let mpi = Mpi { flavour, version: version.into(), mpiexec: "mpiexec".into() };
        mpi.command_line(&launch, &["./a".to_string(), "--size".into(), "512".into()]).unwrap()
    }

    /// Whether these words follow one another.
    fn says(line: &[String], words: &[&str]) -> bool {
        line.windows(words.len()).any(|some| some == words)
    }

    #[test]
    fn ranks_get_what_may_be_passed() {
        let line = line_of(Flavour::Mpich, "4.0.2", Bond::Loose);
        assert!(says(&line, &["-genvlist", "PATH,HOME"]), "{line:?}");
    }

    // Goal: a program's own words never start another program beside it. Method: the word by which launchers part them,
    // for each; inside of another word it means nothing.
    #[test]
    fn a_word_that_parts_programs_is_refused() {
        let (remote, hosts) = (Path::new("/run/rsh"), ["10.0.0.1".to_string()]);
        let (bond, passed) = (Bond::Loose, &["PATH".to_owned()]);
        let launch = Launch { hosts: &hosts, remote, bond, network: network(), passed };
        for flavour in [Flavour::OpenMpi, Flavour::Mpich] {
            let mpi = Mpi { flavour, version: "4.1.4".into(), mpiexec: "mpiexec".into() };
            let line = |words: &[&str]| {
                let words: Vec<_> = words.iter().map(ToString::to_string).collect();
                mpi.command_line(&launch, &words)
            };
            let error = line(&["./a", "--sign", ":", "./b"]).unwrap_err().to_string();
            assert!(error.contains("one program for all ranks"), "{error}");
            assert!(error.contains("./a --sign : ./b"), "{error}");
            assert!(line(&["sh", "-c", "exec ./a :"]).is_ok() && line(&["./a", "::"]).is_ok());
        }
    }

    #[test]
    fn each_host_gets_one_rank_in_order() {
        for (flavour, version, list) in [
            (Flavour::OpenMpi, "4.1.4", "10.0.0.1:1,10.0.0.3:1"),
            (Flavour::OpenMpi, "5.0.7", "10.0.0.1:1,10.0.0.3:1"),
            (Flavour::Mpich, "4.0.2", "10.0.0.1,10.0.0.3"),
        ] {
            let line = line_of(flavour, version, Bond::Loose);
            assert!(says(&line, &[list]), "{line:?}");
            // Hydra keeps to the order by itself.
            let is_in_sequence = says(&line, &["--map-by", "seq"]);
            assert_eq!(is_in_sequence, flavour == Flavour::OpenMpi, "{line:?}");
            assert!(line.iter().any(|word| word.ends_with("/run/rsh")));
            assert!(line.ends_with(&["./a".to_string(), "--size".into(), "512".into()]));
        }
    }

    // Goal: daemons stay what the remote program has started where that is wanted. Those of MPICH do by themselves.
    #[test]
    fn daemons_stay_where_they_were_started() {
        for (flavour, version, stays) in [
            (Flavour::OpenMpi, "4.1.6", &["--mca", "orte_leave_session_attached", "1"][..]),
            (Flavour::OpenMpi, "5.0.7", &["--leave-session-attached"][..]),
        ] {
            let of = |bond| line_of(flavour, version, bond);
            assert!(says(&of(Bond::Lasting), stays), "{version}");
            assert!(!says(&of(Bond::Loose), stays), "{version}");
        }
        let of = |bond| line_of(Flavour::Mpich, "4.2.1", bond);
        assert_eq!(of(Bond::Lasting), of(Bond::Loose));
    }

    // Each runtime of Open MPI passes over what it does not know: then ranks are started without our program, over any
    // network.
    #[test]
    fn each_runtime_of_open_mpi_is_told_in_its_own_words() {
        let (four, five) = ("4.1.6", "5.0.7");
        let of = |version| line_of(Flavour::OpenMpi, version, Bond::Lasting);
        for (version, words) in [
            (four, ["--mca", "plm", "rsh"]),
            (four, ["--mca", "plm_rsh_agent", "/bin/sh /run/rsh"]),
            (four, ["--mca", "routed", "direct"]),
            (four, ["--mca", "oob_tcp_if_include", "10.0.0.0/8"]),
            (four, ["--mca", "plm_rsh_num_concurrent", "128"]),
            (five, ["--prtemca", "plm", "ssh"]),
            (five, ["--prtemca", "plm_ssh_agent", "/bin/sh /run/rsh"]),
            (five, ["--prtemca", "rml_base_radix", "64"]),
            (five, ["--prtemca", "prte_if_include", "10.0.0.0/8"]),
            (five, ["--prtemca", "plm_ssh_num_concurrent", "128"]),
        ] {
            assert!(says(&of(version), &words), "{version}: {words:?}");
        }
        let is_of = |old: &str, word: &String| word.contains(old);
        assert!(!of(four).iter().any(|word| is_of("prte", word) || is_of("_ssh_", word)));
        assert!(!of(five).iter().any(|word| is_of("orte", word) || is_of("_rsh_", word)));
        // The library has the same in both.
        for version in [four, five, "10.1.0"] {
            assert!(says(&of(version), &["--mca", "btl_tcp_if_include", "10.0.0.0/16"]));
        }
        assert!(says(&of("10.1.0"), &["--prtemca", "plm", "ssh"]));
    }

    /// A directory `NAME/bin` with programs that print, each its text. A shell writes them: a file that is open here for
    /// writing may be so for a moment in what another test starts just then, and cannot be run as long as it is.
    fn installed(root: &Path, name: &str, programs: &[(&str, &str)]) -> PathBuf {
        let directory = root.join(name).join("bin");
        std::fs::create_dir_all(&directory).unwrap();
        let write = r#"printf '#!/bin/sh\necho "%s"\n' "$2" > "$1" && chmod +x "$1""#;
        for (program, prints) in programs {
            let mut shell = Command::new("sh");
            shell.args(["-c", write, "sh"]).arg(directory.join(program)).arg(prints);
            assert!(shell.status().unwrap().success());
        }
        directory
    }

    // Goal: the Open MPI of an environment module is found before the distribution's, and another library's launcher of the
    // same name is passed over. Nodes are told where the module is, and nothing of what every shell finds.
    #[test]
    fn the_launcher_of_a_module_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let four = [("mpirun", "mpirun (Open MPI) 4.1.4"), ("mpirun.openmpi", "(OpenRTE) 4.1.4")];
        let systems = installed(root.path(), "systems", &four);
        let module = installed(root.path(), "module", &[("mpirun", "mpirun (Open MPI) 5.0.7")]);
        let others = installed(root.path(), "others", &[("mpirun", "Some MPI, version 2021")]);
        let found = |directories: &[&PathBuf]| {
            let path = env::join_paths(directories).unwrap();
            Mpi::find_in(Flavour::OpenMpi, &path)
        };
        let of_module = found(&[&module, &systems]).unwrap();
        assert_eq!(of_module.version, "5.0.7");
        let prefix = root.path().join("module").display().to_string();
        assert_eq!(of_module.prefix(), ["--prefix", &prefix]);
        let of_system = found(&[&others, &systems]).unwrap();
        assert_eq!(of_system.mpiexec, systems.join("mpirun.openmpi"));
        assert!(matches!(found(&[&others]), Err(MpiError::Unknown { .. })));
        let none = found(&[]).unwrap_err().to_string();
        assert!(none.contains("mpirun.openmpi") && none.contains("openmpi-bin"), "{none}");
        let usual = Mpi { mpiexec: "/usr/bin/mpirun".into(), ..of_system };
        assert!(usual.prefix().is_empty());
    }

    // Goal: who has the module of one MPI loaded need not name it, whatever else the system has. Method: each `mpirun` first,
    // with the other behind it; one that nobody knows, and none.
    #[test]
    fn the_first_mpirun_tells_which_mpi_is_meant() {
        let root = tempfile::tempdir().unwrap();
        let hydra = "HYDRA build details:\n    Version:    4.2.1";
        let mpich = installed(root.path(), "mpich", &[("mpirun", hydra)]);
        let open = installed(root.path(), "open", &[("mpirun", "mpirun (Open MPI) 4.1.4")]);
        let others = installed(root.path(), "others", &[("mpirun", "Some MPI, version 2021")]);
        let usual =
            |directories: &[&PathBuf]| Flavour::usual_in(&env::join_paths(directories).unwrap());
        assert_eq!(usual(&[&mpich, &open]), Flavour::Mpich);
        assert_eq!(usual(&[&open, &mpich]), Flavour::OpenMpi);
        assert_eq!(usual(&[&others, &mpich]), Flavour::OpenMpi);
        assert_eq!(usual(&[]), Flavour::OpenMpi);
    }

    // Goal: whoever has the other MPI is told how to say so, whether a launcher is missing or another's.
    #[test]
    fn a_launcher_that_does_not_serve_names_packages_and_the_other_mpi() {
        let error = Mpi::at(Flavour::OpenMpi, Path::new("/nowhere/mpirun")).unwrap_err();
        assert!(error.to_string().contains("openmpi-bin"), "{error}");
        assert!(error.to_string().ends_with("; for MPICH: --mpi mpich"), "{error}");
        let error = Mpi::at(Flavour::OpenMpi, Path::new("/bin/true")).unwrap_err();
        assert!(matches!(error, MpiError::Unknown { .. }));
        assert!(error.to_string().ends_with("; for MPICH: --mpi mpich"), "{error}");
        let error = Mpi::at(Flavour::Mpich, Path::new("/bin/true")).unwrap_err();
        assert!(error.to_string().ends_with("; for Open MPI: --mpi open-mpi"), "{error}");
    }

    // What hydra catches of a user's is SIGUSR1: by the other it ends.
    #[test]
    fn signals_that_end_a_launcher_are_not_passed_on() {
        let both = [Signal::SIGUSR1, Signal::SIGUSR2];
        assert_eq!(both.map(|signal| Flavour::OpenMpi.passes_on(signal)), [true, true]);
        assert_eq!(both.map(|signal| Flavour::Mpich.passes_on(signal)), [true, false]);
    }

    proptest! {
        #[test]
        fn any_version_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = (parse_version(Flavour::OpenMpi, &text), parse_version(Flavour::Mpich, &text));
        }
    }
}
