//! What a broker that begins anew with other limits, or another cluster, makes of what was granted before.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::book::{Book, Reservation};
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Answer, Call, CallError, Event, Input, Policy};
use keeptime_model::loss::OnLoss;
use keeptime_model::reservation::{Handle, Malleable, NodeChoice, Request, State};
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, CpuPpm, Nanos, Share};
use std::collections::BTreeMap;
use std::sync::Arc;
use world::{Manner, World, at, named, policy, refused, request, star};

/// A quarter of all CPU for one user: of two nodes, half of one.
fn quarter() -> Policy {
    Policy { user_cpu: Share::from_percent(25).unwrap(), ..policy() }
}

fn restart(world: &mut World, policy: Policy) {
    world.restart_with(policy);
    world.connect_all();
    world.pump();
}

fn state(world: &World, handle: Handle) -> State {
    world.engine.book().reservations()[&handle].state
}

/// Its share in percent.
fn share(world: &World, handle: Handle) -> u32 {
    let found = &world.engine.book().reservations()[&handle];
    found.grant.as_ref().unwrap().cpu_ppm.get() / 10_000
}

fn modify(world: &mut World, handle: Handle, request: Request) -> Result<Answer, CallError> {
    world.call("ada", Call::Modify { handle, request }).expect("it is answered")
}

// Goal: what was granted when users might have more stands until it ends, and is what the lower limit is met with.
#[test]
fn what_was_granted_outlasts_a_lower_limit_and_counts() {
    let mut world = World::star(2);
    let runs = world.reserve("a", request(named(&["n1"]), 80, 0, 0, 600)).unwrap();
    let later = world.reserve("b", request(named(&["n2"]), 60, 0, 1_000, 600)).unwrap();
    restart(&mut world, quarter());
    assert_eq!([runs, later].map(|handle| state(&world, handle)), [State::Active, State::Granted]);

    let refusal = refused(world.reserve("c", request(named(&["n2"]), 1, 0, 100, 100)));
    let words = "your share of CPU (50 % in all) lacks 1 %, first at 2026-01-01T00:01:40Z";
    assert_eq!(refusal.to_string(), words);
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(600)));
    let others =
        Call::Reserve { key: "a".parse().unwrap(), request: request(named(&["n2"]), 50, 0, 0, 60) };
    assert!(world.call("eve", others).unwrap().is_ok(), "others have their share");

    world.pass(601);
    assert_eq!(state(&world, runs), State::Ended);
    assert!(world.reserve("d", request(named(&["n2"]), 50, 0, 0, 60)).is_ok());
    let refusal = refused(world.reserve("e", request(named(&["n1"]), 1, 0, 0, 60)));
    assert!(refusal.to_string().contains("your share of CPU (50 % in all) lacks 1 %"), "{refusal}");
    world.pass(450);
    assert_eq!((state(&world, later), share(&world, later)), (State::Active, 60));
    assert!(!world.kinds().contains(&"failed"));
    assert!(world.replayed().book() == world.engine.book());
}

// Goal: who has more than one may have by now may have less of it, or as much in another form, and no more. Method: 140 %
// where 50 % are allowed; each change that is refused, or that an agent does not answer to, leaves all as it was.
#[test]
fn who_has_more_than_one_may_have_by_now_changes_it_for_no_more() {
    let mut world = World::star(2);
    let job = world.reserve("a", request(named(&["n1"]), 80, 0, 0, 600)).unwrap();
    world.reserve("b", request(named(&["n2"]), 60, 0, 0, 600)).unwrap();
    restart(&mut world, quarter());
    let asked = |percent, seconds| request(named(&["n1"]), percent, 0, 0, seconds);

    assert!(modify(&mut world, job, asked(70, 600)).is_ok());
    assert_eq!(share(&world, job), 70);
    let refusal = refused(modify(&mut world, job, asked(75, 600)));
    let words = "your share of CPU (50 % in all) lacks 5 %, first at 2026-01-01T00:00:00Z";
    assert_eq!(refusal.to_string(), words);
    let refusal = refused(modify(&mut world, job, asked(70, 900)));
    let words = "your share of CPU (50 % in all) lacks 20 %, first at 2026-01-01T00:10:00Z";
    assert_eq!(refusal.to_string(), words, "that is longer");

    world.agents[0].manner = Manner::Silent;
    let ticket = world.begin("ada", Call::Modify { handle: job, request: asked(60, 600) });
    world.pass(3);
    let silent = refused(world.answers[&ticket].clone());
    assert!(matches!(silent.reason, Reason::AgentsSilent(_)), "{silent}");
    world.agents[0].manner = Manner::Obeys;
    world.connect(0);
    world.pump();
    assert_eq!((state(&world, job), share(&world, job)), (State::Active, 70));

    assert!(modify(&mut world, job, asked(70, 300)).is_ok(), "that is shorter");
    assert_eq!(world.engine.book().reservations()[&job].until_unix_nanos, Some(at(300)));
    assert!(world.replayed().book() == world.engine.book());
}

