//! How a run that is to be done by a time goes: when its work will be done with what is held for it, as its progress says, and
//! what to ask for where that is too late or leaves nothing to spare. Pure: progress and instants come as arguments, by the run's
//! own clock where spans are measured, and what is asked for is the caller's business.
//!
//! What is left takes as much CPU time as the last eighth of the work took for each unit. At a lower share a program takes that
//! at the most; at a higher one it may take more, which is seen and answered once it has that.
//!
//! Of a run of which nobody says how much work there is, or that has told too little yet, it is not known what is left. Where what
//! is held for it is nearly over, a part as long as an eighth of the whole is asked for, until its deadline and no longer.
//!
//! Nothing is given back while it runs. Others have what it does not need before its deadline all the same, since what is held is
//! malleable; and progress tells of work, not of what comes after it, nor that the rest is as fast as the first part.

use keeptime_model::assignment::LaterCpu;
use keeptime_model::shares::Shares;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// A run on its way.
#[derive(Debug, Clone)]
pub struct Course {
    /// Units of work in all, if that is known.
    total: Option<NonZeroU64>,
    by: WallTime,
    /// More CPU than this is of no use.
    most: CpuPpm,
    /// What it had of each node's CPU until it was looked at last, and when that was.
    had: u128,
    looked: Option<(Nanos, CpuPpm)>,
    /// What it has told, the oldest first: as far back as counts, not closer together than makes a difference.
    marks: VecDeque<Mark>,
    newest: Option<Mark>,
    /// When something was asked for last.
    asked: Option<Nanos>,
}

/// So many units were done when it was `at`, with so much CPU time of each node: nanoseconds, in millionths of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    work: u64,
    at: Nanos,
    had: u128,
}

/// CPU time of each node: what is left of a run, and what all of it takes.
#[derive(Debug, Clone, Copy)]
struct Known {
    left: u128,
    whole: u128,
}

/// What is held for a run: so much of each node's CPU, perhaps more from a time on, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The share.
    pub cpu: CpuPpm,
    /// More of it.
    pub later: Option<LaterCpu>,
    /// When it is over.
    pub until: WallTime,
}

/// What a run comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// When its work will be done, if it has what is held for it, and goes on with that where it is not done by then; nothing
    /// while that is not known.
    pub ends: Option<WallTime>,
    /// What to ask for now, whichever is granted first; nothing if what is held suffices, or it was asked a moment ago.
    pub asks: Vec<Held>,
}

impl Course {
    /// Of a run with `total` units of work, if somebody knows that, to be done by `by`, that can use so much of each node's CPU.
    pub fn new(total: Option<NonZeroU64>, by: WallTime, most: CpuPpm) -> Self {
        Self {
            total,
            by,
            most,
            had: 0,
            looked: None,
            marks: VecDeque::new(),
            newest: None,
            asked: None,
        }
    }

    /// It has had `cpu` of each node since it was looked at last, until `at`.
    pub fn has(&mut self, cpu: CpuPpm, at: Nanos) {
        self.had = self.had_at(at, cpu);
        self.looked = Some((at, cpu));
    }

    /// So many units were done in all when it was `at`. Where they become fewer, it has begun anew.
    pub fn told(&mut self, work: u64, at: Nanos) {
        if self.newest.is_some_and(|newest| work < newest.work) {
            self.marks.clear();
            self.newest = None;
        }
        if self.newest.is_some_and(|newest| work == newest.work || at <= newest.at) {
            return;
        }
        let Some((_, cpu)) = self.looked else { return };
        let mark = Mark { work, at, had: self.had_at(at, cpu) };
        self.newest = Some(mark);
        let Some(total) = self.total else { return };
        let apart = total.get() / MARKS_MOST;
        if self.marks.back().is_none_or(|last| work - last.work >= apart) {
            self.marks.push_back(mark);
        }
        while self.marks.get(1).is_some_and(|second| tells_enough(total, second, &mark)) {
            self.marks.pop_front();
        }
    }

    /// How much was done of all that there is.
    pub fn work(&self) -> Option<u64> {
        self.newest.map(|newest| newest.work)
    }

