//! Which links and streams a context has, and what becomes of them: they are made by either end, given up for later ones,
//! found broken and ended. It has no sockets, threads or directory: these are what surrounds it, in a running context
//! (`core`) and in a simulated one (`simulation`).

use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::frame::{Greeting, Malformed};
use crate::id::ContextId;
use crate::inbox::Inboxes;
use crate::link::{Home, Link};
use crate::links::Links;
use crate::streams::{Stream, Streams, Wanted};
use crate::transport::rails::Rails;
use crate::transport::{Broken, Ends};
use crate::turns::Turns;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The links and streams of a context, and the inboxes of whom they concern.
#[derive(Debug)]
pub struct Junction {
    /// Its inboxes.
    pub inboxes: Inboxes,
    /// Its links.
    pub links: Links,
    /// Those of them that go over several rails.
    pub streams: Streams,
    /// Where pieces of long messages wait for their times, whatever link they are for.
    turns: Arc<Turns>,
}

/// What a junction needs of its context, besides what its links need.
pub trait Surroundings: Home {
    /// Both halves of a new stream, and its rails, of which it has none.
    ///
    /// # Errors
    /// If the system has no room for it.
    fn rails(&self) -> io::Result<(Ends, Rails)>;
    /// There is one more link. Unless `poll_is_enough`, it has to wake threads that sleep.
    fn connected(&self, link: &Arc<Link>, poll_is_enough: bool);
    /// There is something to look after that was not there before.
    fn notice(&self);
    /// A link is over, and is none of the junction's any more. Whoever waits for messages that came by it looks again soon.
    fn ended(&self, link: &Link, why: &Broken);
}

/// What the directory says of the context at the other end of a stream.
#[derive(Debug)]
pub enum Found {
    /// Where it is.
    There(Introduction),
    /// That it is no more.
    Gone,
    /// Nothing.
    Unknown,
}

impl Junction {
    /// One without links. Long messages are carried by them at the rates that are reserved in `turns`.
    pub fn new(turns: Arc<Turns>) -> Self {
        let (links, streams) = (Links::default(), Streams::default());
        Self { inboxes: Inboxes::new(), links, streams, turns }
    }

    /// A stream of the context's own, with its first rail.
    ///
    /// # Errors
    /// If the system has no room for it.
    pub fn begin(
        &self,
        peer: &Introduction,
        number: u64,
        way: Way,
        first: Ends,
        around: &impl Surroundings,
    ) -> io::Result<Arc<Link>> {
        let (ends, rails) = around.rails()?;
        let rail = rails.join(first)?;
        let link = self.connected(peer.context.id, ends, around);
        self.streams.insert(link.clone(), rails, number, Some((peer.clone(), rail, way)));
        around.notice();
        Ok(link)
    }

    /// A link to `peer` over `ends`.
    pub fn connected(&self, peer: ContextId, ends: Ends, around: &impl Surroundings) -> Arc<Link> {
        let (turns, poll_is_enough) = (self.turns.clone(), ends.poll_is_enough);
        let link = self.links.insert(|number| Link::new(number, peer, ends).in_turns(turns));
        if link.is_looked_after {
            around.notice();
        }
        around.connected(&link, poll_is_enough);
        link
    }

    /// A caller has said who it is, and is let in. Returns whether its call is taken: not if that one has given it up.
    ///
    /// # Errors
    /// If the system has no room for it.
    pub fn greeted(
        &self,
        greeting: &Greeting,
        ends: Ends,
        around: &impl Surroundings,
    ) -> io::Result<bool> {
        let Greeting { from, attempt, is_rail, .. } = *greeting;
        if !self.links.calls(from, attempt, is_rail) {
            return Ok(false);
        }
        if is_rail {
            self.wanted(from, attempt, ends, around)?;
        } else {
            self.called(from, attempt, ends, around);
        }
        Ok(true)
    }

