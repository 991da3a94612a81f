//! Contexts from which somebody waits for messages, and that are not connected: nothing comes of those that are gone. The
//! directory knows which are, soon after the connection to one has ended, and is asked by a thread of its own: whoever
//! waits is not held up by a daemon that does not answer. It forgets contexts with their node when that one's daemon is
//! silent: then whoever was there before is called.

use super::Core;
use super::waiting::Look;
use crate::directory::protocol::Introduction;
use crate::id::ContextId;
use crate::streams::REMEMBERED_MOST;
use keeptime_locks::lock;
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
/// How long one is taken for gone: its node's daemon may be there again then, and know it.
const GONE_FOR: Duration = Duration::from_secs(1);

/// What is known of them.
#[derive(Debug, Default)]
pub struct Absent {
    all: Mutex<BTreeMap<ContextId, Absence>>,
    /// How often that has changed, or a connection has ended.
    changes: AtomicUsize,
}

/// What is known of one.
#[derive(Debug)]
struct Absence {
    standing: Standing,
    /// Where it was when the directory knew it last.
    known: Option<Introduction>,
    /// Whether the directory knows it no more, and may have forgotten it with its node.
    is_forgotten: bool,
}

/// Whether it is there.
#[derive(Debug, Clone, Copy)]
enum Standing {
    /// The directory is asked, and asked again so long after it has answered that it is there.
    Asked(Duration),
    /// It was there, and is asked for again then; and once more so long after that.
    There(Instant, Duration),
    /// Nothing comes of it before it is connected, until it is asked for again then.
    Gone(Instant),
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
    pub fn is_gone(&self, peer: ContextId, now: Instant) {
        let standing = Standing::Gone(now + GONE_FOR);
        let absence = Absence { standing, known: None, is_forgotten: false };
        self.remember(&mut lock(&self.all), peer, absence);
        self.change();
    }

    /// It is connected.
    pub fn is_connected(&self, peer: ContextId) {
        lock(&self.all).remove(&peer);
    }

    /// Where one was that may be there, though the directory knows it no more.
    pub fn forgotten(&self, peer: ContextId) -> Option<Introduction> {
        let all = lock(&self.all);
        all.get(&peer).filter(|absence| absence.is_forgotten)?.known.clone()
    }

    /// Where `peer` was when the directory knew it last.
    fn known(&self, peer: ContextId) -> Option<Introduction> {
        lock(&self.all).get(&peer)?.known.clone()
    }

    /// What is to be done about `peer`, which is not connected.
    fn next(&self, peer: ContextId, now: Instant) -> Next {
        let mut all = lock(&self.all);
        let rest = match all.get(&peer).map(|absence| absence.standing) {
            None => AGAIN_FIRST,
            Some(Standing::There(again, rest)) if again <= now => rest,
            Some(Standing::There(again, _)) => return Next::AskAt(again),
            Some(Standing::Asked(_)) => return Next::Wait,
            Some(Standing::Gone(again)) if again <= now => AGAIN_FIRST,
            Some(Standing::Gone(_)) => return Next::GiveUp,
        };
        let standing = Standing::Asked(rest);
        match all.get_mut(&peer) {
            Some(absence) => absence.standing = standing,
            None => {
                let absence = Absence { standing, known: None, is_forgotten: false };
                self.remember(&mut all, peer, absence);
            }
        }
        Next::Ask
    }

    /// The directory says where it is.
    fn is_there(&self, peer: ContextId, found: Introduction, now: Instant) {
        self.answered(peer, now, |absence| {
            (absence.known, absence.is_forgotten) = (Some(found), false);
        });
    }

    /// The directory has forgotten it, perhaps with its node.
    fn is_forgotten(&self, peer: ContextId, now: Instant) {
        self.answered(peer, now, |absence| absence.is_forgotten = true);
    }

    /// The directory does not answer.
    fn is_unknown(&self, peer: ContextId, now: Instant) {
        self.answered(peer, now, |_| {});
    }

