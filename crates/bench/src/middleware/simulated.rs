//! The same requests on a cluster that is not there (`whatif::goals`), with the curves that were measured: to be
//! held against the lab (`comparison`), and for more nodes than the lab has.

use super::arms::{Measured, Outcome};
use super::tasks::{Load, SubTask};
use super::{CPU, Experiment, LINK, NODES, lab_name};
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

/// Who asks, and on what cluster.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// For what.
    pub measured: &'a Measured,
    /// How often.
    pub load: Load,
    /// How many nodes there are.
    pub nodes: u32,
    /// So long each request may wait for room.
    pub wait: Nanos,
    /// How long a frame takes, in parts of what was measured. Promises know nothing of it.
    pub slowness: f64,
}

impl<'a> Case<'a> {
    /// As in the lab, on a machine that is as fast as when curves were measured.
    pub fn of(measured: &'a Measured, lab: &Experiment) -> Self {
        let Experiment { load, wait_nanos, .. } = *lab;
        Self { measured, load, nodes: NODES, wait: wait_nanos, slowness: 1.0 }
    }

    /// What becomes of requests that take what `beside` has for each to be launched and to end.
    pub fn simulate(&self, requests: &[SubTask], beside: &[Nanos]) -> Result<Simulation> {
        let world = self.world()?;
        let asked = requests.iter().zip(beside).map(|(request, beside)| self.ask(request, *beside));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let with = reserved(&world, &asked, Speed::Spare)?.into_iter().map(outcome).collect();
        let without = unreserved(&world, &asked)?.into_iter().map(outcome).collect();
        Ok(Simulation { load: self.load, nodes: self.nodes, with, without })
    }

    /// What is decided of each request, given until when each held what it had in the lab.
    pub fn decide(&self, requests: &[SubTask], held_until: &[Option<Nanos>]) -> Result<Vec<Fate>> {
        let asked = requests.iter().map(|request| self.ask(request, Nanos::default()));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        Ok(decided(&self.world()?, &asked, held_until)?)
    }

    fn world(&self) -> Result<World> {
        let measured = self.measured;
        Ok(World {
            topology: Spec::star(lab_name()?, self.nodes, LINK, CPU)?.topology().clone(),
            reservable: |rate| egress::reservable(&Link::new("", rate)),
            known: vec![Curves {
                application: measured.application.clone(),
                profile: measured.profile.clone(),
                alone: Some(measured.alone.clone()),
            }],
            slowness: self.slowness,
        })
    }

    fn ask(&self, request: &SubTask, beside: Nanos) -> Result<Asked> {
        let measured = self.measured;
        Ok(Asked {
            at: request.at_nanos,
            application: measured.application.name().clone(),
            goal: measured.goal(request)?.goal()?,
            units: measured.drawing(request).drawn(),
            beside,
            wait: self.wait,
        })
    }
}

fn outcome(fate: Fate) -> Outcome {
    let seconds = |time: Option<Nanos>| time.map(Nanos::as_secs_f64);
    Outcome {
        // Who is cut at the time limit ends without the time of a unit.
        refused: fate.ended.is_none().then(|| "refused".into()),
        promised_seconds: seconds(fate.promised),
        expected_seconds: seconds(fate.expected),
        seconds: seconds(fate.unit),
        waited_seconds: seconds(fate.waited),
        ..Outcome::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a run that was cut at its time limit was admitted, though it has no time of a frame.
    #[test]
    fn who_did_not_end_in_time_was_not_refused() {
        let cut = Fate { ended: Some(Nanos::from_secs(600)), ..Fate::default() };
        let told = outcome(cut);
        assert!(told.is_admitted() && told.seconds.is_none(), "{told:?}");
        assert!(!outcome(Fate::default()).is_admitted());
    }
}
