//! Connections of other contexts to this one, until they have said who they are.

use crate::bridge::routes::Way;
use crate::carriers::Carriers;
use crate::config::Protocol;
use crate::frame::{Carrier, GREETING, Greeting};
use crate::id::ContextId;
use crate::progress::{Progress, lock};
use crate::sockets::{accepted, call, expect_trusted, receive};
use crate::transport::native::{self, Library};
use crate::transport::{self, Ends};
use nix::sys::socket::{ControlMessage, MsgFlags, SockType, sendmsg};
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::time::Duration;

/// What the listeners are watched as. Links have 32 bits; callers, who are not yet links, the bit
/// above.
pub const NEIGHBOURS: u64 = 1 << 40;
const REMOTES: u64 = (1 << 40) + 1;
const CALLERS: u64 = 1 << 32;

/// Callers that have not said who they are. If more come, the oldest goes: it is silent, or slow.
const CALLERS_MOST: usize = 64;
/// How long a connection to a process of the same node may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Where other contexts call.
#[derive(Debug)]
pub struct Listeners {
    neighbours: UnixListener,
    remotes: TcpListener,
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    last: u64,
    waiting: BTreeMap<u64, Caller>,
}

#[derive(Debug)]
enum Caller {
    Neighbour(UnixStream),
    Remote(TcpStream),
}

impl Listeners {
    /// Listens for other processes of the node and of other nodes.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn new(id: ContextId, address: SocketAddr, progress: &Progress) -> io::Result<Self> {
        let name = std::os::unix::net::SocketAddr::from_abstract_name(neighbour_name(id))?;
        let neighbours = UnixListener::bind_addr(&name)?;
        let remotes = TcpListener::bind(address)?;
        neighbours.set_nonblocking(true)?;
        remotes.set_nonblocking(true)?;
        progress.watch_reading(&neighbours, NEIGHBOURS)?;
        progress.watch_reading(&remotes, REMOTES)?;
        Ok(Self { neighbours, remotes, callers: Mutex::default() })
    }

    /// The port that other nodes call.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.remotes.local_addr()?.port())
    }

    /// Whether `token` is that of a listener or a caller.
    pub fn is_theirs(token: u64) -> bool {
        token >= CALLERS
    }

    /// What is watched as `token` became ready. Returns callers that have said who they are, meant this
    /// context, `id`, and are let in if they come from elsewhere.
    pub fn signalled(
        &self,
        token: u64,
        id: ContextId,
        progress: &Progress,
        lets_in: impl FnOnce(&Greeting) -> bool,
    ) -> Option<(Greeting, Ends)> {
        match token {
            NEIGHBOURS => {
                while let Some((stream, _)) = accepted(self.neighbours.accept()) {
                    self.accept(Caller::Neighbour(stream), progress);
                }
                None
            }
            REMOTES => {
                while let Some((stream, _)) = accepted(self.remotes.accept()) {
                    self.accept(Caller::Remote(stream), progress);
                }
                None
            }
            _ => self.greeted(token, id, progress, lets_in),
        }
    }

    fn accept(&self, caller: Caller, progress: &Progress) {
        if !caller.is_welcome() {
            return;
        }
        let mut callers = lock(&self.callers);
        callers.last += 1;
        let token = CALLERS | (callers.last & (CALLERS - 1));
        if progress.watch_reading(caller.fd(), token).is_err() {
            return;
        }
        if callers.waiting.len() >= CALLERS_MOST
            && let Some((_, oldest)) = callers.waiting.pop_first()
        {
            progress.forget(oldest.fd());
        }
        callers.waiting.insert(token, caller);
    }

    fn greeted(
        &self,
        token: u64,
        id: ContextId,
        progress: &Progress,
        lets_in: impl FnOnce(&Greeting) -> bool,
    ) -> Option<(Greeting, Ends)> {
        let mut callers = lock(&self.callers);
        let caller = callers.waiting.get(&token)?;
        let result = caller.greeting();
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return None;
        }
        let caller = callers.waiting.remove(&token)?;
        drop(callers);
        progress.forget(caller.fd());
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::InvalidData
        {
            tracing::warn!(%error, "a caller is turned away");
        }
        // Whoever is refused finds the connection closed, and has its messages back.
        let (greeting, handed_over) = result.ok()?;
        if greeting.to != id || greeting.from == id {
            return None;
        }
        if matches!(caller, Caller::Remote(_)) && !lets_in(&greeting) {
            tracing::warn!(from = %greeting.from, pass = ?greeting.pass, "a caller is not let in");
            return None;
        }
        let ends = match caller {
            Caller::Remote(stream) => match greeting.carrier {
                Carrier::Datagrams { port } => {
                    transport::udp::accept(stream, port, greeting.token(port))
                }
                Carrier::Library(library) => transport::native::accept(library, stream),
                Carrier::Itself => transport::tcp::ends(stream),
            },
            Caller::Neighbour(_) if greeting.is_rail => return None,
            Caller::Neighbour(stream) => transport::shared::accept(handed_over?, stream),
        };
        match ends {
            Ok(ends) => Some((greeting, ends)),
            Err(error) => {
                tracing::warn!(from = %greeting.from, %error, "a caller is turned away");
                None
            }
        }
    }
}

