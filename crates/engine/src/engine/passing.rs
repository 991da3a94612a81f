//! What happens because time has passed.

use super::{Deadline, Engine, Holder, Moment, Timeout};
use crate::event::Event;
use crate::offers::Offer;
use crate::refusal::Reason;
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
            self.soon.remove(&timeout);
            match timeout {
                Timeout::Offer(handle) => self.silent(handle),
                Timeout::Start(handle) => self.never_started(handle),
                Timeout::Lease(node) => self.lease(node),
                Timeout::Holder(handle) => self.holder_silent(handle),
                Timeout::Share => self.share(),
                Timeout::Faster => self.go_faster(),
                Timeout::Try => self.try_the_queue(),
                Timeout::Wait(handle) => self.wait_is_over(handle),
                Timeout::Move => self.go_on_moving(),
                Timeout::MoveLast => self.end_moving(),
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
        self.holders.values_mut().for_each(|holder| holder.heard = self.steady);
        let is_for_agents = |(_, timeout): &(Nanos, Timeout)| {
            matches!(timeout, Timeout::Start(_) | Timeout::MoveLast)
        };
        let for_agents: Vec<_> = self.timeouts.extract_if(.., is_for_agents).collect();
        let patience = self.after(self.policy.agent_lease_nanos);
        self.timeouts.extend(for_agents.into_iter().map(|(_, timeout)| (patience, timeout)));
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { wall: self.now, steady: self.steady }
    }

    /// Something is to be looked at in a while, once, however often that is said meanwhile: much changes at once.
    pub(super) fn in_a_while(&mut self, span: Nanos, what: Timeout) {
        if self.soon.insert(what) {
            self.timeouts.insert((self.after(span), what));
        }
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
            let found = self.book.reservations().get(&handle);
            let unenforced = found.map(|found| self.unenforced(found.nodes())).unwrap_or_default();
            self.record(Event::Started { handle, unenforced });
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
    pub(super) fn end_with_changes(&mut self, handle: Handle, event: Event) {
        if self.offers.contains_key(&handle) {
            self.give_up(handle, Reason::Cancelled);
        }
        self.end(handle, event);
    }

    /// The holder of a reservation is heard of now, if it needs one.
    pub(super) fn hear_holder(&mut self, handle: Handle) {
        if let Some(holder) = self.holders.get_mut(&handle) {
            holder.heard = self.steady;
        }
    }

    /// The holder of a reservation that is new, or other, has to be heard of, if it needs one. It may have a shorter lease than
    /// before; that others have made it go slower or faster says nothing of its holder.
    fn begin_lease(&mut self, handle: Handle) {
        let heard = self.holders.get(&handle).map_or(self.steady, |holder| holder.heard);
        self.forget_holder(handle);
        if let Some(lease) = self.lease_of(handle) {
            self.await_holder(handle, heard, heard.saturating_add(lease));
        }
    }

    /// It is looked at one time for each holder, however often its reservation is changed.
    fn await_holder(&mut self, handle: Handle, heard: Nanos, looked_at: Nanos) {
        self.holders.insert(handle, Holder { heard, looked_at });
        self.timeouts.insert((looked_at, Timeout::Holder(handle)));
    }

    /// Nobody has to be heard of any more.
    pub(super) fn forget_holder(&mut self, handle: Handle) {
        if let Some(Holder { looked_at, .. }) = self.holders.remove(&handle) {
            self.timeouts.remove(&(looked_at, Timeout::Holder(handle)));
        }
    }

    /// It is given back, unless its holder was heard of meanwhile.
    pub(super) fn holder_silent(&mut self, handle: Handle) {
        let holder = self.holders.get(&handle).copied();
        let (Some(lease), Some(Holder { heard, .. })) = (self.lease_of(handle), holder) else {
            return;
        };
        let ends = heard.saturating_add(lease);
        if ends > self.steady {
            self.await_holder(handle, heard, ends);
        } else {
            self.end_with_changes(handle, Event::Abandoned { handle });
        }
    }

    fn lease_of(&self, handle: Handle) -> Option<Nanos> {
        let live = self.book.reservations().get(&handle).filter(|found| found.state.is_live());
        live.and_then(|live| live.request.lease_nanos)
    }

    /// What is being moved is remembered once more: what takes its place, or is refused that, is recorded with it.
    pub(super) fn forget(&mut self, handle: Handle) {
        let over = self.book.reservations().get(&handle);
        if over.is_none_or(|over| over.state.is_live()) {
            return;
        }
        if self.offers.values().any(|offer| offer.kind.takes_the_place_of(handle)) {
            self.forget_later(handle);
        } else {
            self.record(Event::Forgotten { handle });
        }
    }

    pub(super) fn forget_later(&mut self, handle: Handle) {
        let then = self.now.saturating_add(self.policy.remember_nanos);
        self.deadlines.insert((then, Deadline::Forget(handle)));
    }

    /// Nothing is due any more of a reservation that is over, or is about to be another: those that last for long may be
    /// changed and given back however often until then.
    pub(super) fn unschedule(&mut self, handle: Handle) {
        let Some(former) = self.book.reservations().get(&handle) else { return };
        let (from, until) = (former.from_unix_nanos, former.until_unix_nanos);
        self.deadlines.remove(&(self.tell_at(from), Deadline::Tell(handle)));
        self.deadlines.remove(&(from, Deadline::Start(handle)));
        if let Some(until) = until {
            self.deadlines.remove(&(until, Deadline::End(handle)));
        }
    }

    /// When agents are told of what starts at `from`.
    fn tell_at(&self, from: WallTime) -> WallTime {
        let ahead = self.policy.tell_ahead_nanos.get();
        WallTime::from_unix_nanos(from.unix_nanos().saturating_sub(ahead))
    }

    /// Deadlines of a reservation that was granted or changed.
    pub(super) fn schedule(&mut self, handle: Handle) {
        let Some(live) = self.book.reservations().get(&handle) else { return };
        let (from, until) = (live.from_unix_nanos, live.until_unix_nanos);
        let has_started = live.state != State::Granted;
        let tell = self.tell_at(from);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, Caller};
    use crate::cluster::Cluster;
    use crate::engine::{Input, Output, Ticket};
    use crate::policy::Policy;
    use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
    use keeptime_model::topology::Topology;
    use keeptime_model::units::CpuPpm;

    const TOPOLOGY: &str = "name = \"one\"\nswitches = [{ name = \"s1\" }]\n\
        [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
        [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n";
    const DAY: Nanos = Nanos::from_secs(86_400);

    /// What a user asks of an engine at a time, and gets.
    fn ask(engine: &mut Engine, steady: Nanos, call: Call) {
        let (ticket, user) = (Ticket(1), "ada".parse().unwrap());
        let caller = Caller { user, operator: false };
        let moment = Moment { wall: WallTime::from_unix_nanos(0), steady };
        let step = engine.step(moment, Input::Call { ticket, caller, call: Box::new(call) });
        let is_yes = |output: &Output| matches!(output, Output::Answer { answer: Ok(_), .. });
        assert!(step.outputs.iter().any(is_yes), "{step:?}");
    }

    /// In thirty days for so many, with a lease of ten.
    fn request(days: u64) -> Request {
        let resources = Resources {
            nodes: NodeChoice::Named(vec!["n1".parse().unwrap()]),
            cpu_ppm: CpuPpm::from_percent(10),
            ..Resources::nothing()
        };
        Request {
            from_unix_nanos: Some(WallTime::from_unix_nanos(30 * DAY.get())),
            duration_nanos: Some(Nanos::new(days * DAY.get())),
            lease_nanos: Some(Nanos::new(10 * DAY.get())),
            ..Request::new(Ask::Resources(resources))
        }
    }

    // Goal: a user who changes and gives back what is far ahead, again and again, leaves nothing behind for as long. Method:
    // what is to be looked at is counted.
    #[test]
    fn what_is_changed_and_given_back_is_not_kept_in_mind_until_it_would_have_been() {
        let cluster = Cluster::new(Topology::from_toml(TOPOLOGY).unwrap(), |rate| rate).unwrap();
        let mut engine = Engine::new(cluster, Policy::default(), Moment::default());
        let idle = engine.timeouts.len();
        let reserve = Call::Reserve { key: "k".parse().unwrap(), request: request(1) };
        ask(&mut engine, Nanos::new(0), reserve);
        let handle = Handle::new(1);
        for days in 2..50 {
            let change = Call::Modify { handle, request: request(days) };
            ask(&mut engine, Nanos::new(days), change);
            assert_eq!(engine.deadlines.len(), 3, "agents are told, it starts, it ends");
            assert_eq!(engine.timeouts.len(), idle + 1, "its holder is silent");
        }
        ask(&mut engine, Nanos::new(50), Call::Cancel { handle });
        let left: Vec<_> = engine.deadlines.iter().map(|(_, deadline)| *deadline).collect();
        assert_eq!(left, [Deadline::Forget(handle)]);
        assert!(engine.timeouts.iter().all(|(_, timeout)| *timeout != Timeout::Holder(handle)));
        assert!(engine.holders.is_empty());
    }
}
