//! What happens because time has passed.

use super::{Deadline, Engine, Moment, Timeout};
use crate::call::Reason;
use crate::event::Event;
use crate::offers::Offer;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use std::collections::BTreeSet;

/// What is due is looked at within milliseconds. By more than this it is late only after the broker itself stood still.
const STOOD_STILL: Nanos = Nanos::from_secs(1);

impl Engine {
    /// Everything whose time has come, in order.
    pub(super) fn pass(&mut self) {
        if self.has_stood_still() {
            self.count_silence_anew();
        }
        while let Some((time, deadline)) = self.deadlines.first().copied()
            && time <= self.now
        {
            self.deadlines.pop_first();
            match deadline {
                Deadline::Tell(handle) => self.tell_soon(handle),
                Deadline::Start(handle) => self.start_soon(handle),
                Deadline::End(handle) => self.end_now(handle),
                Deadline::Forget(handle) => self.forget(handle),
            }
        }
        while let Some((time, timeout)) = self.timeouts.first().copied()
            && time <= self.steady
        {
            self.timeouts.pop_first();
            match timeout {
                Timeout::Offer(handle) => self.silent(handle),
                Timeout::Start(handle) => self.never_started(handle),
                Timeout::Lease(node) => self.lease(node),
                Timeout::Holder(handle) => self.holder_silent(handle),
                Timeout::Share => self.share(),
                Timeout::Faster => self.go_faster(),
                Timeout::Try => self.try_the_queue(),
                Timeout::Wait(handle) => self.wait_is_over(handle),
            }
        }
    }

    /// Whether something was due long ago: the broker's process was stopped, or its machine.
    fn has_stood_still(&self) -> bool {
        let first = self.timeouts.first();
        first.is_some_and(|(due, _)| self.steady.saturating_sub(*due) > STOOD_STILL)
    }

    /// Nobody could be heard meanwhile: agents and holders have all of their leases from now on.
    fn count_silence_anew(&mut self) {
        self.agents.count_silence_from(self.steady);
        self.holders.values_mut().for_each(|heard| *heard = self.steady);
        let is_start = |(_, timeout): &(Nanos, Timeout)| matches!(timeout, Timeout::Start(_));
        let starts: Vec<_> = self.timeouts.extract_if(.., is_start).collect();
        let patience = self.after(self.policy.agent_lease_nanos);
        self.timeouts.extend(starts.into_iter().map(|(_, start)| (patience, start)));
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { wall: self.now, steady: self.steady }
    }

    /// By the steady clock.
    pub(super) fn after(&self, span: Nanos) -> Nanos {
        self.steady.saturating_add(span)
    }

    pub(super) fn silent(&mut self, handle: Handle) {
        let due = |offer: &&Offer| offer.deadline <= self.steady;
        let Some(offer) = self.offers.get(&handle).filter(due) else { return };
        let yielding = offer.yielding.iter().map(|(node, _)| node);
        let silent: BTreeSet<_> = offer.waiting.iter().chain(yielding).collect();
        let silent = silent.into_iter().map(|node| self.cluster.name(*node).clone()).collect();
        self.give_up(handle, Reason::AgentsSilent(silent));
    }

    /// It begins soon: its agents are told, and others leave what it has. What is being changed is told when that is
    /// decided; agents that are asked about the change would take what was for an answer.
    fn tell_soon(&mut self, handle: Handle) {
        if self.offers.contains_key(&handle) {
            return;
        }
        self.align(handle, Vec::new());
        let live = self.book.reservations().get(&handle).filter(|found| found.state.is_live());
        if let Some(found) = live.cloned()
            && let Some(grant) = &found.grant
        {
            self.make_room(handle, grant);
        }
    }

    /// Its time has come: agents have a lease's time to enforce it.
    pub(super) fn start_soon(&mut self, handle: Handle) {
        self.start_now(handle);
        if self.is_due(handle) {
            let patience = self.after(self.policy.agent_lease_nanos);
            self.timeouts.insert((patience, Timeout::Start(handle)));
        }
    }

    /// It is active when its time has come, every agent has accepted, and nobody else can still use what it has.
    pub(super) fn start_now(&mut self, handle: Handle) {
        // What agents have accepted of what is being changed is the change.
        let is_changed = self.offers.contains_key(&handle);
        if is_changed || !self.is_due(handle) || !self.all_accepted(handle) {
            return;
        }
        if self.has_to_wait(handle) {
            self.held_up.insert(handle);
        } else {
            self.record(Event::Started { handle });
            self.take_spare_anew(handle);
            self.faster_soon();
        }
    }

