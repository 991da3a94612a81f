//! A ring of frames in memory that two processes share: one writes, one reads, neither waits for
//! the other or makes a system call while there is something to do (the decisions; the memory is
//! behind [`Memory`]).
//!
//! The ring has slots of [`SLOT`] bytes. A frame begins at a slot; the slot's first word is zero
//! until the frame is whole, then its length and one. The reader waits on that word alone, so that
//! a short frame moves in the cache lines that it fills, and no other. Before a frame is published,
//! the word of the slot that follows it is set to zero: whatever lay there is from a former round.
//!
//! Who finds nothing to do says so in a word (`asleep`), looks once more, and sleeps; who publishes
//! looks at that word afterwards. With a full fence on both sides one of them sees the other.

use crate::frame::{HEAD, HEAD_WORDS, Malformed, PIECE_MOST};
use crate::payload::SHORT_MOST;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Bytes of a slot: a cache line.
pub const SLOT: usize = 64;

/// Bytes of a payload that lie in the slot of its head.
pub const FIRST: usize = SLOT - HEAD;
/// Slots of a frame of 64 bytes behind its first, and the one whose word follows it.
const FETCHED_AHEAD: u32 = 2;

/// A word that both sides use.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
    /// Writes it and returns what it was.
    fn swap(&self, value: u32, order: Ordering) -> u32;
}

/// The memory of one ring. Byte offsets count from its beginning and wrap around at its end.
///
/// # Safety
/// Words and bytes are the same memory wherever they overlap, and belong to this ring alone.
pub unsafe trait Memory {
    /// Its words.
    type Word: Word;
    /// Number of slots, a power of two.
    fn slots(&self) -> u32;
    /// The first word of a slot.
    fn word(&self, slot: u32) -> &Self::Word;
    /// How many slots the reader has given back since the beginning (modulo 2^32).
    fn given_back(&self) -> &Self::Word;
    /// 1 while the reader sleeps.
    fn reader_asleep(&self) -> &Self::Word;
    /// 1 while the writer sleeps.
    fn writer_asleep(&self) -> &Self::Word;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// This core will read that slot: nobody waits for it if it is not in its cache.
    fn prefetch(&self, slot: u32);
    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// Nobody else reads or writes there.
    unsafe fn write(&self, offset: usize, bytes: &[u8]);
    /// Fills the slot at `offset`, but for its first four bytes, with `head` and what is behind it.
    ///
    /// # Safety
    /// As for `write`; a slot begins at `offset`.
    unsafe fn write_slot(&self, offset: usize, head: &[u8; HEAD], first: &[u8; FIRST]);
    /// Appends `length` bytes from `offset` on to `into`.
    ///
    /// # Safety
    /// Nobody writes there.
    unsafe fn read(&self, offset: usize, length: usize, into: &mut Vec<u8>);
    /// The bytes from `offset` on, which lie in one slot.
    ///
    /// # Safety
    /// As for `read`.
    unsafe fn copy<const BYTES: usize>(&self, offset: usize) -> [u8; BYTES];
}

/// Whether a frame was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// It was; if `wake`, the reader sleeps and is to be woken.
    Done {
        /// Whether to wake the reader.
        wake: bool,
    },
    /// There is no room for it.
    Full,
}

/// The side that writes.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    /// Slots written since the beginning.
    written: u32,
    /// What the reader had given back when it was last looked at.
    given_back: u32,
}

/// The side that reads.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    /// Slots read since the beginning.
    read: u32,
}

impl<M: Memory> Writer<M> {
    /// Writes to a ring that nobody has written to.
    pub fn new(memory: M) -> Self {
        Self { memory, written: 0, given_back: 0 }
    }

