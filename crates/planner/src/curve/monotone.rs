//! Isotonic regression.

use keeptime_model::units::Nanos;

struct Block {
    sum: u128,
    weight: u128,
    length: usize,
}

/// The non-increasing sequence nearest to `values` (value, weight) in the sense of weighted
/// least squares, rounded up. Pool adjacent violators; O(values).
pub(crate) fn non_increasing(values: &[(Nanos, u32)]) -> Vec<Nanos> {
    let mut blocks: Vec<Block> = Vec::new();
    for (value, weight) in values {
        let weight = u128::from((*weight).max(1));
        let mut block = Block { sum: u128::from(value.get()) * weight, weight, length: 1 };
        while let Some(before) = blocks.pop_if(|b| b.sum * block.weight < block.sum * b.weight) {
            block.sum += before.sum;
            block.weight += before.weight;
            block.length += before.length;
        }
        blocks.push(block);
    }
    let mean = |b: &Block| Nanos::new(b.sum.div_ceil(b.weight) as u64);
    blocks.iter().flat_map(|b| std::iter::repeat_n(mean(b), b.length)).collect()
}
