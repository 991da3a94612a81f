//! A thread that waits for a message, and catches it on its way to the inbox.

use super::Core;
use crate::frame::{Malformed, Refusal};
use crate::id::Place;
use crate::inbox::{Arrived, Inbox, Taken, Undelivered};
use crate::link::{Home, Link};
use crate::links::Current;
use crate::matching::Match;
use crate::progress::{Parker, Progress, Work};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

/// Who waits: a message that the thread finds itself is handed to it, without the way through
/// its inbox, unless it is enlisted there: then others count on its being woken for the next that comes.
pub struct Catcher<'a> {
    core: &'a Core,
    place: Place,
    wanted: Match,
    enlisted: RefCell<Option<Arc<Parker>>>,
    caught: RefCell<Option<Taken>>,
}

impl<'a> Catcher<'a> {
    /// Of what `wanted` wants of what is for `place`.
    pub fn new(core: &'a Core, place: Place, wanted: Match) -> Self {
        Self { core, place, wanted, enlisted: RefCell::new(None), caught: RefCell::new(None) }
    }

    /// What is there.
    pub fn look(self) -> Option<Taken> {
        if self.catch_waiting().is_none() {
            self.core.progress.look(&self);
            self.catch_waiting();
        }
        self.caught.into_inner()
    }

    /// What comes before `deadline`.
    pub fn wait(self, deadline: Option<Instant>) -> Option<Taken> {
        let Core { progress, inboxes, .. } = self.core;
        let enlist = |parker: &Arc<Parker>| {
            inboxes.with(self.place, |inbox| inbox.enlist_receiver(self.wanted, parker));
            *self.enlisted.borrow_mut() = Some(parker.clone());
        };
        progress.wait(&self, deadline, || self.catch_waiting(), enlist);
        // What was caught when time was up as well.
        let Some(parker) = self.enlisted.take() else { return self.caught.into_inner() };
        let others_wait = inboxes.with(self.place, |inbox| inbox.delist_receiver(&parker));
        // Woken for a message at the last moment: nobody else was woken for it.
        self.catch_waiting();
        // If it has another one already, that one is for somebody else.
        if others_wait == Some(true) && inboxes.may_have(self.place) {
            let next = inboxes.with(self.place, Inbox::next_receiver).flatten();
            next.iter().for_each(|parker| progress.wake(parker));
        }
        self.caught.into_inner()
    }

    /// Catches what waits in the inbox, unless something is caught. Returns whether something is. It stays where it is:
    /// moved through all that waits for it, it would cost more than the look.
    fn catch_waiting(&self) -> Option<()> {
        let mut caught = self.caught.borrow_mut();
        if caught.is_none() && self.core.inboxes.may_have(self.place) {
            let take = |inbox: &mut Inbox| {
                let (taken, senders) = inbox.take(&self.wanted);
                *caught = taken;
                senders
            };
            let senders = self.core.inboxes.with(self.place, take);
            senders.iter().flatten().for_each(|parker| self.core.progress.wake(parker));
        }
        caught.is_some().then_some(())
    }
}

impl Home for Catcher<'_> {
    fn message_most(&self) -> u64 {
        self.core.message_most()
    }

    // As in `link`.
    #[inline(always)]
    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        let (mut caught, enlisted) = (self.caught.borrow_mut(), self.enlisted.borrow());
        let is_free = caught.is_none() && enlisted.is_none();
        if to != self.place || !is_free || !self.wanted.wants(&message) {
            return self.core.deliver_by(enlisted.as_ref(), to, message);
        }
        let hands = |inbox: &mut Inbox| inbox.hands(message.link, message.charge, &self.wanted);
        match self.core.inboxes.with(to, hands) {
            Some(Some(credit)) => *caught = Some(Taken::Message(message, credit)),
            Some(None) => return self.core.deliver(to, message),
            None => return Ok(Some(Refusal::Gone)),
        }
        Ok(None)
    }

    fn has_enough(&self) -> bool {
        self.caught.borrow().is_some()
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        self.core.begun(link, number)
    }

    fn notify(&self, sender: Place, notice: Undelivered) {
        self.core.notify(sender, notice);
    }

    fn progress(&self) -> &Progress {
        self.core.progress()
    }
}

impl Work for Catcher<'_> {
    type View = Current;

    fn view(&self) -> Current {
        self.core.view()
    }

    fn poll(&self, view: &mut Current, ask_kernel: bool) -> usize {
        self.core.poll_for(self, view, ask_kernel)
    }

    fn is_in_memory(&self, view: &Current) -> bool {
        self.core.is_in_memory(view)
    }

    fn are_many(&self, view: &Current) -> bool {
        self.core.are_many(view)
    }

    fn falls_asleep(&self) -> bool {
        self.core.falls_asleep()
    }

    fn wakes_up(&self) {
        self.core.wakes_up();
    }

    fn signalled(&self, token: u64) {
        self.core.signalled_for(self, token);
    }
}
