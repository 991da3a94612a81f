//! How busy nodes are: what they publish in the fabric, and of others what their agents say, who are asked.

use crate::agents::Hub;
use crate::node_loads::NodeLoads;
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_sites::cpu::Counters;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As often as what is published is read.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Agents of more nodes are not asked: reading what is published costs a tenth of that, and nodes nothing.
const ASKED_MOST: usize = 256;

/// From both.
#[derive(Debug)]
pub struct Loads {
    published: Option<NodeLoads>,
    agents: Arc<Hub>,
    /// Names of nodes whose agents may be asked.
    nodes: BTreeMap<NodeIndex, Name>,
    asked_at: Option<Instant>,
}

impl Loads {
    /// Of the nodes of `topology`: `published` is what is read in the fabric, if there is one.
    pub fn new(published: Option<NodeLoads>, agents: Arc<Hub>, topology: &Topology) -> Self {
        let name = |node: NodeIndex| (node, topology.node(node).name.clone());
        let may_be_asked = topology.nodes().len() <= ASKED_MOST;
        let nodes = topology.node_indices().filter(|_| may_be_asked).map(name).collect();
        Self { published, agents, nodes, asked_at: None }
    }
}

impl Counters for Loads {
    fn latest(&mut self) -> Option<BTreeMap<Name, NodeCounters>> {
        let published = self.published.as_ref().map(NodeLoads::latest);
        if self.nodes.is_empty() {
            return published;
        }
        let published = published.unwrap_or_default();
        if self.asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            self.asked_at = Some(Instant::now());
            let says =
                |node| self.nodes.get(&node).is_some_and(|node| published.contains_key(node));
            self.agents.ask_loads(|node| !says(node));
        }
        let answered = self.agents.loads().into_iter();
        let mut all: BTreeMap<_, _> =
            answered.filter_map(|(node, c)| Some((self.nodes.get(&node)?.clone(), c))).collect();
        all.extend(published);
        Some(all)
    }
}