    fn answered(&self, peer: ContextId, now: Instant, learn: impl FnOnce(&mut Absence)) {
        if let Some(absence) = lock(&self.all).get_mut(&peer)
            && let Standing::Asked(rest) = absence.standing
        {
            absence.standing = Standing::There(now + rest, (2 * rest).min(AGAIN_MOST));
            learn(absence);
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
        if peer == self.id || self.junction.links.has(peer) {
            return Look::Later;
        }
        match self.absent.next(peer, Instant::now()) {
            Next::GiveUp => self.give_up(peer),
            Next::AskAt(then) => Look::At(then),
            Next::Wait => Look::Later,
            Next::Ask => {
                self.keeper.seek(peer);
                Look::Later
            }
        }
    }

    /// Nobody has to wait for `peer` unless it had called before it ended: its call may not be taken yet, nor what it said.
    fn give_up(&self, peer: ContextId) -> Look<()> {
        let again = self.listeners.hear_callers(self);
        if self.junction.links.has(peer) {
            return Look::Later;
        }
        again.map_or(Look::Done(()), Look::At)
    }

    /// Asks the directory for `peer`, and tells whoever waits for messages of it.
    pub fn ask_for(&self, peer: ContextId) {
        let known = self.absent.known(peer);
        // Before and after it was asked for, since that daemon may come or go meanwhile.
        let has_daemon = || known.as_ref().is_none_or(|known| self.has_daemon_of(known));
        let had_daemon = has_daemon();
        let found = self.directory.resolve(peer);
        let now = Instant::now();
        match found {
            Ok(Some(found)) => self.absent.is_there(peer, found, now),
            Ok(None) if had_daemon && has_daemon() => self.absent.is_gone(peer, now),
            Ok(None) => {
                self.absent.is_forgotten(peer, now);
                self.call_soon(peer);
            }
            Err(_) => self.absent.is_unknown(peer, now),
        }
        self.junction.inboxes.each(|inbox| {
            inbox.receivers_of(peer).for_each(|parker| self.progress.wake(parker));
        });
    }

    /// Whether the daemon is there of the node where that was: the own one has just answered.
    fn has_daemon_of(&self, known: &Introduction) -> bool {
        let node = &known.context.node;
        *node == self.directory.welcome().node || self.has_daemon(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carriers::Carriers;
    use crate::directory::protocol::ContextInfo;
    use crate::door::Callers;
    use crate::frame::VERSION;

    fn introduction(id: ContextId) -> Introduction {
        let (node, owner, callers) = ("n2".into(), 0, Callers::SameUser);
        let (addresses, carriers) = (Vec::new(), Carriers::default());
        let speaks = VERSION;
        let context = ContextInfo { id, node, owner, callers, addresses, carriers, speaks };
        Introduction { context, pass: None }
    }

    /// One that is there is asked for less and less often, and one that is gone again after a while.
    #[test]
    fn who_is_there_is_asked_for_less_and_less_often() {
        let (absent, peer, mut now) = (Absent::default(), ContextId::new(1), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..12 {
            assert_eq!(absent.next(peer, now), Next::Ask);
            assert_eq!(absent.next(peer, now + AGAIN_MOST), Next::Wait, "it is asked once");
            let before = absent.changes();
            absent.is_there(peer, introduction(peer), now);
            assert_ne!(absent.changes(), before, "who waits has to look when to ask again");
            let Next::AskAt(again) = absent.next(peer, now) else { panic!("too soon") };
            rests.push((again - now).as_millis());
            now = again;
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        let before = absent.changes();
        absent.is_gone(peer, now);
        assert_ne!(absent.changes(), before);
        assert_eq!(absent.next(peer, now), Next::GiveUp);
        // An answer to what was asked before says nothing.
        absent.is_there(peer, introduction(peer), now);
        assert_eq!(absent.next(peer, now), Next::GiveUp);
        assert_eq!(absent.next(peer, now + GONE_FOR), Next::Ask);
        absent.is_connected(peer);
        absent.is_unknown(peer, now);
        assert_eq!(absent.next(peer, now), Next::Ask);
    }

    /// Where it was is known as long as it is not gone, and called only while the directory does not say where it is.
    #[test]
    fn who_was_forgotten_is_called_where_it_was() {
        let (absent, peer, now) = (Absent::default(), ContextId::new(1), Instant::now());
        let ask = || assert_eq!(absent.next(peer, now + AGAIN_MOST), Next::Ask);
        ask();
        absent.is_forgotten(peer, now);
        assert_eq!(absent.forgotten(peer), None, "it was never known");
        ask();
        absent.is_there(peer, introduction(peer), now);
        assert_eq!((absent.known(peer), absent.forgotten(peer)), (Some(introduction(peer)), None));
        ask();
        absent.is_forgotten(peer, now);
        assert_eq!(absent.forgotten(peer), Some(introduction(peer)));
        ask();
        absent.is_unknown(peer, now);
        assert_eq!(absent.forgotten(peer), Some(introduction(peer)));
        absent.is_gone(peer, now);
        assert_eq!((absent.known(peer), absent.forgotten(peer)), (None, None));
    }

    #[test]
    fn few_are_remembered() {
        let (absent, now) = (Absent::default(), Instant::now());
        for peer in (0..REMEMBERED_MOST as u64 + 20).map(ContextId::new) {
            absent.is_gone(peer, now);
            assert_eq!(absent.next(peer, now), Next::GiveUp);
        }
        assert_eq!(lock(&absent.all).len(), REMEMBERED_MOST);
    }
}
