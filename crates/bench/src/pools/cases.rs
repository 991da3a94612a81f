//! The paper's experiments in virtual time: bursts to two sites in turn (figures 9 and 10) and the
//! three cases of high and low priority (figures 11 to 13), with a third site beside; and sites at
//! 80 % load, whose moves are watched.

use super::autoscalers::{Autoscaled, Knative, Kubernetes};
use super::world::{LOOK, SERVICE, Service, world};
use super::yarn::Yarn;
use keeptime_model::units::Nanos;
use keeptime_pools::holdings::Place;
use keeptime_pools::policy::{Policy, PolicyKind};
use keeptime_pools::pool::{Guarantee, KindIndex, Pool, Site, SiteIndex, Weight};
use serde::Serialize;

/// The paper's 16 threads on each of 8 balancers.
const CLIENTS: u64 = 128;
/// More requests than can be answered.
const ENDLESS: u64 = u64::MAX / 2;
/// The paper's guarantees.
const USUAL: Guarantee = Guarantee { hard: 2, soft: 6, max: 7 };
const HIGH: SiteIndex = SiteIndex(0);
const LOW: SiteIndex = SiteIndex(1);
const BESIDE: SiteIndex = SiteIndex(2);

/// All policies that are compared.
pub const POLICIES: [&str; 8] =
    ["rigid", "reconf", "reconf-p", "reconf-pq", "kubernetes", "knative", "yarn", "keeptime"];

/// A policy by its name.
pub fn policy(name: &str) -> Box<dyn Policy> {
    match name {
        "kubernetes" => Box::new(Autoscaled::new(Kubernetes::default())),
        "knative" => Box::new(Autoscaled::new(Knative::default())),
        "yarn" => Box::new(Yarn::default()),
        other => other.parse::<PolicyKind>().unwrap_or(PolicyKind::Rigid).policy(),
    }
}

/// Which of the two floods comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Case {
    /// Low priority first.
    One,
    /// High priority first.
    Two,
    /// Both at once.
    Three,
}

impl Case {
    pub const ALL: [Self; 3] = [Self::One, Self::Two, Self::Three];
}

/// What came of one run of a case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseRun {
    pub policy: &'static str,
    pub case: Case,
    pub sites: usize,
    /// Requests a second while both floods last.
    pub high: f64,
    pub low: f64,
    /// Looks at which every site had its hard guarantee, from the start, in percent.
    pub hard_met: f64,
    /// The same of the site of low priority alone.
    pub low_met: f64,
    /// From the second flood to the first node more that serves it, in milliseconds.
    pub reaction: Option<f64>,
}

/// What came of a trace.
#[derive(Debug, Clone, Serialize)]
pub struct TraceRun {
    pub policy: &'static str,
    /// Looks at which the sites of high and low priority had their hard guarantees, in percent.
    pub high_met: f64,
    pub low_met: f64,
    /// Requests that waited, on average.
    pub waiting: f64,
    pub moves: usize,
}

/// What came of one run of bursts.
#[derive(Debug, Clone, Serialize)]
pub struct BurstRun {
    pub setting: &'static str,
    pub burst: u64,
    /// Requests a second, over all.
    pub throughput: f64,
    /// Nodes that served the site of the burst, on average over all looks.
    pub nodes: f64,
}

/// What came of one run at 80 % load.
#[derive(Debug, Clone, Serialize)]
pub struct SteadyRun {
    pub policy: &'static str,
    /// Whether the sites' shares of the load stay as they are.
    pub stays: bool,
    pub moves: usize,
    pub reversals: usize,
    /// Those of them that went back while the load was the same as when they came.
    pub unfounded: usize,
    /// Requests that waited, on average.
    pub waiting: f64,
}

/// Two floods on eight nodes, among two sites or with a third one beside that has little to do.
pub fn case(name: &'static str, case: Case, sites: usize, seconds: u64, seed: u64) -> CaseRun {
    flooded(name, case, sites, seconds, seed, Service::Exponential).0
}

