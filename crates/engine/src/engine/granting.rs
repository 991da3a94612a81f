//! From an offer to a grant, or back: what agents answer, and what happens when they go.

use super::draining::Elsewhere;
use super::{Engine, Output, Ticket, Timeout, outline};
use crate::agents::{Enforcement, Session};
use crate::call::{Answer, CallError};
use crate::event::{Event, Granted, Modified, Refused};
use crate::offers::{Kind, Offer, Proposal};
use crate::refusal::{Reason, Refusal};
use keeptime_model::assignment::Assignment;
use keeptime_model::reservation::{Handle, State};
use keeptime_model::topology::NodeIndex;
use std::collections::BTreeMap;

impl Engine {
    pub(super) fn answered(&mut self, node: NodeIndex, number: u64, refusal: Option<String>) {
        let Some(handle) = self.agents.answered(node, number, refusal.is_none()) else { return };
        match refusal {
            None => self.accepted(node, handle),
            Some(why) => self.agent_refused(node, handle, why),
        }
    }

    pub(super) fn accepted(&mut self, node: NodeIndex, handle: Handle) {
        if let Some(offer) = self.offers.get_mut(&handle) {
            offer.waiting.remove(&node);
        }
        self.grant_if_ready(handle);
        if !self.spare.is_empty() {
            self.has_yielded(handle, Some(node));
            self.share_soon();
        }
        self.start_now(handle);
    }

    /// Grants an offer for which nobody has to be waited any more, or gives it up if that is too late.
    pub(super) fn grant_if_ready(&mut self, handle: Handle) {
        let ready = self.offers.get(&handle).filter(|offer| offer.is_ready());
        match ready.map(|offer| &offer.kind) {
            None => return,
            Some(Kind::Change { agreed_by: Some(by), .. }) if *by < self.now => {
                self.give_up(handle, Reason::Cancelled);
                return;
            }
            Some(_) => {}
        }
        if let Err(invalid) = self.check_offered_site_node(handle) {
            self.give_up_invalid(handle, invalid.into());
            return;
        }
        if let Some(Offer { kind, proposal, tickets, .. }) = self.offers.remove(&handle) {
            self.grant(handle, proposal, &kind);
            self.answer_all(handle, tickets);
            self.is_settled(handle);
        }
    }

    pub(super) fn agent_refused(&mut self, node: NodeIndex, handle: Handle, why: String) {
        let name = self.cluster.name(node).clone();
        if self.offers.contains_key(&handle) {
            self.give_up(handle, Reason::AgentRefused { node: name, why });
        } else if self.take_spare_back(handle) {
            // What is reserved is kept: an agent that cannot do that either says so next. More is not asked again.
            self.spare.bar(handle);
        } else if self.is_live(handle) {
            self.end(handle, Event::Failed { handle, node: name, why });
        }
    }

    /// Records the grant of what is held.
    pub(super) fn grant(&mut self, handle: Handle, proposal: Proposal, kind: &Kind) {
        let Proposal { owner, key, request, from, until, grant, decision } = proposal;
        let (from_unix_nanos, until_unix_nanos) = (from, until);
        let decision = decision.as_deref().map(outline);
        match kind {
            Kind::New { replaces, .. } => {
                let replaces = *replaces;
                let granted = Granted {
                    owner,
                    key,
                    request,
                    from_unix_nanos,
                    until_unix_nanos,
                    grant,
                    replaces,
                    decision,
                };
                self.record(Event::Granted { handle, granted: Box::new(granted) });
            }
            Kind::Change { by, .. } => {
                let by = by.clone();
                let (former, former_site) = (self.nodes_of(handle), self.site_of(handle));
                let modified =
                    Modified { by, request, from_unix_nanos, until_unix_nanos, grant, decision };
                self.unschedule(handle);
                self.record(Event::Modified { handle, modified: Box::new(modified) });
                if let Some(site) = former_site {
                    self.remove_if_empty(site);
                }
                self.hold_exactly(handle);
                self.was_given_back = true;
                self.align(handle, former);
                self.take_spare_anew(handle);
            }
        }
        self.schedule(handle);
    }

    /// Gives back an offer. A new one goes back to its place in the queue, if it may, or is offered elsewhere, where that is of
    /// use, or is remembered as refused, and its callers are told why; that answer is returned too. A change goes back to what
    /// was.
    pub(super) fn give_up(&mut self, handle: Handle, reason: Reason) -> Option<Answer> {
        let Offer { kind, proposal, tickets, deadline, .. } = self.offers.remove(&handle)?;
        self.share_soon();
        self.was_given_back = true;
        let told = self.cluster.nodes(&proposal.grant).unwrap_or_default();
        match kind {
            Kind::New { replaces, waits, elsewhere_until } => {
                // Once more as long from when agents are to have answered first, however many nodes are gone in turn.
                let once_more = deadline.saturating_add(self.policy.answer_within_nanos);
                let elsewhere = Elsewhere { replaces, until: elsewhere_until.unwrap_or(once_more) };
                self.withdraw_from(handle, told);
                self.release(handle);
                match waits.filter(|asked| self.may_go_back(asked, &reason)) {
                    Some(asked) => self.go_back(*asked, tickets, reason),
                    None => match self.plan_elsewhere(handle, &proposal, elsewhere, &reason) {
                        Some(found) => self.offer_elsewhere(handle, found, elsewhere, tickets),
                        None => self.refuse_offered(handle, proposal, replaces, reason, tickets),
                    },
                }
                self.faster_soon();
            }
            Kind::Change { .. } => {
                let refusal = Box::new(Refusal::from(reason));
                let error = CallError::Refused { handle: None, refusal };
                self.go_back_to_what_was(handle, told, tickets, error);
            }
        }
        self.current(handle)
    }

