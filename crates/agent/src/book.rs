//! Which jobs this node was assigned, and whether one more fits: pure.

mod others;
mod refusal;

pub use refusal::Refusal;

use keeptime_control::admission::Bounds;
use keeptime_model::assignment::{Assignment, LaterCpu, TrafficClass};
use keeptime_model::capability::Capabilities;
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use others::Others;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a node can give to jobs, all together, at every instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// CPU of all jobs.
    pub cpu: CpuPpm,
    /// Premium bandwidth that may leave the node.
    pub reservable: BitsPerSecond,
    /// How fast its disks can be used, by disk.
    pub disks: BTreeMap<DiskId, DiskRates>,
    /// What its kernel can enforce; nothing = it is configured to enforce nothing, and tells so.
    pub capabilities: Option<Capabilities>,
    /// What schedules have to fit in one by one, where shares are kept from user space; nothing = the sum is all.
    pub schedules: Option<Bounds>,
}

/// The assignments of a node, by job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Book {
    assignments: BTreeMap<Name, Assignment>,
}

/// What has come, for good: a clock that is set back takes nothing away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Come {
    /// The jobs that have begun, and when they were to.
    pub begun: BTreeMap<Name, WallTime>,
    /// Those that have more CPU by now than when they began.
    pub more: BTreeMap<Name, LaterCpu>,
}

impl Come {
    /// `assignment` as it is when it has more CPU, if it has had that, and would not by the time that it is `now`.
    fn with_more(&self, assignment: &Assignment, now: WallTime) -> Option<Assignment> {
        let later =
            assignment.later.filter(|later| self.more.get(&assignment.job) == Some(later))?;
        let is_ahead = assignment.is_due(now) && now < later.from_unix_nanos;
        is_ahead.then(|| assignment.at(later.from_unix_nanos).into_owned())
    }
}

impl Book {
    /// Every assignment, by job.
    pub fn assignments(&self) -> &BTreeMap<Name, Assignment> {
        &self.assignments
    }

    /// Those that are to be enforced at `now`.
    pub fn due(&self, now: WallTime) -> BTreeMap<Name, Assignment> {
        let due = self.assignments.iter().filter(|(_, assignment)| assignment.is_due(now));
        due.map(|(job, assignment)| (job.clone(), assignment.clone())).collect()
    }

    /// What is to be enforced at `now`, as it is then: what is due, and beside it what has `come` already, by a clock that was
    /// set back since. Where both do not fit, what is due goes first. O(n) for n jobs; only what is ahead of a clock that
    /// was set back is admitted anew, each as in [`Self::with`].
    pub fn wanted(
        &self,
        come: &Come,
        capacity: &Capacity,
        now: WallTime,
    ) -> BTreeMap<Name, Assignment> {
        // For a moment in which nothing begins or ends: it is looked at again.
        let moment = now..now.saturating_add(Nanos::new(1));
        let mut there = Self { assignments: self.due(now) };
        // What was put off since it began has not begun.
        let is_early = |a: &&Assignment| {
            let has_begun = come.begun.get(&a.job).is_some_and(|begun| a.from_unix_nanos <= *begun);
            has_begun && now < a.from_unix_nanos && now < a.until_unix_nanos
        };
        let early = self.assignments.values().filter(is_early);
        let early = early.map(|a| Assignment { from_unix_nanos: now, ..a.clone() });
        let with_more = self.assignments.values().filter_map(|a| come.with_more(a, now));
        for ahead in early.chain(with_more) {
            if there.admit(&ahead, moment.clone(), capacity).is_ok() {
                there.assignments.insert(ahead.job.clone(), ahead);
            }
        }
        let there = there.assignments.into_iter();
        let begins = |job: &Name| self.assignments[job].from_unix_nanos;
        let at_now = |(job, a): (Name, Assignment)| {
            let from_unix_nanos = begins(&job);
            (job, Assignment { from_unix_nanos, ..a.at(now).into_owned() })
        };
        there.map(at_now).collect()
    }

    /// What of this book has come where `wanted` of it is enforced.
    pub fn come(&self, wanted: &BTreeMap<Name, Assignment>) -> Come {
        let begun = wanted.values().map(|a| (a.job.clone(), a.from_unix_nanos)).collect();
        let has_more = wanted.values().filter(|a| a.later.is_none());
        let more = has_more.filter_map(|a| {
            let later = self.assignments.get(&a.job)?.later?;
            Some((a.job.clone(), later))
        });
        Come { begun, more: more.collect() }
    }

