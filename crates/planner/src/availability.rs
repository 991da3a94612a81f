//! What is free now: a rate per link direction, CPU per node.

use crate::tree::PlacementIndex;
use keeptime_model::topology::{LinkDirection, NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Share};
use serde::{Deserialize, Serialize};

/// A rate from one node to another, in that direction only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFlow {
    /// The node that sends.
    pub from: NodeIndex,
    /// The node that receives.
    pub to: NodeIndex,
    /// Reserved on every link of the path; on the wire, headers included.
    #[serde(rename = "bits_per_second")]
    pub rate: BitsPerSecond,
}

/// The resources of one job: granted together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node of each rank, in order of rank; one process a node.
    pub nodes: Vec<NodeIndex>,
    /// CPU on each of the nodes.
    #[serde(rename = "cpu_per_node_ppm")]
    pub cpu: CpuPpm,
    /// The rates between them.
    pub flows: Vec<PlannedFlow>,
}

/// Free and reservable amounts of a whole cluster.
///
/// Invariant, asserted after every change in release builds too: 0 <= free <= reservable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Availability {
    /// By [`LinkDirection`].
    link_free: Vec<BitsPerSecond>,
    link_reservable: Vec<BitsPerSecond>,
    /// By [`NodeIndex`].
    cpu_free: Vec<CpuPpm>,
    cpu_reservable: Vec<CpuPpm>,
    limit: Limit,
}

/// What one job may have in all, wherever it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// CPU of all its nodes together, in parts per million of one.
    pub cpu_ppm: u64,
    /// What all its flows send together, in bit/s.
    pub bits_per_second: u64,
}

impl Limit {
    /// As much as there is.
    pub const NONE: Self = Self { cpu_ppm: u64::MAX, bits_per_second: u64::MAX };

    /// How many nodes may have `cpu` each.
    pub fn nodes(self, cpu: CpuPpm) -> u64 {
        self.cpu_ppm.checked_div(cpu.get().into()).unwrap_or(u64::MAX)
    }

    /// What each of so many flows may have, rounded down; the greatest rate there is if nothing flows.
    pub fn rate(self, flows: u64) -> BitsPerSecond {
        BitsPerSecond::new(self.bits_per_second.checked_div(flows).unwrap_or(u64::MAX))
    }
}

/// An amount that a whole cluster has, at most 10^30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// Of it, what nobody has.
    pub free: u128,
    /// All of it.
    pub reservable: u128,
}

impl Total {
    /// The part that is reserved, rounded down; nothing of nothing.
    pub fn reserved(self) -> Share {
        let taken = self.reservable - self.free;
        let ppm = (taken * 1_000_000).checked_div(self.reservable).unwrap_or_default();
        Share::try_from(ppm as u32).unwrap_or(Share::ONE)
    }
}

impl Availability {
    /// An idle cluster. `reservable` tells how much of a link's rate jobs may have; more than the
    /// rate counts as the rate.
    pub fn full(topology: &Topology, reservable: impl Fn(BitsPerSecond) -> BitsPerSecond) -> Self {
        let direction = |d: u32| topology.rate(LinkDirection(d));
        let link_reservable: Vec<_> = (0..topology.direction_count() as u32)
            .map(direction)
            .map(|rate| reservable(rate).min(rate))
            .collect();
        let cpu_reservable: Vec<_> = topology.nodes().iter().map(|n| n.cpu).collect();
        Self {
            link_free: link_reservable.clone(),
            link_reservable,
            cpu_free: cpu_reservable.clone(),
            cpu_reservable,
            limit: Limit::NONE,
        }
    }

    /// A cluster of which so much is free: asked for each link direction and node once. What is
    /// more than reservable counts as reservable.
    pub fn with_free(
        topology: &Topology,
        reservable: impl Fn(LinkDirection) -> BitsPerSecond,
        link_free: impl Fn(LinkDirection) -> BitsPerSecond,
        cpu_free: impl Fn(NodeIndex) -> CpuPpm,
    ) -> Self {
        let directions = (0..topology.direction_count() as u32).map(LinkDirection);
        let links = directions.map(|d| (reservable(d), link_free(d).min(reservable(d))));
        let nodes = topology.node_indices().map(|n| (topology.node(n).cpu, cpu_free(n)));
        let (link_reservable, link_free) = links.unzip();
        let (cpu_reservable, cpu_free) = nodes.map(|(all, free)| (all, free.min(all))).unzip();
        Self { link_free, link_reservable, cpu_free, cpu_reservable, limit: Limit::NONE }
    }

