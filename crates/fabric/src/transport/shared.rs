//! Frames between processes of a node, through two rings in memory that both map. The memory has no
//! name: it is made by the caller and handed over on a Unix socket, with an event counter for each
//! side to be woken by. The socket stays open only to tell when the other process has ended.

use super::{
    Broken, Ends, Glance, Receiver, Receiving, Sender, Sending, Sent, Sink, buffer, ring_bell,
};
use crate::frame::{EAGER_MOST, Frame, HEAD, Head};
use crate::mapping::{Access, Mapping};
use crate::payload::{Buffer, SHORT_MOST};
use crate::ring::{FIRST, Memory, Push, Reader, SLOT, Word, Writer, may_have_frame};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Slots of one ring: 512 KiB hold eight of the longest messages that are sent without asking.
const SLOTS: u32 = 8192;
const RING: usize = SLOTS as usize * SLOT;
/// Words that both sides use, each in a cache line of its own, and far from each other so that the
/// processor does not fetch one with another.
const CONTROL: usize = 4096;
const GIVEN_BACK: usize = 0;
const READER_ASLEEP: usize = 256;
const WRITER_ASLEEP: usize = 512;
const TOTAL: usize = 2 * (CONTROL + RING);
/// Frames, and bytes, that are read before somebody else gets a turn. Who takes a message before the
/// next is read finds it in its cache, and the buffer of one serves for the next.
const FRAMES_MOST: usize = 64;
const BYTES_MOST: usize = EAGER_MOST;

/// What the caller hands over: the memory, the bell of the one who is called, the caller's own.
pub const HANDED_OVER: usize = 3;

/// Memory and bells for a new connection, to be handed over on its socket.
#[derive(Debug)]
pub struct Offered {
    memory: OwnedFd,
    mapping: Arc<Mapping>,
    callers_bell: EventFd,
    called_bell: EventFd,
}

impl Offered {
    /// New memory and bells.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn new() -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create("keeptime-fabric", flags)?;
        nix::unistd::ftruncate(&memory, TOTAL as i64)?;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals()))?;
        let mapping = Arc::new(Mapping::new(&memory, TOTAL, Access::Write)?);
        let bell = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        Ok(Self { memory, mapping, callers_bell: bell()?, called_bell: bell()? })
    }

    /// What to hand over.
    pub fn handed_over(&self) -> [i32; HANDED_OVER] {
        [
            self.memory.as_raw_fd(),
            self.called_bell.as_fd().as_raw_fd(),
            self.callers_bell.as_fd().as_raw_fd(),
        ]
    }

    /// The caller's halves.
    ///
    /// # Errors
    /// If a descriptor cannot be duplicated.
    pub fn ends(self, socket: UnixStream) -> io::Result<Ends> {
        halves(&self.mapping, [0, 1], self.callers_bell, self.called_bell, socket)
    }
}

