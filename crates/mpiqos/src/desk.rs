//! All that the ranks of one job ask for, as one extension of its reservation (pure).
//!
//! An attribute is asked for by every rank that sets it, and counts once: ranks know a communicator
//! by its members and its index. What is asked is tried one communicator after the other; the
//! outcome is the same for all its ranks. What is refused leaves what held before. What no rank asks
//! for any more is given back.

mod extension;
mod pace;
mod terms;
mod wanted;
#[cfg(test)]
mod world;

use crate::wire::{Answer, Ask, AskState, Communicator, RankAnswer, RankState};
use keeptime_model::extension::Extension;
use keeptime_model::name::Name;
use keeptime_model::reservation::Grant;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::Ipv4Addr;
use terms::Obstacle;
use wanted::Wanted;

/// What one job's ranks ask for.
#[derive(Debug, Clone, Default)]
pub struct Desk {
    ranks: BTreeMap<u32, Seated>,
    /// Where ranks run, or did when they left: who leaves takes nothing away from those that stay.
    places: BTreeMap<u32, Name>,
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

impl Desk {
    /// All that ranks of the job on `node` ask for, in the place of what they asked before.
    pub fn report(&mut self, node: &Name, states: Vec<RankState>) {
        self.heard.insert(node.clone());
        self.ranks.retain(|_, seated| seated.node != *node);
        for state in states {
            // Another program of the job counts its ranks from 0, too, and may ask for nothing.
            let is_quiet = |seated: &Seated| seated.state.asks.is_empty();
            if !state.asks.is_empty() || self.ranks.get(&state.number).is_none_or(is_quiet) {
                self.places.insert(state.number, node.clone());
                self.ranks.insert(state.number, Seated { node: node.clone(), state });
            }
        }
        self.gather();
    }

    /// The job runs on these nodes now: what ranks ask for elsewhere is asked no more.
    pub fn keep_to(&mut self, nodes: &[Name]) {
        let before = self.ranks.len();
        self.places.retain(|_, node| nodes.contains(node));
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
        let mut paces = self.paces(situation);
        let answer = |(rank, seated): (&u32, &Seated)| {
            let answers = seated.state.asks.iter().map(|ask| self.answer(ask)).collect();
            (*rank, RankAnswer { answers, pace: paces.remove(rank).unwrap_or_default() })
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
        if self.entries.is_empty() {
            self.places.retain(|rank, _| self.ranks.contains_key(rank));
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

    /// The same for all ranks of a communicator: what holds, also where a rank has asked for something else before.
    fn answer(&self, ask: &Ask) -> Answer {
        let entry = self.entries.get(&Key::of(ask));
        let decided = entry.and_then(|entry| Some((entry.outcome.as_ref()?, &entry.wanted)));
        match decided {
            None => Answer::waiting("it is being decided, or a rank has not said where it runs"),
            Some((Err(why), _)) => Answer::refused(why),
            Some((Ok(()), Wanted { terms, goal, .. })) => {
                let by_goal = goal.map(|goal| (goal.bits_per_second, Bytes::default()));
                let reserved = terms.reserved().ok().flatten().or(by_goal);
                let (wire_bits_per_second, burst_bytes) = reserved.unwrap_or_default();
                let promised_nanos = goal.map_or(Nanos::default(), |goal| goal.promised);
                let (state, reason) = (AskState::Granted, String::new());
                Answer { state, reason, wire_bits_per_second, burst_bytes, promised_nanos }
            }
        }
    }
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
        wanted.keep_of(&self.wanted);
        if self.wanted != wanted {
            self.wanted = wanted;
            self.outcome = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::world::{MBIT, World, ask, goal, node, rank, situation};
    use super::*;
    use keeptime_model::pattern::Pattern;
    use proptest::prelude::*;

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

    // Who has set another value before, or a smaller one at the same time, is told of what holds.
    #[test]
    fn ranks_that_ask_differently_are_told_the_same() {
        let mut world = World::new(2, 1_000);
        for (change, mbit) in [(1, 20), (2, 5)] {
            let asks = vec![ask(&[0, 1], 0, 1, 10)];
            world.desk.report(&node(1), vec![rank(0, 2, asks)]);
            world.desk.report(&node(2), vec![rank(1, 2, vec![ask(&[0, 1], 0, change, mbit)])]);
            world.settle();
            let reserved = world.grant.extension.flows[0].bits_per_second;
            assert!((mbit * MBIT..2 * mbit * MBIT).contains(&reserved.get()), "{reserved}");
            for number in 0..2 {
                let answer = &world.answers(number + 1)[&number].answers[0];
                assert_eq!(answer.state, AskState::Granted);
                assert_eq!(answer.wire_bits_per_second, reserved, "{answer:?}");
            }
        }
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

    // Goal: a rank that ends earlier holds up nobody. Method: two ranks on each of two nodes, one of which leaves.
    #[test]
    fn who_leaves_holds_up_nobody_who_asks_later() {
        let mut world = World::new(2, 1_000);
        let all = || vec![ask(&[0, 1, 2, 3], 0, 1, 10)];
        world.desk.report(&node(1), vec![rank(0, 4, all()), rank(1, 4, all())]);
        world.desk.report(&node(2), vec![rank(2, 4, all()), rank(3, 4, all())]);
        world.settle();
        let (before, paced) = (world.grant.extension.clone(), world.answers(1)[&0].pace.clone());
        assert!(!paced.is_empty());
        world.desk.report(&node(2), vec![rank(2, 4, all())]);
        world.settle();
        assert_eq!(world.grant.extension, before);
        assert_eq!(world.answers(1)[&0].pace, paced);
        let more = [all(), vec![ask(&[0, 2], 0, 1, 10)]].concat();
        world.desk.report(&node(1), vec![rank(0, 4, more), rank(1, 4, all())]);
        world.settle();
        let states: Vec<_> = world.answers(1)[&0].answers.iter().map(|a| a.state).collect();
        assert_eq!(states, [AskState::Granted; 2]);
        let first = |extension: &Extension| extension.flows[0].bits_per_second;
        assert!(first(&world.grant.extension) > first(&before));
        // The next program of the job may run anywhere else.
        world.desk.report(&node(1), vec![]);
        world.desk.report(&node(2), vec![]);
        assert!(world.desk.is_idle() && world.desk.places.is_empty());
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
