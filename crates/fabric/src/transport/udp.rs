//! Frames over UDP, with reliability of our own: many datagrams by one call (GSO), and as many read
//! (GRO). The connection is made over TCP, which carries little but a port afterwards; its end
//! tells that the other process has ended.
//!
//! A network may carry TCP and no datagrams, or no long ones, and then nothing else would ever tell.
//! That nothing is confirmed does not: a process that computes or is stopped confirms nothing, and over
//! TCP it is waited for. So it is asked over TCP. Who reads datagrams answers, when it has read all
//! that are there and has said so by one more; if that does not help for long, the network is cut
//! ([`Sending::answered`]).

use super::assemble::Assembler;
use super::batch::Expected;
use super::reliable::{self, Heard, Receiving, Segment, Sending};
use super::{Broken, Ends, GONE_AFTER, Receiver, Sender, Sent, Sink, is_passing, watch_over};
use crate::frame::{HEAD, PIECE_MOST};
use crate::progress::lock;
use keeptime_model::units::Nanos;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{
    IpMtu, RcvBuf, RcvBufForce, SndBuf, TcpUserTimeout, UdpGroSegment,
};
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, setsockopt};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What the kernel is asked to keep of what arrives.
const RECEIVED_MOST: usize = 8 << 20;
/// Most bytes, and datagrams, of one call: as the kernel takes.
const BATCH: usize = 65_507;
const BATCH_SEGMENTS: usize = 64;
/// A datagram's first bytes: which connection it belongs to. What is left of an older one with the
/// same ports is not taken for it.
const TOKEN: usize = 8;
/// Bytes of a datagram before those of the stream, where it says of nothing behind a gap.
const BEFORE: usize = TOKEN + reliable::HEAD;
/// Bytes of IP and UDP before a datagram.
const BELOW_4: usize = 20 + 8;
const BELOW_6: usize = 40 + 8;
/// Longest segment, where packets could be longer: eight of them fill a call.
const SEGMENT_MOST: usize = (8 << 10) - 8 - BEFORE;
/// Until the path is known.
const SEGMENT_FIRST: usize = 1200;
/// Calls that read before somebody else gets a turn. After a long message there is none: who takes
/// it before the next is read finds it in its cache, and its buffer serves for the next.
const READS_MOST: usize = 2;
/// Bytes of a stream that are confirmed together, if nothing that goes the other way says so before.
const CONFIRMED: usize = 10 * BATCH;
/// How long it is left to others to say what has arrived, when nothing more arrives. Much less than
/// after what silence something is sent again.
const CONFIRMED_AFTER: Nanos = Nanos::new(100_000);
/// Bytes of a stream that are gathered: who receives them is woken once for all of these calls.
const GATHERED: usize = 4 * BATCH;
/// While so much is on the way, what fills no call waits for more: it would arrive no sooner.
const BUSY: u64 = GATHERED as u64;
/// Bytes of a port on the connection over TCP.
const PORT: usize = 2;
/// What may follow there: whether this process takes what arrives, and that the other one does.
const ASKED: u8 = b'?';
const ANSWERED: u8 = b'!';
/// Such words that are read at once: each end has one question on its way at most.
const WORDS_MOST: usize = 2;
/// Milliseconds after which a node is gone whose kernel does not confirm a word: the kernel does not ask a node that
/// owes it something whether it is there. As long as one has that owes nothing.
const UNCONFIRMED_MOST: u32 = 2 * GONE_AFTER * 1000;

/// The caller's side, before the other one has said its port.
///
/// # Errors
/// If a socket cannot be set to what is needed.
pub fn call(stream: &TcpStream) -> io::Result<UdpSocket> {
    UdpSocket::bind((stream.local_addr()?.ip(), 0))
}

/// The caller's halves. Nothing is sent until the other side has said its port on `stream`.
///
/// # Errors
/// As above.
pub fn called(stream: TcpStream, socket: UdpSocket, token: u64) -> io::Result<Ends> {
    ends(stream, socket, token, false)
}

/// The halves of the one who is called: the caller reads at `port`.
///
/// # Errors
/// As above.
pub fn accept(mut stream: TcpStream, port: u16, token: u64) -> io::Result<Ends> {
    let socket = UdpSocket::bind((stream.local_addr()?.ip(), 0))?;
    socket.connect((stream.peer_addr()?.ip(), port))?;
    stream.write_all(&socket.local_addr()?.port().to_le_bytes())?;
    ends(stream, socket, token, true)
}

