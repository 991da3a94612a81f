//! A log on a cluster under a policy, in virtual time.

use crate::machine::{Machine, Traffic};
use crate::policy::{Action, Choice, Policy};
use crate::shape::{self, Shape};
use crate::summary::Summary;
use crate::trace::Submission;
use keeptime_model::Invalid;
use keeptime_model::pattern::RANKS_MAX;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use keeptime_planner::tree::PlacementIndex;

/// What is to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WhatIf {
    /// The cluster.
    pub shape: Shape,
    /// Who starts when and where.
    pub policy: Choice,
    /// The part of a job's time that it exchanges when nothing is in its way. A job on one node
    /// exchanges nothing.
    pub communication: Share,
}

/// What became of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// It was promised its deadline.
    pub promised: bool,
    /// It was not run.
    pub refused: bool,
    /// When it started.
    pub started: Option<Nanos>,
    /// When it ended.
    pub ended: Option<Nanos>,
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
}

/// Runs `jobs`, which are in the order of their submission, to the end of the last. `progress` is told
/// from time to time how many have ended or were refused. Memory is that of the jobs and what runs. Whatever
/// the policy, a job of more nodes than there are, or than the broker gives one job, is refused.
///
/// # Errors
/// If a job makes no sense, or some job never ends.
pub fn simulate(
    what: &WhatIf,
    jobs: &[Submission],
    progress: &mut dyn FnMut(usize),
) -> Result<Outcome, Invalid> {
    check(jobs)?;
    let topology = what.shape.topology()?;
    let traffic = Traffic { communication: what.communication, flow: flow(&topology) };
    let policy = what.policy.begin(topology.clone(), traffic)?;
    let machine = Machine::new(PlacementIndex::new(topology), traffic);
    let fates = vec![Fate::default(); jobs.len()];
    let nodes_most = what.shape.nodes.min(RANKS_MAX);
    let mut replay = Replay { jobs, nodes_most, policy, machine, fates, next: 0, over: 0 };
    let mut now = Nanos::new(0);
    while let Some(due) = replay.next_event() {
        now = now.max(due);
        replay.happen(now)?;
        progress(replay.over);
    }
    if let Some(job) = replay.fates.iter().position(|fate| !fate.refused && fate.ended.is_none()) {
        return Err(Invalid::new(format!("jobs[{job}]"), "never ends", "a job that can be run"));
    }
    Ok(Outcome { policy: what.policy, fates: replay.fates, done: replay.machine.done() })
}

/// The rate at which a job's flows make it no faster any more: two leave each node, and together they have
/// what of a node's link may be reserved.
fn flow(topology: &keeptime_model::topology::Topology) -> BitsPerSecond {
    let link = topology.links().first().map_or(BitsPerSecond::ZERO, |link| link.rate);
    shape::reservable(link).divided_floor(2)
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
    policy: Box<dyn Policy>,
    machine: Machine,
    fates: Vec<Fate>,
    /// The next to be submitted.
    next: usize,
    /// How many have ended or were refused.
    over: usize,
}

impl Replay<'_> {
    fn next_event(&self) -> Option<Nanos> {
        let submission = self.jobs.get(self.next).map(|job| Nanos::from_secs(job.submitted));
        let wish = self.policy.next();
        [submission, self.machine.next_end(), wish].into_iter().flatten().min()
    }

    /// Ends first: what they give back is there for what begins now.
    fn happen(&mut self, now: Nanos) -> Result<(), Invalid> {
        for job in self.machine.end(now) {
            self.fates[job].ended = Some(now);
            self.over += 1;
            let actions = self.policy.ended(now, job);
            self.act(now, actions)?;
        }
        let actions = self.policy.passed(now);
        self.act(now, actions)?;
        while let Some(job) = self.jobs.get(self.next) {
            if Nanos::from_secs(job.submitted) > now {
                break;
            }
            let actions = if job.nodes > self.nodes_most {
                vec![Action::Refuse(self.next)]
            } else {
                self.policy.submitted(now, self.next, job)
            };
            self.next += 1;
            self.act(now, actions)?;
        }
        let actions = self.policy.passed(now);
        self.act(now, actions)
    }

    fn act(&mut self, now: Nanos, actions: Vec<Action>) -> Result<(), Invalid> {
        for action in actions {
            match action {
                Action::Promise(job) => self.fates[job].promised = true,
                Action::Refuse(job) => {
                    self.fates[job].refused = true;
                    self.over += 1;
                }
                Action::Start(start) => {
                    let job = start.job;
                    self.fates[job].started = Some(now);
                    assert_exclusive(&start.nodes);
                    self.machine.start(now, start, self.jobs[job].run)?;
                }
            }
        }
        Ok(())
    }
}

