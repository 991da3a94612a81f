//! Until when a run that is held at a rate may go on: a rate that goes down leaves as much more time for what is left to
//! be done, and one that goes up takes none away. Pure: instants come as arguments, and the reservation is the caller's.

use keeptime_model::units::{Nanos, Share};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When a run would be ended, counted from its start.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TimeLimit {
    /// What may be done from `since` on: nanoseconds of full speed, in millionths of them.
    left: u128,
    target: Share,
    since: Nanos,
    until: Nanos,
}

/// The time of a run, and how much of it its reservation covers.
#[derive(Debug)]
pub struct RunTime {
    limit: TimeLimit,
    allowed: Allowed,
    /// When it was asked last that the reservation lasts longer.
    asked: Option<Nanos>,
}

/// How long a run may take in all, as is known by now.
#[derive(Debug, Clone)]
pub struct Allowed(Arc<AtomicU64>);

impl TimeLimit {
    fn new(limit: Nanos, target: Share) -> Self {
        Self { left: work(limit, target), target, since: Nanos::default(), until: limit }
    }

    /// It is held at another target from `now` on.
    fn set(&mut self, target: Share, now: Nanos) {
        let done = work(now.saturating_sub(self.since), self.target);
        self.left = self.left.saturating_sub(done);
        (self.target, self.since) = (target, now);
        let lasts = self.left.div_ceil(u128::from(target.ppm().max(1)));
        let lasts = Nanos::new(u64::try_from(lasts).unwrap_or(u64::MAX));
        self.until = self.until.max(now.saturating_add(lasts));
    }
}

impl RunTime {
    /// Of a run that is held at `target` from its start on, where it is ended after `limit`.
    pub fn new(limit: Nanos, target: Share) -> Self {
        let allowed = Allowed(Arc::new(AtomicU64::new(limit.get())));
        Self { limit: TimeLimit::new(limit, target), allowed, asked: None }
    }

    /// What it may take, for whoever ends it.
    pub fn allowed(&self) -> Allowed {
        self.allowed.clone()
    }

    /// It is held at `target`, as of `now` from its start on. Where that leaves it more time, `extend` has its reservation
    /// last as much longer; if it cannot, it is asked again ten seconds later. Why it could not, for a target that is new.
    pub fn follow(
        &mut self,
        target: Share,
        now: Nanos,
        extend: impl FnOnce(Nanos) -> Result<(), String>,
    ) -> Option<String> {
        let is_new = target != self.limit.target;
        if is_new {
            self.limit.set(target, now);
            self.asked = None;
        }
        let more = self.limit.until.saturating_sub(self.allowed.get());
        let is_due = self.asked.is_none_or(|asked| now.saturating_sub(asked) >= ASK_AGAIN);
        if more == Nanos::default() || !is_due {
            return None;
        }
        self.asked = Some(now);
        match extend(more) {
            Ok(()) => {
                self.allowed.0.store(self.limit.until.get(), Ordering::SeqCst);
                None
            }
            Err(reason) => is_new.then_some(reason),
        }
    }
}

impl Allowed {
    /// So long, from its start.
    pub fn get(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::SeqCst))
    }
}

/// What is done in a span.
fn work(span: Nanos, target: Share) -> u128 {
    u128::from(span.get()) * u128::from(target.ppm())
}

/// Each time is a change of the reservation that may be refused; room comes when others end.
const ASK_AGAIN: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(value: u32) -> Share {
        Share::from_percent(value).unwrap()
    }

    fn seconds(value: u64) -> Nanos {
        Nanos::from_secs(value)
    }

    // Goal: what is left to be done has the time that it takes at the new rate. Method: 100 s at half of full speed, of
    // which 20 are over.
    #[test]
    fn a_lower_rate_leaves_more_time_and_a_higher_one_no_less() {
        let started = TimeLimit::new(seconds(100), percent(50));
        let until = |targets: &[(u32, u64)]| {
            let mut limit = started.clone();
            targets.iter().for_each(|(target, at)| limit.set(percent(*target), seconds(*at)));
            limit.until
        };
        assert_eq!(until(&[]), seconds(100));
        assert_eq!(until(&[(25, 20)]), seconds(180));
        assert_eq!(until(&[(100, 20)]), seconds(100));
        // Faster for 20 s, in which it has done twice as much: at the first rate it would be done after 80 s.
        assert_eq!(until(&[(100, 20), (50, 40)]), seconds(100));
        assert_eq!(until(&[(100, 20), (20, 40)]), seconds(140));
        // Up and down again and again is no way to more time.
        let often: Vec<(u32, u64)> =
            (1..40).map(|at| (if at % 2 == 0 { 50 } else { 49 }, at)).collect();
        assert!(until(&often) <= seconds(103), "{}", until(&often));
        assert_eq!(until(&[(0, 20)]), seconds(20).saturating_add(seconds(40_000_000)));
    }

    #[test]
    fn no_limit_is_beyond_the_longest_that_there_is() {
        let mut limit = TimeLimit::new(Nanos::new(u64::MAX), percent(50));
        limit.set(percent(1), seconds(1));
        assert_eq!(limit.until, Nanos::new(u64::MAX));
        let mut over = TimeLimit::new(seconds(1), percent(50));
        over.set(percent(1), seconds(9));
        assert_eq!(over.until, seconds(9), "nothing is left to be done");
    }

    // Goal: a run is not ended later than its reservation is. Method: one that cannot last longer at first.
    #[test]
    fn more_time_is_allowed_once_the_reservation_has_it() {
        let mut time = RunTime::new(seconds(100), percent(50));
        let allowed = time.allowed();
        let full = |_: Nanos| -> Result<(), String> { Err("n1 is full then".into()) };
        let never = |more: Nanos| -> Result<(), String> { panic!("{more}") };
        assert_eq!(time.follow(percent(50), seconds(10), never), None);
        let why = time.follow(percent(25), seconds(20), full);
        assert_eq!((why.as_deref(), allowed.get()), (Some("n1 is full then"), seconds(100)));
        assert_eq!(time.follow(percent(25), seconds(29), never), None, "not again at once");
        assert_eq!(time.follow(percent(25), seconds(30), full), None, "said once");
        let mut asked = None;
        let extend = |more: Nanos| -> Result<(), String> {
            asked = Some(more);
            Ok(())
        };
        assert_eq!(time.follow(percent(25), seconds(40), extend), None);
        assert_eq!((asked, allowed.get()), (Some(seconds(80)), seconds(180)));
        assert_eq!(time.follow(percent(25), seconds(99), never), None);
    }
}
