//! When a snapshot is due, and how it is saved beside everything else.

use super::{Core, Counters};
use keeptime_engine::book;
use keeptime_ledger::{Revision, Snapshot, Subject, Writer};
use keeptime_model::errors::chain;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Batches between two snapshots, or half as many as there are reservations if these are more, so that
/// snapshots take a constant share of the writing: what a broker that starts reads again takes well under
/// a second.
pub const SNAPSHOT_EVERY: u64 = 10_000;

/// What is saved, and what is to be removed then.
pub(super) struct Snapshots {
    /// Of the last that was begun.
    pub(super) last: Revision,
    pub(super) is_saving: Arc<AtomicBool>,
    /// Reservations whose records are to be removed, and with which batch they were forgotten.
    pub(super) forgotten: Vec<(Revision, Subject)>,
    /// Up to which revision they are.
    pub(super) removed_to: Arc<AtomicU64>,
}

impl Core {
    /// Saves a snapshot from time to time, when all that it covers is durable: until then it may be undone, and
    /// others would happen under the same revisions.
    pub(super) fn save_snapshot(&mut self) {
        let every = SNAPSHOT_EVERY.max(self.engine.book().reservations().len() as u64 / 2);
        let due = self.head.get() >= self.snapshots.last.get() + every;
        if !due || self.snapshots.is_saving.swap(true, Ordering::AcqRel) {
            return;
        }
        self.snapshots.last = self.head;
        let saving = self.saving(Some((self.head, self.engine.book().snapshot())));
        self.leave(Box::new(move |outcome| {
            if outcome.is_ok() {
                saving.start();
            }
        }));
    }

    /// Removes what another broker was about to remove when it ended.
    pub(super) fn finish_compaction(&mut self) {
        if !self.snapshots.is_saving.swap(true, Ordering::AcqRel) {
            self.saving(None).start();
        }
    }

    fn saving(&mut self, snapshot: Option<(Revision, book::Snapshot)>) -> Saving {
        let removed_to = Revision::new(self.snapshots.removed_to.load(Ordering::Acquire));
        self.snapshots.forgotten.retain(|(revision, _)| *revision > removed_to);
        Saving {
            snapshot,
            forgotten: self.snapshots.forgotten.iter().map(|(_, subject)| *subject).collect(),
            writer: self.writer.clone(),
            counters: Arc::clone(&self.counters),
            is_saving: Arc::clone(&self.snapshots.is_saving),
            removed_to: Arc::clone(&self.snapshots.removed_to),
        }
    }
}

/// A snapshot that is to be saved, and what all snapshots cover then, to be removed. Whatever becomes of it, the one before is
/// still there, and the next is tried later.
struct Saving {
    /// Of which revision; nothing where there is to be no new one.
    snapshot: Option<(Revision, book::Snapshot)>,
    forgotten: Vec<Subject>,
    writer: Writer,
    counters: Arc<Counters>,
    is_saving: Arc<AtomicBool>,
    /// Up to which revision the records of all that was forgotten are gone.
    removed_to: Arc<AtomicU64>,
}

impl Saving {
    /// On a thread of its own.
    fn start(self) {
        let thread = std::thread::Builder::new().name("snapshot".into());
        if let Err(error) = thread.spawn(move || self.run()) {
            tracing::warn!("no snapshot, and nothing is compacted: {error}");
        }
    }

    fn run(mut self) {
        if let Some((revision, book)) = self.snapshot.take() {
            match self.save(revision, book) {
                Ok(()) => drop(self.counters.snapshots.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    return tracing::warn!(
                        "no snapshot of revision {revision}: {}",
                        chain(&*error)
                    );
                }
            }
        }
        match self.writer.compact(std::mem::take(&mut self.forgotten)) {
            // Nobody else compacts.
            Ok(_) => {
                let removed_to = self.writer.status().compacted_to;
                self.removed_to.store(removed_to.get(), Ordering::Release);
            }
            Err(error) => {
                tracing::warn!("what snapshots cover stays for now: {}", chain(&error));
            }
        }
    }

    fn save(
        &self,
        revision: Revision,
        book: book::Snapshot,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let state = serde_json::to_vec(&book)?;
        drop(book);
        Ok(self.writer.save_snapshot(Snapshot { revision, state })?)
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.is_saving.store(false, Ordering::Release);
    }
}