    /// The book with `assignment` in it, in place of the same job's former one. At every instant of
    /// its window, all that is assigned then fits. O(n log n) for n jobs; more where schedules have to fit in one by one,
    /// which is looked at for each instant at which a job begins.
    ///
    /// # Errors
    /// Why it is not taken; `self` is unchanged in any case.
    pub fn with(
        &self,
        assignment: Assignment,
        capacity: &Capacity,
        now: WallTime,
    ) -> Result<Self, Refusal> {
        assignment.check()?;
        let job = assignment.job.clone();
        if assignment.until_unix_nanos <= now {
            return Err(Refusal::Late { job });
        }
        let capabilities = capacity.capabilities.as_ref();
        if let Some(unmet) = capabilities.and_then(|found| found.unmet(&assignment)) {
            return Err(Refusal::Unenforceable { job, unmet });
        }
        let from = assignment.from_unix_nanos.max(now);
        self.admit(&assignment, from..assignment.until_unix_nanos, capacity)?;
        let mut book = self.clone();
        book.assignments.insert(job, assignment);
        Ok(book)
    }

    /// The book in which `job` lasts until `until`.
    ///
    /// # Errors
    /// If there is no such job, or what it has is promised to another from some time before `until`
    /// on.
    pub fn renewed(
        &self,
        job: &Name,
        until: WallTime,
        capacity: &Capacity,
        now: WallTime,
    ) -> Result<Self, Refusal> {
        let mut book = self.clone();
        let found = book.assignments.get_mut(job);
        let found = found.ok_or_else(|| Refusal::Unknown { job: job.clone() })?;
        // What was admitted stays admitted: only the time that is added is looked at.
        let former = std::mem::replace(&mut found.until_unix_nanos, until);
        self.admit(found, former.max(now)..until, capacity)?;
        Ok(book)
    }

    /// Whether `assignment` fits at every instant of `window` beside the other jobs: O(n log n) for n of them, and O(n)
    /// more for each resource that it asks for.
    fn admit(
        &self,
        assignment: &Assignment,
        window: Range<WallTime>,
        capacity: &Capacity,
    ) -> Result<(), Refusal> {
        assignment.parts().try_for_each(|part| {
            let from = window.start.max(part.from_unix_nanos);
            self.admit_part(&part, from..window.end.min(part.until_unix_nanos), capacity)
        })
    }

