//! What turns an expected time into one that a share of the runs keeps.
//!
//! All of it is ranks among measured deviations, as in conformal prediction: of `n` runs that are
//! exchangeable with the next one, the next is at most the `k`-th smallest with probability
//! `k / (n + 1)`, however they are distributed (Vovk, Gammerman and Shafer, Algorithmic Learning in a
//! Random World, 2005). Each deviation is that of a run from what the *other* runs say (jackknife); then
//! the same holds as far as leaving one run out hardly moves the fit, and never less than
//! `1 - 2 (1 - quantile)` for the interval between all such fits (Barber, Candes, Ramdas and
//! Tibshirani, Predictive inference with the jackknife+, Annals of Statistics 49, 2021). What is
//! assumed: that runs to come are like those measured (what changes with time is
//! [`crate::drift`]'s), and that they scatter in proportion to their time, at every bandwidth alike.

use keeptime_model::units::{Nanos, Share};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const PPM: u128 = 1_000_000;
/// A share that was not asked for is told in tenths of a percent, rounded down.
const TENTH_OF_PERCENT: u128 = 1_000;
const MICROSECOND: u128 = 1_000;

/// How far single runs lie from what the *other* runs say of them, relative to that, in parts per
/// million, ascending.
///
/// Leaving a run out of what it is compared with matters: with three samples a point, the deviation
/// from the common median is zero for one sample in three, and a "90 % quantile" of such deviations
/// holds for about 83 % of new runs only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Deviations(Arc<[i64]>);

/// What is added to a median time so that it holds for a share of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// Added to the median, in parts per million of it, never negative.
    pub excess_ppm: u64,
    /// How many measured deviations stand behind the excess; 0 if the promise is the median.
    pub deviations: u32,
}

/// Bounds on the fitted (median) time, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MedianBounds {
    /// At least this long.
    pub least: Nanos,
    /// At most this long.
    pub most: Nanos,
}

/// Between what single runs lie, relative to the expected time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The least deviation, in parts per million of the expected time.
    pub least_ppm: i64,
    /// The greatest.
    pub greatest_ppm: i64,
    /// How many measured deviations stand behind it; 0: nothing is known of runs.
    pub deviations: u32,
}

impl Deviations {
    /// Of these, as parts of what was expected. What is not a number is left out.
    pub fn new(parts: impl IntoIterator<Item = f64>) -> Self {
        // Rounded up: a promise is rather too late.
        let ppm = |part: f64| (!part.is_nan()).then_some((part * 1e6).ceil() as i64);
        Self::sorted(parts.into_iter().filter_map(ppm).collect())
    }

