//! A token bucket that makes an interface as slow as a real link.

use super::{Attach, Handle, Place};
use keeptime_model::units::{BitsPerSecond, Bytes};

/// A token bucket (TBF) at the root of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaper {
    /// The interface.
    pub ifindex: u32,
    /// The major number of its handle.
    pub major: u16,
    /// How fast.
    pub rate: BitsPerSecond,
    /// How much at once: about 2 ms of the rate, and no less than two packets.
    pub burst: Bytes,
    /// How many bytes wait. A tree inside of it has limits of its own instead.
    pub limit: u32,
}

impl Shaper {
    /// Where it stands.
    pub fn place(&self) -> Place {
        Place { ifindex: self.ifindex, attach: Attach::Root, major: self.major }
    }

    /// The place of a tree inside of it.
    pub fn inside(&self, major: u16) -> Place {
        let class = Handle { major: self.major, minor: 1 };
        Place { ifindex: self.ifindex, attach: Attach::Under(class), major }
    }
}
