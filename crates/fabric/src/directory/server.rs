//! The directory server of a node: one thread between its state and its connections.

use super::address_of;
use super::protocol::{decode, encode};
use super::state::{ALIVE_EVERY, ConnectionId, Directory, Input, Output};
use crate::bridge::{
    self,
    request::Whom,
    routes::{Way, routes},
};
use crate::networks::discover;
use crate::random;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes that wait for one connection at most: a little more than the longest message. Who does not
/// read is disconnected, and has to begin anew.
const UNREAD_MOST: usize = 96 << 20;
/// Bytes that are read before others get a turn.
const READ_MOST: usize = 256 << 10;
const DIAL_TIME: Duration = Duration::from_secs(1);
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
        let programs = UnixListener::bind_addr(&address_of(&config.name)?)?;
        let servers = TcpListener::bind(config.address)?;
        let address = servers.local_addr()?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let stop = Arc::new(AtomicBool::new(false));
        let directory = Directory::new(config.node, random()?, address, config.members);
        let shell = Shell::new(directory, address, programs, servers, bell.clone(), stop.clone())?;
        let thread = thread::Builder::new().name("directory".into()).spawn(move || shell.run())?;
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

type Dialed = (SocketAddr, io::Result<TcpStream>);

/// Everything but the decisions.
struct Shell {
    directory: Directory,
    address: SocketAddr,
    start: Instant,
    epoll: Epoll,
    programs: UnixListener,
    servers: TcpListener,
    bell: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    dialed: (Sender<Dialed>, Receiver<Dialed>),
    connections: BTreeMap<ConnectionId, Connection>,
    next: u64,
}

struct Connection {
    stream: Stream,
    speaks: Speaks,
    read: Vec<u8>,
    unsent: Vec<u8>,
    /// Close when everything is sent.
    closing: bool,
    /// The kernel is asked to tell when there is room.
    waits_for_room: bool,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Which messages come in.
#[derive(Clone, Copy)]
enum Speaks {
    Requests,
    Tellings,
    Hearings,
}

impl Shell {
    fn new(
        directory: Directory,
        address: SocketAddr,
        programs: UnixListener,
        servers: TcpListener,
        bell: Arc<EventFd>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        programs.set_nonblocking(true)?;
        servers.set_nonblocking(true)?;
        epoll.add(&programs, EpollEvent::new(EpollFlags::EPOLLIN, PROGRAMS))?;
        epoll.add(&servers, EpollEvent::new(EpollFlags::EPOLLIN, SERVERS))?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        Ok(Self {
            directory,
            address,
            start: Instant::now(),
            epoll,
            programs,
            servers,
            bell,
            stop,
            dialed: channel(),
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
        })
    }

    fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let mut ticked = None;
        while !self.stop.load(Relaxed) {
            if ticked.is_none_or(|at: Instant| at.elapsed() >= ALIVE_EVERY) {
                ticked = Some(Instant::now());
                self.step(Input::Tick);
            }
            let timeout = EpollTimeout::from(ALIVE_EVERY.as_millis() as u16);
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
        }
    }

    fn accept_programs(&mut self) {
        while let Ok((stream, _)) = self.programs.accept() {
            // It says itself when it cannot go on; until then nothing depends on it.
            let _ = self.connect(Stream::Unix(stream), Speaks::Requests);
        }
    }

    fn accept_servers(&mut self) {
        while let Ok((stream, _)) = self.servers.accept() {
            let _ = self.connect(Stream::Tcp(stream), Speaks::Tellings);
        }
    }

