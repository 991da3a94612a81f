//! Random inputs for the property tests of this crate.

use crate::availability::{Availability, Placement, PlannedFlow};
use crate::tree::PlacementIndex;
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::topology::{
    Link, LinkDirection, Node, NodeIndex, Switch, Topology, TopologyFile,
};
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use proptest::prelude::*;
use std::ops::Range;

/// A random tree with `nodes` nodes and up to three switches, any of them inside or at the edge.
pub(crate) fn random_tree(nodes: Range<usize>) -> impl Strategy<Value = Topology> {
    let shape = (nodes, 0usize..4).prop_flat_map(|(nodes, switches)| {
        let links = nodes + switches - 1;
        let link = (any::<prop::sample::Index>(), 5u64..40, 5u64..40);
        let numbers = Just((0..nodes + switches).collect::<Vec<_>>()).prop_shuffle();
        (Just(nodes), numbers, prop::collection::vec(link, links))
    });
    shape.prop_map(|(nodes, numbers, links)| {
        let name = |vertex: usize| format!("v{vertex}").parse::<Name>().unwrap();
        let link =
            |(index, (parent, there, back)): (usize, &(prop::sample::Index, u64, u64))| Link {
                between: [name(numbers[index + 1]), name(numbers[parent.index(index + 1)])],
                rate: BitsPerSecond::from_mbit(*there),
                rate_back: Some(BitsPerSecond::from_mbit(*back)),
            };
        let cpu = CpuPpm::from_percent(40);
        Topology::try_from(TopologyFile {
            name: name(0),
            nodes: (0..nodes).map(|v| Node { name: name(v), cpu, address: None }).collect(),
            switches: (nodes..numbers.len()).map(|v| Switch { name: name(v) }).collect(),
            links: links.iter().enumerate().map(link).collect(),
        })
        .unwrap()
    })
}

/// Any pattern; an explicit one among up to four ranks.
pub(crate) fn any_pattern() -> impl Strategy<Value = Pattern> {
    let flow = (0u32..4, 0u32..4).prop_filter("ends", |(from, to)| from != to);
    let matrix = prop::collection::btree_set(flow, 1..6).prop_map(|flows| {
        Pattern::Matrix(flows.into_iter().map(|(from, to)| RankFlow { from, to }).collect())
    });
    prop_oneof![
        Just(Pattern::Hypercube),
        Just(Pattern::AllToAll),
        Just(Pattern::Ring),
        Just(Pattern::Pairs),
        matrix,
    ]
}

/// A generator for what a seed decides.
pub(crate) struct Lcg(pub u64);

impl Lcg {
    /// The next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The cluster with a few random flows and processes on it.
pub(crate) fn loaded(index: &PlacementIndex, seed: u64) -> Availability {
    let mut random = Lcg(seed);
    let mut free = Availability::full(index.topology(), |rate| rate);
    let count = index.topology().nodes().len() as u64;
    for _ in 0..random.below(2 * count) {
        let [from, to] = [(); 2].map(|()| NodeIndex(random.below(count) as u32));
        let mut rate = BitsPerSecond::new(u64::MAX);
        index.for_each_direction(from, to, |d: LinkDirection| rate = rate.min(free.link(d)));
        let rate = rate.divided_floor(1 + random.below(4));
        let cpu = free.cpu(from).min(CpuPpm::from_percent(random.below(12) as u32));
        let flows = if from == to { vec![] } else { vec![PlannedFlow { from, to, rate }] };
        free.take(index, &Placement { nodes: vec![from], cpu, flows });
    }
    free
}
