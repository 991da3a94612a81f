//! What all handles of one context share: inboxes, links, listeners and the way of a message
//! between them.

mod catcher;

use crate::bridge::request::Whom;
use crate::bridge::routes::Way;
use crate::bridge::{self, Search, Survey};
use crate::config::{Config, Protocol};
use crate::directory::client::{Client, DirectoryError};
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::is_trusted;
use crate::echo;
use crate::error::{OpenError, SendError};
use crate::flow::{Unsent, charge};
use crate::flusher::Flusher;
use crate::frame::{Carrier, EAGER_MOST, Frame, Greeting, Malformed, Reason, Refusal};
use crate::id::{ContextId, Place, ResourceId};
use crate::inbox::{Arrived, Body, Inbox, Inboxes, Left, Taken, Undelivered};
use crate::keeper::Keeper;
use crate::link::{Assembled, Attempt, Home, Link};
use crate::links::{Current, Links};
use crate::listen::{Listeners, call_neighbour, call_remote, greet_over, spoken};
use crate::matching::{Match, Tag};
use crate::networks::{Network, candidates, discover, shared};
use crate::pacing::Carriage;
use crate::payload::{Buffer, Payload};
use crate::progress::{Parker, Progress, Work, lock};
use crate::random;
use crate::streams::{Stream, Streams, Wanted};
use crate::transport::{Broken, Ends, rails};
use crate::turns::{Flow, Turns};
use catcher::Catcher;
use keeptime_model::units::BitsPerSecond;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use std::{io, iter, slice};

/// So many links over the kernel are asked one by one while spinning.
const ASKED_ONE_BY_ONE: usize = 2;

/// All of a context.
#[derive(Debug)]
pub struct Core {
    id: ContextId,
    config: Config,
    networks: Vec<Network>,
    inboxes: Inboxes,
    links: Links,
    listeners: Listeners,
    progress: Progress,
    directory: Client,
    flusher: Flusher,
    streams: Streams,
    survey: Survey,
    keeper: Keeper,
    turns: Arc<Turns>,
    /// What did not arrive of what resources have sent that are gone.
    untold: Mutex<Option<Unsent>>,
    /// One connection is made at a time; messages do not come this way.
    connecting: Mutex<()>,
}

/// Who sent it, its tag, and what it says.
pub type Received = (ResourceId, Tag, Buffer);

/// What a thread sees that waits for a turn.
enum Look<T> {
    /// What it waits for.
    Done(T),
    /// That it comes no sooner than then, as it is reserved now.
    At(Instant),
    /// That another thread has to do something first.
    Later,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Core {
    /// Opens a context.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        let of = |what: &'static str| move |source| OpenError::System { what, source };
        let id = ContextId::new(random().map_err(of("random numbers"))?);
        let progress = Progress::new(config.wait).map_err(of("descriptors to wait on"))?;
        let listeners = Listeners::new(id, config.listen, &progress).map_err(of("listening"))?;
        let port = listeners.port().map_err(of("listening"))?;
        let networks = discover().map_err(of("the node's interfaces"))?;
        let addresses = if config.listen.ip().is_unspecified() {
            let own = networks.iter().map(|network| SocketAddr::new(network.address, port));
            own.filter(|address| address.is_ipv4() == config.listen.is_ipv4()).collect()
        } else {
            vec![SocketAddr::new(config.listen.ip(), port)]
        };
        // Who it belongs to, and where, its daemon says.
        let (node, owner, callers) = (String::new(), 0, config.callers);
        let carriers = spoken(config.between_nodes, &addresses);
        let info = ContextInfo { id, node, owner, callers, addresses, carriers };
        let directory = Client::connect(&config.directory, info)?;
        Ok(Self {
            id,
            config,
            networks,
            inboxes: Inboxes::new(),
            links: Links::default(),
            listeners,
            progress,
            directory,
            flusher: Flusher::default(),
            streams: Streams::default(),
            survey: Survey::default(),
            keeper: Keeper::default(),
            turns: Arc::new(Turns::new()),
            untold: Mutex::default(),
            connecting: Mutex::new(()),
        })
    }

    /// Its name.
    pub fn id(&self) -> ContextId {
        self.id
    }

    /// What it was asked to be.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The networks of its node.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Its side of the directory.
    pub fn directory(&self) -> &Client {
        &self.directory
    }

    /// What carries gathered messages when nobody else does.
    pub fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// Its streams over several rails.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Who looks after them.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Others are asked for nothing any more: threads that make connections end soon, whatever they wait for.
    pub fn give_up_calls(&self) {
        self.directory.close();
        self.survey.end();
    }

    /// Its inboxes.
    pub fn inboxes(&self) -> &Inboxes {
        &self.inboxes
    }

