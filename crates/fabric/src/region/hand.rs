//! How a region's memory is handed over: programs ask their node's daemon on a Unix socket, one
//! datagram each way, and a descriptor with the answer.

use super::layout::{InvalidLayout, Layout};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The version of what is said here, and of the memory itself.
pub const VERSION: u16 = 1;
/// Longest of it.
const LONGEST: usize = 512;
/// How long the daemon may take, in seconds.
const ANSWER_TIME: i64 = 5;

/// What a program asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Memory for a new region, which is there as long as this connection.
    Publish {
        /// [`VERSION`].
        version: u16,
        /// How many records.
        records: u32,
        /// Bytes of data in each.
        bytes: u32,
        /// Whether others may add to the counters.
        adds: bool,
    },
    /// The memory of a region that is there.
    Open {
        /// [`VERSION`].
        version: u16,
        /// Its place.
        slot: u32,
        /// Its name.
        key: u64,
    },
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The descriptor is the memory of this region.
    Here {
        /// Its place.
        slot: u32,
        /// Its name.
        key: u64,
        /// Where questions of other nodes are answered.
        port: u16,
        /// Whether it may be mapped for changing it.
        writable: bool,
    },
    /// There is no such region.
    Gone,
    /// That cannot be.
    Refused {
        /// Why, and what would be accepted.
        why: String,
    },
}

impl Ask {
    /// For memory of this layout.
    pub fn publish(layout: Layout) -> Self {
        let (records, bytes, adds) = (layout.records(), layout.bytes(), layout.adds());
        Self::Publish { version: VERSION, records, bytes, adds }
    }
}

/// The layout that was asked for.
///
/// # Errors
/// If there is none such.
pub fn layout_of(records: u32, bytes: u32, adds: bool) -> Result<Layout, InvalidLayout> {
    let layout = Layout::new(records, bytes)?;
    Ok(if adds { layout.with_adds() } else { layout })
}

/// Listens as the daemon `name` of this node.
///
/// # Errors
/// If there is one already.
pub fn serve(name: &str) -> io::Result<OwnedFd> {
    let listener = open_socket(SockFlag::SOCK_NONBLOCK)?;
    bind(listener.as_raw_fd(), &address_of(name)?)?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

/// Takes the next connection.
///
/// # Errors
/// `WouldBlock` if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user at the other end.
///
/// # Errors
/// If the kernel does not say.
pub fn user_of(connection: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(getsockopt(&connection, PeerCredentials)?.uid())
}

/// Asks the daemon `name` of this node. Returns the connection, the answer, and what came with it.
///
/// # Errors
/// If it is not there, is another user's (and not root's), or does not answer.
pub fn ask(name: &str, ask: &Ask) -> io::Result<(OwnedFd, Reply, Option<OwnedFd>)> {
    let connection = open_socket(SockFlag::empty())?;
    setsockopt(&connection, ReceiveTimeout, &TimeVal::new(ANSWER_TIME, 0))?;
    connect(connection.as_raw_fd(), &address_of(name)?)?;
    // A name without a file has no permissions: whoever was first may have it.
    let owner = user_of(connection.as_fd())?;
    if owner != 0 && owner != geteuid().as_raw() {
        let why = format!("it is that of user {owner}: root's, or one's own, would be trusted");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    say(connection.as_fd(), ask, None)?;
    let (reply, memory) = hear(connection.as_fd())?.ok_or(ErrorKind::UnexpectedEof)?;
    Ok((connection, reply, memory))
}

/// Says `what`, and hands `memory` over with it.
///
/// # Errors
/// If the connection does not take it.
pub fn say(
    connection: BorrowedFd<'_>,
    what: &impl Serialize,
    memory: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(what).map_err(io::Error::other)?;
    let fds: Vec<RawFd> = memory.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let parts = [IoSlice::new(&bytes)];
    sendmsg::<()>(connection.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// What is said next, and what comes with it. None when the other end has closed.
///
/// # Errors
/// If there is nothing yet, or what is said means nothing.
pub fn hear<T: DeserializeOwned>(
    connection: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = [0; LONGEST];
    let mut space = cmsg_space!(RawFd);
    let (length, memory) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = connection.as_raw_fd();
        let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags)?;
        let mut memory = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                // SAFETY: the kernel has just made these descriptors for this process.
                memory = fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).next_back();
            }
        }
        (message.bytes, memory)
    };
    if length == 0 {
        return Ok(None);
    }
    match postcard::take_from_bytes(&bytes[..length]) {
        Ok((what, [])) => Ok(Some((what, memory))),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Whether the daemon still has the other end.
pub fn is_connected(connection: BorrowedFd<'_>) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let heard = nix::sys::socket::recv(connection.as_raw_fd(), &mut [0], flags);
    matches!(heard, Err(Errno::EAGAIN | Errno::EINTR))
}

fn open_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC | flags, None)
}

fn address_of(name: &str) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("{name}/regions").as_bytes())
}
