//! When which site is asked: pure, and the same for the same seed.

use keeptime_model::Invalid;
use keeptime_model::units::Nanos;
use keeptime_random::Random;

/// Most requests of one run: the time of each is kept until the report.
pub const REQUESTS_MAX: u64 = 5_000_000;
/// Most requests a second.
pub const RATE_MAX: f64 = 1e6;

/// How requests arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrivals(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Random { rate: f64 },
    Bursts { rate: f64, length: u64 },
    Replay { counts: Vec<u64>, step: Nanos, scale: f64 },
}

/// A request that is meant to be sent at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intended {
    /// Since the start.
    pub at: Nanos,
    /// To which of the sites.
    pub target: u32,
}

/// All requests of a run in the order of time.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Kind,
    targets: u32,
    end: Nanos,
    random: Random,
    now: f64,
    sent: u64,
    /// Of a replay: the step that comes next, what was rounded off so far, and what is left of the
    /// step, last first.
    step: usize,
    rest: f64,
    left: Vec<Nanos>,
}

impl Arrivals {
    /// `rate` requests a second at random (Poisson), each to a random site.
    ///
    /// # Errors
    /// If the rate is not above 0 or beyond [`RATE_MAX`].
    pub fn random(rate: f64) -> Result<Self, Invalid> {
        check_rate(rate)?;
        Ok(Self(Kind::Random { rate }))
    }

    /// `length` requests for the first site, then as many for the second, and so on, at random times,
    /// `rate` a second.
    ///
    /// # Errors
    /// As [`Self::random`], or if a burst has no requests.
    pub fn bursts(rate: f64, length: u64) -> Result<Self, Invalid> {
        check_rate(rate)?;
        if !(1..=REQUESTS_MAX).contains(&length) {
            return Err(Invalid::new("burst", length, format!("1 to {REQUESTS_MAX} requests")));
        }
        Ok(Self(Kind::Bursts { rate, length }))
    }

    /// So many requests in each `step`, times `scale`, at random times within it, each to a random
    /// site.
    ///
    /// # Errors
    /// If the step is empty, the scale is not above 0, or a step has more than [`RATE_MAX`] a second.
    pub fn replay(counts: Vec<u64>, step: Nanos, scale: f64) -> Result<Self, Invalid> {
        if step == Nanos::new(0) {
            return Err(Invalid::new("step", step, "a time above 0"));
        }
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Invalid::new("scale", scale, "a number above 0"));
        }
        let greatest = counts.iter().max().copied().unwrap_or(0) as f64 * scale;
        if greatest / step.as_secs_f64() > RATE_MAX {
            let expected = format!("at most {RATE_MAX} requests a second at any time");
            return Err(Invalid::new("scale", scale, expected));
        }
        Ok(Self(Kind::Replay { counts, step, scale }))
    }

    /// How long a replay is; others have no end of their own.
    pub fn length(&self) -> Option<Nanos> {
        match &self.0 {
            Kind::Replay { counts, step, .. } => {
                Some(Nanos::new(step.get().saturating_mul(counts.len() as u64)))
            }
            Kind::Random { .. } | Kind::Bursts { .. } => None,
        }
    }
}

/// Counts from lines `PERIOD,COUNT`, as logs are summed up; a first line of names is skipped.
///
/// # Errors
/// If another line does not end in a whole number, or there is none.
pub fn parse_counts(text: &str) -> Result<Vec<u64>, Invalid> {
    let mut counts = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let last = line.rsplit(',').next().unwrap_or(line).trim();
        match last.parse() {
            Ok(count) => counts.push(count),
            Err(_) if at == 0 || line.trim().is_empty() => {}
            Err(_) => {
                let field = format!("line {}", at + 1);
                return Err(Invalid::new(field, line, "a whole number after the last comma"));
            }
        }
    }
    if counts.is_empty() {
        return Err(Invalid::new("counts", "no line", "lines that end in a whole number"));
    }
    Ok(counts)
}

impl Schedule {
    /// Requests to `targets` sites until `end`.
    pub fn new(arrivals: Arrivals, targets: u32, end: Nanos, seed: u64) -> Self {
        Self {
            arrivals: arrivals.0,
            targets,
            end,
            random: Random::new(seed),
            now: 0.0,
            sent: 0,
            step: 0,
            rest: 0.0,
            left: Vec::new(),
        }
    }

    fn after(&mut self, rate: f64) -> Option<Nanos> {
        self.now += self.random.exponential() / rate;
        Nanos::from_secs_f64(self.now)
    }

