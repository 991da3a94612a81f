//! Links as they come and go: those that this context has made, those of callers that are let in, and all that goes
//! with one that breaks.

use super::Core;
use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::frame::Greeting;
use crate::id::ContextId;
use crate::link::Link;
use crate::listen::Host;
use crate::progress::Progress;
use crate::streams::Wanted;
use crate::transport::{Broken, Ends, rails};
use nix::errno::Errno;
use std::io;
use std::sync::Arc;

impl Core {
    /// A stream of this context's own, with its first rail.
    pub(super) fn begin(
        &self,
        peer: &Introduction,
        number: u64,
        way: Way,
        first: Ends,
    ) -> io::Result<Arc<Link>> {
        let (ends, rails) = rails::ends()?;
        let rail = rails.join(first)?;
        let link = self.connected(peer.context.id, ends);
        self.streams.insert(link.clone(), rails, number, Some((peer.clone(), rail, way)));
        self.keeper.notice();
        Ok(link)
    }

    /// Somebody has called and wants a rail.
    fn wanted(&self, peer: ContextId, number: u64, ends: Ends) -> io::Result<()> {
        match self.streams.wanted(peer, number) {
            Wanted::Nothing => {}
            // Where there is no room for it its caller finds it closed, and goes on with those that it has.
            Wanted::Rail(stream) => drop(stream.join(ends)?),
            Wanted::Stream => {
                let (stream_ends, rails) = rails::ends()?;
                rails.join(ends)?;
                let link = self.called(peer, number, stream_ends);
                self.streams.insert(link, rails, number, None);
                self.keeper.notice();
            }
        }
        Ok(())
    }

    /// A link that `peer` has made with this `attempt`, after what has arrived by others.
    fn called(&self, peer: ContextId, attempt: u64, ends: Ends) -> Arc<Link> {
        for (link, why) in self.links.given_up_by(peer, attempt, self) {
            self.lost(&link, why);
        }
        let link = self.connected(peer, ends);
        if !self.links.made_by_peer(&link, attempt) {
            self.lost(&link, Broken::Closed);
        }
        link
    }

    pub(super) fn connected(&self, peer: ContextId, ends: Ends) -> Arc<Link> {
        let poll_is_enough = ends.poll_is_enough;
        let turns = self.turns.clone();
        let link = self.links.insert(|number| Link::new(number, peer, ends).in_turns(turns));
        self.absent.is_connected(peer);
        if link.is_looked_after {
            self.keeper.notice();
        }
        if !poll_is_enough {
            self.watch(&link);
        }
        // A leader that sleeps has not told this link to wake it.
        self.progress.ring();
        link
    }

    /// Nobody polls it all the while: it is to wake who sleeps.
    pub(super) fn watch(&self, link: &Arc<Link>) {
        if let Err(error) = link.watch(&self.progress) {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            self.lost(link, Broken::System { call: "epoll_ctl", errno });
        }
    }

    /// A link is broken: it goes, and whoever it concerns is told, after what has arrived by it: who finds that nothing can be
    /// sent may not have read all.
    pub(super) fn lost(&self, link: &Arc<Link>, why: Broken) {
        // If that fails as well, it is broken all the same.
        let _ = link.receive_all(self);
        let text = why.to_string();
        if !link.end(why, self) {
            return;
        }
        tracing::debug!(context = %link.peer, "a connection is over: {text}");
        self.streams.remove(link.id);
        self.links.remove(link);
        self.absent.change();
        self.inboxes.each(|inbox| {
            inbox.forget(link.id);
            // What was being fetched by it never comes, and holds up nothing that came after it.
            let next = inbox.next_receiver();
            let concerned = inbox.receivers_of(link.peer).chain(&next);
            concerned.for_each(|parker| self.progress.wake(parker));
        });
    }
}

impl Host for Core {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether it is who it says, and of a user who is let in.
    fn lets_in(&self, greeting: &Greeting) -> bool {
        let own = self.directory.welcome();
        let Some(key) = own.key else { return true };
        greeting.pass.is_some_and(|pass| {
            key.knows(&pass, greeting.from) && self.config.callers.include(own.owner, pass.user)
        })
    }

    fn greeted(&self, greeting: &Greeting, ends: Ends) {
        let Greeting { from, attempt, is_rail, carrier, .. } = *greeting;
        tracing::debug!(%from, ?carrier, in_memory = ends.in_memory, "a caller is let in");
        if !self.links.calls(from, attempt, is_rail) {
            // Its caller has given it up.
            tracing::debug!(%from, attempt, "a call has come late");
        } else if !is_rail {
            self.called(from, attempt, ends);
        } else if let Err(error) = self.wanted(from, attempt, ends) {
            tracing::warn!(%from, %error, "a connection is given up");
        }
    }
}
