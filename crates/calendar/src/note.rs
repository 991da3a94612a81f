//! What searches found out in vain about a part of the time, noted for later ones.
//!
//! Least and greatest amounts cannot tell a comb (many gaps, each too short) from a place that
//! fits, so a search has to walk through it. But what it finds there holds for every later search
//! for as much or more, for as long or longer: a note says it in four numbers. Reserving more
//! makes no note wrong; only where something is given back, notes are dropped.

use crate::tree::Step;
use std::cell::Cell;

/// About a part of the time that blocks somewhere: true where at most `most` may be reserved, or
/// less. A run is a longest stretch within the part on which no more than that is reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// Less than the greatest amount in the part, and not less than the least one.
    pub most: u64,
    /// No run is longer.
    pub longest: u64,
    /// The first place that blocks begins here or earlier.
    pub first: u64,
    /// The last place that blocks ends here or later.
    pub last: u64,
}

/// How many notes are kept of a part. Searches that differ in what they ask need different ones;
/// each takes 32 bytes.
const KEPT: usize = 2;

/// The last notes of a part, in no answer, only in the time that it takes. They are what makes a
/// table impossible to share between threads: one search at a time.
#[derive(Debug, Clone)]
pub struct Notes(Cell<[Note; KEPT]>);

impl Note {
    /// Nothing at all.
    pub const NOTHING: Self = Self { most: 0, longest: u64::MAX, first: u64::MAX, last: 0 };

    /// What there is to say of a leaf that lasts until `end` and blocks somewhere, exactly, and with
    /// the greatest `most` for which it is true. `raised` is what the ancestors note.
    pub fn of_steps(steps: &[Step], raised: u64, most: u64, end: u64) -> Self {
        let mut note = Self { most: u64::MAX, longest: 0, first: end, last: steps[0].at };
        for (i, step) in steps.iter().enumerate() {
            let used = step.used.wrapping_add(raised);
            if used > most {
                note.most = note.most.min(used - 1);
                note.longest = note.longest.max(step.at - note.last);
                note.first = note.first.min(step.at);
                note.last = steps.get(i + 1).map_or(end, |next| next.at);
            }
        }
        note.longest = note.longest.max(end - note.last);
        note
    }

    /// The same with amounts that are greater by `by` (modulo 2^64).
    pub fn raised(self, by: u64) -> Self {
        Self { most: self.most.wrapping_add(by), ..self }
    }
}

impl Notes {
    /// No notes.
    pub const fn none() -> Self {
        Self(Cell::new([Note::NOTHING; KEPT]))
    }

    /// The last notes first.
    pub fn all(&self) -> [Note; KEPT] {
        self.0.get()
    }

    /// Keeps `new` instead of one that says less, or of the oldest one.
    pub fn add(&self, new: Note) {
        let mut notes = self.0.get();
        let says_less = |note: &Note| note.most <= new.most && note.longest >= new.longest;
        let dropped = notes.iter().position(says_less).unwrap_or(KEPT - 1);
        notes[..=dropped].rotate_right(1);
        notes[0] = new;
        self.0.set(notes);
    }

    /// Every amount has become greater by `by` (modulo 2^64).
    pub fn shift(&mut self, by: u64) {
        let told = self.0.get_mut().iter_mut().filter(|note| **note != Note::NOTHING);
        told.for_each(|note| *note = note.raised(by));
    }

    /// Something was given back: puts in the place of each note what is true now, if anything.
    pub fn mend(&mut self, mended: impl Fn(Note) -> Option<Note>) {
        let told = self.0.get_mut().iter_mut().filter(|note| **note != Note::NOTHING);
        told.for_each(|note| *note = mended(*note).unwrap_or(Note::NOTHING));
    }

    /// Drops what is true of no more than nothing, now that `lowest` is the least amount.
    pub fn keep_from(&mut self, lowest: u64) {
        let useless = self.0.get_mut().iter_mut().filter(|note| note.most < lowest);
        useless.for_each(|note| *note = Note::NOTHING);
    }
}
