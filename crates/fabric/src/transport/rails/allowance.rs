//! How many rails the streams of a context may have beside the one that each of them needs: whoever talks to thousands of
//! others over several networks has one rail to most of them.

use crate::descriptors::descriptors_most;
use keeptime_locks::lock;
use std::sync::{Arc, Mutex};

/// Rails beside others of a context at a time: one more to each of a thousand nodes. Each takes some hundred KiB of the
/// kernel's memory when it is full.
const BESIDE_MOST: usize = 1024;
/// Descriptors of a rail: its connection, and what is watched of it.
const DESCRIPTORS: usize = 3;
/// Rails beside others take one of so many descriptors that the process may have: links and the program need the others.
const PART: usize = 2;

/// What is left of them.
#[derive(Debug, Clone)]
pub struct Allowance(Arc<Mutex<usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Allowed(Arc<Mutex<usize>>);

impl Allowance {
    /// For so many rails.
    pub fn of(rails: usize) -> Self {
        Self(Arc::new(Mutex::new(rails)))
    }

    /// Whether there may be one more.
    pub fn is_left(&self) -> bool {
        *lock(&self.0) > 0
    }

    /// One more, if there may be one.
    pub fn take(&self) -> Option<Allowed> {
        let mut left = lock(&self.0);
        *left = left.checked_sub(1)?;
        Some(Allowed(self.0.clone()))
    }
}

impl Default for Allowance {
    /// What this process has descriptors for.
    fn default() -> Self {
        Self::of(beside_most(descriptors_most()))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        *lock(&self.0) += 1;
    }
}

/// How many rails beside others a process with so many descriptors may have.
fn beside_most(descriptors: usize) -> usize {
    (descriptors / PART / DESCRIPTORS).min(BESIDE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let allowance = Allowance::of(2);
        let copy = allowance.clone();
        let (one, other) = (allowance.take().unwrap(), copy.take().unwrap());
        assert!(!allowance.is_left() && allowance.take().is_none());
        drop(one);
        assert!(copy.is_left());
        let again = copy.take();
        assert!(again.is_some() && allowance.take().is_none());
        drop((again, other));
        assert_eq!(*lock(&allowance.0), 2);
    }

    #[test]
    fn rails_leave_descriptors_for_everything_else() {
        assert_eq!(beside_most(1024), 170);
        assert_eq!(beside_most(5), 0);
        assert_eq!(beside_most(usize::MAX), BESIDE_MOST);
        assert!(beside_most(descriptors_most()) > 0, "this process may have some");
    }
}
