//! CPU schedules by `SCHED_DEADLINE`: so much CPU time in every period, whatever else runs.
//!
//! The kernel keeps such a schedule for one thread, refuses it to a thread that is bound to some of
//! the processors, and lets a thread that has one start others only if those start without. So a
//! job's share is divided among the processes that **can carry** it: those with one thread that have
//! started no process of the job. Launchers and shells wait; they have ordinary time. If one that
//! should carry cannot, none does, and the job is limited by its control group instead: half of a
//! job with deadlines waits for the other half without.
//!
//! [`plan`] is pure; [`enforce`] looks, plans and carries out, and is called again and again, since
//! processes come, go and start threads without telling.
//!
//! **Leaving is done in two steps.** A thread that is asleep or stopped while it leaves the class
//! takes its bandwidth with it until the machine restarts (seen on Linux 6.18: `dl_bw->total_bw` in
//! /sys/kernel/debug/sched/debug stays, since `switched_from_dl()` hands only queued threads to the
//! timer that gives bandwidth back). Changing parameters inside of the class accounts at once. So a
//! thread is first shrunk to less than a millionth of a processor, and then leaves: nothing is lost
//! in any state.
//!
//! **Who leaves must not come back.** A process that left while it waited for its next slice is never let run by later
//! deadlines, and cannot end (seen on Linux 6.18: the timer that gives slices finds an ordinary process, and
//! `dl_throttled` stays set, with which `enqueue_dl_entity()` leaves a process to that timer). Only leaving once more sets it
//! free. It is for the caller to know who has left.

use crate::process::{Identity, Stat, cpu_time};
use crate::syscall::SyscallError;
use keeptime_model::Invalid;
use keeptime_model::units::{CpuPpm, Nanos};
use nix::errno::Errno;
use nix::unistd::gettid;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::mpsc::{Sender, channel};

/// What the kernel is asked for: `runtime` in every `period`, each slice before the next period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadlineSpec {
    runtime: Nanos,
    period: Nanos,
}

/// One process of a job, as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Its number.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
    /// That of the process that started it.
    pub parent: i32,
    /// How many threads it has.
    pub threads: u32,
    /// Whether its first thread runs, or would if it had a processor.
    pub is_ready: bool,
    /// What it has now; nothing = it is in another class.
    pub has: Option<DeadlineSpec>,
    /// CPU time that it has used.
    pub used: Nanos,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineOp {
    /// Gives a process this schedule, or changes the one that it has.
    Set(i32, DeadlineSpec),
    /// Makes it an ordinary process again.
    Leave(i32),
}

/// Why a job's processes have no schedule of this kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// A process has several threads, and the kernel schedules threads.
    Threads {
        /// Which.
        pid: i32,
        /// How many.
        threads: u32,
    },
    /// A process may run on some of the processors only (or on those of a `cpuset`).
    Pinned {
        /// Which.
        pid: i32,
    },
    /// The kernel has promised what it can.
    Full {
        /// What was to be added.
        asked: DeadlineSpec,
    },
    /// A part of the share for each process is less than the kernel takes.
    TooSmall {
        /// Among how many it was divided.
        processes: usize,
    },
}

/// What is to be done, and whether the job is carried then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In this order the kernel never has to promise more than before or after.
    pub ops: Vec<DeadlineOp>,
    /// The processes that carry the schedule, or why none does.
    pub outcome: Result<Vec<i32>, Obstacle>,
}

impl Task {
    /// Which process it is, whoever has its number later.
    pub fn identity(&self) -> Identity {
        Identity { pid: self.pid, start: self.start }
    }
}

impl DeadlineSpec {
    /// `cpu` of one processor in periods of `period`; the slice is rounded down.
    ///
    /// # Errors
    /// More than a whole processor, or what the kernel does not take: slices under 1,024 ns, periods
    /// under 100 us or above 4.19 s.
    pub fn of(cpu: CpuPpm, period: Nanos) -> Result<Self, Invalid> {
        if cpu > CpuPpm::from_percent(100) {
            return Err(Invalid::new("cpu", cpu, "at most 100 %: a thread runs on one processor"));
        }
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) {
            return Err(Invalid::new("period", period, format!("{PERIOD_MIN} to {PERIOD_MAX}")));
        }
        let runtime = cpu.time_in_floor(period);
        if runtime < RUNTIME_MIN {
            let expected = format!("a slice of at least {RUNTIME_MIN} in each period of {period}");
            return Err(Invalid::new("cpu", cpu, expected));
        }
        Ok(Self { runtime, period })
    }

    /// CPU time in every period.
    pub fn runtime(&self) -> Nanos {
        self.runtime
    }

    /// How often.
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// What is nearly nothing.
    const LEAST: Self = Self { runtime: RUNTIME_MIN, period: PERIOD_MAX };
}

