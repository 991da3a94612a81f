//! Non-negative least squares: of all coefficients that are not below zero, those that come nearest
//! to what was measured.
//!
//! The active set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on
//! the normal equations, as Bro and de Jong have it (Journal of Chemometrics 11, 1997): a few columns
//! and many rows. Columns are scaled to length one. O(columns^3) for each column that takes part.

/// A column whose part that the others do not explain is shorter than this, squared, says nothing new.
const INDEPENDENT: f64 = 1e-11;

/// What the greatest gain is measured against: below it, it is rounding.
const GAIN: f64 = 1e-11;

/// A coefficient that is so many times less than the greatest is what rounding left of it.
const ROUNDING: f64 = 1e-10;

/// A weighted least squares problem: one row a measurement, one column a coefficient.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    columns: usize,
    /// A'A by rows.
    gram: Vec<f64>,
    /// A'y.
    target: Vec<f64>,
}

impl Problem {
    /// Without any row.
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns, gram: vec![0.0; columns * columns], target: vec![0.0; columns] }
    }

    /// That `row`, times the coefficients, should be `value`.
    pub(crate) fn add(&mut self, row: &[f64], value: f64, weight: f64) {
        for (i, a) in row.iter().enumerate() {
            self.target[i] += weight * a * value;
            for (j, b) in row.iter().enumerate() {
                self.gram[i * self.columns + j] += weight * a * b;
            }
        }
    }

    /// The coefficients. What cannot be told apart from others is zero.
    pub(crate) fn solve(mut self) -> Vec<f64> {
        let lengths = self.scale();
        let greatest = self.target.iter().fold(0.0, |most: f64, t| most.max(t.abs()));
        let mut solution = vec![0.0; self.columns];
        let mut passive: Vec<usize> = Vec::new();
        let mut barred = vec![false; self.columns];
        // Each round enters a column that makes the error less, so that no set of columns comes
        // twice; rounding could undo that, and so the rounds are bounded.
        for _ in 0..8 * self.columns {
            let gains = self.gains(&solution);
            let open = |j: &usize| !barred[*j] && !passive.contains(j);
            let best =
                (0..self.columns).filter(open).max_by(|a, b| gains[*a].total_cmp(&gains[*b]));
            let Some(entering) = best.filter(|j| gains[*j] > GAIN * greatest) else { break };
            passive.push(entering);
            match self.settle(&mut passive, &mut solution) {
                true => barred.fill(false),
                false => barred[entering] = true,
            }
            if !passive.contains(&entering) {
                barred[entering] = true;
            }
        }
        let least = ROUNDING * solution.iter().fold(0.0, |most: f64, x| most.max(*x));
        let cleared = solution.iter().map(|x| if *x > least { *x } else { 0.0 });
        cleared.zip(lengths).map(|(x, length)| x / length).collect()
    }

    /// Brings every column to length one.
    fn scale(&mut self) -> Vec<f64> {
        let length = |j: usize| Some(self.gram[j * self.columns + j].sqrt()).filter(|l| *l > 0.0);
        let lengths: Vec<_> = (0..self.columns).map(|j| length(j).unwrap_or(1.0)).collect();
        for (i, a) in lengths.iter().enumerate() {
            self.target[i] /= a;
            for (j, b) in lengths.iter().enumerate() {
                self.gram[i * self.columns + j] /= a * b;
            }
        }
        lengths
    }

    /// By how much the error falls with each coefficient: half of its negative gradient.
    fn gains(&self, solution: &[f64]) -> Vec<f64> {
        let row = |i: usize| &self.gram[i * self.columns..(i + 1) * self.columns];
        let explained = |i| row(i).iter().zip(solution).map(|(g, x)| g * x).sum::<f64>();
        (0..self.columns).map(|i| self.target[i] - explained(i)).collect()
    }

    /// Goes to the least squares solution of the `passive` columns; those that would go below zero on
    /// the way leave. False, and the last one out again, if that one depends on the others.
    fn settle(&self, passive: &mut Vec<usize>, solution: &mut [f64]) -> bool {
        while !passive.is_empty() {
            let Some(wanted) = self.unconstrained(passive) else {
                passive.pop();
                return false;
            };
            let moves = passive.iter().zip(&wanted);
            let stops = moves.clone().filter(|(_, to)| **to <= 0.0);
            let shares = stops.map(|(j, to)| (solution[*j] / (solution[*j] - to), *j));
            let first = shares.min_by(|a, b| a.0.total_cmp(&b.0));
            let share = first.map_or(1.0, |(share, _)| if share.is_nan() { 0.0 } else { share });
            for (j, to) in moves {
                solution[*j] += share * (to - solution[*j]);
            }
            let Some((_, leaving)) = first else { return true };
            solution[leaving] = 0.0;
            solution.iter_mut().for_each(|x| *x = x.max(0.0));
            passive.retain(|j| solution[*j] > 0.0);
        }
        true
    }

    /// The least squares solution of some columns alone, by Cholesky; none if the last depends on the
    /// others.
    fn unconstrained(&self, passive: &[usize]) -> Option<Vec<f64>> {
        let count = passive.len();
        let mut lower = vec![0.0; count * count];
        let mut solution = vec![0.0; count];
        for i in 0..count {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|k| lower[i * count + k] * lower[j * count + k]).sum();
                let rest = self.gram[passive[i] * self.columns + passive[j]] - dot;
                lower[i * count + j] = match i == j {
                    true => Some(rest).filter(|r| *r > INDEPENDENT)?.sqrt(),
                    false => rest / lower[j * count + j],
                };
            }
            let dot: f64 = (0..i).map(|k| lower[i * count + k] * solution[k]).sum();
            solution[i] = (self.target[passive[i]] - dot) / lower[i * count + i];
        }
        for i in (0..count).rev() {
            let dot: f64 = (i + 1..count).map(|k| lower[k * count + i] * solution[k]).sum();
            solution[i] = (solution[i] - dot) / lower[i * count + i];
        }
        Some(solution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Rows = Vec<(Vec<f64>, f64)>;

    fn problem(rows: &Rows) -> Problem {
        let mut problem = Problem::new(rows[0].0.len());
        rows.iter().for_each(|(row, value)| problem.add(row, *value, 1.0));
        problem
    }

    /// More rows than columns, of numbers that are neither large nor small.
    fn rows(value: std::ops::Range<f64>) -> impl Strategy<Value = Rows> {
        (1usize..6).prop_flat_map(move |columns| {
            let row = prop::collection::vec(-3.0..3.0f64, columns);
            prop::collection::vec((row, value.clone()), columns + 1..20)
        })
    }

    fn error(rows: &Rows, solution: &[f64]) -> f64 {
        let off = |(row, value): &(Vec<f64>, f64)| {
            row.iter().zip(solution).map(|(a, x)| a * x).sum::<f64>() - value
        };
        rows.iter().map(|row| off(row).powi(2)).sum()
    }

    #[test]
    fn what_would_be_negative_is_zero_and_the_others_make_up_for_it() {
        // Unconstrained: 2 and -1.
        let rows = vec![(vec![1.0, 0.0], 2.0), (vec![1.0, 1.0], 1.0), (vec![1.0, 2.0], 0.0)];
        let found = problem(&rows).solve();
        assert!((found[0] - 1.0).abs() < 1e-9 && found[1] == 0.0, "{found:?}");
        assert_eq!(problem(&vec![(vec![1.0], -1.0)]).solve(), [0.0]);
    }

    #[test]
    fn equal_and_empty_columns_do_no_harm() {
        let rows = vec![(vec![1.0, 1.0, 0.0], 3.0), (vec![2.0, 2.0, 0.0], 6.0)];
        let found = problem(&rows).solve();
        assert!((found[0] + found[1] - 3.0).abs() < 1e-9 && found[2] == 0.0, "{found:?}");
    }

    proptest! {
        // Karush, Kuhn and Tucker: nothing is below zero, what is above zero has no gradient left,
        // and what is zero would only do harm.
        #[test]
        fn no_coefficient_can_be_moved_to_advantage(rows in rows(-5.0..5.0)) {
            let problem = problem(&rows);
            let solution = problem.clone().solve();
            let scale = 1.0 + problem.target.iter().fold(0.0, |m: f64, t| m.max(t.abs()));
            for (x, gain) in solution.iter().zip(problem.gains(&solution)) {
                prop_assert!(*x >= 0.0);
                prop_assert!(gain <= 1e-7 * scale, "{} {}", x, gain);
                prop_assert!(*x == 0.0 || gain.abs() <= 1e-7 * scale, "{} {}", x, gain);
            }
        }

        #[test]
        fn without_a_bound_in_the_way_it_is_least_squares(rows in rows(-5.0..5.0)) {
            let problem = problem(&rows);
            let all: Vec<_> = (0..problem.columns).collect();
            let free = problem.unconstrained(&all).filter(|free| free.iter().all(|x| *x > 0.0));
            let Some(free) = free else { return Ok(()) };
            for (x, free) in problem.solve().iter().zip(free) {
                prop_assert!((x - free).abs() <= 1e-5 * (1.0 + free), "{} {}", x, free);
            }
        }

        #[test]
        fn nothing_else_that_is_allowed_is_nearer(
            rows in rows(-5.0..5.0), other in prop::collection::vec(0.0..3.0f64, 6)
        ) {
            let solution = problem(&rows).solve();
            let least = error(&rows, &solution);
            let other = &other[..solution.len()];
            let between: Vec<_> = solution.iter().zip(other).map(|(x, o)| 0.99 * x + 0.01 * o).collect();
            for candidate in [other, &between] {
                prop_assert!(error(&rows, candidate) >= least - 1e-7 * (1.0 + least));
            }
        }

        #[test]
        fn what_non_negative_coefficients_made_is_found_again(
            rows in rows(0.0..1.0), truth in prop::collection::vec(0.0..3.0f64, 6)
        ) {
            let made = |(row, _): &(Vec<f64>, f64)| {
                (row.clone(), row.iter().zip(&truth).map(|(a, x)| a * x).sum::<f64>())
            };
            let rows: Rows = rows.iter().map(made).collect();
            let solution = problem(&rows).solve();
            prop_assert!(error(&rows, &solution) < 1e-9);
        }
    }
}
