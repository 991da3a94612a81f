//! A bridge at work: one thread between all connections that it carries. For each direction it keeps
//! at most what one read brought and the other side did not take; until that is gone it reads no
//! more, and the kernels hold the sender up.

use super::call;
use super::request::{Refusal, Request};
use crate::sockets::{self, accepted};
use crate::threads;
use crate::transport::tcp::expect_node;
use crate::transport::{LOOK_EVERY, watch_over};
use keeptime_locks::lock;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// Connections that are carried at a time. What is kept for one is at most 128 KiB.
pub const RELAYED_MOST: usize = 512;
/// Callers that have not said where they want to be carried. If more come, the oldest goes: it is
/// silent, or slow.
const CALLERS_MOST: usize = 64;
/// Callers whose connections are being made, each by a thread of its own.
const CALLING_MOST: usize = 32;
/// Bytes of one read.
const READ: usize = 64 << 10;
/// Reads of one connection before others get a turn.
const READS_MOST: usize = 4;
/// Things that become ready, for one call.
const EVENTS: usize = 64;

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const FIRST: u64 = 2;

/// Carries, until it is dropped.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    carried: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Listens on every interface, for both kinds of addresses if the kernel has both.
pub(super) fn listen(port: u16) -> io::Result<TcpListener> {
    sockets::listen((Ipv6Addr::UNSPECIFIED, port).into())
}

impl Relay {
    /// Carries whoever calls `listener` and asks for what is `permitted`.
    ///
    /// # Errors
    /// If the kernel does not give what is needed.
    pub fn start(
        listener: TcpListener,
        permitted: impl Fn(&Request) -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let (stop, carried) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let shell = Shell {
            listener,
            epoll,
            bell: bell.clone(),
            stop: stop.clone(),
            carried: carried.clone(),
            permitted: Arc::new(permitted),
            callers: BTreeMap::new(),
            made: Arc::default(),
            pairs: BTreeMap::new(),
            last: FIRST,
            bytes: vec![0; READ].into_boxed_slice(),
        };
        let thread = threads::spawn("bridge", move || shell.run())?;
        Ok(Self { port, carried, stop, bell, thread: Some(thread) })
    }