/// The halves of the one who is called, from what was handed over.
///
/// # Errors
/// If the memory is not as the caller makes it: a shorter one, or one that can still be cut, would
/// kill this process when it reads there.
pub fn accept(handed_over: [OwnedFd; HANDED_OVER], socket: UnixStream) -> io::Result<Ends> {
    let [memory, own_bell, callers_bell] = handed_over;
    let memory = File::from(memory);
    let sealed = fcntl(&memory, FcntlArg::F_GET_SEALS)? & seals().bits() == seals().bits();
    if memory.metadata()?.len() != TOTAL as u64 || !sealed {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory that can be cut"));
    }
    let mapping = Arc::new(Mapping::new(&memory, TOTAL, Access::Write)?);
    let bell = |fd: OwnedFd| {
        nix::fcntl::fcntl(&fd, FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        // SAFETY: the descriptor was handed over as a bell; if it is something else, writing eight
        // bytes to it and reading from it fails or means nothing.
        io::Result::Ok(unsafe { EventFd::from_owned_fd(fd) })
    };
    halves(&mapping, [1, 0], bell(own_bell)?, bell(callers_bell)?, socket)
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

fn halves(
    mapping: &Arc<Mapping>,
    [write, read]: [usize; 2],
    own_bell: EventFd,
    other_bell: EventFd,
    socket: UnixStream,
) -> io::Result<Ends> {
    socket.set_nonblocking(true)?;
    let ring = |index: usize| SharedRing::new(mapping, index);
    let other_bell = Arc::new(other_bell);
    let readable =
        vec![own_bell.as_fd().try_clone_to_owned()?, socket.as_fd().try_clone_to_owned()?];
    let sender = SharedSender { ring: Writer::new(ring(write)), bell: other_bell.clone() };
    let closed = Arc::new(AtomicBool::new(false));
    let receiver = SharedReceiver {
        ring: Reader::new(ring(read)),
        own_bell,
        other_bell,
        socket,
        closed: closed.clone(),
    };
    let glance = SharedGlance { ring: ring(read), closed };
    Ok(Ends {
        sender: Sending::Memory(sender),
        receiver: Receiving::Memory(receiver),
        readable,
        writable: None,
        in_memory: true,
        poll_is_enough: false,
        glance: Some(Box::new(glance)),
    })
}

/// The half that sends.
pub struct SharedSender {
    ring: Writer<SharedRing>,
    bell: Arc<EventFd>,
}

/// What is looked at without the lock of the reader.
struct SharedGlance {
    ring: SharedRing,
    closed: Arc<AtomicBool>,
}

/// The half that receives.
pub struct SharedReceiver {
    ring: Reader<SharedRing>,
    own_bell: EventFd,
    other_bell: Arc<EventFd>,
    socket: UnixStream,
    /// The other process has ended; what it had written is still read.
    closed: Arc<AtomicBool>,
}

impl Glance for SharedGlance {
    fn may_have_frames(&self) -> bool {
        may_have_frame(&self.ring) || self.closed.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if Arc::strong_count(&self.ring.mapping) == 1 {
            // SAFETY: nobody else has it, and here it is only read.
            unsafe { self.ring.mapping.let_go() };
        }
        self.closed.store(false, Ordering::Relaxed);
    }
}

impl Sender for SharedSender {
    // As in `halves`.
    #[inline(always)]
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        match self.ring.push(head, payload) {
            Push::Full => return Ok(Sent::Full),
            Push::Done { wake: true } => ring_bell(&self.bell)?,
            Push::Done { wake: false } => {}
        }
        Ok(Sent::Whole)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        Ok(true)
    }

    fn falls_asleep(&mut self) -> bool {
        self.ring.falls_asleep()
    }

    fn piece(&self) -> usize {
        EAGER_MOST
    }

    fn is_looked_after(&self) -> bool {
        false
    }

    fn is_drained(&mut self) -> bool {
        // The memory outlives this process for as long as the other one maps it.
        true
    }
}

impl SharedReceiver {
    /// [`Receiver::poll`].
    #[inline(always)]
    pub fn pop(&mut self, sink: &mut impl Sink) -> Result<usize, Broken> {
        let (mut frames, mut total) = (0, 0);
        while frames < FRAMES_MOST && total < BYTES_MOST {
            let Some(length) = self.ring.next()? else {
                let ended = frames == 0 && self.closed.load(Ordering::Relaxed);
                return if ended { Err(Broken::Closed) } else { Ok(frames) };
            };
            let head = Head::of_words(self.ring.head(length))?;
            let is_piece = matches!(head.frame, Frame::Piece { .. });
            if length as usize <= SHORT_MOST && !is_piece {
                let read = |bytes: &mut _| self.ring.read_short(length, bytes);
                sink.short_frame(&head, || Buffer::short(length as usize, read))?;
            } else {
                let mut buffer = buffer(sink, &head)?;
                self.ring.read(length, &mut buffer);
                sink.frame(&head, buffer.into())?;
            }
            if self.ring.give_back(length) {
                ring_bell(&self.other_bell)?;
            }
            frames += 1;
            total += length as usize;
            if sink.has_enough() {
                break;
            }
        }
        Ok(frames)
    }
}

impl Receiver for SharedReceiver {
    fn poll(&mut self, mut sink: &mut dyn Sink) -> Result<usize, Broken> {
        self.pop(&mut sink)
    }

    fn falls_asleep(&mut self) -> bool {
        !self.closed.load(Ordering::Relaxed) && self.ring.falls_asleep()
    }

    fn wakes_up(&mut self) {
        self.ring.wakes_up();
    }

    fn signalled(&mut self) {
        // Nothing to read is no error: the socket may have woken us, or another thread was here.
        let _ = self.own_bell.read();
        let mut byte = [0];
        let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
        let received = nix::sys::socket::recv(self.socket.as_raw_fd(), &mut byte, flags);
        if !matches!(received, Err(Errno::EAGAIN | Errno::EINTR)) {
            self.closed.store(true, Ordering::Relaxed);
        }
    }
}

/// One ring in shared memory.
#[derive(Debug)]
struct SharedRing {
    mapping: Arc<Mapping>,
    /// Where in the mapping its words and its slots begin: every look needs one of these.
    control: *mut u8,
    bytes: *mut u8,
}

// SAFETY: what it points to is the mapping's, which belongs to no thread.
unsafe impl Send for SharedRing {}
// SAFETY: as above.
unsafe impl Sync for SharedRing {}

impl SharedRing {
    /// The ring of that number in a mapping of [`TOTAL`] bytes.
    fn new(mapping: &Arc<Mapping>, index: usize) -> Self {
        let control = index * (CONTROL + RING);
        assert!(control + CONTROL + RING <= mapping.length(), "a mapping of two rings");
        // SAFETY: inside the mapping, as was just asserted.
        let [control, bytes] =
            [control, control + CONTROL].map(|at| unsafe { mapping.base().add(at) });
        Self { mapping: mapping.clone(), control, bytes }
    }

    fn word_at(&self, place: *mut u8) -> &AtomicU32 {
        // SAFETY: callers give places in the mapping that are multiples of four, and it lives as long as `self`; both
        // processes use these words only as atomics, or, for words inside a frame, as `Memory` says.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    fn control(&self, word: usize) -> &AtomicU32 {
        // SAFETY: words lie within `CONTROL`.
        self.word_at(unsafe { self.control.add(word) })
    }

    /// The place of a ring offset in memory, and how many bytes there are until the ring wraps.
    fn place(&self, offset: usize) -> (*mut u8, usize) {
        let offset = offset % RING;
        // SAFETY: inside the mapping.
        (unsafe { self.bytes.add(offset) }, RING - offset)
    }
}

// SAFETY: words and bytes are the same mapping; the ring's control words and bytes are not used by
// the other ring.
unsafe impl Memory for SharedRing {
    type Word = AtomicU32;

    fn slots(&self) -> u32 {
        SLOTS
    }

    fn word(&self, slot: u32) -> &AtomicU32 {
        self.word_at(self.place(slot as usize * SLOT).0)
    }

    fn given_back(&self) -> &AtomicU32 {
        self.control(GIVEN_BACK)
    }

    fn reader_asleep(&self) -> &AtomicU32 {
        self.control(READER_ASLEEP)
    }

    fn writer_asleep(&self) -> &AtomicU32 {
        self.control(WRITER_ASLEEP)
    }

    #[inline(always)]
    fn fence(&self) {
        // What `fence` is compiled to takes five times as long here as any locked instruction, which is as much.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it changes no byte: the word on top of the stack is written as it was.
        unsafe {
            std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn prefetch(&self, slot: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it reads nothing and cannot fail, wherever that is.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.place(slot as usize * SLOT).0.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = slot;
    }

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(bytes.len() <= RING, "a frame is shorter than the ring");
        let (place, until_wrap) = self.place(offset);
        let first = bytes.len().min(until_wrap);
        // SAFETY: both parts lie in the ring; the caller says that nobody else is there.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), place, first);
            let rest = &bytes[first..];
            if !rest.is_empty() {
                ptr::copy_nonoverlapping(rest.as_ptr(), self.place(0).0, rest.len());
            }
        }
    }

    #[inline(always)]
    unsafe fn write_slot(&self, offset: usize, head: &[u8; HEAD], first: &[u8; FIRST]) {
        let (place, _) = self.place(offset);
        debug_assert!(offset.is_multiple_of(SLOT), "a head lies at the beginning of a slot");
        // Word by word, as it was just written: read as a whole, it would have to be in the cache before.
        let (words, _) = head.as_chunks::<8>();
        let second_half = (u64::from_le_bytes(words[0]) >> 32) as u32;
        // SAFETY: the slot lies in the ring, and begins at a multiple of its length.
        unsafe {
            AtomicU32::from_ptr(place.add(4).cast()).store(second_half.to_le(), Ordering::Relaxed);
            for (at, word) in words.iter().enumerate().skip(1) {
                let word = u64::from_ne_bytes(*word);
                AtomicU64::from_ptr(place.add(8 * at).cast()).store(word, Ordering::Relaxed);
            }
            place.add(HEAD).cast::<[u8; FIRST]>().write(*first);
        }
    }

    unsafe fn read(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        into.reserve(length);
        let (place, until_wrap) = self.place(offset);
        let first = length.min(until_wrap).min(RING);
        let rest = (length - first).min(RING);
        let old = into.len();
        // SAFETY: both parts lie in the ring and fit into the capacity that was reserved; the
        // caller says that nobody writes there. A process that does so all the same spoils its own
        // message.
        unsafe {
            let end = into.as_mut_ptr().add(old);
            ptr::copy_nonoverlapping(place, end, first);
            if rest > 0 {
                ptr::copy_nonoverlapping(self.place(0).0, end.add(first), rest);
            }
            into.set_len(old + first + rest);
        }
    }

    #[inline(always)]
    unsafe fn copy<const BYTES: usize>(&self, offset: usize) -> [u8; BYTES] {
        let (place, until_wrap) = self.place(offset);
        assert!(BYTES <= until_wrap, "they lie in one slot");
        // SAFETY: inside the ring, of bytes; the caller says that nobody writes there.
        unsafe { place.cast::<[u8; BYTES]>().read() }
    }
}

impl Word for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        Self::swap(self, value, order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Malformed;
    use crate::id::Place;
    use crate::matching::Tag;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[derive(Default)]
    struct Collected(VecDeque<(Head, Vec<u8>)>);

    impl Sink for Collected {
        fn buffer_of_piece(&mut self, _: u32, length: usize) -> Result<Vec<u8>, Malformed> {
            Ok(Vec::with_capacity(length))
        }
        fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
            self.0.push_back((*head, payload.into_vec()));
            Ok(())
        }
    }

    /// Both ends, as two processes would have them.
    fn pair() -> (Ends, Ends) {
        pair_over(Offered::new().unwrap())
    }

    fn pair_over(offered: Offered) -> (Ends, Ends) {
        let (one, other) = UnixStream::pair().unwrap();
        let clone = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let handed_over =
            [clone(&offered.memory), clone(&offered.called_bell), clone(&offered.callers_bell)];
        (offered.ends(one).unwrap(), accept(handed_over, other).unwrap())
    }

    fn message(number: u32, length: usize) -> (Head, Vec<u8>) {
        let place = Place { slot: number, generation: 1 };
        let frame =
            Frame::Message { from: place, to: place, tag: Tag(u64::from(number)), credit: 0 };
        let head = Head { frame, length: length as u32, seen: number };
        (head, (0..length).map(|at| (at as u32 ^ number) as u8).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Many times around the ring, with any lengths: the same frames in the same order.
        #[test]
        fn frames_pass_whole_and_in_order(
            lengths in prop::collection::vec(prop_oneof![0..200_usize, 0..=EAGER_MOST], 1..200),
            greed in 1..20_usize,
        ) {
            let (mut one, mut other) = pair();
            let mut collected = Collected::default();
            let mut expected = VecDeque::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let (head, payload) = message(number as u32, length);
                while one.sender.send(&head.encode(), &payload).unwrap() == Sent::Full {
                    prop_assert!(other.receiver.poll(&mut collected).unwrap() > 0);
                }
                expected.push_back((head, payload));
                if number % greed == 0 {
                    other.receiver.poll(&mut collected).unwrap();
                    while let Some(got) = collected.0.pop_front() {
                        prop_assert!(Some(got) == expected.pop_front());
                    }
                }
            }
            while !expected.is_empty() {
                other.receiver.poll(&mut collected).unwrap();
                prop_assert!(collected.0.pop_front() == expected.pop_front());
            }
        }
    }

    /// Whoever has what it waits for leaves the rest, and whoever wants it finds it.
    #[test]
    fn what_comes_next_stays_until_somebody_wants_it() {
        struct One(Collected);
        impl Sink for One {
            fn buffer_of_piece(&mut self, _: u32, _: usize) -> Result<Vec<u8>, Malformed> {
                unreachable!("no pieces are sent")
            }
            fn frame(&mut self, head: &Head, payload: Buffer) -> Result<(), Malformed> {
                self.0.frame(head, payload)
            }
            fn has_enough(&self) -> bool {
                !self.0.0.is_empty()
            }
        }
        let (mut one, mut other) = pair();
        for number in 0..3 {
            let (head, payload) = message(number, 100);
            one.sender.send(&head.encode(), &payload).unwrap();
        }
        let (mut first, mut rest) = (One(Collected::default()), Collected::default());
        assert_eq!(other.receiver.poll(&mut first), Ok(1));
        assert_eq!(other.receiver.poll(&mut rest), Ok(2));
        let all = first.0.0.into_iter().chain(rest.0);
        assert!(all.eq((0..3).map(|number| message(number, 100))));
    }

    #[test]
    fn what_an_ended_process_wrote_is_read_before_its_end_is_told() {
        let (mut one, mut other) = pair();
        let (head, payload) = message(1, 100);
        one.sender.send(&head.encode(), &payload).unwrap();
        drop(one);
        other.receiver.signalled();
        let mut collected = Collected::default();
        assert_eq!(other.receiver.poll(&mut collected), Ok(1));
        assert_eq!(other.receiver.poll(&mut collected), Err(Broken::Closed));
    }

    /// Goal: threads that keep a link that is over do not keep its memory. Method: what the kernel says that this process
    /// maps of it, when there was something to read, and the other process had ended.
    #[test]
    fn who_still_looks_at_ends_that_are_gone_holds_no_memory() {
        let offered = Offered::new().unwrap();
        let memory = File::from(offered.memory.try_clone().unwrap());
        let inode = format!(" {} ", memory.metadata().unwrap().ino());
        let is_it = |line: &str| line.contains(&inode) && line.contains("keeptime-fabric");
        let is_mapped = || fs::read_to_string("/proc/self/maps").unwrap().lines().any(is_it);
        let (head, payload) = message(1, 100);
        let (Ends { sender, mut receiver, glance, .. }, mut far) = pair_over(offered);
        let glance = glance.unwrap();
        far.sender.send(&head.encode(), &payload).unwrap();
        drop(far);
        receiver.signalled();
        glance.end();
        assert_eq!(
            receiver.poll(&mut Collected::default()),
            Ok(1),
            "it is there as long as a half is"
        );
        drop(receiver);
        drop(sender);
        assert!(is_mapped());
        glance.end();
        assert!(!is_mapped() && !glance.may_have_frames());
    }

    #[test]
    fn memory_that_could_be_cut_is_refused() {
        let offered = Offered::new().unwrap();
        let loose = memfd_create("loose", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&loose, TOTAL as i64).unwrap();
        let bell = || offered.called_bell.as_fd().try_clone_to_owned().unwrap();
        let (_one, other) = UnixStream::pair().unwrap();
        assert!(accept([loose, bell(), bell()], other).is_err());
    }
}
