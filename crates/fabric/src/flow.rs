//! What may be on the way, and what becomes of it (pure).
//!
//! Every receiver lends each context that sends to it a window of bytes. A message is charged when
//! it is sent; when the receiver has taken half a window it gives that back. So a slow receiver
//! holds up its own senders and nobody else on the link, and keeps at most a window for each of
//! them. What was sent stays on record until the other end has seen it; when the link breaks, what
//! is left on record is told to its senders.

use crate::frame::{EAGER_MOST, HEAD, Malformed};
use crate::id::{Place, ResourceId};
use crate::matching::Tag;
use indexmap::IndexMap;
use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use thiserror::Error;

/// What a message of the longest that are sent without asking is charged.
const LONGEST: u64 = EAGER_MOST as u64 + CHARGE_LEAST as u64;
/// What each receiver lends each sending context of its node: so many of the longest messages that a stream does not
/// stop for a credit that is on its way. Less than a ring in shared memory holds: what one receiver does not take
/// leaves room for what others are sent.
pub const WINDOW: u64 = 6 * LONGEST;
/// The same where the kernel carries: a sender that sleeps is longer in waking than a receiver in taking
/// what [`WINDOW`] holds, and would find nothing left under way.
pub const WINDOW_CARRIED: u64 = 16 * LONGEST;
/// Bytes of longer messages that are fetched for each receiver before it wants them, after one that it wanted: what a
/// few networks hold on their way. Otherwise all of them would be empty between two messages.
pub const AHEAD_MOST: u64 = 4 << 20;
/// Bytes of given messages that wait for their receivers before their senders wait too, on each link, and within a context
/// for each receiver; one alone may be longer. They were there before: this bounds what their senders make anew meanwhile.
pub const PARKED_MOST: usize = 64 << 20;
/// What a receiver holds at most of messages whose connections are no more, before it takes nothing more by any: as
/// much as of sixteen contexts that are connected. Who connects anew has a new window each time.
pub const GONE_MOST: u64 = 16 * WINDOW_CARRIED;
/// So much is given back when it was taken: as part of a message that goes that way, or by itself.
const CREDIT_WITH_MESSAGE: u64 = WINDOW / 4;
const CREDIT_ALONE: u64 = WINDOW / 2;
/// What a message is charged beyond its payload: its head and its place in a queue.
pub const CHARGE_LEAST: u32 = HEAD as u32 + 16;

/// A message or an offer that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// By whom.
    pub from: Place,
    /// To whom.
    pub to: Place,
    /// With what tag.
    pub tag: Tag,
}

/// Not everything that was sent is with its receivers, when a context is flushed or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("messages that were sent and may not have arrived: {count}, the first of them for {first}")]
#[non_exhaustive]
pub struct Unsent {
    /// How many may not have arrived.
    pub count: usize,
    /// Whom the first of them is for.
    pub first: ResourceId,
}

/// What one end of a link has sent.
#[derive(Debug)]
pub struct Outbound {
    window: u64,
    on_the_way: Counts<Place>,
    unconfirmed: VecDeque<Sent>,
    confirmed: u32,
    /// How many messages and offers there were of which the other end has not said that they were not delivered.
    rejectable: u64,
}

/// What one receiver has taken and not yet given back, for each link.
#[derive(Debug, Default)]
pub struct Owed {
    by_link: Counts<u32>,
    /// Some link is owed so much that the next message by it should give that back.
    is_due: bool,
}

/// What is charged for what each link has brought to one receiver and nobody has taken.
#[derive(Debug, Default)]
pub struct Waiting(Counts<u32>);

/// A number for each key. That of the key that was asked for last is at hand: mostly it is asked for again.
#[derive(Debug, Default)]
struct Counts<K> {
    all: IndexMap<K, u64, BuildHasherDefault<PlaceHasher>>,
    last: usize,
}

/// What a message with `length` bytes of payload is charged.
pub fn charge(length: usize) -> u32 {
    // Within a context a message may be longer than anything that is counted in 32 bits.
    u32::try_from(length).unwrap_or(u32::MAX).saturating_add(CHARGE_LEAST)
}

impl Unsent {
    /// What was not sent before, if anything, and one more for `to`.
    pub fn with(before: Option<Self>, to: ResourceId) -> Self {
        let Self { count, first } = before.unwrap_or(Self { count: 0, first: to });
        Self { count: count + 1, first }
    }

    /// The same, and one more for each of `all`, if there is any.
    pub fn after(before: Option<Self>, all: Vec<ResourceId>) -> Option<Self> {
        all.into_iter().fold(before, |before, to| Some(Self::with(before, to)))
    }
}

