//! Periods that begin on all nodes at the same time, by the nodes' clocks.
//!
//! A program runs where all its nodes run. If their slices begin together, that is all of the slice;
//! if not, in long periods little is left. And applications that share nodes do not wait for one
//! another in the middle of a slice if their slices follow each other.

use crate::schedule::Schedule;
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

/// Where in its period each of the applications that share nodes begins: one slice after another, so
/// that slices of equal periods do not meet. `schedules` has for each the longest of its slices.
pub fn offsets(schedules: &[Schedule]) -> Vec<Nanos> {
    let mut sum = Nanos::new(0);
    let mut offset = |schedule: &Schedule| {
        let mine = Nanos::new(sum.get() % schedule.period().get().max(1));
        sum = sum.saturating_add(schedule.slice());
        mine
    };
    schedules.iter().map(&mut offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::CpuPpm;
    use proptest::prelude::*;

    #[test]
    fn slices_follow_one_another() {
        let schedule = |percent, millis| {
            Schedule::new(CpuPpm::from_percent(percent), Nanos::from_millis(millis))
        };
        let all = [schedule(30, 100), schedule(40, 100), schedule(20, 100), schedule(20, 50)];
        let millis: Vec<_> = offsets(&all).iter().map(|o| o.get() / 1_000_000).collect();
        assert_eq!(millis, [0, 30, 70, 40]);
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
