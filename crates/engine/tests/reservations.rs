//! What users see: granting now and in advance, refusals and what they offer, changes, owners.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::agents::{Act, Order};
use keeptime_engine::book::{Book, Reservation};
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Answer, Call, CallError, Event, Input, Output, Policy, Ticket};
use keeptime_model::application::Application;
use keeptime_model::assignment::CpuMechanism;
use keeptime_model::capability::Guarantee;
use keeptime_model::disk::{DiskDirection, DiskRates};
use keeptime_model::extension::Extension;
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Ask, Handle, Malleable, NodeChoice, Request, State};
use keeptime_model::run_end::RunEnd;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Bytes, BytesPerSecond, CpuPpm, Nanos, Share};
use keeptime_planner::outline::Outline;
use keeptime_planner::translate::{Decision, Verdict};
use std::collections::BTreeSet;
use world::{
    Manner, SECOND, World, application, at, flow, goal, named, policy, refused, request, star,
};

#[test]
fn what_starts_now_is_granted_when_every_agent_has_accepted() {
    let mut world = World::star(4);
    let call = Call::Reserve {
        key: "k".parse().unwrap(),
        request: request(named(&["n1", "n2"]), 50, 10, 0, 60),
    };
    let ticket = world.begin("ada", call);
    assert!(world.obey(0));
    assert!(world.record.is_empty() && world.answers.is_empty(), "n2 has not accepted yet");
    world.pump();
    assert_eq!(world.kinds(), ["granted", "started"]);
    let Some(Ok(Answer::Reservation(reservation))) = world.answers.get(&ticket) else { panic!() };
    assert_eq!(reservation.state, State::Active);
    assert_eq!(world.jobs_of(0), ["r1"]);
    let flow = world.agents[0].holding[&"r1".parse().unwrap()].flows[0];
    assert_eq!(flow.bits_per_second, BitsPerSecond::from_mbit(10));
    assert_eq!(Some(flow.destination), world.topology.nodes()[1].address);
    world.pass(61);
    assert_eq!(world.kinds(), ["granted", "started", "ended"]);
    assert_eq!(world.reserve("all", request(NodeChoice::Any(4), 100, 0, 0, 1)), Ok(Handle::new(2)));
}

#[test]
fn an_agent_that_refuses_or_stays_silent_gives_everything_back() {
    for (manner, word) in [(Manner::Refuses, "it will not"), (Manner::Silent, "did not answer: n2")]
    {
        let mut world = World::star(4);
        world.agents[1].manner = manner;
        let asked = request(named(&["n1", "n2"]), 100, 10, 0, 60);
        let ticket =
            world.begin("ada", Call::Reserve { key: "k".parse().unwrap(), request: asked });
        world.pump();
        world.pass(3);
        let error = world.answers[&ticket].clone().unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(world.kinds(), ["refused"]);
        assert!(world.jobs_of(0).is_empty(), "n1 gave it back");
        world.agents[1].manner = Manner::Obeys;
        assert!(world.reserve("again", request(named(&["n1"]), 100, 0, 0, 60)).is_ok());
    }
}

#[test]
fn what_a_node_cannot_enforce_is_not_promised_there() {
    let mut world = World::star(2);
    world.disconnect(0);
    world.agents[0].refused = [Guarantee::Bandwidth].into();
    world.connect(0);
    let grant_of = |world: &World, handle| {
        let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
        grant.nodes.iter().map(Name::to_string).collect::<Vec<_>>()
    };
    let loopback = Pattern::Matrix(BTreeSet::new());
    let on = |nodes, from| {
        let mut request = request(nodes, 10, 0, from, 60);
        let Ask::Resources(resources) = &mut request.ask else { panic!() };
        resources.pattern = Some(loopback.clone());
        resources.bits_per_second = BitsPerSecond::from_mbit(1);
        request
    };
    // Now and in advance.
    for (key, from) in [("now", 0), ("later", 3_600)] {
        let handle = world.reserve(key, on(NodeChoice::Any(1), from)).unwrap();
        assert_eq!(grant_of(&world, handle), ["n2"]);
        let refusal = refused(world.reserve(&format!("{key}-n1"), on(named(&["n1"]), from)));
        let expected = "these nodes cannot enforce reserved bandwidth: n1";
        assert_eq!(refusal.to_string(), expected);
        assert_eq!(refusal.earliest_start_unix_nanos, None);
    }
    refused(world.reserve("both", on(NodeChoice::Any(2), 3_600)));
    // What it can enforce is to be had there, and it remembers while it is away.
    assert!(world.reserve("cpu", request(named(&["n1"]), 10, 0, 0, 60)).is_ok());
    world.disconnect(0);
    refused(world.reserve("away", on(named(&["n1"]), 3_600)));
    // Somebody loaded the module.
    world.agents[0].refused.clear();
    world.connect(0);
    assert!(world.reserve("again", on(named(&["n1"]), 3_600)).is_ok());
}

// Goal: bandwidth can be had by itself, where all CPU is reserved and where none can be kept, and only on nodes that are
// there. Method: as many nodes as are there now, one more, and as many in advance.
#[test]
fn flows_alone_need_no_cpu_and_nodes_that_are_there() {
    let mut world = World::star(4);
    for node in [2, 3] {
        world.disconnect(node);
    }
    world.agents[2].refused = [Guarantee::CpuShare].into();
    world.connect(2);
    world.reserve("full", request(named(&["n1", "n2"]), 100, 10, 0, 3_600)).unwrap();
    let flows = |nodes, mbit, from| request(nodes, 0, mbit, from, 60);
    let handle = world.reserve("now", flows(NodeChoice::Any(3), 5, 0)).unwrap();
    let (nodes, cpu) = reserved(&world, handle);
    let nodes: BTreeSet<_> = nodes.iter().map(String::as_str).collect();
    assert_eq!((nodes, cpu), (["n1", "n2", "n3"].into(), 0));
    world.reserve("later", flows(NodeChoice::Any(4), 5, 1_800)).unwrap();
    let held = &world.agents[0].holding[&"r2".parse().unwrap()];
    assert_eq!(held.cpu_ppm, CpuPpm::default());
    assert!(held.flows.iter().any(|flow| flow.bits_per_second == BitsPerSecond::from_mbit(5)));
    // The link is what is short then, also on nodes that are named.
    for (key, nodes) in [("any", NodeChoice::Any(2)), ("these", named(&["n1", "n2"]))] {
        let refusal = refused(world.reserve(key, flows(nodes, 1_000, 0))).to_string();
        assert!(!refusal.contains("CPU"), "{refusal}");
    }
    let few = refused(world.reserve("four", flows(NodeChoice::Any(4), 5, 0)));
    assert_eq!(few.reason, Reason::TooFewNodes { needs: 4, has: 3 });
    assert_eq!(few.lacking, []);
}

// Goal: what may have some nodes alone is granted those, now and in advance, waits for those, and is told what they lack and
// nothing of others; also of a goal, or asked of a broker that begins anew. Method: four nodes, of which two
// are filled.
#[test]
fn what_is_among_some_nodes_is_granted_no_others() {
    let mut world = World::with_application(4, "");
    let among = |names: &[&str], request: Request| Request {
        among: names.iter().map(|name| name.parse().unwrap()).collect(),
        ..request
    };
    let nodes_of = |world: &World, handle| {
        let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
        grant
            .nodes
            .iter()
            .map(Name::to_string)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let any = |count, percent, from| request(NodeChoice::Any(count), percent, 0, from, 600);
    let last = ["n3", "n4"];
    let now = world.reserve("now", among(&last, any(2, 60, 0))).unwrap();
    let promised = world.reserve("goal", among(&last, goal(3_000, 0, 600))).unwrap();
    assert_eq!([now, promised].map(|handle| nodes_of(&world, handle)), ["n3 n4", "n3 n4"]);
    // Others are free, and of no use.
    let refusal = refused(world.reserve("more", among(&last, any(1, 50, 0))));
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(600)));
    let said = refusal.to_string();
    assert!(said.contains("CPU of n3") && !said.contains("n1"), "{said}");
    let later = world.reserve("later", among(&last, any(2, 100, 600))).unwrap();
    assert_eq!(nodes_of(&world, later), "n3 n4");
    world.restart();
    world.connect_all();
    world.pump();
    let waits = Request { wait_nanos: Some(Nanos::from_secs(60)), ..among(&last, any(1, 50, 0)) };
    let ticket =
        world.begin("ada", Call::Reserve { key: "waits".parse().unwrap(), request: waits });
    world.pump();
    assert!(!world.answers.contains_key(&ticket), "n1 is free, and it waits");
    world.call("ada", Call::Cancel { handle: now }).unwrap().unwrap();
    world.pump();
    let Some(Ok(Answer::Reservation(granted))) = world.answers.get(&ticket) else { panic!() };
    assert!(last.contains(&granted.grant.as_ref().unwrap().nodes[0].as_str()));
    let unknown = world.reserve("unknown", among(&["n9"], any(1, 10, 0))).unwrap_err().to_string();
    assert!(
        unknown.contains("among: \"n9\"") && unknown.contains("nodes of the cluster, as n1, n2"),
        "{unknown}"
    );
}

