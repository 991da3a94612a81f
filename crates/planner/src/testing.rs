//! Random inputs for the property tests of this crate.

use crate::availability::{Availability, Placement, PlannedFlow};
use crate::fitted::FittedProfile;
use crate::tree::PlacementIndex;
use keeptime_model::application::{Application, Parameters};
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::name::Name;
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::profile::{Conditions, Curve, Point, Profile};
use keeptime_model::topology::{
    Link, LinkDirection, Node, NodeIndex, Switch, Topology, TopologyFile,
};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use proptest::prelude::*;
use std::ops::Range;

/// A random tree with `nodes` nodes and up to three switches, any of them inside or at the edge.
pub(crate) fn random_tree(nodes: Range<usize>) -> impl Strategy<Value = Topology> {
    let shape = (nodes, 0usize..4).prop_flat_map(|(nodes, switches)| {
        let links = nodes + switches - 1;
        let link = (any::<prop::sample::Index>(), 5u64..40, 5u64..40);
        let numbers = Just((0..nodes + switches).collect::<Vec<_>>()).prop_shuffle();
        (Just(nodes), numbers, prop::collection::vec(link, links))
    });
    shape.prop_map(|(nodes, numbers, links)| {
        let name = |vertex: usize| format!("v{vertex}").parse::<Name>().unwrap();
        let link =
            |(index, (parent, there, back)): (usize, &(prop::sample::Index, u64, u64))| Link {
                between: [name(numbers[index + 1]), name(numbers[parent.index(index + 1)])],
                rate: BitsPerSecond::from_mbit(*there),
                rate_back: Some(BitsPerSecond::from_mbit(*back)),
            };
        let cpu = CpuPpm::from_percent(40);
        Topology::try_from(TopologyFile {
            name: name(0),
            nodes: (0..nodes)
                .map(|v| Node { name: name(v), cpu, address: None, disk: None })
                .collect(),
            switches: (nodes..numbers.len()).map(|v| Switch { name: name(v) }).collect(),
            links: links.iter().enumerate().map(link).collect(),
        })
        .unwrap()
    })
}

/// Any pattern; an explicit one among up to four ranks.
pub(crate) fn any_pattern() -> impl Strategy<Value = Pattern> {
    let flow = (0u32..4, 0u32..4).prop_filter("ends", |(from, to)| from != to);
    let matrix = prop::collection::btree_set(flow, 1..6).prop_map(|flows| {
        Pattern::Matrix(flows.into_iter().map(|(from, to)| RankFlow { from, to }).collect())
    });
    prop_oneof![
        Just(Pattern::Hypercube),
        Just(Pattern::AllToAll),
        Just(Pattern::Ring),
        Just(Pattern::Pairs),
        matrix,
    ]
}

/// A generator for what a seed decides.
pub(crate) struct Lcg(pub u64);

impl Lcg {
    /// The next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A program whose time goes with nodes and bandwidth as [`crate::scaling`] has it: seconds and megabits.
#[derive(Clone, Copy)]
pub(crate) struct Scaled {
    pub constant: f64,
    pub computing: f64,
    pub synchronisation: f64,
    /// What a rank sends, by the number of nodes.
    pub volume: fn(f64) -> f64,
    /// Mbit/s.
    pub saturation: f64,
    /// What runs take in times of that, by the number of nodes.
    pub factor: fn(u32) -> f64,
    /// One standard deviation of single runs, as a part of their time.
    pub noise: f64,
}

impl Scaled {
    /// The same volume for each flow on any number of nodes, and runs that are all alike.
    pub(crate) const EXACT: Self = Self {
        constant: 0.2,
        computing: 6.0,
        synchronisation: 0.05,
        volume: |_| 4.0,
        saturation: 25.0,
        factor: |_| 1.0,
        noise: 0.0,
    };

    /// Bandwidths to measure at, in Mbit/s.
    pub(crate) const GRID: [u64; 7] = [4, 6, 9, 13, 18, 25, 35];

    /// The time that half of the runs take.
    pub(crate) fn seconds(&self, nodes: u32, mbit: u64) -> f64 {
        let count = f64::from(nodes);
        let volume = if nodes > 1 { (self.volume)(count) } else { 0.0 };
        let moving = volume / self.saturation.min(mbit as f64);
        let fixed = self.constant + self.computing / count + self.synchronisation * count.log2();
        (self.factor)(nodes) * (fixed + moving)
    }

    /// What a run takes: nearly normal around that.
    pub(crate) fn run(&self, nodes: u32, mbit: u64, random: &mut Lcg) -> Nanos {
        let sum: f64 = (0..4).map(|_| random.below(2_000_001) as f64 / 1e6 - 1.0).sum();
        let time = self.seconds(nodes, mbit) * (1.0 + self.noise * sum / 1.1547);
        Nanos::from_secs_f64(time).unwrap()
    }

