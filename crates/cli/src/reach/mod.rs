//! How processes are started on the nodes of a cluster, and how the agents there are asked: in the namespaces
//! of a lab, or by `ssh` and what is called as it is.

mod far;
mod kept;
mod lab;
mod script;

pub use far::{Far, Plan};
pub use kept::KeptAgents;
pub use lab::{exec_line, network as lab_network};
pub use script::RemoteLauncher;

use crate::job_command;
use crate::place::{Found, Where};
use anyhow::{Result, bail};
use keeptime_agent::client::{Client, ClientError};
use keeptime_lab::Lab;
use keeptime_launch::mpi::{Launch, Mpi};
use keeptime_launch::remote::Launcher;
use keeptime_launch::slurm::{self, Allocation};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::{Node, Topology};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

/// The way to the nodes of a cluster.
#[derive(Debug)]
pub enum Reach {
    /// Namespaces of this machine.
    Lab(Lab),
    /// Other machines.
    Far(Far),
}

/// Where the ranks of an MPI program run.
#[derive(Debug)]
pub struct Ranks<'a> {
    /// On one each, in their order.
    pub nodes: Vec<&'a Node>,
    /// Whose processes they are; nothing = nobody's, which only a lab has.
    pub job: Option<&'a Name>,
}

/// Where an agent is asked.
#[derive(Debug, Clone)]
pub enum AgentPlace {
    /// On this machine.
    Socket(PathBuf),
    /// On its node, by this command line.
    Relay {
        /// Which node.
        node: Name,
        /// What passes on to the agent what it reads.
        line: Vec<String>,
    },
}

impl Reach {
    /// The way to the nodes of the cluster whose broker was found: by `launcher`, if one is given, or as is configured, or by
    /// steps of the job of Slurm's around this process, or by `ssh`.
    ///
    /// # Errors
    /// If hosts are named that are no nodes of the cluster.
    pub fn of(
        found: &Found,
        launcher: Option<Launcher>,
        around: Option<&Allocation>,
        topology: &Topology,
    ) -> Result<Self, Invalid> {
        let nodes = &found.nodes;
        let launcher = launcher.or_else(|| nodes.launcher.clone());
        let launcher = launcher.or_else(|| around.map(Allocation::launcher)).unwrap_or_default();
        match &found.broker {
            Where::Lab(lab) => Ok(Self::Lab(lab.clone())),
            _ => Far::new(nodes, launcher, topology).map(Self::Far),
        }
    }

    /// The lab, if it is one.
    pub fn lab(&self) -> Option<&Lab> {
        match self {
            Self::Lab(lab) => Some(lab),
            Self::Far(_) => None,
        }
    }

    /// Where the agent of `node` is asked.
    pub fn agent(&self, node: &Name) -> AgentPlace {
        match self {
            Self::Lab(lab) => AgentPlace::Socket(lab::agent_socket(lab, node)),
            Self::Far(far) => far.agent(node),
        }
    }

    /// The command line that runs `command` by `mpi` with a rank on each node, and the script that it needs
    /// as long as it runs.
    ///
    /// # Errors
    /// If a node has no address, launchers would take the command for several programs, or the script cannot be written.
    pub fn mpi_line(
        &self,
        mpi: &Mpi,
        ranks: &Ranks<'_>,
        command: &[String],
    ) -> Result<(Vec<String>, RemoteLauncher)> {
        match (self, ranks.job) {
            (Self::Lab(lab), _) => lab::mpi_line(lab, mpi, ranks, command),
            (Self::Far(far), Some(job)) => far.mpi_line(mpi, ranks, job, command),
            (Self::Far(_), None) => bail!("on nodes elsewhere only jobs run"),
        }
    }
}

/// The command line of a launcher of MPI that does not look for a batch system around it: where its ranks run is said. What each
/// node tells of itself is not passed on to others.
///
/// # Errors
/// If launchers would take the command for several programs.
fn mpi_alone(mpi: &Mpi, launch: &Launch<'_>, command: &[String]) -> Result<Vec<String>, Invalid> {
    let may_pass = |name: &String| {
        !job_command::is_of_node(name) && !slurm::tells_of_job(name) && !name.contains(',')
    };
    let passed: Vec<_> = variables().filter(may_pass).collect();
    let launch = Launch { passed: &passed, ..launch.clone() };
    Ok(slurm::unseen(variables(), mpi.command_line(&launch, command)?))
}

/// The names of this process's variables.
fn variables() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

impl Ranks<'_> {
    /// The addresses of their nodes, in their order.
    ///
    /// # Errors
    /// If one is not known.
    pub fn addresses(&self) -> Result<Vec<Ipv4Addr>> {
        self.nodes.iter().map(|node| address(node)).collect()
    }
}

/// A node's address.
///
/// # Errors
/// If the topology does not tell it.
pub fn address(node: &Node) -> Result<Ipv4Addr> {
    match node.address {
        Some(address) => Ok(address),
        None => {
            bail!("the address of {} is not known: the broker's topology tells none", node.name)
        }
    }
}

impl AgentPlace {
    /// In people's words.
    fn called(&self) -> String {
        match self {
            Self::Socket(socket) => socket.display().to_string(),
            Self::Relay { node, .. } => node.to_string(),
        }
    }

    /// A connection to it.
    ///
    /// # Errors
    /// If nothing listens there, or the command cannot be started.
    pub fn connect(&self) -> Result<Client, ClientError> {
        match self {
            Self::Socket(socket) => Client::connect(socket),
            Self::Relay { node, line } => {
                let mut command = Command::new(&line[0]);
                command.args(&line[1..]);
                // All that a step is to know is in its words: what is said otherwise would put labels before an answer, or have
                // it written to a file.
                variables().filter(|name| slurm::tells_of_job(name)).for_each(|name| {
                    command.env_remove(name);
                });
                Client::through(node, command)
            }
        }
    }
}
