//! The directory server of a node: one thread between its state and its connections.

use super::address_of;
use super::byte_queue::ByteQueue;
use super::protocol::{
    Answer, DecodeError, MESSAGE_MOST, Reply, Request, Update, encode, framed, other_version, read,
};
use super::seal::{End, HAIL, Hail, SEAL, Sealers, Stranger};
use super::send_buffer::SendBuffer;
use super::state::{ALIVE_EVERY, ConnectionId, Directory, Input, Output, SILENCE_MOST};
use crate::bridge::{self, Search, Survey, request::Whom};
use crate::descriptors::descriptors_most;
use crate::door::ClusterKey;
use crate::networks::{addresses, discover};
use crate::sockets::accepted;
use crate::{random, random_bytes, threads};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Bytes that wait for a program at most when another question of it is answered. So one long answer is in memory at a time for
/// each, however many a program asks for at once. A program that comes to the next server registers all that it has, and reads
/// nothing meanwhile: for 2^20 resources, which are the most, it is told 11 MB.
const ANSWERED_MOST: usize = 16 << 20;
/// Bytes of a program's questions that wait for that at most: as many questions as it keeps, as long as these can be.
const QUESTIONS_MOST: usize = 32 << 20;
/// The programs of one user have one of so many descriptors: others', and other servers, need the rest.
const USERS_PART: usize = 4;
/// Bytes that are read before others get a turn.
const READ_MOST: usize = 256 << 10;
const DIAL_TIME: Duration = Duration::from_secs(1);
/// How long a server may take to say hail, bridges on the way included.
const HAIL_TIME: Duration = Duration::from_secs(5);
/// Callers that have not shown that they are servers. If more come, the oldest goes: it is silent, or slow.
const CALLERS_MOST: usize = 64;
/// Longest message of a program, which may be anybody's: what it has begun to say is kept. A hello with a few thousand
/// addresses, or many times what attributes can be.
const REQUEST_MOST: usize = 1 << 20;
/// Longest message of a server that has not shown yet that it has the key: it says that it is alive.
const FIRST_MOST: usize = 64;
/// Things that become ready, for one call.
const EVENTS: usize = 64;
const PROGRAMS: u64 = 0;
const SERVERS: u64 = 1;
const BELL: u64 = 2;
const FIRST_CONNECTION: u64 = 16;

/// What a directory server is to be.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The name that programs of this node ask for.
    pub name: String,
    /// The node's name, unlike that of any other node.
    pub node: String,
    /// Where other servers reach this one; unspecified address: on every interface, port 0: any that
    /// is free. Servers on networks that this node is not on are reached over bridges.
    pub address: SocketAddr,
    /// Where to find some of the others; the rest is learned.
    pub members: Vec<SocketAddr>,
    /// That of all servers and of nobody else; none: whoever reaches a server or a context is believed.
    pub key: Option<ClusterKey>,
}

/// A running directory server. Ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it.
    ///
    /// # Errors
    /// If there is one of this name on this node already, or the address is not to be had.
    pub fn start(config: ServerConfig) -> io::Result<Self> {
        let shell = EventLoop::new(config)?;
        let (address, stop, bell) = (shell.address, shell.stop.clone(), shell.bell.clone());
        let thread = threads::spawn("directory", move || shell.run())?;
        Ok(Self { address, stop, bell, thread: Some(thread) })
    }

    /// Where other servers reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.bell.write(1);
        if let Some(thread) = self.thread.take() {
            // It has panicked and said so, or it is done.
            let _ = thread.join();
        }
    }
}

type Dialed = (SocketAddr, Result<(TcpStream, Option<Sealers>), DialError>);

/// Why another server is not told anything.
enum DialError {
    /// It does not answer.
    Silent,
    /// Somebody else does.
    Stranger(Stranger),
}

/// Everything but the decisions.
struct EventLoop {
    directory: Directory,
    address: SocketAddr,
    key: Option<ClusterKey>,
    start: Instant,
    /// When time last passed for the state.
    ticked: Instant,
    epoll: Epoll,
    programs: UnixListener,
    servers: TcpListener,
    bell: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    dialed: (Sender<Dialed>, Receiver<Dialed>),
    survey: Survey,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections that are closed, of which the state has not been told yet.
    closed: VecDeque<ConnectionId>,
    next: u64,
}

