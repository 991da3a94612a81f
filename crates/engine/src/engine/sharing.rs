//! What nobody has reserved: running jobs that asked for it have it, and give it back before somebody else
//! is granted it.

use super::{Engine, Timeout};
use crate::cluster::Resource;
use crate::spare::{Changes, Job, LinkState};
use keeptime_calendar::Span;
use keeptime_model::reservation::{Grant, Handle, State, UserName};
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
            self.has_yielded(handle);
        }
        self.share_soon();
    }

    fn spare_job(&self, handle: Handle) -> Option<Job> {
        let found = self.book.reservations().get(&handle)?;
        let runs = found.state == State::Active && found.request.spare;
        let grant = found.grant.as_ref().filter(|grant| runs && grant.pattern.is_some())?;
        let (links, most) = self.cluster.shared_links(grant).ok()?;
        let rate = grant.bits_per_second;
        Some(Job { rate, links, most, spare: BitsPerSecond::ZERO })
    }

    /// Parts it anew in a while, if anybody wants it.
    pub(super) fn share_soon(&mut self) {
        if !self.spare.is_empty() && !self.is_share_due {
            self.is_share_due = true;
            self.timeouts.insert((self.after(SHARE_AFTER), Timeout::Share));
        }
    }

    /// Who should have less is told at once; who may have more when nobody beside it can still have it: then
    /// somebody's answer leads here again.
    pub(super) fn share(&mut self) {
        self.is_share_due = false;
        let Changes { less, more } = self.spare.changes(|link| self.link_state(link));
        for (handle, spare) in less {
            self.tell_spare(handle, spare);
        }
        for (handle, spare) in more {
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
        owner: &UserName,
        grant: &Grant,
    ) -> BTreeSet<(NodeIndex, Handle)> {
        if self.spare.is_empty() {
            return BTreeSet::new();
        }
        let demands = self.demands(owner, grant);
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
        beside.flat_map(|job| self.waits_for(job).into_iter().map(move |node| (node, job))).collect()
    }

    /// An agent refuses what it may use beside what is reserved: the job has no more than that. Whether it was so.
    pub(super) fn take_spare_back(&mut self, handle: Handle) -> bool {
        let has_some = self.spare.of(handle) > BitsPerSecond::ZERO;
        if has_some {
            self.tell_spare(handle, BitsPerSecond::ZERO);
            self.spare.bar(handle);
        }
        has_some
    }

    /// Nobody has to wait for a job any more.
    pub(super) fn has_yielded(&mut self, handle: Handle) {
        let mut ready = Vec::new();
        for (about, offer) in &mut self.offers {
            let waited = offer.yielding.len();
            offer.yielding.retain(|(_, job)| *job != handle);
            if offer.yielding.len() < waited {
                ready.push(*about);
            }
        }
        ready.into_iter().for_each(|about| self.grant_if_ready(about));
    }

    fn tell_spare(&mut self, handle: Handle, spare: BitsPerSecond) {
        self.spare.set(handle, spare);
        for (node, assignment) in self.assignments(handle) {
            if !self.agents.is_told(node, handle, &assignment) {
                let sent = self.agents.tell(node, handle, assignment);
                self.send(sent);
            }
        }
    }

    /// Agents that may enforce something else of a job than they were told last.
    fn waits_for(&self, handle: Handle) -> Vec<NodeIndex> {
        let mut nodes = self.nodes_of(handle);
        nodes.retain(|node| !self.agents.has_accepted(*node, handle));
        nodes
    }

    fn all_connected(&self, handle: Handle) -> bool {
        self.nodes_of(handle).into_iter().all(|node| self.agents.is_connected(node))
    }

    /// What begins soon counts as taken.
    fn link_state(&self, link: LinkDirection) -> LinkState {
        let span = Span::lasting(self.now, self.policy.tell_ahead_nanos);
        let free = self.cluster.least_free(&self.calendar, span, Resource::Link(link));
        LinkState { reservable: self.cluster.reservable(link), free: BitsPerSecond::new(free) }
    }
}