/// How the processes `tasks` of one job share `cpu`: each of those that can carry a part has an
/// equal one, at most a whole processor.
pub fn plan(cpu: CpuPpm, period: Nanos, tasks: &[Task]) -> Plan {
    let carriers = carriers(tasks);
    let pids: BTreeSet<_> = carriers.iter().map(|task| task.pid).collect();
    match part_of_each(cpu, period, &carriers) {
        Err(obstacle) => Plan { ops: leave_all(tasks), outcome: Err(obstacle) },
        Ok(part) => {
            let leaving = tasks.iter().filter(|t| t.has.is_some() && !pids.contains(&t.pid));
            let mut changed: Vec<_> = carriers.iter().filter(|t| t.has != part).collect();
            // Those who give come before those who take.
            changed.sort_by_key(|task| task.has.map_or(0, |has| u64::MAX - ratio(has)));
            changed.sort_by_key(|task| task.has.is_none());
            let sets = changed.into_iter().zip(part.into_iter().cycle());
            let ops = leaving
                .map(|task| DeadlineOp::Leave(task.pid))
                .chain(sets.map(|(task, part)| DeadlineOp::Set(task.pid, part)));
            let outcome = Ok(carriers.iter().map(|task| task.pid).collect());
            Plan { ops: ops.collect(), outcome }
        }
    }
}

/// Those of a job's processes that started no other of them: they compute, the others wait for them.
pub fn carriers(tasks: &[Task]) -> Vec<&Task> {
    let parents: BTreeSet<_> = tasks.iter().map(|task| task.parent).collect();
    tasks.iter().filter(|task| !parents.contains(&task.pid)).collect()
}

/// The first of a job's [`carriers`] that has several threads: none of them carries a schedule then.
pub fn threaded<'a>(carriers: &[&'a Task]) -> Option<&'a Task> {
    carriers.iter().copied().find(|task| task.threads > 1)
}

/// Looks at the processes `pids` of a job and makes them share `cpu`. What ends meanwhile is no
/// error. Some microseconds for each process.
///
/// # Errors
/// If `/proc` cannot be read, or the kernel refuses for a reason that is no [`Obstacle`].
pub fn enforce(
    cpu: CpuPpm,
    period: Nanos,
    pids: &[i32],
) -> Result<Result<Vec<i32>, Obstacle>, SyscallError> {
    enforce_among(cpu, period, &observe(pids)?)
}

/// As [`enforce`], of processes that were looked at just now.
///
/// # Errors
/// As [`enforce`].
pub fn enforce_among(
    cpu: CpuPpm,
    period: Nanos,
    tasks: &[Task],
) -> Result<Result<Vec<i32>, Obstacle>, SyscallError> {
    let Plan { ops, outcome } = plan(cpu, period, tasks);
    for op in ops {
        if let Err(obstacle) = apply(op)? {
            let pids: Vec<_> = tasks.iter().map(|task| task.pid).collect();
            release(&pids)?;
            return Ok(Err(obstacle));
        }
    }
    Ok(outcome)
}

/// Makes ordinary processes of all among `pids` that have a schedule of this kind.
///
/// # Errors
/// As [`enforce`].
pub fn release(pids: &[i32]) -> Result<(), SyscallError> {
    release_among(&observe(pids)?)
}

/// As [`release`], of processes that were looked at just now.
///
/// # Errors
/// As [`enforce`].
pub fn release_among(tasks: &[Task]) -> Result<(), SyscallError> {
    for op in leave_all(tasks) {
        // What leaves meets no obstacle.
        let _ = apply(op)?;
    }
    Ok(())
}

/// The processes among `pids` that have not ended.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn observe(pids: &[i32]) -> Result<Vec<Task>, SyscallError> {
    let mut tasks = Vec::new();
    for pid in pids {
        let Some(stat) = Stat::of(*pid)? else { continue };
        let Stat { parent, threads, is_ready, start, .. } = stat;
        // Whoever ends just now is left out by the next question.
        let used = cpu_time(*pid)?.unwrap_or_default();
        match read(*pid) {
            Ok(has) => {
                tasks.push(Task { pid: *pid, start, parent, threads, is_ready, has, used });
            }
            Err(error) if error.errno == Errno::ESRCH => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tasks)
}