struct Connection {
    stream: Stream,
    speaks: Peer,
    /// What it says is opened, and what it is told is sealed, with this.
    sealers: Option<Sealers>,
    read: ByteQueue,
    unsent: SendBuffer,
    /// Questions wait until more of the answers is taken.
    waits_to_answer: bool,
    /// Since when it is to be closed when everything is sent, or is not taken for [`SILENCE_MOST`].
    closing: Option<Instant>,
    /// The kernel is asked to tell when there is room.
    waits_for_room: bool,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// What comes in.
#[derive(Clone, Copy)]
enum Peer {
    /// Requests of a program of this user.
    Requests { user: u32 },
    /// The hail of a server, which is answered with this.
    Hail(Hail),
    /// A sign of life, which shows that it has the key.
    First,
    /// What a server tells.
    Tellings,
    /// What a server answers.
    Hearings,
}

/// Why a connection is given up.
#[derive(Debug, Error)]
enum ConnectionError {
    #[error(transparent)]
    DecodeError(#[from] DecodeError),
    #[error(transparent)]
    Stranger(#[from] Stranger),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(
        "{0} bytes of questions wait, and no answers are read: at most {QUESTIONS_MOST} are kept"
    )]
    Unread(usize),
}

impl EventLoop {
    fn new(config: ServerConfig) -> io::Result<Self> {
        let programs = UnixListener::bind_addr(&address_of(&config.name)?)?;
        let servers = TcpListener::bind(config.address)?;
        let address = servers.local_addr()?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let ServerConfig { node, members, key, .. } = config;
        let directory = Directory::new(node, random()?, address, members, key.clone())
            .with_connections_of_a_user(descriptors_most() / USERS_PART);
        programs.set_nonblocking(true)?;
        servers.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&programs, EpollEvent::new(EpollFlags::EPOLLIN, PROGRAMS))?;
        epoll.add(&servers, EpollEvent::new(EpollFlags::EPOLLIN, SERVERS))?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let now = Instant::now();
        Ok(Self {
            directory,
            address,
            key,
            start: now,
            ticked: now,
            epoll,
            programs,
            servers,
            bell,
            stop: Arc::new(AtomicBool::new(false)),
            dialed: channel(),
            survey: Survey::default(),
            connections: BTreeMap::new(),
            closed: VecDeque::new(),
            next: FIRST_CONNECTION,
        })
    }

    fn run(mut self) {
        self.tick();
        while !self.stop.load(Relaxed) {
            self.serve_ready(EpollTimeout::from(ALIVE_EVERY.as_millis() as u16));
            self.tick_if_due();
        }
    }

    /// Serves what is ready, for which it waits no longer than so. Returns whether there may be more.
    fn serve_ready(&mut self, timeout: EpollTimeout) -> bool {
        let mut events = [EpollEvent::empty(); EVENTS];
        // Interrupted: as if nothing had happened.
        let ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        for event in &events[..ready] {
            match event.data() {
                PROGRAMS => self.accept_programs(),
                SERVERS => self.accept_servers(),
                BELL => self.take_dialed(),
                id => self.serve(ConnectionId(id)),
            }
        }
        ready == EVENTS
    }

    /// Has time pass for the state. To a server that was held up, as one whose process was stopped, others would seem silent
    /// whose signs of life it has not read.
    fn tick_if_due(&mut self) {
        let since = self.ticked.elapsed();
        if since > 2 * ALIVE_EVERY {
            self.catch_up();
        }
        if since >= ALIVE_EVERY {
            self.tick();
        }
    }

    /// Serves all that is ready: the kernel tells of all in turn.
    fn catch_up(&mut self) {
        for _ in 0..=self.connections.len() / EVENTS {
            if !self.serve_ready(EpollTimeout::ZERO) {
                return;
            }
        }
    }

    fn tick(&mut self) {
        self.ticked = Instant::now();
        self.cut_closing();
        // One that is before 1970 is not set.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.step(Input::Clock(wall));
        self.step(Input::Tick);
    }

