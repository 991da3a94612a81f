//! What passed, was dropped and was held back, by class. Counters only grow, and start at 0 with the class.

use crate::netlink::{NetlinkError, RawReply, Socket};
use crate::tc::{Handle, attributes, dump, u32_of, u64_of};
use netlink_packet_route::RouteNetlinkMessage as M;
use netlink_packet_route::tc::TcMessage;
use std::collections::BTreeMap;

/// What happened in one class since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounters {
    /// Sent, headers included.
    pub bytes: u64,
    /// Sent, as the wire has them.
    pub packets: u64,
    /// Did not fit into the queue.
    pub drops: u64,
    /// How often the class had to wait for its rate.
    pub overlimits: u64,
    /// Waiting now.
    pub backlog_bytes: u64,
}

/// Counters of the classes of the tree with handle `major`, by minor number. One system call for
/// each 32 KiB of classes.
///
/// # Errors
/// See [`NetlinkError`].
pub fn class_counters(
    socket: &mut Socket,
    ifindex: u32,
    major: u16,
) -> Result<BTreeMap<u16, ClassCounters>, NetlinkError> {
    let request = M::GetTrafficClass(TcMessage::with_index(ifindex.cast_signed()));
    let classes = dump(socket, &request)?;
    let ours = classes.iter().filter_map(class_of).filter(|(handle, _)| handle.major == major);
    Ok(ours.map(|(handle, counters)| (handle.minor, counters)).collect())
}

fn class_of(reply: &RawReply) -> Option<(Handle, ClassCounters)> {
    let handle = Handle::from_u32(u32_of(&reply.payload, TCMSG_HANDLE_AT)?);
    let stats = attributes(reply.payload.get(TCMSG_BYTES..)?)
        .find(|(kind, _)| *kind == TCA_STATS2)
        .map(|(_, value)| value)?;
    let mut counters = ClassCounters::default();
    for (kind, value) in attributes(stats) {
        match kind {
            TCA_STATS_BASIC => {
                counters.bytes = u64_of(value, 0)?;
                // Overtaken by the 64-bit attribute where there is one.
                counters.packets = counters.packets.max(u64::from(u32_of(value, 8)?));
            }
            TCA_STATS_PKT64 => counters.packets = u64_of(value, 0)?,
            TCA_STATS_QUEUE => {
                counters.backlog_bytes = u64::from(u32_of(value, 4)?);
                counters.drops = u64::from(u32_of(value, 8)?);
                counters.overlimits = u64::from(u32_of(value, 16)?);
            }
            _ => {}
        }
    }
    Some((handle, counters))
}

const TCMSG_BYTES: usize = 20;
const TCMSG_HANDLE_AT: usize = 8;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;
