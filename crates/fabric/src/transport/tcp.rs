//! Frames over TCP. What is sent goes to the kernel by one call, head and payload together; what
//! the kernel does not take is kept and goes before what follows. One call reads as many frames as
//! there are; a long payload is read into its own buffer.

use super::assemble::Assembler;
use super::{
    Broken, Ends, GONE_AFTER, Receiver, Receiving, Sender, Sending, Sent, Sink, watch_over,
};
use crate::frame::{HEAD, PIECE_MOST};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, sendmsg};
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// Bytes that are kept for the kernel at most, before a sender has to wait. As much as the kernel
/// itself takes at first; what is over comes from the one frame that was begun.
const KEPT_MOST: usize = 128 << 10;
/// Bytes that are gathered from many short frames for one call.
const GATHERED: usize = 64 << 10;
/// Payloads at least this long are not copied to what is kept, if that can be helped.
const COPIED_MOST: usize = 16 << 10;
/// Payloads at most this long are joined with their heads: a call for one buffer is cheaper than one for two, by more than
/// so many bytes take to be copied.
const JOINED_MOST: usize = 8 << 10;
/// How the kernel is given something.
const CARRY: MsgFlags = MsgFlags::MSG_NOSIGNAL.union(MsgFlags::MSG_DONTWAIT);
/// Bytes that are read ahead: by one call as many short frames as are sent by one.
const AHEAD: usize = GATHERED + COPIED_MOST;
/// Bytes read ahead behind a long payload: what lands there has to be copied to its own buffer. Behind a short one more
/// short ones are likely, and calls are dearer than copies.
const AHEAD_OF_LONG: usize = 4 << 10;
/// Milliseconds of silence after which a node is gone to which something was sent: as many as one has that was sent
/// nothing, and is asked whether it is there.
const UNCONFIRMED_MOST: u32 = 2 * GONE_AFTER * 1000;

/// Both halves of a connection that is set up.
///
/// # Errors
/// If the socket cannot be set to what is needed.
pub fn ends(stream: TcpStream) -> io::Result<Ends> {
    ends_after(stream, Vec::new())
}

/// The same, where frames that are `kept` for it already go before all others.
///
/// # Errors
/// As above.
pub fn ends_after(stream: TcpStream, kept: Vec<u8>) -> io::Result<Ends> {
    watch_over(&stream)?;
    stream.set_nonblocking(true)?;
    let readable = stream.as_fd().try_clone_to_owned()?;
    let writable = stream.as_fd().try_clone_to_owned()?;
    let stream = Arc::new(stream);
    let sender = TcpSender { stream: stream.clone(), kept, carried: 0 };
    let ahead = vec![0; AHEAD].into_boxed_slice();
    let receiver = TcpReceiver { stream, assembler: Assembler::default(), ahead };
    Ok(Ends {
        sender: Sending::new(sender),
        receiver: Receiving::new(receiver),
        readable: vec![readable],
        writable: Some(writable),
        in_memory: false,
        poll_is_enough: true,
        glance: None,
    })
}

struct TcpSender {
    stream: Arc<TcpStream>,
    kept: Vec<u8>,
    /// How many bytes of `kept` the kernel has taken.
    carried: usize,
}

struct TcpReceiver {
    stream: Arc<TcpStream>,
    assembler: Assembler,
    /// Room to read ahead.
    ahead: Box<[u8]>,
}

impl TcpSender {
    /// What is still kept, then `head` and `payload`, by one call.
    fn carry_on(&mut self, head: &[u8], payload: &[u8]) -> Result<(), Broken> {
        if payload.len() <= JOINED_MOST {
            self.kept.extend_from_slice(head);
            self.kept.extend_from_slice(payload);
            return self.carry_kept();
        }
        let kept = &self.kept[self.carried..];
        let fd = self.stream.as_raw_fd();
        let parts = [IoSlice::new(kept), IoSlice::new(head), IoSlice::new(payload)];
        let parts = &parts[usize::from(kept.is_empty())..];
        let mut taken = carried(|| sendmsg::<()>(fd, parts, &[], CARRY, None))?;
        let of_kept = taken.min(kept.len());
        self.carried += of_kept;
        taken -= of_kept;
        self.give_up_carried();
        for part in [head, payload] {
            let of_part = taken.min(part.len());
            self.kept.extend_from_slice(&part[of_part..]);
            taken -= of_part;
        }
        Ok(())
    }

