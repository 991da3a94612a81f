//! A batch of datagrams, read by one call.

use super::BATCH_SEGMENTS;
use crate::transport::batch::{Expected, Part, Whose};
use nix::errno::Errno;
use std::mem::{self, MaybeUninit};
use std::os::fd::RawFd;

/// One of each datagram, and one more in that in which one payload ends and the next one begins.
const PARTS_MOST: usize = BATCH_SEGMENTS + 1;

/// Reads a batch of datagrams into `bytes`, and the parts of it that are `expected` to be payloads' into what is missing of
/// these: of the one that has begun, and of the next. Returns its bytes in all, and those of each of its datagrams, but for
/// the last.
pub(super) fn receive(
    fd: RawFd,
    bytes: &mut [u8],
    [mut begun, mut next]: [&mut [MaybeUninit<u8>]; 2],
    expected: Option<Expected>,
) -> nix::Result<(usize, usize)> {
    let part = |base: *mut u8, length| libc::iovec { iov_base: base.cast(), iov_len: length };
    let mut parts = [part(std::ptr::null_mut(), 0); 2 * PARTS_MOST + 1];
    let mut count = 0;
    let (mut bytes, mut at) = (bytes, 0);
    let length = bytes.len();
    for Part { range, whose, .. } in expected.into_iter().flat_map(|all| all.parts(length)) {
        let missing = match whose {
            Whose::Begun => &mut begun,
            Whose::Next => &mut next,
        };
        let (before, rest) = mem::take(&mut bytes).split_at_mut(range.start - at);
        let (here, others) = mem::take(missing).split_at_mut(range.len());
        parts[count] = part(before.as_mut_ptr(), before.len());
        parts[count + 1] = part(here.as_mut_ptr().cast(), here.len());
        count += 2;
        (bytes, *missing, at) = (&mut rest[range.len()..], others, range.end);
    }
    parts[count] = part(bytes.as_mut_ptr(), bytes.len());
    // One word for the length of datagrams, aligned as its head is.
    let mut control = [0_u64; 4];
    // SAFETY: nothing of it has to be anything else than zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = count + 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the parts are of `bytes`, `begun` and `next`, none of another; the kernel writes there and to `control`.
    let read = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
    let read = Errno::result(read)? as usize;
    // SAFETY: the kernel has said how much of `control` there is.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() };
    let says =
        |head: &&libc::cmsghdr| (head.cmsg_level, head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
    let segment = head.filter(says).map_or(read, |head| {
        // SAFETY: this one has an int.
        let size = unsafe { libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned() };
        size as usize
    });
    Ok((read, segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::batch::Coming;
    use crate::transport::udp::BEFORE;
    use nix::sys::socket::sockopt::UdpGroSegment;
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt};
    use std::io::IoSlice;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    /// Three datagrams by one call, of which the last is shorter: what was sent, and who has received it.
    fn sent() -> (Vec<u8>, UdpSocket) {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        setsockopt(&to, UdpGroSegment, &true).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let sent: Vec<u8> = (0..2_500).map(|at| (at % 251) as u8).collect();
        let size = 1_000;
        let control = [ControlMessage::UdpGsoSegments(&size)];
        let parts = [IoSlice::new(&sent)];
        sendmsg::<()>(from.as_raw_fd(), &parts, &control, MsgFlags::empty(), None).unwrap();
        // On a busy machine they arrive a moment later.
        to.peek(&mut [0]).unwrap();
        (sent, to)
    }

    /// The end of one payload in the first datagram, a head, and the next payload from there to the last datagram.
    #[test]
    fn the_next_payload_is_read_to_where_it_belongs() {
        let (sent, to) = sent();
        let coming = Coming { begun: 300, between: 48, next: 2_100 };
        let expected = Expected::new(1_000, BEFORE, 64, coming);
        let (mut begun, mut next) = ([MaybeUninit::new(0); 300], [MaybeUninit::new(0); 2_100]);
        let mut bytes = vec![0; 1 << 16];
        let payloads: [&mut [MaybeUninit<u8>]; 2] = [&mut begun, &mut next];
        let arrived = receive(to.as_raw_fd(), &mut bytes, payloads, expected).unwrap();
        assert_eq!(arrived, (2_500, 1_000));
        // SAFETY: all were made with a value.
        let (begun, next) = unsafe { (begun.assume_init_ref(), next.assume_init_ref()) };
        assert_eq!(begun[..], sent[BEFORE..BEFORE + 300]);
        let behind = BEFORE + 300 + 48;
        assert_eq!(bytes[BEFORE + 300..behind], sent[BEFORE + 300..behind]);
        let payload = [&sent[behind..1_000], &sent[1_000 + BEFORE..2_000], &sent[2_000 + BEFORE..]];
        let payload = payload.concat();
        assert_eq!(next[..payload.len()], payload[..]);
        assert!(next[payload.len()..].iter().all(|byte| *byte == 0));
    }

    /// The heads and the end apart from what is a payload's.
    #[test]
    fn parts_of_a_payload_are_read_to_where_they_belong() {
        let (sent, to) = sent();
        let coming = Coming { begun: 2_000, between: 48, next: 0 };
        let expected = Expected::new(1_000, BEFORE, 64, coming);
        let mut missing = [MaybeUninit::new(0); 2_000];
        let mut bytes = vec![0; 1 << 16];
        let payloads: [&mut [MaybeUninit<u8>]; 2] = [&mut missing, &mut []];
        let arrived = receive(to.as_raw_fd(), &mut bytes, payloads, expected).unwrap();
        assert_eq!(arrived, (2_500, 1_000));
        // SAFETY: all were made with a value.
        let missing = missing.map(|byte| unsafe { byte.assume_init() });
        let each = 1_000 - BEFORE;
        assert_eq!(missing[..each], sent[BEFORE..1_000]);
        assert_eq!(missing[each..2 * each], sent[1_000 + BEFORE..2_000]);
        assert_eq!(missing[2 * each..], sent[2_000 + BEFORE..2_000 + BEFORE + 2_000 - 2 * each]);
        for head in [0, 1_000, 2_000] {
            assert_eq!(bytes[head..head + BEFORE], sent[head..head + BEFORE]);
        }
        let rest = 2_000 + BEFORE + 2_000 - 2 * each;
        assert_eq!(bytes[rest..2_500], sent[rest..]);
    }
}
