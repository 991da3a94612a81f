//! Owns the standard library's locks as if no thread had panicked.
//!
//! What Keeptime has behind a lock is whole between any two calls that could panic, so one thread's end
//! is no reason for others to end. Never for what a panic leaves half done: that needs the poison.
//!
//! ```
//! let counted = std::sync::Mutex::new(1);
//! *keeptime_locks::lock(&counted) += 1;
//! assert_eq!(*keeptime_locks::lock(&counted), 2);
//! ```
#![forbid(unsafe_code)]

use std::sync::{
    LockResult, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};

/// Locks `mutex`; waits while another thread holds the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Locks `mutex`, unless another thread holds the lock.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(locked) => Some(locked),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading; waits while another thread writes.
pub fn read<T: ?Sized>(locked: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    unpoisoned(locked.read())
}

/// Locks for writing; waits while another thread reads or writes.
pub fn write<T: ?Sized>(locked: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    unpoisoned(locked.write())
}

/// What a lock gave, or a wait for a [`Condvar`](std::sync::Condvar).
pub fn unpoisoned<T>(given: LockResult<T>) -> T {
    given.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    // Goal: who panicked with a lock keeps nobody out, who holds one does.
    #[test]
    fn who_panicked_keeps_nobody_out() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = thread::scope(|scope| {
            let panics = || {
                let _held = (mutex.lock(), shared.write());
                panic!("on purpose");
            };
            scope.spawn(panics).join()
        });
        assert!(panicked.is_err() && mutex.is_poisoned() && shared.is_poisoned());
        *lock(&mutex) += 1;
        *write(&shared) += 1;
        assert_eq!((try_lock(&mutex).as_deref(), *read(&shared)), (Some(&2), 2));
        let _held = lock(&mutex);
        assert!(thread::scope(|scope| scope.spawn(|| try_lock(&mutex).is_none()).join()).unwrap());
    }
}
