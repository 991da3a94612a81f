//! A server: a thread for it and one for each of its partitions, which do what the state machines say.

use crate::chart::{Living, of_server, of_table};
use crate::extent::Extent;
use crate::host::{Host, Order};
use crate::message::{Message, VALUE_MOST, decode, encode};
use crate::misses::Misses;
use crate::partition::{Output, Partition};
use crate::survey::Survey;
use keeptime_fabric::{
    Config, Context, FindError, Match, OpenError, RecvError, RegisterError, Resource, ResourceId,
    SendError, Tag, Wait,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How often a server looks for what nobody tells it.
const TICK: Duration = Duration::from_millis(50);
/// The same of a partition, which its server tells what there is.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long another partition may take to accept a message.
const SEND_TIME: Duration = Duration::from_secs(5);

/// Why a server cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No context.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The directory does not say who there is.
    #[error(transparent)]
    Find(#[from] FindError),
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A server that runs. Dropped, it leaves nothing to others: that is what [`Server::leave`] is for.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<usize>>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    survey: Survey,
    name: String,
    misses: Misses,
    leaves: AtomicBool,
    stops: AtomicBool,
}

struct Running {
    shared: Arc<Shared>,
    resource: Resource,
    host: Host,
    partitions: BTreeMap<ResourceId, JoinHandle<()>>,
    start: Instant,
}

impl Server {
    /// Starts a server of the table `name`, which gets `partitions` of it.
    ///
    /// # Errors
    /// If there is no directory on this node, or no thread.
    pub fn start(
        mut config: Config,
        name: &str,
        partitions: usize,
        misses: Misses,
    ) -> Result<Self, ServerError> {
        // Many threads wait for most of their time; spinning, they would be in each other's way.
        config.wait = Wait::Block;
        config.message_most = config.message_most.max(2 * VALUE_MOST as u64);
        let context = Arc::new(Context::open(config)?);
        let resource = context.register(of_server(name))?;
        let survey = Survey::new(context.clone(), name)?;
        let (leaves, stops) = (AtomicBool::new(false), AtomicBool::new(false));
        let name = name.to_owned();
        let shared = Arc::new(Shared { context, survey, name, misses, leaves, stops });
        let running = Running {
            shared: shared.clone(),
            host: Host::new(resource.id(), partitions),
            resource,
            partitions: BTreeMap::new(),
            start: Instant::now(),
        };
        let thread = thread::Builder::new().name("dht-server".into());
        let thread = thread.spawn(move || running.run()).map_err(ServerError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands everything over to other servers, for as long as `time` at most. Returns how many
    /// partitions nobody took: what they have is lost.
    pub fn leave(mut self, time: Duration) -> usize {
        self.shared.leaves.store(true, Relaxed);
        let deadline = Instant::now() + time;
        while Instant::now() < deadline && self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            thread::park_timeout(TICK);
        }
        self.end()
    }

    fn end(&mut self) -> usize {
        self.shared.stops.store(true, Relaxed);
        // One that has panicked has said so.
        self.thread.take().map_or(0, |thread| thread.join().unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Returns how many partitions are left.
    fn run(mut self) -> usize {
        let (mut known, mut left) = (None, false);
        while !self.shared.stops.load(Relaxed) {
            if self.shared.leaves.load(Relaxed) && !left {
                left = self.stop_serving();
            }
            if let Ok(message) = self.resource.recv_within(Match::any(), TICK)
                && let Some(heard) = decode(&message.data)
            {
                let orders = self.host.hear(self.start.elapsed(), message.from, heard);
                self.carry_out(orders);
            }
            self.partitions.retain(|_, thread| !thread.is_finished());
            let Ok(chart) = self.shared.survey.chart() else { continue };
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &chart)) {
                self.partitions.keys().for_each(|own| self.say(*own, &Message::Look));
                known = Some(chart.clone());
            }
            let own: Vec<_> = self.partitions.keys().copied().collect();
            let mut random = |below| fastrand::u64(..below);
            let orders = self.host.step(self.start.elapsed(), &chart, &own, &mut random);
            if let Some(Order::Left { behind }) = orders.first() {
                return *behind;
            }
            self.carry_out(orders);
        }
        self.partitions.retain(|_, thread| !thread.is_finished());
        self.partitions.len()
    }

    /// Is found no more. Returns whether that was possible.
    fn stop_serving(&mut self) -> bool {
        let leaving = of_table(&self.shared.name).with("type", "leaving");
        match self.shared.context.register(leaving) {
            Ok(resource) => self.resource = resource,
            Err(_) => return false,
        }
        self.host.leave();
        true
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Send(to, message) => self.say(to, &message),
                Order::Open { extent, generation, giver } => {
                    let open = |me| Partition::joining(me, extent, generation, giver);
                    match self.open(extent, generation, Some(giver), open) {
                        Ok(()) => self.host.opened(self.start.elapsed()),
                        Err(error) => {
                            tracing::warn!(%error, %extent, "no partition can be made");
                            self.say(giver, &Message::Declined { extent });
                        }
                    }
                }
                Order::Found { is_new } => {
                    let open = |me| Partition::founded(me, is_new);
                    if let Err(error) = self.open(Extent::ALL, 0, None, open) {
                        // Nobody else makes it: it ends, so that others do.
                        tracing::error!(%error, "the super-partition cannot be made");
                        self.shared.stops.store(true, Relaxed);
                    }
                }
                Order::Left { .. } => {}
            }
        }
    }

    fn open(
        &mut self,
        extent: Extent,
        generation: u32,
        giver: Option<ResourceId>,
        open: impl FnOnce(ResourceId) -> Partition,
    ) -> Result<(), ServerError> {
        let table = of_table(&self.shared.name);
        let attributes = Living::attributes(table, extent, generation, giver);
        let resource = self.shared.context.register(attributes)?;
        let id = resource.id();
        let serving = Serving { shared: self.shared.clone(), partition: open(id), resource };
        let thread = thread::Builder::new().name("dht-partition".into());
        let thread = thread.spawn(move || serving.run(giver)).map_err(ServerError::Thread)?;
        self.partitions.insert(id, thread);
        Ok(())
    }

    fn say(&self, to: ResourceId, message: &Message) {
        // If it does not arrive, that is found out by looking who there is.
        let _ = self.resource.send_within(to, message.tag(), encode(message), SEND_TIME);
    }
}

