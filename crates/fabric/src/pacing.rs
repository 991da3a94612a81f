//! Whose turn it is, when flows have reserved rates (pure): section 2.1 of S. Senapathi's thesis, "QoS-aware Middleware to
//! Support Interactive and Resource-Adaptive Applications on Myrinet Clusters", by inter-dispatch times and next dispatch
//! times, at the host.
//!
//! A flow whose message is posted may be dispatched when its next dispatch time has come; of
//! several, the one with the least goes first, and the least is always at hand. After a dispatch
//! that time moves on by the time that the message takes at the flow's rate. The thesis has packets
//! of one length; here the inter-dispatch time follows from each message's. A long one has its turn as
//! a whole, which holds back those after it, and is carried piece by piece, each at a time of its own.
//!
//! The thesis' agent looks at every tick. A thread that sleeps is late, by some ten microseconds
//! and sometimes by milliseconds; a flow may make up for `slack` of that, or it would never reach
//! its rate.

use keeptime_model::units::{BitsPerSecond, Bytes, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// How a message goes when it is dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// At once.
    Whole,
    /// Piece by piece, from when its receiver takes it.
    InPieces,
}

/// Flows, their rates, and whose turn it is.
#[derive(Debug)]
pub struct Pacer<F> {
    flows: BTreeMap<F, Flow>,
    /// Flows with something to send, by their next dispatch times.
    posted: BTreeSet<(Nanos, F)>,
    slack: Nanos,
}

#[derive(Debug)]
struct Flow {
    rate: BitsPerSecond,
    next_dispatch: Nanos,
    /// Never later than that.
    next_piece: Nanos,
    posted: u32,
}

impl<F: Ord + Copy> Pacer<F> {
    /// No flows. One may be late by `slack` and still reach its rate.
    pub const fn new(slack: Nanos) -> Self {
        Self { flows: BTreeMap::new(), posted: BTreeSet::new(), slack }
    }

    /// Reserves `rate` for `flow`, in place of what it had: what it still waits for was dispatched,
    /// and takes the time of the new rate from `now` on.
    pub fn reserve(&mut self, flow: F, rate: BitsPerSecond, now: Nanos) {
        let start = Nanos::new(0);
        let new = Flow { rate, next_dispatch: start, next_piece: start, posted: 0 };
        let known = self.flows.entry(flow).or_insert(new);
        let old = mem::replace(&mut known.rate, rate);
        let moved = |time: Nanos| {
            let left = old.bytes_in_floor(time.saturating_sub(now));
            time.min(now).saturating_add(gap(left, rate))
        };
        known.next_piece = moved(known.next_piece);
        let next = moved(known.next_dispatch);
        self.dispatch_at(flow, next);
    }

    /// Its messages are not held back any more.
    pub fn release(&mut self, flow: F) {
        if let Some(old) = self.flows.remove(&flow) {
            self.posted.remove(&(old.next_dispatch, flow));
        }
    }

    /// All flows with a reservation.
    pub fn flows(&self) -> impl Iterator<Item = F> {
        self.flows.keys().copied()
    }

    /// `flow` has a message to send. Returns whether it has a reservation and has to wait its turn.
    pub fn post(&mut self, flow: F, now: Nanos) -> bool {
        let Some(known) = self.flows.get_mut(&flow) else { return false };
        if known.posted == 0 {
            known.next_dispatch = known.next_dispatch.max(now.saturating_sub(self.slack));
            self.posted.insert((known.next_dispatch, flow));
        }
        known.posted += 1;
        true
    }

    /// A message that was posted will not be sent.
    pub fn withdraw(&mut self, flow: F) {
        if let Some(known) = self.flows.get_mut(&flow) {
            known.posted = known.posted.saturating_sub(1);
            if known.posted == 0 {
                self.posted.remove(&(known.next_dispatch, flow));
            }
        }
    }

