//! What other servers tell of their nodes: everything, and then each change, which becomes known here if it can be. What they have
//! told stands for a while when they are cut off.

use super::contexts::OpenContext;
use super::origins::Origin;
use super::{ConnectionId, Directory, Output, SILENCE_MOST};
use crate::directory::protocol::{Change, ContextInfo, Record, Reply, Snapshot, Update};
use crate::directory::stale::Staleness;
use crate::id::{ContextId, ResourceId};
use std::net::SocketAddr;

impl Directory {
    /// Another server tells what happened on its node. Whoever breaks the rules is not heard
    /// further.
    pub(super) fn update(&mut self, from: ConnectionId, update: Update, outputs: &mut Vec<Output>) {
        self.origins.hear(from, self.now);
        match update {
            Update::Alive => {}
            Update::Changed { change, what } => {
                let origin = self.origins.get_mut(from).filter(|o| o.change + 1 == change);
                let Some(origin) = origin else { return self.hang_up(from, outputs) };
                origin.change = change;
                self.apply(from, what, outputs);
                outputs.push(Output::Reply(from, Reply::Applied { change }));
            }
            Update::SnapshotPart { contexts, resources } => {
                if !self.origins.add_part(from, contexts, resources, self.now) {
                    return self.hang_up(from, outputs);
                }
                // Whoever has much to tell is not to take this one for silent before it is all told.
                outputs.push(Output::Reply(from, Reply::Alive));
            }
            Update::Snapshot(snapshot) => self.take_snapshot(from, snapshot, outputs),
        }
    }

    fn take_snapshot(&mut self, from: ConnectionId, last: Snapshot, outputs: &mut Vec<Output>) {
        let (node, incarnation, change) = (last.node.clone(), last.incarnation, last.change);
        let address = last.address;
        if node == self.node && incarnation == self.incarnation {
            // This very server, at one of its own addresses: it finds out by this.
            outputs.push(Output::Reply(from, Reply::Welcome { node, members: Vec::new() }));
            return self.hang_up(from, outputs);
        }
        if let Err(why) = self.may_tell(from, &node, incarnation) {
            outputs.push(Output::Reply(from, Reply::Refused { why }));
            return self.hang_up(from, outputs);
        }
        // The same run on an older connection: that one is dead and does not know it.
        if let Some((old, _)) = self.origins.of_node(&node) {
            self.hang_up(old, outputs);
        }
        let all = self.origins.complete(from, last, self.now);
        all.for_each(|what| self.apply(from, what, outputs));
        if !self.origins.has(from) {
            // Something of it cannot be: it was hung up on, and is not to take itself for heard.
            return;
        }
        // A run that goes on knows all that it has: what it had told by then and tells no more is gone. What it had
        // told later, on a connection that was there before this word was written, comes again on this one.
        let lacking = self.stale.told_by(incarnation, change);
        self.forget(lacking, outputs);
        if address != self.address {
            self.members.appeared(&node, address, self.now);
        }
        let welcome = Reply::Welcome { node: self.node.clone(), members: self.origins.members() };
        outputs.push(Output::Reply(from, welcome));
        outputs.push(Output::Reply(from, Reply::Applied { change }));
    }

    fn may_tell(&self, from: ConnectionId, node: &str, incarnation: u64) -> Result<(), String> {
        if self.origins.has(from) {
            return Err("a second snapshot".into());
        }
        let taken = |at: SocketAddr| Err(format!("the name {node} is taken by the node at {at}"));
        if node == self.node {
            return taken(self.address);
        }
        match self.origins.of_node(node) {
            Some((_, origin)) if origin.incarnation != incarnation => taken(origin.address),
            _ => Ok(()),
        }
    }