    /// Reserves a rate for what `from` sends to `to`.
    pub fn reserve(&self, from: Place, to: ResourceId, rate: BitsPerSecond) {
        self.turns.reserve((from, to), rate).iter().for_each(|parker| self.wake(parker));
    }

    /// Gives back what `from` has reserved, for one receiver or for all.
    pub fn release(&self, from: Place, to: Option<ResourceId>) {
        self.turns.release(from, to).iter().for_each(|parker| self.wake(parker));
    }

    /// Sends a short message by `link` if nothing has to be waited for; false if it has to be sent
    /// otherwise.
    pub fn send_at_once(
        &self,
        from: Place,
        to: ResourceId,
        tag: Tag,
        payload: &[u8],
        link: &Link,
    ) -> bool {
        if payload.len() > EAGER_MOST || !self.turns.are_free() || !link.leads_to(to.context) {
            return false;
        }
        let credit = self.inboxes.credit_with_message(from, link.id);
        let sent = link.message(from, to.place, tag, payload, credit) == Ok(Attempt::Done);
        if sent {
            self.flush_soon(link);
        } else if credit > 0 {
            self.inboxes.with(from, |inbox| {
                // If it breaks after this look, that is forgotten with it; before, it would be kept for ever.
                if link.broken().is_none() {
                    inbox.put_back(link.id, credit);
                }
            });
        }
        sent
    }

    /// Sends a message. `last` is the link that was used last, if that led to the same context.
    pub fn send(
        &self,
        from: Place,
        to: ResourceId,
        tag: Tag,
        payload: Payload<'_>,
        patience: Patience,
        last: &mut Option<Arc<Link>>,
    ) -> Result<(), SendError> {
        if payload.len() as u64 > self.config.message_most {
            let (bytes, most) = (payload.len(), self.config.message_most);
            return Err(SendError::TooLong { bytes, most });
        }
        if self.turns.post((from, to)) {
            let is_long = payload.len() > EAGER_MOST && to.context != self.id;
            let carriage = if is_long { Carriage::InPieces } else { Carriage::Whole };
            self.wait_for_turn((from, to), payload.len(), carriage, patience)?;
        }
        if to.context == self.id {
            return self.send_within(from, to.place, tag, payload, patience);
        }
        let link = match last.take().filter(|link| link.leads_to(to.context)) {
            Some(link) => link,
            None => self.link_to(to.context)?,
        };
        let link = &*last.insert(link);
        let sent = match payload {
            Payload::Given(data) if data.len() > EAGER_MOST => {
                self.give(link, from, to.place, tag, data, patience)
            }
            Payload::Lent(data) if data.len() > EAGER_MOST => {
                self.lend(link, from, to.place, tag, data, patience)
            }
            short => {
                let data = short.as_bytes();
                self.attempt(link, patience, || link.message(from, to.place, tag, data, 0))
            }
        };
        self.flush_soon(link);
        sent.inspect_err(|error| {
            if let SendError::Broken(broken) = error {
                self.lost(link, broken.clone());
            }
        })
    }

    /// The first message that `wanted` wants, or what became of one that was sent. None if there is
    /// none in time.
    pub fn receive(
        &self,
        place: Place,
        wanted: Match,
        patience: Patience,
    ) -> Option<Result<Received, Undelivered>> {
        loop {
            let message = match self.take(place, wanted, patience)? {
                Taken::Notice(undelivered) => return Some(Err(undelivered)),
                Taken::Message(message, None) => message,
                Taken::Message(message, Some(bytes)) => {
                    if let Some(link) = self.links.numbered(message.link) {
                        self.answer(&link, Frame::Credit { place, bytes });
                    }
                    message
                }
            };
            let data = match message.body {
                Body::Whole(data) => Some(data),
                Body::Offered { link, token, size, .. } => {
                    let envelope = (message.from, place, message.tag);
                    self.fetch(&link, token, size, envelope, &wanted).map(Buffer::from)
                }
            };
            if let Some(data) = data {
                return Some(Ok((message.from, message.tag, data)));
            }
        }
    }

    /// Closes an inbox: who sent what nobody took is told.
    pub fn close(&self, place: Place) {
        self.release(place, None);
        let Some(Left { messages, owed, senders }) = self.inboxes.close(place) else { return };
        for (number, bytes) in owed {
            if let Some(link) = self.links.numbered(number) {
                self.answer(&link, Frame::Credit { place, bytes });
            }
        }
        for message in messages {
            self.reject(place, message);
        }
        senders.iter().for_each(|parker| self.progress.wake(parker));
    }

