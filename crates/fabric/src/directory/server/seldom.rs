//! What strangers can have happen as often as they like is told at most once in [`TOLD_EVERY`]: a log has other readers.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// So often it is warned of.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What was told of one kind of it.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    last: Option<Instant>,
    /// How often it has happened since then.
    left_out: u64,
}

impl Seldom {
    /// Warns of `what`, if that is due; in detail (`debug`) each is told.
    pub(super) fn warn(&mut self, what: &str, why: &dyn Display) {
        match self.count(Instant::now()) {
            Some(0) => tracing::warn!(%why, "{what}"),
            Some(more) => tracing::warn!(%why, more_since_the_last_warning = more, "{what}"),
            None => tracing::debug!(%why, "{what}"),
        }
    }

    /// How many were left out since the last warning; nothing if this one is, too.
    fn count(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < TOLD_EVERY) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }

    /// How many were left out since the last warning; nothing if there was none.
    #[cfg(test)]
    pub(super) fn left_out(&self) -> Option<u64> {
        self.last.map(|_| self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_a_minute_with_how_often_it_happened_meanwhile() {
        let (mut seldom, began) = (Seldom::default(), Instant::now());
        let mut told = |second| seldom.count(began + Duration::from_secs(second));
        assert_eq!(
            [0, 1, 59, 60, 61, 120, 500].map(&mut told),
            [Some(0), None, None, Some(2), None, Some(1), Some(0)]
        );
    }
}
