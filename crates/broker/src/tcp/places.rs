//! Places that whoever comes takes from those who have had theirs for longest: from their own, if they have too many,
//! or else from whoever has most. So who opens connections as fast as they can keeps out nobody but themselves.

use keeptime_locks::lock;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Places for connections, of which a newcomer always has one. Clones are the same places.
#[derive(Debug, Clone)]
pub(super) struct Places<K>(Arc<Mutex<Taken<K, oneshot::Sender<()>>>>);

/// The place of one connection: given back when dropped.
#[derive(Debug)]
pub(super) struct Place<K: Ord + Clone> {
    places: Places<K>,
    who: K,
    number: u64,
}

/// Who has which place. Pure: `T` is what tells somebody that theirs is lost.
#[derive(Debug)]
struct Taken<K, T> {
    of_one_max: usize,
    all_max: usize,
    last: u64,
    /// Those of each, by their numbers: the oldest first.
    by_who: BTreeMap<K, BTreeMap<u64, T>>,
}

impl<K: Ord + Clone> Places<K> {
    /// Everybody has so many at most, and all together have.
    pub fn new(of_one_max: usize, all_max: usize) -> Self {
        let taken = Taken { of_one_max, all_max, last: 0, by_who: BTreeMap::new() };
        Self(Arc::new(Mutex::new(taken)))
    }

    /// A place for one more connection of `who`, and what receives something when somebody else takes it. It never
    /// does once the place was given back.
    pub fn enter(&self, who: K) -> (Place<K>, oneshot::Receiver<()>) {
        let (lost, is_lost) = oneshot::channel();
        let (number, loser) = self.lock().enter(who.clone(), lost);
        if let Some(loser) = loser {
            // Whose connection has just ended does not listen.
            let _ = loser.send(());
        }
        (Place { places: self.clone(), who, number }, is_lost)
    }

    fn lock(&self) -> MutexGuard<'_, Taken<K, oneshot::Sender<()>>> {
        lock(&self.0)
    }
}

impl<K: Ord + Clone> Place<K> {
    /// Gives it back: whether it was not lost before. Then nobody is told that it is.
    pub fn leave(self) -> bool {
        self.places.lock().leave(&self.who, self.number).is_some()
    }
}

impl<K: Ord + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        self.places.lock().leave(&self.who, self.number);
    }
}

impl<K: Ord + Clone, T> Taken<K, T> {
    /// One more of `who`: its number, and who loses theirs for it.
    fn enter(&mut self, who: K, lost: T) -> (u64, Option<T>) {
        self.last += 1;
        let number = self.last;
        let own = self.by_who.entry(who.clone()).or_default();
        own.insert(number, lost);
        let loser = if own.len() > self.of_one_max {
            Some(who)
        } else if self.count() > self.all_max {
            self.greediest()
        } else {
            None
        };
        (number, loser.and_then(|loser| self.lose_oldest(&loser)))
    }

    fn leave(&mut self, who: &K, number: u64) -> Option<T> {
        let own = self.by_who.get_mut(who)?;
        let left = own.remove(&number);
        if own.is_empty() {
            self.by_who.remove(who);
        }
        left
    }

    fn lose_oldest(&mut self, who: &K) -> Option<T> {
        let oldest = *self.by_who.get(who)?.keys().next()?;
        self.leave(who, oldest)
    }

    fn count(&self) -> usize {
        self.by_who.values().map(BTreeMap::len).sum()
    }

    /// Who has most; of several, who has had one for longest.
    fn greediest(&self) -> Option<K> {
        let all = self.by_who.iter();
        let most = all.max_by_key(|(_, own)| (own.len(), Reverse(own.keys().next().copied())));
        most.map(|(who, _)| who.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(of_one_max: usize, all_max: usize) -> Taken<char, u64> {
        Taken { of_one_max, all_max, last: 0, by_who: BTreeMap::new() }
    }

    impl Taken<char, u64> {
        /// Whose number is told when it is lost.
        fn come(&mut self, who: char) -> Option<u64> {
            let next = self.last + 1;
            self.enter(who, next).1
        }

        fn count_of(&self, who: char) -> usize {
            self.by_who.get(&who).map_or(0, BTreeMap::len)
        }
    }

    #[test]
    fn a_flood_takes_what_is_free_and_makes_way_for_everybody_else() {
        let mut taken = taken(usize::MAX, 4);
        let lost: Vec<_> = "fffff".chars().map(|who| taken.come(who)).collect();
        assert_eq!(lost, [None, None, None, None, Some(1)], "its own oldest");
        assert_eq!(['a', 'b'].map(|who| taken.come(who)), [Some(2), Some(3)]);
        assert_eq!(taken.come('f'), Some(4), "it takes none of others");
        assert_eq!(taken.come('c'), Some(5));
        assert_eq!(taken.leave(&'a', 6), Some(6));
        assert_eq!((taken.come('f'), taken.come('f')), (None, Some(8)));
    }

    #[test]
    fn where_all_have_as_many_the_oldest_goes() {
        let mut taken = taken(usize::MAX, 3);
        let lost: Vec<_> = "cbad".chars().map(|who| taken.come(who)).collect();
        assert_eq!(lost, [None, None, None, Some(1)]);
    }

    #[test]
    fn of_one_the_newest_stay() {
        let mut taken = taken(2, usize::MAX);
        let lost: Vec<_> = "ababaa".chars().map(|who| taken.come(who)).collect();
        assert_eq!(lost, [None, None, None, None, Some(1), Some(3)]);
        assert_eq!(taken.leave(&'a', 1), None, "it was lost before");
        assert_eq!(taken.leave(&'a', 6), Some(6));
        assert_eq!(taken.come('a'), None);
    }

    #[test]
    fn who_loses_a_place_is_told_and_who_leaves_it_is_not() {
        let places = Places::new(1, usize::MAX);
        let (first, mut first_lost) = places.enter('a');
        let (second, mut second_lost) = places.enter('a');
        assert!(first_lost.try_recv().is_ok() && second_lost.try_recv().is_err());
        assert!(!first.leave());
        assert_eq!(places.lock().count(), 1, "the place is the second's");
        assert!(second.leave());
        let (third, _) = places.enter('a');
        assert!(second_lost.try_recv().is_err());
        drop(third);
        assert!(places.lock().by_who.is_empty());
    }

    proptest! {
        // Goal: nobody keeps others out, whatever comes and goes. Method: four who are greedy or not, in any order; a
        // place is lost to somebody with as many at the most.
        #[test]
        fn nobody_loses_a_place_to_who_has_more(
            comes in prop::collection::vec(("[abcd]", any::<bool>()), 1..200),
        ) {
            let mut taken = taken(7, 12);
            for (who, leaves) in comes {
                let who: char = who.parse().unwrap();
                let before = ['a', 'b', 'c', 'd'].map(|other| (other, taken.count_of(other)));
                taken.come(who);
                let own = taken.count_of(who);
                prop_assert!(taken.count() <= 12 && own <= 7);
                for (other, had) in before.into_iter().filter(|(other, _)| *other != who) {
                    let is_fair = taken.count_of(other) == had || had >= own;
                    prop_assert!(is_fair, "{who} took one of {other}");
                }
                if leaves {
                    taken.lose_oldest(&who);
                }
            }
        }
    }
}
