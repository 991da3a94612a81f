//! One stream of frames over several connections between two contexts, its rails: over several
//! networks that both have, or through bridges. Rails come and go while frames are carried; what a
//! rail that breaks has not brought goes by another one, and nothing arrives twice. So a stream without
//! rails is not broken: it waits for new ones until its link is ended.
//!
//! A rail is any other transport: each frame is the payload of a frame of the rail
//! ([`Frame::Carried`]), with its number and with what has arrived from the other end.

mod allowance;
mod bundle;
mod gather;

pub use allowance::Allowance;
pub use bundle::RailId;

use super::{Broken, Ends, Receiver, Receiving, Sender, Sending, Sent, Sink};
use crate::frame::{EAGER_MOST, Frame, HEAD, Head, Malformed};
use crate::payload::Buffer;
use allowance::Allowed;
use bundle::{Bundle, Word};
use gather::Gather;
use keeptime_locks::lock;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Rails of one stream at a time.
pub const RAILS_MOST: usize = 8;
/// Things that become ready, for one call.
const EVENTS: usize = 2 * RAILS_MOST;

/// The time since something that does not change.
pub type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The rails of a stream, for whoever makes new ones.
#[derive(Clone)]
pub struct Rails(Arc<Shared>);

/// Both halves of the stream, and its rails. It has none yet.
///
/// # Errors
/// If the kernel gives no descriptor.
pub fn ends() -> io::Result<(Ends, Rails)> {
    let start = Instant::now();
    ends_by(Box::new(move || start.elapsed()))
}

/// The same in the time that `clock` tells, which never goes back.
///
/// # Errors
/// If the kernel gives no descriptor.
pub fn ends_by(clock: Clock) -> io::Result<(Ends, Rails)> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let readable = vec![epoll.0.as_fd().try_clone_to_owned()?];
    let shared = Arc::new(Shared {
        epoll,
        clock,
        out: Mutex::default(),
        joining: Mutex::default(),
        has_joining: AtomicBool::new(false),
        is_heard: AtomicBool::new(false),
    });
    let receiver = RailsReceiver {
        shared: shared.clone(),
        receivers: BTreeMap::new(),
        gather: Gather::default(),
        ready: Vec::new(),
    };
    let ends = Ends {
        sender: Sending::new(RailsSender(shared.clone())),
        receiver: Receiving::new(receiver),
        readable,
        writable: None,
        in_memory: false,
        poll_is_enough: false,
        glance: None,
    };
    Ok((ends, Rails(shared)))
}

/// What both halves and the maker of rails use.
struct Shared {
    /// Ready when any rail is.
    epoll: Epoll,
    clock: Clock,
    out: Mutex<Out>,
    /// Rails that the receiving half has not taken over.
    joining: Mutex<Vec<(RailId, Receiving)>>,
    has_joining: AtomicBool,
    /// Something has come by a rail since that was asked last.
    is_heard: AtomicBool,
}

#[derive(Default)]
struct Out {
    bundle: Bundle,
    rails: BTreeMap<RailId, Rail>,
    last: RailId,
    /// The other end's frames before this are delivered here.
    delivered: u64,
}

/// The sending half of a rail, and what is watched for both.
struct Rail {
    sender: Sending,
    /// Some of what it took, or should take, waits to be carried.
    keeps: bool,
    /// The other end has asked this, and there was no room for the answer.
    unanswered: Option<u32>,
    watched: Vec<OwnedFd>,
    /// Given back with it, if it was made beside others.
    _allowed: Option<Allowed>,
}

struct RailsSender(Arc<Shared>);

struct RailsReceiver {
    shared: Arc<Shared>,
    receivers: BTreeMap<RailId, Receiving>,
    gather: Gather,
    /// Those that became ready; if none, all are looked at.
    ready: Vec<RailId>,
}

