//! Least squares that a run far off hardly moves: coefficients that are not below zero, errors as parts of what runs
//! take, and less weight for a run the farther it is off (Huber, 1964).

use crate::nnls::Problem;
use keeptime_model::profile::Point;

/// How often runs far off are given less weight: weights hardly change after that.
const REWEIGHTINGS: usize = 3;

/// Up to so many standard deviations a run has its full weight (Huber: 95 % as precise as least squares where
/// nothing is wrong).
const HUBER: f64 = 1.345;

/// The standard deviation is so many median absolute deviations, of normal errors.
const SIGMA_OF_MAD: f64 = 1.4826;

/// Runs that are this near to the model are as good as exact.
const EXACT: f64 = 1e-9;

/// No run is shorter, in seconds: what errors are parts of is above zero.
pub(crate) const SHORTEST: f64 = 1e-9;

/// All runs at one point: what a model makes of it, and what was measured.
#[derive(Debug)]
pub(crate) struct Row {
    /// How much of each coefficient the time has.
    columns: Vec<f64>,
    /// The median: errors count as parts of it.
    scale: f64,
    seconds: Vec<f64>,
    weights: Vec<f64>,
}

impl Row {
    /// Of `point`, whose time is the sum of coefficients times `columns`.
    pub(crate) fn new(point: &Point, columns: Vec<f64>) -> Self {
        let seconds: Vec<_> = point.samples_nanos.iter().map(|time| time.as_secs_f64()).collect();
        let scale = point.median().as_secs_f64().max(SHORTEST);
        Self { columns, scale, weights: vec![1.0; seconds.len()], seconds }
    }

    fn offs(&self, coefficients: &[f64]) -> Vec<f64> {
        let expected = product(&self.columns, coefficients);
        self.seconds.iter().map(|seconds| ((seconds - expected) / self.scale).abs()).collect()
    }
}

/// The coefficients that come nearest to all `rows` of so many columns, none below zero. What cannot be told apart
/// from others is zero.
pub(crate) fn fit(columns: usize, mut rows: Vec<Row>) -> Vec<f64> {
    let mut coefficients = weighted(columns, &rows);
    for _ in 0..REWEIGHTINGS {
        let offs: Vec<_> = rows.iter().flat_map(|row| row.offs(&coefficients)).collect();
        let bound = HUBER * SIGMA_OF_MAD * middle(offs);
        if bound < EXACT {
            break;
        }
        rows.iter_mut().for_each(|row| {
            let offs = row.offs(&coefficients);
            row.weights = offs.iter().map(|off| bound / off.max(bound)).collect();
        });
        coefficients = weighted(columns, &rows);
    }
    coefficients
}

/// What coefficients make of a row.
pub(crate) fn product(columns: &[f64], coefficients: &[f64]) -> f64 {
    columns.iter().zip(coefficients).map(|(column, coefficient)| column * coefficient).sum()
}

fn weighted(columns: usize, rows: &[Row]) -> Vec<f64> {
    let mut problem = Problem::new(columns);
    for row in rows {
        let columns: Vec<_> = row.columns.iter().map(|column| column / row.scale).collect();
        let weight: f64 = row.weights.iter().sum();
        let sum: f64 = row.seconds.iter().zip(&row.weights).map(|(s, w)| s * w).sum();
        problem.add(&columns, sum / weight / row.scale, weight);
    }
    problem.solve()
}

/// The median; 0 of none.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::{BitsPerSecond, Nanos};

    // Goal: what was made by coefficients is found again, short points and long ones alike, although one run hung.
    #[test]
    fn relative_errors_count_and_a_run_far_off_does_not() {
        let row = |at: f64, factors: &[f64]| {
            let exact = 0.2 + 30.0 * at;
            let run = |factor: &f64| Nanos::from_secs_f64(exact * factor).unwrap();
            let point = Point {
                bandwidth_bits_per_second: BitsPerSecond::from_mbit(1),
                samples_nanos: factors.iter().map(run).collect(),
            };
            Row::new(&point, vec![1.0, at])
        };
        let near = [0.999, 1.0, 1.001];
        let mut rows: Vec<_> = [0.0, 0.01, 0.1, 1.0, 10.0].map(|at| row(at, &near)).into();
        rows.push(row(5.0, &[1.0, 3.0]));
        let [constant, slope] = fit(2, rows)[..] else { panic!("two columns") };
        assert!((constant / 0.2 - 1.0).abs() < 0.01, "{constant}");
        assert!((slope / 30.0 - 1.0).abs() < 0.01, "{slope}");
    }

    #[test]
    fn runs_are_as_far_off_as_they_are_parts_of_what_the_point_takes() {
        let seconds = |seconds: f64| Nanos::from_secs_f64(seconds).unwrap();
        let point = |times: [f64; 3]| Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(1),
            samples_nanos: times.map(seconds).to_vec(),
        };
        for scale in [0.001, 1.0, 100.0] {
            let offs =
                Row::new(&point([2.0, 3.0, 6.0].map(|t| t * scale)), vec![scale]).offs(&[4.0]);
            let expected = [2.0 / 3.0, 1.0 / 3.0, 2.0 / 3.0];
            let is_near = |(off, expected): (&f64, f64)| (off - expected).abs() < 1e-6;
            assert!(offs.iter().zip(expected).all(is_near), "{scale}: {offs:?}");
        }
    }
}
