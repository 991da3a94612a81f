//! All that a client knows, which its threads share under one lock and each answer of the server
//! changes.

use super::asking::{Asked, Outcome};
use super::connection::Connection;
use super::registrations::Registrations;
use super::subscriptions::Subscriptions;
use super::welcome::{Standing, Welcome};
use crate::directory::protocol::{Answer, ContextInfo, Request};
use keeptime_locks::{lock, unpoisoned};
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For whom and to which servers a client is, and what it knows.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) context: ContextInfo,
    state: Mutex<State>,
    changed: Condvar,
}

/// All that a client knows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) connection: Connection,
    pub(super) standing: Standing,
    pub(super) asked: Asked,
    pub(super) registrations: Registrations,
    pub(super) subscriptions: Subscriptions,
    pub(super) is_closed: bool,
    /// The last that a question was given.
    number: u32,
}

impl Shared {
    /// Of a client for `context` that has not said anything yet, to servers of that name.
    pub(super) fn new(name: String, context: ContextInfo) -> Self {
        Self { name, context, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives the lock away until something may have changed, or for that time.
    pub(super) fn wait_for_change<'a>(
        &self,
        state: MutexGuard<'a, State>,
        time: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        unpoisoned(waited).0
    }

    /// Wakes whoever waits for a change.
    pub(super) fn notify_all(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// A number that no question has whose answer may come or is kept: numbers begin again after
    /// the last.
    pub(super) fn next_number(&mut self) -> u32 {
        loop {
            self.number = self.number.wrapping_add(1);
            let number = self.number;
            let is_asked = self.asked.has(number) || self.registrations.has(number);
            if !is_asked && !self.subscriptions.has(number) {
                return number;
            }
        }
    }

    /// Hears what the server has said, without waiting. Returns how many bytes that was.
    pub(super) fn hear_all(&mut self) -> usize {
        // Nothing is said while it is heard.
        let mut connection = mem::take(&mut self.connection);
        let read = connection.hear_all(|answer| self.hear(answer));
        self.connection = connection;
        if !self.connection.stands() {
            self.subscriptions.doubt_all();
        }
        read
    }

    pub(super) fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Welcome { node, owner, key, claim } => {
                self.standing.welcomed(Welcome { node, owner, key, claim });
            }
            Answer::Refused { number: None, why } => self.standing.refused(why),
            Answer::Refused { number: Some(number), why } => self.answered(number, Err(why)),
            Answer::Done { number } => self.answered(number, Ok(None)),
            Answer::Resolved { number, found } => self.answered(number, Ok(found)),
            Answer::FoundPart { number, records } => {
                if let Some(subscription) = self.subscriptions.of_mut(number) {
                    subscription.found_part(records);
                }
            }
            Answer::Found { number, records } => {
                if let Some(subscription) = self.subscriptions.of_mut(number) {
                    subscription.found(records, Instant::now());
                }
            }
            Answer::Appeared { number, record } => {
                if let Some(subscription) = self.subscriptions.of_mut(number) {
                    subscription.appeared(record);
                }
            }
            Answer::Gone { number, id } => {
                if let Some(subscription) = self.subscriptions.of_mut(number) {
                    subscription.gone(id);
                }
            }
        }
    }

    fn answered(&mut self, number: u32, outcome: Outcome) {
        if self.registrations.answered(number, outcome.is_ok()) {
            return;
        }
        if outcome.is_err() && self.subscriptions.is_watched(number) {
            // An earlier server took it. Its watchers see that it is gone, and whoever waits for an answer asks anew.
            self.subscriptions.forget(number);
            return;
        }
        let asked = self.asked.close(number);
        let is_awaited = asked.is_some() || self.subscriptions.has(number);
        // Here, and not where it is waited for: the next server may be told before that thread is
        // awake.
        if let (Some(Request::Register { place, attributes, .. }), Ok(_)) = (asked, &outcome) {
            self.registrations.insert(place, attributes);
        }
        // What nobody waits for has been dropped, or given up.
        if is_awaited {
            self.asked.keep_answer(number, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::PLACE;
    use super::*;
    use crate::attrs;
    use crate::id::ContextId;

    /// A watcher that hears nothing more has to know.
    #[test]
    fn a_later_server_that_refuses_what_is_watched_is_told_of_at_once() {
        let mut state = State::default();
        let [watched, other] =
            ["a", "b"].map(|value| state.subscription(&attrs! { "name" => value }));
        state.subscriptions.watch(watched).unwrap();
        for number in [watched, other] {
            state.answered(number, Err("there are too many".into()));
        }
        assert!(state.subscriptions.of(watched).is_none());
        assert_eq!(state.asked.take_answer(watched), None);
        // Who waits for the answer takes it, and forgets the question.
        assert!(state.subscriptions.of(other).is_some());
        assert_eq!(state.asked.take_answer(other), Some(Err("there are too many".into())));
    }

    /// After some four thousand million questions: an answer would be taken for that of another.
    #[test]
    fn a_number_that_is_in_use_is_not_given_out_again() {
        let mut state = State { number: u32::MAX, ..State::default() };
        assert_eq!(state.subscription(&attrs! { "a" => "b" }), 0);
        let request = Request::Resolve { number: 1, context: ContextId::new(1) };
        state.asked.insert(1, request);
        // Number 2 is that of one that is registered again.
        state.registrations.insert(PLACE, attrs! {});
        state.registrations.reject_all();
        state.say_rejected();
        state.asked.keep_answer(3, Ok(None));
        state.number = u32::MAX;
        assert_eq!(state.next_number(), 4);
    }
}
