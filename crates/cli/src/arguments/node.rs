//! The words about nodes that are taken out of service.

use super::{BrokerPlace, NodeNames, manual};
use clap::{Args, Subcommand};
use keeptime_model::drain::{DrainReason, NodeSet};

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Take nodes out of service: nothing new comes to them, now or in advance, and what they have stays to its end
    ///
    /// Whoever asks for such a node is refused, and told the reason. What is granted there is enforced, and may be cancelled,
    /// shortened, and changed otherwise, but not prolonged. What is lost elsewhere is not moved there. Web sites give such
    /// nodes back after ten seconds, without losing a request, as far as their hard guarantees are kept; where all nodes are
    /// out of service they keep theirs. Said again, it gives another reason.
    #[command(after_help = manual::NODE_DRAIN)]
    Drain(DrainArguments),
    /// Have nodes get reservations again that were drained
    #[command(after_help = manual::NODE_RESUME)]
    Resume(ResumeArguments),
}

#[derive(Debug, Args)]
pub struct DrainArguments {
    #[command(flatten)]
    pub which: WhichNodes,
    /// Why, for whoever is refused them: one line, as in "new disk"
    #[arg(long)]
    pub reason: DrainReason,
    /// Go on until nothing is reserved there any more, now or later, and tell what is left whenever that changes
    #[arg(long)]
    pub wait: bool,
    /// With --wait: not for web sites, which keep nodes that they cannot do without
    #[arg(long, requires = "wait")]
    pub except_sites: bool,
    /// Print JSON: the nodes and what is reserved of them; with --wait one object a line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

#[derive(Debug, Args)]
pub struct ResumeArguments {
    #[command(flatten)]
    pub which: WhichNodes,
    /// Print JSON: the nodes and what is reserved of them
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: BrokerPlace,
}

/// Which nodes are meant.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct WhichNodes {
    /// Which, as in n1,n2 or "n[1-4],n7"
    #[arg(value_name = "NODES")]
    pub nodes: Vec<NodeNames>,
    /// All nodes
    #[arg(long)]
    pub all: bool,
}

impl WhichNodes {
    /// As the broker is told.
    pub fn set(&self) -> NodeSet {
        match self.all {
            true => NodeSet::All,
            false => NodeSet::Named(NodeNames::all(&self.nodes).cloned().collect()),
        }
    }
}
