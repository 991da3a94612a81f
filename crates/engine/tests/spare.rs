//! What nobody has reserved is used by running jobs that asked for it, until somebody reserves it.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::refusal::Reason;
use keeptime_engine::{Call, Input};
use keeptime_model::assignment::AssignedFlow;
use keeptime_model::reservation::{Handle, NodeChoice, Request, State};
use keeptime_model::units::{BitsPerSecond, Nanos};
use world::*;

/// All-to-all at `mbit` between `nodes`, and what is spare.
fn spare(nodes: &[&str], mbit: u64) -> Request {
    Request { spare: true, ..firm(nodes, mbit) }
}

fn firm(nodes: &[&str], mbit: u64) -> Request {
    request(named(nodes), 10, mbit, 0, 3_600)
}

/// What the agent of a node lets each flow of a job use, in Mbit/s.
fn up_to(world: &World, node: u32, job: Handle) -> Vec<f64> {
    let holding = &world.agents[node as usize].holding[&job.job()];
    let premium = holding.flows.iter().filter(|flow| flow.bits_per_second.as_mbit_f64() > 1.0);
    premium
        .map(AssignedFlow::limit)
        .map(|rate| (rate.as_mbit_f64() * 100.0).round() / 100.0)
        .collect()
}

fn state(world: &World, job: Handle) -> State {
    world.engine.book().reservations()[&job].state
}

#[test]
fn who_is_alone_uses_all_and_gives_it_back_before_somebody_else_is_granted_it() {
    let mut world = World::star(4);
    let job = world.reserve("a", spare(&["n1", "n2", "n3"], 10)).unwrap();
    assert_eq!(up_to(&world, 0, job), [10.0, 10.0]);
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [100.0, 100.0]);

    // n4 sends 60 to n1: what goes there has 20 of 40 for each of two.
    let call = Call::Reserve { key: "b".parse().unwrap(), request: firm(&["n1", "n4"], 60) };
    let ticket = world.begin("ada", call);
    for node in [0, 3, 0, 3] {
        world.obey(node);
    }
    assert!(!world.answers.contains_key(&ticket), "n2 and n3 may still send more");
    world.pump();
    assert!(world.answers[&ticket].is_ok());
    assert_eq!(up_to(&world, 1, job), [20.0, 20.0]);
    assert_eq!(state(&world, job), State::Active);

    let other = Handle::new(job.number() + 1);
    assert!(world.call("ada", Call::Cancel { handle: other }).unwrap().is_ok());
    world.pass(1);
    assert_eq!(up_to(&world, 1, job), [100.0, 100.0]);
    // Nobody is told anything as long as nothing changes.
    let told = world.outputs.len();
    world.pass(100);
    assert_eq!(world.outputs.len(), told);
}

#[test]
fn what_was_not_asked_to_use_more_does_not_and_a_promise_is_not_learned_from_it() {
    let mut world = World::star(2);
    let job = world.reserve("a", firm(&["n1", "n2"], 10)).unwrap();
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [10.0]);

    let mut world = World::with_application(2, "");
    let job = world.reserve("b", Request { spare: true, ..goal(2_000, 0, 3_600) }).unwrap();
    world.pass(1);
    assert!(up_to(&world, 0, job)[0] > 90.0);
    let actual = Nanos::from_millis(700);
    assert!(world.call("ada", Call::Report { handle: job, actual }).unwrap().is_ok());
    let observed = world.record.iter().any(|(_, event)| {
        matches!(event, keeptime_engine::Event::Ran { observation: Some(_), .. })
    });
    assert!(!observed);
}

// Goal: what made runs slower when they were measured is not given, however much is free.
#[test]
fn nobody_has_more_than_was_of_use_when_it_was_measured() {
    let mut world = World::star(2);
    let (application, mut profile) = application();
    let (rate, time) = (BitsPerSecond::from_mbit(40), Nanos::from_millis(900));
    profile.record(&Default::default(), 2, rate, time);
    let call = Call::Register { application: Box::new(application), profile: Box::new(profile) };
    assert!(world.call("root", call).unwrap().is_ok());
    let job = world.reserve("a", Request { spare: true, ..goal(2_000, 0, 3_600) }).unwrap();
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [40.0]);
}

#[test]
fn two_part_it_by_what_they_reserved() {
    let mut world = World::star(2);
    let one = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    let two = world.reserve("b", spare(&["n1", "n2"], 30)).unwrap();
    world.pass(1);
    assert_eq!((up_to(&world, 0, one), up_to(&world, 0, two)), (vec![25.0], vec![75.0]));
    assert!(world.call("ada", Call::Cancel { handle: two }).unwrap().is_ok());
    world.pass(1);
    assert_eq!(up_to(&world, 0, one), [100.0]);
}

/// A job uses all of the way from n1 to n2; the agent of n1 falls silent; and a call asks for 60 of the way to n2.
fn beside_a_silent_agent() -> (World, Handle, u64) {
    let mut world = World::star(3);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.pass(1);
    world.agents[0].manner = Manner::Silent;
    let call = Call::Reserve { key: "b".parse().unwrap(), request: firm(&["n3", "n2"], 60) };
    let ticket = world.begin("ada", call);
    (world, job, ticket)
}

