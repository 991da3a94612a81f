//! What is said on an agent's socket: one JSON object a line, a request and then its response.

use keeptime_model::assignment::{AssignedFlow, Assignment};
use keeptime_model::name::Name;
use keeptime_model::units::{Bytes, CpuPpm, Nanos, WallTime};
use serde::{Deserialize, Serialize};

/// Longest line that either side reads; [`keeptime_model::assignment::FLOWS_MAX`] flows fit.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// What an agent is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// Enforce this from now on; replaces what was assigned to the same job. Idempotent.
    Enforce(Assignment),
    /// Keep the job's assignment until then.
    Renew {
        /// The job.
        job: Name,
        /// The new end.
        until_unix_nanos: WallTime,
    },
    /// End the job: its processes, its flows, its groups. A job that is not there is no error.
    Withdraw {
        /// The job.
        job: Name,
    },
    /// Tell what is assigned, enforced and measured.
    Status,
}

/// What an agent answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Response {
    /// It is so now.
    Done,
    /// It was understood and will not be done.
    Refused {
        /// Why, in the user's words.
        reason: String,
    },
    /// It was tried and the node could not; everything is as before.
    Failed {
        /// What failed, outermost cause first.
        error: String,
    },
    /// The answer to [`Request::Status`].
    Status(Status),
}

/// What a node has, enforces and measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The node.
    pub node: Name,
    /// The agent's process.
    pub process: u32,
    /// When the agent started.
    pub since_unix_nanos: WallTime,
    /// CPU that jobs may have here.
    pub cpu_ppm: CpuPpm,
    /// Every job assigned here.
    pub jobs: Vec<JobStatus>,
    /// What the node cannot enforce, and why.
    pub not_enforced: Vec<String>,
}

/// One job on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// What was assigned.
    pub assignment: Assignment,
    /// Its processes on this node.
    pub processes: Vec<u32>,
    /// CPU time that they used.
    pub cpu_used_nanos: Nanos,
    /// Its flows that leave this node.
    pub flows: Vec<FlowStatus>,
}

/// One flow as the kernel counts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// What was assigned.
    pub flow: AssignedFlow,
    /// Bytes sent so far, headers included.
    pub sent_bytes: Bytes,
    /// Packets dropped in its queue.
    pub dropped_packets: u64,
}
