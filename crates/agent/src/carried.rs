//! Which processes of a job can carry deadlines no longer: those that had some and left them, and those that have some and
//! are never let run. Pure.
//!
//! The kernel may never let run again who comes back to deadlines (`keeptime_linux::deadline`), and nothing tells from
//! outside of whom that is true. So who has left has none again. An agent that was started later does not know who did, nor
//! what others do to a process: it is seen by its standing still, and set free by leaving once more.

use keeptime_linux::deadline::{Task, carriers};
use keeptime_linux::process::Identity;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;
use std::fmt;

/// The processes of a job that have or had deadlines, as of the last look.
#[derive(Debug, Default)]
pub struct Carried(BTreeMap<Identity, Carrying>);

/// How one of them does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrying {
    /// It has deadlines. It had used so much CPU time when it was last seen to get on, or to have nothing to do.
    Runs { used: Nanos, at: Nanos },
    /// It can carry none.
    Spent(Spent),
}

/// Why a process can carry no deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// Its number.
    pub pid: i32,
    /// Whether it has left them; else they never let it run.
    pub has_left: bool,
}

impl Carried {
    /// The job's processes at the moment `at` of a clock that nobody sets, where it has a slice in every `period`: the first
    /// that would carry deadlines and cannot.
    pub fn look(&mut self, at: Nanos, period: Nanos, tasks: &[Task]) -> Option<Spent> {
        let patience = Nanos::new(period.get().saturating_mul(PERIODS)).max(PATIENCE_MIN);
        let carrying = |task: &Task| {
            let before = self.0.get(&task.identity()).copied();
            Some((task.identity(), carrying(before, task, at, patience)?))
        };
        self.0 = tasks.iter().filter_map(carrying).collect();
        carriers(tasks).into_iter().find_map(|task| match self.0.get(&task.identity()) {
            Some(Carrying::Spent(spent)) => Some(*spent),
            _ => None,
        })
    }
}

/// How a process does that did so `before`; nothing if it never had deadlines, as far as is known.
fn carrying(before: Option<Carrying>, task: &Task, at: Nanos, patience: Nanos) -> Option<Carrying> {
    let spent = |has_left| Some(Carrying::Spent(Spent { pid: task.pid, has_left }));
    match (before, task.has) {
        (None, None) => None,
        (Some(Carrying::Spent(spent)), _) => Some(Carrying::Spent(spent)),
        (Some(_), None) => spent(true),
        (Some(Carrying::Runs { used, at: since }), Some(_))
            if task.is_ready && task.used == used =>
        {
            if at.saturating_sub(since) < patience {
                before
            } else {
                spent(false)
            }
        }
        (_, Some(_)) => Some(Carrying::Runs { used: task.used, at }),
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, has_left } = self;
        match has_left {
            true => write!(
                f,
                "process {pid} has had deadlines before: with new ones the kernel might never let it run again"
            ),
            false => write!(f, "process {pid} is ready to run, and its deadlines never let it"),
        }
    }
}

/// Who is ready to run has a slice in every period, so that this many without one are no chance.
const PERIODS: u64 = 3;
/// A machine that was held up itself is given time.
const PATIENCE_MIN: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_linux::deadline::DeadlineSpec;
    use keeptime_model::units::CpuPpm;
    use proptest::prelude::*;

    const PERIOD: Nanos = Nanos::from_millis(40);
    const LOOK: Nanos = Nanos::from_millis(250);

    fn has() -> Option<DeadlineSpec> {
        Some(DeadlineSpec::of(CpuPpm::from_percent(3), PERIOD).unwrap())
    }

    /// A process without deadlines that is ready to run and has used so many milliseconds.
    fn task(pid: i32, used: u64) -> Task {
        let used = Nanos::from_millis(used);
        Task { pid, start: 1, parent: 1, threads: 1, is_ready: true, has: None, used }
    }

    /// At the `n`th look.
    fn at(n: u64) -> Nanos {
        Nanos::new(LOOK.get() * n)
    }

    #[test]
    fn who_has_left_carries_none_again_while_others_do() {
        let mut carried = Carried::default();
        assert_eq!(carried.look(at(0), PERIOD, &[task(7, 0)]), None);
        let carrying = Task { has: has(), ..task(7, 1) };
        assert_eq!(carried.look(at(1), PERIOD, &[carrying]), None);
        let spent = Some(Spent { pid: 7, has_left: true });
        assert_eq!(carried.look(at(2), PERIOD, &[task(7, 2)]), spent);
        assert_eq!(carried.look(at(3), PERIOD, &[Task { has: has(), ..task(7, 3) }]), spent);
        // It has started another: it is no carrier any more, and still spent when that has ended.
        let child = Task { parent: 7, ..task(8, 0) };
        assert_eq!(carried.look(at(4), PERIOD, &[task(7, 3), child]), None);
        assert_eq!(carried.look(at(5), PERIOD, &[task(7, 3)]), spent);
        // Whoever has its number later is another one.
        assert_eq!(carried.look(at(6), PERIOD, &[Task { start: 2, ..task(7, 0) }]), None);
    }

    #[test]
    fn who_is_ready_and_never_runs_is_found_within_a_second() {
        let mut carried = Carried::default();
        let stands = [Task { has: has(), ..task(7, 5) }];
        let found = (0..100).find(|n| carried.look(at(*n), PERIOD, &stands).is_some());
        assert_eq!(found, Some(4));
        let spent = carried.look(at(5), PERIOD, &stands).unwrap();
        assert_eq!(spent, Spent { pid: 7, has_left: false });
        // Where slices are farther apart, it takes three of them.
        let mut carried = Carried::default();
        let found = (0..100).find(|n| carried.look(at(*n), Nanos::from_secs(2), &stands).is_some());
        assert_eq!(found, Some(24));
    }

    proptest! {
        // Who sleeps at times, or gets on, however slowly, is let go on.
        #[test]
        fn who_gets_on_or_sleeps_is_never_spent(
            looks in prop::collection::vec((0u64..3, any::<bool>(), 1u64..500), 1..200),
        ) {
            let (mut carried, mut now, mut used, mut still) = (Carried::default(), 0, 0, 0);
            for (more, is_ready, millis) in looks {
                now += millis;
                let gets_on = more > 0 || !is_ready;
                still = if gets_on { 0 } else { still + millis };
                if still >= 1_000 {
                    break;
                }
                used += more;
                let task = Task { has: has(), is_ready, ..task(7, used) };
                prop_assert_eq!(carried.look(Nanos::from_millis(now), PERIOD, &[task]), None);
            }
        }
    }
}
