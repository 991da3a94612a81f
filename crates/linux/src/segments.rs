//! How long the packets are that an interface is handed: TCP gives it up to 64 KiB at once, the card cuts
//! that into frames, and on a slow link whatever is urgent waits for all of it. The kernel limits it in
//! segments (`gso_max_segs`). What the limit was before ours stands on the interface, as an alternative
//! name, as long as ours does: whoever comes later gives it back.
//!
//! Not for programs that join datagrams themselves (`UDP_SEGMENT`): those do not obey.

use crate::link::set_segments_max;
use crate::netlink::{NetlinkError, Socket};
use keeptime_model::units::Bytes;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as M;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, Prop};

/// An interface and its limit, as the kernel has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    ifindex: u32,
    name: String,
    /// Bytes of a packet of one segment.
    mtu: u32,
    /// Segments that it is handed at once.
    limit: u16,
    mark: Option<Mark>,
}

/// That the limit is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    /// The alternative name that says so.
    name: String,
    /// The limit before.
    before: u16,
}

/// One step of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Writes on the interface what its limit is.
    Remember,
    /// Sets the limit.
    Limit(u16),
    /// Wipes off what was written.
    Forget,
}

/// Limits the packets that an interface is handed to so many bytes on the wire, one segment at least, or
/// gives back the limit that was there before; nothing changes that is so already. Connections that are
/// open obey as well. The network namespace is that of this thread.
///
/// # Errors
/// See [`NetlinkError`]; to be tried again then.
pub fn limit(
    socket: &mut Socket,
    ifindex: u32,
    longest: Option<Bytes>,
) -> Result<(), NetlinkError> {
    let observed = observe(socket, ifindex)?;
    diff(longest, &observed).into_iter().try_for_each(|op| apply(socket, &observed, op))
}

/// What the kernel has.
///
/// # Errors
/// See [`NetlinkError`].
pub fn observe(socket: &mut Socket, ifindex: u32) -> Result<Observed, NetlinkError> {
    let mut observed =
        Observed { ifindex, name: String::new(), mtu: 0, limit: u16::MAX, mark: None };
    for reply in socket.request(M::GetLink(numbered(ifindex)), 0)? {
        let M::NewLink(link) = reply else { continue };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => observed.name = name,
                LinkAttribute::Mtu(mtu) => observed.mtu = mtu,
                LinkAttribute::GsoMaxSegs(limit) => {
                    observed.limit = u16::try_from(limit).unwrap_or(u16::MAX);
                }
                LinkAttribute::PropList(names) => {
                    observed.mark = names.into_iter().find_map(Mark::read);
                }
                _ => {}
            }
        }
    }
    Ok(observed)
}

/// The steps to a limit of so many bytes, or back to the limit that was there before. What is written
/// down is so before anything changes, and until it is as it was.
pub fn diff(longest: Option<Bytes>, observed: &Observed) -> Vec<Op> {
    let before = observed.mark.as_ref().map_or(observed.limit, |mark| mark.before);
    // Somebody who had set less has a reason.
    let wanted = longest.map_or(before, |bytes| segments_in(bytes, observed.mtu).min(before));
    let change = (wanted != observed.limit).then_some(Op::Limit(wanted));
    let (first, last) = match (wanted == before, observed.mark.is_some()) {
        (false, false) => (Some(Op::Remember), None),
        (true, true) => (None, Some(Op::Forget)),
        _ => (None, None),
    };
    [first, change, last].into_iter().flatten().collect()
}

fn segments_in(packet: Bytes, mtu: u32) -> u16 {
    let whole = packet.get() / (u64::from(mtu) + ETHERNET_HEADER_BYTES);
    u16::try_from(whole).unwrap_or(u16::MAX).max(1)
}

fn apply(socket: &mut Socket, observed: &Observed, op: Op) -> Result<(), NetlinkError> {
    let mark = observed.mark.clone().unwrap_or_else(|| Mark::of(observed));
    let named = with_name(observed.ifindex, mark.name);
    let (message, flags) = match op {
        Op::Remember => (M::NewLinkProp(named), NLM_F_CREATE | NLM_F_EXCL | NLM_F_APPEND),
        Op::Limit(segments) => set_segments_max(observed.ifindex, Some(segments)),
        Op::Forget => (M::DelLinkProp(named), 0),
    };
    socket.request(message, flags)?;
    if let Op::Limit(_) = op {
        // Open connections look at the limit when they look for their route. Where that cannot be
        // brought about, the limit holds for those that are opened from now on.
        let _ = std::fs::write(ROUTES_FLUSH, "-1");
    }
    Ok(())
}

fn numbered(ifindex: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link
}