    /// What it comes to with what is `held`, at an instant by both clocks.
    pub fn outlook(&self, now: WallTime, at: Nanos, held: &Held) -> Outlook {
        let known = self.known(at);
        let ends = known.map(|Known { left, .. }| held.shares().when(now, left));
        let is_due = self.asked.is_none_or(|asked| at.saturating_sub(asked) >= pause(now, held));
        let asks = match (is_due, known) {
            (false, _) => Vec::new(),
            (true, Some(known)) => self.what_suffices(now, held, known),
            (true, None) => self.what_goes_on(now, at, held),
        };
        Outlook { ends, asks }
    }

    /// It is asked for more `at` an instant.
    pub fn asks(&mut self, at: Nanos) {
        self.asked = Some(at);
    }

    /// What would be enough, what is best first: in time, or where that is not to be had and it would be late as it is, what is
    /// the least late. Nothing if what is held is.
    fn what_suffices(&self, now: WallTime, held: &Held, Known { left, whole }: Known) -> Vec<Held> {
        if held.cpu_time(now) >= left + whole / SPARE_LEAST_PART {
            return Vec::new();
        }
        let (in_time, late) = self.forms(now, held, left + whole / SPARE_PART);
        let late = late.into_iter().rev().filter(|_| held.shares().when(now, left) > self.by);
        in_time.into_iter().chain(late).collect()
    }

    /// With what it goes on, what is best first, where what is held is nearly over: for some time, or until its deadline.
    fn what_goes_on(&self, now: WallTime, at: Nanos, held: &Held) -> Vec<Held> {
        let (has, shares) = (held.cpu_time(now), held.shares());
        let (present, last) = (shares.at(now), shares.last());
        let whole = self.had_at(at, present) + has;
        let span = last.takes_ceil(whole).get();
        let nearly = (span / NEARLY_PART).max(NEARLY_LEAST.get()).min(span / NEARLY_MOST_PART);
        if held.until.saturating_since(now).get() > nearly {
            return Vec::new();
        }
        let further = (whole / FURTHER_PART).max(last.volume(FURTHER_LEAST));
        let (mut asks, late) = self.forms(now, held, has + further);
        let late = late.into_iter().rev().filter(|form| asks.is_empty() || form.cpu <= present);
        let to_the_end = late.map(|form| Held { until: self.by, ..form });
        let more: Vec<_> = to_the_end.filter(|form| form.cpu_time(now) > has).collect();
        asks.extend(more);
        asks
    }

    /// In what forms so much is to be had: at the share that it has, the least with which it is in time, or all that is of use.
    /// First what is in time.
    fn forms(&self, now: WallTime, held: &Held, wanted: u128) -> (Vec<Held>, Vec<Held>) {
        let present = held.shares().at(now).min(self.most);
        let left = u128::from(self.by.saturating_since(now).get());
        let least = u32::try_from(wanted.div_ceil(left.max(1))).map_or(self.most, CpuPpm::new);
        let mut shares = vec![present, least.clamp(present, self.most), self.most];
        shares.dedup();
        shares.retain(|share| *share > CpuPpm::default());
        let form = |cpu: CpuPpm| {
            let until = now.saturating_add(cpu.takes_ceil(wanted));
            Held { cpu, later: None, until }
        };
        shares.into_iter().map(form).partition(|form| form.until <= self.by)
    }

    /// What is known of the CPU time that it takes, of each node: what is left is without what was done of the next unit. Nothing
    /// while it has told too little.
    fn known(&self, at: Nanos) -> Option<Known> {
        let (total, newest, (_, cpu)) = (self.total?.get(), self.newest?, self.looked?);
        let unit = self.unit(total)?;
        let left = u128::from(total.saturating_sub(newest.work)) * unit;
        let since = self.had_at(at, cpu).saturating_sub(newest.had).min(unit);
        Some(Known { left: left.saturating_sub(since), whole: u128::from(total) * unit })
    }

    /// What one unit takes.
    fn unit(&self, total: u64) -> Option<u128> {
        let (first, newest) = (self.marks.front()?, self.newest?);
        let (work, span) = (newest.work - first.work, newest.at.saturating_sub(first.at));
        let is_enough = work >= WORK_LEAST.max(total / KNOWN_PART) && span >= SPAN_LEAST;
        // What it had meanwhile is known a little later than what it has told.
        let had = newest.had.saturating_sub(first.had);
        (is_enough && had > 0).then(|| had.div_ceil(u128::from(work)))
    }

