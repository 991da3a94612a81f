//! How many connections an address has.

use super::ip;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All that have one.
#[derive(Debug)]
pub(super) struct Peers {
    of_peer_max: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// The place of one connection: given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    peers: Arc<Peers>,
    peer: IpAddr,
}

impl Peers {
    pub fn new(of_peer_max: usize) -> Self {
        Self { of_peer_max, open: Mutex::default() }
    }

    /// A place for one more connection from `address`, if there is one.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let peer = peer(address);
        let mut open = self.lock();
        let count = open.entry(peer).or_default();
        if *count >= self.of_peer_max {
            return None;
        }
        *count += 1;
        Some(Seat { peers: Arc::clone(self), peer })
    }

    /// Counts are whole whenever this is unlocked.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.peers.lock();
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
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
        let peers = Arc::new(Peers::new(2));
        let enter = |text: &str| peers.enter(text.parse().unwrap());
        let (first, second) = (enter("10.0.0.1"), enter("::ffff:10.0.0.1"));
        assert!(first.is_some() && second.is_some() && enter("10.0.0.1").is_none());
        assert!(enter("10.0.0.2").is_some(), "others are not concerned");
        drop(second);
        assert!(enter("10.0.0.1").is_some());
        let network = (enter("fd00::1"), enter("fd00::2"));
        assert!(network.1.is_some() && enter("fd00::3").is_none());
        drop((first, network));
        assert!(peers.lock().is_empty());
    }
}
