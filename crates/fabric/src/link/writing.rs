//! What is said on a link: frames, each with how many messages had been seen by then, and answers, which wait where
//! there is no room.

use super::Link;
use super::out::Out;
use crate::flow::Sent;
use crate::frame::{Frame, Head, Refusal};
use crate::payload::Payload;
use crate::transport::{self, Broken};
use std::sync::atomic::Ordering::Relaxed;

impl Link {
    /// Says `frame`, now or as soon as there is room.
    pub fn answer(&self, frame: Frame) {
        if let Ok(mut out) = self.out() {
            self.answer_now(&mut out, frame);
        }
    }

    /// The same for a message that has just arrived and is not delivered: it counts as seen from this
    /// answer on. If others could say so before, and the connection broke then, its sender would
    /// never be told.
    pub(super) fn reject(&self, sent: Sent, token: u32, bytes: u32, reason: Refusal) {
        let Sent { from, to, tag } = sent;
        if let Ok(mut out) = self.out() {
            self.has_seen_one_more();
            self.answer_now(&mut out, Frame::Rejected { from, to, tag, token, bytes, reason });
        }
    }

    fn answer_now(&self, out: &mut Out, frame: Frame) {
        let written = out.answers.is_empty() && self.write(out, frame, &[]).unwrap_or(false);
        // One that is over keeps nothing for an end that is not there.
        if !written && out.sender.is_some() {
            out.answers.push_back((frame, self.seen.load(Relaxed)));
            self.backlog.store(true, Relaxed);
        }
    }

    pub(super) fn has_seen_one_more(&self) {
        let seen = self.seen.load(Relaxed);
        self.seen.store(seen.wrapping_add(1), Relaxed);
    }

    /// Writes a frame; false if there is no room.
    pub(super) fn write(
        &self,
        out: &mut Out,
        frame: Frame,
        payload: &[u8],
    ) -> Result<bool, Broken> {
        let sent = self.write_with_others(out, frame, &mut Payload::Lent(payload), false)?;
        Ok(sent != transport::Sent::Full)
    }

    /// The same of what may be given: it may be taken out of `payload` if there is room.
    #[inline(always)]
    pub(super) fn write_with_others(
        &self,
        out: &mut Out,
        frame: Frame,
        payload: &mut Payload<'_>,
        with_others: bool,
    ) -> Result<transport::Sent, Broken> {
        // What waits in the queue of answers is not overtaken by a frame that says as much as it does.
        let seen = if out.answers.is_empty() { self.seen.load(Relaxed) } else { out.said };
        self.write_as_of(out, frame, payload, seen, with_others)
    }

    #[inline(always)]
    pub(super) fn write_as_of(
        &self,
        out: &mut Out,
        frame: Frame,
        payload: &mut Payload<'_>,
        seen: u32,
        with_others: bool,
    ) -> Result<transport::Sent, Broken> {
        let head = Head { frame, length: payload.len() as u32, seen }.encode();
        let sender = out.sender.as_mut().ok_or(Broken::Closed)?;
        let sent = loop {
            let sent = sender.take(&head, payload, with_others)?;
            // Now, and not when a thread is enlisted: it, or another one, may fill what room there is then before it
            // sleeps. While nobody is enlisted nobody is told: all of them look.
            if sent != transport::Sent::Full || !self.is_awaited() || sender.falls_asleep() {
                break sent;
            }
        };
        if sent != transport::Sent::Full {
            out.said = seen;
        }
        if sent == transport::Sent::Kept {
            self.backlog.store(true, Relaxed);
        }
        Ok(sent)
    }
}
