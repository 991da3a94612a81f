//! The thread of a directory server: what has become ready happens to the directory's state, which knows nothing of descriptors,
//! and what that has to say goes to the connections.

use super::ServerConfig;
use super::connection::ConnectionError;
use super::connections::Connections;
use super::dialing::{DialError, Dialed, Dialer};
use super::receiving::{Peer, Received};
use super::seldom::Seldom;
use super::send_buffer::Cause;
use super::stream::Stream;
use crate::bridge;
use crate::descriptors::descriptors_most;
use crate::directory::protocol::{Answer, Update};
use crate::directory::seal::Hail;
use crate::directory::state::{ALIVE_EVERY, ConnectionId, Directory, Input, Output};
use crate::directory::{address_of, name_of};
use crate::door::ClusterKey;
use crate::sockets::{accepted, listen, taken};
use crate::{random, random_bytes};
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{SockType, getsockopt, sockopt::PeerCredentials};
use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The programs of one user have one of so many descriptors: others', and other servers, need the rest.
const USERS_PART: usize = 4;
/// Things that become ready, for one call.
const EVENTS: usize = 64;
const PROGRAMS: u64 = 0;
const SERVERS: u64 = 1;
const BELL: u64 = 2;

/// Everything but the decisions.
pub(super) struct EventLoop {
    directory: Directory,
    pub(super) address: SocketAddr,
    key: Option<ClusterKey>,
    start: Instant,
    /// When time last passed for the state.
    ticked: Instant,
    programs: UnixListener,
    servers: TcpListener,
    connections: Connections,
    dialer: Dialer,
    /// Callers that have not the key.
    strangers: Seldom,
    /// Programs that say what means nothing.
    misspoken: Seldom,
    /// Rung when a call has ended, or this is to.
    pub(super) bell: Arc<EventFd>,
    pub(super) stop: Arc<AtomicBool>,
}

