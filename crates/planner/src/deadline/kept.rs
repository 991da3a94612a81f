//! Promises that go on as they were planned, and what they leave to the others.

use super::job::{Job, Wants};
use super::plan::{Cluster, JobPlan, Plan, due, in_order, keeps, lay_in, planned_layout, sensible};
use super::space::{Layout, Space};
use keeptime_model::units::WallTime;

/// Jobs some of which have a promise that goes on: what these have, which does not depend on the others.
#[derive(Debug)]
pub(super) struct Kept<'a> {
    now: WallTime,
    /// What they have.
    plan: Plan,
    /// What they leave.
    space: Space<'a>,
    /// Those that have no such promise.
    others: Vec<&'a Job>,
}

impl<'a> Kept<'a> {
    /// Those of `jobs` that have a promise which `before` keeps go on by it, or are done sooner where others have ended
    /// before their time.
    pub fn new(
        now: WallTime,
        cluster: &'a Cluster,
        jobs: impl IntoIterator<Item = &'a Job>,
        before: &Plan,
    ) -> Self {
        let mut space = Space::new(now.unix_nanos(), cluster);
        let (mut promises, mut others) = (Vec::new(), Vec::new());
        for job in sensible(cluster, jobs) {
            space.occupy(&job.nodes);
            match rest_of_promise(now, cluster, job, before) {
                Some(layout) => promises.push((job, layout)),
                None => others.push(job),
            }
        }
        promises.sort_by_cached_key(|(job, layout)| (layout.ends, job.name.clone()));
        promises.retain(|(job, layout)| {
            // Nodes may have less than when that was planned.
            let fits = space.fits(job, layout);
            if fits {
                space.take(job, layout);
            } else {
                others.push(*job);
            }
            fits
        });
        let mut plan = Plan::default();
        for (job, before) in promises {
            space.give_back(job, &before);
            let sooner = planned_layout(now, &space, job);
            let is_sooner = keeps(now, job, &sooner) && sooner.ends < before.ends;
            let layout = if is_sooner { sooner } else { before };
            space.take(job, &layout);
            plan.jobs.insert(job.name.clone(), JobPlan::of(now, job, layout));
        }
        Self { now, plan, space, others }
    }

    /// The plan of all of them.
    pub fn with_others(mut self) -> Plan {
        lay_in(self.now, &mut self.space, &mut self.plan, in_order(&self.others, due));
        self.plan
    }

    /// The same, `wanted` being in the place of the other job that has its name and its nodes. If it [`goes_on`] itself,
    /// it has to be among them from the start instead.
    pub fn with_wanted(&self, wanted: &Job) -> Plan {
        let others = self.others.iter().copied().filter(|job| job.name != wanted.name);
        let others: Vec<&Job> = others.chain([wanted]).collect();
        let (mut plan, mut space) = (self.plan.clone(), self.space.clone());
        lay_in(self.now, &mut space, &mut plan, in_order(&others, due));
        plan
    }
}

/// Whether `job` has a promise that `before` keeps.
pub(super) fn goes_on(now: WallTime, cluster: &Cluster, job: &Job, before: &Plan) -> bool {
    rest_of_promise(now, cluster, job, before).is_some()
}

