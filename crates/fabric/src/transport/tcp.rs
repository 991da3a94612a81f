//! Frames over TCP. What is sent goes to the kernel by one call, head and payload together; what
//! the kernel does not take is kept and goes before what follows. One call reads as many frames as
//! there are; a long payload is read into its own buffer.

use super::{Broken, Ends, Receiver, Sender, Sent, Sink};
use crate::frame::{HEAD, Head, PIECE_MOST};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, sendmsg};
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
/// Bytes that are read ahead: several short frames by one call.
const AHEAD: usize = 64 << 10;
/// Bytes read ahead behind a long payload: what lands there has to be copied to its own buffer.
const AHEAD_OF_LONG: usize = 4 << 10;

/// Both halves of a connection that is set up.
///
/// # Errors
/// If the socket cannot be set to what is needed.
pub fn ends(stream: TcpStream) -> io::Result<Ends> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let readable = stream.as_fd().try_clone_to_owned()?;
    let writable = stream.as_fd().try_clone_to_owned()?;
    let stream = Arc::new(stream);
    let sender = TcpSender { stream: stream.clone(), kept: Vec::new(), carried: 0 };
    let ahead = vec![0; AHEAD].into_boxed_slice();
    let receiver = TcpReceiver { stream, ahead, start: 0, end: 0, begun: None };
    Ok(Ends {
        sender: Box::new(sender),
        receiver: Box::new(receiver),
        readable: vec![readable],
        writable: Some(writable),
        in_memory: false,
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
    ahead: Box<[u8]>,
    /// What was read ahead and is not yet understood: `ahead[start..end]`.
    start: usize,
    end: usize,
    begun: Option<Begun>,
}

/// A frame whose payload is not complete.
struct Begun {
    head: Head,
    buffer: Vec<u8>,
    missing: usize,
}

impl TcpSender {
    /// Gives `parts` to the kernel. Returns how many bytes it took.
    fn carry(&self, parts: &[IoSlice<'_>]) -> Result<usize, Broken> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            match sendmsg::<()>(self.stream.as_raw_fd(), parts, &[], flags, None) {
                Ok(bytes) => return Ok(bytes),
                Err(Errno::EAGAIN) => return Ok(0),
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(Broken::Closed),
                Err(errno) => return Err(Broken::System { call: "sendmsg", errno }),
            }
        }
    }

    /// What is still kept, then `head` and `payload`, by one call.
    fn carry_on(&mut self, head: &[u8], payload: &[u8]) -> Result<(), Broken> {
        let kept = &self.kept[self.carried..];
        let parts = [IoSlice::new(kept), IoSlice::new(head), IoSlice::new(payload)];
        let first = usize::from(kept.is_empty());
        let mut taken = self.carry(&parts[first..])?;
        let of_kept = taken.min(kept.len());
        self.carried += of_kept;
        taken -= of_kept;
        if self.carried == self.kept.len() {
            self.kept.clear();
            self.carried = 0;
        }
        for part in [head, payload] {
            let of_part = taken.min(part.len());
            self.kept.extend_from_slice(&part[of_part..]);
            taken -= of_part;
        }
        Ok(())
    }

    fn left(&self) -> usize {
        self.kept.len() - self.carried
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
            self.carry_on(&[], &[])?;
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

    fn is_drained(&mut self) -> bool {
        let mut unsent: libc::c_int = 0;
        // SAFETY: the kernel writes one int.
        let result =
            unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) };
        self.left() == 0 && (result != 0 || unsent == 0)
    }
}

