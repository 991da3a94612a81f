//! The worked example of the thesis, sections 3.3 and 3.4 (Figures 3.4 to 3.9): ray-tracing, "one
//! frame per second", interleaving factor 0, with its three scenarios.
//!
//! The figures' exact values are not printed. This profile has the features that the text names:
//! twelve curves (sizes 512 and 1024, interleaving 0 and 2, 4, 8 and 16 nodes); within one second
//! only size 512, on 4, 8 or 16 nodes; with interleaving 0 two curves, on 8 and 16 nodes, whose
//! least bandwidths are 4 and 5 MBps and whose knees are 40 MBps; 16 nodes are the faster.
//!
//! One difference: the thesis adds incoming and outgoing flows of a node's link (3.2.1), Keeptime
//! counts each direction of a full-duplex link by itself. Free rates below are per direction.

// Helpers of tests, which clippy does not take for tests.
#![allow(clippy::unwrap_used)]

use keeptime_model::application::{Application, Parameters};
use keeptime_model::goal::Goal;
use keeptime_model::profile::{Conditions, Profile};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos};
use keeptime_planner::availability::{Availability, Placement, PlannedFlow};
use keeptime_planner::explanation::{Explanation, Stage};
use keeptime_planner::fitted::FittedProfile;
use keeptime_planner::refusal::{Change, Reason};
use keeptime_planner::translate::{Options, Plan, Verdict, schedule};
use keeptime_planner::tree::PlacementIndex;

/// Bandwidths of the figures' x-axis, in MBps per flow.
const GRID: [u64; 9] = [1, 2, 4, 5, 10, 20, 30, 40, 80];

/// (size, interleaving, nodes, times in milliseconds at each bandwidth of the grid)
const CURVES: [(&str, &str, u32, [u64; 9]); 12] = [
    ("512", "0", 4, [2900, 2000, 1700, 1600, 1450, 1350, 1310, 1290, 1280]),
    ("512", "0", 8, [1900, 1300, 990, 960, 880, 820, 790, 765, 750]),
    ("512", "0", 16, [1950, 1400, 1050, 980, 840, 740, 690, 655, 640]),
    ("512", "2", 4, [1500, 1100, 980, 950, 900, 860, 850, 840, 835]),
    ("512", "2", 8, [1200, 900, 750, 720, 650, 600, 580, 570, 565]),
    ("512", "2", 16, [1300, 950, 760, 700, 600, 540, 510, 495, 490]),
    ("1024", "0", 4, [9000, 7000, 6000, 5700, 5300, 5100, 5000, 4950, 4930]),
    ("1024", "0", 8, [7000, 5000, 4000, 3700, 3200, 2900, 2800, 2750, 2730]),
    ("1024", "0", 16, [6500, 4500, 3300, 3000, 2300, 1900, 1800, 1750, 1730]),
    ("1024", "2", 4, [5000, 4000, 3500, 3300, 3100, 3000, 2950, 2930, 2920]),
    ("1024", "2", 8, [4000, 3000, 2500, 2300, 2000, 1850, 1800, 1780, 1770]),
    ("1024", "2", 16, [3800, 2700, 2100, 1900, 1500, 1300, 1250, 1220, 1210]),
];

fn parameters(size: &str, interleave: &str) -> Parameters {
    [("size", size), ("interleave", interleave)]
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.to_string()))
        .collect()
}

fn profile() -> FittedProfile {
    let application = Application::from_toml(
        r#"
        name = "ray"
        command = ["ray", "{size}", "{interleave}"]
        pattern = "hypercube"
        nodes = [4, 8, 16]
        cpu = "50 %"
        timeout = "60 s"
        time = "wall"
        parameters = [{ name = "size", values = ["1024", "512"] },
                      { name = "interleave", values = ["0", "2"] }]
        "#,
    )
    .unwrap();
    let conditions = Conditions {
        link_bits_per_second: BitsPerSecond::from_mega_bytes(320),
        process_cpu_ppm: application.cpu(),
        processor: String::new(),
        mpi: String::new(),
        command: vec![],
        program: None,
    };
    let grid = GRID.map(BitsPerSecond::from_mega_bytes).to_vec();
    let mut profile = Profile::empty(application.name().clone(), conditions, grid.clone());
    for (size, interleave, nodes, times) in CURVES {
        for (bandwidth, millis) in grid.iter().zip(times) {
            let time = Nanos::from_millis(millis);
            profile.record(&parameters(size, interleave), nodes, *bandwidth, time);
        }
    }
    FittedProfile::new(application, &profile).unwrap()
}

/// Sixteen nodes on one switch, 320 MBps in each direction: enough for 80 MBps on four flows.
fn cluster() -> PlacementIndex {
    let names: Vec<_> = (1..=16).map(|n| format!("n{n}")).collect();
    let each =
        |line: &dyn Fn(&String) -> String| names.iter().map(line).collect::<Vec<_>>().join(", ");
    let nodes = each(&|n| format!("{{ name = \"{n}\", cpu = \"100 %\" }}"));
    let links = each(&|n| format!("{{ between = [\"{n}\", \"s1\"], rate = \"320 MBps\" }}"));
    let text = format!(
        "name = \"myrinet\"\nnodes = [{nodes}]\nswitches = [{{ name = \"s1\" }}]\nlinks = [{links}]"
    );
    PlacementIndex::new(Topology::from_toml(&text).unwrap())
}

