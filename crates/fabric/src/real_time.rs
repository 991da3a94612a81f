//! Threads that go before ordinary ones, so that a busy node holds them up as little as an idle one.

use std::io;
use std::time::{Duration, Instant};

/// What strangers have a thread do goes before ordinary threads for so much of each window: a fifth of a processor, with which a
/// thread answers thousands of questions in a second.
const WINDOW: Duration = Duration::from_millis(100);
const RATION: Duration = Duration::from_millis(20);

/// Who goes first among those: above every ordinary thread, below whatever else a site runs in real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// It renews what is read.
    Renew = 1,
    /// Somebody waits for its answer.
    Answer = 2,
}

/// A thread that goes before ordinary ones for so much of each `WINDOW`, and is one of them for the rest of it, however much there is
/// to do: who may ask for that is not known.
#[derive(Debug)]
pub struct Rationed {
    priority: Priority,
    ration: Ration,
}

/// What it has used of a window (pure).
#[derive(Debug)]
struct Ration {
    /// When the window ends.
    until: Instant,
    /// The processor's time that the thread had used when it began.
    before: Duration,
    is_spent: bool,
}

/// How a thread goes on.
#[derive(Debug, PartialEq, Eq)]
enum Schedule {
    First,
    Ordinary,
}

impl Rationed {
    /// The calling thread, from now on.
    ///
    /// # Errors
    /// As for [`hurry`].
    pub fn new(priority: Priority) -> io::Result<Self> {
        hurry(priority)?;
        Ok(Self { priority, ration: Ration::new(Instant::now(), used()) })
    }

    /// Looks at what the thread has used: to be called often.
    pub fn look(&mut self) {
        match self.ration.look(Instant::now(), used()) {
            // A privilege that is gone meanwhile: the thread goes on as it is.
            Some(Schedule::First) => drop(hurry(self.priority)),
            Some(Schedule::Ordinary) => drop(schedule(libc::SCHED_OTHER, 0)),
            None => {}
        }
    }
}

impl Ration {
    fn new(now: Instant, used: Duration) -> Self {
        Self { until: now + WINDOW, before: used, is_spent: false }
    }

    /// What changes now, if something does.
    fn look(&mut self, now: Instant, used: Duration) -> Option<Schedule> {
        if now >= self.until {
            let was_spent = self.is_spent;
            *self = Self::new(now, used);
            return was_spent.then_some(Schedule::First);
        }
        if self.is_spent || used.saturating_sub(self.before) < RATION {
            return None;
        }
        self.is_spent = true;
        Some(Schedule::Ordinary)
    }
}

/// The calling thread goes before all ordinary ones from now on. What it does should be short: nothing else
/// of its processor is done meanwhile.
///
/// # Errors
/// If the kernel refuses: without the privilege, or in a control group without real time.
pub fn hurry(priority: Priority) -> io::Result<()> {
    schedule(libc::SCHED_FIFO, priority as i32)
}

fn schedule(policy: i32, sched_priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the kernel reads one struct that is here.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processor's time that the calling thread has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one struct that is here; every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_is_an_ordinary_one_for_the_rest_of_a_window_whose_ration_is_spent() {
        let (began, before) = (Instant::now(), Duration::from_secs(7));
        let mut ration = Ration::new(began, before);
        let mut at = |milliseconds, used| {
            let now = began + Duration::from_millis(milliseconds);
            ration.look(now, before + Duration::from_millis(used))
        };
        assert_eq!([at(10, 10), at(19, 19), at(21, 20)], [None, None, Some(Schedule::Ordinary)]);
        assert_eq!([at(22, 21), at(99, 50)], [None, None]);
        assert_eq!([at(100, 50), at(130, 69)], [Some(Schedule::First), None], "a new ration");
        assert_eq!([at(200, 69), at(250, 88)], [None, None], "it was never spent");
        assert_eq!(at(260, 89), Some(Schedule::Ordinary));
    }

    /// The same of a thread, as the kernel sees it.
    #[test]
    fn the_kernel_is_told() {
        // SAFETY: it takes and gives a number.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let mut rationed = match Rationed::new(Priority::Renew) {
            Ok(rationed) => rationed,
            Err(error) => {
                let _ = writeln!(io::stdout(), "skipped: real-time schedule: {error}");
                return;
            }
        };
        for wanted in [libc::SCHED_FIFO, libc::SCHED_OTHER, libc::SCHED_FIFO] {
            let start = Instant::now();
            while policy() != wanted {
                assert!(start.elapsed() < LONG, "{} and never {wanted}", policy());
                rationed.look();
            }
        }
    }
}
