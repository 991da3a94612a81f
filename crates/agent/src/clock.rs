//! The node's clock, as an agent takes it, and the broker that of its machine: one that steps for a moment, and back, ends
//! nothing that was assigned or reserved.
//!
//! A step is believed when it has lasted for ten seconds. Until then time goes on from where it was, as the kernel's steady
//! clock has it.

use keeptime_locks::lock;
use keeptime_model::units::{Nanos, WallTime};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

/// What is less is no step: clocks are slewed, and read one after the other.
const STEP: Nanos = Nanos::from_secs(1);
/// So long a step has to last. Whoever sets a clock twice does so within less.
const BELIEVED_AFTER: Nanos = Nanos::from_secs(10);

/// A clock that is not believed at once when it steps.
#[derive(Debug, Default)]
pub struct Clock {
    /// What time it was last, and by the steady clock.
    last: Option<(WallTime, Nanos)>,
    /// Since when another time is shown than was to be expected, by the steady clock.
    doubted_since: Option<Nanos>,
    /// How often it was set back.
    times_set_back: u64,
}

impl Clock {
    /// What time it is, where the node's clock shows `shown`, and a steady one `steady`.
    pub fn read(&mut self, shown: WallTime, steady: Nanos) -> WallTime {
        let Some((last, then)) = self.last else {
            self.last = Some((shown, steady));
            return shown;
        };
        let expected = last.saturating_add(steady.saturating_sub(then));
        let back = expected.saturating_since(shown);
        let is_step = back.max(shown.saturating_since(expected)) > STEP;
        let since = *self.doubted_since.get_or_insert(steady);
        let is_doubted = is_step && steady.saturating_sub(since) < BELIEVED_AFTER;
        let now = match (is_step, is_doubted) {
            (_, true) => expected,
            (true, false) => shown,
            // What is a little behind is waited for: time goes back by steps alone.
            (false, false) => shown.max(last),
        };
        if !is_doubted {
            self.doubted_since = None;
            self.times_set_back += u64::from(back > STEP);
        }
        self.last = Some((now, steady));
        now
    }

    /// How often it was set back so far, and that was believed.
    pub fn times_set_back(&self) -> u64 {
        self.times_set_back
    }
}

/// Now, as this process takes the node's clock.
pub fn now() -> WallTime {
    look(|clock, steady| clock.read(SystemTime::now().into(), steady))
}

/// [`Clock::times_set_back`] of this process: what was let go before, as its time seemed to be over, may last again.
pub fn times_set_back() -> u64 {
    look(|clock, _| clock.times_set_back())
}

fn look<T>(with: impl FnOnce(&mut Clock, Nanos) -> T) -> T {
    static CLOCK: Mutex<Option<(Clock, Instant)>> = Mutex::new(None);
    let mut held = lock(&CLOCK);
    let (clock, start) = held.get_or_insert_with(|| (Clock::default(), Instant::now()));
    with(clock, start.elapsed().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    /// What is taken for the time at each of some seconds, where the clock shows so much.
    fn taken(shown: impl IntoIterator<Item = (u64, u64)>) -> (Vec<u64>, u64) {
        let mut clock = Clock::default();
        let read = |(steady, shown)| {
            clock.read(at(shown), Nanos::from_secs(steady)).unix_nanos() / 1_000_000_000
        };
        let times = shown.into_iter().map(read).collect();
        (times, clock.times_set_back())
    }

    #[test]
    fn a_step_for_a_moment_is_none() {
        let forth = [(0, 1_000), (1, 1_001), (2, 9_000), (9, 9_007), (10, 1_010), (14, 1_014)];
        assert_eq!(taken(forth), (vec![1_000, 1_001, 1_002, 1_009, 1_010, 1_014], 0));
        let back = [(0, 1_000), (1, 500), (9, 508), (10, 1_010), (12, 512), (21, 521)];
        assert_eq!(taken(back), (vec![1_000, 1_001, 1_009, 1_010, 1_012, 1_021], 0));
    }

    #[test]
    fn a_step_that_lasts_is_believed_and_one_back_is_told() {
        assert_eq!(
            taken([(0, 1_000), (1, 9_001), (11, 9_011), (12, 9_012)]),
            (vec![1_000, 1_001, 9_011, 9_012], 0)
        );
        assert_eq!(
            taken([(0, 1_000), (1, 501), (11, 511), (12, 512), (13, 513)]),
            (vec![1_000, 1_001, 511, 512, 513], 1)
        );
    }

    // As after a step that was doubted: what was shown meanwhile, and is again, differ by what the steady clock is off.
    #[test]
    fn a_clock_that_is_a_little_behind_is_waited_for() {
        let shown = [(0, 1_000), (5, 1_005), (5, 1_004), (6, 1_005), (7, 1_006), (8, 1_007)];
        assert_eq!(taken(shown), (vec![1_000, 1_005, 1_005, 1_005, 1_006, 1_007], 0));
    }

    // A second an hour.
    #[test]
    fn a_clock_that_is_slewed_is_followed() {
        let shown = (0..10).map(|hour| (hour * 3_600, 1_000 + hour * 3_601));
        let (times, set_back) = taken(shown.clone());
        assert_eq!((times, set_back), (shown.map(|(_, shown)| shown).collect(), 0));
    }
}
