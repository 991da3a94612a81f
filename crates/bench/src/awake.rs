//! A machine whose processors never sleep, as those that compute for a living.
//!
//! A virtual machine gives an idle processor back to its host. A program that may run a millisecond of every
//! twenty, on nodes that have nothing else to do, then pays for a waking in every one: the same frames took a
//! quarter longer, and lay 20 % apart, than on a machine that is awake (7 %).

use anyhow::Result;
use nix::errno::Errno;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A thread for each processor that computes whenever nothing else would (`SCHED_IDLE`), until this is dropped.
#[derive(Debug)]
pub struct Awake {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Steps between two looks whether it is over: well below a millisecond.
const STEPS: u64 = 100_000;

impl Awake {
    /// Starts them.
    ///
    /// # Errors
    /// If the system does not tell how many processors there are, or a thread cannot be made `SCHED_IDLE`: it would
    /// be in everybody's way.
    pub fn begin() -> Result<Self> {
        let mut awake = Self { is_over: Arc::default(), threads: Vec::new() };
        for _ in 0..thread::available_parallelism()?.get() {
            let (is_over, (tell, told)) = (awake.is_over.clone(), std::sync::mpsc::channel());
            awake.threads.push(thread::spawn(move || {
                let idle = become_idle();
                let is_idle = idle.is_ok();
                // Who began waits for it.
                let _ = tell.send(idle);
                while is_idle && !is_over.load(Ordering::Relaxed) {
                    // Not `spin_loop`: a host may take a processor away that pauses.
                    (0..STEPS).for_each(|step| {
                        black_box(step);
                    });
                }
            }));
            told.recv()??;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing that could panic, and nobody to tell.
            let _ = thread.join();
        }
    }
}

/// The calling thread runs when no other wants to.
fn become_idle() -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` lives through the call; 0 is the calling thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    Errno::result(set).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, Instant};

    // Goal: they are in nobody's way. Method: their class, by the kernel.
    #[test]
    fn there_is_one_for_each_processor_and_none_after() -> Result<()> {
        let awake = Awake::begin()?;
        let processors = thread::available_parallelism()?.get();
        assert_eq!(idle_threads()?, processors);
        let begin = Instant::now();
        drop(awake);
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!(idle_threads()?, 0);
        Ok(())
    }

    /// Threads of this process that are `SCHED_IDLE` (proc(5): the 41st field of `stat`).
    fn idle_threads() -> Result<usize> {
        let mut count = 0;
        for task in fs::read_dir("/proc/self/task")? {
            // One of another test may have ended meanwhile.
            let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
            let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            let policy = fields.clone().nth(41 - 3).unwrap_or_default();
            count += usize::from(policy == libc::SCHED_IDLE.to_string());
        }
        Ok(count)
    }
}
