//! The broker's real engine, with an agent on every node that does as it is told at once, as long as the node
//! is there. That a node is gone the engine knows at once.

use keeptime_engine::agents::{Enforcement, Session};
use keeptime_engine::policy::Policy as Limits;
use keeptime_engine::{
    Answer, Call, CallError, Caller, Cluster, Engine, Event, Input, Moment, Output, Step, Ticket,
};
use keeptime_model::assignment::{AssignedFlow, TrafficClass};
use keeptime_model::reservation::{Handle, RequestKey};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos, WallTime};
use std::collections::{BTreeSet, VecDeque};

/// An engine in virtual time, which begins at 0.
#[derive(Debug, Clone)]
pub struct Broker {
    engine: Engine,
    caller: Caller,
    now: Nanos,
    /// Calls so far: tickets and keys.
    calls: u64,
    /// What has begun since somebody looked.
    begun: Vec<Handle>,
    /// What was lost since somebody looked.
    lost: Vec<Handle>,
    /// What was changed since somebody looked.
    changed: Vec<Handle>,
    /// Nodes that are gone.
    away: BTreeSet<NodeIndex>,
    /// The newest connection of any agent.
    session: Session,
    /// What calls were answered since somebody looked.
    answers: Vec<(Ticket, Answered)>,
}

/// What the engine says to a call.
pub type Answered = Result<Answer, Box<CallError>>;

impl Broker {
    /// An engine for this cluster, all agents connected.
    pub fn new(cluster: Cluster) -> Self {
        let nodes = cluster.topology().node_indices();
        let (now, session) = (Nanos::new(0), Session(1));
        let engine = Engine::new(cluster, limits(), moment(now));
        let caller = Caller { user: "log".parse().expect("it is a name"), operator: true };
        let (begun, lost, changed) = (vec![], vec![], vec![]);
        let (calls, away, answers) = (0, BTreeSet::new(), vec![]);
        let mut broker =
            Self { engine, caller, now, calls, begun, lost, changed, away, session, answers };
        for node in nodes {
            broker.connect(node);
        }
        broker
    }

    /// It is `now`, which is never before what was said last.
    pub fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// What is due by now is done.
    pub fn pass(&mut self) {
        self.step(Input::Passed);
    }

    /// Its answer to a user who may do everything; none for what it decides later.
    pub fn call(&mut self, call: Call) -> Option<Answered> {
        let ticket = self.ask(call);
        let at = self.answers.iter().position(|(answered, _)| *answered == ticket)?;
        Some(self.answers.remove(at).1)
    }

    /// A call of a user who may do everything: [`Self::answers`] has its answer by this ticket, now or later.
    pub fn ask(&mut self, call: Call) -> Ticket {
        self.calls += 1;
        let (ticket, caller) = (Ticket(self.calls), self.caller.clone());
        self.step(Input::Call { ticket, caller, call: Box::new(call) });
        ticket
    }

    /// Answers since this was called last, but for those that [`Self::call`] has given, in the order in which they came.
    pub fn answers(&mut self) -> Vec<(Ticket, Answered)> {
        std::mem::take(&mut self.answers)
    }

    /// A key that no call had.
    pub fn new_key(&self) -> RequestKey {
        format!("k{}", self.calls).parse().expect("it is a key")
    }

