//! What calls over ways have taken (pure).
//!
//! A call over a way is answered from its end, so what it takes is what a round trip takes there, as long as nothing
//! else is on the way. Ways in use are not judged by what they carry: a network that is full of what its own user sends
//! is not slow. How much each of them carries then is the business of the rails.

use super::routes::Way;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long what a call has taken is taken for true: networks seldom become others, and finding out costs calls.
pub const KEPT: Duration = Duration::from_secs(60);
/// How long a way that was asked and did not answer is not asked again: as long as one hop may take.
pub const SILENT_KEPT: Duration = Duration::from_secs(2);
/// It is twice as long each time that there is no answer then either, up to 16 s: a bridge that calls in vain has less
/// room for others meanwhile.
const SILENT_DOUBLED_MOST: u32 = 3;
/// Ways that are remembered: a few for each of some hundred nodes. Of more the one that was asked longest ago goes.
const KNOWN_MOST: usize = 1024;
/// From so much on, a network that both ends share is slow. A bridge takes a few threads' turns for a call: where
/// networks are quicker than that, none is worth the question.
const SLOW_LEAST: Duration = Duration::from_millis(2);
/// A way over bridges has to be so many times as quick as a network that both ends share: it makes others' nodes work,
/// and ends when these do.
const DETOUR_FACTOR: u32 = 4;

/// What is known of ways, by where they lead: to all contexts of a node alike.
#[derive(Debug, Default, Clone)]
pub struct Costs {
    known: BTreeMap<Vec<SocketAddr>, Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// When it was asked last.
    at: Instant,
    /// What a call took that was answered.
    took: Option<Duration>,
    answer: Answer,
    /// How often it was asked again and did not answer.
    silences: u32,
}

/// Whether a way has answered since it was asked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Came,
    /// Somebody asks it just now.
    Awaited,
    Missing,
}

/// What a way costs; the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// So much a call.
    Measured(Duration),
    /// Nobody has called lately.
    Unknown,
    /// It has not answered, or not yet.
    Silent,
}

impl Costs {
    /// What a way costs.
    pub fn cost(&self, way: &Way, now: Instant) -> Cost {
        match self.known.get(&place(way)).filter(|known| known.is_fresh(now)) {
            None => Cost::Unknown,
            Some(known) if known.answer != Answer::Came => Cost::Silent,
            Some(known) => known.took.map_or(Cost::Unknown, Cost::Measured),
        }
    }

    /// What the quickest of `ways` takes, however long ago that was found out. None if one was never called, or none
    /// has answered.
    pub fn quickest(&self, ways: &[Way]) -> Option<Duration> {
        let known: Option<Vec<_>> = ways.iter().map(|way| self.known.get(&place(way))).collect();
        let heard = known?.into_iter().filter(|known| known.answer == Answer::Came);
        heard.filter_map(|known| known.took).min()
    }

    /// A way was called, and was answered after so long, if it was. What differs little from what was known leaves it
    /// as it was, so that equal ways stay in their order.
    pub fn note(&mut self, way: &Way, took: Option<Duration>, now: Instant) {
        let answer = if took.is_some() { Answer::Came } else { Answer::Missing };
        self.put(way, took, answer, now);
    }

    fn put(&mut self, way: &Way, took: Option<Duration>, answer: Answer, now: Instant) {
        let place = place(way);
        let before = self.known.remove(&place);
        self.make_room();
        let took_now = match (before.and_then(|known| known.took), took) {
            (Some(before), Some(took)) if is_like(before, took) => Some(before),
            (before, took) => took.or(before),
        };
        let silences = match before {
            Some(before) if answer != Answer::Came => before.silences_by(now),
            _ => 0,
        };
        let is_still = |before: &Known| {
            [before.answer, answer] == [Answer::Missing; 2] && before.is_fresh(now)
        };
        // Whoever calls all the same does not prolong it.
        let at = before.filter(is_still).map_or(now, |before| before.at);
        self.known.insert(place, Known { at, took: took_now, answer, silences });
    }

    /// Nothing is known of a way any more.
    pub fn forget(&mut self, way: &Way) {
        self.known.remove(&place(way));
    }

    /// Which of `ways` are to be called to find out what they cost. Until they answer they are silent.
    pub fn ask(&mut self, ways: &[Way], now: Instant) -> Vec<Way> {
        let is_due = |way: &&Way| self.cost(way, now) == Cost::Unknown;
        let due: Vec<_> = ways.iter().filter(is_due).cloned().collect();
        due.iter().for_each(|way| self.put(way, None, Answer::Awaited, now));
        due
    }

