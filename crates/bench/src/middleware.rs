//! `make eval-middleware`: chapter 4 of the thesis, done again. Tasks arrive at random intervals, each a chain of
//! requests for pictures (Figure 4.8); the same requests at the same times with Keeptime, without it, and with
//! plain HTB. Figures 4.9 to 4.17 and Tables 4.1 and 4.2, the paper's numbers beside ours.
//!
//! Scaled: four nodes in the place of sixteen. Each has two "processors", as there, and each of those a tenth of a
//! CPU here: about twice what one of 1 GHz from 2001 could do. A request draws as many frames as take six seconds. Links,
//! intervals, ratios, image sizes and interleaving factors are the thesis' own.

mod arms;
mod bare;
mod measures;
mod neighbour;
mod page;
mod paper;
mod rates;
mod simulated;
mod tasks;

pub use bare::{ProcessorArguments, become_limited};

use crate::awake::Awake;
use crate::figures::{Figures, Target, quantile};
use crate::parts::Parts;
use crate::quick;
use anyhow::{Context, Result};
use arms::{Arm, Care, Measured, Played};
use keeptime::interrupt;
use keeptime::machine::Machine;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm};
use measures::{admission, improvements, mean, over_promised};
use rates::Rates;
use serde::Serialize;
use simulated::{Check, Simulation, beside_frames, compare, simulate};
use std::collections::BTreeSet;
use std::path::Path;
use tasks::{Load, Renderer, SubTask};

const NAME: &str = "middleware";
const NODES: u32 = 4;
const LINK: BitsPerSecond = BitsPerSecond::from_mbit(1_680);
/// Of a node: two processes.
const CPU: CpuPpm = CpuPpm::from_percent(20);
/// Measured for each flow, in Mbit/s: two programs of two flows a node have room for so much.
const BANDWIDTH_MOST: f64 = 400.0;
/// Requests of an experiment.
const REQUESTS: usize = 16;
const INTERVALS: [u32; 3] = [10, 20, 50];
/// Of image sizes 512:1024 and of interleaving factors 0:2, in the order of Table 4.1.
const RATIOS: [(u32, u32); 5] = [(50, 50), (30, 50), (70, 50), (50, 30), (50, 70)];
/// Of Table 4.2.
const SEEDS: [u64; 2] = [1, 2];

/// Experiments that come before the curves of rates: all of `render`, and `raycast` with one mix.
const BEFORE_RATES: usize = (SEEDS.len() + 1) * INTERVALS.len();
/// Of clusters that are simulated: the lab's own, and larger ones.
const SIMULATED: [u32; 3] = [NODES, 8, 16];

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Raw {
    machine: Machine,
    /// Whether nothing is missing.
    is_whole: bool,
    rates: Rates,
    experiments: Vec<Experiment>,
    /// On the lab's nodes and on more.
    simulations: Vec<Simulation>,
    check: Check,
}

/// One load and what became of it.
#[derive(Debug, Serialize)]
struct Experiment {
    load: Load,
    requests: Vec<SubTask>,
    /// The bound of each request on the time of a frame.
    within_seconds: Vec<f64>,
    /// By [`Arm::ALL`].
    played: [Played; 3],
}

/// Measures all and writes figures, raw data and the page; goes on with the parts that an interrupted run left, and
/// where it is interrupted itself, writes what there is.
pub fn run(out: &Path) -> Result<()> {
    interrupt::listen()?;
    let directory = out.join(NAME);
    let mut parts = Parts::open(&directory)?;
    let machine = parts.machine()?;
    let _awake = Awake::begin()?;
    let kept = if quick() { directory.join("quick") } else { directory.clone() };
    let renderers = arms::measured(care(), out, &kept)?;
    let mut raw = Raw { machine, ..Raw::default() };
    let measured = measure(&mut raw, &renderers, &mut parts, out);
    raw.is_whole = measured.is_ok();
    if raw.is_whole || (interrupt::stopped() && !raw.experiments.is_empty()) {
        (raw.simulations, raw.check) = simulations(&renderers, &raw.experiments)?;
        let figures = figures(&raw);
        page::write(&raw, figures.all(), out)?;
        figures.finish(out, &raw)?;
    }
    measured?;
    parts.finish()
}