    /// Applies a change of another node.
    fn apply(&mut self, from: ConnectionId, what: Change, outputs: &mut Vec<Output>) {
        let Some(origin) = self.origins.get_mut(from) else { return };
        match what {
            Change::Opened(context, since) => {
                let info = ContextInfo { node: origin.node.clone(), ..context }.into();
                self.opened_elsewhere(from, OpenContext { info, since }, outputs);
            }
            Change::Closed(context) => {
                let is_its = origin.contexts.contains(&context);
                let mut gone = origin.forget(context);
                if is_its {
                    self.contexts.end(context, self.now);
                    // What its program had registered before its server was started again.
                    gone.extend(self.stale.take(context));
                }
                self.catalog.remove(gone, outputs);
            }
            Change::Registered(id, attributes) => {
                if attributes.check().is_err() {
                    return self.hang_up(from, outputs);
                }
                if !origin.contexts.contains(&id.context) {
                    // It was denied, and the other server did not know that yet.
                    return;
                }
                origin.resources.insert(id);
                let record = Record { id, attributes, home: self.contexts.home(id.context) };
                if self.stale.reclaim(id) {
                    self.catalog.refresh(record, outputs);
                } else {
                    self.catalog.insert(record, outputs);
                }
            }
            Change::Dropped(id) => {
                if origin.resources.remove(&id) {
                    self.catalog.remove([id], outputs);
                }
            }
        }
    }

    /// A context is opened on another node, unless somebody else had its name first. Then that context alone is not, and its
    /// own server closes it: on all servers the same one stays, in whatever order they hear of both.
    fn opened_elsewhere(
        &mut self,
        from: ConnectionId,
        opened: OpenContext,
        outputs: &mut Vec<Output>,
    ) {
        let (id, since) = (opened.info.id, opened.since);
        if let Some(before) =
            self.contexts.get(id).filter(|before| self.is_another(before, &opened))
        {
            if before.precedence() < opened.precedence() {
                let node = &opened.info.node;
                let why = format!("context {id} on {node}: another had that name first");
                outputs.push(Output::Warn(why));
                outputs.push(Output::Reply(from, Reply::Denied { context: id, since }));
                return;
            }
            self.displace(id, outputs);
        }
        let Some(origin) = self.origins.get_mut(from) else { return };
        origin.contexts.insert(id);
        self.stale.reopen(id);
        let before = self.contexts.insert(opened);
        // What is stale of it says where it was, and over what it could be called.
        if before.is_some_and(|before| before.info != self.contexts.home(id)) {
            self.catalog.remove(self.stale.take(id), outputs);
        }
        self.answer_lookups(id, outputs);
    }

    /// Whether a context that was known is not the same as one of its name that is opened: its node says what it has; and if
    /// that is cut off, its user may have it elsewhere, as on a node that has another name now.
    fn is_another(&self, before: &OpenContext, opened: &OpenContext) -> bool {
        let is_moved = self.stale.has(opened.info.id) && before.info.owner == opened.info.owner;
        before.info.node != opened.info.node && !is_moved
    }

    /// A server tells nothing any more on its connection: what it has told is kept for a while.
    pub(super) fn lose_origin(&mut self, origin: Origin, outputs: &mut Vec<Output>) {
        let Origin { incarnation, change, contexts, resources, heard, .. } = origin;
        let until = heard.saturating_add(SILENCE_MOST);
        self.stale.keep(contexts, resources, Staleness { incarnation, change, until });
        self.forget_stale(outputs);
    }

    /// What has been stale for long enough is no more.
    pub(super) fn forget_stale(&mut self, outputs: &mut Vec<Output>) {
        let over = self.stale.over(self.now);
        self.forget(over, outputs);
    }

    /// What was stale is no more.
    fn forget(
        &mut self,
        (resources, contexts): (Vec<ResourceId>, Vec<ContextId>),
        outputs: &mut Vec<Output>,
    ) {
        self.catalog.remove(resources, outputs);
        contexts.into_iter().for_each(|id| self.contexts.end(id, self.now));
    }
}

#[cfg(test)]
mod tests;
