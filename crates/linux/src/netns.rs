//! Namespaces. They belong to a thread, so one is entered only on a thread made for it, or in a
//! process made for it, and is never left again.

use crate::syscall::SyscallError;
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{Pid, getgid, getppid, getuid};
use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::panic::AssertUnwindSafe;

/// A network namespace, kept alive by this handle.
#[derive(Debug)]
pub struct NetworkNamespace {
    file: File,
    inode: u64,
    object: String,
}

/// The calling thread is in another network namespace and stays there. Not to be sent: another
/// thread is elsewhere.
struct Entered(PhantomData<*const ()>);

impl NetworkNamespace {
    /// That of the calling thread.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of_this_thread() -> Result<Self, SyscallError> {
        Self::open("/proc/thread-self/ns/net".into())
    }

    /// That of a process.
    ///
    /// # Errors
    /// If the process has ended, or belongs to somebody else.
    pub fn of_process(pid: i32) -> Result<Self, SyscallError> {
        Self::open(format!("/proc/{pid}/ns/net"))
    }

    /// The kernel's number of the namespace.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs `action` inside, on a thread made for it, and waits for it. Sockets that it opens
    /// belong to the namespace wherever they are used later.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    ///
    /// # Panics
    /// If `action` does.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> Result<T, SyscallError> {
        let on_thread = || {
            let _entered = self.enter()?;
            Ok(action())
        };
        std::thread::scope(|scope| match scope.spawn(on_thread).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    fn enter(&self) -> Result<Entered, SyscallError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(SyscallError::of("setns", &self.object))?;
        let now = Self::of_this_thread()?.inode;
        assert_eq!(now, self.inode, "setns succeeded and the thread is elsewhere");
        Ok(Entered(PhantomData))
    }

    fn open(object: String) -> Result<Self, SyscallError> {
        let file = File::open(&object).map_err(SyscallError::of_io("open", &object))?;
        let metadata = file.metadata().map_err(SyscallError::of_io("fstat", &object))?;
        Ok(Self { file, inode: metadata.ino(), object })
    }
}

/// Forks a child into new namespaces, where it is process 1 if there is a new process namespace.
/// It ends with the number that `child` returns, or 101 if that panics.
///
/// # Errors
/// If the kernel refuses, or if this process has several threads: a child of such a process
/// cannot run ordinary code.
pub fn fork_into(namespaces: CloneFlags, child: impl FnOnce() -> i32) -> Result<Pid, SyscallError> {
    require_one_thread()?;
    let flags = (namespaces.bits() | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: without a stack of its own the child goes on as after fork(2); this process has one
    // thread, so no lock is held by another one.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => {
            let code = std::panic::catch_unwind(AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the child without running what the parent registered for its exit.
            unsafe { libc::_exit(code) }
        }
        pid => Errno::result(pid)
            .map(|pid| Pid::from_raw(pid as i32))
            .map_err(SyscallError::of("clone", format!("{namespaces:?}"))),
    }
}

/// Makes this process the root of a new user namespace, where it can make the others without
/// being root outside.
///
/// # Errors
/// If the machine does not allow that to ordinary users, or this process has several threads.
pub fn become_root_inside() -> Result<(), SyscallError> {
    require_one_thread()?;
    let (user, group) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(SyscallError::of("unshare", "the user namespace (CLONE_NEWUSER)"))?;
    let write = |path: &str, text: String| {
        std::fs::write(path, text).map_err(SyscallError::of_io("write", path))
    };
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("0 {user} 1"))?;
    write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// Moves this process into a new network namespace.
///
/// # Errors
/// If the kernel refuses, or this process has several threads.
pub fn leave_network() -> Result<(), SyscallError> {
    require_one_thread()?;
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(SyscallError::of("unshare", "the network namespace (CLONE_NEWNET)"))
}

/// The calling process is killed when its parent (the thread that made it) ends. It has to find out otherwise that it did
/// before.
///
/// # Errors
/// If the kernel refuses.
pub fn die_with_parent() -> Result<(), SyscallError> {
    hear_of_parents_end(Signal::SIGKILL, None)
}

/// The same, and at once if its parent is not the process `parent` any more.
///
/// # Errors
/// If the kernel refuses.
pub fn die_with(parent: i32) -> Result<(), SyscallError> {
    hear_of_parents_end(Signal::SIGKILL, Some(parent))
}

/// The calling process gets `signal` when its parent (the thread that made it) ends; at once, where it is said which process
/// that was and it is that no more: the kernel tells of no end before it was asked to.
///
/// # Errors
/// If the kernel refuses.
pub fn hear_of_parents_end(signal: Signal, parent: Option<i32>) -> Result<(), SyscallError> {
    set_pdeathsig(signal).map_err(SyscallError::of("prctl", "PR_SET_PDEATHSIG"))?;
    let now = getppid().as_raw();
    match parent {
        // A parent in another process namespace has no number here.
        Some(parent) if now != parent && now != 0 => {
            raise(signal).map_err(SyscallError::of("raise", signal.as_str()))
        }
        _ => Ok(()),
    }
}

fn require_one_thread() -> Result<(), SyscallError> {
    let object = "/proc/self/task";
    let threads = std::fs::read_dir(object).map_err(SyscallError::of_io("open", object))?.count();
    if threads == 1 {
        return Ok(());
    }
    let object = format!("a process with {threads} threads");
    Err(SyscallError { call: "clone", object, errno: Errno::EBUSY })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_of_this_thread_is_that_of_the_process() {
        let own = NetworkNamespace::of_this_thread().unwrap();
        let of_process = NetworkNamespace::of_process(std::process::id() as i32).unwrap();
        assert_eq!(own.inode(), of_process.inode());
    }

    #[test]
    fn a_process_with_threads_is_not_forked() {
        // The test harness has threads.
        std::thread::spawn(|| {
            let error = fork_into(CloneFlags::empty(), || 0).unwrap_err();
            assert_eq!(error.errno, Errno::EBUSY);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_runs_inside_is_inside_and_the_caller_stays() {
        crate::testing::in_network_namespace(&[], || {
            let inside = NetworkNamespace::of_this_thread().unwrap();
            let outside = NetworkNamespace::of_process(std::process::id() as i32).unwrap();
            assert_ne!(inside.inode(), outside.inode());
            let seen = outside.run(|| NetworkNamespace::of_this_thread().unwrap().inode());
            assert_eq!(seen.unwrap(), outside.inode());
            assert_eq!(NetworkNamespace::of_this_thread().unwrap().inode(), inside.inode());
        });
    }
}
