//! Streams that go over several rails: those that this context has begun, and those of others. Who
//! has begun one makes its rails, again and again as they are lost.

use crate::bridge::routes::Way;
use crate::directory::protocol::Introduction;
use crate::id::ContextId;
use crate::link::Link;
use crate::transport::rails::{Allowance, RAILS_MOST, RailId, Rails};
use crate::transport::{Broken, Ends};
use keeptime_locks::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Contexts whose last stream, and last link, is remembered. What is forgotten is of contexts that are long gone.
pub const REMEMBERED_MOST: usize = 1 << 16;
/// How often missing rails are made, as long as there are others and when there is none.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
const AGAIN_AT_ONCE: Duration = Duration::from_millis(100);
/// How often at least, beside others. Where those that were made are found lost each time it is twice as long until the
/// next: the other end may have no room for them.
const AGAIN_MOST: Duration = Duration::from_secs(32);
/// How long rails have to last until those that are missing are made as often as before.
const LASTING: Duration = Duration::from_secs(60);
/// Bytes a second from which on a stream carries much.
const MUCH: u64 = 1 << 20;
/// How long a stream may be without a rail before it is broken: a few times what a bridge takes to
/// be started again, or a network to come back.
pub const ALONE_MOST: Duration = Duration::from_secs(10);

/// All streams of a context.
#[derive(Debug, Default)]
pub struct Streams {
    state: Mutex<State>,
    /// What is left of rails beside others, for all streams.
    allowance: Allowance,
}

#[derive(Debug, Default)]
struct State {
    /// That of the last attempt.
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
    allowance: Allowance,
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
    /// The way of each rail, and since when it is there.
    ways: BTreeMap<RailId, (Way, Instant)>,
    last: Option<Instant>,
    /// How long after that missing rails are made again beside others.
    every: Duration,
    /// When one was last found lost that had not lasted.
    lost_last: Option<Instant>,
    /// Bytes that it had carried when that was last looked at, and when.
    carried: (u64, Instant),
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
    /// A number for one more attempt of this context's to reach another, higher than all before. It is that of the stream,
    /// if it makes one; whoever is called knows by it, of streams and of links of one connection, which call is the latest.
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

