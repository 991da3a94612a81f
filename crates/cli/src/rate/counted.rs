//! Progress as agents count it by a program's MPI calls, or as another command prints it: pure. Ranks tell their agents about
//! once a second, and agents and commands are asked about once a second, so that a count is known some time after it was
//! right. Here it gets the instant at which it was, and the CPU time that was used until then.

use keeptime_agent::wire::JobStatus;
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What one node tells of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// When it was asked.
    pub at: Nanos,
    /// The CPU time that the job had used there.
    pub used: Nanos,
    /// How far its slowest rank there was, if one has told.
    pub count: Option<Count>,
}

/// How far a rank was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Units of work in all.
    pub work: u64,
    /// When.
    pub at: Nanos,
    /// What is counted.
    pub unit: Unit,
}

/// A unit of work. Where it changes, counts before and after have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// What the program itself counts.
    Told,
    /// So many collective operations.
    Operations(u32),
}

/// Work that was done, as a controller takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Units of work in all.
    pub work: u64,
    /// When that was so.
    pub at: Nanos,
    /// The CPU time that each node had used then.
    pub used: Vec<Nanos>,
    /// Whether units are others than before.
    pub is_recounted: bool,
}

/// What nodes have told of one job lately.
#[derive(Debug, Default)]
pub struct Counts {
    /// Of all nodes each, oldest first: the last [`LOOKS_KEPT`].
    looks: VecDeque<Vec<Look>>,
    /// The node whose rank is followed.
    node: Option<usize>,
    /// What was passed on last.
    last: Option<Count>,
}

impl Look {
    /// What an agent tells that was asked `at`.
    pub fn of(status: &JobStatus, at: Nanos) -> Self {
        let count = status.progress.map(|progress| Count {
            work: progress.iterations,
            // Two instants of the node's clock: what it is ahead of others does not matter.
            at: at.saturating_sub(status.now_unix_nanos.saturating_since(progress.at_unix_nanos)),
            unit: match progress.told {
                true => Unit::Told,
                false => Unit::Operations(progress.period),
            },
        });
        Self { at, used: status.cpu_used_nanos, count }
    }
}

impl Counts {
    /// Takes in what all nodes tell. What is to be passed on, if enough was done for that.
    pub fn take(&mut self, looks: Vec<Look>) -> Option<Told> {
        let followed = self.follow(&looks);
        self.take_with(looks, followed)
    }

    /// Takes in the CPU time that all nodes tell, where something else counts. What is to be passed on, if enough was done
    /// for that.
    pub fn take_with(&mut self, looks: Vec<Look>, count: Option<Count>) -> Option<Told> {
        self.looks.push_back(looks);
        if self.looks.len() > LOOKS_KEPT {
            self.looks.pop_front();
        }
        let count = count.filter(|count| self.is_news(count))?;
        let used = self.used_at(count.at)?;
        let is_recounted = self.last.is_some_and(|last| last.unit != count.unit);
        self.last = Some(count);
        Some(Told { work: count.work, at: count.at, used, is_recounted })
    }

    /// How far the program is: what it tells itself comes first. Of ranks that wait for each other and so go on alike,
    /// the one is followed that was slowest at first, since two of them have begun to count at different calls.
    fn follow(&mut self, looks: &[Look]) -> Option<Count> {
        let counted = |(node, look): (usize, &Look)| Some((node, look.count?));
        let counts = || looks.iter().enumerate().filter_map(counted);
        let is_told = counts().any(|(_, count)| count.unit == Unit::Told);
        let fits = |(_, count): &(usize, Count)| !is_told || count.unit == Unit::Told;
        let same = counts().filter(fits).find(|(node, _)| Some(*node) == self.node);
        let slowest = || counts().filter(fits).min_by_key(|(_, count)| count.work);
        let (node, count) = same.or_else(slowest)?;
        self.node = Some(node);
        Some(count)
    }

    /// Whether it is far enough from what was passed on last: a count is a unit short at the most.
    fn is_news(&self, count: &Count) -> bool {
        self.last.is_none_or(|last| {
            let done = count.work.abs_diff(last.work);
            let has_passed = count.at.saturating_sub(last.at) >= SPAN_MOST;
            last.unit != count.unit || done >= WORK_LEAST || (done > 0 && has_passed)
        })
    }

    /// The CPU time that each node had used at an instant; nothing if that is longer ago than is remembered.
    fn used_at(&self, at: Nanos) -> Option<Vec<Nanos>> {
        let nodes = self.looks.back()?.len();
        (0..nodes).map(|node| self.used_on(node, at)).collect()
    }

    fn used_on(&self, node: usize, at: Nanos) -> Option<Nanos> {
        let looks = || self.looks.iter().filter_map(move |looks| looks.get(node));
        // Nodes are asked one after the other.
        let newest = looks().next_back()?;
        if at >= newest.at {
            return Some(newest.used);
        }
        let mut pairs = looks().zip(looks().skip(1));
        let around = pairs.find(|(before, after)| before.at <= at && at <= after.at);
        around.map(|(before, after)| between(before, after, at))
    }
}

/// The CPU time that was used at an instant between two looks, as if that went evenly.
fn between(before: &Look, after: &Look, at: Nanos) -> Nanos {
    let spans = [(before.used, after.used), (before.at, at), (before.at, after.at)];
    let [used, part, whole] = spans.map(|(from, to)| u128::from(to.saturating_sub(from).get()));
    let used = u64::try_from(used * part / whole.max(1)).unwrap_or(u64::MAX);
    before.used.saturating_add(Nanos::new(used))
}

