//! Records that one writes while others read, without a lock (pure): a sequence is odd while its
//! record is written. Who reads the same even sequence before and after has read one version.

use super::layout::{PREFIX, SLOT_WORDS};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

const SEQUENCE: usize = 0;
const COUNTER: usize = 1;
const DATA: usize = 2;
const WORD: usize = 8;

/// A word of eight bytes that several processes use.
pub trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Adds to it and returns what it was.
    fn add(&self, value: u64, order: Ordering) -> u64;
}

/// The words of a region.
pub trait Words {
    /// Its words.
    type Word: Word;
    /// Word `index`, counted from the region's beginning.
    fn word(&self, index: usize) -> &Self::Word;
    /// A fence.
    fn fence(&self, order: Ordering);
}

/// A record: the words of its region, and its first slot.
#[derive(Debug)]
pub struct Record<'a, W> {
    words: &'a W,
    first: usize,
}

/// What was read besides the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Twice the number of times that the record was written.
    pub sequence: u64,
    /// Its counter.
    pub counter: u64,
}

impl<'a, W: Words> Record<'a, W> {
    /// The record that begins at slot `first`.
    pub fn new(words: &'a W, first: u32) -> Self {
        Self { words, first: first as usize * SLOT_WORDS }
    }

    /// Writes its data. Only one thread may do so at a time.
    pub fn write(&self, data: &[u8]) {
        let sequence = self.word(SEQUENCE);
        let before = sequence.load(Relaxed);
        sequence.store(before.wrapping_add(1), Relaxed);
        self.words.fence(Release);
        for (index, bytes) in data.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(DATA + index).store(u64::from_le_bytes(word), Relaxed);
        }
        sequence.store(before.wrapping_add(2), Release);
    }

    /// Reads its data. None if it was written meanwhile: then try again.
    pub fn read(&self, data: &mut [u8]) -> Option<Seen> {
        let sequence = self.begin()?;
        let counter = self.word(COUNTER).load(Relaxed);
        for (index, bytes) in data.chunks_mut(WORD).enumerate() {
            let word = self.word(DATA + index).load(Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        self.ends(sequence).then_some(Seen { sequence, counter })
    }

    /// Reads whole slots, its prefix among them, from its slot `offset` on. None if it was written
    /// meanwhile. Returns its sequence.
    pub fn read_slots(&self, offset: u32, slots: &mut [u8]) -> Option<u64> {
        let sequence = self.begin()?;
        for (index, bytes) in slots.chunks_exact_mut(WORD).enumerate() {
            let word = self.word(offset as usize * SLOT_WORDS + index).load(Relaxed);
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.ends(sequence).then_some(sequence)
    }

    /// Its counter.
    pub fn counter(&self) -> u64 {
        self.word(COUNTER).load(Relaxed)
    }

    /// Adds to its counter and returns what it was.
    pub fn add(&self, amount: u64) -> u64 {
        self.word(COUNTER).add(amount, Relaxed)
    }

    fn begin(&self) -> Option<u64> {
        let sequence = self.word(SEQUENCE).load(Acquire);
        sequence.is_multiple_of(2).then_some(sequence)
    }

    fn ends(&self, sequence: u64) -> bool {
        self.words.fence(Acquire);
        self.word(SEQUENCE).load(Relaxed) == sequence
    }

    fn word(&self, index: usize) -> &'a W::Word {
        self.words.word(self.first + index)
    }
}

/// What `slots`, all those of a record, say: its data's first bytes go to `data`.
pub fn unpack(slots: &[u8], data: &mut [u8]) -> Seen {
    let word = |index: usize| {
        let bytes = slots[index * WORD..].first_chunk().copied();
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    data.copy_from_slice(&slots[PREFIX..PREFIX + data.len()]);
    Seen { sequence: word(SEQUENCE), counter: word(COUNTER) }
}

#[cfg(test)]
mod tests {
    //! Every interleaving of a writer, a reader and one who adds, as far as loom bounds it.

    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    impl Word for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            AtomicU64::load(self, order)
        }
        fn store(&self, value: u64, order: Ordering) {
            AtomicU64::store(self, value, order);
        }
        fn add(&self, value: u64, order: Ordering) -> u64 {
            self.fetch_add(value, order)
        }
    }

    struct Slot(Vec<AtomicU64>);

    impl Words for Arc<Slot> {
        type Word = AtomicU64;
        fn word(&self, index: usize) -> &AtomicU64 {
            &self.0[index]
        }
        fn fence(&self, order: Ordering) {
            fence(order);
        }
    }

    fn slot() -> Arc<Slot> {
        Arc::new(Slot((0..SLOT_WORDS).map(|_| AtomicU64::new(0)).collect()))
    }

    fn of(slot: &Arc<Slot>) -> Record<'_, Arc<Slot>> {
        Record::new(slot, 0)
    }

    #[test]
    fn no_reader_sees_half_of_a_version() {
        loom::model(|| {
            let slot = slot();
            let of_writer = slot.clone();
            let writing = loom::thread::spawn(move || {
                of(&of_writer).write(&[1; 16]);
                of(&of_writer).write(&[2; 16]);
            });
            let mut data = [9; 16];
            if let Some(seen) = of(&slot).read(&mut data) {
                assert_eq!(data, [(seen.sequence / 2) as u8; 16]);
            }
            writing.join().unwrap();
            assert_eq!(of(&slot).read(&mut data), Some(Seen { sequence: 4, counter: 0 }));
            assert_eq!(data, [2; 16]);
        });
    }

    #[test]
    fn nothing_that_is_added_is_lost_while_others_write() {
        loom::model(|| {
            let slot = slot();
            let (of_writer, of_adder) = (slot.clone(), slot.clone());
            let writing = loom::thread::spawn(move || of(&of_writer).write(&[1; 8]));
            let adding = loom::thread::spawn(move || of(&of_adder).add(3));
            let mine = of(&slot).add(4);
            let other = adding.join().unwrap();
            writing.join().unwrap();
            assert!((mine, other) == (0, 4) || (mine, other) == (3, 0));
            assert_eq!(of(&slot).counter(), 7);
        });
    }

    #[test]
    fn slots_are_unpacked_as_they_were_written() {
        loom::model(|| {
            let slot = slot();
            of(&slot).write(b"thirteen byte");
            of(&slot).add(7);
            let mut bytes = [0; 64];
            assert_eq!(of(&slot).read_slots(0, &mut bytes), Some(2));
            let mut data = [0; 13];
            assert_eq!(unpack(&bytes, &mut data), Seen { sequence: 2, counter: 7 });
            assert_eq!(&data, b"thirteen byte");
        });
    }
}
