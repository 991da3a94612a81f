//! The broker's side: what it does with an input, and where it can be killed meanwhile.

use super::{
    Asked, DISK, FromAgent, Happening, LOOK_EVERY, Point, ToAgent, WAIT_FIRST, World, telling,
};
use crate::Violation;
use crate::agenda::span;
use crate::broker::Broker;
use crate::fault::Kind;
use crate::network::{ConnectionId, End};
use crate::seams::Passage;
use keeptime_engine::agents::{Enforcement, Order, Session};
use keeptime_engine::{Answer, CallError, Input, Moment, Output, Step, Ticket};
use keeptime_ledger::{Fault, LedgerError};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeSet, VecDeque};

impl World {
    pub(super) fn broker_starts(&mut self) -> Result<(), Violation> {
        if self.broker.is_some() {
            return Ok(());
        }
        self.brokers += 1;
        let cluster = self.seams.cluster(self.topology.clone()).map_err(Violation::new)?;
        let (moment, policy) = (self.moment(), self.policy.clone());
        let seams = self.seams.as_mut();
        let started = Broker::start(self.brokers, &self.disk, cluster, policy, moment, seams);
        let (broker, first) = started?;
        let unsettled = std::mem::take(&mut self.unsettled);
        self.history.catch_up(broker.ledger(), unsettled)?;
        if first.events.is_empty() {
            self.history.compare(broker.engine.book())?;
        }
        self.broker = Some(broker);
        self.carry_out(first)
    }

    /// The broker is killed, at whatever point of its work it is.
    pub(super) fn kill_broker(&mut self) {
        self.end_broker(Kind::BrokerKills);
    }

    fn end_broker(&mut self, kind: Kind) {
        let Some(broker) = self.broker.take() else { return };
        self.effects.count(kind);
        self.note(|_| "  the broker is killed".into());
        self.doom = None;
        self.tickets.clear();
        for connection in self.network.open_at_broker() {
            self.close(connection, End::Broker);
        }
        self.unsettled = broker.die(&mut self.chance);
        let pause = span(&mut self.chance, WAIT_FIRST..Nanos::from_secs(6));
        self.agenda.after(pause, Happening::BrokerStarts);
    }

    pub(super) fn is_doomed(&mut self, point: Point) -> bool {
        let is_doomed = self.doom == Some(point);
        if is_doomed {
            self.kill_broker();
        }
        is_doomed
    }

    /// Now, by the clocks of the broker's machine.
    pub(super) fn moment(&self) -> Moment {
        let steady = self.now();
        Moment { wall: self.broker_clock.read_seconds(steady), steady }
    }

    pub(super) fn step(&mut self, input: Input) -> Result<(), Violation> {
        let moment = self.moment();
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let step = broker.engine.step(moment, input);
        self.carry_out(step)
    }