    /// Gives back an offer that is invalid by now, whose callers are told so. It comes to nothing, not even to a refusal.
    fn give_up_invalid(&mut self, handle: Handle, error: CallError) {
        let Some(Offer { kind, proposal, tickets, .. }) = self.offers.remove(&handle) else {
            return;
        };
        self.share_soon();
        self.was_given_back = true;
        let told = self.cluster.nodes(&proposal.grant).unwrap_or_default();
        match kind {
            Kind::New { .. } => {
                self.withdraw_from(handle, told);
                self.release(handle);
                self.answer_each(tickets, &Err(error));
                self.faster_soon();
            }
            Kind::Change { .. } => self.go_back_to_what_was(handle, told, tickets, error),
        }
    }

    /// A change that was offered comes to nothing.
    fn go_back_to_what_was(
        &mut self,
        handle: Handle,
        told: Vec<NodeIndex>,
        tickets: Vec<Ticket>,
        error: CallError,
    ) {
        self.hold_exactly(handle);
        self.align(handle, told);
        self.answer_each(tickets, &Err(error));
        self.is_settled(handle);
        // Its time may have come meanwhile.
        self.start_now(handle);
    }

    /// A new reservation that was offered comes to nothing.
    fn refuse_offered(
        &mut self,
        handle: Handle,
        proposal: Proposal,
        replaces: Option<Handle>,
        reason: Reason,
        tickets: Vec<Ticket>,
    ) {
        let Proposal { owner, key, request, decision, .. } = proposal;
        let refusal = reason.into();
        let decision = decision.as_deref().map(outline);
        let refused = Refused { owner, key, request, refusal, replaces, decision };
        let error = self.refuse(handle, refused);
        self.answer_each(tickets, &Err(error));
    }

    /// Agents are told what is recorded of the reservation, if its time is near; others, of `nodes`,
    /// give it back.
    pub(super) fn align(&mut self, handle: Handle, nodes: Vec<NodeIndex>) {
        let found = self.book.reservations().get(&handle);
        let near = found.is_some_and(|found| found.state.is_live() && self.is_told(found));
        let wanted = if near { self.assignments(handle) } else { BTreeMap::new() };
        let others = nodes.into_iter().filter(|node| !wanted.contains_key(node)).collect();
        self.withdraw_from(handle, others);
        self.tell_anew(handle, wanted);
    }

    /// Agents that were told something else of the reservation are told this.
    pub(super) fn tell_anew(&mut self, handle: Handle, wanted: BTreeMap<NodeIndex, Assignment>) {
        for (node, assignment) in wanted {
            if !self.agents.is_told(node, handle, &assignment) {
                let sent = self.agents.tell(node, handle, assignment);
                self.send(sent);
            }
        }
    }

    pub(super) fn withdraw_from(&mut self, handle: Handle, nodes: Vec<NodeIndex>) {
        for node in nodes {
            let sent = self.agents.withdraw(node, handle);
            self.send(sent);
        }
    }

    pub(super) fn refuse(&mut self, handle: Handle, refused: Refused) -> CallError {
        let refusal = Box::new(refused.refusal.clone());
        self.record(Event::Refused { handle, refused: Box::new(refused) });
        self.forget_later(handle);
        CallError::Refused { handle: Some(handle), refusal }
    }

    pub(super) fn connected(
        &mut self,
        node: NodeIndex,
        session: Session,
        enforcement: Enforcement,
        holding: Vec<Assignment>,
    ) {
        self.agents.enforces(node, enforcement);
        let (sent, agreed) = self.agents.connected(node, session, holding, self.moment());
        sent.into_iter().for_each(|sent| self.send(Some(sent)));
        self.timeouts.insert((self.agents.lease_ends(node), Timeout::Lease(node)));
        agreed.into_iter().for_each(|handle| self.accepted(node, handle));
        self.try_the_queue_soon();
        self.move_soon();
    }

    pub(super) fn lease(&mut self, node: NodeIndex) {
        let ends = self.agents.lease_ends(node);
        if ends > self.steady {
            self.timeouts.insert((ends, Timeout::Lease(node)));
        } else {
            self.away(node);
        }
    }

    /// Nothing that an agent was told or has accepted counts any more: what runs there, or should, is lost, and what is offered
    /// there comes to nothing.
    pub(super) fn away(&mut self, node: NodeIndex) {
        if let Some(session) = self.agents.away(node, self.steady) {
            self.step.outputs.push(Output::HangUp { node, session });
        }
        let told: Vec<_> = self.agents.told(node).map(|(handle, ..)| handle).collect();
        for handle in told {
            if self.is_needed(node, handle) {
                self.lose(handle, node);
            } else if self.is_offered(node, handle) {
                let name = self.cluster.name(node).clone();
                self.give_up(handle, Reason::NodesAway(vec![name]));
            }
        }
        self.try_the_queue_soon();
    }

    /// Whether a reservation is to have the node, once all agents have said so.
    fn is_offered(&self, node: NodeIndex, handle: Handle) -> bool {
        let nodes = self.offers.get(&handle).map(|offer| self.cluster.nodes(&offer.proposal.grant));
        nodes.is_some_and(|nodes| nodes.is_ok_and(|nodes| nodes.contains(&node)))
    }

    /// Whether a reservation that runs, or should, has the node: one that is only asked about a change is not its yet.
    fn is_needed(&self, node: NodeIndex, handle: Handle) -> bool {
        let found = self.book.reservations().get(&handle);
        let runs = found.is_some_and(|found| found.state == State::Active);
        (runs || self.is_due(handle)) && self.nodes_of(handle).contains(&node)
    }
}
