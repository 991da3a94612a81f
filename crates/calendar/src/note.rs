//! What searches found out in vain about a part of the time, noted for later ones.
//!
//! Least and greatest amounts cannot tell a comb (many gaps, each too short) from a place that
//! fits, so a search has to walk through it. But what it finds there holds for every later search
//! for as much or more, for as long or longer, and four numbers say it. Reserving more makes no
//! note wrong; where something is given back, notes are mended ([`Child`](crate::tree::Child)).

use crate::stairs::Stairs;
use crate::tree::Step;
use std::cell::{Cell, OnceCell};

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

/// How many notes are at hand: two, since what is asked differs. Each takes 32 bytes; four of them save
/// a sixth of the steps of a long search and cost as much time by their memory.
const LAST: usize = 2;

/// The notes of a part. They are in no answer, only in the time that it takes, so a search may
/// add to them; but because of them only one thread at a time can search a table.
#[derive(Debug, Clone)]
pub struct Notes {
    /// The last ones that served or were made.
    last: Cell<[Note; LAST]>,
    /// Those that are kept for long.
    kept: OnceCell<Box<Stairs>>,
}

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
        Self { last: Cell::new([Note::NOTHING; LAST]), kept: OnceCell::new() }
    }

    /// The last notes first.
    pub fn last(&self) -> impl Iterator<Item = Note> {
        let notes: &Cell<[Note]> = &self.last;
        notes.as_slice_of_cells().iter().map(Cell::get)
    }

    /// Those that are kept for long, if there are any.
    pub fn kept(&self) -> Option<&Stairs> {
        self.kept.get().map(Box::as_ref)
    }

    /// Has `new` at hand instead of one that says less, or of the oldest one, which is given back if it
    /// says something.
    pub fn add(&self, new: Note) -> Option<Note> {
        let mut notes = self.last.get();
        let says_less = |note: &Note| new.longest <= note.longest && note.most <= new.most;
        let less = notes.iter().position(says_less);
        notes[..=less.unwrap_or(LAST - 1)].rotate_right(1);
        let dropped = std::mem::replace(&mut notes[0], new);
        self.last.set(notes);
        (less.is_none() && dropped != Note::NOTHING).then_some(dropped)
    }

    /// The same, and keeps for long what there are too many of to have them at hand.
    pub fn keep(&self, new: Note) {
        let dropped = self.add(new);
        if let Some(kept) = self.kept() {
            kept.add(new);
        } else if let Some(dropped) = dropped {
            let kept = self.kept.get_or_init(Box::default);
            kept.add(dropped);
            kept.add(new);
        }
    }

    /// Every amount has become greater by `by` (modulo 2^64).
    pub fn shift(&mut self, by: u64) {
        self.told().for_each(|note| *note = note.raised(by));
        self.kept().into_iter().for_each(|stairs| stairs.shift(by));
    }

    /// Those at hand that say something, to be changed.
    pub fn told(&mut self) -> impl Iterator<Item = &mut Note> {
        self.last.get_mut().iter_mut().filter(|note| **note != Note::NOTHING)
    }

    /// Drops what is of no use, now that `lowest` is the least amount.
    pub fn keep_from(&mut self, lowest: u64) {
        let useless = self.last.get_mut().iter_mut().filter(|note| note.most < lowest);
        useless.for_each(|note| *note = Note::NOTHING);
        self.kept().into_iter().for_each(|stairs| stairs.keep_from(lowest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The longest run and the places that block, by looking at every instant.
    fn looked_at(used: &[u64], most: u64) -> (u64, Option<(u64, u64)>) {
        let longest = used.split(|used| *used > most).map(<[u64]>::len).max().unwrap_or(0);
        let blocks = |used: &u64| *used > most;
        let ends = used.iter().position(blocks).zip(used.iter().rposition(blocks));
        (longest as u64, ends.map(|(first, last)| (first as u64, last as u64 + 1)))
    }

    proptest! {
        #[test]
        fn a_note_of_steps_is_exact_up_to_the_amount_it_tells(
            amounts in proptest::collection::vec((0u64..12, 1usize..20), 1..40),
            most in 0u64..12,
            raised in 0u64..5,
        ) {
            let mut steps = Vec::new();
            let mut used: Vec<u64> = Vec::new();
            for (amount, length) in amounts {
                steps.push(Step { at: used.len() as u64, used: amount.wrapping_sub(raised) });
                used.extend(std::iter::repeat_n(amount, length));
            }
            prop_assume!(used.iter().any(|used| *used > most));
            let note = Note::of_steps(&steps, raised, most, used.len() as u64);
            prop_assert!(most <= note.most && note.most < 12);
            for most in most..=note.most {
                let expected = (note.longest, Some((note.first, note.last)));
                prop_assert_eq!(looked_at(&used, most), expected);
            }
        }
    }

    #[test]
    fn a_note_that_says_less_goes_first_and_then_the_oldest() {
        let note = |most, longest| Note { most, longest, first: 0, last: 0 };
        let notes = Notes::none();
        let kept = || notes.last().collect::<Vec<_>>();
        for (most, longest) in [(5, 10), (7, 20), (6, 20)] {
            notes.add(note(most, longest));
        }
        assert_eq!(kept(), [note(6, 20), note(7, 20)]);
        notes.add(note(7, 19));
        assert_eq!(kept(), [note(7, 19), note(7, 20)]);
        notes.add(note(8, 20));
        assert_eq!(kept(), [note(8, 20), note(7, 19)]);
    }
}
