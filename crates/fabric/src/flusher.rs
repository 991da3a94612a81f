//! Messages of a stream are gathered, and the kernel may not take all at once; somebody has to
//! carry what is left. Whoever waits for anything does. For a program that sends and then turns to
//! something else there is this thread: it sleeps until something is gathered, and looks every now
//! and then as long as that goes on, or until all is carried when the program ends.

use crate::core::Core;
use crate::ring::Word;
use keeptime_locks::lock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long gathered messages wait for more, at most and about: a hundred times what carrying them
/// costs, so that looking is cheap.
const EVERY: Duration = Duration::from_micros(200);

/// What that thread waits on.
#[derive(Debug, Default)]
pub struct Flusher {
    doze: Doze,
    stopped: Mutex<bool>,
    changed: Condvar,
    /// The program ends.
    hurried: AtomicBool,
    carried_all: AtomicBool,
}

/// Whether the thread is awake (the decisions; checked with loom).
#[derive(Debug, Default)]
struct Doze<W = AtomicU32> {
    awake: W,
}

impl<W: Word> Doze<W> {
    fn is_awake(&self) -> bool {
        self.awake.load(Relaxed) == 1
    }

    /// Something is gathered, as was said with a lock. Returns whether the thread is to be woken.
    fn notice(&self) -> bool {
        !self.is_awake() && self.awake.swap(1, Relaxed) == 0
    }

    /// The thread carries what is gathered, and stays awake if that was something. `has_gathered` tells with the locks with
    /// which it is said: whoever has one of them later sees that the thread sleeps. What is gathered meanwhile can be hidden
    /// from the look before, which has none, while who gathers it still takes the thread for awake.
    fn carry(&self, flush: impl FnOnce() -> bool, has_gathered: impl FnOnce() -> bool) {
        self.awake.store(0, Relaxed);
        if flush() || has_gathered() {
            self.awake.store(1, Relaxed);
        }
    }
}

impl Flusher {
    /// Something is gathered.
    pub fn notice(&self) {
        if self.doze.notice() {
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
        let is_wanted = || self.doze.is_awake() || self.hurried.load(SeqCst);
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
            self.doze.carry(|| core.flush(), || core.has_gathered());
            if self.hurried.load(SeqCst) && core.has_carried_all() {
                self.carried_all.store(true, SeqCst);
                self.hurried.store(false, SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving of threads that gather and the one that carries, as far as loom bounds it. What is not carried
    //! is a deadlock, which loom finds.

    use super::*;
    use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::sync::{Arc, Mutex, Notify};
    use loom::thread;

    /// A link of which only that is left which is gathered.
    struct Link {
        doze: Doze<AtomicU32>,
        bell: Notify,
        gathered: Mutex<u32>,
        backlog: AtomicBool,
    }

    impl Link {
        fn gather(&self) {
            {
                let mut gathered = self.gathered.lock().unwrap();
                *gathered += 1;
                self.backlog.store(true, Relaxed);
            }
            if self.doze.notice() {
                self.bell.notify();
            }
        }

        /// Carries what is gathered, and adds it to what was carried before.
        fn flush(&self, carried: &mut u32) -> bool {
            let any = self.backlog.load(Relaxed);
            if any {
                let mut gathered = self.gathered.lock().unwrap();
                *carried += std::mem::take(&mut *gathered);
                self.backlog.store(false, Relaxed);
            }
            any
        }

        fn has_gathered(&self) -> bool {
            let _gathered = self.gathered.lock().unwrap();
            self.backlog.load(Relaxed)
        }
    }

    /// As [`Flusher::run`] has it, until all is carried.
    #[test]
    fn what_is_gathered_while_the_thread_falls_asleep_is_carried() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let link = Arc::new(Link {
                doze: Doze { awake: AtomicU32::new(0) },
                bell: Notify::new(),
                gathered: Mutex::new(0),
                backlog: AtomicBool::new(false),
            });
            let other = link.clone();
            let gathering = thread::spawn(move || (0..2).for_each(|_| other.gather()));
            let mut carried = 0;
            while carried < 2 {
                while !link.doze.is_awake() {
                    link.bell.wait();
                }
                link.doze.carry(|| link.flush(&mut carried), || link.has_gathered());
            }
            gathering.join().unwrap();
        });
    }
}
