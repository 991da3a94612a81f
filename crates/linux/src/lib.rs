//! Owns what Keeptime asks of one Linux kernel: traffic control, flow marking and counters, as
//! plain values with a pure `diff` and a thin `apply`; never decides what is wanted.
//!
//! * [`egress`]: from reserved flows to classes and marks (pure);
//! * [`flows`]: which packets belong to which flow, by eBPF;
//! * [`counters`]: what passed and was dropped;
//! * [`cgroup`]: CPU limits, and the processes of a node or a job;
//! * [`process`]: processes that are not mistaken for others, started inside namespaces;
//! * [`netns`], [`link`]: namespaces, and the virtual Ethernet between them;
//! * [`netlink`]: requests to the kernel and their answers;
//! * [`tc`]: classes, shapers and filters of an interface.

pub mod cgroup;
pub mod counters;
pub mod egress;
pub mod flows;
pub mod link;
pub mod netlink;
pub mod netns;
pub mod process;
pub mod syscall;
pub mod tc;
#[cfg(feature = "testing")]
pub mod testing;
