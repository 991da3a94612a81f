//! `make eval-middleware`: chapter 4 of the thesis, done again. Tasks arrive at random intervals, each a chain of
//! requests for pictures (Figure 4.8); the same requests at the same times with Keeptime, without it, and with
//! plain HTB. Figures 4.9 to 4.17 and Tables 4.1 and 4.2, the paper's numbers beside ours.
//!
//! Scaled: four nodes in the place of sixteen. Each has two "processors", as there, and each of those a tenth of a
//! CPU here: about twice what one of 1 GHz from 2001 could do. A request draws as many frames as take six seconds. Links,
//! intervals, ratios, image sizes and interleaving factors are the thesis' own.

mod arms;
mod bare;
mod comparison;
mod crowding;
mod launching;
mod measures;
mod neighbour;
mod page;
mod paper;
mod rates;
mod simulated;
mod tasks;
mod wandering;

pub use bare::{ProcessorArguments, become_limited};

use crate::awake::Awake;
use crate::figures::{Figures, Target, quantile};
use crate::parts::Parts;
use crate::quick;
use anyhow::Result;
use arms::{Arm, Care, Measured, Outcome, Played};
use comparison::{Check, Foreseen};
use crowding::Crowding;
use keeptime::interrupt;
use keeptime::machine::Machine;
use keeptime_model::name::Name;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use launching::Launching;
use measures::{
    admission, improvements, mean, over_promised, promises_kept, response_improvements, waits,
};
use rates::Rates;
use serde::Serialize;
use simulated::{Case, Foretold};
use std::collections::BTreeMap;
use std::ops::Range;
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
/// The interval at which load is light.
const LIGHT: u32 = 50;
const INTERVALS: [u32; 3] = [10, 20, LIGHT];
/// Of the runs: what promises are made for.
const PROMISED_PERCENT: f64 = 90.0;
/// Of image sizes 512:1024 and of interleaving factors 0:2, in the order of Table 4.1.
const RATIOS: [(u32, u32); 5] = [(50, 50), (30, 50), (70, 50), (50, 30), (50, 70)];
/// Of Table 4.2.
const SEEDS: [u64; 2] = [1, 2];

/// Experiments that come before the curves of rates: all of `render`, and `raycast` with one mix.
const BEFORE_RATES: usize = (SEEDS.len() + 1) * INTERVALS.len();
/// Of clusters that are simulated.
const SIMULATED: [u32; 2] = [8, 16];
/// So often launching is drawn: what one draw decides is chance.
const DRAWS: u64 = 10;
/// Far from those of loads: the same seed would draw the same numbers for requests and for their launching.
const LAUNCHING_SEED: u64 = 1_000_000;

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
struct Raw {
    machine: Machine,
    /// Whether nothing is missing.
    is_whole: bool,
    rates: Rates,
    experiments: Vec<Experiment>,
    /// What launching takes of processors, by renderer.
    crowding: Vec<Crowding>,
    /// On more nodes than the lab has.
    foretold: Vec<Foretold>,
    check: Check,
}

