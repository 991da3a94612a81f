//! Whether one more job can be had, what could be instead, and who can be promised more later.

use super::job::{Job, Wants};
use super::kept::{Kept, goes_on};
use super::plan::{Cluster, JobPlan, Plan, latest_start, plan_of};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::units::{Nanos, Share, WallTime};
use std::cell::OnceCell;

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

/// Who is asked for again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promotion {
    /// Which job.
    pub name: Name,
    /// By when it is to be done.
    pub by: WallTime,
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
    if let Err(invalid) = check(cluster, jobs, wanted) {
        return Verdict::Invalid(invalid);
    }
    let resting = Job { wants: Wants::Rest, ..wanted.clone() };
    let request = Request::new(now, cluster, jobs.iter().chain([&resting]), before);
    match request.with(wanted) {
        Some(plan) => Verdict::Admitted(plan),
        None => Verdict::Refused(request.refusal(wanted)),
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
    check(cluster, jobs, wanted)?;
    let resting = Job { wants: Wants::Rest, ..wanted.clone() };
    let request = Request::new(now, cluster, jobs.iter().chain([&resting]), before);
    Ok(request.with(wanted))
}

/// The first of those that are `asked` for, each of which is one of `jobs` and takes what is left, that is done by its
/// deadline after all, and the plan in which it is; nothing if there is none with which nobody loses by it. Worth asking
/// when a job has ended, which may have been sooner than was planned.
pub fn promote(
    now: WallTime,
    cluster: &Cluster,
    jobs: &[Job],
    before: &Plan,
    asked: &[Promotion],
) -> Option<(usize, Plan)> {
    let request = Request::new(now, cluster, jobs, before);
    asked.iter().enumerate().find_map(|(at, asked)| {
        let job = jobs.iter().rfind(|job| job.name == asked.name)?;
        if job.wants != Wants::Rest {
            return None;
        }
        let wanted = Job { wants: Wants::By(asked.by), ..job.clone() };
        request.with(&wanted).map(|plan| (at, plan))
    })
}

/// Everything that is the same for all that are asked for at a time.
struct Request<'a> {
    now: WallTime,
    cluster: &'a Cluster,
    /// All, and those that are asked for as ones that take what is left.
    jobs: Vec<&'a Job>,
    before: &'a Plan,
    /// The promises among them: most requests are answered without.
    kept: OnceCell<Kept<'a>>,
}

impl<'a> Request<'a> {
    fn new(
        now: WallTime,
        cluster: &'a Cluster,
        jobs: impl IntoIterator<Item = &'a Job>,
        before: &'a Plan,
    ) -> Self {
        let jobs = jobs.into_iter().collect();
        Self { now, cluster, jobs, before, kept: OnceCell::new() }
    }

    /// The plan with `wanted`, if nobody loses by it and it has what it wants.
    fn with(&self, wanted: &Job) -> Option<Plan> {
        // Whatever the others do: most of those that are asked for again and again.
        if is_too_late(self.now, wanted) || self.cluster.check(wanted).is_err() {
            return None;
        }
        let was_late = |job: &Name| self.before.jobs().get(job).is_some_and(|own| !own.kept);
        // Who was late before is not a reason to refuse others.
        let keeps = |plan: &Plan| {
            let kept =
                |(job, own): (&Name, &JobPlan)| own.kept || (*job != wanted.name && was_late(job));
            plan.jobs().contains_key(&wanted.name) && plan.jobs().iter().all(kept)
        };
        let anew = plan_of(self.now, self.cluster, self.jobs_with(wanted));
        if keeps(&anew) {
            return Some(anew);
        }
        let beside = self.beside_promises(wanted);
        keeps(&beside).then_some(beside)
    }

    /// All that are promised something go on, and `wanted` is laid beside them.
    fn beside_promises(&self, wanted: &Job) -> Plan {
        let Self { now, cluster, before, .. } = *self;
        if goes_on(now, cluster, wanted, before) {
            return Kept::new(now, cluster, self.jobs_with(wanted), before).with_others();
        }
        let kept = || Kept::new(now, cluster, self.jobs.iter().copied(), before);
        self.kept.get_or_init(kept).with_wanted(wanted)
    }

    /// All jobs, `wanted` in the place of the one that has its name.
    fn jobs_with<'b>(&'b self, wanted: &'b Job) -> impl Iterator<Item = &'b Job> {
        let others = self.jobs.iter().copied().filter(move |job| job.name != wanted.name);
        others.chain([wanted])
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
        let Some(plan) = self.with(&rest) else {
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
            |at: WallTime| self.with(&Job { wants: Wants::By(at), ..wanted.clone() }).is_some();
        // Before it can begin, nothing is possible: a deadline of long ago tells nothing.
        let early = deadline.max(self.now).max(wanted.from_unix_nanos);
        let (mut early, mut late) = (early.unix_nanos(), ends.max(early).unix_nanos());
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
            let possible = self.with(&Job { wants: Wants::Rate(rate), ..wanted.clone() }).is_some();
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
        // In whole seconds.
        let late = late.get().div_ceil(NANOS_A_SECOND).saturating_mul(NANOS_A_SECOND);
        let late = Nanos::new(late);
        Self::because(format!("beside the jobs that are promised it would end {late} too late"))
    }

    fn because(reason: String) -> Self {
        Self { reason, earliest: None, part: None, rate: None }
    }
}

/// Whether `wanted` makes sense beside `jobs`.
fn check(cluster: &Cluster, jobs: &[Job], wanted: &Job) -> Result<(), Invalid> {
    cluster.check(wanted)?;
    if jobs.iter().any(|job| job.name == wanted.name) {
        return Err(Invalid::new("name", &wanted.name, "a name that no job has"));
    }
    Ok(())
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