    /// Works until everything that was sent is with the other ends, or with their kernels, or
    /// `deadline` has passed.
    pub fn drain(&self, deadline: Instant) {
        let drained = || {
            let view = self.links.view();
            view.in_memory.iter().chain(&view.others).all(|link| self.is_drained(link))
        };
        // The kernel does not say when it has sent everything: look every now and then.
        let step = std::time::Duration::from_millis(1);
        loop {
            let now = Instant::now();
            if drained() || now >= deadline {
                return;
            }
            self.progress.wait(self, Some((now + step).min(deadline)), || None::<()>, |_| {});
        }
    }

    /// The same. Returns what may not have arrived, but for what resources are told that are still there.
    pub fn unsent(&self, deadline: Instant) -> Option<Unsent> {
        // Connections that have broken already are found out first.
        self.progress.look(self);
        self.drain(deadline);
        let view = self.links.view();
        let links = view.in_memory.iter().chain(&view.others);
        let left = links.filter(|link| !self.is_drained(link)).flat_map(|link| link.unsent());
        let left: Vec<_> = left.collect();
        // After that look, which may have found another one broken.
        let untold = *lock(&self.untold);
        left.into_iter().fold(untold, |before, to| Some(Unsent::with(before, to)))
    }

    /// Whether everything that was sent by `link` is with the other end, or with its kernel. If it breaks now nothing
    /// more is sent: senders are told.
    fn is_drained(&self, link: &Arc<Link>) -> bool {
        link.is_drained(self).unwrap_or_else(|broken| {
            self.lost(link, broken);
            true
        })
    }

    /// Works until `stopped`, which is looked at whenever `enlist`ed threads are woken.
    pub fn work_until(&self, mut stopped: impl FnMut() -> bool, enlist: impl FnMut(&Arc<Parker>)) {
        self.progress.wait(self, None, || stopped().then_some(()), enlist);
    }

    /// Wakes a thread.
    pub fn wake(&self, parker: &Parker) {
        self.progress.wake(parker);
    }

    fn take(&self, place: Place, wanted: Match, patience: Patience) -> Option<Taken> {
        let catcher = Catcher::new(self, place, wanted);
        match patience {
            Patience::None => catcher.look(),
            Patience::Until(deadline) => catcher.wait(deadline),
        }
    }

    /// Fetches an offered message, and begins to fetch those that `wanted` will want after it. None if it will never
    /// arrive; its sender is told.
    ///
    /// It waits for the end of it, whatever the patience of the caller: put back, it would have lost its place among
    /// those that this receiver did not want.
    fn fetch(
        &self,
        link: &Arc<Link>,
        token: u32,
        size: u64,
        (from, to, tag): (ResourceId, Place, Tag),
        wanted: &Match,
    ) -> Option<Vec<u8>> {
        // What was fetched ahead may be there all the same.
        if link.broken().is_some() && !link.has_taken(token) {
            return None;
        }
        if link.take_offer(token, size as usize).is_err() {
            let (from, reason) = (from.place, Refusal::NoRoom { left: 0 });
            self.answer(link, Frame::Rejected { from, to, tag, token, bytes: 0, reason });
            return None;
        }
        self.inboxes.with(to, |inbox| {
            // Nobody else takes them out meanwhile.
            for (link, token, size) in inbox.fetch_ahead(wanted) {
                // Without memory for it now it is fetched when it is wanted.
                let _ = link.take_offer(token, size as usize);
                self.flush_soon(&link);
            }
        });
        let arrived = || match link.assembled(token) {
            Assembled::NotYet => None,
            Assembled::Whole(data) => Some(Some(data)),
            Assembled::Never => Some(None),
        };
        let enlist = |parker: &Arc<Parker>| link.enlist_fetch(token, parker);
        self.progress.wait(self, None, arrived, enlist).flatten()
    }

    fn give(
        &self,
        link: &Link,
        from: Place,
        to: Place,
        tag: Tag,
        mut data: Buffer,
        patience: Patience,
    ) -> Result<(), SendError> {
        self.attempt(link, patience, || link.offer_given(from, to, tag, &mut data))
    }

