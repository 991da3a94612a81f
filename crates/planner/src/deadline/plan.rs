//! Rates over time for all jobs together.
//!
//! Jobs with a rate come first, since that is what they were promised. Jobs with deadlines follow,
//! the earliest first. Each has nodes for itself if it is in time that way, as parts of nodes that are free at different
//! times are of no use to parallel jobs; else it shares them, as early and as fast as they then allow: what is due soon
//! makes the others wait or go slower, and whatever becomes free is used at once. If somebody would be late that way, the
//! order of least slack is tried. Jobs that take what is left come last, in the order in which they came.

use super::job::{Job, Wants};
use super::kept::Kept;
use super::space::{Layout, Space};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Share, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What jobs can have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What may be promised of each node.
    pub nodes_ppm: Vec<CpuPpm>,
    /// Most jobs that have started on one node: their memory must fit in. Those that take what is left have a quarter of
    /// these places at the most.
    pub jobs_a_node: u32,
    /// A job waits rather than run slower than this.
    #[serde(rename = "rate_least_ppm")]
    pub rate_least: Share,
}

/// One rate over one span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// From then.
    #[serde(rename = "from_unix_nanos")]
    pub from: WallTime,
    /// Until just before then.
    #[serde(rename = "to_unix_nanos")]
    pub to: WallTime,
    /// The part of full speed.
    #[serde(rename = "rate_ppm")]
    pub rate: Share,
}

/// What one job has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobPlan {
    /// Where it runs.
    pub nodes: Vec<NodeIndex>,
    /// When and how fast, in order; between them it waits.
    pub stretches: Vec<Stretch>,
    /// When it is done; nothing if it never is.
    pub ends: Option<WallTime>,
    /// Whether it has what it wants.
    pub kept: bool,
}

/// What all jobs have.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    pub(super) jobs: BTreeMap<Name, JobPlan>,
}

impl Cluster {
    /// `nodes` nodes, of each of which `cpu` may be promised; up to eight jobs on each, none slower
    /// than 5 %.
    pub fn of(nodes: u32, cpu: CpuPpm) -> Self {
        let rate_least = Share::from_percent(5).unwrap_or_default();
        Self { nodes_ppm: vec![cpu; nodes as usize], jobs_a_node: 8, rate_least }
    }

    /// Whether it has all of `nodes`.
    pub(super) fn has(&self, nodes: &[NodeIndex]) -> bool {
        nodes.iter().all(|node| (node.0 as usize) < self.nodes_ppm.len())
    }

    /// Whether `job` makes sense, and does here.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub(super) fn check(&self, job: &Job) -> Result<(), Invalid> {
        job.check()?;
        let there = self.nodes_ppm.len();
        let fewest = job.speed_ppm.keys().next().copied().unwrap_or_default();
        if fewest as usize > there {
            return Err(Invalid::new("nodes", fewest, format!("at most {there}")));
        }
        match job.nodes.iter().find(|node| node.0 as usize >= there) {
            Some(node) => Err(Invalid::new("nodes", node.0, format!("nodes below {there}"))),
            None => Ok(()),
        }
    }
}

/// Plans all `jobs` from `now` on. Jobs that make no sense on these nodes have no plan; what has nothing left to do is
/// done at once, without a stretch.
///
/// Cost: a job looks for each number of nodes at all steps of time, of which each job before it makes a few, and at all nodes
/// in each: `O(jobs² * nodes)` in all. Looking for nodes for itself, it gives up most starts at once; where it never
/// does, that is `O(jobs³ * nodes)`.
pub fn plan(now: WallTime, cluster: &Cluster, jobs: &[Job]) -> Plan {
    plan_of(now, cluster, jobs)
}

/// [`plan`] of jobs that are in several places.
pub(super) fn plan_of<'a>(
    now: WallTime,
    cluster: &Cluster,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> Plan {
    let jobs = sensible(cluster, jobs);
    let by_deadline = lay_all(now, cluster, in_order(&jobs, due));
    if by_deadline.keeps_all() {
        return by_deadline;
    }
    let by_slack = lay_all(now, cluster, in_order(&jobs, latest_start));
    if by_slack.missed() < by_deadline.missed() { by_slack } else { by_deadline }
}

/// Plans again. Where a new plan would break a promise that going on as before keeps, all that keep one go on as
/// before, and the others are laid anew beside them: a promise does not depend on what else happens. `jobs` are taken to
/// have done until `now` what `before` says.
pub fn replan(now: WallTime, cluster: &Cluster, jobs: &[Job], before: &Plan) -> Plan {
    let next = plan(now, cluster, jobs);
    let breaks = |job: &Job| before.keeps(&job.name) && !next.keeps(&job.name);
    if jobs.iter().any(|job| job.wants != Wants::Rest && breaks(job)) {
        Kept::new(now, cluster, jobs, before).with_others()
    } else {
        next
    }
}

impl Plan {
    /// What the job called `name` has.
    pub fn of(&self, name: &str) -> Option<&JobPlan> {
        self.jobs.iter().find(|(job, _)| job.as_str() == name).map(|(_, plan)| plan)
    }

