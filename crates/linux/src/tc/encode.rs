//! One [`Op`] as one netlink message. The typed encoders of the netlink crate know none of these
//! kinds, so their options go as raw attributes; layouts: include/uapi/linux/pkt_sched.h and
//! pkt_cls.h.

use super::ticks::{burst_ticks, rate_bytes, rate_field};
use super::{Class, Filter, Handle, Match, Op, Place, QUEUE_MAJOR, Queue, Shaper};
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as M;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

/// The message that carries out `op` at `place`, and its flags.
pub(super) fn encode(place: &Place, op: &Op) -> (M, u16) {
    let add = NLM_F_CREATE | NLM_F_EXCL;
    let class = |minor| Handle { major: place.major, minor };
    let itself = class(0);
    let parent = place.attach.parent();
    match *op {
        Op::AddTree { default_minor } => {
            let options = htb_qdisc(default_minor);
            // In place of the kernel's default or of the queue that we left.
            let flags = NLM_F_CREATE | NLM_F_REPLACE;
            (M::NewQueueDiscipline(message(place, itself, parent, "htb", options)), flags)
        }
        Op::AddClass(minor, ref wanted) => {
            let above = class(wanted.parent);
            (M::NewTrafficClass(message(place, class(minor), above, "htb", htb_class(wanted))), add)
        }
        Op::ChangeClass(minor, ref wanted) => {
            let above = class(wanted.parent);
            (M::NewTrafficClass(message(place, class(minor), above, "htb", htb_class(wanted))), 0)
        }
        Op::RemoveClass(minor) => (M::DelTrafficClass(header(place, class(minor), class(0))), 0),
        Op::SetQueue(minor, queue) => {
            let (kind, limit) = match queue {
                Queue::Bytes(limit) => ("bfifo", limit),
                Queue::Packets(limit) => ("pfifo", limit),
            };
            let mut tc = header(place, Handle::default(), class(minor));
            tc.attributes.push(TcAttribute::Kind(kind.into()));
            tc.attributes.push(TcAttribute::Other(nla(TCA_OPTIONS, limit.to_ne_bytes())));
            (M::NewQueueDiscipline(tc), NLM_F_CREATE | NLM_F_REPLACE)
        }
        Op::RemoveQueue(minor) => {
            (M::DelQueueDiscipline(header(place, Handle::default(), class(minor))), 0)
        }
        Op::AddFilter(priority, ref filter) => {
            let target = class(filter.minor);
            let mut tc =
                message(place, Handle::default(), itself, "u32", u32_filter(filter, target));
            tc.header.info = filter_info(priority, filter.matches);
            (M::NewTrafficFilter(tc), add)
        }
        Op::RemoveFilter(priority, matches) => {
            let mut tc = header(place, Handle::default(), itself);
            tc.header.info = filter_info(priority, matches);
            (M::DelTrafficFilter(tc), 0)
        }
        Op::SetShaper(ref shaper) => {
            let tc = message(place, itself, parent, "tbf", tbf(shaper));
            (M::NewQueueDiscipline(tc), NLM_F_CREATE | NLM_F_REPLACE)
        }
        Op::ReplaceByQueue(limit) => {
            let mut tc = header(place, Handle { major: QUEUE_MAJOR, minor: 0 }, parent);
            tc.attributes.push(TcAttribute::Kind("bfifo".into()));
            tc.attributes.push(TcAttribute::Other(nla(TCA_OPTIONS, limit.to_ne_bytes())));
            (M::NewQueueDiscipline(tc), NLM_F_CREATE | NLM_F_REPLACE)
        }
        Op::RemovePlace => (M::DelQueueDiscipline(header(place, itself, parent)), 0),
    }
}

pub(super) fn header(place: &Place, handle: Handle, parent: Handle) -> TcMessage {
    // Interface numbers are positive 32-bit integers in the kernel.
    let mut tc = TcMessage::with_index(place.ifindex.cast_signed());
    tc.header.handle = TcHandle { major: handle.major, minor: handle.minor };
    tc.header.parent = TcHandle { major: parent.major, minor: parent.minor };
    tc
}

pub(super) fn message(
    place: &Place,
    handle: Handle,
    parent: Handle,
    kind: &str,
    options: Vec<DefaultNla>,
) -> TcMessage {
    let mut tc = header(place, handle, parent);
    tc.attributes.push(TcAttribute::Kind(kind.into()));
    let options = options.into_iter().map(TcOption::Other).collect();
    tc.attributes.push(TcAttribute::Options(options));
    tc
}

