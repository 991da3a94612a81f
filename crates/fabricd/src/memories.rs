//! Memory of regions that the kernel's program reads.

use keeptime_fabric::region::{Layout, Memories};
use keeptime_linux::regions::{RegionProgram, RegionsError};
use keeptime_model::errors::chain;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Memory that the program on the node's interfaces reads. Answers from there as long as this is.
pub struct KernelMemories(RegionProgram);

impl KernelMemories {
    /// Has the kernel answer on UDP port `port` of `interfaces`, which are those of this thread's
    /// network namespace, at the addresses that this has now. Other interfaces, and addresses that
    /// are added later, are left to the daemon's thread.
    ///
    /// # Errors
    /// If the kernel refuses, or one of them is not there.
    pub fn new(port: u16, interfaces: &[String]) -> Result<Self, RegionsError> {
        let mut program = RegionProgram::load(port)?;
        interfaces.iter().try_for_each(|interface| program.attach(interface))?;
        Ok(Self(program))
    }
}

impl Memories for KernelMemories {
    fn create(&mut self, layout: Layout) -> io::Result<OwnedFd> {
        self.0.create(layout.slots()).map_err(told)
    }

    fn install(&mut self, slot: u32, memory: BorrowedFd<'_>) -> io::Result<()> {
        self.0.install(slot, memory).map_err(told)
    }

    fn remove(&mut self, slot: u32) {
        if let Err(error) = self.0.remove(slot) {
            // Readers are refused all the same: its key is taken out of the memory.
            tracing::warn!(slot, error = %chain(&error), "a region that is gone stays in its table");
        }
    }

    fn for_reading(&self, memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.0.for_reading(memory).map_err(told)
    }
}

fn told(error: RegionsError) -> io::Error {
    io::Error::other(chain(&error))
}