fn ends(stream: TcpStream, socket: UdpSocket, token: u64, connected: bool) -> io::Result<Ends> {
    stream.set_nonblocking(true)?;
    watch_over(&stream)?;
    setsockopt(&stream, TcpUserTimeout, &UNCONFIRMED_MOST)?;
    socket.set_nonblocking(true)?;
    // Without it datagrams are read one by one.
    let _ = setsockopt(&socket, UdpGroSegment, &true);
    // More than is allowed to everybody, if this process may.
    if setsockopt(&socket, RcvBufForce, &RECEIVED_MOST).is_err() {
        setsockopt(&socket, RcvBuf, &RECEIVED_MOST)?;
    }
    setsockopt(&socket, SndBuf, &RECEIVED_MOST)?;
    // The kernel counts more than the bytes themselves: up to twice as much.
    let room = (getsockopt(&socket, RcvBuf)? / 3).min(reliable::KEPT_MOST) as u32;
    let readable = vec![socket.as_fd().try_clone_to_owned()?, stream.as_fd().try_clone_to_owned()?];
    let start = Instant::now();
    let sending = Sending::new(SEGMENT_FIRST, Nanos::new(0));
    let heard = Heard { room, ..Heard::default() };
    let batch_most = BATCH_SEGMENTS;
    let (heads, unsaid, unsaid_since) = (Vec::new(), 0, Nanos::new(0));
    let state = State { sending, heard, unsaid, unsaid_since, heads, batch_most };
    let state = Mutex::new(state);
    let shared = Shared {
        socket,
        stream,
        token,
        start,
        connected: AtomicBool::new(connected),
        asked: AtomicBool::new(false),
        state,
    };
    if connected {
        shared.learn_path(&mut lock(&shared.state));
    }
    let shared = Arc::new(shared);
    let receiver = UdpReceiver {
        shared: shared.clone(),
        peer: Vec::new(),
        receiving: Receiving::default(),
        assembler: Assembler::default(),
        room,
        bytes: vec![0; 1 << 16].into_boxed_slice(),
        segment: 0,
        may_have_closed: false,
        closed: false,
    };
    Ok(Ends {
        sender: Box::new(UdpSender(shared)),
        receiver: Box::new(receiver),
        readable,
        writable: None,
        in_memory: false,
        poll_is_enough: false,
        glance: None,
    })
}

/// What both halves use.
struct Shared {
    socket: UdpSocket,
    /// The connection over TCP.
    stream: TcpStream,
    token: u64,
    start: Instant,
    /// The other side's port is known.
    connected: AtomicBool,
    /// The other process was asked, and has not answered.
    asked: AtomicBool,
    state: Mutex<State>,
}

struct State {
    sending: Sending,
    /// What has arrived. Every datagram says so.
    heard: Heard,
    /// Bytes that have arrived since one was sent, and when the first of them did.
    unsaid: usize,
    unsaid_since: Nanos,
    /// Heads of the datagrams of one call.
    heads: Vec<u8>,
    /// Datagrams of one call at most.
    batch_most: usize,
}

struct UdpSender(Arc<Shared>);

struct UdpReceiver {
    shared: Arc<Shared>,
    /// What the other side has said of its port.
    peer: Vec<u8>,
    receiving: Receiving,
    assembler: Assembler,
    room: u32,
    /// A batch, but for those of its bytes that were read to where they belong.
    bytes: Box<[u8]>,
    /// Length of the datagrams of the batches before.
    segment: usize,
    /// The connection over TCP may have ended, or say something.
    may_have_closed: bool,
    /// The other process has ended; what it had sent is still read.
    closed: bool,
}

