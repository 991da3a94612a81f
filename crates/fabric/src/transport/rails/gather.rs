//! Frames that arrive by several rails, in their order and each once (pure).

use super::bundle::KEPT_MOST;
use crate::frame::Malformed;
use std::collections::BTreeMap;

/// What has arrived and is not delivered.
#[derive(Debug, Default)]
pub struct Gather {
    /// The number of the frame that is delivered next.
    next: u64,
    /// Those that arrived before their turn.
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
}

impl Gather {
    /// A frame has arrived. One that was there before is dropped.
    ///
    /// # Errors
    /// If the other end cannot have kept all that has arrived since the next one.
    pub fn arrived(&mut self, number: u64, frame: Vec<u8>) -> Result<(), Malformed> {
        if number < self.next || self.early.contains_key(&number) {
            return Ok(());
        }
        self.early_bytes += frame.len();
        if self.early_bytes > KEPT_MOST {
            return Err(Malformed::Unknown("frames of rails"));
        }
        self.early.insert(number, frame);
        Ok(())
    }

    /// Takes the next, if it is there.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let frame = self.early.remove(&self.next)?;
        self.early_bytes -= frame.len();
        self.next += 1;
        Some(frame)
    }

    /// Everything before this was taken.
    pub fn delivered(&self) -> u64 {
        self.next
    }
}
