//! What a message says, lent or given.

/// Bytes to send. Lent ones are copied at most once, into what carries them; given ones move to a
/// receiver in the same process without a copy, and to others without the sender waiting.
#[derive(Debug)]
pub enum Payload<'a> {
    /// They stay with the caller.
    Lent(&'a [u8]),
    /// They do not.
    Given(Vec<u8>),
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
            Self::Given(bytes) => bytes,
        }
    }

    /// Whether they are given.
    pub fn is_given(&self) -> bool {
        matches!(self, Self::Given(_))
    }

    /// The bytes as a buffer of their own: the given one, or a copy.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Lent(bytes) => bytes.to_vec(),
            Self::Given(bytes) => bytes,
        }
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

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Given(bytes)
    }
}
