//! Who has a user number: asked of the system, one look-up per number at a time, at most [`NAMES_MAX`] in all.
//!
//! The system may ask a directory service, which may not answer for long. All connections of one user number wait for the same
//! look-up then, for [`WAITS_MOST`], so that nobody with one keeps others' names from being asked for. Nothing is remembered
//! beyond it.

use crate::door;
use keeptime_linux::syscall::SyscallError;
use keeptime_linux::users;
use keeptime_locks::lock;
use keeptime_model::reservation::UserName;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Users whose names are asked for at a time: the others wait where a directory service does not answer, and lists and
/// histories have the rest of the threads that may block.
const NAMES_MAX: usize = 16;
/// Many times what a directory service takes that answers. The look-up goes on: a thread that waits for the system cannot be
/// ended, and another would wait as well.
const WAITS_MOST: Duration = Duration::from_secs(60);

/// What the system is asked: blocks.
type Ask = dyn Fn(u32) -> Result<UserName, SyscallError> + Send + Sync;
/// What came of a look-up.
type Answer = Result<UserName, NameError>;

/// The names of users. Clones are the same look-ups.
#[derive(Clone)]
pub(crate) struct Names {
    ask: Arc<Ask>,
    /// Look-ups that are not over, by the number that is looked up.
    running: Arc<Mutex<BTreeMap<u32, watch::Receiver<Option<Answer>>>>>,
    turns: Arc<Semaphore>,
    waits_most: Duration,
}

/// Why it is not known now who has a number.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NameError {
    /// The system cannot say.
    #[error(transparent)]
    System(#[from] SyscallError),
    /// It met a bug, took too long, or there was no thread for it.
    #[error("the name of user {0} was asked for, and nothing came of it")]
    NoAnswer(u32),
}

impl Names {
    /// As this machine knows them.
    pub fn new() -> Self {
        Self::asking(users::name_of, NAMES_MAX)
    }

    /// As `ask` finds them, so many at a time.
    pub fn asking(
        ask: impl Fn(u32) -> Result<UserName, SyscallError> + Send + Sync + 'static,
        at_a_time: usize,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(at_a_time));
        Self { ask: Arc::new(ask), running: Arc::default(), turns, waits_most: WAITS_MOST }
    }

    /// The name of the user with this number. Whoever drops this before has taken nothing that others wait for: the look-up
    /// goes on by itself, and is over when the system answers.
    pub async fn of(&self, uid: u32) -> Answer {
        let mut answered = self.look_up(uid);
        let answer = timeout(self.waits_most, answered.wait_for(Option::is_some)).await;
        let answer = answer.ok().and_then(|known| known.ok()?.clone());
        answer.unwrap_or(Err(NameError::NoAnswer(uid)))
    }

    /// What tells the answer of the look-up of this number: of the one that is running, or else of a new one.
    fn look_up(&self, uid: u32) -> watch::Receiver<Option<Answer>> {
        let (answer, answered) = watch::channel(None);
        match lock(&self.running).entry(uid) {
            Entry::Occupied(running) => return running.get().clone(),
            Entry::Vacant(free) => drop(free.insert(answered.clone())),
        }
        // The lock is free by now: a runtime that ends drops this at once.
        tokio::spawn(LookUp { names: self.clone(), uid, answer }.run());
        answered
    }
}

/// One look-up. However it ends, nobody waits for it any longer.
struct LookUp {
    names: Names,
    uid: u32,
    answer: watch::Sender<Option<Answer>>,
}

