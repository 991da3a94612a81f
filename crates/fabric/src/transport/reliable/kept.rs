//! What of the stream was written and is not confirmed: copies, and long buffers that were given, which are not copied.
//!
//! Copies are in pieces of one length. The piece that was confirmed last is the next that is written: it is still in the
//! processor's cache, where a ring for as many bytes would go round through all of its memory.

use crate::payload::Buffer;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a piece of copies.
const PIECE: usize = 16 << 10;
/// Given buffers at least this long are not copied. As they are as long as a piece, there are never more pieces than what is
/// kept would fill, and two: one behind each buffer, the first, and the last.
const GIVEN_LEAST: usize = PIECE;

/// Bytes from the first that is not confirmed on.
#[derive(Debug, Default)]
pub(super) struct Kept {
    parts: VecDeque<Part>,
    /// Before it all is confirmed, in bytes since the stream began.
    confirmed: u64,
    /// There it ends.
    end: u64,
    /// Pieces that hold nothing; what was used last is last.
    spare: Vec<Vec<u8>>,
}

/// Bytes that lie together.
#[derive(Debug)]
struct Part {
    /// Where they begin in the stream.
    at: u64,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Copied(Vec<u8>),
    /// With its length.
    Given(Buffer, usize),
}

impl Kept {
    /// How many bytes there are.
    pub(super) fn length(&self) -> usize {
        (self.end - self.confirmed) as usize
    }

    /// Appends copies of `bytes`.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (at, mut piece) = self.piece();
            let (here, rest) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
            piece.extend_from_slice(here);
            self.parts.push_back(Part { at, held: Held::Copied(piece) });
            self.end += here.len() as u64;
            bytes = rest;
        }
    }

    /// Appends `buffer`: itself, if it is long, and else a copy.
    pub(super) fn give(&mut self, buffer: Buffer) {
        let length = buffer.len();
        if length < GIVEN_LEAST {
            return self.write(&buffer);
        }
        self.parts.push_back(Part { at: self.end, held: Held::Given(buffer, length) });
        self.end += length as u64;
    }

    /// The first `bytes`, of as many as there are at least, are confirmed.
    pub(super) fn confirm(&mut self, bytes: usize) {
        self.confirmed += bytes as u64;
        while let Some(first) = self.parts.pop_front_if(|first| first.end() <= self.confirmed) {
            if let Held::Copied(mut piece) = first.held {
                piece.clear();
                self.spare.push(piece);
            }
        }
    }

    /// These bytes, counted from the first on, part by part. Costs a binary search of the parts.
    pub(super) fn bytes(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let place = |at: usize| self.confirmed + at as u64;
        let (start, end) = (place(range.start), place(range.end));
        let first = self.parts.partition_point(|part| part.end() <= start);
        let within = self.parts.range(first..).take_while(move |part| part.at < end);
        within.map(move |part| {
            let (from, to) = (start.saturating_sub(part.at), end.min(part.end()) - part.at);
            &part.held.bytes()[from as usize..to as usize]
        })
    }

    /// A piece with room, taken out, and where it begins: the last part, if it is one.
    fn piece(&mut self) -> (u64, Vec<u8>) {
        match self.parts.pop_back() {
            Some(Part { at, held: Held::Copied(piece) }) if piece.len() < PIECE => (at, piece),
            last => {
                self.parts.extend(last);
                (self.end, self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PIECE)))
            }
        }
    }
}

impl Part {
    fn end(&self) -> u64 {
        self.at + self.held.length() as u64
    }
}