impl TcpReceiver {
    /// Reads what there is: first what is missing of a payload, then ahead. Returns how many bytes,
    /// none if nothing has arrived.
    fn read(&mut self) -> Result<usize, Broken> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let mut ahead = &mut self.ahead[self.end..];
        if let Some(begun) = &mut self.begun {
            begun.buffer.reserve(begun.missing);
            let spare = &mut begun.buffer.spare_capacity_mut()[..begun.missing];
            parts[0] = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
            ahead = &mut ahead[..AHEAD_OF_LONG];
        }
        parts[1] = libc::iovec { iov_base: ahead.as_mut_ptr().cast(), iov_len: ahead.len() };
        let used = if self.begun.is_some() { &parts[..] } else { &parts[1..] };
        let result = loop {
            // SAFETY: the kernel writes into the spare capacity of a buffer and into `ahead`, which
            // nobody else uses meanwhile.
            let result = unsafe {
                libc::readv(self.stream.as_raw_fd(), used.as_ptr(), used.len() as libc::c_int)
            };
            match Errno::result(result) {
                Err(Errno::EINTR) => {}
                other => break other,
            }
        };
        let bytes = match result {
            Ok(0) => return Err(Broken::Closed),
            Ok(bytes) => bytes as usize,
            Err(Errno::EAGAIN) => return Ok(0),
            Err(Errno::ECONNRESET) => return Err(Broken::Closed),
            Err(errno) => return Err(Broken::System { call: "readv", errno }),
        };
        let of_payload = match &mut self.begun {
            Some(begun) => {
                let of_payload = bytes.min(begun.missing);
                // SAFETY: the kernel has written that many bytes behind the buffer's length.
                unsafe { begun.buffer.set_len(begun.buffer.len() + of_payload) };
                begun.missing -= of_payload;
                of_payload
            }
            None => 0,
        };
        self.end += bytes - of_payload;
        Ok(bytes)
    }

    /// Gives every complete frame that was read to `sink`.
    fn deliver(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        let mut frames = 0;
        if let Some(begun) = self.begun.take_if(|begun| begun.missing == 0) {
            sink.frame(begun.head, begun.buffer)?;
            frames += 1;
        }
        if self.begun.is_some() {
            return Ok(frames);
        }
        while let Some(bytes) = self.ahead[self.start..self.end].first_chunk() {
            let head = Head::decode(bytes)?;
            self.start += HEAD;
            let mut buffer = sink.buffer(&head)?;
            let length = head.length as usize;
            let here = length.min(self.end - self.start);
            buffer.extend_from_slice(&self.ahead[self.start..self.start + here]);
            self.start += here;
            if here < length {
                self.begun = Some(Begun { head, buffer, missing: length - here });
                break;
            }
            sink.frame(head, buffer)?;
            frames += 1;
        }
        Ok(frames)
    }
}

impl Receiver for TcpReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        // A payload that has begun to arrive is worth another look at once.
        loop {
            if self.read()? == 0 {
                return Ok(0);
            }
            let frames = self.deliver(sink)?;
            if frames > 0 || self.begun.is_none() {
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
    use crate::frame::{EAGER_MOST, Frame, Malformed};
    use crate::id::Place;
    use crate::matching::Tag;
    use proptest::prelude::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[derive(Default)]
    struct Collected(Vec<(Head, Vec<u8>)>);

    impl Sink for Collected {
        fn buffer(&mut self, head: &Head) -> Result<Vec<u8>, Malformed> {
            Ok(Vec::with_capacity(head.length as usize))
        }
        fn frame(&mut self, head: Head, buffer: Vec<u8>) -> Result<(), Malformed> {
            self.0.push((head, buffer));
            Ok(())
        }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn message(number: u32, length: usize) -> (Head, Vec<u8>) {
        let place = Place { slot: number, generation: 1 };
        let frame = Frame::Message { from: place, to: place, tag: Tag(u64::from(number)) };
        let head = Head { frame, length: length as u32, seen: number };
        (head, (0..length).map(|at| (at as u32 ^ number) as u8).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever the lengths, and whoever waits for whom: the same frames in the same order, and
        /// the sender never keeps much more than its bound.
        #[test]
        fn frames_pass_whole_and_in_order(
            lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..80),
            reads in prop::collection::vec(any::<bool>(), 64),
        ) {
            let (one, other) = pair();
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
            let (mut one, other) = pair();
            let mut receiver = ends(other).unwrap().receiver;
            one.write_all(&bytes).unwrap();
            drop(one);
            let mut collected = Collected::default();
            while receiver.poll(&mut collected).is_ok() {}
            prop_assert!(collected.0.iter().all(|(_, payload)| payload.len() <= 500));
        }
    }
}