    fn lend(
        &self,
        link: &Link,
        from: Place,
        to: Place,
        tag: Tag,
        data: &[u8],
        patience: Patience,
    ) -> Result<(), SendError> {
        let mut token = None;
        self.attempt(link, patience, || {
            token = link.offer_lent(from, to, tag, data.len())?;
            Ok(if token.is_some() { Attempt::Done } else { Attempt::Wait })
        })?;
        let Some(token) = token else { return Ok(()) };
        let deadline = match patience {
            Patience::Until(deadline) => deadline,
            Patience::None if link.withdraw(token) => return Err(SendError::WouldBlock),
            // Another thread has heard already that it is taken.
            Patience::None => None,
        };
        let flow = (from, ResourceId { context: link.peer, place: to });
        let mut sent = 0;
        let mut send = || match link.send_lent(token, data, &mut sent) {
            Ok(None) if link.is_held(token) => Look::At(self.turns.piece_at(flow)),
            Ok(None) => Look::Later,
            Ok(Some(Ok(()))) => Look::Done(Ok(())),
            Ok(Some(Err(reason))) => Look::Done(Err(SendError::Rejected(reason))),
            Err(broken) => Look::Done(Err(SendError::Broken(broken))),
        };
        let enlist = |parker: &Arc<Parker>| link.enlist(parker);
        if let Some(result) = self.wait_in_turn(flow, deadline, &mut send, enlist) {
            return result;
        }
        if link.withdraw(token) {
            return Err(SendError::TimedOut);
        }
        // It was taken at the last moment: half a message is no message.
        self.wait_in_turn(flow, None, send, enlist).unwrap_or(Err(SendError::TimedOut))
    }

    /// Tries until it is done or patience is at its end.
    fn attempt(
        &self,
        link: &Link,
        patience: Patience,
        mut attempt: impl FnMut() -> Result<Attempt, Broken>,
    ) -> Result<(), SendError> {
        let mut attempt = || match attempt() {
            Ok(Attempt::Done) => Some(Ok(())),
            Ok(Attempt::Wait) => None,
            Err(broken) => Some(Err(SendError::Broken(broken))),
        };
        if let Some(done) = attempt() {
            return done;
        }
        let Patience::Until(deadline) = patience else {
            self.progress.look(self);
            return attempt().unwrap_or(Err(SendError::WouldBlock));
        };
        let enlist = |parker: &Arc<Parker>| link.enlist(parker);
        let done = self.progress.wait(self, deadline, attempt, enlist);
        done.unwrap_or(Err(SendError::TimedOut))
    }

    /// Waits until the message of a flow with a reserved rate may be sent.
    fn wait_for_turn(
        &self,
        flow: Flow,
        bytes: usize,
        carriage: Carriage,
        patience: Patience,
    ) -> Result<(), SendError> {
        let take = || {
            let next = self.turns.take(flow, bytes, carriage)?;
            next.iter().for_each(|parker| self.progress.wake(parker));
            Some(())
        };
        let taken = match patience {
            Patience::None => take(),
            Patience::Until(deadline) => {
                let look = || take().map_or_else(|| Look::At(self.turns.look_at(flow)), Look::Done);
                self.wait_in_turn(flow, deadline, look, |_| {})
            }
        };
        taken.ok_or_else(|| {
            self.turns.withdraw(flow);
            if matches!(patience, Patience::None) {
                SendError::WouldBlock
            } else {
                SendError::TimedOut
            }
        })
    }

    /// Waits until `look` gives something or `deadline` has passed. Looks when it said to, and when what `flow` has
    /// reserved is another rate or nothing any more: that says another time.
    fn wait_in_turn<T>(
        &self,
        flow: Flow,
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Look<T>,
        enlist: impl Fn(&Arc<Parker>),
    ) -> Option<T> {
        let mut until = deadline;
        let mut enlisted: Option<Arc<Parker>> = None;
        let done = loop {
            let ready = || match look() {
                Look::Later => None,
                Look::At(time) if until.is_some_and(|until| until <= time) => None,
                seen => Some(seen),
            };
            let seen = self.progress.wait(self, until, ready, |parker| {
                enlist(parker);
                self.turns.enlist(flow, parker);
                enlisted = Some(parker.clone());
            });
            until = match seen {
                Some(Look::Done(done)) => break Some(done),
                Some(Look::At(time)) => Some(time),
                _ if deadline.is_some_and(|deadline| Instant::now() >= deadline) => break None,
                _ => deadline,
            };
        };
        enlisted.iter().for_each(|parker| self.turns.delist(flow, parker));
        done
    }

    fn send_within(
        &self,
        from: Place,
        to: Place,
        tag: Tag,
        payload: Payload<'_>,
        patience: Patience,
    ) -> Result<(), SendError> {
        // A given buffer was there before; only what is copied takes memory.
        let charge = if payload.is_given() { charge(0) } else { charge(payload.len()) };
        let id = ResourceId { context: self.id, place: to };
        let has_room = || self.inboxes.with(to, |inbox| inbox.has_room(charge));
        let room = || match has_room() {
            None => Some(Err(SendError::Gone(id))),
            Some(true) => Some(Ok(())),
            Some(false) => None,
        };
        match (room(), patience) {
            (Some(room), _) => room?,
            (None, Patience::None) => return Err(SendError::WouldBlock),
            (None, Patience::Until(deadline)) => {
                let enlist = |parker: &Arc<Parker>| {
                    self.inboxes.with(to, |inbox| inbox.enlist_sender(parker));
                };
                let waited = self.progress.wait(self, deadline, room, enlist);
                waited.unwrap_or(Err(SendError::TimedOut))?;
            }
        }
        let from = ResourceId { context: self.id, place: from };
        let body = Body::Whole(payload.into_buffer());
        let message = Arrived { from, tag, body, link: 0, charge };
        match self.deliver(to, message) {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(SendError::Gone(id)),
        }
    }

