//! Who may wait has room as soon as there is some, in the order in which all came, is passed so often and no more, and is told
//! in any case when the wait is over.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::agents::Act;
use keeptime_engine::book::Waits;
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Answer, Call, CallError, Input, Output, Policy, Refusal, Ticket};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, Malleable, NodeChoice, Request, State};
use keeptime_model::units::{CpuPpm, Nanos, Share};
use world::*;

/// So much of n1 from now on for so long.
fn share(percent: u32, seconds: u64) -> Request {
    request(named(&["n1"]), percent, 0, 0, seconds)
}

fn waiting(seconds: u64, request: Request) -> Request {
    Request { wait_nanos: Some(Nanos::from_secs(seconds)), ..request }
}

fn ask(key: &str, request: Request) -> Call {
    Call::Reserve { key: key.parse().unwrap(), request }
}

/// Asks, and lets agents do what they are told; the number of the call.
fn begin(world: &mut World, user: &str, key: &str, request: Request) -> u64 {
    let ticket = world.begin(user, ask(key, request));
    world.pump();
    ticket
}

fn is_open(world: &World, ticket: u64) -> bool {
    !world.answers.contains_key(&ticket)
}

fn granted(world: &World, ticket: u64) -> Handle {
    match world.answers[&ticket].clone() {
        Ok(Answer::Reservation(found)) => found.handle,
        other => panic!("{other:?}"),
    }
}

/// Why it was refused, and under which handle that is remembered.
fn told(world: &World, ticket: u64) -> (Option<Handle>, Refusal) {
    match world.answers[&ticket].clone() {
        Err(CallError::Refused { handle, refusal }) => (handle, *refusal),
        other => panic!("{other:?}"),
    }
}

fn cancel(world: &mut World, handle: Handle) {
    assert!(matches!(world.call("root", Call::Cancel { handle }), Some(Ok(_))));
}

fn count(world: &World, kind: &str) -> usize {
    world.kinds().iter().filter(|each| **each == kind).count()
}

#[test]
fn what_is_given_back_before_its_end_goes_to_who_waits() {
    let mut world = World::star(1);
    let first = world.reserve("a", share(100, 3_600)).unwrap();
    let ticket = begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    world.pass(3);
    assert!(is_open(&world, ticket) && world.engine.is_waiting(Ticket(ticket)));
    assert_eq!(world.kinds(), ["granted", "started"], "that it waits is not recorded");
    cancel(&mut world, first);
    let found = &world.engine.book().reservations()[&granted(&world, ticket)];
    assert_eq!((found.state, found.from_unix_nanos), (State::Active, at(3)));
    assert_eq!(found.until_unix_nanos, Some(at(63)), "it lasts as long as it was asked for");
    assert_eq!(world.engine.waiting_count(), 0);
}

#[test]
fn what_ends_by_the_calendar_is_given_back_too() {
    let mut world = World::star(1);
    world.reserve("a", share(100, 5)).unwrap();
    let ticket = begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    world.pass(6);
    let found = &world.engine.book().reservations()[&granted(&world, ticket)];
    assert_eq!(found.from_unix_nanos, at(5));
}

#[test]
fn what_is_made_smaller_gives_room_and_what_waited_can_be_changed() {
    let mut world = World::star(1);
    let handle = world.reserve("a", share(100, 3_600)).unwrap();
    let ticket = begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    let smaller = Call::Modify { handle, request: share(40, 3_600) };
    assert!(matches!(world.call("ada", smaller), Some(Ok(_))));
    world.pump();
    let handle = granted(&world, ticket);
    // What is recorded of it says still how long it would have waited.
    let change = Call::Modify { handle, request: waiting(10, share(50, 60)) };
    assert!(matches!(world.call("ada", change), Some(Ok(_))));
    assert_eq!(world.engine.book().reservations()[&handle].request.wait_nanos, None);
}

