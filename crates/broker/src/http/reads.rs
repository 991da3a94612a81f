//! Whose turn it is to read what only the ledger has. Everything that is to be recorded waits for such a read, so there is one
//! at a time, of one user after the other however many each asks for, and then none for as long as it took.

use keeptime_locks::lock;
use keeptime_model::reservation::UserName;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// After a read nobody waits for longer, however long it took on a poor disk.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// All who read the ledger or wait for that.
#[derive(Debug)]
pub struct Reads {
    all: Arc<Semaphore>,
    /// Of each user one waits among all, and the others for that one.
    users: Mutex<HashMap<UserName, Arc<Semaphore>>>,
    /// When the next one may begin.
    next_at: Mutex<Instant>,
}

/// The turn of one read: over when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    reads: Arc<Reads>,
    began: Instant,
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Default for Reads {
    fn default() -> Self {
        let (all, next_at) = (Arc::new(Semaphore::new(1)), Mutex::new(Instant::now()));
        Self { all, users: Mutex::default(), next_at }
    }
}

impl Reads {
    /// Waits for the next turn of `user`.
    pub(super) async fn turn(self: &Arc<Self>, user: &UserName) -> Turn {
        // Neither is ever closed.
        let own = self.of(user).acquire_owned().await.ok();
        let all = Arc::clone(&self.all).acquire_owned().await.ok();
        let next_at = *lock(&self.next_at);
        sleep_until(next_at).await;
        Turn { reads: Arc::clone(self), began: Instant::now(), _permits: [all, own] }
    }

    /// What those of one user wait for, one after the other.
    fn of(&self, user: &UserName) -> Arc<Semaphore> {
        let mut users = lock(&self.users);
        // Nobody waits for, or has, what is known here alone.
        users.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(users.entry(user.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        *lock(&self.reads.next_at) = now + (now - self.began).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserName {
        name.parse().unwrap()
    }

    // Goal: who asks for much makes others wait for one read, and not for all. Method: three more of one user wait before
    // somebody else comes.
    #[tokio::test]
    async fn users_take_turns_however_many_reads_each_asks_for() {
        let (reads, order) = (Arc::new(Reads::default()), Arc::new(Mutex::new(Vec::new())));
        let first = reads.turn(&user("eve")).await;
        let mut waiting = Vec::new();
        for name in ["eve", "eve", "eve", "ada"] {
            let (reads, order) = (Arc::clone(&reads), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let _turn = reads.turn(&user(name)).await;
                lock(&order).push(name);
            }));
            // It has begun to wait then.
            tokio::task::yield_now().await;
        }
        drop(first);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*lock(&order), ["ada", "eve", "eve", "eve"]);
        drop(reads.of(&user("bob")));
        assert_eq!(lock(&reads.users).len(), 1, "who waits no more is forgotten");
    }

    #[tokio::test]
    async fn nobody_reads_for_as_long_as_the_read_before_took() {
        let (reads, took) = (Arc::new(Reads::default()), Duration::from_millis(50));
        let began = Instant::now();
        let turn = reads.turn(&user("eve")).await;
        tokio::time::sleep(took).await;
        drop(turn);
        drop(reads.turn(&user("ada")).await);
        assert!(began.elapsed() >= 2 * took, "{:?}", began.elapsed());
    }
}
