//! How processes are started on the nodes of a cluster, and how the agents there are asked: in the namespaces
//! of a lab, or by `ssh` and what is called as it is.

mod far;
mod lab;
mod script;

pub use far::{Far, Plan};
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
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

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

impl fmt::Display for AgentPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(socket) => socket.display().fmt(f),
            Self::Relay { node, .. } => node.fmt(f),
        }
    }
}

/// An agent that is asked now and then: the connection is kept, and made anew when it broke. One that was waited for in vain is
/// left alone for as long, so that whoever asks several things goes on with what else there is to do.
#[derive(Debug)]
pub struct KeptAgent {
    place: AgentPlace,
    client: Option<Client>,
    alone_until: Option<Instant>,
}

impl KeptAgent {
    /// The agent there; connects when it is asked first.
    pub fn new(place: AgentPlace) -> Self {
        Self { place, client: None, alone_until: None }
    }

    /// Asks it, once more on a new connection if the former one broke.
    ///
    /// # Errors
    /// If it does not answer, has not done so just before, or refuses.
    pub fn ask<T>(
        &mut self,
        ask: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let asked = Instant::now();
        if self.alone_until.is_some_and(|until| asked < until) {
            let source = io::Error::new(io::ErrorKind::TimedOut, "it has not answered just before");
            return Err(ClientError::Unreachable { place: self.place.to_string(), source });
        }
        let answer = self.ask_again(asked, ask);
        let is_in_vain = answer.as_ref().is_err_and(ClientError::is_retryable);
        let waited = Some(asked.elapsed()).filter(|waited| is_in_vain && *waited >= LONG);
        self.alone_until = waited.map(|waited| Instant::now() + waited);
        answer
    }

    fn ask_again<T>(
        &mut self,
        asked: Instant,
        ask: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        if let Some(client) = &mut self.client {
            let answer = ask(client);
            if !answer.as_ref().is_err_and(ClientError::is_retryable) {
                return answer;
            }
            self.client = None;
            // One that hangs does so on every connection.
            if asked.elapsed() >= LONG {
                return answer;
            }
        }
        let mut client = self.place.connect()?;
        let answer = ask(&mut client);
        if !answer.as_ref().is_err_and(ClientError::is_retryable) {
            self.client = Some(client);
        }
        answer
    }
}

/// Who was waited for so long hangs; an agent that begins anew hangs up at once, and is there a moment later.
const LONG: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    // Goal: what an agent that hangs costs is bounded, and one that has only begun anew is asked again at once. Method: one
    // that is waited for as long as it takes, and counts how often it is asked.
    #[test]
    fn an_agent_that_was_waited_for_in_vain_is_left_alone_for_as_long() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let _agent = UnixListener::bind(&socket).unwrap();
        let mut agent = KeptAgent::new(AgentPlace::Socket(socket));
        let asked = std::cell::Cell::new(0);
        let mut ask = |waits: Duration, answers: bool| {
            asked.set(0);
            let answer = agent.ask(|_| {
                asked.set(asked.get() + 1);
                std::thread::sleep(waits);
                let unreachable = |source| ClientError::Unreachable { place: "n1".into(), source };
                answers.then_some(()).ok_or_else(|| unreachable(io::ErrorKind::WouldBlock.into()))
            });
            (answer.is_ok(), asked.get())
        };
        assert_eq!(ask(Duration::ZERO, true), (true, 1));
        assert_eq!(ask(Duration::ZERO, false), (false, 2), "on a new connection");
        assert_eq!(ask(Duration::ZERO, true), (true, 1));
        assert_eq!(ask(LONG, false), (false, 1));
        assert_eq!(ask(Duration::ZERO, true), (false, 0));
        std::thread::sleep(LONG);
        assert_eq!(ask(Duration::ZERO, true), (true, 1));
    }
}
