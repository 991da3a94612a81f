//! One resource, as the thread that uses it: it sends one message after the other, and takes one after the other, as
//! `core` has it done.

use super::context::Context;
use super::ledger::{Ledger, Told, Unread, content};
use crate::frame::{EAGER_MOST, Frame, Refusal};
use crate::id::{ContextId, ResourceId};
use crate::inbox::{Arrived, Body, Left, Offered, Taken};
use crate::link::{Attempt, Link};
use crate::matching::{Match, Tag};
use crate::payload::Buffer;
use crate::transport::Broken;
use std::collections::VecDeque;
use std::sync::Arc;

/// What is sent and taken by one resource.
pub struct Resource {
    /// Its name.
    pub id: ResourceId,
    outgoing: VecDeque<Parcel>,
    lending: Option<Lending>,
}

/// A message that is to be sent.
#[derive(Clone, Copy)]
struct Parcel {
    number: u64,
    to: ResourceId,
    length: usize,
    /// It is not given away, if it is long.
    is_lent: bool,
}

/// A message whose sender waits until all of it is sent.
struct Lending {
    link: Arc<Link>,
    token: u32,
    number: u64,
    data: Vec<u8>,
    sent: usize,
}

impl Resource {
    /// One that has nothing to do.
    pub fn new(id: ResourceId) -> Self {
        Self { id, outgoing: VecDeque::new(), lending: None }
    }

    /// It is to send one more.
    pub fn post(&mut self, ledger: &mut Ledger, to: ResourceId, length: usize, is_lent: bool) {
        let number = ledger.post(self.id, to, length);
        self.outgoing.push_back(Parcel { number, to, length, is_lent });
    }

