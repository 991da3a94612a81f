//! One resource: how much of it is reserved when.

use crate::search::{Search, Wanted};
use crate::span::{NEVER, Span, Stretch, When};
use crate::tree::{Change, Extent, Node};
use keeptime_model::units::WallTime;
use thiserror::Error;

/// The amounts of one resource that are reserved over time, and its capacity.
///
/// It keeps sums, not entries: who holds what is known by the caller ([`crate::Calendar`]).
/// In what follows n is the number of instants at which the sum changes: at most two for each entry.
/// A table without entries takes no memory but its own 40 bytes.
///
/// An amount of 0 and an empty span fit always, even on a table that is over-committed, and reserve
/// nothing. What `used` and `capacity` count is the caller's matter; both may be all of a `u64`.
#[derive(Debug, Clone)]
pub struct SlotTable {
    capacity: u64,
    root: Node,
}

/// An entry of a slot table: `amount` is reserved over `span`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// When.
    pub span: Span,
    /// How much, in the unit of the resource.
    pub amount: u64,
}

/// Why an amount does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("lacks {lacking} from {} ns on", .first.unix_nanos())]
pub struct Lack {
    /// How much less would have fitted.
    pub lacking: u64,
    /// The first instant at which it does not fit.
    pub first: WallTime,
}

/// Something was to be taken off that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("less than {amount} is reserved at {} ns", .first.unix_nanos())]
pub struct NotReserved {
    /// The amount that was to be taken off.
    pub amount: u64,
    /// The first instant at which less is reserved.
    pub first: WallTime,
}

/// Why an entry was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The new entry does not fit in place of the old one.
    #[error(transparent)]
    Lacks(#[from] Lack),
    /// There is no such old entry.
    #[error(transparent)]
    NotReserved(#[from] NotReserved),
}

/// A longest span on which the same amount is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// When.
    pub span: Span,
    /// How much is reserved.
    pub used: u64,
}

/// A longest span on which more is reserved than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// When.
    pub span: Span,
    /// By how much at the worst instant.
    pub most: u64,
}

