//! Who waits for room: requests that did not fit when they came and may wait, in the order in which they came. Nothing
//! of it is recorded: after a restart, whoever asked asks again.

use crate::call::{Caller, Reason};
use crate::engine::Ticket;
use crate::policy::Policy;
use keeptime_model::reservation::{Handle, Request, RequestKey, UserName};
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;

/// A request that is not decided yet.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Of what it comes to.
    pub handle: Handle,
    /// Who is to be answered: several if it was repeated.
    pub tickets: Vec<Ticket>,
    pub caller: Caller,
    pub key: RequestKey,
    pub request: Request,
    /// It may wait for room until then, by the steady clock; nothing = it does not wait.
    pub until: Option<Nanos>,
    /// Whether others may have to become slower for it. Once: where that came to nothing, it could be so again and again.
    pub may_make_way: bool,
    /// Whether it was tried and waits for room. What was not came when others were to be tried before it, and is decided
    /// with them.
    pub was_tried: bool,
}

/// Requests that wait, and those that have just come after them. Handles are given in the order in which requests come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue(BTreeMap<Handle, Asked>);

impl Asked {
    /// Whether it is what `user` asked with `key`.
    pub fn is_of(&self, user: &UserName, key: &RequestKey) -> bool {
        self.caller.user == *user && self.key == *key
    }

    /// Whether its wait is not over at `now`.
    pub fn may_wait(&self, now: Nanos) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

impl Queue {
    /// Why not one more of `user` may wait, where that is so: each is tried whenever there may be room, and everybody
    /// waits meanwhile.
    pub fn limit_for(&self, user: &UserName, policy: &Policy) -> Option<Reason> {
        let Policy { waiting_requests, user_waiting_requests, .. } = *policy;
        if self.count_of(user) >= user_waiting_requests {
            return Some(Reason::TooManyOfUserWait { user_waiting_requests });
        }
        let is_full = self.len() >= waiting_requests as usize;
        is_full.then_some(Reason::TooManyWait { waiting_requests })
    }

    /// How many of `user` wait for room.
    pub fn count_of(&self, user: &UserName) -> u32 {
        self.waiting().filter(|asked| asked.caller.user == *user).count() as u32
    }

    /// How many wait for room.
    pub fn len(&self) -> usize {
        self.waiting().count()
    }

    fn waiting(&self) -> impl Iterator<Item = &Asked> {
        self.0.values().filter(|asked| asked.was_tried)
    }

    /// Whether there is nobody, not even one who has just come.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, whoever came first before the others.
    pub fn handles(&self) -> Vec<Handle> {
        self.0.keys().copied().collect()
    }

    /// One more waits, or waits on: in the place that it had.
    pub fn put(&mut self, asked: Asked) {
        self.0.insert(asked.handle, asked);
    }

    /// It waits no more.
    pub fn take(&mut self, handle: Handle) -> Option<Asked> {
        self.0.remove(&handle)
    }

    /// What `user` asked with `key`, if it waits.
    pub fn find_mut(&mut self, user: &UserName, key: &RequestKey) -> Option<&mut Asked> {
        self.0.values_mut().find(|asked| asked.is_of(user, key))
    }

    /// Whether whoever is to be answered so waits.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.0.values().any(|asked| asked.tickets.contains(&ticket))
    }

    /// Whoever was to be answered so is gone. What nobody waits for any more is not to be granted.
    pub fn forget(&mut self, ticket: Ticket) {
        self.0.retain(|_, asked| {
            let waited = asked.tickets.len();
            asked.tickets.retain(|other| *other != ticket);
            asked.tickets.len() == waited || !asked.tickets.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::{Ask, Resources};

    fn asked(number: u64, user: &str) -> Asked {
        Asked {
            handle: Handle::new(number),
            tickets: vec![Ticket(number)],
            caller: Caller { user: user.parse().unwrap(), operator: false },
            key: format!("k{number}").parse().unwrap(),
            request: Request::new(Ask::Resources(Resources::nothing())),
            until: Some(Nanos::from_secs(number)),
            may_make_way: true,
            was_tried: true,
        }
    }

    #[test]
    fn who_came_first_stays_first_whatever_was_tried_meanwhile() {
        let mut queue = Queue::default();
        [3, 1, 2].into_iter().for_each(|number| queue.put(asked(number, "ada")));
        let first = queue.take(Handle::new(1)).unwrap();
        assert_eq!(queue.handles(), [2, 3].map(Handle::new));
        queue.put(first);
        assert_eq!(queue.handles(), [1, 2, 3].map(Handle::new));
        assert!(queue.take(Handle::new(4)).is_none());
    }

    #[test]
    fn so_many_wait_of_each_user_and_in_all() {
        let policy = Policy { waiting_requests: 3, user_waiting_requests: 2, ..Policy::default() };
        let (ada, bob) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        let mut queue = Queue::default();
        for number in 1..=2 {
            assert_eq!(queue.limit_for(&ada, &policy), None);
            queue.put(asked(number, "ada"));
        }
        let reached = Reason::TooManyOfUserWait { user_waiting_requests: 2 };
        assert_eq!(queue.limit_for(&ada, &policy), Some(reached));
        assert_eq!(queue.limit_for(&bob, &policy), None);
        queue.put(asked(3, "bob"));
        let reached = Reason::TooManyWait { waiting_requests: 3 };
        assert_eq!(queue.limit_for(&bob, &policy), Some(reached));
        assert_eq!((queue.len(), queue.count_of(&ada), queue.count_of(&bob)), (3, 2, 1));
    }

    #[test]
    fn who_has_just_come_has_a_place_and_counts_in_no_limit() {
        let policy = Policy { waiting_requests: 2, user_waiting_requests: 2, ..Policy::default() };
        let ada = "ada".parse().unwrap();
        let mut queue = Queue::default();
        queue.put(asked(1, "ada"));
        for number in 2..=4 {
            queue.put(Asked { was_tried: false, ..asked(number, "ada") });
        }
        assert_eq!((queue.len(), queue.count_of(&ada), queue.handles().len()), (1, 1, 4));
        assert_eq!(queue.limit_for(&ada, &policy), None);
        assert!(queue.has(Ticket(4)));
        queue.take(Handle::new(1)).unwrap();
        assert_eq!((queue.len(), queue.is_empty()), (0, false));
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten_and_not_before() {
        let mut queue = Queue::default();
        queue.put(asked(1, "ada"));
        let (user, key) = ("ada".parse().unwrap(), "k1".parse().unwrap());
        queue.find_mut(&user, &key).unwrap().tickets.push(Ticket(7));
        queue.forget(Ticket(5));
        queue.forget(Ticket(1));
        assert!(!queue.has(Ticket(1)) && queue.has(Ticket(7)));
        queue.forget(Ticket(7));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_wait_is_over_when_its_time_has_come() {
        let second = Nanos::from_secs(1);
        let waits = asked(1, "ada");
        assert!(waits.may_wait(Nanos::new(second.get() - 1)) && !waits.may_wait(second));
        assert!(!Asked { until: None, ..waits }.may_wait(Nanos::new(0)));
    }
}
