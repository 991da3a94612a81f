//! What is said on an agent's socket: one JSON object a line, a request and then its response.

use crate::programs::ProgressStatus;
use keeptime_model::assignment::{AssignedFlow, Assignment, CpuMechanism};
use keeptime_model::capability::Capabilities;
use keeptime_model::connection::ConnectionPattern;
use keeptime_model::disk::{DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{Bytes, CpuPpm, Nanos, WallTime};
use keeptime_mpiqos::wire::{Progress, RankAnswer, Report};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest request: an assignment of [`keeptime_model::assignment::FLOWS_MAX`] flows fits.
pub const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Longest response. A status has all flows of all jobs, 500 bytes each at the most: two million of them, more than a
/// node can tell apart. Whoever asks an agent trusts it with as much memory.
pub const RESPONSE_BYTES_MAX: u64 = 1 << 30;

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
    /// Count running processes to the job as long as it lasts, with the connections that they have
    /// open. They go back to where they were when it ends. Those that have ended are no error.
    Bind {
        /// The job, which must have begun.
        job: Name,
        /// Process numbers as the node has them, at most 1,024 of them.
        processes: Vec<u32>,
    },
    /// Count connections that are open now to the job as long as it lasts.
    BindFlow {
        /// The job, which must have begun and have a flow to where they go.
        job: Name,
        /// Which.
        flow: ConnectionPattern,
    },
    /// Count the process that asks, with all that it starts from now on, to the job as long as this connection
    /// lasts; with the connection all of it is ended. Asked again by the same process on another connection, it
    /// lasts as long as that one.
    Start {
        /// The job, which must have begun.
        job: Name,
    },
    /// Have the job use at most so much of the CPU that it was assigned, until something else is said: what
    /// it does not need is lent to who has none. All of it, or more, ends that; so does the end of this connection, or of the
    /// agent. Of several connections that have said so and are there, the last counts.
    Restrain {
        /// The job, which must have begun.
        job: Name,
        /// More than nothing.
        cpu_ppm: CpuPpm,
    },
    /// All that a rank of an MPI program asks for, in the place of what it asked before on this
    /// connection; it ends with the connection.
    Mpi(Report),
    /// How far a rank of an MPI program is.
    MpiProgress {
        /// The job; nothing = that of the process that asks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<Name>,
        /// How far.
        progress: Progress,
    },
    /// End the job: its processes, its flows, its groups. A job that is not there is no error.
    Withdraw {
        /// The job.
        job: Name,
    },
    /// Tell how a job stands.
    Job {
        /// Which.
        job: Name,
    },
    /// Tell how much CPU time a job has used here, and nothing else: asked several times a second for a rate.
    Used {
        /// Which.
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
    /// It was tried and the node could not; everything is as before, but what is given back stays so.
    Failed {
        /// What failed, outermost cause first.
        error: String,
    },
    /// The answer to [`Request::Start`].
    Started(Place),
    /// The answer to [`Request::Job`].
    Job(Box<JobStatus>),
    /// The answer to [`Request::Used`], in nanoseconds.
    Used(Nanos),
    /// The answer to [`Request::Status`].
    Status(Status),
    /// The answer to [`Request::Mpi`].
    Mpi(RankAnswer),
}

/// Where a command of a job was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The node, as the topology calls it.
    pub node: Name,
    /// Its device of the cluster's network, where flows are enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
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
    /// What may be reserved of each disk.
    #[serde(default)]
    pub disks: BTreeMap<DiskId, DiskRates>,
    /// What the kernel can enforce, and how that was found out; nothing = none was asked to.
    #[serde(default)]
    pub capabilities: Option<Capabilities>,
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
    /// Whether the node does for it what it can: it has begun, and what keeps its share does. Nothing else is waited for on a
    /// node that enforces nothing. Older agents do not say.
    #[serde(default)]
    pub begun: bool,
    /// Its processes on this node.
    pub processes: Vec<u32>,
    /// Those among them that were bound to the job, or were started by one that was.
    #[serde(default)]
    pub borrowed: Vec<u32>,
    /// CPU time that they used.
    pub cpu_used_nanos: Nanos,
    /// What keeps their share; nothing = nothing does, or the job has not begun.
    #[serde(default)]
    pub cpu_kept_by: Option<CpuMechanism>,
    /// Why that is not what was asked for: [`CpuMechanism::UserLevel`] where that was, else `SCHED_DEADLINE`;
    /// or why that does not keep all of it.
    #[serde(default)]
    pub cpu_obstacle: Option<String>,
    /// What they did on disks that they have a rate of.
    #[serde(default)]
    pub disks: BTreeMap<DiskId, DiskStatus>,
    /// Connections that were bound to the job.
    #[serde(default)]
    pub bound_sockets: usize,
    /// Its flows that leave this node.
    pub flows: Vec<FlowStatus>,
    /// How far it is, if it is an MPI program that tells or repeats itself.
    #[serde(default)]
    pub progress: Option<ProgressStatus>,
    /// The node's clock when this was told.
    #[serde(default)]
    pub now_unix_nanos: WallTime,
}

impl JobStatus {
    /// A job of which nothing is known but what was assigned.
    pub fn unmeasured(assignment: Assignment) -> Self {
        Self {
            assignment,
            begun: false,
            processes: Vec::new(),
            borrowed: Vec::new(),
            cpu_used_nanos: Nanos::default(),
            cpu_kept_by: None,
            cpu_obstacle: None,
            disks: BTreeMap::new(),
            bound_sockets: 0,
            flows: Vec::new(),
            progress: None,
            now_unix_nanos: WallTime::default(),
        }
    }
}

/// What a job did on one disk, as the kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Bytes read so far.
    pub read_bytes: Bytes,
    /// Bytes written so far; with control groups of version 1 without what waits in the page cache.
    pub written_bytes: Bytes,
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

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: agents of an older version are understood. Method: what one answers today, without what those do not say.
    #[test]
    fn an_answer_without_what_was_added_later_is_understood() {
        let until = WallTime::from_unix_nanos(9);
        let assignment = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(10), until);
        let progress = ProgressStatus {
            iterations: 7,
            iterations_per_second: 2.0,
            told: false,
            period: 6,
            at_unix_nanos: WallTime::from_unix_nanos(4),
        };
        let status = JobStatus {
            begun: true,
            progress: Some(progress),
            now_unix_nanos: WallTime::from_unix_nanos(5),
            ..JobStatus::unmeasured(assignment)
        };
        let answer = Response::Job(Box::new(status.clone()));
        let mut text = serde_json::to_value(&answer).unwrap();
        assert_eq!(serde_json::from_value::<Response>(text.clone()).unwrap(), answer);
        let job = text["job"].as_object_mut().unwrap();
        assert!(job.remove("now_unix_nanos").is_some() && job.remove("begun").is_some());
        let of_job = job["progress"].as_object_mut().unwrap();
        assert!(of_job.remove("period").is_some() && of_job.remove("at_unix_nanos").is_some());
        let (period, at_unix_nanos) = (0, WallTime::default());
        let older = JobStatus {
            begun: false,
            progress: Some(ProgressStatus { period, at_unix_nanos, ..progress }),
            now_unix_nanos: WallTime::default(),
            ..status
        };
        assert_eq!(
            serde_json::from_value::<Response>(text).unwrap(),
            Response::Job(Box::new(older))
        );
    }
}
