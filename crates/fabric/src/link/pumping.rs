//! What waits on a link is carried by whoever comes by: answers first, then pieces of what was given.

use super::offers::{Data, Offer};
use super::out::Out;
use super::{Home, Link};
use crate::frame::Frame;
use crate::payload::Payload;
use crate::transport::{self, Broken};
use keeptime_locks::try_lock;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// What is left when all was sent that could be.
#[derive(Clone, Copy, PartialEq)]
enum Left {
    Nothing,
    /// What there is no room for.
    Full,
    /// Pieces whose time has not come.
    Held,
}

impl Link {
    /// Sends what waits: answers first, then pieces of what was given. Then others may try again.
    ///
    /// # Errors
    /// If the link breaks.
    pub fn pump(&self, home: &impl Home) -> Result<(), Broken> {
        let Ok(out) = self.out() else { return Ok(()) };
        self.pump_with(out, home)
    }

    /// The same, unless another thread is just sending: what waits then waits for that one.
    ///
    /// # Errors
    /// As above.
    pub fn pump_if_free(&self, home: &impl Home) -> Result<(), Broken> {
        match try_lock(&self.out) {
            Some(out) if self.broken.get().is_none() => self.pump_with(out, home),
            _ => Ok(()),
        }
    }

    fn pump_with(&self, mut out: MutexGuard<'_, Out>, home: &impl Home) -> Result<(), Broken> {
        let (done, room) = loop {
            let carried = out.flush()?;
            let left = if carried { self.send_waiting(&mut out)? } else { Left::Full };
            // What was sent just now may be kept: that is a backlog as well.
            let done = left == Left::Nothing && out.flush()?;
            if !done {
                out.expect_read()?;
            }
            let room = done || !out.sender.as_mut().is_some_and(|sender| sender.falls_asleep());
            // If room was made since it was looked for, nobody tells: look again.
            if done || !carried || !room || left == Left::Held {
                break (done, room);
            }
        };
        let settled = out.sender.as_mut().is_none_or(|sender| sender.is_settled());
        self.unsettled.store(!settled, Relaxed);
        self.backlog.store(!done || !settled, Relaxed);
        drop(out);
        if room {
            self.wake_waiting(home);
        }
        Ok(())
    }

    /// Sends answers and pieces. Returns what is left.
    fn send_waiting(&self, out: &mut Out) -> Result<Left, Broken> {
        while let Some((answer, seen)) = out.answers.front().copied() {
            let nothing = &mut Payload::Lent(&[]);
            if self.write_as_of(out, answer, nothing, seen, false)? == transport::Sent::Full {
                return Ok(Left::Full);
            }
            out.answers.pop_front();
        }
        // Receivers that were passed over since a piece was sent.
        let mut held = 0;
        loop {
            match out.offers.receivers() {
                0 => return Ok(Left::Nothing),
                all if held == all => return Ok(Left::Held),
                _ => {}
            }
            match out.offers.next_in_turn(|message| self.has_turn(message)) {
                None => held += 1,
                Some(token) => {
                    if !self.send_piece(out, token)? {
                        return Ok(Left::Full);
                    }
                    held = 0;
                }
            }
            // Others get a turn between two pieces.
            out.offers.next_receiver();
        }
    }

    /// Sends the next piece of a given message of the first receiver's. Returns whether there was room.
    fn send_piece(&self, out: &mut Out, token: u32) -> Result<bool, Broken> {
        let Some(Offer { data: Data::Given(data, at), sent, number, size }) =
            out.offers.remove(token)
        else {
            out.offers.all_sent(token);
            return Ok(true);
        };
        let piece = out.piece().min(data.len() - at);
        // Whatever comes of it, the offer stays on record.
        let written = self.write(out, Frame::Piece { token }, &data[at..at + piece]);
        let room = matches!(written, Ok(true));
        let at = if room { at + piece } else { at };
        if room {
            self.carried(sent, piece);
        }
        let data = if at == data.len() {
            out.offers.all_sent(token);
            Data::Gone
        } else {
            Data::Given(data, at)
        };
        out.offers.put_back(token, Offer { sent, number, size, data });
        written
    }
}
