//! What the scheduler of one node is told for one application: `slice` out of every `period`.

use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos};
use serde::{Deserialize, Serialize};

/// An application's processes on one node run `slice` out of every `period`.
///
/// It is kept as a share and a period, as nodes are told it; the slice follows, rounded down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    cpu_ppm: CpuPpm,
    period_nanos: Nanos,
}

impl Schedule {
    /// `cpu` of one processor (or of several), in every `period`.
    pub const fn new(cpu: CpuPpm, period: Nanos) -> Self {
        Self { cpu_ppm: cpu, period_nanos: period }
    }

    /// The share: slice / period.
    pub const fn cpu(self) -> CpuPpm {
        self.cpu_ppm
    }

    /// How often.
    pub const fn period(self) -> Nanos {
        self.period_nanos
    }

    /// CPU time in every period.
    pub fn slice(self) -> Nanos {
        self.cpu_ppm.time_in_floor(self.period_nanos)
    }
}

/// What schedules the nodes of an application can keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The shortest period.
    pub period_least_nanos: Nanos,
    /// The longest period.
    pub period_most_nanos: Nanos,
    /// The shortest slice.
    pub slice_least_nanos: Nanos,
}

impl Range {
    /// # Errors
    /// A period of nothing, or a least that is more than the most.
    pub fn check(&self) -> Result<(), Invalid> {
        let least = self.period_least_nanos;
        if least == Nanos::new(0) {
            return Err(Invalid::new("period_least", least, "more than 0 s"));
        }
        if self.period_most_nanos < least {
            let expected = format!("at least period_least ({least})");
            return Err(Invalid::new("period_most", self.period_most_nanos, expected));
        }
        Ok(())
    }

    /// The periods to choose among, ascending: each is twice the one before, so that those of
    /// applications that share a node fit together, period by period.
    pub fn periods(&self) -> Vec<Nanos> {
        let mut periods = vec![self.period_least_nanos];
        let mut next = self.period_least_nanos.get();
        while let Some(doubled) = next.checked_mul(2).filter(|p| *p <= self.period_most_nanos.get())
        {
            periods.push(Nanos::new(doubled));
            next = doubled;
        }
        periods
    }

    /// Whether `utilisation` of one processor in periods of `period` is a slice that can be kept.
    pub fn holds(&self, utilisation: f64, period: Nanos) -> bool {
        (self.period_least_nanos..=self.period_most_nanos).contains(&period)
            && cpu_floor(utilisation).time_in_floor(period) >= self.slice_least_nanos
    }
}

impl Default for Range {
    /// Periods of 10 to 640 ms: SCHED_DEADLINE and bandwidth of control groups both keep those up to 320 ms
    /// within 0.4 % of what was asked, longer ones are not measured, and the kernel takes no bandwidth quota under
    /// 1 ms.
    fn default() -> Self {
        Self {
            period_least_nanos: Nanos::from_millis(10),
            period_most_nanos: Nanos::from_millis(640),
            slice_least_nanos: Nanos::from_millis(1),
        }
    }
}

/// `utilisation` (1 = one processor) as what a node is told, rounded down; what is not a number or
/// below zero is nothing. With [`cpu_ceil`] the only way from the controllers' floating point to a promise.
pub fn cpu_floor(utilisation: f64) -> CpuPpm {
    // Half a millionth of a millionth makes up for decimals that binary fractions cannot hold.
    let ppm = (utilisation * 1e6 + 1e-6).floor();
    // `as` saturates, and makes 0 of what is not a number.
    CpuPpm::new(ppm as u32)
}

/// `utilisation` (1 = one processor) as what a node is asked for, rounded up; what is not a number or below zero is
/// nothing.
pub fn cpu_ceil(utilisation: f64) -> CpuPpm {
    // The same for decimals, of as many processors as a node may have.
    let ppm = (utilisation * 1e6 - 1e-4).ceil();
    CpuPpm::new(ppm as u32)
}

/// `cpu` as the controllers reckon with it.
pub fn utilisation(cpu: CpuPpm) -> f64 {
    f64::from(cpu.get()) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn periods_fit_into_each_other() {
        let millis: Vec<_> =
            Range::default().periods().iter().map(|p| p.get() / 1_000_000).collect();
        assert_eq!(millis, [10, 20, 40, 80, 160, 320, 640]);
    }

    #[test]
    fn a_range_without_periods_is_refused() {
        let range = Range { period_most_nanos: Nanos::new(1), ..Range::default() };
        assert_eq!(range.check().unwrap_err().field, "period_most");
        let range = Range { period_least_nanos: Nanos::new(0), ..Range::default() };
        assert_eq!(range.check().unwrap_err().field, "period_least");
        assert_eq!(Range::default().check(), Ok(()));
    }

    #[test]
    fn what_is_no_share_becomes_nothing() {
        for wrong in [f64::NAN, -0.1, f64::NEG_INFINITY] {
            assert_eq!([cpu_floor(wrong), cpu_ceil(wrong)], [CpuPpm::new(0); 2]);
        }
        assert_eq!(cpu_floor(f64::INFINITY), CpuPpm::new(u32::MAX));
        assert_eq!(cpu_floor(0.3 * 0.52), CpuPpm::new(156_000));
        assert_eq!(cpu_ceil(0.3 * 0.52), CpuPpm::new(156_000));
        assert_eq!(cpu_ceil(0.300_000_5 * 0.52), CpuPpm::new(156_001));
    }

    proptest! {
        #[test]
        fn a_share_survives_both_ways(ppm in 0u32..64_000_000) {
            let share = utilisation(CpuPpm::new(ppm));
            prop_assert_eq!([cpu_floor(share), cpu_ceil(share)], [CpuPpm::new(ppm); 2]);
        }

        #[test]
        fn a_slice_is_never_more_than_the_share(ppm in 0u32..2_000_000, period in 1u64..1 << 32) {
            let schedule = Schedule::new(CpuPpm::new(ppm), Nanos::new(period));
            let slice = schedule.slice().get() as f64;
            prop_assert!(slice <= period as f64 * f64::from(ppm) / 1e6 + 1e-3);
        }
    }
}
