//! The usual slot table: a sorted list of the instants at which the sum changes, scanned from its start.

use keeptime_calendar::When;
use keeptime_calendar::table::Slot;
use keeptime_model::units::WallTime;

/// From each instant to the next one, so much is reserved.
#[derive(Debug, Default)]
pub struct SortedList(Vec<(u64, u64)>);

impl SortedList {
    /// What a figure says that it is compared with.
    pub const NAME: &str = "a sorted list";

    /// The list after all of `slots` were added; made by one sweep, since adding them is slow.
    pub fn new(slots: &[Slot]) -> Self {
        let mut changes: Vec<(u64, u64)> = Vec::with_capacity(2 * slots.len());
        for slot in slots {
            let (from, to) = ends(slot);
            changes.push((from, slot.amount));
            changes.push((to, slot.amount.wrapping_neg()));
        }
        changes.sort_unstable();
        let mut list: Vec<(u64, u64)> = vec![(0, 0)];
        let mut used = 0u64;
        for (at, by) in changes {
            used = used.wrapping_add(by);
            match list.last_mut() {
                Some(last) if last.0 == at => last.1 = used,
                _ => list.push((at, used)),
            }
        }
        Self(list)
    }

    /// Adds `slot` if it fits everywhere.
    pub fn add(&mut self, slot: &Slot, capacity: u64) -> bool {
        let (from, to) = ends(slot);
        let first = self.cut(from);
        let past = self.cut(to);
        let fits = self.0[first..past].iter().all(|(_, used)| used + slot.amount <= capacity);
        if fits {
            self.0[first..past].iter_mut().for_each(|(_, used)| *used += slot.amount);
        }
        fits
    }

    /// The earliest start, gap after gap.
    pub fn earliest_fit(&self, when: When, amount: u64, capacity: u64) -> Option<u64> {
        let mut start = when.after.unix_nanos();
        for (i, (at, used)) in self.0.iter().enumerate() {
            let end = self.0.get(i + 1).map_or(u64::MAX, |next| next.0);
            if end > start && used + amount > capacity {
                if at.saturating_sub(start) >= when.duration.get() {
                    return Some(start);
                }
                start = end;
            }
        }
        (start < u64::MAX).then_some(start)
    }

    /// The entry that begins at `at`, made if there is none.
    fn cut(&mut self, at: u64) -> usize {
        let index = self.0.iter().position(|entry| entry.0 >= at).unwrap_or(self.0.len());
        if self.0.get(index).is_none_or(|entry| entry.0 != at) {
            let used = index.checked_sub(1).map_or(0, |before| self.0[before].1);
            self.0.insert(index, (at, used));
        }
        index
    }
}

/// The earliest start at which all amounts fit, each list asked in turn until all agree.
pub fn earliest_fit(asked: &[(&SortedList, u64)], mut when: When, capacity: u64) -> Option<u64> {
    loop {
        let before = when.after;
        for (list, amount) in asked {
            when.after = WallTime::from_unix_nanos(list.earliest_fit(when, *amount, capacity)?);
        }
        if when.after == before {
            return Some(before.unix_nanos());
        }
    }
}

fn ends(slot: &Slot) -> (u64, u64) {
    let to = slot.span.to().map_or(u64::MAX, WallTime::unix_nanos);
    (slot.span.from().unix_nanos(), to)
}