/// The schedule of a thread; nothing if it is in another class.
///
/// # Errors
/// If there is no such thread.
pub fn read(tid: i32) -> Result<Option<DeadlineSpec>, SyscallError> {
    let mut raw = RawAttributes::default();
    let size = SIZE as libc::c_uint;
    // SAFETY: `raw` is live and as large as the kernel is told.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut raw, size, 0) };
    Errno::result(done).map_err(refused("sched_getattr", tid))?;
    let spec = DeadlineSpec { runtime: Nanos::new(raw.runtime), period: Nanos::new(raw.period) };
    Ok((raw.policy == SCHED_DEADLINE).then_some(spec))
}

/// Gives a thread a schedule, or changes the one that it has. Threads and processes that it starts
/// are ordinary ones; without that the kernel would let it start none.
///
/// # Errors
/// `EBUSY`: the kernel has promised all that it can. `EPERM`: no privilege, or the thread is bound
/// to some of the processors. `ESRCH`: it has ended.
pub fn set(tid: i32, spec: DeadlineSpec) -> Result<(), SyscallError> {
    let (runtime, period) = (spec.runtime.get(), spec.period.get());
    let flags = SCHED_FLAG_RESET_ON_FORK;
    let raw = RawAttributes {
        policy: SCHED_DEADLINE,
        flags,
        runtime,
        deadline: period,
        period,
        ..RawAttributes::default()
    };
    set_raw(tid, &raw)
}

/// Makes an ordinary thread of one that has a schedule, with the niceness that it had. See the
/// module's words on leaving.
///
/// # Errors
/// `ESRCH`: it has ended.
pub fn leave(tid: i32) -> Result<(), SyscallError> {
    set(tid, DeadlineSpec::LEAST)?;
    // SAFETY: takes two integers. -1 can be a niceness; a thread that has ended is met below.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid as libc::id_t) };
    set_raw(tid, &RawAttributes { policy: SCHED_NORMAL, nice, ..RawAttributes::default() })
}

/// How much CPU the kernel would still promise to threads that are bound to no processor, found out
/// by asking for it: a sleeping thread for each processor takes what it can get, for less than a
/// millisecond. Whoever asks meanwhile is refused.
///
/// # Errors
/// If the kernel refuses for another reason than that it has promised too much.
pub fn admissible() -> Result<CpuPpm, SyscallError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let sleepers: Vec<_> = (0..threads).map_while(|_| Sleeper::start()).collect();
    let taken: Result<Vec<_>, _> = sleepers.iter().map(|sleeper| take_most(sleeper.tid)).collect();
    let left: Result<(), _> = sleepers.iter().try_for_each(|sleeper| leave(sleeper.tid));
    let add = |sum: CpuPpm, taken| sum.checked_add(taken).unwrap_or(sum);
    let sum = taken?.into_iter().fold(CpuPpm::default(), add);
    left.map(|()| sum)
}

/// A thread that sleeps until this is dropped, to try schedules on. One that gave a schedule of next
/// to nothing to itself would get on a period later.
pub(crate) struct Sleeper {
    /// Its number.
    pub tid: i32,
    _awake: Sender<()>,
}

impl Sleeper {
    /// Nothing if it does not start.
    pub fn start() -> Option<Self> {
        let ((tell, told), (awake, asleep)) = (channel(), channel::<()>());
        let sleep = move || {
            // Whoever started it may have gone.
            let _ = tell.send(gettid().as_raw());
            let _ = asleep.recv();
        };
        std::thread::Builder::new().spawn(sleep).ok()?;
        Some(Self { tid: told.recv().ok()?, _awake: awake })
    }
}

/// Gives a sleeping thread as much of a processor as the kernel admits.
fn take_most(tid: i32) -> Result<CpuPpm, SyscallError> {
    let (mut taken, mut refused) = (LEAST_PPM, 1_000_001);
    while refused - taken > 1 {
        let middle = CpuPpm::new(taken + (refused - taken) / 2);
        // Within the bounds by construction; if not, that is as much as there is.
        let Ok(spec) = DeadlineSpec::of(middle, Nanos::from_secs(1)) else { break };
        match set(tid, spec) {
            Ok(()) => taken = middle.get(),
            Err(error) if error.errno == Errno::EBUSY => refused = middle.get(),
            Err(error) => return Err(error),
        }
    }
    Ok(CpuPpm::new(taken))
}

