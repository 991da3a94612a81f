//! Why a ledger cannot do what it was asked, and what can be done about it.

use crate::record::{Epoch, Revision};
use keeptime_model::Invalid;
use std::error::Error as Cause;
use std::path::PathBuf;
use thiserror::Error;

/// A ledger cannot do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another program has it open for writing.
    #[error(
        "{path} is in use by {}; a ledger has one writer: stop the other broker first",
        holder.map_or("another process".into(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The ledger.
        path: PathBuf,
        /// Which process, where that is known.
        holder: Option<u32>,
    },
    /// Another writer has taken over since this one opened it.
    #[error(
        "this is writer {own} of {place}, and writer {current} has taken over; this one can \
         write no more"
    )]
    Fenced {
        /// The ledger.
        place: String,
        /// This writer's epoch.
        own: Epoch,
        /// The epoch of the writer that took over.
        current: Epoch,
    },
    /// There is no room. Nothing was written; it can be tried again when there is room.
    #[error("no room left for {path}; free some space on its file system, nothing was written")]
    Full {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Box<dyn Cause + Send + Sync>,
    },
    /// Somebody else kept it locked too long. Nothing was written; it can be tried again.
    #[error("{place} is locked by another program; end what reads or writes it, then try again")]
    Busy {
        /// The ledger.
        place: String,
        /// What the store said.
        #[source]
        source: Box<dyn Cause + Send + Sync>,
    },
    /// Reading or writing failed.
    #[error("cannot {action} {place}")]
    Store {
        /// `open`, `write to`, and so on.
        action: &'static str,
        /// The ledger or one of its files.
        place: String,
        /// Why.
        #[source]
        source: Box<dyn Cause + Send + Sync>,
    },
    /// A write failed before such that nobody knows what is durable.
    #[error("{place} failed before ({cause}); open it again to learn what is in it")]
    Poisoned {
        /// The ledger.
        place: String,
        /// The failure.
        cause: String,
    },
    /// It is damaged. Nothing is guessed; what is good can be copied into a new ledger.
    #[error(
        "{place} is damaged: {fault}; it is good up to revision {last_good_revision}: move it and the \
         files beside it away and copy that much into a new ledger (`keeptime broker salvage`), or restore \
         a copy"
    )]
    Corrupt {
        /// The ledger.
        place: String,
        /// What is wrong.
        fault: String,
        /// State can be rebuilt up to here; 0 if not at all.
        last_good_revision: Revision,
    },
    /// The file is something else.
    #[error("{path} is not a ledger but {found}; expected a new or empty path, or a ledger")]
    NotALedger {
        /// The file.
        path: PathBuf,
        /// What it seems to be.
        found: String,
    },
    /// The ledger is of another version of Keeptime.
    #[error("{path} has schema version {found}; this program knows version {known}")]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// What would be accepted.
        known: i64,
    },
    /// What should be read is covered by a snapshot and gone.
    #[error("revisions up to {compacted_to} are compacted; cannot read after {after}")]
    Compacted {
        /// What was asked for.
        after: Revision,
        /// The least that would be accepted.
        compacted_to: Revision,
    },
    /// An argument is out of bounds.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl LedgerError {
    /// Whether the same call may succeed later on the same ledger, which holds what it held before.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Busy { .. })
    }

    /// Whether nobody knows what is durable until the ledger is opened again.
    pub fn needs_reopening(&self) -> bool {
        matches!(self, Self::Store { .. } | Self::Poisoned { .. } | Self::Corrupt { .. })
    }
}
