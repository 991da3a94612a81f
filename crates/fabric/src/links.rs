//! All links of a context.

use crate::flow::PlaceHasher;
use crate::frame::Malformed;
use crate::id::ContextId;
use crate::link::{Home, Link};
use crate::streams::REMEMBERED_MOST;
use crate::transport::Broken;
use arc_swap::{ArcSwap, Guard};
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError, RwLock};

/// Looked up by the context at the other end, by number, or all at once.
#[derive(Debug, Default)]
pub struct Links {
    table: RwLock<Table>,
    view: ArcSwap<View>,
    version: AtomicU32,
}

#[derive(Debug, Default)]
struct Table {
    /// The number of the last link.
    last: u32,
    by_peer: HashMap<ContextId, Arc<Link>>,
    by_number: HashMap<u32, Arc<Link>, BuildHasherDefault<PlaceHasher>>,
    /// The number of the link that each other context has made last.
    made_by: HashMap<ContextId, u32>,
    /// The greatest number, among its own links, of those by which each other context has begun to send. It outlives
    /// them: one with a lower number can still come.
    begun_by: HashMap<ContextId, u32>,
}

/// A [`View`] that was right when it was looked up: that touches no memory which other threads look up theirs by.
pub type Current = Guard<Arc<View>>;

/// All links at some moment. Looking whether it is still right is one read of one word.
#[derive(Debug, Default)]
pub struct View {
    version: u32,
    /// Those that are looked at without a system call.
    pub in_memory: Vec<Arc<Link>>,
    /// Those that are not.
    pub others: Vec<Arc<Link>>,
}

impl Links {
    /// The link on which to send to `peer`.
    pub fn to(&self, peer: ContextId) -> Option<Arc<Link>> {
        self.read().by_peer.get(&peer).cloned()
    }

    /// The link of this number.
    pub fn numbered(&self, number: u32) -> Option<Arc<Link>> {
        self.read().by_number.get(&number).cloned()
    }

    /// All links to `peer`, those among them that are only read.
    pub fn of(&self, peer: ContextId) -> Vec<Arc<Link>> {
        self.read().by_number.values().filter(|link| link.peer == peer).cloned().collect()
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
        self.renew(&table);
        link
    }

    /// Takes what has arrived by every link of `peer`, which has made another: `peer` may have lost that of this context's
    /// making by which it sent, and what it sends on the new one comes after that. Tells which of them are over, and why:
    /// those that broke, and the one that `peer` made before, which it has given up.
    pub fn given_up_by(
        &self,
        peer: ContextId,
        home: &impl Home,
    ) -> impl Iterator<Item = (Arc<Link>, Broken)> {
        let before = self.read().made_by.get(&peer).copied();
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

    /// Its peer has made `link`, after all that it made before.
    pub fn made_by_peer(&self, link: &Link) {
        let mut table = self.write();
        // It may be over already.
        if table.by_number.contains_key(&link.id) {
            table.made_by.insert(link.peer, link.id);
        }
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
        if table.made_by.get(&link.peer) == Some(&link.id) {
            table.made_by.remove(&link.peer);
        }
        self.renew(&table);
    }

    /// All of them.
    pub fn view(&self) -> Current {
        self.view.load()
    }

    /// Makes `view` right again if it is not.
    pub fn refresh(&self, view: &mut Current) {
        if self.version.load(Acquire) != view.version {
            *view = self.view();
        }
    }

    fn renew(&self, table: &Table) {
        let (in_memory, others) = table.by_number.values().cloned().partition(|l| l.in_memory);
        let version = self.view.load().version.wrapping_add(1);
        self.view.store(Arc::new(View { version, in_memory, others }));
        self.version.store(version, Release);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Those that go before `link`, by which its peer begins to send.
    fn begun(&mut self, link: &Link, number: u32) -> Result<Vec<Arc<Link>>, Malformed> {
        link.begins(number)?;
        if self.begun_by.get(&link.peer).is_some_and(|last| number <= *last) {
            return Err(Malformed::GivenUp);
        }
        self.remember(link.peer, number);
        let of_peer = self.by_number.values().filter(|other| other.peer == link.peer);
        Ok(of_peer.filter(|other| other.has_begun_before(number)).cloned().collect())
    }

    /// Of contexts without links one is forgotten when there are too many.
    fn remember(&mut self, peer: ContextId, number: u32) {
        if self.begun_by.len() >= REMEMBERED_MOST && !self.begun_by.contains_key(&peer) {
            let live: BTreeSet<_> = self.by_number.values().map(|link| link.peer).collect();
            let first = self.begun_by.keys().find(|peer| !live.contains(peer)).copied();
            first.map(|peer| self.begun_by.remove(&peer));
        }
        self.begun_by.insert(peer, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::rails;

    fn link(links: &Links, peer: u64) -> Arc<Link> {
        let (ends, _) = rails::ends().unwrap();
        links.insert(|number| Link::new(number, ContextId::new(peer), ends))
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
        (2..REMEMBERED_MOST as u64 + 20).for_each(|peer| table.remember(ContextId::new(peer), 1));
        assert_eq!(table.begun_by.len(), REMEMBERED_MOST);
        assert_eq!(table.begun_by.get(&live.peer), Some(&3));
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
