//! What both halves use: the sockets, the state of the stream, the way to send.

use super::{BATCH, BATCH_SEGMENTS, BEFORE};
use crate::transport::Broken;
use crate::transport::reliable::{self, Heard, Segment, Sending};
use keeptime_locks::lock;
use keeptime_model::units::Nanos;
use nix::errno::Errno;
use nix::sys::socket::sockopt::IpMtu;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use std::io::{IoSlice, Write};
use std::iter;
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

/// Bytes of IP and UDP before a datagram.
const BELOW_4: usize = 20 + 8;
const BELOW_6: usize = 40 + 8;
/// Longest segment, where packets could be longer: two of them fill a call. Each costs both ends a head, parts of memory to
/// tell the kernel of, and a look; what is lost is sent again as a whole.
const SEGMENT_MOST: usize = BATCH / 2 / 64 * 64 - BEFORE;
/// Until the path is known.
const SEGMENT_FIRST: usize = 1200;
/// How long it is left to others to say what has arrived, when nothing more arrives. Much less than
/// after what silence something is sent again.
const CONFIRMED_AFTER: Nanos = Nanos::new(100_000);
/// Bytes of a stream that are gathered: who receives them is woken once for all of these calls.
const GATHERED: usize = 4 * BATCH;
/// While so much is on the way, what fills no call waits for more: it would arrive no sooner.
const BUSY: u64 = GATHERED as u64;

/// What both halves use.
pub(super) struct Shared {
    pub(super) socket: UdpSocket,
    /// The connection over TCP.
    pub(super) stream: TcpStream,
    pub(super) token: u64,
    start: Instant,
    /// The other side's port is known.
    pub(super) connected: AtomicBool,
    /// The other process was asked, and has not answered.
    pub(super) asked: AtomicBool,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) sending: Sending,
    /// What has arrived. Every datagram says so.
    pub(super) heard: Heard,
    /// Bytes that have arrived since one was sent, and when the first of them did.
    pub(super) unsaid: usize,
    pub(super) unsaid_since: Nanos,
    /// Heads of the datagrams of one call.
    heads: Vec<u8>,
    /// Datagrams of one call at most.
    batch_most: usize,
}

impl State {
    /// Whether something is to be sent: `least` bytes that were not, or what is lost.
    fn is_due(&self, least: usize) -> bool {
        self.sending.unsent() >= least || self.sending.has_lost()
    }
}

impl Shared {
    /// `room`: so many bytes of a stream may be on the way to here. `connected`: the other side's port is known.
    pub(super) fn new(
        stream: TcpStream,
        socket: UdpSocket,
        token: u64,
        connected: bool,
        room: u32,
    ) -> Self {
        let state = State {
            sending: Sending::new(SEGMENT_FIRST, Nanos::new(0)),
            heard: Heard { room, ..Heard::default() },
            unsaid: 0,
            unsaid_since: Nanos::new(0),
            heads: Vec::new(),
            batch_most: BATCH_SEGMENTS,
        };
        let shared = Self {
            socket,
            stream,
            token,
            start: Instant::now(),
            connected: AtomicBool::new(connected),
            asked: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        if connected {
            shared.learn_path(&mut lock(&shared.state));
        }
        shared
    }

    pub(super) fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }

    /// Segments are as long as the path's packets allow, those as well that go again.
    pub(super) fn learn_path(&self, state: &mut State) {
        // A socket that does not say keeps what every path can carry.
        if let (Ok(mtu), Ok(peer)) = (getsockopt(&self.socket, IpMtu), self.socket.peer_addr()) {
            let most = (mtu as usize).saturating_sub(below(peer.ip()) + BEFORE);
            state.sending.set_segment_most(most.clamp(SEGMENT_FIRST, SEGMENT_MOST));
        }
    }

    /// Sends what may be sent now; what fills no call only if little else is on the way.
    pub(super) fn transmit_rest(&self, state: &mut State) -> Result<(), Broken> {
        let is_busy = state.sending.on_the_way() >= BUSY;
        self.transmit(state, if is_busy { BATCH } else { 0 })
    }

    /// Sends what was gathered if that is enough to wake who receives it, and else leaves it to a flush.
    pub(super) fn transmit_gathered(&self, state: &mut State) -> Result<(), Broken> {
        if state.is_due(GATHERED) { self.transmit(state, BATCH) } else { Ok(()) }
    }

