//! Nodes that are taken out of service: nothing new comes to them, now or in advance, and what they have stays to the end
//! that it was promised.

use super::offering::{Place, Telling, Wanted};
use super::sites::check_operator;
use super::{Engine, Ticket};
use crate::admission::Denied;
use crate::book::Reservation;
use crate::call::{Answer, CallError, Caller};
use crate::event::Event;
use crate::mask::NodeMask;
use crate::offers::{Kind, Offer, Proposal};
use crate::refusal::{DrainedNode, NAMED_MAX, Reason};
use keeptime_model::Invalid;
use keeptime_model::drain::{DrainReason, Drained, NodeSet};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeSet;

/// What is offered may be offered again, on other nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Elsewhere {
    /// The lost one whose place it takes.
    pub replaces: Option<Handle>,
    /// Agents have until then to answer, by the steady clock, whenever they were asked.
    pub until: Nanos,
}

impl Engine {
    /// Who drained a node, since when and why; nothing if it is in service.
    pub fn drained(&self, node: NodeIndex) -> Option<&Drained> {
        self.book.drained().get(self.cluster.name(node))
    }

    /// How many nodes of the cluster are drained.
    pub fn drained_count(&self) -> usize {
        self.book.drained().keys().filter(|name| self.cluster.node(name).is_ok()).count()
    }

    /// Nothing new comes to these nodes from now on, not even what is offered already: its agents have not said yet that they
    /// take it. Said again, it gives another reason.
    pub(super) fn drain(
        &mut self,
        caller: &Caller,
        nodes: NodeSet,
        reason: DrainReason,
    ) -> Result<Answer, CallError> {
        check_operator(caller, "drain nodes")?;
        let all = || self.cluster.topology().nodes().iter().map(|node| node.name.clone());
        let mut nodes: BTreeSet<Name> = match nodes {
            NodeSet::All => all().collect(),
            NodeSet::Named(names) => self.checked(names)?,
        };
        let drained = self.book.drained();
        nodes.retain(|node| drained.get(node).is_none_or(|before| before.reason != reason));
        if !nodes.is_empty() {
            let by = caller.user.clone();
            self.record(Event::Drained { nodes, by, reason });
            self.give_up_what_comes_to_drained_nodes();
            self.judge_claims();
        }
        Ok(Answer::Recorded)
    }

    /// These nodes are to be had again, by whoever waits for room first.
    pub(super) fn resume(&mut self, caller: &Caller, nodes: NodeSet) -> Result<Answer, CallError> {
        check_operator(caller, "resume nodes")?;
        let mut nodes: BTreeSet<Name> = match nodes {
            NodeSet::All => self.book.drained().keys().cloned().collect(),
            NodeSet::Named(names) => self.checked(names)?,
        };
        nodes.retain(|node| self.book.drained().contains_key(node));
        if !nodes.is_empty() {
            self.record(Event::Resumed { nodes, by: caller.user.clone() });
            self.judge_claims();
            self.was_given_back = true;
            self.move_soon();
        }
        Ok(Answer::Recorded)
    }

    /// Some nodes that there are. One that was drained when it was taken out of the topology can be resumed, too.
    fn checked(&self, names: BTreeSet<Name>) -> Result<BTreeSet<Name>, Invalid> {
        let is_known =
            |name: &Name| self.cluster.node(name).is_ok() || self.book.drained().contains_key(name);
        let unknown = names.iter().find(|name| !is_known(name)).map(ToString::to_string);
        if unknown.is_none() && !names.is_empty() {
            return Ok(names);
        }
        let expected = format!("nodes {}", self.cluster.of_it());
        Err(Invalid { value: unknown, ..Invalid::missing("nodes", expected) })
    }

    /// The drained nodes that what is asked for may not be granted. What takes the place of `old` may keep those that `old` has.
    pub(super) fn drained_for(
        &self,
        old: Option<&Reservation>,
        request: &Request,
        span: (WallTime, Option<WallTime>),
    ) -> NodeMask {
        let kept = old.map(|old| kept_by(old, request, span)).unwrap_or_default();
        let drained = self.book.drained().keys().filter(|name| !kept.contains(name));
        // The cluster may not have it any more.
        drained.filter_map(|name| self.cluster.node(name).ok()).collect()
    }

    /// What runs is not moved by being prolonged: its program is where it is, and would be ended. Whoever names other nodes, or
    /// those that it may have, has said so.
    pub(super) fn check_stays(
        &self,
        old: &Reservation,
        request: &Request,
        until: Option<WallTime>,
    ) -> Result<(), Denied> {
        let names_nodes = match &request.ask {
            Ask::Goal { .. } => false,
            Ask::Resources(asked) => matches!(asked.nodes, NodeChoice::Named(_)),
            Ask::SiteNode(_) => true,
        };
        if old.state != State::Active || names_nodes || is_in_time(old, request, until) {
            return Ok(());
        }
        let may_have = |name: &&Name| request.among.is_empty() || request.among.contains(*name);
        let drained = self.drained_of(old.nodes().iter().filter(may_have));
        if drained.is_empty() { Ok(()) } else { Err(Reason::NodesDrained(drained).into()) }
    }

