//! Whether the scheduler in user space can give what a node was promised: the utilisation bound of
//! earliest-deadline-first, and what that scheduler takes at all.
//!
//! Each task stays on one processor. Tasks whose slices add up to no more than the processor all have
//! them in every period if the one whose period ends first goes first (Liu and Layland). So tasks must
//! fit in there one by one; the scheduler itself takes 2 % (VSched: "over 98 % of the CPU").
//!
//! The kernel's own mechanisms are not asked here: `SCHED_DEADLINE` answers by itself how much it would
//! still promise, and the bandwidth of a control group is a limit, no promise.

use crate::schedule::Schedule;
use keeptime_model::units::{CpuPpm, Nanos};
use thiserror::Error;

/// What the scheduler of one node admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// A slice that is shorter than the scheduler keeps.
    #[error("a slice of {slice} is too short; the least is {least}")]
    SliceTooShort {
        /// The bound.
        least: Nanos,
        /// What was asked for.
        slice: Nanos,
    },
    /// A period that the scheduler does not keep.
    #[error("a period of {period} cannot be kept; {} to {} can", .periods[0], .periods[1])]
    Period {
        /// The bounds.
        periods: [Nanos; 2],
        /// What was asked for.
        period: Nanos,
    },
}

impl Bounds {
    /// A scheduler in user space that stops and continues processes: it wakes some tens of
    /// microseconds late, so slices under a millisecond would be mostly lateness.
    pub const fn user_level(processors: u32) -> Self {
        Self {
            processors,
            each_ppm: CpuPpm::from_percent(98),
            task_most_ppm: CpuPpm::from_percent(98),
            slice_least_nanos: Nanos::from_millis(1),
            periods_nanos: [Nanos::from_millis(2), Nanos::from_secs(86_400)],
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
        let (free, wanted_cpu) = (self.left(running), sum(wanted));
        let full = Refusal::Full { free, wanted: wanted_cpu };
        let left = free.checked_sub(wanted_cpu).ok_or(full)?;
        let all: Vec<_> = running.iter().chain(wanted).copied().collect();
        self.partition(&all).map(|_| left)
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
}

fn equal_part(cpu: CpuPpm, processes: usize) -> CpuPpm {
    CpuPpm::new(cpu.get() / u32::try_from(processes.max(1)).unwrap_or(u32::MAX))
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
    fn a_node_promises_what_it_has_left() {
        let bounds = Bounds::user_level(2);
        assert_eq!(bounds.admit(&[], &[task(98, 100), task(98, 100)]), Ok(CpuPpm::new(0)));
        assert_eq!(bounds.admit(&[task(90, 100)], &[task(80, 20)]), Ok(CpuPpm::from_percent(26)));
        let refusal = bounds.admit(&[task(90, 100), task(80, 20)], &[task(27, 50)]).unwrap_err();
        assert_eq!(refusal.to_string(), "the node has 26 % left, and 27 % was asked for");
    }

    #[test]
    fn what_the_scheduler_does_not_keep_is_told() {
        let bounds = Bounds::user_level(2);
        let refusal = |percent, period_nanos| {
            let task = Schedule::new(CpuPpm::from_percent(percent), Nanos::new(period_nanos));
            bounds.admit(&[], &[task]).unwrap_err().to_string()
        };
        assert!(refusal(99, 2_000_000).contains("at most 98 %"));
        assert!(refusal(90, 1_999_999).contains("2 ms to 86400 s"), "{}", refusal(90, 1_999_999));
        assert!(refusal(10, 5_000_000).contains("slice of 500 us"), "{}", refusal(10, 5_000_000));
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
    fn a_part_is_what_the_scheduler_takes() {
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
            let all = CpuPpm::from_percent(100);
            let bounds = Bounds { processors: 1, each_ppm: all, task_most_ppm: all,
                slice_least_nanos: Nanos::new(1), periods_nanos: [Nanos::new(1), Nanos::from_secs(1)] };
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
