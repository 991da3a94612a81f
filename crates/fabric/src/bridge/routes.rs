//! Ways to an address: straight, or over bridges; and which of them are chosen (pure).

use super::Known;
use crate::networks::{Network, is_own, reaches};
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Ways over bridges that are used at once. Where several of these lead over one bridge, others may come later that have
/// no bridge in common with them, up to as many of such.
pub const ROUTES_MOST: usize = 4;
/// Ways from which these are chosen: each costs a few calls now and then, to find out how quick it is.
pub const CANDIDATES_MOST: usize = 2 * ROUTES_MOST;
/// Bridges on one way.
pub const BRIDGES_MOST: usize = 4;
/// Ways from here to one bridge that are gone on with. By these, one that is quick is found although another one
/// leads over fewer bridges, and a search among many bridges stays short.
const PASSES: usize = 3;

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

    /// Whether it is without a bridge.
    pub fn is_straight(&self) -> bool {
        self.hops.len() == 1
    }

    /// Which of `bridges` it leads over, by their places.
    fn over(&self, bridges: &[Known]) -> BTreeSet<usize> {
        let hops = &self.hops[..self.hops.len().saturating_sub(1)];
        let is_passed = |bridge: &Known| hops.iter().any(|hop| bridge.is_at(*hop));
        let places = bridges.iter().enumerate().filter(|(_, bridge)| is_passed(bridge));
        places.map(|(at, _)| at).collect()
    }
}

/// Ways over `bridges` from a node on the networks `own` to one that is at `peer`, from which to choose: at most
/// [`CANDIDATES_MOST`]. First those over few bridges, no two of which have a bridge in common, as many as there are;
/// then others, which have. Ways over IPv6 count where none leads over IPv4 alone: most cables have both, and are one network.
pub fn candidates(own: &[Network], bridges: &[Known], peer: &[SocketAddr]) -> Vec<Way> {
    let of_4 = |networks: &[Network]| -> Vec<Network> {
        networks.iter().filter(|network| network.address.is_ipv4()).copied().collect()
    };
    let bridges_4: Vec<_> =
        bridges.iter().map(|b| Known { networks: of_4(&b.networks), port: b.port }).collect();
    let peer_4: Vec<_> = peer.iter().filter(|address| address.is_ipv4()).copied().collect();
    let ways = found(&of_4(own), &bridges_4, &peer_4);
    if ways.is_empty() { found(own, bridges, peer) } else { ways }
}

