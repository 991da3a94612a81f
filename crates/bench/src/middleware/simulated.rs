//! The same requests on a cluster that is not there (`whatif::goals`), with the curves that were measured: to be
//! held against the lab (`comparison`), and for more nodes than the lab has.

use super::arms::{Measured, Outcome};
use super::crowding::Crowding;
use super::launching::Launching;
use super::measures::{admission, improvements, mean};
use super::tasks::{Load, SubTask};
use super::{CPU, Experiment, LINK, NODES, lab_name};
use anyhow::Result;
use keeptime_lab::Spec;
use keeptime_linux::egress::{self, Link};
use keeptime_model::units::Nanos;
use keeptime_whatif::goals::{
    Asked, Curves, Fate, Placement, Speed, World, decided, reserved, unreserved,
};
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
    /// Without, each on the nodes that have the fewest runs.
    pub without: Vec<Outcome>,
    /// Without, each where chance puts it.
    pub by_chance: Vec<Outcome>,
}

/// What draws of launching make of a load on a cluster, in percent by draw.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Foretold {
    /// Which.
    pub load: Load,
    /// How many.
    pub nodes: u32,
    /// In each draw.
    pub requests: usize,
    /// Of the requests.
    pub admitted: Vec<f64>,
    /// The average of those that were admitted.
    pub improvement: Vec<f64>,
    /// The same against runs that start where chance puts them.
    pub by_chance: Vec<f64>,
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
    /// What of its time a run computes while it is launched.
    pub launching: f64,
}

impl<'a> Case<'a> {
    /// As in the lab, on a machine that is as fast as when curves were measured.
    pub fn of(measured: &'a Measured, crowding: &Crowding, lab: &Experiment) -> Self {
        let Experiment { load, wait_nanos, .. } = *lab;
        let launching = crowding.launching;
        Self { measured, load, nodes: NODES, wait: wait_nanos, slowness: 1.0, launching }
    }

    /// What becomes of requests with launching as `seed` draws it, and runs where it puts them.
    pub fn simulate(
        &self,
        requests: &[SubTask],
        launching: &Launching,
        seed: u64,
    ) -> Result<Simulation> {
        let (world, beside) = (self.world()?, launching.draw(requests, seed)?);
        let asked = requests.iter().zip(beside).map(|(request, beside)| self.ask(request, beside));
        let asked = asked.collect::<Result<Vec<_>>>()?;
        let told = |fates: Vec<Fate>| fates.into_iter().map(outcome).collect::<Vec<_>>();
        let bare = |placement| unreserved(&world, &asked, placement).map(told);
        let with = told(reserved(&world, &asked, Speed::Spare)?);
        let without = bare(Placement::Fewest)?;
        // Where a run has all nodes nothing is left to chance.
        let by_chance = match self.nodes {
            NODES => without.clone(),
            _ => bare(Placement::Chance(seed))?,
        };
        Ok(Simulation { load: self.load, nodes: self.nodes, with, without, by_chance })
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
                launching: self.launching,
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

impl Foretold {
    /// Of all `draws` of a load; nothing of none.
    pub fn of(draws: &[Simulation]) -> Option<Self> {
        let first = draws.first()?;
        let average = |without: fn(&Simulation) -> &[Outcome]| {
            draws.iter().map(|d| mean(&improvements(&d.with, without(d)))).collect()
        };
        Some(Self {
            load: first.load,
            nodes: first.nodes,
            requests: first.with.len(),
            admitted: draws.iter().map(|draw| admission(&draw.with)).collect(),
            improvement: average(|draw| &draw.without),
            by_chance: average(|draw| &draw.by_chance),
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

    // Goal: each draw is one sample, and what chance does is told apart. Method: one request of two is admitted with 1 s; without,
    // it takes 1.5 s, and 3 s by chance; in a second draw both take 2 s.
    #[test]
    fn a_draw_is_a_sample_of_what_is_foretold() {
        let load = super::super::loads()[0];
        let run = |seconds| Outcome { seconds: Some(seconds), ..Outcome::default() };
        let draw = |without, by_chance| Simulation {
            load,
            nodes: 8,
            with: vec![run(1.0), outcome(Fate::default())],
            without: vec![run(without); 2],
            by_chance: vec![run(by_chance); 2],
        };
        let foretold = Foretold::of(&[draw(1.5, 3.0), draw(2.0, 2.0)]).unwrap();
        let expected = Foretold {
            load,
            nodes: 8,
            requests: 2,
            admitted: vec![50.0; 2],
            improvement: vec![50.0, 100.0],
            by_chance: vec![200.0, 100.0],
        };
        assert_eq!(foretold, expected);
        assert_eq!(Foretold::of(&[]), None);
    }

    // Goal: a run that was cut at its time limit was admitted, though it has no time of a frame.
    #[test]
    fn who_did_not_end_in_time_was_not_refused() {
        let cut = Fate { ended: Some(Nanos::from_secs(600)), ..Fate::default() };
        let told = outcome(cut);
        assert!(told.is_admitted() && told.seconds.is_none(), "{told:?}");
        assert!(!outcome(Fate::default()).is_admitted());
    }
}
