//! How time goes with bandwidth by two points alone.

use super::FittedPoint;
use super::segment::Segment;
use keeptime_model::units::{BitsPerSecond, Nanos};

/// Time against 1 / bandwidth through two points of a curve: exact for a program that computes, and moves a volume
/// in the rest of its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// The time that no bandwidth shortens.
    pub computing: Nanos,
    /// Bits that each flow moves in the rest.
    pub volume_bits: f64,
}

impl Line {
    /// Through a point, and one with more bandwidth that takes no longer. One and the same does not tell its
    /// parts: all of it may be computing. The same where more bandwidth makes it slower.
    pub fn through(slow: &FittedPoint, fast: &FittedPoint) -> Self {
        let Segment { b0, b1, t0, t1 } = Segment::between(slow, fast);
        let gained = t0.saturating_sub(t1).checked_mul(b0);
        let moving = gained.and_then(|product| product.checked_div(b1.saturating_sub(b0)));
        let computing = Nanos::new(t1.saturating_sub(moving.unwrap_or(0)) as u64);
        let moving = fast.time_nanos.saturating_sub(computing).as_secs_f64();
        Self { computing, volume_bits: moving * fast.bandwidth_bits_per_second.get() as f64 }
    }

    /// The time at `bandwidth`, in seconds.
    pub fn seconds_at(&self, bandwidth: BitsPerSecond) -> f64 {
        self.computing.as_secs_f64() + self.volume_bits / bandwidth.get() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::testing::fitted;

    #[test]
    fn a_line_is_exact_for_computing_and_a_volume_and_never_below_zero() {
        let point = |kbit: u64, millis: u64| fitted(&[(kbit, &[millis])]).points()[0];
        // 0.5 s + 1 Mbit / B
        let line = Line::through(&point(1_000, 1_500), &point(4_000, 750));
        assert_eq!(line, Line { computing: Nanos::from_millis(500), volume_bits: 1e6 });
        // Faster than 1 / bandwidth: nothing of it is computing. Slower: all.
        let all_moves = Line::through(&point(1_000, 1_500), &point(2_000, 100));
        assert_eq!(all_moves.computing, Nanos::new(0));
        assert_eq!(all_moves.seconds_at(BitsPerSecond::from_mbit(2)), 0.1);
        let slower = Line::through(&point(1_000, 100), &point(2_000, 150));
        assert_eq!(slower, Line { computing: Nanos::from_millis(150), volume_bits: 0.0 });
    }
}
