//! A program's side of the directory: questions and their answers, which are kept and kept right by
//! what the server pushes. Who looks at an answer first reads what was pushed until then: what a
//! register elsewhere has told before it returned is seen by every look that begins after it. When
//! the server ends, everything is said anew to the next one. That one knows what there is when other
//! programs and servers have told it, which takes a moment: until then watchers are not told that
//! something is gone of which it has not heard, and looks find what it has heard of.

use super::name_of;
use super::protocol::{
    Answer, ContextInfo, Introduction, Record, Request, VERSION, decode, encode,
};
use super::state::SILENCE_MOST;
use crate::attributes::Attributes;
use crate::door::ContextKey;
use crate::id::{ContextId, Place, ResourceId};
use crate::progress::lock;
use crate::sockets::{call, expect_trusted};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockType, recv};
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Questions that are kept beyond their use; each costs the server a look at each change.
const KEPT_MOST: usize = 1024;
/// How long watchers are not told that something is gone of which the next server knows nothing yet: other servers call
/// it within a second, and are given up when they have been silent for so long.
const HELD_FOR: Duration = SILENCE_MOST;
/// Events that a watcher has not taken, before it has to look at everything anew.
const EVENTS_MOST: usize = 65_536;
/// How long an answer may take, other servers' confirmations included.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How often a server that is not there, or refuses this program, is tried again.
const AGAIN_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked what is held no longer.
const LET_GO_EVERY: Duration = Duration::from_millis(500);
/// How often a resource is registered again that the next server has not taken: it may be refused itself, as long as others
/// take the one before it for the living one.
const REJECTED_EVERY: Duration = Duration::from_millis(500);
/// Bytes that were waiting to be read, from which on more may wait in the server, as the socket was
/// full. One that is full holds more: of 208 KiB the kernel counts 768 bytes at least for a message,
/// and no message is shorter than eight bytes.
const FULL_LEAST: usize = 2048;

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// There is no server on this node.
    #[error("no directory server named {name:?} on this node ({why}): start keeptime-fabricd")]
    Unreachable {
        /// Its name.
        name: String,
        /// What the kernel says.
        why: String,
    },
    /// The server does not accept it.
    #[error("the directory server refuses: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("the directory server did not answer within {} s", ANSWER_TIME.as_secs())]
    Silent,
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A resource is there.
    Appeared(Record),
    /// It is no more.
    Gone(ResourceId),
    /// More happened than was kept: look at everything anew.
    Missed,
}

/// The connection to the server, and everything that was said on it.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    context: ContextInfo,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    server: Option<Connection>,
    /// How often more may have waited in the server than could be read, and up to which of these
    /// times it is known to have been read.
    behind: u64,
    caught_up: u64,
    welcome: Option<Welcome>,
    number: u32,
    /// Questions without an answer yet: said again to the next server.
    open: BTreeMap<u32, Request>,
    answers: HashMap<u32, Result<Option<Introduction>, String>>,
    registered: BTreeMap<Place, Attributes>,
    /// Resources that this server, which is not the first, was told and has not answered, and those that it has not taken.
    again: BTreeMap<u32, Place>,
    rejected: BTreeSet<Place>,
    /// This server may not know yet what there is, or something is held that the one before it knew.
    is_settling: bool,
    subscriptions: HashMap<u32, Subscription>,
    by_query: HashMap<Attributes, u32>,
    /// Counts uses, to tell which question was not asked for longest.
    uses: u64,
    refused: Option<String>,
    closed: bool,
}

/// A connection to a server, and what it has begun to say.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Subscription {
    query: Attributes,
    records: BTreeMap<ResourceId, Record>,
    /// What the server before knew and this one does not, and watchers have not been told yet.
    held: BTreeMap<ResourceId, Held>,
    /// The server's answer to this is known and kept right.
    current: bool,
    used: u64,
    watchers: HashMap<u64, VecDeque<Event>>,
}

/// A record that may come back until then.
#[derive(Debug)]
struct Held {
    record: Record,
    until: Instant,
}

/// What the server has said of this program.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// The name of its node.
    pub node: String,
    /// Its user.
    pub owner: u32,
    /// What its callers are known by; none if everybody is to be believed.
    pub key: Option<ContextKey>,
}

/// Events of one question, from when it was made.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    subscription: u32,
    watcher: u64,
}

