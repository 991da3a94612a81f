//! How a region's memory is handed over: programs ask their node's daemon on a Unix socket, one
//! datagram each way, and a descriptor with the answer.

use super::layout::{InvalidLayout, Layout};
use crate::sockets::{call, expect_trusted, receive, taken, time_value};
use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    listen, recv, sendmsg, setsockopt, socket,
};
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The version of what is said here, and of the memory itself.
pub const VERSION: u16 = 1;
/// Longest of it.
const LONGEST: usize = 512;
/// How long the daemon may take to hear a question, and to answer it.
const ANSWER_TIME: Duration = Duration::from_secs(5);

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
    /// The last descriptor is the memory of this region. With one that is opened another goes before it, which ends with
    /// the daemon.
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

/// An answer, and what came with it.
#[derive(Debug)]
pub struct Answered {
    /// On which it was asked.
    pub connection: OwnedFd,
    /// What it says.
    pub reply: Reply,
    /// The memory of a region.
    pub memory: Option<OwnedFd>,
    /// The end for reading of a pipe of which nobody but the daemon has the other.
    pub life: Option<OwnedFd>,
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
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    let at = name_of(name);
    bind(listener.as_raw_fd(), &UnixAddr::new_abstract(at.as_bytes())?)
        .map_err(|errno| taken(errno.into(), name, &at, SockType::SeqPacket))?;
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

/// Asks the daemon `name` of this node.
///
/// # Errors
/// If it is not there, is another user's (and not root's), or does not answer.
pub fn ask(name: &str, ask: &Ask) -> io::Result<Answered> {
    let connection = call(&name_of(name), SockType::SeqPacket, ANSWER_TIME)?;
    setsockopt(&connection, ReceiveTimeout, &time_value(ANSWER_TIME))?;
    expect_trusted(&connection, geteuid().as_raw())?;
    say(connection.as_fd(), ask, &[])?;
    let (reply, mut handed_over) = hear_reply(connection.as_fd())?;
    let (memory, life) = (handed_over.pop(), handed_over.pop());
    Ok(Answered { connection, reply, memory, life })
}

/// Says `what`, and hands descriptors over with it.
///
/// # Errors
/// If the connection does not take it.
pub fn say(
    connection: BorrowedFd<'_>,
    what: &impl Serialize,
    handed_over: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(what).map_err(io::Error::other)?;
    let fds: Vec<RawFd> = handed_over.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let parts = [IoSlice::new(&bytes)];
    sendmsg::<()>(connection.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// What a program asks next. None when it has closed. What it hands over unasked the kernel closes.
///
/// # Errors
/// If there is nothing yet, or what is said means nothing.
pub fn hear(connection: BorrowedFd<'_>) -> io::Result<Option<Ask>> {
    let mut bytes = [0; LONGEST];
    let length = recv(connection.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
    understood(&bytes[..length])
}

/// What the daemon answers, and what comes with it.
fn hear_reply(connection: BorrowedFd<'_>) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let (mut bytes, until) = ([0; LONGEST], Instant::now() + ANSWER_TIME);
    let (length, handed_over) = loop {
        match receive(connection, &mut bytes, MsgFlags::empty()) {
            // A signal: where there is a time, the kernel does not go on by itself.
            Err(error) if error.kind() == ErrorKind::Interrupted && Instant::now() < until => {}
            heard => break heard?,
        }
    };
    let reply = understood(&bytes[..length])?.ok_or(ErrorKind::UnexpectedEof)?;
    Ok((reply, handed_over))
}

/// What was said by a datagram. None if there was none: the other end has closed.
fn understood<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<T>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match postcard::take_from_bytes(bytes) {
        Ok((what, [])) => Ok(Some(what)),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Whether the daemon still has the other end.
pub fn is_connected(connection: BorrowedFd<'_>) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let heard = recv(connection.as_raw_fd(), &mut [0], flags);
    matches!(heard, Err(Errno::EAGAIN | Errno::EINTR))
}

/// Where the daemon `name` listens: a name without a file.
fn name_of(name: &str) -> String {
    format!("{name}/regions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::os::unix::thread::JoinHandleExt;
    use std::thread;

    extern "C" fn nothing(_: libc::c_int) {}

    /// What `call` gives when it would not block.
    fn patiently<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                other => return other.unwrap(),
            }
        }
    }

    /// A program that has a timer, or is measured by one, is answered as any other is.
    #[test]
    fn who_asks_is_answered_whatever_signals_come_meanwhile() {
        let (name, question) = (format!("hand-{}", std::process::id()), Ask::publish(Layout::CELL));
        let listener = serve(&name).unwrap();
        let handler = SigHandler::Handler(nothing);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: what it calls does nothing.
        unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
        let asked = question.clone();
        let asking = thread::spawn(move || ask(&name, &asked).map(|answered| answered.reply));
        let connection = patiently(|| accept(listener.as_fd()));
        assert_eq!(patiently(|| hear(connection.as_fd())), Some(question));
        for _ in 0..100 {
            // SAFETY: it is not joined yet, so that its name is still its own.
            unsafe { libc::pthread_kill(asking.as_pthread_t(), libc::SIGUSR1) };
            thread::park_timeout(Duration::from_micros(500));
        }
        say(connection.as_fd(), &Reply::Gone, &[]).unwrap();
        assert_eq!(asking.join().unwrap().unwrap(), Reply::Gone);
    }
}
