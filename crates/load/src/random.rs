//! Random numbers that are the same for the same seed everywhere (SplitMix64).

/// A sequence of random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// At least 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// At least 0 and below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Exponential with a mean of 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(mut next: impl FnMut() -> f64) -> f64 {
        (0..100_000).map(|_| next()).sum::<f64>() / 1e5
    }

    #[test]
    fn means_are_what_they_should_be() {
        let mut random = Random::new(1);
        assert!((mean(|| random.unit()) - 0.5).abs() < 0.01);
        assert!((mean(|| random.exponential()) - 1.0).abs() < 0.02);
        assert!((mean(|| random.below(11) as f64) - 5.0).abs() < 0.1);
    }

    #[test]
    fn known_numbers_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }
}
