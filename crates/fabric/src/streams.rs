//! Streams that go over several rails: those that this context has begun, and those of others. Who
//! has begun one makes its rails, again and again as they are lost.

use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::id::ContextId;
use crate::link::Link;
use crate::progress::lock;
use crate::transport::Broken;
use crate::transport::rails::{RailId, Rails};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Contexts whose last stream, and last link, is remembered. What is forgotten is of contexts that are long gone.
pub const REMEMBERED_MOST: usize = 1 << 16;
/// How often missing rails are made, as long as there are others and when there is none.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
const AGAIN_AT_ONCE: Duration = Duration::from_millis(100);
/// How long a stream may be without a rail before it is broken: a few times what a bridge takes to
/// be started again, or a network to come back.
const ALONE_MOST: Duration = Duration::from_secs(10);

/// All streams of a context.
#[derive(Debug, Default)]
pub struct Streams {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// By the number of the link.
    all: BTreeMap<u32, Arc<Stream>>,
    /// The last stream that each other context has begun, whether it is there or not.
    begun: BTreeMap<ContextId, u64>,
}

/// One of them.
#[derive(Debug)]
pub struct Stream {
    /// The link that it carries.
    pub link: Arc<Link>,
    /// Its rails.
    pub rails: Rails,
    /// Its number among those of the context that has begun it.
    number: u64,
    /// Whether that is this one.
    pub is_own: bool,
    making: Mutex<Making>,
    is_busy: AtomicBool,
}

#[derive(Debug)]
struct Making {
    /// Where the other context was when the directory last knew it, and what to show it.
    peer: Option<Introduction>,
    ways: BTreeMap<RailId, Way>,
    last: Option<Instant>,
    /// Since when it has no rail by which anything came.
    alone_since: Option<Instant>,
}

/// What becomes of a connection that wants to be a rail.
#[derive(Debug)]
pub enum Wanted {
    /// One of this stream.
    Rail(Arc<Stream>),
    /// The first of a new one.
    Stream,
    /// Nothing: the stream has ended.
    Nothing,
}

impl Streams {
    /// A number for a stream that this context begins.
    pub fn next_number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.last += 1;
        state.last
    }

    /// What `peer` wants with a connection for its stream `number`. A new stream counts as begun.
    pub fn wanted(&self, peer: ContextId, number: u64) -> Wanted {
        let mut state = lock(&self.state);
        let last = state.begun.get(&peer).copied();
        if last.is_some_and(|last| number <= last) {
            let this = |stream: &&Arc<Stream>| {
                stream.link.peer == peer && !stream.is_own && stream.number == number
            };
            let there = state.all.values().find(this).cloned();
            return there.map_or(Wanted::Nothing, Wanted::Rail);
        }
        if state.begun.len() >= REMEMBERED_MOST {
            let live: BTreeSet<_> = state.all.values().map(|stream| stream.link.peer).collect();
            let first = state.begun.keys().find(|peer| !live.contains(peer)).copied();
            first.map(|peer| state.begun.remove(&peer));
        }
        state.begun.insert(peer, number);
        Wanted::Stream
    }

    /// One more.
    pub fn insert(
        &self,
        link: Arc<Link>,
        rails: Rails,
        number: u64,
        own: Option<(Introduction, RailId, Way)>,
    ) -> Arc<Stream> {
        let is_own = own.is_some();
        let (peer, ways) = own.map_or((None, BTreeMap::new()), |(peer, rail, way)| {
            (Some(peer), BTreeMap::from([(rail, way)]))
        });
        let making = Mutex::new(Making { peer, ways, last: None, alone_since: None });
        let is_busy = AtomicBool::new(false);
        let stream = Arc::new(Stream { link, rails, number, is_own, making, is_busy });
        lock(&self.state).all.insert(stream.link.id, stream.clone());
        stream
    }

    /// The stream of a link, if it has one, is no more.
    pub fn remove(&self, link: u32) {
        lock(&self.state).all.remove(&link);
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Stream>> {
        lock(&self.state).all.values().cloned().collect()
    }
}

