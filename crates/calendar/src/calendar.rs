//! Many resources: every demand of a reservation is held over the same span, or none is.

use crate::alike::Alike;
use crate::span::{Span, When};
use crate::table::{Excess, Lack, Slot, SlotTable};
use keeptime_model::units::WallTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Which resource: calendars number them from 0 in the order in which they are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u32);

/// Which bundle of resources: calendars number them from 0 in the order in which they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId(pub u32);

/// Which reservation: a number that the caller gives, and gives again when all is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

/// So much of a resource. Several of one resource in a list are meant together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Of what.
    pub resource: ResourceId,
    /// How much, in the resource's unit.
    pub amount: u64,
}

/// What a reservation holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// When.
    pub span: Span,
    /// What: each resource once, in ascending order, and none of which nothing was asked.
    pub demands: Arc<[Demand]>,
}

/// The slot tables of all resources, and what every reservation holds in them.
///
/// The only state is what was reserved: the same calls in the same order give the same answers.
/// In what follows k is the number of demands and n the greatest number of instants at which one
/// of their tables changes.
#[derive(Debug, Clone, Default)]
pub struct Calendar {
    tables: Vec<SlotTable>,
    held: BTreeMap<ReservationId, Held>,
    /// All that end, in the order in which they do.
    ends: BTreeSet<(WallTime, ReservationId)>,
    alike: Alike,
}

/// A resource that does not have what was asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacking {
    /// The resource.
    pub resource: ResourceId,
    /// How much, and when first.
    pub lack: Lack,
}

/// Why something was not done. Nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// What was asked does not fit: every resource that lacks something, in ascending order.
    #[error("{}", list(.0))]
    Lacks(Vec<Lacking>),
    /// There are no such resources.
    #[error("there is no resource {}", list(.0))]
    UnknownResources(Vec<ResourceId>),
    /// The demands of one resource add up to more than a number can say, alone or with what is reserved of it.
    #[error("the demands of resource {0} are more than {max} together", max = u64::MAX)]
    TooMuch(ResourceId),
    /// Another reservation has this number.
    #[error("reservation {0} is held already")]
    HeldAlready(ReservationId),
    /// There is no such reservation.
    #[error("there is no reservation {0}")]
    NotHeld(ReservationId),
}

impl Calendar {
    /// A calendar without resources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a resource of which there is `capacity`. O(1).
    pub fn add_resource(&mut self, capacity: u64) -> ResourceId {
        let id = u32::try_from(self.tables.len()).expect("fewer than 2^32 resources fit in memory");
        self.tables.push(SlotTable::new(capacity));
        ResourceId(id)
    }

    /// Resources that belong together: bundles of as many resources are compared with one another, and
    /// [`Calendar::alike`] tells those between which nothing differs. O(reservations).
    ///
    /// # Panics
    /// If a resource does not exist.
    pub fn bundle(&mut self, resources: &[ResourceId]) -> BundleId {
        let tables = resources.iter().copied().map(|id| {
            let entries = self.held.values().map(move |held| slot(Some(held), id));
            (id, self.tables[id.0 as usize].capacity(), entries)
        });
        self.alike.add(tables)
    }

    /// Groups of bundles whose resources have, one by one, the same capacities and the same reserved at
    /// the same times: what a table answers for one of a group, it answers for all. Those with the
    /// fewest entries come first, none is empty, and each bundle is in one. [`Calendar::settle`] has to have been called since
    /// the last change.
    pub fn alike(&self) -> impl Iterator<Item = &BTreeSet<BundleId>> {
        self.alike.groups()
    }

    /// Groups follow what has changed since this was called last. O(log bundles) for each change that lasted.
    pub fn settle(&mut self) {
        self.alike.settle();
    }

    /// The table of a resource, for questions about it alone. O(1).
    pub fn table(&self, resource: ResourceId) -> Option<&SlotTable> {
        self.tables.get(resource.0 as usize)
    }

    /// What a reservation holds. O(log reservations).
    pub fn held(&self, id: ReservationId) -> Option<&Held> {
        self.held.get(&id)
    }

