//! Which networks this node has, and which of a peer's addresses are on them.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use thiserror::Error;

/// An address of a node, and which addresses are on the same network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The node's address there.
    pub address: IpAddr,
    /// How many of its leading bits all addresses of the network have in common.
    pub prefix: u32,
}

/// The networks of a node, as a program divides them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divided {
    /// Those that it uses.
    pub used: Vec<Network>,
    /// Those that it leaves to others.
    pub left: Vec<Network>,
}

/// What is written is no network.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no network: expected ADDRESS/PREFIX, such as 10.1.0.2/24")]
pub struct InvalidNetwork {
    text: String,
}

/// The networks of the interfaces that are up and connected: not that of a cable that is out, nor
/// that of a bridge for containers without any.
///
/// # Errors
/// If the kernel does not say.
pub fn discover() -> io::Result<Vec<Network>> {
    let connected = getifaddrs()?.filter(|interface| is_connected(interface.flags));
    let networks = connected.filter_map(|interface| {
        let address = ip(&interface.address?)?;
        let prefix = bits(ip(&interface.netmask?)?).count_ones();
        // Addresses that only mean something together with an interface's number are no use to
        // other nodes.
        let local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        (!local).then_some(Network { address, prefix })
    });
    Ok(networks.collect())
}

/// Those of a node's networks that are `wanted`: with an address of the node on one of these. All, if none is named; what only
/// means the node itself always.
///
/// # Errors
/// The first of those that are wanted on which the node has no address.
pub fn divide(found: Vec<Network>, wanted: &[Network]) -> Result<Divided, Network> {
    let is_on = |wanted: &Network| found.iter().any(|network| wanted.has(network.address));
    if let Some(missing) = wanted.iter().find(|wanted| !is_on(wanted)) {
        return Err(*missing);
    }
    let is_used = |network: &Network| {
        let is_wanted = wanted.iter().any(|wanted| wanted.has(network.address));
        wanted.is_empty() || is_wanted || network.address.is_loopback()
    };
    let (used, left) = found.into_iter().partition(is_used);
    Ok(Divided { used, left })
}

impl Divided {
    /// As [`candidates`], but for addresses of another node on networks that are left to others.
    pub fn candidates(&self, peer: &[SocketAddr], same_node: bool) -> Vec<SocketAddr> {
        let is_on = |networks: &[Network], ip| networks.iter().any(|network| network.has(ip));
        let mut all = candidates(&self.used, peer, same_node);
        all.retain(|address| {
            same_node || !is_on(&self.left, address.ip()) || is_on(&self.used, address.ip())
        });
        all
    }
}

/// All addresses that this node has, of interfaces as well that are not connected now: they may be again.
///
/// # Errors
/// If the kernel does not say.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    Ok(getifaddrs()?.filter_map(|interface| ip(&interface.address?)).collect())
}

/// The addresses of a peer in the order in which to try them: those on a network of ours, as the
/// peer orders them, then those that may be reached through a router, and last those that this node
/// has too: they lead to another node only if both are on one machine. Addresses that mean the node
/// itself are only for peers on it.
pub fn candidates(own: &[Network], peer: &[SocketAddr], same_node: bool) -> Vec<SocketAddr> {
    let shared = |address: &SocketAddr| own.iter().any(|network| network.has(address.ip()));
    let is_ours = |address: &SocketAddr| !same_node && is_own(own, address.ip());
    let usable = peer.iter().filter(|address| same_node || !address.ip().is_loopback());
    let (ours, others): (Vec<_>, Vec<_>) = usable.copied().partition(is_ours);
    let (near, far): (Vec<_>, Vec<_>) = others.into_iter().partition(shared);
    near.into_iter().chain(far).chain(ours).collect()
}

/// The addresses of a peer on another node that can be reached without a router: one for each network
/// of ours that it is on. One that we have too is none: every host gives its bridge for containers
/// the same. Networks of IPv6 count where there is none of IPv4: most cables have both, and are one network.
pub fn shared(own: &[Network], peer: &[SocketAddr]) -> Vec<SocketAddr> {
    let (of_4, of_6): (Vec<_>, Vec<_>) = own.iter().partition(|own| own.address.is_ipv4());
    let shared = shared_of(&of_4, own, peer);
    if shared.is_empty() { shared_of(&of_6, own, peer) } else { shared }
}

/// The same, of those `networks` of ours.
fn shared_of(networks: &[&Network], own: &[Network], peer: &[SocketAddr]) -> Vec<SocketAddr> {
    let others = networks.iter().filter(|network| !network.address.is_loopback());
    let mut shared: Vec<SocketAddr> = Vec::new();
    for network in others {
        let leads_there = |ip| network.has(ip) && !is_own(own, ip);
        let there = peer.iter().find(|address| leads_there(address.ip()));
        shared.extend(there.filter(|address| !shared.contains(address)));
    }
    shared
}

