//! One bounded run of a command: its output as it comes, a time limit, and how it ended.

use keeptime_model::units::Nanos;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::iter;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Lines of output that are kept for the caller: a run's last words. What came before them it has seen line by line.
const LINES_KEPT: usize = 1_000;
/// Lines that wait for the caller: a burst while it writes one of them. With the longest lines that is 16 MiB. Who prints
/// more waits as at any pipe that is full.
const LINES_WAITING: usize = 256;
/// Longest line that is kept whole.
const LINE_LENGTH_MAX: u64 = 64 * 1024;
/// How long the process group has to go after SIGTERM before it gets SIGKILL.
const GRACE: Duration = Duration::from_millis(500);
/// How long a run may go on without a word once it has told its result, where it is known that only its end is left. Debian's
/// MPICH 4.0.2 over UCX now and then never returns from MPI_Finalize, long after the last result.
pub const LINGER: Duration = Duration::from_secs(3);

/// A line that a run prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// To its standard output.
    Out(&'a str),
    /// To its standard error.
    Err(&'a str),
}

/// What a line of output means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Running,
    /// Its result is told: all that is left is to end, within this time after the last line.
    EndsWithin(Duration),
}

/// What a run printed and how long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// From start to the end of its last process.
    pub wall: Nanos,
    /// The last lines of its standard output.
    pub stdout: Vec<String>,
    /// The last lines of its standard error.
    pub stderr: Vec<String>,
    /// It had told its result and then did not end by itself; it was ended.
    pub lingered: bool,
}

/// A run that did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It took longer than allowed; its processes were ended.
    #[error("the run was ended because it took longer than {}", .limit.rounded())]
    TimedOut {
        /// What was allowed.
        limit: Nanos,
        /// The last lines of its standard error.
        stderr: Vec<String>,
    },
    /// It failed by itself.
    #[error("the run failed: {status}{}", last_words(stderr))]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its standard error.
        stderr: Vec<String>,
    },
    /// The caller asked for its end.
    #[error("the run was ended because it was told to stop")]
    Stopped,
}

/// Runs `command` in a process group of its own until it ends, `limit` passes, or `stopped` says so.
/// `on_line` sees every line of standard output as it comes; once it says [`Progress::EndsWithin`], the
/// run has that time to end or to print another line, and counts even if it has to be ended. A program
/// that prints faster than `on_line` takes has to wait for it. Blocks; looks at `stopped` at least ten times a second.
///
/// # Errors
/// If it cannot start, fails, is stopped or takes too long; in the last two cases every process of
/// its group was ended.
pub fn run(
    command: &[String],
    limit: Nanos,
    stopped: &dyn Fn() -> bool,
    on_line: &mut dyn FnMut(&str) -> Progress,
) -> Result<Outcome, RunError> {
    run_within(command, &|| limit, &|| None, stopped, &mut |said| match said {
        Said::Out(line) => on_line(line),
        Said::Err(_) => Progress::Running,
    })
}

