//! The end of the stream that receives.

use super::KEPT_MOST;
use super::head::{Heard, RANGES_MOST};
use std::collections::BTreeMap;

/// The end that receives.
#[derive(Debug, Default)]
pub struct Receiving {
    received: u64,
    /// What has arrived behind a gap, by where it begins. Some overlap others, where their sender has cut anew what goes again.
    ahead: BTreeMap<u64, Vec<u8>>,
    kept: usize,
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
            self.kept -= bytes.len();
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

    fn keep(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let known = self.ahead.get(&offset).map_or(0, Vec::len);
        let fits = self.kept + bytes.len() <= KEPT_MOST;
        if known >= bytes.len() || !fits {
            return false;
        }
        self.kept += bytes.len() - known;
        self.ahead.insert(offset, bytes.to_vec());
        true
    }
}