impl Client {
    /// Connects to the server `name` of this node, for `context`.
    ///
    /// # Errors
    /// If there is none, or it refuses.
    pub fn connect(name: &str, context: ContextInfo) -> Result<Self, DirectoryError> {
        let state = Mutex::default();
        let shared = Shared { name: name.into(), context, state, changed: Condvar::new() };
        let shared = Arc::new(shared);
        let unreachable = |error: io::Error| {
            let (name, why) = (name.into(), error.to_string());
            DirectoryError::Unreachable { name, why }
        };
        let stream = shared.join().map_err(unreachable)?;
        let reading = shared.clone();
        let reader = thread::Builder::new()
            .name("directory-client".into())
            .spawn(move || reading.listen(stream))
            .map_err(unreachable)?;
        let client = Self { shared, reader: Some(reader) };
        client.shared.welcome()?;
        Ok(client)
    }

    /// What the server, or the last one, has said of this program.
    pub fn welcome(&self) -> Welcome {
        let welcome = lock(&self.shared.state).welcome.clone();
        welcome.unwrap_or_else(|| unreachable!("no client without one"))
    }

    /// Registers a resource. When this returns, every program that asks finds it.
    ///
    /// # Errors
    /// If the server refuses, or does not answer.
    pub fn register(&self, place: Place, attributes: Attributes) -> Result<(), DirectoryError> {
        attributes.check().map_err(|invalid| DirectoryError::Refused(invalid.to_string()))?;
        self.ask(|number| Request::Register { number, place, attributes }).map(drop)
    }

    /// Drops it, without waiting until every server knows.
    pub fn drop_resource(&self, place: Place) {
        let mut state = lock(&self.shared.state);
        state.registered.remove(&place);
        let number = state.next_number();
        state.say(&Request::Drop { number, place });
    }

