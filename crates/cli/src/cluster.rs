//! A cluster as commands see it: its topology and what is free as its broker tells them, its agents, and how to run
//! something on its nodes.

use crate::allocation;
use crate::arguments::BrokerPlace;
use crate::machine::Machine;
use crate::place::{self, Found, Where};
use crate::reach::{AgentPlace, KeptAgents, Ranks, Reach, RemoteLauncher, address};
use crate::{brokers, story, topology};
use anyhow::{Context, Result};
use keeptime_agent::client::{Client, ClientError};
use keeptime_broker::client::Client as Broker;
use keeptime_broker::wire::{Link, Node};
use keeptime_lab::{Lab, Sight};
use keeptime_launch::mpi::Mpi;
use keeptime_launch::remote::Launcher;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::drain::Drained;
use keeptime_model::name::Name;
use keeptime_model::profile::{Conditions, Program};
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use keeptime_planner::availability::Availability;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A cluster whose broker answers.
#[derive(Debug)]
pub struct Cluster {
    found: Found,
    topology: Topology,
    /// Of its nodes, as their agents tell.
    processors: BTreeSet<String>,
    reach: Reach,
    /// See [`Self::among`].
    among: BTreeSet<Name>,
}

impl Cluster {
    /// The lab called `name`.
    ///
    /// # Errors
    /// If there is no such lab, or its broker does not answer.
    pub fn open(name: &Name) -> Result<Self> {
        Self::at(&BrokerPlace::of_lab(name.clone()), None, BTreeSet::new())
    }

    /// The cluster of the broker that is meant, whose nodes are reached by `launcher` if one is given, and of which what is
    /// run uses those of `among`, or, if none is named, those of the job of Slurm's around this process.
    ///
    /// # Errors
    /// If the broker does not answer, or the nodes of its cluster cannot be reached as is configured; a job of Slurm's without
    /// any of them.
    pub fn at(
        place: &BrokerPlace,
        launcher: Option<Launcher>,
        mut among: BTreeSet<Name>,
    ) -> Result<Self> {
        let found = place::find(place)?;
        let (nodes, links) = overview(&found.client()?)?;
        let name = match &found.broker {
            Where::Lab(lab) => lab.name().clone(),
            _ => UNNAMED.parse()?,
        };
        let topology = topology::of_overview(name, &nodes, &links)?;
        let mut around = allocation::around(&found.broker)?;
        if let Some(job) = &around {
            let names = topology.nodes().iter().map(|node| &node.name);
            let own = allocation::own(job, &found.nodes, names)?;
            if among.is_empty() {
                allocation::tell_others(job, own.len());
                among = own;
            } else if !among.is_subset(&own) {
                // It has no steps there.
                around = None;
            }
        }
        let reach = Reach::of(&found, launcher, around.as_ref(), &topology)?;
        let processors = nodes.into_iter().filter_map(|node| node.processor).collect();
        Ok(Self { found, topology, processors, reach, among })
    }

    /// The nodes that what is run may be granted; empty = any.
    pub fn among(&self) -> &BTreeSet<Name> {
        &self.among
    }

    /// Nodes, switches and links.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The broker that grants what is here; connects with the first call.
    ///
    /// # Errors
    /// If a file that is shown to it cannot be used.
    pub fn broker(&self) -> Result<Broker> {
        self.found.client()
    }

    /// Where runs that are held at a rate answer.
    pub fn rates_directory(&self) -> PathBuf {
        self.found.rates_directory()
    }

    /// The lab, where it has to be one: `what` needs that.
    ///
    /// # Errors
    /// If it is another cluster.
    pub fn lab(&self, what: &str) -> Result<&Lab> {
        self.reach.lab().with_context(|| format!("{what} needs a lab"))
    }

    /// A node's address.
    ///
    /// # Errors
    /// If the topology does not tell it.
    pub fn address(&self, node: NodeIndex) -> Result<Ipv4Addr> {
        address(self.topology.node(node))
    }

    /// Where a node's agent is asked.
    pub fn agent(&self, node: NodeIndex) -> AgentPlace {
        self.reach.agent(&self.topology.node(node).name)
    }

