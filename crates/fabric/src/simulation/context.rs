//! One context: its links, streams and inboxes put together as `core` does it, without a kernel, a directory and
//! threads; and the mistakes that can be planted where they meet.

use super::Bug;
use super::clock::Clock;
use crate::bridge::routes::Way;
use crate::carriers::Carriers;
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::Callers;
use crate::frame;
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
use std::collections::BTreeMap;
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
    /// With which attempts others have made its links.
    attempts: RefCell<BTreeMap<u32, u64>>,
    /// Links that broke because of what the other end said, though that is this program as well, or were ended by a call
    /// that came late.
    mistakes: RefCell<Vec<String>>,
    bug: Cell<Option<Bug>>,
    /// A message that [`Bug::Swaps`] holds back.
    held: RefCell<Option<(Place, Arrived)>>,
}

/// A context of `node`, for another that wants to call it.
pub fn introduction(id: ContextId, node: usize) -> Introduction {
    let (owner, callers, addresses) = (1000, Callers::SameUser, Vec::new());
    let (node, carriers) = (format!("n{node}"), Carriers::default());
    let context =
        ContextInfo { id, node, owner, callers, addresses, carriers, speaks: frame::VERSION };
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
            attempts: RefCell::default(),
            mistakes: RefCell::default(),
            bug: Cell::new(bug),
            held: RefCell::default(),
        }
    }

    /// What one end said that the other did not understand, or did too late, if anything.
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
        let Greeting { from, attempt, is_rail, .. } = greeting;
        let is_late = !self.links.calls(from, attempt, is_rail);
        if is_late && !self.takes_late() {
            return Ok(false);
        }
        if is_rail {
            self.wanted(from, attempt, ends);
        } else {
            self.called(from, attempt, ends);
        }
        Ok(true)
    }

    /// Reads and carries what there is.
    pub fn tend(&self) {
        let view = self.links.view();
        for link in view.all() {
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
        for link in view.all().filter(|link| link.is_looked_after) {
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
                let link = self.called(peer, number, stream_ends);
                self.streams.insert(link, rails, number, None);
            }
        }
    }

    fn called(&self, peer: ContextId, attempt: u64, ends: Ends) -> Arc<Link> {
        let latest = if self.takes_late() { u64::MAX } else { attempt };
        for (link, why) in self.links.given_up_by(peer, latest, self) {
            self.expect_order(&link, attempt);
            self.lost(&link, why);
        }
        let link = self.connected(peer, ends);
        self.attempts.borrow_mut().insert(link.id, attempt);
        if !self.links.made_by_peer(&link, attempt) {
            self.lost(&link, Broken::Closed);
        }
        link
    }

    /// A link is over when its peer has made another with this `attempt`: that is to be a later one than its own.
    fn expect_order(&self, link: &Link, attempt: u64) {
        let own = self.attempts.borrow().get(&link.id).copied();
        if let Some(own) = own.filter(|own| *own >= attempt) {
            let (id, peer) = (self.id, link.peer);
            let what = format!("{id}: call {attempt} of {peer} ends the link of call {own}");
            self.mistakes.borrow_mut().push(what);
        }
    }

    fn takes_late(&self) -> bool {
        self.bug.get() == Some(Bug::TakesLate)
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
            Some(Bug::Misdirects | Bug::TellsNobody | Bug::TakesLate) | None => {
                self.give(to, message)
            }
        }
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        for (before, why) in self.links.begun(link, number, self)? {
            self.lost(&before, why);
        }
        Ok(())
    }

    // Nobody sleeps.
    fn fetched(&self, _: Place) {}

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