/// The same with requests that take so long, and how many nodes served the site of low priority at each
/// look.
pub fn flooded(
    name: &'static str,
    case: Case,
    sites: usize,
    seconds: u64,
    seed: u64,
    service: Service,
) -> (CaseRun, Vec<u32>) {
    let pool = pool(8, &[(USUAL, 3), (USUAL, 1), (USUAL, 2)][..sites]);
    let world = world(pool, spread(8, sites as u32), policy(name), seed);
    let mut world = world.with_service(service);
    if sites > 2 {
        world.open(BESIDE, 0.5 / SERVICE.as_secs_f64());
    }
    let second = |n| Nanos::from_secs(n);
    world.run_until(second(1));
    let (first, then) = if case == Case::Two { (HIGH, LOW) } else { (LOW, HIGH) };
    world.flood(first, CLIENTS, ENDLESS);
    // Long enough for the slowest of all, which looks every 15 s.
    let warm = if case == Case::Three { second(1) } else { second(61) };
    world.run_until(warm);
    let before = world.seen.nodes.len();
    world.flood(then, CLIENTS, ENDLESS);
    let start = world.seen.completed.clone();
    world.run_until(warm.saturating_add(second(seconds)));
    let rate = |site: SiteIndex| {
        let at = site.0 as usize;
        (world.seen.completed[at] - start[at]) as f64 / seconds as f64
    };
    let all = (0..sites as u32).map(|site| world.seen.hard_percent(SiteIndex(site)));
    let had = world.seen.nodes.get(before.saturating_sub(1)).map_or(0, |n| n[then.0 as usize]);
    let grown = world.seen.nodes[before..].iter().position(|n| n[then.0 as usize] > had);
    let run = CaseRun {
        policy: name,
        case,
        sites,
        high: rate(HIGH),
        low: rate(LOW),
        hard_met: all.fold(100.0, f64::min),
        low_met: world.seen.hard_percent(LOW),
        reaction: grown.map(|looks| (looks + 1) as f64 * LOOK.as_secs_f64() * 1e3),
    };
    (run, world.seen.nodes.iter().map(|nodes| nodes[LOW.0 as usize]).collect())
}

/// Requests of two sites on eight nodes, both as many as those of a web site in two days, one of them
/// half a day later: a minute of `per_minute` lasts as long as `minute`. At the busiest one, all nodes have
/// something to do.
pub fn replayed(name: &'static str, per_minute: &[f64], minute: Nanos, seed: u64) -> TraceRun {
    let pool = pool(8, &[(USUAL, 3), (USUAL, 1)]);
    let mut world = world(pool, spread(8, 2), policy(name), seed);
    let later = |at: usize| per_minute[(at + per_minute.len() / 4) % per_minute.len()];
    let both = per_minute.iter().enumerate().map(|(at, high)| high + later(at));
    let scale = 8.0 / SERVICE.as_secs_f64() / both.fold(1.0, f64::max);
    for (at, high) in per_minute.iter().enumerate() {
        world.open(HIGH, high * scale);
        world.open(LOW, later(at) * scale);
        world.run_until(Nanos::new(minute.get() * (at as u64 + 1)));
    }
    let [high, low] = [HIGH, LOW].map(|site| world.seen.hard_percent(site));
    let waiting = world.seen.waiting();
    TraceRun { policy: name, high_met: high, low_met: low, waiting, moves: world.seen.moves.len() }
}

/// Bursts of `burst` requests for one site, then for the other, and so on: on 8 nodes under a policy,
/// or on 14 where nothing moves ("rigid-large").
pub fn bursts(setting: &'static str, burst: u64, total: u64, seed: u64) -> BurstRun {
    let nodes = if setting == "rigid-large" { 14 } else { 8 };
    let guarantee = Guarantee { hard: 1, soft: 4, max: 7 };
    let pool = pool(nodes, &[(guarantee, 1), (guarantee, 1)]);
    let mut world = world(pool, spread(nodes, 2), policy(setting), seed);
    let count = (total / burst).max(4);
    let (mut used, mut looks) = (0u64, 0u64);
    for turn in 0..count {
        let site = SiteIndex((turn % 2) as u32);
        let before = world.seen.nodes.len();
        world.flood(site, CLIENTS, burst);
        world.run_out(site);
        let seen = &world.seen.nodes[before..];
        used += seen.iter().map(|nodes| u64::from(nodes[site.0 as usize])).sum::<u64>();
        looks += seen.len() as u64;
    }
    BurstRun {
        setting,
        burst,
        throughput: (count * burst) as f64 / world.now().as_secs_f64(),
        nodes: used as f64 / looks.max(1) as f64,
    }
}

