//! How directory servers know each other (pure): each says hail, with a number that it has drawn, and from
//! both numbers and the cluster's key they make a key for each direction. Everything after that is sealed with
//! it: who has not the key can neither begin nor change, repeat or leave out what is said. It can be read, as
//! what directories say can by every program of the cluster.
//!
//! ```text
//!  0        4         6      7      8
//!  | "ktd\n" | version | key? | zero | drawn: 32 bytes |
//! ```

use super::protocol::VERSION;
use crate::door::{ClusterKey, KEY};
use blake3::{Hash, Hasher};
use thiserror::Error;

/// Bytes of a hail.
pub const HAIL: usize = 8 + KEY;
/// Bytes of a seal.
pub const SEAL: usize = KEY;

const MAGIC: [u8; 4] = *b"ktd\n";

/// What each says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hail {
    /// Whether it has a key.
    keyed: bool,
    /// What no other connection has.
    drawn: [u8; KEY],
}

/// Why there is nothing to be said to the other end. What it says itself is the same from its side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Stranger {
    /// Something else.
    #[error("what answers is no daemon of the fabric: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// Another version.
    #[error("it speaks version {0} of the protocol, this one {VERSION}")]
    Version(u16),
    /// A cluster with a key.
    #[error("it has a key, this one has none: start this one with the cluster's --key")]
    Keyed,
    /// A daemon without the cluster's key.
    #[error("it has no key, this one has: start it with the cluster's --key")]
    Keyless,
    /// Its seals are not those of this key.
    #[error("its key is not this one's, or what it says was changed on its way")]
    Key,
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Who has called.
    Caller,
    /// Who was called.
    Called,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Sealer {
    key: [u8; KEY],
    /// Messages so far.
    number: u64,
}

/// Both.
#[derive(Debug)]
pub struct Sealers {
    /// What this end says.
    pub said: Sealer,
    /// What the other says.
    pub heard: Sealer,
}

impl Hail {
    /// Of a daemon with this key, or none; `drawn` at random.
    pub fn new(key: Option<&ClusterKey>, drawn: [u8; KEY]) -> Self {
        Self { keyed: key.is_some(), drawn }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HAIL] {
        let mut bytes = [0; HAIL];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = u8::from(self.keyed);
        bytes[8..].copy_from_slice(&self.drawn);
        bytes
    }

    /// The hail that `bytes` are.
    ///
    /// # Errors
    /// If they are none of this version.
    pub fn decode(bytes: &[u8; HAIL]) -> Result<Self, Stranger> {
        let [m, a, g, i, low, high, keyed, ..] = *bytes;
        if [m, a, g, i] != MAGIC {
            return Err(Stranger::Magic([m, a, g, i]));
        }
        let version = u16::from_le_bytes([low, high]);
        if version != VERSION {
            return Err(Stranger::Version(version));
        }
        Ok(Self { keyed: keyed != 0, drawn: std::array::from_fn(|at| bytes[8 + at]) })
    }

    /// What the end that says this, and has `key`, seals with when the other says `other`. None if neither has
    /// a key.
    ///
    /// # Errors
    /// If one has a key and the other has not.
    pub fn meets(
        &self,
        other: &Self,
        end: End,
        key: Option<&ClusterKey>,
    ) -> Result<Option<Sealers>, Stranger> {
        let key = match (key, other.keyed) {
            (Some(key), true) => key,
            (None, false) => return Ok(None),
            (None, true) => return Err(Stranger::Keyed),
            (Some(_), false) => return Err(Stranger::Keyless),
        };
        let sealer = |sayer: End| {
            let (caller, called) = if end == End::Caller { (self, other) } else { (other, self) };
            let purpose = if sayer == End::Caller { b"caller" } else { b"called" };
            Sealer { key: key.derive(purpose, &[&caller.drawn, &called.drawn]), number: 0 }
        };
        let across = if end == End::Caller { End::Called } else { End::Caller };
        Ok(Some(Sealers { said: sealer(end), heard: sealer(across) }))
    }
}