/// The cluster with only `free(node)` MBps left on each node's link, in both directions.
fn loaded(index: &PlacementIndex, free: impl Fn(u32) -> u64) -> Availability {
    let mut availability = Availability::full(index.topology(), |rate| rate);
    let flow = |node: u32| PlannedFlow {
        from: NodeIndex(node),
        // Neighbours have the same load, so that each one's flow uses up both.
        to: NodeIndex(node ^ 1),
        rate: BitsPerSecond::from_mega_bytes(320 - free(node)),
    };
    let flows = (0..16).map(flow).collect();
    availability.take(index, &Placement { nodes: vec![], cpu: CpuPpm::default(), flows });
    availability
}

fn one_frame_a_second() -> Goal {
    let set = [("interleave".parse().unwrap(), "0".to_string())].into();
    Goal { within: Some(Nanos::from_secs(1)), set, ..Goal::default() }
}

fn ask(index: &PlacementIndex, free: &Availability, options: &Options) -> (Verdict, Explanation) {
    let decision = schedule(&one_frame_a_second(), &profile(), index, free, options);
    (decision.verdict, decision.explanation)
}

fn planned(verdict: Verdict) -> Plan {
    match verdict {
        Verdict::Planned(plan) => plan,
        Verdict::Refused(refusal) => panic!("{}", refusal.reason),
    }
}

fn mega_bytes(rate: BitsPerSecond) -> u64 {
    rate.get() / 8_000_000
}

#[test]
fn figures_3_4_to_3_7_narrow_the_curves_down() {
    let index = cluster();
    let free = Availability::full(index.topology(), |rate| rate);
    let (_, explanation) = ask(&index, &free, &Options::paper_exact());
    let left = |stage| -> Vec<(&str, &str, u32)> {
        let key = |(at, _): (usize, _)| (CURVES[at].0, CURVES[at].1, CURVES[at].2);
        explanation.left_after(stage).map(key).collect()
    };
    assert_eq!(left(Stage::Measured).len(), 12);
    // Figure 3.4: within one second there is only size 512, on 4, 8 or 16 nodes.
    let in_time = left(Stage::InTime);
    assert!(in_time.iter().all(|(size, ..)| *size == "512"));
    assert!([4, 8, 16].iter().all(|n| in_time.iter().any(|(_, _, nodes)| nodes == n)));
    // Figure 3.5: with interleaving 0, on 8 and 16 nodes.
    assert_eq!(left(Stage::Matching), [("512", "0", 8), ("512", "0", 16)]);
    // Figures 3.6 and 3.7: from 4 and 5 MBps to the knees at 40.
    let ranges: Vec<_> = explanation
        .left_after(Stage::Ranged)
        .filter_map(|(_, curve)| curve.range)
        .map(|r| (mega_bytes(r.least_bits_per_second), mega_bytes(r.greatest_bits_per_second)))
        .collect();
    assert_eq!(ranges, [(4, 40), (5, 40)]);
}

#[test]
fn scenario_1_refuses_when_not_even_the_least_bandwidth_can_be_held() {
    let index = cluster();
    // 3 MBps for each of three flows on 8 nodes, of which 4 are needed.
    let free = loaded(&index, |_| 9);
    let (verdict, _) = ask(&index, &free, &Options::paper_exact());
    let Verdict::Refused(refusal) = verdict else { panic!("must be refused") };
    let Reason::LinkBusy(short) = &refusal.reason else { panic!("{:?}", refusal.reason) };
    assert_eq!((short.nodes, short.flows), (8, 3));
    assert_eq!(mega_bytes(short.needs_bits_per_second), 12);
    assert_eq!(mega_bytes(short.has_bits_per_second), 9);
    // "The application can try again with a lower performance bound": which one is said.
    let offer = refusal.counter_offers.iter().find(|o| o.change == Change::LongerTime).unwrap();
    assert_eq!(offer.goal.within, Some(Nanos::from_millis(1300)));
    assert_eq!((offer.nodes, mega_bytes(offer.bandwidth_bits_per_second)), (8, 2));
}

#[test]
fn scenario_2_gives_an_idle_cluster_the_knee_on_sixteen_nodes() {
    let index = cluster();
    let free = Availability::full(index.topology(), |rate| rate);
    for options in [Options::paper_exact(), Options::default()] {
        let plan = planned(ask(&index, &free, &options).0);
        assert_eq!(plan.parameters, parameters("512", "0"));
        assert_eq!(plan.placement.nodes.len(), 16);
        assert_eq!(mega_bytes(plan.bandwidth_bits_per_second), 40);
        assert_eq!(plan.time_nanos, Nanos::from_millis(655));
    }
}

#[test]
fn scenario_3_gives_twenty_mbps_on_sixteen_nodes_when_thirty_are_free_for_eight() {
    let index = cluster();
    // 90 MBps for three flows on eight of the nodes, 80 MBps for four flows on all of them.
    let free = loaded(&index, |node| if node < 8 { 90 } else { 80 });
    let (verdict, explanation) = ask(&index, &free, &Options::paper_exact());
    // Figure 3.8
    let held: Vec<_> = explanation
        .left_after(Stage::Held)
        .map(|(_, c)| (c.nodes, c.held_bits_per_second.map(mega_bytes)))
        .collect();
    assert_eq!(held, [(8, Some(30)), (16, Some(20))]);
    // Figure 3.9
    let plan = planned(verdict);
    assert_eq!(plan.placement.nodes.len(), 16);
    assert_eq!(mega_bytes(plan.bandwidth_bits_per_second), 20);
    assert_eq!(plan.time_nanos, Nanos::from_millis(740));
    assert_eq!(plan.placement.flows.len(), 64);
}
