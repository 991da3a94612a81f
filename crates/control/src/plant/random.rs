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
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// What a number that is evenly distributed, above 0 and at most 1, comes to in an exponential distribution with mean 1.
pub fn exponential(uniform: f64) -> f64 {
    -uniform.ln()
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
