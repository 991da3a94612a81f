//! Randomness that is the same for the same seed.

/// Numbers that look random.
#[derive(Debug, Clone)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Evenly between 0 and 1.
    pub fn part(&mut self) -> f64 {
        self.0.f64()
    }

    /// From a normal distribution around 0 with deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.part()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.part()).cos()
    }

    /// From an exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.part()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_moments_and_repeat() {
        let (mut random, mut again) = (Random::new(7), Random::new(7));
        let values: Vec<_> = (0..20_000).map(|_| random.normal()).collect();
        assert!(values.iter().all(|value| *value == again.normal()));
        let mean = values.iter().sum::<f64>() / 2e4;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 2e4;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let mean = (0..20_000).map(|_| random.exponential()).sum::<f64>() / 2e4;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }
}
