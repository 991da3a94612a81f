//! The lab's hardware: which interfaces there are, how they are plugged, how fast each sends
//! (pure). It is there with and without Keeptime: network cards are token buckets with the handle
//! `1:`, and switches keep DiffServ classes apart at their ports.

use crate::node::CONGESTION_CONTROL;
use crate::spec::Spec;
use keeptime_linux::egress;
use keeptime_linux::link::{self, End, Network, Request};
use keeptime_linux::tc::{Attach, Place, Shaper, TREE_MAJOR, Tree};
use keeptime_model::name::Name;
use keeptime_model::topology::LinkDirection;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use std::net::Ipv4Addr;

/// The device of the cluster's network on every node.
pub const NODE_DEVICE: &str = "eth0";
/// Its number there; 1 is the loopback interface.
pub const NODE_IFINDEX: u32 = 2;
/// The handle of the network card; the agent's classes go below `1:1`.
pub const NODE_SHAPER_MAJOR: u16 = 1;

/// One switch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bridge {
    name: String,
    ifindex: u32,
}

/// A place where a cable is plugged into a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    name: String,
    ifindex: u32,
    bridge: u32,
    /// What it sends, and how fast.
    direction: LinkDirection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cable {
    /// The node, by its position, and the port.
    ToNode(usize, Port),
    Between(Port, Port),
}

/// All switches and cables of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wiring {
    bridges: Vec<Bridge>,
    cables: Vec<Cable>,
    front_end: (Ipv4Addr, Network),
}

impl Wiring {
    /// Numbers and names for everything in a spec.
    pub fn of(spec: &Spec) -> Self {
        let topology = spec.topology();
        let bridge_of = |name: &Name| {
            let at = topology.switches().iter().position(|switch| switch.name == *name)?;
            Some(BRIDGE_FIRST + at as u32)
        };
        let cable = |(at, link): (usize, &keeptime_model::topology::Link)| {
            let port = |side: u32| {
                let number = 2 * at as u32 + side;
                Some(Port {
                    name: format!("port{number}"),
                    ifindex: PORT_FIRST + number,
                    bridge: bridge_of(&link.between[side as usize])?,
                    direction: LinkDirection(number),
                })
            };
            let node = |side: usize| topology.find_node(&link.between[side]);
            Some(match (node(0), node(1)) {
                (Some(node), _) => Cable::ToNode(node.0 as usize, port(1)?),
                (_, Some(node)) => Cable::ToNode(node.0 as usize, port(0)?),
                _ => Cable::Between(port(0)?, port(1)?),
            })
        };
        let bridge =
            |at: usize| Bridge { name: bridge_name(at), ifindex: BRIDGE_FIRST + at as u32 };
        Self {
            bridges: (0..topology.switches().len()).map(bridge).collect(),
            cables: topology.links().iter().enumerate().filter_map(cable).collect(),
            front_end: (spec.front_end(), spec.network()),
        }
    }

    /// What makes all of it, in the network namespace of the switches. `nodes` are the processes
    /// in whose namespaces the nodes' ends go.
    pub fn requests(&self, nodes: &[i32]) -> Vec<Request> {
        let mut requests: Vec<_> = self
            .bridges
            .iter()
            .map(|bridge| link::add_bridge(&bridge.name, bridge.ifindex))
            .collect();
        for cable in &self.cables {
            requests.push(match cable {
                Cable::ToNode(node, port) => link::add_cable(&port.end(), &node_end(nodes[*node])),
                Cable::Between(one, other) => link::add_cable(&one.end(), &other.end()),
            });
        }
        for port in self.ports() {
            requests.extend([link::plug(port.ifindex, port.bridge), link::set_up(port.ifindex)]);
        }
        // The front end is the machine that the topmost switch stands in: no link lies between.
        if let Some(bridge) = self.bridges.last() {
            let (address, network) = self.front_end;
            requests.extend([
                link::set_up(link::LOOPBACK),
                link::add_address(bridge.ifindex, address, network.prefix),
                link::add_route(bridge.ifindex, network, address, CONGESTION_CONTROL),
            ]);
        }
        requests
    }

    /// The port that a node is plugged into.
    pub fn port_of(&self, node: usize) -> Option<u32> {
        self.cables.iter().find_map(|cable| match cable {
            Cable::ToNode(at, port) if *at == node => Some(port.ifindex),
            _ => None,
        })
    }

    /// What each port does with packets that wait.
    pub fn trees(&self, spec: &Spec) -> Vec<Tree> {
        let tree = |port: &Port| {
            let link = egress::Link {
                name: spec.topology().direction_name(port.direction),
                rate: spec.topology().rate(port.direction),
                control_share: CONTROL_SHARE,
            };
            let place = Place { ifindex: port.ifindex, attach: Attach::Root, major: TREE_MAJOR };
            egress::switch_port(&link, place)
        };
        self.ports().map(tree).collect()
    }

    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.cables.iter().flat_map(|cable| match cable {
            Cable::ToNode(_, port) => vec![port],
            Cable::Between(one, other) => vec![one, other],
        })
    }
}

