//! What a program holds: its context, its resources, and what it looks for.

use crate::attributes::Attributes;
use crate::config::Config;
use crate::core::{Core, Patience};
use crate::directory::client::{Event, Watch};
use crate::directory::protocol::{ContextInfo, Record};
use crate::ending::CarriedAtExit;
use crate::error::{FindError, OpenError, RecvError, RegisterError, SendError};
use crate::flow::Unsent;
use crate::id::{ContextId, Place, ResourceId};
use crate::matching::{Match, Tag};
use crate::payload::{Buffer, Payload};
use crate::progress::{Parker, after};
use crate::region::Lifelines;
use crate::threads;
use keeptime_locks::lock;
use keeptime_model::Invalid;
use keeptime_model::units::BitsPerSecond;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most resources among which one is chosen, in some tens of microseconds: there may be a million.
const CHOICES_MOST: usize = 1024;

/// A program's place in the fabric. Everything that was sent is carried before the last handle to
/// it goes, for at most [`Config::close_time`]; what is not by then is lost without a word, such as a
/// long message that was given and that nobody has taken. [`Context::close`] tells.
///
/// A program may end with it open, by `exit` or the end of `main`: what was sent is carried for at most 0.1 s then, but for
/// long messages that nobody has taken. Whatever ends it otherwise, a signal or `_exit`, takes with it what was
/// not carried.
#[derive(Debug)]
pub struct Context {
    shared: Arc<Shared>,
}

/// A resource of this program: sends and receives under its own name, from any thread. Dropped, it
/// is gone for everybody.
#[derive(Debug)]
pub struct Resource {
    shared: Arc<Shared>,
    place: Place,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: ResourceId,
    /// Its tag.
    pub tag: Tag,
    /// What it says: of what was given within the context, the buffer itself.
    pub data: Buffer,
}

/// What is looked for.
#[derive(Debug)]
pub struct Search<'a> {
    shared: &'a Arc<Shared>,
    query: Attributes,
}

#[derive(Debug)]
struct Shared {
    core: Arc<Core>,
    close_time: Duration,
    worker: Arc<Worker>,
    threads: Vec<JoinHandle<()>>,
    /// Whether those are there still whose memory is read.
    lifelines: Lifelines,
    _at_exit: CarriedAtExit,
}

/// The context's own thread that handles what arrives, if it is wanted.
#[derive(Debug, Default)]
struct Worker {
    stopped: AtomicBool,
    parker: Mutex<Option<Arc<Parker>>>,
}

impl Context {
    /// Opens a context: all interfaces of the node, and shared memory.
    ///
    /// # Errors
    /// If no daemon runs on the node, the kernel does not give what is needed, or this program was built without
    /// what is to carry its messages.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let (close_time, with_worker) = (config.close_time, config.progress_thread);
        let core = Arc::new(Core::open(config)?);
        let (worker, threads) = (Arc::new(Worker::default()), Vec::new());
        // Made before its threads, so that it ends those that were started if one cannot be.
        let lifelines = Lifelines::default();
        let _at_exit = CarriedAtExit::new(core.flusher().clone());
        let mut shared = Shared { core, close_time, worker, threads, lifelines, _at_exit };
        shared.start(|core, _| core.flusher().run(core))?;
        shared.start(|core, _| core.keeper().run(core))?;
        if with_worker {
            shared.start(|core, worker| worker.run(core))?;
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its name.
    pub fn id(&self) -> ContextId {
        self.shared.core.id()
    }

    /// Registers a resource. When this returns, every program of the cluster that looks for it
    /// finds it.
    ///
    /// # Errors
    /// If attributes are too many or too long, or one has a name of the library's ([`attributes::RESERVED`]), or the
    /// directory does not answer.
    ///
    /// [`attributes::RESERVED`]: crate::attributes::RESERVED
    pub fn register(&self, attributes: Attributes) -> Result<Resource, RegisterError> {
        attributes.expect_own()?;
        self.register_any(attributes)
    }

    /// The same with the library's own among them.
    pub(crate) fn register_any(&self, attributes: Attributes) -> Result<Resource, RegisterError> {
        attributes.check()?;
        let core = &self.shared.core;
        let place = core.junction().inboxes.open().ok_or(RegisterError::TooMany)?;
        // Closed again when it is dropped on the way out.
        let resource = Resource { shared: self.shared.clone(), place };
        core.directory().register(place, attributes)?;
        Ok(resource)
    }

    /// Where the context of a resource is, asked anew of the node's daemon, whatever is known
    /// already. Sending needs none of this. None if there is no such context.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn locate(&self, resource: ResourceId) -> Result<Option<ContextInfo>, FindError> {
        let found = self.shared.core.directory().resolve(resource.context)?;
        Ok(found.map(|found| found.context))
    }

