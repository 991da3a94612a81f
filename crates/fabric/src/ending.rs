//! A program may end without having closed its contexts: it returns from `main`, calls `exit`, or has one for as long as it
//! runs. What they have taken and not carried yet would end with it, so that is carried first, for a moment at most. The
//! contexts' own threads do it, which run until all handlers are through: the thread that ends the program may have been
//! interrupted anywhere, and must not wait for a lock.

use crate::flusher::Flusher;
use keeptime_locks::{lock, try_lock};
use std::process;
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program's end is held up at most, by receivers that take nothing or nodes that are gone.
const HELD_UP_MOST: Duration = Duration::from_millis(100);
/// How often it is looked whether all is carried.
const EVERY: Duration = Duration::from_micros(100);

/// What is open in this process and, copied, in those that it forks.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

/// A context that is open.
#[derive(Debug)]
struct Open {
    /// In which process. Others have neither its threads nor a share in what it has to send.
    process: u32,
    flusher: Arc<Flusher>,
}

/// As long as it is there, what a context has to send is carried before the program ends.
#[derive(Debug)]
pub struct CarriedAtExit(Arc<Flusher>);

impl CarriedAtExit {
    /// The context that `flusher` is of.
    pub fn new(flusher: Arc<Flusher>) -> Self {
        static ONCE: Once = Once::new();
        // SAFETY: it is a function that may be called at any time. If there is no room for it, nothing else is lost.
        ONCE.call_once(|| _ = unsafe { libc::atexit(carry_all) });
        lock(&OPEN).push(Open { process: process::id(), flusher: flusher.clone() });
        Self(flusher)
    }
}

impl Drop for CarriedAtExit {
    fn drop(&mut self) {
        lock(&OPEN).retain(|open| !Arc::ptr_eq(&open.flusher, &self.0));
    }
}

/// Has all contexts carry what they have to send.
extern "C" fn carry_all() {
    let end = Instant::now() + HELD_UP_MOST;
    let own = || {
        let open = try_lock(&OPEN)?;
        let own = open.iter().filter(|open| open.process == process::id());
        Some(own.map(|open| open.flusher.clone()).collect::<Vec<_>>())
    };
    let Some(flushers) = seen_by(end, own) else { return };
    // All are told before any is waited for.
    flushers.iter().for_each(|flusher| flusher.hurry());
    seen_by(end, || flushers.iter().all(|flusher| flusher.has_carried_all()).then_some(()));
}

/// What `look` gives, if it does until then.
fn seen_by<T>(end: Instant, look: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        let seen = look();
        if seen.is_some() || Instant::now() >= end {
            return seen;
        }
        thread::sleep(EVERY);
    }
}
