//! What a calendar must say, in the plainest way: one number for every instant of a short time, the
//! last of which stands for all later ones. And operations made of random words, done to both.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test uses some of it")]

use keeptime_calendar::calendar::{Held, Lacking};
use keeptime_calendar::table::{Slot, SlotTable};
use keeptime_calendar::{Calendar, Demand, Lack, Refusal, ReservationId, ResourceId, Span, When};
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const fn at(nanos: u64) -> WallTime {
    WallTime::from_unix_nanos(nanos)
}

/// One resource.
#[derive(Debug, Clone)]
pub struct Naive {
    capacity: u64,
    used: Vec<u64>,
}

impl Naive {
    fn new(capacity: u64, instants: usize) -> Self {
        Self { capacity, used: vec![0; instants] }
    }

    fn range(&self, span: Span) -> Range<usize> {
        let most = self.used.len();
        let to = span.to().map_or(most, |to| to.unix_nanos() as usize).min(most);
        (span.from().unix_nanos() as usize).min(to)..to
    }

    fn most_used(&self, span: Span) -> u64 {
        self.used[self.range(span)].iter().copied().max().unwrap_or(0)
    }

    fn least_used(&self, span: Span) -> u64 {
        self.used[self.range(span)].iter().copied().min().unwrap_or(u64::MAX)
    }

    fn fits_at(&self, instant: usize, amount: u64) -> bool {
        self.used[instant] + amount <= self.capacity
    }

    fn lack(&self, span: Span, amount: u64) -> Option<Lack> {
        let first = self.range(span).find(|i| amount > 0 && !self.fits_at(*i, amount))?;
        let free = self.capacity.saturating_sub(self.most_used(span));
        Some(Lack { lacking: amount - free, first: at(first as u64) })
    }

    /// Whether `new` fits where `old` was, which is taken off already.
    fn fits_in_place_of(&self, old: Slot, new: Slot) -> bool {
        let had = |i| if self.range(old.span).contains(&i) { old.amount } else { 0 };
        // Only instants at which it takes more are asked.
        self.range(new.span).all(|i| new.amount <= had(i) || self.fits_at(i, new.amount))
    }

    fn put(&mut self, slot: Slot) {
        let range = self.range(slot.span);
        self.used[range].iter_mut().for_each(|used| *used += slot.amount);
    }

    fn take(&mut self, slot: Slot) {
        let range = self.range(slot.span);
        self.used[range].iter_mut().for_each(|used| *used -= slot.amount);
    }

    /// Compares every instant.
    fn compare(&self, table: &SlotTable) {
        let mut next = 0;
        let mut before = None;
        for level in table.profile(Span::since(at(0))) {
            assert_eq!(level.span.from().unix_nanos() as usize, next);
            let range = self.range(level.span);
            assert!(self.used[range.clone()].iter().all(|used| *used == level.used));
            assert_ne!(before, Some(level.used), "two levels that should be one");
            (next, before) = (range.end, Some(level.used));
        }
        assert_eq!(next, self.used.len());
    }
}

/// The earliest start at which all fit. Walks on while they do, and starts again behind every
/// instant at which one does not.
fn earliest_fit(when: When, asked: &[(&Naive, u64)], instants: usize) -> Option<WallTime> {
    let (mut start, duration) = (when.after.unix_nanos(), when.duration.get());
    let mut instant = start;
    while instant < instants as u64 && instant - start < duration {
        let fits = |(naive, amount): &(&Naive, u64)| {
            *amount == 0 || naive.fits_at(instant as usize, *amount)
        };
        if !asked.iter().all(fits) {
            start = instant + 1;
        }
        instant += 1;
    }
    (start < instants as u64 && start <= when.latest.unix_nanos()).then_some(at(start))
}

/// A table, its model, and the entries that are in both.
pub struct TablePair {
    pub table: SlotTable,
    naive: Naive,
    slots: Vec<Slot>,
}

impl TablePair {
    pub fn new(capacity: u64, instants: usize) -> Self {
        let (table, naive) = (SlotTable::new(capacity), Naive::new(capacity, instants));
        Self { table, naive, slots: Vec::new() }
    }

    /// Does what the words mean to both, and compares what both say of it.
    pub fn operate(&mut self, words: [u32; 4]) {
        let slot = some_slot(words, self.naive.used.len());
        let chosen = words[3] as usize % self.slots.len().max(1);
        match words[0] % 32 {
            0..12 => self.add(slot),
            12..20 if !self.slots.is_empty() => drop(self.remove(chosen)),
            20..25 if !self.slots.is_empty() => self.change(chosen, slot),
            25 => self.remove_anything(slot),
            26 if words[1].is_multiple_of(8) => self.set_capacity(u64::from(words[2]) % 200),
            _ => self.seek(slot, words),
        }
        let words = words.map(|word| word.rotate_left(7) ^ 0x55);
        let span = some_slot(words, self.naive.used.len()).span;
        assert_eq!(self.table.most_used(span), self.naive.most_used(span), "{span:?}");
    }

