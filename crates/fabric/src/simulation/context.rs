//! One context: its junction without a kernel, a directory and threads; and the mistakes that can be planted where its
//! parts meet.

use super::Bug;
use super::clock::Clock;
use crate::carriers::Carriers;
use crate::directory::protocol::{ContextInfo, Introduction};
use crate::door::Callers;
use crate::frame;
use crate::frame::{GREETING, Greeting, Malformed, Refusal};
use crate::id::{ContextId, Place};
use crate::inbox::{Arrived, Body, Undelivered};
use crate::junction::{Junction, Surroundings};
use crate::link::{Home, Link};
use crate::progress::{Progress, Wait};
use crate::transport::rails::{self, Rails};
use crate::transport::{Broken, Ends};
use crate::turns::Turns;
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

/// Longest message that is accepted.
pub const MESSAGE_MOST: usize = 200_000;
/// Looks at one link before others get a turn.
const LOOKS: usize = 8;

/// What surrounds a junction.
pub struct Context {
    /// Its name.
    pub id: ContextId,
    /// Its links, streams and inboxes.
    pub junction: Junction,
    progress: Progress,
    clock: Clock,
    /// Who has called, with which of its attempts, each once, in the order in which they have come.
    calls: RefCell<Vec<(ContextId, u64)>>,
    /// Links that broke because of what the other end said, though that is this program as well, and calls that were taken
    /// after later ones.
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

/// The node of a context that was introduced.
pub fn node_of(peer: &Introduction) -> usize {
    peer.context.node[1..].parse().unwrap()
}

impl Context {
    /// One with nothing in it.
    pub fn new(id: ContextId, clock: &Clock, bug: Option<Bug>) -> Self {
        Self {
            id,
            junction: Junction::new(Arc::new(Turns::new())),
            progress: Progress::new(Wait::Block).unwrap(),
            clock: clock.clone(),
            calls: RefCell::default(),
            mistakes: RefCell::default(),
            bug: Cell::new(bug),
            held: RefCell::default(),
        }
    }

    /// What one end said that the other did not understand, or did too late, if anything.
    pub fn mistake(&self) -> Option<String> {
        self.mistakes.borrow().first().cloned()
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
        let Greeting { from, attempt, .. } = greeting;
        let at = self.come(from, attempt);
        let greeting = match self.bug.get() {
            // Each is later than all that have come before.
            Some(Bug::TakesLate) => Greeting { attempt: at as u64, ..greeting },
            _ => greeting,
        };
        let is_taken = self.junction.greeted(&greeting, ends, self).unwrap();
        let is_later = |call: &&(ContextId, u64)| call.0 == from && call.1 > attempt;
        if is_taken && let Some((_, later)) = self.calls.borrow()[..at].iter().find(is_later) {
            let what = format!("{}: call {attempt} of {from} is taken after call {later}", self.id);
            self.mistakes.borrow_mut().push(what);
        }
        Ok(is_taken)
    }

    /// Reads and carries what there is.
    pub fn tend(&self) {
        let view = self.junction.links.view();
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

    /// A link is broken.
    pub fn lost(&self, link: &Arc<Link>, why: Broken) {
        self.junction.lost(link, why, self);
    }

    /// A call has come, or one more rail of it. Returns how many had come before it.
    fn come(&self, from: ContextId, attempt: u64) -> usize {
        let (call, mut calls) = ((from, attempt), self.calls.borrow_mut());
        calls.iter().position(|other| *other == call).unwrap_or_else(|| {
            calls.push(call);
            calls.len() - 1
        })
    }

    fn receive_on(&self, link: &Arc<Link>) -> usize {
        link.receive(self).unwrap_or_else(|broken| {
            self.lost(link, broken);
            1
        })
    }

    fn give(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        match self.junction.inboxes.give(to, message, |inbox, message| inbox.deliver(message, None))
        {
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
        let is_there = self.junction.inboxes.with(to, |_| ()).is_some();
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
        self.junction.begun(link, number, self)
    }

    // Nobody sleeps.
    fn fetched(&self, _: Place) {}

    fn notify(&self, sender: Place, notice: Undelivered) {
        if self.bug.get() == Some(Bug::TellsNobody) {
            self.bug.set(None);
            return;
        }
        // A sender that is gone is told nothing.
        self.junction.inboxes.with(sender, |inbox| inbox.notify(notice));
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Surroundings for Context {
    fn rails(&self) -> io::Result<(Ends, Rails)> {
        let clock = self.clock.clone();
        rails::ends_by(Box::new(move || clock.now()))
    }

    // The world looks at all there is, again and again.
    fn connected(&self, _: &Arc<Link>, _: bool) {}

    fn notice(&self) {}

    fn ended(&self, link: &Link, why: &Broken) {
        if matches!(why, Broken::Malformed(_) | Broken::Unread { .. }) {
            let what = format!("{}: the link to {}: {why}", self.id, link.peer);
            self.mistakes.borrow_mut().push(what);
        }
    }
}
