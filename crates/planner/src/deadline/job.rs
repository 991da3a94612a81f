//! What is asked for.

use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A job as the planner sees it: what it wants, what is left to do, where it runs if it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Which.
    pub name: Name,
    /// By when, or how fast.
    pub wants: Wants,
    /// What is left to do, as time at full speed on the fewest nodes that it can use.
    pub remaining_nanos: Nanos,
    /// How fast it is at full speed on so many nodes, in millionths of the speed on the fewest: the
    /// numbers of nodes that it can use.
    pub speed_ppm: BTreeMap<u32, u32>,
    /// What it uses of each of its nodes at full speed.
    pub cpu_ppm: CpuPpm,
    /// It can start from then on.
    pub from_unix_nanos: WallTime,
    /// Its nodes, once it has started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeIndex>,
}

/// What keeps a job's user content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wants {
    /// All of it done by then, at whatever rates.
    By(WallTime),
    /// That rate from its start to its end.
    Rate(Share),
    /// What the others leave.
    Rest,
}

impl Job {
    /// A job of `work` on just so many nodes, which takes what is left, can start at once, and uses a
    /// whole processor of each node.
    pub fn new(name: Name, work: Nanos, nodes: u32) -> Self {
        Self {
            name,
            wants: Wants::Rest,
            remaining_nanos: work,
            speed_ppm: BTreeMap::from([(nodes, Share::ONE.ppm())]),
            cpu_ppm: CpuPpm::from_percent(100),
            from_unix_nanos: WallTime::default(),
            nodes: Vec::new(),
        }
    }

    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        let invalid = |field: &str, value: &dyn ToString, expected: &str| {
            Err(Invalid::new(field, value.to_string(), expected))
        };
        if self.speed_ppm.is_empty() || self.speed_ppm.contains_key(&0) {
            return invalid("speed", &"{}", "a speed for at least one number of nodes above 0");
        }
        if let Some((nodes, _)) = self.speed_ppm.iter().find(|(_, speed)| **speed == 0) {
            return invalid(&format!("speed.{nodes}"), &0, "more than 0");
        }
        if self.cpu_ppm == CpuPpm::default() {
            return invalid("cpu", &self.cpu_ppm, "more than 0 %");
        }
        if self.is_placed() && self.speed_on(self.nodes.len()) == 0 {
            return invalid("nodes", &self.nodes.len(), "a number of nodes that has a speed");
        }
        if let Some(node) = twice(&self.nodes) {
            return invalid("nodes", &node.0, "each node once");
        }
        match self.wants {
            Wants::Rate(rate) if rate.ppm() == 0 => invalid("rate", &rate, "more than 0 %"),
            _ => Ok(()),
        }
    }

    /// Whether it has started.
    pub fn is_placed(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// CPU of each of its nodes at `rate`, rounded up.
    pub fn cpu_at(&self, rate: Share) -> CpuPpm {
        let exact = u64::from(rate.ppm()) * u64::from(self.cpu_ppm.get());
        CpuPpm::new(u32::try_from(exact.div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }

    /// Takes off what is done in `span` at `rate` on its nodes, rounded down.
    pub fn progress(&mut self, span: Nanos, rate: Share) {
        let speed = self.speed_on(self.nodes.len());
        let done = u128::from(span.get()) * u128::from(rate.ppm()) * u128::from(speed) / FULL;
        let done = Nanos::new(u64::try_from(done).unwrap_or(u64::MAX));
        self.remaining_nanos = self.remaining_nanos.saturating_sub(done);
    }

    /// The least rate on so many nodes at which all that is left is done in `span`, rounded up; nothing if full
    /// speed is too slow, or it cannot use so many.
    pub fn least_rate(&self, nodes: u32, span: Nanos) -> Option<Share> {
        let speed = self.speed_ppm.get(&nodes)?;
        let at_full_speed = u128::from(span.get()) * u128::from(*speed);
        let rate = (u128::from(self.remaining_nanos.get()) * FULL).div_ceil(at_full_speed.max(1));
        Share::try_from(u32::try_from(rate).ok()?).ok()
    }

    /// The greatest rate at which it is to run.
    pub(super) fn rate_most(&self) -> Share {
        match self.wants {
            Wants::Rate(rate) => rate,
            _ => Share::ONE,
        }
    }

    /// Whether it could run on just these nodes.
    pub(super) fn can_use(&self, nodes: &[NodeIndex]) -> bool {
        self.speed_on(nodes.len()) > 0 && twice(nodes).is_none()
    }

    /// Its speed on so many nodes; zero if it cannot use them.
    pub(super) fn speed_on(&self, nodes: usize) -> u32 {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.speed_ppm.get(&nodes).copied().unwrap_or(0)
    }
}

/// The first node that is among those before it.
fn twice(nodes: &[NodeIndex]) -> Option<NodeIndex> {
    let mut before = BTreeSet::new();
    nodes.iter().copied().find(|node| !before.insert(*node))
}

/// A nanosecond at full speed (in millionths) of a speed in millionths.
pub(super) const FULL: u128 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_rate_does_all_and_a_little_less_does_not() {
        let speed_ppm = BTreeMap::from([(2, 1_000_000), (4, 1_700_000)]);
        let job = Job { speed_ppm, ..Job::new("a".parse().unwrap(), Nanos::from_secs(60), 2) };
        assert_eq!(job.least_rate(2, Nanos::from_secs(120)).unwrap().to_string(), "50 %");
        for nodes in [2, 4] {
            let rate = job.least_rate(nodes, Nanos::from_secs(77)).unwrap();
            let left = |ppm: u32| {
                let nodes = (0..nodes).map(NodeIndex).collect();
                let mut job = Job { nodes, ..job.clone() };
                job.progress(Nanos::from_secs(77), Share::try_from(ppm).unwrap());
                job.remaining_nanos
            };
            assert_eq!(left(rate.ppm()), Nanos::new(0));
            assert!(left(rate.ppm() - 1) > Nanos::new(0));
        }
        assert_eq!(job.least_rate(2, Nanos::from_secs(59)), None);
        assert_eq!(job.least_rate(4, Nanos::new(0)), None);
        assert_eq!(job.least_rate(3, Nanos::from_secs(600)), None);
    }
}
