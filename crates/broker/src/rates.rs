//! How often a user may ask: a bucket of tokens for each, which what is asked may leave empty for a while. Pure: the time is an
//! argument.

use keeptime_model::reservation::UserName;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A user who was quiet may ask for so many seconds' worth at once.
const BURST_SECONDS: u32 = 5;
/// Users that are remembered; beyond that, those with full buckets are forgotten.
const USERS_MAX: usize = 4_096;

/// The buckets of all users.
#[derive(Debug)]
pub struct Rates {
    per_second: f64,
    burst: f64,
    buckets: HashMap<UserName, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Rates {
    /// For so many requests of each user in a second, in the long run.
    pub fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second.max(1));
        let burst = per_second * f64::from(BURST_SECONDS);
        Self { per_second, burst, buckets: HashMap::new() }
    }

    /// Takes `tokens` of `user` at `now`; if there are fewer, tells when there will be as many.
    ///
    /// # Errors
    /// How long to wait.
    pub fn take(&mut self, user: &UserName, tokens: u32, now: Instant) -> Result<(), Duration> {
        // Nobody waits for what can never be.
        let asked = f64::from(tokens).min(self.burst);
        if self.buckets.len() >= USERS_MAX && !self.buckets.contains_key(user) {
            let (per_second, burst) = (self.per_second, self.burst);
            self.buckets.retain(|_, bucket| bucket.filled(now, per_second, burst) < burst);
            if self.buckets.len() >= USERS_MAX {
                return Err(Duration::from_secs(1));
            }
        }
        let full = Bucket { tokens: self.burst, at: now };
        let bucket = self.buckets.entry(user.clone()).or_insert(full);
        let there = bucket.filled(now, self.per_second, self.burst);
        let (left, outcome) = if there >= asked {
            (there - asked, Ok(()))
        } else {
            let wait = (asked - there) / self.per_second;
            (there, Err(Duration::from_secs_f64(wait)))
        };
        *bucket = Bucket { tokens: left, at: now.max(bucket.at) };
        outcome
    }

    /// `user` has used up `tokens` already, whether they were there or not. Whoever owes some waits for longer, and for no
    /// longer than it takes to fill two buckets.
    pub fn owe(&mut self, user: &UserName, tokens: u32, now: Instant) {
        let (per_second, burst) = (self.per_second, self.burst);
        // Who is not remembered has not asked for long.
        let Some(bucket) = self.buckets.get_mut(user) else { return };
        let left = bucket.filled(now, per_second, burst) - f64::from(tokens);
        *bucket = Bucket { tokens: left.max(-burst), at: now.max(bucket.at) };
    }
}

impl Bucket {
    fn filled(&self, now: Instant, per_second: f64, burst: f64) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + since * per_second).min(burst)
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
        let (mut rates, now) = (Rates::new(20), Instant::now());
        let taken = (0..200).filter(|_| rates.take(&user("eve"), 1, now).is_ok()).count();
        assert_eq!(taken, 20 * BURST_SECONDS as usize);
        let wait = rates.take(&user("eve"), 1, now).unwrap_err();
        assert!(wait <= Duration::from_secs(1));
        assert_eq!(rates.take(&user("ada"), 1, now), Ok(()));
        assert!(rates.take(&user("ada"), 1_000, now).is_err(), "one is gone");
        let full = now + Duration::from_secs(60);
        assert_eq!(rates.take(&user("ada"), 1_000, full), Ok(()), "not for ever");
        assert_eq!(rates.take(&user("eve"), 1, now + wait + Duration::from_millis(1)), Ok(()));
    }

    #[test]
    fn what_was_used_up_already_is_waited_for_and_not_for_ever() {
        let (mut rates, now) = (Rates::new(20), Instant::now());
        let seconds = |count| now + Duration::from_secs(count);
        rates.owe(&user("eve"), 1_000, now);
        assert_eq!(rates.take(&user("eve"), 1, now), Ok(()), "she had not asked for anything");
        rates.owe(&user("eve"), 20 * BURST_SECONDS + 19, now);
        assert!(rates.take(&user("eve"), 1, now).is_err());
        assert_eq!(rates.take(&user("ada"), 1, now), Ok(()), "others are not concerned");
        assert!(rates.take(&user("eve"), 1, seconds(1)).is_err());
        assert_eq!(rates.take(&user("eve"), 1, seconds(2)), Ok(()));
        for _ in 0..100 {
            rates.owe(&user("eve"), u32::MAX, seconds(2));
        }
        let all_of_two_buckets = u64::from(2 * BURST_SECONDS);
        assert!(rates.take(&user("eve"), 1_000, seconds(all_of_two_buckets)).is_err());
        assert_eq!(rates.take(&user("eve"), 1_000, seconds(2 + all_of_two_buckets)), Ok(()));
    }

    #[test]
    fn users_are_not_remembered_for_ever() {
        let (mut rates, now) = (Rates::new(20), Instant::now());
        for number in 0..USERS_MAX {
            rates.take(&user(&format!("u{number}")), 1, now).unwrap();
        }
        assert!(rates.take(&user("one-more"), 1, now).is_err());
        let later = now + Duration::from_secs(10);
        assert_eq!(rates.take(&user("one-more"), 1, later), Ok(()));
        assert_eq!(rates.buckets.len(), 1);
    }
}
