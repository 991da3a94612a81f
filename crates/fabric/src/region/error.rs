//! What can go wrong with regions.

use super::packet::Refusal;
use crate::error::RegisterError;
use crate::id::ResourceId;
use thiserror::Error;

/// A region cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The node's daemon has no memory for it.
    #[error("the node's daemon keeps no regions for this program: {0}")]
    Daemon(String),
    /// Its resource cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// A region cannot be opened, read, written or added to.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// It is a resource without a region.
    #[error("resource {0} has no region")]
    NoRegion(ResourceId),
    /// Its publisher has ended, or its node's daemon.
    #[error("the region of {0} is gone")]
    Gone(ResourceId),
    /// It has fewer records.
    #[error("record {record} of a region with {records}: they are counted from 0")]
    NoRecord {
        /// Which was meant.
        record: u32,
        /// How many there are.
        records: u32,
    },
    /// Data of another length than the region's records have.
    #[error("{given} bytes for a record of {bytes}: a record is read and written whole")]
    Length {
        /// How many were given.
        given: usize,
        /// How many a record has.
        bytes: u32,
    },
    /// Its counters are its publisher's own.
    #[error("the region was published without counters for others")]
    NotAllowed,
    /// Its publisher has begun to write the record and does not go on.
    #[error("record {record} is being written, and its publisher does not go on")]
    Unfinished {
        /// Which.
        record: u32,
    },
    /// Nobody on its node answers.
    #[error("the region on node {node} cannot be read: {why}")]
    Unreachable {
        /// Where it is.
        node: String,
        /// What the last address said.
        why: String,
    },
    /// The question was sent and there was no answer.
    #[error("no answer came: what was to be added may or may not have been")]
    Unconfirmed,
}

impl RegionError {
    /// That of an answer about `record` of the region `id`.
    pub(super) fn of(refusal: Refusal, id: ResourceId, record: u32, records: u32) -> Self {
        match refusal {
            Refusal::Gone | Refusal::NoSession => Self::Gone(id),
            Refusal::OutOfRange => Self::NoRecord { record, records },
            Refusal::Busy => Self::Unfinished { record },
            Refusal::NotAllowed => Self::NotAllowed,
        }
    }
}