    /// Waits until everything that was sent is carried, for at most `within`. Short messages are carried when the other context,
    /// or its node's kernel, has them; long ones when their receivers do. What other threads send meanwhile is waited
    /// for as well.
    ///
    /// # Errors
    /// If messages are not carried by then: on each connection that has some, all that its other end has not said to have. They
    /// still may be. What is known not to have arrived is told to the resources that sent it ([`Resource::recv`]), and does
    /// not count here.
    pub fn flush(&self, within: Duration) -> Result<(), Unsent> {
        Unsent::after(None, self.shared.core.not_carried(after(within))).map_or(Ok(()), Err)
    }

    /// The same, and drops this handle. Its resources, regions and watches hold the context on. If there is none, it is gone
    /// without further waiting.
    ///
    /// # Errors
    /// If messages may not have arrived: on each connection that has not carried everything by then, all that its other
    /// end has not said to have; and what resources have sent that cannot be told, since they are dropped, or have 262,144
    /// such messages to hear of already, if it is known not to have arrived. What is not carried is lost with the context.
    pub fn close(mut self, within: Duration) -> Result<(), Unsent> {
        let unsent = self.shared.core.unsent(after(within));
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.close_time = Duration::ZERO;
        }
        unsent.map_or(Ok(()), Err)
    }

    /// What this program holds of it.
    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// Those of the daemons whose memory its readers have.
    pub(crate) fn lifelines(&self) -> &Lifelines {
        &self.shared.lifelines
    }

    /// Looks for resources that have all of `query`, in the whole cluster.
    pub fn find(&self, query: Attributes) -> Search<'_> {
        Search { shared: &self.shared, query }
    }
}

impl Resource {
    /// Its name, by which everybody can send to it.
    pub fn id(&self) -> ResourceId {
        ResourceId { context: self.shared.core.id(), place: self.place }
    }

