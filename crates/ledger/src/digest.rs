//! Digests by which a ledger knows its own records: XXH3 of 128 bits over every field.
//!
//! They tell damage, not forgery: whoever can write the file can compute them. For that a faster
//! digest is the better one: a restart reads everything twice.

use crate::record::{Epoch, Record, Revision};
use std::fmt;
use twox_hash::xxhash3_128::Hasher;

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
        let kind = record.kind.as_str().as_bytes();
        Self::of(&[
            &place.revision.get().to_le_bytes(),
            &place.position.to_le_bytes(),
            &place.count.to_le_bytes(),
            &place.epoch.get().to_le_bytes(),
            &[kind.len() as u8, u8::from(record.subject.is_some())],
            kind,
            &record.subject.unwrap_or_default().get().to_le_bytes(),
            &record.time.unix_nanos().to_le_bytes(),
            &record.payload,
        ])
    }

    /// The chain after something with digest `sum`, if this is the chain before it.
    #[must_use]
    pub fn then(self, sum: Self) -> Self {
        Self::of(&[&self.0, &sum.0])
    }

    /// Of pieces whose lengths are known, or follow from the pieces before.
    pub fn of(pieces: &[&[u8]]) -> Self {
        let mut hasher = Hasher::new();
        pieces.iter().for_each(|piece| hasher.write(piece));
        Self(hasher.finish_128().to_be_bytes())
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