    /// Writes a frame, whole or not at all. The first four bytes of `head` are the payload's
    /// length.
    pub fn push(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Push {
        let slots = slots_for(payload.len());
        if !self.has_room(slots) {
            return Push::Full;
        }
        let start = self.memory.word(self.slot(0));
        let offset = self.slot(0) as usize * SLOT;
        let (first, rest) = match payload.split_first_chunk() {
            Some((first, rest)) => (*first, rest),
            None => {
                let mut first = [0; FIRST];
                first[..payload.len()].copy_from_slice(payload);
                (first, &[][..])
            }
        };
        // SAFETY: the reader gave these slots back, and reads none of them but their first word
        // before that is published below.
        unsafe { self.memory.write(offset + SLOT, rest) };
        self.memory.word(self.slot(slots)).store(0, Relaxed);
        // The first slot last: the reader looks at it all the while, and would take its cache line
        // away while the others are written.
        // SAFETY: as above.
        unsafe { self.memory.write_slot(offset, head, &first) };
        start.store(payload.len() as u32 + 1, Release);
        self.written = self.written.wrapping_add(slots);
        self.memory.fence();
        let wake = self.memory.reader_asleep().load(Relaxed) == 1
            && self.memory.reader_asleep().swap(0, Relaxed) == 1;
        self.fetch_ahead();
        Push::Done { wake }
    }

    /// Has the slots that a short frame will fill next brought to this core, from which the reader took them a round
    /// ago: written now, they come while the writer goes on, and not while the reader waits for the frame. All but the first,
    /// which the reader looks at all the while.
    fn fetch_ahead(&mut self) {
        if self.has_room(FETCHED_AHEAD) {
            (1..=FETCHED_AHEAD).for_each(|at| self.memory.word(self.slot(at)).store(0, Relaxed));
        }
    }

    /// Says that the writer sleeps until there is room for the longest frame. Returns whether there
    /// is none: if there is, it must not sleep. What was said before is not taken back: another
    /// thread of the writer's side may rely on it.
    pub fn falls_asleep(&mut self) -> bool {
        let was_said = self.memory.writer_asleep().swap(1, Relaxed) == 1;
        self.memory.fence();
        let room = self.has_room(longest(self.memory.slots()));
        if room && !was_said {
            self.memory.writer_asleep().store(0, Relaxed);
        }
        !room
    }

    /// Room for `slots`, and for the word that follows them.
    fn has_room(&mut self, slots: u32) -> bool {
        let free =
            |writer: &Self| writer.memory.slots() - writer.written.wrapping_sub(writer.given_back);
        if free(self) > slots {
            return true;
        }
        let given_back = self.memory.given_back().load(Acquire);
        // The other process wrote that word: what cannot be true is not believed.
        if self.written.wrapping_sub(given_back) <= self.memory.slots() {
            self.given_back = given_back;
        }
        free(self) > slots
    }

    fn slot(&self, ahead: u32) -> u32 {
        self.written.wrapping_add(ahead) & (self.memory.slots() - 1)
    }
}

impl<M: Memory> Reader<M> {
    /// Reads a ring from its beginning.
    pub fn new(memory: M) -> Self {
        Self { memory, read: 0 }
    }

    /// The length of the payload of the next frame, if there is one.
    ///
    /// # Errors
    /// If what is there cannot be a frame.
    #[inline(always)]
    pub fn next(&self) -> Result<Option<u32>, Malformed> {
        let word = self.memory.word(self.slot()).load(Acquire);
        let Some(length) = word.checked_sub(1) else { return Ok(None) };
        if length as usize > PIECE_MOST || slots_for(length as usize) >= self.memory.slots() {
            return Err(Malformed::Length { kind: 0, length, most: PIECE_MOST });
        }
        let ahead = |slots| self.memory.prefetch((self.slot() + slots) & (self.memory.slots() - 1));
        if HEAD + length as usize > SLOT {
            ahead(1);
        }
        // The writer has just set its word to zero, and whoever reads all that is there looks at it before the frame is of use to
        // anybody: one eighth of a round trip, if nobody fetches it until then.
        ahead(slots_for(length as usize));
        Ok(Some(length))
    }