impl Outbound {
    /// Nothing sent. Each receiver lends `window`.
    pub fn new(window: u64) -> Self {
        let (on_the_way, unconfirmed) = (Counts::new(), VecDeque::new());
        Self { window, on_the_way, unconfirmed, confirmed: 0, rejectable: 0 }
    }

    /// Takes `charge` of the window of `to`. Returns whether there was so much left.
    pub fn reserve(&mut self, to: Place, charge: u32) -> bool {
        let on_the_way = self.on_the_way.of(to);
        let all = *on_the_way + u64::from(charge);
        let fits = all <= self.window;
        if fits {
            *on_the_way = all;
        }
        fits
    }

    /// `sent`, for which there was a reservation, is on the way. Returns its number.
    pub fn sent(&mut self, sent: Sent) -> u32 {
        self.unconfirmed.push_back(sent);
        self.rejectable += 1;
        self.confirmed.wrapping_add(self.unconfirmed.len() as u32)
    }

    /// The receiver `place` gives `bytes` back, or what was reserved for it is not sent.
    ///
    /// # Errors
    /// If that is more than it was sent.
    pub fn credit(&mut self, place: Place, bytes: u64) -> Result<(), Malformed> {
        if bytes == 0 {
            return Ok(());
        }
        let on_the_way = self.on_the_way.get(&place).ok_or(Malformed::Unknown("credit"))?;
        *on_the_way = on_the_way.checked_sub(bytes).ok_or(Malformed::Unknown("credit"))?;
        // Forgotten when nothing is on the way, or dropped resources would be kept for ever.
        if *on_the_way == 0 {
            self.on_the_way.forget(&place);
        }
        Ok(())
    }

    /// One more message or offer was not delivered to `place`, which gives `bytes` back: its sender is told.
    ///
    /// # Errors
    /// If that is more than was sent, in number or in bytes: whoever says so as often as it likes would leave no room for
    /// what senders are to be told of others.
    pub fn rejected(&mut self, place: Place, bytes: u64) -> Result<(), Malformed> {
        let left = self.rejectable.checked_sub(1).ok_or(Malformed::Unknown("a message"))?;
        self.credit(place, bytes)?;
        self.rejectable = left;
        Ok(())
    }

    /// The other end has seen `seen` messages and offers since the link was made.
    ///
    /// # Errors
    /// If that is more than were sent.
    pub fn confirm(&mut self, seen: u32) -> Result<(), Malformed> {
        let more = seen.wrapping_sub(self.confirmed) as usize;
        if more > self.unconfirmed.len() {
            return Err(Malformed::Unknown("messages"));
        }
        // Mostly none or one.
        for _ in 0..more {
            self.unconfirmed.pop_front();
        }
        self.confirmed = seen;
        Ok(())
    }

    /// What the other end may not have seen, with its number.
    pub fn unconfirmed(&self) -> impl Iterator<Item = (u32, Sent)> {
        let first = self.confirmed.wrapping_add(1);
        let numbered = self.unconfirmed.iter().enumerate();
        numbered.map(move |(at, sent)| (first.wrapping_add(at as u32), *sent))
    }

    /// The link is broken: what the other end may not have seen, with its number.
    pub fn abandon(&mut self) -> impl Iterator<Item = (u32, Sent)> {
        let unconfirmed: Vec<_> = self.unconfirmed().collect();
        (self.on_the_way, self.unconfirmed) = (Counts::new(), VecDeque::new());
        unconfirmed.into_iter()
    }
}

impl<K: Hash + Eq> Counts<K> {
    const fn new() -> Self {
        Self { all: IndexMap::with_hasher(BuildHasherDefault::new()), last: 0 }
    }

    /// That of `key`, if it has one.
    #[inline]
    fn get(&mut self, key: &K) -> Option<&mut u64> {
        if self.all.get_index(self.last).is_none_or(|(last, _)| last != key) {
            self.last = self.all.get_index_of(key)?;
        }
        self.all.get_index_mut(self.last).map(|(_, number)| number)
    }

    /// That of `key`, and 0 if it had none.
    #[inline(always)]
    fn of(&mut self, key: K) -> &mut u64 {
        if self.all.get_index(self.last).is_none_or(|(last, _)| *last != key) {
            self.look_up(key);
        }
        &mut self.all[self.last]
    }

    /// Has it at hand.
    #[cold]
    fn look_up(&mut self, key: K) {
        let known = self.all.get_index_of(&key);
        self.last = known.unwrap_or_else(|| self.all.insert_full(key, 0).0);
    }

    /// It has none any more. Another may be where it was, or none: what is at hand is only used for its own key. Returns
    /// what it had.
    fn forget(&mut self, key: &K) -> Option<u64> {
        self.all.swap_remove(key)
    }
}

impl Waiting {
    /// Nothing.
    pub const fn new() -> Self {
        Self(Counts::new())
    }

