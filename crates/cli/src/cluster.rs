//! A lab as commands see it: its topology, its broker, its agents, and how to run something there.

use crate::brokers;
use anyhow::{Context, Result, ensure};
use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::wire::Status;
use keeptime_broker::client::Client as Broker;
use keeptime_lab::{Lab, Labs};
use keeptime_launch::mpi::{Launch, Mpi, Network};
use keeptime_model::application::Application;
use keeptime_model::name::Name;
use keeptime_model::profile::Conditions;
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::availability::Availability;
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A cluster whose broker and agents answer on Unix sockets of this machine.
#[derive(Debug)]
pub struct Cluster {
    lab: Lab,
}

/// A script that starts a command on another node, as `ssh HOST COMMAND` would.
#[derive(Debug)]
pub struct RemoteLauncher {
    path: PathBuf,
}

impl Cluster {
    /// The lab called `name`.
    ///
    /// # Errors
    /// If there is no such lab.
    pub fn open(name: &Name) -> Result<Self> {
        Ok(Self { lab: Labs::of_this_user().open(name)? })
    }

    /// Nodes, switches and links.
    pub fn topology(&self) -> &Topology {
        self.lab.topology()
    }

    /// The socket of the broker that grants what is here.
    pub fn broker_socket(&self) -> PathBuf {
        brokers::socket(self.lab.directory())
    }

    /// That broker; connects with the first call.
    ///
    /// # Errors
    /// If the process may not have another epoll instance.
    pub fn broker(&self) -> Result<Broker> {
        Ok(Broker::new(&self.broker_socket())?)
    }

    /// Where runs that are held at a rate answer.
    pub fn rates_directory(&self) -> PathBuf {
        self.lab.directory().join("rates")
    }

    /// The lab's name.
    pub fn name(&self) -> &Name {
        self.lab.name()
    }

