//! The ledger of one broker: an SQLite database in its write-ahead log mode, synced on every write.
//!
//! Beside `PATH` lie `PATH-wal` and `PATH-shm` (SQLite's own, part of the ledger) and `PATH-writer`
//! (the lock, and how far the writer had answered: see `holder`). `sqlite3` may read the ledger
//! while a broker writes it. It has to be on a local file system: locks and syncs of network file
//! systems cannot be relied upon.

mod damage;
mod file;
mod holder;
mod rows;
mod salvage;
mod schema;
mod snapshots;
mod survey;

pub use salvage::{Salvaged, salvage};

use crate::digest::Digest;
use crate::error::LedgerError;
use crate::ledger::{Compaction, Ledger, SNAPSHOTS_KEPT, Status};
use crate::record::{
    Batch, Entry, Epoch, READ_BYTES_MAX, REVISION_MAX, Recorded, Revision, Snapshot, SnapshotPart,
    Subject,
};
use damage::{Damage, corrupt, failed_to, store_error};
use holder::Holder;
use keeptime_model::Invalid;
use rows::{COLUMNS, Stored, Walk, last_key};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use schema::{Meta, Point};
use snapshots::Outline;
use std::path::{Path, PathBuf};
use std::time::Instant;
use survey::{Survey, survey};

/// A ledger in a file, open for writing by nobody else.
///
/// Durable means that the write-ahead log was synced (`synchronous = FULL`): one sync for each write,
/// and two more when the log, of about 4 MB, is moved into the database.
#[derive(Debug)]
pub struct SqliteLedger {
    connection: Connection,
    holder: Holder,
    path: PathBuf,
    status: Status,
    /// The chain at the head.
    chain: Digest,
    /// The snapshot that is being saved.
    begun: Option<Outline>,
    /// The failure after which nobody knows what is durable.
    poison: Option<String>,
}

impl SqliteLedger {
    /// Opens the ledger at `path` and fences off every writer before; makes it if there is nothing.
    /// Checks all of it: O(size), about a second for 500 MB that are in memory.
    ///
    /// # Errors
    /// [`LedgerError::InUse`], [`LedgerError::Corrupt`], [`LedgerError::NotALedger`],
    /// [`LedgerError::Schema`], or that it cannot be opened. Nothing but the lock's file
    /// was changed then.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let (holder, acknowledged) = Holder::take(path)?;
        let connection = file::open(path, acknowledged)?;
        let survey = survey(&connection, acknowledged).map_err(failed_to("read", path))?;
        let meta = whole(&survey, path)?;
        Self::take_over(connection, holder, path, meta, &survey)
    }

    /// Becomes the next writer of a ledger that was found good.
    fn take_over(
        connection: Connection,
        holder: Holder,
        path: &Path,
        meta: Meta,
        survey: &Survey,
    ) -> Result<Self, LedgerError> {
        let epoch = Epoch::new(meta.epoch.get() + 1);
        let mut ledger = Self {
            connection,
            holder,
            path: path.into(),
            status: Status {
                epoch: meta.epoch,
                head: survey.good.revision,
                snapshot: survey.snapshots.first().map(|snapshot| snapshot.at.revision),
                compacted_to: meta.compacted.revision,
                sync_time: None,
            },
            chain: survey.good.chain,
            begun: None,
            poison: None,
        };
        ledger.write("open", |tx, meta| {
            Meta { epoch, ..meta }.save(tx)?;
            Ok(snapshots::drop_unfinished(tx)?)
        })?;
        ledger.status.epoch = epoch;
        ledger.holder.acknowledge(epoch, survey.good);
        ledger.tidy().map_err(failed_to("open", path))?;
        Ok(ledger)
    }

    /// Moves the log into the database, which was found good; from here on so does closing it. After
    /// a sync that failed, the log may be whole in memory only: no record may follow it there.
    fn tidy(&self) -> rusqlite::Result<()> {
        file::empty_log(&self.connection)?;
        let close = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        self.connection.set_db_config(close, false).map(drop)
    }

    /// Makes what `change` does durable in one step, if this is still the newest writer.
    fn write<T>(
        &mut self,
        action: &'static str,
        change: impl FnOnce(&Transaction<'_>, Meta) -> Result<T, Damage>,
    ) -> Result<T, LedgerError> {
        if let Some(cause) = self.poison.clone() {
            return Err(LedgerError::Poisoned { place: self.place(), cause });
        }
        let (own, start) = (self.status.epoch, Instant::now());
        let outcome = commit(&mut self.connection, own, change);
        let error = match outcome {
            Ok(Committed::Done(value)) => {
                self.status.sync_time = Some(start.elapsed().into());
                return Ok(value);
            }
            Ok(Committed::Fenced(current)) => {
                return Err(LedgerError::Fenced { place: self.place(), own, current });
            }
            Err(Damage::Sql(error)) => store_error(action, &self.path, error, self.status.head),
            Err(damage) => damage.into_error(&self.path, self.status.head),
        };
        // What could not be rolled back is not known either.
        if error.needs_reopening() || !self.connection.is_autocommit() {
            self.poison = Some(error.to_string());
        }
        Err(error)
    }

    /// Reads with `query`; what is damaged is told, and how much is good after all.
    fn query<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, Damage>,
    ) -> Result<T, LedgerError> {
        query(&self.connection).map_err(|damage| {
            let good = survey(&self.connection, None).map(|survey| survey.good.revision);
            damage.into_error(&self.path, good.unwrap_or_default())
        })
    }

    /// The first `limit` records about `subject` in this order, `ASC` or `DESC`, and no more once they have
    /// [`READ_BYTES_MAX`].
    fn about(
        &self,
        subject: Subject,
        order: &'static str,
        limit: usize,
    ) -> Result<Vec<Recorded>, LedgerError> {
        self.query(|connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM record WHERE subject = ?1 ORDER BY key {order} LIMIT ?2"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut rows = statement.query((subject.get() as i64, limit))?;
            let (mut records, mut bytes) = (Vec::new(), 0);
            while bytes < READ_BYTES_MAX {
                let Some(row) = rows.next()? else { break };
                let Stored { place, record, .. } = Stored::decode(row)?;
                bytes += record.payload.len();
                records.push(Recorded { revision: place.revision, record });
            }
            Ok(records)
        })
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

