//! Finds out which ways are quick by calling over them, and chooses.

use super::Known;
use super::call::{Ending, call_until, connect_first};
use super::costs::{Cost, Costs, detour_most};
use super::request::Whom;
use super::routes::{Way, candidates, choose, free, has_room};
use crate::networks::{Network, apart};
use crate::threads;
use keeptime_locks::{lock, unpoisoned};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls over a way whose cost is looked for; the quickest counts, as any may have waited for a busy node.
const CALLS: u32 = 2;
/// How long answers are waited for if there is none: as long as one hop may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// After the first answer, others are waited for as long again, and so long at least: a thread that is not on time is
/// late by a few milliseconds.
const LATER_LEAST: Duration = Duration::from_millis(20);

/// What is known of the costs of ways, for all who use them.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    costs: Arc<Mutex<Costs>>,
    /// What a way costs was noted.
    noted: Arc<Condvar>,
    ending: Ending,
    /// Threads that call to find out, and some that have ended.
    measuring: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// From which networks whom is looked for, over which bridges.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// Those of this node.
    pub own: &'a [Network],
    /// All that are known.
    pub bridges: &'a [Known],
    /// Where the other end is.
    pub peer: &'a [SocketAddr],
    /// Who that is.
    pub whom: Whom,
    /// Whether much is sent there, so that several ways over one bridge are worth it.
    pub much: bool,
}

impl Survey {
    /// A connection over a way. What becomes of it is noted.
    ///
    /// # Errors
    /// If one of its hops does not answer or refuses.
    pub fn call(&self, way: &Way, whom: Whom) -> io::Result<TcpStream> {
        let begun = Instant::now();
        let called = call_until(way, whom, &self.ending);
        self.note_call(way, called.is_ok().then(|| begun.elapsed()));
        called
    }

    /// A connection to the first of `addresses` that answers, straight, and to which. What becomes of each call is noted.
    ///
    /// # Errors
    /// If none of them answers.
    pub fn call_first(&self, addresses: &[SocketAddr]) -> io::Result<(SocketAddr, TcpStream)> {
        let note = |to, took| self.note_call(&Way::straight(to), took);
        connect_first(addresses, &self.ending, note)
    }

    /// What was found out with care is not given up for one call, which may have been late by chance.
    fn note_call(&self, way: &Way, took: Option<Duration>) {
        if took.is_none() || !self.is_measured(way) {
            self.note(way, took);
        }
    }

    /// A connection over a way has ended: nothing is known of it any more.
    pub fn lost(&self, way: &Way) {
        lock(&self.costs).forget(way);
    }

    /// Ends all calls that are being made, and makes none any more: when this returns no thread is left of them but those
    /// of its callers, whose calls fail.
    pub fn end(&self) {
        let measuring = {
            // With the lock, so that none begins after this.
            let mut measuring = lock(&self.measuring);
            self.ending.begin();
            std::mem::take(&mut *measuring)
        };
        for thread in measuring {
            // It has panicked and said so, or it is done.
            let _ = thread.join();
        }
    }

    /// Ways over bridges for one who uses those of `taken`, the quickest first. If there are several from which to
    /// choose, those of which nothing is known are called first.
    pub fn ways(&self, search: &Search<'_>, taken: &[Way]) -> Vec<Way> {
        let free = search.free(taken);
        if free.len() > 1 {
            self.measure(&free, search.whom, PATIENCE);
        }
        self.choose(free, search, taken)
    }

    /// Whether networks that both ends share, over which `straight` leads, are slow enough to look for others.
    pub fn are_slow(&self, straight: &[Way]) -> bool {
        self.detour_most(straight).is_some()
    }

