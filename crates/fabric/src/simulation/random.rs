//! Chance from a seed: the same draws on every machine.

use std::time::Duration;

/// SplitMix64 (Steele, Lea and Flood 2014): 64 bits of state, every seed is a good one.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// That of `seed`.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// At least 0 and below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Which of `count`; 0 if there is none.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True once in `count` times.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of `items`; nothing if there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = self.index(items.len());
        items.get(at).copied()
    }

    /// Less than `most`.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(most.as_nanos() as u64))
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}
