//! What is free, as the search for a placement looks at it.

use crate::availability::Availability;
use crate::tree::PlacementIndex;
use keeptime_model::topology::{LinkDirection, NodeIndex};
use keeptime_model::units::CpuPpm;
use std::cmp::Reverse;

/// Subtrees are looked at up to this many levels above a node, and the whole tree: deeper ones than
/// rack, row, room, site are not found in networks, and the lists stay linear in the nodes.
const LEVELS_MAX: usize = 4;

/// What is free, by vertex of the tree.
pub(super) struct Supply {
    /// Free from the vertex to its parent, in bit/s, and back.
    pub(super) links: Vec<[u64; 2]>,
    /// By node: free into or out of it, whichever is less.
    pub(super) access: Vec<u64>,
    /// The nodes with enough CPU, the freest first; among equals those under the freest uplink.
    pub(super) ranked: Vec<u32>,
    /// By vertex: the ranked nodes of its subtree, up to [`LEVELS_MAX`] below; none for leaves.
    pub(super) under: Vec<Vec<u32>>,
    /// By vertex: the ranked nodes directly below it.
    pub(super) direct: Vec<Vec<u32>>,
}

impl Supply {
    pub(super) fn new(index: &PlacementIndex, availability: &Availability, cpu: CpuPpm) -> Self {
        let both = |direction: LinkDirection| {
            [direction, direction.reversed()].map(|d| availability.link(d).get())
        };
        let vertices = 0..index.vertex_count() as u32;
        let links: Vec<[u64; 2]> =
            vertices.clone().map(|v| index.ascending(v).map_or([u64::MAX; 2], both)).collect();
        let node_count = index.topology().nodes().len();
        let access = access(index, &links, node_count);
        let uplink = |node: u32| links[index.parent(node) as usize].into_iter().min();
        let eligible = (0..node_count as u32).filter(|n| availability.cpu(NodeIndex(*n)) >= cpu);
        let mut keyed: Vec<_> = eligible
            .map(|n| (Reverse(access[n as usize]), Reverse(uplink(n)), index.position(n), n))
            .collect();
        keyed.sort_unstable();
        let ranked: Vec<u32> = keyed.into_iter().map(|(.., node)| node).collect();
        let mut under = vec![Vec::new(); links.len()];
        let mut direct = under.clone();
        for node in &ranked {
            direct[index.parent(*node) as usize].push(*node);
            let up = |v: &u32| Some(index.parent(*v)).filter(|p| p != v);
            // A node inside the tree belongs to its own subtree too.
            let inside = index.nodes_under(*node).len() > 1;
            let first = if inside { Some(*node) } else { up(node) };
            for vertex in std::iter::successors(first, up).take(LEVELS_MAX) {
                under[vertex as usize].push(*node);
            }
        }
        Self { links, access, ranked, under, direct }
    }
}

fn access(index: &PlacementIndex, links: &[[u64; 2]], node_count: usize) -> Vec<u64> {
    let mut free = vec![[0u64; 2]; links.len()];
    for (vertex, [up, down]) in links.iter().enumerate() {
        let parent = index.parent(vertex as u32) as usize;
        if parent != vertex {
            let add = |[out, into]: [u64; 2], more_out: u64, more_in: u64| {
                [out.saturating_add(more_out), into.saturating_add(more_in)]
            };
            free[vertex] = add(free[vertex], *up, *down);
            free[parent] = add(free[parent], *down, *up);
        }
    }
    free[..node_count].iter().map(|[out, into]| *out.min(into)).collect()
}
