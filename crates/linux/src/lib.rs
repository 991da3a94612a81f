//! Owns what Keeptime asks of one Linux kernel: classes and marks of packets, control groups, CPU
//! schedules and processes, disks, and what all of them count; as plain values with a pure `diff` and a
//! thin `apply` where something is changed; never decides what is wanted.
//!
//! * [`egress`]: from reserved flows to classes and marks (pure);
//! * [`flows`]: which packets belong to which flow, by eBPF;
//! * [`police`]: what comes in too fast is dropped;
//! * [`counters`]: what passed and was dropped;
//! * [`cgroup`]: CPU and disk limits, and the processes of a node or a job;
//! * [`alignment`]: periods of CPU limits that begin on all nodes at the same time;
//! * [`bound`]: processes that a job borrowed, and where they go back to;
//! * [`started`]: commands that users started for a job, and how each ends as a whole;
//! * [`deadline`]: CPU schedules by `SCHED_DEADLINE`;
//! * [`descriptors`]: how many this process may have;
//! * [`disk`]: how fast a group may use a disk;
//! * [`sockets`]: the open connections of a node;
//! * [`probe`]: what this kernel can enforce, found out by trying;
//! * [`regions`]: memory that the network reads, by eBPF;
//! * [`segments`]: how long the packets are that an interface is handed;
//! * [`load`]: how busy this node is, as the kernel counts;
//! * [`machine`]: what this machine is;
//! * [`process`]: processes that are not mistaken for others, started inside namespaces;
//! * [`clock`]: the clock that nobody sets;
//! * [`netns`], [`link`]: namespaces, and the virtual Ethernet between them;
//! * [`netlink`]: requests to the kernel and their answers;
//! * [`tc`]: classes, shapers and filters of an interface;
//! * [`tcp`]: connections whose other end may vanish;
//! * [`user_level`]: CPU schedules kept from user space;
//! * [`users`]: who a user number is;
//! * [`vital`]: threads whose end is that of the process.

pub mod alignment;
pub mod bound;
pub mod cgroup;
pub mod clock;
pub mod counters;
pub mod deadline;
pub mod descriptors;
pub mod disk;
pub mod egress;
pub mod flows;
pub mod link;
pub mod load;
pub mod machine;
pub mod netlink;
pub mod netns;
pub mod police;
pub mod probe;
pub mod process;
pub mod regions;
pub mod segments;
pub mod services;
pub mod sockets;
pub mod started;
pub mod syscall;
pub mod tc;
pub mod tcp;
#[cfg(feature = "testing")]
pub mod testing;
pub mod user_level;
pub mod users;
pub mod vital;