/// In an order in which what is interrupted has something of everything.
fn measure(raw: &mut Raw, renderers: &[Measured; 2], parts: &mut Parts, out: &Path) -> Result<()> {
    let mut loads = loads().into_iter().enumerate();
    for (number, load) in loads.by_ref().take(BEFORE_RATES) {
        raw.experiments.push(experiment(number, load, renderers, parts, out)?);
    }
    raw.rates.measure(parts)?;
    for (number, load) in loads {
        raw.experiments.push(experiment(number, load, renderers, parts, out)?);
    }
    Ok(())
}

fn care() -> Care {
    match quick() {
        true => Care { seconds: 1, bandwidths: (16.0, BANDWIDTH_MOST, 2), samples: 1 },
        false => Care { seconds: 5, bandwidths: (16.0, BANDWIDTH_MOST, 6), samples: 3 },
    }
}

/// All experiments, in the order of the thesis' figures.
fn loads() -> Vec<Load> {
    let render = |interval_most, seed| Load {
        renderer: Renderer::Render,
        interval_most,
        small: 0,
        fine: 0,
        seed,
    };
    let raycast = |interval_most, (small, fine)| Load {
        renderer: Renderer::Raycast,
        interval_most,
        small,
        fine,
        seed: 1,
    };
    if quick() {
        return vec![render(4, 1), raycast(4, RATIOS[0])];
    }
    let renders = SEEDS.into_iter().flat_map(|seed| INTERVALS.map(|most| render(most, seed)));
    let raycasts = RATIOS.into_iter().flat_map(|ratio| INTERVALS.map(|most| raycast(most, ratio)));
    renders.chain(raycasts).collect()
}

/// The three arms of one load. Which of them comes first changes from one to the next.
fn experiment(
    number: usize,
    load: Load,
    renderers: &[Measured; 2],
    parts: &mut Parts,
    out: &Path,
) -> Result<Experiment> {
    let measured = of(renderers, load.renderer);
    let requests = load.requests(request_count(), 1);
    let within = |request| Ok(measured.within_millis(request)? as f64 / 1e3);
    let within_seconds = requests.iter().map(within).collect::<Result<Vec<_>>>()?;
    let mut play = |arm: Arm| {
        let name = format!("{load}, {}", arm.name());
        parts.part(&name, || {
            eprintln!("{name}");
            measured.play(arm, &requests, out)
        })
    };
    let mut order = Arm::ALL;
    order.rotate_left(number % Arm::ALL.len());
    let mut played = order.map(|arm| (arm, play(arm)));
    played.sort_by_key(|(arm, _)| *arm);
    let [keeptime, without, htb] = played.map(|(_, played)| played);
    Ok(Experiment { load, requests, within_seconds, played: [keeptime?, without?, htb?] })
}

fn request_count() -> usize {
    if quick() { 6 } else { REQUESTS }
}

fn of(renderers: &[Measured; 2], renderer: Renderer) -> &Measured {
    let [raycast, render] = renderers;
    match renderer {
        Renderer::Raycast => raycast,
        Renderer::Render => render,
    }
}

/// Every load on every simulated cluster, and how far the lab's own is off.
fn simulations(
    renderers: &[Measured; 2],
    experiments: &[Experiment],
) -> Result<(Vec<Simulation>, Check)> {
    let (mut all, mut check) = (Vec::new(), Check::default());
    for experiment in experiments {
        let measured = of(renderers, experiment.load.renderer);
        let beside = beside_frames(measured, experiments).context("nothing was admitted")?;
        for nodes in SIMULATED {
            let times = nodes / NODES;
            let requests = experiment.load.requests(request_count() * times as usize, times);
            let simulation = simulate(measured, experiment.load, nodes, &requests, beside)?;
            if nodes == NODES {
                compare(&mut check, &simulation, experiment);
            }
            all.push(simulation);
        }
    }
    Ok((all, check))
}

