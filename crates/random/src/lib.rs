//! Owns chance from a seed: the same draws on every machine, in every version. Never for secrets.
//!
//! ```
//! use keeptime_random::Random;
//!
//! let mut draws = Random::new(7);
//! assert_eq!(draws.below(6), Random::new(7).below(6));
//! assert!(draws.part() < 1.0);
//! ```
#![forbid(unsafe_code)]

use std::f64::consts::TAU;
use std::ops::Range;

/// SplitMix64 (Steele, Lea and Flood 2014): 64 bits of state. Every seed is a good one, also beside its neighbours, whose
/// draws have nothing to do with its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// What `seed` gives.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of the generators of `seed`: what is drawn for one purpose does not shift what another gets.
    pub fn of(seed: u64, purpose: u64) -> Self {
        Self(Self(seed).word() ^ purpose.wrapping_mul(0xD605_0B7C_9DA5_96E5))
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

    /// Which of `count`; 0 if there is none.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Within `range`, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True once in `count` times.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of `items`; nothing if there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.index(items.len());
        items.get(at)
    }

    /// Evenly, at least 0 and below 1.
    pub fn part(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From a normal distribution around 0 with deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = 1.0 - self.part();
        normal(radius, self.part())
    }

    /// From an exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        exponential(1.0 - self.part())
    }
}

/// What two numbers that are evenly distributed, the first above 0 and at most 1, come to in a normal distribution
/// around 0 with deviation 1 (Box and Muller).
pub fn normal(radius: f64, angle: f64) -> f64 {
    (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
}

/// What a number that is evenly distributed, above 0 and at most 1, comes to in an exponential distribution with mean 1.
pub fn exponential(uniform: f64) -> f64 {
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 20_000;

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn draws_are_those_of_the_published_generator() {
        // The first words of seed 1234567, as in the reference implementation's tests.
        let mut random = Random::new(1_234_567);
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

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::new(7);
        let mut draw = |of: fn(&mut Random) -> f64| -> Vec<f64> {
            (0..COUNT).map(|_| of(&mut random)).collect()
        };
        let normal = draw(Random::normal);
        let squares: Vec<_> = normal.iter().map(|value| value.powi(2)).collect();
        assert!(mean(&normal).abs() < 0.03 && (mean(&squares) - 1.0).abs() < 0.05);
        assert!((mean(&draw(Random::part)) - 0.5).abs() < 0.01);
        assert!((mean(&draw(Random::exponential)) - 1.0).abs() < 0.03);
        assert!((mean(&draw(|random| random.below(11) as f64)) - 5.0).abs() < 0.1);
    }

    // Goal: runs of neighbouring seeds are as many different runs, so that a mean of ten is one of ten. Method: the
    // correlation of what each seed gives at first, second and so on with what the next seed gives there.
    #[test]
    fn neighbouring_seeds_have_nothing_to_do_with_each_other() {
        for draws in [1, 2, 5] {
            let of = |seed: usize| {
                let mut random = Random::new(seed as u64);
                (0..draws).map(|_| random.part()).last().unwrap_or_default() - 0.5
            };
            let products: Vec<_> = (0..COUNT).map(|seed| of(seed) * of(seed + 1)).collect();
            // The variance of a part is a twelfth.
            let correlation = 12.0 * mean(&products);
            assert!(correlation.abs() < 0.03, "{correlation} of draw {draws}");
        }
    }
}
