//! Processes: an identity that does not change when the kernel gives a number out again, and the
//! start of a program inside the namespaces of another process.

use crate::syscall::SyscallError;
use keeptime_model::units::Nanos;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::str::FromStr;
use std::time::Duration;

/// A process for ever: its number, and when it started, since numbers are given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The process number.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl Identity {
    /// The calling process.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn own() -> Result<Self, SyscallError> {
        let pid = std::process::id() as i32;
        let gone = || SyscallError::of::<Errno>("read", "/proc/self/stat")(Errno::ESRCH);
        Self::of(pid)?.ok_or_else(gone)
    }

    /// The process that has the number `pid` now; nothing if there is none, or it has ended and
    /// only waits for its parent.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of(pid: i32) -> Result<Option<Self>, SyscallError> {
        Ok(Stat::of(pid)?.map(|stat| Self { pid, start: stat.start }))
    }

    /// True while this very process runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).is_ok_and(|found| found == Some(*self))
    }

    /// A handle on this very process; nothing if it has ended, whoever has its number now.
    ///
    /// # Errors
    /// If the kernel has no `pidfd_open` (before Linux 5.3), or `/proc` cannot be read.
    pub fn open(&self) -> Result<Option<Process>, SyscallError> {
        // SAFETY: takes two integers and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        match Errno::result(fd) {
            Ok(fd) => {
                // SAFETY: the descriptor is new, and nobody else owns it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
                // From here on the handle means one process; now see whether it is the right one.
                Ok(self.is_alive().then_some(Process { fd, identity: *self }))
            }
            Err(Errno::ESRCH | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(self.error("pidfd_open", errno)),
        }
    }

    fn error(&self, call: &'static str, errno: Errno) -> SyscallError {
        SyscallError { call, object: format!("process {}", self.pid), errno }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.start)
    }
}

impl FromStr for Identity {
    type Err = keeptime_model::Invalid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (pid, start) = text.trim_end().split_once(' ')?;
            let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
            Some(Self { pid, start: start.parse().ok()? })
        };
        let expected = "a process number and its start in clock ticks, as in \"77 12345\"";
        parse().ok_or_else(|| keeptime_model::Invalid::new("process", text, expected))
    }
}

/// The users on whose account a process acts: real, effective, saved, and for files. Nothing if it
/// has ended.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn users(pid: i32) -> Result<Option<[u32; 4]>, SyscallError> {
    let path = format!("/proc/{pid}/status");
    match read_text(&path) {
        Ok(text) => Ok(parse_users(&text)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(SyscallError::of_io("read", path)(error)),
    }
}

/// CPU time that a process has used, with all its threads, those that have ended too. Nothing if it has ended itself.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn cpu_time(pid: i32) -> Result<Option<Nanos>, SyscallError> {
    match clock_getcpuclockid(Pid::from_raw(pid)).and_then(clock_gettime) {
        Ok(used) => Ok(Some(Duration::from(used).into())),
        // The clock is known by the number of the process.
        Err(Errno::ESRCH | Errno::EINVAL) => Ok(None),
        Err(errno) => Err(SyscallError::of("clock_gettime", format!("process {pid}"))(errno)),
    }
}

/// The threads of a process; none if it has ended.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn threads(pid: i32) -> Result<Vec<i32>, SyscallError> {
    let path = format!("/proc/{pid}/task");
    let entries = match std::fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(SyscallError::of_io("read", path))?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The text of a file of the kernel's. Names in it are whatever their owners chose: one that is not UTF-8
/// must not keep the rest from being read.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A handle on one process (pidfd): what is done with it never hits another one.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
    identity: Identity,
}

impl Process {
    /// Which process it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Sends a signal. Nothing happens if the process has ended.
    ///
    /// # Errors
    /// If the caller may not.
    pub fn signal(&self, signal: Signal) -> Result<(), SyscallError> {
        let null = std::ptr::null::<libc::siginfo_t>();
        let (fd, signal) = (self.fd.as_raw_fd(), signal as libc::c_int);
        // SAFETY: no information is passed, which the kernel allows.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, null, 0) };
        match Errno::result(sent) {
            Ok(_) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(self.identity.error("pidfd_send_signal", errno)),
        }
    }

