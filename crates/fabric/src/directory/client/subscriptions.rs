//! The questions that are kept beyond their use, of which one is given up for another when there
//! are too many.

use super::state::State;
use super::subscription::Subscription;
use crate::attributes::Attributes;
use crate::directory::protocol::{Record, Request};
use std::collections::HashMap;
use std::time::Instant;

/// Questions that are kept beyond their use; each costs the server a look at each change.
pub(super) const KEPT_MOST: usize = 1024;

/// All of them, by number.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    all: HashMap<u32, Kept>,
    by_query: HashMap<Attributes, u32>,
    /// Counts uses, to tell which question was not asked for longest.
    uses: u64,
    /// This server may not know yet what there is, or something is held that the one before it
    /// knew.
    are_settling: bool,
}

/// One of them, and when it was used last.
#[derive(Debug)]
struct Kept {
    query: Attributes,
    subscription: Subscription,
    used: u64,
}

impl Subscriptions {
    /// Whether one has that number.
    pub(super) fn has(&self, number: u32) -> bool {
        self.all.contains_key(&number)
    }

    /// Whether somebody watches that of this number.
    pub(super) fn is_watched(&self, number: u32) -> bool {
        self.of(number).is_some_and(|subscription| !subscription.watchers.is_empty())
    }

    /// That of this number.
    pub(super) fn of(&self, number: u32) -> Option<&Subscription> {
        self.all.get(&number).map(|kept| &kept.subscription)
    }

    /// The same, to be changed.
    pub(super) fn of_mut(&mut self, number: u32) -> Option<&mut Subscription> {
        self.all.get_mut(&number).map(|kept| &mut kept.subscription)
    }

    /// All, as they were asked.
    pub(super) fn queries(&self) -> impl Iterator<Item = (u32, &Attributes)> {
        self.all.iter().map(|(number, kept)| (*number, &kept.query))
    }

    /// One less. The server is not told.
    pub(super) fn forget(&mut self, number: u32) {
        if let Some(kept) = self.all.remove(&number) {
            self.by_query.remove(&kept.query);
        }
    }

    /// Watches one, if it is there: the watcher's number, and all that it takes for being there.
    pub(super) fn watch(&mut self, number: u32) -> Option<(u64, Vec<Record>)> {
        self.uses += 1;
        let watcher = self.uses;
        let subscription = self.of_mut(number)?;
        subscription.watchers.insert(watcher);
        Some((watcher, subscription.watched().cloned().collect()))
    }

    /// The server has ended, and nobody keeps them right.
    pub(super) fn doubt_all(&mut self) {
        self.all.values_mut().for_each(|kept| kept.subscription.doubt());
    }

    /// There is another server, which may not know yet what there is.
    pub(super) fn begin_settling(&mut self) {
        self.are_settling = true;
    }

    /// Whether there may be something to be let go.
    pub(super) fn are_settling(&self) -> bool {
        self.are_settling
    }

    /// Tells watchers what has not come back in time.
    pub(super) fn let_go(&mut self, now: Instant) {
        if !self.are_settling {
            return;
        }
        self.all.values_mut().for_each(|kept| kept.subscription.let_go(now));
        self.are_settling = self.all.values().any(|kept| kept.subscription.is_settling());
    }

    /// The number of the question `query`, which is used now, if it is there.
    fn used(&mut self, query: &Attributes) -> Option<u32> {
        self.uses += 1;
        let number = *self.by_query.get(query)?;
        if let Some(kept) = self.all.get_mut(&number) {
            kept.used = self.uses;
        }
        Some(number)
    }

    /// One more, which was used last.
    fn insert(&mut self, number: u32, query: Attributes) {
        self.by_query.insert(query.clone(), number);
        let (subscription, used) = (Subscription::default(), self.uses);
        self.all.insert(number, Kept { query, subscription, used });
    }

    /// Which one makes room for another: that which nobody has asked for longest, if there are as
    /// many as may be.
    fn superfluous(&self) -> Option<u32> {
        if self.all.len() < KEPT_MOST {
            return None;
        }
        let unwatched = self.all.iter().filter(|(_, kept)| kept.subscription.watchers.is_empty());
        unwatched.min_by_key(|(_, kept)| kept.used).map(|(number, _)| *number)
    }
}

impl State {
    /// The number of the question `query`, which is asked if it was not.
    pub(super) fn subscription(&mut self, query: &Attributes) -> u32 {
        if let Some(number) = self.subscriptions.used(query) {
            return number;
        }
        if let Some(number) = self.subscriptions.superfluous() {
            self.subscriptions.forget(number);
            self.connection.say(&Request::Unsubscribe { number });
        }
        let number = self.next_number();
        self.subscriptions.insert(number, query.clone());
        self.connection.say(&Request::Subscribe { number, query: query.clone() });
        number
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::super::testing::{LONG, record};
    use super::*;
    use crate::attrs;
    use crate::directory::protocol::Answer;
    use std::time::Duration;

    /// Goal: nothing is told of what the next server hears of in time, and all else when that is
    /// over. Looks, which are to be right, do not find it meanwhile. Method: a server that knows
    /// nothing at first, again and again.
    #[test]
    fn what_the_next_server_hears_of_in_time_was_never_gone() {
        let there = record("n1", Attributes::new());
        let other = record("n1", attrs! { "a" => "b" });
        let id = there.id;
        let start = Instant::now();
        let mut state = State::default();
        let number = state.subscription(&attrs! {});
        let mut step = |after: Duration, answer: Option<Answer>| -> (usize, Vec<Event>) {
            answer.into_iter().for_each(|answer| state.hear(answer));
            state.subscriptions.begin_settling();
            state.subscriptions.let_go(start + after);
            let subscription = state.subscriptions.of_mut(number).unwrap();
            let found = subscription.known().unwrap().len();
            if subscription.watchers.is_empty() {
                subscription.watchers.insert(1);
            }
            (found, subscription.watchers.of(1).unwrap().drain(..).collect())
        };
        let found = |records: &[Record]| {
            let records = records.to_vec();
            Some(Answer::Found { number, records })
        };
        let appeared = |record: &Record| {
            let record = record.clone();
            Some(Answer::Appeared { number, record })
        };
        // Answers are heard now, a little later than the start.
        let (soon, late) = (Duration::ZERO, LONG);
        // Nobody has watched until now.
        step(soon, found(std::slice::from_ref(&there)));
        let all = found(std::slice::from_ref(&there));
        for answer in [all, appeared(&there)] {
            assert_eq!(step(soon, found(&[])), (0, vec![]));
            assert_eq!(step(soon, answer), (1, vec![]));
        }
        assert_eq!(step(soon, found(&[])), (0, vec![]));
        let events = vec![Event::Disappeared(id), Event::Appeared(other.clone())];
        assert_eq!(step(soon, appeared(&other)), (1, events));
        assert_eq!(step(soon, found(&[])), (0, vec![]));
        assert_eq!(step(late, None), (0, vec![Event::Disappeared(id)]));
        assert_eq!(step(late, appeared(&there)), (1, vec![Event::Appeared(there.clone())]));
        assert!(!state.subscriptions.are_settling());
    }
}
