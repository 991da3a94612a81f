//! The lab's own requests, simulated and held against the lab in two ways. With simulated times a decision differs where
//! a run ends on the other side of the next request: that says how well times are foreseen. Given when the lab's runs
//! ended, decisions alone are made anew: that says whether they are made as there.

use super::Experiment;
use super::arms::{Arm, Outcome};
use super::launching::Launching;
use super::measures::{improvements, mean};
use super::simulated::{Case, Simulation};
use super::tasks::{Load, SubTask};
use anyhow::Result;
use keeptime_model::units::Nanos;
use keeptime_whatif::goals::Fate;
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// What the lab had, and the simulation has, for the same requests.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Check {
    /// How often launching was drawn.
    pub draws: usize,
    /// With times of its own, by the curves as they were measured.
    pub foreseen: Foreseen,
    /// The same of experiments before which it was measured how fast the machine was, given that.
    pub given_speed: Foreseen,
    /// Of the same experiments, not given that.
    pub not_given_speed: Foreseen,
    /// How many they are.
    pub speeds: usize,
    /// Of each request, 100 if both admitted it or both refused it when the lab's ends were given, else 0.
    pub given_ends_percent: Vec<f64>,
    /// Of each that both admitted then, 100 if both promised the same, else 0.
    pub given_ends_promise_percent: Vec<f64>,
    /// Those that were decided otherwise then.
    pub different: Vec<Difference>,
}

/// What the simulation has with times of its own.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Foreseen {
    /// Of each request, in how many draws of launching both admitted it or both refused it, in percent.
    pub alike_percent: Vec<f64>,
    /// By how much run times are off with Keeptime, in percent of the lab's: of each request that both admitted, the
    /// mean of the draws.
    pub with_percent: Vec<f64>,
    /// The same without, of each that ended.
    pub without_percent: Vec<f64>,
    /// What came of both: the improvement of each load.
    pub gains: Vec<Gain>,
}

/// The average improvement with Keeptime against without, at one load, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// Which.
    pub load: Load,
    /// In the lab.
    pub lab: f64,
    /// Simulated: the mean of the draws.
    pub simulated: f64,
}

/// A request that was decided otherwise than in the lab.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// In which experiment.
    pub load: Load,
    /// Which, from 1 as in the charts.
    pub request: usize,
    /// Whether the lab admitted it.
    pub lab_admitted: bool,
    /// How long before it a run had ended in the lab, the last one that had.
    pub since_end_seconds: Option<f64>,
}

impl Check {
    /// Adds an experiment, as `case` simulates it with launching as each of `seeds` draws it (as many for every experiment),
    /// and with the lab's own ends.
    pub fn add(
        &mut self,
        case: Case<'_>,
        launching: &Launching,
        lab: &Experiment,
        seeds: Range<u64>,
    ) -> Result<()> {
        let simulated = |case: Case<'_>| {
            let draw = |seed| case.simulate(&lab.requests, launching, seed);
            seeds.clone().map(draw).collect::<Result<Vec<_>>>()
        };
        self.add_simulated(lab, &simulated(case)?, |slowness| {
            simulated(Case { slowness, ..case })
        })?;
        let ends = ends(lab);
        self.add_decided(lab, &ends, &case.decide(&lab.requests, &ends)?);
        Ok(())
    }

    /// `draws` are by the curves as they were measured; `on` has them for a machine of another speed.
    fn add_simulated(
        &mut self,
        lab: &Experiment,
        draws: &[Simulation],
        on: impl FnOnce(f64) -> Result<Vec<Simulation>>,
    ) -> Result<()> {
        self.draws = draws.len();
        self.foreseen.add(lab, draws);
        if let Some(slowness) = lab.slowness {
            self.not_given_speed.add(lab, draws);
            self.given_speed.add(lab, &on(slowness)?);
            self.speeds += 1;
        }
        Ok(())
    }

    fn add_decided(&mut self, lab: &Experiment, ends: &[Option<Nanos>], decided: &[Fate]) {
        let outcomes = &lab.arm(Arm::Keeptime).outcomes;
        for (at, (fate, real)) in decided.iter().zip(outcomes).enumerate() {
            let is_alike = fate.promised.is_some() == real.is_admitted();
            self.given_ends_percent.push(percent(is_alike));
            if let (Some(here), Some(there)) = (fate.promised, real.promised_seconds) {
                let is_same = (here.as_secs_f64() - there).abs() < SAME_SECONDS;
                self.given_ends_promise_percent.push(percent(is_same));
            }
            if !is_alike {
                self.different.push(Difference {
                    load: lab.load,
                    request: at + 1,
                    lab_admitted: real.is_admitted(),
                    since_end_seconds: since_end(ends, lab.requests[at].at_nanos),
                });
            }
        }
    }
}

