//! What threads see of an inbox that they do not lock, and what they leave there (the decisions; words are behind [`Flag`]
//! and [`Sum`]).
//!
//! Nothing is ordered by these words: that is done by the locks, of the inbox and of the link by which a message comes. Who
//! has held one of them after a message was delivered sees that it is there.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What one link has handed over without the lock is added to what is owed to it at so much: a small part of what is given
/// back at once, and many short messages.
pub const HANDED_MOST: u32 = 8 << 10;

/// A word that says yes or no.
pub trait Flag {
    /// Reads it.
    fn load(&self) -> bool;
    /// Writes it.
    fn store(&self, value: bool);
}

/// A word to which threads add.
pub trait Sum {
    /// Reads it.
    fn load(&self) -> u64;
    /// Writes it and returns what it was.
    fn swap(&self, value: u64) -> u64;
    /// Writes it if it is `before`. Returns whether it was.
    fn replace(&self, before: u64, value: u64) -> bool;
}

/// What is locked.
pub trait Contents {
    /// Whether there is something to take.
    fn is_filled(&self) -> bool;
    /// Whether a message from here should give something back.
    fn owes(&self) -> bool;
    /// A receiver was handed what came by `link`, and was charged with `charge`.
    fn handed(&mut self, link: u32, charge: u32);
}

/// What is seen without the lock.
#[derive(Debug, Default)]
pub struct Glimpse<F = AtomicBool, S = AtomicU64> {
    /// Whether there is something to take, as it was when the lock was last held.
    is_filled: F,
    /// Whether a message from here should give something back, the same.
    owes: F,
    /// What was handed over without the lock since it was last held: the link, and what that was charged.
    handed: S,
}

impl<F: Flag, S: Sum> Glimpse<F, S> {
    /// Whether there may be something to take: one read of a word that stays in this core's cache until something
    /// arrives. What was delivered before the caller last held the lock is not missed.
    #[inline]
    pub fn may_have(&self) -> bool {
        self.is_filled.load()
    }

    /// Whether a message from here should give something back.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owes.load()
    }

    /// A message that was charged with `charge` arrives by `link`, which nobody else reads now, while the receiver looks, and
    /// holds on to its resource: whether that is to take it at once, since nothing came before it, and gives nothing back
    /// now.
    #[inline]
    pub fn hands(&self, link: u32, charge: u32) -> bool {
        let before = self.handed.load();
        let (of, bytes) = ((before >> 32) as u32, before as u32);
        let all = bytes.saturating_add(charge);
        let is_one_more = (before == 0 || of == link) && all <= HANDED_MOST;
        let now = u64::from(link) << 32 | u64::from(all);
        !self.is_filled.load() && is_one_more && self.handed.replace(before, now)
    }

    /// Does `action` to `contents`, whose lock the caller holds and gives back after this.
    #[inline]
    pub fn does<C: Contents, T>(&self, contents: &mut C, action: impl FnOnce(&mut C) -> T) -> T {
        if self.handed.load() > 0 {
            let handed = self.handed.swap(0);
            contents.handed((handed >> 32) as u32, handed as u32);
        }
        let result = action(contents);
        // Written where they change alone: threads that wait read them all the while.
        for (word, now) in [(&self.is_filled, contents.is_filled()), (&self.owes, contents.owes())]
        {
            if word.load() != now {
                word.store(now);
            }
        }
        result
    }
}

impl Flag for AtomicBool {
    #[inline]
    fn load(&self) -> bool {
        self.load(Relaxed)
    }

    #[inline]
    fn store(&self, value: bool) {
        self.store(value, Relaxed);
    }
}

