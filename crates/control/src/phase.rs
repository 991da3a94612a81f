//! Periods that begin on all nodes at the same time, by the nodes' clocks.
//!
//! A program runs where all its nodes run. If their slices begin together, that is all of the slice;
//! if not, in long periods little is left.

use keeptime_model::name::Name;
use keeptime_model::units::{Nanos, WallTime};

/// The first instant from `now` on at which a period of `period` begins on every node: a multiple
/// of it since 1970, and `offset`. Nodes whose clocks agree come to the same instant if they are
/// asked within the same period.
pub fn begins(now: WallTime, period: Nanos, offset: Nanos) -> WallTime {
    let (now_nanos, period) = (now.unix_nanos(), period.get().max(1));
    let into = (now_nanos % period + period - offset.get() % period) % period;
    let wait = (period - into) % period;
    now.saturating_add(Nanos::new(wait))
}

/// Where in its period `job` begins: on all its nodes alike, which do not know each other's jobs. Jobs whose names end in
/// numbers that follow one another lie apart, whatever their number: by the golden section of a period.
pub fn offset(job: &Name, period: Nanos) -> Nanos {
    let name = job.as_str();
    let words = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: u64 = name[words.len()..].parse().unwrap_or(0);
    // FNV-1a: nodes of different builds agree on it.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    let hash = words.bytes().fold(FNV_BASIS, mix);
    let part = number.wrapping_mul(GOLDEN).wrapping_add(hash);
    let nanos = (u128::from(part) * u128::from(period.get())) >> u64::BITS;
    Nanos::new(nanos as u64)
}

/// The golden section of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Eight jobs in a row: none begins within a twentieth of a period of another.
    #[test]
    fn jobs_in_a_row_lie_apart() {
        let period = Nanos::from_millis(1_000);
        for prefix in ["r", "job-", "a-longer-name-"] {
            for first in [1, 7, 98] {
                let name = |n: u64| format!("{prefix}{n}").parse().unwrap();
                let mut at: Vec<_> =
                    (first..first + 8).map(|n| offset(&name(n), period).get()).collect();
                at.sort_unstable();
                let round = at[0] + period.get() - at[7];
                let least = at.windows(2).map(|two| two[1] - two[0]).fold(round, u64::min);
                assert!(least > period.get() / 20, "{prefix}{first}: {at:?}");
            }
        }
    }

    // Agents of any build come to the same: these may not change.
    #[test]
    fn offsets_are_a_matter_of_the_name_alone() {
        let millis = |name: &str| {
            offset(&name.parse().unwrap(), Nanos::from_millis(1_000)).get() / 1_000_000
        };
        assert_eq!(["r1", "r2", "solver"].map(millis), [303, 921, 354]);
    }

    proptest! {
        #[test]
        fn nodes_that_are_asked_in_the_same_period_agree(
            wall in 1u64 << 60..1 << 61, period in 1u64..1 << 34, offset: u64, later in 0u64..1 << 34)
        {
            let (period, offset) = (Nanos::new(period), Nanos::new(offset));
            let first = begins(WallTime::from_unix_nanos(wall), period, offset);
            let wait = first.unix_nanos() - wall;
            prop_assert!(wait < period.get());
            let later = later.min(wait);
            prop_assert_eq!(begins(WallTime::from_unix_nanos(wall + later), period, offset), first);
            let next = begins(WallTime::from_unix_nanos(first.unix_nanos() + 1), period, offset);
            prop_assert_eq!(next.saturating_since(first), period);
        }
    }
}