impl Rails {
    /// One more rail, which begins to carry at once. Returns its name.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn join(&self, ends: Ends) -> io::Result<RailId> {
        self.0.join(&mut lock(&self.0.out), ends, None)
    }

    /// The same if there may be one more: a stream has [`RAILS_MOST`], and of those that it has beside others `allowance`
    /// has to be left. One that has none is given the first in any case. None if there may not: `ends` are closed.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn join_beside(&self, ends: Ends, allowance: &Allowance) -> io::Result<Option<RailId>> {
        let out = &mut *lock(&self.0.out);
        let allowed = match out.rails.len() {
            0 => None,
            RAILS_MOST.. => return Ok(None),
            _ => match allowance.take() {
                None => return Ok(None),
                allowed => allowed,
            },
        };
        self.0.join(out, ends, allowed).map(Some)
    }

    /// Whether there may be one more.
    pub fn have_room(&self, allowance: &Allowance) -> bool {
        let rails = lock(&self.0.out).rails.len();
        rails == 0 || rails < RAILS_MOST && allowance.is_left()
    }

    /// Those that there are.
    pub fn all(&self) -> Vec<RailId> {
        lock(&self.0.out).rails.keys().copied().collect()
    }

    /// Bytes that they have carried, either way.
    pub fn carried(&self) -> u64 {
        lock(&self.0.out).bundle.carried()
    }

    /// Whether anything has come by any of them since this was asked last. By one that is used something does, as it is
    /// asked at once; by one that the other end refuses nothing ever does.
    pub fn have_heard(&self) -> bool {
        self.0.is_heard.swap(false, Acquire)
    }
}

impl fmt::Debug for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rails").field(&self.all()).finish()
    }
}

impl Shared {
    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn join(&self, out: &mut Out, ends: Ends, allowed: Option<Allowed>) -> io::Result<RailId> {
        out.last += 1;
        let id = out.last;
        let reading = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(id));
        ends.readable.iter().try_for_each(|fd| self.epoll.add(fd, reading))?;
        let room = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, u64::from(id));
        ends.writable.iter().try_for_each(|fd| self.epoll.add(fd, room))?;
        let watched = ends.readable.into_iter().chain(ends.writable).collect();
        let (sender, keeps, unanswered) = (ends.sender, false, None);
        out.rails.insert(id, Rail { sender, keeps, unanswered, watched, _allowed: allowed });
        out.bundle.add(id, self.now());
        lock(&self.joining).push((id, ends.receiver));
        self.has_joining.store(true, Release);
        self.carry(out);
        Ok(id)
    }

    /// Sends what may be sent now.
    fn carry(&self, out: &mut Out) {
        let now = self.now();
        while let Some((id, number)) = out.bundle.next(now) {
            let (delivered, arrived) = (out.delivered, out.bundle.arrived_by(id));
            // A rail that keeps what it sends keeps this very memory.
            let bytes = out.bundle.bytes(number).clone();
            let frame = Frame::Carried { number, delivered, arrived };
            let Some(rail) = out.rails.get_mut(&id) else { continue };
            match rail.give(frame, bytes) {
                Ok(true) => out.bundle.said(id),
                Ok(false) => out.bundle.refused(id),
                Err(_) => self.lost(out, id),
            }
        }
    }

    /// Says `frame` by a rail. Returns whether there was room.
    fn say(&self, out: &mut Out, id: RailId, frame: Frame) -> bool {
        let Some(rail) = out.rails.get_mut(&id) else { return false };
        rail.give(frame, Buffer::default()).unwrap_or_else(|_| {
            self.lost(out, id);
            false
        })
    }

    /// Says by a rail what has arrived by it. Without room that is still to be said.
    fn note(&self, out: &mut Out, id: RailId) {
        let (delivered, arrived) = (out.delivered, out.bundle.arrived_by(id));
        if self.say(out, id, Frame::Noted { delivered, arrived }) {
            out.bundle.said(id);
        }
    }

    /// Answers a probe by the rail by which it came, now or as soon as there is room.
    fn answer(&self, out: &mut Out, id: RailId, token: u32) {
        let is_said = self.say(out, id, Frame::Answered { token });
        if let Some(rail) = out.rails.get_mut(&id) {
            rail.unanswered = (!is_said).then_some(token);
        }
    }

    /// A rail is broken: what it has not brought goes by others.
    fn lost(&self, out: &mut Out, id: RailId) {
        out.bundle.lost(id);
        if let Some(rail) = out.rails.remove(&id) {
            for fd in &rail.watched {
                // It can only fail if it was not watched.
                let _ = self.epoll.delete(fd);
            }
        }
    }
}

