//! A log on a cluster under a policy, in virtual time.
//!
//! Where nodes fail, or links and switches on the way to them, every job on such a node ends there, and is submitted
//! anew by its user at once: from the start, with the deadline that it had, up to [`HITS_MAX`] times.

use crate::failures::{Change, Failures, Kind, Part};
use crate::machine::{Machine, Start, Traffic};
use crate::policy::{Action, Choice, Policy};
use crate::reach::Reach;
use crate::shape::{self, Shape};
use crate::summary::Summary;
use crate::trace::Submission;
use keeptime_model::Invalid;
use keeptime_model::pattern::RANKS_MAX;
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{Nanos, Share};
use keeptime_planner::tree::PlacementIndex;
use std::collections::BTreeSet;

/// What is to be known.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Nodes, switches and links. All nodes are alike to jobs, which have whole ones, and so are links of nodes where jobs
    /// communicate. Nobody needs an address.
    pub topology: Topology,
    /// Who starts when and where.
    pub policy: Choice,
    /// The part of a job's time that it exchanges when nothing is in its way. A job on one node
    /// exchanges nothing.
    pub communication: Share,
    /// When its parts fail; nothing if they never do.
    pub failures: Option<Failures>,
}

/// What became of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// It was promised its deadline.
    pub promised: bool,
    /// It was not run.
    pub refused: bool,
    /// It was promised its deadline, or started, and was not run to its end: nodes of it were away, and it was
    /// refused then, or had been hit too often.
    pub given_up: bool,
    /// How often it lost nodes on which it ran.
    pub hits: u32,
    /// A node of it was away when it should have begun, and it waited anew.
    pub displaced: bool,
    /// When it started, the last time.
    pub started: Option<Nanos>,
    /// When it ended, having done all that it was to do.
    pub ended: Option<Nanos>,
}

/// How often something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Nodes by themselves.
    pub nodes: u64,
    /// Links.
    pub links: u64,
    /// Switches.
    pub switches: u64,
    /// Nodes that were away from then on and had not failed themselves: what they hang from had.
    pub cut_off: u64,
}

/// What became of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Under which policy.
    pub policy: Choice,
    /// By job.
    pub fates: Vec<Fate>,
    /// Node seconds of work that were done, as it was counted while it was done.
    pub done: f64,
    /// What has failed until all jobs were over.
    pub failures: Tally,
    /// Node seconds of work that were done and lost with a node of their job.
    pub lost: f64,
}

impl Trial {
    /// On a cluster that has a shape, and of which nothing fails.
    pub fn of(shape: Shape, policy: Choice, communication: Share) -> Self {
        Self { topology: shape.topology(), policy, communication, failures: None }
    }

    /// Runs `jobs`, which are in the order of their submission, to the end of the last. `progress` is told
    /// from time to time how many are over. Memory is that of the jobs, the nodes and what runs. Whatever
    /// the policy, a job of more nodes than there are, or than the broker gives one job, is refused.
    ///
    /// # Errors
    /// If a job makes no sense, nodes or their links are not alike, or some job never ends though nothing fails.
    pub fn run(
        self,
        jobs: &[Submission],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Outcome, Invalid> {
        self.run_watched(jobs, progress, |policy| policy)
    }

    /// Runs `jobs` as [`Self::run`] does, where `watched` is put in front of the policy, and decides as that does.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn run_watched<'w>(
        self,
        jobs: &[Submission],
        progress: &mut dyn FnMut(usize),
        watched: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy + 'w>,
    ) -> Result<Outcome, Invalid> {
        check(jobs)?;
        let policy = self.policy;
        let mut replay = Replay::new(self, jobs, |policy| watched(policy))?;
        let mut now = Nanos::new(0);
        while let Some(due) = replay.next_event() {
            now = now.max(due);
            if now > Nanos::from_secs(2 * SECONDS_MAX) {
                let until = format!("would not be over after {} years", 2 * SECONDS_MAX / YEAR);
                return Err(Invalid::new("jobs", until, "less work, or more nodes"));
            }
            replay.happen(now)?;
            progress(replay.over);
        }
        let Replay { fates, machine, failed, lost, .. } = replay;
        if let Some(job) = fates.iter().position(|fate| !fate.is_over()) {
            let expected = "a job that can be run";
            return Err(Invalid::new(format!("jobs[{job}]"), "never ends", expected));
        }
        Ok(Outcome { policy, fates, done: machine.done(), failures: failed, lost })
    }
}

impl Fate {
    fn is_over(&self) -> bool {
        self.refused || self.given_up || self.ended.is_some()
    }
}

fn check(jobs: &[Submission]) -> Result<(), Invalid> {
    for (number, job) in jobs.iter().enumerate() {
        let invalid = |field: &str, value: u64, expected: String| {
            Err(Invalid::new(format!("jobs[{number}].{field}"), value, expected))
        };
        let before = number.checked_sub(1).map_or(0, |before| jobs[before].submitted);
        if job.submitted < before {
            return invalid("submitted", job.submitted, format!("{before} or later"));
        }
        if job.nodes == 0 || job.run == 0 {
            let expected = "at least 1 second on at least 1 node";
            return invalid("run", job.run.min(job.nodes.into()), expected.into());
        }
        if job.requested < job.run {
            return invalid("requested", job.requested, format!("at least its run, {}", job.run));
        }
        let latest = job.submitted.max(job.deadline).max(job.requested);
        if latest > SECONDS_MAX {
            return invalid("deadline", latest, format!("at most {SECONDS_MAX} seconds"));
        }
    }
    Ok(())
}

