//! The state machine. Every input makes a [`Step`]: events to be recorded together, then orders and
//! answers, which must not leave before the events of this step and all before it are durable.

mod calls;
mod counsel;
mod deferring;
mod draining;
mod granting;
mod holding;
mod limits;
mod making_way;
mod moving;
mod offering;
mod passing;
mod queueing;
mod restart;
mod sharing;
mod sites;

use crate::agents::{Agents, Enforcement, Order, Sent, Session};
use crate::book::{Book, Reservation};
use crate::call::{Answer, Call, CallError, Caller};
use crate::cluster::{Cluster, Resource};
use crate::event::Event;
use crate::offers::Offers;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::spare::Spare;
use crate::turns::Turns;
use keeptime_calendar::{Calendar, ResourceId, Span};
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, UserName};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_planner::outline::Outline;
use keeptime_planner::translate::Decision;
use making_way::Waiting;
use queueing::Empty;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

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
        /// As the door found out.
        caller: Caller,
        /// What it asks for.
        call: Box<Call>,
    },
    /// An agent has connected.
    Connected {
        /// Of which node.
        node: NodeIndex,
        /// This connection.
        session: Session,
        /// What it does with what it is told.
        enforcement: Enforcement,
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
        /// One that is no longer that of its node changes nothing.
        session: Session,
    },
    /// The node of an agent is known to be gone: nobody waits for the rest of its lease. It comes back with a new
    /// connection.
    Away {
        /// Connected or not.
        node: NodeIndex,
    },
    /// Nobody listens to the answer of a call any more. One that waits for room, or until others are slower, need not be
    /// granted.
    Gone {
        /// Of a call that was not answered yet; others are ignored.
        ticket: Ticket,
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
        /// What to do, with its number: the agent answers with that.
        order: Order,
    },
    /// An agent is given up: this connection is to be ended, so that the agent, if it lives, comes back
    /// and both compare.
    HangUp {
        /// Of which node.
        node: NodeIndex,
        /// Which connection.
        session: Session,
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
    /// What one user may have reserved at a time: CPU and sent rate.
    shares: [u64; 2],
    offers: Offers,
    agents: Agents,
    /// What running jobs use beside what is reserved for them.
    spare: Spare,
    /// What is due in a while already, of what is said again and again.
    soon: BTreeSet<Timeout>,
    /// What would begin, did nobody still use what it has.
    held_up: BTreeSet<Handle>,
    /// Whether an offer, what is held up, or a request that waits, has to wait for fewer than it did.
    has_room: bool,
    /// Requests that wait until others have become slower.
    waiting: Vec<Waiting>,
    /// Requests that wait for room.
    queue: Queue,
    /// Whether those may find more room than when they were tried last.
    was_given_back: bool,
    /// When the time has passed that their tries are counted as.
    tries_until: Nanos,
    /// What there would be for them, were nothing reserved: made when somebody asks.
    empty: Option<Empty>,
    /// Lost reservations that the broker before was about to move, and who has asked for that since.
    unmoved: BTreeMap<Handle, Vec<Ticket>>,
    /// Of corrections.
    turns: Turns,
    /// Of reservations with a lease.
    holders: BTreeMap<Handle, Holder>,
    /// How the last goals were decided, newest last.
    decisions: VecDeque<(Handle, Arc<Decision>)>,
    deadlines: BTreeSet<(WallTime, Deadline)>,
    timeouts: BTreeSet<(Nanos, Timeout)>,
    now: WallTime,
    /// As it was told last: behind `now` after it was set back.
    wall: WallTime,
    steady: Nanos,
    clock_steps_back: u64,
    /// Greater than any handle that was given, also to what was never granted.
    next: u64,
    step: Step,
}

/// What is recorded of a decision.
fn outline(decision: &Decision) -> Box<Outline> {
    Box::new(Outline::of(&decision.explanation, CURVES_RECORDED_MAX))
}

/// Whoever keeps a reservation by signs of life.
#[derive(Debug, Clone, Copy)]
struct Holder {
    /// When the last one came.
    heard: Nanos,
    /// When it is looked whether that is too long ago.
    looked_at: Nanos,
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
    /// Something should have been heard of a holder.
    Holder(Handle),
    /// What nobody has reserved is to be parted anew.
    Share,
    /// What is malleable may become faster.
    Faster,
    /// Those who wait for room are to be tried.
    Try,
    /// A request has waited for room long enough.
    Wait(Handle),
    /// What the broker before was about to move is to be tried: agents have come.
    Move,
    /// The same for the last time: all agents had their lease to come.
    MoveLast,
}