    /// Where a context is, if it is anywhere, and what to show it.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn resolve(&self, context: ContextId) -> Result<Option<Introduction>, DirectoryError> {
        self.ask(|number| Request::Resolve { number, context })
    }

    /// What `look` makes of all resources that include `query`, kept from last time or asked for.
    /// It is asked again after each change, until it gives something or `deadline` has passed.
    ///
    /// # Errors
    /// If the server refuses the question or does not answer.
    pub fn find<T>(
        &self,
        query: &Attributes,
        deadline: Option<Instant>,
        mut look: impl FnMut(&BTreeMap<ResourceId, Record>) -> Option<T>,
    ) -> Result<Option<T>, DirectoryError> {
        // A server would disconnect who says something so long, and not say why.
        query.check().map_err(|invalid| DirectoryError::Refused(invalid.to_string()))?;
        self.catch_up()?;
        let mut state = lock(&self.shared.state);
        let mut number = state.subscription(query);
        // Until when an answer is waited for: from when it is asked for, which it is anew when the server has ended.
        let mut answer_by = None;
        loop {
            if let Some(Err(why)) = state.answers.remove(&number) {
                state.forget(number);
                return Err(DirectoryError::Refused(why));
            }
            let Some(subscription) = state.subscriptions.get(&number) else {
                // Another thread was refused the same question, or there were too many others: it is asked anew.
                number = state.subscription(query);
                continue;
            };
            let now = Instant::now();
            let until = if subscription.current {
                if let Some(found) = look(&subscription.records) {
                    return Ok(Some(found));
                }
                if deadline.is_none_or(|deadline| now >= deadline) {
                    return Ok(None);
                }
                answer_by = None;
                deadline.unwrap_or(now)
            } else {
                let until = *answer_by.get_or_insert(now + ANSWER_TIME);
                if now >= until || state.closed {
                    return Err(state.silence());
                }
                until
            };
            let time = until.saturating_duration_since(now);
            let waited = self.shared.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Everything that happens from now on to resources that include `query`, and all that there
    /// are now.
    ///
    /// # Errors
    /// If the server refuses the question or does not answer.
    pub fn watch(&self, query: &Attributes) -> Result<(Vec<Record>, Watch), DirectoryError> {
        // The answer first, so that there is one; then it and the watcher at one moment.
        self.find(query, None, |_| Some(()))?;
        let mut state = lock(&self.shared.state);
        let subscription = state.subscription(query);
        state.uses += 1;
        let watcher = state.uses;
        let kept = state.subscriptions.get_mut(&subscription).ok_or(DirectoryError::Silent)?;
        kept.watchers.insert(watcher, VecDeque::new());
        let records = kept.watched().cloned().collect();
        Ok((records, Watch { shared: self.shared.clone(), subscription, watcher }))
    }

    /// Ends the connection. Whoever waits for an answer, or asks from now on, gets none.
    pub fn close(&self) {
        let mut state = lock(&self.shared.state);
        state.closed = true;
        if let Some(server) = &state.server {
            let _ = server.stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Reads what the server has said until now.
    fn catch_up(&self) -> Result<(), DirectoryError> {
        let mut state = lock(&self.shared.state);
        if state.hear_all() > 0 {
            self.shared.changed.notify_all();
        }
        let behind = state.behind;
        if state.caught_up >= behind {
            return Ok(());
        }
        drop(state);
        // It answers in order: what it had to say before is read when this is.
        let context = self.shared.context.id;
        self.ask(|number| Request::Resolve { number, context })?;
        let mut state = lock(&self.shared.state);
        state.caught_up = state.caught_up.max(behind);
        Ok(())
    }

    fn ask(
        &self,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<Option<Introduction>, DirectoryError> {
        let mut state = lock(&self.shared.state);
        let number = state.next_number();
        let request = request(number);
        state.say(&request);
        state.open.insert(number, request);
        drop(state);
        let answer = self.shared.wait(Instant::now() + ANSWER_TIME, |state| {
            state.answers.remove(&number).map(|answer| answer.map_err(DirectoryError::Refused))
        });
        if answer.is_err() {
            lock(&self.shared.state).give_up(number);
        }
        answer
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Watch {
    /// The next event, if one happens before `deadline`.
    pub fn next_until(&self, deadline: Instant) -> Option<Event> {
        let mut state = lock(&self.shared.state);
        loop {
            let subscription = state.subscriptions.get_mut(&self.subscription)?;
            let events = subscription.watchers.get_mut(&self.watcher)?;
            if let Some(event) = events.pop_front() {
                return Some(event);
            }
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        if let Some(subscription) = state.subscriptions.get_mut(&self.subscription) {
            subscription.watchers.remove(&self.watcher);
        }
    }
}

impl Shared {
    /// Connects and says everything that the server has to know.
    fn join(&self) -> io::Result<UnixStream> {
        // One that does not read for so long counts as gone, as it does for other servers: whoever says something to it has the
        // lock, and all others would wait with that one.
        let stream = call(&name_of(&self.name), SockType::Stream, SILENCE_MOST)?;
        let stream = UnixStream::from(stream);
        expect_trusted(&stream, geteuid().as_raw())?;
        let watched = stream.try_clone()?;
        let mut state = lock(&self.state);
        if state.closed {
            // Whoever has closed it waits for this thread, which would wait for what this server says.
            return Err(io::ErrorKind::NotConnected.into());
        }
        state.server = Some(Connection { stream, bytes: Vec::new() });
        state.say(&Request::Hello { version: VERSION, context: self.context.clone() });
        state.is_settling = true;
        state.again.clear();
        state.rejected = state.registered.keys().copied().collect();
        state.say_rejected();
        let queries: Vec<_> =
            state.subscriptions.iter().map(|(number, s)| (*number, s.query.clone())).collect();
        for (number, query) in queries {
            state.say(&Request::Subscribe { number, query });
        }
        let open: Vec<_> = state.open.values().cloned().collect();
        open.iter().for_each(|request| state.say(request));
        Ok(watched)
    }

    /// Hears what the server says, this one and the next, until the client is dropped. `stream` is
    /// that of the server.
    fn listen(&self, mut stream: UnixStream) {
        let mut tried = Instant::now();
        loop {
            self.listen_to(&stream);
            stream = loop {
                // Whoever refuses this program, as a server of another version does, would be asked all the while.
                if !self.rest_until(tried + AGAIN_EVERY) {
                    return;
                }
                tried = Instant::now();
                if let Ok(next) = self.join() {
                    break next;
                }
            };
        }
    }

    /// Waits until then. Returns false as soon as the client is dropped.
    fn rest_until(&self, then: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.closed {
            let time = then.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Hears one server, until the connection ends.
    fn listen_to(&self, stream: &UnixStream) {
        let mut said = Instant::now();
        loop {
            let rest = lock(&self.state).rest();
            let mut watched = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            // Interrupted: as if something had come.
            let _ = poll(&mut watched, rest);
            let mut state = lock(&self.state);
            if said.elapsed() >= REJECTED_EVERY {
                said = Instant::now();
                state.say_rejected();
            }
            state.hear_all();
            state.let_go(Instant::now());
            let stands = state.server.is_some();
            drop(state);
            self.changed.notify_all();
            if !stands {
                return;
            }
        }
    }

    /// Waits until the server has taken this program in.
    fn welcome(&self) -> Result<(), DirectoryError> {
        self.wait(Instant::now() + ANSWER_TIME, |state| match &state.refused {
            Some(why) => Some(Err(DirectoryError::Refused(why.clone()))),
            None => state.welcome.as_ref().map(|_| Ok(())),
        })
    }

    fn wait<T>(
        &self,
        deadline: Instant,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, DirectoryError>>,
    ) -> Result<T, DirectoryError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(done) = ready(&mut state) {
                return done;
            }
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() || state.closed {
                return Err(state.silence());
            }
            let waited = self.changed.wait_timeout(state, time);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// A number that no question has whose answer may come or is kept: numbers begin again after the last.
    fn next_number(&mut self) -> u32 {
        loop {
            self.number = self.number.wrapping_add(1);
            let number = self.number;
            let is_asked = self.open.contains_key(&number) || self.again.contains_key(&number);
            let is_kept = self.subscriptions.contains_key(&number);
            if !is_asked && !is_kept && !self.answers.contains_key(&number) {
                return number;
            }
        }
    }

    /// Nobody waits for that answer any more, though it may have come a moment ago.
    fn give_up(&mut self, number: u32) {
        self.open.remove(&number);
        self.answers.remove(&number);
    }

    /// Why nothing is answered: it is refused as a whole, or nobody says.
    fn silence(&self) -> DirectoryError {
        self.refused.clone().map_or(DirectoryError::Silent, DirectoryError::Refused)
    }

    /// How long there is nothing to be said again, and nothing to be let go.
    fn rest(&self) -> PollTimeout {
        let says_again = !self.again.is_empty() || !self.rejected.is_empty();
        let every = match (says_again, self.is_settling) {
            (false, false) => return PollTimeout::NONE,
            (true, false) => REJECTED_EVERY,
            (false, true) => LET_GO_EVERY,
            (true, true) => REJECTED_EVERY.min(LET_GO_EVERY),
        };
        PollTimeout::try_from(every).unwrap_or(PollTimeout::NONE)
    }

    /// Tells watchers what has not come back in time.
    fn let_go(&mut self, now: Instant) {
        if !self.is_settling {
            return;
        }
        self.subscriptions.values_mut().for_each(|subscription| subscription.let_go(now));
        let mut watched = self.subscriptions.values().filter(|s| !s.watchers.is_empty());
        self.is_settling = watched.any(|s| !s.current || !s.held.is_empty());
    }

    /// Registers those that the server has not taken, as far as they are there still.
    fn say_rejected(&mut self) {
        for place in std::mem::take(&mut self.rejected) {
            let Some(attributes) = self.registered.get(&place).cloned() else { continue };
            let number = self.next_number();
            self.again.insert(number, place);
            self.say(&Request::Register { number, place, attributes });
        }
    }

    /// Says it, if there is a server; if not, or if this fails, the next one will be told.
    fn say(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        encode(request, &mut bytes);
        if let Some(server) = &mut self.server
            && server.stream.write_all(&bytes).is_err()
        {
            // Whoever reads next finds its end.
            let _ = server.stream.shutdown(Shutdown::Both);
        }
    }

    /// Hears what the server has said, without waiting. Returns how many bytes that was.
    fn hear_all(&mut self) -> usize {
        let Some(mut server) = self.server.take() else { return 0 };
        let before = server.bytes.len();
        let stands = server.read_all();
        let read = server.bytes.len() - before;
        self.behind += u64::from(read >= FULL_LEAST);
        let mut used = 0;
        let whole = loop {
            match decode(&server.bytes[used..]) {
                Ok(Some((answer, length))) => {
                    self.hear(answer);
                    used += length;
                }
                Ok(None) => break true,
                // Not a server of ours: the connection is of no use.
                Err(_) => break false,
            }
        };
        server.bytes.drain(..used);
        if stands && whole {
            self.server = Some(server);
        } else {
            // The thread that hears the server may sleep on it, and another one may be the first to find this.
            let _ = server.stream.shutdown(Shutdown::Both);
            self.subscriptions.values_mut().for_each(|subscription| subscription.current = false);
        }
        read
    }

    /// The number of the question `query`, which is asked if it was not.
    fn subscription(&mut self, query: &Attributes) -> u32 {
        self.uses += 1;
        let used = self.uses;
        if let Some(number) = self.by_query.get(query).copied() {
            if let Some(subscription) = self.subscriptions.get_mut(&number) {
                subscription.used = used;
            }
            return number;
        }
        if self.by_query.len() >= KEPT_MOST {
            let unwatched = self.subscriptions.iter().filter(|(_, s)| s.watchers.is_empty());
            let oldest = unwatched.min_by_key(|(_, s)| s.used).map(|(number, _)| *number);
            oldest.into_iter().for_each(|number| self.unsubscribe(number));
        }
        let number = self.next_number();
        let subscription = Subscription {
            query: query.clone(),
            records: BTreeMap::new(),
            held: BTreeMap::new(),
            current: false,
            used,
            watchers: HashMap::new(),
        };
        self.subscriptions.insert(number, subscription);
        self.by_query.insert(query.clone(), number);
        self.say(&Request::Subscribe { number, query: query.clone() });
        number
    }

    fn unsubscribe(&mut self, number: u32) {
        self.forget(number);
        self.say(&Request::Unsubscribe { number });
    }

    fn forget(&mut self, number: u32) {
        if let Some(subscription) = self.subscriptions.remove(&number) {
            self.by_query.remove(&subscription.query);
        }
    }

    fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Welcome { node, owner, key } => {
                self.welcome = Some(Welcome { node, owner, key });
                self.refused = None;
            }
            Answer::Refused { number: None, why } => self.refused = Some(why),
            Answer::Refused { number: Some(number), why } => self.answered(number, Err(why)),
            Answer::Done { number } => self.answered(number, Ok(None)),
            Answer::Resolved { number, found } => self.answered(number, Ok(found)),
            Answer::Found { number, records } => {
                if let Some(subscription) = self.subscriptions.get_mut(&number) {
                    subscription.found(records, Instant::now());
                }
            }
            Answer::Appeared { number, record } => {
                if let Some(subscription) = self.subscriptions.get_mut(&number) {
                    subscription.appeared(record);
                }
            }
            Answer::Gone { number, id } => {
                if let Some(subscription) = self.subscriptions.get_mut(&number) {
                    subscription.gone(id);
                }
            }
        }
    }

    fn answered(&mut self, number: u32, answer: Result<Option<Introduction>, String>) {
        if let Some(place) = self.again.remove(&number) {
            self.rejected.extend(answer.is_err().then_some(place));
            return;
        }
        let asked = self.open.remove(&number);
        // Here, and not where it is waited for: the next server may be told before that thread is awake.
        if let (Some(Request::Register { place, attributes, .. }), Ok(_)) = (&asked, &answer) {
            self.registered.insert(*place, attributes.clone());
        }
        // What nobody waits for has been dropped, or given up.
        if asked.is_some() || self.subscriptions.contains_key(&number) {
            self.answers.insert(number, answer);
        }
    }
}

impl Connection {
    /// Reads what has come. Returns whether more may come.
    fn read_all(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        loop {
            match recv(self.stream.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return false,
                Ok(length) => self.bytes.extend_from_slice(&piece[..length]),
                Err(Errno::EINTR) => {}
                Err(errno) => return errno == Errno::EAGAIN,
            }
        }
    }
}

impl Subscription {
    /// Everything anew: the first time, or from the next server. What that one says otherwise, as when its node has
    /// another name now, is told as elsewhere: gone, and there again. What it does not say it may not have heard yet.
    fn found(&mut self, records: Vec<Record>, now: Instant) {
        self.current = true;
        let there: BTreeMap<_, _> = records.into_iter().map(|record| (record.id, record)).collect();
        let missing = self.records.keys().filter(|id| !there.contains_key(*id));
        let missing: Vec<_> = missing.copied().collect();
        missing.into_iter().for_each(|id| self.hold(id, now));
        for (id, record) in there {
            if self.records.get(&id) != Some(&record) {
                self.gone(id);
                self.appeared(record);
            }
        }
    }

    /// Looks find it no more, and watchers are not told yet.
    fn hold(&mut self, id: ResourceId, now: Instant) {
        if let Some(record) = self.records.remove(&id)
            && !self.watchers.is_empty()
        {
            self.held.insert(id, Held { record, until: now + HELD_FOR });
        }
    }

    /// What has been held for long enough is gone.
    fn let_go(&mut self, now: Instant) {
        let over = self.held.iter().filter(|(_, held)| held.until <= now);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.held.remove(&id);
            self.tell(&Event::Gone(id));
        }
    }

    /// All that watchers take for being there.
    fn watched(&self) -> impl Iterator<Item = &Record> {
        self.records.values().chain(self.held.values().map(|held| &held.record))
    }

    fn appeared(&mut self, record: Record) {
        let held = self.held.remove(&record.id);
        let is_back = held.as_ref().is_some_and(|held| held.record == record);
        if held.is_some() && !is_back {
            self.tell(&Event::Gone(record.id));
        }
        if !is_back {
            self.tell(&Event::Appeared(record.clone()));
        }
        self.records.insert(record.id, record);
    }

    fn gone(&mut self, id: ResourceId) {
        if self.records.remove(&id).is_some() {
            self.tell(&Event::Gone(id));
        }
    }

    fn tell(&mut self, event: &Event) {
        for events in self.watchers.values_mut() {
            if events.len() >= EVENTS_MOST {
                events.clear();
                events.push_back(Event::Missed);
            }
            events.push_back(event.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_of;
    use super::*;
    use crate::attrs;
    use crate::carriers::Carriers;
    use crate::door::Callers;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    const MANY: u32 = 200;
    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);
    const PLACE: Place = Place { slot: 3, generation: 1 };

    /// A place for servers of this name, and a program.
    fn listen(name: &str) -> (String, UnixListener, ContextInfo) {
        let name = format!("{name}-{}", std::process::id());
        let listener = UnixListener::bind_addr(&address_of(&name).unwrap()).unwrap();
        let id = ContextId::new(1);
        let (node, callers, addresses) = ("n0".into(), Callers::SameUser, vec![]);
        let carriers = Carriers::default();
        (name, listener, ContextInfo { id, node, owner: 0, callers, addresses, carriers })
    }

    fn accept(listener: &UnixListener) -> UnixStream {
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    fn welcome() -> Answer {
        Answer::Welcome { node: "n0".into(), owner: 0, key: None }
    }

    fn say(stream: &mut UnixStream, answers: &[Answer]) {
        let mut said = Vec::new();
        answers.iter().for_each(|answer| encode(answer, &mut said));
        stream.write_all(&said).unwrap();
    }

    /// Says what `answers` to each request, until there is nothing to be said any more or the program is gone.
    fn serve(mut stream: UnixStream, mut answers: impl FnMut(Request) -> Option<Vec<Answer>>) {
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            bytes.extend_from_slice(&piece[..length]);
            while let Some((request, length)) = decode(&bytes).unwrap() {
                bytes.drain(..length);
                let Some(answers) = answers(request) else { return };
                say(&mut stream, &answers);
            }
        }
    }

    /// A server whose socket was full: it has one more to tell, and tells it before it answers
    /// anything else.
    fn is_behind(stream: UnixStream, home: &ContextInfo) {
        let appeared = |number, slot| {
            let id = ResourceId { context: home.id, place: Place { slot, generation: 1 } };
            let record = Record { id, attributes: attrs! { "a" => "b" }, home: home.clone() };
            Answer::Appeared { number, record }
        };
        let mut subscription = 0;
        serve(stream, |request| {
            Some(match request {
                Request::Hello { .. } => vec![welcome()],
                Request::Subscribe { number, .. } => {
                    subscription = number;
                    let found = Answer::Found { number, records: vec![] };
                    [found].into_iter().chain((0..MANY).map(|n| appeared(number, n))).collect()
                }
                Request::Resolve { number, .. } => {
                    vec![appeared(subscription, MANY), Answer::Resolved { number, found: None }]
                }
                _ => vec![],
            })
        });
    }

    #[test]
    fn what_a_server_could_not_say_yet_is_waited_for() {
        let (name, listener, home) = listen("behind");
        thread::scope(|scope| {
            scope.spawn(|| is_behind(accept(&listener), &home));
            let client = Client::connect(&name, home.clone()).unwrap();
            let count = || client.find(&attrs! {}, None, |records| Some(records.len()));
            count().unwrap();
            assert_eq!(count(), Ok(Some(MANY as usize + 1)));
        });
    }

    /// A daemon of another version has come in place of the one that this program knew.
    #[test]
    fn a_server_that_refuses_is_tried_now_and_then_and_its_reason_is_told() {
        let (name, listener, home) = listen("refuses");
        let refused = Answer::Refused { number: None, why: "another version".into() };
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    _ => None,
                });
                for _ in 0..4 {
                    say(&mut accept(&listener), std::slice::from_ref(&refused));
                }
            });
            let client = Client::connect(&name, home).unwrap();
            assert_eq!(lock(&client.shared.state).silence(), DirectoryError::Silent);
            let start = Instant::now();
            // With which the first one ends.
            client.drop_resource(PLACE);
            served.join().unwrap();
            assert!(start.elapsed() >= 3 * AGAIN_EVERY, "{:?}", start.elapsed());
            let why = DirectoryError::Refused("another version".into());
            assert_eq!(lock(&client.shared.state).silence(), why);
        });
    }

    /// It would be gone for everybody, though its program has it.
    #[test]
    fn what_the_next_server_does_not_take_is_registered_again() {
        let (name, listener, home) = listen("again");
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    Request::Register { number, .. } => Some(vec![Answer::Done { number }]),
                    _ => None,
                });
                let mut times = 0;
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    Request::Register { number, place: PLACE, .. } if times < 2 => {
                        times += 1;
                        let why = "this node is refused by another".into();
                        Some(vec![Answer::Refused { number: Some(number), why }])
                    }
                    _ => None,
                });
                times
            });
            let client = Client::connect(&name, home).unwrap();
            client.register(PLACE, attrs! { "a" => "b" }).unwrap();
            // With which the first one ends.
            client.drop_resource(Place { slot: 4, generation: 1 });
            assert_eq!(served.join().unwrap(), 2);
        });
    }

    #[test]
    fn what_was_answered_is_told_the_next_server_whoever_has_waited_for_it() {
        let (mut state, attributes) = (State::default(), attrs! { "a" => "b" });
        let [taken, refused] = [3, 4].map(|slot| Place { slot, generation: 1 });
        for (number, place) in [(1, taken), (2, refused)] {
            let attributes = attributes.clone();
            state.open.insert(number, Request::Register { number, place, attributes });
        }
        state.hear(Answer::Done { number: 1 });
        state.hear(Answer::Refused { number: Some(2), why: "too many".into() });
        assert_eq!(state.registered, BTreeMap::from([(taken, attributes)]));
    }

    /// A record, as a server on `node` tells it.
    fn record(node: &str, attributes: Attributes) -> Record {
        let context = ContextId::new(2);
        let (node, callers, addresses) = (node.into(), Callers::SameUser, Vec::new());
        let carriers = Carriers::default();
        let home = ContextInfo { id: context, node, owner: 0, callers, addresses, carriers };
        Record { id: ResourceId { context, place: PLACE }, attributes, home }
    }

    /// A daemon that is started again with another name of its node knows the same contexts, which are elsewhere now.
    #[test]
    fn what_the_next_server_says_otherwise_is_told_and_kept() {
        let [old, new] = ["n1", "n2"].map(|node| record(node, Attributes::new()));
        let mut subscription = Subscription {
            query: Attributes::new(),
            records: BTreeMap::new(),
            held: BTreeMap::new(),
            current: false,
            used: 0,
            watchers: HashMap::from([(1, VecDeque::new())]),
        };
        for record in [&old, &old, &new, &new] {
            subscription.found(vec![record.clone()], Instant::now());
        }
        let events: Vec<Event> = subscription.watchers.remove(&1).unwrap().into();
        let id = old.id;
        assert_eq!(events, [Event::Appeared(old), Event::Gone(id), Event::Appeared(new.clone())]);
        assert_eq!(subscription.records, BTreeMap::from([(id, new)]));
    }

    /// Goal: nothing is told of what the next server hears of in time, and all else when that is over. Looks, which are to
    /// be right, do not find it meanwhile. Method: a server that knows nothing at first, again and again.
    #[test]
    fn what_the_next_server_hears_of_in_time_was_never_gone() {
        let there = record("n1", Attributes::new());
        let other = record("n1", attrs! { "a" => "b" });
        let id = there.id;
        let start = Instant::now();
        let mut state = State::default();
        let number = state.subscription(&attrs! {});
        let mut step = |after: Duration, answer: Option<Answer>| -> (usize, Vec<Event>) {
            answer.into_iter().for_each(|answer| state.hear(answer));
            state.is_settling = true;
            state.let_go(start + after);
            let subscription = state.subscriptions.get_mut(&number).unwrap();
            let events = subscription.watchers.entry(1).or_default().drain(..).collect();
            (subscription.records.len(), events)
        };
        let found = |records: &[Record]| {
            let records = records.to_vec();
            Some(Answer::Found { number, records })
        };
        let appeared = |record: &Record| {
            let record = record.clone();
            Some(Answer::Appeared { number, record })
        };
        // Answers are heard now, a little later than the start.
        let (soon, late) = (Duration::ZERO, LONG);
        // Nobody has watched until now.
        step(soon, found(std::slice::from_ref(&there)));
        let all = found(std::slice::from_ref(&there));
        for answer in [all, appeared(&there)] {
            assert_eq!(step(soon, found(&[])), (0, vec![]));
            assert_eq!(step(soon, answer), (1, vec![]));
        }
        assert_eq!(step(soon, found(&[])), (0, vec![]));
        let events = vec![Event::Gone(id), Event::Appeared(other.clone())];
        assert_eq!(step(soon, appeared(&other)), (1, events));
        assert_eq!(step(soon, found(&[])), (0, vec![]));
        assert_eq!(step(late, None), (0, vec![Event::Gone(id)]));
        assert_eq!(step(late, appeared(&there)), (1, vec![Event::Appeared(there.clone())]));
        assert!(!state.is_settling);
    }

    /// After some four thousand million questions: an answer would be taken for that of another.
    #[test]
    fn a_number_that_is_in_use_is_not_given_out_again() {
        let mut state = State { number: u32::MAX, ..State::default() };
        assert_eq!(state.subscription(&attrs! { "a" => "b" }), 0);
        let request = Request::Resolve { number: 1, context: ContextId::new(1) };
        state.open.insert(1, request);
        state.again.insert(2, PLACE);
        state.answers.insert(3, Ok(None));
        state.number = u32::MAX;
        assert_eq!(state.next_number(), 4);
    }

    #[test]
    fn an_answer_that_comes_as_it_is_given_up_is_not_kept() {
        let mut state = State::default();
        let request = Request::Resolve { number: 1, context: ContextId::new(1) };
        state.open.insert(1, request);
        state.hear(Answer::Resolved { number: 1, found: None });
        state.give_up(1);
        assert!(state.open.is_empty() && state.answers.is_empty());
        state.hear(Answer::Resolved { number: 1, found: None });
        assert!(state.answers.is_empty(), "nobody has asked");
    }

    /// A server would disconnect who says something so long, and so would each that it is said to again.
    #[test]
    fn what_no_server_takes_is_not_said() {
        let (name, listener, home) = listen("long");
        let long = attrs! { "a" => "b".repeat(2 << 20) };
        let why = DirectoryError::Refused(long.check().unwrap_err().to_string());
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let mut asked = 0;
                serve(accept(&listener), |request| match request {
                    Request::Hello { .. } => Some(vec![welcome()]),
                    _ => {
                        asked += 1;
                        None
                    }
                });
                asked
            });
            let client = Client::connect(&name, home).unwrap();
            assert_eq!(client.find(&long, None, |_| Some(())), Err(why.clone()));
            assert_eq!(client.register(PLACE, long), Err(why));
            drop(client);
            assert_eq!(served.join().unwrap(), 0);
        });
    }

    /// Goal: who waits for a resource gets it, however many other questions are asked meanwhile. Method: so many that
    /// the one that is waited for is given up; it is answered when it is asked for the second time.
    #[test]
    fn who_waits_is_answered_whatever_others_ask() {
        let (name, listener, home) = listen("many");
        let wanted = attrs! { "wanted" => "yes" };
        let (told, asked) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut times = 0;
                serve(accept(&listener), |request| {
                    Some(match request {
                        Request::Hello { .. } => vec![welcome()],
                        Request::Subscribe { number, query } => {
                            let is_wanted = query == wanted;
                            times += i32::from(is_wanted);
                            let is_there = is_wanted && times > 1;
                            let records = is_there.then(|| record("n0", query)).into_iter();
                            let _ = is_wanted.then(|| told.send(()));
                            vec![Answer::Found { number, records: records.collect() }]
                        }
                        Request::Resolve { number, .. } => {
                            vec![Answer::Resolved { number, found: None }]
                        }
                        _ => vec![],
                    })
                });
            });
            let client = Client::connect(&name, home.clone()).unwrap();
            let deadline = Some(Instant::now() + LONG);
            let found = thread::scope(|inner| {
                let waits = inner
                    .spawn(|| client.find(&wanted, deadline, |all| all.keys().next().copied()));
                asked.recv_timeout(LONG).unwrap();
                for other in 0..KEPT_MOST {
                    let other = attrs! { "other" => other.to_string() };
                    assert_eq!(client.find(&other, None, |all| Some(all.len())), Ok(Some(0)));
                }
                waits.join().unwrap()
            });
            assert_eq!(found, Ok(Some(record("n0", wanted.clone()).id)));
        });
    }

    /// A thread that asks hears the server as well, and is the first to find that it is none: who sleeps on the connection
    /// is woken, and joins the next.
    #[test]
    fn what_is_no_server_wakes_who_hears_it() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let watched = stream.try_clone().unwrap();
        let server = Some(Connection { stream, bytes: Vec::new() });
        let mut state = State { server, ..State::default() };
        other.write_all(&[u8::MAX; 64]).unwrap();
        assert_eq!((state.hear_all(), state.server.is_some()), (64, false));
        let mut ready = [PollFd::new(watched.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ready, PollTimeout::ZERO), Ok(1), "it sleeps on");
    }

    /// Whoever drops a client waits for the thread that hears the server.
    #[test]
    fn who_is_dropped_joins_no_server() {
        let (name, _listener, context) = listen("dropped");
        let shared = Shared { name, context, state: Mutex::default(), changed: Condvar::new() };
        assert!(shared.join().is_ok());
        lock(&shared.state).closed = true;
        assert!(shared.join().is_err());
    }
}
