//! The clocks of this machine, and how far they are believed. What is over is so for good: a clock that steps is
//! believed when that has lasted, as agents do it ([`keeptime_agent::clock`]), and none that is far behind what is recorded.

use keeptime_agent::clock::Clock;
use keeptime_credentials::dates::now;
use keeptime_engine::Moment;
use keeptime_model::units::{Nanos, WallTime};
use std::time::Instant;

/// A broker begins where its clock is no further behind what is recorded. Its time would stand still for as long, and what it
/// grants begin only then on nodes whose clocks are right; and other clocks differ by no more than a second.
pub(super) const BEHIND_MAX: Nanos = Nanos::from_secs(60);

/// The clocks of this machine.
pub(super) struct Clocks {
    /// When the steady one began.
    pub(super) began: Instant,
    /// What the other one shows,
    pub(super) shown: fn() -> WallTime,
    /// and how far that is believed.
    clock: Clock,
    /// Whether it is far behind the engine's time, and that was told.
    is_behind: bool,
}

impl Clocks {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), shown: now, clock: Clock::default(), is_behind: false }
    }

    /// Now by both.
    pub(super) fn moment(&mut self) -> Moment {
        let steady = Nanos::from(self.began.elapsed());
        Moment { wall: self.clock.read((self.shown)(), steady), steady }
    }

    /// Says so when the wall clock was set back far behind the engine's time.
    pub(super) fn compare(&mut self, wall: WallTime, engine: WallTime) {
        let is_behind = engine.saturating_since(wall) > BEHIND_MAX;
        if is_behind && !self.is_behind {
            tracing::error!(
                "the clock was set back to {wall}: nothing begins or ends until it shows {engine} again"
            );
        }
        self.is_behind = is_behind;
    }
}
