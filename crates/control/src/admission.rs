//! Whether a node can give what was promised: the utilisation bound of earliest-deadline-first, and
//! what each mechanism takes at all.
//!
//! Tasks whose slices add up to no more than the processors all have them in every period if the one
//! whose period ends first goes first (Liu and Layland, for one processor). What bounds the sum here:
//!
//! * **`SCHED_DEADLINE`**: the kernel promises 95 % of each processor and keeps 5 % for ordinary tasks:
//!   90 % are left. It schedules tasks on all processors together, where the same sum bounds how late a
//!   slice can be, not that it never is. The sum is taken in the kernel's own fixed point.
//! * **bandwidth of control groups**: a limit, no promise; nothing but the processors bounds it.
//! * **user-level EDF**: each task stays on one processor, so tasks must fit in there one by one; the
//!   scheduler itself takes 2 % (VSched: "over 98 % of the CPU").

use crate::schedule::Schedule;
use keeptime_model::units::{CpuPpm, Nanos};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What one mechanism on one node admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// How many processors there are.
    pub processors: u32,
    /// How much of each may be promised.
    pub each_ppm: CpuPpm,
    /// What one task can have at most.
    pub task_most_ppm: CpuPpm,
    /// The shortest slice.
    pub slice_least_nanos: Nanos,
    /// The shortest and the longest period.
    pub periods_nanos: [Nanos; 2],
    /// Where tasks run.
    pub placement: Placement,
}

/// Where the tasks of a node run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On any processor, moved at any time.
    Global,
    /// Each on one processor.
    Partitioned,
}

/// Why tasks are not admitted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// All together are too much.
    #[error("the node has {free} left, and {wanted} was asked for")]
    Full {
        /// What is left.
        free: CpuPpm,
        /// What was asked for.
        wanted: CpuPpm,
    },
    /// There is enough in all, but not on any one processor.
    #[error("no processor has {wanted} left for one task; the most that one has is {free}")]
    Scattered {
        /// What the emptiest processor has.
        free: CpuPpm,
        /// What the task asks for.
        wanted: CpuPpm,
    },
    /// One task asks for more than a task can have.
    #[error("one task can have at most {most}, and {wanted} was asked for")]
    TooLarge {
        /// The bound.
        most: CpuPpm,
        /// What was asked for.
        wanted: CpuPpm,
    },
    /// A slice that is shorter than the mechanism keeps.
    #[error("a slice of {slice} is too short; the least is {least}")]
    SliceTooShort {
        /// The bound.
        least: Nanos,
        /// What was asked for.
        slice: Nanos,
    },
    /// A period that the mechanism does not keep.
    #[error("a period of {period} cannot be kept; {} to {} can", .periods[0], .periods[1])]
    Period {
        /// The bounds.
        periods: [Nanos; 2],
        /// What was asked for.
        period: Nanos,
    },
}

impl Bounds {
    /// `SCHED_DEADLINE` on a node with so many processors: 95 % (`sched_rt_runtime_us`) less the 5 %
    /// that each processor's fair server holds; slices from 1,024 ns, periods from 100 us to 2^22 us.
    pub const fn sched_deadline(processors: u32) -> Self {
        Self {
            processors,
            each_ppm: CpuPpm::from_percent(90),
            task_most_ppm: CpuPpm::from_percent(100),
            slice_least_nanos: Nanos::new(1_024),
            periods_nanos: [Nanos::new(100_000), Nanos::new((1 << 22) * 1_000)],
            placement: Placement::Global,
        }
    }

    /// CPU bandwidth of control groups: a quota of at least 1 ms, periods of 1 ms to 1 s; a group
    /// has as many processors as it likes.
    pub const fn bandwidth(processors: u32) -> Self {
        Self {
            processors,
            each_ppm: CpuPpm::from_percent(100),
            task_most_ppm: CpuPpm::new(u32::MAX),
            slice_least_nanos: Nanos::from_millis(1),
            periods_nanos: [Nanos::from_millis(1), Nanos::from_secs(1)],
            placement: Placement::Global,
        }
    }

    /// A scheduler in user space that stops and continues processes: it wakes some tens of
    /// microseconds late, so slices under a millisecond would be mostly lateness.
    pub const fn user_level(processors: u32) -> Self {
        Self {
            processors,
            each_ppm: CpuPpm::from_percent(98),
            task_most_ppm: CpuPpm::from_percent(98),
            slice_least_nanos: Nanos::from_millis(1),
            periods_nanos: [Nanos::from_millis(2), Nanos::from_secs(86_400)],
            placement: Placement::Partitioned,
        }
    }

