//! What happens to the directory of a node, and what it wants done about that.

use crate::directory::protocol::{Answer, Reply, Request, Update};
use std::net::SocketAddr;
use std::time::Duration;

/// A connection of the server's shell: of a program, made by another server, or made to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Something that happened. Connections are new numbers; a connection that the state has closed
/// says nothing more.
#[derive(Debug, Clone)]
pub enum Input {
    /// A program of this node has connected, which the kernel says is of that user.
    Connected(ConnectionId, u32),
    /// A program of this node, which the kernel says is of that user, says something.
    Request(ConnectionId, u32, Request),
    /// One says hello in this version, which is another than this server's.
    OtherVersion(ConnectionId, u16),
    /// Another server tells something.
    Update(ConnectionId, Update),
    /// A connection that was asked for is there.
    Dialed {
        /// Where to.
        address: SocketAddr,
        /// Which.
        connection: ConnectionId,
        /// Where the other server reaches this one.
        reached_at: SocketAddr,
    },
    /// It could not be made.
    Unreachable(SocketAddr),
    /// What is there is none that this server can speak with, for that reason.
    Stranger(SocketAddr, String),
    /// Another server answers.
    Reply(ConnectionId, Reply),
    /// A connection is no more.
    Closed(ConnectionId),
    /// The node's clock shows that, since 1970. It may be set at any time, as after the node has booted: said before each tick.
    Clock(Duration),
    /// Time passes. At least every [`ALIVE_EVERY`](super::ALIVE_EVERY).
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Say that to a program.
    Answer(ConnectionId, Answer),
    /// Tell that to another server.
    Update(ConnectionId, Update),
    /// Answer that to another server.
    Reply(ConnectionId, Reply),
    /// Connect to a server there.
    Dial(SocketAddr),
    /// Close that when what was said is sent.
    Close(ConnectionId),
    /// Somebody should know.
    Warn(String),
}
