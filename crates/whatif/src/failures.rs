//! When parts of a cluster fail and are back: each node, link and switch by itself, at random, drawn as time goes.
//!
//! A part works for a time from an exponential distribution, is away for the time of a repair, and works
//! again. Who runs where changes nothing of that: under every policy the same parts fail at the same times. Each
//! kind has draws of its own, so that those of one kind do so whichever others fail.

use keeptime_model::Invalid;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::Nanos;
use keeptime_random::Random;
use std::collections::{BTreeSet, VecDeque};

/// What can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A computer.
    Node,
    /// A cable, in both directions.
    Link,
    /// A switch.
    Switch,
}

/// One part of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// What it is.
    pub kind: Kind,
    /// Its position in [`Topology::nodes`], [`Topology::links`] or [`Topology::switches`].
    pub number: u32,
}

/// How often a part fails, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reliability {
    between: Nanos,
    repair: Nanos,
}

/// How often parts of each kind fail, and for how long; nothing of what never fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reliabilities {
    /// Of each node.
    pub nodes: Option<Reliability>,
    /// Of each link.
    pub links: Option<Reliability>,
    /// Of each switch.
    pub switches: Option<Reliability>,
}

/// What happens to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It does not work any more.
    Failed(Part),
    /// It works again.
    Repaired(Part),
}

/// Which parts work, and what happens to them next. Memory is that of the parts, however long it goes on.
#[derive(Debug, Clone)]
pub struct Failures {
    /// One for each kind that fails.
    courses: Vec<Course>,
}

/// The parts of one kind.
#[derive(Debug, Clone)]
struct Course {
    kind: Kind,
    reliability: Reliability,
    random: Random,
    /// By when it fails.
    working: BTreeSet<(Nanos, u32)>,
    /// By when it is back. All are away equally long: who failed first is back first.
    away: VecDeque<(Nanos, u32)>,
}

impl Part {
    /// A node.
    pub fn node(NodeIndex(number): NodeIndex) -> Self {
        Self { kind: Kind::Node, number }
    }
}

impl Reliability {
    /// A part works for `between` in the mean, and is away for `repair` then.
    ///
    /// # Errors
    /// If a time is shorter or longer than makes sense.
    pub fn new(between: Nanos, repair: Nanos) -> Result<Self, Invalid> {
        if between < BETWEEN_LEAST {
            return Err(Invalid::new(
                "failures",
                between,
                format!("{} or more", BETWEEN_LEAST.rounded()),
            ));
        }
        if !(REPAIR_LEAST..=REPAIR_MOST).contains(&repair) {
            let expected = format!("{REPAIR_LEAST} to {REPAIR_MOST}");
            return Err(Invalid::new("repair", repair, expected));
        }
        Ok(Self { between, repair })
    }
}

impl Failures {
    /// The parts of this cluster, all of which work at 0. The same seed gives the same failures.
    pub fn new(topology: &Topology, how: Reliabilities, seed: u64) -> Self {
        let course = |kind, count: usize, reliability: Option<Reliability>| {
            reliability.map(|reliability| Course::new(kind, count as u32, reliability, seed))
        };
        let courses = [
            course(Kind::Node, topology.nodes().len(), how.nodes),
            course(Kind::Link, topology.links().len(), how.links),
            course(Kind::Switch, topology.switches().len(), how.switches),
        ];
        Self { courses: courses.into_iter().flatten().collect() }
    }

    /// The longest time that a part is away.
    pub fn repair(&self) -> Nanos {
        let repairs = self.courses.iter().map(|course| course.reliability.repair);
        repairs.max().unwrap_or(Nanos::new(0))
    }

    /// When something happens next; nothing if there are no parts.
    pub fn next(&self) -> Option<Nanos> {
        self.first().map(|(at, ..)| at)
    }

    /// What has happened by `now`, which is never before what was said last, in its order. Each change
    /// costs O(log parts).
    pub fn pass(&mut self, now: Nanos) -> Vec<Change> {
        std::iter::from_fn(|| self.change(now)).collect()
    }