#[test]
fn what_is_malleable_makes_way_also_where_its_user_has_more_than_one_may() {
    let mut world = World::star(2);
    let malleable = Malleable::new(at(400), CpuPpm::from_percent(80));
    let slow = Request { malleable: Some(malleable), ..request(named(&["n1"]), 80, 0, 0, 100) };
    let slow = world.reserve("a", slow).unwrap();
    let firm = world.reserve("b", request(named(&["n2"]), 60, 0, 0, 100)).unwrap();
    restart(&mut world, quarter());
    let others = Call::Reserve {
        key: "a".parse().unwrap(),
        request: request(named(&["n1"]), 50, 0, 0, 100),
    };
    assert!(world.call("eve", others).expect("it is answered").is_ok());
    assert!(share(&world, slow) <= 50);
    let states = [slow, firm].map(|handle| state(&world, handle));
    assert_eq!(states, [State::Active, State::Active]);
    world.pass(401);
    assert_eq!(state(&world, slow), State::Ended, "in time");
}

#[test]
fn what_is_lost_is_moved_though_it_is_more_than_its_user_may_have_by_now() {
    let mut world = World::star(2);
    let moves =
        Request { on_loss: Some(OnLoss::Move), ..request(NodeChoice::Any(1), 80, 0, 0, 600) };
    let first = world.reserve("a", moves).unwrap();
    restart(&mut world, quarter());
    let nodes = world.engine.book().reservations()[&first].grant.clone().unwrap().nodes;
    let node = world.topology.find_node(&nodes[0]).unwrap();
    world.input(Input::Away { node });
    world.pump();
    assert_eq!(state(&world, first), State::Lost);
    let next = world.engine.book().successor(first).unwrap();
    assert_eq!((state(&world, next), share(&world, next)), (State::Active, 80));
}

#[test]
fn what_was_granted_further_ahead_than_one_may_ask_by_now_is_changed_where_it_is() {
    let mut world = World::star(1);
    let there = world.reserve("a", request(named(&["n1"]), 50, 0, 5_000, 60)).unwrap();
    restart(&mut world, Policy { ahead_max_nanos: Nanos::from_secs(1_000), ..policy() });
    assert!(modify(&mut world, there, request(named(&["n1"]), 40, 0, 0, 90)).is_ok());
    assert!(modify(&mut world, there, request(named(&["n1"]), 30, 0, 5_000, 60)).is_ok());
    let elsewhere = refused(modify(&mut world, there, request(named(&["n1"]), 30, 0, 5_001, 60)));
    let new = refused(world.reserve("b", request(named(&["n1"]), 10, 0, 5_000, 60)));
    for refusal in [elsewhere, new] {
        assert!(matches!(refusal.reason, Reason::TooFarAhead { .. }), "{refusal}");
    }
}

/// Two nodes, of which the second has become smaller.
fn smaller() -> Topology {
    let text = "name = \"star\"\nswitches = [{ name = \"s1\" }]\n\
        [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n\
        [[nodes]]\nname = \"n2\"\ncpu = \"70 %\"\naddress = \"10.0.0.3\"\n\
        [[links]]\nbetween = [\"n1\", \"s1\"]\nrate = \"100 Mbit/s\"\n\
        [[links]]\nbetween = [\"n2\", \"s1\"]\nrate = \"100 Mbit/s\"\n";
    Topology::from_toml(text).unwrap()
}

