//! All links of a context.

use crate::flow::PlaceHasher;
use crate::frame::Malformed;
use crate::id::ContextId;
use crate::link::{Home, Link};
use crate::streams::REMEMBERED_MOST;
use crate::transport::Broken;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError, RwLock};

/// Looked up by the context at the other end, by number, or all at once.
#[derive(Debug)]
pub struct Links {
    /// Its number in this process.
    number: usize,
    table: RwLock<Table>,
    /// That of the table's view.
    version: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    /// The number of the last link.
    last: u32,
    /// On which to send to each other context.
    by_peer: BTreeMap<ContextId, Arc<Link>>,
    by_number: ByNumber,
    view: Arc<View>,
    /// The link that each other context has made last, if it is there.
    made_by: HashMap<ContextId, Made>,
    /// With which of its attempts each other context has called last.
    called_by: Latest<u64>,
    /// The number, among its own links, of that by which each other context has begun to send last.
    begun_by: Latest<u32>,
}

type ByNumber = HashMap<u32, Arc<Link>, BuildHasherDefault<PlaceHasher>>;

/// A link that another context has made.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// With which of its attempts.
    attempt: u64,
    /// Its number here.
    link: u32,
}

/// The greatest of what each other context has numbered. It outlives links: a lower one can still come.
#[derive(Debug, Default)]
struct Latest<N>(HashMap<ContextId, N>);

/// A [`View`] that was right when it was looked up. As long as it is, the thread looks it up again without a word that
/// other threads write to: each has its own count of who uses it.
pub type Current = Rc<Arc<View>>;

/// All links at some moment. Looking whether it is still right is one read of one word.
#[derive(Debug, Default)]
pub struct View {
    /// The number of whose it is.
    of: usize,
    /// No other view of this process has it.
    version: usize,
    /// On which to send to each other context, in the order of these.
    by_peer: Vec<(ContextId, Arc<Link>)>,
    /// Those that are looked at without a system call.
    pub in_memory: Vec<Arc<Link>>,
    /// Those that are not.
    pub others: Vec<Arc<Link>>,
}

/// How many contexts a thread can look up views of in turns, without a look at any table.
const SEEN_MOST: usize = 4;

thread_local! {
    /// What this thread has looked up last, the newest last: of each context one. They outlive contexts, and then keep links
    /// that are over.
    static SEEN: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

/// A number that nothing in this process had before.
fn unused() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Relaxed) + 1
}

impl Default for Links {
    fn default() -> Self {
        let number = unused();
        let view = Arc::new(View { of: number, version: number, ..View::default() });
        let table = RwLock::new(Table { view, ..Table::default() });
        Self { number, table, version: AtomicUsize::new(number) }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // Threads may keep them for long.
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        for link in table.by_number.values() {
            link.close(Broken::Closed);
        }
    }
}

impl Links {
    /// The link on which to send to `peer`.
    pub fn to(&self, peer: ContextId) -> Option<Arc<Link>> {
        self.view().to(peer).cloned()
    }

    /// The link of this number.
    pub fn numbered(&self, number: u32) -> Option<Arc<Link>> {
        self.read().by_number.get(&number).cloned()
    }

    /// Whether there is any link to `peer`.
    pub fn has(&self, peer: ContextId) -> bool {
        let view = self.view();
        view.to(peer).is_some() || view.all().any(|link| link.peer == peer)
    }

    /// All links to `peer`, those among them that are only read.
    pub fn of(&self, peer: ContextId) -> Vec<Arc<Link>> {
        self.read().by_number.values().filter(|link| link.peer == peer).cloned().collect()
    }

    /// All of them, those among them that were made a moment ago, which a [`View`] may not have.
    pub fn all(&self) -> Vec<Arc<Link>> {
        self.read().by_number.values().cloned().collect()
    }

    /// One more, which `make` makes with its number. If both ends called each other at once, each goes on sending on
    /// the link that it has first, so that its messages stay in order; both are read.
    pub fn insert(&self, make: impl FnOnce(u32) -> Link) -> Arc<Link> {
        let mut table = self.write();
        // Numbers go up in the order in which links are there to send on.
        table.last += 1;
        let link = Arc::new(make(table.last));
        table.by_number.insert(link.id, link.clone());
        table.by_peer.entry(link.peer).or_insert_with(|| link.clone());
        self.renew(&mut table);
        link
    }

    /// `peer` calls, with this one of its attempts to make a link. Returns whether the call is taken: not if it was late,
    /// and `peer` has called with a later attempt already, for which it has given up this one. Several calls of one attempt
    /// are rails.
    pub fn calls(&self, peer: ContextId, attempt: u64, is_rail: bool) -> bool {
        self.write().calls(peer, attempt, is_rail)
    }

