//! What a run that is steered is told: that it has ended, what somebody asks, how far it is. The first comes before all that
//! waits, and of the last the newest alone is kept: it says the sum. So nothing piles up while an agent is waited for.

use super::door::{Answer, Asked};
use keeptime_locks::{lock, unpoisoned};
use keeptime_model::units::Nanos;
use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Where it is told. It is the same for all who have it.
#[derive(Debug, Clone, Default)]
pub struct Inbox(Arc<Shared>);

/// Where it is heard, by one. Once this is gone, whoever asks is told that the run has ended.
#[derive(Debug)]
pub struct Inputs(Inbox);

/// What is to be done next.
#[derive(Debug)]
pub enum Input {
    /// The run has ended.
    Ended,
    /// Somebody asks.
    Asked {
        /// What.
        asked: Asked,
        /// Where the answer goes.
        answer: SyncSender<Answer>,
    },
    /// So much was done in all when it was then.
    Progress {
        /// Units of work.
        work: u64,
        /// By the clock of the run.
        at: Nanos,
    },
}

#[derive(Debug, Default)]
struct Shared {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Told {
    has_ended: bool,
    /// One, hardly ever more: the door asks one after the other.
    asked: VecDeque<(Asked, SyncSender<Answer>)>,
    progress: Option<(u64, Nanos)>,
}

/// Both ends.
pub fn inbox() -> (Inbox, Inputs) {
    let inbox = Inbox::default();
    (inbox.clone(), Inputs(inbox))
}

impl Inbox {
    /// So much was done in all when it was `at`. What was told before and nobody has heard does not count any more.
    pub fn progress(&self, work: u64, at: Nanos) {
        self.tell(|told| told.progress = Some((work, at)));
    }

    /// What is answered, as soon as what is being done is done.
    pub fn ask(&self, asked: Asked) -> Answer {
        let (answer, answered) = sync_channel(1);
        self.tell(|told| {
            if !told.has_ended {
                told.asked.push_back((asked, answer));
            }
        });
        let ended = |_| Answer::Refused { reason: "the run has ended".into() };
        answered.recv().unwrap_or_else(ended)
    }

    /// The run has ended: whoever waits for an answer is told so.
    pub fn end(&self) {
        self.tell(|told| *told = Told { has_ended: true, ..Told::default() });
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.0.told));
        self.0.changed.notify_all();
    }
}

impl Inputs {
    /// What is next; nothing if nothing is told for so long.
    pub fn next(&self, within: Duration) -> Option<Input> {
        let Self(inbox) = self;
        let changed = &inbox.0.changed;
        let waited =
            changed.wait_timeout_while(lock(&inbox.0.told), within, |told| told.is_empty());
        unpoisoned(waited).0.next()
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Told {
    fn is_empty(&self) -> bool {
        !self.has_ended && self.asked.is_empty() && self.progress.is_none()
    }

    fn next(&mut self) -> Option<Input> {
        if self.has_ended {
            return Some(Input::Ended);
        }
        if let Some((asked, answer)) = self.asked.pop_front() {
            return Some(Input::Asked { asked, answer });
        }
        self.progress.take().map(|(work, at)| Input::Progress { work, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const AT_ONCE: Duration = Duration::ZERO;
    const FOR_LONG: Duration = Duration::from_secs(60);

    fn refused(reason: &str) -> Answer {
        Answer::Refused { reason: reason.into() }
    }

    // Goal: what was told while nobody listened is heard once, as a sum, and keeps nobody waiting. Method: a hundred lines,
    // then a question, then the end.
    #[test]
    fn the_end_comes_first_then_what_is_asked_then_the_newest_of_what_is_told() {
        let (inbox, inputs) = inbox();
        assert!(inputs.next(AT_ONCE).is_none());
        (1..=100).for_each(|work| inbox.progress(work, Nanos::from_millis(work)));
        thread::scope(|scope| {
            let asks = scope.spawn(|| inbox.ask(Asked::State));
            // It may have come before the question.
            let answer = loop {
                match inputs.next(FOR_LONG) {
                    Some(Input::Asked { answer, .. }) => break answer,
                    Some(Input::Progress { work, at }) => inbox.progress(work, at),
                    other => panic!("{other:?}"),
                }
            };
            answer.send(refused("heard")).unwrap();
            assert_eq!(asks.join().unwrap(), refused("heard"));
        });
        let Some(Input::Progress { work: 100, at }) = inputs.next(AT_ONCE) else { panic!() };
        assert_eq!(at, Nanos::from_millis(100));
        assert!(inputs.next(AT_ONCE).is_none(), "the others are not heard");

        let (answer, answered) = sync_channel(1);
        inbox.tell(|told| told.asked.push_back((Asked::State, answer)));
        inbox.progress(101, at);
        inbox.end();
        inbox.progress(102, at);
        assert!(matches!(inputs.next(FOR_LONG), Some(Input::Ended)));
        assert!(answered.recv().is_err(), "nobody will answer");
    }

    #[test]
    fn who_asks_when_nobody_listens_any_more_is_told_so() {
        let (inbox, inputs) = inbox();
        drop(inputs);
        assert_eq!(inbox.ask(Asked::State), refused("the run has ended"));
    }
}