    /// The words of the head of the next frame. Its `length` is the one that was checked, whatever the other process writes.
    #[inline(always)]
    pub fn head(&self, length: u32) -> [u64; HEAD_WORDS] {
        let at = self.slot() as usize * SLOT;
        // Word by word, as they are used: what is written in parts and read as a whole, the processor waits for.
        // SAFETY: the frame is published, and the writer does not touch it until it is given back.
        let word = |number| u64::from_le_bytes(unsafe { self.memory.copy(at + 8 * number) });
        // SAFETY: as above.
        let half = u32::from_le_bytes(unsafe { self.memory.copy(at + 4) });
        let first = u64::from(length) | u64::from(half) << 32;
        std::array::from_fn(|number| if number == 0 { first } else { word(number) })
    }

    /// Appends the payload of the next frame, `length` bytes as its head says, to `into`.
    pub fn read(&self, length: u32, into: &mut Vec<u8>) {
        let offset = self.slot() as usize * SLOT + HEAD;
        // SAFETY: as in `head`.
        unsafe { self.memory.read(offset, length as usize, into) };
    }

    /// Copies a payload of at most [`SHORT_MOST`] bytes to the beginning of `into`, and behind it whatever else lies in the
    /// slots of its frame.
    #[inline(always)]
    pub fn read_short(&self, length: u32, into: &mut [u8; SHORT_MOST]) {
        let (first, rest) = into.split_at_mut(FIRST);
        let at = |slot: u32| (slot & (self.memory.slots() - 1)) as usize * SLOT;
        // SAFETY: as in `head`, since all of each of its slots belongs to the frame.
        unsafe {
            first.copy_from_slice(&self.memory.copy::<FIRST>(at(self.read) + HEAD));
            if length as usize > FIRST {
                let next = at(self.read.wrapping_add(1));
                rest.copy_from_slice(&self.memory.copy::<{ SHORT_MOST - FIRST }>(next));
            }
        }
    }

    /// Gives back the slots of the next frame, with so much payload. Returns whether the writer sleeps and is to be woken.
    #[inline(always)]
    pub fn give_back(&mut self, length: u32) -> bool {
        let before = self.read;
        self.read = self.read.wrapping_add(slots_for(length as usize));
        self.memory.given_back().store(self.read, Release);
        // The writer sleeps until half of the ring is free, so looking at each eighth is enough.
        let eighth = self.memory.slots() / 8;
        if eighth > 0 && before / eighth == self.read / eighth {
            return false;
        }
        self.memory.fence();
        self.memory.writer_asleep().load(Relaxed) == 1
            && self.memory.writer_asleep().swap(0, Relaxed) == 1
    }

    /// Says that the reader sleeps. Returns whether there is nothing to read: if there is, it must
    /// not sleep.
    pub fn falls_asleep(&self) -> bool {
        self.memory.reader_asleep().store(1, Relaxed);
        self.memory.fence();
        let empty = self.memory.word(self.slot()).load(Relaxed) == 0;
        if !empty {
            self.wakes_up();
        }
        empty
    }

    /// Says that the reader does not sleep.
    pub fn wakes_up(&self) {
        self.memory.reader_asleep().store(0, Relaxed);
    }

    fn slot(&self) -> u32 {
        self.read & (self.memory.slots() - 1)
    }
}

/// Whether [`Reader::next`] may find a frame, for threads of the reader's side that do not have it: two
/// reads of words that stay in this core's cache until there is one.
pub fn may_have_frame(memory: &impl Memory) -> bool {
    let next = memory.given_back().load(Relaxed) & (memory.slots() - 1);
    memory.word(next).load(Relaxed) != 0
}

/// The slots of the longest frame that a writer may wait for: half of the ring.
fn longest(slots: u32) -> u32 {
    slots / 2
}

fn slots_for(length: usize) -> u32 {
    (HEAD + length).div_ceil(SLOT) as u32
}

#[cfg(test)]
mod tests {
    //! Every interleaving of a writer and a reader, as far as loom bounds it.

