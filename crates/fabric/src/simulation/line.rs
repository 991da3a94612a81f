//! A connection between two contexts in virtual time, straight or over a bridge: bytes each way, in order, which take
//! their time. It can be cut, for both ends at once or for one before the other, or fall silent without anybody being
//! told, as the kernel's connections can. What makes frames of bytes, and how a bridge carries them, is the crate's own.

use super::clock::Clock;
use crate::bridge::{Flow, Outgoing};
use crate::frame::{HEAD, PIECE_MOST};
use crate::transport::assemble::Assembler;
use crate::transport::{Broken, Ends, Receiver, Receiving, Sender, Sending, Sent, Sink};
use keeptime_locks::lock;
use nix::errno::Errno;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// After so much silence a node finds out that the other one is gone, when it looks.
pub const GONE_AFTER: Duration = Duration::from_secs(10);
/// Bytes that wait for a connection before senders wait too.
const KEPT_MOST: usize = 64 << 10;
/// Bytes that are gathered from many short frames.
const GATHERED: usize = 16 << 10;
/// Bytes of one read.
const READ: usize = 32 << 10;

/// How a connection carries.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long a byte is on its way.
    pub delay: Duration,
    /// Bytes a second that can be given to it.
    pub rate: u64,
    /// Bytes that are on their way at most.
    pub room: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing moves any more since then, and nobody is told.
    Silent(Duration),
    /// Whoever uses it finds it closed.
    Cut,
}

/// One direction.
struct Pipe {
    clock: Clock,
    pace: Pace,
    /// What is on its way, and when it is there.
    segments: VecDeque<(Duration, Vec<u8>)>,
    bytes: usize,
    free_at: Duration,
    state: State,
    /// Nothing more is written.
    is_ended: bool,
    /// Nobody reads any more.
    is_unread: bool,
    /// Whoever reads finds it closed, whatever is there.
    is_lost: bool,
}

type SharedPipe = Arc<Mutex<Pipe>>;

