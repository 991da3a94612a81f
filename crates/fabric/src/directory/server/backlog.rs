//! How much waits for the programs of each user that they have not read (pure). It is the daemon's memory, which all users share:
//! one user's programs leave room for those of others, however many there are.

use super::send_buffer::Waiting;
use crate::directory::state::ConnectionId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

/// Bytes of what has happened that wait for one user's programs at most.
const HAPPENED_MOST: usize = 64 << 20;
/// Bytes of answers that wait for one user's programs when another of their questions is answered, at most.
const ASKED_MOST: usize = 64 << 20;

/// What waits for all of them.
#[derive(Debug, Default)]
pub struct Backlog {
    users: BTreeMap<u32, OfUser>,
    /// Programs that may be answered again.
    resumed: VecDeque<ConnectionId>,
}

#[derive(Debug, Default)]
struct OfUser {
    waiting: Waiting,
    /// Programs whose questions wait until more of all answers is read.
    held: BTreeSet<ConnectionId>,
}

impl Backlog {
    /// What waits for one of a user's programs has become `after`.
    pub fn change(&mut self, user: u32, before: Waiting, after: Waiting) {
        let its = self.users.entry(user).or_default();
        its.waiting.asked = its.waiting.asked - before.asked + after.asked;
        its.waiting.happened = its.waiting.happened - before.happened + after.happened;
        if its.waiting.asked <= ASKED_MOST {
            self.resumed.extend(mem::take(&mut its.held));
        }
        if its.waiting == Waiting::default() {
            self.users.remove(&user);
        }
    }

    /// Whether a user's programs leave so much unread of what has happened that no more can be kept for them.
    pub fn is_unread(&self, user: u32) -> bool {
        self.users.get(&user).is_some_and(|its| its.waiting.happened > HAPPENED_MOST)
    }

    /// Whether a user's programs leave so much unread of their answers that they get none for now.
    pub fn is_unanswered(&self, user: u32) -> bool {
        self.users.get(&user).is_some_and(|its| its.waiting.asked > ASKED_MOST)
    }

    /// One of a user's programs waits for that to end.
    pub fn hold(&mut self, user: u32, program: ConnectionId) {
        self.users.entry(user).or_default().held.insert(program);
    }

    /// A program for which it has ended, which may be gone.
    pub fn next_resumed(&mut self) -> Option<ConnectionId> {
        self.resumed.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Waiting = Waiting { asked: 0, happened: 0 };

    #[test]
    fn what_one_user_leaves_unread_concerns_no_other() {
        let mut backlog = Backlog::default();
        let half = Waiting { asked: ASKED_MOST / 2, happened: HAPPENED_MOST / 2 };
        let more = Waiting { asked: half.asked + 1, happened: half.happened + 1 };
        let is_much =
            |backlog: &Backlog, user| (backlog.is_unread(user), backlog.is_unanswered(user));
        backlog.change(7, NONE, half);
        backlog.change(7, NONE, half);
        assert_eq!(is_much(&backlog, 7), (false, false));
        backlog.change(7, half, more);
        assert_eq!([7, 8].map(|user| is_much(&backlog, user)), [(true, true), (false, false)]);
        backlog.change(7, more, NONE);
        backlog.change(7, half, NONE);
        assert!(backlog.users.is_empty());
    }

    #[test]
    fn who_waits_for_answers_gets_them_when_there_is_room() {
        let mut backlog = Backlog::default();
        let much = Waiting { asked: ASKED_MOST + 1, happened: 0 };
        backlog.change(7, NONE, much);
        backlog.hold(7, ConnectionId(2));
        backlog.change(7, much, Waiting { asked: ASKED_MOST + 1, happened: 9 });
        assert_eq!(backlog.next_resumed(), None);
        backlog.change(7, Waiting { asked: 1, happened: 0 }, NONE);
        assert_eq!([(); 2].map(|()| backlog.next_resumed()), [Some(ConnectionId(2)), None]);
    }
}
