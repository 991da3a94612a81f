//! Whom this context calls, and over which way.

use super::{Core, Patience};
use crate::bridge::request::Whom;
use crate::bridge::routes::Way;
use crate::bridge::{self, Search};
use crate::config::Protocol;
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::is_trusted;
use crate::error::SendError;
use crate::frame::{Carrier, Greeting};
use crate::id::ContextId;
use crate::link::Link;
use crate::listen::{call_neighbour, call_remote, greet_over};
use crate::networks::{candidates, shared};
use crate::transport::Ends;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use std::{io, iter, slice};

impl Core {
    /// The link to another context, which is made if there is none.
    pub(super) fn link_to(
        &self,
        peer: ContextId,
        patience: Patience,
    ) -> Result<Arc<Link>, SendError> {
        if let Some(link) = self.links.to(peer) {
            return Ok(link);
        }
        let _one_at_a_time = self.calls.begin(peer, patience)?;
        if let Some(link) = self.links.to(peer) {
            return Ok(link);
        }
        let until = patience.deadline();
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        let in_time = |error| if is_late() { SendError::TimedOut } else { error };
        let found = self.directory.resolve_until(peer, until);
        let found = found.map_err(|error| in_time(error.into()))?;
        let found = found.ok_or(SendError::NoContext(peer))?;
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
            let ends = call_neighbour(Greeting { pass: None, ..greeting }, info.owner, until);
            ends.map(|ends| self.connected(peer, ends))
        } else {
            self.tell_carrier(info);
            if same_node {
                self.call_any(&found, &candidates(&self.networks, &info.addresses, true), until)
            } else {
                self.reach(&found, until)
            }
        };
        let link = link.map_err(|error| in_time(unreachable(error.to_string())))?;
        // That one may have called meanwhile: all that is sent there goes by one link.
        Ok(self.links.to(peer).unwrap_or(link))
    }

    /// A link to another node: over the network that both are on, over all of them if they are
    /// several, over bridges if there is none, and else wherever a router may lead. Calls are given up at `until`.
    fn reach(&self, peer: &Introduction, until: Option<Instant>) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let mut straight = self.straight(info);
        if let [only] = &straight[..] {
            if let Ok(link) = self.reach_straight(peer, only, until) {
                return Ok(link);
            }
            // It has just been tried.
            straight.clear();
        }
        // Found out, which takes a while, only when nothing leads straight there.
        let bridged = iter::once_with(|| self.bridged(info, &[], &[], until)).flatten();
        let number = self.streams.next_number();
        for way in straight.into_iter().chain(bridged) {
            if let Ok(ends) = self.call(peer, number, &way, until) {
                return self.begin(peer, number, way, ends);
            }
        }
        self.call_any(peer, &candidates(&self.networks, &info.addresses, false), until)
    }

    /// A link over the only network that both are on; a stream that begins with it if bridges lead there so much sooner
    /// that they are to be used, too.
    fn reach_straight(
        &self,
        peer: &Introduction,
        way: &Way,
        until: Option<Instant>,
    ) -> io::Result<Arc<Link>> {
        let info = &peer.context;
        let stream = self.survey.call(way, Whom::Context(info.id), until)?;
        let is_enough = self.bridged(info, &[], slice::from_ref(way), until).is_empty();
        let number = self.streams.next_number();
        let greeting = Greeting { is_rail: !is_enough, ..self.greeting(peer, number) };
        let ends = greet_over(way, stream, greeting, self.carrier_to(info))?;
        if is_enough {
            return Ok(self.connected(info.id, ends));
        }
        self.begin(peer, number, way.clone(), ends)
    }

    /// A connection to another context over `way`, a rail of the stream of this number.
    pub(super) fn call(
        &self,
        peer: &Introduction,
        number: u64,
        way: &Way,
        until: Option<Instant>,
    ) -> io::Result<Ends> {
        let stream = self.survey.call(way, Whom::Context(peer.context.id), until)?;
        let greeting = Greeting { is_rail: true, ..self.greeting(peer, number) };
        greet_over(way, stream, greeting, self.carrier_to(&peer.context))
    }

    fn call_any(
        &self,
        peer: &Introduction,
        addresses: &[SocketAddr],
        until: Option<Instant>,
    ) -> io::Result<Arc<Link>> {
        let greeting = || self.greeting(peer, self.streams.next_number());
        let ends = call_remote(greeting, addresses, self.carrier_to(&peer.context), until)?;
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

    /// Ways over the networks that both nodes are on.
    pub(super) fn straight(&self, info: &ContextInfo) -> Vec<Way> {
        shared(&self.networks, &info.addresses).into_iter().map(Way::straight).collect()
    }

    /// Ways over bridges for one who uses those of `taken`: beside networks that are shared, over which `straight`
    /// leads, only if these are slow.
    pub(super) fn bridged(
        &self,
        info: &ContextInfo,
        taken: &[Way],
        straight: &[Way],
        until: Option<Instant>,
    ) -> Vec<Way> {
        if !straight.is_empty() && !self.survey.are_slow(straight) {
            return Vec::new();
        }
        let known = |all: &BTreeMap<_, _>| Some(bridge::known(all.values()));
        // Without an answer there is none that is known.
        let bridges = self.directory.find(&bridge::query(), None, known);
        let bridges = bridges.ok().flatten().unwrap_or_default();
        let (own, peer, whom) = (&self.networks, &info.addresses, Whom::Context(info.id));
        let search = Search { own, bridges: &bridges, peer, whom, until };
        if straight.is_empty() {
            self.survey.ways(&search, taken)
        } else {
            self.survey.detours(&search, taken, straight)
        }
    }
}
