//! Very many random operations, on trees with nodes of full size.

mod naive;

use naive::{CalendarPair, Random, TablePair};

fn operate(pair: &mut CalendarPair, operations: u32, random: &mut Random) {
    for i in 0..operations {
        pair.operate(random.words());
        if i % 10_000 == 0 {
            pair.compare();
        }
    }
    pair.compare();
}

/// Reserve, modify, release, expire and search: nothing oversubscribed, nothing lost.
#[test]
fn a_million_operations_say_what_arrays_of_slots_say() {
    // Seconds in release mode, as the gate runs it, but half a minute in debug mode.
    let operations = if cfg!(debug_assertions) { 30_000 } else { 1_000_000 };
    let mut pair = CalendarPair::new(&[100, 60, 200], 4_000, 2_000);
    operate(&mut pair, operations, &mut Random(2));
}

/// So many instants that a table has several blocks, which searches sum up.
#[test]
fn a_long_table_says_what_an_array_says() {
    let mut random = Random(1);
    let mut pair = TablePair::new(100, 40_000);
    for i in 0..if cfg!(debug_assertions) { 20_000 } else { 200_000 } {
        pair.operate(random.words());
        if i % 10_000 == 0 {
            pair.compare();
        }
    }
    pair.compare();
}
