//! Locks whatever happened to a thread that held the lock: what is behind a lock of this crate is whole whenever it is free.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is behind `mutex`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
