//! Virtual Ethernet: switches (bridges), cables (veth pairs), addresses and routes as requests for
//! [`Socket::batch`](crate::netlink::Socket::batch). Pure.
//!
//! The caller chooses the interface numbers: in a namespace of its own they are all free, and a
//! whole network is made by one batch without asking for numbers in between.

use crate::netlink::{NetlinkError, Socket};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::net::{IpAddr, Ipv4Addr};

/// A request and its flags.
pub type Request = (RouteNetlinkMessage, u16);

/// One end of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End<'a> {
    /// The interface's name there, at most 15 bytes.
    pub name: &'a str,
    /// Its number there.
    pub ifindex: u32,
    /// The process in whose network namespace it is; nothing = the socket's.
    pub process: Option<i32>,
    /// Bytes of a packet.
    pub mtu: u32,
}

/// A network's address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Its first address.
    pub address: Ipv4Addr,
    /// Bits that all its addresses share.
    pub prefix: u8,
}

/// The number of the loopback interface, in every namespace.
pub const LOOPBACK: u32 = 1;

impl Network {
    /// The network with `prefix` bits that `address` is in.
    pub fn of(address: Ipv4Addr, prefix: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        Self { address: Ipv4Addr::from(u32::from(address) & mask), prefix }
    }

    /// True if it has `address`.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        Self::of(address, self.prefix) == *self
    }

    /// True if `address` can be given to a node: not the first or the last.
    pub fn has_host(&self, address: Ipv4Addr) -> bool {
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        let host = u32::from(address) & hosts;
        self.contains(address) && host != 0 && host != hosts
    }
}

/// A switch that learns where addresses are and asks nobody else: no spanning tree, no multicast
/// groups.
pub fn add_bridge(name: &str, ifindex: u32) -> Request {
    let options = vec![InfoBridge::MulticastSnooping(false)];
    let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(options))];
    let mut link = named(name, ifindex);
    link.attributes.push(LinkAttribute::LinkInfo(info));
    up(&mut link);
    (RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
}

/// A cable. Both ends are still down.
pub fn add_cable(one: &End<'_>, other: &End<'_>) -> Request {
    let peer = InfoData::Veth(InfoVeth::Peer(end_message(other)));
    let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(peer)];
    let mut link = end_message(one);
    link.attributes.push(LinkAttribute::LinkInfo(info));
    (RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
}

/// Plugs an interface into a bridge.
pub fn plug(ifindex: u32, bridge: u32) -> Request {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::Controller(bridge));
    (RouteNetlinkMessage::SetLink(link), 0)
}

/// Switches an interface on.
pub fn set_up(ifindex: u32) -> Request {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    up(&mut link);
    (RouteNetlinkMessage::SetLink(link), 0)
}

/// Limits what is handed to an interface at once: greater pieces are cut before. The kernel refuses
/// more than 64 KiB on most devices.
pub fn set_segment_max(ifindex: u32, bytes: u32) -> Request {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::GsoMaxSize(bytes));
    (RouteNetlinkMessage::SetLink(link), 0)
}

/// Limits how many segments are handed to an interface at once; nothing = as many as there is room for.
/// Connections that are made later obey.
pub fn set_segments_max(ifindex: u32, segments: Option<u16>) -> Request {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    let segments = segments.map_or(u32::from(u16::MAX), u32::from);
    link.attributes.push(LinkAttribute::GsoMaxSegs(segments));
    (RouteNetlinkMessage::SetLink(link), 0)
}

/// Gives an interface an address, without the route that the kernel would add by itself.
pub fn add_address(ifindex: u32, address: Ipv4Addr, prefix: u8) -> Request {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: AddressFamily::Inet,
        prefix_len: prefix,
        scope: AddressScope::Universe,
        index: ifindex,
        ..AddressHeader::default()
    };
    message.attributes = vec![
        AddressAttribute::Local(IpAddr::V4(address)),
        AddressAttribute::Address(IpAddr::V4(address)),
        AddressAttribute::Flags(AddressFlags::Noprefixroute),
    ];
    (RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Reaches a network directly by an interface. TCP connections there use `congestion_control`,
/// whatever the machine's default is: that of a child namespace cannot be set.
pub fn add_route(
    ifindex: u32,
    network: Network,
    source: Ipv4Addr,
    congestion_control: &str,
) -> Request {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        destination_prefix_length: network.prefix,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Link,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![
        RouteAttribute::Destination(network.address.into()),
        RouteAttribute::PrefSource(source.into()),
        RouteAttribute::Oif(ifindex),
        RouteAttribute::Metrics(vec![RouteMetric::CcAlgo(congestion_control.into())]),
    ];
    (RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// The names and numbers of all interfaces of the socket's namespace.
///
/// # Errors
/// See [`NetlinkError`].
pub fn interfaces(socket: &mut Socket) -> Result<Vec<(String, u32)>, NetlinkError> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let replies = socket.request(request, netlink_packet_core::NLM_F_DUMP)?;
    let described = replies.into_iter().filter_map(|reply| match reply {
        RouteNetlinkMessage::NewLink(link) => {
            let name = link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            });
            Some((name?, link.header.index))
        }
        _ => None,
    });
    Ok(described.collect())
}

fn named(name: &str, ifindex: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::IfName(name.into()));
    link
}

fn end_message(end: &End<'_>) -> LinkMessage {
    let mut link = named(end.name, end.ifindex);
    link.attributes.push(LinkAttribute::Mtu(end.mtu));
    if let Some(pid) = end.process {
        link.attributes.push(LinkAttribute::NetNsPid(pid as u32));
    }
    link
}

fn up(link: &mut LinkMessage) {
    link.header.flags |= LinkFlags::Up;
    link.header.change_mask |= LinkFlags::Up;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_network_namespace;
    use proptest::prelude::*;

    #[test]
    fn a_small_network_is_made_by_one_batch() {
        in_network_namespace(&[], || {
            let mut socket = Socket::open().unwrap();
            let end = |name, ifindex| End { name, ifindex, process: None, mtu: 1500 };
            let address = Ipv4Addr::new(10, 75, 0, 1);
            let network = Network::of(address, 16);
            let requests = [
                add_bridge("br2", 20),
                add_cable(&end("p0", 30), &end("p1", 31)),
                plug(30, 20),
                set_up(30),
                set_up(31),
                add_address(31, address, 16),
                add_route(31, network, address, "cubic"),
            ];
            socket.batch(&requests).unwrap();
            let found = interfaces(&mut socket).unwrap();
            for wanted in [("br2", 20), ("p0", 30), ("p1", 31)] {
                assert!(found.contains(&(wanted.0.into(), wanted.1)), "{found:?}");
            }
            let error = socket.batch(&[add_bridge("br2", 21)]).unwrap_err().to_string();
            assert!(error.contains("RTM_NEWLINK of interface br2"), "{error}");
        });
    }

    proptest! {
        #[test]
        fn a_network_has_the_addresses_that_share_its_prefix(address: u32, prefix in 0u8..=32) {
            let address = Ipv4Addr::from(address);
            let network = Network::of(address, prefix);
            prop_assert!(network.contains(address) && network.contains(network.address));
            prop_assert!(!network.has_host(network.address));
        }
    }
}
