//! What MPI programs ask for, from the agents' ends to the record and back: one change for all ranks of
//! a communicator, the same answer for each, and what is left when ranks, links or the broker go.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_agent::programs::Visit;
use keeptime_model::assignment::TrafficClass;
use keeptime_model::extension::Extension;
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask as Asked, NodeChoice, Request};
use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm};
use keeptime_mpiqos::wire::{Answer, Ask, AskState, Communicator, RankAnswer, RankState, Terms};
use std::time::Instant;
use world::{World, request, wait};

/// A reservation of CPU on all nodes in their order, `r1`.
fn with_reservation(nodes: usize) -> World {
    reserved(World::new(nodes), nodes)
}

/// The same on the first of them.
fn reserved(world: World, nodes: usize) -> World {
    let Request { ask: Asked::Resources(mut resources), .. } = request(1, 20, 0, 600) else {
        panic!()
    };
    let names = (1..=nodes).map(|n| format!("n{n}").parse().unwrap()).collect();
    resources.nodes = NodeChoice::Named(names);
    let asked = Request { ask: Asked::Resources(resources), ..request(1, 20, 0, 600) };
    world.client().reserve("one".parse().unwrap(), asked).unwrap();
    world
}

fn job() -> Name {
    "r1".parse().unwrap()
}

fn visit(world: &World, node: usize) -> Visit {
    world.agents[node - 1].lock().unwrap().programs().visit()
}

/// All ranks, one on each node, with an all-to-all rate.
fn rank(number: u32, size: u32, change: u32, mbit: u64) -> RankState {
    let terms = Terms {
        class: TrafficClass::Premium,
        bits_per_second: BitsPerSecond::from_mbit(mbit),
        message_bytes_max: Bytes::new(1 << 20),
        cpu_ppm: CpuPpm::from_percent(30),
        disk_read_bytes_per_second: Default::default(),
        disk_write_bytes_per_second: Default::default(),
        within_nanos: Default::default(),
        paced: true,
    };
    let members = (0..size).collect();
    let communicator = Communicator { members, index: 0, talk: Pattern::AllToAll };
    RankState { number, size, asks: vec![Ask { communicator, change, terms, seen: None }] }
}

