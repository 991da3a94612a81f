//! Requests that a balancer has answered, counted from an access log that it sends by UDP: one datagram
//! for each (syslog, RFC 3164), at whose end the server that answered.

use crate::traffic::Server;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Most datagrams that are taken in at a time: more than a socket's buffer holds.
const BATCH_MAX: usize = 65_536;
/// Longer than a line of such a log, unless many servers were tried: its end is cut off, and not counted.
const DATAGRAM_MAX: usize = 2_048;

/// What each server has answered since this listens.
#[derive(Debug)]
pub(crate) struct Tally {
    socket: UdpSocket,
    counts: BTreeMap<SocketAddr, Count>,
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
        let counts = servers.iter().map(|server| (server.address, Count::default())).collect();
        Ok(Self { socket, counts })
    }

    /// Takes in all that has come since. Never waits.
    pub fn read(&mut self) {
        let mut datagram = [0; DATAGRAM_MAX];
        for _ in 0..BATCH_MAX {
            let Ok(length) = self.socket.recv(&mut datagram) else { return };
            let server = answered_by(&datagram[..length]);
            if let Some(count) = server.and_then(|server| self.counts.get_mut(&server)) {
                count.answered += 1;
            }
        }
    }

    /// Requests that `server` was sent, of which so many are in flight. Never less than before: a datagram
    /// may be late or lost.
    pub fn sent(&mut self, server: SocketAddr, in_flight: u64) -> u64 {
        let Some(count) = self.counts.get_mut(&server) else { return in_flight };
        count.sent = count.sent.max(count.answered + in_flight);
        count.sent
    }
}

/// The last of those that were tried.
fn answered_by(datagram: &[u8]) -> Option<SocketAddr> {
    std::str::from_utf8(datagram).ok()?.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_known_servers_answer_is_counted_and_nothing_else() {
        let address = "10.0.0.1:80".parse().unwrap();
        let server = Server { name: "n1".parse().unwrap(), address };
        let mut tally = Tally::listen("127.0.0.1:0".parse().unwrap(), &[server]).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let log = tally.socket.local_addr().unwrap();
        for line in ["10.0.0.1:80", "10.0.0.2:80, 10.0.0.1:80", "10.0.0.2:80", "-", ""] {
            let line = format!("<190>Nov 22 01:02:03 edge nginx: {line}");
            sender.send_to(line.as_bytes(), log).unwrap();
        }
        tally.read();
        assert_eq!(tally.sent(address, 3), 5, "two are answered");
        assert_eq!(tally.sent(address, 2), 5, "the third's datagram is not there yet");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_passed_over(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = answered_by(&bytes);
        }
    }
}
