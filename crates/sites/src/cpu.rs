//! How busy nodes are by their own counters, read from them without their taking part (pure but for
//! [`Counters`]). Counters that do not get newer are silent, and silence counts as loaded.

use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::units::{Nanos, Share};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

/// So much of the past counts: several periods of any control group, each of which may have used up its limit at
/// its beginning.
const WINDOW: Nanos = Nanos::from_millis(500);
/// Samples of that time: more often than the controller looks, they are read by nobody.
const SAMPLES_MAX: usize = 32;
/// Counters are read ten times a second: several times in a row nothing came.
pub const SILENT_AFTER: Nanos = Nanos::from_millis(500);

/// What nodes count of themselves, as it is known here.
pub trait Counters: Debug + Send {
    /// The last that is known of each node, however old; nothing if no node says anything. Does not block.
    fn latest(&mut self) -> Option<BTreeMap<Name, NodeCounters>>;
}

/// What is known of one node's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// The part of it that was used lately, whoever for.
    pub used: Share,
    /// Threads that run or wait for it.
    pub runnable: u32,
}

/// Counters of before, so that differences can be told.
#[derive(Debug, Default)]
pub struct CpuMeter(BTreeMap<Name, Counted>);

#[derive(Debug)]
struct Counted {
    /// Newest last, all of one count.
    samples: VecDeque<NodeCounters>,
    /// When the last was seen first.
    newer_at: Nanos,
}

impl CpuMeter {
    /// Takes in what was known at `now`. Nodes that are not in `latest` were not heard of.
    pub fn see(&mut self, now: Nanos, latest: &BTreeMap<Name, NodeCounters>) {
        for (node, counters) in latest {
            let counted = self.0.entry(node.clone()).or_insert_with(|| Counted::begin(now));
            counted.see(now, *counters);
        }
        self.0.retain(|_, counted| counted.is_heard(now));
    }

    /// What is known of `node` at `now`; nothing if it is silent, or was heard of only once.
    pub fn cpu(&self, now: Nanos, node: &Name) -> Option<Cpu> {
        self.0.get(node).filter(|counted| counted.is_heard(now))?.cpu()
    }
}

impl Counted {
    fn begin(now: Nanos) -> Self {
        Self { samples: VecDeque::new(), newer_at: now }
    }

    fn see(&mut self, now: Nanos, next: NodeCounters) {
        if let Some(last) = self.samples.back() {
            if next == *last {
                return;
            }
            if next.busy_since(last).is_none() {
                // It counts anew.
                self.samples.clear();
            }
        }
        self.samples.push_back(next);
        self.newer_at = now;
        // The oldest that is left is at least a window old, if any is.
        let is_over = |counters: &NodeCounters| next.at.saturating_sub(counters.at) >= WINDOW;
        while self.samples.len() > SAMPLES_MAX || self.samples.get(1).is_some_and(is_over) {
            self.samples.pop_front();
        }
    }

    fn is_heard(&self, now: Nanos) -> bool {
        now.saturating_sub(self.newer_at) < SILENT_AFTER
    }

    fn cpu(&self) -> Option<Cpu> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        Some(Cpu { used: last.busy_since(first)?, runnable: last.runnable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::CpuPpm;

    /// One processor that has worked for `used` ms at `at` ms.
    fn counters(at: u64, used: u64) -> NodeCounters {
        let (at, cpu_used) = (Nanos::from_millis(at), Nanos::from_millis(used));
        NodeCounters { at, cpu_used, cpu: CpuPpm::from_percent(100), runnable: 2 }
    }

    fn node() -> Name {
        "n1".parse().unwrap()
    }

    fn see(meter: &mut CpuMeter, now: u64, counters: Option<NodeCounters>) -> Option<u32> {
        let now = Nanos::from_millis(now);
        meter.see(now, &counters.map(|counters| (node(), counters)).into_iter().collect());
        meter.cpu(now, &node()).map(|cpu| cpu.used.ppm() / 10_000)
    }

    #[test]
    fn two_samples_tell_the_part_and_one_does_not() {
        let mut meter = CpuMeter::default();
        assert_eq!(see(&mut meter, 0, Some(counters(70_000, 9_000))), None);
        assert_eq!(see(&mut meter, 100, Some(counters(70_100, 9_025))), Some(25));
        assert_eq!(see(&mut meter, 200, Some(counters(70_200, 9_125))), Some(62));
        let cpu = meter.cpu(Nanos::from_millis(200), &node());
        assert_eq!(cpu.map(|cpu| cpu.runnable), Some(2));
    }

    #[test]
    fn what_is_long_past_does_not_count() {
        let mut meter = CpuMeter::default();
        for look in 0..20 {
            // It works for a second, and then does nothing.
            see(&mut meter, look * 100, Some(counters(look * 100, (look * 100).min(1_000))));
        }
        assert_eq!(see(&mut meter, 2_000, Some(counters(2_000, 1_000))), Some(0));
    }

    /// A limit of a tenth in periods of 100 ms, all of it used at the beginning of each.
    #[test]
    fn a_group_that_is_at_its_limit_is_never_seen_idle() {
        for offset in 0..100 {
            let mut meter = CpuMeter::default();
            for look in 0..20 {
                let at = offset + look * 93;
                let used = at / 100 * 10 + (at % 100).min(10);
                let cpu = CpuPpm::from_percent(10);
                let busy = see(&mut meter, at, Some(NodeCounters { cpu, ..counters(at, used) }));
                assert!(
                    look < 6 || busy.is_some_and(|busy| busy >= 80),
                    "{offset} {look} {busy:?}"
                );
            }
        }
    }

    #[test]
    fn counters_that_do_not_get_newer_are_silent_and_speak_again() {
        let mut meter = CpuMeter::default();
        see(&mut meter, 0, Some(counters(0, 0)));
        let last = counters(100, 0);
        assert_eq!(see(&mut meter, 100, Some(last)), Some(0));
        assert_eq!(see(&mut meter, 550, Some(last)), Some(0), "not for long");
        assert_eq!(see(&mut meter, 600, Some(last)), None, "its publisher is stopped");
        assert_eq!(see(&mut meter, 5_000, Some(last)), None, "for ever");
        assert_eq!(see(&mut meter, 5_100, Some(counters(5_100, 5_000))), Some(100));
    }

    #[test]
    fn a_node_that_is_not_heard_of_is_silent() {
        let mut meter = CpuMeter::default();
        see(&mut meter, 0, Some(counters(0, 0)));
        see(&mut meter, 100, Some(counters(100, 0)));
        assert_eq!(see(&mut meter, 400, None), Some(0));
        assert_eq!(see(&mut meter, 600, None), None);
        assert!(meter.0.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn a_node_that_starts_anew_is_counted_anew() {
        let mut meter = CpuMeter::default();
        see(&mut meter, 0, Some(counters(90_000, 50_000)));
        assert_eq!(see(&mut meter, 100, Some(counters(300, 100))), None, "another clock");
        assert_eq!(see(&mut meter, 200, Some(counters(400, 150))), Some(50));
        assert_eq!(see(&mut meter, 300, Some(counters(500, 20))), None, "another group");
    }
}
