//! What nobody has reserved: running jobs that asked for it have it, and give it back before somebody else
//! is granted it.

use super::{Engine, Timeout};
use crate::cluster::Resource;
use crate::spare::{Changes, Job, LinkState};
use keeptime_calendar::Span;
use keeptime_model::reservation::{Grant, Handle, State};
use keeptime_model::topology::{LinkDirection, NodeIndex};
use keeptime_model::units::{BitsPerSecond, Nanos};
use std::collections::BTreeSet;

/// So long after something changed it is parted anew: much changes at once.
const SHARE_AFTER: Nanos = Nanos::from_millis(50);

impl Engine {
    /// A reservation has begun, was changed or is over.
    pub(super) fn take_spare_anew(&mut self, handle: Handle) {
        let was_wanted = !self.spare.is_empty();
        self.spare.remove(handle);
        if let Some(job) = self.spare_job(handle) {
            self.spare.insert(handle, job);
        }
        if was_wanted {
            self.has_yielded(handle, None);
        }
        self.share_soon();
    }

    fn spare_job(&self, handle: Handle) -> Option<Job> {
        let found = self.book.reservations().get(&handle)?;
        let runs = found.state == State::Active && found.request.spare;
        let grant = found.grant.as_ref().filter(|grant| runs && grant.pattern.is_some())?;
        let (links, most) = self.cluster.shared_links(grant).ok()?;
        let rate = grant.bits_per_second;
        // More than made runs slower when they were measured would break what is promised.
        let most = self.useful_most(grant).map_or(most, |useful| most.min(useful.max(rate)));
        Some(Job { rate, links, most, spare: BitsPerSecond::ZERO })
    }

    /// What of bandwidth the application of a grant can make use of, if its curve tells.
    fn useful_most(&self, grant: &Grant) -> Option<BitsPerSecond> {
        let promise = grant.promise.as_ref()?;
        let known = self.book.applications().get(&promise.application)?;
        let nodes = u32::try_from(grant.nodes.len()).ok()?;
        known.fitted.curve(&promise.parameters, nodes)?.useful_most()
    }

    /// Parts it anew in a while, if anybody wants it.
    pub(super) fn share_soon(&mut self) {
        if !self.spare.is_empty() {
            self.in_a_while(SHARE_AFTER, Timeout::Share);
        }
    }

    /// Who should have less is told at once; who may have more when nobody beside it can still have it: then
    /// somebody's answer leads here again.
    pub(super) fn share(&mut self) {
        let Changes { less, more } = self.spare.changes(|link| self.link_state(link));
        for (handle, spare) in less {
            self.tell_spare(handle, spare);
        }
        // What is being changed has none until that is decided.
        let more = more.into_iter().filter(|(handle, _)| !self.offers.contains_key(handle));
        for (handle, spare) in more.collect::<Vec<_>>() {
            let beside = self.spare.beside_job(handle);
            let mut all = beside.into_iter().chain([handle]);
            if all.all(|job| self.waits_for(job).is_empty()) && self.all_connected(handle) {
                self.tell_spare(handle, spare);
            }
        }
    }

    /// Running jobs leave what is held for `grant` by now. Who has to say so before it can be relied on.
    pub(super) fn make_room(
        &mut self,
        handle: Handle,
        grant: &Grant,
    ) -> BTreeSet<(NodeIndex, Handle)> {
        if self.spare.is_empty() {
            return BTreeSet::new();
        }
        // What is held was admitted.
        let (demands, _) = self.cluster.demands(grant).unwrap_or_default();
        let links: BTreeSet<_> = demands
            .iter()
            .filter_map(|demand| match self.cluster.resource(demand.resource) {
                Some(Resource::Link(link)) => Some(link),
                _ => None,
            })
            .collect();
        let less = self.spare.to_fit(links.iter().copied(), |link| self.link_state(link));
        for (job, spare) in less {
            self.tell_spare(job, spare);
        }
        self.share_soon();
        let beside = self.spare.beside(links).into_iter().filter(|job| *job != handle);
        beside
            .flat_map(|job| self.waits_for(job).into_iter().map(move |node| (node, job)))
            .collect()
    }

    /// A job has what is reserved for it and no more. Whether it had more.
    pub(super) fn take_spare_back(&mut self, handle: Handle) -> bool {
        let had_more = self.spare.of(handle) > BitsPerSecond::ZERO;
        if had_more {
            self.tell_spare(handle, BitsPerSecond::ZERO);
        }
        had_more
    }

    /// Nobody has to wait for a job any more, or for what one of its nodes says.
    pub(super) fn has_yielded(&mut self, handle: Handle, node: Option<NodeIndex>) {
        for offer in self.offers.values_mut() {
            let waited = offer.yielding.len();
            offer.yielding.retain(|(on, job)| *job != handle || node.is_some_and(|n| n != *on));
            self.has_room |= offer.yielding.len() < waited;
        }
        self.has_room |= !self.held_up.is_empty();
    }

    /// Whether somebody may still use what a reservation has that would begin.
    pub(super) fn has_to_wait(&mut self, handle: Handle) -> bool {
        let found = self.book.reservations().get(&handle).filter(|_| !self.spare.is_empty());
        let Some(found) = found.cloned() else { return false };
        found.grant.as_ref().is_some_and(|grant| !self.make_room(handle, grant).is_empty())
    }

    /// Grants, begins and decides what had to wait for others, or for room, and has not to any more, when all is done
    /// whose time has come.
    pub(super) fn go_on_with_what_has_room(&mut self) {
        if std::mem::take(&mut self.has_room) {
            let held_up = std::mem::take(&mut self.held_up);
            held_up.into_iter().for_each(|handle| self.start_now(handle));
            let ready = self.offers.iter().filter(|(_, offer)| offer.is_ready());
            let ready: Vec<_> = ready.map(|(handle, _)| *handle).collect();
            ready.into_iter().for_each(|handle| self.grant_if_ready(handle));
            self.go_on_with_what_waited();
        }
        self.go_on_with_the_queue();
    }

    fn tell_spare(&mut self, handle: Handle, spare: BitsPerSecond) {
        self.spare.set(handle, spare);
        let wanted = self.assignments(handle);
        self.tell_anew(handle, wanted);
    }

    /// Agents that may enforce something else of a job than they were told last.
    fn waits_for(&self, handle: Handle) -> Vec<NodeIndex> {
        let mut nodes = self.nodes_of(handle);
        nodes.retain(|node| !self.agents.has_accepted(*node, handle));
        nodes
    }

    pub(super) fn all_connected(&self, handle: Handle) -> bool {
        self.nodes_of(handle).into_iter().all(|node| self.agents.is_connected(node))
    }

    /// What begins soon counts as taken.
    fn link_state(&self, link: LinkDirection) -> LinkState {
        let span = Span::lasting(self.now, self.policy.tell_ahead_nanos.max(Nanos::new(1)));
        let free = self.cluster.least_free(&self.calendar, span, Resource::Link(link));
        LinkState { reservable: self.cluster.reservable(link), free: BitsPerSecond::new(free) }
    }
}
