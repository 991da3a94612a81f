//! Some of a cluster's nodes, asked for node by node.

use keeptime_model::topology::NodeIndex;

/// Nodes by their positions. All of them take a byte for each node of the cluster, none take nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeMask(Vec<bool>);

impl NodeMask {
    /// Of `count` nodes all but these.
    pub fn all_but(count: usize, nodes: impl IntoIterator<Item = NodeIndex>) -> Self {
        let mut all = Self(vec![true; count]);
        nodes.into_iter().for_each(|node| all.remove(node));
        all
    }

    /// Whether a node is one of them.
    pub fn contains(&self, node: NodeIndex) -> bool {
        self.0.get(node.0 as usize).is_some_and(|is_one| *is_one)
    }

    /// Adds a node. Whether it was none of them before.
    pub fn insert(&mut self, NodeIndex(node): NodeIndex) -> bool {
        let at = node as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, false);
        }
        !std::mem::replace(&mut self.0[at], true)
    }

    /// Takes a node out, if it is one of them.
    pub fn remove(&mut self, node: NodeIndex) {
        if let Some(is_one) = self.0.get_mut(node.0 as usize) {
            *is_one = false;
        }
    }
}

impl FromIterator<NodeIndex> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeIndex>>(nodes: I) -> Self {
        let mut mask = Self::default();
        nodes.into_iter().for_each(|node| {
            mask.insert(node);
        });
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mask: &NodeMask) -> Vec<u32> {
        (0..6).filter(|node| mask.contains(NodeIndex(*node))).collect()
    }

    #[test]
    fn nodes_are_in_it_or_not() {
        let mut mask: NodeMask = [4, 1].map(NodeIndex).into_iter().collect();
        assert_eq!(of(&mask), [1, 4]);
        assert_eq!([4, 2].map(|node| mask.insert(NodeIndex(node))), [false, true]);
        mask.remove(NodeIndex(1));
        mask.remove(NodeIndex(5));
        assert_eq!(of(&mask), [2, 4]);
        assert_eq!(of(&NodeMask::all_but(4, [NodeIndex(0), NodeIndex(9)])), [1, 2, 3]);
        assert!(of(&NodeMask::default()).is_empty());
    }
}
