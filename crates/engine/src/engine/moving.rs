//! A node of a reservation is gone: the reservation is lost, and moved to other nodes at once, or when
//! its owner asks for that.

use super::calls::{check_owner, without_handle};
use super::offering::Place;
use super::{Engine, Ticket};
use crate::book::Reservation;
use crate::call::{Answer, CallError, Caller, Reason};
use crate::event::Event;
use crate::offers::{Kind, Proposal};
use keeptime_model::Invalid;
use keeptime_model::loss::OnLoss;
use keeptime_model::reservation::{Ask, Handle, Request, RequestKey, State};
use keeptime_model::topology::NodeIndex;

impl Engine {
    /// A node of a reservation is gone: the rest is given back, and something else is offered.
    pub(super) fn lose(&mut self, handle: Handle, node: NodeIndex) {
        if self.offers.contains_key(&handle) {
            let name = self.cluster.name(node).clone();
            self.give_up(handle, Reason::NodesAway(vec![name]));
        }
        let Some(lost) = self.book.reservations().get(&handle).cloned() else { return };
        // What it has is free for what takes its place.
        self.release(handle);
        let instead = self.instead_of(&lost);
        self.hold_again(&lost);
        let grant = instead.as_ref().map(|proposal| Box::new(proposal.grant.clone()));
        let name = self.cluster.name(node).clone();
        self.end(handle, Event::Lost { handle, node: name, instead: grant });
        if let Some(proposal) = instead.filter(|_| self.on_loss(&lost.request) == OnLoss::Move) {
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
        let takes_its_place =
            |kind: &Kind| matches!(kind, Kind::New { replaces: Some(lost), .. } if *lost == handle);
        if let Some(offer) = self.offers.values_mut().find(|offer| takes_its_place(&offer.kind)) {
            offer.tickets.push(ticket);
            return Ok(None);
        }
        self.check_movable(&lost)?;
        let (key, request) = self.asked_instead(&lost)?;
        match self.propose(&lost.owner, key, request, Place::OfLost) {
            Ok(proposal) => Ok(self.offer_instead(handle, proposal, vec![ticket])),
            Err(declined) => Err(without_handle(declined.denied)),
        }
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
        self.plan_instead(&lost.owner, key, request).ok()
    }

    /// The same on other nodes, for the time that is left.
    fn asked_instead(&self, lost: &Reservation) -> Result<(RequestKey, Request), Invalid> {
        let left = lost.until_unix_nanos.map(|until| until.saturating_since(self.now));
        let request =
            Request { from_unix_nanos: None, duration_nanos: left, ..lost.request.clone() };
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
        let next = Handle::new(self.next);
        self.next += 1;
        self.explain_later(next, proposal.decision.clone());
        let kind = Kind::New { replaces: Some(lost), waits: None };
        self.offer(next, proposal, kind, tickets)
    }

    /// As the request says, or else its application.
    fn on_loss(&self, request: &Request) -> OnLoss {
        let of_application = || match &request.ask {
            Ask::Goal { application, .. } => {
                let known = self.book.applications().get(application)?;
                Some(known.application.on_loss())
            }
            Ask::Resources(_) | Ask::SiteNode(_) => None,
        };
        request.on_loss.or_else(of_application).unwrap_or_default()
    }
}
