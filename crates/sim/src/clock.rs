//! Wall clocks that are off.

use keeptime_model::units::{Nanos, WallTime};
use keeptime_random::Random;

/// Nanoseconds of a second: what users and the broker's wall clock count in.
pub const SECOND: u64 = 1_000_000_000;
/// What a clock that is right says at the beginning: 1 January 2026, 00:00 UTC.
pub const START: WallTime = WallTime::from_unix_nanos(1_767_225_600 * SECOND);
/// Clocks are off by at most so many seconds.
pub const OFF_MAX: u64 = 3_600;

/// A machine's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock {
    /// Seconds ahead.
    ahead: i64,
}

impl WallClock {
    /// What it says at true time `now`.
    pub fn read(self, now: Nanos) -> WallTime {
        let right = START.unix_nanos() + now.get();
        let off = self.ahead.unsigned_abs() * SECOND;
        WallTime::from_unix_nanos(if self.ahead < 0 { right - off } else { right + off })
    }

    /// The same, as a clock says it that counts in seconds.
    pub fn read_seconds(self, now: Nanos) -> WallTime {
        let exact = self.read(now).unix_nanos();
        WallTime::from_unix_nanos(exact - exact % SECOND)
    }

    /// Sets it to the right time, or to another: by a second, some seconds, minutes or an hour. Whether that changed it.
    pub fn set_somehow(&mut self, random: &mut Random) -> bool {
        let before = self.ahead;
        let most = *random.pick(&[1, 30, 600, OFF_MAX]).unwrap_or(&1);
        let off = random.within(0..most + 1) as i64;
        self.ahead = if random.is_one_in(2) { off } else { -off };
        self.ahead != before
    }

    /// Sets it to the right time.
    pub fn set_right(&mut self) {
        self.ahead = 0;
    }

    /// Seconds ahead of the right time.
    pub fn ahead(self) -> i64 {
        self.ahead
    }
}

/// Which second since 1970 `time` is in.
pub fn second(time: WallTime) -> u64 {
    time.unix_nanos() / SECOND
}
