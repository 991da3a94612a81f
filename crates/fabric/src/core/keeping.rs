//! What is done for links and streams every now and then, whoever waits for what: gone nodes are noticed, and missing
//! rails made.

use super::Core;
use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::echo;
use crate::streams::Stream;
use crate::transport::{Broken, rails};
use std::time::Instant;

impl Core {
    /// Looks after a stream: handles what has arrived, and says what has to be said.
    pub fn tend(&self, stream: &Stream) {
        self.receive_on(&stream.link, self);
        if let Err(broken) = stream.link.pump(self) {
            self.lost(&stream.link, broken);
        }
    }

    /// Whether there are links to look after.
    pub fn has_links_to_look_after(&self) -> bool {
        self.links.view().all().any(|link| link.is_looked_after)
    }

    /// Ends those whose other nodes are gone without anything having told so.
    pub fn look_after_links(&self) {
        let view = self.links.view();
        for link in view.all().filter(|link| link.is_looked_after) {
            if let Err(broken) = link.look_after() {
                self.lost(link, broken);
            }
        }
    }

    /// Makes the rails that a stream of this context's own has not, if they can be made. Ends a
    /// stream that has had none for too long, or whose other end is no more.
    pub fn make_rails(&self, stream: &Stream) {
        let link = &stream.link;
        let is_alone = stream.rails.all().is_empty();
        // A context is gone if its node's daemon is there and does not know it: before and after it
        // was asked for, since the way to that daemon may be what was lost.
        let is_there = || stream.peer().is_some_and(|peer| self.has_daemon(&peer.context.node));
        let was_there = is_there();
        match self.directory.resolve(link.peer) {
            Ok(Some(found)) => stream.learn(found),
            Ok(None) if is_alone && was_there && is_there() => {
                return self.lost(link, Broken::Closed);
            }
            Ok(None) | Err(_) => {}
        }
        if is_alone && let Some(why) = stream.given_up(Instant::now()) {
            return self.lost(link, why);
        }
        if let Some(peer) = stream.peer().filter(|_| stream.is_own) {
            self.make_missing(stream, &peer, is_alone);
        }
    }

    /// Whether the daemon of a node is there.
    pub(super) fn has_daemon(&self, node: &str) -> bool {
        let query = echo::query().with("node", node);
        let found = self.directory.find(&query, None, |all| (!all.is_empty()).then_some(()));
        matches!(found, Ok(Some(())))
    }

    fn make_missing(&self, stream: &Stream, peer: &Introduction, is_alone: bool) {
        let (info, now) = (&peer.context, Instant::now());
        let (taken, lost) = stream.ways(now);
        // The others come first until it is known whether these lead there again.
        lost.iter().for_each(|way| self.survey.lost(way));
        let much = stream.carries_much(now);
        if !stream.has_room() {
            return;
        }
        let straight = self.straight(info);
        // Without any rail, whatever leads there is good enough.
        let beside: &[Way] = if is_alone { &[] } else { &straight };
        let bridged = self.bridged(info, &taken, beside, much);
        let mut missing = stream.missing(straight.into_iter().chain(bridged).collect());
        // One that answers calls may be of no use otherwise.
        missing.sort_by_key(|way| lost.contains(way));
        let missing = missing.into_iter().take(rails::RAILS_MOST);
        // One that was alone has a way then, and is not held up by others that do not answer. Where the last rail is lost
        // meanwhile, what is beside no others any more is looked for anew.
        let goes_on = |way: &Way| {
            let is_alone_now = stream.rails.all().is_empty();
            let is_of_use =
                if is_alone { way.is_straight() || is_alone_now } else { !is_alone_now };
            stream.has_room() && is_of_use
        };
        for way in missing.take_while(goes_on) {
            let called = self.call(peer, stream.number(), &way);
            // Tried again later.
            if let Ok(Some(rail)) = called.and_then(|ends| stream.join(ends)) {
                stream.joined(rail, way, Instant::now());
            }
        }
    }
}
