//! From reserved flows to what the kernel is told: classes and marks (pure).
//!
//! A link is shared by three kinds of traffic. **Control** (low latency) has a small share and
//! goes first, also with what others leave of half of the link: an exchange of small messages that is
//! held up by its own limit has no low latency. Each **premium** flow has a class of its own whose guarantee is also its limit, as
//! with the inter-dispatch time of the paper, unless it was told that it may use more as long as nobody else
//! does; what it leaves unused goes to the others.
//! **Best effort** has what is left, and never less than 1 % of the link, so that nobody
//! starves for good. At a switch port, where flows cannot be told apart, all premium traffic is
//! one class by its DiffServ code point.
//!
//! What goes first still waits for the packet that has begun, at every link of the way and in both
//! directions of an exchange. While a job asks for more than best effort to a node, no packet that is handed
//! to the link and is longer than a frame takes longer than 250 us; 12.5 us where low latency is asked for, or
//! a flow is policed on the way.

use crate::flows::{FLOW_ENTRIES_MAX, FlowKey, FlowMark, FlowTable, Settings};
use crate::tc::{Class, Filter, Handle, Leaf, Match, Place, Queue, Tree};
use keeptime_model::assignment::TrafficClass;
use keeptime_model::units::{BitsPerSecond, Bytes, Nanos, Share};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use thiserror::Error;

/// One direction of a link, as seen by who sends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// For errors.
    pub name: String,
    /// What the wire carries, headers included.
    pub rate: BitsPerSecond,
    /// Guaranteed to low-latency traffic: 2 % is usual. Of what premium flows leave it can have half of
    /// the link.
    pub control_share: Share,
}

impl Link {
    /// A link of `rate` with the usual share for control, 2 %.
    pub fn new(name: impl Into<String>, rate: BitsPerSecond) -> Self {
        const TWO_PERCENT: Share = Share::from_percent(2).expect("at most 100");
        Self { name: name.into(), rate, control_share: TWO_PERCENT }
    }
}

/// Packets of one job to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The kernel's number of the job's cgroup.
    pub cgroup_id: u64,
    /// Nothing stands for every destination that has no flow of its own.
    pub destination: Option<Ipv4Addr>,
    /// Reserved on the wire, headers included: a guarantee. Premium only.
    pub rate: BitsPerSecond,
    /// The limit: so much more than the guarantee as whoever reserves says that nobody else has.
    pub up_to: BitsPerSecond,
    /// Token bucket depth of whoever polices it on the way, in which all that leaves here fits; nothing =
    /// nobody does, and the class has 2 ms of the rate.
    pub burst: Option<Bytes>,
    /// How it is treated.
    pub class: TrafficClass,
}

/// What the kernel is to be told about one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egress {
    /// Its classes.
    pub tree: Tree,
    /// Which packets go to which of them.
    pub table: FlowTable,
    /// How long a packet may be that is handed to it at once; nothing = as long as the sender likes.
    pub packet_max: Option<Bytes>,
}

/// Why flows cannot all be enforced.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EgressError {
    /// More entries than the flow table holds.
    #[error("link {link}: {flows} flows, but at most {FLOW_ENTRIES_MAX} can be told apart")]
    TooManyFlows {
        /// The link.
        link: String,
        /// How many.
        flows: usize,
    },
}

/// How much of a link premium flows can have together: all but control and the floor of best
/// effort. Whoever takes a flow on sees to that; [`plan`] takes more, as of a link that was said to be faster before.
pub fn reservable(link: &Link) -> BitsPerSecond {
    let rest = link.rate.checked_sub(control_rate(link));
    rest.and_then(|rest| rest.checked_sub(floor_rate(link))).unwrap_or(BitsPerSecond::ZERO)
}

