//! Very many random operations, on trees with nodes of full size.

mod naive;

use keeptime_calendar::table::Slot;
use keeptime_calendar::{Span, When};
use keeptime_model::units::{Nanos, WallTime};
use naive::{CalendarPair, Random, TablePair};

/// A tenth in debug mode, where models are slow.
const OPERATIONS: u32 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
const COMPARED_EVERY: u32 = 10_000;

/// Reserve, modify, release, expire and search: nothing oversubscribed, nothing lost.
#[test]
fn a_million_operations_say_what_arrays_of_slots_say() {
    let mut random = Random(2);
    let mut pair = CalendarPair::new(&[100, 60, 200], 4_000, 2_000);
    let mut most_live = 0;
    for i in 0..OPERATIONS {
        pair.operate(random.words());
        most_live = most_live.max(pair.live());
        if i % COMPARED_EVERY == 0 {
            pair.compare();
        }
    }
    pair.compare();
    assert!(most_live > 500, "at most {most_live} at a time");
}

/// So many instants that a table has several blocks, which searches sum up.
#[test]
fn a_long_table_says_what_an_array_says() {
    let mut random = Random(1);
    let mut pair = TablePair::new(100, 40_000);
    for i in 0..OPERATIONS / 5 {
        pair.operate(random.words());
        if i % COMPARED_EVERY == 0 {
            pair.compare();
        }
    }
    pair.compare();
}

/// So many kinds of questions, each for a little more than there is, that searches become long ones: the longer
/// a gap the less is free in it. Between them, reservations go and come back, some of them smaller.
#[test]
fn questions_of_many_kinds_about_gaps_of_as_many_are_answered_as_by_an_array() {
    const KINDS: u64 = 16;
    let at = WallTime::from_unix_nanos;
    let mut pair = TablePair::new(1_000, 230_000);
    let mut from = 0;
    for kind in (0..12_000).map(|gap| gap % KINDS) {
        for (length, amount) in [(1, 1_000), (9 + kind, kind * 60)] {
            let span = Span::lasting(at(from), Nanos::new(length));
            pair.add(Slot { span, amount });
            from += length;
        }
    }
    let mut random = Random(3);
    for _ in 0..1_000 {
        let [kind, after, index, less] = random.words().map(u64::from);
        let kind = kind % KINDS;
        let when = When::after(at(after % 600), Nanos::new(10 + kind));
        pair.ask(when, 1_000 - kind * 60);
        let old = pair.remove(index as usize % pair.entries());
        if less.is_multiple_of(2) {
            pair.ask(when, 1_000 - kind * 60);
        }
        let amount = old.amount.saturating_sub(u64::from(less.is_multiple_of(16)));
        pair.add(Slot { amount, ..old });
    }
    pair.compare();
}
