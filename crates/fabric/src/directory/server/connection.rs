//! The bytes of one connection: those that have come and are not heard yet, and those that are to go; how many of each may wait.

use super::byte_queue::ByteQueue;
use super::receiving::Peer;
use super::send_buffer::{Cause, SendBuffer};
use super::stream::Stream;
use crate::directory::protocol::{DecodeError, encode};
use crate::directory::seal::{Sealers, Stranger};
use crate::directory::state::SILENCE_MOST;
use nix::sys::epoll::EpollFlags;
use serde::Serialize;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes of what has happened that wait at most for a program that has taken nothing for [`TAKES_WITHIN`]. One that reads so late,
/// as one that is stopped, has to begin anew.
const PROGRAM_UNREAD_MOST: usize = 4 << 20;
/// A program takes some of what waits for it in so long, unless it is stopped, or so slow that it may as well be.
const TAKES_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of it that wait for anybody at most: all resources of a node may come or go at once. Another server is given up as well
/// when nothing is heard of it.
const UNREAD_MOST: usize = 96 << 20;
/// Bytes that wait for a program at most when another question of it is answered. So one long answer is in memory at a time for
/// each, however many a program asks for at once. A program that comes to the next server registers all that it has, and reads
/// nothing meanwhile: for 2^20 resources, which are the most, it is told 11 MB.
const ANSWERED_MOST: usize = 16 << 20;
/// Bytes of a program's questions that wait for that at most: as many questions as it keeps, as long as these can be.
const QUESTIONS_MOST: usize = 32 << 20;
/// Bytes that are read before others get a turn.
const READ_MOST: usize = 256 << 10;

/// A connection of a program, or of another server.
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) peer: Peer,
    /// What it says is opened, and what it is told is sealed, with this.
    pub(super) sealers: Option<Sealers>,
    /// What has come.
    pub(super) received: ByteQueue,
    /// What is to go.
    pub(super) unsent: SendBuffer,
    /// When it has taken something last, or had nothing to take.
    took: Instant,
    /// Questions wait until more of the answers is taken.
    waits_to_answer: bool,
    /// Since when it is to be closed when everything is sent, or is not taken for [`SILENCE_MOST`].
    pub(super) closing: Option<Instant>,
}

/// Why a connection is given up.
#[derive(Debug, Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Stranger(#[from] Stranger),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(
        "{0} bytes of questions wait, and no answers are read: at most {QUESTIONS_MOST} are kept"
    )]
    Unread(usize),
}

impl Connection {
    /// One on which nothing was said but a hail, from which the sealers are.
    pub(super) fn new(stream: Stream, peer: Peer, sealers: Option<Sealers>) -> io::Result<Self> {
        stream.prepare()?;
        Ok(Self {
            stream,
            peer,
            sealers,
            received: ByteQueue::default(),
            unsent: SendBuffer::default(),
            took: Instant::now(),
            waits_to_answer: false,
            closing: None,
        })
    }

