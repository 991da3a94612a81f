//! Contexts from which somebody waits for messages, and that are not connected: nothing comes of those that are gone. The
//! directory knows which are, soon after the connection to one has ended, and is asked by a thread of its own: whoever
//! waits is not held up by a daemon that does not answer.

use super::Core;
use super::waiting::Look;
use crate::id::ContextId;
use crate::progress::lock;
use crate::streams::REMEMBERED_MOST;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// How soon it is asked again for one that was there, each time twice as late: the directory may hear a moment later than
/// who was connected.
const AGAIN_FIRST: Duration = Duration::from_millis(1);
/// How late at most: who waits for one that is not connected yet asks no more often.
const AGAIN_MOST: Duration = Duration::from_secs(1);

/// What is known of them.
#[derive(Debug, Default)]
pub struct Absent {
    all: Mutex<BTreeMap<ContextId, Absence>>,
    /// How often that has changed, or a connection has ended.
    changes: AtomicUsize,
}

/// What is known of one.
#[derive(Debug, Clone, Copy)]
enum Absence {
    /// The directory is asked, and asked again so long after it has answered that it is there.
    Asked(Duration),
    /// It was there, and is asked for again then; and once more so long after that.
    There(Instant, Duration),
    /// Nothing comes of it before it is connected.
    Gone,
}

/// What is to be done about one.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The directory is to be asked.
    Ask,
    /// Nothing before it has answered.
    Wait,
    /// It is to be asked then.
    AskAt(Instant),
    /// Nobody has to wait for it.
    GiveUp,
}

impl Absent {
    /// Whoever waits is to look again if this is another number.
    pub fn changes(&self) -> usize {
        self.changes.load(Acquire)
    }

    /// Something has changed that this does not know.
    pub fn change(&self) {
        self.changes.fetch_add(1, Release);
    }

    /// It is known now to be gone.
    pub fn is_gone(&self, peer: ContextId) {
        self.remember(&mut lock(&self.all), peer, Absence::Gone);
        self.change();
    }

    /// It is connected.
    pub fn is_connected(&self, peer: ContextId) {
        lock(&self.all).remove(&peer);
    }

    /// What is to be done about `peer`, which is not connected.
    fn next(&self, peer: ContextId, now: Instant) -> Next {
        let mut all = lock(&self.all);
        let rest = match all.get(&peer).copied() {
            None => AGAIN_FIRST,
            Some(Absence::There(again, rest)) if again <= now => rest,
            Some(Absence::There(again, _)) => return Next::AskAt(again),
            Some(Absence::Asked(_)) => return Next::Wait,
            Some(Absence::Gone) => return Next::GiveUp,
        };
        self.remember(&mut all, peer, Absence::Asked(rest));
        Next::Ask
    }

    /// The directory does not say that it is gone.
    fn is_there(&self, peer: ContextId, now: Instant) {
        if let Some(absence) = lock(&self.all).get_mut(&peer)
            && let Absence::Asked(rest) = *absence
        {
            *absence = Absence::There(now + rest, (2 * rest).min(AGAIN_MOST));
        }
        self.change();
    }

    /// Of too many one is forgotten, and asked for anew.
    fn remember(&self, all: &mut BTreeMap<ContextId, Absence>, peer: ContextId, what: Absence) {
        if all.len() >= REMEMBERED_MOST && !all.contains_key(&peer) {
            all.pop_first();
        }
        all.insert(peer, what);
    }
}

impl Core {
    /// Whether nobody has to wait for messages of `peer`, or when to look again; if it is to be looked when something
    /// has changed, whoever waits for it is woken then.
    pub(super) fn seek(&self, peer: ContextId) -> Look<()> {
        if peer == self.id || self.links.has(peer) {
            return Look::Later;
        }
        match self.absent.next(peer, Instant::now()) {
            Next::GiveUp => Look::Done(()),
            Next::AskAt(then) => Look::At(then),
            Next::Wait => Look::Later,
            Next::Ask => {
                self.keeper.seek(peer);
                Look::Later
            }
        }
    }

    /// Asks the directory for `peer`, and tells whoever waits for messages of it.
    pub fn ask_for(&self, peer: ContextId) {
        match self.directory.resolve(peer) {
            Ok(None) => self.absent.is_gone(peer),
            Ok(Some(_)) | Err(_) => self.absent.is_there(peer, Instant::now()),
        }
        self.inboxes.each(|inbox| {
            inbox.receivers_of(peer).for_each(|parker| self.progress.wake(parker));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is there is asked for less and less often, one that is gone never again before it is connected.
    #[test]
    fn who_is_there_is_asked_for_less_and_less_often() {
        let (absent, peer, mut now) = (Absent::default(), ContextId::new(1), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..12 {
            assert_eq!(absent.next(peer, now), Next::Ask);
            assert_eq!(absent.next(peer, now + AGAIN_MOST), Next::Wait, "it is asked once");
            let before = absent.changes();
            absent.is_there(peer, now);
            assert_ne!(absent.changes(), before, "who waits has to look when to ask again");
            let Next::AskAt(again) = absent.next(peer, now) else { panic!("too soon") };
            rests.push((again - now).as_millis());
            now = again;
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        let before = absent.changes();
        absent.is_gone(peer);
        assert_ne!(absent.changes(), before);
        assert_eq!(absent.next(peer, now + AGAIN_MOST), Next::GiveUp);
        absent.is_connected(peer);
        // An answer to what was asked before says nothing.
        absent.is_there(peer, now);
        assert_eq!(absent.next(peer, now), Next::Ask);
    }

    #[test]
    fn few_are_remembered() {
        let (absent, now) = (Absent::default(), Instant::now());
        for peer in (0..REMEMBERED_MOST as u64 + 20).map(ContextId::new) {
            absent.is_gone(peer);
            assert_eq!(absent.next(peer, now), Next::GiveUp);
        }
        assert_eq!(lock(&absent.all).len(), REMEMBERED_MOST);
    }
}