#[test]
fn nobody_is_granted_what_an_agent_does_not_say_it_gave_back() {
    let (mut world, job, ticket) = beside_a_silent_agent();
    world.pass(3);
    let refusal = refused(world.answers[&ticket].clone());
    assert_eq!(refusal.reason, Reason::AgentsSilent(vec!["n1".parse().unwrap()]));
    assert_eq!(state(&world, job), State::Active);
    // When it speaks again, it is as if nothing had been.
    world.agents[0].manner = Manner::Obeys;
    world.connect(0);
    world.pump();
    world.reserve("c", firm(&["n3", "n2"], 60)).unwrap();
    assert_eq!(up_to(&world, 0, job), [40.0]);
}

#[test]
fn who_waits_for_a_job_that_ends_waits_no_longer() {
    let (mut world, job, ticket) = beside_a_silent_agent();
    world.pump();
    assert!(!world.answers.contains_key(&ticket));
    world.begin("ada", Call::Cancel { handle: job });
    assert_eq!(world.engine.idle(), Some(Nanos::new(0)));
    world.input(Input::Passed);
    assert!(world.answers[&ticket].is_ok());
}

// What should have begun is on its node as much as what runs, whoever it waits for.
#[test]
fn what_waits_to_begin_is_lost_with_its_node() {
    let mut world = World::star(3);
    world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.pass(1);
    let later = request(named(&["n3", "n2"]), 10, 60, 20, 3_600);
    let later = world.reserve("b", later).unwrap();
    // n1 is told to send less for another, and does not say that it does.
    world.agents[0].manner = Manner::Silent;
    let call = Call::Reserve { key: "c".parse().unwrap(), request: firm(&["n3", "n2"], 20) };
    world.begin("ada", call);
    world.pass(22);
    assert_eq!(state(&world, later), State::Granted);
    world.disconnect(2);
    world.pass(12);
    assert_eq!(state(&world, later), State::Lost);
}

#[test]
fn an_agent_that_refuses_more_leaves_the_reservation_as_it_is() {
    let mut world = World::star(2);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.agents[0].manner = Manner::Refuses;
    world.input(Input::Passed);
    world.pass(1);
    // It refused to have less, too: it is given up for that.
    assert_eq!(state(&world, job), State::Failed);

    let mut world = World::star(2);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.steady = world.steady.saturating_add(Nanos::from_millis(60));
    world.agents[0].manner = Manner::Refuses;
    world.input(Input::Passed);
    assert!(world.obey(0));
    world.agents[0].manner = Manner::Obeys;
    world.pass(10);
    assert_eq!(state(&world, job), State::Active);
    assert_eq!(up_to(&world, 0, job), [10.0]);
}

#[test]
fn after_a_restart_everybody_has_what_is_reserved_until_all_are_back() {
    let mut world = World::star(3);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.pass(1);
    world.restart();
    for node in [1, 2] {
        world.connect(node);
    }
    world.pump();
    // n1 may still send 100 to n2.
    let call = Call::Reserve { key: "b".parse().unwrap(), request: firm(&["n3", "n2"], 60) };
    let ticket = world.begin("ada", call);
    world.pump();
    assert!(!world.answers.contains_key(&ticket));
    world.connect(0);
    world.pump();
    assert!(world.answers[&ticket].is_ok());
    assert_eq!(up_to(&world, 0, job), [10.0]);
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [40.0]);
}

#[test]
fn what_begins_in_a_while_is_not_spare() {
    let mut world = World::star(3);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    let ahead = policy().tell_ahead_nanos.get() / SECOND;
    let later = request(named(&["n3", "n2"]), 10, 60, 2 * ahead, 60);
    world.reserve("b", later).unwrap();
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [100.0]);
    world.pass(ahead);
    assert_eq!(up_to(&world, 0, job), [40.0]);
    world.pass(ahead + 120);
    assert_eq!(up_to(&world, 0, job), [100.0]);
}

#[test]
fn a_job_that_is_changed_has_what_is_reserved_meanwhile() {
    let mut world = World::star(2);
    let job = world.reserve("a", spare(&["n1", "n2"], 10)).unwrap();
    world.pass(1);
    let call = Call::Modify { handle: job, request: spare(&["n1", "n2"], 20) };
    assert!(world.call("ada", call).unwrap().is_ok());
    assert_eq!(up_to(&world, 0, job), [20.0]);
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [100.0]);
    let call = Call::Modify { handle: job, request: firm(&["n1", "n2"], 20) };
    assert!(world.call("ada", call).unwrap().is_ok());
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [20.0]);
}

#[test]
fn any_nodes_will_do() {
    let mut world = World::star(4);
    let any = Request { spare: true, ..request(NodeChoice::Any(2), 10, 10, 0, 3_600) };
    let job = world.reserve("a", any).unwrap();
    world.pass(1);
    assert_eq!(up_to(&world, 0, job), [100.0]);
}