impl Rail {
    /// Has it carry a frame. Returns whether there was room.
    fn give(&mut self, frame: Frame, mut payload: Buffer) -> Result<bool, Broken> {
        let head = Head { frame, length: payload.len() as u32, seen: 0 }.encode();
        let sent = self.sender.give(&head, &mut payload)?;
        self.keeps |= sent != Sent::Whole;
        Ok(sent != Sent::Full)
    }
}

impl Sender for RailsSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let mut out = lock(&self.0.out);
        if !out.bundle.has_room(HEAD + payload.len()) {
            return Ok(Sent::Full);
        }
        out.bundle.write([head, payload].concat());
        self.0.carry(&mut out);
        let carried = !out.bundle.has_unsent() && out.rails.values().all(|rail| !rail.keeps);
        Ok(if carried { Sent::Whole } else { Sent::Kept })
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let out = &mut *lock(&self.0.out);
        let now = self.0.now();
        let (probes, dead) = out.bundle.tick(now);
        dead.into_iter().for_each(|id| self.0.lost(out, id));
        for (id, token) in probes {
            if !self.0.say(out, id, Frame::Probe { token }) {
                out.bundle.unasked(id, now);
            }
        }
        for id in out.rails.keys().copied().collect::<Vec<_>>() {
            let Some(rail) = out.rails.get_mut(&id) else { continue };
            match rail.sender.flush() {
                Ok(done) => {
                    rail.keeps = !(done && rail.sender.is_settled());
                    // It takes more long before all of it has arrived.
                    if done {
                        out.bundle.emptied(id);
                    }
                }
                Err(_) => {
                    self.0.lost(out, id);
                    continue;
                }
            }
            let unanswered = rail.unanswered;
            if let Some(token) = unanswered {
                self.0.answer(out, id, token);
            }
        }
        self.0.carry(out);
        out.bundle.owing().collect::<Vec<_>>().into_iter().for_each(|id| self.0.note(out, id));
        Ok(!out.bundle.has_unsent() && out.rails.values().all(|rail| !rail.keeps))
    }

    fn falls_asleep(&mut self) -> bool {
        // What makes room arrives on a rail.
        lock(&self.0.out).bundle.is_full()
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    fn is_settled(&mut self) -> bool {
        !lock(&self.0.out).bundle.is_full()
    }

    fn look_after(&mut self) -> Result<(), Broken> {
        let out = &mut *lock(&self.0.out);
        let rails = out.rails.iter_mut();
        let gone = rails.filter_map(|(id, rail)| rail.sender.look_after().is_err().then_some(*id));
        let gone: Vec<_> = gone.collect();
        gone.into_iter().for_each(|id| self.0.lost(out, id));
        Ok(())
    }

    fn is_drained(&mut self) -> bool {
        lock(&self.0.out).bundle.is_empty()
    }
}

impl RailsReceiver {
    /// Reads one rail. It goes if it is broken, unless that is because what came is no frame.
    fn poll_rail(&mut self, id: RailId, sink: &mut dyn Sink) -> Result<usize, Broken> {
        let Some(receiver) = self.receivers.get_mut(&id) else { return Ok(0) };
        let shared = &self.shared;
        let mut arriving = Arriving { shared, id, gather: &mut self.gather, sink, is_told: false };
        let polled = receiver.poll(&mut arriving);
        if arriving.is_told {
            shared.note(&mut lock(&shared.out), id);
        }
        match polled {
            Err(Broken::Malformed(malformed)) => Err(malformed.into()),
            Ok(frames) => Ok(frames),
            Err(_) => {
                self.receivers.remove(&id);
                let mut out = lock(&shared.out);
                shared.lost(&mut out, id);
                shared.carry(&mut out);
                Ok(1)
            }
        }
    }

    /// Takes over rails that have joined, and forgets those that the sending half has lost.
    fn renew(&mut self) {
        if self.shared.has_joining.swap(false, Acquire) {
            self.receivers.extend(lock(&self.shared.joining).drain(..));
        }
        let out = lock(&self.shared.out);
        self.receivers.retain(|id, _| out.rails.contains_key(id));
    }
}

