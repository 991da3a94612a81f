//! Frames over UDP, with reliability of our own: many datagrams by one call (GSO), and as many read
//! (GRO). The connection is made over TCP, which carries little but a port afterwards; its end
//! tells that the other process has ended.
//!
//! A network may carry TCP and no datagrams, or no long ones, and then nothing else would ever tell.
//! That nothing is confirmed does not: a process that computes or is stopped confirms nothing, and over
//! TCP it is waited for. So it is asked over TCP. Who reads datagrams answers, when it has read all
//! that are there and has said so by one more; if that does not help for long, the network is cut
//! ([`reliable::Sending::answered`]).

mod payloads;
mod receiver;
mod recvmsg;
mod sender;
mod shared;
#[cfg(test)]
mod tests;

use super::{Ends, GONE_AFTER, Receiving, Sending, reliable, watch_over};
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, TcpUserTimeout, UdpGroSegment};
use nix::sys::socket::{getsockopt, setsockopt};
use receiver::UdpReceiver;
use sender::UdpSender;
use shared::Shared;
use std::io::{self, Write};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;

/// What the kernel is asked to keep of what arrives.
const RECEIVED_MOST: usize = 8 << 20;
/// Most bytes of one call. The kernel takes a few more, but with heads of UDP, IPv6 and Ethernet that makes 64 KiB, and devices
/// are handed no such packet: each datagram then goes by itself, and is read by itself (`gso_features_check`).
const BATCH: usize = (64 << 10) - 1 - 8 - 40 - 14;
/// Most datagrams of one call, as the kernel takes.
const BATCH_SEGMENTS: usize = 64;
/// A datagram's first bytes: which connection it belongs to. What is left of an older one with the
/// same ports is not taken for it.
const TOKEN: usize = 8;
/// Bytes of a datagram before those of the stream, where it says of nothing behind a gap.
const BEFORE: usize = TOKEN + reliable::HEAD;
/// Bytes of a port on the connection over TCP.
const PORT: usize = 2;
/// What may follow there: whether this process takes what arrives, and that the other one does.
const ASKED: u8 = b'?';
const ANSWERED: u8 = b'!';
/// Milliseconds after which a node is gone whose kernel does not confirm a word: the kernel does not ask a node that
/// owes it something whether it is there. As long as one has that owes nothing.
const UNCONFIRMED_MOST: u32 = 2 * GONE_AFTER * 1000;

/// The caller's side, before the other one has said its port.
///
/// # Errors
/// If a socket cannot be set to what is needed.
pub fn call(stream: &TcpStream) -> io::Result<UdpSocket> {
    UdpSocket::bind((own(stream)?, 0))
}

/// The caller's halves. Nothing is sent until the other side has said its port on `stream`.
///
/// # Errors
/// As above.
pub fn called(stream: TcpStream, socket: UdpSocket, token: u64) -> io::Result<Ends> {
    ends(stream, socket, token, false)
}

/// The halves of the one who is called: the caller reads at `port`.
///
/// # Errors
/// As above.
pub fn accept(mut stream: TcpStream, port: u16, token: u64) -> io::Result<Ends> {
    let socket = UdpSocket::bind((own(&stream)?, 0))?;
    socket.connect((stream.peer_addr()?.ip().to_canonical(), port))?;
    stream.write_all(&socket.local_addr()?.port().to_le_bytes())?;
    ends(stream, socket, token, true)
}

/// Where this end is: over IPv4 as one of that, though a socket of IPv6 has taken the call.
fn own(stream: &TcpStream) -> io::Result<IpAddr> {
    Ok(stream.local_addr()?.ip().to_canonical())
}

fn ends(stream: TcpStream, socket: UdpSocket, token: u64, connected: bool) -> io::Result<Ends> {
    stream.set_nonblocking(true)?;
    watch_over(&stream)?;
    setsockopt(&stream, TcpUserTimeout, &UNCONFIRMED_MOST)?;
    let room = prepare(&socket)?;
    let readable = vec![socket.as_fd().try_clone_to_owned()?, stream.as_fd().try_clone_to_owned()?];
    let shared = Arc::new(Shared::new(stream, socket, token, connected, room));
    Ok(Ends {
        sender: Sending::new(UdpSender::new(shared.clone())),
        receiver: Receiving::new(UdpReceiver::new(shared, room)),
        readable,
        writable: None,
        in_memory: false,
        poll_is_enough: false,
        glance: None,
    })
}

/// Has the kernel keep much of what arrives. Returns how many bytes of a stream may be on the way to here.
fn prepare(socket: &UdpSocket) -> io::Result<u32> {
    socket.set_nonblocking(true)?;
    // Without it datagrams are read one by one.
    let _ = setsockopt(socket, UdpGroSegment, &true);
    // More than is allowed to everybody, if this process may.
    if setsockopt(socket, RcvBufForce, &RECEIVED_MOST).is_err() {
        setsockopt(socket, RcvBuf, &RECEIVED_MOST)?;
    }
    setsockopt(socket, SndBuf, &RECEIVED_MOST)?;
    // The kernel counts more than the bytes themselves: up to twice as much.
    Ok((getsockopt(socket, RcvBuf)? / 3).min(reliable::KEPT_MOST) as u32)
}
