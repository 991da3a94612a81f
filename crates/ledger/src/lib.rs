//! Owns the durable record: what was granted, changed and decided, safe before the answer is sent;
//! never decides what a record means.
//!
//! * [`record`]: records, batches, revisions, snapshots and their bounds;
//! * [`Ledger`]: what every ledger does, with one fenced writer;
//! * [`SqliteLedger`]: the ledger of one broker, a file;
//! * [`MemoryLedger`]: the ledger of simulations, with faults on request;
//! * [`Writer`]: many callers on one ledger, one sync for all that wait.
//!
//! A crash at any moment leaves whole batches, in order, with every one that was acknowledged. A
//! damaged ledger is refused and says up to where it is good; [`sqlite::salvage`] copies that much
//! into a new one.
//!
//! ```
//! use keeptime_ledger::{Batch, Ledger, MemoryDisk, MemoryLedger, Record, Revision, Subject};
//! use keeptime_model::units::WallTime;
//!
//! let disk = MemoryDisk::default();
//! let mut ledger = MemoryLedger::open(&disk)?;
//! let granted = Record {
//!     kind: "reservation-granted".parse()?,
//!     subject: Some(Subject::new(7)),
//!     time: WallTime::from_unix_nanos(1),
//!     payload: br#"{"rate": 5}"#.to_vec(),
//! };
//! let revision = ledger.append(&[Batch::new(vec![granted.clone()])?])?;
//! assert_eq!(revision, Revision::new(1));
//! assert_eq!(ledger.history(Subject::new(7), 10)?[0].record, granted);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod digest;
mod error;
mod ledger;
mod memory;
pub mod record;
pub mod sqlite;
mod writer;

pub use error::LedgerError;
pub use ledger::{COMPACTION_SUBJECTS_MAX, Compaction, Ledger, Status};
pub use memory::{Fault, MemoryDisk, MemoryLedger};
pub use record::{
    Batch, Entry, Epoch, Record, Recorded, Revision, Snapshot, SnapshotPart, Subject,
};
pub use sqlite::SqliteLedger;
pub use writer::{WriteError, Writer};
