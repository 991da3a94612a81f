//! Ways to an address: straight, or over bridges (pure).

use super::Known;
use crate::networks::{Network, is_own, reaches};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

/// Ways that are looked for.
pub const ROUTES_MOST: usize = 4;
/// Bridges on one way.
pub const BRIDGES_MOST: usize = 4;

/// Where to call, one after another: bridges first, and at last who is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// At least one.
    pub hops: Vec<SocketAddr>,
}

impl Way {
    /// Without a bridge.
    pub fn straight(to: SocketAddr) -> Self {
        Self { hops: vec![to] }
    }
}

/// Ways over `bridges` from a node on the networks `own` to one that is at `peer`: at most
/// [`ROUTES_MOST`], those over few bridges first. No two have a bridge in common as long as there
/// are others, so that the end of one leaves the others.
pub fn routes(own: &[Network], bridges: &[Known], peer: &[SocketAddr]) -> Vec<Way> {
    let mut found = Vec::new();
    let mut left: Vec<&Known> = bridges.iter().collect();
    while found.len() < ROUTES_MOST {
        let Some((way, over)) = shortest(own, &left, peer) else { break };
        found.push(way);
        // In the order of what is taken out, the last first.
        for at in over.into_iter().rev() {
            left.remove(at);
        }
    }
    found
}

/// The way over the fewest of `bridges`, and which these are, in order of their places.
fn shortest(own: &[Network], bridges: &[&Known], peer: &[SocketAddr]) -> Option<(Way, Vec<usize>)> {
    let own: Vec<_> =
        own.iter().filter(|network| !network.address.is_loopback()).copied().collect();
    // By what each bridge was reached first, and at which address.
    let mut reached: BTreeMap<usize, (Option<usize>, SocketAddr)> = BTreeMap::new();
    let mut next = VecDeque::from([None]);
    while let Some(at) = next.pop_front() {
        let networks = at.map_or(&own, |at: usize| &bridges[at].networks);
        if let (Some(end), Some(last)) = (arrival(networks, peer), at) {
            let mut over = vec![last];
            while let Some((Some(before), _)) = over.last().map(|at| reached[at]) {
                over.push(before);
            }
            over.reverse();
            if over.len() > BRIDGES_MOST {
                return None;
            }
            let hops = over.iter().map(|at| reached[at].1).chain([end]).collect();
            over.sort_unstable();
            return Some((Way { hops }, over));
        }
        for (to, bridge) in bridges.iter().enumerate() {
            let address = bridge.address_from(networks);
            if let Some(address) = address.filter(|_| !reached.contains_key(&to)) {
                reached.insert(to, (at, address));
                next.push_back(Some(to));
            }
        }
    }
    None
}