    /// What is kept, by one call.
    fn carry_kept(&mut self) -> Result<(), Broken> {
        let fd = self.stream.as_raw_fd();
        self.carried += carried(|| send(fd, &self.kept[self.carried..], CARRY))?;
        self.give_up_carried();
        Ok(())
    }

    /// Keeps no longer what the kernel has taken: at once if that is all, and else when it is more than what is moved
    /// for it. A link that is never idle always has something left.
    fn give_up_carried(&mut self) {
        if self.carried == self.kept.len() {
            self.kept.clear();
        } else if self.carried >= KEPT_MOST.max(self.left()) {
            self.kept.drain(..self.carried);
        } else {
            return;
        }
        self.carried = 0;
    }

    fn left(&self) -> usize {
        self.kept.len() - self.carried
    }
}

/// How many bytes the kernel takes by `call`.
fn carried(call: impl Fn() -> nix::Result<usize>) -> Result<usize, Broken> {
    loop {
        match call() {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::EAGAIN) => return Ok(0),
            Err(Errno::EINTR) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(Broken::Closed),
            Err(errno) => return Err(Broken::System { call: "send", errno }),
        }
    }
}

impl Sender for TcpSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        if self.left() > KEPT_MOST && !self.flush()? && self.left() > KEPT_MOST {
            return Ok(Sent::Full);
        }
        self.carry_on(head, payload)?;
        Ok(if self.left() == 0 { Sent::Whole } else { Sent::Kept })
    }

    fn send_with_others(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        if payload.len() >= COPIED_MOST || self.left() + HEAD + payload.len() > GATHERED {
            return self.send(head, payload);
        }
        self.kept.extend_from_slice(head);
        self.kept.extend_from_slice(payload);
        Ok(Sent::Kept)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        if self.left() > 0 {
            self.carry_kept()?;
        }
        Ok(self.left() == 0)
    }

    fn falls_asleep(&mut self) -> bool {
        // The kernel has refused bytes, so it reports when it has room.
        self.left() > KEPT_MOST
    }

    fn piece(&self) -> usize {
        PIECE_MOST
    }

    fn look_after(&mut self) -> Result<(), Broken> {
        expect_node(&self.stream)
    }

    fn is_drained(&mut self) -> bool {
        let mut unsent: libc::c_int = 0;
        // SAFETY: the kernel writes one int.
        let result =
            unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) };
        self.left() == 0 && (result != 0 || unsent == 0)
    }
}

/// Whether the other node is there.
///
/// # Errors
/// If it is gone.
pub(crate) fn expect_node(stream: &TcpStream) -> Result<(), Broken> {
    match told_of(stream) {
        Some(info) if is_gone(&info) => {
            Err(Broken::System { call: "send", errno: Errno::ETIMEDOUT })
        }
        _ => Ok(()),
    }
}

/// What the kernel knows of a connection.
fn told_of(stream: &TcpStream) -> Option<libc::tcp_info> {
    // SAFETY: nothing of it has to be anything else than zero.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let (fd, level, option) = (stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes so many bytes at most.
    let result =
        unsafe { libc::getsockopt(fd, level, option, (&raw mut info).cast(), &raw mut length) };
    (result == 0).then_some(info)
}

/// Whether the other node is gone. The kernel does not ask it while something waits, and goes on for a quarter of an
/// hour. Every kernel confirms what is on its way to it, whatever its processes do, and answers when it is asked
/// whether they take more.
fn is_gone(info: &libc::tcp_info) -> bool {
    let is_owed = info.tcpi_unacked > 0 || u32::from(info.tcpi_probes) >= GONE_AFTER;
    is_owed && info.tcpi_last_ack_recv >= UNCONFIRMED_MOST
}

