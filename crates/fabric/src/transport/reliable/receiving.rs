//! The end of the stream that receives.

use super::KEPT_MOST;
use super::head::{Heard, RANGES_MOST};
use std::collections::BTreeMap;

/// What a piece that is kept counts besides its bytes: its place in the order, and its memory.
const PIECE: usize = 64;
/// What all that is kept counts at most. All that may be on the way fits, in pieces of 64 bytes or more.
const COUNTED_MOST: usize = 2 * KEPT_MOST;

/// The end that receives.
#[derive(Debug, Default)]
pub struct Receiving {
    received: u64,
    /// What has arrived behind a gap, by where it begins. Some overlap others, where their sender has cut anew what goes again.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// What these count.
    counted: usize,
}

impl Receiving {
    /// Bytes have arrived that belong at `offset`. What is next in the stream by that goes to `next`,
    /// piece by piece. Returns whether anything of it was new.
    ///
    /// # Errors
    /// What `next` says.
    pub fn arrived<E>(
        &mut self,
        offset: u64,
        bytes: &[u8],
        mut next: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end <= self.received || bytes.is_empty() {
            return Ok(false);
        }
        if offset > self.received {
            return Ok(self.keep(offset, bytes));
        }
        let new = &bytes[(self.received - offset) as usize..];
        self.received = end;
        next(new)?;
        while let Some(entry) = self.ahead.first_entry()
            && *entry.key() <= self.received
        {
            let (start, bytes) = entry.remove_entry();
            self.counted -= PIECE + bytes.len();
            let known = (self.received - start) as usize;
            if let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) {
                self.received += new.len() as u64;
                next(new)?;
            }
        }
        Ok(true)
    }

    /// Everything before this has arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// So many bytes have arrived that come next, where nothing has arrived behind a gap.
    pub fn went_on(&mut self, bytes: usize) {
        debug_assert!(!self.has_gap(), "they might fill it");
        self.received += bytes as u64;
    }

    /// Whether something has arrived behind what is missing.
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What to say to the other end, which may have `room` bytes on the way at most.
    pub fn heard(&self, room: u32) -> Heard {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, bytes) in &self.ahead {
            let end = start + bytes.len() as u64;
            let is_full = ranges.len() == RANGES_MOST;
            match ranges.last_mut() {
                Some(last) if last.1 >= *start => last.1 = last.1.max(end),
                _ if is_full => break,
                _ => ranges.push((*start, end)),
            }
        }
        Heard { received: self.received, room, ranges }
    }

    /// Keeps what has arrived behind a gap, if it is no further ahead than anything can be that the other end has sent.
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let known = self.ahead.get(&offset).map_or(0, |known| PIECE + known.len());
        let counts = PIECE + bytes.len();
        let ahead = (offset - self.received).saturating_add(bytes.len() as u64);
        let fits = self.counted - known + counts <= COUNTED_MOST;
        if known >= counts || ahead > KEPT_MOST as u64 || !fits {
            return false;
        }
        self.counted = self.counted - known + counts;
        self.ahead.insert(offset, bytes.to_vec());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Malformed;

    fn arrives(receiving: &mut Receiving, offset: u64, bytes: &[u8]) -> bool {
        receiving.arrived(offset, bytes, |_| Ok::<_, Malformed>(())).unwrap()
    }

    /// The other end has at most so much on the way. What is further ahead is none of its bytes, and would never be next.
    #[test]
    fn nothing_is_kept_that_cannot_have_been_sent() {
        let mut receiving = Receiving::default();
        assert!(arrives(&mut receiving, 0, &[0; 10]));
        for offset in [u64::MAX, u64::MAX - 50, 1 << 40, 11 + KEPT_MOST as u64 - 100] {
            assert!(!arrives(&mut receiving, offset, &[0; 100]), "{offset}");
        }
        assert!(!receiving.has_gap());
        let last = 10 + KEPT_MOST as u64 - 100;
        assert!(arrives(&mut receiving, last, &[0; 100]));
        assert_eq!(receiving.heard(0).ranges, [(last, last + 100)]);
    }

    /// Each piece takes memory besides its bytes: many that have none to speak of are not kept.
    #[test]
    fn however_short_the_pieces_are_that_are_kept_they_are_not_many() {
        let mut receiving = Receiving::default();
        let kept = |receiving: &mut Receiving, step: usize, length: usize| {
            let offsets = (step..=KEPT_MOST - length).step_by(step);
            let all = offsets.clone().count();
            (offsets.filter(|at| arrives(receiving, *at as u64, &vec![0; length])).count(), all)
        };
        let (short, _) = kept(&mut receiving, 2, 1);
        assert_eq!(short, COUNTED_MOST / (PIECE + 1));
        // When the gap is filled there is room again, and all that may be on the way has it.
        assert!(arrives(&mut receiving, 0, &vec![0; KEPT_MOST]));
        assert_eq!((receiving.has_gap(), receiving.counted), (false, 0));
        let mut receiving = Receiving::default();
        let (kept, all) = kept(&mut receiving, 64, 64);
        assert_eq!(kept, all);
    }
}
