//! A log under the planner: each job is admitted or runs on what is left, and it is planned again
//! whenever one comes or ends; then those that were refused are asked for once more.

use super::{Outcome, PROMISED};
use anyhow::{Result, bail};
use keeptime_model::name::Name;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::deadline::{
    Cluster, Job, Plan, Promotion, Wants, plan_with, promote, replan,
};
use keeptime_whatif::trace::Submission;

/// A job that was submitted and has not ended.
struct Active {
    number: usize,
    /// As the planner knows it: with what its user requested.
    job: Job,
    /// What it really takes.
    left: Nanos,
}

struct Replay<'a> {
    jobs: &'a [Submission],
    cluster: Cluster,
    now: WallTime,
    active: Vec<Active>,
    plan: Plan,
    outcome: Outcome,
}

/// Replays `jobs`, in the order of their submission.
///
/// # Errors
/// If the planner finds a job to make no sense, or leaves one for ever.
pub fn planned(nodes: u32, jobs: &[Submission]) -> Result<Outcome> {
    let outcome = Outcome { ended: vec![0; jobs.len()], promised: vec![false; jobs.len()] };
    let cluster = Cluster::of(nodes, PROMISED);
    let (now, active) = (at(0), vec![]);
    let mut replay = Replay { jobs, cluster, now, active, plan: Plan::default(), outcome };
    let mut next = 0;
    loop {
        let submission = jobs.get(next).map(|job| at(job.submitted));
        let change = replay.plan.next_change(replay.now);
        let Some(now) = submission.into_iter().chain(change).chain(replay.next_end()).min() else {
            break;
        };
        let ended = replay.advance(now);
        if ended {
            replay.plan_again();
            replay.promote_refused();
        }
        while jobs.get(next).is_some_and(|job| at(job.submitted) <= now) {
            replay.submit(next)?;
            next += 1;
        }
    }
    match replay.active.first() {
        None => Ok(replay.outcome),
        Some(active) => bail!("{} never ends", active.job.name),
    }
}

impl Replay<'_> {
    /// Lets all run until `now`; whether any job has ended.
    fn advance(&mut self, now: WallTime) -> bool {
        let span = now.saturating_since(self.now);
        for active in &mut self.active {
            let Some(own) = self.plan.jobs().get(&active.job.name) else { continue };
            let rate = own.rate_at(self.now);
            if rate.ppm() > 0 && !active.job.is_placed() {
                active.job.nodes = own.nodes.clone();
            }
            // All jobs have one speed.
            let done = u128::from(span.get()) * u128::from(rate.ppm()) / 1_000_000;
            active.left = active.left.saturating_sub(Nanos::new(done as u64));
            active.job.progress(span, rate);
        }
        self.now = now;
        let before = self.active.len();
        let ended = &mut self.outcome.ended;
        self.active.retain(|active| {
            let is_over = active.left <= ROUNDING;
            if is_over {
                ended[active.number] = now.unix_nanos().div_ceil(SECOND);
            }
            !is_over
        });
        self.active.len() < before
    }

    fn submit(&mut self, number: usize) -> Result<()> {
        let Submission { run, requested, nodes, deadline, .. } = self.jobs[number];
        let name: Name = format!("j{number}").parse()?;
        let work = Nanos::from_secs(requested);
        let job = Job {
            wants: Wants::By(at(deadline)),
            from_unix_nanos: self.now,
            ..Job::new(name, work, nodes)
        };
        let jobs = self.jobs();
        let wants = match plan_with(self.now, &self.cluster, &jobs, &self.plan, &job)? {
            Some(plan) => {
                self.outcome.promised[number] = true;
                self.plan = plan;
                job.wants
            }
            None => Wants::Rest,
        };
        let job = Job { wants, ..job };
        self.active.push(Active { number, job, left: Nanos::from_secs(run) });
        if wants == Wants::Rest {
            self.plan_again();
        }
        Ok(())
    }

    fn plan_again(&mut self) {
        self.plan = replan(self.now, &self.cluster, &self.jobs(), &self.plan);
    }

    /// Who was refused may be in time after all, now that another has ended.
    fn promote_refused(&mut self) {
        let in_time = |(index, active): (usize, &Active)| {
            let (job, by) = (&active.job, at(self.jobs[active.number].deadline));
            let asks = job.wants == Wants::Rest && by > self.now;
            asks.then(|| (index, Promotion { name: job.name.clone(), by }))
        };
        let (indices, asked): (Vec<_>, Vec<_>) =
            self.active.iter().enumerate().filter_map(in_time).unzip();
        let mut next = 0;
        while let Some((skipped, plan)) =
            promote(self.now, &self.cluster, &self.jobs(), &self.plan, &asked[next..])
        {
            let active = &mut self.active[indices[next + skipped]];
            active.job.wants = Wants::By(asked[next + skipped].by);
            self.outcome.promised[active.number] = true;
            self.plan = plan;
            next += skipped + 1;
        }
    }

    fn jobs(&self) -> Vec<Job> {
        self.active.iter().map(|active| active.job.clone()).collect()
    }

    /// When the first of those that run ends, if rates stay.
    fn next_end(&self) -> Option<WallTime> {
        let ends = self.active.iter().filter_map(|active| {
            let rate = self.plan.jobs().get(&active.job.name)?.rate_at(self.now).ppm();
            let nanos = u128::from(active.left.get()) * 1_000_000;
            let needed = nanos.checked_div(u128::from(rate))? + 1;
            Some(self.now.saturating_add(Nanos::new(u64::try_from(needed).unwrap_or(u64::MAX))))
        });
        ends.min()
    }
}

