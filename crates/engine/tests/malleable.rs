//! What may be slower as long as its deadline allows makes way for others, and is faster when there is room.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::{Answer, Call, CallError};
use keeptime_model::reservation::{Handle, Malleable, NodeChoice, Request, State};
use keeptime_model::units::{CpuPpm, WallTime};
use world::*;

/// 80 % of n1 for 100 s, by 400 s; more is of no use.
fn malleable() -> Request {
    by(400, 80, request(named(&["n1"]), 80, 0, 0, 100))
}

fn by(seconds: u64, most: u32, request: Request) -> Request {
    let cpu_most_ppm = CpuPpm::from_percent(most);
    Request { malleable: Some(Malleable { by_unix_nanos: at(seconds), cpu_most_ppm }), ..request }
}

/// So much of n1 from now on for so long.
fn firm(percent: u32, seconds: u64) -> Request {
    request(named(&["n1"]), percent, 0, 0, seconds)
}

/// Its share in percent, and its end in seconds, as recorded and as its node enforces it.
fn form(world: &World, job: Handle) -> (u32, u64) {
    let found = &world.engine.book().reservations()[&job];
    let cpu = found.grant.as_ref().unwrap().cpu_ppm;
    let until = found.until_unix_nanos.unwrap();
    let enforced = &world.agents[0].holding[&job.job()];
    assert_eq!((enforced.cpu_ppm, enforced.until_unix_nanos), (cpu, until));
    (cpu.get() / 10_000, seconds(until))
}

fn seconds(time: WallTime) -> u64 {
    time.saturating_since(START).get() / SECOND
}

fn state(world: &World, job: Handle) -> State {
    world.engine.book().reservations()[&job].state
}

// 80 % for 100 s are 8,000: at 50 % they take 160 s. After 101 s the node is free again; what is left at 103 s,
// when every agent knows of it, takes 36 s at 80 %.
#[test]
fn a_running_job_is_slower_for_another_and_faster_when_that_has_ended() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    assert_eq!(form(&world, job), (80, 100));
    let other = world.reserve("b", firm(50, 100)).unwrap();
    assert_eq!(form(&world, job), (50, 160));
    assert_eq!(state(&world, other), State::Active);
    world.pass(90);
    assert_eq!(form(&world, job), (50, 160));
    world.pass(15);
    assert_eq!(state(&world, other), State::Ended);
    assert_eq!(form(&world, job), (80, 139));
    world.pass(40);
    assert_eq!(state(&world, job), State::Ended);
}

#[test]
fn what_would_be_late_is_not_made_slower_and_nothing_has_changed() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    // 20 % are needed to make it by 400 s.
    let refusal = refused(world.reserve("b", firm(81, 100)));
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    assert_eq!(form(&world, job), (80, 100));
    assert!(world.reserve("c", firm(80, 100)).is_ok());
    assert_eq!(form(&world, job), (20, 400));
    // It is as slow as it can be.
    assert!(world.reserve("d", firm(1, 100)).is_err());
}

#[test]
fn the_most_urgent_stays_as_fast_as_it_can_be() {
    let mut world = World::star(1);
    let half = |seconds| by(seconds, 50, firm(50, 100));
    let (urgent, patient) =
        (world.reserve("a", half(200)).unwrap(), world.reserve("b", half(1_000)).unwrap());
    assert!(world.reserve("c", firm(30, 100)).is_ok());
    assert_eq!(form(&world, urgent), (50, 100));
    assert_eq!(form(&world, patient).0, 16);
    // Of two that could be faster the same holds.
    assert!(world.reserve("d", firm(4, 50)).is_ok());
    world.pass(53);
    assert_eq!(form(&world, urgent), (50, 100));
    assert_eq!(form(&world, patient).0, 20);
}

#[test]
fn a_node_that_does_not_make_its_job_slower_leaves_all_as_it_was() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    world.agents[0].manner = Manner::Refuses;
    let refusal = refused(world.reserve("b", firm(50, 100)));
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    let found = &world.engine.book().reservations()[&job];
    assert_eq!(found.until_unix_nanos, Some(at(100)));
}

#[test]
fn whoever_asks_twice_while_others_become_slower_is_answered_twice() {
    let mut world = World::star(1);
    world.reserve("a", malleable()).unwrap();
    let ask = |request| Call::Reserve { key: "b".parse().unwrap(), request };
    let first = world.begin("ada", ask(firm(50, 100)));
    let second = world.begin("ada", ask(firm(50, 100)));
    let other = world.begin("ada", ask(firm(51, 100)));
    assert!(matches!(world.answers[&other], Err(CallError::KeyReused { .. })));
    assert!(!world.answers.contains_key(&first));
    world.pump();
    let granted = |ticket| match world.answers[&ticket].clone().unwrap() {
        Answer::Reservation(found) => found.handle,
        other => panic!("{other:?}"),
    };
    assert_eq!(granted(first), granted(second));
    assert_eq!(world.kinds().iter().filter(|kind| **kind == "granted").count(), 2);
}

#[test]
fn a_restarted_broker_goes_on_where_it_was() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    let call = Call::Reserve { key: "b".parse().unwrap(), request: firm(50, 100) };
    world.begin("ada", call);
    // The job's agent has accepted; whoever asked has no answer, and does not ask again.
    world.obey(0);
    assert_eq!(form(&world, job), (50, 160));
    world.restart();
    world.connect_all();
    world.pump();
    world.pass(5);
    assert_eq!(form(&world, job).0, 80);
}

#[test]
fn whether_there_would_be_a_way_is_answered_and_changes_nothing() {
    let mut world = World::star(2);
    let job =
        world.reserve("a", by(400, 80, request(named(&["n1", "n2"]), 80, 10, 0, 100))).unwrap();
    let consider =
        |percent| Call::Consider { request: request(NodeChoice::Any(2), percent, 10, 0, 100) };
    let free = world.engine.calendar().clone();
    assert!(matches!(world.call("ada", consider(60)), Some(Ok(Answer::Possible { .. }))));
    assert!(matches!(world.call("ada", consider(90)), Some(Err(CallError::Refused { .. }))));
    assert_eq!(form(&world, job), (80, 100));
    for node in 0..2 {
        let table = world.engine.cluster().table(keeptime_engine::cluster::Resource::Cpu(
            keeptime_model::topology::NodeIndex(node),
        ));
        let used = |calendar: &keeptime_calendar::Calendar| {
            calendar.table(table).unwrap().used_at(at(300))
        };
        assert_eq!(used(world.engine.calendar()), used(&free));
    }
}

#[test]
fn a_deadline_before_the_end_is_told_by_name() {
    let mut world = World::star(1);
    let error = world.reserve("a", by(99, 80, firm(80, 100))).unwrap_err().to_string();
    assert!(error.contains("malleable.by_unix_nanos"), "{error}");
}
