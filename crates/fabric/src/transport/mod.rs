//! What carries frames between two contexts. A transport keeps the order, and delivers whole frames
//! or breaks. It has two halves, so that a thread that sends and a thread that receives do not wait
//! for each other.

pub mod assemble;
pub mod native;
pub mod rails;
pub mod reliable;
pub mod shared;
pub mod tcp;
pub mod udp;

mod batch;
mod halves;
#[cfg(test)]
pub mod testing;

use crate::frame::{Frame, HEAD, Head, Malformed};
use crate::payload::Buffer;
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval};
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;
use thiserror::Error;

pub use halves::{Receiving, Sending};

/// Seconds after which a node that says nothing is asked whether it is there, and times that it is asked, a
/// second apart.
const GONE_AFTER: u32 = 5;
/// How often it is looked whether nodes are there: a part of the time after which one that does not answer is gone.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Whether a frame was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Whole, and carried.
    Whole,
    /// Whole; some of it waits for [`Sender::flush`].
    Kept,
    /// Not at all: too much waits to be carried.
    Full,
}

/// Why nothing can be carried any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Broken {
    /// The other end closed it, or its process ended.
    #[error("the other end closed the connection")]
    Closed,
    /// The other end sent what is no frame.
    #[error("the other end sent a malformed frame: {0}")]
    Malformed(#[from] Malformed),
    /// The kernel says so.
    #[error("{call}: {}", errno.desc())]
    System {
        /// The call.
        call: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// The library that carries says so.
    #[error("{0}")]
    Library(String),
    /// No rail could be made.
    #[error("no network and no bridge has led to the other end for {seconds} s")]
    NoWay {
        /// For how long.
        seconds: u64,
    },
    /// The other end does not take what it asked for.
    #[error("{waiting} answers wait for the other end to read them")]
    Unread {
        /// How many.
        waiting: usize,
    },
}

/// The half that sends.
pub trait Sender: Send {
    /// Takes a frame, whole or not at all.
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken>;

    /// The same for a frame that is one of many: it may wait for [`Sender::flush`], to be carried
    /// with others.
    fn send_with_others(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        self.send(head, payload)
    }

    /// The same for a payload that is given: where it would have to be copied to be kept, it may be taken, which leaves an
    /// empty one in its place. An error, or [`Sent::Full`], leaves it as it is.
    fn give_with_others(
        &mut self,
        head: &[u8; HEAD],
        payload: &mut Buffer,
    ) -> Result<Sent, Broken> {
        self.send_with_others(head, payload)
    }

    /// The same for a frame that is not one of many: it goes at once, as by [`Sender::send`].
    fn give(&mut self, head: &[u8; HEAD], payload: &mut Buffer) -> Result<Sent, Broken> {
        self.send(head, payload)
    }

    /// Carries on what was taken and not yet carried. Returns whether nothing is left.
    fn flush(&mut self) -> Result<bool, Broken>;

    /// A thread is going to sleep because of [`Sent::Full`]: what is watched becomes ready when
    /// there is room. Returns false if there is room already, for any frame; threads that have gone
    /// to sleep before are told all the same.
    fn falls_asleep(&mut self) -> bool;

    /// The best length of a piece of a long message.
    fn piece(&self) -> usize;

    /// Whether nothing has to be looked after: if not, [`Sender::flush`] is to be called again and
    /// again, although nothing is left to be carried now.
    fn is_settled(&mut self) -> bool {
        true
    }

    /// Whether [`Sender::look_after`] is to be called, as it is where the other end may be on another node.
    fn is_looked_after(&self) -> bool {
        true
    }

    /// Finds out what nothing else tells, by a system call: it is called every few seconds.
    fn look_after(&mut self) -> Result<(), Broken> {
        Ok(())
    }

    /// Whether the other end's kernel, or memory, has everything that was taken.
    fn is_drained(&mut self) -> bool;
}

/// The half that receives.
pub trait Receiver: Send {
    /// Gives frames that have arrived to `sink`, a bounded number. Returns how many.
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken>;

    /// Whether what has arrived is still to be confirmed: by what is sent next, or by
    /// [`Sender::flush`], which then is to be called again and again.
    fn owes(&self) -> bool {
        false
    }

    /// Whether more has probably arrived than the last [`Receiver::poll`] has read: one more is cheaper then than to ask
    /// what is watched.
    fn has_more(&self) -> bool {
        false
    }

    /// The caller is going to sleep: what is watched becomes ready when a frame arrives. Returns
    /// false if one is there already.
    fn falls_asleep(&mut self) -> bool;

    /// The caller is awake again: nobody has to wake it.
    fn wakes_up(&mut self);

    /// What is watched became ready.
    fn signalled(&mut self);
}

/// Where frames go.
pub trait Sink {
    /// That of the long message `token`, to whose end the next `length` bytes of it are to be appended.
    fn buffer_of_piece(&mut self, token: u32, length: usize) -> Result<Vec<u8>, Malformed>;

    /// A frame has arrived; `payload` is the vector of [`buffer`], or a buffer of its own if it is no piece.
    fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed>;

    /// The same of a short one, whose payload is made where it stays: moved on the way, it would be as far again.
    #[inline(always)]
    fn short_frame(
        &mut self,
        head: &Head,
        payload: impl FnOnce() -> Buffer,
    ) -> Result<(), Malformed>
    where
        Self: Sized,
    {
        self.frame(head, payload())
    }

    /// Whether nobody waits for what comes next: it may be left where it is until somebody does.
    fn has_enough(&self) -> bool {
        false
    }
}

impl Sink for &mut dyn Sink {
    fn buffer_of_piece(&mut self, token: u32, length: usize) -> Result<Vec<u8>, Malformed> {
        (**self).buffer_of_piece(token, length)
    }

    fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
        (**self).frame(head, payload)
    }

    fn has_enough(&self) -> bool {
        (**self).has_enough()
    }
}