fn by(cpu_mechanism: CpuMechanism, request: Request) -> Request {
    Request { cpu_mechanism, ..request }
}

// Goal: what is to keep a share comes to agents as it was said, for resources and goals, until something else is, also
// with a broker that begins anew; records do not tell it where nobody says it, as those do not that are older.
#[test]
fn agents_are_told_what_is_to_keep_a_share() {
    use CpuMechanism::{Auto, Bandwidth, Deadline, UserLevel};
    let mut world = World::with_application(2, "");
    let told = |world: &World, handle: Handle| world.agents[0].holding[&handle.job()].cpu_mechanism;
    let share = || request(named(&["n1"]), 10, 0, 0, 600);
    let handle = world.reserve("a", by(UserLevel, share())).unwrap();
    let plain = world.reserve("b", share()).unwrap();
    let promised = world.reserve("c", by(Bandwidth, goal(3_000, 0, 600))).unwrap();
    let all = [handle, plain, promised];
    assert_eq!(all.map(|handle| told(&world, handle)), [UserLevel, Auto, Bandwidth]);
    let change = Call::Modify { handle, request: by(Deadline, share()) };
    world.call("ada", change).unwrap().unwrap();
    assert_eq!(told(&world, handle), Deadline);
    world.restart();
    world.connect_all();
    world.pump();
    assert_eq!(all.map(|handle| told(&world, handle)), [Deadline, Auto, Bandwidth]);
    let record = world.record.iter().find(|(_, event)| event.handle() == Some(plain));
    let (_, granted) = record.unwrap();
    let text = serde_json::to_string(granted).unwrap();
    assert!(!text.contains("cpu_mechanism"), "{text}");
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), *granted);
}

// Goal: where a mechanism does not serve, its node is named with those that do, whether it was asked for by name or
// would have had to be taken, and nothing changes there. What serves is to be had, and elsewhere this one.
#[test]
fn a_mechanism_that_does_not_serve_on_a_node_is_refused_with_those_that_do() {
    use CpuMechanism::{Deadline, UserLevel};
    let mut world = World::with_application(2, "");
    let share = |nodes, from| request(nodes, 10, 0, from, 600);
    let handle = world.reserve("a", share(named(&["n1"]), 0)).unwrap();
    world.disconnect(0);
    world.agents[0].refused = [Guarantee::CpuSchedule].into();
    world.connect(0);
    let before = world.agents[0].holding.clone();
    let words = "n1 keeps no share of the CPU by deadline, but by bandwidth, user-level";
    let cases = [
        ("named", share(named(&["n1"]), 0)),
        ("later", share(named(&["n1"]), 3_600)),
        ("any", share(NodeChoice::Any(2), 0)),
        ("goal", goal(3_000, 0, 600)),
    ];
    for (key, asked) in cases {
        let refusal = refused(world.reserve(key, by(Deadline, asked)));
        assert!(refusal.to_string().ends_with(words), "{key}: {refusal}");
        assert_eq!(refusal.earliest_start_unix_nanos, None, "{key}: never");
    }
    let change = Call::Modify { handle, request: by(Deadline, share(named(&["n1"]), 0)) };
    let refusal = refused(world.call("ada", change).unwrap());
    let expected =
        format!("these nodes cannot enforce a CPU schedule by SCHED_DEADLINE: n1; {words}");
    assert_eq!(refusal.to_string(), expected);
    assert_eq!(world.agents[0].holding, before, "all is as it was");
    assert!(world.reserve("other", by(UserLevel, share(named(&["n1"]), 0))).is_ok());
    let elsewhere = world.reserve("elsewhere", by(Deadline, share(NodeChoice::Any(1), 0))).unwrap();
    assert_eq!(world.agents[1].holding[&elsewhere.job()].cpu_mechanism, Deadline);
}

#[test]
fn agents_know_whose_a_job_is() {
    let mut world = World::star(1);
    let handle = world.reserve("k", request(named(&["n1"]), 10, 0, 0, 60)).unwrap();
    let told = &world.agents[0].holding[&handle.job()];
    assert_eq!(told.owner, Some("ada".parse().unwrap()));
}

/// Found by simulation: the agent's answer to what is recorded was overtaken by a change to the very
/// same, and after that nobody asked it again.
#[test]
fn what_an_agent_refused_with_a_change_it_is_told_once_more() {
    let mut world = World::star(1);
    let asked = request(named(&["n1"]), 50, 0, 3_600, 60);
    let handle = world.reserve("k", asked.clone()).unwrap();
    world.pass(2_990);
    // The order to begin is on its way when the change comes.
    world.now = at(3_001);
    world.input(Input::Passed);
    let ticket = world.begin("ada", Call::Modify { handle, request: asked });
    world.agents[0].manner = Manner::Refuses;
    world.pump();
    assert!(world.answers[&ticket].is_err());
    assert_eq!(world.kinds(), ["granted", "failed"]);
}

#[test]
fn in_advance_is_granted_by_the_slot_tables_and_told_in_time() {
    let mut world = World::star(2);
    let handle = world.reserve("k", request(named(&["n1", "n2"]), 60, 0, 3_600, 60)).unwrap();
    assert_eq!(world.kinds(), ["granted"]);
    assert!(world.jobs_of(0).is_empty());
    let second = refused(world.reserve("l", request(named(&["n2"]), 60, 0, 3_650, 60)));
    let words = "CPU of n2 lacks 20 %, first at 2026-01-01T01:00:50Z";
    assert_eq!(second.to_string(), words);
    assert_eq!(second.earliest_start_unix_nanos, Some(at(3_660)));
    world.pass(3_005);
    let told = world.agents[1].holding[&handle.job()].clone();
    assert!(told.from_unix_nanos > world.now, "told ten minutes ahead");
    assert_eq!([told.from_unix_nanos, told.until_unix_nanos], [at(3_600), at(3_660)]);
    assert!(!told.is_due(world.now) && told.is_due(at(3_600)) && !told.is_due(at(3_660)));
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Granted);
    world.pass(600);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Active);
}

#[test]
fn agents_are_told_the_period_and_the_rates_of_their_own_disk() {
    let mut world = World::star(2);
    let mut asked = request(named(&["n1", "n2"]), 10, 0, 0, 60);
    let Ask::Resources(resources) = &mut asked.ask else { panic!() };
    resources.disk_read_bytes_per_second = BytesPerSecond::from_mega_bytes(30);
    resources.cpu_period_nanos = Some(Nanos::from_millis(20));
    let handle = world.reserve("k", asked.clone()).unwrap();
    let told = &world.agents[1].holding[&handle.job()];
    assert_eq!(told.cpu_period_nanos, Some(Nanos::from_millis(20)));
    let read =
        DiskRates::default().with(DiskDirection::Read, Some(BytesPerSecond::from_mega_bytes(30)));
    assert_eq!(told.disks, [("8:0".parse().unwrap(), read)].into());
    let Ask::Resources(resources) = &mut asked.ask else { panic!() };
    resources.disk_read_bytes_per_second = BytesPerSecond::from_mega_bytes(71);
    let refusal = refused(world.reserve("l", asked));
    assert!(refusal.to_string().contains("reading at n1 lacks 1 MB/s"), "{refusal}");
}

// Goal: ranks that work unequally hold what each needs, and no more. Method: what one leaves is another's; what is one
// too many is refused by the name of its node.
#[test]
fn each_rank_has_its_own_share_where_they_are_unequal() {
    let mut world = World::star(3);
    let unequal = |nodes, cpu: [u32; 2]| {
        let mut asked = request(nodes, cpu[0].max(cpu[1]), 0, 0, 60);
        let Ask::Resources(resources) = &mut asked.ask else { panic!() };
        resources.set_rank_cpu(cpu.map(CpuPpm::from_percent).to_vec());
        asked
    };
    let handle = world.reserve("k", unequal(named(&["n2", "n1"]), [70, 20])).unwrap();
    let told =
        |world: &World| [0, 1].map(|node: usize| world.agents[node].holding[&handle.job()].cpu_ppm);
    assert_eq!(told(&world), [20, 70].map(CpuPpm::from_percent));
    world.reserve("l", unequal(named(&["n1", "n2"]), [80, 30])).unwrap();
    let refusal = refused(world.reserve("m", unequal(named(&["n1", "n3"]), [1, 90])));
    assert!(refusal.to_string().contains("CPU of n1 lacks 1 %"), "{refusal}");
    // The share of all that it was asked for goes with the list.
    let request = request(named(&["n2", "n1"]), 20, 0, 0, 60);
    world.call("ada", Call::Modify { handle, request }).unwrap().unwrap();
    assert_eq!(told(&world), [20, 20].map(CpuPpm::from_percent));
    // On any nodes none can be too small for whichever rank it gets.
    let refusal = refused(world.reserve("n", unequal(NodeChoice::Any(2), [60, 1])));
    assert!(refusal.to_string().contains("node"), "{refusal}");
    let fewer = world.reserve("o", unequal(NodeChoice::Any(2), [40, 1])).unwrap();
    let grant = world.engine.book().reservations()[&fewer].grant.clone().unwrap();
    assert_eq!(grant.cpu().collect::<Vec<_>>(), [40, 1].map(CpuPpm::from_percent));
}

