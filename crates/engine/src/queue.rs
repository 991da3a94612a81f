//! Who waits for room: requests that did not fit when they came and may wait, in the order in which they came, and which
//! nodes those keep from whoever came later. Nothing of it is recorded: after a restart, whoever asked asks again.

use crate::book::{Reservation, Waits};
use crate::call::Caller;
use crate::claims::Claim;
use crate::engine::{Moment, Ticket};
use crate::policy::Policy;
use crate::refusal::{Reason, Refusal};
use keeptime_model::reservation::{Handle, Request, RequestKey, State, UserName};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
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
    /// When it came.
    pub since: WallTime,
    /// It may wait for room until then, by the steady clock; nothing = it does not wait.
    pub until: Option<Nanos>,
    /// Whether others may have to become slower for it. Once: where that came to nothing, it could be so again and again.
    pub may_make_way: bool,
    /// What it has of having come first, since it was tried and waits for room. What was not came when others were to be
    /// tried before it, and is decided with them.
    pub claim: Option<Claim>,
    /// Why it was not granted when it was tried last.
    pub refusal: Option<Box<Refusal>>,
    /// How often its agents did not take what they were offered, and it went back to its place.
    pub returns: u32,
    /// It is not tried before, by the steady clock.
    pub rests_until: Nanos,
}

/// Requests that wait, and those that have just come after them. Handles are given in the order in which requests come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue(BTreeMap<Handle, Asked>);

impl Asked {
    /// One that has just come, at `since`, and may wait until `until`.
    pub fn new(
        handle: Handle,
        ticket: Ticket,
        caller: Caller,
        key: RequestKey,
        request: Request,
        (since, until): (WallTime, Option<Nanos>),
    ) -> Self {
        Self {
            handle,
            tickets: vec![ticket],
            caller,
            key,
            request,
            since,
            until,
            may_make_way: true,
            claim: None,
            refusal: None,
            returns: 0,
            rests_until: Nanos::new(0),
        }
    }

    /// Whether it is what `user` asked with `key`.
    pub fn is_of(&self, user: &UserName, key: &RequestKey) -> bool {
        self.caller.user == *user && self.key == *key
    }

    /// Whether its wait is not over at `now`.
    pub fn may_wait(&self, now: Nanos) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// Whether it was tried and waits for room.
    pub fn was_tried(&self) -> bool {
        self.claim.is_some()
    }

    /// The nodes that are kept for it at `now`.
    pub fn kept(&self, now: Nanos) -> &[NodeIndex] {
        self.claim.as_ref().map(|claim| claim.kept(now)).unwrap_or_default()
    }

    /// Whether what begins at `from` may be in its way, should it have room before its wait is over.
    pub fn may_meet(&self, from: WallTime, at: Moment) -> bool {
        let left = self.until.unwrap_or(at.steady).saturating_sub(at.steady);
        let begins = at.wall.saturating_add(left);
        let ends = self.request.duration_nanos.map(|duration| begins.saturating_add(duration));
        ends.is_none_or(|ends| from < ends)
    }

    /// As the reservation that it may become, the `place`-th of those who wait.
    fn as_reservation(&self, place: u32, at: Moment) -> Reservation {
        let left = self.until.unwrap_or(at.steady).saturating_sub(at.steady);
        let asked = (&self.caller.user, &self.key, &self.request);
        Reservation {
            refusal: self.refusal.as_deref().cloned(),
            waits: Some(Waits { place, until_unix_nanos: at.wall.saturating_add(left) }),
            ..Reservation::new(self.handle, asked, State::Waiting, self.since)
        }
    }

    /// Whoever was to be answered so is gone. Whether it was the last who waited for it.
    pub fn forget(&mut self, ticket: Ticket) -> bool {
        let waited = self.tickets.len();
        self.tickets.retain(|other| *other != ticket);
        self.tickets.len() < waited && self.tickets.is_empty()
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
        self.0.values().filter(|asked| asked.was_tried())
    }

