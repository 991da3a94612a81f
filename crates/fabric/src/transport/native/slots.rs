//! Which slots of memory are whose. A library has those that it receives with, and those that it sends from
//! until they are sent.

use crate::frame::{EAGER_MOST, HEAD};

/// How many slots there are to receive with, and as many to send from.
pub const OF_EACH: usize = 16;
/// Bytes of a slot: the longest frame, on the rail of a stream, up to a cache line.
pub const SLOT: usize = (EAGER_MOST + 2 * HEAD).next_multiple_of(64);

/// What has arrived, in the order in which it was sent, and where there is room to send.
#[derive(Debug)]
pub struct Slots {
    /// The lengths of what has arrived.
    arrived: [Option<usize>; OF_EACH],
    /// Slots are filled in turn; this is the first that was not given back.
    next: usize,
    /// Those to send from that are free.
    free: Vec<u32>,
}

impl Slots {
    /// The library has all that are to receive with.
    pub fn new() -> Self {
        let free = (OF_EACH..2 * OF_EACH).map(|slot| slot as u32).collect();
        Self { arrived: [None; OF_EACH], next: 0, free }
    }

    /// The library is done with a slot, in any order. If it received, `length` bytes are there; more
    /// than a slot has do not count.
    pub fn done(&mut self, slot: u32, length: u64) {
        match self.arrived.get_mut(slot as usize) {
            Some(arrived) => *arrived = Some((length as usize).min(SLOT)),
            None => self.free.push(slot),
        }
    }

    /// The slot of what was sent first of all that has not been given back, and its length; none if that
    /// has not arrived.
    pub fn arrived(&self) -> Option<(u32, usize)> {
        self.arrived[self.next].map(|length| (self.next as u32, length))
    }

    /// Gives that back: the library is to have it again.
    pub fn give_back(&mut self) -> Option<u32> {
        let (slot, _) = self.arrived()?;
        self.arrived[self.next] = None;
        self.next = (self.next + 1) % OF_EACH;
        Some(slot)
    }

    /// A slot to send from, until the library is done with it.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Whether there is a slot to send from.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all that are to send from are free.
    pub fn is_all_sent(&self) -> bool {
        self.free.len() == OF_EACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However late single slots are told of, what was sent is read in its order, and none is lost.
        #[test]
        fn what_arrives_is_read_in_the_order_of_slots(
            lateness in prop::collection::vec(0..6_usize, 1..200),
        ) {
            let mut slots = Slots::new();
            // What the library has filled and not told of yet: when it will, the slot, the length.
            let mut filled: Vec<(usize, u32, u64)> = Vec::new();
            let mut given: std::collections::VecDeque<u32> = (0..OF_EACH as u32).collect();
            let (mut number, mut expected) = (0, 0);
            for (now, late) in lateness.into_iter().enumerate() {
                if let Some(slot) = given.pop_front() {
                    filled.push((now + late, slot, number));
                    number += 1;
                }
                for (_, slot, length) in filled.extract_if(.., |(when, ..)| *when <= now) {
                    slots.done(slot, length);
                }
                while let Some((slot, length)) = slots.arrived() {
                    prop_assert_eq!(length, expected);
                    prop_assert_eq!(slots.give_back(), Some(slot));
                    given.push_back(slot);
                    expected += 1;
                }
            }
            prop_assert_eq!(number as usize - expected, filled.len() + slots.arrived.iter().flatten().count());
        }
    }

    #[test]
    fn a_slot_is_free_until_it_is_taken_and_when_the_library_is_done() {
        let mut slots = Slots::new();
        let all: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!((all.len(), slots.has_room(), slots.is_all_sent()), (OF_EACH, false, false));
        slots.done(all[0], 0);
        assert!(slots.has_room() && !slots.is_all_sent());
        all[1..].iter().for_each(|slot| slots.done(*slot, 0));
        assert!(slots.is_all_sent());
    }
}
