//! What came of a log, in a few numbers.

use crate::policy::Choice;
use crate::simulate::{Fate, Outcome};
use crate::trace::{Class, Submission};
use keeptime_model::units::Nanos;
use serde::Serialize;

/// One policy's outcome. Jobs that were refused or given up have no wait and no slowdown, and are not in time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Under which policy.
    pub policy: Choice,
    /// All jobs.
    pub jobs: usize,
    /// That were not run.
    pub refused: usize,
    /// That were promised their deadline.
    pub promised: usize,
    /// That were promised it and ended later, or were given up.
    pub broken: usize,
    /// Those of them that had lost nodes, or did not get those that they were to begin on.
    pub broken_by_failures: usize,
    /// That were run and ended after their deadline, promised or not.
    pub admitted_late: usize,
    /// That were admitted and not run to their end, since nodes were away.
    pub given_up: usize,
    /// Jobs that were not refused, of all.
    pub admission_percent: f64,
    /// Jobs that ended by their deadline, of all.
    pub in_time_percent: f64,
    /// Urgent jobs that ended by their deadline, of all urgent ones; 100 of none.
    pub urgent_in_time_percent: f64,
    /// Work done, of what all nodes could have done from the first submission to the last end.
    pub utilisation_percent: f64,
    /// How often a node failed.
    pub failures: u64,
    /// How often a link failed.
    pub link_failures: u64,
    /// How often a switch failed.
    pub switch_failures: u64,
    /// How often a node was away since what it hangs from had failed.
    pub nodes_cut_off: u64,
    /// Jobs that ran on a node that failed or was cut off.
    pub jobs_hit: usize,
    /// Work that was done and lost with nodes that were away, in hours of a node.
    pub lost_node_hours: f64,
    /// Work that was done and lost with nodes that were away, of what all nodes could have done.
    pub lost_percent: f64,
    /// From submission to start, the last one of a job that was run anew.
    pub wait_seconds: Option<Quantiles>,
    /// From submission to end, over the time at full speed; jobs below 10 s count as 10 s, and what is
    /// below 1 as 1 (Feitelson's bounded slowdown).
    pub slowdown: Option<Quantiles>,
    /// From start to end, over the time at full speed.
    pub stretch: Option<Quantiles>,
}

/// Of the jobs that were run, if any was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half have no more.
    pub median: f64,
    /// 95 of 100 have no more.
    pub p95: f64,
    /// None has more.
    pub most: f64,
}

const SHORT: f64 = 10.0;
const SECONDS_AN_HOUR: f64 = 3_600.0;

impl Summary {
    pub(crate) fn of(outcome: &Outcome, jobs: &[Submission], nodes: u32) -> Self {
        let pairs = || jobs.iter().zip(&outcome.fates);
        let count = |is: fn(&Submission, &Fate) -> bool| pairs().filter(|(j, f)| is(j, f)).count();
        let percent = |part: usize| 100.0 * part as f64 / jobs.len().max(1) as f64;
        let runs: Vec<_> = pairs().filter_map(|(job, fate)| Run::of(job, fate)).collect();
        let quantiles = |of: fn(&Run) -> f64| Quantiles::of(runs.iter().map(of).collect());
        let refused = count(|_, fate| fate.refused);
        let given_up = count(|_, fate| fate.given_up);
        let late = count(is_late);
        let could_have_done = f64::from(nodes) * span(outcome, jobs);
        let part = |work: f64| if could_have_done > 0.0 { work / could_have_done } else { 0.0 };
        Self {
            policy: outcome.policy,
            jobs: jobs.len(),
            refused,
            promised: count(|_, fate| fate.promised),
            broken: count(is_broken),
            broken_by_failures: count(|job, fate| {
                is_broken(job, fate) && (fate.given_up || fate.hits > 0 || fate.displaced)
            }),
            admitted_late: late,
            given_up,
            admission_percent: percent(jobs.len() - refused),
            in_time_percent: percent(jobs.len() - refused - given_up - late),
            urgent_in_time_percent: urgent_in_time(outcome, jobs),
            utilisation_percent: 100.0 * part(outcome.done),
            failures: outcome.failures.nodes,
            link_failures: outcome.failures.links,
            switch_failures: outcome.failures.switches,
            nodes_cut_off: outcome.failures.cut_off,
            jobs_hit: count(|_, fate| fate.hits > 0),
            lost_node_hours: outcome.lost / SECONDS_AN_HOUR,
            lost_percent: 100.0 * part(outcome.lost),
            wait_seconds: quantiles(|run| run.wait),
            slowdown: quantiles(|run| ((run.wait + run.took) / run.alone.max(SHORT)).max(1.0)),
            stretch: quantiles(|run| run.took / run.alone),
        }
    }
}