/// Where a bridge on `networks` calls who is at `peer`. Addresses that the bridge has itself are those
/// of another node, unless all are: then the bridge is on the peer's.
fn arrival(networks: &[Network], peer: &[SocketAddr]) -> Option<SocketAddr> {
    let mut others = peer.iter().filter(|address| !address.ip().is_loopback());
    let is_here = others.all(|address| is_own(networks, address.ip()));
    let leads_there = |ip| reaches(networks, ip) || (is_here && is_own(networks, ip));
    peer.iter().find(|address| leads_there(address.ip())).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(number: u8, host: u8) -> Network {
        Network { address: [10, number, 0, host].into(), prefix: 24 }
    }

    fn bridge(host: u8, networks: &[u8]) -> Known {
        let networks = networks.iter().map(|number| network(*number, host)).collect();
        Known { networks, port: 7401 }
    }

    /// That of its bridge for containers, which every node has alike.
    fn containers() -> Network {
        Network { address: [172, 17, 0, 1].into(), prefix: 16 }
    }

    fn hops(way: &Way) -> Vec<String> {
        way.hops.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ways_over_few_bridges_go_first_and_share_none() {
        let own = [Network { address: [127, 0, 0, 1].into(), prefix: 8 }, network(1, 1)];
        let peer = [SocketAddr::from(([10, 3, 0, 9], 5))];
        let bridges =
            [bridge(11, &[1, 2]), bridge(12, &[2, 3]), bridge(13, &[1, 3]), bridge(14, &[4, 5])];
        let ways = routes(&own, &bridges, &peer);
        assert_eq!(ways.len(), 2);
        assert_eq!(hops(&ways[0]), ["10.1.0.13:7401", "10.3.0.9:5"]);
        assert_eq!(hops(&ways[1]), ["10.1.0.11:7401", "10.2.0.12:7401", "10.3.0.9:5"]);
        assert_eq!(routes(&own, &bridges[3..], &peer), []);
        let long: Vec<_> = (1..=6).map(|n| bridge(n + 20, &[n, n + 1])).collect();
        assert_eq!(routes(&own, &long, &[SocketAddr::from(([10, 7, 0, 9], 5))]), []);
    }

    /// Ways from network 1 to `number`, over bridges on these, where all nodes have one address alike.
    fn ways_among_alike(bridges: &[&[u8]], number: u8) -> Vec<Vec<String>> {
        let mut known = Vec::new();
        for (host, on) in (11..).zip(bridges) {
            let mut networks = vec![containers()];
            networks.extend(on.iter().map(|number| network(*number, host)));
            known.push(Known { networks, port: 7401 });
        }
        let own = [containers(), network(1, 1)];
        let peer = [containers(), network(number, 9)].map(|n| SocketAddr::new(n.address, 5));
        routes(&own, &known, &peer).iter().map(hops).collect()
    }

    /// Over one hop, over several, and where there seems to be no other way.
    #[test]
    fn what_the_hop_before_has_too_leads_nowhere() {
        let one = ways_among_alike(&[&[1, 2]], 2);
        assert_eq!(one, [["10.1.0.11:7401", "10.2.0.9:5"]]);
        let two = ways_among_alike(&[&[1, 2], &[2, 3]], 3);
        assert_eq!(two, [["10.1.0.11:7401", "10.2.0.12:7401", "10.3.0.9:5"]]);
        assert!(ways_among_alike(&[&[1, 2], &[3, 4]], 4).is_empty());
        assert!(ways_among_alike(&[&[2, 3]], 3).is_empty());
    }

    /// A program may listen on one of its node's networks alone.
    #[test]
    fn a_bridge_leads_to_its_own_node() {
        let peer = [SocketAddr::from(([127, 0, 0, 1], 5)), SocketAddr::from(([10, 2, 0, 11], 5))];
        let ways = routes(&[network(1, 1)], &[bridge(11, &[1, 2])], &peer);
        assert_eq!(ways.iter().map(hops).collect::<Vec<_>>(), [["10.1.0.11:7401", "10.2.0.11:5"]]);
    }

    proptest! {
        /// Whatever bridges there are, and whether or not all nodes have one address alike: every hop
        /// is on a network of the one before and has an address that this one has not, no bridge is
        /// passed twice, and if there is a way of a permitted length, one is found.
        #[test]
        fn every_way_leads_there(
            places in prop::collection::vec(prop::collection::btree_set(0..6_u8, 1..4), 0..8),
            from in 0..6_u8,
            to in 0..6_u8,
            alike in any::<bool>(),
        ) {
            let alike = alike.then(containers);
            let with_alike = |networks: Vec<Network>| -> Vec<Network> {
                alike.into_iter().chain(networks).collect()
            };
            let own = with_alike(vec![network(from, 1)]);
            let peer: Vec<_> = with_alike(vec![network(to, 2)])
                .iter()
                .map(|network| SocketAddr::new(network.address, 5))
                .collect();
            let bridges: Vec<_> = places
                .iter()
                .enumerate()
                .map(|(at, on)| {
                    let networks = on.iter().map(|number| network(*number, at as u8 + 10)).collect();
                    Known { networks: with_alike(networks), port: 7401 }
                })
                .collect();
            let ways = routes(&own, &bridges, &peer);
            prop_assert!(ways.len() <= ROUTES_MOST);
            for way in &ways {
                let mut networks = own.clone();
                let mut passed = Vec::new();
                for hop in &way.hops {
                    prop_assert!(networks.iter().any(|n| n.has(hop.ip())));
                    prop_assert!(networks.iter().all(|n| n.address != hop.ip()));
                    let bridge = bridges.iter().position(|b| b.networks.iter().any(|n| n.address == hop.ip()));
                    if let Some(at) = bridge {
                        prop_assert!(!passed.contains(&at));
                        passed.push(at);
                        networks.clone_from(&bridges[at].networks);
                    }
                }
                prop_assert_eq!(way.hops.last(), peer.last());
                prop_assert!((1..=BRIDGES_MOST).contains(&passed.len()));
            }
            // Which networks can be reached by so many bridges.
            let mut near = std::collections::BTreeSet::from([from]);
            let mut least = None;
            for count in 1..=BRIDGES_MOST {
                let over: Vec<_> = places.iter().filter(|on| !on.is_disjoint(&near)).collect();
                if least.is_none() && over.iter().any(|on| on.contains(&to)) {
                    least = Some(count);
                }
                over.into_iter().for_each(|on| near.extend(on));
            }
            prop_assert_eq!(ways.first().map(|way| way.hops.len() - 1), least);
        }
    }
}