    /// Waits until the process has ended, at most `limit`; true if it has. Leaves no zombie if it
    /// was a child of ours.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn wait(&self, limit: Duration) -> Result<bool, SyscallError> {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let ended = loop {
            match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(self.identity.error("poll", errno)),
                Ok(count) => break count > 0,
            }
        };
        if ended {
            let _ = waitpid(Pid::from_raw(self.identity.pid), Some(WaitPidFlag::WNOHANG));
        }
        Ok(ended)
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A program to start inside the namespaces of another process.
#[derive(Debug)]
pub struct Start<'a> {
    /// Whose namespaces.
    pub inside: &'a Process,
    /// Which of them.
    pub namespaces: CloneFlags,
    /// `cgroup.procs` files, open for writing: joined before the program starts.
    pub groups: Vec<File>,
    /// The program (looked up in `PATH` unless it has a `/`) and its arguments.
    pub words: Vec<OsString>,
    /// Added to the caller's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts, seen from inside; `/` where that does not exist.
    pub directory: PathBuf,
    /// What binds it to the caller.
    pub bond: Bond,
    /// Standard input, output and error; nothing = the caller's.
    pub stdio: [Option<OwnedFd>; 3],
}

/// What binds a started program to who started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// It is a child of the caller and goes on when the caller ends.
    Child,
    /// It is a child of the caller and is killed when the calling *thread* ends.
    ChildForLife,
    /// It is a child of the namespace's process 1, in a session of its own: for daemons. Were it
    /// an orphan of the caller, process 1 of the machine would have to bury it, and the namespace
    /// could not end before. What the caller gets as a child ends at once.
    Daemon,
}

/// A program that was started: a child of the caller.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

impl Start<'_> {
    /// Starts the program and returns when it runs.
    ///
    /// A first child enters the groups and the namespaces, all of them at once; what it forks is
    /// inside, and by `CLONE_PARENT` the caller's own child. The caller's threads are not touched.
    ///
    /// # Errors
    /// The step that failed: a group, the namespaces (needs Linux 5.8), or the program.
    pub fn spawn(self) -> Result<Child, SyscallError> {
        let plan = Plan::new(&self)?;
        let program = self.words[0].to_string_lossy().into_owned();
        let (told, tell) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(SyscallError::of("pipe2", &program))?;
        // SAFETY: the child calls nothing but system calls on memory prepared before.
        let first = match unsafe { libc::fork() } {
            // SAFETY: this is that child.
            0 => unsafe { plan.run_in_child(tell.as_raw_fd()) },
            pid => Errno::result(pid).map_err(SyscallError::of("fork", &program))?,
        };
        drop(tell);
        let mut report = Vec::new();
        let read = File::from(told).read_to_end(&mut report);
        let _ = waitpid(Pid::from_raw(first), None);
        read.map_err(SyscallError::of_io("read", &program))?;
        self.outcome(&report, &program)
    }

    fn outcome(&self, report: &[u8], program: &str) -> Result<Child, SyscallError> {
        let mut child = None;
        let mut failure = None;
        for record in report.chunks_exact(RECORD_BYTES) {
            let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| record[at + i]));
            match (word(0), word(4)) {
                (STEP_FORKED, pid) => child = Some(Child { pid: Pid::from_raw(pid) }),
                (STEP_READY, _) => {}
                (step, errno) => failure = Some((step, Errno::from_raw(errno))),
            }
        }
        let target = format!("the namespaces of process {}", self.inside.identity.pid);
        if let (Some(child), Some(_)) = (&child, &failure) {
            let _ = waitpid(child.pid, None);
        }
        match (child, failure) {
            (Some(child), None) => Ok(child),
            (_, Some((STEP_GROUP, errno))) => {
                Err(SyscallError { call: "write", object: "cgroup.procs".into(), errno })
            }
            (_, Some((STEP_ENTER, errno))) => {
                Err(SyscallError { call: "setns", object: target, errno })
            }
            (_, Some((STEP_FORK, errno))) => {
                Err(SyscallError { call: "clone", object: target, errno })
            }
            (_, Some((_, errno))) => {
                Err(SyscallError { call: "execve", object: program.into(), errno })
            }
            (None, None) => {
                let errno = Errno::ECANCELED;
                Err(SyscallError { call: "fork", object: program.into(), errno })
            }
        }
    }
}

