//! The flows of a pattern among a number of ranks.

use keeptime_model::Invalid;
use keeptime_model::pattern::{Pattern, RANKS_MAX, RankFlow};
use std::cmp::Reverse;

/// The flows among a number of ranks, prepared for counting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankFlows {
    ranks: u32,
    pub(super) shape: Shape,
    /// Flows out of a rank, if that is the number of flows into it too and equal for all ranks.
    pub(super) degree: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// Every rank with every other: counted by subtree, never listed.
    All,
    /// Both directions of each pair.
    Mutual(Vec<RankFlow>),
    /// Any flows.
    Directed(Vec<RankFlow>),
}

impl RankFlows {
    /// The flows of `pattern` among `ranks` ranks.
    ///
    /// # Errors
    /// If the pattern does not exist for that many ranks.
    pub fn new(pattern: &Pattern, ranks: u32) -> Result<Self, Invalid> {
        if *pattern == Pattern::AllToAll && (1..=RANKS_MAX).contains(&ranks) {
            return Ok(Self { ranks, shape: Shape::All, degree: Some(u64::from(ranks) - 1) });
        }
        if ranks == 0 {
            return Err(Invalid::new("nodes", ranks, "at least 1"));
        }
        let flows = pattern.flows(ranks)?;
        let back = |f: &RankFlow| RankFlow { from: f.to, to: f.from };
        // `flows` is sorted.
        let mutual = flows.iter().all(|f| flows.binary_search(&back(f)).is_ok());
        let degree = equal_degree(&flows, ranks);
        let shape = if mutual {
            Shape::Mutual(flows.into_iter().filter(|f| f.from < f.to).collect())
        } else {
            Shape::Directed(flows)
        };
        Ok(Self { ranks, shape, degree })
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The number of flows, each direction counted.
    pub fn count(&self) -> u64 {
        match &self.shape {
            Shape::All => u64::from(self.ranks) * (u64::from(self.ranks) - 1),
            Shape::Mutual(pairs) => 2 * pairs.len() as u64,
            Shape::Directed(flows) => flows.len() as u64,
        }
    }

    /// Each flow once, in no particular order.
    pub fn list(&self) -> Vec<RankFlow> {
        match &self.shape {
            Shape::All => (0..self.ranks)
                .flat_map(|from| (0..self.ranks).map(move |to| RankFlow { from, to }))
                .filter(|flow| flow.from != flow.to)
                .collect(),
            Shape::Mutual(pairs) => {
                pairs.iter().flat_map(|f| [*f, RankFlow { from: f.to, to: f.from }]).collect()
            }
            Shape::Directed(flows) => flows.clone(),
        }
    }

    /// The ranks with the most flows in one direction first; nothing where all are equal.
    pub(super) fn ranks_by_weight(&self) -> Option<Vec<u32>> {
        if self.degree.is_some() {
            return None;
        }
        let mut weight = vec![(0u32, 0u32); self.ranks as usize];
        for flow in self.list() {
            weight[flow.from as usize].0 += 1;
            weight[flow.to as usize].1 += 1;
        }
        let mut ranks: Vec<u32> = (0..self.ranks).collect();
        ranks.sort_by_key(|r| {
            let (out, into) = weight[*r as usize];
            Reverse(out.max(into))
        });
        Some(ranks)
    }
}

fn equal_degree(flows: &[RankFlow], ranks: u32) -> Option<u64> {
    let mut degrees = vec![(0u64, 0u64); ranks as usize];
    for flow in flows {
        degrees[flow.from as usize].0 += 1;
        degrees[flow.to as usize].1 += 1;
    }
    let (out, into) = *degrees.first()?;
    (out == into && degrees.iter().all(|d| *d == (out, into))).then_some(out)
}
