//! The same requests on a cluster that is not there (`whatif::goals`), with the curves that were measured: to be
//! held against the lab (`comparison`), and for more nodes than the lab has.

use super::arms::{Measured, Outcome};
use super::tasks::{Load, SubTask};
use super::{CPU, LINK, NODES, lab_name};
use anyhow::Result;
use keeptime_lab::Spec;
use keeptime_linux::egress::{self, Link};
use keeptime_model::units::Nanos;
use keeptime_whatif::goals::{Asked, Curves, Fate, Speed, World, decided, reserved, unreserved};
use serde::Serialize;

/// What would become of a load.
#[derive(Debug, Clone, Serialize)]
pub struct Simulation {
    /// Which.
    pub load: Load,
    /// On so many nodes, with as many requests for each node as in the lab.
    pub nodes: u32,
    /// With Keeptime.
    pub with: Vec<Outcome>,
    /// Without.
    pub without: Vec<Outcome>,
}

/// On `nodes` nodes, where each request takes what `beside` has for it to be launched and to end.
pub fn simulate(
    measured: &Measured,
    load: Load,
    nodes: u32,
    requests: &[SubTask],
    beside: &[Nanos],
) -> Result<Simulation> {
    let world = world(measured, nodes)?;
    let asked =
        requests.iter().zip(beside).map(|(request, beside)| ask(measured, request, *beside));
    let asked = asked.collect::<Result<Vec<_>>>()?;
    let with = reserved(&world, &asked, Speed::Spare)?.into_iter().map(outcome).collect();
    let without = unreserved(&world, &asked)?.into_iter().map(outcome).collect();
    Ok(Simulation { load, nodes, with, without })
}

/// What is decided of each request on the lab's own nodes, given until when each held what it had there.
pub fn decide(
    measured: &Measured,
    requests: &[SubTask],
    held_until: &[Option<Nanos>],
) -> Result<Vec<Fate>> {
    let asked = requests.iter().map(|request| ask(measured, request, Nanos::default()));
    let asked = asked.collect::<Result<Vec<_>>>()?;
    Ok(decided(&world(measured, NODES)?, &asked, held_until)?)
}

fn world(measured: &Measured, nodes: u32) -> Result<World> {
    Ok(World {
        topology: Spec::star(lab_name()?, nodes, LINK, CPU)?.topology().clone(),
        reservable: |rate| egress::reservable(&Link::new("", rate)),
        known: vec![Curves {
            application: measured.application.clone(),
            profile: measured.profile.clone(),
            alone: Some(measured.alone.clone()),
        }],
    })
}

fn ask(measured: &Measured, request: &SubTask, beside: Nanos) -> Result<Asked> {
    Ok(Asked {
        at: request.at_nanos,
        application: measured.application.name().clone(),
        goal: measured.goal(request)?.goal()?,
        units: measured.drawing(request).drawn(),
        beside,
    })
}

fn outcome(fate: Fate) -> Outcome {
    let seconds = |time: Option<Nanos>| time.map(Nanos::as_secs_f64);
    Outcome {
        refused: fate.unit.is_none().then(|| "refused".into()),
        promised_seconds: seconds(fate.promised),
        expected_seconds: seconds(fate.expected),
        seconds: seconds(fate.unit),
        ..Outcome::default()
    }
}