/// Decisions that can still be explained in full: with a large profile each takes some hundred
/// kilobytes. What is recorded is their outline.
const DECISIONS_MAX: usize = 256;

/// Curves of a decision that are recorded: a few kilobytes at most.
const CURVES_RECORDED_MAX: usize = 8;

impl Engine {
    /// An engine without reservations.
    pub fn new(cluster: Cluster, policy: Policy, moment: Moment) -> Self {
        let (calendar, count) = (cluster.empty_calendar(), cluster.topology().nodes().len());
        let Moment { wall: now, steady } = moment;
        let agents = Agents::new(count, policy.agent_lease_nanos, moment);
        let leases = cluster.topology().node_indices();
        let leases = leases.map(|node| (agents.lease_ends(node), Timeout::Lease(node)));
        let timeouts = leases.collect();
        let shares = limits::shares_of_a_user(&cluster, &policy);
        Self {
            calendar,
            agents,
            spare: Spare::default(),
            soon: BTreeSet::new(),
            held_up: BTreeSet::new(),
            has_room: false,
            waiting: Vec::new(),
            queue: Queue::default(),
            was_given_back: false,
            tries_until: Nanos::new(0),
            empty: None,
            unmoved: BTreeMap::new(),
            turns: Turns::default(),
            holders: BTreeMap::new(),
            decisions: VecDeque::new(),
            deadlines: BTreeSet::new(),
            timeouts,
            steady,
            cluster,
            policy,
            book: Book::default(),
            users: BTreeMap::new(),
            shares,
            offers: Offers::new(),
            now,
            wall: now,
            clock_steps_back: 0,
            next: 1,
            step: Step { time: now, ..Step::default() },
        }
    }

    /// What `input` at this moment leads to. A wall clock that was set back stands still until it has
    /// caught up.
    pub fn step(&mut self, moment: Moment, input: Input) -> Step {
        if moment.wall < self.wall {
            self.clock_steps_back += 1;
        }
        self.wall = moment.wall;
        self.now = self.now.max(moment.wall);
        self.steady = self.steady.max(moment.steady);
        self.pass();
        self.go_on_with_what_has_room();
        // What is answered stays so for this step.
        let is_call = matches!(input, Input::Call { .. });
        match input {
            Input::Call { ticket, caller, call } => self.call(ticket, &caller, *call),
            Input::Connected { node, session, enforcement, holding } => {
                self.connected(node, session, enforcement, holding);
            }
            Input::Heard { node, session } => {
                self.agents.heard(node, session, self.moment());
            }
            Input::Answered { node, session, number, refusal } => {
                if self.agents.heard(node, session, self.moment()) {
                    self.answered(node, number, refusal);
                }
            }
            Input::Disconnected { node, session } => {
                self.agents.disconnected(node, session, self.steady);
            }
            Input::Away { node } => self.away(node),
            Input::Gone { ticket } => self.gone(ticket),
            Input::Passed => {}
        }
        if !is_call {
            self.go_on_with_what_has_room();
        }
        self.finish()
    }

    /// How long after the last step [`Input::Passed`] is due, if nothing else happens before. (A wall
    /// clock that is set forward meanwhile makes it due at once.) Whoever is more than a second late has stood still,
    /// and nobody has been silent meanwhile.
    pub fn idle(&self) -> Option<Nanos> {
        let deadline = self.deadlines.first().map(|(time, _)| time.saturating_since(self.now));
        let timeout = self.timeouts.first();
        let timeout = timeout.map(|(time, _)| time.saturating_sub(self.steady));
        let room = self.has_room.then_some(Nanos::new(0));
        let queue = self.queue_due_after();
        deadline.into_iter().chain(timeout).chain(room).chain(queue).min()
    }

