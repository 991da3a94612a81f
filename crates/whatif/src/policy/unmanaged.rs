//! No middleware: every job starts at once, on the nodes with the fewest jobs, as a host file sorted by
//! load would have it. Nothing is promised and nothing refused. A job of more nodes than are there waits until
//! they are back.

use super::{Action, Policy};
use crate::machine::{Hold, Start};
use crate::trace::Submission;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// How many jobs each node has.
#[derive(Debug, Clone)]
pub struct Unmanaged {
    /// Nodes that are there.
    by_load: BTreeSet<(u32, NodeIndex)>,
    loads: Vec<u32>,
    nodes: BTreeMap<usize, Vec<NodeIndex>>,
    /// Jobs for which too few nodes are there, and of how many nodes.
    waiting: Vec<(usize, u32)>,
}

impl Unmanaged {
    /// So many nodes without jobs.
    pub fn new(nodes: u32) -> Self {
        let by_load = (0..nodes).map(|node| (0, NodeIndex(node))).collect();
        let (loads, waiting) = (vec![0; nodes as usize], Vec::new());
        Self { by_load, loads, nodes: BTreeMap::new(), waiting }
    }

    /// Starts a job for which enough nodes are there.
    fn start(&mut self, job: usize, count: u32) -> Action {
        let lightest: Vec<_> = self.by_load.iter().take(count as usize).copied().collect();
        let mut nodes = Vec::with_capacity(lightest.len());
        for (load, node) in lightest {
            self.set_load(node, load + 1);
            nodes.push(node);
        }
        nodes.sort();
        self.nodes.insert(job, nodes.clone());
        Action::Start(Start { job, nodes, hold: Hold::Shared })
    }

    fn give_back(&mut self, job: usize) {
        for node in self.nodes.remove(&job).unwrap_or_default() {
            self.set_load(node, self.loads[node.0 as usize].saturating_sub(1));
        }
    }

    fn set_load(&mut self, node: NodeIndex, load: u32) {
        let before = std::mem::replace(&mut self.loads[node.0 as usize], load);
        self.by_load.remove(&(before, node));
        self.by_load.insert((load, node));
    }
}

impl Policy for Unmanaged {
    fn submitted(&mut self, _: Nanos, job: usize, submission: &Submission) -> Vec<Action> {
        if submission.nodes as usize > self.by_load.len() {
            self.waiting.push((job, submission.nodes));
            return vec![];
        }
        vec![self.start(job, submission.nodes)]
    }

    fn ended(&mut self, _: Nanos, job: usize) -> Vec<Action> {
        self.give_back(job);
        vec![]
    }

    fn failed(&mut self, _: Nanos, nodes: &[NodeIndex], hit: &[usize]) -> Vec<Action> {
        hit.iter().for_each(|job| self.give_back(*job));
        for node in nodes {
            self.by_load.remove(&(self.loads[node.0 as usize], *node));
        }
        vec![]
    }

    fn repaired(&mut self, _: Nanos, nodes: &[NodeIndex]) -> Vec<Action> {
        for node in nodes {
            self.by_load.insert((self.loads[node.0 as usize], *node));
        }
        let there = self.by_load.len();
        let due: Vec<_> =
            self.waiting.extract_if(.., |(_, nodes)| *nodes as usize <= there).collect();
        due.into_iter().map(|(job, nodes)| self.start(job, nodes)).collect()
    }

    fn passed(&mut self, _: Nanos) -> Vec<Action> {
        vec![]
    }

    fn next(&self) -> Option<Nanos> {
        None
    }
}
