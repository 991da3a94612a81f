//! What came of a log, in a few numbers.

use crate::policy::Choice;
use crate::simulate::{Fate, Outcome};
use crate::trace::{Class, Submission};
use keeptime_model::units::Nanos;
use serde::Serialize;

/// One policy's outcome. Jobs that were refused have no wait and no slowdown, and are not in time.
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
    /// That were promised it and ended later.
    pub broken: usize,
    /// That were run and ended after their deadline, promised or not.
    pub admitted_late: usize,
    /// Jobs that were run, of all.
    pub admission_percent: f64,
    /// Jobs that ended by their deadline, of all.
    pub in_time_percent: f64,
    /// Urgent jobs that ended by their deadline, of all urgent ones; 100 of none.
    pub urgent_in_time_percent: f64,
    /// Work done, of what all nodes could have done from the first submission to the last end.
    pub utilisation_percent: f64,
    /// From submission to start.
    pub wait_seconds: Quantiles,
    /// From submission to end, over the time at full speed; jobs below 10 s count as 10 s, and what is
    /// below 1 as 1 (Feitelson's bounded slowdown).
    pub slowdown: Quantiles,
    /// From start to end, over the time at full speed.
    pub stretch: Quantiles,
}

/// Of the jobs that were run.
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

impl Summary {
    pub(crate) fn of(outcome: &Outcome, jobs: &[Submission], nodes: u32) -> Self {
        let pairs = || jobs.iter().zip(&outcome.fates);
        let count = |is: fn(&Submission, &Fate) -> bool| pairs().filter(|(j, f)| is(j, f)).count();
        let percent = |part: usize| 100.0 * part as f64 / jobs.len().max(1) as f64;
        let runs: Vec<_> = pairs().filter_map(|(job, fate)| Run::of(job, fate)).collect();
        let quantiles = |of: fn(&Run) -> f64| Quantiles::of(runs.iter().map(of).collect());
        let refused = count(|_, fate| fate.refused);
        let late = count(is_late);
        Self {
            policy: outcome.policy,
            jobs: jobs.len(),
            refused,
            promised: count(|_, fate| fate.promised),
            broken: count(|job, fate| fate.promised && is_late(job, fate)),
            admitted_late: late,
            admission_percent: percent(jobs.len() - refused),
            in_time_percent: percent(jobs.len() - refused - late),
            urgent_in_time_percent: urgent_in_time(outcome, jobs),
            utilisation_percent: 100.0 * utilisation(outcome, jobs, nodes),
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

fn urgent_in_time(outcome: &Outcome, jobs: &[Submission]) -> f64 {
    let pairs = jobs.iter().zip(&outcome.fates);
    let urgent: Vec<_> = pairs.filter(|(job, _)| job.class == Class::Urgent).collect();
    let is_in_time = |(job, fate): &&(&Submission, &Fate)| !fate.refused && !is_late(job, fate);
    let in_time = urgent.iter().filter(is_in_time).count();
    if urgent.is_empty() { 100.0 } else { 100.0 * in_time as f64 / urgent.len() as f64 }
}

fn utilisation(outcome: &Outcome, jobs: &[Submission], nodes: u32) -> f64 {
    let first = jobs.first().map_or(0, |job| job.submitted);
    let last = outcome.fates.iter().filter_map(|fate| fate.ended).max().unwrap_or(Nanos::new(0));
    let span = last.saturating_sub(Nanos::from_secs(first)).as_secs_f64();
    if span > 0.0 { outcome.done / (f64::from(nodes) * span) } else { 0.0 }
}

impl Quantiles {
    /// By nearest rank; 0 where there is nothing.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = (part * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { median: at(0.5), p95: at(0.95), most: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            refused: false,
        };
        let refused = Fate { refused: true, ..Fate::default() };
        let fates = vec![ran(0, 10), ran(10, 30), refused];
        let outcome = Outcome { policy: Choice::Keeptime, fates, done: 20.0 };
        let summary = outcome.summary(&[job(0, 10), job(0, 29), job(5, 99)], 1);
        assert_eq!((summary.promised, summary.broken, summary.refused), (2, 1, 1));
        assert!((summary.utilisation_percent - 200.0 / 3.0).abs() < 1e-9);
        assert!((summary.in_time_percent - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(summary.wait_seconds, Quantiles { median: 0.0, p95: 10.0, most: 10.0 });
        assert_eq!(summary.slowdown.most, 3.0);
        assert_eq!(summary.stretch.most, 2.0);
    }
}