#[test]
fn a_running_program_is_given_more_where_it_is_and_gives_it_back() {
    let mut world = World::star(4);
    let handle = world.reserve("k", request(named(&["n2", "n1"]), 20, 10, 0, 600)).unwrap();
    let before = world.agents[1].holding[&handle.job()].clone();
    let extend = |world: &mut World, user: &str, extension: Extension| {
        let outcome = world.call(user, Call::Extend { handle, extension });
        outcome.unwrap().map(|answer| match answer {
            Answer::Reservation(reservation) => Reservation::clone(&reservation),
            other => panic!("{other:?}"),
        })
    };
    let more = Extension {
        flows: vec![flow(0, 1, 60)],
        cpu_ppm: CpuPpm::from_percent(50),
        ..Extension::default()
    };
    let given = extend(&mut world, "ada", more.clone()).unwrap().grant.unwrap();
    assert_eq!(given.nodes[0].as_str(), "n2");
    let told = &world.agents[1].holding[&handle.job()];
    assert_eq!(told.cpu_ppm, CpuPpm::from_percent(50));
    let to_n1 = world.topology.nodes()[0].address.unwrap();
    let rates: Vec<_> =
        told.flows.iter().filter(|f| f.destination == to_n1).map(|f| f.bits_per_second).collect();
    assert_eq!(rates, [10, 60].map(BitsPerSecond::from_mbit));
    // What others have in mind is refused with what is in the way, and nothing changes.
    let too_much = Extension { flows: vec![flow(0, 1, 95)], ..Extension::default() };
    let error = extend(&mut world, "ada", too_much).unwrap_err().to_string();
    assert!(error.contains("link n2 > s1 lacks 5 Mbit/s"), "{error}");
    let odd = Extension { flows: vec![flow(0, 2, 1)], ..Extension::default() };
    let error = extend(&mut world, "ada", odd).unwrap_err().to_string();
    assert!(error.contains("flows[0].to: \"2\""), "{error}");
    let error = extend(&mut world, "bob", Extension::default()).unwrap_err().to_string();
    assert!(error.contains("belongs to ada"), "{error}");
    assert_eq!(world.engine.book().reservations()[&handle].grant.as_ref().unwrap().extension, more);
    // A change of the reservation leaves it; a broker that begins anew knows it.
    let longer = request(named(&["n2", "n1"]), 20, 10, 0, 900);
    world.call("ada", Call::Modify { handle, request: longer }).unwrap().unwrap();
    world.restart();
    world.connect_all();
    world.pump();
    assert_eq!(world.agents[1].holding[&handle.job()].cpu_ppm, CpuPpm::from_percent(50));
    extend(&mut world, "ada", Extension::default()).unwrap();
    let after = &world.agents[1].holding[&handle.job()];
    assert_eq!((after.cpu_ppm, &after.flows), (before.cpu_ppm, &before.flows));
    let full = request(named(&["n3", "n2"]), 80, 80, 0, 60);
    assert!(world.reserve("l", full).is_ok(), "what was given back is free");
}

#[test]
fn the_end_of_one_is_the_start_of_the_next() {
    let mut world = World::star(1);
    let full = |from, seconds| request(named(&["n1"]), 100, 0, from, seconds);
    assert!(world.reserve("a", full(1_000, 100)).is_ok());
    assert!(world.reserve("b", full(1_100, 100)).is_ok());
    assert!(world.reserve("c", full(900, 100)).is_ok());
    let between = refused(world.reserve("d", full(1_050, 100)));
    assert_eq!(between.earliest_start_unix_nanos, Some(at(1_200)));
    let more = refused(world.reserve("e", request(named(&["n1"]), 101, 0, 5_000, 1)));
    assert_eq!(more.earliest_start_unix_nanos, None, "never");
    let open = refused(world.reserve("f", request(named(&["n1"]), 1, 0, 1_000, 0)));
    assert_eq!(open.earliest_start_unix_nanos, Some(at(1_200)));
    assert!(matches!(open.reason, Reason::Lacking(_)));
}

#[test]
fn a_goal_is_translated_on_what_is_free_then() {
    let mut world = World::with_application(2, "");
    let first = world.reserve("a", goal(1_100, 5_000, 100)).unwrap();
    let promise = world.engine.book().reservations()[&first].grant.clone().unwrap();
    assert_eq!(promise.bits_per_second, BitsPerSecond::from_mbit(80));
    let busy = refused(world.reserve("b", goal(1_100, 5_000, 100)));
    assert!(matches!(&busy.reason, Reason::Goal(_)), "{busy}");
    assert_eq!(busy.earliest_start_unix_nanos, Some(at(5_100)));
    let longer = busy.counter_offers[0].time_nanos;
    assert!(longer > Nanos::from_millis(1_100), "a longer time would be admitted: {longer}");
    let millis = longer.get().div_ceil(1_000_000);
    assert!(world.reserve("c", goal(millis, 5_000, 100)).is_ok(), "as was offered");
    let never = refused(world.reserve("d", goal(10, 5_000, 100)));
    assert_eq!(never.earliest_start_unix_nanos, None, "{never}");
    let unknown = goal(10, 0, 1);
    let Ask::Goal { goal, .. } = unknown.ask.clone() else { panic!() };
    let ask = Ask::Goal { application: "sun".parse().unwrap(), goal };
    let error = world.reserve("e", Request { ask, ..unknown }).unwrap_err();
    assert_eq!(error.to_string(), "application: \"sun\" is not accepted; expected one of ray");
}

#[test]
fn a_goal_is_explained_before_and_after_it_is_decided() {
    let mut world = World::with_application(2, "");
    let explain =
        |world: &mut World, request| world.call("ada", Call::Explain { request }).unwrap();
    let Ok(Answer::Decided(before)) = explain(&mut world, goal(1_100, 0, 100)) else { panic!() };
    let Verdict::Planned(plan) = &before.verdict else { panic!("{before:?}") };
    assert_eq!(plan.bandwidth_bits_per_second, BitsPerSecond::from_mbit(80));
    assert!(world.engine.book().reservations().is_empty(), "nothing was reserved");
    let held = world.reserve("a", goal(1_100, 0, 100)).unwrap();
    assert_eq!(world.engine.decision(held), Some(&before));
    let Ok(Answer::Decided(busy)) = explain(&mut world, goal(1_100, 0, 100)) else { panic!() };
    assert!(matches!(busy.verdict, Verdict::Refused(_)), "{busy:?}");
    refused(world.reserve("b", goal(1_100, 0, 100)));
    assert_eq!(world.engine.decision(Handle::new(2)), Some(&busy));
    let resources = explain(&mut world, request(named(&["n1"]), 1, 0, 0, 1)).unwrap_err();
    assert!(resources.to_string().contains("a goal"), "{resources}");
    // A restarted broker has the outline of how it was decided in its record, not all of it.
    world.restart();
    assert_eq!(world.engine.decision(held), None);
    let outlined: Vec<_> = world.record.iter().filter_map(|(_, event)| event.decision()).collect();
    let outline = |decision: &Decision| Outline::of(&decision.explanation, usize::MAX);
    assert_eq!(outlined, [&outline(&before), &outline(&busy)], "one curve is all there is");
    // As ledgers have it that are older.
    let Some((_, granted)) = world.record.iter().find(|(_, event)| event.kind() == "granted")
    else {
        panic!()
    };
    let mut json = serde_json::to_value(granted).unwrap();
    json["granted"]["granted"].as_object_mut().unwrap().remove("decision").unwrap();
    let read: Event = serde_json::from_value(json).unwrap();
    assert_eq!((read.handle(), read.decision()), (Some(held), None));
}

// Goal: a promise is for as many runs as was asked for, and for no more than those that were measured support. Method:
// a profile of single runs, which tell of the median alone.
#[test]
fn a_goal_says_how_often_its_promise_is_to_be_kept() {
    let mut world = World::with_application(2, "");
    let with = |percent| {
        let mut request = goal(3_000, 5_000, 100);
        let Ask::Goal { goal, .. } = &mut request.ask else { panic!() };
        goal.quantile = Share::from_percent(percent);
        request
    };
    for (key, asked, promised) in [("a", 40, 40), ("b", 60, 50)] {
        let held = world.reserve(key, with(asked)).unwrap();
        let promise = world.engine.book().reservations()[&held].grant.clone().unwrap().promise;
        assert_eq!(Some(promise.unwrap().quantile), Share::from_percent(promised));
        world.call("ada", Call::Cancel { handle: held }).unwrap().unwrap();
    }
}

// Goal: where runs have become later than promises follow, the plan says so, also after the broker was killed.
#[test]
fn runs_that_are_later_than_is_corrected_are_told_with_the_plan() {
    let mut world = World::with_application(2, "");
    let plan = |world: &mut World| {
        let explained = world.call("ada", Call::Explain { request: goal(5_000, 0, 100) });
        let Some(Ok(Answer::Decided(decision))) = &explained else { panic!("{explained:?}") };
        let Verdict::Planned(plan) = &decision.verdict else { panic!("{decision:?}") };
        (plan.drift.ppm(), plan.drift_seen_ppm)
    };
    assert_eq!(plan(&mut world), (0, None));
    let handle = world.reserve("a", goal(5_000, 0, 100)).unwrap();
    for _ in 0..8 {
        let report = Call::Report { handle, actual: Nanos::from_secs(2) };
        world.call("ada", report).unwrap().unwrap();
    }
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
    let (corrected, seen) = plan(&mut world);
    assert_eq!(corrected, 250_000);
    assert!(seen.is_some_and(|seen| seen > 500_000), "{seen:?}");
    world.restart();
    world.connect_all();
    assert_eq!(plan(&mut world), (corrected, seen));
}

