//! Who looks for messages: the threads that wait for something. While they spin, all of them look.
//! When they sleep, one of them, the leader, sleeps in the kernel on everything that is watched;
//! the others follow, each on its own, and are woken for what is theirs. A leader that leaves wakes
//! a follower to lead.
//!
//! | module | owns |
//! |---|---|
//! | `sleepers` | who leads, and who wakes whom (pure; checked with loom) |
//! | `kernel` | what they sleep on |

mod kernel;
mod sleepers;

use crate::looking::Looking;
use kernel::Kernel;
pub use kernel::Parker;
use sleepers::{Room, Sleepers};
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

/// How a thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// It keeps looking: least delay, one core for each thread that waits. Where more threads of a process do so than it
    /// has cores, they let one another run between two looks.
    Spin,
    /// It sleeps at once.
    Block,
    /// It looks for so long, then sleeps. Where looking was in vain a few times, as when whoever is to answer needs the same
    /// core, it sleeps at once, and looks now and then until that helps again.
    SpinFor(Duration),
}

/// What a waiting thread does meanwhile.
pub trait Work {
    /// What is looked at, as it was when last looked up.
    type View;
    /// What is there to look at now.
    fn view(&self) -> Self::View;
    /// Handles what has arrived in memory, and from the kernel if `ask_kernel` and these are few, or where it is known
    /// that more is there. Returns how much it was.
    fn poll(&self, view: &mut Self::View, ask_kernel: bool) -> usize;
    /// Whether everything is looked at without a system call.
    fn is_in_memory(&self, view: &Self::View) -> bool;
    /// Whether asking the kernel about each is dearer than asking it about all.
    fn are_many(&self, view: &Self::View) -> bool;
    /// Everything that is watched becomes ready from now on if something arrives. Returns false if
    /// something has.
    fn falls_asleep(&self) -> bool;
    /// Undoes that.
    fn wakes_up(&self);
    /// What is watched as `token` became ready.
    fn signalled(&self, token: u64);
}

/// What is watched, and who waits.
#[derive(Debug)]
pub struct Progress {
    sleepers: Sleepers<Kernel>,
    wait: Wait,
    looking: Looking,
    /// How many threads can keep looking at the same time.
    cores: usize,
    start: Instant,
    /// When a thread that does not wait has last looked at what is watched, in nanoseconds since then.
    looked: AtomicU64,
}

/// How many threads of this process keep looking now, and have done so for [`ROUNDS_UNCOUNTED`].
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// While spinning: rounds between looks at what is only watched, such as new connections, and at
/// the clock.
const ROUNDS: u32 = 256;
/// While spinning on memory alone: rounds between looks whether another thread has handled what this
/// one waits for. Such a look costs as much as a round.
const ROUNDS_ALONE: u32 = 8;
/// While spinning: rounds after which a thread counts as one that does. Most waits of two that answer each other are shorter,
/// and counting takes as long as some rounds. Where all cores have one that counts, all do so at once, and let one another run as
/// often: there may be one that has no core and does not count yet.
const ROUNDS_UNCOUNTED: u32 = 64;
/// Longer than any program runs, and still a time that clocks can be asked for.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long a look at what is only watched stands for others of threads that do not wait, where all else is in memory:
/// it takes a system call, and nothing else of theirs does.
const LOOK_EVERY: Duration = Duration::from_micros(20);

