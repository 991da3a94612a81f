//! The state machine. Every input makes a [`Step`]: events to be recorded together, then orders and
//! answers, which must not leave before the events of this step and all before it are durable.

use crate::admission::{Admission, Denied};
use crate::agents::{Agents, Order, Sent, Session};
use crate::book::{Book, Reservation, Snapshot};
use crate::call::{Answer, Call, CallError, Caller, Reason, Refusal};
use crate::cluster::Cluster;
use crate::event::{Event, Granted, Modified, Refused};
use crate::offers::{Kind, Offer, Offers, Proposal, span};
use crate::policy::Policy;
use keeptime_calendar::{Calendar, ReservationId, ResourceId, Span, When};
use keeptime_model::Invalid;
use keeptime_model::assignment::Assignment;
use keeptime_model::reservation::{Grant, Handle, OnLoss, Request, RequestKey, State, UserName};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use std::collections::{BTreeMap, BTreeSet};

/// A start that lies back by no more than this is meant to be now: clocks differ, and so do people.
const PAST_MAX: Nanos = Nanos::from_secs(60);

/// Which call an answer belongs to: a number that the shell gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A point in time by both of a machine's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// UTC: when reservations start and end. It can be set.
    pub wall: WallTime,
    /// Since any fixed instant, never set: how long agents may be silent.
    pub steady: Nanos,
}

/// What comes in.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A user asks.
    Call {
        /// For the answer.
        ticket: Ticket,
        /// Who.
        caller: Caller,
        /// What.
        call: Call,
    },
    /// An agent has connected.
    Connected {
        /// Of which node.
        node: NodeIndex,
        /// This connection.
        session: Session,
        /// All that it enforces, or will.
        holding: Vec<Assignment>,
    },
    /// An agent lives.
    Heard {
        /// Of which node.
        node: NodeIndex,
        /// On this connection.
        session: Session,
    },
    /// An agent answered an order.
    Answered {
        /// Of which node.
        node: NodeIndex,
        /// On this connection.
        session: Session,
        /// Which order.
        number: u64,
        /// Why it cannot, if it cannot.
        refusal: Option<String>,
    },
    /// A connection has ended.
    Disconnected {
        /// Of which node.
        node: NodeIndex,
        /// Which.
        session: Session,
    },
    /// Time has passed.
    Passed,
}

/// What goes out.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// To an agent, if it still has this connection.
    Order {
        /// Of which node.
        node: NodeIndex,
        /// On this connection.
        session: Session,
        /// What.
        order: Order,
    },
    /// To a user.
    Answer {
        /// Of this call.
        ticket: Ticket,
        /// What came of it.
        answer: Result<Answer, Box<CallError>>,
    },
}

/// What an input leads to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// When it happened, by the engine's clock, which never goes back.
    pub time: WallTime,
    /// To be recorded, all or none.
    pub events: Vec<Event>,
    /// To be let go, in this order, when the events are durable.
    pub outputs: Vec<Output>,
}

/// The broker's state.
#[derive(Debug, Clone)]
pub struct Engine {
    cluster: Cluster,
    policy: Policy,
    book: Book,
    calendar: Calendar,
    /// Each user's own tables: CPU and sent rate.
    users: BTreeMap<UserName, [ResourceId; 2]>,
    offers: Offers,
    agents: Agents,
    deadlines: BTreeSet<(WallTime, Deadline)>,
    timeouts: BTreeSet<(Nanos, Timeout)>,
    now: WallTime,
    steady: Nanos,
    clock_steps_back: u64,
    /// Greater than any handle that was given, also to what was never granted.
    next: u64,
    step: Step,
}

/// What is to be looked at when its time has come. What it is about may have changed until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deadline {
    /// Agents are to be told.
    Tell(Handle),
    /// It starts.
    Start(Handle),
    /// It ends.
    End(Handle),
    /// Its key can be used again.
    Forget(Handle),
}

/// What should have happened by now, by the steady clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timeout {
    /// Agents should have accepted.
    Offer(Handle),
    /// All agents should enforce what has started.
    Start(Handle),
    /// Something should have been heard of an agent.
    Lease(NodeIndex),
}

impl Engine {
    /// An engine without reservations.
    pub fn new(cluster: Cluster, policy: Policy, moment: Moment) -> Self {
        let (calendar, count) = (cluster.empty_calendar(), cluster.topology().nodes().len());
        let Moment { wall: now, steady } = moment;
        let agents = Agents::new(count, policy.agent_lease_nanos, moment);
        let leases = cluster.topology().node_indices();
        let leases = leases.map(|node| (agents.lease_ends(node), Timeout::Lease(node)));
        let timeouts = leases.collect();
        Self {
            calendar,
            agents,
            deadlines: BTreeSet::new(),
            timeouts,
            steady,
            cluster,
            policy,
            book: Book::default(),
            users: BTreeMap::new(),
            offers: Offers::new(),
            now,
            clock_steps_back: 0,
            next: 1,
            step: Step { time: now, ..Step::default() },
        }
    }

