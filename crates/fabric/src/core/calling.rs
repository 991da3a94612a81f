//! Whom this context calls, and over which way.

use super::calls::Called;
use super::{Core, Patience};
use crate::bridge::request::Whom;
use crate::bridge::routes::Way;
use crate::bridge::{self, Search};
use crate::config::Protocol;
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::is_trusted;
use crate::error::SendError;
use crate::frame::{Carrier, Greeting, VERSION};
use crate::id::ContextId;
use crate::link::Link;
use crate::listen::{call_neighbour, greet_over};
use crate::networks::shared;
use crate::transport::Ends;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use std::{io, iter, slice};

impl Core {
    /// The link to another context, which is made if there is none. It is made with all the time that it takes, also if
    /// whoever wants it has less: then by another thread, and whoever comes again finds it. One that waits for a thread is
    /// made by whoever comes and has the time.
    pub(super) fn link_to(&self, peer: ContextId, patience: Patience) -> Called {
        if let Some(link) = self.junction.links.to(peer) {
            return Ok(link);
        }
        let (call, is_new) = self.calls.join(peer);
        match patience {
            Patience::Until(Some(_)) if is_new => self.keeper.call(peer),
            Patience::None | Patience::Until(None) if is_new || self.keeper.take(peer) => {
                return self.make_call(peer);
            }
            _ => {}
        }
        self.calls.wait(&call, patience)
    }

    /// Has `peer` called by another thread, unless it is called already.
    pub(super) fn call_soon(&self, peer: ContextId) {
        if self.calls.join(peer).1 {
            self.keeper.call(peer);
        }
    }

    /// Makes the call of another context that somebody has begun, and tells all who wait for it.
    pub fn make_call(&self, peer: ContextId) -> Called {
        self.calls.make(peer, || self.connect(peer))
    }

    /// Ends a call for which there is no thread: all who wait for it are told, and whoever comes again begins another.
    pub fn end_call(&self, peer: ContextId) {
        // As if that thread had panicked.
        drop(self.calls.make(peer, || Err(SendError::TimedOut)));
    }

    fn connect(&self, peer: ContextId) -> Called {
        // Another call may have ended since there was none.
        if let Some(link) = self.junction.links.to(peer) {
            return Ok(link);
        }
        let is_gone = || self.absent.is_gone(peer, Instant::now());
        if let Some(found) = self.directory.resolve(peer)? {
            return self.connect_to(&found);
        }
        let Some(found) = self.absent.forgotten(peer) else {
            is_gone();
            return Err(SendError::NoContext(peer));
        };
        self.connect_to(&found).inspect_err(|_| is_gone())
    }

    fn connect_to(&self, found: &Introduction) -> Called {
        let peer = found.context.id;
        let info = &found.context;
        let own = self.directory.welcome();
        let unreachable = |why: String| {
            let node = info.node.clone();
            SendError::Unreachable { context: peer, node, why }
        };
        if info.speaks != VERSION {
            // It would close the connection, and what was sent on that count as unconfirmed.
            let its = info.speaks;
            return Err(unreachable(format!(
                "it speaks version {its} of the protocol between programs, this program {VERSION}"
            )));
        }
        if !info.callers.include(info.owner, own.owner) {
            let owner = info.owner;
            let why = format!("it takes messages of programs of user {owner} and of root alone");
            return Err(unreachable(why));
        }
        let same_node = info.node == own.node;
        let apart = if !same_node {
            Some("it is on another node")
        } else if !self.config.shared_memory {
            Some("this context is not to use it")
        } else if !is_trusted(info.owner, own.owner) {
            Some("it is of another user")
        } else {
            None
        };
        let link = if let Some(why) = apart {
            tracing::debug!(context = %peer, node = %info.node, "not over shared memory: {why}");
            self.tell_carrier(info);
            if same_node {
                self.call_any(found, self.candidates(&info.addresses, true))
            } else {
                self.reach(found)
            }
        } else {
            // Who calls, its kernel tells.
            let greeting = self.greeting(found, self.junction.streams.next_number());
            let ends = call_neighbour(Greeting { pass: None, ..greeting }, info.owner);
            ends.map(|ends| self.junction.connected(peer, ends, self))
        };
        let link = link.map_err(|error| unreachable(error.to_string()))?;
        // That one may have called meanwhile: all that is sent there goes by one link.
        Ok(self.junction.links.to(peer).unwrap_or(link))
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
        let bridged = iter::once_with(|| self.bridged(info, &[], &[], false)).flatten();
        let number = self.junction.streams.next_number();
        let first: Vec<_> = straight.iter().flat_map(|way| way.hops.iter().copied()).collect();
        let greeting = || Greeting { is_rail: true, ..self.greeting(peer, number) };
        if let Ok((way, ends)) = self.call_first(info, first, greeting) {
            return self.junction.begin(peer, number, way, ends, self);
        }
        for way in bridged {
            if let Ok(ends) = self.call(peer, number, &way) {
                return self.junction.begin(peer, number, way, ends, self);
            }
        }
        self.call_any(peer, self.candidates(&info.addresses, false))
    }

