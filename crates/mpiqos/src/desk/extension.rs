//! What is asked, as rates and flows between the nodes of a reservation (pure).

use super::terms::Obstacle;
use super::wanted::Wanted;
use super::{Desk, Situation};
use crate::overhead;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::name::Name;
use keeptime_model::pattern::RankFlow;
use keeptime_model::reservation::Grant;
use keeptime_model::units::{BitsPerSecond, Bytes};
use std::collections::{BTreeMap, BTreeSet};

/// A rank that sends to another, and their nodes' positions in the grant.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) rank: u32,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Where ranks are, by their nodes' positions in the grant: found once for all pairs that are looked at, since of these
/// there may be tens of thousands.
pub(super) struct Positions {
    /// Of those that told; nothing where their node is not in the grant.
    told: BTreeMap<u32, Option<u32>>,
    /// The others: one on each node in their order.
    is_one_on_each: bool,
}

/// Rate and depth of flows between nodes, added up.
#[derive(Default)]
struct Sums(BTreeMap<(u32, u32, TrafficClass), (BitsPerSecond, Bytes)>);

impl Desk {
    /// What all of these come to together.
    pub(super) fn extension<'a>(
        &self,
        all: impl Iterator<Item = &'a Wanted>,
        situation: &Situation<'_>,
    ) -> Result<Extension, Obstacle> {
        let mut extension = Extension::default();
        let mut sums = Sums::default();
        let positions = self.positions(situation.grant);
        let of_pattern = situation.grant.bits_per_second;
        let mut goal = of_pattern;
        for wanted in all {
            let terms = &wanted.terms;
            goal = goal.max(wanted.goal.map_or(goal, |goal| goal.bits_per_second));
            extension.cpu_ppm = extension.cpu_ppm.max(terms.cpu_ppm);
            let disks = [
                (&mut extension.disk_read_bytes_per_second, terms.disk_read_bytes_per_second),
                (&mut extension.disk_write_bytes_per_second, terms.disk_write_bytes_per_second),
            ];
            disks.into_iter().for_each(|(most, rate)| *most = rate.max(*most));
            let Some((rate, depth)) = terms.reserved()? else { continue };
            for Pair { from, to, .. } in positions.pairs(wanted, situation)? {
                sums.add((from, to, terms.class), rate, depth)?;
            }
        }
        let missing = goal.checked_sub(of_pattern).unwrap_or_default();
        if missing > BitsPerSecond::ZERO {
            let depth = overhead::depth(missing, Bytes::default(), true);
            for RankFlow { from, to } in flows_by_pattern(situation.grant) {
                sums.add((from, to, TrafficClass::Premium), missing, depth)?;
            }
        }
        extension.flows = sums.flows();
        Ok(extension)
    }

    /// Where all ranks are.
    pub(super) fn positions(&self, grant: &Grant) -> Positions {
        let nodes: BTreeMap<&Name, u32> = grant.nodes.iter().zip(0..).collect();
        let at = |(rank, node): (&u32, &Name)| (*rank, nodes.get(node).copied());
        let size = self.ranks.values().next().map(|seated| seated.state.size as usize);
        let is_one_on_each = size == Some(grant.nodes.len());
        Positions { told: self.places.iter().map(at).collect(), is_one_on_each }
    }
}

impl Positions {
    /// The pairs of ranks that talk, where they are on two nodes.
    pub(super) fn pairs(
        &self,
        wanted: &Wanted,
        situation: &Situation<'_>,
    ) -> Result<Vec<Pair>, Obstacle> {
        let mut pairs = Vec::new();
        for (rank, peer) in wanted.talkers().map_err(Obstacle::Impossible)? {
            let from = self.of(rank).ok_or(Obstacle::Unplaced)?;
            let to = self.of(peer).ok_or(Obstacle::Unplaced)?;
            let address = situation.addresses.get(to as usize);
            let counts = |seen: &BTreeSet<_>| address.is_some_and(|at| seen.contains(&(rank, *at)));
            if from != to && wanted.seen.as_ref().is_none_or(counts) {
                pairs.push(Pair { rank, from, to });
            }
        }
        Ok(pairs)
    }

    fn of(&self, rank: u32) -> Option<u32> {
        match self.told.get(&rank) {
            Some(told) => *told,
            None => self.is_one_on_each.then_some(rank),
        }
    }
}

impl Sums {
    fn add(
        &mut self,
        flow: (u32, u32, TrafficClass),
        rate: BitsPerSecond,
        depth: Bytes,
    ) -> Result<(), Obstacle> {
        let sum = self.0.entry(flow).or_default();
        let too_much =
            || Obstacle::Impossible(format!("bits_per_second: {rate} for each pair is too much"));
        sum.0 = sum.0.checked_add(rate).ok_or_else(too_much)?;
        sum.1 = Bytes::new(sum.1.get().saturating_add(depth.get()));
        Ok(())
    }

    fn flows(self) -> Vec<ExtensionFlow> {
        let flow = |((from, to, class), (bits_per_second, burst))| {
            let burst_bytes = (class == TrafficClass::Premium).then_some(burst);
            ExtensionFlow { from, to, bits_per_second, burst_bytes, class }
        };
        self.0.into_iter().map(flow).collect()
    }
}

