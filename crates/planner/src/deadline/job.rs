//! What is to be done, and by when.

use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use std::collections::BTreeMap;

/// A job that has not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How long it takes at full speed on the fewest nodes that it can use.
    pub work: Nanos,
    /// How fast it is at full speed on so many nodes, in millionths of the speed on the fewest: the
    /// numbers of nodes that it can use.
    pub speed_ppm: BTreeMap<u32, u32>,
    /// What it uses of each of its nodes at full speed.
    pub cpu_ppm: CpuPpm,
    /// It can start from then on.
    pub from: WallTime,
    /// It is to be done by then.
    pub by: WallTime,
}

impl Job {
    /// A job of `work` on just so many nodes, which can start at once and uses a whole processor of each.
    pub fn new(work: Nanos, nodes: u32, by: WallTime) -> Self {
        Self {
            work,
            speed_ppm: BTreeMap::from([(nodes, Share::ONE.ppm())]),
            cpu_ppm: CpuPpm::from_percent(100),
            from: WallTime::default(),
            by,
        }
    }

    /// Whether it makes sense on a cluster of so many nodes.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(super) fn check(&self, there: usize) -> Result<(), Invalid> {
        if self.work == Nanos::new(0) {
            return Err(Invalid::new("takes", self.work, "more than 0 s"));
        }
        let Some(fewest) = self.speed_ppm.keys().next().filter(|nodes| **nodes > 0) else {
            let expected = "a speed for at least one number of nodes above 0";
            return Err(Invalid::new("speed", "{}", expected));
        };
        if *fewest as usize > there {
            return Err(Invalid::new("nodes", fewest, format!("at most {there}")));
        }
        if let Some((nodes, _)) = self.speed_ppm.iter().find(|(_, speed)| **speed == 0) {
            return Err(Invalid::new(format!("speed.{nodes}"), 0, "more than 0"));
        }
        if self.cpu_ppm == CpuPpm::default() {
            return Err(Invalid::new("cpu", self.cpu_ppm, "more than 0 %"));
        }
        Ok(())
    }

    /// CPU of each of its nodes at `rate`, rounded up.
    pub fn cpu_at(&self, rate: Share) -> CpuPpm {
        let exact = u64::from(rate.ppm()) * u64::from(self.cpu_ppm.get());
        CpuPpm::new(u32::try_from(exact.div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }

    /// How long it takes on so many nodes at `rate`, in millionths, rounded up, since what is promised takes no longer;
    /// nothing if that is for ever, or it cannot use so many.
    pub(super) fn takes(&self, nodes: u32, rate: u32) -> Option<Nanos> {
        let speed = self.speed_ppm.get(&nodes).copied()?;
        let pace = u128::from(rate) * u128::from(speed);
        let work = u128::from(self.work.get()) * FULL;
        (pace > 0).then(|| u64::try_from(work.div_ceil(pace)).ok().map(Nanos::new)).flatten()
    }

    /// The least rate on so many nodes at which all of it is done in `span`, rounded up; nothing if full speed is too
    /// slow, or it cannot use so many.
    pub fn least_rate(&self, nodes: u32, span: Nanos) -> Option<Share> {
        let speed = self.speed_ppm.get(&nodes)?;
        let at_full_speed = u128::from(span.get()) * u128::from(*speed);
        let rate = (u128::from(self.work.get()) * FULL).div_ceil(at_full_speed.max(1));
        Share::try_from(u32::try_from(rate).ok()?).ok()
    }
}

/// A nanosecond at full speed (in millionths) of a speed in millionths.
const FULL: u128 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_rate_does_all_in_time_and_a_little_less_does_not() {
        let speed_ppm = BTreeMap::from([(2, 1_000_000), (4, 1_700_000)]);
        let job = Job { speed_ppm, ..Job::new(Nanos::from_secs(60), 2, WallTime::default()) };
        assert_eq!(job.least_rate(2, Nanos::from_secs(120)).unwrap().to_string(), "50 %");
        for nodes in [2, 4] {
            let span = Nanos::from_secs(77);
            let rate = job.least_rate(nodes, span).unwrap().ppm();
            assert!(job.takes(nodes, rate).unwrap() <= span);
            assert!(job.takes(nodes, rate - 1).unwrap() > span);
        }
        assert_eq!(job.least_rate(2, Nanos::from_secs(59)), None);
        assert_eq!(job.least_rate(4, Nanos::new(0)), None);
        assert_eq!(job.least_rate(3, Nanos::from_secs(600)), None);
        assert_eq!((job.takes(3, 1), job.takes(2, 0)), (None, None));
    }
}
