//! One-sided regions: what a process publishes others read, and add to, without its taking part.
//!
//! A region is a number of records of one size; a record of 48 bytes, with its sequence and its
//! counter a cache line, is a *cell*. Only the publisher writes the data of a record, and every
//! reader gets all of one version or tries again. Each record has a counter besides, to which
//! readers may add if the publisher allows it.
//!
//! The memory is that of the node's daemon, so it does not matter what the publishing process does:
//! on its node, readers map it; elsewhere they ask the node, where the network program (XDP) on the
//! interface answers, or else a thread of the daemon with a real-time schedule. Every answer says
//! which it was. A region is there as long as its publisher and the daemon are; who has it mapped is told when either has
//! ended, however that was.
//!
//! | module | owns |
//! |---|---|
//! | [`layout`] | where records lie (pure) |
//! | `sequence` | one version or none (pure; checked with loom) |
//! | [`packet`] | questions and answers as bytes (pure) |
//! | `respond` | what is answered (pure); the network program decides the same |
//! | [`room`] | how much of it each user may have (pure) |
//! | [`server`] | the daemon's side: memory, handing it over, answering |
//! | `hand`, `ask` | the programs' side of that |
//! | `remote` | which of a node's addresses is asked |
//! | `lifeline` | whether the daemon that has handed memory over is there still |
//! | `look` | a cell of each of many regions, read at once |

pub mod layout;
pub mod packet;
pub mod room;
pub mod server;

mod ask;
mod error;
mod hand;
mod lifeline;
mod look;
mod memory;
mod publish;
mod read;
mod remote;
mod respond;
mod sequence;

pub use error::{PublishError, RegionError};
pub use layout::{Address, CELL, InvalidLayout, Layout};
pub(crate) use lifeline::Lifelines;
pub use look::look;
pub use packet::AnsweredBy;
pub use publish::Region;
pub use read::{Reader, Reading};
pub use server::{Memories, PlainMemories, RegionServer, RegionServerConfig};

/// The attribute of a resource that says where its region is.
pub const ATTRIBUTE: &str = "keeptime.region";
