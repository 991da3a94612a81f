//! What is good in a damaged ledger, copied into a new one.

use crate::error::LedgerError;
use crate::record::Revision;
use crate::sqlite::damage::{Damage, corrupt, failed_to};
use crate::sqlite::file::{connect, empty_log, make, sync_directory};
use crate::sqlite::holder::Holder;
use crate::sqlite::rows::last_key;
use crate::sqlite::schema::{Meta, Point};
use crate::sqlite::snapshots;
use crate::sqlite::survey::{Order, Survey, for_each, survey};
use keeptime_files::with_suffix;
use rusqlite::{Connection, Transaction};
use std::fs;
use std::path::{Path, PathBuf};

/// What a ledger's path gets for the names of its files.
const FILES: [&str; 4] = ["", "-wal", "-shm", "-writer"];

/// What the new ledger holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// It ends here.
    pub last_good_revision: Revision,
    /// Records that were copied.
    pub records: usize,
    /// What was wrong with the damaged ledger; nothing if it was good after all.
    pub faults: Vec<String>,
    /// Whether records that the state does not need, but `history` shows, may be missing.
    pub lost_history: bool,
}

/// Copies everything up to the last good revision of the ledger at `damaged` into a new one at
/// `into`: snapshots, batches, and what history can be read. The damaged files stay as they are.
///
/// Whoever decides to go on from there gives up what came later: the caller has to ask first. The
/// new ledger knows nothing of what was acknowledged beyond its end.
///
/// # Errors
/// If `into` or a file of its exists, the damaged ledger is in use, cannot be read at all or has no
/// state to go on from, or the new one cannot be written. What was written of the new one is removed.
pub fn salvage(damaged: &Path, into: &Path) -> Result<Salvaged, LedgerError> {
    // A log or a writer's file of another ledger would be taken for the new one's.
    for path in FILES.map(|suffix| with_suffix(into, suffix)) {
        if path.exists() {
            let found = "a file that is there already".into();
            return Err(LedgerError::NotALedger { path, found });
        }
    }
    if !damaged.exists() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(failed("read", damaged)(source));
    }
    let (_holder, acknowledged) = Holder::take(damaged)?;
    Work::begin(into)?.salvage(damaged, acknowledged, into)
}

/// A directory beside the new ledger that is there until it is done, made for it and removed.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        // If it stays, the next one says that it is there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Work {
    fn begin(into: &Path) -> Result<Self, LedgerError> {
        let directory = with_suffix(into, "-salvage");
        fs::create_dir(&directory).map_err(failed("make", &directory))?;
        Ok(Self(directory))
    }

    /// Reading a database may tidy its log: so it is a copy that is read.
    fn salvage(
        &self,
        damaged: &Path,
        acknowledged: Option<Point>,
        into: &Path,
    ) -> Result<Salvaged, LedgerError> {
        let (copy, new) = (self.0.join("damaged.db"), self.0.join("new.db"));
        fs::copy(damaged, &copy).map_err(failed("copy", damaged))?;
        let log = with_suffix(damaged, "-wal");
        if log.exists() {
            let copied = fs::copy(&log, with_suffix(&copy, "-wal"));
            copied.map_err(failed("copy", &log))?;
        }
        let source = connect(&copy).map_err(failed_to("read", damaged))?;
        let survey = survey(&source, acknowledged).map_err(failed_to("read", damaged))?;
        if survey.good.revision == Revision::ZERO && !survey.faults.is_empty() {
            let fault = format!("nothing can be salvaged: {}", survey.faults.join("; "));
            return Err(corrupt(damaged, fault, Revision::ZERO));
        }
        let salvaged = fill(&source, &new, survey)?;
        fs::rename(&new, into).map_err(failed("rename", &new))?;
        sync_directory(into)?;
        Ok(salvaged)
    }
}

/// The new ledger, whole and in one file.
fn fill(source: &Connection, new: &Path, survey: Survey) -> Result<Salvaged, LedgerError> {
    let fill = || -> Result<Salvaged, Damage> {
        let mut target = connect(new)?;
        let meta = survey.meta.unwrap_or_default();
        // Without a chain to where it was compacted, the state goes on from the snapshot only.
        let compacted = if survey.is_unbroken { meta.compacted } else { survey.base };
        make(&mut target, Meta { compacted, ..meta })?;
        let tx = target.transaction()?;
        let salvaged = copy(source, &tx, survey, compacted)?;
        tx.commit()?;
        empty_log(&target)?;
        Ok(salvaged)
    };
    fill().map_err(|damage| damage.into_error(new, Revision::ZERO))
}

fn copy(
    source: &Connection,
    target: &Transaction<'_>,
    survey: Survey,
    compacted: Point,
) -> Result<Salvaged, Damage> {
    for snapshot in survey.snapshots.iter().filter(|s| s.at.revision >= compacted.revision) {
        let revision = snapshot.at.revision;
        snapshots::read(source, *snapshot, |number, bytes| {
            snapshots::insert_part(target, revision, number, bytes)
        })?;
        snapshots::insert(target, *snapshot)?;
    }
    let mut records = 0;
    let tail = (last_key(compacted.revision).saturating_add(1), last_key(survey.good.revision));
    for_each(source, tail, Order::Up, |stored| {
        records += 1;
        Ok(stored.insert(target)?)
    })?;
    let (history, lost_history) = copy_history(source, target, compacted.revision)?;
    Ok(Salvaged {
        last_good_revision: survey.good.revision,
        records: records + history,
        faults: survey.faults,
        lost_history,
    })
}

/// Copies the records up to `covered` that can be read: from the first on, and if one is damaged,
/// from the last back to the damage. Returns how many, and whether any may be lost.
fn copy_history(
    source: &Connection,
    target: &Transaction<'_>,
    covered: Revision,
) -> Result<(usize, bool), Damage> {
    let (mut range, mut records, mut lost) = ((i64::MIN, last_key(covered)), 0, false);
    for order in [Order::Up, Order::Down] {
        let read = for_each(source, range, order, |stored| {
            stored.insert(target)?;
            (range.0, records) = (stored.key() + 1, records + 1);
            Ok(())
        });
        let Err(damage) = read else { break };
        damage.into_fault()?;
        lost = true;
    }
    Ok((records, lost))
}

fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> LedgerError {
    move |source| LedgerError::Store {
        action,
        place: path.display().to_string(),
        source: Box::new(source),
    }
}