struct Replay<'a> {
    jobs: &'a [Submission],
    /// More no job can have.
    nodes_most: u32,
    policy: Box<dyn Policy + 'a>,
    machine: Machine,
    failures: Option<Failures>,
    /// Which nodes are away.
    reach: Reach,
    fates: Vec<Fate>,
    /// The next to be submitted.
    next: usize,
    /// How many have ended, were refused or given up.
    over: usize,
    /// What has failed so far.
    failed: Tally,
    /// Node seconds of work that failures have cost.
    lost: f64,
    /// When something became of a job last.
    stirred: Nanos,
}

impl<'a> Replay<'a> {
    fn new(
        trial: Trial,
        jobs: &'a [Submission],
        watched: impl FnOnce(Box<dyn Policy>) -> Box<dyn Policy + 'a>,
    ) -> Result<Self, Invalid> {
        let Trial { topology, policy, communication, failures } = trial;
        // Whoever decides.
        let cpu = shape::cpu_of_each(&topology)?;
        let nodes_most = (topology.nodes().len() as u32).min(RANKS_MAX);
        let traffic = Traffic::new(&topology, communication)?;
        let topology = shape::addressed(topology);
        let policy = watched(policy.begin(topology.clone(), traffic)?);
        let machine = Machine::new(PlacementIndex::new(topology), traffic, cpu);
        let reach = Reach::new(machine.index());
        Ok(Self {
            jobs,
            nodes_most,
            policy,
            machine,
            failures,
            reach,
            fates: vec![Fate::default(); jobs.len()],
            next: 0,
            over: 0,
            failed: Tally::default(),
            lost: 0.0,
            stirred: Nanos::new(0),
        })
    }

    fn next_event(&self) -> Option<Nanos> {
        let submission = self.jobs.get(self.next).map(|job| Nanos::from_secs(job.submitted));
        let wish = self.policy.next();
        // They go on for ever: what fails when all jobs are over is nobody's business.
        let failures = self.failures.as_ref().filter(|_| self.over < self.jobs.len());
        let change = failures.and_then(Failures::next);
        [submission, self.machine.next_end(), wish, change].into_iter().flatten().min()
    }

    /// Ends first: what they give back is there for what begins now.
    fn happen(&mut self, now: Nanos) -> Result<(), Invalid> {
        for job in self.machine.end(now) {
            self.fates[job].ended = Some(now);
            self.count_over(now);
            let actions = self.policy.ended(now, job);
            self.act(now, actions)?;
        }
        self.change(now)?;
        let actions = self.policy.passed(now);
        self.act(now, actions)?;
        while let Some(job) = self.jobs.get(self.next) {
            if Nanos::from_secs(job.submitted) > now {
                break;
            }
            self.submit(now, self.next)?;
            self.next += 1;
        }
        let actions = self.policy.passed(now);
        self.act(now, actions)?;
        if self.waits_in_vain(now) {
            self.give_up_all(now);
        }
        Ok(())
    }

    fn submit(&mut self, now: Nanos, number: usize) -> Result<(), Invalid> {
        let job = self.jobs[number];
        self.stirred = now;
        let actions = if job.nodes > self.nodes_most {
            vec![Action::Refuse(number)]
        } else {
            self.policy.submitted(now, number, &job)
        };
        self.act(now, actions)
    }

    /// What has failed and is back by now.
    fn change(&mut self, now: Nanos) -> Result<(), Invalid> {
        let changes = self.failures.as_mut().map(|failures| failures.pass(now));
        for change in changes.unwrap_or_default() {
            match change {
                Change::Failed(part) => self.fail(now, part)?,
                Change::Repaired(part) => self.repair(now, part)?,
            }
        }
        Ok(())
    }

    /// Who ran on nodes that are away by that is submitted anew at once; when all of them are known to be away, so that
    /// nobody gets one of them.
    fn fail(&mut self, now: Nanos, part: Part) -> Result<(), Invalid> {
        let nodes = self.reach.fail(self.machine.index(), part);
        self.failed.count(part, &nodes);
        if nodes.is_empty() {
            return Ok(());
        }
        let hit: BTreeSet<_> = nodes.iter().flat_map(|node| self.machine.on(*node)).collect();
        let hit: Vec<_> = hit.into_iter().collect();
        self.lost += self.machine.stop(now, &hit);
        let actions = self.policy.failed(now, &nodes, &hit);
        self.act(now, actions)?;
        for job in hit {
            self.fates[job].hits += 1;
            if self.fates[job].hits < HITS_MAX {
                self.submit(now, job)?;
            } else {
                self.give_up(now, job);
            }
        }
        Ok(())
    }

    fn repair(&mut self, now: Nanos, part: Part) -> Result<(), Invalid> {
        let nodes = self.reach.repair(self.machine.index(), part);
        if nodes.is_empty() {
            return Ok(());
        }
        let actions = self.policy.repaired(now, &nodes);
        self.act(now, actions)
    }

    fn act(&mut self, now: Nanos, actions: Vec<Action>) -> Result<(), Invalid> {
        let mut stirred = BTreeSet::new();
        for action in actions {
            match action {
                Action::Promise(job) => self.fates[job].promised = true,
                Action::Lose(job) => self.fates[job].displaced = true,
                Action::Refuse(job) => self.give_up(now, job),
                Action::Start(start) => {
                    let job = start.job;
                    self.fates[job].started = Some(now);
                    self.stirred = now;
                    self.check_start(&start);
                    stirred.extend(start.nodes.iter().copied());
                    self.machine.start(now, start, self.jobs[job].run)?;
                }
                Action::Change(job, hold) => {
                    stirred.extend(self.machine.nodes(job));
                    self.machine.change(now, job, hold);
                }
            }
        }
        self.check_reserved(now, &stirred);
        Ok(())
    }

