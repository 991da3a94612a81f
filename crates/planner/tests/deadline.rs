//! One job beside what is reserved: what is found can be had, and what is refused could not.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_planner::deadline::{Cluster, Job, Refusal, Reserved, beside};
use proptest::prelude::*;
use std::collections::BTreeMap;

const START: u64 = 1_767_225_600_000_000_000;
const MINUTE: u64 = 60_000_000_000;

fn at(minutes: u64) -> WallTime {
    WallTime::from_unix_nanos(START + minutes * MINUTE)
}

fn job(work: u64, nodes: u32, by: u64) -> Job {
    Job::new(Nanos::new(work * MINUTE), nodes, at(by))
}

fn whole(nodes: u32) -> Cluster {
    Cluster::of(nodes, CpuPpm::from_percent(100))
}

fn reserved(node: u32, from: u64, to: u64, percent: u32) -> Reserved {
    let cpu = CpuPpm::from_percent(percent);
    Reserved { node: NodeIndex(node), from: at(from), to: at(to), cpu }
}

#[test]
fn one_reservation_waits_goes_slower_or_is_refused() {
    let busy = [reserved(0, 0, 60, 100), reserved(1, 0, 100, 60)];
    let of = |nodes: u32, work: u64, by: u64| {
        beside(at(0), &whole(2), &busy, &job(work, nodes, by)).unwrap()
    };
    let one = |nodes, work, by| {
        let plan = of(nodes, work, by).unwrap();
        (plan.nodes, plan.at.from, plan.at.to, plan.at.rate.ppm())
    };
    // Until minute 60 the second node has 40 % for it, from then on the first has all.
    assert_eq!(one(1, 20, 130), (vec![NodeIndex(1)], at(0), at(50), 400_000));
    assert_eq!(one(1, 50, 130), (vec![NodeIndex(0)], at(60), at(110), 1_000_000));
    assert_eq!(one(2, 50, 160), (vec![NodeIndex(0), NodeIndex(1)], at(100), at(150), 1_000_000));
    assert_eq!(of(1, 50, 100).unwrap_err().earliest(), Some(at(110)));
}

// Which nodes are looked at follows from the deadline: what one deadline would end by need not be found for that end.
#[test]
fn what_is_offered_instead_can_be_kept() {
    let busy = [(0, 36, 87, 87), (2, 0, 16, 74), (1, 45, 88, 57), (1, 6, 51, 48)];
    let busy = busy.map(|(node, from, to, percent)| reserved(node, from, to, percent));
    let cluster = Cluster::of(3, CpuPpm::from_percent(90));
    let wanted = Job { cpu_ppm: CpuPpm::from_percent(60), ..job(45, 2, 46) };
    let offered = beside(at(0), &cluster, &busy, &wanted).unwrap().unwrap_err().earliest().unwrap();
    let taken = beside(at(0), &cluster, &busy, &Job { by: offered, ..wanted }).unwrap();
    assert!(taken.unwrap().at.to <= offered);
}

#[test]
fn the_number_of_nodes_follows_from_the_deadline() {
    let speed_ppm = BTreeMap::from([(1, 1_000_000), (2, 1_900_000), (4, 3_200_000)]);
    let nodes = |by| {
        let job = Job { speed_ppm: speed_ppm.clone(), ..job(60, 1, by) };
        beside(at(0), &whole(4), &[], &job).unwrap().map(|plan| plan.nodes.len())
    };
    assert_eq!([60, 59, 31].map(|by| nodes(by).unwrap()), [1, 2, 4]);
    assert_eq!(
        nodes(18).unwrap_err().earliest(),
        Some(at(0).saturating_add(Nanos::new(75 * MINUTE / 4)))
    );
}

#[test]
fn requests_that_make_no_sense_name_the_field() {
    let field = |change: fn(&mut Job)| {
        let mut wanted = job(60, 2, 90);
        change(&mut wanted);
        beside(at(0), &whole(3), &[], &wanted).unwrap_err().field
    };
    assert_eq!(field(|job| job.work = Nanos::new(0)), "takes");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::new()), "speed");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::from([(0, 1)])), "speed");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::from([(2, 0)])), "speed.2");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::from([(4, 1)])), "nodes");
    assert_eq!(field(|job| job.cpu_ppm = CpuPpm::new(0)), "cpu");
}

#[test]
fn nobody_runs_slower_than_the_least_rate() {
    // At full speed it uses thirty processors of each node, and a node has one.
    let wanted = Job { cpu_ppm: CpuPpm::from_percent(3_000), ..job(1, 1, 1_000) };
    let refusal = beside(at(0), &whole(2), &[], &wanted).unwrap().unwrap_err();
    assert_eq!((refusal, refusal.earliest()), (Refusal::Never, None));
    assert!(refusal.to_string().contains("ever"), "{refusal}");
}