    /// Whether all agents of a reservation have accepted it. They are told in the order of the nodes and mostly
    /// answer so: from the last on, one that has not is found soonest.
    fn all_accepted(&self, handle: Handle) -> bool {
        let found = self.book.reservations().get(&handle);
        let grant = found.and_then(|found| found.grant.as_ref());
        let accepted = |name: &Name| {
            let node = self.cluster.node(name);
            node.is_ok_and(|node| self.agents.has_accepted(node, handle))
        };
        grant.is_some_and(|grant| grant.nodes.iter().rev().all(accepted))
    }

    /// Who has not accepted it by now is as good as gone.
    pub(super) fn never_started(&mut self, handle: Handle) {
        if !self.is_due(handle) {
            return;
        }
        let is_missing = |node: &NodeIndex| !self.agents.has_accepted(*node, handle);
        let missing = self.nodes_of(handle).into_iter().find(is_missing);
        match missing {
            Some(node) => self.lose(handle, node),
            None => self.start_now(handle),
        }
    }

    /// Whether it is granted and its time has come.
    pub(super) fn is_due(&self, handle: Handle) -> bool {
        let found = self.book.reservations().get(&handle);
        found.is_some_and(|r| r.state == State::Granted && r.from_unix_nanos <= self.now)
    }

    pub(super) fn end_now(&mut self, handle: Handle) {
        let live = self.book.reservations().get(&handle);
        let until = live.filter(|live| live.state.is_live()).and_then(|live| live.until_unix_nanos);
        if until.is_some_and(|until| until <= self.now) {
            self.end_with_changes(handle, Event::Ended { handle });
        }
    }

    /// Ends a reservation, and a change of it that waits for agents.
    fn end_with_changes(&mut self, handle: Handle, event: Event) {
        if self.offers.contains_key(&handle) {
            self.give_up(handle, Reason::Cancelled);
        }
        self.end(handle, event);
    }

    /// The holder of a reservation is heard of now, if it needs one.
    pub(super) fn hear_holder(&mut self, handle: Handle) {
        if let Some(heard) = self.holders.get_mut(&handle) {
            *heard = self.steady;
        }
    }

    /// The lease of a holder begins, if it needs one. It may be a shorter one than before.
    fn begin_lease(&mut self, handle: Handle) {
        let Some(lease) = self.lease_of(handle) else { return };
        self.holders.insert(handle, self.steady);
        self.timeouts.insert((self.after(lease), Timeout::Holder(handle)));
    }

    /// It is given back, unless its holder was heard of meanwhile or it needs none any more.
    pub(super) fn holder_silent(&mut self, handle: Handle) {
        let heard = self.holders.get(&handle).copied();
        let (Some(lease), Some(heard)) = (self.lease_of(handle), heard) else {
            self.holders.remove(&handle);
            return;
        };
        let ends = heard.saturating_add(lease);
        if ends > self.steady {
            self.timeouts.insert((ends, Timeout::Holder(handle)));
        } else {
            self.end_with_changes(handle, Event::Abandoned { handle });
        }
    }

    fn lease_of(&self, handle: Handle) -> Option<Nanos> {
        let live = self.book.reservations().get(&handle).filter(|found| found.state.is_live());
        live.and_then(|live| live.request.lease_nanos)
    }

    pub(super) fn forget(&mut self, handle: Handle) {
        let over = self.book.reservations().get(&handle);
        if over.is_some_and(|over| !over.state.is_live()) {
            self.record(Event::Forgotten { handle });
        }
    }

    pub(super) fn forget_later(&mut self, handle: Handle) {
        let then = self.now.saturating_add(self.policy.remember_nanos);
        self.deadlines.insert((then, Deadline::Forget(handle)));
    }

    /// Deadlines of a reservation that was granted or changed.
    pub(super) fn schedule(&mut self, handle: Handle) {
        let Some(live) = self.book.reservations().get(&handle) else { return };
        let (from, until) = (live.from_unix_nanos, live.until_unix_nanos);
        let has_started = live.state != State::Granted;
        let ahead = self.policy.tell_ahead_nanos;
        let tell = WallTime::from_unix_nanos(from.unix_nanos().saturating_sub(ahead.get()));
        if tell > self.now {
            self.deadlines.insert((tell, Deadline::Tell(handle)));
        }
        if let Some(until) = until {
            self.deadlines.insert((until, Deadline::End(handle)));
        }
        self.begin_lease(handle);
        if from > self.now {
            self.deadlines.insert((from, Deadline::Start(handle)));
        } else if !has_started {
            self.start_soon(handle);
        }
    }
}