    /// A message that is charged with `charge` has come by `link`.
    ///
    /// # Errors
    /// If more waits of it than any window holds.
    pub fn arrived(&mut self, link: u32, charge: u32) -> Result<(), Malformed> {
        let waiting = self.0.of(link);
        let all = *waiting + u64::from(charge);
        if all > WINDOW_CARRIED {
            return Err(Malformed::Unknown("credit"));
        }
        *waiting = all;
        Ok(())
    }

    /// It was taken.
    pub fn taken(&mut self, link: u32, charge: u32) {
        *self.0.of(link) -= u64::from(charge);
    }

    /// `link` is no more. Returns what waits of it.
    pub fn forget(&mut self, link: u32) -> u64 {
        self.0.forget(&link).unwrap_or(0)
    }
}

impl Owed {
    /// Nothing.
    pub const fn new() -> Self {
        Self { by_link: Counts::new(), is_due: false }
    }

    /// A message from `link` that was charged with `charge` was taken. Returns what to give back
    /// now.
    pub fn taken(&mut self, link: u32, charge: u32) -> Option<u64> {
        let owed = self.handed(link, charge);
        (*owed >= CREDIT_ALONE).then(|| std::mem::take(owed))
    }

    /// The same where nothing is given back now. Returns what is owed.
    pub fn handed(&mut self, link: u32, charge: u32) -> &mut u64 {
        let owed = self.by_link.of(link);
        *owed += u64::from(charge);
        self.is_due |= *owed >= CREDIT_WITH_MESSAGE;
        owed
    }

    /// Whether a message of this receiver's should ask what it can give back.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// What a message by `link` gives back: 0 if that is not worth it.
    pub fn with_message(&mut self, link: u32) -> u32 {
        let owed = self.by_link.get(&link).filter(|owed| **owed >= CREDIT_WITH_MESSAGE);
        let credit = owed.map_or(0, std::mem::take);
        self.is_due = self.by_link.all.values().any(|owed| *owed >= CREDIT_WITH_MESSAGE);
        credit as u32
    }

    /// The message was not sent: it is owed as before.
    pub fn put_back(&mut self, link: u32, credit: u32) {
        *self.by_link.of(link) += u64::from(credit);
        self.is_due = true;
    }

    /// The receiver goes: everything is given back.
    pub fn all(&mut self) -> impl Iterator<Item = (u32, u64)> {
        std::mem::take(&mut self.by_link.all).into_iter().filter(|(_, bytes)| *bytes > 0)
    }

    /// What is owed to each link.
    #[cfg(test)]
    pub fn to_each(&self) -> Vec<(u32, u64)> {
        self.by_link.all.iter().map(|(link, bytes)| (*link, *bytes)).collect()
    }

    /// `link` is no more.
    pub fn forget(&mut self, link: u32) {
        self.by_link.forget(&link);
    }
}

