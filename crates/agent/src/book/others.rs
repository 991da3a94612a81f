//! What the jobs beside one use together: a sweep over their beginnings and ends.

use super::Book;
use crate::shares::period_of;
use keeptime_control::admission::{Bounds, Refusal};
use keeptime_control::schedule::Schedule;
use keeptime_model::assignment::Assignment;
use keeptime_model::name::Name;
use keeptime_model::units::{CpuPpm, WallTime};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// The jobs beside one, in a window of time: spans in which they ask for the same.
pub(super) struct Others<'a> {
    parts: Vec<Cow<'a, Assignment>>,
    /// Both turns of each part, in order.
    turns: Vec<(WallTime, Turn)>,
}

/// What happens at an instant to the part at a position. Who ends makes room for who begins then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Ends(usize),
    Begins(usize),
}

impl<'a> Others<'a> {
    /// O(n log n) for n jobs, in any order.
    pub fn in_window(book: &'a Book, job: &Name, window: Range<WallTime>) -> Self {
        // One that was ended before it began is there at no instant.
        let overlaps = |a: &Cow<'_, Assignment>| {
            let from = a.from_unix_nanos.max(window.start);
            from < window.end.min(a.until_unix_nanos)
        };
        let others = book.assignments.values().filter(|a| a.job != *job);
        let parts: Vec<_> = others.flat_map(Assignment::parts).filter(overlaps).collect();
        let of_part = |(at, part): (usize, &Cow<'_, Assignment>)| {
            let begins = part.from_unix_nanos.max(window.start);
            [(begins, Turn::Begins(at)), (part.until_unix_nanos, Turn::Ends(at))]
        };
        let mut turns: Vec<_> = parts.iter().enumerate().flat_map(of_part).collect();
        turns.sort_unstable();
        Self { parts, turns }
    }

    /// The most that they use together at any instant: O(n), and `amount` is asked once for each part.
    pub fn peak(&self, amount: impl Fn(&Assignment) -> u128) -> u128 {
        let amounts: Vec<_> = self.parts.iter().map(|part| amount(part)).collect();
        let (mut used, mut most) = (0, 0);
        for (_, turn) in &self.turns {
            match turn {
                Turn::Ends(at) => used -= amounts[*at],
                Turn::Begins(at) => used += amounts[*at],
            }
            most = most.max(used);
        }
        most
    }

    /// Whether the schedules of `assignment` are admitted beside theirs at every instant: O(n k log k) where at most k
    /// tasks are there at once. Which processor a task has depends on all that are there, so each instant is looked at.
    pub fn admit_beside(&self, assignment: &Assignment, bounds: &Bounds) -> Result<(), Refusal> {
        let asked = schedules(assignment, bounds);
        bounds.admit(&[], &asked)?;
        let mut there = BTreeMap::new();
        for instant in self.turns.chunk_by(|one, next| one.0 == next.0) {
            for (_, turn) in instant {
                match turn {
                    Turn::Ends(at) => there.remove(at),
                    Turn::Begins(at) => there.insert(at, schedules(&self.parts[*at], bounds)),
                };
            }
            // With nobody new there are fewer than a moment ago.
            if matches!(instant.last(), Some((_, Turn::Begins(_)))) {
                let running: Vec<_> = there.values().flatten().copied().collect();
                bounds.admit(&running, &asked)?;
            }
        }
        Ok(())
    }
}

