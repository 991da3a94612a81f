//! The same requests on a cluster that is not there (`whatif::goals`), with the curves that were measured: to be
//! compared with the lab, and for more nodes than the lab has.

use super::arms::{Arm, Measured, Outcome};
use super::tasks::{Load, SubTask};
use super::{CPU, Experiment, LINK, NODES, lab_name};
use crate::figures::quantile;
use anyhow::Result;
use keeptime_lab::Spec;
use keeptime_linux::egress::{self, Link};
use keeptime_model::units::Nanos;
use keeptime_whatif::goals::{Asked, Curves, Fate, Speed, World, reserved, unreserved};
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

/// What the lab had, and the simulation has, for the same requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Check {
    /// Requests.
    pub decisions: usize,
    /// Those that were admitted by both or refused by both.
    pub same: usize,
    /// By how much run times are off with Keeptime, in percent of the lab's; of those that both admitted.
    pub with_percent: Vec<f64>,
    /// The same without, of all that ended.
    pub without_percent: Vec<f64>,
}

/// On `nodes` nodes, with what was measured in the lab of launching and ending.
pub fn simulate(
    measured: &Measured,
    load: Load,
    nodes: u32,
    requests: &[SubTask],
    beside: Nanos,
) -> Result<Simulation> {
    let world = World {
        topology: Spec::star(lab_name()?, nodes, LINK, CPU)?.topology().clone(),
        reservable: |rate| egress::reservable(&Link::new("", rate)),
        known: vec![Curves {
            application: measured.application.clone(),
            profile: measured.profile.clone(),
            alone: Some(measured.alone.clone()),
        }],
    };
    let asked = |request: &SubTask| -> Result<Asked> {
        Ok(Asked {
            at: request.at_nanos,
            application: measured.application.name().clone(),
            goal: measured.goal(request)?.goal()?,
            units: measured.drawing(request).drawn(),
            beside,
        })
    };
    let asked = requests.iter().map(asked).collect::<Result<Vec<_>>>()?;
    let with = reserved(&world, &asked, Speed::Spare)?.into_iter().map(outcome).collect();
    let without = unreserved(&world, &asked)?.into_iter().map(outcome).collect();
    Ok(Simulation { load, nodes, with, without })
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

/// What runs of a renderer took beside their frames, at the median; nothing without runs.
pub fn beside_frames(measured: &Measured, experiments: &[Experiment]) -> Option<Nanos> {
    let own = experiments.iter().filter(|e| e.load.renderer == measured.renderer);
    let of = |(request, outcome): (&SubTask, &Outcome)| {
        let frames = measured.drawing(request).drawn();
        Some(outcome.wall_seconds? - outcome.seconds? * f64::from(frames))
    };
    let all =
        own.flat_map(|e| e.requests.iter().zip(&e.arm(Arm::Keeptime).outcomes).filter_map(of));
    Nanos::from_secs_f64(quantile(&all.collect::<Vec<_>>(), 0.5).max(0.0))
}

/// Compares a simulation of the lab's own nodes with what happened there.
pub fn compare(check: &mut Check, simulation: &Simulation, lab: &Experiment) {
    debug_assert_eq!(simulation.nodes, NODES);
    let pairs = |simulated: &[Outcome], arm: Arm| {
        let real = lab.arm(arm).outcomes.clone();
        simulated.iter().cloned().zip(real).collect::<Vec<_>>()
    };
    let off = |(simulated, real): &(Outcome, Outcome)| {
        Some(100.0 * (simulated.seconds? / real.seconds? - 1.0).abs())
    };
    let with = pairs(&simulation.with, Arm::Keeptime);
    check.decisions += with.len();
    check.same += with.iter().filter(|(s, r)| s.is_admitted() == r.is_admitted()).count();
    check.with_percent.extend(with.iter().filter_map(off));
    check.without_percent.extend(pairs(&simulation.without, Arm::Without).iter().filter_map(off));
}
