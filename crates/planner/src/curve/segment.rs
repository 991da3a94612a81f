//! The stretch of a curve between two neighbouring points.

use super::FittedPoint;
use keeptime_model::units::{BitsPerSecond, Nanos};

/// Interpolated bandwidths are whole multiples of this, in bit/s: what traffic control resolves.
pub const BANDWIDTH_STEP: u64 = 1_000;

/// The median time at `bandwidth` between two points; see [`super::FittedCurve::time_at`].
pub(crate) fn time_between(
    left: &FittedPoint,
    right: &FittedPoint,
    bandwidth: BitsPerSecond,
) -> Nanos {
    Segment::between(left, right).time_ceil(bandwidth)
}

/// The stretch between two neighbouring points: from (b0, t0) down to (b1, t1), b0 < b1, t0 >= t1.
/// `time(B) = t1 + (t0 - t1) * b0 * (b1 - B) / (B * (b1 - b0))`.
pub(super) struct Segment {
    pub(super) b0: u128,
    pub(super) b1: u128,
    pub(super) t0: u128,
    pub(super) t1: u128,
}

impl Segment {
    pub(super) fn between(left: &FittedPoint, right: &FittedPoint) -> Self {
        Self {
            b0: left.bandwidth_bits_per_second.get().into(),
            b1: right.bandwidth_bits_per_second.get().into(),
            t0: left.time_nanos.get().into(),
            t1: right.time_nanos.get().into(),
        }
    }

    /// Past what u128 holds (terabits for days) the time of the slower end: safe, still monotone.
    pub(super) fn time_ceil(&self, bandwidth: BitsPerSecond) -> Nanos {
        let at = u128::from(bandwidth.get());
        let excess = (self.t0 - self.t1)
            .checked_mul(self.b0)
            .and_then(|product| product.checked_mul(self.b1 - at))
            .map_or(self.t0 - self.t1, |product| product.div_ceil(at * (self.b1 - self.b0)));
        Nanos::new((self.t1 + excess) as u64)
    }

    /// For `t1 <= most < t0`: solves the equation above for B, rounded up.
    pub(super) fn least_bandwidth(&self, most: Nanos) -> BitsPerSecond {
        let slack = u128::from(most.get()) - self.t1;
        let exact = self.crossing(slack).map(|(above, below)| above.div_ceil(below));
        // On overflow the measured point, which satisfies the bound.
        let stepped = exact.map_or(self.b1, |b| b.next_multiple_of(BANDWIDTH_STEP.into()));
        BitsPerSecond::new(stepped.min(self.b1) as u64)
    }

    /// For `t1 < least <= t0`: the last B whose time, rounded up, is still `least`.
    pub(super) fn greatest_bandwidth(&self, least: Nanos) -> BitsPerSecond {
        let slack = u128::from(least.get()) - self.t1 - 1;
        let step = u128::from(BANDWIDTH_STEP);
        let exact = self.crossing(slack).map(|(above, below)| above.div_ceil(below) - 1);
        let stepped = exact.map_or(self.b0, |b| b / step * step);
        BitsPerSecond::new(stepped.max(self.b0) as u64)
    }

    /// The bandwidth whose time is `t1 + slack`, as a fraction.
    fn crossing(&self, slack: u128) -> Option<(u128, u128)> {
        let drop = (self.t0 - self.t1).checked_mul(self.b0)?;
        let below = slack.checked_mul(self.b1 - self.b0)?.checked_add(drop)?;
        Some((drop.checked_mul(self.b1)?, below))
    }
}

/// The greatest whole [`BANDWIDTH_STEP`] that is at most `rate`.
pub(super) fn step_down(rate: BitsPerSecond) -> BitsPerSecond {
    BitsPerSecond::new(rate.get() / BANDWIDTH_STEP * BANDWIDTH_STEP)
}