impl Ledger for SqliteLedger {
    fn status(&self) -> Status {
        self.status
    }

    fn append(&mut self, batches: &[Batch]) -> Result<Revision, LedgerError> {
        if batches.is_empty() {
            return Ok(self.status.head);
        }
        let Status { epoch, head, .. } = self.status;
        if REVISION_MAX.get() - head.get() < batches.len() as u64 {
            let expected = format!("at most {REVISION_MAX} batches in a ledger");
            return Err(Invalid::new("revision", head, expected).into());
        }
        let from = Point { revision: head, chain: self.chain };
        let end = self.write("write to", |tx, _| Ok(rows::insert(tx, from, epoch, batches)?))?;
        self.holder.acknowledge(epoch, end);
        (self.status.head, self.chain) = (end.revision, end.chain);
        Ok(end.revision)
    }

    fn read(&self, after: Revision, limit: usize) -> Result<Vec<Entry>, LedgerError> {
        let compacted_to = self.status.compacted_to;
        if after < compacted_to {
            return Err(LedgerError::Compacted { after, compacted_to });
        }
        self.query(|connection| {
            let mut entries = Vec::new();
            let mut walk = Walk::from(after, None);
            let sql = format!("SELECT {COLUMNS} FROM record WHERE key > ?1 ORDER BY key");
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query([last_key(after.min(REVISION_MAX))])?;
            let mut bytes = 0;
            while entries.len() < limit && bytes < READ_BYTES_MAX {
                let Some(row) = rows.next()? else { break };
                let Some((entry, _)) = walk.step(Stored::decode(row)?)? else { continue };
                bytes += entry.batch.bytes();
                entries.push(entry);
            }
            walk.finish().map(|()| entries)
        })
    }

    fn history(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        let mut records = self.about(subject, "DESC", limit)?;
        records.reverse();
        Ok(records)
    }

    fn beginning(&self, subject: Subject, limit: usize) -> Result<Vec<Recorded>, LedgerError> {
        self.about(subject, "ASC", limit)
    }