fn with_name(ifindex: u32, name: String) -> LinkMessage {
    let mut link = numbered(ifindex);
    link.attributes.push(LinkAttribute::PropList(vec![Prop::AltIfName(name)]));
    link
}

impl Mark {
    /// That of an interface that has none yet. No two of a namespace have the same name.
    fn of(observed: &Observed) -> Self {
        let (name, before) = (&observed.name, observed.limit);
        Self { name: format!("{MARK_FIRST}{name}{MARK_LAST}{before}"), before }
    }

    fn read(name: Prop) -> Option<Self> {
        let Prop::AltIfName(name) = name else { return None };
        let (_, before) = name.strip_prefix(MARK_FIRST)?.rsplit_once(MARK_LAST)?;
        let before = before.parse().ok()?;
        Some(Self { name, before })
    }
}

/// `keeptime.eth0.segments.65535`: it had as many as that before.
const MARK_FIRST: &str = "keeptime.";
const MARK_LAST: &str = ".segments.";
const ETHERNET_HEADER_BYTES: u64 = 14;
/// Of the network namespace of who writes to it.
const ROUTES_FLUSH: &str = "/proc/sys/net/ipv4/route/flush";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn observed(limit: u16, before: Option<u16>) -> Observed {
        let plain = Observed { ifindex: 2, name: "eth0".into(), mtu: 1_500, limit, mark: None };
        let mark = before.map(|limit| Mark::of(&Observed { limit, ..plain.clone() }));
        Observed { mark, ..plain }
    }

    /// What the kernel has after the steps, at most `steps` of them.
    fn after(mut state: Observed, ops: &[Op], steps: usize) -> Observed {
        for op in ops.iter().take(steps) {
            match op {
                Op::Remember => state.mark = Some(Mark::of(&state)),
                Op::Limit(limit) => state.limit = *limit,
                Op::Forget => state.mark = None,
            }
        }
        state
    }

    #[test]
    fn so_many_whole_frames_fit_and_one_always() {
        let segments = |bytes| segments_in(Bytes::new(bytes), 1_500);
        assert_eq!([0, 1_513, 1_514, 3_027, 3_028].map(segments), [1, 1, 1, 1, 2]);
        assert_eq!(segments_in(Bytes::new(u64::MAX), 0), u16::MAX);
    }

    #[test]
    fn a_limit_is_set_changed_and_given_back() {
        let bytes = |frames: u64| Some(Bytes::new(frames * 1_514));
        let set = diff(bytes(1), &observed(u16::MAX, None));
        assert_eq!(set, [Op::Remember, Op::Limit(1)]);
        assert_eq!(diff(bytes(2), &observed(1, Some(u16::MAX))), [Op::Limit(2)]);
        assert_eq!(diff(bytes(2), &observed(2, Some(u16::MAX))), []);
        let back = diff(None, &observed(2, Some(40)));
        assert_eq!(back, [Op::Limit(40), Op::Forget]);
        assert_eq!(diff(None, &observed(40, None)), []);
    }

    #[test]
    fn less_than_ours_is_left_alone() {
        assert_eq!(diff(Some(Bytes::new(9_084)), &observed(1, None)), []);
        assert_eq!(diff(Some(Bytes::new(9_084)), &observed(6, None)), []);
    }

    #[test]
    fn only_our_names_are_marks() {
        let read = |name: &str| Mark::read(Prop::AltIfName(name.into())).map(|mark| mark.before);
        assert_eq!(read("keeptime.eth0.segments.65535"), Some(65_535));
        assert_eq!(read("keeptime.a.segments.b.segments.7"), Some(7));
        for other in ["enp0s3", "keeptime.eth0", "keeptime.eth0.segments.", "x.eth0.segments.7"] {
            assert_eq!(read(other), None);
        }
    }

    proptest! {
        // Killed after any step, and whatever was wanted: another one comes to the same, and what was
        // there before comes back.
        #[test]
        fn what_was_there_before_comes_back_whenever_it_is_interrupted(
            found in 1u16.., frames in 0u64..100, more in 0u64..100, steps in 0usize..4
        ) {
            let bytes = |frames: u64| Some(Bytes::new(frames * 1_514));
            let begin = observed(found, None);
            let state = after(begin.clone(), &diff(bytes(frames), &begin), steps);
            let ops = diff(bytes(more), &state);
            let state = after(state, &ops, usize::MAX);
            prop_assert_eq!(state.limit, found.min(more.max(1) as u16));
            prop_assert_eq!(diff(bytes(more), &state), []);
            let state = after(state.clone(), &diff(None, &state), steps);
            let state = after(state.clone(), &diff(None, &state), usize::MAX);
            prop_assert_eq!(state, begin);
        }
    }
}
