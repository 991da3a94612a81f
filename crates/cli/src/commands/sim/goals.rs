//! `keeptime sim goals`: what users who ask for goals of measured applications would have of a cluster.

use super::policies::each_once;
use super::{Results, percent, place, spread, topology};
use crate::arguments::{SimGoalsArguments, SimulatedCluster, WantedUnit};
use crate::columns::{Side, aligned};
use crate::commands::{Ending, print_json};
use crate::{files, requests};
use anyhow::{Context, Result};
use keeptime_launch::mpi::Flavour;
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::units::{Nanos, text};
use keeptime_whatif::goals::{Curves, World};
use keeptime_whatif::shape;
use keeptime_whatif::users::{self, Coming, Had, Wish};
use serde::Serialize;

/// All that the same summaries come of again, beside the profiles.
#[derive(Debug, Serialize)]
struct Header<'a> {
    version: &'static str,
    #[serde(serialize_with = "text::serialize")]
    topology: &'a SimulatedCluster,
    applications: Vec<String>,
    requests: usize,
    #[serde(serialize_with = "text::serialize")]
    every: Nanos,
    units: u32,
    #[serde(serialize_with = "text::serialize")]
    wait: Nanos,
    prefer: Preference,
    seed: u64,
}

/// Simulates what was asked for under each policy and prints what came of it.
pub(super) fn run(arguments: &SimGoalsArguments) -> Result<Ending> {
    let topology = shape::addressed(topology(&arguments.topology)?);
    // What one exchanges at the most where all share is by the slowest link.
    shape::flow_of_each(&topology).map_err(|invalid| place(invalid, &arguments.topology))?;
    let mut known: Vec<Curves> = Vec::new();
    let mut wishes = Vec::new();
    for wanted in &arguments.wanted {
        let (curves, wish) = wished(wanted, arguments)?;
        if !known.iter().any(|other| other.application.name() == curves.application.name()) {
            known.push(curves);
        }
        wishes.push(wish);
    }
    let world = World { topology, reservable: shape::reservable, known, slowness: 1.0 };
    let SimGoalsArguments { requests, every, units, wait, seed, .. } = *arguments;
    let asked = users::asked(&wishes, &Coming { requests, every, units, wait, seed })?;
    let mut summaries = Vec::new();
    for policy in each_once(&arguments.policy) {
        let had = users::had(&world, &asked, policy).map_err(requests::as_typed)?;
        // Told at once: the next may be interrupted.
        eprintln!("{policy} has ended: in time {}", percent(had.in_time_percent));
        summaries.push(had);
    }
    if arguments.json {
        print_json(&Results { header: Header::of(arguments), log: None, summaries: &summaries })?;
    } else {
        print!("{}", table(&summaries));
    }
    Ok(Ending::Done)
}

/// One application with its profile, and what is wanted of it.
fn wished(wanted: &WantedUnit, arguments: &SimGoalsArguments) -> Result<(Curves, Wish)> {
    // Commands are not run: which MPI they are for does not matter.
    let application = files::load_application(&wanted.application, Flavour::OpenMpi)?;
    let name = application.name().clone();
    let profile = files::load_profile(&arguments.profiles.join(format!("{name}.json")))?;
    let goal = Goal { prefer: arguments.prefer, ..Goal::default() };
    let within = wanted.within;
    Goal { within: Some(within), ..goal.clone() }
        .check(&application)
        .with_context(|| format!("in {wanted}"))?;
    let wish = Wish { application: name, within, goal };
    Ok((Curves { application, profile, alone: None, launching: 0.0 }, wish))
}

impl<'a> Header<'a> {
    fn of(arguments: &'a SimGoalsArguments) -> Self {
        let SimGoalsArguments { topology, wanted, .. } = arguments;
        let SimGoalsArguments { requests, every, units, wait, prefer, seed, .. } = *arguments;
        let version = env!("CARGO_PKG_VERSION");
        let applications = wanted.iter().map(ToString::to_string).collect();
        Self { version, topology, applications, requests, every, units, wait, prefer, seed }
    }
}

/// A line for each policy.
fn table(summaries: &[Had]) -> String {
    let row = |had: &Had| {
        vec![
            had.policy.to_string(),
            had.requests.to_string(),
            percent(had.admitted_percent),
            percent(had.in_time_percent),
            spread(had.wait_seconds),
            spread(had.time_of_wanted),
        ]
    };
    let rows: Vec<_> = std::iter::once(COLUMNS.map(str::to_owned).to_vec())
        .chain(summaries.iter().map(row))
        .collect();
    let mut sides = [Side::Right; COLUMNS.len()];
    sides[0] = Side::Left;
    format!("{}{NOTE}\n", aligned(&rows, &sides))
}

const COLUMNS: [&str; 6] = ["", "requests", "admitted", "in time", "wait, s", "time / wanted"];
const NOTE: &str = "wait, and time of a unit over what was wanted: median / p95 / most";
