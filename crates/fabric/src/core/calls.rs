//! Contexts that are being called, each by one thread at a time: one that does not answer holds up nobody but who wants
//! to send there, and these no longer than they want to wait. What comes of a call is told to all who wait for it.

use super::Patience;
use crate::error::SendError;
use crate::id::ContextId;
use crate::link::Link;
use keeptime_locks::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Which these are.
#[derive(Debug, Default)]
pub struct Calls {
    all: Mutex<BTreeMap<ContextId, Arc<Call>>>,
    ended: Condvar,
}

/// What has come of one of them, for who waits: nothing as long as it is made.
pub type Call = OnceLock<Called>;

/// The link on which to send, or why there is none.
pub type Called = Result<Arc<Link>, SendError>;

/// Ends the call of that context, whatever its thread comes to.
struct End<'a> {
    calls: &'a Calls,
    peer: ContextId,
    called: Called,
}

impl Calls {
    /// The call of `peer`, and whether it is a new one: then whoever asks is to have it made.
    pub fn join(&self, peer: ContextId) -> (Arc<Call>, bool) {
        let mut all = lock(&self.all);
        let is_new = !all.contains_key(&peer);
        (all.entry(peer).or_default().clone(), is_new)
    }

    /// Makes the call of `peer`, by `connect`, and tells all who wait for it what has come of it.
    pub fn make(&self, peer: ContextId, connect: impl FnOnce() -> Called) -> Called {
        // What is told if this thread panics.
        let called = Err(SendError::TimedOut);
        let mut end = End { calls: self, peer, called };
        end.called = connect();
        end.called.clone()
    }

    /// What comes of `call`, if it ends while there is patience.
    pub fn wait(&self, call: &Call, patience: Patience) -> Called {
        let all = lock(&self.all);
        let is_made = |_: &mut BTreeMap<ContextId, Arc<Call>>| call.get().is_none();
        let late = match patience {
            Patience::None => SendError::WouldBlock,
            Patience::Until(None) => {
                drop(self.ended.wait_while(all, is_made).unwrap_or_else(PoisonError::into_inner));
                SendError::TimedOut
            }
            Patience::Until(Some(deadline)) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = self.ended.wait_timeout_while(all, left, is_made);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                SendError::TimedOut
            }
        };
        call.get().cloned().unwrap_or(Err(late))
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.calls.all);
        if let Some(call) = all.remove(&self.peer) {
            // Nobody else ends it.
            let _ = call.set(self.called.clone());
        }
        drop(all);
        self.calls.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rails;
    use std::thread;
    use std::time::Duration;

    /// Nothing is left of calls that have ended, and each who waits knows what has come of his.
    #[test]
    fn one_call_is_made_for_all_who_want_it() {
        let (calls, [peer, other]) = (Calls::default(), [1, 2].map(ContextId::new));
        let (call, is_new) = calls.join(peer);
        assert!(is_new && calls.join(other).1 && !calls.join(peer).1);
        let wait = |patience| calls.wait(&call, patience).map(|link| link.id);
        assert_eq!(wait(Patience::None), Err(SendError::WouldBlock));
        let within = |time| Patience::Until(Some(Instant::now() + time));
        assert_eq!(wait(within(Duration::from_millis(20))), Err(SendError::TimedOut));
        thread::scope(|scope| {
            let patient = [within(Duration::from_secs(60)), Patience::Until(None)];
            let waiting = patient.map(|patience| scope.spawn(move || wait(patience)));
            let (ends, _rails) = rails::ends().unwrap();
            let link = Arc::new(Link::new(7, peer, ends));
            assert!(calls.make(peer, || Ok(link)).is_ok());
            for waits in waiting {
                assert_eq!(waits.join().unwrap(), Ok(7));
            }
        });
        assert_eq!(wait(Patience::None), Ok(7), "it has ended");
        assert!(calls.join(peer).1, "another one");
        let gone = SendError::NoContext(peer);
        assert_eq!(calls.make(peer, || Err(gone.clone())).err(), Some(gone));
        assert!(calls.make(other, || Err(SendError::NoContext(other))).is_err());
        assert!(lock(&calls.all).is_empty());
    }

    /// They would wait for ever.
    #[test]
    fn whoever_waits_for_a_thread_that_panics_is_told() {
        let (calls, peer) = (Calls::default(), ContextId::new(1));
        let (call, _) = calls.join(peer);
        let made = thread::scope(|scope| {
            scope.spawn(|| calls.make(peer, || panic!("planned")).is_ok()).join()
        });
        assert!(made.is_err());
        assert_eq!(calls.wait(&call, Patience::Until(None)).err(), Some(SendError::TimedOut));
        assert!(lock(&calls.all).is_empty());
    }
}