#[test]
fn when_the_wait_is_over_it_is_refused_once_with_all_that_can_be_told() {
    let mut world = World::with_application(2, "");
    world.reserve("a", goal(1_100, 0, 3_600)).unwrap();
    let other = world.reserve("b", share(10, 3_600)).unwrap();
    let ticket = begin(&mut world, "ada", "c", waiting(5, goal(1_100, 0, 600)));
    world.pass(3);
    // It is tried again, and nothing is told of that.
    cancel(&mut world, other);
    world.pass(1);
    assert!(is_open(&world, ticket));
    assert_eq!(count(&world, "refused"), 0);
    world.pass(2);
    let (handle, refusal) = told(&world, ticket);
    assert!(matches!(refusal.reason, Reason::Goal(_)), "{refusal}");
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(3_600)));
    assert!(world.engine.decision(handle.unwrap()).is_some());
    assert_eq!((count(&world, "refused"), world.engine.waiting_count()), (1, 0));
    // Under its key that is remembered, however long it would wait now.
    let again = begin(&mut world, "ada", "c", waiting(60, goal(1_100, 0, 600)));
    assert_eq!(told(&world, again), (handle, refusal));
}

#[test]
fn what_could_never_be_had_is_refused_at_once() {
    let mut world = World::star(2);
    let too_much = refused(world.reserve("a", waiting(10, share(150, 60))));
    assert!(matches!(too_much.reason, Reason::Never(_)), "{too_much}");
    let nodes = waiting(10, request(NodeChoice::Any(3), 10, 0, 0, 60));
    let too_many = refused(world.reserve("b", nodes));
    assert_eq!(too_many.reason, Reason::TooFewNodes { needs: 3, has: 2 });
    let error = world.reserve("c", waiting(0, share(10, 60))).unwrap_err().to_string();
    assert!(error.contains("wait_nanos"), "{error}");
    assert_eq!(world.engine.waiting_count(), 0);
}

#[test]
fn what_is_more_than_the_share_of_its_user_does_not_wait() {
    let user_cpu = Share::from_percent(50).unwrap();
    let mut world = World::with(star(1), Policy { user_cpu, ..policy() });
    let too_much = refused(world.reserve("a", waiting(10, share(60, 60))));
    assert!(too_much.to_string().contains("your share of CPU"), "{too_much}");
    // Of what one has oneself something can be given back.
    let first = world.reserve("b", share(40, 3_600)).unwrap();
    let ticket = begin(&mut world, "ada", "c", waiting(10, share(50, 60)));
    assert!(is_open(&world, ticket));
    cancel(&mut world, first);
    assert_eq!(world.jobs_of(0), [granted(&world, ticket).to_string()]);
}

fn go_on(world: &mut World, millis: u64) {
    let span = Nanos::from_millis(millis);
    world.now = world.now.saturating_add(span);
    world.steady = world.steady.saturating_add(span);
    world.input(Input::Passed);
    world.pump();
}

// Goal: however many wait and however much is given back, tries take a bounded part of the broker's time; what comes
// meanwhile, or has waited long enough, passes nobody who came before. Method: two hundred wait for more than is given back
// at one instant, until it is enough.
#[test]
fn tries_are_bounded_and_nobody_is_passed_meanwhile() {
    let mut world = World::with(star(1), Policy { user_waiting_requests: 200, ..policy() });
    let most = world.reserve("most", share(60, 3_600)).unwrap();
    let little = ["x", "y", "z"].map(|key| world.reserve(key, share(10, 3_600)).unwrap());
    let wanted = || share(60, 600);
    let first = begin(&mut world, "ada", "first", waiting(60, wanted()));
    let second = begin(&mut world, "ada", "second", waiting(60, wanted()));
    for number in 0..197 {
        begin(&mut world, "ada", &format!("more{number}"), waiting(60, wanted()));
    }
    let wait_nanos = Some(Nanos::from_millis(100));
    let short = begin(&mut world, "ada", "short", Request { wait_nanos, ..wanted() });
    assert_eq!(world.engine.waiting_count(), 200);
    // Two times 200 tries are counted as 400 ms, of which 256 may be at once.
    little.into_iter().for_each(|handle| cancel(&mut world, handle));
    cancel(&mut world, most);
    let late = begin(&mut world, "eve", "late", wanted());
    let never = begin(&mut world, "eve", "never", waiting(60, share(150, 60)));
    assert_eq!(world.engine.waiting_count(), 200, "who has just come does not wait for room");
    let open = |world: &World| [first, short, late, never].map(|ticket| is_open(world, ticket));
    assert_eq!(open(&world), [true; 4]);
    assert_eq!(world.engine.idle(), Some(Nanos::from_millis(100)));
    go_on(&mut world, 100);
    assert_eq!(open(&world), [true; 4], "its wait is over, and others come first");
    assert_eq!(world.engine.idle(), Some(Nanos::from_millis(44)));
    go_on(&mut world, 44);
    assert_eq!(open(&world), [false; 4]);
    let found = &world.engine.book().reservations()[&granted(&world, first)];
    assert_eq!(found.state, State::Active);
    for ticket in [short, late, never] {
        let reason = told(&world, ticket).1.reason;
        assert!(matches!(reason, Reason::Lacking(_) | Reason::Never(_)), "{reason:?}");
        assert_eq!(matches!(reason, Reason::Never(_)), ticket == never);
    }
    assert!(is_open(&world, second));
    assert_eq!(world.engine.waiting_count(), 198);
}