impl TcpReceiver {
    /// Reads what there is: first what is missing of a payload, then ahead. Returns how many bytes
    /// were read ahead; none if nothing has arrived.
    fn read(&mut self) -> Result<Option<usize>, Broken> {
        let fd = self.stream.as_raw_fd();
        let is_long = self.assembler.begun().is_some_and(|length| length >= COPIED_MOST);
        let (bytes, missing) = match self.assembler.missing() {
            // A call for one buffer is cheaper than one for two.
            None => (received(|| recv(fd, &mut self.ahead, MsgFlags::MSG_DONTWAIT))?, 0),
            Some(missing) => {
                let ahead = &mut self.ahead[..if is_long { AHEAD_OF_LONG } else { AHEAD }];
                let parts = [
                    libc::iovec { iov_base: missing.as_mut_ptr().cast(), iov_len: missing.len() },
                    libc::iovec { iov_base: ahead.as_mut_ptr().cast(), iov_len: ahead.len() },
                ];
                let call = || {
                    // SAFETY: the kernel writes into the spare capacity of a buffer and into
                    // `ahead`, which nobody else uses meanwhile.
                    let read = unsafe { libc::readv(fd, parts.as_ptr(), parts.len() as i32) };
                    Errno::result(read).map(|bytes| bytes as usize)
                };
                (received(call)?, missing.len())
            }
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let of_payload = bytes.min(missing);
        // SAFETY: the kernel has written that many bytes there.
        unsafe { self.assembler.filled(of_payload) };
        Ok(Some(bytes - of_payload))
    }
}

/// How many bytes `call` reads; none if nothing has arrived.
fn received(mut call: impl FnMut() -> nix::Result<usize>) -> Result<Option<usize>, Broken> {
    loop {
        match call() {
            Ok(0) | Err(Errno::ECONNRESET) => return Err(Broken::Closed),
            Ok(bytes) => return Ok(Some(bytes)),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Broken::System { call: "recv", errno }),
        }
    }
}