    /// The link to another context, which is made if there is none.
    fn link_to(&self, peer: ContextId) -> Result<Arc<Link>, SendError> {
        if let Some(link) = self.links.to(peer) {
            return Ok(link);
        }
        let _one_at_a_time = lock(&self.connecting);
        if let Some(link) = self.links.to(peer) {
            return Ok(link);
        }
        let found = self.directory.resolve(peer)?.ok_or(SendError::NoContext(peer))?;
        let info = &found.context;
        let own = self.directory.welcome();
        let unreachable = |why: String| {
            let node = info.node.clone();
            SendError::Unreachable { context: peer, node, why }
        };
        if !info.callers.include(info.owner, own.owner) {
            let owner = info.owner;
            let why = format!("it takes messages of programs of user {owner} and of root alone");
            return Err(unreachable(why));
        }
        let same_node = info.node == own.node;
        let link = if same_node && self.config.shared_memory && is_trusted(info.owner, own.owner) {
            // Who calls, its kernel tells.
            let greeting = self.greeting(&found, self.streams.next_number());
            let ends = call_neighbour(Greeting { pass: None, ..greeting }, info.owner);
            ends.map(|ends| self.connected(peer, ends))
        } else {
            self.tell_carrier(info);
            if same_node {
                self.call_any(&found, &candidates(&self.networks, &info.addresses, true))
            } else {
                self.reach(&found)
            }
        };
        let link = link.map_err(|error| unreachable(error.to_string()))?;
        // That one may have called meanwhile: all that is sent there goes by one link.
        Ok(self.links.to(peer).unwrap_or(link))
    }

