//! Owns the fabric's daemon of a node, `keeptime-fabricd`: its directory server, its regions,
//! its echo and its bridge; never what programs say to each other.
//!
//! [`KernelMemories`] has the regions of the node answered for in the kernel, on the interfaces that
//! it is told.

#![forbid(unsafe_code)]

mod memories;

pub use memories::KernelMemories;
