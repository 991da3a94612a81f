//! What a choice of nodes is worth, by the flows that it puts on every link.

use super::rank_flows::{RankFlows, Shape};
use super::supply::Supply;
use crate::tree::PlacementIndex;
use std::cmp::Reverse;

/// Flows on each link, upwards and downwards, by the lower end; all zero between two uses.
pub(super) struct Counts {
    flows: Vec<[u64; 2]>,
    touched: Vec<u32>,
}

/// What a choice of nodes is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Score {
    pub(super) rate: u64,
    /// Link directions that allow no more than `rate`.
    tight: u32,
    /// Free bandwidth at the nodes chosen: ties go to the greater.
    pub(super) free: u128,
    /// Links passed by all flows together: among further ties the fewest.
    passed: u64,
    pub(super) bottleneck: Option<(u32, usize, u64)>,
}

impl Counts {
    pub(super) fn new(vertices: usize) -> Self {
        Self { flows: vec![[0; 2]; vertices], touched: Vec::new() }
    }

    fn add(&mut self, vertex: u32, [up, down]: [u64; 2]) {
        let flows = &mut self.flows[vertex as usize];
        if *flows == [0; 2] {
            self.touched.push(vertex);
        }
        flows[0] += up;
        flows[1] += down;
    }

    /// Counts the flows of ranks on `nodes` and finds the scarcest link direction; also the steps
    /// that it took. O(links passed); for all-to-all O(nodes * depth).
    pub(super) fn judge(
        &mut self,
        index: &PlacementIndex,
        supply: &Supply,
        flows: &RankFlows,
        nodes: &[u32],
    ) -> (Score, u64) {
        let mut steps = nodes.len() as u64;
        match &flows.shape {
            Shape::All => {
                steps += self.count_all(index, nodes);
            }
            Shape::Mutual(pairs) => {
                for pair in pairs {
                    let ends = [pair.from, pair.to].map(|rank| nodes[rank as usize]);
                    steps += index.climb(ends[0], ends[1], |v, _| self.add(v, [1, 1]));
                }
            }
            Shape::Directed(flows) => {
                for flow in flows {
                    let ends = [flow.from, flow.to].map(|rank| nodes[rank as usize]);
                    steps += index.climb(ends[0], ends[1], |v, ascends| {
                        self.add(v, if ascends { [1, 0] } else { [0, 1] });
                    });
                }
            }
        }
        let free = nodes.iter().map(|n| u128::from(supply.access[*n as usize])).sum();
        (self.collect(supply, free), steps)
    }

    /// All-to-all: a link with k of n ranks below it carries k * (n - k) flows in each direction.
    fn count_all(&mut self, index: &PlacementIndex, nodes: &[u32]) -> u64 {
        let mut steps = 0;
        for node in nodes {
            let mut vertex = *node;
            while index.parent(vertex) != vertex {
                self.add(vertex, [1, 1]);
                vertex = index.parent(vertex);
                steps += 1;
            }
        }
        let ranks = nodes.len() as u64;
        for vertex in &self.touched {
            let below = self.flows[*vertex as usize][0];
            self.flows[*vertex as usize] = [below * (ranks - below); 2];
        }
        steps
    }

    /// The score; sets all counts back to zero.
    fn collect(&mut self, supply: &Supply, free: u128) -> Score {
        let mut score = Score { rate: u64::MAX, tight: 0, free, passed: 0, bottleneck: None };
        for vertex in self.touched.drain(..) {
            let counts = std::mem::take(&mut self.flows[vertex as usize]);
            for (side, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
                let rate = supply.links[vertex as usize][side] / count;
                score.passed += count;
                if rate < score.rate {
                    score.rate = rate;
                    score.tight = 0;
                    score.bottleneck = Some((vertex, side, count));
                }
                score.tight += u32::from(rate == score.rate);
            }
        }
        score
    }
}

impl Score {
    /// What proposals are compared by.
    pub(super) fn worth(&self) -> (u64, u128, Reverse<u64>) {
        (self.rate, self.free, Reverse(self.passed))
    }

    /// What exchanges are compared by: several links may have to be relieved one after the other.
    pub(super) fn relief(&self) -> (u64, Reverse<u32>) {
        (self.rate, Reverse(self.tight))
    }
}
