//! The open IPv4 connections of a network namespace, and whose they are, by the kernel's socket
//! diagnosis. Each has a cookie: a number that the kernel gives to no other socket, and by which its
//! packets can be recognised ([`crate::flows`]).

use crate::syscall::SyscallError;
use keeptime_model::Invalid;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::path::PathBuf;

/// One open connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The kernel's number of the socket, never given out again.
    pub cookie: u64,
    /// How it is carried.
    pub protocol: Protocol,
    /// The end on this node.
    pub local: SocketAddrV4,
    /// The other end.
    pub remote: SocketAddrV4,
    /// The user who made the socket.
    pub user: u32,
    /// The number under which processes have it open.
    inode: u32,
}

/// How packets are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// In order, without loss.
    Tcp,
    /// As they come.
    Udp,
}

/// The connections of the calling thread's network namespace: TCP ones, and UDP sockets that have
/// one peer. Takes about a microsecond for each socket of the namespace.
///
/// # Errors
/// If the kernel has no socket diagnosis (`inet_diag`, `tcp_diag`, `udp_diag`).
pub fn connections() -> Result<Vec<Connection>, SyscallError> {
    let mut found = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for family in [libc::AF_INET, libc::AF_INET6] {
            dump(family as u8, protocol, &mut found)?;
        }
    }
    Ok(found)
}

/// Those of `connections` that these processes have open.
///
/// # Errors
/// If their descriptors cannot be read: no privilege. A process that has ended has none. Where they have more than
/// [`DESCRIPTORS_MAX`] together, the first count.
pub fn of_processes(
    pids: &[i32],
    connections: &[Connection],
) -> Result<Vec<Connection>, SyscallError> {
    let inodes = inodes(pids, DESCRIPTORS_MAX)?;
    Ok(connections.iter().filter(|c| inodes.contains(&c.inode)).copied().collect())
}

/// How many descriptors these processes have together: no more than one above [`DESCRIPTORS_MAX`] are counted.
///
/// # Errors
/// As [`of_processes`].
pub fn count_descriptors(pids: &[i32]) -> Result<usize, SyscallError> {
    let mut count = 0;
    for pid in pids {
        count += descriptors(*pid)?.take(DESCRIPTORS_MAX + 1 - count).count();
    }
    Ok(count)
}

/// Descriptors that are looked at at a time, some microseconds each: nobody keeps an agent busy with them.
pub const DESCRIPTORS_MAX: usize = 16_384;

/// What sockets of these processes are known by; of all their descriptors together the first `most` count.
fn inodes(pids: &[i32], most: usize) -> Result<BTreeSet<u32>, SyscallError> {
    let (mut found, mut left) = (BTreeSet::new(), most);
    for pid in pids {
        for path in descriptors(*pid)?.take(left) {
            left -= 1;
            let link = std::fs::read_link(path).ok();
            found.extend(link.and_then(|link| parse_link(link.to_str().unwrap_or_default())));
        }
    }
    Ok(found)
}

/// The links that stand for a process's descriptors; none if it has ended.
fn descriptors(pid: i32) -> Result<impl Iterator<Item = PathBuf>, SyscallError> {
    let path = format!("/proc/{pid}/fd");
    let entries = match std::fs::read_dir(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        entries => Some(entries.map_err(SyscallError::of_io("open", path))?),
    };
    Ok(entries.into_iter().flatten().flatten().map(|entry| entry.path()))
}

fn dump(family: u8, protocol: Protocol, found: &mut Vec<Connection>) -> Result<(), SyscallError> {
    let object = format!("{protocol} sockets");
    let error = |call: &'static str| SyscallError::of_io(call, object.clone());
    let socket = netlink_sys::Socket::new(NETLINK_SOCK_DIAG).map_err(error("socket"))?;
    socket.send(&request(family, protocol), 0).map_err(error("send"))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = socket.recv(&mut &mut buffer[..], 0).map_err(error("recv"))?;
        match parse_datagram(&buffer[..length], protocol, found) {
            Reply::More => {}
            Reply::Done => return Ok(()),
            Reply::Failed(errno) => {
                return Err(SyscallError { call: "SOCK_DIAG_BY_FAMILY", object, errno });
            }
        }
    }
}

