//! All connections of a server, and what the kernel is asked to tell of each. One that is closed is noted until the directory's
//! state is told of it.

use super::backlog::Backlog;
use super::connection::Connection;
use super::receiving::Peer;
use super::send_buffer::{Cause, Waiting};
use super::stream::Stream;
use crate::directory::seal::Sealers;
use crate::directory::state::ConnectionId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::AsFd;

/// Callers that have not shown that they are servers. If more come, the oldest goes: it is silent, or slow.
const CALLERS_MOST: usize = 64;
/// The first connection's number: lower ones are those of what else may be ready.
pub(super) const FIRST_CONNECTION: u64 = 16;

/// All of them.
pub(super) struct Connections {
    epoll: Epoll,
    all: BTreeMap<ConnectionId, Registered>,
    /// Those that are closed, of which the state has not been told yet.
    closed: VecDeque<ConnectionId>,
    backlog: Backlog,
    next: u64,
}

/// A connection, and what the kernel is asked to tell of it.
struct Registered {
    connection: Connection,
    interest: EpollFlags,
    /// What counts of it among all that waits for its user's programs.
    counted: Waiting,
}

/// Whether its other end does not read what happens, of which too much waits for its user's programs.
fn leaves_unread(backlog: &Backlog, connection: &Connection) -> bool {
    let has_some = connection.unsent.waiting().happened > 0 && !connection.is_taking();
    has_some && connection.user().is_some_and(|user| backlog.is_unread(user))
}

impl Connections {
    /// None yet.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (all, closed, backlog) = (BTreeMap::new(), VecDeque::new(), Backlog::default());
        Ok(Self { epoll, all, closed, backlog, next: FIRST_CONNECTION })
    }

    /// What else may become ready is told of by `number`, which is less than [`FIRST_CONNECTION`].
    pub(super) fn watch(&self, what: &impl AsFd, number: u64) -> io::Result<()> {
        Ok(self.epoll.add(what, EpollEvent::new(EpollFlags::EPOLLIN, number))?)
    }

    /// Waits until something is ready, no longer than so. Returns how many `events` there are.
    pub(super) fn wait(&self, events: &mut [EpollEvent], timeout: EpollTimeout) -> usize {
        // Interrupted: as if nothing had happened.
        self.epoll.wait(events, timeout).unwrap_or(0)
    }

    /// One more.
    pub(super) fn add(
        &mut self,
        stream: Stream,
        peer: Peer,
        sealers: Option<Sealers>,
    ) -> io::Result<ConnectionId> {
        let connection = Connection::new(stream, peer, sealers)?;
        let (id, interest) = (ConnectionId(self.next), connection.interest());
        self.next += 1;
        self.epoll.add(connection.stream.fd(), EpollEvent::new(interest, id.0))?;
        self.all.insert(id, Registered { connection, interest, counted: Waiting::default() });
        Ok(id)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// That of this number, if it is not closed.
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.all.get_mut(&id).map(|registered| &mut registered.connection)
    }

    /// The same, if what it says is heard now. One that has to wait for others of its user comes again when there is room.
    pub(super) fn heard(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let Registered { connection, .. } = self.all.get_mut(&id)?;
        if let Some(user) = connection.user().filter(|user| self.backlog.is_unanswered(*user)) {
            self.backlog.hold(user, id);
            return None;
        }
        connection.is_heard().then_some(connection)
    }

    /// One that has waited for others of its user, and may be heard again.
    pub(super) fn next_resumed(&mut self) -> Option<ConnectionId> {
        self.backlog.next_resumed()
    }

    /// Says that on a connection when it is flushed.
    pub(super) fn say(&mut self, to: ConnectionId, message: &impl Serialize, cause: Cause) {
        if let Some(connection) = self.get_mut(to) {
            connection.say(message, cause);
        }
    }

    /// Writes what there is room for, and closes it if it has nothing more to do.
    pub(super) fn flush(&mut self, id: ConnectionId) {
        let Some(registered) = self.all.get_mut(&id) else { return };
        let stands = registered.connection.flush();
        let Registered { connection, interest, counted } = registered;
        let waiting = connection.unsent.waiting();
        if let Some(user) = connection.user() {
            self.backlog.change(user, mem::replace(counted, waiting), waiting);
        }
        if !stands || leaves_unread(&self.backlog, connection) {
            return self.close(id);
        }
        let wanted = connection.interest();
        if wanted != *interest {
            *interest = wanted;
            let mut event = EpollEvent::new(wanted, id.0);
            if self.epoll.modify(connection.stream.fd(), &mut event).is_err() {
                self.close(id);
            }
        }
    }

    /// Closes it at once.
    pub(super) fn close(&mut self, id: ConnectionId) {
        if let Some(Registered { connection, counted, .. }) = self.all.remove(&id) {
            let _ = self.epoll.delete(connection.stream.fd());
            if let Some(user) = connection.user() {
                self.backlog.change(user, counted, Waiting::default());
            }
            self.closed.push_back(id);
        }
    }

    /// Closes those whose other ends do not take what they were told last, or what happens: each has a descriptor, and its
    /// user's part. So it does those that take none of what others of their user wait for.
    pub(super) fn close_late(&mut self) {
        let holds_up = |connection: &Connection| {
            let user = connection.user().filter(|user| self.backlog.is_unanswered(*user));
            user.is_some() && connection.is_stuck()
        };
        let is_late = |connection: &Connection| connection.is_late() || holds_up(connection);
        let late = self.all.iter().filter(|(_, registered)| is_late(&registered.connection));
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.close(id));
        // One after the other, until what is left is not too much.
        let all: Vec<_> = self.all.keys().copied().collect();
        for id in all {
            let connection = self.all.get(&id).map(|registered| &registered.connection);
            if connection.is_some_and(|connection| leaves_unread(&self.backlog, connection)) {
                self.close(id);
            }
        }
    }

    /// Makes room for a caller, who has to show that he is a server.
    pub(super) fn close_for_caller(&mut self) {
        let unknown = self.all.iter().filter(|(_, r)| r.connection.peer.is_unknown());
        let unknown: Vec<_> = unknown.map(|(id, _)| *id).collect();
        if let (Some(oldest), CALLERS_MOST..) = (unknown.first(), unknown.len()) {
            self.close(*oldest);
        }
    }

    /// One that was closed, of which the state has to be told.
    pub(super) fn next_closed(&mut self) -> Option<ConnectionId> {
        self.closed.pop_front()
    }
}
