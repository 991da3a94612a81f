//! Connections of other contexts to this one, until they have said who they are.

use crate::bridge::routes::Way;
use crate::carriers::Carriers;
use crate::config::Protocol;
use crate::frame::{Carrier, GREETING, Greeting};
use crate::id::ContextId;
use crate::progress::Progress;
use crate::sockets::{self, accepted, call, expect_trusted, receive};
use crate::transport::native::{self, Library};
use crate::transport::{self, Ends};
use keeptime_locks::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, SockType, sendmsg};
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, Write};
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What the listeners are watched as. Links have 32 bits; callers, who are not yet links, the bit
/// above.
pub const NEIGHBOURS: u64 = 1 << 40;
const REMOTES: u64 = (1 << 40) + 1;
const CALLERS: u64 = 1 << 32;

/// Callers that have not said who they are. If more come, the oldest goes: it is silent, or slow.
const CALLERS_MOST: usize = 64;
/// How long a caller may be anybody that has not said who it is: most say so at once, and who has been silent for longer is
/// not waited for.
const SILENT_MOST: Duration = Duration::from_secs(1);
/// Callers that are taken before others have their turn: each takes some descriptors, which those give back that have
/// ended meanwhile.
const TAKEN_MOST: usize = 16;
/// How long that turn is at least.
const TURN: Duration = Duration::from_millis(1);
/// How long a connection to a process of the same node may take.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Where other contexts call.
#[derive(Debug)]
pub struct Listeners {
    id: ContextId,
    neighbours: UnixListener,
    remotes: TcpListener,
    /// Held until whoever is heard is taken in: whoever has it finds no call half taken.
    callers: Mutex<Callers>,
}

/// Whose callers they are.
pub trait Host {
    /// Where they are watched.
    fn progress(&self) -> &Progress;
    /// Whether one that comes from elsewhere is let in.
    fn lets_in(&self, greeting: &Greeting) -> bool;
    /// One has said who it is, means this context, and is let in.
    fn greeted(&self, greeting: &Greeting, ends: Ends);
}

/// Those that have not said who they are.
#[derive(Debug, Default)]
struct Callers {
    last: u64,
    waiting: BTreeMap<u64, Silent>,
}

