//! The servers that tell this one what there is on their nodes, and what each has told, in full or so far.

use super::{ConnectionId, SILENCE_MOST};
use crate::attributes::Attributes;
use crate::directory::protocol::{Change, ContextInfo, Snapshot};
use crate::directory::records::all_of;
use crate::id::{ContextId, ResourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// Other servers that a sign of life names, so that it stays short: all of a hundred within 13 s.
pub(super) const NAMED_MOST: usize = 4;

/// All of them, by the connections that they made.
#[derive(Debug, Default)]
pub(super) struct Origins {
    known: BTreeMap<ConnectionId, Origin>,
    /// Those on whose connections nobody has told yet all that there is.
    arriving: BTreeMap<ConnectionId, PartialSnapshot>,
    /// How many come before the one that the next sign of life names first.
    named: usize,
}

/// A server that has told everything, and tells each change.
#[derive(Debug)]
pub(super) struct Origin {
    pub node: String,
    pub incarnation: u64,
    pub address: SocketAddr,
    /// The last change that it has told.
    pub change: u64,
    pub contexts: BTreeSet<ContextId>,
    pub resources: BTreeSet<ResourceId>,
    /// When there was last a sign of it.
    pub heard: Duration,
}

/// What a server has told that has not told yet all that there is.
#[derive(Debug, Default)]
struct PartialSnapshot {
    /// When it was there, or told the last part.
    since: Duration,
    contexts: Vec<(ContextInfo, Duration)>,
    resources: Vec<(ResourceId, Attributes)>,
}

impl Origins {
    /// Their connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.known.keys().copied()
    }

    /// That which tells on this connection.
    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Origin> {
        self.known.get_mut(&connection)
    }

    /// Whether one that has told everything tells on this connection.
    pub(super) fn has(&self, connection: ConnectionId) -> bool {
        self.known.contains_key(&connection)
    }

    /// The server of that node, and on which connection it tells.
    pub(super) fn of_node(&self, node: &str) -> Option<(ConnectionId, &Origin)> {
        let found = self.known.iter().find(|(_, origin)| origin.node == node);
        found.map(|(connection, origin)| (*connection, origin))
    }

    /// There is a sign of one.
    pub(super) fn hear(&mut self, connection: ConnectionId, now: Duration) {
        match self.known.get_mut(&connection) {
            Some(origin) => origin.heard = now,
            None => {
                let arriving = || PartialSnapshot { since: now, ..PartialSnapshot::default() };
                self.arriving.entry(connection).or_insert_with(arriving);
            }
        }
    }

    /// Those of whom nothing was heard for too long, or that have told nothing: such as one that was cut off before it had
    /// told what there is, as its end may never be told here.
    pub(super) fn silent(&self, now: Duration) -> impl Iterator<Item = ConnectionId> {
        let is_silent = move |heard: Duration| now.saturating_sub(heard) > SILENCE_MOST;
        let known = self.known.iter().map(|(id, origin)| (*id, origin.heard));
        let arriving = self.arriving.iter().map(|(id, partial)| (*id, partial.since));
        known.chain(arriving).filter(move |(_, heard)| is_silent(*heard)).map(|(id, _)| id)
    }

    /// Whether a part has come of what another server has to tell, and more may come.
    pub(super) fn are_arriving(&self, now: Duration) -> bool {
        let is_heard = |p: &PartialSnapshot| now.saturating_sub(p.since) <= SILENCE_MOST;
        self.arriving.values().any(|partial| partial.has_any() && is_heard(partial))
    }

    /// A part of what there is on its node has come. Whether it is to be there.
    pub(super) fn add_part(
        &mut self,
        connection: ConnectionId,
        contexts: Vec<(ContextInfo, Duration)>,
        resources: Vec<(ResourceId, Attributes)>,
        now: Duration,
    ) -> bool {
        let Some(partial) = self.arriving.get_mut(&connection) else { return false };
        partial.since = now;
        partial.contexts.extend(contexts);
        partial.resources.extend(resources);
        true
    }

    /// The last part has come. All that there is on its node, which is not known of it yet.
    pub(super) fn complete(
        &mut self,
        connection: ConnectionId,
        last: Snapshot,
        now: Duration,
    ) -> impl Iterator<Item = Change> + use<> {
        let Snapshot { node, incarnation, address, change, contexts, resources } = last;
        let origin = Origin {
            node,
            incarnation,
            address,
            change,
            contexts: BTreeSet::new(),
            resources: BTreeSet::new(),
            heard: now,
        };
        self.known.insert(connection, origin);
        let before = self.arriving.remove(&connection).unwrap_or_default();
        let contexts = before.contexts.into_iter().chain(contexts);
        let resources = before.resources.into_iter().chain(resources);
        let contexts = contexts.map(|(context, since)| Change::Opened(context, since));
        contexts.chain(resources.map(|(id, attributes)| Change::Registered(id, attributes)))
    }

    /// A connection is no more: who has told everything on it.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) -> Option<Origin> {
        self.arriving.remove(&connection);
        self.known.remove(&connection)
    }

    /// A context has lost its name: which resources it had.
    pub(super) fn forget(&mut self, context: ContextId) -> Vec<ResourceId> {
        let its = self.known.values_mut().filter(|origin| origin.contexts.contains(&context));
        its.flat_map(|origin| origin.forget(context)).collect()
    }

    /// All of them, as others are told of them.
    pub(super) fn members(&self) -> Vec<(String, SocketAddr)> {
        self.known.values().map(Origin::member).collect()
    }

    /// Some of them, the next ones each time.
    pub(super) fn next_members(&mut self) -> Vec<(String, SocketAddr)> {
        let count = self.known.len();
        let next = self.known.values().cycle().skip(self.named).take(NAMED_MOST.min(count));
        let members = next.map(Origin::member).collect();
        self.named = (self.named + NAMED_MOST) % count.max(1);
        members
    }
}

impl PartialSnapshot {
    fn has_any(&self) -> bool {
        !self.contexts.is_empty() || !self.resources.is_empty()
    }
}

impl Origin {
    /// It has that context no more: which resources that had.
    pub(super) fn forget(&mut self, context: ContextId) -> Vec<ResourceId> {
        self.contexts.remove(&context);
        self.resources.extract_if(all_of(context), |_| true).collect()
    }

    fn member(&self) -> (String, SocketAddr) {
        (self.node.clone(), self.address)
    }
}

#[cfg(test)]
mod tests;