    /// Ways over bridges and over networks that the two ends do not share, if they are so much quicker than `straight`
    /// that they are to be used beside it; for one who uses those of `taken`.
    pub fn detours(&self, search: &Search<'_>, taken: &[Way], straight: &[Way]) -> Vec<Way> {
        let (own, peer) = apart(search.own, search.peer);
        let search = Search { own: &own, peer: &peer, ..*search };
        let quicker = self.quicker(search.free(taken), straight, search.whom);
        self.choose(quicker, &search, taken)
    }

    /// Those of `ways` that are worth a detour from `straight`.
    fn quicker(&self, ways: Vec<Way>, straight: &[Way], whom: Whom) -> Vec<Way> {
        let Some(most) = self.detour_most(straight) else { return Vec::new() };
        self.measure(&ways, whom, most * CALLS);
        let quicker = self.within(ways, most);
        if quicker.is_empty() {
            return quicker;
        }
        // Whoever called first may have waited for a busy node, and not for the network.
        for way in straight {
            if let Some(took) = timed(way, whom, &self.ending) {
                self.note(way, Some(took));
            }
        }
        let most = self.detour_most(straight);
        most.map(|most| self.within(quicker, most)).unwrap_or_default()
    }

    /// Calls over those of `ways` of which nothing is known, all at once, and waits for these and for those over which
    /// others call just now. Who answers later than is worth waiting for, or after `patience`, is noted all the same.
    fn measure(&self, ways: &[Way], whom: Whom, patience: Duration) {
        let begun = Instant::now();
        let (due, open) = {
            let mut costs = lock(&self.costs);
            let is_open = |way: &&Way| !matches!(costs.cost(way, begun), Cost::Measured(_));
            let open: Vec<_> = ways.iter().filter(is_open).cloned().collect();
            (costs.ask(ways, begun), open)
        };
        self.begin(due, whom);
        let mut until = begun + patience;
        let mut costs = lock(&self.costs);
        loop {
            let now = Instant::now();
            let Some(last) = costs.answer_by(&open, now) else { return };
            if open.iter().any(|way| matches!(costs.cost(way, now), Cost::Measured(_))) {
                until = until.min(now + now.saturating_duration_since(begun).max(LATER_LEAST));
            }
            let left = until.min(last).saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            let waited = self.noted.wait_timeout(costs, left);
            costs = unpoisoned(waited).0;
        }
    }

    /// Has each of `ways` called by a thread of its own, which notes what it costs.
    fn begin(&self, ways: Vec<Way>, whom: Whom) {
        let mut measuring = lock(&self.measuring);
        measuring.retain(|thread| !thread.is_finished());
        for way in ways {
            let (survey, asked) = (self.clone(), way.clone());
            let work = move || {
                let took = (0..CALLS).map_while(|_| timed(&asked, whom, &survey.ending)).min();
                survey.note(&asked, took);
            };
            let start = || threads::spawn("measure", work).ok();
            match (!self.ending.has_begun()).then(start).flatten() {
                Some(thread) => measuring.push(thread),
                // There is no thread for it: nobody waits.
                None => self.note(&way, None),
            }
        }
    }

    fn note(&self, way: &Way, took: Option<Duration>) {
        lock(&self.costs).note(way, took, Instant::now());
        self.noted.notify_all();
    }

    fn is_measured(&self, way: &Way) -> bool {
        matches!(lock(&self.costs).cost(way, Instant::now()), Cost::Measured(_))
    }

    fn choose(&self, free: Vec<Way>, search: &Search<'_>, taken: &[Way]) -> Vec<Way> {
        let (costs, now) = (lock(&self.costs), Instant::now());
        // Whoever has no other way tries the silent ones, last: they may just be slow, or there again.
        let free = if taken.is_empty() { free } else { costs.audible(free, now) };
        choose(free, taken, search.bridges, search.much, |way| costs.cost(way, now))
    }

    /// Those of `ways` that are known to take no longer.
    fn within(&self, mut ways: Vec<Way>, most: Duration) -> Vec<Way> {
        let (costs, now) = (lock(&self.costs), Instant::now());
        ways.retain(|way| costs.cost(way, now) <= Cost::Measured(most));
        ways
    }

