//! What keeps a job's share of the CPU: deadlines of the kernel's, the bandwidth of its control group, or schedules
//! from user space, whichever its processes can have; and what has no share parts what is left.

use crate::carried::Carried;
use crate::enforcer::{BoxedError, Failures, Scope};
use crate::shares::{
    is_kept_without_deadlines, launchers_share, leaves_idle_deadlines, limit_beside_schedules,
    mechanisms, part_of_rest, period_of,
};
use crate::turnover::{Computing, Look, Threaded, Turnover};
use keeptime_control::phase;
use keeptime_linux::alignment::Aligned;
use keeptime_linux::cgroup::{CPU_PERIOD, CgroupError, Group};
use keeptime_linux::clock;
use keeptime_linux::deadline::{self, Task};
use keeptime_linux::user_level::{self, jobs::JobSchedules};
use keeptime_model::assignment::{Assignment, CpuMechanism};
use keeptime_model::capability::{Capabilities, Feature};
use keeptime_model::errors::chain;
use keeptime_model::name::Name;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The CPU of a node, parted among its jobs.
pub(super) struct CpuKeeper {
    /// What was found to work here.
    found: Capabilities,
    /// What jobs may have together.
    whole: CpuPpm,
    /// Limits that were set: writing one that is in force would refill the group's share of the period.
    limits: BTreeMap<String, Limited>,
    /// As far as this agent has looked.
    kept: BTreeMap<Name, CpuKept>,
    /// Of jobs that are to have deadlines.
    turnovers: BTreeMap<Name, Turnover>,
    /// Of the same jobs: which of their processes can have some.
    carried: BTreeMap<Name, Carried>,
    schedules: JobSchedules,
}

/// What keeps a job's share of the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CpuKept {
    /// Nothing: nothing that is here can, at the moment.
    pub by: Option<CpuMechanism>,
    /// Why a mechanism does not that was tried before.
    passed: Option<Obstacle>,
    /// Why not all of it is kept.
    lacking: Option<Obstacle>,
    /// What is not left to what belongs to no job.
    taken: CpuPpm,
}

impl CpuKept {
    /// What its user is told: why not what would go before that, or else why not all of it.
    pub fn obstacle(&self) -> Option<&String> {
        self.passed.as_ref().or(self.lacking.as_ref())
    }
}

/// How a share is kept by one mechanism.
struct Way {
    /// Why not all of it is.
    lacking: Option<Obstacle>,
    /// The limit of the job's group.
    limit: Limit,
    /// What is not left to what belongs to no job.
    taken: CpuPpm,
}

/// What a group is to be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    cpu: CpuPpm,
    period: Nanos,
    /// When periods begin, on all nodes; nothing: whenever they do.
    offset: Option<Nanos>,
}

/// What is noted on the group of a job by [`COMPUTING`] while it computes in what carries no deadlines.
const IN_OTHERS: &str = "in-others";
const COMPUTING: &CStr = c"trusted.keeptime.computing";
/// What its user is told then.
const OTHERS: &str = "it computes in processes that end soon after they start, or that have started others: these can \
    carry no deadlines";

/// Moving periods takes less: the one of another length lasts a second at the most, as the kernel has it.
const MOVED_WITHIN: Duration = Duration::from_secs(2);

/// The limit of a group.
struct Limited {
    cpu: CpuPpm,
    period: Nanos,
    /// What keeps its periods where they are to begin.
    aligned: Option<Aligned>,
    /// Since when the kernel was seen to have another one.
    another_since: Option<Instant>,
}

impl Limited {
    /// Whether nobody else has changed it, or taken the group away. Where its periods are moved the kernel has another one for a
    /// moment.
    fn is_in_force(&mut self, group: &Group) -> bool {
        let is_it = group.has_cpu_in_periods(self.cpu, self.period).unwrap_or(false);
        if is_it {
            self.another_since = None;
        } else {
            self.another_since.get_or_insert_with(Instant::now);
        }
        let is_new = |since: Instant| since.elapsed() < MOVED_WITHIN;
        let is_being_moved = self.aligned.is_some() && self.another_since.is_some_and(is_new);
        group.is_whole() && (is_it || is_being_moved)
    }
}

/// Why a mechanism does not keep a share: in words, since each has its own reasons.
type Obstacle = String;

