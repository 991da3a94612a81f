//! What it costs when a program does not know where receivers are: the paper's figure 12 has its library
//! ask the directory for every second message.

use keeptime_fabric::{Context, ResourceId};

/// The share of messages before which the directory is asked for the receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Misses(f64);

impl Misses {
    /// It is never asked: contexts that were connected to stay known.
    pub const NONE: Self = Self(0.0);

    /// This share, if it is one.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// Asks where `to` is, as often as it is to be.
    pub fn look_for(self, context: &Context, to: ResourceId) {
        if self.0 > 0.0 && fastrand::f64() < self.0 {
            // Only what it costs counts: the sender knows already, or finds out.
            let _ = context.locate(to);
        }
    }
}
