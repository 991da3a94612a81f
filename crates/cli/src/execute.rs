//! Runs an application once on nodes that were chosen, with what was reserved for it, and tells how
//! long it took.

use crate::cluster::Cluster;
use crate::hold::Hold;
use crate::interrupt;
use anyhow::{Error, Result};
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::process::{Progress, RunError, Said, run_within};
use keeptime_launch::told_time::Told;
use keeptime_model::application::{Application, Parameters, TimeSource};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, NodeChoice, Resources};
use keeptime_model::run_end::RunEnd;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Nanos};
use nix::sys::signal::Signal;
use std::io::{self, Write as _};
use std::iter;
use std::num::NonZeroU8;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use thiserror::Error;

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// What runs.
    pub application: &'a Application,
    /// With which parameters.
    pub parameters: &'a Parameters,
    /// Where, in rank order.
    pub nodes: &'a [NodeIndex],
    /// Reserved for every flow of the pattern; nothing = best-effort, as without Keeptime.
    pub rate: Option<BitsPerSecond>,
}

/// How a run went.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The execution time as the application tells it.
    pub time: Nanos,
    /// From launch to end.
    pub wall: Nanos,
    /// What it printed last.
    pub stdout: Vec<String>,
}

/// The application did not do its part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// It failed, hung or was stopped.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It ended well and did not tell its time.
    #[error("{application} ended without telling its time; expected a line \"{expected}\"")]
    NoTime {
        /// The application.
        application: Name,
        /// What was looked for.
        expected: String,
    },
    /// Its resources were taken away while it ran.
    #[error("the reservation was lost while it ran: {why}")]
    Lost {
        /// What the broker said.
        why: String,
    },
}

/// What `run` needs: its CPU on these nodes, and its rate for each flow.
pub fn resources(cluster: &Cluster, run: &Run<'_>) -> Resources {
    Resources {
        nodes: NodeChoice::Named(cluster.topology().names(run.nodes)),
        cpu_ppm: run.application.cpu(),
        pattern: run.rate.map(|_| run.application.pattern().clone()),
        bits_per_second: run.rate.unwrap_or_default(),
        ..Resources::nothing()
    }
}

/// Reserves what `run` needs.
///
/// # Errors
/// As [`Hold::take`].
pub fn reserve(cluster: &Cluster, run: &Run<'_>) -> Result<Hold> {
    let ask = Ask::Resources(resources(cluster, run));
    Hold::take(cluster, ask, run.application.timeout())
}

/// Shows a user what a program says, each line where it was printed; with `--json` standard output is for that alone.
pub fn pass_on(said: Said<'_>, json: bool) {
    match said {
        Said::Out(line) if !json => println!("  | {line}"),
        // The program goes on where nobody can read that.
        Said::Out(line) | Said::Err(line) => drop(writeln!(io::stderr(), "  | {line}")),
    }
}