impl Shared {
    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }

    /// Segments are as long as the path's packets allow.
    fn learn_path(&self, state: &mut State) {
        // A socket that does not say keeps what every path can carry.
        if let (Ok(mtu), Ok(peer)) = (getsockopt(&self.socket, IpMtu), self.socket.peer_addr()) {
            let most = (mtu as usize).saturating_sub(below(peer.ip()) + BEFORE);
            state.sending.set_segment_most(most.clamp(SEGMENT_FIRST, SEGMENT_MOST));
        }
    }

    /// Sends what may be sent now; what fills no call only if little else is on the way.
    fn transmit_rest(&self, state: &mut State) -> Result<(), Broken> {
        let is_busy = state.sending.on_the_way() >= BUSY;
        self.transmit(state, if is_busy { BATCH } else { 0 })
    }

    /// Sends what may be sent now, as long as `least` bytes are unsent.
    fn transmit(&self, state: &mut State, least: usize) -> Result<(), Broken> {
        if !self.connected.load(Acquire) {
            return Ok(());
        }
        let due = |state: &State| state.sending.unsent() >= least || state.sending.has_lost();
        if !due(state) {
            return Ok(());
        }
        let now = self.now();
        let mut next = None;
        while next.is_some() || due(state) {
            let Some(first) = next.take().or_else(|| state.sending.next(now)) else { break };
            let mut batch = [first; BATCH_SEGMENTS];
            let mut count = 1;
            // All of a call are of one length, but for the last, which may be shorter.
            while count < state.batch_most
                && (count + 1) * (first.length + BEFORE) <= BATCH
                && batch[count - 1].length == first.length
            {
                next = state.sending.next(now);
                match next.take_if(|segment| segment.length <= first.length) {
                    Some(segment) => batch[count] = segment,
                    None => break,
                }
                count += 1;
            }
            self.send_batch(state, &batch[..count])?;
        }
        Ok(())
    }

    fn send_batch(&self, state: &mut State, batch: &[Segment]) -> Result<(), Broken> {
        match self.send_at_once(state, batch) {
            // The path takes less than it did, or the device cannot divide: then the kernel divides
            // each, or it takes them one by one.
            Err(errno @ (Errno::EINVAL | Errno::EMSGSIZE | Errno::EIO)) if batch.len() > 1 => {
                self.learn_path(state);
                if errno == Errno::EIO {
                    state.batch_most = 1;
                }
                let mut each = batch.chunks(1);
                each.try_for_each(|one| passed(self.send_at_once(state, one)))
            }
            result => passed(result),
        }
    }

    fn send_at_once(&self, state: &mut State, batch: &[Segment]) -> nix::Result<()> {
        let State { sending, heard, heads, .. } = state;
        heads.clear();
        let heard = Heard { ranges: Vec::new(), ..*heard };
        for segment in batch {
            self.head(segment.offset, &heard, heads);
        }
        let mut parts = [IoSlice::new(&[]); 3 * BATCH_SEGMENTS];
        let mut count = 0;
        for (segment, head) in batch.iter().zip(heads.chunks_exact(BEFORE)) {
            let (first, second) = sending.bytes(*segment);
            for part in [head, first, second].into_iter().filter(|part| !part.is_empty()) {
                parts[count] = IoSlice::new(part);
                count += 1;
            }
        }
        let size = (BEFORE + batch[0].length) as u16;
        let control = [ControlMessage::UdpGsoSegments(&size)];
        self.send(&parts[..count], if batch.len() > 1 { &control } else { &[] })?;
        state.unsaid = 0;
        Ok(())
    }

    /// Says what has arrived, and what of that is behind a gap.
    fn confirm(&self, state: &mut State) -> Result<(), Broken> {
        state.unsaid = 0;
        let mut head = Vec::new();
        self.head(0, &state.heard, &mut head);
        passed(self.send(&[IoSlice::new(&head)], &[]))
    }

    /// The same if nothing else has said so for too long.
    fn confirm_late(&self, state: &mut State) -> Result<(), Broken> {
        let is_late = |since: Nanos| self.now() >= since.saturating_add(CONFIRMED_AFTER);
        if state.unsaid > 0 && is_late(state.unsaid_since) { self.confirm(state) } else { Ok(()) }
    }

    fn head(&self, offset: u64, heard: &Heard, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.token.to_le_bytes());
        reliable::encode(offset, heard, bytes);
    }

    fn send(&self, parts: &[IoSlice<'_>], control: &[ControlMessage<'_>]) -> nix::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(self.socket.as_raw_fd(), parts, control, flags, None).map(drop)
    }

    /// Says a word on the connection over TCP. Returns whether that is taken.
    fn say(&self, word: u8) -> bool {
        (&self.stream).write(&[word]).is_ok()
    }
}

/// Reads a batch of datagrams into `bytes`, and the parts of it that are `expected` to be the payload's into `missing`.
/// Returns its bytes in all, and those of each of its datagrams, but for the last.
fn receive(
    fd: RawFd,
    bytes: &mut [u8],
    missing: &mut [MaybeUninit<u8>],
    expected: Option<Expected>,
) -> nix::Result<(usize, usize)> {
    let part = |base: *mut u8, length| libc::iovec { iov_base: base.cast(), iov_len: length };
    let mut parts = [part(std::ptr::null_mut(), 0); 2 * BATCH_SEGMENTS + 1];
    let mut count = 0;
    let (mut bytes, mut missing, mut at) = (bytes, missing, 0);
    let length = bytes.len();
    for place in expected.into_iter().flat_map(|expected| expected.parts(length)) {
        let (before, rest) = bytes.split_at_mut(place.start - at);
        let (here, others) = missing.split_at_mut(place.len());
        parts[count] = part(before.as_mut_ptr(), before.len());
        parts[count + 1] = part(here.as_mut_ptr().cast(), here.len());
        count += 2;
        (bytes, missing, at) = (&mut rest[place.len()..], others, place.end);
    }
    parts[count] = part(bytes.as_mut_ptr(), bytes.len());
    // One word for the length of datagrams, aligned as its head is.
    let mut control = [0_u64; 4];
    // SAFETY: nothing of it has to be anything else than zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = count + 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the parts are of `bytes` and `missing`, none of another; the kernel writes there and to `control`.
    let read = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
    let read = Errno::result(read)? as usize;
    // SAFETY: the kernel has said how much of `control` there is.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let says =
        |head: &&libc::cmsghdr| (head.cmsg_level, head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
    let segment = head.filter(says).map_or(read, |head| {
        // SAFETY: this one has an int.
        let size = unsafe { libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned() };
        size as usize
    });
    Ok((read, segment))
}

/// What is before a datagram to `peer`; an IPv6 address that maps one of IPv4 is one of that.
fn below(peer: IpAddr) -> usize {
    match peer.to_canonical() {
        IpAddr::V4(_) => BELOW_4,
        IpAddr::V6(_) => BELOW_6,
    }
}

/// What the kernel has no room for, or what it could not deliver just now, is lost, as it may be on
/// its way.
fn passed(sent: nix::Result<()>) -> Result<(), Broken> {
    match sent {
        Ok(()) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR | Errno::ECONNREFUSED) => Ok(()),
        // Networks that go down come back; if not, the other process answers, and nothing is confirmed.
        Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EPERM) => Ok(()),
        Err(errno) => Err(Broken::System { call: "sendmsg", errno }),
    }
}

