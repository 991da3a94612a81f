//! The thread that owns the engine. Inputs come in a bounded row; what an input leads to is recorded
//! as one step, and its answers and orders leave when that is durable. This is the one place that
//! reads the clock and hands over to the ledger.
//!
//! When the disk is full, everything that waits is told, the engine is made anew from the ledger, and
//! after a second it tries again; agents lose their connection meanwhile and nothing else. Any other
//! failure to write ends the broker: it starts again from what is durable.

mod clocks;
mod snapshots;

pub use snapshots::SNAPSHOT_EVERY;

use crate::agents::Hub;
use crate::feed::Feed;
use crate::outbox::Outbox;
use crate::records::{self, Found, RecordError};
use crate::wire::Happened;
use clocks::{BEHIND_MAX, Clocks};
use keeptime_engine::{
    Answer, Call, CallError, Caller, Cluster, Engine, Event, Input, Moment, Output, Policy, Step,
    Ticket,
};
use keeptime_ledger::{Revision, Subject, WriteError, Writer};
use keeptime_locks::lock;
use keeptime_model::Invalid;
use keeptime_model::errors::chain;
use keeptime_model::reservation::UserName;
use keeptime_model::units::{Nanos, WallTime};
use snapshots::Snapshots;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Inputs of users that wait or whose answers do, and inputs of agents that wait. At some ten
/// microseconds each, the last waits well under a second.
const ROOM: usize = 4_096;
/// The wall clock may be set forward, and what was offered to one who is gone may wait again: it is looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long nothing is tried when the disk was full.
const PAUSE: Duration = Duration::from_secs(1);

/// Why nothing can be answered now.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Too many wait already.
    #[error("{ROOM} requests wait already; try again in a moment")]
    Crowded,
    /// What was decided could not be recorded, so it did not happen.
    #[error("nothing can be recorded now: {reason}; nothing was changed, try again in a moment")]
    Unrecorded {
        /// What the ledger said.
        reason: Arc<str>,
    },
    /// The broker ends because it does not know what is recorded.
    #[error(
        "the broker ends: {reason}; when it is back, the same key tells whether this was carried out"
    )]
    Unknown {
        /// What the ledger said.
        reason: Arc<str>,
    },
    /// The broker ends.
    #[error("the broker is stopping; nothing was changed")]
    Stopping,
}

impl Unavailable {
    /// Whether it may be otherwise in a moment; if not, the broker ends.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Crowded | Self::Unrecorded { .. } => true,
            Self::Unknown { .. } | Self::Stopping => false,
        }
    }
}

/// Why the broker ends.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CoreError {
    /// The ledger cannot be read or understood.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The ledger cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What is recorded does not make a state.
    #[error("the recorded state cannot be used")]
    State(#[from] Invalid),
    /// More time is recorded than has passed by the clock.
    #[error(
        "the clock shows {shown}, and the ledger's last record is of {recorded}: time would stand still \
         until then. Set the clock right; or, if it is right by now and was ahead before, have that \
         recorded by `keeptime broker accept-clock --config FILE`"
    )]
    ClockBehind {
        /// What the clock shows.
        shown: WallTime,
        /// When the last record was made.
        recorded: WallTime,
    },
}

/// What leaves when its time has come, or is told that it never will.
type Leaving = Box<dyn FnOnce(Result<(), Unavailable>) + Send>;

enum Message {
    Call { caller: Caller, call: Box<Call>, asker: Asker },
    Read(Box<dyn FnOnce(&Engine) -> Leaving + Send>, OwnedSemaphorePermit),
    Agent(Input, OwnedSemaphorePermit),
    Written { attempt: u64, outcome: Result<Revision, WriteError> },
    HungUp,
    Stop,
}

/// What comes of a call.
type Outcome = Result<Result<Answer, Box<CallError>>, Unavailable>;