    /// What each of `processes` has that share `cpu` in equal parts: at most what one task can have, and in
    /// longer periods where its slice would be too short.
    pub fn part(&self, cpu: CpuPpm, period: Nanos, processes: usize) -> Schedule {
        let each = equal_part(cpu, processes).min(self.task_most_ppm);
        // A part of nothing is no slice in any period: that is refused.
        let slice = self.slice_least_nanos.get().saturating_mul(1_000_000);
        let period_least = Nanos::new(slice.div_ceil(u64::from(each.get()).max(1)));
        Schedule::new(each, period.max(self.periods_nanos[0]).max(period_least))
    }

    /// Whether each of `processes` that share `cpu` in equal parts can have all of its part.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] where [`Self::part`] is less.
    pub fn check_part(&self, cpu: CpuPpm, processes: usize) -> Result<(), Refusal> {
        let (most, wanted) = (self.task_most_ppm, equal_part(cpu, processes));
        if wanted > most { Err(Refusal::TooLarge { most, wanted }) } else { Ok(()) }
    }

    /// All that may be promised.
    pub fn capacity(&self) -> CpuPpm {
        CpuPpm::new(self.each_ppm.get().saturating_mul(self.processors))
    }

    /// Whether `wanted` fits beside `running`; how much is left then.
    ///
    /// # Errors
    /// The first bound that is not kept. With it the answer is the same whoever asks first: it depends
    /// on which tasks there are, not on their order.
    pub fn admit(&self, running: &[Schedule], wanted: &[Schedule]) -> Result<CpuPpm, Refusal> {
        for task in wanted {
            self.check(*task)?;
        }
        let (free, asked) = (self.left(running), sum(wanted));
        let kernel_free = self.kernel_capacity().saturating_sub(self.kernel_sum(running));
        let left = free
            .checked_sub(asked)
            .filter(|_| self.kernel_sum(wanted) <= kernel_free)
            // Where the kernel alone has too little, that is what is told.
            .ok_or_else(|| Refusal::Full {
                free: free.min(of_kernel(kernel_free)),
                wanted: asked,
            })?;
        match self.placement {
            Placement::Global => Ok(left),
            Placement::Partitioned => {
                let all: Vec<_> = running.iter().chain(wanted).copied().collect();
                self.partition(&all).map(|_| left)
            }
        }
    }

    /// What may still be promised beside `running`.
    pub fn left(&self, running: &[Schedule]) -> CpuPpm {
        self.capacity().checked_sub(sum(running)).unwrap_or_default()
    }

    /// A processor for each task: the largest first, each where most is left. What fits at all is nearly
    /// always found so; the search for the rest would not be worth it.
    ///
    /// # Errors
    /// The first task for which no processor has enough left.
    pub fn partition(&self, tasks: &[Schedule]) -> Result<Vec<u32>, Refusal> {
        let mut left = vec![self.each_ppm; self.processors as usize];
        let mut order: Vec<_> = (0..tasks.len()).collect();
        // By position where equal: the same tasks stay where they are.
        order.sort_by_key(|at| (std::cmp::Reverse(tasks[*at].cpu()), *at));
        let mut places = vec![0; tasks.len()];
        for at in order {
            let wanted = tasks[at].cpu();
            let emptiest = (0..left.len()).max_by_key(|cpu| (left[*cpu], std::cmp::Reverse(*cpu)));
            let free = emptiest.map_or(CpuPpm::default(), |cpu| left[cpu]);
            let rest = free.checked_sub(wanted).ok_or(Refusal::Scattered { free, wanted })?;
            if let Some(cpu) = emptiest {
                left[cpu] = rest;
                places[at] = cpu as u32;
            }
        }
        Ok(places)
    }

    fn check(&self, task: Schedule) -> Result<(), Refusal> {
        if task.cpu() > self.task_most_ppm {
            return Err(Refusal::TooLarge { most: self.task_most_ppm, wanted: task.cpu() });
        }
        let [least, most] = self.periods_nanos;
        if !(least..=most).contains(&task.period()) {
            return Err(Refusal::Period { periods: self.periods_nanos, period: task.period() });
        }
        if task.slice() < self.slice_least_nanos {
            return Err(Refusal::SliceTooShort {
                least: self.slice_least_nanos,
                slice: task.slice(),
            });
        }
        Ok(())
    }

