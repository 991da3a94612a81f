//! Requests at the very edge of what there is, and mistakes that others were published to have made, as
//! questions to the engine. (Those that concern one slot table are in `calendar/tests`.)

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::event::Granted;
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Answer, Call, CallError, Event, Policy};
use keeptime_model::pattern::{Pattern, RankFlow};
use keeptime_model::reservation::{Ask, Handle, Malleable, NodeChoice, Request, Resources};
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, WallTime};
use std::collections::BTreeSet;
use world::{Manner, World, at, named, policy, refused, request, star};

/// Something of two nodes, for 100 seconds.
fn of_two(from: u64, set: impl FnOnce(&mut Resources)) -> Request {
    let mut asked = request(named(&["n1", "n2"]), 1, 0, from, 100);
    if let Ask::Resources(resources) = &mut asked.ask {
        set(resources);
    }
    asked
}

#[test]
fn all_there_is_fits_once_and_one_more_never() {
    type Set = fn(&mut Resources, u64);
    let cases: [(&str, u64, Set); 4] = [
        ("CPU of n1", 1_000_000, |r, amount| r.cpu_ppm = CpuPpm::new(amount as u32)),
        ("link n1 > s1", 100_000_000, |r, amount| {
            r.pattern = Some(Pattern::AllToAll);
            r.bits_per_second = BitsPerSecond::new(amount);
        }),
        ("reading at n1", 100_000_000, |r, amount| {
            r.disk_read_bytes_per_second = BytesPerSecond::new(amount);
        }),
        ("writing at n1", 100_000_000, |r, amount| {
            r.disk_write_bytes_per_second = BytesPerSecond::new(amount);
        }),
    ];
    for (name, all, set) in cases {
        let mut world = World::star(2);
        let asked = |amount, from| of_two(from, |resources| set(resources, amount));
        let more = refused(world.reserve("more", asked(all + 1, 1_000)));
        let is_of_link = name.starts_with("link");
        let why = if is_of_link { name } else { "can never be granted: n1, n2 have no more than" };
        assert!(more.to_string().contains(why), "{more}");
        assert_eq!(more.earliest_start_unix_nanos, None, "{name}: never");
        assert!(world.reserve("all", asked(all, 1_000)).is_ok(), "{name}");
        let one = refused(world.reserve("one", asked(1, 1_050)));
        assert!(one.to_string().contains(name), "{one}");
        assert_eq!(one.earliest_start_unix_nanos, Some(at(1_100)));
        // The end of one is the start of the next.
        assert!(world.reserve("before", asked(all, 900)).is_ok(), "{name}");
        assert!(world.reserve("after", asked(all, 1_100)).is_ok(), "{name}");
    }
}

#[test]
fn what_lasts_no_time_is_refused_by_name() {
    let mut world = World::star(1);
    for from in [0, 1_000] {
        let asked = request(named(&["n1"]), 10, 0, from, 1);
        let none = Request { duration_nanos: Some(Nanos::new(0)), ..asked };
        let error = world.reserve("k", none).unwrap_err().to_string();
        assert_eq!(error, "duration_nanos: \"0\" is not accepted; expected more than 0");
    }
    assert!(world.record.is_empty());
}

/// The least span there is, at the last moment that is looked at.
#[test]
fn a_nanosecond_at_the_end_of_time_is_reserved() {
    let mut world = World::star(1);
    let last = world.now.saturating_add(world.engine.policy().ahead_max_nanos);
    let at = |from| Request {
        from_unix_nanos: Some(from),
        duration_nanos: Some(Nanos::new(1)),
        ..request(named(&["n1"]), 100, 0, 0, 1)
    };
    assert!(world.reserve("last", at(last)).is_ok());
    assert!(world.reserve("before", at(WallTime::from_unix_nanos(last.unix_nanos() - 1))).is_ok());
    let late = refused(world.reserve("late", at(last.saturating_add(Nanos::new(1)))));
    assert!(matches!(late.reason, Reason::TooFarAhead { .. }), "{late}");
}

/// What agents have not accepted before it ends is refused then, and not granted when they do.
#[test]
fn what_is_over_is_not_granted() {
    let mut world = World::star(1);
    world.agents[0].manner = Manner::Silent;
    let call =
        Call::Reserve { key: "a".parse().unwrap(), request: request(named(&["n1"]), 10, 0, 0, 1) };
    let ticket = world.begin("ada", call);
    world.pass(1);
    let refusal = refused(world.answers[&ticket].clone());
    assert_eq!(refusal.reason, Reason::AgentsSilent(vec!["n1".parse().unwrap()]));
    assert_eq!(world.kinds(), ["refused"]);
}

/// openpbs/openpbs#2398: two reservations were confirmed in one scheduling cycle for the same nodes.
/// Here both are asked for before any agent has said anything.
#[test]
fn two_requests_in_one_cycle_do_not_get_the_same() {
    let mut world = World::star(2);
    let asked = request(named(&["n1", "n2"]), 60, 0, 0, 60);
    let tickets = ["a", "b"].map(|key| {
        let call = Call::Reserve { key: key.parse().unwrap(), request: asked.clone() };
        world.begin("ada", call)
    });
    world.pump();
    let [first, second] = tickets.map(|ticket| world.answers[&ticket].clone());
    assert!(matches!(first, Ok(Answer::Reservation(_))), "{first:?}");
    assert!(matches!(refused(second).reason, Reason::Lacking(_)));
    assert_eq!([world.jobs_of(0), world.jobs_of(1)], [vec!["r1".to_string()], vec!["r1".into()]]);
}