#[test]
fn what_runs_took_moves_the_next_promise_and_outlasts_the_broker() {
    let mut world = World::with_application(2, "");
    let promised = |world: &mut World, key: &str| {
        let handle = world.reserve(key, goal(3_000, 0, 100)).unwrap();
        let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
        (handle, grant.promise.unwrap().median_nanos)
    };
    let (handle, first) = promised(&mut world, "a");
    let report = |actual| Call::Report { handle, actual };
    let error = world.call("ada", report(Nanos::new(0))).unwrap().unwrap_err();
    assert!(error.to_string().contains("actual_nanos"), "{error}");
    let error = world.call("bob", report(first)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r1 belongs to ada");
    let late = Nanos::new(first.get() * 6 / 5);
    for _ in 0..4 {
        assert!(matches!(world.call("ada", report(late)), Some(Ok(_))));
    }
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
    let error = world.call("ada", report(late)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r1 is cancelled");
    let (second, later) = promised(&mut world, "b");
    assert!(first < later && later < late, "{first} {later} {late}");
    world.call("ada", Call::Cancel { handle: second }).unwrap().unwrap();
    world.restart();
    world.connect_all();
    let (third, again) = promised(&mut world, "c");
    assert_eq!(again, later);
    world.call("ada", Call::Cancel { handle: third }).unwrap().unwrap();
    // Measured anew, it tells itself how things are.
    let (application, profile) = application();
    let call = Call::Register { application: Box::new(application), profile: Box::new(profile) };
    world.call("root", call).unwrap().unwrap();
    assert_eq!(promised(&mut world, "d").1, first);
}

#[test]
fn what_has_a_lease_is_given_back_when_its_holder_is_silent() {
    let mut world = World::star(2);
    let leased = |node: &str| Request {
        lease_nanos: Some(Nanos::from_secs(10)),
        ..request(named(&[node]), 50, 0, 0, 3_600)
    };
    let (kept, silent) =
        (world.reserve("a", leased("n1")).unwrap(), world.reserve("b", leased("n2")).unwrap());
    let state = |world: &World, handle| world.engine.book().reservations()[&handle].state;
    for _ in 0..5 {
        world.pass(4);
        assert!(matches!(world.call("ada", Call::Keep { handle: kept }), Some(Ok(_))));
    }
    assert_eq!([state(&world, kept), state(&world, silent)], [State::Active, State::Cancelled]);
    assert!(world.kinds().contains(&"abandoned"));
    assert!(world.jobs_of(1).is_empty(), "the agent was told");
    let error = world.call("ada", Call::Keep { handle: silent }).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r2 is cancelled");
    let error = world.call("bob", Call::Keep { handle: kept }).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r1 belongs to ada");
    // A broker that comes back gives holders their lease to say something.
    world.pass(8);
    world.restart();
    world.connect_all();
    world.pass(8);
    assert_eq!(state(&world, kept), State::Active);
    world.pass(4);
    assert_eq!(state(&world, kept), State::Cancelled);
    let short = Request { lease_nanos: Some(Nanos::new(1)), ..leased("n1") };
    let error = world.reserve("c", short).unwrap_err().to_string();
    assert!(error.contains("lease_nanos") && error.contains("1 s or more"), "{error}");
}

// A shorter lease counts from the change on, not from when the longer one would have ended.
#[test]
fn a_lease_that_becomes_shorter_ends_in_its_time() {
    let mut world = World::star(1);
    let leased = |seconds| Request {
        lease_nanos: Some(Nanos::from_secs(seconds)),
        ..request(named(&["n1"]), 50, 0, 0, 3_600)
    };
    let handle = world.reserve("k", leased(60)).unwrap();
    world.pass(1);
    let shorter = Call::Modify { handle, request: leased(5) };
    assert!(world.call("ada", shorter).unwrap().is_ok());
    let state = |world: &World| world.engine.book().reservations()[&handle].state;
    world.pass(4);
    assert_eq!(state(&world), State::Active);
    world.pass(2);
    assert_eq!(state(&world), State::Cancelled);
}

// Twice it is made slower for others, which its holder has no part in.
#[test]
fn a_change_that_others_have_made_renews_no_lease() {
    let mut world = World::star(1);
    let silent = Request {
        lease_nanos: Some(Nanos::from_secs(10)),
        malleable: Some(Malleable::new(at(1_000), CpuPpm::from_percent(80))),
        ..request(named(&["n1"]), 80, 0, 0, 100)
    };
    let handle = world.reserve("a", silent).unwrap();
    for key in ["b", "c"] {
        world.pass(4);
        let cpu = world.engine.book().reservations()[&handle].grant.as_ref().unwrap().cpu_ppm;
        world.reserve(key, request(named(&["n1"]), 40, 0, 0, 500)).unwrap();
        let slower = world.engine.book().reservations()[&handle].grant.as_ref().unwrap().cpu_ppm;
        assert!(slower < cpu, "{slower} after {cpu}");
    }
    world.pass(4);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Cancelled);
}

#[test]
fn any_nodes_are_found_when_enough_are_free() {
    let mut world = World::star(4);
    for (key, node, until) in [("a", "n1", 300), ("b", "n2", 200), ("c", "n3", 100)] {
        world.reserve(key, request(named(&[node]), 80, 0, 1_000, until)).unwrap();
    }
    let three = request(NodeChoice::Any(3), 50, 20, 1_000, 50);
    let refusal = refused(world.reserve("d", three.clone()));
    assert_eq!(refusal.reason, Reason::TooFewNodes { needs: 3, has: 1 });
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(1_200)));
    let then = Request { from_unix_nanos: Some(at(1_200)), ..three };
    assert!(world.reserve("e", then).is_ok());
    let flows = request(NodeChoice::Any(2), 10, 60, 1_200, 50);
    assert!(world.reserve("f", flows.clone()).is_ok_and(|handle| handle == Handle::new(6)));
    let refusal = refused(world.reserve("g", request(NodeChoice::Any(4), 10, 40, 1_200, 50)));
    assert!(matches!(refusal.reason, Reason::LinksBusy { .. }), "{refusal}");
    assert_eq!(refusal.earliest_start_unix_nanos, None, "3 flows of 40 Mbit/s on 100 never fit");
    let refusal = refused(world.reserve("h", request(NodeChoice::Any(4), 10, 30, 1_200, 50)));
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(1_250)));
}

#[test]
fn a_request_that_is_sent_again_is_carried_out_once() {
    let mut world = World::star(2);
    let asked = request(named(&["n1"]), 30, 0, 0, 60);
    let call = || Call::Reserve { key: "k".parse().unwrap(), request: asked.clone() };
    let tickets = [world.begin("ada", call()), world.begin("ada", call())];
    world.pump();
    let handles = tickets.map(|ticket| match &world.answers[&ticket] {
        Ok(Answer::Reservation(reservation)) => reservation.handle,
        other => panic!("{other:?}"),
    });
    assert_eq!(handles, [Handle::new(1); 2]);
    assert_eq!(world.reserve("k", asked.clone()), Ok(Handle::new(1)));
    let error = world.reserve("k", request(named(&["n2"]), 30, 0, 0, 60)).unwrap_err();
    assert_eq!(error.to_string(), "the key k was used for another request, r1");
    assert_eq!(world.kinds(), ["granted", "started"]);
    let refusal = request(named(&["n1"]), 90, 0, 0, 60);
    let first = world.reserve("l", refusal.clone()).unwrap_err();
    assert_eq!(world.reserve("l", refusal).unwrap_err(), first);
}

/// Found by simulation: a request that comes once more after its reservation was changed was taken for
/// another that uses its key.
#[test]
fn a_request_that_is_sent_again_after_a_change_is_still_the_same() {
    let mut world = World::star(2);
    let asked = request(named(&["n1"]), 30, 0, 0, 60);
    let handle = world.reserve("k", asked.clone()).unwrap();
    for percent in [40, 50] {
        let request = request(named(&["n1"]), percent, 0, 0, 60);
        assert!(matches!(world.call("ada", Call::Modify { handle, request }), Some(Ok(_))));
    }
    assert_eq!(world.reserve("k", asked.clone()), Ok(handle));
    let changed = world.reserve("k", request(named(&["n1"]), 50, 0, 0, 60));
    assert!(matches!(changed, Err(CallError::KeyReused { .. })), "{changed:?}");
    world.restart();
    assert_eq!(world.reserve("k", asked), Ok(handle));
}

