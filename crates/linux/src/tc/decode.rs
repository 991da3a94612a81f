//! What the kernel says about traffic control, as values. Reads raw attributes: a queueing
//! discipline of somebody else, of whatever kind, is named and does not spoil the rest.

use super::encode::{
    ETH_P_ALL, ETH_P_ARP, ETH_P_IP, HTB_OPT_BYTES, RATE_SPEC_BYTES, TC_U32_TERMINAL,
    TCA_HTB_CEIL64, TCA_HTB_INIT, TCA_HTB_PARMS, TCA_HTB_RATE64, TCA_OPTIONS, TCA_TBF_PARMS,
    TCA_TBF_RATE64, TCA_U32_CLASSID, TCA_U32_SEL,
};
use super::ticks::{rate_bytes, rate_from, ticks_burst};
use super::{Class, Filter, Handle, Leaf, Match, Queue};
use keeptime_model::units::{BitsPerSecond, Bytes};
use netlink_packet_core::NLA_TYPE_MASK;
use std::collections::BTreeMap;

/// Traffic control of one interface as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The interface.
    pub ifindex: u32,
    /// Its queueing disciplines, whosever they are.
    pub qdiscs: Vec<Qdisc>,
    /// Its HTB classes, whosever they are, by class id.
    pub classes: BTreeMap<Handle, ObservedClass>,
    /// The filters of its HTB hierarchies.
    pub filters: Vec<ObservedFilter>,
}

/// A queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Major 0 is one that the kernel made by itself.
    pub handle: Handle,
    /// Where it stands.
    pub parent: Handle,
    /// What it is.
    pub kind: QdiscKind,
}

/// The kinds of queueing disciplines that Keeptime uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QdiscKind {
    /// A hierarchy of classes.
    Htb {
        /// The class of what nothing else claims.
        default_minor: u16,
    },
    /// A token bucket.
    Tbf {
        /// How fast.
        rate: BitsPerSecond,
        /// How much at once.
        burst: Bytes,
        /// How many bytes wait.
        limit: u32,
    },
    /// A queue that drops what does not fit.
    Fifo(Queue),
    /// The hook for programs on ingress and egress.
    Clsact,
    /// Anything else, by its name.
    Other(String),
}

/// A class with its parent as the kernel has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedClass {
    /// As we would write it; [`Class::leaf`] without its queue.
    pub class: Class,
    /// True if it has children.
    pub is_inner: bool,
}

/// A filter of a queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedFilter {
    /// The queueing discipline.
    pub parent: Handle,
    /// Its priority; two filters of one priority differ in `protocol`.
    pub priority: u16,
    /// The Ethernet protocol (0x0800 for IPv4).
    pub protocol: u16,
    /// What it does, if it is one that we could have made.
    pub filter: Option<(Match, Handle)>,
}

impl Observed {
    /// An interface with nothing on it.
    pub fn empty(ifindex: u32) -> Self {
        Self { ifindex, ..Self::default() }
    }

    /// What stands at a place, the kernel's own default included.
    pub fn at(&self, parent: Handle) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|qdisc| qdisc.parent == parent)
    }

    /// The filter of a tree in our own terms.
    pub(super) fn filter(&self, major: u16, priority: u16) -> Option<&ObservedFilter> {
        self.filters
            .iter()
            .find(|filter| filter.parent.major == major && filter.priority == priority)
    }

    /// The queue of a leaf, if it is one that we could have made.
    pub(super) fn queue(&self, class: Handle) -> Option<Queue> {
        match self.at(class)?.kind {
            QdiscKind::Fifo(queue) => Some(queue),
            _ => None,
        }
    }
}

impl ObservedFilter {
    /// The filter of `major`'s tree, if it is one that we could have made.
    pub(super) fn ours(&self, major: u16) -> Option<Filter> {
        let (matches, target) = self.filter?;
        (target.major == major).then_some(Filter { matches, minor: target.minor })
    }
}

/// The header of a traffic control message and its attributes.
pub(super) struct Record<'a> {
    pub ifindex: u32,
    pub handle: Handle,
    pub parent: Handle,
    pub info: u32,
    pub kind: &'a str,
    pub options: &'a [u8],
}

impl<'a> Record<'a> {
    /// Nothing if the message is shorter than its header.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let attributes = payload.get(TCMSG_BYTES..)?;
        let attribute = |kind| find(attributes, kind).unwrap_or_default();
        let kind = std::str::from_utf8(attribute(TCA_KIND)).ok()?.trim_end_matches('\0');
        Some(Self {
            ifindex: u32_of(payload, 4)?,
            handle: Handle::from_u32(u32_of(payload, 8)?),
            parent: Handle::from_u32(u32_of(payload, 12)?),
            info: u32_of(payload, 16)?,
            kind,
            options: attribute(TCA_OPTIONS),
        })
    }

    pub fn qdisc(&self) -> Qdisc {
        let known = match self.kind {
            "htb" => htb_qdisc(self.options),
            "tbf" => tbf(self.options),
            "bfifo" => u32_of(self.options, 0).map(|limit| QdiscKind::Fifo(Queue::Bytes(limit))),
            "pfifo" => u32_of(self.options, 0).map(|limit| QdiscKind::Fifo(Queue::Packets(limit))),
            "clsact" => Some(QdiscKind::Clsact),
            _ => None,
        };
        let kind = known.unwrap_or_else(|| QdiscKind::Other(self.kind.to_owned()));
        Qdisc { handle: self.handle, parent: self.parent, kind }
    }

    /// The class, if it is one of HTB.
    pub fn class(&self) -> Option<ObservedClass> {
        (self.kind == "htb").then(|| htb_class(self.parent, self.options)).flatten()
    }

    /// The filter, if this is one and not a hash table or a bucket of one.
    pub fn filter(&self) -> Option<ObservedFilter> {
        let (priority, protocol) = ((self.info >> 16) as u16, u16::from_be(self.info as u16));
        if self.handle == Handle::default() || (self.kind == "u32" && is_hash_table(self.options)) {
            return None;
        }
        let filter = (self.kind == "u32").then(|| u32_filter(protocol, self.options)).flatten();
        Some(ObservedFilter { parent: self.parent, priority, protocol, filter })
    }

    /// Name and program id of an egress program, if this is one.
    pub fn program(&self) -> Option<(String, u32)> {
        let protocol = u16::from_be(self.info as u16);
        if self.kind != "bpf" || protocol != ETH_P_ALL {
            return None;
        }
        let name = find(self.options, TCA_BPF_NAME)?;
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        Some((name, u32_of(find(self.options, TCA_BPF_ID)?, 0)?))
    }
}