/// Who waits for an answer, and its place in the row.
struct Asker {
    reply: oneshot::Sender<Outcome>,
    place: OwnedSemaphorePermit,
}

/// The other end: where the answer comes. If it is dropped before, whoever asked has hung up, and the thread looks who
/// that is.
struct Listener {
    replied: oneshot::Receiver<Outcome>,
    is_answered: bool,
    messages: Sender<Message>,
}

impl Listener {
    async fn answer(mut self) -> Outcome {
        let answer = (&mut self.replied).await;
        self.is_answered = true;
        answer.unwrap_or(Err(Unavailable::Stopping))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.is_answered {
            self.replied.close();
            // If the thread has ended, nobody is granted anything.
            let _ = self.messages.send(Message::HungUp);
        }
    }
}

/// The way in, for any number of askers.
#[derive(Clone)]
pub struct Handle {
    messages: Sender<Message>,
    room: Arc<Semaphore>,
    /// Apart from that of users: what they wait for are agents.
    agents_room: Arc<Semaphore>,
}

/// Figures that the thread keeps for [`crate::metrics`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Inputs that were carried out.
    pub steps: AtomicU64,
    /// Nanoseconds that they took.
    pub step_nanos: AtomicU64,
    /// Batches that are durable.
    pub batches: AtomicU64,
    /// How often what was decided could not be recorded.
    pub failures: AtomicU64,
    /// Snapshots that were saved.
    pub snapshots: AtomicU64,
    /// Times that the clock was set back.
    pub clock_steps_back: AtomicU64,
    /// What each user's calls have kept everybody waiting for, and they have not been charged for yet.
    spent: Mutex<HashMap<UserName, Nanos>>,
}

impl Counters {
    /// A call of `user` has kept everybody waiting for so long.
    pub fn spend(&self, user: &UserName, took: Nanos) {
        let mut spent = lock(&self.spent);
        let all = spent.entry(user.clone()).or_default();
        *all = all.saturating_add(took);
    }

    /// How long calls of `user` have kept everybody waiting since this was asked last.
    pub fn take_spent(&self, user: &UserName) -> Nanos {
        lock(&self.spent).remove(user).unwrap_or_default()
    }
}

impl Handle {
    /// Asks for a change, and waits for its answer. Whoever drops this before has hung up: a request that waits is not
    /// granted then.
    ///
    /// # Errors
    /// [`Unavailable`] at once if too many wait.
    pub async fn call(
        &self,
        caller: Caller,
        call: Call,
    ) -> Result<Result<Answer, Box<CallError>>, Unavailable> {
        let (reply, replied) = oneshot::channel();
        let asker = Asker { reply, place: self.place()? };
        let message = Message::Call { caller, call: Box::new(call), asker };
        self.messages.send(message).map_err(|_| Unavailable::Stopping)?;
        let messages = self.messages.clone();
        Listener { replied, is_answered: false, messages }.answer().await
    }

    /// Looks at the state, after everything before and when that is durable. `look` has to be quick:
    /// everybody waits for it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, replied) = oneshot::channel();
        let read = move |engine: &Engine| -> Leaving {
            let seen = look(engine);
            // Whoever asked may have gone.
            Box::new(move |outcome| drop(reply.send(outcome.map(|()| seen))))
        };
        let message = Message::Read(Box::new(read), self.place()?);
        self.messages.send(message).map_err(|_| Unavailable::Stopping)?;
        replied.await.unwrap_or(Err(Unavailable::Stopping))
    }

    /// What an agent does; waits for its place in the row.
    ///
    /// # Errors
    /// If the broker ends.
    pub async fn agent(&self, input: Input) -> Result<(), Unavailable> {
        let place = Arc::clone(&self.agents_room).acquire_owned().await;
        let place = place.map_err(|_| Unavailable::Stopping)?;
        let message = Message::Agent(input, place);
        self.messages.send(message).map_err(|_| Unavailable::Stopping)
    }

    /// Ends the thread when it has carried out what it was given before.
    pub fn stop(&self) {
        // If it has ended, it is stopped.
        let _ = self.messages.send(Message::Stop);
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Unavailable> {
        Arc::clone(&self.room).try_acquire_owned().map_err(|_| Unavailable::Crowded)
    }
}