    /// A connection to a node's agent.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn client(&self, node: NodeIndex) -> Result<Client, ClientError> {
        self.agent(node).connect()
    }

    /// Sees to it that `command` can be run on each of `nodes` as part of `job`, as far as that can be known
    /// before: in a lab, that the files which it names are there; elsewhere, that the node can be
    /// reached and has the job.
    ///
    /// # Errors
    /// The first node on which it cannot, and why.
    pub fn check_ready(&self, nodes: &[NodeIndex], job: &Name, command: &[String]) -> Result<()> {
        if let Some(lab) = self.reach.lab() {
            let names = nodes.iter().map(|node| &self.topology.node(*node).name);
            return check_files(lab, names, command);
        }
        let (places, job) = (nodes.iter().map(|node| self.agent(*node)), job.clone());
        let answers = KeptAgents::new(places).ask(None, move |agent| agent.job(&job).map(drop));
        for (node, answer) in nodes.iter().zip(answers) {
            let name = &self.topology.node(*node).name;
            answer.with_context(|| format!("{name} cannot be used"))?;
        }
        Ok(())
    }

    /// What is free now, by the broker's slot tables. A node whose agent is away, that is drained, or that what is run may not
    /// be granted, has nothing.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn availability(&self) -> Result<Availability> {
        let (nodes, links) = overview(&self.broker()?)?;
        let topology = self.topology();
        let is_same =
            nodes.len() == topology.nodes().len() && links.len() == topology.direction_count();
        anyhow::ensure!(is_same, "the broker has another topology than a moment ago");
        let link = |direction: LinkDirection| &links[direction.0 as usize];
        let reservable = |direction| link(direction).reservable_bits_per_second;
        let link_free = |direction| {
            let reserved = link(direction).reserved_bits_per_second;
            reservable(direction).checked_sub(reserved).unwrap_or(BitsPerSecond::ZERO)
        };
        let cpu_free = |node: NodeIndex| {
            let node = &nodes[node.0 as usize];
            let free = node.cpu_ppm.checked_sub(node.cpu_reserved_ppm);
            let may_be = self.among.is_empty() || self.among.contains(&node.name);
            free.filter(|_| node.is_to_be_had() && may_be).unwrap_or(CpuPpm::new(0))
        };
        Ok(Availability::with_free(topology, reservable, link_free, cpu_free))
    }

    /// Why nodes that what is run may be granted are not to be had now, and which are the only ones; nothing where all are.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn not_to_be_had(&self) -> Result<Vec<String>> {
        let (nodes, _) = overview(&self.broker()?)?;
        let mut why: Vec<_> = nodes.iter().filter_map(|node| self.why_not(node)).collect();
        why.extend(Some(&self.among).filter(|among| !among.is_empty()).map(story::only));
        Ok(why)
    }

    fn why_not(&self, node: &Node) -> Option<String> {
        let name =
            Some(&node.name).filter(|name| self.among.is_empty() || self.among.contains(*name))?;
        match &node.drained {
            _ if !node.connected => Some(format!("the agent of {name} is not connected")),
            Some(Drained { by, reason, .. }) => Some(format!("{name} is drained ({by}: {reason})")),
            None => None,
        }
    }

    /// The conditions under which `application` is measured and run here.
    pub fn conditions(&self, application: &Application, mpi: &str) -> Conditions {
        let rates = (0..self.topology().direction_count() as u32)
            .map(|d| self.topology().rate(LinkDirection(d)));
        let processors: Vec<_> = self.processors.iter().map(String::as_str).collect();
        Conditions {
            link_bits_per_second: rates.min().unwrap_or_default(),
            process_cpu_ppm: application.cpu(),
            processor: match processors.as_slice() {
                // All agents are away, and nothing runs anywhere: whoever asks is told that, not this.
                [] => Machine::here().processor,
                told => told.join(", "),
            },
            mpi: mpi.into(),
            command: application.command_template().to_vec(),
            program: Some(Program::of(application)),
        }
    }

    /// The command line that runs `command` by `mpi` with a rank on each of `nodes`, as part of `job` if one
    /// is named; and the script that it needs as long as it runs.
    ///
    /// # Errors
    /// If a node has no address, or the script cannot be written.
    pub fn mpi_line(
        &self,
        mpi: &Mpi,
        nodes: &[NodeIndex],
        job: Option<&Name>,
        command: &[String],
    ) -> Result<(Vec<String>, RemoteLauncher)> {
        let nodes = nodes.iter().map(|node| self.topology.node(*node)).collect();
        self.reach.mpi_line(mpi, &Ranks { nodes, job }, command)
    }
}

fn check_files<'a>(
    lab: &Lab,
    nodes: impl Iterator<Item = &'a Name>,
    command: &[String],
) -> Result<()> {
    let named: Vec<_> = command.iter().map(Path::new).filter(|path| path.is_absolute()).collect();
    for node in nodes {
        for path in &named {
            if lab.sight(node.as_str(), path)? == Sight::Nothing {
                return Err(hidden("command", path, lab));
            }
        }
    }
    Ok(())
}

/// A lab's nodes do not see a path.
pub fn hidden(field: &str, path: &Path, lab: &Lab) -> anyhow::Error {
    let expected = format!(
        "a path that the nodes of lab {} see: they have a /tmp and a /dev/shm of their own, in which they see of this \
         machine's where the lab was made, and nothing else",
        lab.name()
    );
    Invalid::new(field, path.display(), expected).into()
}

/// All nodes and links, now.
fn overview(broker: &Broker) -> Result<(Vec<Node>, Vec<Link>)> {
    let nodes = broker.nodes(None).map_err(brokers::failure)?.nodes;
    Ok((nodes, broker.links(None).map_err(brokers::failure)?.links))
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

/// A broker tells no name of its cluster.
const UNNAMED: &str = "cluster";
