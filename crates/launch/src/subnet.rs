//! A network by the addresses that are on it (pure).

use std::fmt;
use std::net::Ipv4Addr;

/// `ADDRESS/PREFIX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// Its first address.
    pub address: Ipv4Addr,
    /// How many leading bits all its addresses have in common.
    pub prefix: u8,
}

impl Subnet {
    /// The smallest that has all of `addresses`; nothing if there is none.
    ///
    /// Of each machine it has that interface by which the others know it, which is all that programs want of
    /// a subnet that they are told: what the network's administrator calls the subnet is not known here.
    pub fn covering(addresses: impl IntoIterator<Item = Ipv4Addr>) -> Option<Self> {
        let mut addresses = addresses.into_iter().map(u32::from);
        let first = addresses.next()?;
        let prefix = addresses.map(|other| (first ^ other).leading_zeros()).min().unwrap_or(32);
        let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
        Some(Self { address: Ipv4Addr::from(first & mask), prefix: prefix as u8 })
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_has_all() {
        let covering = |texts: &[&str]| {
            let subnet = Subnet::covering(texts.iter().map(|text| text.parse().unwrap()));
            subnet.map(|subnet| subnet.to_string()).unwrap_or_default()
        };
        assert_eq!(covering(&["10.0.0.1", "10.0.0.2"]), "10.0.0.0/30");
        assert_eq!(covering(&["10.0.0.1", "10.0.0.254", "10.0.1.9"]), "10.0.0.0/23");
        assert_eq!(covering(&["10.0.0.9"]), "10.0.0.9/32");
        assert_eq!(covering(&["10.0.0.9", "192.168.0.1"]), "0.0.0.0/0");
        assert_eq!(covering(&[]), "");
    }
}
