//! What becomes of a reservation when one of its nodes goes away: lost with an offer, or moved, as its
//! request or its application says.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::book::Reservation;
use keeptime_engine::{Answer, Call, CallError, Event, Input, Policy};
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Grant, Handle, NodeChoice, Request, State};
use keeptime_model::units::Nanos;
use std::sync::Arc;
use world::{Manner, World, at, goal, policy, refused, request, star};

fn reservation(world: &World, handle: Handle) -> Arc<Reservation> {
    Arc::clone(&world.engine.book().reservations()[&handle])
}

fn nodes(world: &World, handle: Handle) -> Vec<Name> {
    reservation(world, handle).grant.clone().unwrap().nodes
}

/// The agent of its first node goes away and does not come back.
fn lose(world: &mut World, handle: Handle) -> u32 {
    let first = nodes(world, handle)[0].clone();
    let node = world.topology.find_node(&first).unwrap().0;
    world.disconnect(node);
    world.pass(15);
    assert_eq!(reservation(world, handle).state, State::Lost);
    node
}

/// Its first node is gone. That it is lost is recorded, and nothing has come of its move when this returns.
fn lose_at_once(world: &mut World, handle: Handle) -> u32 {
    let first = nodes(world, handle)[0].clone();
    let node = world.topology.find_node(&first).unwrap();
    world.input(Input::Away { node });
    assert_eq!(reservation(world, handle).state, State::Lost);
    assert!(offered(world, handle).is_some());
    assert_eq!(world.engine.book().successor(handle), None);
    node.0
}

fn count(world: &World, kind: &str) -> usize {
    world.kinds().into_iter().filter(|other| *other == kind).count()
}

/// What could be had instead, as the record says it.
fn offered(world: &World, lost: Handle) -> Option<Grant> {
    let found = world.record.iter().rev().find_map(|(_, event)| match event {
        Event::Lost { handle, instead, .. } if *handle == lost => Some(instead.clone()),
        _ => None,
    });
    found.unwrap().map(|grant| *grant)
}