    use super::*;
    use crate::frame::{Frame, Head};
    use crate::id::Place;
    use crate::matching::Tag;
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Arc, Notify};

    impl Word for AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            AtomicU32::load(self, order)
        }
        fn store(&self, value: u32, order: Ordering) {
            AtomicU32::store(self, value, order);
        }
        fn swap(&self, value: u32, order: Ordering) -> u32 {
            AtomicU32::swap(self, value, order)
        }
    }

    /// A ring whose bytes, but for the first word of each slot, are watched for races.
    struct Watched {
        words: Vec<AtomicU32>,
        rests: Vec<UnsafeCell<[u8; SLOT - 4]>>,
        given_back: AtomicU32,
        asleep: [AtomicU32; 2],
        bells: [Notify; 2],
    }

    // SAFETY: loom says so if it is not.
    unsafe impl Sync for Watched {}

    fn ring(slots: usize) -> Arc<Watched> {
        Arc::new(Watched {
            words: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            rests: (0..slots).map(|_| UnsafeCell::new([0; SLOT - 4])).collect(),
            given_back: AtomicU32::new(0),
            asleep: [AtomicU32::new(0), AtomicU32::new(0)],
            bells: [Notify::new(), Notify::new()],
        })
    }

    impl Watched {
        fn byte(&self, offset: usize) -> u8 {
            let (slot, at) = (offset / SLOT % self.words.len(), offset % SLOT);
            if at < 4 {
                return self.words[slot].load(Relaxed).to_le_bytes()[at];
            }
            // SAFETY: loom says so if it is not.
            self.rests[slot].with(|rest| unsafe { (*rest)[at - 4] })
        }

        fn set_byte(&self, offset: usize, byte: u8) {
            let (slot, at) = (offset / SLOT % self.words.len(), offset % SLOT);
            if at < 4 {
                let mut bytes = self.words[slot].load(Relaxed).to_le_bytes();
                bytes[at] = byte;
                self.words[slot].store(u32::from_le_bytes(bytes), Relaxed);
            } else {
                // SAFETY: loom says so if it is not.
                self.rests[slot].with_mut(|rest| unsafe { (*rest)[at - 4] = byte });
            }
        }
    }

    // SAFETY: words and bytes are the same where `byte` and `set_byte` say so.
    unsafe impl Memory for Arc<Watched> {
        type Word = AtomicU32;
        fn slots(&self) -> u32 {
            self.words.len() as u32
        }
        fn word(&self, slot: u32) -> &AtomicU32 {
            &self.words[slot as usize]
        }
        fn given_back(&self) -> &AtomicU32 {
            &self.given_back
        }
        fn reader_asleep(&self) -> &AtomicU32 {
            &self.asleep[0]
        }
        fn writer_asleep(&self) -> &AtomicU32 {
            &self.asleep[1]
        }
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
        fn prefetch(&self, _slot: u32) {}
        unsafe fn write(&self, offset: usize, bytes: &[u8]) {
            // Only some bytes, or there are too many steps to try: the last, and each slot's first.
            let last = bytes.len().saturating_sub(1);
            for (at, byte) in bytes.iter().enumerate() {
                if at == last || (offset + at).is_multiple_of(SLOT) {
                    self.set_byte(offset + at, *byte);
                }
            }
        }
        unsafe fn write_slot(&self, offset: usize, head: &[u8; HEAD], first: &[u8; FIRST]) {
            // SAFETY: loom says so if it is not.
            self.rests[offset / SLOT % self.words.len()].with_mut(|rest| unsafe {
                (&mut (*rest))[..HEAD - 4].copy_from_slice(&head[4..]);
                (&mut (*rest))[HEAD - 4..].copy_from_slice(first);
            });
        }
        unsafe fn read(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
            let last = length.saturating_sub(1);
            into.extend((0..length).map(|at| {
                if at == last || (offset + at).is_multiple_of(SLOT) {
                    self.byte(offset + at)
                } else {
                    0
                }
            }));
        }
        unsafe fn copy<const BYTES: usize>(&self, offset: usize) -> [u8; BYTES] {
            let (slot, at) = (offset / SLOT % self.words.len(), offset % SLOT);
            let word = (at < 4).then(|| self.words[slot].load(Relaxed).to_le_bytes());
            // SAFETY: loom says so if it is not.
            let rest = self.rests[slot].with(|rest| unsafe { *rest });
            std::array::from_fn(|i| match word {
                Some(word) if at + i < 4 => word[at + i],
                _ => rest[at + i - 4],
            })
        }
    }

    fn head(seen: u32) -> [u8; HEAD] {
        let place = Place { slot: 0, generation: 0 };
        let frame = Frame::Message { from: place, to: place, tag: Tag(0), credit: 0 };
        Head { frame, length: 0, seen: seen << 24 }.encode()
    }

    /// Sends frames with these payload lengths through a ring of `slots`. Both sides sleep when
    /// they have nothing to do; one that is not woken is a deadlock, which loom finds.
    fn passes(slots: usize, lengths: &'static [usize]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let shared = ring(slots);
            let memory = shared.clone();
            let writing = loom::thread::spawn(move || {
                let mut writer = Writer::new(memory.clone());
                for (number, length) in lengths.iter().enumerate() {
                    let payload = vec![number as u8 + 1; *length];
                    loop {
                        match writer.push(&head(number as u32), &payload) {
                            Push::Done { wake: true } => break memory.bells[0].notify(),
                            Push::Done { wake: false } => break,
                            Push::Full if writer.falls_asleep() => memory.bells[1].wait(),
                            Push::Full => {}
                        }
                    }
                }
            });
            let mut reader = Reader::new(shared.clone());
            for (number, length) in lengths.iter().enumerate() {
                while reader.next().unwrap() != Some(*length as u32) {
                    if reader.falls_asleep() {
                        shared.bells[0].wait();
                    }
                }
                let head = reader.head(*length as u32);
                assert_eq!(head[0] as u32, *length as u32);
                assert_eq!(head[HEAD_WORDS - 1] >> 56, number as u64);
                let (mut short, mut long) = ([0; SHORT_MOST], Vec::new());
                let payload = if *length <= SHORT_MOST {
                    reader.read_short(*length as u32, &mut short);
                    &short[..*length]
                } else {
                    reader.read(*length as u32, &mut long);
                    &long
                };
                if reader.give_back(*length as u32) {
                    shared.bells[1].notify();
                }
                assert_eq!(payload.last(), Some(&(number as u8 + 1)));
            }
            writing.join().unwrap();
        });
    }

    #[test]
    fn short_frames_pass_in_order_and_nobody_sleeps_for_ever() {
        passes(4, &[8, 8, 8]);
    }

    #[test]
    fn frames_that_wrap_around_pass() {
        passes(4, &[8, 70, 60]);
    }

    /// There is room before the reader has told so. A thread that finds it leaves those asleep who are to be told.
    #[test]
    fn who_finds_room_takes_nothing_back_on_which_others_rely() {
        loom::model(|| {
            let shared = ring(16);
            let (mut writer, mut reader) =
                (Writer::new(shared.clone()), Reader::new(shared.clone()));
            let is_said = || shared.writer_asleep().load(Relaxed) == 1;
            assert!(!writer.falls_asleep() && !is_said(), "all of it is free");
            for number in 0..8 {
                assert_eq!(writer.push(&head(number), &[0; 8]), Push::Done { wake: false });
            }
            assert!(writer.falls_asleep() && is_said());
            assert!(!reader.give_back(8), "less than an eighth was read");
            assert!(!writer.falls_asleep() && is_said());
            assert!(reader.give_back(8));
        });
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        loom::model(|| {
            let shared = ring(4);
            let reader = Reader::new(shared.clone());
            shared.words[0].store(u32::MAX, Relaxed);
            assert!(reader.next().is_err());
        });
    }
}
