//! `keeptime run --detach`: a run that outlives its terminal. This program is started once more, which asks and runs; the
//! first one waits for what comes of the request, tells it, and ends.
//!
//! ```text
//! keeptime run --detach ── starts ──> keeptime run --detached --detach    in a session of its own
//!      │  <──── granted, or waits ────────────┤                          which says all to the terminal until then
//!      └─ tells its user ──── go on ─────────>│                          and to its file from then on
//! ```
//!
//! Whoever hangs up before that, as by Ctrl-C or a closed terminal, ends the other one as well: nothing is reserved of which
//! nobody was told.

use crate::arguments::{BrokerPlace, RunArguments};
use crate::cluster::own_path;
use crate::commands::{Ending, print_json};
use crate::{interrupt, times};
use anyhow::{Context, Result, ensure};
use jiff::tz::TimeZone;
use keeptime_agent::lines;
use keeptime_broker::remote::Address;
use keeptime_credentials::dates::now;
use keeptime_lab::exit_code;
use keeptime_launch::remote::quoted;
use keeptime_model::reservation::Handle;
use keeptime_model::units::WallTime;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};

/// Set once this process has left its terminal: whether it speaks JSON. Its outputs are those of the whole process, and so
/// is this.
static LEFT: OnceLock<bool> = OnceLock::new();

/// What goes on, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Going {
    /// Nothing while it waits for room.
    reservation: Option<Handle>,
    /// Its number on this machine.
    process: u32,
    /// Where its output is.
    output: String,
}

/// Starts the run in a session of its own, and returns when it has ended, or goes on there by itself.
///
/// # Errors
/// If it cannot be started. What it says of errors of its own is on the terminal, and its code is the ending.
pub fn start(arguments: &RunArguments) -> Result<Ending> {
    let (mut run, connection) = start_again()?;
    if let Some(going) = hear(&connection, &interrupt::stopped)? {
        match arguments.json {
            true => print_json(&going)?,
            false => print!("{}", story(&going, arguments)),
        }
        // It may have ended meanwhile.
        if (&connection).write_all(GO_ON).is_ok() {
            return Ok(Ending::Done);
        }
    }
    let status = run.wait().context("while waiting for the run")?;
    Ok(Ending::Exit(u8::try_from(exit_code(status)).unwrap_or(u8::MAX)))
}

/// Where a run leaves its terminal, if it is to.
#[derive(Debug)]
pub struct Departure(Option<Leaving>);

/// A run in a session of its own, and the terminal that it was started from.
#[derive(Debug)]
struct Leaving {
    /// To the one at the terminal.
    connection: UnixStream,
    /// Said once, when its user was told.
    go_on: Receiver<()>,
    output: Output,
    json: bool,
    stage: Cell<Stage>,
}

/// What the user was told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// All: it is still at the terminal.
    AtTerminal,
    /// That it waits for room.
    Waiting,
    /// Its reservation.
    Named,
}

impl Departure {
    /// The run's own end, where it was started by [`start`]; any other run stays where it is.
    ///
    /// # Errors
    /// If there is nobody at the other end, or its file cannot be written.
    pub fn of(arguments: &RunArguments) -> Result<Self> {
        match arguments.detached {
            true => Leaving::new(arguments).map(|leaving| Self(Some(leaving))),
            false => Ok(Self(None)),
        }
    }

    /// Leaves the terminal, unless it has been left, with `reservation`, or to wait for room. What was started before may
    /// still have the terminal; from now on all output is in the file.
    ///
    /// # Errors
    /// If nobody listens any more who could tell the user.
    pub fn leave(&self, reservation: Option<Handle>) -> Result<()> {
        let Some(leaving) = &self.0 else { return Ok(()) };
        match (leaving.stage.get(), reservation) {
            (Stage::AtTerminal, _) => leaving.leave(reservation)?,
            (Stage::Waiting, Some(handle)) if !leaving.json => {
                println!("its reservation is {handle}");
            }
            _ => {}
        }
        leaving.stage.set(leaving.stage.get().after(reservation));
        Ok(())
    }
}

impl Stage {
    fn after(self, told: Option<Handle>) -> Self {
        match (self, told) {
            (_, Some(_)) | (Self::Named, None) => Self::Named,
            (Self::AtTerminal | Self::Waiting, None) => Self::Waiting,
        }
    }
}

