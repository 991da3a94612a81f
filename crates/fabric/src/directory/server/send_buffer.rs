//! What somebody is told and the kernel has not taken yet (pure): how much of that was asked for, and how much not.

use super::byte_queue::ByteQueue;
use std::collections::VecDeque;

/// Why something is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It is an answer, or all that there is for a server that has just been called: as long as it has to be, and none comes
    /// after it before it is taken.
    Asked,
    /// Something has happened. Nothing bounds how often that is, but that the other end reads it.
    Happened,
}

/// Bytes that wait, by why they were said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Of answers.
    pub asked: usize,
    /// Of what has happened.
    pub happened: usize,
}

impl Waiting {
    fn of(&mut self, cause: Cause) -> &mut usize {
        match cause {
            Cause::Asked => &mut self.asked,
            Cause::Happened => &mut self.happened,
        }
    }
}

/// Bytes, in order.
#[derive(Debug, Default)]
pub struct SendBuffer {
    bytes: ByteQueue,
    /// Why they are said, from the first on: so many bytes for each cause, which is another one than that before it.
    runs: VecDeque<(Cause, usize)>,
    waiting: Waiting,
}

impl SendBuffer {
    /// More is said, which `write` appends.
    pub fn say(&mut self, cause: Cause, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.bytes.append(write);
        *self.waiting.of(cause) += bytes;
        match self.runs.back_mut() {
            Some((last, length)) if *last == cause => *length += bytes,
            _ => self.runs.push_back((cause, bytes)),
        }
    }

    /// All that waits.
    pub fn rest(&self) -> &[u8] {
        self.bytes.rest()
    }

    /// How much that is.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How much that is, by why it was said.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// So many bytes are gone.
    pub fn took(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
        let mut gone = bytes;
        while let Some((cause, length)) = self.runs.front_mut().filter(|_| gone > 0) {
            let of_this = gone.min(*length);
            *self.waiting.of(*cause) -= of_this;
            gone -= of_this;
            *length -= of_this;
            if *length == 0 {
                self.runs.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cause::{Asked, Happened};
    use super::*;

    #[test]
    fn what_waits_is_known_by_why_it_was_said() {
        let mut unsent = SendBuffer::default();
        for (cause, length) in [(Happened, 10), (Asked, 100), (Asked, 50), (Happened, 5)] {
            unsent.say(cause, |bytes| bytes.resize(bytes.len() + length, 0));
        }
        assert_eq!(unsent.runs.len(), 3);
        let mut after = |bytes| {
            unsent.took(bytes);
            let Waiting { asked, happened } = unsent.waiting();
            assert_eq!(asked + happened, unsent.len());
            (asked, happened)
        };
        assert_eq!(
            [0, 4, 7, 148, 1, 5].map(&mut after),
            [(150, 15), (150, 11), (149, 5), (1, 5), (0, 5), (0, 0)]
        );
        assert!(unsent.runs.is_empty());
    }
}
