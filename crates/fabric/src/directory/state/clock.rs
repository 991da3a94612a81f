//! What the node's clock shows.

use std::time::Duration;

/// The node's clock, from which nothing is taken but since when a context is its user's: it may be set forth and back.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// What it has shown last, since 1970.
    pub shown: Duration,
    /// When that was.
    pub at: Duration,
}

impl Clock {
    /// What it shows then.
    pub(super) fn shows(&self, now: Duration) -> Duration {
        self.shown.saturating_add(now.saturating_sub(self.at))
    }
}
