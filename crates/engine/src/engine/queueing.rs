//! Requests that may wait for room: tried again when something was given back, in the order in which they came, and decided
//! in any case when their time is over. What tries take of the broker's time is bounded, and so is how often one is passed.

use super::draining::kept_by;
use super::making_way::Waiting;
use super::offering::{Place, Telling, Wanted};
use super::{Engine, Ticket, Timeout};
use crate::absences::Absences;
use crate::admission::{Admission, Denied};
use crate::book::Reservation;
use crate::call::{Answer, CallError};
use crate::claims::Claim;
use crate::event::Refused;
use crate::mask::NodeMask;
use crate::offers::{Declined, Proposal};
use crate::queue::Asked;
use crate::refusal::{Reason, Refusal};
use keeptime_calendar::{Calendar, ResourceId};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, Request};
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeSet;

/// So long after an agent has come, or is gone, those who wait are tried, and what is left to be moved: where it comes after the
/// broker, all others come as well. And so long after agents did not take one, that one is: at once they would say the same.
pub(super) const TRY_AFTER: Nanos = Nanos::from_secs(1);
/// So often one goes back to its place when its agents do not take it: what they cannot enforce now may be otherwise in a
/// moment, or there may be room elsewhere. What holds for longer is told.
const RETURNS_MAX: u32 = 3;
/// What a try is counted as: more than it takes in a large cluster, with a look whether there would be room but for others.
const TRY_TAKES: Nanos = Nanos::from_millis(1);
/// What it is counted as to look whether others can be made slower: many are tried in their slot tables.
const WAY_TAKES: Nanos = Nanos::from_millis(16);
/// For so many of those who wait that is looked for whenever something was given back; for each, when its wait is over.
const WAYS_SOUGHT: u32 = 4;
/// What counts as so much time is done at once. Whoever waits is not tried again before the rest of it has passed: however
/// much is given back, others are heard.
const TRIES_AT_ONCE: Nanos = Nanos::from_millis(256);

/// Slot tables in which nothing is reserved.
#[derive(Debug, Clone)]
pub(super) struct Empty {
    calendar: Calendar,
    /// Of a user, whoever it is.
    user: [ResourceId; 2],
}

impl Asked {
    /// As what it is planned: in its own place.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted::new(&self.caller.user, &self.key, &self.request, Place::Own(self.handle))
    }
}

impl Engine {
    /// How many requests wait for room.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Those who wait for room, whoever came first before the others, as the reservations that they may become. Nothing of it
    /// is recorded.
    pub fn who_waits(&self) -> impl Iterator<Item = Reservation> {
        self.queue.reservations(self.moment())
    }

    /// Whether this call waits for room, or until others are slower for it.
    pub fn is_waiting(&self, ticket: Ticket) -> bool {
        let has = |waiting: &Waiting| waiting.pending.has(ticket);
        self.queue.has(ticket) || self.waiting.iter().any(has)
    }

    /// Whoever was to be answered so is gone. For what nobody waits for any more no nodes are kept, and nobody is made
    /// slower: what was changed for it already is changed back.
    pub(super) fn gone(&mut self, ticket: Ticket) {
        self.was_given_back |= self.queue.forget(ticket, self.steady);
        let is_over = |waiting: &mut Waiting| waiting.pending.forget(ticket);
        let over: Vec<_> = self.waiting.extract_if(.., is_over).collect();
        for Waiting { slower, .. } in over {
            for handle in slower {
                self.give_up(handle, Reason::Cancelled);
            }
            self.faster_soon();
        }
    }

    /// Whether a request that was refused is to wait: it may, and is short of nothing but room.
    pub(super) fn is_to_wait(&mut self, asked: &Asked, refusal: &Refusal) -> bool {
        let is_limit =
            matches!(refusal.reason, Reason::TooMany { .. } | Reason::TooFarAhead { .. });
        asked.may_wait(self.steady) && !is_limit && self.would_ever_fit(&asked.request)
    }