    /// Where it is called.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections that it carries now.
    pub fn carried(&self) -> usize {
        self.carried.load(Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.bell.write(1);
        if let Some(thread) = self.thread.take() {
            // It has panicked and said so, or it is done.
            let _ = thread.join();
        }
    }
}

type Permitted = dyn Fn(&Request) -> bool + Send + Sync;

struct Shell {
    listener: TcpListener,
    epoll: Epoll,
    bell: Arc<EventFd>,
    stop: Arc<AtomicBool>,
    carried: Arc<AtomicUsize>,
    permitted: Arc<Permitted>,
    callers: BTreeMap<u64, Caller>,
    made: Arc<Mutex<Made>>,
    /// By the lesser of their two numbers, which is even.
    pairs: BTreeMap<u64, Pair>,
    last: u64,
    bytes: Box<[u8]>,
}

/// Who has not said everything.
struct Caller {
    stream: TcpStream,
    said: Vec<u8>,
}

/// What threads that call have made.
#[derive(Default)]
struct Made {
    calling: usize,
    pairs: Vec<Pair>,
}

/// Two connections, and what is on its way from each to the other.
struct Pair {
    streams: [TcpStream; 2],
    flows: [Flow; 2],
    watched: [EpollFlags; 2],
}

/// Where bytes go.
pub(crate) trait Outgoing: Write {
    /// Nothing more comes.
    ///
    /// # Errors
    /// If that cannot be said.
    fn end(&mut self) -> io::Result<()>;
}

/// From one connection to the other.
#[derive(Default)]
pub(crate) struct Flow {
    kept: Vec<u8>,
    /// How much of that was written.
    written: usize,
    /// Nothing more comes.
    is_ended: bool,
    /// The other one was told so.
    is_closed: bool,
}

impl Shell {
    fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut looked = Instant::now();
        while !self.stop.load(Relaxed) {
            // Interrupted: as if nothing had happened.
            let ready = self.epoll.wait(&mut events, self.rest()).unwrap_or(0);
            for event in &events[..ready] {
                match event.data() {
                    LISTENER => self.accept(),
                    BELL => self.take_made(),
                    number if self.callers.contains_key(&number) => self.hear(number),
                    number => self.carry(number),
                }
            }
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look_after_pairs();
            }
        }
    }

    /// How long nothing has to be looked at.
    fn rest(&self) -> EpollTimeout {
        if self.pairs.is_empty() {
            return EpollTimeout::NONE;
        }
        EpollTimeout::from(LOOK_EVERY.as_millis() as u16)
    }

    /// Ends what is carried to or from nodes that are gone without anything having told so. The kernel goes on for a
    /// quarter of an hour with what is on its way to one, and the other end waits for this bridge.
    fn look_after_pairs(&mut self) {
        let are_there = |pair: &Pair| pair.streams.iter().all(|stream| expect_node(stream).is_ok());
        self.pairs.retain(|_, pair| are_there(pair));
        self.carried.store(self.pairs.len(), Relaxed);
    }

    fn accept(&mut self) {
        while let Some((stream, _)) = accepted(self.listener.accept()) {
            let number = self.fresh();
            let watched = stream.set_nonblocking(true).is_ok()
                && self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number)).is_ok();
            if !watched {
                continue;
            }
            self.callers.insert(number, Caller { stream, said: Vec::new() });
            // Most have said where they want to be carried by now.
            self.hear(number);
            if self.callers.len() > CALLERS_MOST
                && let Some((oldest, _)) = self.callers.first_key_value()
            {
                let oldest = *oldest;
                // It may have spoken since it was looked last.
                self.hear(oldest);
                self.callers.remove(&oldest);
            }
        }
    }

    /// A caller says where it wants to be carried, as far as that has come.
    fn hear(&mut self, number: u64) {
        let Some(caller) = self.callers.get_mut(&number) else { return };
        let request = match caller.read() {
            Ok(None) => return,
            Ok(Some(request)) => request,
            Err(refusal) => return self.refuse(number, refusal),
        };
        let mut made = lock(&self.made);
        let promised = self.pairs.len() + made.pairs.len() + made.calling;
        if made.calling >= CALLING_MOST || promised >= RELAYED_MOST {
            drop(made);
            return self.refuse(number, Refusal::Full);
        }
        made.calling += 1;
        drop(made);
        let Some(Caller { stream, said }) = self.callers.remove(&number) else { return };
        let _ = self.epoll.delete(&stream);
        let (permitted, made, bell) =
            (self.permitted.clone(), self.made.clone(), self.bell.clone());
        let call = move || {
            let pair = connect(&request, stream, said, &*permitted);
            let mut made = lock(&made);
            made.calling -= 1;
            made.pairs.extend(pair);
            let _ = bell.write(1);
        };
        if threads::spawn("bridge-call", call).is_err() {
            // The caller finds its connection closed.
            lock(&self.made).calling -= 1;
        }
    }

    fn refuse(&mut self, number: u64, refusal: Refusal) {
        if let Some(mut caller) = self.callers.remove(&number) {
            // A new connection takes two bytes; whoever does not read them is told by its end.
            let _ = caller.stream.write_all(&Refusal::answer(Some(refusal)));
        }
    }

    fn take_made(&mut self) {
        let _ = self.bell.read();
        let made = std::mem::take(&mut lock(&self.made).pairs);
        for pair in made {
            let number = self.fresh();
            let watched = (number..).zip(&pair.streams).try_for_each(|(number, stream)| {
                self.epoll.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, number))
            });
            if watched.is_ok() {
                self.pairs.insert(number, pair);
                // What the caller had said beyond its request.
                self.carry(number);
            }
        }
        self.carried.store(self.pairs.len(), Relaxed);
    }

    /// Something has come by a connection, or there is room.
    fn carry(&mut self, number: u64) {
        let pair_number = number & !1;
        let Some(pair) = self.pairs.get_mut(&pair_number) else { return };
        let carried = pair.carry(&mut self.bytes).and_then(|is_done| {
            pair.watch(&self.epoll, pair_number)?;
            Ok(is_done)
        });
        // An error on one side is an end for the other.
        if carried.unwrap_or(true) {
            self.pairs.remove(&pair_number);
            self.carried.store(self.pairs.len(), Relaxed);
        }
    }

    /// An even number that was not used; the one after it belongs to it.
    fn fresh(&mut self) -> u64 {
        self.last += 2;
        self.last
    }
}

/// Connects to whom is asked for, and answers the caller unless the next bridge does.
fn connect(
    request: &Request,
    mut caller: TcpStream,
    said: Vec<u8>,
    permitted: &Permitted,
) -> Option<Pair> {
    let connected = if permitted(request) {
        let called = call::connect_to(request.first(), &call::Ending::default());
        called.map_err(|_| Refusal::Unreachable)
    } else {
        Err(Refusal::Unknown)
    };
    let passed_on = connected.and_then(|mut stream| match request.rest() {
        None => Ok((stream, true)),
        Some(rest) => {
            let said = stream.write_all(&rest.encode());
            said.map(|()| (stream, false)).map_err(|_| Refusal::Unreachable)
        }
    });
    let answer = match &passed_on {
        Ok((_, false)) => None,
        Ok((_, true)) => Some(None),
        Err(refusal) => Some(Some(*refusal)),
    };
    if let Some(answer) = answer {
        caller.write_all(&Refusal::answer(answer)).ok()?;
    }
    let (stream, _) = passed_on.ok()?;
    watch_over(&caller).ok()?;
    stream.set_nonblocking(true).ok()?;
    let flows = [Flow { kept: said, ..Flow::default() }, Flow::default()];
    Some(Pair { streams: [caller, stream], flows, watched: [EpollFlags::EPOLLIN; 2] })
}