/// Every rank asks at once.
fn all_ask(visits: &[Visit], change: u32, mbit: u64) -> Vec<RankAnswer> {
    let size = visits.len() as u32;
    std::thread::scope(|scope| {
        let asking: Vec<_> = visits
            .iter()
            .enumerate()
            .map(|(at, visit)| {
                scope.spawn(move || visit.report(job(), rank(at as u32, size, change, mbit)))
            })
            .collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What one rank is answered. Its agent may hear a moment after the broker knows it that it is welcome there.
fn ask(visit: &Visit, job: &str, rank: &RankState) -> RankAnswer {
    let mut answer = RankAnswer::default();
    wait("the broker's answer", || {
        answer = visit.report(job.parse().unwrap(), rank.clone());
        answer.answers[0].state != AskState::Waiting
    });
    answer
}

fn extension(world: &World) -> Extension {
    world.client().reservation("r1".parse().unwrap()).unwrap().grant.unwrap().extension
}

/// What an agent promises, premium.
fn promised(world: &World, node: usize) -> u64 {
    let agent = world.agents[node - 1].lock().unwrap();
    let flows = agent.assignments().flat_map(|assignment| assignment.flows.clone());
    let premium = flows.filter(|flow| flow.class == TrafficClass::Premium);
    premium.map(|flow| flow.bits_per_second.get()).sum()
}

fn changes(world: &World) -> usize {
    let records = world.client().history("r1".parse().unwrap()).unwrap().records;
    records.iter().filter(|happened| happened.event.kind() == "modified").count()
}

fn states(answers: &[RankAnswer]) -> Vec<AskState> {
    answers.iter().map(|answer| answer.answers[0].state).collect()
}

#[test]
fn four_ranks_ask_at_once_and_one_change_answers_all() {
    let world = with_reservation(4);
    let visits: Vec<_> = (1..=4).map(|node| visit(&world, node)).collect();
    let start = Instant::now();
    let answers = all_ask(&visits, 1, 10);
    println!("four ranks answered in {:?}", start.elapsed());
    assert_eq!(states(&answers), [AskState::Granted; 4]);
    assert!(answers.iter().all(|answer| answer.answers == answers[0].answers));
    assert_eq!(changes(&world), 1);
    let wire = answers[0].answers[0].wire_bits_per_second.get();
    assert_eq!(extension(&world).flows.len(), 12);
    for node in 1..=4 {
        assert_eq!(promised(&world, node), 3 * wire);
        let agent = world.agents[node - 1].lock().unwrap();
        let cpu: Vec<_> = agent.assignments().map(|assignment| assignment.cpu_ppm).collect();
        assert_eq!(cpu, [CpuPpm::from_percent(30)]);
    }
    assert_eq!(answers[3].pace.len(), 3);
    drop(visits);
    wait("all to be given back", || extension(&world).is_empty());
    assert_eq!(changes(&world), 2);
    wait("the agents to know", || (1..=4).all(|node| promised(&world, node) == 0));
}

#[test]
fn all_ranks_are_told_why_and_what_held_holds() {
    let world = with_reservation(2);
    let visits = [visit(&world, 1), visit(&world, 2)];
    assert_eq!(states(&all_ask(&visits, 1, 10)), [AskState::Granted; 2]);
    let held = extension(&world);
    let answers = all_ask(&visits, 2, 500);
    for answer in &answers {
        let Answer { state, reason, .. } = &answer.answers[0];
        assert_eq!(*state, AskState::Refused);
        assert!(reason.contains("link n1 > s1 lacks"), "{reason}");
        // What is paced is what holds.
        assert_eq!(answer.pace.len(), 1);
    }
    assert_eq!(extension(&world), held);
    assert_eq!(states(&all_ask(&visits, 3, 20)), [AskState::Granted; 2]);
    assert!(promised(&world, 2) > 20_000_000);
}

#[test]
fn a_broker_that_begins_anew_gives_nothing_back_that_is_still_asked_for() {
    let mut world = with_reservation(2);
    let visits = [visit(&world, 1), visit(&world, 2)];
    assert_eq!(states(&all_ask(&visits, 1, 10)), [AskState::Granted; 2]);
    let held = extension(&world);
    world.stop();
    // Without it nothing new is granted, and who asks does not wait.
    let answers = all_ask(&visits, 2, 20);
    assert_eq!(states(&answers), [AskState::Waiting; 2]);
    assert!(answers[0].answers[0].reason.contains("does not answer"), "{answers:?}");
    assert!(promised(&world, 1) > 10_000_000);
    world.start();
    world.wait_until_all_are_there();
    wait("what was asked meanwhile", || extension(&world) != held);
    assert_eq!(states(&all_ask(&visits, 2, 20)), [AskState::Granted; 2]);
    assert!(promised(&world, 1) > 20_000_000);
    drop(visits);
    wait("all to be given back", || extension(&world).is_empty());
}

#[test]
fn what_a_program_had_that_ended_while_the_broker_was_away_is_given_back() {
    let mut world = with_reservation(2);
    let visits = [visit(&world, 1), visit(&world, 2)];
    assert_eq!(states(&all_ask(&visits, 1, 10)), [AskState::Granted; 2]);
    world.stop();
    drop(visits);
    world.start();
    world.wait_until_all_are_there();
    assert!(!extension(&world).is_empty());
    wait("all to be given back", || extension(&world).is_empty());
    wait("the agents to know", || (1..=2).all(|node| promised(&world, node) == 0));
}

#[test]
fn a_node_that_has_no_part_in_it_has_no_say() {
    let world = reserved(World::new(3), 2);
    let visits = [visit(&world, 1), visit(&world, 2)];
    assert_eq!(states(&all_ask(&visits, 1, 10)), [AskState::Granted; 2]);
    let held = extension(&world);
    let answer = ask(&visit(&world, 3), "r1", &rank(0, 2, 2, 50));
    assert!(answer.answers[0].reason.contains("has no part"), "{answer:?}");
    assert_eq!(states(&all_ask(&visits, 1, 10)), [AskState::Granted; 2]);
    assert_eq!(extension(&world), held);
}

#[test]
fn without_a_reservation_nothing_is_granted() {
    let world = World::new(1);
    let visit = visit(&world, 1);
    let why = |job: &str| ask(&visit, job, &rank(0, 1, 1, 10)).answers[0].reason.clone();
    assert_eq!(why("r7"), "there is no reservation r7");
    assert_eq!(why("run-1"), "run-1 is no reservation of this broker");
}
