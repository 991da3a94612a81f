//! TCP connections whose other end may vanish without a word.

use nix::sys::socket::{setsockopt, sockopt};
use std::os::fd::AsFd;
use std::time::Duration;

/// Questions to a silent peer before it counts as gone.
const PROBES: u32 = 4;

/// Has the kernel end a connection whose other end acknowledges nothing for about `within` (at least
/// 8 s): neither what was sent, nor a question when nothing is, nor by making room. So somebody who
/// asks and does not read the answer is let go too. See `TCP_USER_TIMEOUT` in tcp(7).
///
/// # Errors
/// If the socket is not one of TCP.
pub fn end_when_silent(socket: &impl AsFd, within: Duration) -> nix::Result<()> {
    let seconds = u32::try_from(within.as_secs()).unwrap_or(u32::MAX).max(2 * PROBES);
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &(seconds / 2))?;
    setsockopt(socket, sockopt::TcpKeepCount, &PROBES)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &(seconds / 2 / PROBES))?;
    setsockopt(socket, sockopt::TcpUserTimeout, &seconds.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::getsockopt;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_is_told_and_other_sockets_are_refused() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        end_when_silent(&socket, Duration::from_secs(20)).unwrap();
        assert_eq!(getsockopt(&socket, sockopt::TcpUserTimeout), Ok(20_000));
        assert_eq!(getsockopt(&socket, sockopt::TcpKeepInterval), Ok(2));
        let (local, _other) = UnixStream::pair().unwrap();
        assert!(end_when_silent(&local, Duration::from_secs(20)).is_err());
    }
}