/// What to tell the kernel about an interface that `flows` leave by. Flows of one job to one
/// destination share a class with the sum of their rates. A flow that `assigned` has keeps its
/// class number there, and a number that is in use is not given to another. Guarantees of more than
/// [`reservable`] together are kept in part, each in the same: a class does not ask those above it for its own rate
/// (tc-htb(8)), and best effort would get nothing. O(n log n).
///
/// # Errors
/// See [`EgressError`].
pub fn plan(
    link: &Link,
    place: Place,
    flows: &[Flow],
    assigned: &FlowTable,
) -> Result<Egress, EgressError> {
    let merged = merge(flows);
    if merged.len() > FLOW_ENTRIES_MAX {
        return Err(EgressError::TooManyFlows { link: link.name.clone(), flows: merged.len() });
    }
    let mut classes = shared_classes(link, lent_rate(link, &merged));
    let mut table = FlowTable::default();
    let mut minors = Minors::new(assigned, &merged);
    let kept = kept_share(link, &merged);
    for (key, flow) in &merged {
        let minor = match flow.class {
            TrafficClass::Premium => {
                let minor = minors.of(key);
                classes.insert(minor, flow_class(&in_part(flow, kept)));
                minor
            }
            TrafficClass::LowLatency => CONTROL_MINOR,
            _ => BEST_EFFORT_MINOR,
        };
        let class = Handle { major: place.major, minor };
        table.entries.insert(*key, FlowMark { class, dscp: flow.class.dscp() });
    }
    let default_minor = BEST_EFFORT_MINOR;
    let tree = Tree { place, default_minor, classes, filters: BTreeMap::new() };
    Ok(Egress { tree, table, packet_max: packet_max(link, &merged) })
}

/// What the flow program must know of a node that has this table, whose jobs' cgroups are `job_level` below
/// the root. While something is reserved address resolution goes first, as at a switch port: a packet
/// cannot leave before its receiver is found, and behind a queue of best effort that takes a third of a
/// second on a link of 100 Mbit/s that is reserved as far as it can be. An empty table has no classes.
pub fn settings(place: Place, job_level: u32, table: &FlowTable) -> Settings {
    let control = Handle { major: place.major, minor: CONTROL_MINOR };
    let resolution = (!table.entries.is_empty()).then_some(control);
    Settings { job_level, resolution, major: place.major }
}

/// The tree of a switch port: premium and control by DiffServ code point, and a shallow buffer
/// for the rest.
pub fn switch_port(link: &Link, place: Place) -> Tree {
    let mut classes = shared_classes(link, link.rate);
    let premium = reservable(link);
    let burst = burst_of(premium);
    let queue = Some(Queue::Bytes(queue_bytes(link.rate, PORT_QUEUE_SPAN, PORT_QUEUE_MIN)));
    let leaf = Some(Leaf { prio: PREMIUM_PRIO, quantum: QUANTUM, queue });
    classes.insert(
        PREMIUM_MINOR,
        Class { parent: ROOT_MINOR, rate: premium, ceil: premium, burst, cburst: burst, leaf },
    );
    for minor in [CONTROL_MINOR, BEST_EFFORT_MINOR] {
        if let Some(leaf) = classes.get_mut(&minor).and_then(|class| class.leaf.as_mut()) {
            leaf.queue = queue;
        }
    }
    let by_dscp = |class: TrafficClass, minor| Filter { matches: Match::Dscp(class.dscp()), minor };
    let filters = BTreeMap::from([
        (1, by_dscp(TrafficClass::Premium, PREMIUM_MINOR)),
        (2, by_dscp(TrafficClass::LowLatency, CONTROL_MINOR)),
        (3, Filter { matches: Match::Arp, minor: CONTROL_MINOR }),
    ]);
    Tree { place, default_minor: BEST_EFFORT_MINOR, classes, filters }
}

/// Token bucket depth of a rate: 2 ms of it, within 0.5 % of the rate up to 5 Gbit/s, where the
/// kernel's default loses 14 %; more lets short exchanges exceed the rate. Two full packets at
/// least, or a slow class would wait for its own tokens in the middle of a pair.
pub fn burst_of(rate: BitsPerSecond) -> Bytes {
    rate.bytes_in_floor(BURST_SPAN).max(Bytes::new(BURST_MIN))
}

/// Flows that share a key, as one: rates of the best class among them are added.
fn merge(flows: &[Flow]) -> BTreeMap<FlowKey, Flow> {
    let mut merged: BTreeMap<FlowKey, Flow> = BTreeMap::new();
    for flow in flows {
        let key = FlowKey { cgroup_id: flow.cgroup_id, destination: flow.destination };
        merged.entry(key).and_modify(|one| *one = both(one, flow)).or_insert(*flow);
    }
    merged
}

