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
//!
//! | module | owns |
//! |---|---|
//! | `events` | what happens, and what is to be done |
//! | `programs`, `lookups` | the programs of this node; what they ask of contexts that are not known yet |
//! | `contexts`, `clock` | whose a name is; since when it is |
//! | `catalog` | what there is, and who is told of what comes and goes |
//! | `followers`, `replies` | who is told of each change of this node, and has applied it; what they reply |
//! | `origins`, `updates` | who tells of other nodes; what they tell |

mod catalog;
mod clock;
mod contexts;
mod events;
mod followers;
mod lookups;
mod origins;
mod programs;
mod replies;
#[cfg(test)]
mod testing;
mod updates;

pub use events::{ConnectionId, Input, Output};

use super::members::Members;
use super::protocol::{Record, Reply, Update};
use super::stale::StaleRecords;
use super::users::Users;
use crate::attributes::Attributes;
use crate::door::ClusterKey;
use catalog::Catalog;
use clock::Clock;
use contexts::Contexts;
use followers::Followers;
use lookups::Lookups;
use origins::Origins;
use programs::{Program, other_version};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// How often something is said when there is nothing to say.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// How long another server may say nothing: a few times as long, so that a busy machine is not
/// taken for a dead one. So long what it has told stands when it is cut off as well: one that is started
/// again, after a second as `contrib/systemd` has it, and its programs have told it again by then.
pub const SILENCE_MOST: Duration = Duration::from_secs(3);

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
    users: Users,
    programs: BTreeMap<ConnectionId, Program>,
    lookups: Lookups,
    contexts: Contexts,
    catalog: Catalog,
    members: Members,
    followers: Followers,
    origins: Origins,
    /// What others have told whose connections are no more.
    stale: StaleRecords,
    /// Where a server refuses this one, and why.
    refused: Option<(SocketAddr, String)>,
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
            users: Users::new(usize::MAX),
            programs: BTreeMap::new(),
            lookups: Lookups::default(),
            contexts: Contexts::default(),
            catalog: Catalog::default(),
            members: Members::new(others),
            followers: Followers::default(),
            origins: Origins::default(),
            stale: StaleRecords::default(),
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
            Input::Connected(from, user) => self.connected(from, user, &mut outputs),
            Input::Request(from, user, request) => self.request(from, user, request, &mut outputs),
            Input::OtherVersion(from, version) => {
                self.refuse(from, None, other_version(version), &mut outputs);
            }
            Input::Update(from, update) => self.update(from, update, &mut outputs),
            Input::Reply(from, reply) => self.reply(from, reply, &mut outputs),
            Input::Dialed { address, connection, reached_at } => {
                self.dialed(address, connection, reached_at, &mut outputs);
            }
            Input::Unreachable(address) => self.is_silent(address),
            Input::Stranger(address, why) => self.is_strange(address, &why, &mut outputs),
            Input::Closed(connection) => {
                self.users.disconnect(connection);
                self.forget_connection(connection, &mut outputs);
            }
            Input::Clock(shown) => self.clock = Clock { shown, at: self.now },
            Input::Tick => self.tick(&mut outputs),
        }
        outputs
    }

    /// All that include `query`, as any program of this node would be answered.
    pub fn find(&self, query: &Attributes) -> Vec<Record> {
        self.catalog.find(query)
    }

    fn hang_up(&mut self, connection: ConnectionId, outputs: &mut Vec<Output>) {
        outputs.push(Output::Close(connection));
        self.forget_connection(connection, outputs);
    }

    /// A connection is no more, or nothing that comes on it is heard any more: what depended on it goes.
    fn forget_connection(&mut self, connection: ConnectionId, outputs: &mut Vec<Output>) {
        if let Some(program) = self.programs.remove(&connection) {
            self.forget_program(connection, program, outputs);
        }
        if let Some(origin) = self.origins.disconnect(connection) {
            self.lose_origin(origin, outputs);
        }
        if let Some(address) = self.followers.disconnect(connection, self.now, outputs) {
            self.members.lost(address, self.now);
        }
    }

    fn tick(&mut self, outputs: &mut Vec<Output>) {
        let now = self.now;
        let silent: Vec<_> = self.origins.silent(now).chain(self.followers.silent(now)).collect();
        silent.into_iter().for_each(|connection| self.hang_up(connection, outputs));
        self.forget_stale(outputs);
        self.followers.forget_lost(now, outputs);
        self.contexts.forget_ended(now);
        if !self.is_new() {
            self.answer_all_lookups(outputs);
        }
        self.followers.tell(&Update::Alive, outputs);
        let members = self.origins.next_members();
        let alive = Reply::Welcome { node: self.node.clone(), members };
        outputs.extend(self.origins.connections().map(|id| Output::Reply(id, alive.clone())));
        // One connection to a server is enough, and none to oneself.
        let reached: BTreeSet<&str> = self.followers.nodes().chain([self.node.as_str()]).collect();
        let due = self.members.due(&reached, now);
        outputs.extend(due.into_iter().map(Output::Dial));
    }
}