    /// The same cluster with nothing taken.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self {
            link_free: self.link_reservable.clone(),
            cpu_free: self.cpu_reservable.clone(),
            ..self.clone()
        }
    }

    /// The same cluster for a job that may have no more of it than that.
    #[must_use]
    pub fn limited(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    /// What one job may have in all.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// What a link direction has free.
    pub fn link(&self, direction: LinkDirection) -> BitsPerSecond {
        self.link_free[direction.0 as usize]
    }

    /// What a link direction can give when nothing is taken.
    pub fn link_reservable(&self, direction: LinkDirection) -> BitsPerSecond {
        self.link_reservable[direction.0 as usize]
    }

    /// What a node has free.
    pub fn cpu(&self, node: NodeIndex) -> CpuPpm {
        self.cpu_free[node.0 as usize]
    }

    /// What all links can give together, both directions, in bit/s. O(links).
    pub fn network(&self) -> Total {
        let sum = |rates: &[BitsPerSecond]| rates.iter().map(|rate| u128::from(rate.get())).sum();
        Total { free: sum(&self.link_free), reservable: sum(&self.link_reservable) }
    }

    /// What all nodes can give together, in parts per million of a CPU. O(nodes).
    pub fn all_cpu(&self) -> Total {
        let sum = |parts: &[CpuPpm]| parts.iter().map(|part| u128::from(part.get())).sum();
        Total { free: sum(&self.cpu_free), reservable: sum(&self.cpu_reservable) }
    }

    /// Takes what `placement` needs. O(total length of the flows' paths).
    ///
    /// # Panics
    /// If it does not fit: whoever plans on this availability cannot plan too much.
    pub fn take(&mut self, index: &PlacementIndex, placement: &Placement) {
        for node in &placement.nodes {
            let free = &mut self.cpu_free[node.0 as usize];
            let left = free.checked_sub(placement.cpu);
            assert!(left.is_some(), "CPU of node {} oversubscribed", node.0);
            *free = left.unwrap_or_default();
        }
        for flow in &placement.flows {
            index.for_each_direction(flow.from, flow.to, |direction| {
                let free = &mut self.link_free[direction.0 as usize];
                let left = free.checked_sub(flow.rate);
                assert!(left.is_some(), "link direction {} oversubscribed", direction.0);
                *free = left.unwrap_or_default();
            });
        }
    }

    /// Gives back what [`Self::take`] took. O(total length of the flows' paths).
    ///
    /// # Panics
    /// If more comes back than was taken.
    pub fn give_back(&mut self, index: &PlacementIndex, placement: &Placement) {
        for node in &placement.nodes {
            let at = node.0 as usize;
            let sum = self.cpu_free[at].checked_add(placement.cpu);
            let sum = sum.filter(|sum| *sum <= self.cpu_reservable[at]);
            assert!(sum.is_some(), "CPU of node {at} given back twice");
            self.cpu_free[at] = sum.unwrap_or_default();
        }
        for flow in &placement.flows {
            index.for_each_direction(flow.from, flow.to, |direction| {
                let at = direction.0 as usize;
                let sum = self.link_free[at].checked_add(flow.rate);
                let sum = sum.filter(|sum| *sum <= self.link_reservable[at]);
                assert!(sum.is_some(), "link direction {at} given back twice");
                self.link_free[at] = sum.unwrap_or_default();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_tree;
    use proptest::prelude::*;

    fn two_nodes() -> PlacementIndex {
        let text = r#"
            name = "two"
            nodes = [{ name = "n1", cpu = "40 %" }, { name = "n2", cpu = "40 %" }]
            links = [{ between = ["n1", "n2"], rate = "50 Mbit/s", rate_back = "20 Mbit/s" }]
        "#;
        PlacementIndex::new(Topology::from_toml(text).unwrap())
    }

    fn one_way(mbit: u64, percent: u32) -> Placement {
        let (from, to) = (NodeIndex(0), NodeIndex(1));
        Placement {
            nodes: vec![from, to],
            cpu: CpuPpm::from_percent(percent),
            flows: vec![PlannedFlow { from, to, rate: BitsPerSecond::from_mbit(mbit) }],
        }
    }

    #[test]
    fn only_the_direction_of_the_flow_is_taken() {
        let index = two_nodes();
        let mut free = Availability::full(index.topology(), |rate| rate);
        free.take(&index, &one_way(30, 40));
        assert_eq!(free.link(LinkDirection(0)), BitsPerSecond::from_mbit(20));
        assert_eq!(free.link(LinkDirection(1)), BitsPerSecond::from_mbit(20));
        assert_eq!(free.cpu(NodeIndex(1)), CpuPpm::new(0));
        // 30 of 50 + 20 Mbit/s, and all of it.
        assert_eq!(free.network().reserved().ppm(), 428_571);
        assert_eq!(free.all_cpu().reserved(), Share::ONE);
    }

    #[test]
    #[should_panic(expected = "link direction 0 oversubscribed")]
    fn taking_too_much_of_a_link_is_a_bug() {
        let index = two_nodes();
        Availability::full(index.topology(), |rate| rate).take(&index, &one_way(51, 10));
    }

    #[test]
    #[should_panic(expected = "CPU of node 0 oversubscribed")]
    fn taking_too_much_cpu_is_a_bug() {
        let index = two_nodes();
        Availability::full(index.topology(), |rate| rate).take(&index, &one_way(1, 41));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_more_than_was_taken_is_a_bug() {
        let index = two_nodes();
        Availability::full(index.topology(), |rate| rate).give_back(&index, &one_way(1, 0));
    }

    proptest! {
        #[test]
        fn giving_back_undoes_taking(
            topology in random_tree(2..8), mbit in 1u64..5, ends in any::<[prop::sample::Index; 2]>()
        ) {
            let index = PlacementIndex::new(topology);
            let count = index.topology().nodes().len();
            let [from, to] = ends.map(|end| NodeIndex(end.index(count) as u32));
            let full = Availability::full(index.topology(), |rate| rate);
            let placement = Placement {
                nodes: vec![from],
                cpu: CpuPpm::from_percent(1),
                flows: vec![PlannedFlow { from, to, rate: BitsPerSecond::from_mbit(mbit) }],
            };
            let mut free = full.clone();
            free.take(&index, &placement);
            let taken = index.topology().path(from, to);
            for direction in (0..index.topology().direction_count() as u32).map(LinkDirection) {
                let expected = if taken.contains(&direction) { mbit } else { 0 };
                let used = full.link(direction).checked_sub(free.link(direction)).unwrap();
                prop_assert_eq!(used, BitsPerSecond::from_mbit(expected));
            }
            free.give_back(&index, &placement);
            prop_assert_eq!(&free, &full);
            prop_assert_eq!(free.emptied(), full);
        }
    }
}
