//! What many users have who ask for goals, all with one preference: as fast as there is room for (the thesis's
//! greedy choice up to the knee), as cheaply as will do, or what is worth its price at the moment
//! (`keeptime_planner::price`). The same requests for each, on 16 nodes, decided by the real broker.

use crate::figures::Figures;
use crate::quick;
use anyhow::{Context, Result};
use keeptime_control::plant::Random;
use keeptime_model::application::Application;
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use keeptime_whatif::goals::{Asked, Curves, Speed, World, reserved};
use keeptime_whatif::shape::{self, Shape};
use serde::Serialize;

const NODES: u32 = 16;
/// Name, seconds of computing on one node, and Gbit that each flow carries, of one unit.
const APPLICATIONS: [(&str, f64, f64); 3] =
    [("solver", 40.0, 2.0), ("renderer", 20.0, 10.0), ("sorter", 8.0, 40.0)];
const COUNTS: [u32; 3] = [2, 4, 8];
const MBIT: [u64; 8] = [250, 500, 1_000, 1_500, 2_250, 3_500, 5_000, 9_000];
/// Seconds of a unit that are lost to each doubling of the nodes.
const SYNCHRONISATION: f64 = 0.3;
/// Of a node: four processes share it.
const CPU: CpuPpm = CpuPpm::from_percent(25);
const UNITS: u32 = 10;
/// Times of the best there is that a user will wait, from and to.
const PATIENCE: [f64; 2] = [1.2, 4.0];
/// Seconds between two requests, on average.
const INTERVALS: [f64; 4] = [20.0, 10.0, 5.0, 2.5];
const PREFERENCES: [Preference; 3] =
    [Preference::Balanced, Preference::Fastest, Preference::Cheapest];
const SEED: u64 = 2_010;

/// What users had with one preference.
#[derive(Debug, Serialize)]
pub struct Preferred {
    preference: Preference,
    interval_seconds: f64,
    requests: usize,
    admitted_percent: f64,
    /// By how much a unit took longer than the best there is, of those that were done, on average; in times.
    stretch: f64,
    /// What was done, in seconds of the best there is, for each second of the time.
    work: f64,
}

/// An application, its profile and the best time of a unit.
struct Known {
    application: Application,
    profile: Profile,
    best: f64,
}

/// Simulates all, and adds the figures.
pub fn run(figures: &mut Figures) -> Result<Vec<Preferred>> {
    let known = APPLICATIONS.map(known).into_iter().collect::<Result<Vec<_>>>()?;
    let topology = Shape::star(NODES)?.topology();
    let curves = |Known { application, profile, .. }: &Known| Curves {
        application: application.clone(),
        profile: profile.clone(),
        alone: None,
        launching: 0.0,
    };
    let curves = known.iter().map(curves).collect();
    let reservable = shape::reservable;
    let world = World { topology, reservable, known: curves, slowness: 1.0 };
    let mut all = Vec::new();
    for interval in INTERVALS {
        let of_interval = PREFERENCES.map(|preference| one(&world, &known, interval, preference));
        let of_interval = of_interval.into_iter().collect::<Result<Vec<_>>>()?;
        add(interval, &of_interval, figures);
        all.extend(of_interval);
    }
    Ok(all)
}

fn known((name, compute, volume): (&str, f64, f64)) -> Result<Known> {
    let application = Application::from_toml(&format!(
        "name = \"{name}\"\ncommand = [\"{name}\"]\npattern = \"ring\"\nnodes = [2, 4, 8]\ncpu = \"25 %\"\n\
         timeout = \"1 h\"\ntime = \"wall\"\n"
    ))?;
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(10_000),
        process_cpu_ppm: CPU,
        processor: "simulated".into(),
        mpi: "none".into(),
        command: vec![name.into()],
        program: None,
    };
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    let mut best = f64::INFINITY;
    for nodes in COUNTS {
        let alone = compute / f64::from(nodes) + SYNCHRONISATION * f64::from(nodes.ilog2());
        for mbit in MBIT {
            let seconds = alone + volume * 1e3 / mbit as f64;
            best = best.min(seconds);
            let time = Nanos::from_secs_f64(seconds).context("a time below zero")?;
            profile.record(&Default::default(), nodes, BitsPerSecond::from_mbit(mbit), time);
        }
    }
    Ok(Known { application, profile, best })
}

fn one(world: &World, known: &[Known], interval: f64, prefer: Preference) -> Result<Preferred> {
    let requests = if quick() { 50 } else { 4_000 };
    let mut random = Random::new(SEED);
    let mut at = 0.0;
    let mut asked = Vec::with_capacity(requests);
    let mut best = Vec::with_capacity(requests);
    for _ in 0..requests {
        at += interval * random.exponential();
        let of = &known[(random.part() * known.len() as f64) as usize];
        let [least, most] = PATIENCE;
        let within = of.best * (least + random.part() * (most - least));
        let within = Nanos::from_secs_f64(within);
        asked.push(Asked {
            at: Nanos::from_secs_f64(at).context("a time below zero")?,
            application: of.application.name().clone(),
            goal: Goal { within, prefer, ..Goal::default() },
            units: UNITS,
            beside: Nanos::default(),
            wait: Nanos::default(),
        });
        best.push(of.best);
    }
    let fates = reserved(world, &asked, Speed::Promised)?;
    // Who is cut at the time limit was admitted, and has no time of a unit.
    let admitted = fates.iter().filter(|fate| fate.ended.is_some()).count();
    let done: Vec<(f64, f64)> = fates
        .iter()
        .zip(best)
        .filter_map(|(fate, best)| Some((fate.unit?.as_secs_f64(), best)))
        .collect();
    let work: f64 = done.iter().map(|(_, best)| best * f64::from(UNITS)).sum();
    Ok(Preferred {
        preference: prefer,
        interval_seconds: interval,
        requests,
        admitted_percent: 100.0 * admitted as f64 / requests as f64,
        stretch: done.iter().map(|(unit, best)| unit / best).sum::<f64>() / done.len() as f64,
        work: work / at,
    })
}

fn add(interval: f64, preferred: &[Preferred], figures: &mut Figures) {
    let [balanced, others @ ..] = preferred else { return };
    for other in others {
        let what = format!("a request each {interval} s, balanced (or {})", other.preference);
        let mut value = |name: &str, unit: &str, of: fn(&Preferred) -> f64| {
            let (ours, theirs) = (of(balanced), of(other));
            figures.value(format!("{what}: {name}"), unit, ours, &[ours], Some(theirs), None);
        };
        value("admitted", "%", |p| p.admitted_percent);
        value("time of a unit, of the best", "x", |p| p.stretch);
        value("work done", "s/s", |p| p.work);
    }
}
