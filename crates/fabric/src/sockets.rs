//! What all that listen and all Unix sockets need: callers are taken as long as there are descriptors for
//! them, who is at the other end is known, what it hands over is owned, and nobody waits for ever for one
//! who takes no callers.

use crate::door::is_trusted;
use crate::transport::is_passing;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, PeerCredentials, ReuseAddr, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage,
    UnixAddr, bind, connect, getsockopt, recvmsg, setsockopt, socket,
};
use nix::sys::time::TimeVal;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

/// Descriptors that the kernel hands over with one message at most (`SCM_MAX_FD`): with room for all of
/// them there are none that nobody owns.
const HANDED_OVER_MOST: usize = 253;
/// How often a port is looked for that is free for both kinds of addresses.
const PORT_TRIES: u32 = 64;
/// How long a thread rests that has no descriptor for a caller, which stays there: it would do nothing
/// else. Short, since what it does besides waits.
const REST: Duration = Duration::from_millis(1);

/// How long whoever has a daemon's name may take to be called.
const HOLDER_TIME: Duration = Duration::from_secs(1);

/// A caller, if there is one and it can be taken.
pub fn accepted<T>(result: io::Result<T>) -> Option<T> {
    if result.as_ref().is_err_and(|error| !is_passing(error)) {
        thread::sleep(REST);
    }
    result.ok()
}

/// A connection to whoever listens at `name`, which is a name without a file. A process that is stopped has room for so many
/// callers, and whoever comes after these would wait until it goes on: that is given up after `time`. So is whatever is written
/// to the connection later and that the other end does not read.
///
/// # Errors
/// If nobody listens there; `WouldBlock` if no caller was taken in that time.
pub fn call(name: &str, kind: SockType, time: Duration) -> io::Result<OwnedFd> {
    let (address, until) = (UnixAddr::new_abstract(name.as_bytes())?, Instant::now() + time);
    let caller = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&caller, SendTimeout, &time_value(time))?;
    loop {
        match connect(caller.as_raw_fd(), &address) {
            Ok(()) => return Ok(caller),
            // A signal: where there is a time, the kernel does not go on by itself.
            Err(Errno::EINTR) if Instant::now() < until => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Listens at `address`. Where that is the unspecified one of IPv6, callers over IPv4 are taken as well, whatever the system's
/// default is, and on a node without IPv6 they alone. As many callers wait there as the system lets wait: beyond the 128 that
/// the standard library asks for, those of a program that computes would find nobody.
///
/// # Errors
/// If the node has not that address, or its port is taken.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() != Ipv6Addr::UNSPECIFIED {
        return listen_at(address);
    }
    let both = || {
        let socket = bind_ipv6(SockType::Stream, false, address.port())?;
        nix::sys::socket::listen(&socket, Backlog::MAXALLOWABLE)?;
        Ok(TcpListener::from(socket))
    };
    let alone = || listen_at((Ipv4Addr::UNSPECIFIED, address.port()).into());
    both().or_else(|error| if lacks_ipv6(&error) { alone() } else { Err(error) })
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE)?;
    Ok(listener)
}

