//! What other servers and programs say in tests, and a program that hears what there is.

use super::{ConnectionId, Directory, Input, Output};
use crate::attributes::Attributes;
use crate::carriers::Carriers;
use crate::directory::protocol::{Answer, Change, ContextInfo, Request, Snapshot, Update, VERSION};
use crate::door::Callers;
use crate::frame;
use crate::id::{ContextId, Place, ResourceId};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) fn at(number: u64) -> SocketAddr {
    ([10, 0, 0, number as u8], 7).into()
}

pub(super) fn context(number: u64) -> ContextInfo {
    let (node, callers, addresses) = (String::new(), Callers::SameUser, Vec::new());
    let (id, carriers) = (ContextId::new(number), Carriers::default());
    ContextInfo { id, node, owner: 0, callers, addresses, carriers, speaks: frame::VERSION }
}

pub(super) fn hello(number: u64) -> Request {
    Request::Hello { version: VERSION, context: context(number), claim: None }
}

/// A directory with a program that asks for everything, and what it is told of each input.
pub(super) struct Watcher(pub Directory);

impl Watcher {
    pub(super) fn new() -> Self {
        let mut watcher = Self(Directory::new("n0", 0, at(0), [], None));
        let from = ConnectionId(1);
        let hello = hello(1);
        let everything = Request::Subscribe { number: 1, query: Attributes::new() };
        for request in [hello, everything] {
            watcher.told(Duration::ZERO, Input::Request(from, 0, request));
        }
        watcher
    }

    /// What the program is told: a resource's slot, and whether it is there.
    pub(super) fn told(&mut self, now: Duration, input: Input) -> Vec<(u32, bool)> {
        let told = |output| match output {
            Output::Answer(_, Answer::Appeared { record, .. }) => {
                Some((record.id.place.slot, true))
            }
            Output::Answer(_, Answer::Gone { id, .. }) => Some((id.place.slot, false)),
            _ => None,
        };
        self.0.step(now, input).into_iter().filter_map(told).collect()
    }

    pub(super) fn found(&self) -> Vec<u32> {
        self.0.find(&Attributes::new()).iter().map(|record| record.id.place.slot).collect()
    }
}

pub(super) fn resource(slot: u32) -> ResourceId {
    ResourceId { context: ContextId::new(2), place: Place { slot, generation: 0 } }
}

pub(super) fn change(change: u64, what: Change) -> Update {
    Update::Changed { change, what }
}

/// Resources of context 2 that are several times what one part has, and their attributes.
pub(super) fn much() -> Vec<(ResourceId, Attributes)> {
    let name = |at: usize| format!("{at}{}", "a".repeat(200));
    let long = (0..32).fold(Attributes::new(), |all, at| all.with(name(at), "b".repeat(250)));
    (0..200).map(|slot| (resource(slot), long.clone())).collect()
}

/// What the server of a node tells that has no program.
pub(super) fn snapshot(number: u64) -> Snapshot {
    let (node, address) = (format!("n{number}"), at(number));
    let (contexts, resources) = (Vec::new(), Vec::new());
    Snapshot { node, incarnation: number, address, change: 0, contexts, resources }
}

/// What the server of the second node tells in that run: its context, and that one's resources.
pub(super) fn run(incarnation: u64, owner: u32, slots: &[u32]) -> Update {
    let context = ContextInfo { owner, ..context(2) };
    let resources = slots.iter().map(|slot| (resource(*slot), Attributes::new())).collect();
    let contexts = vec![(context, Duration::ZERO)];
    Update::Snapshot(Snapshot { incarnation, contexts, resources, ..snapshot(2) })
}