    fn admit_part(
        &self,
        assignment: &Assignment,
        window: Range<WallTime>,
        capacity: &Capacity,
    ) -> Result<(), Refusal> {
        if window.is_empty() {
            return Ok(());
        }
        let others = Others::in_window(self, &assignment.job, window);
        let job = || assignment.job.clone();
        let used = others.peak(|a| u128::from(a.cpu_ppm.get()));
        let free = u128::from(capacity.cpu.get()).saturating_sub(used);
        if u128::from(assignment.cpu_ppm.get()) > free {
            // At most the capacity, which is a CpuPpm.
            let free = CpuPpm::new(free as u32);
            let (asked, capacity) = (assignment.cpu_ppm, capacity.cpu);
            return Err(Refusal::Cpu { job: job(), asked, free, capacity });
        }
        if let Some(bounds) = &capacity.schedules {
            let asked = assignment.cpu_ppm;
            let refused = |refusal| Refusal::Schedule { job: job(), asked, refusal };
            others.admit_beside(assignment, bounds).map_err(refused)?;
        }
        let free = u128::from(capacity.reservable.get()).saturating_sub(others.peak(reserved));
        let asked = reserved(assignment);
        if asked > free {
            let rate = |bits: u128| BitsPerSecond::new(u64::try_from(bits).unwrap_or(u64::MAX));
            let (asked, free, capacity) = (rate(asked), rate(free), capacity.reservable);
            return Err(Refusal::Bandwidth { job: job(), asked, free, capacity });
        }
        for (disk, rates) in &assignment.disks {
            for direction in DiskDirection::ALL {
                let Some(asked) = rates.of(direction) else { continue };
                let at = |a: &Assignment| a.disks.get(disk).and_then(|rates| rates.of(direction));
                let known = capacity.disks.get(disk).and_then(|rates| rates.of(direction));
                let Some(capacity) = known else {
                    let there = describe_disks(&capacity.disks);
                    return Err(Refusal::Disk { job: job(), disk: *disk, direction, there });
                };
                let used = others.peak(|a| at(a).map_or(0, |rate| u128::from(rate.get())));
                let free = u128::from(capacity.get()).saturating_sub(used);
                if u128::from(asked.get()) > free {
                    let free = BytesPerSecond::new(free as u64);
                    let disk = *disk;
                    return Err(Refusal::DiskRate {
                        job: job(),
                        disk,
                        direction,
                        asked,
                        free,
                        capacity,
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes `job` out; whether it was there. In place: many may end at once.
    pub fn remove(&mut self, job: &Name) -> bool {
        self.assignments.remove(job).is_some()
    }

    /// The jobs whose time is over, the earliest end first.
    pub fn expired(&self, now: WallTime) -> Vec<Name> {
        let mut over: Vec<_> =
            self.assignments.values().filter(|a| a.until_unix_nanos <= now).collect();
        over.sort_by_key(|a| a.until_unix_nanos);
        over.into_iter().map(|a| a.job.clone()).collect()
    }
}

fn describe_disks(disks: &BTreeMap<DiskId, DiskRates>) -> String {
    if disks.is_empty() {
        return "no disk; `disks` in its configuration names them".into();
    }
    disks.keys().map(DiskId::to_string).collect::<Vec<_>>().join(", ")
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
    use crate::agent::testing;
    use keeptime_model::assignment::{AssignedFlow, LaterCpu};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn capacity() -> Capacity {
        let rates = DiskRates {
            read_bytes_per_second: None,
            write_bytes_per_second: Some(BytesPerSecond::from_mega_bytes(100)),
        };
        Capacity { disks: BTreeMap::from([(disk(), rates)]), ..testing::capacity() }
    }

    fn disk() -> DiskId {
        "254:0".parse().unwrap()
    }

    fn at(seconds: u64) -> WallTime {
        WallTime::from_unix_nanos(seconds * 1_000_000_000)
    }

    fn assignment(job: &str, percent: u32, mbit: u64, until: u64) -> Assignment {
        let flow = AssignedFlow {
            destination: Ipv4Addr::new(10, 0, 0, 2),
            bits_per_second: BitsPerSecond::from_mbit(mbit),
            up_to_bits_per_second: None,
            burst_bytes: None,
            class: TrafficClass::Premium,
        };
        Assignment {
            flows: vec![flow],
            ..Assignment::new(job.parse().unwrap(), CpuPpm::from_percent(percent), at(until))
        }
    }

    fn later(job: &str, percent: u32, mbit: u64, from: u64, until: u64) -> Assignment {
        Assignment { from_unix_nanos: at(from), ..assignment(job, percent, mbit, until) }
    }

    fn writing(job: &str, mega_bytes: u64, from: u64, until: u64) -> Assignment {
        let rate = Some(BytesPerSecond::from_mega_bytes(mega_bytes));
        let rates = DiskRates::default().with(DiskDirection::Write, rate);
        Assignment { disks: [(disk(), rates)].into(), ..later(job, 1, 1, from, until) }
    }

    #[test]
    fn the_edge_of_capacity_is_taken_and_one_more_is_refused() {
        let book = Book::default().with(assignment("a", 20, 100, 9), &capacity(), at(1)).unwrap();
        let full = book.with(assignment("b", 20, 90, 9), &capacity(), at(1)).unwrap();
        assert_eq!(full.assignments().len(), 2);
        let error = book.with(assignment("b", 20, 91, 9), &capacity(), at(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "b asks to send 91 Mbit/s and 90 Mbit/s of 190 Mbit/s is free on this node's link"
        );
        let error = book.with(assignment("b", 21, 1, 9), &capacity(), at(1)).unwrap_err();
        assert!(matches!(error, Refusal::Cpu { .. }));
    }

    #[test]
    fn a_job_is_replaced_by_itself() {
        let book = Book::default().with(assignment("a", 40, 190, 9), &capacity(), at(1)).unwrap();
        let changed = book.with(assignment("a", 30, 150, 9), &capacity(), at(1)).unwrap();
        assert_eq!(changed.assignments().len(), 1);
    }

    #[test]
    fn time_ends_what_nobody_renews() {
        let book = Book::default().with(assignment("a", 10, 10, 5), &capacity(), at(1)).unwrap();
        let book = book.with(assignment("b", 10, 10, 4), &capacity(), at(1)).unwrap();
        assert!(book.expired(at(3)).is_empty());
        let names: Vec<_> = book.expired(at(5)).iter().map(Name::to_string).collect();
        assert_eq!(names, ["b", "a"]);
        let renewed = |job: &str| book.renewed(&job.parse().unwrap(), at(8), &capacity(), at(1));
        assert_eq!(renewed("b").unwrap().expired(at(5)).len(), 1);
        assert_eq!(renewed("c").unwrap_err().to_string(), "no job c is assigned here");
        assert!(matches!(
            book.with(assignment("d", 1, 1, 2), &capacity(), at(2)),
            Err(Refusal::Late { .. })
        ));
    }

    #[test]
    fn what_comes_later_fits_beside_what_has_ended_by_then() {
        let book = Book::default().with(assignment("a", 40, 190, 10), &capacity(), at(1)).unwrap();
        let error = book.with(later("b", 1, 1, 9, 20), &capacity(), at(1)).unwrap_err();
        assert!(matches!(error, Refusal::Cpu { .. }));
        let book = book.with(later("b", 40, 190, 10, 20), &capacity(), at(1)).unwrap();
        let due = |now| book.due(at(now)).keys().map(Name::to_string).collect::<Vec<_>>();
        assert_eq!((due(9), due(10)), (vec!["a".to_string()], vec!["b".to_string()]));
        // The first may end earlier or go on until the second begins, and no longer.
        let a = "a".parse().unwrap();
        let until = |until| book.renewed(&a, at(until), &capacity(), at(5));
        assert!(until(7).is_ok() && until(10).is_ok());
        assert!(matches!(until(11), Err(Refusal::Cpu { .. })));
        // Two that follow each other are never there at once.
        let book = Book::default().with(later("a", 20, 1, 0, 5), &capacity(), at(1)).unwrap();
        let book = book.with(later("b", 20, 1, 5, 10), &capacity(), at(1)).unwrap();
        assert!(book.with(later("c", 20, 1, 0, 10), &capacity(), at(1)).is_ok());
        assert!(book.with(later("c", 21, 1, 0, 10), &capacity(), at(1)).is_err());
    }

    // What has no share takes no processor from others, and none of theirs is in its way: also where shares have to fit on
    // processors one by one.
    #[test]
    fn what_has_flows_alone_is_there_beside_all_of_the_cpu() {
        let capacity = Capacity { schedules: Some(Bounds::user_level(1)), ..capacity() };
        let all = bounds_of(&capacity).min(capacity.cpu);
        let full = Assignment { cpu_ppm: all, ..assignment("full", 1, 1, 9) };
        let book = Book::default().with(full, &capacity, at(1)).unwrap();
        assert!(book.with(assignment("more", 1, 1, 9), &capacity, at(1)).is_err());
        let flows = Assignment { cpu_ppm: CpuPpm::default(), ..assignment("flows", 1, 1, 9) };
        assert!(book.with(flows, &capacity, at(1)).is_ok());
    }

    /// What all that is kept from user space may have.
    fn bounds_of(capacity: &Capacity) -> CpuPpm {
        capacity.schedules.as_ref().unwrap().capacity()
    }

    // It has 10 % until 5 s and 30 % from then on, of 40: beside it there are 30 % until then, and 10 % after.
    #[test]
    fn what_has_more_later_leaves_the_rest_to_others_until_then() {
        let rising = |job: &str, percent, more, turn, until| Assignment {
            later: Some(LaterCpu {
                from_unix_nanos: at(turn),
                cpu_ppm: CpuPpm::from_percent(more),
            }),
            ..assignment(job, percent, 1, until)
        };
        let take = |book: &Book, assignment| book.with(assignment, &capacity(), at(1));
        let book = take(&Book::default(), rising("a", 10, 30, 5, 9)).unwrap();
        let full = take(&book, assignment("b", 30, 1, 5)).unwrap();
        assert!(take(&book, assignment("b", 31, 1, 5)).is_err());
        assert!(take(&book, assignment("b", 11, 1, 6)).is_err());
        assert!(take(&book, assignment("b", 10, 1, 9)).is_ok());
        assert!(full.renewed(&"b".parse().unwrap(), at(6), &capacity(), at(1)).is_err());
        // Two of them, the second of which has more when the first is over.
        assert!(take(&book, rising("c", 10, 40, 9, 20)).is_ok());
        assert!(take(&book, rising("c", 10, 11, 8, 20)).is_err());
        let wanted = |now| {
            let wanted = full.wanted(&Come::default(), &capacity(), at(now));
            wanted.values().map(|a| a.cpu_ppm.get() / 10_000).collect::<Vec<_>>()
        };
        assert_eq!((wanted(4), wanted(5)), (vec![10, 30], vec![30]));
    }

    // What has begun goes on when a clock is set back behind its beginning, beside what is due then, and makes room
    // where both do not fit; what was put off meanwhile has not begun.
    #[test]
    fn a_clock_that_was_set_back_ends_nothing_that_fits_beside_what_is_due() {
        let book = Book::default().with(later("b", 30, 1, 50, 90), &capacity(), at(1)).unwrap();
        let begun = [("b".parse().unwrap(), at(50))].into();
        let begun = Come { begun, ..Come::default() };
        let wanted = |book: &Book, come: &Come, now| {
            let wanted = book.wanted(come, &capacity(), at(now));
            assert!(wanted.iter().all(|(job, wanted)| book.assignments()[job] == *wanted));
            wanted.keys().map(Name::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(wanted(&book, &Come::default(), 10), "");
        assert_eq!(wanted(&book, &begun, 10), "b");
        assert_eq!(wanted(&book, &begun, 90), "");
        let fits = book.with(later("a", 10, 1, 10, 40), &capacity(), at(10)).unwrap();
        assert_eq!(wanted(&fits, &begun, 10), "a b");
        let too_much = book.with(later("a", 11, 1, 10, 40), &capacity(), at(10)).unwrap();
        assert_eq!(wanted(&too_much, &begun, 10), "a");
        assert_eq!(wanted(&too_much, &begun, 40), "b");
        let put_off = book.with(later("b", 30, 1, 60, 90), &capacity(), at(10)).unwrap();
        assert_eq!(wanted(&put_off, &begun, 10), "");
    }

    // The same of what has more by now, unless it is to have another share later.
    #[test]
    fn a_clock_that_was_set_back_takes_no_cpu_that_fits_beside_what_is_due() {
        let later = |percent| {
            let cpu_ppm = CpuPpm::from_percent(percent);
            Some(LaterCpu { from_unix_nanos: at(50), cpu_ppm })
        };
        let rising = Assignment { later: later(30), ..assignment("b", 10, 1, 90) };
        let take = |book: &Book, assignment| book.with(assignment, &capacity(), at(10)).unwrap();
        let book = take(&Book::default(), rising.clone());
        let wanted = |book: &Book, come: &Come, now| {
            let wanted = book.wanted(come, &capacity(), at(now));
            wanted.values().map(|a| a.cpu_ppm.get() / 10_000).collect::<Vec<_>>()
        };
        let come = book.come(&book.wanted(&Come::default(), &capacity(), at(50)));
        assert_eq!(wanted(&book, &Come::default(), 40), [10]);
        assert_eq!(wanted(&book, &come, 40), [30]);
        assert_eq!(book.come(&book.wanted(&come, &capacity(), at(40))), come);
        assert_eq!(wanted(&take(&book, assignment("a", 10, 1, 45)), &come, 40), [10, 30]);
        assert_eq!(wanted(&take(&book, assignment("a", 11, 1, 45)), &come, 40), [11, 10]);
        let other = Assignment { later: later(20), ..rising };
        assert_eq!(wanted(&take(&book, other), &come, 40), [10]);
    }

    #[test]
    fn a_disk_is_shared_up_to_its_rate_and_others_are_refused_by_name() {
        let book = Book::default().with(writing("a", 60, 0, 9), &capacity(), at(1)).unwrap();
        assert!(book.with(writing("b", 40, 0, 9), &capacity(), at(1)).is_ok());
        let error = book.with(writing("b", 41, 5, 20), &capacity(), at(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "b asks to write 41 MB/s on disk 254:0 and 40 MB/s of 100 MB/s is free"
        );
        assert!(book.with(writing("b", 100, 9, 20), &capacity(), at(1)).is_ok());
        let mut asked = writing("b", 1, 0, 9);
        let reading = DiskRates::default().with(DiskDirection::Read, Some(BytesPerSecond::new(1)));
        asked.disks = [(disk(), reading)].into();
        let error = book.with(asked.clone(), &capacity(), at(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "b asks to read on disk 254:0, and this node can reserve 254:0"
        );
        let none = Capacity { disks: BTreeMap::new(), ..capacity() };
        let error = book.with(asked, &none, at(1)).unwrap_err().to_string();
        assert!(error.contains("this node can reserve no disk"), "{error}");
    }

    #[test]
    fn what_the_kernel_cannot_do_is_refused_by_name() {
        let poor = Capacity { capabilities: Some(Capabilities::default()), ..capacity() };
        let error = Book::default().with(assignment("a", 1, 1, 9), &poor, at(1)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cannot enforce what a asks for: a share of the CPU"), "{text}");
    }

    // Where shares are kept from user space, each process is on one processor: what fits in all and on none is refused,
    // for the time in which that is so.
    #[test]
    fn schedules_have_to_fit_on_processors_one_by_one() {
        let cpu = CpuPpm::from_percent(196);
        let schedules = Some(Bounds::user_level(2));
        let capacity = Capacity { cpu, schedules, ..capacity() };
        let take = |book: &Book, assignment| book.with(assignment, &capacity, at(1));
        let book = take(&Book::default(), assignment("a", 60, 1, 9)).unwrap();
        let book = take(&book, assignment("b", 60, 1, 20)).unwrap();
        let error = take(&book, assignment("c", 60, 1, 30)).unwrap_err();
        let expected = "c asks for 60 % CPU, which user-level EDF cannot keep here: no processor has 60 % left for \
                        one task; the most that one has is 38 %";
        assert_eq!(error.to_string(), expected);
        let full = take(&book, assignment("c", 38, 1, 30)).unwrap();
        assert!(take(&full, assignment("d", 38, 1, 30)).is_ok());
        // What begins when another has ended has its processor; nor is it longer there than that.
        let after = take(&book, later("c", 60, 1, 9, 30)).unwrap();
        let longer = after.renewed(&"a".parse().unwrap(), at(10), &capacity, at(1));
        assert!(matches!(longer, Err(Refusal::Schedule { .. })));
        // As many processes as it takes, and in longer periods where its slice would be too short.
        assert!(take(&Book::default(), assignment("e", 190, 1, 9)).is_ok());
        assert!(take(&Book::default(), assignment("f", 1, 1, 9)).is_ok());
        // The sum alone bounds others.
        let elsewhere = Capacity { schedules: None, ..capacity.clone() };
        assert!(book.with(assignment("c", 60, 1, 30), &elsewhere, at(1)).is_ok());
    }

    proptest! {
        // Whatever is asked, taken, renewed and ended: at every second, what is due fits.
        #[test]
        fn capacity_is_never_exceeded(asks in prop::collection::vec(
            (0u8..6, 1u32..30, 1u64..120, 0u64..20, 1u64..20, any::<bool>(), 0u64..40, 1u32..20), 1..40)
        ) {
            let mut book = Book::default();
            for (job, percent, mbit, from, length, renews, turn, more) in asks {
                let name = format!("j{job}");
                let next = match renews {
                    true => book.renewed(&name.parse().unwrap(), at(from + length), &capacity(), at(1)),
                    false => {
                        let disks = writing(&name, mbit, 0, 1).disks;
                        let wanted = later(&name, percent, mbit, from, from + length);
                        let rises = from < turn && turn < from + length;
                        let later = rises.then(|| LaterCpu {
                            from_unix_nanos: at(turn),
                            cpu_ppm: CpuPpm::from_percent(percent + more),
                        });
                        book.with(Assignment { disks, later, ..wanted }, &capacity(), at(1))
                    }
                };
                book = next.unwrap_or(book);
                for second in 1..40 {
                    let due = book.due(at(second));
                    let cpu: u32 = due.values().map(|a| a.at(at(second)).cpu_ppm.get()).sum();
                    let bits: u128 = due.values().map(reserved).sum();
                    let written = due.values().filter_map(|a| a.disks[&disk()].of(DiskDirection::Write));
                    prop_assert!(cpu <= capacity().cpu.get());
                    prop_assert!(bits <= u128::from(capacity().reservable.get()));
                    prop_assert!(written.map(BytesPerSecond::get).sum::<u64>() <= 100_000_000);
                }
            }
        }
    }
}