    /// Whether `flow` has a message to send that has to wait its turn.
    pub fn is_posted(&self, flow: F) -> bool {
        self.flows.get(&flow).is_some_and(|known| known.posted > 0)
    }

    /// The flow with the least next dispatch time, and that time.
    pub fn least(&self) -> Option<(F, Nanos)> {
        self.posted.first().map(|(time, flow)| (*flow, *time))
    }

    /// When `flow` may be dispatched at the earliest. None if it has no reservation.
    pub fn next_dispatch(&self, flow: F) -> Option<Nanos> {
        self.flows.get(&flow).map(|known| known.next_dispatch)
    }

    /// A message of `bytes` of `flow` is dispatched.
    pub fn dispatched(&mut self, flow: F, bytes: Bytes, carriage: Carriage) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        let next = known.next_dispatch.saturating_add(gap(bytes, known.rate));
        if carriage == Carriage::Whole {
            known.next_piece = next;
        }
        self.dispatch_at(flow, next);
        self.withdraw(flow);
    }

    /// When a piece of a message of `flow` that was dispatched may be sent at the earliest. None if it
    /// has no reservation.
    pub fn next_piece(&self, flow: F) -> Option<Nanos> {
        self.flows.get(&flow).map(|known| known.next_piece)
    }

    /// A piece of `bytes` of `flow` is sent.
    pub fn carried(&mut self, flow: F, bytes: Bytes, now: Nanos) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        let from = known.next_piece.max(now.saturating_sub(self.slack));
        known.next_piece = from.saturating_add(gap(bytes, known.rate));
        // What its receiver takes late holds back what comes after it.
        let next = known.next_dispatch.max(known.next_piece);
        self.dispatch_at(flow, next);
    }

    /// The next dispatch time of `flow` is `next`.
    fn dispatch_at(&mut self, flow: F, next: Nanos) {
        let Some(known) = self.flows.get_mut(&flow) else { return };
        let old = mem::replace(&mut known.next_dispatch, next);
        if self.posted.remove(&(old, flow)) {
            self.posted.insert((next, flow));
        }
    }
}

