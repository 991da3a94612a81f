//! How fast ranks may hand out, to each node (pure).

use super::extension::{Pair, flows_by_pattern};
use super::{Desk, Situation};
use crate::overhead;
use crate::wire::Pace;
use keeptime_model::pattern::RankFlow;
use keeptime_model::units::BitsPerSecond;
use std::collections::BTreeMap;

impl Desk {
    /// How fast each rank may hand out to each node. A node is not named if something to it is not to be
    /// paced. What was reserved by a pattern is added: the rank may use all of it.
    pub(super) fn paces(&self, situation: &Situation<'_>) -> BTreeMap<u32, Vec<Pace>> {
        let goals = self.held().filter_map(|(_, held)| held.goal);
        let goals = goals.map(|goal| goal.bits_per_second);
        let of_pattern = goals.fold(situation.grant.bits_per_second, Ord::max);
        let reserved = overhead::stream_share(of_pattern);
        let by_pattern = flows_by_pattern(situation.grant);
        let mut paces: BTreeMap<u32, Vec<Pace>> = BTreeMap::new();
        for (Pair { rank, from, to }, rate) in self.rates(situation) {
            let beside = if by_pattern.contains(&RankFlow { from, to }) {
                reserved
            } else {
                BitsPerSecond::ZERO
            };
            let rate = rate.and_then(|rate| rate.checked_add(beside));
            let address = situation.addresses.get(to as usize);
            let pace = rate.zip(address);
            let pace = pace.map(|(rate, to)| Pace { address: *to, bits_per_second: rate });
            paces.entry(rank).or_default().extend(pace);
        }
        paces
    }

    /// What each rank is to be paced to, to each node; nothing where something is not to be. Of all ranks at once, since
    /// for each alone all pairs that talk would be looked at again.
    fn rates(&self, situation: &Situation<'_>) -> BTreeMap<Pair, Option<BitsPerSecond>> {
        let positions = self.positions(situation.grant);
        let mut rates: BTreeMap<Pair, Option<BitsPerSecond>> = BTreeMap::new();
        for (_, held) in self.held().filter(|(_, held)| held.terms.is_premium()) {
            for pair in positions.pairs(held, situation).unwrap_or_default() {
                let sum = rates.entry(pair).or_insert(Some(BitsPerSecond::ZERO));
                *sum = sum.zip(held.terms.pace()).and_then(|(sum, more)| sum.checked_add(more));
            }
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::world::{MBIT, World, ask, goal, node, rank};
    use keeptime_model::pattern::Pattern;
    use keeptime_model::units::Bytes;

    #[test]
    fn what_is_not_to_be_paced_is_not_and_its_bucket_holds_a_message() {
        let mut world = World::new(2, 1_000);
        let mut bursty = ask(&[0, 1], 0, 1, 10);
        bursty.terms.paced = false;
        world.desk.report(&node(1), vec![rank(0, 2, vec![bursty, ask(&[0, 1], 1, 1, 10)])]);
        world.settle();
        assert!(world.answers(1)[&0].pace.is_empty());
        assert!(world.grant.extension.flows[0].burst_bytes.unwrap() > Bytes::new(1 << 20));
    }

    #[test]
    fn what_a_pattern_reserved_may_be_used_too() {
        let mut world = World::new(2, 1_000);
        world.grant.pattern = Some(Pattern::Pairs);
        world.grant.bits_per_second = BitsPerSecond::from_mbit(100);
        world.desk.report(&node(1), vec![rank(0, 2, vec![ask(&[0, 1], 0, 1, 10)])]);
        world.settle();
        let paced = world.answers(1)[&0].pace[0].bits_per_second.get();
        assert!((105 * MBIT..107 * MBIT).contains(&paced), "{paced}");
    }

    #[test]
    fn ranks_may_use_what_their_goal_reserves_beside_what_they_pace() {
        let mut world = World::new(2, 1_000);
        world.grant.pattern = Some(Pattern::Pairs);
        let asks = vec![ask(&[0, 1], 1, 1, 10), goal(0, 1, 100)];
        world.desk.report(&node(1), vec![rank(0, 2, asks)]);
        world.settle();
        let paced = world.answers(1)[&0].pace[0].bits_per_second.get();
        assert!((105 * MBIT..107 * MBIT).contains(&paced), "{paced}");
    }
}
