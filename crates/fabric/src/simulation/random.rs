//! Chance from a seed: the same draws on every machine.

use std::time::Duration;

/// What a seed has happen.
#[derive(Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// That of `seed`.
    pub fn of(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// At least 0 and below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.u64(..bound) }
    }

    /// Which of `count`; 0 if there is none.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True once in `count` times.
    pub fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of `items`; nothing if there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = self.index(items.len());
        items.get(at).copied()
    }

    /// Less than `most`.
    pub fn time(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(most.as_nanos() as u64))
    }
}
