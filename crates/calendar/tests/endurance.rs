//! Many random operations on tables with nodes of full size, against one number for every instant.

mod naive;

use naive::{Pair, Random};

fn operate(operations: u32, seed: u64) {
    let mut random = Random(seed);
    let mut pair = Pair::new(100, 20_000);
    for i in 0..operations {
        pair.operate(random.words());
        if i % 10_000 == 0 {
            pair.compare();
        }
    }
    pair.compare();
}

#[test]
fn thirty_thousand_operations_say_what_an_array_says() {
    operate(30_000, 1);
}

/// `cargo test --release -p keeptime-calendar --test endurance -- --ignored`
#[test]
#[ignore = "takes half a minute in release mode"]
fn a_million_operations_say_what_an_array_says() {
    operate(1_000_000, 2);
}
