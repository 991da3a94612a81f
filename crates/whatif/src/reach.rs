//! Which nodes can be reached, as parts of the cluster fail and are back.
//!
//! The links form a tree, which hangs from its centre, and so do the broker and whoever starts jobs. So whatever fails
//! takes along all that is behind it, seen from there: of a rack whose uplink or switch has failed no agent answers, and
//! nobody can start anything or learn what came of it, though its nodes work. Between nodes that can be reached no
//! part of a way has failed.

use crate::failures::{Kind, Part};
use keeptime_model::topology::NodeIndex;
use keeptime_planner::tree::PlacementIndex;

/// How much has failed on the way to each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// By node: parts on its way that have failed, itself included.
    in_the_way: Vec<u32>,
    /// By link: the vertex at the end that is away from the centre.
    far_ends: Vec<u32>,
}

impl Reach {
    /// Every node of this cluster can be reached. O(vertices).
    pub fn new(index: &PlacementIndex) -> Self {
        let topology = index.topology();
        let mut far_ends = vec![0; topology.links().len()];
        for vertex in 0..index.vertex_count() as u32 {
            if let Some(ascending) = index.ascending(vertex) {
                far_ends[ascending.link()] = vertex;
            }
        }
        Self { in_the_way: vec![0; topology.nodes().len()], far_ends }
    }

    /// Whether a node cannot be reached.
    pub fn is_away(&self, node: NodeIndex) -> bool {
        self.in_the_way[node.0 as usize] > 0
    }

    /// A part that worked has failed. The nodes that could be reached before and cannot any more.
    /// O(nodes behind it).
    pub fn fail(&mut self, index: &PlacementIndex, part: Part) -> Vec<NodeIndex> {
        self.change(index, part, |failed: &mut u32| {
            *failed += 1;
            *failed == 1
        })
    }

    /// A part that had failed works again. The nodes that can be reached by that. O(nodes behind it).
    pub fn repair(&mut self, index: &PlacementIndex, part: Part) -> Vec<NodeIndex> {
        self.change(index, part, |failed: &mut u32| {
            *failed -= 1;
            *failed == 0
        })
    }

    /// Counts at all nodes behind a part; those at which that changed whether they can be reached.
    fn change(
        &mut self,
        index: &PlacementIndex,
        part: Part,
        count: fn(&mut u32) -> bool,
    ) -> Vec<NodeIndex> {
        let behind = index.nodes_under(self.vertex(index, part)).iter();
        let changed = behind.filter(|node| count(&mut self.in_the_way[**node as usize]));
        changed.map(|node| NodeIndex(*node)).collect()
    }

    /// Behind a part is what is under this vertex, itself included.
    fn vertex(&self, index: &PlacementIndex, part: Part) -> u32 {
        match part.kind {
            Kind::Node => part.number,
            Kind::Link => self.far_ends[part.number as usize],
            Kind::Switch => index.topology().nodes().len() as u32 + part.number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    fn part(kind: Kind, number: u32) -> Part {
        Part { kind, number }
    }

    /// Two racks of 40 nodes in a row: links 0 to 79 are those of nodes, 80 and 81 those of racks, 82 goes up from the
    /// row; switches 0 and 1 are those of racks, 2 the row's, 3 the one above.
    fn two_racks() -> PlacementIndex {
        PlacementIndex::new("fat-tree:80".parse::<Shape>().unwrap().topology())
    }

    fn nodes(numbers: std::ops::Range<u32>) -> Vec<NodeIndex> {
        numbers.map(NodeIndex).collect()
    }

    #[test]
    fn a_part_takes_along_what_is_behind_it() {
        let index = two_racks();
        let cases = [
            (part(Kind::Node, 7), 7..8),
            (part(Kind::Link, 7), 7..8),
            (part(Kind::Link, 81), 40..80),
            (part(Kind::Switch, 0), 0..40),
            // The centre of the tree.
            (part(Kind::Switch, 2), 0..80),
            // Nobody's way goes there.
            (part(Kind::Link, 82), 0..0),
            (part(Kind::Switch, 3), 0..0),
        ];
        for (part, behind) in cases {
            let mut reach = Reach::new(&index);
            assert_eq!(reach.fail(&index, part), nodes(behind.clone()), "{part:?}");
            let is_away = |node: &NodeIndex| reach.is_away(*node);
            let away: Vec<_> = nodes(0..80).into_iter().filter(is_away).collect();
            assert_eq!(away, nodes(behind.clone()), "{part:?}");
            assert_eq!(reach.repair(&index, part), nodes(behind), "{part:?}");
            assert_eq!(reach, Reach::new(&index), "{part:?}");
        }
    }

    // Goal: a node is back when the last of what has failed on its way is, whatever fails and is back in between.
    #[test]
    fn a_node_is_back_when_its_whole_way_is() {
        let index = two_racks();
        let mut reach = Reach::new(&index);
        let [node, uplink, rack] =
            [part(Kind::Node, 3), part(Kind::Link, 80), part(Kind::Switch, 0)];
        assert_eq!(reach.fail(&index, node), nodes(3..4));
        assert_eq!(reach.fail(&index, uplink), [nodes(0..3), nodes(4..40)].concat());
        assert_eq!(reach.fail(&index, rack), nodes(0..0));
        assert_eq!(reach.repair(&index, uplink), nodes(0..0));
        assert_eq!(reach.repair(&index, node), nodes(0..0));
        assert_eq!(reach.repair(&index, rack), nodes(0..40));
        assert_eq!(reach, Reach::new(&index));
    }

    #[test]
    fn a_cluster_of_one_node_has_no_way_to_lose() {
        let topology = "name = \"c\"\nnodes = [{ name = \"a\", cpu = \"100 %\" }]\n";
        let topology = keeptime_model::topology::Topology::from_toml(topology).unwrap();
        let index = PlacementIndex::new(topology);
        let mut reach = Reach::new(&index);
        assert_eq!(reach.fail(&index, part(Kind::Node, 0)), nodes(0..1));
        assert_eq!(reach.repair(&index, part(Kind::Node, 0)), nodes(0..1));
    }
}
