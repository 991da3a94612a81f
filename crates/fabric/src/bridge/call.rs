//! Connections over bridges, for whoever makes one.

use super::request::{ANSWER, Refusal, Request, Whom};
use super::routes::Way;
use crate::transport::watch_over;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long one hop may take to be connected.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// After which a further address is called though those before may answer yet: longer than an answer takes in a cluster.
const NEXT_AFTER: Duration = Duration::from_millis(100);
/// How often a call that is not answered looks whether it is wanted still: what whoever closes waits for it, at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether calls are not wanted any more, for all who have a copy.
#[derive(Debug, Clone, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// From now on every call fails soon, those that are being made among them.
    pub fn begin(&self) {
        self.0.store(true, SeqCst);
    }

    /// Whether it is so.
    pub fn has_begun(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// A connection to the end of `way`, which is `whom`.
///
/// # Errors
/// If one of its hops does not answer or refuses.
pub fn call(way: &Way, whom: Whom) -> io::Result<TcpStream> {
    call_until(way, whom, &Ending::default())
}

/// The same, as long as it is wanted.
///
/// # Errors
/// As above, and `ConnectionAborted` if it is not wanted any more.
pub fn call_until(way: &Way, whom: Whom, ending: &Ending) -> io::Result<TcpStream> {
    let (first, rest) = way.hops.split_first().ok_or(ErrorKind::AddrNotAvailable)?;
    let mut stream = connect_to(*first, ending)?;
    if rest.is_empty() {
        return Ok(stream);
    }
    let request = Request::new(whom, rest).ok_or(ErrorKind::InvalidInput)?;
    stream.write_all(&request.encode())?;
    // Each bridge on the way may take its time.
    let until = Instant::now() + CONNECT_TIME * rest.len() as u32 + CONNECT_TIME;
    let mut answer = [0; ANSWER];
    hear(&mut stream, &mut answer, until, ending)?;
    match Refusal::said(answer) {
        None => Ok(stream),
        Some(refusal) => Err(io::Error::other(refusal)),
    }
}

/// A connection to one hop, as long as it is wanted. The kernel tells when its node is gone.
pub(super) fn connect_to(to: SocketAddr, ending: &Ending) -> io::Result<TcpStream> {
    let (_, stream) = connect_first(&[to], ending, |_, _| ())?;
    Ok(stream)
}

/// A connection to the first of `addresses` that answers, and which that is. Each is called as soon as one before it is known
/// not to answer, and otherwise [`NEXT_AFTER`] after it: many that are silent are silent at the same time. `note` is told how
/// long each took, or that it does not answer; nothing of those that are not waited for any more.
pub(super) fn connect_first(
    addresses: &[SocketAddr],
    ending: &Ending,
    mut note: impl FnMut(SocketAddr, Option<Duration>),
) -> io::Result<(SocketAddr, TcpStream)> {
    let mut next = addresses.iter().copied();
    let mut calls: Vec<Call> = Vec::new();
    let mut last = io::Error::new(ErrorKind::AddrNotAvailable, "it has no address here");
    let mut next_at = Instant::now();
    loop {
        let now = Instant::now();
        let to = if now >= next_at { next.next() } else { None };
        match to.map(|to| (to, begin(to))) {
            Some((to, Ok(stream))) => {
                calls.push(Call { to, stream, begun: now });
                next_at = now + NEXT_AFTER;
            }
            Some((to, Err(error))) => {
                note(to, None);
                last = error;
                continue;
            }
            None if calls.is_empty() => return Err(last),
            None => {}
        }
        if ending.has_begun() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        wait_for_any(&calls, next_at.saturating_duration_since(now))?;
        for call in mem::take(&mut calls) {
            match call.has_become() {
                Ok(true) => {
                    note(call.to, Some(call.begun.elapsed()));
                    call.stream.set_nonblocking(false)?;
                    watch_over(&call.stream)?;
                    return Ok((call.to, call.stream));
                }
                Ok(false) => calls.push(call),
                Err(error) => {
                    note(call.to, None);
                    (last, next_at) = (error, now);
                }
            }
        }
    }
}

/// A call that is being made: to whom, by what, and since when.
struct Call {
    to: SocketAddr,
    stream: TcpStream,
    begun: Instant,
}

impl Call {
    /// Whether it is a connection by now.
    fn has_become(&self) -> io::Result<bool> {
        let mut watched = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
        let is_over = match poll(&mut watched, PollTimeout::ZERO) {
            Err(Errno::EINTR) => false,
            ready => ready? > 0,
        };
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None if is_over => Ok(true),
            None if self.begun.elapsed() >= CONNECT_TIME => Err(ErrorKind::TimedOut.into()),
            None => Ok(false),
        }
    }
}