impl SlotTable {
    /// A table of a resource of which there is `capacity`, nothing reserved.
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, root: Node::idle() }
    }

    /// How much there is.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How much is reserved at `instant`. O(log n).
    pub fn used_at(&self, instant: WallTime) -> u64 {
        let from = instant.unix_nanos().min(u64::MAX - 1);
        self.root.extent(Stretch { from, to: from + 1 }).highest
    }

    /// How much can be reserved over all of `span`: all there is if `span` is empty, nothing if the
    /// table is over-committed. O(log n).
    pub fn least_free(&self, span: Span) -> u64 {
        self.capacity.saturating_sub(self.most_used(span))
    }

    /// How much is reserved at the worst instant of `span`; 0 if it is empty. O(log n).
    pub fn most_used(&self, span: Span) -> u64 {
        span.stretch().map_or(0, |stretch| self.root.extent(stretch).highest)
    }

    /// Why `amount` does not fit over `span`; nothing if it does. O(log n).
    pub fn lack(&self, span: Span, amount: u64) -> Option<Lack> {
        self.lack_in_place_of(Slot::NOTHING, Slot { span, amount })
    }

    /// Why `new` does not fit when it takes the place of `old`, which is there; nothing if it does.
    ///
    /// It is compared only where it takes more than `old`: less of what one has is never refused,
    /// on an over-committed table neither. O(log n).
    pub fn lack_in_place_of(&self, old: Slot, new: Slot) -> Option<Lack> {
        let mut worst: Option<Lack> = None;
        for piece in pieces(old, new) {
            let Some(more) = piece.new.checked_sub(piece.old) else { continue };
            let free = self.capacity.saturating_sub(self.root.extent(piece.stretch).highest);
            if let Some(lacking) = more.checked_sub(free).filter(|lacking| *lacking > 0) {
                let most = self.capacity.checked_sub(more);
                let blocks = |extent: Extent| most.is_none_or(|most| extent.highest > most);
                let first = self.root.first(piece.stretch.from, 0, &blocks);
                let first = WallTime::from_unix_nanos(first.unwrap_or(piece.stretch.from));
                let before = worst.unwrap_or(Lack { lacking, first });
                worst = Some(Lack { lacking: lacking.max(before.lacking), ..before });
            }
        }
        worst
    }

    /// Reserves `amount` over `span`. O(log n).
    ///
    /// # Errors
    /// If it does not fit; nothing is changed then.
    pub fn add(&mut self, span: Span, amount: u64) -> Result<(), Lack> {
        let slot = Slot { span, amount };
        if let Some(lack) = self.lack(span, amount) {
            return Err(lack);
        }
        self.replace(Slot::NOTHING, slot);
        Ok(())
    }

    /// Takes off `amount` over `span`: an entry that was added, or a part of one. O(log n).
    ///
    /// # Errors
    /// If less is reserved at some instant; nothing is changed then.
    pub fn remove(&mut self, span: Span, amount: u64) -> Result<(), NotReserved> {
        let slot = Slot { span, amount };
        self.expect(slot)?;
        self.replace(slot, Slot::NOTHING);
        Ok(())
    }

    /// Puts `new` in the place of `old`. O(log n).
    ///
    /// # Errors
    /// If `old` is not reserved, or `new` does not fit without it; nothing is changed then.
    pub fn change(&mut self, old: Slot, new: Slot) -> Result<(), ChangeError> {
        self.expect(old)?;
        if let Some(lack) = self.lack_in_place_of(old, new) {
            return Err(lack.into());
        }
        self.replace(old, new);
        Ok(())
    }

    /// The earliest start at which `amount` fits for the whole duration.
    ///
    /// O(log n) where a gap is found soon, and where searches that asked for no more and no longer
    /// have noted that there is none. Through what nobody has searched it walks: O(n) at worst.
    pub fn earliest_fit(&self, when: When, amount: u64) -> Option<WallTime> {
        let start = when.after.unix_nanos();
        let latest = when.latest.unix_nanos();
        if start > latest {
            return None;
        }
        if amount == 0 || when.duration.get() == 0 {
            return Some(WallTime::from_unix_nanos(start));
        }
        let most = self.capacity.checked_sub(amount)?;
        let wanted = Wanted { most, duration: when.duration.get(), start, latest };
        Search::<false>::new(wanted).run(&self.root).map(WallTime::from_unix_nanos)
    }

    /// The first instant after `instant` at which another amount is reserved than at `instant`;
    /// nothing if it stays so for ever. O(log n).
    pub fn next_change(&self, instant: WallTime) -> Option<WallTime> {
        let used = self.used_at(instant);
        let differs = |extent: Extent| extent.lowest != used || extent.highest != used;
        self.root.first(instant.unix_nanos(), 0, &differs).map(WallTime::from_unix_nanos)
    }

    /// What is reserved over `span`, in the order of time: spans that touch, cut off at its ends,
    /// each with another amount than its neighbours. O(log n) for each.
    pub fn profile(&self, span: Span) -> impl Iterator<Item = Level> {
        let mut rest = span.stretch();
        std::iter::from_fn(move || {
            let Stretch { from, to } = rest?;
            let start = WallTime::from_unix_nanos(from);
            let change = self.next_change(start).map(WallTime::unix_nanos).filter(|at| *at < to);
            rest = change.map(|from| Stretch { from, to });
            let span = Stretch { from, to: change.unwrap_or(to) }.into();
            Some(Level { span, used: self.used_at(start) })
        })
    }

    /// Sets how much there is from now on, at all instants, and tells when more than that is
    /// reserved. Entries stay as they are; until enough of them are removed, nothing fits there.
    /// O(log n) for each span that is told.
    pub fn set_capacity(&mut self, capacity: u64) -> Vec<Excess> {
        self.capacity = capacity;
        self.over_committed().collect()
    }

    /// When more is reserved than there is, in the order of time. O(log n) for each.
    pub fn over_committed(&self) -> impl Iterator<Item = Excess> {
        let most = self.capacity;
        let mut rest = Span::since(WallTime::from_unix_nanos(0)).stretch();
        std::iter::from_fn(move || {
            let from = self.root.first(rest?.from, 0, &|extent| extent.highest > most)?;
            let to = self.root.first(from, 0, &|extent| extent.lowest <= most).unwrap_or(NEVER);
            rest = Span::since(WallTime::from_unix_nanos(to)).stretch();
            let stretch = Stretch { from, to };
            Some(Excess { span: stretch.into(), most: self.root.extent(stretch).highest - most })
        })
    }

    /// Puts `new` in the place of `old`, which is there, without asking whether it fits.
    pub(crate) fn replace(&mut self, old: Slot, new: Slot) {
        for piece in pieces(old, new) {
            let by = piece.new.wrapping_sub(piece.old);
            let change = Change { by, lowers: piece.new < piece.old };
            debug_assert!(
                self.root.extent(piece.stretch).lowest >= piece.old,
                "{old:?} is not there"
            );
            self.root.change_root(piece.stretch, change);
        }
    }

    /// Says whether `slot` can be taken off.
    fn expect(&self, slot: Slot) -> Result<(), NotReserved> {
        let Slot { span, amount } = slot;
        let Some(stretch) = span.stretch() else { return Ok(()) };
        if self.root.extent(stretch).lowest >= amount {
            return Ok(());
        }
        let first = self.root.first(stretch.from, 0, &|extent| extent.lowest < amount);
        let first = WallTime::from_unix_nanos(first.unwrap_or(stretch.from));
        Err(NotReserved { amount, first })
    }
}

