//! Owns how many connections each of those who come has: a user, or an address.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All that have one.
#[derive(Debug, Clone)]
pub(crate) struct Seats<K> {
    of_one_max: usize,
    open: Arc<Open<K>>,
}

/// The place of one connection: given back when dropped, also by a request whose answer panics.
#[derive(Debug)]
pub(crate) struct Seat<K: Hash + Eq> {
    open: Arc<Open<K>>,
    who: K,
}

#[derive(Debug)]
struct Open<K>(Mutex<HashMap<K, usize>>);

impl<K: Hash + Eq + Copy> Seats<K> {
    /// Everybody has so many at most.
    pub fn new(of_one_max: usize) -> Self {
        Self { of_one_max, open: Arc::new(Open(Mutex::default())) }
    }

    /// A place for one more connection of `who`, if there is one.
    pub fn take(&self, who: K) -> Option<Seat<K>> {
        let mut open = self.open.lock();
        let count = open.entry(who).or_default();
        if *count >= self.of_one_max {
            return None;
        }
        *count += 1;
        Some(Seat { open: Arc::clone(&self.open), who })
    }

    #[cfg(test)]
    pub fn are_empty(&self) -> bool {
        self.open.lock().is_empty()
    }
}

impl<K> Open<K> {
    /// Counts are whole whenever this is unlocked.
    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.who);
            }
        }
    }
}
