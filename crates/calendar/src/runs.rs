//! How long the free runs of a block are at most, for every amount that may be reserved there.
//!
//! Least and greatest amounts cannot tell a comb (many gaps, each too short) from a place that
//! fits, so a search would have to try gap after gap. The longest run for each amount can. It is a
//! staircase: the more may be reserved, the longer the longest run. When an amount is added to the
//! whole block, the staircase moves but keeps its shape.

use crate::span::NEVER;
use crate::tree::Child;
use std::cmp::Reverse;

/// The staircase of a block, exact: at most as many stairs as the block has steps, mostly far fewer.
#[derive(Debug, Clone)]
pub struct Runs {
    /// Ascending in both.
    stairs: Box<[Stair]>,
}

/// Where at most `used` is reserved, the longest run has this `length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stair {
    used: u64,
    length: u64,
}

impl Runs {
    /// The staircase of the `leaves` of a block, which lasts until `end`. O(steps), and to sort
    /// those of its runs that are not evidently useless.
    pub fn of(leaves: &[Child], end: u64) -> Self {
        Self { stairs: staircase(runs(leaves, end)) }
    }

    /// The longest run on which at most `most` is reserved; 0 if there is none. `raised` is what the
    /// block's ancestors note. O(log stairs).
    pub fn longest(&self, most: u64, raised: u64) -> u64 {
        let below = self.stairs.partition_point(|stair| stair.used.wrapping_add(raised) <= most);
        below.checked_sub(1).map_or(0, |last| self.stairs[last].length)
    }
}

/// Every run that more is reserved before and behind of than on it, and the greatest amount on it.
fn runs(leaves: &[Child], end: u64) -> Vec<Stair> {
    let mut runs = Vec::new();
    // Runs that still go on, each with less used and begun later than the one before it.
    let mut open: Vec<Open> = Vec::new();
    for leaf in leaves {
        for step in leaf.node.steps() {
            let used = step.used.wrapping_add(leaf.raised);
            let mut since = step.at;
            while let Some(run) = open.pop_if(|run| run.used <= used) {
                if run.used < used {
                    runs.push(run.closed(step.at));
                }
                since = run.since;
            }
            open.push(Open { used, since });
        }
    }
    runs.extend(open.into_iter().map(|run| run.closed(end)));
    runs
}

/// From `since` on, at most `used` is reserved.
#[derive(Debug, Clone, Copy)]
struct Open {
    used: u64,
    since: u64,
}

impl Open {
    fn closed(self, end: u64) -> Stair {
        let length = if end == NEVER { u64::MAX } else { end - self.since };
        Stair { used: self.used, length }
    }
}

/// Only runs that are lower than every longer one.
fn staircase(mut runs: Vec<Stair>) -> Box<[Stair]> {
    // Most are not lower than the lowest of a longer class; then they need not be sorted.
    let mut lowest = [u64::MAX; CLASSES + 1];
    for run in &runs {
        let lowest = &mut lowest[class(run.length)];
        *lowest = run.used.min(*lowest);
    }
    for class in (0..CLASSES).rev() {
        lowest[class] = lowest[class].min(lowest[class + 1]);
    }
    runs.retain(|run| run.used < lowest[class(run.length) + 1]);
    runs.sort_unstable_by_key(|run| (Reverse(run.length), run.used));
    let mut lowest = u64::MAX;
    runs.retain(|run| {
        let before = lowest;
        lowest = lowest.min(run.used);
        run.used < before
    });
    runs.reverse();
    runs.into()
}

/// Classes of length: sixteen for each doubling.
const CLASSES: usize = 64 * 16;

/// The whole part of the binary logarithm, refined by the next four bits. `length` is not 0.
fn class(length: u64) -> usize {
    let leading = length.leading_zeros();
    let bits = length << leading >> 59;
    (63 - leading) as usize * 16 + (bits & 15) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Node, Step};
    use proptest::prelude::*;

    /// The longest run, by looking at every instant.
    fn longest(used: &[u64], most: u64) -> u64 {
        let runs = used.split(|used| *used > most).map(|run| run.len() as u64);
        runs.max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_staircase_knows_the_longest_run_for_every_amount(
            amounts in proptest::collection::vec(0u64..12, 1..60),
            lengths in proptest::collection::vec(1usize..40, 60),
            cut in 0usize..60,
            raised in 0u64..5,
        ) {
            let mut at = 0;
            let mut steps = Vec::new();
            let mut every_instant = Vec::new();
            for (used, length) in amounts.iter().zip(&lengths) {
                steps.push(Step { at, used: used.wrapping_sub(raised) });
                every_instant.extend(std::iter::repeat_n(*used, *length));
                at += *length as u64;
            }
            let later = steps.split_off(cut.min(steps.len() - 1));
            let leaf = |steps| Child { from: 0, raised, lowest: 0, highest: 0, node: Node::Leaf(steps) };
            let leaves: Vec<_> = [steps, later].into_iter().filter(|s| !s.is_empty()).map(leaf).collect();
            let runs = Runs::of(&leaves, at);
            for most in 0..14 {
                prop_assert_eq!(runs.longest(most, 0), longest(&every_instant, most));
                // What is noted above moves all amounts.
                prop_assert_eq!(runs.longest(most + 7, 7), longest(&every_instant, most));
            }
        }
    }

    #[test]
    fn what_never_ends_is_longest() {
        let steps = vec![Step { at: 5, used: 1 }, Step { at: 9, used: 0 }];
        let leaf = Child { from: 5, raised: 0, lowest: 0, highest: 1, node: Node::Leaf(steps) };
        let runs = Runs::of(&[leaf], NEVER);
        assert_eq!(runs.longest(0, 0), u64::MAX);
        assert_eq!(*runs.stairs, [Stair { used: 0, length: u64::MAX }]);
    }

    #[test]
    fn classes_ascend_with_length() {
        let lengths = [1, 2, 3, 16, 17, 31, 32, 34, 1 << 40, (1 << 40) + (1 << 36), u64::MAX];
        assert!(lengths.is_sorted_by_key(|length| class(*length)));
        assert_eq!((class(1), class(u64::MAX)), (0, CLASSES - 1));
    }
}
