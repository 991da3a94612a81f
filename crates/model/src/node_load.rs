//! What a node's kernel counts of the work that the node does, whoever it is done for.

use crate::units::{CpuPpm, Nanos, Share};
use serde::{Deserialize, Serialize};

/// Counts of one moment. Two of them tell how busy the node was between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeCounters {
    /// When: by a clock of the node that nobody sets.
    #[serde(rename = "at_nanos")]
    pub at: Nanos,
    /// CPU time that was used until then, since any moment.
    #[serde(rename = "cpu_used_nanos")]
    pub cpu_used: Nanos,
    /// The CPU that the node has: all processors of its machine, or its part of one.
    #[serde(rename = "cpu_ppm")]
    pub cpu: CpuPpm,
    /// Threads that run or wait for a processor, of all the machine.
    pub runnable: u32,
}

impl NodeCounters {
    /// The part of its CPU that the node used since `earlier`. Nothing if that is no later moment of the same
    /// counters: the node may have started anew.
    ///
    /// ```
    /// use keeptime_model::node_load::NodeCounters;
    /// use keeptime_model::units::{CpuPpm, Nanos, Share};
    ///
    /// let count = |at, cpu_used| NodeCounters {
    ///     at: Nanos::from_millis(at),
    ///     cpu_used: Nanos::from_millis(cpu_used),
    ///     cpu: CpuPpm::from_percent(200),
    ///     runnable: 1,
    /// };
    /// assert_eq!(count(300, 1_100).busy_since(&count(100, 1_000)), Share::from_percent(25));
    /// assert_eq!(count(100, 1_000).busy_since(&count(300, 1_100)), None);
    /// ```
    pub fn busy_since(&self, earlier: &Self) -> Option<Share> {
        let span = self.at.get().checked_sub(earlier.at.get())?;
        let used = self.cpu_used.get().checked_sub(earlier.cpu_used.get())?;
        let had = u128::from(span) * u128::from(self.cpu.get());
        // Both in millionths of a nanosecond of one processor, so the quotient in parts per million of all.
        let ppm = (u128::from(used) * 1_000_000 * 1_000_000).checked_div(had)?;
        let ppm = u32::try_from(ppm).unwrap_or(u32::MAX).min(Share::ONE.ppm());
        Share::try_from(ppm).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(at: u64, used: u64, percent: u32) -> NodeCounters {
        let (at, cpu_used) = (Nanos::from_millis(at), Nanos::from_millis(used));
        NodeCounters { at, cpu_used, cpu: CpuPpm::from_percent(percent), runnable: 0 }
    }

    #[test]
    fn the_part_is_of_what_the_node_has_and_never_more_than_all() {
        let busy = |used, percent| count(1_200, used, percent).busy_since(&count(200, 50, percent));
        assert_eq!(busy(50, 100), Share::from_percent(0));
        assert_eq!(busy(150, 10), Some(Share::ONE));
        assert_eq!(busy(100, 10), Share::from_percent(50));
        // A group's limit holds over a period, which need not end when it is looked.
        assert_eq!(busy(190, 10), Some(Share::ONE));
    }

    #[test]
    fn what_tells_nothing_is_not_guessed() {
        let first = count(500, 500, 100);
        assert_eq!(first.busy_since(&first), None, "no time has passed");
        assert_eq!(count(600, 400, 100).busy_since(&first), None, "counted anew");
        assert_eq!(count(400, 600, 100).busy_since(&first), None, "an earlier moment");
        assert_eq!(count(600, 600, 0).busy_since(&first), None, "it has no CPU");
    }

    #[test]
    fn the_greatest_numbers_are_no_trouble() {
        let last = NodeCounters {
            at: Nanos::new(u64::MAX),
            cpu_used: Nanos::new(u64::MAX),
            cpu: CpuPpm::new(1),
            runnable: u32::MAX,
        };
        assert_eq!(last.busy_since(&count(0, 0, 100)), Some(Share::ONE));
    }
}