impl Leaving {
    fn new(arguments: &RunArguments) -> Result<Self> {
        setsid()
            .context("--detached is what `keeptime run --detach` starts: say --detach alone")?;
        let connection = io::stdin().as_fd().try_clone_to_owned().context("no standard input")?;
        let connection = UnixStream::from(connection);
        dup2_stdin(File::open("/dev/null").context("cannot open /dev/null")?)
            .context("cannot put /dev/null in the place of standard input")?;
        let other_end = connection.try_clone().context("no connection to the terminal")?;
        let go_on = watch(other_end, interrupt::stop);
        let usual = PathBuf::from(format!("keeptime-{}.out", std::process::id()));
        let output = Output::open(arguments.output.as_deref().unwrap_or(usual.as_path()))?;
        let stage = Cell::new(Stage::AtTerminal);
        Ok(Self { connection, go_on, output, json: arguments.json, stage })
    }

    fn leave(&self, reservation: Option<Handle>) -> Result<()> {
        // What was said so far is for the terminal.
        io::stdout().flush().context("cannot write to standard output")?;
        let output = self.output.path.display().to_string();
        let going = Going { reservation, process: std::process::id(), output };
        let is_told =
            lines::say(&mut &self.connection, &going).is_ok() && self.go_on.recv().is_ok();
        ensure!(is_told, "interrupted");
        let file = &self.output.file;
        dup2_stdout(file).context("cannot put the file in the place of standard output")?;
        dup2_stderr(file).context("cannot put the file in the place of standard error")?;
        self.output.is_temporary.set(false);
        let _ = LEFT.set(self.json);
        Ok(())
    }
}

/// The file that the output of a run is added to.
#[derive(Debug)]
struct Output {
    file: File,
    path: PathBuf,
    /// It was made here, and nothing has been written to it: it goes with this.
    is_temporary: Cell<bool>,
}

impl Output {
    fn open(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).context("the current directory is gone")?;
        let made = OpenOptions::new().append(true).create_new(true).open(&path);
        let is_temporary = Cell::new(made.is_ok());
        let opened = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().append(true).create(true).open(&path)
            }
            made => made,
        };
        let file = opened.with_context(|| {
            format!("cannot write to {}: --output names another file", path.display())
        })?;
        Ok(Self { file, path, is_temporary })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_temporary.get() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Says as the last line of a run that has left its terminal how it ended: with `code`. For all others nothing.
pub fn tell_end(code: u8) {
    if let Some(json) = LEFT.get() {
        let _ = writeln!(io::stdout(), "{}", last_line(now(), code, *json));
    }
}

/// The last line of a run's file with `--json`.
#[derive(Debug, Serialize)]
struct Ended {
    ended_unix_nanos: WallTime,
    exit_code: u8,
}

fn last_line(ended: WallTime, code: u8, json: bool) -> String {
    if json {
        let ended = Ended { ended_unix_nanos: ended, exit_code: code };
        return serde_json::to_string(&ended).unwrap_or_default();
    }
    let how = match code {
        0 => "done",
        1 => "refused",
        _ => "not done, for the reason above",
    };
    format!("ended {}: {how}, exit code {code}", times::show(ended, &TimeZone::system()))
}

/// This program once more, with the same words, as the one that runs; and what it says to this one.
fn start_again() -> Result<(Child, UnixStream)> {
    let (ours, its) = UnixStream::pair().context("no connection to the run")?;
    let run = Command::new(own_path()?)
        .args(words_again(std::env::args_os().skip(1)))
        .stdin(OwnedFd::from(its))
        .spawn()
        .context("cannot start this program once more")?;
    Ok((run, ours))
}

/// What this command was told, for the one that goes on. It is marked right behind the verb: at the end may stand what the
/// user's own program is told.
fn words_again(own: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = own.collect();
    let behind_verb = words.len().min(1);
    words.insert(behind_verb, "--detached".into());
    words
}

/// What goes on by itself; nothing if the run has ended. When `stopped` says so, the run is told to end.
fn hear(connection: &UnixStream, stopped: &dyn Fn() -> bool) -> Result<Option<Going>> {
    let hang_up = || connection.shutdown(Shutdown::Write);
    while !is_readable(connection)? {
        if stopped() {
            hang_up().context("cannot tell the run to end")?;
        }
    }
    let line = lines::next(&mut BufReader::new(connection), LINE_BYTES_MAX)
        .context("the run does not say what came of it")?;
    let Some(line) = line else { return Ok(None) };
    // Whoever interrupts just before it is told that it goes on does not want that.
    if stopped() {
        hang_up().context("cannot tell the run to end")?;
        return Ok(None);
    }
    let going = serde_json::from_slice(&line).context("the run says what makes no sense")?;
    Ok(Some(going))
}

/// Whether something was said, or the other end is gone. Waits for that for a moment.
fn is_readable(connection: &UnixStream) -> Result<bool> {
    let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::from(LOOK_EVERY_MILLIS)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("while waiting for the run"),
    }
}

