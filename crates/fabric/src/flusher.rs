//! Messages of a stream are gathered, and the kernel may not take all at once; somebody has to
//! carry what is left. Whoever waits for anything does. For a program that sends and then turns to
//! something else there is this thread: it sleeps until something is gathered, and looks every now
//! and then as long as that goes on, or until all is carried when the program ends.

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
    /// The program ends.
    hurried: AtomicBool,
    carried_all: AtomicBool,
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

    /// The program ends: all is to be carried now.
    pub fn hurry(&self) {
        self.hurried.store(true, SeqCst);
    }

    /// Whether all is carried that was taken before [`Flusher::hurry`], or as much as ever will be. Until then the thread
    /// is woken by this, again and again: without the lock it may just fall asleep.
    pub fn has_carried_all(&self) -> bool {
        self.changed.notify_one();
        self.carried_all.load(SeqCst)
    }

    /// The thread is to end.
    pub fn stop(&self) {
        *lock(&self.stopped) = true;
        self.changed.notify_one();
    }

    /// What the thread does.
    pub fn run(&self, core: &Core) {
        let is_wanted = || self.awake.load(SeqCst) || self.hurried.load(SeqCst);
        loop {
            let mut stopped = lock(&self.stopped);
            while !*stopped && !is_wanted() {
                stopped = self.changed.wait(stopped).unwrap_or_else(PoisonError::into_inner);
            }
            if *stopped {
                // Whoever closes has waited for what was sent.
                self.carried_all.store(true, SeqCst);
                return;
            }
            drop(stopped);
            thread::sleep(EVERY);
            // First this, then the look: what is gathered after the look is noticed.
            self.awake.store(false, SeqCst);
            if core.flush() {
                self.awake.store(true, SeqCst);
            }
            if self.hurried.load(SeqCst) && core.has_carried_all() {
                self.carried_all.store(true, SeqCst);
                self.hurried.store(false, SeqCst);
            }
        }
    }
}