impl Foreseen {
    fn add(&mut self, lab: &Experiment, draws: &[Simulation]) {
        for (at, real) in lab.arm(Arm::Keeptime).outcomes.iter().enumerate() {
            let is_alike = |draw: &Simulation| draw.with[at].is_admitted() == real.is_admitted();
            self.alike_percent.extend(mean_of(draws.iter().map(|draw| percent(is_alike(draw)))));
            self.with_percent
                .extend(mean_of(draws.iter().filter_map(|draw| off(&draw.with[at], real))));
        }
        for (at, real) in lab.arm(Arm::Without).outcomes.iter().enumerate() {
            self.without_percent
                .extend(mean_of(draws.iter().filter_map(|draw| off(&draw.without[at], real))));
        }
        let [with, without] = [Arm::Keeptime, Arm::Without].map(|arm| &lab.arm(arm).outcomes);
        let simulated = draws.iter().filter_map(|draw| improvement(&draw.with, &draw.without));
        if let (Some(lab_has), Some(simulated)) = (improvement(with, without), mean_of(simulated)) {
            self.gains.push(Gain { load: lab.load, lab: lab_has, simulated });
        }
    }
}

impl Gain {
    /// By how many points it is simulated too high.
    pub fn over(&self) -> f64 {
        self.simulated - self.lab
    }
}

/// The average; nothing where nobody was admitted that has ended.
fn improvement(with: &[Outcome], without: &[Outcome]) -> Option<f64> {
    mean_of(improvements(with, without).into_iter())
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, request, lab_admitted, since_end_seconds } = self;
        let decided = if *lab_admitted { "admitted" } else { "refused" };
        write!(f, "{load}: the lab {decided} request {request}")?;
        match since_end_seconds {
            Some(seconds) => write!(f, ", {seconds:.3} s after a run had ended there"),
            None => Ok(()),
        }
    }
}

/// Promises are whole nanoseconds.
const SAME_SECONDS: f64 = 0.5e-9;

/// When what each run of the lab had was given back; nothing for those that were refused. Where only the end of its
/// program was recorded, that: others can have its place some hundredths of a second later.
fn ends(lab: &Experiment) -> Vec<Option<Nanos>> {
    let end = |(request, outcome): (&SubTask, &Outcome)| {
        let held = Nanos::from_secs_f64(outcome.held_seconds.or(outcome.wall_seconds)?)?;
        Some(request.at_nanos.saturating_add(held))
    };
    lab.requests.iter().zip(&lab.arm(Arm::Keeptime).outcomes).map(end).collect()
}

/// How long before `at` the last one of `ends` was that had been by then, in seconds.
fn since_end(ends: &[Option<Nanos>], at: Nanos) -> Option<f64> {
    let last = ends.iter().flatten().filter(|end| **end <= at).max()?;
    Some(at.saturating_sub(*last).as_secs_f64())
}

/// By how much a run time is off, in percent of the lab's; nothing if one of them is missing.
fn off(simulated: &Outcome, real: &Outcome) -> Option<f64> {
    Some(100.0 * (simulated.seconds? / real.seconds? - 1.0).abs())
}

/// As a sample of a share.
fn percent(holds: bool) -> f64 {
    if holds { 100.0 } else { 0.0 }
}

/// The mean; nothing of nothing.
fn mean_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<_> = values.collect();
    (!values.is_empty()).then(|| mean(&values))
}

#[cfg(test)]
mod tests {
    use super::super::NODES;
    use super::super::arms::Played;
    use super::super::tasks::Renderer;
    use super::*;

    fn admitted(frame: f64, wall: f64, held: Option<f64>) -> Outcome {
        Outcome {
            promised_seconds: Some(0.5),
            seconds: Some(frame),
            wall_seconds: Some(wall),
            held_seconds: held,
            ..Outcome::default()
        }
    }

    fn refused() -> Outcome {
        Outcome { refused: Some("no room".into()), ..Outcome::default() }
    }

    fn load() -> Load {
        let renderer = Renderer::Render;
        Load { renderer, interval_most: 10, small: 0, fine: 0, seed: 1 }
    }

    /// Requests after 1, 2 and 3 s: two were admitted, and the third was not.
    fn lab() -> Experiment {
        let request = |seconds| SubTask {
            task: 0,
            at_nanos: Nanos::from_secs(seconds),
            setting: 0,
            within_percent: 150,
        };
        let with = vec![admitted(0.4, 1.5, None), admitted(0.4, 8.0, Some(8.25)), refused()];
        let without = vec![admitted(0.8, 9.0, None); 3];
        let played = [with, without.clone(), without];
        Experiment {
            load: load(),
            requests: [1, 2, 3].map(request).into(),
            within_seconds: vec![1.0; 3],
            wait_nanos: Nanos::default(),
            alone_seconds: vec![],
            slowness: None,
            played: played.map(|outcomes| Played { machine_load: 0.0, outcomes }),
        }
    }