fn found(own: &[Network], bridges: &[Known], peer: &[SocketAddr]) -> Vec<Way> {
    let map = Map { own, bridges, peer };
    let (mut ways, mut passed) = (Vec::new(), BTreeSet::new());
    while ways.len() < CANDIDATES_MOST {
        let Some(way) = map.ways(&passed, 1, 1).pop() else { break };
        passed.append(&mut way.over(bridges));
        ways.push(way);
    }
    for way in map.ways(&BTreeSet::new(), PASSES, CANDIDATES_MOST) {
        if ways.len() < CANDIDATES_MOST && !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

/// Whether one who uses `taken` may use any other way.
pub fn has_room(taken: &[Way], bridges: &[Known]) -> bool {
    Using::new(taken, bridges, true).apart < ROUTES_MOST
}

/// Those of `ways` from which one who uses `taken` may choose: those over bridges of their own, and for one who has `much`
/// to send the others.
pub fn free(mut ways: Vec<Way>, taken: &[Way], bridges: &[Known], much: bool) -> Vec<Way> {
    let using = Using::new(taken, bridges, much);
    ways.retain(|way| using.may_have_apart(way) || using.may_have(way));
    ways
}

/// Which of `ways` one who uses `taken` is to use as well; those of the least cost first, of equal ones those over few
/// bridges. First those that have no bridge in common with each other, so that the end of one leaves the others. One who
/// has `much` to send uses the same bridges over other networks, too, if there is room: which of these carries more a
/// call does not tell, but what is sent over them does. Of those the ones go first that lead over networks that no other
/// way takes.
pub fn choose<C: Ord>(
    mut ways: Vec<Way>,
    taken: &[Way],
    bridges: &[Known],
    much: bool,
    cost: impl Fn(&Way) -> C,
) -> Vec<Way> {
    // What is equal stays in its order.
    ways.sort_by_cached_key(|way| (cost(way), way.hops.len()));
    let mut using = Using::new(taken, bridges, much);
    let (mut chosen, mut others) = (Vec::new(), Vec::new());
    for way in ways {
        if using.may_have_apart(&way) {
            using.take(&way);
            chosen.push(way);
        } else {
            others.push(way);
        }
    }
    loop {
        others.retain(|way| using.may_have(way));
        let common = |at: &usize| using.common_hops(&others[*at]);
        let Some(at) = (0..others.len()).min_by_key(common) else { return chosen };
        let way = others.remove(at);
        using.take(&way);
        chosen.push(way);
    }
}

/// Ways over bridges that somebody uses.
struct Using<'a> {
    bridges: &'a [Known],
    /// Whether there may be several over one bridge.
    much: bool,
    ways: Vec<Way>,
    /// Over which they lead, by their places.
    passed: BTreeSet<usize>,
    /// How many have no bridge in common.
    apart: usize,
}

impl<'a> Using<'a> {
    fn new(ways: &[Way], bridges: &'a [Known], much: bool) -> Self {
        let mut using = Self { bridges, much, ways: Vec::new(), passed: BTreeSet::new(), apart: 0 };
        ways.iter().filter(|way| !way.is_straight()).for_each(|way| using.take(way));
        using
    }

    fn take(&mut self, way: &Way) {
        let mut over = way.over(self.bridges);
        self.apart += usize::from(over.is_disjoint(&self.passed));
        self.passed.append(&mut over);
        self.ways.push(way.clone());
    }

    /// Whether there is room for this one, since it leads over bridges of its own.
    fn may_have_apart(&self, way: &Way) -> bool {
        self.apart < ROUTES_MOST && way.over(self.bridges).is_disjoint(&self.passed)
    }

    /// Whether there is room for this one as well, which leads over the bridges of others by networks of its own.
    fn may_have(&self, way: &Way) -> bool {
        let is_like = |other: &Way| common_hops(way, other, self.bridges) == way.hops.len();
        self.much && self.ways.len() < ROUTES_MOST && !self.ways.iter().any(is_like)
    }

    /// Its hops that lead over networks of others.
    fn common_hops(&self, way: &Way) -> usize {
        self.ways.iter().map(|other| common_hops(way, other, self.bridges)).sum()
    }
}

/// How many hops of two ways lead to the same bridge, or end, over the same network. Whoever has two addresses there is
/// reached by either.
fn common_hops(one: &Way, other: &Way, bridges: &[Known]) -> usize {
    let known = |hop: SocketAddr| bridges.iter().find(|bridge| bridge.is_at(hop));
    let on = |bridge: &Known, hop: SocketAddr| {
        let networks = bridge.networks.iter().filter(|network| network.has(hop.ip()));
        networks.max_by_key(|network| network.prefix).copied()
    };
    let mut common = 0;
    // Whose networks the hop's are: a bridge's own, the end's those of the last bridge.
    let mut last = [None; 2];
    for (one, other) in one.hops.iter().zip(&other.hops) {
        let to = [known(*one), known(*other)];
        let is_same = match (to, last) {
            ([Some(to), Some(also_to)], _) => to == also_to && on(to, *one) == on(to, *other),
            ([None, None], [Some(by), Some(also_by)]) => {
                by == also_by && on(by, *one) == on(by, *other)
            }
            _ => one == other,
        };
        common += usize::from(is_same);
        last = to;
    }
    common
}

/// From where ways are looked for, over which bridges, and to whom.
struct Map<'a> {
    own: &'a [Network],
    bridges: &'a [Known],
    peer: &'a [SocketAddr],
}

