//! All that the ranks of one job ask for, as one extension of its reservation (pure).
//!
//! An attribute is asked for by every rank that sets it, and counts once: ranks know a communicator
//! by its members and its index. What is asked is tried one communicator after the other; the
//! outcome is the same for all its ranks. What is refused leaves what held before. What no rank asks
//! for any more is given back.

use crate::overhead;
use crate::wire::{
    Answer, Ask, AskState, Communicator, PAIRS_MAX, Pace, RankAnswer, RankState, Terms, check_pairs,
};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::extension::{Extension, ExtensionFlow};
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::Grant;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::Ipv4Addr;

/// Named for low-latency flows that state no rate: they share the node's control class, so the number
/// only has to be positive.
const LOW_LATENCY_RATE: BitsPerSecond = BitsPerSecond::from_mbit(1);

/// What one job's ranks ask for.
#[derive(Debug, Clone, Default)]
pub struct Desk {
    ranks: BTreeMap<u32, Seated>,
    heard: BTreeSet<Name>,
    entries: BTreeMap<Key, Entry>,
}

/// A reservation as it is now.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// What it holds.
    pub grant: &'a Grant,
    /// The address of each of its nodes.
    pub addresses: &'a [Ipv4Addr],
    /// Nodes may still come back and tell what ranks have asked for before: until all have, nothing is
    /// given back, and nothing refused because one of them is away.
    pub is_early: bool,
    /// What is known of its program.
    pub profile: &'a dyn Profiled,
}

/// How long a job's program takes with how much, as it was measured.
pub trait Profiled: Debug + Sync {
    /// The least that meets a goal.
    ///
    /// # Errors
    /// Why nothing does, in the user's words.
    fn translate(&self, within: Nanos) -> Result<Translated, String>;
}

/// What meets a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translated {
    /// For each flow of the job's pattern, with what was reserved for it.
    pub bits_per_second: BitsPerSecond,
    /// The time that can be promised then.
    pub promised: Nanos,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Have the reservation extended so, and say what came of it by [`Desk::tried`].
    Extend(Option<Key>, Extension),
    /// Nothing until the next report.
    Rest,
}

/// A communicator without what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    members: Vec<u32>,
    index: u32,
}

/// A rank and where it runs.
#[derive(Debug, Clone)]
struct Seated {
    node: Name,
    state: RankState,
}

#[derive(Debug, Clone)]
struct Entry {
    wanted: Wanted,
    /// Nothing while it waits.
    outcome: Option<Result<(), String>>,
    /// What holds.
    held: Option<Wanted>,
}

/// An attribute as all its ranks together ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    communicator: Communicator,
    change: u32,
    terms: Terms,
    /// Which rank has sent to where; nothing = all pairs that talk count.
    seen: Option<BTreeSet<(u32, Ipv4Addr)>>,
    /// What its goal was translated to when it was tried: what a profile learns later changes nothing.
    goal: Option<Translated>,
}

/// Rate and depth of flows between nodes, added up.
#[derive(Default)]
struct Sums(BTreeMap<(u32, u32, TrafficClass), (BitsPerSecond, Bytes)>);

/// Why there is no extension for what is asked.
enum Obstacle {
    /// Nobody said where this rank runs.
    Unplaced,
    /// It cannot be.
    Impossible(String),
}

impl Desk {
    /// All that ranks of the job on `node` ask for, in the place of what they asked before.
    pub fn report(&mut self, node: &Name, states: Vec<RankState>) {
        self.heard.insert(node.clone());
        self.ranks.retain(|_, seated| seated.node != *node);
        for state in states {
            // Another program of the job counts its ranks from 0, too, and may ask for nothing.
            let is_quiet = |seated: &Seated| seated.state.asks.is_empty();
            if !state.asks.is_empty() || self.ranks.get(&state.number).is_none_or(is_quiet) {
                self.ranks.insert(state.number, Seated { node: node.clone(), state });
            }
        }
        self.gather();
    }