    /// Sends a message. Messages from one resource to another arrive in the order in which they
    /// were sent. Waits while the receiver does not keep up. If the message is lost after this, a
    /// later receive of this resource says so.
    ///
    /// A lent message of more than 64 KiB is waited for until a receiver takes it. Others may be carried after this
    /// returns: [`Context`] says when they are lost, and [`Context::flush`] waits for it.
    ///
    /// # Errors
    /// If the receiver is gone or cannot be reached, or the message is too long.
    pub fn send<'a>(
        &self,
        to: ResourceId,
        tag: Tag,
        payload: impl Into<Payload<'a>>,
    ) -> Result<(), SendError> {
        self.send_with(to, tag, payload.into(), Patience::Until(None))
    }

    /// The same, waiting no longer than `time`, for a connection neither: one that takes longer is made all the same, and
    /// whoever sends there next finds it.
    ///
    /// # Errors
    /// As for [`Resource::send`], and [`SendError::TimedOut`]. What was given is dropped then, unless it is
    /// [`Payload::Kept`].
    pub fn send_within<'a>(
        &self,
        to: ResourceId,
        tag: Tag,
        payload: impl Into<Payload<'a>>,
        time: Duration,
    ) -> Result<(), SendError> {
        let deadline = after(time);
        self.send_with(to, tag, payload.into(), Patience::Until(Some(deadline)))
    }

    /// The same without waiting, but for a connection if there is none yet and no other thread makes one. A lent
    /// message of more than 64 KiB always has to wait.
    ///
    /// # Errors
    /// As for [`Resource::send`], and [`SendError::WouldBlock`]. What was given is dropped then, unless it is
    /// [`Payload::Kept`].
    pub fn try_send<'a>(
        &self,
        to: ResourceId,
        tag: Tag,
        payload: impl Into<Payload<'a>>,
    ) -> Result<(), SendError> {
        self.send_with(to, tag, payload.into(), Patience::None)
    }

    /// Reserves `rate` for what this resource sends to `to`: a limit, as every reservation is. Of
    /// several flows of the context whose time has come the one that waits longest goes first. It
    /// counts payload and lasts until it is released or the resource is dropped. Reserved anew, the new
    /// rate holds for what is waiting as well.
    ///
    /// Messages of more than 64 KiB to other contexts are carried at that rate piece by piece, of 256 KiB at most.
    ///
    /// # Errors
    /// If the rate is zero: nothing would ever be sent.
    pub fn reserve(&self, to: ResourceId, rate: BitsPerSecond) -> Result<(), Invalid> {
        if rate == BitsPerSecond::ZERO {
            return Err(Invalid::new("rate", rate, "more than 0 bit/s, or no reservation"));
        }
        self.shared.core.reserve(self.place, to, rate);
        Ok(())
    }

    /// Gives that back: messages to `to` are not held back any more, those that wait among them.
    pub fn release(&self, to: ResourceId) {
        self.shared.core.release(self.place, Some(to));
    }

    /// Receives the first message that `wanted` wants; waits for one. One of more than 64 KiB from another context is
    /// there when all of it has come, and comes from when it is wanted first. Until then nothing that its sender has sent
    /// after it goes before it, but messages of others do.
    ///
    /// # Errors
    /// If something that this resource had sent was not delivered, and no message is there: once
    /// for each. Where threads wait for messages of its receiver alone, one of these is told. [`RecvError::Gone`] if only
    /// messages of one sender are wanted, none is there, and that one's context is gone: that is found out soon after its end.
    pub fn recv(&self, wanted: Match) -> Result<Message, RecvError> {
        self.recv_with(wanted, Patience::Until(None))
    }

    /// The same, waiting no longer than `time`. What has begun to come then goes on, and a later call finds it.
    ///
    /// # Errors
    /// As for [`Resource::recv`], and [`RecvError::TimedOut`].
    pub fn recv_within(&self, wanted: Match, time: Duration) -> Result<Message, RecvError> {
        self.recv_with(wanted, Patience::Until(Some(after(time))))
    }

    /// The same without waiting. None if there is none: one of more than 64 KiB from another context begins to come, and a
    /// later call finds it. Whether a sender that is not connected is gone is found out meanwhile as well.
    ///
    /// # Errors
    /// As for [`Resource::recv`].
    pub fn try_recv(&self, wanted: Match) -> Result<Option<Message>, RecvError> {
        match self.recv_with(wanted, Patience::None) {
            Err(RecvError::TimedOut) => Ok(None),
            other => other.map(Some),
        }
    }

    fn send_with(
        &self,
        to: ResourceId,
        tag: Tag,
        mut payload: Payload<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        let Payload::Kept(buffer) = payload else {
            return self.send_payload(to, tag, &mut payload, patience);
        };
        let mut given = Payload::Given(mem::take(buffer));
        let sent = self.send_payload(to, tag, &mut given, patience);
        if sent.is_err() {
            *buffer = given.into_buffer();
        }
        sent
    }

    fn send_payload(
        &self,
        to: ResourceId,
        tag: Tag,
        payload: &mut Payload<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        let core = &self.shared.core;
        if core.send_at_once(self.place, to, tag, payload) {
            return Ok(());
        }
        core.send(self.place, to, tag, payload, patience)
    }

    fn recv_with(&self, wanted: Match, patience: Patience) -> Result<Message, RecvError> {
        self.shared.core.receive(self.place, wanted, patience)
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        let core = &self.shared.core;
        core.directory().drop_resource(self.place);
        core.close(self.place);
    }
}