impl Child {
    /// Its number, as the caller sees it.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If somebody else has waited for it.
    pub fn wait(self) -> Result<ExitStatus, SyscallError> {
        loop {
            match waitpid(self.pid, None) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(ExitStatus::from_raw(code << 8)),
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    return Ok(ExitStatus::from_raw(signal as i32));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => {
                    let object = format!("process {}", self.pid);
                    return Err(SyscallError { call: "waitpid", object, errno });
                }
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // A child that nobody has waited for keeps its number.
        let _ = nix::sys::signal::kill(self.pid, signal);
    }
}

/// Has a command begin with no signal blocked, whatever is in who starts it: programs do not look at that.
pub fn with_no_signal_blocked(command: &mut Command) -> &mut Command {
    let unblock = || SigSet::empty().thread_set_mask().map_err(io::Error::from);
    // SAFETY: in the child, before it becomes the program, this makes one system call on memory of its own.
    unsafe { command.pre_exec(unblock) }
}

/// Starts a program as the whole purpose of this process: signals that it gets are passed on.
/// Those of the terminal reach the program by themselves. For a process of one thread: the
/// signals stay blocked in it.
///
/// # Errors
/// As [`Start::spawn`] and [`Child::wait`].
pub fn run_in_foreground(start: Start<'_>) -> Result<ExitStatus, SyscallError> {
    let mut signals = SigSet::empty();
    for signal in PASSED_ON.into_iter().chain([Signal::SIGCHLD]) {
        signals.add(signal);
    }
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)
        .map_err(SyscallError::of("sigprocmask", "this process"))?;
    let child = start.spawn()?;
    loop {
        // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: both point to live values of the right type.
        let number = unsafe { libc::sigwaitinfo(signals.as_ref(), &raw mut info) };
        match Signal::try_from(number) {
            Ok(Signal::SIGCHLD) => {
                let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                // SAFETY: as above.
                let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
                let pid = child.pid() as libc::id_t;
                // SAFETY: `ended` is live; WNOWAIT leaves the child to be waited for below.
                unsafe { libc::waitid(libc::P_PID, pid, &raw mut ended, options) };
                if ended.si_signo != 0 {
                    return child.wait();
                }
            }
            // The terminal sends its signals to the whole group: the program has it already.
            Ok(_) if info.si_code == libc::SI_KERNEL => {}
            Ok(signal) => child.signal(signal),
            Err(_) => {}
        }
    }
}

/// Everything that the child needs, made before the fork: it may not allocate.
struct Plan {
    groups: Vec<RawFd>,
    target: RawFd,
    namespaces: i32,
    stdio: [Option<RawFd>; 3],
    directory: CString,
    bond: Bond,
    /// The program in each directory of `PATH`.
    programs: Vec<CString>,
    _words: Vec<CString>,
    _environment: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    signals: SigSet,
}