impl Stream {
    /// Its number among those of the context that has begun it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether somebody is to look now whether rails are missing. If so, until [`Self::looked`]
    /// nobody else is.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut making = lock(&self.making);
        let (alone, has_heard) = (self.rails.all().is_empty(), self.rails.have_heard());
        // A rail that leads nowhere, or to one who has given the stream up and refuses it, changes nothing.
        making.alone_since = making.alone_since.filter(|_| !has_heard).or(alone.then_some(now));
        let every = if alone { AGAIN_AT_ONCE } else { AGAIN_EVERY };
        // Once, even if another makes them, to know where that one is.
        let is_concerned = self.is_own || alone || making.peer.is_none();
        let due = making.last.is_none_or(|last| now.saturating_duration_since(last) >= every)
            && is_concerned;
        if !due || self.is_busy.swap(true, SeqCst) {
            return false;
        }
        making.last = Some(now);
        true
    }

    /// Somebody has looked.
    pub fn looked(&self) {
        self.is_busy.store(false, SeqCst);
    }

    /// The directory knows where the other context is.
    pub fn learn(&self, peer: Introduction) {
        lock(&self.making).peer = Some(peer);
    }

    /// Where the other context is, or was when the directory last knew it.
    pub fn peer(&self) -> Option<Introduction> {
        lock(&self.making).peer.clone()
    }

    /// Why it is over, if it has had no rail by which anything came for too long.
    pub fn given_up(&self, now: Instant) -> Option<Broken> {
        let is_over = self.alone_for(now) >= ALONE_MOST;
        is_over.then_some(Broken::NoWay { seconds: ALONE_MOST.as_secs() })
    }

    fn alone_for(&self, now: Instant) -> Duration {
        let since = lock(&self.making).alone_since;
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The ways that its rails go, and those of rails that are no more since this was asked last.
    pub fn ways(&self) -> (Vec<Way>, Vec<Way>) {
        let there = self.rails.all();
        let mut making = lock(&self.making);
        let lost = making.ways.iter().filter(|(rail, _)| !there.contains(rail));
        let lost = lost.map(|(_, way)| way.clone()).collect();
        making.ways.retain(|rail, _| there.contains(rail));
        (making.ways.values().cloned().collect(), lost)
    }

    /// Those of `ways` that none of its rails goes.
    pub fn missing(&self, ways: Vec<Way>) -> Vec<Way> {
        let there = self.rails.all();
        let mut making = lock(&self.making);
        making.ways.retain(|rail, _| there.contains(rail));
        ways.into_iter().filter(|way| !making.ways.values().any(|other| other == way)).collect()
    }

    /// A rail goes this way.
    pub fn joined(&self, rail: RailId, way: Way) {
        lock(&self.making).ways.insert(rail, way);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Head};
    use crate::transport::testing::{Collected, streams};
    use crate::transport::{Ends, rails, tcp};

    /// A stream that another context has begun, the end by which it is read, and when that was.
    fn stream() -> (Arc<Stream>, Ends, Instant) {
        let ((ends, rails), (idle, _)) = (rails::ends().unwrap(), rails::ends().unwrap());
        // Read by the test itself, and not by the link.
        let link = Arc::new(Link::new(1, ContextId::new(2), idle));
        (Streams::default().insert(link, rails, 1, None), ends, Instant::now())
    }

    /// One more rail. Returns its other end.
    fn join(stream: &Stream) -> Ends {
        let (one, other) = streams();
        stream.rails.join(tcp::ends(one).unwrap()).unwrap();
        tcp::ends(other).unwrap()
    }

    /// How long it is alone when it is looked at so many seconds after it began.
    fn alone_after(stream: &Stream, begun: Instant, seconds: u64) -> u64 {
        let now = begun + Duration::from_secs(seconds);
        stream.is_due(now);
        stream.alone_for(now).as_secs()
    }

    fn lose_rails(stream: &Stream, ends: &mut Ends) {
        while !stream.rails.all().is_empty() {
            ends.receiver.poll(&mut Collected::default()).unwrap();
        }
    }

    /// Whoever has given a stream up closes every rail that is made for it: the other end gives up as well, though it
    /// finds rails again and again.
    #[test]
    fn rails_that_are_refused_are_none() {
        let (stream, mut ends, begun) = stream();
        assert_eq!(alone_after(&stream, begun, 0), 0);
        for second in 1..=3 {
            drop(join(&stream));
            assert_eq!(alone_after(&stream, begun, 2 * second), 2 * second);
            lose_rails(&stream, &mut ends);
            assert_eq!(alone_after(&stream, begun, 2 * second + 1), 2 * second + 1);
        }
    }

    #[test]
    fn a_rail_that_is_heard_ends_being_alone() {
        let (stream, mut ends, begun) = stream();
        assert_eq!(alone_after(&stream, begun, 0), 0);
        assert_eq!(alone_after(&stream, begun, 3), 3);
        let mut far = join(&stream);
        let probe = Head { frame: Frame::Probe { token: 1 }, length: 0, seen: 0 };
        far.sender.send(&probe.encode(), &[]).unwrap();
        while ends.receiver.poll(&mut Collected::default()).unwrap() == 0 {}
        assert_eq!(alone_after(&stream, begun, 4), 0);
        // However long nothing comes by it then.
        assert_eq!(alone_after(&stream, begun, 60), 0);
        drop(far);
        lose_rails(&stream, &mut ends);
        assert_eq!(alone_after(&stream, begun, 61), 0);
        assert_eq!(alone_after(&stream, begun, 63), 2);
    }
}
