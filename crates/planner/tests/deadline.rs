//! What holds for every set of jobs: nodes are never promised more than they have, a plan that is
//! followed keeps what it says, nobody loses by what is admitted, and what is offered is true.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use keeptime_planner::deadline::{
    self, Cluster, Job, JobPlan, Plan, Refusal, Reserved, Verdict, Wants, beside, plan, plan_with,
    replan,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::slice;

const START: u64 = 1_767_225_600_000_000_000;
const MINUTE: u64 = 60_000_000_000;

fn at(minutes: u64) -> WallTime {
    WallTime::from_unix_nanos(START + minutes * MINUTE)
}

fn minutes(minutes: u64) -> Nanos {
    Nanos::new(minutes * MINUTE)
}

fn name(number: usize) -> Name {
    format!("j{number}").parse().unwrap()
}

fn job(number: usize, work: u64, nodes: u32, wants: Wants) -> Job {
    Job { wants, ..Job::new(name(number), minutes(work), nodes) }
}

/// What the planner says of one more job beside those that it has planned.
fn admit(now: WallTime, cluster: &Cluster, jobs: &[Job], wanted: &Job) -> Verdict {
    deadline::admit(now, cluster, jobs, &plan(now, cluster, jobs), wanted)
}

fn admitted(verdict: Verdict) -> Plan {
    match verdict {
        Verdict::Admitted(plan) => plan,
        other => panic!("{other:?}"),
    }
}

fn refused(verdict: Verdict) -> Refusal {
    match verdict {
        Verdict::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn whole(nodes: u32) -> Cluster {
    Cluster::of(nodes, CpuPpm::from_percent(100))
}

#[test]
fn a_job_is_deferred_when_what_runs_is_due_before() {
    let urgent = job(1, 60, 2, Wants::By(at(60)));
    let later = job(2, 60, 2, Wants::By(at(130)));
    let plan = admitted(admit(at(0), &whole(2), &[urgent], &later));
    assert_eq!(plan.of("j2").unwrap().starts(), Some(at(60)));
    assert_eq!(plan.of("j2").unwrap().ends, Some(at(120)));
}

#[test]
fn a_running_job_is_slowed_down_for_another_and_sped_up_when_there_is_room() {
    let nodes = vec![NodeIndex(0), NodeIndex(1)];
    let running = Job { nodes, ..job(1, 100, 2, Wants::By(at(200))) };
    let rate = Wants::Rate(Share::from_percent(40).unwrap());
    let plan = admitted(admit(at(0), &whole(2), slice::from_ref(&running), &job(2, 20, 2, rate)));
    let slowed = plan.of("j1").unwrap();
    // 20 minutes of work at 40 % are 50 minutes.
    assert_eq!(slowed.rate_at(at(10)), Share::from_percent(60).unwrap());
    assert_eq!(slowed.rate_at(at(51)), Share::ONE);
    assert_eq!(slowed.ends, Some(at(120)));
    // The other one ends early: there is room at once.
    let mut now = running;
    now.progress(minutes(10), slowed.rate_at(at(0)));
    let next = replan(at(10), &whole(2), &[now], &plan);
    assert_eq!(next.of("j1").unwrap().rate_at(at(10)), Share::ONE);
    assert_eq!(next.of("j1").unwrap().ends, Some(at(104)));
}

#[test]
fn the_number_of_nodes_follows_from_the_deadline() {
    let speed = BTreeMap::from([(1, 1_000_000), (2, 1_800_000), (4, 3_000_000)]);
    let by = |deadline| {
        let job = Job { speed_ppm: speed.clone(), ..job(1, 120, 1, Wants::By(at(deadline))) };
        admitted(admit(at(0), &whole(4), &[], &job)).of("j1").unwrap().nodes.len()
    };
    assert_eq!([by(130), by(70), by(45)], [1, 2, 4]);
}

#[test]
fn what_is_left_goes_to_who_asks_for_it() {
    let promised = job(1, 60, 2, Wants::Rate(Share::from_percent(30).unwrap()));
    let rest = job(2, 70, 2, Wants::Rest);
    let plan = plan(at(0), &whole(2), &[rest, promised]);
    assert_eq!(plan.of("j2").unwrap().rate_at(at(0)), Share::from_percent(70).unwrap());
    assert!(plan.keeps_all());
}

#[test]
fn a_refusal_says_what_could_be() {
    let promised = job(1, 60, 2, Wants::By(at(60)));
    let refusal = refused(admit(
        at(0),
        &whole(2),
        slice::from_ref(&promised),
        &job(2, 60, 2, Wants::By(at(90))),
    ));
    let earliest = refusal.earliest.unwrap();
    assert!((at(120)..at(121)).contains(&earliest), "{refusal:?}");
    assert_eq!(refusal.part, Some(Share::from_percent(50).unwrap()));
    assert!(refusal.reason.contains("too late"), "{}", refusal.reason);
    let rate = Wants::Rate(Share::from_percent(80).unwrap());
    let running = job(1, 60, 2, Wants::Rate(Share::from_percent(45).unwrap()));
    let refusal = refused(admit(at(0), &whole(2), &[running], &job(2, 60, 2, rate)));
    assert_eq!(refusal.rate, Share::from_percent(55));
}

#[test]
fn requests_that_make_no_sense_name_the_field() {
    let field = |change: fn(&mut Job)| {
        let mut wanted = job(1, 60, 2, Wants::By(at(90)));
        change(&mut wanted);
        match admit(at(0), &whole(3), &[job(2, 1, 1, Wants::Rest)], &wanted) {
            Verdict::Invalid(invalid) => invalid.field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::new()), "speed");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::from([(2, 0)])), "speed.2");
    assert_eq!(field(|job| job.speed_ppm = BTreeMap::from([(4, 1)])), "nodes");
    assert_eq!(field(|job| job.cpu_ppm = CpuPpm::new(0)), "cpu");
    assert_eq!(field(|job| job.wants = Wants::Rate(Share::default())), "rate");
    assert_eq!(field(|job| job.nodes = vec![NodeIndex(0)]), "nodes");
    assert_eq!(field(|job| job.name = name(2)), "name");
}