    /// What it had at an instant, where it has `cpu` since it was looked at last, and had as much a moment before.
    fn had_at(&self, at: Nanos, cpu: CpuPpm) -> u128 {
        let Some((looked, before)) = self.looked else { return 0 };
        match at >= looked {
            true => self.had + cpu.volume(at.saturating_sub(looked)),
            false => self.had.saturating_sub(before.volume(looked.saturating_sub(at))),
        }
    }
}

impl Held {
    /// What it is of each node's CPU, without its end.
    fn shares(&self) -> Shares {
        Shares { cpu: self.cpu, later: self.later }
    }

    /// CPU time of each node over the rest of its time.
    fn cpu_time(&self, now: WallTime) -> u128 {
        self.shares().volume(now, self.until)
    }
}

/// Whether what was done between two marks suffices to say how fast it is.
fn tells_enough(total: NonZeroU64, first: &Mark, last: &Mark) -> bool {
    let work = last.work - first.work;
    let is_enough = work >= WORK_LEAST.max(total.get() / WORK_PART);
    is_enough && last.at.saturating_sub(first.at) >= SPAN_LEAST
}

/// How long it is before more is asked for once more: a part of the time that is held, so that it is before that is over.
fn pause(now: WallTime, held: &Held) -> Nanos {
    let left = held.until.saturating_since(now);
    Nanos::new(left.get() / PAUSE_PART).clamp(PAUSE_LEAST, PAUSE_MOST)
}

