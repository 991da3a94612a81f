//! The way between the broker and everybody else. An agent's connection is a stream, as TCP and Unix
//! sockets give it: what is said on it arrives in order, late perhaps, until it breaks; then all that
//! is on its way is lost. Across connections, and among the requests of users, everything can
//! overtake everything.

use crate::agenda::span;
use crate::fault::{Effects, Kind, Kinds};
use keeptime_model::units::Nanos;
use keeptime_random::Random;
use std::collections::BTreeMap;

/// How long a message takes when all is well.
const USUAL: std::ops::Range<Nanos> = Nanos::new(100_000)..Nanos::from_millis(3);
/// How long one takes that is late: longer than a lease, at worst.
const LATE: std::ops::Range<Nanos> = Nanos::from_millis(50)..Nanos::from_secs(15);
/// One message in so many is late, comes twice, or is lost.
const ONE_IN: u64 = 12;
/// An end learns within this time that its connection broke.
const NOTICE: std::ops::Range<Nanos> = Nanos::new(1)..Nanos::from_secs(20);

/// One connection of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Where the broker is.
    Broker,
    /// Where the agent is.
    Agent,
}

/// All connections, and what is wrong with them.
#[derive(Debug)]
pub struct Network {
    random: Random,
    faults: Kinds,
    next: u64,
    connections: BTreeMap<ConnectionId, Connection>,
    /// By node.
    cut_until: Vec<Nanos>,
    effects: Effects,
}

#[derive(Debug, Clone)]
struct Connection {
    node: usize,
    is_broken: bool,
    is_closed: [bool; 2],
    /// When the last message to each end arrives.
    last: [Nanos; 2],
    /// Messages on their way.
    flying: u32,
}

impl Network {
    /// Without connections, to `nodes` nodes.
    pub fn new(random: Random, nodes: usize) -> Self {
        let (faults, cut_until) = (Kinds::of(&[]), vec![Nanos::new(0); nodes]);
        let (connections, effects) = (BTreeMap::new(), Effects::default());
        Self { random, faults, next: 1, connections, cut_until, effects }
    }

    /// What went wrong with messages, and for those who were cut off.
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// From now on these go wrong, and no others; who was cut off is not any more.
    pub fn suffer(&mut self, faults: Kinds) {
        self.faults = faults;
        self.cut_until.fill(Nanos::new(0));
    }

    /// Cuts a node off until then.
    pub fn cut(&mut self, node: usize, until: Nanos) {
        self.cut_until[node] = until;
    }

    /// A new connection from `node`; nothing if it is cut off.
    pub fn open(&mut self, node: usize, now: Nanos) -> Option<ConnectionId> {
        if self.cut_until[node] > now {
            self.effects.count(Kind::Partitions);
            return None;
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        let connection =
            Connection { node, is_broken: false, is_closed: [false; 2], last: [now; 2], flying: 0 };
        self.connections.insert(id, connection);
        Some(id)
    }

    /// Whose connection it is; nothing if it is over.
    pub fn node(&self, id: ConnectionId) -> Option<usize> {
        self.connections.get(&id).map(|connection| connection.node)
    }

    /// All connections whose end at the broker is open.
    pub fn open_at_broker(&self) -> Vec<ConnectionId> {
        let open = self.connections.iter().filter(|(_, c)| !c.is_closed[End::Broker as usize]);
        open.map(|(id, _)| *id).collect()
    }

    /// When something that is said now arrives at the end `to`; nothing if it never will.
    pub fn send(&mut self, id: ConnectionId, to: End, now: Nanos) -> Option<Nanos> {
        let takes = self.takes();
        let connection = self.connections.get_mut(&id).filter(|c| !c.is_broken)?;
        let last = &mut connection.last[to as usize];
        let arrival = now.saturating_add(takes).max(*last);
        let cut_until = self.cut_until[connection.node];
        if arrival < cut_until {
            self.effects.count(Kind::Partitions);
        }
        *last = arrival.max(cut_until);
        connection.flying += 1;
        Some(*last)
    }

    /// Whether a message that has come to the end `at` is received.
    pub fn land(&mut self, id: ConnectionId, at: End) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.flying -= 1;
        let received = !connection.is_broken && !connection.is_closed[at as usize];
        self.forget(id);
        received
    }

