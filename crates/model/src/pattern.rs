//! Who talks to whom: the flows between the ranks of a parallel program.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Most ranks a pattern is asked for: 16 per node on the largest planned cluster would be 160,000,
/// but all-to-all flows grow with the square, and 4,096 ranks already make 16.8 million.
pub const RANKS_MAX: u32 = 4_096;

/// One direction of communication between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RankFlow {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
}

/// A communication pattern, in both directions wherever it is not an explicit matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pattern {
    /// log2 N partners: rank r with r xor 1, 2, 4, … (N a power of two).
    Hypercube,
    /// Every rank with every other.
    AllToAll,
    /// Rank r with r - 1 and r + 1, modulo N.
    Ring,
    /// Rank 2i with 2i + 1 (N even).
    Pairs,
    /// Exactly these flows; any N that covers the greatest rank named.
    Matrix(BTreeSet<RankFlow>),
}

impl Pattern {
    /// The flows among `ranks` ranks, each once, sorted. A single rank has none.
    ///
    /// # Errors
    /// If the pattern does not exist for that many ranks.
    pub fn flows(&self, ranks: u32) -> Result<Vec<RankFlow>, Invalid> {
        self.check(ranks)?;
        let both = |a: u32, b: u32| [RankFlow { from: a, to: b }, RankFlow { from: b, to: a }];
        let flows: BTreeSet<RankFlow> = match self {
            Self::Hypercube => (0..ranks)
                .flat_map(|from| {
                    (0..ranks.trailing_zeros())
                        .map(move |dimension| RankFlow { from, to: from ^ (1 << dimension) })
                })
                .collect(),
            Self::AllToAll => (0..ranks)
                .flat_map(|from| (0..ranks).map(move |to| RankFlow { from, to }))
                .filter(|flow| flow.from != flow.to)
                .collect(),
            Self::Ring if ranks < 2 => BTreeSet::new(),
            Self::Ring => (0..ranks).flat_map(|rank| both(rank, (rank + 1) % ranks)).collect(),
            Self::Pairs => (0..ranks / 2).flat_map(|pair| both(2 * pair, 2 * pair + 1)).collect(),
            Self::Matrix(flows) => flows.clone(),
        };
        Ok(flows.into_iter().collect())
    }

    /// The greatest number of ranks up to `most` that the pattern exists for.
    pub fn ranks_at_most(&self, most: u32) -> Option<u32> {
        let most = most.min(RANKS_MAX);
        let ranks = match self {
            Self::Hypercube => 1 << most.checked_ilog2()?,
            Self::Pairs if most > 1 => most - most % 2,
            Self::AllToAll | Self::Ring | Self::Pairs | Self::Matrix(_) => most,
        };
        self.check(ranks).ok().map(|()| ranks)
    }

    /// Checks that the pattern exists for so many ranks, without listing its flows: those of all-to-all on
    /// [`RANKS_MAX`] take a second and hundreds of megabytes.
    ///
    /// # Errors
    /// If it does not, with the numbers for which it does.
    pub fn check(&self, ranks: u32) -> Result<(), Invalid> {
        let (fits, expected) = match self {
            Self::Hypercube => (ranks.is_power_of_two(), "a power of two (hypercube)".to_string()),
            Self::Pairs => (
                ranks == 1 || (ranks > 0 && ranks.is_multiple_of(2)),
                "1 or an even number (pairs)".to_string(),
            ),
            Self::AllToAll | Self::Ring => (ranks > 0, "at least 1".to_string()),
            Self::Matrix(flows) => {
                let least = flows.iter().map(|f| f.from.max(f.to) + 1).max().unwrap_or(1);
                (ranks >= least, format!("at least {least}, the ranks that the matrix names"))
            }
        };
        if fits && ranks <= RANKS_MAX {
            return Ok(());
        }
        Err(Invalid::new("nodes", ranks, format!("{expected}, at most {RANKS_MAX}")))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hypercube => f.pad("hypercube"),
            Self::AllToAll => f.pad("all-to-all"),
            Self::Ring => f.pad("ring"),
            Self::Pairs => f.pad("pairs"),
            Self::Matrix(flows) => {
                let flows: Vec<_> = flows.iter().map(|f| format!("{}>{}", f.from, f.to)).collect();
                f.pad(&flows.join(" "))
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = Invalid;

    /// A pattern's name, or flows as `"0>1 1>0 0>2"`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "hypercube" => return Ok(Self::Hypercube),
            "all-to-all" => return Ok(Self::AllToAll),
            "ring" => return Ok(Self::Ring),
            "pairs" => return Ok(Self::Pairs),
            _ => {}
        }
        let flow = |item: &str| {
            let (from, to) = item.split_once('>')?;
            let flow = RankFlow { from: from.parse().ok()?, to: to.parse().ok()? };
            (flow.from != flow.to && flow.from.max(flow.to) < RANKS_MAX).then_some(flow)
        };
        let flows: Option<BTreeSet<_>> = text.split_whitespace().map(flow).collect();
        flows.filter(|flows| !flows.is_empty()).map(Self::Matrix).ok_or_else(|| {
            Invalid::new(
                "pattern",
                text,
                "hypercube, all-to-all, ring, pairs, or flows between different ranks as in \"0>1 1>0\"",
            )
        })
    }
}

