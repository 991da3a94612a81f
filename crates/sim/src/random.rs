//! Chance from a seed: the same draws on every machine, in every version.

use keeptime_model::units::Nanos;
use std::ops::Range;

/// SplitMix64 (Steele, Lea and Flood 2014): 64 bits of state, every seed is a good one.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// One of the generators of `seed`: what is drawn for one purpose does not shift what another gets.
    pub fn of(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed);
        let first = random.word();
        Self(first ^ purpose.wrapping_mul(0xD605_0B7C_9DA5_96E5))
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// At least 0 and below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Within `range`, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Within `range`, which is not empty.
    pub fn span(&mut self, range: Range<Nanos>) -> Nanos {
        Nanos::new(self.within(range.start.get()..range.end.get()))
    }

    /// True once in `count` times.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of `items`; nothing if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.below(items.len() as u64) as usize;
        items.get(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_published_generator() {
        // The first words of seed 1234567, as in the reference implementation's tests.
        let mut random = Random(1_234_567);
        let words = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.word(), random.word()], words);
    }

    #[test]
    fn draws_stay_in_their_bounds_and_purposes_differ() {
        let (mut one, mut other) = (Random::of(1, 1), Random::of(1, 2));
        assert_ne!(one.word(), other.word());
        assert!((0..1_000).all(|_| (3..7).contains(&one.within(3..7))));
        assert!((0..1_000).any(|_| one.is_one_in(100)));
        assert_eq!(one.below(0), 0);
        assert_eq!(one.pick::<u8>(&[]), None);
    }
}