    /// Those who wait for room at `at`, whoever came first before the others.
    pub fn reservations(&self, at: Moment) -> impl Iterator<Item = Reservation> {
        let places = (1..).zip(self.waiting());
        places.map(move |(place, asked)| asked.as_reservation(place, at))
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

    /// One of them.
    pub fn find(&self, handle: Handle) -> Option<&Asked> {
        self.0.get(&handle)
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

    /// Whoever was to be answered so is gone. What nobody waits for any more is not to be granted; whether nodes were kept
    /// for that at `now`.
    pub fn forget(&mut self, ticket: Ticket, now: Nanos) -> bool {
        let mut gives_nodes = false;
        self.0.retain(|_, asked| {
            let is_over = asked.forget(ticket);
            gives_nodes |= is_over && !asked.kept(now).is_empty();
            !is_over
        });
        gives_nodes
    }

    /// Nodes that are kept for those who came before `handle`, from what begins at `from`; some of them several times.
    pub fn kept_from(
        &self,
        handle: Handle,
        from: WallTime,
        at: Moment,
    ) -> impl Iterator<Item = NodeIndex> {
        let before = self.0.range(..handle).map(|(_, asked)| asked);
        let met = before.filter(move |asked| asked.may_meet(from, at));
        met.flat_map(move |asked| asked.kept(at.steady)).copied()
    }

    /// `handle` of `user` is to have `nodes`, which ascend, from `from` on: it passes all of others who came before it, wait,
    /// and could use any of them. (Who passes oneself has chosen so, and could have nodes kept by that.) Until when nodes
    /// are kept for some of these from now on, where that was once too often.
    pub fn passed_by(
        &mut self,
        handle: Handle,
        user: &UserName,
        nodes: &[NodeIndex],
        from: WallTime,
        at: Moment,
    ) -> Option<Nanos> {
        let before = self.0.range_mut(..handle).map(|(_, asked)| asked);
        let of_others = before.filter(|asked| asked.caller.user != *user);
        let met = of_others.filter(|asked| asked.may_meet(from, at));
        let claims = met.filter_map(|asked| asked.claim.as_mut());
        let passed = claims.filter(|claim| claim.is_on_any_of(nodes));
        passed.filter_map(|claim| claim.pass(at.steady)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{KEPT_FOR, PASSES_MAX};
    use keeptime_model::reservation::{Ask, Resources};
    use proptest::collection::vec;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    fn asked(number: u64, user: &str) -> Asked {
        let caller = Caller { user: user.parse().unwrap(), operator: false };
        let key = format!("k{number}").parse().unwrap();
        let request = Request::new(Ask::Resources(Resources::nothing()));
        let until = Some(Nanos::from_secs(number));
        let times = (WallTime::default(), until);
        let asked = Asked::new(Handle::new(number), Ticket(number), caller, key, request, times);
        Asked { claim: Some(Claim::on(Vec::new())), ..asked }
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
            queue.put(Asked { claim: None, ..asked(number, "ada") });
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
        let now = Nanos::new(0);
        assert!(!queue.forget(Ticket(5), now) && !queue.forget(Ticket(1), now));
        assert!(!queue.has(Ticket(1)) && queue.has(Ticket(7)));
        assert!(!queue.forget(Ticket(7), now), "nothing was kept for it");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_wait_is_over_when_its_time_has_come() {
        let second = Nanos::from_secs(1);
        let waits = asked(1, "ada");
        assert!(waits.may_wait(Nanos::new(second.get() - 1)) && !waits.may_wait(second));
        assert!(!Asked { until: None, ..waits }.may_wait(Nanos::new(0)));
    }

    fn moment(seconds: u64) -> Moment {
        let span = Nanos::from_secs(seconds);
        Moment { wall: WallTime::default().saturating_add(span), steady: span }
    }

    /// One that could use these nodes, for a minute if it has room within 100 seconds of the start.
    fn on(number: u64, nodes: &[u32]) -> Asked {
        let nodes = nodes.iter().map(|node| NodeIndex(*node)).collect();
        let before = asked(number, "ada");
        let duration_nanos = Some(Nanos::from_secs(60));
        let request = Request { duration_nanos, ..before.request.clone() };
        let until = Some(Nanos::from_secs(100));
        Asked { claim: Some(Claim::on(nodes)), request, until, ..before }
    }

    #[test]
    fn only_those_who_came_later_and_at_the_same_time_are_kept_from_nodes() {
        let mut queue = Queue::default();
        queue.put(on(5, &[1, 2]));
        let (now, later) = (moment(0), moment(160));
        let mut pass = |number, user: &str, from: Moment| {
            let (handle, user) = (Handle::new(number), user.parse().unwrap());
            queue.passed_by(handle, &user, &[NodeIndex(2)], from.wall, now)
        };
        for _ in 0..PASSES_MAX {
            assert_eq!(pass(4, "bob", now), None, "it was first");
            assert_eq!(pass(6, "bob", later), None, "the other has ended by then");
            assert_eq!(pass(6, "ada", now), None, "it is of the same user");
        }
        let kept: Vec<_> = (0..PASSES_MAX).filter_map(|_| pass(6, "bob", now)).collect();
        assert_eq!(kept, [KEPT_FOR]);
        let from = |number, from: Moment| -> Vec<_> {
            queue.kept_from(Handle::new(number), from.wall, now).collect()
        };
        assert_eq!(from(6, now), [1, 2].map(NodeIndex));
        assert_eq!(from(6, moment(159)), [1, 2].map(NodeIndex));
        assert!(from(6, later).is_empty());
        assert!(from(5, now).is_empty() && from(4, now).is_empty());
    }

    #[test]
    fn who_leaves_says_whether_nodes_were_kept_for_it() {
        let (mut queue, now) = (Queue::default(), moment(0));
        queue.put(on(5, &[1]));
        let bob = "bob".parse().unwrap();
        for _ in 0..PASSES_MAX {
            queue.passed_by(Handle::new(6), &bob, &[NodeIndex(1)], now.wall, now);
        }
        assert!(!queue.clone().forget(Ticket(5), KEPT_FOR), "that is over");
        assert!(queue.forget(Ticket(5), now.steady) && queue.is_empty());
    }

    // Goal: within any span for which nodes are kept, nobody is passed more often than the bound; who is held up touches
    // something of one that was passed so often, and of nobody else; whoever came first is held up by nobody, so that there
    // is always one that goes on. Method: requests with any of six nodes come, some of which wait for ever and all others
    // are granted unless a node of theirs is kept, beside a list of all passes.
    proptest! {
        #[test]
        fn nobody_is_passed_too_often_and_nobody_is_held_up_without_need(
            coming in vec((0u32..8, 1u32..64, 0u64..60), 1..300),
        ) {
            let (mut queue, bob) = (Queue::default(), "bob".parse().unwrap());
            let mut waiting: Vec<(u32, Vec<u64>)> = Vec::new();
            let mut now = 0;
            for (number, (kind, mask, after)) in (1..).zip(coming) {
                now += after;
                let (handle, at) = (Handle::new(number), moment(now));
                let nodes: Vec<_> = (0..6u32).filter(|node| (mask & (1 << *node)) != 0).collect();
                if kind == 0 {
                    let endless = Request::new(Ask::Resources(Resources::nothing()));
                    let until = Some(Nanos::new(u64::MAX));
                    queue.put(Asked { request: endless, until, ..on(number, &nodes) });
                    waiting.push((mask, Vec::new()));
                    continue;
                }
                let kept: BTreeSet<_> = queue.kept_from(handle, at.wall, at).collect();
                let nodes: Vec<_> = nodes.into_iter().map(NodeIndex).collect();
                let is_held_up = nodes.iter().any(|node| kept.contains(node));
                let kept_for = KEPT_FOR.get() / 1_000_000_000;
                let touched = waiting.iter_mut().filter(|(of, _)| (of & mask) != 0);
                let mut is_with_reason = false;
                for (_, passes) in touched {
                    let last = passes.last().is_some_and(|last| last + kept_for > now);
                    is_with_reason |= last && passes.len() >= PASSES_MAX as usize;
                    if !is_held_up {
                        passes.push(now);
                        let of_late = passes.iter().filter(|pass| *pass + kept_for > now).count();
                        prop_assert!(of_late <= PASSES_MAX as usize);
                    }
                }
                prop_assert!(!is_held_up || is_with_reason);
                if !is_held_up {
                    queue.passed_by(handle, &bob, &nodes, at.wall, at);
                }
            }
            let at = moment(now);
            if let Some(first) = queue.handles().first() {
                prop_assert_eq!(queue.kept_from(*first, at.wall, at).count(), 0);
            }
        }
    }
}