    /// So many runs at each bandwidth of the grid; on one node, three at the greatest.
    pub(crate) fn curve(&self, nodes: u32, samples: usize, random: &mut Lcg) -> Curve {
        let (first, samples) = if nodes > 1 { (0, samples) } else { (Self::GRID.len() - 1, 3) };
        let point = |mbit: &u64| Point {
            bandwidth_bits_per_second: BitsPerSecond::from_mbit(*mbit),
            samples_nanos: (0..samples).map(|_| self.run(nodes, *mbit, random)).collect(),
        };
        let points = Self::GRID[first..].iter().map(point).collect();
        Curve { parameters: Parameters::new(), nodes, points }
    }
}

/// The cluster with a few random flows and processes on it.
pub(crate) fn loaded(index: &PlacementIndex, seed: u64) -> Availability {
    let mut random = Lcg(seed);
    let mut free = Availability::full(index.topology(), |rate| rate);
    let count = index.topology().nodes().len() as u64;
    for _ in 0..random.below(2 * count) {
        let [from, to] = [(); 2].map(|()| NodeIndex(random.below(count) as u32));
        let mut rate = BitsPerSecond::new(u64::MAX);
        index.for_each_direction(from, to, |d: LinkDirection| rate = rate.min(free.link(d)));
        let rate = rate.divided_floor(1 + random.below(4));
        let cpu = free.cpu(from).min(CpuPpm::from_percent(random.below(12) as u32));
        let flows = if from == to { vec![] } else { vec![PlannedFlow { from, to, rate }] };
        free.take(index, &Placement { nodes: vec![from], cpu, flows });
    }
    free
}

const SIZES: [&str; 3] = ["1024", "512", "256"];
const NODES: [u32; 4] = [1, 2, 4, 8];

/// An application with two parameters on 1, 2, 4 and 8 nodes.
pub(crate) fn application(pattern: &Pattern) -> Application {
    let text = r#"
        name = "ray"
        command = ["ray", "{size}", "{interleave}"]
        pattern = "PATTERN"
        nodes = [1, 2, 4, 8]
        cpu = "20 %"
        timeout = "60 s"
        time = "wall"
        parameters = [{ name = "size", values = ["1024", "512", "256"] },
                      { name = "interleave", values = ["0", "2"] }]
    "#;
    Application::from_toml(&text.replace("PATTERN", &pattern.to_string())).unwrap()
}

/// Conditions of no consequence.
pub(crate) fn conditions() -> Conditions {
    Conditions {
        link_bits_per_second: BitsPerSecond::from_mbit(10),
        process_cpu_ppm: CpuPpm::from_percent(20),
        processor: String::new(),
        mpi: String::new(),
        command: vec![],
        program: None,
    }
}

/// Any profile: curves on 1 to 8 nodes with random points up to 20 Mbit/s and 4 s.
pub(crate) fn any_profile() -> impl Strategy<Value = FittedProfile> {
    let samples = prop::collection::vec(1u64..4_000_000, 1..4);
    let points = prop::collection::btree_map(100u64..20_000_000, samples, 1..6);
    let curve = (0usize..3, 0usize..2, 0usize..4, points);
    let pattern =
        prop_oneof![Just(Pattern::Hypercube), Just(Pattern::AllToAll), Just(Pattern::Ring),];
    (pattern, prop::collection::vec(curve, 1..8)).prop_map(|(pattern, curves)| {
        let application = application(&pattern);
        let mut profile = Profile::empty(application.name().clone(), conditions(), vec![]);
        for (size, interleave, nodes, points) in curves {
            let parameters = parameters(SIZES[size], ["0", "2"][interleave]);
            for (bandwidth, samples) in points {
                for micros in samples {
                    let rate = BitsPerSecond::new(bandwidth);
                    let time = Nanos::new(micros * 1_000 + micros % 7);
                    profile.record(&parameters, NODES[nodes], rate, time);
                }
            }
        }
        FittedProfile::new(application, &profile).unwrap()
    })
}

/// Of that application.
pub(crate) fn parameters(size: &str, interleave: &str) -> Parameters {
    [("size", size), ("interleave", interleave)]
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.to_string()))
        .collect()
}

/// Any goal for such a profile.
pub(crate) fn any_goal() -> impl Strategy<Value = Goal> {
    let bound = || prop::option::of(1u64..4_000_000_000);
    let set = (prop::option::of(0usize..3), prop::option::of(0usize..2));
    let nodes = prop::option::weighted(0.3, 0usize..4);
    let prefer = prop_oneof![
        Just(Preference::Fastest),
        Just(Preference::Best),
        Just(Preference::Cheapest),
        Just(Preference::Balanced)
    ];
    (bound(), bound(), set, nodes, prefer).prop_map(|(a, b, (size, interleave), nodes, prefer)| {
        let (at_least, within) = match (a, b) {
            (Some(a), Some(b)) => (Some(a.min(b)), Some(a.max(b))),
            bounds => bounds,
        };
        let mut set = parameters(SIZES[size.unwrap_or(0)], ["0", "2"][interleave.unwrap_or(0)]);
        set.retain(|name, _| match name.as_str() {
            "size" => size.is_some(),
            _ => interleave.is_some(),
        });
        Goal {
            at_least: at_least.map(Nanos::new),
            within: within.map(Nanos::new),
            set,
            nodes: nodes.map(|n| NODES[n]),
            prefer,
            quantile: None,
        }
    })
}