    /// It is not run, or not to its end.
    fn give_up(&mut self, now: Nanos, job: usize) {
        let fate = &mut self.fates[job];
        if fate.promised || fate.started.is_some() {
            fate.given_up = true;
        } else {
            fate.refused = true;
        }
        self.count_over(now);
    }

    fn count_over(&mut self, now: Nanos) {
        self.over += 1;
        self.stirred = now;
    }

    /// Whether those that wait, and nobody else is left, have waited so long that there never are enough
    /// nodes at a time for any of them.
    fn waits_in_vain(&self, now: Nanos) -> bool {
        let Some(failures) = &self.failures else { return false };
        let is_quiet = self.next == self.jobs.len()
            && self.machine.running() == 0
            && self.policy.next().is_none();
        let patience = PATIENCE.saturating_add(failures.repair());
        is_quiet && now.saturating_sub(self.stirred) > patience
    }

    fn give_up_all(&mut self, now: Nanos) {
        for job in 0..self.jobs.len() {
            if !self.fates[job].is_over() {
                self.give_up(now, job);
            }
        }
    }

    /// Only a bug of a policy, or of the engine, can give a job a node twice, or one that is away.
    fn check_start(&self, start: &Start) {
        let mut sorted = start.nodes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), start.nodes.len(), "a node was given twice");
        let away = sorted.iter().find(|node| self.reach.is_away(**node));
        assert_eq!(away, None, "a node was given that is away");
    }

    /// Nor can it give more of a node than there is.
    fn check_reserved(&self, now: Nanos, nodes: &BTreeSet<NodeIndex>) {
        let most = u64::from(self.machine.cpu().get());
        let overbooked = nodes.iter().find(|node| self.machine.reserved(now, **node) > most);
        assert_eq!(overbooked, None, "a node was given of which others have too much");
    }
}

impl Tally {
    /// A part has failed, and these nodes are away by that.
    fn count(&mut self, part: Part, away: &[NodeIndex]) {
        match part.kind {
            Kind::Node => self.nodes += 1,
            Kind::Link => self.links += 1,
            Kind::Switch => self.switches += 1,
        }
        self.cut_off += away.iter().filter(|node| Part::node(**node) != part).count() as u64;
    }
}

impl Outcome {
    /// For each job, the second in which it ended; 0 if it was refused or given up.
    pub fn ended(&self) -> Vec<u64> {
        let second = |fate: &Fate| fate.ended.map_or(0, |at| at.get().div_ceil(NANOS_A_SECOND));
        self.fates.iter().map(second).collect()
    }

    /// In a few numbers.
    pub fn summary(&self, jobs: &[Submission], nodes: u32) -> Summary {
        Summary::of(self, jobs, nodes)
    }
}

