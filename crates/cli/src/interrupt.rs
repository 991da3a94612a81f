//! Ctrl-C, SIGTERM and the end of the terminal as a flag that long work looks at, so that resources are given back; and
//! what else is signalled to a run.

use nix::sys::signal::{SigSet, Signal};
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static STOPPED: AtomicBool = AtomicBool::new(false);

/// What users signal to their programs, by which these save their state, say.
const OF_USERS: [Signal; 2] = [Signal::SIGUSR1, Signal::SIGUSR2];
/// Which of them have come for the program that runs.
static CAME: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Turns the first interrupt into [`stopped`]; the same once more, a while later, ends the program at once. Must be called
/// before any other thread starts.
///
/// # Errors
/// If the kernel refuses to block the signals.
pub fn listen() -> nix::Result<()> {
    listen_for([Signal::SIGINT, Signal::SIGTERM].into_iter().collect())
}

/// Listens as [`listen`] does, for what runs at a terminal: when that is closed, or the connection to it is lost, it is to
/// end as well. What was started to outlive it, as by `nohup`, does.
///
/// # Errors
/// As [`listen`].
pub fn listen_at_terminal() -> nix::Result<()> {
    listen_for(listened([Signal::SIGHUP], &own_status()))
}

/// Listens as [`listen`] does, for what runs a program: users' signals are the program's ([`to_pass_on`]). Ctrl-Z stops
/// nothing: what it holds would be given back, as that of a holder that is silent, and what it started would go on without
/// it.
///
/// # Errors
/// As [`listen`].
pub fn listen_for_a_program() -> nix::Result<()> {
    listen_for(for_a_program(&own_status()))
}

fn for_a_program(status: &str) -> SigSet {
    listened([Signal::SIGHUP, Signal::SIGTSTP].into_iter().chain(OF_USERS), status)
}

/// What always asks for the end, and those of `others` that this process does not ignore: whoever waits for a signal gets it
/// all the same.
fn listened(others: impl IntoIterator<Item = Signal>, status: &str) -> SigSet {
    let heard = others.into_iter().filter(|signal| !is_ignored(*signal, status));
    [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(heard).collect()
}

fn own_status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn listen_for(signals: SigSet) -> nix::Result<()> {
    signals.thread_block()?;
    std::thread::spawn(move || {
        let mut asked = Asked::default();
        while let Ok(signal) = signals.wait() {
            hear(signal, &mut asked);
        }
    });
    Ok(())
}

/// When SIGINT and SIGTERM came first: somebody who asks for the end once more does so by the same. Others come by the
/// dozen: a shell at a terminal that is closed sends SIGHUP to what it started, and so does the kernel when the shell ends;
/// whoever logs out may get SIGTERM and SIGHUP.
#[derive(Debug, Default)]
struct Asked {
    first: [Option<Instant>; 2],
}

impl Asked {
    /// Whether `signal`, which comes at `now`, asks once more.
    fn again(&mut self, signal: Signal, now: Instant) -> bool {
        let kinds = [Signal::SIGINT, Signal::SIGTERM];
        let Some(kind) = kinds.iter().position(|kind| *kind == signal) else { return false };
        let first = *self.first[kind].get_or_insert(now);
        now.duration_since(first) >= AGAIN_AFTER
    }
}

/// What follows sooner was sent with the first, as by `timeout`, which ends a process and then its group.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

fn hear(signal: Signal, asked: &mut Asked) {
    // The terminal may be gone; and who reads what is told may take its time, which the next signal must not wait for.
    let tell = |what: &'static str| {
        let told = move || drop(writeln!(std::io::stderr(), "{what}"));
        // Where no thread can be had, it is not told.
        drop(std::thread::Builder::new().spawn(told));
    };
    match OF_USERS.iter().position(|of_users| *of_users == signal) {
        Some(at) => CAME[at].store(true, Ordering::SeqCst),
        None if signal == Signal::SIGTSTP => tell(NOT_STOPPED),
        None if asked.again(signal, Instant::now()) => std::process::exit(128 + signal as i32),
        None if STOPPED.swap(true, Ordering::SeqCst) => {}
        None => tell("stopping (again to stop at once)"),
    }
}

/// A signal of the user's that has come since the last call, for the program that runs.
pub fn to_pass_on() -> Option<Signal> {
    let mut all = OF_USERS.into_iter().zip(&CAME);
    all.find_map(|(signal, came)| came.swap(false, Ordering::SeqCst).then_some(signal))
}

const NOT_STOPPED: &str = "not stopped: a run that stands still loses its reservation after ten seconds, and its program goes on";

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
    fn what_users_signal_is_kept_for_their_program() {
        assert_eq!(to_pass_on(), None);
        for signal in [Signal::SIGUSR2, Signal::SIGUSR1, Signal::SIGUSR2] {
            hear(signal, &mut Asked::default());
        }
        let told = [(); 3].map(|()| to_pass_on());
        assert_eq!(told, [Some(Signal::SIGUSR1), Some(Signal::SIGUSR2), None]);
    }

    // Goal: whoever insists is obeyed, and what comes by itself more than once is not taken for that. Method: what comes when a
    // terminal is closed, at a log-out, from `timeout`, and from somebody at a keyboard.
    #[test]
    fn only_the_same_signal_a_while_later_asks_again() {
        let begin = Instant::now();
        let again = |signals: &[(Signal, u64)]| {
            let mut asked = Asked::default();
            let at = |millis: u64| begin + Duration::from_millis(millis);
            let told = signals.iter().map(|(signal, millis)| asked.again(*signal, at(*millis)));
            told.collect::<Vec<_>>()
        };
        assert_eq!(again(&[(Signal::SIGHUP, 0), (Signal::SIGHUP, 9_000)]), [false; 2]);
        let log_out = [(Signal::SIGTERM, 0), (Signal::SIGHUP, 600), (Signal::SIGINT, 900)];
        assert_eq!(again(&log_out), [false; 3]);
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            assert_eq!(again(&[(signal, 0), (signal, 1), (signal, 500)]), [false, false, true]);
        }
    }

    // What this process was started to ignore is nobody's.
    #[test]
    fn what_is_ignored_is_passed_on_to_nobody() {
        let heard = |status: &str| {
            let heard = for_a_program(status);
            let asked = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGTSTP];
            asked.map(|signal| heard.contains(signal))
        };
        assert_eq!(heard(""), [true; 4]);
        // SIGUSR1 is 10.
        assert_eq!(heard("SigIgn:\t0000000000000200\n"), [true, false, true, true]);
        assert!(for_a_program("SigIgn:\tffffffffffffffff\n").contains(Signal::SIGTERM));
    }

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