/// The thread's own.
pub struct Core {
    engine: Engine,
    /// What the engine is made anew with.
    cluster: Cluster,
    policy: Policy,
    writer: Writer,
    hub: Arc<Hub>,
    feed: Feed,
    counters: Arc<Counters>,
    messages: Receiver<Message>,
    to_itself: Sender<Message>,
    outbox: Outbox<Leaving>,
    askers: HashMap<Ticket, Asker>,
    next_ticket: u64,
    /// After the last batch that was handed over.
    head: Revision,
    /// Which making of the engine: what became of batches of those before does not count.
    attempt: u64,
    pause: Option<Pause>,
    snapshots: Snapshots,
    /// When it was looked last who is gone.
    looked: Instant,
    /// Whether somebody has gone since.
    is_somebody_gone: bool,
    clocks: Clocks,
    /// When the next step is due if nothing comes in before.
    due: Instant,
}

/// After a failure.
struct Pause {
    until: Instant,
    reason: Arc<str>,
    /// What the engine found when it was made anew.
    first: Step,
}

impl Core {
    /// Makes the engine from what `writer`'s ledger holds.
    ///
    /// # Errors
    /// If it cannot be read or understood, or is further than the clock.
    pub fn new(
        cluster: Cluster,
        policy: Policy,
        writer: Writer,
        hub: Arc<Hub>,
    ) -> Result<(Self, Handle, Feed, Arc<Counters>), CoreError> {
        let (found, left_over) = writer.call(|ledger| -> Result<_, RecordError> {
            Ok((records::find(ledger)?, records::left_over(ledger)?))
        })??;
        let mut clocks = Clocks::new();
        let Moment { wall: shown, steady } = clocks.moment();
        let recorded = found.last.unwrap_or(shown);
        if recorded.saturating_since(shown) > BEHIND_MAX {
            return Err(CoreError::ClockBehind { shown, recorded });
        }
        let (messages, received) = channel();
        let room = || Arc::new(Semaphore::new(ROOM));
        let handle = Handle { messages, room: room(), agents_room: room() };
        let (feed, counters) = (Feed::after(found.head), Arc::new(Counters::default()));
        let snapshots = Snapshots {
            last: writer.status().snapshot.unwrap_or_default(),
            is_saving: Arc::default(),
            forgotten: left_over.iter().chain(&found.forgotten).copied().collect(),
            removed_to: Arc::default(),
        };
        let head = found.head;
        let moment = Moment { wall: shown.max(recorded), steady };
        let (engine, first) = restore(&cluster, &policy, found, moment)?;
        let began = clocks.began;
        let mut core = Self {
            engine,
            cluster,
            policy,
            writer,
            hub,
            feed: feed.clone(),
            counters: Arc::clone(&counters),
            messages: received,
            to_itself: handle.messages.clone(),
            outbox: Outbox::default(),
            askers: HashMap::new(),
            next_ticket: 0,
            head,
            attempt: 0,
            pause: None,
            snapshots,
            looked: began,
            is_somebody_gone: false,
            clocks,
            due: began,
        };
        core.carry_out(first)?;
        if !left_over.is_empty() {
            core.finish_compaction();
        }
        Ok((core, handle, feed, counters))
    }

    /// Carries out inputs until it is stopped.
    ///
    /// # Errors
    /// Why the broker cannot go on. Everyone who waits is told.
    pub fn run(mut self) -> Result<(), CoreError> {
        let ended = self.serve();
        self.tell_all(&match &ended {
            Ok(()) => Unavailable::Stopping,
            Err(error) => Unavailable::Unknown { reason: chain(error).into() },
        });
        ended
    }

