//! Ctrl-C, SIGTERM and the end of the terminal as a flag that long work looks at, so that resources are given back.

use nix::sys::signal::{SigSet, Signal};
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Turns the first interrupt into [`stopped`]; a second one ends the program at once. Must be called
/// before any other thread starts.
///
/// # Errors
/// If the kernel refuses to block the signals.
pub fn listen() -> nix::Result<()> {
    listen_for([Signal::SIGINT, Signal::SIGTERM].into_iter().collect())
}

/// The same for what runs at a terminal: when that is closed, or the connection to it is lost, it is to end as well. What
/// was started to outlive it, as by `nohup`, does.
///
/// # Errors
/// As [`listen`].
pub fn listen_at_terminal() -> nix::Result<()> {
    let mut signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    // Whoever waits for a signal gets it though it is ignored.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !is_ignored(Signal::SIGHUP, &status) {
        signals.add(Signal::SIGHUP);
    }
    listen_for(signals)
}

fn listen_for(signals: SigSet) -> nix::Result<()> {
    signals.thread_block()?;
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if STOPPED.swap(true, Ordering::SeqCst) {
                std::process::exit(128 + signal as i32);
            }
            // The terminal may be gone.
            let _ = writeln!(std::io::stderr(), "stopping (again to stop at once)");
        }
    });
    Ok(())
}

/// Whether a process ignores `signal`, by the text of its `/proc/PID/status`.
fn is_ignored(signal: Signal, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is signal 1.
    mask.is_some_and(|mask| (mask >> (signal as i32 - 1)) & 1 == 1)
}

/// Asks for the end, as an interrupt does.
pub fn stop() {
    STOPPED.store(true, Ordering::SeqCst);
}

/// Whether somebody asked for the end.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_stands_in_a_mask_of_bits() {
        let status =
            "Name:\tsleep\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000004002\nSigCgt:\t0\n";
        let ignored = [Signal::SIGINT, Signal::SIGTERM].map(|signal| is_ignored(signal, status));
        assert_eq!((ignored, is_ignored(Signal::SIGHUP, status)), ([true, true], false));
        let by_nohup = "SigIgn:\t0000000000000001\n";
        assert!(is_ignored(Signal::SIGHUP, by_nohup) && !is_ignored(Signal::SIGINT, by_nohup));
        assert!(!is_ignored(Signal::SIGHUP, "") && !is_ignored(Signal::SIGHUP, "SigIgn:\tnone"));
    }
}