    /// The network as MPI's launchers must be told.
    pub fn launch_network(&self) -> Network<'_> {
        let (subnet, front_end_device) = self.lab.network_names();
        Network { subnet, front_end_device, node_device: self.lab.device() }
    }

    /// A node's address.
    ///
    /// # Errors
    /// If the topology does not tell it.
    pub fn address(&self, node: NodeIndex) -> Result<Ipv4Addr> {
        let node = self.topology().node(node);
        node.address.with_context(|| format!("the address of {} is not known", node.name))
    }

    /// The socket of a node's agent.
    pub fn socket(&self, node: NodeIndex) -> PathBuf {
        socket_in(&self.lab.node_directory(&self.topology().node(node).name))
    }

    /// A connection to a node's agent.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn client(&self, node: NodeIndex) -> Result<Client, ClientError> {
        Client::connect(&self.socket(node))
    }

    /// What every node's agent tells, in the order of the nodes.
    ///
    /// # Errors
    /// If one does not answer: what is free is not known then.
    pub fn statuses(&self) -> Result<Vec<Status>> {
        let status = |node| {
            let name = &self.topology().node(node).name;
            let status = self.client(node).and_then(|mut client| client.status());
            status.with_context(|| format!("while asking the agent of {name}"))
        };
        self.topology().node_indices().map(status).collect()
    }

    /// What is free now, by the broker's slot tables. A node whose agent is away has nothing.
    ///
    /// # Errors
    /// If the broker does not answer, or is another cluster's.
    pub fn availability(&self) -> Result<Availability> {
        let broker = self.broker()?;
        let (nodes, links) = (broker.nodes(None)?.nodes, broker.links(None)?.links);
        let topology = self.topology();
        let is_same =
            nodes.iter().map(|node| &node.name).eq(topology.nodes().iter().map(|n| &n.name))
                && links.len() == topology.direction_count();
        ensure!(is_same, "the broker of lab {} has another topology", self.name());
        let link = |direction: LinkDirection| &links[direction.0 as usize];
        let reservable = |direction| link(direction).reservable_bits_per_second;
        let link_free = |direction| {
            let reserved = link(direction).reserved_bits_per_second;
            reservable(direction).checked_sub(reserved).unwrap_or(BitsPerSecond::ZERO)
        };
        let cpu_free = |node: NodeIndex| {
            let node = &nodes[node.0 as usize];
            let free = node.cpu_ppm.checked_sub(node.cpu_reserved_ppm);
            free.filter(|_| node.connected).unwrap_or(CpuPpm::new(0))
        };
        Ok(Availability::with_free(topology, reservable, link_free, cpu_free))
    }

    /// The conditions under which `application` is measured and run here.
    pub fn conditions(&self, application: &Application, mpi: &str) -> Conditions {
        let rates = (0..self.topology().direction_count() as u32)
            .map(|d| self.topology().rate(LinkDirection(d)));
        Conditions {
            link_bits_per_second: rates.min().unwrap_or_default(),
            process_cpu_ppm: application.cpu(),
            processor: crate::machine::Machine::here().processor,
            mpi: mpi.into(),
            command: application.command_template().to_vec(),
        }
    }

    /// The command line that runs `command` on the front end, where launchers start.
    ///
    /// # Errors
    /// If this program cannot find itself.
    pub fn front_end_line(&self, command: &[String]) -> Result<Vec<String>> {
        self.line(keeptime_lab::FRONT_END, None, command)
    }

    /// The command line that runs `command` on `node`, as part of `job` if one is named.
    ///
    /// # Errors
    /// If this program cannot find itself.
    pub fn exec_line(
        &self,
        node: NodeIndex,
        job: Option<&Name>,
        command: &[String],
    ) -> Result<Vec<String>> {
        self.line(self.topology().node(node).name.as_str(), job, command)
    }

    fn line(&self, place: &str, job: Option<&Name>, command: &[String]) -> Result<Vec<String>> {
        let mut line = vec![own_path()?.display().to_string(), "lab".into(), "exec".into()];
        line.extend(["--die-with-parent".to_string()]);
        if let Some(job) = job {
            line.extend(["--job".into(), job.to_string()]);
        }
        line.extend([self.name().to_string(), place.to_string()]);
        line.extend(["--".to_string()]);
        line.extend(command.iter().cloned());
        Ok(line)
    }

    /// The command line that runs `command` by `mpi` with a rank on each of `nodes`, as part of `job` if one
    /// is named; and the script that it needs as long as it runs.
    ///
    /// # Errors
    /// If a node has no address, or the lab's directory is not writable.
    pub fn mpi_line(
        &self,
        mpi: &Mpi,
        nodes: &[NodeIndex],
        job: Option<&Name>,
        command: &[String],
    ) -> Result<(Vec<String>, RemoteLauncher)> {
        let hosts = nodes.iter().map(|node| Ok(self.address(*node)?.to_string()));
        let hosts: Vec<_> = hosts.collect::<Result<_>>()?;
        let remote = self.remote_launcher(job)?;
        let network = self.launch_network();
        let launch = Launch { hosts: &hosts, remote: &remote.path, network };
        Ok((self.front_end_line(&mpi.command_line(&launch, command))?, remote))
    }

    /// Writes the script with which MPI starts its daemons on other nodes for `job`, or for nobody.
    fn remote_launcher(&self, job: Option<&Name>) -> Result<RemoteLauncher> {
        let (name, option) = match job {
            Some(job) => (format!("remote-{job}"), format!("--job {job} ")),
            None => ("remote".into(), String::new()),
        };
        let path = self.lab.directory().join(name);
        // Options of ssh come first and mean nothing here; the rest is one shell command.
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             exec '{}' lab exec --die-with-parent {option}{} \"$host\" -- /bin/sh -c \"$*\"\n",
            own_path()?.display(),
            self.name(),
        );
        write_executable(&path, &script)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(RemoteLauncher { path })
    }
}

impl Drop for RemoteLauncher {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The socket of the agent whose files are in `directory`.
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join("agent.sock")
}

/// This program, to be started again; its successor at the same place if it was replaced meanwhile.
pub fn own_path() -> Result<PathBuf> {
    let path = std::env::current_exe().context("cannot find this program's own file")?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(replaced.map_or(path.clone(), PathBuf::from))
}

fn write_executable(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o700))
}
