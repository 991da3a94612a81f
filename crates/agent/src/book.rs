//! Which jobs this node was assigned, and whether one more fits: pure.

use keeptime_model::Invalid;
use keeptime_model::assignment::{Assignment, TrafficClass};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// What a node can give to jobs, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// CPU of all jobs.
    pub cpu: CpuPpm,
    /// Premium bandwidth that may leave the node.
    pub reservable: BitsPerSecond,
}

/// The assignments of a node, by job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Book {
    assignments: BTreeMap<Name, Assignment>,
}

/// Why an assignment is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A field is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Its end has passed already.
    #[error("the assignment of {job} ended before it came")]
    Late {
        /// The job.
        job: Name,
    },
    /// Not enough CPU is left.
    #[error("{job} asks for {asked} CPU and {free} of {capacity} is free")]
    Cpu {
        /// The job.
        job: Name,
        /// What it asks for.
        asked: CpuPpm,
        /// What is left for it.
        free: CpuPpm,
        /// What the node has.
        capacity: CpuPpm,
    },
    /// Not enough bandwidth is left on the way out of the node.
    #[error("{job} asks to send {asked} and {free} of {capacity} is free on this node's link")]
    Bandwidth {
        /// The job.
        job: Name,
        /// The sum of its reserved flows.
        asked: BitsPerSecond,
        /// What is left for it.
        free: BitsPerSecond,
        /// What may be reserved.
        capacity: BitsPerSecond,
    },
    /// No such job.
    #[error("no job {job} is assigned here")]
    Unknown {
        /// The job.
        job: Name,
    },
}

impl Book {
    /// Every assignment, by job.
    pub fn assignments(&self) -> &BTreeMap<Name, Assignment> {
        &self.assignments
    }

    /// The book with `assignment` in it, in place of the same job's former one.
    ///
    /// # Errors
    /// Why it is not taken; `self` is unchanged in any case.
    pub fn with(
        &self,
        assignment: Assignment,
        capacity: Capacity,
        now: WallTime,
    ) -> Result<Self, Refusal> {
        assignment.check()?;
        let job = assignment.job.clone();
        if assignment.until_unix_nanos <= now {
            return Err(Refusal::Late { job });
        }
        let others = || self.assignments.values().filter(|a| a.job != job);
        let used = others().fold(0u64, |sum, a| sum + u64::from(a.cpu_ppm.get()));
        let free = u64::from(capacity.cpu.get()).saturating_sub(used);
        if u64::from(assignment.cpu_ppm.get()) > free {
            let (asked, capacity) = (assignment.cpu_ppm, capacity.cpu);
            return Err(Refusal::Cpu { job, asked, free: CpuPpm::new(free as u32), capacity });
        }
        let used = others().fold(0u128, |sum, a| sum + reserved(a));
        let free = u128::from(capacity.reservable.get()).saturating_sub(used);
        let asked = reserved(&assignment);
        if asked > free {
            let rate = |bits: u128| BitsPerSecond::new(u64::try_from(bits).unwrap_or(u64::MAX));
            let (asked, free, capacity) = (rate(asked), rate(free), capacity.reservable);
            return Err(Refusal::Bandwidth { job, asked, free, capacity });
        }
        let mut book = self.clone();
        book.assignments.insert(job, assignment);
        Ok(book)
    }

    /// The book in which `job` lasts until `until`.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn renewed(&self, job: &Name, until: WallTime) -> Result<Self, Refusal> {
        let mut book = self.clone();
        let found = book.assignments.get_mut(job);
        found.ok_or_else(|| Refusal::Unknown { job: job.clone() })?.until_unix_nanos = until;
        Ok(book)
    }

    /// The book without `job`.
    #[must_use]
    pub fn without(&self, job: &Name) -> Self {
        let mut book = self.clone();
        book.assignments.remove(job);
        book
    }

    /// The jobs whose time is over, the earliest end first.
    pub fn expired(&self, now: WallTime) -> Vec<Name> {
        let mut over: Vec<_> =
            self.assignments.values().filter(|a| a.until_unix_nanos <= now).collect();
        over.sort_by_key(|a| a.until_unix_nanos);
        over.into_iter().map(|a| a.job.clone()).collect()
    }
}