pub(super) fn nla(kind: u16, value: impl Into<Vec<u8>>) -> DefaultNla {
    DefaultNla::new(kind, value.into())
}

/// Priority and protocol of a filter in one word.
pub(super) const fn info_word(priority: u16, protocol: u16) -> u32 {
    (priority as u32) << 16 | protocol.to_be() as u32
}

fn filter_info(priority: u16, matches: Match) -> u32 {
    info_word(
        priority,
        match matches {
            Match::Dscp(_) => ETH_P_IP,
            Match::Arp => ETH_P_ARP,
        },
    )
}

/// `struct tc_htb_glob`: version, rate to quantum, default class, debug, direct packets.
fn htb_qdisc(default_minor: u16) -> Vec<DefaultNla> {
    let glob = words(&[HTB_VERSION, HTB_RATE_TO_QUANTUM, u32::from(default_minor), 0, 0]);
    vec![nla(TCA_HTB_INIT, glob)]
}

/// `struct tc_htb_opt` and the wide rates.
fn htb_class(class: &Class) -> Vec<DefaultNla> {
    let (rate, ceil) = (rate_bytes(class.rate), rate_bytes(class.ceil));
    let (prio, quantum) =
        class.leaf.map_or((0, INNER_QUANTUM), |leaf| (u32::from(leaf.prio), leaf.quantum));
    let mut parms = Vec::with_capacity(HTB_OPT_BYTES);
    parms.extend(rate_spec(rate));
    parms.extend(rate_spec(ceil));
    let buffers = [burst_ticks(class.burst, rate), burst_ticks(class.cburst, ceil)];
    parms.extend(words(&[buffers[0], buffers[1], quantum, 0, prio]));
    let mut options = vec![nla(TCA_HTB_PARMS, parms)];
    options.extend(wide(TCA_HTB_RATE64, rate));
    options.extend(wide(TCA_HTB_CEIL64, ceil));
    options
}

/// `struct tc_tbf_qopt` and the wide rate. The burst goes as ticks only, so that it is read back
/// as it was written.
fn tbf(shaper: &Shaper) -> Vec<DefaultNla> {
    let rate = rate_bytes(shaper.rate);
    let mut parms = Vec::from(rate_spec(rate));
    parms.extend([0; RATE_SPEC_BYTES]);
    parms.extend(words(&[shaper.limit, burst_ticks(shaper.burst, rate), 0]));
    let mut options = vec![nla(TCA_TBF_PARMS, parms)];
    options.extend(wide(TCA_TBF_RATE64, rate));
    options
}

/// `struct tc_ratespec`: cell_log, linklayer, overhead, cell_align, mpu, rate. With the link
/// layer named the kernel needs no rate tables (`qdisc_get_rtab` is for `TC_LINKLAYER_UNAWARE`).
fn rate_spec(bytes_per_second: u64) -> [u8; RATE_SPEC_BYTES] {
    let mut spec = [0; RATE_SPEC_BYTES];
    spec[1] = TC_LINKLAYER_ETHERNET;
    spec[8..].copy_from_slice(&rate_field(bytes_per_second).to_ne_bytes());
    spec
}

fn wide(kind: u16, bytes_per_second: u64) -> Option<DefaultNla> {
    (bytes_per_second > u64::from(u32::MAX)).then(|| nla(kind, bytes_per_second.to_ne_bytes()))
}