impl Held {
    fn length(&self) -> usize {
        match self {
            Self::Copied(piece) => piece.len(),
            Self::Given(_, length) => *length,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(piece) => piece,
            Self::Given(buffer, _) => buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// What happens to it.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Write(usize),
        Give(usize),
        /// So many of a thousand parts of what there is.
        Confirm(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let length = || prop_oneof![0..200_usize, 0..=3 * PIECE];
        let step = prop_oneof![
            length().prop_map(Step::Write),
            length().prop_map(Step::Give),
            (0..=1000_usize).prop_map(Step::Confirm),
        ];
        prop::collection::vec(step, 1..40)
    }

    fn bytes_of(kept: &Kept, range: Range<usize>) -> Vec<u8> {
        kept.bytes(range).collect::<Vec<_>>().concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Whatever is written, given and confirmed: the same bytes as in one vector, and not many more pieces than
        /// they fill.
        #[test]
        fn it_has_what_was_written_and_is_not_confirmed(
            steps in steps(), cuts in (0..=1000_usize, 0..=1000_usize),
        ) {
            let pattern: Vec<u8> = (0..4 * PIECE).map(|at| (at * 7 / 8) as u8).collect();
            let (mut kept, mut model, mut pieces) = (Kept::default(), Vec::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                let bytes = |length: usize| &pattern[number..number + length];
                match step {
                    Step::Write(length) => {
                        kept.write(bytes(length));
                        model.extend_from_slice(bytes(length));
                    }
                    Step::Give(length) => {
                        kept.give(bytes(length).to_vec().into());
                        model.extend_from_slice(bytes(length));
                    }
                    Step::Confirm(parts) => {
                        let count = model.len() * parts / 1000;
                        kept.confirm(count);
                        model.drain(..count);
                    }
                }
                prop_assert_eq!(kept.length(), model.len());
                let (one, other) = (model.len() * cuts.0 / 1000, model.len() * cuts.1 / 1000);
                let range = one.min(other)..one.max(other);
                prop_assert!(bytes_of(&kept, range.clone()) == model[range]);
                prop_assert!(bytes_of(&kept, 0..model.len()) == model);
                let is_copied = |part: &&Part| matches!(part.held, Held::Copied(_));
                let copied = kept.parts.iter().filter(is_copied).count();
                pieces = pieces.max(model.len() / PIECE + 2);
                prop_assert!(copied + kept.spare.len() <= pieces);
            }
        }
    }

    /// A long buffer is sent from where it is, and its owner dropped when its last byte is confirmed, not before.
    #[test]
    fn a_long_buffer_is_not_copied_and_let_go_when_it_is_confirmed() {
        let owner: Arc<[u8]> = vec![7; GIVEN_LEAST].into();
        let mut kept = Kept::default();
        kept.write(&[1; 10]);
        kept.give(Buffer::from_owner(owner.clone()));
        let last = kept.bytes(10..10 + GIVEN_LEAST).last().map(<[u8]>::as_ptr);
        assert_eq!(last, Some(owner.as_ptr()));
        kept.confirm(10 + GIVEN_LEAST - 1);
        assert_eq!(Arc::strong_count(&owner), 2);
        kept.confirm(1);
        assert_eq!((Arc::strong_count(&owner), kept.length()), (1, 0));
    }

    #[test]
    fn a_short_buffer_is_copied() {
        let owner: Arc<[u8]> = vec![7; GIVEN_LEAST - 1].into();
        let mut kept = Kept::default();
        kept.give(Buffer::from_owner(owner.clone()));
        assert_eq!((Arc::strong_count(&owner), kept.length()), (1, GIVEN_LEAST - 1));
    }

    /// A stream of which little is on the way goes through little memory.
    #[test]
    fn the_piece_that_was_confirmed_last_is_written_next() {
        let mut kept = Kept::default();
        kept.write(&[0; 3 * PIECE]);
        let first = |kept: &Kept| kept.bytes(0..1).next().map(<[u8]>::as_ptr);
        kept.confirm(PIECE);
        let second = first(&kept);
        kept.confirm(PIECE);
        kept.confirm(PIECE - 1);
        kept.write(&[0; 10]);
        kept.confirm(1);
        assert_eq!(first(&kept), second);
    }
}
