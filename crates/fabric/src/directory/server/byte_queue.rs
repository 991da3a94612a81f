//! Bytes in order that come at one end and go at the other, piece by piece (pure). What is left is moved when it is no more than
//! what has gone, so that each byte is moved about once, however small the pieces are.

/// Bytes of memory that are kept for what comes next.
const KEPT_MOST: usize = 1 << 20;

/// The bytes.
#[derive(Debug, Default)]
pub struct ByteQueue {
    bytes: Vec<u8>,
    /// How many of these are gone.
    gone: usize,
}

impl ByteQueue {
    /// More comes, which `write` appends. Returns how many bytes that was.
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.bytes.len() - before
    }

    /// All that is there.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    /// How much that is.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.gone
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// So many bytes are gone.
    pub fn consume(&mut self, bytes: usize) {
        self.gone += bytes;
        if self.len() <= self.gone {
            self.bytes.drain(..self.gone);
            self.gone = 0;
            self.bytes.shrink_to(KEPT_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_goes_in_order_and_its_memory_with_it() {
        let mut queue = ByteQueue::default();
        let (mut came, mut gone) = (Vec::new(), Vec::new());
        for round in 0..2000_usize {
            let piece = vec![round as u8; 3000];
            assert_eq!(queue.append(|bytes| bytes.extend_from_slice(&piece)), piece.len());
            came.extend(piece);
            let takes = (round * 7 % 5000).min(queue.len());
            gone.extend_from_slice(&queue.rest()[..takes]);
            queue.consume(takes);
            assert_eq!(queue.len(), came.len() - gone.len());
        }
        gone.extend_from_slice(queue.rest());
        assert!(gone == came);
        assert!(queue.bytes.capacity() > KEPT_MOST);
        queue.consume(queue.len());
        assert!(queue.is_empty() && queue.bytes.capacity() <= KEPT_MOST);
    }

    /// Goal: much that is taken in small pieces costs no more than what it is. Method: how much of it is at another place after
    /// a piece is gone is counted.
    #[test]
    fn each_byte_is_moved_about_once() {
        const LENGTH: usize = 1 << 20;
        let mut queue = ByteQueue::default();
        queue.append(|bytes| bytes.resize(LENGTH, 0));
        let mut moved = 0;
        while !queue.is_empty() {
            let next = queue.rest()[8..].as_ptr();
            queue.consume(8);
            if queue.rest().as_ptr() != next {
                moved += queue.len();
            }
        }
        assert!(moved <= LENGTH, "{moved}");
    }
}
