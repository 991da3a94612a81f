//! What every ledger does, wherever it keeps its records.

use crate::error::LedgerError;
use crate::record::{Batch, Entry, Epoch, Recorded, Revision, Snapshot, SnapshotPart, Subject};
use keeptime_model::units::Nanos;

/// How many finished snapshots a ledger keeps: one may turn out to be damaged. Compaction removes
/// what all of them cover.
pub const SNAPSHOTS_KEPT: usize = 2;
/// Subjects that one step of compaction forgets: batches wait for it, some milliseconds, also where there is
/// nothing about most of them.
pub const COMPACTION_SUBJECTS_MAX: usize = 256;

/// A durable sequence of batches, open for the one writer that holds its newest [`Epoch`].
///
/// Opening is the implementation's own affair; it fences off every writer before. Whoever restarts
/// loads [`Ledger::snapshot`], then [`Ledger::read`]s what came after it until nothing is left.
///
/// All methods block; those that write until it is durable. After an error for which
/// [`LedgerError::needs_reopening`] holds the outcome is not known: every further write is refused,
/// and the ledger has to be opened again, which tells.
pub trait Ledger: Send {
    /// Where the ledger stands. Asks nobody: what this writer knows.
    fn status(&self) -> Status;

    /// Makes `batches` durable in this order, each with a revision of its own, all in one step: if
    /// this fails, or the machine does, none is there or (outcome unknown) all of them are. Returns
    /// the revision after the last. No batches are no change. One sync.
    ///
    /// # Errors
    /// [`LedgerError::Fenced`] if another writer has taken over; [`LedgerError::Full`] if there is
    /// no room, and the ledger can be used again when there is; otherwise if it cannot be written.
    fn append(&mut self, batches: &[Batch]) -> Result<Revision, LedgerError>;

    /// At most `limit` batches after revision `after`, in order, and no more once they have
    /// [`READ_BYTES_MAX`](crate::record::READ_BYTES_MAX); none if that is the end.
    ///
    /// # Errors
    /// [`LedgerError::Compacted`] if some of them are gone: a snapshot covers them.
    fn read(&self, after: Revision, limit: usize) -> Result<Vec<Entry>, LedgerError>;

    /// The last `limit` records about `subject`, oldest first, and no older ones once they have
    /// [`READ_BYTES_MAX`](crate::record::READ_BYTES_MAX): also what a snapshot covers, until the subject
    /// is forgotten.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn history(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError>;

    /// The first `limit` records about `subject`, oldest first, and no later ones once they have
    /// [`READ_BYTES_MAX`](crate::record::READ_BYTES_MAX).
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn beginning(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError>;

    /// How many records about `subject` there are. O(that many), without a look into them.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn count(&self, subject: Subject) -> Result<usize, LedgerError>;

    /// The newest finished snapshot.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn snapshot(&self) -> Result<Option<Snapshot>, LedgerError>;

    /// Saves a part of a snapshot; with the last one it becomes [`Ledger::snapshot`], and the
    /// ledger keeps the newest `SNAPSHOTS_KEPT`. A snapshot that was not finished before the
    /// ledger was opened again is gone. One sync.
    ///
    /// # Errors
    /// [`LedgerError::Invalid`] if the part does not follow the one before, or the revision is not
    /// between the newest snapshot and the head; as [`Ledger::append`] otherwise.
    fn save_snapshot_part(&mut self, part: SnapshotPart<'_>) -> Result<(), LedgerError>;

    /// Removes at most `limit` of the records that all kept snapshots cover and that have no
    /// subject, or one of the first [`COMPACTION_SUBJECTS_MAX`] of `forget`; of each the oldest first. To be repeated
    /// while there are more, without those that are forgotten. One sync.
    ///
    /// From the first step on [`Ledger::read`] reaches back no further than to what will be gone. So whoever does not
    /// take the last one has to remember whom to forget, or to find them by [`Ledger::kept`].
    ///
    /// # Errors
    /// As [`Ledger::append`].
    fn compact(&mut self, forget: &[Subject], limit: usize) -> Result<Compaction, LedgerError>;

    /// Who the records of this kind are about that stand up to [`Status::compacted_to`], and where, oldest first. O(what
    /// there is up to there).
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn kept(&self, kind: &str) -> Result<Vec<(Revision, Subject)>, LedgerError>;

    /// Saves `snapshot` in one go: [`Ledger::save_snapshot_part`] for each of its parts.
    ///
    /// # Errors
    /// As [`Ledger::save_snapshot_part`]; the snapshot before is still the newest.
    fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), LedgerError> {
        snapshot.parts().try_for_each(|part| self.save_snapshot_part(part))
    }
}

/// Where a ledger stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// This writer's.
    pub epoch: Epoch,
    /// After the last batch.
    pub head: Revision,
    /// Of the newest finished snapshot.
    pub snapshot: Option<Revision>,
    /// [`Ledger::read`] reaches back to the batch after this one.
    pub compacted_to: Revision,
    /// What the last write took, sync included; nothing before the first, and where nothing is
    /// synced. It is the figure to watch for a sick disk.
    pub sync_time: Option<Nanos>,
}

/// What a step of compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    /// Records that were removed.
    pub removed: usize,
    /// How many of those that are to be forgotten are, from the first on.
    pub forgotten: usize,
    /// Whether another step may remove more.
    pub has_more: bool,
}

impl Compaction {
    /// A step of at most `limit` records, where `remove` removes at most so many about a subject, or without one, and
    /// tells how many.
    pub(crate) fn step<E>(
        forget: &[Subject],
        limit: usize,
        mut remove: impl FnMut(Option<Subject>, usize) -> Result<usize, E>,
    ) -> Result<Self, E> {
        let mut removed = remove(None, limit)?;
        let mut forgotten = 0;
        let mut subjects = forget.iter().take(COMPACTION_SUBJECTS_MAX);
        while removed < limit
            && let Some(subject) = subjects.next()
        {
            removed += remove(Some(*subject), limit - removed)?;
            // Of the one at which the limit is reached there may be more.
            forgotten += usize::from(removed < limit);
        }
        let has_more = limit > 0 && (removed == limit || forgotten < forget.len());
        Ok(Self { removed, forgotten, has_more })
    }
}