/// The error of a run whose output was passed on: what it said last need not be told again.
pub fn heard(error: Error) -> Error {
    match error.downcast() {
        Ok(ExecuteError::Run(RunError::Failed { status, .. })) => {
            ExecuteError::Run(RunError::Failed { status, stderr: Vec::new() }).into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

/// A run on a cluster, and what bounds it.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    /// Where its nodes are.
    pub cluster: &'a Cluster,
    /// What starts it.
    pub mpi: &'a Mpi,
    /// What runs.
    pub run: Run<'a>,
    /// It is ended once this says so.
    pub stopped: &'a dyn Fn() -> bool,
    /// How long it may take, as is known meanwhile; nothing = the application's time limit, which is for a run at full speed.
    pub limit: Option<&'a dyn Fn() -> Nanos>,
}

impl<'a> Execution<'a> {
    /// Of `run`, until this process is told to stop, or the application's time limit.
    pub fn new(cluster: &'a Cluster, mpi: &'a Mpi, run: Run<'a>) -> Self {
        Self { cluster, mpi, run, stopped: &interrupt::stopped, limit: None }
    }

    /// Reserves what it needs, runs it and gives everything back.
    ///
    /// # Errors
    /// As [`reserve`] and [`Self::under`].
    pub fn reserved(&self) -> Result<Ran> {
        let hold = reserve(self.cluster, &self.run)?;
        self.under(&hold, &mut |_| {})
    }

    /// Runs it under `hold`, which learns how it ended. `on_said` sees its output.
    ///
    /// # Errors
    /// [`ExecuteError`], or what kept it from being started.
    pub fn under(&self, hold: &Hold, on_said: &mut dyn FnMut(Said<'_>)) -> Result<Ran> {
        let ran = self.run_under(hold, on_said);
        hold.ran(ran.as_ref().map_or_else(end_of_failed, |_| Some(RunEnd::Done)));
        ran
    }

    fn run_under(&self, hold: &Hold, on_said: &mut dyn FnMut(Said<'_>)) -> Result<Ran> {
        let Self { cluster, mpi, run, .. } = *self;
        let application = run.application;
        let command = application.command(run.parameters)?;
        // What is lost is ended on its nodes: the run may notice before its holder is told.
        let unless_lost = |error: Error| match hold.confirm_lost() {
            Some(why) => ExecuteError::Lost { why }.into(),
            None => error,
        };
        cluster.check_ready(run.nodes, &hold.job(), &command).map_err(unless_lost)?;
        let (line, _remote) = cluster.mpi_line(mpi, run.nodes, Some(&hold.job()), &command)?;
        let ended = || (self.stopped)() || hold.lost().is_some();
        let limit = || self.limit.map_or(application.timeout(), |limit| limit());
        let mut told = Told::nothing(application.time());
        let mut watch = |said: Said<'_>| {
            on_said(said);
            let is_told = matches!(said, Said::Out(line) if told.see(line));
            let within = application.ends_within().filter(|_| is_told);
            within.map_or(Progress::Running, |within| {
                Progress::EndsWithin(Duration::from_nanos(within.get()))
            })
        };
        // What came before the program is not for it: it could not be ready for that.
        while interrupt::to_pass_on().is_some() {}
        let signals = || signal_for(mpi.flavour);
        let outcome = run_within(&line, &limit, &signals, &ended, &mut watch)
            .map_err(|error| unless_lost(ExecuteError::Run(error).into()))?;
        let time = told.time(outcome.wall).ok_or_else(|| {
            let expected = match application.time() {
                TimeSource::Stdout(key) => format!("{key} SECONDS"),
                _ => String::new(),
            };
            ExecuteError::NoTime { application: application.name().clone(), expected }
        })?;
        if let (true, Some(within)) = (outcome.lingered, application.ends_within()) {
            let name = application.name();
            tracing::warn!(
                "{name} had told its time and did not end within {}: it was ended",
                within.rounded()
            );
        }
        Ok(Ran { time, wall: outcome.wall, stdout: outcome.stdout })
    }
}

/// How a run ended that came to `error`; nothing if it was told to stop, or had nothing to run with any more.
fn end_of_failed(error: &Error) -> Option<RunEnd> {
    match error.downcast_ref() {
        Some(ExecuteError::Run(error)) => match error {
            RunError::Stopped => None,
            RunError::TimedOut { .. } => Some(RunEnd::AtLimit),
            RunError::Failed { status, .. } => end_with(*status),
            _ => Some(RunEnd::NotStarted),
        },
        Some(ExecuteError::Lost { .. }) => None,
        Some(ExecuteError::NoTime { .. }) => Some(RunEnd::Untimed),
        None => Some(RunEnd::NotStarted),
    }
}

fn end_with(status: ExitStatus) -> Option<RunEnd> {
    let number = |number: i32| NonZeroU8::new(u8::try_from(number).ok()?);
    let code = status.code().and_then(number).map(RunEnd::ExitCode);
    code.or_else(|| status.signal().and_then(number).map(RunEnd::Signal))
}

/// A user's signal that has come for the program, if its launcher knows what to do with it.
fn signal_for(flavour: Flavour) -> Option<Signal> {
    iter::from_fn(interrupt::to_pass_on).find(|signal| {
        let is_passed_on = flavour.passes_on(*signal);
        if !is_passed_on {
            tracing::warn!(
                "{signal} is dropped: it would end the launcher of {flavour}, which passes on SIGUSR1"
            );
        }
        is_passed_on
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: an end is told as it was, and what was told to stop, or lost what it ran with, as no end of its own. Method: what
    // a run can come to, and statuses as wait(2) tells them.
    #[test]
    fn what_a_run_comes_to_is_how_it_ended() {
        let end = |error: Error| end_of_failed(&error);
        let run = |error: RunError| end(ExecuteError::Run(error).into());
        let number = |number| NonZeroU8::new(number).unwrap();
        let failed = |raw| {
            let status = ExitStatus::from_raw(raw);
            run(RunError::Failed { status, stderr: Vec::new() })
        };
        assert_eq!(failed(3 << 8), Some(RunEnd::ExitCode(number(3))));
        assert_eq!(failed(9), Some(RunEnd::Signal(number(9))));
        let late = RunError::TimedOut { limit: Nanos::from_secs(1), stderr: Vec::new() };
        assert_eq!(run(late), Some(RunEnd::AtLimit));
        assert_eq!(run(RunError::Stopped), None);
        assert_eq!(end(ExecuteError::Lost { why: String::new() }.into()), None);
        let told_nothing = ExecuteError::NoTime {
            application: "solver".parse().unwrap(),
            expected: "time SECONDS".into(),
        };
        assert_eq!(end(told_nothing.into()), Some(RunEnd::Untimed));
        assert_eq!(end(anyhow::anyhow!("no MPI")), Some(RunEnd::NotStarted));
    }
}
