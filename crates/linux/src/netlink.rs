//! Requests to the kernel's route netlink family and their answers; blocking, one at a time.
//!
//! A [`Socket`] belongs to the network namespace of the thread that opened it, for ever. Every
//! request is acknowledged, so success means that the kernel has carried it out.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkMessage, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use thiserror::Error;

/// A route netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Why a request to the kernel did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel refused the request.
    #[error("{call} of {object}: {errno}{}", detail.as_ref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused {
        /// The request, as the kernel names it (`RTM_NEWTCLASS`).
        call: &'static str,
        /// What it was about (`class 1:10 htb on interface 3`).
        object: String,
        /// The kernel's answer.
        errno: Errno,
        /// What the kernel says about it, where it says anything.
        detail: Option<String>,
    },
    /// The socket itself failed.
    #[error("{call} on a route netlink socket: {errno}")]
    Socket {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// The kernel's answer does not make sense to us.
    #[error("answer to {call} of {object} cannot be read: {reason}")]
    Unreadable {
        /// The request.
        call: &'static str,
        /// What it was about.
        object: String,
        /// Where reading stopped.
        reason: String,
    },
    /// A dump was disturbed by changes each time it was tried.
    #[error("{call} of {object}: changed while it was read, {DUMP_TRIES} times in a row")]
    Unstable {
        /// The request.
        call: &'static str,
        /// What it was about.
        object: String,
    },
}

impl NetlinkError {
    /// The error number, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } | Self::Socket { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// One message of an answer that is not decoded: its type (`RTM_…`) and what follows the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawReply {
    /// The message type.
    pub message_type: u16,
    /// Everything after the netlink header.
    pub payload: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        let mut inner = netlink_sys::Socket::new(NETLINK_ROUTE).map_err(io("socket"))?;
        inner.bind_auto().map_err(io("bind"))?;
        inner.connect(&SocketAddr::new(0, 0)).map_err(io("connect"))?;
        inner.set_cap_ack(true).map_err(io("setsockopt(NETLINK_CAP_ACK)"))?;
        inner.set_ext_ack(true).map_err(io("setsockopt(NETLINK_EXT_ACK)"))?;
        // Lets the kernel filter dumps by interface; kernels before 4.20 answer with everything.
        let _ = inner.set_netlink_get_strict_chk(true);
        // SAFETY: `inner` owns the descriptor and outlives this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(inner.as_raw_fd()) };
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS_MAX))
            .map_err(|errno| NetlinkError::Socket { call: "setsockopt(SO_RCVTIMEO)", errno })?;
        Ok(Self { inner, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends one request and returns what the kernel answers, without acknowledgements: nothing
    /// for a change, one message for a query, many for a dump (`NLM_F_DUMP`). `NLM_F_REQUEST`
    /// and `NLM_F_ACK` are added here. A dump that is disturbed is tried again.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let unreadable = |reason: String| NetlinkError::Unreadable {
            call: call_name(&message),
            object: describe(&message),
            reason,
        };
        let replies = self.request_raw(&message, flags)?;
        let decode = |reply: RawReply| {
            RouteNetlinkMessage::parse_with_param(&reply.payload, reply.message_type)
                .map_err(|error| unreadable(error.to_string()))
        };
        replies.into_iter().map(decode).collect()
    }

    /// As [`Self::request`], for answers that the caller decodes: one object of a kind that the
    /// decoder does not know must not spoil the whole answer.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn request_raw(
        &mut self,
        message: &RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RawReply>, NetlinkError> {
        for _ in 0..DUMP_TRIES {
            let mut exchange = Exchange::new(std::slice::from_ref(message), flags, self.sequence);
            self.run(&mut exchange)?;
            exchange.first_error()?;
            if !exchange.disturbed {
                return Ok(exchange.replies);
            }
        }
        Err(NetlinkError::Unstable { call: call_name(message), object: describe(message) })
    }

    /// Sends many changes in few datagrams and waits for the answer to each of them. The kernel
    /// goes on after a refusal: the error is that of the first refused request, and the others
    /// were carried out.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn batch(&mut self, requests: &[(RouteNetlinkMessage, u16)]) -> Result<(), NetlinkError> {
        let mut first = Ok(());
        for chunk in requests.chunks(BATCH_MESSAGES_MAX) {
            let mut exchange = Exchange { sequence: self.sequence, ..Exchange::default() };
            for (message, flags) in chunk {
                exchange.add(message, *flags);
            }
            self.run(&mut exchange)?;
            first = first.and(exchange.first_error());
        }
        first
    }

    fn run<'m>(&mut self, exchange: &mut Exchange<'m>) -> Result<(), NetlinkError> {
        self.sequence = exchange.sequence;
        self.inner.send(&exchange.datagram, 0).map_err(io("send"))?;
        while !exchange.waiting.is_empty() {
            let length = self.receive()?;
            exchange.take(&self.buffer[..length])?;
        }
        Ok(())
    }

    /// Receives one datagram whole into the buffer, which grows where it must.
    fn receive(&mut self) -> Result<usize, NetlinkError> {
        let peek = libc::MSG_PEEK | libc::MSG_TRUNC;
        let length = self.inner.recv(&mut &mut self.buffer[..], peek).map_err(io("recv"))?;
        if length > self.buffer.len() {
            self.buffer.resize(length, 0);
        }
        self.inner.recv(&mut &mut self.buffer[..], 0).map_err(io("recv"))
    }
}

