//! Datagrams with a traffic class (the type of service, in IPv4), and which one arrives: what becomes of code
//! points on the way.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

/// A socket at `address`, of this thread's network, for [`received`].
///
/// # Errors
/// If the address is not there.
pub fn receiver(address: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    match address {
        IpAddr::V4(_) => setsockopt(&socket, sockopt::IpRecvTos, &true)?,
        IpAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvTClass, &true)?,
    }
    Ok(socket)
}

/// A socket of this thread's network and process for datagrams to addresses such as `to`, which ask for `class`.
///
/// # Errors
/// If there can be none.
pub fn sender(to: SocketAddr, class: u8) -> io::Result<UdpSocket> {
    let class = i32::from(class);
    match to {
        SocketAddr::V4(_) => {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, sockopt::Ipv4Tos, &class)?;
            Ok(socket)
        }
        SocketAddr::V6(_) => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            setsockopt(&socket, sockopt::Ipv6TClass, &class)?;
            Ok(socket)
        }
    }
}

/// Takes one datagram and says with which traffic class it came.
///
/// # Errors
/// If none comes within a minute, or the kernel tells no class.
pub fn received(receiver: &UdpSocket) -> io::Result<u8> {
    let (mut byte, mut space) = ([0], nix::cmsg_space!(i32));
    let mut parts = [IoSliceMut::new(&mut byte)];
    let fd = receiver.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty())?;
    let class = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::Ipv4Tos(class) => Some(class),
        ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
        _ => None,
    });
    class.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Switches IPv6 on in this thread's network namespace and gives `device` an address, in a network of 64 bits.
///
/// # Errors
/// Why there is no IPv6, in words.
pub fn give_ipv6(device: &str, address: Ipv6Addr) -> Result<(), String> {
    const SWITCH: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
    std::fs::write(SWITCH, "0").map_err(|error| format!("{SWITCH}: {error}"))?;
    let address = format!("{address}/64");
    // Nobody else has it: it need not be looked for.
    let words = ["-6", "addr", "add", &address, "dev", device, "nodad"];
    let output = Command::new("ip").args(words).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// How long a datagram may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