    /// The job runs on these nodes now: what ranks ask for elsewhere is asked no more.
    pub fn keep_to(&mut self, nodes: &[Name]) {
        let before = self.ranks.len();
        self.ranks.retain(|_, seated| nodes.contains(&seated.node));
        if self.ranks.len() < before {
            self.gather();
        }
    }

    /// What is to be done. An ask that cannot be is refused here.
    pub fn next(&mut self, situation: &Situation<'_>) -> Step {
        let is_heard = |node: &Name| self.heard.contains(node);
        if situation.is_early && !situation.grant.nodes.iter().all(is_heard) {
            return Step::Rest;
        }
        let waiting = |(_, entry): &(&Key, &Entry)| entry.outcome.is_none();
        let keys: Vec<_> =
            self.entries.iter().filter(waiting).map(|(key, _)| key.clone()).collect();
        for key in keys {
            match self.with(&key, situation) {
                Ok(extension) => return Step::Extend(Some(key), extension),
                Err(Obstacle::Impossible(why)) => self.tried(Some(&key), Err(why)),
                Err(Obstacle::Unplaced) => {}
            }
        }
        match self.extension(self.held().map(|(_, held)| held), situation) {
            Ok(extension) if extension != situation.grant.extension => {
                Step::Extend(None, extension)
            }
            _ => Step::Rest,
        }
    }

    /// What came of [`Step::Extend`].
    pub fn tried(&mut self, key: Option<&Key>, outcome: Result<(), String>) {
        let Some(entry) = key.and_then(|key| self.entries.get_mut(key)) else { return };
        if outcome.is_ok() {
            entry.held = Some(entry.wanted.clone());
        }
        entry.outcome = Some(outcome);
    }

    /// Whether nobody asks for anything.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// What ranks on `node` are answered, by rank.
    pub fn answers(&self, node: &Name, situation: &Situation<'_>) -> BTreeMap<u32, RankAnswer> {
        let of_node = self.ranks.iter().filter(|(_, seated)| seated.node == *node);
        let by_pattern = flows_by_pattern(situation.grant);
        let answer = |(rank, seated): (&u32, &Seated)| {
            let answers = seated.state.asks.iter().map(|ask| self.answer(ask)).collect();
            (*rank, RankAnswer { answers, pace: self.pace(*rank, situation, &by_pattern) })
        };
        of_node.map(answer).collect()
    }

    /// The same, if there is no reservation: nothing can be granted, and why.
    pub fn refused(&self, node: &Name, why: &str) -> BTreeMap<u32, RankAnswer> {
        let of_node = self.ranks.iter().filter(|(_, seated)| seated.node == *node);
        let refused = Answer::refused(why);
        let answer = |(rank, seated): (&u32, &Seated)| {
            (*rank, RankAnswer::all(seated.state.asks.len(), &refused))
        };
        of_node.map(answer).collect()
    }

    /// What all ranks ask for together. What was asked before the same keeps its outcome.
    fn gather(&mut self) {
        let mut wanted: BTreeMap<Key, Wanted> = BTreeMap::new();
        for (rank, seated) in &self.ranks {
            for ask in &seated.state.asks {
                let one = Wanted::of(*rank, ask);
                match wanted.get_mut(&Key::of(ask)) {
                    Some(other) => other.meet(one),
                    None => drop(wanted.insert(Key::of(ask), one)),
                }
            }
        }
        self.entries.retain(|key, _| wanted.contains_key(key));
        for (key, wanted) in wanted {
            match self.entries.get_mut(&key) {
                Some(entry) => entry.turn_to(wanted),
                None => drop(self.entries.insert(key, Entry { wanted, outcome: None, held: None })),
            }
        }
    }

