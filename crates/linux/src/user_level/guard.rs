//! What an agent holds goes on when the agent ends, in whichever way: a process beside it waits for that and sets free
//! what is scheduled on its node.
//!
//! That must not happen while the next agent schedules there already. So a guard is noted on the node's group before
//! its agent holds anybody, and the next agent waits for it first ([`end_former`]).

use super::jobs::{SharingError, give_back_all};
use crate::cgroup::{CgroupError, Group, Hierarchies};
use crate::process::Identity;
use crate::syscall::SyscallError;
use nix::sys::signal::Signal;
use std::ffi::{CStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why nobody waits for the end of an agent, or has ended to do so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The node's group cannot be used.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// A process cannot be looked at, or ended.
    #[error(transparent)]
    Process(#[from] SyscallError),
    /// Who is guarded is not there.
    #[error("nobody is guarded")]
    Alone(#[source] io::Error),
    /// What was held may still be.
    #[error(transparent)]
    Sharing(#[from] SharingError),
}

/// Guards the agent of the node with this group, whose end is that of what is read from it; it is told by a line that it
/// is guarded from now on. Returns when all that it scheduled is set free.
///
/// # Errors
/// If there is no such group in the hierarchy of version 2, nobody to guard, or something cannot be set free.
pub fn serve(node: &Path, mut agent: impl Read, mut tell: impl Write) -> Result<(), GuardError> {
    let node = Hierarchies::discover_any()?.group(node)?;
    let own = Identity::own()?.to_string();
    node.set_note(GUARD, &own)?;
    tell.write_all(b"\n").and_then(|()| tell.flush()).map_err(GuardError::Alone)?;
    // Nobody is at the other end of what cannot be read, either.
    let _ = io::copy(&mut agent, &mut io::sink());
    Ok(give_back_all(&node)?)
}

/// Waits for the guard of an agent of this node that has ended; one that does not end soon is killed. Whoever does this
/// sets free what it may have left.
///
/// # Errors
/// If who it is cannot be known, or it cannot be ended.
pub fn end_former(node: &Group) -> Result<(), GuardError> {
    let (noted, own) = (node.note(GUARD)?, Identity::own()?);
    let Some(guard) = noted.parse::<Identity>().ok().filter(|guard| *guard != own) else {
        return Ok(());
    };
    let Some(process) = guard.open()? else { return Ok(()) };
    if !process.wait(END_WITHIN)? {
        process.signal(Signal::SIGKILL)?;
        process.wait(END_WITHIN)?;
    }
    Ok(())
}

/// How the guard of this process is started, and the one that is there.
#[derive(Debug)]
pub(super) struct Guarded {
    words: Vec<OsString>,
    process: Option<GuardProcess>,
    /// When it was tried last.
    tried: Option<Instant>,
}

impl Guarded {
    /// By a program with its arguments that does as [`serve`] with its standard input and output.
    pub fn by(words: Vec<OsString>) -> Self {
        Self { words, process: None, tried: None }
    }

    /// Sees to it that there is one. Where there is none, that is tried once a minute, and said then.
    pub fn look(&mut self) -> io::Result<()> {
        if self.process.as_mut().is_some_and(GuardProcess::is_there) {
            return Ok(());
        }
        self.process = None;
        if self.tried.is_some_and(|tried| tried.elapsed() < TRY_EVERY) {
            return Ok(());
        }
        self.tried = Some(Instant::now());
        self.process = Some(GuardProcess::start(&self.words)?);
        Ok(())
    }
}

/// A guard of this process. Dropped, there is none any more.
#[derive(Debug)]
struct GuardProcess(Child);

impl GuardProcess {
    /// Returns when it guards.
    fn start(words: &[OsString]) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut process = Command::new(program);
        process.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // An interrupt at the terminal ends what is guarded.
        process.process_group(0);
        let mut started = Self(process.spawn()?);
        match &mut started.0.stdout {
            Some(said) => said.read_exact(&mut [0])?,
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        Ok(started)
    }

    fn is_there(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for GuardProcess {
    fn drop(&mut self) {
        // Who goes on without it has nothing left to set free, or schedules all of it anew.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who guards this node, as others cannot write it.
const GUARD: &CStr = c"trusted.keeptime.guard";
/// The guard of an agent that has ended is done within milliseconds.
const END_WITHIN: Duration = Duration::from_secs(1);
/// What cannot be started is no more than missing: who starts next sets free what stands still.
const TRY_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn by_shell(script: &str) -> Guarded {
        Guarded::by(["sh", "-c", script].map(OsString::from).to_vec())
    }

    fn pid(guarded: &Guarded) -> Option<u32> {
        guarded.process.as_ref().map(|process| process.0.id())
    }

    // Goal: there is one guard while there can be one, and a program that is none is not started again and again. Method:
    // shells in their place: one that says that it is there, and one that ends at once.
    #[test]
    fn there_is_one_guard_and_what_is_none_is_not_tried_again_at_once() {
        let mut guarded = by_shell("echo; read -r end");
        guarded.look().unwrap();
        let first = pid(&guarded);
        guarded.look().unwrap();
        assert!(first.is_some() && pid(&guarded) == first);
        if let Some(process) = &mut guarded.process {
            process.0.kill().unwrap();
            process.0.wait().unwrap();
        }
        guarded.look().unwrap();
        assert_eq!(pid(&guarded), None, "it was tried within the last minute");
        guarded.tried = None;
        guarded.look().unwrap();
        assert!(pid(&guarded).is_some());

        let mut nobody = by_shell("exit 0");
        let error = nobody.look().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        nobody.look().unwrap();
        assert_eq!(pid(&nobody), None);
    }
}
