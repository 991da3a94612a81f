//! What somebody is told and the kernel has not taken yet (pure). It may be as long as all that there is, if that is said in parts.

use super::byte_queue::ByteQueue;

/// Bytes that wait at most, but for what is said in parts. Who does not read is disconnected, and has to begin anew.
const UNREAD_MOST: usize = 96 << 20;
/// Bytes, in order.
#[derive(Debug, Default)]
pub struct SendBuffer {
    bytes: ByteQueue,
    /// Bytes of what is said in parts, as far as they may be among the rest.
    parts: usize,
}

impl SendBuffer {
    /// More is said, which `write` appends. Whether it is one part of several.
    pub fn say(&mut self, is_part: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = self.bytes.append(write);
        if is_part {
            self.parts += bytes;
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

    /// So many bytes are gone.
    pub fn took(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
        self.parts = self.parts.min(self.len());
    }

    /// Whether the other end reads what it is told. That may be long by itself where it is said in parts; nobody is told so much
    /// of changes.
    pub fn is_read(&self) -> bool {
        self.len() - self.parts <= UNREAD_MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who does not read is found out, and who reads an answer that is long by itself is not taken for that.
    #[test]
    fn who_reads_a_long_answer_is_no_idler() {
        let mut unsent = SendBuffer::default();
        let say = |unsent: &mut SendBuffer, is_part, length: usize| {
            unsent.say(is_part, |bytes| bytes.resize(bytes.len() + length, 0));
        };
        say(&mut unsent, true, UNREAD_MOST + 1);
        say(&mut unsent, false, UNREAD_MOST);
        assert!(unsent.is_read());
        say(&mut unsent, false, 1);
        assert!(!unsent.is_read());
        unsent.took(UNREAD_MOST + 2);
        assert!(unsent.is_read());
        // Of the answer nothing can be left.
        unsent.took(unsent.len());
        say(&mut unsent, false, UNREAD_MOST + 1);
        assert!(!unsent.is_read());
    }
}