impl Raw {
    /// The experiments with a renderer and an interval.
    fn of(&self, renderer: Renderer, interval_most: u32) -> impl Iterator<Item = &Experiment> {
        let own =
            move |load: &Load| (load.renderer, load.interval_most) == (renderer, interval_most);
        self.experiments.iter().filter(move |experiment| own(&experiment.load))
    }

    fn intervals(&self) -> BTreeSet<u32> {
        self.experiments.iter().map(|experiment| experiment.load.interval_most).collect()
    }
}

impl Experiment {
    fn arm(&self, arm: Arm) -> &Played {
        let [keeptime, without, htb] = &self.played;
        match arm {
            Arm::Keeptime => keeptime,
            Arm::Without => without,
            Arm::Htb => htb,
        }
    }
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    for renderer in Renderer::ALL {
        promises(&mut figures, raw, renderer);
        for interval in raw.intervals() {
            let rates =
                raw.of(renderer, interval).map(|e| admission(&e.arm(Arm::Keeptime).outcomes));
            let rates: Vec<_> = rates.collect();
            let name = format!("{}, intervals up to {interval} s: admitted", renderer.name());
            let target = paper::admission(renderer, interval).map(Target::AtLeast);
            figures.value(name, "%", mean(&rates), &rates, None, target);
        }
    }
    for Experiment { load, played: [with, without, htb], .. } in &raw.experiments {
        let against = |other: &Played| improvements(&with.outcomes, &other.outcomes);
        let ours = against(without);
        let target = paper::improvement(load).map(|paper| Target::AtLeast(paper.average));
        let name = format!("{load}: improvement, average");
        figures.value(name, "%", mean(&ours), &ours, None, target);
        let ours = against(htb);
        figures.value(format!("{load}: the same against HTB"), "%", mean(&ours), &ours, None, None);
    }
    let Check { decisions, same, with_percent, without_percent } = &raw.check;
    let agreed = 100.0 * *same as f64 / *decisions as f64;
    let each = vec![agreed; *decisions];
    let all = Some(Target::AtLeast(100.0));
    figures.value("simulation: decisions as in the lab", "%", agreed, &each, None, all);
    let name = "simulation: run times off, median";
    figures.median(name, "%", with_percent, None, Some(Target::AtMost(3.0)));
    figures.median(format!("{name}, without Keeptime"), "%", without_percent, None, None);
    raw.rates.figures(&mut figures);
    figures.keep_measured();
    figures
}

/// How promises were kept, and what those who had no reservation would have made of them.
fn promises(figures: &mut Figures, raw: &Raw, renderer: Renderer) {
    let own = || raw.experiments.iter().filter(|e| e.load.renderer == renderer);
    let over = |arm: Arm| -> Vec<f64> {
        let with =
            |e: &Experiment| over_promised(&e.arm(Arm::Keeptime).outcomes, &e.arm(arm).outcomes);
        own().flat_map(with).collect()
    };
    let (with, without) = (over(Arm::Keeptime), over(Arm::Without));
    for (which, part, most) in [("95th percentile", 0.95, 5.0), ("worst", 1.0, 7.0)] {
        let name = format!("{}: actual over promised, {which}", renderer.name());
        let (value, baseline) = (quantile(&with, part), Some(quantile(&without, part)));
        figures.value(name, "%", value, &with, baseline, Some(Target::AtMost(most)));
    }
}

fn lab_name() -> Result<Name> {
    Ok(format!("eval-{NAME}").parse()?)
}
