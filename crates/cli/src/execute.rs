//! Runs an application once on nodes that were chosen, with what was reserved for it, and tells how
//! long it took.

use crate::cluster::Cluster;
use crate::hold::Hold;
use crate::interrupt;
use anyhow::Result;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::process::{Progress, RunError, run_within};
use keeptime_launch::told_time::told_time;
use keeptime_model::application::{Application, Parameters, TimeSource};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, NodeChoice, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Nanos};
use nix::sys::signal::Signal;
use std::iter;
use thiserror::Error;

/// One run.
#[derive(Debug, Clone)]
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

/// Reserves what `run` needs, runs it and gives everything back.
///
/// # Errors
/// As [`reserve`] and [`execute`].
pub fn reserve_and_run(
    cluster: &Cluster,
    mpi: &Mpi,
    run: &Run<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<Ran> {
    let hold = reserve(cluster, run)?;
    execute(cluster, mpi, run, &hold, stopped, &mut |_| {})
}

/// Runs under `hold`, bounded by the application's time limit. `on_line` sees its output.
///
/// # Errors
/// [`ExecuteError`], or what kept it from being started.
pub fn execute(
    cluster: &Cluster,
    mpi: &Mpi,
    run: &Run<'_>,
    hold: &Hold,
    stopped: &dyn Fn() -> bool,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ran> {
    let limit = run.application.timeout();
    execute_within(&|| limit, cluster, mpi, run, hold, stopped, on_line)
}

/// The same, bounded by what `limit` says meanwhile: that of the application is for a run at full speed.
///
/// # Errors
/// As [`execute`].
pub fn execute_within(
    limit: &dyn Fn() -> Nanos,
    cluster: &Cluster,
    mpi: &Mpi,
    run: &Run<'_>,
    hold: &Hold,
    stopped: &dyn Fn() -> bool,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ran> {
    let application = run.application;
    let command = application.command(run.parameters)?;
    let ready = cluster.check_ready(run.nodes, &hold.job(), &command);
    ready.map_err(|error| match hold.confirm_lost() {
        Some(why) => ExecuteError::Lost { why }.into(),
        None => error,
    })?;
    let (line, _remote) = cluster.mpi_line(mpi, run.nodes, Some(&hold.job()), &command)?;
    let ended = || stopped() || hold.lost().is_some();
    let mut told = Told::nothing(application.time());
    let mut watch = |text: &str| {
        on_line(text);
        told.see(text)
    };
    // What is lost is ended on its nodes: the run may notice before its holder is told.
    let failed = |error| match hold.confirm_lost() {
        Some(why) => ExecuteError::Lost { why },
        None => ExecuteError::Run(error),
    };
    // What came before the program is not for it: it could not be ready for that.
    while interrupt::to_pass_on().is_some() {}
    let signals = || signal_for(mpi.flavour);
    let outcome = run_within(&line, limit, &signals, &ended, &mut watch).map_err(failed)?;
    let time = told.time(outcome.wall).ok_or_else(|| {
        let expected = match application.time() {
            TimeSource::Stdout(key) => format!("{key} SECONDS"),
            _ => String::new(),
        };
        ExecuteError::NoTime { application: application.name().clone(), expected }
    })?;
    Ok(Ran { time, wall: outcome.wall, stdout: outcome.stdout })
}

/// The time that an application tells, read as its lines pass: of those only the last are kept.
struct Told<'a> {
    source: &'a TimeSource,
    last: Option<Nanos>,
}

impl<'a> Told<'a> {
    fn nothing(source: &'a TimeSource) -> Self {
        Self { source, last: None }
    }

    fn see(&mut self, line: &str) -> Progress {
        // What takes the time of the whole run is not told by any line.
        let told = told_time(self.source, [line], Nanos::default());
        match told.filter(|time| *time > Nanos::default()) {
            Some(time) => {
                self.last = Some(time);
                Progress::Told
            }
            None => Progress::Running,
        }
    }

    /// That of a run which took `wall`; nothing if it should have been told and was not.
    fn time(&self, wall: Nanos) -> Option<Nanos> {
        self.last.or_else(|| told_time(self.source, [], wall))
    }
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
    use keeptime_launch::process::run;

    const WALL: Nanos = Nanos::from_secs(9);

    // Goal: a time counts however much is printed after it. Method: a program that prints more lines than are kept.
    #[test]
    fn a_time_is_not_lost_behind_what_is_printed_after_it() {
        let command = ["sh", "-c", "echo time 5.25; seq 5000"].map(String::from);
        let source = TimeSource::Stdout("time".into());
        let mut told = Told::nothing(&source);
        let limit = Nanos::from_secs(60);
        let outcome = run(&command, limit, &|| false, &mut |line| told.see(line)).unwrap();
        assert!(!outcome.stdout.iter().any(|line| line.starts_with("time")));
        assert_eq!(told.time(outcome.wall), Some(Nanos::from_millis(5_250)));
    }

    #[test]
    fn the_last_time_that_is_told_counts_and_a_run_that_has_to_tell_none_took_its_own() {
        let seen = |source: &TimeSource, lines: &[&str]| {
            let mut told = Told::nothing(source);
            let progress: Vec<_> = lines.iter().map(|line| told.see(line)).collect();
            (progress, told.time(WALL))
        };
        let source = TimeSource::Stdout("time".into());
        let (progress, time) = seen(&source, &["time 1", "time 0.5", "more"]);
        assert_eq!(progress, [Progress::Told, Progress::Told, Progress::Running]);
        assert_eq!(time, Some(Nanos::from_millis(500)));
        assert_eq!(seen(&source, &["more"]).1, None);
        assert_eq!(seen(&TimeSource::Wall, &["time 1"]), (vec![Progress::Running], Some(WALL)));
    }
}
