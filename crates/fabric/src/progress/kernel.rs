//! What threads sleep on: descriptors that are watched, a bell, and each on its own.

use super::Work;
use super::sleepers::{Room, Sleeper};
use keeptime_locks::{lock, try_lock, unpoisoned};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::RefCell;
use std::io;
use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, Thread};
use std::time::Duration;

/// What is watched, and who sleeps.
#[derive(Debug)]
pub struct Kernel {
    epoll: Epoll,
    bell: EventFd,
    /// Held by the leader.
    lead: Mutex<Heard>,
    followers: Mutex<Vec<Arc<Parker>>>,
    follower_count: AtomicU32,
}

/// What became ready.
#[derive(Debug)]
pub struct Heard {
    events: [EpollEvent; EVENTS],
    /// How many of these count.
    count: usize,
}

/// A thread that may sleep, and how it is woken.
#[derive(Debug)]
pub struct Parker {
    rest: Rest,
    woken: AtomicU32,
    place: AtomicU32,
}

/// What a thread sleeps on that is not woken by what is watched.
#[derive(Debug)]
enum Rest {
    /// Its own handle.
    Thread(Thread),
    /// It ends, and its own data are gone, the handle with them: destructors of C++ and what is called at a process's exit
    /// may still call.
    Late { unparked: Mutex<bool>, bell: Condvar },
}

/// What the bell is watched as. Others may use smaller numbers.
const BELL: u64 = u64::MAX;
/// Things that became ready, for one call.
const EVENTS: usize = 64;

impl Kernel {
    /// Nothing is watched.
    ///
    /// # Errors
    /// If the kernel gives no descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let lead = Mutex::new(Heard { events: [EpollEvent::empty(); EVENTS], count: 0 });
        let (followers, follower_count) = (Mutex::default(), AtomicU32::new(0));
        Ok(Self { epoll, bell, lead, followers, follower_count })
    }

    /// Watches `fd` as `token` until [`Kernel::forget`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch_reading(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// The same for room to write, told once each time that there was none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch_writing(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let flags = EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, token))?)
    }

    /// Watches `fd` no longer.
    pub fn forget(&self, fd: impl AsFd) {
        // It can only fail if it was not watched.
        let _ = self.epoll.delete(fd);
    }
}

impl Room for Kernel {
    type Sleeper = Parker;
    type Lead<'a> = MutexGuard<'a, Heard>;

    fn followers(&self) -> impl DerefMut<Target = Vec<Arc<Parker>>> {
        lock(&self.followers)
    }

    fn follower_count(&self) -> &AtomicU32 {
        &self.follower_count
    }

    fn try_lead(&self) -> Option<MutexGuard<'_, Heard>> {
        try_lock(&self.lead)
    }

    fn listen(&self, lead: &mut MutexGuard<'_, Heard>, most: Option<Duration>) {
        lead.count = match self.epoll.wait(&mut lead.events, timeout(most)) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            Err(errno) => unreachable!("epoll_wait of a descriptor that is open: {errno}"),
        };
    }

    fn tell(&self, lead: &MutexGuard<'_, Heard>, work: &impl Work) {
        for event in &lead.events[..lead.count] {
            match event.data() {
                // Who rang it has said so in the parker as well.
                BELL => drop(self.bell.read()),
                token => work.signalled(token),
            }
        }
    }

    fn ring(&self) {
        // Full is as good as rung.
        let _ = self.bell.write(1);
    }

    fn fence(&self) {
        fence(SeqCst);
    }
}

/// Rounded up: a sleep that ends early would be followed by another one.
fn timeout(most: Option<Duration>) -> EpollTimeout {
    let most = most.map(|most| most.saturating_add(Duration::from_micros(999)));
    most.and_then(|most| EpollTimeout::try_from(most).ok()).unwrap_or(EpollTimeout::NONE)
}

impl Parker {
    /// That of the calling thread.
    pub fn current() -> Arc<Self> {
        thread_local! {
            static CURRENT: RefCell<Option<Arc<Parker>>> = const { RefCell::new(None) };
        }
        let kept = |current: &RefCell<Option<Arc<Self>>>| {
            let new = || Self::resting_on(Rest::Thread(thread::current()));
            current.borrow_mut().get_or_insert_with(new).clone()
        };
        CURRENT.try_with(kept).unwrap_or_else(|_| {
            let (unparked, bell) = (Mutex::new(false), Condvar::new());
            Self::resting_on(Rest::Late { unparked, bell })
        })
    }

    fn resting_on(rest: Rest) -> Arc<Self> {
        let (woken, place) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { rest, woken, place })
    }
}

impl Sleeper for Parker {
    type Word = AtomicU32;

    fn woken(&self) -> &AtomicU32 {
        &self.woken
    }

    fn place(&self) -> &AtomicU32 {
        &self.place
    }

    fn park(&self, most: Option<Duration>) {
        match &self.rest {
            Rest::Thread(_) => most.map_or_else(thread::park, thread::park_timeout),
            Rest::Late { unparked, bell } => {
                let (unparked, is_parked) = (lock(unparked), |unparked: &mut bool| !*unparked);
                let mut unparked = match most {
                    None => unpoisoned(bell.wait_while(unparked, is_parked)),
                    Some(most) => unpoisoned(bell.wait_timeout_while(unparked, most, is_parked)).0,
                };
                *unparked = false;
            }
        }
    }

    fn unpark(&self) {
        match &self.rest {
            Rest::Thread(thread) => thread.unpark(),
            Rest::Late { unparked, bell } => {
                *lock(unparked) = true;
                bell.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Longer than the thread takes to be woken.
    const LONG: Duration = Duration::from_secs(60);

    /// Goal: what a thread ends last may sleep still, and is woken. Method: it is begun before the library's own data of the
    /// thread, and so ends after that. A panic there would end the process.
    #[test]
    fn a_thread_that_ends_may_sleep() {
        struct EndsLast(mpsc::Sender<Arc<Parker>>);
        impl Drop for EndsLast {
            fn drop(&mut self) {
                let parker = Parker::current();
                parker.park(Some(Duration::from_millis(1)));
                let _ = self.0.send(parker.clone());
                while parker.woken.load(SeqCst) == 0 {
                    parker.park(Some(LONG));
                }
            }
        }
        thread_local! {
            static HELD: RefCell<Option<EndsLast>> = const { RefCell::new(None) };
        }
        let (tells, told) = mpsc::channel();
        let ends = thread::spawn(move || {
            HELD.set(Some(EndsLast(tells)));
            Parker::current()
        });
        let parker = told.recv_timeout(LONG).unwrap();
        parker.woken.store(1, SeqCst);
        parker.unpark();
        let before = ends.join().unwrap();
        assert!(matches!(before.rest, Rest::Thread(_)));
        assert!(matches!(parker.rest, Rest::Late { .. }));
    }
}