    fn serve(&mut self) -> Result<(), CoreError> {
        loop {
            match self.messages.recv_timeout(self.patience()) {
                Ok(Message::Stop) if self.outbox.on_their_way() == 0 => return Ok(()),
                // Behind what is on its way to the disk.
                Ok(Message::Stop) => drop(self.to_itself.send(Message::Stop)),
                Ok(message) => self.receive(message)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.resume()?;
            self.forget_who_is_gone()?;
            self.pass()?;
        }
    }

    /// How long nothing is due.
    fn patience(&self) -> Duration {
        let until = self.pause.as_ref().map_or(self.due, |pause| pause.until);
        until.saturating_duration_since(Instant::now())
    }

    fn receive(&mut self, message: Message) -> Result<(), CoreError> {
        match message {
            Message::Call { caller, call, asker } => self.call(caller, call, asker)?,
            Message::Read(read, place) => {
                let leaving = read(&self.engine);
                // It counts until it has left.
                self.leave(Box::new(move |outcome| {
                    leaving(outcome);
                    drop(place);
                }));
            }
            Message::Agent(input, _place) if self.pause.is_none() => {
                self.step(input)?;
            }
            // It comes back, and begins with a comparison.
            Message::Agent(..) => self.hub.disconnect_all(),
            Message::Written { attempt, outcome } if attempt == self.attempt => {
                self.written(outcome)?;
            }
            Message::HungUp => self.is_somebody_gone = true,
            Message::Written { .. } | Message::Stop => {}
        }
        Ok(())
    }

    fn call(&mut self, caller: Caller, call: Box<Call>, asker: Asker) -> Result<(), CoreError> {
        if let Some(pause) = &self.pause {
            let reason = Arc::clone(&pause.reason);
            drop(asker.reply.send(Err(Unavailable::Unrecorded { reason })));
            return Ok(());
        }
        // What is due has nothing to do with whoever asks.
        self.pass()?;
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.askers.insert(ticket, asker);
        // Operators are trusted with more than that.
        let payer = (!caller.operator).then(|| caller.user.clone());
        let took = self.step(Input::Call { ticket, caller, call })?;
        if let Some(user) = payer {
            self.counters.spend(&user, took);
        }
        Ok(())
    }

    /// Whoever waits for room, or until others are slower, and has hung up is not to be granted anything: nobody would know
    /// of it.
    fn forget_who_is_gone(&mut self) -> Result<(), CoreError> {
        if !std::mem::take(&mut self.is_somebody_gone) && self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let is_gone = |(ticket, asker): &(&Ticket, &Asker)| {
            asker.reply.is_closed() && self.engine.is_waiting(**ticket)
        };
        let gone: Vec<_> = self.askers.iter().filter(is_gone).map(|(ticket, _)| *ticket).collect();
        for ticket in gone {
            self.askers.remove(&ticket);
            self.step(Input::Gone { ticket })?;
        }
        Ok(())
    }

    /// What is due by now.
    fn pass(&mut self) -> Result<(), CoreError> {
        if self.due <= Instant::now() && self.pause.is_none() {
            self.step(Input::Passed)?;
        }
        Ok(())
    }

    /// Carries out `input`; tells how long the engine took for it.
    fn step(&mut self, input: Input) -> Result<Nanos, CoreError> {
        let (moment, start) = (self.clocks.moment(), Instant::now());
        let step = self.engine.step(moment, input);
        let took = Nanos::from(start.elapsed());
        self.clocks.compare(moment.wall, self.engine.now());
        let idle = self.engine.idle().map(|idle| Duration::from_nanos(idle.get()));
        self.due = start + idle.unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
        self.counters.steps.fetch_add(1, Ordering::Relaxed);
        self.counters.step_nanos.fetch_add(took.get(), Ordering::Relaxed);
        let back = self.engine.clock_steps_back();
        self.counters.clock_steps_back.store(back, Ordering::Relaxed);
        self.carry_out(step)?;
        Ok(took)
    }

    /// Records what happened, then lets answers and orders go.
    fn carry_out(&mut self, step: Step) -> Result<(), CoreError> {
        self.record(&step)?;
        for event in &step.events {
            if let (Event::Forgotten { .. }, Some(handle)) = (event, event.handle()) {
                self.snapshots.forgotten.push((self.head, Subject::new(handle.number())));
            }
        }
        for output in step.outputs {
            if let Some(leaving) = self.leaving(output) {
                self.leave(leaving);
            }
        }
        self.save_snapshot();
        Ok(())
    }

    /// Hands what happened over to be made durable, all or nothing; whoever watches learns of it then.
    fn record(&mut self, step: &Step) -> Result<(), CoreError> {
        let batches = records::batches(step)?;
        if batches.is_empty() {
            return Ok(());
        }
        let (head, mut events) = (self.head, step.events.iter());
        let mut news = Vec::new();
        for batch in &batches {
            self.head = self.head.next();
            let revision = self.head;
            let events = events.by_ref().take(batch.records().len());
            let happened = |(index, event): (u32, &Event)| {
                Happened::new(revision, Some(index), step.time, event.clone())
            };
            let happened: Arc<[_]> = (0..).zip(events).map(happened).collect();
            news.push((revision, happened, batch.bytes()));
        }
        let (to_itself, attempt) = (self.to_itself.clone(), self.attempt);
        // If this thread has ended, nobody waits.
        let told = move |outcome| drop(to_itself.send(Message::Written { attempt, outcome }));
        self.writer.submit(batches, Some(head), told)?;
        self.outbox.hand_over();
        let (feed, counters) = (self.feed.clone(), Arc::clone(&self.counters));
        self.leave(Box::new(move |outcome| {
            if outcome.is_ok() {
                counters.batches.fetch_add(news.len() as u64, Ordering::Relaxed);
                for (revision, happened, bytes) in news {
                    feed.publish(revision, happened, bytes);
                }
            }
        }));
        Ok(())
    }

    fn leaving(&mut self, output: Output) -> Option<Leaving> {
        match output {
            Output::Order { node, session, order } => {
                let hub = Arc::clone(&self.hub);
                Some(Box::new(move |outcome| {
                    if outcome.is_ok() {
                        hub.send(node, session, order);
                    }
                }))
            }
            Output::HangUp { node, session } => {
                let hub = Arc::clone(&self.hub);
                Some(Box::new(move |_| hub.hang_up(node, session)))
            }
            Output::Answer { ticket, answer } => {
                let Asker { reply, place } = self.askers.remove(&ticket)?;
                Some(Box::new(move |outcome| {
                    // Whoever asked may have gone.
                    drop(reply.send(outcome.map(|()| answer)));
                    drop(place);
                }))
            }
        }
    }

    fn leave(&mut self, leaving: Leaving) {
        if let Some(leaving) = self.outbox.put(leaving) {
            leaving(Ok(()));
        }
    }

    fn written(&mut self, outcome: Result<Revision, WriteError>) -> Result<(), CoreError> {
        match outcome {
            Ok(_) => {
                self.outbox.settle().into_iter().for_each(|leaving| leaving(Ok(())));
                Ok(())
            }
            Err(WriteError::Ledger(error)) if error.is_retryable() => {
                let reason = chain(&error);
                tracing::error!("nothing can be recorded: {reason}");
                self.start_again(reason.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What was decided since the last durable batch did not happen: goes back to that.
    fn start_again(&mut self, reason: Arc<str>) -> Result<(), CoreError> {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        self.attempt += 1;
        self.tell_all(&Unavailable::Unrecorded { reason: Arc::clone(&reason) });
        self.hub.disconnect_all();
        let (found, compacted_to) = self.writer.call(|ledger| -> Result<_, RecordError> {
            Ok((records::find(ledger)?, ledger.status().compacted_to))
        })??;
        self.head = found.head;
        // What was forgotten later may not have happened.
        self.snapshots.forgotten.retain(|(revision, _)| *revision <= compacted_to);
        self.snapshots.forgotten.extend(&found.forgotten);
        let Moment { wall, steady } = self.clocks.moment();
        let moment = Moment { wall: wall.max(self.engine.now()), steady };
        let (engine, first) = restore(&self.cluster, &self.policy, found, moment)?;
        self.engine = engine;
        self.due = Instant::now();
        self.pause = Some(Pause { until: Instant::now() + PAUSE, reason, first });
        Ok(())
    }

    /// Everyone who waits, for the disk or for agents.
    fn tell_all(&mut self, why: &Unavailable) {
        for leaving in self.outbox.fail() {
            leaving(Err(why.clone()));
        }
        for (_, asker) in self.askers.drain() {
            drop(asker.reply.send(Err(why.clone())));
        }
    }

    /// After a pause it is tried again.
    fn resume(&mut self) -> Result<(), CoreError> {
        match self.pause.take_if(|pause| pause.until <= Instant::now()) {
            Some(pause) => self.carry_out(pause.first),
            None => Ok(()),
        }
    }
}

fn restore(
    cluster: &Cluster,
    policy: &Policy,
    found: Found,
    moment: Moment,
) -> Result<(Engine, Step), Invalid> {
    let (cluster, policy) = (cluster.clone(), policy.clone());
    Engine::restore(cluster, policy, found.snapshot, found.events, moment)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use keeptime_ledger::{MemoryDisk, MemoryLedger};
    use keeptime_model::topology::Topology;

    const TOPOLOGY: &str = "name = \"one\"\nswitches = [{ name = \"s1\" }]\n\
        [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
        [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n";

    /// A broker of one node with nothing in its ledger, and all that belongs to its thread, which nobody runs
    /// yet.
    pub(crate) struct Still {
        pub topology: Topology,
        pub writer: Writer,
        pub hub: Arc<Hub>,
        pub core: Core,
        pub handle: Handle,
        pub feed: Feed,
        pub counters: Arc<Counters>,
    }

    impl Still {
        pub fn new() -> Self {
            let topology = Topology::from_toml(TOPOLOGY).unwrap();
            let cluster = Cluster::new(topology.clone(), |rate| rate).unwrap();
            let ledger = MemoryLedger::open(&MemoryDisk::default()).unwrap();
            let (writer, hub) = (Writer::start(ledger).unwrap(), Arc::new(Hub::default()));
            let (core, handle, feed, counters) =
                Core::new(cluster, Policy::default(), writer.clone(), Arc::clone(&hub)).unwrap();
            Self { topology, writer, hub, core, handle, feed, counters }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Still;
    use super::*;
    use keeptime_credentials::dates::now;
    use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources, State};
    use keeptime_model::units::CpuPpm;
    use std::cell::Cell;
    use std::task::{Context, Waker};

    /// What the thread does with one message.
    fn receive_one(core: &mut Core) {
        let message = core.messages.try_recv().unwrap();
        core.receive(message).unwrap();
        core.forget_who_is_gone().unwrap();
    }

    // Goal: a request of one who has hung up does not wait, from then on. Method: no agent is there, so that it waits; it is
    // not looked for who is gone before a second has passed, unless somebody says that there is one.
    #[test]
    fn who_hangs_up_is_forgotten_at_once() {
        let Still { mut core, handle, .. } = Still::new();
        let nodes = NodeChoice::Named(vec!["n1".parse().unwrap()]);
        let cpu_ppm = CpuPpm::from_percent(10);
        let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
        let wait_nanos = Some(Nanos::from_secs(60));
        let request = Request { wait_nanos, ..Request::new(Ask::Resources(resources)) };
        let call = Call::Reserve { key: "waits".parse().unwrap(), request };
        let caller = Caller { user: "ada".parse().unwrap(), operator: false };
        let mut asking = Box::pin(handle.call(caller, call));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        core.looked = Instant::now();
        receive_one(&mut core);
        assert_eq!(core.engine.waiting_count(), 1);
        drop(asking);
        core.looked = Instant::now();
        receive_one(&mut core);
        assert_eq!((core.engine.waiting_count(), core.askers.len()), (0, 0));
        assert!(core.messages.try_recv().is_err());
    }

    // Goal: a clock that is wrong for a moment ends nothing, and none that shows so much later is taken for one that was set
    // back. Method: it is a day ahead for as long as one step takes; the reservation is over by then.
    #[test]
    fn a_clock_that_is_ahead_for_a_moment_ends_nothing() {
        thread_local!(static AHEAD: Cell<Nanos> = const { Cell::new(Nanos::from_secs(0)) });
        let Still { mut core, handle, .. } = Still::new();
        core.clocks.shown = || now().saturating_add(AHEAD.get());
        let nodes = NodeChoice::Named(vec!["n1".parse().unwrap()]);
        let cpu_ppm = CpuPpm::from_percent(10);
        let resources = Resources { nodes, cpu_ppm, ..Resources::nothing() };
        let hour = Nanos::from_secs(3_600);
        let request = Request {
            // Far enough ahead that no agent has to be there.
            from_unix_nanos: Some(now().saturating_add(hour)),
            duration_nanos: Some(hour),
            ..Request::new(Ask::Resources(resources))
        };
        let call = Call::Reserve { key: "later".parse().unwrap(), request };
        let caller = Caller { user: "ada".parse().unwrap(), operator: false };
        let mut asking = Box::pin(handle.call(caller, call));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        receive_one(&mut core);
        for ahead in [86_400, 0] {
            AHEAD.set(Nanos::from_secs(ahead));
            core.step(Input::Passed).unwrap();
            let found = core.engine.book().reservations().values().next().unwrap();
            assert_eq!(found.state, State::Granted, "{ahead} s ahead");
            assert!(core.engine.now().saturating_since(now()) < hour);
        }
        assert_eq!(core.engine.clock_steps_back(), 0);
    }

    // Goal: answers that wait for the disk are bounded. Method: a look comes behind what is on its way there.
    #[test]
    fn a_look_has_its_place_until_its_answer_leaves() {
        let Still { mut core, handle, .. } = Still::new();
        let mut looking = Box::pin(handle.read(|_| ()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(looking.as_mut().poll(&mut context).is_pending());
        core.outbox.hand_over();
        receive_one(&mut core);
        assert!(looking.as_mut().poll(&mut context).is_pending());
        assert_eq!(handle.room.available_permits(), ROOM - 1);
        core.outbox.settle().into_iter().for_each(|leaving| leaving(Ok(())));
        assert!(looking.as_mut().poll(&mut context).is_ready());
        assert_eq!(handle.room.available_permits(), ROOM);
    }

    // Goal: what users keep everybody waiting for is noted, and of operators nothing. Method: a call that comes to nothing.
    #[test]
    fn the_time_that_a_call_takes_is_its_users() {
        let Still { mut core, handle, counters, .. } = Still::new();
        let reservation = keeptime_model::reservation::Handle::new(7);
        for operator in [false, true] {
            let caller = Caller { user: "ada".parse().unwrap(), operator };
            let mut asking = Box::pin(handle.call(caller, Call::Cancel { handle: reservation }));
            let mut context = Context::from_waker(Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
            receive_one(&mut core);
            assert!(asking.as_mut().poll(&mut context).is_ready());
            let spent = counters.take_spent(&"ada".parse().unwrap());
            assert_eq!(spent > Nanos::default(), !operator, "{spent}");
        }
    }
}
