//! How long a plan takes: 10,000 curve points, 1,000 nodes.
//!
//! Timed: [`schedule`], all of it, the search for nodes and the explanation included. Not timed,
//! since it is done once: fitting the curves (for each change of the profile) and preparing the
//! topology; their cost is printed by itself. Nothing has to be rebuilt after a reservation: the
//! order of the nodes by free bandwidth is computed inside the timed part. The cases are timed in
//! turns, so that each finds caches that others have used.

use crate::figures::{Figures, Target, quantile};
use crate::quick;
use anyhow::{Context, Result};
use keeptime::machine::Machine;
use keeptime_model::application::Application;
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::name::Name;
use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::topology::{Link, Node, NodeIndex, Switch, Topology, TopologyFile};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use keeptime_planner::availability::{Availability, Placement, PlannedFlow};
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::translate::{Options, Verdict, schedule};
use keeptime_planner::tree::PlacementIndex;
use serde::Serialize;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const NODES: usize = 1_000;
const RACK: usize = 40;
/// 100 parameter combinations on 10 numbers of nodes with 10 points each.
const SIZES: usize = 100;
const NODE_COUNTS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const POINTS: u64 = 10;
const PATTERNS: [&str; 3] = ["hypercube", "ring", "all-to-all"];
/// Different loads, used in turn.
const LOADS: u64 = 16;

/// Everything that was measured, in microseconds.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    index_build: Vec<f64>,
    cases: Vec<Case>,
    fits: Vec<(&'static str, Vec<f64>)>,
}

/// One kind of request.
#[derive(Debug, Serialize)]
struct Case {
    name: String,
    curve_points: usize,
    /// In the order of measurement.
    microseconds: Vec<f64>,
    /// How many of the requests were planned; the others were refused.
    planned: usize,
}

/// Times all cases in turns and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let rounds = if quick() { 50 } else { 1_000 };
    let machine = Machine::here();
    let topology = topology()?;
    let build = || PlacementIndex::new(topology.clone());
    let index_build = (0..20).map(|_| timed(|| drop(black_box(build())))).collect();
    let index = build();
    let mut fits = Vec::new();
    let mut profiles = Vec::new();
    for pattern in PATTERNS {
        let application = application(pattern)?;
        let measured = profile(&application);
        let fit = || FittedProfile::new(application.clone(), &measured);
        fits.push((pattern, (0..10).map(|_| timed(|| drop(black_box(fit())))).collect()));
        profiles.push(fit()?);
    }
    let idle = [Availability::full(index.topology(), |rate| rate)];
    let loaded: Vec<_> = (0..LOADS).map(|seed| load(&index, seed)).collect();
    let states = [("idle", idle.as_slice()), ("loaded", loaded.as_slice())];
    let mut cases = Vec::new();
    for round in 0..rounds {
        let mut number = 0;
        for (pattern, profile) in PATTERNS.iter().zip(&profiles) {
            for (state, frees) in states {
                for (kind, goal) in goals() {
                    if round == 0 {
                        cases.push(Case::new(format!("{pattern}, {state}, {kind}"), profile));
                    }
                    cases[number].time(&goal, profile, &index, &frees[round % frees.len()]);
                    number += 1;
                }
            }
        }
    }
    let raw = Raw { machine, index_build, cases, fits };
    figures(&raw)?.finish(out, &raw)
}

impl Case {
    fn new(name: String, profile: &FittedProfile) -> Self {
        let curve_points = profile.curves().iter().map(|c| c.points().len()).sum();
        Self { name, curve_points, microseconds: Vec::new(), planned: 0 }
    }

    fn time(
        &mut self,
        goal: &Goal,
        profile: &FittedProfile,
        index: &PlacementIndex,
        free: &Availability,
    ) {
        let mut planned = false;
        self.microseconds.push(timed(|| {
            let decision = schedule(goal, profile, index, free, &Options::default());
            planned = matches!(decision.verdict, Verdict::Planned(_));
            black_box(decision);
        }));
        self.planned += usize::from(planned);
    }
}

fn figures(raw: &Raw) -> Result<Figures> {
    let mut figures = Figures::new("plan");
    let median = |case: &&Case| quantile(&case.microseconds, 0.5);
    let worst = raw.cases.iter().max_by(|a, b| median(a).total_cmp(&median(b)));
    let worst = worst.context("no case was measured")?;
    figures.median(
        format!("plan, worst case ({})", worst.name),
        "us",
        &worst.microseconds,
        None,
        Some(Target::AtMost(1_000.0)),
    );
    for case in &raw.cases {
        let samples = &case.microseconds;
        figures.median(format!("plan, {}", case.name), "us", samples, None, None);
        let p99 = quantile(samples, 0.99);
        figures.value(format!("plan, {}, p99", case.name), "us", p99, samples, None, None);
    }
    for (pattern, samples) in &raw.fits {
        let name = format!("fit of a profile, {pattern} (once a profile)");
        figures.median(name, "us", samples, None, None);
    }
    figures.median("index of a topology (once a topology)", "us", &raw.index_build, None, None);
    Ok(figures)
}

