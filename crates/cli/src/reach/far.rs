//! Nodes that are other machines: `ssh`, or what is called as it is, starts this program there, which asks the
//! node's agent to count it to the job (`keeptime agent exec`).

use super::{AgentPlace, Ranks, RemoteLauncher, mpi_alone, script};
use crate::cluster::own_path;
use crate::files;
use crate::place::NodesConfig;
use anyhow::{Context, Result};
use keeptime_lab::Labs;
use keeptime_launch::mpi::{Bond, Launch, Mpi, Network};
use keeptime_launch::remote::{Launcher, Wanted, quoted};
use keeptime_launch::subnet::Subnet;
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::Topology;
use nix::ifaddrs::getifaddrs;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

/// How nodes elsewhere are reached.
#[derive(Debug)]
pub struct Far {
    config: NodesConfig,
    launcher: Launcher,
}

/// What the remote shell of an MPI launcher has to know: one for each run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    launcher: Launcher,
    /// What nodes are called by the launcher, by their address.
    hosts: BTreeMap<Ipv4Addr, String>,
    /// What is run there, with the text for a shell behind.
    command: Vec<String>,
}

impl Far {
    pub(super) fn new(
        config: &NodesConfig,
        launcher: Launcher,
        topology: &Topology,
    ) -> Result<Self, Invalid> {
        let is_there = |name: &&Name| topology.find_node(name).is_some();
        if let Some(odd) = config.hosts.keys().find(|name| !is_there(name)) {
            let names = topology.nodes().iter().map(|node| node.name.to_string());
            let expected =
                format!("nodes of the cluster: {}", names.collect::<Vec<_>>().join(", "));
            return Err(Invalid::new("nodes.hosts", odd, expected));
        }
        Ok(Self { config: config.clone(), launcher })
    }

    pub(super) fn agent(&self, node: &Name) -> AgentPlace {
        let mut command = vec![self.program(), "agent".into(), "relay".into()];
        command.extend(self.socket_option());
        let line = self.launcher.line(&self.host(node), &command);
        AgentPlace::Relay { node: node.clone(), line }
    }

    pub(super) fn mpi_line(
        &self,
        mpi: &Mpi,
        ranks: &Ranks<'_>,
        job: &Name,
        command: &[String],
    ) -> Result<(Vec<String>, RemoteLauncher)> {
        let addresses = ranks.addresses()?;
        let own = own_interfaces()?;
        let network = network(&addresses, &own)?;
        let plan = Plan {
            launcher: self.launcher.clone(),
            hosts: ranks
                .nodes
                .iter()
                .zip(&addresses)
                .map(|(n, a)| (*a, self.host(&n.name)))
                .collect(),
            command: self.in_job(job)?,
        };
        let remote = plan.write(job)?;
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let bond = Bond::Lasting;
        let launch = Launch { hosts: &hosts, remote: remote.path(), bond, network, passed: &[] };
        let launchers_line = mpi_alone(mpi, &launch, command)?;
        let is_node = addresses.iter().any(|address| own.contains_key(address));
        Ok((self.near_line(is_node.then_some(job), launchers_line)?, remote))
    }

    /// The command line that runs an MPI launcher here, for this process. Where this machine is one of the nodes, the launcher
    /// starts the rank of this one itself, and so has to be part of the job.
    fn near_line(&self, job: Option<&Name>, command: Vec<String>) -> Result<Vec<String>> {
        let mut line = vec![own_path()?.display().to_string()];
        match job {
            None => line.extend(["launch", "near"].map(String::from)),
            Some(job) => {
                line.extend(["agent", "exec", "--die-with-parent", "--job"].map(String::from));
                line.push(job.to_string());
                line.extend(self.socket_option());
            }
        }
        line.extend(["--parent".into(), std::process::id().to_string(), "--".into()]);
        line.extend(command);
        Ok(line)
    }

