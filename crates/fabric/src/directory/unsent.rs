//! What somebody is told and the kernel has not taken yet (pure). It may be as long as all that there is, and goes away piece by
//! piece: what is left is moved when it is less than what has gone, so that each byte is moved about once.

/// Bytes that wait at most, but for what is said in parts. Who does not read is disconnected, and has to begin anew.
const UNREAD_MOST: usize = 96 << 20;
/// Bytes of memory that are kept for what comes next.
const KEPT_MOST: usize = 1 << 20;

/// Bytes, in order.
#[derive(Debug, Default)]
pub struct Unsent {
    bytes: Vec<u8>,
    /// How many of these are gone.
    sent: usize,
    /// Bytes of what is said in parts, as far as they may be among the rest.
    parts: usize,
}

impl Unsent {
    /// More is said, which `write` appends. Whether it is one part of several.
    pub fn say(&mut self, is_part: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        if is_part {
            self.parts += self.bytes.len() - before;
        }
    }

    /// All that waits.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How much that is.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// So many bytes are gone.
    pub fn took(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.len() <= self.sent {
            self.bytes.drain(..self.sent);
            self.sent = 0;
            self.bytes.shrink_to(KEPT_MOST);
        }
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

    #[test]
    fn what_is_said_goes_in_order_and_its_memory_with_it() {
        let mut unsent = Unsent::default();
        let (mut said, mut gone) = (Vec::new(), Vec::new());
        for round in 0..2000_usize {
            let piece = vec![round as u8; 3000];
            unsent.say(false, |bytes| bytes.extend_from_slice(&piece));
            said.extend(piece);
            let takes = (round * 7 % 5000).min(unsent.len());
            gone.extend_from_slice(&unsent.rest()[..takes]);
            unsent.took(takes);
            assert_eq!(unsent.len(), said.len() - gone.len());
        }
        gone.extend_from_slice(unsent.rest());
        assert!(gone == said);
        assert!(unsent.bytes.capacity() > KEPT_MOST);
        unsent.took(unsent.len());
        assert!(unsent.is_empty() && unsent.bytes.capacity() <= KEPT_MOST);
    }

    /// Goal: who does not read is found out, and who reads an answer that is long by itself is not taken for that.
    #[test]
    fn who_reads_a_long_answer_is_no_idler() {
        let mut unsent = Unsent::default();
        let say = |unsent: &mut Unsent, is_part, length: usize| {
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
