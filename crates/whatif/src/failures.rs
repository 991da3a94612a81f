//! When nodes fail and are back: each node by itself, at random, drawn as time goes.
//!
//! A node works for a time from an exponential distribution, is away for the time of a repair, and works
//! again. Who runs where changes nothing of that: under every policy the same nodes fail at the same times.

use keeptime_control::plant::Random;
use keeptime_model::Invalid;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use std::collections::{BTreeSet, VecDeque};

/// How often a node fails, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reliability {
    between: Nanos,
    repair: Nanos,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It does not work any more.
    Failed(NodeIndex),
    /// It works again.
    Repaired(NodeIndex),
}

/// Which nodes work, and what happens to them next. Memory is that of the nodes, however long it goes on.
#[derive(Debug, Clone)]
pub struct Failures {
    reliability: Reliability,
    random: Random,
    /// By when it fails.
    working: BTreeSet<(Nanos, NodeIndex)>,
    /// By when it is back. All are away equally long: who failed first is back first.
    away: VecDeque<(Nanos, NodeIndex)>,
}

impl Reliability {
    /// A node works for `between` in the mean, and is away for `repair` then.
    ///
    /// # Errors
    /// If a time is shorter or longer than makes sense.
    pub fn new(between: Nanos, repair: Nanos) -> Result<Self, Invalid> {
        if between < BETWEEN_LEAST {
            return Err(Invalid::new("failures", between, format!("{BETWEEN_LEAST} or more")));
        }
        if !(REPAIR_LEAST..=REPAIR_MOST).contains(&repair) {
            let expected = format!("{REPAIR_LEAST} to {REPAIR_MOST}");
            return Err(Invalid::new("repair", repair, expected));
        }
        Ok(Self { between, repair })
    }
}

impl Failures {
    /// So many nodes, all of which work at 0. The same seed gives the same failures.
    pub fn new(nodes: u32, reliability: Reliability, seed: u64) -> Self {
        let (working, away) = (BTreeSet::new(), VecDeque::new());
        let random = Random::new(seed ^ FAILURES);
        let mut failures = Self { reliability, random, working, away };
        for node in (0..nodes).map(NodeIndex) {
            failures.work_from(Nanos::new(0), node);
        }
        failures
    }

    /// How long a node is away.
    pub fn repair(&self) -> Nanos {
        self.reliability.repair
    }

    /// When something happens next; nothing if there are no nodes.
    pub fn next(&self) -> Option<Nanos> {
        let fails = self.working.first().map(|(at, _)| *at);
        let back = self.away.front().map(|(at, _)| *at);
        fails.into_iter().chain(back).min()
    }

    /// What has happened by `now`, which is never before what was said last, in its order. Each change
    /// costs O(log nodes).
    pub fn pass(&mut self, now: Nanos) -> Vec<Change> {
        std::iter::from_fn(|| self.change(now)).collect()
    }

    /// What happens next, if it does by `now`. Of two at the same instant, who is back comes first.
    fn change(&mut self, now: Nanos) -> Option<Change> {
        let next = self.next().filter(|next| *next <= now)?;
        if let Some((back, node)) = self.away.front().copied()
            && back == next
        {
            self.away.pop_front();
            self.work_from(back, node);
            return Some(Change::Repaired(node));
        }
        let (failed, node) = self.working.pop_first()?;
        self.away.push_back((failed.saturating_add(self.reliability.repair), node));
        Some(Change::Failed(node))
    }

    fn work_from(&mut self, since: Nanos, node: NodeIndex) {
        let mean = self.reliability.between.get() as f64;
        // Longer than can be counted is for ever.
        let lasts = Nanos::new((self.random.exponential() * mean) as u64);
        self.working.insert((since.saturating_add(lasts), node));
    }
}

/// Some ten nodes of the largest cluster fail every second then: whoever has that needs no simulation.
const BETWEEN_LEAST: Nanos = Nanos::from_secs(3_600);
const REPAIR_LEAST: Nanos = Nanos::from_secs(1);
/// A node that is away for longer is none of the cluster's.
const REPAIR_MOST: Nanos = Nanos::from_secs(366 * 86_400);
/// Draws of their own: jobs are otherwise the same as without failures.
const FAILURES: u64 = 0x4641_494c_5552_4553;

#[cfg(test)]
impl Failures {
    /// These nodes fail at these seconds, each once, and nothing else happens.
    pub(crate) fn scripted(script: &[(u64, u32)], repair: Nanos) -> Self {
        let between = Nanos::new(u64::MAX);
        let mut failures = Self::new(0, Reliability { between, repair }, 0);
        let planned = script.iter().map(|(at, node)| (Nanos::from_secs(*at), NodeIndex(*node)));
        failures.working = planned.collect();
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const HOUR: u64 = 3_600;

    fn hours(hours: u64) -> Nanos {
        Nanos::from_secs(hours * HOUR)
    }

    /// All that happens to 50 nodes in 2,000 hours, where nodes work for 10 and are away for one.
    fn changes(seed: u64) -> Vec<(Nanos, Change)> {
        let mut failures = Failures::new(50, Reliability::new(hours(10), hours(1)).unwrap(), seed);
        let mut all = Vec::new();
        while let Some(now) = failures.next().filter(|at| *at <= hours(2_000)) {
            all.extend(failures.pass(now).into_iter().map(|change| (now, change)));
        }
        all
    }

    #[test]
    fn one_seed_has_the_same_failures_and_another_one_others() {
        assert_eq!(changes(1), changes(1));
        assert_ne!(changes(1), changes(2));
    }

    // Goal: nodes fail as often as is said: 50 nodes, 2,000 hours, one failure in 11 hours of each.
    #[test]
    fn nodes_fail_as_often_as_is_said_and_are_away_for_a_repair() {
        let mut away = BTreeMap::new();
        let mut count = 0u32;
        for (now, change) in changes(3) {
            match change {
                Change::Failed(node) => {
                    count += 1;
                    assert_eq!(away.insert(node, now), None, "{node:?} had failed already");
                }
                Change::Repaired(node) => {
                    let failed = away.remove(&node).expect("it was away");
                    assert_eq!(now.saturating_sub(failed), hours(1));
                }
            }
        }
        let expected = 50.0 * 2_000.0 / 11.0;
        assert!((f64::from(count) / expected - 1.0).abs() < 0.05, "{count}, not {expected}");
    }

    // Goal: who looks seldom is told the same as who looks at every change.
    #[test]
    fn what_has_happened_is_told_in_its_order_however_seldom_it_is_asked() {
        let mut failures = Failures::new(50, Reliability::new(hours(10), hours(1)).unwrap(), 4);
        let seldom: Vec<_> = (0..=20).flat_map(|at| failures.pass(hours(100 * at))).collect();
        let often: Vec<_> = changes(4).into_iter().map(|(_, change)| change).collect();
        assert_eq!(seldom, often);
    }

    #[test]
    fn times_that_make_no_sense_are_named() {
        let field = |between, repair| {
            Reliability::new(Nanos::from_secs(between), Nanos::from_secs(repair)).unwrap_err().field
        };
        assert_eq!(field(3_599, 60), "failures");
        assert_eq!(field(3_600, 0), "repair");
        assert_eq!(field(3_600, 367 * 86_400), "repair");
    }
}
