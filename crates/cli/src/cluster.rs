//! A lab as the coordinator sees it: its topology, its agents, and what is free now.

use anyhow::{Context, Result};
use keeptime_agent::client::{Client, ClientError};
use keeptime_agent::server::now;
use keeptime_agent::wire::Status;
use keeptime_lab::{Lab, Labs};
use keeptime_launch::mpi::Network;
use keeptime_linux::egress::{self, Link};
use keeptime_model::application::Application;
use keeptime_model::assignment::{AssignedFlow, Assignment, TrafficClass};
use keeptime_model::capability::Unmet;
use keeptime_model::name::Name;
use keeptime_model::profile::Conditions;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, WallTime};
use keeptime_planner::availability::{Availability, Placement, PlannedFlow};
use keeptime_planner::tree::PlacementIndex;
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A cluster whose agents answer on Unix sockets of this machine.
#[derive(Debug)]
pub struct Cluster {
    lab: Lab,
    index: PlacementIndex,
}

/// A script of one job that starts a command on another node, as `ssh HOST COMMAND` would.
#[derive(Debug)]
pub struct RemoteLauncher {
    path: PathBuf,
}

/// Held while one request is planned and reserved: two at once would plan with the same free
/// bandwidth. Released when dropped, also by a crash.
#[derive(Debug)]
pub struct PlanningTurn {
    _file: File,
}

impl Cluster {
    /// The lab called `name`, whose agents must be up.
    ///
    /// # Errors
    /// If there is no such lab.
    pub fn open(name: &Name) -> Result<Self> {
        let lab = Labs::of_this_user().open(name)?;
        let index = PlacementIndex::new(lab.topology().clone());
        Ok(Self { lab, index })
    }

    /// Nodes, switches and links.
    pub fn topology(&self) -> &Topology {
        self.index.topology()
    }

    /// The topology prepared for placement.
    pub fn index(&self) -> &PlacementIndex {
        &self.index
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

    /// Waits for this command's turn to plan and reserve.
    ///
    /// # Errors
    /// If the lab's directory is not writable.
    pub fn planning_turn(&self) -> Result<PlanningTurn> {
        let path = self.lab.directory().join("planning.lock");
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(PlanningTurn { _file: file })
    }

    /// What is free now: everything that can be reserved less what the agents were assigned, also for
    /// later, since a plan may run until then. A node that cannot enforce plans has nothing.
    ///
    /// # Errors
    /// If an agent does not answer.
    pub fn availability(&self) -> Result<Availability> {
        let mut free =
            Availability::full(self.topology(), |rate| egress::reservable(&Link::new("", rate)));
        let now = now();
        let mut withheld = Vec::new();
        for (node, status) in self.topology().node_indices().zip(self.statuses()?) {
            if let Some(unmet) = cannot_enforce_plans(&status) {
                tracing::warn!("{} is left out: it cannot enforce {unmet}", status.node);
                let cpu = self.topology().node(node).cpu;
                withheld.push(Placement { nodes: vec![node], cpu, flows: Vec::new() });
            }
            for job in &status.jobs {
                let placement = self.placement_of(node, &job.assignment);
                match job.assignment.is_due(now) {
                    true => free.take(&self.index, &placement),
                    false => withheld.push(placement),
                }
            }
        }
        withheld.iter().for_each(|placement| free.withhold(&self.index, placement));
        Ok(free)
    }

    /// What an assignment takes of the cluster.
    fn placement_of(&self, node: NodeIndex, assignment: &Assignment) -> Placement {
        let at = |address: Ipv4Addr| {
            self.topology()
                .node_indices()
                .find(|n| self.topology().node(*n).address == Some(address))
        };
        let premium = assignment.flows.iter().filter(|f| f.class == TrafficClass::Premium);
        let flow = |flow: &AssignedFlow| {
            let (to, rate) = (at(flow.destination)?, flow.bits_per_second);
            Some(PlannedFlow { from: node, to, rate })
        };
        Placement {
            nodes: vec![node],
            cpu: assignment.cpu_ppm,
            flows: premium.filter_map(flow).collect(),
        }
    }

    /// The conditions under which `application` is measured and run here.
    pub fn conditions(&self, application: &Application, mpi: &str) -> Conditions {
        let rates = (0..self.topology().direction_count() as u32)
            .map(|d| self.topology().rate(keeptime_model::topology::LinkDirection(d)));
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

    /// Writes the script with which MPI starts its daemons on other nodes for `job`.
    ///
    /// # Errors
    /// If the lab's directory is not writable.
    pub fn remote_launcher(&self, job: &Name) -> Result<RemoteLauncher> {
        let path = self.lab.directory().join(format!("remote-{job}"));
        // Options of ssh come first and mean nothing here; the rest is one shell command.
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             exec '{}' lab exec --die-with-parent --job {job} {} \"$host\" -- /bin/sh -c \"$*\"\n",
            own_path()?.display(),
            self.name(),
        );
        write_executable(&path, &script)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(RemoteLauncher { path })
    }
}

impl RemoteLauncher {
    /// The script.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RemoteLauncher {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What a plan would ask of the node and its kernel cannot do. A node that says that it enforces
/// nothing at all is used all the same: that is known to who made it.
fn cannot_enforce_plans(status: &Status) -> Option<Unmet> {
    let flow = AssignedFlow {
        destination: Ipv4Addr::UNSPECIFIED,
        bits_per_second: BitsPerSecond::from_mbit(1),
        burst_bytes: None,
        class: TrafficClass::Premium,
    };
    let asked = Assignment::new(status.node.clone(), status.cpu_ppm, WallTime::default());
    let asked = Assignment { flows: vec![flow], ..asked };
    status.capabilities.as_ref().and_then(|found| found.unmet(&asked))
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
