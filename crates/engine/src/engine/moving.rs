//! A node of a reservation is gone: the reservation is lost, and moved to other nodes at once, or when
//! its owner asks for that; by the next broker, if this one is killed between the two.

use super::calls::{check_owner, without_handle};
use super::offering::{Place, Telling, Wanted};
use super::queueing::TRY_AFTER;
use super::{Engine, Ticket, Timeout, outline};
use crate::admission::Denied;
use crate::book::Reservation;
use crate::call::{Answer, CallError, Caller};
use crate::event::{Event, Refused};
use crate::malleable::{Left, asked};
use crate::offers::{Declined, Kind, Proposal};
use crate::refusal::Reason;
use keeptime_model::Invalid;
use keeptime_model::reservation::{Ask, Handle, Request, RequestKey, State};
use keeptime_model::topology::NodeIndex;
use std::sync::Arc;

impl Engine {
    /// A node of a reservation is gone: the rest is given back, and something else is offered.
    pub(super) fn lose(&mut self, handle: Handle, node: NodeIndex) {
        if self.offers.contains_key(&handle) {
            let name = self.cluster.name(node).clone();
            self.give_up(handle, Reason::NodesAway(vec![name]));
        }
        let Some(lost) = self.book.reservations().get(&handle).cloned() else { return };
        // What it has is free for what takes its place.
        let instead = self.without(&lost, |engine| engine.instead_of(&lost));
        let grant = instead.as_ref().map(|proposal| Box::new(proposal.grant.clone()));
        let name = self.cluster.name(node).clone();
        self.end(handle, Event::Lost { handle, node: name, instead: grant });
        if let Some(proposal) = instead.filter(|_| self.book.unmoved().contains(&handle)) {
            self.offer_instead(handle, proposal, Vec::new());
        }
    }

    /// Moves a lost reservation, unless that was done or is being done: then the same is answered. As
    /// good as a sign of life of the holder.
    pub(super) fn move_lost(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
    ) -> Result<Option<Answer>, CallError> {
        let lost = self.book.reservations().get(&handle).cloned();
        let lost = lost.ok_or(CallError::NotFound { handle })?;
        check_owner(caller, handle, &lost.owner)?;
        if let Some(next) = self.book.successor(handle) {
            self.hear_holder(next);
            let answer = self.current(next).ok_or(CallError::NotFound { handle: next })?;
            return Ok(Some(answer));
        }
        let mut offers = self.offers.values_mut();
        if let Some(offer) = offers.find(|offer| offer.kind.takes_the_place_of(handle)) {
            offer.tickets.push(ticket);
            return Ok(None);
        }
        if let Some(tickets) = self.unmoved.get_mut(&handle) {
            tickets.push(ticket);
            // There may be room by now, whether agents have come since or not.
            self.move_soon();
            return Ok(None);
        }
        self.check_movable(&lost)?;
        let (key, request) = self.asked_instead(&lost)?;
        let wanted = Wanted::new(&lost.owner, &key, &request, Place::OfLost);
        match self.plan(wanted, Telling::Offers) {
            Ok(proposal) => Ok(self.offer_instead(handle, proposal, vec![ticket])),
            Err(declined) => Err(without_handle(declined.denied)),
        }
    }

    /// What the broker before was about to move is moved by this one, if it still may be. Agents have their lease to come
    /// back: it is tried when some have, and for the last time when all had it.
    pub(super) fn take_up_moves(&mut self) {
        let is_movable = |handle: &Handle| {
            let lost = self.book.reservations().get(handle);
            lost.is_some_and(|lost| self.check_movable(lost).is_ok())
        };
        let unmoved = self.book.unmoved().iter().copied().filter(is_movable);
        self.unmoved = unmoved.map(|handle| (handle, Vec::new())).collect();
        if !self.unmoved.is_empty() {
            let patience = self.after(self.policy.agent_lease_nanos);
            self.timeouts.insert((patience, Timeout::MoveLast));
        }
    }

    /// In a while, when more agents have come, it is tried to move what is left to this broker.
    pub(super) fn move_soon(&mut self) {
        if !self.unmoved.is_empty() {
            self.in_a_while(TRY_AFTER, Timeout::Move);
        }
    }

    /// That while is over. What cannot be moved yet waits for other agents.
    pub(super) fn go_on_moving(&mut self) {
        for (lost, tickets) in self.take_unmoved() {
            if self.try_to_move(&lost, &tickets).is_err() {
                self.unmoved.insert(lost.handle, tickets);
            }
        }
    }

