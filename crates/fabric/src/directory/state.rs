//! The directory of one node as a state machine: from its state, the time and an input to what is
//! to be said to whom (pure).
//!
//! Every server keeps all resources of the cluster. A server owns those of its own node and tells
//! every other server each change, on a connection that it made for that, in order; when the
//! connection breaks, the other forgets that node when it has not been told everything anew
//! [`SILENCE_MOST`] after the last sign of it: of a server that is started again nobody is told that
//! its resources were gone. So every question is answered on its own node, without asking anybody, and
//! a change costs one message for each other node. A register or a drop is answered when all servers
//! that can be reached have it: whoever asks anywhere after that finds it, or does not. One that has
//! just been cut off is waited for until it is there again, or would have been given up. Servers name each
//! other those that they hear, so that whoever has a neighbour in common finds each other.
//!
//! Programs keep what they asked as a subscription and are told each change of its answer. That is
//! a watch, and a cache that is never stale for longer than a message takes; of a node that is cut off
//! or silent, for [`SILENCE_MOST`]. Names are given once, so that what is stale leads to an error, and
//! to nobody else. Names are chosen by programs, which may take one that another has, or has had: whoever had it first has it,
//! on all nodes, and who came later is refused (`door`).

use super::members::Members;
use super::protocol::{
    Answer, Change, ContextInfo, Introduction, Record, Reply, Request, Update, VERSION, in_parts,
};
use super::records::{Questions, Records};
use super::stale::{StaleRecords, Staleness};
use super::users::{Users, counted, counted_context};
use crate::attributes::Attributes;
use crate::door::{Claim, ClusterKey};
use crate::id::{ContextId, Place, ResourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A connection of the server's shell: of a program, made by another server, or made to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// How often something is said when there is nothing to say.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// How long another server may say nothing: a few times as long, so that a busy machine is not
/// taken for a dead one. So long what it has told stands when it is cut off as well: one that is started
/// again, after a second as `contrib/systemd` has it, and its programs have told it again by then.
pub const SILENCE_MOST: Duration = Duration::from_secs(3);
/// How long a server that has just begun says of no context that it is nowhere, while others are telling it what there is:
/// some gigabytes by a slow network. Who is told by ever new ones is not to hold up its programs for ever.
const TOLD_MOST: Duration = Duration::from_secs(60);
/// Other servers that a sign of life names, so that it stays short: all of a hundred within 13 s.
const NAMED_MOST: usize = 4;
/// Resources of one context, as many as a context can have.
const RESOURCES_MOST: usize = crate::inbox::RESOURCES_MOST as usize;
/// Contexts that one program asks for and are not known yet, while that may change by itself.
const HELD_BACK_MOST: usize = 65_536;
/// Subscriptions of one program.
const SUBSCRIPTIONS_MOST: usize = 65_536;
/// Addresses of one context: more than a node has networks. All nodes keep them, and say them with each of its resources.
const ADDRESSES_MOST: usize = 256;

/// Something that happened. Connections are new numbers; a connection that the state has closed
/// says nothing more.
#[derive(Debug, Clone)]
pub enum Input {
    /// A program of this node has connected, which the kernel says is of that user.
    Connected(ConnectionId, u32),
    /// A program of this node, which the kernel says is of that user, says something.
    Request(ConnectionId, u32, Request),
    /// One says hello in this version, which is another than this server's.
    OtherVersion(ConnectionId, u16),
    /// Another server tells something.
    Update(ConnectionId, Update),
    /// A connection that was asked for is there.
    Dialed {
        /// Where to.
        address: SocketAddr,
        /// Which.
        connection: ConnectionId,
        /// Where the other server reaches this one.
        reached_at: SocketAddr,
    },
    /// It could not be made.
    Unreachable(SocketAddr),
    /// What is there is none that this server can speak with, for that reason.
    Stranger(SocketAddr, String),
    /// Another server answers.
    Reply(ConnectionId, Reply),
    /// A connection is no more.
    Closed(ConnectionId),
    /// The node's clock shows that, since 1970. It may be set at any time, as after the node has booted: said before each tick.
    Clock(Duration),
    /// Time passes. At least every [`ALIVE_EVERY`].
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Say that to a program.
    Answer(ConnectionId, Answer),
    /// Tell that to another server.
    Update(ConnectionId, Update),
    /// Answer that to another server.
    Reply(ConnectionId, Reply),
    /// Connect to a server there.
    Dial(SocketAddr),
    /// Close that when what was said is sent.
    Close(ConnectionId),
    /// Somebody should know.
    Warn(String),
}

/// The directory of one node.
#[derive(Debug)]
pub struct Directory {
    node: String,
    incarnation: u64,
    address: SocketAddr,
    key: Option<ClusterKey>,
    now: Duration,
    clock: Clock,
    /// When this run began, which is with its first step.
    begun: Option<Duration>,
    records: Records,
    questions: Questions<(ConnectionId, u32)>,
    programs: BTreeMap<ConnectionId, Program>,
    /// Connections of programs that were let in, with or without a hello, and whose they are: until they are no more, which those
    /// of programs that are refused are only when these have taken why, or have not for a while.
    connected: BTreeMap<ConnectionId, u32>,
    users: Users,
    contexts: BTreeMap<ContextId, OpenContext>,
    /// Whose contexts were that have ended, and until when no other user has the name of one.
    left: BTreeMap<ContextId, (Precedence, Duration)>,
    /// Who has asked for contexts of which nobody has told yet, and with which question.
    held_back: BTreeMap<ContextId, Vec<(ConnectionId, u32)>>,
    /// Changes of this node's resources so far.
    change: u64,
    members: Members,
    /// Connections that this server made, to tell.
    followers: BTreeMap<ConnectionId, Follower>,
    /// Nodes whose servers were told everything, and are reached by no connection just now.
    cut_off: BTreeMap<String, LostFollower>,
    /// Connections that others made, to be heard.
    origins: BTreeMap<ConnectionId, Origin>,
    /// What others have told whose connections are no more.
    stale: StaleRecords,
    /// Those of others' connections on which nobody has told yet all that there is.
    callers: BTreeMap<ConnectionId, Caller>,
    /// Who waits until all followers have applied a change.
    waiting: BTreeMap<u64, (ConnectionId, u32)>,
    /// How many origins come before the one that the next sign of life names first.
    named: usize,
    /// Where a server refuses this one, and why.
    refused: Option<(SocketAddr, String)>,
}

/// The node's clock, from which nothing is taken but since when a context is its user's: it may be set forth and back.
#[derive(Debug, Default)]
struct Clock {
    /// What it has shown last, since 1970.
    shown: Duration,
    /// When that was.
    at: Duration,
}

/// A context, and since when it is its user's.
#[derive(Debug, Clone)]
struct OpenContext {
    info: Arc<ContextInfo>,
    since: Duration,
}

/// Who had a name first, which all servers find alike: less is before. Two users have no name at the same moment but by a
/// chance that somebody has to decide.
type Precedence = (Duration, u32);

/// A program of this node.
#[derive(Debug)]
struct Program {
    context: ContextId,
    places: BTreeSet<Place>,
    subscriptions: BTreeSet<u32>,
    /// How many of its questions were held back.
    held_back: usize,
    user: u32,
    /// What it has of what may be kept for its user.
    bytes: usize,
}

/// A server that is told everything.
#[derive(Debug)]
struct Follower {
    address: SocketAddr,
    /// Whose server it is, once it has said so.
    node: Option<String>,
    /// It has taken the snapshot.
    welcome: bool,
    applied: u64,
    heard: Duration,
    /// The last sign of it on connections beside this one that are no more.
    heard_beside: Duration,
}

/// A server that was told everything, as by a bridge that is no more. It may be there, and its programs ask it.
#[derive(Debug, Clone, Copy)]
struct LostFollower {
    /// The last change that it is known to have.
    applied: u64,
    /// Until when it may be found again before it counts as gone.
    until: Duration,
}

/// A server that has not told yet all that there is, and what it has told of that.
#[derive(Debug, Default)]
struct Caller {
    /// When it was there, or told the last part.
    since: Duration,
    contexts: Vec<(ContextInfo, Duration)>,
    resources: Vec<(ResourceId, Attributes)>,
}

/// A server that tells.
#[derive(Debug)]
struct Origin {
    node: String,
    incarnation: u64,
    address: SocketAddr,
    change: u64,
    contexts: BTreeSet<ContextId>,
    resources: BTreeSet<ResourceId>,
    heard: Duration,
}

impl Program {
    /// Something with these attributes is to be kept for it.
    fn keep(&mut self, attributes: &Attributes, users: &mut Users) -> Result<(), String> {
        let bytes = counted(attributes);
        users.keep(self.user, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// It is kept no longer.
    fn give_back(&mut self, attributes: &Attributes, users: &mut Users) {
        let bytes = counted(attributes);
        users.give_back(self.user, bytes);
        self.bytes -= bytes;
    }
}

impl Clock {
    /// What it shows then.
    fn shows(&self, now: Duration) -> Duration {
        self.shown.saturating_add(now.saturating_sub(self.at))
    }
}

impl OpenContext {
    fn precedence(&self) -> Precedence {
        (self.since, self.info.owner)
    }
}

impl Follower {
    /// Whether it is known to be the server of that node.
    fn is_of(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

impl Caller {
    /// Whether it has told anything.
    fn has_told(&self) -> bool {
        !self.contexts.is_empty() || !self.resources.is_empty()
    }
}

impl Origin {
    /// It has that context no more: which resources that had.
    fn forget(&mut self, context: ContextId) -> Vec<ResourceId> {
        self.contexts.remove(&context);
        let its = self.resources.iter().filter(|id| id.context == context);
        let its: Vec<_> = its.copied().collect();
        self.resources.retain(|id| id.context != context);
        its
    }

    /// How others are told of it.
    fn named(&self) -> (String, SocketAddr) {
        (self.node.clone(), self.address)
    }
}

impl Directory {
    /// An empty directory. `incarnation` differs from that of any other run; `members` are where
    /// other servers are expected. Without a key contexts believe their callers.
    pub fn new(
        node: impl Into<String>,
        incarnation: u64,
        address: SocketAddr,
        members: impl IntoIterator<Item = SocketAddr>,
        key: Option<ClusterKey>,
    ) -> Self {
        let others = members.into_iter().filter(|other| *other != address);
        Self {
            node: node.into(),
            incarnation,
            address,
            key,
            now: Duration::ZERO,
            clock: Clock::default(),
            begun: None,
            records: Records::default(),
            questions: Questions::default(),
            programs: BTreeMap::new(),
            connected: BTreeMap::new(),
            users: Users::new(usize::MAX),
            contexts: BTreeMap::new(),
            left: BTreeMap::new(),
            held_back: BTreeMap::new(),
            change: 0,
            members: Members::new(others),
            followers: BTreeMap::new(),
            cut_off: BTreeMap::new(),
            origins: BTreeMap::new(),
            stale: StaleRecords::default(),
            callers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            named: 0,
            refused: None,
        }
    }

    /// The same, with so many connections of one user's programs at most.
    #[must_use]
    pub fn with_connections_of_a_user(self, most: usize) -> Self {
        Self { users: Users::new(most), ..self }
    }

    /// What to do about `input`, `now` since any moment of this run. That never goes back. Without [`Input::Clock`] it is what the
    /// node's clock shows as well.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<Output> {
        self.now = self.now.max(now);
        self.begun.get_or_insert(self.now);
        let mut outputs = Vec::new();
        match input {
            Input::Connected(from, user) => self.came(from, user, &mut outputs),
            Input::Request(from, user, request) => self.asked(from, user, request, &mut outputs),
            Input::OtherVersion(from, version) => {
                self.refuse(from, None, other_version(version), &mut outputs);
            }
            Input::Update(from, update) => self.told(from, update, &mut outputs),
            Input::Reply(from, heard) => self.heard(from, heard, &mut outputs),
            Input::Dialed { address, connection, reached_at } => {
                self.dialed(address, connection, reached_at, &mut outputs);
            }
            Input::Unreachable(address) => self.is_silent(address),
            Input::Stranger(address, why) => self.is_strange(address, &why, &mut outputs),
            Input::Closed(connection) => self.went(connection, &mut outputs),
            Input::Clock(shown) => self.clock = Clock { shown, at: self.now },
            Input::Tick => self.tick(&mut outputs),
        }
        outputs
    }

    /// All that include `query`, as any program of this node would be answered.
    pub fn find(&self, query: &Attributes) -> Vec<Record> {
        self.records.find(query)
    }

    fn came(&mut self, from: ConnectionId, user: u32, outputs: &mut Vec<Output>) {
        match self.users.connect(user) {
            Ok(()) => drop(self.connected.insert(from, user)),
            Err(why) => self.refuse(from, None, why, outputs),
        }
    }

    /// A connection is no more.
    fn went(&mut self, connection: ConnectionId, outputs: &mut Vec<Output>) {
        if let Some(user) = self.connected.remove(&connection) {
            self.users.disconnect(user);
        }
        self.closed(connection, outputs);
    }

    fn asked(
        &mut self,
        from: ConnectionId,
        user: u32,
        request: Request,
        outputs: &mut Vec<Output>,
    ) {
        let known = self.programs.contains_key(&from);
        let why = match request {
            Request::Hello { version, .. } if !known && version != VERSION => {
                Err((None, other_version(version)))
            }
            Request::Hello { context, claim, .. } if !known => self
                .hello(from, ContextInfo { owner: user, ..context }, claim, outputs)
                .map_err(|why| (None, why)),
            _ if !known => Err((None, "the first message has to be a hello".into())),
            Request::Hello { .. } => Err((None, "a second hello".into())),
            Request::Register { number, place, attributes } => self
                .register(from, number, place, attributes, outputs)
                .map_err(|why| (Some(number), why)),
            Request::Drop { number, place } => {
                self.drop_resource(from, number, place, outputs);
                Ok(())
            }
            Request::Subscribe { number, query } => {
                self.subscribe(from, number, query, outputs).map_err(|why| (Some(number), why))
            }
            Request::Unsubscribe { number } => {
                self.unsubscribe(from, number);
                Ok(())
            }
            Request::Resolve { number, context } => {
                self.resolve(from, number, context, outputs).map_err(|why| (Some(number), why))
            }
        };
        if let Err((number, why)) = why {
            self.refuse(from, number, why, outputs);
        }
    }

    /// Refuses a question of a program; without a number the program, which is closed.
    fn refuse(
        &mut self,
        from: ConnectionId,
        number: Option<u32>,
        why: String,
        outputs: &mut Vec<Output>,
    ) {
        outputs.push(Output::Answer(from, Answer::Refused { number, why }));
        if number.is_none() {
            outputs.push(Output::Close(from));
            self.closed(from, outputs);
        }
    }

    fn hello(
        &mut self,
        from: ConnectionId,
        context: ContextInfo,
        claim: Option<Claim>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        let mut context = ContextInfo { node: self.node.clone(), ..context };
        let mut seen = BTreeSet::new();
        context.addresses.retain(|address| seen.insert(*address));
        context.addresses.truncate(ADDRESSES_MOST);
        let claim = claim.filter(|claim| self.upholds(claim, &context));
        let since = claim.map_or_else(|| self.clock.shows(self.now), |claim| claim.since);
        let opened = OpenContext { info: context.clone().into(), since };
        self.may_open(&opened, claim.is_some())?;
        let bytes = counted_context(&context);
        self.users.keep(context.owner, bytes)?;
        if self.contexts.contains_key(&context.id) {
            self.displace(context.id, outputs);
        }
        let program = Program {
            context: context.id,
            places: BTreeSet::new(),
            subscriptions: BTreeSet::new(),
            held_back: 0,
            user: context.owner,
            bytes,
        };
        self.programs.insert(from, program);
        let (id, owner) = (context.id, context.owner);
        self.contexts.insert(id, opened);
        let welcome = Answer::Welcome {
            node: self.node.clone(),
            owner,
            key: self.key.as_ref().map(|key| key.of_context(id, owner)),
            claim: self.key.as_ref().map(|key| key.claim(id, owner, since)),
        };
        outputs.push(Output::Answer(from, welcome));
        self.answer_held_back(id, outputs);
        self.tell(Change::Opened(context, since), outputs);
        Ok(())
    }

    /// Whether a server that has the cluster's key has written that claim for that context of a program.
    fn upholds(&self, claim: &Claim, context: &ContextInfo) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| key.upholds(claim, context.id, context.owner))
    }

    /// Whether a program of this node may have that context: nobody has one of that name, and no other user had a moment ago, but
    /// who came later than its claim says. Without a claim it comes now, whatever the clocks of others say.
    fn may_open(&self, opened: &OpenContext, is_claimed: bool) -> Result<(), String> {
        let (id, own) = (opened.info.id, opened.precedence());
        let is_later = |before: Precedence| is_claimed && own < before;
        if self.contexts.get(&id).is_some_and(|before| !is_later(before.precedence())) {
            return Err(format!("context {id} is open already"));
        }
        match self.left.get(&id) {
            Some((before, _)) if before.1 != own.1 && !is_later(*before) => {
                Err(format!("context {id} was another user's a moment ago"))
            }
            _ => Ok(()),
        }
    }

    /// That context is no more: another had its name first. Its program, if that is of this node, is told so.
    fn displace(&mut self, id: ContextId, outputs: &mut Vec<Output>) {
        if self.refuse_context(id, outputs) {
            return;
        }
        self.stale.reopen(id);
        let mut its = self.stale.take(id);
        for teller in self.origins.values_mut().filter(|teller| teller.contexts.contains(&id)) {
            its.extend(teller.forget(id));
        }
        self.contexts.remove(&id);
        its.into_iter().for_each(|id| self.vanish(id, outputs));
    }

    /// Refuses the program of this node whose context that is, as another had its name first. Whether there is one.
    fn refuse_context(&mut self, id: ContextId, outputs: &mut Vec<Output>) -> bool {
        let program = self.programs.iter().find(|(_, program)| program.context == id);
        let Some(program) = program.map(|(program, _)| *program) else { return false };
        self.refuse(program, None, format!("another had context {id} first"), outputs);
        true
    }

    /// That context has ended. Its name is no other user's for a while, in which it may still be called by it.
    fn leave(&mut self, id: ContextId) {
        if let Some(known) = self.contexts.remove(&id) {
            let until = self.now.saturating_add(SILENCE_MOST);
            self.left.insert(id, (known.precedence(), until));
        }
    }

    /// Says where a context is. A server that has just begun has not heard yet what others have to tell, and nobody would ask
    /// again for what is said to be nowhere: that answer is held back until somebody tells of it, or would have.
    fn resolve(
        &mut self,
        from: ConnectionId,
        number: u32,
        context: ContextId,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        let found = self.introduce(from, context);
        if found.is_none() && self.is_new() {
            let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
            if program.held_back >= HELD_BACK_MOST {
                return Err(format!("{HELD_BACK_MOST} contexts are waited for, which is the most"));
            }
            program.held_back += 1;
            self.held_back.entry(context).or_default().push((from, number));
        } else {
            outputs.push(Output::Answer(from, Answer::Resolved { number, found }));
        }
        Ok(())
    }

    /// Whether servers may be there that this one has not heard in this run, or not to the end of what they have to tell. Those
    /// that it knows, and those that know it, call each other within two seconds.
    fn is_new(&self) -> bool {
        let since_begun = self.begun.map_or(Duration::ZERO, |begun| self.now.saturating_sub(begun));
        let least = if self.is_being_told() { TOLD_MOST } else { SILENCE_MOST };
        since_begun < least
    }

    /// Whether a part has come of what another server has to tell, and more may come.
    fn is_being_told(&self) -> bool {
        let is_heard = |c: &Caller| self.now.saturating_sub(c.since) <= SILENCE_MOST;
        self.callers.values().any(|caller| caller.has_told() && is_heard(caller))
    }

    /// Whoever has asked for that context is told where it is, or that it is nowhere.
    fn answer_held_back(&mut self, context: ContextId, outputs: &mut Vec<Output>) {
        for (program, number) in self.held_back.remove(&context).unwrap_or_default() {
            // One that has ended meanwhile hears nothing.
            let found = self.introduce(program, context);
            outputs.push(Output::Answer(program, Answer::Resolved { number, found }));
        }
    }

    /// What nobody has told of until now is nowhere.
    fn answer_all_held_back(&mut self, outputs: &mut Vec<Output>) {
        while let Some(context) = self.held_back.keys().next().copied() {
            self.answer_held_back(context, outputs);
        }
    }

    /// What the program at `from` has to know to call `context`.
    fn introduce(&self, from: ConnectionId, context: ContextId) -> Option<Introduction> {
        let info = &self.contexts.get(&context)?.info;
        let caller = &self.contexts.get(&self.programs.get(&from)?.context)?.info;
        let key = self.key.as_ref().map(|key| key.of_context(context, info.owner));
        let pass = key.map(|key| key.pass(caller.id, caller.owner));
        Some(Introduction { context: ContextInfo::clone(info), pass })
    }

    fn register(
        &mut self,
        from: ConnectionId,
        number: u32,
        place: Place,
        attributes: Attributes,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        attributes.check().map_err(|invalid| invalid.to_string())?;
        if let Some((_, why)) = &self.refused {
            return Err(format!("this node is refused by another: {why}"));
        }
        let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
        if program.places.len() >= RESOURCES_MOST {
            return Err(format!("{RESOURCES_MOST} resources are registered, which is the most"));
        }
        if program.places.contains(&place) {
            return Err(format!("{place} is registered already"));
        }
        program.keep(&attributes, &mut self.users)?;
        program.places.insert(place);
        let id = ResourceId { context: program.context, place };
        let home = self.contexts[&id.context].info.clone();
        self.appear(Record { id, attributes: attributes.clone(), home }, outputs);
        self.tell(Change::Registered(id, attributes), outputs);
        self.answer_when_applied(from, number, outputs);
        Ok(())
    }

    fn drop_resource(
        &mut self,
        from: ConnectionId,
        number: u32,
        place: Place,
        outputs: &mut Vec<Output>,
    ) {
        let Some(program) = self.programs.get_mut(&from) else { return };
        let id = ResourceId { context: program.context, place };
        if program.places.remove(&place) {
            if let Some(record) = self.records.get(id) {
                program.give_back(&record.attributes, &mut self.users);
            }
            self.vanish(id, outputs);
            self.tell(Change::Dropped(id), outputs);
        }
        self.answer_when_applied(from, number, outputs);
    }

    fn subscribe(
        &mut self,
        from: ConnectionId,
        number: u32,
        query: Attributes,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        query.check().map_err(|invalid| invalid.to_string())?;
        let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
        if program.subscriptions.len() >= SUBSCRIPTIONS_MOST {
            return Err(format!("{SUBSCRIPTIONS_MOST} questions are open, which is the most"));
        }
        // One of the same number is replaced.
        if let Some(before) = self.questions.remove((from, number)) {
            program.give_back(&before, &mut self.users);
        }
        program.subscriptions.remove(&number);
        program.keep(&query, &mut self.users)?;
        program.subscriptions.insert(number);
        let (parts, records) = in_parts(self.records.find(&query));
        self.questions.insert((from, number), query);
        let part = |records| Output::Answer(from, Answer::FoundPart { number, records });
        outputs.extend(parts.into_iter().map(part));
        outputs.push(Output::Answer(from, Answer::Found { number, records }));
        Ok(())
    }

    fn unsubscribe(&mut self, from: ConnectionId, number: u32) {
        let query = self.questions.remove((from, number));
        if let (Some(program), Some(query)) = (self.programs.get_mut(&from), query) {
            program.subscriptions.remove(&number);
            program.give_back(&query, &mut self.users);
        }
    }

    /// Another server tells what happened on its node. Whoever breaks the rules is not heard
    /// further.
    fn told(&mut self, from: ConnectionId, update: Update, outputs: &mut Vec<Output>) {
        let now = self.now;
        match self.origins.get_mut(&from) {
            Some(teller) => teller.heard = now,
            None => {
                let caller = || Caller { since: now, ..Caller::default() };
                self.callers.entry(from).or_insert_with(caller);
            }
        }
        match update {
            Update::Alive => {}
            Update::Changed { change, what } => {
                let known = self.origins.get_mut(&from).filter(|t| t.change + 1 == change);
                let Some(teller) = known else { return self.hang_up(from, outputs) };
                teller.change = change;
                self.apply(from, what, outputs);
                outputs.push(Output::Reply(from, Reply::Applied { change }));
            }
            Update::SnapshotPart { contexts, resources } => {
                let Some(caller) = self.callers.get_mut(&from) else {
                    return self.hang_up(from, outputs);
                };
                caller.since = now;
                caller.contexts.extend(contexts);
                caller.resources.extend(resources);
                // Whoever has much to tell is not to take this one for silent before it is all told.
                outputs.push(Output::Reply(from, Reply::Alive));
            }
            Update::Snapshot { node, incarnation, address, change, contexts, resources } => {
                if node == self.node && incarnation == self.incarnation {
                    // This very server, at one of its own addresses: it finds out by this.
                    let welcome = Reply::Welcome { node, members: Vec::new() };
                    outputs.push(Output::Reply(from, welcome));
                    return self.hang_up(from, outputs);
                }
                if let Err(why) = self.may_tell(from, &node, incarnation) {
                    outputs.push(Output::Reply(from, Reply::Refused { why }));
                    return self.hang_up(from, outputs);
                }
                // The same run on an older connection: that one is dead and does not know it.
                let old = self.origins.iter().find(|(_, teller)| teller.node == node);
                if let Some(old) = old.map(|(old, _)| *old) {
                    self.hang_up(old, outputs);
                }
                let teller = Origin {
                    node: node.clone(),
                    incarnation,
                    address,
                    change,
                    contexts: BTreeSet::new(),
                    resources: BTreeSet::new(),
                    heard: now,
                };
                self.origins.insert(from, teller);
                let told = self.callers.remove(&from).unwrap_or_default();
                let contexts = told.contexts.into_iter().chain(contexts);
                let resources = told.resources.into_iter().chain(resources);
                let contexts = contexts.map(|(c, since)| Change::Opened(c, since));
                let resources = resources.map(|(id, a)| Change::Registered(id, a));
                contexts.chain(resources).for_each(|what| self.apply(from, what, outputs));
                if !self.origins.contains_key(&from) {
                    // Something of it cannot be: it was hung up on, and is not to take itself for heard.
                    return;
                }
                // A run that goes on knows all that it has: what it had told by then and tells no more is gone. What it had
                // told later, on a connection that was there before this word was written, comes again on this one.
                let lacking = self.stale.told_by(incarnation, change);
                self.forget(lacking, outputs);
                if address != self.address {
                    self.members.appeared(&node, address, now);
                }
                let members = self.origins.values().map(Origin::named).collect();
                let welcome = Reply::Welcome { node: self.node.clone(), members };
                outputs.push(Output::Reply(from, welcome));
                outputs.push(Output::Reply(from, Reply::Applied { change }));
            }
        }
    }

    fn may_tell(&self, from: ConnectionId, node: &str, incarnation: u64) -> Result<(), String> {
        if self.origins.contains_key(&from) {
            return Err("a second snapshot".into());
        }
        let taken = |at: SocketAddr| Err(format!("the name {node} is taken by the node at {at}"));
        if node == self.node {
            return taken(self.address);
        }
        let other = self.origins.values().find(|t| t.node == node && t.incarnation != incarnation);
        other.map_or(Ok(()), |teller| taken(teller.address))
    }

    /// Applies a change of another node.
    fn apply(&mut self, from: ConnectionId, what: Change, outputs: &mut Vec<Output>) {
        let Some(teller) = self.origins.get_mut(&from) else { return };
        match what {
            Change::Opened(context, since) => {
                let info = ContextInfo { node: teller.node.clone(), ..context }.into();
                self.opened(from, OpenContext { info, since }, outputs);
            }
            Change::Closed(context) => {
                let is_its = teller.contexts.contains(&context);
                let its = teller.forget(context);
                let mut held = Vec::new();
                if is_its {
                    self.leave(context);
                    // What its program had registered before its server was started again.
                    held = self.stale.take(context);
                }
                its.into_iter().chain(held).for_each(|id| self.vanish(id, outputs));
            }
            Change::Registered(id, attributes) => {
                if attributes.check().is_err() {
                    return self.hang_up(from, outputs);
                }
                if !teller.contexts.contains(&id.context) {
                    // It was denied, and the other server did not know that yet.
                    return;
                }
                teller.resources.insert(id);
                let home = self.contexts[&id.context].info.clone();
                let record = Record { id, attributes, home };
                if self.stale.reclaim(id) {
                    self.come_back(record, outputs);
                } else {
                    self.appear(record, outputs);
                }
            }
            Change::Dropped(id) => {
                if teller.resources.remove(&id) {
                    self.vanish(id, outputs);
                }
            }
        }
    }

    /// A context is opened on another node, unless somebody else had its name first. Then that context alone is not, and its
    /// own server closes it: on all servers the same one stays, in whatever order they hear of both.
    fn opened(&mut self, from: ConnectionId, opened: OpenContext, outputs: &mut Vec<Output>) {
        let id = opened.info.id;
        if let Some(before) =
            self.contexts.get(&id).filter(|before| self.is_another(before, &opened))
        {
            if before.precedence() < opened.precedence() {
                let node = &opened.info.node;
                let why = format!("context {id} on {node}: another had that name first");
                outputs.push(Output::Warn(why));
                let since = opened.since;
                outputs.push(Output::Reply(from, Reply::Denied { context: id, since }));
                return;
            }
            self.displace(id, outputs);
        }
        let Some(teller) = self.origins.get_mut(&from) else { return };
        teller.contexts.insert(id);
        self.stale.reopen(id);
        let before = self.contexts.insert(id, opened);
        // What is held of it says where it was, and over what it could be called.
        if before.is_some_and(|before| before.info != self.contexts[&id].info) {
            let over = self.stale.take(id);
            over.into_iter().for_each(|id| self.vanish(id, outputs));
        }
        self.answer_held_back(id, outputs);
    }

    /// Whether a context that was known is not the same as one of its name that is opened: its node says what it has; and if
    /// that is cut off, its user may have it elsewhere, as on a node that has another name now.
    fn is_another(&self, before: &OpenContext, opened: &OpenContext) -> bool {
        let is_moved = self.stale.has(opened.info.id) && before.info.owner == opened.info.owner;
        before.info.node != opened.info.node && !is_moved
    }

    fn heard(&mut self, from: ConnectionId, heard: Reply, outputs: &mut Vec<Output>) {
        let Some(listener) = self.followers.get_mut(&from) else { return };
        listener.heard = self.now;
        match heard {
            Reply::Alive => {}
            Reply::Welcome { node, members } => {
                // Said again it is a sign of life.
                if !listener.welcome {
                    listener.welcome = true;
                    let address = listener.address;
                    self.welcome(from, address, &node, outputs);
                }
                members.into_iter().for_each(|(node, address)| self.learn(&node, address));
            }
            Reply::Applied { change } => {
                listener.applied = change.min(self.change);
                self.answer_applied(outputs);
            }
            Reply::Denied { context, since } => {
                // Its program may have ended meanwhile, and another have the name.
                if self.contexts.get(&context).is_some_and(|known| known.since == since) {
                    self.refuse_context(context, outputs);
                }
            }
            Reply::Refused { why } => {
                let address = listener.address;
                outputs.push(Output::Warn(format!("{address} refuses: {why}")));
                self.refused = Some((address, why));
                self.hang_up(from, outputs);
            }
        }
    }

    /// The server at `address` is that of `node`, which listens on one connection only: on that by which it was told
    /// everything last, and closes others. This one takes none for dead because of that: by two ways words overtake
    /// each other, and both ends would close what the other keeps. It closes those on which nothing comes any more, as
    /// their ends may never be told here.
    fn welcome(
        &mut self,
        from: ConnectionId,
        address: SocketAddr,
        node: &str,
        outputs: &mut Vec<Output>,
    ) {
        self.refused = None;
        self.members.welcomed(node, address);
        if node == self.node {
            return self.hang_up(from, outputs);
        }
        if let Some(listener) = self.followers.get_mut(&from) {
            listener.node = Some(node.into());
        }
        // It is waited for on this connection from now on.
        self.cut_off.remove(node);
        let quiet = self.now.saturating_sub(2 * ALIVE_EVERY);
        let dead = self.followers.iter().filter(|(_, l)| l.is_of(node) && l.heard < quiet);
        let dead: Vec<_> = dead.map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|connection| self.hang_up(connection, outputs));
    }

    fn dialed(
        &mut self,
        address: SocketAddr,
        connection: ConnectionId,
        reached_at: SocketAddr,
        outputs: &mut Vec<Output>,
    ) {
        let (node, heard, heard_beside) = (None, self.now, Duration::ZERO);
        let listener = Follower { address, node, welcome: false, applied: 0, heard, heard_beside };
        self.followers.insert(connection, listener);
        self.members.connected(address, self.now);
        let own: BTreeSet<_> = self.programs.values().map(|program| program.context).collect();
        let known = own.iter().map(|id| &self.contexts[id]);
        let contexts = known.map(|known| (ContextInfo::clone(&known.info), known.since)).collect();
        let all = self.records.find(&Attributes::new()).into_iter();
        let resources = all
            .filter(|record| own.contains(&record.id.context))
            .map(|record| (record.id, record.attributes))
            .collect();
        let (contexts_before, contexts) = in_parts(contexts);
        let (resources_before, resources) = in_parts(resources);
        let contexts_before = contexts_before.into_iter().map(|contexts| (contexts, Vec::new()));
        let resources_before =
            resources_before.into_iter().map(|resources| (Vec::new(), resources));
        for (contexts, resources) in contexts_before.chain(resources_before) {
            let part = Update::SnapshotPart { contexts, resources };
            outputs.push(Output::Update(connection, part));
        }
        let update = Update::Snapshot {
            node: self.node.clone(),
            incarnation: self.incarnation,
            address: reached_at,
            change: self.change,
            contexts,
            resources,
        };
        outputs.push(Output::Update(connection, update));
    }

    /// Another server hears that of `node`, which is at `address`.
    fn learn(&mut self, node: &str, address: SocketAddr) {
        if address != self.address && node != self.node {
            self.members.learn(node, address, self.now);
        }
    }

    /// Nobody answers at `address`.
    fn is_silent(&mut self, address: SocketAddr) {
        self.members.failed(address);
        self.is_refused_no_more(address);
    }

    /// The server that was at `address` is not there: what it had against this one holds this one up no longer, as
    /// nobody else would take that back. If it comes again and still has it, it says so again.
    fn is_refused_no_more(&mut self, address: SocketAddr) {
        self.refused.take_if(|(refuser, _)| *refuser == address);
    }

    /// What is at `address` is complained of once, and nothing else follows from what it says.
    fn is_strange(&mut self, address: SocketAddr, why: &str, outputs: &mut Vec<Output>) {
        self.is_refused_no_more(address);
        if self.members.is_strange(address, why) {
            outputs.push(Output::Warn(format!("nothing is told to {address}: {why}")));
        }
    }

    fn hang_up(&mut self, connection: ConnectionId, outputs: &mut Vec<Output>) {
        outputs.push(Output::Close(connection));
        self.closed(connection, outputs);
    }

    /// A connection is no more, or nothing that comes on it is heard any more: what depended on it goes.
    fn closed(&mut self, connection: ConnectionId, outputs: &mut Vec<Output>) {
        if let Some(program) = self.programs.remove(&connection) {
            self.users.give_back(program.user, program.bytes);
            for number in program.subscriptions {
                self.questions.remove((connection, number));
            }
            self.leave(program.context);
            for place in program.places {
                self.vanish(ResourceId { context: program.context, place }, outputs);
            }
            self.tell(Change::Closed(program.context), outputs);
            self.waiting.retain(|_, (waiter, _)| *waiter != connection);
        }
        if let Some(teller) = self.origins.remove(&connection) {
            let Origin { incarnation, change, contexts, resources, heard, .. } = teller;
            let until = heard.saturating_add(SILENCE_MOST);
            self.stale.hold(contexts, resources, Staleness { incarnation, change, until });
            self.let_go(outputs);
        }
        self.callers.remove(&connection);
        if let Some(listener) = self.followers.remove(&connection) {
            self.members.lost(listener.address, self.now);
            self.is_cut_off(listener);
            self.answer_applied(outputs);
        }
    }

    /// A server is not told anything any more by the connection that `listener` was. Until it is told everything anew,
    /// or counts as gone, its programs would be answered without what happens here. As long as there is another connection
    /// to it, it is waited for on that one.
    fn is_cut_off(&mut self, listener: Follower) {
        let Follower { node, applied, heard, heard_beside, .. } = listener;
        let (Some(node), heard) = (node, heard.max(heard_beside)) else { return };
        if let Some(other) = self.followers.values_mut().find(|other| other.is_of(&node)) {
            other.heard_beside = other.heard_beside.max(heard);
            return;
        }
        let until = heard.saturating_add(SILENCE_MOST);
        if until > self.now {
            self.cut_off.insert(node, LostFollower { applied, until });
        }
    }

    fn tick(&mut self, outputs: &mut Vec<Output>) {
        let now = self.now;
        let silent = |heard: Duration| now.saturating_sub(heard) > SILENCE_MOST;
        let origins = self.origins.iter().filter(|(_, t)| silent(t.heard)).map(|(id, _)| *id);
        let followers = self.followers.iter().filter(|(_, l)| silent(l.heard)).map(|(id, _)| *id);
        // Such as one that was cut off before it had told what there is: its end may never be told here.
        let callers =
            self.callers.iter().filter(|(_, caller)| silent(caller.since)).map(|(id, _)| *id);
        let dead: Vec<_> = origins.chain(followers).chain(callers).collect();
        dead.into_iter().for_each(|connection| self.hang_up(connection, outputs));
        self.let_go(outputs);
        self.cut_off.retain(|_, cut_off| cut_off.until > now);
        self.left.retain(|_, (_, until)| *until > now);
        self.answer_applied(outputs);
        if !self.is_new() {
            self.answer_all_held_back(outputs);
        }
        outputs.extend(self.followers.keys().map(|id| Output::Update(*id, Update::Alive)));
        let alive = self.alive();
        outputs.extend(self.origins.keys().map(|id| Output::Reply(*id, alive.clone())));
        // One connection to a server is enough, and none to oneself.
        let followers = self.followers.values().filter_map(|listener| listener.node.as_deref());
        let reached: BTreeSet<&str> = followers.chain([self.node.as_str()]).collect();
        let due = self.members.due(&reached, now);
        outputs.extend(due.into_iter().map(Output::Dial));
    }

    /// A sign of life. It names some of those that this server hears, the next ones each time.
    fn alive(&mut self) -> Reply {
        let known = self.origins.len();
        let next = self.origins.values().cycle().skip(self.named).take(NAMED_MOST.min(known));
        let members = next.map(Origin::named).collect();
        self.named = (self.named + NAMED_MOST) % known.max(1);
        Reply::Welcome { node: self.node.clone(), members }
    }

    /// A resource is there: whoever asked is told.
    fn appear(&mut self, record: Record, outputs: &mut Vec<Output>) {
        for (program, number) in self.questions.answered_by(&record.attributes) {
            let answer = Answer::Appeared { number, record: record.clone() };
            outputs.push(Output::Answer(program, answer));
        }
        self.records.insert(record);
    }

    /// A resource that was held is there still: nobody need be told, unless it is another by now.
    fn come_back(&mut self, record: Record, outputs: &mut Vec<Output>) {
        if self.records.get(record.id) != Some(&record) {
            self.vanish(record.id, outputs);
            self.appear(record, outputs);
        }
    }

    /// What has been held for long enough is no more.
    fn let_go(&mut self, outputs: &mut Vec<Output>) {
        let over = self.stale.over(self.now);
        self.forget(over, outputs);
    }

    /// What was held is no more.
    fn forget(
        &mut self,
        (resources, contexts): (Vec<ResourceId>, Vec<ContextId>),
        outputs: &mut Vec<Output>,
    ) {
        resources.into_iter().for_each(|id| self.vanish(id, outputs));
        contexts.into_iter().for_each(|id| self.leave(id));
    }

    /// A resource is no more: whoever asked is told.
    fn vanish(&mut self, id: ResourceId, outputs: &mut Vec<Output>) {
        let Some(record) = self.records.remove(id) else { return };
        for (program, number) in self.questions.answered_by(&record.attributes) {
            outputs.push(Output::Answer(program, Answer::Gone { number, id }));
        }
    }

    /// Tells every listener what happened on this node.
    fn tell(&mut self, what: Change, outputs: &mut Vec<Output>) {
        self.change += 1;
        let update = Update::Changed { change: self.change, what };
        outputs.extend(self.followers.keys().map(|id| Output::Update(*id, update.clone())));
    }

    fn answer_when_applied(&mut self, to: ConnectionId, number: u32, outputs: &mut Vec<Output>) {
        // A drop of nothing is no change: it is answered after what was told last.
        if self.waiting.contains_key(&self.change) || self.is_applied(self.change) {
            outputs.push(Output::Answer(to, Answer::Done { number }));
        } else {
            self.waiting.insert(self.change, (to, number));
        }
    }

    fn answer_applied(&mut self, outputs: &mut Vec<Output>) {
        while let Some((change, (to, number))) = self.waiting.first_key_value()
            && self.is_applied(*change)
        {
            outputs.push(Output::Answer(*to, Answer::Done { number: *number }));
            self.waiting.pop_first();
        }
    }

    /// Whether every server that has ever welcomed this one, and is still there or may be, has it.
    fn is_applied(&self, change: u64) -> bool {
        self.followers.values().all(|l| !l.welcome || l.applied >= change)
            && self.cut_off.values().all(|cut_off| cut_off.applied >= change)
    }
}

/// Why a program of another version is refused.
fn other_version(version: u16) -> String {
    format!("version {version} of the protocol: this server speaks {VERSION}")
}

#[cfg(test)]
mod tests;