impl CpuKeeper {
    /// Of a node on which this was found. `schedules` are those that are kept from user space.
    pub fn new(found: Capabilities, whole: CpuPpm, schedules: JobSchedules) -> Self {
        let (limits, kept) = (BTreeMap::new(), BTreeMap::new());
        let (turnovers, carried) = (BTreeMap::new(), BTreeMap::new());
        Self { found, whole, limits, kept, turnovers, carried, schedules }
    }

    /// Makes a job's group and has its share kept, by the first mechanism that its processes can have.
    pub fn keep(&mut self, assignment: &Assignment, group: &Group) -> Result<(), BoxedError> {
        let job = &assignment.job;
        if !has_share(assignment) {
            return self.let_go(job, group);
        }
        let mut passed = None;
        for mechanism in mechanisms(assignment, &self.found) {
            match self.try_by(mechanism, assignment, group)? {
                Ok(Way { lacking, limit, taken }) => {
                    self.note(job, CpuKept { by: Some(mechanism), passed, lacking, taken });
                    return Ok(self.limit(job.as_str(), group, limit)?);
                }
                Err(why) => passed = passed.or(Some(why)),
            }
        }
        if passed.is_none() {
            return Err("nothing here keeps a share of the CPU".into());
        }
        // Other jobs have theirs all the same, and that this one has none is said.
        let taken = assignment.cpu_ppm;
        self.note(job, CpuKept { by: None, passed, lacking: None, taken });
        Ok(group.create()?)
    }

    /// A job without a share has a group, by which its packets are known, and nothing that kept a share before.
    fn let_go(&mut self, job: &Name, group: &Group) -> Result<(), BoxedError> {
        let taken = CpuPpm::default();
        let nothing = CpuKept { by: None, passed: None, lacking: None, taken };
        if self.kept.get(job) != Some(&nothing) {
            self.schedules.release(group)?;
            if self.found.has(Feature::CpuDeadline) {
                deadline::release(&group.pids()?)?;
            }
            self.turnovers.remove(job);
            self.note(job, nothing);
        }
        Ok(group.create()?)
    }

    /// Parts what those leave who have a share among jobs without one and what belongs to no job, if anything does: a group's
    /// share of the period goes to who comes first, and weights do not help a job that comes later.
    pub fn keep_rest(
        &mut self,
        wanted: &BTreeMap<Name, Assignment>,
        node: &Group,
        scope: &Scope,
    ) -> Result<(), Failures> {
        let taken_by = |a: &Assignment| self.kept.get(&a.job).map_or(a.cpu_ppm, |kept| kept.taken);
        let taken: u64 = wanted.values().map(|a| u64::from(taken_by(a).get())).sum();
        let left = CpuPpm::new(u64::from(self.whole.get()).saturating_sub(taken) as u32);
        let sharers: Vec<_> = wanted.values().filter(|a| !has_share(a)).map(|a| &a.job).collect();
        let mut failures = Failures::default();
        let rest = node.rest();
        let is_idle = |rest: &Group| rest.pids().is_ok_and(|pids| pids.is_empty());
        let others = usize::from(!rest.as_ref().is_ok_and(is_idle));
        let of =
            |sharers| Limit { cpu: part_of_rest(left, sharers), period: CPU_PERIOD, offset: None };
        let part = of(sharers.len() + others);
        for job in &sharers {
            if scope.has(job) || !self.has_been_given(job.as_str(), part) {
                let group = node.child(job.as_str());
                failures.note(job, group.and_then(|group| self.limit(job.as_str(), &group, part)));
            }
        }
        // Somebody may come there before the next look.
        let part = of(sharers.len() + 1);
        failures.note_of_all(rest.and_then(|rest| self.limit("", &rest, part)));
        failures.into_result()
    }

    /// Whether a group has this limit, if nobody else has changed it.
    fn has_been_given(&self, name: &str, limit: Limit) -> bool {
        let given = self.limits.get(name).map(|given| (given.cpu, given.period));
        given == Some((limit.cpu, limit.period))
    }

    /// A job is over: what goes on of its processes are ordinary ones.
    pub fn end(&mut self, job: &Name, group: &Group) -> Result<(), BoxedError> {
        if self.found.has(Feature::CpuDeadline) {
            deadline::release(&group.borrowed()?)?;
        }
        self.schedules.release(group)?;
        self.limits.remove(job.as_str());
        self.kept.remove(job);
        self.turnovers.remove(job);
        self.carried.remove(job);
        Ok(())
    }

