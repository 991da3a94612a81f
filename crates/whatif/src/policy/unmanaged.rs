//! No middleware: every job starts at once, on the nodes with the fewest jobs, as a host file sorted by
//! load would have it. Nothing is promised and nothing refused.

use super::{Action, Policy};
use crate::machine::Start;
use crate::trace::Submission;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// How many jobs each node has.
#[derive(Debug, Clone)]
pub struct Unmanaged {
    by_load: BTreeSet<(u32, NodeIndex)>,
    loads: Vec<u32>,
    nodes: BTreeMap<usize, Vec<NodeIndex>>,
}

impl Unmanaged {
    /// So many nodes without jobs.
    pub fn new(nodes: u32) -> Self {
        let by_load = (0..nodes).map(|node| (0, NodeIndex(node))).collect();
        Self { by_load, loads: vec![0; nodes as usize], nodes: BTreeMap::new() }
    }

    fn set_load(&mut self, node: NodeIndex, load: u32) {
        let before = std::mem::replace(&mut self.loads[node.0 as usize], load);
        self.by_load.remove(&(before, node));
        self.by_load.insert((load, node));
    }
}

impl Policy for Unmanaged {
    fn submitted(&mut self, _: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        let lightest: Vec<_> =
            self.by_load.iter().take(submission.nodes as usize).copied().collect();
        let mut nodes = Vec::with_capacity(lightest.len());
        for (load, node) in lightest {
            self.set_load(node, load + 1);
            nodes.push(node);
        }
        nodes.sort();
        self.nodes.insert(job, nodes.clone());
        vec![Action::Start(Start { job, nodes, reserved: false })]
    }

    fn ended(&mut self, _: Nanos, job: usize) -> Vec<Action> {
        for node in self.nodes.remove(&job).unwrap_or_default() {
            self.set_load(node, self.loads[node.0 as usize].saturating_sub(1));
        }
        vec![]
    }

    fn passed(&mut self, _: Nanos) -> Vec<Action> {
        vec![]
    }

    fn next(&self) -> Option<Nanos> {
        None
    }
}
