//! What is done for links and streams every now and then, whoever waits for what: gone nodes are noticed, and missing
//! rails made.

use super::Core;
use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::echo;
use crate::junction::Found;
use crate::streams::Stream;
use std::time::Instant;

impl Core {
    /// Looks after a stream: handles what has arrived, and says what has to be said.
    pub fn tend(&self, stream: &Stream) {
        self.receive_on(&stream.link, self);
        if let Err(broken) = stream.link.pump(self) {
            self.lost(&stream.link, broken);
        }
    }

    /// Makes the rails that a stream of this context's own has not, if they can be made. Ends a
    /// stream that has had none for too long, or whose other end is no more.
    pub fn make_rails(&self, stream: &Stream) {
        // A context is gone if its node's daemon is there and does not know it: before and after it
        // was asked for, since the way to that daemon may be what was lost.
        let is_there = || stream.peer().is_some_and(|peer| self.has_daemon(&peer.context.node));
        let was_there = is_there();
        let found = match self.directory.resolve(stream.link.peer) {
            Ok(Some(found)) => Found::There(found),
            Ok(None) if was_there && is_there() => Found::Gone,
            Ok(None) | Err(_) => Found::Unknown,
        };
        if let Some(peer) = self.junction.looked_up(stream, found, Instant::now(), self) {
            self.make_missing(stream, &peer);
        }
    }

    /// Whether the daemon of a node is there.
    pub(super) fn has_daemon(&self, node: &str) -> bool {
        let query = echo::query().with("node", node);
        let found = self.directory.find(&query, None, |all| (!all.is_empty()).then_some(()));
        matches!(found, Ok(Some(())))
    }

    fn make_missing(&self, stream: &Stream, peer: &Introduction) {
        let was_alone = stream.rails.all().is_empty();
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
        let beside: &[Way] = if was_alone { &[] } else { &straight };
        let bridged = self.bridged(info, &taken, beside, much);
        let ways = straight.into_iter().chain(bridged).collect();
        let call = |way: &Way| self.call(peer, stream.number(), way).ok();
        stream.make_missing(ways, &lost, was_alone, Instant::now, call);
    }
}