impl Sender for UdpSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let sent = self.send_with_others(head, payload)?;
        if sent == Sent::Kept {
            self.0.transmit(&mut lock(&self.0.state), 0)?;
        }
        Ok(sent)
    }

    fn send_with_others(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let mut state = lock(&self.0.state);
        if state.sending.room() < HEAD + payload.len() {
            return Ok(Sent::Full);
        }
        state.sending.write(head);
        state.sending.write(payload);
        self.0.transmit(&mut state, GATHERED)?;
        // Until the other side has said that it is there.
        Ok(Sent::Kept)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut state = lock(&self.0.state);
        if self.0.connected.load(Acquire) {
            state.sending.expire(self.0.now());
            self.0.transmit_rest(&mut state)?;
            self.0.confirm_late(&mut state)?;
        }
        Ok(state.sending.unsent() == 0 || state.sending.room() >= reliable::KEPT_MOST / 2)
    }

    fn falls_asleep(&mut self) -> bool {
        // What makes room arrives on the socket.
        lock(&self.0.state).sending.room() < PIECE_MOST + HEAD
    }

    fn piece(&self) -> usize {
        PIECE_MOST
    }

    /// Whoever reads what arrives hears the answer.
    fn look_after(&mut self) -> Result<(), Broken> {
        let is_doubtful = lock(&self.0.state).sending.is_doubtful();
        // Before it is said: the answer may be heard at once.
        if is_doubtful && !self.0.asked.swap(true, Relaxed) && !self.0.say(ASKED) {
            self.0.asked.store(false, Relaxed);
        }
        Ok(())
    }

    fn is_drained(&mut self) -> bool {
        self.is_settled()
    }

    fn is_settled(&mut self) -> bool {
        let state = lock(&self.0.state);
        state.sending.is_settled() && state.unsaid == 0
    }
}

impl UdpReceiver {
    /// Reads once and handles what that was. Returns how many frames, and bytes of the stream; none
    /// if nothing had arrived.
    fn read(&mut self, sink: &mut dyn Sink) -> Result<Option<(usize, usize)>, Broken> {
        // Behind a gap nothing goes on with a payload.
        let missing =
            self.assembler.missing().filter(|_| !self.receiving.has_gap()).unwrap_or_default();
        let count = (self.bytes.len() / self.segment.max(1)).min(BATCH_SEGMENTS);
        let expected = Expected::new(self.segment, BEFORE, count, missing.len());
        let fd = self.shared.socket.as_raw_fd();
        let (length, segment) = match receive(fd, &mut self.bytes, missing, expected) {
            Ok(arrived) => arrived,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            // It has ended, or not begun: the connection over TCP tells which.
            Err(Errno::ECONNREFUSED) => return Ok(None),
            Err(errno) => return Err(Broken::System { call: "recvmsg", errno }),
        };
        let placed = expected.map_or(0, |expected| self.keep_placed(expected, length, segment));
        // A shorter one by itself is the end of something.
        if length > segment || segment > self.segment {
            self.segment = segment;
        }
        let (mut frames, mut arrived) = (0, 0);
        let mut last: Option<Heard> = None;
        for (number, datagram) in self.bytes[..length].chunks(segment.max(1)).enumerate() {
            let Some((token, rest)) = datagram.split_first_chunk() else { continue };
            if u64::from_le_bytes(*token) != self.shared.token {
                continue;
            }
            let (head, start) = reliable::Head::decode(rest)?;
            // Those of a batch mostly say the same.
            if last.as_ref() != Some(&head.heard) {
                lock(&self.shared.state).sending.heard(&head.heard, self.shared.now())?;
                last = Some(head.heard);
            }
            let bytes = &rest[start..];
            arrived += bytes.len();
            let assembler = &mut self.assembler;
            let part = expected.filter(|_| number < placed).map(|e| e.part(number, length).len());
            if let Some(part) = part {
                // SAFETY: the kernel has written them, as `keep_placed` has found.
                unsafe { assembler.filled(part) };
                frames += assembler.feed(&bytes[part..], sink)?;
                self.receiving.went_on(bytes.len());
                continue;
            }
            self.receiving.arrived(head.offset, bytes, |new| {
                frames += assembler.feed(new, sink)?;
                Ok::<_, Broken>(())
            })?;
        }
        Ok(Some((frames, arrived)))
    }

