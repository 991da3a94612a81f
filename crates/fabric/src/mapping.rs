//! Memory that several processes map.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// What a process may do with memory that it maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only look.
    Read,
    /// Look and change.
    Write,
}

/// Mapped memory, until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to no thread; those who use it say who may touch what.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of `memory`, which has as many and cannot be cut.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(memory: impl AsFd, length: usize, access: Access) -> io::Result<Self> {
        let size = NonZeroUsize::new(length).ok_or(io::ErrorKind::InvalidInput)?;
        let rights = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new mapping at a place that the kernel chooses.
        let base = unsafe { mmap(None, size, rights, MapFlags::MAP_SHARED, memory, 0)? };
        Ok(Self { base: base.cast(), length })
    }

    /// Lets go of the memory. What is read here is zero from now on: whoever looks at it just now is not disturbed.
    ///
    /// # Safety
    /// Nobody writes here any more.
    pub unsafe fn let_go(&self) {
        let Some(size) = NonZeroUsize::new(self.length) else { return };
        // Only read it takes no memory, which the kernel might not have.
        let flags = MapFlags::MAP_FIXED | MapFlags::MAP_PRIVATE;
        // SAFETY: in the place of what `new` has mapped, in one step, and for as long.
        let _ =
            unsafe { mmap_anonymous(Some(self.base.addr()), size, ProtFlags::PROT_READ, flags) };
    }

    /// Where it begins; valid for as long as `self` is.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference into it outlives its owner.
        let _ = unsafe { munmap(self.base.cast(), self.length) };
    }
}