    /// Whether a request would fit, were nothing reserved, by its user too, and every agent there.
    fn would_ever_fit(&mut self, request: &Request) -> bool {
        let span = self.span_of(request);
        let idle = self.idle_admission(request, self.shares);
        idle.is_some_and(|idle| idle.grant(&request.ask, span).granted.is_ok())
    }

    /// Whether what waits would fit now beside what is drained or away, and within what its user's share leaves, were nothing else
    /// reserved.
    fn may_be_had(&mut self, asked: &Asked) -> bool {
        let (request, span) = (&asked.request, self.span_of(&asked.request));
        let tables = self.counted_in(&asked.caller.user, &request.ask);
        let free = |table| self.calendar.table(table).map_or(0, |table| table.least_free(span));
        let shares = tables.map_or(self.shares, |tables| tables.map(free));
        let drained = self.drained_for(None, request, (span.from(), None));
        let absences = self.absences();
        let idle = self.idle_admission(request, shares);
        let idle = idle.map(|idle| Admission { drained, absences, ..idle });
        idle.is_some_and(|idle| idle.grant(&request.ask, span).granted.is_ok())
    }

    /// What a request that waits has of having come first: on all nodes that it could use, were nothing reserved.
    fn claim_of(&mut self, request: &Request) -> Claim {
        let span = self.span_of(request);
        let idle = self.idle_admission(request, self.shares);
        Claim::on(idle.map(|idle| idle.candidates(&request.ask, span)).unwrap_or_default())
    }

    /// Nodes were drained, or are to be had again: whoever cannot be had beside what is drained keeps nobody from other nodes.
    pub(super) fn judge_claims(&mut self) {
        for handle in self.queue.handles() {
            let Some(mut asked) = self.queue.take(handle) else { continue };
            if asked.was_tried() {
                let has_kept = !asked.kept(self.steady).is_empty();
                self.judge_claim(&mut asked);
                self.was_given_back |= has_kept && asked.kept(self.steady).is_empty();
                self.count(TRY_TAKES);
            }
            self.queue.put(asked);
        }
    }

    /// Whether it could be had now, were nothing reserved on nodes: that others passed it is no reason otherwise.
    fn judge_claim(&mut self, asked: &mut Asked) {
        let may_be_had = self.may_be_had(asked);
        if let Some(claim) = &mut asked.claim {
            claim.may_be_had = may_be_had;
        }
    }

