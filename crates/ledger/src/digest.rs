//! Digests by which a ledger knows its own records: 128 bits of BLAKE3 over every field.
//!
//! They tell damage, not forgery: whoever can write the file can compute them.

use crate::record::{Epoch, Record, Revision};
use std::fmt;

/// Bytes of a [`Digest`]: a random change goes unnoticed once in 2^128.
pub const DIGEST_BYTES: usize = 16;

/// A digest, or the chain of all digests up to a record.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest(pub [u8; DIGEST_BYTES]);

/// A record's place: it is part of the digest, so that records cannot change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The batch.
    pub revision: Revision,
    /// Which record of the batch, from 0.
    pub position: u32,
    /// How many records the batch has.
    pub count: u32,
    /// Who wrote it.
    pub epoch: Epoch,
}

impl Digest {
    /// Of a record and its place.
    pub fn of_record(place: Place, record: &Record) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&place.revision.get().to_le_bytes());
        hasher.update(&place.position.to_le_bytes());
        hasher.update(&place.count.to_le_bytes());
        hasher.update(&place.epoch.get().to_le_bytes());
        hasher.update(&[record.kind.as_str().len() as u8, u8::from(record.subject.is_some())]);
        hasher.update(record.kind.as_str().as_bytes());
        hasher.update(&record.subject.unwrap_or_default().get().to_le_bytes());
        hasher.update(&record.time.unix_nanos().to_le_bytes());
        hasher.update(&record.payload);
        Self::finish(&hasher)
    }

    /// The chain after a record with digest `sum`, if this is the chain before it.
    #[must_use]
    pub fn then(self, sum: Self) -> Self {
        Self::of(&[&self.0, &sum.0])
    }

    /// Of bytes whose lengths are known.
    pub fn of(pieces: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for piece in pieces {
            hasher.update(piece);
        }
        Self::finish(&hasher)
    }

    /// What `hasher` has come to.
    pub fn finish(hasher: &blake3::Hasher) -> Self {
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..DIGEST_BYTES]);
        Self(digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Subject;
    use keeptime_model::units::WallTime;

    #[test]
    fn every_field_counts() {
        let place =
            Place { revision: Revision::new(1), position: 0, count: 1, epoch: Epoch::new(1) };
        let record = Record {
            kind: "a".parse().unwrap(),
            subject: None,
            time: WallTime::from_unix_nanos(5),
            payload: b"bc".to_vec(),
        };
        let changed = [
            (place, Record { kind: "ab".parse().unwrap(), ..record.clone() }),
            (place, Record { subject: Some(Subject::new(0)), ..record.clone() }),
            (place, Record { time: WallTime::from_unix_nanos(6), ..record.clone() }),
            (place, Record { payload: b"bd".to_vec(), ..record.clone() }),
            (Place { revision: Revision::new(2), ..place }, record.clone()),
            (Place { position: 1, ..place }, record.clone()),
            (Place { count: 2, ..place }, record.clone()),
            (Place { epoch: Epoch::new(2), ..place }, record.clone()),
        ];
        let own = Digest::of_record(place, &record);
        for (place, record) in changed {
            assert_ne!(Digest::of_record(place, &record), own, "{place:?} {record:?}");
        }
        assert_eq!(own.to_string().len(), 32);
    }
}
