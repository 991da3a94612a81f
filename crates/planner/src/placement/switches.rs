//! Nodes by the switch that they hang from.

use super::supply::Supply;
use crate::tree::PlacementIndex;
use std::cmp::Reverse;

/// Nodes by the switch that they hang from, the switches with the freest uplinks first.
pub(super) struct Switches {
    /// The nodes, switch after switch, the freest first in each.
    nodes: Vec<u32>,
    /// Where each switch's nodes start and end.
    parts: Vec<(usize, usize)>,
}

impl Switches {
    pub(super) fn new(index: &PlacementIndex, supply: &Supply, ranked: &[u32]) -> Self {
        let key = |(order, node): (usize, &u32)| {
            let switch = index.parent(*node);
            let uplink = supply.links[switch as usize].into_iter().min();
            (Reverse(uplink), index.position(switch), switch, order, *node)
        };
        let mut keyed: Vec<_> = ranked.iter().enumerate().map(key).collect();
        keyed.sort_unstable();
        let mut parts: Vec<(usize, usize)> = Vec::new();
        for (at, entry) in keyed.iter().enumerate() {
            match parts.last_mut().filter(|(start, _)| keyed[*start].2 == entry.2) {
                Some((_, end)) => *end = at + 1,
                None => parts.push((at, at + 1)),
            }
        }
        Self { nodes: keyed.into_iter().map(|(.., node)| node).collect(), parts }
    }

    /// How many switches there are.
    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    /// The least number of first switches that have `wanted` nodes together.
    pub(super) fn fewest(&self, wanted: usize) -> usize {
        self.parts.partition_point(|(start, _)| *start < wanted)
    }

    /// The first nodes: switch after switch.
    pub(super) fn filled(&self, wanted: usize) -> Vec<u32> {
        self.nodes[..wanted].to_vec()
    }

    /// Parts as equal as they can be on the first `used` switches.
    pub(super) fn even(&self, wanted: usize, used: usize) -> Vec<u32> {
        let mut parts = self.parts[..used].to_vec();
        parts.sort_by_key(|(start, end)| end - start);
        let mut chosen = Vec::with_capacity(wanted);
        for (place, (start, end)) in parts.iter().enumerate() {
            // The smallest first: what they cannot take is left to the greater ones.
            let share = (wanted - chosen.len()) / (used - place);
            chosen.extend_from_slice(&self.nodes[*start..(start + share).min(*end)]);
        }
        chosen
    }
}
