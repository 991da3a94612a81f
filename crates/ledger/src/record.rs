//! What a ledger holds: records in batches, each batch with a revision; snapshots of the state that
//! the records up to a revision add up to.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::WallTime;
use std::fmt;

/// Most records of a batch: all changes of one decision about a job on 4,096 nodes.
pub const BATCH_RECORDS_MAX: usize = 4_096;
/// Most bytes of a batch of several records, all payloads together: what fits into one request to etcd
/// (1.5 MiB) with room for the rest.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a part of a snapshot, for the same reason; and so that batches wait for one part
/// only.
pub const SNAPSHOT_PART_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a record that is a batch by itself: one thing cannot be written in two. The longest that is
/// decided, 65,536 flows of 120 bytes for one job, fits with all that belongs to it.
pub const RECORD_BYTES_MAX: usize = 12 << 20;
/// With so many bytes of payload a read ends, and the next one goes on: whoever reads holds no more than
/// that and one record.
pub const READ_BYTES_MAX: usize = 4 << 20;
/// Most parts of a snapshot: 64 GiB.
pub const SNAPSHOT_PARTS_MAX: u32 = 1 << 16;
/// Greatest revision: with the position in the batch, or a part's number, it fits into 63 bits.
/// At 10,000 batches a second that is 446 years.
pub const REVISION_MAX: Revision = Revision((1 << 47) - 1);

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// From a plain number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// As a plain number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// How many batches a ledger holds after one of them: the first makes it 1.
    Revision
}
number! {
    /// Which writer in turn: everyone who opens a ledger for writing gets the next, and all before
    /// it can write no more.
    Epoch
}
number! {
    /// What a record is about: the number of a reservation.
    Subject
}

impl Revision {
    /// Before the first batch.
    pub const ZERO: Self = Self(0);

    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One thing that happened or was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What kind of thing; it tells the reader how to read the payload.
    pub kind: Name,
    /// Which reservation it is about. Records with a subject outlast compaction until the subject
    /// is forgotten.
    pub subject: Option<Subject>,
    /// When, by the clock of whoever decided it.
    pub time: WallTime,
    /// The rest; the ledger never looks into it.
    pub payload: Vec<u8>,
}

/// Records that become durable together or not at all: at least one, within [`BATCH_RECORDS_MAX`] and
/// [`BATCH_BYTES_MAX`]; or a single one within [`RECORD_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch(Vec<Record>);

impl Batch {
    /// A batch of `records`.
    ///
    /// # Errors
    /// If there is none, or more than a batch may hold.
    pub fn new(records: Vec<Record>) -> Result<Self, Invalid> {
        if records.is_empty() || records.len() > BATCH_RECORDS_MAX {
            let expected = format!("1 to {BATCH_RECORDS_MAX} records");
            return Err(Invalid::new("batch", format!("{} records", records.len()), expected));
        }
        let most = if records.len() == 1 { RECORD_BYTES_MAX } else { BATCH_BYTES_MAX };
        let batch = Self(records);
        if batch.bytes() > most {
            let expected = format!("at most {most} bytes of payload");
            return Err(Invalid::new("batch", format!("{} bytes", batch.bytes()), expected));
        }
        Ok(batch)
    }

    /// The records, in order.
    pub fn records(&self) -> &[Record] {
        &self.0
    }

    /// All payloads together. O(records).
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|record| record.payload.len()).sum()
    }

    /// The records, in order.
    pub fn into_records(self) -> Vec<Record> {
        self.0
    }
}

/// A batch as it stands in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The ledger's revision after it.
    pub revision: Revision,
    /// Who wrote it.
    pub epoch: Epoch,
    /// What was written.
    pub batch: Batch,
}

/// A record as it stands in a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The revision of its batch.
    pub revision: Revision,
    /// What was written.
    pub record: Record,
}

/// The state that all batches up to a revision add up to, in the words of whoever saved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last batch that it covers.
    pub revision: Revision,
    /// The state; the ledger never looks into it.
    pub state: Vec<u8>,
}

/// A piece of a snapshot that is being saved.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotPart<'a> {
    /// The last batch that the snapshot covers.
    pub revision: Revision,
    /// 0, 1, 2 and so on. Number 0 begins a snapshot and drops one that was never finished.
    pub number: u32,
    /// Whether the snapshot is complete with it.
    pub is_last: bool,
    /// At most [`SNAPSHOT_PART_BYTES_MAX`].
    pub bytes: &'a [u8],
}

impl Snapshot {
    /// In how many parts it is saved: at least one.
    pub fn part_count(&self) -> u32 {
        // A state of more parts than a ledger takes is refused there.
        u32::try_from(self.state.len().div_ceil(SNAPSHOT_PART_BYTES_MAX).max(1)).unwrap_or(u32::MAX)
    }

