//! Whose processes are scheduled from user space: those of a job share what it has, as long as an agent keeps that,
//! and the next agent knows which they were.
//!
//! They are written on the job's group as an extended attribute before any of them is scheduled: the kernel keeps it
//! as long as the group, whatever becomes of the agent. So nobody is set free who was stopped by somebody else.

use super::guard::Guarded;
use super::{ScheduleError, Scheduler, give_back, hands};
use crate::cgroup::{CgroupError, Group};
use crate::deadline;
use crate::process::Identity;
use crate::syscall::SyscallError;
use keeptime_control::admission::{Bounds, Refusal};
use keeptime_control::schedule::Schedule;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsString};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a job's processes are not scheduled from user space.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// They do not fit beside those of other jobs, or cannot be kept at all.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Each of them costs a look at each change.
    #[error("of {processes} processes {} can be scheduled from user space", PROCESSES_MAX)]
    TooMany {
        /// How many.
        processes: usize,
    },
    /// One cannot be looked at, or be put where it is to be, as where it may not run on that processor (a `cpuset`).
    #[error("process {pid} cannot be scheduled from user space: {why}")]
    Denied {
        /// Which.
        pid: i32,
        /// What the kernel says.
        why: SyscallError,
    },
}

impl Obstacle {
    /// # Errors
    /// What is no obstacle of these processes.
    fn of(error: ScheduleError) -> Result<Self, ScheduleError> {
        match error {
            ScheduleError::Refused(refusal) => Ok(refusal.into()),
            ScheduleError::Kernel { pid, source } => Ok(Self::Denied { pid, why: source }),
            ScheduleError::Stopped => Err(ScheduleError::Stopped),
        }
    }
}

/// What failed about the schedules of a job's processes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SharingError {
    /// Its group, or what is written on it.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// A look at its processes.
    #[error(transparent)]
    Process(#[from] SyscallError),
    /// Their schedules.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// The jobs of a node whose processes are scheduled from user space. Dropped, these are ordinary ones again.
#[derive(Debug)]
pub struct JobSchedules {
    bounds: Bounds,
    /// Nothing until there is somebody to schedule.
    scheduler: Option<Scheduler>,
    /// Who is noted on each group.
    noted: BTreeMap<PathBuf, Vec<Identity>>,
    /// Ended last, when nobody is held.
    guarded: Option<Guarded>,
}

impl JobSchedules {
    /// With nobody to schedule. `bounds` says what is admitted.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, scheduler: None, noted: BTreeMap::new(), guarded: None }
    }

    /// With a process beside this one that sets free what is held if this one is killed: a program with its arguments
    /// that does as [`super::guard::serve`] with its standard input and output.
    pub fn guarded_by(self, words: Vec<OsString>) -> Self {
        Self { guarded: Some(Guarded::by(words)), ..self }
    }

    /// Sees to it that this process is guarded, if it is to be. To be called before [`Self::share`].
    ///
    /// # Errors
    /// Why it is not: once a minute. Schedules are kept all the same.
    pub fn look_for_guard(&mut self) -> io::Result<()> {
        self.guarded.as_mut().map_or(Ok(()), Guarded::look)
    }

    /// Looks at the processes of a job's group and makes them share `cpu`: those that started no other of the
    /// job have equal parts ([`Bounds::part`]), as those have that carry deadlines. Called again and again, since
    /// processes come and go without telling. Some microseconds for each process. What is told is the schedule of
    /// each; nothing if there is no process.
    ///
    /// # Errors
    /// If `/proc` or the group cannot be read or written on, or the scheduler has ended.
    pub fn share(
        &mut self,
        group: &Group,
        cpu: CpuPpm,
        period: Nanos,
    ) -> Result<Result<Option<Schedule>, Obstacle>, SharingError> {
        let pids = processes(group)?;
        let tasks = deadline::observe(&pids)?;
        if tasks.iter().any(|task| task.has.is_some()) {
            // A thread has one schedule.
            deadline::release(&pids)?;
        }
        let carriers: BTreeSet<i32> =
            deadline::carriers(&tasks).into_iter().map(|task| task.pid).collect();
        if carriers.len() > PROCESSES_MAX {
            return Ok(Err(Obstacle::TooMany { processes: carriers.len() }));
        }
        if carriers.is_empty() && !self.noted.contains_key(group.path()) {
            return Ok(Ok(None));
        }
        let running = carriers.iter().filter_map(|pid| Identity::of(*pid).transpose());
        let running = running.collect::<Result<Vec<_>, _>>()?;
        let former = self.noted.get(group.path()).cloned().unwrap_or_default();
        self.note_beside(group, &running)?;
        let part = self.bounds.part(cpu, period, running.len());
        let scheduled: Vec<_> = running.iter().map(|process| (process.pid, part)).collect();
        let resting = pids.into_iter().filter(|pid| !carriers.contains(pid)).collect();
        match self.tell(group, scheduled, resting) {
            Ok(()) => {
                let schedule = (!running.is_empty()).then_some(part);
                self.note(group, running)?;
                Ok(Ok(schedule))
            }
            Err(SharingError::Schedule(error)) => {
                let obstacle = Obstacle::of(error)?;
                // Who comes and is refused, again and again, is noted no longer than that takes.
                self.note(group, former)?;
                Ok(Err(obstacle))
            }
            Err(error) => Err(error),
        }
    }

    /// Why [`Self::share`] would give the processes of a job's group less than their parts of `cpu`: each stays on one
    /// processor, however many threads it has. Nothing where they have all of it, or none is there.
    ///
    /// # Errors
    /// If `/proc` or the group cannot be read.
    pub fn cut(&self, group: &Group, cpu: CpuPpm) -> Result<Option<Refusal>, SharingError> {
        // Most shares are no more than one process can have: nobody has to be looked at.
        if self.bounds.check_part(cpu, 1).is_ok() {
            return Ok(None);
        }
        let tasks = deadline::observe(&processes(group)?)?;
        Ok(match deadline::carriers(&tasks).len() {
            0 => None,
            sharers => self.bounds.check_part(cpu, sharers).err(),
        })
    }

    /// Makes ordinary processes of those of a job. Nothing happens where none is scheduled.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub fn release(&mut self, group: &Group) -> Result<(), SharingError> {
        if !self.noted.contains_key(group.path()) {
            return Ok(());
        }
        match self.tell(group, Vec::new(), processes(group)?) {
            // One that has ended has given everything back.
            Ok(()) | Err(SharingError::Schedule(ScheduleError::Stopped)) => {}
            Err(error) => return Err(error),
        }
        self.note(group, Vec::new())?;
        self.noted.remove(group.path());
        Ok(())
    }

    /// Whether just these processes of a group are scheduled.
    pub fn schedules(&self, group: &Group, pids: &BTreeSet<i32>) -> bool {
        let noted = self.noted.get(group.path()).into_iter().flatten();
        noted.map(|process| process.pid).collect::<BTreeSet<_>>() == *pids
    }

    fn tell(
        &mut self,
        group: &Group,
        scheduled: Vec<(i32, Schedule)>,
        resting: Vec<i32>,
    ) -> Result<(), SharingError> {
        let scheduler = match self.scheduler.take() {
            Some(scheduler) => scheduler,
            None => Scheduler::start(self.bounds)?,
        };
        let done = scheduler.share(&group.path().to_string_lossy(), scheduled, resting);
        // The next has another one.
        if done != Err(ScheduleError::Stopped) {
            self.scheduler = Some(scheduler);
        }
        Ok(done?)
    }

    /// Notes processes that are about to be scheduled, beside those that are.
    fn note_beside(&mut self, group: &Group, coming: &[Identity]) -> Result<(), CgroupError> {
        let mut all = self.noted.get(group.path()).cloned().unwrap_or_default();
        let new: Vec<_> = coming.iter().copied().filter(|one| !all.contains(one)).collect();
        if new.is_empty() {
            return Ok(());
        }
        all.extend(new);
        self.note(group, all)
    }

    fn note(&mut self, group: &Group, processes: Vec<Identity>) -> Result<(), CgroupError> {
        if self.noted.get(group.path()) == Some(&processes) {
            return Ok(());
        }
        match write_note(group, &processes) {
            // With the group all that was in it has ended.
            Err(error) if error.is_away() && processes.is_empty() => {}
            noted => noted?,
        }
        self.noted.insert(group.path().to_owned(), processes);
        Ok(())
    }
}

