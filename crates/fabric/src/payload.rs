//! What a message says: lent or given when it is sent, and a buffer of its own when it has arrived.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;

/// Bytes to send. Lent ones are copied at most once, into what carries them; given ones move to a
/// receiver in the same context without a copy, and to others without the sender waiting.
#[derive(Debug)]
pub enum Payload<'a> {
    /// They stay with the caller.
    Lent(&'a [u8]),
    /// They do not.
    Given(Buffer),
    /// They are given if the message is sent, which leaves the buffer empty. With [`SendError::WouldBlock`] and
    /// [`SendError::TimedOut`] they are there as before; with any other error they may be.
    ///
    /// [`SendError::WouldBlock`]: crate::SendError::WouldBlock
    /// [`SendError::TimedOut`]: crate::SendError::TimedOut
    Kept(&'a mut Buffer),
}

/// Bytes that a message has for itself: few of them in itself, a vector, or memory of any other kind with its owner. All
/// but other memory is copied when it is cloned.
#[derive(Clone)]
pub struct Buffer(Memory);

#[derive(Clone)]
enum Memory {
    Short(Short),
    Vector(Vec<u8>),
    Owned(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

/// So many bytes need no memory but the message's own. To ask for some takes longer than to move them a few times.
pub(crate) const SHORT_MOST: usize = 64;

/// The first `length` of its bytes count. It is moved as whole words.
#[derive(Clone, Copy)]
struct Short {
    length: usize,
    bytes: [u8; SHORT_MOST],
}

impl Payload<'_> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Given(buffer) => buffer,
            Self::Kept(buffer) => buffer,
        }
    }

    /// Whether they are given.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Lent(_))
    }

    /// The bytes as a buffer of their own: the given one, or a copy.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Lent(bytes) if bytes.len() <= SHORT_MOST => {
                Buffer::short(bytes.len(), |into| into[..bytes.len()].copy_from_slice(bytes))
            }
            Self::Lent(bytes) => bytes.to_vec().into(),
            Self::Given(buffer) => buffer,
            Self::Kept(buffer) => mem::take(buffer),
        }
    }
}

impl Buffer {
    /// Memory of another kind than a vector's, such as a mapped file or a buffer of a pool. `owner` is dropped once, by
    /// whichever thread needs the bytes last: it should not wait, and not call this library. That is before a send that
    /// fails returns, when a receiver in the same context has dropped the message, and otherwise when all of it is sent;
    /// over UDP and one network, of a message of 16 to 64 KiB, when the other end has confirmed all of it, or the connection is
    /// over.
    ///
    /// The bytes have to be the same whenever they are asked for.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Memory::Owned(Arc::new(owner)))
    }

    /// The first `length` of what `fill` writes.
    #[inline(always)]
    pub(crate) fn short(length: usize, fill: impl FnOnce(&mut [u8; SHORT_MOST])) -> Self {
        debug_assert!(length <= SHORT_MOST, "they are among those");
        let mut short = Short { length, bytes: [0; SHORT_MOST] };
        fill(&mut short.bytes);
        Self(Memory::Short(short))
    }

    /// The bytes as a vector: itself, if it is one, and else a copy.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Memory::Vector(bytes) => bytes,
            _ => self.to_vec(),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Short(Short { length, bytes }) => &bytes[..*length],
            Memory::Vector(bytes) => bytes,
            Memory::Owned(owner) => (**owner).as_ref(),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self(Memory::Vector(Vec::new()))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Buffer {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Buffer {}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Vector(bytes))
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Lent(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Lent(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Lent(bytes)
    }
}

impl<'a> From<&'a Buffer> for Payload<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Lent(buffer)
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Given(bytes.into())
    }
}

impl<'a> From<&'a mut Buffer> for Payload<'a> {
    fn from(buffer: &'a mut Buffer) -> Self {
        Self::Kept(buffer)
    }
}

impl From<Buffer> for Payload<'_> {
    fn from(buffer: Buffer) -> Self {
        Self::Given(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_that_is_given_stays_the_same_vector() {
        let bytes = vec![1_u8, 2, 3];
        let place = bytes.as_ptr();
        let buffer = Payload::from(bytes).into_buffer();
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, 3));
        let bytes = buffer.into_vec();
        assert_eq!(bytes.as_ptr(), place);
    }

    /// The last clone drops it, and neither those before nor a copy does.
    #[test]
    fn the_owner_of_memory_is_dropped_with_its_last_use() {
        let owner: Arc<[u8]> = Arc::from([1_u8, 2, 3]);
        let (place, uses) = (owner.as_ptr(), || Arc::strong_count(&owner));
        let buffer = Buffer::from_owner(owner.clone());
        let given = Payload::from(buffer.clone()).into_buffer();
        assert_eq!((given.as_ptr(), uses()), (place, 2));
        drop(buffer);
        assert_eq!(uses(), 2);
        let copy = given.into_vec();
        assert_eq!((copy.as_slice(), uses()), (&[1_u8, 2, 3][..], 1));
    }

    #[test]
    fn what_is_lent_is_copied_and_equal() {
        for length in [0, 3, SHORT_MOST, SHORT_MOST + 1] {
            let bytes: Vec<u8> = (1..).take(length).collect();
            let buffer = Buffer::from_owner(bytes.clone());
            let copy = Payload::from(&buffer).into_buffer();
            assert!(length == 0 || copy.as_ptr() != buffer.as_ptr());
            assert_eq!(copy, buffer);
            assert_eq!(copy.len(), length);
            assert_ne!(copy, [1_u8, 2]);
            assert_eq!(copy.clone().into_vec(), bytes);
        }
        assert_eq!(Buffer::default(), b"");
    }
}
