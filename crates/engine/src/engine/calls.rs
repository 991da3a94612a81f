//! What users ask: each call is carried out, refused, or waits for agents.

use super::{Engine, Ticket};
use crate::admission::Denied;
use crate::book::Reservation;
use crate::call::{Answer, Call, CallError, Caller, Reason};
use crate::event::Event;
use crate::offers::{Kind, Offer, Proposal, span};
use keeptime_model::extension::Extension;
use keeptime_model::reservation::{Handle, Request, RequestKey, UserName};

impl Engine {
    pub(super) fn call(&mut self, ticket: Ticket, caller: &Caller, call: Call) {
        let answer = match call {
            Call::Register { application, profile } => {
                self.register(caller, Event::Registered { application, profile }).map(Some)
            }
            Call::Reserve { key, request } => self.reserve(ticket, caller, key, request),
            Call::Consider { request } => self.consider(caller, &request).map(Some),
            Call::Modify { handle, request } => self.modify(ticket, caller, handle, request),
            Call::Extend { handle, extension } => self.extend(ticket, caller, handle, extension),
            Call::Cancel { handle } => self.cancel(caller, handle).map(Some),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => self.answer(ticket, Ok(answer)),
            Err(error) => self.answer(ticket, Err(error)),
        }
    }

    pub(super) fn register(&mut self, caller: &Caller, event: Event) -> Result<Answer, CallError> {
        if !caller.operator {
            return Err(CallError::OperatorsOnly { what: "register applications" });
        }
        self.book.apply(&event, self.now)?;
        self.step.events.push(event);
        Ok(Answer::Registered)
    }

    pub(super) fn reserve(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        key: RequestKey,
        request: Request,
    ) -> Result<Option<Answer>, CallError> {
        if let Some(answer) = self.repeated(ticket, caller, &key, &request)? {
            return Ok(answer);
        }
        let owner = caller.user.clone();
        let handle = Handle::new(self.next);
        let found = self.propose(&owner, key.clone(), request.clone(), None);
        let proposal = match found {
            Ok(proposal) => proposal,
            Err(Denied::Invalid(invalid)) => return Err(invalid.into()),
            Err(Denied::Refused(refusal)) => {
                self.next += 1;
                return Err(self.refuse(handle, owner, key, request, *refusal));
            }
        };
        self.next += 1;
        Ok(self.offer(handle, proposal, Kind::New { replaces: None }, vec![ticket]))
    }

    /// The answer to a request that was sent before; the outer nothing if it was not, the inner if
    /// it still waits for agents.
    #[expect(clippy::option_option, reason = "two different things can be missing")]
    pub(super) fn repeated(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        key: &RequestKey,
        request: &Request,
    ) -> Result<Option<Option<Answer>>, CallError> {
        let reused = |handle| CallError::KeyReused { key: key.clone(), handle };
        let is_it = |offer: &Offer| {
            matches!(offer.kind, Kind::New { .. })
                && offer.proposal.owner == caller.user
                && offer.proposal.key == *key
        };
        if let Some((handle, offer)) = self.offers.iter_mut().find(|(_, offer)| is_it(offer)) {
            if offer.proposal.request != *request {
                return Err(reused(*handle));
            }
            offer.tickets.push(ticket);
            return Ok(Some(None));
        }
        let Some(handle) = self.book.find(&caller.user, key) else { return Ok(None) };
        let Some(found) = self.book.reservations().get(&handle) else { return Ok(None) };
        match &found.refusal {
            _ if found.request != *request => Err(reused(handle)),
            Some(refusal) => {
                Err(CallError::Refused { handle: Some(handle), refusal: Box::new(refusal.clone()) })
            }
            None => Ok(Some(Some(Answer::Reservation(Box::new(found.clone()))))),
        }
    }

    pub(super) fn consider(
        &mut self,
        caller: &Caller,
        request: &Request,
    ) -> Result<Answer, CallError> {
        let key: RequestKey = "considered".parse()?;
        match self.propose(&caller.user, key, request.clone(), None) {
            Ok(Proposal { from, until, grant, .. }) => {
                Ok(Answer::Possible { from, until, grant: Box::new(grant) })
            }
            Err(Denied::Invalid(invalid)) => Err(invalid.into()),
            Err(Denied::Refused(refusal)) => Err(CallError::Refused { handle: None, refusal }),
        }
    }

    pub(super) fn modify(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
        request: Request,
    ) -> Result<Option<Answer>, CallError> {
        let old = self.own(caller, handle)?.clone();
        let (owner, key) = (old.owner.clone(), old.key.clone());
        // While the change is planned, what it has is free.
        self.release(handle);
        let found = self.propose(&owner, key, request, Some(&old));
        self.hold_again(&old);
        self.change(ticket, caller, handle, found)
    }

    pub(super) fn extend(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
        extension: Extension,
    ) -> Result<Option<Answer>, CallError> {
        let old = self.own(caller, handle)?.clone();
        let Reservation { owner, key, request, .. } = old.clone();
        let (from, until) = (old.from_unix_nanos, old.until_unix_nanos);
        // What is live has one.
        let grant = old.grant.clone().ok_or(CallError::Over { handle, state: old.state })?;
        if grant.extension == extension {
            return Ok(self.current(handle));
        }
        self.release(handle);
        let user = self.tables_of(&owner);
        let found = self.admission(user, from).extend(grant, extension, span(from, until));
        self.hold_again(&old);
        let found = found.map(|grant| Proposal { owner, key, request, from, until, grant });
        self.change(ticket, caller, handle, found)
    }

    /// Offers a change that was found to fit.
    fn change(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
        found: Result<Proposal, Denied>,
    ) -> Result<Option<Answer>, CallError> {
        match found {
            Ok(proposal) => {
                let kind = Kind::Change { by: caller.user.clone() };
                Ok(self.offer(handle, proposal, kind, vec![ticket]))
            }
            Err(Denied::Invalid(invalid)) => Err(invalid.into()),
            Err(Denied::Refused(refusal)) => Err(CallError::Refused { handle: None, refusal }),
        }
    }

    pub(super) fn cancel(&mut self, caller: &Caller, handle: Handle) -> Result<Answer, CallError> {
        if let Some(offer) = self.offers.get(&handle)
            && matches!(offer.kind, Kind::New { .. })
        {
            check_owner(caller, handle, &offer.proposal.owner)?;
            let refusal = self.give_up(handle, Reason::Cancelled);
            return refusal.ok_or(CallError::NotFound { handle });
        }
        self.own(caller, handle)?;
        self.end(handle, Event::Cancelled { handle, by: caller.user.clone() });
        let over = &self.book.reservations()[&handle];
        Ok(Answer::Reservation(Box::new(over.clone())))
    }

    /// A live reservation that the caller may change and that is not being changed.
    pub(super) fn own(&self, caller: &Caller, handle: Handle) -> Result<&Reservation, CallError> {
        if let Some(offer) = self.offers.get(&handle) {
            check_owner(caller, handle, &offer.proposal.owner)?;
            return Err(CallError::Busy { handle });
        }
        let found = self.book.reservations().get(&handle);
        let found = found.ok_or(CallError::NotFound { handle })?;
        check_owner(caller, handle, &found.owner)?;
        if !found.state.is_live() {
            return Err(CallError::Over { handle, state: found.state });
        }
        Ok(found)
    }
}

fn check_owner(caller: &Caller, handle: Handle, owner: &UserName) -> Result<(), CallError> {
    if caller.operator || caller.user == *owner {
        return Ok(());
    }
    Err(CallError::NotYours { handle, owner: owner.clone() })
}
