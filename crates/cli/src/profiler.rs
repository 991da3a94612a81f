//! Measures an application on the cluster until its curves are known, one recorded run at a time.
//!
//! Which run comes next is decided by `keeptime_planner::refine`; a run that is recorded is never
//! made again, so an interrupted profile goes on where it was.

use crate::cluster::Cluster;
use crate::execute::{Run, execute, needs};
use crate::files;
use crate::hold::Hold;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_launch::mpi::Mpi;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::BitsPerSecond;
use keeptime_planner::refine::{self, Grid};
use serde::Serialize;
use std::path::Path;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Order {
    /// Combinations of parameters and numbers of nodes: one curve each.
    pub curves: Vec<(Parameters, u32)>,
    /// Bandwidths that a point may have, and how often each is measured.
    pub grid: Grid,
    /// Measure every point of the grid instead of as few as the curves need.
    pub full: bool,
}

/// How many runs it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Effort {
    /// Runs in the profile.
    pub runs: usize,
    /// Runs that the full grid has.
    pub full_grid: usize,
}

/// Runs whatever `order` still lacks in `profile`, saving to `path` after every run. `stopped` ends
/// it between two runs or in the middle of one.
pub fn measure(
    cluster: &Cluster,
    mpi: &Mpi,
    application: &Application,
    order: &Order,
    profile: &mut Profile,
    path: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Effort> {
    let full_grid = order.curves.len() * order.grid.bandwidths().len() * order.grid.samples();
    let bar = progress_bar(full_grid, profile.run_count());
    for (number, (parameters, nodes)) in order.curves.iter().enumerate() {
        while let Some(bandwidth) = next_run(order, profile, parameters, *nodes) {
            anyhow::ensure!(!stopped(), "interrupted; the same command goes on from here");
            bar.set_message(describe(parameters, *nodes, bandwidth));
            let indices: Vec<_> = (0..*nodes).map(NodeIndex).collect();
            let run =
                Run { application, parameters, nodes: &indices, rate: (*nodes > 1).then_some(bandwidth) };
            let job: Name = format!("profile-{}", std::process::id()).parse()?;
            let hold = Hold::take(cluster, &job, &needs(cluster, &run)?)?;
            let ran = execute(cluster, mpi, &run, &hold, stopped, &mut |_| {})
                .with_context(|| format!("while measuring {}", describe(parameters, *nodes, bandwidth)))?;
            drop(hold);
            profile.record(parameters, *nodes, bandwidth, ran.time);
            files::save_json(path, profile)?;
            bar.inc(1);
        }
        tracing::debug!("curve {} of {} is known", number + 1, order.curves.len());
    }
    bar.finish_and_clear();
    Ok(Effort { runs: profile.run_count(), full_grid })
}

/// The bandwidth of the next run of a curve. A single node has no flows: one point is its curve.
fn next_run(order: &Order, profile: &Profile, parameters: &Parameters, nodes: u32) -> Option<BitsPerSecond> {
    let curve = profile.curve(parameters, nodes);
    match (order.full, nodes) {
        (_, 1) => {
            let top = *order.grid.bandwidths().last()?;
            let done = curve.map_or(0, |c| c.points.iter().map(|p| p.samples_nanos.len()).sum());
            (done < order.grid.samples()).then_some(top)
        }
        (true, _) => {
            let done = |bandwidth: &BitsPerSecond| {
                let points = curve.into_iter().flat_map(|c| &c.points);
                points
                    .filter(|p| p.bandwidth_bits_per_second == *bandwidth)
                    .map(|p| p.samples_nanos.len())
                    .sum::<usize>()
            };
            // Rounds over all bandwidths, so that a drift of the machine touches every point alike.
            let least = order.grid.bandwidths().iter().min_by_key(|b| done(b))?;
            (done(least) < order.grid.samples()).then_some(*least)
        }
        (false, _) => refine::next(&order.grid, curve),
    }
}

fn describe(parameters: &Parameters, nodes: u32, bandwidth: BitsPerSecond) -> String {
    let parameters: Vec<_> = parameters.iter().map(|(n, v)| format!("{n} {v}")).collect();
    format!("{}, {nodes} nodes, {bandwidth}", parameters.join(", "))
}

fn progress_bar(full_grid: usize, done: usize) -> ProgressBar {
    let bar = ProgressBar::new(full_grid as u64).with_position(done as u64);
    let template = "{elapsed_precise} {wide_bar} {pos} runs of at most {len}  {msg}";
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