// Goal: to look whether others can be made slower is counted as more than a try. Method: one that is malleable, beside
// one that is not and leaves too little whatever becomes of that.
#[test]
fn ways_are_bounded() {
    let mut world = World::star(1);
    world.reserve("most", share(50, 3_600)).unwrap();
    let cpu_most_ppm = CpuPpm::from_percent(20);
    let malleable = Some(Malleable::new(at(9_000), cpu_most_ppm));
    world.reserve("patient", Request { malleable, ..share(20, 100) }).unwrap();
    let little = (0..17).map(|n| world.reserve(&format!("l{n}"), share(1, 3_600)).unwrap());
    let little: Vec<_> = little.collect();
    let ticket = begin(&mut world, "ada", "b", waiting(60, share(90, 60)));
    for handle in little {
        assert_ne!(world.engine.idle(), Some(Nanos::from_millis(16)));
        cancel(&mut world, handle);
    }
    // Sixteen times 17 ms, of which 256 may be at once.
    assert_eq!(world.engine.idle(), Some(Nanos::from_millis(16)));
    assert!(is_open(&world, ticket));
    go_on(&mut world, 16);
    assert_ne!(world.engine.idle(), Some(Nanos::new(0)), "it is tried, and not again and again");
    assert!(is_open(&world, ticket));
}

#[test]
fn who_came_first_comes_first_and_what_fits_beside_does_not_wait_for_it() {
    let mut world = World::star(1);
    let all = world.reserve("all", share(100, 3_600)).unwrap();
    let most = begin(&mut world, "ada", "most", waiting(60, share(80, 600)));
    let more = begin(&mut world, "bob", "more", waiting(60, share(60, 600)));
    let little = begin(&mut world, "bob", "little", waiting(60, share(20, 600)));
    world.begin("root", Call::Cancel { handle: all });
    // Whoever comes now comes after those.
    let late = begin(&mut world, "eve", "late", share(20, 600));
    assert_eq!([most, little].map(|ticket| is_open(&world, ticket)), [false, false]);
    assert!(is_open(&world, more));
    assert!(matches!(told(&world, late).1.reason, Reason::Lacking(_)));
    let most = granted(&world, most);
    cancel(&mut world, most);
    let found = &world.engine.book().reservations()[&granted(&world, more)];
    assert_eq!(found.owner.as_str(), "bob");
}

#[test]
fn whoever_asks_twice_waits_once_and_is_answered_twice() {
    let mut world = World::star(1);
    let first = world.reserve("a", share(100, 3_600)).unwrap();
    let ticket = begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    // A connection broke meanwhile; what is left of the wait is less.
    let again = begin(&mut world, "ada", "b", waiting(7, share(60, 60)));
    let other = begin(&mut world, "ada", "b", waiting(10, share(61, 60)));
    assert!(matches!(world.answers[&other], Err(CallError::KeyReused { .. })));
    assert_eq!(world.engine.waiting_count(), 1);
    cancel(&mut world, first);
    assert_eq!(granted(&world, ticket), granted(&world, again));
    let later = world.reserve("b", waiting(3, share(60, 60))).unwrap();
    assert_eq!(later, granted(&world, ticket));
    assert_eq!(count(&world, "granted"), 2);
}

