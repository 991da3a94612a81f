//! Plain load: TCP senders as greedy as they come, receivers that measure what arrives, and datagrams
//! that nobody waits for.
//!
//! Throughput is measured where bytes arrive: a sender's own count is off by its socket buffer,
//! which holds seconds of a slow flow.

use anyhow::{Context, Result};
use keeptime_model::units::BitsPerSecond;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const BLOCK: usize = 256 * 1024;
/// Payload of a datagram: a full frame.
const DATAGRAM: usize = 1_472;
/// Datagrams leave in bursts this often: sleeping costs more than sending.
const BURST_EVERY: Duration = Duration::from_millis(2);
/// How long a sender tries to reach its receiver, which may start a little later.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// When a receiver counts, from when all its connections are there.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Not counted: slow start, and the others joining.
    pub warmup: Duration,
    /// Counted.
    pub length: Duration,
    /// Not counted any more: others that were to have company until their end.
    pub cooldown: Duration,
}

/// What one receiver saw in its window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Received {
    /// The sender.
    pub from: Ipv4Addr,
    /// Payload bytes that arrived within the window.
    pub bytes: u64,
    /// The window's length as measured.
    pub seconds: f64,
}

impl Received {
    /// Payload in 10^6 bits per second.
    pub fn mbit_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.seconds
    }
}

/// Receives `connections` connections on `port`, all in one window, and tells what came.
pub fn receive(port: u16, connections: usize, window: Window) -> Result<Vec<Received>> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .with_context(|| format!("while listening on port {port}"))?;
    let streams = (0..connections).map(|_| Ok(listener.accept()?.0));
    let streams: Vec<_> = streams.collect::<std::io::Result<_>>()?;
    let begin = Instant::now() + window.warmup;
    let start = |stream| std::thread::spawn(move || count(stream, begin, window));
    let threads: Vec<_> = streams.into_iter().map(start).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a receiver panicked"))?)
        .collect()
}

/// Sends to `to` over one connection until the receiver closes it or `limit` passes.
pub fn send(to: SocketAddrV4, limit: Duration) -> Result<()> {
    let started = Instant::now();
    let mut stream = connect(to)?;
    stream.set_write_timeout(Some(limit))?;
    let block = vec![0u8; BLOCK];
    while started.elapsed() < limit {
        match stream.write(&block) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if is_end(error.kind()) => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("while sending to {to}")),
        }
    }
    Ok(())
}

/// Sends datagrams to `to` at `rate` (payload) until `limit` passes, whether they arrive or not: what no
/// sender that yields can stand beside.
pub fn blast(to: SocketAddrV4, rate: BitsPerSecond, limit: Duration) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("while opening a socket")?;
    let (started, datagram) = (Instant::now(), [0u8; DATAGRAM]);
    let mut sent = 0u64;
    while started.elapsed() < limit {
        let passed = started.elapsed().into();
        let due = rate.bytes_in_floor(passed).get();
        while sent < due {
            // A full queue, or a host that says that nobody listens: the next one may get through.
            let _ = socket.send_to(&datagram, to);
            sent += DATAGRAM as u64;
        }
        std::thread::sleep(BURST_EVERY);
    }
    Ok(())
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::WouldBlock
            | ErrorKind::TimedOut
    )
}

fn connect(to: SocketAddrV4) -> Result<TcpStream> {
    let started = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to.into(), CONNECT_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) if started.elapsed() > CONNECT_WITHIN => {
                return Err(error).with_context(|| format!("while connecting to {to}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn count(mut stream: TcpStream, begin: Instant, window: Window) -> Result<Received> {
    let from = match stream.peer_addr()?.ip() {
        std::net::IpAddr::V4(address) => address,
        std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    stream.set_read_timeout(Some(window.warmup + window.length + window.cooldown))?;
    let mut block = vec![0u8; BLOCK];
    let (mut bytes, mut first, mut seconds) = (0u64, None, None);
    loop {
        let read = match stream.read(&mut block) {
            // A starved flow delivers nothing for the rest of the window; that is its result.
            Ok(0) => break,
            Err(error) if is_end(error.kind()) => break,
            Ok(read) => read,
            Err(error) => return Err(error).context("while receiving"),
        };
        let now = Instant::now();
        match (first, seconds) {
            // Bytes up to the first read after the warm-up belong to the time before it.
            (None, _) if now >= begin => first = Some(now),
            (Some(start), None) => {
                bytes += read as u64;
                seconds = Some(now - start).filter(|passed| *passed >= window.length);
            }
            _ => {}
        }
        if seconds.is_some() && now >= begin + window.length + window.cooldown {
            break;
        }
    }
    let seconds = seconds.unwrap_or(window.length).as_secs_f64();
    Ok(Received { from, bytes, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_leave_at_their_rate() {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let std::net::SocketAddr::V4(to) = receiver.local_addr().unwrap() else { panic!() };
        let start = Instant::now();
        // It outlasts this test, which waits for no end of it.
        std::thread::spawn(move || {
            blast(to, BitsPerSecond::from_mbit(8), Duration::from_secs(60)).unwrap();
        });
        let mut bytes = 0;
        // 300 kB at 1 MB/s; late is no fault, and early is.
        while bytes < 300_000 {
            bytes += receiver.recv(&mut [0; 2_000]).unwrap();
        }
        let due = start.elapsed().as_secs_f64() * 1e6;
        assert!(bytes as f64 <= due + DATAGRAM as f64, "{bytes} of {due}");
    }

    #[test]
    fn what_is_sent_is_counted_within_the_window() {
        const MOMENT: Duration = Duration::from_millis(50);
        let window =
            Window { warmup: MOMENT, length: Duration::from_millis(200), cooldown: MOMENT };
        let port = 47_311;
        let receiver = std::thread::spawn(move || receive(port, 2, window).unwrap());
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
                std::thread::spawn(move || send(to, Duration::from_secs(5)).unwrap())
            })
            .collect();
        let received = receiver.join().unwrap();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(received.len(), 2);
        for flow in received {
            assert!(flow.bytes > 0 && flow.seconds >= 0.2, "{flow:?}");
            assert_eq!(flow.from, Ipv4Addr::LOCALHOST);
        }
    }
}
