//! Snapshots as rows: parts, and one row that makes them a snapshot.

use crate::digest::Digest;
use crate::ledger::SNAPSHOTS_KEPT;
use crate::record::{Revision, SNAPSHOT_PARTS_MAX};
use crate::sqlite::damage::Damage;
use crate::sqlite::schema::Point;
use rusqlite::Connection;

/// A finished snapshot, verified or about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// The last batch that it covers, and the chain there.
    pub at: Point,
    /// How many parts.
    pub parts: u32,
    /// Of everything.
    pub sum: Digest,
}

/// The digest of a snapshot, part by part.
#[derive(Debug, Clone)]
pub struct Summing {
    at: Point,
    parts: u32,
    hasher: blake3::Hasher,
}

impl Summing {
    /// Of a snapshot without parts so far.
    pub fn new(at: Point) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&at.revision.get().to_le_bytes());
        hasher.update(&at.chain.0);
        Self { at, parts: 0, hasher }
    }

    /// Which batch it covers last, and the number of the next part.
    pub fn next(&self) -> (Revision, u32) {
        (self.at.revision, self.parts)
    }

    /// With another part.
    pub fn add(&mut self, bytes: &[u8]) {
        // The length, so that bytes cannot move between parts.
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
        self.parts += 1;
    }

    /// The snapshot that it has become.
    pub fn finish(&self) -> Finished {
        Finished { at: self.at, parts: self.parts, sum: Digest::finish(&self.hasher) }
    }
}

/// The snapshots that are said to be there, newest first, not verified.
pub fn list(connection: &Connection) -> rusqlite::Result<Vec<Finished>> {
    let sql = "SELECT revision, parts, chain, sum FROM snapshot ORDER BY revision DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let revision = Revision::new(row.get::<_, i64>(0)? as u64);
        let at = Point { revision, chain: Digest(row.get(2)?) };
        Ok(Finished { at, parts: row.get(1)?, sum: Digest(row.get(3)?) })
    })?;
    rows.collect()
}

/// Hands every part to `part` in order; then verifies them all together.
pub fn read(
    connection: &Connection,
    snapshot: Finished,
    mut part: impl FnMut(u32, &[u8]) -> rusqlite::Result<()>,
) -> Result<(), Damage> {
    let revision = snapshot.at.revision;
    let mut summing = Summing::new(snapshot.at);
    let sql = "SELECT bytes FROM snapshot_part WHERE key >= ?1 AND key < ?2 ORDER BY key";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((key(revision, 0), key(revision.next(), 0)))?;
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        part(summing.parts, bytes)?;
        summing.add(bytes);
    }
    if summing.finish() == snapshot {
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
pub fn insert(connection: &Connection, snapshot: Finished) -> rusqlite::Result<()> {
    let Finished { at, parts, sum } = snapshot;
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
