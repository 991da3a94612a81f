//! Why an assignment is not taken, in the user's words.

use keeptime_control::admission;
use keeptime_model::Invalid;
use keeptime_model::capability::Unmet;
use keeptime_model::disk::{DiskDirection, DiskId};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm};
use thiserror::Error;

/// Why an assignment is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A field is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Its end has passed already.
    #[error("the assignment of {job} ended before it came")]
    Late {
        /// The job.
        job: Name,
    },
    /// Not enough CPU is left.
    #[error("{job} asks for {asked} CPU and {free} of {capacity} is free")]
    Cpu {
        /// The job.
        job: Name,
        /// What it asks for.
        asked: CpuPpm,
        /// What is left for it.
        free: CpuPpm,
        /// What the node has.
        capacity: CpuPpm,
    },
    /// There is enough CPU, and not so that it could be kept.
    #[error("{job} asks for {asked} CPU, which user-level EDF cannot keep here: {refusal}")]
    Schedule {
        /// The job.
        job: Name,
        /// What it asks for.
        asked: CpuPpm,
        /// Why.
        refusal: admission::Refusal,
    },
    /// Not enough bandwidth is left on the way out of the node.
    #[error("{job} asks to send {asked} and {free} of {capacity} is free on this node's link")]
    Bandwidth {
        /// The job.
        job: Name,
        /// The sum of its reserved flows.
        asked: BitsPerSecond,
        /// What is left for it.
        free: BitsPerSecond,
        /// What may be reserved.
        capacity: BitsPerSecond,
    },
    /// A disk, or a direction of it, that is not this node's to give.
    #[error("{job} asks to {direction} on disk {disk}, and this node can reserve {there}")]
    Disk {
        /// The job.
        job: Name,
        /// The disk.
        disk: DiskId,
        /// Which direction.
        direction: DiskDirection,
        /// What there is.
        there: String,
    },
    /// Not enough of a disk's rate is left.
    #[error("{job} asks to {direction} {asked} on disk {disk} and {free} of {capacity} is free")]
    DiskRate {
        /// The job.
        job: Name,
        /// The disk.
        disk: DiskId,
        /// Which direction.
        direction: DiskDirection,
        /// What it asks for.
        asked: BytesPerSecond,
        /// What is left for it.
        free: BytesPerSecond,
        /// What the disk has.
        capacity: BytesPerSecond,
    },
    /// It asks for what this node's kernel cannot do.
    #[error("this node cannot enforce what {job} asks for: {unmet}")]
    Unenforceable {
        /// The job.
        job: Name,
        /// What, and why.
        unmet: Unmet,
    },
    /// No such job.
    #[error("no job {job} is assigned here")]
    Unknown {
        /// The job.
        job: Name,
    },
}