    /// Until when at the latest one of `ways` may answer that somebody asks. None if nobody asks any.
    pub fn answer_by(&self, ways: &[Way], now: Instant) -> Option<Instant> {
        let known = ways.iter().filter_map(|way| self.known.get(&place(way)));
        let asked = known.filter(|known| known.answer == Answer::Awaited);
        asked.map(|known| known.at + SILENT_KEPT).filter(|until| *until > now).max()
    }

    /// Those of `ways` that are not known to be silent.
    pub fn audible(&self, mut ways: Vec<Way>, now: Instant) -> Vec<Way> {
        ways.retain(|way| self.cost(way, now) != Cost::Silent);
        ways
    }

    fn make_room(&mut self) {
        if self.known.len() < KNOWN_MOST {
            return;
        }
        let oldest = self.known.iter().min_by_key(|(_, known)| known.at);
        if let Some(place) = oldest.map(|(place, _)| place.clone()) {
            self.known.remove(&place);
        }
    }
}

impl Known {
    fn is_fresh(&self, now: Instant) -> bool {
        let kept = match self.answer {
            // Whoever asks notes it at last.
            Answer::Came | Answer::Awaited => KEPT,
            Answer::Missing => SILENT_KEPT * (1 << self.silences.min(SILENT_DOUBLED_MOST)),
        };
        now.saturating_duration_since(self.at) < kept
    }

    /// How often it has not answered when it is asked again now, or does not answer now.
    fn silences_by(&self, now: Instant) -> u32 {
        let is_again = self.answer == Answer::Missing && !self.is_fresh(now);
        self.silences.saturating_add(u32::from(is_again))
    }
}

/// Within what a call over bridges has to be answered to be worth it, where one over a network that both ends share
/// takes `direct`. None if nothing is.
pub fn detour_most(direct: Duration) -> Option<Duration> {
    (direct >= SLOW_LEAST).then(|| direct / DETOUR_FACTOR)
}

/// Whether two measurements of a way may be of the same: on a busy node one takes half as much again as another.
fn is_like(one: Duration, other: Duration) -> bool {
    one.max(other) * 2 <= one.min(other) * 3
}