    /// Somebody has called and wants a rail.
    fn wanted(
        &self,
        peer: ContextId,
        number: u64,
        ends: Ends,
        around: &impl Surroundings,
    ) -> io::Result<()> {
        match self.streams.wanted(peer, number) {
            Wanted::Nothing => {}
            // Where there is no room for it its caller finds it closed, and goes on with those that it has.
            Wanted::Rail(stream) => drop(stream.join(ends)?),
            Wanted::Stream => {
                let (stream_ends, rails) = around.rails()?;
                rails.join(ends)?;
                let link = self.called(peer, number, stream_ends, around);
                self.streams.insert(link, rails, number, None);
                around.notice();
            }
        }
        Ok(())
    }

    /// A link that `peer` has made with this `attempt`, after what has arrived by others.
    fn called(
        &self,
        peer: ContextId,
        attempt: u64,
        ends: Ends,
        around: &impl Surroundings,
    ) -> Arc<Link> {
        for (link, why) in self.links.given_up_by(peer, attempt, around) {
            self.lost(&link, why, around);
        }
        let link = self.connected(peer, ends, around);
        if !self.links.made_by_peer(&link, attempt) {
            self.lost(&link, Broken::Closed, around);
        }
        link
    }

    /// The peer of `link`, which is just read, begins to send by it, as by its own link of this number: those by which it has
    /// sent before are over.
    ///
    /// # Errors
    /// If it has given up this one as well, or has begun already.
    pub fn begun(
        &self,
        link: &Arc<Link>,
        number: u32,
        around: &impl Surroundings,
    ) -> Result<(), Malformed> {
        for (before, why) in self.links.begun(link, number, around)? {
            self.lost(&before, why, around);
        }
        Ok(())
    }

    /// Whether there are links to look after.
    pub fn has_links_to_look_after(&self) -> bool {
        self.links.view().all().any(|link| link.is_looked_after)
    }

    /// Ends those whose other nodes are gone without anything having told so.
    pub fn look_after_links(&self, around: &impl Surroundings) {
        let view = self.links.view();
        for link in view.all().filter(|link| link.is_looked_after) {
            if let Err(broken) = link.look_after() {
                self.lost(link, broken, around);
            }
        }
    }

    /// The directory has been asked for the other end of a stream. Ends one without rails whose other end is no more, or that
    /// has had none for too long. Returns to whom its rails are to be made, if it goes on and that is up to this end.
    pub fn looked_up(
        &self,
        stream: &Stream,
        found: Found,
        now: Instant,
        around: &impl Surroundings,
    ) -> Option<Introduction> {
        let is_alone = stream.rails.all().is_empty();
        let is_gone = matches!(found, Found::Gone);
        if let Found::There(peer) = found {
            stream.learn(peer);
        }
        let gone = (is_alone && is_gone).then_some(Broken::Closed);
        let over = gone.or_else(|| stream.given_up(now).filter(|_| is_alone));
        if let Some(why) = over {
            self.lost(&stream.link, why, around);
            return None;
        }
        stream.peer().filter(|_| stream.is_own)
    }

    /// A link is broken: it goes, and whoever it concerns is told, after what has arrived by it: who finds that nothing can be
    /// sent may not have read all.
    pub fn lost(&self, link: &Arc<Link>, why: Broken, around: &impl Surroundings) {
        // If that fails as well, it is broken all the same.
        let _ = link.receive_all(around);
        if !link.end(why.clone(), around) {
            return;
        }
        self.streams.remove(link.id);
        self.links.remove(link);
        around.ended(link, &why);
        self.inboxes.each(|inbox| {
            inbox.forget(link.id);
            // What was being fetched by it never comes, and holds up nothing that came after it.
            let next = inbox.next_receiver();
            let concerned = inbox.receivers_of(link.peer).chain(&next);
            concerned.for_each(|parker| around.progress().wake(parker));
        });
    }
}