// Goal: everybody sees who waits, in which order, until when and for what, as of who has something; who waits, or an
// operator, may end that.
#[test]
fn who_waits_is_seen_with_a_place_and_can_be_cancelled() {
    let mut world = World::star(1);
    let first = world.reserve("a", share(100, 3_600)).unwrap();
    let asked = [("ada", 10), ("bob", 20)];
    let tickets =
        asked.map(|(user, wait)| begin(&mut world, user, "b", waiting(wait, share(60, 60))));
    world.pass(3);
    let seen: Vec<_> = world.engine.who_waits().collect();
    for ((place, (user, until)), found) in (1..).zip(asked).zip(&seen) {
        let waits = Waits { place, until_unix_nanos: at(until) };
        assert_eq!((found.owner.as_str(), found.waits), (user, Some(waits)));
        assert_eq!((found.state, found.since_unix_nanos), (State::Waiting, at(0)));
        let short = found.refusal.as_ref().map(|refusal| &refusal.reason);
        assert!(matches!(short, Some(Reason::Lacking(_))), "{short:?}");
    }
    assert_eq!(seen.len(), 2);
    // What is short is told as it is now.
    world.call("ada", Call::Modify { handle: first, request: share(90, 3_600) }).unwrap().unwrap();
    let short = world.engine.who_waits().next().unwrap().refusal.unwrap().to_string();
    assert!(short.starts_with("CPU of n1 lacks 50 %"), "{short}");
    let (handle, cancelled) = (seen[0].handle, Call::Cancel { handle: seen[0].handle });
    let mut error = |user, call| world.call(user, call).unwrap().unwrap_err().to_string();
    assert_eq!(error("bob", cancelled.clone()), "r2 belongs to ada");
    assert_eq!(error("bob", Call::Keep { handle }), "r2 belongs to ada");
    let only = "r2 waits for room, and can only be cancelled";
    assert_eq!(error("ada", Call::Keep { handle }), only);
    world.call("ada", cancelled).unwrap().unwrap();
    assert_eq!(told(&world, tickets[0]).1.reason, Reason::Cancelled);
    let left: Vec<_> = world.engine.who_waits().map(|found| found.waits.unwrap().place).collect();
    assert_eq!(left, [1]);
    cancel(&mut world, first);
    assert_eq!(granted(&world, tickets[1]), seen[1].handle);
    assert_eq!(world.engine.who_waits().count(), 0);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_granted() {
    let mut world = World::star(1);
    let first = world.reserve("a", share(100, 3_600)).unwrap();
    let gone = begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    let kept = begin(&mut world, "ada", "c", waiting(10, share(40, 60)));
    let again = begin(&mut world, "ada", "c", waiting(10, share(40, 60)));
    for ticket in [gone, kept].map(Ticket) {
        world.input(Input::Gone { ticket });
    }
    assert_eq!(world.engine.waiting_count(), 1, "somebody waits for the other still");
    cancel(&mut world, first);
    world.pass(12);
    assert_eq!(world.jobs_of(0), [granted(&world, again).to_string()]);
    assert!(is_open(&world, gone) && is_open(&world, kept));
    assert_eq!(count(&world, "refused"), 0);
}

#[test]
fn a_node_that_comes_back_is_room() {
    let mut world = World::star(1);
    world.disconnect(0);
    let ticket = begin(&mut world, "ada", "a", waiting(10, share(60, 60)));
    world.pass(3);
    assert!(is_open(&world, ticket));
    world.connect(0);
    world.pass(2);
    assert_eq!(world.jobs_of(0), [granted(&world, ticket).to_string()]);
}

#[test]
fn who_waits_counts_and_so_many_wait() {
    let policy =
        Policy { user_reservations: 3, user_waiting_requests: 1, waiting_requests: 2, ..policy() };
    let mut world = World::with(star(1), policy);
    world.reserve("a", share(100, 3_600)).unwrap();
    let all = |key: &str| ask(key, waiting(60, share(100, 60)));
    let first = world.begin("ada", all("b"));
    let second = world.begin("ada", all("c"));
    let (handle, refusal) = told(&world, second);
    assert_eq!(refusal.reason, Reason::TooManyOfUserWait { user_waiting_requests: 1 });
    assert!(handle.is_some() && refusal.earliest_start_unix_nanos == Some(at(3_600)), "{refusal}");
    let of_bob = world.begin("bob", all("d"));
    let of_eve = world.begin("eve", all("e"));
    let reason = Reason::TooManyWait { waiting_requests: 2 };
    assert_eq!(told(&world, of_eve).1.reason, reason);
    assert!(is_open(&world, first) && is_open(&world, of_bob));
    assert!(world.reserve("f", request(named(&["n1"]), 10, 0, 9_000, 60)).is_ok());
    let refusal = refused(world.reserve("g", request(named(&["n1"]), 10, 0, 9_000, 60)));
    assert_eq!(refusal.reason, Reason::TooMany { user_reservations: 3 });
}

#[test]
fn a_broker_that_starts_anew_knows_nobody_who_waits_and_is_asked_again() {
    let mut world = World::star(1);
    let first = world.reserve("a", share(100, 3_600)).unwrap();
    begin(&mut world, "ada", "b", waiting(10, share(60, 60)));
    world.restart();
    world.connect_all();
    world.pump();
    assert_eq!(world.engine.waiting_count(), 0);
    let again = begin(&mut world, "ada", "b", waiting(8, share(60, 60)));
    cancel(&mut world, first);
    assert_eq!(world.jobs_of(0), [granted(&world, again).to_string()]);
}

// Where others could not become slower for it, it waits as if they were not malleable.
#[test]
fn who_had_others_asked_in_vain_waits_for_what_they_give_back() {
    let mut world = World::star(1);
    let cpu_most_ppm = CpuPpm::from_percent(80);
    let malleable = Some(Malleable::new(at(900), cpu_most_ppm));
    let first = world.reserve("a", Request { malleable, ..share(80, 100) }).unwrap();
    world.agents[0].manner = Manner::Silent;
    let ticket = begin(&mut world, "ada", "b", waiting(20, share(50, 60)));
    world.pass(4);
    assert!(is_open(&world, ticket) && world.engine.is_waiting(Ticket(ticket)));
    world.agents[0].manner = Manner::Obeys;
    cancel(&mut world, first);
    world.pass(1);
    assert_eq!(world.jobs_of(0), [granted(&world, ticket).to_string()]);
}

/// So often one is passed before nodes are kept for it.
const PASSES: usize = 16;

/// A tenth of n1 is had and given back.
fn come_and_go(world: &mut World, key: &str) {
    let handle = world.reserve(key, share(10, 60)).unwrap();
    cancel(world, handle);
}

/// The same as often as one is passed.
fn pass_by(world: &mut World, key: &str) {
    (0..PASSES).for_each(|number| come_and_go(world, &format!("{key}{number}")));
}

fn is_kept(world: &mut World, key: &str) -> bool {
    match world.reserve(key, share(10, 60)) {
        Ok(handle) => {
            cancel(world, handle);
            false
        }
        refused_here => {
            let reason = refused(refused_here).reason;
            assert_eq!(reason, Reason::NodesKept(vec!["n1".parse().unwrap()]));
            true
        }
    }
}

// Goal: what is large does not wait for ever behind what is small, and what does not touch it is not held up. Method: what
// has no end leaves too little for a large one, beside which small ones come and go.
#[test]
fn a_large_request_is_passed_so_often_and_then_nodes_are_kept_for_it() {
    let mut world = World::star(2);
    let endless = world.reserve("endless", share(40, 0)).unwrap();
    let large = begin(&mut world, "bob", "large", waiting(3_000, share(80, 60)));
    pass_by(&mut world, "small");
    assert!(is_kept(&mut world, "late"));
    let both = refused(world.reserve("both", request(NodeChoice::Any(2), 10, 0, 0, 60)));
    assert_eq!(both.kept, ["n1".parse::<Name>().unwrap()]);
    assert!(both.to_string().contains("kept for who waits longer: n1"), "{both}");
    let considered = world.call("eve", Call::Consider { request: share(10, 60) }).unwrap();
    assert!(matches!(refused(considered).reason, Reason::NodesKept(_)));
    let patient = begin(&mut world, "eve", "patient", waiting(3_000, share(10, 60)));
    assert!(is_open(&world, patient));
    // Elsewhere there is room, also for what names no nodes.
    let any = world.reserve("any", request(NodeChoice::Any(1), 10, 0, 0, 60)).unwrap();
    let grant = world.engine.book().reservations()[&any].grant.clone().unwrap();
    assert_eq!(grant.nodes, ["n2".parse::<Name>().unwrap()]);
    assert!(world.reserve("other", request(named(&["n2"]), 10, 0, 0, 60)).is_ok());
    // Nor is anybody held up who comes when it will have ended.
    let after = Request { from_unix_nanos: Some(at(3_060)), ..share(10, 60) };
    assert!(world.reserve("after", after).is_ok());
    cancel(&mut world, endless);
    let found = &world.engine.book().reservations()[&granted(&world, large)];
    assert_eq!(found.state, State::Active);
    assert!(!is_open(&world, patient), "what is left is for others again");
    assert!(!is_kept(&mut world, "last"));
}

// Goal: nobody gets round who waits by having something and asking for other nodes, or for longer: a change takes none that are
// kept, and one that comes to others passes who could use them. Method: what is on n2 would come to n1 as well, again and again.
#[test]
fn a_change_passes_as_often_as_what_is_new_and_stays_where_it_is() {
    let mut world = World::star(2);
    world.reserve("endless", share(40, 0)).unwrap();
    let on = |names: &[&str], percent| request(named(names), percent, 0, 0, 3_600);
    let handle = world.reserve("a", on(&["n2"], 10)).unwrap();
    let own = world.reserve("b", share(5, 3_600)).unwrap();
    let large = begin(&mut world, "bob", "large", waiting(3_000, share(80, 60)));
    let change = |world: &mut World, handle, request| {
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    for _ in 0..PASSES {
        change(&mut world, own, share(6, 3_600)).unwrap();
        change(&mut world, own, share(5, 3_600)).unwrap();
    }
    for _ in 0..PASSES {
        change(&mut world, handle, on(&["n1", "n2"], 10)).unwrap();
        change(&mut world, handle, on(&["n2"], 10)).unwrap();
    }
    assert!(is_open(&world, large));
    let kept = Reason::NodesKept(vec!["n1".parse().unwrap()]);
    assert_eq!(refused(change(&mut world, handle, on(&["n1", "n2"], 10))).reason, kept);
    change(&mut world, handle, on(&["n2"], 90)).expect("it is nobody's who waits");
    change(&mut world, own, share(6, 3_600)).expect("it is there already");
    assert_eq!(refused(change(&mut world, own, share(6, 3_601))).reason, kept);
    let later = world.reserve("later", request(named(&["n1"]), 5, 0, 7_200, 60)).unwrap();
    let earlier = Request { from_unix_nanos: Some(at(0)), ..share(5, 60) };
    assert_eq!(refused(change(&mut world, later, earlier)).reason, kept);
}

// Goal: nodes are kept only from those who are in the way. Method: who waits has most of its own share in another reservation, or
// a node that it needs is away, while small ones come and go; then that is over.
#[test]
fn nobody_is_held_up_for_who_could_not_have_room_in_any_case() {
    let half = Policy { user_cpu: Share::from_percent(50).unwrap(), ..policy() };
    let mut world = World::with(star(2), half);
    world.reserve("endless", share(40, 0)).unwrap();
    let call = ask("much", request(named(&["n2"]), 60, 0, 0, 0));
    let Some(Ok(Answer::Reservation(much))) = world.call("bob", call) else { panic!() };
    let large = begin(&mut world, "bob", "large", waiting(3_000, share(80, 60)));
    assert!(is_open(&world, large));
    (0..2).for_each(|round| pass_by(&mut world, &format!("small{round}")));
    assert!(!is_kept(&mut world, "late"));
    cancel(&mut world, much.handle);
    world.pass(1);
    pass_by(&mut world, "more");
    assert!(is_kept(&mut world, "kept"));

    let mut world = World::star(2);
    world.reserve("endless", share(40, 0)).unwrap();
    world.disconnect(1);
    world.pass(5);
    let both = request(named(&["n1", "n2"]), 50, 0, 0, 60);
    let large = begin(&mut world, "bob", "large", waiting(3_000, both));
    pass_by(&mut world, "small");
    assert!(!is_kept(&mut world, "late") && is_open(&world, large));
}

/// What is large waits so long beside what has no end, was passed too often, and a small one waits for it.
fn held_up(world: &mut World, seconds: u64) -> [u64; 2] {
    world.reserve("endless", share(40, 0)).unwrap();
    let large = begin(world, "bob", "large", waiting(seconds, share(80, 60)));
    pass_by(world, "small");
    let patient = begin(world, "eve", "patient", waiting(3_000, share(10, 60)));
    assert!(is_open(world, large) && is_open(world, patient));
    [large, patient]
}

#[test]
fn nodes_are_kept_for_ten_minutes_at_a_time() {
    let mut world = World::star(1);
    let [large, patient] = held_up(&mut world, 3_000);
    world.pass(590);
    assert!(is_open(&world, patient));
    world.pass(20);
    granted(&world, patient);
    assert!(is_open(&world, large));
    // It is counted as one that passes, too.
    (1..PASSES).for_each(|number| come_and_go(&mut world, &format!("more{number}")));
    assert!(is_kept(&mut world, "late"));
}

#[test]
fn who_gives_up_or_is_refused_holds_up_nobody() {
    let mut world = World::star(1);
    let [large, patient] = held_up(&mut world, 100);
    world.pass(101);
    assert!(matches!(told(&world, large).1.reason, Reason::Lacking(_)));
    granted(&world, patient);

    let mut world = World::star(1);
    let [large, patient] = held_up(&mut world, 100);
    world.input(Input::Gone { ticket: Ticket(large) });
    world.pass(1);
    granted(&world, patient);
    assert!(!is_kept(&mut world, "late"));
}

#[test]
fn after_a_restart_who_asks_again_may_be_passed_as_often_again() {
    let mut world = World::star(1);
    held_up(&mut world, 3_000);
    world.restart();
    world.connect_all();
    world.pump();
    assert!(!is_kept(&mut world, "between"));
    let large = begin(&mut world, "bob", "large", waiting(2_990, share(80, 60)));
    pass_by(&mut world, "anew");
    assert!(is_kept(&mut world, "late") && is_open(&world, large));
}

fn orders(world: &World) -> usize {
    let is_order = |output: &&Output| match output {
        Output::Order { order, .. } => matches!(order.act, Act::Enforce(_)),
        _ => false,
    };
    world.outputs.iter().filter(is_order).count()
}

#[test]
fn what_an_agent_refuses_waits_on_in_its_place() {
    let mut world = World::star(1);
    world.agents[0].manner = Manner::Refuses;
    let first = begin(&mut world, "ada", "first", waiting(30, share(60, 600)));
    assert!(is_open(&world, first) && world.engine.is_waiting(Ticket(first)));
    assert!(world.kinds().is_empty(), "that it waits on is not recorded");
    world.agents[0].manner = Manner::Obeys;
    let again = begin(&mut world, "ada", "first", waiting(29, share(60, 600)));
    world.pass(2);
    assert_eq!(granted(&world, first), granted(&world, again));
    assert_eq!((world.kinds(), orders(&world)), (vec!["granted", "started"], 2));
}

#[test]
fn what_agents_go_on_to_refuse_is_refused() {
    for (manner, seconds) in [(Manner::Refuses, 5), (Manner::Silent, 15)] {
        let mut world = World::star(1);
        world.agents[0].manner = manner;
        let ticket = begin(&mut world, "ada", "a", waiting(60, share(60, 600)));
        world.pass(seconds);
        let (handle, refusal) = told(&world, ticket);
        let is_of_agent =
            matches!(refusal.reason, Reason::AgentRefused { .. } | Reason::AgentsSilent(_));
        assert!(handle.is_some() && is_of_agent, "{refusal}");
        assert_eq!((count(&world, "refused"), orders(&world)), (1, 4));
        assert_eq!(world.engine.waiting_count(), 0);
    }
    // What would not wait, or not any more, is told at once.
    for wait in [None, Some(Nanos::from_millis(500))] {
        let mut world = World::star(1);
        world.agents[0].manner = Manner::Refuses;
        let asked = Request { wait_nanos: wait, ..share(60, 600) };
        let ticket = begin(&mut world, "ada", "a", asked);
        assert_eq!(is_open(&world, ticket), wait.is_some());
        world.pass(1);
        assert!(matches!(told(&world, ticket).1.reason, Reason::AgentRefused { .. }));
    }
}

#[test]
fn nobody_stays_slower_for_one_who_has_hung_up() {
    let mut world = World::star(1);
    let cpu_most_ppm = CpuPpm::from_percent(80);
    let malleable = Some(Malleable::new(at(900), cpu_most_ppm));
    let first = world.reserve("a", Request { malleable, ..share(80, 100) }).unwrap();
    world.agents[0].manner = Manner::Silent;
    let gone = begin(&mut world, "ada", "b", share(50, 60));
    assert!(world.engine.is_waiting(Ticket(gone)) && world.engine.offer_count() == 1);
    world.input(Input::Gone { ticket: Ticket(gone) });
    assert!(!world.engine.is_waiting(Ticket(gone)) && world.engine.offer_count() == 0);
    world.agents[0].manner = Manner::Obeys;
    world.pump();
    world.pass(3);
    assert_eq!(world.jobs_of(0), [first.to_string()]);
    let held = &world.agents[0].holding[&first.job()];
    assert_eq!(held.cpu_ppm, CpuPpm::from_percent(80));
    assert_eq!(count(&world, "modified"), 0);
    assert!(is_open(&world, gone));
}