    /// Cuts connections whose other ends do not take what they were told last: each has a descriptor, and its user's part.
    fn cut_closing(&mut self) {
        let is_late = |since: Instant| since.elapsed() > SILENCE_MOST;
        let late = self.connections.iter().filter(|(_, c)| c.closing.is_some_and(is_late));
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.lost(id));
    }

    fn accept_programs(&mut self) {
        while let Some((stream, _)) = accepted(self.programs.accept()) {
            // Who it is can always be said while both ends are there.
            let Ok(peer) = getsockopt(&stream, PeerCredentials) else { continue };
            let speaks = Peer::Requests { user: peer.uid() };
            // It says itself when it cannot go on; until then nothing depends on it.
            if let Ok(id) = self.connect(Stream::Unix(stream), speaks, None) {
                self.step(Input::Connected(id, peer.uid()));
            }
        }
    }

    fn accept_servers(&mut self) {
        while let Some((stream, _)) = accepted(self.servers.accept()) {
            let Ok(drawn) = random_bytes() else { continue };
            let waiting = self.connections.iter().filter(|(_, c)| c.speaks.is_unknown());
            let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
            if let (Some(oldest), CALLERS_MOST..) = (waiting.first(), waiting.len()) {
                self.lost(*oldest);
            }
            let hail = Hail::new(self.key.as_ref(), drawn);
            let _ = self.connect(Stream::Tcp(stream), Peer::Hail(hail), None);
        }
    }

    fn take_dialed(&mut self) {
        let _ = self.bell.read();
        while let Ok((address, result)) = self.dialed.1.try_recv() {
            let connected = result.and_then(|(stream, sealers)| {
                let reached_at = self.address_by(&stream)?;
                let stream = Stream::Tcp(stream);
                Ok((self.connect(stream, Peer::Hearings, sealers)?, reached_at))
            });
            match connected {
                Ok((connection, reached_at)) => {
                    // Short, so that the other end need not take much in before it knows who says it.
                    let mut written = Vec::new();
                    self.write(connection, &Update::Alive, false, &mut written);
                    self.step(Input::Dialed { address, connection, reached_at });
                }
                Err(DialError::Silent) => self.step(Input::Unreachable(address)),
                Err(DialError::Stranger(why)) => {
                    self.step(Input::Stranger(address, why.to_string()));
                }
            }
        }
    }

    /// Where whoever this connection leads to, or the first bridge on the way to it, reaches this
    /// server.
    fn address_by(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        if !self.address.ip().is_unspecified() {
            return Ok(self.address);
        }
        Ok(SocketAddr::new(stream.local_addr()?.ip().to_canonical(), self.address.port()))
    }

    fn connect(
        &mut self,
        stream: Stream,
        speaks: Peer,
        sealers: Option<Sealers>,
    ) -> io::Result<ConnectionId> {
        match &stream {
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
            Stream::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
            }
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        self.epoll.add(stream.fd(), EpollEvent::new(EpollFlags::EPOLLIN, id.0))?;
        let connection = Connection {
            stream,
            speaks,
            sealers,
            read: ByteQueue::default(),
            unsent: SendBuffer::default(),
            waits_to_answer: false,
            closing: None,
            waits_for_room: false,
        };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// Something can be read from a connection, or written to it.
    fn serve(&mut self, id: ConnectionId) {
        self.flush(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let open = connection.fill();
        while let Some(connection) = self.connections.get_mut(&id).filter(|c| c.is_heard()) {
            match connection.next(id, self.key.as_ref()) {
                Ok(Next::Input(input)) => self.step(input),
                Ok(Next::Hailed) => self.flush(id),
                Ok(Next::Nothing) => break,
                Err(error) => return self.give_up(id, &error),
            }
        }
        if !open {
            return self.lost(id);
        }
        if let Some(connection) = self.connections.get_mut(&id)
            && let Err(error) = connection.hold_back()
        {
            self.give_up(id, &error);
        }
    }

    fn give_up(&mut self, id: ConnectionId, error: &ConnectionError) {
        tracing::warn!(connection = id.0, %error, "a connection is given up");
        self.lost(id);
    }

    /// Has something happen to the state, and then all that follows from what it had to say.
    fn step(&mut self, input: Input) {
        self.apply(input);
        self.tell_closed();
    }

    /// Tells the state of connections that are closed, and of those that are found closed as others are told of that, one
    /// after the other: of a thousand programs that end at once each is told of all others.
    fn tell_closed(&mut self) {
        while let Some(id) = self.closed.pop_front() {
            self.apply(Input::Closed(id));
        }
    }

    /// Has something happen to the state, and says what it has to say. Connections that are found closed by that wait in
    /// their queue.
    fn apply(&mut self, input: Input) {
        let now = self.start.elapsed();
        let mut written = Vec::new();
        for output in self.directory.step(now, input) {
            match output {
                Output::Answer(to, answer) => {
                    let is_part = matches!(answer, Answer::FoundPart { .. } | Answer::Found { .. });
                    self.write(to, &answer, is_part, &mut written);
                }
                Output::Update(to, update) => {
                    let is_part =
                        matches!(update, Update::SnapshotPart { .. } | Update::Snapshot { .. });
                    self.write(to, &update, is_part, &mut written);
                }
                Output::Reply(to, heard) => self.write(to, &heard, false, &mut written),
                Output::Dial(address) => self.dial(address),
                Output::Warn(why) => tracing::warn!("{why}"),
                Output::Close(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.closing.get_or_insert_with(Instant::now);
                        written.push(id);
                    }
                }
            }
        }
        // Each once, in the order of what was written last: who is told that something is done is
        // told after all who are told what.
        let mut seen = BTreeSet::new();
        written.reverse();
        written.retain(|id| seen.insert(*id));
        written.into_iter().rev().for_each(|id| self.push(id));
    }

    fn write(
        &mut self,
        to: ConnectionId,
        message: &impl serde::Serialize,
        is_part: bool,
        written: &mut Vec<ConnectionId>,
    ) {
        if let Some(connection) = self.connections.get_mut(&to) {
            connection.say(message, is_part);
            written.push(to);
        }
    }

    fn dial(&self, address: SocketAddr) {
        let (sender, bell) = (self.dialed.0.clone(), self.bell.clone());
        let bridges = bridge::known(&self.directory.find(&bridge::query()));
        let (key, survey) = (self.key.clone(), self.survey.clone());
        let dial = move || {
            let hailed = reach(address, &bridges, &survey)
                .map_err(DialError::from)
                .and_then(|stream| Ok((hail(&stream, key.as_ref())?, stream)));
            // Nobody waits for it any more when the server has ended.
            let _ = sender.send((address, hailed.map(|(sealers, stream)| (stream, sealers))));
            let _ = bell.write(1);
        };
        if let Err(error) = threads::spawn("dial", dial) {
            let _ = self.dialed.0.send((address, Err(error.into())));
            let _ = self.bell.write(1);
        }
    }

    /// Writes what there is room for.
    fn flush(&mut self, id: ConnectionId) {
        self.push(id);
        self.tell_closed();
    }

    /// The same. If it is closed by that, the state has to be told.
    fn push(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let open = connection.drain() && connection.unsent.is_read();
        if !open || (connection.closing.is_some() && connection.unsent.is_empty()) {
            return self.close(id);
        }
        let waits = !connection.unsent.is_empty() || connection.waits_to_answer;
        if waits != connection.waits_for_room {
            connection.waits_for_room = waits;
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, id.0);
            if self.epoll.modify(connection.stream.fd(), &mut event).is_err() {
                self.close(id);
            }
        }
    }

    /// Closes a connection and tells the state, which may know already.
    fn lost(&mut self, id: ConnectionId) {
        self.close(id);
        self.tell_closed();
    }

    /// Closes a connection. The state has to be told.
    fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.remove(&id) {
            let _ = self.epoll.delete(connection.stream.fd());
            self.closed.push_back(id);
        }
    }
}

