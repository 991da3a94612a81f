//! What in a ledger's file is good: every digest, every chain, every table.
//!
//! Reads the whole file once: O(size).

use crate::record::Revision;
use crate::sqlite::damage::Damage;
use crate::sqlite::rows::{COLUMNS, Stored, Walk, last_key};
use crate::sqlite::schema::{self, Meta, Point};
use crate::sqlite::snapshots::{self, Outline};
use rusqlite::Connection;

/// More faults than this are not listed: they have one cause.
const FAULTS_LISTED: usize = 4;

/// What was found.
#[derive(Debug, Default)]
pub struct Survey {
    /// The row about the ledger, if it is good.
    pub meta: Option<Meta>,
    /// The snapshots that are good, newest first.
    pub snapshots: Vec<Outline>,
    /// Where the state can be rebuilt from: the newest good snapshot, or the beginning.
    pub base: Point,
    /// Where the whole batches end that follow the base.
    pub good: Point,
    /// Whether the batches follow each other from where the ledger was compacted to.
    pub is_unbroken: bool,
    /// Everything that is wrong.
    pub faults: Vec<String>,
}

/// Looks at all of it. `acknowledged` is what the last writers are known to have answered.
///
/// # Errors
/// Only if it cannot be read now; damage is found, not failed on.
pub fn survey(
    connection: &Connection,
    acknowledged: Option<Point>,
) -> Result<Survey, rusqlite::Error> {
    let mut survey = Survey::default();
    survey.store(connection)?;
    if survey.found(schema::check(connection))?.is_none() {
        return Ok(survey);
    }
    survey.meta = survey.found(Meta::load(connection))?;
    survey.snapshots(connection)?;
    survey.thinned(connection)?;
    survey.batches(connection, acknowledged)?;
    Ok(survey)
}

impl Survey {
    /// The value, or nothing and its fault noted.
    fn found<T>(&mut self, outcome: Result<T, Damage>) -> Result<Option<T>, rusqlite::Error> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(damage) => {
                self.fault(damage.into_fault()?);
                Ok(None)
            }
        }
    }

    fn fault(&mut self, fault: String) {
        if self.faults.len() < FAULTS_LISTED && !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// The store's own check of pages, rows and index.
    fn store(&mut self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let check = || -> Result<Vec<String>, Damage> {
            let mut statement = connection.prepare("PRAGMA integrity_check(4)")?;
            let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
            Ok(lines.collect::<Result<_, _>>()?)
        };
        let lines = self.found(check())?.unwrap_or_default();
        lines.into_iter().filter(|line| line != "ok").for_each(|line| self.fault(line));
        Ok(())
    }

    fn snapshots(&mut self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let listed = snapshots::list(connection).map_err(Damage::from);
        for snapshot in self.found(listed)?.unwrap_or_default() {
            let read = snapshots::read(connection, snapshot, |_, _| Ok(()));
            if self.found(read)?.is_some() {
                self.snapshots.push(snapshot);
            }
        }
        let compacted = self.meta.unwrap_or_default().compacted.revision;
        if self.snapshots.iter().any(|snapshot| snapshot.at.revision < compacted) {
            self.fault(format!("it is compacted to {compacted}, beyond a snapshot"));
        }
        Ok(())
    }

    /// What compaction left: each record stands by itself.
    fn thinned(&mut self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let compacted = self.meta.unwrap_or_default().compacted.revision;
        let outcome = for_each(connection, (i64::MIN, last_key(compacted)), Order::Up, |_| Ok(()));
        self.found(outcome)?;
        Ok(())
    }

    /// What compaction did not touch: whole batches in a chain, past every snapshot.
    fn batches(
        &mut self,
        connection: &Connection,
        acknowledged: Option<Point>,
    ) -> Result<(), rusqlite::Error> {
        let start = self.meta.unwrap_or_default().compacted;
        let mut known: Vec<Point> = self.snapshots.iter().map(|snapshot| snapshot.at).collect();
        known.extend(acknowledged);
        let newest = self.snapshots.first().map(|snapshot| snapshot.at);
        let (end, damage) = run(connection, start, &known);
        self.base = newest.unwrap_or_default();
        let reaches_base = end.revision >= self.base.revision;
        self.is_unbroken = damage.is_none() && self.meta.is_some() && reaches_base;
        match damage {
            Some(damage) => self.fault(damage.into_fault()?),
            None => {
                self.expect("a snapshot stands at", end, newest);
                self.expect("its writer had acknowledged", end, acknowledged);
            }
        }
        if newest.is_none() && start.revision > Revision::ZERO {
            self.fault(format!("no snapshot is good, and it is compacted to {}", start.revision));
            return Ok(());
        }
        self.good = if reaches_base { end } else { run(connection, self.base, &known).0 };
        Ok(())
    }

    /// Batches that end before `point` were cut off.
    fn expect(&mut self, what: &str, end: Point, point: Option<Point>) {
        if let Some(point) = point.filter(|point| point.revision > end.revision) {
            let (end, point) = (end.revision, point.revision);
            self.fault(format!("the batches end at revision {end}, but {what} {point}"));
        }
    }
}

/// Follows the whole batches after `start`, through the points that are `known`; returns where they
/// end, and the damage if that is not the end of the ledger.
fn run(connection: &Connection, start: Point, known: &[Point]) -> (Point, Option<Damage>) {
    let mut end = start;
    let mut walk = Walk::from(start.revision, Some(start.chain));
    let agrees =
        |point: Point| known.iter().all(|k| k.revision != point.revision || k.chain == point.chain);
    let range = (last_key(start.revision).saturating_add(1), i64::MAX);
    let outcome = for_each(connection, range, Order::Up, |stored| {
        let Some((_, point)) = walk.step(stored)? else { return Ok(()) };
        if !agrees(point) {
            let revision = point.revision;
            return Err(Damage::fault(format!("revision {revision} is not what was written")));
        }
        end = point;
        Ok(())
    });
    let damage = outcome.and_then(|()| walk.finish()).err();
    (end, damage)
}

/// In which order rows are read: damage in the middle can be approached from both sides.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// Oldest first.
    Up,
    /// Newest first.
    Down,
}

/// Hands each record with a key in `range` (ends included) to `take`, until one is damaged.
pub fn for_each(
    connection: &Connection,
    range: (i64, i64),
    order: Order,
    mut take: impl FnMut(Stored) -> Result<(), Damage>,
) -> Result<(), Damage> {
    let order = match order {
        Order::Up => "ASC",
        Order::Down => "DESC",
    };
    let sql =
        format!("SELECT {COLUMNS} FROM record WHERE key BETWEEN ?1 AND ?2 ORDER BY key {order}");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(range)?;
    while let Some(row) = rows.next()? {
        take(Stored::decode(row)?)?;
    }
    Ok(())
}
