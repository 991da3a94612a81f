//! How much slower or faster computing has become since a profile was measured, by what the last
//! runs took.
//!
//! The time of a run is computation plus volume / bandwidth. The network's part stays what was
//! reserved; the processor's part does not: neighbours on the same physical core, the clock's
//! governor and the temperature change it by 10 % within hours. Each run that ended tells for
//! nothing how things are now, so promises follow the runs (feedback) rather than the profile alone.
//!
//! All of it is integer arithmetic, as in [`crate::curve`].

use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};

/// So many of the last runs count: enough to smooth single runs, few enough to follow a machine that
/// changes within the hour.
pub const RUNS: usize = 8;

/// Beyond this nothing is corrected further: such a profile is to be measured again, which plans say
/// ([`crate::translate::Plan::drift_seen_ppm`]).
pub const GREATEST_PPM: i64 = 250_000;

const PPM: i128 = 1_000_000;

/// What speaks for no change, as a run of half computing would that took what was expected: one
/// run alone does not move a promise by all that it was off.
const PRIOR: i128 = PPM * PPM / 4;

/// One run with its reservation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The median time by the profile alone, without any drift.
    pub measured_nanos: Nanos,
    /// How much of it is computing.
    pub computing_nanos: Nanos,
    /// What the run took.
    pub actual_nanos: Nanos,
}

/// By how much computing takes longer (above zero) or less than when it was measured, in parts per
/// million, at most [`GREATEST_PPM`] either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Drift(i64);

impl Drift {
    /// As measured.
    pub const NONE: Self = Self(0);

    /// What the last [`RUNS`] of `runs` (oldest first) say, within the bound.
    pub fn estimate(runs: &[Observation]) -> Self {
        Self::clamped(Self::seen_ppm(runs))
    }

    /// The same in parts per million, however much it is: the least squares fit of
    /// `actual = measured + drift * computing` to those runs, each relative to its measured time, drawn a
    /// little towards zero. Runs that were expected to take no time say nothing.
    pub fn seen_ppm(runs: &[Observation]) -> i64 {
        let recent = &runs[runs.len().saturating_sub(RUNS)..];
        let (mut products, mut squares) = (0, PRIOR);
        for run in recent.iter().filter(|run| run.measured_nanos > Nanos::new(0)) {
            let measured = i128::from(run.measured_nanos.get());
            let share = i128::from(run.computing_nanos.get()).min(measured) * PPM / measured;
            let late = (i128::from(run.actual_nanos.get()) - measured) * PPM / measured;
            // One run that hung is no news of the processors.
            let late = late.clamp(-PPM, PPM);
            products += share * late;
            squares += share * share;
        }
        (products * PPM / squares) as i64
    }

    fn clamped(ppm: i64) -> Self {
        Self(ppm.clamp(-GREATEST_PPM, GREATEST_PPM))
    }

    /// In parts per million.
    pub fn ppm(self) -> i64 {
        self.0
    }

    /// What it adds to a run of which `computing` is computed; zero if computing became faster.
    pub fn lateness(self, computing: Nanos) -> Nanos {
        Self(self.0.max(0)).magnitude(computing)
    }

    /// What it takes from such a run; zero if computing became slower.
    pub fn earliness(self, computing: Nanos) -> Nanos {
        Self(self.0.min(0)).magnitude(computing)
    }

    fn magnitude(self, computing: Nanos) -> Nanos {
        let exact = u128::from(computing.get()) * u128::from(self.0.unsigned_abs());
        Nanos::new(exact.div_ceil(PPM as u128) as u64)
    }
}

impl TryFrom<i64> for Drift {
    type Error = keeptime_model::Invalid;

    fn try_from(ppm: i64) -> Result<Self, Self::Error> {
        let drift = Self::clamped(ppm);
        let expected = || format!("at most {GREATEST_PPM} either way");
        if drift.0 == ppm { Ok(drift) } else { Err(Self::Error::new("drift", ppm, expected())) }
    }
}