fn goals() -> [(&'static str, Goal); 3] {
    [
        ("fastest", Goal { prefer: Preference::Fastest, ..Goal::default() }),
        ("cheapest", Goal { prefer: Preference::Cheapest, ..Goal::default() }),
        ("refused", Goal { within: Some(Nanos::new(1_000)), ..Goal::default() }),
    ]
}

/// 25 racks of 40 nodes at 10 Gbit/s, each with an uplink of 100 Gbit/s (oversubscribed 4 to 1).
fn topology() -> Result<Topology> {
    let name = |text: String| -> Result<Name> { Ok(text.parse()?) };
    let link = |a: String, b: String, mbit: u64| -> Result<Link> {
        let rate = BitsPerSecond::from_mbit(mbit);
        Ok(Link { between: [name(a)?, name(b)?], rate, rate_back: None })
    };
    let cpu = CpuPpm::from_percent(800);
    let node = |n| Ok(Node { name: name(format!("n{n}"))?, cpu, address: None, disk: None });
    let racks = NODES / RACK;
    let down = (0..NODES).map(|n| link(format!("n{n}"), format!("s{}", n / RACK), 10_000));
    let up = (0..racks).map(|r| link(format!("s{r}"), "core".into(), 100_000));
    let switches = (0..racks).map(|r| format!("s{r}")).chain(["core".into()]);
    Ok(Topology::try_from(TopologyFile {
        name: name("thousand".into())?,
        nodes: (0..NODES).map(node).collect::<Result<_>>()?,
        switches: switches.map(|s| Ok(Switch { name: name(s)? })).collect::<Result<_>>()?,
        links: down.chain(up).collect::<Result<_>>()?,
    })?)
}

fn application(pattern: &str) -> Result<Application> {
    let values: Vec<_> = (0..SIZES / 10).map(|s| format!("\"{s}\"")).collect();
    let values = values.join(", ");
    let text = format!(
        "name = \"app\"\ncommand = [\"app\", \"{{size}}\", \"{{tens}}\"]\npattern = \"{pattern}\"\n\
         nodes = {NODE_COUNTS:?}\ncpu = \"100 %\"\ntimeout = \"600 s\"\ntime = \"wall\"\n\
         parameters = [{{ name = \"tens\", values = [{values}] }}, \
         {{ name = \"size\", values = [{values}] }}]",
    );
    Ok(Application::from_toml(&text)?)
}

fn profile(application: &Application) -> Profile {
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(10_000),
        process_cpu_ppm: application.cpu(),
        processor: String::new(),
        mpi: String::new(),
        command: vec![],
        program: None,
    };
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    for (rank, parameters) in application.grid().iter().enumerate() {
        for nodes in NODE_COUNTS {
            let compute = 20_000_000_000 / u64::from(nodes) + rank as u64 * 1_000_000;
            for mbit in (0..POINTS).map(|point| 10 << point) {
                let rate = BitsPerSecond::from_mbit(mbit);
                for run in 0..3 {
                    let time = compute + 400_000_000_000 / mbit + run * 5_000_000;
                    profile.record(parameters, nodes, rate, Nanos::new(time));
                }
            }
        }
    }
    profile
}

/// The cluster with random flows on every node.
fn load(index: &PlacementIndex, seed: u64) -> Availability {
    let mut random = Random(seed);
    let mut free = Availability::full(index.topology(), |rate| rate);
    for from in (0..NODES as u32).map(NodeIndex) {
        let to = NodeIndex(random.below(NODES as u64) as u32);
        let mut rate = BitsPerSecond::from_mbit(250 * random.below(9));
        index.for_each_direction(from, to, |d| rate = rate.min(free.link(d)));
        let flows = if from == to { vec![] } else { vec![PlannedFlow { from, to, rate }] };
        let cpu = CpuPpm::from_percent(100 * random.below(9) as u32);
        free.take(index, &Placement { nodes: vec![from], cpu, flows });
    }
    free
}

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    /// At least 0 and below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}

/// Microseconds.
fn timed(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64() * 1e6
}