    /// What happens next, if it does by `now`. Of two at the same instant, who is back comes first.
    fn change(&mut self, now: Nanos) -> Option<Change> {
        let (_, _, course) = self.first().filter(|(at, ..)| *at <= now)?;
        self.courses[course].change()
    }

    /// When something happens next, whether it is a failure, and to which of the kinds.
    fn first(&self) -> Option<(Nanos, bool, usize)> {
        let next = |(at, course): (usize, &Course)| {
            course.next().map(|(when, is_failure)| (when, is_failure, at))
        };
        self.courses.iter().enumerate().filter_map(next).min()
    }
}

impl Course {
    fn new(kind: Kind, count: u32, reliability: Reliability, seed: u64) -> Self {
        let (working, away) = (BTreeSet::new(), VecDeque::new());
        let random = Random::new(seed ^ draws(kind));
        let mut course = Self { kind, reliability, random, working, away };
        for number in 0..count {
            course.work_from(Nanos::new(0), number);
        }
        course
    }

    /// When something happens next, and whether it is a failure.
    fn next(&self) -> Option<(Nanos, bool)> {
        let fails = self.working.first().map(|(at, _)| (*at, true));
        let back = self.away.front().map(|(at, _)| (*at, false));
        fails.into_iter().chain(back).min()
    }

    /// What happens next.
    fn change(&mut self) -> Option<Change> {
        let (_, is_failure) = self.next()?;
        if is_failure {
            let (failed, number) = self.working.pop_first()?;
            self.away.push_back((failed.saturating_add(self.reliability.repair), number));
            return Some(Change::Failed(self.part(number)));
        }
        let (back, number) = self.away.pop_front()?;
        self.work_from(back, number);
        Some(Change::Repaired(self.part(number)))
    }

    fn part(&self, number: u32) -> Part {
        Part { kind: self.kind, number }
    }

    fn work_from(&mut self, since: Nanos, number: u32) {
        let mean = self.reliability.between.get() as f64;
        // Longer than can be counted is for ever.
        let lasts = Nanos::new((self.random.exponential() * mean) as u64);
        self.working.insert((since.saturating_add(lasts), number));
    }
}

/// Draws of their own: jobs are otherwise the same as without failures.
fn draws(kind: Kind) -> u64 {
    match kind {
        Kind::Node => 0x4641_494C_5552_4553,
        Kind::Link => 0x4C49_4E4B_4641_494C,
        Kind::Switch => 0x5357_4954_4348_4553,
    }
}

/// Some ten nodes of the largest cluster fail every second then: whoever has that needs no simulation.
const BETWEEN_LEAST: Nanos = Nanos::from_secs(3_600);
const REPAIR_LEAST: Nanos = Nanos::from_secs(1);
/// What is away for longer is none of the cluster's.
const REPAIR_MOST: Nanos = Nanos::from_secs(366 * 86_400);