impl Receiver for TcpReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        // A payload that has begun to arrive is worth another look at once.
        loop {
            let Some(ahead) = self.read()? else { return Ok(0) };
            let frames = self.assembler.feed(&self.ahead[..ahead], sink)?;
            if frames > 0 || self.assembler.begun().is_none() {
                return Ok(frames);
            }
        }
    }

    fn falls_asleep(&mut self) -> bool {
        // The kernel reports what it has; what was read ahead is less than a frame.
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{EAGER_MOST, Frame, Head};
    use crate::transport::testing::{Collected, message, streams};
    use nix::sys::socket::sockopt::{KeepAlive, SndBuf};
    use nix::sys::socket::{getsockopt, setsockopt};
    use proptest::prelude::*;
    use std::io::Write;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever the lengths, and whoever waits for whom: the same frames in the same order, and
        /// the sender never keeps much more than its bound.
        #[test]
        fn frames_pass_whole_and_in_order(
            lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..80),
            reads in prop::collection::vec(any::<bool>(), 64),
        ) {
            let (one, other) = streams();
            let (mut sender, mut receiver) = (ends(one).unwrap().sender, ends(other).unwrap().receiver);
            let mut collected = Collected::default();
            let expected: Vec<_> =
                lengths.iter().enumerate().map(|(n, length)| message(n as u32, *length)).collect();
            for (number, (head, payload)) in expected.iter().enumerate() {
                while sender.send(&head.encode(), payload).unwrap() == Sent::Full {
                    receiver.poll(&mut collected).unwrap();
                }
                if reads[number % reads.len()] {
                    receiver.poll(&mut collected).unwrap();
                }
            }
            while collected.0.len() < expected.len() {
                sender.flush().unwrap();
                receiver.poll(&mut collected).unwrap();
            }
            prop_assert!(collected.0 == expected);
        }

        /// Any bytes from the other end: an error or frames, never more memory than a frame may
        /// need.
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let (mut one, other) = streams();
            let mut receiver = ends(other).unwrap().receiver;
            one.write_all(&bytes).unwrap();
            drop(one);
            let mut collected = Collected::default();
            while receiver.poll(&mut collected).is_ok() {}
            prop_assert!(collected.0.iter().all(|(_, payload)| payload.len() <= 500));
        }
    }

    /// A sender that always has more than the kernel takes keeps twice what may wait, and not all that it ever sent.
    #[test]
    fn what_was_carried_is_given_up_by_a_link_that_is_never_idle() {
        let (one, other) = streams();
        // The kernel takes less by a call than a piece is long, or than may wait.
        setsockopt(&one, SndBuf, &(16 << 10)).unwrap();
        one.set_nonblocking(true).unwrap();
        let mut sender = TcpSender { stream: Arc::new(one), kept: Vec::new(), carried: 0 };
        let mut receiver = ends(other).unwrap().receiver;
        let expected: Vec<_> = (0..50).map(piece).collect();
        let mut collected = Collected::default();
        for (head, payload) in &expected {
            while sender.send(&head.encode(), payload).unwrap() == Sent::Full {
                receiver.poll(&mut collected).unwrap();
            }
            assert!(sender.kept.len() <= 2 * (KEPT_MOST + HEAD + PIECE_MOST));
        }
        while collected.0.len() < expected.len() {
            sender.flush().unwrap();
            receiver.poll(&mut collected).unwrap();
        }
        assert!(collected.0 == expected);
    }

    /// Of many short frames as many are read by one call behind one that has begun to arrive as by any other.
    #[test]
    fn short_frames_behind_a_part_of_one_are_read_with_its_rest() {
        let (mut one, other) = streams();
        let mut receiver = ends(other).unwrap().receiver;
        let expected: Vec<_> = (0..6).map(|number| message(number, 8 << 10)).collect();
        let bytes: Vec<u8> = expected
            .iter()
            .flat_map(|(head, payload)| [&head.encode(), &payload[..]].concat())
            .collect();
        let (begun, rest) = bytes.split_at(100);
        let mut collected = Collected::default();
        one.write_all(begun).unwrap();
        assert_eq!(receiver.poll(&mut collected), Ok(0));
        one.write_all(rest).unwrap();
        assert_eq!(receiver.poll(&mut collected), Ok(expected.len()));
        assert!(collected.0 == expected);
    }

    /// One that is unlike those of other numbers.
    fn piece(token: u32) -> (Head, Vec<u8>) {
        let head = Head { frame: Frame::Piece { token }, length: PIECE_MOST as u32, seen: 0 };
        (head, vec![token as u8; PIECE_MOST])
    }

    /// Idle links are asked whether the other node is there, and busy ones are looked at: silence is its end where an
    /// answer is owed, and not where it was sent nothing, or takes nothing.
    #[test]
    fn a_node_that_is_gone_is_found_out() {
        let (one, _other) = streams();
        let mut end = ends(one).unwrap();
        assert!(getsockopt(&end.readable[0], KeepAlive).unwrap());
        end.sender.look_after().unwrap();
        // SAFETY: nothing of it has to be anything else than zero.
        let quiet: libc::tcp_info = unsafe { std::mem::zeroed() };
        let silent = libc::tcp_info { tcpi_last_ack_recv: UNCONFIRMED_MOST, ..quiet };
        let busy = libc::tcp_info { tcpi_unacked: 1, ..quiet };
        let gone = libc::tcp_info { tcpi_unacked: 1, ..silent };
        let full = libc::tcp_info { tcpi_probes: GONE_AFTER as u8, ..silent };
        let found = [silent, busy, gone, full].map(|info| is_gone(&info));
        assert_eq!(found, [false, false, true, true]);
    }
}