    /// As the kernel adds up (`to_ratio()` in kernel/sched/core.c): 20 bits after the point, each task
    /// rounded down.
    fn kernel_sum(&self, tasks: &[Schedule]) -> u64 {
        let ratio = |task: &Schedule| {
            let ratio =
                (u128::from(task.slice().get()) << 20) / u128::from(task.period().get().max(1));
            u64::try_from(ratio).unwrap_or(u64::MAX)
        };
        tasks.iter().map(ratio).fold(0, u64::saturating_add)
    }

    fn kernel_capacity(&self) -> u64 {
        (u64::from(self.each_ppm.get()) << 20) / 1_000_000 * u64::from(self.processors)
    }
}

fn equal_part(cpu: CpuPpm, processes: usize) -> CpuPpm {
    CpuPpm::new(cpu.get() / u32::try_from(processes.max(1)).unwrap_or(u32::MAX))
}

/// What has this ratio in the kernel, rounded down.
fn of_kernel(ratio: u64) -> CpuPpm {
    let ppm = (u128::from(ratio) * 1_000_000) >> 20;
    CpuPpm::new(u32::try_from(ppm).unwrap_or(u32::MAX))
}

fn sum(tasks: &[Schedule]) -> CpuPpm {
    let sum: u64 = tasks.iter().map(|task| u64::from(task.cpu().get())).sum();
    CpuPpm::new(u32::try_from(sum).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task(percent: u32, period_millis: u64) -> Schedule {
        Schedule::new(CpuPpm::from_percent(percent), Nanos::from_millis(period_millis))
    }

    #[test]
    fn two_processors_promise_what_the_kernel_was_seen_to_promise() {
        let bounds = Bounds::sched_deadline(2);
        assert_eq!(bounds.admit(&[], &[task(90, 100), task(90, 100)]), Ok(CpuPpm::new(0)));
        let refusal = bounds.admit(&[task(90, 100), task(80, 20)], &[task(11, 50)]).unwrap_err();
        assert_eq!(refusal.to_string(), "the node has 10 % left, and 11 % was asked for");
    }

    // Three times 943,718 of 2^20 are promised; 270 % in two whole processors and a part are one more than that.
    #[test]
    fn what_the_kernel_does_not_have_when_it_adds_up_is_not_promised() {
        let bounds = Bounds::sched_deadline(3);
        assert_eq!(bounds.admit(&[task(90, 9); 2], &[task(90, 9)]), Ok(CpuPpm::new(0)));
        let refusal = bounds.admit(&[task(100, 9); 2], &[task(70, 9)]).unwrap_err();
        assert_eq!(refusal.to_string(), "the node has 69.9998 % left, and 70 % was asked for");
    }

    #[test]
    fn what_a_mechanism_does_not_keep_is_told() {
        let bounds = Bounds::sched_deadline(1);
        let refusal = |cpu, nanos| {
            let task = Schedule::new(CpuPpm::new(cpu), Nanos::new(nanos));
            bounds.admit(&[], &[task]).unwrap_err().to_string()
        };
        assert!(refusal(1_000_001, 1_000_000).contains("at most 100 %"));
        assert!(
            refusal(500_000, 99_999).contains("100 us to 4.194304 s"),
            "{}",
            refusal(500_000, 99_999)
        );
        assert!(refusal(10_000, 100_000).contains("slice of 1 us"), "{}", refusal(10_000, 100_000));
        assert!(Bounds::bandwidth(1).admit(&[], &[task(5, 10)]).is_err(), "a quota of 0.5 ms");
        assert_eq!(Bounds::bandwidth(2).admit(&[], &[task(200, 10)]), Ok(CpuPpm::new(0)));
    }

    #[test]
    fn tasks_that_stay_on_a_processor_must_fit_one_by_one() {
        let bounds = Bounds::user_level(2);
        let running = [task(60, 100), task(60, 100)];
        let refusal = bounds.admit(&running, &[task(60, 100)]).unwrap_err();
        assert!(
            matches!(refusal, Refusal::Scattered { free, .. } if free == CpuPpm::from_percent(38))
        );
        assert_eq!(bounds.admit(&running, &[task(38, 100), task(38, 50)]), Ok(CpuPpm::new(0)));
        assert_eq!(bounds.partition(&[task(30, 9), task(60, 9), task(50, 9)]), Ok(vec![1, 0, 1]));
    }

    #[test]
    fn a_part_is_what_its_mechanism_takes() {
        let bounds = Bounds::user_level(2);
        let part = |percent, millis, processes| {
            bounds.part(CpuPpm::from_percent(percent), Nanos::from_millis(millis), processes)
        };
        assert_eq!(part(40, 50, 1), task(40, 50));
        assert_eq!(part(40, 50, 2), task(20, 50));
        // On one processor, however many threads it has.
        assert_eq!(part(150, 50, 1), task(98, 50));
        // A slice of a millisecond.
        assert_eq!(part(1, 10, 1), task(1, 100));
        assert_eq!(part(90, 1, 1), task(90, 2));
        let nothing = bounds.part(CpuPpm::new(1), Nanos::from_millis(10), 2);
        assert!(matches!(bounds.admit(&[], &[nothing]), Err(Refusal::SliceTooShort { .. })));
    }

    #[test]
    fn a_part_that_is_cut_is_told() {
        let bounds = Bounds::user_level(8);
        let check =
            |percent, processes| bounds.check_part(CpuPpm::from_percent(percent), processes);
        assert_eq!([check(98, 1), check(400, 5), check(784, 8)], [const { Ok(()) }; 3]);
        let told = |percent, processes| check(percent, processes).unwrap_err().to_string();
        assert_eq!(told(400, 1), "one task can have at most 98 %, and 400 % was asked for");
        assert_eq!(told(400, 4), "one task can have at most 98 %, and 100 % was asked for");
    }

    /// Earliest deadline first on one processor in steps of 1 us, all tasks starting together:
    /// whether every slice came before its period ended, over the first `spans` microseconds.
    fn simulated(tasks: &[(u64, u64)], span: u64) -> bool {
        let mut left: Vec<u64> = tasks.iter().map(|_| 0).collect();
        for now in 0..span {
            for (at, (slice, period)) in tasks.iter().enumerate() {
                if now % period == 0 {
                    if left[at] > 0 {
                        return false;
                    }
                    left[at] = *slice;
                }
            }
            let ends = |at: &usize| (now / tasks[*at].1 + 1) * tasks[*at].1;
            if let Some(at) = (0..tasks.len()).filter(|at| left[*at] > 0).min_by_key(ends) {
                left[at] -= 1;
            }
        }
        true
    }

    proptest! {
        // What is admitted to one processor has its slices in time; the bound is tight.
        #[test]
        fn admitted_tasks_have_their_slices(tasks in prop::collection::vec((1u64..40, 1usize..5), 1..6)) {
            let periods = [20u64, 30, 40, 60, 120];
            let bounds = Bounds { each_ppm: CpuPpm::from_percent(100), slice_least_nanos: Nanos::new(1),
                periods_nanos: [Nanos::new(1), Nanos::from_secs(1)], ..Bounds::sched_deadline(1) };
            let tasks: Vec<_> = tasks.iter().map(|(slice, at)| ((*slice).min(periods[*at]), periods[*at])).collect();
            let schedules: Vec<_> = tasks.iter().map(|(slice, period)| {
                // Rounded up, so that the slice is what the task needs.
                let cpu = CpuPpm::new((slice * 1_000_000).div_ceil(*period) as u32);
                Schedule::new(cpu, Nanos::new(period * 1_000))
            }).collect();
            match bounds.admit(&[], &schedules) {
                Ok(_) => prop_assert!(simulated(&tasks, 240)),
                Err(_) => {
                    let utilisation: f64 = tasks.iter().map(|(s, p)| *s as f64 / *p as f64).sum();
                    prop_assert!(utilisation > 0.9999, "{}", utilisation);
                }
            }
        }

        // Whatever is asked, a part can be kept by itself, and all parts together are no more than that.
        #[test]
        fn parts_can_be_kept_and_are_no_more_than_the_whole(
            percent in 1u32..400, micros in 1u64..2_000_000, processes in 1usize..100)
        {
            let (bounds, cpu) = (Bounds::user_level(4), CpuPpm::from_percent(percent));
            let part = bounds.part(cpu, Nanos::new(micros * 1_000), processes);
            prop_assert!(bounds.admit(&[], &[part]).is_ok(), "{:?}", part);
            prop_assert!(u64::from(part.cpu().get()) * processes as u64 <= u64::from(cpu.get()));
            prop_assert!(part.period() >= Nanos::new(micros * 1_000));
        }

        #[test]
        fn a_partition_never_exceeds_a_processor(percents in prop::collection::vec(1u32..98, 0..12), processors in 1u32..6) {
            let bounds = Bounds::user_level(processors);
            let tasks: Vec<_> = percents.iter().map(|percent| task(*percent, 100)).collect();
            if let Ok(places) = bounds.partition(&tasks) {
                for processor in 0..processors {
                    let on: u32 = places.iter().zip(&percents).filter(|(p, _)| **p == processor).map(|(_, c)| c).sum();
                    prop_assert!(on <= 98);
                }
            }
        }
    }
}
