//! How often a user may ask: a bucket of tokens for each. Pure: the time is an argument.

use keeptime_model::reservation::UserName;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Requests in a second, in the long run: more than people and scripts need, and a small part of what
/// the broker can serve. Each may leave a record of a kilobyte for as long as refusals are remembered.
const PER_SECOND: u32 = 200;
/// At once.
const BURST: u32 = 1_000;
/// Users that are remembered; beyond that, those with full buckets are forgotten.
const USERS_MAX: usize = 4_096;

/// The buckets of all users.
#[derive(Debug, Default)]
pub struct Rates {
    buckets: HashMap<UserName, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Rates {
    /// Takes a token of `user` at `now`; if there is none, tells when there will be.
    ///
    /// # Errors
    /// How long to wait.
    pub fn take(&mut self, user: &UserName, now: Instant) -> Result<(), Duration> {
        if self.buckets.len() >= USERS_MAX && !self.buckets.contains_key(user) {
            self.buckets.retain(|_, bucket| bucket.filled(now) < f64::from(BURST));
            if self.buckets.len() >= USERS_MAX {
                return Err(Duration::from_secs(1));
            }
        }
        let full = Bucket { tokens: f64::from(BURST), at: now };
        let bucket = self.buckets.entry(user.clone()).or_insert(full);
        let tokens = bucket.filled(now);
        let (left, outcome) = if tokens >= 1.0 {
            (tokens - 1.0, Ok(()))
        } else {
            let wait = (1.0 - tokens) / f64::from(PER_SECOND);
            (tokens, Err(Duration::from_secs_f64(wait)))
        };
        *bucket = Bucket { tokens: left, at: now.max(bucket.at) };
        outcome
    }
}

impl Bucket {
    fn filled(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * f64::from(PER_SECOND)).min(f64::from(BURST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        name.parse().unwrap()
    }

    #[test]
    fn who_floods_waits_and_nobody_else() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        let taken = (0..2 * BURST).filter(|_| rates.take(&user("eve"), now).is_ok()).count();
        assert_eq!(taken, BURST as usize);
        let wait = rates.take(&user("eve"), now).unwrap_err();
        assert!(wait <= Duration::from_secs(1));
        assert_eq!(rates.take(&user("ada"), now), Ok(()));
        assert_eq!(rates.take(&user("eve"), now + wait + Duration::from_millis(1)), Ok(()));
    }

    #[test]
    fn users_are_not_remembered_for_ever() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        for number in 0..USERS_MAX {
            rates.take(&user(&format!("u{number}")), now).unwrap();
        }
        assert!(rates.take(&user("one-more"), now).is_err());
        let later = now + Duration::from_secs(10);
        assert_eq!(rates.take(&user("one-more"), later), Ok(()));
        assert_eq!(rates.buckets.len(), 1);
    }
}
