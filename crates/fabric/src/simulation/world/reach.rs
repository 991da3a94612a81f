//! How contexts of a world reach each other: ways, calls, streams and their rails, as `core` has them.

use super::{NODES, SHORT, World};
use crate::bridge::routes::Way;
use crate::frame::{Carrier, GREETING, Greeting};
use crate::id::ContextId;
use crate::junction::Found;
use crate::link::Link;
use crate::simulation::Fault;
use crate::simulation::context::{Context, introduction, node_of};
use crate::simulation::line::{Line, Pace};
use crate::streams::Stream;
use crate::transport::Ends;
use keeptime_random::Random;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Calls that are late are taken by then.
const LATE_MOST: Duration = Duration::from_secs(1);

/// How two nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// By memory that they share: they are one.
    Memory,
    /// Over one network.
    Network,
    /// Over several, or over so many bridges.
    Rails { straight: u8, bridges: u8 },
}

/// A connection that the other end has not taken.
pub(super) struct Call {
    pub(super) nodes: [usize; 2],
    pub(super) greeting: [u8; GREETING],
    pub(super) ends: Ends,
    pub(super) there_at: Duration,
}

/// The number of two nodes that are not one.
pub(super) fn pair(nodes: [usize; 2]) -> usize {
    nodes[0] + nodes[1] - 1
}

/// That of a call over a connection of its own.
fn greeting([from, to]: [ContextId; 2], attempt: u64) -> Greeting {
    Greeting { from, to, carrier: Carrier::Itself, attempt, is_rail: false, pass: None }
}

fn address(network: u8, node: usize) -> SocketAddr {
    ([10, network, 0, node as u8 + 1], 7).into()
}

impl World {
    /// As `core` has it: a link that there is, or a new one.
    pub(super) fn link_to(
        &mut self,
        node: usize,
        own: &Context,
        peer: ContextId,
    ) -> Option<Arc<Link>> {
        if let Some(link) = own.junction.links.to(peer) {
            return Some(link);
        }
        let there = self.directory.get(&peer)?.node;
        if there == node {
            return None;
        }
        let nodes = [node, there];
        let number = own.junction.streams.next_number();
        let greeting = greeting([own.id, peer], number);
        if !matches!(self.reach[pair(nodes)], Reach::Rails { .. }) {
            let ends = self.call(nodes, greeting, false)?;
            return Some(own.junction.connected(peer, ends, own));
        }
        let greeting = Greeting { is_rail: true, ..greeting };
        for way in self.ways(nodes) {
            if let Some(ends) = self.call(nodes, greeting, way.hops.len() > 1) {
                let peer = introduction(peer, there);
                return Some(own.junction.begin(&peer, number, way, ends, own).unwrap());
            }
        }
        None
    }

    /// As `core` has it: the directory is asked for the other end of a stream, and the ways there are called.
    pub(super) fn make_rails(&mut self, node: usize, own: &Context, stream: &Stream) {
        let (peer, now) = (stream.link.peer, self.start + self.clock.now());
        let found = match self.directory.get(&peer) {
            Some(known) => Found::There(introduction(peer, known.node)),
            None => Found::Gone,
        };
        let Some(found) = own.junction.looked_up(stream, found, now, own) else { return };
        let (was_alone, (_, lost)) = (stream.rails.all().is_empty(), stream.ways(now));
        let nodes = [node, node_of(&found)];
        let greeting = Greeting { is_rail: true, ..greeting([own.id, peer], stream.number()) };
        let ways = self.ways(nodes);
        let call = |way: &Way| self.call(nodes, greeting, way.hops.len() > 1);
        stream.make_missing(ways, &lost, was_alone, || now, call);
    }

    /// By which ways one node reaches another.
    fn ways(&self, nodes: [usize; 2]) -> Vec<Way> {
        let Reach::Rails { straight, bridges } = self.reach[pair(nodes)] else { return Vec::new() };
        let to = nodes[1];
        let over = |bridge: u8| {
            let mut way = Way::straight(address(bridge + 100, to));
            way.hops.insert(0, address(bridge + 100, NODES));
            way
        };
        let straight = (0..straight).map(|network| Way::straight(address(network, to)));
        straight.chain((0..bridges).map(over)).collect()
    }

    /// A connection to another node, whose other end has not been taken. None if that node does not answer.
    fn call(&mut self, nodes: [usize; 2], greeting: Greeting, is_bridged: bool) -> Option<Ends> {
        let now = self.clock.now();
        let is_parted = self.parted[pair(nodes)].is_some_and(|until| now < until);
        if is_parted || self.nodes[nodes[1]].is_none() {
            return None;
        }
        let (pace, in_memory) = (self.pace(), self.reach[pair(nodes)] == Reach::Memory);
        let (line, [ours, theirs]) = if is_bridged {
            Line::bridged(&self.clock, nodes, pace)
        } else {
            Line::straight(&self.clock, nodes, pace, in_memory)
        };
        self.lines.push(line);
        self.bridged += usize::from(is_bridged);
        let (greeting, there_at) = (greeting.encode(), self.arrival());
        self.calls.push(Call { nodes, greeting, ends: theirs, there_at });
        Some(ours)
    }

    /// When a call that is made now is there: calls overtake each other.
    fn arrival(&mut self) -> Duration {
        let is_late = self.is(Fault::LateCalls) && self.random.is_one_in(4);
        let most = if is_late { LATE_MOST } else { SHORT };
        self.clock.now() + self.time(most)
    }

    fn pace(&mut self) -> Pace {
        let delay = self.time(Duration::from_millis(2));
        let rate = (20 + self.random.below(200)) << 20;
        let room = (32 + self.random.index(224)) << 10;
        Pace { delay, rate, room }
    }
}

impl Reach {
    /// How, by chance.
    pub(super) fn of(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Memory,
            1 | 2 => Self::Network,
            3 | 4 => Self::Rails { straight: 0, bridges: 1 + random.below(2) as u8 },
            _ => Self::Rails { straight: 2, bridges: random.below(2) as u8 },
        }
    }
}