impl Search<'_> {
    /// All that there are now.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn all(&self) -> Result<Vec<Record>, FindError> {
        let directory = self.shared.core.directory();
        let all = directory.find(&self.query, None, |all| Some(all.values().cloned().collect()))?;
        Ok(all.unwrap_or_default())
    }

    /// The only one that there is now.
    ///
    /// # Errors
    /// If there is none or more than one, or the directory does not answer.
    pub fn only(&self) -> Result<ResourceId, FindError> {
        self.only_until(None)
    }

    /// The only one, as soon as there is one, if that is within `time`.
    ///
    /// # Errors
    /// As for [`Search::one_of_any_within`], and if there is more than one then.
    pub fn only_within(&self, time: Duration) -> Result<ResourceId, FindError> {
        self.only_until(Some(after(time)))
    }

    /// Any one that there is now: one of the own node, if there is, and else of any. Contexts choose differently, so that equals
    /// have about as many each; the same context chooses the same one as long as that is there and none of its node comes.
    /// Where there are more than a thousand, it is one of some.
    ///
    /// # Errors
    /// If there is none, or the directory does not answer.
    pub fn one_of_any(&self) -> Result<ResourceId, FindError> {
        self.any_until(None)
    }

    /// Any one, as [`Search::one_of_any`] chooses, as soon as there is one, if that is within `time`.
    ///
    /// # Errors
    /// If there is none in time, or the directory does not answer: that is waited for no longer, but for a
    /// second at least.
    pub fn one_of_any_within(&self, time: Duration) -> Result<ResourceId, FindError> {
        self.any_until(Some(after(time)))
    }

    /// All that there are now, and what changes from now on.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn watch(&self) -> Result<(Vec<Record>, Watcher), FindError> {
        let (records, watch) = self.shared.core.directory().watch(&self.query)?;
        Ok((records, Watcher { watch, _shared: self.shared.clone() }))
    }

    fn only_until(&self, deadline: Option<Instant>) -> Result<ResourceId, FindError> {
        let directory = self.shared.core.directory();
        let found = directory.find(&self.query, deadline, |all| {
            all.keys().next().map(|first| (*first, all.len()))
        })?;
        match found {
            None => Err(FindError::None(self.query.wanted())),
            Some((first, 1)) => Ok(first),
            Some((_, count)) => Err(FindError::Several { query: self.query.wanted(), count }),
        }
    }

    fn any_until(&self, deadline: Option<Instant>) -> Result<ResourceId, FindError> {
        let core = &self.shared.core;
        let (own, node) = (core.id(), &core.directory().welcome().node);
        let found = core.directory().find(&self.query, deadline, |all| chosen(own, node, all))?;
        found.ok_or_else(|| FindError::None(self.query.wanted()))
    }
}

/// The one of `all` that a context on `node` uses.
fn chosen(own: ContextId, node: &str, all: &BTreeMap<ResourceId, Record>) -> Option<ResourceId> {
    let first = ResourceId { context: own, place: Place { slot: 0, generation: 0 } };
    // Names are drawn at random, so that beside a context's are others than beside another's.
    let from_own = all.range(first..).chain(all.range(..first)).take(CHOICES_MOST);
    let weight = |id: &ResourceId| {
        let mut hasher = DefaultHasher::new();
        (own, id).hash(&mut hasher);
        hasher.finish()
    };
    from_own
        .map(|(id, record)| (record.home.node == node, weight(id), *id))
        .max()
        .map(|best| best.2)
}