    /// Takes what has arrived by every link of `peer`, which makes another with this `attempt`: `peer` may have lost that of
    /// this context's making by which it sent, and what it sends on the new one comes after that. Tells which of them are
    /// over, and why: those that broke, and the one that `peer` made by an earlier attempt, which it has given up.
    pub fn given_up_by(
        &self,
        peer: ContextId,
        attempt: u64,
        home: &impl Home,
    ) -> impl Iterator<Item = (Arc<Link>, Broken)> {
        let before = self.read().made_before(peer, attempt);
        self.of(peer).into_iter().filter_map(move |link| {
            let broken = link.receive_all(home).err();
            let given_up = (before == Some(link.id)).then_some(Broken::Closed);
            broken.or(given_up).map(|why| (link, why))
        })
    }

    /// The peer of `link` begins to send by it, as by its own link of this number. Takes what has arrived by those by
    /// which it has sent before, and tells which they are and why they are over: it has given them up, and senders
    /// there know what may not have arrived.
    ///
    /// # Errors
    /// If it has given up this one for a later one, or has begun already.
    pub fn begun(
        &self,
        link: &Link,
        number: u32,
        home: &impl Home,
    ) -> Result<impl Iterator<Item = (Arc<Link>, Broken)>, Malformed> {
        let before = self.write().begun(link, number)?;
        Ok(before.into_iter().map(move |link| {
            // Only ever for links with lower numbers: no two threads that read one wait for each other's.
            let broken = link.receive_all(home).err();
            (link, broken.unwrap_or(Broken::Closed))
        }))
    }

    /// Its peer has made `link` with this `attempt`. Returns whether it has made none with a later one, which another
    /// thread has taken meanwhile: then this one is over.
    pub fn made_by_peer(&self, link: &Link, attempt: u64) -> bool {
        let mut table = self.write();
        let is_last = table.made_by.get(&link.peer).is_none_or(|made| made.attempt <= attempt);
        // It may be over already.
        if is_last && table.by_number.contains_key(&link.id) {
            table.made_by.insert(link.peer, Made { attempt, link: link.id });
        }
        is_last
    }

    /// One less. If it was that on which to send to its peer, there is none until one more comes, though another may
    /// still be read: what was sent on this and is not read yet would be overtaken there. Who is called anew takes that
    /// first.
    pub fn remove(&self, link: &Arc<Link>) {
        let mut table = self.write();
        table.by_number.remove(&link.id);
        let sends = table.by_peer.get(&link.peer).is_some_and(|other| Arc::ptr_eq(other, link));
        if sends {
            table.by_peer.remove(&link.peer);
        }
        if table.made_by.get(&link.peer).is_some_and(|made| made.link == link.id) {
            table.made_by.remove(&link.peer);
        }
        self.renew(&mut table);
    }

    /// All of them.
    pub fn view(&self) -> Current {
        let version = self.version.load(Acquire);
        let seen = |all: &RefCell<Vec<Current>>| {
            all.borrow().iter().find(|view| view.version == version).cloned()
        };
        // A thread that ends may have none any more.
        SEEN.try_with(seen).ok().flatten().unwrap_or_else(|| self.look_up())
    }

    #[cold]
    fn look_up(&self) -> Current {
        let view = Rc::new(self.read().view.clone());
        let former = SEEN.try_with(|all| {
            let mut all = all.borrow_mut();
            let own = all.iter().position(|other| other.of == view.of);
            let leaves = own.or((all.len() == SEEN_MOST).then_some(0));
            let former = leaves.map(|at| all.remove(at));
            all.push(view.clone());
            former
        });
        // With it the last of a link may go.
        drop(former);
        view
    }

    /// Makes `view` right again if it is not.
    pub fn refresh(&self, view: &mut Current) {
        if self.version.load(Acquire) != view.version {
            *view = self.view();
        }
    }

    fn renew(&self, table: &mut Table) {
        let (in_memory, others) = table.by_number.values().cloned().partition(|l| l.in_memory);
        let by_peer = table.by_peer.iter().map(|(peer, link)| (*peer, link.clone())).collect();
        let version = unused();
        table.view = Arc::new(View { of: self.number, version, by_peer, in_memory, others });
        self.version.store(version, Release);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// The link on which to send to `peer`.
    pub fn to(&self, peer: ContextId) -> Option<&Arc<Link>> {
        let at = self.by_peer.binary_search_by_key(&peer, |(peer, _)| *peer).ok()?;
        Some(&self.by_peer[at].1)
    }

    /// All of them: those in memory first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.in_memory.iter().chain(&self.others)
    }
}