/// Requests in one datagram, and what has come back for them.
#[derive(Default)]
struct Exchange<'m> {
    datagram: Vec<u8>,
    sequence: u32,
    /// By sequence number: what has no final answer yet.
    waiting: BTreeMap<u32, &'m RouteNetlinkMessage>,
    replies: Vec<RawReply>,
    errors: BTreeMap<u32, NetlinkError>,
    disturbed: bool,
}

impl<'m> Exchange<'m> {
    fn new(messages: &'m [RouteNetlinkMessage], flags: u16, sequence: u32) -> Self {
        let mut exchange = Self { sequence, ..Self::default() };
        for message in messages {
            exchange.add(message, flags);
        }
        exchange
    }

    fn add(&mut self, message: &'m RouteNetlinkMessage, flags: u16) {
        // 0 is for messages that nobody asked for.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let ack = if flags & NLM_F_DUMP == NLM_F_DUMP && is_get(message) { 0 } else { NLM_F_ACK };
        let mut framed = NetlinkMessage::from(message.clone());
        framed.header.flags = NLM_F_REQUEST | ack | flags;
        framed.header.sequence_number = self.sequence;
        framed.finalize();
        let start = self.datagram.len();
        self.datagram.resize(start + framed.buffer_len().next_multiple_of(4), 0);
        framed.serialize(&mut self.datagram[start..]);
        self.waiting.insert(self.sequence, message);
    }

    fn take(&mut self, mut datagram: &[u8]) -> Result<(), NetlinkError> {
        while !datagram.is_empty() {
            let frame = NetlinkBuffer::new_checked(datagram)
                .map_err(|error| self.unreadable(error.to_string()))?;
            let length = frame.length() as usize;
            if let Some(message) = self.waiting.get(&frame.sequence_number()).copied() {
                self.answer(message, &datagram[..length])?;
            }
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }

    fn answer(&mut self, message: &RouteNetlinkMessage, frame: &[u8]) -> Result<(), NetlinkError> {
        let header = NetlinkBuffer::new(frame);
        let (sequence, flags) = (header.sequence_number(), header.flags());
        self.disturbed |= flags & NLM_F_DUMP_INTR != 0;
        match header.message_type() {
            NLMSG_NOOP => Ok(()),
            NLMSG_ERROR | NLMSG_DONE => {
                self.waiting.remove(&sequence);
                let (code, detail) = final_answer(&header, frame)
                    .map_err(|reason| unreadable_answer(message, reason))?;
                if code != 0 {
                    self.errors.insert(sequence, refused(message, code, detail));
                }
                Ok(())
            }
            message_type => {
                let payload = header.payload().to_vec();
                self.replies.push(RawReply { message_type, payload });
                Ok(())
            }
        }
    }

    fn first_error(&self) -> Result<(), NetlinkError> {
        self.errors.values().next().cloned().map_or(Ok(()), Err)
    }

    fn unreadable(&self, reason: String) -> NetlinkError {
        let (call, object) = self
            .waiting
            .values()
            .next()
            .map_or(("netlink", String::new()), |m| (call_name(m), describe(m)));
        NetlinkError::Unreadable { call, object, reason }
    }
}

/// The error number (0 = done) and the extended acknowledgement's text of an `NLMSG_ERROR` or
/// `NLMSG_DONE` message.
fn final_answer(
    header: &NetlinkBuffer<&[u8]>,
    frame: &[u8],
) -> Result<(i32, Option<String>), String> {
    let payload = header.payload();
    let Some((code, rest)) = payload.split_first_chunk::<4>() else {
        // A dump may end with nothing at all.
        return Ok((0, None));
    };
    let code = i32::from_ne_bytes(*code);
    if header.flags() & NLM_F_ACK_TLVS == 0 {
        return Ok((code, None));
    }
    // An error repeats the request's header (capped, as we asked) before its attributes.
    let skip = if header.message_type() == NLMSG_ERROR { NETLINK_HEADER_BYTES } else { 0 };
    let attributes = rest.get(skip..).ok_or(format!("{} bytes of error", frame.len()))?;
    let text = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|nla| nla.kind() == NLMSGERR_ATTR_MSG)
        .map(|nla| String::from_utf8_lossy(nla.value()).trim_end_matches('\0').to_owned());
    Ok((code, text))
}

