//! What every resource gives at each second, as an array with one slot for each: the plainest thing
//! that can be compared with the calendar.

use keeptime_model::reservation::Handle;
use std::collections::{BTreeMap, VecDeque};

/// Seconds that are looked at ahead; what lies later is looked at when its time comes near.
pub const AHEAD: usize = 2_048;

/// The array, from the present on.
#[derive(Debug, Clone)]
pub struct Slots {
    capacities: Vec<u64>,
    /// The second of the first slot.
    first: u64,
    slots: VecDeque<Vec<u64>>,
    entries: BTreeMap<Handle, Vec<Entry>>,
}

/// What a reservation takes from one second to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The first second.
    pub from: u64,
    /// The first second that is not part of it any more.
    pub until: u64,
    /// By resource.
    pub amounts: Vec<(usize, u64)>,
}

/// More of a resource is taken than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// The number of the resource.
    pub resource: usize,
    /// When.
    pub second: u64,
    /// How much is taken.
    pub used: u64,
    /// How much there is.
    pub capacity: u64,
}

impl Slots {
    /// Nothing is taken of `capacities`.
    pub fn new(capacities: Vec<u64>, first: u64) -> Self {
        let slots = vec![vec![0; capacities.len()]; AHEAD].into();
        Self { capacities, first, slots, entries: BTreeMap::new() }
    }

    /// Puts `entries` in the place of what the reservation took.
    ///
    /// # Errors
    /// If that is too much, now or at any second.
    pub fn put(&mut self, handle: Handle, entries: Vec<Entry>) -> Result<(), Over> {
        self.take(handle);
        let first = self.first;
        for entry in &entries {
            for at in self.range(entry) {
                add(&mut self.slots[at], entry);
                check(&self.slots[at], &self.capacities, first + at as u64)?;
            }
        }
        self.entries.insert(handle, entries);
        Ok(())
    }

    /// The reservation takes nothing any more.
    pub fn take(&mut self, handle: Handle) {
        for entry in self.entries.remove(&handle).unwrap_or_default() {
            for at in self.range(&entry) {
                for (resource, amount) in &entry.amounts {
                    self.slots[at][*resource] -= amount;
                }
            }
        }
    }

    /// Time goes on to `second`.
    ///
    /// # Errors
    /// If too much is taken at a second that comes into view.
    pub fn advance(&mut self, second: u64) -> Result<(), Over> {
        while self.first < second {
            self.first += 1;
            let mut slot = self.slots.pop_front().unwrap_or_default();
            slot.fill(0);
            let last = self.first + self.slots.len() as u64;
            let entries = self.entries.values().flatten();
            for entry in entries.filter(|e| e.from <= last && last < e.until) {
                add(&mut slot, entry);
            }
            check(&slot, &self.capacities, last)?;
            self.slots.push_back(slot);
        }
        Ok(())
    }

    /// What is taken of each resource, `ahead` seconds after the first, and which second that is.
    pub fn used(&self, ahead: usize) -> (u64, &[u64]) {
        let at = ahead % self.slots.len();
        (self.first + at as u64, &self.slots[at])
    }

    fn range(&self, entry: &Entry) -> std::ops::Range<usize> {
        let at = |second: u64| (second.saturating_sub(self.first) as usize).min(self.slots.len());
        at(entry.from)..at(entry.until)
    }
}

fn add(slot: &mut [u64], entry: &Entry) {
    for (resource, amount) in &entry.amounts {
        slot[*resource] += amount;
    }
}

fn check(slot: &[u64], capacities: &[u64], second: u64) -> Result<(), Over> {
    let over = slot.iter().zip(capacities).position(|(used, capacity)| used > capacity);
    over.map_or(Ok(()), |resource| {
        let (used, capacity) = (slot[resource], capacities[resource]);
        Err(Over { resource, second, used, capacity })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(from: u64, until: u64, amount: u64) -> Vec<Entry> {
        vec![Entry { from, until, amounts: vec![(0, amount)] }]
    }

    #[test]
    fn ends_meet_starts_and_one_too_many_is_told() {
        let mut slots = Slots::new(vec![10], 100);
        let [a, b, c] = [1, 2, 3].map(Handle::new);
        assert_eq!(slots.put(a, entry(90, 110, 10)), Ok(()));
        assert_eq!(slots.put(b, entry(110, u64::MAX, 9)), Ok(()));
        let over = Over { resource: 0, second: 110, used: 11, capacity: 10 };
        assert_eq!(slots.clone().put(c, entry(110, 111, 2)), Err(over));
        assert_eq!(slots.put(a, entry(105, 110, 1)), Ok(()));
        assert_eq!([slots.used(4).1[0], slots.used(5).1[0], slots.used(10).1[0]], [0, 1, 9]);
        slots.take(b);
        assert_eq!(slots.used(10).1[0], 0);
    }

    #[test]
    fn what_is_far_is_looked_at_when_it_comes_near() {
        let mut slots = Slots::new(vec![10], 0);
        let far = AHEAD as u64 + 5;
        assert_eq!(slots.put(Handle::new(1), entry(far, far + 1, 6)), Ok(()));
        assert_eq!(slots.put(Handle::new(2), entry(far, far + 1, 6)), Ok(()));
        assert_eq!(slots.advance(5), Ok(()));
        assert_eq!(slots.advance(6).unwrap_err().second, far);
    }
}
