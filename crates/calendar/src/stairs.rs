//! Notes that are kept for long, for questions of many kinds.
//!
//! A search may ask for any amount and any duration, and which note serves it depends on both. Of
//! notes that are sorted by their amount, where a longer run is told only for a greater amount, it
//! is one: that of the least amount that is not less than what is asked for.
//!
//! When something is given back they are not mended at once but when somebody asks for them: often the
//! same is reserved again before, and then nothing is lost.

use crate::note::Note;
use crate::span::Stretch;
use crate::tree::Extent;
use std::cell::Cell;
use std::hint::select_unpredictable;
use std::ops::Range;

/// How many notes are kept: one less than a power of two, which is halved. They take 1.3 KB, and only
/// parts above the leaves of which long searches asked have them.
const KEPT: usize = if cfg!(test) { 3 } else { 31 };
const _: () = assert!((KEPT + 1).is_power_of_two());

/// Notes in the order of `most`, `longest` never falling. After them stands [`UNUSED`].
#[derive(Debug, Clone)]
pub struct Stairs {
    /// How many there are.
    told: Cell<usize>,
    /// Where less is reserved now than the notes say.
    lowered: Cell<Option<Stretch>>,
    /// `most` of each note, beside each other to be compared.
    amounts: Cell<[u64; KEPT]>,
    notes: Cell<[Note; KEPT]>,
}

/// Greater than what any note is about, and says nothing.
const UNUSED: Note = Note { most: u64::MAX, ..Note::NOTHING };

impl Default for Stairs {
    /// No notes.
    fn default() -> Self {
        Self {
            told: Cell::new(0),
            lowered: Cell::new(None),
            amounts: Cell::new([UNUSED.most; KEPT]),
            notes: Cell::new([UNUSED; KEPT]),
        }
    }
}

impl Stairs {
    /// The note that says most about `most`, or one that says nothing.
    pub fn about(&self, most: u64) -> Note {
        self.cells().get(self.place(most)).map_or(Note::NOTHING, Cell::get)
    }

    /// Keeps `new` and what says more than it. If these are too many, the one goes without which the
    /// next one has to serve the fewest questions more.
    pub fn add(&self, mut new: Note) {
        let notes = self.cells();
        let place = self.place(new.most);
        let mut past = place;
        if let Some(greater) = notes.get(place).map(Cell::get) {
            // What is true up to a greater amount is true up to this one too.
            new.longest = new.longest.min(greater.longest);
            new.first = new.first.min(greater.first);
            new.last = new.last.max(greater.last);
            past += usize::from(greater.most == new.most);
        }
        let less = notes[..place].iter().rev();
        let first = place - less.take_while(|note| new.longest <= note.get().longest).count();
        if first < past {
            self.put(first, new);
            self.close(first + 1..past);
        } else {
            self.insert(first, new);
        }
    }

    /// Every amount has become greater by `by` (modulo 2^64).
    pub fn shift(&self, by: u64) {
        (0..self.told.get()).for_each(|i| self.put(i, self.cells()[i].get().raised(by)));
    }

    /// Less is reserved over `stretch` than the notes say, until they are mended ([`Self::take_lowered`]).
    /// One such place can wait.
    pub fn lowered(&self, stretch: Stretch) {
        self.lowered.set(Some(stretch));
    }

    /// Where notes are to be mended now ([`Self::mend`]), if anywhere.
    pub fn take_lowered(&self) -> Option<Stretch> {
        self.lowered.take()
    }

    /// Makes the notes true again where less is reserved now. There at least `lowest` is reserved, so that
    /// notes about less stay true; in all of the part at most `highest`. No run up to an amount
    /// that touches that place is longer than `run` tells, and `ends` puts right where a note says that it blocks first and last.
    pub fn mend(
        &self,
        Extent { lowest, highest }: Extent,
        run: impl Fn(u64) -> u64,
        ends: impl Fn(Note) -> Note,
    ) {
        let Some(limit) = highest.checked_sub(1) else { return self.close(0..self.told.get()) };
        // Of those that are about more than what blocks, the first one says most.
        let told = self.told.get().min(self.place(limit) + 1);
        self.close(told..self.told.get());
        let mut all = self.notes.get();
        let notes = &mut all[..told];
        if let Some(last) = notes.last_mut() {
            last.most = last.most.min(limit);
        }
        let same = notes.iter().filter(|note| note.most < lowest).count();
        let touched = &mut notes[same..];
        if let Some(last) = touched.last() {
            let longest = run(last.most);
            lengthen(touched, 0, longest, &run);
            touched.iter_mut().for_each(|note| *note = ends(*note));
        }
        // From the greatest amount on: what tells as long a run as the one before goes.
        let mut from = told;
        for i in (0..told).rev() {
            if from == told || notes[i].longest < notes[from].longest {
                from -= 1;
                notes[from] = notes[i];
            }
        }
        (from..told).for_each(|i| self.put(i, notes[i]));
        self.close(0..from);
    }

