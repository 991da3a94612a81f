//! Threads without which a daemon only looks alive: one that ends by a panic takes the whole process with it, so that
//! whoever started it does so again.
//!
//! Daemons are made for `kill -9`: what they enforce or promise is in the kernel or on the disk, and taken up by the next
//! one. After a bug nothing else can be counted on, so nothing else is done.

use std::io::{self, Write};
use std::thread::{self, JoinHandle};
use std::{panic, process};

/// Starts a thread whose panic ends the process, when it has unwound. One that returns is no matter of this.
///
/// # Errors
/// If there can be no more threads.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        let _vital = Vital(name);
        work()
    })
}

/// Ends the process at once, since `what` has ended by a panic, which was told by then.
pub fn end(what: &str) -> ! {
    // Where nobody can read it, the signal has to do.
    let _ = writeln!(io::stderr(), "{what}: ended by a panic, and this process ends with it");
    process::abort()
}

/// From now on a panic of any thread ends the process: for programs that have none that they could do without.
pub fn end_with_any_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        process::abort();
    }));
}

/// Dropped by a panic, it ends the process.
struct Vital(&'static str);

impl Drop for Vital {
    fn drop(&mut self) {
        if thread::panicking() {
            end(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Which of these a process is to do.
    const KIND: &str = "KEEPTIME_TEST_VITAL";

    // The process that the other test looks at.
    #[test]
    fn doomed() {
        match std::env::var(KIND).as_deref() {
            Ok("vital") => drop(spawn::<()>("vital", || panic!("a bug")).unwrap().join()),
            Ok("returning") => assert_eq!(spawn("vital", || 7).unwrap().join().unwrap(), 7),
            Ok("other") => drop(thread::spawn(|| panic!("a bug")).join()),
            Ok("any") => {
                end_with_any_panic();
                drop(thread::spawn(|| panic!("a bug")).join());
            }
            _ => {}
        }
    }

    // Goal: nothing that a daemon cannot do without ends silently. Method: this program once more, as a process that leaves
    // no image of its memory.
    #[test]
    fn a_panic_of_what_is_vital_ends_the_process_and_no_other_does() {
        let ended = |kind: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -c 0; exec \"$0\" --exact vital::tests::doomed"]);
            command.arg(std::env::current_exe().unwrap()).env(KIND, kind);
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
        };
        for kind in ["vital", "any"] {
            assert_eq!(ended(kind).signal(), Some(libc::SIGABRT), "{kind}");
        }
        for kind in ["returning", "other"] {
            assert!(ended(kind).success(), "{kind}");
        }
    }
}