impl Map<'_> {
    /// Ways that lead over none of `without`: the first `most`, by the number of bridges. They lead on from each bridge
    /// by the first `passes` ways to it, and come back to no network.
    fn ways(&self, without: &BTreeSet<usize>, passes: usize, most: usize) -> Vec<Way> {
        let own: Vec<_> = self.own.iter().filter(|n| !n.address.is_loopback()).copied().collect();
        let mut passed = vec![0; self.bridges.len()];
        let mut ways = Vec::new();
        // Bridges by their places, and where each is called by the one before.
        let mut next: VecDeque<Vec<(usize, SocketAddr)>> = VecDeque::from([Vec::new()]);
        while let Some(path) = next.pop_front().filter(|_| ways.len() < most) {
            let mut before = vec![&own[..]];
            before.extend(path.iter().map(|(at, _)| &self.bridges[*at].networks[..]));
            let Some(networks) = before.pop() else { break };
            if !path.is_empty() {
                // From here over a network that both share leads a way as well: who asks may have tried it.
                let bridges = before.get(1..).unwrap_or_default();
                let ends = arrivals(networks, self.peer).filter(|end| are_far(bridges, *end));
                let ends = aliases_last(networks, ends).into_iter();
                let hops: Vec<_> = path.iter().map(|(_, hop)| *hop).collect();
                let more = ends.take(most - ways.len());
                ways.extend(more.map(|end| Way { hops: [&hops[..], &[end]].concat() }));
            }
            if path.len() == BRIDGES_MOST {
                continue;
            }
            for (to, bridge) in self.bridges.iter().enumerate() {
                if without.contains(&to) || path.iter().any(|(at, _)| *at == to) {
                    continue;
                }
                let hops = bridge.addresses_from(networks).filter(|hop| are_far(&before, *hop));
                for hop in aliases_last(networks, hops) {
                    if passed[to] < passes {
                        passed[to] += 1;
                        next.push_back(path.iter().copied().chain([(to, hop)]).collect());
                    }
                }
            }
        }
        ways
    }
}

/// The first of `addresses` on each network comes before all others there, for a node on `networks`.
fn aliases_last(
    networks: &[Network],
    addresses: impl Iterator<Item = SocketAddr>,
) -> Vec<SocketAddr> {
    let mut seen = BTreeSet::new();
    let on = |address: &SocketAddr| networks.iter().position(|n| n.has(address.ip()));
    let (mut firsts, aliases): (Vec<_>, Vec<_>) =
        addresses.partition(|address| seen.insert(on(address)));
    firsts.extend(aliases);
    firsts
}

/// Whether none of those on `networks` reaches this one itself.
fn are_far(networks: &[&[Network]], address: SocketAddr) -> bool {
    !networks.iter().any(|networks| reaches(networks, address.ip()))
}

