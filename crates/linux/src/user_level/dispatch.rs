//! Who goes first, who waits and who is held: pure.

use super::LOOK_LEAST;
use keeptime_control::admission::{Bounds, Refusal};
use keeptime_control::schedule::Schedule;
use keeptime_model::units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// What a process is to be until the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Before everybody else on its processor.
    First,
    /// When nobody else wants to run.
    Waiting,
    /// Not at all.
    Held,
}

/// Where everybody is to be, by process, with its processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For each process.
    pub places: BTreeMap<i32, (u32, Place)>,
    /// The next instant at which this may be wrong; nothing if it never is.
    pub again: Option<Nanos>,
}

/// Schedules, and how far they have been used.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    bounds: Bounds,
    tasks: BTreeMap<i32, Task>,
}

#[derive(Debug, Clone, Copy)]
struct Task {
    schedule: Schedule,
    processor: u32,
    /// What is left of the slice, in nanoseconds; below zero if a look came late.
    budget: i64,
    /// The end of its period.
    ends: Nanos,
    /// Its CPU time at the last look.
    used: Nanos,
}

impl Dispatcher {
    /// With nobody to schedule.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, tasks: BTreeMap::new() }
    }

    /// Gives processes schedules from `now` on, or changes those that they have, and takes them from `leaving`:
    /// all of it or nothing. With each schedule comes the CPU time that its process has used so far.
    ///
    /// # Errors
    /// If what is wanted is not admitted beside the others; nothing has changed then.
    pub fn exchange(
        &mut self,
        now: Nanos,
        leaving: &BTreeSet<i32>,
        wanted: &BTreeMap<i32, (Schedule, Nanos)>,
    ) -> Result<(), Refusal> {
        if wanted.is_empty() {
            // Who leaves is asked nothing, and nobody else has to move for that.
            self.tasks.retain(|pid, _| !leaving.contains(pid));
            return Ok(());
        }
        let stays = |pid: &i32| !leaving.contains(pid) && !wanted.contains_key(pid);
        let staying = self.tasks.iter().filter(|(pid, _)| stays(pid));
        // By number: who stays as it is stays where it is, whoever is named first.
        let mut all: BTreeMap<i32, Schedule> =
            staying.map(|(pid, task)| (*pid, task.schedule)).collect();
        let running: Vec<_> = all.values().copied().collect();
        let asked: Vec<_> = wanted.values().map(|(schedule, _)| *schedule).collect();
        self.bounds.admit(&running, &asked)?;
        all.extend(wanted.iter().map(|(pid, (schedule, _))| (*pid, *schedule)));
        let schedules: Vec<_> = all.values().copied().collect();
        let processors = self.bounds.partition(&schedules)?;
        self.tasks.retain(|pid, _| !leaving.contains(pid));
        for (pid, (schedule, used)) in wanted {
            let (schedule, used) = (*schedule, *used);
            let ends = now.saturating_add(schedule.period());
            let fresh = Task { schedule, processor: 0, budget: slice(schedule), ends, used };
            let task = self.tasks.get(pid).map_or(fresh, |before| before.changed(fresh));
            self.tasks.insert(*pid, task);
        }
        for (pid, processor) in all.keys().zip(processors) {
            if let Some(task) = self.tasks.get_mut(pid) {
                task.processor = processor;
            }
        }
        Ok(())
    }

    /// The process has ended, or is not to be scheduled any more.
    pub fn remove(&mut self, pid: i32) {
        self.tasks.remove(&pid);
    }

    /// Whether the process has a schedule.
    pub fn schedules(&self, pid: i32) -> bool {
        self.tasks.contains_key(&pid)
    }

    /// Where everybody is to be from `now` on; `used` is the CPU time that each has used so far.
    pub fn decide(&mut self, now: Nanos, used: &BTreeMap<i32, Nanos>) -> Decision {
        for (pid, task) in &mut self.tasks {
            task.charge(used.get(pid).copied().unwrap_or(task.used));
            task.refill(now);
        }
        let mut first: BTreeMap<u32, (Nanos, i32)> = BTreeMap::new();
        for (pid, task) in self.tasks.iter().filter(|(_, task)| task.budget > 0) {
            let mine = (task.ends, *pid);
            let earliest = first.entry(task.processor).or_insert(mine);
            *earliest = mine.min(*earliest);
        }
        let place = |pid: &i32, task: &Task| match first.get(&task.processor) {
            _ if task.budget <= 0 => Place::Held,
            Some((_, earliest)) if earliest == pid => Place::First,
            _ => Place::Waiting,
        };
        let places =
            self.tasks.iter().map(|(pid, task)| (*pid, (task.processor, place(pid, task))));
        let again = self.tasks.values().map(|task| task.next_look(now)).min();
        let again = again.map(|again| again.max(now.saturating_add(LOOK_LEAST)));
        Decision { places: places.collect(), again }
    }
}