fn refused(message: &RouteNetlinkMessage, code: i32, detail: Option<String>) -> NetlinkError {
    NetlinkError::Refused {
        call: call_name(message),
        object: describe(message),
        errno: Errno::from_raw(code.saturating_neg()),
        detail,
    }
}

fn unreadable_answer(message: &RouteNetlinkMessage, reason: String) -> NetlinkError {
    NetlinkError::Unreadable { call: call_name(message), object: describe(message), reason }
}

fn io(call: &'static str) -> impl Fn(std::io::Error) -> NetlinkError {
    move |error| NetlinkError::Socket {
        call,
        errno: Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn is_get(message: &RouteNetlinkMessage) -> bool {
    call_name(message).starts_with("RTM_GET")
}

/// The request as the kernel names it.
fn call_name(message: &RouteNetlinkMessage) -> &'static str {
    use RouteNetlinkMessage as M;
    match message {
        M::NewLink(_) => "RTM_NEWLINK",
        M::DelLink(_) => "RTM_DELLINK",
        M::GetLink(_) => "RTM_GETLINK",
        M::SetLink(_) => "RTM_SETLINK",
        M::NewLinkProp(_) => "RTM_NEWLINKPROP",
        M::DelLinkProp(_) => "RTM_DELLINKPROP",
        M::NewAddress(_) => "RTM_NEWADDR",
        M::DelAddress(_) => "RTM_DELADDR",
        M::GetAddress(_) => "RTM_GETADDR",
        M::NewRoute(_) => "RTM_NEWROUTE",
        M::DelRoute(_) => "RTM_DELROUTE",
        M::GetRoute(_) => "RTM_GETROUTE",
        M::NewQueueDiscipline(_) => "RTM_NEWQDISC",
        M::DelQueueDiscipline(_) => "RTM_DELQDISC",
        M::GetQueueDiscipline(_) => "RTM_GETQDISC",
        M::NewTrafficClass(_) => "RTM_NEWTCLASS",
        M::DelTrafficClass(_) => "RTM_DELTCLASS",
        M::GetTrafficClass(_) => "RTM_GETTCLASS",
        M::NewTrafficFilter(_) => "RTM_NEWTFILTER",
        M::DelTrafficFilter(_) => "RTM_DELTFILTER",
        M::GetTrafficFilter(_) => "RTM_GETTFILTER",
        M::GetNeighbour(_) => "RTM_GETNEIGH",
        M::GetRule(_) => "RTM_GETRULE",
        _ => "RTM_*",
    }
}

/// What a request is about, in words.
fn describe(message: &RouteNetlinkMessage) -> String {
    use RouteNetlinkMessage as M;
    match message {
        M::NewLink(link)
        | M::DelLink(link)
        | M::GetLink(link)
        | M::SetLink(link)
        | M::NewLinkProp(link)
        | M::DelLinkProp(link) => describe_link(link),
        M::NewAddress(address) | M::DelAddress(address) | M::GetAddress(address) => {
            format!("an address on interface {}", address.header.index)
        }
        M::NewQueueDiscipline(tc) | M::DelQueueDiscipline(tc) | M::GetQueueDiscipline(tc) => {
            describe_tc("queueing discipline", tc)
        }
        M::NewTrafficClass(tc) | M::DelTrafficClass(tc) | M::GetTrafficClass(tc) => {
            describe_tc("class", tc)
        }
        M::NewTrafficFilter(tc) | M::DelTrafficFilter(tc) | M::GetTrafficFilter(tc) => {
            describe_tc("filter", tc)
        }
        M::NewRoute(_) | M::DelRoute(_) | M::GetRoute(_) => "a route".to_owned(),
        _ => "an object".to_owned(),
    }
}

fn describe_link(link: &LinkMessage) -> String {
    let name = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    match (name, link.header.index) {
        (Some(name), _) => format!("interface {name}"),
        (None, 0) => "all interfaces".to_owned(),
        (None, index) => format!("interface {index}"),
    }
}

fn describe_tc(noun: &str, tc: &TcMessage) -> String {
    let kind = tc.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(format!("{kind} ")),
        _ => None,
    });
    let (handle, parent) = (tc.header.handle, tc.header.parent);
    format!(
        "{}{noun} {:x}:{:x} under {:x}:{:x} on interface {}",
        kind.unwrap_or_default(),
        handle.major,
        handle.minor,
        parent.major,
        parent.minor,
        tc.header.index
    )
}