/// One of them, and since when it is there.
#[derive(Debug)]
struct Silent {
    caller: Caller,
    since: Instant,
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
        let remotes = sockets::listen(address)?;
        neighbours.set_nonblocking(true)?;
        remotes.set_nonblocking(true)?;
        progress.watch_reading(&neighbours, NEIGHBOURS)?;
        progress.watch_reading(&remotes, REMOTES)?;
        Ok(Self { id, neighbours, remotes, callers: Mutex::default() })
    }

    /// Where other nodes call.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.remotes.local_addr()
    }

    /// Whether `token` is that of a listener or a caller.
    pub fn is_theirs(token: u64) -> bool {
        token >= CALLERS
    }

    /// What is watched as `token` became ready: callers are taken, and heard.
    pub fn signalled(&self, token: u64, host: &impl Host) {
        let mut callers = lock(&self.callers);
        if matches!(token, NEIGHBOURS | REMOTES) {
            self.take_some(token, &mut callers, host);
        } else {
            self.hear(token, &mut callers, host);
        }
    }

    /// Takes and hears callers that are there. Returns when to look again if one of them may be anybody: it is not taken yet,
    /// or has not said yet who it is.
    pub fn hear_callers(&self, host: &impl Host) -> Option<Instant> {
        let mut callers = lock(&self.callers);
        for listener in [NEIGHBOURS, REMOTES] {
            self.take_some(listener, &mut callers, host);
        }
        let waiting: Vec<_> = callers.waiting.keys().copied().collect();
        waiting.into_iter().for_each(|token| self.hear(token, &mut callers, host));
        let now = Instant::now();
        if self.are_called() {
            return Some(now + TURN);
        }
        let last = callers.waiting.values().map(|silent| silent.since + SILENT_MOST).max();
        last.filter(|until| *until > now)
    }

    /// Takes those that have called there, as far as they have their turn.
    fn take_some(&self, listener: u64, callers: &mut Callers, host: &impl Host) {
        let next = iter::from_fn(|| self.next(listener)).take(TAKEN_MOST);
        next.for_each(|caller| self.take(caller, callers, host));
    }

    /// Whether callers are there that are not taken: more than had their turn, or than there were descriptors for.
    fn are_called(&self) -> bool {
        let of = |listener| PollFd::new(listener, PollFlags::POLLIN);
        let mut watched = [of(self.neighbours.as_fd()), of(self.remotes.as_fd())];
        // Interrupted: as if there were some.
        poll(&mut watched, PollTimeout::ZERO) != Ok(0)
    }

    /// The next that has called there.
    fn next(&self, listener: u64) -> Option<Caller> {
        if listener == NEIGHBOURS {
            let (stream, _) = accepted(self.neighbours.accept())?;
            return Some(Caller::Neighbour(stream));
        }
        let (stream, _) = accepted(self.remotes.accept())?;
        Some(Caller::Remote(stream))
    }

    /// Most have said who they are by now. The others are waited for.
    fn take(&self, caller: Caller, callers: &mut Callers, host: &impl Host) {
        if !caller.is_welcome() {
            return;
        }
        let Some(said) = caller.greeting() else {
            return self.wait_for(caller, callers, host);
        };
        self.answer(caller, said, host);
    }

    fn wait_for(&self, caller: Caller, callers: &mut Callers, host: &impl Host) {
        let progress = host.progress();
        if callers.waiting.len() >= CALLERS_MOST
            && let Some((_, Silent { caller: oldest, .. })) = callers.waiting.pop_first()
        {
            progress.forget(oldest.fd());
            // It may have spoken since it was looked last.
            if let Some(said) = oldest.greeting() {
                self.answer(oldest, said, host);
            }
        }
        callers.last += 1;
        let token = CALLERS | (callers.last & (CALLERS - 1));
        if progress.watch_reading(caller.fd(), token).is_ok() {
            callers.waiting.insert(token, Silent { caller, since: Instant::now() });
        }
    }

    /// A caller that was waited for may have said who it is.
    fn hear(&self, token: u64, callers: &mut Callers, host: &impl Host) {
        let Some(said) = callers.waiting.get(&token).and_then(|silent| silent.caller.greeting())
        else {
            return;
        };
        if let Some(Silent { caller, .. }) = callers.waiting.remove(&token) {
            host.progress().forget(caller.fd());
            self.answer(caller, said, host);
        }
    }

    /// A caller has said who it is. Whoever is refused finds the connection closed, and has its messages back.
    fn answer(&self, caller: Caller, said: io::Result<Said>, host: &impl Host) {
        let (greeting, handed_over) = match said {
            Ok(said) => said,
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    tracing::warn!(%error, "a caller is turned away");
                }
                return;
            }
        };
        if greeting.to != self.id || greeting.from == self.id {
            return;
        }
        if matches!(caller, Caller::Remote(_)) && !host.lets_in(&greeting) {
            tracing::warn!(from = %greeting.from, pass = ?greeting.pass, "a caller is not let in");
            return;
        }
        match caller.ends(&greeting, handed_over) {
            Ok(ends) => host.greeted(&greeting, ends),
            Err(error) => {
                tracing::warn!(from = %greeting.from, %error, "a caller is turned away");
            }
        }
    }
}

/// What comes with a greeting on a Unix socket.
type HandedOver = Option<[OwnedFd; transport::shared::HANDED_OVER]>;

