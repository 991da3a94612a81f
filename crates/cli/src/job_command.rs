//! A command of a job on this node: the agent counts this process to the job, so that whatever it starts has what
//! is reserved, and ends all of that when this process has ended.
//!
//! SIGUSR1 and SIGUSR2 are the command's. Whoever sends them to all processes, as batch systems do, has reached it; what a
//! run sends, whose launcher is the command, is passed on to it.

use crate::arguments::AgentExecArguments;
use anyhow::{Context, Result, ensure};
use keeptime_agent::client::Client;
use keeptime_agent::wire::Place;
use keeptime_lab::exit_code;
use keeptime_launch::mpi::DEVICE_VARIABLES;
use keeptime_linux::netns::{die_with, die_with_parent};
use keeptime_linux::process::{Identity, Process, with_no_signal_blocked};
use keeptime_model::Invalid;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::getppid;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use thiserror::Error;

/// Why a command was not started.
#[derive(Debug, Error)]
pub enum NotStarted {
    /// The agent is away or refuses, or something that was asked for is not there.
    #[error("the command was not started")]
    Refused(#[source] anyhow::Error),
    /// It cannot be run.
    #[error("cannot run {program}")]
    Program {
        /// What.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl NotStarted {
    /// As `env` and `ssh` have it, apart from what commands end with themselves.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 125,
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
        }
    }
}

/// Runs it, and gives the code that a shell would tell of its end. For a process of one thread, which ends then.
///
/// # Errors
/// If it was not started; if it cannot be waited for.
pub fn run(arguments: &AgentExecArguments) -> Result<u8> {
    commands_own().thread_block().context("cannot block signals")?;
    let mut agent = Agent::of(arguments).map_err(NotStarted::Refused)?;
    let started = start(arguments, &agent.place).map_err(anyhow::Error::from);
    let ended = started.and_then(|child| wait(child, &mut agent));
    // Whoever hangs up is ended by the agent: this process ends first, with a code of its own.
    std::mem::forget(agent.client);
    ended
}

/// This node's agent, as long as it counts this process to the job.
struct Agent<'a> {
    arguments: &'a AgentExecArguments,
    place: Place,
    /// Nothing while it is away: an agent that was killed comes back, and the kernel goes on meanwhile.
    client: Option<Client>,
}

impl<'a> Agent<'a> {
    fn of(arguments: &'a AgentExecArguments) -> Result<Self> {
        match arguments.parent {
            Some(parent) => die_with(parent)?,
            None if arguments.die_with_parent => die_with_parent()?,
            None => {}
        }
        let directory = arguments.directory.as_deref().unwrap_or(Path::new("."));
        let expected = "a directory that is there on every node, as all files of a run have to be";
        ensure!(directory.is_dir(), Invalid::new("directory", directory.display(), expected));
        let mut client = Client::connect(&arguments.agent.socket)?;
        let place = client.start(&arguments.job)?;
        Ok(Self { arguments, place, client: Some(client) })
    }

    /// Sees to it that the agent knows when this process ends, as far as that can be waited for.
    fn settle(&mut self) {
        for _ in 0..LAST_CALLS {
            self.client = self.client.take().filter(|client| !is_gone(client));
            if self.client.is_some() {
                return;
            }
            std::thread::sleep(AGAIN_AFTER);
            self.call_again();
        }
    }

    /// Tries once to have the agent back, if it is away.
    fn call_again(&mut self) {
        if self.client.is_some() {
            return;
        }
        let client = Client::connect(&self.arguments.agent.socket);
        self.client = client.ok().and_then(|mut client| {
            // Refused is who belongs to a job that is over: the kernel ends it.
            client.start(&self.arguments.job).ok().map(|_| client)
        });
    }
}

fn start(arguments: &AgentExecArguments, place: &Place) -> Result<Child, NotStarted> {
    let (program, words) = arguments.command.split_first().ok_or_else(|| NotStarted::Program {
        program: String::new(),
        source: io::ErrorKind::InvalidInput.into(),
    })?;
    let mut command = Command::new(program);
    command.args(words).envs(environment(arguments, place));
    if let Some(directory) = &arguments.directory {
        command.current_dir(directory);
    }
    let failed = |source| NotStarted::Program { program: program.clone(), source };
    // A run, by which this process was started, waits for signals and so has them blocked.
    with_no_signal_blocked(&mut command).spawn().map_err(failed)
}

/// Signals that mean the command, and nothing here.
fn commands_own() -> SigSet {
    [Signal::SIGUSR1, Signal::SIGUSR2].into_iter().collect()
}