impl Caller {
    /// Reads what has come. Returns the request when it is whole; the rest is kept.
    fn read(&mut self) -> Result<Option<Request>, Refusal> {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err(Refusal::Malformed),
            Ok(count) => self.said.extend_from_slice(&bytes[..count]),
            Err(error) if is_patient(&error) => {}
            Err(_) => return Err(Refusal::Malformed),
        }
        let Some((request, length)) = Request::decode(&self.said)? else { return Ok(None) };
        self.said.drain(..length);
        Ok(Some(request))
    }
}

impl Pair {
    /// Carries what there is, both ways. Returns whether nothing more will come.
    fn carry(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let Self { streams, flows: [there, back], .. } = self;
        let [mut one, mut other] = streams.each_ref();
        there.carry(&mut one, &mut other, bytes)?;
        back.carry(&mut other, &mut one, bytes)?;
        Ok(there.is_closed() && back.is_closed())
    }

    /// Is told when something comes for which there is room, and of room if there is none. Of what is watched the kernel
    /// tells errors and ends as well, whatever it is asked, again and again: where neither is wanted now, nothing would be
    /// done about them, so that is not watched.
    fn watch(&mut self, epoll: &Epoll, number: u64) -> io::Result<()> {
        for side in [0, 1] {
            let (from, to) = (&self.flows[side], &self.flows[1 - side]);
            let mut flags = EpollFlags::empty();
            flags.set(EpollFlags::EPOLLIN, from.kept.is_empty() && !from.is_ended);
            flags.set(EpollFlags::EPOLLOUT, !to.kept.is_empty());
            if flags != self.watched[side] {
                let before = std::mem::replace(&mut self.watched[side], flags);
                let (stream, number) = (&self.streams[side], number + side as u64);
                let mut event = EpollEvent::new(flags, number);
                match (before.is_empty(), flags.is_empty()) {
                    (true, _) => epoll.add(stream, event)?,
                    (false, true) => epoll.delete(stream)?,
                    (false, false) => epoll.modify(stream, &mut event)?,
                }
            }
        }
        Ok(())
    }
}