/// Multiplies: keys are small numbers that this program chose, or that a peer can only use against
/// its own link.
#[derive(Debug, Default)]
pub struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(32) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table takes its index from the low bits; the product is random in the high ones.
        self.0.rotate_left(20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn place(slot: u32) -> Place {
        Place { slot, generation: 0 }
    }

    #[test]
    fn the_longest_message_is_charged_most() {
        assert_eq!([charge(0), charge(1)], [CHARGE_LEAST, CHARGE_LEAST + 1]);
        let long = u32::MAX as usize;
        assert_eq!([charge(long - 1), charge(long + 1)], [u32::MAX; 2]);
    }

    proptest! {
        // Goal: what is at hand is never taken for another key, whatever came and went. Method: as a map without it.
        #[test]
        fn each_key_has_its_own_number(steps in prop::collection::vec((0..4_u32, 0..3_u8), 0..64)) {
            let (mut counts, mut model) = (Counts::<u32>::new(), BTreeMap::new());
            for (at, (key, action)) in steps.into_iter().enumerate() {
                match action {
                    0 => {
                        *counts.of(key) += at as u64;
                        *model.entry(key).or_insert(0) += at as u64;
                    }
                    1 => prop_assert_eq!(counts.get(&key), model.get_mut(&key)),
                    _ => {
                        counts.forget(&key);
                        model.remove(&key);
                    }
                }
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Send {
            to: u32,
            length: usize,
        },
        Arrive,
        Take {
            to: u32,
        },
        /// It sends a message itself, which arrives or has to wait.
        Answer {
            to: u32,
            arrives: bool,
        },
        Credits,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_u32, 0..=crate::frame::EAGER_MOST).prop_map(|(to, length)| Step::Send { to, length }),
            3 => Just(Step::Arrive),
            3 => (0..3_u32).prop_map(|to| Step::Take { to }),
            1 => (0..3_u32, any::<bool>()).prop_map(|(to, arrives)| Step::Answer { to, arrives }),
            2 => Just(Step::Credits),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        /// One link with three receivers, broken after any sequence of steps: a receiver never
        /// holds more than a window, credit is never lost, and every message has arrived or is
        /// told.
        #[test]
        fn memory_is_bounded_and_every_message_has_a_fate(
            steps in steps(),
            window in prop_oneof![Just(WINDOW), Just(WINDOW_CARRIED)],
        ) {
            let mut out = Outbound::new(window);
            let mut owed: [Owed; 3] = Default::default();
            let mut wire: VecDeque<(u64, u32, u32)> = VecDeque::new();
            let mut queues: [VecDeque<u32>; 3] = Default::default();
            let mut credits: VecDeque<(u32, u64)> = VecDeque::new();
            let mut fates: BTreeMap<u64, &str> = BTreeMap::new();
            let (mut number, mut seen) = (0_u64, 0_u32);
            for step in steps {
                match step {
                    Step::Send { to, length } if out.reserve(place(to), charge(length)) => {
                        out.sent(Sent { from: place(9), to: place(to), tag: Tag(number) });
                        wire.push_back((number, to, charge(length)));
                        fates.insert(number, "sent");
                        number += 1;
                    }
                    Step::Send { .. } => {}
                    Step::Arrive => if let Some((number, to, charge)) = wire.pop_front() {
                        queues[to as usize].push_back(charge);
                        seen += 1;
                        fates.insert(number, "arrived");
                    },
                    Step::Take { to } => if let Some(charge) = queues[to as usize].pop_front()
                        && let Some(bytes) = owed[to as usize].taken(1, charge)
                    {
                        credits.push_back((to, bytes));
                    },
                    Step::Answer { to, arrives } => {
                        let credit = owed[to as usize].with_message(1);
                        if credit > 0 && arrives {
                            credits.push_back((to, credit.into()));
                        } else {
                            owed[to as usize].put_back(1, credit);
                        }
                    }
                    Step::Credits => {
                        if let Some((to, bytes)) = credits.pop_front() {
                            out.credit(place(to), bytes).unwrap();
                        }
                        out.confirm(seen).unwrap();
                    }
                }
                for queue in &queues {
                    prop_assert!(queue.iter().map(|c| u64::from(*c)).sum::<u64>() <= window);
                }
            }
            // With everything taken and given back, a longest message fits: nothing leaked.
            for to in 0..3_u32 {
                let rest: u64 = wire.iter().filter(|(_, t, _)| *t == to).map(|(_, _, c)| u64::from(*c)).sum();
                let queued: u64 = queues[to as usize].iter().map(|c| u64::from(*c)).sum();
                let back: u64 = credits.iter().filter(|(t, _)| *t == to).map(|(_, b)| b).sum();
                let kept: u64 = owed[to as usize].all().map(|(_, b)| b).sum();
                let total = rest + queued + back + kept;
                if total > 0 {
                    out.credit(place(to), total).unwrap();
                }
                prop_assert!(out.on_the_way.get(&place(to)).is_none_or(|left| *left == 0));
            }
            out.confirm(seen).unwrap();
            for (_, sent) in out.abandon() {
                prop_assert_eq!(fates.insert(sent.tag.0, "told"), Some("sent"));
            }
            prop_assert!(fates.values().all(|fate| *fate != "sent"));
        }
    }

    #[test]
    fn no_more_can_be_rejected_than_was_sent() {
        let mut out = Outbound::new(WINDOW);
        assert_eq!(out.rejected(place(1), 0), Err(Malformed::Unknown("a message")));
        assert!(out.reserve(place(1), 1000));
        out.sent(Sent { from: place(0), to: place(1), tag: Tag(0) });
        assert_eq!(out.rejected(place(1), 1001), Err(Malformed::Unknown("credit")));
        assert_eq!(out.rejected(place(1), 64), Ok(()));
        assert_eq!(out.rejected(place(1), 64), Err(Malformed::Unknown("a message")));
        assert_eq!(out.credit(place(1), 936), Ok(()), "what was refused has given nothing back");
    }

    #[test]
    fn credit_and_confirmation_for_nothing_are_refused() {
        let mut out = Outbound::new(WINDOW);
        assert_eq!(out.credit(place(1), 1), Err(Malformed::Unknown("credit")));
        assert_eq!(out.confirm(1), Err(Malformed::Unknown("messages")));
        assert!(out.reserve(place(1), 100) && !out.reserve(place(1), WINDOW as u32));
        out.sent(Sent { from: place(0), to: place(1), tag: Tag(0) });
        assert_eq!(out.credit(place(1), 101), Err(Malformed::Unknown("credit")));
        assert_eq!(out.confirm(1), Ok(()));
    }
}
