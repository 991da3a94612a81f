//! What holds for every set of jobs: nodes are never promised more than they have, a plan that is
//! followed keeps what it says, nobody loses by what is admitted, and what is offered is true.

#![allow(clippy::unwrap_used, reason = "tests")]

use keeptime_model::name::Name;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos, Share, WallTime};
use keeptime_planner::deadline::{
    self, Cluster, Job, JobPlan, Plan, Promotion, Refusal, Reserved, Verdict, Wants, beside, plan,
    plan_with, promote, replan,
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
    assert_eq!(field(|job| job.nodes = vec![NodeIndex(1), NodeIndex(1)]), "nodes");
    assert_eq!(field(|job| job.nodes = vec![NodeIndex(0), NodeIndex(3)]), "nodes");
    assert_eq!(field(|job| job.name = name(2)), "name");
}

#[test]
fn nobody_runs_slower_than_the_least_rate() {
    // At full speed it uses thirty processors of each node, and a node has one.
    let of = |wants| Job { cpu_ppm: CpuPpm::from_percent(3_000), ..job(1, 1, 1, wants) };
    let refusal = refused(admit(at(0), &whole(2), &[], &of(Wants::By(at(1_000)))));
    assert_eq!(refusal.earliest, None);
    // But where that is what is asked for.
    let rate = Wants::Rate(Share::from_percent(3).unwrap());
    assert!(admitted(admit(at(0), &whole(2), &[], &of(rate))).keeps_all());
}

#[test]
fn a_deadline_of_long_ago_is_answered_as_exactly_as_one_of_today() {
    let running = job(1, 60, 2, Wants::By(at(200)));
    let wanted = job(2, 60, 2, Wants::By(WallTime::from_unix_nanos(1)));
    let refusal = refused(admit(at(0), &whole(2), &[running], &wanted));
    let earliest = refusal.earliest.unwrap();
    assert!((at(60)..at(61)).contains(&earliest), "the other one has time: {refusal:?}");
}

#[test]
fn who_has_nothing_to_do_is_done_at_once_and_who_has_too_much_never() {
    for wants in [Wants::By(at(9)), Wants::Rate(Share::ONE), Wants::Rest] {
        let plan = plan(at(0), &whole(2), &[job(1, 0, 1, wants)]);
        let own = plan.of("j1").unwrap();
        assert_eq!((own.stretches.len(), own.ends, own.kept), (0, Some(at(0)), true));
    }
    let by = |remaining_nanos| {
        let wanted = Job { remaining_nanos, ..job(1, 1, 1, Wants::By(at(9))) };
        beside(at(0), &whole(2), &[], &wanted).unwrap()
    };
    assert!(by(Nanos::new(0)).unwrap().stretches.is_empty());
    assert_eq!(by(Nanos::new(u64::MAX)).unwrap_err().earliest, None);
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
fn hostile_job(number: usize) -> impl Strategy<Value = Job> {
    let wants = prop_oneof![
        any_number().prop_map(|by| Wants::By(WallTime::from_unix_nanos(by))),
        (0u32..1_000_001).prop_map(|ppm| Wants::Rate(Share::try_from(ppm).unwrap())),
        Just(Wants::Rest),
    ];
    let speed = prop_oneof![1 => Just(0u32), 5 => Just(1u32), 5 => Just(u32::MAX)];
    let speeds = prop::collection::btree_map(1u32..4, speed, 0..3);
    let cpu = prop_oneof![Just(0u32), Just(1u32), Just(1_000_000u32), Just(u32::MAX)];
    let nodes = prop::collection::vec((0u32..4).prop_map(NodeIndex), 0..3);
    (wants, any_number(), speeds, cpu, any_number(), nodes).prop_map(
        move |(wants, work, speed_ppm, cpu, from, nodes)| Job {
            wants,
            remaining_nanos: Nanos::new(work),
            speed_ppm,
            cpu_ppm: CpuPpm::new(cpu),
            from_unix_nanos: WallTime::from_unix_nanos(from),
            nodes,
            ..job(number, 1, 1, Wants::Rest)
        },
    )
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

    // Goal: to ask for many at a time finds what asking for one after the other finds. Method: half of all jobs take what is
    // left, and are asked for by one time.
    #[test]
    fn who_is_asked_for_with_others_has_what_it_would_have_alone(jobs in any_jobs(), by in 1u64..400) {
        let cluster = Cluster::of(4, CpuPpm::from_percent(90));
        let rest = |(number, job): (usize, Job)| if number % 2 == 0 { Job { wants: Wants::Rest, ..job } } else { job };
        let jobs: Vec<Job> = jobs.into_iter().enumerate().map(rest).collect();
        let before = plan(at(0), &cluster, &jobs);
        let asked: Vec<_> =
            jobs.iter().map(|job| Promotion { name: job.name.clone(), by: at(by) }).collect();
        let ask = |asked: &[Promotion]| promote(at(0), &cluster, &jobs, &before, asked);
        let one_by_one = asked.iter().enumerate().find_map(|(index, one)| {
            ask(slice::from_ref(one)).map(|(_, plan)| (index, plan))
        });
        let together = ask(&asked);
        prop_assert_eq!(&together, &one_by_one);
        if let Some((index, plan)) = together {
            prop_assert_eq!(jobs[index].wants, Wants::Rest);
            prop_assert!(plan.jobs()[&jobs[index].name].ends.unwrap() <= at(by));
        }
    }

    // Goal: whatever is asked, there is an answer, and it names nodes that are there. Method: the ends of all ranges, on
    // clusters without nodes, CPU or memory too, and that become less.
    #[test]
    fn whatever_is_asked_is_answered(
        jobs in (0..4).map(hostile_job).collect::<Vec<_>>(),
        nodes in 0u32..5, jobs_a_node in 0u32..3, now in any_number(), later in any_number(),
        cpu in prop_oneof![Just(0u32), Just(900_000u32), Just(u32::MAX)],
    ) {
        let cluster = Cluster { jobs_a_node, ..Cluster::of(nodes, CpuPpm::new(cpu)) };
        let less = Cluster::of(nodes / 2, CpuPpm::new(cpu / 2));
        let [now, later] = [now, later].map(WallTime::from_unix_nanos);
        let are_there = |plan: &Plan, cluster: &Cluster| {
            let nodes = plan.jobs().values().flat_map(|own| &own.nodes);
            nodes.map(|node| node.0 as usize).all(|node| node < cluster.nodes_ppm.len())
        };
        let (wanted, running) = jobs.split_first().unwrap();
        let before = plan(now, &cluster, running);
        prop_assert!(are_there(&before, &cluster));
        for cluster in [&cluster, &less] {
            prop_assert!(are_there(&replan(later, cluster, running, &before), cluster));
            if let Verdict::Admitted(plan) = deadline::admit(later, cluster, running, &before, wanted) {
                prop_assert!(are_there(&plan, cluster) && plan.jobs()[&wanted.name].kept);
            }
            let reserved = Reserved { node: NodeIndex(1), from: now, to: later, cpu: CpuPpm::new(cpu) };
            if let Ok(Ok(found)) = beside(later, cluster, &[reserved], wanted) {
                prop_assert!(found.kept);
            }
            let asked = running.iter().map(|job| Promotion { name: job.name.clone(), by: now });
            if let Some((_, plan)) = promote(later, cluster, running, &before, &asked.collect::<Vec<_>>()) {
                prop_assert!(are_there(&plan, cluster));
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