    /// The reservations that have begun since this was called last.
    pub fn begun(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.begun)
    }

    /// The reservations that were lost since this was called last: a node of theirs was gone while they
    /// ran, or when they should have begun.
    pub fn lost(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.lost)
    }

    /// The reservations that were changed since this was called last: by their users, or for others.
    pub fn changed(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.changed)
    }

    /// The engine itself, to be looked at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Nodes are gone, all at once, and with them what their agents have held.
    pub fn fail(&mut self, nodes: &[NodeIndex]) {
        self.away.extend(nodes);
        for node in nodes {
            self.settle(Input::Away { node: *node });
        }
        self.lose_what_is_due();
    }

    /// Nodes that were gone are back, and their agents connect.
    pub fn repair(&mut self, nodes: &[NodeIndex]) {
        self.session = Session(self.session.0 + 1);
        for node in nodes {
            self.away.remove(node);
            self.connect(*node);
        }
        self.lose_what_is_due();
    }

    /// The nodes of a reservation that is there.
    pub fn nodes(&self, handle: Handle) -> Option<Vec<NodeIndex>> {
        let reservation = self.engine.book().reservations().get(&handle)?;
        let names = reservation.grant.as_ref()?.nodes.iter();
        names.map(|name| self.engine.cluster().node(name).ok()).collect()
    }

    /// Whether a reservation has something, or will have: its time is not over, and nobody gave it back.
    pub fn is_live(&self, handle: Handle) -> bool {
        let found = self.engine.book().reservations().get(&handle);
        found.is_some_and(|reservation| reservation.state.is_live())
    }

    /// What each flow of a reservation that is there may use now; nothing if it has none.
    pub fn flow_rate(&self, handle: Handle) -> Option<BitsPerSecond> {
        let node = *self.nodes(handle)?.first()?;
        let (_, assignment, _) = self.engine.told(node).find(|(told, ..)| *told == handle)?;
        let mut premium = assignment.flows.iter().filter(|f| f.class == TrafficClass::Premium);
        premium.next().map(AssignedFlow::limit)
    }

    /// When something is due next; leases of agents, which never end, count as well.
    pub fn next(&self) -> Option<Nanos> {
        Some(self.now.saturating_add(self.engine.idle()?))
    }

    /// The instant of a wall clock that is so long after the beginning.
    pub fn wall(after: Nanos) -> WallTime {
        START.saturating_add(after)
    }

    /// The reverse.
    pub fn since_start(wall: WallTime) -> Nanos {
        wall.saturating_since(START)
    }

    /// An agent that holds nothing.
    fn connect(&mut self, node: NodeIndex) {
        let enforcement = Enforcement::AllBut(BTreeSet::new());
        let (session, holding) = (self.session, vec![]);
        self.settle(Input::Connected { node, session, enforcement, holding });
    }

    /// One input, and what follows.
    fn step(&mut self, input: Input) {
        self.settle(input);
        self.lose_what_is_due();
    }

    /// What should begin on a node that is gone is lost then: nobody waits for the lease of its agent.
    fn lose_what_is_due(&mut self) {
        let is_told = |node: &NodeIndex| self.engine.told(*node).next().is_some();
        let told: Vec<_> = self.away.iter().copied().filter(is_told).collect();
        for node in told {
            self.settle(Input::Away { node });
        }
    }

    /// One input, and all that agents answer to what follows.
    fn settle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Step { events, outputs, .. } = self.engine.step(moment(self.now), input);
            for event in events {
                match event {
                    Event::Started { handle, .. } => self.begun.push(handle),
                    Event::Lost { handle, .. } => self.lost.push(handle),
                    Event::Modified { handle, .. } => self.changed.push(handle),
                    _ => {}
                }
            }
            for output in outputs {
                match output {
                    Output::Order { node, session, order } => {
                        let number = order.number;
                        inputs.push_back(Input::Answered { node, session, number, refusal: None });
                    }
                    Output::Answer { ticket, answer } => self.answers.push((ticket, answer)),
                    // An agent that is hung up on is one that is gone.
                    Output::HangUp { .. } => {}
                }
            }
        }
    }
}

fn moment(now: Nanos) -> Moment {
    Moment { wall: Broker::wall(now), steady: now }
}

/// Nobody is asked for a sign of life, and what is over is forgotten at once: memory stays bounded. One user asks for
/// all.
fn limits() -> Limits {
    Limits {
        agent_lease_nanos: FOR_EVER,
        remember_nanos: Nanos::from_secs(1),
        user_reservations: u32::MAX,
        user_memory: Bytes::new(u64::MAX),
        user_waiting_requests: u32::MAX,
        ..Limits::default()
    }
}

/// Longer than any log is simulated: 292 years.
const FOR_EVER: Nanos = Nanos::new(u64::MAX / 2);
/// 1 January 2026, 00:00 UTC.
const START: WallTime = WallTime::from_unix_nanos(1_767_225_600_000_000_000);
