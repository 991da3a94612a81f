//! What a slot table must say, in the plainest way: one number for every instant of a short time,
//! the last of which stands for all later ones. And operations made of random words, done to both.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_calendar::{Span, When};
use keeptime_model::units::{Nanos, WallTime};

pub struct Naive {
    capacity: u64,
    horizon: usize,
    used: Vec<u64>,
}

/// A table, its model, and the entries that are in both.
pub struct Pair {
    pub table: SlotTable,
    pub naive: Naive,
    pub slots: Vec<Slot>,
}

impl Naive {
    fn new(capacity: u64, instants: usize) -> Self {
        Self { capacity, horizon: 0, used: vec![0; instants] }
    }

    fn range(&self, span: Span) -> std::ops::Range<usize> {
        let most = self.used.len();
        let from = (span.from().unix_nanos() as usize).clamp(self.horizon, most);
        let to = span.to().map_or(most, |to| to.unix_nanos() as usize).min(most);
        from..to.max(from)
    }

    fn most_used(&self, span: Span) -> u64 {
        self.used[self.range(span)].iter().copied().max().unwrap_or(0)
    }

    fn least_used(&self, span: Span) -> u64 {
        self.used[self.range(span)].iter().copied().min().unwrap_or(u64::MAX)
    }

    fn first_lack(&self, span: Span, amount: u64) -> Option<u64> {
        let mut range = self.range(span);
        range.find(|i| self.used[*i] + amount > self.capacity && amount > 0).map(|i| i as u64)
    }

    fn put(&mut self, slot: Slot) {
        let range = self.range(slot.span);
        self.used[range].iter_mut().for_each(|used| *used += slot.amount);
    }

    fn take(&mut self, slot: Slot) {
        let range = self.range(slot.span);
        self.used[range].iter_mut().for_each(|used| *used -= slot.amount);
    }

    fn earliest_fit(&self, when: When, amount: u64) -> Option<u64> {
        let most = self.used.len() as u64;
        let duration = when.duration.get();
        let mut start = when.after.unix_nanos().max(self.horizon as u64);
        let first = start;
        if amount > 0 && duration > 0 {
            // Walks on while it fits, and starts again behind every instant at which it does not.
            let mut at = first;
            while at < most && at - start < duration {
                if self.used[at as usize] + amount > self.capacity {
                    start = at + 1;
                }
                at += 1;
            }
        }
        (start < most && start <= when.latest.unix_nanos()).then_some(start)
    }
}

impl Pair {
    pub fn new(capacity: u64, instants: usize) -> Self {
        let (table, naive) = (SlotTable::new(capacity), Naive::new(capacity, instants));
        Self { table, naive, slots: Vec::new() }
    }

    /// Does what the words mean to both, and compares what both say of it.
    pub fn operate(&mut self, words: [u32; 4]) {
        let slot = self.slot(words);
        let chosen = words[3] as usize % self.slots.len().max(1);
        match words[0] % 32 {
            0..12 => self.add(slot),
            12..20 if !self.slots.is_empty() => {
                let old = self.slots.swap_remove(chosen);
                assert_eq!(self.table.remove(old.span, old.amount), Ok(()));
                self.naive.take(old);
            }
            20..25 if !self.slots.is_empty() => self.change(chosen, slot),
            25 => self.remove_anything(slot),
            26 if words[1] % 8 == 0 => self.set_capacity(u64::from(words[2]) % 200),
            27 if words[1] % 16 == 0 => self.forget_some(words),
            _ => self.seek(slot, words),
        }
        let span = self.slot(words.map(|word| word.rotate_left(7) ^ 0x55)).span;
        assert_eq!(self.table.most_used(span), self.naive.most_used(span), "{span:?}");
    }

    /// Compares every instant.
    pub fn compare(&self) {
        let all = Span::since(WallTime::from_unix_nanos(0));
        let mut at = 0;
        let mut before = None;
        for level in self.table.profile(all) {
            assert_eq!(level.span.from().unix_nanos() as usize, at);
            let range = self.naive_range(level.span);
            assert!(self.naive.used[range.clone()].iter().all(|used| *used == level.used));
            assert_ne!(before, Some(level.used), "two levels that should be one");
            (at, before) = (range.end, Some(level.used));
        }
        assert_eq!(at, self.naive.used.len());
    }

    fn naive_range(&self, span: Span) -> std::ops::Range<usize> {
        let to = span.to().map_or(self.naive.used.len(), |to| to.unix_nanos() as usize);
        span.from().unix_nanos() as usize..to
    }

