//! Owns what Keeptime asks of one Linux kernel: traffic control, flow marking and counters, as
//! plain values with a pure `diff` and a thin `apply`; never decides what is wanted.
//!
//! * [`netlink`]: requests to the kernel and their answers;
//! * [`tc`]: classes, shapers and filters of an interface.

pub mod netlink;
pub mod tc;
#[cfg(feature = "testing")]
pub mod testing;
