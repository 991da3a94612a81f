//! What reading a ledger's file can run into: damage, which is told and never guessed around, or a
//! store that cannot be read at the moment.

use crate::error::LedgerError;
use crate::record::Revision;
use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
use std::path::Path;

/// Why a row or a file could not be read.
#[derive(Debug)]
pub enum Damage {
    /// What it says cannot be: the words tell.
    Fault(String),
    /// The store failed; whether that means damage, [`Damage::into_fault`] decides.
    Sql(rusqlite::Error),
}

impl Damage {
    /// Damage that is told by `words`.
    pub fn fault(words: impl Into<String>) -> Self {
        Self::Fault(words.into())
    }

    /// The words for damage; the error of the store if it is about something else.
    pub fn into_fault(self) -> Result<String, rusqlite::Error> {
        match self {
            Self::Fault(words) => Ok(words),
            Self::Sql(error) if is_damage(&error) => Ok(error.to_string()),
            Self::Sql(error) => Err(error),
        }
    }

    /// The error for a caller who was reading the ledger at `path`, good up to `good`.
    pub fn into_error(self, path: &Path, good: Revision) -> LedgerError {
        match self.into_fault() {
            Ok(fault) => corrupt(path, fault, good),
            Err(error) => store_error("read", path, error, good),
        }
    }
}

impl From<rusqlite::Error> for Damage {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// The ledger at `path` is damaged.
pub fn corrupt(path: &Path, fault: impl Into<String>, good: Revision) -> LedgerError {
    let (place, fault) = (path.display().to_string(), fault.into());
    LedgerError::Corrupt { place, fault, last_good_revision: good }
}

/// What an error of the store while trying to `action` means for the caller.
pub fn store_error(
    action: &'static str,
    path: &Path,
    error: rusqlite::Error,
    good: Revision,
) -> LedgerError {
    let place = path.display().to_string();
    match error.sqlite_error_code() {
        _ if is_full(&error) => LedgerError::Full { path: path.into(), source: Box::new(error) },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            LedgerError::Busy { place, source: Box::new(error) }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            corrupt(path, error.to_string(), good)
        }
        _ => LedgerError::Store { action, place, source: Box::new(error) },
    }
}

/// As [`store_error`], where nothing is known to be good.
pub fn failed_to(action: &'static str, path: &Path) -> impl Fn(rusqlite::Error) -> LedgerError {
    move |error| store_error(action, path, error, Revision::ZERO)
}

/// Whether there was no room for the log, the database or the map of the log.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        || error.sqlite_extended_error_code() == Some(SQLITE_IOERR_SHMSIZE)
}

/// Whether an error while reading means that the content is wrong, rather than that it cannot be
/// reached now: a damaged page shows as nearly anything.
fn is_damage(error: &rusqlite::Error) -> bool {
    !matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::OutOfMemory
                | ErrorCode::PermissionDenied
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
        )
    )
}
