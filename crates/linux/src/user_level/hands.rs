//! What is done with one process: its CPU time read, its threads put somewhere.

use super::dispatch::Place;
use crate::process::{Identity, Process, cpu_time, threads};
use crate::syscall::SyscallError;
use keeptime_model::units::Nanos;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// A process that is scheduled. Dropped, it is as it was.
#[derive(Debug)]
pub(super) struct Hands {
    process: Process,
    before: Before,
    /// Whether it may be anything else than that.
    is_touched: bool,
    put: Option<(u32, Place)>,
}

/// No processor.
const NOWHERE: u32 = u32::MAX;

/// What a process was before it was scheduled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    /// Where it could run.
    affinity: CpuSet,
    niceness: i32,
}

impl Hands {
    /// On the process `pid`; nothing if it has ended. One that was started by a scheduled process was never
    /// anything else than what that was made: it takes over what its `kin` was before.
    pub fn on(pid: i32, kin: Option<Before>) -> Result<Option<Self>, SyscallError> {
        let Some(process) = opened(pid)? else { return Ok(None) };
        let affinity = match sched_getaffinity(Pid::from_raw(pid)) {
            Ok(affinity) => affinity,
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(error("sched_getaffinity", pid)(errno)),
        };
        let found = Before { affinity, niceness: niceness(pid) };
        let inherited = kin.filter(|_| is_placed(pid));
        let (before, is_touched) = (inherited.unwrap_or(found), inherited.is_some());
        Ok(Some(Self { process, before, is_touched, put: None }))
    }

    /// What it was.
    pub fn before(&self) -> Before {
        self.before
    }

    /// Whether this very process runs; its number may be another's meanwhile.
    pub fn is_alive(&self) -> bool {
        self.process.identity().is_alive()
    }

    /// The CPU time of all its threads; nothing if it has ended.
    pub fn used(&self) -> Result<Option<Nanos>, SyscallError> {
        let used = cpu_time(self.process.identity().pid)?;
        Ok(used.filter(|_| self.is_alive()))
    }

    /// Looks whether all its threads are where it was put: they may choose another processor themselves, as OpenMP's do, and one
    /// that was begun meanwhile may have been missed. If not, it is moved the next time wherever it is put.
    pub fn look(&mut self) {
        self.put = self.put.map(|(processor, place)| match self.is_on(processor) {
            true => (processor, place),
            false => (NOWHERE, place),
        });
    }

    /// Whether all its threads can run there and nowhere else.
    fn is_on(&self, processor: u32) -> bool {
        let mut only = CpuSet::new();
        let is_set = only.set(processor as usize).is_ok();
        let is_there = |thread| match sched_getaffinity(Pid::from_raw(thread)) {
            Ok(affinity) if affinity != only => Err(Errno::EXDEV),
            _ => Ok(()),
        };
        is_set && each_thread(self.process.identity().pid, is_there).is_ok()
    }

    /// Puts it there, if it is not there. What fails is tried again the next time.
    pub fn put(&mut self, processor: u32, place: Place) -> Result<(), SyscallError> {
        let before = self.put;
        if before == Some((processor, place)) {
            return match place {
                // Its user may have continued it, which is told to nobody.
                Place::Held => self.process.signal(Signal::SIGSTOP),
                Place::First | Place::Waiting => Ok(()),
            };
        }
        self.is_touched = true;
        let pid = self.process.identity().pid;
        if before.map(|(processor, _)| processor) != Some(processor) {
            let mut only = CpuSet::new();
            only.set(processor as usize).map_err(error("sched_setaffinity", pid))?;
            each_thread(pid, |thread| sched_setaffinity(Pid::from_raw(thread), &only))?;
        }
        let done = match place {
            Place::Held => self.hold(),
            Place::First => self.run_as(libc::SCHED_OTHER, FIRST),
            Place::Waiting => self.run_as(libc::SCHED_IDLE, 0),
        };
        done.map(|()| self.put = Some((processor, place)))
    }

    /// Stops it. Whoever continues it before its time takes nothing from those who have a slice left.
    fn hold(&self) -> Result<(), SyscallError> {
        let pid = self.process.identity().pid;
        // Its mark comes first, and goes last: whatever becomes of this process, nobody is stopped without.
        each_thread(pid, |thread| be(thread, libc::SCHED_IDLE, HELD))?;
        self.process.signal(Signal::SIGSTOP)
    }

    fn run_as(&self, class: libc::c_int, niceness: i32) -> Result<(), SyscallError> {
        self.go_on()?;
        let pid = self.process.identity().pid;
        each_thread(pid, |thread| be(thread, class, niceness))
    }

    /// Whoever else stopped it did not stop it for its slice: that is not undone.
    fn go_on(&self) -> Result<(), SyscallError> {
        match self.put {
            Some((_, Place::Held)) => self.process.signal(Signal::SIGCONT),
            _ => Ok(()),
        }
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        // What has ended needs nothing back, and who has its number now has nothing of ours.
        if self.is_touched && self.is_alive() {
            let pid = self.process.identity().pid;
            let _ = self.go_on();
            let _ = each_thread(pid, |thread| self.before.restore(thread));
        }
    }
}

