//! A stream of bytes over datagrams that may be lost, doubled or overtake each other (pure): what is
//! sent when, what is sent again, and what has arrived.
//!
//! A segment is sent again when segments that were sent well after it have arrived, or when nothing
//! was heard for a time that follows the round trips. What may be on the way follows what is lost,
//! as TCP's does (RFC 5681, with the factor of RFC 9438; time-outs as in RFC 6298). If something that
//! was taken for lost arrives without having been sent again, the other end was only late, and what
//! was made less by that is made good (in the manner of RFC 4015).
//!
//! A network that carries nothing, or nothing of that length, and a process that is stopped look alike
//! from here. Over TCP a stopped one is waited for: its kernel confirms. So it is here: that nothing is
//! confirmed is the network's end only if the other process says by another way that it takes what
//! arrives ([`Sending::answered`]).

mod head;
mod kept;
mod receiving;
mod round_trips;
mod sending;
#[cfg(test)]
mod tests;
mod window;

pub use head::{HEAD, Head, Heard, encode};
pub use receiving::Receiving;
pub use sending::{Segment, Sending};

/// Bytes that one end keeps at most: those that it has sent and that are not confirmed, and those that have
/// arrived behind a gap. A tenth of a millisecond at 80 Gbit/s, and little enough to stay in a processor's cache.
pub const KEPT_MOST: usize = 1 << 20;
