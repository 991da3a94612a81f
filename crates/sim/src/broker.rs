//! The broker as a process: the real engine, records and outbox, and a ledger whose writes take time.
//! It can die at any moment; what its disk has then is what the next one starts from.

use crate::Violation;
use crate::network::ConnectionId;
use crate::seams::Seams;
use keeptime_broker::outbox::Outbox;
use keeptime_broker::records;
use keeptime_engine::agents::Session;
use keeptime_engine::{Cluster, Engine, Event, Moment, Output, Policy, Step};
use keeptime_ledger::{
    Batch, Ledger, LedgerError, MemoryDisk, MemoryLedger, Revision, Snapshot, Subject,
};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_random::Random;
use std::collections::{BTreeMap, VecDeque};

/// Batches between two snapshots: few, so that most restarts begin with one.
const SNAPSHOT_EVERY: u64 = 300;
/// A compaction that is cut short has removed fewer records than this: most have more.
const CUT_BEFORE: u64 = 100;

/// An event with its time.
pub type Happened = (WallTime, Event);

/// A broker that runs.
#[derive(Debug)]
pub struct Broker {
    /// The state machine.
    pub engine: Engine,
    /// Which broker in turn.
    pub number: u64,
    /// When [`keeptime_engine::Input::Passed`] is due.
    pub due: Nanos,
    ledger: MemoryLedger,
    outbox: Outbox<Output>,
    /// What was handed over and is not durable.
    queue: VecDeque<Work>,
    /// How much of the queue is being written.
    writing: Option<usize>,
    /// After the last batch that was handed over.
    head: Revision,
    snapshot: Revision,
    forgotten: Vec<(Revision, Subject)>,
    /// Up to which revision the records of all that was forgotten are gone.
    removed_to: Revision,
    sessions: BTreeMap<NodeIndex, (Session, ConnectionId)>,
    /// All connections that have said hello and are not known to have ended.
    known: BTreeMap<ConnectionId, (NodeIndex, Session)>,
    last_session: u64,
    /// When something was heard of a node; when the broker began, if nothing was.
    heard: BTreeMap<NodeIndex, Nanos>,
    began: Nanos,
}

#[derive(Debug)]
enum Work {
    /// What a step has to make durable, and what it says.
    Step(Vec<Batch>, Vec<Happened>),
    /// A snapshot, if there is to be a new one, and whom to forget then.
    Snapshot(Option<Snapshot>, Vec<Subject>),
}

/// A step that is durable, and what may leave now.
#[derive(Debug)]
pub struct Written {
    /// What it says.
    pub events: Vec<Happened>,
    /// What waited for it, in order.
    pub outputs: Vec<Output>,
}

impl Broker {
    /// Starts from what `disk` says; the step is to be handed over.
    ///
    /// # Errors
    /// If the ledger cannot be read: nothing that happened to it explains that.
    pub fn start(
        number: u64,
        disk: &MemoryDisk,
        cluster: Cluster,
        policy: Policy,
        moment: Moment,
        seams: &mut dyn Seams,
    ) -> Result<(Self, Step), Violation> {
        let ledger = MemoryLedger::open(disk).map_err(Violation::new)?;
        let mut found = records::find(&ledger).map_err(Violation::new)?;
        seams.found(&mut found);
        let left_over = records::left_over(&ledger).map_err(Violation::new)?;
        let forgotten = left_over.iter().chain(&found.forgotten).copied().collect();
        // What another was about to remove when it was killed.
        let unfinished: Vec<_> = left_over.into_iter().map(|(_, subject)| subject).collect();
        let queue = (!unfinished.is_empty()).then_some(Work::Snapshot(None, unfinished));
        let head = found.head;
        let restored = Engine::restore(cluster, policy, found.snapshot, found.events, moment);
        let (engine, first) = restored.map_err(Violation::new)?;
        let broker = Self {
            engine,
            number,
            due: moment.steady,
            snapshot: ledger.status().snapshot.unwrap_or_default(),
            ledger,
            outbox: Outbox::default(),
            queue: queue.into_iter().collect(),
            writing: None,
            head,
            forgotten,
            removed_to: Revision::ZERO,
            sessions: BTreeMap::new(),
            known: BTreeMap::new(),
            last_session: 0,
            heard: BTreeMap::new(),
            began: moment.steady,
        };
        Ok((broker, first))
    }

    /// The ledger, to be looked at.
    pub fn ledger(&self) -> &MemoryLedger {
        &self.ledger
    }

    /// Hands the step's events over to be written, and puts its outputs behind them. What may leave
    /// at once.
    ///
    /// # Errors
    /// If an event cannot be recorded.
    pub fn hand_over(&mut self, step: Step) -> Result<Vec<Output>, Violation> {
        let batches = records::batches(&step).map_err(Violation::new)?;
        if !batches.is_empty() {
            let events = step.events.iter().map(|event| (step.time, event.clone())).collect();
            batches.iter().for_each(|_| self.head = self.head.next());
            self.queue.push_back(Work::Step(batches, events));
            self.outbox.hand_over();
        }
        for event in &step.events {
            if let (Event::Forgotten { .. }, Some(handle)) = (event, event.handle()) {
                self.forgotten.push((self.head, Subject::new(handle.number())));
            }
        }
        self.snapshot()?;
        Ok(step.outputs.into_iter().filter_map(|output| self.outbox.put(output)).collect())
    }

