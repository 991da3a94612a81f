//! The ledger of simulations: a disk in memory, which crashes and fails on request.
//!
//! It does what [`crate::SqliteLedger`] does in the same situation, without clock or file, so that a
//! simulation with a seed always goes the same way.

use crate::error::LedgerError;
use crate::ledger::{Compaction, Ledger, SNAPSHOTS_KEPT, Status};
use crate::record::{
    Batch, Entry, Epoch, READ_BYTES_MAX, Record, Recorded, Revision, Snapshot, SnapshotPart,
    Subject,
};
use keeptime_locks::lock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

const PLACE: &str = "the ledger in memory";

/// What a ledger in memory writes to; it outlives the ledger as a disk does its process. Clones are
/// the same disk.
#[derive(Debug, Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Disk>>);

/// Something that goes wrong with an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No room: nothing is written, and the ledger can be used again.
    Full,
    /// The write fails, and the ledger has to be opened again: that tells whether all is there, or nothing.
    Unknown {
        /// Whether it reaches the disk.
        is_written: bool,
    },
}

#[derive(Debug, Default)]
struct Disk {
    epoch: Epoch,
    head: Revision,
    /// What was answered: a disk that keeps less is damaged.
    acknowledged: Revision,
    compacted_to: Revision,
    /// By revision and position.
    records: BTreeMap<(Revision, usize), Stored>,
    snapshots: VecDeque<Snapshot>,
    /// Appends so far.
    appends: u64,
    /// By the number of the append that they hit.
    faults: BTreeMap<u64, Fault>,
}

#[derive(Debug, Clone)]
struct Stored {
    epoch: Epoch,
    count: usize,
    record: Record,
}

impl MemoryDisk {
    /// Makes the `nth` append from now (1 is the next) fail.
    pub fn fail_append(&self, nth: u64, fault: Fault) {
        let mut disk = self.lock();
        let at = disk.appends + nth;
        disk.faults.insert(at, fault);
    }

    /// Forgets the last `batches`, acknowledged or not, as a disk that lies about its syncs does
    /// when the power fails. Opening is refused then; see [`MemoryDisk::salvage`].
    pub fn lose_tail(&self, batches: u64) {
        let mut disk = self.lock();
        let covered = disk.snapshots.back().map_or(Revision::ZERO, |newest| newest.revision);
        let end = Revision::new(disk.head.get().saturating_sub(batches)).max(covered);
        disk.records.split_off(&(end.next(), 0));
        disk.head = end;
    }

    /// Accepts that what was lost is lost, as [`crate::sqlite::salvage`] does.
    pub fn salvage(&self) -> Revision {
        let mut disk = self.lock();
        disk.acknowledged = disk.head;
        disk.head
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        lock(&self.0)
    }
}

/// A ledger on a [`MemoryDisk`]. Dropping it at any moment is a crash.
#[derive(Debug)]
pub struct MemoryLedger {
    disk: MemoryDisk,
    status: Status,
    begun: Option<Begun>,
    poison: Option<String>,
}

/// A snapshot that is being saved.
#[derive(Debug, Clone)]
struct Begun {
    snapshot: Snapshot,
    parts: u32,
}

impl MemoryLedger {
    /// Opens the ledger on `disk` and fences off every writer before.
    ///
    /// # Errors
    /// [`LedgerError::Corrupt`] if the disk has lost what was acknowledged.
    pub fn open(disk: &MemoryDisk) -> Result<Self, LedgerError> {
        let disk = disk.clone();
        let mut inner = disk.lock();
        if inner.head < inner.acknowledged {
            return Err(LedgerError::Corrupt {
                place: PLACE.into(),
                fault: format!(
                    "the batches end at revision {}, but its writer had acknowledged {}",
                    inner.head, inner.acknowledged
                ),
                last_good_revision: inner.head,
            });
        }
        inner.epoch = Epoch::new(inner.epoch.get() + 1);
        let status = Status {
            epoch: inner.epoch,
            head: inner.head,
            snapshot: inner.snapshots.back().map(|newest| newest.revision),
            compacted_to: inner.compacted_to,
            sync_time: None,
        };
        drop(inner);
        Ok(Self { disk, status, begun: None, poison: None })
    }

    /// The disk, if this is still its writer.
    fn writing(&self) -> Result<MutexGuard<'_, Disk>, LedgerError> {
        if let Some(cause) = self.poison.clone() {
            return Err(LedgerError::Poisoned { place: PLACE.into(), cause });
        }
        let disk = self.disk.lock();
        if disk.epoch == self.status.epoch {
            return Ok(disk);
        }
        let (own, current) = (self.status.epoch, disk.epoch);
        Err(LedgerError::Fenced { place: PLACE.into(), own, current })
    }
}

impl Disk {
    fn write(&mut self, batches: &[Batch]) {
        for batch in batches {
            let (revision, count) = (self.head.next(), batch.records().len());
            for (position, record) in batch.records().iter().enumerate() {
                let stored = Stored { epoch: self.epoch, count, record: record.clone() };
                self.records.insert((revision, position), stored);
            }
            self.head = revision;
        }
    }

    /// What there is about `subject`, oldest first, and in which batch.
    fn about(&self, subject: Subject) -> impl DoubleEndedIterator<Item = (Revision, &Record)> {
        let records =
            self.records.iter().map(|((revision, _), stored)| (*revision, &stored.record));
        records.filter(move |(_, record)| record.subject == Some(subject))
    }
}