#[test]
fn a_deadline_of_long_ago_is_answered_as_exactly_as_one_of_today() {
    let wanted = Job { by: WallTime::from_unix_nanos(1), ..job(60, 2, 0) };
    let refusal = beside(at(0), &whole(2), &[], &wanted).unwrap().unwrap_err();
    assert_eq!(refusal, Refusal::Late { by: wanted.by, ends: at(60) });
    let endless = Job { work: Nanos::new(u64::MAX), ..wanted };
    assert_eq!(beside(at(0), &whole(2), &[], &endless).unwrap().unwrap_err().earliest(), None);
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(1u64),
        Just(START),
        Just(START + MINUTE),
        Just(u64::MAX - 1),
        Just(u64::MAX),
    ]
}

/// One that may make no sense at all.
fn hostile_job() -> impl Strategy<Value = Job> {
    let speed = prop_oneof![1 => Just(0u32), 5 => Just(1u32), 5 => Just(u32::MAX)];
    let speeds = prop::collection::btree_map(0u32..4, speed, 0..3);
    let cpu = prop_oneof![Just(0u32), Just(1u32), Just(1_000_000u32), Just(u32::MAX)];
    (any_number(), any_number(), speeds, cpu, any_number()).prop_map(
        |(by, work, speed_ppm, cpu, from)| Job {
            work: Nanos::new(work),
            speed_ppm,
            cpu_ppm: CpuPpm::new(cpu),
            from: WallTime::from_unix_nanos(from),
            by: WallTime::from_unix_nanos(by),
        },
    )
}

proptest! {
    // Goal: whatever is asked, there is an answer, and it names nodes that are there. Method: the ends of all ranges, on
    // clusters without nodes or CPU too.
    #[test]
    fn whatever_is_asked_is_answered(
        wanted in hostile_job(), nodes in 0u32..5, now in any_number(), later in any_number(),
        cpu in prop_oneof![Just(0u32), Just(900_000u32), Just(u32::MAX)],
    ) {
        let (cluster, cpu) = (Cluster::of(nodes, CpuPpm::new(cpu)), CpuPpm::new(cpu / 2));
        let [now, later] = [now, later].map(WallTime::from_unix_nanos);
        let busy = [Reserved { node: NodeIndex(1), from: now, to: later, cpu }];
        for reserved in [&busy[..], &[]] {
            if let Ok(Ok(plan)) = beside(later, &cluster, reserved, &wanted) {
                prop_assert!(plan.nodes.iter().all(|node| node.0 < nodes));
                prop_assert!(plan.at.to <= wanted.by && wanted.from <= plan.at.from);
            }
        }
    }

    // Goal: what is found can be had and is in time; what is refused could not be had, and what is offered
    // instead can. Method: an array of minutes; on all nodes, every start and end in it is tried.
    #[test]
    fn one_reservation_fits_beside_the_others(
        busy in prop::collection::vec((0u32..3, 0u64..60, 1u64..60, 1u32..91), 0..8),
        work in 1u64..60, cpu in 5u32..101, nodes in 1u32..4, by in 1u64..200,
    ) {
        let cluster = Cluster::of(3, CpuPpm::from_percent(90));
        let busy: Vec<_> = busy.into_iter()
            .map(|(node, from, minutes, percent)| reserved(node, from, from + minutes, percent))
            .collect();
        let free = |node: u32, minute: u64| {
            let here = |r: &&Reserved| r.node.0 == node && r.from <= at(minute) && at(minute) < r.to;
            900_000u32.saturating_sub(busy.iter().filter(here).map(|r| r.cpu.get()).sum())
        };
        let cpu_ppm = CpuPpm::from_percent(cpu);
        let wanted = Job { cpu_ppm, ..job(work, nodes, by) };
        match beside(at(0), &cluster, &busy, &wanted).unwrap() {
            Ok(found) => {
                let only = found.at;
                prop_assert!(only.rate >= cluster.rate_least && only.to <= at(by));
                for minute in (0..200).filter(|minute| only.from < at(minute + 1) && at(*minute) < only.to) {
                    let fits = found.nodes.iter().all(|node| {
                        only.rate.as_f64() * f64::from(cpu_ppm.get()) <= f64::from(free(node.0, minute)) + 1e-6
                    });
                    prop_assert!(fits, "{found:?} in minute {minute}");
                }
                let done = only.to.saturating_since(only.from).as_secs_f64() * only.rate.as_f64();
                prop_assert!(done >= 60.0 * work as f64 - 1e-3);
            }
            Err(refusal) => {
                let later = Job { by: refusal.earliest().unwrap(), ..wanted.clone() };
                prop_assert!(beside(at(0), &cluster, &busy, &later).unwrap().is_ok());
                let windows = (0..by).flat_map(|from| (from + 1..=by).map(move |to| (from, to)));
                for (from, to) in windows.filter(|_| nodes == 3) {
                    let least = (from..to).flat_map(|minute| (0..3).map(move |node| (node, minute)));
                    let least = least.map(|(node, minute)| free(node, minute)).min().unwrap();
                    let rate = (f64::from(least) / f64::from(cpu_ppm.get())).min(1.0);
                    prop_assert!(rate < 0.05 || rate * ((to - from) as f64) < work as f64 + 1e-3);
                }
            }
        }
    }
}