/// The same with a limit that may change while it runs, and with signals that the command is to have; each is asked for at
/// least ten times a second. They are for the command alone: it knows which of its processes they mean. `on_said` sees what
/// comes by standard error, too.
///
/// # Errors
/// As [`run`].
pub fn run_within(
    command: &[String],
    limit: &dyn Fn() -> Nanos,
    signals: &dyn Fn() -> Option<Signal>,
    stopped: &dyn Fn() -> bool,
    on_said: &mut dyn FnMut(Said<'_>) -> Progress,
) -> Result<Outcome, RunError> {
    let started = Instant::now();
    let mut child = spawn(command)?;
    let leader = Pid::from_raw(child.id() as i32);
    // As long as nobody has waited for it, it has its number.
    let pass_on = || {
        for signal in iter::from_fn(signals) {
            // One that has just ended needs none.
            let _ = kill(leader, signal);
        }
    };
    let output = read_both(&mut child);
    let mut kept = Kept::default();
    // Once its result is told: how long it may say nothing, and when it said something.
    let mut lingers: Option<(Duration, Instant)> = None;
    let is_over = |lingers: Option<(Duration, Instant)>| {
        if stopped() {
            return Some(End::Stopped);
        }
        if started.elapsed() >= Duration::from_nanos(limit().get()) {
            return Some(End::Late);
        }
        let is_silent = |(within, since): (Duration, Instant)| since.elapsed() >= within;
        lingers.is_some_and(is_silent).then_some(End::Lingered)
    };
    let mut end = loop {
        match output.recv_timeout(Duration::from_millis(100)) {
            Ok(Line::Out(line)) => {
                // What still prints may tell another result, of which the last one counts.
                let within = match on_said(Said::Out(&line)) {
                    Progress::EndsWithin(within) => Some(within),
                    Progress::Running => lingers.map(|(within, _)| within),
                };
                lingers = within.map(|within| (within, Instant::now()));
                keep(&mut kept.stdout, line);
            }
            Ok(Line::Err(line)) => {
                on_said(Said::Err(&line));
                lingers = lingers.map(|(within, _)| (within, Instant::now()));
                keep(&mut kept.stderr, line);
            }
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        pass_on();
        if let Some(end) = is_over(lingers) {
            break Some(end);
        }
    };
    let failed = |source| RunError::Start { program: command[0].clone(), source };
    let mut status = None;
    // Its output is closed, so it is about to end; a program that closed it early goes on, within the same bounds.
    while end.is_none() {
        pass_on();
        status = child.try_wait().map_err(failed)?;
        if status.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        end = is_over(lingers);
    }
    if status.is_none() {
        end_group(&mut child, &output).map_err(failed)?;
    }
    let wall = Nanos::from(started.elapsed());
    let (stdout, stderr) = (kept.stdout.into(), kept.stderr.into());
    match status {
        _ if end == Some(End::Stopped) => Err(RunError::Stopped),
        None if end == Some(End::Late) => Err(RunError::TimedOut { limit: limit(), stderr }),
        Some(status) if !status.success() => Err(RunError::Failed { status, stderr }),
        status => Ok(Outcome { wall, stdout, stderr, lingered: status.is_none() }),
    }
}

/// Why it is not to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    Late,
    Lingered,
}

enum Line {
    Out(String),
    Err(String),
}

#[derive(Default)]
struct Kept {
    stdout: VecDeque<String>,
    stderr: VecDeque<String>,
}

fn spawn(command: &[String]) -> Result<Child, RunError> {
    let (program, arguments) = command.split_first().ok_or_else(|| RunError::Start {
        program: String::new(),
        source: std::io::Error::from(std::io::ErrorKind::InvalidInput),
    })?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| RunError::Start { program: program.clone(), source })
}

/// A thread for each stream; the channel closes when both have ended.
fn read_both(child: &mut Child) -> Receiver<Line> {
    let (sender, receiver) = sync_channel(LINES_WAITING);
    if let Some(stdout) = child.stdout.take() {
        read_lines(stdout, sender.clone(), Line::Out);
    }
    if let Some(stderr) = child.stderr.take() {
        read_lines(stderr, sender, Line::Err);
    }
    receiver
}

/// Reads no further while nobody takes what was read, and no more once nobody will.
fn read_lines(
    stream: impl Read + Send + 'static,
    to: SyncSender<Line>,
    wrap: impl Fn(String) -> Line + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match reader.by_ref().take(LINE_LENGTH_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_string();
                    if to.send(wrap(text)).is_err() {
                        return;
                    }
                }
            }
        }
    });
}

fn keep(lines: &mut VecDeque<String>, line: String) {
    if lines.len() == LINES_KEPT {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// Ends the group of a child. What it still prints is thrown away: a launcher that has to wait at a full pipe would not
/// end its ranks.
fn end_group(child: &mut Child, output: &Receiver<Line>) -> std::io::Result<()> {
    let leader = Pid::from_raw(child.id() as i32);
    let _ = killpg(leader, Signal::SIGTERM);
    let patience = Instant::now() + GRACE;
    while Instant::now() < patience && !has_ended(leader)? {
        discard(output, Duration::from_millis(10));
    }
    let _ = killpg(leader, Signal::SIGKILL);
    child.wait().map(drop)
}

/// Whether a child has ended. It is not waited for: until it is, nobody else's group has its number.
fn has_ended(child: Pid) -> nix::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(child), flags).map(|status| status != WaitStatus::StillAlive)
}

/// Takes what is printed within `span`, for nobody.
fn discard(output: &Receiver<Line>, span: Duration) {
    let until = Instant::now() + span;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if let Err(RecvTimeoutError::Disconnected) = output.recv_timeout(left) {
            // Nothing more comes, at once.
            return std::thread::sleep(left);
        }
    }
}