#[test]
fn no_more_jobs_start_on_a_node_than_it_has_memory_for() {
    // Minutes at which five jobs of half an hour, each a tenth of a processor, start on one node.
    let starts = |jobs_a_node, wants| {
        let cluster = Cluster { jobs_a_node, ..whole(1) };
        let cpu_ppm = CpuPpm::from_percent(10);
        let jobs: Vec<_> = (0..5).map(|n| Job { cpu_ppm, ..job(n, 30, 1, wants) }).collect();
        let plan = plan(at(0), &cluster, &jobs);
        let start = |job: &JobPlan| job.starts().unwrap().saturating_since(at(0)).get() / MINUTE;
        let mut starts: Vec<_> = plan.jobs().values().map(start).collect();
        starts.sort();
        starts
    };
    assert_eq!(starts(2, Wants::By(at(90))), [0, 0, 30, 30, 60]);
    // Those that take what is left leave places to others.
    assert_eq!(starts(8, Wants::Rest), [0, 0, 30, 30, 60]);
    assert_eq!(starts(1, Wants::Rest), [0, 30, 60, 90, 120]);
}

#[test]
fn jobs_are_one_after_the_other_where_that_is_in_time() {
    // Half of each node is taken for two hours, and all that is asked for takes one.
    let running = Job {
        nodes: vec![NodeIndex(0)],
        ..job(1, 60, 1, Wants::Rate(Share::from_percent(50).unwrap()))
    };
    let on = |wants| {
        let jobs = [running.clone(), job(2, 60, 1, wants)];
        let plan = plan(at(0), &whole(2), &jobs);
        let own = plan.of("j2").unwrap();
        (own.nodes.clone(), own.starts().unwrap(), own.ends.unwrap())
    };
    // The other node is free: nobody shares without need.
    assert_eq!(on(Wants::By(at(300))), (vec![NodeIndex(1)], at(0), at(60)));
    assert_eq!(on(Wants::Rest), (vec![NodeIndex(1)], at(0), at(60)));
    let both = |wants| {
        let nodes = vec![NodeIndex(0), NodeIndex(1)];
        let running = Job { nodes, ..job(1, 60, 2, Wants::Rate(Share::from_percent(50).unwrap())) };
        let plan = plan(at(0), &whole(2), &[running, job(2, 60, 2, wants)]);
        let own = plan.of("j2").unwrap();
        (own.starts().unwrap(), own.ends.unwrap())
    };
    // In time after the other one, it waits; else they share.
    assert_eq!(both(Wants::By(at(200))), (at(120), at(180)));
    assert_eq!(both(Wants::By(at(150))), (at(0), at(120)));
    // Two hours are not half of three.
    assert_eq!(both(Wants::Rest), (at(120), at(180)));
}

