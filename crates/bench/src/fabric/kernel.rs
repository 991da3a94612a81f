//! What the kernel does by itself, beside bridges and aggregation: raw TCP over a cable and through a node that forwards,
//! and one connection of Multipath TCP (RFC 8684) over two cables.

use super::networks::{plug, space};
use super::{CORES, SHORT, pin, tcp};
use anyhow::{Context as _, Result, ensure};
use keeptime_linux::testing::rig::Space;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::{fs, thread};

/// Three nodes in a row; the one in the middle forwards, and the others know where to.
pub struct Row {
    pub near: Arc<Space>,
    pub middle: Arc<Space>,
    pub far: Arc<Space>,
    /// Of the one in the middle, as the others see it.
    pub addresses: [Ipv4Addr; 2],
    /// Where the others answer.
    answers: [SocketAddr; 2],
}

impl Row {
    /// Both of the other nodes answer.
    ///
    /// # Errors
    /// Without root.
    pub fn new() -> Result<Self> {
        let [near, middle, far] = [space()?, space()?, space()?];
        let (to_near, to_far) = (plug(&near, &middle, 64)?, plug(&far, &middle, 65)?);
        middle.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        route(&near, to_far[0], to_near[1])?;
        route(&far, to_near[0], to_far[1])?;
        let answers = [serve(&middle, to_near[1])?, serve(&far, to_far[0])?];
        Ok(Self { near, middle, far, addresses: [to_near[1], to_far[1]], answers })
    }

    /// Microseconds of a round trip to the next node.
    pub fn over_a_cable(&self, count: usize) -> Result<f64> {
        self.round_trips(self.answers[0], count)
    }

    /// The same to the node behind that.
    pub fn forwarded(&self, count: usize) -> Result<f64> {
        self.round_trips(self.answers[1], count)
    }

    fn round_trips(&self, to: SocketAddr, count: usize) -> Result<f64> {
        self.near.run(move || {
            pin(CORES[0])?;
            tcp::Client::to(to, false)?.round_trips(SHORT, count)
        })
    }
}

/// Answers one client after the other, as long as this process is there.
fn serve(space: &Space, address: Ipv4Addr) -> Result<SocketAddr> {
    space.run(move || {
        let server = tcp::Server::at(address, false)?;
        let address = server.address()?;
        thread::spawn(move || {
            // Where that is not possible, nothing is measured: the other side cannot either.
            let _ = pin(CORES[1]);
            loop {
                // Ends with an error when a client goes, and then comes the next one.
                let _ = server.serve();
            }
        });
        Ok(address)
    })
}

/// The network of `to` is behind `next`.
fn route(space: &Space, to: Ipv4Addr, next: Ipv4Addr) -> Result<()> {
    ip(space, format!("route add {to}/32 via {next}"))
}

/// Has `ip` do something in a node.
pub fn ip(space: &Space, words: String) -> Result<()> {
    space.run(move || {
        let done = Command::new("ip").args(words.split(' ')).status().context("ip")?;
        ensure!(done.success(), "ip {words}: {done}");
        Ok(())
    })
}

/// Tells both nodes to use every cable: who listens says that it has a second address, and who connects goes there too.
///
/// # Errors
/// If the kernel does not know Multipath TCP.
pub fn use_both(here: &Space, there: &Space, second: Ipv4Addr) -> Result<()> {
    for space in [here, there] {
        ip(space, "mptcp limits set subflow 2 add_addr_accepted 2".into())?;
    }
    ip(there, format!("mptcp endpoint add {second} signal"))
}

/// Listens for connections over several networks.
///
/// # Errors
/// If the kernel does not know them.
pub fn listen(address: Ipv4Addr) -> Result<TcpListener> {
    let socket = multipath()?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.listen(1)?;
    Ok(socket.into())
}

/// Connects over as many networks as there are.
///
/// # Errors
/// As [`listen`], or if nobody listens.
pub fn connect(to: SocketAddr) -> Result<TcpStream> {
    let socket = multipath()?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

fn multipath() -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    socket.context("Multipath TCP (see `sysctl net.mptcp.enabled`)")
}