    /// Everything that was recorded.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// How much CPU of a node is free from now on, for ever.
    pub fn free_cpu(&self, node: NodeIndex) -> CpuPpm {
        let span = Span::since(self.now);
        let free = self.cluster.least_free(&self.calendar, span, Resource::Cpu(node));
        CpuPpm::new(u32::try_from(free).unwrap_or(u32::MAX))
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

    /// How a goal was decided that came to this handle, granted or refused; nothing if that is long
    /// ago, or it was no goal.
    pub fn decision(&self, handle: Handle) -> Option<&Arc<Decision>> {
        let of_it = |(about, _): &&(Handle, _)| *about == handle;
        self.decisions.iter().rev().find(of_it).map(|(_, decision)| decision)
    }

    /// How many requests wait for agents.
    pub fn offer_count(&self) -> usize {
        self.offers.len()
    }

    fn record(&mut self, event: Event) {
        let applied = self.book.apply(&event, self.now);
        debug_assert!(applied.is_ok(), "only profiles can be refused: {applied:?}");
        self.step.events.push(event);
    }

    fn explain_later(&mut self, handle: Handle, decision: Option<Arc<Decision>>) {
        self.decisions.extend(decision.map(|decision| (handle, decision)));
        if self.decisions.len() > DECISIONS_MAX {
            self.decisions.pop_front();
        }
    }

    /// A reservation is over: `event` says how. All of it is given back.
    fn end(&mut self, handle: Handle, event: Event) {
        let expired = matches!(event, Event::Ended { .. });
        for node in self.nodes_of(handle) {
            // An agent that has not accepted what it was told last may hold something that lasts longer.
            if expired && self.agents.has_accepted(node, handle) {
                self.agents.expire(node, handle);
            } else {
                let sent = self.agents.withdraw(node, handle);
                self.send(sent);
            }
        }
        self.release(handle);
        self.forget_holder(handle);
        self.unschedule(handle);
        self.record(event);
        self.was_given_back = true;
        self.take_spare_anew(handle);
        self.faster_soon();
        self.forget_later(handle);
        self.site_lost_node(handle);
    }

    fn current(&self, handle: Handle) -> Option<Answer> {
        let found = self.book.reservations().get(&handle)?;
        Some(Answer::Reservation(Arc::clone(found)))
    }

    /// A reservation with what is not recorded of it: on which of its nodes nothing enforces it now.
    pub fn seen(&self, recorded: &Arc<Reservation>) -> Arc<Reservation> {
        let unenforced = match recorded.state.is_live() {
            true => self.unenforced(recorded.nodes()),
            false => Vec::new(),
        };
        if unenforced.is_empty() {
            return Arc::clone(recorded);
        }
        Arc::new(Reservation { unenforced, ..Reservation::clone(recorded) })
    }

    /// Those of `nodes` whose agents take what they are told and enforce none of it.
    fn unenforced(&self, nodes: &[Name]) -> Vec<Name> {
        let all = self.agents.unenforced();
        let is_one = |name: &&Name| self.cluster.node(name).is_ok_and(|node| all.contains(&node));
        match all.is_empty() {
            true => Vec::new(),
            false => nodes.iter().filter(is_one).cloned().collect(),
        }
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
            let grant = found.grant.as_ref()?;
            let spare = self.spare.of(handle);
            self.cluster.assignments(handle, &found.owner, grant, from, until, spare).ok()
        };
        assignments().unwrap_or_default()
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Answer, CallError>) {
        self.step.outputs.push(Output::Answer { ticket, answer: answer.map_err(Box::new) });
    }

    fn answer_all(&mut self, handle: Handle, tickets: Vec<Ticket>) {
        let Some(answer) = self.current(handle) else { return };
        self.answer_each(tickets, &Ok(answer));
    }

    fn answer_each(&mut self, tickets: Vec<Ticket>, answer: &Result<Answer, CallError>) {
        tickets.into_iter().for_each(|ticket| self.answer(ticket, answer.clone()));
    }

    fn send(&mut self, sent: Option<Sent>) {
        if let Some(Sent { node, session, order }) = sent {
            self.step.outputs.push(Output::Order { node, session, order });
        }
    }

    fn finish(&mut self) -> Step {
        let next = Step { time: self.now, ..Step::default() };
        let mut step = std::mem::replace(&mut self.step, next);
        step.time = self.now;
        self.bring_up_to_date(&mut step.outputs);
        step
    }

    /// What a step says of a reservation is what it has become by the end of that step: one that was granted and then made
    /// slower for another is told as it is recorded, and seen.
    fn bring_up_to_date(&self, outputs: &mut [Output]) {
        for output in outputs {
            let Output::Answer { answer: Ok(Answer::Reservation(told)), .. } = output else {
                continue;
            };
            if let Some(now) = self.book.reservations().get(&told.handle) {
                *told = self.seen(now);
            }
        }
    }
}
