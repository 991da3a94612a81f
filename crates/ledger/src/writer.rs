//! Many callers on one ledger: a thread owns it and commits everything that waits in one step.
//!
//! While one commit is on its way to the disk, the next batches gather; so a disk that syncs `s`
//! times a second serves far more than `s` callers a second. Long work, a snapshot or compaction,
//! comes in small steps that stand in the same queue, so that no batch waits for all of it.

use crate::error::LedgerError;
use crate::ledger::{Ledger, Status};
use crate::record::{BATCH_BYTES_MAX, Batch, Revision, Snapshot, Subject};
use keeptime_locks::lock;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use thiserror::Error;

/// Requests that wait; whoever comes then waits until there is room.
const QUEUE_MAX: usize = 1_024;
/// Batches of one commit: all that can wait.
const COMMIT_BATCHES_MAX: usize = QUEUE_MAX;
/// Bytes of one commit: some milliseconds on a poor disk, so that the first does not wait long for
/// the last.
const COMMIT_BYTES_MAX: usize = 4 * BATCH_BYTES_MAX;
/// Records that one step of compaction removes: some milliseconds, for the same reason.
const COMPACTION_STEP: usize = 1_000;

/// A request that was not carried out.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The ledger refused. All batches of the same commit share the error.
    #[error(transparent)]
    Ledger(Arc<LedgerError>),
    /// The batches build on one that is not the last: one before them has failed, or others write too.
    #[error("what is to be written follows revision {expected}, but the ledger is at {head}")]
    NotNext {
        /// What they build on.
        expected: Revision,
        /// Where the ledger is.
        head: Revision,
    },
    /// The writer has stopped.
    #[error("the ledger's writer has stopped")]
    Stopped,
}

impl From<LedgerError> for WriteError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(Arc::new(error))
    }
}

/// How a caller is told: on the writer's thread, which waits for it. So it has to be quick.
type Answer = Box<dyn FnOnce(Result<Revision, WriteError>) + Send>;

/// A ledger with its thread. Clones share them; the thread ends, and the ledger is closed, when the
/// last one goes or by [`Writer::stop`].
#[derive(Clone)]
pub struct Writer {
    requests: SyncSender<Request>,
    status: Arc<Mutex<Status>>,
    /// Held by whoever saves a snapshot: parts of two must not mix.
    snapshot_turn: Arc<Mutex<()>>,
    // After `requests`: the thread ends when there are no more senders, and only then is joined.
    thread: Arc<Thread>,
}

struct Thread(Mutex<Option<JoinHandle<Box<dyn Ledger>>>>);

impl Drop for Thread {
    fn drop(&mut self) {
        let handle = lock(&self.0).take();
        // An answer that holds the last writer is dropped on the thread itself.
        if let Some(handle) = handle.filter(|h| h.thread().id() != thread::current().id()) {
            // If it has panicked, whoever waited was told that it has stopped.
            let _ = handle.join();
        }
    }
}

/// Done with the ledger, on its thread.
type Use = Box<dyn FnOnce(&mut dyn Ledger) + Send>;

enum Request {
    Append(Append),
    Call(Use),
    Stop,
}

struct Append {
    batches: Vec<Batch>,
    after: Option<Revision>,
    answer: Answer,
}

