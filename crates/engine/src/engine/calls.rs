//! What users ask: each call is carried out, refused, or waits for agents.

use super::draining::kept_by;
use super::making_way::Pending;
use super::offering::{Place, Telling, Wanted};
use super::{Engine, Ticket, outline};
use crate::admission::Denied;
use crate::book::Reservation;
use crate::call::{Answer, Call, CallError, Caller};
use crate::event::{Event, Refused};
use crate::offers::{Declined, Kind, Offer, Proposal, span};
use crate::queue::Asked;
use crate::refusal::Reason;
use crate::weight;
use keeptime_model::Invalid;
use keeptime_model::extension::Extension;
use keeptime_model::reservation::{Ask, Grant, Handle, Request, RequestKey, State, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::units::Nanos;
use keeptime_planner::drift::Observation;
use keeptime_planner::translate::Verdict;
use std::sync::Arc;

/// Another request in the place of a reservation's.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// Who is to be answered.
    pub ticket: Ticket,
    pub caller: Caller,
    pub handle: Handle,
    pub request: Request,
    /// Whether others may have to become slower for it.
    pub may_make_way: bool,
}

/// What is known of a request that may have been sent before.
pub(super) enum Repeated {
    /// It was not.
    Not,
    /// It was, and is not decided yet: this call is answered with it.
    Undecided,
    /// It was, and came to this.
    Decided(Answer),
}