/// Corrections of jobs that share a node are a second apart; what users ask for waits for nobody.
#[test]
fn corrections_are_made_in_turn() {
    let mut world = World::star(3);
    let nodes = [&["n1", "n2"][..], &["n2", "n3"], &["n3"]];
    let asked = |job: usize, percent| request(named(nodes[job]), percent, 0, 0, 600);
    let handles = ["a", "b", "c"].into_iter().enumerate();
    let handles = handles.map(|(job, key)| world.reserve(key, asked(job, 20)).unwrap());
    let handles: Vec<_> = handles.collect();
    let correct =
        |job: usize, percent| Call::Correct { handle: handles[job], request: asked(job, percent) };
    let is_done = |answer| matches!(answer, Some(Ok(Answer::Reservation(_))));
    assert!(is_done(world.call("ada", correct(0, 21))));
    let Some(Err(error)) = world.call("ada", correct(1, 21)) else { panic!("it shares n2") };
    assert!(matches!(error, CallError::NotYet { .. }), "{error}");
    assert!(error.to_string().contains("waits for its turn"), "{error}");
    // The first of n3 waits for it, since it came first; somebody who asks for something does not.
    let Some(Err(CallError::NotYet { .. })) = world.call("ada", correct(2, 21)) else {
        panic!("b comes before it")
    };
    let modify = Call::Modify { handle: handles[2], request: asked(2, 22) };
    assert!(is_done(world.call("ada", modify)));
    world.pass(1);
    assert!(is_done(world.call("ada", correct(1, 21))));
    let Some(Err(CallError::NotFound { .. })) =
        world.call("ada", Call::Correct { handle: Handle::new(99), request: asked(0, 22) })
    else {
        panic!("there is none")
    };
    // What does not fit takes nobody's turn.
    world.pass(1);
    assert!(matches!(world.call("ada", correct(0, 95)), Some(Err(CallError::Refused { .. }))));
    assert!(is_done(world.call("ada", correct(1, 22))));
}

#[test]
fn a_change_is_whole_or_not_at_all() {
    let mut world = World::star(3);
    let handle = world.reserve("k", request(named(&["n1", "n2"]), 50, 10, 0, 600)).unwrap();
    world.reserve("other", request(named(&["n1"]), 40, 0, 0, 600)).unwrap();
    let modify = |request| Call::Modify { handle, request };
    let too_much = modify(request(named(&["n1", "n2"]), 61, 10, 0, 600));
    let Some(Err(CallError::Refused { refusal, .. })) = world.call("ada", too_much) else {
        panic!()
    };
    assert!(refusal.to_string().contains("CPU of n1 lacks 1 %"), "{refusal}");
    let fits = modify(request(named(&["n1", "n2"]), 60, 20, 0, 900));
    let Some(Ok(Answer::Reservation(changed))) = world.call("ada", fits) else { panic!() };
    assert_eq!(changed.until_unix_nanos, Some(at(900)));
    let held = world.agents[0].holding[&"r1".parse().unwrap()].clone();
    assert_eq!((held.cpu_ppm, held.until_unix_nanos), (CpuPpm::from_percent(60), at(900)));
    // To other nodes: those that have no part any more give it back.
    let moved = modify(request(named(&["n2", "n3"]), 60, 20, 0, 900));
    assert!(matches!(world.call("ada", moved), Some(Ok(_))));
    assert_eq!([world.jobs_of(0), world.jobs_of(2)], [vec!["r2".to_string()], vec!["r1".into()]]);
    // An agent that cannot: everything is as before.
    world.agents[2].manner = Manner::Small;
    let refused = modify(request(named(&["n2", "n3"]), 90, 20, 0, 900));
    let Some(Err(error)) = world.call("ada", refused) else { panic!() };
    assert!(error.to_string().contains("n3 cannot enforce it"), "{error}");
    world.pump();
    let held = world.agents[1].holding[&"r1".parse().unwrap()].clone();
    assert_eq!(held.cpu_ppm, CpuPpm::from_percent(60));
    assert!(world.reserve("rest", request(named(&["n2"]), 40, 0, 0, 600)).is_ok());
}

fn reserved(world: &World, handle: Handle) -> (Vec<String>, u32) {
    let found = &world.engine.book().reservations()[&handle];
    let cpu = found.grant.as_ref().unwrap().cpu_ppm.get() / 10_000;
    (found.nodes().iter().map(ToString::to_string).collect(), cpu)
}

// Goal: a program that runs is not ended because its owner asks for more, or less: its nodes stay unless others are named, or
// another number. Method: the one node on which it is has least room of all.
#[test]
fn what_runs_stays_where_it_is_when_it_is_changed() {
    let mut world = World::star(3);
    let any = |count, percent| request(NodeChoice::Any(count), percent, 0, 0, 600);
    let handle = world.reserve("a", any(1, 20)).unwrap();
    let (at, _) = reserved(&world, handle);
    let beside = request(named(&[&at[0]]), 40, 0, 0, 600);
    world.reserve("b", beside).unwrap();
    let modify =
        |world: &mut World, request| world.call("ada", Call::Modify { handle, request }).unwrap();
    for percent in [60, 10, 30] {
        modify(&mut world, any(1, percent)).unwrap();
        assert_eq!(reserved(&world, handle), (at.clone(), percent));
    }
    let refusal = refused(modify(&mut world, any(1, 61)));
    assert_eq!((refusal.resource_offers, refusal.earliest_start_unix_nanos), (vec![], None));
    modify(&mut world, any(2, 61)).expect("another number");
    assert_eq!(reserved(&world, handle).1, 61);
    modify(&mut world, request(named(&[&at[0]]), 10, 0, 0, 600)).expect("they are named");
    let among = ["n1", "n2", "n3"].into_iter().filter(|name| *name != at[0]);
    let among = among.map(|name| name.parse().unwrap()).collect();
    modify(&mut world, Request { among, ..any(1, 80) }).expect("it may not have its own");
    assert_ne!(reserved(&world, handle).0, at);
    // What is offered is as it was asked for.
    let flowing = |mbit| request(NodeChoice::Any(2), 10, mbit, 0, 600);
    let pair = world.reserve("pair", flowing(10)).unwrap();
    let call = Call::Modify { handle: pair, request: flowing(200) };
    let refusal = refused(world.call("ada", call).unwrap());
    let offered: Vec<_> =
        refusal.resource_offers.into_iter().map(|of| of.resources.nodes).collect();
    assert_eq!(offered, [NodeChoice::Any(2)]);
    world.call("ada", Call::Cancel { handle: pair }).unwrap().unwrap();
    // What has not begun has no program there.
    let later = |percent| request(NodeChoice::Any(1), percent, 0, 3_600, 60);
    let handle = world.reserve("c", later(10)).unwrap();
    let (at, _) = reserved(&world, handle);
    world.reserve("d", request(named(&[&at[0]]), 80, 0, 3_600, 60)).unwrap();
    world.call("ada", Call::Modify { handle, request: later(50) }).unwrap().unwrap();
    assert_ne!(reserved(&world, handle).0, at);
}

// Goal: the same of a goal, whose ranks do not change places. Method: where it runs, links have room for 50 Mbit/s of the 80
// that one second takes; elsewhere all is free.
#[test]
fn a_goal_of_what_runs_is_translated_where_it_is() {
    let mut world = World::with_application(4, "");
    let beside = |names: &[&str], mbit| request(named(names), 10, mbit, 0, 600);
    let elsewhere = world.reserve("a", beside(&["n3", "n4"], 95)).unwrap();
    world.reserve("b", beside(&["n1", "n2"], 50)).unwrap();
    let handle = world.reserve("c", goal(2_000, 0, 600)).unwrap();
    let (at, _) = reserved(&world, handle);
    assert_eq!(at, ["n1", "n2"]);
    world.call("ada", Call::Cancel { handle: elsewhere }).unwrap().unwrap();
    let modify = |world: &mut World, millis| {
        let request = goal(millis, 0, 600);
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    let refusal = refused(modify(&mut world, 1_050));
    assert!(matches!(refusal.reason, Reason::Goal(_)), "{refusal}");
    modify(&mut world, 1_700).unwrap();
    assert_eq!(reserved(&world, handle).0, at);
    world.reserve("d", goal(1_050, 0, 600)).expect("elsewhere there is room");
}

/// Ranks 1 and 2 send to rank 0: 1 s at 40 Mbit/s, 2 s at 10.
fn gathering() -> Call {
    let (_, Profile { conditions, .. }) = application();
    let text = "name = \"ray\"\ncommand = [\"ray\"]\npattern = \"1>0 2>0\"\nnodes = [3]\n\
                cpu = \"20 %\"\ntimeout = \"60 s\"\ntime = \"wall\"\n";
    let application = Application::from_toml(text).unwrap();
    let mut profile = Profile::empty(application.name().clone(), conditions, vec![]);
    for (mbit, millis) in [(10, 2_000), (40, 1_000)] {
        let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(millis));
        profile.record(&Default::default(), 3, rate, time);
    }
    Call::Register { application: Box::new(application), profile: Box::new(profile) }
}