    /// How many of the first datagrams of a batch have gone on with the payload as expected. The parts of others, which
    /// were read as if they had, are put where they stand in the batch.
    fn keep_placed(&mut self, expected: Expected, length: usize, segment: usize) -> usize {
        let mut next = self.receiving.received();
        let goes_on = |part: &Range<usize>| {
            let start = part.start - BEFORE;
            let (token, head) = self.bytes[start..part.start].split_at(TOKEN);
            // Where it says of gaps too, its bytes begin later.
            let is_next = token == self.shared.token.to_le_bytes()
                && reliable::Head::decode(head).is_ok_and(|(head, _)| head.offset == next);
            next += (segment.min(length - start) - BEFORE) as u64;
            is_next
        };
        let placed = match expected.is_so(length, segment) {
            true => expected.parts(length).take_while(goes_on).count(),
            false => 0,
        };
        let missing = self.assembler.missing().unwrap_or_default();
        for (number, part) in expected.parts(length).enumerate().skip(placed) {
            let from = &missing[expected.place(number)..][..part.len()];
            // SAFETY: the kernel has written them.
            self.bytes[part].copy_from_slice(unsafe { from.assume_init_ref() });
        }
        placed
    }

    /// So many bytes have arrived. The other side is told at once if something is missing, and every
    /// now and then in a stream; otherwise what is sent to it soon says so, or [`Sender::flush`].
    fn note_arrived(&self, state: &mut State, bytes: usize) -> Result<(), Broken> {
        state.heard = self.receiving.heard(self.room);
        if bytes > 0 && state.unsaid == 0 {
            state.unsaid_since = self.shared.now();
        }
        state.unsaid += bytes;
        let is_due = state.unsaid >= CONFIRMED || bytes > 0 && self.receiving.has_gap();
        if is_due { self.shared.confirm(state) } else { Ok(()) }
    }

    /// The other side says its port on the connection over TCP, before anything else.
    fn hear_port(&mut self) {
        let mut bytes = [0; PORT];
        let read = (&self.shared.stream).read(&mut bytes[..PORT - self.peer.len()]);
        match read {
            Ok(length @ 1..) => self.peer.extend_from_slice(&bytes[..length]),
            Err(error) if is_passing(&error) => return,
            _ => self.closed = true,
        }
        let (Some(port), Ok(peer)) = (self.peer.first_chunk(), self.shared.stream.peer_addr())
        else {
            return;
        };
        let address = SocketAddr::new(peer.ip(), u16::from_le_bytes(*port));
        if self.shared.socket.connect(address).is_err() {
            self.closed = true;
            return;
        }
        self.shared.learn_path(&mut lock(&self.shared.state));
        self.shared.connected.store(true, Release);
    }

    /// Hears what the connection over TCP says, or that it has ended.
    fn hear_words(&mut self) -> Result<(), Broken> {
        let mut words = [0; WORDS_MOST];
        let length = match (&self.shared.stream).read(&mut words) {
            Ok(length) => length,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(_) => 0,
        };
        self.closed |= length == 0;
        for word in &words[..length] {
            match *word {
                ASKED => self.answer()?,
                ANSWERED => self.hear_answer()?,
                // Nobody of ours says it.
                _ => self.closed = true,
            }
        }
        Ok(())
    }

    /// The other process asks, and nothing more was there just before. It hears first what has arrived.
    fn answer(&mut self) -> Result<(), Broken> {
        self.shared.confirm(&mut lock(&self.shared.state))?;
        // Unanswered it would never ask again.
        self.closed |= !self.shared.say(ANSWERED);
        Ok(())
    }

    /// The other process was there. As an end of TCP's if nothing gets through to it, or back.
    fn hear_answer(&self) -> Result<(), Broken> {
        let was_asked = self.shared.asked.swap(false, Relaxed);
        let now = self.shared.now();
        if was_asked && lock(&self.shared.state).sending.answered(now) {
            return Err(Broken::System { call: "sendmsg", errno: Errno::ETIMEDOUT });
        }
        Ok(())
    }
}