    fn held(&self) -> impl Iterator<Item = (&Key, &Wanted)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.held.as_ref()?)))
    }

    /// What holds for all others, and what is wanted now for this one.
    fn with(&mut self, key: &Key, situation: &Situation<'_>) -> Result<Extension, Obstacle> {
        if let Some(Entry { wanted, .. }) = self.entries.get_mut(key) {
            wanted.goal = wanted.terms.goal(situation.profile)?;
        }
        let others = self.held().filter(|(other, _)| *other != key).map(|(_, held)| held);
        let wanted = self.entries.get(key).map(|entry| &entry.wanted);
        self.extension(others.chain(wanted), situation)
    }

    fn extension<'a>(
        &self,
        all: impl Iterator<Item = &'a Wanted>,
        situation: &Situation<'_>,
    ) -> Result<Extension, Obstacle> {
        let mut extension = Extension::default();
        let mut sums = Sums::default();
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
            for Pair { from, to, .. } in self.pairs(wanted, situation)? {
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

    /// The pairs of ranks that talk, where they are on two nodes.
    fn pairs(&self, wanted: &Wanted, situation: &Situation<'_>) -> Result<Vec<Pair>, Obstacle> {
        let mut pairs = Vec::new();
        for (rank, peer) in wanted.talkers().map_err(Obstacle::Impossible)? {
            let from = self.place(rank, situation).ok_or(Obstacle::Unplaced)?;
            let to = self.place(peer, situation).ok_or(Obstacle::Unplaced)?;
            let address = situation.addresses.get(to as usize);
            let counts = |seen: &BTreeSet<_>| address.is_some_and(|at| seen.contains(&(rank, *at)));
            if from != to && wanted.seen.as_ref().is_none_or(counts) {
                pairs.push(Pair { rank, from, to });
            }
        }
        Ok(pairs)
    }

    /// The position of a rank's node in the grant: as the rank told, or one on each in their order.
    fn place(&self, rank: u32, situation: &Situation<'_>) -> Option<u32> {
        let nodes = &situation.grant.nodes;
        let Some(seated) = self.ranks.get(&rank) else {
            let size = self.ranks.values().next()?.state.size;
            return (size as usize == nodes.len()).then_some(rank);
        };
        let at = nodes.iter().position(|node| *node == seated.node)?;
        u32::try_from(at).ok()
    }

    fn answer(&self, ask: &Ask) -> Answer {
        let entry = self.entries.get(&Key::of(ask));
        let decided = entry.and_then(|entry| Some((entry.outcome.as_ref()?, entry.wanted.goal)));
        match decided {
            None => Answer::waiting("it is being decided, or a rank has not said where it runs"),
            Some((Err(why), _)) => Answer::refused(why),
            Some((Ok(()), goal)) => {
                let by_goal = goal.map(|goal| (goal.bits_per_second, Bytes::default()));
                let reserved = ask.terms.reserved().ok().flatten().or(by_goal);
                let (wire_bits_per_second, burst_bytes) = reserved.unwrap_or_default();
                let promised_nanos = goal.map_or(Nanos::default(), |goal| goal.promised);
                let (state, reason) = (AskState::Granted, String::new());
                Answer { state, reason, wire_bits_per_second, burst_bytes, promised_nanos }
            }
        }
    }

    /// How fast a rank may hand out to each node. A node is not named if something to it is not to be
    /// paced. What was reserved by a pattern is added: the rank may use all of it.
    fn pace(
        &self,
        rank: u32,
        situation: &Situation<'_>,
        by_pattern: &BTreeSet<RankFlow>,
    ) -> Vec<Pace> {
        let goals = self.held().filter_map(|(_, held)| held.goal);
        let goals = goals.map(|goal| goal.bits_per_second);
        let of_pattern = goals.fold(situation.grant.bits_per_second, Ord::max);
        let reserved = overhead::stream_share(of_pattern);
        let mut rates: BTreeMap<(u32, u32), Option<BitsPerSecond>> = BTreeMap::new();
        for (_, held) in self.held().filter(|(_, held)| held.terms.is_premium()) {
            let pairs = self.pairs(held, situation).unwrap_or_default();
            for pair in pairs.into_iter().filter(|pair| pair.rank == rank) {
                let sum = rates.entry((pair.from, pair.to)).or_insert(Some(BitsPerSecond::ZERO));
                *sum = sum.zip(held.terms.pace()).and_then(|(sum, more)| sum.checked_add(more));
            }
        }
        let paced = rates.into_iter().filter_map(|((from, to), rate)| {
            let beside = if by_pattern.contains(&RankFlow { from, to }) {
                reserved
            } else {
                BitsPerSecond::ZERO
            };
            let bits_per_second = rate?.checked_add(beside)?;
            Some(Pace { address: *situation.addresses.get(to as usize)?, bits_per_second })
        });
        paced.collect()
    }
}

/// A rank that sends to another, and their nodes' positions in the grant.
struct Pair {
    rank: u32,
    from: u32,
    to: u32,
}

impl Key {
    fn of(ask: &Ask) -> Self {
        let Communicator { members, index, .. } = &ask.communicator;
        Self { members: members.clone(), index: *index }
    }
}

impl Entry {
    /// The same as before keeps its outcome.
    fn turn_to(&mut self, mut wanted: Wanted) {
        let before = &self.wanted;
        if before.change == wanted.change {
            // Ranks that leave take nothing away from those that stay.
            if let (Some(seen), Some(more)) = (&before.seen, &mut wanted.seen) {
                more.extend(seen.iter().copied());
            }
            let talk = &mut wanted.communicator.talk;
            *talk = together(talk, &before.communicator.talk);
        }
        wanted.goal = before.goal;
        if *before != wanted {
            self.wanted = wanted;
            self.outcome = None;
        }
    }
}

impl Wanted {
    fn of(rank: u32, ask: &Ask) -> Self {
        let Ask { communicator, change, terms, seen } = ask.clone();
        let by_rank = |seen: BTreeSet<_>| seen.into_iter().map(|to| (rank, to)).collect();
        Self { communicator, change, terms, seen: seen.map(by_rank), goal: None }
    }

    /// With what another rank asks: the latest value holds, and of two that differ the greater.
    fn meet(&mut self, other: Self) {
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

    /// Which rank talks to which.
    fn talkers(&self) -> Result<Vec<(u32, u32)>, String> {
        let Communicator { members, talk, .. } = &self.communicator;
        let flows = talk.flows(u32::try_from(members.len()).unwrap_or(u32::MAX));
        let flows = flows.map_err(|invalid| invalid.within("talk").to_string())?;
        // Each rank alone has named no more than it may.
        check_pairs(flows.len() as u64).map_err(|invalid| invalid.to_string())?;
        let ranks = |flow: RankFlow| (members[flow.from as usize], members[flow.to as usize]);
        Ok(flows.into_iter().map(ranks).collect())
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

impl Terms {
    fn is_premium(&self) -> bool {
        self.class == TrafficClass::Premium
    }

    /// What its goal comes to; nothing if it has none.
    fn goal(&self, profile: &dyn Profiled) -> Result<Option<Translated>, Obstacle> {
        let within = Some(self.within_nanos).filter(|within| *within > Nanos::default());
        let goal = within.map(|within| profile.translate(within)).transpose();
        goal.map_err(|why| Obstacle::Impossible(format!("within: {why}")))
    }

    /// Rate and depth of each pair on the wire; nothing for best-effort.
    fn reserved(&self) -> Result<Option<(BitsPerSecond, Bytes)>, Obstacle> {
        if self.class == TrafficClass::BestEffort {
            return Ok(None);
        }
        let rate = overhead::wire_rate(self.bits_per_second, self.message_bytes_max);
        let rate = rate.ok_or_else(|| {
            let asked = self.bits_per_second;
            Obstacle::Impossible(format!("bits_per_second: {asked} is more than any link has"))
        })?;
        if !self.is_premium() && rate == BitsPerSecond::ZERO {
            return Ok(Some((LOW_LATENCY_RATE, Bytes::default())));
        }
        Ok(Some((rate, overhead::depth(rate, self.message_bytes_max, self.paced))))
    }

    /// Nothing if it is not to be paced.
    fn pace(&self) -> Option<BitsPerSecond> {
        let pace = overhead::pace(self.bits_per_second, self.message_bytes_max);
        pace.filter(|_| self.paced)
    }
}

/// Which nodes send to which by the pattern of a reservation.
fn flows_by_pattern(grant: &Grant) -> BTreeSet<RankFlow> {
    let ranks = u32::try_from(grant.nodes.len()).unwrap_or(u32::MAX);
    let flows = grant.pattern.as_ref().and_then(|pattern| pattern.flows(ranks).ok());
    flows.unwrap_or_default().into_iter().collect()
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
    use keeptime_model::units::CpuPpm;
    use proptest::prelude::*;

    const MBIT: u64 = 1_000_000;

    fn node(number: u32) -> Name {
        format!("n{number}").parse().unwrap()
    }

    fn grant(nodes: u32) -> Grant {
        serde_json::from_value(serde_json::json!({
            "nodes": (1..=nodes).map(|n| format!("n{n}")).collect::<Vec<_>>(),
            "cpu_ppm": 100_000, "bits_per_second": 0,
        }))
        .unwrap()
    }

    fn terms(mbit: u64) -> Terms {
        Terms {
            class: TrafficClass::Premium,
            bits_per_second: BitsPerSecond::from_mbit(mbit),
            message_bytes_max: Bytes::new(1 << 20),
            cpu_ppm: CpuPpm::default(),
            disk_read_bytes_per_second: Default::default(),
            disk_write_bytes_per_second: Default::default(),
            within_nanos: Nanos::default(),
            paced: true,
        }
    }

    fn ask(members: &[u32], index: u32, change: u32, mbit: u64) -> Ask {
        let members = members.to_vec();
        let communicator = Communicator { members, index, talk: Pattern::AllToAll };
        Ask { communicator, change, terms: terms(mbit), seen: None }
    }

    fn rank(number: u32, size: u32, asks: Vec<Ask>) -> RankState {
        RankState { number, size, asks }
    }

    /// A program that sends 10 Mbit and does nothing else, as fast as 100 Mbit/s.
    #[derive(Debug)]
    struct Sender;

    impl Profiled for Sender {
        fn translate(&self, promised: Nanos) -> Result<Translated, String> {
            let rate = 10 * MBIT * 1_000_000_000 / promised.get();
            let bits_per_second = BitsPerSecond::new(rate);
            let is_possible = rate <= 100 * MBIT;
            let too_fast = || format!("{promised} cannot be promised");
            is_possible.then_some(Translated { bits_per_second, promised }).ok_or_else(too_fast)
        }
    }

    /// A reservation whose links hold so many bit/s in all.
    struct World {
        desk: Desk,
        grant: Grant,
        room: u64,
        changes: u32,
    }

    impl World {
        fn new(nodes: u32, room_mbit: u64) -> Self {
            let room = room_mbit * MBIT;
            Self { desk: Desk::default(), grant: grant(nodes), room, changes: 0 }
        }

        fn addresses(&self) -> Vec<Ipv4Addr> {
            (1..=self.grant.nodes.len() as u8).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect()
        }

        fn settle(&mut self) {
            let addresses = self.addresses();
            for _ in 0..100 {
                let situation = situation(&self.grant, &addresses, false);
                let Step::Extend(key, extension) = self.desk.next(&situation) else { return };
                let sum: u64 = extension.flows.iter().map(|f| f.bits_per_second.get()).sum();
                let outcome = if sum <= self.room { Ok(()) } else { Err("no room".to_string()) };
                if outcome.is_ok() && self.grant.extension != extension {
                    self.grant.extension = extension;
                    self.changes += 1;
                }
                self.desk.tried(key.as_ref(), outcome);
            }
            panic!("it never rests");
        }

        fn answers(&self, number: u32) -> BTreeMap<u32, RankAnswer> {
            let addresses = self.addresses();
            let situation = situation(&self.grant, &addresses, false);
            self.desk.answers(&node(number), &situation)
        }

        fn state(&self, node: u32, rank: u32) -> AskState {
            self.answers(node)[&rank].answers[0].state
        }
    }

    fn situation<'a>(grant: &'a Grant, addresses: &'a [Ipv4Addr], is_early: bool) -> Situation<'a> {
        Situation { grant, addresses, is_early, profile: &Sender }
    }

    #[test]
    fn all_ranks_ask_and_one_change_answers_them() {
        let mut world = World::new(4, 1_000);
        for number in 0..4 {
            let asks = vec![ask(&[0, 1, 2, 3], 0, 1, 40)];
            world.desk.report(&node(number + 1), vec![rank(number, 4, asks)]);
            world.settle();
        }
        assert_eq!(world.changes, 1);
        assert_eq!(world.grant.extension.flows.len(), 12);
        let answer = &world.answers(3)[&2];
        assert_eq!(answer.answers[0].state, AskState::Granted);
        assert_eq!(
            answer.answers[0].wire_bits_per_second,
            world.grant.extension.flows[0].bits_per_second
        );
        assert_eq!(answer.pace.len(), 3);
        assert!(answer.pace[0].bits_per_second < answer.answers[0].wire_bits_per_second);
        // They leave one after the other; the last gives all back.
        for number in 1..=4 {
            assert!(!world.grant.extension.is_empty());
            world.desk.report(&node(number), vec![]);
            world.settle();
        }
        assert!(world.grant.extension.is_empty() && world.desk.is_idle());
        assert_eq!(world.changes, 2);
    }

    #[test]
    fn what_is_refused_leaves_what_held_and_a_new_value_is_tried_again() {
        let mut world = World::new(2, 100);
        let report = |world: &mut World, change, mbit| {
            world.desk.report(&node(1), vec![rank(0, 2, vec![ask(&[0, 1], 0, change, mbit)])]);
            world.settle();
            world.answers(1)[&0].answers[0].clone()
        };
        assert_eq!(report(&mut world, 1, 40).state, AskState::Granted);
        let held = world.grant.extension.clone();
        let refused = report(&mut world, 2, 400);
        assert_eq!((refused.state, refused.reason.as_str()), (AskState::Refused, "no room"));
        assert_eq!(world.grant.extension, held);
        assert_eq!(report(&mut world, 3, 20).state, AskState::Granted);
        assert!(world.grant.extension.flows[0].bits_per_second < held.flows[0].bits_per_second);
    }

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

    /// A best-effort communicator with a goal.
    fn goal(index: u32, change: u32, millis: u64) -> Ask {
        let mut goal = ask(&[0, 1], index, change, 0);
        goal.terms.class = TrafficClass::BestEffort;
        goal.terms.within_nanos = Nanos::from_millis(millis);
        goal
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

    #[test]
    fn a_goal_that_no_rate_meets_or_that_does_not_fit_is_refused_and_the_one_before_holds() {
        let mut world = World::new(2, 100);
        world.grant.pattern = Some(Pattern::Pairs);
        for (change, millis, why) in [(1, 500, ""), (2, 99, "within: 99 ms"), (3, 100, "no room")] {
            world.desk.report(&node(1), vec![rank(0, 2, vec![goal(0, change, millis)])]);
            world.settle();
            let answer = &world.answers(1)[&0].answers[0];
            let is_refused = answer.state == AskState::Refused;
            assert!(is_refused != why.is_empty() && answer.reason.contains(why), "{answer:?}");
            assert_eq!(world.grant.extension.flows[0].bits_per_second.get(), 20 * MBIT);
        }
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

    // Another program of the job counts its ranks from 0, too: it takes nobody's place who asks for something, and
    // leaves it to who does.
    #[test]
    fn who_asks_for_nothing_takes_nobodys_place() {
        let mut world = World::new(3, 1_000);
        for number in 0..2 {
            let asks = vec![ask(&[0, 1], 0, 1, 40)];
            world.desk.report(&node(number + 1), vec![rank(number, 2, asks)]);
        }
        world.settle();
        let before = world.grant.extension.clone();
        world.desk.report(&node(3), vec![rank(0, 1, vec![])]);
        world.settle();
        assert_eq!(world.grant.extension, before);
        assert_eq!(world.state(1, 0), AskState::Granted);
        // The quiet one first.
        let mut world = World::new(3, 1_000);
        world.desk.report(&node(3), vec![rank(0, 1, vec![])]);
        world.desk.report(&node(1), vec![rank(0, 2, vec![ask(&[0, 1], 0, 1, 40)])]);
        world.desk.report(&node(2), vec![rank(1, 2, vec![])]);
        world.settle();
        assert_eq!(world.grant.extension, before);
    }

    #[test]
    fn ranks_that_were_left_behind_ask_for_nothing() {
        let mut world = World::new(3, 1_000);
        for number in 0..2 {
            let asks = vec![ask(&[0, 1], 0, 1, 40)];
            world.desk.report(&node(number + 1), vec![rank(number, 2, asks)]);
        }
        world.settle();
        assert_eq!(world.grant.extension.flows.len(), 2);
        world.grant.nodes.remove(0);
        let moved = world.grant.nodes.clone();
        world.desk.keep_to(&moved);
        world.desk.report(&node(2), vec![]);
        assert!(world.desk.is_idle());
    }

    #[test]
    fn early_nothing_is_given_back() {
        let mut world = World::new(2, 1_000);
        world.desk.report(&node(1), vec![rank(0, 2, vec![ask(&[0, 1], 0, 1, 10)])]);
        world.settle();
        let addresses = world.addresses();
        // A broker that begins anew hears of another communicator first.
        let mut desk = Desk::default();
        desk.report(&node(2), vec![rank(1, 2, vec![])]);
        let early = situation(&world.grant, &addresses, true);
        assert_eq!(desk.next(&early), Step::Rest);
        desk.report(&node(1), vec![rank(0, 2, vec![ask(&[0, 1], 0, 1, 10)])]);
        let Step::Extend(Some(key), extension) = desk.next(&early) else { panic!() };
        assert_eq!(extension, world.grant.extension);
        desk.tried(Some(&key), Ok(()));
        assert_eq!(desk.next(&early), Step::Rest);
    }

    type Reports = Vec<(u32, Vec<(bool, u32, u64)>)>;

    fn any_reports() -> impl Strategy<Value = Reports> {
        let one = (any::<bool>(), 0u32..3, 0u64..90);
        prop::collection::vec((1u32..4, prop::collection::vec(one, 0..3)), 1..12)
    }

    proptest! {
        // Whatever ranks report in whatever order: what holds is exactly what is held for those that
        // are granted, it never exceeds the room, everybody is answered, and nothing is left when
        // all are gone.
        #[test]
        fn what_holds_is_what_was_granted(reports in any_reports()) {
            let mut world = World::new(3, 200);
            for (number, asks) in reports {
                let asks = asks.iter().enumerate().map(|(index, (whole, change, mbit))| {
                    let members = if *whole { vec![0, 1, 2] } else { vec![number - 1] };
                    ask(&members, index as u32, *change, mbit + 1)
                });
                world.desk.report(&node(number), vec![rank(number - 1, 3, asks.collect())]);
                world.settle();
                let answers = world.answers(number);
                for answer in &answers[&(number - 1)].answers {
                    prop_assert!(answer.state != AskState::Waiting);
                    prop_assert_eq!(answer.state == AskState::Refused, !answer.reason.is_empty());
                }
                let held: u64 = world.desk.held().map(|(_, held)| {
                    let (rate, _) = held.terms.reserved().ok().flatten().unwrap();
                    let members = held.communicator.members.len() as u64;
                    rate.get() * members * (members - 1)
                }).sum();
                let flows = world.grant.extension.flows.iter();
                let sum: u64 = flows.map(|flow| flow.bits_per_second.get()).sum();
                prop_assert!(sum == held && sum <= world.room, "{} of {}", sum, held);
            }
            (1..4).for_each(|number| world.desk.report(&node(number), vec![]));
            world.settle();
            prop_assert!(world.grant.extension.is_empty());
        }
    }
}