fn htb_qdisc(options: &[u8]) -> Option<QdiscKind> {
    let default = u32_of(find(options, TCA_HTB_INIT)?, 8)?;
    Some(QdiscKind::Htb { default_minor: u16::try_from(default).ok()? })
}

fn htb_class(parent: Handle, options: &[u8]) -> Option<ObservedClass> {
    let parms = find(options, TCA_HTB_PARMS)?;
    if parms.len() < HTB_OPT_BYTES {
        return None;
    }
    let wide = |kind| find(options, kind).and_then(|value| u64_of(value, 0));
    let word = |index: usize| u32_of(parms, 2 * RATE_SPEC_BYTES + 4 * index);
    let rate = rate_from(u32_of(parms, 8)?, wide(TCA_HTB_RATE64));
    let ceil = rate_from(u32_of(parms, RATE_SPEC_BYTES + 8)?, wide(TCA_HTB_CEIL64));
    let is_inner = word(3)? > 0;
    let leaf = Leaf { prio: u8::try_from(word(4)?).ok()?, quantum: word(2)?, queue: None };
    let class = Class {
        parent: if parent == Handle::ROOT { 0 } else { parent.minor },
        rate,
        ceil,
        burst: ticks_burst(word(0)?, rate_bytes(rate)),
        cburst: ticks_burst(word(1)?, rate_bytes(ceil)),
        leaf: (!is_inner).then_some(leaf),
    };
    Some(ObservedClass { class, is_inner })
}

fn tbf(options: &[u8]) -> Option<QdiscKind> {
    let parms = find(options, TCA_TBF_PARMS)?;
    let wide = find(options, TCA_TBF_RATE64).and_then(|value| u64_of(value, 0));
    let rate = rate_from(u32_of(parms, 8)?, wide);
    let limit = u32_of(parms, 2 * RATE_SPEC_BYTES)?;
    let burst = ticks_burst(u32_of(parms, 2 * RATE_SPEC_BYTES + 4)?, rate_bytes(rate));
    Some(QdiscKind::Tbf { rate, burst, limit })
}

fn is_hash_table(options: &[u8]) -> bool {
    find(options, TCA_U32_SEL).is_none()
}

/// The match of a filter of the shape that we make: one key on the first word of the header.
fn u32_filter(protocol: u16, options: &[u8]) -> Option<(Match, Handle)> {
    let target = Handle::from_u32(u32_of(find(options, TCA_U32_CLASSID)?, 0)?);
    let selector = find(options, TCA_U32_SEL)?;
    let (flags, keys) = (*selector.first()?, *selector.get(2)?);
    let key = selector.get(16..32)?;
    let mask = u32::from_be_bytes(key[..4].try_into().ok()?);
    let value = u32::from_be_bytes(key[4..8].try_into().ok()?);
    if flags != TC_U32_TERMINAL || keys != 1 || key[8..].iter().any(|byte| *byte != 0) {
        return None;
    }
    match (protocol, mask) {
        (ETH_P_IP, 0x00fc_0000) => Some((Match::Dscp((value >> 18) as u8), target)),
        (ETH_P_ARP, 0) => Some((Match::Arp, target)),
        _ => None,
    }
}

/// The attributes of a message or a nest; what cannot be read ends the list.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub(crate) fn u32_of(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_of(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

const TCMSG_BYTES: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The entry of a fuzzer: any answer is read or passed over, never believed nor fatal.
    fn fuzz(payload: &[u8]) {
        if let Some(record) = Record::parse(payload) {
            let _ = (record.qdisc(), record.class(), record.filter(), record.program());
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_passed_over(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&payload);
        }

        #[test]
        fn broken_options_of_known_kinds_are_passed_over(
            kind in prop::sample::select(vec!["htb", "tbf", "bfifo", "u32", "bpf"]),
            options in prop::collection::vec((1u16..12, prop::collection::vec(any::<u8>(), 0..60)), 0..6),
        ) {
            let attribute = |kind: u16, value: &[u8]| {
                let mut bytes = Vec::from((value.len() as u16 + 4).to_ne_bytes());
                bytes.extend(kind.to_ne_bytes());
                bytes.extend(value);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                bytes
            };
            let nest: Vec<u8> = options.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect();
            let mut payload = vec![1; TCMSG_BYTES];
            payload.extend(attribute(TCA_KIND, kind.as_bytes()));
            payload.extend(attribute(TCA_OPTIONS, &nest));
            fuzz(&payload);
        }
    }
}
