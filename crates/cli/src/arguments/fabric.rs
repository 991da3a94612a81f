//! The words about the fabric.

use super::manual;
use clap::{Args, Subcommand, ValueEnum};
use keeptime_fabric::directory::DEFAULT_NAME;
use keeptime_fabric::echo::BYTES_MOST;
use keeptime_fabric::{DAEMON_VARIABLE, daemon_name};
use keeptime_model::units::Nanos;
use std::convert::Infallible;

#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// List resources of the whole cluster: their identifiers, nodes and attributes
    #[command(after_help = manual::FABRIC_FOUND)]
    Ls(FabricListArguments),
    /// Find one resource by its attributes, and wait until there is one
    ///
    /// Prints its identifier. If several have the attributes, any one of them is found.
    #[command(after_help = manual::FABRIC_FOUND)]
    Find(FabricFindArguments),
    /// Send messages to the daemons of nodes and back, and tell how long that takes
    ///
    /// The first of them makes the connection, and does not count.
    #[command(after_help = manual::FABRIC_TIMED)]
    Ping(FabricPingArguments),
    /// Measure round trips and streams of messages between this program and a node's daemon
    ///
    /// The daemon takes its turn with whatever else runs on the node; `make bench-fabric` is the careful
    /// measurement, beside raw sockets.
    #[command(after_help = manual::FABRIC_TIMED)]
    Bench(FabricBenchArguments),
}

#[derive(Debug, Args)]
pub struct FabricPlace {
    /// The directory to ask, as the --name of the node's keeptime-fabricd
    #[arg(long, value_name = "NAME", env = DAEMON_VARIABLE, default_value = DEFAULT_NAME)]
    #[arg(value_parser = |said: &str| Ok::<_, Infallible>(daemon_name(said)))]
    pub directory: String,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// One attribute of those that are sought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Args)]
pub struct FabricListArguments {
    /// Only those with all of these attributes
    #[arg(value_name = "NAME=VALUE", value_parser = parse_attribute)]
    pub attributes: Vec<Attribute>,
    #[command(flatten)]
    pub place: FabricPlace,
}

#[derive(Debug, Args)]
pub struct FabricFindArguments {
    /// Attributes that it has, all of them
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = parse_attribute)]
    pub attributes: Vec<Attribute>,
    /// How long to wait until there is one
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub within: Nanos,
    #[command(flatten)]
    pub place: FabricPlace,
}

/// What carries messages between this program and a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    /// What programs use: shared memory on this node, TCP to others
    Usual,
    /// TCP, on this node too
    Tcp,
    /// UDP, on this node too
    Udp,
    /// libfabric, on this node too; FI_PROVIDER chooses its network (with a warning, TCP to a daemon without it)
    Libfabric,
    /// UCX, on this node too; UCX_TLS and UCX_NET_DEVICES choose its networks (with a warning, TCP to a daemon
    /// without it)
    Ucx,
}

#[derive(Debug, Args)]
pub struct FabricPingArguments {
    /// Which nodes [default: all]
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Messages to each node
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub count: u32,
    /// Bytes of each message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=BYTES_MOST as i64))]
    pub bytes: u32,
    /// How long each answer is waited for
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub within: Nanos,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Carrier::Usual)]
    pub over: Carrier,
    #[command(flatten)]
    pub place: FabricPlace,
}

#[derive(Debug, Args)]
pub struct FabricBenchArguments {
    /// Which node
    pub node: String,
    /// How often each figure is measured
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=1000))]
    pub rounds: u32,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Carrier::Usual)]
    pub over: Carrier,
    #[command(flatten)]
    pub place: FabricPlace,
}

fn parse_attribute(text: &str) -> Result<Attribute, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok(Attribute { name: name.into(), value: value.into() })
        }
        _ => Err("an attribute is NAME=VALUE, as in type=server".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_contain_what_separates_it_from_its_name() {
        let (name, value) = ("range".to_string(), "a=b".to_string());
        assert_eq!(parse_attribute("range=a=b"), Ok(Attribute { name, value }));
        for text in ["range", "=7", ""] {
            assert!(parse_attribute(text).unwrap_err().contains("NAME=VALUE"), "{text}");
        }
    }
}