impl Receiver for UdpReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        if !self.shared.connected.load(Acquire) {
            self.hear_port();
            if !self.shared.connected.load(Acquire) {
                return if self.closed { Err(Broken::Closed) } else { Ok(0) };
            }
        }
        let (mut frames, mut arrived, mut reads) = (0, 0, 0);
        while reads < READS_MOST && frames != 1 {
            let Some((more, bytes)) = self.read(sink)? else { break };
            frames += more;
            arrived += bytes;
            reads += 1;
        }
        if reads > 0 {
            let mut state = lock(&self.shared.state);
            self.note_arrived(&mut state, arrived)?;
            self.shared.transmit_rest(&mut state)?;
        } else if self.may_have_closed || self.shared.asked.load(Relaxed) {
            // An answer is looked for by those too who are told nothing of what is watched.
            self.may_have_closed = false;
            self.hear_words()?;
        }
        if reads == 0 && self.closed { Err(Broken::Closed) } else { Ok(frames) }
    }

    fn owes(&self) -> bool {
        lock(&self.shared.state).unsaid > 0
    }

    fn falls_asleep(&mut self) -> bool {
        // The kernel reports what it has.
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {
        // What it had sent is read before, and meanwhile it is watched on.
        self.may_have_closed = self.shared.connected.load(Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{EAGER_MOST, Frame};
    use crate::transport::testing::{Collected, message, streams};
    use proptest::prelude::*;
    use std::thread;
    use std::time::Duration;

    const TOKEN_OF_TEST: u64 = 4711;
    const LONG: Duration = Duration::from_secs(60);

    /// What becomes of a datagram.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Arrives,
        Lost,
        Twice,
        /// So many others overtake it.
        Overtaken(usize),
    }

    /// Both ends on this machine, and what tells that they have ended: the streams.
    fn ends_here() -> (Ends, Ends) {
        let (caller, called_on) = streams();
        let socket = call(&caller).unwrap();
        let port = socket.local_addr().unwrap().port();
        let other = accept(called_on, port, TOKEN_OF_TEST).unwrap();
        (called(caller, socket, TOKEN_OF_TEST).unwrap(), other)
    }

    /// Both ends with a network between them that treats datagrams as `fates` say, again and again.
    /// It ends with the streams that are returned.
    fn ends_apart(fates: &[Fate]) -> (Ends, Ends, [TcpStream; 2]) {
        let (caller, mut calls) = streams();
        let (mut answers, called_on) = streams();
        let local = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        let (socket, here, there) = (call(&caller).unwrap(), local(), local());
        here.connect(("127.0.0.1", port(&socket))).unwrap();
        let other = accept(called_on, port(&there), TOKEN_OF_TEST).unwrap();
        let mut bytes = [0; PORT];
        answers.read_exact(&mut bytes).unwrap();
        there.connect(("127.0.0.1", u16::from_le_bytes(bytes))).unwrap();
        calls.write_all(&port(&here).to_le_bytes()).unwrap();
        let one = called(caller, socket, TOKEN_OF_TEST).unwrap();
        let ends = [calls, answers];
        for (from, to, shift) in [(&here, &there, 0), (&there, &here, fates.len() / 2)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let fates: Vec<_> =
                fates.iter().cycle().skip(shift).take(fates.len()).copied().collect();
            let lives = ends[0].try_clone().unwrap();
            lives.set_nonblocking(true).unwrap();
            thread::spawn(move || carry(&from, &to, &fates, &lives));
        }
        (one, other, ends)
    }

    /// A network in one direction, until a stream through it ends.
    fn carry(from: &UdpSocket, to: &UdpSocket, fates: &[Fate], lives: &TcpStream) {
        from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut bytes = vec![0; 1 << 16];
        let mut late: Vec<(usize, Vec<u8>)> = Vec::new();
        for number in 0.. {
            late.iter_mut().for_each(|(wait, _)| *wait = wait.saturating_sub(1));
            let due = late.extract_if(.., |(wait, _)| *wait == 0);
            due.for_each(|(_, datagram)| drop(to.send(&datagram)));
            let Ok(length) = from.recv(&mut bytes) else {
                match lives.peek(&mut [0]) {
                    Ok(0) => return,
                    _ => continue,
                }
            };
            match fates[number % fates.len()] {
                Fate::Arrives => drop(to.send(&bytes[..length])),
                Fate::Lost => {}
                Fate::Twice => (0..2).for_each(|_| drop(to.send(&bytes[..length]))),
                Fate::Overtaken(by) => late.push((by, bytes[..length].to_vec())),
            }
        }
    }

    /// Sends frames of these lengths in both directions at once and checks what arrives.
    fn exchange(one: &mut Ends, other: &mut Ends, lengths: &[usize]) -> Result<(), TestCaseError> {
        let expected: Vec<_> =
            lengths.iter().enumerate().map(|(n, length)| message(n as u32, *length)).collect();
        let (mut got, mut sent) = ([Collected::default(), Collected::default()], [0, 0]);
        let start = Instant::now();
        while got.iter().any(|got| got.0.len() < expected.len()) {
            for (at, end) in [&mut *one, &mut *other].into_iter().enumerate() {
                while let Some((head, payload)) = expected.get(sent[at]) {
                    // Some with others, some not.
                    let taken = match payload.len() % 2 {
                        0 => end.sender.send(&head.encode(), payload),
                        _ => end.sender.send_with_others(&head.encode(), payload),
                    };
                    if taken.unwrap() == Sent::Full {
                        break;
                    }
                    sent[at] += 1;
                }
                end.receiver.poll(&mut got[at]).unwrap();
                end.sender.flush().unwrap();
            }
            let counts = got.each_ref().map(|got| got.0.len());
            prop_assert!(start.elapsed() < LONG, "{counts:?} of {} have arrived", expected.len());
        }
        got.iter().for_each(|got| assert!(got.0 == expected));
        Ok(())
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![
            12 => Just(Fate::Arrives),
            1 => Just(Fate::Lost),
            1 => Just(Fate::Twice),
            1 => (1..12_usize).prop_map(Fate::Overtaken),
        ];
        prop::collection::vec(fate, 20..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        /// Over a network that loses, doubles and exchanges datagrams: the same frames, in order.
        #[test]
        fn frames_pass_whole_and_in_order(
            lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..60),
            fates in fates(),
        ) {
            let (mut one, mut other, _streams) = ends_apart(&fates);
            exchange(&mut one, &mut other, &lengths)?;
        }

        /// Any bytes from the other end: an error or nothing. Of other connections: nothing.
        #[test]
        fn any_bytes_are_a_datagram_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..200), is_ours in any::<bool>(),
        ) {
            let (stream, called_on) = streams();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut end = accept(called_on, socket.local_addr().unwrap().port(), 1).unwrap();
            let mut port = [0; PORT];
            (&stream).read_exact(&mut port).unwrap();
            socket.connect(("127.0.0.1", u16::from_le_bytes(port))).unwrap();
            let token = if is_ours { 1_u64 } else { 2 };
            socket.send(&[&token.to_le_bytes()[..], &bytes].concat()).unwrap();
            let mut collected = Collected::default();
            let result = end.receiver.poll(&mut collected);
            prop_assert!(is_ours || result == Ok(0), "{result:?}");
            prop_assert!(collected.0.len() <= 4);
        }
    }

    /// Three datagrams by one call, of which the last is shorter: their heads and the end apart from what is a payload's.
    #[test]
    fn parts_of_a_payload_are_read_to_where_they_belong() {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        setsockopt(&to, UdpGroSegment, &true).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let sent: Vec<u8> = (0..2_500).map(|at| (at % 251) as u8).collect();
        let size = 1_000;
        let control = [ControlMessage::UdpGsoSegments(&size)];
        let parts = [IoSlice::new(&sent)];
        sendmsg::<()>(from.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();

        let expected = Expected::new(1_000, BEFORE, 64, 2_000);
        let mut missing = [MaybeUninit::new(0); 2_000];
        let mut bytes = vec![0; 1 << 16];
        let arrived = receive(to.as_raw_fd(), &mut bytes, &mut missing, expected).unwrap();
        assert_eq!(arrived, (2_500, 1_000));
        // SAFETY: all were made with a value.
        let missing = missing.map(|byte| unsafe { byte.assume_init() });
        let each = 1_000 - BEFORE;
        assert_eq!(missing[..each], sent[BEFORE..1_000]);
        assert_eq!(missing[each..2 * each], sent[1_000 + BEFORE..2_000]);
        assert_eq!(missing[2 * each..], sent[2_000 + BEFORE..2_000 + BEFORE + 2_000 - 2 * each]);
        for head in [0, 1_000, 2_000] {
            assert_eq!(bytes[head..head + BEFORE], sent[head..head + BEFORE]);
        }
        let rest = 2_000 + BEFORE + 2_000 - 2 * each;
        assert_eq!(bytes[rest..2_500], sent[rest..]);
    }

    /// A segment that forgets how long heads are is cut in two, or not sent at all.
    #[test]
    fn heads_are_as_long_as_the_protocol_has_them() {
        let below = |peer: &str| below(peer.parse().unwrap());
        let peers = ["10.0.0.1", "fd00::1", "::ffff:10.0.0.1"];
        assert_eq!(peers.map(below), [28, 48, 28]);
    }

    #[test]
    fn frames_pass_on_one_machine() {
        let (mut one, mut other) = ends_here();
        exchange(&mut one, &mut other, &[EAGER_MOST; 300]).unwrap();
        exchange(&mut one, &mut other, &[0; 5000]).unwrap();
    }

    /// Everything that has arrived is read before the end is told.
    #[test]
    fn the_end_of_the_other_process_is_told() {
        let (mut one, mut other) = ends_here();
        let mut collected = Collected::default();
        let (head, payload) = message(1, 1000);
        while collected.0.is_empty() {
            one.receiver.poll(&mut collected).unwrap();
            if other.sender.is_drained() {
                other.sender.send(&head.encode(), &payload).unwrap();
            }
            other.receiver.poll(&mut Collected::default()).unwrap();
        }
        let start = Instant::now();
        while !other.sender.is_drained() {
            one.receiver.poll(&mut collected).unwrap();
            one.sender.flush().unwrap();
            other.receiver.poll(&mut Collected::default()).unwrap();
            assert!(start.elapsed() < LONG, "nothing is confirmed");
        }
        drop(other);
        let broken = loop {
            one.receiver.signalled();
            match one.receiver.poll(&mut collected) {
                Ok(_) => assert!(start.elapsed() < LONG),
                Err(broken) => break broken,
            }
        };
        assert_eq!(broken, Broken::Closed);
    }

    /// What has arrived is said by what goes the other way, and if nothing does, by and by.
    #[test]
    fn what_has_arrived_is_said_with_others_or_late() {
        let (mut one, mut other) = ends_here();
        let (head, payload) = message(1, 1000);
        let start = Instant::now();
        let receives = |end: &mut Ends, count: usize| {
            let mut collected = Collected::default();
            while collected.0.len() < count {
                end.receiver.poll(&mut collected).unwrap();
                assert!(start.elapsed() < LONG, "nothing arrives");
            }
        };
        // Until the first answer, one side does not know where the other one is.
        other.sender.send(&head.encode(), &payload).unwrap();
        receives(&mut one, 1);
        assert!(one.receiver.owes());
        one.sender.send(&head.encode(), &payload).unwrap();
        assert!(!one.receiver.owes(), "said with the answer");
        receives(&mut other, 1);
        while other.receiver.owes() {
            other.sender.flush().unwrap();
            assert!(start.elapsed() < LONG, "never said");
        }
        assert!(other.sender.is_settled(), "heard with the answer");
    }

    /// Nobody can have more waiting than the bound, however long the other end says nothing.
    #[test]
    fn what_nobody_confirms_is_bounded() {
        let (mut one, _other) = ends_here();
        let (head, payload) = message(1, EAGER_MOST);
        let taken = (0..10_000)
            .take_while(|_| one.sender.send(&head.encode(), &payload).unwrap() != Sent::Full);
        assert!(taken.count() <= reliable::KEPT_MOST / EAGER_MOST);
        assert!(one.sender.falls_asleep());
    }

    /// An end, and a test in the place of the other one: its connection over TCP, which waits little when
    /// it is read, and its socket.
    fn end_alone() -> (Ends, TcpStream, UdpSocket) {
        let (mut stream, called_on) = streams();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let end = accept(called_on, port, TOKEN_OF_TEST).unwrap();
        stream.read_exact(&mut [0; PORT]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        (end, stream, socket)
    }

    /// The other process answers, and no datagram gets through: senders get an error as from TCP.
    #[test]
    fn a_network_that_carries_no_datagrams_ends_the_connection() {
        let (mut end, mut stream, _socket) = end_alone();
        let (head, payload) = message(1, 1000);
        end.sender.send(&head.encode(), &payload).unwrap();
        let start = Instant::now();
        let broken = loop {
            end.sender.flush().unwrap();
            match stream.read(&mut [0]) {
                Ok(_) => stream.write_all(&[ANSWERED]).unwrap(),
                Err(_) => end.sender.look_after().unwrap(),
            }
            match end.receiver.poll(&mut Collected::default()) {
                Ok(_) => assert!(start.elapsed() < LONG, "it is never told"),
                Err(broken) => break broken,
            }
        };
        assert_eq!(broken, Broken::System { call: "sendmsg", errno: Errno::ETIMEDOUT });
    }

    /// Answered by who reads what arrives, after a datagram that says what has.
    #[test]
    fn who_asks_is_told_what_has_arrived() {
        let (mut end, mut stream, socket) = end_alone();
        stream.write_all(&[ASKED]).unwrap();
        let (mut word, start) = ([0], Instant::now());
        assert!(stream.read(&mut word).is_err(), "nobody reads");
        while stream.read(&mut word).is_err() {
            end.receiver.signalled();
            end.receiver.poll(&mut Collected::default()).unwrap();
            assert!(start.elapsed() < LONG, "no answer");
        }
        assert_eq!(word, [ANSWERED]);
        socket.set_nonblocking(true).unwrap();
        let mut datagram = [0; BEFORE + 1];
        assert_eq!(socket.recv(&mut datagram).unwrap(), BEFORE, "said before");
        assert_eq!(datagram[..TOKEN], TOKEN_OF_TEST.to_le_bytes());
    }

    /// A process that is stopped is asked once, however long it is: what waits for it does not grow.
    #[test]
    fn who_does_not_answer_is_asked_once() {
        let (mut end, mut stream, _socket) = end_alone();
        let (head, payload) = message(1, 1000);
        end.sender.send(&head.encode(), &payload).unwrap();
        let (mut word, start) = ([0], Instant::now());
        while stream.read(&mut word).is_err() {
            end.sender.flush().unwrap();
            end.sender.look_after().unwrap();
            assert!(start.elapsed() < LONG, "it is not asked");
        }
        assert_eq!(word, [ASKED]);
        for _ in 0..10 {
            end.sender.look_after().unwrap();
        }
        assert!(stream.read(&mut word).is_err(), "asked again");
        assert_eq!(end.receiver.poll(&mut Collected::default()), Ok(0));
    }

    #[test]
    fn a_frame_that_is_none_ends_the_connection() {
        let (mut one, mut other) = ends_here();
        let head = crate::frame::Head { frame: Frame::Clear { token: 1 }, length: 0, seen: 0 };
        let mut bytes = head.encode();
        bytes[0] = 0xff;
        one.sender.send(&bytes, &[]).unwrap();
        let start = Instant::now();
        let broken = loop {
            one.receiver.poll(&mut Collected::default()).unwrap();
            one.sender.flush().unwrap();
            match other.receiver.poll(&mut Collected::default()) {
                Ok(_) => assert!(start.elapsed() < LONG),
                Err(broken) => break broken,
            }
        };
        assert!(matches!(broken, Broken::Malformed(_)), "{broken}");
    }
}