    fn count(&self, subject: Subject) -> Result<usize, LedgerError> {
        self.query(|connection| {
            let sql = "SELECT count(*) FROM record WHERE subject = ?1";
            let mut statement = connection.prepare_cached(sql)?;
            let count: i64 = statement.query_row([subject.get() as i64], |row| row.get(0))?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    fn snapshot(&self) -> Result<Option<Snapshot>, LedgerError> {
        self.query(|connection| {
            let Some(newest) = snapshots::list(connection)?.first().copied() else {
                return Ok(None);
            };
            let mut state = Vec::new();
            snapshots::read(connection, newest, |_, bytes| {
                state.extend_from_slice(bytes);
                Ok(())
            })?;
            Ok(Some(Snapshot { revision: newest.at.revision, state }))
        })
    }

    fn save_snapshot_part(&mut self, part: SnapshotPart<'_>) -> Result<(), LedgerError> {
        let SnapshotPart { revision, number, is_last, bytes } = part;
        let begun = self.begun.map(|begun| (begun.at.revision, begun.parts));
        part.check(self.status.head, self.status.snapshot, begun)?;
        let before = self.begun.filter(|_| number > 0);
        let outline = self.write("save a snapshot in", |tx, _| {
            let before = match before {
                Some(before) => before,
                None => {
                    snapshots::drop_unfinished(tx)?;
                    Outline::new(point_at(tx, revision)?)
                }
            };
            snapshots::insert_part(tx, revision, number, bytes)?;
            let outline = before.with(bytes);
            if is_last {
                snapshots::insert(tx, outline)?;
                snapshots::drop_surplus(tx)?;
            }
            Ok(outline)
        })?;
        self.begun = Some(outline).filter(|_| !is_last);
        if is_last {
            self.status.snapshot = Some(revision);
        }
        Ok(())
    }

    fn compact(&mut self, forget: &[Subject], limit: usize) -> Result<Compaction, LedgerError> {
        let (compacted_to, step) = self.write("compact", |tx, meta| {
            let kept = snapshots::list(tx)?;
            let covered = kept.get(SNAPSHOTS_KEPT - 1).map(|oldest| oldest.at);
            let compacted = match covered {
                Some(covered) if covered.revision > meta.compacted.revision => {
                    // With the first step: batches behind the mark have to be whole.
                    Meta { compacted: covered, ..meta }.save(tx)?;
                    covered.revision
                }
                // What an earlier one has left.
                _ => meta.compacted.revision,
            };
            let step = Compaction::step(forget, limit, |subject, limit| {
                remove(tx, subject, compacted, limit)
            })?;
            Ok((compacted, step))
        })?;
        self.status.compacted_to = compacted_to;
        Ok(step)
    }

    fn kept(&self, kind: &str) -> Result<Vec<(Revision, Subject)>, LedgerError> {
        let compacted_to = self.status.compacted_to;
        self.query(|connection| {
            let sql =
                format!("SELECT {COLUMNS} FROM record WHERE key <= ?1 AND kind = ?2 ORDER BY key");
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query((last_key(compacted_to), kind))?;
            let mut kept = Vec::new();
            while let Some(row) = rows.next()? {
                let Stored { place, record, .. } = Stored::decode(row)?;
                kept.extend(record.subject.map(|subject| (place.revision, subject)));
            }
            Ok(kept)
        })
    }
}

/// What came of a transaction.
enum Committed<T> {
    Done(T),
    /// Another writer has taken over: this one.
    Fenced(Epoch),
}

fn commit<T>(
    connection: &mut Connection,
    own: Epoch,
    change: impl FnOnce(&Transaction<'_>, Meta) -> Result<T, Damage>,
) -> Result<Committed<T>, Damage> {
    // Immediate: nobody can take over between the look at the epoch and the commit.
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let meta = Meta::load(&tx)?;
    if meta.epoch != own {
        return Ok(Committed::Fenced(meta.epoch));
    }
    let value = change(&tx, meta)?;
    tx.commit()?;
    Ok(Committed::Done(value))
}

/// Removes at most `limit` records about `subject` up to `covered`; returns how many.
fn remove(
    tx: &Transaction<'_>,
    subject: Option<Subject>,
    covered: Revision,
    limit: usize,
) -> rusqlite::Result<usize> {
    let sql = "DELETE FROM record WHERE key IN (SELECT key FROM record \
               WHERE subject IS ?1 AND key <= ?2 ORDER BY key LIMIT ?3)";
    let subject = subject.map(|subject| subject.get() as i64);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.prepare_cached(sql)?.execute((subject, last_key(covered), limit))
}

/// The end of the batch `revision`, which is there.
fn point_at(connection: &Connection, revision: Revision) -> Result<Point, Damage> {
    let sql = format!("SELECT {COLUMNS} FROM record WHERE key <= ?1 ORDER BY key DESC LIMIT 1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([last_key(revision)])?;
    let last = rows.next()?.map(Stored::decode).transpose()?;
    match last.filter(|last| last.place.revision == revision) {
        Some(last) => Ok(Point { revision, chain: last.chain }),
        None => Err(Damage::fault(format!("revision {revision} is missing"))),
    }
}

/// The row about the ledger, if nothing at all is wrong.
fn whole(survey: &Survey, path: &Path) -> Result<Meta, LedgerError> {
    match (survey.meta, survey.faults.as_slice()) {
        (Some(meta), []) => Ok(meta),
        (_, faults) => Err(corrupt(path, faults.join("; "), survey.good.revision)),
    }
}
