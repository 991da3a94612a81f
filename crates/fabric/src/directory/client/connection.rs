//! The connection to a server: what is said on it, what comes on it, and whether more may have
//! waited in the server than has come.

use crate::directory::protocol::{Answer, Request, decode, encode};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Bytes that were waiting to be read, from which on more may wait in the server, as the socket was
/// full. One that is full holds more: of 208 KiB the kernel counts 768 bytes at least for a
/// message, and no message is shorter than eight bytes.
const FULL_LEAST: usize = 2048;

/// The connection to the server, and to the next one when that has ended.
#[derive(Debug, Default)]
pub(super) struct Connection {
    server: Option<Server>,
    /// How often more may have waited in the server than could be read, and up to which of these
    /// times it is known to have been read.
    behind: u64,
    caught_up: u64,
}

/// A server that is connected, and what it has begun to say.
#[derive(Debug)]
struct Server {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Connection {
    /// From now on it is to the server at the other end of `stream`.
    pub(super) fn begin(&mut self, stream: UnixStream) {
        self.server = Some(Server { stream, bytes: Vec::new() });
    }

    /// Whether there is a server.
    pub(super) fn stands(&self) -> bool {
        self.server.is_some()
    }

    /// Says it, if there is a server; if not, or if this fails, the next one will be told.
    pub(super) fn say(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        encode(request, &mut bytes);
        if let Some(server) = &mut self.server
            && server.stream.write_all(&bytes).is_err()
        {
            // Whoever reads next finds its end.
            self.shut_down();
        }
    }

    /// Nothing more is said on it, and whoever sleeps on it is woken.
    pub(super) fn shut_down(&self) {
        if let Some(server) = &self.server {
            let _ = server.stream.shutdown(Shutdown::Both);
        }
    }

    /// Has all heard by `hear` that the server has said, without waiting. Returns how many bytes
    /// that was.
    pub(super) fn hear_all(&mut self, hear: impl FnMut(Answer)) -> usize {
        let Some(server) = &mut self.server else { return 0 };
        let before = server.bytes.len();
        let stands = server.read_all();
        let read = server.bytes.len() - before;
        self.behind += u64::from(read >= FULL_LEAST);
        let is_ours = server.hear_each(hear);
        if !stands || !is_ours {
            // The thread that hears the server may sleep on it, and another one may be the first to
            // find this.
            self.shut_down();
            self.server = None;
        }
        read
    }

    /// Up to which time all that waited in the server has to be read yet; none if it has been.
    pub(super) fn behind(&self) -> Option<u64> {
        (self.caught_up < self.behind).then_some(self.behind)
    }

    /// All that waited in the server has been read, up to that time.
    pub(super) fn caught_up(&mut self, behind: u64) {
        self.caught_up = self.caught_up.max(behind);
    }
}

impl Server {
    /// Reads what has come. Returns whether more may come.
    fn read_all(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        loop {
            match recv(self.stream.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return false,
                Ok(length) => self.bytes.extend_from_slice(&piece[..length]),
                Err(Errno::EINTR) => {}
                Err(errno) => return errno == Errno::EAGAIN,
            }
        }
    }

    /// Has each answer heard that was read whole. Returns false if it is not a server of ours: the
    /// connection is of no use.
    fn hear_each(&mut self, mut hear: impl FnMut(Answer)) -> bool {
        let mut used = 0;
        let is_ours = loop {
            match decode(&self.bytes[used..]) {
                Ok(Some((answer, length))) => {
                    hear(answer);
                    used += length;
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        self.bytes.drain(..used);
        is_ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;

    /// A thread that asks hears the server as well, and is the first to find that it is none: who
    /// sleeps on the connection is woken, and joins the next.
    #[test]
    fn what_is_no_server_wakes_who_hears_it() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let watched = stream.try_clone().unwrap();
        let mut connection = Connection::default();
        connection.begin(stream);
        other.write_all(&[u8::MAX; 64]).unwrap();
        let read = connection.hear_all(|answer| panic!("{answer:?}"));
        assert_eq!((read, connection.stands()), (64, false));
        let mut ready = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ready, PollTimeout::ZERO), Ok(1), "it sleeps on");
    }
}