    /// All reservations, in the order of their numbers.
    pub fn reservations(&self) -> impl Iterator<Item = (ReservationId, &Held)> {
        self.held.iter().map(|(id, held)| (*id, held))
    }

    /// Who holds some of `resource` at some instant of `span`: whom it concerns when there is less
    /// of it. O(reservations).
    pub fn holders(
        &self,
        resource: ResourceId,
        span: Span,
    ) -> impl Iterator<Item = (ReservationId, &Held)> {
        self.reservations()
            .filter(move |(_, held)| held.span.overlaps(span) && held.amount_of(resource) > 0)
    }

    /// Whether all `demands` fit over `span`. O(k log n).
    ///
    /// # Errors
    /// What [`Calendar::reserve`] would refuse.
    pub fn fits(&self, span: Span, demands: &[Demand]) -> Result<(), Refusal> {
        self.admit(None, &self.asked(span, demands)?, |_| true)
    }

    /// Reserves all `demands` over `span`. O(k log n).
    ///
    /// # Errors
    /// If any of them does not fit, or the number is taken.
    pub fn reserve(
        &mut self,
        id: ReservationId,
        span: Span,
        demands: &[Demand],
    ) -> Result<(), Refusal> {
        if self.held.contains_key(&id) {
            return Err(Refusal::HeldAlready(id));
        }
        let new = self.asked(span, demands)?;
        self.admit(None, &new, |_| true)?;
        self.replace(id, Some(new));
        Ok(())
    }

    /// As [`Calendar::reserve`], but nothing is asked of a resource that `may_exceed`: what was promised when there was
    /// more of it is held all the same. It is over-committed then, as after [`Calendar::set_capacity`]. O(k log n).
    ///
    /// # Errors
    /// If a demand of another resource does not fit, more than a number can say would be reserved of one, or the number
    /// is taken.
    pub fn reserve_beyond(
        &mut self,
        id: ReservationId,
        span: Span,
        demands: &[Demand],
        may_exceed: impl Fn(ResourceId) -> bool,
    ) -> Result<(), Refusal> {
        if self.held.contains_key(&id) {
            return Err(Refusal::HeldAlready(id));
        }
        let new = self.asked(span, demands)?;
        self.admit(None, &new, |resource| !may_exceed(resource))?;
        let is_beyond_numbers = |demand: &&Demand| {
            let used = self.tables[demand.resource.0 as usize].most_used(span);
            used.checked_add(demand.amount).is_none()
        };
        let mut unasked = new.demands.iter().filter(|demand| may_exceed(demand.resource));
        if let Some(demand) = unasked.find(is_beyond_numbers) {
            return Err(Refusal::TooMuch(demand.resource));
        }
        self.replace(id, Some(new));
        Ok(())
    }

    /// Holds `demands` over `span` instead of what the reservation holds. Only where that takes more
    /// than before is it asked whether it fits. O(k log n).
    ///
    /// # Errors
    /// If any of them does not fit; what is held is untouched then.
    pub fn modify(
        &mut self,
        id: ReservationId,
        span: Span,
        demands: &[Demand],
    ) -> Result<(), Refusal> {
        let old = self.held.get(&id).ok_or(Refusal::NotHeld(id))?;
        let new = self.asked(span, demands)?;
        self.admit(Some(old), &new, |_| true)?;
        self.replace(id, Some(new));
        Ok(())
    }

    /// Holds `new` under this number in the place of what is held under it, if anything is, and tells what that was. Nothing is
    /// asked: this puts back what was held among the same others, in the form in which it was held. O(k log n).
    ///
    /// # Panics
    /// If a resource does not exist. More than a number can say must not be reserved of any.
    pub fn exchange(&mut self, id: ReservationId, new: Held) -> Option<Held> {
        debug_assert!(
            new.demands.is_sorted_by(|one, next| one.resource < next.resource)
                && new.demands.iter().all(|demand| demand.amount > 0),
            "each resource once, in ascending order, and something of each"
        );
        self.replace(id, Some(new))
    }