    /// Reads what has come. Returns whether more may come.
    pub(super) fn fill(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let mut total = 0;
        while total < READ_MOST {
            match self.stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(bytes) => {
                    // Who is heard no more, and does not take what it was told last, may go on for ever.
                    if self.closing.is_none() {
                        self.received
                            .append(|received| received.extend_from_slice(&piece[..bytes]));
                    }
                    total += bytes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Writes what there is room for. Returns whether the connection stands: not if all is sent after which it was to be closed,
    /// nor if the other end does not read.
    pub(super) fn flush(&mut self) -> bool {
        let is_done =
            |connection: &Self| connection.closing.is_some() && connection.unsent.is_empty();
        self.drain() && self.reads() && !is_done(self)
    }

    /// Whether the other end reads what happens, as far as that can be waited for: much may happen at once.
    fn reads(&self) -> bool {
        let most = match self.peer {
            Peer::Program { .. } if !self.is_taking() => PROGRAM_UNREAD_MOST,
            _ => UNREAD_MOST,
        };
        self.unsent.waiting().happened <= most
    }

    /// Whether the other end has just taken something, or had nothing to take.
    pub(super) fn is_taking(&self) -> bool {
        self.took.elapsed() <= TAKES_WITHIN
    }

    /// Writes what there is room for. Returns whether the other end is there.
    fn drain(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(self.unsent.rest()) {
                Ok(bytes) => {
                    self.unsent.took(bytes);
                    self.took = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// What the kernel is to tell of it.
    pub(super) fn interest(&self) -> EpollFlags {
        let waits_for_room = !self.unsent.is_empty() || self.waits_to_answer;
        let room = if waits_for_room { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
        EpollFlags::EPOLLIN | room
    }

    /// Whether what it says is heard now.
    pub(super) fn is_heard(&self) -> bool {
        self.closing.is_none() && self.has_room()
    }

    /// Whether its next question may be answered: if that is a program's, when it has taken most of what it was told.
    fn has_room(&self) -> bool {
        !matches!(self.peer, Peer::Program { .. }) || self.unsent.len() <= ANSWERED_MOST
    }

    /// Keeps questions until there is room for their answers. The kernel tells when it takes more.
    pub(super) fn hold_back(&mut self) -> Result<(), ConnectionError> {
        self.waits_to_answer = !self.has_room();
        let waiting = self.received.len();
        if waiting > QUESTIONS_MOST { Err(ConnectionError::Unread(waiting)) } else { Ok(()) }
    }

    /// Says that when there is room, sealed if it has to be.
    pub(super) fn say(&mut self, message: &impl Serialize, cause: Cause) {
        if self.unsent.is_empty() {
            self.took = Instant::now();
        }
        let sealers = &mut self.sealers;
        self.unsent.say(cause, |bytes| {
            let start = bytes.len();
            encode(message, bytes);
            if let Some(Sealers { said, .. }) = sealers {
                let seal = said.seal(&bytes[start..]);
                bytes.extend_from_slice(&seal);
            }
        });
    }

    /// The user of the program at its other end, if that is one.
    pub(super) fn user(&self) -> Option<u32> {
        match self.peer {
            Peer::Program { user } => Some(user),
            _ => None,
        }
    }

    /// Whether its other end has taken nothing for long of what waits for it.
    pub(super) fn is_stuck(&self) -> bool {
        !self.unsent.is_empty() && self.took.elapsed() > SILENCE_MOST
    }

    /// It is closed when all is sent, and not heard any more.
    pub(super) fn close_when_sent(&mut self) {
        self.closing.get_or_insert_with(Instant::now);
    }

    /// Whether its other end has not taken for long what it was told last, or does not read what happens.
    pub(super) fn is_late(&self) -> bool {
        self.closing.is_some_and(|since| since.elapsed() > SILENCE_MOST) || !self.reads()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// That of a program, and the program's end.
    pub(in super::super) fn connection() -> (Connection, UnixStream) {
        let (stream, program) = UnixStream::pair().unwrap();
        let peer = Peer::Program { user: 0 };
        (Connection::new(Stream::Unix(stream), peer, None).unwrap(), program)
    }

    impl Connection {
        /// As if its other end had taken nothing for long.
        pub(in super::super) fn has_been_stuck(&mut self) {
            self.took = Instant::now().checked_sub(2 * SILENCE_MOST).unwrap();
        }

        /// As if it had just taken something, however long the test is held up.
        pub(in super::super) fn has_just_taken(&mut self) {
            self.took = Instant::now() + Duration::from_secs(3_600);
        }
    }

    /// Goal: who does not read is found out however quick it is otherwise, a server as well as a program, and who reads an answer
    /// that is long by itself is not taken for that.
    #[test]
    fn who_reads_a_long_answer_is_no_idler() {
        for peer in [Peer::Follower, Peer::Program { user: 0 }] {
            let (mut connection, _other) = connection();
            connection.peer = peer;
            connection.has_just_taken();
            let mut say = |cause, length: usize| {
                connection.unsent.say(cause, |bytes| bytes.resize(bytes.len() + length, 0));
                connection.reads()
            };
            assert!(say(Cause::Asked, UNREAD_MOST + 1));
            assert!(say(Cause::Happened, UNREAD_MOST));
            assert!(!say(Cause::Happened, 1));
            connection.unsent.took(UNREAD_MOST + 2);
            assert!(connection.reads());
        }
    }

    /// It is closed when it has taken what it was told, which it never does.
    #[test]
    fn what_is_said_on_a_connection_that_closes_is_not_kept() {
        let (mut connection, mut program) = connection();
        program.write_all(&[1; 1000]).unwrap();
        assert!(connection.fill());
        assert_eq!(connection.received.len(), 1000);
        connection.close_when_sent();
        program.write_all(&[1; 1000]).unwrap();
        assert!(connection.fill());
        assert_eq!(connection.received.len(), 1000);
        drop(program);
        assert!(!connection.fill(), "its end is found all the same");
    }
}