    /// A link over the only network that both are on; a stream that begins with it if bridges lead there so much sooner
    /// that they are to be used, too.
    fn reach_straight(&self, peer: &Introduction, way: &Way) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let stream = self.survey.call(way, Whom::Context(info.id))?;
        let is_enough = self.bridged(info, &[], slice::from_ref(way), false).is_empty();
        let number = self.junction.streams.next_number();
        let greeting = Greeting { is_rail: !is_enough, ..self.greeting(peer, number) };
        let ends = greet_over(way, stream, greeting, self.carrier_to(info))?;
        if is_enough {
            return Ok(self.junction.connected(info.id, ends, self));
        }
        self.junction.begin(peer, number, way.clone(), ends, self)
    }

    /// A connection to another context over `way`, a rail of the stream of this number.
    pub(super) fn call(&self, peer: &Introduction, number: u64, way: &Way) -> io::Result<Ends> {
        let stream = self.survey.call(way, Whom::Context(peer.context.id))?;
        let greeting = Greeting { is_rail: true, ..self.greeting(peer, number) };
        greet_over(way, stream, greeting, self.carrier_to(&peer.context))
    }

    /// A link over the first of `addresses` that answers.
    fn call_any(&self, peer: &Introduction, addresses: Vec<SocketAddr>) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let greeting = || self.greeting(peer, self.junction.streams.next_number());
        let (_, ends) = self.call_first(info, addresses, greeting)?;
        Ok(self.junction.connected(info.id, ends, self))
    }

    /// A connection over the first of `addresses` that answers and can be greeted.
    fn call_first(
        &self,
        info: &ContextInfo,
        mut addresses: Vec<SocketAddr>,
        greeting: impl Fn() -> Greeting,
    ) -> io::Result<(Way, Ends)> {
        loop {
            let (address, stream) = self.survey.call_first(&addresses)?;
            let way = Way::straight(address);
            match greet_over(&way, stream, greeting(), self.carrier_to(info)) {
                Ok(ends) => return Ok((way, ends)),
                Err(error) if addresses.len() == 1 => return Err(error),
                Err(_) => addresses.retain(|other| *other != address),
            }
        }
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

    /// Ways over the networks that both nodes are on.
    pub(super) fn straight(&self, info: &ContextInfo) -> Vec<Way> {
        shared(self.networks(), &info.addresses).into_iter().map(Way::straight).collect()
    }

    /// Ways over bridges for one who uses those of `taken`: beside networks that are shared, over which `straight`
    /// leads, only if these are slow; several over one bridge only where `much` is sent.
    pub(super) fn bridged(
        &self,
        info: &ContextInfo,
        taken: &[Way],
        straight: &[Way],
        much: bool,
    ) -> Vec<Way> {
        if !straight.is_empty() && !self.survey.are_slow(straight) {
            return Vec::new();
        }
        let known = |all: &BTreeMap<_, _>| Some(bridge::known(all.values()));
        // Without an answer, for which nobody waits longer than the directory may take, there is none that is known.
        let bridges = self.directory.find(&bridge::query(), None, known);
        let bridges = bridges.ok().flatten().unwrap_or_default();
        let (own, peer, whom) = (self.networks(), &info.addresses, Whom::Context(info.id));
        let search = Search { own, bridges: &bridges, peer, whom, much };
        if straight.is_empty() {
            self.survey.ways(&search, taken)
        } else {
            self.survey.detours(&search, taken, straight)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::directory::{Server, ServerConfig};
    use std::time::Duration;

    /// Goal: where no thread can be had, nobody waits for ever for a call that somebody without time has left behind. Method:
    /// a context whose keeper has no thread; the call is made by who has time, and one that was given up is told.
    #[test]
    fn nobody_waits_for_a_call_that_no_thread_makes() {
        let name = format!("calling-{}", std::process::id());
        let (node, address) = ("n1".into(), ([127, 0, 0, 1], 0).into());
        let server = ServerConfig { name: name.clone(), node, address, members: vec![], key: None };
        let _server = Server::start(server).unwrap();
        let core = Core::open(Config { directory: name, ..Config::default() }).unwrap();
        let peer = ContextId::new(1);
        let late = Some(SendError::TimedOut);
        let leave = || {
            let at_once = Patience::Until(Some(Instant::now() + Duration::from_millis(1)));
            assert_eq!(core.link_to(peer, at_once).err(), late);
        };
        for patience in [Patience::Until(None), Patience::None] {
            leave();
            let called = core.link_to(peer, patience).err();
            assert_eq!(called, Some(SendError::NoContext(peer)), "{patience:?}");
            assert!(!core.keeper.take(peer), "it has been made");
        }
        leave();
        // As its keeper does when it has no thread.
        assert!(core.keeper.take(peer));
        let (call, is_new) = core.calls.join(peer);
        core.end_call(peer);
        assert!(!is_new);
        assert_eq!(core.calls.wait(&call, Patience::Until(None)).err(), late);
        assert!(core.calls.join(peer).1, "another one");
    }
}