    /// Gives back all that a reservation holds, and tells what that was. O(k log n).
    ///
    /// # Errors
    /// If there is no such reservation.
    pub fn release(&mut self, id: ReservationId) -> Result<Held, Refusal> {
        self.replace(id, None).ok_or(Refusal::NotHeld(id))
    }

    /// Releases every reservation that has ended at `now`, and tells them in the order of their
    /// ends. What is past takes no memory then. O(k log n) for each of them.
    pub fn expire(&mut self, now: WallTime) -> Vec<(ReservationId, Held)> {
        let mut expired = Vec::new();
        while let Some((_, id)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            expired.extend(self.replace(id, None).map(|held| (id, held)));
        }
        expired
    }

    /// The earliest start at which all `demands` fit for the whole duration.
    ///
    /// Every table is asked in turn for its earliest start at or after the latest answer so far, until
    /// all agree: [`SlotTable::earliest_fit`] as often as one of them moves the start, and k times more.
    ///
    /// # Errors
    /// If a resource does not exist, or its demands add up to too much.
    pub fn earliest_fit(
        &self,
        when: When,
        demands: &[Demand],
    ) -> Result<Option<WallTime>, Refusal> {
        let demands = self.merged(demands)?;
        let mut when = when;
        let mut agreed = 0;
        for demand in demands.iter().cycle() {
            if agreed == demands.len() {
                break;
            }
            let table = &self.tables[demand.resource.0 as usize];
            let Some(start) = table.earliest_fit(when, demand.amount) else { return Ok(None) };
            agreed = if start == when.after { agreed + 1 } else { 1 };
            when.after = start;
        }
        Ok((when.after <= when.latest).then_some(when.after))
    }

    /// Sets how much there is of a resource from now on, and tells when more than that is reserved;
    /// [`Calendar::holders`] tells by whom. O(log n) for each span that is told.
    ///
    /// # Errors
    /// If there is no such resource.
    pub fn set_capacity(
        &mut self,
        resource: ResourceId,
        capacity: u64,
    ) -> Result<Vec<Excess>, Refusal> {
        let Some(table) = self.tables.get_mut(resource.0 as usize) else {
            return Err(Refusal::UnknownResources(vec![resource]));
        };
        self.alike.resized(resource, table.capacity(), capacity);
        Ok(table.set_capacity(capacity))
    }

    fn asked(&self, span: Span, demands: &[Demand]) -> Result<Held, Refusal> {
        Ok(Held { span, demands: self.merged(demands)?.into() })
    }

    /// Each resource once, in ascending order; all of them exist.
    fn merged(&self, demands: &[Demand]) -> Result<Vec<Demand>, Refusal> {
        let mut merged = Demand::merged(demands).map_err(Refusal::TooMuch)?;
        let resources = merged.iter().map(|demand| demand.resource);
        let unknown: Vec<_> = resources.filter(|id| self.table(*id).is_none()).collect();
        if !unknown.is_empty() {
            return Err(Refusal::UnknownResources(unknown));
        }
        merged.retain(|demand| demand.amount > 0);
        Ok(merged)
    }

    /// Whether `new` fits in the place of `old`, as far as resources are asked.
    fn admit(
        &self,
        old: Option<&Held>,
        new: &Held,
        is_asked: impl Fn(ResourceId) -> bool,
    ) -> Result<(), Refusal> {
        let lacking = |(resource, new): (ResourceId, Slot)| {
            let table = &self.tables[resource.0 as usize];
            Some(Lacking { resource, lack: table.lack_in_place_of(slot(old, resource), new)? })
        };
        let asked = new.slots().filter(|(resource, _)| is_asked(*resource));
        let lacks: Vec<_> = asked.filter_map(lacking).collect();
        if lacks.is_empty() { Ok(()) } else { Err(Refusal::Lacks(lacks)) }
    }