/// Which nodes send to which by the pattern of a reservation.
pub(super) fn flows_by_pattern(grant: &Grant) -> BTreeSet<RankFlow> {
    let ranks = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
    let flows = grant.pattern.as_ref().and_then(|pattern| pattern.flows(ranks).ok());
    flows.unwrap_or_default().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::world::{MBIT, World, ask, goal, node, rank};
    use crate::wire::{Ask, AskState};
    use keeptime_model::pattern::Pattern;
    use keeptime_model::units::Nanos;
    use std::net::Ipv4Addr;

    #[test]
    fn two_communicators_that_want_the_same_flow_have_the_sum() {
        let mut world = World::new(2, 1_000);
        let asks = vec![ask(&[0, 1], 0, 1, 10), ask(&[0, 1], 1, 1, 20)];
        world.desk.report(&node(1), vec![rank(0, 2, asks)]);
        world.settle();
        let one = overhead::wire_rate(BitsPerSecond::from_mbit(10), Bytes::new(1 << 20)).unwrap();
        let sum = world.grant.extension.flows[0].bits_per_second.get();
        assert!(sum.abs_diff(3 * one.get()) <= 2, "{sum}");
        let paced = world.answers(1)[&0].pace[0].bits_per_second;
        assert!((30 * MBIT..31 * MBIT).contains(&paced.get()), "{paced}");
    }

    #[test]
    fn ranks_on_one_node_need_no_network_and_those_on_others_share_a_flow() {
        let mut world = World::new(2, 1_000);
        let asks = || vec![ask(&[0, 1, 2, 3], 0, 1, 10)];
        world.desk.report(&node(1), vec![rank(0, 4, asks()), rank(1, 4, asks())]);
        world.settle();
        assert_eq!(world.state(1, 0), AskState::Waiting, "nobody knows where ranks 2 and 3 run");
        world.desk.report(&node(2), vec![rank(2, 4, vec![]), rank(3, 4, vec![])]);
        world.settle();
        let one = overhead::wire_rate(BitsPerSecond::from_mbit(10), Bytes::new(1 << 20)).unwrap();
        assert_eq!(world.grant.extension.flows.len(), 2);
        assert_eq!(world.grant.extension.flows[0].bits_per_second.get(), 4 * one.get());
        assert_eq!(world.state(1, 1), AskState::Granted);
    }

    // Goal: flows and paces are between the nodes where ranks run, in whatever order these are. Method: ranks that run on
    // the nodes of a grant from the last one on.
    #[test]
    fn ranks_are_where_they_say_whatever_their_order() {
        let mut world = World::new(3, 1_000);
        for number in 0..3 {
            let asks = if number < 2 { vec![ask(&[0, 1], 0, 1, 10)] } else { vec![] };
            world.desk.report(&node(3 - number), vec![rank(number, 3, asks)]);
        }
        world.settle();
        let flows = world.grant.extension.flows.iter();
        let ends: Vec<_> = flows.map(|flow| (flow.from, flow.to)).collect();
        assert_eq!(ends, [(1, 2), (2, 1)]);
        let paced = |number: u32| {
            let answer = world.answers(3 - number)[&number].clone();
            answer.pace.iter().map(|pace| pace.address).collect::<Vec<_>>()
        };
        let address = |number| Ipv4Addr::new(10, 0, 0, number);
        assert_eq!([paced(0), paced(1), paced(2)], [vec![address(2)], vec![address(3)], vec![]]);
    }

    #[test]
    fn low_latency_takes_nothing_and_best_effort_asks_for_nothing() {
        let mut world = World::new(2, 0);
        let mut quick = ask(&[0, 1], 0, 1, 0);
        quick.terms.class = TrafficClass::LowLatency;
        world.desk.report(&node(1), vec![rank(0, 2, vec![quick.clone()])]);
        world.room = u64::MAX;
        world.settle();
        assert_eq!(world.grant.extension.flows[0].class, TrafficClass::LowLatency);
        assert_eq!(world.grant.extension.premium().count(), 0);
        quick.terms.class = TrafficClass::BestEffort;
        quick.change = 2;
        world.desk.report(&node(1), vec![rank(0, 2, vec![quick])]);
        world.settle();
        assert!(world.grant.extension.is_empty());
        assert_eq!(world.state(1, 0), AskState::Granted);
    }

    #[test]
    fn a_goal_becomes_what_its_pattern_lacks_and_the_shortest_counts() {
        let mut world = World::new(2, 1_000);
        world.grant.pattern = Some(Pattern::Pairs);
        world.grant.bits_per_second = BitsPerSecond::from_mbit(10);
        let mut report = |asks: Vec<Ask>| {
            world.desk.report(&node(1), vec![rank(0, 2, asks)]);
            world.settle();
            let flows = world.grant.extension.flows.iter();
            let rates: Vec<_> = flows.map(|flow| flow.bits_per_second.get() / MBIT).collect();
            (rates, world.answers(1)[&0].answers.clone())
        };
        let (flows, answers) = report(vec![goal(0, 1, 500)]);
        assert_eq!((flows, answers[0].state), (vec![10, 10], AskState::Granted));
        assert_eq!(answers[0].wire_bits_per_second, BitsPerSecond::from_mbit(20));
        assert_eq!(answers[0].promised_nanos, Nanos::from_millis(500));
        assert_eq!(report(vec![goal(0, 1, 500), goal(1, 1, 250)]).0, [30, 30]);
        // What it needs is there already.
        let (flows, answers) = report(vec![goal(0, 2, 2_000)]);
        assert_eq!((flows, answers[0].state), (vec![], AskState::Granted));
        assert!(report(vec![]).0.is_empty());
    }
}