/// What happens to resources that are watched. Holds its context, as resources do.
#[derive(Debug)]
pub struct Watcher {
    watch: Watch,
    /// Without it nobody would tell the watch anything; dropped after the watch.
    _shared: Arc<Shared>,
}

impl Watcher {
    /// What happens next, if it does within `time`.
    pub fn next_within(&self, time: Duration) -> Option<Event> {
        self.watch.next_until(after(time))
    }

    /// Has one [`Watcher::next_within`] of another thread's return with [`Event::Woken`] at once, or the next one if none
    /// waits.
    pub fn wake(&self) {
        self.watch.wake();
    }
}

impl Shared {
    fn start(&mut self, work: fn(&Core, &Worker)) -> Result<(), OpenError> {
        let (core, worker) = (self.core.clone(), self.worker.clone());
        let started = threads::spawn("fabric", move || work(&core, &worker));
        let what = "a thread";
        self.threads.push(started.map_err(|source| OpenError::System { what, source })?);
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.core.drain(after(self.close_time));
        self.worker.stopped.store(true, SeqCst);
        if let Some(parker) = lock(&self.worker.parker).take() {
            self.core.wake(&parker);
        }
        self.core.flusher().stop();
        self.core.keeper().stop();
        // Threads that make connections would wait for others, for seconds.
        self.core.give_up_calls();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn run(&self, core: &Core) {
        let stopped = || self.stopped.load(SeqCst);
        core.work_until(stopped, |parker| *lock(&self.parker) = Some(parker.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;
    use crate::carriers::Carriers;
    use crate::door::Callers;
    use crate::frame;
    use std::collections::BTreeSet;

    /// A server on each of these nodes, as they are told.
    fn servers(nodes: &[&str]) -> BTreeMap<ResourceId, Record> {
        let server = |(number, node): (u64, &&str)| {
            let (context, place) = (ContextId::new(number << 60), Place { slot: 1, generation: 0 });
            let (id, attributes) = (ResourceId { context, place }, Attributes::new());
            let (owner, callers, speaks) = (0, Callers::SameUser, frame::VERSION);
            let (node, addresses, carriers) = ((*node).into(), Vec::new(), Carriers::default());
            let home =
                ContextInfo { id: context, node, owner, callers, addresses, carriers, speaks };
            (id, Record { id, attributes, home: home.into() })
        };
        (1..).zip(nodes).map(server).collect()
    }

    #[test]
    fn what_is_chosen_is_of_the_own_node_and_else_not_the_same_for_all() {
        let all = servers(&["n1", "n2", "n3", "n2"]);
        let by = |own: u64, node, all| chosen(ContextId::new(own), node, all).unwrap();
        let node_of = |id| all[&id].home.node.clone();
        assert!((0..100).all(|own| node_of(by(own, "n3", &all)) == "n3"));
        let of_n2: BTreeSet<_> = (0..100).map(|own| by(own, "n2", &all)).collect();
        assert_eq!(of_n2.len(), 2, "there are two");
        let shares = (0..1000).fold(BTreeMap::new(), |mut shares, own| {
            *shares.entry(by(own, "n9", &all)).or_insert(0) += 1;
            shares
        });
        assert!(shares.len() == 4 && shares.values().all(|share| *share > 150), "{shares:?}");
        // Whoever has chosen one that stays keeps it, whichever others go.
        let (mut fewer, own) = (all.clone(), 7);
        let kept = by(own, "n9", &all);
        fewer.retain(|id, _| *id == kept || id.context.number() >> 60 > 1);
        assert_eq!(by(own, "n9", &fewer), kept);
        assert_eq!(chosen(ContextId::new(own), "n9", &BTreeMap::new()), None);
    }
}
