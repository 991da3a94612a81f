//! The servers that this one calls: each is told everything, and what it replies holds up programs, ends a context that another
//! had first, or leads to more servers.

use super::{ConnectionId, Directory, Output};
use crate::attributes::Attributes;
use crate::directory::protocol::{ContextInfo, Reply, Snapshot, Update, in_parts};
use std::collections::BTreeSet;
use std::net::SocketAddr;

impl Directory {
    /// A server is there that was called: it is told everything.
    pub(super) fn dialed(
        &mut self,
        address: SocketAddr,
        connection: ConnectionId,
        reached_at: SocketAddr,
        outputs: &mut Vec<Output>,
    ) {
        self.followers.connect(connection, address, self.now);
        self.members.connected(address, self.now);
        let (parts, last) = self.snapshot(reached_at);
        outputs.extend(parts.into_iter().map(|part| Output::Update(connection, part)));
        outputs.push(Output::Update(connection, Update::Snapshot(last)));
    }

    /// All that there is on this node, for whoever reaches it at `address`: what is too long for one message, and the rest.
    fn snapshot(&self, address: SocketAddr) -> (Vec<Update>, Snapshot) {
        let own: BTreeSet<_> = self.programs.values().map(|program| program.context).collect();
        let open = own.iter().filter_map(|id| self.contexts.get(*id));
        let contexts = open.map(|open| (ContextInfo::clone(&open.info), open.since)).collect();
        let all = self.catalog.find(&Attributes::new()).into_iter();
        let resources = all
            .filter(|record| own.contains(&record.id.context))
            .map(|record| (record.id, record.attributes))
            .collect();
        let (contexts_before, contexts) = in_parts(contexts);
        let (resources_before, resources) = in_parts(resources);
        let contexts_before = contexts_before.into_iter().map(|contexts| (contexts, Vec::new()));
        let resources_before =
            resources_before.into_iter().map(|resources| (Vec::new(), resources));
        let before = contexts_before.chain(resources_before);
        let part = |(contexts, resources)| Update::SnapshotPart { contexts, resources };
        let (node, incarnation, change) =
            (self.node.clone(), self.incarnation, self.followers.change());
        let last = Snapshot { node, incarnation, address, change, contexts, resources };
        (before.map(part).collect(), last)
    }

    /// A server that is told everything says something to that.
    pub(super) fn reply(&mut self, from: ConnectionId, reply: Reply, outputs: &mut Vec<Output>) {
        let Some(address) = self.followers.hear(from, self.now) else { return };
        match reply {
            Reply::Alive => {}
            Reply::Welcome { node, members } => {
                // Said again it is a sign of life.
                if self.followers.welcome(from) {
                    self.welcome(from, address, &node, outputs);
                }
                members.into_iter().for_each(|(node, address)| self.learn(&node, address));
            }
            Reply::Applied { change } => self.followers.apply(from, change, outputs),
            Reply::Denied { context, since } => {
                // Its program may have ended meanwhile, and another have the name.
                if self.contexts.get(context).is_some_and(|open| open.since == since) {
                    self.refuse_context(context, outputs);
                }
            }
            Reply::Refused { why } => {
                outputs.push(Output::Warn(format!("{address} refuses: {why}")));
                self.refused = Some((address, why));
                self.hang_up(from, outputs);
            }
        }
    }

    /// The server at `address` is that of `node`.
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
        let dead = self.followers.identify(from, node, self.now);
        dead.into_iter().for_each(|connection| self.hang_up(connection, outputs));
    }

    /// Another server hears that of `node`, which is at `address`.
    fn learn(&mut self, node: &str, address: SocketAddr) {
        if address != self.address && node != self.node {
            self.members.learn(node, address, self.now);
        }
    }

    /// Nobody answers at `address`.
    pub(super) fn is_silent(&mut self, address: SocketAddr) {
        self.members.failed(address);
        self.is_refused_no_more(address);
    }

    /// What is at `address` is complained of once, and nothing else follows from what it says.
    pub(super) fn is_strange(&mut self, address: SocketAddr, why: &str, outputs: &mut Vec<Output>) {
        self.is_refused_no_more(address);
        if self.members.is_strange(address, why) {
            outputs.push(Output::Warn(format!("nothing is told to {address}: {why}")));
        }
    }

    /// The server that was at `address` is not there: what it had against this one holds this one up no longer, as
    /// nobody else would take that back. If it comes again and still has it, it says so again.
    fn is_refused_no_more(&mut self, address: SocketAddr) {
        self.refused.take_if(|(refuser, _)| *refuser == address);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::testing::{at, hello};
    use super::*;
    use crate::directory::protocol::{Answer, Request};
    use crate::id::Place;
    use std::time::Duration;

    /// Goal: a server that has refused this one and then ends does not keep its programs from registering for ever.
    /// Method: the only other server takes this one for a second of its name, and is called in vain when it is due again.
    #[test]
    fn who_refuses_and_is_gone_refuses_no_more() {
        let (program, listener) = (ConnectionId(1), ConnectionId(2));
        let mut directory = Directory::new("n0", 0, at(0), [at(1)], None);
        let hello = hello(1);
        directory.step(Duration::ZERO, Input::Request(program, 0, hello));
        directory.step(Duration::ZERO, Input::Tick);
        let dialed = Input::Dialed { address: at(1), connection: listener, reached_at: at(0) };
        directory.step(Duration::ZERO, dialed);
        let why = "the name n0 is taken".to_owned();
        directory.step(Duration::ZERO, Input::Reply(listener, Reply::Refused { why }));
        let register = |directory: &mut Directory, number| {
            let place = Place { slot: number, generation: 0 };
            let request = Request::Register { number, place, attributes: Attributes::new() };
            let outputs = directory.step(Duration::ZERO, Input::Request(program, 0, request));
            outputs.contains(&Output::Answer(program, Answer::Done { number }))
        };
        assert!(!register(&mut directory, 1));
        // Another that is not there changes nothing.
        directory.step(Duration::ZERO, Input::Unreachable(at(2)));
        assert!(!register(&mut directory, 2));
        directory.step(Duration::ZERO, Input::Unreachable(at(1)));
        assert!(register(&mut directory, 3));
    }
}