    /// All agents had their time: what cannot be moved now is refused that, once and for all brokers.
    pub(super) fn end_moving(&mut self) {
        for (lost, tickets) in self.take_unmoved() {
            if let Err(declined) = self.try_to_move(&lost, &tickets) {
                self.refuse_to_move(&lost, declined, tickets);
            }
        }
    }

    /// What is left to this broker, with those who asked for it. What was forgotten meanwhile is not there any more.
    fn take_unmoved(&mut self) -> Vec<(Arc<Reservation>, Vec<Ticket>)> {
        let mut left = Vec::new();
        for (handle, tickets) in std::mem::take(&mut self.unmoved) {
            let lost = self.book.reservations().get(&handle).cloned();
            match lost {
                Some(lost) => left.push((lost, tickets)),
                None => self.answer_each(tickets, &Err(CallError::NotFound { handle })),
            }
        }
        left
    }

    fn try_to_move(&mut self, lost: &Reservation, tickets: &[Ticket]) -> Result<(), Declined> {
        self.check_movable(lost)?;
        let (key, request) = self.asked_instead(lost)?;
        let wanted = Wanted::instead(&lost.owner, &key, &request);
        let proposal = self.plan(wanted, Telling::Reason)?;
        if let Some(answer) = self.offer_instead(lost.handle, proposal, tickets.to_vec()) {
            self.answer_each(tickets.to_vec(), &Ok(answer));
        }
        Ok(())
    }

    /// It is recorded why, so that the next broker does not try that again. What is no request any more, such as one whose
    /// time is over, is none for the next one either.
    fn refuse_to_move(&mut self, lost: &Reservation, declined: Declined, tickets: Vec<Ticket>) {
        let Declined { denied, decision } = declined;
        let error = match (denied, self.asked_instead(lost)) {
            (Denied::Refused(refusal), Ok((key, request))) => {
                let refused = Refused {
                    owner: lost.owner.clone(),
                    key,
                    request,
                    refusal: *refusal,
                    replaces: Some(lost.handle),
                    decision: decision.as_deref().map(outline),
                };
                let handle = self.take_handle();
                self.explain_later(handle, decision);
                self.refuse(handle, refused)
            }
            (denied, _) => without_handle(denied),
        };
        self.answer_each(tickets, &Err(error));
    }

    fn check_movable(&self, lost: &Reservation) -> Result<(), Invalid> {
        let is_over = lost.until_unix_nanos.is_some_and(|until| until <= self.now);
        let expected = match &lost.request.ask {
            Ask::SiteNode(_) => {
                "one of resources or a goal: the broker gives sites their nodes itself".into()
            }
            _ if lost.state != State::Lost => format!("one that was lost: it is {}", lost.state),
            _ if is_over => "one whose time is not over".into(),
            _ => return Ok(()),
        };
        Err(Invalid::new("handle", lost.handle, expected))
    }

    /// What can be had in the place of a reservation that is about to be lost.
    fn instead_of(&mut self, lost: &Reservation) -> Option<Proposal> {
        let (key, request) = self.asked_instead(lost).ok()?;
        self.plan(Wanted::instead(&lost.owner, &key, &request), Telling::Reason).ok()
    }

    /// The same on other nodes, for the time that is left.
    pub(super) fn asked_instead(
        &self,
        lost: &Reservation,
    ) -> Result<(RequestKey, Request), Invalid> {
        let left = lost.until_unix_nanos.map(|until| until.saturating_since(self.now));
        // What was to have more later has the same all the time.
        let even = Left::of(lost, self.now).and_then(|left| asked(lost, left.even()));
        let request = even.unwrap_or_else(|| lost.request.clone());
        let request = Request { from_unix_nanos: None, duration_nanos: left, ..request };
        // Two handles: short enough. No user's key has this form by chance, and none has it twice.
        let key = format!("moved:{}:{}", lost.handle, Handle::new(self.next));
        Ok((key.parse()?, request))
    }

    fn offer_instead(
        &mut self,
        lost: Handle,
        proposal: Proposal,
        tickets: Vec<Ticket>,
    ) -> Option<Answer> {
        let next = self.take_handle();
        self.explain_later(next, proposal.decision.clone());
        let kind = Kind::New { replaces: Some(lost), waits: None, elsewhere_until: None };
        self.offer(next, proposal, kind, tickets)
    }

    fn take_handle(&mut self) -> Handle {
        let next = Handle::new(self.next);
        self.next += 1;
        next
    }
}
