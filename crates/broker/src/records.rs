//! Events as records of the ledger, and back: what a broker that starts finds there.

use crate::wire::LeftOut;
use keeptime_engine::book::Snapshot;
use keeptime_engine::{Event, Step};
use keeptime_ledger::record::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use keeptime_ledger::{Batch, Ledger, LedgerError, Record, Recorded, Revision, Subject};
use keeptime_model::Invalid;
use keeptime_model::units::WallTime;
use thiserror::Error;

/// Batches that are read at once: a few MB, or what the ledger returns of longer ones.
const READ_BATCHES: usize = 1_000;
/// Records from the end of a history that are told, and fewer of large ones, as the ledger returns: whoever asks mostly wants
/// to know what happened last.
const HISTORY_LAST: usize = 1_000;
/// Records from the beginning of a longer one: who asked, what was decided on which grounds, and how it began.
const HISTORY_FIRST: usize = 16;
/// The kind of the last record about a reservation.
const FORGOTTEN: &str = "forgotten";

/// Everything that a ledger says about the state.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest snapshot.
    pub snapshot: Option<Snapshot>,
    /// What happened after it.
    pub events: Vec<(WallTime, Event)>,
    /// After the last batch.
    pub head: Revision,
    /// When the last record was made; nothing if it is not kept.
    pub last: Option<WallTime>,
    /// Reservations that were forgotten since the ledger was compacted, and with which batch: their records can be
    /// compacted.
    pub forgotten: Vec<(Revision, Subject)>,
}