fn both(one: &Flow, other: &Flow) -> Flow {
    if one.class != other.class {
        return if one.class > other.class { *one } else { *other };
    }
    let max = BitsPerSecond::new(u64::MAX);
    let depth = |flow: &Flow| flow.burst.unwrap_or(burst_of(flow.rate)).get();
    let burst = match (one.burst, other.burst) {
        (None, None) => None,
        _ => Some(Bytes::new(depth(one).saturating_add(depth(other)))),
    };
    let sum = |of: fn(&Flow) -> BitsPerSecond| of(one).checked_add(of(other)).unwrap_or(max);
    Flow { rate: sum(|flow| flow.rate), up_to: sum(|flow| flow.up_to), burst, ..*one }
}

/// The link itself, of which `whole` is lent, control and best effort.
fn shared_classes(link: &Link, whole: BitsPerSecond) -> BTreeMap<u16, Class> {
    let control = control_rate(link);
    let half = link.rate.divided_floor(CONTROL_CEIL_PART).max(control);
    let leaf = |prio| {
        let queue = Queue::Bytes(queue_bytes(link.rate, NODE_QUEUE_SPAN, NODE_QUEUE_MIN));
        Some(Leaf { prio, quantum: QUANTUM, queue: Some(queue) })
    };
    let class = |parent, rate, ceil, leaf| {
        let (burst, cburst) = (burst_of(rate), burst_of(ceil));
        Class { parent, rate, ceil, burst, cburst, leaf }
    };
    BTreeMap::from([
        (ROOT_MINOR, class(0, whole, whole, None)),
        (CONTROL_MINOR, class(ROOT_MINOR, control, half, leaf(CONTROL_PRIO))),
        (BEST_EFFORT_MINOR, class(ROOT_MINOR, floor_rate(link), whole, leaf(BEST_EFFORT_PRIO))),
    ])
}

/// Shorter packets cost everybody CPU, 80,000 of them a second at the most where somebody is in a hurry and
/// 4,000 where not: only where a job asks for something that others hold up.
fn packet_max(link: &Link, merged: &BTreeMap<FlowKey, Flow>) -> Option<Bytes> {
    let span = |flow: &Flow| match flow.class {
        TrafficClass::Premium if flow.burst.is_none() => Some(PACKET_SPAN),
        TrafficClass::Premium | TrafficClass::LowLatency => Some(URGENT_PACKET_SPAN),
        _ => None,
    };
    let asked = merged.values().filter(|flow| flow.destination.is_some());
    let bytes = link.rate.bytes_in_floor(asked.filter_map(span).min()?).max(Bytes::new(FRAME));
    (bytes < PACKET_MAX).then_some(bytes)
}

/// The part of its guarantee that each premium flow is kept.
fn kept_share(link: &Link, merged: &BTreeMap<FlowKey, Flow>) -> Share {
    let premium = merged.values().filter(|flow| flow.class == TrafficClass::Premium);
    let reserved = premium.fold(0u64, |sum, flow| sum.saturating_add(flow.rate.get()));
    let ppm = u128::from(reservable(link).get()) * 1_000_000 / u128::from(reserved.max(1));
    u32::try_from(ppm).ok().and_then(|ppm| Share::try_from(ppm).ok()).unwrap_or(Share::ONE)
}

/// With a part of its guarantee. It may still send as much where there is room; but what is policed, by which more is dropped than
/// that.
fn in_part(flow: &Flow, kept: Share) -> Flow {
    Flow { rate: flow.rate.share_floor(kept), up_to: flow.up_to.max(flow.rate), ..*flow }
}

fn flow_class(flow: &Flow) -> Class {
    let burst = flow.burst.map_or_else(|| burst_of(flow.rate), burst_within);
    // Who polices it drops what is more than the guarantee.
    let ceil = if flow.burst.is_some() { flow.rate } else { flow.up_to.max(flow.rate) };
    let cburst = if ceil > flow.rate { burst_of(ceil) } else { burst };
    let queue = Queue::Bytes(queue_bytes(flow.rate, FLOW_QUEUE_SPAN, NODE_QUEUE_MIN));
    let leaf = Leaf { prio: PREMIUM_PRIO, quantum: QUANTUM, queue: Some(queue) };
    Class { parent: ROOT_MINOR, rate: flow.rate, ceil, burst, cburst, leaf: Some(leaf) }
}