    /// The engine whose records are `snapshot` and the `events` after it. Agents have their lease to
    /// come back. The step has what the cluster does not hold any more: nodes or links that
    /// are gone or slower than they were.
    ///
    /// # Errors
    /// If a recorded profile cannot be planned with.
    pub fn restore(
        cluster: Cluster,
        policy: Policy,
        snapshot: Option<Snapshot>,
        events: impl IntoIterator<Item = (WallTime, Event)>,
        moment: Moment,
    ) -> Result<(Self, Step), Invalid> {
        let mut engine = Self::new(cluster, policy, moment);
        if let Some(snapshot) = snapshot {
            engine.book = Book::restore(snapshot)?;
        }
        for (time, event) in events {
            engine.book.apply(&event, time)?;
            engine.now = engine.now.max(time);
        }
        engine.next = engine.book.next().number();
        engine.take_up();
        let step = engine.finish();
        Ok((engine, step))
    }

    /// What `input` at this moment leads to. A wall clock that was set back stands still until it has
    /// caught up.
    pub fn step(&mut self, moment: Moment, input: Input) -> Step {
        if moment.wall < self.now {
            self.clock_steps_back += 1;
        }
        self.now = self.now.max(moment.wall);
        self.steady = self.steady.max(moment.steady);
        self.pass();
        match input {
            Input::Call { ticket, caller, call } => self.call(ticket, &caller, call),
            Input::Connected { node, session, holding } => self.connected(node, session, holding),
            Input::Heard { node, session } => {
                self.agents.heard(node, session, self.moment());
            }
            Input::Answered { node, session, number, refusal } => {
                if self.agents.heard(node, session, self.moment()) {
                    self.answered(node, number, refusal);
                }
            }
            Input::Disconnected { node, session } => {
                self.agents.disconnected(node, session);
            }
            Input::Passed => {}
        }
        self.finish()
    }