impl Plan {
    fn new(start: &Start<'_>) -> Result<Self, SyscallError> {
        let program = start.words.first().filter(|word| !word.is_empty());
        let missing = || SyscallError::of::<Errno>("execve", "no program")(Errno::EINVAL);
        let program = program.ok_or_else(missing)?;
        let words = start.words.iter().map(|w| c_string(w)).collect::<Result<Vec<_>, _>>()?;
        let added = |name: &OsStr| start.environment.iter().any(|(n, _)| n == name);
        let environment = std::env::vars_os()
            .filter(|(name, _)| !added(name))
            .chain(start.environment.iter().cloned())
            .map(|(mut name, value)| {
                name.push("=");
                name.push(value);
                c_string(&name)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let pointers = |strings: &[CString]| {
            strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let mut stdio = [None; 3];
        for (slot, fd) in stdio.iter_mut().zip(&start.stdio) {
            *slot = fd.as_ref().map(AsRawFd::as_raw_fd);
        }
        Ok(Self {
            groups: start.groups.iter().map(AsRawFd::as_raw_fd).collect(),
            target: start.inside.as_fd().as_raw_fd(),
            namespaces: start.namespaces.bits(),
            stdio,
            directory: c_string(start.directory.as_os_str())?,
            bond: start.bond,
            programs: candidates(program)?,
            argv: pointers(&words),
            envp: pointers(&environment),
            _words: words,
            _environment: environment,
            signals: SigSet::empty(),
        })
    }

    /// # Safety
    /// In a child just forked. Only system calls, only on memory that was prepared.
    unsafe fn run_in_child(&self, report: RawFd) -> ! {
        let tell = |step: i32, value: i32| -> bool {
            let mut record = [0; RECORD_BYTES];
            record[..4].copy_from_slice(&step.to_ne_bytes());
            record[4..].copy_from_slice(&value.to_ne_bytes());
            // SAFETY: the buffer is live. A pipe takes so few bytes whole or not at all.
            unsafe { libc::write(report, record.as_ptr().cast(), RECORD_BYTES) > 0 }
        };
        let fail = |step: i32| -> ! {
            tell(step, Errno::last_raw());
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(127) }
        };
        // SAFETY: all descriptors and pointers were made for this and live in `self`.
        unsafe {
            for group in &self.groups {
                // 0 = the writer itself.
                if libc::write(*group, c"0".as_ptr().cast(), 1) != 1 {
                    fail(STEP_GROUP);
                }
            }
            if libc::setns(self.target, self.namespaces) != 0 {
                fail(STEP_ENTER);
            }
            let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_ulong;
            match libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) {
                0 => {}
                pid if pid > 0 => {
                    tell(STEP_FORKED, pid as i32);
                    libc::_exit(0)
                }
                _ => fail(STEP_FORK),
            }
            if self.bond == Bond::Daemon {
                match libc::fork() {
                    0 => libc::setsid(),
                    pid if pid > 0 => libc::_exit(0),
                    _ => fail(STEP_FORK),
                };
            }
            if self.bond == Bond::ChildForLife {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have gone before that: then nobody reads, and the write fails.
                if !tell(STEP_READY, 0) {
                    libc::_exit(127);
                }
            }
            for (target, fd) in self.stdio.iter().enumerate() {
                if let Some(fd) = fd
                    && libc::dup2(*fd, target as i32) < 0
                {
                    fail(STEP_EXEC);
                }
            }
            if libc::chdir(self.directory.as_ptr()) != 0 {
                libc::chdir(c"/".as_ptr());
            }
            // Rust ignores SIGPIPE; programs expect it.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::sigprocmask(libc::SIG_SETMASK, self.signals.as_ref(), std::ptr::null_mut());
            let mut denied = false;
            for program in &self.programs {
                libc::execve(program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
                match Errno::last_raw() {
                    libc::EACCES => denied = true,
                    libc::ENOENT | libc::ENOTDIR => {}
                    _ => fail(STEP_EXEC),
                }
            }
            Errno::set_raw(if denied { libc::EACCES } else { libc::ENOENT });
            fail(STEP_EXEC)
        }
    }
}

fn candidates(program: &OsStr) -> Result<Vec<CString>, SyscallError> {
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .map(|directory| c_string(Path::new(&directory).join(program).as_os_str()))
        .collect()
}

fn c_string(text: &OsStr) -> Result<CString, SyscallError> {
    let nul = |_| SyscallError::of::<Errno>("execve", text.to_string_lossy())(Errno::EINVAL);
    CString::new(text.as_bytes()).map_err(nul)
}

/// What the line `/proc/PID/stat` tells of a process that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Its program's name, up to 15 bytes. It is never empty, also while the process becomes that program.
    pub name: String,
    /// The process that started it.
    pub parent: i32,
    /// How many threads it has.
    pub threads: u32,
    /// Whether its first thread runs, or would if it had a processor.
    pub is_ready: bool,
    /// Clock ticks from boot to its start.
    pub start: u64,
}

impl Stat {
    /// Of the process that has the number `pid` now; nothing if there is none, or it has ended and only waits for its parent.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of(pid: i32) -> Result<Option<Self>, SyscallError> {
        let path = format!("/proc/{pid}/stat");
        match read_text(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)) {
                Errno::ENOENT | Errno::ESRCH => Ok(None),
                errno => Err(SyscallError { call: "read", object: path, errno }),
            },
        }
    }

    /// Nothing if it has ended. The second field is the program's name in parentheses and may itself contain any
    /// character.
    fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads: u32 = fields.nth(STAT_THREADS_AFTER_PARENT)?.parse().ok()?;
        let start = fields.nth(STAT_START_AFTER_THREADS)?.parse().ok()?;
        // The line is about the first thread. Where that has ended and others go on, so does the process.
        let has_ended = match state {
            "X" => true,
            "Z" => threads <= 1,
            _ => false,
        };
        (!has_ended).then(|| Self {
            name: name.into(),
            parent,
            threads,
            is_ready: state == "R",
            start,
        })
    }
}

