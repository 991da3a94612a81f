//! A share of the CPU that may become greater once, and the CPU time that it comes to.

use crate::assignment::LaterCpu;
use crate::units::{CpuPpm, Nanos, WallTime};

/// So much CPU, perhaps another share from a time on. CPU time is counted in millionths of a CPU times nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Until the other begins.
    pub cpu: CpuPpm,
    /// From its time on; nothing = the same for good.
    pub later: Option<LaterCpu>,
}

impl Shares {
    /// The share at an instant.
    pub fn at(&self, at: WallTime) -> CpuPpm {
        self.turned(at).unwrap_or(self.cpu)
    }

    /// The later share, if its time has come.
    pub fn turned(&self, at: WallTime) -> Option<CpuPpm> {
        self.later.filter(|later| later.from_unix_nanos <= at).map(|later| later.cpu_ppm)
    }

    /// The last of them.
    pub fn last(&self) -> CpuPpm {
        self.later.map_or(self.cpu, |later| later.cpu_ppm)
    }

    /// The greatest of them.
    pub fn most(&self) -> CpuPpm {
        self.last().max(self.cpu)
    }

    /// The least of them.
    pub fn least(&self) -> CpuPpm {
        self.last().min(self.cpu)
    }

    /// The CPU time that is had within a span; none if that ends before it begins.
    pub fn volume(&self, from: WallTime, until: WallTime) -> u128 {
        let turn = self.turn(from).min(until);
        self.cpu.volume(turn.saturating_since(from))
            + self.last().volume(until.saturating_since(turn))
    }

    /// When so much CPU time was had since `from`: rounded up, and at the end of time if never.
    pub fn when(&self, from: WallTime, volume: u128) -> WallTime {
        let turn = self.turn(from);
        match volume.checked_sub(self.volume(from, turn)) {
            Some(left) => turn.saturating_add(self.last().takes_ceil(left)),
            None => from.saturating_add(self.cpu.takes_ceil(volume)),
        }
    }

    /// When the last of them begins, of what is looked at from `from` on.
    fn turn(&self, from: WallTime) -> WallTime {
        self.later.map_or(from, |later| later.from_unix_nanos.max(from))
    }
}

impl CpuPpm {
    /// CPU time in `span`: millionths of a CPU times nanoseconds.
    pub fn volume(self, span: Nanos) -> u128 {
        u128::from(span.get()) * u128::from(self.get())
    }

    /// How long it takes until so much CPU time was had, rounded up; of no share, as of the least one.
    pub fn takes_ceil(self, volume: u128) -> Nanos {
        let takes = volume.div_ceil(u128::from(self.get()).max(1));
        Nanos::new(u64::try_from(takes).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> WallTime {
        WallTime::from_unix_nanos(nanos)
    }

    fn shares(cpu: u32, later: Option<(u64, u32)>) -> Shares {
        let later = later
            .map(|(from, ppm)| LaterCpu { from_unix_nanos: at(from), cpu_ppm: CpuPpm::new(ppm) });
        Shares { cpu: CpuPpm::new(cpu), later }
    }

    #[test]
    fn a_share_that_is_never_had_takes_until_the_end_of_time() {
        assert_eq!(shares(0, None).when(at(7), u128::MAX), at(u64::MAX));
        assert_eq!(shares(0, Some((10, 3))).when(at(7), 7), at(13), "three nanoseconds of three");
        assert_eq!(shares(5, Some((10, 0))).when(at(7), 15), at(10), "all of it before the other");
    }

    proptest! {
        // Each nanosecond has the share of its instant: that says what a span comes to, and when so much was had.
        #[test]
        fn a_span_is_the_sum_of_its_instants(
            cpu in 1u32..9,
            later in prop::option::of((0u64..40, 1u32..9)),
            from in 0u64..40,
            lasts in 0u64..40,
        ) {
            let (shares, until) = (shares(cpu, later), from + lasts);
            let had = |until| (from..until).map(|now| u128::from(shares.at(at(now)).get())).sum::<u128>();
            let volume = shares.volume(at(from), at(until));
            prop_assert_eq!(volume, had(until));
            prop_assert_eq!(shares.when(at(from), volume), at(until));
            prop_assert_eq!(shares.when(at(from), volume + 1), at(until + 1));
            prop_assert_eq!(shares.volume(at(until), at(from)), 0);
            for now in from..=until {
                let share = shares.at(at(now));
                prop_assert!(shares.least() <= share && share <= shares.most());
            }
        }
    }
}
