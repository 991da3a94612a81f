//! What arrives on a link: each frame goes where it belongs.

use super::{Data, Home, Lent, Link};
use crate::flow::{CHARGE_LEAST, Sent, charge};
use crate::frame::{Frame, Head, Malformed, Refusal};
use crate::id::{Place, ResourceId};
use crate::inbox::{Arrived, Body};
use crate::matching::Tag;
use crate::progress::lock;
use crate::transport::Sink;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What arrives on a link goes where it belongs.
pub struct Delivery<'a, H> {
    pub link: &'a Arc<Link>,
    pub home: &'a H,
}

impl<H: Home> Sink for Delivery<'_, H> {
    fn buffer(&mut self, head: &Head) -> Result<Vec<u8>, Malformed> {
        let length = head.length as usize;
        let Frame::Piece { token } = head.frame else { return Ok(Vec::with_capacity(length)) };
        let mut assemblies = lock(&self.link.assemblies);
        let assembly = assemblies.get_mut(&token).ok_or(Malformed::Unknown("a piece"))?;
        let buffer = assembly.buffer.take().ok_or(Malformed::Unknown("a piece"))?;
        if length == 0 || buffer.len() + length > assembly.size {
            return Err(Malformed::Unknown("a piece"));
        }
        Ok(buffer)
    }

    fn frame(&mut self, head: &Head, buffer: Vec<u8>) -> Result<(), Malformed> {
        self.link.confirmed.store(head.seen, Relaxed);
        if head.frame.is_counted() {
            self.link.in_a_row.store(0, Relaxed);
        }
        match head.frame {
            Frame::Message { from, to, tag, credit } => {
                self.credited(from, credit)?;
                let charge = charge(buffer.len());
                self.arrived(from, to, tag, Body::Whole(buffer.into()), charge, 0)?;
            }
            Frame::Offer { from, to, tag, size, token } => {
                self.offered(from, to, tag, size, token)?;
            }
            Frame::Clear { token } => self.cleared(token)?,
            Frame::Piece { token } => self.piece(token, buffer)?,
            Frame::Done { token } => {
                lock(&self.link.out).offers.remove(&token);
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
}

impl<H: Home> Delivery<'_, H> {
    fn arrived(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        body: Body,
        charge: u32,
        token: u32,
    ) -> Result<(), Malformed> {
        let sender = ResourceId { context: self.link.peer, place: from };
        let message = Arrived { from: sender, tag, body, link: self.link.id, charge };
        match self.home.deliver(to, message)? {
            None => self.link.has_seen_one_more(),
            Some(reason) => self.link.reject(Sent { from, to, tag }, token, charge, reason),
        }
        Ok(())
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
        if size > self.home.message_most() {
            let sent = Sent { from, to, tag };
            self.link.reject(sent, token, CHARGE_LEAST, Refusal::TooLong);
            return Ok(());
        }
        let body = Body::Offered { link: self.link.clone(), token, size, ahead: false };
        self.arrived(from, to, tag, body, CHARGE_LEAST, token)
    }

    fn cleared(&self, token: u32) -> Result<(), Malformed> {
        let mut guard = lock(&self.link.out);
        let out = &mut *guard;
        match out.offers.get_mut(&token).map(|offer| (offer.sent.to, &mut offer.data)) {
            Some((to, Data::Given(..))) => {
                out.clear(to, token);
                drop(guard);
                // If it breaks, that is found by whoever receives or sends next.
                let _ = self.link.pump(self.home);
            }
            Some((_, Data::Lent(lent))) if *lent == Lent::Waiting => {
                *lent = Lent::Cleared;
                drop(guard);
                self.link.wake_waiting(self.home);
            }
            // Its sender has given up meanwhile: the receiver has to know.
            Some((_, Data::Withdrawn)) | None if token <= out.last_token => {
                out.offers.remove(&token);
                drop(guard);
                self.link.answer(Frame::Withdrawn { token });
            }
            _ => return Err(Malformed::Unknown("an offer")),
        }
        Ok(())
    }

    fn piece(&self, token: u32, buffer: Vec<u8>) -> Result<(), Malformed> {
        let mut assemblies = lock(&self.link.assemblies);
        let assembly = assemblies.get_mut(&token).ok_or(Malformed::Unknown("a piece"))?;
        assembly.done = buffer.len() == assembly.size;
        assembly.buffer = Some(buffer);
        if !assembly.done {
            return Ok(());
        }
        let (parker, rejection) = (assembly.parker.take(), assembly.rejection);
        if rejection.is_some() {
            assemblies.remove(&token);
        }
        drop(assemblies);
        if let Some(parker) = parker {
            self.home.progress().wake(&parker);
        }
        self.link.answer(Frame::Done { token });
        rejection.into_iter().for_each(|rejection| self.link.answer(rejection));
        Ok(())
    }

    fn withdrawn(&self, token: u32) -> Result<(), Malformed> {
        let mut assemblies = lock(&self.link.assemblies);
        let coming = assemblies.get_mut(&token).filter(|assembly| assembly.is_coming());
        let assembly = coming.ok_or(Malformed::Unknown("a taken offer"))?;
        (assembly.is_withdrawn, assembly.buffer) = (true, None);
        let (parker, rejection) = (assembly.parker.take(), assembly.rejection);
        if rejection.is_some() {
            assemblies.remove(&token);
        }
        drop(assemblies);
        if let Some(parker) = parker {
            self.home.progress().wake(&parker);
        }
        rejection.into_iter().for_each(|rejection| self.link.give_back(rejection));
        Ok(())
    }

    fn rejected(&self, sent: Sent, token: u32, bytes: u32, why: Refusal) -> Result<(), Malformed> {
        let mut guard = lock(&self.link.out);
        let out = &mut *guard;
        out.flow.credit(sent.to, u64::from(bytes))?;
        // What an offer was charged with was given back before it is fetched.
        let size = out.offers.get(&token).map(|offer| offer.size as u64);
        let asked = size.filter(|_| bytes == 0).unwrap_or(bytes.into());
        let why = why.told(asked);
        // A thread that lends is told by what its call returns, also if it has given up.
        let mut by_call = false;
        match out.offers.get_mut(&token).map(|offer| &mut offer.data) {
            Some(Data::Lent(state)) => {
                *state = Lent::Failed(why);
                by_call = true;
            }
            Some(Data::Withdrawn) => {
                out.offers.remove(&token);
                by_call = true;
            }
            Some(Data::Given(data, _)) => {
                out.parked -= data.len();
                out.offers.remove(&token);
            }
            Some(Data::Gone) | None => {}
        }
        drop(guard);
        if !by_call {
            self.home.notify(sent.from, self.link.undelivered(sent.to, sent.tag, why));
        }
        self.link.wake_waiting(self.home);
        Ok(())
    }
}