    /// What the broker does with a step: hands it over to the disk, then lets go what may leave.
    pub(super) fn carry_out(&mut self, mut step: Step) -> Result<(), Violation> {
        let now = self.now();
        self.seams.decided(&mut step);
        if !step.events.is_empty() {
            self.note(|_| format!("  decided: {}", telling::of_events(&step.events)));
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        self.history.decided(&step, |node| broker.silence(node, now))?;
        self.check_room(&step)?;
        if self.is_doomed(Point::Decided) {
            return Ok(());
        }
        let at_once = if self.seams.waits_for_the_disk() {
            Vec::new()
        } else {
            std::mem::take(&mut step.outputs)
        };
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let ready = broker.hand_over(step)?;
        let wait = broker.engine.idle().unwrap_or(LOOK_EVERY).min(LOOK_EVERY).max(Nanos::new(1));
        let (number, due) = (broker.number, now.saturating_add(wait));
        broker.due = due;
        self.agenda.at(due, Happening::Due { broker: number });
        self.write();
        if self.is_doomed(Point::HandedOver) {
            return Ok(());
        }
        self.leave(at_once)?;
        self.leave(ready)
    }

    pub(super) fn due(&mut self, number: u64) -> Result<(), Violation> {
        let now = self.now();
        match &self.broker {
            Some(broker) if broker.number == number && broker.due <= now => {
                self.step(Input::Passed)
            }
            _ => Ok(()),
        }
    }

    /// The disk begins with what waits for it.
    pub(super) fn write(&mut self) {
        if let Some(broker) = &mut self.broker
            && broker.begin_writing()
        {
            let number = broker.number;
            let takes = span(&mut self.chance, DISK);
            self.agenda.after(takes, Happening::Written { broker: number });
        }
    }

    pub(super) fn written(&mut self, number: u64) -> Result<(), Violation> {
        let is_there = self.broker.as_ref().is_some_and(|broker| broker.number == number);
        if !is_there || self.is_doomed(Point::Writing) {
            return Ok(());
        }
        if std::mem::take(&mut self.fills_up) {
            self.disk.fail_append(1, Fault::Full);
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let written = match broker.write() {
            Ok(written) => written,
            // Nothing of it was written: the broker goes back to what is durable.
            Err(LedgerError::Full { .. }) => {
                self.end_broker(Kind::FullDisks);
                return Ok(());
            }
            Err(error) => return Err(Violation::new(error)),
        };
        let mut left: VecDeque<_> = written.into();
        while let Some(batch) = left.pop_front() {
            self.mix(batch.events.len() as u64);
            self.history.settle(&batch.events)?;
            if self.doom == Some(Point::Durable) {
                // What is durable too, and was never acknowledged.
                let rest: Vec<_> = left.into_iter().map(|batch| batch.events).collect();
                self.kill_broker();
                drop(self.unsettled.splice(0..0, rest));
                return Ok(());
            }
            self.leave(batch.outputs)?;
            if self.broker.as_ref().is_none_or(|broker| broker.number != number) {
                let rest: Vec<_> = left.into_iter().map(|batch| batch.events).collect();
                drop(self.unsettled.splice(0..0, rest));
                return Ok(());
            }
        }
        self.write();
        self.check_settled()
    }

    /// Orders and answers leave the broker.
    pub(super) fn leave(&mut self, outputs: Vec<Output>) -> Result<(), Violation> {
        for output in outputs {
            if self.doom == Some(Point::Leaving) && self.chance.is_one_in(2) {
                self.kill_broker();
            }
            if self.broker.is_none() {
                return Ok(());
            }
            match output {
                Output::Order { node, session, order } => self.order(node, session, order)?,
                Output::Answer { ticket, answer } => self.answer(ticket, answer)?,
                Output::HangUp { node, session } => self.hang_up(node, session),
            }
        }
        Ok(())
    }

    pub(super) fn order(
        &mut self,
        node: NodeIndex,
        session: Session,
        order: Order,
    ) -> Result<(), Violation> {
        let present = self.broker.as_ref().and_then(|broker| broker.connection(node));
        let Some((_, connection)) = present.filter(|(present, _)| *present == session) else {
            return Ok(());
        };
        let (number, passage) = (order.number, self.seams.order(&order));
        if passage != Passage::Lost {
            let copies = 1 + usize::from(self.network.repeats());
            for _ in 0..copies {
                let said = ToAgent::Order(order.clone());
                self.say_to_agent(node.0 as usize, connection, said);
            }
        }
        if passage == Passage::Sent {
            return Ok(());
        }
        self.step(Input::Answered { node, session, number, refusal: None })
    }

    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        answer: Result<Answer, Box<CallError>>,
    ) -> Result<(), Violation> {
        let Some(asked) = self.tickets.remove(&ticket.0) else {
            return Err(Violation(format!("{ticket:?} is answered twice")));
        };
        self.check_in_time(&asked)?;
        let Asked { call, caller, what, .. } = asked;
        self.history.answered(&caller, &what, &answer)?;
        let answer = Box::new(answer);
        for arrival in self.network.arrivals(self.agenda.now()) {
            let answer = answer.clone();
            self.agenda.at(arrival, Happening::Told { call, answer });
        }
        Ok(())
    }

    /// The broker ends a connection.
    pub(super) fn hang_up(&mut self, node: NodeIndex, session: Session) {
        let Some(broker) = &mut self.broker else { return };
        let present = broker.connection(node).filter(|(present, _)| *present == session);
        if let Some((_, connection)) = present {
            broker.lose(connection);
            self.close(connection, End::Broker);
        }
    }

    pub(super) fn broker_hears(
        &mut self,
        node: usize,
        connection: ConnectionId,
        said: FromAgent,
    ) -> Result<(), Violation> {
        let (now, index) = (self.now(), self.nodes[node].index());
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let input = match said {
            FromAgent::Hello(holding) => {
                let former = broker.connection(index).map(|(_, connection)| connection);
                let session = broker.welcome(index, connection, now);
                if let Some(former) = former {
                    // A node has one connection: who it was before dials anew, if it is there.
                    broker.lose(former);
                    self.close(former, End::Broker);
                }
                let enforcement = Enforcement::AllBut(BTreeSet::new());
                Input::Connected { node: index, session, enforcement, holding }
            }
            FromAgent::HungUp => return self.lost(connection),
            FromAgent::Beat => {
                let Some((node, session)) = broker.hears(connection, now) else { return Ok(()) };
                Input::Heard { node, session }
            }
            FromAgent::Answer { number, refusal } => {
                let Some((node, session)) = broker.hears(connection, now) else { return Ok(()) };
                Input::Answered { node, session, number, refusal }
            }
        };
        self.step(input)
    }

    /// The broker learns that a connection has ended.
    pub(super) fn lost(&mut self, connection: ConnectionId) -> Result<(), Violation> {
        self.network.close(connection, End::Broker);
        let Some(broker) = &mut self.broker else { return Ok(()) };
        match broker.lose(connection) {
            Some((node, session)) => self.step(Input::Disconnected { node, session }),
            None => Ok(()),
        }
    }
}