/// What a caller says first.
type Said = (Greeting, HandedOver);

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

    /// Reads the greeting, if it has arrived; what is not whole at once is refused, since it was sent whole.
    fn greeting(&self) -> Option<io::Result<Said>> {
        let mut bytes = [0; GREETING];
        let read = match receive(self.fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            read => read,
        };
        Some(read.and_then(|(length, handed_over)| {
            if length != GREETING {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let invalid = |malformed| io::Error::new(io::ErrorKind::InvalidData, malformed);
            Ok((Greeting::decode(&bytes).map_err(invalid)?, handed_over.try_into().ok()))
        }))
    }

    /// The halves of its connection.
    fn ends(self, greeting: &Greeting, handed_over: HandedOver) -> io::Result<Ends> {
        let stream = match self {
            Self::Remote(stream) => stream,
            Self::Neighbour(stream) => {
                let memory = handed_over.filter(|_| !greeting.is_rail);
                let without = || io::Error::other("it has handed over no memory");
                let memory = memory.ok_or_else(without)?;
                return transport::shared::accept(memory, stream);
            }
        };
        match greeting.carrier {
            Carrier::Datagrams { port } => {
                transport::udp::accept(stream, port, greeting.token(port))
            }
            Carrier::Library(library) => transport::native::accept(library, stream),
            Carrier::Itself => transport::tcp::ends(stream),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Wait;
    use std::io::Read;

    const OWN: u64 = 1 << 63;

    /// A context that lets everybody in.
    struct Open {
        progress: Progress,
        greeted: Mutex<Vec<(ContextId, Ends)>>,
    }

    impl Host for Open {
        fn progress(&self) -> &Progress {
            &self.progress
        }

        fn lets_in(&self, _: &Greeting) -> bool {
            true
        }

        fn greeted(&self, greeting: &Greeting, ends: Ends) {
            lock(&self.greeted).push((greeting.from, ends));
        }
    }

    impl Open {
        /// How many have been let in.
        fn count(&self) -> usize {
            lock(&self.greeted).len()
        }
    }

    fn listeners(number: u64) -> (Listeners, Open) {
        let progress = Progress::new(Wait::Block).unwrap();
        let id = ContextId::new(OWN | number << 32 | u64::from(std::process::id()));
        let listeners = Listeners::new(id, ([127, 0, 0, 1], 0).into(), &progress).unwrap();
        (listeners, Open { progress, greeted: Mutex::default() })
    }

    fn call(listeners: &Listeners) -> TcpStream {
        TcpStream::connect(listeners.remotes.local_addr().unwrap()).unwrap()
    }

    fn greet(mut stream: &TcpStream, listeners: &Listeners, from: u64) {
        let (from, to, carrier) = (ContextId::new(from), listeners.id, Carrier::Itself);
        let greeting = Greeting { from, to, carrier, attempt: 1, is_rail: false, pass: None };
        stream.write_all(&greeting.encode()).unwrap();
    }

    /// Goal: each of many who have called before anybody looked is heard, and of those that say nothing no more are kept than
    /// may be. Method: every other one says nothing.
    #[test]
    fn each_of_many_that_call_at_once_is_heard() {
        const CALLERS: u64 = 4 * CALLERS_MOST as u64;
        let (listeners, host) = listeners(1);
        let (mut silent, mut speaking) = (Vec::new(), Vec::new());
        for number in 0..CALLERS / 2 {
            silent.push(call(&listeners));
            let speaks = call(&listeners);
            greet(&speaks, &listeners, number);
            speaking.push(speaks);
        }
        listeners.signalled(REMOTES, &host);
        assert!(host.count() <= TAKEN_MOST, "others have their turn");
        let mut looks = 0..CALLERS;
        while looks.next().is_some() && host.count() < speaking.len() {
            assert!(listeners.hear_callers(&host).is_some(), "some are left");
        }
        let heard: Vec<_> = lock(&host.greeted).iter().map(|(from, _)| from.number()).collect();
        assert_eq!(heard, (0..CALLERS / 2).collect::<Vec<_>>());
        assert_eq!(lock(&listeners.callers).waiting.len(), CALLERS_MOST);
        let kept = silent.split_off(silent.len() - CALLERS_MOST);
        assert!(silent.iter_mut().all(|stream| matches!(stream.read(&mut [0]), Ok(0))));
        greet(&kept[0], &listeners, CALLERS);
        listeners.hear_callers(&host);
        assert_eq!(host.count(), speaking.len() + 1);
    }

    /// There is no room for one more, and the oldest has just spoken.
    #[test]
    fn who_has_spoken_is_not_dropped() {
        let (listeners, host) = listeners(2);
        let silent: Vec<_> = (0..CALLERS_MOST).map(|_| call(&listeners)).collect();
        while lock(&listeners.callers).waiting.len() < CALLERS_MOST {
            listeners.signalled(REMOTES, &host);
        }
        greet(&silent[0], &listeners, 7);
        let _one_more = call(&listeners);
        listeners.signalled(REMOTES, &host);
        assert_eq!(host.count(), 1);
        assert_eq!(lock(&listeners.callers).waiting.len(), CALLERS_MOST);
    }

    /// Whoever has called and not said who it is may be anybody for a while.
    #[test]
    fn who_has_just_called_may_be_anybody() {
        let (listeners, host) = listeners(3);
        assert_eq!(listeners.hear_callers(&host), None);
        let [first, second] = [(); 2].map(|()| call(&listeners));
        let called = Instant::now();
        let until = listeners.hear_callers(&host).unwrap();
        assert!(until >= called + SILENT_MOST / 2 && until <= Instant::now() + SILENT_MOST);
        greet(&first, &listeners, 7);
        assert!(listeners.hear_callers(&host).is_some() && host.count() == 1);
        for silent in lock(&listeners.callers).waiting.values_mut() {
            silent.since = silent.since.checked_sub(SILENT_MOST).unwrap();
        }
        assert_eq!(listeners.hear_callers(&host), None);
        greet(&second, &listeners, 8);
        listeners.hear_callers(&host);
        assert_eq!(host.count(), 2);
    }
}
