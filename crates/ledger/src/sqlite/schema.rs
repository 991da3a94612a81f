//! The file's identity and its tables, as text that is compared on every opening.

use crate::digest::Digest;
use crate::record::{Epoch, Revision};
use crate::sqlite::damage::Damage;
use rusqlite::{Connection, OptionalExtension};

/// `KTLG` in the header of the file: what `file(1)` and we know a ledger by.
pub const APPLICATION_ID: i64 = 0x4b54_4c47;
/// Version of the tables below. A change of them needs a new one, and a way from the old.
pub const SCHEMA_VERSION: i64 = 1;

/// `record.key` is revision * 2^12 + position in the batch, `snapshot_part.key` revision * 2^16 +
/// number. The index also finds the records without subject, for compaction.
const TABLES: [(&str, &str); 5] = [
    (
        "meta",
        "CREATE TABLE meta (key INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, \
         compacted_to INTEGER NOT NULL, chain BLOB NOT NULL, sum BLOB NOT NULL) STRICT",
    ),
    (
        "record",
        "CREATE TABLE record (key INTEGER PRIMARY KEY, count INTEGER NOT NULL, \
         epoch INTEGER NOT NULL, kind TEXT NOT NULL, subject INTEGER, \
         time_unix_nanos INTEGER NOT NULL, payload BLOB NOT NULL, sum BLOB NOT NULL, \
         chain BLOB NOT NULL) STRICT",
    ),
    ("record_subject", "CREATE INDEX record_subject ON record (subject)"),
    (
        "snapshot",
        "CREATE TABLE snapshot (revision INTEGER PRIMARY KEY, parts INTEGER NOT NULL, \
         chain BLOB NOT NULL, sum BLOB NOT NULL) STRICT",
    ),
    (
        "snapshot_part",
        "CREATE TABLE snapshot_part (key INTEGER PRIMARY KEY, bytes BLOB NOT NULL) STRICT",
    ),
];

/// What the file is, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Nothing was ever written into it.
    Empty,
    /// A ledger with this schema version.
    Ledger(i64),
    /// A database of another program, with this application id.
    Other(i64),
}

/// Reads what the file is; changes nothing.
pub fn identify(connection: &Connection) -> rusqlite::Result<Identity> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let objects: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (application, version, objects) {
        (0, 0, 0) => Identity::Empty,
        (APPLICATION_ID, version, _) => Identity::Ledger(version),
        (other, _, _) => Identity::Other(other),
    })
}

/// Makes an empty database a ledger at `meta`, all in one step.
pub fn create(connection: &mut Connection, meta: Meta) -> rusqlite::Result<()> {
    let tx = connection.transaction()?;
    for (_, sql) in TABLES {
        tx.execute(sql, [])?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    tx.execute("INSERT INTO meta VALUES (0, 0, 0, x'', x'')", [])?;
    meta.save(&tx)?;
    tx.commit()
}

/// Refuses tables that are not word for word those that [`create`] makes.
pub fn check(connection: &Connection) -> Result<(), Damage> {
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Damage::fault(format!("its journal mode is {mode:?} and not \"wal\"")));
    }
    let mut statement =
        connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name COLLATE BINARY")?;
    let mut rows = statement.query([])?;
    let mut expected = TABLES.iter();
    while let Some(row) = rows.next()? {
        let (name, sql) = (row.get::<_, String>(0)?, row.get::<_, String>(1)?);
        if expected.next() != Some(&(name.as_str(), sql.as_str())) {
            return Err(Damage::fault(format!("its table {name:?} is not that of a ledger")));
        }
    }
    match expected.next() {
        None => Ok(()),
        Some((name, _)) => Err(Damage::fault(format!("its table {name:?} is missing"))),
    }
}

/// The one row about the whole ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The newest writer's.
    pub epoch: Epoch,
    /// Up to here batches may have been thinned out.
    pub compacted: Point,
}

/// A place between two batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// After this batch.
    pub revision: Revision,
    /// The chain of all records up to it.
    pub chain: Digest,
}

impl Meta {
    /// Reads and verifies it.
    pub fn load(connection: &Connection) -> Result<Self, Damage> {
        let sql = "SELECT epoch, compacted_to, chain, sum FROM meta WHERE key = 0";
        let row = connection
            .prepare_cached(sql)?
            .query_row([], |row| {
                let revision = Revision::new(row.get::<_, i64>(1)? as u64);
                let compacted = Point { revision, chain: Digest(row.get(2)?) };
                let epoch = Epoch::new(row.get::<_, i64>(0)? as u64);
                Ok((Self { epoch, compacted }, Digest(row.get(3)?)))
            })
            .optional()?;
        match row {
            Some((meta, sum)) if sum == meta.sum() => Ok(meta),
            Some(_) => Err(Damage::fault("its head row does not match its digest")),
            None => Err(Damage::fault("its head row is missing")),
        }
    }

    /// Overwrites it.
    pub fn save(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE meta SET epoch = ?1, compacted_to = ?2, chain = ?3, sum = ?4";
        let (epoch, revision) = (self.epoch.get() as i64, self.compacted.revision.get() as i64);
        let (chain, sum) = (self.compacted.chain.0, self.sum().0);
        connection.prepare_cached(sql)?.execute((epoch, revision, chain, sum)).map(drop)
    }

    fn sum(&self) -> Digest {
        let (epoch, revision) = (self.epoch.get(), self.compacted.revision.get());
        Digest::of(&[&epoch.to_le_bytes(), &revision.to_le_bytes(), &self.compacted.chain.0])
    }
}