impl Task {
    /// What was used of the period that runs is not given again.
    fn changed(self, fresh: Self) -> Self {
        let more = slice(fresh.schedule) - slice(self.schedule);
        let budget = self.budget.saturating_add(more).min(fresh.budget);
        Self { budget, ends: self.ends.min(fresh.ends), used: self.used, ..fresh }
    }

    fn charge(&mut self, used: Nanos) {
        let span = used.saturating_sub(self.used).get();
        self.budget = self.budget.saturating_sub(i64::try_from(span).unwrap_or(i64::MAX));
        self.used = used;
    }

    /// What was used too much is paid back; what was not used is gone.
    fn refill(&mut self, now: Nanos) {
        let period = self.schedule.period().get().max(1);
        if now < self.ends {
            return;
        }
        let periods = (now.get() - self.ends.get()) / period + 1;
        let whole = slice(self.schedule);
        let periods_signed = i64::try_from(periods).unwrap_or(i64::MAX);
        let refilled = self.budget.saturating_add(whole.saturating_mul(periods_signed));
        self.budget = refilled.min(whole);
        self.ends = self.ends.saturating_add(Nanos::new(period.saturating_mul(periods)));
    }

    /// The end of its period, or before that of its slice, if it runs all the time.
    fn next_look(&self, now: Nanos) -> Nanos {
        match u64::try_from(self.budget) {
            Ok(left) if left > 0 => self.ends.min(now.saturating_add(Nanos::new(left))),
            _ => self.ends,
        }
    }
}