impl Pipe {
    fn shared(clock: &Clock, pace: Pace) -> SharedPipe {
        Arc::new(Mutex::new(Self {
            clock: clock.clone(),
            pace,
            segments: VecDeque::new(),
            bytes: 0,
            free_at: Duration::ZERO,
            state: State::Open,
            is_ended: false,
            is_unread: false,
            is_lost: false,
        }))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.state == State::Cut || (self.state == State::Open && self.is_unread) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(self.pace.room.saturating_sub(self.bytes));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let took = Duration::from_nanos(count as u64 * 1_000_000_000 / self.pace.rate);
        self.free_at = self.free_at.max(self.clock.now()) + took;
        self.segments.push_back((self.free_at + self.pace.delay, bytes[..count].to_vec()));
        self.bytes += count;
        Ok(count)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_lost {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if matches!(self.state, State::Silent(_)) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let now = self.clock.now();
        let mut read = 0;
        // However it was written: the kernel's connections have no bounds within.
        while read < buffer.len()
            && let Some((there_at, segment)) = self.segments.front_mut()
            && *there_at <= now
        {
            let count = segment.len().min(buffer.len() - read);
            buffer[read..read + count].copy_from_slice(&segment[..count]);
            segment.drain(..count);
            if segment.is_empty() {
                self.segments.pop_front();
            }
            read += count;
        }
        if read > 0 {
            self.bytes -= read;
            return Ok(read);
        }
        match self.state {
            State::Cut => Err(ErrorKind::ConnectionReset.into()),
            _ if self.is_ended && self.segments.is_empty() => Ok(0),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// What has not arrived is lost.
    fn cut(&mut self) {
        let now = self.clock.now();
        let arrived = match self.state {
            State::Silent(_) => 0,
            // As far as nothing before it is still on its way.
            _ => self.segments.iter().take_while(|(there_at, _)| *there_at <= now).count(),
        };
        self.segments.truncate(arrived);
        self.bytes = self.segments.iter().map(|(_, segment)| segment.len()).sum();
        self.state = State::Cut;
    }

    fn silence(&mut self) {
        if self.state == State::Open {
            self.state = State::Silent(self.clock.now());
        }
    }

    fn is_over(&self) -> bool {
        self.state == State::Cut || (self.is_ended && self.is_unread)
    }
}

/// The end of a pipe that is written to. Dropped, nothing more comes.
struct Inlet(SharedPipe);

/// The end of a pipe that is read. Dropped, nobody reads any more.
struct Outlet(SharedPipe);

impl Write for Inlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Outgoing for Inlet {
    fn end(&mut self) -> io::Result<()> {
        lock(&self.0).is_ended = true;
        Ok(())
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        lock(&self.0).is_ended = true;
    }
}

impl Read for Outlet {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        lock(&self.0).read(buffer)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        lock(&self.0).is_unread = true;
    }
}

/// A connection, for whoever lets time pass and lets things go wrong.
pub struct Line {
    /// The node that called, and the one that was called.
    pub nodes: [usize; 2],
    in_memory: bool,
    pipes: Vec<SharedPipe>,
    bridge: Option<Bridge>,
}

/// What a bridge has of two connections.
struct Bridge {
    from: [Outlet; 2],
    to: [Inlet; 2],
    flows: [Flow; 2],
}

impl Line {
    /// One without a bridge, and its two ends. `in_memory` it does not fall silent.
    pub fn straight(
        clock: &Clock,
        nodes: [usize; 2],
        pace: Pace,
        in_memory: bool,
    ) -> (Self, [Ends; 2]) {
        let pipes = [(); 2].map(|()| Pipe::shared(clock, pace));
        let [there, back] = &pipes;
        let ends = [ends(there, back, in_memory), ends(back, there, in_memory)];
        (Self { nodes, in_memory, pipes: pipes.to_vec(), bridge: None }, ends)
    }

    /// One over a bridge, and its two ends.
    pub fn bridged(clock: &Clock, nodes: [usize; 2], pace: Pace) -> (Self, [Ends; 2]) {
        let pipes = [(); 4].map(|()| Pipe::shared(clock, pace));
        let [in_there, out_there, in_back, out_back] = &pipes;
        let bridge = Bridge {
            from: [Outlet(in_there.clone()), Outlet(in_back.clone())],
            to: [Inlet(out_there.clone()), Inlet(out_back.clone())],
            flows: [Flow::default(), Flow::default()],
        };
        let ends = [ends(in_there, out_back, false), ends(in_back, out_there, false)];
        (Self { nodes, in_memory: false, pipes: pipes.to_vec(), bridge: Some(bridge) }, ends)
    }

    /// Whether anything can become of it.
    pub fn is_open(&self) -> bool {
        !self.pipes.iter().all(|pipe| lock(pipe).is_over())
    }

    /// What has not arrived is lost, and both ends find it closed.
    pub fn cut(&self) {
        self.pipes.iter().for_each(|pipe| lock(pipe).cut());
    }

    /// One of `nodes` finds it closed. What is on its way to the other one still gets there.
    pub fn cut_for(&self, end: usize) {
        // The last pipe of each direction is the one that is read at its end, and the first direction is the caller's.
        let to_end = self.pipes.len() / 2 * (2 - end) - 1;
        lock(&self.pipes[to_end]).is_lost = true;
    }

    /// Nothing moves any more, and nobody is told.
    pub fn silence(&self) {
        if self.in_memory {
            return self.cut();
        }
        self.pipes.iter().for_each(|pipe| lock(pipe).silence());
    }

    /// It takes so long from now on.
    pub fn lag(&self, delay: Duration) {
        self.pipes.iter().for_each(|pipe| lock(pipe).pace.delay = delay);
    }

    /// Its bridge ends, if it has one.
    pub fn end_bridge(&mut self) {
        self.bridge = None;
    }

    /// Its bridge, if it has one, does what there is to do.
    pub fn carry(&mut self, bytes: &mut [u8]) {
        if self.bridge.as_mut().is_some_and(|bridge| bridge.carry(bytes)) {
            self.bridge = None;
        }
    }
}

impl Bridge {
    /// Carries both ways, as a relay does. Returns whether that was all.
    fn carry(&mut self, bytes: &mut [u8]) -> bool {
        let Self { from: [one, other], to: [to_other, to_one], flows: [there, back] } = self;
        let is_broken =
            there.carry(one, to_other, bytes).is_err() || back.carry(other, to_one, bytes).is_err();
        is_broken || (there.is_closed() && back.is_closed())
    }
}

/// One end of a connection, as a transport.
fn ends(there: &SharedPipe, back: &SharedPipe, in_memory: bool) -> Ends {
    let sender = LineSender { inlet: Inlet(there.clone()), kept: Vec::new() };
    let (outlet, assembler) = (Outlet(back.clone()), Assembler::default());
    let receiver = LineReceiver { outlet, assembler, bytes: vec![0; READ] };
    Ends {
        sender: Sending::new(sender),
        receiver: Receiving::new(receiver),
        readable: Vec::new(),
        writable: None,
        in_memory,
        poll_is_enough: true,
        glance: None,
    }
}

struct LineSender {
    inlet: Inlet,
    kept: Vec<u8>,
}

impl LineSender {
    fn keep(&mut self, head: &[u8; HEAD], payload: &[u8]) {
        self.kept.extend_from_slice(head);
        self.kept.extend_from_slice(payload);
    }
}

impl Sender for LineSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        if self.kept.len() > KEPT_MOST && !self.flush()? && self.kept.len() > KEPT_MOST {
            return Ok(Sent::Full);
        }
        self.keep(head, payload);
        Ok(if self.flush()? { Sent::Whole } else { Sent::Kept })
    }

    fn send_with_others(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        if self.kept.len() + HEAD + payload.len() > GATHERED {
            return self.send(head, payload);
        }
        self.keep(head, payload);
        Ok(Sent::Kept)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut carried = 0;
        let is_all = loop {
            if carried == self.kept.len() {
                break true;
            }
            match self.inlet.write(&self.kept[carried..]) {
                Ok(count) => carried += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(_) => return Err(Broken::Closed),
            }
        };
        self.kept.drain(..carried);
        Ok(is_all)
    }

    fn falls_asleep(&mut self) -> bool {
        self.kept.len() > KEPT_MOST
    }

    fn piece(&self) -> usize {
        PIECE_MOST
    }

    fn look_after(&mut self) -> Result<(), Broken> {
        let pipe = lock(&self.inlet.0);
        match pipe.state {
            State::Silent(since) if pipe.clock.now().saturating_sub(since) >= GONE_AFTER => {
                Err(Broken::System { call: "send", errno: Errno::ETIMEDOUT })
            }
            _ => Ok(()),
        }
    }

    fn is_drained(&mut self) -> bool {
        self.kept.is_empty()
    }
}

struct LineReceiver {
    outlet: Outlet,
    assembler: Assembler,
    bytes: Vec<u8>,
}

impl Receiver for LineReceiver {
    /// Until a frame is whole: what is over of it is of the next.
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        loop {
            let count = match self.outlet.read(&mut self.bytes) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(_) => return Err(Broken::Closed),
            };
            let frames = self.assembler.feed(&self.bytes[..count], sink)?;
            if frames > 0 {
                return Ok(frames);
            }
        }
    }

    fn falls_asleep(&mut self) -> bool {
        true
    }

    fn wakes_up(&mut self) {}

    fn signalled(&mut self) {}
}
