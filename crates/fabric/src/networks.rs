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

/// What is written is no network.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no network: expected ADDRESS/PREFIX, such as 10.1.0.2/24")]
pub struct InvalidNetwork {
    text: String,
}

/// The networks of the interfaces that are up.
///
/// # Errors
/// If the kernel does not say.
pub fn discover() -> io::Result<Vec<Network>> {
    let up = getifaddrs()?.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let networks = up.filter_map(|interface| {
        let address = ip(&interface.address?)?;
        let prefix = bits(ip(&interface.netmask?)?).count_ones();
        // Addresses that only mean something together with an interface's number are no use to
        // other nodes.
        let local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        (!local).then_some(Network { address, prefix })
    });
    Ok(networks.collect())
}

/// The addresses of a peer in the order in which to try them: those on a network of ours, as the
/// peer orders them, then those that may be reached through a router. Addresses that mean the node
/// itself are only for peers on it.
pub fn candidates(own: &[Network], peer: &[SocketAddr], same_node: bool) -> Vec<SocketAddr> {
    let shared = |address: &SocketAddr| own.iter().any(|network| network.has(address.ip()));
    let usable = peer.iter().filter(|address| same_node || !address.ip().is_loopback());
    let (near, far): (Vec<_>, Vec<_>) = usable.copied().partition(shared);
    near.into_iter().chain(far).collect()
}

/// The addresses of a peer on another node that can be reached without a router: one for each network
/// of ours that it is on.
pub fn shared(own: &[Network], peer: &[SocketAddr]) -> Vec<SocketAddr> {
    let others = own.iter().filter(|network| !network.address.is_loopback());
    let mut shared: Vec<SocketAddr> = Vec::new();
    for network in others {
        let there = peer.iter().find(|address| network.has(address.ip()));
        shared.extend(there.filter(|address| !shared.contains(address)));
    }
    shared
}

impl Network {
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

    #[test]
    fn this_machine_has_a_network() {
        assert!(discover().unwrap().iter().any(|network| network.address.is_loopback()));
    }
}
