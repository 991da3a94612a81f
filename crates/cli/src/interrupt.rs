//! Ctrl-C and SIGTERM as a flag that long work looks at, so that resources are given back.

use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Turns the first interrupt into [`stopped`]; a second one ends the program at once. Must be called
/// before any other thread starts.
///
/// # Errors
/// If the kernel refuses to block the signals.
pub fn listen() -> nix::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if STOPPED.swap(true, Ordering::SeqCst) {
                std::process::exit(128 + signal as i32);
            }
            eprintln!("stopping (again to stop at once)");
        }
    });
    Ok(())
}

/// Whether somebody asked for the end.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}