    fn detour_most(&self, straight: &[Way]) -> Option<Duration> {
        lock(&self.costs).quickest(straight).and_then(detour_most)
    }
}

impl Search<'_> {
    /// Ways over bridges from which to choose, for one who uses those of `taken`.
    fn free(&self, taken: &[Way]) -> Vec<Way> {
        if !has_room(taken, self.bridges) {
            return Vec::new();
        }
        free(candidates(self.own, self.bridges, self.peer), taken, self.bridges, self.much)
    }
}

/// How long a call takes that is answered.
fn timed(way: &Way, whom: Whom, ending: &Ending) -> Option<Duration> {
    let begun = Instant::now();
    let called = call_until(way, whom, ending).ok()?;
    let took = begun.elapsed();
    drop(called);
    Some(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::relay::Relay;
    use crate::bridge::request::Request;
    use std::io::Read;
    use std::net::TcpListener;
    use std::slice;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    const WHOM: Whom = Whom::Directory;
    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// One that is there, and whoever is called at the end of a way: the kernel accepts for it.
    fn listen() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    fn relay(permitted: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Relay {
        Relay::start(listen(), permitted).unwrap()
    }

    /// One that does not answer as long as the channel is there.
    fn held() -> (Relay, Sender<()>) {
        let (hold, held): (Sender<()>, Receiver<()>) = channel();
        let held = Mutex::new(held);
        (relay(move |_| lock(&held).recv().is_err()), hold)
    }

    fn over(port: u16, end: &TcpListener) -> Way {
        Way { hops: vec![([127, 0, 0, 1], port).into(), end.local_addr().unwrap()] }
    }

    /// Whether it holds at last: what answers too late, as anything may on a busy machine, is asked again.
    fn at_last(holds: impl Fn() -> bool) -> bool {
        (0..6_000).any(|_| {
            let does = holds();
            if !does {
                thread::park_timeout(Duration::from_millis(10));
            }
            does
        })
    }

    /// Over bridges of which one is held up, one refuses, and one is not there: nobody waits for these, and the one that
    /// answers is known. What answers late is noted all the same.
    #[test]
    fn the_ways_that_answer_are_known_and_nobody_waits_for_the_others() {
        let (end, survey) = (listen(), Survey::default());
        let (quick, (slow, hold), closed) = (relay(|_| true), held(), relay(|_| false));
        let gone = listen().local_addr().unwrap().port();
        let ports = [slow.port(), closed.port(), gone, quick.port()];
        let ways = ports.map(|port| over(port, &end)).to_vec();
        let is_noted = |ways: &[Way], at: usize| {
            survey.measure(ways, WHOM, LONG);
            survey.is_measured(&ways[at])
        };
        assert!(at_last(|| is_noted(&ways, 3)));
        let others: Vec<_> = ways[..3].iter().map(|way| survey.is_measured(way)).collect();
        assert_eq!(others, [false; 3]);
        drop(hold);
        assert!(at_last(|| is_noted(&ways[..1], 0)));
    }

    #[test]
    fn what_becomes_of_calls_is_noted() {
        let (end, survey) = (listen(), Survey::default());
        let (open, closed) = (relay(|_| true), relay(|_| false));
        let [leads, refuses] = [open.port(), closed.port()].map(|port| over(port, &end));
        let call = |way| survey.call(way, WHOM);
        assert!(call(&leads).is_ok() && call(&refuses).is_err());
        assert!(survey.is_measured(&leads) && !survey.is_measured(&refuses));
        survey.lost(&leads);
        assert!(!survey.is_measured(&leads));
    }

    /// Whoever has a way is not held up by one that does not answer; whoever has none tries it when all others have failed.
    #[test]
    fn silent_ways_are_tried_last_and_only_by_who_has_no_other() {
        let survey = Survey::default();
        let network =
            |number: u8, host: u8| Network { address: [10, number, 0, host].into(), prefix: 24 };
        let own = [network(1, 1)];
        let peer = [SocketAddr::from(([10, 2, 0, 9], 5))];
        let bridges = [11, 12, 13]
            .map(|host| Known { networks: vec![network(1, host), network(2, host)], port: 7401 });
        let search = Search { own: &own, bridges: &bridges, peer: &peer, whom: WHOM, much: false };
        let ways = search.free(&[]);
        let [used, silent, quick] = &ways[..] else { panic!("{ways:?}") };
        survey.note(used, Some(Duration::from_micros(9)));
        survey.note(silent, None);
        survey.note(quick, Some(Duration::from_micros(1)));
        assert_eq!(survey.ways(&search, &[]), [quick, used, silent].map(Clone::clone));
        assert_eq!(survey.ways(&search, slice::from_ref(used)), slice::from_ref(quick));
    }

    /// Whoever calls another program of the same node at the same time would take nothing for quick.
    #[test]
    fn ways_over_which_another_thread_calls_are_waited_for() {
        let (end, survey, (bridge, hold)) = (listen(), Survey::default(), held());
        let ways = vec![over(bridge.port(), &end)];
        // Called, and not waited for.
        let called = Instant::now();
        survey.measure(&ways, WHOM, Duration::ZERO);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                survey.measure(&ways, WHOM, LONG);
                survey.is_measured(&ways[0])
            });
            // Until it waits, most likely.
            thread::park_timeout(Duration::from_millis(20));
            drop(hold);
            assert!(waits.join().unwrap() || called.elapsed() >= PATIENCE);
        });
    }

    /// Beside a network on which a call has taken a minute, and one which that was by chance: it is asked again.
    #[test]
    fn a_detour_is_taken_from_slow_networks_alone() {
        let (end, survey) = (listen(), Survey::default());
        let (bridge, closed) = (relay(|_| true), relay(|_| false));
        let ways = vec![over(bridge.port(), &end)];
        let note = |way: &Way, took| lock(&survey.costs).note(way, Some(took), Instant::now());
        let quicker =
            |straight: &Way| survey.quicker(ways.clone(), std::slice::from_ref(straight), WHOM);
        let direct = Way::straight(end.local_addr().unwrap());
        assert!(quicker(&direct).is_empty() && !survey.is_measured(&ways[0]), "not known");
        note(&direct, Duration::from_micros(100));
        assert!(quicker(&direct).is_empty() && !survey.is_measured(&ways[0]), "quick");
        // What does not answer when it is asked again is as slow as it was.
        let slow = over(closed.port(), &end);
        note(&slow, LONG);
        assert!(at_last(|| quicker(&slow) == ways));
        // One that answers is as quick as it has become: so is a minute not believed.
        note(&direct, LONG);
        quicker(&direct);
        assert!(lock(&survey.costs).quickest(&[direct]).unwrap() < LONG);
    }

    /// While a bridge does not answer: neither a thread is left, nor a connection, and nobody waits for it.
    #[test]
    fn nothing_is_left_of_calls_that_are_ended() {
        let (end, bridge, survey) = (listen(), listen(), Survey::default());
        let ways = vec![over(bridge.local_addr().unwrap().port(), &end)];
        survey.measure(&ways, WHOM, Duration::ZERO);
        let (mut asked, _) = bridge.accept().unwrap();
        let begun = Instant::now();
        survey.end();
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(Arc::strong_count(&survey.costs), 1, "a thread goes on");
        asked.set_read_timeout(Some(LONG)).unwrap();
        asked.read_to_end(&mut Vec::new()).unwrap();
        // Nor does another begin.
        survey.lost(&ways[0]);
        survey.measure(&ways, WHOM, Duration::ZERO);
        assert!(lock(&survey.measuring).is_empty());
        assert!(survey.call(&ways[0], WHOM).is_err());
    }
}
