//! Messages of a stream are gathered, and the kernel may not take all at once; somebody has to
//! carry what is left. Whoever waits for anything does. For a program that sends and then turns to
//! something else there is this thread: it sleeps until something is gathered, and looks every now
//! and then as long as that goes on.

use crate::core::Core;
use crate::progress::lock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long gathered messages wait for more, at most and about: a hundred times what carrying them
/// costs, so that looking is cheap.
const EVERY: Duration = Duration::from_micros(200);

/// What that thread waits on.
#[derive(Debug, Default)]
pub struct Flusher {
    awake: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Flusher {
    /// Something is gathered.
    pub fn notice(&self) {
        if !self.awake.load(SeqCst) && !self.awake.swap(true, SeqCst) {
            // With the lock, so that this cannot fall between the thread's look and its sleep.
            let _stopped = lock(&self.stopped);
            self.changed.notify_one();
        }
    }

    /// The thread is to end.
    pub fn stop(&self) {
        *lock(&self.stopped) = true;
        self.changed.notify_one();
    }

    /// What the thread does.
    pub fn run(&self, core: &Core) {
        loop {
            let mut stopped = lock(&self.stopped);
            while !*stopped && !self.awake.load(SeqCst) {
                stopped = self.changed.wait(stopped).unwrap_or_else(PoisonError::into_inner);
            }
            if *stopped {
                return;
            }
            drop(stopped);
            thread::sleep(EVERY);
            // First this, then the look: what is gathered after the look is noticed.
            self.awake.store(false, SeqCst);
            if core.flush() {
                self.awake.store(true, SeqCst);
            }
        }
    }
}
