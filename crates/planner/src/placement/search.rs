//! The search for the nodes that hold a pattern at the greatest rate.

use super::judge::{Counts, Score};
use super::parts::Parts;
use super::rank_flows::RankFlows;
use super::supply::Supply;
use super::switches::Switches;
use super::{Bottleneck, Placed};
use crate::tree::PlacementIndex;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::BitsPerSecond;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The search for one number of nodes ends after this many steps (flows walked over one link, nodes
/// looked at). Ten searches on 1,000 loaded nodes then take about half a millisecond, and a
/// hundred times more steps find no more on up to 64 nodes.
pub const SEARCH_STEPS_MAX: u64 = 8_000;

/// Where this many proposals take more steps than that, so many are judged: a hypercube of 512 ranks
/// takes 10,000 steps for one, and the best proposals for large jobs are not the first.
pub const PROPOSALS_MIN: u64 = 8;

/// The search for one number of nodes.
pub(super) struct Search<'s> {
    index: &'s PlacementIndex,
    supply: &'s Supply,
    counts: &'s mut Counts,
    flows: &'s RankFlows,
    by_weight: Option<Vec<u32>>,
    /// No choice of nodes can have a greater rate.
    rate_ceiling: u64,
    best: Option<(Score, Vec<u32>)>,
    steps: u64,
    steps_max: u64,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        index: &'s PlacementIndex,
        supply: &'s Supply,
        counts: &'s mut Counts,
        flows: &'s RankFlows,
    ) -> Self {
        let mut search = Self {
            index,
            supply,
            counts,
            flows,
            by_weight: flows.ranks_by_weight(),
            rate_ceiling: u64::MAX,
            best: None,
            steps: 0,
            steps_max: SEARCH_STEPS_MAX,
        };
        search.rate_ceiling = search.rate_ceiling_of(&supply.ranked);
        search
    }

    pub(super) fn run(mut self) -> Placed {
        self.propose_compact();
        self.propose_freest(&self.supply.ranked);
        if !self.is_settled() {
            self.propose_connected();
            self.propose_spread(&self.supply.ranked);
            self.improve();
        }
        let (score, nodes) = self.best.unwrap_or_else(|| unreachable!("enough nodes: proposed"));
        let bottleneck = score.bottleneck.and_then(|(vertex, side, flows)| {
            let up = self.index.ascending(vertex)?;
            let direction = if side == 0 { up } else { up.reversed() };
            let free = BitsPerSecond::new(self.supply.links[vertex as usize][side]);
            Some(Bottleneck { direction, flows, free })
        });
        let nodes = nodes.into_iter().map(NodeIndex).collect();
        Placed { nodes, rate: BitsPerSecond::new(score.rate), bottleneck }
    }

    fn wanted(&self) -> usize {
        self.flows.ranks() as usize
    }

    /// Of nodes in ranked order, the last that is needed limits, where all ranks are alike.
    fn rate_ceiling_of(&self, ranked: &[u32]) -> u64 {
        match (self.flows.degree, self.wanted().checked_sub(1)) {
            (Some(degree), Some(last)) if degree > 0 => {
                self.supply.access[ranked[last] as usize] / degree
            }
            _ => u64::MAX,
        }
    }

    fn is_settled(&self) -> bool {
        let reached = self.best.as_ref().is_some_and(|(s, _)| s.rate >= self.rate_ceiling);
        reached || self.steps > self.steps_max
    }

    /// The freest nodes below one vertex, and below the smallest subtrees that have enough.
    fn propose_compact(&mut self) {
        let (wanted, supply) = (self.wanted(), self.supply);
        for nodes in supply.direct.iter().filter(|nodes| nodes.len() >= wanted) {
            self.propose_freest(nodes);
        }
        let large = |vertex: &usize| supply.under[*vertex].len() >= wanted.max(2);
        let large: Vec<usize> = (0..supply.under.len()).filter(large).collect();
        let parent = |vertex: usize| self.index.parent(vertex as u32) as usize;
        let has_smaller: BTreeSet<usize> =
            large.iter().filter(|v| parent(**v) != **v).map(|v| parent(*v)).collect();
        for vertex in large.into_iter().filter(|v| !has_smaller.contains(v)) {
            let nodes = &supply.under[vertex];
            let whole = nodes.len() == supply.ranked.len();
            if !whole && supply.direct[vertex].len() < wanted && !self.is_settled() {
                self.propose_freest(nodes);
                self.propose_spread(nodes);
            }
        }
    }

    /// The freest nodes of the first part with enough of them when the links with the most free are
    /// joined first.
    fn propose_connected(&mut self) {
        let (index, links) = (self.index, &self.supply.links);
        let free = |vertex: &u32| links[*vertex as usize].into_iter().min();
        let mut order: Vec<u32> =
            (0..links.len() as u32).filter(|v| index.parent(*v) != *v).collect();
        order.sort_unstable_by_key(|v| (Reverse(free(v)), *v));
        let mut parts = Parts::new(links.len(), &self.supply.ranked);
        self.steps += links.len() as u64;
        let wanted = self.wanted();
        let joined = |vertex| parts.join(vertex, index.parent(vertex));
        if let Some(part) = order.into_iter().map(joined).find(|(_, size)| *size >= wanted) {
            let within = |node: &u32| parts.part_of(*node) == part.0;
            let ranked: Vec<u32> = self.supply.ranked.iter().copied().filter(within).collect();
            self.propose_freest(&ranked);
            self.propose_spread(&ranked);
        }
    }

    /// The first of `ranked`.
    fn propose_freest(&mut self, ranked: &[u32]) {
        let chosen = ranked[..self.wanted()].to_vec();
        if let Some(by_weight) = self.by_weight.clone() {
            let mut matched = vec![0; chosen.len()];
            for (rank, node) in by_weight.into_iter().zip(&chosen) {
                matched[rank as usize] = *node;
            }
            self.judge(matched);
        }
        self.propose(chosen);
    }

    /// Filled switches and even parts, out of the freest 1, 2, 4, … times the nodes wanted.
    fn propose_spread(&mut self, ranked: &[u32]) {
        let mut size = self.wanted();
        loop {
            size = size.min(ranked.len());
            let switches = Switches::new(self.index, self.supply, &ranked[..size]);
            self.steps += size as u64;
            if switches.count() > 1 {
                self.propose_parts(&switches);
            }
            if size == ranked.len() || self.is_settled() {
                return;
            }
            size *= 2;
        }
    }

    fn propose_parts(&mut self, switches: &Switches) {
        let wanted = self.wanted();
        let all = switches.count();
        self.propose(switches.even(wanted, all));
        self.propose(switches.filled(wanted));
        let mut used = switches.fewest(wanted);
        while used < all && !self.is_settled() {
            self.propose(switches.even(wanted, used));
            used = (used + 1).next_power_of_two();
        }
    }

    /// Judges `chosen` with its ranks in depth-first order, unless it cannot be better.
    fn propose(&mut self, mut chosen: Vec<u32>) {
        if let Some((best, _)) = &self.best {
            let access = |n: &u32| self.supply.access[*n as usize];
            let least = chosen.iter().map(access).min().unwrap_or(u64::MAX);
            let ceiling = self.flows.degree.map_or(u64::MAX, |d| least / d.max(1));
            let free: u128 = chosen.iter().map(|n| u128::from(access(n))).sum();
            if (ceiling, free) < (best.rate, best.free) {
                return;
            }
        }
        chosen.sort_unstable_by_key(|n| self.index.position(*n));
        self.judge(chosen);
    }

    fn judge(&mut self, chosen: Vec<u32>) {
        if self.best.is_some() && self.steps > self.steps_max {
            return;
        }
        let (score, steps) = self.counts.judge(self.index, self.supply, self.flows, &chosen);
        self.steps += steps;
        self.steps_max = self.steps_max.max(PROPOSALS_MIN * steps);
        if self.best.as_ref().is_none_or(|(best, _)| score.worth() > best.worth()) {
            self.best = Some((score, chosen));
        }
    }

    /// Exchanges nodes across the bottleneck as long as that helps.
    fn improve(&mut self) {
        while let Some(better) = self.improvement() {
            self.best = Some(better);
        }
    }

    fn improvement(&mut self) -> Option<(Score, Vec<u32>)> {
        let (best, mut nodes) = self.best.clone()?;
        let (bottleneck, ..) = best.bottleneck?;
        let below: Vec<bool> = nodes.iter().map(|n| self.index.is_under(*n, bottleneck)).collect();
        for rank in 0..nodes.len() {
            for other in rank + 1..nodes.len() {
                if below[rank] != below[other] {
                    nodes.swap(rank, other);
                    if let Some(score) = self.judge_exchange(&nodes, best)? {
                        return Some((score, nodes));
                    }
                    nodes.swap(rank, other);
                }
            }
            let before = nodes[rank];
            for at in 0..self.supply.ranked.len() {
                let spare = self.supply.ranked[at];
                if !nodes.contains(&spare) {
                    nodes[rank] = spare;
                    if let Some(score) = self.judge_exchange(&nodes, best)? {
                        return Some((score, nodes));
                    }
                    nodes[rank] = before;
                }
            }
        }
        None
    }

    /// `None` when the steps are used up, `Some(None)` if the exchange does not help.
    fn judge_exchange(&mut self, nodes: &[u32], best: Score) -> Option<Option<Score>> {
        if self.is_settled() {
            return None;
        }
        let (score, steps) = self.counts.judge(self.index, self.supply, self.flows, nodes);
        self.steps += steps;
        Some((score.relief() > best.relief()).then_some(score))
    }
}