    /// How long after the last step [`Input::Passed`] is due, if nothing else happens before. (A wall
    /// clock that is set forward meanwhile makes it due at once.)
    pub fn idle(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|(time, _)| time.saturating_since(self.now));
        let timeout = self.timeouts.first();
        let timeout = timeout.map(|(time, _)| time.saturating_sub(self.steady));
        deadline.into_iter().chain(timeout).min()
    }

    /// Everything that was recorded.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// The slot tables, with what is held and not granted yet.
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// What there is.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Times and limits.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The engine's clock.
    pub fn now(&self) -> WallTime {
        self.now
    }

    /// How often the clock was seen to be set back.
    pub fn clock_steps_back(&self) -> u64 {
        self.clock_steps_back
    }

    /// Whether the agent of a node is connected.
    pub fn is_connected(&self, node: NodeIndex) -> bool {
        self.agents.is_connected(node)
    }

    /// When the agent of a node was heard of last; when the broker began, if it never was.
    pub fn heard_at(&self, node: NodeIndex) -> WallTime {
        self.agents.heard_at(node)
    }

    /// What the agent of a node was told, and whether it has accepted it.
    pub fn told(&self, node: NodeIndex) -> impl Iterator<Item = (Handle, &Assignment, bool)> {
        self.agents.told(node)
    }

    /// How many requests wait for agents.
    pub fn offer_count(&self) -> usize {
        self.offers.len()
    }

    // ---- calls --------------------------------------------------------------------------------

    fn call(&mut self, ticket: Ticket, caller: &Caller, call: Call) {
        let answer = match call {
            Call::Register { application, profile } => {
                self.register(caller, Event::Registered { application, profile }).map(Some)
            }
            Call::Reserve { key, request } => self.reserve(ticket, caller, key, request),
            Call::Consider { request } => self.consider(caller, &request).map(Some),
            Call::Modify { handle, request } => self.modify(ticket, caller, handle, request),
            Call::Cancel { handle } => self.cancel(caller, handle).map(Some),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => self.answer(ticket, Ok(answer)),
            Err(error) => self.answer(ticket, Err(error)),
        }
    }

    fn register(&mut self, caller: &Caller, event: Event) -> Result<Answer, CallError> {
        if !caller.operator {
            return Err(CallError::OperatorsOnly { what: "register applications" });
        }
        self.book.apply(&event, self.now)?;
        self.step.events.push(event);
        Ok(Answer::Registered)
    }

    fn reserve(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        key: RequestKey,
        request: Request,
    ) -> Result<Option<Answer>, CallError> {
        if let Some(answer) = self.repeated(ticket, caller, &key, &request)? {
            return Ok(answer);
        }
        let owner = caller.user.clone();
        let handle = Handle::new(self.next);
        let found = self.propose(&owner, key.clone(), request.clone(), None);
        let proposal = match found {
            Ok(proposal) => proposal,
            Err(Denied::Invalid(invalid)) => return Err(invalid.into()),
            Err(Denied::Refused(refusal)) => {
                self.next += 1;
                return Err(self.refuse(handle, owner, key, request, *refusal));
            }
        };
        self.next += 1;
        Ok(self.offer(handle, proposal, Kind::New { replaces: None }, vec![ticket]))
    }

    /// The answer to a request that was sent before; the outer nothing if it was not, the inner if
    /// it still waits for agents.
    #[expect(clippy::option_option, reason = "two different things can be missing")]
    fn repeated(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        key: &RequestKey,
        request: &Request,
    ) -> Result<Option<Option<Answer>>, CallError> {
        let reused = |handle| CallError::KeyReused { key: key.clone(), handle };
        let is_it = |offer: &Offer| {
            matches!(offer.kind, Kind::New { .. })
                && offer.proposal.owner == caller.user
                && offer.proposal.key == *key
        };
        if let Some((handle, offer)) = self.offers.iter_mut().find(|(_, offer)| is_it(offer)) {
            if offer.proposal.request != *request {
                return Err(reused(*handle));
            }
            offer.tickets.push(ticket);
            return Ok(Some(None));
        }
        let Some(handle) = self.book.find(&caller.user, key) else { return Ok(None) };
        let Some(found) = self.book.reservations().get(&handle) else { return Ok(None) };
        match &found.refusal {
            _ if found.request != *request => Err(reused(handle)),
            Some(refusal) => {
                Err(CallError::Refused { handle: Some(handle), refusal: Box::new(refusal.clone()) })
            }
            None => Ok(Some(Some(Answer::Reservation(Box::new(found.clone()))))),
        }
    }

    fn consider(&mut self, caller: &Caller, request: &Request) -> Result<Answer, CallError> {
        let key: RequestKey = "considered".parse()?;
        match self.propose(&caller.user, key, request.clone(), None) {
            Ok(Proposal { from, until, grant, .. }) => {
                Ok(Answer::Possible { from, until, grant: Box::new(grant) })
            }
            Err(Denied::Invalid(invalid)) => Err(invalid.into()),
            Err(Denied::Refused(refusal)) => Err(CallError::Refused { handle: None, refusal }),
        }
    }

    fn modify(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        handle: Handle,
        request: Request,
    ) -> Result<Option<Answer>, CallError> {
        let old = self.own(caller, handle)?.clone();
        let (owner, key) = (old.owner.clone(), old.key.clone());
        // While the change is planned, what it has is free.
        self.release(handle);
        let found = self.propose(&owner, key, request, Some(&old));
        self.hold_again(&old);
        match found {
            Ok(proposal) => {
                let kind = Kind::Change { by: caller.user.clone() };
                Ok(self.offer(handle, proposal, kind, vec![ticket]))
            }
            Err(Denied::Invalid(invalid)) => Err(invalid.into()),
            Err(Denied::Refused(refusal)) => Err(CallError::Refused { handle: None, refusal }),
        }
    }

    fn cancel(&mut self, caller: &Caller, handle: Handle) -> Result<Answer, CallError> {
        if let Some(offer) = self.offers.get(&handle)
            && matches!(offer.kind, Kind::New { .. })
        {
            check_owner(caller, handle, &offer.proposal.owner)?;
            let refusal = self.give_up(handle, Reason::Cancelled);
            return refusal.ok_or(CallError::NotFound { handle });
        }
        self.own(caller, handle)?;
        self.end(handle, Event::Cancelled { handle, by: caller.user.clone() });
        let over = &self.book.reservations()[&handle];
        Ok(Answer::Reservation(Box::new(over.clone())))
    }

    /// A live reservation that the caller may change and that is not being changed.
    fn own(&self, caller: &Caller, handle: Handle) -> Result<&Reservation, CallError> {
        if let Some(offer) = self.offers.get(&handle) {
            check_owner(caller, handle, &offer.proposal.owner)?;
            return Err(CallError::Busy { handle });
        }
        let found = self.book.reservations().get(&handle);
        let found = found.ok_or(CallError::NotFound { handle })?;
        check_owner(caller, handle, &found.owner)?;
        if !found.state.is_live() {
            return Err(CallError::Over { handle, state: found.state });
        }
        Ok(found)
    }

    // ---- from a request to an offer -----------------------------------------------------------

    /// What would be granted now. `old` is the reservation whose place it takes.
    fn propose(
        &mut self,
        owner: &UserName,
        key: RequestKey,
        request: Request,
        old: Option<&Reservation>,
    ) -> Result<Proposal, Denied> {
        request.check()?;
        let from = self.start(&request, old)?;
        let until = request.duration_nanos.map(|duration| from.saturating_add(duration));
        if until.is_some_and(|until| until <= self.now) {
            let expected = "long enough to end in the future";
            return Err(Invalid::new(
                "duration_nanos",
                until.unwrap_or(from).unix_nanos(),
                expected,
            )
            .into());
        }
        self.check_limits(owner, from, old.is_some())?;
        let span = span(from, until);
        let user = self.tables_of(owner);
        let admission = self.admission(user, from);
        match admission.grant(&request.ask, span) {
            Ok(grant) => Ok(Proposal { owner: owner.clone(), key, request, from, until, grant }),
            Err(Denied::Refused(mut refusal)) => {
                let when = self.later(from, request.duration_nanos);
                refusal.earliest_start_unix_nanos =
                    admission.earliest(&request.ask, when).map(|found| found.0);
                Err(Denied::Refused(refusal))
            }
            Err(invalid) => Err(invalid),
        }
    }

    fn start(&self, request: &Request, old: Option<&Reservation>) -> Result<WallTime, Invalid> {
        let kept = old.map(|old| old.from_unix_nanos);
        match request.from_unix_nanos.or(kept) {
            None => Ok(self.now),
            from if from == kept => Ok(from.unwrap_or(self.now)),
            Some(from) if old.is_some_and(|old| old.state == State::Active) => {
                let expected = "nothing: it has started";
                Err(Invalid::new("from_unix_nanos", from.unix_nanos(), expected))
            }
            Some(from) if from >= self.now => Ok(from),
            Some(from) if self.now.saturating_since(from) <= PAST_MAX => Ok(self.now),
            Some(from) => {
                let expected = format!("{} or later: now", self.now.unix_nanos());
                Err(Invalid::new("from_unix_nanos", from.unix_nanos(), expected))
            }
        }
    }

    fn check_limits(
        &self,
        owner: &UserName,
        from: WallTime,
        is_change: bool,
    ) -> Result<(), Denied> {
        let Policy { ahead_max_nanos, user_reservations, .. } = self.policy;
        if from.saturating_since(self.now) > ahead_max_nanos {
            return Err(Reason::TooFarAhead { ahead_max_nanos }.into());
        }
        if !is_change && self.book.live(owner) >= user_reservations {
            return Err(Reason::TooMany { user_reservations }.into());
        }
        Ok(())
    }

    fn later(&self, from: WallTime, duration: Option<Nanos>) -> When {
        let latest = from.saturating_add(self.policy.search_ahead_nanos);
        When::after(from, duration.unwrap_or(Nanos::new(u64::MAX))).until(latest)
    }

    /// Admission of requests of a user with these tables that start at `from`: soon only on nodes
    /// that are there.
    fn admission(
        &self,
        user: [ResourceId; 2],
        from: WallTime,
    ) -> Admission<'_, impl Fn(NodeIndex) -> bool> {
        let soon = from <= self.told_until();
        let agents = &self.agents;
        Admission {
            cluster: &self.cluster,
            calendar: &self.calendar,
            book: &self.book,
            usable: move |node| !soon || agents.is_connected(node),
            user,
        }
    }

    /// A user's own tables, made when they are seen first.
    fn tables_of(&mut self, owner: &UserName) -> [ResourceId; 2] {
        if let Some(tables) = self.users.get(owner) {
            return *tables;
        }
        let [cpu, sent] = self.cluster.totals();
        let share = |all: u64, part: u32| (u128::from(all) * u128::from(part) / 1_000_000) as u64;
        let tables = [
            self.calendar.add_resource(share(cpu, self.policy.user_cpu.into())),
            self.calendar.add_resource(share(sent, self.policy.user_bandwidth.into())),
        ];
        self.users.insert(owner.clone(), tables);
        tables
    }

    /// What starts until then is told to agents now.
    fn told_until(&self) -> WallTime {
        self.now.saturating_add(self.policy.tell_ahead_nanos)
    }

    /// Holds a proposal and asks its agents, or grants it at once where they need not be asked yet.
    fn offer(
        &mut self,
        handle: Handle,
        proposal: Proposal,
        kind: Kind,
        tickets: Vec<Ticket>,
    ) -> Option<Answer> {
        let soon = proposal.from <= self.told_until();
        if let Err(refusal) = self.hold(handle, &proposal, &kind, soon) {
            // Only a change can fail here: for a moment it needs what it had and what it will have.
            for ticket in tickets {
                let refusal = Box::new(refusal.clone());
                self.answer(ticket, Err(CallError::Refused { handle: None, refusal }));
            }
            return None;
        }
        if !soon {
            self.grant(handle, proposal, &kind);
            return self.current(handle);
        }
        let assignments =
            self.cluster.assignments(handle, &proposal.grant, proposal.from, proposal.until);
        let assignments = assignments.unwrap_or_default();
        let waiting = assignments.keys().copied().collect();
        let deadline = self.after(self.policy.answer_within_nanos);
        self.timeouts.insert((deadline, Timeout::Offer(handle)));
        self.offers.insert(handle, Offer { kind, proposal, waiting, tickets, deadline });
        for (node, assignment) in assignments {
            let sent = self.agents.tell(node, handle, assignment);
            self.send(sent);
        }
        None
    }

    /// Takes a proposal from the slot tables. A change that agents are asked about takes the greater
    /// of old and new until they have answered, so that either can be gone back to.
    fn hold(
        &mut self,
        handle: Handle,
        proposal: &Proposal,
        kind: &Kind,
        soon: bool,
    ) -> Result<(), Refusal> {
        let id = ReservationId(handle.number());
        let demands = self.demands(&proposal.owner, &proposal.grant);
        let outcome = match kind {
            Kind::New { .. } => self.calendar.reserve(id, proposal.span(), &demands),
            Kind::Change { .. } if !soon => self.calendar.modify(id, proposal.span(), &demands),
            Kind::Change { .. } => match self.calendar.held(id) {
                Some(held) => {
                    let both = greater(&held.demands, &demands);
                    let hull = hull(held.span, proposal.span());
                    self.calendar.modify(id, hull, &both)
                }
                None => self.calendar.reserve(id, proposal.span(), &demands),
            },
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                let user = self.tables_of(&proposal.owner);
                let admission = self.admission(user, proposal.from);
                let lacks = lacks.iter().map(|lack| admission.lacking(lack)).collect();
                Err(Reason::Lacking(lacks).into())
            }
            Err(bug) => unreachable!("what was admitted is held: {bug}"),
        }
    }

    fn demands(&mut self, owner: &UserName, grant: &Grant) -> Vec<keeptime_calendar::Demand> {
        let user = self.tables_of(owner);
        let demands = self.admission(user, WallTime::default()).demands(grant);
        // What is asked was admitted, and what is recorded was checked when it was taken up.
        demands.unwrap_or_default()
    }

    // ---- from an offer to a grant -------------------------------------------------------------

    fn answered(&mut self, node: NodeIndex, number: u64, refusal: Option<String>) {
        let Some(handle) = self.agents.answered(node, number, refusal.is_none()) else { return };
        match refusal {
            None => self.accepted(node, handle),
            Some(why) => self.agent_refused(node, handle, why),
        }
    }

    fn accepted(&mut self, node: NodeIndex, handle: Handle) {
        if let Some(offer) = self.offers.get_mut(&handle) {
            offer.waiting.remove(&node);
            if offer.waiting.is_empty()
                && let Some(Offer { kind, proposal, tickets, .. }) = self.offers.remove(&handle)
            {
                self.grant(handle, proposal, &kind);
                self.answer_all(handle, tickets);
            }
        }
        self.start_now(handle);
    }

    fn agent_refused(&mut self, node: NodeIndex, handle: Handle, why: String) {
        let name = self.cluster.name(node).clone();
        if self.offers.contains_key(&handle) {
            self.give_up(handle, Reason::AgentRefused { node: name, why });
        } else if self.is_live(handle) {
            self.end(handle, Event::Failed { handle, node: name, why });
        }
    }

    /// Records the grant of what is held.
    fn grant(&mut self, handle: Handle, proposal: Proposal, kind: &Kind) {
        let Proposal { owner, key, request, from, until, grant } = proposal;
        let (from_unix_nanos, until_unix_nanos) = (from, until);
        match kind {
            Kind::New { replaces } => {
                let replaces = *replaces;
                let granted = Granted {
                    owner,
                    key,
                    request,
                    from_unix_nanos,
                    until_unix_nanos,
                    grant,
                    replaces,
                };
                self.record(Event::Granted { handle, granted: Box::new(granted) });
            }
            Kind::Change { by } => {
                let by = by.clone();
                let former = self.nodes_of(handle);
                let modified = Modified { by, request, from_unix_nanos, until_unix_nanos, grant };
                self.record(Event::Modified { handle, modified: Box::new(modified) });
                self.hold_exactly(handle);
                self.align(handle, former);
            }
        }
        self.schedule(handle);
    }

    /// Gives back an offer. A new one is remembered as refused, and its callers are told why; that
    /// answer is returned too. A change goes back to what was.
    fn give_up(&mut self, handle: Handle, reason: Reason) -> Option<Answer> {
        let Offer { kind, proposal, tickets, .. } = self.offers.remove(&handle)?;
        let told = self.cluster.nodes(&proposal.grant).unwrap_or_default();
        match kind {
            Kind::New { .. } => {
                self.withdraw_from(handle, told);
                self.release(handle);
                let Proposal { owner, key, request, .. } = proposal;
                let error = self.refuse(handle, owner, key, request, reason.into());
                for ticket in tickets {
                    self.answer(ticket, Err(error.clone()));
                }
            }
            Kind::Change { .. } => {
                self.hold_exactly(handle);
                self.align(handle, told);
                for ticket in tickets {
                    let refusal = Box::new(Refusal::from(reason.clone()));
                    self.answer(ticket, Err(CallError::Refused { handle: None, refusal }));
                }
            }
        }
        self.current(handle)
    }

    /// Agents are told what is recorded of the reservation, if its time is near; others, of `nodes`,
    /// give it back.
    fn align(&mut self, handle: Handle, nodes: Vec<NodeIndex>) {
        let soon = self.told_until();
        let found = self.book.reservations().get(&handle);
        let near = found.is_some_and(|r| r.state.is_live() && r.from_unix_nanos <= soon);
        let wanted = if near { self.assignments(handle) } else { BTreeMap::new() };
        let others = nodes.into_iter().filter(|node| !wanted.contains_key(node)).collect();
        self.withdraw_from(handle, others);
        for (node, assignment) in wanted {
            if !self.agents.is_told(node, handle, &assignment) {
                let sent = self.agents.tell(node, handle, assignment);
                self.send(sent);
            }
        }
    }

    fn withdraw_from(&mut self, handle: Handle, nodes: Vec<NodeIndex>) {
        for node in nodes {
            let sent = self.agents.withdraw(node, handle);
            self.send(sent);
        }
    }

    fn refuse(
        &mut self,
        handle: Handle,
        owner: UserName,
        key: RequestKey,
        request: Request,
        refusal: Refusal,
    ) -> CallError {
        let error = CallError::Refused { handle: Some(handle), refusal: Box::new(refusal.clone()) };
        let refused = Box::new(Refused { owner, key, request, refusal });
        self.record(Event::Refused { handle, refused });
        self.forget_later(handle);
        error
    }

    // ---- agents -------------------------------------------------------------------------------

    fn connected(&mut self, node: NodeIndex, session: Session, holding: Vec<Assignment>) {
        let (sent, agreed) = self.agents.connected(node, session, holding, self.moment());
        sent.into_iter().for_each(|sent| self.send(Some(sent)));
        self.timeouts.insert((self.agents.lease_ends(node), Timeout::Lease(node)));
        agreed.into_iter().for_each(|handle| self.accepted(node, handle));
    }

    fn lease(&mut self, node: NodeIndex) {
        let ends = self.agents.lease_ends(node);
        if ends > self.steady {
            self.timeouts.insert((ends, Timeout::Lease(node)));
            return;
        }
        self.agents.away(node);
        let told: Vec<_> = self.agents.told(node).map(|(handle, ..)| handle).collect();
        for handle in told {
            let active = self.book.reservations().get(&handle);
            if active.is_some_and(|reservation| reservation.state == State::Active) {
                self.lose(handle, node);
            }
        }
    }

    /// A node of a reservation is gone: the rest is given back, and something else is offered.
    fn lose(&mut self, handle: Handle, node: NodeIndex) {
        if self.offers.contains_key(&handle) {
            let name = self.cluster.name(node).clone();
            self.give_up(handle, Reason::NodesAway(vec![name]));
        }
        let Some(lost) = self.book.reservations().get(&handle).cloned() else { return };
        let until = lost.until_unix_nanos;
        let left = until.map(|until| until.saturating_since(self.now));
        let request =
            Request { from_unix_nanos: None, duration_nanos: left, ..lost.request.clone() };
        self.release(handle);
        let next = Handle::new(self.next);
        // A handle and 6 letters: short enough, and no user's key has this form by chance.
        let key: Option<RequestKey> = format!("moved:{handle}").parse().ok();
        let instead = key.and_then(|key| self.propose(&lost.owner, key, request, None).ok());
        self.hold_again(&lost);
        let grant = instead.as_ref().map(|proposal| Box::new(proposal.grant.clone()));
        let name = self.cluster.name(node).clone();
        self.end(handle, Event::Lost { handle, node: name, instead: grant });
        if let Some(proposal) = instead.filter(|_| lost.request.on_loss == OnLoss::Move) {
            self.next += 1;
            self.offer(next, proposal, Kind::New { replaces: Some(handle) }, Vec::new());
        }
    }

    // ---- time ---------------------------------------------------------------------------------

    /// Everything whose time has come, in order.
    fn pass(&mut self) {
        while let Some((time, deadline)) = self.deadlines.first().copied()
            && time <= self.now
        {
            self.deadlines.pop_first();
            match deadline {
                Deadline::Tell(handle) => self.align(handle, Vec::new()),
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
            }
        }
    }

    fn moment(&self) -> Moment {
        Moment { wall: self.now, steady: self.steady }
    }

    /// By the steady clock.
    fn after(&self, span: Nanos) -> Nanos {
        self.steady.saturating_add(span)
    }

    fn silent(&mut self, handle: Handle) {
        let due = |offer: &&Offer| offer.deadline <= self.steady;
        let Some(offer) = self.offers.get(&handle).filter(due) else { return };
        let silent = offer.waiting.iter().map(|node| self.cluster.name(*node).clone());
        let silent = silent.collect();
        self.give_up(handle, Reason::AgentsSilent(silent));
    }

    /// Its time has come: agents have a lease's time to enforce it.
    fn start_soon(&mut self, handle: Handle) {
        self.start_now(handle);
        if self.is_due(handle) {
            let patience = self.after(self.policy.agent_lease_nanos);
            self.timeouts.insert((patience, Timeout::Start(handle)));
        }
    }

    /// It is active when its time has come and every agent has accepted.
    fn start_now(&mut self, handle: Handle) {
        let accepted = |node: &NodeIndex| self.agents.has_accepted(*node, handle);
        if self.is_due(handle) && self.nodes_of(handle).iter().all(accepted) {
            self.record(Event::Started { handle });
        }
    }

    fn never_started(&mut self, handle: Handle) {
        let missing = |node: &NodeIndex| !self.agents.has_accepted(*node, handle);
        if self.is_due(handle)
            && let Some(node) = self.nodes_of(handle).into_iter().find(missing)
        {
            self.lose(handle, node);
        }
    }

    /// Whether it is granted and its time has come.
    fn is_due(&self, handle: Handle) -> bool {
        let found = self.book.reservations().get(&handle);
        found.is_some_and(|r| r.state == State::Granted && r.from_unix_nanos <= self.now)
    }

    fn end_now(&mut self, handle: Handle) {
        let live = self.book.reservations().get(&handle);
        let until = live.filter(|live| live.state.is_live()).and_then(|live| live.until_unix_nanos);
        if until.is_some_and(|until| until <= self.now) {
            if self.offers.contains_key(&handle) {
                self.give_up(handle, Reason::Cancelled);
            }
            self.end(handle, Event::Ended { handle });
        }
    }

    fn forget(&mut self, handle: Handle) {
        let over = self.book.reservations().get(&handle);
        if over.is_some_and(|over| !over.state.is_live()) {
            self.record(Event::Forgotten { handle });
        }
    }

    fn forget_later(&mut self, handle: Handle) {
        let then = self.now.saturating_add(self.policy.remember_nanos);
        self.deadlines.insert((then, Deadline::Forget(handle)));
    }

    /// Deadlines of a reservation that was granted or changed.
    fn schedule(&mut self, handle: Handle) {
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
        if from > self.now {
            self.deadlines.insert((from, Deadline::Start(handle)));
        } else if !has_started {
            self.start_soon(handle);
        }
    }

    // ---- one place for each change ------------------------------------------------------------

    fn record(&mut self, event: Event) {
        let applied = self.book.apply(&event, self.now);
        debug_assert!(applied.is_ok(), "only profiles can be refused: {applied:?}");
        self.step.events.push(event);
    }

    /// A reservation is over: `event` says how. All of it is given back.
    fn end(&mut self, handle: Handle, event: Event) {
        let expired = matches!(event, Event::Ended { .. });
        for node in self.nodes_of(handle) {
            if expired {
                self.agents.expire(node, handle);
            } else {
                let sent = self.agents.withdraw(node, handle);
                self.send(sent);
            }
        }
        self.release(handle);
        self.record(event);
        self.forget_later(handle);
    }

    fn release(&mut self, handle: Handle) {
        let released = self.calendar.release(ReservationId(handle.number()));
        debug_assert!(released.is_ok(), "{released:?}");
    }

    /// Holds what was released a moment ago.
    fn hold_again(&mut self, old: &Reservation) {
        let Some(grant) = &old.grant else { return };
        let demands = self.demands(&old.owner, grant);
        let id = ReservationId(old.handle.number());
        let span = span(old.from_unix_nanos, old.until_unix_nanos);
        let held = self.calendar.reserve(id, span, &demands);
        assert!(held.is_ok(), "what was released fits again: {held:?}");
    }

    /// Holds what is recorded of a reservation, no more.
    fn hold_exactly(&mut self, handle: Handle) {
        let Some(now) = self.book.reservations().get(&handle).cloned() else { return };
        self.release(handle);
        self.hold_again(&now);
    }

    fn current(&self, handle: Handle) -> Option<Answer> {
        let found = self.book.reservations().get(&handle)?;
        Some(Answer::Reservation(Box::new(found.clone())))
    }

    fn is_live(&self, handle: Handle) -> bool {
        self.book.reservations().get(&handle).is_some_and(|found| found.state.is_live())
    }

    fn nodes_of(&self, handle: Handle) -> Vec<NodeIndex> {
        let grant = self.book.reservations().get(&handle).and_then(|found| found.grant.as_ref());
        grant.and_then(|grant| self.cluster.nodes(grant).ok()).unwrap_or_default()
    }

    fn assignments(&self, handle: Handle) -> BTreeMap<NodeIndex, Assignment> {
        let assignments = || {
            let found = self.book.reservations().get(&handle)?;
            let (from, until) = (found.from_unix_nanos, found.until_unix_nanos);
            self.cluster.assignments(handle, found.grant.as_ref()?, from, until).ok()
        };
        assignments().unwrap_or_default()
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Answer, CallError>) {
        self.step.outputs.push(Output::Answer { ticket, answer: answer.map_err(Box::new) });
    }

    fn answer_all(&mut self, handle: Handle, tickets: Vec<Ticket>) {
        let Some(answer) = self.current(handle) else { return };
        for ticket in tickets {
            self.answer(ticket, Ok(answer.clone()));
        }
    }

    fn send(&mut self, sent: Option<Sent>) {
        if let Some(Sent { node, session, order }) = sent {
            self.step.outputs.push(Output::Order { node, session, order });
        }
    }

    fn finish(&mut self) -> Step {
        let next = Step { time: self.now, ..Step::default() };
        let step = std::mem::replace(&mut self.step, next);
        Step { time: self.now, ..step }
    }

    /// Goes on with what the book says after a restart.
    fn take_up(&mut self) {
        let all: Vec<_> = self.book.reservations().keys().copied().collect();
        for handle in all {
            let found = self.book.reservations()[&handle].clone();
            if !found.state.is_live() {
                let then = found.since_unix_nanos.saturating_add(self.policy.remember_nanos);
                self.deadlines.insert((then, Deadline::Forget(handle)));
            } else if let Err(gone) = self.take_up_live(&found) {
                self.record(Event::Failed { handle, node: gone.0, why: gone.1 });
                self.forget_later(handle);
            } else {
                self.tell_taken_up(&found);
                self.schedule(handle);
            }
        }
    }

    /// Holds what a live reservation has; where that cannot be, says at which node and why.
    fn take_up_live(
        &mut self,
        found: &Reservation,
    ) -> Result<(), (keeptime_model::name::Name, String)> {
        let Some(grant) = &found.grant else { return Ok(()) };
        let first = grant.nodes.first().cloned().unwrap_or_else(|| found.handle.job());
        let unknown = |name: &&keeptime_model::name::Name| self.cluster.node(name).is_err();
        if let Some(gone) = grant.nodes.iter().find(unknown) {
            return Err((gone.clone(), "it is not in the cluster any more".into()));
        }
        let demands = self.demands(&found.owner, grant);
        let span = span(found.from_unix_nanos, found.until_unix_nanos);
        let id = ReservationId(found.handle.number());
        let held = self.calendar.reserve(id, span, &demands);
        held.map_err(|refusal| (first, format!("the cluster has less than it had: {refusal}")))
    }

    fn tell_taken_up(&mut self, found: &Reservation) {
        if found.from_unix_nanos > self.told_until() {
            return;
        }
        for (node, assignment) in self.assignments(found.handle) {
            // Nobody is connected: told when they come back.
            self.agents.tell(node, found.handle, assignment);
        }
    }
}