    /// To whom it sends next, if it does.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn next_peer(
        &mut self,
        context: &Context,
        ledger: &mut Ledger,
    ) -> Result<Option<ContextId>, String> {
        if !self.lend(context, ledger)? {
            return Ok(None);
        }
        Ok(self.outgoing.front().map(|parcel| parcel.to.context))
    }

    /// Sends that by `link`; none if there is no way. Returns whether it is done with it.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn send(
        &mut self,
        context: &Context,
        ledger: &mut Ledger,
        link: Option<&Arc<Link>>,
    ) -> Result<bool, String> {
        let Some(parcel) = self.outgoing.front().copied() else { return Ok(false) };
        let sent = match link {
            None => None,
            Some(link) => match self.attempt(context, link, parcel) {
                Ok(Attempt::Wait) => return Ok(false),
                Ok(Attempt::Done) => Some(()),
                Err(broken) => {
                    context.lost(link, broken);
                    None
                }
            },
        };
        self.outgoing.pop_front();
        if sent.is_none() {
            ledger.told(parcel.number, Told::ByCall)?;
        }
        Ok(true)
    }

    /// The thread gives up, if it lends a message of which nothing was sent.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn give_up(&mut self, ledger: &mut Ledger) -> Result<(), String> {
        let withdrawn = self.lending.take_if(|lending| lending.link.withdraw(lending.token));
        match withdrawn {
            Some(lending) => ledger.told(lending.number, Told::GivenUp),
            None => Ok(()),
        }
    }

    /// Takes the next message that `wanted` wants, or a notice. Returns whether there was one.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn take(
        &mut self,
        context: &Context,
        ledger: &mut Ledger,
        wanted: &Match,
    ) -> Result<bool, String> {
        let place = self.id.place;
        let taken = context.junction.inboxes.with(place, |inbox| {
            let taken = inbox.take(wanted).0;
            inbox.fetch(place, wanted, taken.as_ref());
            taken
        });
        match taken.flatten() {
            None => return Ok(false),
            Some(Taken::Notice(notice)) => ledger.noticed(self.id, &notice)?,
            Some(Taken::Message(message, credit)) => {
                if let Some(bytes) = credit
                    && let Some(link) = context.junction.links.numbered(message.link)
                {
                    link.answer(Frame::Credit { place, bytes });
                }
                self.read(message, ledger)?;
            }
        }
        Ok(true)
    }

    /// Whether no thread is in the middle of a message, so that it can be closed.
    pub fn is_free(&self) -> bool {
        self.lending.is_none()
    }

    /// Whether nothing is to be sent, and nothing to be taken.
    pub fn is_idle(&self, context: &Context) -> bool {
        self.is_free()
            && self.outgoing.is_empty()
            && !context.junction.inboxes.at(self.id.place).is_some_and(|inbox| inbox.may_have())
    }

    /// It goes. Whoever sent what it has not taken is told.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn close(self, context: &Context, ledger: &mut Ledger) -> Result<(), String> {
        let place = self.id.place;
        let Some(Left { messages, owed, .. }) = context.junction.inboxes.close(place) else {
            return Ok(());
        };
        for (number, bytes) in owed {
            if let Some(link) = context.junction.links.numbered(number) {
                link.answer(Frame::Credit { place, bytes });
            }
        }
        for message in messages {
            if is_whole_or_coming(&message) {
                let how = Unread::Closed { context: context.id, link: message.link };
                ledger.unread(message.tag.0, how)?;
            }
            self.reject(context, message);
        }
        ledger.gone(|sender| sender == self.id);
        Ok(())
    }

    /// It ends with its context, which says nothing any more.
    ///
    /// # Errors
    /// If something does not hold.
    pub fn end(self, context: &Context, ledger: &mut Ledger) -> Result<(), String> {
        let left = context.junction.inboxes.close(self.id.place);
        for message in left.into_iter().flat_map(|left| left.messages) {
            let is_whole = match &message.body {
                Body::Whole(_) => true,
                Body::Offered(offered) => {
                    let Offered { link, token, .. } = &**offered;
                    !link.is_coming(*token) && link.assembled(*token).is_some()
                }
            };
            if is_whole {
                ledger.unread(message.tag.0, Unread::Ended)?;
            }
        }
        Ok(())
    }

    /// Goes on with a message that is lent. Returns whether there is none any more.
    fn lend(&mut self, context: &Context, ledger: &mut Ledger) -> Result<bool, String> {
        let Some(Lending { link, token, number, data, sent }) = &mut self.lending else {
            return Ok(true);
        };
        let (number, is_sent) = match link.send_lent(*token, data, sent) {
            Ok(None) => return Ok(false),
            Ok(Some(sent)) => (*number, sent.is_ok()),
            Err(broken) => {
                context.lost(link, broken);
                (*number, false)
            }
        };
        self.lending = None;
        if !is_sent {
            ledger.told(number, Told::ByCall)?;
        }
        Ok(true)
    }

    fn attempt(
        &mut self,
        context: &Context,
        link: &Arc<Link>,
        parcel: Parcel,
    ) -> Result<Attempt, Broken> {
        let Parcel { number, to, length, is_lent } = parcel;
        let (from, to, tag) = (self.id.place, to.place, Tag(number));
        if length > EAGER_MOST && is_lent {
            let Some(token) = link.offer_lent(from, to, tag, length)? else {
                return Ok(Attempt::Wait);
            };
            let (link, data) = (link.clone(), content(number, length));
            self.lending = Some(Lending { link, token, number, data, sent: 0 });
            return Ok(Attempt::Done);
        }
        let mut data = Buffer::from(content(number, length));
        if length > EAGER_MOST {
            return link.offer_given(from, to, tag, &mut data);
        }
        let credit =
            context.junction.inboxes.at(from).map_or(0, |inbox| inbox.credit_with_message(link.id));
        let sent = link.message(from, to, tag, &mut data.into(), credit);
        if credit > 0 && sent != Ok(Attempt::Done) && link.broken().is_none() {
            context.junction.inboxes.with(from, |inbox| inbox.put_back(link.id, credit));
        }
        sent
    }

    /// Reads a message that was taken, if it has arrived.
    fn read(&self, message: Arrived, ledger: &mut Ledger) -> Result<(), String> {
        let Arrived { from, tag: Tag(number), body, .. } = message;
        let data = match body {
            Body::Whole(data) => Some(data),
            Body::Offered(offered) => offered.link.assembled(offered.token).map(Buffer::from),
        };
        data.map_or(Ok(()), |data| ledger.taken(number, self.id, from, &data))
    }

    fn reject(&self, context: &Context, message: Arrived) {
        let Arrived { from, tag, charge: bytes, body, link, .. } = message;
        let (from, to, reason) = (from.place, self.id.place, Refusal::Gone);
        let rejected = |token| Frame::Rejected { from, to, tag, token, bytes, reason };
        match body {
            Body::Offered(offered) => {
                offered.link.reject_offer(offered.token, rejected(offered.token));
            }
            Body::Whole(_) => {
                let link = context.junction.links.numbered(link);
                link.iter().for_each(|link| link.answer(rejected(0)));
            }
        }
    }
}

/// Whether its sender may know already that it has arrived.
fn is_whole_or_coming(message: &Arrived) -> bool {
    match &message.body {
        Body::Whole(_) => true,
        Body::Offered(offered) => offered.link.has_taken(offered.token),
    }
}