/// A job that loses nodes so often will hardly ever end: it has too many, for too long.
pub const HITS_MAX: u32 = 10;
/// In so long every node of a cluster that can be used has been there again and again.
const PATIENCE: Nanos = Nanos::from_secs(30 * 86_400);
const NANOS_A_SECOND: u64 = 1_000_000_000;
/// A century: sums of two stay far from what nanoseconds can count.
const SECONDS_MAX: u64 = 100 * YEAR;
const YEAR: u64 = 31_557_600;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failures::{Reliabilities, Reliability};
    use crate::trace::{Class, chains, lublin};
    use proptest::prelude::*;

    fn outcome(shape: &str, policy: Choice, percent: u32, jobs: &[Submission]) -> Outcome {
        let communication = Share::from_percent(percent).unwrap();
        let trial = Trial::of(shape.parse().unwrap(), policy, communication);
        trial.run(jobs, &mut |_| {}).unwrap()
    }

    // Goal: the same arguments give the same outcome, and another seed another one.
    #[test]
    fn one_seed_has_one_result() {
        for policy in Choice::ALL {
            let of =
                |seed| outcome("fat-tree:80:8", policy, 30, &lublin::log(80, 200, 0.8, seed).jobs);
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
        }
    }

    #[test]
    fn what_keeptime_promises_is_kept_where_others_are_late() {
        let jobs = lublin::log(80, 400, 0.9, 5).jobs;
        let summary = |policy| outcome("fat-tree:80:8", policy, 30, &jobs).summary(&jobs, 80);
        let [in_advance, at_once, queue, classes, by, backfill, none] = Choice::ALL.map(summary);
        for ours in [&in_advance, &at_once] {
            assert_eq!((ours.broken, ours.promised + ours.refused), (0, 400));
            assert!(ours.promised > 200 && ours.admitted_late == 0, "{ours:?}");
        }
        // Who is late was promised nothing, and is run all the same.
        assert!(queue.broken == 0 && queue.promised > 200, "{queue:?}");
        assert!(queue.admitted_late < backfill.admitted_late, "{queue:?}, {backfill:?}");
        assert_eq!((by.broken, by.refused), (0, 0), "{by:?}");
        assert_eq!((classes.broken, classes.refused), (0, 0), "{classes:?}");
        assert_eq!((queue.refused, backfill.refused, none.refused), (0, 0, 0));
        assert!(none.admitted_late > 0, "{none:?}");
    }

    #[test]
    fn a_job_that_fits_starts_at_once_and_takes_its_time() {
        let class = Class::Normal;
        let job =
            Submission { submitted: 7, run: 60, requested: 90, nodes: 4, deadline: 200, class };
        for policy in Choice::WHOLE {
            let outcome = outcome("star:4", policy, 40, &[job]);
            assert_eq!(outcome.ended(), [67], "{policy}");
            assert_eq!(outcome.fates[0].started, Some(Nanos::from_secs(7)));
        }
    }

    /// What becomes of three jobs of 50 s on all nodes, for which 100 s are requested: whether each is
    /// promised, and when it ends.
    fn three(policy: Choice, deadlines: [u64; 3]) -> (Vec<bool>, Vec<u64>) {
        let class = Class::Normal;
        let job = |deadline| Submission {
            submitted: 0,
            run: 50,
            requested: 100,
            nodes: 4,
            deadline,
            class,
        };
        let outcome = outcome("star:4", policy, 0, &deadlines.map(job));
        (outcome.fates.iter().map(|fate| fate.promised).collect(), outcome.ended())
    }

    // Goal: a promise in advance waits for its turn, takes what an early end gives back, and no more than
    // that; who promises later knows how the first ended; who promises at once does not wait.
    #[test]
    fn what_can_wait_is_deferred_and_what_cannot_is_refused() {
        let three = |policy| three(policy, [100, 150, 200]);
        assert_eq!(three(Choice::Keeptime), (vec![true, false, true], vec![50, 0, 150]));
        assert_eq!(three(Choice::KeeptimeQueue), (vec![true, true, true], vec![50, 100, 150]));
        assert_eq!(three(Choice::KeeptimeGreedy), (vec![true, false, false], vec![50, 0, 0]));
    }

    // Goal: who cannot be in time any more lets those go first who can, and runs then, without a promise.
    #[test]
    fn who_is_too_late_in_the_queue_comes_last() {
        let (promised, ended) = three(Choice::KeeptimeQueue, [100, 110, 200]);
        assert_eq!((promised, ended), (vec![true, false, true], vec![50, 150, 100]));
    }

    // Goal: urgent jobs are in time as if nobody else was there, while all others wait; without classes the one
    // with the earlier deadline goes first, whoever it is.
    #[test]
    fn urgent_jobs_go_first_where_classes_count() {
        let job = |class, deadline| Submission {
            submitted: 0,
            run: 100,
            requested: 100,
            nodes: 4,
            deadline,
            class,
        };
        let jobs = [
            job(Class::Normal, 130),
            job(Class::Normal, 220),
            job(Class::Urgent, 230),
            job(Class::Urgent, 1_000),
        ];
        let ended = |policy| outcome("star:4", policy, 0, &jobs).ended();
        assert_eq!(ended(Choice::KeeptimeQueue), [100, 200, 400, 300]);
        assert_eq!(ended(Choice::KeeptimeClasses), [300, 400, 100, 200]);
    }

    // Goal: who can wait leaves the square root of all nodes, two, to who comes next and cannot; when it cannot wait any more
    // it takes them.
    #[test]
    fn who_can_wait_leaves_nodes_to_who_cannot() {
        let long = job(0, 1_000, 2, 10_000);
        let jobs = [long, long, job(10, 50, 2, 70), job(20, 1_000, 2, 1_100)];
        let ended = outcome("star:4", Choice::KeeptimeQueue, 0, &jobs).ended();
        assert_eq!(ended, [1_000, 2_060, 60, 1_060]);
    }

    // Goal: what a full cluster promises is kept, with classes and without, and nobody is refused for good. Whether classes
    // bring more urgent jobs home in time is measured with large logs: of four small ones, some wide jobs decide it.
    #[test]
    fn a_full_cluster_keeps_its_promises_with_classes_and_without() {
        for seed in 1..=4 {
            let jobs = lublin::log(80, 1_500, 0.9, seed).jobs;
            for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
                let summary = outcome("fat-tree:80:8", policy, 0, &jobs).summary(&jobs, 80);
                assert_eq!((summary.broken, summary.refused), (0, 0), "{summary:?}");
                assert!(summary.urgent_in_time_percent > 75.0, "{summary:?}");
            }
        }
    }

    // Goal: a large job that can wait is not passed by until it is too late: 4 nodes by 300, while jobs of
    // one node come that are less urgent.
    #[test]
    fn small_jobs_in_the_queue_do_not_delay_a_large_one_beyond_its_deadline() {
        let class = Class::Normal;
        let small = |submitted| Submission {
            submitted,
            run: 100,
            requested: 100,
            nodes: 1,
            deadline: 10_000,
            class,
        };
        let mut jobs: Vec<_> = (0..40).map(|at| small(20 * at)).collect();
        jobs.push(Submission {
            submitted: 60,
            run: 100,
            requested: 100,
            nodes: 4,
            deadline: 300,
            class,
        });
        jobs.sort_by_key(|job| job.submitted);
        let outcome = outcome("star:4", Choice::KeeptimeQueue, 0, &jobs);
        assert_eq!(outcome.summary(&jobs, 4).admitted_late, 0);
    }

    /// A job of 50 s that has time.
    fn patient(submitted: u64, nodes: u32) -> Submission {
        let class = Class::Normal;
        Submission { submitted, run: 50, requested: 100, nodes, deadline: 1_000, class }
    }

    fn refused(outcome: &Outcome) -> Vec<bool> {
        outcome.fates.iter().map(|fate| fate.refused).collect()
    }

    // Goal: whoever decides, a job of more nodes than the broker gives one is not run and is in nobody's way,
    // though the cluster has as many.
    #[test]
    fn a_job_of_too_many_nodes_is_refused_and_all_others_run() {
        let jobs = [patient(0, 4), patient(10, 5_000), patient(20, 90), patient(30, 1)];
        for percent in [0, 30] {
            for policy in Choice::WHOLE {
                let outcome = outcome("fat-tree:5200", policy, percent, &jobs);
                assert_eq!(refused(&outcome), [false, true, false, false], "{policy}, {percent} %");
                assert_eq!(outcome.ended(), [50, 0, 70, 80], "{policy}, {percent} %");
            }
        }
    }

    // Goal: a ring for which links between switches are too narrow for ever does not wait for ever: the second
    // rack has 10 nodes, and an uplink of 2.5 Gbit/s.
    #[test]
    fn a_job_that_is_not_granted_on_idle_nodes_is_refused_and_those_behind_it_run() {
        let jobs = [patient(0, 2), patient(10, 50), patient(20, 2)];
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses, Choice::KeeptimeBy] {
            let outcome = outcome("fat-tree:50:40", policy, 30, &jobs);
            assert_eq!(refused(&outcome), [false, true, false], "{policy}");
        }
    }

    // Goal: who cannot be in time any more has its turn in the end, whatever others come: a job for all nodes, while a new
    // patient one takes a node every 50 s for 100 s.
    #[test]
    fn who_is_late_is_not_passed_by_for_ever() {
        let mut jobs = steady_stream(400);
        jobs.insert(1, job(0, 50, 4, 0));
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
            // It is late by twenty times 50 s at 1,000 s, and those that run then take 100 s.
            let ended = outcome("star:4", policy, 0, &jobs).ended()[1];
            assert!((1_050..=1_200).contains(&ended), "{policy}: {ended}");
        }
    }

    // Goal: the same for each of those that are late, and who needs a node that is away is not waited for. Method: three are
    // late: one that was requested for long and has patience still, one for all nodes, of which one is away for an hour, and
    // one that has waited for long enough.
    #[test]
    fn who_is_late_has_its_turn_whoever_else_is_late() {
        let late = |requested, nodes| Submission { requested, ..job(0, 50, nodes, 0) };
        let mut jobs = steady_stream(100);
        jobs.splice(1..1, [late(100_000, 3), late(50, 4), late(50, 3)]);
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
            let failures = Failures::scripted(&[(0, part(Kind::Node, 3))], HOUR);
            let outcome = failing(4, policy, failures, &jobs);
            let [_, long, wide, third, ..] = outcome.ended()[..] else { panic!("{outcome:?}") };
            assert!((1_050..=1_200).contains(&third), "{policy}: {third}");
            assert!((3_650..=3_800).contains(&wide), "{policy}: {wide}");
            assert!(long > wide, "{policy}: {long}");
        }
    }

    // Goal: a job that is late and waits for rates that others have keeps no nodes idle until then. Method: two jobs leave one
    // node in each of two racks, so that the third has all of their uplinks for a day. A ring of 42 nodes waits for those,
    // and 38 nodes of the 78 that are free are used.
    #[test]
    fn who_waits_for_rates_keeps_no_nodes_idle_meanwhile() {
        let day = 86_400;
        let jobs = [
            job(0, 100, 39, 0),
            job(0, 100, 39, 0),
            job(1, day, 2, 0),
            job(200, 100, 42, 0),
            job(201, 100, 38, 0),
        ];
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
            let outcome = outcome("fat-tree:80:40", policy, 30, &jobs);
            let ended = outcome.ended();
            assert!(refused(&outcome).iter().all(|refused| !refused), "{policy}");
            assert_eq!(ended[2..], [day + 1, day + 101, 301], "{policy}");
        }
    }

    // Goal: what can never be granted is in nobody's way, whoever runs: 42 nodes in a ring need more of the uplink of a rack
    // than it has.
    #[test]
    fn what_never_fits_is_refused_while_others_run() {
        let day = 86_400;
        let jobs = [job(0, 10 * day, 1, 0), job(1, 100, 42, 0), job(2, 100, 20, 0)];
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
            let outcome = outcome("fat-tree:50:40", policy, 30, &jobs);
            assert_eq!(refused(&outcome), [false, true, false], "{policy}");
            assert_eq!(outcome.ended()[2], 102, "{policy}");
        }
    }

    const HOUR: Nanos = Nanos::from_secs(3_600);

    fn failing(nodes: u32, policy: Choice, failures: Failures, jobs: &[Submission]) -> Outcome {
        failing_in(&format!("star:{nodes}"), policy, failures, jobs)
    }

    fn failing_in(shape: &str, policy: Choice, failures: Failures, jobs: &[Submission]) -> Outcome {
        let topology = shape.parse::<Shape>().unwrap().topology();
        let communication = Share::from_percent(0).unwrap();
        let trial = Trial { topology, policy, communication, failures: Some(failures) };
        trial.run(jobs, &mut |_| {}).unwrap()
    }

    /// Each node fails once in so many hours and is away for one.
    fn every(hours: u64, nodes: u32, seed: u64) -> Failures {
        let between = Nanos::from_secs(hours * 3_600);
        of_nodes(nodes, Reliability::new(between, HOUR).unwrap(), seed)
    }

    fn of_nodes(nodes: u32, reliability: Reliability, seed: u64) -> Failures {
        let topology = Shape::star(nodes).unwrap().topology();
        let how = Reliabilities { nodes: Some(reliability), ..Reliabilities::default() };
        Failures::new(&topology, how, seed)
    }

    fn part(kind: Kind, number: u32) -> Part {
        Part { kind, number }
    }

    /// One part fails at 20 s.
    fn at_20(kind: Kind, number: u32, repair: Nanos) -> Failures {
        Failures::scripted(&[(20, part(kind, number))], repair)
    }

    /// A job that takes all that was requested for it.
    fn job(submitted: u64, run: u64, nodes: u32, deadline: u64) -> Submission {
        Submission { submitted, run, requested: run, nodes, deadline, class: Class::Normal }
    }

    /// The same for 100 s on two nodes.
    fn pair(submitted: u64, deadline: u64) -> Submission {
        job(submitted, 100, 2, deadline)
    }

    /// So many of one node that have time, one every 50 s, each for 100 s.
    fn steady_stream(count: u64) -> Vec<Submission> {
        (0..count).map(|number| job(50 * number, 100, 1, 1_000_000)).collect()
    }

    // Goal: a job whose node fails begins anew on others at once, whoever decides: 20 s on two nodes are lost.
    #[test]
    fn a_job_whose_node_fails_is_run_anew_on_others() {
        for policy in Choice::WHOLE {
            let jobs = [pair(0, 1_000)];
            // All policies give the first job the first nodes of an idle cluster.
            let outcome = failing(4, policy, at_20(Kind::Node, 0, HOUR), &jobs);
            assert_eq!(outcome.ended(), [120], "{policy}");
            let fate = outcome.fates[0];
            assert_eq!((fate.hits, fate.started), (1, Some(Nanos::from_secs(20))), "{policy}");
            assert_eq!(
                (outcome.failures, outcome.lost, outcome.done),
                (Tally { nodes: 1, ..Tally::default() }, 40.0, 200.0),
                "{policy}"
            );
            let summary = outcome.summary(&jobs, 4);
            assert_eq!((summary.broken, summary.jobs_hit, summary.given_up), (0, 1, 0), "{policy}");
        }
    }

    // Goal: a promise is broken when a failure leaves no time for it: by who promises at once the job is not run any more,
    // behind a queue it is late. Who has promised nothing breaks nothing.
    #[test]
    fn a_promise_that_a_failure_leaves_no_time_for_is_broken() {
        let jobs = [pair(0, 110)];
        let expected: fn(Choice) -> (u64, usize, usize, usize) = |policy| match policy {
            Choice::Keeptime | Choice::KeeptimeGreedy => (0, 1, 1, 0),
            Choice::KeeptimeQueue | Choice::KeeptimeClasses => (120, 1, 0, 1),
            Choice::KeeptimeBy => unreachable!("it gives parts of nodes"),
            Choice::FcfsBackfill | Choice::None => (120, 0, 0, 1),
        };
        for policy in Choice::WHOLE {
            let outcome = failing(4, policy, at_20(Kind::Node, 0, HOUR), &jobs);
            let Summary { broken, broken_by_failures, given_up, admitted_late, refused, .. } =
                outcome.summary(&jobs, 4);
            assert_eq!(broken_by_failures, broken, "{policy}");
            let came = (outcome.ended()[0], broken, given_up, admitted_late);
            assert_eq!(came, expected(policy), "{policy}");
            assert_eq!(refused, 0, "{policy}: it was admitted");
        }
    }

    // Goal: nobody is put on a node that is away; who needs it waits until it is back, is refused by who promises what begins
    // at once, and by who promises in advance promised a start at which it is taken to be back. For what has been away for 20 s
    // that is more than ten minutes ahead, and a minute for asking.
    #[test]
    fn a_job_that_needs_a_node_that_is_away_waits_for_it() {
        let jobs = [pair(30, 1_000)];
        for policy in Choice::WHOLE {
            let failures = [(10, part(Kind::Node, 1))];
            let failures = Failures::scripted(&failures, Nanos::from_secs(100));
            let outcome = failing(2, policy, failures, &jobs);
            let (ended, promised) = match policy {
                Choice::Keeptime => (791, true),
                Choice::KeeptimeGreedy => (0, false),
                Choice::KeeptimeQueue | Choice::KeeptimeClasses => (210, true),
                _ => (210, false),
            };
            assert_eq!(
                (outcome.ended(), outcome.fates[0].promised),
                (vec![ended], promised),
                "{policy}"
            );
            assert_eq!(outcome.fates[0].refused, policy == Choice::KeeptimeGreedy, "{policy}");
        }
    }

    // Goal: what is promised to begin soon is promised on nodes that are there, as the broker does, which tells its agents ten
    // minutes ahead. One of three nodes is away: the second job gets the other two, and nothing is left for the third.
    #[test]
    fn what_begins_soon_is_not_promised_a_node_that_is_away() {
        let jobs = [pair(0, 1_000), pair(20, 230), Submission { nodes: 1, ..pair(30, 230) }];
        let failures = [(0, part(Kind::Node, 0))];
        let failures = Failures::scripted(&failures, Nanos::from_secs(1_000));
        let outcome = failing(3, Choice::Keeptime, failures, &jobs);
        assert_eq!(refused(&outcome), [false, false, true]);
        assert_eq!(outcome.ended(), [100, 200, 0]);
    }

    // Goal: of the first in the queue, which waits for a node that is away, nobody delays the start: a short job runs
    // beside, a long one does not.
    #[test]
    fn backfill_does_not_pass_by_who_waits_for_a_node_for_ever() {
        let jobs = [
            job(0, 200, 1, 1_000),
            job(1, 50, 4, 1_000),
            job(2, 100, 1, 1_000),
            job(3, 500, 1, 1_000),
        ];
        let failures = [(0, part(Kind::Node, 3))];
        let failures = Failures::scripted(&failures, Nanos::from_secs(150));
        let outcome = failing(4, Choice::FcfsBackfill, failures, &jobs);
        assert_eq!(outcome.ended(), [200, 250, 102, 750]);
    }

    // Goal: whoever decides, a node whose link has failed is away as one that has failed itself.
    #[test]
    fn a_node_behind_a_link_that_fails_is_away() {
        for policy in Choice::ALL {
            let jobs = [pair(0, 1_000), pair(10, 2_000)];
            let of = |kind| failing(4, policy, at_20(kind, 0, HOUR), &jobs);
            let [by_node, by_link] = [Kind::Node, Kind::Link].map(of);
            let expected = Tally { links: 1, cut_off: 1, ..Tally::default() };
            assert_eq!(by_link.failures, expected, "{policy}");
            assert_eq!(by_link, Outcome { failures: expected, ..by_node }, "{policy}");
        }
    }

    // Goal: with the switch of a rack go all jobs of the rack and nobody else's, and who waits gets its nodes as soon as it
    // is back: 80 jobs on 80 nodes of two racks, which cannot wait for one another.
    #[test]
    fn a_switch_that_fails_takes_its_rack_along() {
        let jobs = [Submission { nodes: 1, ..pair(0, 160) }; 80];
        for policy in Choice::WHOLE {
            let failures = at_20(Kind::Switch, 0, Nanos::from_secs(30));
            let outcome = failing_in("fat-tree:80", policy, failures, &jobs);
            let expected = Tally { switches: 1, cut_off: 40, ..Tally::default() };
            assert_eq!(outcome.failures, expected, "{policy}");
            let hit = outcome.fates.iter().filter(|fate| fate.hits == 1).count();
            assert_eq!((hit, outcome.lost), (40, 800.0), "{policy}");
            if matches!(
                policy,
                Choice::KeeptimeQueue | Choice::KeeptimeClasses | Choice::FcfsBackfill
            ) {
                let mut ended = outcome.ended();
                ended.sort_unstable();
                assert_eq!(ended, [[100; 40], [150; 40]].concat(), "{policy}");
            }
        }
    }

    // Goal: while nobody can be reached nothing starts: who waits starts when the switch is back, who promises what begins
    // at once gives up, and its promise counts as broken by a failure; who promises in advance keeps it later.
    #[test]
    fn nothing_runs_while_the_only_switch_is_away() {
        let jobs = [pair(0, 1_000)];
        for policy in Choice::WHOLE {
            let outcome = failing(4, policy, at_20(Kind::Switch, 0, Nanos::from_secs(100)), &jobs);
            assert_eq!(outcome.failures.cut_off, 4, "{policy}");
            let expected = match policy {
                Choice::Keeptime => (781, 0, 0),
                Choice::KeeptimeGreedy => (0, 1, 1),
                _ => (220, 0, 0),
            };
            let Summary { broken, broken_by_failures, switch_failures, .. } =
                outcome.summary(&jobs, 4);
            assert_eq!((outcome.ended()[0], broken, broken_by_failures), expected, "{policy}");
            assert_eq!(switch_failures, 1, "{policy}");
        }
    }

    // Goal: a job that is hit again and again is given up in the end, and one for which there never are enough nodes
    // at a time is not waited for: 60 nodes that are away for ten hours of eleven.
    #[test]
    fn what_never_ends_is_given_up() {
        let long = 10 * 86_400;
        let job = Submission { run: long, requested: long, nodes: 1, ..pair(0, SECONDS_MAX) };
        let outcome = failing(1, Choice::None, every(1, 1, 1), &[job]);
        let fate = outcome.fates[0];
        assert!(fate.given_up && fate.hits == HITS_MAX, "{fate:?}");
        assert_eq!((outcome.ended(), outcome.done), (vec![0], 0.0));

        let job = Submission { nodes: 60, ..pair(360_000, 361_000) };
        for policy in [Choice::KeeptimeQueue, Choice::FcfsBackfill, Choice::None] {
            let reliability = Reliability::new(HOUR, Nanos::from_secs(36_000)).unwrap();
            let outcome = failing(60, policy, of_nodes(60, reliability, 1), &[job]);
            assert_eq!(refused(&outcome), [true], "{policy}");
        }
    }

    // Goal: the same failures have the same result, whoever decides, and those of another seed another one.
    #[test]
    fn one_seed_has_one_result_when_nodes_fail() {
        let jobs = lublin::log(80, 150, 0.8, 1).jobs;
        for policy in Choice::ALL {
            let of = |seed| failing(80, policy, every(24, 80, seed), &jobs);
            assert_eq!(of(1), of(1), "{policy}");
            assert_ne!(of(1), of(2), "{policy}");
        }
    }

    // Goal: the same when links and switches fail as well; no job is given a node that is away, which is asserted at each
    // start, and of what is promised only failures break anything.
    #[test]
    fn one_seed_has_one_result_when_everything_fails() {
        let jobs = lublin::log(80, 150, 0.8, 1).jobs;
        let topology = "fat-tree:80".parse::<Shape>().unwrap().topology();
        let every =
            |hours: u64| Some(Reliability::new(Nanos::from_secs(hours * 3_600), HOUR).unwrap());
        let how = Reliabilities { nodes: every(24), links: every(24), switches: every(8) };
        for policy in Choice::ALL {
            let of = |seed| {
                let failures = Failures::new(&topology, how, seed);
                failing_in("fat-tree:80", policy, failures, &jobs)
            };
            let outcome = of(1);
            let Tally { nodes, links, switches, cut_off } = outcome.failures;
            assert!(nodes > 0 && links > 0 && switches > 0 && cut_off > 0, "{policy}: {outcome:?}");
            let summary = outcome.summary(&jobs, 80);
            assert_eq!(summary.broken_by_failures, summary.broken, "{policy}");
            assert_eq!(outcome, of(1), "{policy}");
            assert_ne!(outcome, of(2), "{policy}");
        }
    }

    // Goal: what is promised is only broken by failures, and what failures throw away is counted.
    #[test]
    fn only_jobs_that_failures_have_hit_break_their_promise() {
        let jobs = lublin::log(80, 400, 0.8, 5).jobs;
        for policy in Choice::ALL {
            let outcome = failing(80, policy, every(24, 80, 7), &jobs);
            let summary = outcome.summary(&jobs, 80);
            assert!(summary.failures > 0 && summary.jobs_hit > 0, "{summary:?}");
            assert_eq!(summary.broken_by_failures, summary.broken, "{summary:?}");
            assert!(summary.lost_percent > 0.0 && summary.lost_node_hours > 0.0, "{summary:?}");
            for (job, fate) in jobs.iter().zip(&outcome.fates) {
                let is_late = fate.ended.is_some_and(|at| at > Nanos::from_secs(job.deadline));
                let is_broken = fate.promised && (is_late || fate.given_up);
                // One that did not start at all was to start on a node that was away.
                assert!(
                    !is_broken || fate.hits > 0 || fate.displaced || fate.started.is_none(),
                    "{policy}: {fate:?}"
                );
                assert!(fate.hits < HITS_MAX || fate.given_up, "{policy}: {fate:?}");
            }
        }
    }

    // Goal: time does not run out in silence: each job may take ten years, and they wait for one another.
    #[test]
    fn a_log_that_takes_centuries_is_refused() {
        let years = 10 * YEAR;
        let job = Submission { run: years, requested: years, nodes: 1, ..pair(0, SECONDS_MAX) };
        let trial = Trial::of(Shape::star(1).unwrap(), Choice::FcfsBackfill, Share::default());
        let error = trial.run(&[job; 60], &mut |_| {}).unwrap_err().to_string();
        let expected = "jobs: \"would not be over after 200 years\" is not accepted; expected less work, or more nodes";
        assert_eq!(error, expected);
    }

    /// What becomes of a job on both nodes of a cluster without addresses, whose links have these rates.
    fn on_links(policy: Choice, percent: u32, [of_a, of_b]: [&str; 2]) -> Result<Outcome, Invalid> {
        let node = |name: &str| format!(r#"{{ name = "{name}", cpu = "200 %" }}"#);
        let link =
            |name: &str, rate: &str| format!(r#"{{ between = ["{name}", "s"], rate = "{rate}" }}"#);
        let [nodes, links] = [[node("a"), node("b")], [link("a", of_a), link("b", of_b)]];
        let topology = Topology::from_toml(&format!(
            "name = \"c\"\nswitches = [{{ name = \"s\" }}]\nnodes = [{}]\nlinks = [{}]\n",
            nodes.join(", "),
            links.join(", ")
        ))?;
        let communication = Share::from_percent(percent).unwrap();
        let trial = Trial { topology, policy, communication, failures: None };
        trial.run(&[pair(0, 10_000)], &mut |_| {})
    }

    // Goal: links that are slower make no job faster, whoever decides: those that differ, and those of 1 or 2 bit/s, are refused
    // where jobs communicate; where they do not, and on links all alike, a job takes its time.
    #[test]
    fn a_slower_link_makes_no_job_faster() {
        for policy in Choice::WHOLE {
            let ended = |percent, rates| on_links(policy, percent, rates).map(|of| of.ended());
            for rates in [["1 Gbit/s", "1 kbit/s"], ["1 bit/s"; 2], ["2 bit/s"; 2]] {
                let field = ended(50, rates).unwrap_err().field;
                assert!(field.starts_with("links["), "{policy}, {rates:?}: {field}");
                assert_eq!(ended(0, rates), Ok(vec![100]), "{policy}, {rates:?}");
            }
            assert_eq!(ended(50, ["3 bit/s"; 2]), Ok(vec![100]), "{policy}");
        }
    }

    #[test]
    fn nodes_need_no_address_whoever_decides() {
        for policy in Choice::ALL {
            let outcome = on_links(policy, 50, ["1 Gbit/s"; 2]).unwrap();
            assert!(outcome.fates[0].ended.is_some(), "{policy}: {outcome:?}");
        }
    }

    #[test]
    fn a_job_that_makes_no_sense_is_named() {
        let class = Class::Normal;
        let job = Submission { submitted: 0, run: 50, requested: 10, nodes: 4, deadline: 9, class };
        let communication = Share::from_percent(0).unwrap();
        let shape = Shape::star(4).unwrap();
        let trial = Trial::of(shape, Choice::None, communication);
        let error = trial.run(&[job], &mut |_| {}).unwrap_err().to_string();
        let expected = r#"jobs[0].requested: "10" is not accepted; expected at least its run, 50"#;
        assert_eq!(error, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        // Goal: the same when nodes fail: what is thrown away counts as lost and not as done.
        #[test]
        fn work_is_conserved_when_nodes_fail(seed: u64) {
            let jobs = lublin::log(16, 30, 0.9, seed).jobs;
            for policy in Choice::ALL {
                let outcome = failing(16, policy, every(12, 16, seed), &jobs);
                let ran = jobs.iter().zip(&outcome.fates).filter(|(_, fate)| fate.ended.is_some());
                let work: u64 = ran.map(|(job, _)| job.run * u64::from(job.nodes)).sum();
                prop_assert!((outcome.done - work as f64).abs() < 1e-2, "{policy}: {outcome:?}");
                let hit = outcome.fates.iter().any(|fate| fate.hits > 0);
                prop_assert!(outcome.lost >= 0.0 && (hit || outcome.lost == 0.0), "{policy}");
            }
        }

        // Goal: work is neither lost nor made, whoever decides: what was counted while it was done is what
        // the jobs are that were not refused, and nobody ends before it can.
        #[test]
        fn work_is_conserved(seed: u64, percent in 0..90u32, interval in 0..60u64) {
            let jobs = chains::log(16, 60, interval, seed).jobs;
            for policy in Choice::ALL {
                let outcome = outcome("fat-tree:16:4", policy, percent, &jobs);
                let ran = || jobs.iter().zip(&outcome.fates).filter(|(_, fate)| !fate.refused);
                let work: u64 = ran().map(|(job, _)| job.run * u64::from(job.nodes)).sum();
                prop_assert!((outcome.done - work as f64).abs() < 1e-3, "{policy}");
                for (job, fate) in ran() {
                    let (started, ended) = (fate.started.unwrap(), fate.ended.unwrap());
                    prop_assert!(started >= Nanos::from_secs(job.submitted));
                    prop_assert!(ended.saturating_sub(started) >= Nanos::from_secs(job.run));
                }
            }
        }
    }
}