/// Sockets for datagrams on every interface, one for each kind of addresses that the node has, at the same port; 0: any that is
/// free.
///
/// # Errors
/// If that is taken.
pub fn datagrams(port: u16) -> io::Result<Vec<UdpSocket>> {
    let mut tries = 0..PORT_TRIES;
    loop {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        match bind_ipv6(SockType::Datagram, true, socket.local_addr()?.port()) {
            Ok(other) => return Ok(vec![socket, UdpSocket::from(other)]),
            Err(error) if lacks_ipv6(&error) => return Ok(vec![socket]),
            // It is free for one kind alone.
            Err(error) if error.kind() == ErrorKind::AddrInUse && port == 0 => {
                tries.next().ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// A socket of IPv6 on every interface, at `port`; `only`, if it is not one of IPv4 as well.
fn bind_ipv6(kind: SockType, only: bool, port: u16) -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Inet6, kind, SockFlag::SOCK_CLOEXEC, None)?;
    if kind == SockType::Stream {
        setsockopt(&socket, ReuseAddr, &true)?;
    }
    setsockopt(&socket, Ipv6V6Only, &only)?;
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// Whether a socket of IPv6 was refused since the node has none.
fn lacks_ipv6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

/// Why the daemon `name` cannot listen at `at`, a name without a file: whoever was first has it, a daemon or not, and who that is
/// can be ended.
pub fn taken(error: io::Error, name: &str, at: &str, kind: SockType) -> io::Error {
    if error.kind() != ErrorKind::AddrInUse {
        return error;
    }
    let peer =
        call(at, kind, HOLDER_TIME).and_then(|holder| Ok(getsockopt(&holder, PeerCredentials)?));
    let holder = match peer {
        Ok(peer) => format!("process {} of user {}", peer.pid(), peer.uid()),
        Err(_) => {
            format!("a process that takes no callers (`ss -xap`, as root, shows whose @{at} is)")
        }
    };
    let text = format!(
        "the name {name:?} is taken on this node, by {holder}: a daemon, or whoever was first"
    );
    io::Error::new(ErrorKind::AddrInUse, text)
}

/// A time as sockets are told it, of which none would be for ever.
pub fn time_value(time: Duration) -> TimeVal {
    TimeVal::new(time.as_secs() as libc::time_t, time.subsec_micros() as libc::suseconds_t)
}

/// The user at the other end of a Unix socket.
///
/// # Errors
/// If the kernel does not say.
pub fn user_of(socket: impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&socket, PeerCredentials)?.uid())
}

/// Makes sure that `user` may trust whoever is at the other end of a Unix socket: a name without a file
/// has no permissions, and whoever was first may have it.
///
/// # Errors
/// If it is neither that user nor root.
pub fn expect_trusted(socket: impl AsFd, user: u32) -> io::Result<()> {
    let other = user_of(socket)?;
    if is_trusted(user, other) {
        return Ok(());
    }
    let why =
        format!("it is that of user {other}: root's, or that of user {user}, would be trusted");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Reads what is said next into `bytes`. Returns how many these are, and all that was handed over with
/// them.
///
/// # Errors
/// If there is nothing.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; HANDED_OVER_MOST]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut handed_over = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            // SAFETY: the kernel has just made these descriptors for this process.
            handed_over.extend(fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    Ok((message.bytes, handed_over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessage, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    /// However many come with a message, all of them are there, and closed when nobody wants them.
    #[test]
    fn what_is_handed_over_is_owned() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut kept, given) = UnixStream::pair().unwrap();
        let fds = [given.as_raw_fd(); 7];
        let (parts, control) = ([IoSlice::new(b"all")], [ControlMessage::ScmRights(&fds)]);
        sendmsg::<()>(here.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
        let mut bytes = [0; 8];
        let (length, handed_over) = receive(there.as_fd(), &mut bytes, MsgFlags::empty()).unwrap();
        assert_eq!((&bytes[..length], handed_over.len()), (&b"all"[..], fds.len()));
        drop((given, handed_over));
        kept.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(kept.read(&mut [0]).unwrap(), 0, "nobody has the other end");
    }

    /// A caller that cannot be taken stays where it is: who looks again at once would do nothing else.
    #[test]
    fn who_has_no_descriptor_for_a_caller_rests() {
        let start = Instant::now();
        assert!(accepted::<()>(Err(Errno::EMFILE.into())).is_none());
        assert!(start.elapsed() >= REST);
        assert_eq!(accepted(Ok(1)), Some(1));
    }

    /// As a process that is stopped: it takes nobody, and reads nothing of what one who was early says.
    #[test]
    fn who_takes_no_callers_is_not_waited_for_for_ever() {
        const TIME: Duration = Duration::from_millis(20);
        let name = format!("sockets-{}", std::process::id());
        let stopped = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let stopped = stopped.unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        bind(stopped.as_raw_fd(), &address).unwrap();
        nix::sys::socket::listen(&stopped, Backlog::new(0_i32).unwrap()).unwrap();
        let mut early = Vec::new();
        let late = (0..8).find_map(|_| match call(&name, SockType::Stream, TIME) {
            Ok(caller) => {
                early.push(caller);
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(late.unwrap().kind(), ErrorKind::WouldBlock);
        let mut first = UnixStream::from(early.swap_remove(0));
        let unread = (0..100_000).find_map(|_| first.write_all(&[0; 4096]).err());
        assert_eq!(unread.unwrap().kind(), ErrorKind::WouldBlock);
    }

    /// Whoever has a daemon's name keeps it from starting: who that is can be seen, if only by its taking no callers.
    #[test]
    fn whoever_has_a_daemons_name_is_named() {
        let name = format!("sockets-taken-{}", std::process::id());
        let holder = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let holder = holder.unwrap();
        bind(holder.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        let told = || taken(Errno::EADDRINUSE.into(), "n1", &name, SockType::Stream).to_string();
        assert!(told().contains(&format!("whose @{name} is")), "{}", told());
        nix::sys::socket::listen(&holder, Backlog::new(8_i32).unwrap()).unwrap();
        let own = (std::process::id(), nix::unistd::geteuid());
        assert!(told().contains(&format!("by process {} of user {}:", own.0, own.1)), "{}", told());
        assert_eq!(
            taken(Errno::EACCES.into(), "n1", &name, SockType::Stream).raw_os_error(),
            Some(libc::EACCES)
        );
    }

    /// Goal: callers of a program that computes wait for it, up to what the system lets wait. Method: twice as many as the standard
    /// library asks for; one more than there is room for would not be connected within a second.
    #[test]
    fn many_callers_wait_until_they_are_taken() {
        const CALLERS: usize = 256;
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let callers: Vec<_> = (0..CALLERS.min(most))
            .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(500)).unwrap())
            .collect();
        listener.set_nonblocking(true).unwrap();
        let taken = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(taken, callers.len());
    }

    #[test]
    fn callers_of_both_kinds_of_addresses_are_taken() {
        let port = listen((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let at = port.local_addr().unwrap();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, at.port())).is_ok());
        if at.is_ipv6() {
            assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, at.port())).is_ok());
            let taken = listen(at).map_err(|error| error.kind());
            assert_eq!(taken.err(), Some(ErrorKind::AddrInUse));
        }
        let only = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert!(only.local_addr().unwrap().is_ipv4());
    }

    #[test]
    fn datagrams_of_both_kinds_of_addresses_come_to_one_port() {
        let sockets = datagrams(0).unwrap();
        let ports: Vec<_> = sockets.iter().map(|s| s.local_addr().unwrap().port()).collect();
        assert!(ports.iter().all(|port| *port == ports[0]));
        let from: [SocketAddr; 2] =
            [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
        for (socket, from) in sockets.iter().zip(from) {
            let sender = UdpSocket::bind(from).unwrap();
            sender.send_to(&[7], (from.ip(), ports[0])).unwrap();
            assert_eq!(socket.recv_from(&mut [0]).unwrap().1, sender.local_addr().unwrap());
        }
    }

    /// As a kernel without it says, and one on which it is switched off.
    #[test]
    fn a_node_without_ipv6_is_no_other_fault() {
        let [absent, off, taken] =
            [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL, Errno::EADDRINUSE].map(io::Error::from);
        assert_eq!([absent, off, taken].map(|error| lacks_ipv6(&error)), [true, true, false]);
    }

    #[test]
    fn the_own_user_is_trusted() {
        let (here, _there) = UnixStream::pair().unwrap();
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(user_of(&here).unwrap(), user);
        assert!(expect_trusted(&here, user).is_ok());
    }
}