/// What both ends have beside the networks that they share: those of ours on which no address of the peer is, and the
/// peer's addresses that are on none of ours.
pub fn apart(own: &[Network], peer: &[SocketAddr]) -> (Vec<Network>, Vec<SocketAddr>) {
    let is_on = |network: &Network, address: &SocketAddr| network.has(address.ip());
    let (mut networks, mut addresses) = (own.to_vec(), peer.to_vec());
    networks.retain(|network| !peer.iter().any(|address| is_on(network, address)));
    addresses.retain(|address| !own.iter().any(|network| is_on(network, address)));
    (networks, addresses)
}

/// Whether a node on these networks has this address itself.
pub fn is_own(own: &[Network], address: IpAddr) -> bool {
    own.iter().any(|network| network.address == address)
}

/// Whether a node on these networks reaches another one at this address without a router. At an
/// address that it has itself it reaches nobody else.
pub fn reaches(own: &[Network], address: IpAddr) -> bool {
    own.iter().any(|network| network.has(address)) && !is_own(own, address)
}

impl Network {
    /// Whether another address of a node is on the same one.
    pub fn is_same(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.has(other.address)
    }

    /// Whether an address is on it.
    pub fn has(&self, other: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == other.is_ipv4();
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        let differing = bits(self.address) ^ bits(other);
        same_family && differing.checked_shr(width - self.prefix.min(width)).unwrap_or(0) == 0
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let (address, prefix): (IpAddr, u32) = (address.parse().ok()?, prefix.parse().ok()?);
            let most = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= most).then_some(Self { address, prefix })
        };
        parse().ok_or_else(|| InvalidNetwork { text: text.into() })
    }
}

