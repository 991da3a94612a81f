//! How much CPU a group can have, in the kernel's terms: a quota in each period.

use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos};

/// How long a period of CPU bandwidth is where nothing else is asked. Measured on two CPUs, four
/// nodes of 40 %, a fixed computation on one of them while the others idle or compute: 5 ms costs
/// 3 to 9 % when the others compute, since a period is then close to the tick (4 ms); 10, 20 and
/// 50 ms cost nothing that can be measured (-1.2 to -1.5 %), and the shortest is the smoothest.
/// `cargo test -p keeptime-lab --test isolation -- --ignored --nocapture` measures it again.
pub const CPU_PERIOD: Nanos = Nanos::from_millis(10);

/// CPU bandwidth as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuLimit {
    pub(super) quota_micros: u64,
    pub(super) period_micros: u64,
}

impl CpuLimit {
    /// `cpu` in periods of `period`, longer where the kernel's least quota (1 ms) asks for it.
    ///
    /// # Errors
    /// If `cpu` is less than 0.1 %: that needs a period beyond the kernel's greatest (1 s).
    pub fn of(cpu: CpuPpm, period: Nanos) -> Result<Self, Invalid> {
        let ppm = u64::from(cpu.get());
        if ppm < PPM_MIN {
            return Err(Invalid::new("cpu", cpu, "at least 0.1 %"));
        }
        let least = (QUOTA_MICROS_MIN * 1_000_000).div_ceil(ppm);
        let period_micros = (period.get() / 1_000).max(least).min(PERIOD_MICROS_MAX);
        let span = cpu.time_in_floor(Nanos::new(period_micros * 1_000));
        let quota_micros = (span.get() / 1_000).max(QUOTA_MICROS_MIN);
        Ok(Self { quota_micros, period_micros })
    }

    /// As long as it lasts.
    pub(crate) fn period(self) -> Nanos {
        Nanos::new(self.period_micros * 1_000)
    }

    /// The same share or a little less, in other periods; nothing if the kernel does not take those.
    pub(crate) fn in_periods(self, period: Nanos) -> Option<Self> {
        let period_micros = period.get() / 1_000;
        let quota = u128::from(self.quota_micros) * u128::from(period_micros);
        let quota_micros = u64::try_from(quota.checked_div(self.period_micros.into())?).ok()?;
        let is_taken = quota_micros >= QUOTA_MICROS_MIN && period_micros <= PERIOD_MICROS_MAX;
        is_taken.then_some(Self { quota_micros, period_micros })
    }

    /// What the kernel's two files say; nothing where there is no limit (`-1`, `max`).
    pub(super) fn parse(quota: &str, period: &str) -> Option<Self> {
        let quota_micros = quota.trim().parse().ok()?;
        let period_micros = period.trim().parse().ok()?;
        Some(Self { quota_micros, period_micros })
    }

    /// The CPU that it leaves, rounded down.
    pub(crate) fn cpu(self) -> CpuPpm {
        let ppm = u128::from(self.quota_micros) * 1_000_000;
        let ppm = ppm.checked_div(u128::from(self.period_micros)).unwrap_or(0);
        CpuPpm::new(u32::try_from(ppm).unwrap_or(u32::MAX))
    }
}

const QUOTA_MICROS_MIN: u64 = 1_000;
const PERIOD_MICROS_MAX: u64 = 1_000_000;
const PPM_MIN: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Never more than what was asked for, but for the kernel's least quota; never outside of
        // what the kernel accepts.
        #[test]
        fn limits_round_down(ppm in 1_000u32..64_000_000, period_micros in 1_000u64..1_000_000) {
            let limit = CpuLimit::of(CpuPpm::new(ppm), Nanos::new(period_micros * 1_000)).unwrap();
            prop_assert!(limit.quota_micros >= QUOTA_MICROS_MIN);
            prop_assert!((period_micros..=PERIOD_MICROS_MAX).contains(&limit.period_micros));
            let asked = u128::from(ppm) * u128::from(limit.period_micros);
            let got = u128::from(limit.quota_micros) * 1_000_000;
            prop_assert!(got <= asked && asked - got < 1_000_000);
        }
    }
}