/// Bits per second that an assignment reserves on the node's way out. Low-latency flows share the
/// control class, which is kept apart from what can be reserved.
fn reserved(assignment: &Assignment) -> u128 {
    let premium = assignment.flows.iter().filter(|f| f.class == TrafficClass::Premium);
    premium.map(|f| u128::from(f.bits_per_second.get())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::assignment::AssignedFlow;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const CAPACITY: Capacity =
        Capacity { cpu: CpuPpm::from_percent(40), reservable: BitsPerSecond::from_mbit(190) };

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn assignment(job: &str, percent: u32, mbit: u64, until: u64) -> Assignment {
        let flow = AssignedFlow {
            destination: Ipv4Addr::new(10, 0, 0, 2),
            bits_per_second: BitsPerSecond::from_mbit(mbit),
            burst_bytes: None,
            class: TrafficClass::Premium,
        };
        Assignment {
            job: job.parse().unwrap(),
            cpu_ppm: CpuPpm::from_percent(percent),
            flows: vec![flow],
            until_unix_nanos: at(until),
        }
    }

    #[test]
    fn the_edge_of_capacity_is_taken_and_one_more_is_refused() {
        let book = Book::default().with(assignment("a", 20, 100, 9), CAPACITY, at(1)).unwrap();
        let full = book.with(assignment("b", 20, 90, 9), CAPACITY, at(1)).unwrap();
        assert_eq!(full.assignments().len(), 2);
        let error = book.with(assignment("b", 20, 91, 9), CAPACITY, at(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "b asks to send 91 Mbit/s and 90 Mbit/s of 190 Mbit/s is free on this node's link"
        );
        let error = book.with(assignment("b", 21, 1, 9), CAPACITY, at(1)).unwrap_err();
        assert!(matches!(error, Refusal::Cpu { .. }));
    }

    #[test]
    fn a_job_is_replaced_by_itself() {
        let book = Book::default().with(assignment("a", 40, 190, 9), CAPACITY, at(1)).unwrap();
        let changed = book.with(assignment("a", 30, 150, 9), CAPACITY, at(1)).unwrap();
        assert_eq!(changed.assignments().len(), 1);
    }

    #[test]
    fn time_ends_what_nobody_renews() {
        let book = Book::default().with(assignment("a", 10, 10, 5), CAPACITY, at(1)).unwrap();
        let book = book.with(assignment("b", 10, 10, 4), CAPACITY, at(1)).unwrap();
        assert!(book.expired(at(3)).is_empty());
        let names: Vec<_> = book.expired(at(5)).iter().map(Name::to_string).collect();
        assert_eq!(names, ["b", "a"]);
        let book = book.renewed(&"b".parse().unwrap(), at(8)).unwrap();
        assert_eq!(book.expired(at(5)).len(), 1);
        assert!(book.renewed(&"c".parse().unwrap(), at(8)).is_err());
        assert!(matches!(
            book.with(assignment("d", 1, 1, 2), CAPACITY, at(2)),
            Err(Refusal::Late { .. })
        ));
    }

    proptest! {
        #[test]
        fn capacity_is_never_exceeded(asks in prop::collection::vec((0u8..6, 1u32..30, 1u64..120), 1..40)) {
            let mut book = Book::default();
            for (job, percent, mbit) in asks {
                let wanted = assignment(&format!("j{job}"), percent, mbit, 9);
                if let Ok(next) = book.with(wanted, CAPACITY, at(1)) {
                    book = next;
                }
                let cpu: u32 = book.assignments().values().map(|a| a.cpu_ppm.get()).sum();
                let bits: u128 = book.assignments().values().map(reserved).sum();
                prop_assert!(cpu <= CAPACITY.cpu.get());
                prop_assert!(bits <= u128::from(CAPACITY.reservable.get()));
            }
        }
    }
}