/// A ledger does not hold the records of a broker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It holds something that this program does not know.
    #[error("the record of kind {kind} at revision {revision} cannot be understood")]
    Strange {
        /// Where.
        revision: Revision,
        /// What it says it is.
        kind: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// An event that is too long for the ledger.
    #[error("an event cannot be recorded")]
    TooLong(#[source] Invalid),
    /// An event that has no JSON form.
    #[error("an event cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
}

/// One event as a record.
///
/// # Errors
/// If it has no JSON form.
pub fn record(time: WallTime, event: &Event) -> Result<Record, RecordError> {
    let payload = serde_json::to_vec(event).map_err(RecordError::Unwritable)?;
    let kind = event.kind().parse().map_err(RecordError::TooLong)?;
    let subject = event.handle().map(|handle| Subject::new(handle.number()));
    Ok(Record { kind, subject, time, payload })
}

/// The event of a record.
///
/// # Errors
/// If it is of another version.
pub fn event(recorded: &Recorded) -> Result<Event, RecordError> {
    read_event(recorded.revision, &recorded.record)
}

/// What a step has to make durable: one batch, or as many as it takes; an event that is longer than a batch
/// of several may be has one to itself. They are to become durable together: one event may make room for what another
/// one of the same step takes.
///
/// # Errors
/// If an event is longer than a record may be.
pub fn batches(step: &Step) -> Result<Vec<Batch>, RecordError> {
    let mut batches = Vec::new();
    let (mut records, mut bytes) = (Vec::new(), 0);
    for event in &step.events {
        let record = record(step.time, event)?;
        let length = record.payload.len();
        if records.len() == BATCH_RECORDS_MAX || bytes + length > BATCH_BYTES_MAX {
            batches.extend(batch(std::mem::take(&mut records))?);
            bytes = 0;
        }
        bytes += length;
        records.push(record);
    }
    batches.extend(batch(records)?);
    Ok(batches)
}

fn batch(records: Vec<Record>) -> Result<Option<Batch>, RecordError> {
    if records.is_empty() {
        return Ok(None);
    }
    Batch::new(records).map(Some).map_err(RecordError::TooLong)
}

/// Reads what a ledger says about the state. O(what happened since the last compaction).
///
/// # Errors
/// If it cannot be read or understood.
pub fn find(ledger: &dyn Ledger) -> Result<Found, RecordError> {
    let status = ledger.status();
    let mut found = Found { head: status.head, ..Found::default() };
    let mut covered = Revision::ZERO;
    if let Some(saved) = ledger.snapshot()? {
        covered = saved.revision;
        let strange = |source| RecordError::Strange {
            revision: saved.revision,
            kind: "snapshot".into(),
            source,
        };
        found.snapshot = Some(serde_json::from_slice(&saved.state).map_err(strange)?);
    }
    let mut after = status.compacted_to;
    loop {
        let entries = ledger.read(after, READ_BATCHES)?;
        let Some(last) = entries.last() else { return Ok(found) };
        after = last.revision;
        for entry in &entries {
            for record in entry.batch.records() {
                found.last = Some(record.time);
                // What a snapshot covers is read for what was forgotten alone.
                if entry.revision <= covered && record.kind.as_str() != FORGOTTEN {
                    continue;
                }
                let event = read_event(entry.revision, record)?;
                if let (Event::Forgotten { .. }, Some(subject)) = (&event, record.subject) {
                    found.forgotten.push((entry.revision, subject));
                }
                if entry.revision > covered {
                    found.events.push((record.time, event));
                }
            }
        }
    }
}

/// Reservations that were forgotten and are not gone, though the ledger was compacted beyond that: a broker ended, or its disk
/// was full, while it did so. Of each the record that says so goes last. O(what is kept of what was compacted).
///
/// # Errors
/// If the ledger cannot be read.
pub fn left_over(ledger: &dyn Ledger) -> Result<Vec<(Revision, Subject)>, LedgerError> {
    ledger.kept(FORGOTTEN)
}

/// Records that the clock is right, which shows `now`, where the last record is of later: so brokers go on from now. What that
/// was, if it was so.
///
/// # Errors
/// If the ledger cannot be read or written.
pub fn accept_clock(
    ledger: &mut dyn Ledger,
    now: WallTime,
) -> Result<Option<WallTime>, RecordError> {
    let Some(recorded) = find(ledger)?.last.filter(|last| *last > now) else { return Ok(None) };
    let event = Event::ClockAccepted { recorded_unix_nanos: recorded };
    ledger.append(&Vec::from_iter(batch(vec![record(now, &event)?])?))?;
    Ok(Some(recorded))
}

/// The first and the last records about a reservation, oldest first, and what is left out between them. A job whose share is
/// corrected for days has hundreds of thousands, of about 1 kB each.
///
/// # Errors
/// If the ledger cannot be read.
pub fn history(
    ledger: &dyn Ledger,
    subject: Subject,
) -> Result<(Vec<Recorded>, Option<LeftOut>), LedgerError> {
    let last = ledger.history(subject, HISTORY_LAST)?;
    let before = ledger.count(subject)?.saturating_sub(last.len());
    let mut records = ledger.beginning(subject, before.min(HISTORY_FIRST))?;
    let (after, count) = (records.len(), before.saturating_sub(records.len()));
    records.extend(last);
    Ok((records, (count > 0).then_some(LeftOut { after, count })))
}

fn read_event(revision: Revision, record: &Record) -> Result<Event, RecordError> {
    serde_json::from_slice(&record.payload).map_err(|source| RecordError::Strange {
        revision,
        kind: record.kind.to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_engine::cluster::FLOWS_MAX;
    use keeptime_engine::event::Modified;
    use keeptime_ledger::{MemoryDisk, MemoryLedger, Snapshot as Saved};
    use keeptime_model::assignment::{CpuMechanism, TrafficClass};
    use keeptime_model::extension::{Extension, ExtensionFlow};
    use keeptime_model::name::Name;
    use keeptime_model::pattern::{Pattern, RankFlow};
    use keeptime_model::reservation::{Ask, Grant, Handle, NodeChoice, Request, Resources};
    use keeptime_model::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm};

    fn ended(number: u64) -> Event {
        Event::Ended { handle: Handle::new(number) }
    }

    fn step(events: Vec<Event>) -> Step {
        Step { time: WallTime::from_unix_nanos(7), events, outputs: Vec::new() }
    }

    #[test]
    fn a_step_of_many_events_is_as_many_batches_as_it_takes() {
        assert!(batches(&step(vec![])).unwrap().is_empty());
        let many = step((0..BATCH_RECORDS_MAX as u64 + 1).map(ended).collect());
        let sizes: Vec<_> = batches(&many).unwrap().iter().map(|b| b.records().len()).collect();
        assert_eq!(sizes, [BATCH_RECORDS_MAX, 1]);
    }

    #[test]
    fn the_longest_event_has_a_batch_to_itself() {
        // What an MPI program may ask for at most, beside a request for as much as can be asked for, fits.
        let nodes: Vec<Name> = (0..4_096).map(|n| format!("n{n:039}").parse().unwrap()).collect();
        let rate = BitsPerSecond::new(u64::MAX);
        let between = |from: u32| (0..4_096).map(move |to| RankFlow { from, to });
        let talk = Pattern::Matrix((4_089..4_096).flat_map(between).collect());
        let cpu = CpuPpm::new(u32::MAX);
        let resources = Resources {
            nodes: NodeChoice::Named(nodes.clone()),
            rank_cpu_ppm: vec![cpu; 4_096],
            pattern: Some(talk.clone()),
            ..Resources::nothing()
        };
        let flow = ExtensionFlow {
            from: 4_095,
            to: 4_094,
            bits_per_second: rate,
            burst_bytes: Some(Bytes::new(u64::MAX)),
            class: TrafficClass::LowLatency,
        };
        let grant = Grant {
            nodes,
            cpu_ppm: cpu,
            rank_cpu_ppm: vec![cpu; 4_096],
            later: None,
            cpu_period_nanos: None,
            cpu_mechanism: CpuMechanism::Auto,
            pattern: Some(talk),
            bits_per_second: rate,
            disk_read_bytes_per_second: BytesPerSecond::default(),
            disk_write_bytes_per_second: BytesPerSecond::default(),
            promise: None,
            services: Vec::new(),
            extension: Extension { flows: vec![flow; FLOWS_MAX], ..Extension::default() },
        };
        let modified = Modified {
            by: "ada".parse().unwrap(),
            request: Request::new(Ask::Resources(resources)),
            from_unix_nanos: WallTime::default(),
            until_unix_nanos: None,
            grant,
            decision: None,
        };
        let longest = Event::Modified { handle: Handle::new(2), modified: Box::new(modified) };
        let batches = batches(&step(vec![ended(1), longest, ended(3)])).unwrap();
        let sizes: Vec<_> = batches.iter().map(|batch| batch.records().len()).collect();
        assert_eq!(sizes, [1, 1, 1]);
        assert!(batches[1].bytes() > 7 << 20, "{} bytes", batches[1].bytes());
    }

    #[test]
    fn what_was_written_is_found_and_what_a_snapshot_covers_is_not_read_again() {
        let disk = MemoryDisk::default();
        let mut ledger = MemoryLedger::open(&disk).unwrap();
        let forgotten = Event::Forgotten { handle: Handle::new(3) };
        for events in [vec![ended(1), forgotten], vec![ended(2)]] {
            ledger.append(&batches(&step(events)).unwrap()).unwrap();
        }
        let all = find(&ledger).unwrap();
        assert_eq!(all.events.len(), 3);
        assert_eq!(all.forgotten, [(Revision::new(1), Subject::new(3))]);
        let state = serde_json::to_vec(&keeptime_engine::book::Book::default().snapshot()).unwrap();
        ledger.save_snapshot(&Saved { revision: Revision::new(1), state }).unwrap();
        let rest = find(&ledger).unwrap();
        assert_eq!(rest.events, [(WallTime::from_unix_nanos(7), ended(2))]);
        assert_eq!((rest.forgotten, rest.head), (all.forgotten, Revision::new(2)));
        assert_eq!(rest.last, Some(WallTime::from_unix_nanos(7)));
    }

    // Goal: that a snapshot is the last that was written hides no time. Method: all is covered, and then something is accepted.
    #[test]
    fn a_clock_is_accepted_once_and_only_where_more_is_recorded() {
        let at = WallTime::from_unix_nanos;
        let mut ledger = MemoryLedger::open(&MemoryDisk::default()).unwrap();
        assert_eq!(accept_clock(&mut ledger, at(5)).unwrap(), None, "nothing is recorded");
        ledger.append(&batches(&step(vec![ended(1)])).unwrap()).unwrap();
        let state = serde_json::to_vec(&keeptime_engine::book::Book::default().snapshot()).unwrap();
        ledger.save_snapshot(&Saved { revision: Revision::new(1), state }).unwrap();
        assert_eq!(accept_clock(&mut ledger, at(7)).unwrap(), None, "that is what is recorded");
        assert_eq!(accept_clock(&mut ledger, at(5)).unwrap(), Some(at(7)));
        assert_eq!(accept_clock(&mut ledger, at(5)).unwrap(), None, "it was");
        let found = find(&ledger).unwrap();
        let accepted = Event::ClockAccepted { recorded_unix_nanos: at(7) };
        assert_eq!((found.events, found.last), (vec![(at(5), accepted)], Some(at(5))));
    }

    // Goal: however long a history is, what is told of it is bounded, has both ends, and says how much is missing where. Method:
    // lengths around both bounds, among records about another reservation.
    #[test]
    fn a_long_history_is_told_without_its_middle_and_says_so() {
        for length in [1, HISTORY_LAST, HISTORY_LAST + 1, HISTORY_LAST + HISTORY_FIRST, 2_000] {
            let disk = MemoryDisk::default();
            let mut ledger = MemoryLedger::open(&disk).unwrap();
            for number in 0..length as u64 {
                let about = |handle| record(WallTime::from_unix_nanos(number), &ended(handle));
                let records = vec![about(7).unwrap(), about(8).unwrap()];
                ledger.append(&[Batch::new(records).unwrap()]).unwrap();
            }
            let (records, left_out) = history(&ledger, Subject::new(7)).unwrap();
            assert!(records.iter().all(|told| told.record.subject == Some(Subject::new(7))));
            let times: Vec<_> = records.iter().map(|told| told.record.time.unix_nanos()).collect();
            let told = length.min(HISTORY_FIRST + HISTORY_LAST);
            let first = if told < length { HISTORY_FIRST } else { 0 };
            let last = (length + first - told) as u64..length as u64;
            assert_eq!(times, (0..first as u64).chain(last).collect::<Vec<_>>(), "{length}");
            let expected = LeftOut { after: first, count: length - told };
            assert_eq!(left_out, (told < length).then_some(expected), "{length}");
        }
    }

    #[test]
    fn a_record_of_another_version_is_named() {
        let disk = MemoryDisk::default();
        let mut ledger = MemoryLedger::open(&disk).unwrap();
        let mut strange = record(WallTime::default(), &ended(1)).unwrap();
        strange.payload = b"{\"vanished\":1}".to_vec();
        ledger.append(&[Batch::new(vec![strange]).unwrap()]).unwrap();
        let error = find(&ledger).unwrap_err().to_string();
        assert!(error.contains("kind ended at revision 1"), "{error}");
    }
}