/// Where a bridge on `networks` calls who is at `peer`. Addresses that the bridge has itself are those
/// of another node, unless all are: then the bridge is on the peer's, and one is enough.
fn arrivals(networks: &[Network], peer: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let mut others = peer.iter().filter(|address| !address.ip().is_loopback());
    let is_here = others.all(|address| is_own(networks, address.ip()));
    let leads_there = move |ip| reaches(networks, ip) || (is_here && is_own(networks, ip));
    let ends = peer.iter().copied().filter(move |address| leads_there(address.ip()));
    ends.take(if is_here { 1 } else { usize::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

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

    /// What is chosen as long as nothing is measured.
    fn routes(own: &[Network], bridges: &[Known], peer: &[SocketAddr]) -> Vec<Way> {
        choose(candidates(own, bridges, peer), &[], bridges, false, |_| ())
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

    /// A quick way over two bridges goes before a slow one over one of them, and its last hop is called on the quicker
    /// network; when one of its bridges is gone, the other way is the next.
    #[test]
    fn a_quick_way_goes_before_a_short_one() {
        let own = [network(1, 1)];
        let peer = [3, 4].map(|number| SocketAddr::from(([10, number, 0, 9], 5)));
        let bridges = [bridge(11, &[1, 2, 3]), bridge(12, &[2, 4])];
        let all = candidates(&own, &bridges, &peer);
        let (short, long) = (["10.1.0.11:7401", "10.3.0.9:5"], "10.2.0.12:7401");
        let first = routes(&own, &bridges, &peer).iter().map(hops).next();
        assert_eq!(first.unwrap(), short);
        let over_slow = |way: &Way| way.hops.last() == Some(&peer[0]);
        let chosen = choose(all.clone(), &[], &bridges, false, over_slow);
        let quick = [short[0], long, "10.4.0.9:5"];
        assert_eq!(chosen.iter().map(hops).collect::<Vec<_>>(), [quick]);
        // One who sends much uses the other one, which has a bridge in common with it, as well.
        let chosen = choose(all, &[], &bridges, true, over_slow);
        assert_eq!(chosen.iter().map(hops).collect::<Vec<_>>(), [&quick[..], &short]);
        let left = candidates(&own, &bridges[..1], &peer);
        let left = choose(left, &[], &bridges, false, over_slow);
        assert_eq!(left.iter().map(hops).collect::<Vec<_>>(), [short]);
    }

    /// A call over a fast network takes as long as one over a slow one: which of them carries more is found out by use, so
    /// who sends much uses each network on which the bridge is reached, and each of the other end's. The quickest goes
    /// first, and is enough for who sends little.
    #[test]
    fn one_bridge_is_used_over_all_networks_on_which_it_is_reached() {
        let own = [network(1, 1), network(2, 1)];
        let peer = [3, 4].map(|number| SocketAddr::from(([10, number, 0, 9], 5)));
        let bridges = [bridge(11, &[1, 2, 3, 4])];
        let all = candidates(&own, &bridges, &peer);
        assert_eq!(all.len(), 4);
        for best in &all {
            let is_other = |way: &Way| way != best;
            let first = choose(all.clone(), &[], &bridges, false, is_other);
            assert_eq!(first, std::slice::from_ref(best));
            assert_eq!(free(all.clone(), &first, &bridges, false), []);
            let chosen = choose(all.clone(), &[], &bridges, true, is_other);
            assert_eq!(chosen[0], *best);
            assert_eq!(choose(all.clone(), &first, &bridges, true, is_other), chosen[1..]);
            assert!(all.iter().all(|way| chosen.contains(way)));
            // What is used leaves the others, until there are as many as there may be.
            let left = free(all.clone(), &chosen[..3], &bridges, true);
            assert_eq!(left, chosen[3..]);
            assert_eq!(choose(left, &chosen[..3], &bridges, true, |_| ()), chosen[3..]);
            assert_eq!(free(all.clone(), &chosen, &bridges, true), []);
        }
    }

    /// The end of one bridge is to leave the others: so these go before other networks of the first, also where that was
    /// all that there was for a while.
    #[test]
    fn other_bridges_go_before_other_networks() {
        let own = [network(1, 1), network(2, 1)];
        let peer = [3, 4].map(|number| SocketAddr::from(([10, number, 0, 9], 5)));
        let bridges = [11, 12, 13].map(|host| bridge(host, &[1, 2, 3, 4]));
        let over = |way: &Way| way.over(&bridges).into_iter().next().unwrap();
        let all = candidates(&own, &bridges, &peer);
        let chosen = choose(all.clone(), &[], &bridges, true, over);
        assert_eq!(chosen.iter().map(over).collect::<Vec<_>>(), [0, 1, 2, 0]);
        let taken = candidates(&own, &bridges[..1], &peer);
        assert_eq!(taken.len(), ROUTES_MOST);
        let back = choose(free(all, &taken, &bridges, true), &taken, &bridges, true, over);
        assert_eq!(back.iter().map(over).collect::<Vec<_>>(), [1, 2]);
    }

    /// Three addresses of a bridge on one network do not hide those on another.
    #[test]
    fn networks_come_before_aliases() {
        let own = [network(1, 1), network(2, 1)];
        let mut bridge = bridge(11, &[1, 3]);
        bridge.networks.extend([network(1, 12), network(1, 13), network(2, 11)]);
        let peer = [SocketAddr::from(([10, 3, 0, 9], 5))];
        let first_hops: Vec<_> = candidates(&own, &[bridge], &peer)
            .iter()
            .map(|way| way.hops[0].ip().to_string())
            .collect();
        assert_eq!(first_hops, ["10.1.0.11", "10.2.0.11", "10.1.0.12"]);
    }

    /// However many networks there are: each is used before any is used with another one.
    #[test]
    fn networks_that_nobody_uses_go_first() {
        let own = [1, 2, 3].map(|number| network(number, 1));
        let peer = [4, 5].map(|number| SocketAddr::from(([10, number, 0, 9], 5)));
        let bridges = [bridge(11, &[1, 2, 3, 4, 5])];
        let all = candidates(&own, &bridges, &peer);
        let chosen = choose(all, &[], &bridges, true, |_| ());
        let numbers = |way: &Way| {
            let number = |hop: &SocketAddr| match hop.ip() {
                IpAddr::V4(v4) => v4.octets()[1],
                IpAddr::V6(_) => 0,
            };
            way.hops.iter().map(number).collect::<Vec<_>>()
        };
        let numbers: Vec<_> = chosen.iter().map(numbers).collect();
        assert_eq!(numbers, [[1, 4], [2, 5], [3, 4], [1, 5]]);
    }

    /// Whoever has two addresses on a network is called there at the one that answers, also within a network that the
    /// bridge has as part of another.
    #[test]
    fn a_second_address_on_a_network_leads_no_other_way() {
        let peer = [8, 9].map(|host| SocketAddr::from(([10, 2, 0, host], 5)));
        let mut bridge = bridge(11, &[1, 2]);
        let all = Network { address: [10, 200, 0, 1].into(), prefix: 8 };
        bridge.networks.extend([network(1, 12), all]);
        let bridges = [bridge];
        let ways = candidates(&[network(1, 1)], &bridges, &peer);
        assert_eq!(ways.len(), 4);
        for best in &ways {
            let chosen = choose(ways.clone(), &[], &bridges, true, |way| way != best);
            assert_eq!(chosen, std::slice::from_ref(best));
            assert_eq!(choose(ways.clone(), &chosen, &bridges, true, |_| ()), []);
        }
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
        /// passed twice nor one that was to be had sooner, and if there is a way of a permitted length,
        /// one is found, and chosen as long as nothing is measured.
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
            let (ways, all) = (routes(&own, &bridges, &peer), candidates(&own, &bridges, &peer));
            prop_assert!(ways.len() <= ROUTES_MOST && all.len() <= CANDIDATES_MOST);
            prop_assert!(ways.iter().all(|way| all.contains(way)));
            prop_assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])));
            for way in &all {
                let mut networks = own.clone();
                let mut passed = Vec::new();
                let mut before: Vec<Vec<Network>> = Vec::new();
                for hop in &way.hops {
                    prop_assert!(networks.iter().any(|n| n.has(hop.ip())));
                    prop_assert!(networks.iter().all(|n| n.address != hop.ip()));
                    let bridge = bridges.iter().position(|b| b.networks.iter().any(|n| n.address == hop.ip()));
                    if let Some(at) = bridge {
                        prop_assert!(!passed.contains(&at));
                        prop_assert!(!before.iter().any(|networks| reaches(networks, hop.ip())));
                        passed.push(at);
                        before.push(std::mem::replace(&mut networks, bridges[at].networks.clone()));
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

        /// Whatever each way costs, and which are used already: none is chosen twice, nor are there more than there may
        /// be; those with bridges of their own go before the others, of them the least cost first, of equal ones the
        /// shorter, and whichever is left out had no room.
        #[test]
        fn the_least_cost_goes_first(
            places in prop::collection::vec(prop::collection::btree_set(0..5_u8, 2..4), 0..8),
            costs in prop::collection::vec(0..4_u8, CANDIDATES_MOST),
            used in 0..6_usize,
            much in any::<bool>(),
        ) {
            let on: Vec<Vec<u8>> = places.iter().map(|on| on.iter().copied().collect()).collect();
            let bridges: Vec<_> = (10..).zip(&on).map(|(host, on)| bridge(host, on)).collect();
            let peer = [[3, 2], [4, 2], [3, 3]]
                .map(|[number, host]| SocketAddr::from(([10, number, 0, host], 5)));
            let all = candidates(&[network(0, 1), network(1, 1)], &bridges, &peer);
            let cost = |way: &Way| costs[all.iter().position(|other| other == way).unwrap()];
            let dear = |way: &Way| std::cmp::Reverse(cost(way));
            let mut taken = choose(all.clone(), &[], &bridges, true, dear);
            taken.truncate(used);
            let free = free(all.clone(), &taken, &bridges, much);
            let chosen = choose(free.clone(), &taken, &bridges, much, cost);
            let mut using = Using::new(&taken, &bridges, much);
            let mut apart = Vec::new();
            for way in &chosen {
                let is_apart = using.may_have_apart(way);
                prop_assert!(is_apart || using.may_have(way), "no room");
                prop_assert!(!is_apart || apart.len() == using.ways.len() - taken.len());
                using.take(way);
                apart.extend(is_apart.then(|| (cost(way), way.hops.len())));
            }
            prop_assert!(apart.is_sorted() && (much || apart.len() == chosen.len()));
            prop_assert!(using.apart <= ROUTES_MOST && using.ways.len() < 2 * ROUTES_MOST);
            for way in all.iter().filter(|way| !chosen.contains(way)) {
                prop_assert!(!using.may_have_apart(way) && !using.may_have(way));
            }
        }
    }
}
