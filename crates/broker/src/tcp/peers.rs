//! How many connections an address has.

use super::ip;
use keeptime_agent::seats::{Seat, Seats};
use std::net::{IpAddr, Ipv6Addr};

/// All that have one.
#[derive(Debug)]
pub(super) struct Peers(Seats<IpAddr>);

impl Peers {
    pub fn new(of_peer_max: usize) -> Self {
        Self(Seats::new(of_peer_max))
    }

    /// A place for one more connection from `address`, if there is one.
    pub fn enter(&self, address: IpAddr) -> Option<Seat<IpAddr>> {
        self.0.take(peer(address))
    }
}

/// Who counts as one: with IPv6 a network of 64 bits, which one machine can have all to itself.
fn peer(address: IpAddr) -> IpAddr {
    match ip(address) {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_their_share_and_places_are_given_back() {
        let peers = Peers::new(2);
        let enter = |text: &str| peers.enter(text.parse().unwrap());
        let (first, second) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(first.is_some() && second.is_some() && enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some(), "others are not concerned");
        drop(second);
        assert!(enter("10.0.0.1").is_some());
        let network = (enter("fd00::1"), enter("fd00::2"));
        assert!(network.1.is_some() && enter("fd00::3").is_none());
        drop((first, network));
        assert!(peers.0.are_empty());
    }
}