/// Waits until one of them has got on, for the time until another one is to begin; where none is, until it is looked again.
fn wait_for_any(calls: &[Call], time: Duration) -> io::Result<()> {
    let time = if time.is_zero() { LOOK_EVERY } else { time.min(LOOK_EVERY) };
    let all = calls.iter().map(|call| PollFd::new(call.stream.as_fd(), PollFlags::POLLOUT));
    let mut watched: Vec<_> = all.collect();
    // Rounded up: a sleep that ends early would be followed by another one.
    let time = PollTimeout::try_from(time + Duration::from_millis(1));
    match poll(&mut watched, time.unwrap_or(PollTimeout::ZERO)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// A connection that is being made.
fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads all of `bytes`.
fn hear(
    stream: &mut TcpStream,
    bytes: &mut [u8],
    until: Instant,
    ending: &Ending,
) -> io::Result<()> {
    let mut heard = 0;
    while heard < bytes.len() {
        wait(stream, until, ending)?;
        match stream.read(&mut bytes[heard..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => heard += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until `stream` has something to read, or is broken.
fn wait(stream: &TcpStream, until: Instant, ending: &Ending) -> io::Result<()> {
    loop {
        if ending.has_begun() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // Rounded up: a sleep that ends early would be followed by another one.
        let time = PollTimeout::try_from(left.min(LOOK_EVERY) + Duration::from_millis(1));
        let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, time.unwrap_or(PollTimeout::ZERO)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};
    use std::net::TcpListener;
    use std::thread;

    /// A bridge that takes calls and never answers: whoever closes is not held up by it, and calls nobody any more.
    #[test]
    fn a_call_that_is_not_wanted_any_more_ends() {
        let bridge = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = bridge.local_addr().unwrap();
        let (way, ending) = (Way { hops: vec![at, at] }, Ending::default());
        let call = || call_until(&way, Whom::Directory, &ending).map(drop);
        let called = thread::scope(|scope| {
            let calling = scope.spawn(call);
            let (mut asked, _) = bridge.accept().unwrap();
            asked.read_exact(&mut [0]).unwrap();
            ending.begin();
            calling.join().unwrap()
        });
        assert_eq!(called.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(call().unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    /// Goal: many addresses that do not answer, as those of private networks that other hosts have as well, hold up a first
    /// message for a moment each. Method: one that takes no callers at many, and one that does, at the last; nobody at one.
    #[test]
    fn addresses_that_do_not_answer_are_called_side_by_side() {
        const SILENT: u8 = 20;
        let flags = SockFlag::SOCK_CLOEXEC;
        let full = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let any = SockaddrStorage::from(SocketAddr::from(([0, 0, 0, 0], 0)));
        bind(full.as_raw_fd(), &any).unwrap();
        listen(&full, Backlog::new(0_i32).unwrap()).unwrap();
        let full = TcpListener::from(full);
        let port = full.local_addr().unwrap().port();
        let silent = (1..=SILENT).map(|host| SocketAddr::from(([127, 0, 1, host], port)));
        // As many as it has room for, and more.
        let _early: Vec<_> = silent.clone().take(4).map(|to| begin(to).unwrap()).collect();
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let last = there.local_addr().unwrap();
        let all: Vec<_> = [gone].into_iter().chain(silent.clone()).chain([last]).collect();
        let (begun, mut noted) = (Instant::now(), Vec::new());
        let note = |to, took: Option<Duration>| noted.push((to, took.is_some()));
        let (to, _stream) = connect_first(&all, &Ending::default(), note).unwrap();
        let took = begun.elapsed();
        assert_eq!((to, noted[0], noted.last()), (last, (gone, false), Some(&(last, true))));
        assert!(took >= NEXT_AFTER * u32::from(SILENT), "{took:?}: they were to be silent");
        assert!(took < CONNECT_TIME * 5, "{took:?}");
        let silent: Vec<_> = silent.take(2).collect();
        let error = connect_first(&silent, &Ending::default(), |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn nobody_there_is_told_as_the_kernel_tells_it() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = call(&Way::straight(gone), Whom::Directory).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
