//! From when on a node counts whose agent is away: nobody knows when it is back. Pure.
//!
//! What is asked for and what is offered go by the same rule: a node counts for what starts later than agents are told
//! ahead, and [`TIMES`] times as far ahead as it has been away. A node that has just gone is mostly one that is rebooted,
//! and is had again soon; one that has been away for a day may stay so for a week. What starts on it all the same is
//! lost then.

use crate::engine::Moment;
use keeptime_model::units::{Nanos, WallTime};

/// Whoever looks at an outage at any time of it finds that what is left of it is no more than this many times what has
/// passed, four times out of five, however long it lasts: all but who looks in its first fifth. In simulations with outages
/// of 15 minutes, of two hours and of a day, once instead broke a quarter to a half more promises in all, and ten times
/// hardly fewer.
const TIMES: u64 = 4;

/// Who is taken to be there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Absences {
    /// Everybody.
    None,
    /// Who is connected, and who is away from when on it counts.
    AsOf {
        /// When it is asked.
        now: Moment,
        /// So long before its start an agent is told of a reservation: it has to be there.
        told_ahead: Nanos,
    },
}

impl Absences {
    /// As they are so much later, if nobody comes or goes.
    #[must_use]
    pub fn later_by(self, span: Nanos) -> Self {
        match self {
            Self::None => Self::None,
            Self::AsOf { now: Moment { wall, steady }, told_ahead } => {
                let (wall, steady) = (wall.saturating_add(span), steady.saturating_add(span));
                Self::AsOf { now: Moment { wall, steady }, told_ahead }
            }
        }
    }

    /// The first start for which a node counts whose agent is away since `away`, by the steady clock; any, where it is
    /// connected.
    pub fn counts_from(self, away: Option<Nanos>) -> WallTime {
        let (Self::AsOf { now, told_ahead }, Some(since)) = (self, away) else {
            return WallTime::default();
        };
        let passed = now.steady.saturating_sub(since);
        let left = Nanos::new(passed.get().saturating_mul(TIMES));
        let not_told = told_ahead.saturating_add(Nanos::new(1));
        now.wall.saturating_add(left.max(not_told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD_AHEAD: Nanos = Nanos::from_secs(600);

    fn at(seconds: u64) -> Moment {
        // Two clocks that have nothing to do with each other.
        let wall = WallTime::default().saturating_add(Nanos::from_secs(1_000_000 + seconds));
        Moment { wall, steady: Nanos::from_secs(seconds) }
    }

    /// The first start for which a node counts that is away since 1,000 s, in seconds from `now` on.
    fn ahead(absences: Absences, now: u64) -> f64 {
        let from = absences.counts_from(Some(Nanos::from_secs(1_000)));
        from.saturating_since(at(now).wall).as_secs_f64()
    }

    #[test]
    fn who_is_away_longer_counts_for_what_is_further_ahead() {
        let as_of = |now| Absences::AsOf { now: at(now), told_ahead: TOLD_AHEAD };
        for now in [1_000, 1_150] {
            let ahead = ahead(as_of(now), now);
            assert!(ahead > 600.0 && ahead < 600.1, "agents are told of nothing sooner: {ahead}");
        }
        assert_eq!(ahead(as_of(1_200), 1_200), 800.0);
        assert_eq!(ahead(as_of(2_000), 2_000), 4_000.0);
        assert_eq!(ahead(as_of(1_200).later_by(Nanos::from_secs(800)), 2_000), 4_000.0);
    }

    #[test]
    fn who_is_there_counts_for_any_start() {
        let as_of = Absences::AsOf { now: at(2_000), told_ahead: TOLD_AHEAD };
        assert_eq!(as_of.counts_from(None), WallTime::default());
        let none = Absences::None.later_by(TOLD_AHEAD);
        assert_eq!(none.counts_from(Some(Nanos::new(0))), WallTime::default());
    }
}
