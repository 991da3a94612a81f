//! The agents' side: they dial, say that they live, and do as they are told.

use super::{BEATS, FromAgent, Happening, ToAgent, WAIT_FIRST, WAIT_LAST, World};
use crate::Violation;
use crate::agenda::span;
use crate::fault::Kind;
use crate::network::{ConnectionId, End};
use crate::node::{Outcome, TICK};
use keeptime_model::units::Nanos;

impl World {
    pub(super) fn agent_starts(&mut self, node: usize) -> Result<(), Violation> {
        if self.nodes[node].is_up() {
            return Ok(());
        }
        let now = self.agenda.now();
        self.nodes[node].start(now)?;
        let process = self.nodes[node].process();
        self.agenda.after(Nanos::new(0), Happening::Dial { node, process });
        self.agenda.after(TICK, Happening::Tick { node, process });
        Ok(())
    }

    pub(super) fn kill_agent(&mut self, node: usize, back_within: Nanos) {
        self.note(|_| format!("  the agent of node {node} is killed"));
        if let Some(connection) = self.nodes[node].connection {
            self.close(connection, End::Agent);
        }
        self.nodes[node].kill();
        let pause = span(&mut self.chance, WAIT_FIRST..back_within);
        self.agenda.after(pause, Happening::AgentStarts { node });
    }

    /// It was to be in the middle of its work.
    fn agent_died(&mut self, node: usize) {
        self.effects.count(Kind::AgentKills);
        self.kill_agent(node, Nanos::from_secs(20));
    }

    pub(super) fn tick(&mut self, node: usize, process: u64) -> Result<(), Violation> {
        if self.nodes[node].process() != process || !self.nodes[node].is_up() {
            return Ok(());
        }
        let now = self.agenda.now();
        self.nodes[node].check(now)?;
        if self.seams.ticks() && !self.nodes[node].tick(now)? {
            self.agent_died(node);
            return Ok(());
        }
        self.agenda.after(TICK, Happening::Tick { node, process });
        Ok(())
    }

    pub(super) fn dial(&mut self, node: usize, process: u64) {
        let there = &mut self.nodes[node];
        if !there.is_up() || there.process() != process || there.connection.is_some() {
            return;
        }
        let now = self.agenda.now();
        let opened = if self.broker.is_some() { self.network.open(node, now) } else { None };
        let Some(connection) = opened else {
            return self.dial_later(node);
        };
        (there.connection, there.attempts) = (Some(connection), 0);
        let holding = there.holding();
        self.history.truth.holds(there.index(), &holding);
        self.say_to_broker(node, connection, FromAgent::Hello(holding));
        self.agenda.after(self.beat_every(), Happening::Beat { node, connection });
    }

    pub(super) fn dial_later(&mut self, node: usize) {
        let there = &mut self.nodes[node];
        let doubled = WAIT_FIRST.get() << there.attempts.min(16);
        there.attempts += 1;
        let (wait, process) = (Nanos::new(doubled.min(WAIT_LAST.get())), there.process());
        self.agenda.after(wait, Happening::Dial { node, process });
    }

    pub(super) fn beat_every(&self) -> Nanos {
        Nanos::new(self.policy.agent_lease_nanos.get() / BEATS)
    }

    pub(super) fn beat(&mut self, node: usize, connection: ConnectionId) {
        if self.nodes[node].connection == Some(connection) {
            self.say_to_broker(node, connection, FromAgent::Beat);
            self.agenda.after(self.beat_every(), Happening::Beat { node, connection });
        }
    }

    pub(super) fn agent_hears(&mut self, node: usize, connection: ConnectionId, said: ToAgent) {
        if self.nodes[node].connection != Some(connection) {
            return;
        }
        let order = match said {
            ToAgent::Order(order) => order,
            ToAgent::HungUp => return self.hung_up(node, connection),
        };
        let now = self.agenda.now();
        let (index, reads) = (self.nodes[node].index(), self.nodes[node].reads(now));
        let outcome = self.nodes[node].obey(order.act.clone(), now);
        self.note(|_| format!("  node {node}: {outcome:?}"));
        let refusal = match outcome {
            Outcome::Done => None,
            Outcome::Refused(why) => Some(why),
            Outcome::Died => return self.agent_died(node),
        };
        self.history.truth.obeyed(index, &order.act, refusal.is_none(), reads);
        let number = order.number;
        self.say_to_broker(node, connection, FromAgent::Answer { number, refusal });
    }

    /// An agent learns that its connection has ended.
    pub(super) fn hung_up(&mut self, node: usize, connection: ConnectionId) {
        self.network.close(connection, End::Agent);
        if self.nodes[node].connection == Some(connection) {
            self.nodes[node].connection = None;
            self.dial_later(node);
        }
    }

    /// A clock that went back: what the agent has let go may last again. It dials anew, and both
    /// compare.
    pub(super) fn compare_anew(&mut self, node: usize, went_back: bool) {
        if let Some(connection) = self.nodes[node].connection.filter(|_| went_back) {
            self.close(connection, End::Agent);
            self.hung_up(node, connection);
        }
    }

    pub(super) fn say_to_agent(&mut self, node: usize, connection: ConnectionId, said: ToAgent) {
        let now = self.agenda.now();
        if let Some(arrival) = self.network.send(connection, End::Agent, now) {
            self.agenda.at(arrival, Happening::ToAgent { node, connection, said });
        }
    }

    pub(super) fn say_to_broker(&mut self, node: usize, connection: ConnectionId, said: FromAgent) {
        let now = self.agenda.now();
        if let Some(arrival) = self.network.send(connection, End::Broker, now) {
            self.agenda.at(arrival, Happening::FromAgent { node, connection, said });
        }
    }

    /// One end hangs up, or dies: the other learns of it behind all that was said before.
    pub(super) fn close(&mut self, connection: ConnectionId, end: End) {
        let Some(node) = self.network.node(connection) else { return };
        match end {
            End::Broker => self.say_to_agent(node, connection, ToAgent::HungUp),
            End::Agent => self.say_to_broker(node, connection, FromAgent::HungUp),
        }
        self.network.close(connection, end);
    }
}
