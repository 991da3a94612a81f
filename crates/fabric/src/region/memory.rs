//! A region's words in mapped memory.

use super::layout::Layout;
use super::sequence::{Word, Words};
use crate::mapping::{Access, Mapping};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// All of a region, mapped.
#[derive(Debug)]
pub struct Mapped(Mapping);

impl Mapped {
    /// Maps a region of this layout; `memory` has as many bytes and cannot be cut.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(memory: impl AsFd, layout: Layout, access: Access) -> io::Result<Self> {
        Mapping::new(memory, layout.memory(), access).map(Self)
    }
}

impl Words for Mapped {
    type Word = AtomicU64;

    fn word(&self, index: usize) -> &AtomicU64 {
        let offset = index * size_of::<u64>();
        assert!(offset < self.0.length(), "word {index} is not in the region");
        // SAFETY: aligned and inside the mapping, which lives as long as `self`. All processes and
        // the kernel's program use these words as wholes. Where the mapping is only to be looked
        // at, nobody calls `store` or `add`: `Reader` knows what it was given.
        unsafe { AtomicU64::from_ptr(self.0.base().add(offset).cast()) }
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    fn add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
}