// Goal: nor do its ranks change places among its nodes, though it would be faster so. Method: others send 70 Mbit/s to each of
// three nodes when it begins, and then to that of rank 0 alone.
#[test]
fn ranks_of_what_runs_stay_on_their_nodes() {
    let mut world = World::star(6);
    world.call("root", gathering()).unwrap().unwrap();
    let busy = ["n1", "n2", "n3"].map(|to| {
        let from = to.replace(
            ['1', '2', '3'],
            match to {
                "n1" => "4",
                "n2" => "5",
                _ => "6",
            },
        );
        let mut request = request(named(&[&from, to]), 10, 70, 0, 600);
        let Ask::Resources(asked) = &mut request.ask else { panic!() };
        asked.pattern = Some("0>1".parse().unwrap());
        (to, world.reserve(to, request).unwrap())
    });
    let among: BTreeSet<Name> = busy.iter().map(|(to, _)| to.parse().unwrap()).collect();
    let asked = |millis| Request { among: among.clone(), ..goal(millis, 0, 600) };
    let handle = world.reserve("a", asked(2_000)).unwrap();
    let (at, _) = reserved(&world, handle);
    for (_, other) in busy.iter().filter(|(to, _)| *to != at[0]) {
        world.call("ada", Call::Cancel { handle: *other }).unwrap().unwrap();
    }
    let modify = |world: &mut World, millis| {
        let request = asked(millis);
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    let refusal = refused(modify(&mut world, 1_100));
    assert!(refusal.to_string().starts_with(&format!("link s1 > {}", at[0])), "{refusal}");
    assert!(!refusal.counter_offers.is_empty());
    modify(&mut world, 1_950).unwrap();
    assert_eq!(reserved(&world, handle).0, at);
}

// Goal: what is offered on a node that is gone does not wait for its answer: it is offered elsewhere, or waits for room in its
// place.
#[test]
fn what_is_offered_on_a_node_that_goes_away_is_offered_elsewhere() {
    for waits in [false, true] {
        let mut world = World::star(if waits { 1 } else { 2 });
        let wait_nanos = waits.then_some(Nanos::from_secs(600));
        let asked = Request { wait_nanos, ..request(NodeChoice::Any(1), 50, 0, 0, 60) };
        let asked = Call::Reserve { key: "a".parse().unwrap(), request: asked };
        let ticket = world.begin("ada", asked);
        let told = |world: &World| {
            world.outputs.iter().rev().find_map(|output| match output {
                Output::Order { node, .. } => Some(*node),
                _ => None,
            })
        };
        let node = told(&world).unwrap();
        world.agents[node.0 as usize].session = None;
        world.input(Input::Away { node });
        world.pump();
        if waits {
            assert!(world.engine.is_waiting(Ticket(ticket)));
            world.connect(node.0);
            world.pump();
            world.pass(2);
        }
        let granted = world.answers[&ticket].clone().unwrap();
        let Answer::Reservation(found) = granted else { panic!("{granted:?}") };
        let at = world.topology.find_node(&found.nodes()[0]).unwrap();
        assert_eq!((found.state, at == node), (State::Active, waits));
    }
}

// Goal: who asks is answered however many nodes go, one after the other. Method: agents that say nothing; each second the one
// that was asked last is away. Both times that agents have to answer are over then.
#[test]
fn what_is_offered_elsewhere_again_and_again_is_answered_in_time() {
    let mut world = World::star(9);
    world.agents.iter_mut().for_each(|agent| agent.manner = Manner::Silent);
    let asked = request(NodeChoice::Any(1), 50, 0, 0, 60);
    let ticket = world.begin("ada", Call::Reserve { key: "a".parse().unwrap(), request: asked });
    let mut offered = BTreeSet::new();
    let within = policy().answer_within_nanos.saturating_add(policy().answer_within_nanos);
    for _ in 0..within.get() / SECOND {
        assert!(!world.answers.contains_key(&ticket));
        let told = world.outputs.iter().rev().find_map(|output| match output {
            Output::Order { node, order: Order { act: Act::Enforce(_), .. }, .. } => Some(*node),
            _ => None,
        });
        let node = told.unwrap();
        offered.insert(node);
        world.pass(1);
        world.agents[node.0 as usize].session = None;
        world.input(Input::Away { node });
    }
    let refusal = refused(world.answers[&ticket].clone());
    assert!(matches!(refusal.reason, Reason::AgentsSilent(_) | Reason::NodesAway(_)), "{refusal}");
    assert!(offered.len() > 2, "{offered:?}");
}

#[test]
fn owners_change_only_their_own_and_operators_all() {
    let mut world = World::star(1);
    let handle = world.reserve("k", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    let error = world.call("bob", Call::Cancel { handle }).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r1 belongs to ada");
    assert!(matches!(world.call("root", Call::Cancel { handle }), Some(Ok(_))));
    let error = world.call("ada", Call::Cancel { handle }).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "r1 is cancelled");
    let handle = Handle::new(99);
    let error = world.call("ada", Call::Cancel { handle }).unwrap().unwrap_err();
    assert_eq!(error, CallError::NotFound { handle });
    let (application, profile) = application();
    let call = Call::Register { application: Box::new(application), profile: Box::new(profile) };
    let error = world.call("ada", call).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "only operators may register applications");
    assert!(world.jobs_of(0).is_empty());
}

// Goal: what is not agreed on yet is its owner's as well. Method: calls before the agent has answered to what it was told.
#[test]
fn what_is_offered_or_being_changed_is_its_owners_too() {
    let mut world = World::star(1);
    let half = || request(named(&["n1"]), 50, 0, 0, 600);
    let reserve = |key: &str| Call::Reserve { key: key.parse().unwrap(), request: half() };
    let said = |world: &mut World, user, call| {
        let ticket = world.begin(user, call);
        world.answers.get(&ticket).map(|answer| answer.clone().unwrap_err().to_string())
    };
    let handle = Handle::new(1);
    assert_eq!(said(&mut world, "ada", reserve("a")), None, "the agent is asked");
    let theirs = Some("r1 belongs to ada".to_owned());
    assert_eq!(said(&mut world, "bob", Call::Cancel { handle }), theirs);
    world.pump();
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Active);
    let change = || Call::Modify { handle, request: request(named(&["n1"]), 40, 0, 0, 600) };
    assert_eq!(said(&mut world, "ada", change()), None);
    for call in [change(), Call::Cancel { handle }] {
        assert_eq!(said(&mut world, "bob", call), theirs);
    }
    assert_eq!(said(&mut world, "ada", change()), Some(CallError::Busy { handle }.to_string()));
    world.pump();
    let offered = world.begin("ada", reserve("b"));
    let call = Call::Cancel { handle: Handle::new(2) };
    assert!(matches!(world.call("ada", call), Some(Ok(_))));
    assert!(world.answers[&offered].is_err(), "who asked is told");
}

#[test]
fn a_user_has_no_more_than_their_share() {
    let half = Share::from_percent(50).unwrap();
    let limited = Policy { user_cpu: half, user_bandwidth: half, user_reservations: 3, ..policy() };
    let mut world = World::with(star(2), limited);
    assert!(world.reserve("a", request(named(&["n1"]), 80, 0, 1_000, 100)).is_ok());
    let refusal = refused(world.reserve("b", request(named(&["n2"]), 30, 0, 1_000, 100)));
    let words = "your share of CPU (100 % in all) lacks 10 %, first at 2026-01-01T00:16:40Z";
    assert_eq!(refusal.to_string(), words);
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(1_100)));
    let refusal = refused(world.reserve("c", request(named(&["n1", "n2"]), 1, 60, 2_000, 100)));
    let words = "your share of bandwidth (100 Mbit/s in all) lacks 20 Mbit/s, first at \
                 2026-01-01T00:33:20Z";
    assert_eq!(refusal.to_string(), words);
    for key in ["d", "e"] {
        assert!(world.reserve(key, request(named(&["n2"]), 10, 0, 3_000, 100)).is_ok());
    }
    let refusal = refused(world.reserve("f", request(named(&["n2"]), 10, 0, 9_000, 100)));
    assert_eq!(refusal.reason, Reason::TooMany { user_reservations: 3 });
    let far = refused(world.reserve("g", request(named(&["n2"]), 10, 0, 400 * 86_400, 100)));
    assert!(far.to_string().contains("at most"), "{far}");
}

// Goal: one user does not fill the broker's memory, neither with what they have nor with what is remembered of them, and
// loses nothing by that. Method: room for two and a half. The third is granted, since how much it takes is known afterwards.
#[test]
fn a_users_reservations_take_no_more_memory_than_a_user_may() {
    let (user_memory, remember_nanos) = (Bytes::new(3_000), Nanos::from_secs(60));
    let mut world = World::with(star(3), Policy { user_memory, remember_nanos, ..policy() });
    let on = |names: &[&str], seconds| request(named(names), 10, 0, 1_000, seconds);
    let asked = on(&["n1", "n2"], 100);
    let [first, ..] = ["a", "b", "c"].map(|key| world.reserve(key, asked.clone()).unwrap());
    let refusal = refused(world.reserve("d", asked.clone()));
    assert_eq!(refusal.reason, Reason::TooMuch { user_memory_bytes: user_memory });
    assert_eq!(world.engine.book().reservations().len(), 3, "nothing is remembered of it");
    assert_eq!(world.reserve("a", asked.clone()), Ok(first), "what was granted is told again");
    let mut change = |request| world.call("ada", Call::Modify { handle: first, request }).unwrap();
    assert!(change(on(&["n1", "n2"], 200)).is_ok(), "it takes no more");
    assert!(matches!(change(on(&["n1", "n2", "n3"], 200)), Err(CallError::Refused { .. })));
    let extension = Extension { flows: vec![flow(0, 1, 1)], ..Extension::default() };
    let extended = world.call("ada", Call::Extend { handle: first, extension }).unwrap();
    assert!(matches!(extended, Err(CallError::Refused { .. })), "{extended:?}");
    let others = Call::Reserve { key: "a".parse().unwrap(), request: asked.clone() };
    assert!(world.call("eve", others).unwrap().is_ok(), "others are not concerned");

    let (ada, book) = ("ada".parse().unwrap(), world.engine.book());
    let restored = Book::restore(book.snapshot()).unwrap();
    let replayed = world.replayed();
    assert_eq!(restored.memory(&ada), book.memory(&ada));
    assert_eq!(replayed.book().memory(&ada), book.memory(&ada));

    assert!(world.call("ada", Call::Cancel { handle: first }).unwrap().is_ok());
    refused(world.reserve("e", asked.clone()));
    world.pass(61);
    assert!(world.reserve("e", asked).is_ok(), "what is forgotten takes nothing");
}