/// A job's processes, as far as it can be known before they are there: the fewest that can use its share. Who has none has
/// no schedules.
fn schedules(assignment: &Assignment, bounds: &Bounds) -> Vec<Schedule> {
    let (cpu, most) = (assignment.cpu_ppm, bounds.task_most_ppm);
    if cpu == CpuPpm::default() {
        return Vec::new();
    }
    let processes = cpu.get().div_ceil(most.get().max(1)).max(1) as usize;
    vec![bounds.part(cpu, period_of(assignment), processes); processes]
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::assignment::LaterCpu;
    use proptest::prelude::*;
    use std::cell::Cell;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn cpu(assignment: &Assignment) -> u128 {
        u128::from(assignment.cpu_ppm.get())
    }

    /// The share `ppm` from a second until another.
    fn job(from: u64, until: u64, ppm: u32) -> Assignment {
        let name = "some".parse().unwrap();
        Assignment {
            from_unix_nanos: at(from),
            ..Assignment::new(name, CpuPpm::new(ppm), at(until))
        }
    }

    fn with_more(job: Assignment, turn: u64, ppm: u32) -> Assignment {
        let cpu_ppm = CpuPpm::new(job.cpu_ppm.get() + ppm);
        Assignment { later: Some(LaterCpu { from_unix_nanos: at(turn), cpu_ppm }), ..job }
    }

    fn book(jobs: impl IntoIterator<Item = Assignment>) -> Book {
        let named = |(number, job): (usize, Assignment)| {
            let name: Name = format!("j{number}").parse().unwrap();
            (name.clone(), Assignment { job: name, ..job })
        };
        Book { assignments: jobs.into_iter().enumerate().map(named).collect() }
    }

    // Goal: the cost of a request grows with the number of jobs, not with its square. Method: count the looks at what a job
    // has, among jobs of which any two are there at once.
    #[test]
    fn each_of_many_jobs_is_looked_at_once() {
        let book = book((0..1_000).map(|number| job(number, 2_000, 1)));
        let others = Others::in_window(&book, &"j0".parse().unwrap(), at(0)..at(3_000));
        let looks = Cell::new(0);
        let most = others.peak(|assignment| {
            looks.set(looks.get() + 1);
            cpu(assignment)
        });
        assert_eq!((most, looks.get()), (999, 999));
    }

    // A renewal may end a job before it begins, or before it has more.
    #[test]
    fn what_ends_before_it_begins_is_never_there() {
        let book = book([job(7, 3, 10), with_more(job(2, 4, 10), 6, 10)]);
        let most = |from, until| {
            Others::in_window(&book, &"other".parse().unwrap(), at(from)..at(until)).peak(cpu)
        };
        assert_eq!([most(0, 9), most(4, 9), most(6, 7)], [10, 10, 0]);
    }

    // On one processor, of which 98 % can be promised.
    #[test]
    fn schedules_are_those_of_who_is_there_at_once() {
        let book = book([job(0, 9, 600_000), job(9, 20, 700_000), job(15, 20, 80_000)]);
        let admitted = |from, until, ppm| {
            let others = Others::in_window(&book, &"other".parse().unwrap(), at(from)..at(until));
            others.admit_beside(&job(from, until, ppm), &Bounds::user_level(1)).is_ok()
        };
        assert!(admitted(0, 15, 280_000) && !admitted(0, 15, 280_001));
        assert!(admitted(0, 20, 200_000) && !admitted(0, 16, 200_001));
    }

    proptest! {
        // The most is what is found by a look at every instant.
        #[test]
        fn the_most_is_that_of_all_instants(
            jobs in prop::collection::vec(
                (0u64..20, 0u64..24, 1u32..100, prop::option::of((0u64..24, 1u32..50))), 0..12),
            from in 0u64..20, length in 1u64..10,
        ) {
            let book = book(jobs.into_iter().map(|(from, until, ppm, later)| {
                let job = job(from, until, ppm);
                later.map_or(job.clone(), |(turn, ppm)| with_more(job, turn, ppm))
            }));
            let job: Name = "j0".parse().unwrap();
            let others = Others::in_window(&book, &job, at(from)..at(from + length));
            let used_at = |second| {
                let others = book.assignments.values().filter(|a| a.job != job);
                let parts = others.flat_map(Assignment::parts).filter(|a| a.is_due(at(second)));
                parts.map(|a| cpu(&a)).sum::<u128>()
            };
            let most = (from..from + length).map(used_at).max().unwrap_or_default();
            prop_assert_eq!(others.peak(cpu), most);
        }
    }
}
