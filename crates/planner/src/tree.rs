//! A topology prepared for counting flows on links: parents, depths, an order of the nodes.

use keeptime_model::name::Name;
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use std::collections::BTreeMap;

/// Everything about a topology that placement needs and reservations do not change: built once per
/// topology, O(nodes + switches), and never rebuilt after a reservation. It owns the topology.
///
/// The tree hangs from its centre, so that paths are short and subtrees are what people see as a
/// rack, a row, a room. Vertices are numbered nodes first, then switches, as [`NodeIndex`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementIndex {
    topology: Topology,
    /// The root is its own parent.
    parent: Vec<u32>,
    /// From the vertex to its parent; nothing for the root.
    ascending: Vec<Option<LinkDirection>>,
    depth: Vec<u32>,
    /// The nodes in depth-first order: those of one switch are neighbours.
    order: Vec<u32>,
    /// For every vertex, where its subtree's nodes stand in `order`.
    subtree: Vec<(u32, u32)>,
}

type Adjacent = Vec<Vec<(u32, LinkDirection)>>;

impl PlacementIndex {
    /// Prepares `topology`. O(vertices log vertices).
    pub fn new(topology: Topology) -> Self {
        let adjacent = adjacency(&topology);
        let root = centre(&adjacent);
        let count = adjacent.len();
        let mut index = Self {
            topology,
            parent: (0..count as u32).collect(),
            ascending: vec![None; count],
            depth: vec![0; count],
            order: Vec::new(),
            subtree: vec![(0, 0); count],
        };
        index.walk(root, &adjacent);
        index
    }

    /// The topology that was prepared.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Calls `visit` with each link direction from `from` to `to`, in no particular order.
    /// O(length of the path), without allocation.
    pub fn for_each_direction(
        &self,
        from: NodeIndex,
        to: NodeIndex,
        mut visit: impl FnMut(LinkDirection),
    ) {
        self.climb(from.0, to.0, |vertex, ascends| {
            if let Some(direction) = self.ascending[vertex as usize] {
                visit(if ascends { direction } else { direction.reversed() });
            }
        });
    }

    /// Calls `visit` with the lower end of each link between `a` and `b`, and whether it is passed
    /// upwards on the way from `a` to `b`. The number of links.
    pub(crate) fn climb(&self, mut a: u32, mut b: u32, mut visit: impl FnMut(u32, bool)) -> u64 {
        let mut links = 0;
        while a != b {
            if self.depth[a as usize] >= self.depth[b as usize] {
                visit(a, true);
                a = self.parent[a as usize];
            } else {
                visit(b, false);
                b = self.parent[b as usize];
            }
            links += 1;
        }
        links
    }

    /// How many vertices there are: nodes, then switches.
    pub fn vertex_count(&self) -> usize {
        self.parent.len()
    }

    pub(crate) fn parent(&self, vertex: u32) -> u32 {
        self.parent[vertex as usize]
    }

    /// The link direction from `vertex` towards the centre; nothing for the centre itself.
    pub fn ascending(&self, vertex: u32) -> Option<LinkDirection> {
        self.ascending[vertex as usize]
    }

    /// The nodes of the subtree under `vertex`, itself included, in depth-first order.
    pub fn nodes_under(&self, vertex: u32) -> &[u32] {
        let (start, end) = self.subtree[vertex as usize];
        &self.order[start as usize..end as usize]
    }

    /// Where each vertex's subtree starts in depth-first order: a sort key.
    pub(crate) fn position(&self, vertex: u32) -> u32 {
        self.subtree[vertex as usize].0
    }

    pub(crate) fn is_under(&self, vertex: u32, ancestor: u32) -> bool {
        let (start, end) = self.subtree[ancestor as usize];
        (start..end).contains(&self.position(vertex))
    }

    /// Depth first without recursion: a chain of 100,000 vertices must not end the stack.
    fn walk(&mut self, root: u32, adjacent: &Adjacent) {
        let node_count = self.topology.nodes().len() as u32;
        let mut pending = vec![(root, false)];
        while let Some((vertex, left)) = pending.pop() {
            let at = vertex as usize;
            if left {
                self.subtree[at].1 = self.order.len() as u32;
                continue;
            }
            self.subtree[at].0 = self.order.len() as u32;
            if vertex < node_count {
                self.order.push(vertex);
            }
            pending.push((vertex, true));
            for (next, direction) in adjacent[at].iter().rev() {
                if *next != self.parent[at] {
                    self.parent[*next as usize] = vertex;
                    self.ascending[*next as usize] = Some(direction.reversed());
                    self.depth[*next as usize] = self.depth[at] + 1;
                    pending.push((*next, false));
                }
            }
        }
    }
}

/// For every vertex: (neighbour, the direction from the vertex to it).
fn adjacency(topology: &Topology) -> Adjacent {
    let nodes = topology.nodes().iter().map(|n| &n.name);
    let names = nodes.chain(topology.switches().iter().map(|s| &s.name));
    let vertices: BTreeMap<&Name, u32> = names.zip(0..).collect();
    let mut adjacent = vec![Vec::new(); vertices.len()];
    for (index, link) in topology.links().iter().enumerate() {
        // A checked topology's links name its own vertices.
        let [a, b] = [vertices[&link.between[0]], vertices[&link.between[1]]];
        let there = LinkDirection(2 * index as u32);
        adjacent[a as usize].push((b, there));
        adjacent[b as usize].push((a, there.reversed()));
    }
    adjacent
}

/// The middle of a longest path.
fn centre(adjacent: &Adjacent) -> u32 {
    let (one_end, _) = farthest(adjacent, 0);
    let (other_end, came_from) = farthest(adjacent, one_end);
    let path: Vec<u32> =
        std::iter::successors(Some(other_end), |v| came_from[*v as usize]).collect();
    path[path.len() / 2]
}

fn farthest(adjacent: &Adjacent, from: u32) -> (u32, Vec<Option<u32>>) {
    let mut came_from = vec![None; adjacent.len()];
    let mut queue = std::collections::VecDeque::from([from]);
    let mut last = from;
    while let Some(vertex) = queue.pop_front() {
        last = vertex;
        for (next, _) in &adjacent[vertex as usize] {
            if came_from[vertex as usize] != Some(*next) {
                came_from[*next as usize] = Some(vertex);
                queue.push_back(*next);
            }
        }
    }
    (last, came_from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_tree;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn paths_are_those_of_the_topology(topology in random_tree(1..12)) {
            let index = PlacementIndex::new(topology);
            for from in index.topology().node_indices() {
                for to in index.topology().node_indices() {
                    let mut found = Vec::new();
                    index.for_each_direction(from, to, |d| found.push(d));
                    let mut path = index.topology().path(from, to);
                    found.sort_unstable();
                    path.sort_unstable();
                    prop_assert_eq!(found, path);
                }
            }
        }

        #[test]
        fn subtrees_hold_the_nodes_below_them(topology in random_tree(1..12)) {
            let index = PlacementIndex::new(topology);
            let count = index.topology().nodes().len();
            for vertex in 0..index.vertex_count() as u32 {
                for node in 0..count as u32 {
                    let up = |v: &u32| Some(index.parent(*v)).filter(|p| p != v);
                    let above = std::iter::successors(Some(node), up).any(|v| v == vertex);
                    prop_assert_eq!(index.nodes_under(vertex).contains(&node), above);
                    prop_assert_eq!(index.is_under(node, vertex), above);
                }
            }
        }
    }
}