/// Only a bug of a policy can give a job a node twice.
fn assert_exclusive(nodes: &[NodeIndex]) {
    let mut sorted = nodes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), nodes.len(), "a node was given twice");
}

impl Outcome {
    /// For each job, the second in which it ended; 0 if it was refused.
    pub fn ended(&self) -> Vec<u64> {
        let second = |fate: &Fate| fate.ended.map_or(0, |at| at.get().div_ceil(NANOS_A_SECOND));
        self.fates.iter().map(second).collect()
    }

    /// In a few numbers.
    pub fn summary(&self, jobs: &[Submission], nodes: u32) -> Summary {
        Summary::of(self, jobs, nodes)
    }
}

const NANOS_A_SECOND: u64 = 1_000_000_000;
/// A century: sums of two stay far from what nanoseconds can count.
const SECONDS_MAX: u64 = 3_155_760_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Class, chains, lublin};
    use proptest::prelude::*;

    fn outcome(shape: &str, policy: Choice, percent: u32, jobs: &[Submission]) -> Outcome {
        let communication = Share::from_percent(percent).unwrap();
        let what = WhatIf { shape: shape.parse().unwrap(), policy, communication };
        simulate(&what, jobs, &mut |_| {}).unwrap()
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
        let [in_advance, at_once, queue, classes, backfill, none] = Choice::ALL.map(summary);
        for ours in [&in_advance, &at_once] {
            assert_eq!((ours.broken, ours.promised + ours.refused), (0, 400));
            assert!(ours.promised > 200 && ours.admitted_late == 0, "{ours:?}");
        }
        // Who is late was promised nothing, and is run all the same.
        assert!(queue.broken == 0 && queue.promised > 200, "{queue:?}");
        assert!(queue.admitted_late < backfill.admitted_late, "{queue:?}, {backfill:?}");
        assert_eq!((classes.broken, classes.refused), (0, 0), "{classes:?}");
        assert_eq!((queue.refused, backfill.refused, none.refused), (0, 0, 0));
        assert!(none.admitted_late > 0, "{none:?}");
    }

    #[test]
    fn a_job_that_fits_starts_at_once_and_takes_its_time() {
        let class = Class::Normal;
        let job =
            Submission { submitted: 7, run: 60, requested: 90, nodes: 4, deadline: 200, class };
        for policy in Choice::ALL {
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

    #[test]
    fn classes_bring_urgent_jobs_of_a_full_cluster_home_in_time() {
        let jobs = lublin::log(80, 600, 0.97, 5).jobs;
        let of = |policy| outcome("fat-tree:80:8", policy, 0, &jobs).summary(&jobs, 80);
        let [queue, classes] = [Choice::KeeptimeQueue, Choice::KeeptimeClasses].map(of);
        let urgent = |summary: &Summary| summary.urgent_in_time_percent;
        assert!(urgent(&classes) > urgent(&queue), "{classes:?}, {queue:?}");
        assert_eq!((classes.broken, classes.refused), (0, 0), "{classes:?}");
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
            for policy in Choice::ALL {
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
        for policy in [Choice::KeeptimeQueue, Choice::KeeptimeClasses] {
            let outcome = outcome("fat-tree:50:40", policy, 30, &jobs);
            assert_eq!(refused(&outcome), [false, true, false], "{policy}");
        }
    }

    #[test]
    fn a_job_that_makes_no_sense_is_named() {
        let class = Class::Normal;
        let job = Submission { submitted: 0, run: 50, requested: 10, nodes: 4, deadline: 9, class };
        let communication = Share::from_percent(0).unwrap();
        let shape = Shape::star(4).unwrap();
        let what = WhatIf { shape, policy: Choice::None, communication };
        let error = simulate(&what, &[job], &mut |_| {}).unwrap_err().to_string();
        let expected = r#"jobs[0].requested: "10" is not accepted; expected at least its run, 50"#;
        assert_eq!(error, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

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
