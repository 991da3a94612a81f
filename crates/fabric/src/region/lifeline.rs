//! Whether the daemon that keeps a region's memory is there still. One that ends takes the names of its regions away; one
//! that is killed cannot, and what is mapped stays. But the kernel closes for it the one end for writing of a pipe, whose
//! other end it hands to readers. A thread waits for that, so that who reads looks at a word and asks nobody.

use crate::threads;
use keeptime_locks::lock;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

/// That of the daemon whose memory the readers of a context have: one thread for all of them, as long as there are any.
#[derive(Debug, Default)]
pub struct Lifelines(Mutex<Weak<Lifeline>>);

/// A daemon's life, as long as somebody wants to know of it.
#[derive(Debug)]
pub struct Lifeline {
    /// What the kernel calls the pipe: its device, and its number there.
    pipe: (u64, u64),
    is_over: Arc<AtomicBool>,
    bell: Arc<EventFd>,
    watcher: Option<JoinHandle<()>>,
}

impl Lifelines {
    /// That of the daemon that has handed `pipe` over: the same as before if it is the same daemon.
    ///
    /// # Errors
    /// If this process has no descriptors or threads left.
    pub fn of(&self, pipe: OwnedFd) -> io::Result<Arc<Lifeline>> {
        let pipe = File::from(pipe);
        let metadata = pipe.metadata()?;
        let name = (metadata.dev(), metadata.ino());
        let mut latest = lock(&self.0);
        if let Some(known) = latest.upgrade().filter(|known| known.pipe == name) {
            return Ok(known);
        }
        let lifeline = Arc::new(Lifeline::watch(pipe, name)?);
        *latest = Arc::downgrade(&lifeline);
        Ok(lifeline)
    }
}

impl Lifeline {
    fn watch(pipe: File, name: (u64, u64)) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let is_over = Arc::new(AtomicBool::new(false));
        let (rung, over) = (bell.clone(), is_over.clone());
        let watch = move || {
            if ends_before(&pipe, &rung) {
                over.store(true, Release);
            }
        };
        let watcher = threads::spawn("region-life", watch)?;
        Ok(Self { pipe: name, is_over, bell, watcher: Some(watcher) })
    }

    /// Whether the daemon has ended. Costs as much as reading a word.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Acquire)
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // Full is as good as rung.
        let _ = self.bell.write(1);
        if let Some(watcher) = self.watcher.take() {
            // It has panicked and said so, or it is done.
            let _ = watcher.join();
        }
    }
}

/// Waits until nobody can write to `pipe` any more, and returns true; or until `bell` rings.
fn ends_before(pipe: &File, bell: &EventFd) -> bool {
    loop {
        // That an end for writing is gone the kernel tells, whatever it is asked.
        let mut watched = [
            PollFd::new(pipe.as_fd(), PollFlags::empty()),
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) => {
                let [life, rung] = watched.map(|fd| fd.any().unwrap_or(true));
                if life || rung {
                    return life;
                }
            }
            Err(Errno::EINTR) => {}
            // What cannot be watched counts as gone: readers find another.
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::thread;
    use std::time::{Duration, Instant};

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_end_of_a_daemon_is_told_to_all_its_readers_and_to_no_others() {
        let lifelines = Lifelines::default();
        let ((life, daemon), (other, _other_daemon)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let again = life.try_clone().unwrap();
        let first = lifelines.of(life.into()).unwrap();
        let second = lifelines.of(again.into()).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && !first.is_over());
        drop(daemon);
        let start = Instant::now();
        while !first.is_over() {
            assert!(start.elapsed() < LONG, "the end is not told");
            thread::yield_now();
        }
        let next = lifelines.of(other.into()).unwrap();
        assert!(!Arc::ptr_eq(&first, &next) && !next.is_over());
    }

    /// The thread ends, and with it the descriptor that it waited on.
    #[test]
    fn nothing_is_left_of_it_when_nobody_reads() {
        let lifelines = Lifelines::default();
        let (life, mut daemon) = io::pipe().unwrap();
        let lifeline = lifelines.of(life.into()).unwrap();
        daemon.write_all(&[0]).unwrap();
        drop(lifeline);
        let is_alone = (0..1000).any(|_| {
            thread::park_timeout(Duration::from_millis(1));
            daemon.write_all(&[0]).is_err()
        });
        assert!(is_alone, "somebody watches still");
    }
}