impl Engine {
    pub(super) fn call(&mut self, ticket: Ticket, caller: &Caller, call: Call) {
        let answer = match call {
            Call::Register { application, profile } => {
                self.register(caller, Event::Registered { application, profile }).map(Some)
            }
            Call::Reserve { key, request } => self.reserve(ticket, caller, key, request),
            Call::Consider { request } => self.consider(caller, &request).map(Some),
            Call::Modify { handle, request } => {
                let caller = caller.clone();
                self.modify(Change { ticket, caller, handle, request, may_make_way: true })
            }
            // A controller asks so often that nobody is made slower for that.
            Call::Correct { handle, request } => self.check_turn(caller, handle).and_then(|()| {
                let caller = caller.clone();
                self.modify(Change { ticket, caller, handle, request, may_make_way: false })
            }),
            Call::Extend { handle, extension } => self.extend(ticket, caller, handle, extension),
            Call::Cancel { handle } => self.cancel(caller, handle).map(Some),
            Call::Finish { handle, run } => self.run_is_over(caller, handle, run).map(Some),
            Call::Spare { handle } => self.spare(caller, handle).map(Some),
            Call::Move { handle } => self.move_lost(ticket, caller, handle),
            Call::Keep { handle } => self.keep(caller, handle).map(Some),
            Call::Report { handle, actual } => self.report(caller, handle, actual).map(Some),
            Call::Explain { request } => self.explain(caller, request).map(Some),
            Call::AddSite { site } => self.add_site(caller, site).map(Some),
            Call::RemoveSite { site } => self.remove_site(caller, site).map(Some),
            Call::Drain { nodes, reason } => self.drain(caller, nodes, reason).map(Some),
            Call::Resume { nodes } => self.resume(caller, nodes).map(Some),
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
        if let Event::Registered { profile, .. } = &event {
            profile.check_new()?;
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
        match self.repeated(ticket, caller, &key, &request)? {
            Repeated::Not => {}
            Repeated::Undecided => return Ok(None),
            Repeated::Decided(answer) => return Ok(Some(answer)),
        }
        // Nodes of sites are nobody's.
        if !matches!(request.ask, Ask::SiteNode(_)) {
            self.check_memory(&caller.user)?;
        }
        let handle = Handle::new(self.next);
        let times = (self.now, request.wait_nanos.map(|wait| self.after(wait)));
        let asked = Asked::new(handle, ticket, caller.clone(), key, request, times);
        if self.queue_due_after().is_some() {
            // There may be room, and who waits for it comes first.
            self.next += 1;
            self.queue.put(asked);
            return Ok(None);
        }
        let answer = self.admit(asked);
        // What is invalid comes to nothing, not even to a refusal.
        if !matches!(answer, Err(CallError::Invalid(_))) {
            self.next += 1;
        }
        answer
    }

    /// Offers what was asked, or refuses it; where it would fit if others were slower, and they may be made so, it
    /// waits for them, and where it may wait for room, for that.
    pub(super) fn admit(&mut self, mut asked: Asked) -> Result<Option<Answer>, CallError> {
        let handle = asked.handle;
        match self.plan(asked.wanted(), Telling::Offers) {
            Ok(proposal) => {
                self.explain_later(handle, proposal.decision.clone());
                self.passes(handle, &proposal, &[]);
                let tickets = std::mem::take(&mut asked.tickets);
                let waits = asked.until.is_some().then(|| Box::new(asked));
                let kind = Kind::New { replaces: None, waits, elsewhere_until: None };
                Ok(self.offer(handle, proposal, kind, tickets))
            }
            Err(Declined { denied: Denied::Invalid(invalid), .. }) => Err(invalid.into()),
            Err(Declined { denied: Denied::Refused(mut refusal), decision }) => {
                if asked.may_make_way
                    && let Some(way) = self.find_way(asked.wanted())
                {
                    self.make_way(Pending::New(asked), way);
                    return Ok(None);
                }
                if self.is_to_wait(&asked, &refusal) {
                    match self.queue.limit_for(&asked.caller.user, &self.policy) {
                        Some(reason) => refusal.reason = reason,
                        None => {
                            asked.refusal = Some(refusal);
                            self.wait_for_room(asked);
                            return Ok(None);
                        }
                    }
                }
                let Asked { caller, key, request, .. } = asked;
                let refused = Refused {
                    owner: caller.user,
                    key,
                    request,
                    refusal: *refusal,
                    replaces: None,
                    decision: decision.as_deref().map(outline),
                };
                self.explain_later(handle, decision);
                Err(self.refuse(handle, refused))
            }
        }
    }

    /// Whether a request was sent before, and what became of it. One that was refused is refused again.
    pub(super) fn repeated(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        key: &RequestKey,
        request: &Request,
    ) -> Result<Repeated, CallError> {
        let reused = |handle| CallError::KeyReused { key: key.clone(), handle };
        let is_it = |offer: &Offer| {
            matches!(offer.kind, Kind::New { .. })
                && offer.proposal.owner == caller.user
                && offer.proposal.key == *key
        };
        if let Some((handle, offer)) = self.offers.iter_mut().find(|(_, offer)| is_it(offer)) {
            if !offer.proposal.request.asks_the_same(request) {
                return Err(reused(*handle));
            }
            offer.tickets.push(ticket);
            return Ok(Repeated::Undecided);
        }
        let mut waiting = self.waiting.iter_mut().filter_map(|waiting| waiting.pending.asked_mut());
        let waiting = waiting.find(|asked| asked.is_of(&caller.user, key));
        if let Some(asked) = waiting.or_else(|| self.queue.find_mut(&caller.user, key)) {
            if !asked.request.asks_the_same(request) {
                return Err(reused(asked.handle));
            }
            asked.tickets.push(ticket);
            return Ok(Repeated::Undecided);
        }
        let Some(handle) = self.book.find(&caller.user, key) else { return Ok(Repeated::Not) };
        let Some(found) = self.book.reservations().get(&handle) else { return Ok(Repeated::Not) };
        match &found.refusal {
            _ if !self.book.original(found).asks_the_same(request) => Err(reused(handle)),
            Some(refusal) => {
                Err(CallError::Refused { handle: Some(handle), refusal: Box::new(refusal.clone()) })
            }
            None => Ok(Repeated::Decided(Answer::Reservation(Arc::clone(found)))),
        }
    }

    pub(super) fn consider(
        &mut self,
        caller: &Caller,
        request: &Request,
    ) -> Result<Answer, CallError> {
        let key: RequestKey = "considered".parse()?;
        // As what would come now.
        let place = Place::Own(Handle::new(self.next));
        let wanted = Wanted::new(&caller.user, &key, request, place);
        let found = match self.plan(wanted, Telling::Offers) {
            Ok(proposal) => proposal,
            Err(Declined { denied: denied @ Denied::Invalid(_), .. }) => {
                return Err(without_handle(denied));
            }
            Err(Declined { denied, .. }) => match self.find_way(wanted) {
                Some(way) => way.proposal,
                None => return Err(without_handle(denied)),
            },
        };
        let Proposal { from, until, grant, .. } = found;
        Ok(Answer::Possible { from, until, grant: Box::new(grant) })
    }

    /// How a goal would be decided. That it is planned and does not fit for another reason, such as
    /// the user's share, is a refusal.
    pub(super) fn explain(
        &mut self,
        caller: &Caller,
        request: Request,
    ) -> Result<Answer, CallError> {
        let key: RequestKey = "explained".parse()?;
        let refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
        let place = Place::Own(Handle::new(self.next));
        let wanted = Wanted::new(&caller.user, &key, &request, place);
        match self.plan(wanted, Telling::Offers) {
            Ok(Proposal { decision: Some(decision), .. }) => Ok(Answer::Decided(decision)),
            Ok(Proposal { decision: None, .. }) => {
                let expected = "a goal: resources are taken as they are";
                Err(Invalid::new("ask", "resources", expected).into())
            }
            Err(Declined { decision: Some(decision), .. }) if refused(&decision.verdict) => {
                Ok(Answer::Decided(decision))
            }
            Err(declined) => Err(without_handle(declined.denied)),
        }
    }

    /// Offers a change, or refuses it; where it would fit if others were slower, and they may be made so, it waits for them.
    pub(super) fn modify(&mut self, change: Change) -> Result<Option<Answer>, CallError> {
        let Change { ticket, ref caller, handle, ref request, may_make_way } = change;
        let old = self.own(caller, handle)?.clone();
        // A change is made at once or not: how long its reservation waited may still stand there.
        let request = Request { wait_nanos: None, ..request.clone() };
        // While the change is planned, what it has is free.
        let wanted = Wanted::new(&old.owner, &old.key, &request, Place::OfOld(&old));
        let found = self.without(&old, |engine| engine.plan(wanted, Telling::Offers));
        if let Err(Declined { denied: Denied::Refused(_), .. }) = &found
            && may_make_way
            && let Some(way) = self.find_way_to_change(&old, wanted)
        {
            self.make_way(Pending::Change(change), way);
            return Ok(None);
        }
        // What takes no more than what it takes the place of is no more. A goal tells by its grant what it takes.
        let had = weight::of_both(&old.request, old.grant.as_ref());
        if found.as_ref().is_ok_and(|new| weight::of_both(&new.request, Some(&new.grant)) > had) {
            self.check_memory(&old.owner)?;
        }
        if old.state == State::Active && found.is_ok() {
            let nodes = self.nodes_of(handle);
            self.turns.changes(self.steady, handle, &nodes);
        }
        if let Ok(new) = &found {
            let keeps = kept_by(&old, &new.request, (new.from, new.until));
            self.passes(Handle::new(self.next), new, keeps);
        }
        if caller.user == old.owner {
            self.hear_holder(handle);
        }
        self.change(ticket, caller, handle, found)
    }

    /// Nobody fills the broker's memory. Nothing is recorded of this refusal: it would take as much as what is refused.
    fn check_memory(&self, owner: &UserName) -> Result<(), CallError> {
        let user_memory_bytes = self.policy.user_memory;
        if self.book.memory(owner) < user_memory_bytes {
            return Ok(());
        }
        let refusal = Box::new(Reason::TooMuch { user_memory_bytes }.into());
        Err(CallError::Refused { handle: None, refusal })
    }

    /// Whether a correction may be made now; if not, it waits for its turn.
    fn check_turn(&mut self, caller: &Caller, handle: Handle) -> Result<(), CallError> {
        self.own(caller, handle)?;
        let nodes = self.nodes_of(handle);
        let asked = self.turns.ask(self.steady, handle, &nodes);
        asked.map_err(|wait| CallError::NotYet { handle, wait })
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
        if weight::of_extension(&extension) > weight::of_extension(&grant.extension) {
            self.check_memory(&owner)?;
        }
        let found = self.without(&old, |engine| {
            let user = engine.counted_in(&owner, &request.ask);
            engine.admission(user).extend(grant, extension, span(from, until))
        });
        let found = found.map_err(Declined::from);
        let decision = None;
        let found =
            found.map(|grant| Proposal { owner, key, request, from, until, grant, decision });
        self.change(ticket, caller, handle, found)
    }

    /// Offers a change that was found to fit.
    fn change(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
        found: Result<Proposal, Declined>,
    ) -> Result<Option<Answer>, CallError> {
        match found {
            Ok(proposal) => {
                self.explain_later(handle, proposal.decision.clone());
                let kind = Kind::Change { by: caller.user.clone(), agreed_by: None };
                Ok(self.offer(handle, proposal, kind, vec![ticket]))
            }
            Err(declined) => Err(without_handle(declined.denied)),
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
        if let Some(asked) = self.queue.find(handle) {
            check_owner(caller, handle, &asked.caller.user)?;
            return self.stop_waiting(handle);
        }
        self.own(caller, handle)?;
        self.end(handle, Event::Cancelled { handle, by: caller.user.clone() });
        self.current(handle).ok_or(CallError::NotFound { handle })
    }

    /// Also while it is being changed: nobody asks again for what is over.
    fn run_is_over(
        &mut self,
        caller: &Caller,
        handle: Handle,
        run: RunEnd,
    ) -> Result<Answer, CallError> {
        self.live(caller, handle)?;
        self.end_with_changes(handle, Event::Finished { handle, run });
        self.current(handle).ok_or(CallError::NotFound { handle })
    }

    pub(super) fn keep(&mut self, caller: &Caller, handle: Handle) -> Result<Answer, CallError> {
        self.live(caller, handle)?;
        self.hear_holder(handle);
        self.current(handle).ok_or(CallError::NotFound { handle })
    }

    pub(super) fn report(
        &mut self,
        caller: &Caller,
        handle: Handle,
        actual: Nanos,
    ) -> Result<Answer, CallError> {
        let found = self.live(caller, handle)?;
        if found.state != State::Active || actual == Nanos::new(0) {
            let expected = "more than 0, of a reservation that has begun";
            return Err(Invalid::new("actual_nanos", actual.get(), expected).into());
        }
        // What it took with more than was reserved says nothing of what it takes with that.
        let grant = found.grant.as_ref().filter(|_| !found.request.spare);
        let observation = grant.and_then(|grant| self.observe(grant, actual));
        self.record(Event::Ran { handle, actual_nanos: actual, observation });
        self.current(handle).ok_or(CallError::NotFound { handle })
    }

    fn observe(&self, grant: &Grant, actual: Nanos) -> Option<Observation> {
        let promise = grant.promise.as_ref()?;
        let known = self.book.applications().get(&promise.application)?;
        let nodes = u32::try_from(grant.nodes.len()).ok()?;
        known.fitted.observe(&promise.parameters, nodes, grant.bits_per_second, actual)
    }

    /// A live reservation that the caller may change and that is not being changed.
    pub(super) fn own(&self, caller: &Caller, handle: Handle) -> Result<&Reservation, CallError> {
        if let Some(offer) = self.offers.get(&handle) {
            check_owner(caller, handle, &offer.proposal.owner)?;
            return Err(CallError::Busy { handle });
        }
        self.live(caller, handle)
    }

    /// A live reservation that the caller may change, also if it is being changed.
    fn live(&self, caller: &Caller, handle: Handle) -> Result<&Reservation, CallError> {
        if let Some(asked) = self.queue.find(handle) {
            check_owner(caller, handle, &asked.caller.user)?;
            return Err(CallError::Waits { handle });
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

/// Nothing is remembered of it.
pub(super) fn without_handle(denied: Denied) -> CallError {
    match denied {
        Denied::Invalid(invalid) => invalid.into(),
        Denied::Refused(refusal) => CallError::Refused { handle: None, refusal },
    }
}

pub(super) fn check_owner(
    caller: &Caller,
    handle: Handle,
    owner: &UserName,
) -> Result<(), CallError> {
    if caller.operator || caller.user == *owner {
        return Ok(());
    }
    Err(CallError::NotYours { handle, owner: owner.clone() })
}
