//! How long a plan takes: 10,000 curve points, 1,000 nodes.
//!
//! `cargo run --release -p keeptime-planner --example plan_speed [-- RUNS]` prints one JSON object a
//! line: least, median, 90th and 99th percentile in microseconds, and the machine's load.
//!
//! Timed: [`schedule`], all of it, the search for nodes and the explanation included. Not timed,
//! since it is done once: fitting the curves (for each change of the profile) and preparing the
//! topology; their cost is printed by itself. Nothing has to be rebuilt after a reservation: the
//! order of the nodes by free bandwidth is computed inside the timed part.

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
use std::hint::black_box;
use std::time::Instant;

const NODES: usize = 1_000;
const RACK: usize = 40;
/// 100 parameter combinations on 10 numbers of nodes with 10 points each.
const SIZES: usize = 100;
const NODE_COUNTS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const POINTS: u64 = 10;

fn name(text: String) -> Name {
    text.parse().expect("made of letters and digits")
}

/// 25 racks of 40 nodes at 10 Gbit/s, each with an uplink of 100 Gbit/s (oversubscribed 4 to 1).
fn topology() -> Topology {
    let node = |n: usize| Node {
        name: name(format!("n{n}")),
        cpu: CpuPpm::from_percent(800),
        address: None,
    };
    let link = |a: String, b: String, mbit: u64| Link {
        between: [name(a), name(b)],
        rate: BitsPerSecond::from_mbit(mbit),
        rate_back: None,
    };
    let racks = NODES / RACK;
    let mut links: Vec<_> =
        (0..NODES).map(|n| link(format!("n{n}"), format!("s{}", n / RACK), 10_000)).collect();
    links.extend((0..racks).map(|r| link(format!("s{r}"), "core".into(), 100_000)));
    let switches = (0..racks).map(|r| format!("s{r}")).chain(["core".into()]);
    Topology::try_from(TopologyFile {
        name: name("thousand".into()),
        nodes: (0..NODES).map(node).collect(),
        switches: switches.map(|s| Switch { name: name(s) }).collect(),
        links,
    })
    .expect("a tree")
}

fn application(pattern: &str) -> Application {
    let values: Vec<_> = (0..SIZES).map(|s| format!("\"{s}\"")).collect();
    let text = format!(
        "name = \"app\"\ncommand = [\"app\", \"{{size}}\", \"{{tens}}\"]\npattern = \"{pattern}\"\n\
         nodes = {NODE_COUNTS:?}\ncpu = \"100 %\"\ntimeout = \"600 s\"\ntime = \"wall\"\n\
         parameters = [{{ name = \"tens\", values = [{}] }}, {{ name = \"size\", values = [{}] }}]",
        values[..10].join(", "),
        values[..10].join(", "),
    );
    Application::from_toml(&text).expect("sound")
}

fn profile(application: &Application) -> Profile {
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(10_000),
        process_cpu_ppm: application.cpu(),
        processor: String::new(),
        mpi: String::new(),
        command: vec![],
    };
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    for (rank, parameters) in application.grid().iter().enumerate() {
        for nodes in NODE_COUNTS {
            for point in 0..POINTS {
                let mbit = 10 << point;
                let compute = 20_000_000_000 / u64::from(nodes) + rank as u64 * 1_000_000;
                for run in 0..3 {
                    let time = compute + 400_000_000_000 / mbit + run * 5_000_000;
                    let rate = BitsPerSecond::from_mbit(mbit);
                    profile.record(parameters, nodes, rate, Nanos::new(time));
                }
            }
        }
    }
    profile
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// The cluster with random flows on every node.
fn loaded(index: &PlacementIndex, seed: u64) -> Availability {
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

/// Microseconds, ascending.
fn timed(runs: usize, mut run: impl FnMut(usize)) -> Vec<f64> {
    let one = |number| {
        let start = Instant::now();
        run(number);
        start.elapsed().as_secs_f64() * 1e6
    };
    let mut times: Vec<f64> = (0..runs).map(one).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn report(what: &str, times: &[f64], note: &str) {
    // Runs that other programs interrupt show in the 99th percentile: say how busy the machine is.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    println!(
        "{{\"name\": \"{what}\", \"unit\": \"us\", \"samples\": {}, \"least\": {:.0}, \"median\": {:.0}, \
         \"p90\": {:.0}, \"p99\": {:.0}, \"load\": \"{}\", \
         \"note\": \"{note}\"}}",
        times.len(),
        at(0.0),
        at(0.5),
        at(0.9),
        at(0.99),
        load.split(' ').next().unwrap_or_default()
    );
}

fn main() {
    let runs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let index = PlacementIndex::new(topology());
    let build = timed(20, |_| drop(black_box(PlacementIndex::new(topology()))));
    report("index-build", &build, "once for each topology");
    let idle = Availability::full(index.topology(), |rate| rate);
    let loads: Vec<_> = (0..16).map(|seed| loaded(&index, seed)).collect();
    for pattern in ["hypercube", "ring", "all-to-all"] {
        let application = application(pattern);
        let measured = profile(&application);
        let fit = timed(10, |_| {
            drop(black_box(FittedProfile::new(application.clone(), &measured)));
        });
        report(&format!("{pattern}-fit"), &fit, "once for each change of the profile");
        let fitted = FittedProfile::new(application, &measured).expect("sound");
        let points: usize = fitted.curves().iter().map(|c| c.points().len()).sum();
        for (load, states) in [("idle", std::slice::from_ref(&idle)), ("loaded", &loads)] {
            let goals = [
                ("fastest", Goal { prefer: Preference::Fastest, ..Goal::default() }),
                ("cheapest", Goal { prefer: Preference::Cheapest, ..Goal::default() }),
                ("refused", Goal { within: Some(Nanos::new(1_000)), ..Goal::default() }),
            ];
            for (kind, goal) in goals {
                let mut planned = 0;
                let times = timed(runs, |run| {
                    let free = &states[run % states.len()];
                    let decision = schedule(&goal, &fitted, &index, free, &Options::default());
                    planned += usize::from(matches!(decision.verdict, Verdict::Planned(_)));
                    black_box(decision);
                });
                let note = format!("{points} points, {NODES} nodes, {planned} of {runs} planned");
                report(&format!("{pattern}-{load}-{kind}"), &times, &note);
            }
        }
    }
}
