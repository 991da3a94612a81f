//! What has arrived on a link is looked for and handled, and long messages are fetched.

use super::assemblies::NotTaken;
use super::delivery::Delivery;
use super::{Home, Link};
use crate::frame::{Frame, Malformed};
use crate::id::Place;
use crate::transport::{Broken, Receiving};
use keeptime_locks::{lock, try_lock};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Looks for what has arrived on a link that ends: at some 64 KiB each, more than any kernel keeps for one connection.
const LAST_LOOKS: u32 = 4096;
/// So often in a row a link is read of which more is expected, before the kernel is asked about all: little against what
/// others wait anyhow, and then asking costs a small part of what reading does.
const UNASKED_MOST: u32 = 8;

impl Link {
    /// Whether [`Self::receive`] may have something to do.
    pub fn may_have_frames(&self) -> bool {
        self.glance.as_ref().is_none_or(|glance| glance.may_have_frames()) || self.has_backlog()
    }

    /// Handles frames that have arrived, unless another thread does. Returns how many.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn receive(self: &Arc<Self>, home: &impl Home) -> Result<usize, Broken> {
        let Some(mut input) = try_lock(&self.input) else { return Ok(0) };
        let Some(receiver) = input.as_mut() else { return Ok(0) };
        self.attended.store(true, Relaxed);
        let frames = match receiver.poll_into(&mut Delivery { link: self, home }) {
            Ok(frames) => frames,
            Err(broken) => return Err(end_of(broken, &mut input)),
        };
        if !receiver.has_more() {
            self.unasked.store(0, Relaxed);
        }
        if receiver.owes() {
            // With the lock, so that nobody who has looked before says that nothing waits.
            let _out = lock(&self.out);
            self.backlog.store(true, Relaxed);
        }
        if frames == 0 && self.has_backlog() {
            drop(input);
            self.pump(home)?;
        }
        Ok(frames)
    }

    /// Whether it is to be read before the kernel is asked what else there is: more has probably arrived, and that was not
    /// so too often in a row.
    pub fn is_read_on(&self) -> bool {
        let left = self.unasked.load(Relaxed);
        // Threads that do so at the same time may count as one: there are few, and it stays bounded.
        self.unasked.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// Handles all frames that have arrived, after those that another thread just handles.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn receive_all(self: &Arc<Self>, home: &impl Home) -> Result<(), Broken> {
        let mut input = self.input();
        let Some(receiver) = input.as_mut() else { return Ok(()) };
        for _ in 0..LAST_LOOKS {
            match receiver.poll_into(&mut Delivery { link: self, home }) {
                Ok(0) => break,
                Ok(_) => {}
                Err(broken) => return Err(end_of(broken, &mut input)),
            }
        }
        Ok(())
    }

    /// What is watched became ready: frames, room, or the end.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn signalled(self: &Arc<Self>, home: &impl Home) -> Result<(), Broken> {
        if let Some(receiver) = self.input().as_mut() {
            receiver.signalled();
        }
        // If nothing more is expected, that takes it back.
        self.unasked.store(UNASKED_MOST, Relaxed);
        self.receive(home)?;
        if self.has_backlog() {
            return self.pump(home);
        }
        self.wake_waiting(home);
        Ok(())
    }

    /// The caller is going to sleep. Returns false if there is something to do.
    pub fn falls_asleep(&self) -> bool {
        self.input().as_mut().is_none_or(|receiver| receiver.falls_asleep())
    }

    /// It is awake again.
    pub fn wakes_up(&self) {
        if let Some(receiver) = self.input().as_mut() {
            receiver.wakes_up();
        }
    }

    /// Takes an offer for `to`, unless nothing arrives any more: its pieces are written to a buffer of their own.
    ///
    /// # Errors
    /// If it cannot be taken.
    pub fn take_offer(&self, token: u32, to: Place, size: usize) -> Result<(), NotTaken> {
        if self.assemblies.begin(token, to, size)? {
            self.answer(Frame::Clear { token });
        }
        Ok(())
    }

    /// Whether an offer was taken, and nobody has what arrived.
    #[cfg(test)]
    pub fn has_taken(&self, token: u32) -> bool {
        self.assemblies.has(token)
    }

    /// Says `rejection` of an offer that nobody wants any more; if it was taken, when all of it has arrived:
    /// its sender does not stop before.
    pub fn reject_offer(&self, token: u32, rejection: Frame) {
        if let Some(answer) = self.assemblies.reject(token, rejection) {
            self.answer(answer);
        }
    }

    /// Whether more of a taken offer is to arrive.
    pub fn is_coming(&self, token: u32) -> bool {
        self.assemblies.is_coming(token)
    }

    /// What has arrived of a taken offer, if that is all of it. More of it is not to arrive.
    pub fn assembled(&self, token: u32) -> Option<Vec<u8>> {
        self.assemblies.take(token)
    }
}

/// Why a link is over on which what came could not be handled. Nothing after that is read.
#[cold]
fn end_of(broken: Broken, input: &mut Option<Receiving>) -> Broken {
    *input = None;
    match broken {
        // Its other end has made a later one, and no mistake.
        Broken::Malformed(Malformed::GivenUp) => Broken::Closed,
        broken => broken,
    }
}