impl Port {
    fn end(&self) -> End<'_> {
        End { name: &self.name, ifindex: self.ifindex, process: None, mtu: MTU }
    }
}

/// The network card of a node: it sends no faster than the link, and what waits in it is little,
/// so that senders on the node feel it.
pub fn network_card(rate: BitsPerSecond) -> Shaper {
    let limit = rate.bytes_in_floor(CARD_QUEUE_SPAN).get().clamp(CARD_QUEUE_MIN, CARD_QUEUE_MAX);
    Shaper {
        ifindex: NODE_IFINDEX,
        major: NODE_SHAPER_MAJOR,
        rate,
        burst: egress::burst_of(rate),
        limit: limit as u32,
    }
}

/// The most that a card of this rate takes at once. A real wire carries one frame after the other,
/// of any sender; here a packet of up to 64 KB would hold a port of 100 Mbit/s for 5.2 ms, and
/// whatever is urgent behind it. Smaller pieces cost CPU, and the kernel charges that to whoever
/// computes on the same processor. Four nodes, 48 greedy connections, a volume renderer with its
/// reservation beside them: at 1 ms, packets took 12 % of the machine and 8 % more time than on an
/// idle cluster; at 2 ms 9 % and nothing that can be measured.
pub fn segment_max(rate: BitsPerSecond) -> u32 {
    let most = rate.bytes_in_floor(SEGMENT_SPAN).get();
    most.clamp(2 * u64::from(MTU), SEGMENT_MAX) as u32
}

/// Rate at which a node sends.
pub fn node_rate(spec: &Spec, node: usize) -> BitsPerSecond {
    let topology = spec.topology();
    let name = &topology.nodes()[node].name;
    let mut directions = (0..topology.direction_count() as u32).map(LinkDirection);
    let sends = |direction: &LinkDirection| {
        topology.links()[direction.link()].between[(direction.0 % 2) as usize] == *name
    };
    directions.find(sends).map_or(BitsPerSecond::ZERO, |direction| topology.rate(direction))
}

/// The device by which the front end is on the network, where there are so many switches.
pub fn front_end_device(switches: usize) -> String {
    bridge_name(switches.saturating_sub(1))
}

fn bridge_name(at: usize) -> String {
    format!("switch{at}")
}

fn node_end(process: i32) -> End<'static> {
    End { name: NODE_DEVICE, ifindex: NODE_IFINDEX, process: Some(process), mtu: MTU }
}

const BRIDGE_FIRST: u32 = 10;
/// Behind all bridges: a lab has no more switches than links and no more than 1,000 of them.
const PORT_FIRST: u32 = 10_000;
pub const MTU: u32 = 1_500;
const CONTROL_SHARE: Share = match Share::from_percent(2) {
    Some(share) => share,
    None => Share::ONE,
};
const SEGMENT_SPAN: Nanos = Nanos::from_millis(2);
const SEGMENT_MAX: u64 = 65_536;
/// As much as switch ports keep; two of the greatest packets that TCP hands down at once fit.
const CARD_QUEUE_SPAN: Nanos = Nanos::from_millis(10);
const CARD_QUEUE_MIN: u64 = 2 * 65_536;
const CARD_QUEUE_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::CpuPpm;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SLOW: BitsPerSecond = BitsPerSecond::from_mbit(200);
    const FAST: BitsPerSecond = BitsPerSecond::from_mbit(400);

    fn two_tier(nodes: u32, leaves: u32) -> Spec {
        let cpu = CpuPpm::from_percent(1);
        Spec::two_tier("lab".parse().unwrap(), nodes, leaves, SLOW, FAST, cpu).unwrap()
    }

    #[test]
    fn uplinks_have_a_port_at_both_ends_and_their_own_rate() {
        let spec = two_tier(4, 2);
        let wiring = Wiring::of(&spec);
        let trees = wiring.trees(&spec);
        assert_eq!(trees.len(), 4 + 2 * 2);
        let ceil = |tree: &Tree| tree.classes[&1].ceil;
        assert_eq!(trees.iter().filter(|tree| ceil(tree) == FAST).count(), 4);
        assert_eq!(node_rate(&spec, 3), SLOW);
    }

    proptest! {
        #[test]
        fn numbers_and_names_are_used_once(nodes in 1u32..=16, leaves in 1u32..=16) {
            let wiring = Wiring::of(&two_tier(nodes, leaves.min(nodes)));
            let bridges = wiring.bridges.iter().map(|b| (b.ifindex, b.name.clone()));
            let all: Vec<_> =
                bridges.chain(wiring.ports().map(|p| (p.ifindex, p.name.clone()))).collect();
            let numbers: BTreeSet<_> = all.iter().map(|(number, _)| number).collect();
            let names: BTreeSet<_> = all.iter().map(|(_, name)| name).collect();
            prop_assert!(numbers.len() == all.len() && names.len() == all.len());
            prop_assert!(names.iter().all(|name| name.len() <= 15));
            let bridges: BTreeSet<_> = wiring.bridges.iter().map(|b| b.ifindex).collect();
            prop_assert!(wiring.ports().all(|port| bridges.contains(&port.bridge)));
        }
    }
}
