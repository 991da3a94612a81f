//! What is done with one process: its CPU time read, its threads put somewhere.

use super::dispatch::Place;
use crate::process::{Identity, Process};
use crate::syscall::SyscallError;
use keeptime_model::units::Nanos;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// A process that is scheduled. Dropped, it is as it was.
#[derive(Debug)]
pub(super) struct Hands {
    process: Process,
    /// Where it could run before.
    affinity: CpuSet,
    niceness: i32,
    put: Option<(u32, Place)>,
}

impl Hands {
    /// On the process `pid`; nothing if it has ended.
    pub fn on(pid: i32) -> Result<Option<Self>, SyscallError> {
        let Some(process) = opened(pid)? else { return Ok(None) };
        let affinity = match sched_getaffinity(Pid::from_raw(pid)) {
            Ok(affinity) => affinity,
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(error("sched_getaffinity", pid)(errno)),
        };
        Ok(Some(Self { process, affinity, niceness: niceness(pid), put: None }))
    }

    /// The CPU time of all its threads; nothing if it has ended.
    pub fn used(&self) -> Result<Option<Nanos>, SyscallError> {
        let pid = self.process.identity().pid;
        let read = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(clock_gettime);
        match read {
            Ok(_) if !self.process.identity().is_alive() => Ok(None),
            Ok(time) => {
                Ok(Some(Nanos::new(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)))
            }
            Err(Errno::ESRCH | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(error("clock_gettime", pid)(errno)),
        }
    }

    /// Puts it there, if it is not there. What fails is tried again the next time.
    pub fn put(&mut self, processor: u32, place: Place) -> Result<(), SyscallError> {
        let before = self.put;
        if before == Some((processor, place)) {
            return Ok(());
        }
        let pid = self.process.identity().pid;
        if before.map(|(processor, _)| processor) != Some(processor) {
            let mut only = CpuSet::new();
            only.set(processor as usize).map_err(error("sched_setaffinity", pid))?;
            each_thread(pid, |thread| sched_setaffinity(Pid::from_raw(thread), &only))?;
        }
        let done = match place {
            Place::Held => self.process.signal(Signal::SIGSTOP),
            Place::First => self.run_as(libc::SCHED_OTHER, FIRST),
            Place::Waiting => self.run_as(libc::SCHED_IDLE, 0),
        };
        done.map(|()| self.put = Some((processor, place)))
    }

    fn run_as(&self, class: libc::c_int, niceness: i32) -> Result<(), SyscallError> {
        let pid = self.process.identity().pid;
        each_thread(pid, |thread| be(thread, class, niceness))?;
        self.process.signal(Signal::SIGCONT)
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        let pid = self.process.identity().pid;
        // What has ended needs nothing back.
        let _ = each_thread(pid, |thread| {
            sched_setaffinity(Pid::from_raw(thread), &self.affinity)?;
            be(thread, libc::SCHED_OTHER, self.niceness)
        });
        let _ = self.process.signal(Signal::SIGCONT);
    }
}

/// Sets a process free that a scheduler held or made wait when it was killed.
///
/// # Errors
/// If the kernel refuses; that the process has ended is no error.
pub fn give_back(pid: i32) -> Result<(), SyscallError> {
    let Some(process) = opened(pid)? else { return Ok(()) };
    let everywhere = sched_getaffinity(Pid::from_raw(0)).map_err(error("sched_getaffinity", 0))?;
    each_thread(pid, |thread| {
        sched_setaffinity(Pid::from_raw(thread), &everywhere)?;
        be(thread, libc::SCHED_OTHER, 0)
    })?;
    process.signal(Signal::SIGCONT)
}

/// The process `pid`; nothing if it has ended.
fn opened(pid: i32) -> Result<Option<Process>, SyscallError> {
    Identity::of(pid)?.map_or(Ok(None), |identity| identity.open())
}

/// The calling thread goes before everything that it schedules.
pub(super) fn hurry() -> Result<(), Errno> {
    be(0, libc::SCHED_FIFO, 0).or_else(|_| be(0, libc::SCHED_OTHER, FIRST))
}

/// A thread's class and niceness.
fn be(thread: i32, class: libc::c_int, niceness: i32) -> Result<(), Errno> {
    let priority = i32::from(class == libc::SCHED_FIFO);
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` lives through the call.
    Errno::result(unsafe { libc::sched_setscheduler(thread, class, &raw const parameters) })?;
    if class == libc::SCHED_OTHER {
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
    let path = format!("/proc/{pid}/task");
    let threads = match std::fs::read_dir(&path) {
        Ok(threads) => threads,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(SyscallError::of_io("read", path)(error)),
    };
    for thread in threads.flatten() {
        let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
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
