//! Whether one more job can be had, what could be instead, and who can be promised more later.

use super::job::{Job, Wants};
use super::plan::{Cluster, JobPlan, Plan, latest_start, plan, plan_beside};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::{Nanos, Share, WallTime};

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All jobs have what they want, this one too, by this plan.
    Admitted(Plan),
    /// Somebody would not.
    Refused(Refusal),
    /// The request makes no sense.
    Invalid(Invalid),
}

/// Why not, and what could be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// In the user's words.
    pub reason: String,
    /// The earliest deadline that was found to be possible.
    pub earliest: Option<WallTime>,
    /// The part of the work that can be done by the deadline.
    pub part: Option<Share>,
    /// The greatest rate that was found to be possible from the start on.
    pub rate: Option<Share>,
}

/// Whether `wanted` can be had beside `jobs` at `now`, such that all that have what they want by the plan
/// that is followed, `before`, go on having it.
pub fn admit(
    now: WallTime,
    cluster: &Cluster,
    jobs: &[Job],
    before: &Plan,
    wanted: &Job,
) -> Verdict {
    match plan_with(now, cluster, jobs, before, wanted) {
        Ok(Some(plan)) => Verdict::Admitted(plan),
        Ok(None) => Verdict::Refused(Request { now, cluster, jobs, before }.refusal(wanted)),
        Err(invalid) => Verdict::Invalid(invalid),
    }
}

/// The plan by which [`admit`] admits `wanted`, or nothing where it refuses: for who has no use for what
/// could be instead, which takes some twenty plans more to find.
///
/// # Errors
/// If the request makes no sense.
pub fn plan_with(
    now: WallTime,
    cluster: &Cluster,
    jobs: &[Job],
    before: &Plan,
    wanted: &Job,
) -> Result<Option<Plan>, Invalid> {
    wanted.check()?;
    check_nodes(cluster, wanted)?;
    if jobs.iter().any(|job| job.name == wanted.name) {
        return Err(Invalid::new("name", &wanted.name, "a name that no job has"));
    }
    Ok(Request { now, cluster, jobs, before }.with(wanted.clone()))
}

/// The plan in which `name`, one of `jobs` that takes what is left, is done by `deadline` after all; nothing
/// if there is none in which nobody loses by it. Worth asking when a job has ended, which may have
/// been sooner than was planned.
pub fn promote(
    now: WallTime,
    cluster: &Cluster,
    jobs: &[Job],
    before: &Plan,
    name: &Name,
    deadline: WallTime,
) -> Option<Plan> {
    let (mut promoted, others): (Vec<_>, Vec<_>) =
        jobs.iter().cloned().partition(|job| job.name == *name);
    let job = promoted.pop().filter(|job| job.wants == Wants::Rest)?;
    let request = Request { now, cluster, jobs: &others, before };
    request.with(Job { wants: Wants::By(deadline), ..job })
}

/// Everything that counter-offers are tried against.
struct Request<'a> {
    now: WallTime,
    cluster: &'a Cluster,
    jobs: &'a [Job],
    before: &'a Plan,
}