/// How `job` goes on by `before`, if that keeps what it wants, which may be another than when that was planned.
fn rest_of_promise(now: WallTime, cluster: &Cluster, job: &Job, before: &Plan) -> Option<Layout> {
    let own = before.jobs.get(&job.name).filter(|_| job.wants != Wants::Rest)?;
    let rest = own.rest_of(now).filter(|rest| keeps(now, job, rest))?;
    // One that runs stays, and the cluster may be another than when that was planned.
    let stays = !job.is_placed() || job.nodes == rest.nodes;
    (stays && cluster.has(&rest.nodes) && job.can_use(&rest.nodes)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{plan, replan};
    use super::*;
    use keeptime_model::topology::NodeIndex;
    use keeptime_model::units::{CpuPpm, Nanos, Share};
    use proptest::prelude::*;

    fn at(minutes: u64) -> WallTime {
        WallTime::from_unix_nanos((1_000 + minutes) * 60_000_000_000)
    }

    fn job(name: usize, work: u64, nodes: u32, wants: Wants) -> Job {
        let name = format!("j{name}").parse().unwrap();
        Job { wants, ..Job::new(name, Nanos::from_secs(60 * work), nodes) }
    }

    fn any_wants() -> impl Strategy<Value = Wants> {
        prop_oneof![
            3 => (1u64..300).prop_map(|by| Wants::By(at(by))),
            1 => (1u32..60).prop_map(|percent| Wants::Rate(Share::from_percent(percent).unwrap())),
            2 => Just(Wants::Rest),
        ]
    }

    fn any_jobs() -> impl Strategy<Value = Vec<Job>> {
        let one = (1u64..100, 1u32..5, any_wants());
        let jobs = prop::collection::vec(one, 1..9);
        jobs.prop_map(|jobs| {
            let numbered = jobs.into_iter().enumerate();
            numbered
                .map(|(name, (work, nodes, wants))| job(name, work, nodes, wants))
                .collect::<Vec<_>>()
        })
    }

    /// `jobs` after some minutes by `plan`.
    fn later(jobs: &[Job], plan: &Plan, minutes: u64) -> Vec<Job> {
        let now = at(minutes);
        let mut jobs = jobs.to_vec();
        for job in &mut jobs {
            let own = plan.jobs().get(&job.name).unwrap();
            if own.starts().is_some_and(|starts| starts < now) {
                job.nodes = own.nodes.clone();
            }
            for stretch in own.stretches.iter().filter(|stretch| stretch.from < now) {
                job.progress(stretch.to.min(now).saturating_since(stretch.from), stretch.rate);
            }
        }
        jobs.retain(|job| job.remaining_nanos.get() >= 100);
        jobs
    }

    proptest! {
        // Goal: what promises leave is found once for all that are asked for beside them, and that changes no plan.
        // Method: each job in turn wants something else, beside what was found for all, and among them from the start.
        #[test]
        fn one_that_is_asked_for_is_laid_as_if_it_had_been_there(
            jobs in any_jobs(), minutes in 0u64..90, wants in any_wants(),
        ) {
            let cluster = Cluster::of(4, CpuPpm::from_percent(90));
            let before = plan(at(0), &cluster, &jobs);
            let (now, jobs) = (at(minutes), later(&jobs, &before, minutes));
            for asked in 0..jobs.len() {
                let with = |wants| {
                    let mut jobs = jobs.clone();
                    jobs[asked].wants = wants;
                    jobs
                };
                let (resting, wanting) = (with(Wants::Rest), with(wants));
                let wanted = &wanting[asked];
                let kept = Kept::new(now, &cluster, &resting, &before);
                if !goes_on(now, &cluster, wanted, &before) {
                    let anew = Kept::new(now, &cluster, &wanting, &before).with_others();
                    prop_assert_eq!(kept.with_wanted(wanted), anew.clone());
                    // The first leaves nothing behind.
                    prop_assert_eq!(kept.with_wanted(wanted), anew);
                }
            }
        }
    }

    // Goal: nothing is promised that is not there any more, and nobody is planned to move. Method: a cluster that lost half of
    // its CPU, and one that lost a node, under two jobs that go on.
    #[test]
    fn a_promise_does_not_go_on_where_nodes_have_become_less() {
        let whole = Cluster::of(2, CpuPpm::from_percent(100));
        let half = Wants::Rate(Share::from_percent(50).unwrap());
        let jobs = [job(1, 60, 1, half), job(2, 60, 1, half)];
        let jobs = jobs.map(|job| Job { nodes: vec![NodeIndex(1)], ..job });
        let before = plan(at(0), &whole, &jobs);
        assert!(before.keeps_all());
        let names_kept = |cluster: &Cluster| {
            let next = replan(at(10), cluster, &jobs, &before);
            let kept = next.jobs().iter().filter(|(_, own)| own.kept);
            let names: Vec<_> = kept.map(|(name, _)| name.to_string()).collect();
            let rates = next.jobs().values().map(|own| own.rate_at(at(10)).ppm());
            (names, rates.sum::<u32>())
        };
        assert_eq!(names_kept(&whole), (vec!["j1".to_string(), "j2".to_string()], 1_000_000));
        let less = Cluster::of(2, CpuPpm::from_percent(50));
        assert_eq!(names_kept(&less), (vec!["j1".to_string()], 500_000));
        let fewer = Cluster::of(1, CpuPpm::from_percent(100));
        assert_eq!(names_kept(&fewer), (vec![], 0));
        // Where the plan has it is not where it runs.
        let moved = Job { nodes: vec![NodeIndex(0)], ..jobs[0].clone() };
        assert!(!goes_on(at(10), &whole, &moved, &before));
        assert!(goes_on(at(10), &whole, &jobs[0], &before));
    }
}
