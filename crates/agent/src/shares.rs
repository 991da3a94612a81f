//! What keeps a job's share, and what every group of a node is limited to, so that those with a promise have it:
//! pure.

use keeptime_control::schedule::Schedule;
use keeptime_linux::cgroup::CPU_PERIOD;
use keeptime_linux::disk::DiskLimits;
use keeptime_model::assignment::{Assignment, CpuMechanism};
use keeptime_model::capability::Capabilities;
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{BytesPerSecond, CpuPpm, Nanos};
use std::collections::BTreeMap;

/// The disk limits of a node's groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskShares {
    /// Of each job.
    pub jobs: BTreeMap<Name, DiskLimits>,
    /// Of what belongs to no job.
    pub rest: DiskLimits,
}

impl DiskShares {
    /// Whether no group is limited.
    pub fn limit_nobody(&self) -> bool {
        self.rest.is_empty() && self.jobs.values().all(DiskLimits::is_empty)
    }
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

/// What each of so many may have of the CPU that is left by those who have a share: none of them was promised any.
pub fn part_of_rest(left: CpuPpm, sharers: usize) -> CpuPpm {
    let sharers = u32::try_from(sharers.max(1)).unwrap_or(u32::MAX);
    CpuPpm::new(left.get() / sharers).max(FLOOR)
}

/// What is to keep a job's share on a node where this was found: the first that its processes can have.
pub fn mechanisms(assignment: &Assignment, found: &Capabilities) -> Vec<CpuMechanism> {
    use CpuMechanism::{Auto, Bandwidth, Deadline, UserLevel};
    let order: &[CpuMechanism] = match assignment.cpu_mechanism {
        Deadline => &[Deadline, Bandwidth, UserLevel],
        UserLevel => &[UserLevel, Bandwidth],
        // A share without a period has no deadlines.
        Auto if assignment.cpu_period_nanos.is_some() => &[Deadline, Bandwidth, UserLevel],
        _ => &[Bandwidth, UserLevel],
    };
    order.iter().copied().filter(|mechanism| found.keeps_by(*mechanism)).collect()
}

/// Whether something is there that keeps a job's share where its processes carry no deadlines.
pub fn is_kept_without_deadlines(assignment: &Assignment, found: &Capabilities) -> bool {
    mechanisms(assignment, found).iter().any(|mechanism| *mechanism != CpuMechanism::Deadline)
}

/// Whether a job has its share by bandwidth instead while its deadlines lie idle: one whose user asked for them keeps them.
pub fn leaves_idle_deadlines(assignment: &Assignment, found: &Capabilities) -> bool {
    assignment.cpu_mechanism == CpuMechanism::Auto && found.keeps_by(CpuMechanism::Bandwidth)
}

/// Whether shares are kept from user space wherever a job's processes do not carry deadlines: then what they are
/// promised has to fit on processors one by one.
pub fn are_kept_from_user_space(found: &Capabilities) -> bool {
    found.keeps_by(CpuMechanism::UserLevel) && !found.keeps_by(CpuMechanism::Bandwidth)
}

/// How often a job has its slice.
pub fn period_of(assignment: &Assignment) -> Nanos {
    assignment.cpu_period_nanos.unwrap_or(CPU_PERIOD)
}

/// The limit, and in which periods, of the group of a job that has `cpu` and whose processes are scheduled from user
/// space, each as `part`: it bounds those that are not, and never comes before the others have had their slices, in
/// whichever part of its period that is.
pub fn limit_beside_schedules(cpu: CpuPpm, part: Schedule) -> (CpuPpm, Nanos) {
    let (slice, period) = (part.slice().get(), part.period().get().max(1));
    let window = period.saturating_mul(WINDOW_PERIODS).min(WINDOW_MAX.get());
    // At the worst it begins with a slice at the very end of its period, and all others come at the beginning.
    let after = window.saturating_sub(slice);
    let most = slice.saturating_mul(after / period + 1).saturating_add(slice.min(after % period));
    let most = u128::from(cpu.get()) * u128::from(most) * 1_000_000;
    let most = most.div_ceil(u128::from(part.cpu().get().max(1)) * u128::from(window));
    let most = CpuPpm::new(u32::try_from(most).unwrap_or(u32::MAX));
    let least = cpu.checked_add(launchers_share(cpu)).unwrap_or(cpu);
    (most.max(least), Nanos::new(window))
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
/// In ten periods one slice more is what launchers have.
const WINDOW_PERIODS: u64 = 10;
/// The kernel's longest period of a limit.
const WINDOW_MAX: Nanos = Nanos::from_secs(1);
/// Disk of those who have none reserved: enough to start a program.
const DISK_FLOOR: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::capability::{Answer, Capability, Feature};
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

    fn having(features: &[Feature]) -> Capabilities {
        let capability = |feature: &Feature| Capability {
            feature: *feature,
            answer: Answer::Yes,
            tried: String::new(),
        };
        Capabilities(features.iter().map(capability).collect())
    }

    // What serves goes first as it was asked, or where nothing was: deadlines for who states a period; schedules
    // from user space where nothing of the kernel's is there, or left.
    #[test]
    fn a_share_is_kept_by_what_is_asked_for_and_there() {
        use CpuMechanism::{Auto, Bandwidth, Deadline, UserLevel};
        use Feature::{CpuBandwidthV1, CpuBandwidthV2, CpuDeadline, CpuUserLevel};
        let all = having(&[CpuBandwidthV1, CpuDeadline, CpuUserLevel]);
        let no_cpu_controller = having(&[CpuDeadline, CpuUserLevel]);
        let nothing_of_the_kernels = having(&[CpuUserLevel]);
        let only_groups = having(&[CpuBandwidthV2]);
        let cases: [(CpuMechanism, bool, &Capabilities, &[CpuMechanism]); 12] = [
            (Auto, false, &all, &[Bandwidth, UserLevel]),
            (Auto, true, &all, &[Deadline, Bandwidth, UserLevel]),
            (Auto, false, &no_cpu_controller, &[UserLevel]),
            (Auto, true, &no_cpu_controller, &[Deadline, UserLevel]),
            (Auto, true, &nothing_of_the_kernels, &[UserLevel]),
            (Auto, true, &only_groups, &[Bandwidth]),
            (Deadline, false, &all, &[Deadline, Bandwidth, UserLevel]),
            (Bandwidth, true, &all, &[Bandwidth, UserLevel]),
            (Bandwidth, true, &no_cpu_controller, &[UserLevel]),
            (UserLevel, false, &all, &[UserLevel, Bandwidth]),
            (UserLevel, true, &no_cpu_controller, &[UserLevel]),
            (UserLevel, true, &only_groups, &[Bandwidth]),
        ];
        for (cpu_mechanism, has_period, found, expected) in cases {
            let cpu_period_nanos = has_period.then_some(Nanos::from_millis(20));
            let (_, job) = job("a", None);
            let asked = Assignment { cpu_mechanism, cpu_period_nanos, ..job };
            assert_eq!(mechanisms(&asked, found), expected, "{cpu_mechanism} {has_period}");
        }
        let by = |cpu_mechanism| Assignment { cpu_mechanism, ..job("a", None).1 };
        assert!(leaves_idle_deadlines(&by(Auto), &all));
        assert!(!leaves_idle_deadlines(&by(Deadline), &all));
        // Nothing else would keep it better.
        assert!(!leaves_idle_deadlines(&by(Auto), &no_cpu_controller));
        assert!(is_kept_without_deadlines(&by(Deadline), &no_cpu_controller));
        assert!(!is_kept_without_deadlines(&by(Deadline), &having(&[CpuDeadline])));
        assert!(are_kept_from_user_space(&no_cpu_controller) && !are_kept_from_user_space(&all));
        assert!(!are_kept_from_user_space(&only_groups));
    }

    // What is not scheduled has a tenth of the share beside, as launchers have; in long periods, of which the kernel's
    // longest has few, it can have more.
    #[test]
    fn a_group_is_limited_beside_its_schedules() {
        let limit = |percent, part, millis| {
            let part = Schedule::new(CpuPpm::from_percent(part), Nanos::from_millis(millis));
            limit_beside_schedules(CpuPpm::from_percent(percent), part)
        };
        let tenth = (CpuPpm::from_percent(22), Nanos::from_millis(500));
        assert_eq!((limit(20, 20, 50), limit(20, 5, 50)), (tenth, tenth));
        assert_eq!(limit(20, 20, 1_000), (CpuPpm::from_percent(40), Nanos::from_secs(1)));
        // A slice of a millisecond in ten seconds, and a floor.
        let part = Schedule::new(CpuPpm::new(100), Nanos::from_secs(10));
        let (limit, window) = limit_beside_schedules(CpuPpm::new(100), part);
        assert_eq!((limit, window), (CpuPpm::new(10_100), Nanos::from_secs(1)));
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
    fn who_has_no_share_of_the_cpu_has_a_part_of_what_is_left() {
        let part = |left, sharers| part_of_rest(CpuPpm::from_percent(left), sharers);
        assert_eq!([part(90, 0), part(90, 1)], [CpuPpm::from_percent(90); 2]);
        assert_eq!(part(90, 3), CpuPpm::from_percent(30));
        assert_eq!([part(0, 1), part(90, 300)], [FLOOR; 2]);
    }

    #[test]
    fn a_disk_without_promises_has_no_limits() {
        let capacity = BTreeMap::from([(disk(), writing(100))]);
        let jobs = BTreeMap::from([job("a", None)]);
        let shares = disk_shares(&jobs, &capacity);
        assert!(shares.rest.is_empty() && shares.jobs.values().all(BTreeMap::is_empty));
    }

    proptest! {
        // Slices that come at any time within their periods, as in the worst case one at the very end of its own and
        // the others at the beginnings of theirs, are never more in a period of the limit than that leaves.
        #[test]
        fn the_limit_beside_schedules_is_in_no_slices_way(
            ppm in 10_000u32..980_000, micros in 1_000u64..1_000_000, begins in 0.0f64..1.0)
        {
            let (cpu, period) = (CpuPpm::new(ppm), Nanos::new(micros * 1_000));
            let (limit, window) = limit_beside_schedules(cpu, Schedule::new(cpu, period));
            prop_assert!(window >= period && window <= Nanos::from_secs(1));
            let slice = cpu.time_in_floor(period).get();
            // The first period ends so much after the limit's begins; its slice is had before that.
            let first = (begins * period.get() as f64) as u64;
            let mut used = first.min(slice);
            let mut at = first;
            while at < window.get() {
                used += slice.min(window.get() - at);
                at += period.get();
            }
            prop_assert!(used <= limit.time_in_floor(window).get() + 1, "{used} of {limit} in {window}");
            prop_assert!(limit >= cpu.checked_add(FLOOR).unwrap());
            prop_assert!(limit.get() <= 3 * ppm + 1);
        }

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
