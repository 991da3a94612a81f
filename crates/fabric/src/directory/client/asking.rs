//! One question to the server: it is said to each server in turn until one answers, or until it has
//! been waited for long enough.

use super::Client;
use super::state::{Shared, State};
use crate::directory::DEFAULT_NAME;
use crate::directory::protocol::{Introduction, Request};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long an answer may take, other servers' confirmations included.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long one is waited for by whoever has less time than that, or none: longer than a busy node holds up the few threads
/// by which it comes, so that a server that is there is heard.
pub(super) const ANSWER_LEAST: Duration = Duration::from_secs(1);

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// There is no server on this node.
    #[error("no daemon named {name:?} on this node ({why}): start keeptime-fabricd{}", named(name))]
    Unreachable {
        /// Its name.
        name: String,
        /// What the kernel says.
        why: String,
    },
    /// The server does not accept it.
    #[error("the node's daemon refuses: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("the node's daemon did not answer in time")]
    Silent,
}

/// The option by which a daemon is named so.
fn named(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

/// What the server answers to a question: what it has found, if anything, or why it refuses.
pub(super) type Outcome = Result<Option<Introduction>, String>;

/// Questions, by number, until whoever waits for the answer has it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Those without an answer yet: said again to the next server.
    open: BTreeMap<u32, Request>,
    /// Among them those to questions that are kept, if the server refuses one.
    answers: HashMap<u32, Outcome>,
}

impl Client {
    /// Asks what `request` makes of a number, and waits for the answer.
    pub(super) fn ask(
        &self,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<Option<Introduction>, DirectoryError> {
        self.ask_until(answer_by(None), request)
    }

    /// The same, waiting until then.
    pub(super) fn ask_until(
        &self,
        until: Instant,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<Option<Introduction>, DirectoryError> {
        let mut state = self.shared.lock();
        let number = state.next_number();
        let request = request(number);
        state.connection.say(&request);
        state.asked.insert(number, request);
        drop(state);
        let answer = self.shared.wait_until(until, |state| {
            let outcome = state.asked.take_answer(number)?;
            Some(outcome.map_err(DirectoryError::Refused))
        });
        if answer.is_err() {
            self.shared.lock().asked.give_up(number);
        }
        answer
    }
}

impl Shared {
    /// Waits until something is `ready`, no longer than `until`.
    pub(super) fn wait_until<T>(
        &self,
        until: Instant,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, DirectoryError>>,
    ) -> Result<T, DirectoryError> {
        let mut state = self.lock();
        loop {
            if let Some(done) = ready(&mut state) {
                return done;
            }
            let time = until.saturating_duration_since(Instant::now());
            if time.is_zero() || state.is_closed {
                return Err(state.standing.silence());
            }
            state = self.wait_for_change(state, time);
        }
    }
}

/// Until when an answer is waited for that is asked for now, by whoever has time until `deadline`.
pub(super) fn answer_by(deadline: Option<Instant>) -> Instant {
    let now = Instant::now();
    let most = now + ANSWER_TIME;
    deadline.map_or(most, |deadline| deadline.clamp(now + ANSWER_LEAST, most))
}

impl Asked {
    /// One more that was asked.
    pub(super) fn insert(&mut self, number: u32, request: Request) {
        self.open.insert(number, request);
    }

    /// Whether a question has that number whose answer may come or is kept.
    pub(super) fn has(&self, number: u32) -> bool {
        self.open.contains_key(&number) || self.answers.contains_key(&number)
    }

    /// All without an answer yet.
    pub(super) fn open(&self) -> impl Iterator<Item = &Request> {
        self.open.values()
    }

    /// The question of that number, if it had no answer yet: now it has.
    pub(super) fn close(&mut self, number: u32) -> Option<Request> {
        self.open.remove(&number)
    }

    /// Keeps an answer for whoever waits for it.
    pub(super) fn keep_answer(&mut self, number: u32, outcome: Outcome) {
        self.answers.insert(number, outcome);
    }

    /// The answer, if it has come.
    pub(super) fn take_answer(&mut self, number: u32) -> Option<Outcome> {
        self.answers.remove(&number)
    }

    /// Nobody waits for that answer any more, though it may have come a moment ago.
    fn give_up(&mut self, number: u32) {
        self.open.remove(&number);
        self.answers.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::protocol::Answer;
    use crate::id::ContextId;

    #[test]
    fn an_answer_that_comes_as_it_is_given_up_is_not_kept() {
        let mut state = State::default();
        let request = Request::Resolve { number: 1, context: ContextId::new(1) };
        state.asked.insert(1, request);
        state.hear(Answer::Resolved { number: 1, found: None });
        state.asked.give_up(1);
        assert!(!state.asked.has(1));
        state.hear(Answer::Resolved { number: 1, found: None });
        assert!(state.asked.answers.is_empty(), "nobody has asked");
    }
}