    /// Drops what is of no use, now that `lowest` is the least amount.
    pub fn keep_from(&self, lowest: u64) {
        self.close(0..self.place(lowest));
    }

    /// How many notes are about less than `most`. By halves, since which half nobody can foresee.
    fn place(&self, most: u64) -> usize {
        let amounts = self.amounts();
        let mut place = 0;
        let mut half = KEPT.div_ceil(2);
        while half > 0 {
            let is_less = amounts[place + half - 1].get() < most;
            place += select_unpredictable(is_less, half, 0);
            half /= 2;
        }
        place
    }

    fn amounts(&self) -> &[Cell<u64>] {
        let amounts: &Cell<[u64]> = &self.amounts;
        amounts.as_slice_of_cells()
    }

    fn cells(&self) -> &[Cell<Note>] {
        let notes: &Cell<[Note]> = &self.notes;
        notes.as_slice_of_cells()
    }

    fn put(&self, place: usize, note: Note) {
        self.amounts()[place].set(note.most);
        self.cells()[place].set(note);
    }

    /// Puts `new` before the note at `place`.
    fn insert(&self, mut place: usize, new: Note) {
        let mut told = self.told.get();
        if told == KEPT {
            let dropped = self.of_least_use();
            self.close(dropped..dropped + 1);
            place -= usize::from(dropped < place);
            told -= 1;
        }
        (place..told).rev().for_each(|i| self.put(i + 1, self.cells()[i].get()));
        self.put(place, new);
        self.told.set(told + 1);
    }

    /// Drops the notes in `dropped`.
    fn close(&self, dropped: Range<usize>) {
        if dropped.is_empty() {
            return;
        }
        let told = self.told.get();
        let by = dropped.len();
        (dropped.end..told).for_each(|i| self.put(i - by, self.cells()[i].get()));
        (told - by..told).for_each(|i| self.put(i, UNUSED));
        self.told.set(told - by);
    }

    /// Of as many as can be kept, the note that is missed least, but for the last one. What it serves and the
    /// next one does not are questions for more than the one before is about, and for what is longer than
    /// its own runs and no longer than those of the next.
    fn of_least_use(&self) -> usize {
        let notes = self.cells();
        let mut before = 0;
        let mut least = (u64::MAX, 0);
        for i in 0..KEPT - 1 {
            let [note, next] = [notes[i].get(), notes[i + 1].get()];
            let lost = (note.most - before).saturating_mul(next.longest - note.longest);
            least = least.min((lost, i));
            before = note.most;
        }
        least.1
    }

    /// All notes, of the least amount first.
    #[cfg(test)]
    pub fn all(&self) -> Vec<Note> {
        self.notes.get().into_iter().filter(|note| *note != UNUSED).collect()
    }
}

