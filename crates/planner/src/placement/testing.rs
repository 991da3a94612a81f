//! Small clusters, with what can be had on them by trying everything.

use crate::availability::Availability;
use crate::tree::PlacementIndex;
use keeptime_model::name::Name;
use keeptime_model::pattern::RankFlow;
use keeptime_model::topology::{
    Link, LinkDirection, Node, NodeIndex, Switch, Topology, TopologyFile,
};
use keeptime_model::units::{BitsPerSecond, CpuPpm};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn node(text: &str) -> Node {
    Node { name: name(text), cpu: CpuPpm::from_percent(40), address: None, disk: None }
}

fn link(a: &str, b: &str, mbit: u64) -> Link {
    Link { between: [name(a), name(b)], rate: BitsPerSecond::from_mbit(mbit), rate_back: None }
}

/// `racks` switches with `each` nodes at 100 Mbit/s, joined by a core with `uplink` Mbit/s.
pub(super) fn racks(racks: usize, each: usize, uplink: u64) -> PlacementIndex {
    let places = || (0..racks).flat_map(|r| (0..each).map(move |n| (r, n)));
    let mut links: Vec<_> =
        places().map(|(r, n)| link(&format!("n{r}-{n}"), &format!("s{r}"), 100)).collect();
    links.extend((0..racks).map(|r| link(&format!("s{r}"), "core", uplink)));
    let switches = (0..racks).map(|r| format!("s{r}")).chain(["core".into()]);
    let topology = Topology::try_from(TopologyFile {
        name: name("racks"),
        nodes: places().map(|(r, n)| node(&format!("n{r}-{n}"))).collect(),
        switches: switches.map(|s| Switch { name: name(&s) }).collect(),
        links,
    });
    PlacementIndex::new(topology.unwrap())
}

/// What is free on an idle cluster: all.
pub(super) fn full(index: &PlacementIndex) -> Availability {
    Availability::full(index.topology(), |rate| rate)
}

/// Flows over links by the topology's own paths: what placement must not oversubscribe.
pub(super) fn rate_of(
    topology: &Topology,
    free: &Availability,
    flows: &[RankFlow],
    nodes: &[NodeIndex],
) -> u64 {
    let mut counts = vec![0u64; topology.direction_count()];
    for flow in flows {
        for direction in topology.path(nodes[flow.from as usize], nodes[flow.to as usize]) {
            counts[direction.0 as usize] += 1;
        }
    }
    let rate =
        |(d, count): (usize, &u64)| free.link(LinkDirection(d as u32)).get().checked_div(*count);
    counts.iter().enumerate().filter_map(rate).min().unwrap_or(u64::MAX)
}

/// The best rate over all ordered choices of `wanted` of the nodes that have `cpu` free.
pub(super) fn brute_force(
    topology: &Topology,
    free: &Availability,
    cpu: CpuPpm,
    flows: &[RankFlow],
    wanted: u32,
) -> Option<u64> {
    fn extend(
        chosen: &mut Vec<NodeIndex>,
        wanted: usize,
        all: &[NodeIndex],
        rate: &dyn Fn(&[NodeIndex]) -> u64,
    ) -> Option<u64> {
        if chosen.len() == wanted {
            return Some(rate(chosen));
        }
        let mut best = None;
        for node in all {
            if !chosen.contains(node) {
                chosen.push(*node);
                best = best.max(extend(chosen, wanted, all, rate));
                chosen.pop();
            }
        }
        best
    }
    let all: Vec<_> = topology.node_indices().filter(|n| free.cpu(*n) >= cpu).collect();
    let rate = |nodes: &[NodeIndex]| rate_of(topology, free, flows, nodes);
    extend(&mut Vec::new(), wanted as usize, &all, &rate)
}
