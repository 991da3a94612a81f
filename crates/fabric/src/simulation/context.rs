//! One context: its links, streams and inboxes put together as `core` does it, without a kernel, a directory and
//! threads; and the mistakes that can be planted where they meet.

use super::Bug;
use super::clock::Clock;
use crate::bridge::routes::Way;
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::Callers;
use crate::frame::{GREETING, Greeting, Malformed, Refusal};
use crate::id::{ContextId, Place};
use crate::inbox::{Arrived, Body, Inboxes, Undelivered};
use crate::link::{Home, Link};
use crate::links::Links;
use crate::progress::{Progress, Wait};
use crate::streams::{Streams, Wanted};
use crate::transport::rails::{self, Rails};
use crate::transport::{Broken, Ends};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Longest message that is accepted.
pub const MESSAGE_MOST: usize = 200_000;
/// Looks at one link before others get a turn.
const LOOKS: usize = 8;

/// What links, streams and inboxes need of each other.
pub struct Context {
    /// Its name.
    pub id: ContextId,
    /// Its inboxes.
    pub inboxes: Inboxes,
    /// Its links.
    pub links: Links,
    /// Those of them that go over several rails.
    pub streams: Streams,
    progress: Progress,
    clock: Clock,
    /// Links that broke because of what the other end said, though that is this program as well.
    mistakes: RefCell<Vec<String>>,
    bug: Cell<Option<Bug>>,
    /// A message that [`Bug::Swaps`] holds back.
    held: RefCell<Option<(Place, Arrived)>>,
}

/// A context of `node`, for another that wants to call it.
pub fn introduction(id: ContextId, node: usize) -> Introduction {
    let (owner, callers, addresses) = (1000, Callers::SameUser, Vec::new());
    let context = ContextInfo { id, node: format!("n{node}"), owner, callers, addresses };
    Introduction { context, pass: None }
}

impl Context {
    /// One with nothing in it.
    pub fn new(id: ContextId, clock: &Clock, bug: Option<Bug>) -> Self {
        Self {
            id,
            inboxes: Inboxes::new(),
            links: Links::default(),
            streams: Streams::default(),
            progress: Progress::new(Wait::Block).unwrap(),
            clock: clock.clone(),
            mistakes: RefCell::default(),
            bug: Cell::new(bug),
            held: RefCell::default(),
        }
    }

    /// What one end said that the other did not understand, if anything.
    pub fn mistake(&self) -> Option<String> {
        self.mistakes.borrow().first().cloned()
    }

    /// A link to `peer` over `ends`.
    pub fn connected(&self, peer: ContextId, ends: Ends) -> Arc<Link> {
        self.links.insert(|number| Link::new(number, peer, ends))
    }

    /// A stream of its own, with its first rail, which goes this way.
    pub fn begin(&self, peer: Introduction, number: u64, way: Way, first: Ends) -> Arc<Link> {
        let (ends, rails) = self.rails();
        let rail = rails.join(first).unwrap();
        let link = self.connected(peer.context.id, ends);
        self.streams.insert(link.clone(), rails, number, Some((peer, rail, way)));
        link
    }

    /// A caller has said who it is. Returns whether it is taken.
    ///
    /// # Errors
    /// If what it said is no greeting.
    pub fn greeted(&self, bytes: &[u8; GREETING], ends: Ends) -> Result<bool, String> {
        let greeting = Greeting::decode(bytes).map_err(|malformed| malformed.to_string())?;
        if greeting.to != self.id && self.bug.get() != Some(Bug::Misdirects) {
            return Ok(false);
        }
        match greeting.stream {
            0 => drop(self.called(greeting.from, ends)),
            number => self.wanted(greeting.from, number, ends),
        }
        Ok(true)
    }

    /// Reads and carries what there is.
    pub fn tend(&self) {
        let view = self.links.view();
        for link in view.in_memory.iter().chain(&view.others) {
            for _ in 0..LOOKS {
                if self.receive_on(link) == 0 {
                    break;
                }
            }
            if let Err(broken) = link.pump(self) {
                self.lost(link, broken);
            }
        }
    }