/// Carries out one step; what has ended meanwhile is as it should be.
fn apply(op: DeadlineOp) -> Result<Result<(), Obstacle>, SyscallError> {
    let (done, asked, pid) = match op {
        DeadlineOp::Set(pid, spec) => (set(pid, spec), spec, pid),
        DeadlineOp::Leave(pid) => (leave(pid), DeadlineSpec::LEAST, pid),
    };
    match done {
        Ok(()) => Ok(Ok(())),
        Err(error) => match error.errno {
            Errno::ESRCH => Ok(Ok(())),
            Errno::EBUSY => Ok(Err(Obstacle::Full { asked })),
            Errno::EPERM => Ok(Err(Obstacle::Pinned { pid })),
            _ => Err(error),
        },
    }
}

fn leave_all(tasks: &[Task]) -> Vec<DeadlineOp> {
    let having = tasks.iter().filter(|task| task.has.is_some());
    having.map(|task| DeadlineOp::Leave(task.pid)).collect()
}

/// The part of each carrier; nothing if there are none.
fn part_of_each(
    cpu: CpuPpm,
    period: Nanos,
    carriers: &[&Task],
) -> Result<Option<DeadlineSpec>, Obstacle> {
    if let Some(task) = threaded(carriers) {
        return Err(Obstacle::Threads { pid: task.pid, threads: task.threads });
    }
    let Some(each) = cpu.get().checked_div(carriers.len() as u32) else { return Ok(None) };
    let each = CpuPpm::new(each).min(CpuPpm::from_percent(100));
    match DeadlineSpec::of(each, period) {
        Ok(part) => Ok(Some(part)),
        Err(_) => Err(Obstacle::TooSmall { processes: carriers.len() }),
    }
}

/// Parts per 2^20 of a processor, as the kernel counts.
fn ratio(spec: DeadlineSpec) -> u64 {
    ((u128::from(spec.runtime.get()) << 20) / u128::from(spec.period.get().max(1))) as u64
}

fn set_raw(tid: i32, raw: &RawAttributes) -> Result<(), SyscallError> {
    // SAFETY: `raw` is live and begins with its size.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setattr, tid, raw as *const RawAttributes, 0) };
    Errno::result(done).map(drop).map_err(refused("sched_setattr", tid))
}

fn refused(call: &'static str, tid: i32) -> impl FnOnce(Errno) -> SyscallError {
    SyscallError::of(call, format!("thread {tid}"))
}

impl fmt::Display for DeadlineSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.runtime, self.period)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads { pid, threads } => {
                write!(f, "process {pid} has {threads} threads, and each would need its own part")
            }
            Self::Pinned { pid } => {
                write!(f, "process {pid} is bound to some of the processors")
            }
            Self::Full { asked } => {
                write!(f, "the kernel has promised all that it can; {asked} more does not fit")
            }
            Self::TooSmall { processes } => {
                write!(f, "a part for each of {processes} processes is less than the kernel takes")
            }
        }
    }
}

/// `struct sched_attr` of include/uapi/linux/sched/types.h, first version.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Default for RawAttributes {
    fn default() -> Self {
        Self {
            size: SIZE as u32,
            policy: SCHED_NORMAL,
            flags: 0,
            nice: 0,
            priority: 0,
            runtime: 0,
            deadline: 0,
            period: 0,
        }
    }
}