// Goal: what a smaller cluster cannot hold is failed, the latest first, and the record says where and for want of what.
#[test]
fn what_does_not_fit_into_a_smaller_cluster_fails_with_what_is_missing() {
    let mut world = World::star(2);
    let both = |percent| request(named(&["n1", "n2"]), percent, 0, 5_000, 60);
    let [first, second] = ["a", "b"].map(|key| world.reserve(key, both(40)).unwrap());
    let third = world.reserve("c", both(20)).unwrap();
    world.topology = smaller();
    world.restart();
    let states = [first, second, third].map(|handle| state(&world, handle));
    assert_eq!(states, [State::Granted, State::Failed, State::Granted]);
    let (_, Event::Failed { handle, node, why }) = world.record.last().unwrap() else { panic!() };
    assert_eq!((*handle, node.as_str()), (second, "n2"));
    let words = "the cluster has less than it had: CPU of n2 lacks 10 %, \
                 first at 2026-01-01T01:23:20Z";
    assert_eq!(why, words);
}

// Goal: a job whose share is corrected, and whose runs are told, thousands of times takes no more of memory and of a snapshot
// than one that was changed once: what happened one by one is in the ledger alone.
#[test]
fn what_is_changed_and_reported_often_leaves_no_more_in_a_snapshot() {
    let mut world = World::star(1);
    let asked = |percent| request(named(&["n1"]), percent, 0, 0, 600);
    let job = world.reserve("a", asked(50)).unwrap();
    let change = |world: &mut World, percent| {
        modify(world, job, asked(percent)).unwrap();
        let report = Call::Report { handle: job, actual: Nanos::from_secs(1) };
        world.call("ada", report).unwrap().unwrap();
        let book = world.engine.book();
        let bytes = serde_json::to_vec(&book.snapshot()).unwrap().len();
        (bytes, book.memory(&"ada".parse().unwrap()))
    };
    let once = change(&mut world, 40);
    let often: Vec<_> = (0..500).map(|n| change(&mut world, 30 + n % 2)).collect();
    assert_eq!(often.last(), Some(&once));
    assert!(world.record.len() > 1_000);
}

/// What the book counts is what it has.
fn check_counts(book: &Book) {
    let mut states = BTreeMap::new();
    for reservation in book.reservations().values() {
        *states.entry(reservation.state).or_insert(0) += 1;
    }
    assert_eq!(*book.states(), states);
    let is_live = |reservation: &&Arc<Reservation>| reservation.state.is_live();
    let live: Vec<_> = book.reservations().values().filter(is_live).collect();
    assert_eq!(book.live_reservations().collect::<Vec<_>>(), live);
}

// Goal: whoever looks at figures, or at what is reserved, does not walk over all that is over. Method: what is counted on the
// way is compared with what there is, until all is forgotten, and in whoever begins anew from a record or a snapshot.
#[test]
fn what_is_counted_is_what_there_is() {
    let remember_nanos = Nanos::from_secs(60);
    let mut world = World::with(star(1), Policy { remember_nanos, ..policy() });
    let on = |percent, from| request(named(&["n1"]), percent, 0, from, 60);
    let cancelled = world.reserve("a", on(10, 5_000)).unwrap();
    world.reserve("b", on(60, 0)).unwrap();
    refused(world.reserve("c", on(60, 0)));
    world.call("ada", Call::Cancel { handle: cancelled }).unwrap().unwrap();
    for _ in 0..5 {
        let book = world.engine.book();
        check_counts(book);
        check_counts(world.replayed().book());
        check_counts(&Book::restore(book.snapshot()).unwrap());
        world.pass(50);
    }
    assert!(world.engine.book().states().is_empty());
}