    fn take_dialed(&mut self) {
        let _ = self.bell.read();
        while let Ok((address, result)) = self.dialed.1.try_recv() {
            let connected = result.and_then(|stream| {
                let reached_at = self.address_by(&stream)?;
                Ok((self.connect(Stream::Tcp(stream), Speaks::Hearings)?, reached_at))
            });
            self.step(match connected {
                Ok((connection, reached_at)) => Input::Dialed { address, connection, reached_at },
                Err(_) => Input::Unreachable(address),
            });
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

    fn connect(&mut self, stream: Stream, speaks: Speaks) -> io::Result<ConnectionId> {
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
            read: Vec::new(),
            unsent: Vec::new(),
            closing: false,
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
        while let Some(connection) = self.connections.get_mut(&id).filter(|c| !c.closing) {
            match connection.input(id) {
                Ok(Some(input)) => self.step(input),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(connection = id.0, %error, "a connection is given up");
                    return self.lost(id);
                }
            }
        }
        if !open {
            self.lost(id);
        }
    }

    fn step(&mut self, input: Input) {
        let now = self.start.elapsed();
        let mut written = Vec::new();
        for output in self.directory.step(now, input) {
            match output {
                Output::Answer(to, answer) => self.write(to, &answer, &mut written),
                Output::Tell(to, telling) => self.write(to, &telling, &mut written),
                Output::Hear(to, heard) => self.write(to, &heard, &mut written),
                Output::Dial(address) => self.dial(address),
                Output::Complain(why) => tracing::warn!("{why}"),
                Output::Close(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.closing = true;
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
        written.into_iter().rev().for_each(|id| self.flush(id));
    }

    fn write(
        &mut self,
        to: ConnectionId,
        message: &impl serde::Serialize,
        written: &mut Vec<ConnectionId>,
    ) {
        if let Some(connection) = self.connections.get_mut(&to) {
            encode(message, &mut connection.unsent);
            written.push(to);
        }
    }

    fn dial(&self, address: SocketAddr) {
        let (sender, bell) = (self.dialed.0.clone(), self.bell.clone());
        let bridges = bridge::known(&self.directory.find(&bridge::query()));
        let dial = move || {
            // Nobody waits for it any more when the server has ended.
            let _ = sender.send((address, reach(address, &bridges)));
            let _ = bell.write(1);
        };
        if let Err(error) = thread::Builder::new().name("dial".into()).spawn(dial) {
            let _ = self.dialed.0.send((address, Err(error)));
            let _ = self.bell.write(1);
        }
    }

    fn flush(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let open = connection.drain() && connection.unsent.len() <= UNREAD_MOST;
        if !open || (connection.closing && connection.unsent.is_empty()) {
            return self.lost(id);
        }
        let waits = !connection.unsent.is_empty();
        if waits != connection.waits_for_room {
            connection.waits_for_room = waits;
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, id.0);
            if self.epoll.modify(connection.stream.fd(), &mut event).is_err() {
                self.lost(id);
            }
        }
    }

    /// Closes a connection and tells the state, which may know already.
    fn lost(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.remove(&id) {
            let _ = self.epoll.delete(connection.stream.fd());
            self.step(Input::Closed(id));
        }
    }
}

/// Connects to another server, over bridges if it cannot be reached otherwise.
fn reach(address: SocketAddr, bridges: &[bridge::Known]) -> io::Result<TcpStream> {
    let straight = TcpStream::connect_timeout(&address, DIAL_TIME);
    let over = |error| {
        let ways: Vec<Way> = routes(&discover()?, bridges, &[address]);
        let mut calls = ways.iter().map(|way| bridge::call(way, Whom::Directory));
        calls.find_map(Result::ok).ok_or(error)
    };
    straight.or_else(over)
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
                    self.read.extend_from_slice(&piece[..bytes]);
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
        let mut sent = 0;
        let stands = loop {
            if sent == self.unsent.len() {
                break true;
            }
            match self.stream.write(&self.unsent[sent..]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        self.unsent.drain(..sent);
        stands
    }

    /// The next message that was read whole.
    fn input(&mut self, id: ConnectionId) -> Result<Option<Input>, super::protocol::Garbled> {
        let bytes = &self.read;
        let found = match self.speaks {
            Speaks::Requests => decode(bytes)?.map(|(message, n)| (Input::Asked(id, message), n)),
            Speaks::Tellings => decode(bytes)?.map(|(message, n)| (Input::Told(id, message), n)),
            Speaks::Hearings => decode(bytes)?.map(|(message, n)| (Input::Heard(id, message), n)),
        };
        Ok(found.map(|(input, length)| {
            self.read.drain(..length);
            input
        }))
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