impl Receiver for RailsReceiver {
    fn poll(&mut self, sink: &mut dyn Sink) -> Result<usize, Broken> {
        self.renew();
        let mut ready = std::mem::take(&mut self.ready);
        if ready.is_empty() {
            ready.extend(self.receivers.keys());
        }
        let mut frames = 0;
        for id in ready {
            frames += self.poll_rail(id, sink)?;
        }
        Ok(frames)
    }

    fn owes(&self) -> bool {
        self.receivers.values().any(|receiver| receiver.owes())
    }

    fn has_more(&self) -> bool {
        // Of a rail that was not among those that became ready it is still true.
        self.receivers.values().any(|receiver| receiver.has_more())
    }

    fn falls_asleep(&mut self) -> bool {
        self.renew();
        // All of them, as each is told on its own.
        self.receivers
            .values_mut()
            .filter_map(|receiver| (!receiver.falls_asleep()).then_some(()))
            .count()
            == 0
    }

    fn wakes_up(&mut self) {
        self.receivers.values_mut().for_each(|receiver| receiver.wakes_up());
    }

    fn signalled(&mut self) {
        self.renew();
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.shared.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => unreachable!("epoll_wait of a descriptor that is open: {errno}"),
        };
        for event in &events[..count] {
            let id = event.data() as RailId;
            if event.events().contains(EpollFlags::EPOLLOUT) {
                let mut out = lock(&self.shared.out);
                out.bundle.emptied(id);
                self.shared.carry(&mut out);
            }
            if let Some(receiver) = self.receivers.get_mut(&id) {
                receiver.signalled();
                self.ready.push(id);
            }
        }
        self.ready.sort_unstable();
        self.ready.dedup();
    }
}

/// What arrives by one rail.
struct Arriving<'a> {
    shared: &'a Shared,
    id: RailId,
    gather: &'a mut Gather,
    sink: &'a mut dyn Sink,
    /// The other end is to be told at once.
    is_told: bool,
}

impl Sink for Arriving<'_> {
    fn buffer_of_piece(&mut self, _: u32, _: usize) -> Result<Vec<u8>, Malformed> {
        Err(Malformed::Unknown("a stream without rails"))
    }

    fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
        let now = self.shared.now();
        self.shared.is_heard.store(true, Release);
        match head.frame {
            Frame::Carried { number, delivered, arrived } => {
                // There is no bound on how many without a head could come before their turn.
                if payload.len() < HEAD {
                    return Err(Malformed::Unknown("a frame of rails"));
                }
                self.heard(Word { delivered, arrived }, now)?;
                self.is_told |= lock(&self.shared.out).bundle.arrived(self.id, payload.len());
                self.gather.arrived(number, payload.into_vec())?;
                self.deliver()
            }
            Frame::Noted { delivered, arrived } => self.heard(Word { delivered, arrived }, now),
            Frame::Probe { token } => {
                let out = &mut *lock(&self.shared.out);
                // So what little is sent is told at once now and then, and shows how quick the rail is.
                if out.bundle.owes(self.id) {
                    self.shared.note(out, self.id);
                }
                self.shared.answer(out, self.id, token);
                Ok(())
            }
            Frame::Answered { token } => {
                let out = &mut *lock(&self.shared.out);
                out.bundle.answered(self.id, token, now)?;
                self.shared.carry(out);
                Ok(())
            }
            _ => Err(Malformed::Unknown("a stream without rails")),
        }
    }
}

impl Arriving<'_> {
    /// The other end has what it says; there may be room for more.
    fn heard(&self, word: Word, now: Duration) -> Result<(), Malformed> {
        let out = &mut *lock(&self.shared.out);
        out.bundle.heard(self.id, word, now)?;
        self.shared.carry(out);
        Ok(())
    }

    /// Gives on what is in its turn. It counts as delivered when that is done.
    fn deliver(&mut self) -> Result<(), Malformed> {
        while let Some(frame) = self.gather.take() {
            let (head, payload) =
                frame.split_first_chunk().ok_or(Malformed::Unknown("a frame of rails"))?;
            let head = Head::decode(head)?;
            if head.length as usize != payload.len() {
                return Err(Malformed::Unknown("a frame of rails"));
            }
            let mut buffer = super::buffer(self.sink, &head)?;
            buffer.extend_from_slice(payload);
            self.sink.frame(&head, buffer.into())?;
            lock(&self.shared.out).delivered = self.gather.delivered();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