/// The last lines of standard error as a tail of an error message: enough that a launcher's own dozen
/// lines about the end do not push out what the program said.
fn last_words(stderr: &[String]) -> String {
    const SHOWN: usize = 24;
    let said: Vec<_> = stderr.iter().filter(|l| !l.trim_matches('-').trim().is_empty()).collect();
    let tail = said.iter().skip(said.len().saturating_sub(SHOWN));
    tail.map(|line| format!("\n    | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(String::from).to_vec()
    }

    fn run_shell(script: &str, limit: Nanos) -> Result<Outcome, RunError> {
        run(&shell(script), limit, &|| false, &mut |_| Progress::Running)
    }

    #[test]
    fn output_is_seen_line_by_line_and_kept() {
        let mut seen = Vec::new();
        let outcome = run(
            &shell("echo a; echo b; echo oops >&2"),
            Nanos::from_secs(10),
            &|| false,
            &mut |line| {
                seen.push(line.to_string());
                Progress::Running
            },
        )
        .unwrap();
        assert_eq!((seen, outcome.stderr), (vec!["a".into(), "b".into()], vec!["oops".into()]));
        assert_eq!(outcome.stdout, ["a", "b"]);
    }

    /// Lines without an end; counts those that were taken. Each is as long as what is read at once.
    struct Endless(Arc<AtomicUsize>);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.fill(b'x');
            if let Some(last) = into.last_mut() {
                *last = b'\n';
            }
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(into.len())
        }
    }

    fn wait_until(holds: impl Fn() -> bool) -> bool {
        let patience = Instant::now() + Duration::from_secs(60);
        while !holds() && Instant::now() < patience {
            std::thread::yield_now();
        }
        holds()
    }

    // Goal: a program that prints faster than its lines are taken waits, and whoever reads for it ends with who takes
    // them. Method: lines without an end, of which some are taken one by one, and then none ever.
    #[test]
    fn no_more_lines_are_read_than_there_is_room_for() {
        let taken = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = sync_channel(LINES_WAITING);
        read_lines(Endless(Arc::clone(&taken)), sender, Line::Out);
        for received in 0..3 * LINES_WAITING {
            // Those that wait, and the one that waits to be one of them.
            let most = received + LINES_WAITING + 1;
            assert!(wait_until(|| taken.load(Ordering::SeqCst) >= most));
            (0..10).for_each(|_| std::thread::yield_now());
            assert_eq!(taken.load(Ordering::SeqCst), most);
            assert!(matches!(receiver.recv(), Ok(Line::Out(_))));
        }
        drop(receiver);
        assert!(wait_until(|| Arc::strong_count(&taken) == 1), "nobody reads any more");
    }

    #[test]
    fn no_line_of_a_program_that_prints_fast_is_lost() {
        let count = 20 * LINES_WAITING;
        let script = format!("seq {count} & seq {count} >&2; wait");
        let mut seen = Vec::new();
        let outcome = run(&shell(&script), Nanos::from_secs(60), &|| false, &mut |line| {
            seen.push(line.parse::<usize>().unwrap());
            Progress::Running
        })
        .unwrap();
        assert!(seen.iter().copied().eq(1..=count), "{} lines", seen.len());
        assert_eq!(outcome.stderr.last(), Some(&count.to_string()));
    }

    // Goal: who is told to end and has more to say than a pipe holds is not in its own way. Method: a program that
    // leaves a mark after it; it has half a second, so that several are tried.
    #[test]
    fn a_program_that_is_ended_may_say_much() {
        let mark = std::env::temp_dir().join(format!("keeptime-said-{}", std::process::id()));
        let script = format!(
            "trap 'seq 50000 && touch {}; exit' TERM; echo begun; while :; do sleep 0.01; done",
            mark.display()
        );
        let is_marked = (0..10).any(|_| {
            let has_begun = Cell::new(false);
            let ended =
                run(&shell(&script), Nanos::from_secs(60), &|| has_begun.get(), &mut |_| {
                    has_begun.set(true);
                    Progress::Running
                });
            assert!(matches!(ended, Err(RunError::Stopped)), "{ended:?}");
            mark.exists()
        });
        let _ = std::fs::remove_file(&mark);
        assert!(is_marked);
    }

    #[test]
    fn a_failure_carries_status_and_last_words() {
        let error = run_shell("echo no such volume >&2; exit 3", Nanos::from_secs(10)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("no such volume"), "{text}");
        assert!(matches!(
            run(&["/nowhere".into()], Nanos::from_secs(1), &|| false, &mut |_| Progress::Running),
            Err(RunError::Start { .. })
        ));
    }

    #[test]
    fn a_run_that_hangs_is_ended_with_all_its_processes() {
        let limit = Nanos::from_millis(200);
        let error =
            run_shell("trap '' TERM; sleep 60 & echo $! >&2; wait; sleep 60", limit).unwrap_err();
        let RunError::TimedOut { stderr, .. } = error else { panic!("{error}") };
        let grandchild: i32 = stderr[0].parse().unwrap();
        let gone = || nix::sys::signal::kill(Pid::from_raw(grandchild), None).is_err();
        let patience = Instant::now() + Duration::from_secs(60);
        while !gone() && Instant::now() < patience {
            std::thread::yield_now();
        }
        // A zombie that nobody reaps yet answers too; it runs no more.
        let state = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        assert!(gone() || state.contains(") Z "), "{state}");
    }

    #[test]
    fn a_run_that_told_its_result_and_does_not_end_still_counts() {
        let script = shell("echo time 1; sleep 60");
        let outcome = run(&script, Nanos::from_secs(60), &|| false, &mut |line| match line {
            "time 1" => Progress::EndsWithin(Duration::from_millis(100)),
            _ => Progress::Running,
        });
        assert!(outcome.unwrap().lingered);
    }

    // Its limit is one all the same: what it would still have written is not there.
    #[test]
    fn a_run_that_told_a_result_and_takes_too_long_does_not_count() {
        let script = shell("echo time 1; sleep 60");
        let outcome = run(&script, Nanos::from_millis(200), &|| false, &mut |_| {
            Progress::EndsWithin(Duration::from_secs(60))
        });
        assert!(matches!(outcome, Err(RunError::TimedOut { .. })), "{outcome:?}");
    }

    #[test]
    fn both_streams_are_heard_while_it_runs() {
        let script = shell("echo result; echo warning >&2");
        let mut heard = Vec::new();
        let limit = || Nanos::from_secs(60);
        run_within(&script, &limit, &|| None, &|| false, &mut |said| {
            heard.push(format!("{said:?}"));
            Progress::Running
        })
        .unwrap();
        heard.sort();
        assert_eq!(heard, ["Err(\"warning\")", "Out(\"result\")"]);
    }

    // Goal: of several results the last one counts, also where the first was told long before. Method: one that tells
    // them a bit more than half of the time apart that it may be silent.
    #[test]
    fn a_run_that_tells_more_is_not_ended_for_its_first_result() {
        let script = shell("echo time 1; sleep 1.6; echo more >&2; sleep 1.6; echo time 2");
        let outcome = run(&script, Nanos::from_secs(60), &|| false, &mut |line| match line {
            "time 1" | "time 2" => Progress::EndsWithin(LINGER),
            _ => Progress::Running,
        })
        .unwrap();
        assert_eq!(outcome.stdout, ["time 1", "time 2"]);
        assert!(!outcome.lingered);
    }

    // Goal: a limit that changes while a program runs is what counts. Method: one that has a minute until it says a word,
    // and then nothing.
    #[test]
    fn a_limit_may_change_while_it_runs() {
        let limit = Cell::new(Nanos::from_secs(60));
        let script = shell("echo now; sleep 50");
        let error = run_within(&script, &|| limit.get(), &|| None, &|| false, &mut |_| {
            limit.set(Nanos::default());
            Progress::Running
        });
        let RunError::TimedOut { limit, .. } = error.unwrap_err() else { panic!("it ran on") };
        assert_eq!(limit, Nanos::default());
    }

    // Goal: what is signalled to a program comes to the program alone: what it has started may end by that. Method: one that
    // ends its child itself and looks by what that ended; also after it has closed its output.
    #[test]
    fn a_signal_is_for_the_command_and_not_for_what_it_has_started() {
        for close in ["", "exec >&- 2>&-;"] {
            let script = format!(
                "sleep 30 >/dev/null 2>&1 & trap 'kill $!; wait $!; [ $? = 143 ]; exit $?' USR1; \
                 echo begun; {close} while :; do sleep 0.05; done"
            );
            let to_come = Cell::new(None);
            let limit = || Nanos::from_secs(20);
            let signals = || to_come.take();
            let ended = run_within(&shell(&script), &limit, &signals, &|| false, &mut |_| {
                to_come.set(Some(Signal::SIGUSR1));
                Progress::Running
            });
            assert!(ended.is_ok(), "{close}: {ended:?}");
        }
    }

    // Goal: a program that has closed its output is ended like any other: when told, and by a limit that has changed.
    // Method: both happen when it has had time to close it.
    #[test]
    fn a_program_that_closed_its_output_is_ended_all_the_same() {
        let script = shell("exec >&- 2>&-; sleep 30");
        let started = Instant::now();
        let is_later = || started.elapsed() > Duration::from_millis(300);
        let ended = run(&script, Nanos::from_secs(30), &is_later, &mut |_| Progress::Running);
        assert!(matches!(ended, Err(RunError::Stopped)), "{ended:?}");
        let started = Instant::now();
        let is_later = || started.elapsed() > Duration::from_millis(300);
        let limit = || if is_later() { Nanos::default() } else { Nanos::from_secs(30) };
        let ended = run_within(&script, &limit, &|| None, &|| false, &mut |_| Progress::Running);
        let RunError::TimedOut { limit, .. } = ended.unwrap_err() else { panic!("it ran on") };
        assert_eq!(limit, Nanos::default());
    }

    #[test]
    fn a_run_stops_when_told() {
        let error =
            run(&shell("sleep 60"), Nanos::from_secs(60), &|| true, &mut |_| Progress::Running)
                .unwrap_err();
        assert!(matches!(error, RunError::Stopped));
    }
}