/// A partition and its thread.
struct Serving {
    shared: Arc<Shared>,
    partition: Partition,
    resource: Resource,
}

impl Serving {
    fn run(mut self, giver: Option<ResourceId>) {
        let mut goes_on = self.carry_out(vec![Output::Look]);
        if let Some(giver) = giver {
            self.say(giver, &Message::Identified);
        }
        while goes_on && !self.shared.stops.load(Relaxed) {
            let outputs = match self.resource.recv_within(Match::any(), LOOK_EVERY) {
                Ok(message) => match decode(&message.data) {
                    Some(heard) => self.partition.hear(message.from, heard),
                    None => Vec::new(),
                },
                Err(RecvError::Undelivered(undelivered)) => {
                    self.partition.undelivered(undelivered.to);
                    Vec::new()
                }
                Err(_) => vec![Output::Look],
            };
            goes_on = self.carry_out(outputs);
        }
    }

    /// Returns whether there is more to do.
    fn carry_out(&mut self, outputs: Vec<Output>) -> bool {
        for output in outputs {
            match output {
                Output::Send(to, message) => self.say(to, &message),
                Output::Answer(to, number, answer) => {
                    self.shared.misses.look_for(&self.shared.context, to);
                    // Who takes no answers is not waited for, and asks again.
                    let _ = self.resource.try_send(to, Tag(number), encode(&answer));
                }
                Output::Look => {
                    if let Ok(chart) = self.shared.survey.chart() {
                        let outputs = self.partition.look(&chart);
                        if !self.carry_out(outputs) {
                            return false;
                        }
                    }
                }
                Output::Ended => return false,
            }
        }
        true
    }

    fn say(&mut self, to: ResourceId, message: &Message) {
        self.shared.misses.look_for(&self.shared.context, to);
        let sent = self.resource.send_within(to, message.tag(), encode(message), SEND_TIME);
        let Err(error) = sent else { return };
        self.partition.undelivered(to);
        // What was on its way when the connection broke may have arrived.
        if matches!(message, Message::Given { .. }) && !matches!(error, SendError::Broken(_)) {
            self.partition.not_given(to);
        }
    }
}