impl LookUp {
    async fn run(self) {
        let (uid, ask) = (self.uid, Arc::clone(&self.names.ask));
        // Root, who may have to mend what holds up everybody else's name, waits for no turn. They are never closed.
        let turn = if door::is_own(uid) {
            None
        } else {
            Arc::clone(&self.names.turns).acquire_owned().await.ok()
        };
        let asked = spawn_blocking(move || {
            // Given back by the thread, and not before: it is what there are few of.
            let _turn = turn;
            ask(uid)
        });
        let answer = match asked.await {
            Ok(found) => found.map_err(NameError::from),
            Err(_) => Err(NameError::NoAnswer(uid)),
        };
        self.answer.send_replace(Some(answer));
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        lock(&self.names.running).remove(&self.uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};
    /// The directory service does not answer about this one.
    const HELD: u32 = 3_999_999_997;
    const OTHERS: [u32; 2] = [3_999_999_998, 3_999_999_999];
    const SOON: Duration = Duration::from_secs(60);
    /// As long as is waited for what must not happen.
    const A_WHILE: Duration = Duration::from_millis(50);

    fn called(uid: u32) -> UserName {
        format!("u{uid}").parse().unwrap()
    }

    /// A system that says nothing about one user until the sender is dropped, and how often it was asked.
    fn held(at_a_time: usize) -> (Names, Sender<()>, Arc<AtomicUsize>) {
        let (answer, is_held) = channel::<()>();
        let (is_held, asked) = (Mutex::new(is_held), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        let ask = move |uid| {
            count.fetch_add(1, Ordering::SeqCst);
            if uid == HELD {
                let _ = lock(&is_held).recv();
            }
            Ok(called(uid))
        };
        (Names::asking(ask, at_a_time), answer, asked)
    }

    /// `uid` is asked for, by somebody who waits.
    async fn asked_for(names: &Names, uid: u32) {
        assert!(timeout(A_WHILE, names.of(uid)).await.is_err(), "{uid} was answered");
    }

    async fn known(names: &Names, uid: u32) -> Answer {
        timeout(SOON, names.of(uid)).await.unwrap()
    }

    // Goal: who opens many connections while a directory service says nothing keeps nobody else out. Method: more connections
    // of one user than names may be asked for.
    #[tokio::test]
    async fn connections_of_one_user_wait_for_one_look_up() {
        let (names, answer, asked) = held(2);
        let ask = |_| {
            let names = names.clone();
            tokio::spawn(async move { known(&names, HELD).await })
        };
        let waiting: Vec<_> = (0..8).map(ask).collect();
        asked_for(&names, HELD).await;
        assert_eq!(known(&names, OTHERS[0]).await, Ok(called(OTHERS[0])));
        drop(answer);
        for answered in waiting {
            assert_eq!(answered.await.unwrap(), Ok(called(HELD)));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2, "once about each");
        assert_eq!(known(&names, HELD).await, Ok(called(HELD)));
        assert_eq!(asked.load(Ordering::SeqCst), 3, "nothing is remembered");
    }

    // Goal: a directory service that does not answer takes a part of the threads that may block, and no more, and keeps root
    // from nothing.
    #[tokio::test]
    async fn who_comes_waits_while_many_names_are_asked_for() {
        let (names, answer, _) = held(1);
        asked_for(&names, HELD).await;
        asked_for(&names, OTHERS[0]).await;
        assert_eq!(known(&names, 0).await, Ok(called(0)));
        drop(answer);
        assert_eq!(known(&names, OTHERS[0]).await, Ok(called(OTHERS[0])));
    }

    // Method: all who wait go, one whose look-up is begun and one who waits for a turn.
    #[tokio::test]
    async fn who_goes_away_keeps_nothing() {
        let (names, answer, _) = held(1);
        asked_for(&names, HELD).await;
        asked_for(&names, OTHERS[0]).await;
        drop(answer);
        let over = async {
            while !lock(&names.running).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, over).await.unwrap();
        assert_eq!(names.turns.available_permits(), 1);
        assert_eq!(known(&names, OTHERS[1]).await, Ok(called(OTHERS[1])));
    }

    // Goal: nobody waits for ever, not even for a turn, nor has a thread lost for each time that they come. Method: one user whom
    // the system says nothing of, and one behind them.
    #[tokio::test]
    async fn who_has_waited_long_is_told_so_and_asks_for_nothing_more() {
        let (names, answer, asked) = held(1);
        let names = Names { waits_most: A_WHILE, ..names };
        for uid in [HELD, OTHERS[0], HELD] {
            assert_eq!(known(&names, uid).await, Err(NameError::NoAnswer(uid)));
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        drop(answer);
        let names = Names { waits_most: SOON, ..names };
        for uid in [HELD, OTHERS[0]] {
            assert_eq!(known(&names, uid).await, Ok(called(uid)));
        }
    }

    #[tokio::test]
    async fn a_look_up_that_fails_or_panics_is_an_error_and_the_next_one_is_made() {
        let [broken, away] = OTHERS;
        let error = SyscallError::of("getpwuid_r", "user")(Errno::EIO);
        let fails = error.clone();
        let ask = move |uid| {
            assert_ne!(uid, broken, "as a bug would end it");
            Err(fails.clone())
        };
        let names = Names::asking(ask, 1);
        for _ in 0..2 {
            assert_eq!(known(&names, broken).await, Err(NameError::NoAnswer(broken)));
            assert_eq!(known(&names, away).await, Err(NameError::System(error.clone())));
        }
    }
}