    /// Sends what may be sent now, as long as `least` bytes are unsent.
    pub(super) fn transmit(&self, state: &mut State, least: usize) -> Result<(), Broken> {
        if !self.connected.load(Acquire) {
            return Ok(());
        }
        if !state.is_due(least) {
            return Ok(());
        }
        let now = self.now();
        let mut next = None;
        while next.is_some() || state.is_due(least) {
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
                each.try_for_each(|one| {
                    let sent = self.send_at_once(state, one);
                    self.passed(state, sent)
                })
            }
            sent => self.passed(state, sent),
        }
    }

    /// What the kernel has no room for, or what it could not deliver just now, is lost, as it may be on its way. So is what
    /// is too long for the path by now, or follows what was, of which a node on the way has told: it is cut anew when it goes
    /// again.
    fn passed(&self, state: &mut State, sent: nix::Result<()>) -> Result<(), Broken> {
        match sent {
            Ok(()) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => {}
            // Networks that go down come back; if not, the other process answers, and nothing is confirmed.
            Err(errno) if is_of_the_path(errno) => {}
            Err(Errno::EMSGSIZE) => self.learn_path(state),
            Err(errno) => return Err(Broken::System { call: "sendmsg", errno }),
        }
        Ok(())
    }

    fn send_at_once(&self, state: &mut State, batch: &[Segment]) -> nix::Result<()> {
        let State { sending, heard, heads, .. } = state;
        heads.clear();
        let heard = Heard { ranges: Vec::new(), ..*heard };
        for segment in batch {
            self.head(segment.offset, &heard, heads);
        }
        let mut parts = Vec::with_capacity(4 * batch.len());
        for (segment, head) in batch.iter().zip(heads.chunks_exact(BEFORE)) {
            let all = iter::once(head).chain(sending.bytes(*segment));
            parts.extend(all.map(IoSlice::new));
        }
        let size = (BEFORE + batch[0].length) as u16;
        let control = [ControlMessage::UdpGsoSegments(&size)];
        self.send(&parts, if batch.len() > 1 { &control } else { &[] })?;
        state.unsaid = 0;
        Ok(())
    }

    /// Says what has arrived, and what of that is behind a gap.
    pub(super) fn confirm(&self, state: &mut State) -> Result<(), Broken> {
        state.unsaid = 0;
        let mut head = Vec::new();
        self.head(0, &state.heard, &mut head);
        let sent = self.send(&[IoSlice::new(&head)], &[]);
        self.passed(state, sent)
    }

    /// The same if nothing else has said so for too long.
    pub(super) fn confirm_late(&self, state: &mut State) -> Result<(), Broken> {
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
    pub(super) fn say(&self, word: u8) -> bool {
        (&self.stream).write(&[word]).is_ok()
    }
}

/// Whether a socket tells by it that a datagram did not pass, by its own node or by a message of one on the way (ICMP):
/// what the next one may do.
pub(super) fn is_of_the_path(errno: Errno) -> bool {
    use Errno::{EACCES, EPERM, EPROTO};
    use Errno::{ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENONET};
    use Errno::{ENOPROTOOPT, EOPNOTSUPP};
    match errno {
        ECONNREFUSED | EHOSTDOWN | EHOSTUNREACH | ENETDOWN | ENETUNREACH | ENONET => true,
        // What a node on the way has refused to carry, or a firewall of this one.
        EACCES | EPERM | EPROTO | ENOPROTOOPT | EOPNOTSUPP => true,
        _ => false,
    }
}

/// What is before a datagram to `peer`; an IPv6 address that maps one of IPv4 is one of that.
fn below(peer: IpAddr) -> usize {
    match peer.to_canonical() {
        IpAddr::V4(_) => BELOW_4,
        IpAddr::V6(_) => BELOW_6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::streams;

    /// A segment that forgets how long heads are is cut in two, or not sent at all.
    #[test]
    fn heads_are_as_long_as_the_protocol_has_them() {
        let below = |peer: &str| below(peer.parse().unwrap());
        let peers = ["10.0.0.1", "fd00::1", "::ffff:10.0.0.1"];
        assert_eq!(peers.map(below), [28, 48, 28]);
    }

    /// A datagram that is too long is a reason to ask what the path takes by now. What nobody expects ends the connection.
    #[test]
    fn what_is_too_long_is_no_end_and_the_path_is_looked_at() {
        let (stream, _other) = streams();
        let [socket, peer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let shared = Shared::new(stream, socket, 1, true, 1 << 16);
        let mut state = lock(&shared.state);
        state.sending.set_segment_most(SEGMENT_FIRST);
        state.sending.write(&[0; 10 * SEGMENT_FIRST]);
        assert_eq!(shared.passed(&mut state, Err(Errno::EMSGSIZE)), Ok(()));
        let segment = state.sending.next(shared.now()).unwrap();
        assert!(segment.length > SEGMENT_FIRST, "this machine's own takes more");
        let broken = Broken::System { call: "sendmsg", errno: Errno::EBADF };
        assert_eq!(shared.passed(&mut state, Err(Errno::EBADF)), Err(broken));
    }
}
