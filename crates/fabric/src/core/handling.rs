//! What is done on links by whoever has time: what has arrived is handled, and what waits is carried.

use super::Core;
use crate::flow::Unsent;
use crate::id::ResourceId;
use crate::link::{Home, Link};
use crate::links::Current;
use crate::listen::Listeners;
use crate::progress::Work;
use crate::transport::Broken;
use keeptime_locks::lock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many links over the kernel are asked one by one while spinning.
const ASKED_ONE_BY_ONE: usize = 2;
/// How often it is looked whether all is sent: the kernel does not say so.
const DRAIN_STEP: Duration = Duration::from_millis(1);

impl Core {
    /// Works until everything that was sent is with the other ends, or with their kernels, or
    /// `deadline` has passed.
    pub fn drain(&self, deadline: Instant) {
        let drained = || self.junction.links.view().all().all(|link| self.is_drained(link));
        loop {
            let now = Instant::now();
            if drained() || now >= deadline {
                return;
            }
            self.progress.wait(self, Some((now + DRAIN_STEP).min(deadline)), || None::<()>, |_| {});
        }
    }

    /// The same. Returns for whom that is which is not.
    pub fn not_carried(&self, deadline: Instant) -> Vec<ResourceId> {
        // Connections that have broken already are found out first.
        self.progress.look(self);
        self.drain(deadline);
        let view = self.junction.links.view();
        let left = view.all().filter(|link| !self.is_drained(link)).flat_map(|link| link.unsent());
        left.collect()
    }

    /// The same. Returns what may not have arrived, but for what resources are told that are still there.
    pub fn unsent(&self, deadline: Instant) -> Option<Unsent> {
        let left = self.not_carried(deadline);
        // After that look, which may have found another one broken.
        let untold = *lock(&self.untold);
        Unsent::after(untold, left)
    }

    /// Whether everything that was sent by `link` is with the other end, or with its kernel. If it breaks now nothing
    /// more is sent: senders are told.
    fn is_drained(&self, link: &Arc<Link>) -> bool {
        link.is_drained(self).unwrap_or_else(|broken| {
            self.lost(link, broken);
            true
        })
    }

    /// Carries what was gathered. Returns whether there was something.
    pub fn flush(&self) -> bool {
        let view = self.junction.links.view();
        let any = view.all().any(|link| link.has_backlog());
        for link in view.all() {
            // First what has arrived: it may say that nothing has to be sent again. Whoever waits does that as well, and one
            // is in the way of the other.
            if link.is_unsettled() && !link.is_attended() {
                self.receive_on(link, self);
            }
            self.flush_by(link, Link::pump_if_free);
        }
        any
    }

    /// Whether something is gathered, seen with the locks with which threads say so.
    pub fn has_gathered(&self) -> bool {
        self.junction.links.all().iter().any(|link| link.has_gathered())
    }

    /// Whether all bytes that were taken are with the other ends, or with their kernels, whatever is still to be asked for.
    pub fn has_carried_all(&self) -> bool {
        self.junction.links.view().all().all(|link| link.has_carried_all())
    }

    /// Has what waits carried, whatever this thread does next.
    #[inline(always)]
    pub(super) fn flush_soon(&self, link: &Link) {
        if link.has_backlog() {
            self.flusher.notice();
        }
    }

    /// Has what waits on `link` carried by `pump`.
    fn flush_by(&self, link: &Arc<Link>, pump: impl Fn(&Link, &Self) -> Result<(), Broken>) {
        if link.has_backlog()
            && let Err(broken) = pump(link, self)
        {
            self.lost(link, broken);
        }
    }

    pub(super) fn receive_on(&self, link: &Arc<Link>, home: &impl Home) -> usize {
        let handled = link.receive(home).unwrap_or_else(|broken| {
            self.lost(link, broken);
            1
        });
        // Pieces of what is taken now may have to wait for their times.
        self.flush_soon(link);
        handled
    }

    /// [`Work::poll`], with everything for `home`. Links that are not asked are read on if more is there anyhow.
    pub(super) fn poll_for(&self, home: &impl Home, view: &mut Current, ask_kernel: bool) -> usize {
        self.junction.links.refresh(view);
        let in_memory = view.in_memory.iter().filter(|link| link.may_have_frames());
        let mut handled: usize = in_memory.map(|link| self.receive_on(link, home)).sum();
        if ask_kernel && !self.are_many(view) {
            for link in &view.others {
                handled += self.receive_on(link, home);
            }
        } else {
            for link in &view.others {
                self.watch(link);
                let more = if link.is_read_on() { self.receive_on(link, home) } else { 0 };
                // Who has just read has said what had to be said.
                if more == 0 {
                    self.flush_by(link, Link::pump);
                }
                handled += more;
            }
        }
        handled
    }

    /// [`Work::signalled`], with everything for `home`.
    pub(super) fn signalled_for(&self, home: &impl Home, token: u64) {
        if Listeners::is_theirs(token) {
            self.listeners.signalled(token, self);
        } else if let Some(link) = self.junction.links.numbered(token as u32) {
            match link.signalled(home) {
                Ok(()) => self.flush_soon(&link),
                Err(broken) => self.lost(&link, broken),
            }
        }
    }
}

impl Work for Core {
    type View = Current;

    fn view(&self) -> Current {
        self.junction.links.view()
    }

    fn poll(&self, view: &mut Current, ask_kernel: bool) -> usize {
        self.poll_for(self, view, ask_kernel)
    }

    fn is_in_memory(&self, view: &Current) -> bool {
        view.others.is_empty()
    }

    fn are_many(&self, view: &Current) -> bool {
        view.others.len() > ASKED_ONE_BY_ONE
    }

    fn falls_asleep(&self) -> bool {
        let view = self.junction.links.view();
        view.others.iter().for_each(|link| self.watch(link));
        // All of them, even if one has something: the words of those that were told are taken back.
        view.in_memory.iter().filter(|link| !link.falls_asleep()).count() == 0
    }

    fn wakes_up(&self) {
        self.junction.links.view().in_memory.iter().for_each(|link| link.wakes_up());
    }

    fn signalled(&self, token: u64) {
        self.signalled_for(self, token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::directory::{Server, ServerConfig};
    use crate::frame::Reason;
    use crate::id::ContextId;
    use crate::inbox::{NOTICES_MOST, Undelivered};
    use crate::matching::Tag;

    /// A resource that sends and never receives has so much to be told that it is told no more: whoever closes its context is.
    #[test]
    fn what_a_resource_is_not_told_is_told_in_the_end() {
        let name = format!("handling-{}", std::process::id());
        let (node, address) = ("n1".into(), ([127, 0, 0, 1], 0).into());
        let server = ServerConfig { name: name.clone(), node, address, members: vec![], key: None };
        let _server = Server::start(server).unwrap();
        let core = Core::open(Config { directory: name, ..Config::default() }).unwrap();
        let place = core.junction().inboxes.open().unwrap();
        let to = ResourceId { context: ContextId::new(1), place };
        let lost = || core.notify(place, Undelivered { to, tag: Tag(1), reason: Reason::Gone });
        (0..NOTICES_MOST).for_each(|_| lost());
        let unsent = || core.unsent(Instant::now()).map(|unsent| (unsent.count, unsent.first));
        assert_eq!(unsent(), None);
        lost();
        lost();
        assert_eq!(unsent(), Some((2, to)));
    }
}