#[cfg(test)]
impl Failures {
    /// These parts fail at these seconds, each once, and nothing else happens.
    pub(crate) fn scripted(script: &[(u64, Part)], repair: Nanos) -> Self {
        let reliability = Reliability { between: Nanos::new(u64::MAX), repair };
        let course = |kind: Kind| {
            let mut course = Course::new(kind, 0, reliability, 0);
            let of_kind = script.iter().filter(|(_, part)| part.kind == kind);
            course.working =
                of_kind.map(|(at, part)| (Nanos::from_secs(*at), part.number)).collect();
            course
        };
        Self { courses: [Kind::Node, Kind::Link, Kind::Switch].map(course).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;
    use std::collections::BTreeMap;

    const HOUR: u64 = 3_600;

    fn hours(hours: u64) -> Nanos {
        Nanos::from_secs(hours * HOUR)
    }

    /// Works for ten hours, and is away for one.
    fn ten_hours() -> Option<Reliability> {
        Some(Reliability::new(hours(10), hours(1)).unwrap())
    }

    fn nodes_alone() -> Reliabilities {
        Reliabilities { nodes: ten_hours(), ..Reliabilities::default() }
    }

    /// Two racks, of 40 nodes and of 10.
    fn failures(how: Reliabilities, seed: u64) -> Failures {
        let shape: Shape = "fat-tree:50".parse().unwrap();
        Failures::new(&shape.topology(), how, seed)
    }

    /// All that happens in 2,000 hours.
    fn course(how: Reliabilities, seed: u64) -> Vec<(Nanos, Change)> {
        let mut failures = failures(how, seed);
        let mut all = Vec::new();
        while let Some(now) = failures.next().filter(|at| *at <= hours(2_000)) {
            all.extend(failures.pass(now).into_iter().map(|change| (now, change)));
        }
        all
    }

    fn changes(seed: u64) -> Vec<(Nanos, Change)> {
        course(nodes_alone(), seed)
    }

    fn part(change: Change) -> Part {
        match change {
            Change::Failed(part) | Change::Repaired(part) => part,
        }
    }

    #[test]
    fn one_seed_has_the_same_failures_and_another_one_others() {
        assert_eq!(changes(1), changes(1));
        assert_ne!(changes(1), changes(2));
    }

    // Goal: nodes fail as often as is said: 50 nodes, 2,000 hours, one failure in 11 hours of each.
    #[test]
    fn nodes_fail_as_often_as_is_said_and_are_away_for_a_repair() {
        let mut away = BTreeMap::new();
        let mut count = 0u32;
        for (now, change) in changes(3) {
            match change {
                Change::Failed(part) => {
                    count += 1;
                    assert_eq!(part.kind, Kind::Node);
                    assert_eq!(away.insert(part, now), None, "{part:?} had failed already");
                }
                Change::Repaired(part) => {
                    let failed = away.remove(&part).expect("it was away");
                    assert_eq!(now.saturating_sub(failed), hours(1));
                }
            }
        }
        let expected = 50.0 * 2_000.0 / 11.0;
        assert!((f64::from(count) / expected - 1.0).abs() < 0.05, "{count}, not {expected}");
    }

    // Goal: who looks seldom is told the same as who looks at every change.
    #[test]
    fn what_has_happened_is_told_in_its_order_however_seldom_it_is_asked() {
        let mut failures = failures(nodes_alone(), 4);
        let seldom: Vec<_> = (0..=20).flat_map(|at| failures.pass(hours(100 * at))).collect();
        let often: Vec<_> = changes(4).into_iter().map(|(_, change)| change).collect();
        assert_eq!(seldom, often);
    }

    // Goal: every link and switch fails, too, and nodes fail at the times at which they do alone.
    #[test]
    fn each_kind_fails_as_if_it_was_alone() {
        let all = Reliabilities { links: ten_hours(), switches: ten_hours(), ..nodes_alone() };
        let all = course(all, 5);
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        let of = |kind: Kind| -> Vec<_> {
            all.iter().copied().filter(|(_, change)| part(*change).kind == kind).collect()
        };
        assert_eq!(of(Kind::Node), changes(5));
        let numbers = |kind: Kind| -> BTreeSet<u32> {
            of(kind).into_iter().map(|(_, change)| part(change).number).collect()
        };
        // One of each node, two of racks, one above; the rack switches, the row's and the uppermost.
        assert_eq!(numbers(Kind::Link), (0..53).collect::<BTreeSet<_>>());
        assert_eq!(numbers(Kind::Switch), (0..4).collect::<BTreeSet<_>>());
    }

    #[test]
    fn times_that_make_no_sense_are_named() {
        let field = |between, repair| {
            Reliability::new(Nanos::from_secs(between), Nanos::from_secs(repair)).unwrap_err().field
        };
        assert_eq!(field(3_599, 60), "failures");
        assert_eq!(field(3_600, 0), "repair");
        assert_eq!(field(3_600, 367 * 86_400), "repair");
    }
}