    /// Part `number` of [`Snapshot::part_count`]; empty behind them.
    pub fn part(&self, number: u32) -> SnapshotPart<'_> {
        let start = (number as usize).saturating_mul(SNAPSHOT_PART_BYTES_MAX);
        let start = start.min(self.state.len());
        let end = self.state.len().min(start + SNAPSHOT_PART_BYTES_MAX);
        SnapshotPart {
            revision: self.revision,
            number,
            is_last: number.checked_add(1) == Some(self.part_count()),
            bytes: &self.state[start..end],
        }
    }

    /// All its parts, in the order in which they are saved.
    pub fn parts(&self) -> impl Iterator<Item = SnapshotPart<'_>> {
        (0..self.part_count()).map(move |number| self.part(number))
    }
}

impl SnapshotPart<'_> {
    /// Checks the bounds that hold for every ledger: `head` is its revision, `newest` that of its
    /// newest snapshot, `begun` the revision and next number of the snapshot that is being saved.
    pub(crate) fn check(
        &self,
        head: Revision,
        newest: Option<Revision>,
        begun: Option<(Revision, u32)>,
    ) -> Result<(), Invalid> {
        let oldest = newest.unwrap_or(Revision::ZERO).next();
        if self.revision < oldest || self.revision > head {
            let expected = if oldest > head {
                format!("a revision after {head}, when there is one")
            } else {
                format!("{oldest} to {head}")
            };
            return Err(Invalid::new("snapshot.revision", self.revision, expected));
        }
        if self.bytes.len() > SNAPSHOT_PART_BYTES_MAX {
            let expected = format!("at most {SNAPSHOT_PART_BYTES_MAX} bytes");
            return Err(Invalid::new("snapshot.part", self.bytes.len(), expected));
        }
        let next = begun.filter(|(revision, _)| *revision == self.revision).map_or(0, |b| b.1);
        if self.number >= SNAPSHOT_PARTS_MAX || (self.number != 0 && self.number != next) {
            let expected = format!("0 or {next}, below {SNAPSHOT_PARTS_MAX}");
            return Err(Invalid::new("snapshot.number", self.number, expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize) -> Record {
        let time = WallTime::default();
        Record { kind: "test".parse().unwrap(), subject: None, time, payload: vec![0; bytes] }
    }

    #[test]
    fn a_batch_has_records_and_bounds() {
        assert!(Batch::new(vec![]).unwrap_err().to_string().contains("1 to 4096 records"));
        assert!(Batch::new(vec![record(0); BATCH_RECORDS_MAX + 1]).is_err());
        let error = Batch::new(vec![record(BATCH_BYTES_MAX), record(1)]).unwrap_err();
        assert!(error.to_string().contains("1048577 bytes"), "{error}");
        let longest = Batch::new(vec![record(RECORD_BYTES_MAX)]).unwrap();
        assert_eq!(longest.bytes(), RECORD_BYTES_MAX);
        assert!(Batch::new(vec![record(RECORD_BYTES_MAX + 1)]).is_err());
    }

    #[test]
    fn parts_add_up_to_the_state() {
        for bytes in [0, 1, SNAPSHOT_PART_BYTES_MAX, SNAPSHOT_PART_BYTES_MAX + 1] {
            let state: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
            let snapshot = Snapshot { revision: Revision::new(3), state };
            let parts: Vec<_> = snapshot.parts().collect();
            let whole: Vec<u8> = parts.iter().flat_map(|p| p.bytes).copied().collect();
            assert_eq!(whole, snapshot.state);
            assert!(parts.iter().enumerate().all(|(at, p)| p.number as usize == at));
            assert!(parts.iter().rev().enumerate().all(|(at, p)| p.is_last == (at == 0)));
        }
    }

    #[test]
    fn a_part_that_does_not_follow_is_refused() {
        let revision = Revision::new(5);
        let part = |number| SnapshotPart { revision, number, is_last: false, bytes: &[] };
        let check = |number, newest: u64, begun| {
            part(number).check(Revision::new(9), Some(Revision::new(newest)), begun).is_ok()
        };
        assert!(check(0, 4, None) && check(0, 4, Some((revision, 3))));
        assert!(check(3, 4, Some((revision, 3))));
        assert!(!check(2, 4, Some((revision, 3))) && !check(1, 4, None));
        assert!(!check(3, 4, Some((Revision::new(6), 3))));
        assert!(!check(0, 5, None), "not newer than the newest");
        assert!(part(0).check(Revision::new(4), None, None).is_err(), "not written yet");
    }
}