impl Slot {
    /// The entry that reserves nothing.
    pub(crate) const NOTHING: Self =
        Self { span: Span::since(WallTime::from_unix_nanos(u64::MAX)), amount: 0 };
}

/// A stretch on which one entry takes the place of another.
#[derive(Debug, Clone, Copy)]
struct Piece {
    stretch: Stretch,
    old: u64,
    new: u64,
}

/// Where an entry differs from the one whose place it takes, in the order of time.
fn pieces(old: Slot, new: Slot) -> impl Iterator<Item = Piece> {
    let ends = |slot: Slot| slot.span.stretch().map_or([0; 2], |s| [s.from, s.to]);
    let [[a, b], [c, d]] = [ends(old), ends(new)];
    let mut cuts = [a, b, c, d];
    cuts.sort_unstable();
    (0..3).filter_map(move |i| {
        let stretch = Stretch { from: cuts[i], to: cuts[i + 1] };
        let amount = |slot: Slot| {
            let [from, to] = ends(slot);
            if from <= stretch.from && stretch.to <= to { slot.amount } else { 0 }
        };
        let piece = Piece { stretch, old: amount(old), new: amount(new) };
        (stretch.from < stretch.to && piece.old != piece.new).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{Random, TablePair, shown};
    use keeptime_model::units::Nanos;
    use proptest::prelude::*;

    const FIRST: WallTime = at(0);

    const fn at(nanos: u64) -> WallTime {
        WallTime::from_unix_nanos(nanos)
    }

    fn span(from: u64, to: u64) -> Span {
        Span::new(at(from), at(to)).unwrap()
    }

    #[test]
    fn full_capacity_fits_and_one_more_does_not() {
        for capacity in [0, 1, 1_000, u64::MAX - 1] {
            let mut table = SlotTable::new(capacity);
            let lack = Lack { lacking: 1, first: at(5) };
            assert_eq!(table.add(span(5, 9), capacity + 1), Err(lack));
            assert_eq!(table.add(span(5, 9), capacity), Ok(()));
            assert_eq!(table.least_free(span(0, 20)), 0);
            assert_eq!(
                table.add(span(0, 20), 1),
                Err(Lack { lacking: 1, first: at(if capacity > 0 { 5 } else { 0 }) })
            );
        }
        let mut table = SlotTable::new(u64::MAX);
        assert_eq!(table.add(Span::since(FIRST), u64::MAX), Ok(()));
        assert_eq!(table.add(span(7, 8), u64::MAX).unwrap_err().lacking, u64::MAX);
        assert_eq!(table.remove(Span::since(FIRST), u64::MAX), Ok(()));
        assert_eq!(shown(&table), "[0, ..): 0");
    }

    #[test]
    fn what_ends_when_the_next_begins_does_not_overlap_it() {
        let mut table = SlotTable::new(10);
        assert_eq!(table.add(span(0, 5), 10), Ok(()));
        assert_eq!(table.add(span(5, 9), 10), Ok(()));
        assert_eq!(shown(&table), "[0, 9): 10 [9, ..): 0");
        assert_eq!(table.add(span(8, 10), 1), Err(Lack { lacking: 1, first: at(8) }));
    }

    #[test]
    fn nothing_fits_always_and_reserves_nothing() {
        let mut table = SlotTable::new(10);
        table.add(span(2, 4), 10).unwrap();
        table.set_capacity(5);
        assert_eq!(table.add(span(3, 3), u64::MAX), Ok(()));
        assert_eq!(table.add(span(2, 4), 0), Ok(()));
        assert_eq!(table.remove(span(3, 3), 99), Ok(()));
        assert_eq!(table.remove(span(9, 12), 0), Ok(()));
        assert_eq!(table.least_free(span(3, 3)), 5);
        assert_eq!(table.earliest_fit(When::after(at(3), Nanos::new(0)), 99), Some(at(3)));
        assert_eq!(table.earliest_fit(When::after(at(3), Nanos::new(9)), 0), Some(at(3)));
        assert_eq!(table.earliest_fit(When::after(at(3), Nanos::new(9)).until(at(2)), 0), None);
        assert_eq!(shown(&table), "[0, 2): 0 [2, 4): 10 [4, ..): 0");
    }

    #[test]
    fn what_never_ends_is_found_only_where_nothing_follows() {
        let mut table = SlotTable::new(10);
        table.add(Span::since(at(50)), 4).unwrap();
        table.add(span(60, 70), 3).unwrap();
        let ever = When::after(at(5), Nanos::new(u64::MAX));
        assert_eq!(table.earliest_fit(ever, 3), Some(at(5)));
        assert_eq!(table.earliest_fit(ever, 4), Some(at(70)));
        assert_eq!(table.earliest_fit(ever, 7), None);
        assert_eq!(table.earliest_fit(ever.until(at(69)), 4), None);
        assert_eq!(table.earliest_fit(ever.until(at(70)), 4), Some(at(70)));
        assert_eq!(table.next_change(at(70)), None);
        assert_eq!(shown(&table), "[0, 50): 0 [50, 60): 4 [60, 70): 7 [70, ..): 4");
    }

    #[test]
    fn the_far_future_and_the_first_instant_are_like_any_other() {
        let mut table = SlotTable::new(1);
        let last = u64::MAX - 1;
        table.add(span(0, 1), 1).unwrap();
        table.add(Span::since(at(last)), 1).unwrap();
        assert_eq!(table.used_at(at(last - 1)), 0);
        assert_eq!((table.used_at(at(last)), table.used_at(at(u64::MAX))), (1, 1));
        let when = When::after(FIRST, Nanos::new(last - 1));
        assert_eq!(table.earliest_fit(when, 1), Some(at(1)));
        assert_eq!(table.earliest_fit(When { duration: Nanos::new(last), ..when }, 1), None);
    }

    #[test]
    fn a_refusal_tells_the_first_instant_and_the_worst_lack() {
        let mut table = SlotTable::new(100);
        table.add(span(10, 20), 60).unwrap();
        table.add(span(30, 40), 90).unwrap();
        let lack = table.add(span(0, 50), 50).unwrap_err();
        assert_eq!(lack, Lack { lacking: 40, first: at(10) });
        assert_eq!(lack.to_string(), "lacks 40 from 10 ns on");
    }

    #[test]
    fn a_refused_change_tells_the_first_instant_and_the_worst_lack() {
        let old = Slot { span: span(20, 30), amount: 10 };
        let new = Slot { span: span(15, 35), amount: 50 };
        for (before, after, lacking) in [(60, 90, 40), (95, 90, 45)] {
            let mut table = SlotTable::new(100);
            table.add(old.span, old.amount).unwrap();
            table.add(span(10, 20), before).unwrap();
            table.add(span(30, 40), after).unwrap();
            assert_eq!(table.lack_in_place_of(old, new), Some(Lack { lacking, first: at(15) }));
        }
    }

    #[test]
    fn a_profile_ends_where_it_was_asked_to() {
        let mut table = SlotTable::new(100);
        table.add(span(10, 20), 60).unwrap();
        let level = |from, to, used| Level { span: span(from, to), used };
        let profile = |from, to| table.profile(span(from, to)).collect::<Vec<_>>();
        assert_eq!(profile(5, 20), [level(5, 10, 0), level(10, 20, 60)]);
        assert_eq!(profile(12, 21), [level(12, 20, 60), level(20, 21, 0)]);
        assert_eq!(profile(12, 12), []);
    }

    #[test]
    fn what_is_not_there_cannot_be_taken_off() {
        let mut table = SlotTable::new(100);
        table.add(span(10, 20), 60).unwrap();
        let error = table.remove(span(10, 21), 60).unwrap_err();
        assert_eq!(error, NotReserved { amount: 60, first: at(20) });
        let old = Slot { span: span(10, 20), amount: 61 };
        let error = table.change(old, Slot { span: span(50, 60), amount: 1 }).unwrap_err();
        assert_eq!(error.to_string(), "less than 61 is reserved at 10 ns");
        assert_eq!(shown(&table), "[0, 10): 0 [10, 20): 60 [20, ..): 0");
    }

    #[test]
    fn a_change_that_does_not_fit_changes_nothing() {
        let mut table = SlotTable::new(100);
        let [old, other] =
            [Slot { span: span(0, 10), amount: 60 }, Slot { span: span(10, 20), amount: 80 }];
        table.add(old.span, old.amount).unwrap();
        table.add(other.span, other.amount).unwrap();
        let before = shown(&table);
        let error = table.change(old, Slot { span: span(5, 15), amount: 50 }).unwrap_err();
        assert_eq!(error, ChangeError::Lacks(Lack { lacking: 30, first: at(10) }));
        assert_eq!(shown(&table), before);
        table.change(old, Slot { span: span(5, 15), amount: 20 }).unwrap();
        assert_eq!(shown(&table), "[0, 5): 0 [5, 10): 20 [10, 15): 100 [15, 20): 80 [20, ..): 0");
    }

    #[test]
    fn a_smaller_capacity_tells_when_too_much_is_reserved_and_less_can_still_be_asked() {
        let mut table = SlotTable::new(100);
        let [long, short] =
            [Slot { span: span(0, 30), amount: 40 }, Slot { span: span(10, 20), amount: 30 }];
        table.add(long.span, long.amount).unwrap();
        table.add(short.span, short.amount).unwrap();
        let told = table.set_capacity(35);
        assert_eq!(told, [Excess { span: span(0, 30), most: 35 }]);
        assert_eq!(table.least_free(long.span), 0);
        assert_eq!(table.add(span(29, 31), 1).unwrap_err(), Lack { lacking: 1, first: at(29) });
        // Still too much between 10 and 20, but nobody gets more than before.
        let less = Slot { amount: 20, ..long };
        assert_eq!(table.change(long, less), Ok(()));
        assert_eq!(
            table.over_committed().collect::<Vec<_>>(),
            [Excess { span: span(10, 20), most: 15 }]
        );
        assert!(table.change(less, Slot { amount: 21, ..less }).is_err());
    }

    #[test]
    fn an_empty_table_is_small_and_becomes_so_again() {
        assert!(size_of::<SlotTable>() <= 40);
        let mut table = SlotTable::new(1_000);
        let slots: Vec<_> = (0..300).map(|i| span(i * 7 % 300, 300 + i)).collect();
        slots.iter().for_each(|slot| table.add(*slot, 1).unwrap());
        assert!(table.root.check() > 2);
        slots.iter().for_each(|slot| table.remove(*slot, 1).unwrap());
        assert!(matches!(&table.root, Node::Leaf(steps) if steps.capacity() == 0));
    }

    #[test]
    fn a_comb_of_gaps_that_are_all_too_short_is_passed() {
        let mut table = SlotTable::new(10);
        for tooth in 0..500 {
            table.add(span(tooth * 10, tooth * 10 + 3 + tooth % 3), 1 + tooth % 10).unwrap();
        }
        let when = |nanos| When::after(at(1), Nanos::new(nanos));
        assert_eq!(table.earliest_fit(when(7), 10), Some(at(3)));
        assert_eq!(table.earliest_fit(when(8), 10), Some(at(4_994)));
        // With 8, teeth of 1 and 2 can be crossed: from after one of 10 to one of 3.
        assert_eq!(table.earliest_fit(when(19), 8), Some(at(1)));
        assert_eq!(table.earliest_fit(when(27), 8), Some(at(93)));
        assert_eq!(table.earliest_fit(when(28), 8), Some(at(4_994)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn it_says_what_an_array_of_slots_says(
            operations in proptest::collection::vec(any::<[u32; 4]>(), 1..400),
            instants in 2usize..300,
        ) {
            let mut pair = TablePair::new(100, instants);
            for words in operations {
                pair.operate(words);
                pair.table.root.check();
            }
            pair.compare();
        }
    }

    #[test]
    fn a_table_becomes_small_again_when_most_is_taken_off() {
        let entry = |i: u64| span(3 * i, 3 * i + 1);
        for order in [Vec::from_iter(0..1_000), (0..1_000).rev().collect()] {
            let mut table = SlotTable::new(1);
            order.iter().for_each(|i| table.add(entry(*i), 1).unwrap());
            let deep = table.root.check();
            let gone = order.iter().filter(|i| !i.is_multiple_of(250));
            gone.for_each(|i| table.remove(entry(*i), 1).unwrap());
            let flat = table.root.check();
            assert!(2 * flat <= deep, "{deep} {flat}");
        }
    }

    /// What is hard to search: many places that nearly fit. `words` are the lengths and heights.
    fn hard(shape: usize, words: &[u32], instants: u64) -> Vec<Slot> {
        let mut slots = Vec::new();
        let mut put = |from: u64, to: u64, amount: u64| {
            let span = if to < instants { span(from, to) } else { Span::since(at(from)) };
            slots.extend((from < instants).then_some(Slot { span, amount }));
        };
        let mut from = 0;
        for (i, word) in (0..).zip(words).take_while(|(i, _)| i * 2 < instants) {
            let (short, height) = (1 + u64::from(word % 4), u64::from(word >> 8) % 101);
            match shape {
                // Walls with nothing between them; gaps and walls of all depths; two kinds of
                // gaps, neither good enough; up and down again; gaps of many kinds, the longer the
                // less free; long plateaus that hardly differ.
                0 => put(from, from + 1, 100),
                1 => [(0, height / 2), (short, 51 + height / 2 % 50)]
                    .into_iter()
                    .for_each(|(since, amount)| put(from + since, from + 4, amount)),
                2 => [(1, 100), (8, [0, 51][i as usize % 2])]
                    .into_iter()
                    .for_each(|(length, amount)| put(from, from + length, amount)),
                3 => put(i, instants - 1 - i, 1),
                4 => [(0, 1, 100), (1, 4 + i % 8, i % 8 * 12)]
                    .into_iter()
                    .for_each(|(since, until, amount)| put(from + since, from + until, amount)),
                _ => put(from, from + 40, 49 + height % 3),
            }
            from += [7, 4 + short, 9 + i % 2, 0, 4 + i % 8, 40][shape];
        }
        slots
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn places_that_nearly_fit_are_told_from_those_that_do(
            shape in 0usize..6,
            words in proptest::collection::vec(any::<u32>(), 40..120),
            questions in proptest::collection::vec(any::<[u32; 4]>(), 40..120),
        ) {
            let instants = 400;
            // Beside all of it, a little that comes and goes everywhere at once.
            let over = Slot { span: Span::since(FIRST), amount: 0 };
            let mut pair = TablePair::new(103, instants as usize);
            pair.add(over);
            hard(shape, &words, instants).into_iter().for_each(|slot| pair.add(slot));
            for [a, b, c, d] in questions {
                let duration = [0, 1, 3, 5, 7, 8, 9, 10, 40, 41, u64::MAX, u64::from(b % 64)];
                let amount = [0, 1, 49, 50, 51, 100, 101, u64::from(b >> 8) % 102];
                let after = [0, u64::from(c) % instants][c as usize >> 16 & 1];
                let when = When::after(at(after), Nanos::new(duration[a as usize % 12]));
                let when = if d.is_multiple_of(8) { when.until(at(after + u64::from(d >> 8) % 100)) } else { when };
                pair.ask(when, amount[a as usize >> 8 & 7]);
                pair.table.root.check();
                if d.is_multiple_of(5) {
                    pair.change(0, Slot { amount: u64::from(d >> 12) % 4, ..over });
                    pair.table.root.check();
                }
                // One is taken off, now and then for good, and others may take its place.
                if d.is_multiple_of(3) && pair.entries() > 1 {
                    let old = pair.remove(1 + d as usize % (pair.entries() - 1));
                    pair.table.root.check();
                    pair.ask(when, amount[a as usize >> 8 & 7]);
                    let amount = old.amount.saturating_sub(u64::from(d >> 4 & 1));
                    pair.add(Slot { amount, ..old });
                    pair.table.root.check();
                }
            }
            pair.compare();
        }
    }

    /// Long enough that trees grow deep, shrink and are forgotten.
    #[test]
    fn it_still_does_after_many_operations() {
        let mut random = Random(1);
        for instants in [50, 3_000] {
            let mut pair = TablePair::new(100, instants);
            for i in 0..20_000 {
                pair.operate(random.words());
                if i % 500 == 0 {
                    pair.table.root.check();
                    pair.compare();
                }
            }
        }
    }
}
