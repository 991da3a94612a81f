//! What a running context does about links as they come and go, and who of those that call it is let in.

use super::Core;
use crate::frame::Greeting;
use crate::junction::Surroundings;
use crate::link::Link;
use crate::listen::Host;
use crate::progress::Progress;
use crate::transport::rails::{self, Rails};
use crate::transport::{Broken, Ends};
use nix::errno::Errno;
use std::io;
use std::sync::Arc;

impl Core {
    /// Nobody polls it all the while: it is to wake who sleeps.
    pub(super) fn watch(&self, link: &Arc<Link>) {
        if let Err(error) = link.watch(&self.progress) {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
            self.lost(link, Broken::System { call: "epoll_ctl", errno });
        }
    }

    /// A link is broken.
    pub(super) fn lost(&self, link: &Arc<Link>, why: Broken) {
        self.junction.lost(link, why, self);
    }
}

impl Surroundings for Core {
    fn rails(&self) -> io::Result<(Ends, Rails)> {
        rails::ends()
    }

    fn connected(&self, link: &Arc<Link>, poll_is_enough: bool) {
        self.absent.is_connected(link.peer);
        if !poll_is_enough {
            self.watch(link);
        }
        // A leader that sleeps has not told this link to wake it.
        self.progress.ring();
    }

    fn notice(&self) {
        self.keeper.notice();
    }

    fn ended(&self, link: &Link, why: &Broken) {
        tracing::debug!(context = %link.peer, "a connection is over: {why}");
        self.absent.change();
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
        let Greeting { from, attempt, carrier, .. } = *greeting;
        tracing::debug!(%from, ?carrier, in_memory = ends.in_memory, "a caller is let in");
        match self.junction.greeted(greeting, ends, self) {
            Ok(true) => {}
            // Its caller has given it up.
            Ok(false) => tracing::debug!(%from, attempt, "a call has come late"),
            Err(error) => tracing::warn!(%from, %error, "a connection is given up"),
        }
    }
}