    /// One more. It is not kept if its link has broken before: whoever ended that has found no stream to remove.
    pub fn insert(
        &self,
        link: Arc<Link>,
        rails: Rails,
        number: u64,
        own: Option<(Introduction, RailId, Way)>,
    ) -> Arc<Stream> {
        let is_own = own.is_some();
        let now = Instant::now();
        let (peer, ways) = own.map_or((None, BTreeMap::new()), |(peer, rail, way)| {
            (Some(peer), BTreeMap::from([(rail, (way, now))]))
        });
        let every = AGAIN_EVERY;
        let (last, lost_last, alone_since) = (None, None, None);
        let carried = (0, now);
        let making = Making { peer, ways, last, every, lost_last, carried, alone_since };
        let making = Mutex::new(making);
        let (allowance, is_busy) = (self.allowance.clone(), AtomicBool::new(false));
        let stream = Arc::new(Stream { link, rails, allowance, number, is_own, making, is_busy });
        lock(&self.state).all.insert(stream.link.id, stream.clone());
        if stream.link.broken().is_some() {
            self.remove(stream.link.id);
        }
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
    /// Whether it has carried much, either way, since this was asked last; over a second at least.
    pub fn carries_much(&self, now: Instant) -> bool {
        let carried = self.rails.carried();
        let (before, since) = std::mem::replace(&mut lock(&self.making).carried, (carried, now));
        let passed = now.saturating_duration_since(since).as_secs_f64().max(1.0);
        (carried - before) as f64 >= MUCH as f64 * passed
    }

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
        let every = if alone { AGAIN_AT_ONCE } else { making.every };
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

    /// Whether somebody looks just now.
    #[cfg(test)]
    pub fn is_looked_at(&self) -> bool {
        self.is_busy.load(SeqCst)
    }

    /// Whether it may have one more rail.
    pub fn has_room(&self) -> bool {
        self.rails.have_room(&self.allowance)
    }

    /// One more rail, if it may have one. If not, `ends` are closed, and none is returned.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn join(&self, ends: Ends) -> io::Result<Option<RailId>> {
        self.rails.join_beside(ends, &self.allowance)
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
    pub fn ways(&self, now: Instant) -> (Vec<Way>, Vec<Way>) {
        let there = self.rails.all();
        let mut making = lock(&self.making);
        let lost = making.ways.iter().filter(|(rail, _)| !there.contains(rail));
        let lost: Vec<_> = lost.map(|(_, way)| way.clone()).collect();
        let is_brief = |since: &Instant| now.saturating_duration_since(*since) < LASTING;
        if lost.iter().any(|(_, since)| is_brief(since)) {
            making.every = (making.every * 2).min(AGAIN_MOST);
            making.lost_last = Some(now);
        } else if making.lost_last.is_none_or(|lost| now.saturating_duration_since(lost) >= LASTING)
        {
            making.every = AGAIN_EVERY;
        }
        making.ways.retain(|rail, _| there.contains(rail));
        let way = |(way, _): &(Way, Instant)| way.clone();
        (making.ways.values().map(way).collect(), lost.iter().map(way).collect())
    }

    /// Makes those of its rails by `call` that it has not, of the `ways` that they can go, as far as it may have them: those
    /// last that were `lost`. `was_alone` when these ways were looked for: without any rail, whatever leads there is good
    /// enough.
    pub fn make_missing(
        &self,
        ways: Vec<Way>,
        lost: &[Way],
        was_alone: bool,
        now: impl Fn() -> Instant,
        mut call: impl FnMut(&Way) -> Option<Ends>,
    ) {
        let mut missing = self.missing(ways);
        // One that answers calls may be of no use otherwise.
        missing.sort_by_key(|way| lost.contains(way));
        // One that was alone has a way then, and is not held up by others that do not answer. Where the last rail is lost
        // meanwhile, what is beside no others any more is looked for anew.
        let goes_on = |way: &Way| {
            let is_alone = self.rails.all().is_empty();
            let is_of_use = if was_alone { way.is_straight() || is_alone } else { !is_alone };
            self.has_room() && is_of_use
        };
        for way in missing.into_iter().take(RAILS_MOST).take_while(goes_on) {
            // Otherwise it is tried again later.
            if let Some(ends) = call(&way)
                && let Ok(Some(rail)) = self.join(ends)
            {
                self.joined(rail, way, now());
            }
        }
    }

    fn missing(&self, ways: Vec<Way>) -> Vec<Way> {
        let making = lock(&self.making);
        // One that is lost since they were looked at is missing at the next look, which hears that it is lost.
        let is_taken = |way: &Way| making.ways.values().any(|(other, _)| other == way);
        ways.into_iter().filter(|way| !is_taken(way)).collect()
    }

    /// A rail goes this way.
    fn joined(&self, rail: RailId, way: Way, now: Instant) {
        lock(&self.making).ways.insert(rail, (way, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Head, Malformed, Refusal};
    use crate::id::Place;
    use crate::inbox::{Arrived, Undelivered};
    use crate::link::Home;
    use crate::progress::{Progress, Wait};
    use crate::transport::testing::{Collected, message, streams};
    use crate::transport::{rails, tcp};

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

    /// A context in which nothing happens.
    struct Quiet(Progress);

    impl Home for Quiet {
        fn message_most(&self) -> u64 {
            0
        }

        fn deliver(&self, _: Place, _: Arrived) -> Result<Option<Refusal>, Malformed> {
            Ok(None)
        }

        fn begun(&self, _: &Arc<Link>, _: u32) -> Result<(), Malformed> {
            Ok(())
        }

        fn fetched(&self, _: Place) {}

        fn notify(&self, _: Place, _: Undelivered) {}

        fn progress(&self) -> &Progress {
            &self.0
        }
    }

    /// Another thread has read its link, and ended it, before there was a stream; nobody does so again.
    #[test]
    fn a_stream_whose_link_has_broken_is_not_kept() {
        let home = Quiet(Progress::new(Wait::Block).unwrap());
        for breaks in [false, true] {
            let all = Streams::default();
            let ((_ends, rails), (idle, _)) = (rails::ends().unwrap(), rails::ends().unwrap());
            let link = Arc::new(Link::new(1, ContextId::new(2), idle));
            assert!(!breaks || link.end(Broken::Closed, &home));
            all.insert(link, rails, 1, None);
            assert_eq!(all.all().len(), usize::from(!breaks));
        }
    }

    /// How long it is alone when it is looked at so many seconds after it began.
    fn alone_after(stream: &Stream, begun: Instant, seconds: u64) -> u64 {
        let now = begun + Duration::from_secs(seconds);
        stream.is_due(now);
        stream.alone_for(now).as_secs()
    }

    fn lose_rails(stream: &Stream, ends: &mut Ends) {
        lose_all_but(0, stream, ends);
    }

    fn lose_all_but(left: usize, stream: &Stream, ends: &mut Ends) {
        while stream.rails.all().len() > left {
            ends.receiver.poll(&mut Collected::default()).unwrap();
        }
    }

    /// One end who closes every rail but the first is not asked all the while; when one stands it is as before.
    #[test]
    fn rails_that_do_not_last_are_made_less_and_less_often() {
        let (stream, mut ends, mut now) = stream();
        let _stays = join(&stream);
        let seconds = |seconds| Duration::from_secs(seconds);
        let is_due = |now| {
            let is_due = stream.is_due(now);
            stream.looked();
            is_due
        };
        assert!(is_due(now));
        let mut rests = Vec::new();
        for _ in 0..7 {
            let far = join(&stream);
            let rail = stream.rails.all().pop().unwrap();
            stream.joined(rail, Way::straight(([10, 1, 0, 2], 1).into()), now);
            drop(far);
            lose_all_but(1, &stream, &mut ends);
            assert_eq!(stream.ways(now).1.len(), 1);
            let rest = (1..100).find(|rest| is_due(now + seconds(*rest))).unwrap();
            now += seconds(rest);
            rests.push(rest);
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 32, 32]);
        // As before only when none has been lost for long: some carry a little before they are lost.
        assert_eq!(stream.ways(now), (Vec::new(), Vec::new()));
        assert!(!is_due(now + AGAIN_EVERY));
        assert_eq!(stream.ways(now + LASTING), (Vec::new(), Vec::new()));
        assert!(is_due(now + AGAIN_EVERY));
        // The end of one that has lasted is nothing that is to be expected again.
        let far = join(&stream);
        let rail = stream.rails.all().pop().unwrap();
        now += LASTING;
        stream.joined(rail, Way::straight(([10, 1, 0, 2], 1).into()), now);
        drop(far);
        lose_all_but(1, &stream, &mut ends);
        now += LASTING;
        assert_eq!(stream.ways(now).1.len(), 1);
        assert!(is_due(now) && is_due(now + AGAIN_EVERY));
    }

    /// Half of it sent here and half by the other end is much in a second, and not in two; what was asked about before is not
    /// counted again.
    #[test]
    fn what_goes_either_way_counts_as_carried() {
        let (stream, mut ends, mut now) = stream();
        let (mut far, far_rails) = rails::ends().unwrap();
        let (one, other) = streams();
        stream.rails.join(tcp::ends(one).unwrap()).unwrap();
        far_rails.join(tcp::ends(other).unwrap()).unwrap();
        let most = MUCH as usize / 2 / (32 << 10);
        let carry = |from: &mut Ends, to: &mut Ends| {
            let mut came = Collected::default();
            for number in 0..most {
                let (head, data) = message(number as u32, 32 << 10);
                from.sender.send(&head.encode(), &data).unwrap();
                while came.0.len() <= number {
                    to.receiver.poll(&mut came).unwrap();
                    // What has arrived is said, and heard.
                    to.sender.flush().unwrap();
                    from.receiver.poll(&mut Collected::default()).unwrap();
                    from.sender.flush().unwrap();
                }
            }
        };
        let mut is_much = |seconds| {
            now += Duration::from_secs(seconds);
            stream.carries_much(now)
        };
        carry(&mut ends, &mut far);
        assert!(!is_much(0));
        for seconds in [0, 1, 2] {
            carry(&mut ends, &mut far);
            carry(&mut far, &mut ends);
            assert_eq!(is_much(seconds), seconds < 2, "in {seconds} s");
            assert!(!is_much(0));
        }
    }

    /// Beyond what all streams may have beside the first rail of each none is taken, and each has its first.
    #[test]
    fn where_streams_are_many_they_have_fewer_rails() {
        let all = Streams { allowance: Allowance::of(3), ..Streams::default() };
        let begin = |number: u32| {
            let ((ends, rails), (idle, _)) = (rails::ends().unwrap(), rails::ends().unwrap());
            let link = Arc::new(Link::new(number, ContextId::new(2), idle));
            (all.insert(link, rails, u64::from(number), None), ends)
        };
        let add = |stream: &Stream| {
            let (one, other) = streams();
            let is_taken = stream.join(tcp::ends(one).unwrap()).unwrap().is_some();
            (is_taken, tcp::ends(other).unwrap())
        };
        let ((first, mut ends), (second, _), (third, _)) = (begin(1), begin(2), begin(3));
        let mut others: Vec<_> = (0..3).map(|_| add(&first)).collect();
        others.extend((0..3).map(|_| add(&second)));
        let is_taken: Vec<_> = others.iter().map(|(is_taken, _)| *is_taken).collect();
        assert_eq!(is_taken, [true, true, true, true, true, false]);
        assert!(!first.has_room() && !second.has_room());
        // Whoever has called finds it closed.
        let (_, mut refused) = others.pop().unwrap();
        let start = Instant::now();
        while refused.receiver.poll(&mut Collected::default()) != Err(Broken::Closed) {
            assert!(start.elapsed() < Duration::from_secs(60), "it is kept");
        }
        assert!(third.has_room());
        others.push(add(&third));
        assert!(others[5].0 && !third.has_room(), "the first of each is none of those");
        // What one loses another may have.
        drop(others.remove(1));
        lose_all_but(2, &first, &mut ends);
        others.push(add(&second));
        assert_eq!((first.rails.all().len(), second.rails.all().len()), (2, 3));
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