/// Counts are a second old, and one more where an agent is asked just before the next comes.
const LOOKS_KEPT: usize = 8;
/// A count that is a unit short is wrong by a twentieth of these at the most,
const WORK_LEAST: u64 = 20;
/// but reports of slow programs do not wait for that longer than this.
const SPAN_MOST: Nanos = Nanos::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_agent::programs::ProgressStatus;
    use keeptime_model::assignment::Assignment;
    use keeptime_model::units::{CpuPpm, WallTime};

    const SIX: Unit = Unit::Operations(6);

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Told at so many milliseconds by a node that has used as many, as it was `age` before.
    fn look(millis: u64, age: u64, work: u64, unit: Unit) -> Look {
        let count = Some(Count { work, at: at(millis - age), unit });
        Look { at: at(millis), used: at(millis), count }
    }

    /// One that has counted nothing.
    fn mute(millis: u64) -> Look {
        Look { count: None, ..look(millis, 0, 0, SIX) }
    }

    #[test]
    fn a_count_is_passed_on_with_its_instant_and_what_was_used_until_then() {
        let mut counts = Counts::default();
        let half = |look: Look| Look { used: Nanos::new(look.used.get() / 2), ..look };
        let mut take = |millis, age, work| {
            counts.take(vec![look(millis, age, work, SIX), half(mute(millis + 10))])
        };
        assert_eq!(take(1_000, 300, 40), None, "nobody has looked before that");
        let first = take(2_000, 400, 80).unwrap();
        // The other node was asked ten milliseconds later both times.
        assert_eq!((first.work, first.at, first.used), (80, at(1_600), vec![at(1_600), at(800)]));
        assert_eq!(take(3_000, 1_400, 80), None, "the same again");
        // Asked before the rank told anew: it is older than the last look.
        let second = take(4_000, 1_200, 120).unwrap();
        assert_eq!((second.work, second.at, second.used[0]), (120, at(2_800), at(2_800)));
        assert!(!second.is_recounted);
    }

    #[test]
    fn a_report_has_enough_units_or_has_waited_for_long() {
        let mut counts = Counts::default();
        let mut take = |millis, work| counts.take(vec![look(millis, 0, work, SIX)]);
        assert!(take(1_000, 3).is_some(), "the first is where the first report begins");
        assert!(take(2_000, 22).is_none() && take(3_000, 23).is_some());
        assert!(take(7_999, 24).is_none() && take(8_000, 24).is_some());
        assert!(take(99_000, 24).is_none(), "nothing was done");
    }

    // Goal: that ranks have begun to count at different calls makes no jumps. Method: two that do; then the program
    // counts itself, and then no more.
    #[test]
    fn one_rank_is_followed_and_what_a_program_tells_itself_comes_first() {
        let mut counts = Counts::default();
        let ahead = |millis, work| look(millis, 0, work, Unit::Operations(4));
        let first = counts.take(vec![ahead(1_000, 60), look(1_000, 0, 50, SIX)]).unwrap();
        assert_eq!(first.work, 50);
        let second = counts.take(vec![ahead(2_000, 80), look(2_000, 0, 90, SIX)]).unwrap();
        assert_eq!((second.work, second.is_recounted), (90, false));
        let told = look(3_000, 0, 7, Unit::Told);
        let third = counts.take(vec![told, look(3_000, 0, 130, SIX)]).unwrap();
        assert_eq!((third.work, third.is_recounted), (7, true));
        let told = |millis, work| look(millis, 0, work, Unit::Told);
        let fourth = counts.take(vec![told(4_000, 30), mute(4_000)]).unwrap();
        assert!(!fourth.is_recounted);
        let fifth = counts.take(vec![ahead(5_000, 31), mute(5_000)]).unwrap();
        assert!(fifth.is_recounted);
    }

    // Goal: what a command prints counts from when it was printed, whatever ranks tell; one that begins anew goes on.
    #[test]
    fn what_a_command_prints_stands_for_all_nodes() {
        let mut counts = Counts::default();
        let mut take = |millis, printed: Option<(u64, u64)>| {
            let count = printed.map(|(then, work)| Count { work, at: at(then), unit: Unit::Told });
            counts.take_with(vec![mute(millis), look(millis, 0, 999, Unit::Told)], count)
        };
        assert_eq!(take(1_000, None), None);
        let first = take(2_000, Some((1_500, 10))).unwrap();
        assert_eq!((first.work, first.at, first.used), (10, at(1_500), vec![at(1_500); 2]));
        assert_eq!(take(3_000, Some((2_500, 29))), None);
        let second = take(4_000, Some((3_500, 30))).unwrap();
        assert_eq!((second.work, second.is_recounted), (30, false));
        assert_eq!(take(5_000, Some((4_500, 0))).unwrap().work, 0);
    }

    // Goal: clocks of nodes may be wrong. Method: one that is years behind, and an agent that does not tell its time.
    #[test]
    fn the_age_of_a_count_is_by_the_nodes_own_clock() {
        let until = WallTime::from_unix_nanos(u64::MAX);
        let assignment = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(10), until);
        let then = WallTime::from_unix_nanos(7_000_000_000);
        let (iterations, iterations_per_second, told) = (12, 2.0, false);
        let progress = ProgressStatus {
            iterations,
            iterations_per_second,
            told,
            period: 6,
            at_unix_nanos: then,
        };
        let status = JobStatus {
            cpu_used_nanos: at(90),
            progress: Some(progress),
            now_unix_nanos: then.saturating_add(at(400)),
            ..JobStatus::unmeasured(assignment)
        };
        let expected = Look { used: at(90), ..look(5_000, 400, 12, SIX) };
        assert_eq!(Look::of(&status, at(5_000)), expected);
        let older = JobStatus { now_unix_nanos: WallTime::default(), ..status };
        assert_eq!(Look::of(&older, at(5_000)).count.unwrap().at, at(5_000));
    }
}
