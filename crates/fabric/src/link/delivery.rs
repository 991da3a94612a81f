//! What arrives on a link: each frame goes where it belongs.

use super::assemblies::Ended;
use super::offers::SentBy;
use super::{Home, Link};
use crate::flow::{CHARGE_LEAST, Sent, charge};
use crate::frame::{Frame, Head, Malformed, Refusal};
use crate::id::{Place, ResourceId};
use crate::inbox::{Arrived, Body, Fetch, Offered};
use crate::matching::Tag;
use crate::payload::Buffer;
use crate::transport::Sink;
use keeptime_locks::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What arrives on a link goes where it belongs.
pub struct Delivery<'a, H> {
    pub link: &'a Arc<Link>,
    pub home: &'a H,
}

impl<H: Home> Sink for Delivery<'_, H> {
    fn buffer_of_piece(&mut self, token: u32, length: usize) -> Result<Vec<u8>, Malformed> {
        self.link.assemblies.buffer(token, length)
    }

    fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
        self.short_frame(head, || payload)
    }

    #[inline(always)]
    fn short_frame(
        &mut self,
        head: &Head,
        payload: impl FnOnce() -> Buffer,
    ) -> Result<(), Malformed> {
        self.link.confirmed.store(head.seen, Relaxed);
        let Frame::Message { from, to, tag, credit } = head.frame else {
            return self.no_message(head.frame, payload());
        };
        self.link.in_a_row.store(0, Relaxed);
        // Mostly it says nothing, and then nothing is to be called for it.
        if credit > 0 {
            self.credited(from, credit)?;
        }
        let charge = charge(head.length as usize);
        let message = self.message(from, tag, || Body::Whole(payload()), charge);
        let refused = self.home.deliver_short(to, message)?;
        self.delivered(Sent { from, to, tag }, 0, charge, refused);
        Ok(())
    }

    fn has_enough(&self) -> bool {
        self.home.has_enough()
    }
}

impl<H: Home> Delivery<'_, H> {
    /// What nearly no frame is.
    #[cold]
    fn no_message(&self, frame: Frame, payload: Buffer) -> Result<(), Malformed> {
        match frame {
            Frame::Message { .. } => unreachable!("a message was told apart before"),
            Frame::Offer { from, to, tag, size, token } => {
                self.link.in_a_row.store(0, Relaxed);
                self.offered(from, to, tag, size, token)?;
            }
            Frame::Clear { token } => self.cleared(token)?,
            Frame::Piece { token } => self.piece(token, payload.into_vec())?,
            Frame::Done { token } => {
                lock(&self.link.out).offers.remove(token);
            }
            Frame::Withdrawn { token } => self.withdrawn(token)?,
            Frame::Credit { place, bytes } => self.credited(place, bytes)?,
            Frame::Rejected { from, to, tag, token, bytes, reason } => {
                self.rejected(Sent { from, to, tag }, token, bytes, reason)?;
            }
            Frame::Begun { number } => self.home.begun(self.link, number)?,
            Frame::Carried { .. }
            | Frame::Noted { .. }
            | Frame::Probe { .. }
            | Frame::Answered { .. } => return Err(Malformed::Unknown("a rail")),
        }
        Ok(())
    }

    #[inline(always)]
    fn message<B>(&self, from: Place, tag: Tag, body: B, charge: u32) -> Arrived<B> {
        let from = ResourceId { context: self.link.peer, place: from };
        Arrived { from, tag, body, link: self.link.id, charge }
    }

    #[inline(always)]
    fn delivered(&self, sent: Sent, token: u32, charge: u32, refused: Option<Refusal>) {
        match refused {
            None => self.link.has_seen_one_more(),
            Some(reason) => self.link.reject(sent, token, charge, reason),
        }
    }

    fn credited(&self, place: Place, bytes: u64) -> Result<(), Malformed> {
        if bytes > 0 {
            lock(&self.link.out).flow.credit(place, bytes)?;
            self.link.wake_waiting(self.home);
        }
        Ok(())
    }

    fn offered(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        size: u64,
        token: u32,
    ) -> Result<(), Malformed> {
        // That is no name.
        if token == 0 {
            return Err(Malformed::Unknown("an offer"));
        }
        if size > self.home.message_most() {
            let sent = Sent { from, to, tag };
            self.link.reject(sent, token, CHARGE_LEAST, Refusal::TooLong);
            return Ok(());
        }
        let offered = Offered { link: self.link.clone(), token, size, fetch: Fetch::No };
        let message = self.message(from, tag, Body::Offered(offered.into()), CHARGE_LEAST);
        let refused = self.home.deliver(to, message)?;
        self.delivered(Sent { from, to, tag }, token, CHARGE_LEAST, refused);
        Ok(())
    }

    fn cleared(&self, token: u32) -> Result<(), Malformed> {
        let sent_by = lock(&self.link.out).offers.taken(token)?;
        match sent_by {
            SentBy::Link => {
                // If it breaks, that is found by whoever receives or sends next.
                let _ = self.link.pump(self.home);
            }
            SentBy::Lender => self.link.wake_waiting(self.home),
            // The receiver has to know.
            SentBy::Nobody => self.link.answer(Frame::Withdrawn { token }),
        }
        Ok(())
    }

    fn piece(&self, token: u32, buffer: Vec<u8>) -> Result<(), Malformed> {
        if let Some(ended) = self.link.assemblies.piece(token, buffer)? {
            self.ended(ended);
        }
        Ok(())
    }

    fn withdrawn(&self, token: u32) -> Result<(), Malformed> {
        self.ended(self.link.assemblies.withdrawn(token)?);
        Ok(())
    }

    /// Nothing more of a long message arrives: tells its receiver, and says what is to be said then.
    fn ended(&self, Ended { to, answers }: Ended) {
        self.home.fetched(to);
        answers.into_iter().flatten().for_each(|answer| self.link.answer(answer));
    }

    fn rejected(&self, sent: Sent, token: u32, bytes: u32, why: Refusal) -> Result<(), Malformed> {
        let mut out = lock(&self.link.out);
        let offer = out.offers.get(token).map(|offer| (offer.sent, offer.size as u64));
        // What an offer was charged with was given back before it is fetched. All else gives back what it was charged.
        let size = offer.filter(|_| bytes == 0).map(|(_, size)| size);
        let is_another = offer.is_some_and(|(offered, _)| offered != sent);
        if is_another || size.is_none() && bytes < CHARGE_LEAST {
            return Err(Malformed::Unknown("a message"));
        }
        out.flow.rejected(sent.to, u64::from(bytes))?;
        let asked = size.unwrap_or(bytes.into());
        let why = why.told(asked);
        let is_told_by_call = out.offers.rejected(token, why);
        drop(out);
        if !is_told_by_call {
            self.home.notify(sent.from, self.link.undelivered(sent.to, sent.tag, why));
        }
        self.link.wake_waiting(self.home);
        Ok(())
    }
}