impl Progress {
    /// Nothing is watched.
    ///
    /// # Errors
    /// If the kernel gives no descriptors.
    pub fn new(wait: Wait) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Self {
            sleepers: Sleepers(Kernel::new()?),
            wait,
            looking: Looking::default(),
            cores,
            start: Instant::now(),
            looked: AtomicU64::new(0),
        })
    }

    /// Watches `fd` as `token` until [`Progress::forget`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch_reading(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.sleepers.0.watch_reading(fd, token)
    }

    /// The same for room to write, told once each time that there was none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch_writing(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.sleepers.0.watch_writing(fd, token)
    }

    /// Watches `fd` no longer.
    pub fn forget(&self, fd: impl AsFd) {
        self.sleepers.0.forget(fd);
    }

    /// Works until `ready` gives something or `deadline` has passed. Before it sleeps it calls
    /// `enlist` with what is to be woken when `ready` may give something, and then `ready` once more.
    /// What that finds missing has to be told as well: it may have done a part of its work, and other
    /// threads may have come between, so that what `enlist` has seen is no more.
    pub fn wait<W: Work, T>(
        &self,
        work: &W,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
        enlist: impl FnMut(&Arc<Parker>),
    ) -> Option<T> {
        if let Some(done) = ready() {
            return Some(done);
        }
        let mut view = work.view();
        if let Some(done) = self.look_first(work, &mut view, deadline, &mut ready) {
            return done;
        }
        self.wait_asleep(work, &mut view, deadline, ready, enlist)
    }

    #[cold]
    fn wait_asleep<W: Work, T>(
        &self,
        work: &W,
        view: &mut W::View,
        deadline: Option<Instant>,
        ready: impl FnMut() -> Option<T>,
        enlist: impl FnMut(&Arc<Parker>),
    ) -> Option<T> {
        self.sleepers.wait(work, view, &Parker::current(), deadline, ready, enlist)
    }

    /// Handles what is there, without waiting.
    pub fn look<W: Work>(&self, work: &W) {
        let mut view = work.view();
        work.poll(&mut view, true);
        if !work.is_in_memory(&view) || self.is_due() {
            self.sleepers.look(work);
        }
    }

    /// Whether the last look at what is watched does not stand any more.
    fn is_due(&self) -> bool {
        let now = self.start.elapsed().as_nanos() as u64;
        let is_due = now.saturating_sub(self.looked.load(Relaxed)) >= LOOK_EVERY.as_nanos() as u64;
        if is_due {
            self.looked.store(now, Relaxed);
        }
        is_due
    }

    /// Wakes whoever `parker` is, if it sleeps.
    pub fn wake(&self, parker: &Parker) {
        self.sleepers.wake(parker);
    }

    /// Wakes the leader, if there is one: what it sleeps on has changed.
    pub fn ring(&self) {
        self.sleepers.0.ring();
    }

    /// Looks for as long as threads wait without sleeping. Returns nothing when it is time to sleep.
    fn look_first<W: Work, T>(
        &self,
        work: &W,
        view: &mut W::View,
        deadline: Option<Instant>,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<Option<T>> {
        let most = match self.wait {
            Wait::Spin => FOREVER,
            // Where there is one core alone, nothing comes meanwhile.
            Wait::SpinFor(time) if self.cores > 1 && self.looking.looks() => time,
            Wait::Block | Wait::SpinFor(_) => {
                return self.spin(work, view, deadline, ready, None);
            }
        };
        let done = self.spin(work, view, deadline, ready, Some(most));
        match done {
            Some(Some(_)) => self.looking.found(),
            None => self.looking.in_vain(),
            Some(None) => {}
        }
        done
    }

    /// Looks and looks, for `most`, or once at what takes no system call. Returns nothing when it is time to sleep.
    fn spin<W: Work, T>(
        &self,
        work: &W,
        view: &mut W::View,
        deadline: Option<Instant>,
        ready: &mut impl FnMut() -> Option<T>,
        most: Option<Duration>,
    ) -> Option<Option<T>> {
        let ask_kernel = most.is_some();
        // Most waits are over before it is time to look at the clock.
        let mut counted = None;
        let mut round = 0_u32;
        loop {
            while work.poll(view, ask_kernel) > 0 {
                if let Some(done) = ready() {
                    return Some(Some(done));
                }
            }
            round = round.wrapping_add(1);
            // Another thread may have handled what this one waits for.
            if (round.is_multiple_of(ROUNDS_ALONE) || !ask_kernel || !work.is_in_memory(view))
                && let Some(done) = ready()
            {
                return Some(Some(done));
            }
            let most = most?;
            if counted.is_none()
                && (round >= ROUNDS_UNCOUNTED || SPINNING.load(Relaxed) >= self.cores)
            {
                counted = Some((Spinning::begin(), after(most)));
            }
            if round.is_multiple_of(ROUNDS) || work.are_many(view) {
                self.sleepers.look(work);
            }
            if round.is_multiple_of(ROUNDS) {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Some(None);
                }
                if counted.as_ref().is_some_and(|(_, until)| now >= *until) {
                    return None;
                }
            }
            let spinning = SPINNING.load(Relaxed);
            let may_be_one_more = spinning == self.cores && round.is_multiple_of(ROUNDS_UNCOUNTED);
            if spinning > self.cores || may_be_one_more {
                // What this one waits for may be for another to send, which has no core.
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A thread that keeps looking, as long as this is kept.
struct Spinning;

impl Spinning {
    fn begin() -> Self {
        SPINNING.fetch_add(1, Relaxed);
        Self
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Relaxed);
    }
}

/// The moment so long from now, however long that is.
pub fn after(time: Duration) -> Instant {
    Instant::now() + time.min(FOREVER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::cell::Cell;

    /// Everything is in memory, and nothing comes there.
    #[derive(Default)]
    struct Quiet {
        signals: Cell<u32>,
        asked: Cell<bool>,
    }

    impl Work for Quiet {
        type View = ();

        fn view(&self) {}

        fn poll(&self, _: &mut (), ask_kernel: bool) -> usize {
            self.asked.set(self.asked.get() || ask_kernel);
            0
        }

        fn is_in_memory(&self, _: &()) -> bool {
            true
        }

        fn are_many(&self, _: &()) -> bool {
            false
        }

        fn falls_asleep(&self) -> bool {
            true
        }

        fn wakes_up(&self) {}

        fn signalled(&self, _: u64) {
            self.signals.set(self.signals.get() + 1);
        }
    }

    /// A thread that looks again and again makes few system calls, and hears of what is watched all the same.
    #[test]
    fn what_is_only_watched_is_looked_at_now_and_then() {
        let progress = Progress::new(Wait::Block).unwrap();
        let ready = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        ready.write(1).unwrap();
        progress.watch_reading(&ready, 1).unwrap();
        let (work, start) = (Quiet::default(), Instant::now());
        while work.signals.get() < 20 {
            progress.look(&work);
        }
        let most = start.elapsed().as_nanos() / LOOK_EVERY.as_nanos() + 1;
        assert!(most >= 20, "{most} looks were due");
    }

    // Goal: who looks in vain again and again sleeps at once, unless it is to look for ever. Method: waits that nothing ends
    // but their time, on several cores or one.
    #[test]
    fn looking_in_vain_ends() {
        let looks = |wait: Wait, cores: usize| {
            let progress = Progress { cores, ..Progress::new(wait).unwrap() };
            let waits = 0..6;
            let looked = waits.filter(|_| {
                let work = Quiet::default();
                let deadline = after(Duration::from_millis(30));
                assert!(progress.wait(&work, Some(deadline), || None::<()>, |_| ()).is_none());
                work.asked.get()
            });
            looked.count()
        };
        let short = Wait::SpinFor(Duration::from_nanos(1));
        assert_eq!(looks(short, 2), 3);
        assert_eq!(looks(short, 1), 0);
        assert_eq!(looks(Wait::Block, 2), 0);
        assert_eq!(looks(Wait::Spin, 1), 6);
    }
}