/// What comes with a greeting on a Unix socket.
type HandedOver = Option<[OwnedFd; transport::shared::HANDED_OVER]>;

impl Caller {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Neighbour(stream) => stream.as_fd(),
            Self::Remote(stream) => stream.as_fd(),
        }
    }

    /// Names without a file have no permissions: only the own user is let in, and root. Others come as
    /// from another node.
    fn is_welcome(&self) -> bool {
        match self {
            Self::Remote(stream) => stream.set_nonblocking(true).is_ok(),
            Self::Neighbour(stream) => expect_trusted(stream, geteuid().as_raw()).is_ok(),
        }
    }

    /// Reads the greeting. `WouldBlock` if it has not arrived; what is not whole at once is
    /// refused, since it was sent whole.
    fn greeting(&self) -> io::Result<(Greeting, HandedOver)> {
        let mut bytes = [0; GREETING];
        let (length, handed_over) = receive(self.fd(), &mut bytes, MsgFlags::MSG_DONTWAIT)?;
        if length != GREETING {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let invalid = |malformed| io::Error::new(io::ErrorKind::InvalidData, malformed);
        Ok((Greeting::decode(&bytes).map_err(invalid)?, handed_over.try_into().ok()))
    }
}

/// Over what a context that listens at these addresses can be called. Of libraries that is what is built in; of the one
/// over which it calls others itself, `own`, whether it has a network here, which takes long to find out and is not asked
/// of the others: who is called over one that has none says so then.
pub fn spoken(own: Protocol, addresses: &[SocketAddr]) -> Carriers {
    let mut addresses = addresses.iter().map(SocketAddr::ip);
    let elsewhere = addresses.find(|address| !address.is_loopback());
    let address = elsewhere.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    Carriers::of(|protocol| match protocol.library() {
        None => true,
        Some(library) if protocol == own => native::has_network(library, address),
        Some(library) => library.is_built_in(),
    })
}

/// Connects to a context of `owner` on the same node, through shared memory.
///
/// # Errors
/// If it does not listen or takes no callers, somebody else does, or this process has no descriptors left.
pub fn call_neighbour(greeting: Greeting, owner: u32) -> io::Result<Ends> {
    tracing::debug!(context = %greeting.to, "calls over shared memory");
    let stream = call(&neighbour_name(greeting.to), SockType::Stream, CONNECT_TIME)?;
    let stream = UnixStream::from(stream);
    expect_trusted(&stream, owner)?;
    let offered = transport::shared::Offered::new()?;
    let bytes = greeting.encode();
    let handed_over = offered.handed_over();
    let control = [ControlMessage::ScmRights(&handed_over)];
    let parts = [IoSlice::new(&bytes)];
    sendmsg::<()>(stream.as_raw_fd(), &parts, &control, MsgFlags::MSG_NOSIGNAL, None)?;
    offered.ends(stream)
}

/// Makes the caller's end of a connection to a context over `way`, on which nothing was said: of one that goes straight
/// over what is wanted between nodes, of one over bridges over TCP, which is what they carry.
///
/// # Errors
/// If the other end is gone, or this process has no descriptors left.
pub fn greet_over(
    way: &Way,
    stream: TcpStream,
    greeting: Greeting,
    protocol: Protocol,
) -> io::Result<Ends> {
    let protocol = if way.is_straight() { protocol } else { Protocol::Tcp };
    tracing::debug!(context = %greeting.to, way = ?way.hops, "calls over {protocol:?}");
    let greet = |mut stream: &TcpStream, carrier| {
        stream.write_all(&Greeting { carrier, ..greeting }.encode())
    };
    let library = match protocol {
        Protocol::Tcp => {
            greet(&stream, Carrier::Itself)?;
            return transport::tcp::ends(stream);
        }
        Protocol::Udp => {
            let socket = transport::udp::call(&stream)?;
            let port = socket.local_addr()?.port();
            greet(&stream, Carrier::Datagrams { port })?;
            return transport::udp::called(stream, socket, greeting.token(port));
        }
        Protocol::Libfabric => Library::Libfabric,
        Protocol::Ucx => Library::Ucx,
    };
    greet(&stream, Carrier::Library(library))?;
    transport::native::ends(library, stream)
}

/// Where other processes of its node call a context: a name without a file.
fn neighbour_name(id: ContextId) -> String {
    format!("keeptime-fabric/{id}")
}