    /// What runs the text behind it on a node as part of a job, where this process is.
    fn in_job(&self, job: &Name) -> Result<Vec<String>> {
        let directory = std::env::current_dir().context("the current directory is gone")?;
        let mut command = vec![self.program(), "agent".into(), "exec".into()];
        command.extend(["--job".into(), job.to_string()]);
        command.extend(self.socket_option());
        command.extend(["--directory".into(), directory.display().to_string()]);
        command.extend(["--", "/bin/sh", "-c"].map(String::from));
        Ok(command)
    }

    fn socket_option(&self) -> Vec<String> {
        let socket = self.config.agent.iter();
        socket.flat_map(|path| ["--socket".to_owned(), path.display().to_string()]).collect()
    }

    fn program(&self) -> String {
        let named = self.config.keeptime.as_ref().map(|path| path.display().to_string());
        named.unwrap_or_else(|| "keeptime".into())
    }

    fn host(&self, node: &Name) -> String {
        self.config.hosts.get(node).cloned().unwrap_or_else(|| node.to_string())
    }
}

impl Plan {
    /// The command line that does what an MPI launcher wants of its remote shell.
    ///
    /// # Errors
    /// If a host is wanted that is no node of the job.
    pub fn line(&self, wanted: &Wanted) -> Result<Vec<String>, Invalid> {
        let host = wanted.host.parse().ok().and_then(|address: Ipv4Addr| self.hosts.get(&address));
        let host = host.ok_or_else(|| {
            let addresses: Vec<_> = self.hosts.keys().map(ToString::to_string).collect();
            let expected = format!("the address of a node of the job: {}", addresses.join(", "));
            Invalid::new("host", &wanted.host, expected)
        })?;
        let command = [self.command.as_slice(), std::slice::from_ref(&wanted.text)].concat();
        Ok(self.launcher.line(host, &command))
    }

    /// The remote shell, where only this user reads it.
    fn write(&self, job: &Name) -> Result<RemoteLauncher> {
        let far = [own_path()?.display().to_string(), "launch".into(), "far".into()];
        let (far, plan) = (quoted(&far), quoted(&[serde_json::to_string(self)?]));
        let script = format!("#!/bin/sh\nexec {far} --parent \"$PPID\" {plan} \"$@\"\n");
        RemoteLauncher::new(&private_directory()?, job.as_str(), &script)
    }
}

/// A directory of this user's, in which nobody else writes.
fn private_directory() -> Result<PathBuf> {
    let programs = script::directory_of_programs();
    // Where a broker runs as its unit says, the directory for root's runs belongs to the broker's user.
    match nix::unistd::geteuid().is_root() {
        true => private_at(&programs, &programs),
        false => private_at(Labs::of_this_user().runtime(), &programs),
    }
}

/// `usual`, or `elsewhere` where that cannot be made, or others write: a user's directory of programs that run is gone after the
/// log-out that a run has outlived.
fn private_at(usual: &Path, elsewhere: &Path) -> Result<PathBuf> {
    if files::make_private(usual).is_ok() {
        return Ok(usual.to_path_buf());
    }
    files::make_private(elsewhere)?;
    Ok(elsewhere.to_path_buf())
}

/// The addresses of this machine, and the device of each.
fn own_interfaces() -> Result<BTreeMap<Ipv4Addr, String>> {
    let all = getifaddrs().context("while looking for this machine's addresses")?;
    let address = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address?.as_sockaddr_in()?.ip();
        Some((address, found.interface_name))
    };
    Ok(all.filter_map(address).collect())
}

/// The network of nodes with these addresses, as seen from here.
fn network(nodes: &[Ipv4Addr], own: &BTreeMap<Ipv4Addr, String>) -> Result<Network> {
    let first = nodes.first().context("a run on no nodes")?;
    // The kernel says by which address the nodes know this machine; nothing is sent.
    let way = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((*first, DISCARD_PORT))?;
        socket.local_addr()
    };
    let here = match way().with_context(|| format!("there is no way from here to {first}"))? {
        SocketAddr::V4(address) => *address.ip(),
        SocketAddr::V6(address) => anyhow::bail!("{address} is no address of IPv4"),
    };
    let device = own.get(&here).with_context(|| format!("no device has the address {here}"))?;
    let all: BTreeSet<_> = nodes.iter().copied().chain([here]).collect();
    let launchers = Subnet::covering(all).filter(|subnet| subnet.prefix >= PREFIX_MIN);
    Ok(Network {
        ranks: Subnet::covering(nodes.iter().copied())
            .map(|subnet| subnet.to_string())
            .unwrap_or_default(),
        launchers: launchers.map(|subnet| subnet.to_string()),
        front_end_device: device.clone(),
        // Each is told its own by its agent.
        node_device: None,
    })
}

