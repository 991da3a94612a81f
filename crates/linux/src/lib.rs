//! Owns what Keeptime asks of one Linux kernel: traffic control, flow marking and counters, as
//! plain values with a pure `diff` and a thin `apply`; never decides what is wanted.
//!
//! * [`egress`]: from reserved flows to classes and marks (pure);
//! * [`flows`]: which packets belong to which flow, by eBPF;
//! * [`counters`]: what passed and was dropped;
//! * [`netlink`]: requests to the kernel and their answers;
//! * [`tc`]: classes, shapers and filters of an interface.

pub mod counters;
pub mod egress;
pub mod flows;
pub mod netlink;
pub mod tc;
#[cfg(feature = "testing")]
pub mod testing;