fn slice(schedule: Schedule) -> i64 {
    i64::try_from(schedule.slice().get()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::CpuPpm;
    use proptest::prelude::*;

    const MILLI: u64 = 1_000_000;

    fn schedule(percent: u32, millis: u64) -> Schedule {
        Schedule::new(CpuPpm::from_percent(percent), Nanos::from_millis(millis))
    }

    impl Dispatcher {
        /// One process, beside the others.
        fn set(
            &mut self,
            now: Nanos,
            pid: i32,
            schedule: Schedule,
            used: Nanos,
        ) -> Result<(), Refusal> {
            self.exchange(now, &BTreeSet::new(), &[(pid, (schedule, used))].into())
        }
    }

    /// Processes that run whenever they may, for the part of time that they are awake, under a dispatcher
    /// that looks when it said; what each has used after `span`, and in which of its periods least.
    fn simulate(tasks: &[(Schedule, bool)], span: u64) -> Option<Vec<u64>> {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(1));
        let mut used: BTreeMap<i32, Nanos> = BTreeMap::new();
        for (pid, (schedule, _)) in tasks.iter().enumerate() {
            used.insert(pid as i32, Nanos::new(0));
            dispatcher.set(Nanos::new(0), pid as i32, *schedule, Nanos::new(0)).ok()?;
        }
        let mut now = 0;
        while now < span {
            let Decision { places, again } = dispatcher.decide(Nanos::new(now), &used);
            let next = again.unwrap().get();
            // The first that is awake runs; if there is none, one that waits and is.
            let awake = |pid: &i32| tasks[*pid as usize].1;
            let mut order: Vec<_> = places.iter().filter(|(pid, _)| awake(pid)).collect();
            order.sort_by_key(|(_, (_, place))| *place);
            if let Some((pid, (_, place))) = order.first()
                && *place != Place::Held
            {
                let time = used.get_mut(pid).unwrap();
                *time = time.saturating_add(Nanos::new(next - now));
            }
            now = next;
        }
        Some(used.values().map(|used| used.get()).collect())
    }

    #[test]
    fn who_has_used_its_slice_is_held_until_its_next_period() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(1));
        dispatcher.set(Nanos::new(0), 7, schedule(30, 10), Nanos::new(50)).unwrap();
        let mut at = |millis: u64, used: u64| {
            let used = BTreeMap::from([(7, Nanos::new(50 + used * MILLI))]);
            let decision = dispatcher.decide(Nanos::from_millis(millis), &used);
            (decision.places[&7].1, decision.again.unwrap().get() / MILLI)
        };
        assert_eq!(at(0, 0), (Place::First, 3));
        assert_eq!(at(3, 3), (Place::Held, 10));
        // A look that came 2 ms late is paid back.
        assert_eq!(at(10, 3), (Place::First, 13));
        assert_eq!(at(15, 8), (Place::Held, 20));
        assert_eq!(at(20, 8), (Place::First, 21));
        // What is not used in its period is gone.
        assert_eq!(at(45, 8), (Place::First, 48));
    }

    #[test]
    fn the_earliest_end_goes_first_and_who_sleeps_is_in_nobodys_way() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(1));
        dispatcher.set(Nanos::new(0), 1, schedule(30, 40), Nanos::new(0)).unwrap();
        dispatcher.set(Nanos::new(0), 2, schedule(40, 10), Nanos::new(0)).unwrap();
        let Decision { places, .. } = dispatcher.decide(Nanos::new(0), &BTreeMap::new());
        assert_eq!((places[&1].1, places[&2].1), (Place::Waiting, Place::First));
        let used = simulate(&[(schedule(40, 10), false), (schedule(30, 40), true)], 400 * MILLI);
        assert_eq!(used, Some(vec![0, 120 * MILLI]));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(2));
        for pid in 1..=2 {
            dispatcher.set(Nanos::new(0), pid, schedule(60, 40), Nanos::new(0)).unwrap();
        }
        assert!(dispatcher.set(Nanos::new(0), 3, schedule(60, 40), Nanos::new(0)).is_err());
        assert!(!dispatcher.schedules(3));
        // The one that is changed does not stand in its own way.
        dispatcher.set(Nanos::new(0), 2, schedule(90, 40), Nanos::new(0)).unwrap();
        let Decision { places, .. } = dispatcher.decide(Nanos::new(0), &BTreeMap::new());
        assert_ne!(places[&1].0, places[&2].0);
    }

    // A job whose processes become more, or whose time is given to another, needs no room for both at once.
    #[test]
    fn who_leaves_makes_room_for_who_comes_and_all_of_it_happens_or_nothing() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(1));
        dispatcher.set(Nanos::new(0), 1, schedule(90, 40), Nanos::new(0)).unwrap();
        let wanted = |percent, pids: &[i32]| -> BTreeMap<i32, (Schedule, Nanos)> {
            pids.iter().map(|pid| (*pid, (schedule(percent, 40), Nanos::new(0)))).collect()
        };
        let parts = wanted(45, &[1, 2]);
        dispatcher.exchange(Nanos::new(0), &BTreeSet::new(), &parts).unwrap();
        let too_much = wanted(50, &[3, 4]);
        let leaving = BTreeSet::from([1, 2]);
        assert!(dispatcher.exchange(Nanos::new(0), &leaving, &too_much).is_err());
        assert!(dispatcher.schedules(1) && dispatcher.schedules(2) && !dispatcher.schedules(3));
        let others = wanted(49, &[3, 4]);
        dispatcher.exchange(Nanos::new(0), &leaving, &others).unwrap();
        assert!(!dispatcher.schedules(1) && !dispatcher.schedules(2) && dispatcher.schedules(4));
    }

    #[test]
    fn who_is_asked_for_again_stays_where_it_is() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(2));
        for pid in [1, 2] {
            dispatcher.set(Nanos::new(0), pid, schedule(40, 40), Nanos::new(0)).unwrap();
        }
        let mut processors = |pid| {
            dispatcher.set(Nanos::new(0), pid, schedule(40, 40), Nanos::new(0)).unwrap();
            let places = dispatcher.decide(Nanos::new(0), &BTreeMap::new()).places;
            (places[&1].0, places[&2].0)
        };
        let before = processors(1);
        assert_ne!(before.0, before.1);
        assert_eq!((processors(2), processors(1)), (before, before));
    }

    #[test]
    fn a_change_gives_no_slice_twice() {
        let mut dispatcher = Dispatcher::new(Bounds::user_level(1));
        dispatcher.set(Nanos::new(0), 7, schedule(30, 10), Nanos::new(0)).unwrap();
        let used = BTreeMap::from([(7, Nanos::from_millis(3))]);
        dispatcher.decide(Nanos::from_millis(3), &used);
        for _ in 0..3 {
            let (now, used) = (Nanos::from_millis(4), Nanos::from_millis(3));
            dispatcher.set(now, 7, schedule(40, 10), used).unwrap();
        }
        let Decision { places, again } = dispatcher.decide(Nanos::from_millis(4), &used);
        // One millisecond more than the three that it has used.
        assert_eq!((places[&7].1, again), (Place::First, Some(Nanos::from_millis(5))));
    }

    proptest! {
        // Whatever is admitted has its share over 120 ms, a whole number of all periods, and no more.
        #[test]
        fn admitted_processes_have_what_they_were_promised(
            tasks in prop::collection::vec((10u32..50, 0usize..4), 1..5))
        {
            let millis = [20, 30, 40, 60];
            let tasks: Vec<_> = tasks.iter().map(|(percent, at)| (schedule(*percent, millis[*at]), true)).collect();
            if let Some(used) = simulate(&tasks, 1_200 * MILLI) {
                for ((schedule, _), used) in tasks.iter().zip(used) {
                    let promised = schedule.cpu().time_in_floor(Nanos::new(1_200 * MILLI)).get();
                    prop_assert!(used.abs_diff(promised) <= 2 * LOOK_LEAST.get(), "{schedule:?}: {used}");
                }
            }
        }
    }
}
