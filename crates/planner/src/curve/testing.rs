//! Curves for tests.

use super::FittedCurve;
use keeptime_model::application::Parameters;
use keeptime_model::profile::{Curve, Point};
use keeptime_model::units::{BitsPerSecond, Nanos};
use proptest::prelude::*;

/// Points in kbit/s, with runs in milliseconds.
pub(super) fn curve(points: &[(u64, &[u64])]) -> Curve {
    let point = |(kbit, millis): &(u64, &[u64])| Point {
        bandwidth_bits_per_second: BitsPerSecond::new(kbit * 1_000),
        samples_nanos: millis.iter().map(|m| Nanos::from_millis(*m)).collect(),
    };
    let points = points.iter().map(point).collect();
    Curve { parameters: Parameters::new(), nodes: 2, points }
}

/// The same, fitted.
pub(super) fn fitted(points: &[(u64, &[u64])]) -> FittedCurve {
    FittedCurve::new(&curve(points)).unwrap()
}

/// Any sound curve: bandwidths in bit/s (not always whole kbit/s), times in nanoseconds.
pub(super) fn any_curve() -> impl Strategy<Value = Curve> {
    let samples = prop::collection::vec(1u64..1 << 40, 1..5);
    prop::collection::btree_map(1u64..100_000_000, samples, 1..8).prop_map(|points| Curve {
        parameters: Parameters::new(),
        nodes: 2,
        points: points
            .into_iter()
            .map(|(bandwidth, samples)| Point {
                bandwidth_bits_per_second: BitsPerSecond::new(bandwidth),
                samples_nanos: samples.into_iter().map(Nanos::new).collect(),
            })
            .collect(),
    })
}