impl EventLoop {
    /// One that listens, and waits to be run.
    ///
    /// # Errors
    /// If there is one of this name on this node already, or the address is not to be had.
    pub(super) fn new(config: ServerConfig) -> io::Result<Self> {
        let at = name_of(&config.name);
        let programs = UnixListener::bind_addr(&address_of(&config.name)?)
            .map_err(|error| taken(error, &config.name, &at, SockType::Stream))?;
        let servers = listen(config.address)?;
        let address = servers.local_addr()?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let ServerConfig { node, members, key, .. } = config;
        let directory = Directory::new(node, random()?, address, members, key.clone())
            .with_connections_of_a_user(descriptors_most() / USERS_PART);
        programs.set_nonblocking(true)?;
        servers.set_nonblocking(true)?;
        let connections = Connections::new()?;
        connections.watch(&programs, PROGRAMS)?;
        connections.watch(&servers, SERVERS)?;
        connections.watch(&bell, BELL)?;
        let now = Instant::now();
        Ok(Self {
            directory,
            address,
            key: key.clone(),
            start: now,
            ticked: now,
            programs,
            servers,
            connections,
            dialer: Dialer::new(key, bell.clone()),
            strangers: Seldom::default(),
            misspoken: Seldom::default(),
            bell,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) {
        self.tick();
        while !self.stop.load(Relaxed) {
            self.serve_ready(EpollTimeout::from(ALIVE_EVERY.as_millis() as u16));
            self.tick_if_due();
        }
    }

    /// Serves what is ready, for which it waits no longer than so. Returns whether there may be more.
    fn serve_ready(&mut self, timeout: EpollTimeout) -> bool {
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self.connections.wait(&mut events, timeout);
        for event in &events[..ready] {
            match event.data() {
                PROGRAMS => self.accept_programs(),
                SERVERS => self.accept_servers(),
                BELL => self.take_dialed(),
                id => self.serve(ConnectionId(id)),
            }
        }
        self.serve_resumed();
        ready == EVENTS
    }

    /// Serves those that waited for others of their user.
    fn serve_resumed(&mut self) {
        while let Some(id) = self.connections.next_resumed() {
            self.serve(id);
        }
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
        self.connections.close_late();
        self.report_closed();
        self.serve_resumed();
        // One that is before 1970 is not set.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.step(Input::Clock(wall));
        self.step(Input::Tick);
    }

    fn accept_programs(&mut self) {
        while let Some((stream, _)) = accepted(self.programs.accept()) {
            // Who it is can always be said while both ends are there.
            let Ok(credentials) = getsockopt(&stream, PeerCredentials) else { continue };
            let user = credentials.uid();
            // It says itself when it cannot go on; until then nothing depends on it.
            let peer = Peer::Program { user };
            if let Ok(id) = self.connections.add(Stream::Unix(stream), peer, None) {
                self.step(Input::Connected(id, user));
            }
        }
    }

    fn accept_servers(&mut self) {
        while let Some((stream, _)) = accepted(self.servers.accept()) {
            let Ok(drawn) = random_bytes() else { continue };
            self.connections.close_for_caller();
            self.report_closed();
            let peer = Peer::Caller(Hail::new(self.key.as_ref(), drawn));
            let _ = self.connections.add(Stream::Tcp(stream), peer, None);
        }
    }

    fn take_dialed(&mut self) {
        let _ = self.bell.read();
        while let Some(Dialed { address, result }) = self.dialer.next() {
            let connected = result.and_then(|(stream, sealers)| {
                let reached_at = self.address_by(&stream)?;
                let stream = Stream::Tcp(stream);
                Ok((self.connections.add(stream, Peer::Follower, sealers)?, reached_at))
            });
            match connected {
                Ok((connection, reached_at)) => {
                    // Short, so that the other end need not take much in before it knows who says it.
                    self.connections.say(connection, &Update::Alive, Cause::Happened);
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

    /// Something can be read from a connection, or written to it.
    fn serve(&mut self, id: ConnectionId) {
        self.flush(id);
        let Some(connection) = self.connections.get_mut(id) else { return };
        let open = connection.fill();
        while let Some(connection) = self.connections.heard(id) {
            match connection.next(id, self.key.as_ref()) {
                Ok(Received::Input(input)) => self.step(input),
                Ok(Received::Hail) => self.flush(id),
                Ok(Received::Strange(why)) => {
                    self.strangers.warn("a caller is not let in", &why);
                    self.flush(id);
                }
                Ok(Received::Nothing) => break,
                Err(error) => return self.give_up(id, &error),
            }
        }
        if !open {
            return self.close(id);
        }
        if let Some(connection) = self.connections.get_mut(id)
            && let Err(error) = connection.hold_back()
        {
            self.give_up(id, &error);
        }
    }

    fn give_up(&mut self, id: ConnectionId, error: &ConnectionError) {
        let what = "a connection is given up";
        match self.connections.get_mut(id).map(|connection| connection.peer) {
            Some(Peer::Program { .. }) => self.misspoken.warn(what, error),
            Some(Peer::Caller(_) | Peer::Hailed) => self.strangers.warn(what, error),
            // Of servers that have the key there are as many as nodes, and they call anew by and by.
            _ => tracing::warn!(connection = id.0, %error, "{what}"),
        }
        self.close(id);
    }

    fn flush(&mut self, id: ConnectionId) {
        self.connections.flush(id);
        self.report_closed();
    }

    fn close(&mut self, id: ConnectionId) {
        self.connections.close(id);
        self.report_closed();
    }

    /// Has something happen to the state, and then all that follows from what it had to say.
    fn step(&mut self, input: Input) {
        self.apply(input);
        self.report_closed();
    }

    /// Tells the state of connections that are closed, and of those that are found closed as others are told of that, one
    /// after the other: of a thousand programs that end at once each is told of all others.
    fn report_closed(&mut self) {
        while let Some(id) = self.connections.next_closed() {
            self.apply(Input::Closed(id));
        }
    }

    /// Has something happen to the state, and says what it has to say.
    fn apply(&mut self, input: Input) {
        let now = self.start.elapsed();
        let mut written = Vec::new();
        for output in self.directory.step(now, input) {
            written.extend(self.carry_out(output));
        }
        // Each once, in the order of what was written last: who is told that something is done is
        // told after all who are told what.
        let mut seen = BTreeSet::new();
        written.reverse();
        written.retain(|id| seen.insert(*id));
        written.into_iter().rev().for_each(|id| self.connections.flush(id));
    }

    /// Does that. Returns the connection that is to be flushed for it.
    fn carry_out(&mut self, output: Output) -> Option<ConnectionId> {
        match output {
            Output::Answer(to, answer) => {
                let is_asked = !matches!(answer, Answer::Appeared { .. } | Answer::Gone { .. });
                self.connections.say(to, &answer, cause(is_asked));
                Some(to)
            }
            Output::Update(to, update) => {
                let is_asked = matches!(update, Update::SnapshotPart { .. } | Update::Snapshot(_));
                self.connections.say(to, &update, cause(is_asked));
                Some(to)
            }
            Output::Reply(to, reply) => {
                self.connections.say(to, &reply, Cause::Happened);
                Some(to)
            }
            Output::Close(id) => {
                self.connections.get_mut(id)?.close_when_sent();
                Some(id)
            }
            Output::Dial(address) => {
                let bridges = bridge::known(&self.directory.find(&bridge::query()));
                self.dialer.dial(address, bridges);
                None
            }
            Output::Warn(why) => {
                tracing::warn!("{why}");
                None
            }
        }
    }
}

fn cause(is_asked: bool) -> Cause {
    if is_asked { Cause::Asked } else { Cause::Happened }
}

#[cfg(test)]
mod tests;
