//! Requests that a balancer has answered, counted from an access log that it sends by UDP: one datagram
//! for each (syslog, RFC 3164), at whose end the server that answered.

use crate::traffic::Server;
use nix::cmsg_space;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, RxqOvfl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, RecvMsg, recvmsg, setsockopt};
use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// What comes between two looks, also while a balancer hangs, has to fit in: some 40,000 datagrams, of which the kernel counts
/// 768 bytes each against twice this. The usual buffer holds 270.
const BUFFER: usize = 16 * 1024 * 1024;
/// Most datagrams that are taken in at a time: more than the buffer holds.
const BATCH_MAX: usize = 65_536;
/// Longer than a line of such a log, unless many servers were tried: its end is cut off, and not counted.
const DATAGRAM_MAX: usize = 2_048;

/// What each server has answered since this listens.
#[derive(Debug)]
pub(crate) struct Tally {
    socket: UdpSocket,
    counts: BTreeMap<SocketAddr, Count>,
    /// Datagrams that had no room in the buffer, as far as the kernel has told: it does so with the next one that had.
    lost: u32,
    /// Whether none more were told when it was last read.
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    answered: u64,
    sent: u64,
}

impl Tally {
    /// Listens at `address` for what `servers` answer.
    pub fn listen(address: SocketAddr, servers: &[Server]) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // More than is allowed to everybody, if this process may.
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            setsockopt(&socket, RcvBuf, &BUFFER)?;
        }
        setsockopt(&socket, RxqOvfl, &1)?;
        let counts = servers.iter().map(|server| (server.address, Count::default())).collect();
        Ok(Self { socket, counts, lost: 0, is_whole: true })
    }

    /// Takes in all that has come since. Never waits.
    pub fn read(&mut self) {
        let lost_before = self.lost;
        let (mut datagram, mut space) = ([0; DATAGRAM_MAX], cmsg_space!(u32));
        for _ in 0..BATCH_MAX {
            let mut parts = [IoSliceMut::new(&mut datagram)];
            let (socket, none) = (self.socket.as_raw_fd(), MsgFlags::empty());
            let Ok(message) = recvmsg::<()>(socket, &mut parts, Some(&mut space), none) else {
                break;
            };
            let (length, lost) = (message.bytes, lost_until(&message));
            self.lost = lost.unwrap_or(self.lost);
            let server = answered_by(&datagram[..length]);
            if let Some(count) = server.and_then(|server| self.counts.get_mut(&server)) {
                count.answered += 1;
            }
        }
        self.is_whole = self.lost == lost_before;
    }

    /// Requests that `server` was sent, of which so many are in flight. Never less than before, since a datagram may be late;
    /// nothing where some were lost since the time before.
    pub fn sent(&mut self, server: SocketAddr, in_flight: u64) -> Option<u64> {
        let count = self.counts.get_mut(&server)?;
        count.sent = count.sent.max(count.answered + in_flight);
        self.is_whole.then_some(count.sent)
    }
}

/// How many were lost before this one, if any were.
fn lost_until(message: &RecvMsg<'_, '_, ()>) -> Option<u32> {
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::RxqOvfl(lost) => Some(lost),
        _ => None,
    })
}

/// The last of those that were tried.
fn answered_by(datagram: &[u8]) -> Option<SocketAddr> {
    std::str::from_utf8(datagram).ok()?.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);

    /// Of one server, and what sends it lines of an nginx' log.
    fn tally() -> (Tally, impl Fn(&str)) {
        let server = Server { name: "n1".parse().unwrap(), address: SERVER };
        let tally = Tally::listen("127.0.0.1:0".parse().unwrap(), &[server]).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let log = tally.socket.local_addr().unwrap();
        let send = move |line: &str| {
            let line = format!("<190>Nov 22 01:02:03 edge nginx: {line}");
            sender.send_to(line.as_bytes(), log).unwrap();
        };
        (tally, send)
    }

    #[test]
    fn what_known_servers_answer_is_counted_and_nothing_else() {
        let (mut tally, send) = tally();
        for line in ["10.0.0.1:80", "10.0.0.2:80, 10.0.0.1:80", "10.0.0.2:80", "-", ""] {
            send(line);
        }
        tally.read();
        assert_eq!(tally.sent(SERVER, 3), Some(5), "two are answered");
        assert_eq!(tally.sent(SERVER, 2), Some(5), "the third's datagram is not there yet");
    }

    // Goal: what comes between two looks is all there. Method: more than the usual buffer holds.
    #[test]
    fn the_buffer_holds_more_than_the_usual_one() {
        let (mut tally, send) = tally();
        (0..400).for_each(|_| send("10.0.0.1:80"));
        tally.read();
        assert_eq!(tally.sent(SERVER, 0), Some(400));
    }

    // Goal: a count that lacks some is not told. Method: more datagrams than a small buffer holds, and two after them.
    #[test]
    fn where_some_were_lost_nothing_is_told() {
        let (mut tally, send) = tally();
        setsockopt(&tally.socket, RcvBuf, &4_096).unwrap();
        (0..100).for_each(|_| send("10.0.0.1:80"));
        tally.read();
        send("10.0.0.1:80");
        tally.read();
        assert_eq!(tally.sent(SERVER, 0), None);
        send("10.0.0.1:80");
        tally.read();
        assert!(tally.sent(SERVER, 0).is_some_and(|sent| (3..102).contains(&sent)));
        tally.read();
        assert!(tally.sent(SERVER, 0).is_some(), "nor was any lost since");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_passed_over(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = answered_by(&bytes);
        }
    }
}