/// Room for the greatest dump message that the kernel makes (32 KiB) twice.
const BUFFER_BYTES: usize = 64 * 1024;
/// An acknowledgement takes about 1 KiB of the receive queue (212,992 bytes by default), so that
/// 128 of them always fit.
const BATCH_MESSAGES_MAX: usize = 128;
/// The kernel answers route requests before `send` returns; only a dump is longer, and is bounded.
const ANSWER_SECONDS_MAX: i64 = 10;
const DUMP_TRIES: usize = 5;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NETLINK_HEADER_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
    use netlink_packet_route::tc::TcHandle;

    #[test]
    fn a_dump_lists_the_loopback_interface() {
        let mut socket = Socket::open().unwrap();
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let links = socket.request(all, NLM_F_DUMP).unwrap();
        let names: Vec<_> = links
            .iter()
            .map(|link| match link {
                RouteNetlinkMessage::NewLink(link) => describe_link(link),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(names.contains(&"interface lo".to_owned()), "{names:?}");
    }

    #[test]
    fn one_link_is_one_answer() {
        let mut socket = Socket::open().unwrap();
        let mut lo = LinkMessage::default();
        lo.header.index = 1;
        assert_eq!(socket.request(RouteNetlinkMessage::GetLink(lo), 0).unwrap().len(), 1);
    }

    // A class on an interface that does not exist is refused whatever our privilege is, and so is
    // each of a batch that is longer than one datagram.
    #[test]
    fn refusals_name_call_object_and_errno() {
        let mut socket = Socket::open().unwrap();
        let mut tc = TcMessage::with_index(0x7fff_fff0);
        tc.header.handle = TcHandle { major: 1, minor: 0x10 };
        tc.header.parent = TcHandle { major: 1, minor: 0 };
        tc.attributes.push(TcAttribute::Kind("htb".into()));
        let class = RouteNetlinkMessage::NewTrafficClass(tc);
        let error = socket.request(class.clone(), NLM_F_CREATE | NLM_F_EXCL).unwrap_err();
        let NetlinkError::Refused { call, ref object, errno, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(call, "RTM_NEWTCLASS");
        assert_eq!(object, "htb class 1:10 under 1:0 on interface 2147483632");
        assert!([Errno::ENODEV, Errno::EPERM].contains(&errno), "{error}");
        let batch = vec![(class, NLM_F_CREATE); BATCH_MESSAGES_MAX + 3];
        assert_eq!(socket.batch(&batch).unwrap_err().errno(), Some(errno));
        one_more_after(&mut socket);
    }

    fn one_more_after(socket: &mut Socket) {
        let mut lo = LinkMessage::default();
        lo.header.index = 1;
        assert_eq!(socket.request(RouteNetlinkMessage::GetLink(lo), 0).unwrap().len(), 1);
    }

    #[test]
    fn what_is_not_netlink_is_refused_not_believed() {
        let link = RouteNetlinkMessage::GetLink(LinkMessage::default());
        for bytes in [&[1u8, 2, 3][..], &[0; 16], &[255; 64]] {
            let mut exchange = Exchange::new(std::slice::from_ref(&link), 0, 0);
            assert!(exchange.take(bytes).is_err(), "{bytes:?}");
        }
    }
}