/// The bucket of a class whose packets all fit a policer's of this `depth`. HTB sends a packet whenever its
/// bucket is not below zero, so one more than is in it; and a packet that waited on the way behind others
/// comes closer to the next, which may be earlier by the time of one more.
fn burst_within(depth: Bytes) -> Bytes {
    Bytes::new(depth.get().saturating_sub(2 * FRAME).max(BURST_MIN))
}

/// What a node lends of its link: all of it, but where a job asks for low latency a little less than its card
/// sends. Else best effort would wait in the card, where the next packet is chosen already, and what is urgent
/// would wait behind it.
fn lent_rate(link: &Link, merged: &BTreeMap<FlowKey, Flow>) -> BitsPerSecond {
    match merged.values().any(is_urgent) {
        true => link.rate.checked_sub(control_rate(link)).unwrap_or(link.rate),
        false => link.rate,
    }
}

/// Low latency to everywhere is that of a program's start and its barriers, which every job with a pattern
/// has: those can wait for a packet.
fn is_urgent(flow: &Flow) -> bool {
    flow.class == TrafficClass::LowLatency && flow.destination.is_some()
}

fn control_rate(link: &Link) -> BitsPerSecond {
    link.rate.share_floor(link.control_share)
}

fn floor_rate(link: &Link) -> BitsPerSecond {
    link.rate.divided_floor(BEST_EFFORT_PART)
}

fn queue_bytes(rate: BitsPerSecond, span: Nanos, least: u32) -> u32 {
    u32::try_from(rate.bytes_in_floor(span).get()).unwrap_or(u32::MAX).max(least)
}

/// Gives premium flows their class numbers.
struct Minors {
    kept: BTreeMap<FlowKey, u16>,
    taken: BTreeSet<u16>,
    next: u16,
}

impl Minors {
    fn new(assigned: &FlowTable, flows: &BTreeMap<FlowKey, Flow>) -> Self {
        let mut minors =
            Self { kept: BTreeMap::new(), taken: BTreeSet::new(), next: FLOW_MINOR_MIN };
        for (key, mark) in &assigned.entries {
            let minor = mark.class.minor;
            // The first of two that claim a number has it.
            let is_new = minor >= FLOW_MINOR_MIN && minors.taken.insert(minor);
            if is_new && flows.contains_key(key) {
                minors.kept.insert(*key, minor);
            }
        }
        minors
    }

    /// There is always one: the table holds 16,384 old and 16,384 new, and there are 65,520.
    fn of(&mut self, key: &FlowKey) -> u16 {
        if let Some(minor) = self.kept.get(key) {
            return *minor;
        }
        while !self.taken.insert(self.next) {
            self.next += 1;
        }
        self.next
    }
}

/// The class that is the whole link.
pub const ROOT_MINOR: u16 = 1;
/// The class of low-latency traffic.
pub const CONTROL_MINOR: u16 = 2;
/// The class of everything that nobody reserved for.
pub const BEST_EFFORT_MINOR: u16 = 3;
/// At a switch port: all premium traffic.
pub const PREMIUM_MINOR: u16 = 4;
/// The first number of a flow's class.
pub const FLOW_MINOR_MIN: u16 = 0x10;

