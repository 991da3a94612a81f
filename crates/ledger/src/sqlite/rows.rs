//! Records as rows, and whole batches out of rows.

use crate::digest::{Digest, Place};
use crate::record::{BATCH_RECORDS_MAX, Batch, Entry, Epoch, Record, Revision, Subject};
use crate::sqlite::damage::Damage;
use crate::sqlite::schema::Point;
use keeptime_model::units::WallTime;
use rusqlite::{Connection, Row};

const POSITION_BITS: u32 = BATCH_RECORDS_MAX.ilog2();
/// The columns that [`Stored::decode`] reads.
pub const COLUMNS: &str = "key, count, epoch, kind, subject, time_unix_nanos, payload, sum, chain";

/// A record with everything that its row says.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Where it stands.
    pub place: Place,
    /// What was written.
    pub record: Record,
    /// Its digest.
    pub sum: Digest,
    /// The chain up to and with it.
    pub chain: Digest,
}

/// The greatest key of the batch `revision`; all greater ones come after it.
pub fn last_key(revision: Revision) -> i64 {
    key(revision, BATCH_RECORDS_MAX as u32 - 1)
}

fn key(revision: Revision, position: u32) -> i64 {
    (revision.get() << POSITION_BITS) as i64 | i64::from(position)
}

/// Writes `batches` after `from`; returns where they end.
pub fn insert(
    connection: &Connection,
    from: Point,
    epoch: Epoch,
    batches: &[Batch],
) -> rusqlite::Result<Point> {
    let mut point = from;
    for batch in batches {
        point.revision = point.revision.next();
        let count = batch.records().len() as u32;
        for (position, record) in (0..).zip(batch.records()) {
            let place = Place { revision: point.revision, position, count, epoch };
            let sum = Digest::of_record(place, record);
            point.chain = point.chain.then(sum);
            insert_row(connection, place, record, sum, point.chain)?;
        }
    }
    Ok(point)
}

fn insert_row(
    connection: &Connection,
    place: Place,
    record: &Record,
    sum: Digest,
    chain: Digest,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO record VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let columns = (
        key(place.revision, place.position),
        place.count,
        place.epoch.get() as i64,
        record.kind.as_str(),
        record.subject.map(|subject| subject.get() as i64),
        record.time.unix_nanos() as i64,
        record.payload.as_slice(),
        sum.0,
        chain.0,
    );
    connection.prepare_cached(sql)?.execute(columns).map(drop)
}

impl Stored {
    /// Reads and verifies a row of [`COLUMNS`].
    pub fn decode(row: &Row<'_>) -> Result<Self, Damage> {
        let key: i64 = row.get(0)?;
        let place = Place {
            revision: Revision::new(key as u64 >> POSITION_BITS),
            position: (key as u64 % BATCH_RECORDS_MAX as u64) as u32,
            count: row.get(1)?,
            epoch: Epoch::new(row.get::<_, i64>(2)? as u64),
        };
        let wrong = || {
            let Place { revision, position, .. } = place;
            Damage::fault(format!("record {position} of revision {revision} was changed"))
        };
        let record = Record {
            kind: row.get_ref(3)?.as_str().ok().and_then(|k| k.parse().ok()).ok_or_else(wrong)?,
            subject: row.get::<_, Option<i64>>(4)?.map(|subject| Subject::new(subject as u64)),
            time: WallTime::from_unix_nanos(row.get::<_, i64>(5)? as u64),
            payload: row.get(6)?,
        };
        let sum = Digest::of_record(place, &record);
        if Digest(row.get(7)?) != sum {
            return Err(wrong());
        }
        Ok(Self { place, record, sum, chain: Digest(row.get(8)?) })
    }

    /// The row's key.
    pub fn key(&self) -> i64 {
        key(self.place.revision, self.place.position)
    }

    /// Writes the row as it was read.
    pub fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        insert_row(connection, self.place, &self.record, self.sum, self.chain)
    }
}

/// Follows rows in order and finds the batches: each whole, with the revision that is next.
#[derive(Debug)]
pub struct Walk {
    /// After the last whole batch; no chain if it is not known, and then the first row's is taken.
    revision: Revision,
    chain: Option<Digest>,
    /// Of the batch that has begun.
    records: Vec<Record>,
}

impl Walk {
    /// From `revision`, with the chain up to there where it is known.
    pub fn from(revision: Revision, chain: Option<Digest>) -> Self {
        Self { revision, chain, records: Vec::new() }
    }

    /// Takes the next row. Returns the batch that it completes, and where that ends.
    pub fn step(&mut self, stored: Stored) -> Result<Option<(Entry, Point)>, Damage> {
        let Stored { place, record, sum, chain } = stored;
        let expected = self.revision.next();
        if place.revision != expected || place.position as usize != self.records.len() {
            return Err(Damage::fault(format!(
                "record {} of revision {expected} is missing",
                self.records.len()
            )));
        }
        if self.chain.is_some_and(|before| before.then(sum) != chain) {
            return Err(Damage::fault(format!(
                "record {} of revision {expected} does not follow the one before",
                place.position
            )));
        }
        self.chain = Some(chain);
        self.records.push(record);
        if self.records.len() < place.count as usize {
            return Ok(None);
        }
        self.revision = expected;
        let batch = Batch::new(std::mem::take(&mut self.records));
        let batch = batch.map_err(|invalid| Damage::fault(invalid.to_string()))?;
        let entry = Entry { revision: expected, epoch: place.epoch, batch };
        Ok(Some((entry, Point { revision: expected, chain })))
    }

    /// Checks that no batch is left half.
    pub fn finish(self) -> Result<(), Damage> {
        if self.records.is_empty() {
            return Ok(());
        }
        let (revision, there) = (self.revision.next(), self.records.len());
        Err(Damage::fault(format!("revision {revision} ends after {there} records")))
    }
}