    pub fn compare(&self) {
        self.naive.compare(&self.table);
    }

    pub fn add(&mut self, slot: Slot) {
        let lack = self.naive.lack(slot.span, slot.amount);
        assert_eq!(self.table.add(slot.span, slot.amount), lack.map_or(Ok(()), Err), "{slot:?}");
        if lack.is_none() {
            self.naive.put(slot);
            self.slots.push(slot);
        }
    }

    /// Takes off one of the entries.
    pub fn remove(&mut self, chosen: usize) -> Slot {
        let old = self.slots.swap_remove(chosen);
        assert_eq!(self.table.remove(old.span, old.amount), Ok(()));
        self.naive.take(old);
        old
    }

    pub fn entries(&self) -> usize {
        self.slots.len()
    }

    pub fn ask(&self, when: When, amount: u64) {
        let found = self.table.earliest_fit(when, amount);
        let expected = earliest_fit(when, &[(&self.naive, amount)], self.naive.used.len());
        assert_eq!(found, expected, "{when:?} {amount}");
    }

    /// Puts another entry in the place of one of them, if it fits.
    pub fn change(&mut self, chosen: usize, new: Slot) {
        let old = self.slots[chosen];
        self.naive.take(old);
        let fits = self.naive.fits_in_place_of(old, new);
        assert_eq!(self.table.change(old, new).is_ok(), fits, "{old:?} to {new:?}");
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
        let told: usize = excesses.iter().map(|excess| self.naive.range(excess.span).len()).sum();
        assert_eq!(told, over);
        for excess in excesses {
            assert!(self.naive.least_used(excess.span) > capacity);
            assert_eq!(self.naive.most_used(excess.span), capacity + excess.most);
        }
    }

    fn seek(&self, slot: Slot, words: [u32; 4]) {
        let range = self.naive.range(slot.span);
        self.ask(some_when(range.clone(), words), slot.amount);
        let next = self.table.next_change(slot.span.from());
        let used = &self.naive.used[range.start..];
        let change = used.iter().position(|u| *u != used[0]);
        assert_eq!(next, change.map(|i| at((range.start + i) as u64)));
    }
}

/// A calendar, an array for each resource, and a list of what is held.
pub struct CalendarPair {
    pub calendar: Calendar,
    naive: Vec<Naive>,
    held: BTreeMap<u64, Held>,
    /// Reservations have numbers below this.
    numbers: u64,
    now: u64,
}

impl CalendarPair {
    pub fn new(capacities: &[u64], instants: usize, numbers: u64) -> Self {
        let mut calendar = Calendar::new();
        for capacity in capacities {
            calendar.add_resource(*capacity);
        }
        let naive = capacities.iter().map(|capacity| Naive::new(*capacity, instants)).collect();
        Self { calendar, naive, held: BTreeMap::new(), numbers, now: 0 }
    }

    /// Does what the words mean to both, and compares what both say of it.
    pub fn operate(&mut self, words: [u32; 8]) {
        let [a, b, c, d, ..] = words;
        let instants = self.naive[0].used.len();
        let span = some_slot([a, b, c, d], instants).span;
        let number = u64::from(words[4]) % self.numbers;
        let asked = Held { span, demands: self.some_demands(words) };
        match words[5] % 16 {
            0..6 => self.reserve(number, asked),
            6..9 => self.modify(number, asked),
            9..11 => self.release(number),
            11 => self.expire(u64::from(words[6]) % 20),
            _ => {
                let when = some_when(self.naive[0].range(span), [a, b, c, d]);
                let with = |d: &Demand| (&self.naive[d.resource.0 as usize], d.amount);
                let naive: Vec<_> = asked.demands.iter().map(with).collect();
                let found = self.calendar.earliest_fit(when, &asked.demands);
                assert_eq!(found, Ok(earliest_fit(when, &naive, instants)), "{when:?} {asked:?}");
            }
        }
    }

    pub fn live(&self) -> usize {
        self.held.len()
    }

    /// Compares every instant of every resource, and everything that is held: nothing is lost, and
    /// what is held together is never more than there is.
    pub fn compare(&self) {
        let held = self.calendar.reservations().map(|(id, held)| (id.0, held.clone()));
        assert_eq!(held.collect::<BTreeMap<_, _>>(), self.held);
        let mut sums = self.naive.clone();
        sums.iter_mut().for_each(|naive| naive.used.fill(0));
        for Held { span, demands } in self.held.values() {
            demands
                .iter()
                .for_each(|demand| sums[demand.resource.0 as usize].put(slot(*span, demand)));
        }
        for (id, (sum, naive)) in (0..).zip(sums.iter().zip(&self.naive)) {
            assert_eq!(sum.used, naive.used);
            assert!(
                sum.used.iter().all(|used| *used <= sum.capacity),
                "resource {id} is oversubscribed"
            );
            sum.compare(self.calendar.table(ResourceId(id)).unwrap());
        }
    }