/// What is received once the other end has said to go on. If it hangs up before, `end` is called, and nothing ever comes.
fn watch(connection: UnixStream, end: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (said, go_on) = sync_channel(1);
    std::thread::spawn(move || {
        let mut word = [0; GO_ON.len()];
        match (&connection).read_exact(&mut word) {
            Ok(()) => {
                // Who does not wait for it any more has ended.
                let _ = said.send(());
            }
            Err(_) => end(),
        }
    });
    go_on
}

/// What people are told of what goes on: where it is, how to look, and how to end it.
fn story(going: &Going, arguments: &RunArguments) -> String {
    let Going { reservation, process, output } = going;
    let keeptime = |words: &[&str]| {
        let mut line = vec!["keeptime".to_owned()];
        line.extend(words.iter().map(|word| (*word).to_owned()));
        line.extend(place(&arguments.application.place));
        quoted(&line)
    };
    let job = reservation.map(|handle| handle.to_string());
    let (what, look) = match job.as_deref() {
        None => ("it waits for room".to_owned(), keeptime(&["list"])),
        Some(job) if arguments.rate.is_some() => (format!("{job} goes on"), keeptime(&["top"])),
        Some(job) => (format!("{job} goes on"), keeptime(&["show", job])),
    };
    let end = match job.as_deref() {
        // What was reserved before is its user's, and stays.
        Some(job) if arguments.reservation.is_none() => keeptime(&["cancel", job]),
        _ => format!("kill {process}"),
    };
    let follow = quoted(&["tail".into(), "-f".into(), output.clone()]);
    format!(
        "{what} without this terminal, as process {process}; what it says is added to {output}\n\
         to look: {look}; {follow}\nto end it: {end}\n"
    )
}

/// The words that name the same broker, where it was typed.
fn place(place: &BrokerPlace) -> Vec<String> {
    let words = match (&place.broker, &place.lab) {
        (Some(Address::Socket(socket)), _) => ["--broker".into(), socket.display().to_string()],
        (Some(Address::Remote(endpoint)), _) => ["--broker".into(), format!("https://{endpoint}")],
        (None, Some(lab)) => ["--lab".into(), lab.to_string()],
        (None, None) => return Vec::new(),
    };
    words.into()
}

