//! An attribute as all ranks that set it ask for it together (pure).

use super::Translated;
use crate::wire::{Ask, Communicator, PAIRS_MAX, Terms, check_pairs};
use keeptime_model::pattern::{Pattern, RankFlow};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// An attribute as all its ranks together ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) communicator: Communicator,
    pub(super) change: u32,
    pub(super) terms: Terms,
    /// Which rank has sent to where; nothing = all pairs that talk count.
    pub(super) seen: Option<BTreeSet<(u32, Ipv4Addr)>>,
    /// What its goal was translated to when it was tried: what a profile learns later changes nothing.
    pub(super) goal: Option<Translated>,
}

impl Wanted {
    pub(super) fn of(rank: u32, ask: &Ask) -> Self {
        let Ask { communicator, change, terms, seen } = ask.clone();
        let by_rank = |seen: BTreeSet<_>| seen.into_iter().map(|to| (rank, to)).collect();
        Self { communicator, change, terms, seen: seen.map(by_rank), goal: None }
    }

    /// With what another rank asks: the latest value holds, and of two that differ the greater.
    pub(super) fn meet(&mut self, other: Self) {
        if other.change > self.change {
            *self = other;
        } else if other.change == self.change {
            let talk = &mut self.communicator.talk;
            *talk = together(talk, &other.communicator.talk);
            self.terms = self.terms.clone().max(other.terms);
            self.seen = match (self.seen.take(), other.seen) {
                (Some(one), Some(more)) => Some(one.into_iter().chain(more).collect()),
                _ => None,
            };
        }
    }

    /// With what holds on of the value before it.
    pub(super) fn keep_of(&mut self, before: &Self) {
        if before.change == self.change {
            // Ranks that leave take nothing away from those that stay.
            if let (Some(seen), Some(more)) = (&before.seen, &mut self.seen) {
                more.extend(seen.iter().copied());
            }
            let talk = &mut self.communicator.talk;
            *talk = together(talk, &before.communicator.talk);
        }
        self.goal = before.goal;
    }

    /// Which rank talks to which.
    pub(super) fn talkers(&self) -> Result<Vec<(u32, u32)>, String> {
        let Communicator { members, talk, .. } = &self.communicator;
        let flows = talk.flows(u32::try_from(members.len()).unwrap_or(u32::MAX));
        let flows = flows.map_err(|invalid| invalid.within("talk").to_string())?;
        // Each rank alone has named no more than it may.
        check_pairs(flows.len() as u64).map_err(|invalid| invalid.to_string())?;
        let ranks = |flow: RankFlow| (members[flow.from as usize], members[flow.to as usize]);
        Ok(flows.into_iter().map(ranks).collect())
    }
}

/// Pairs of a distributed graph: each rank knows its own. Those that are too many already are refused as they are, and
/// get no more.
fn together(one: &Pattern, other: &Pattern) -> Pattern {
    match (one, other) {
        (Pattern::Matrix(some), Pattern::Matrix(more)) => {
            let most = if some.len() < more.len() { more } else { some };
            let is_too_many = most.len() as u64 > PAIRS_MAX;
            Pattern::Matrix(if is_too_many { most.clone() } else { some | more })
        }
        _ => one.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::world::{World, ask, node, rank};

    #[test]
    fn only_pairs_that_were_seen_count_where_that_is_asked() {
        let mut world = World::new(3, 1_000);
        let mut seen = ask(&[0, 1, 2], 0, 1, 10);
        seen.seen = Some([Ipv4Addr::new(10, 0, 0, 3)].into());
        world.desk.report(&node(1), vec![rank(0, 3, vec![seen.clone()])]);
        world.settle();
        let ends: Vec<_> = world.grant.extension.flows.iter().map(|f| (f.from, f.to)).collect();
        assert_eq!(ends, [(0, 2)]);
        // The other side adds its own, and takes nothing away when it leaves.
        seen.seen = Some([Ipv4Addr::new(10, 0, 0, 1)].into());
        world.desk.report(&node(3), vec![rank(2, 3, vec![seen])]);
        world.settle();
        assert_eq!(world.grant.extension.flows.len(), 2);
        world.desk.report(&node(3), vec![]);
        world.settle();
        assert_eq!(world.grant.extension.flows.len(), 2);
    }

    #[test]
    fn of_a_distributed_graph_each_rank_adds_its_own_pairs() {
        let mut world = World::new(3, 1_000);
        for (number, talk) in [(0, "0>1"), (1, "0>1 1>2"), (2, "1>2")] {
            let mut one = ask(&[0, 1, 2], 0, 1, 10);
            one.communicator.talk = talk.parse().unwrap();
            world.desk.report(&node(number + 1), vec![rank(number, 3, vec![one])]);
            world.settle();
        }
        let ends: Vec<_> = world.grant.extension.flows.iter().map(|f| (f.from, f.to)).collect();
        assert_eq!(ends, [(0, 1), (1, 2)]);
    }

    // Three ranks that each name as many pairs as they may are refused together, and no more of them is kept than says so.
    #[test]
    fn of_a_distributed_graph_too_many_pairs_are_refused_and_not_kept() {
        const RANKS: u32 = 4_096;
        let mut world = World::new(3, 1_000);
        for number in 0..3 {
            let flows = (0..PAIRS_MAX as u32).map(|at| {
                let (from, to) = (16 * number + at / RANKS, at % RANKS);
                RankFlow { from, to: if from == to { 100 } else { to } }
            });
            let mut one = ask(&Vec::from_iter(0..RANKS), 0, 1, 10);
            one.communicator.talk = Pattern::Matrix(flows.collect());
            world.desk.report(&node(number + 1), vec![rank(number, RANKS, vec![one])]);
        }
        world.settle();
        let answer = world.answers(1)[&0].answers[0].clone();
        assert!(answer.reason.contains("pairs that talk"), "{answer:?}");
        let kept = world.desk.entries.values().map(|entry| &entry.wanted.communicator.talk);
        let count = |talk: &Pattern| talk.flows(RANKS).unwrap().len() as u64;
        assert!(kept.map(count).sum::<u64>() <= 2 * PAIRS_MAX);
    }
}