    /// A link to another node: over the network that both are on, over all of them if they are
    /// several, over bridges if there is none, and else wherever a router may lead.
    fn reach(&self, peer: &Introduction) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let mut straight = self.straight(info);
        if let [only] = &straight[..] {
            if let Ok(link) = self.reach_straight(peer, only) {
                return Ok(link);
            }
            // It has just been tried.
            straight.clear();
        }
        // Found out, which takes a while, only when nothing leads straight there.
        let bridged = iter::once_with(|| self.bridged(info, &[], &[])).flatten();
        let number = self.streams.next_number();
        for way in straight.into_iter().chain(bridged) {
            if let Ok(ends) = self.call(peer, number, &way) {
                return self.begin(peer, number, way, ends);
            }
        }
        self.call_any(peer, &candidates(&self.networks, &info.addresses, false))
    }

    /// A link over the only network that both are on; a stream that begins with it if bridges lead there so much sooner
    /// that they are to be used, too.
    fn reach_straight(&self, peer: &Introduction, way: &Way) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let stream = self.survey.call(way, Whom::Context(info.id))?;
        let is_enough = self.bridged(info, &[], slice::from_ref(way)).is_empty();
        let number = self.streams.next_number();
        let greeting = Greeting { is_rail: !is_enough, ..self.greeting(peer, number) };
        let ends = greet_over(way, stream, greeting, self.carrier_to(info))?;
        if is_enough {
            return Ok(self.connected(info.id, ends));
        }
        self.begin(peer, number, way.clone(), ends)
    }

    /// A connection to another context over `way`, a rail of the stream of this number.
    fn call(&self, peer: &Introduction, number: u64, way: &Way) -> io::Result<Ends> {
        let stream = self.survey.call(way, Whom::Context(peer.context.id))?;
        let greeting = Greeting { is_rail: true, ..self.greeting(peer, number) };
        greet_over(way, stream, greeting, self.carrier_to(&peer.context))
    }

    fn call_any(&self, peer: &Introduction, addresses: &[SocketAddr]) -> io::Result<Arc<Link>> {
        let greeting = || self.greeting(peer, self.streams.next_number());
        let ends = call_remote(greeting, addresses, self.carrier_to(&peer.context))?;
        Ok(self.connected(peer.context.id, ends))
    }

    /// What carries what is sent to another context: what is wanted between nodes, if that one speaks it too.
    fn carrier_to(&self, info: &ContextInfo) -> Protocol {
        info.carriers.taken(self.config.between_nodes)
    }

    /// Says so when that is not what is wanted.
    fn tell_carrier(&self, info: &ContextInfo) {
        let (wanted, taken) = (self.config.between_nodes, self.carrier_to(info));
        if taken != wanted {
            let (context, node) = (info.id, &info.node);
            tracing::warn!(%context, %node, "called over {taken:?}: it does not speak {wanted:?}");
        }
    }

    /// Whoever is called knows by the number which call is the latest: links of one connection count with streams.
    fn greeting(&self, peer: &Introduction, attempt: u64) -> Greeting {
        let Introduction { context, pass } = peer;
        let (to, carrier) = (context.id, Carrier::Itself);
        Greeting { from: self.id, to, carrier, attempt, is_rail: false, pass: *pass }
    }

    /// Whether a caller from elsewhere is who it says, and of a user who is let in.
    fn lets_in(&self, greeting: &Greeting) -> bool {
        let own = self.directory.welcome();
        let Some(key) = own.key else { return true };
        greeting.pass.is_some_and(|pass| {
            key.knows(&pass, greeting.from) && self.config.callers.include(own.owner, pass.user)
        })
    }

    /// Ways over the networks that both nodes are on.
    fn straight(&self, info: &ContextInfo) -> Vec<Way> {
        shared(&self.networks, &info.addresses).into_iter().map(Way::straight).collect()
    }

    /// Ways over bridges for one who uses those of `taken`: beside networks that are shared, over which `straight`
    /// leads, only if these are slow.
    fn bridged(&self, info: &ContextInfo, taken: &[Way], straight: &[Way]) -> Vec<Way> {
        if !straight.is_empty() && !self.survey.are_slow(straight) {
            return Vec::new();
        }
        let known = |all: &BTreeMap<_, _>| Some(bridge::known(all.values()));
        // Without an answer there is none that is known.
        let bridges = self.directory.find(&bridge::query(), None, known);
        let bridges = bridges.ok().flatten().unwrap_or_default();
        let (own, peer, whom) = (&self.networks, &info.addresses, Whom::Context(info.id));
        let search = Search { own, bridges: &bridges, peer, whom };
        if straight.is_empty() {
            self.survey.ways(&search, taken)
        } else {
            self.survey.detours(&search, taken, straight)
        }
    }

    /// A stream of this context's own, with its first rail.
    fn begin(
        &self,
        peer: &Introduction,
        number: u64,
        way: Way,
        first: Ends,
    ) -> io::Result<Arc<Link>> {
        let (ends, rails) = rails::ends()?;
        let rail = rails.join(first)?;
        let link = self.connected(peer.context.id, ends);
        self.streams.insert(link.clone(), rails, number, Some((peer.clone(), rail, way)));
        self.keeper.notice();
        Ok(link)
    }

    /// Somebody has called who is let in.
    fn greeted(&self, greeting: &Greeting, ends: Ends) {
        let Greeting { from, attempt, is_rail, .. } = *greeting;
        if !self.links.calls(from, attempt, is_rail) {
            // Its caller has given it up.
            tracing::debug!(%from, attempt, "a call has come late");
        } else if !is_rail {
            self.called(from, attempt, ends);
        } else if let Err(error) = self.wanted(from, attempt, ends) {
            tracing::warn!(%from, %error, "a connection is given up");
        }
    }

    /// Somebody has called and wants a rail.
    fn wanted(&self, peer: ContextId, number: u64, ends: Ends) -> io::Result<()> {
        match self.streams.wanted(peer, number) {
            Wanted::Nothing => {}
            // Where there is no room for it its caller finds it closed, and goes on with those that it has.
            Wanted::Rail(stream) => drop(stream.join(ends)?),
            Wanted::Stream => {
                let (stream_ends, rails) = rails::ends()?;
                rails.join(ends)?;
                let link = self.called(peer, number, stream_ends);
                self.streams.insert(link, rails, number, None);
                self.keeper.notice();
            }
        }
        Ok(())
    }

    /// Looks after a stream: handles what has arrived, and says what has to be said.
    pub fn tend(&self, stream: &Stream) {
        self.receive_on(&stream.link, self);
        if let Err(broken) = stream.link.pump(self) {
            self.lost(&stream.link, broken);
        }
    }

    /// Whether there are links to look after.
    pub fn has_links_to_look_after(&self) -> bool {
        let view = self.links.view();
        view.in_memory.iter().chain(&view.others).any(|link| link.is_looked_after)
    }

    /// Ends those whose other nodes are gone without anything having told so.
    pub fn look_after_links(&self) {
        let view = self.links.view();
        let links = view.in_memory.iter().chain(&view.others);
        for link in links.filter(|link| link.is_looked_after) {
            if let Err(broken) = link.look_after() {
                self.lost(link, broken);
            }
        }
    }

    /// Makes the rails that a stream of this context's own has not, if they can be made. Ends a
    /// stream that has had none for too long, or whose other end is no more.
    pub fn make_rails(&self, stream: &Stream) {
        let link = &stream.link;
        let is_alone = stream.rails.all().is_empty();
        // A context is gone if its node's daemon is there and does not know it: before and after it
        // was asked for, since the way to that daemon may be what was lost.
        let is_there = || stream.peer().is_some_and(|peer| self.has_daemon(&peer.context.node));
        let was_there = is_there();
        match self.directory.resolve(link.peer) {
            Ok(Some(found)) => stream.learn(found),
            Ok(None) if is_alone && was_there && is_there() => {
                return self.lost(link, Broken::Closed);
            }
            Ok(None) | Err(_) => {}
        }
        if is_alone && let Some(why) = stream.given_up(Instant::now()) {
            return self.lost(link, why);
        }
        if let Some(peer) = stream.peer().filter(|_| stream.is_own) {
            self.make_missing(stream, &peer, is_alone);
        }
    }

    fn has_daemon(&self, node: &str) -> bool {
        let query = echo::query().with("node", node);
        let found = self.directory.find(&query, None, |all| (!all.is_empty()).then_some(()));
        matches!(found, Ok(Some(())))
    }

    fn make_missing(&self, stream: &Stream, peer: &Introduction, is_alone: bool) {
        let info = &peer.context;
        let (taken, lost) = stream.ways();
        // The others come first until it is known whether these lead there again.
        lost.iter().for_each(|way| self.survey.lost(way));
        let straight = self.straight(info);
        // Without any rail, whatever leads there is good enough.
        let beside: &[Way] = if is_alone { &[] } else { &straight };
        let bridged = self.bridged(info, &taken, beside);
        let missing = stream.missing(straight.into_iter().chain(bridged).collect());
        let missing = missing.into_iter().take(rails::RAILS_MOST);
        for way in missing.take_while(|_| stream.has_room()) {
            let called = self.call(peer, stream.number(), &way);
            // Tried again later.
            if let Ok(Some(rail)) = called.and_then(|ends| stream.join(ends)) {
                stream.joined(rail, way);
            }
        }
    }

    /// A link that `peer` has made with this `attempt`, after what has arrived by others.
    fn called(&self, peer: ContextId, attempt: u64, ends: Ends) -> Arc<Link> {
        for (link, why) in self.links.given_up_by(peer, attempt, self) {
            self.lost(&link, why);
        }
        let link = self.connected(peer, ends);
        if !self.links.made_by_peer(&link, attempt) {
            self.lost(&link, Broken::Closed);
        }
        link
    }

    fn connected(&self, peer: ContextId, ends: Ends) -> Arc<Link> {
        let poll_is_enough = ends.poll_is_enough;
        let turns = self.turns.clone();
        let link = self.links.insert(|number| Link::new(number, peer, ends).in_turns(turns));
        if link.is_looked_after {
            self.keeper.notice();
        }
        if !poll_is_enough {
            self.watch(&link);
        }
        // A leader that sleeps has not told this link to wake it.
        self.progress.ring();
        link
    }

    /// Nobody polls it all the while: it is to wake who sleeps.
    fn watch(&self, link: &Arc<Link>) {
        if let Err(error) = link.watch(&self.progress) {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            self.lost(link, Broken::System { call: "epoll_ctl", errno });
        }
    }

    /// A link is broken: it goes, and whoever it concerns is told.
    fn lost(&self, link: &Arc<Link>, why: Broken) {
        if !link.end(why, self) {
            return;
        }
        self.streams.remove(link.id);
        self.links.remove(link);
        self.inboxes.each(|inbox| inbox.forget(link.id));
    }

    /// [`Home::deliver`] by a thread that waits itself as `own`, if it does.
    fn deliver_by(
        &self,
        own: Option<&Arc<Parker>>,
        to: Place,
        message: Arrived,
    ) -> Result<Option<Refusal>, Malformed> {
        let deliver = |inbox: &mut Inbox, message| inbox.deliver(message, own);
        match self.inboxes.give(to, message, deliver) {
            Ok(receiver) => {
                receiver?.iter().for_each(|parker| self.progress.wake(parker));
                Ok(None)
            }
            Err(reason) => Ok(Some(reason)),
        }
    }

    /// Tells the sender of `message` that nobody took it.
    fn reject(&self, to: Place, message: Arrived) {
        let (from, tag) = (message.from, message.tag);
        if message.link == 0 {
            let to = ResourceId { context: self.id, place: to };
            return self.notify(from.place, Undelivered { to, tag, reason: Reason::Gone });
        }
        let Some(link) = self.links.numbered(message.link) else { return };
        let (from, bytes, reason) = (from.place, message.charge, Refusal::Gone);
        let rejected = |token| Frame::Rejected { from, to, tag, token, bytes, reason };
        match message.body {
            Body::Offered { token, .. } => link.reject_offer(token, rejected(token)),
            Body::Whole(_) => link.answer(rejected(0)),
        }
        self.flush_soon(&link);
    }

    /// Says `frame`, now or as soon as there is room, whatever this thread does next.
    fn answer(&self, link: &Link, frame: Frame) {
        link.answer(frame);
        self.flush_soon(link);
    }

    /// Carries what was gathered. Returns whether there was something.
    pub fn flush(&self) -> bool {
        let view = self.links.view();
        let links = || view.in_memory.iter().chain(&view.others);
        let any = links().any(|link| link.has_backlog());
        for link in links() {
            self.flush_by(link, Link::pump_if_free);
            // Whoever waits does that as well, and one is in the way of the other.
            if link.is_unsettled() && !link.is_attended() {
                self.receive_on(link, self);
            }
        }
        any
    }

    /// Has what waits carried, whatever this thread does next.
    fn flush_soon(&self, link: &Link) {
        if link.has_backlog() {
            self.flusher.notice();
        }
    }

    /// Has what waits on `link` carried by `pump`.
    fn flush_by(&self, link: &Arc<Link>, pump: impl Fn(&Link, &Self) -> Result<(), Broken>) {
        if link.has_backlog()
            && let Err(broken) = pump(link, self)
        {
            self.lost(link, broken);
        }
    }

    fn receive_on(&self, link: &Arc<Link>, home: &impl Home) -> usize {
        let handled = link.receive(home).unwrap_or_else(|broken| {
            self.lost(link, broken);
            1
        });
        // Pieces of what is taken now may have to wait for their times.
        self.flush_soon(link);
        handled
    }

    /// [`Work::poll`], with everything for `home`.
    fn poll_for(&self, home: &impl Home, view: &mut Current, ask_kernel: bool) -> usize {
        self.links.refresh(view);
        let in_memory = view.in_memory.iter().filter(|link| link.may_have_frames());
        let mut handled: usize = in_memory.map(|link| self.receive_on(link, home)).sum();
        if ask_kernel && !self.are_many(view) {
            for link in &view.others {
                handled += self.receive_on(link, home);
            }
        } else {
            for link in &view.others {
                self.watch(link);
                self.flush_by(link, Link::pump);
            }
        }
        handled
    }

    /// [`Work::signalled`], with everything for `home`.
    fn signalled_for(&self, home: &impl Home, token: u64) {
        if Listeners::is_theirs(token) {
            let lets_in = |greeting: &Greeting| self.lets_in(greeting);
            let greeted = self.listeners.signalled(token, self.id, &self.progress, lets_in);
            if let Some((greeting, ends)) = greeted {
                self.greeted(&greeting, ends);
            }
        } else if let Some(link) = self.links.numbered(token as u32) {
            match link.signalled(home) {
                Ok(()) => self.flush_soon(&link),
                Err(broken) => self.lost(&link, broken),
            }
        }
    }
}