/// As many as a user may have, whatever agents or others have not answered yet: two requests are asked for before anybody
/// has said anything, the second time beside one that has to become slower.
#[test]
fn two_requests_in_one_cycle_are_no_more_than_a_user_may_have() {
    let mut world = World::with(star(2), Policy { user_reservations: 2, ..policy() });
    let begin = |world: &mut World, user: &str, key: &str, request| {
        world.begin(user, Call::Reserve { key: key.parse().unwrap(), request })
    };
    let cpu_most_ppm = CpuPpm::from_percent(80);
    let malleable = Some(Malleable::new(at(9_000), cpu_most_ppm));
    let share = |node, percent| request(named(&[node]), percent, 0, 0, 60);
    let of_bob = begin(&mut world, "bob", "m", Request { malleable, ..share("n2", 80) });
    world.pump();
    assert!(world.answers[&of_bob].is_ok());
    for (round, nodes) in [["n1", "n1"], ["n2", "n1"]].into_iter().enumerate() {
        let [first, second] = [0, 1].map(|at| {
            let asked = share(nodes[at], 30);
            begin(&mut world, "ada", &format!("{round}-{at}"), asked)
        });
        let third = begin(&mut world, "ada", &format!("{round}-2"), share("n1", 1));
        let refusal = refused(world.answers[&third].clone());
        assert_eq!(refusal.reason, Reason::TooMany { user_reservations: 2 });
        world.pump();
        for ticket in [first, second] {
            let found = match world.answers[&ticket].clone() {
                Ok(Answer::Reservation(found)) => found,
                other => panic!("{other:?}"),
            };
            let gone = world.call("ada", Call::Cancel { handle: found.handle });
            assert!(matches!(gone, Some(Ok(_))), "{gone:?}");
        }
    }
}

/// oar-team/oar3#61: backfill put more than one job of a list into the same hole. Each is moldable here:
/// on so many nodes, or on half of them for twice the time; what ends first is taken.
#[test]
fn backfill_of_a_moldable_job_list_does_not_oversubscribe() {
    const NODES: u32 = 8;
    let jobs: [(u32, u64); 12] = [
        (2, 333),
        (1, 574),
        (2, 220),
        (4, 564),
        (1, 154),
        (2, 220),
        (4, 564),
        (8, 563),
        (2, 220),
        (1, 154),
        (6, 333),
        (4, 564),
    ];
    let mut world = World::star(NODES);
    for (number, (nodes, seconds)) in jobs.into_iter().enumerate() {
        let shapes = [(nodes, seconds), (nodes.div_ceil(2), 2 * seconds)];
        let starts = shapes.map(|(nodes, seconds)| {
            let asked = request(NodeChoice::Any(nodes), 100, 0, 1_000, seconds);
            let start = match world.call("ada", Call::Consider { request: asked.clone() }) {
                Some(Ok(Answer::Possible { from, .. })) => from,
                Some(Err(CallError::Refused { refusal, .. })) => {
                    refusal.earliest_start_unix_nanos.unwrap()
                }
                other => panic!("{other:?}"),
            };
            let ends = start.saturating_add(Nanos::from_secs(seconds));
            (ends, Request { from_unix_nanos: Some(start), ..asked })
        });
        let (_, asked) = starts.into_iter().min_by_key(|(ends, _)| *ends).unwrap();
        assert!(world.reserve(&format!("job{number}"), asked).is_ok(), "as was offered");
    }
    let all: Vec<_> = world.engine.book().reservations().values().collect();
    assert_eq!(all.len(), jobs.len());
    for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
        let overlap = one.handle < other.handle
            && one.from_unix_nanos < other.until_unix_nanos.unwrap()
            && other.from_unix_nanos < one.until_unix_nanos.unwrap();
        let nodes = |of: &keeptime_engine::book::Reservation| -> BTreeSet<_> {
            of.grant.iter().flat_map(|grant| grant.nodes.clone()).collect()
        };
        assert!(!overlap || nodes(one).is_disjoint(&nodes(other)), "{one:?} and {other:?}");
    }
    let filled_a_hole = all.windows(2).any(|two| two[1].from_unix_nanos < two[0].from_unix_nanos);
    assert!(filled_a_hole, "this list is about backfill");
}

/// esnet/oscars#37: a reservation was accepted for which there is no link in the network.
#[test]
fn flows_of_nodes_that_are_not_there_are_refused_by_name() {
    let mut world = World::star(2);
    let beyond = Pattern::Matrix(BTreeSet::from([RankFlow { from: 0, to: 5 }]));
    let asked = of_two(1_000, |resources| {
        resources.pattern = Some(beyond);
        resources.bits_per_second = BitsPerSecond::from_mbit(1);
    });
    let error = world.reserve("k", asked).unwrap_err();
    assert!(matches!(error, CallError::Invalid(_)), "{error}");
    let nobody = world.reserve("l", request(named(&["n1", "n9"]), 10, 10, 1_000, 60));
    assert!(nobody.unwrap_err().to_string().contains("\"n9\""));
    assert!(world.record.is_empty() && world.engine.calendar().reservations().next().is_none());
}

/// A record that promises something twice is not believed: what came second is failed.
#[test]
fn a_record_that_promises_twice_is_not_believed() {
    let mut world = World::star(4);
    world.reserve("k", request(named(&["n1"]), 60, 0, 5_000, 60)).unwrap();
    let (time, Event::Granted { granted, .. }) = world.record[0].clone() else { panic!() };
    let granted = Box::new(Granted { key: "forged".parse().unwrap(), ..*granted });
    world.record.push((time, Event::Granted { handle: Handle::new(2), granted }));
    world.restart();
    assert_eq!(world.kinds(), ["granted", "granted", "failed"]);
    assert_eq!(world.engine.calendar().reservations().count(), 1);
}