const CONTROL_PRIO: u8 = 0;
const PREMIUM_PRIO: u8 = 1;
const BEST_EFFORT_PRIO: u8 = 7;
/// Low-latency traffic has at most half of the link.
const CONTROL_CEIL_PART: u64 = 2;
/// Best effort has at least one hundredth of the link.
const BEST_EFFORT_PART: u64 = 100;
const BURST_SPAN: Nanos = Nanos::from_millis(2);
/// A full Ethernet frame.
const FRAME: u64 = 1_514;
const BURST_MIN: u64 = 2 * FRAME;
/// A frame of 50 Mbit/s: what has a rate of its own waits for that at the most. A frame at a time, a program
/// with a tenth of a CPU spent a third of it on packets; with half of this, a twentieth.
const PACKET_SPAN: Nanos = Nanos::new(250_000);
/// A frame of 1 Gbit/s: what is urgent waits for that at the most, and whoever polices a flow on the way
/// finds frames.
const URGENT_PACKET_SPAN: Nanos = Nanos::new(12_500);
/// TCP hands down no more at once.
const PACKET_MAX: Bytes = Bytes::new(65_536);
/// Two frames a turn: only classes of one priority that borrow take turns.
const QUANTUM: u32 = 3_028;
/// A switch with shallow buffers.
const PORT_QUEUE_SPAN: Nanos = Nanos::from_millis(10);
const PORT_QUEUE_MIN: u32 = 64_000;
/// On a node the sender's own socket buffer is the queue; this bounds what does not listen (UDP).
const NODE_QUEUE_SPAN: Nanos = Nanos::from_millis(20);
const FLOW_QUEUE_SPAN: Nanos = Nanos::from_millis(50);
/// Some of the greatest packets that TCP hands down at once (64 KiB).
const NODE_QUEUE_MIN: u32 = 256_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::{Attach, TREE_MAJOR};
    use proptest::prelude::*;

    const PLACE: Place = Place { ifindex: 2, attach: Attach::Root, major: TREE_MAJOR };

    fn link(mbit: u64) -> Link {
        let control_share = Share::from_percent(2).unwrap();
        Link { name: "n1:eth0".into(), rate: BitsPerSecond::from_mbit(mbit), control_share }
    }

    fn premium(cgroup_id: u64, host: u8, mbit: u64) -> Flow {
        Flow {
            cgroup_id,
            destination: Some(Ipv4Addr::new(10, 0, 0, host)),
            rate: BitsPerSecond::from_mbit(mbit),
            up_to: BitsPerSecond::from_mbit(mbit),
            burst: None,
            class: TrafficClass::Premium,
        }
    }

    #[test]
    fn a_flow_has_a_class_that_is_guarantee_and_limit() {
        let egress = plan(&link(100), PLACE, &[premium(7, 2, 40)], &FlowTable::default()).unwrap();
        let class = egress.tree.classes[&FLOW_MINOR_MIN];
        assert_eq!((class.rate, class.ceil), (BitsPerSecond::from_mbit(40), class.rate));
        assert_eq!(class.burst, Bytes::new(10_000));
        let key = FlowKey { cgroup_id: 7, destination: Some(Ipv4Addr::new(10, 0, 0, 2)) };
        assert_eq!(egress.table.entries[&key].dscp, 46);
        assert_eq!(egress.tree.classes[&BEST_EFFORT_MINOR].ceil, BitsPerSecond::from_mbit(100));
        assert_eq!(egress.tree.classes[&CONTROL_MINOR].ceil, BitsPerSecond::from_mbit(50));
    }

    #[test]
    fn packets_are_short_while_a_job_asks_for_more_than_best_effort_to_a_node() {
        let longest = |mbit, flows: &[Flow]| {
            plan(&link(mbit), PLACE, flows, &FlowTable::default()).unwrap().packet_max
        };
        let bytes = |bytes| Some(Bytes::new(bytes));
        let paced = premium(7, 2, 1);
        let policed = Flow { burst: Some(Bytes::new(4 * FRAME)), ..paced };
        let urgent = Flow { class: TrafficClass::LowLatency, ..paced };
        let best_effort = Flow { class: TrafficClass::BestEffort, ..paced };
        assert_eq!(longest(100, &[best_effort]), None);
        let rates = [100, 1_000, 10_000, 50_000];
        assert_eq!(
            rates.map(|mbit| longest(mbit, &[paced])),
            [bytes(3_125), bytes(31_250), None, None]
        );
        for flows in [[urgent], [policed]] {
            let expected = [bytes(FRAME), bytes(1_562), bytes(15_625), None];
            assert_eq!(rates.map(|mbit| longest(mbit, &flows)), expected);
        }
        for flow in [paced, policed, urgent].map(|flow| Flow { destination: None, ..flow }) {
            assert_eq!(longest(100, &[flow]), None);
        }
        // Whoever is in the greatest hurry has to be content.
        let elsewhere = Some(Ipv4Addr::new(10, 0, 0, 3));
        let urgent = Flow { destination: elsewhere, ..urgent };
        assert_eq!(longest(1_000, &[paced, urgent]), bytes(1_562));
    }

    // Time runs in the bytes that the flow may send in it.
    fn is_policed(bucket: u64, depth: u64, frames: &[u64], delays: &[u64]) -> bool {
        // The class has tokens up to `bucket` and sends while it is not below zero; the policer drops
        // what finds fewer tokens than it is long.
        let (mut now, mut tokens) = (0, bucket as i64);
        let (mut came, mut left) = (0u64, depth);
        frames.iter().zip(delays).any(|(frame, delay)| {
            let wait = u64::try_from(-tokens).unwrap_or(0);
            now += wait;
            tokens += wait as i64 - *frame as i64;
            let comes = came.max(now + delay);
            left = depth.min(left + comes - came);
            came = comes;
            let drops = left < *frame;
            left = left.saturating_sub(*frame);
            drops
        })
    }

    #[test]
    fn a_bucket_as_deep_as_the_policers_is_too_deep() {
        let (frames, late) = ([FRAME; 8], [FRAME, 0, 0, 0, 0, 0, 0, 0]);
        assert!(is_policed(4 * FRAME, 4 * FRAME, &frames, &[0; 8]));
        assert!(is_policed(3 * FRAME, 4 * FRAME, &frames, &late));
        let bucket = burst_within(Bytes::new(4 * FRAME)).get();
        assert!(!is_policed(bucket, 4 * FRAME, &frames, &late));
    }

    #[test]
    fn a_flow_that_may_use_more_borrows_it_unless_somebody_polices_it() {
        let up_to = BitsPerSecond::from_mbit(90);
        let ceil = |flow: Flow| {
            let egress = plan(&link(100), PLACE, &[flow], &FlowTable::default()).unwrap();
            let class = egress.tree.classes[&FLOW_MINOR_MIN];
            assert_eq!(class.rate, BitsPerSecond::from_mbit(40));
            class.ceil.as_mbit_f64()
        };
        assert_eq!(ceil(Flow { up_to, ..premium(7, 2, 40) }), 90.0);
        assert_eq!(ceil(Flow { up_to: BitsPerSecond::from_mbit(1), ..premium(7, 2, 40) }), 40.0);
        let burst = Some(Bytes::new(30_000));
        assert_eq!(ceil(Flow { up_to, burst, ..premium(7, 2, 40) }), 40.0);
        // Guarantees are what may not exceed the link, not what is used of what others leave.
        let flows = [2, 3].map(|host| Flow { up_to, ..premium(7, host, 40) });
        let egress = plan(&link(100), PLACE, &flows, &FlowTable::default()).unwrap();
        assert!(
            egress.tree.classes.values().all(|class| class.ceil <= BitsPerSecond::from_mbit(100))
        );
    }

    // Goal: a link that is said to be slower than before changes nothing for those who have their flows, and others can end
    // theirs. Method: more than can be reserved, of which one is more than the link.
    #[test]
    fn what_was_promised_on_a_faster_link_has_its_classes_all_the_same() {
        let flows = [premium(7, 2, 160), premium(7, 3, 40)];
        let egress = plan(&link(100), PLACE, &flows, &FlowTable::default()).unwrap();
        let rate = |minor| egress.tree.classes[&minor].rate.as_mbit_f64();
        assert_eq!([rate(FLOW_MINOR_MIN), rate(FLOW_MINOR_MIN + 1)], [77.6, 19.4]);
        assert_eq!([rate(ROOT_MINOR), rate(BEST_EFFORT_MINOR)], [100.0, 1.0]);
        assert_eq!(egress.tree.classes[&(FLOW_MINOR_MIN + 1)].ceil, premium(7, 3, 40).rate);
    }

    #[test]
    fn flows_of_one_job_to_one_node_are_one_class() {
        let flows = [premium(7, 2, 10), premium(8, 2, 10), premium(7, 2, 20)];
        let egress = plan(&link(100), PLACE, &flows, &FlowTable::default()).unwrap();
        let rates: Vec<u64> = (0..2)
            .map(|n| egress.tree.classes[&(FLOW_MINOR_MIN + n)].rate.get() / 1_000_000)
            .collect();
        assert_eq!(rates, [30, 10]);
    }

    #[test]
    fn address_resolution_goes_first_as_long_as_there_are_classes() {
        let class_of = |flows: &[Flow]| {
            let table = plan(&link(100), PLACE, flows, &FlowTable::default()).unwrap().table;
            settings(PLACE, 2, &table).resolution
        };
        assert_eq!(class_of(&[]), None);
        let class = class_of(&[premium(7, 1, 40)]);
        assert_eq!(class, Some(Handle { major: PLACE.major, minor: CONTROL_MINOR }));
    }

    #[test]
    fn low_latency_flows_share_the_control_class() {
        let to_all =
            Flow { class: TrafficClass::LowLatency, destination: None, ..premium(7, 2, 1) };
        let egress = plan(&link(100), PLACE, &[to_all], &FlowTable::default()).unwrap();
        assert_eq!(egress.tree.classes.len(), 3);
        let mark = egress.table.entries[&FlowKey { cgroup_id: 7, destination: None }];
        assert_eq!((mark.class.minor, mark.dscp), (CONTROL_MINOR, 48));
        let best_effort = |egress: &Egress| egress.tree.classes[&BEST_EFFORT_MINOR].ceil;
        assert_eq!(best_effort(&egress), BitsPerSecond::from_mbit(100));
        // So that the card never has more than it can send at once.
        let to_one = Flow { class: TrafficClass::LowLatency, ..premium(7, 2, 1) };
        let egress = plan(&link(100), PLACE, &[to_all, to_one], &FlowTable::default()).unwrap();
        assert_eq!(best_effort(&egress), BitsPerSecond::from_mbit(98));
    }

    #[test]
    fn a_port_keeps_everything_that_can_be_reserved() {
        let tree = switch_port(&link(100), PLACE);
        assert_eq!(tree.classes[&PREMIUM_MINOR].rate, reservable(&link(100)));
        assert_eq!(tree.filters[&1], Filter { matches: Match::Dscp(46), minor: PREMIUM_MINOR });
        let queue = tree.classes[&BEST_EFFORT_MINOR].leaf.unwrap().queue;
        assert_eq!(queue, Some(Queue::Bytes(125_000)));
    }

    fn any_flows() -> impl Strategy<Value = Vec<Flow>> {
        let flow =
            (1u64..4, 1u8..6, 1u64..30).prop_map(|(job, host, mbit)| premium(job, host, mbit));
        prop::collection::vec(flow, 0..12)
    }

    proptest! {
        // A sender that always has something to send, frames that are delayed on the way by up to the
        // time of one.
        #[test]
        fn what_leaves_a_class_fits_the_bucket_of_a_policer(
            depth in 4 * FRAME..50_000,
            sent in prop::collection::vec((66..=FRAME, 0..=FRAME), 1..200),
        ) {
            let (frames, delays): (Vec<_>, Vec<_>) = sent.into_iter().unzip();
            let bucket = burst_within(Bytes::new(depth)).get();
            prop_assert!(!is_policed(bucket, depth, &frames, &delays));
        }

        #[test]
        fn guarantees_never_exceed_the_link(flows in any_flows()) {
            let egress = plan(&link(100), PLACE, &flows, &FlowTable::default()).unwrap();
            let below = egress.tree.classes.values().filter(|class| class.parent == ROOT_MINOR);
            let sum: u64 = below.map(|class| class.rate.get()).sum();
            prop_assert!(sum <= link(100).rate.get());
        }

        #[test]
        fn class_numbers_are_stable_and_never_given_twice(
            before in any_flows(), after in any_flows(),
        ) {
            let link = link(10_000);
            let old = plan(&link, PLACE, &before, &FlowTable::default()).unwrap();
            let new = plan(&link, PLACE, &after, &old.table).unwrap();
            let owners = |table: &FlowTable| -> BTreeMap<u16, FlowKey> {
                table.entries.iter().map(|(key, mark)| (mark.class.minor, *key)).collect()
            };
            prop_assert_eq!(owners(&new.table).len(), new.table.entries.len());
            for (key, mark) in &new.table.entries {
                match old.table.entries.get(key) {
                    Some(was) => prop_assert_eq!(was, mark),
                    None => prop_assert!(!owners(&old.table).contains_key(&mark.class.minor)),
                }
            }
        }
    }
}