impl Table {
    /// Those that go before `link`, by which its peer begins to send.
    fn begun(&mut self, link: &Link, number: u32) -> Result<Vec<Arc<Link>>, Malformed> {
        link.begins(number)?;
        if self.begun_by.of(link.peer).is_some_and(|last| number <= last) {
            return Err(Malformed::GivenUp);
        }
        let Self { begun_by, by_number, .. } = self;
        begun_by.remember(link.peer, number, by_number);
        let of_peer = self.by_number.values().filter(|other| other.peer == link.peer);
        Ok(of_peer.filter(|other| other.has_begun_before(number)).cloned().collect())
    }

    fn calls(&mut self, peer: ContextId, attempt: u64, is_rail: bool) -> bool {
        let last = self.called_by.of(peer);
        if last.is_some_and(|last| attempt < last || attempt == last && !is_rail) {
            return false;
        }
        let Self { called_by, by_number, .. } = self;
        called_by.remember(peer, attempt, by_number);
        true
    }

    /// The link that `peer` has made last, if that was by an earlier attempt than this.
    fn made_before(&self, peer: ContextId, attempt: u64) -> Option<u32> {
        let made = self.made_by.get(&peer)?;
        (made.attempt < attempt).then_some(made.link)
    }
}

impl<N: Copy> Latest<N> {
    fn of(&self, peer: ContextId) -> Option<N> {
        self.0.get(&peer).copied()
    }