/// One load and what became of it.
#[derive(Debug, Serialize)]
struct Experiment {
    load: Load,
    requests: Vec<SubTask>,
    /// The bound of each request on the time of a frame.
    within_seconds: Vec<f64>,
    /// So long each may wait for room with Keeptime.
    wait_nanos: Nanos,
    /// Of a frame right before, alone, by the renderer's settings; none where that was not measured.
    alone_seconds: Vec<f64>,
    /// The same in parts of what it was when curves were measured.
    slowness: Option<f64>,
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
        simulate(&mut raw, &renderers, &SIMULATED)?;
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
        raw.experiments.push(experiment(number, load, load.wait(), renderers, parts, out)?);
    }
    raw.rates.measure(parts)?;
    for (number, load) in loads {
        raw.experiments.push(experiment(number, load, load.wait(), renderers, parts, out)?);
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

/// In which order the arms of the load of this number are played: which comes first changes from one to the next, and from one
/// load of an interval to the next of that.
fn order(number: usize) -> [Arm; Arm::ALL.len()] {
    let mut order = Arm::ALL;
    order.rotate_left((number + number / INTERVALS.len()) % Arm::ALL.len());
    order
}

/// The three arms of one load, of which each request may wait for `wait`.
fn experiment(
    number: usize,
    load: Load,
    wait: Nanos,
    renderers: &[Measured; 2],
    parts: &mut Parts,
    out: &Path,
) -> Result<Experiment> {
    let measured = of(renderers, load.renderer);
    let requests = load.requests(request_count(), 1);
    let within = |request| Ok(measured.within_millis(request)? as f64 / 1e3);
    let within_seconds = requests.iter().map(within).collect::<Result<Vec<_>>>()?;
    let alone_seconds = alone_seconds(&load, wait, measured, parts, out)?;
    let settings = load.renderer.settings();
    let slowness = wandering::slowness(&measured.alone, settings, &alone_seconds)?;
    let mut play = |arm: Arm| {
        let name = part_name(&load, wait, arm.name());
        parts.part(&name, || {
            eprintln!("{name}");
            measured.play(arm, &requests, wait, out)
        })
    };
    let mut played = order(number).map(|arm| (arm, play(arm)));
    played.sort_by_key(|(arm, _)| *arm);
    let [keeptime, without, htb] = played.map(|(_, played)| played);
    let played = [keeptime?, without?, htb?];
    let wait_nanos = wait;
    Ok(Experiment { load, requests, within_seconds, wait_nanos, alone_seconds, slowness, played })
}

/// How fast the machine is before the first arm: when one was played already, it is too late to measure that.
fn alone_seconds(
    load: &Load,
    wait: Nanos,
    measured: &Measured,
    parts: &mut Parts,
    out: &Path,
) -> Result<Vec<f64>> {
    let alone = part_name(load, wait, "alone");
    let is_kept = |arm: &Arm| parts.has(&part_name(load, wait, arm.name()));
    if !parts.has(&alone) && Arm::ALL.iter().any(is_kept) {
        return Ok(Vec::new());
    }
    parts.part(&alone, || {
        eprintln!("{alone}");
        measured.alone_seconds(out)
    })
}

/// What is recorded of a load whose requests may wait for another time has another name: what is wanted is measured
/// anew then, and all else is gone on with.
fn part_name(load: &Load, wait: Nanos, what: &str) -> String {
    if wait == Nanos::default() {
        return format!("{load}, {what}");
    }
    format!("{load}, waiting up to {wait}, {what}")
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

/// Every load on clusters of so many nodes, and how far the simulation of the lab's own requests is off.
fn simulate(raw: &mut Raw, renderers: &[Measured; 2], clusters: &[u32]) -> Result<()> {
    for (number, experiment) in raw.experiments.iter().enumerate() {
        let measured = of(renderers, experiment.load.renderer);
        let launching = Launching::of(measured, &raw.experiments);
        let crowding = Crowding::of(measured, &raw.experiments)?;
        if !raw.crowding.contains(&crowding) {
            raw.crowding.push(crowding);
        }
        let case = Case::of(measured, &crowding, experiment);
        for nodes in clusters {
            let times = nodes / NODES;
            let requests = experiment.load.requests(request_count() * times as usize, times);
            let case = Case { nodes: *nodes, ..case };
            let draw = |seed| case.simulate(&requests, &launching, seed);
            let draws = launching_seeds(number).map(draw).collect::<Result<Vec<_>>>()?;
            raw.foretold.extend(Foretold::of(&draws));
        }
        raw.check.add(case, &launching, experiment, launching_seeds(number))?;
    }
    Ok(())
}

/// No two experiments have one in common.
fn launching_seeds(experiment: usize) -> Range<u64> {
    let first = LAUNCHING_SEED + experiment as u64 * DRAWS;
    first..first + DRAWS
}

impl Raw {
    /// The experiments with a renderer, by interval: those intervals that were measured.
    fn by_interval(&self, renderer: Renderer) -> BTreeMap<u32, Vec<&Experiment>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for experiment in self.experiments.iter().filter(|e| e.load.renderer == renderer) {
            all.entry(experiment.load.interval_most).or_default().push(experiment);
        }
        all
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

    /// Whether requests may wait for room.
    fn may_wait(&self) -> bool {
        self.wait_nanos > Nanos::default()
    }

    /// How long those waited that had to and were admitted, in seconds.
    fn waits(&self) -> Vec<f64> {
        if self.may_wait() { waits(&self.arm(Arm::Keeptime).outcomes) } else { Vec::new() }
    }
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::of_evaluation(NAME);
    for renderer in Renderer::ALL {
        let by_interval = raw.by_interval(renderer);
        let all: Vec<_> = by_interval.values().flatten().copied().collect();
        promises(&mut figures, renderer.name(), &all);
        for (interval, own) in &by_interval {
            let name = format!("{}, intervals up to {interval} s", renderer.name());
            promises(&mut figures, &name, own);
            admitted(&mut figures, &name, own, admission_target(renderer, *interval));
            waited(&mut figures, &name, own);
        }
    }
    for experiment in &raw.experiments {
        improved(&mut figures, experiment);
    }
    for foretold in &raw.foretold {
        foreseen_on_more_nodes(&mut figures, foretold);
    }
    checked(&mut figures, &raw.check);
    raw.rates.figures(&mut figures);
    figures.keep_measured();
    figures
}

/// How promises were kept, and what those who had no reservation would have made of them.
fn promises(figures: &mut Figures, whose: &str, experiments: &[&Experiment]) {
    let [with, without, htb] = Arm::ALL.map(|arm| by_promise(experiments, arm, over_promised));
    for (which, part, most) in [("95th percentile", 0.95, 5.0), ("worst", 1.0, 7.0)] {
        let name = format!("{whose}: actual over promised, {which}");
        let (value, baseline) = (quantile(&with, part), Some(quantile(&without, part)));
        figures.value(&name, "%", value, &with, baseline, Some(Target::AtMost(most)));
        let name = format!("{name}, plain HTB");
        figures.value(name, "%", quantile(&htb, part), &htb, None, None);
    }
    let [with, without, htb] = Arm::ALL.map(|arm| by_promise(experiments, arm, promises_kept));
    let name = format!("{whose}: promises for {PROMISED_PERCENT} % of runs, kept");
    figures.value(&name, "%", mean(&with), &with, Some(mean(&without)), None);
    figures.value(format!("{name}, plain HTB"), "%", mean(&htb), &htb, None, None);
}

/// What `measure` makes of an arm and of what Keeptime promised to the same requests.
fn by_promise(
    experiments: &[&Experiment],
    arm: Arm,
    measure: fn(&[Outcome], &[Outcome]) -> Vec<f64>,
) -> Vec<f64> {
    let of = |e: &&Experiment| measure(&e.arm(Arm::Keeptime).outcomes, &e.arm(arm).outcomes);
    experiments.iter().flat_map(of).collect()
}

/// At every load: where one mix or seed has less, a mean hides it.
fn admitted(
    figures: &mut Figures,
    whose: &str,
    experiments: &[&Experiment],
    target: Option<Target>,
) {
    let rates = admission_rates(experiments);
    let name = format!("{whose}: admitted");
    figures.value(&name, "%", mean(&rates), &rates, None, None);
    let name = format!("{name}, least of mixes or seeds");
    figures.value(name, "%", quantile(&rates, 0.0), &rates, None, target);
}

/// Of those that had to wait; at loads where nobody may, nothing.
fn waited(figures: &mut Figures, whose: &str, experiments: &[&Experiment]) {
    let all: Vec<_> = experiments.iter().flat_map(|experiment| experiment.waits()).collect();
    for (which, part) in [("median", 0.5), ("most", 1.0)] {
        let name = format!("{whose}: waited until admitted, {which}");
        figures.value(name, "s", quantile(&all, part), &all, None, None);
    }
}

fn admission_rates(experiments: &[&Experiment]) -> Vec<f64> {
    let rate = |e: &&Experiment| admission(&e.arm(Arm::Keeptime).outcomes);
    experiments.iter().map(rate).collect()
}

/// As much as in the thesis, and all at light load, where it tells of one renderer alone.
fn admission_target(renderer: Renderer, interval_most: u32) -> Option<Target> {
    let least = match interval_most {
        LIGHT => Some(100.0),
        _ => paper::admission(renderer, interval_most),
    };
    least.map(Target::AtLeast)
}

fn improved(figures: &mut Figures, experiment: &Experiment) {
    let Experiment { load, played: [with, without, htb], .. } = experiment;
    let against = |other: &Played| improvements(&with.outcomes, &other.outcomes);
    let ours = against(without);
    let target = paper::improvement(load).map(|paper| Target::AtLeast(paper.average));
    let name = format!("{load}: improvement, average");
    figures.value(name, "%", mean(&ours), &ours, None, target);
    let ours = against(htb);
    figures.value(format!("{load}: the same against HTB"), "%", mean(&ours), &ours, None, None);
    if experiment.may_wait() {
        let ours = response_improvements(&with.outcomes, &without.outcomes);
        let name = format!("{load}: improvement of responses, waiting counted, average");
        figures.value(name, "%", mean(&ours), &ours, None, None);
    }
}

/// The thesis' averages are those of its sixteen nodes.
fn foreseen_on_more_nodes(figures: &mut Figures, foretold: &Foretold) {
    let Foretold { load, nodes, improvement, .. } = foretold;
    let target = paper::improvement(load).map(|paper| Target::AtLeast(paper.average));
    let name = format!("{load}, {nodes} nodes, simulated: improvement, average");
    figures.value(name, "%", mean(improvement), improvement, None, target);
}

/// How far the simulation is off the lab: with times of its own, of experiments where it is known how fast the machine was
/// also given that, and given the lab's, where nothing but decisions is left to differ.
fn checked(figures: &mut Figures, check: &Check) {
    foreseen(figures, &check.foreseen, "");
    if check.speeds > 0 {
        foreseen(figures, &check.given_speed, ", the machine's speed given");
    }
    let Check { given_ends_percent, given_ends_promise_percent, .. } = check;
    for (name, each, target) in [
        ("simulation: decisions alike, the lab's ends given", given_ends_percent, Some(ALL_ALIKE)),
        ("simulation: promises alike, the lab's ends given", given_ends_promise_percent, None),
    ] {
        figures.value(name, "%", mean(each), each, None, target);
    }
}

const ALL_ALIKE: Target = Target::AtLeast(100.0);

fn foreseen(figures: &mut Figures, foreseen: &Foreseen, given: &str) {
    let Foreseen { alike_percent, with_percent, without_percent, gains } = foreseen;
    let name = format!("simulation: decisions as in the lab{given}");
    figures.value(name, "%", mean(alike_percent), alike_percent, None, Some(ALL_ALIKE));
    let name = "simulation: run times off, median";
    let target = Some(Target::AtMost(3.0));
    figures.median(format!("{name}{given}"), "%", with_percent, None, target);
    let name = format!("{name}, without Keeptime{given}");
    figures.median(name, "%", without_percent, None, None);
    for interval in INTERVALS {
        let own = gains.iter().filter(|gain| gain.load.interval_most == interval);
        let off: Vec<_> = own.map(|gain| gain.over().abs()).collect();
        let name =
            format!("simulation, intervals up to {interval} s: improvement off, mean{given}");
        figures.value(name, "points", mean(&off), &off, None, None);
    }
}

/// How to get all of this again.
fn command() -> &'static str {
    if quick() { "KEEPTIME_BENCH_QUICK=1 make eval-middleware" } else { "make eval-middleware" }
}

fn lab_name() -> Result<Name> {
    Ok(format!("eval-{NAME}").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figure;
    use anyhow::bail;
    use keeptime_model::application::Application;
    use serde_json::Value;
    use std::fs;
    use std::path::PathBuf;

    type Expected = (f64, usize, Option<f64>, Option<bool>);

    // These are to be counted anew when other parts are recorded.
    const RECORDED_EXPERIMENTS: usize = 21;
    /// Name, value, samples, baseline and whether it is met.
    const RECORDED_FIGURES: [(&str, Expected); 9] = [
        (
            "raycast, intervals up to 10 s: actual over promised, 95th percentile",
            (-2.54, 46, Some(150.0), Some(true)),
        ),
        (
            "raycast, intervals up to 20 s: actual over promised, worst",
            (-5.14, 50, Some(130.0), Some(true)),
        ),
        (
            "render, intervals up to 10 s: actual over promised, worst, plain HTB",
            (212.70, 20, None, None),
        ),
        ("render: actual over promised, worst", (-2.61, 75, Some(229.0), Some(true))),
        ("render: promises for 90 % of runs, kept", (100.0, 75, Some(69.0), None)),
        ("render, intervals up to 20 s: admitted", (71.88, 2, None, None)),
        (
            "render, intervals up to 50 s: admitted, least of mixes or seeds",
            (100.0, 2, None, Some(true)),
        ),
        ("simulation: decisions alike, the lab's ends given", (100.0, 336, None, Some(true))),
        ("simulation: promises alike, the lab's ends given", (100.0, 251, None, None)),
    ];
    /// Name, samples and value as `docs/results.md` has it. Nobody else counts these: draws have seeds, so they are the same
    /// everywhere.
    const RECORDED_SIMULATION: [(&str, usize, &str); 12] = [
        ("simulation: decisions as in the lab", 336, "97.5"),
        ("simulation: run times off, median", 250, "5.0"),
        ("simulation: run times off, median, without Keeptime", 336, "8.2"),
        ("simulation, intervals up to 10 s: improvement off, mean", 7, "21.2"),
        ("simulation, intervals up to 20 s: improvement off, mean", 7, "9.9"),
        ("simulation, intervals up to 50 s: improvement off, mean", 7, "1.3"),
        ("simulation: decisions as in the lab, the machine's speed given", 336, "96.9"),
        ("simulation: run times off, median, the machine's speed given", 251, "2.8"),
        (
            "simulation: run times off, median, without Keeptime, the machine's speed given",
            336,
            "6.3",
        ),
        (
            "simulation, intervals up to 10 s: improvement off, mean, the machine's speed given",
            7,
            "22.9",
        ),
        (
            "simulation, intervals up to 20 s: improvement off, mean, the machine's speed given",
            7,
            "8.2",
        ),
        (
            "simulation, intervals up to 50 s: improvement off, mean, the machine's speed given",
            7,
            "1.5",
        ),
    ];
    const RECORDED_PAGE: [&str; 8] = [
        "97.8 (n = 46)",
        "Figure 4.15",
        "0.1404",
        "n = 528, by <code>make eval-middleware",
        "2.8 % off at the median with Keeptime (n =",
        "100.0 % of 336",
        "10.8 points off on average, and -1.6 with their signs; given how fast the machine was, 10.9",
        "0.32 (<code>render</code>, n = 40), 0.47 (<code>raycast</code>, n = 120)",
    ];

    fn evaluation() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval/middleware")
    }

    /// As it was measured for what is recorded.
    fn measured(renderer: Renderer) -> Result<Measured> {
        let text = fs::read_to_string(evaluation().join(format!("{}.toml", renderer.name())))?;
        let profile = evaluation().join(format!("recorded/{}.json", renderer.name()));
        Measured::read(renderer, Application::from_toml(&text)?, profile)
    }

    fn missing<T>() -> Result<T> {
        bail!("not recorded")
    }

    fn recorded() -> Result<Raw> {
        let directory = evaluation().join("recorded");
        let text = fs::read(directory.join("parts.json"))?;
        let kept: BTreeMap<String, Value> = serde_json::from_slice(&text)?;
        let is_kept = |load: &Load, wait| {
            Arm::ALL.iter().all(|arm| kept.contains_key(&part_name(load, wait, arm.name())))
        };
        let renderers = [measured(Renderer::Raycast)?, measured(Renderer::Render)?];
        let mut parts = Parts::open(&directory)?;
        let mut raw = Raw { machine: parts.part("machine", missing)?, ..Raw::default() };
        for program in ["is", "cg"] {
            let points = parts.part(&format!("rates, {NODES} nodes, {program}"), missing)?;
            raw.rates.curves.push((NODES, program.into(), points));
        }
        for load in loads() {
            // As long as its requests were allowed to when it was recorded.
            let wait = [load.wait(), Nanos::default()].into_iter().find(|w| is_kept(&load, *w));
            if let Some(wait) = wait {
                let experiment = experiment(0, load, wait, &renderers, &mut parts, &directory)?;
                raw.experiments.push(experiment);
            }
        }
        simulate(&mut raw, &renderers, &[])?;
        Ok(raw)
    }

    // Goal: what is recorded makes the same figures and page everywhere, without a lab. Method: one value of each
    // kind, counted from the recorded parts by another program.
    #[test]
    fn what_is_recorded_makes_its_figures_and_page() {
        let raw = recorded().unwrap();
        assert_eq!(raw.experiments.len(), RECORDED_EXPERIMENTS);
        let figures = figures(&raw);
        let figure = |name: &str| {
            let figure = figures.all().iter().find(|figure| figure.name == name);
            figure.unwrap_or_else(|| panic!("no figure {name:?}"))
        };
        let rounded = |figure: &Figure| {
            let value = (100.0 * figure.value).round() / 100.0;
            (value, figure.samples, figure.baseline.map(f64::round), figure.met)
        };
        for (name, expected) in RECORDED_FIGURES {
            assert_eq!(rounded(figure(name)), expected, "{name}");
        }
        for (name, samples, claimed) in RECORDED_SIMULATION {
            let simulated = figure(name);
            let told = (simulated.samples, format!("{:.1}", simulated.value));
            assert_eq!(told, (samples, claimed.to_owned()), "{name}");
        }
        let out = tempfile::tempdir().unwrap();
        page::write(&raw, figures.all(), out.path()).unwrap();
        let page = fs::read_to_string(out.path().join("middleware.html")).unwrap();
        for text in RECORDED_PAGE {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("NaN"));
    }

    // Goal: what is simulated on more nodes is judged by the thesis' average of the same load, and not at all where there is none.
    #[test]
    fn improvements_on_more_nodes_are_judged() {
        let load = Load { interval_most: 10, ..loads()[0] };
        let judged = |load| {
            let foretold = Foretold {
                load,
                nodes: 16,
                requests: 64,
                admitted: vec![75.0; 2],
                improvement: vec![41.0, 45.0],
                by_chance: vec![90.0; 2],
            };
            let mut figures = Figures::of_evaluation(NAME);
            foreseen_on_more_nodes(&mut figures, &foretold);
            figures.all()[0].clone()
        };
        let Figure { name, value, target, met, .. } = judged(load);
        assert_eq!(name, format!("{load}, 16 nodes, simulated: improvement, average"));
        assert_eq!((value, target.as_deref(), met), (43.0, Some(">= 43.06"), Some(false)));
        let light = judged(Load { interval_most: LIGHT, ..load });
        assert_eq!((light.target, light.met), (None, None));
    }

    // Goal: what was recorded when nobody waited keeps its name, and is another part than what is wanted where requests
    // wait.
    #[test]
    fn how_long_requests_may_wait_is_recorded_with_what_came_of_them() {
        let load = Load { interval_most: LIGHT, ..loads()[0] };
        let name = |wait| part_name(&load, wait, Arm::Without.name());
        assert_eq!(name(Nanos::default()), "render, intervals up to 50 s, seed 1, without");
        assert_ne!(name(load.wait()), name(Nanos::default()));
        assert_ne!(name(load.wait()), name(Nanos::from_secs(5)));
    }

    // Goal: of an experiment that has begun nothing is measured that should have been before it, and what was is known.
    #[test]
    fn how_fast_the_machine_is_is_measured_before_an_experiment_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let mut parts = Parts::open(directory.path()).unwrap();
        let render = measured(Renderer::Render).unwrap();
        let (load, wait) = (loads()[0], Nanos::default());
        let known = |parts: &mut Parts| {
            alone_seconds(&load, wait, &render, parts, directory.path()).unwrap()
        };
        parts.part(&part_name(&load, wait, Arm::Htb.name()), || Ok(1.0)).unwrap();
        assert!(known(&mut parts).is_empty());
        parts.part(&part_name(&load, wait, "alone"), || Ok(vec![1.5])).unwrap();
        assert_eq!(known(&mut parts), [1.5]);
    }

    /// What a machine does meanwhile is no arm's at an interval.
    #[test]
    fn every_arm_comes_first_at_every_interval() {
        for interval in INTERVALS {
            let at = loads().into_iter().enumerate();
            let at = at.filter(|(_, load)| load.interval_most == interval);
            let first: std::collections::BTreeSet<_> =
                at.map(|(number, _)| order(number)[0]).collect();
            assert_eq!(first, Arm::ALL.into(), "{interval} s");
        }
    }

    #[test]
    fn a_seed_of_launching_is_one_experiments_and_no_loads() {
        let all: Vec<_> = (0..loads().len()).flat_map(launching_seeds).collect();
        assert!(all.is_sorted_by(|a, b| a < b));
        assert!(loads().iter().all(|load| !all.contains(&load.seed)));
        assert_eq!(all.len() as u64, loads().len() as u64 * DRAWS);
    }

    #[test]
    fn promises_are_for_the_share_of_runs_that_figures_name() {
        let raycast = measured(Renderer::Raycast).unwrap();
        let request = loads()[0].requests(1, 1)[0];
        let asked = raycast.goal(&SubTask { setting: 0, ..request }).unwrap().goal().unwrap();
        assert_eq!(asked.quantile.unwrap().to_string(), format!("{PROMISED_PERCENT} %"));
    }

    #[test]
    fn all_are_to_be_admitted_at_light_load_whatever_the_paper_tells() {
        for renderer in Renderer::ALL {
            assert_eq!(admission_target(renderer, LIGHT), Some(Target::AtLeast(100.0)));
            assert_eq!(
                (admission_target(renderer, 20), paper::admission(renderer, 20)),
                (None, None)
            );
        }
        assert_eq!(paper::admission(Renderer::Raycast, LIGHT), None);
    }
}
