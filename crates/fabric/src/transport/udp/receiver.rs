//! The half that receives.

use super::payloads::Payloads;
use super::recvmsg::receive;
use super::shared::{Shared, State, is_of_the_path};
use super::{ANSWERED, ASKED, BATCH, BATCH_SEGMENTS, BEFORE, PORT, TOKEN};
use crate::transport::batch::Expected;
use crate::transport::reliable::{self, Heard, Receiving};
use crate::transport::{Broken, Receiver, Sink, is_passing};
use keeptime_locks::lock;
use nix::errno::Errno;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Calls that read before somebody else gets a turn. After a long message there is none: who takes
/// it before the next is read finds it in its cache, and its buffer serves for the next.
const READS_MOST: usize = 2;
/// Bytes of a stream in a batch that was full or nearly so: where there is one, the next is not far.
const FULL: usize = BATCH / 2;
/// Bytes of a stream that are confirmed together, if nothing that goes the other way says so before.
const CONFIRMED: usize = 10 * BATCH;
/// Words on the connection over TCP that are read at once: each end has one question on its way at most.
const WORDS_MOST: usize = 2;

/// Reads the stream.
pub(super) struct UdpReceiver {
    shared: Arc<Shared>,
    /// What the other side has said of its port.
    peer: Vec<u8>,
    receiving: Receiving,
    payloads: Payloads,
    room: u32,
    /// A batch, but for those of its bytes that were read to where they belong.
    bytes: Box<[u8]>,
    /// Length of the datagrams of the batches before.
    segment: usize,
    /// Full batches are coming in.
    has_more: bool,
    /// The connection over TCP may have ended, or say something.
    may_have_closed: bool,
    /// The other process has ended; what it had sent is still read.
    closed: bool,
}

impl UdpReceiver {
    /// `room`: so many bytes of a stream may be on the way to here.
    pub(super) fn new(shared: Arc<Shared>, room: u32) -> Self {
        Self {
            shared,
            peer: Vec::new(),
            receiving: Receiving::default(),
            payloads: Payloads::default(),
            room,
            bytes: vec![0; 1 << 16].into_boxed_slice(),
            segment: 0,
            has_more: false,
            may_have_closed: false,
            closed: false,
        }
    }

    /// Reads once and handles what that was. Returns how many frames, and bytes of the stream; none
    /// if nothing had arrived.
    fn read(&mut self, sink: &mut dyn Sink) -> Result<Option<(usize, usize)>, Broken> {
        let (coming, room) = self.payloads.room();
        let count = (self.bytes.len() / self.segment.max(1)).min(BATCH_SEGMENTS);
        // Behind a gap nothing goes on with a payload.
        let expected = match self.receiving.has_gap() {
            true => None,
            false => Expected::new(self.segment, BEFORE, count, coming),
        };
        let fd = self.shared.socket.as_raw_fd();
        let (length, segment) = match receive(fd, &mut self.bytes, room, expected) {
            Ok(arrived) => arrived,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            // It has ended, not begun, or cannot be reached for now: the connection over TCP tells which.
            Err(errno) if is_of_the_path(errno) => return Ok(None),
            // What was sent was too long for a node on the way, which has told so. More may be there.
            Err(Errno::EMSGSIZE) => {
                self.shared.learn_path(&mut lock(&self.shared.state));
                return Ok(Some((0, 0)));
            }
            Err(errno) => return Err(Broken::System { call: "recvmsg", errno }),
        };
        let placed = expected.map_or(0, |expected| self.keep_placed(expected, length, segment));
        // A shorter one by itself is the end of something.
        if length > segment || segment > self.segment {
            self.segment = segment;
        }
        let (mut frames, mut arrived) = (0, 0);
        let mut last: Option<Heard> = None;
        let (batch, payloads) = (&self.bytes[..length], &mut self.payloads);
        for (number, datagram) in batch.chunks(segment.max(1)).enumerate() {
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
            if let Some(expected) = expected.filter(|_| number < placed) {
                // SAFETY: the kernel has written them, and all before go on too, as `keep_placed` has found.
                frames += unsafe { payloads.feed_placed(expected, number, batch, sink)? };
                self.receiving.went_on(bytes.len());
                continue;
            }
            self.receiving.arrived(head.offset, bytes, |new| {
                frames += payloads.feed(new, sink)?;
                Ok::<_, Broken>(())
            })?;
        }
        self.payloads.expect_alike();
        Ok(Some((frames, arrived)))
    }

    /// How many of the first datagrams of a batch have gone on with the stream as expected. The parts of others, which
    /// were read as if they had, are put where they stand in the batch.
    fn keep_placed(&mut self, expected: Expected, length: usize, segment: usize) -> usize {
        let mut next = self.receiving.received();
        let goes_on = |datagram: &&[u8]| {
            let Some((before, bytes)) = datagram.split_at_checked(BEFORE) else { return false };
            let (token, head) = before.split_at(TOKEN);
            // Where it says of gaps too, its bytes begin later.
            let is_next = token == self.shared.token.to_le_bytes()
                && reliable::Head::decode(head).is_ok_and(|(head, _)| head.offset == next);
            next += bytes.len() as u64;
            is_next
        };
        let placed = match expected.is_so(length, segment) {
            true => expected.datagrams(&self.bytes[..length]).take_while(goes_on).count(),
            false => 0,
        };
        for part in expected.parts(length).filter(|part| part.datagram >= placed) {
            // SAFETY: the kernel has written them, and nothing was fed since then.
            let bytes = unsafe { self.payloads.read(&part) };
            self.bytes[part.range].copy_from_slice(bytes);
        }
        placed
    }

    /// So many bytes have arrived. The other side is told at once if something is missing, and every
    /// now and then in a stream; otherwise what is sent to it soon says so, or the sender's flush.
    fn note_arrived(&self, state: &mut State, bytes: usize) -> Result<(), Broken> {
        state.heard = self.receiving.heard(self.room);
        if bytes > 0 && state.unsaid == 0 {
            state.unsaid_since = self.shared.now();
        }
        state.unsaid += bytes;
        // Who may have less on the way than that would wait for it.
        let many = CONFIRMED.min(self.room as usize / 3);
        let is_due = state.unsaid >= many || bytes > 0 && self.receiving.has_gap();
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
        self.has_more = false;
        while reads < READS_MOST && frames != 1 {
            let Some((more, bytes)) = self.read(sink)? else {
                self.has_more = false;
                break;
            };
            frames += more;
            arrived += bytes;
            reads += 1;
            self.has_more = bytes >= FULL;
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

    fn has_more(&self) -> bool {
        self.has_more
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
