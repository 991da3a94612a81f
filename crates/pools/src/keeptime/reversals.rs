//! Moves that undo others: counted, and limited to one in ten where they can wait.

use crate::pool::SiteIndex;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// What a move earns, and what a reversal costs, in thousandths of a reversal.
const EARNED: u32 = 100;
const COST: u32 = 1_000;
/// Two reversals can be saved up: after a long time of moves one way, more would be no brake.
const CREDIT_MAX: u32 = 2 * COST;

/// Which moves there were lately, and how many reversals are left.
///
/// A reversal moves a node from one site to another that gave the first one a node shortly before.
/// Urgent ones are made in any case and may use up what there is; others wait until there is some, or
/// until the move before is long enough ago.
#[derive(Debug, Clone)]
pub struct Reversals {
    within: Nanos,
    moved: BTreeMap<(SiteIndex, SiteIndex), Nanos>,
    credit: u32,
}

impl Reversals {
    /// Moves count as reversals `within` this time after the one that they undo.
    pub fn new(within: Nanos) -> Self {
        Self { within, moved: BTreeMap::new(), credit: COST }
    }

    /// Whether a move would be a reversal.
    pub fn is_reversal(&self, now: Nanos, from: Option<SiteIndex>, to: SiteIndex) -> bool {
        let before = from.and_then(|from| self.moved.get(&(to, from)));
        before.is_some_and(|at| now.saturating_sub(*at) < self.within)
    }

    /// Whether a reversal that can wait may be made.
    pub fn is_left(&self) -> bool {
        self.credit >= COST
    }

    /// Counts a move that is made.
    pub fn count(&mut self, now: Nanos, from: Option<SiteIndex>, to: SiteIndex) {
        self.credit = if self.is_reversal(now, from, to) {
            self.credit.saturating_sub(COST)
        } else {
            (self.credit + EARNED).min(CREDIT_MAX)
        };
        if let Some(from) = from {
            self.moved.insert((from, to), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_move_in_ten_may_undo_another() {
        let (a, b) = (SiteIndex(0), SiteIndex(1));
        let second = Nanos::from_secs;
        let mut reversals = Reversals::new(second(60));
        reversals.count(second(0), Some(a), b);
        assert!(reversals.is_reversal(second(59), Some(b), a) && reversals.is_left());
        assert!(!reversals.is_reversal(second(60), Some(b), a));
        assert!(!reversals.is_reversal(second(1), Some(a), b), "the same way again");
        assert!(!reversals.is_reversal(second(1), None, a), "spares come from nobody");
        reversals.count(second(1), Some(b), a);
        assert!(!reversals.is_left(), "one was left, and a tenth");
        for _ in 0..9 {
            reversals.count(second(1), None, a);
        }
        assert!(reversals.is_left());
    }
}