/// Sets free what the scheduler of an agent that was killed held or made wait in the groups inside of `node`: those
/// who are noted there, and what they have started since. Whoever starts again does that before anything else.
///
/// # Errors
/// The first that could not be set free, or a group that cannot be read; all that can be is.
pub fn give_back_all(node: &Group) -> Result<(), SharingError> {
    let mut done = Ok(());
    for name in node.children()? {
        done = done.and(give_back_in(&node.child(&name)?));
    }
    done
}

fn give_back_in(group: &Group) -> Result<(), SharingError> {
    let noted = read_note(group)?;
    if noted.is_empty() {
        return Ok(());
    }
    let noted = noted.iter().filter(|process| process.is_alive()).map(|process| process.pid);
    let started = processes(group)?.into_iter().filter(|pid| hands::is_placed(*pid));
    let all: BTreeSet<i32> = noted.chain(started).collect();
    let mut done = Ok(());
    for pid in all {
        done = done.and(give_back(pid));
    }
    done?;
    Ok(write_note(group, &[])?)
}

/// The processes of a group, but those of another process namespace, which are not ours to name.
fn processes(group: &Group) -> Result<Vec<i32>, CgroupError> {
    Ok(group.pids()?.into_iter().filter(|pid| *pid > 0).collect())
}

fn write_note(group: &Group, processes: &[Identity]) -> Result<(), CgroupError> {
    let text: Vec<_> = processes.iter().map(Identity::to_string).collect();
    group.set_note(SCHEDULED, &text.join("\n"))
}

fn read_note(group: &Group) -> Result<Vec<Identity>, CgroupError> {
    match group.note(SCHEDULED) {
        // One that is in other hierarchies only is not a job's.
        Err(error) if error.is_away() => Ok(Vec::new()),
        text => Ok(text?.lines().filter_map(|line| line.parse().ok()).collect()),
    }
}

const SCHEDULED: &CStr = c"trusted.keeptime.user-level";
/// Of one job. Twice as many, with their numbers, fit into an attribute ([`crate::bound::ATTRIBUTE_BYTES_MAX`]).
const PROCESSES_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::ATTRIBUTE_BYTES_MAX;

    // Those that were and those that are to be scheduled are noted together.
    #[test]
    fn the_note_of_as_many_as_can_be_scheduled_fits() {
        let longest = Identity { pid: i32::MAX, start: u64::MAX }.to_string().len() + 1;
        assert!(2 * PROCESSES_MAX * longest <= ATTRIBUTE_BYTES_MAX);
    }
}