impl Writer {
    /// Starts a thread that owns `ledger`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(ledger: impl Ledger + 'static) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::sync_channel(QUEUE_MAX);
        let status = Arc::new(Mutex::new(ledger.status()));
        let owner = Owner { ledger: Box::new(ledger), queue, status: Arc::clone(&status) };
        let thread = thread::Builder::new().name("ledger".into()).spawn(|| owner.run())?;
        let thread = Arc::new(Thread(Mutex::new(Some(thread))));
        Ok(Self { requests, status, snapshot_turn: Arc::default(), thread })
    }

    /// Makes `batch` durable and returns its revision. Blocks until it is.
    ///
    /// # Errors
    /// If the ledger refuses it, or the writer has stopped.
    pub fn append(&self, batch: Batch) -> Result<Revision, WriteError> {
        let (answer, answered) = mpsc::sync_channel(1);
        // There is room for one, and this thread is waiting for it.
        self.submit(vec![batch], None, move |outcome| drop(answer.send(outcome)))?;
        answered.recv().unwrap_or(Err(WriteError::Stopped))
    }

    /// Hands over `batches`, of which all become durable or none, and returns as soon as there is room for
    /// them in the queue; `answer` is called on the writer's thread with the revision of the last one
    /// when they are durable or have failed, and dropped uncalled if the writer is stopped before. It must
    /// not call the writer. What one caller hands over keeps its order. With `after` it is refused unless
    /// it comes right after that revision: whoever decides ahead of the disk is safe from a gap when
    /// something before fails.
    ///
    /// # Errors
    /// [`WriteError::Stopped`]; everything else comes with the answer.
    pub fn submit(
        &self,
        batches: Vec<Batch>,
        after: Option<Revision>,
        answer: impl FnOnce(Result<Revision, WriteError>) + Send + 'static,
    ) -> Result<(), WriteError> {
        let request = Request::Append(Append { batches, after, answer: Box::new(answer) });
        self.requests.send(request).map_err(|_| WriteError::Stopped)
    }

    /// Runs `call` on the ledger, after everything that was submitted before, and returns what it
    /// returns. Batches wait meanwhile.
    ///
    /// # Errors
    /// [`WriteError::Stopped`].
    pub fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Ledger) -> T + Send + 'static,
    ) -> Result<T, WriteError> {
        let (answer, answered) = mpsc::sync_channel(1);
        let status = Arc::clone(&self.status);
        let call = move |ledger: &mut dyn Ledger| {
            let value = call(ledger);
            *lock(&status) = ledger.status();
            // There is room for one, and the caller is waiting for it.
            let _ = answer.send(value);
        };
        self.requests.send(Request::Call(Box::new(call))).map_err(|_| WriteError::Stopped)?;
        answered.recv().map_err(|_| WriteError::Stopped)
    }

    /// Saves `snapshot` part by part between commits, and returns when it is durable. If another is
    /// being saved, this one waits for it.
    ///
    /// # Errors
    /// Why it could not be saved.
    pub fn save_snapshot(&self, snapshot: Snapshot) -> Result<(), WriteError> {
        let _turn = lock(&self.snapshot_turn);
        let snapshot = Arc::new(snapshot);
        for number in 0..snapshot.part_count() {
            let snapshot = Arc::clone(&snapshot);
            self.call(move |ledger| ledger.save_snapshot_part(snapshot.part(number)))??;
        }
        Ok(())
    }

    /// Compacts the ledger step by step between commits (see [`Ledger::compact`]), and returns how
    /// many records were removed.
    ///
    /// # Errors
    /// Why it could not be compacted.
    pub fn compact(&self, forget: Vec<Subject>) -> Result<usize, WriteError> {
        let forget: Arc<[Subject]> = forget.into();
        let (mut removed, mut forgotten) = (0, 0);
        loop {
            let all = Arc::clone(&forget);
            let step =
                self.call(move |ledger| ledger.compact(&all[forgotten..], COMPACTION_STEP))??;
            removed += step.removed;
            forgotten += step.forgotten;
            if !step.has_more {
                return Ok(removed);
            }
        }
    }

    /// Where the ledger stood after the last commit. Waits for nothing.
    pub fn status(&self) -> Status {
        *lock(&self.status)
    }

    /// Whether nothing is written any more: it was stopped, or its thread has panicked, of which those hear who have something
    /// written next.
    pub fn has_ended(&self) -> bool {
        lock(&self.thread.0).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Carries out what was submitted before, ends the thread and returns the ledger; nothing if
    /// somebody else has stopped it, or the thread has panicked.
    pub fn stop(&self) -> Option<Box<dyn Ledger>> {
        // Whether it can be sent or not: the thread ends.
        let _ = self.requests.send(Request::Stop);
        let handle = lock(&self.thread.0).take();
        handle?.join().ok()
    }
}

/// The thread's own.
struct Owner {
    ledger: Box<dyn Ledger>,
    queue: Receiver<Request>,
    status: Arc<Mutex<Status>>,
}

impl Owner {
    fn run(mut self) -> Box<dyn Ledger> {
        while let Ok(request) = self.queue.recv() {
            let behind = match request {
                Request::Append(first) => self.commit(first),
                other => Some(other),
            };
            match behind {
                Some(Request::Call(call)) => call(self.ledger.as_mut()),
                Some(Request::Stop) => break,
                Some(Request::Append(_)) | None => {}
            }
        }
        self.ledger
    }

    /// Commits `first` and all batches that wait behind it; returns the request that ended the row,
    /// if it was something else.
    fn commit(&mut self, first: Append) -> Option<Request> {
        let mut commit = Commit::new(self.ledger.status().head);
        commit.push(first);
        let mut other = None;
        while commit.has_room() && other.is_none() {
            match self.queue.try_recv() {
                Ok(Request::Append(append)) => commit.push(append),
                Ok(request) => other = Some(request),
                Err(_) => break,
            }
        }
        let outcome = self.ledger.append(&commit.batches);
        *lock(&self.status) = self.ledger.status();
        commit.answer(outcome.map(drop));
        other
    }
}

/// Batches that become durable together, and who waits for them.
struct Commit {
    head: Revision,
    bytes: usize,
    batches: Vec<Batch>,
    /// Each with the revision of its last batch.
    answers: Vec<(Revision, Answer)>,
}

impl Commit {
    fn new(head: Revision) -> Self {
        Self { head, bytes: 0, batches: Vec::new(), answers: Vec::new() }
    }

    fn has_room(&self) -> bool {
        self.batches.len() < COMMIT_BATCHES_MAX && self.bytes < COMMIT_BYTES_MAX
    }

    /// The last batch so far.
    fn last(&self) -> Revision {
        Revision::new(self.head.get() + self.batches.len() as u64)
    }

    /// Adds batches that belong together, unless they are to follow another one than they would.
    fn push(&mut self, append: Append) {
        let head = self.last();
        if let Some(expected) = append.after.filter(|after| *after != head) {
            return (append.answer)(Err(WriteError::NotNext { expected, head }));
        }
        self.bytes += append.batches.iter().map(Batch::bytes).sum::<usize>();
        self.batches.extend(append.batches);
        self.answers.push((self.last(), append.answer));
    }

    fn answer(self, outcome: Result<(), LedgerError>) {
        let outcome = outcome.map_err(WriteError::from);
        for (revision, answer) in self.answers {
            answer(outcome.clone().map(|()| revision));
        }
    }
}
