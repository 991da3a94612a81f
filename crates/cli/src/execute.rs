//! Runs an application once on nodes that were chosen, with what was reserved for it, and tells how
//! long it took.

use crate::cluster::Cluster;
use crate::hold::{Hold, Need};
use anyhow::Result;
use keeptime_launch::mpi::{Launch, Mpi};
use keeptime_launch::process::{Progress, RunError, run};
use keeptime_launch::told_time::told_time;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::assignment::{AssignedFlow, TrafficClass};
use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Nanos};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use thiserror::Error;

/// Rate named for what a job says beside its pattern (start-up, barriers); it shares the node's
/// control class, so the number only has to be positive.
const CONTROL_RATE: BitsPerSecond = BitsPerSecond::from_mbit(1);

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
        /// What the agent said.
        why: String,
    },
}

/// What `run` needs on each of its nodes.
pub fn needs(cluster: &Cluster, run: &Run<'_>) -> Result<BTreeMap<NodeIndex, Need>> {
    let cpu = run.application.cpu();
    let mut needs: BTreeMap<_, _> =
        run.nodes.iter().map(|node| (*node, Need { cpu, flows: Vec::new() })).collect();
    let Some(rate) = run.rate else { return Ok(needs) };
    let flow = |destination, bits_per_second, class| AssignedFlow {
        destination,
        bits_per_second,
        burst_bytes: None,
        class,
    };
    for rank_flow in run.application.pattern().flows(run.nodes.len() as u32)? {
        let destination = cluster.address(run.nodes[rank_flow.to as usize])?;
        if let Some(need) = needs.get_mut(&run.nodes[rank_flow.from as usize]) {
            need.flows.push(flow(destination, rate, TrafficClass::Premium));
        }
    }
    for need in needs.values_mut() {
        need.flows.push(flow(Ipv4Addr::UNSPECIFIED, CONTROL_RATE, TrafficClass::LowLatency));
    }
    Ok(needs)
}

/// Takes what `run` needs as a job of its own, runs it and gives everything back. `purpose` begins
/// the job's name.
///
/// # Errors
/// As [`Hold::take`] and [`execute`].
pub fn reserve_and_run(
    cluster: &Cluster,
    mpi: &Mpi,
    run: &Run<'_>,
    purpose: &str,
    stopped: &dyn Fn() -> bool,
) -> Result<Ran> {
    let hold = Hold::take(cluster, &job_name(purpose)?, &needs(cluster, run)?)?;
    execute(cluster, mpi, run, &hold, stopped, &mut |_| {})
}

/// A job name that no other command on this machine uses now.
///
/// # Errors
/// If `purpose` is not the beginning of a name.
pub fn job_name(purpose: &str) -> Result<Name> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{purpose}-{}-{number}", std::process::id()).parse()?)
}

/// Runs under `hold`, bounded by the application's time limit. `on_line` sees its output.
///
/// # Errors
/// [`ExecuteError`], or what kept it from being started.
pub fn execute(
    cluster: &Cluster,
    mpi: &Mpi,
    run_spec: &Run<'_>,
    hold: &Hold,
    stopped: &dyn Fn() -> bool,
    on_line: &mut dyn FnMut(&str),
) -> Result<Ran> {
    let application = run_spec.application;
    let command = application.command(run_spec.parameters)?;
    let hosts = run_spec.nodes.iter().map(|node| Ok(cluster.address(*node)?.to_string()));
    let hosts: Vec<_> = hosts.collect::<Result<_>>()?;
    let remote = cluster.remote_launcher(hold.job())?;
    let launch = Launch { hosts: &hosts, remote: remote.path(), network: cluster.launch_network() };
    let line = mpi.command_line(&launch, &command);
    let line = cluster.front_end_line(&line)?;
    let ended = || stopped() || hold.lost().is_some();
    let mut watch = |text: &str| {
        on_line(text);
        match told_time(application.time(), [text], Nanos::default()) {
            Some(time) if time > Nanos::default() => Progress::Told,
            _ => Progress::Running,
        }
    };
    let outcome = match (run(&line, application.timeout(), &ended, &mut watch), hold.lost()) {
        (Err(RunError::Stopped), Some(why)) => return Err(ExecuteError::Lost { why }.into()),
        (outcome, _) => outcome.map_err(ExecuteError::Run)?,
    };
    let lines = outcome.stdout.iter().map(String::as_str);
    let time = told_time(application.time(), lines, outcome.wall).ok_or_else(|| {
        let expected = match application.time() {
            keeptime_model::application::TimeSource::Stdout(key) => format!("{key} SECONDS"),
            _ => String::new(),
        };
        ExecuteError::NoTime { application: application.name().clone(), expected }
    })?;
    Ok(Ran { time, wall: outcome.wall, stdout: outcome.stdout })
}