impl From<Drift> for i64 {
    fn from(drift: Drift) -> Self {
        drift.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A run of `measured` ms, `computing` of it computed, that took `actual`.
    fn run(measured: u64, computing: u64, actual: u64) -> Observation {
        Observation {
            measured_nanos: Nanos::from_millis(measured),
            computing_nanos: Nanos::from_millis(computing),
            actual_nanos: Nanos::from_millis(actual),
        }
    }

    #[test]
    fn no_runs_and_runs_as_expected_change_nothing() {
        assert_eq!(Drift::estimate(&[]), Drift::NONE);
        assert_eq!(Drift::estimate(&[run(1_000, 700, 1_000); 5]), Drift::NONE);
        // What does not compute says nothing about computing.
        assert_eq!(Drift::estimate(&[run(1_000, 0, 1_500); 5]), Drift::NONE);
        assert_eq!(Drift::estimate(&[run(0, 0, 1_500)]), Drift::NONE);
    }

    // Goal: the estimate is the share by which computing changed, whatever the mix of runs. Method:
    // eight runs with other parts of computing, all of it 10 % slower, 10 % faster.
    #[test]
    fn runs_of_any_mix_tell_how_computing_changed() {
        for percent in [-10i64, 10] {
            let slower = |computing: u64| {
                run(1_000, computing, (1_000 + computing as i64 * percent / 100) as u64)
            };
            let runs: Vec<_> = [900, 300, 800, 1_000, 600, 900, 700, 950].map(slower).into();
            let found = Drift::estimate(&runs).ppm();
            assert!((found - percent * 10_000).abs() < 6_000, "{found}");
            assert!(found.abs() <= percent.abs() * 10_000, "drawn towards zero: {found}");
        }
    }

    // Goal: what is beyond the bound is known, although nothing more is corrected for it.
    #[test]
    fn what_is_beyond_the_bound_is_seen() {
        let runs = [run(1_000, 1_000, 1_450); RUNS];
        assert_eq!(Drift::estimate(&runs).ppm(), GREATEST_PPM);
        let seen = Drift::seen_ppm(&runs);
        assert!((400_000..450_000).contains(&seen), "{seen}");
        let within = [run(1_000, 1_000, 1_200); RUNS];
        assert_eq!(Drift::seen_ppm(&within), Drift::estimate(&within).ppm());
    }

    #[test]
    fn one_run_moves_less_than_eight_and_old_runs_are_forgotten() {
        let late = run(1_000, 1_000, 1_200);
        let (one, eight) = (Drift::estimate(&[late]), Drift::estimate(&[late; 8]));
        assert!(one.ppm() < eight.ppm() && eight.ppm() < 200_000, "{one:?} {eight:?}");
        let mut runs = vec![late; 20];
        runs.extend([run(1_000, 1_000, 1_000); RUNS]);
        assert_eq!(Drift::estimate(&runs), Drift::NONE);
    }

    #[test]
    fn lateness_and_earliness_are_shares_of_computing() {
        let computing = Nanos::from_millis(500);
        let (slower, faster) = (Drift::clamped(100_000), Drift::clamped(-100_000));
        assert_eq!(slower.lateness(computing), Nanos::from_millis(50));
        assert_eq!(slower.earliness(computing), Nanos::new(0));
        assert_eq!(faster.lateness(computing), Nanos::new(0));
        assert_eq!(faster.earliness(computing), Nanos::from_millis(50));
    }

    #[test]
    fn a_drift_beyond_the_bound_is_refused() {
        assert_eq!(serde_json::from_str::<Drift>("250000").unwrap().ppm(), GREATEST_PPM);
        assert!(serde_json::from_str::<Drift>("250001").is_err());
    }

    proptest! {
        #[test]
        fn any_runs_give_a_bounded_drift(runs in prop::collection::vec(
            (0..=u64::MAX, 0..=u64::MAX, 0..=u64::MAX), 0..20))
        {
            let runs: Vec<_> = runs.into_iter().map(|(m, c, a)| Observation {
                measured_nanos: Nanos::new(m),
                computing_nanos: Nanos::new(c),
                actual_nanos: Nanos::new(a),
            }).collect();
            let drift = Drift::estimate(&runs);
            prop_assert!(drift.ppm().abs() <= GREATEST_PPM);
            prop_assert!(drift.earliness(Nanos::new(u64::MAX)) < Nanos::new(u64::MAX));
        }
    }
}