/// Whether an interface is up and connected. Loopback and dummies always are. The kernel gives the
/// second sign at once, the first a moment after an interface is set up.
fn is_connected(flags: InterfaceFlags) -> bool {
    let signs = InterfaceFlags::IFF_RUNNING | InterfaceFlags::IFF_LOWER_UP;
    flags.contains(InterfaceFlags::IFF_UP) && flags.intersects(signs)
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_program_uses_the_networks_that_are_named() {
        let networks = |texts: &[&str]| -> Vec<Network> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let found = networks(&["127.0.0.1/8", "10.1.0.2/16", "10.2.0.2/16", "fd00::2/64"]);
        let divided = |wanted: &[&str]| divide(found.clone(), &networks(wanted));
        let all = divided(&[]).unwrap();
        assert_eq!((&all.used, all.left.len()), (&found, 0));
        let some = divided(&["10.2.0.0/16", "fd00::/48"]).unwrap();
        assert_eq!(some.used, networks(&["127.0.0.1/8", "10.2.0.2/16", "fd00::2/64"]));
        assert_eq!(divided(&["10.2.0.0/16", "10.3.0.0/16"]), Err("10.3.0.0/16".parse().unwrap()));
        let peer =
            ["10.1.0.3:1", "10.2.0.3:1", "10.4.0.3:1", "[fd00::3]:1"].map(|a| a.parse().unwrap());
        let called = |divided: &Divided, same_node| {
            let all = divided.candidates(&peer, same_node);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(called(&some, false), ["10.2.0.3:1", "[fd00::3]:1", "10.4.0.3:1"]);
        assert_eq!(called(&all, false), ["10.1.0.3:1", "10.2.0.3:1", "[fd00::3]:1", "10.4.0.3:1"]);
        // It is this node's own, and goes over no network.
        assert_eq!(called(&some, true).len(), 4);
    }

    #[test]
    fn shared_networks_go_first_and_loopback_stays_at_home() {
        let network = |address: &str, prefix| Network { address: address.parse().unwrap(), prefix };
        let own = [network("127.0.0.1", 8), network("10.2.0.1", 16), network("fd00::1", 64)];
        let peer: Vec<SocketAddr> =
            ["127.0.0.1:1", "10.1.0.2:1", "10.2.9.9:1", "[fd00::7]:1", "[fd01::7]:1"]
                .map(|a| a.parse().unwrap())
                .to_vec();
        let texts = |same| -> Vec<String> {
            candidates(&own, &peer, same).iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(false), ["10.2.9.9:1", "[fd00::7]:1", "10.1.0.2:1", "[fd01::7]:1"]);
        assert_eq!(texts(true)[0], "127.0.0.1:1");
    }

    #[test]
    fn each_shared_network_counts_once() {
        let own: Vec<Network> =
            ["127.0.0.1/8", "10.1.0.1/24", "10.2.0.1/24"].map(|n| n.parse().unwrap()).to_vec();
        let peer: Vec<SocketAddr> =
            ["127.0.0.1:1", "10.1.0.2:1", "10.1.0.3:1", "10.2.0.2:1", "10.3.0.2:1"]
                .map(|a| a.parse().unwrap())
                .to_vec();
        assert_eq!(shared(&own, &peer), [peer[1], peer[3]]);
        assert_eq!(own[1].to_string(), "10.1.0.1/24");
        for text in ["10.1.0.1", "10.1.0.1/33", "x/8", "fd00::1/129"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    /// A cable with addresses of both kinds is one network.
    #[test]
    fn networks_of_ipv6_are_shared_where_none_of_ipv4_is() {
        let own: [Network; 4] = ["172.17.0.1/16", "10.1.0.1/24", "fd01::1/64", "fd02::1/64"]
            .map(|network| network.parse().unwrap());
        let peer: [SocketAddr; 4] = ["172.17.0.1:1", "10.1.0.2:1", "[fd01::2]:1", "[fd02::2]:1"]
            .map(|a| a.parse().unwrap());
        assert_eq!(shared(&own, &peer), [peer[1]]);
        let apart = ["172.17.0.1:1", "10.3.0.2:1", "[fd01::2]:1", "[fd02::2]:1"];
        assert_eq!(shared(&own, &apart.map(|a| a.parse().unwrap())), peer[2..]);
    }

    /// Two hosts with a bridge for containers, on one network and on none: the bridge is no way.
    #[test]
    fn what_both_ends_have_is_shared_by_none_and_tried_last() {
        let own: Vec<Network> =
            ["127.0.0.1/8", "172.17.0.1/16", "10.1.0.1/24"].map(|n| n.parse().unwrap()).to_vec();
        let peer = |address: &str| -> Vec<SocketAddr> {
            ["127.0.0.1:1", "172.17.0.1:1", address].map(|a| a.parse().unwrap()).to_vec()
        };
        let (near, far) = (peer("10.1.0.2:1"), peer("10.3.0.2:1"));
        assert_eq!(shared(&own, &near), [near[2]]);
        assert!(shared(&own, &far).is_empty());
        assert_eq!(candidates(&own, &near, false), [near[2], near[1]]);
        assert_eq!(candidates(&own, &far, false), [far[2], far[1]]);
    }

    /// Each on one of its own, both on another, and both with a bridge for containers.
    #[test]
    fn what_is_not_shared_is_left() {
        let own: [Network; 3] =
            ["172.17.0.1/16", "10.1.0.1/24", "10.2.0.1/24"].map(|n| n.parse().unwrap());
        let peer: [SocketAddr; 3] =
            ["172.17.0.1:1", "10.1.0.2:1", "10.3.0.2:1"].map(|a| a.parse().unwrap());
        assert_eq!(apart(&own, &peer), (vec![own[2]], vec![peer[2]]));
        assert_eq!(apart(&own[..2], &peer[..2]), (Vec::new(), Vec::new()));
    }

    proptest! {
        /// Whatever addresses both ends have: for each network there is the first one that is the
        /// peer's alone, if there is any.
        #[test]
        fn shared_networks_lead_to_the_peer(
            own in prop::collection::btree_set((0..4_u8, 1..4_u8), 0..6),
            peer in prop::collection::btree_set((0..4_u8, 1..4_u8), 0..6),
        ) {
            let socket = |(number, host): (u8, u8)| SocketAddr::from(([10, number, 0, host], 1));
            let networks: Vec<_> = own
                .iter()
                .map(|place| Network { address: socket(*place).ip(), prefix: 24 })
                .collect();
            let addresses: Vec<_> = peer.iter().map(|place| socket(*place)).collect();
            let numbers: BTreeSet<u8> = own.iter().map(|place| place.0).collect();
            let wanted: Vec<_> = numbers
                .into_iter()
                .filter_map(|number| peer.difference(&own).find(|place| place.0 == number))
                .map(|place| socket(*place))
                .collect();
            prop_assert_eq!(shared(&networks, &addresses), wanted);
        }
    }

    #[test]
    fn an_interface_counts_if_it_is_up_and_connected() {
        let (up, running) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_RUNNING);
        let carrier = InterfaceFlags::IFF_LOWER_UP;
        for flags in [up | running, up | carrier, up | running | carrier] {
            assert!(is_connected(flags), "{flags:?}");
        }
        for flags in [up, running | carrier, InterfaceFlags::empty()] {
            assert!(!is_connected(flags), "{flags:?}");
        }
    }

    #[test]
    fn this_machine_has_a_network() {
        let (networks, all) = (discover().unwrap(), addresses().unwrap());
        assert!(networks.iter().any(|network| network.address.is_loopback()));
        assert!(networks.iter().all(|network| all.contains(&network.address)));
    }
}