    /// Whether an order is to come once more.
    pub fn repeats(&mut self) -> bool {
        let repeats = self.suffers(Kind::Repeats);
        self.effects.add(Kind::Repeats, repeats.into());
        repeats
    }

    /// One end hangs up: it hears nothing more.
    pub fn close(&mut self, id: ConnectionId, end: End) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_closed[end as usize] = true;
            self.forget(id);
        }
    }

    /// It breaks: what is on its way is lost. When each end learns of it.
    pub fn break_off(&mut self, id: ConnectionId, now: Nanos) -> [Nanos; 2] {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_broken = true;
            self.forget(id);
        }
        [End::Broker, End::Agent].map(|_| now.saturating_add(span(&mut self.random, NOTICE)))
    }

    /// Whether both ends are there, and nothing is on its way.
    pub fn is_still(&self, id: ConnectionId) -> bool {
        self.connections
            .get(&id)
            .is_some_and(|c| !c.is_broken && c.is_closed == [false; 2] && c.flying == 0)
    }

    /// When a request of a user or an answer arrives: never, once, or twice.
    pub fn arrivals(&mut self, now: Nanos) -> Vec<Nanos> {
        let (count, kind) = match (self.suffers(Kind::Losses), self.suffers(Kind::Repeats)) {
            (true, _) => (0, Some(Kind::Losses)),
            (false, true) => (2, Some(Kind::Repeats)),
            (false, false) => (1, None),
        };
        kind.into_iter().for_each(|kind| self.effects.count(kind));
        (0..count).map(|_| now.saturating_add(self.takes())).collect()
    }

    fn takes(&mut self) -> Nanos {
        let late = self.suffers(Kind::Delays);
        self.effects.add(Kind::Delays, late.into());
        span(&mut self.random, if late { LATE } else { USUAL })
    }

    fn suffers(&mut self, kind: Kind) -> bool {
        self.faults.has(kind) && self.random.is_one_in(ONE_IN)
    }

    fn forget(&mut self, id: ConnectionId) {
        let over = |c: &Connection| c.flying == 0 && (c.is_broken || c.is_closed == [true; 2]);
        if self.connections.get(&id).is_some_and(over) {
            self.connections.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_order_until_it_breaks() {
        let mut network = Network::new(Random::of(1, 1), 1);
        network.suffer(Kinds::of(&[Kind::Delays]));
        let now = Nanos::from_secs(1);
        let id = network.open(0, now).unwrap();
        let arrivals: Vec<_> = (0..100).filter_map(|_| network.send(id, End::Agent, now)).collect();
        assert!(arrivals.is_sorted() && arrivals.len() == 100);
        assert!(arrivals[99] > Nanos::from_secs(2), "some are late");
        assert!(network.land(id, End::Agent) && !network.is_still(id));
        network.break_off(id, now);
        assert!(!network.land(id, End::Agent), "lost");
        assert_eq!(network.send(id, End::Agent, now), None);
    }

    #[test]
    fn who_is_cut_off_cannot_dial_and_hears_later() {
        let mut network = Network::new(Random::of(1, 1), 2);
        let (now, then) = (Nanos::from_secs(1), Nanos::from_secs(9));
        let id = network.open(0, now).unwrap();
        network.cut(0, then);
        assert_eq!((network.open(0, now), network.send(id, End::Broker, now)), (None, Some(then)));
        assert!(network.open(1, now).is_some());
        network.close(id, End::Broker);
        assert!(!network.land(id, End::Broker));
    }
}
