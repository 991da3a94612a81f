//! How many live reservations each node has: where to look first for nodes that are free.

use keeptime_model::topology::NodeIndex;
use std::collections::BTreeSet;

/// Counts by node, and the nodes in the order of them.
#[derive(Debug, Clone)]
pub(crate) struct Loads {
    counts: Vec<u32>,
    order: BTreeSet<(u32, NodeIndex)>,
}

impl Loads {
    /// `nodes` nodes without reservations.
    pub fn new(nodes: u32) -> Self {
        let order = (0..nodes).map(|node| (0, NodeIndex(node))).collect();
        Self { counts: vec![0; nodes as usize], order }
    }

    /// The nodes with the fewest reservations first.
    pub fn lightest(&self) -> impl Iterator<Item = NodeIndex> {
        self.order.iter().map(|(_, node)| *node)
    }

    /// One more reservation uses `node`. O(log nodes).
    pub fn add(&mut self, node: NodeIndex) {
        self.turn(node, |count| count + 1);
    }

    /// One less uses `node`. O(log nodes).
    pub fn remove(&mut self, node: NodeIndex) {
        self.turn(node, |count| count.saturating_sub(1));
    }

    fn turn(&mut self, node: NodeIndex, change: impl Fn(u32) -> u32) {
        let count = &mut self.counts[node.0 as usize];
        self.order.remove(&(*count, node));
        *count = change(*count);
        self.order.insert((*count, node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lightest_come_first() {
        let mut loads = Loads::new(3);
        [0, 0, 1].into_iter().for_each(|node| loads.add(NodeIndex(node)));
        assert_eq!(loads.lightest().map(|node| node.0).collect::<Vec<_>>(), [2, 1, 0]);
        [0, 0].into_iter().for_each(|node| loads.remove(NodeIndex(node)));
        assert_eq!(loads.lightest().map(|node| node.0).collect::<Vec<_>>(), [0, 2, 1]);
    }
}