/// Class id, and `struct tc_u32_sel` with one key on the first word of the network header.
fn u32_filter(filter: &Filter, target: Handle) -> Vec<DefaultNla> {
    let (value, mask) = match filter.matches {
        Match::Dscp(dscp) => (u32::from(dscp) << 18, 0x00fc_0000u32),
        Match::Arp => (0, 0),
    };
    let mut selector = vec![TC_U32_TERMINAL, 0, 1, 0];
    selector.extend([0; 12]);
    selector.extend(mask.to_be_bytes());
    selector.extend(value.to_be_bytes());
    selector.extend([0; 8]);
    vec![nla(TCA_U32_CLASSID, target.to_u32().to_ne_bytes()), nla(TCA_U32_SEL, selector)]
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub(super) const ETH_P_ALL: u16 = 0x0003;
pub(super) const ETH_P_IP: u16 = 0x0800;
pub(super) const ETH_P_ARP: u16 = 0x0806;

pub(super) const TCA_OPTIONS: u16 = 2;
pub(super) const TCA_HTB_PARMS: u16 = 1;
pub(super) const TCA_HTB_INIT: u16 = 2;
pub(super) const TCA_HTB_RATE64: u16 = 6;
pub(super) const TCA_HTB_CEIL64: u16 = 7;
pub(super) const TCA_TBF_PARMS: u16 = 1;
pub(super) const TCA_TBF_RATE64: u16 = 4;
pub(super) const TCA_U32_CLASSID: u16 = 1;
pub(super) const TCA_U32_SEL: u16 = 5;
pub(super) const TC_U32_TERMINAL: u8 = 1;

const HTB_VERSION: u32 = 3;
/// Only used for classes without a quantum of their own, of which we make none.
const HTB_RATE_TO_QUANTUM: u32 = 10;
/// Inner classes take no turns, but the kernel computes one from the rate, and complains in its
/// log about great ones, unless one is given.
const INNER_QUANTUM: u32 = 30_000;
const TC_LINKLAYER_ETHERNET: u8 = 1;
pub(super) const RATE_SPEC_BYTES: usize = 12;
pub(super) const HTB_OPT_BYTES: usize = 44;

#[cfg(test)]
mod tests {
    use super::super::{Attach, Leaf};
    use super::*;
    use keeptime_model::units::{BitsPerSecond, Bytes};
    use netlink_packet_core::Emitable;

    const PLACE: Place = Place { ifindex: 3, attach: Attach::Root, major: 0x4b54 };

    fn bytes_of(op: Op) -> Vec<u8> {
        let (message, _) = encode(&PLACE, &op);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    // Written by hand from include/uapi/linux/{rtnetlink,pkt_sched}.h; the privileged tests show
    // that the kernel reads them in the same way.
    #[test]
    #[cfg(target_endian = "little")]
    #[rustfmt::skip]
    fn a_class_is_these_bytes() {
        let class = Class {
            parent: 1,
            rate: BitsPerSecond::from_mbit(80),
            ceil: BitsPerSecond::from_mbit(40_000),
            burst: Bytes::new(20_000),
            cburst: Bytes::new(10_000_000),
            leaf: Some(Leaf { prio: 2, quantum: 3_000, queue: None }),
        };
        assert_eq!(bytes_of(Op::AddClass(0x10, class)), [
            0, 0, 0, 0,  3, 0, 0, 0,  0x10, 0, 0x54, 0x4b,  1, 0, 0x54, 0x4b,  0, 0, 0, 0,
            8, 0, 1, 0,  b'h', b't', b'b', 0,
            64, 0, 2, 0, // TCA_OPTIONS
            48, 0, 1, 0, // TCA_HTB_PARMS
            0, 1, 0, 0,  0, 0, 0, 0,  0x80, 0x96, 0x98, 0x00, // 10,000,000 bytes/s, Ethernet
            0, 1, 0, 0,  0, 0, 0, 0,  0xff, 0xff, 0xff, 0xff, // more than 32 bits hold
            0x12, 0x7a, 0, 0,  0x12, 0x7a, 0, 0, // 31,250 ticks each: 2 ms
            0xb8, 0x0b, 0, 0,  0, 0, 0, 0,  2, 0, 0, 0,
            12, 0, 7, 0,  0x00, 0xf2, 0x05, 0x2a, 1, 0, 0, 0, // TCA_HTB_CEIL64: 5,000,000,000
        ]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    #[rustfmt::skip]
    fn a_filter_is_these_bytes() {
        let filter = Filter { matches: Match::Dscp(46), minor: 4 };
        assert_eq!(bytes_of(Op::AddFilter(1, filter)), [
            0, 0, 0, 0,  3, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0x54, 0x4b,  0x08, 0x00, 1, 0,
            8, 0, 1, 0,  b'u', b'3', b'2', 0,
            48, 0, 2, 0,
            8, 0, 1, 0,  4, 0, 0x54, 0x4b,
            36, 0, 5, 0,  1, 0, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
            0x00, 0xfc, 0x00, 0x00,  0x00, 0xb8, 0x00, 0x00,  0, 0, 0, 0,  0, 0, 0, 0,
        ]);
    }
}