fn reserved(node: u32, from: u64, to: u64, percent: u32) -> Reserved {
    let cpu = CpuPpm::from_percent(percent);
    Reserved { node: NodeIndex(node), from: at(from), to: at(to), cpu }
}

#[test]
fn one_reservation_waits_goes_slower_or_is_refused() {
    let busy = [reserved(0, 0, 60, 100), reserved(1, 0, 100, 60)];
    let of = |nodes: u32, work: u64, by: u64| {
        beside(at(0), &whole(2), &busy, &job(1, work, nodes, Wants::By(at(by)))).unwrap()
    };
    let one = |nodes, work, by| {
        let plan = of(nodes, work, by).unwrap();
        let [only] = plan.stretches[..] else { panic!("{plan:?}") };
        (plan.nodes, only.from, only.to, only.rate.ppm())
    };
    // Until minute 60 the second node has 40 % for it, from then on the first has all.
    assert_eq!(one(1, 20, 130), (vec![NodeIndex(1)], at(0), at(50), 400_000));
    assert_eq!(one(1, 50, 130), (vec![NodeIndex(0)], at(60), at(110), 1_000_000));
    assert_eq!(one(2, 50, 160), (vec![NodeIndex(0), NodeIndex(1)], at(100), at(150), 1_000_000));
    assert_eq!(of(1, 50, 100).unwrap_err().earliest, Some(at(110)));
    let wanted = job(1, 5, 3, Wants::By(at(9)));
    assert_eq!(beside(at(0), &whole(2), &busy, &wanted).unwrap_err().field, "nodes");
}

fn any_job(number: usize) -> impl Strategy<Value = Job> {
    let speeds = prop::collection::btree_map(1u32..5, 1_000_000u32..4_000_000, 1..3);
    let wants = prop_oneof![
        4 => (1u64..400).prop_map(|by| Wants::By(at(by))),
        1 => (1u32..100).prop_map(|percent| Wants::Rate(Share::from_percent(percent).unwrap())),
        1 => Just(Wants::Rest),
    ];
    (1u64..100, speeds, 5u32..101, 0u64..60, wants).prop_map(
        move |(work, speed_ppm, cpu, from, wants)| Job {
            speed_ppm,
            cpu_ppm: CpuPpm::from_percent(cpu),
            from_unix_nanos: at(from),
            ..job(number, work, 1, wants)
        },
    )
}

fn any_jobs() -> impl Strategy<Value = Vec<Job>> {
    (1..9usize).prop_flat_map(|count| (0..count).map(any_job).collect::<Vec<_>>())
}

/// Every instant at which a rate changes.
fn instants(plan: &Plan) -> Vec<WallTime> {
    let stretches = plan.jobs().values().flat_map(|job| &job.stretches);
    let mut instants: Vec<_> = stretches.flat_map(|stretch| [stretch.from, stretch.to]).collect();
    instants.sort();
    instants.dedup();
    instants
}

/// What a plan promises of each node at `now`, exactly.
fn promised(plan: &Plan, jobs: &[Job], now: WallTime, node: u32) -> f64 {
    let of_job = |job: &Job| {
        let own = plan.jobs().get(&job.name)?;
        let here = own.nodes.contains(&NodeIndex(node));
        here.then(|| own.rate_at(now).as_f64() * f64::from(job.cpu_ppm.get()))
    };
    jobs.iter().filter_map(of_job).sum()
}