    fn slot(&self, words: [u32; 4]) -> Slot {
        let instants = self.naive.used.len() as u64;
        let from = u64::from(words[1]) % instants;
        // Mostly short ones, some empty, some without an end.
        let reach = [1, 3, instants / 20 + 2, instants][words[2] as usize % 4];
        let to = from + u64::from(words[2] >> 2) % reach;
        let at = WallTime::from_unix_nanos;
        let span = if to >= instants {
            Span::since(at(from))
        } else {
            Span::new(at(from), at(to)).unwrap()
        };
        Slot { span, amount: u64::from(words[3] >> 3) % [3, 30, 120][words[0] as usize % 3] }
    }

    fn add(&mut self, slot: Slot) {
        let Slot { span, amount } = slot;
        let first = self.naive.first_lack(span, amount);
        match self.table.add(span, amount) {
            Ok(()) => {
                assert_eq!(first, None, "{slot:?} fits");
                self.naive.put(slot);
                self.slots.push(slot);
            }
            Err(lack) => {
                assert_eq!(Some(lack.first.unix_nanos()), first);
                assert!(self.table.lack(span, amount - lack.lacking).is_none());
                assert!(self.table.lack(span, amount - lack.lacking + 1).is_some());
            }
        }
    }

    fn change(&mut self, chosen: usize, new: Slot) {
        let old = self.slots[chosen];
        self.naive.take(old);
        // Only instants at which it takes more are asked.
        let grows = self.naive.range(new.span).any(|i| {
            let had = if self.naive.range(old.span).contains(&i) { old.amount } else { 0 };
            new.amount > had && self.naive.used[i] + new.amount > self.naive.capacity
        });
        let fits = self.table.change(old, new).is_ok();
        assert_eq!(fits, !grows, "{old:?} to {new:?}");
        self.naive.put(if fits { new } else { old });
        self.slots[chosen] = if fits { new } else { old };
    }

    /// What nobody added is taken off only where there is enough, and then put back.
    fn remove_anything(&mut self, slot: Slot) {
        let there = self.naive.least_used(slot.span) >= slot.amount;
        assert_eq!(self.table.remove(slot.span, slot.amount).is_ok(), there);
        if there {
            let capacity = self.table.capacity();
            self.table.set_capacity(u64::MAX);
            assert_eq!(self.table.add(slot.span, slot.amount), Ok(()));
            self.table.set_capacity(capacity);
        }
    }

    fn set_capacity(&mut self, capacity: u64) {
        self.naive.capacity = capacity;
        let excesses = self.table.set_capacity(capacity);
        let over = self.naive.used.iter().filter(|used| **used > capacity).count();
        let told: usize = excesses.iter().map(|e| self.naive_range(e.span).len()).sum();
        assert_eq!(told, over);
        for excess in excesses {
            let range = self.naive_range(excess.span);
            assert!(self.naive.used[range.clone()].iter().all(|used| *used > capacity));
            let most = self.naive.used[range].iter().max();
            assert_eq!(most, Some(&(capacity + excess.most)));
        }
    }

    fn forget_some(&mut self, words: [u32; 4]) {
        let step = words[3] as usize % (self.naive.used.len() / 20 + 2);
        let horizon = (self.naive.horizon + step).min(self.naive.used.len() * 3 / 4);
        self.table.forget_before(WallTime::from_unix_nanos(horizon as u64));
        self.naive.horizon = horizon;
        self.naive.used[..horizon].fill(0);
    }

    fn seek(&self, slot: Slot, words: [u32; 4]) {
        let range = self.naive_range(slot.span);
        let duration = Nanos::new(range.len() as u64);
        let mut when = When::after(WallTime::from_unix_nanos(u64::from(words[3]) % 7), duration);
        if words[0].is_multiple_of(2) {
            when.after = slot.span.from();
        }
        if words[0].is_multiple_of(5) {
            when = when.until(when.after.saturating_add(Nanos::new(u64::from(words[2] % 50))));
        }
        let found = self.table.earliest_fit(when, slot.amount).map(WallTime::unix_nanos);
        assert_eq!(found, self.naive.earliest_fit(when, slot.amount), "{when:?} {}", slot.amount);
        let next = self.table.next_change(slot.span.from()).map(WallTime::unix_nanos);
        let used = &self.naive.used[range.start..];
        let expected = used.iter().position(|u| *u != used[0]).map(|i| (range.start + i) as u64);
        assert_eq!(next, expected);
    }
}

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn words(&mut self) -> [u32; 4] {
        std::array::from_fn(|_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 32) as u32
        })
    }
}