/// Connects to another server, over bridges if it cannot be reached otherwise.
fn reach(address: SocketAddr, bridges: &[bridge::Known], survey: &Survey) -> io::Result<TcpStream> {
    let straight = TcpStream::connect_timeout(&address, DIAL_TIME);
    let over = |error| {
        let (own, peer, whom) = (discover()?, [address], Whom::Directory);
        let search = Search { own: &own, bridges, peer: &peer, whom, much: false };
        let ways = survey.ways(&search, &[]);
        let mut calls = ways.iter().map(|way| survey.call(way, whom));
        calls.find_map(Result::ok).ok_or(error)
    };
    straight.or_else(over)
}

/// Says hail to the server at the other end, and hears its own and that it has the key.
fn hail(mut stream: &TcpStream, key: Option<&ClusterKey>) -> Result<Option<Sealers>, DialError> {
    let own = Hail::new(key, random_bytes()?);
    stream.write_all(&own.encode())?;
    stream.set_read_timeout(Some(HAIL_TIME))?;
    let mut bytes = [0; HAIL];
    stream.read_exact(&mut bytes)?;
    let other = Hail::decode(&bytes).map_err(DialError::Stranger)?;
    let sealers = own.meets(&other, End::Caller, key).map_err(DialError::Stranger)?;
    let Some(mut sealers) = sealers else { return Ok(None) };
    let (mut life, mut seal) = (Vec::new(), [0; SEAL]);
    encode(&Reply::Alive, &mut life);
    stream.read_exact(&mut life)?;
    stream.read_exact(&mut seal)?;
    sealers.heard.open(&life, seal).map_err(DialError::Stranger)?;
    Ok(Some(sealers))
}