proptest! {
    #[test]
    fn nodes_are_never_promised_more_than_they_have(jobs in any_jobs()) {
        let cluster = Cluster { jobs_a_node: 3, ..Cluster::of(4, CpuPpm::from_percent(90)) };
        let plan = plan(at(0), &cluster, &jobs);
        for now in instants(&plan) {
            for node in 0..4 {
                prop_assert!(promised(&plan, &jobs, now, node) <= 900_000.0 + 1e-6);
                let there = plan.jobs().values().filter(|job| {
                    let from = job.starts().is_some_and(|starts| starts <= now);
                    from && job.ends.is_none_or(|ends| now < ends) && job.nodes.contains(&NodeIndex(node))
                });
                prop_assert!(there.count() <= 3);
            }
        }
    }

    // Following the plan from change to change does all the work by the time that it says.
    #[test]
    fn a_plan_that_is_followed_keeps_what_it_says(jobs in any_jobs()) {
        let cluster = Cluster::of(4, CpuPpm::from_percent(90));
        let plan = plan(at(0), &cluster, &jobs);
        for job in &jobs {
            let own = plan.jobs().get(&job.name).unwrap();
            let mut left = Job { nodes: own.nodes.clone(), ..job.clone() };
            for stretch in &own.stretches {
                prop_assert!(stretch.from >= job.from_unix_nanos && stretch.from < stretch.to);
                left.progress(stretch.to.saturating_since(stretch.from), stretch.rate);
            }
            // A nanosecond for each rounding.
            let rounding = own.stretches.len() as u64 + 1;
            prop_assert_eq!(own.ends.is_some(), left.remaining_nanos.get() <= rounding * 4, "{:?}", own);
            if let (Wants::By(deadline), true) = (job.wants, own.kept) {
                prop_assert!(own.ends.unwrap() <= deadline);
            }
        }
    }

    // Requests come one after the other; whatever is admitted, those before still have what they want,
    // and a later deadline that is offered is admitted.
    #[test]
    fn nobody_loses_and_offers_are_true(jobs in any_jobs()) {
        let cluster = Cluster::of(4, CpuPpm::from_percent(90));
        let mut running: Vec<Job> = Vec::new();
        let mut before = Plan::default();
        for wanted in jobs {
            match deadline::admit(at(0), &cluster, &running, &before, &wanted) {
                Verdict::Admitted(plan) => {
                    prop_assert!(plan.keeps_all(), "{:?}", plan);
                    running.push(wanted);
                    before = plan;
                }
                Verdict::Refused(refusal) => {
                    let offers = refusal.earliest.map(Wants::By).into_iter()
                        .chain(refusal.rate.map(Wants::Rate));
                    for wants in offers {
                        let offered = Job { wants, ..wanted.clone() };
                        let verdict =
                            deadline::admit(at(0), &cluster, &running, &before, &offered);
                        prop_assert!(matches!(verdict, Verdict::Admitted(_)), "{:?}", refusal);
                    }
                }
                Verdict::Invalid(invalid) => prop_assert!(false, "{}", invalid),
            }
        }
    }

    // Goal: nothing is refused that a plan of all together can keep, short cut or not, and what is admitted beyond that is
    // kept as well. Method: against such a plan, where nobody was late before.
    #[test]
    fn a_job_is_admitted_where_a_plan_of_all_keeps_all(jobs in any_jobs()) {
        let cluster = Cluster::of(4, CpuPpm::from_percent(90));
        let mut running: Vec<Job> = Vec::new();
        let mut before = Plan::default();
        for wanted in jobs {
            let all: Vec<_> = running.iter().chain([&wanted]).cloned().collect();
            let together = Some(plan(at(0), &cluster, &all)).filter(Plan::keeps_all);
            let found = plan_with(at(0), &cluster, &running, &before, &wanted).unwrap();
            if together.is_some() {
                prop_assert_eq!(&found, &together);
            }
            if let Some(plan) = found {
                prop_assert!(plan.keeps_all() && plan.jobs().contains_key(&wanted.name));
                running.push(wanted);
                before = plan;
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
        let wanted = Job { cpu_ppm, ..job(1, work, nodes, Wants::By(at(by))) };
        match beside(at(0), &cluster, &busy, &wanted).unwrap() {
            Ok(found) => {
                let [only] = found.stretches[..] else { panic!("{found:?}") };
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
                let later = Job { wants: Wants::By(refusal.earliest.unwrap()), ..wanted.clone() };
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

    // Time passes as planned, and it is planned again at every change: no promise is broken by that.
    #[test]
    fn planning_again_breaks_no_promise(jobs in any_jobs()) {
        let cluster = Cluster::of(4, CpuPpm::from_percent(90));
        let mut running: Vec<Job> = Vec::new();
        let mut now_plan = Plan::default();
        for wanted in jobs {
            if let Verdict::Admitted(plan) = admit(at(0), &cluster, &running, &wanted) {
                running.push(wanted);
                now_plan = plan;
            }
        }
        let mut now = at(0);
        while let Some(next) = now_plan.next_change(now) {
            for job in &mut running {
                let own = now_plan.jobs().get(&job.name).unwrap();
                if own.starts().is_some_and(|starts| starts <= now) {
                    job.nodes = own.nodes.clone();
                }
                job.progress(next.saturating_since(now), own.rate_at(now));
                if let Wants::By(deadline) = job.wants {
                    prop_assert!(job.remaining_nanos.get() < 100 || next <= deadline);
                }
            }
            running.retain(|job| job.remaining_nanos.get() >= 100);
            now = next;
            now_plan = replan(now, &cluster, &running, &now_plan);
        }
        prop_assert!(running.is_empty(), "{:?}", running);
    }
}