fn at(seconds: u64) -> WallTime {
    WallTime::from_unix_nanos(seconds * SECOND)
}

const SECOND: u64 = 1_000_000_000;
/// Less is nothing: each step rounds by up to a nanosecond.
const ROUNDING: Nanos = Nanos::new(1_000);

#[cfg(test)]
mod tests {
    use super::super::simulated;
    use super::*;
    use keeptime_whatif::policy::Choice;
    use keeptime_whatif::trace::{Class, lublin};

    // Goal: nothing that was promised is broken, all work is done, and fewer are late than by backfill, which
    // promises nothing.
    #[test]
    fn a_small_log_is_replayed() {
        let log = lublin::log(64, 60, 0.8, 7);
        let planned = planned(log.nodes, &log.jobs).unwrap();
        assert_eq!(planned.broken(&log.jobs), 0);
        let at_least = |(ended, job): (&u64, &Submission)| *ended >= job.submitted + job.run;
        assert!(planned.ended.iter().zip(&log.jobs).all(at_least));
        let by = |policy| simulated(policy, log.nodes, &log.jobs).unwrap();
        let [queued, backfilled] = [Choice::KeeptimeQueue, Choice::FcfsBackfill].map(by);
        for outcome in [&queued, &backfilled] {
            assert!(outcome.ended.iter().zip(&log.jobs).all(at_least));
            assert_eq!(outcome.broken(&log.jobs), 0);
        }
        assert!(planned.late(&log.jobs) <= backfilled.late(&log.jobs));
        assert!(queued.promised.contains(&true) && !backfilled.promised.contains(&true));
    }

    #[test]
    fn who_was_refused_is_promised_its_deadline_when_another_ends_early() {
        let class = Class::Normal;
        let first =
            Submission { submitted: 0, run: 9, requested: 90, nodes: 4, deadline: 101, class };
        let second =
            Submission { submitted: 1, run: 90, requested: 90, nodes: 4, deadline: 150, class };
        let outcome = planned(4, &[first, second]).unwrap();
        assert_eq!(outcome.promised, [true, true]);
        assert_eq!(outcome.ended, [11, 111]);
        // But not while the first may still need all of its time.
        let long = Submission { run: 90, ..first };
        assert_eq!(planned(4, &[long, second]).unwrap().promised, [true, false]);
    }

    #[test]
    fn one_job_alone_takes_what_its_share_allows() {
        let class = Class::Normal;
        let job =
            Submission { submitted: 5, run: 90, requested: 180, nodes: 2, deadline: 400, class };
        let outcome = planned(4, &[job]).unwrap();
        assert_eq!((outcome.ended[0], outcome.promised[0]), (106, true));
    }
}
