//! What every agent was told, what it has accepted, and whether it is there. Orders say how things
//! shall be, not what to change: any of them can be lost or repeated, and a new connection begins
//! with a comparison.

use crate::engine::Moment;
use keeptime_model::assignment::{Assignment, CpuMechanism};
use keeptime_model::capability::Guarantee;
use keeptime_model::name::Name;
use keeptime_model::reservation::Handle;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which connection of an agent: every new one has another number, greater than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// Something that an agent is told, in the order of the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The agent answers with the same number.
    pub number: u64,
    /// What.
    pub act: Act,
}

/// What an agent is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Enforce this, in the place of what there is of the job. Shared with what is remembered as told.
    Enforce(Arc<Assignment>),
    /// Give back all of the job.
    Withdraw(Name),
}

/// What an agent does with what it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// It enforces it, but for these guarantees, which it refuses.
    AllBut(BTreeSet<Guarantee>),
    /// It takes all of it and enforces nothing: nobody asks that of its node.
    Nothing,
}

/// All agents, by node.
#[derive(Debug, Clone)]
pub(crate) struct Agents {
    lease: Nanos,
    agents: Vec<Agent>,
    /// Those that enforced nothing when they were heard of last.
    unenforced: BTreeSet<NodeIndex>,
    next_order: u64,
}

#[derive(Debug, Clone)]
struct Agent {
    presence: Presence,
    /// What it could not enforce when it was heard of last; nothing is known to be so before.
    refused: BTreeSet<Guarantee>,
    heard: Moment,
    told: BTreeMap<Handle, Told>,
    /// The last order about each reservation, if it has no answer yet, of this session.
    pending: Vec<(u64, Handle)>,
}

/// Whether an agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// On this connection.
    Connected(Session),
    /// It is not, since then, by the steady clock.
    Away(Nanos),
}

#[derive(Debug, Clone)]
struct Told {
    assignment: Arc<Assignment>,
    accepted: bool,
}

/// An order on its way: the shell sends it if the agent still has this session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub node: NodeIndex,
    pub session: Session,
    pub order: Order,
}

impl Agents {
    /// `count` agents that are not connected; their leases begin at `now`.
    pub fn new(count: usize, lease: Nanos, now: Moment) -> Self {
        let (told, pending) = (BTreeMap::new(), Vec::new());
        let refused = BTreeSet::new();
        let presence = Presence::Away(now.steady);
        let agent = Agent { presence, refused, heard: now, told, pending };
        Self { lease, agents: vec![agent; count], unenforced: BTreeSet::new(), next_order: 1 }
    }

    /// Whether the agent is connected.
    pub fn is_connected(&self, node: NodeIndex) -> bool {
        self.away_since(node).is_none()
    }

    /// Since when the agent is away, by the steady clock, as far as this broker has seen; nothing if it is connected.
    pub fn away_since(&self, node: NodeIndex) -> Option<Nanos> {
        match self.agent(node).presence {
            Presence::Connected(_) => None,
            Presence::Away(since) => Some(since),
        }
    }

    /// So it does with what it is told from now on.
    pub fn enforces(&mut self, node: NodeIndex, enforcement: Enforcement) {
        self.unenforced.remove(&node);
        self.agent_mut(node).refused = match enforcement {
            Enforcement::AllBut(refused) => refused,
            Enforcement::Nothing => {
                self.unenforced.insert(node);
                BTreeSet::new()
            }
        };
    }

    /// The nodes whose agents enforce nothing, as far as is known.
    pub fn unenforced(&self) -> &BTreeSet<NodeIndex> {
        &self.unenforced
    }

    /// The first of `asked` that the agent is known to refuse.
    pub fn refused(&self, node: NodeIndex, asked: &BTreeSet<Guarantee>) -> Option<Guarantee> {
        self.agent(node).refused.intersection(asked).next().copied()
    }

    /// What keeps shares of the CPU there: all that the agent is not known to refuse.
    pub fn mechanisms(&self, node: NodeIndex) -> Vec<CpuMechanism> {
        let refused = &self.agent(node).refused;
        let serves = |mechanism: &CpuMechanism| {
            Guarantee::of_mechanism(*mechanism).is_none_or(|asked| !refused.contains(&asked))
        };
        CpuMechanism::EACH.into_iter().filter(serves).collect()
    }

    /// When it is away unless something is heard of it before, by the steady clock.
    pub fn lease_ends(&self, node: NodeIndex) -> Nanos {
        self.agent(node).heard.steady.saturating_add(self.lease)
    }

    /// When it was heard of last.
    pub fn heard_at(&self, node: NodeIndex) -> WallTime {
        self.agent(node).heard.wall
    }

    /// The agent spoke at `now`, on its present connection. Whether it has this session.
    pub fn heard(&mut self, node: NodeIndex, session: Session, now: Moment) -> bool {
        let agent = self.agent_mut(node);
        let is_present = agent.presence == Presence::Connected(session);
        if is_present {
            agent.heard = now;
        }
        is_present
    }

    /// Nobody listened until `now`, by the steady clock: silence counts from then on. Nobody is connected for that.
    pub fn count_silence_from(&mut self, now: Nanos) {
        self.agents.iter_mut().for_each(|agent| agent.heard.steady = now);
    }