    #[test]
    fn a_place_is_free_when_it_was_given_back_or_else_when_its_program_had_ended() {
        let ends = ends(&lab());
        let expected = [2_500, 10_250].map(|millis| Some(Nanos::from_millis(millis)));
        assert_eq!(ends, [expected[0], expected[1], None]);
        assert_eq!(since_end(&ends, Nanos::from_secs(3)), Some(0.5));
        assert_eq!(since_end(&ends, Nanos::from_secs(1)), None);
    }

    // Goal: a request that half of the draws decide alike counts half; run times only of those that both admitted.
    #[test]
    fn what_draws_have_is_a_mean_for_each_request() {
        let one = |with: [Outcome; 3]| Simulation {
            load: load(),
            nodes: NODES,
            with: with.into(),
            without: vec![admitted(1.0, 9.0, None); 3],
            by_chance: vec![],
        };
        let run = || admitted(0.5, 2.0, None);
        let draws = [one([run(), refused(), run()]), one([run(), run(), run()])];
        let mut foreseen = Foreseen::default();
        foreseen.add(&lab(), &draws);
        assert_eq!(foreseen.alike_percent, [100.0, 50.0, 0.0]);
        assert_eq!(rounded(&foreseen.with_percent), [25.0, 25.0]);
        assert_eq!(rounded(&foreseen.without_percent), [25.0, 25.0, 25.0]);
    }

    // Goal: run times that are a quarter off each may make an improvement that is off by far more. Method: frames of 0.4 s
    // with and 0.8 s without are an improvement of 100 %; simulated, 0.5 s and 0.6 or 1.0 s, those of 20 and 100 %.
    #[test]
    fn improvements_are_compared_by_load() {
        let one = |without: f64| Simulation {
            load: load(),
            nodes: NODES,
            with: vec![admitted(0.5, 2.0, None), refused(), refused()],
            without: vec![admitted(without, 9.0, None); 3],
            by_chance: vec![],
        };
        let mut foreseen = Foreseen::default();
        foreseen.add(&lab(), &[one(0.6), one(1.0)]);
        let [gain] = foreseen.gains[..] else { panic!("{:?}", foreseen.gains) };
        assert_eq!(gain.load, load());
        assert_eq!(rounded(&[gain.lab, gain.simulated, gain.over()]), [100.0, 60.0, -40.0]);

        let nobody = Simulation { with: vec![refused(); 3], ..one(1.0) };
        foreseen.add(&lab(), &[nobody]);
        assert_eq!(foreseen.gains, [gain], "of nobody there is none");
    }

    fn rounded(values: &[f64]) -> Vec<f64> {
        values.iter().map(|value| value.round()).collect()
    }

    // Goal: both are told, what the curves foresee and, where it was measured, what they do given how fast the machine
    // was. Method: all of one experiment run a quarter too long, and exactly as in the lab on a
    // machine of which it is said that it is faster by a fifth.
    #[test]
    fn how_fast_the_machine_was_is_given_where_it_was_measured() {
        let all = |seconds: f64| Simulation {
            load: load(),
            nodes: NODES,
            with: vec![admitted(seconds, 9.0, None); 3],
            without: vec![admitted(2.0 * seconds, 9.0, None); 3],
            by_chance: vec![],
        };
        let mut check = Check::default();
        check.add_simulated(&lab(), &[all(0.5)], |_| panic!("nothing was measured")).unwrap();
        assert_eq!((check.draws, check.speeds, check.given_speed.with_percent.len()), (1, 0, 0));

        let faster = Experiment { slowness: Some(0.8), ..lab() };
        let on = |slowness: f64| Ok(vec![all(0.5 * slowness)]);
        check.add_simulated(&faster, &[all(0.5)], on).unwrap();
        assert_eq!(rounded(&check.foreseen.with_percent), [25.0; 4]);
        assert_eq!(rounded(&check.not_given_speed.with_percent), [25.0; 2]);
        assert_eq!(rounded(&check.given_speed.with_percent), [0.0; 2]);
        assert_eq!(rounded(&check.given_speed.without_percent), [0.0; 3]);
        assert_eq!(check.speeds, 1);
    }

    #[test]
    fn what_is_decided_otherwise_is_named_with_what_came_before() {
        let promised =
            |millis| Fate { promised: Some(Nanos::from_millis(millis)), ..Fate::default() };
        let lab = lab();
        let mut check = Check::default();
        check.add_decided(&lab, &ends(&lab), &[promised(500), promised(501), promised(500)]);
        assert_eq!(check.given_ends_percent, [100.0, 100.0, 0.0]);
        assert_eq!(check.given_ends_promise_percent, [100.0, 0.0]);
        let [difference] = check.different[..] else { panic!("{:?}", check.different) };
        assert_eq!(
            difference.to_string(),
            "render, intervals up to 10 s, seed 1: the lab refused request 3, 0.500 s after a run had ended there"
        );
    }
}