    /// The one place where anything changes: what `id` holds is taken off and given back, and `new`,
    /// which has been admitted, is put in its place.
    fn replace(&mut self, id: ReservationId, new: Option<Held>) -> Option<Held> {
        let held = self.held.remove(&id);
        let old = held.as_ref();
        for (resource, old, new) in changes(old, new.as_ref()) {
            self.tables[resource.0 as usize].replace(old, new);
            self.alike.replaced(resource, old, new);
        }
        if let Some(end) = old.and_then(|old| old.span.to()) {
            self.ends.remove(&(end, id));
        }
        if let Some(end) = new.as_ref().and_then(|new| new.span.to()) {
            self.ends.insert((end, id));
        }
        self.held.extend(new.map(|new| (id, new)));
        held
    }
}

impl Held {
    /// What it is of each resource, in ascending order.
    fn slots(&self) -> impl Iterator<Item = (ResourceId, Slot)> + '_ {
        let slot = |demand: &Demand| Slot { span: self.span, amount: demand.amount };
        self.demands.iter().map(move |demand| (demand.resource, slot(demand)))
    }

    fn amount_of(&self, resource: ResourceId) -> u64 {
        let found = self.demands.binary_search_by_key(&resource, |demand| demand.resource);
        found.map_or(0, |index| self.demands[index].amount)
    }
}

impl Demand {
    /// `amount` of `resource`.
    pub const fn new(resource: ResourceId, amount: u64) -> Self {
        Self { resource, amount }
    }

    /// The same of each resource once, in ascending order. O(k log k).
    ///
    /// # Errors
    /// The resource whose demands add up to more than a number can say.
    pub fn merged(demands: &[Self]) -> Result<Vec<Self>, ResourceId> {
        let mut sorted = demands.to_vec();
        sorted.sort_unstable_by_key(|demand| demand.resource);
        let mut merged: Vec<Self> = Vec::with_capacity(sorted.len());
        for demand in sorted {
            match merged.last_mut().filter(|last| last.resource == demand.resource) {
                None => merged.push(demand),
                Some(last) => {
                    let sum = last.amount.checked_add(demand.amount);
                    last.amount = sum.ok_or(demand.resource)?;
                }
            }
        }
        Ok(merged)
    }
}

/// What each resource goes over from and to, of those of which there is something before or after.
fn changes(
    old: Option<&Held>,
    new: Option<&Held>,
) -> impl Iterator<Item = (ResourceId, Slot, Slot)> {
    let mut old = old.into_iter().flat_map(Held::slots).peekable();
    let mut new = new.into_iter().flat_map(Held::slots).peekable();
    std::iter::from_fn(move || {
        let next = [old.peek(), new.peek()].into_iter().flatten();
        let resource = next.map(|(resource, _)| *resource).min()?;
        let is_next = |(next, _): &(ResourceId, Slot)| *next == resource;
        let [old, new] = [old.next_if(is_next), new.next_if(is_next)]
            .map(|found| found.map_or(Slot::NOTHING, |(_, slot)| slot));
        Some((resource, old, new))
    })
}

