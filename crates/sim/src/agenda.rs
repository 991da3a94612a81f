//! What happens when, in virtual time: nothing passes but from one happening to the next.

use keeptime_model::units::Nanos;
use keeptime_random::Random;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

/// A span within `range`, which is not empty.
pub fn span(random: &mut Random, range: Range<Nanos>) -> Nanos {
    Nanos::new(random.within(range.start.get()..range.end.get()))
}

/// Happenings to come, and the present. Those of one instant happen in the order in which they were
/// put in.
#[derive(Debug)]
pub struct Agenda<H> {
    now: Nanos,
    next: u64,
    to_come: BinaryHeap<Reverse<Entry<H>>>,
}

#[derive(Debug)]
struct Entry<H> {
    time: Nanos,
    number: u64,
    happening: H,
}

impl<H> Default for Agenda<H> {
    fn default() -> Self {
        Self { now: Nanos::new(0), next: 0, to_come: BinaryHeap::new() }
    }
}

impl<H> Agenda<H> {
    /// True time since the beginning.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Puts in what happens at `time`; now, if that is past. O(log n).
    pub fn at(&mut self, time: Nanos, happening: H) {
        self.to_come.push(Reverse(Entry {
            time: time.max(self.now),
            number: self.next,
            happening,
        }));
        self.next += 1;
    }

    /// Puts in what happens after `span`. O(log n).
    pub fn after(&mut self, span: Nanos, happening: H) {
        self.at(self.now.saturating_add(span), happening);
    }

    /// Goes on to the next happening. O(log n).
    pub fn advance(&mut self) -> Option<H> {
        let Reverse(entry) = self.to_come.pop()?;
        self.now = entry.time;
        Some(entry.happening)
    }
}

impl<H> Ord for Entry<H> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}

impl<H> PartialOrd for Entry<H> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> PartialEq for Entry<H> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<H> Eq for Entry<H> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_the_order_of_their_times_and_then_of_their_coming() {
        let mut agenda = Agenda::default();
        for (time, name) in [(5, "c"), (3, "a"), (5, "d"), (3, "b")] {
            agenda.at(Nanos::new(time), name);
        }
        assert_eq!(
            [agenda.advance(), agenda.advance(), agenda.advance()],
            [Some("a"), Some("b"), Some("c")]
        );
        agenda.at(Nanos::new(1), "late");
        agenda.after(Nanos::new(1), "e");
        let rest: Vec<_> = std::iter::from_fn(|| agenda.advance()).collect();
        assert_eq!((rest, agenda.now()), (vec!["d", "late", "e"], Nanos::new(6)));
    }
}
