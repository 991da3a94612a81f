//! A thread that waits for a message, and catches it on its way to the inbox.

use super::Core;
use super::waiting::Look;
use crate::frame::{Malformed, Refusal};
use crate::id::{ContextId, Place};
use crate::inbox::{Arrived, Body, Inbox, Spot, Taken, Undelivered};
use crate::link::{Home, Link};
use crate::links::Current;
use crate::matching::Match;
use crate::progress::{Parker, Progress, Work};
use std::cell::{Cell, OnceCell};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// Who waits: a message that the thread finds itself is handed to it, without the way through
/// its inbox, unless it is enlisted there: then others count on its being woken for the next that comes.
pub struct Catcher<'a> {
    core: &'a Core,
    place: Place,
    inbox: Spot<'a>,
    wanted: Match,
    enlisted: OnceCell<Arc<Parker>>,
    /// How often something had changed when it was last looked whether the sender that is wanted is gone.
    sought: Cell<Option<usize>>,
    /// What it has.
    pub caught: OnceCell<Taken>,
}

impl<'a> Catcher<'a> {
    /// Of what `wanted` wants of what is for `place`, if that leads somewhere. Its resource has to be there as long as this.
    pub fn new(core: &'a Core, place: Place, wanted: Match) -> Option<Self> {
        let (inbox, enlisted) = (core.junction.inboxes.at(place)?, OnceCell::new());
        let (sought, caught) = (Cell::new(None), OnceCell::new());
        Some(Self { core, place, inbox, wanted, enlisted, sought, caught })
    }

    /// Catches what is there. Returns who is gone, if there is nothing and nothing can come.
    pub fn look(&self) -> Option<ContextId> {
        if self.catch_waiting().is_some() {
            return None;
        }
        self.core.progress.look(self);
        self.catch_waiting();
        self.gone()
    }

    /// Catches what comes before `deadline`. Returns who is gone, if there is nothing and nothing can come.
    pub fn wait(&self, deadline: Option<Instant>) -> Option<ContextId> {
        let mut until = deadline;
        loop {
            // What most wait for is there soon, and the first look is for nothing else.
            let mut seeks = false;
            let ready = || {
                if self.catch_waiting().is_some() {
                    return Some(Look::Done(()));
                }
                let seeks = mem::replace(&mut seeks, true);
                match if seeks { self.seek() } else { Look::Later } {
                    Look::Later => None,
                    Look::At(time) if until.is_some_and(|until| until <= time) => None,
                    seen => Some(seen),
                }
            };
            let seen = self.core.progress.wait(self, until, ready, |parker| self.enlist(parker));
            until = match seen {
                Some(Look::At(time)) => Some(time),
                None if until != deadline => {
                    self.sought.set(None);
                    deadline
                }
                _ => break,
            };
        }
        self.leave();
        self.gone()
    }

    fn enlist(&self, parker: &Arc<Parker>) {
        self.inbox.with(|inbox| inbox.enlist_receiver(self.wanted, parker));
        self.enlisted.get_or_init(|| parker.clone());
    }

    /// Waits no longer.
    fn leave(&self) {
        let (progress, inbox) = (&self.core.progress, self.inbox);
        // What was caught when time was up as well.
        let Some(parker) = self.enlisted.get() else { return };
        let others_wait = inbox.with(|inbox| inbox.delist_receiver(parker));
        // Woken for a message at the last moment: nobody else was woken for it.
        self.catch_waiting();
        // If it has another one already, that one is for somebody else.
        if others_wait == Some(true) && inbox.may_have() {
            let next = inbox.with(Inbox::next_receiver).flatten();
            next.iter().for_each(|parker| progress.wake(parker));
        }
    }

    /// Whether the only sender that is wanted is gone, or when to look again. Looks when something has changed.
    fn seek(&self) -> Look<()> {
        let Some(from) = self.wanted.from else { return Look::Later };
        let changes = Some(self.core.absent.changes());
        if self.sought.replace(changes) == changes {
            return Look::Later;
        }
        self.core.seek(from.context)
    }

    /// Who is gone, if nothing is caught and nothing can come.
    fn gone(&self) -> Option<ContextId> {
        let from = self.wanted.from.filter(|_| self.caught.get().is_none())?;
        let is_gone = matches!(self.core.seek(from.context), Look::Done(()));
        // What it had sent was there before that was known.
        (is_gone && self.catch_waiting().is_none()).then_some(from.context)
    }

    /// Catches what waits in the inbox, unless something is caught. Returns whether something is. It stays where it is:
    /// moved through all that waits for it, it would cost more than the look.
    #[inline(always)]
    fn catch_waiting(&self) -> Option<()> {
        if self.inbox.may_have() {
            self.catch_from_inbox();
        }
        self.caught.get().map(|_| ())
    }

    #[inline(always)]
    fn catch(&self, taken: impl FnOnce() -> Taken) {
        debug_assert!(self.caught.get().is_none(), "nothing was caught before");
        self.caught.get_or_init(taken);
    }

    #[inline(never)]
    fn catch_from_inbox(&self) {
        if self.caught.get().is_none()
            && let Some(((taken, senders), links)) = self.inbox.with(|inbox| {
                let took = inbox.take(&self.wanted);
                let links = inbox.fetch(self.place, &self.wanted, took.0.as_ref());
                (took, links)
            })
        {
            taken.into_iter().for_each(|taken| self.catch(|| taken));
            links.iter().for_each(|link| self.core.flush_soon(link));
            senders.iter().for_each(|parker| self.core.progress.wake(parker));
        }
    }
}

impl Home for Catcher<'_> {
    fn message_most(&self) -> u64 {
        self.core.message_most()
    }

    fn deliver(&self, to: Place, message: Arrived) -> Result<Option<Refusal>, Malformed> {
        self.core.deliver_by(self.enlisted.get(), to, message)
    }

    // As in `link`.
    #[inline(always)]
    fn deliver_short(
        &self,
        to: Place,
        message: Arrived<impl FnOnce() -> Body>,
    ) -> Result<Option<Refusal>, Malformed> {
        let enlisted = self.enlisted.get();
        let is_free = self.caught.get().is_none() && enlisted.is_none();
        if to != self.place || !is_free || !self.wanted.wants(&message) {
            return self.core.deliver_by(enlisted, to, message.made());
        }
        if self.inbox.hands(message.link, message.charge) {
            self.catch(|| Taken::Message(message.made(), None));
            return Ok(None);
        }
        let hands = |inbox: &mut Inbox| inbox.hands(message.link, message.charge, &self.wanted);
        match self.inbox.with(hands) {
            Some(Some(credit)) => self.catch(|| Taken::Message(message.made(), credit)),
            Some(None) => return self.core.deliver(to, message.made()),
            None => return Ok(Some(Refusal::Gone)),
        }
        Ok(None)
    }

    fn has_enough(&self) -> bool {
        self.caught.get().is_some()
    }

    fn begun(&self, link: &Arc<Link>, number: u32) -> Result<(), Malformed> {
        self.core.begun(link, number)
    }

    fn fetched(&self, to: Place) {
        self.core.fetched(to);
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
