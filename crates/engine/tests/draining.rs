//! Nodes that are taken out of service: nothing new comes there, what they have stays, and who waits has them when they are
//! back.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::book::{Book, Reservation, Snapshot};
use keeptime_engine::refusal::{Reason, ResourceOffer};
use keeptime_engine::{Answer, Call, CallError, Event, Input};
use keeptime_model::drain::NodeSet;
use keeptime_model::extension::Extension;
use keeptime_model::loss::OnLoss;
use keeptime_model::reservation::{Handle, Malleable, NodeChoice, Request, State};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{CpuPpm, Nanos};
use std::collections::BTreeSet;
use std::sync::Arc;
use world::{World, at, goal, named, refused, request};

/// One of the world's operators.
const OPERATOR: &str = "root";
const REFUSED: &str = "n1 is drained (root: new disk)";

fn set(names: &[&str]) -> NodeSet {
    NodeSet::Named(names.iter().map(|name| name.parse().unwrap()).collect())
}

fn draining(names: &[&str], reason: &str) -> Call {
    Call::Drain { nodes: set(names), reason: reason.parse().unwrap() }
}

fn drain(world: &mut World, names: &[&str]) {
    let drained = world.call(OPERATOR, draining(names, "new disk"));
    assert_eq!(drained, Some(Ok(Answer::Recorded)));
}

fn resume(world: &mut World, names: &[&str]) {
    let resumed = world.call(OPERATOR, Call::Resume { nodes: set(names) });
    assert_eq!(resumed, Some(Ok(Answer::Recorded)));
}

fn reservation(world: &World, handle: Handle) -> Arc<Reservation> {
    Arc::clone(&world.engine.book().reservations()[&handle])
}

fn nodes_of(world: &World, handle: Handle) -> Vec<String> {
    let grant = reservation(world, handle).grant.clone().unwrap();
    grant.nodes.iter().map(ToString::to_string).collect()
}

/// Waits a minute for room.
fn waiting(request: Request) -> Request {
    Request { wait_nanos: Some(Nanos::from_secs(60)), ..request }
}

fn asking(key: &str, request: Request) -> Call {
    Call::Reserve { key: key.parse().unwrap(), request }
}

fn granted(world: &World, ticket: u64) -> Handle {
    match world.answers.get(&ticket) {
        Some(Ok(Answer::Reservation(found))) => found.handle,
        other => panic!("{other:?}"),
    }
}

