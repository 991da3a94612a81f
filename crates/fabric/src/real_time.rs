//! Threads that go before ordinary ones, so that a busy node holds them up as little as an idle one.

use std::io;

/// Who goes first among those: above every ordinary thread, below whatever else a site runs in real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// It renews what is read.
    Renew = 1,
    /// Somebody waits for its answer.
    Answer = 2,
}

/// The calling thread goes before all ordinary ones from now on. What it does should be short: nothing else
/// of its processor is done meanwhile.
///
/// # Errors
/// If the kernel refuses: without the privilege, or in a control group without real time.
pub fn hurry(priority: Priority) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority as i32 };
    // SAFETY: the kernel reads one struct that is here.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