    fn snapshot(&mut self) -> Result<(), Violation> {
        if self.head.get() < self.snapshot.get() + SNAPSHOT_EVERY {
            return Ok(());
        }
        self.snapshot = self.head;
        let removed_to = self.removed_to;
        self.forgotten.retain(|(revision, _)| *revision > removed_to);
        let forget = self.forgotten.iter().map(|(_, subject)| *subject).collect();
        let state = serde_json::to_vec(&self.engine.book().snapshot()).map_err(Violation::new)?;
        let snapshot = Snapshot { revision: self.head, state };
        self.queue.push_back(Work::Snapshot(Some(snapshot), forget));
        Ok(())
    }

    /// Begins to write what waits, if nothing is being written. Whether it did.
    pub fn begin_writing(&mut self) -> bool {
        if self.writing.is_some() || self.queue.is_empty() {
            return false;
        }
        let is_step = |work: &&Work| matches!(work, Work::Step(..));
        self.writing = Some(self.queue.iter().take_while(is_step).count().max(1));
        true
    }

    /// Whether everything that was decided is durable and has left.
    pub fn is_settled(&self) -> bool {
        self.queue.is_empty()
    }

    /// The disk is done: steps that are durable now, in order.
    ///
    /// # Errors
    /// If it is not: nothing was written then.
    pub fn write(&mut self) -> Result<Vec<Written>, LedgerError> {
        let count = self.writing.take().unwrap_or(0);
        if let Some(Work::Snapshot(snapshot, forget)) = self.queue.front() {
            if let Some(snapshot) = snapshot {
                self.ledger.save_snapshot(snapshot)?;
            }
            let mut forget = forget.as_slice();
            loop {
                let step = self.ledger.compact(forget, usize::MAX)?;
                forget = &forget[step.forgotten..];
                if !step.has_more {
                    break;
                }
            }
            self.removed_to = self.ledger.status().compacted_to;
            self.queue.pop_front();
            return Ok(Vec::new());
        }
        self.ledger.append(&self.batches(count))?;
        let written = self.queue.drain(..count).filter_map(|work| match work {
            Work::Step(_, events) => Some(Written { events, outputs: self.outbox.settle() }),
            Work::Snapshot(..) => None,
        });
        Ok(written.collect())
    }

    /// Those of the first `steps` steps that wait.
    fn batches(&self, steps: usize) -> Vec<Batch> {
        let of_step = |work: &Work| match work {
            Work::Step(batches, _) => Some(batches.clone()),
            Work::Snapshot(..) => None,
        };
        self.queue.iter().filter_map(of_step).take(steps).flatten().collect()
    }

    /// The process is killed. What was being written is on the disk, or not, or the first steps of it; what was being
    /// removed is there, or some of it.
    /// What was handed over and never acknowledged, in order.
    pub fn die(mut self, random: &mut Random) -> Vec<Vec<Happened>> {
        let front = self.queue.front().filter(|_| self.writing.is_some());
        if let Some(Work::Snapshot(snapshot, forget)) = front
            && random.is_one_in(2)
        {
            let saved = snapshot.as_ref().map_or(Ok(()), |new| self.ledger.save_snapshot(new));
            let limit = random.below(CUT_BEFORE) as usize;
            // Nobody is left to learn of an error, and the next broker finishes it.
            drop(saved.and_then(|()| self.ledger.compact(forget, limit)));
        }
        let steps = self.writing.unwrap_or(0);
        if steps > 0 && random.is_one_in(2) {
            let written = random.below(steps as u64 + 1) as usize;
            // Nobody is left to learn of an error.
            drop(self.ledger.append(&self.batches(written)));
        }
        let unsettled = self.queue.into_iter().filter_map(|work| match work {
            Work::Step(_, events) => Some(events),
            Work::Snapshot(..) => None,
        });
        unsettled.collect()
    }

    /// An agent says hello on `connection`, in the place of its former one.
    pub fn welcome(&mut self, node: NodeIndex, connection: ConnectionId, now: Nanos) -> Session {
        self.last_session += 1;
        let session = Session(self.last_session);
        self.sessions.insert(node, (session, connection));
        self.known.insert(connection, (node, session));
        self.heard.insert(node, now);
        session
    }

    /// Who speaks on `connection`.
    pub fn hears(&mut self, connection: ConnectionId, now: Nanos) -> Option<(NodeIndex, Session)> {
        let (node, session) = *self.known.get(&connection)?;
        if self.connection(node) == Some((session, connection)) {
            self.heard.insert(node, now);
        }
        Some((node, session))
    }

    /// A connection has ended.
    pub fn lose(&mut self, connection: ConnectionId) -> Option<(NodeIndex, Session)> {
        let (node, session) = self.known.remove(&connection)?;
        if self.connection(node) == Some((session, connection)) {
            self.sessions.remove(&node);
        }
        Some((node, session))
    }

    /// The present connection of a node.
    pub fn connection(&self, node: NodeIndex) -> Option<(Session, ConnectionId)> {
        self.sessions.get(&node).copied()
    }

    /// How long nothing was heard of a node.
    pub fn silence(&self, node: NodeIndex, now: Nanos) -> Nanos {
        now.saturating_sub(self.heard.get(&node).copied().unwrap_or(self.began))
    }
}