/// What a datagram of an answer says about the rest of it.
enum Reply {
    More,
    Done,
    Failed(Errno),
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2` (include/uapi/linux/inet_diag.h): everything of
/// this family and protocol, in any state.
fn request(family: u8, protocol: Protocol) -> Vec<u8> {
    let number = match protocol {
        Protocol::Tcp => libc::IPPROTO_TCP,
        Protocol::Udp => libc::IPPROTO_UDP,
    };
    let mut message = Vec::with_capacity(REQUEST_BYTES);
    message.extend((REQUEST_BYTES as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([family, number as u8, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.resize(REQUEST_BYTES, 0);
    message
}

fn parse_datagram(mut data: &[u8], protocol: Protocol, found: &mut Vec<Connection>) -> Reply {
    while let (Some(length), Some(kind)) = (u32_at(data, 0), u16_at(data, 4)) {
        let length = length as usize;
        let Some(body) = data.get(HEADER_BYTES..length) else { break };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Reply::Done,
            libc::NLMSG_ERROR => {
                let errno = u32_at(body, 0).map_or(0, u32::cast_signed);
                return Reply::Failed(Errno::from_raw(errno.saturating_neg()));
            }
            _ => found.extend(parse_connection(body, protocol)),
        }
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Reply::More
}

/// `struct inet_diag_msg`; nothing for a socket without a peer, and for IPv6.
fn parse_connection(body: &[u8], protocol: Protocol) -> Option<Connection> {
    let family = *body.first()?;
    let end = |port_at: usize, address_at: usize| {
        let port = u16::from_be_bytes(body.get(port_at..port_at + 2)?.try_into().ok()?);
        Some(SocketAddrV4::new(ipv4(family, body.get(address_at..address_at + 16)?)?, port))
    };
    let (local, remote) = (end(4, 8)?, end(6, 24)?);
    let cookie = u64::from_ne_bytes(body.get(44..52)?.try_into().ok()?);
    let (user, inode) = (u32_at(body, 64)?, u32_at(body, 68)?);
    let connection = Connection { cookie, protocol, local, remote, user, inode };
    (remote.port() != 0 && inode != 0).then_some(connection)
}

/// An address of IPv4, also where an IPv6 socket carries it.
fn ipv4(family: u8, address: &[u8]) -> Option<Ipv4Addr> {
    if i32::from(family) == libc::AF_INET {
        let octets: [u8; 4] = address.get(..4)?.try_into().ok()?;
        return Some(octets.into());
    }
    let octets: [u8; 16] = address.try_into().ok()?;
    Ipv6Addr::from(octets).to_ipv4_mapped()
}

/// `socket:[4711]`, as descriptors of sockets read in `/proc`.
fn parse_link(text: &str) -> Option<u32> {
    text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

/// A connection as a user asks for it.
///
/// # Errors
/// If none of `connections` matches, or one that does belongs to another user than `user` (nothing
/// = any user's will do).
pub fn matching(
    pattern: &keeptime_model::connection::ConnectionPattern,
    user: Option<u32>,
    connections: &[Connection],
) -> Result<Vec<Connection>, Invalid> {
    let found: Vec<_> =
        connections.iter().filter(|c| pattern.matches(c.local, c.remote)).copied().collect();
    if found.is_empty() {
        let expected = "an open TCP connection of this node, or a UDP socket with one peer";
        return Err(Invalid::new("flow", pattern, expected));
    }
    match found.iter().find(|c| user.is_some_and(|user| user != c.user)) {
        None => Ok(found),
        Some(other) => {
            let expected = format!("connections of your own; {other} is user {}'s", other.user);
            Err(Invalid::new("flow", pattern, expected))
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}-{}", self.protocol, self.local, self.remote)
    }
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const HEADER_BYTES: usize = 16;
/// The header, and 56 bytes of question.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// The kernel fills datagrams of a dump up to 32 KiB.
const BUFFER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    // What the kernel says about connections of our own, asked without privilege.
    #[test]
    fn own_connections_are_found_with_their_ends_and_their_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.connect("127.0.0.1:9").unwrap();
        let all = match connections() {
            Err(error) => return crate::testing::skip(&["sock_diag".into()], &error.to_string()),
            Ok(all) => all,
        };
        let own = of_processes(&[std::process::id() as i32], &all).unwrap();
        let find = |local: std::net::SocketAddr| {
            *own.iter().find(|c| std::net::SocketAddr::V4(c.local) == local).unwrap()
        };
        let tcp = find(stream.local_addr().unwrap());
        assert_eq!(std::net::SocketAddr::V4(tcp.remote), listener.local_addr().unwrap());
        assert_eq!((tcp.protocol, tcp.user), (Protocol::Tcp, nix::unistd::getuid().as_raw()));
        let udp = find(datagrams.local_addr().unwrap());
        assert_eq!((udp.protocol, udp.remote.port()), (Protocol::Udp, 9));
        assert_ne!(tcp.cookie, udp.cookie);
        // The listener itself talks to nobody.
        let listening = |c: &&Connection| c.remote.port() == 0;
        assert_eq!(all.iter().find(listening), None);
        assert_eq!(of_processes(&[i32::MAX], &all).unwrap(), []);
    }

    // Goal: many processes with many descriptors cost no more than one. Method: two whose first is a
    // socket.
    #[test]
    fn descriptors_of_all_processes_count_together() {
        let mut programs = [0, 1].map(|_| {
            let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
            let mut command = Command::new("sleep");
            command.arg("60").stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        });
        let pids = programs.each_ref().map(|program| program.id() as i32);
        let each = pids.map(|pid| count_descriptors(&[pid]).unwrap());
        assert_eq!(count_descriptors(&pids).unwrap(), each.iter().sum::<usize>());
        let link = |pid| std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
        let sockets = pids.map(|pid| parse_link(link(pid).to_str().unwrap()).unwrap());
        let found = [0, 1, each[0], each[0] + 1].map(|most| {
            let found = inodes(&pids, most).unwrap();
            sockets.map(|socket| found.contains(&socket))
        });
        for program in &mut programs {
            program.kill().unwrap();
            program.wait().unwrap();
        }
        assert_eq!(found, [[false, false], [true, false], [true, false], [true, true]]);
    }

    #[test]
    fn a_pattern_finds_connections_of_its_user_only() {
        let end = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        let one = Connection {
            cookie: 1,
            protocol: Protocol::Tcp,
            local: end("10.0.0.1:4000"),
            remote: end("10.0.0.2:5001"),
            user: 7,
            inode: 3,
        };
        let ask = |text: &str, user| matching(&text.parse().unwrap(), user, &[one]);
        assert_eq!(ask("10.0.0.2", None), Ok(vec![one]));
        assert_eq!(ask("10.0.0.2:5001", Some(7)), Ok(vec![one]));
        let error = ask("10.0.0.2", Some(8)).unwrap_err().to_string();
        assert!(error.contains("TCP 10.0.0.1:4000-10.0.0.2:5001 is user 7's"), "{error}");
        let error = ask("10.0.0.3", None).unwrap_err().to_string();
        assert!(error.contains("flow: \"10.0.0.3\"") && error.contains("an open TCP"), "{error}");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_or_passed_over(data in prop::collection::vec(any::<u8>(), 0..200)) {
            parse_datagram(&data, Protocol::Tcp, &mut Vec::new());
        }
    }
}