/// The first `limit` of `records`, and no more once they have [`READ_BYTES_MAX`].
fn first_of<'a>(
    records: impl Iterator<Item = (Revision, &'a Record)>,
    limit: usize,
) -> Vec<Recorded> {
    let (mut first, mut bytes) = (Vec::new(), 0);
    for (revision, record) in records.take(limit) {
        if bytes >= READ_BYTES_MAX {
            break;
        }
        bytes += record.payload.len();
        first.push(Recorded { revision, record: record.clone() });
    }
    first
}

impl Ledger for MemoryLedger {
    fn status(&self) -> Status {
        self.status
    }

    fn append(&mut self, batches: &[Batch]) -> Result<Revision, LedgerError> {
        if batches.is_empty() {
            return Ok(self.status.head);
        }
        let mut disk = self.writing()?;
        disk.appends += 1;
        let number = disk.appends;
        match disk.faults.remove(&number) {
            None => disk.write(batches),
            Some(Fault::Full) => {
                let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
                return Err(LedgerError::Full { path: PLACE.into(), source: source.into() });
            }
            Some(Fault::Unknown { is_written }) => {
                if is_written {
                    disk.write(batches);
                }
                drop(disk);
                let source = std::io::Error::other("an injected fault");
                let (action, place) = ("write to", PLACE.to_string());
                let error = LedgerError::Store { action, place, source: source.into() };
                self.poison = Some(error.to_string());
                return Err(error);
            }
        }
        disk.acknowledged = disk.head;
        let head = disk.head;
        drop(disk);
        self.status.head = head;
        Ok(head)
    }

    fn read(&self, after: Revision, limit: usize) -> Result<Vec<Entry>, LedgerError> {
        let compacted_to = self.status.compacted_to;
        if after < compacted_to {
            return Err(LedgerError::Compacted { after, compacted_to });
        }
        let disk = self.disk.lock();
        let (mut entries, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
        for ((revision, _), stored) in disk.records.range((after.next(), 0)..) {
            if entries.len() == limit || bytes >= READ_BYTES_MAX {
                break;
            }
            records.push(stored.record.clone());
            if records.len() == stored.count {
                let batch = Batch::new(std::mem::take(&mut records))?;
                bytes += batch.bytes();
                entries.push(Entry { revision: *revision, epoch: stored.epoch, batch });
            }
        }
        Ok(entries)
    }

    fn history(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        let disk = self.disk.lock();
        let mut records = first_of(disk.about(subject).rev(), limit);
        records.reverse();
        Ok(records)
    }

    fn beginning(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        let disk = self.disk.lock();
        Ok(first_of(disk.about(subject), limit))
    }

    fn count(&self, subject: Subject) -> Result<usize, LedgerError> {
        let disk = self.disk.lock();
        Ok(disk.about(subject).count())
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, LedgerError> {
        Ok(self.disk.lock().snapshots.back().cloned())
    }

    fn save_snapshot_part(&mut self, part: SnapshotPart<'_>) -> Result<(), LedgerError> {
        let SnapshotPart { revision, number, is_last, bytes } = part;
        let begun = self.begun.as_ref().map(|begun| (begun.snapshot.revision, begun.parts));
        part.check(self.status.head, self.status.snapshot, begun)?;
        let mut disk = self.writing()?;
        let mut begun = self.begun.clone().filter(|_| number > 0).unwrap_or_else(|| Begun {
            snapshot: Snapshot { revision, state: Vec::new() },
            parts: 0,
        });
        begun.snapshot.state.extend_from_slice(bytes);
        begun.parts += 1;
        if is_last {
            disk.snapshots.push_back(begun.snapshot.clone());
            let surplus = disk.snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
            disk.snapshots.drain(..surplus);
        }
        drop(disk);
        self.begun = Some(begun).filter(|_| !is_last);
        if is_last {
            self.status.snapshot = Some(revision);
        }
        Ok(())
    }

    fn compact(&mut self, forget: &[Subject], limit: usize) -> Result<Compaction, LedgerError> {
        let mut disk = self.writing()?;
        if disk.snapshots.len() == SNAPSHOTS_KEPT {
            disk.compacted_to = disk.snapshots[0].revision;
        }
        let compacted_to = disk.compacted_to;
        let mut about: BTreeMap<Option<Subject>, Vec<(Revision, usize)>> = BTreeMap::new();
        for (key, stored) in disk.records.range(..(compacted_to.next(), 0)) {
            about.entry(stored.record.subject).or_default().push(*key);
        }
        let step = Compaction::step(forget, limit, |subject, limit| {
            let keys = about.remove(&subject).unwrap_or_default();
            let gone = keys.len().min(limit);
            for key in &keys[..gone] {
                disk.records.remove(key);
            }
            Ok::<_, LedgerError>(gone)
        })?;
        drop(disk);
        self.status.compacted_to = compacted_to;
        Ok(step)
    }

    fn kept(&self, kind: &str) -> Result<Vec<(Revision, Subject)>, LedgerError> {
        let disk = self.disk.lock();
        let compacted = disk.records.range(..(self.status.compacted_to.next(), 0));
        let of_kind = compacted.filter(|(_, stored)| stored.record.kind.as_str() == kind);
        let kept = of_kind.filter_map(|((at, _), stored)| Some((*at, stored.record.subject?)));
        Ok(kept.collect())
    }
}