    fn reserve(&mut self, number: u64, new: Held) {
        let id = ReservationId(number);
        let lacks = new.demands.iter().filter_map(|&Demand { resource, amount }| {
            let lack = self.naive[resource.0 as usize].lack(new.span, amount)?;
            Some(Lacking { resource, lack })
        });
        let lacks: Vec<_> = lacks.collect();
        let expected = match self.held.contains_key(&number) {
            true => Err(Refusal::HeldAlready(id)),
            false if lacks.is_empty() => Ok(()),
            false => Err(Refusal::Lacks(lacks)),
        };
        assert_eq!(self.calendar.reserve(id, new.span, &new.demands), expected, "{new:?}");
        if expected.is_ok() {
            self.put(number, new);
        }
    }

    fn modify(&mut self, number: u64, new: Held) {
        let id = ReservationId(number);
        let modified = self.calendar.modify(id, new.span, &new.demands);
        let Some(old) = self.take(number) else {
            return assert_eq!(modified, Err(Refusal::NotHeld(id)));
        };
        let fits = new.demands.iter().all(|demand| {
            let had = old.demands.iter().find(|had| had.resource == demand.resource);
            let had = Slot { span: old.span, amount: had.map_or(0, |had| had.amount) };
            self.naive[demand.resource.0 as usize].fits_in_place_of(had, slot(new.span, demand))
        });
        assert_eq!(modified.is_ok(), fits, "{modified:?}");
        self.put(number, if fits { new } else { old });
    }

    fn release(&mut self, number: u64) {
        let released = self.calendar.release(ReservationId(number));
        assert_eq!(released, self.take(number).ok_or(Refusal::NotHeld(ReservationId(number))));
    }

    /// Time goes on, from its end to its start again.
    fn expire(&mut self, by: u64) {
        self.now = (self.now + by) % self.naive[0].used.len() as u64;
        let ended = |held: &Held| held.span.to().is_some_and(|to| to <= at(self.now));
        let over = self.held.iter().filter(|(_, held)| ended(held));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        let expired = self.calendar.expire(at(self.now));
        assert!(expired.is_sorted_by_key(|(id, held)| (held.span.to(), *id)));
        let mut numbers: Vec<_> = expired.iter().map(|(id, _)| id.0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, over);
        over.into_iter().for_each(|number| drop(self.take(number)));
    }

    fn put(&mut self, number: u64, held: Held) {
        for demand in held.demands.iter() {
            self.naive[demand.resource.0 as usize].put(slot(held.span, demand));
        }
        self.held.insert(number, held);
    }

    fn take(&mut self, number: u64) -> Option<Held> {
        let held = self.held.remove(&number)?;
        for demand in held.demands.iter() {
            self.naive[demand.resource.0 as usize].take(slot(held.span, demand));
        }
        Some(held)
    }

    /// Some resources, each once, in ascending order, each with some amount.
    fn some_demands(&self, words: [u32; 8]) -> Arc<[Demand]> {
        let resources = (0..self.naive.len() as u32).filter(|id| words[6] >> 8 >> id & 1 == 1);
        let most = [4, 30][words[7] as usize % 2];
        let amount = |id: u32| 1 + u64::from(words[7].rotate_left(id * 7) >> 8) % most;
        resources.map(|id| Demand::new(ResourceId(id), amount(id))).collect()
    }
}

/// Every level of a table as text.
pub fn shown(table: &SlotTable) -> String {
    let levels = table.profile(Span::since(at(0))).map(|level| {
        let to = level.span.to().map_or("..".into(), |to| to.unix_nanos().to_string());
        format!("[{}, {to}): {}", level.span.from().unix_nanos(), level.used)
    });
    levels.collect::<Vec<_>>().join(" ")
}

/// Mostly short ones, some empty, some without an end.
fn some_slot(words: [u32; 4], instants: usize) -> Slot {
    let instants = instants as u64;
    let from = u64::from(words[1]) % instants;
    let reach = [1, 3, instants / 20 + 2, instants][words[2] as usize % 4];
    let to = from + u64::from(words[2] >> 2) % reach;
    let span =
        if to >= instants { Span::since(at(from)) } else { Span::new(at(from), at(to)).unwrap() };
    Slot { span, amount: u64::from(words[3] >> 3) % [3, 30, 120][words[0] as usize % 3] }
}

/// As long as `range`: from its start or from the first instants, now and then not too late.
fn some_when(range: Range<usize>, words: [u32; 4]) -> When {
    let start = range.start as u64;
    let after =
        if words[0].is_multiple_of(2) { start } else { u64::from(words[3]) % 7.min(start + 1) };
    let when = When::after(at(after), Nanos::new(range.len() as u64));
    let latest = when.after.saturating_add(Nanos::new(u64::from(words[2] % 50)));
    if words[0].is_multiple_of(5) { when.until(latest) } else { when }
}

fn slot(span: Span, demand: &Demand) -> Slot {
    Slot { span, amount: demand.amount }
}

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn words<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 32) as u32
        })
    }
}
