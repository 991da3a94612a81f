//! What the bytes of a connection mean, by who is at its other end: a hail, then one message after another, each whole, no longer
//! than it may be, and sealed if it has to be.

use super::connection::{Connection, ConnectionError};
use super::send_buffer::Cause;
use crate::directory::protocol::{MESSAGE_MOST, Reply, Request, framed, other_version, read};
use crate::directory::seal::{End, HAIL, Hail, SEAL, Sealers, Stranger};
use crate::directory::state::{ConnectionId, Input};
use crate::door::ClusterKey;
use crate::networks::addresses;
use std::io;
use std::net::IpAddr;

/// Longest message of a program, which may be anybody's: what it has begun to say is kept. A hello with a few thousand
/// addresses, or many times what attributes can be.
const REQUEST_MOST: usize = 1 << 20;
/// Longest message of a server that has not shown yet that it has the key: it says that it is alive.
const FIRST_MOST: usize = 64;

/// Who is at the other end, and so what comes next.
#[derive(Clone, Copy)]
pub(super) enum Peer {
    /// A program of this user: requests.
    Program { user: u32 },
    /// Whoever has called: a hail, which is answered with this.
    Caller(Hail),
    /// Whoever has said hail: a sign of life, which shows that it has the key.
    Hailed,
    /// A server that has called: its updates.
    Origin,
    /// A server that was called: its replies.
    Follower,
}

/// What has come on a connection.
pub(super) enum Received {
    /// That.
    Input(Input),
    /// A hail, which is answered.
    Hail,
    /// One of somebody who has not this server's key, which is answered with that.
    Strange(Stranger),
    /// Nothing whole yet.
    Nothing,
}

impl Peer {
    /// Whether it has to show yet that it is a server.
    pub(super) fn is_unknown(self) -> bool {
        matches!(self, Self::Caller(_) | Self::Hailed)
    }

    /// Bytes of the longest message that is taken.
    fn longest(self) -> usize {
        match self {
            Self::Program { .. } => REQUEST_MOST,
            Self::Caller(_) | Self::Hailed => FIRST_MOST,
            Self::Origin | Self::Follower => MESSAGE_MOST,
        }
    }
}

impl Connection {
    /// What comes next of what was read. `key` is this server's.
    ///
    /// # Errors
    /// If that is nothing that may come.
    pub(super) fn next(
        &mut self,
        id: ConnectionId,
        key: Option<&ClusterKey>,
    ) -> Result<Received, ConnectionError> {
        if let Peer::Caller(own) = self.peer {
            return Ok(self.hailed(&own, key));
        }
        let message = framed(self.received.rest(), self.peer.longest())?;
        let Some(message) = message else { return Ok(Received::Nothing) };
        let mut length = message.len();
        if let Some(Sealers { heard, .. }) = &mut self.sealers {
            let Some(seal) = self.received.rest()[length..].first_chunk::<SEAL>() else {
                return Ok(Received::Nothing);
            };
            heard.open(message, *seal)?;
            length += SEAL;
        }
        let input = match self.peer {
            Peer::Program { user } => match other_version(message) {
                Some(version) => Input::OtherVersion(id, version),
                None => Input::Request(id, user, of_this_node(read(message)?)?),
            },
            Peer::Follower => Input::Reply(id, read(message)?),
            Peer::Origin | Peer::Hailed | Peer::Caller(_) => Input::Update(id, read(message)?),
        };
        if self.peer.is_unknown() {
            self.peer = Peer::Origin;
        }
        self.received.consume(length);
        Ok(Received::Input(input))
    }

    /// Answers a hail with this server's `own`, so that who is a stranger knows why, and with what shows that it has
    /// the key.
    fn hailed(&mut self, own: &Hail, key: Option<&ClusterKey>) -> Received {
        let Some(bytes) = self.received.rest().first_chunk::<HAIL>() else {
            return Received::Nothing;
        };
        let other = Hail::decode(bytes);
        self.unsent.say(Cause::Happened, |bytes| bytes.extend_from_slice(&own.encode()));
        self.received.consume(HAIL);
        match other.and_then(|other| own.meets(&other, End::Called, key)) {
            Ok(sealers) => {
                (self.sealers, self.peer) = (sealers, Peer::Hailed);
                if self.sealers.is_some() {
                    self.say(&Reply::Alive, Cause::Happened);
                }
            }
            Err(stranger) => {
                self.close_when_sent();
                return Received::Strange(stranger);
            }
        }
        Received::Hail
    }
}

/// What a program says of itself, but for addresses that its node has not: bridges connect to where the directory says that a
/// context is, from networks as well from which its program could not.
fn of_this_node(mut request: Request) -> io::Result<Request> {
    if let Request::Hello { context, .. } = &mut request {
        let own = addresses()?;
        let is_here = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
        context.addresses.retain(|address| is_here(address.ip()));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::super::byte_queue::ByteQueue;
    use super::super::connection::tests::connection;
    use super::*;
    use crate::directory::protocol::DecodeError;

    /// Everybody on a node can be a program: what each has begun to say and does not end would be the daemon's memory.
    #[test]
    fn a_program_says_nothing_long() {
        let (mut connection, _program) = connection();
        let mut begins = |length: usize| {
            connection.received = ByteQueue::default();
            let length = (length as u32).to_le_bytes();
            connection.received.append(|bytes| bytes.extend_from_slice(&length));
            connection.next(ConnectionId(1), None)
        };
        assert!(matches!(begins(REQUEST_MOST), Ok(Received::Nothing)));
        let too_long = DecodeError::TooLong { length: REQUEST_MOST + 1, most: REQUEST_MOST };
        let refused = begins(REQUEST_MOST + 1);
        assert!(matches!(refused, Err(ConnectionError::Decode(why)) if why == too_long));
    }
}