// Goal: nothing new comes to a drained node, now or in advance; who asks for it is told who drained it and why, who asks for
// any is told how many are, and nobody is offered one. What it has is enforced, begins and ends in time.
#[test]
fn nothing_new_comes_to_a_drained_node_and_what_it_has_stays() {
    let mut world = World::star(3);
    let runs = world.reserve("a", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    let begins = world.reserve("b", request(named(&["n1"]), 50, 0, 3_600, 60)).unwrap();
    drain(&mut world, &["n1"]);
    for (key, from) in [("now", 0), ("later", 7_200)] {
        let both = request(named(&["n1", "n2"]), 10, 0, from, 60);
        let refusal = refused(world.reserve(key, both));
        assert_eq!(refusal.to_string(), REFUSED);
        assert_eq!(refusal.earliest_start_unix_nanos, None);
        assert!(refusal.resource_offers.is_empty());
        let any = |count| request(NodeChoice::Any(count), 10, 0, from, 60);
        let two = world.reserve(&format!("{key}-two"), any(2)).unwrap();
        let mut nodes = nodes_of(&world, two);
        nodes.sort();
        assert_eq!(nodes, ["n2", "n3"]);
        let refusal = refused(world.reserve(&format!("{key}-three"), any(3)));
        let words = "3 nodes are needed, and 2 have the CPU and disk rates free; 1 node is drained";
        assert_eq!(refusal.to_string(), words);
        assert_eq!((refusal.drained, refusal.earliest_start_unix_nanos), (1, None));
        let offers: Vec<_> = refusal.resource_offers.iter().map(ResourceOffer::to_string).collect();
        assert_eq!(offers, ["2 nodes"]);
    }
    assert_eq!((reservation(&world, runs).state, world.jobs_of(0).len()), (State::Active, 1));
    world.pass(3_601);
    let states = [runs, begins].map(|handle| reservation(&world, handle).state);
    assert_eq!(states, [State::Ended, State::Active]);
}

#[test]
fn a_goal_gets_no_drained_node_and_is_told_how_many_are() {
    let mut world = World::with_application(3, "");
    drain(&mut world, &["n2"]);
    let handle = world.reserve("a", goal(3_000, 0, 600)).unwrap();
    let mut nodes = nodes_of(&world, handle);
    nodes.sort();
    assert_eq!(nodes, ["n1", "n3"]);
    drain(&mut world, &["n3"]);
    let refusal = refused(world.reserve("b", goal(3_000, 0, 600)));
    assert!(refusal.to_string().ends_with("; 2 nodes are drained"), "{refusal}");
    assert!(refusal.counter_offers.is_empty());
}

// Goal: whoever has something on a drained node may have more and less of it, and no longer than was promised.
#[test]
fn what_is_there_may_be_changed_and_not_prolonged() {
    let mut world = World::star(2);
    let handle = world.reserve("a", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    let other = world.reserve("b", request(named(&["n2"]), 10, 0, 0, 600)).unwrap();
    drain(&mut world, &["n1"]);
    let modify = |world: &mut World, handle, request| {
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    let on = |names: &[&str], percent, seconds| request(named(names), percent, 0, 0, seconds);
    for (percent, seconds) in [(30, 600), (80, 600), (80, 300)] {
        modify(&mut world, handle, on(&["n1"], percent, seconds)).unwrap();
    }
    let refusal = refused(modify(&mut world, handle, on(&["n1"], 80, 301)));
    assert_eq!(refusal.to_string(), REFUSED);
    assert_eq!(refused(modify(&mut world, handle, on(&["n1"], 80, 0))).to_string(), REFUSED);
    modify(&mut world, handle, on(&["n1", "n2"], 60, 300)).expect("n2 is in service");
    assert_eq!(nodes_of(&world, handle), ["n1", "n2"]);
    let extension = Extension { cpu_ppm: CpuPpm::from_percent(70), ..Extension::default() };
    world.call("ada", Call::Extend { handle, extension }).unwrap().unwrap();
    // Who is elsewhere does not come.
    let refusal = refused(modify(&mut world, other, on(&["n1"], 10, 600)));
    assert_eq!(refusal.to_string(), REFUSED);
    modify(&mut world, other, request(NodeChoice::Any(1), 10, 0, 0, 600)).unwrap();
    assert_eq!(nodes_of(&world, other), ["n2"]);
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
    assert!(world.jobs_of(0).is_empty());
}

// Goal: nor is it prolonged by a later deadline, until which it could be stretched afterwards, be that asked before its node is
// drained or after. What is promised less than before is promised no more again.
#[test]
fn a_later_deadline_prolongs_what_is_on_a_drained_node_too() {
    let mut world = World::star(2);
    let plain = |node| request(named(&[node]), 10, 0, 0, 600);
    let stretched = |node, seconds, by| {
        let malleable = Some(Malleable::new(at(by), CpuPpm::from_percent(80)));
        Request { malleable, ..request(named(&[node]), 10, 0, 0, seconds) }
    };
    let handle = world.reserve("a", plain("n1")).unwrap();
    let other = world.reserve("b", plain("n2")).unwrap();
    drain(&mut world, &["n1"]);
    let mut modify = |seconds, by| {
        let request = stretched("n1", seconds, by);
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    for (seconds, by) in [(600, 601), (300, 601), (600, 31_536_000)] {
        assert_eq!(refused(modify(seconds, by)).to_string(), REFUSED);
    }
    modify(300, 600).unwrap();
    modify(600, 600).expect("that was promised");
    modify(200, 400).unwrap();
    assert_eq!(refused(modify(200, 401)).to_string(), REFUSED);
    modify(300, 400).unwrap();
    let change = Call::Modify { handle: other, request: stretched("n2", 600, 900) };
    let ticket = world.begin("ada", change);
    world.begin(OPERATOR, draining(&["n2"], "new disk"));
    world.pump();
    let refusal = refused(world.answers[&ticket].clone());
    assert_eq!(refusal.to_string(), "n2 is drained (root: new disk)");
    assert_eq!(reservation(&world, other).request.malleable, None);
}

// Goal: what runs where there was room is not moved, which would end its program, when it is to last longer than its node is to
// be had; whoever names the nodes that it may have moves it.
#[test]
fn what_names_no_nodes_and_runs_is_not_moved_by_being_prolonged() {
    let any = |seconds| request(NodeChoice::Any(2), 10, 0, 0, seconds);
    let works = |seconds| goal(3_000, 0, seconds);
    for asked in [&any as &dyn Fn(u64) -> Request, &works] {
        let mut world = World::with_application(4, "");
        let handle = world.reserve("a", asked(600)).unwrap();
        let before = nodes_of(&world, handle);
        let drained = before[0].as_str();
        drain(&mut world, &[drained]);
        for seconds in [601, 0] {
            let request = asked(seconds);
            let refusal = refused(world.call("ada", Call::Modify { handle, request }).unwrap());
            assert_eq!(refusal.to_string(), format!("{drained} is drained (root: new disk)"));
        }
        assert_eq!(reservation(&world, handle).state, State::Active);
        assert_eq!(nodes_of(&world, handle), before);
        let all = ["n1", "n2", "n3", "n4"];
        let others: Vec<_> = all.into_iter().filter(|name| *name != drained).collect();
        let among: BTreeSet<_> = others.iter().map(|name| name.parse().unwrap()).collect();
        let request = Request { among, ..asked(601) };
        world.call("ada", Call::Modify { handle, request }).unwrap().unwrap();
        assert!(nodes_of(&world, handle).iter().all(|name| others.contains(&name.as_str())));
    }
}

#[test]
fn what_has_a_deadline_takes_what_is_free_of_a_drained_node_that_it_has() {
    let mut world = World::star(1);
    let malleable = Some(Malleable::new(at(1_000), CpuPpm::from_percent(80)));
    let job = Request { malleable, ..request(named(&["n1"]), 40, 0, 0, 200) };
    let job = world.reserve("a", job).unwrap();
    let other = world.reserve("b", request(named(&["n1"]), 60, 0, 0, 600)).unwrap();
    drain(&mut world, &["n1"]);
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.pass(5);
    let grant = reservation(&world, job).grant.clone().unwrap();
    assert_eq!(grant.cpu_ppm, CpuPpm::from_percent(80));
    // Until its deadline it may be made slower by its owner, too.
    let slower = Request { malleable, ..request(named(&["n1"]), 10, 0, 0, 1_000) };
    world.call("ada", Call::Modify { handle: job, request: slower }).unwrap().unwrap();
}

#[test]
fn who_waits_has_the_node_when_it_is_back() {
    let mut world = World::star(2);
    drain(&mut world, &["n1"]);
    let asked = waiting(request(named(&["n1"]), 50, 0, 0, 60));
    let ticket = world.begin("ada", asking("a", asked));
    let any = world.begin("ada", asking("b", waiting(request(NodeChoice::Any(2), 10, 0, 0, 60))));
    world.pass(5);
    assert!(!world.answers.contains_key(&ticket) && !world.answers.contains_key(&any));
    assert_eq!(world.engine.waiting_count(), 2);
    resume(&mut world, &["n1"]);
    world.pass(1);
    let states = [ticket, any].map(|ticket| reservation(&world, granted(&world, ticket)).state);
    assert_eq!(states, [State::Active; 2]);
}

/// So often one is passed before nodes are kept for it.
const PASSES: usize = 16;

/// A tenth of n2 is had and given back.
fn come_and_go(world: &mut World, key: &str) {
    let handle = world.reserve(key, request(named(&["n2"]), 10, 0, 0, 60)).unwrap();
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
}

// Goal: whoever waits for a drained node keeps nobody from others, and has come first again when it is back. Method: what has
// no end leaves too little for a large one in any case, beside which small ones come and go.
#[test]
fn who_waits_for_a_drained_node_keeps_no_other_idle() {
    let mut world = World::star(2);
    world.reserve("endless", request(named(&["n2"]), 40, 0, 0, 0)).unwrap();
    drain(&mut world, &["n1"]);
    let large = waiting(request(named(&["n1", "n2"]), 80, 0, 0, 60));
    let large = world.begin("bob", asking("large", large));
    (0..=PASSES).for_each(|number| come_and_go(&mut world, &format!("drained{number}")));
    resume(&mut world, &["n1"]);
    (0..PASSES).for_each(|number| come_and_go(&mut world, &format!("back{number}")));
    let late = request(named(&["n2"]), 10, 0, 0, 60);
    let refusal = refused(world.reserve("late", late));
    assert_eq!(refusal.reason, Reason::NodesKept(vec!["n2".parse().unwrap()]));
    drain(&mut world, &["n1"]);
    come_and_go(&mut world, "again");
    assert!(!world.answers.contains_key(&large) && world.engine.waiting_count() == 1);
}

// Method: two of three nodes, of which one is drained before agents have said that they take it; and one, in the place of what
// is lost.
#[test]
fn what_is_offered_when_a_node_is_drained_has_others_that_are_free() {
    let mut world = World::star(3);
    let ticket = world.begin("ada", asking("a", request(NodeChoice::Any(2), 60, 0, 0, 60)));
    world.begin(OPERATOR, draining(&["n1"], "new disk"));
    world.pump();
    let mut nodes = nodes_of(&world, granted(&world, ticket));
    nodes.sort();
    assert_eq!(nodes, ["n2", "n3"]);
    assert_eq!(world.kinds(), ["drained", "granted", "started"]);
    assert_eq!([0, 1, 2].map(|node| world.jobs_of(node).len()), [0, 1, 1]);

    let mut world = World::star(3);
    let on_loss = Some(OnLoss::Move);
    let asked = Request { on_loss, ..request(NodeChoice::Any(1), 50, 0, 0, 3_600) };
    let lost = world.reserve("a", asked).unwrap();
    assert_eq!(nodes_of(&world, lost), ["n1"]);
    world.input(Input::Away { node: NodeIndex(0) });
    assert_eq!(world.engine.offer_count(), 1);
    world.begin(OPERATOR, draining(&["n2"], "new disk"));
    world.pump();
    let next = world.engine.book().successor(lost).unwrap();
    assert_eq!((nodes_of(&world, next), world.jobs_of(1)), (vec!["n3".to_owned()], vec![]));
}

// Goal: whoever was told that a node is drained, and that nothing is reserved there, is right. Method: agents have not said
// yet that they take what is offered.
#[test]
fn what_is_offered_when_a_node_is_drained_does_not_come_there() {
    let mut world = World::star(2);
    let asked = request(named(&["n1"]), 50, 0, 0, 60);
    let new = world.begin("ada", asking("a", asked));
    let waits = world.begin("ada", asking("b", waiting(request(NodeChoice::Any(1), 60, 0, 0, 60))));
    assert_eq!(world.engine.offer_count(), 2);
    world.begin(OPERATOR, draining(&["n1", "n2"], "new disk"));
    world.pump();
    assert_eq!(refused(world.answers[&new].clone()).to_string(), REFUSED);
    assert_eq!(world.kinds(), ["drained", "refused"]);
    assert!(world.jobs_of(0).is_empty() && world.jobs_of(1).is_empty());
    resume(&mut world, &["n2"]);
    world.pass(2);
    assert_eq!(nodes_of(&world, granted(&world, waits)), ["n2"]);
}

// Method: a change to another node, and one of less on the same, of which agents have not heard yet.
#[test]
fn a_change_that_is_offered_brings_nothing_to_a_drained_node_either() {
    let mut world = World::star(2);
    let away = world.reserve("a", request(named(&["n2"]), 50, 0, 0, 60)).unwrap();
    let stays = world.reserve("b", request(named(&["n1"]), 50, 0, 0, 60)).unwrap();
    let modify = |handle, percent| Call::Modify {
        handle,
        request: request(named(&["n1"]), percent, 0, 0, 60),
    };
    let moves = world.begin("ada", modify(away, 40));
    let shrinks = world.begin("ada", modify(stays, 40));
    world.begin(OPERATOR, draining(&["n1"], "new disk"));
    world.pump();
    assert_eq!(refused(world.answers[&moves].clone()).to_string(), REFUSED);
    assert_eq!(nodes_of(&world, away), ["n2"]);
    assert_eq!(granted(&world, shrinks), stays);
    let grant = reservation(&world, stays).grant.clone().unwrap();
    assert_eq!(grant.cpu_ppm, CpuPpm::from_percent(40));
}

#[test]
fn what_is_lost_is_not_moved_to_a_drained_node() {
    let mut world = World::star(3);
    let on_loss = Some(OnLoss::Move);
    let asked = Request { on_loss, ..request(NodeChoice::Any(1), 50, 0, 0, 3_600) };
    let lost = world.reserve("a", asked).unwrap();
    assert_eq!(nodes_of(&world, lost), ["n1"]);
    drain(&mut world, &["n2"]);
    world.disconnect(0);
    world.pass(15);
    assert_eq!(reservation(&world, lost).state, State::Lost);
    let next = world.engine.book().successor(lost).unwrap();
    assert_eq!(nodes_of(&world, next), ["n3"]);
}

// Goal: what is drained is so after a restart, from records as from a snapshot, also a node that the cluster had not for a
// while; and whoever wrote a ledger before there was such a thing is understood.
#[test]
fn a_restart_knows_what_is_drained() {
    let mut world = World::star(2);
    drain(&mut world, &["n1", "n2"]);
    resume(&mut world, &["n2"]);
    for restart in [World::restart, World::restart_from_snapshot] {
        assert_eq!(world.replayed().book(), world.engine.book());
        restart(&mut world);
        world.connect_all();
        world.pump();
        assert_eq!(world.engine.drained_count(), 1);
        let drained = world.engine.drained(NodeIndex(0)).unwrap();
        assert_eq!((drained.by.as_str(), drained.since_unix_nanos), ("root", at(0)));
        let consider = Call::Consider { request: request(named(&["n1"]), 10, 0, 0, 60) };
        assert_eq!(refused(world.call("ada", consider).unwrap()).to_string(), REFUSED);
    }
    let two = std::mem::replace(&mut world.topology, world::star(1));
    resume(&mut world, &["n1"]);
    drain(&mut world, &["n2"]);
    world.restart();
    assert_eq!(world.engine.drained_count(), 0, "the cluster has n1 alone");
    world.topology = two;
    world.restart();
    assert!(world.engine.drained(NodeIndex(1)).is_some());
    let resumed = world.call(OPERATOR, Call::Resume { nodes: NodeSet::All });
    assert_eq!(resumed, Some(Ok(Answer::Recorded)));
    assert!(world.engine.book().drained().is_empty());
}

#[test]
fn records_say_no_more_than_they_did_where_nothing_is_drained() {
    let text = serde_json::to_string(&Book::default().snapshot()).unwrap();
    assert!(!text.contains("drained"), "{text}");
    let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    assert!(Book::restore(snapshot).unwrap().drained().is_empty());
    let nodes = ["n1".parse().unwrap()].into();
    let (by, reason) = ("root".parse().unwrap(), "new disk".parse().unwrap());
    let event = Event::Drained { nodes, by, reason };
    let text = r#"{"drained":{"nodes":["n1"],"by":"root","reason":"new disk"}}"#;
    assert_eq!(serde_json::to_string(&event).unwrap(), text);
    assert_eq!(serde_json::from_str::<Event>(text).unwrap(), event);
    assert_eq!((event.kind(), event.handle()), ("drained", None));
}

#[test]
fn the_same_again_is_nothing_new_and_another_reason_is() {
    let mut world = World::star(2);
    drain(&mut world, &["n1"]);
    drain(&mut world, &["n1"]);
    resume(&mut world, &["n2"]);
    assert_eq!(world.kinds(), ["drained"]);
    world.pass(10);
    world.call(OPERATOR, draining(&["n1"], "new fan")).unwrap().unwrap();
    let drained = world.engine.drained(NodeIndex(0)).unwrap();
    assert_eq!((drained.reason.to_string(), drained.since_unix_nanos), ("new fan".into(), at(0)));
    let all = Call::Drain { nodes: NodeSet::All, reason: "upgrade".parse().unwrap() };
    world.call(OPERATOR, all).unwrap().unwrap();
    assert_eq!(world.engine.drained_count(), 2);
    let refusal = refused(world.reserve("a", request(named(&["n2", "n1"]), 10, 0, 0, 60)));
    let Reason::NodesDrained(nodes) = &refusal.reason else { panic!("{refusal}") };
    assert_eq!(nodes.len(), 2);
    let words = "n2 is drained (root: upgrade), n1 is drained (root: upgrade)";
    assert_eq!(refusal.to_string(), words);
}

#[test]
fn only_operators_drain_nodes_and_only_such_as_there_are() {
    let mut world = World::star(2);
    for call in [draining(&["n1"], "mine"), Call::Resume { nodes: NodeSet::All }] {
        let error = world.call("ada", call).unwrap().unwrap_err();
        assert!(matches!(error, CallError::OperatorsOnly { .. }), "{error}");
    }
    let wrong =
        [(&["n1", "n9"][..], "nodes: \"n9\" is not accepted; "), (&[][..], "nodes is missing; ")];
    for (names, wrong) in wrong {
        for call in [draining(names, "new disk"), Call::Resume { nodes: set(names) }] {
            let error = world.call(OPERATOR, call).unwrap().unwrap_err().to_string();
            assert_eq!(error, format!("{wrong}expected nodes of the cluster, as n1, n2"));
        }
    }
    assert!(world.record.is_empty(), "nothing is half done");
}