/// The least share that is a slice of [`RUNTIME_MIN`] in a second.
const LEAST_PPM: u32 = 2;
const SIZE: usize = size_of::<RawAttributes>();
const SCHED_NORMAL: u32 = 0;
const SCHED_DEADLINE: u32 = 6;
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;
/// `DL_SCALE` in kernel/sched/sched.h.
const RUNTIME_MIN: Nanos = Nanos::new(1_024);
/// `sched_deadline_period_{min,max}_us`: 100 and 1 << 22 as the kernel sets them.
const PERIOD_MIN: Nanos = Nanos::new(100_000);
const PERIOD_MAX: Nanos = Nanos::new((1 << 22) * 1_000);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: Nanos = Nanos::from_millis(20);

    fn task(pid: i32, parent: i32) -> Task {
        Task {
            pid,
            start: 1,
            parent,
            threads: 1,
            is_ready: true,
            has: None,
            used: Nanos::default(),
        }
    }

    fn spec(percent: u32) -> DeadlineSpec {
        DeadlineSpec::of(CpuPpm::from_percent(percent), PERIOD).unwrap()
    }

    #[test]
    fn those_who_started_none_share_in_equal_parts() {
        // A shell that started a launcher that started two ranks.
        let tasks = [task(10, 1), task(11, 10), task(12, 11), task(13, 11)];
        let plan = plan(CpuPpm::from_percent(50), PERIOD, &tasks);
        let part = spec(25);
        assert_eq!(plan.ops, [DeadlineOp::Set(12, part), DeadlineOp::Set(13, part)]);
        assert_eq!(plan.outcome, Ok(vec![12, 13]));
    }

    #[test]
    fn one_who_starts_another_hands_the_schedule_on() {
        let tasks = [Task { has: Some(spec(50)), ..task(10, 1) }, task(11, 10)];
        let plan = plan(CpuPpm::from_percent(50), PERIOD, &tasks);
        assert_eq!(plan.ops, [DeadlineOp::Leave(10), DeadlineOp::Set(11, spec(50))]);
    }

    #[test]
    fn a_second_thread_ends_it_for_all() {
        let tasks = [
            Task { has: Some(spec(25)), threads: 2, ..task(10, 1) },
            Task { has: Some(spec(25)), ..task(11, 1) },
        ];
        let plan = plan(CpuPpm::from_percent(50), PERIOD, &tasks);
        assert_eq!(plan.ops, [DeadlineOp::Leave(10), DeadlineOp::Leave(11)]);
        assert_eq!(plan.outcome, Err(Obstacle::Threads { pid: 10, threads: 2 }));
        // A launcher may have threads: it only waits.
        let launcher = [Task { threads: 9, ..task(10, 1) }, task(11, 10)];
        assert!(super::plan(CpuPpm::from_percent(50), PERIOD, &launcher).outcome.is_ok());
    }

    #[test]
    fn what_the_kernel_does_not_take_is_refused_by_name() {
        let of = |ppm, nanos| DeadlineSpec::of(CpuPpm::new(ppm), Nanos::new(nanos));
        assert!(of(1_000_001, 1_000_000).unwrap_err().to_string().contains("one processor"));
        assert_eq!(of(500_000, 99_999).unwrap_err().field, "period");
        assert_eq!(of(500_000, 5_000_000_000).unwrap_err().field, "period");
        assert!(of(1_000, 1_000_000).unwrap_err().to_string().contains("1.024 us"));
        assert!(of(1_024, 1_000_000).is_ok());
        // Too many for so small a share.
        let tasks: Vec<_> = (10..10 + 100).map(|pid| task(pid, 1)).collect();
        let plan = plan(CpuPpm::new(1_000), PERIOD, &tasks);
        assert_eq!(plan.outcome, Err(Obstacle::TooSmall { processes: 100 }));
    }

    fn any_tasks() -> impl Strategy<Value = Vec<Task>> {
        let has = prop::option::of((1u32..100).prop_map(spec));
        let one = (0usize..8, prop_oneof![9 => Just(1u32), 1 => 2u32..4], has);
        prop::collection::vec(one, 0..8).prop_map(|raw| {
            let task = |(at, (parent, threads, has)): (usize, (usize, u32, _))| {
                // Parents come before their children.
                let parent = if parent < at { 10 + parent as i32 } else { 1 };
                Task { threads, has, ..task(10 + at as i32, parent) }
            };
            raw.into_iter().enumerate().map(task).collect()
        })
    }

    fn sum(tasks: &[Task]) -> u64 {
        tasks.iter().filter_map(|task| task.has).map(ratio).sum()
    }

    proptest! {
        // Afterwards the carriers have the share and no more, nobody else has any, and on the way
        // there was never more than the greater of before and after; doing it again does nothing.
        #[test]
        fn the_share_is_kept_and_never_exceeded(tasks in any_tasks(), percent in 1u32..150) {
            let cpu = CpuPpm::from_percent(percent);
            let plan = plan(cpu, PERIOD, &tasks);
            let mut after = tasks.clone();
            let mut most = 0;
            for op in &plan.ops {
                let (pid, has) = match *op {
                    DeadlineOp::Set(pid, spec) => (pid, Some(spec)),
                    DeadlineOp::Leave(pid) => (pid, None),
                };
                after.iter_mut().find(|task| task.pid == pid).unwrap().has = has;
                most = most.max(sum(&after));
            }
            prop_assert!(most <= sum(&tasks).max(sum(&after)));
            let whole = u64::from(cpu.get()) << 20;
            prop_assert!(sum(&after) * 1_000_000 <= whole);
            match &plan.outcome {
                Ok(carriers) => for task in &after {
                    prop_assert_eq!(task.has.is_some(), carriers.contains(&task.pid));
                },
                Err(_) => prop_assert_eq!(sum(&after), 0),
            }
            prop_assert_eq!(super::plan(cpu, PERIOD, &after).ops, Vec::new());
        }
    }
}