/// Makes `longest` of each note as long as `run` of its amount or longer. What `run` tells of a greater amount,
/// in the end `most`, is enough for a smaller one too, so that its cost is spent only where it may make a
/// difference; `least` is what it tells of the note before.
fn lengthen(notes: &mut [Note], least: u64, most: u64, run: &impl Fn(u64) -> u64) {
    let Some(shortest) = notes.first().map(|note| note.longest) else { return };
    if most <= shortest {
        return;
    }
    if least == most {
        notes.iter_mut().for_each(|note| note.longest = note.longest.max(most));
        return;
    }
    let middle = notes.len() / 2;
    let (less, rest) = notes.split_at_mut(middle);
    let longest = run(rest[0].most);
    rest[0].longest = rest[0].longest.max(longest);
    lengthen(less, least, longest, run);
    lengthen(&mut rest[1..], longest, most, run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AMOUNTS: u64 = 12;

    fn note(most: u64, longest: u64) -> Note {
        Note { most, longest, first: 0, last: 0 }
    }

    #[test]
    fn a_note_that_says_less_goes_and_if_they_are_too_many_the_one_that_is_missed_least() {
        let stairs = Stairs::default();
        [(10, 10), (20, 20), (21, 21)]
            .iter()
            .for_each(|(most, longest)| stairs.add(note(*most, *longest)));
        stairs.add(note(30, 40));
        assert_eq!(stairs.all(), [note(10, 10), note(21, 21), note(30, 40)]);
        stairs.add(note(25, 15));
        assert_eq!(stairs.all(), [note(10, 10), note(25, 15), note(30, 40)]);
        assert_eq!(stairs.about(11), note(25, 15));
        assert_eq!(stairs.about(31).longest, u64::MAX);
        // What is true up to 30 is true up to 28.
        stairs.add(note(28, 50));
        assert_eq!(stairs.about(28).longest, 40);
    }

    /// What there is to say about `most` where so much is used at each instant; nothing if it never blocks.
    fn exact(used: &[u64], most: u64) -> Option<Note> {
        let longest = used.split(|used| *used > most).map(<[u64]>::len).max()? as u64;
        let first = used.iter().position(|used| *used > most)? as u64;
        let last = used.iter().rposition(|used| *used > most)? as u64 + 1;
        Some(Note { most, longest, first, last })
    }

    /// The longest run up to `most` that touches `from..to`, looked at instant by instant.
    fn run(used: &[u64], most: u64, from: usize, to: usize) -> u64 {
        let free = |used: &&u64| **used <= most;
        let before = used[..from].iter().rev().take_while(free).count();
        let after = used[to..].iter().take_while(free).count();
        (before + to - from + after) as u64
    }

    fn check(stairs: &Stairs, used: &[u64]) {
        let all = stairs.all();
        assert!(all.windows(2).all(|pair| pair[0].most < pair[1].most), "{all:?}");
        assert!(all.windows(2).all(|pair| pair[0].longest <= pair[1].longest), "{all:?}");
        for exact in (0..AMOUNTS).filter_map(|most| exact(used, most)) {
            let told = stairs.about(exact.most);
            assert!(exact.longest <= told.longest, "{told:?} {exact:?}");
            assert!(exact.first <= told.first && told.last <= exact.last, "{told:?} {exact:?}");
            let serving = all.iter().filter(|note| exact.most <= note.most);
            assert_eq!(serving.map(|note| note.longest).min().unwrap_or(u64::MAX), told.longest);
        }
    }

    proptest! {
        /// Notes that are true of a list of amounts are added, and the amounts are changed.
        #[test]
        fn what_stairs_say_is_true_and_no_worse_than_any_note_that_they_keep(
            mut used in proptest::collection::vec(0..AMOUNTS, 20..60),
            steps in proptest::collection::vec(any::<[u8; 4]>(), 1..60),
        ) {
            let stairs = Stairs::default();
            for words in steps {
                let [kind, a, b, c] = words.map(usize::from);
                let [a_place, b_place] = [a, b].map(|word| word % used.len());
                let (from, to) = (a_place.min(b_place), a_place.max(b_place) + 1);
                match kind % 4 {
                    0 | 1 => {
                        let Some(note) = exact(&used, c as u64 % AMOUNTS) else { continue };
                        // As true, but less is said.
                        let note = Note { longest: note.longest + a as u64 % 3, ..note };
                        let before = stairs.all();
                        stairs.add(note);
                        prop_assert!(stairs.all().len() == KEPT || stairs.about(note.most).longest <= note.longest);
                        prop_assert!(before.len() == KEPT || before.iter().all(|old| stairs.about(old.most).longest <= old.longest));
                    }
                    2 => used[from..to].iter_mut().for_each(|used| *used = (*used + 1).min(AMOUNTS - 1)),
                    _ => {
                        used[from..to].iter_mut().for_each(|used| *used = used.saturating_sub(1 + c as u64 % 3));
                        let lowest = used[from..to].iter().copied().min().unwrap_or(0);
                        let highest = used.iter().copied().max().unwrap_or(0);
                        let ends = |note: Note| exact(&used, note.most).map_or(note, |exact| Note { longest: note.longest, ..exact });
                        stairs.mend(Extent { lowest, highest }, |most| run(&used, most, from, to), ends);
                    }
                }
                stairs.keep_from(used.iter().copied().min().unwrap_or(0));
                check(&stairs, &used);
            }
            let by = 5u64;
            let told = stairs.all();
            stairs.shift(by);
            stairs.shift(by.wrapping_neg());
            prop_assert_eq!(told, stairs.all());
        }
    }
}
