//! The database as a file: opened, made, and its log tidied.

use crate::error::LedgerError;
use crate::record::Revision;
use crate::sqlite::damage::{Damage, corrupt, failed_to};
use crate::sqlite::holder;
use crate::sqlite::schema::{self, Identity, Meta, Point, SCHEMA_VERSION};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// How long a write waits for another program that has locked the file: a person with `sqlite3`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest value, and longest row, that is written and read: the longest payload fits
/// (`record::RECORD_BYTES_MAX`), a damaged length does not.
const VALUE_BYTES_MAX: i32 = 16 << 20;
/// Records of a few KiB fill pages of this size; of pages of 4 KiB they leave half empty.
const PAGE_BYTES: u32 = 16 << 10;
/// With how many pages in the log (4 MiB) it is moved into the database.
const LOG_PAGES: u32 = 256;
/// What the log shrinks to after it had to grow.
const LOG_BYTES_KEPT: i64 = 64 << 20;

/// Opens the ledger at `path`, and makes it if there is nothing and nothing is known to have been
/// acknowledged.
pub fn open(path: &Path, acknowledged: Option<Point>) -> Result<Connection, LedgerError> {
    let mut connection = connect(path).map_err(|error| unreadable(path, error))?;
    match schema::identify(&connection).map_err(|error| unreadable(path, error))? {
        Identity::Ledger(SCHEMA_VERSION) => {}
        Identity::Ledger(found) => {
            return Err(LedgerError::Schema { path: path.into(), found, known: SCHEMA_VERSION });
        }
        Identity::Other(id) => {
            let found = format!("another program's database (application id {id})");
            return Err(LedgerError::NotALedger { path: path.into(), found });
        }
        Identity::Empty => {
            refuse_if_it_was_more(path, acknowledged)?;
            make(&mut connection, Meta::default()).map_err(failed_to("create", path))?;
            sync_directory(path)?;
        }
    }
    Ok(connection)
}

/// A database at `path`, whatever it is; an empty one if there is nothing.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // What is damaged stays as it was found.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", LOG_PAGES, |_| Ok(()))?;
    Ok(connection)
}

/// Damage to the first page can look like anything.
fn unreadable(path: &Path, error: rusqlite::Error) -> LedgerError {
    if error.sqlite_error_code() != Some(ErrorCode::NotADatabase) {
        return Damage::from(error).into_error(path, Revision::ZERO);
    }
    let found = "no SQLite database, or one whose first page is damaged".into();
    LedgerError::NotALedger { path: path.into(), found }
}

/// An empty file whose writers are known to have acknowledged something was not always empty.
fn refuse_if_it_was_more(path: &Path, acknowledged: Option<Point>) -> Result<(), LedgerError> {
    let Some(point) = acknowledged.filter(|point| point.revision > Revision::ZERO) else {
        return Ok(());
    };
    let fault = format!(
        "it is empty, but {} says that revision {} was acknowledged (remove that file to begin \
         anew)",
        holder::path_of(path).display(),
        point.revision
    );
    Err(corrupt(path, fault, Revision::ZERO))
}

/// Makes an empty database a ledger at `meta`.
pub fn make(connection: &mut Connection, meta: Meta) -> rusqlite::Result<()> {
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    schema::create(connection, meta)
}

/// Moves the log into the database, unless somebody is reading it.
pub fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))
}

/// SQLite syncs the names of its logs, not that of the database.
pub fn sync_directory(path: &Path) -> Result<(), LedgerError> {
    keeptime_files::sync_directory(path).map_err(|source| LedgerError::Store {
        action: "sync",
        place: keeptime_files::directory(path).display().to_string(),
        source: Box::new(source),
    })
}
