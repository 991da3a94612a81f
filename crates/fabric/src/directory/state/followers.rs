//! The servers that are told each change of this node, and which of these they have applied: who registers something is answered
//! when all of them have it.

use super::{ALIVE_EVERY, ConnectionId, Output, SILENCE_MOST};
use crate::directory::protocol::{Answer, Change, Update};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// All of them, by the connections that this server made.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// Changes of this node's resources so far.
    change: u64,
    connected: BTreeMap<ConnectionId, Follower>,
    /// Nodes whose servers were told everything, and are reached by no connection just now.
    lost: BTreeMap<String, LostFollower>,
    /// Who waits until all have applied a change.
    waiting: BTreeMap<u64, (ConnectionId, u32)>,
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

impl Followers {
    /// How many changes there were on this node.
    pub(super) fn change(&self) -> u64 {
        self.change
    }

    /// Their connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connected.keys().copied()
    }

    /// The nodes whose servers they are known to be.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.connected.values().filter_map(|follower| follower.node.as_deref())
    }

    /// Those of whom nothing was heard for too long.
    pub(super) fn silent(&self, now: Duration) -> impl Iterator<Item = ConnectionId> {
        let silent = move |follower: &Follower| now.saturating_sub(follower.heard) > SILENCE_MOST;
        self.connected.iter().filter(move |(_, follower)| silent(follower)).map(|(id, _)| *id)
    }

    /// The server at `address` is there, and is told everything.
    pub(super) fn connect(&mut self, connection: ConnectionId, address: SocketAddr, now: Duration) {
        let (node, heard_beside) = (None, Duration::ZERO);
        let follower =
            Follower { address, node, welcome: false, applied: 0, heard: now, heard_beside };
        self.connected.insert(connection, follower);
    }

    /// There is a sign of one. Where it is.
    pub(super) fn hear(&mut self, connection: ConnectionId, now: Duration) -> Option<SocketAddr> {
        let follower = self.connected.get_mut(&connection)?;
        follower.heard = now;
        Some(follower.address)
    }

    /// One has taken what there is. Whether it says so first.
    pub(super) fn welcome(&mut self, connection: ConnectionId) -> bool {
        let follower = self.connected.get_mut(&connection);
        follower.is_some_and(|follower| !std::mem::replace(&mut follower.welcome, true))
    }

    /// One is the server of `node`, which listens on one connection only: on that by which it was told everything last,
    /// and closes others. None is taken for dead because of that: by two ways words overtake each other, and both ends
    /// would close what the other keeps. Returns those on which nothing comes any more, as their ends may never be told here.
    pub(super) fn identify(
        &mut self,
        connection: ConnectionId,
        node: &str,
        now: Duration,
    ) -> Vec<ConnectionId> {
        if let Some(follower) = self.connected.get_mut(&connection) {
            follower.node = Some(node.into());
        }
        // It is waited for on this connection from now on.
        self.lost.remove(node);
        let quiet = now.saturating_sub(2 * ALIVE_EVERY);
        let dead = self.connected.iter().filter(|(_, f)| f.is_of(node) && f.heard < quiet);
        dead.map(|(id, _)| *id).collect()
    }

    /// One has applied all changes up to that.
    pub(super) fn apply(
        &mut self,
        connection: ConnectionId,
        change: u64,
        outputs: &mut Vec<Output>,
    ) {
        if let Some(follower) = self.connected.get_mut(&connection) {
            follower.applied = change.min(self.change);
        }
        self.answer_applied(outputs);
    }

    /// One is not told anything any more by that connection. Until it is told everything anew, or counts as gone, its
    /// programs would be answered without what happens here. As long as there is another connection to it, it is
    /// waited for on that one. Returns where it was.
    pub(super) fn disconnect(
        &mut self,
        connection: ConnectionId,
        now: Duration,
        outputs: &mut Vec<Output>,
    ) -> Option<SocketAddr> {
        let follower = self.connected.remove(&connection)?;
        let address = follower.address;
        self.lose(follower, now);
        self.answer_applied(outputs);
        Some(address)
    }

    fn lose(&mut self, follower: Follower, now: Duration) {
        let Follower { node, applied, heard, heard_beside, .. } = follower;
        let (Some(node), heard) = (node, heard.max(heard_beside)) else { return };
        if let Some(other) = self.connected.values_mut().find(|other| other.is_of(&node)) {
            other.heard_beside = other.heard_beside.max(heard);
            return;
        }
        let until = heard.saturating_add(SILENCE_MOST);
        if until > now {
            self.lost.insert(node, LostFollower { applied, until });
        }
    }

    /// Those that were lost long enough ago are waited for no more.
    pub(super) fn forget_lost(&mut self, now: Duration, outputs: &mut Vec<Output>) {
        self.lost.retain(|_, lost| lost.until > now);
        self.answer_applied(outputs);
    }

    /// Tells all of them what happened on this node.
    pub(super) fn publish(&mut self, what: Change, outputs: &mut Vec<Output>) {
        self.change += 1;
        self.tell(&Update::Changed { change: self.change, what }, outputs);
    }

    /// Tells all of them that.
    pub(super) fn tell(&self, update: &Update, outputs: &mut Vec<Output>) {
        outputs.extend(self.connections().map(|id| Output::Update(id, update.clone())));
    }

    /// A program's question is answered when all have applied what was told last.
    pub(super) fn answer_when_applied(
        &mut self,
        program: ConnectionId,
        number: u32,
        outputs: &mut Vec<Output>,
    ) {
        // A drop of nothing is no change: it is answered after what was told last.
        if self.waiting.contains_key(&self.change) || self.have_applied(self.change) {
            outputs.push(Output::Answer(program, Answer::Done { number }));
        } else {
            self.waiting.insert(self.change, (program, number));
        }
    }

    /// A program has ended: it waits no more.
    pub(super) fn forget_program(&mut self, program: ConnectionId) {
        self.waiting.retain(|_, (waiter, _)| *waiter != program);
    }

    fn answer_applied(&mut self, outputs: &mut Vec<Output>) {
        while let Some((change, (program, number))) = self.waiting.first_key_value()
            && self.have_applied(*change)
        {
            outputs.push(Output::Answer(*program, Answer::Done { number: *number }));
            self.waiting.pop_first();
        }
    }

    /// Whether every server that has ever welcomed this one, and is still there or may be, has it.
    fn have_applied(&self, change: u64) -> bool {
        self.connected.values().all(|f| !f.welcome || f.applied >= change)
            && self.lost.values().all(|lost| lost.applied >= change)
    }
}

impl Follower {
    /// Whether it is known to be the server of that node.
    fn is_of(&self, node: &str) -> bool {
        self.node.as_deref() == Some(node)
    }
}

#[cfg(test)]
mod tests;
