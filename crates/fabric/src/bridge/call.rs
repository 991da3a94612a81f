//! Connections over bridges, for whoever makes one.

use super::request::{ANSWER, Refusal, Request, Whom};
use super::routes::Way;
use crate::transport::watch_over;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How long one hop may take to be connected.
const CONNECT_TIME: Duration = Duration::from_secs(2);
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
    let stream = begin(to)?;
    wait(&stream, PollFlags::POLLOUT, Instant::now() + CONNECT_TIME, ending)?;
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    stream.set_nonblocking(false)?;
    watch_over(&stream)?;
    Ok(stream)
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
        wait(stream, PollFlags::POLLIN, until, ending)?;
        match stream.read(&mut bytes[heard..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => heard += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until `stream` is ready for what `flags` say, or broken.
fn wait(stream: &TcpStream, flags: PollFlags, until: Instant, ending: &Ending) -> io::Result<()> {
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
        let mut ready = [PollFd::new(stream.as_fd(), flags)];
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

    #[test]
    fn nobody_there_is_told_as_the_kernel_tells_it() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = call(&Way::straight(gone), Whom::Directory).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