impl Before {
    /// Makes this of a process again that was started by a scheduled one and has no schedule of its own.
    pub fn give_to(&self, pid: i32) -> Result<(), SyscallError> {
        match is_placed(pid) {
            true => each_thread(pid, |thread| self.restore(thread)),
            false => Ok(()),
        }
    }

    fn restore(&self, thread: i32) -> Result<(), Errno> {
        sched_setaffinity(Pid::from_raw(thread), &self.affinity)?;
        be(thread, libc::SCHED_OTHER, self.niceness)
    }
}

/// Sets a process free that a scheduler held or made wait when it was killed. One that somebody else has stopped stays
/// stopped.
///
/// # Errors
/// If the kernel refuses; that the process has ended is no error.
pub fn give_back(pid: i32) -> Result<(), SyscallError> {
    let Some(process) = opened(pid)? else { return Ok(()) };
    let ordinary = Before { affinity: own_affinity()?, niceness: 0 };
    // Before its mark goes: who is killed in between leaves one that is found again.
    if is_held(pid) {
        process.signal(Signal::SIGCONT)?;
    }
    each_thread(pid, |thread| ordinary.restore(thread))
}

/// The processors that processes are scheduled on: those of this process.
pub(super) fn processors() -> Result<Vec<u32>, SyscallError> {
    let own = own_affinity()?;
    let is_own = |number: &usize| own.is_set(*number).unwrap_or(false);
    Ok((0..CpuSet::count()).filter(is_own).map(|number| number as u32).collect())
}

fn own_affinity() -> Result<CpuSet, SyscallError> {
    sched_getaffinity(Pid::from_raw(0)).map_err(error("sched_getaffinity", 0))
}

/// Whether a process looks as one that goes first or waits: as nobody but root makes one, or hardly anybody.
pub(super) fn is_placed(pid: i32) -> bool {
    class(pid) == libc::SCHED_IDLE || niceness(pid) == FIRST
}

/// Whether a process has the mark of one that is held.
fn is_held(pid: i32) -> bool {
    class(pid) == libc::SCHED_IDLE && niceness(pid) == HELD
}

fn class(pid: i32) -> libc::c_int {
    // SAFETY: takes an integer.
    unsafe { libc::sched_getscheduler(pid) }
}

/// Does with a sleeping thread all that is done with scheduled ones but stopping it, to find out whether that may be
/// done here.
pub(crate) fn try_on(thread: i32) -> Result<(), SyscallError> {
    let before = Before { affinity: own_affinity()?, niceness: niceness(thread) };
    let mut only = CpuSet::new();
    let first = processors()?.first().copied().unwrap_or(0);
    only.set(first as usize).map_err(error("sched_setaffinity", thread))?;
    sched_setaffinity(Pid::from_raw(thread), &only)
        .and_then(|()| be(thread, libc::SCHED_IDLE, 0))
        .and_then(|()| be(thread, libc::SCHED_OTHER, FIRST))
        .and_then(|()| before.restore(thread))
        .map_err(error("sched_setscheduler", thread))
}

/// The process `pid`; nothing if it has ended.
fn opened(pid: i32) -> Result<Option<Process>, SyscallError> {
    Identity::of(pid)?.map_or(Ok(None), |identity| identity.open())
}

/// The calling thread goes before everything that it schedules.
pub(super) fn hurry() -> Result<(), Errno> {
    be(0, libc::SCHED_FIFO, 0).or_else(|_| be(0, libc::SCHED_OTHER, FIRST))
}

/// A thread's class and niceness, which at idle priority is a mark and no more.
fn be(thread: i32, class: libc::c_int, niceness: i32) -> Result<(), Errno> {
    let priority = i32::from(class == libc::SCHED_FIFO);
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` lives through the call.
    Errno::result(unsafe { libc::sched_setscheduler(thread, class, &raw const parameters) })?;
    if class != libc::SCHED_FIFO {
        // SAFETY: takes integers.
        let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, niceness) };
        Errno::result(set)?;
    }
    Ok(())
}

fn niceness(pid: i32) -> i32 {
    // SAFETY: takes integers. Every answer is a niceness; that of a process that has ended does not matter.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, pid as libc::id_t) }
}

/// Does something with every thread of a process; that one has ended is no error.
fn each_thread(
    pid: i32,
    mut act: impl FnMut(i32) -> Result<(), Errno>,
) -> Result<(), SyscallError> {
    for thread in threads(pid)? {
        match act(thread) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(error("sched_setscheduler", thread)(errno)),
        }
    }
    Ok(())
}

fn error(call: &'static str, pid: i32) -> impl FnOnce(Errno) -> SyscallError {
    SyscallError::of(call, format!("process {pid}"))
}

/// The least niceness: 87 times the weight of an ordinary process.
const FIRST: i32 = -20;
/// With idle priority, that of who is held: who waits has none, and few others have both.
const HELD: i32 = 19;
