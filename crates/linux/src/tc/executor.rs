//! Reads and changes traffic control of an interface in the socket's network namespace.

use super::decode::{Observed, Qdisc, QdiscKind, Record};
use super::encode::{ETH_P_ALL, encode, header, info_word, message, nla};
use super::{Attach, Handle, Op, Place, TREE_MAJOR};
use crate::netlink::{NetlinkError, RawReply, Socket};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage as M;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use thiserror::Error;

/// Why traffic control could not be brought to what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TcError {
    /// Somebody else's queueing discipline is in the way.
    #[error(transparent)]
    Foreign(#[from] super::Foreign),
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Where a program sees the packets of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// As they come in, before anything else.
    Ingress,
    /// As they leave, before they are queued.
    Egress,
}

/// A program of ours on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HookProgram {
    /// The kernel's number of the program.
    pub program_id: u32,
    /// The priority of the filter.
    pub priority: u16,
}

/// What the kernel has on one interface. A few system calls, plus one for each 32 KiB of classes.
///
/// # Errors
/// See [`NetlinkError`].
pub fn observe(socket: &mut Socket, ifindex: u32) -> Result<Observed, NetlinkError> {
    let place = Place { ifindex, attach: Attach::Root, major: 0 };
    let nobody = || header(&place, Handle::default(), Handle::default());
    let mut observed = Observed::empty(ifindex);
    let qdiscs = dump(socket, &M::GetQueueDiscipline(nobody()))?;
    observed.qdiscs = records(&qdiscs, ifindex).map(|record| record.qdisc()).collect();
    let trees: Vec<Handle> = observed
        .qdiscs
        .iter()
        .filter(|qdisc| matches!(qdisc.kind, QdiscKind::Htb { .. }))
        .map(|qdisc| qdisc.handle)
        .collect();
    if trees.is_empty() {
        return Ok(observed);
    }
    let classes = dump(socket, &M::GetTrafficClass(nobody()))?;
    observed.classes = records(&classes, ifindex)
        .filter_map(|record| Some((record.handle, record.class()?)))
        .collect();
    for tree in trees {
        let filters = dump(socket, &M::GetTrafficFilter(header(&place, Handle::default(), tree)))?;
        observed.filters.extend(records(&filters, ifindex).filter_map(|record| record.filter()));
    }
    Ok(observed)
}

/// Carries out the steps of a diff, in order. After an error some of them are done: observe and
/// diff again.
///
/// # Errors
/// The first that the kernel refused, see [`NetlinkError`].
pub fn apply(socket: &mut Socket, place: &Place, ops: &[Op]) -> Result<(), NetlinkError> {
    let requests: Vec<_> = ops.iter().map(|op| encode(place, op)).collect();
    socket.batch(&requests)
}

/// Puts a queueing discipline with its own defaults at the root of an interface: to see whether there
/// is such a kind.
///
/// # Errors
/// See [`NetlinkError`].
pub(crate) fn add_plain(socket: &mut Socket, ifindex: u32, kind: &str) -> Result<(), NetlinkError> {
    let place = Place { ifindex, attach: Attach::Root, major: TREE_MAJOR };
    let itself = Handle { major: place.major, minor: 0 };
    let plain = message(&place, itself, place.attach.parent(), kind, Vec::new());
    socket.request(M::NewQueueDiscipline(plain), NLM_F_CREATE | NLM_F_EXCL).map(drop)
}

/// Our programs at a hook of an interface, the one that is asked first in front.
///
/// # Errors
/// See [`NetlinkError`].
pub fn programs(
    socket: &mut Socket,
    ifindex: u32,
    hook: Hook,
) -> Result<Vec<HookProgram>, NetlinkError> {
    let place = Place { ifindex, attach: Attach::Root, major: 0 };
    let at = header(&place, Handle::default(), hook.handle());
    let filters = dump(socket, &M::GetTrafficFilter(at));
    let filters = match filters {
        // Without the hook there are no programs.
        Err(error) if matches!(error.errno(), Some(Errno::EINVAL | Errno::ENOENT)) => {
            return Ok(Vec::new());
        }
        filters => filters?,
    };
    Ok(records(&filters, ifindex)
        .filter_map(|record| {
            let (name, program_id) = record.program()?;
            let priority = (record.info >> 16) as u16;
            (name == PROGRAM_NAME).then_some(HookProgram { program_id, priority })
        })
        .collect())
}

