//! What every group of a node is limited to, so that those with a promise have it: pure.

use keeptime_linux::disk::DiskLimits;
use keeptime_model::assignment::{Assignment, CpuMechanism};
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{BytesPerSecond, CpuPpm};
use std::collections::BTreeMap;

/// The disk limits of a node's groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskShares {
    /// Of each job.
    pub jobs: BTreeMap<Name, DiskLimits>,
    /// Of what belongs to no job.
    pub rest: DiskLimits,
}

/// A job that has a rate of a disk is limited to it. Who has none shares what is left, in equal
/// parts, since nothing else keeps a disk free for those who have. A disk of which nobody has a
/// rate is not limited.
pub fn disk_shares(
    jobs: &BTreeMap<Name, Assignment>,
    capacity: &BTreeMap<DiskId, DiskRates>,
) -> DiskShares {
    let limits = |job: &Assignment| (job.job.clone(), job.disks.clone());
    let mut shares =
        DiskShares { jobs: jobs.values().map(limits).collect(), rest: DiskLimits::new() };
    for (disk, rates) in capacity {
        for direction in DiskDirection::ALL {
            let Some(whole) = rates.of(direction) else { continue };
            let rate = |job: &Assignment| job.disks.get(disk).and_then(|rates| rates.of(direction));
            let promised: Vec<u64> =
                jobs.values().filter_map(rate).map(BytesPerSecond::get).collect();
            if promised.is_empty() {
                continue;
            }
            let left = whole.get().saturating_sub(promised.iter().sum());
            // Those without, and what belongs to no job.
            let sharers = (jobs.len() - promised.len() + 1) as u64;
            let part = Some(BytesPerSecond::new((left / sharers).max(DISK_FLOOR)));
            let limit = |limits: &mut DiskLimits| {
                let rates = limits.entry(*disk).or_default();
                *rates = rates.with(direction, part);
            };
            for (job, limits) in &mut shares.jobs {
                if jobs.get(job).and_then(rate).is_none() {
                    limit(limits);
                }
            }
            limit(&mut shares.rest);
        }
    }
    shares
}

/// Whether a job's processes are to have `SCHED_DEADLINE`, where the node has it.
pub fn wants_deadline(assignment: &Assignment) -> bool {
    match assignment.cpu_mechanism {
        CpuMechanism::Deadline => true,
        // A share without a period has no deadlines.
        CpuMechanism::Auto => assignment.cpu_period_nanos.is_some(),
        _ => false,
    }
}

/// What those processes of a job have together that carry no schedule while others do: launchers,
/// and processes that started since the last look. Besides the job's share: it is taken from what
/// belongs to no job.
pub fn launchers_share(cpu: CpuPpm) -> CpuPpm {
    CpuPpm::new(cpu.get() / LAUNCHERS_PART).max(FLOOR)
}

/// CPU of those who have none reserved, however much others have.
pub const FLOOR: CpuPpm = CpuPpm::from_percent(1);
/// A tenth lets a rank start in the quarter of a second before it is found.
const LAUNCHERS_PART: u32 = 10;
/// Disk of those who have none reserved: enough to start a program.
const DISK_FLOOR: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::WallTime;
    use proptest::prelude::*;

    const WRITE: DiskDirection = DiskDirection::Write;

    fn job(name: &str, write: Option<u64>) -> (Name, Assignment) {
        let until = WallTime::from_unix_nanos(9);
        let mut job = Assignment::new(name.parse().unwrap(), FLOOR, until);
        if let Some(mega_bytes) = write {
            job.disks.insert(disk(), writing(mega_bytes));
        }
        (job.job.clone(), job)
    }

    fn writing(mega_bytes: u64) -> DiskRates {
        DiskRates::default().with(WRITE, Some(BytesPerSecond::from_mega_bytes(mega_bytes)))
    }

    fn disk() -> DiskId {
        "8:0".parse().unwrap()
    }

    fn written(limits: &DiskLimits) -> Option<u64> {
        Some(limits.get(&disk())?.of(WRITE)?.get() / 1_000_000)
    }

    #[test]
    fn who_has_no_rate_shares_what_is_left() {
        let capacity = BTreeMap::from([(disk(), writing(100))]);
        let jobs = BTreeMap::from([job("a", Some(40)), job("b", None), job("c", Some(20))]);
        let shares = disk_shares(&jobs, &capacity);
        let of = |name: &str| written(&shares.jobs[&name.parse().unwrap()]);
        assert_eq!((of("a"), of("b"), of("c")), (Some(40), Some(20), Some(20)));
        assert_eq!(written(&shares.rest), Some(20));
        // Reading was promised to nobody.
        assert_eq!(shares.rest[&disk()].of(DiskDirection::Read), None);
    }

    #[test]
    fn a_disk_without_promises_has_no_limits() {
        let capacity = BTreeMap::from([(disk(), writing(100))]);
        let jobs = BTreeMap::from([job("a", None)]);
        let shares = disk_shares(&jobs, &capacity);
        assert!(shares.rest.is_empty() && shares.jobs.values().all(BTreeMap::is_empty));
    }

    proptest! {
        // All limits together are what the disk has, but for the floors.
        #[test]
        fn all_together_have_no_more_than_the_disk(rates in prop::collection::vec(prop::option::of(1u64..30), 1..8)) {
            let capacity = BTreeMap::from([(disk(), writing(100))]);
            let mut left = 100;
            let jobs: BTreeMap<_, _> = rates.iter().enumerate().map(|(at, rate)| {
                let rate = rate.filter(|rate| *rate <= left);
                left -= rate.unwrap_or(0);
                job(&format!("j{at}"), rate)
            }).collect();
            let shares = disk_shares(&jobs, &capacity);
            if jobs.values().any(|job| !job.disks.is_empty()) {
                let all = shares.jobs.values().chain([&shares.rest]);
                let bytes: u64 = all.map(|limits| limits[&disk()].of(WRITE).unwrap().get()).sum();
                prop_assert!(bytes <= 100_000_000 + (jobs.len() as u64 + 1) * DISK_FLOOR);
            }
        }
    }
}