    /// Of contexts without `links` one is forgotten when there are too many.
    fn remember(&mut self, peer: ContextId, number: N, links: &ByNumber) {
        if self.0.len() >= REMEMBERED_MOST && !self.0.contains_key(&peer) {
            let live: BTreeSet<_> = links.values().map(|link| link.peer).collect();
            let first = self.0.keys().find(|peer| !live.contains(peer)).copied();
            first.map(|peer| self.0.remove(&peer));
        }
        self.0.insert(peer, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::testing::streams;
    use crate::transport::{rails, tcp};
    use keeptime_random::Random;
    use std::io::Read;
    use std::thread;

    fn link(links: &Links, peer: u64) -> Arc<Link> {
        let (ends, _) = rails::ends().unwrap();
        links.insert(|number| Link::new(number, ContextId::new(peer), ends))
    }

    /// Goal: what a thread looks up is right, whatever it has looked up before. Method: links of more contexts than it
    /// remembers, of which one changes before each look, by this thread or by another.
    #[test]
    fn every_look_finds_what_is_there_then() {
        let all: Vec<_> = (0..=2 * SEEN_MOST).map(|_| Links::default()).collect();
        let mut expected = vec![BTreeMap::new(); all.len()];
        let mut random = Random::new(1);
        for step in 0..400 {
            let at = random.index(all.len());
            let (links, expected) = (&all[at], &mut expected[at]);
            let mut change = || match expected.pop_first() {
                Some((_, former)) if step % 3 == 0 => links.remove(&former),
                former => {
                    let new = link(links, step);
                    expected.extend(former);
                    expected.insert(new.id, new);
                }
            };
            if step % 2 == 0 {
                thread::scope(|scope| scope.spawn(&mut change).join().unwrap());
            } else {
                change();
            }
            let view = links.view();
            let mut numbers: Vec<_> = view.all().map(|link| link.id).collect();
            numbers.sort_unstable();
            assert!(numbers.iter().eq(expected.keys()), "step {step}");
            let is_found = |link: &Arc<Link>| view.to(link.peer).is_some_and(|to| to.id == link.id);
            assert!(expected.values().all(is_found));
        }
    }

    /// As many contexts as a thread remembers are looked up in turns without a look at any table, whatever went before.
    #[test]
    fn what_was_looked_up_is_remembered() {
        let all: Vec<_> = (0..3 * SEEN_MOST).map(|_| Links::default()).collect();
        all.iter().for_each(|links| drop(link(links, 7)));
        all.iter().for_each(|links| drop(links.view()));
        let used: Vec<_> = all.iter().step_by(3).collect();
        let first: Vec<_> = used.iter().map(|links| links.view()).collect();
        let again = used.iter().zip(&first).all(|(links, view)| Rc::ptr_eq(&links.view(), view));
        assert!(again);
    }

    /// Whoever has looked them up does not keep connections.
    #[test]
    fn when_a_context_goes_its_connections_are_closed() {
        let (links, (one, mut other)) = (Links::default(), streams());
        let ends = tcp::ends(one).unwrap();
        let link = links.insert(|number| Link::new(number, ContextId::new(7), ends));
        let view = links.view();
        drop(links);
        assert_eq!((link.broken(), view.all().count()), (Some(&Broken::Closed), 1));
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }

    /// A peer's links are over when it has begun to send by a later one, one that is late at once; those by which it
    /// has not sent, and those of others, are not.
    #[test]
    fn a_peer_sends_by_its_latest_link() {
        let links = Links::default();
        let [first, unsent, late, latest] = [(); 4].map(|()| link(&links, 7));
        let stranger = link(&links, 8);
        let begun = |link: &Link, number| {
            let before = links.write().begun(link, number);
            before.map(|before| before.iter().map(|link| link.id).collect::<Vec<_>>())
        };
        assert_eq!(begun(&stranger, 4), Ok(vec![]));
        assert_eq!(begun(&first, 5), Ok(vec![]));
        assert_eq!(begun(&first, 6), Err(Malformed::Again));
        assert_eq!(begun(&latest, 9), Ok(vec![first.id]));
        assert_eq!(begun(&late, 8), Err(Malformed::GivenUp));
        // Also when there is none any more by which it has sent.
        [&first, &late, &latest].into_iter().for_each(|link| links.remove(link));
        assert_eq!(begun(&unsent, 9), Err(Malformed::GivenUp));
        links.remove(&unsent);
        assert_eq!(begun(&link(&links, 7), 10), Ok(vec![]));
    }

    /// What is remembered of others is bounded, and whoever has a link is not forgotten.
    #[test]
    fn contexts_that_are_gone_are_forgotten() {
        let links = Links::default();
        let live = link(&links, 1);
        let mut table = links.write();
        assert_eq!(table.begun(&live, 3).map(|before| before.len()), Ok(0));
        assert!(table.calls(live.peer, 5, false));
        let Table { begun_by, called_by, by_number, .. } = &mut *table;
        for peer in (2..REMEMBERED_MOST as u64 + 20).map(ContextId::new) {
            begun_by.remember(peer, 1, by_number);
            called_by.remember(peer, 1, by_number);
        }
        assert_eq!((begun_by.0.len(), called_by.0.len()), (REMEMBERED_MOST, REMEMBERED_MOST));
        assert_eq!((begun_by.of(live.peer), called_by.of(live.peer)), (Some(3), Some(5)));
    }

    /// Of one context calls are taken in the order of its attempts, and those of one attempt together, if they are rails.
    #[test]
    fn a_call_that_comes_late_is_not_taken() {
        let links = Links::default();
        let (peer, other) = (ContextId::new(7), ContextId::new(8));
        let takes = |attempt, is_rail| links.calls(peer, attempt, is_rail);
        assert!(takes(3, false));
        assert!(!takes(3, false), "the same once more");
        assert!(!takes(2, false) && !takes(2, true));
        assert!(takes(5, true) && takes(5, true));
        assert!(!takes(3, true) && !takes(4, false));
        assert!(links.calls(other, 1, false), "of another context");
        // Also when there is no link any more.
        links.remove(&link(&links, 7));
        assert!(!takes(4, true) && takes(6, false));
    }

    /// Two threads take two calls at once, and the one with the later attempt is through first.
    #[test]
    fn a_link_of_an_earlier_attempt_takes_no_place() {
        let links = Links::default();
        let peer = ContextId::new(7);
        let (own, newer, older) = (link(&links, 7), link(&links, 7), link(&links, 7));
        let before = |attempt| links.read().made_before(peer, attempt);
        assert_eq!(before(u64::MAX), None);
        assert!(links.made_by_peer(&newer, 2));
        assert!(!links.made_by_peer(&older, 1));
        assert_eq!([before(1), before(2), before(3)], [None, None, Some(newer.id)]);
        // That it goes leaves nothing, whoever goes first.
        links.remove(&older);
        links.remove(&own);
        assert_eq!(before(3), Some(newer.id));
        links.remove(&newer);
        assert_eq!(before(3), None);
        // What is over already is not given up once more.
        assert!(links.made_by_peer(&newer, 3));
        assert_eq!(before(4), None);
    }

    /// Two contexts called each other at once. Whoever sent on one link and loses it does not go on with the other, on
    /// which a later message could be read before an earlier one; it calls again, and sends on what comes of that.
    #[test]
    fn no_link_takes_over_what_another_had_begun_to_send() {
        let links = Links::default();
        let peer = ContextId::new(7);
        let sends_on = || links.to(peer).map(|link| link.id);
        let (own, other) = (link(&links, 7), link(&links, 7));
        let (stranger, mut all) = (link(&links, 8), links.of(peer));
        all.sort_by_key(|link| link.id);
        assert!(Arc::ptr_eq(&all[0], &own) && Arc::ptr_eq(&all[1], &other) && all.len() == 2);
        assert_eq!(sends_on(), Some(own.id));
        links.remove(&own);
        assert_eq!((sends_on(), links.of(peer).len()), (None, 1));
        let again = link(&links, 7);
        assert_eq!(sends_on(), Some(again.id));
        // The one that is only read goes without a trace.
        links.remove(&other);
        assert_eq!((sends_on(), links.of(peer).len()), (Some(again.id), 1));
        assert!(links.to(ContextId::new(8)).is_some_and(|link| link.id == stranger.id));
    }
}
