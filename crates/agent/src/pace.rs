//! How much somebody has had done of late, so that nobody has others wait, or a processor for itself, by asking without pause
//! (pure: the time is an argument).

use keeptime_locks::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What this much of work takes at the pace at which it may go on may be done at once.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(1);

/// What was done, as the moment until which it lasts at that pace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    until: Option<Instant>,
}

impl Pace {
    /// How long nothing more is to be done: not at all for whoever has done little.
    pub fn wait(&self, now: Instant) -> Duration {
        self.lasts(now).saturating_sub(AT_ONCE)
    }

    /// Something is done that takes so long at that pace.
    pub fn spend(&mut self, now: Instant, span: Duration) {
        self.until = Some(now + self.lasts(now) + span);
    }

    /// Whether it is as if nothing had ever been done.
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.lasts(now).is_zero()
    }

    fn lasts(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// Those of all users who ask. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paces(Arc<Mutex<HashMap<u32, Pace>>>);

impl Paces {
    /// How long what `user` asks for now is to wait, of which each takes so long at the pace of one user.
    pub fn spend(&self, user: u32, now: Instant, span: Duration) -> Duration {
        let mut paces = lock(&self.0);
        paces.retain(|_, pace| !pace.is_fresh(now));
        let pace = paces.entry(user).or_default();
        let wait = pace.wait(now);
        pace.spend(now, span);
        wait
    }

    /// Of how many users it is known that they have asked.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: who does little never waits, and who does not stop goes on at the pace. Method: a hundred pieces of work in an hour, and
    // then as many as there is room for.
    #[test]
    fn what_goes_on_without_pause_goes_on_at_the_pace() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let span = AT_ONCE / 10;
        for _ in 0..100 {
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.spend(now, 8 * span);
            now += Duration::from_secs(36);
        }
        assert!(pace.is_fresh(now));
        let mut count = 0;
        while pace.wait(now).is_zero() {
            pace.spend(now, span);
            count += 1;
        }
        assert_eq!(count, 11);
        assert!(!pace.is_fresh(now));
        assert_eq!(pace.wait(now), span);
        assert_eq!(pace.wait(now + span), Duration::ZERO);
    }

    // Goal: a user who asks without pause waits, by however many connections, and nobody else does, or is remembered for ever.
    #[test]
    fn each_user_has_a_pace_of_its_own() {
        let (paces, now) = (Paces::default(), Instant::now());
        let span = AT_ONCE / 2;
        let waits: Vec<_> = (0..5).map(|_| paces.spend(7, now, span)).collect();
        assert_eq!(waits, [0, 0, 0, 1, 2].map(|times| times * span));
        assert_eq!((paces.spend(8, now, span), paces.count()), (Duration::ZERO, 2));
        assert_eq!(paces.spend(9, now + 5 * span, span), Duration::ZERO);
        assert_eq!(paces.count(), 1);
    }
}
