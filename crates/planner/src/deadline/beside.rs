//! One job beside what is reserved, as one reservation in advance can have it: nodes, a start and a rate
//! that stay until it is done. What is reserved stays as it is.

use super::admit::Refusal;
use super::job::Job;
use super::plan::{Cluster, JobPlan, best_of, shared};
use super::space::Space;
use keeptime_model::Invalid;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, WallTime};

/// CPU of a node that is reserved already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// Where.
    pub node: NodeIndex,
    /// From then on.
    pub from: WallTime,
    /// Until just before then.
    pub to: WallTime,
    /// How much.
    pub cpu: CpuPpm,
}

/// Nodes, start and rate of `wanted`, which has not started, beside what is `reserved`: the cheapest that
/// keeps what it wants, and of these the one that is done first. O(steps²) for each number of nodes, with a
/// step for each change of what is reserved.
///
/// # Errors
/// Why nothing does, with the earliest deadline that can be kept.
pub fn beside(
    now: WallTime,
    cluster: &Cluster,
    reserved: &[Reserved],
    wanted: &Job,
) -> Result<Result<JobPlan, Refusal>, Invalid> {
    cluster.check(wanted)?;
    let mut space = Space::new(now.unix_nanos(), cluster);
    reserved.iter().for_each(|reserved| space.reserve(reserved));
    let layouts = space
        .counts(wanted)
        .flat_map(|count| shared(now, &space, wanted, count, Space::lay_at_one_rate));
    let layout = best_of(now, wanted, layouts);
    let found = JobPlan::of(now, wanted, layout);
    Ok(if found.kept { Ok(found) } else { Err(Refusal::too_late(wanted, found.ends)) })
}