impl Sealer {
    /// The seal of the next message.
    pub fn seal(&mut self, message: &[u8]) -> [u8; SEAL] {
        self.next(message).into()
    }

    /// Breaks the seal of the next message.
    ///
    /// # Errors
    /// If it is another.
    pub fn open(&mut self, message: &[u8], seal: [u8; SEAL]) -> Result<(), Stranger> {
        // The comparison takes the same time wherever they differ.
        if self.next(message) == Hash::from_bytes(seal) { Ok(()) } else { Err(Stranger::Key) }
    }

    fn next(&mut self, message: &[u8]) -> Hash {
        let number = self.number.to_le_bytes();
        self.number += 1;
        Hasher::new_keyed(&self.key).update(&number).update(message).finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(text: &str) -> ClusterKey {
        ClusterKey::from_text(&text.repeat(32)).unwrap()
    }

    fn hails(keys: [Option<&ClusterKey>; 2]) -> [Hail; 2] {
        [Hail::new(keys[0], [1; KEY]), Hail::new(keys[1], [2; KEY])]
    }

    /// What both ends seal with.
    fn met(caller: &ClusterKey, called: &ClusterKey) -> (Sealers, Sealers) {
        let hails = hails([Some(caller), Some(called)]);
        let met = |own: usize, end, key| hails[own].meets(&hails[1 - own], end, Some(key));
        let (caller, called) = (met(0, End::Caller, caller), met(1, End::Called, called));
        (caller.unwrap().unwrap(), called.unwrap().unwrap())
    }

    #[test]
    fn what_is_sealed_with_the_key_opens_once_in_order_and_in_its_direction() {
        let (mut caller, mut called) = met(&key("a"), &key("a"));
        let first = caller.said.seal(b"first");
        let second = caller.said.seal(b"second");
        assert_eq!(called.heard.open(b"first", first), Ok(()));
        assert_eq!(called.heard.open(b"second", second), Ok(()));
        assert_eq!(called.heard.open(b"second", second), Err(Stranger::Key), "repeated");
        let answer = called.said.seal(b"first");
        assert_ne!(answer, first, "what one says is not what the other says");
        assert_eq!(caller.heard.open(b"First", answer), Err(Stranger::Key), "changed");
        let (mut caller, mut called) = met(&key("a"), &key("a"));
        caller.said.seal(b"left out");
        let second = caller.said.seal(b"second");
        assert_eq!(called.heard.open(b"second", second), Err(Stranger::Key));
        let (mut caller, mut called) = met(&key("a"), &key("b"));
        let seal = caller.said.seal(b"first");
        assert_eq!(called.heard.open(b"first", seal), Err(Stranger::Key));
    }

    #[test]
    fn who_has_no_key_is_told_where_there_is_one() {
        let key = key("a");
        let [with, without] = hails([Some(&key), None]);
        let told = |own: Hail, other, key| own.meets(&other, End::Caller, key).map(drop);
        assert_eq!(told(with, without, Some(&key)), Err(Stranger::Keyless));
        assert_eq!(told(without, with, None), Err(Stranger::Keyed));
        assert!(matches!(without.meets(&without, End::Called, None), Ok(None)));
    }

    #[test]
    fn what_is_no_hail_is_said() {
        let mut bytes = Hail::new(None, [7; KEY]).encode();
        bytes[4] = 99;
        assert_eq!(Hail::decode(&bytes), Err(Stranger::Version(99)));
        bytes[..4].copy_from_slice(b"HTTP");
        assert_eq!(Hail::decode(&bytes), Err(Stranger::Magic(*b"HTTP")));
    }

    proptest! {
        #[test]
        fn hails_are_read_as_they_were_written(keyed in any::<bool>(), drawn in any::<[u8; KEY]>()) {
            let hail = Hail { keyed, drawn };
            prop_assert_eq!(Hail::decode(&hail.encode()), Ok(hail));
        }
    }
}