    /// Admission of a request were nothing reserved, every agent there, and so much of CPU and sent rate its user's.
    fn idle_admission(&mut self, request: &Request, shares: [u64; 2]) -> Option<Admission<'_>> {
        if self.empty.is_none() {
            self.empty = Some(self.without_reservations());
        }
        let Empty { calendar, user } = self.empty.as_mut()?;
        for (table, share) in user.iter().zip(shares) {
            let limited = calendar.set_capacity(*table, share);
            debug_assert!(limited.is_ok(), "{limited:?}");
        }
        let empty = self.empty.as_ref()?;
        Some(Admission {
            calendar: &empty.calendar,
            absences: Absences::None,
            mechanism: request.cpu_mechanism,
            outside: self.outside(&request.among),
            ..self.admission(Some(empty.user))
        })
    }

    /// Kept once it was made: in a large cluster that takes longer than a plan.
    fn without_reservations(&self) -> Empty {
        let mut calendar = self.cluster.empty_calendar();
        let user = self.shares.map(|share| calendar.add_resource(share));
        Empty { calendar, user }
    }

    /// It was tried, and waits for room.
    pub(super) fn wait_for_room(&mut self, mut asked: Asked) {
        if let Some(until) = asked.until {
            self.timeouts.insert((until, Timeout::Wait(asked.handle)));
        }
        if !asked.was_tried() {
            asked.claim = Some(self.claim_of(&asked.request));
        }
        self.judge_claim(&mut asked);
        self.queue.put(asked);
    }

    /// Whether what was offered goes back to its place, now that it comes to nothing for `reason`: where its agents did not
    /// take it, or a node of it was drained or is away, and it may wait on. What has no place yet is given one only where there
    /// is one.
    pub(super) fn may_go_back(&self, asked: &Asked, reason: &Reason) -> bool {
        use Reason::{AgentRefused, AgentsSilent, NodesAway, NodesDrained};
        let is_of_nodes = matches!(
            reason,
            AgentRefused { .. } | AgentsSilent(_) | NodesAway(_) | NodesDrained(_)
        );
        let has_place = || {
            asked.was_tried() || self.queue.limit_for(&asked.caller.user, &self.policy).is_none()
        };
        let may_wait = asked.returns < RETURNS_MAX && asked.may_wait(self.steady);
        is_of_nodes && may_wait && has_place()
    }

    /// It waits on in its place, and is not tried for a while.
    pub(super) fn go_back(&mut self, asked: Asked, tickets: Vec<Ticket>, reason: Reason) {
        let (returns, rests_until) = (asked.returns + 1, self.after(TRY_AFTER));
        self.timeouts.insert((rests_until, Timeout::Try));
        let refusal = Some(Box::new(reason.into()));
        self.wait_for_room(Asked { tickets, returns, rests_until, refusal, ..asked });
    }

    /// What is about to be offered passes others who came before, wait for room and could have used any of its nodes. By a
    /// web site's node nobody is passed: sites have what their guarantees say. Nor is anybody by nodes that it `had`.
    pub(super) fn passes(&mut self, handle: Handle, proposal: &Proposal, had: &[Name]) {
        if self.queue.is_empty() || matches!(proposal.request.ask, Ask::SiteNode(_)) {
            return;
        }
        // What was proposed names nodes that there are.
        let mut nodes = self.cluster.nodes(&proposal.grant).unwrap_or_default();
        let had: BTreeSet<_> = had.iter().collect();
        nodes.retain(|node| !had.contains(self.cluster.name(*node)));
        nodes.sort_unstable();
        let at = self.moment();
        let Proposal { owner, from, .. } = proposal;
        if let Some(until) = self.queue.passed_by(handle, owner, &nodes, *from, at) {
            // Whoever is kept from nodes until then may have room then.
            self.timeouts.insert((until, Timeout::Try));
        }
    }

    /// Which nodes are kept from what begins at `from` and ends at `until`.
    pub(super) fn kept_from(
        &self,
        place: Place<'_>,
        request: &Request,
        from: WallTime,
        until: Option<WallTime>,
    ) -> NodeMask {
        let mut kept = NodeMask::default();
        let (before, has) = match (place, &request.ask) {
            (_, Ask::SiteNode(_)) | (Place::OfLost, _) => return kept,
            (Place::Own(handle), _) => (handle, [].as_slice()),
            (Place::OfOld(old), _) => {
                (Handle::new(self.next), kept_by(old, request, (from, until)))
            }
        };
        let mut left = self.cluster.topology().nodes().len();
        // Many may wait that could use all of them.
        for node in self.queue.kept_from(before, from, self.moment()) {
            left -= usize::from(kept.insert(node));
            if left == 0 {
                break;
            }
        }
        let has = has.iter().filter_map(|name| self.cluster.node(name).ok());
        has.for_each(|node| kept.remove(node));
        kept
    }

    /// How long until those who wait are tried; nothing = they are not to be.
    pub(super) fn queue_due_after(&self) -> Option<Nanos> {
        (self.was_given_back && !self.queue.is_empty()).then(|| self.rest())
    }

    /// How long those who wait are not tried, since so much was done for them of late.
    fn rest(&self) -> Nanos {
        self.tries_until.saturating_sub(self.after(TRIES_AT_ONCE))
    }

    /// Something was done for those who wait that is counted as taking so long.
    fn count(&mut self, takes: Nanos) {
        self.tries_until = self.tries_until.max(self.steady).saturating_add(takes);
    }

    /// If something was given back since those who wait were tried last, whoever can be had now is decided, and whoever has
    /// just come or waits no longer. That these are is not counted: they would have been in any case.
    pub(super) fn go_on_with_the_queue(&mut self) {
        let rests = self.queue_due_after() > Some(Nanos::new(0));
        if rests || !std::mem::take(&mut self.was_given_back) {
            return;
        }
        let mut ways = WAYS_SOUGHT;
        for handle in self.queue.handles() {
            let Some(mut asked) = self.queue.take(handle) else { continue };
            let waits_on = asked.was_tried() && asked.may_wait(self.steady);
            if waits_on && asked.rests_until > self.steady {
                self.queue.put(asked);
            } else if waits_on && !self.is_to_be_had(&mut asked, &mut ways) {
                // Nodes may have gone or come, and what its user has may be more or less.
                self.judge_claim(&mut asked);
                self.queue.put(asked);
                self.count(TRY_TAKES);
            } else {
                self.decide(asked);
            }
        }
    }

    /// Whether there is more to say to a request than that it waits. `ways`: for so many more it is looked whether others can
    /// be made slower.
    fn is_to_be_had(&mut self, asked: &mut Asked, ways: &mut u32) -> bool {
        let refusal = match self.plan(asked.wanted(), Telling::Reason) {
            // What has become invalid meanwhile is told that.
            Ok(_) | Err(Declined { denied: Denied::Invalid(_), .. }) => return true,
            Err(Declined { denied: Denied::Refused(refusal), .. }) => refusal,
        };
        let may_have_way = asked.may_make_way && *ways > 0 && !self.book.malleable().is_empty();
        let has_way = may_have_way && {
            *ways -= 1;
            self.count(WAY_TAKES);
            self.find_way(asked.wanted()).is_some()
        };
        asked.refusal = Some(refusal);
        has_way
    }

    /// It is tried once more, and waits no longer: after those who came before it, also where these are tried in a moment.
    pub(super) fn wait_is_over(&mut self, handle: Handle) {
        self.go_on_with_the_queue();
        if self.queue_due_after().is_some() {
            return;
        }
        if let Some(asked) = self.queue.take(handle) {
            // Whoever was kept from nodes for it may have them.
            self.was_given_back |= !asked.kept(self.steady).is_empty();
            self.decide(asked);
        }
    }

    /// It is to wait no longer, and whoever waits for it is told so. Nodes that were kept for it are to be had.
    pub(super) fn stop_waiting(&mut self, handle: Handle) -> Result<Answer, CallError> {
        let asked = self.queue.take(handle).ok_or(CallError::NotFound { handle })?;
        self.was_given_back |= !asked.kept(self.steady).is_empty();
        let Asked { tickets, caller, key, request, .. } = asked;
        let (owner, refusal) = (caller.user, Reason::Cancelled.into());
        let refused = Refused { owner, key, request, refusal, replaces: None, decision: None };
        let error = self.refuse(handle, refused);
        self.answer_each(tickets, &Err(error));
        self.current(handle).ok_or(CallError::NotFound { handle })
    }

    /// Decides a request whose callers were not answered when they asked.
    pub(super) fn decide(&mut self, asked: Asked) {
        let tickets = asked.tickets.clone();
        let Some(answer) = self.admit(asked).transpose() else { return };
        self.answer_each(tickets, &answer);
    }

    /// In a while those who wait are tried, if anybody does.
    pub(super) fn try_the_queue_soon(&mut self) {
        if !self.queue.is_empty() {
            self.in_a_while(TRY_AFTER, Timeout::Try);
        }
    }

    /// That while is over.
    pub(super) fn try_the_queue(&mut self) {
        self.was_given_back = true;
    }
}
