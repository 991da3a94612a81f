//! Threads that go before ordinary ones, so that a busy node holds them up as little as an idle one.

use std::io;

/// Above every ordinary thread, below whatever else a site runs in real time.
const PRIORITY: i32 = 1;

/// The calling thread goes before all ordinary ones from now on. What it does should be short: nothing else
/// of its processor is done meanwhile.
///
/// # Errors
/// If the kernel refuses: without the privilege, or in a control group without real time.
pub fn hurry() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads one struct that is here.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