    /// All of several curves.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::sorted(all.into_iter().flat_map(|one| one.0.iter().copied()).collect())
    }

    fn sorted(mut all: Vec<i64>) -> Self {
        all.sort_unstable();
        Self(all.into())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether there is one that `quantile` of the runs stay below: nine for 90 %, 99 for 99 %.
    pub fn are_enough_for(&self, quantile: Share) -> bool {
        self.rank(quantile) <= self.0.len()
    }

    /// The share of the runs that a promise for `quantile` of them holds for: less where these are too few
    /// ([`Promise::quantile`]).
    pub fn supported(&self, quantile: Share) -> Share {
        self.promise(quantile).quantile(quantile)
    }

    /// The excess that `quantile` of the runs do not go beyond. Up to 50 % it is none: the expected
    /// time itself. Above, it is the value at rank `ceil(quantile * (count + 1))`; where that lies
    /// past the last one, the greatest deviation seen, which fewer runs stay below
    /// ([`Promise::quantile`]). Never below the expected time.
    pub fn promise(&self, quantile: Share) -> Promise {
        if quantile.ppm() <= 500_000 || self.0.is_empty() {
            return Promise { excess_ppm: 0, deviations: 0 };
        }
        let excess = self.at_rank(self.rank(quantile));
        Promise { excess_ppm: u64::try_from(excess).unwrap_or(0), deviations: self.counted() }
    }

    /// Between what `share` of the runs lie: as many are expected below as above.
    pub fn interval(&self, share: Share) -> Interval {
        if self.0.is_empty() {
            return Interval { least_ppm: 0, greatest_ppm: 0, deviations: 0 };
        }
        let rank = self.rank(Interval::greater_end(share));
        Interval {
            least_ppm: self.at_rank((self.0.len() + 1).saturating_sub(rank)),
            greatest_ppm: self.at_rank(rank),
            deviations: self.counted(),
        }
    }

    fn rank(&self, quantile: Share) -> usize {
        (u128::from(quantile.ppm()) * (self.0.len() as u128 + 1)).div_ceil(PPM) as usize
    }

    /// The first or the last for a rank beyond them; there is at least one.
    fn at_rank(&self, rank: usize) -> i64 {
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    fn counted(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

impl Interval {
    /// The share of the runs below the greater end of an interval that holds `share` of them.
    pub fn greater_end(share: Share) -> Share {
        let ppm = (1_000_000 + share.ppm()).div_ceil(2);
        Share::try_from(ppm).unwrap_or(Share::ONE)
    }

    /// The share of the runs that lie inside, where that of `asked` was asked for. Between the ends of `n`
    /// deviations lie `(n - 1) / (n + 1)` of them; what is less than asked is in tenths of a percent, rounded
    /// down.
    pub fn share(self, asked: Share) -> Share {
        let count = u128::from(self.deviations);
        at_most(asked, PPM * count.saturating_sub(1) / (count + 1))
    }

    /// Whether `time` lies inside, where `expected` is expected.
    pub fn admits(self, expected: Nanos, time: Nanos) -> bool {
        let off = (i128::from(time.get()) - i128::from(expected.get())) * PPM as i128;
        let end = |ppm: i64| i128::from(expected.get()) * i128::from(ppm);
        end(self.least_ppm) <= off && off <= end(self.greatest_ppm)
    }
}

impl Promise {
    /// The share of the runs that it holds for, where `asked` was asked for: below the greatest of `n`
    /// deviations stay `n / (n + 1)` of them, and below the median half. What is less than asked is in tenths of
    /// a percent, rounded down.
    pub fn quantile(self, asked: Share) -> Share {
        let count = u128::from(self.deviations);
        at_most(asked, (PPM * count / (count + 1)).max(PPM / 2))
    }

    /// The promised time for a median of `median`, rounded up to whole microseconds; the end of
    /// time on overflow.
    pub fn time(self, median: Nanos) -> Nanos {
        let exact = u128::from(median.get()) * (PPM + u128::from(self.excess_ppm));
        let micros = exact.div_ceil(PPM * MICROSECOND);
        Nanos::new(u64::try_from(micros * MICROSECOND).unwrap_or(u64::MAX))
    }

    /// The bounds on the median that are the same as `at_least <= promised time <= within`, exactly.
    pub fn median_bounds(self, at_least: Option<Nanos>, within: Option<Nanos>) -> MedianBounds {
        let factor = PPM + u128::from(self.excess_ppm);
        let clamp = |value: u128| Nanos::new(u64::try_from(value).unwrap_or(u64::MAX));
        let most = within.map_or(Nanos::new(u64::MAX), |bound| {
            let whole = u128::from(bound.get()) / MICROSECOND * MICROSECOND;
            clamp(whole * PPM / factor)
        });
        // ceil(y) >= c for whole microseconds c is y > c - 1 us.
        let least = at_least.map_or(Nanos::new(0), |bound| {
            let whole = u128::from(bound.get()).div_ceil(MICROSECOND);
            clamp(whole.checked_sub(1).map_or(0, |before| before * MICROSECOND * PPM / factor + 1))
        });
        MedianBounds { least, most }
    }
}

impl MedianBounds {
    /// Whether `time` lies between them.
    pub fn admit(self, time: Nanos) -> bool {
        self.least <= time && time <= self.most
    }
}

/// `asked`, or where that is more than `most` (in parts per million) as much of that as people read.
fn at_most(asked: Share, most: u128) -> Share {
    if u128::from(asked.ppm()) <= most {
        return asked;
    }
    let readable = u32::try_from(most / TENTH_OF_PERCENT * TENTH_OF_PERCENT);
    readable.ok().and_then(|ppm| Share::try_from(ppm).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn percent(percent: u32) -> Share {
        Share::from_percent(percent).unwrap()
    }

    #[test]
    fn ranks_are_those_that_a_new_run_stays_below() {
        let nine = Deviations::new((1..=9).map(|d| f64::from(d) / 100.0));
        assert!(nine.are_enough_for(percent(90)) && !nine.are_enough_for(percent(91)));
        assert_eq!(nine.promise(percent(90)), Promise { excess_ppm: 90_000, deviations: 9 });
        assert_eq!(nine.promise(percent(80)).excess_ppm, 80_000);
        let interval = nine.interval(percent(80));
        assert_eq!((interval.least_ppm, interval.greatest_ppm), (10_000, 90_000));
        let within =
            |millis| interval.admits(Nanos::from_millis(1_000), Nanos::from_millis(millis));
        assert_eq!([1_009, 1_010, 1_090, 1_091].map(within), [false, true, true, false]);
    }

    #[test]
    fn nothing_measured_promises_what_is_expected_and_says_so() {
        let none = Deviations::new([f64::NAN]);
        assert_eq!(none.promise(percent(90)), Promise { excess_ppm: 0, deviations: 0 });
        assert_eq!(none.interval(percent(90)).deviations, 0);
        let faster = Deviations::new([-0.5; 20]);
        assert_eq!(faster.promise(percent(90)).excess_ppm, 0);
    }

    // Goal: nobody is told more than the runs support. Method: the shares that n exchangeable runs give for the next one,
    // and in each case both sides of what is just supported.
    #[test]
    fn the_share_that_is_told_is_what_the_runs_support() {
        let deviations = |count: u32| Deviations::new((0..count).map(|d| f64::from(d) / 100.0));
        let supported = |count, asked| deviations(count).supported(percent(asked)).to_string();
        assert_eq!(supported(12, 99), "92.3 %");
        assert_eq!(supported(12, 92), "92 %");
        assert_eq!(supported(6, 90), "85.7 %");
        assert_eq!([supported(9, 90), supported(9, 91)], ["90 %", "90 %"]);
        assert_eq!([supported(0, 90), supported(1, 90)], ["50 %", "50 %"]);
        assert_eq!(supported(0, 30), "30 %");
        let inside = |count, asked: u32| {
            let share = percent(asked);
            deviations(count).interval(share).share(share).to_string()
        };
        assert_eq!([inside(19, 90), inside(18, 90), inside(2, 90)], ["90 %", "89.4 %", "33.3 %"]);
        assert_eq!(inside(0, 90), "0 %");
    }

    // A time is told in whole microseconds, rounded up: one nanosecond more may promise one more.
    #[test]
    fn the_least_median_for_a_bound_is_one_that_is_rounded_up_to_it() {
        for (excess_ppm, bound, least) in
            [(0, 5_000, 4_001), (0, 5_001, 5_001), (250_000, 5_001, 4_001), (250_000, 5_000, 3_201)]
        {
            let promise = Promise { excess_ppm, deviations: 1 };
            let bounds = promise.median_bounds(Some(Nanos::new(bound)), None);
            assert_eq!(bounds.least, Nanos::new(least), "{excess_ppm} {bound}");
            assert!(promise.time(bounds.least) >= Nanos::new(bound));
            assert!(promise.time(Nanos::new(least - 1)) < Nanos::new(bound));
        }
    }

    proptest! {
        #[test]
        fn what_is_supported_is_what_the_deviations_are_enough_for(
            count in 0u32..200, ppm in 500_001u32..=1_000_000
        ) {
            let all = Deviations::new((0..count).map(f64::from));
            let asked = Share::try_from(ppm).unwrap();
            let supported = all.supported(asked);
            prop_assert_eq!(supported == asked, all.are_enough_for(asked));
            // Whoever asks for that instead is promised the same.
            prop_assert!(supported <= asked && all.supported(supported) == supported);
            prop_assert_eq!(all.promise(supported).excess_ppm, all.promise(asked).excess_ppm);
        }

        #[test]
        fn bounds_on_a_promise_are_the_same_as_bounds_on_the_median(
            excess_ppm in 0u64..3_000_000, time in 0u64..1 << 40,
            off in -3_000i64..3_000, other in 0u64..1 << 40
        ) {
            let promise = Promise { excess_ppm, deviations: 1 };
            let promised = promise.time(Nanos::new(time));
            for bound in [promised.get().saturating_add_signed(off), other] {
                let bound = Nanos::new(bound);
                let most = promise.median_bounds(None, Some(bound));
                prop_assert_eq!(most.admit(Nanos::new(time)), promised <= bound);
                let least = promise.median_bounds(Some(bound), None);
                prop_assert_eq!(least.admit(Nanos::new(time)), promised >= bound);
            }
            prop_assert!(promised.get() >= time && promised.get().is_multiple_of(1_000));
        }
    }
}