/// Whether each node tells a program by the variable `name` where it is.
pub fn is_of_node(name: &str) -> bool {
    PLACE_VARIABLES.iter().chain(&DEVICE_VARIABLES).any(|own| *own == name)
}

/// The agent's socket, the job and the node.
const PLACE_VARIABLES: [&str; 3] = ["KEEPTIME_AGENT", "KEEPTIME_JOB", "KEEPTIME_NODE"];

/// What a program of the job has to know of where it is.
fn environment(arguments: &AgentExecArguments, place: &Place) -> Vec<(&'static str, OsString)> {
    let socket: PathBuf = std::path::absolute(&arguments.agent.socket).unwrap_or_default();
    let told: [OsString; 3] =
        [socket.into(), arguments.job.as_str().into(), place.node.as_str().into()];
    let mut all: Vec<_> = PLACE_VARIABLES.into_iter().zip(told).collect();
    if let Some(device) = &place.device {
        all.extend(DEVICE_VARIABLES.map(|name| (name, device.into())));
    }
    all
}

/// Until the command ends, or nobody listens to it any more.
fn wait(mut child: Child, agent: &mut Agent<'_>) -> Result<u8> {
    let pid = i32::try_from(child.id())?;
    let process = Identity::of(pid)?.map(|identity| identity.open()).transpose()?.flatten();
    // A run knows this process and not the command.
    let is_of_run = agent.arguments.die_with_parent;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = is_of_run.then(|| SignalFd::with_flags(&commands_own(), flags)).transpose()?;
    while let Some(process) = &process {
        match next(process, agent.client.as_ref(), signals.as_ref())? {
            Next::Ended => break,
            // It may have become another user's.
            Next::Signalled(signal) => drop(process.signal(signal)),
            Next::Alone => {
                // The agent ends the rest, when this process has ended.
                child.kill()?;
                break;
            }
            Next::AgentAway => agent.client = None,
            Next::Nothing => agent.call_again(),
        }
    }
    let status = child.wait().context("while waiting for the command")?;
    agent.settle();
    Ok(u8::try_from(exit_code(status)).unwrap_or(u8::MAX))
}

/// What happened.
enum Next {
    /// The command ended.
    Ended,
    /// It is to have a signal.
    Signalled(Signal),
    /// Whoever listened to it has gone.
    Alone,
    /// The agent has gone.
    AgentAway,
    /// Nothing, for some time.
    Nothing,
}

fn next(process: &Process, agent: Option<&Client>, signals: Option<&SignalFd>) -> Result<Next> {
    if let Some(signal) = signals.and_then(|signals| signals.read_signal().ok().flatten()) {
        let is_of_parent = i32::try_from(signal.ssi_pid) == Ok(getppid().as_raw());
        return Ok(match is_of_parent {
            true => Next::Signalled(Signal::try_from(i32::try_from(signal.ssi_signo)?)?),
            false => Next::Nothing,
        });
    }
    let (out, err) = (io::stdout(), io::stderr());
    // Of a file that is closed at its other end the kernel tells without being asked.
    let gone = |fd| PollFd::new(fd, PollFlags::empty());
    let mut fds =
        vec![PollFd::new(process.as_fd(), PollFlags::POLLIN), gone(out.as_fd()), gone(err.as_fd())];
    fds.extend(agent.map(|agent| PollFd::new(agent.connection(), PollFlags::POLLIN)));
    // One that has come is read by the next call.
    fds.extend(signals.map(|signals| PollFd::new(signals.as_fd(), PollFlags::POLLIN)));
    let timeout = match agent {
        Some(_) => PollTimeout::NONE,
        None => PollTimeout::try_from(AGAIN_AFTER)?,
    };
    match poll(&mut fds, timeout) {
        Err(nix::errno::Errno::EINTR) => return Ok(Next::Nothing),
        told => told.context("while waiting for the command")?,
    };
    let has = |at: usize| fds.get(at).and_then(PollFd::any).unwrap_or(false);
    let happened = |at: usize| {
        let told = fds.get(at).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
        told.intersects(PollFlags::POLLERR | PollFlags::POLLHUP)
    };
    Ok(match () {
        () if has(0) => Next::Ended,
        () if happened(1) || happened(2) => Next::Alone,
        () if agent.is_some() && has(3) => Next::AgentAway,
        () => Next::Nothing,
    })
}

/// Whether the other end has hung up.
fn is_gone(agent: &Client) -> bool {
    let mut fds = [PollFd::new(agent.connection(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// How often an agent that is away is called.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How many times at the end: an agent that an init system starts anew is back by then.
const LAST_CALLS: u32 = 5;