    /// What keeps a job's share; nothing as long as it was not looked at.
    pub fn kept(&self, job: &Name) -> Option<&CpuKept> {
        self.kept.get(job)
    }

    fn try_by(
        &mut self,
        mechanism: CpuMechanism,
        assignment: &Assignment,
        group: &Group,
    ) -> Result<Result<Way, Obstacle>, BoxedError> {
        match mechanism {
            CpuMechanism::Deadline => self.try_by_deadlines(assignment, group),
            CpuMechanism::UserLevel => self.try_from_user_space(assignment, group),
            _ => self.by_bandwidth(assignment, group).map(Ok),
        }
    }

    fn try_by_deadlines(
        &mut self,
        assignment: &Assignment,
        group: &Group,
    ) -> Result<Result<Way, Obstacle>, BoxedError> {
        let tasks = deadline::observe(&group.pids()?)?;
        let period = period_of(assignment);
        let carried = self.carried.entry(assignment.job.clone()).or_default();
        let spent = carried.look(clock::now(), period, &tasks);
        let lacking = match self.computing(assignment, group, &tasks) {
            // Threads that start before the next look would have the launchers' share.
            Computing::InThreads(threaded)
                if is_kept_without_deadlines(assignment, &self.found) =>
            {
                return Ok(Err(threaded.to_string()));
            }
            Computing::InOthers => Some(OTHERS.to_owned()),
            _ => None,
        };
        if let Some(why) = &lacking
            && leaves_idle_deadlines(assignment, &self.found)
        {
            return Ok(Err(why.clone()));
        }
        if let Some(spent) = spent {
            deadline::release_among(&tasks)?;
            return Ok(Err(spent.to_string()));
        }
        if let Some(obstacle) = self.still_in_the_way(&assignment.job, group, &tasks) {
            return Ok(Err(obstacle));
        }
        // Who is bound to a processor from user space could have no deadline.
        self.schedules.release(group)?;
        let cpu = assignment.cpu_ppm;
        let limit = match deadline::enforce_among(cpu, period, &tasks)? {
            Ok(carriers) if carriers.is_empty() => cpu,
            Ok(_) => launchers_share(cpu),
            Err(obstacle) => return Ok(Err(obstacle.to_string())),
        };
        let limit = Limit::of(assignment, limit);
        Ok(Ok(Way { lacking, limit, taken: with_launchers(cpu) }))
    }

    /// In what a job computes, as seen up to now by this agent, or by the one before. Where nobody counts its CPU time it is
    /// taken for one that deadlines serve.
    fn computing(&mut self, assignment: &Assignment, group: &Group, tasks: &[Task]) -> Computing {
        let noted = || match group.note(COMPUTING).as_deref() {
            Ok(IN_OTHERS) => Computing::InOthers,
            _ => Computing::InCarriers,
        };
        let job = assignment.job.clone();
        let turnover = self.turnovers.entry(job).or_insert_with(|| Turnover::new(noted()));
        let before = turnover.computing();
        // Of a group that is not made yet nothing is counted.
        let Ok(used) = group.cpu_usage() else { return before };
        let carriers = deadline::carriers(tasks);
        let threaded = |task: &Task| Threaded { pid: task.pid, threads: task.threads };
        let look = Look {
            at: clock::now(),
            used,
            threaded: deadline::threaded(&carriers).map(threaded),
            carriers: carriers.into_iter().map(|task| (task.identity(), task.used)).collect(),
        };
        let computing = turnover.look(assignment.cpu_ppm, look);
        if note_of(computing) != note_of(before)
            && let Err(error) = group.set_note(COMPUTING, note_of(computing))
        {
            tracing::warn!("the next agent has to see for itself: {}", chain(&error));
        }
        computing
    }

    /// Why a job that is scheduled from user space instead of by deadlines still is: as long as its processes are the
    /// same, asking again would only take their schedules from them meanwhile.
    fn still_in_the_way(&self, job: &Name, group: &Group, tasks: &[Task]) -> Option<Obstacle> {
        let Some(CpuKept { by: Some(CpuMechanism::UserLevel), passed: Some(passed), .. }) =
            self.kept.get(job)
        else {
            return None;
        };
        let carriers: BTreeSet<i32> =
            deadline::carriers(tasks).into_iter().map(|task| task.pid).collect();
        self.schedules.schedules(group, &carriers).then(|| passed.clone())
    }

