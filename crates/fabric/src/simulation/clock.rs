//! Virtual time: it passes when the world lets it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The time since the world began, the same for all who have a copy.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// What it is now.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }

    /// So much passes.
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}
