//! Connections over bridges, for whoever makes one.

use super::request::{ANSWER, Refusal, Request, Whom};
use super::routes::Way;
use crate::transport::watch_over;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long one hop may take to be connected.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// A connection to the end of `way`, which is `whom`.
///
/// # Errors
/// If one of its hops does not answer or refuses.
pub fn call(way: &Way, whom: Whom) -> io::Result<TcpStream> {
    let (first, rest) = way.hops.split_first().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut stream = connect(*first)?;
    if rest.is_empty() {
        return Ok(stream);
    }
    let request = Request::new(whom, rest).ok_or(io::ErrorKind::InvalidInput)?;
    stream.write_all(&request.encode())?;
    // Each bridge on the way may take its time.
    stream.set_read_timeout(Some(CONNECT_TIME * rest.len() as u32 + CONNECT_TIME))?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer)?;
    stream.set_read_timeout(None)?;
    match Refusal::said(answer) {
        None => Ok(stream),
        Some(refusal) => Err(io::Error::other(refusal)),
    }
}

/// A connection to one hop. The kernel tells when its node is gone.
pub(super) fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, CONNECT_TIME)?;
    watch_over(&stream)?;
    Ok(stream)
}
