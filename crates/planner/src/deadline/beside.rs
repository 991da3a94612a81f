//! One job beside what is reserved, as one reservation in advance can have it: nodes, a start and a rate
//! that stay until it is done. What is reserved stays as it is.

use super::job::Job;
use super::space::Space;
use keeptime_model::Invalid;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use serde::Serialize;
use std::fmt;

/// What jobs can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// What may be promised of each node.
    pub nodes_ppm: Vec<CpuPpm>,
    /// A job waits rather than run slower than this.
    pub rate_least: Share,
}

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

/// One rate over one span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// From then.
    #[serde(rename = "from_unix_nanos")]
    pub from: WallTime,
    /// Until just before then.
    #[serde(rename = "to_unix_nanos")]
    pub to: WallTime,
    /// The part of full speed.
    #[serde(rename = "rate_ppm")]
    pub rate: Share,
}

/// Where a job runs, when and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub nodes: Vec<NodeIndex>,
    /// When and how fast.
    pub at: Stretch,
}

/// Why a job cannot be done by its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is never room for it.
    Never,
    /// It would be done at `ends`, after `by`.
    Late {
        /// Its deadline.
        by: WallTime,
        /// The earliest deadline that was found to be possible.
        ends: WallTime,
    },
    /// It is to begin at once or not at all, and would begin later.
    NotAtOnce {
        /// When it would be done.
        ends: WallTime,
    },
}

impl Cluster {
    /// `nodes` nodes, of each of which `cpu` may be promised; no job slower than 5 %.
    pub fn of(nodes: u32, cpu: CpuPpm) -> Self {
        let rate_least = Share::from_percent(5).unwrap_or_default();
        Self { nodes_ppm: vec![cpu; nodes as usize], rate_least }
    }
}

impl Reserved {
    /// What a timeline that was looked at until `horizon` has of a node, in millionths of a processor. What lasts to its end is
    /// taken to last for ever.
    pub fn seen(
        node: NodeIndex,
        [from, to]: [WallTime; 2],
        horizon: WallTime,
        millionths: u64,
    ) -> Self {
        let to = if to < horizon { to } else { WallTime::from_unix_nanos(u64::MAX) };
        let cpu = CpuPpm::new(u32::try_from(millionths).unwrap_or(u32::MAX));
        Self { node, from, to, cpu }
    }
}

/// Nodes, start and rate of `wanted` beside what is `reserved`: the cheapest with which it is done by its deadline, and of
/// these the one that is done first. O(steps²) for each number of nodes, with a step for each change of what is reserved.
///
/// # Errors
/// If the job makes no sense on this cluster; within that, why nothing does, with the earliest deadline that can be kept.
pub fn beside(
    now: WallTime,
    cluster: &Cluster,
    reserved: &[Reserved],
    wanted: &Job,
) -> Result<Result<Plan, Refusal>, Invalid> {
    wanted.check(cluster.nodes_ppm.len())?;
    let space = Space::new(now.unix_nanos(), cluster, reserved);
    Ok(match best(now, &space, wanted) {
        Some(plan) if plan.at.to <= wanted.by => Ok(plan),
        late => {
            let ends = late.map(|plan| possible(now, &space, wanted, plan.at.to));
            Err(ends.map_or(Refusal::Never, |ends| Refusal::Late { by: wanted.by, ends }))
        }
    })
}

/// The cheapest plan that is in time, or else the one that ends first.
fn best(now: WallTime, space: &Space<'_>, wanted: &Job) -> Option<Plan> {
    let counts = wanted.speed_ppm.keys().copied().filter(|count| *count <= space.nodes());
    let plans = counts.flat_map(|count| {
        let nodes = horizons(now, wanted, count).map(|until| space.emptiest(wanted, count, until));
        nodes.into_iter().filter_map(|nodes| space.lay(wanted, nodes))
    });
    // What is late is not better for being cheap.
    plans.min_by_key(|plan| {
        let is_late = plan.at.to > wanted.by;
        (is_late, if is_late { 0 } else { cost(wanted, plan.nodes.len() as u32) }, plan.at.to)
    })
}

/// A deadline that can be kept, from `ends` on, when a plan for an earlier one ends. Which nodes are looked at follows from
/// the deadline, so that whoever asks for that one may be told a later one, as often as other nodes come to be looked at.
fn possible(now: WallTime, space: &Space<'_>, wanted: &Job, mut ends: WallTime) -> WallTime {
    for _ in 0..OFFERS_MOST {
        match best(now, space, &Job { by: ends, ..wanted.clone() }) {
            Some(plan) if plan.at.to > ends => ends = plan.at.to,
            _ => break,
        }
    }
    ends
}

/// Until when a node should be free for a job: until it could be done, and until it must be.
fn horizons(now: WallTime, job: &Job, count: u32) -> [u64; 2] {
    let alone = job.takes(count, Share::ONE.ppm()).unwrap_or(Nanos::new(u64::MAX));
    let done = now.max(job.from).saturating_add(alone);
    [done, job.by.max(done)].map(WallTime::unix_nanos)
}

/// Time of all nodes together that it uses, whatever its rate.
fn cost(job: &Job, count: u32) -> u128 {
    let alone = job.takes(count, Share::ONE.ppm()).unwrap_or(Nanos::new(u64::MAX));
    u128::from(alone.get()) * u128::from(count)
}

impl Refusal {
    /// The earliest deadline that was found to be possible.
    pub fn earliest(&self) -> Option<WallTime> {
        match self {
            Self::Never => None,
            Self::Late { ends, .. } | Self::NotAtOnce { ends } => Some(*ends),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("the jobs that are promised leave nothing for it, ever"),
            Self::Late { by, ends } => {
                let late = ends.saturating_since(*by).rounded_up();
                write!(f, "beside the jobs that are promised it would end {late} too late")
            }
            Self::NotAtOnce { .. } => f.write_str("there is no room to begin in now"),
        }
    }
}

/// So often a deadline is moved on that cannot be kept: each time is a whole search, and two or three do.
const OFFERS_MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_as_long_as_was_looked_is_taken_to_last_for_ever() {
        let at = WallTime::from_unix_nanos;
        let seen = |to| {
            let seen = Reserved::seen(NodeIndex(1), [at(10), at(to)], at(60), 450_000);
            assert_eq!((seen.node, seen.from), (NodeIndex(1), at(10)));
            assert_eq!(seen.cpu, CpuPpm::from_percent(45));
            seen.to.unix_nanos()
        };
        assert_eq!([59, 60, 61].map(seen), [59, u64::MAX, u64::MAX]);
    }
}
