//! The bytes of one connection: those that have come and are not heard yet, and those that are to go; how many of each may wait.

use super::byte_queue::ByteQueue;
use super::receiving::Peer;
use super::send_buffer::SendBuffer;
use super::stream::Stream;
use crate::directory::protocol::{DecodeError, encode};
use crate::directory::seal::{Sealers, Stranger};
use crate::directory::state::SILENCE_MOST;
use nix::sys::epoll::EpollFlags;
use serde::Serialize;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;
use thiserror::Error;

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
        self.drain() && self.unsent.is_read() && !is_done(self)
    }

    /// Writes what there is room for. Returns whether the other end is there.
    fn drain(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(self.unsent.rest()) {
                Ok(bytes) => self.unsent.took(bytes),
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

    /// Says that when there is room, sealed if it has to be. Whether it is one part of several.
    pub(super) fn say(&mut self, message: &impl Serialize, is_part: bool) {
        let sealers = &mut self.sealers;
        self.unsent.say(is_part, |bytes| {
            let start = bytes.len();
            encode(message, bytes);
            if let Some(Sealers { said, .. }) = sealers {
                let seal = said.seal(&bytes[start..]);
                bytes.extend_from_slice(&seal);
            }
        });
    }

    /// It is closed when all is sent, and not heard any more.
    pub(super) fn close_when_sent(&mut self) {
        self.closing.get_or_insert_with(Instant::now);
    }

    /// Whether its other end has not taken for long what it was told last.
    pub(super) fn is_late(&self) -> bool {
        self.closing.is_some_and(|since| since.elapsed() > SILENCE_MOST)
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