/// Three sites of one priority at 80 % load. Their shares of it, which are by chance, stay, or change
/// every 20 s.
pub fn steady(name: &'static str, stays: bool, seconds: u64, seed: u64) -> SteadyRun {
    let guarantee = Guarantee { hard: 1, soft: 3, max: 8 };
    let pool = pool(12, &[(guarantee, 1), (guarantee, 1), (guarantee, 1)]);
    let mut world = world(pool, spread(12, 3), policy(name), seed);
    let mut random = crate::plan::Random(seed);
    let all = 0.8 * 12.0 / SERVICE.as_secs_f64();
    let (mut end, mut changes) = (0, Vec::new());
    while end < seconds {
        if !stays || end == 0 {
            changes.push(world.now());
            let shares = [(); 3].map(|()| 1.0 + random.below(1_000) as f64 / 1_000.0);
            let sum: f64 = shares.iter().sum();
            for (site, share) in (0..).map(SiteIndex).zip(shares) {
                world.open(site, all * share / sum);
            }
        }
        end += 20;
        world.run_until(Nanos::from_secs(end));
        if end == 20 {
            // From the first placement, which nobody chose, to one that fits.
            drop(world.take_seen());
        }
    }
    let seen = &world.seen;
    let (reversals, unfounded) = (seen.reversals(&[]), seen.reversals(&changes));
    let (moves, waiting) = (seen.moves.len(), seen.waiting());
    SteadyRun { policy: name, stays, moves, reversals, unfounded, waiting }
}

fn pool(nodes: u32, sites: &[(Guarantee, u32)]) -> Pool {
    let site = |(at, (guarantee, priority)): (usize, &(Guarantee, u32))| Site {
        name: format!("site-{at}").parse().expect("a letter, then letters, digits and '-'"),
        guarantee: *guarantee,
        priority: *priority,
        weights: vec![Weight::STANDARD],
    };
    let sites = sites.iter().enumerate().map(site).collect();
    let kinds = vec!["server".parse().expect("letters")];
    let nodes = vec![KindIndex(0); nodes as usize];
    Pool::new(kinds, nodes, sites).expect("guarantees within the pool")
}

/// As evenly as can be.
fn spread(nodes: u32, sites: u32) -> Vec<Place> {
    (0..nodes).map(|node| Place::Serving(SiteIndex(node % sites))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &'static str, which: Case) -> CaseRun {
        case(name, which, 2, 10, 7)
    }

    /// Requests a second of so many nodes without a pause.
    fn nodes(count: f64) -> f64 {
        count / SERVICE.as_secs_f64()
    }

    #[test]
    fn case_1_high_priority_has_one_node_under_reconf_and_its_soft_guarantee_under_ours() {
        let (basic, ours) = (run("reconf", Case::One), run("keeptime", Case::One));
        assert!((basic.high / nodes(1.0) - 1.0).abs() < 0.1, "{basic:?}");
        assert!((ours.high / nodes(6.0) - 1.0).abs() < 0.05, "{ours:?}");
        assert!(ours.high >= 5.0 * basic.high);
    }

    #[test]
    fn guarantees_are_met_by_ours_and_pq_and_not_by_the_other_two_schemes() {
        for which in Case::ALL {
            for (name, met) in [("keeptime", true), ("reconf-pq", true), ("rigid", true)] {
                assert_eq!(run(name, which).hard_met == 100.0, met, "{name} {which:?}");
            }
        }
        assert!(run("reconf", Case::One).hard_met < 100.0);
        assert!(run("reconf-p", Case::One).hard_met < 100.0);
    }

    #[test]
    fn low_priority_keeps_its_hard_guarantee_of_throughput() {
        let ours = run("keeptime", Case::Three);
        assert!((ours.low / nodes(2.0) - 1.0).abs() < 0.1, "{ours:?}");
    }

    #[test]
    fn long_bursts_on_eight_nodes_are_as_fast_as_on_fourteen() {
        let [large, ours] = ["rigid-large", "keeptime"].map(|name| bursts(name, 16_000, 64_000, 7));
        assert!(ours.throughput > 0.97 * large.throughput, "{ours:?} {large:?}");
        let small = bursts("rigid", 16_000, 64_000, 7);
        assert!(small.throughput < 0.6 * large.throughput, "{small:?}");
    }

    #[test]
    fn chance_moves_next_to_nothing_at_80_percent_load() {
        let ours = steady("keeptime", true, 200, 0);
        assert!(ours.moves <= 2, "{ours:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let twice = [(); 2].map(|()| format!("{:?}", run("keeptime", Case::One)));
        assert_eq!(twice[0], twice[1]);
    }
}