/// What a program says of itself, but for addresses that its node has not: bridges connect to where the directory says that a
/// context is, from networks as well from which its program could not.
fn of_this_node(mut request: Request) -> io::Result<Request> {
    if let Request::Hello { context, .. } = &mut request {
        let own = addresses()?;
        let is_here = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
        context.addresses.retain(|address| is_here(address.ip()));
    }
    Ok(request)
}

impl From<io::Error> for DialError {
    fn from(_: io::Error) -> Self {
        Self::Silent
    }
}

impl Peer {
    /// Whether it has to show yet that it is a server.
    fn is_unknown(self) -> bool {
        matches!(self, Self::Hail(_) | Self::First)
    }

    /// Bytes of the longest message that is taken.
    fn longest(self) -> usize {
        match self {
            Self::Requests { .. } => REQUEST_MOST,
            Self::Hail(_) | Self::First => FIRST_MOST,
            Self::Tellings | Self::Hearings => MESSAGE_MOST,
        }
    }
}

/// What has come on a connection.
enum Next {
    /// That.
    Input(Input),
    /// A hail, which is answered.
    Hailed,
    /// Nothing whole yet.
    Nothing,
}

impl Connection {
    /// Reads what has come. Returns whether more may come.
    fn fill(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let mut total = 0;
        while total < READ_MOST {
            match self.stream.read(&mut piece) {
                Ok(0) => return false,
                Ok(bytes) => {
                    // Who is heard no more, and does not take what it was told last, may go on for ever.
                    if self.closing.is_none() {
                        self.read.append(|read| read.extend_from_slice(&piece[..bytes]));
                    }
                    total += bytes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Writes what there is room for. Returns whether the connection stands.
    fn drain(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(self.unsent.rest()) {
                Ok(bytes) => self.unsent.took(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Whether what it says is heard now.
    fn is_heard(&self) -> bool {
        self.closing.is_none() && self.has_room()
    }

    /// Whether its next question may be answered: if that is a program's, when it has taken most of what it was told.
    fn has_room(&self) -> bool {
        !matches!(self.speaks, Peer::Requests { .. }) || self.unsent.len() <= ANSWERED_MOST
    }

    /// Keeps questions until there is room for their answers. The kernel tells when it takes more.
    fn hold_back(&mut self) -> Result<(), ConnectionError> {
        self.waits_to_answer = !self.has_room();
        let waiting = self.read.len();
        if waiting > QUESTIONS_MOST { Err(ConnectionError::Unread(waiting)) } else { Ok(()) }
    }

    /// Says that when there is room, sealed if it has to be. Whether it is one part of several.
    fn say(&mut self, message: &impl serde::Serialize, is_part: bool) {
        let sealers = &mut self.sealers;
        self.unsent.say(is_part, |bytes| {
            let start = bytes.len();
            encode(message, bytes);
            if let Some(Sealers { said, .. }) = sealers {
                let seal = said.seal(&bytes[start..]);
                bytes.extend_from_slice(&seal);
            }
        });
    }

    /// What comes next of what was read. `key` is this server's.
    fn next(
        &mut self,
        id: ConnectionId,
        key: Option<&ClusterKey>,
    ) -> Result<Next, ConnectionError> {
        if let Peer::Hail(own) = self.speaks {
            return Ok(self.hailed(&own, key));
        }
        let message = framed(self.read.rest(), self.speaks.longest())?;
        let Some(message) = message else { return Ok(Next::Nothing) };
        let mut length = message.len();
        if let Some(Sealers { heard, .. }) = &mut self.sealers {
            let Some(seal) = self.read.rest()[length..].first_chunk::<SEAL>() else {
                return Ok(Next::Nothing);
            };
            heard.open(message, *seal)?;
            length += SEAL;
        }
        let input = match self.speaks {
            Peer::Requests { user } => match other_version(message) {
                Some(version) => Input::OtherVersion(id, version),
                None => Input::Request(id, user, of_this_node(read(message)?)?),
            },
            Peer::Hearings => Input::Reply(id, read(message)?),
            Peer::Tellings | Peer::First | Peer::Hail(_) => Input::Update(id, read(message)?),
        };
        if self.speaks.is_unknown() {
            self.speaks = Peer::Tellings;
        }
        self.read.consume(length);
        Ok(Next::Input(input))
    }

    /// Answers a hail with this server's `own`, so that who is a stranger knows why, and with what shows that it has
    /// the key.
    fn hailed(&mut self, own: &Hail, key: Option<&ClusterKey>) -> Next {
        let Some(bytes) = self.read.rest().first_chunk::<HAIL>() else { return Next::Nothing };
        let other = Hail::decode(bytes);
        self.unsent.say(false, |bytes| bytes.extend_from_slice(&own.encode()));
        self.read.consume(HAIL);
        match other.and_then(|other| own.meets(&other, End::Called, key)) {
            Ok(sealers) => {
                (self.sealers, self.speaks) = (sealers, Peer::First);
                if self.sealers.is_some() {
                    self.say(&Reply::Alive, false);
                }
            }
            Err(stranger) => {
                tracing::warn!(%stranger, "a caller is not let in");
                self.closing = Some(Instant::now());
            }
        }
        Next::Hailed
    }
}

impl Stream {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;
    use crate::carriers::Carriers;
    use crate::directory::protocol::{ContextInfo, VERSION, decode};
    use crate::door::Callers;
    use crate::id::{ContextId, Place, ResourceId};
    use nix::poll::{PollFd, PollFlags, poll};
    use std::{iter, thread};

    /// That of a program, and the program's end.
    fn connection() -> (Connection, UnixStream) {
        let (stream, program) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let connection = Connection {
            stream: Stream::Unix(stream),
            speaks: Peer::Requests { user: 0 },
            sealers: None,
            read: ByteQueue::default(),
            unsent: SendBuffer::default(),
            waits_to_answer: false,
            closing: None,
            waits_for_room: false,
        };
        (connection, program)
    }

    /// Everybody on a node can be a program: what each has begun to say and does not end would be the daemon's memory.
    #[test]
    fn a_program_says_nothing_long() {
        let (mut connection, _program) = connection();
        let mut begins = |length: usize| {
            connection.read = ByteQueue::default();
            let length = (length as u32).to_le_bytes();
            connection.read.append(|read| read.extend_from_slice(&length));
            connection.next(ConnectionId(1), None)
        };
        assert!(matches!(begins(REQUEST_MOST), Ok(Next::Nothing)));
        let too_long = DecodeError::TooLong { length: REQUEST_MOST + 1, most: REQUEST_MOST };
        let refused = begins(REQUEST_MOST + 1);
        assert!(matches!(refused, Err(ConnectionError::DecodeError(why)) if why == too_long));
    }

    /// It is closed when it has taken what it was told, which it never does.
    #[test]
    fn what_is_said_on_a_connection_that_closes_is_not_kept() {
        let (mut connection, mut program) = connection();
        program.write_all(&[1; 1000]).unwrap();
        assert!(connection.fill());
        assert_eq!(connection.read.len(), 1000);
        connection.closing = Some(Instant::now());
        program.write_all(&[1; 1000]).unwrap();
        assert!(connection.fill());
        assert_eq!(connection.read.len(), 1000);
        drop(program);
        assert!(!connection.fill(), "its end is found all the same");
    }

    /// Goal: nobody keeps descriptors of a daemon by not reading why it is refused. Method: a program that takes nothing of much
    /// that it was told has said hello in another version; it is cut when it has had time to read.
    #[test]
    fn who_does_not_take_its_last_word_is_cut() {
        let mut shell = shell("cuts", Vec::new());
        let (stream, _program) = UnixStream::pair().unwrap();
        let id = shell.connect(Stream::Unix(stream), Peer::Requests { user: 7 }, None).unwrap();
        let connection = shell.connections.get_mut(&id).unwrap();
        connection.unsent.say(false, |bytes| bytes.resize(4 << 20, 0));
        shell.step(Input::OtherVersion(id, VERSION - 1));
        shell.tick();
        let connection = shell.connections.get_mut(&id).unwrap();
        connection.closing = Instant::now().checked_sub(SILENCE_MOST + ALIVE_EVERY);
        assert!(connection.closing.is_some());
        shell.tick();
        assert!(shell.connections.is_empty());
    }

    /// Another server that has told of a resource.
    fn teller(shell: &mut EventLoop) -> TcpStream {
        let mut teller = TcpStream::connect(shell.address).unwrap();
        teller.write_all(&Hail::new(None, [7; 32]).encode()).unwrap();
        tell(&teller, &Update::Alive);
        let (id, place) = (ContextId::new(7), Place { slot: 0, generation: 0 });
        let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
        let carriers = Carriers::default();
        let context = ContextInfo { id, node, owner: 0, callers, addresses, carriers };
        let snapshot = Update::Snapshot {
            node: "other".into(),
            incarnation: 7,
            address: ([127, 0, 0, 1], 1).into(),
            change: 0,
            contexts: vec![(context, Duration::ZERO)],
            resources: vec![(ResourceId { context: id, place }, Attributes::new())],
        };
        tell(&teller, &snapshot);
        let begun = Instant::now();
        while found(shell) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is heard");
            shell.serve_ready(EpollTimeout::from(100_u8));
        }
        teller
    }

    /// That of a node of this name, which is told of those members.
    fn shell(node: &str, members: Vec<SocketAddr>) -> EventLoop {
        let name = format!("{node}-{}", std::process::id());
        let (node, address) = (node.into(), ([127, 0, 0, 1], 0).into());
        EventLoop::new(ServerConfig { name, node, address, members, key: None }).unwrap()
    }

    fn hello(number: u64) -> Request {
        let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
        let (id, carriers) = (ContextId::new(number), Carriers::default());
        let context = ContextInfo { id, node, owner: 0, callers, addresses, carriers };
        Request::Hello { version: VERSION, context, claim: None }
    }

    fn register(number: u32, attributes: Attributes) -> Request {
        Request::Register { number, place: Place { slot: number, generation: 0 }, attributes }
    }

    /// Asks for everything twice at once, and counts what it finds.
    fn finds_twice(mut program: UnixStream) -> [usize; 2] {
        let mut bytes = Vec::new();
        encode(&hello(2), &mut bytes);
        for number in [0, 1] {
            encode(&Request::Subscribe { number, query: Attributes::new() }, &mut bytes);
        }
        program.write_all(&bytes).unwrap();
        bytes.clear();
        let (mut counts, mut whole, mut piece) = ([0; 2], 0, vec![0; 1 << 20]);
        while whole < 2 {
            let length = program.read(&mut piece).unwrap();
            assert!(length > 0, "given up with {counts:?}");
            bytes.extend_from_slice(&piece[..length]);
            let mut used = 0;
            while let Some((answer, length)) = decode(&bytes[used..]).unwrap() {
                used += length;
                whole += usize::from(matches!(answer, Answer::Found { .. }));
                if let Answer::FoundPart { number, records } | Answer::Found { number, records } =
                    answer
                {
                    counts[number as usize] += records.len();
                }
            }
            bytes.drain(..used);
        }
        counts
    }

    /// Goal: however much there is, another server hears of it, and a program that asks finds it. Method: more than waits for
    /// one connection otherwise; the program asks for it twice at once.
    #[test]
    fn more_than_any_message_has_reaches_servers_and_programs() {
        const MANY: u32 = 6500;
        let mut hears = shell("hears", Vec::new());
        let mut tells = shell("tells", vec![hears.address]);
        let name = |at: usize| format!("{at}{}", "a".repeat(250));
        let long = (0..32).fold(Attributes::new(), |all, at| all.with(name(at), "b".repeat(256)));
        let requests = (0..MANY).map(|number| register(number, long.clone()));
        for request in iter::once(hello(1)).chain(requests) {
            let input = Input::Request(ConnectionId(FIRST_CONNECTION - 1), 0, request);
            tells.directory.step(Duration::ZERO, input);
        }
        let begun = Instant::now();
        let mut serve = |hears: &mut EventLoop| {
            assert!(begun.elapsed() < Duration::from_secs(120), "it does not come");
            for shell in [&mut tells, hears] {
                shell.serve_ready(EpollTimeout::from(1_u8));
                shell.tick_if_due();
            }
        };
        while found(&hears) == 0 {
            serve(&mut hears);
        }
        assert_eq!(found(&hears), MANY as usize);
        let (stream, program) = UnixStream::pair().unwrap();
        hears.connect(Stream::Unix(stream), Peer::Requests { user: 0 }, None).unwrap();
        let program = thread::spawn(|| finds_twice(program));
        while !program.is_finished() {
            serve(&mut hears);
        }
        assert_eq!(program.join().unwrap(), [MANY as usize; 2]);
    }

    /// Goal: however many programs end at once, the server's thread has the stack for it: each is found closed as others are
    /// told of the one before. Method: all watch one question, each has a resource that answers it, and all are gone when
    /// the first is found closed; with little stack, as a thousand would need more descriptors than many a user has.
    #[test]
    fn programs_that_end_at_once_are_forgotten_with_little_stack() {
        // Each within the one before took 3.9 KB at least.
        const STACK: usize = 512 << 10;
        let little = thread::Builder::new().stack_size(STACK);
        little.spawn(|| forgets_at_once(300)).unwrap().join().unwrap();
    }

    fn forgets_at_once(programs: usize) {
        let mut shell = shell("at-once", Vec::new());
        for number in 0..programs {
            // Its other end is gone at once.
            let (stream, _) = UnixStream::pair().unwrap();
            let speaks = Peer::Requests { user: 0 };
            let id = shell.connect(Stream::Unix(stream), speaks, None).unwrap();
            for request in [
                hello(number as u64),
                Request::Subscribe { number: 1, query: Attributes::new() },
                register(2, Attributes::new()),
            ] {
                // Without a word to the program, by which it would be found closed.
                shell.directory.step(Duration::ZERO, Input::Request(id, 0, request));
            }
        }
        assert_eq!(found(&shell), programs);
        shell.lost(ConnectionId(FIRST_CONNECTION));
        assert_eq!((found(&shell), shell.connections.len()), (0, 0));
    }

    /// Goal: a program that has much comes to the next server, which it tells all of it before it reads anything. Method: more
    /// than so many answers, of eight bytes at least, are sent or have 1 MiB of room to wait; none is read before all are there.
    #[test]
    fn who_registers_much_at_once_need_not_read_meanwhile() {
        const MANY: u32 = 200_000;
        let mut shell = shell("much", Vec::new());
        let (stream, mut program) = UnixStream::pair().unwrap();
        let id = shell.connect(Stream::Unix(stream), Peer::Requests { user: 0 }, None).unwrap();
        let mut bytes = Vec::new();
        encode(&hello(1), &mut bytes);
        (0..MANY).for_each(|number| encode(&register(number, Attributes::new()), &mut bytes));
        thread::scope(|scope| {
            let says = scope.spawn(|| program.write_all(&bytes).unwrap());
            while !says.is_finished() {
                shell.serve_ready(EpollTimeout::from(1_u8));
            }
        });
        // What was said last is in the kernel.
        shell.serve(id);
        assert!(shell.connections[&id].is_heard(), "it is held up");
        assert_eq!(found(&shell), MANY as usize);
        let (mut done, mut said) = (0, Vec::new());
        program.set_nonblocking(true).unwrap();
        while done < MANY {
            let mut piece = [0; 64 << 10];
            while let Ok(length @ 1..) = program.read(&mut piece) {
                said.extend_from_slice(&piece[..length]);
            }
            let mut used = 0;
            while let Some((answer, length)) = decode(&said[used..]).unwrap() {
                used += length;
                done += u32::from(matches!(answer, Answer::Done { .. }));
            }
            said.drain(..used);
            shell.serve_ready(EpollTimeout::from(1_u8));
        }
    }

    fn tell(mut teller: &TcpStream, update: &Update) {
        let mut bytes = Vec::new();
        encode(update, &mut bytes);
        teller.write_all(&bytes).unwrap();
    }

    fn found(shell: &EventLoop) -> usize {
        shell.directory.find(&Attributes::new()).len()
    }

    /// Time passes without the server's thread. Then it goes on as one that was stopped while it waited: the kernel ends its
    /// wait, and tells of nothing.
    fn hold_up(shell: &mut EventLoop) {
        let time = SILENCE_MOST + ALIVE_EVERY;
        shell.start = shell.start.checked_sub(time).unwrap();
        shell.ticked = shell.ticked.checked_sub(time).unwrap();
        shell.tick_if_due();
    }

    /// A server that was stopped would forget everybody: what they have said meanwhile waits in the kernel.
    #[test]
    fn who_was_held_up_takes_nobody_for_silent() {
        let mut shell = shell("own", Vec::new());
        let teller = teller(&mut shell);
        tell(&teller, &Update::Alive);
        let arrives = shell.connections.values().map(|connection| connection.stream.fd());
        let mut arrives: Vec<_> = arrives.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        assert_eq!(poll(&mut arrives, 60_000_u16), Ok(1));
        drop(arrives);
        hold_up(&mut shell);
        assert_eq!(found(&shell), 1);
        // Now it is silent.
        hold_up(&mut shell);
        assert_eq!(found(&shell), 0);
    }
}
