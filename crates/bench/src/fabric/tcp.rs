//! Raw TCP: what any library over it has to be compared with.

use super::{SHORT, WARM_UP, micros, peer::Peer};
use anyhow::Result;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const ECHO: u32 = 0;
const STREAM: u32 = 1;

/// A connection; if it does not block, whoever waits spins.
struct Socket {
    stream: TcpStream,
}

/// The side that measures.
pub struct Client {
    socket: Socket,
    _peer: Option<Peer>,
}

/// The side that answers.
pub struct Server {
    listener: TcpListener,
    spin: bool,
}

impl Client {
    pub fn start(spin: bool) -> Result<Self> {
        let peer = Peer::of_ours(&["tcp", &spin.to_string()])?;
        let client = Self::to(peer.said().parse()?, spin)?;
        Ok(Self { _peer: Some(peer), ..client })
    }

    /// Of a server that is somewhere.
    pub fn to(server: SocketAddr, spin: bool) -> Result<Self> {
        Ok(Self { socket: Socket::new(TcpStream::connect(server)?, spin)?, _peer: None })
    }

    pub fn round_trips(&mut self, size: usize, count: usize) -> Result<f64> {
        let mut data = vec![7; size];
        self.command(ECHO, size, WARM_UP + count)?;
        self.echo(&mut data, WARM_UP)?;
        let start = Instant::now();
        self.echo(&mut data, count)?;
        Ok(micros(start, count))
    }

    pub fn stream(&mut self, size: usize, count: usize) -> Result<f64> {
        let data = vec![7; size];
        self.round_trips(SHORT, WARM_UP)?;
        self.command(STREAM, size, count)?;
        let start = Instant::now();
        for _ in 0..count {
            self.socket.write(&data)?;
        }
        self.socket.read(&mut [0])?;
        Ok(micros(start, count))
    }

    fn echo(&mut self, data: &mut [u8], count: usize) -> Result<()> {
        for _ in 0..count {
            self.socket.write(data)?;
            self.socket.read(data)?;
        }
        Ok(())
    }

    fn command(&mut self, kind: u32, size: usize, count: usize) -> Result<()> {
        let words = [kind, size as u32, count as u32].map(u32::to_le_bytes);
        self.socket.write(words.as_flattened())?;
        // Answered when the other side is ready.
        self.socket.read(&mut [0])
    }
}

impl Server {
    pub fn at(address: Ipv4Addr, spin: bool) -> Result<Self> {
        Ok(Self { listener: TcpListener::bind((address, 0))?, spin })
    }

    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves one client until it goes.
    pub fn serve(&self) -> Result<()> {
        let mut socket = Socket::new(self.listener.accept()?.0, self.spin)?;
        loop {
            let mut command = [[0; 4]; 3];
            socket.read(command.as_flattened_mut())?;
            let [kind, size, count] = command.map(|word| u32::from_le_bytes(word) as usize);
            socket.write(&[0])?;
            let mut data = vec![0; size];
            for _ in 0..count {
                socket.read(&mut data)?;
                if kind as u32 == ECHO {
                    socket.write(&data)?;
                }
            }
            if kind as u32 == STREAM {
                socket.write(&[0])?;
            }
        }
    }
}

impl Socket {
    fn new(stream: TcpStream, spin: bool) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spin)?;
        Ok(Self { stream })
    }

    fn read(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            match self.stream.read(into) {
                Ok(0) => anyhow::bail!("the other side has gone"),
                Ok(bytes) => into = &mut into[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            match self.stream.write(data) {
                Ok(bytes) => data = &data[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