    fn replayed(&mut self) -> Option<Nanos> {
        loop {
            if let Some(at) = self.left.pop() {
                return Some(at);
            }
            let Kind::Replay { counts, step, scale } = &self.arrivals else { return None };
            let (from, length) = (step.get().checked_mul(self.step as u64)?, step.get());
            let wanted = *counts.get(self.step)? as f64 * scale + self.rest;
            self.step += 1;
            self.rest = wanted.fract();
            let count = (wanted.floor() as u64).min(REQUESTS_MAX);
            self.left = (0..count)
                .map(|_| Nanos::new(from.saturating_add(self.random.below(length))))
                .collect();
            self.left.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

impl Iterator for Schedule {
    type Item = Intended;

    fn next(&mut self) -> Option<Intended> {
        let (at, target) = match self.arrivals {
            Kind::Random { rate } => (self.after(rate)?, None),
            Kind::Bursts { rate, length } => {
                let target = self.sent / length % u64::from(self.targets);
                (self.after(rate)?, Some(target as u32))
            }
            Kind::Replay { .. } => (self.replayed()?, None),
        };
        if at >= self.end || self.sent == REQUESTS_MAX {
            return None;
        }
        self.sent += 1;
        let target = target.unwrap_or_else(|| self.random.below(u64::from(self.targets)) as u32);
        Some(Intended { at, target })
    }
}

fn check_rate(rate: f64) -> Result<(), Invalid> {
    if rate > 0.0 && rate <= RATE_MAX {
        return Ok(());
    }
    Err(Invalid::new("rate", rate, format!("above 0, at most {RATE_MAX} requests a second")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(arrivals: Arrivals, targets: u32, secs: u64, seed: u64) -> Vec<Intended> {
        Schedule::new(arrivals, targets, Nanos::from_secs(secs), seed).collect()
    }

    #[test]
    fn poisson_counts_scatter_as_they_should() {
        let all = run(Arrivals::random(100.0).unwrap(), 3, 1_000, 1);
        let mut counts = vec![0f64; 1_000];
        for intended in &all {
            counts[(intended.at.get() / 1_000_000_000) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 1e3;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / 1e3;
        assert!((mean - 100.0).abs() < 1.5, "{mean}");
        assert!((variance / mean - 1.0).abs() < 0.2, "{variance}");
    }

    #[test]
    fn a_replay_has_the_counts_of_the_log_to_the_last_request() {
        let arrivals = Arrivals::replay(vec![7, 0, 4, 5], Nanos::from_secs(2), 0.5).unwrap();
        assert_eq!(arrivals.length(), Some(Nanos::from_secs(8)));
        let all = run(arrivals, 1, 100, 1);
        let step = |n: u64| all.iter().filter(|i| i.at.get() / 2_000_000_000 == n).count();
        // 3.5, 0, 2, 2.5: what is rounded off is carried on.
        assert_eq!([step(0), step(1), step(2), step(3)], [3, 0, 2, 3]);
    }

    #[test]
    fn counts_are_read_from_what_logs_are_summed_up_to() {
        let text = "period,count\n1998-06-25 22:00:01,116\n1998-06-25 22:00:02,281\n\n";
        assert_eq!(parse_counts(text).unwrap(), [116, 281]);
        assert_eq!(parse_counts("3\n4").unwrap(), [3, 4]);
        assert_eq!(parse_counts("a,1\nb,x").unwrap_err().field, "line 2");
        assert_eq!(parse_counts("period,count\n").unwrap_err().field, "counts");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 2e6] {
            assert_eq!(Arrivals::random(rate).unwrap_err().field, "rate");
        }
        assert_eq!(Arrivals::bursts(1.0, 0).unwrap_err().field, "burst");
        let second = Nanos::from_secs(1);
        assert_eq!(Arrivals::replay(vec![1], Nanos::new(0), 1.0).unwrap_err().field, "step");
        for scale in [0.0, f64::NAN, 1e9] {
            assert_eq!(Arrivals::replay(vec![9], second, scale).unwrap_err().field, "scale");
        }
    }

    proptest! {
        #[test]
        fn times_ascend_to_the_end_and_the_seed_decides(
            seed: u64,
            kind in 0..3,
            targets in 1..5u32,
        ) {
            let arrivals = || match kind {
                0 => Arrivals::random(50.0),
                1 => Arrivals::bursts(50.0, 7),
                _ => Arrivals::replay(vec![9, 0, 30], Nanos::from_secs(1), 1.3),
            };
            let all = run(arrivals().unwrap(), targets, 3, seed);
            prop_assert!(all.is_sorted_by_key(|i| i.at));
            prop_assert!(all.iter().all(|i| i.at < Nanos::from_secs(3) && i.target < targets));
            prop_assert_eq!(all, run(arrivals().unwrap(), targets, 3, seed));
        }
    }
}