/// A job that was run, in seconds.
struct Run {
    wait: f64,
    took: f64,
    alone: f64,
}

impl Run {
    fn of(job: &Submission, fate: &Fate) -> Option<Self> {
        let (started, ended) = (fate.started?, fate.ended?);
        let wait = started.saturating_sub(Nanos::from_secs(job.submitted)).as_secs_f64();
        let took = ended.saturating_sub(started).as_secs_f64();
        Some(Self { wait, took, alone: job.run as f64 })
    }
}

fn is_late(job: &Submission, fate: &Fate) -> bool {
    fate.ended.is_some_and(|ended| ended > Nanos::from_secs(job.deadline))
}

fn is_broken(job: &Submission, fate: &Fate) -> bool {
    fate.promised && (fate.given_up || is_late(job, fate))
}

fn urgent_in_time(outcome: &Outcome, jobs: &[Submission]) -> f64 {
    let pairs = jobs.iter().zip(&outcome.fates);
    let urgent: Vec<_> = pairs.filter(|(job, _)| job.class == Class::Urgent).collect();
    let is_in_time = |(job, fate): &&(&Submission, &Fate)| {
        !fate.refused && !fate.given_up && !is_late(job, fate)
    };
    let in_time = urgent.iter().filter(is_in_time).count();
    if urgent.is_empty() { 100.0 } else { 100.0 * in_time as f64 / urgent.len() as f64 }
}

/// Seconds from the first submission to the last end.
fn span(outcome: &Outcome, jobs: &[Submission]) -> f64 {
    let first = jobs.first().map_or(0, |job| job.submitted);
    let last = outcome.fates.iter().filter_map(|fate| fate.ended).max().unwrap_or(Nanos::new(0));
    last.saturating_sub(Nanos::from_secs(first)).as_secs_f64()
}

impl Quantiles {
    /// By nearest rank; nothing of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = (part * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied()
        };
        Some(Self { median: at(0.5)?, p95: at(0.95)?, most: at(1.0)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Tally;

    #[test]
    fn numbers_are_those_of_the_fates() {
        let job = |submitted, deadline| Submission {
            submitted,
            run: 10,
            requested: 10,
            nodes: 1,
            deadline,
            class: Class::Normal,
        };
        let ran = |from, to| Fate {
            promised: true,
            started: Some(Nanos::from_secs(from)),
            ended: Some(Nanos::from_secs(to)),
            ..Fate::default()
        };
        let refused = Fate { refused: true, ..Fate::default() };
        let given_up = Fate { promised: true, given_up: true, hits: 10, ..Fate::default() };
        let fates = vec![ran(0, 10), ran(10, 30), refused, given_up];
        let policy = Choice::Keeptime;
        let failures = Tally { nodes: 12, links: 3, switches: 2, cut_off: 5 };
        let outcome = Outcome { policy, fates, done: 20.0, failures, lost: 3.0 };
        let summary = outcome.summary(&[job(0, 10), job(0, 29), job(5, 99), job(5, 99)], 1);
        assert_eq!((summary.promised, summary.broken, summary.refused), (3, 2, 1));
        // Who was late without being hit was not made late by a failure.
        assert_eq!(summary.broken_by_failures, 1);
        assert_eq!((summary.given_up, summary.jobs_hit, summary.failures), (1, 1, 12));
        let of_others = (summary.link_failures, summary.switch_failures, summary.nodes_cut_off);
        assert_eq!(of_others, (3, 2, 5));
        assert!((summary.utilisation_percent - 200.0 / 3.0).abs() < 1e-9);
        assert!((summary.lost_percent - 10.0).abs() < 1e-9);
        assert!((summary.lost_node_hours - 3.0 / 3_600.0).abs() < 1e-12);
        assert!((summary.admission_percent - 75.0).abs() < 1e-9);
        assert!((summary.in_time_percent - 25.0).abs() < 1e-9);
        assert_eq!(summary.wait_seconds, Some(Quantiles { median: 0.0, p95: 10.0, most: 10.0 }));
        assert_eq!(summary.slowdown.unwrap().most, 3.0);
        assert_eq!(summary.stretch.unwrap().most, 2.0);
        // Who waited anew since a node was away was.
        let fates = vec![Fate { displaced: true, ..ran(10, 30) }];
        let summary = Outcome { fates, ..outcome }.summary(&[job(0, 29)], 1);
        assert_eq!((summary.broken, summary.broken_by_failures, summary.jobs_hit), (1, 1, 0));
    }
}