/// What the one at the terminal says when its user was told.
const GO_ON: &[u8] = b".";
/// What goes on is told in one line: a number, a handle, and a path, of which each byte may become six.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How often it is looked whether the one at the terminal is interrupted.
const LOOK_EVERY_MILLIS: u16 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command as Parsed};
    use clap::Parser;

    fn parsed(words: &[&str]) -> RunArguments {
        let words = ["keeptime", "run"].into_iter().chain(words.iter().copied());
        let Parsed::Run(run) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("it is another command")
        };
        *run
    }

    fn going(reservation: Option<u64>) -> Going {
        let output = "/home/ada/my runs/a.out".to_owned();
        Going { reservation: reservation.map(Handle::new), process: 4711, output }
    }

    // Goal: the one that goes on is told the same, whatever stands at the end. Method: its words are taken apart again.
    #[test]
    fn the_words_of_a_run_are_said_again() {
        let own = ["run", "--rate", "30 %", "-n", "4", "--detach", "--", "./solver", "--detach"];
        let words = words_again(own.into_iter().map(OsString::from));
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        let again = parsed(&words[1..]);
        assert!(again.detached && again.detach);
        assert_eq!(again.program.command, ["./solver", "--detach"]);
        assert!(!parsed(&own[1..]).detached);
    }

    #[test]
    fn options_of_a_run_that_goes_on_need_that_it_does() {
        let refused = |words: &[&str]| {
            let words = ["keeptime", "run", "raycast"].into_iter().chain(words.iter().copied());
            Arguments::try_parse_from(words).unwrap_err().to_string()
        };
        for words in [&["--output", "a.out"][..], &["--detached"]] {
            assert!(refused(words).contains("--detach"), "{words:?}");
        }
    }

    // Goal: nothing is left of a run that was refused, and nothing of what was there before is lost. Method: files that
    // are there and that are not, of runs that leave their terminal and that do not.
    #[test]
    fn a_file_that_nobody_wrote_to_goes_and_any_other_stays() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old"), "before\n").unwrap();
        for name in ["old", "new"] {
            let output = Output::open(&at(name)).unwrap();
            assert!(at(name).exists());
            drop(output);
        }
        assert!(!at("new").exists());
        for name in ["old", "new"] {
            let output = Output::open(&at(name)).unwrap();
            output.is_temporary.set(false);
            writeln!(&output.file, "added").unwrap();
        }
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "before\nadded\n");
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "added\n");
        let error = format!("{:#}", Output::open(&at("none/new")).unwrap_err());
        assert!(error.contains("none/new: --output names another file"), "{error}");
        assert!(Output::open(directory.path()).is_err(), "a directory");
    }

    // Goal: both ends learn what the other one does. Method: each of them in turn is played by the test.
    #[test]
    fn the_one_at_the_terminal_hears_what_goes_on() {
        let pair = || UnixStream::pair().unwrap();
        let said = going(Some(7));
        let (ours, its) = pair();
        lines::say(&mut &its, &said).unwrap();
        assert_eq!(hear(&ours, &|| false).unwrap(), Some(said.clone()));
        // It has ended.
        let (ours, its) = pair();
        drop(its);
        assert_eq!(hear(&ours, &|| false).unwrap(), None);
        // An interrupt comes before it is told, and is told to it.
        let (ours, its) = pair();
        lines::say(&mut &its, &said).unwrap();
        assert_eq!(hear(&ours, &|| true).unwrap(), None);
        assert_eq!((&its).read(&mut [0]).unwrap(), 0, "hung up");
        // One comes while it is waited for: the run is told, and ends.
        let (ours, its) = pair();
        let ends = std::thread::spawn(move || (&its).read(&mut [0]).unwrap());
        assert_eq!(hear(&ours, &|| true).unwrap(), None);
        assert_eq!(ends.join().unwrap(), 0);
        let (ours, its) = pair();
        (&its).write_all(b"nonsense\n").unwrap();
        assert!(hear(&ours, &|| false).is_err());
    }

    #[test]
    fn the_one_that_runs_hears_whether_to_go_on() {
        let (told_to_end, ended) = sync_channel(1);
        let (ours, its) = UnixStream::pair().unwrap();
        let end = told_to_end.clone();
        let go_on = watch(its, move || end.send(()).unwrap());
        (&ours).write_all(GO_ON).unwrap();
        assert!(go_on.recv().is_ok());
        drop(ours);
        let (ours, its) = UnixStream::pair().unwrap();
        let go_on = watch(its, move || told_to_end.send(()).unwrap());
        drop(ours);
        assert!(go_on.recv().is_err());
        assert_eq!(ended.iter().count(), 1, "not of the one that was to go on");
    }

    #[test]
    fn a_reservation_is_named_once() {
        let handle = Some(Handle::new(7));
        assert_eq!(Stage::AtTerminal.after(None), Stage::Waiting);
        assert_eq!(Stage::Waiting.after(None), Stage::Waiting);
        for stage in [Stage::AtTerminal, Stage::Waiting, Stage::Named] {
            assert_eq!(stage.after(handle), Stage::Named);
        }
        assert_eq!(Stage::Named.after(None), Stage::Named);
    }

    // Goal: who is told can look and end it, by what is right for each kind of run.
    #[test]
    fn people_are_told_how_to_look_and_how_to_end_it() {
        let told = |reservation, words: &[&str]| story(&going(reservation), &parsed(words));
        let plain = told(Some(7), &["raycast", "--within", "1s", "--detach", "--lab", "demo"]);
        let expected = "r7 goes on without this terminal, as process 4711; what it says is added to \
                        /home/ada/my runs/a.out\n\
                        to look: keeptime show r7 --lab demo; tail -f '/home/ada/my runs/a.out'\n\
                        to end it: keeptime cancel r7 --lab demo\n";
        assert_eq!(plain, expected);
        let waits = told(None, &["raycast", "--within", "1s", "--wait", "1h", "--detach"]);
        assert!(
            waits.starts_with("it waits for room") && waits.ends_with("kill 4711\n"),
            "{waits}"
        );
        let rate = ["bsp", "--rate", "30 %", "--detach", "--broker", "https://head:7411"];
        let rate = told(Some(7), &rate);
        assert!(rate.contains("to look: keeptime top --broker https://head:7411;"), "{rate}");
        let lent = told(Some(7), &["raycast", "--in", "r7", "--detach"]);
        assert!(lent.contains("r7 goes on") && lent.ends_with("to end it: kill 4711\n"), "{lent}");
    }

    #[test]
    fn the_last_line_says_how_it_ended() {
        let ended = WallTime::from_unix_nanos(7_000_000_000);
        for (code, how) in [(0, "done"), (1, "refused"), (2, "not done"), (101, "not done")] {
            let line = last_line(ended, code, false);
            let end = format!("exit code {code}");
            assert!(line.contains(&format!(": {how}")) && line.ends_with(&end), "{line}");
        }
        let line = last_line(ended, 2, true);
        assert_eq!(line, "{\"ended_unix_nanos\":7000000000,\"exit_code\":2}");
    }
}
