//! Very many random operations, on trees with nodes of full size.

mod naive;

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