/// Bridges, and the node at the end, whichever of its programs is called there.
fn place(way: &Way) -> Vec<SocketAddr> {
    let mut place = way.hops.clone();
    if let Some(end) = place.last_mut() {
        end.set_port(0);
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::routes::choose;
    use proptest::prelude::*;

    fn way(bridge: u8) -> Way {
        Way { hops: vec![([10, 1, 0, bridge], 7401).into(), ([10, 2, 0, 9], 5).into()] }
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn what_was_measured_goes_first_and_is_forgotten_by_and_by() {
        let (mut costs, start) = (Costs::default(), Instant::now());
        costs.note(&way(1), Some(micros(900)), start);
        costs.note(&way(2), Some(micros(300)), start);
        costs.note(&way(3), None, start);
        let ways = [3, 4, 1, 2].map(way).to_vec();
        let order =
            |costs: &Costs, now| choose(ways.clone(), &[], &[], false, |way| costs.cost(way, now));
        assert_eq!(order(&costs, start), [2, 1, 4, 3].map(way));
        // Which is tried again soon; the others count for longer.
        let later = start + SILENT_KEPT;
        assert_eq!(order(&costs, later), [2, 1, 3, 4].map(way));
        assert_eq!(order(&costs, start + KEPT), ways);
        costs.forget(&way(2));
        assert_eq!(order(&costs, later), [1, 3, 4, 2].map(way));
        // A clock that was read before by another thread is no matter.
        costs.note(&way(4), Some(micros(1)), later);
        assert_eq!(costs.cost(&way(4), start), Cost::Measured(micros(1)));
    }

    /// Whatever port its programs have.
    #[test]
    fn a_way_costs_the_same_to_all_programs_of_a_node() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        costs.note(&way(1), Some(micros(5)), now);
        let mut other = way(1);
        other.hops[1].set_port(6);
        assert_eq!(costs.cost(&other, now), Cost::Measured(micros(5)));
        other.hops[0].set_port(6);
        assert_eq!(costs.cost(&other, now), Cost::Unknown);
    }

    #[test]
    fn a_way_is_asked_once_at_a_time() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        let ways = [1, 2, 3].map(way).to_vec();
        costs.note(&way(1), Some(micros(5)), now);
        assert_eq!(costs.answer_by(&ways, now), None);
        assert_eq!(costs.ask(&ways, now), ways[1..]);
        assert!(costs.ask(&ways, now).is_empty());
        // Whoever comes second waits for what the first has asked.
        let late = now + SILENT_KEPT;
        assert_eq!(costs.answer_by(&ways, now), Some(late));
        assert_eq!(costs.answer_by(&ways[..1], now), None);
        assert_eq!(costs.answer_by(&ways, late), None);
        costs.note(&way(3), Some(micros(7)), now);
        assert_eq!(costs.audible(ways.clone(), now), [way(1), way(3)]);
        costs.note(&way(2), None, now);
        assert_eq!(costs.answer_by(&ways, now), None, "it was not answered");
        assert_eq!(costs.ask(&ways, late), [way(2)]);
        assert_eq!(costs.ask(&ways, late + KEPT), ways);
    }

    /// Nor all the while, as long as nobody answers.
    #[test]
    fn a_way_that_is_silent_is_asked_less_and_less_often() {
        let (mut costs, mut now) = (Costs::default(), Instant::now());
        let second = Duration::from_secs(1);
        let mut rests = Vec::new();
        for _ in 0..7 {
            assert_eq!(costs.ask(&[way(1)], now), [way(1)]);
            costs.note(&way(1), None, now + second / 2);
            // Whoever calls all the same, and hears nothing either, changes nothing.
            costs.note(&way(1), None, now + second);
            let rest = (1..100)
                .find(|rest| !costs.clone().ask(&[way(1)], now + second * *rest).is_empty());
            rests.push(rest.unwrap());
            now += second * rest.unwrap();
        }
        assert_eq!(rests, [3, 5, 9, 17, 17, 17, 17]);
        costs.note(&way(1), Some(micros(5)), now);
        costs.note(&way(1), None, now);
        assert_eq!(costs.ask(&[way(1)], now + SILENT_KEPT), [way(1)]);
    }

    /// A way that does not answer counts no more; what was found out before is still known when it does.
    #[test]
    fn networks_are_as_quick_as_the_quickest_that_answers() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        let ways = [1, 2].map(way);
        costs.note(&ways[0], Some(micros(8000)), now);
        assert_eq!(costs.quickest(&ways), None, "the second was not called");
        assert_eq!(costs.quickest(&[]), None);
        costs.note(&ways[1], Some(micros(3000)), now);
        assert_eq!(costs.quickest(&ways), Some(micros(3000)));
        costs.note(&ways[1], None, now);
        assert_eq!(costs.quickest(&ways), Some(micros(8000)));
        costs.note(&ways[1], Some(micros(3100)), now);
        assert_eq!(costs.quickest(&ways), Some(micros(3000)));
    }

    #[test]
    fn only_a_slow_network_is_worth_a_detour() {
        assert_eq!(detour_most(SLOW_LEAST - micros(1)), None);
        assert_eq!(detour_most(micros(10_000)), Some(micros(2500)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut costs, start) = (Costs::default(), Instant::now());
        let way = |at: usize| Way::straight(([10, 0, (at >> 8) as u8, at as u8], 1).into());
        for at in 0..KNOWN_MOST + 10 {
            costs.note(&way(at), Some(micros(1)), start + micros(at as u64));
            assert!(costs.known.len() <= KNOWN_MOST);
        }
        assert_eq!(costs.cost(&way(9), start), Cost::Unknown, "the oldest go");
        assert_eq!(costs.cost(&way(10), start), Cost::Measured(micros(1)));
    }

    proptest! {
        /// However often two ways are measured, as long as neither becomes another: once both are known their order
        /// stays. When one has become another, it changes once at most, and then it is right.
        #[test]
        fn ways_change_their_order_only_when_they_change(
            base in [100..10_000_u64, 100..10_000],
            changed in 100..10_000_u64,
            noise in prop::collection::vec([80..=120_u64, 80..=120], 1..30),
        ) {
            let (mut costs, now) = (Costs::default(), Instant::now());
            let mut measure = |base: [u64; 2], percent: [u64; 2]| {
                for (at, (base, percent)) in (0..).zip(base.into_iter().zip(percent)) {
                    costs.note(&way(at), Some(Duration::from_nanos(base * 10 * percent)), now);
                }
                costs.cost(&way(0), now).cmp(&costs.cost(&way(1), now))
            };
            let first = measure(base, noise[0]);
            for percent in &noise {
                prop_assert_eq!(measure(base, *percent), first);
            }
            // The first one becomes another.
            let orders: Vec<_> = noise.iter().map(|percent| measure([changed, base[1]], *percent)).collect();
            let all: Vec<_> = [first].into_iter().chain(orders.iter().copied()).collect();
            let changes = all.windows(2).filter(|pair| pair[0] != pair[1]).count();
            prop_assert!(changes <= 1, "{:?}", all);
            if changed * 3 < base[1] {
                prop_assert!(orders.iter().all(|order| order.is_lt()), "{:?}", orders);
            }
            if changed > base[1] * 3 {
                prop_assert!(orders.iter().all(|order| order.is_gt()), "{:?}", orders);
            }
        }
    }
}
