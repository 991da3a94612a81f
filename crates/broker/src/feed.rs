//! What is durable, in order, for whoever watches: the last events from memory, older ones from the
//! ledger. A watcher that is slow reads older ones; nobody waits for it.

use crate::records::{RecordError, event};
use crate::wire::Happened;
use keeptime_ledger::record::READ_BYTES_MAX;
use keeptime_ledger::{Entry, LedgerError, Recorded, Revision, WriteError, Writer};
use keeptime_locks::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use thiserror::Error;
use tokio::sync::watch;

/// Batches that are kept in memory: what a watcher may lag behind without reading the ledger.
const RECENT_MAX: usize = 4_096;
/// Bytes of their records; what is made of them takes two or three times as much.
const RECENT_BYTES_MAX: usize = 32 << 20;
/// Batches that one read returns, if they are short.
const READ_BATCHES: usize = 256;

/// The durable events. Clones are one feed.
#[derive(Debug, Clone)]
pub struct Feed {
    recent: Arc<Mutex<Recent>>,
    head: watch::Sender<Revision>,
}

#[derive(Debug)]
struct Recent {
    /// Everything after this revision is in `batches`.
    after: Revision,
    batches: VecDeque<Kept>,
    /// Of all their records.
    bytes: usize,
}

/// A batch, and the bytes of its records.
#[derive(Debug)]
struct Kept {
    happened: Arc<[Happened]>,
    bytes: usize,
}

/// Events cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FeedError {
    /// They were compacted.
    #[error("events up to revision {compacted_to} are no longer kept one by one")]
    Gone {
        /// Events after it are there.
        compacted_to: Revision,
    },
    /// The ledger's writer does not answer.
    #[error(transparent)]
    Writer(#[from] WriteError),
    /// A record is not of this version.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl Feed {
    /// A feed of what comes after `head`.
    pub fn after(head: Revision) -> Self {
        let recent = Recent { after: head, batches: VecDeque::new(), bytes: 0 };
        Self { recent: Arc::new(Mutex::new(recent)), head: watch::Sender::new(head) }
    }

    /// The batch at `revision`, whose records have so many bytes, became durable; batches come in order.
    pub fn publish(&self, revision: Revision, happened: Arc<[Happened]>, bytes: usize) {
        lock(&self.recent).push(Kept { happened, bytes });
        self.head.send_replace(revision);
    }

    /// The last revision that became durable.
    pub fn head(&self) -> Revision {
        *self.head.borrow()
    }

    /// Told whenever there is more.
    pub fn heads(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// All that came after this revision is in memory.
    pub fn recent_after(&self) -> Revision {
        lock(&self.recent).after
    }

    /// The batches after `after`, in order, where they are in memory; some of them, if that is much. Nothing where they are
    /// older than that: [`of_ledger`] has these.
    pub fn recent(&self, after: Revision) -> Option<Vec<Arc<[Happened]>>> {
        let recent = lock(&self.recent);
        (after >= recent.after).then(|| recent.read(after))
    }
}

/// Batches of the ledger, and how long they are there.
#[derive(Debug, Default)]
pub struct Old {
    /// In order.
    pub batches: Vec<Arc<[Happened]>>,
    /// Bytes of their records.
    pub bytes: usize,
}

/// Some of the batches after `after`, as the ledger has them. Blocks, and so does what is to be recorded meanwhile.
///
/// # Errors
/// If they were compacted, or the ledger cannot be read.
pub fn of_ledger(writer: &Writer, after: Revision) -> Result<Old, FeedError> {
    let entries = writer.call(move |ledger| ledger.read(after, READ_BATCHES))?;
    let entries = entries.map_err(|error| match error {
        LedgerError::Compacted { compacted_to, .. } => FeedError::Gone { compacted_to },
        other => FeedError::Writer(other.into()),
    })?;
    let mut old = Old::default();
    for entry in entries {
        old.bytes += entry.batch.bytes();
        old.batches.push(happened(entry)?.into());
    }
    Ok(old)
}

impl Recent {
    fn push(&mut self, kept: Kept) {
        self.bytes += kept.bytes;
        self.batches.push_back(kept);
        while self.batches.len() > RECENT_MAX || self.bytes > RECENT_BYTES_MAX {
            let Some(oldest) = self.batches.pop_front() else { return };
            self.bytes -= oldest.bytes;
            self.after = self.after.next();
        }
    }

    /// As much as one read of the ledger would return.
    fn read(&self, after: Revision) -> Vec<Arc<[Happened]>> {
        let skipped = (after.get() - self.after.get()) as usize;
        let (mut all, mut bytes) = (Vec::new(), 0);
        for kept in self.batches.iter().skip(skipped).take(READ_BATCHES) {
            if bytes >= READ_BYTES_MAX {
                break;
            }
            bytes += kept.bytes;
            all.push(Arc::clone(&kept.happened));
        }
        all
    }
}

fn happened(entry: Entry) -> Result<Vec<Happened>, RecordError> {
    let revision = entry.revision;
    let records = (0..).zip(entry.batch.into_records());
    let read = |(index, record)| {
        let recorded = Recorded { revision, record };
        let event = event(&recorded)?;
        Ok(Happened::new(revision, Some(index), recorded.record.time, event))
    };
    records.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::batches;
    use keeptime_engine::{Event, Step};
    use keeptime_ledger::{MemoryDisk, MemoryLedger};
    use keeptime_model::reservation::Handle;
    use keeptime_model::units::WallTime;

    /// A feed of so many batches of one event, as if the record of each had so many bytes.
    fn fed(count: u64, bytes: usize) -> (Writer, Feed) {
        let writer = Writer::start(MemoryLedger::open(&MemoryDisk::default()).unwrap()).unwrap();
        let feed = Feed::after(Revision::ZERO);
        for number in 1..=count {
            let event = Event::Ended { handle: Handle::new(number) };
            let time = WallTime::from_unix_nanos(number);
            let step = Step { time, events: vec![event.clone()], outputs: vec![] };
            let revision = writer.append(batches(&step).unwrap().remove(0)).unwrap();
            let happened = [Happened::new(revision, Some(0), time, event)];
            feed.publish(revision, happened.into(), bytes);
        }
        (writer, feed)
    }

    /// How many events a watcher sees, from the beginning and without a gap.
    fn watched(writer: &Writer, feed: &Feed) -> u64 {
        let (mut after, mut seen) = (Revision::ZERO, 0);
        loop {
            let recent = feed.recent(after);
            let read = recent.unwrap_or_else(|| of_ledger(writer, after).unwrap().batches);
            if read.is_empty() {
                return seen;
            }
            for happened in read.iter().flat_map(|batch| batch.iter()) {
                seen += 1;
                assert_eq!(happened.revision, seen);
            }
            after = Revision::new(seen);
        }
    }

    #[test]
    fn a_slow_watcher_gets_old_events_from_the_ledger_and_misses_none() {
        let count = RECENT_MAX as u64 + 300;
        let (writer, feed) = fed(count, 1);
        assert_eq!((watched(&writer, &feed), feed.head()), (count, Revision::new(count)));
    }

    #[test]
    fn of_long_events_fewer_are_kept_in_memory_and_none_is_missed() {
        // Their bytes are bounded, too: those that are kept, and those that one read returns.
        let (writer, feed) = fed(10, RECENT_BYTES_MAX / 4);
        assert_eq!(lock(&feed.recent).batches.len(), 4);
        assert_eq!(feed.recent(Revision::new(6)).unwrap().len(), 1);
        assert!(feed.recent(Revision::new(5)).is_none(), "they are older");
        assert_eq!(watched(&writer, &feed), 10);
    }
}
