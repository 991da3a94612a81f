//! `keeptime-fabricd`: the fabric's daemon of a node.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use keeptime_credentials::files::{self, FileError, Secrecy};
use keeptime_fabric::bridge::Bridge;
use keeptime_fabric::directory::{DEFAULT_NAME, Server, ServerConfig};
use keeptime_fabric::echo::Echo;
use keeptime_fabric::networks::Network;
use keeptime_fabric::region::{Memories, PlainMemories, RegionServer, RegionServerConfig};
use keeptime_fabric::{Callers, ClusterKey, Config};
use keeptime_fabricd::{KernelMemories, LoadPublisher};
use keeptime_linux::cgroup::Hierarchies;
use keeptime_linux::load::Scope;
use keeptime_linux::{descriptors, vital};
use keeptime_model::units::CpuPpm;
use nix::sys::signal::{SigSet, Signal};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How daemons are started, below the options.
const EXAMPLES: &str = "\
Daemons of a cluster know each other, and programs that call each other from
other nodes, by a key:

  keeptime-fabricd --make-key fabric.key     # once; copy it to every node
  keeptime-fabricd --key fabric.key --node n1 --address 10.0.0.1:7400
  keeptime-fabricd --key fabric.key --node n2 --address 10.0.0.2:7400 \\
      --member 10.0.0.1:7400

Every daemon but the first is told one other, and learns of the rest from that
one.";

/// The fabric's daemon of a node: its resources, its regions, and what it passes on
///
/// It knows which resources there are, and keeps the memory of regions, which others read without asking the programs
/// that write them. It publishes how busy the node is, for the broker's web sites above all. It answers `keeptime fabric
/// ping` and `bench` as well. On a node with several networks it passes on what nodes that share none send each other.
///
/// One runs on each node, until it is told to end by SIGTERM.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// The node's name, unlike that of any other node
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new(), required_unless_present = "make_key")]
    node: Option<String>,
    /// Where the daemons of other nodes reach this one; 0.0.0.0: on every network of the node, [::]: over IPv6 too; 127.0.0.1: they do not
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    address: SocketAddr,
    /// Where another daemon is; the rest is learned from it
    #[arg(long = "member", value_name = "IP:PORT")]
    members: Vec<SocketAddr>,
    /// The cluster's key: a file that its owner alone may read, the same on every node
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Believe whoever reaches this node, without a key: for networks on which everybody is trusted
    #[arg(long, conflicts_with = "key")]
    open: bool,
    /// Write a new key to this file, which is not there yet, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    make_key: Option<PathBuf>,
    /// The name by which programs of this node find this daemon
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// UDP port on which reads of regions are answered; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    regions_port: u16,
    /// Have the kernel answer reads that arrive on this interface (XDP, root)
    #[arg(long = "answer-on", value_name = "INTERFACE")]
    answer_on: Vec<String>,
    /// TCP port for what it passes on between nodes that share no network; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    bridge_port: u16,
    /// Use this network of the node, and others that are said so, for what it answers and passes on; otherwise all
    #[arg(long = "network", value_name = "ADDRESS/PREFIX")]
    networks: Vec<Network>,
    /// Pass on nothing between other nodes
    #[arg(long, conflicts_with = "bridge_port")]
    no_bridge: bool,
    /// The node's control group below the root of each hierarchy, where the node is a part of a machine: the load that is published is
    /// that of this group, against its CPU limit. Otherwise that of the machine
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// CPU that the node has, where that is not the limit of its control group, as in "40 %"
    #[arg(long, requires = "cgroup")]
    cpu: Option<CpuPpm>,
    /// Do not publish how busy the node is
    #[arg(long, conflicts_with = "cgroup")]
    no_load: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If nobody reads it, there is nobody to tell.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    // Colours are for people: a journal would show what they are written as.
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(has_colours).init();
    // Each of its threads does something that no other does: the directory, the answers, the bridge, the node's load.
    vital::end_with_any_panic();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keeptime-fabricd: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    if let Some(path) = &arguments.make_key {
        return make_key(path);
    }
    let key = key(&arguments)?;
    take_descriptors();
    // Before any thread is made, so that all inherit that signals are waited for here.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    let Arguments { node, address, members, name, regions_port, answer_on, .. } = arguments;
    let Arguments { bridge_port, no_bridge, networks, cgroup, cpu, no_load, .. } = arguments;
    let node = node.context("no --node")?;
    let regions = RegionServerConfig { name: name.clone(), port: regions_port };
    let regions = RegionServer::start(&regions, |port| memories(port, &answer_on))
        .context("while making room for regions")?;
    if let Err(error) = regions.real_time() {
        tracing::warn!(%error, "no real-time schedule for answers: other programs hold them up");
    }
    let mut measuring = Config::default();
    measuring.directory.clone_from(&name);
    measuring.networks = networks;
    // Pings are everybody's.
    measuring.callers = Callers::AnyUser;
    let directory = ServerConfig { name, node: node.clone(), address, members, key };
    let directory = Server::start(directory).context("while starting the directory")?;
    let echo = Echo::start(measuring.clone(), &node, directory.address());
    let _echo = echo.context("while preparing to answer pings")?;
    let publish = || publish_load(measuring.clone(), &node, cgroup.as_deref(), cpu);
    let _load = (!no_load).then(publish).transpose().context("while publishing the node's load")?;
    let start = || Bridge::start(measuring, &node, bridge_port);
    let bridge = (!no_bridge).then(start).transpose().context("while starting the bridge")?;
    println!("listening on {}, answering on port {}", directory.address(), regions.port());
    if let Some(bridge) = bridge.as_ref().and_then(Option::as_ref) {
        tracing::info!(port = bridge.port(), "carrying for nodes that share no network");
    }
    signals.wait()?;
    Ok(())
}