#[test]
fn nonsense_is_told_by_field_and_value() {
    let mut world = World::star(2);
    let cases = [
        (request(named(&["n9"]), 10, 0, 0, 60), "nodes: \"n9\""),
        (request(named(&[]), 10, 0, 0, 60), "nodes: \"0\""),
        (request(named(&["n1", "n1"]), 10, 0, 0, 60), "every node once"),
        (request(NodeChoice::Any(5_000), 10, 0, 0, 60), "1 to 4096"),
    ];
    for (asked, words) in cases {
        let error = world.reserve("k", asked).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    world.pass(1_000);
    let past = world.reserve("k", request(named(&["n1"]), 10, 0, 5, 60)).unwrap_err().to_string();
    assert!(past.contains("from_unix_nanos") && past.contains("or later"), "{past}");
    let recent = world.reserve("k", request(named(&["n1"]), 10, 0, 990, 60)).unwrap();
    let reservation = &world.engine.book().reservations()[&recent];
    assert_eq!(reservation.from_unix_nanos, world.now);
    assert_eq!(world.record.len(), 2, "nonsense is not recorded");
    world.pass(30);
    let change = Call::Modify { handle: recent, request: request(named(&["n1"]), 10, 0, 0, 20) };
    let over = world.call("ada", change).unwrap().unwrap_err().to_string();
    let words = "duration_nanos: \"20000000000\" is not accepted; expected more than 30 s: \
                 it has begun so long ago";
    assert_eq!(over, words);
}

#[test]
fn a_lost_node_ends_what_needs_it_and_the_rest_is_offered_elsewhere() {
    let mut world = World::star(4);
    let moving =
        Request { on_loss: Some(OnLoss::Move), ..request(NodeChoice::Any(2), 90, 10, 0, 3_600) };
    let first = world.reserve("k", moving).unwrap();
    let told = world.reserve("l", request(NodeChoice::Any(2), 90, 10, 0, 3_600)).unwrap();
    let node_of = |world: &World, handle| {
        let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
        world.topology.find_node(&grant.nodes[0]).unwrap().0
    };
    // Everything is taken: nothing can be offered.
    let gone = node_of(&world, told);
    world.disconnect(gone);
    world.pass(30);
    let lost = world.record.iter().find_map(|(_, event)| match event {
        Event::Lost { handle, instead, .. } => Some((*handle, instead.clone())),
        _ => None,
    });
    assert_eq!(lost, Some((told, None)));
    // Now one node of the other pair goes: the two that are left take its place.
    world.connect(gone);
    world.pump();
    world.disconnect(node_of(&world, first));
    world.pass(30);
    let states = |handle| world.engine.book().reservations()[&handle].state;
    assert_eq!([states(first), states(Handle::new(3))], [State::Lost, State::Active]);
    let moved = &world.engine.book().reservations()[&Handle::new(3)];
    assert_eq!(moved.replaces, Some(first));
    assert_eq!(moved.until_unix_nanos, Some(at(3_600)));
}

/// Found by simulation: a change that lasts longer was accepted by one agent and given up; that agent
/// heard of it when the reservation was over, refused that, and kept what it had accepted.
#[test]
fn an_agent_that_did_not_hear_of_the_end_is_told_to_give_back() {
    let mut world = World::star(2);
    let handle = world.reserve("k", request(named(&["n1", "n2"]), 50, 0, 0, 60)).unwrap();
    world.agents[1].manner = Manner::Silent;
    let longer = request(named(&["n1", "n2"]), 50, 0, 0, 600);
    world.begin("ada", Call::Modify { handle, request: longer });
    world.pump();
    world.agents[0].manner = Manner::Silent;
    world.pass(30);
    assert_eq!(world.agents[0].holding[&handle.job()].until_unix_nanos, at(600));
    world.agents[0].manner = Manner::Obeys;
    world.pass(40);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Ended);
    assert!(world.jobs_of(0).is_empty());
}

#[test]
fn an_agent_that_is_silent_but_connected_is_hung_up_on() {
    let mut world = World::star(1);
    let session = world.agents[0].session.take().unwrap();
    world.pass(30);
    assert!(!world.engine.is_connected(NodeIndex(0)));
    // What it says on that connection now is not heard: it has to come back.
    world.input(Input::Heard { node: NodeIndex(0), session });
    assert!(!world.engine.is_connected(NodeIndex(0)));
    let hung_up = |output: &Output| matches!(output, Output::HangUp { .. });
    assert_eq!(world.outputs.iter().filter(|output| hung_up(output)).count(), 1);
    world.connect(0);
    assert!(world.engine.is_connected(NodeIndex(0)));
}

// Goal: who knows that a node is gone does not wait for its lease: what runs there is lost at once, and what is to begin
// there later begins, since the node is back by then.
#[test]
fn a_node_that_is_known_to_be_gone_is_lost_at_once_and_comes_back_by_connecting() {
    let mut world = World::star(1);
    let runs = world.reserve("k", request(named(&["n1"]), 50, 0, 0, 60)).unwrap();
    let later = world.reserve("l", request(named(&["n1"]), 50, 0, 3_600, 60)).unwrap();
    world.input(Input::Away { node: NodeIndex(0) });
    let state = |world: &World, handle: Handle| world.engine.book().reservations()[&handle].state;
    assert_eq!([state(&world, runs), state(&world, later)], [State::Lost, State::Granted]);
    assert!(!world.engine.is_connected(NodeIndex(0)));
    world.connect(0);
    world.pump();
    assert!(world.jobs_of(0).is_empty(), "what is lost is given back there");
    world.pass(3_605);
    assert_eq!(state(&world, later), State::Active);
}

// What an agent accepted ahead says nothing when it is gone: it may come back without it, or not at all.
#[test]
fn what_was_accepted_ahead_begins_only_on_nodes_that_are_there() {
    for comes_back in [true, false] {
        let mut world = World::star(2);
        let handle = world.reserve("k", request(named(&["n1"]), 50, 0, 60, 3_600)).unwrap();
        assert_eq!(world.jobs_of(0), ["r1"], "told ahead");
        world.disconnect(0);
        world.pass(65);
        let state = |world: &World| world.engine.book().reservations()[&handle].state;
        assert_eq!(state(&world), State::Granted, "nobody says that it is enforced");
        if comes_back {
            world.connect(0);
        }
        world.pass(10);
        assert_eq!(state(&world), if comes_back { State::Active } else { State::Lost });
    }
}

// A node that is only asked about a change has no part in what runs: that goes on when it goes away.
#[test]
fn what_would_be_changed_to_a_node_that_goes_away_stays_where_it_is() {
    let mut world = World::star(2);
    let handle = world.reserve("k", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    // It says nothing any more, and its connection has not ended.
    world.agents[1].session = None;
    world.pass(9);
    let change = Call::Modify { handle, request: request(named(&["n2"]), 50, 0, 0, 600) };
    let ticket = world.begin("ada", change);
    world.pass(3);
    assert!(!world.engine.is_connected(NodeIndex(1)));
    assert!(world.answers[&ticket].is_err());
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Active);
}

// A change that is given up after the start would have left it granted for ever: its own agents are not asked again.
#[test]
fn what_should_have_begun_while_it_was_changed_begins_when_the_change_is_given_up() {
    let mut world = World::star(2);
    let handle = world.reserve("k", request(named(&["n1"]), 50, 0, 10, 600)).unwrap();
    world.pass(9);
    world.agents[1].manner = Manner::Silent;
    let change = Call::Modify { handle, request: request(named(&["n2"]), 50, 0, 10, 600) };
    let ticket = world.begin("ada", change);
    world.pass(3);
    assert!(world.answers[&ticket].is_err());
    assert_eq!(world.kinds(), ["granted", "started"]);
}