    /// Finds out which nodes are gone.
    pub fn look_after_links(&self) {
        let view = self.links.view();
        for link in &view.others {
            if let Err(broken) = link.look_after() {
                self.lost(link, broken);
            }
        }
    }

    /// A link is broken.
    pub fn lost(&self, link: &Arc<Link>, why: Broken) {
        if matches!(why, Broken::Malformed(_) | Broken::Unread { .. }) {
            let peer = link.peer;
            self.mistakes.borrow_mut().push(format!("{}: the link to {peer}: {why}", self.id));
        }
        if !link.end(why, self) {
            return;
        }
        self.streams.remove(link.id);
        self.links.remove(link);
        self.inboxes.each(|inbox| inbox.forget(link.id));
    }

    fn receive_on(&self, link: &Arc<Link>) -> usize {
        link.receive(self).unwrap_or_else(|broken| {
            self.lost(link, broken);
            1
        })
    }

    fn rails(&self) -> (Ends, Rails) {
        let clock = self.clock.clone();
        rails::ends_by(Box::new(move || clock.now())).unwrap()
    }

    fn wanted(&self, peer: ContextId, number: u64, ends: Ends) {
        match self.streams.wanted(peer, number) {
            Wanted::Nothing => {}
            Wanted::Rail(stream) => {
                stream.rails.join(ends).unwrap();
            }
            Wanted::Stream => {
                let (stream_ends, rails) = self.rails();
                rails.join(ends).unwrap();
                let link = self.called(peer, stream_ends);
                self.streams.insert(link, rails, number, None);
            }
        }
    }

    fn called(&self, peer: ContextId, ends: Ends) -> Arc<Link> {
        for (link, why) in self.links.given_up_by(peer, self) {
            self.lost(&link, why);
        }
        let link = self.connected(peer, ends);
        self.links.made_by_peer(&link);
        link
    }

    fn give(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        match self.inboxes.give(to, message, |inbox, message| inbox.deliver(message, None)) {
            Ok(delivered) => delivered.map(|_| None),
            Err(reason) => Ok(Some(reason)),
        }
    }

    /// Holds the first message back until the next of the same sender to the same receiver was given.
    fn swap(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        let mut held = self.held.borrow_mut();
        match held.take() {
            None => {
                *held = Some((to, message));
                Ok(None)
            }
            Some((place, first)) if place == to && first.from == message.from => {
                self.bug.set(None);
                let given = self.give(to, message)?;
                self.give(place, first)?;
                Ok(given)
            }
            other => {
                *held = other;
                self.give(to, message)
            }
        }
    }
}

impl Home for Context {
    fn message_most(&self) -> u64 {
        MESSAGE_MOST as u64
    }

    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        let is_there = self.inboxes.with(to, |_| ()).is_some();
        let Body::Whole(data) = &message.body else { return self.give(to, message) };
        match self.bug.get().filter(|_| is_there) {
            Some(Bug::Drops) => {
                self.bug.set(None);
                Ok(None)
            }
            Some(Bug::Doubles) => {
                self.bug.set(None);
                let Arrived { from, tag, link, .. } = message;
                // Charged with nothing, or too much would be given back for both.
                let again = Arrived { from, tag, body: Body::Whole(data.clone()), link, charge: 0 };
                self.give(to, again)?;
                self.give(to, message)
            }
            Some(Bug::Swaps) => self.swap(to, message),
            Some(Bug::Misdirects | Bug::TellsNobody) | None => self.give(to, message),
        }
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        for (before, why) in self.links.begun(link, number, self)? {
            self.lost(&before, why);
        }
        Ok(())
    }

    fn notify(&self, sender: Place, notice: Undelivered) {
        if self.bug.get() == Some(Bug::TellsNobody) {
            self.bug.set(None);
            return;
        }
        // A sender that is gone is told nothing.
        self.inboxes.with(sender, |inbox| inbox.notify(notice));
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}