impl Sum for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Relaxed)
    }

    #[inline]
    fn swap(&self, value: u64) -> u64 {
        self.swap(value, Relaxed)
    }

    #[inline]
    fn replace(&self, before: u64, value: u64) -> bool {
        self.compare_exchange(before, value, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving of a receiver that looks at its inbox and of those that deliver there, as far as loom bounds it.

    use super::super::tests::message;
    use super::super::{Arrived, Inbox, Taken};
    use super::*;
    use crate::matching::Match;
    use crate::progress::Parker;
    use loom::sync::atomic::{AtomicBool, AtomicU64};
    use loom::sync::{Mutex, Notify};
    use loom::thread;
    use std::sync::Arc;

    impl Flag for AtomicBool {
        fn load(&self) -> bool {
            self.load(Relaxed)
        }

        fn store(&self, value: bool) {
            self.store(value, Relaxed);
        }
    }

    impl Sum for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Relaxed)
        }

        fn swap(&self, value: u64) -> u64 {
            self.swap(value, Relaxed)
        }

        fn replace(&self, before: u64, value: u64) -> bool {
            self.compare_exchange(before, value, Relaxed, Relaxed).is_ok()
        }
    }

    /// An inbox, a link by which messages come, and how its receiver sleeps.
    struct Model {
        inbox: Mutex<Inbox>,
        glimpse: Glimpse<AtomicBool, AtomicU64>,
        /// The tag of the next message that comes by [`LINK`].
        next: Mutex<u64>,
        token: Notify,
        /// The tags of what was received.
        caught: Mutex<Vec<u64>>,
    }

    /// That by which [`message`] comes.
    const LINK: u32 = 3;
    const CHARGE: u32 = 100;

    impl Model {
        fn with<T>(&self, action: impl FnOnce(&mut Inbox) -> T) -> T {
            self.glimpse.does(&mut *self.inbox.lock().unwrap(), action)
        }

        fn deliver(&self, message: Arrived) {
            let woken = self.with(|inbox| inbox.deliver(message, None)).unwrap();
            woken.iter().for_each(|_| self.token.notify());
        }

        /// Reads the next message from the link and delivers it.
        fn read(&self) {
            let mut next = self.next.lock().unwrap();
            self.deliver(message(*next));
            *next += 1;
        }

        fn take(&self) -> Option<u64> {
            let taken =
                self.glimpse.may_have().then(|| self.with(|inbox| inbox.take(&Match::any()).0));
            match taken.flatten()? {
                Taken::Message(message, _) => Some(message.tag.0),
                Taken::Notice(notice) => panic!("{notice}"),
            }
        }

        /// Takes what is there, or else reads the next message as a thread that waits for it, as `Catcher` does it.
        fn catch(&self) -> Option<u64> {
            if let Some(tag) = self.take() {
                return Some(tag);
            }
            let mut next = self.next.lock().unwrap();
            let tag = *next;
            *next += 1;
            let any = Match::any();
            if self.glimpse.hands(LINK, CHARGE)
                || self.with(|inbox| inbox.hands(LINK, CHARGE, &any)).is_some()
            {
                return Some(tag);
            }
            self.deliver(message(tag));
            None
        }

        fn owed(&self) -> Vec<(u32, u64)> {
            self.with(|inbox| inbox.owed.to_each())
        }
    }

    /// Has `receive` run while `other` does.
    fn interleave(other: fn(&Model), receive: fn(&Model), after: fn(&Model)) {
        loom::model(move || {
            let model = Arc::new(Model {
                inbox: Mutex::new(Inbox::new()),
                glimpse: Glimpse::default(),
                next: Mutex::new(1),
                token: Notify::new(),
                caught: Mutex::default(),
            });
            let others = model.clone();
            let others = thread::spawn(move || other(&others));
            receive(&model);
            others.join().unwrap();
            after(&model);
        });
    }

    /// Who enlists, finds nothing and sleeps is woken, or loom finds a deadlock.
    #[test]
    fn who_sleeps_is_woken_for_what_it_has_not_seen() {
        let wait = |model: &Model| {
            let enlist =
                |inbox: &mut Inbox| inbox.enlist_receiver(Match::any(), &Parker::current());
            model.with(enlist);
            while model.take().is_none() {
                model.token.wait();
                model.with(enlist);
            }
        };
        interleave(Model::read, wait, |_| ());
    }
    /// What is handed over does not overtake what another thread has read from the link before, and is owed with it.
    #[test]
    fn what_is_handed_over_overtakes_nothing_and_is_owed() {
        let receive = |model: &Model| {
            let caught: Vec<u64> = (0..2).filter_map(|_| model.catch()).collect();
            *model.caught.lock().unwrap() = caught;
        };
        interleave(Model::read, receive, |model| {
            let mut caught = model.caught.lock().unwrap();
            caught.extend(std::iter::from_fn(|| model.take()));
            let read = *model.next.lock().unwrap() - 1;
            assert_eq!(*caught, (1..=read).collect::<Vec<_>>());
            assert_eq!(model.owed(), [(LINK, read * u64::from(CHARGE))]);
        });
    }

    /// Nothing that is handed over is lost for what is owed when others hold the lock meanwhile, nor is any of it owed twice.
    #[test]
    fn what_is_handed_over_while_another_holds_the_lock_is_owed_once() {
        let receive =
            |model: &Model| assert_eq!((model.catch(), model.catch()), (Some(1), Some(2)));
        interleave(
            |model| drop(model.owed()),
            receive,
            |model| {
                assert_eq!(model.owed(), [(LINK, 2 * u64::from(CHARGE))]);
            },
        );
    }
}