/// Puts a loaded program at a hook of an interface, in place of the one of ours that is there.
/// What holds the hooks (`clsact`) is shared with others and stays when our program goes.
///
/// # Errors
/// See [`NetlinkError`]; `EEXIST` for a program at [`Hook::Egress`] where somebody's `ingress` has the place of `clsact`:
/// it has no hook for what leaves, and would give the program what comes in.
pub fn attach_program(
    socket: &mut Socket,
    ifindex: u32,
    hook: Hook,
    program: BorrowedFd<'_>,
) -> Result<(), NetlinkError> {
    let place = Place { ifindex, attach: Attach::Root, major: 0 };
    let hooks = message(&place, CLSACT_HANDLE, CLSACT, "clsact", Vec::new());
    if let Err(error) = socket.request(M::NewQueueDiscipline(hooks), NLM_F_CREATE | NLM_F_EXCL) {
        let has_hooks = |qdisc: &Qdisc| match &qdisc.kind {
            QdiscKind::Clsact => true,
            QdiscKind::Other(name) => name == "ingress" && hook == Hook::Ingress,
            _ => false,
        };
        let is_there = error.errno() == Some(Errno::EEXIST);
        if !is_there || !observe(socket, ifindex)?.qdiscs.iter().any(has_hooks) {
            return Err(error);
        }
    }
    let mut name = PROGRAM_NAME.as_bytes().to_vec();
    name.push(0);
    let options = vec![
        nla(TCA_BPF_FD, program.as_raw_fd().to_ne_bytes()),
        nla(TCA_BPF_NAME, name),
        nla(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes()),
    ];
    let mut filter = message(&place, Handle::from_u32(1), hook.handle(), "bpf", options);
    filter.header.info = info_word(PROGRAM_PRIORITY, ETH_P_ALL);
    socket.request(M::NewTrafficFilter(filter), NLM_F_CREATE | NLM_F_REPLACE).map(drop)
}

/// Takes our programs off a hook of an interface.
///
/// # Errors
/// See [`NetlinkError`].
pub fn detach_programs(socket: &mut Socket, ifindex: u32, hook: Hook) -> Result<(), NetlinkError> {
    let place = Place { ifindex, attach: Attach::Root, major: 0 };
    for filter in programs(socket, ifindex, hook)? {
        let mut gone = header(&place, Handle::from_u32(1), hook.handle());
        gone.header.info = info_word(filter.priority, ETH_P_ALL);
        gone.attributes.push(netlink_packet_route::tc::TcAttribute::Kind("bpf".into()));
        socket.request(M::DelTrafficFilter(gone), 0)?;
    }
    Ok(())
}

pub(crate) fn dump(socket: &mut Socket, request: &M) -> Result<Vec<RawReply>, NetlinkError> {
    socket.request_raw(request, NLM_F_DUMP)
}

fn records(replies: &[RawReply], ifindex: u32) -> impl Iterator<Item = Record<'_>> {
    replies
        .iter()
        .filter_map(|reply| Record::parse(&reply.payload))
        .filter(move |record| record.ifindex == ifindex)
}

impl Hook {
    const fn handle(self) -> Handle {
        let minor = match self {
            Self::Ingress => 0xfff2,
            Self::Egress => 0xfff3,
        };
        Handle { major: 0xffff, minor }
    }
}

/// The name of our programs in filter listings: our mark there.
const PROGRAM_NAME: &str = "keeptime";
/// Behind the low numbers that others choose by hand, before those that the kernel chooses.
const PROGRAM_PRIORITY: u16 = TREE_MAJOR;
const CLSACT: Handle = Handle { major: 0xffff, minor: 0xfff1 };
const CLSACT_HANDLE: Handle = Handle { major: 0xffff, minor: 0 };
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
