//! Snapshots as rows: parts, and one row that makes them a snapshot.

use crate::digest::Digest;
use crate::ledger::SNAPSHOTS_KEPT;
use crate::record::{Revision, SNAPSHOT_PARTS_MAX};
use crate::sqlite::damage::Damage;
use crate::sqlite::schema::Point;
use rusqlite::Connection;

/// A snapshot without its bytes: finished, or as far as it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// The last batch that it covers, and the chain there.
    pub at: Point,
    /// How many parts.
    pub parts: u32,
    /// Of everything.
    pub sum: Digest,
}

impl Outline {
    /// Of a snapshot without parts so far.
    pub fn new(at: Point) -> Self {
        let sum = Digest::of(&[&at.revision.get().to_le_bytes(), &at.chain.0]);
        Self { at, parts: 0, sum }
    }

    /// With another part.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        Self { parts: self.parts + 1, sum: self.sum.then(Digest::of(&[bytes])), ..self }
    }
}

/// The snapshots that are said to be there, newest first, not verified.
pub fn list(connection: &Connection) -> rusqlite::Result<Vec<Outline>> {
    let sql = "SELECT revision, parts, chain, sum FROM snapshot ORDER BY revision DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let revision = Revision::new(row.get::<_, i64>(0)? as u64);
        let at = Point { revision, chain: Digest(row.get(2)?) };
        Ok(Outline { at, parts: row.get(1)?, sum: Digest(row.get(3)?) })
    })?;
    rows.collect()
}

/// Hands every part to `part` in order; then verifies them all together.
pub fn read(
    connection: &Connection,
    snapshot: Outline,
    mut part: impl FnMut(u32, &[u8]) -> rusqlite::Result<()>,
) -> Result<(), Damage> {
    let revision = snapshot.at.revision;
    let mut read = Outline::new(snapshot.at);
    let sql = "SELECT bytes FROM snapshot_part WHERE key >= ?1 AND key < ?2 ORDER BY key";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((key(revision, 0), key(revision.next(), 0)))?;
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        part(read.parts, bytes)?;
        read = read.with(bytes);
    }
    if read == snapshot {
        return Ok(());
    }
    Err(Damage::fault(format!("the snapshot at revision {revision} was changed")))
}

/// Writes a part.
pub fn insert_part(
    connection: &Connection,
    revision: Revision,
    number: u32,
    bytes: &[u8],
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO snapshot_part VALUES (?1, ?2)";
    connection.prepare_cached(sql)?.execute((key(revision, number), bytes)).map(drop)
}

/// Makes the parts that were written a snapshot.
pub fn insert(connection: &Connection, snapshot: Outline) -> rusqlite::Result<()> {
    let Outline { at, parts, sum } = snapshot;
    let sql = "INSERT INTO snapshot VALUES (?1, ?2, ?3, ?4)";
    let columns = (at.revision.get() as i64, parts, at.chain.0, sum.0);
    connection.prepare_cached(sql)?.execute(columns).map(drop)
}

/// Removes the parts of snapshots that were begun and not finished.
pub fn drop_unfinished(connection: &Connection) -> rusqlite::Result<()> {
    let newest = list(connection)?.first().map_or(Revision::ZERO, |newest| newest.at.revision);
    let sql = "DELETE FROM snapshot_part WHERE key >= ?1";
    connection.prepare_cached(sql)?.execute([key(newest.next(), 0)]).map(drop)
}

/// Removes the oldest snapshots that are more than are kept.
pub fn drop_surplus(connection: &Connection) -> rusqlite::Result<()> {
    for surplus in list(connection)?.into_iter().skip(SNAPSHOTS_KEPT) {
        let revision = surplus.at.revision;
        connection
            .prepare_cached("DELETE FROM snapshot WHERE revision = ?1")?
            .execute([revision.get() as i64])?;
        connection
            .prepare_cached("DELETE FROM snapshot_part WHERE key >= ?1 AND key < ?2")?
            .execute([key(revision, 0), key(revision.next(), 0)])?;
    }
    Ok(())
}

fn key(revision: Revision, number: u32) -> i64 {
    (revision.get() * u64::from(SNAPSHOT_PARTS_MAX)) as i64 + i64::from(number)
}
