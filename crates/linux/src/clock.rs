//! The node's clock that nobody sets.

use keeptime_model::units::Nanos;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since some moment of this node.
pub fn now() -> Nanos {
    // Cannot fail: every kernel has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    now.map_or(Nanos::new(0), |now| {
        Nanos::new(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
    })
}
