//! Contexts that are being called, each by one thread at a time: one that does not answer holds up nobody but who wants
//! to send there, and these no longer than they want to wait.

use super::Patience;
use crate::error::SendError;
use crate::id::ContextId;
use crate::progress::lock;
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Which these are.
#[derive(Debug, Default)]
pub struct Calls {
    peers: Mutex<BTreeSet<ContextId>>,
    ended: Condvar,
}

/// As long as it is there, no other thread calls that context.
#[derive(Debug)]
pub struct Call<'a> {
    calls: &'a Calls,
    peer: ContextId,
}

impl Calls {
    /// Waits until no other thread calls `peer`: the caller's turn.
    ///
    /// # Errors
    /// If that is not within `patience`.
    pub fn begin(&self, peer: ContextId, patience: Patience) -> Result<Call<'_>, SendError> {
        let mut peers = lock(&self.peers);
        while !peers.insert(peer) {
            peers = match patience {
                Patience::None => return Err(SendError::WouldBlock),
                Patience::Until(None) => {
                    self.ended.wait(peers).unwrap_or_else(PoisonError::into_inner)
                }
                Patience::Until(Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(SendError::TimedOut);
                    }
                    let waited = self.ended.wait_timeout(peers, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(Call { calls: self, peer })
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        lock(&self.calls.peers).remove(&self.peer);
        self.calls.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    /// Nothing is left of calls that have ended, and each who waits has a turn.
    #[test]
    fn one_thread_calls_each_context() {
        let (calls, [peer, other]) = (Calls::default(), [1, 2].map(ContextId::new));
        let call = calls.begin(peer, Patience::Until(None)).unwrap();
        assert!(calls.begin(other, Patience::None).is_ok());
        assert_eq!(calls.begin(peer, Patience::None).err(), Some(SendError::WouldBlock));
        let soon = Patience::Until(Some(Instant::now() + Duration::from_millis(20)));
        assert_eq!(calls.begin(peer, soon).err(), Some(SendError::TimedOut));
        thread::scope(|scope| {
            let late = Patience::Until(Some(Instant::now() + Duration::from_secs(60)));
            for patience in [late, Patience::Until(None)] {
                let calls = &calls;
                scope.spawn(move || drop(calls.begin(peer, patience).unwrap()));
            }
            drop(call);
        });
        assert!(lock(&calls.peers).is_empty());
    }
}
