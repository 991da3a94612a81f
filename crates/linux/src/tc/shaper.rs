//! A token bucket that makes an interface as slow as a real link.

use super::decode::{Observed, QdiscKind};
use super::diff::standing;
use super::ticks::{burst_ticks, rate_bytes};
use super::{Attach, Foreign, Handle, Op, Place};
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

/// The steps that make `wanted` out of what is `observed`. A change keeps what is inside.
///
/// # Errors
/// [`Foreign`] if the root of the interface is taken.
pub fn shaper_diff(wanted: &Shaper, observed: &Observed) -> Result<Vec<Op>, Foreign> {
    let bytes = rate_bytes(wanted.rate);
    Ok(match standing(&wanted.place(), observed)? {
        Some(QdiscKind::Tbf { rate, burst, limit })
            if rate_bytes(*rate) == bytes
                && burst_ticks(*burst, bytes) == burst_ticks(wanted.burst, bytes)
                && *limit == wanted.limit =>
        {
            Vec::new()
        }
        None | Some(QdiscKind::Tbf { .. }) => vec![Op::SetShaper(*wanted)],
        Some(_) => vec![Op::RemovePlace, Op::SetShaper(*wanted)],
    })
}

/// The steps that remove the shaper of this handle, with what is inside; none if it is not there.
pub fn shaper_removal(ifindex: u32, major: u16, observed: &Observed) -> Vec<Op> {
    super::removal(&Place { ifindex, attach: Attach::Root, major }, observed)
}
