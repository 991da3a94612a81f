//! Measures an application on the cluster until its curves are known, one recorded run at a time.
//!
//! Which run comes next is decided by `keeptime_planner::refine`, or where other numbers of nodes say what to expect by
//! `keeptime_planner::guided`; a run that is recorded is never made again, so an interrupted profile goes on where it was.

use crate::cluster::Cluster;
use crate::execute::{Run, reserve_and_run};
use crate::files;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use keeptime_launch::mpi::Mpi;
use keeptime_model::Invalid;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::profile::{Curve, Profile};
use keeptime_model::topology::Topology;
use keeptime_model::units::BitsPerSecond;
use keeptime_planner::guided::{self, Others};
use keeptime_planner::placement::{Placed, max_rate};
use keeptime_planner::refine::{Grid, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Order {
    /// Combinations of parameters and numbers of nodes: one curve each.
    pub curves: Vec<(Parameters, u32)>,
    /// Where to measure, for each of those numbers: see [`places`].
    pub places: BTreeMap<u32, Placed>,
    /// Bandwidths that a point may have.
    pub grid: Grid,
    /// How much of each curve.
    pub extent: Extent,
}

/// How much of a curve is measured.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// Every bandwidth of the grid, so often.
    Full {
        /// Runs at each.
        samples: u32,
    },
    /// Until it is known well enough.
    Known(Wanted),
}

/// The nodes that hold the most for each flow of `application` now, for each number of nodes.
///
/// # Errors
/// If the broker does not answer, or too few nodes have the CPU.
pub fn places(
    cluster: &Cluster,
    application: &Application,
    numbers: impl IntoIterator<Item = u32>,
) -> Result<BTreeMap<u32, Placed>> {
    let free = cluster.availability()?;
    let (pattern, cpu) = (application.pattern(), application.cpu());
    let place = |nodes| {
        let placed = max_rate(cluster.topology(), &free, pattern, nodes, cpu);
        placed.map(|placed| (nodes, placed)).with_context(|| {
            format!("{nodes} nodes with {cpu} of a CPU free are needed, and there are fewer")
        })
    };
    numbers.into_iter().map(place).collect()
}

impl Order {
    /// Checks that every bandwidth can be held where it is to be measured.
    ///
    /// # Errors
    /// The first bandwidth that is too much, and what would be accepted.
    pub fn check(&self, topology: &Topology) -> Result<(), Invalid> {
        for placed in self.places.values() {
            let too_much = self.grid.bandwidths().iter().find(|b| **b > placed.rate);
            if let (Some(bandwidth), Some(bottleneck)) = (too_much, &placed.bottleneck) {
                let expected = format!(
                    "at most {} for each flow: {} ranks send {} flows over {}",
                    placed.rate,
                    placed.nodes.len(),
                    bottleneck.flows,
                    topology.direction_name(bottleneck.direction),
                );
                return Err(Invalid::new("bandwidths", bandwidth, expected));
            }
        }
        Ok(())
    }
}

impl Extent {
    /// How often a bandwidth is measured at the most.
    fn samples(self) -> usize {
        match self {
            Self::Full { samples } | Self::Known(Wanted { samples, .. }) => samples as usize,
        }
    }

    /// How many runs a curve on this grid takes at the most.
    fn runs(self, grid: &Grid) -> usize {
        let all = grid.bandwidths().len() * self.samples();
        match self {
            Self::Full { .. } => all,
            Self::Known(wanted) => wanted.runs.min(all),
        }
    }
}

/// How many runs it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    let full_grid = order.curves.len() * order.grid.bandwidths().len() * order.extent.samples();
    let most = order.curves.len() * order.extent.runs(&order.grid);
    let bar = progress_bar(most, profile.run_count());
    for (number, (parameters, nodes)) in order.curves.iter().enumerate() {
        while let Some(bandwidth) = next_run(application, order, profile, parameters, *nodes) {
            anyhow::ensure!(!stopped(), "interrupted");
            bar.set_message(describe(parameters, *nodes, bandwidth));
            let place = order.places.get(nodes).context("an order without a place")?;
            let run = Run { application, parameters, nodes: &place.nodes, rate: Some(bandwidth) };
            let ran = reserve_and_run(cluster, mpi, &run, stopped).with_context(|| {
                format!("while measuring {}", describe(parameters, *nodes, bandwidth))
            })?;
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
fn next_run(
    application: &Application,
    order: &Order,
    profile: &Profile,
    parameters: &Parameters,
    nodes: u32,
) -> Option<BitsPerSecond> {
    let unknown = Curve { parameters: parameters.clone(), nodes, points: Vec::new() };
    let curve = profile.curve(parameters, nodes).unwrap_or(&unknown);
    let samples = order.extent.samples();
    match (order.extent, nodes) {
        (_, 1) => {
            let top = *order.grid.bandwidths().last()?;
            let done: usize = curve.points.iter().map(|p| p.samples_nanos.len()).sum();
            (done < samples).then_some(top)
        }
        (Extent::Full { .. }, _) => {
            let done = |bandwidth: &BitsPerSecond| {
                let points = curve.points.iter();
                let point = points.filter(|p| p.bandwidth_bits_per_second == *bandwidth);
                point.map(|p| p.samples_nanos.len()).sum::<usize>()
            };
            // Rounds over all bandwidths, so that a drift of the machine touches every point alike.
            let least = order.grid.bandwidths().iter().min_by_key(|b| done(b))?;
            (done(least) < samples).then_some(*least)
        }
        (Extent::Known(wanted), _) => {
            let others = Others::of(application.pattern(), profile, parameters, nodes);
            guided::next(&order.grid, curve, &wanted, &others)
        }
    }
}

fn describe(parameters: &Parameters, nodes: u32, bandwidth: BitsPerSecond) -> String {
    let parameters: Vec<_> = parameters.iter().map(|(n, v)| format!("{n} {v}")).collect();
    format!("{}, {nodes} nodes, {bandwidth}", parameters.join(", "))
}

fn progress_bar(most: usize, done: usize) -> ProgressBar {
    let bar = ProgressBar::new(most as u64).with_position(done as u64);
    let template = "{elapsed_precise} {wide_bar} {pos} runs of at most {len}  {msg}";
    // The template is a constant; were it wrong, the default style would do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
