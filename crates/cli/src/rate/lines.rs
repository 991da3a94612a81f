//! Progress as a program's own lines tell it: each that begins with a word is one unit of work done.

use super::inbox::Inbox;
use keeptime_model::application::Application;
use keeptime_model::units::Nanos;
use std::time::Instant;

/// Counts such lines, and tells the sum.
#[derive(Debug)]
pub struct Lines {
    inbox: Inbox,
    word: Option<String>,
    work: u64,
    /// When that was told last.
    told: Option<Nanos>,
    clock: Instant,
}

impl Lines {
    /// Those of a run of this application, which tell nothing if it tells its progress otherwise; instants are of `clock`.
    pub fn new(inbox: Inbox, application: &Application, clock: Instant) -> Self {
        let word = application.progress().map(str::to_owned);
        Self { inbox, word, work: 0, told: None, clock }
    }

    /// Takes a line of the run's output.
    pub fn line(&mut self, line: &str) {
        let first = line.split_whitespace().next();
        if first.is_none() || first != self.word.as_deref() {
            return;
        }
        self.work += 1;
        let (work, at) = (self.work, Nanos::from(self.clock.elapsed()));
        // The next one tells the sum: nothing is lost if this one comes too soon.
        if self.told.is_none_or(|told| at.saturating_sub(told) >= TOLD_EVERY) {
            self.told = Some(at);
            self.inbox.progress(work, at);
        }
    }
}

/// Lines are told no more often than this: reports span a second.
const TOLD_EVERY: Nanos = Nanos::from_millis(100);