/// Where nobody listens (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Addresses that have less in common are on no network of one administration.
const PREFIX_MIN: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn topology() -> Topology {
        let text = "name = \"pair\"\nswitches = [{ name = \"s1\" }]\n\
            [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
            [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n";
        Topology::from_toml(text).unwrap()
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_is_called_as_the_launcher_knows_it() {
        let hosts = BTreeMap::from([(name("n1"), "n1.example".to_owned())]);
        let config = NodesConfig { hosts, agent: Some("/a.sock".into()), ..NodesConfig::default() };
        let far = Far::new(&config, "rsh".parse().unwrap(), &topology()).unwrap();
        let AgentPlace::Relay { line, .. } = far.agent(&name("n1")) else { panic!() };
        assert_eq!(line, ["rsh", "n1.example", "keeptime agent relay --socket /a.sock"]);
        let AgentPlace::Relay { line, .. } = far.agent(&name("n2")) else { panic!() };
        assert_eq!(line[1], "n2");
        let config = NodesConfig { hosts: BTreeMap::from([(name("n9"), "x".into())]), ..config };
        let error = Far::new(&config, Launcher::default(), &topology()).unwrap_err().to_string();
        assert!(error.contains("nodes.hosts: \"n9\"") && error.contains("n1"), "{error}");
    }

    // Goal: a run can begin though its user has logged out meanwhile. Method: a directory that cannot be made, as none
    // below /run/user can then.
    #[test]
    fn a_run_has_a_directory_after_a_log_out() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(private_at(&at("usual"), &at("programs")).unwrap(), at("usual"));
        assert!(!at("programs").exists());
        let gone = at("file").join("keeptime");
        assert_eq!(private_at(&gone, &at("programs")).unwrap(), at("programs"));
        assert!(at("programs").is_dir());
    }

    #[test]
    fn a_launcher_of_mpi_reaches_nodes_of_the_job_alone() {
        let far = Far::new(&NodesConfig::default(), "rsh".parse().unwrap(), &topology()).unwrap();
        let plan = Plan {
            launcher: far.launcher.clone(),
            hosts: BTreeMap::from([("10.0.0.1".parse().unwrap(), far.host(&name("n1")))]),
            command: far.in_job(&name("r7")).unwrap(),
        };
        let text = serde_json::to_string(&plan).unwrap();
        let plan: Plan = serde_json::from_str(&text).unwrap();
        let wanted = |host: &str| Wanted { host: host.into(), text: "orted -x 'a b'".into() };
        let line = plan.line(&wanted("10.0.0.1")).unwrap();
        assert_eq!(line[..2], ["rsh", "n1"]);
        assert!(line[2].starts_with("keeptime agent exec --job r7 --directory /"), "{}", line[2]);
        assert!(line[2].ends_with(r"-- /bin/sh -c 'orted -x '\''a b'\'''"), "{}", line[2]);
        assert!(plan.line(&wanted("10.0.0.2")).is_err());
        assert!(plan.line(&wanted("n1")).is_err());
    }

    #[test]
    fn ranks_use_the_network_of_the_nodes_and_launchers_that_of_all() {
        let own = own_interfaces().unwrap();
        let loopback = own.get(&Ipv4Addr::LOCALHOST).unwrap().clone();
        let network = network(&["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()], &own);
        let network = network.unwrap();
        assert_eq!(network.ranks, "127.0.0.2/31");
        assert_eq!(
            (network.launchers.as_deref(), network.front_end_device),
            (Some("127.0.0.0/30"), loopback)
        );
    }
}
