//! Owns the fabric's daemon of a node, `keeptime-fabricd`: its directory server, its regions,
//! its echo, its bridge and how busy its node is; never what programs say to each other.
//!
//! [`KernelMemories`] has the regions of the node answered for in the kernel, on the interfaces that
//! it is told. [`LoadPublisher`] publishes what the kernel counts of the node's work.

#![forbid(unsafe_code)]

mod load;
mod memories;

pub use load::{LoadPublisher, LoadPublisherError, RENEWED_EVERY};
pub use memories::KernelMemories;
