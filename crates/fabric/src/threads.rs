//! Threads of the fabric's own. Whatever a program does when a signal comes, it does not do it in one of these, which it
//! has not started: they begin with signals blocked, which go to the program's own threads then.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread of that name.
///
/// # Errors
/// If the kernel gives none.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| Builder::new().name(name.into()).spawn(work))?
}

/// The same, which ends before `scope` does.
///
/// # Errors
/// If the kernel gives none.
pub fn spawn_scoped<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    without_signals(|| Builder::new().name(name.into()).spawn_scoped(scope, work))?
}

/// Has `start` start threads. They have blocked what the calling thread has meanwhile, from their first moments on.
///
/// # Errors
/// If the kernel refuses; nothing is started then.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = blocked().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = start();
    // It can only fail for what is no mask.
    let _ = before.thread_set_mask();
    Ok(started)
}

/// All but what a thread brings on itself: blocked, that would end the program without a word of its handler.
fn blocked() -> SigSet {
    let own = [
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGSEGV,
        Signal::SIGSYS,
        Signal::SIGTRAP,
    ];
    let mut signals = SigSet::all();
    own.into_iter().for_each(|signal| signals.remove(signal));
    signals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::Context;
    use crate::directory::{Server, ServerConfig};
    use std::fs;
    use std::path::Path;
    use std::thread;
    use std::time::{Duration, Instant};

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// What a thread of this process has blocked, if it is called so and is there still.
    fn mask(task: &Path, name: &str) -> Option<u64> {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_called_so = field("Name:")?.trim() == name;
        let mask = field("SigBlk:")?.trim();
        is_called_so.then(|| u64::from_str_radix(mask, 16).unwrap())
    }

    /// Those of all that are called so, as soon as there are so many: each gives itself its name when it runs.
    fn masks(name: &str, least: usize) -> Vec<u64> {
        let start = Instant::now();
        loop {
            let tasks = fs::read_dir("/proc/self/task").unwrap();
            let masks = tasks.filter_map(|task| mask(&task.ok()?.path(), name));
            let masks: Vec<u64> = masks.collect();
            if masks.len() >= least {
                return masks;
            }
            assert!(start.elapsed() < LONG, "{} threads {name}", masks.len());
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Goal: handlers of a program do not run in threads that it has not started. Method: what the kernel says of all threads
    /// that are called as these are, those of other tests among them, and of the one that has started them.
    #[test]
    fn signals_are_left_to_the_program() {
        let before = SigSet::thread_get_mask().unwrap();
        let directory = format!("threads-{}", std::process::id());
        let (name, node, address) = (directory.clone(), "n1".into(), ([127, 0, 0, 1], 0).into());
        let server = ServerConfig { name, node, address, members: vec![], key: None };
        let _server = Server::start(server).unwrap();
        let config = Config { directory, progress_thread: true, ..Config::default() };
        let _context = Context::open(config).unwrap();
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
        let bit = |signal: Signal| 1_u64 << (signal as i32 - 1);
        let programs = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGALRM];
        // The kernel keeps fifteen letters of a name.
        for (name, least) in [("directory", 1), ("directory-clien", 1), ("fabric", 3)] {
            for mask in masks(name, least) {
                let left = programs.into_iter().find(|signal| mask & bit(*signal) == 0);
                assert_eq!(left, None, "{name}: {mask:x}");
                assert_eq!(mask & bit(Signal::SIGSEGV), 0, "{name}: {mask:x}");
            }
        }
    }
}
