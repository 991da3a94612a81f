//! Messages and offers of threads that send.

use super::offers::{Data, Lent, Offer};
use super::out::Out;
use super::{Attempt, Link};
use crate::flow::{CHARGE_LEAST, Sent, charge};
use crate::frame::{EAGER_MOST, Frame, Reason};
use crate::id::Place;
use crate::matching::Tag;
use crate::payload::{Buffer, Payload};
use crate::transport::{self, Broken};
use std::sync::atomic::Ordering::Relaxed;

/// So many messages without one from the other end are a stream: more are gathered.
const IN_A_ROW: u32 = 4;

impl Link {
    /// Sends a message of at most [`EAGER_MOST`] bytes, and that `from` gives back `credit`. If it is given, it may be taken
    /// out of `payload` when that is done, and not otherwise.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn message(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        payload: &mut Payload<'_>,
        credit: u32,
    ) -> Result<Attempt, Broken> {
        debug_assert!(payload.len() <= EAGER_MOST, "longer ones are offered");
        let mut out = self.out()?;
        if !out.has_begun && !self.begin(&mut out)? {
            return Ok(Attempt::Wait);
        }
        let charge = charge(payload.len());
        if !out.flow.reserve(to, charge) {
            return Ok(Attempt::Wait);
        }
        out.flow.confirm(self.confirmed.load(Relaxed))?;
        let in_a_row = self.in_a_row.load(Relaxed);
        let frame = Frame::Message { from, to, tag, credit: credit.into() };
        let sent = self.write_with_others(&mut out, frame, payload, in_a_row >= IN_A_ROW)?;
        if sent == transport::Sent::Full {
            out.flow.credit(to, u64::from(charge))?;
            return Ok(Attempt::Wait);
        }
        self.in_a_row.store(in_a_row.saturating_add(1), Relaxed);
        out.flow.sent(Sent { from, to, tag });
        Ok(Attempt::Done)
    }

    /// Offers a longer message that is given away: taken out of `data` when it is done.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn offer_given(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        data: &mut Buffer,
    ) -> Result<Attempt, Broken> {
        let mut out = self.out()?;
        if !out.offers.have_room(data.len()) {
            return Ok(Attempt::Wait);
        }
        let sent = Sent { from, to, tag };
        let Some((token, number)) = self.offer(&mut out, sent, data.len())? else {
            return Ok(Attempt::Wait);
        };
        let size = data.len();
        let data = Data::Given(std::mem::take(data), 0);
        out.offers.insert(token, Offer { sent, number, size, data });
        Ok(Attempt::Done)
    }

    /// Offers a longer message that is lent. Returns the offer's name, none if there is no room.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn offer_lent(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        size: usize,
    ) -> Result<Option<u32>, Broken> {
        let mut out = self.out()?;
        let sent = Sent { from, to, tag };
        let Some((token, number)) = self.offer(&mut out, sent, size)? else { return Ok(None) };
        let data = Data::Lent(Lent::Waiting);
        out.offers.insert(token, Offer { sent, number, size, data });
        Ok(Some(token))
    }

    /// Sends of the lent `data` what there is room for, from `sent` on, once it may. Returns
    /// whether all is sent, or why it never will be.
    ///
    /// # Errors
    /// If the link is broken.
    pub fn send_lent(
        &self,
        token: u32,
        data: &[u8],
        sent: &mut usize,
    ) -> Result<Option<Result<(), Reason>>, Broken> {
        let mut out = self.out()?;
        let Some((message, state)) = out.offers.lent(token) else {
            return Ok(Some(Err(Reason::Unconfirmed)));
        };
        match state {
            Lent::Waiting => return Ok(None),
            Lent::Failed(reason) => {
                out.offers.remove(token);
                return Ok(Some(Err(reason)));
            }
            Lent::Cleared | Lent::Held => {}
        }
        while *sent < data.len() {
            if !self.has_turn(message) {
                out.offers.mark(token, Data::Lent(Lent::Held));
                return Ok(None);
            }
            let piece = out.piece().min(data.len() - *sent);
            if !self.write(&mut out, Frame::Piece { token }, &data[*sent..*sent + piece])? {
                out.offers.mark(token, Data::Lent(Lent::Cleared));
                return Ok(None);
            }
            self.carried(message, piece);
            *sent += piece;
        }
        out.offers.mark(token, Data::Gone);
        Ok(Some(Ok(())))
    }

    /// Whether the next piece of a lent message waits for its time.
    pub fn is_held(&self, token: u32) -> bool {
        let Ok(out) = self.out() else { return false };
        out.offers.lent(token).is_some_and(|(_, state)| state == Lent::Held)
    }

    /// The sender of a lent message gives up before anything was sent. Returns whether it could.
    pub fn withdraw(&self, token: u32) -> bool {
        let Ok(mut out) = self.out() else { return true };
        let Some((_, state)) = out.offers.lent(token) else { return false };
        match state {
            Lent::Waiting => out.offers.mark(token, Data::Withdrawn),
            // The other end has done with it.
            Lent::Failed(_) => drop(out.offers.remove(token)),
            Lent::Cleared | Lent::Held => return false,
        }
        true
    }

    /// Sends an offer if there is room; returns its name and its number.
    fn offer(&self, out: &mut Out, sent: Sent, size: usize) -> Result<Option<(u32, u32)>, Broken> {
        if !out.has_begun && !self.begin(out)? {
            return Ok(None);
        }
        if !out.flow.reserve(sent.to, CHARGE_LEAST) {
            return Ok(None);
        }
        out.flow.confirm(self.confirmed.load(Relaxed))?;
        let (Sent { from, to, tag }, token) = (sent, out.offers.next_token());
        let frame = Frame::Offer { from, to, tag, size: size as u64, token };
        if !self.write(out, frame, &[])? {
            out.flow.credit(to, u64::from(CHARGE_LEAST))?;
            return Ok(None);
        }
        Ok(Some((token, out.flow.sent(sent))))
    }

    /// Tells the other end that messages and offers come by this link; false if there is no room.
    #[cold]
    fn begin(&self, out: &mut Out) -> Result<bool, Broken> {
        out.has_begun = self.write(out, Frame::Begun { number: self.id }, &[])?;
        Ok(out.has_begun)
    }
}