    fn try_from_user_space(
        &mut self,
        assignment: &Assignment,
        group: &Group,
    ) -> Result<Result<Way, Obstacle>, BoxedError> {
        let cpu = assignment.cpu_ppm;
        let cut = self.schedules.cut(group, cpu)?.map(|refusal| refusal.to_string());
        if let Some(why) = &cut
            && self.found.keeps_by(CpuMechanism::Bandwidth)
        {
            // That keeps all of it.
            return Ok(Err(why.clone()));
        }
        if let Err(error) = self.schedules.look_for_guard() {
            tracing::warn!("nobody sets free what this agent holds if it is killed: {error}");
        }
        let lacking = cut.or_else(|| user_level::shortage(&self.found).map(str::to_owned));
        match self.schedules.share(group, cpu, period_of(assignment))? {
            Ok(None) => {
                let limit = Limit::of(assignment, cpu);
                Ok(Ok(Way { lacking, limit, taken: with_launchers(cpu) }))
            }
            Ok(Some(part)) => {
                let (cpu, period) = limit_beside_schedules(cpu, part);
                let limit = Limit { cpu, period, offset: None };
                Ok(Ok(Way { lacking, limit, taken: cpu }))
            }
            Err(obstacle) => Ok(Err(obstacle.to_string())),
        }
    }

    fn by_bandwidth(&mut self, assignment: &Assignment, group: &Group) -> Result<Way, BoxedError> {
        self.schedules.release(group)?;
        let before = self.kept.get(&assignment.job).and_then(|kept| kept.by);
        if self.found.has(Feature::CpuDeadline) && before != Some(CpuMechanism::Bandwidth) {
            deadline::release(&group.pids()?)?;
        }
        let cpu = assignment.cpu_ppm;
        Ok(Way { lacking: None, limit: Limit::of(assignment, cpu), taken: cpu })
    }

    fn note(&mut self, job: &Name, kept: CpuKept) {
        if let Some(obstacle) = kept.obstacle()
            && self.kept.get(job) != Some(&kept)
        {
            let by = kept.by.map_or("nothing".to_owned(), |by| by.to_string());
            tracing::warn!("{job} has its share of the CPU by {by}: {obstacle}");
        }
        self.kept.insert(job.clone(), kept);
    }

    /// Makes a group with this limit, once.
    fn limit(&mut self, name: &str, group: &Group, limit: Limit) -> Result<(), CgroupError> {
        let Limit { cpu, period, offset } = limit;
        let before = self.limits.remove(name);
        let before = before.and_then(|mut before| before.is_in_force(group).then_some(before));
        if before.is_none() {
            group.create()?;
        }
        let aligned = match (before, offset) {
            (Some(before), _) if (before.cpu, before.period) == (cpu, period) => {
                // Since when the kernel has had another one is known on.
                self.limits.insert(name.into(), before);
                return Ok(());
            }
            (Some(Limited { aligned: Some(aligned), .. }), Some(offset)) => {
                aligned.set(cpu, period, offset)?;
                Some(aligned)
            }
            (_, Some(offset)) => Some(Aligned::begin(group.clone(), cpu, period, offset)?),
            (before, None) => {
                drop(before);
                group.set_cpu_in_periods(cpu, period)?;
                None
            }
        };
        self.limits.insert(name.into(), Limited { cpu, period, aligned, another_since: None });
        Ok(())
    }
}

impl Limit {
    /// In the periods of an assignment: who asks for one has slices on several nodes that are to begin together.
    fn of(assignment: &Assignment, cpu: CpuPpm) -> Self {
        let offset = |period| phase::offset(&assignment.job, period);
        let offset = assignment.cpu_period_nanos.map(offset);
        Self { cpu, period: period_of(assignment), offset }
    }
}

/// What the next agent finds on the group of a job that computes so. Threads it meets itself.
fn note_of(computing: Computing) -> &'static str {
    match computing {
        Computing::InOthers => IN_OTHERS,
        Computing::InCarriers | Computing::InThreads(_) => "",
    }
}