// Goal: a broker whose clock was ahead goes on by the right time when somebody has said which that is, and what runs goes on
// and has what it holds from now on, not from when the wrong clock said that it began. Method: what is recorded before is of
// two hours later, further ahead than agents are told of anything; half of the node is free beside it, and no more, also
// for whoever begins anew from a snapshot. Its owner may go on saying when it was to begin.
#[test]
fn after_a_clock_that_was_ahead_time_goes_on_from_what_was_accepted_and_so_does_what_runs() {
    let mut world = World::star(1);
    world.now = at(7_200);
    let runs = world.reserve("a", request(named(&["n1"]), 50, 0, 7_200, 600)).unwrap();
    assert_eq!(state(&world, runs), State::Active);
    world.now = at(0);
    restart(&mut world, policy());
    assert_eq!(world.engine.now(), at(7_200), "time does not go back by itself");
    world.record.push((at(0), Event::ClockAccepted { recorded_unix_nanos: at(7_200) }));
    restart(&mut world, policy());
    assert_eq!(world.engine.now(), at(0));
    assert_eq!((state(&world, runs), world.jobs_of(0)), (State::Active, vec!["r1".to_owned()]));
    assert_eq!(world.engine.book().reservations()[&runs].from_unix_nanos, at(0));
    let on = |percent| request(named(&["n1"]), percent, 0, 0, 600);
    refused(world.reserve("b", on(80)));
    let next = world.reserve("c", on(50)).unwrap();
    assert_eq!(state(&world, next), State::Active);
    world.restart_from_snapshot();
    world.connect_all();
    world.pump();
    refused(world.reserve("d", on(1)));
    assert!(modify(&mut world, runs, request(named(&["n1"]), 40, 0, 7_200, 7_800)).is_ok());
    assert!(world.reserve("e", on(10)).is_ok());
    world.pass(7_900);
    assert_eq!([runs, next].map(|handle| state(&world, handle)), [State::Ended; 2]);
}

// Goal: what runs goes on, and what is over is forgotten in time, also where a snapshot was made when a clock had been accepted
// and times of one that was ahead were kept. Method: all times of a snapshot are two hours later than they were.
#[test]
fn a_snapshot_with_times_of_a_clock_that_was_ahead_is_taken_up_as_what_is_now() {
    let remember_nanos = Nanos::from_secs(60);
    let mut world = World::with(star(1), Policy { remember_nanos, ..policy() });
    let runs = world.reserve("a", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    let over = world.reserve("b", request(named(&["n1"]), 10, 0, 0, 600)).unwrap();
    world.call("ada", Call::Cancel { handle: over }).unwrap().unwrap();
    let mut snapshot = serde_json::to_value(world.engine.book().snapshot()).unwrap();
    for reservation in snapshot["reservations"].as_array_mut().unwrap() {
        for field in ["from_unix_nanos", "until_unix_nanos", "since_unix_nanos"] {
            let time = reservation[field].as_u64().unwrap();
            reservation[field] = (time + 7_200 * world::SECOND).into();
        }
    }
    world.restart_from(serde_json::from_value(snapshot).unwrap());
    world.connect_all();
    world.pump();
    assert_eq!((state(&world, runs), world.jobs_of(0)), (State::Active, vec![runs.to_string()]));
    assert_eq!(state(&world, over), State::Cancelled);
    world.pass(61);
    assert!(!world.engine.book().reservations().contains_key(&over));
    assert_eq!((state(&world, runs), world.jobs_of(0)), (State::Active, vec![runs.to_string()]));
}

// Goal: what was recorded before curves had a limit keeps no broker from beginning, and nothing new comes in beyond it. Method:
// a curve of 65 points in the record, and in a snapshot.
#[test]
fn a_curve_of_more_points_than_are_taken_by_now_is_restored_and_not_registered() {
    let (application, mut profile) = world::application();
    for mbit in 1..=64 {
        let (rate, time) = (BitsPerSecond::from_mbit(mbit), Nanos::from_millis(2_000));
        profile.record(&Default::default(), 2, rate, time);
    }
    assert_eq!(profile.curves[0].points.len(), 65);
    let (application, profile) = (Box::new(application), Box::new(profile));
    let mut world = World::star(2);
    let recorded = Event::Registered { application: application.clone(), profile: profile.clone() };
    world.record.push((world.now, recorded));
    let is_known =
        |world: &World| world.engine.book().applications().contains_key(application.name());
    restart(&mut world, policy());
    assert!(is_known(&world));
    world.restart_from_snapshot();
    assert!(is_known(&world));
    let register = Call::Register { application: application.clone(), profile };
    match world.call("root", register) {
        Some(Err(CallError::Invalid(invalid))) => assert_eq!(invalid.field, "curves[0].points"),
        other => panic!("{other:?}"),
    }
}