fn moved(world: &mut World, user: &str, handle: Handle) -> Result<Arc<Reservation>, CallError> {
    world.call(user, Call::Move { handle }).expect("it is answered").map(|answer| match answer {
        Answer::Reservation(reservation) => reservation,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_goal_is_moved_if_its_application_says_so_unless_the_request_says_otherwise() {
    let mut world = World::with_application(4, "on_loss = \"move\"");
    let first = world.reserve("a", goal(3_000, 0, 3_600)).unwrap();
    let gone = lose(&mut world, first);
    let next = world.engine.book().successor(first).unwrap();
    let there = reservation(&world, next);
    assert_eq!((there.state, there.replaces), (State::Active, Some(first)));
    assert_eq!(there.until_unix_nanos, Some(at(3_600)), "for the time that is left");
    assert_eq!(there.grant, offered(&world, first));
    world.connect(gone);
    world.pump();
    assert!(world.jobs_of(gone).is_empty(), "what is lost is given back there");
    // What takes its place is moved in its turn.
    lose(&mut world, next);
    let third = world.engine.book().successor(next).unwrap();
    assert_eq!(reservation(&world, third).state, State::Active);

    let stays = Request { on_loss: Some(OnLoss::Offer), ..goal(3_000, 0, 3_600) };
    let stays = world.reserve("b", stays).unwrap();
    lose(&mut world, stays);
    assert!(offered(&world, stays).is_some());
    assert_eq!(world.engine.book().successor(stays), None);
}

#[test]
fn a_move_is_offered_where_nobody_says_more_and_is_accepted_once() {
    let mut world = World::with_application(4, "");
    let first = world.reserve("a", goal(3_000, 0, 3_600)).unwrap();
    let running = moved(&mut world, "ada", first).unwrap_err().to_string();
    assert!(running.contains("one that was lost: it is active"), "{running}");
    lose(&mut world, first);
    assert!(offered(&world, first).is_some());
    world.pass(60);
    let stranger = moved(&mut world, "bob", first).unwrap_err().to_string();
    assert_eq!(stranger, "r1 belongs to ada");
    let there = moved(&mut world, "ada", first).unwrap();
    assert_eq!((there.state, there.replaces), (State::Active, Some(first)));
    assert_eq!(there.until_unix_nanos, Some(at(3_600)));
    assert_eq!(moved(&mut world, "ada", first), Ok(Arc::clone(&there)), "asked again");
    world.restart();
    world.connect_all();
    world.pump();
    assert_eq!(moved(&mut world, "root", first), Ok(Arc::clone(&there)), "after a restart");
    assert_eq!(world.kinds().iter().filter(|kind| **kind == "granted").count(), 2);
    let handle = Handle::new(99);
    assert_eq!(moved(&mut world, "ada", handle), Err(CallError::NotFound { handle }));
}

#[test]
fn what_cannot_be_moved_is_refused_and_can_be_asked_again() {
    let mut world = World::star(2);
    let both = request(NodeChoice::Any(2), 50, 10, 0, 600);
    let first = world.reserve("a", both).unwrap();
    let gone = lose(&mut world, first);
    assert_eq!(offered(&world, first), None, "there is no other node");
    let refusal = refused(moved(&mut world, "ada", first));
    assert!(refusal.to_string().contains("2 nodes are needed, and 1 have"), "{refusal}");
    world.connect(gone);
    // The agent of the one refuses what is offered: that is remembered, and says nothing about the next.
    world.agents[gone as usize].manner = Manner::Refuses;
    let refusal = refused(moved(&mut world, "ada", first));
    assert!(refusal.to_string().contains("cannot enforce it"), "{refusal}");
    world.agents[gone as usize].manner = Manner::Obeys;
    let there = moved(&mut world, "ada", first).unwrap();
    assert_eq!(there.state, State::Active);
    assert!(world.replayed().book() == world.engine.book());

    let short = world.reserve("b", request(NodeChoice::Any(1), 10, 0, 0, 20)).unwrap();
    lose(&mut world, short);
    world.pass(10);
    let over = moved(&mut world, "ada", short).unwrap_err().to_string();
    assert!(over.contains("whose time is not over"), "{over}");
}

#[test]
fn a_move_that_waits_for_agents_is_answered_to_all_who_ask_for_it() {
    let mut world = World::star(3);
    let first = world.reserve("a", request(NodeChoice::Any(1), 50, 0, 0, 600)).unwrap();
    lose(&mut world, first);
    let tickets = [(); 2].map(|()| world.begin("ada", Call::Move { handle: first }));
    assert!(tickets.iter().all(|ticket| !world.answers.contains_key(ticket)));
    world.pump();
    let answers = tickets.map(|ticket| world.answers[&ticket].clone().unwrap());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(world.kinds().iter().filter(|kind| **kind == "granted").count(), 2);
}

// Goal: what takes the place of a lost reservation is recorded with that, however long its agents take.
#[test]
fn what_is_being_moved_is_not_forgotten_meanwhile() {
    let mut world =
        World::with(star(2), Policy { remember_nanos: Nanos::from_secs(6), ..policy() });
    let first = world.reserve("a", request(NodeChoice::Any(1), 50, 0, 0, 600)).unwrap();
    let node = lose(&mut world, first);
    world.agents[1 - node as usize].manner = Manner::Silent;
    world.begin("ada", Call::Move { handle: first });
    world.pass(1);
    assert_eq!((reservation(&world, first).state, world.engine.offer_count()), (State::Lost, 1));
    world.pass(2);
    assert_eq!((count(&world, "refused"), count(&world, "forgotten")), (1, 0));
    world.pass(10);
    assert_eq!(count(&world, "forgotten"), 2);
    assert!(world.replayed().book() == world.engine.book());
}

// Whoever has as many reservations as they may has no more of them afterwards.
#[test]
fn what_is_lost_is_moved_though_its_user_may_have_no_more() {
    let mut world = World::with(star(2), Policy { user_reservations: 1, ..policy() });
    let moves = |nodes| Request {
        on_loss: Some(OnLoss::Move),
        ..request(NodeChoice::Any(nodes), 50, 0, 0, 600)
    };
    let first = world.reserve("a", moves(1)).unwrap();
    lose(&mut world, first);
    assert!(offered(&world, first).is_some());
    let next = world.engine.book().successor(first).unwrap();
    assert_eq!(reservation(&world, next).state, State::Active);
    let more = refused(world.reserve("b", moves(1)));
    assert_eq!(more.to_string(), "a user may have 1 reservations at a time");
}

// Goal: a broker that is killed when a loss is recorded and its move is not leaves that to the next one, which has nothing but
// the record, or a snapshot of it, and does it once.
#[test]
fn what_a_killed_broker_was_about_to_move_is_moved_by_the_next() {
    for restart in [World::restart as fn(&mut World), World::restart_from_snapshot] {
        let mut world = World::with_application(4, "on_loss = \"move\"");
        let first = world.reserve("a", goal(3_000, 0, 3_600)).unwrap();
        let gone = lose_at_once(&mut world, first);
        restart(&mut world);
        world.pass(3);
        assert_eq!(world.engine.book().successor(first), None, "no agent is there yet");
        let asked = world.begin("ada", Call::Move { handle: first });
        assert!(!world.answers.contains_key(&asked), "that is what is about to be done");
        (0..4).filter(|node| *node != gone).for_each(|node| world.connect(node));
        world.pass(2);

        let next = world.engine.book().successor(first).expect("it is moved when agents are there");
        let there = reservation(&world, next);
        assert_eq!((there.state, there.replaces), (State::Active, Some(first)));
        assert_eq!(there.until_unix_nanos, Some(at(3_600)), "for the time that is left");
        assert_eq!(world.answers[&asked], Ok(Answer::Reservation(there)));
        assert!(world.replayed().book() == world.engine.book());

        restart(&mut world);
        world.connect_all();
        world.pass(15);
        assert_eq!((count(&world, "granted"), count(&world, "refused")), (2, 0), "it was done");
        assert_eq!(reservation(&world, next).state, State::Active);
    }
}

// Goal: what the next broker cannot move is told so when all agents had their time, and by no broker after it again.
#[test]
fn what_the_next_broker_cannot_move_is_refused_when_agents_had_their_time() {
    for restart in [World::restart as fn(&mut World), World::restart_from_snapshot] {
        let mut world = World::star(3);
        let request = request(NodeChoice::Any(2), 50, 0, 0, 600);
        let request = Request { on_loss: Some(OnLoss::Move), ..request };
        let first = world.reserve("a", request).unwrap();
        let gone = lose_at_once(&mut world, first);
        restart(&mut world);
        world.connect((gone + 1) % 3);
        let asked = world.begin("ada", Call::Move { handle: first });
        world.pass(5);
        assert!(!world.answers.contains_key(&asked), "another agent may come");
        world.pass(7);
        let refusal = refused(world.answers[&asked].clone());
        assert!(refusal.to_string().contains("2 nodes are needed, and 1 have"), "{refusal}");
        assert!(world.replayed().book() == world.engine.book());

        restart(&mut world);
        world.connect_all();
        world.pass(15);
        assert_eq!((count(&world, "granted"), count(&world, "refused")), (1, 1), "that was that");
        assert_eq!(moved(&mut world, "ada", first).unwrap().state, State::Active, "on demand");
    }
}

#[test]
fn what_agents_refused_a_move_is_not_moved_by_the_next_broker() {
    let mut world = World::star(2);
    let request = request(NodeChoice::Any(1), 50, 0, 0, 600);
    let first = world.reserve("a", Request { on_loss: Some(OnLoss::Move), ..request }).unwrap();
    world.agents.iter_mut().for_each(|agent| agent.manner = Manner::Refuses);
    lose_at_once(&mut world, first);
    world.pump();
    assert_eq!(count(&world, "refused"), 1);
    world.agents.iter_mut().for_each(|agent| agent.manner = Manner::Obeys);
    world.restart();
    world.connect_all();
    world.pass(15);
    assert_eq!((count(&world, "granted"), count(&world, "refused")), (1, 1));
}

#[test]
fn what_is_only_offered_and_what_is_over_is_not_moved_by_the_next_broker() {
    for (on_loss, seconds_away) in [(OnLoss::Offer, 0), (OnLoss::Move, 600)] {
        let mut world = World::star(2);
        let request = request(NodeChoice::Any(1), 50, 0, 0, 600);
        let first = world.reserve("a", Request { on_loss: Some(on_loss), ..request }).unwrap();
        lose_at_once(&mut world, first);
        let away = Nanos::from_secs(seconds_away);
        world.now = world.now.saturating_add(away);
        world.steady = world.steady.saturating_add(away);
        world.restart();
        world.connect_all();
        world.pass(15);
        assert_eq!((count(&world, "granted"), count(&world, "refused")), (1, 0), "{on_loss}");
    }
}
