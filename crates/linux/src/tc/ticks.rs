//! The kernel's units: rates in bytes a second, bursts as time in ticks of 64 ns
//! (`PSCHED_TICKS2NS(x)` is `x << 6`, include/net/pkt_sched.h).

use keeptime_model::units::{BitsPerSecond, Bytes};

/// Bytes a second, rounded up; the kernel refuses 0.
pub(super) fn rate_bytes(rate: BitsPerSecond) -> u64 {
    rate.bytes_per_second_ceil().max(1)
}

/// The 32-bit field of a rate: the 64-bit attribute beside it holds what does not fit.
pub(super) fn rate_field(bytes_per_second: u64) -> u32 {
    u32::try_from(bytes_per_second).unwrap_or(u32::MAX)
}

/// The time that `burst` takes at a rate, in ticks, rounded up; at most 274 seconds.
pub(super) fn burst_ticks(burst: Bytes, bytes_per_second: u64) -> u32 {
    let nanos = (u128::from(burst.get()) * 1_000_000_000).div_ceil(u128::from(bytes_per_second));
    u32::try_from(nanos.div_ceil(TICK_NANOS)).unwrap_or(u32::MAX)
}

/// The burst that passes in so many ticks, rounded down: [`burst_ticks`] of it is `ticks` again
/// if `ticks` came from there.
pub(super) fn ticks_burst(ticks: u32, bytes_per_second: u64) -> Bytes {
    let bytes = u128::from(ticks) * TICK_NANOS * u128::from(bytes_per_second) / 1_000_000_000;
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Bits a second from the kernel's pair of fields.
pub(super) fn rate_from(field: u32, wide: Option<u64>) -> BitsPerSecond {
    BitsPerSecond::new(wide.unwrap_or(u64::from(field)).saturating_mul(8))
}

const TICK_NANOS: u128 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_of_two_milliseconds_is_31250_ticks() {
        let rate = rate_bytes(BitsPerSecond::from_mbit(80));
        assert_eq!(burst_ticks(Bytes::new(20_000), rate), 31_250);
        assert_eq!(ticks_burst(31_250, rate), Bytes::new(20_000));
    }

    proptest! {
        // What is read back must compare equal to what was written, or every reconciliation
        // would write it again.
        #[test]
        fn bursts_survive_the_way_through_the_kernel(burst in 0u64..1 << 32, rate in 1u64..1 << 40) {
            let ticks = burst_ticks(Bytes::new(burst), rate);
            prop_assert_eq!(burst_ticks(ticks_burst(ticks, rate), rate), ticks);
        }
    }
}