    /// All jobs.
    pub fn jobs(&self) -> &BTreeMap<Name, JobPlan> {
        &self.jobs
    }

    /// Whether every job has what it wants.
    pub fn keeps_all(&self) -> bool {
        self.missed() == 0
    }

    fn keeps(&self, job: &Name) -> bool {
        self.jobs.get(job).is_some_and(|own| own.kept)
    }

    /// How many have not.
    pub fn missed(&self) -> usize {
        self.jobs.values().filter(|job| !job.kept).count()
    }

    /// When any rate changes next after `now`.
    pub fn next_change(&self, now: WallTime) -> Option<WallTime> {
        let stretches = self.jobs.values().flat_map(|job| &job.stretches);
        stretches.flat_map(|stretch| [stretch.from, stretch.to]).filter(|at| *at > now).min()
    }
}

impl JobPlan {
    pub(super) fn of(now: WallTime, job: &Job, layout: Layout) -> Self {
        let kept = keeps(now, job, &layout);
        let ends = layout.ends.map(WallTime::from_unix_nanos);
        let Layout { nodes, stretches, .. } = layout;
        Self { nodes, stretches, ends, kept }
    }

    /// What is left of it at `now`, if anything is.
    pub(super) fn rest_of(&self, now: WallTime) -> Option<Layout> {
        let ahead = self.stretches.iter().filter(|stretch| stretch.to > now);
        let stretches: Vec<_> =
            ahead.map(|stretch| Stretch { from: stretch.from.max(now), ..*stretch }).collect();
        let ends = self.ends.map(WallTime::unix_nanos);
        (!stretches.is_empty()).then(|| Layout {
            nodes: self.nodes.clone(),
            stretches,
            ends,
            cost: 0,
        })
    }

    /// How fast it runs at `now`; not at all if no stretch covers that.
    pub fn rate_at(&self, now: WallTime) -> Share {
        let covers = |stretch: &&Stretch| stretch.from <= now && now < stretch.to;
        self.stretches.iter().find(covers).map_or_else(Share::default, |stretch| stretch.rate)
    }

    /// When it starts.
    pub fn starts(&self) -> Option<WallTime> {
        self.stretches.first().map(|stretch| stretch.from)
    }
}

/// Those of `jobs` that make sense.
pub(super) fn sensible<'a>(
    cluster: &Cluster,
    jobs: impl IntoIterator<Item = &'a Job>,
) -> Vec<&'a Job> {
    jobs.into_iter().filter(|job| cluster.check(job).is_ok()).collect()
}

/// Rates, then deadlines by `key`, then the rest; what has started before what has not.
pub(super) fn in_order<'a>(jobs: &[&'a Job], key: impl Fn(&Job) -> u64) -> Vec<&'a Job> {
    let mut order = jobs.to_vec();
    order.sort_by_cached_key(|job| {
        let class = match job.wants {
            Wants::Rate(_) => 0,
            Wants::By(_) => 1,
            Wants::Rest => 2,
        };
        let came = job.from_unix_nanos;
        (class, key(job), !job.is_placed(), came, job.name.clone())
    });
    order
}

/// When it has to be done; zero if that is not said.
pub(super) fn due(job: &Job) -> u64 {
    match job.wants {
        Wants::By(deadline) => deadline.unix_nanos(),
        _ => 0,
    }
}

/// The last instant at which it could start on the most nodes that it can use, alone.
pub(super) fn latest_start(job: &Job) -> u64 {
    let fastest = u128::from(job.speed_ppm.values().copied().max().unwrap_or(1).max(1));
    let shortest = u128::from(job.remaining_nanos.get()) * 1_000_000 / fastest;
    due(job).saturating_sub(u64::try_from(shortest).unwrap_or(u64::MAX))
}

fn lay_all(now: WallTime, cluster: &Cluster, order: Vec<&Job>) -> Plan {
    let mut space = Space::new(now.unix_nanos(), cluster);
    order.iter().for_each(|job| space.occupy(&job.nodes));
    let mut plan = Plan::default();
    lay_in(now, &mut space, &mut plan, order);
    plan
}

/// Lays jobs one after the other in what is left.
pub(super) fn lay_in(now: WallTime, space: &mut Space, plan: &mut Plan, order: Vec<&Job>) {
    for job in order {
        let layout = planned_layout(now, space, job);
        space.take(job, &layout);
        plan.jobs.insert(job.name.clone(), JobPlan::of(now, job, layout));
    }
}

/// How a job would run: where it runs if it does, and else as one of few at a time rather than as one of many.
pub(super) fn planned_layout(now: WallTime, space: &Space, job: &Job) -> Layout {
    if job.is_placed() {
        return space.lay(job, &job.nodes, job.rate_most());
    }
    let on = |count| {
        let alone = space.alone(job, count).filter(|layout| keeps(now, job, layout));
        let shared = || best_of(now, job, shared(now, space, job, count, Space::lay));
        match (alone, job.wants) {
            (None, _) => shared(),
            (Some(alone), Wants::Rest) => sooner_by_far(now, shared(), alone),
            (Some(alone), _) => alone,
        }
    };
    best_of(now, job, space.counts(job).map(on))
}