/// The line `Uid:` of `/proc/PID/status`.
fn parse_users(text: &str) -> Option<[u32; 4]> {
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let users: Vec<u32> =
        line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    users.try_into().ok()
}

/// The parent is field 4 of the line, the number of threads field 20 (proc(5)),
const STAT_THREADS_AFTER_PARENT: usize = 20 - 4 - 1;
/// and the start field 22.
const STAT_START_AFTER_THREADS: usize = 22 - 20 - 1;

const RECORD_BYTES: usize = 8;
const STEP_FORKED: i32 = 1;
const STEP_READY: i32 = 2;
const STEP_GROUP: i32 = 3;
const STEP_ENTER: i32 = 4;
const STEP_FORK: i32 = 5;
const STEP_EXEC: i32 = 6;

const PASSED_ON: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_process_knows_itself_and_not_another_with_its_number() {
        let own = Identity::own().unwrap();
        assert!(own.is_alive() && own.open().unwrap().is_some());
        let reused = Identity { start: own.start + 1, ..own };
        assert!(!reused.is_alive() && reused.open().unwrap().is_none());
    }

    #[test]
    fn an_ended_process_is_gone_before_its_parent_waits() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let identity = Identity::of(child.id() as i32).unwrap();
        if let Some(process) = identity.and_then(|identity| identity.open().unwrap()) {
            assert!(process.wait(Duration::from_secs(60)).unwrap());
            assert!(!process.identity().is_alive());
            process.signal(Signal::SIGKILL).unwrap();
        }
        let _ = child.wait();
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let line = "7 (a) R ) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let name = "a) R ".into();
        let stat = Stat { name, parent: 1, threads: 1, is_ready: false, start: 4242 };
        assert_eq!(Stat::parse(line), Some(stat.clone()));
        let ready = Stat::parse(&line.replace(" S ", " R ")).unwrap();
        assert_eq!(ready, Stat { is_ready: true, ..stat.clone() });
        let threads = "7 (a) R ) S 3 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 5 0 4242 0 0";
        assert_eq!(Stat::parse(threads), Some(Stat { parent: 3, threads: 5, ..stat }));
    }

    // A program whose first thread has ended goes on with the others, and is scheduled, moved and ended as before.
    #[test]
    fn a_process_has_ended_when_all_its_threads_have() {
        let line = "7 (a) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(Stat::parse(line), None);
        let others = line.replace(" 20 0 1 0 ", " 20 0 2 0 ");
        assert_eq!(Stat::parse(&others).unwrap().start, 4242);
        assert_eq!(Stat::parse(&others.replace(") Z", ") X")), None);
    }

    // Anybody may call a process as they like, and nobody is overlooked for that. A thread gives itself such a
    // name, and is looked at by its number.
    #[test]
    fn a_name_that_is_not_utf_8_hides_nobody() {
        let looks = std::thread::spawn(|| {
            nix::sys::prctl::set_name(c"\xff) \xfe").unwrap();
            let own = nix::unistd::gettid().as_raw();
            (Identity::of(own), users(own), crate::deadline::observe(&[own]))
        });
        let (identity, users, observed) = looks.join().unwrap();
        assert!(identity.unwrap().is_some());
        assert_eq!(users.unwrap().unwrap()[0], nix::unistd::getuid().as_raw());
        assert_eq!(observed.unwrap().len(), 1);
    }

    #[test]
    fn users_are_those_of_the_process() {
        let own = nix::unistd::getuid().as_raw();
        assert_eq!(users(std::process::id() as i32).unwrap().unwrap()[0], own);
        assert_eq!(users(i32::MAX).unwrap(), None);
        assert_eq!(parse_users("Name:\tx\nUid:\t1\t2\t3\t4\n"), Some([1, 2, 3, 4]));
        assert_eq!(parse_users("Uid:\t1\t2\t3\n"), None);
    }

    proptest! {
        #[test]
        fn identities_read_back(pid in 1i32.., start: u64) {
            let identity = Identity { pid, start };
            prop_assert_eq!(identity.to_string().parse(), Ok(identity));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            let _ = (text.parse::<Identity>(), Stat::parse(&text), parse_users(&text));
        }
    }
}