impl Request<'_> {
    /// The plan with `wanted`, if nobody loses by it and it has what it wants.
    fn with(&self, wanted: Job) -> Option<Plan> {
        // Whatever the others do: most of those that are asked for again and again.
        if is_too_late(self.now, &wanted) {
            return None;
        }
        let name = wanted.name.clone();
        let all: Vec<_> = self.jobs.iter().cloned().chain([wanted]).collect();
        let was_late = |job: &Name| self.before.jobs().get(job).is_some_and(|own| !own.kept);
        // Who was late before is not a reason to refuse others.
        let keeps = |plan: &Plan| {
            let kept = |(job, own): (&Name, &JobPlan)| own.kept || (*job != name && was_late(job));
            plan.jobs().contains_key(&name) && plan.jobs().iter().all(kept)
        };
        let anew = plan(self.now, self.cluster, &all);
        if keeps(&anew) {
            return Some(anew);
        }
        let beside = plan_beside(self.now, self.cluster, &all, self.before);
        keeps(&beside).then_some(beside)
    }

    fn refusal(&self, wanted: &Job) -> Refusal {
        match wanted.wants {
            Wants::By(deadline) => self.too_late(wanted, deadline),
            Wants::Rate(rate) => self.too_fast(wanted, rate),
            Wants::Rest => Refusal::because(NO_ROOM.into()),
        }
    }

    fn too_late(&self, wanted: &Job, deadline: WallTime) -> Refusal {
        let rest = Job { wants: Wants::Rest, ..wanted.clone() };
        let Some(plan) = self.with(rest) else {
            return Refusal::because(NO_ROOM.into());
        };
        let own = plan.jobs().get(&wanted.name);
        // One that has what it wants, which is the rest, ends.
        let ends = own.and_then(|own| own.ends).unwrap_or(deadline);
        let earliest = self.earliest(wanted, deadline, ends);
        let part = own.map(|own| done_by(own, wanted, deadline));
        Refusal { earliest, part, ..Refusal::late(earliest.unwrap_or(ends), deadline) }
    }

    /// The earliest deadline between one that is too early and one that is late enough, as far as
    /// halving finds it: each try is a whole plan.
    fn earliest(&self, wanted: &Job, deadline: WallTime, ends: WallTime) -> Option<WallTime> {
        let possible =
            |at: WallTime| self.with(Job { wants: Wants::By(at), ..wanted.clone() }).is_some();
        let (mut early, mut late) = (deadline.unix_nanos(), ends.max(deadline).unix_nanos());
        // Due when it would end, it comes before jobs that are due later: they may not bear that.
        let mut found = None;
        for _ in 0..HALVINGS {
            let at = WallTime::from_unix_nanos(late);
            if found.is_none() && possible(at) {
                found = Some(at);
            }
            if found.is_none() {
                late = late.saturating_add((late - early).max(1));
                continue;
            }
            let middle = early + (late - early) / 2;
            if possible(WallTime::from_unix_nanos(middle)) {
                late = middle;
                found = Some(WallTime::from_unix_nanos(middle));
            } else {
                early = middle;
            }
        }
        found
    }

    fn too_fast(&self, wanted: &Job, rate: Share) -> Refusal {
        let (mut good, mut bad) = (0, rate.ppm() / STEP_PPM + 1);
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            // Below a rate that is a share.
            let rate = Share::try_from(middle * STEP_PPM).unwrap_or(rate);
            let possible = self.with(Job { wants: Wants::Rate(rate), ..wanted.clone() }).is_some();
            if possible { good = middle } else { bad = middle }
        }
        let found = (good > 0).then(|| Share::try_from(good * STEP_PPM).ok()).flatten();
        let reason = match found {
            Some(found) => format!("the nodes can give it {found} of full speed until it ends"),
            None => "the nodes cannot give it a rate of its own until it ends".into(),
        };
        Refusal { rate: found, ..Refusal::because(reason) }
    }
}

impl Refusal {
    /// A job that would be done by `ends`, if ever.
    pub(super) fn too_late(wanted: &Job, ends: Option<WallTime>) -> Self {
        match (ends, wanted.wants) {
            (Some(ends), Wants::By(deadline)) => {
                Self { earliest: Some(ends), ..Self::late(ends, deadline) }
            }
            _ => Self::because(NO_ROOM.into()),
        }
    }

    fn late(ends: WallTime, deadline: WallTime) -> Self {
        let late = ends.saturating_since(deadline);
        let late = Nanos::from_secs(late.get().div_ceil(NANOS_A_SECOND));
        Self::because(format!("beside the jobs that are promised it would end {late} too late"))
    }

    fn because(reason: String) -> Self {
        Self { reason, earliest: None, part: None, rate: None }
    }
}

pub(super) fn check_nodes(cluster: &Cluster, wanted: &Job) -> Result<(), Invalid> {
    let there = cluster.nodes_ppm.len();
    match wanted.speed_ppm.keys().next() {
        Some(fewest) if *fewest as usize > there => {
            Err(Invalid::new("nodes", fewest, format!("at most {there}")))
        }
        _ => Ok(()),
    }
}

/// Whether a deadline is missed even by a job that has all nodes for itself.
fn is_too_late(now: WallTime, job: &Job) -> bool {
    let start = now.max(job.from_unix_nanos).unix_nanos();
    matches!(job.wants, Wants::By(_)) && start > latest_start(job)
}

/// The part of a job's work that a plan does by `deadline`, rounded down.
fn done_by(plan: &JobPlan, job: &Job, deadline: WallTime) -> Share {
    let mut left = Job { nodes: plan.nodes.clone(), ..job.clone() };
    for stretch in plan.stretches.iter().filter(|stretch| stretch.from < deadline) {
        left.progress(stretch.to.min(deadline).saturating_since(stretch.from), stretch.rate);
    }
    let (all, left) = (job.remaining_nanos.get().max(1), left.remaining_nanos.get());
    let done = u128::from(all.saturating_sub(left)) * 1_000_000 / u128::from(all);
    Share::try_from(done as u32).unwrap_or(Share::ONE)
}

const NO_ROOM: &str = "the jobs that are promised leave nothing for it, ever";
const NANOS_A_SECOND: u64 = 1_000_000_000;
/// A thousandth of the way from the deadline to what would do.
const HALVINGS: u32 = 10;
/// Rates are offered in per cent.
const STEP_PPM: u32 = 10_000;