/// `shared` if it is done in less than half the time that `alone` needs: who takes what is left does not wait for ever
/// until nodes are free, and does not settle everywhere either.
fn sooner_by_far(now: WallTime, shared: Layout, alone: Layout) -> Layout {
    let needs = |layout: &Layout| {
        layout.ends.map_or(u64::MAX, |ends| ends.saturating_sub(now.unix_nanos()))
    };
    if needs(&shared) < needs(&alone) / 2 { shared } else { alone }
}

/// How a job would run on `count` nodes of which much is free.
pub(super) fn shared<'s, 'a>(
    now: WallTime,
    space: &'s Space<'a>,
    job: &'s Job,
    count: u32,
    lay: fn(&Space<'a>, &Job, &[NodeIndex], Share) -> Layout,
) -> impl Iterator<Item = Layout> + use<'s, 'a> {
    let emptiest = move |until| space.emptiest(job, count, until);
    let nodes = horizons(now, job, count).map(emptiest).into_iter();
    nodes.map(move |nodes| lay(space, job, &nodes, job.rate_most()))
}

/// The cheapest way that keeps what the job wants; if none does, the one that ends first.
pub(super) fn best_of(now: WallTime, job: &Job, layouts: impl Iterator<Item = Layout>) -> Layout {
    let worth = |layout: &Layout| {
        let ends = layout.ends.unwrap_or(u64::MAX);
        let kept = keeps(now, job, layout);
        // Who takes what is left does not get cheaper by waiting.
        let cost = if kept && job.wants != Wants::Rest { layout.cost } else { 0 };
        (!kept, cost, ends)
    };
    let nothing = Layout { nodes: vec![], stretches: vec![], ends: None, cost: 0 };
    layouts.min_by_key(worth).unwrap_or(nothing)
}

/// Until when a node should be free for a job: until it could be done, and until it must be.
fn horizons(now: WallTime, job: &Job, count: u32) -> [u64; 2] {
    let speed = u128::from(job.speed_on(count as usize).max(1));
    let alone = u128::from(job.remaining_nanos.get()) * 1_000_000 / speed;
    let start = now.max(job.from_unix_nanos).unix_nanos();
    let done = start.saturating_add(u64::try_from(alone).unwrap_or(u64::MAX));
    match job.wants {
        Wants::By(deadline) => [done, deadline.unix_nanos().max(done)],
        _ => [done, done.saturating_add(done - start)],
    }
}

/// Whether `layout` has what the job wants.
pub(super) fn keeps(now: WallTime, job: &Job, layout: &Layout) -> bool {
    match job.wants {
        Wants::By(deadline) => layout.ends.is_some_and(|ends| ends <= deadline.unix_nanos()),
        Wants::Rate(rate) => match layout.stretches.as_slice() {
            // At once, and without a break.
            [only] => {
                let start = only.from <= now.max(job.from_unix_nanos);
                only.rate == rate && start && layout.ends.is_some()
            }
            _ => job.remaining_nanos.get() == 0,
        },
        Wants::Rest => layout.ends.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::units::Nanos;

    // Goal: what a plan keeps is not given up for one that cannot, and who takes what is left has what that leaves: to plan
    // anew is a guess, and may find less. Method: a job that no new plan keeps, since a node that has memory for one has
    // another.
    #[test]
    fn a_promise_that_goes_on_being_kept_is_not_planned_away() {
        let at = |seconds: u64| WallTime::from_unix_nanos(seconds * 1_000_000_000);
        let cluster = Cluster { jobs_a_node: 1, ..Cluster::of(1, CpuPpm::from_percent(90)) };
        let job = |name: &str, wants| Job {
            wants,
            ..Job::new(name.parse().unwrap(), Nanos::from_secs(100), 1)
        };
        let promised = job("promised", Wants::By(at(120)));
        let rest = Job { nodes: vec![NodeIndex(0)], ..job("rest", Wants::Rest) };
        let before = plan(at(0), &cluster, std::slice::from_ref(&promised));
        assert!(before.keeps_all());
        let jobs = [promised, rest];
        assert!(!plan(at(0), &cluster, &jobs).keeps(&jobs[0].name));
        let after = replan(at(0), &cluster, &jobs, &before);
        assert_eq!(after.of("promised"), before.of("promised"));
        let ends = before.of("promised").unwrap().ends;
        assert_eq!(after.of("rest").unwrap().starts(), ends);
        // In the middle of it, it goes on as it would have.
        let half = replan(at(50), &cluster, &jobs, &before);
        let own = half.of("promised").unwrap();
        assert_eq!((own.starts(), own.ends, own.kept), (Some(at(50)), ends, true));
        // But what was planned is no reason to promise another what it does not keep.
        let sooner = job("promised", Wants::By(at(110)));
        assert!(!replan(at(0), &cluster, &[sooner], &before).keeps_all());
    }
}