// Goal: a broker that itself stood still takes nobody for silent. Method: no step for a minute, over the leases of an
// agent, of a holder, and of a reservation that has not begun; from then on all are silent.
#[test]
fn a_broker_that_stood_still_gives_everybody_their_lease() {
    let mut world = World::star(2);
    let leased = Request {
        lease_nanos: Some(Nanos::from_secs(10)),
        ..request(named(&["n1"]), 50, 0, 0, 3_600)
    };
    let kept = world.reserve("a", leased).unwrap();
    let late = world.reserve("b", request(named(&["n2"]), 50, 0, 5, 3_600)).unwrap();
    let states = |world: &World| {
        [kept, late].map(|handle| world.engine.book().reservations()[&handle].state)
    };
    world.restart();
    world.connect(0);
    world.pump();
    world.pass(6);
    let still = Nanos::from_secs(60);
    world.now = world.now.saturating_add(still);
    world.steady = world.steady.saturating_add(still);
    world.input(Input::Passed);
    assert_eq!(states(&world), [State::Active, State::Granted]);
    assert!(!world.engine.is_connected(NodeIndex(1)), "it did not come back yet");
    world.connect(1);
    world.pump();
    world.pass(9);
    assert_eq!(states(&world), [State::Active; 2]);
    world.disconnect(1);
    world.pass(11);
    assert_eq!(states(&world), [State::Cancelled, State::Lost]);
}

#[test]
fn a_restarted_broker_knows_everything_and_running_jobs_do_not_notice() {
    let mut world = World::with_application(4, "");
    let now = world.reserve("now", request(named(&["n1", "n2"]), 50, 10, 0, 600)).unwrap();
    let ahead = world.reserve("ahead", goal(1_100, 5_000, 60)).unwrap();
    let before = world.engine.book().clone();
    let held = world.agents.clone();
    world.restart();
    assert!(*world.engine.book() == before);
    world.connect_all();
    world.pump();
    for (agent, held) in world.agents.iter().zip(held) {
        assert_eq!(agent.holding, held.holding);
    }
    assert_eq!(world.reserve("now", request(named(&["n1", "n2"]), 50, 10, 0, 600)), Ok(now));
    let busy = refused(world.reserve("x", request(named(&["n1"]), 51, 0, 0, 60)));
    assert_eq!(busy.earliest_start_unix_nanos, Some(at(600)));
    world.pass(5_010);
    assert_eq!(world.engine.book().reservations()[&ahead].state, State::Active);
    assert!(world.engine.book().reservations()[&now].state == State::Ended);
}

#[test]
fn agents_that_do_not_come_back_after_a_restart_are_lost_after_their_lease() {
    let mut world = World::star(2);
    let handle = world.reserve("now", request(named(&["n1", "n2"]), 50, 10, 0, 600)).unwrap();
    world.restart();
    world.connect(0);
    world.pass(5);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Active);
    world.pass(10);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Lost);
    assert!(world.jobs_of(0).is_empty());
    // When it comes back at last, it gives back what is over.
    world.connect(1);
    world.pump();
    assert!(world.jobs_of(1).is_empty());
}

#[test]
fn a_clock_that_is_set_back_stands_still() {
    let mut world = World::star(1);
    let handle = world.reserve("k", request(named(&["n1"]), 50, 0, 0, 60)).unwrap();
    world.pass(30);
    world.now = at(0);
    world.input(Input::Passed);
    assert_eq!(world.engine.now(), at(30));
    world.now = at(29);
    world.input(Input::Passed);
    assert_eq!(world.engine.clock_steps_back(), 1, "once, until it is set back again");
    world.now = at(59);
    world.input(Input::Passed);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Active, "no lease ended");
    world.now = at(60);
    world.input(Input::Passed);
    assert_eq!(world.engine.book().reservations()[&handle].state, State::Ended);
}

#[test]
fn a_cluster_that_shrank_fails_what_it_cannot_hold() {
    let mut world = World::star(3);
    let gone = world.reserve("a", request(named(&["n3"]), 50, 0, 5_000, 60)).unwrap();
    let kept = world.reserve("b", request(named(&["n1"]), 50, 0, 5_000, 60)).unwrap();
    world.topology = star(2);
    world.agents.pop();
    world.restart();
    let states = [gone, kept].map(|handle| world.engine.book().reservations()[&handle].state);
    assert_eq!(states, [State::Failed, State::Granted]);
    assert_eq!(world.kinds().last(), Some(&"failed"));
}

#[test]
fn what_is_over_is_forgotten_in_time_and_its_key_is_free() {
    let mut world = World::star(1);
    world.reserve("k", request(named(&["n1"]), 50, 0, 0, 60)).unwrap();
    world.pass(61);
    world.pass(86_400);
    assert_eq!(world.kinds().last(), Some(&"forgotten"));
    assert!(world.engine.book().reservations().is_empty());
    assert_eq!(world.reserve("k", request(named(&["n1"]), 40, 0, 0, 60)), Ok(Handle::new(2)));
    assert!(world.replayed().book() == world.engine.book());
}

// What was told at the former start would have been taken for the change, when the agent said yes to it.
#[test]
fn a_change_that_waits_when_the_former_start_comes_near_is_what_agents_are_told() {
    let mut world = World::star(2);
    let ahead = policy().tell_ahead_nanos.get() / world::SECOND;
    let later = world.reserve("a", request(named(&["n1"]), 10, 0, ahead + 2, 60)).unwrap();
    world.agents[0].manner = Manner::Silent;
    let change = Call::Modify { handle: later, request: request(named(&["n1"]), 40, 0, ahead, 60) };
    let ticket = world.begin("ada", change);
    world.now = at(3);
    world.input(Input::Passed);
    let told: Vec<_> = world.engine.told(NodeIndex(0)).map(|(_, told, _)| told.cpu_ppm).collect();
    assert_eq!(told, [CpuPpm::from_percent(40)]);
    world.agents[0].manner = Manner::Obeys;
    world.connect(0);
    world.pump();
    assert!(world.answers[&ticket].is_ok());
    assert_eq!(world.agents[0].holding[&later.job()].cpu_ppm, CpuPpm::from_percent(40));
}

// Goal: who looks at what is over sees how its run ended, also after the broker was killed, and that it was cancelled where
// somebody did that. Method: one of each end; one that is being changed; others than its owner; a second end.
#[test]
fn what_a_run_gives_back_says_how_that_ended() {
    let mut world = World::star(3);
    let one = |node: &str, percent| request(named(&[node]), percent, 0, 0, 100);
    let failed = RunEnd::ExitCode(3.try_into().unwrap());
    let ends = [("n1", RunEnd::Done, State::Done), ("n2", failed, State::Failed)];
    for (node, run, _) in ends {
        let handle = world.reserve(node, one(node, 50)).unwrap();
        let error = world.call("bob", Call::Finish { handle, run }).unwrap().unwrap_err();
        assert_eq!(error.to_string(), format!("{handle} belongs to ada"));
        // An agent that does not answer yet: the change is not decided.
        world.begin("ada", Call::Modify { handle, request: one(node, 60) });
        let Some(Ok(Answer::Reservation(over))) = world.call("ada", Call::Finish { handle, run })
        else {
            panic!("{handle} is not given back")
        };
        assert_eq!(over.run, Some(run));
        let again = world.call("ada", Call::Finish { handle, run: RunEnd::AtLimit });
        assert!(matches!(again, Some(Err(CallError::Over { .. }))), "{again:?}");
    }
    let cancelled = world.reserve("c", one("n3", 50)).unwrap();
    world.call("ada", Call::Cancel { handle: cancelled }).unwrap().unwrap();
    for _ in 0..2 {
        let book = world.engine.book().reservations().values();
        let over: Vec<_> = book.map(|over| (over.state, over.run)).collect();
        let [done, failed] = ends.map(|(_, run, state)| (state, Some(run)));
        assert_eq!(over, [done, failed, (State::Cancelled, None)]);
        world.restart();
    }
    world.connect_all();
    assert!(world.reserve("all", request(named(&["n1", "n2"]), 100, 0, 0, 10)).is_ok());
}

// Goal: nobody reads that something is enforced which is not, while it stands and later. Method: one of two agents enforces
// nothing at first, and comes back as one that does; a record as older ledgers have it.
#[test]
fn what_nothing_enforces_is_told() {
    let mut world = World::star(2);
    world.agents[1].is_unenforced = true;
    world.connect(1);
    let handle = world.reserve("a", request(named(&["n1", "n2"]), 20, 0, 0, 100)).unwrap();
    let seen = |world: &World| {
        let recorded = &world.engine.book().reservations()[&handle];
        assert_eq!(recorded.unenforced, Vec::<Name>::new(), "agents say it, and come and go");
        world.engine.seen(recorded).unenforced.clone()
    };
    let second = vec!["n2".parse::<Name>().unwrap()];
    assert_eq!(seen(&world), second);
    let Some(Ok(Answer::Reservation(kept))) = world.call("ada", Call::Keep { handle }) else {
        panic!("{handle} is not kept")
    };
    assert_eq!(kept.unenforced, second);
    let started = world.record.iter().find(|(_, event)| event.kind() == "started").unwrap();
    assert_eq!(started.1, Event::Started { handle, unenforced: second });
    let before: Event = serde_json::from_str(r#"{"started":{"handle":"r1"}}"#).unwrap();
    assert_eq!(before, Event::Started { handle, unenforced: Vec::new() });
    world.agents[1].is_unenforced = false;
    world.connect(1);
    assert_eq!(seen(&world), Vec::<Name>::new());
    world.agents[0].is_unenforced = true;
    world.connect(0);
    assert_eq!(seen(&world), ["n1".parse::<Name>().unwrap()]);
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
    assert_eq!(seen(&world), Vec::<Name>::new(), "it is over");
}