    /// A new connection of an agent that enforces `holding`. What differs is told. Returns the
    /// orders, and the reservations that it holds as they shall be.
    pub fn connected(
        &mut self,
        node: NodeIndex,
        session: Session,
        holding: Vec<Assignment>,
        now: Moment,
    ) -> (Vec<Sent>, Vec<Handle>) {
        let agent = self.agent_mut(node);
        (agent.presence, agent.heard) = (Presence::Connected(session), now);
        agent.pending.clear();
        let holding: BTreeMap<_, _> = holding.into_iter().map(|a| (a.job.clone(), a)).collect();
        let (mut wanted, mut agreed) = (Vec::new(), Vec::new());
        for (handle, told) in &mut agent.told {
            told.accepted = holding.get(&told.assignment.job) == Some(&*told.assignment);
            if told.accepted {
                agreed.push(*handle);
            } else {
                wanted.push(*handle);
            }
        }
        let stray = |job: &Name| {
            job.as_str().parse::<Handle>().is_ok_and(|handle| !agent.told.contains_key(&handle))
        };
        let strays: Vec<_> = holding.into_keys().filter(stray).collect();
        let mut sent: Vec<_> =
            strays.into_iter().filter_map(|job| self.send(node, Act::Withdraw(job))).collect();
        sent.extend(wanted.into_iter().filter_map(|handle| self.repeat(node, handle)));
        (sent, agreed)
    }

    /// The connection ended at `now`, by the steady clock. Whether it was the present one.
    pub fn disconnected(&mut self, node: NodeIndex, session: Session, now: Nanos) -> bool {
        let agent = self.agent_mut(node);
        let is_present = agent.presence == Presence::Connected(session);
        if is_present {
            agent.presence = Presence::Away(now);
        }
        is_present
    }

    /// The lease is over at `now`, by the steady clock: neither the connection counts any more, nor what was accepted on
    /// it. Which it was, if there was one.
    pub fn away(&mut self, node: NodeIndex, now: Nanos) -> Option<Session> {
        let agent = self.agent_mut(node);
        agent.told.values_mut().for_each(|told| told.accepted = false);
        let session = agent.session()?;
        agent.presence = Presence::Away(now);
        Some(session)
    }

    /// The agent shall enforce `assignment`; told at once if it is connected.
    pub fn tell(
        &mut self,
        node: NodeIndex,
        handle: Handle,
        assignment: Assignment,
    ) -> Option<Sent> {
        let told = Told { assignment: Arc::new(assignment), accepted: false };
        self.agent_mut(node).told.insert(handle, told);
        self.repeat(node, handle)
    }

    /// The agent shall enforce nothing for the reservation.
    pub fn withdraw(&mut self, node: NodeIndex, handle: Handle) -> Option<Sent> {
        let told = self.agent_mut(node).forget(handle)?;
        self.send(node, Act::Withdraw(told.assignment.job.clone()))
    }

    /// The reservation's time is over: the agent knows that by itself.
    pub fn expire(&mut self, node: NodeIndex, handle: Handle) {
        self.agent_mut(node).forget(handle);
    }

    /// The agent answered order `number`: accepted or refused. The reservation, if that is what it
    /// was told last.
    pub fn answered(&mut self, node: NodeIndex, number: u64, accepted: bool) -> Option<Handle> {
        let agent = self.agent_mut(node);
        // Where a later order is about the same, its answer counts.
        let at = agent.pending.iter().position(|(pending, _)| *pending == number)?;
        let (_, handle) = agent.pending.swap_remove(at);
        agent.told.get_mut(&handle)?.accepted = accepted;
        Some(handle)
    }

    /// Whether the agent has accepted what it was told last of the reservation.
    pub fn has_accepted(&self, node: NodeIndex, handle: Handle) -> bool {
        self.agent(node).told.get(&handle).is_some_and(|told| told.accepted)
    }

    /// Whether this is what the agent was told last of the reservation, and it has not refused it.
    pub fn is_told(&self, node: NodeIndex, handle: Handle, assignment: &Assignment) -> bool {
        let agent = self.agent(node);
        let told = agent.told.get(&handle).filter(|told| *told.assignment == *assignment);
        told.is_some_and(|told| told.accepted || agent.is_open(handle))
    }

    /// What the agent shall enforce of the reservation.
    pub fn told(&self, node: NodeIndex) -> impl Iterator<Item = (Handle, &Assignment, bool)> {
        let told = self.agent(node).told.iter();
        told.map(|(handle, told)| (*handle, &*told.assignment, told.accepted))
    }

    fn repeat(&mut self, node: NodeIndex, handle: Handle) -> Option<Sent> {
        let assignment = Arc::clone(&self.agent(node).told.get(&handle)?.assignment);
        let sent = self.send(node, Act::Enforce(assignment))?;
        let pending = &mut self.agent_mut(node).pending;
        pending.retain(|(_, about)| *about != handle);
        pending.push((sent.order.number, handle));
        Some(sent)
    }

    fn send(&mut self, node: NodeIndex, act: Act) -> Option<Sent> {
        let session = self.agent(node).session()?;
        let number = self.next_order;
        self.next_order += 1;
        Some(Sent { node, session, order: Order { number, act } })
    }

    fn agent(&self, node: NodeIndex) -> &Agent {
        &self.agents[node.0 as usize]
    }

    fn agent_mut(&mut self, node: NodeIndex) -> &mut Agent {
        &mut self.agents[node.0 as usize]
    }
}

impl Agent {
    fn session(&self) -> Option<Session> {
        match self.presence {
            Presence::Connected(session) => Some(session),
            Presence::Away(_) => None,
        }
    }

    /// Nothing is told of the reservation any more.
    fn forget(&mut self, handle: Handle) -> Option<Told> {
        self.pending.retain(|(_, about)| *about != handle);
        self.told.remove(&handle)
    }

    /// Whether an order about the reservation has no answer yet.
    fn is_open(&self, handle: Handle) -> bool {
        self.pending.iter().any(|(_, pending)| *pending == handle)
    }
}