impl Flow {
    /// Carries what there is and what there is room for, by way of `bytes`.
    ///
    /// # Errors
    /// If one of the two connections is broken.
    pub(crate) fn carry(
        &mut self,
        from: &mut impl Read,
        to: &mut impl Outgoing,
        bytes: &mut [u8],
    ) -> io::Result<()> {
        if !self.kept.is_empty() {
            self.written += write(to, &self.kept[self.written..])?;
            if self.written < self.kept.len() {
                return Ok(());
            }
            (self.kept, self.written) = (Vec::new(), 0);
        }
        for _ in 0..READS_MOST {
            if self.is_ended {
                break;
            }
            match from.read(bytes) {
                Ok(0) => self.is_ended = true,
                Ok(count) => {
                    let written = write(to, &bytes[..count])?;
                    if written < count {
                        self.kept.extend_from_slice(&bytes[written..count]);
                        return Ok(());
                    }
                    // Less than there was room for: there is no more.
                    if count < bytes.len() {
                        return Ok(());
                    }
                }
                Err(error) if is_patient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.is_ended && !self.is_closed {
            self.is_closed = true;
            to.end()?;
        }
        Ok(())
    }

    /// Whether everything was carried, and the end of it told.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Outgoing for &TcpStream {
    fn end(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Writes what there is room for.
fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) if is_patient(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

fn is_patient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::request::Whom;
    use crate::bridge::routes::Way;
    use crate::transport::testing::streams;
    use nix::poll::{PollFd, PollFlags, poll};
    use std::net::SocketAddr;
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    fn relay(permitted: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Relay {
        Relay::start(TcpListener::bind("127.0.0.1:0").unwrap(), permitted).unwrap()
    }

    fn here(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// Who is meant: sends everything back, and its end after the caller's.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut copy = stream.try_clone().unwrap();
                    let _ = io::copy(&mut stream, &mut copy);
                    let _ = copy.shutdown(Shutdown::Write);
                });
            }
        });
        address
    }

    /// Over two bridges: every byte both ways, whoever waits for whom, and the ends one after another.
    #[test]
    fn everything_is_carried_both_ways_and_the_end_as_well() {
        let (one, other) = (relay(|_| true), relay(|_| true));
        let way = Way { hops: vec![here(one.port()), here(other.port()), echo()] };
        let mut stream = call::call(&way, Whom::Directory).unwrap();
        let sent: Vec<u8> = (0..20_000_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
        let mut writing = stream.try_clone().unwrap();
        let received = thread::scope(|scope| {
            let sending = &sent;
            scope.spawn(move || {
                writing.write_all(sending).unwrap();
                writing.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        assert!(received == sent);
        // A moment later nothing is left of it.
        let gone = (0..6_000).any(|_| {
            thread::park_timeout(Duration::from_millis(10));
            one.carried() + other.carried() == 0
        });
        assert!(gone, "{} and {}", one.carried(), other.carried());
    }

    #[test]
    fn who_is_not_carried_is_told_why() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let open = relay(|_| true);
        let open_at = here(open.port());
        let closed = relay(move |request| request.first() == open_at);
        let refused = |hops: &[SocketAddr]| {
            let way = Way { hops: hops.to_vec() };
            call::call(&way, Whom::Directory).unwrap_err().to_string()
        };
        let closed = here(closed.port());
        assert_eq!(refused(&[closed, nobody]), Refusal::Unknown.to_string());
        assert_eq!(refused(&[open_at, nobody]), Refusal::Unreachable.to_string());
        assert_eq!(refused(&[closed, open_at, nobody]), Refusal::Unreachable.to_string());
        let mut stream = TcpStream::connect(closed).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, Refusal::answer(Some(Refusal::Malformed)));
    }

    /// Goal: each of many who call at once is answered, and no more than so many are kept that say nothing. Method: all have
    /// called before the bridge looks for the first time, every other one without a word.
    #[test]
    fn each_of_many_that_call_at_once_is_answered() {
        let listener = sockets::listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let request = Request::new(Whom::Directory, &[here(1)]).unwrap();
        let called = (0..3 * CALLERS_MOST).map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let speaks = number % 2 == 0;
            if speaks {
                stream.write_all(&request.encode()).unwrap();
            }
            (stream, speaks)
        });
        let (speaking, silent): (Vec<_>, Vec<_>) = called.partition(|(_, speaks)| *speaks);
        let relay = Relay::start(listener, |_| false).unwrap();
        for (mut stream, _) in speaking {
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            let refused = [Refusal::Unknown, Refusal::Full].map(|why| Refusal::answer(Some(why)));
            assert!(refused.iter().any(|refused| answer == refused), "{answer:?}");
        }
        let dropped = silent.len() - CALLERS_MOST;
        for (at, (mut stream, _)) in silent.into_iter().enumerate() {
            stream.set_nonblocking(at >= dropped).unwrap();
            let end = stream.read(&mut [0]).ok();
            assert_eq!(end, (at < dropped).then_some(0), "{at}");
        }
        drop(relay);
    }

    /// The caller is gone, with an error, and whom it called is stopped: there is nothing to be done before that one takes
    /// what has come. A bridge that was told of the end all the while would use a processor up.
    #[test]
    fn an_end_is_not_told_while_the_other_side_takes_nothing() {
        let ((here, caller), (there, called)) = (streams(), streams());
        for stream in [&here, &there, &caller] {
            stream.set_nonblocking(true).unwrap();
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        for (number, stream) in (FIRST..).zip([&here, &there]) {
            epoll.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, number)).unwrap();
        }
        let (flows, watched) = (Default::default(), [EpollFlags::EPOLLIN; 2]);
        let mut pair = Pair { streams: [here, there], flows, watched };
        let mut bytes = vec![0; READ];
        // Who goes without having read all goes with an error.
        (&called).write_all(b"never read").unwrap();
        while caller.peek(&mut [0]).is_err() {
            pair.carry(&mut bytes).unwrap();
        }
        while pair.flows[0].kept.is_empty() {
            let written = (&caller).write(&bytes);
            assert!(written.map_or_else(|error| is_patient(&error), |count| count > 0));
            pair.carry(&mut bytes).unwrap();
        }
        pair.watch(&epoll, FIRST).unwrap();
        drop(caller);
        let mut ended = [PollFd::new(pair.streams[0].as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut ended, 60_000_u16), Ok(1));
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
        assert!(events[..count].iter().all(|event| event.data() != FIRST));
    }

    /// Both are told when the bridge ends, as if the other one had ended.
    #[test]
    fn the_end_of_a_bridge_is_the_end_of_what_it_carries() {
        let bridge = relay(|_| true);
        let way = Way { hops: vec![here(bridge.port()), echo()] };
        let mut stream = call::call(&way, Whom::Directory).unwrap();
        stream.write_all(b"here").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        drop(bridge);
        assert!(matches!(stream.read(&mut answer), Ok(0) | Err(_)));
    }
}
