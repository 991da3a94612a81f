//! How many connections those who come have at once, each a user or an address: nobody keeps the others out.

use keeptime_locks::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// Places for connections. Clones are the same places.
#[derive(Debug, Clone)]
pub struct Seats<K> {
    of_one_max: usize,
    all_max: usize,
    taken: Arc<Taken<K>>,
}

/// The place of one connection: given back when dropped, also by a thread or a request that panics.
#[derive(Debug)]
pub struct Seat<K: Hash + Eq> {
    taken: Arc<Taken<K>>,
    who: K,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All together have as many as there may be.
    All,
    /// Whoever asks has.
    One,
}

/// How many each of those has who has any.
#[derive(Debug)]
struct Taken<K>(Mutex<HashMap<K, usize>>);

impl<K: Hash + Eq + Clone> Seats<K> {
    /// Everybody has so many at most, however many that are in all.
    pub fn new(of_one_max: usize) -> Self {
        Self { of_one_max, all_max: usize::MAX, taken: Arc::new(Taken(Mutex::default())) }
    }

    /// All together have so many at most.
    pub fn at_most(self, all_max: usize) -> Self {
        Self { all_max, ..self }
    }

    /// A place for one more connection of `who`, if there is one.
    pub fn take(&self, who: K) -> Option<Seat<K>> {
        self.try_take(who).ok()
    }

    /// The same, and else why there is none.
    ///
    /// # Errors
    /// If there is none.
    pub fn try_take(&self, who: K) -> Result<Seat<K>, Full> {
        let mut taken = lock(&self.taken.0);
        let own = taken.get(&who).copied().unwrap_or(0);
        // Whoever has as many as it may is told so also when all have: others' going would be of no use to it.
        if own >= self.of_one_max {
            return Err(Full::One);
        }
        if taken.values().sum::<usize>() >= self.all_max {
            return Err(Full::All);
        }
        taken.insert(who.clone(), own + 1);
        Ok(Seat { taken: Arc::clone(&self.taken), who })
    }

    /// Whether nobody has one.
    pub fn are_empty(&self) -> bool {
        lock(&self.taken.0).is_empty()
    }
}

impl<K: Hash + Eq> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken.0);
        if let Some(own) = taken.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One user takes a part of the seats, and all of them no more than there are; whoever leaves makes room.
    #[test]
    fn no_user_keeps_others_out() {
        let seats = Seats::new(2).at_most(5);
        let take = |user: u32| seats.take(user);
        let of_one = [take(1), take(1)];
        assert!(of_one.iter().all(Option::is_some) && take(1).is_none());
        let of_others = [take(2), take(2), take(3)];
        assert!(of_others.iter().all(Option::is_some) && take(4).is_none());
        let why = |user| seats.try_take(user).err();
        assert_eq!([1, 3, 4].map(why), [Full::One, Full::All, Full::All].map(Some));
        drop(of_one);
        let again = [take(1), take(1)];
        assert!(again.iter().all(Option::is_some) && take(4).is_none());
    }

    // Goal: nobody is locked out by connections that are over, however they ended. Method: the last seat goes in a panic, as
    // with a request that has met a bug.
    #[test]
    fn a_user_has_so_many_connections_and_gets_them_back() {
        let open = Seats::new(16);
        let mut seats: Vec<_> = (0..16).map_while(|_| open.take(7)).collect();
        assert!(seats.len() == 16 && open.take(7).is_none());
        assert!(open.take(8).is_some(), "others are not concerned");
        let seat = seats.pop();
        let ended = std::thread::spawn(move || assert!(seat.is_none(), "a bug"));
        assert!(ended.join().is_err());
        seats.extend(open.take(7));
        assert_eq!(seats.len(), 16);
        drop(seats);
        assert!(open.are_empty());
    }
}
