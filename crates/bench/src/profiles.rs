//! Profiles that a benchmark needs before it can ask for anything: measured once, kept beside its results, and
//! gone on with when it is repeated.

use crate::lab::BenchLab;
use anyhow::Result;
use keeptime::commands::Session;
use keeptime::demo::extract_surface;
use keeptime::profiler::{Extent, Order, measure, places};
use keeptime::{files, interrupt};
use keeptime_model::application::Parameters;
use keeptime_model::goal::parse_setting;
use keeptime_model::profile::Profile;
use keeptime_model::units::Share;
use keeptime_planner::refine::{self, Grid};
use std::path::Path;

/// Times of a curve are known to so much of themselves, where its grid has runs enough.
const PRECISION: Share = Share::from_percent(3).expect("at most 100");

/// What is to be known of an application.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Parameters, as they are given to `--set`.
    pub settings: &'a [&'a [&'a str]],
    /// On so many nodes each.
    pub nodes: &'a [u32],
    /// At these bandwidths.
    pub grid: Grid,
    /// How often each point is measured at the most.
    pub samples: u32,
}

/// Measures what the profile of `session` does not have yet, beside the load that is there already: network
/// work of others slows computations too.
pub fn measure_under_load(session: &Session, wanted: &Wanted<'_>) -> Result<Profile> {
    measure_missing(session, wanted, true)
}

/// The same with nobody else there.
pub fn measure_alone(session: &Session, wanted: &Wanted<'_>) -> Result<Profile> {
    measure_missing(session, wanted, false)
}

fn measure_missing(session: &Session, wanted: &Wanted<'_>, under_load: bool) -> Result<Profile> {
    let combinations = wanted.settings.iter().map(|set| parameters(set));
    let combinations = combinations.collect::<Result<Vec<_>>>()?;
    let curves = |n: &u32| combinations.iter().map(|p| (p.clone(), *n)).collect::<Vec<_>>();
    let curves = wanted.nodes.iter().flat_map(curves).collect();
    let grid = wanted.grid.clone();
    let mut profile = gone_on_with(session, &grid, under_load)?;
    let Session { cluster, mpi, application, profile_path, .. } = session;
    let places = places(cluster, application, wanted.nodes.iter().copied())?;
    // What promises are tried with is known better than usual, if it takes all of the grid.
    let runs = grid.bandwidths().len() * wanted.samples as usize;
    let precision = PRECISION;
    let known = refine::Wanted { precision, samples: wanted.samples, runs };
    let order = Order { curves, places, grid, extent: Extent::Known(known) };
    let stopped = &interrupt::stopped;
    measure(cluster, mpi, application, &order, &mut profile, profile_path, stopped)?;
    Ok(profile)
}

/// Makes the input of `render` if it is not there. Nodes see no directory but this checkout, so OUT
/// must be inside of it.
pub fn make_surface(lab: &BenchLab, out: &Path) -> Result<()> {
    if !out.join("surface.ply").exists() {
        eprintln!("extracting the surface");
        std::fs::create_dir_all(out)?;
        extract_surface(&lab.session("render", &out.join("surface-profile.json"))?, out)?;
    }
    Ok(())
}

/// As they are given to `--set`.
pub fn parameters(set: &[&str]) -> Result<Parameters> {
    Ok(set.iter().map(|text| parse_setting(text)).collect::<Result<_, _>>()?)
}

/// The profile to go on with, if there is one that was measured under these conditions; or an empty one.
pub fn gone_on_with(session: &Session, grid: &Grid, under_load: bool) -> Result<Profile> {
    let path = session.profile_path.display();
    let here = session.cluster.conditions(&session.application, &session.mpi.to_string());
    if session.profile_path.exists() {
        let profile = files::load_profile(&session.profile_path)?;
        let same_grid = profile.bandwidth_grid_bits_per_second == grid.bandwidths();
        if same_grid
            && profile.under_load == under_load
            && profile.conditions.differences(&here).is_empty()
        {
            eprintln!("going on with {path} ({} runs)", profile.run_count());
            return Ok(profile);
        }
        eprintln!("{path} was measured under other conditions: measuring anew");
    } else {
        eprintln!("measuring {path}");
    }
    let name = session.application.name().clone();
    let empty = Profile::empty(name, here, grid.bandwidths().to_vec());
    Ok(Profile { under_load, ..empty })
}