impl Home for Core {
    fn message_most(&self) -> u64 {
        self.config.message_most
    }

    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        self.deliver_by(None, to, message)
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        for (before, why) in self.links.begun(link, number, self)? {
            self.lost(&before, why);
        }
        Ok(())
    }

    fn notify(&self, sender: Place, notice: Undelivered) {
        let to = notice.to;
        let Some(receivers) = self.inboxes.with(sender, |inbox| inbox.notify(notice)) else {
            // The sender is gone as well: whoever closes the context wants to know.
            let mut untold = lock(&self.untold);
            *untold = Some(Unsent::with(*untold, to));
            return;
        };
        receivers.iter().for_each(|parker| self.progress.wake(parker));
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Work for Core {
    type View = Current;

    fn view(&self) -> Current {
        self.links.view()
    }

    fn poll(&self, view: &mut Current, ask_kernel: bool) -> usize {
        self.poll_for(self, view, ask_kernel)
    }

    fn is_in_memory(&self, view: &Current) -> bool {
        view.others.is_empty()
    }

    fn are_many(&self, view: &Current) -> bool {
        view.others.len() > ASKED_ONE_BY_ONE
    }

    fn falls_asleep(&self) -> bool {
        let view = self.links.view();
        view.others.iter().for_each(|link| self.watch(link));
        // All of them, even if one has something: the words of those that were told are taken back.
        view.in_memory.iter().filter(|link| !link.falls_asleep()).count() == 0
    }

    fn wakes_up(&self) {
        self.links.view().in_memory.iter().for_each(|link| link.wakes_up());
    }

    fn signalled(&self, token: u64) {
        self.signalled_for(self, token);
    }
}

impl From<DirectoryError> for SendError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error)
    }
}