/// To whose end the payload of `head` is to be appended.
#[inline(always)]
pub(crate) fn buffer(sink: &mut (impl Sink + ?Sized), head: &Head) -> Result<Vec<u8>, Malformed> {
    let length = head.length as usize;
    match head.frame {
        Frame::Piece { token } => sink.buffer_of_piece(token, length),
        _ => Ok(Vec::with_capacity(length)),
    }
}

/// Both halves of a connection, and what to watch while asleep.
pub struct Ends {
    /// Sends.
    pub sender: Sending,
    /// Receives.
    pub receiver: Receiving,
    /// Ready for reading when [`Receiver`] or [`Sender`] have something to do.
    pub readable: Vec<OwnedFd>,
    /// Becomes ready for writing when there is room again.
    pub writable: Option<OwnedFd>,
    /// Looking for frames needs no system call.
    pub in_memory: bool,
    /// [`Receiver::poll`] finds out everything, the end too: who polls all the while need not watch, and what is watched
    /// costs the kernel time for everything that arrives.
    pub poll_is_enough: bool,
    /// Whether [`Receiver::poll`] may have something to do, told without a lock; none where only that
    /// tells.
    pub glance: Option<Box<dyn Glance>>,
}

/// Looks without a lock.
pub trait Glance: Send + Sync {
    /// Whether there may be something to do. It may be wrong for a moment, but not for ever.
    fn may_have_frames(&self) -> bool;

    /// If both halves are no more, the memory that is looked at is given back. There is nothing to do ever again, for whoever
    /// still looks.
    fn end(&self);
}

/// Wakes whoever sleeps on `bell`.
fn ring_bell(bell: &EventFd) -> Result<(), Broken> {
    match bell.write(1) {
        // A full counter wakes as well as one that is not.
        Ok(_) | Err(Errno::EAGAIN) => Ok(()),
        Err(errno) => Err(Broken::System { call: "write to an event counter", errno }),
    }
}

/// Has the kernel ask whether the other node is there when it says nothing: its kernel answers, whatever its
/// processes do. What is sent is sent at once.
///
/// # Errors
/// If the socket cannot be set to that.
pub(crate) fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, KeepAlive, &true)?;
    setsockopt(stream, TcpKeepIdle, &GONE_AFTER)?;
    setsockopt(stream, TcpKeepInterval, &1)?;
    setsockopt(stream, TcpKeepCount, &GONE_AFTER)?;
    Ok(())
}

/// Whether the other end has not closed a connection that is not blocking, nor said what nobody of ours
/// says there.
fn is_quiet(mut stream: &TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Err(error) if is_passing(&error))
}

/// Whether the same call may do later.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