impl Serialize for Pattern {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        crate::units::text::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hypercube_of_four_has_two_partners_each() {
        let flows = Pattern::Hypercube.flows(4).unwrap();
        assert_eq!(flows.len(), 8);
        assert!(flows.iter().all(|f| (f.from ^ f.to).is_power_of_two()));
        assert!(Pattern::Hypercube.flows(3).is_err());
        assert!(Pattern::Hypercube.flows(0).is_err());
        assert!(Pattern::Hypercube.flows(1).unwrap().is_empty());
        assert!(Pattern::Pairs.flows(0).is_err());
    }

    #[test]
    fn a_ring_of_two_has_each_direction_once() {
        assert_eq!(Pattern::Ring.flows(2).unwrap().len(), 2);
        assert!(Pattern::Ring.flows(1).unwrap().is_empty());
        assert_eq!(Pattern::Ring.flows(5).unwrap().len(), 10);
    }

    #[test]
    fn the_greatest_number_of_ranks_is_found() {
        let matrix = "0>1 4>2".parse().unwrap();
        for pattern in
            [Pattern::Hypercube, Pattern::AllToAll, Pattern::Ring, Pattern::Pairs, matrix]
        {
            for most in 0..70 {
                let tried = (0..=most).rev().find(|ranks| pattern.flows(*ranks).is_ok());
                assert_eq!(pattern.ranks_at_most(most), tried, "{pattern}, {most}");
                assert_eq!(pattern.check(most), pattern.flows(most).map(drop));
            }
        }
        assert_eq!(Pattern::Ring.ranks_at_most(u32::MAX), Some(RANKS_MAX));
    }

    proptest! {
        #[test]
        fn patterns_are_symmetric_and_name_no_rank_beyond_n(power in 0u32..8) {
            let n = 1 << power;
            for pattern in [Pattern::Hypercube, Pattern::AllToAll, Pattern::Ring, Pattern::Pairs] {
                let flows = pattern.flows(n).unwrap();
                let set: BTreeSet<_> = flows.iter().copied().collect();
                prop_assert_eq!(set.len(), flows.len());
                for flow in flows {
                    prop_assert!(flow.from != flow.to && flow.from.max(flow.to) < n);
                    let back = RankFlow { from: flow.to, to: flow.from };
                    prop_assert!(set.contains(&back));
                }
            }
        }

        #[test]
        fn text_reads_back(pairs in prop::collection::btree_set((0u32..99, 0u32..99), 1..20)) {
            let flows: BTreeSet<_> = pairs.into_iter().filter(|(a, b)| a != b)
                .map(|(from, to)| RankFlow { from, to }).collect();
            prop_assume!(!flows.is_empty());
            let pattern = Pattern::Matrix(flows);
            prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9> a-z-]{0,30}") {
            let _ = text.parse::<Pattern>();
        }
    }
}