/// Whether a job was promised any CPU.
fn has_share(assignment: &Assignment) -> bool {
    assignment.cpu_ppm != CpuPpm::default()
}

/// A share, and what those have beside who carry no schedule.
fn with_launchers(cpu: CpuPpm) -> CpuPpm {
    cpu.checked_add(launchers_share(cpu)).unwrap_or(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_control::admission::Bounds;
    use keeptime_linux::cgroup::{Hierarchies, V1, V2};
    use keeptime_linux::testing::skip;
    use keeptime_model::capability::{Answer, Capability};
    use keeptime_model::units::WallTime;
    use std::fs;
    use std::path::PathBuf;
    use std::process::{Child, Command};

    // Goal: what somebody else writes into a job's group lasts until the next look, and what is right is not written again.
    // Method: files in the place of the kernel's, which ends what it shows with a new line, as nobody writes it.
    #[test]
    fn a_limit_that_somebody_has_changed_is_set_again() {
        let mut written = Written::new();
        let mut kept_after = |quota: &str| written.kept_after(quota, None);
        assert_eq!(kept_after("-1\n"), "4000");
        assert_eq!(kept_after("4000\n"), "4000\n");
        assert_eq!(kept_after("-1\n"), "4000");
        assert_eq!(kept_after("9000\n"), "4000");
    }

    // Goal: the same of a group whose periods are moved: what may be just that is left alone, and set again once it has
    // lasted for longer. Method: the second look is as long after the first as moving takes at the most.
    #[test]
    fn a_limit_in_a_stated_period_that_somebody_has_changed_is_set_again() {
        let mut written = Written::new();
        let period = Some(Nanos::from_millis(100));
        assert_eq!(written.kept_after("-1\n", period), "40000");
        assert_eq!(written.kept_after("-1\n", period), "-1\n");
        written.pass(MOVED_WITHIN);
        assert_eq!(written.kept_after("-1\n", period), "40000");
        assert_eq!(written.kept_after("-1\n", period), "-1\n");
        // It was moved, and is where it belongs: the next time is another one.
        assert_eq!(written.kept_after("40000\n", period), "40000\n");
        written.pass(MOVED_WITHIN);
        assert_eq!(written.kept_after("-1\n", period), "-1\n");
    }

    // Goal: jobs without a share part what the others leave, with what belongs to no job if there is anything: together all have
    // no more than the node. Method: the quotas that are written, of 10 ms.
    #[test]
    fn jobs_without_a_share_part_what_the_others_leave() {
        let mut written = Written::new();
        let job = |name: &str, percent| {
            let until = WallTime::from_unix_nanos(9);
            let job = Assignment::new(name.parse().unwrap(), CpuPpm::from_percent(percent), until);
            (job.job.clone(), job)
        };
        let wanted = BTreeMap::from([job("r1", 40), job("r2", 0), job("r3", 0)]);
        let node = written.node();
        for (name, assignment) in &wanted {
            written.keeper.keep(assignment, &node.child(name.as_str()).unwrap()).unwrap();
        }
        let quotas =
            |written: &Written| ["r1", "r2", "r3", "_rest"].map(|name| written.quota(name));
        assert_eq!(written.quota("r2"), "-1\n", "it waits for what others leave");
        written.set_processes_of_nobody("");
        written.keeper.keep_rest(&wanted, &node, &Scope::All).unwrap();
        assert_eq!(quotas(&written), ["4000", "3000", "3000", "2000"]);
        written.set_processes_of_nobody("1\n");
        written.keeper.keep_rest(&wanted, &node, &Scope::All).unwrap();
        assert_eq!(quotas(&written), ["4000", "2000", "2000", "2000"]);
        // One of them is given a share, and what is left is less.
        let wanted = BTreeMap::from([job("r1", 40), job("r2", 30), job("r3", 0)]);
        let group = node.child("r2").unwrap();
        written.keeper.keep(&wanted[&"r2".parse().unwrap()], &group).unwrap();
        written.keeper.keep_rest(&wanted, &node, &Scope::All).unwrap();
        assert_eq!(quotas(&written), ["4000", "3000", "1500", "1500"]);
    }

    fn capability(feature: Feature) -> Capability {
        Capability { feature, answer: Answer::Yes, tried: String::new() }
    }

    /// A process that only sleeps, killed with this.
    struct Sleeping(Child);

    impl Sleeping {
        fn start() -> Self {
            Self(Command::new("sleep").arg("60").spawn().unwrap())
        }
    }

    impl Drop for Sleeping {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// One process of which more is asked from user space than it can have there.
    fn of_four_processors() -> Assignment {
        let until = WallTime::from_unix_nanos(9);
        let job = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(400), until);
        Assignment { cpu_mechanism: CpuMechanism::UserLevel, ..job }
    }

    // Goal: a rank whose threads have four processors reserved has more than a part of one.
    #[test]
    fn what_no_process_can_have_from_user_space_is_kept_by_bandwidth() {
        let (mut written, rank) = (Written::new(), Sleeping::start());
        written.keeper.found.0.push(capability(Feature::CpuUserLevel));
        let job = of_four_processors();
        fs::write(written.processes("r1"), rank.0.id().to_string()).unwrap();
        written.keeper.keep(&job, &written.group).unwrap();
        let kept = written.keeper.kept(&job.job).unwrap();
        assert_eq!(kept.by, Some(CpuMechanism::Bandwidth));
        let why = kept.obstacle().unwrap();
        assert!(why.contains("at most 98 %, and 400 % was asked for"), "{why}");
        assert_eq!(written.quota("r1"), "40000");
    }

    // Goal: where nothing else keeps the share, what is missing of it is told. Method: a process that is scheduled indeed, in a
    // directory in the place of its group.
    #[test]
    fn what_no_process_can_have_is_told_where_nothing_else_keeps_it() {
        if !nix::unistd::geteuid().is_root() {
            return skip(&["root".into()], "scheduling needs root");
        }
        let (root, rank) = (tempfile::tempdir().unwrap(), Sleeping::start());
        fs::write(root.path().join("cgroup.controllers"), "cpu").unwrap();
        let unified = V2::at(root.path(), 0).unwrap();
        let all = Hierarchies::of(None, None, Some(unified)).unwrap();
        let group = all.group("keeptime/n1/r1").unwrap();
        group.create().unwrap();
        let directory = root.path().join("keeptime/n1/r1");
        fs::write(directory.join("cpu.max"), "max 100000\n").unwrap();
        fs::write(directory.join("cgroup.procs"), rank.0.id().to_string()).unwrap();
        let found = Capabilities(vec![capability(Feature::CpuUserLevel)]);
        let schedules = JobSchedules::new(Bounds::user_level(1));
        let mut keeper = CpuKeeper::new(found, CpuPpm::from_percent(98), schedules);
        let job = of_four_processors();
        keeper.keep(&job, &group).unwrap();
        let kept = keeper.kept(&job.job).unwrap();
        assert_eq!(kept.by, Some(CpuMechanism::UserLevel));
        let why = kept.obstacle().unwrap();
        assert!(why.contains("at most 98 %, and 400 % was asked for"), "{why}");
        // Once it has a period, deadlines are tried, which nothing has kept from it.
        let tasks = deadline::observe(&group.pids().unwrap()).unwrap();
        assert_eq!(keeper.still_in_the_way(&job.job, &group, &tasks), None);
    }

    // Goal: a process whose deadlines somebody takes while it waits for its next slice goes on, whatever the kernel does with
    // such, and by an agent that knows nothing of that. Method: one that always computes, so that it waits at nearly any moment.
    #[test]
    fn who_has_left_deadlines_goes_on() {
        let period = Nanos::from_millis(40);
        let until = WallTime::from_unix_nanos(9);
        let job = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(3), until);
        let job = Assignment { cpu_period_nanos: Some(period), ..job };
        for is_known in [true, false] {
            let mut written = Written::new();
            written.keeper.found.0.push(capability(Feature::CpuDeadline));
            let found = written.keeper.found.clone();
            let busy = Busy::start();
            fs::write(written.processes("r1"), busy.0.id().to_string()).unwrap();
            let by = |keeper: &mut CpuKeeper| {
                keeper.keep(&job, &written.group).unwrap();
                let kept = keeper.kept(&job.job).unwrap();
                (kept.by, kept.obstacle().cloned())
            };
            if let (Some(CpuMechanism::Bandwidth), why) = by(&mut written.keeper) {
                return skip(&["deadline".into()], &why.unwrap_or_default());
            }
            // It is seen to have them.
            assert_eq!(by(&mut written.keeper).0, Some(CpuMechanism::Deadline));
            std::thread::sleep(Duration::from_nanos(2 * period.get()));
            deadline::leave(busy.pid()).unwrap();
            std::thread::sleep(Duration::from_nanos(2 * period.get()));
            if is_known {
                let (by, why) = by(&mut written.keeper);
                assert_eq!(by, Some(CpuMechanism::Bandwidth));
                assert!(why.unwrap().contains("has had deadlines before"));
            } else {
                let schedules = JobSchedules::new(Bounds::user_level(1));
                written.keeper = CpuKeeper::new(found, CpuPpm::from_percent(100), schedules);
                let looks = (0..12).map(|_| {
                    std::thread::sleep(Duration::from_millis(250));
                    by(&mut written.keeper)
                });
                println!("it is kept by {:?}", looks.last().unwrap());
            }
            let used = busy.used();
            std::thread::sleep(Duration::from_secs(1));
            assert!(busy.used() > used, "it never runs again");
        }
    }

    /// A process that computes, killed with this.
    struct Busy(Child);

    impl Busy {
        fn start() -> Self {
            Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }

        fn used(&self) -> Nanos {
            deadline::observe(&[self.pid()]).unwrap()[0].used
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            // Whom deadlines never let run could not end either.
            let _ = deadline::leave(self.pid());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A job's group of files in the place of the kernel's, and what keeps 40 % for it.
    struct Written {
        root: tempfile::TempDir,
        group: Group,
        keeper: CpuKeeper,
    }

    impl Written {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let jobs = ["r1", "r2", "r3", "_rest"].map(|name| format!("keeptime/n1/{name}"));
            for path in
                ["keeptime", "keeptime/n1"].into_iter().chain(jobs.each_ref().map(String::as_str))
            {
                let directory = root.path().join(path);
                fs::create_dir(&directory).unwrap();
                fs::write(directory.join("cgroup.procs"), "").unwrap();
                fs::write(directory.join("cpu.shares"), "1024\n").unwrap();
                fs::write(directory.join("cpu.cfs_quota_us"), "-1\n").unwrap();
                fs::write(directory.join("cpu.cfs_period_us"), "100000\n").unwrap();
            }
            let all = Hierarchies::of(Some(V1::at(root.path())), None, None).unwrap();
            let group = all.group("keeptime/n1/r1").unwrap();
            let found = Capabilities(vec![capability(Feature::CpuBandwidthV1)]);
            let schedules = JobSchedules::new(Bounds::user_level(1));
            let keeper = CpuKeeper::new(found, CpuPpm::from_percent(100), schedules);
            Self { root, group, keeper }
        }

        /// The quota at the next look, after somebody has written one.
        fn kept_after(&mut self, written: &str, period: Option<Nanos>) -> String {
            let until = WallTime::from_unix_nanos(9);
            let job = Assignment::new("r1".parse().unwrap(), CpuPpm::from_percent(40), until);
            let job = Assignment { cpu_period_nanos: period, ..job };
            let quota = self.root.path().join("keeptime/n1/r1/cpu.cfs_quota_us");
            fs::write(&quota, written).unwrap();
            self.keeper.keep(&job, &self.group).unwrap();
            fs::read_to_string(&quota).unwrap()
        }

        fn node(&self) -> Group {
            let all = Hierarchies::of(Some(V1::at(self.root.path())), None, None).unwrap();
            all.group("keeptime/n1").unwrap()
        }

        fn quota(&self, name: &str) -> String {
            let path = format!("keeptime/n1/{name}/cpu.cfs_quota_us");
            fs::read_to_string(self.root.path().join(path)).unwrap()
        }

        fn set_processes_of_nobody(&self, pids: &str) {
            fs::write(self.processes("_rest"), pids).unwrap();
        }

        fn processes(&self, name: &str) -> PathBuf {
            self.root.path().join(format!("keeptime/n1/{name}/cgroup.procs"))
        }

        /// As if so much time had passed.
        fn pass(&mut self, span: Duration) {
            for limited in self.keeper.limits.values_mut() {
                limited.another_since = limited.another_since.and_then(|at| at.checked_sub(span));
            }
        }
    }
}