/// Takes all descriptors that it may have: each program takes one, and by hand it is started with few.
fn take_descriptors() {
    if let Err(error) = descriptors::raise(u64::MAX) {
        tracing::warn!(%error, "no more descriptors than it was started with");
    }
}

/// The key of the cluster, or of a node alone. None if everybody is to be believed.
fn key(arguments: &Arguments) -> Result<Option<ClusterKey>> {
    if arguments.open {
        return Ok(None);
    }
    if let Some(path) = &arguments.key {
        let content = |source| FileError::Content { path: path.clone(), source };
        let text = files::read(path, Secrecy::Secret)?;
        return Ok(Some(ClusterKey::from_text(&text).map_err(content)?));
    }
    let is_alone = arguments.address.ip().is_loopback() && arguments.members.is_empty();
    ensure!(
        is_alone,
        "no --key: others reach this node at {}, or it calls them; expected --key FILE, the same on every node \
         (--make-key FILE writes one), or --open if whoever reaches it is to be believed",
        arguments.address
    );
    Ok(Some(ClusterKey::random()?))
}

fn make_key(path: &Path) -> Result<()> {
    ensure!(!path.exists(), "{} is there already: expected a file that is not", path.display());
    Ok(files::replace(path, &(ClusterKey::new_text()? + "\n"), Secrecy::Secret)?)
}

fn memories(port: u16, interfaces: &[String]) -> std::io::Result<Box<dyn Memories>> {
    if interfaces.is_empty() {
        return Ok(Box::new(PlainMemories));
    }
    let memories = KernelMemories::new(port, interfaces);
    Ok(Box::new(memories.map_err(std::io::Error::other)?))
}

fn publish_load(
    config: Config,
    node: &str,
    cgroup: Option<&Path>,
    cpu: Option<CpuPpm>,
) -> Result<LoadPublisher> {
    let scope = match cgroup {
        Some(path) => Scope::Part { group: Hierarchies::discover()?.group(path)?, cpu },
        None => Scope::Machine,
    };
    let publisher = LoadPublisher::start(config, node, scope)?;
    if let Err(error) = publisher.real_time() {
        tracing::warn!(%error, "no real-time schedule for the node's load: on a busy node it is old");
    }
    Ok(publisher)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    use std::fs;

    // Goal: the manual page says what the help says. `KEEPTIME_REWRITE=1 cargo test -p keeptime-fabricd --bins` writes it anew.
    #[test]
    fn manual_page_says_what_the_help_says() {
        let mut page = Vec::new();
        clap_mangen::Man::new(Arguments::command()).render(&mut page).unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man/keeptime-fabricd.1");
        if std::env::var_os("KEEPTIME_REWRITE").is_some() {
            fs::write(&path, &page).unwrap();
        }
        let found = fs::read(&path).unwrap_or_default();
        assert!(found == page, "{}: it is to be written anew (above)", path.display());
    }

    /// Whoever asks has no node to name.
    #[test]
    fn a_daemon_tells_its_version() {
        let told = Arguments::try_parse_from(["keeptime-fabricd", "--version"]).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::DisplayVersion);
        assert_eq!(told.to_string(), concat!("keeptime-fabricd ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}