/// What is held of one resource.
fn slot(held: Option<&Held>, resource: ResourceId) -> Slot {
    held.map_or(Slot::NOTHING, |held| Slot { span: held.span, amount: held.amount_of(resource) })
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource {} {}", self.resource, self.lack)
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, CalendarPair};
    use keeptime_model::units::Nanos;
    use proptest::prelude::*;

    const fn at(nanos: u64) -> WallTime {
        WallTime::from_unix_nanos(nanos)
    }

    fn span(from: u64, to: u64) -> Span {
        Span::new(at(from), at(to)).unwrap()
    }

    fn with(capacities: &[u64]) -> Calendar {
        let mut calendar = Calendar::new();
        capacities.iter().for_each(|capacity| {
            calendar.add_resource(*capacity);
        });
        calendar
    }

    fn demands(amounts: &[(u32, u64)]) -> Vec<Demand> {
        amounts.iter().map(|(id, amount)| Demand::new(ResourceId(*id), *amount)).collect()
    }

    /// Every table as text.
    fn shown(calendar: &Calendar) -> Vec<String> {
        calendar.tables.iter().map(naive::shown).collect()
    }

    #[test]
    fn a_refusal_names_every_resource_that_lacks() {
        let mut calendar = with(&[100, 4, 1_000]);
        calendar.reserve(ReservationId(1), span(10, 20), &demands(&[(0, 80), (1, 3)])).unwrap();
        let before = shown(&calendar);
        let asked = demands(&[(2, 500), (1, 2), (0, 30)]);
        let refusal = calendar.reserve(ReservationId(2), span(5, 15), &asked).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "resource 0 lacks 10 from 10 ns on, resource 1 lacks 1 from 10 ns on"
        );
        assert_eq!(shown(&calendar), before);
        assert_eq!(calendar.held(ReservationId(2)), None);
        assert_eq!(calendar.fits(span(20, 30), &asked), Ok(()));
    }

    #[test]
    fn several_demands_of_one_resource_are_meant_together() {
        let mut calendar = with(&[100]);
        let twice = demands(&[(0, 60), (0, 60)]);
        let refusal = calendar.reserve(ReservationId(1), span(0, 9), &twice).unwrap_err();
        assert_eq!(refusal.to_string(), "resource 0 lacks 20 from 0 ns on");
        let endless = demands(&[(0, u64::MAX), (0, 1)]);
        let refusal = calendar.fits(span(0, 9), &endless).unwrap_err();
        assert_eq!(refusal, Refusal::TooMuch(ResourceId(0)));
        assert_eq!(calendar.earliest_fit(When::after(at(0), Nanos::new(1)), &twice), Ok(None));
    }

    #[test]
    fn a_number_is_held_once() {
        let mut calendar = with(&[100]);
        let some = demands(&[(0, 10)]);
        calendar.reserve(ReservationId(7), span(0, 9), &some).unwrap();
        let again = calendar.reserve(ReservationId(7), span(20, 30), &some);
        assert_eq!(again, Err(Refusal::HeldAlready(ReservationId(7))));
        assert_eq!(calendar.release(ReservationId(7)).unwrap().span, span(0, 9));
        assert_eq!(calendar.release(ReservationId(7)), Err(Refusal::NotHeld(ReservationId(7))));
        let modified = calendar.modify(ReservationId(7), span(0, 9), &some);
        assert_eq!(modified, Err(Refusal::NotHeld(ReservationId(7))));
        assert_eq!(shown(&calendar), ["[0, ..): 0"]);
    }

    #[test]
    fn a_modification_moves_everything_or_nothing() {
        let mut calendar = with(&[100, 100, 100]);
        calendar.reserve(ReservationId(1), span(0, 10), &demands(&[(0, 60), (1, 60)])).unwrap();
        calendar.reserve(ReservationId(2), span(10, 20), &demands(&[(2, 50)])).unwrap();
        let before = shown(&calendar);
        let more = demands(&[(0, 70), (2, 60)]);
        let refusal = calendar.modify(ReservationId(1), span(5, 15), &more).unwrap_err();
        assert_eq!(refusal.to_string(), "resource 2 lacks 10 from 10 ns on");
        assert_eq!(shown(&calendar), before);
        calendar.modify(ReservationId(1), span(2, 10), &more).unwrap();
        assert_eq!(
            shown(&calendar),
            [
                "[0, 2): 0 [2, 10): 70 [10, ..): 0",
                "[0, ..): 0",
                "[0, 2): 0 [2, 10): 60 [10, 20): 50 [20, ..): 0"
            ]
        );
        calendar.release(ReservationId(1)).unwrap();
        assert_eq!(shown(&calendar)[2], "[0, 10): 0 [10, 20): 50 [20, ..): 0");
    }

    // Of 10 and 10, 7 of the first are held by one from 0 to 10 and 3 by another.
    #[test]
    fn what_was_there_is_put_back_unasked() {
        let mut calendar = with_bundles();
        let held = |from, to, amounts: &[(u32, u64)]| Held {
            span: span(from, to),
            demands: demands(amounts).into(),
        };
        let first = held(0, 10, &[(0, 7)]);
        calendar.reserve(ReservationId(1), first.span, &first.demands).unwrap();
        calendar.reserve(ReservationId(2), span(0, 10), &demands(&[(0, 3)])).unwrap();
        let before = (shown(&calendar), groups(&mut calendar));
        let other = held(5, 20, &[(0, 8), (1, 2)]);
        assert_eq!(calendar.exchange(ReservationId(1), other.clone()), Some(first.clone()));
        let table = calendar.table(ResourceId(0)).unwrap();
        assert_eq!([0, 5, 10, 20].map(|instant| table.used_at(at(instant))), [3, 11, 8, 0]);
        assert_eq!(calendar.exchange(ReservationId(1), first), Some(other));
        assert_eq!((shown(&calendar), groups(&mut calendar)), before);
        assert_eq!(calendar.expire(at(10)).len(), 2);
        assert_eq!(groups(&mut calendar), groups(&mut with_bundles()));
    }

    /// Two of 10 each, a bundle each.
    fn with_bundles() -> Calendar {
        let mut calendar = with(&[10, 10]);
        for resource in [0, 1] {
            calendar.bundle(&[ResourceId(resource)]);
        }
        calendar
    }

    #[test]
    fn the_earliest_start_is_where_all_resources_agree() {
        let mut calendar = with(&[10, 10]);
        // Each is free where the other is not, until 100.
        for i in 0..10 {
            let id = ReservationId(i);
            let resource = (i % 2) as u32;
            calendar.reserve(id, span(i * 10, i * 10 + 10), &demands(&[(resource, 10)])).unwrap();
        }
        let both = demands(&[(0, 1), (1, 1)]);
        let when = When::after(at(3), Nanos::new(5));
        assert_eq!(calendar.earliest_fit(when, &both), Ok(Some(at(100))));
        assert_eq!(calendar.earliest_fit(when.until(at(99)), &both), Ok(None));
        assert_eq!(calendar.earliest_fit(when, &both[..1]), Ok(Some(at(10))));
        assert_eq!(calendar.earliest_fit(when, &[]), Ok(Some(at(3))));
    }

    #[test]
    fn who_is_concerned_by_a_smaller_capacity_can_be_told() {
        let mut calendar = with(&[100, 100]);
        calendar.reserve(ReservationId(1), span(0, 10), &demands(&[(0, 40)])).unwrap();
        calendar.reserve(ReservationId(2), span(5, 15), &demands(&[(0, 40)])).unwrap();
        calendar.reserve(ReservationId(3), span(5, 15), &demands(&[(1, 40), (0, 0)])).unwrap();
        calendar.reserve(ReservationId(4), span(9, 11), &demands(&[(0, 1)])).unwrap();
        let excesses = calendar.set_capacity(ResourceId(0), 50).unwrap();
        assert_eq!(excesses.len(), 1);
        assert_eq!((excesses[0].span, excesses[0].most), (span(5, 10), 31));
        let concerned = calendar.holders(ResourceId(0), excesses[0].span).map(|(id, _)| id.0);
        assert_eq!(concerned.collect::<Vec<_>>(), [1, 2, 4]);
    }

    // Goal: what was promised is held though there is less now, and what comes next meets what there is. Method: one resource
    // may be exceeded and one may not.
    #[test]
    fn what_was_promised_before_there_was_less_is_held_and_counts() {
        let mut calendar = with(&[100, 100]);
        let promised = demands(&[(0, 80), (1, 10)]);
        let is_first = |resource: ResourceId| resource == ResourceId(0);
        for id in [1, 2].map(ReservationId) {
            calendar.reserve_beyond(id, span(0, 10), &promised, is_first).unwrap();
        }
        assert_eq!(shown(&calendar), ["[0, 10): 160 [10, ..): 0", "[0, 10): 20 [10, ..): 0"]);
        let little = demands(&[(0, 1)]);
        let refusal = calendar.reserve(ReservationId(3), span(5, 15), &little).unwrap_err();
        assert_eq!(refusal.to_string(), "resource 0 lacks 1 from 5 ns on");
        let when = When::after(at(5), Nanos::new(1));
        assert_eq!(calendar.earliest_fit(when, &little), Ok(Some(at(10))));
        let before = shown(&calendar);
        let much = demands(&[(0, 1), (1, 81)]);
        let refusal = calendar.reserve_beyond(ReservationId(3), span(5, 15), &much, is_first);
        assert_eq!(refusal.unwrap_err().to_string(), "resource 1 lacks 1 from 5 ns on");
        let endless = demands(&[(0, u64::MAX)]);
        let refusal = calendar.reserve_beyond(ReservationId(3), span(5, 15), &endless, is_first);
        assert_eq!(refusal, Err(Refusal::TooMuch(ResourceId(0))));
        let taken = calendar.reserve_beyond(ReservationId(1), span(20, 30), &little, is_first);
        assert_eq!(taken, Err(Refusal::HeldAlready(ReservationId(1))));
        assert_eq!(shown(&calendar), before);
        // Less of what one has is never refused, and what is given back counts no more.
        calendar.modify(ReservationId(1), span(0, 10), &demands(&[(0, 70)])).unwrap();
        calendar.release(ReservationId(2)).unwrap();
        calendar.reserve(ReservationId(3), span(5, 15), &demands(&[(0, 30)])).unwrap();
    }

    #[test]
    fn what_has_ended_expires_and_leaves_nothing() {
        let mut calendar = with(&[100]);
        let some = demands(&[(0, 40)]);
        calendar.reserve(ReservationId(1), span(5, 15), &some).unwrap();
        calendar.reserve(ReservationId(2), span(0, 10), &some).unwrap();
        calendar.reserve(ReservationId(3), Span::since(at(10)), &some).unwrap();
        let expired = |calendar: &mut Calendar, now| {
            calendar.expire(at(now)).into_iter().map(|(id, _)| id.0).collect::<Vec<_>>()
        };
        assert!(expired(&mut calendar, 9).is_empty());
        assert_eq!(expired(&mut calendar, 10), [2]);
        assert_eq!(shown(&calendar), ["[0, 5): 0 [5, 10): 40 [10, 15): 80 [15, ..): 40"]);
        // An end that was moved is the one that counts.
        calendar.modify(ReservationId(1), span(5, 12), &some).unwrap();
        assert_eq!(expired(&mut calendar, u64::MAX), [1]);
        calendar.release(ReservationId(3)).unwrap();
        assert_eq!(shown(&calendar), ["[0, ..): 0"]);
    }

    #[test]
    fn of_what_nothing_is_asked_nothing_is_held() {
        let mut calendar = with(&[100, 100]);
        calendar.reserve(ReservationId(1), span(0, 9), &demands(&[(1, 0), (0, 5)])).unwrap();
        assert_eq!(*calendar.held(ReservationId(1)).unwrap().demands, *demands(&[(0, 5)]));
        calendar.modify(ReservationId(1), span(0, 9), &demands(&[(1, 5), (0, 0)])).unwrap();
        assert_eq!(shown(&calendar), ["[0, ..): 0", "[0, 9): 5 [9, ..): 0"]);
    }

    /// Every group's bundles, and the groups in order.
    fn groups(calendar: &mut Calendar) -> Vec<Vec<u32>> {
        calendar.settle();
        let numbers = |group: &BTreeSet<BundleId>| group.iter().map(|bundle| bundle.0).collect();
        calendar.alike().map(numbers).collect()
    }

    #[test]
    fn bundles_are_alike_as_long_as_nothing_differs() {
        let mut calendar = with(&[10, 4, 10, 4, 10, 5]);
        let bundle = |calendar: &mut Calendar, first| {
            calendar.bundle(&[ResourceId(first), ResourceId(first + 1)]).0
        };
        assert_eq!([2, 0].map(|first| bundle(&mut calendar, first)), [0, 1]);
        assert_eq!(groups(&mut calendar), [[0, 1]]);
        calendar.reserve(ReservationId(1), span(0, 9), &demands(&[(4, 3)])).unwrap();
        // What was reserved before counts, and so does the capacity.
        assert_eq!(bundle(&mut calendar, 4), 2);
        assert_eq!(groups(&mut calendar), [vec![0, 1], vec![2]]);
        calendar.reserve(ReservationId(2), span(0, 9), &demands(&[(0, 3), (2, 3)])).unwrap();
        calendar.set_capacity(ResourceId(5), 4).unwrap();
        assert_eq!(groups(&mut calendar), [[0, 1, 2]]);
        calendar.modify(ReservationId(2), span(0, 9), &demands(&[(0, 3), (3, 3)])).unwrap();
        assert_eq!(groups(&mut calendar).len(), 2, "another place");
        calendar.release(ReservationId(2)).unwrap();
        assert_eq!(groups(&mut calendar), [vec![0, 1], vec![2]]);
        assert_eq!(calendar.expire(at(9)).len(), 1);
        assert_eq!(groups(&mut calendar), [[0, 1, 2]]);
    }

    #[test]
    fn bundles_that_have_the_same_in_other_places_are_not_alike() {
        let mut calendar = with(&[10, 4, 4, 10]);
        [[0, 1], [2, 3], [1, 0]].iter().for_each(|pair| {
            calendar.bundle(&pair.map(ResourceId));
        });
        let mut groups = groups(&mut calendar);
        groups.sort_unstable();
        assert_eq!(groups, [vec![0], vec![1, 2]]);
    }

    proptest! {
        // Goal: bundles are in one group just where the same is held of their resources, whatever was done
        // in between. Method: reservations that take the same of some of three bundles, so that
        // bundles are often alike, compared with the list of what is held.
        #[test]
        fn groups_are_those_of_what_is_held(
            operations in proptest::collection::vec(
                (0u64..5, 0u32..4, 0u32..8, 0u64..3, 1u64..3, [0u64..2, 0..2]), 1..60
            ),
        ) {
            let mut calendar = with(&[10, 4, 10, 4, 10, 4]);
            for first in [0, 2, 4] {
                calendar.bundle(&[ResourceId(first), ResourceId(first + 1)]);
            }
            for (number, kind, mask, from, length, amounts) in operations {
                let id = ReservationId(number);
                let chosen = (0..3).filter(|bundle| mask >> bundle & 1 == 1);
                let of = |bundle: u32| [(2 * bundle, amounts[0]), (2 * bundle + 1, amounts[1])];
                let asked = demands(&chosen.flat_map(of).collect::<Vec<_>>());
                let span = span(from, from + length);
                let _ = match kind {
                    0 | 1 => calendar.reserve(id, span, &asked),
                    2 => calendar.modify(id, span, &asked),
                    _ => calendar.release(id).map(drop),
                };
                let groups = groups(&mut calendar);
                let held = |bundle: u32| {
                    let entries = |(_, held): (_, &Held)| {
                        let Held { span, .. } = *held;
                        [0, 1].map(|place| {
                            let amount = held.amount_of(ResourceId(2 * bundle + place));
                            (place, span.from(), span.to(), amount)
                        })
                    };
                    let mut all: Vec<_> = calendar.reservations().flat_map(entries).collect();
                    all.retain(|(.., amount)| *amount > 0);
                    all.sort_unstable();
                    all
                };
                let group = |bundle| groups.iter().position(|group| group.contains(&bundle));
                prop_assert_eq!(groups.concat().len(), 3);
                for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                    prop_assert_eq!(group(one) == group(other), held(one) == held(other));
                }
            }
        }

        #[test]
        fn it_says_what_arrays_of_slots_and_a_list_say(
            operations in proptest::collection::vec(any::<[u32; 8]>(), 1..200),
            instants in 2usize..60,
        ) {
            let mut pair = CalendarPair::new(&[10, 20, 5, 40], instants, 12);
            for words in operations {
                pair.operate(words);
                pair.compare();
            }
            for id in (0..12).map(ReservationId) {
                let _ = pair.calendar.release(id);
            }
            prop_assert!(shown(&pair.calendar).iter().all(|table| table == "[0, ..): 0"));
        }
    }
}