fn check_owner(caller: &Caller, handle: Handle, owner: &UserName) -> Result<(), CallError> {
    if caller.operator || caller.user == *owner {
        return Ok(());
    }
    Err(CallError::NotYours { handle, owner: owner.clone() })
}

/// The greater of two lists of demands, resource by resource.
fn greater(
    one: &[keeptime_calendar::Demand],
    other: &[keeptime_calendar::Demand],
) -> Vec<keeptime_calendar::Demand> {
    let sums = |demands: &[keeptime_calendar::Demand]| {
        let mut sums = BTreeMap::<ResourceId, u64>::new();
        for demand in demands {
            let sum = sums.entry(demand.resource).or_default();
            *sum = sum.saturating_add(demand.amount);
        }
        sums
    };
    let mut all = sums(one);
    for (resource, amount) in sums(other) {
        let most = all.entry(resource).or_default();
        *most = amount.max(*most);
    }
    let demand = |(resource, amount)| keeptime_calendar::Demand::new(resource, amount);
    all.into_iter().map(demand).collect()
}

/// The shortest span that holds both.
fn hull(one: Span, other: Span) -> Span {
    let from = one.from().min(other.from());
    match (one.to(), other.to()) {
        (Some(a), Some(b)) => span(from, Some(a.max(b))),
        _ => Span::since(from),
    }
}