    /// What was offered before its nodes were drained, and would be new there, is not granted any more.
    fn give_up_what_comes_to_drained_nodes(&mut self) {
        let offers = self.offers.iter();
        let new = offers.map(|(handle, offer)| (*handle, self.new_on(*handle, offer)));
        let new: Vec<_> = new.filter(|(_, nodes)| !nodes.is_empty()).collect();
        for (handle, nodes) in new {
            self.give_up(handle, Reason::NodesDrained(nodes));
        }
    }

    /// The drained nodes to which an offer would bring something new.
    fn new_on(&self, handle: Handle, Offer { kind, proposal, .. }: &Offer) -> Vec<DrainedNode> {
        let old = match kind {
            Kind::New { .. } => None,
            Kind::Change { .. } => self.book.reservations().get(&handle),
        };
        let kept = old.map(|old| kept_by(old, &proposal.request, (proposal.from, proposal.until)));
        let kept = kept.unwrap_or_default();
        self.drained_of(proposal.grant.nodes.iter().filter(|name| !kept.contains(name)))
    }

    /// Those of `nodes` that are drained, as many as are named.
    fn drained_of<'n>(&self, nodes: impl Iterator<Item = &'n Name>) -> Vec<DrainedNode> {
        let drained = nodes.filter_map(|name| {
            let why = self.book.drained().get(name)?;
            Some(DrainedNode::new(name.clone(), why))
        });
        drained.take(NAMED_MAX).collect()
    }

    /// What can be had in the place of what was offered, holds nothing any more, and comes to nothing for `reason`: where nodes
    /// of it were drained, or are away, the same on others, while agents may still be asked.
    pub(super) fn plan_elsewhere(
        &mut self,
        handle: Handle,
        offered: &Proposal,
        Elsewhere { replaces, until }: Elsewhere,
        reason: &Reason,
    ) -> Option<Proposal> {
        let is_of_nodes = matches!(reason, Reason::NodesDrained(_) | Reason::NodesAway(_));
        if !is_of_nodes || until <= self.steady {
            return None;
        }
        let Proposal { owner, key, request, .. } = offered;
        let found = match replaces {
            None => {
                let wanted = Wanted::new(owner, key, request, Place::Own(handle));
                self.plan(wanted, Telling::Reason)
            }
            Some(lost) => {
                let lost = self.book.reservations().get(&lost).cloned()?;
                // For the time that is left by now.
                let (_, request) = self.asked_instead(&lost).ok()?;
                self.plan(Wanted::instead(owner, key, &request), Telling::Reason)
            }
        };
        found.ok()
    }

    /// Offers it once more, as what was found then.
    pub(super) fn offer_elsewhere(
        &mut self,
        handle: Handle,
        found: Proposal,
        Elsewhere { replaces, until }: Elsewhere,
        tickets: Vec<Ticket>,
    ) {
        self.explain_later(handle, found.decision.clone());
        if replaces.is_none() {
            self.passes(handle, &found, &[]);
        }
        let kind = Kind::New { replaces, waits: None, elsewhere_until: Some(until) };
        if let Some(answer) = self.offer(handle, found, kind, tickets.clone()) {
            self.answer_each(tickets, &Ok(answer));
        }
    }
}

/// Nodes that what is asked for in the place of `old` may keep although they are drained, or kept for others: all that `old` has,
/// no earlier and for no longer than was promised. A web site's node is no other site's.
pub(super) fn kept_by<'a>(
    old: &'a Reservation,
    request: &Request,
    (from, until): (WallTime, Option<WallTime>),
) -> &'a [Name] {
    let is_same_site = match (&old.request.ask, &request.ask) {
        (Ask::SiteNode(held), Ask::SiteNode(asked)) => held.site == asked.site,
        _ => true,
    };
    let is_later = from >= old.from_unix_nanos;
    let is_kept = is_same_site && is_later && is_in_time(old, request, until);
    if is_kept { old.nodes() } else { &[] }
}

/// Whether what takes the place of `old` is over when that was promised to be, however it is stretched since.
fn is_in_time(old: &Reservation, request: &Request, until: Option<WallTime>) -> bool {
    let latest = latest_end(request, until);
    let is_over_by = |promised: WallTime| latest.is_some_and(|latest| latest <= promised);
    latest_end(&old.request, old.until_unix_nanos).is_none_or(is_over_by)
}

/// When what ends at `until` as it is is over at the latest: what is malleable may take until its deadline; nothing = it has no
/// end.
fn latest_end(request: &Request, until: Option<WallTime>) -> Option<WallTime> {
    let by = request.malleable.map(|malleable| malleable.by_unix_nanos);
    until.map(|until| by.map_or(until, |by| by.max(until)))
}
