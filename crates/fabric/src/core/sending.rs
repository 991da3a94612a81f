//! The way of a message out: within the context, by a link at once, or as soon as there is room and a taker.

use super::waiting::Look;
use super::{Core, Patience};
use crate::error::SendError;
use crate::flow::charge;
use crate::frame::EAGER_MOST;
use crate::id::{Place, ResourceId};
use crate::inbox::{Arrived, Body};
use crate::link::{Attempt, Home, Link};
use crate::matching::Tag;
use crate::pacing::Carriage;
use crate::payload::{Buffer, Payload};
use crate::progress::Parker;
use crate::transport::Broken;
use std::mem;
use std::sync::Arc;

impl Core {
    /// Sends a short message by the link that there is if nothing has to be waited for; false if it has to be sent
    /// otherwise: then nothing is taken out of `payload`.
    pub fn send_at_once(
        &self,
        from: Place,
        to: ResourceId,
        tag: Tag,
        payload: &mut Payload<'_>,
    ) -> bool {
        if payload.len() > EAGER_MOST || !self.turns.are_free() {
            return false;
        }
        let view = self.junction.links.view();
        let Some(link) = view.to(to.context) else { return false };
        let Some(inbox) = self.junction.inboxes.at(from) else { return false };
        let credit = inbox.credit_with_message(link.id);
        let sent = link.message(from, to.place, tag, payload, credit);
        let sent = matches!(sent, Ok(Attempt::Done));
        if sent {
            self.flush_soon(link);
        } else if credit > 0 {
            inbox.with(|inbox| {
                // If it breaks after this look, that is forgotten with it; before, it would be kept for ever.
                if link.broken().is_none() {
                    inbox.put_back(link.id, credit);
                }
            });
        }
        sent
    }

    /// Sends a message: what is given is taken out of `payload` then.
    pub fn send(
        &self,
        from: Place,
        to: ResourceId,
        tag: Tag,
        payload: &mut Payload<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        if payload.len() as u64 > self.config.message_most {
            let (bytes, most) = (payload.len(), self.config.message_most);
            return Err(SendError::TooLong { bytes, most });
        }
        if self.turns.post((from, to)) {
            let is_long = payload.len() > EAGER_MOST && to.context != self.id;
            let carriage = if is_long { Carriage::InPieces } else { Carriage::Whole };
            self.wait_for_turn((from, to), payload.len(), carriage, patience)?;
        }
        if to.context == self.id {
            return self.send_within(from, to.place, tag, payload, patience);
        }
        let link = &self.link_to(to.context, patience)?;
        let sent = match payload {
            Payload::Given(data) if data.len() > EAGER_MOST => {
                self.give(link, from, to.place, tag, data, patience)
            }
            Payload::Lent(data) if data.len() > EAGER_MOST => {
                self.lend(link, from, to.place, tag, data, patience)
            }
            short => self.attempt(link, patience, || link.message(from, to.place, tag, short, 0)),
        };
        self.flush_soon(link);
        sent.inspect_err(|error| {
            if let SendError::Broken(broken) = error {
                self.lost(link, broken.clone());
            }
        })
    }

    fn give(
        &self,
        link: &Link,
        from: Place,
        to: Place,
        tag: Tag,
        data: &mut Buffer,
        patience: Patience,
    ) -> Result<(), SendError> {
        self.attempt(link, patience, || link.offer_given(from, to, tag, data))
    }

    fn lend(
        &self,
        link: &Link,
        from: Place,
        to: Place,
        tag: Tag,
        data: &[u8],
        patience: Patience,
    ) -> Result<(), SendError> {
        let Patience::Until(deadline) = patience else { return Err(SendError::WouldBlock) };
        let mut token = None;
        self.attempt(link, patience, || {
            token = link.offer_lent(from, to, tag, data.len())?;
            Ok(if token.is_some() { Attempt::Done } else { Attempt::Wait })
        })?;
        let Some(token) = token else { return Ok(()) };
        let flow = (from, ResourceId { context: link.peer, place: to });
        let mut sent = 0;
        let mut send = || match link.send_lent(token, data, &mut sent) {
            Ok(None) if link.is_held(token) => Look::At(self.turns.piece_at(flow)),
            Ok(None) => Look::Later,
            Ok(Some(Ok(()))) => Look::Done(Ok(())),
            Ok(Some(Err(reason))) => Look::Done(Err(SendError::Rejected(reason))),
            Err(broken) => Look::Done(Err(SendError::Broken(broken))),
        };
        let enlist = |parker: &Arc<Parker>| link.enlist(parker);
        if let Some(result) = self.wait_in_turn(flow, deadline, &mut send, enlist) {
            return result;
        }
        if link.withdraw(token) {
            return Err(SendError::TimedOut);
        }
        // It was taken at the last moment: half a message is no message.
        self.wait_in_turn(flow, None, send, enlist).unwrap_or(Err(SendError::TimedOut))
    }

    /// Tries until it is done or patience is at its end.
    fn attempt(
        &self,
        link: &Link,
        patience: Patience,
        mut attempt: impl FnMut() -> Result<Attempt, Broken>,
    ) -> Result<(), SendError> {
        let mut attempt = || match attempt() {
            Ok(Attempt::Done) => Some(Ok(())),
            Ok(Attempt::Wait) => None,
            Err(broken) => Some(Err(SendError::Broken(broken))),
        };
        if let Some(done) = attempt() {
            return done;
        }
        let Patience::Until(deadline) = patience else {
            self.progress.look(self);
            return attempt().unwrap_or(Err(SendError::WouldBlock));
        };
        let enlist = |parker: &Arc<Parker>| link.enlist(parker);
        let done = self.progress.wait(self, deadline, attempt, enlist);
        done.unwrap_or(Err(SendError::TimedOut))
    }

    fn send_within(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        payload: &mut Payload<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        // A given buffer was there before; only what is copied takes memory.
        let bytes = payload.len();
        let charge = charge(if payload.is_given() { 0 } else { bytes });
        let id = ResourceId { context: self.id, place: to };
        let has_room = || self.junction.inboxes.with(to, |inbox| inbox.has_room(charge, bytes));
        let room = || match has_room() {
            None => Some(Err(SendError::Gone(id))),
            Some(true) => Some(Ok(())),
            Some(false) => None,
        };
        match (room(), patience) {
            (Some(room), _) => room?,
            (None, Patience::None) => return Err(SendError::WouldBlock),
            (None, Patience::Until(deadline)) => {
                let enlist = |parker: &Arc<Parker>| {
                    self.junction.inboxes.with(to, |inbox| inbox.enlist_sender(parker));
                };
                let waited = self.progress.wait(self, deadline, room, enlist);
                waited.unwrap_or(Err(SendError::TimedOut))?;
            }
        }
        let from = ResourceId { context: self.id, place: from };
        let body = Body::Whole(mem::replace(payload, Payload::Lent(&[])).into_buffer());
        let message = Arrived { from, tag, body, link: 0, charge };
        match self.deliver(to, message) {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(SendError::Gone(id)),
        }
    }
}