/// How fast it is follows from this part of the work, so that what changes is seen while there is time,
const WORK_PART: u64 = 8;
/// and is known when this one is done: that of a run that is so many times as slow as was planned is not over by then.
const KNOWN_PART: u64 = 16;
/// Neither is less than this: the instants of what a command prints are a second off.
const WORK_LEAST: u64 = 4;
const SPAN_LEAST: Nanos = Nanos::from_secs(10);
/// Marks over all of the work: an eighth of them is kept.
const MARKS_MOST: u64 = 512;
/// What is held is to be more than is needed by this part of the whole run, as when it was planned (`super::knees`),
const SPARE_PART: u128 = 10;
/// and is left alone while it is by this one: runs differ by as much.
const SPARE_LEAST_PART: u128 = 40;
/// What is held is nearly over when this part of the whole is left: later than what was reserved to spare begins (an eleventh). It
/// is looked at every two seconds, and whoever makes way is to have the time for that; short runs are left alone at first.
const NEARLY_PART: u64 = 16;
const NEARLY_LEAST: Nanos = Nanos::from_secs(5);
const NEARLY_MOST_PART: u64 = 4;
/// It goes on for this part of the whole, and for no less time than this.
const FURTHER_PART: u128 = 8;
const FURTHER_LEAST: Nanos = Nanos::from_secs(10);
/// Each time is a change on all nodes, or a refusal.
const PAUSE_PART: u64 = 8;
const PAUSE_LEAST: Nanos = Nanos::from_secs(2);
const PAUSE_MOST: Nanos = Nanos::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_767_225_600_000_000_000;

    fn seconds(value: u64) -> Nanos {
        Nanos::from_secs(value)
    }

    fn at(value: u64) -> WallTime {
        WallTime::from_unix_nanos(START).saturating_add(seconds(value))
    }

    fn percent(value: u32) -> CpuPpm {
        CpuPpm::from_percent(value)
    }

    fn held(share: u32, until: u64) -> Held {
        Held { cpu: percent(share), later: None, until: at(until) }
    }

    fn course(total: u64, by: u64, most: u32) -> Course {
        Course::new(NonZeroU64::new(total), at(by), percent(most))
    }

    /// Has had so much from the beginning until `end`, and done a unit every so many seconds.
    fn after(mut course: Course, share: u32, unit: u64, end: u64) -> Course {
        for second in 0..=end {
            course.has(percent(share), seconds(second));
            course.told(second / unit, seconds(second));
        }
        course
    }

    fn outlook(course: &Course, now: u64, held: &Held) -> Outlook {
        course.outlook(at(now), seconds(now), held)
    }

    /// Whether it is over before its work will be done.
    fn is_cut(told: &Outlook, held: &Held) -> bool {
        told.ends > Some(held.until)
    }

    // 100 units of a second at 20 %, 110 s held: at 30 s 70 s are to come, and 80 are held.
    #[test]
    fn a_run_that_goes_as_it_was_planned_asks_for_nothing() {
        let course = after(course(100, 500, 40), 20, 1, 30);
        let expected = Outlook { ends: Some(at(100)), asks: vec![] };
        assert_eq!(outlook(&course, 30, &held(20, 110)), expected);
        // What is spare is two and a half seconds at the least.
        assert_eq!(outlook(&course, 30, &held(20, 103)).asks, []);
        assert!(!outlook(&course, 30, &held(20, 102)).asks.is_empty());
    }

    // The same, half as fast: 70 s are over at 70 s, when 35 units are done; 130 s are to come, and 20 to spare.
    #[test]
    fn a_run_that_is_slow_asks_for_more_time_and_then_for_more_of_the_cpu() {
        let slow = |by| after(course(100, by, 40), 20, 2, 70);
        let told = outlook(&slow(500), 70, &held(20, 110));
        assert_eq!(told.ends, Some(at(200)));
        assert_eq!(told.asks, [held(20, 220), held(40, 145)]);
        // 3,000 by 170 s: with 30 %, and no less. If that is not to be had, as it is.
        let asks = outlook(&slow(170), 70, &held(20, 110)).asks;
        assert_eq!(asks, [held(30, 170), held(40, 145), held(20, 220)]);
        // Not in time: the least late, for which others have to be asked, or as it is.
        assert_eq!(outlook(&slow(140), 70, &held(20, 110)).asks, [held(40, 145), held(20, 220)]);
        assert_eq!(outlook(&slow(60), 70, &held(20, 110)).asks, [held(40, 145), held(20, 220)]);
    }

    #[test]
    fn it_is_asked_again_when_a_part_of_what_is_held_is_over() {
        let mut slow = after(course(100, 500, 40), 20, 2, 70);
        slow.asks(seconds(70));
        let asks = |now| !outlook(&slow, now, &held(20, 110)).asks.is_empty();
        assert_eq!([71, 74, 75].map(asks), [false, false, true]);
        let shortly = |now| !outlook(&slow, now, &held(20, 73)).asks.is_empty();
        assert_eq!([71, 72].map(shortly), [false, true]);
    }

    #[test]
    fn nothing_is_known_of_what_tells_too_little() {
        let known = |course: &Course, now| outlook(course, now, &held(20, 110)).ends;
        assert_eq!(known(&course(100, 500, 40), 50), None);
        assert_eq!(known(&after(course(100, 500, 40), 20, 1, 9), 9), None);
        assert!(known(&after(course(100, 500, 40), 20, 1, 10), 10).is_some());
        assert_eq!(known(&after(course(100, 500, 40), 20, 9, 53), 53), None);
        assert!(known(&after(course(100, 500, 40), 20, 9, 54), 54).is_some());
        let mut anew = after(course(100, 500, 40), 20, 1, 30);
        anew.told(3, seconds(31));
        assert_eq!((known(&anew, 31), anew.work()), (None, Some(3)));
        let mut without = course(100, 500, 40);
        (0..30).for_each(|second| without.told(second, seconds(second)));
        assert_eq!(known(&without, 30), None, "what it has is not known");
    }

    // 160 s are held at 20 %, of which ten are left at 150 s: it is to have 20 s more, which are 600 with what it has.
    #[test]
    fn what_nobody_knows_the_end_of_goes_on_until_its_deadline() {
        let asks = |total, by, now, held: &Held| {
            let mut course = course(total, by, 40);
            course.has(held.cpu, seconds(0));
            course.has(held.cpu, seconds(now));
            let told = outlook(&course, now, held);
            assert_eq!(told.ends, None);
            told.asks
        };
        assert_eq!(asks(0, 500, 149, &held(20, 160)), []);
        // One that has told too little is no other.
        for total in [0, 100] {
            assert_eq!(asks(total, 500, 150, &held(20, 160)), [held(20, 180), held(40, 165)]);
        }
        let before_170 = [held(30, 170), held(40, 165), held(20, 170)];
        assert_eq!(asks(0, 170, 150, &held(20, 160)), before_170);
        assert_eq!(asks(0, 163, 150, &held(20, 160)), [held(40, 163), held(20, 163)]);
        assert_eq!(asks(0, 160, 150, &held(20, 160)), [held(40, 160)]);
        assert_eq!(asks(0, 160, 150, &held(40, 160)), []);
        // Five seconds before the end at the latest, but three quarters of it are over; for ten seconds more at the least.
        assert_eq!([14, 15].map(|now| asks(0, 500, now, &held(40, 20)).len()), [0, 1]);
        assert_eq!(asks(0, 500, 15, &held(40, 20)), [held(40, 30)]);
        assert_eq!([5, 6].map(|now| asks(0, 500, now, &held(40, 8)).len()), [0, 1]);
    }

    // Goal: what changes is seen before the end. Method: 40 units of a second, and ten of four.
    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut course = after(course(80, 500, 40), 20, 1, 40);
        for second in 41..=80 {
            course.has(percent(20), seconds(second));
            course.told(40 + (second - 40) / 4, seconds(second));
        }
        assert_eq!(outlook(&course, 80, &held(20, 500)).ends, Some(at(200)));
    }

    // Goal: what a unit in progress has had counts, but as no more than a unit: a program that hangs is seen.
    #[test]
    fn a_unit_in_progress_is_done_in_part() {
        let course = after(course(10, 500, 40), 20, 10, 50);
        let ends = |now| outlook(&course, now, &held(20, 500)).ends;
        assert_eq!([50, 53, 60, 90].map(ends), [100, 100, 100, 130].map(|end| Some(at(end))));
        let done = after(self::course(10, 500, 40), 20, 1, 12);
        assert_eq!(outlook(&done, 12, &held(20, 13)).ends, Some(at(12)));
        assert!(outlook(&done, 12, &held(20, 13)).asks.is_empty(), "a tenth is to spare");
        assert!(!outlook(&done, 13, &held(20, 13)).asks.is_empty(), "it is not over yet");
    }

    // 5 % until 100 s and 40 % then, which it has made way for: 2,600 are left at 70 s.
    #[test]
    fn what_was_promised_for_later_counts() {
        let course = after(course(100, 170, 40), 20, 2, 70);
        let later = Some(LaterCpu { from_unix_nanos: at(100), cpu_ppm: percent(40) });
        let dip = |until| Held { cpu: percent(5), later, until: at(until) };
        let told = outlook(&course, 70, &dip(170));
        assert_eq!(told.ends, Some(WallTime::from_unix_nanos(at(161).unix_nanos() + 250_000_000)));
        assert!(told.asks.is_empty());
        // In time if it went on so: nothing is asked for that would be late.
        let told = outlook(&course, 70, &dip(150));
        assert!(is_cut(&told, &dip(150)));
        assert_eq!(told.asks, [held(30, 170), held(40, 145)]);
        assert_eq!(outlook(&course, 110, &dip(150)).ends, Some(at(174)));
    }

    /// A program whose units take so many seconds of all its CPU, and what is reserved for it.
    struct Simulated {
        course: Course,
        held: Held,
        changes: u32,
        /// When it was done; nothing if it was ended before.
        done: Option<u64>,
    }

    /// Until it is done, or what is held is over. Whatever it asks for is granted.
    fn run(mut course: Course, mut held: Held, units: &[u64]) -> Simulated {
        let (mut changes, mut left) = (0, units.iter().copied());
        let (mut second, mut work, mut had) = (0, 0, 0);
        let mut takes = left.next();
        while at(second) < held.until {
            second += 1;
            had += u64::from(held.cpu.get());
            course.has(held.cpu, seconds(second));
            while let Some(unit) = takes.filter(|unit| *unit <= had) {
                (had, work, takes) = (had - unit, work + 1, left.next());
            }
            course.told(work, seconds(second));
            if takes.is_none() {
                return Simulated { course, held, changes, done: Some(second) };
            }
            let told = course.outlook(at(second), seconds(second), &held);
            if let Some(granted) = told.asks.first().copied() {
                course.asks(seconds(second));
                (held, changes) = (granted, changes + 1);
            }
        }
        Simulated { course, held, changes, done: None }
    }

    proptest! {
        // Goal: what can be in time is, whatever its speed; what cannot goes on as fast as it can; and either asks seldom. Method:
        // programs that are up to four times as slow as planned, units up to a fifth off, where all that is asked for is granted.
        #[test]
        fn a_run_is_in_time_where_it_can_be(
            total in 20usize..400,
            planned in 200u64..4_000,
            slack in 0u64..4_000,
            slower in 50u64..400,
            noise in prop::collection::vec(80u64..120, 400),
        ) {
            let most = percent(40);
            // Half of the CPU that is of use, for as long as that takes, and a tenth.
            let first = Held { cpu: percent(20), later: None, until: at(planned * 22 / 10) };
            let by = planned * 22 / 10 + slack;
            let unit = planned * u64::from(most.get()) / total as u64;
            let units: Vec<_> =
                noise[..total].iter().map(|noise| unit * slower * noise / 10_000).collect();
            let alone = units.iter().sum::<u64>() / u64::from(most.get());
            let ran = run(course(total as u64, by, 40), first, &units);
            let done = ran.done.expect("what is held does not end before it");
            // What it loses until it is known how fast it is, by half of the CPU, and by what is spare and noise.
            let first_known = (units.iter().take(5).sum::<u64>() / u64::from(first.cpu.get())).max(12);
            if alone + alone / 10 + first_known <= by {
                prop_assert!(done <= by, "{done} s, by {by} s, {alone} s alone");
            } else {
                prop_assert!(done <= alone + alone / 5 + first_known, "{done} s, {alone} s alone");
            }
            prop_assert!(ran.changes <= 12, "{} changes", ran.changes);
            prop_assert!(ran.held.cpu <= most);
            prop_assert_eq!(ran.course.work(), Some(total as u64));
        }

        // Goal: what tells nothing is not ended before its deadline where all that it asks for is granted; and asks seldom.
        #[test]
        fn what_tells_nothing_goes_on_until_its_deadline(
            planned in 10u64..4_000,
            slack in 0u64..8_000,
            slower in 100u64..400,
        ) {
            let first = Held { cpu: percent(20), later: None, until: at(planned + planned / 10) };
            let by = planned + planned / 10 + slack;
            let takes = planned * slower / 100;
            let ran = run(course(0, by, 40), first, &[takes * u64::from(first.cpu.get())]);
            match ran.done {
                Some(done) => prop_assert!(done <= takes + 1, "{done} s"),
                None => prop_assert_eq!(ran.held.until, at(by)),
            }
            prop_assert!(ran.done.is_some() || takes > by);
            prop_assert!(ran.changes <= 30, "{} changes", ran.changes);
        }

        // Goal: whatever is told, in whatever order, what is asked for is of use and in time, where it is called so. Method: shares
        // and counts that go up and down, and counts that are some time old.
        #[test]
        fn whatever_is_told_what_is_asked_for_makes_sense(
            total in prop_oneof![0u64..50, Just(u64::MAX)],
            by in 0u64..400,
            happened in prop::collection::vec((0u32..=60, 0u64..20, 0u64..60, 0u64..30), 1..60),
        ) {
            let (mut course, mut second) = (course(total, by, 40), 20);
            for (share, step, work, age) in happened {
                second += step;
                course.has(percent(share), seconds(second));
                course.told(work, seconds(second - age.min(20)));
                let held = held(share, 200);
                let told = course.outlook(at(second), seconds(second), &held);
                prop_assert!(told.ends.is_none_or(|ends| ends >= at(second)));
                let shares = told.asks.iter().all(|ask| ask.cpu > percent(0) && ask.cpu <= percent(40));
                prop_assert!(shares, "{:?}", told.asks);
                prop_assert!(told.asks.iter().all(|ask| ask.until > at(second)), "{:?}", told.asks);
                let late = told.asks.iter().any(|ask| ask.until > at(by));
                prop_assert!(!late || told.ends > Some(at(by)), "{told:?}");
            }
        }

        // Goal: noise alone changes nothing.
        #[test]
        fn a_run_that_is_as_fast_as_planned_is_left_alone(
            total in 100usize..400,
            planned in 200u64..4_000,
            noise in prop::collection::vec(90u64..=110, 400),
        ) {
            let first = Held { cpu: percent(20), later: None, until: at(planned * 11 / 10) };
            let unit = planned * u64::from(first.cpu.get()) / total as u64;
            let mean = noise[..total].iter().sum::<u64>() / total as u64;
            let units: Vec<_> = noise[..total].iter().map(|noise| unit * noise / mean).collect();
            let ran = run(course(total as u64, planned * 2, 40), first, &units);
            prop_assert_eq!(ran.changes, 0);
        }
    }
}