/// The inter-dispatch time of `bytes`.
fn gap(bytes: Bytes, rate: BitsPerSecond) -> Nanos {
    // A rate of nothing: never again.
    bytes.time_at_ceil(rate).unwrap_or(Nanos::new(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Table 2.1: two flows with inter-dispatch times of 2 and 3 that always have something to
    /// send, and one dispatch a tick.
    #[test]
    fn table_2_1_of_the_thesis() {
        // One byte of these rates takes 2 and 3 ticks of 4 ns.
        let rates = [('A', 1_000_000_000), ('B', 666_666_667)];
        let mut pacer = Pacer::new(Nanos::new(0));
        let tick = |time: u64| Nanos::new(time * 4);
        for (flow, rate) in rates {
            pacer.reserve(flow, BitsPerSecond::new(rate), tick(0));
            pacer.post(flow, tick(0));
        }
        let ticks = |pacer: &Pacer<char>, flow| pacer.next_dispatch(flow).unwrap().get() / 4;
        let mut table = Vec::new();
        for time in 0..6 {
            let times = (ticks(&pacer, 'A'), ticks(&pacer, 'B'));
            let serviced =
                pacer.least().filter(|(_, next)| *next <= tick(time)).map(|(flow, _)| flow);
            if let Some(flow) = serviced {
                pacer.dispatched(flow, Bytes::new(1), Carriage::Whole);
                pacer.post(flow, tick(time));
            }
            table.push((times, serviced));
        }
        let expected = [
            ((0, 0), Some('A')),
            ((2, 0), Some('B')),
            ((2, 3), Some('A')),
            ((4, 3), Some('B')),
            ((4, 6), Some('A')),
            ((6, 6), None),
        ];
        assert_eq!(table, expected);
    }

    /// 1 MB at 8 kbit/s is over after 1,000 s. Half of them are left when the rate becomes a thousand times
    /// as much, and then the hundredth part of that.
    #[test]
    fn what_is_waited_for_takes_the_time_of_the_new_rate() {
        let mut pacer = Pacer::new(Nanos::new(0));
        let (start, half) = (Nanos::new(0), Nanos::from_secs(500));
        pacer.reserve('A', BitsPerSecond::new(8_000), start);
        pacer.post('A', start);
        pacer.dispatched('A', Bytes::new(1_000_000), Carriage::Whole);
        pacer.post('A', start);
        assert_eq!(pacer.least(), Some(('A', Nanos::from_secs(1_000))));
        pacer.reserve('A', BitsPerSecond::from_mbit(8), half);
        assert_eq!(pacer.least(), Some(('A', Nanos::from_millis(500_500))));
        pacer.reserve('A', BitsPerSecond::new(80_000), half);
        assert_eq!(pacer.least(), Some(('A', Nanos::from_secs(550))));
        assert_eq!(pacer.next_piece('A'), Some(Nanos::from_secs(550)));
        // What is over is not waited for again.
        pacer.reserve('A', BitsPerSecond::new(8), Nanos::from_secs(600));
        assert_eq!(pacer.least(), Some(('A', Nanos::from_secs(550))));
    }

    /// Four pieces of one millisecond each, of a message that its receiver takes after ten: they follow
    /// each other at the rate, and the next message follows them.
    #[test]
    fn pieces_are_carried_at_the_rate_from_when_they_are_wanted() {
        let mut pacer = Pacer::new(Nanos::new(0));
        let millis = Nanos::from_millis;
        pacer.reserve('A', BitsPerSecond::from_mbit(8), millis(0));
        pacer.post('A', millis(0));
        pacer.dispatched('A', Bytes::new(4_000), Carriage::InPieces);
        assert_eq!(pacer.next_dispatch('A'), Some(millis(4)));
        let mut carry = || {
            let time = pacer.next_piece('A').unwrap().max(millis(10));
            pacer.carried('A', Bytes::new(1_000), time);
            time
        };
        assert_eq!([carry(), carry(), carry(), carry()], [10, 11, 12, 13].map(millis));
        assert_eq!(pacer.next_dispatch('A'), Some(millis(14)));
    }

    proptest! {
        /// Flows that always have something to send, looked at whenever somebody is late by less
        /// than the slack: each gets its rate, and at no time more than that and the slack.
        #[test]
        fn every_flow_gets_its_rate_and_no_more(
            rates in prop::collection::vec(1..1_000_u64, 1..6),
            lateness in prop::collection::vec(0..900_000_u64, 1..50),
            bytes in 64..65_536_u64,
        ) {
            let slack = Nanos::from_millis(1);
            let mut pacer = Pacer::new(slack);
            let start = 1_000_000_000_u64;
            for (flow, mbit) in rates.iter().enumerate() {
                pacer.reserve(flow, BitsPerSecond::from_mbit(*mbit), Nanos::new(start));
                pacer.post(flow, Nanos::new(start));
            }
            let mut sent = vec![0_u64; rates.len()];
            let (mut now, mut round) = (start, 0);
            let span = 50_000_000;
            while let Some((flow, next)) = pacer.least() {
                if next.get() > now {
                    now = next.get() + lateness[round % lateness.len()];
                    round += 1;
                }
                if now > start + span {
                    break;
                }
                pacer.dispatched(flow, Bytes::new(bytes), Carriage::Whole);
                pacer.post(flow, Nanos::new(now));
                sent[flow] += bytes;
            }
            for (flow, mbit) in rates.iter().enumerate() {
                let in_time = |nanos: u64| (u128::from(mbit * 1_000_000) * u128::from(nanos) / 8_000_000_000) as u64;
                prop_assert!(sent[flow] <= in_time(span + slack.get()) + bytes);
                prop_assert!(sent[flow] + 2 * bytes >= in_time(span - 1_000_000), "{} of {}", sent[flow], in_time(span));
            }
        }
    }
}
