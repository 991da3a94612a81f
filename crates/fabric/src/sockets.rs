//! What all that listen and all Unix sockets need: callers are taken as long as there are descriptors for
//! them, who is at the other end is known, and what it hands over is owned.

use crate::door::is_trusted;
use crate::transport::is_passing;
use nix::cmsg_space;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg};
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

/// Descriptors that the kernel hands over with one message at most (`SCM_MAX_FD`): with room for all of
/// them there are none that nobody owns.
const HANDED_OVER_MOST: usize = 253;
/// How long a thread rests that has no descriptor for a caller, which stays there: it would do nothing
/// else. Short, since what it does besides waits.
const REST: Duration = Duration::from_millis(1);

/// A caller, if there is one and it can be taken.
pub fn accepted<T>(result: io::Result<T>) -> Option<T> {
    if result.as_ref().is_err_and(|error| !is_passing(error)) {
        thread::sleep(REST);
    }
    result.ok()
}

/// The user at the other end of a Unix socket.
///
/// # Errors
/// If the kernel does not say.
pub fn user_of(socket: impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(&socket, PeerCredentials)?.uid())
}

/// Makes sure that `user` may trust whoever is at the other end of a Unix socket: a name without a file
/// has no permissions, and whoever was first may have it.
///
/// # Errors
/// If it is neither that user nor root.
pub fn expect_trusted(socket: impl AsFd, user: u32) -> io::Result<()> {
    let other = user_of(socket)?;
    if is_trusted(user, other) {
        return Ok(());
    }
    let why =
        format!("it is that of user {other}: root's, or that of user {user}, would be trusted");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Reads what is said next into `bytes`. Returns how many these are, and all that was handed over with
/// them.
///
/// # Errors
/// If there is nothing.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; HANDED_OVER_MOST]);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut handed_over = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            // SAFETY: the kernel has just made these descriptors for this process.
            handed_over.extend(fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    Ok((message.bytes, handed_over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sys::socket::{ControlMessage, sendmsg};
    use std::io::{IoSlice, Read};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    /// However many come with a message, all of them are there, and closed when nobody wants them.
    #[test]
    fn what_is_handed_over_is_owned() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut kept, given) = UnixStream::pair().unwrap();
        let fds = [given.as_raw_fd(); 7];
        let (parts, control) = ([IoSlice::new(b"all")], [ControlMessage::ScmRights(&fds)]);
        sendmsg::<()>(here.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
        let mut bytes = [0; 8];
        let (length, handed_over) = receive(there.as_fd(), &mut bytes, MsgFlags::empty()).unwrap();
        assert_eq!((&bytes[..length], handed_over.len()), (&b"all"[..], fds.len()));
        drop((given, handed_over));
        kept.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(kept.read(&mut [0]).unwrap(), 0, "nobody has the other end");
    }

    /// A caller that cannot be taken stays where it is: who looks again at once would do nothing else.
    #[test]
    fn who_has_no_descriptor_for_a_caller_rests() {
        let start = Instant::now();
        assert!(accepted::<()>(Err(Errno::EMFILE.into())).is_none());
        assert!(start.elapsed() >= REST);
        assert_eq!(accepted(Ok(1)), Some(1));
    }

    #[test]
    fn the_own_user_is_trusted() {
        let (here, _there) = UnixStream::pair().unwrap();
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(user_of(&here).unwrap(), user);
        assert!(expect_trusted(&here, user).is_ok());
    }
}
