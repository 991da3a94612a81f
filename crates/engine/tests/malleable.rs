//! What may be slower as long as its deadline allows makes way for others, and is faster when there is room.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::{Answer, Call, CallError, Input, Ticket};
use keeptime_model::assignment::LaterCpu;
use keeptime_model::loss::OnLoss;
use keeptime_model::reservation::{Ask, Handle, Malleable, NodeChoice, Request, Resources, State};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use world::*;

/// 80 % of n1 for 100 s, by 400 s; more is of no use.
fn malleable() -> Request {
    by(400, 80, request(named(&["n1"]), 80, 0, 0, 100))
}

fn by(seconds: u64, most: u32, request: Request) -> Request {
    let cpu_most_ppm = CpuPpm::from_percent(most);
    Request { malleable: Some(Malleable::new(at(seconds), cpu_most_ppm)), ..request }
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

/// What it will have more, in percent, and from when on, in seconds.
fn later(world: &World, job: Handle) -> Option<(u32, u64)> {
    let found = &world.engine.book().reservations()[&job];
    let later = found.grant.as_ref().unwrap().later;
    assert_eq!(world.agents[0].holding[&job.job()].later, later);
    later.map(|LaterCpu { from_unix_nanos, cpu_ppm }| {
        (cpu_ppm.get() / 10_000, seconds(from_unix_nanos))
    })
}

fn seconds(time: WallTime) -> u64 {
    time.saturating_since(START).get() / SECOND
}

fn state(world: &World, job: Handle) -> State {
    world.engine.book().reservations()[&job].state
}

// 80 % for 100 s are 8,000. Beside 50 % it has the greatest of four steps between the least, which is 4 % for 100 s with 80 %
// after, and what it had: 42 %, for 191 s. A moment later it takes what is left, and when the other is given back, all of it.
#[test]
fn a_running_job_is_slower_for_another_and_faster_when_that_has_ended() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    assert_eq!(form(&world, job), (80, 100));
    let other = world.reserve("b", firm(50, 100)).unwrap();
    assert_eq!((form(&world, job), later(&world, job)), ((42, 191), None));
    assert_eq!(state(&world, other), State::Active);
    world.pass(50);
    assert_eq!((form(&world, job), later(&world, job)), ((50, 161), None));
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.pass(5);
    assert_eq!((form(&world, job), later(&world, job)), ((80, 121), None));
    world.pass(80);
    assert_eq!(state(&world, job), State::Ended);
}

// Goal: nobody waits for an agent that is away to say that its job is slower. Method: a job on two nodes, one of which is away.
#[test]
fn what_is_on_a_node_that_is_away_makes_no_way() {
    let mut world = World::star(2);
    let on = |names: &[&str], percent| request(named(names), percent, 0, 0, 100);
    let job = world.reserve("a", by(400, 80, on(&["n1", "n2"], 80))).unwrap();
    world.disconnect(1);
    let refusal = refused(world.reserve("b", on(&["n1"], 50)));
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    world.connect(1);
    world.reserve("c", on(&["n1"], 50)).unwrap();
    assert_eq!(form(&world, job).0, 42);
}

/// 80 % of n1 from 100 s on for 100 s, by 400 s, and any time before that if there is room.
fn deferred() -> Request {
    may_begin(Some(0), by(400, 80, request(named(&["n1"]), 80, 0, 100, 100)))
}

/// The same, which may begin from then on, whenever it is asked for.
fn may_begin(earliest: Option<u64>, request: Request) -> Request {
    let earliest_unix_nanos = earliest.map(at);
    let malleable = request.malleable.map(|of| Malleable { earliest_unix_nanos, ..of });
    Request { malleable, ..request }
}

fn begins(world: &World, job: Handle) -> u64 {
    seconds(world.engine.book().reservations()[&job].from_unix_nanos)
}

// What has the node until 100 s is given back at 30 s. A second later others have had their turn, and agents have two more.
#[test]
fn what_begins_later_for_want_of_room_begins_when_there_is_some() {
    let mut world = World::star(1);
    let other = world.reserve("a", firm(100, 100)).unwrap();
    let job = world.reserve("b", deferred()).unwrap();
    assert_eq!((begins(&world, job), form(&world, job)), (100, (80, 200)));
    world.pass(30);
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.pass(4);
    assert_eq!(state(&world, job), State::Active);
    assert_eq!((begins(&world, job), form(&world, job)), (33, (80, 133)));
    world.pass(100);
    assert_eq!(state(&world, job), State::Ended);
    assert!(world.replayed().book() == world.engine.book());
}

#[test]
fn what_is_to_begin_at_its_time_does_though_there_is_room() {
    let mut world = World::star(1);
    let other = world.reserve("a", firm(100, 100)).unwrap();
    let Request { malleable, .. } = deferred();
    let malleable = malleable.map(|of| Malleable { earliest_unix_nanos: None, ..of });
    let job = world.reserve("b", Request { malleable, ..deferred() }).unwrap();
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.pass(90);
    assert_eq!((begins(&world, job), form(&world, job)), (100, (80, 200)));
}

// Three fifths of the node are free from 30 s on: 8,000 take 134 s so, and are done sooner. From 100 s on there is all of it.
#[test]
fn it_begins_with_less_where_it_ends_no_later_by_that() {
    let mut world = World::star(1);
    world.reserve("a", firm(40, 100)).unwrap();
    let other = world.reserve("b", firm(60, 100)).unwrap();
    let job = world.reserve("c", deferred()).unwrap();
    world.pass(30);
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.pass(10);
    assert_eq!((begins(&world, job), form(&world, job)), (33, (60, 167)));
    world.pass(70);
    let (cpu, until) = form(&world, job);
    assert!(cpu == 80 && until < 160, "{cpu} {until}");

    // A quarter of it is worth nothing: it would end later than from 100 s on.
    let mut world = World::star(1);
    world.reserve("a", firm(75, 100)).unwrap();
    let job = world.reserve("c", deferred()).unwrap();
    let short = world.reserve("d", firm(10, 20)).unwrap();
    world.call("ada", Call::Cancel { handle: short }).unwrap().unwrap();
    world.pass(20);
    assert_eq!((begins(&world, job), form(&world, job)), (100, (80, 200)));
}

#[test]
fn a_node_that_does_not_have_it_begin_sooner_leaves_it_at_its_time() {
    let mut world = World::star(1);
    let other = world.reserve("a", firm(100, 100)).unwrap();
    let job = world.reserve("b", deferred()).unwrap();
    world.call("ada", Call::Cancel { handle: other }).unwrap().unwrap();
    world.agents[0].manner = Manner::Silent;
    world.pass(3);
    world.agents[0].manner = Manner::Obeys;
    world.pass(5);
    assert_eq!(state(&world, job), State::Granted);
    assert_eq!((begins(&world, job), form(&world, job)), (100, (80, 200)));
}

#[test]
fn what_would_be_late_is_not_made_slower_and_nothing_has_changed() {
    let mut world = World::star(1);
    let job = world.reserve("a", malleable()).unwrap();
    // 20 % are needed to make it by 400 s, where nobody leaves it more later.
    let refusal = refused(world.reserve("b", firm(81, 400)));
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    assert_eq!(form(&world, job), (80, 100));
    assert!(world.reserve("c", firm(80, 400)).is_ok());
    assert_eq!(form(&world, job), (20, 400));
    // It is as slow as it can be.
    assert!(world.reserve("d", firm(1, 400)).is_err());
}

// 80 % for 100 s by 120 s: never less than 67 % would do. 4 % for 12 s do, two more than is asked for, since it is asked first:
// the rest takes 99.4 s at 80 %. So do 23 %, a step more, which is what there is room for.
#[test]
fn who_has_all_of_a_node_is_slower_for_a_while_and_makes_up_for_that() {
    let mut world = World::star(1);
    let job = world.reserve("a", by(120, 80, firm(80, 100))).unwrap();
    let short = world.reserve("b", firm(60, 10)).unwrap();
    assert_eq!((form(&world, job), later(&world, job)), ((23, 109), Some((80, 12))));
    assert_eq!(state(&world, short), State::Active);
    // What it will have is nobody else's. For as long as it has less, somebody else has no more.
    assert!(world.reserve("c", request(named(&["n1"]), 21, 0, 11, 10)).is_err());
    assert!(world.reserve("d", firm(37, 10)).is_err());
    assert_eq!((form(&world, job), later(&world, job)), ((23, 109), Some((80, 12))));
    // A moment later it takes what is left.
    world.pass(4);
    assert_eq!((form(&world, job), later(&world, job)), ((40, 108), Some((80, 12))));
    // Its agent knows: nobody is asked when its time has come.
    let told = world.kinds().len();
    world.pass(103);
    assert_eq!(world.kinds()[told..], ["ended"]);
    assert_eq!((form(&world, job), state(&world, job)), ((40, 108), State::Active));
    world.pass(2);
    assert_eq!(state(&world, job), State::Ended);
    assert!(world.replayed().book() == world.engine.book());
}

/// All of n1 for 2,000 s from then on, by a time; and from when on it may begin.
fn whole_node(from: u64, until: u64, earliest: Option<u64>) -> Request {
    may_begin(earliest, by(until, 100, request(named(&["n1"]), 100, 0, from, 2_000)))
}

// The first has the node for 2,000 s, the second for as long from then on; both have time. The third is to be had for
// 1,000 s: the first is over so much later, and so the second begins later, which nobody has to be asked.
#[test]
fn what_is_to_begin_later_begins_later_still_where_that_is_in_time() {
    let mut world = World::star(1);
    let first = world.reserve("a", whole_node(0, 3_600, None)).unwrap();
    let second = world.reserve("b", whole_node(2_000, 6_000, Some(0))).unwrap();
    let third = world.reserve("c", firm(90, 1_000)).unwrap();
    assert_eq!(state(&world, third), State::Active);
    let span = |world: &World, job: Handle| {
        let found = &world.engine.book().reservations()[&job];
        (seconds(found.from_unix_nanos), seconds(found.until_unix_nanos.unwrap()))
    };
    let (_, ends) = span(&world, first);
    assert!((2_900..=3_600).contains(&ends), "{ends}");
    assert_eq!(span(&world, second), (ends, ends + 2_000));
    // What is given back soon is had by the first, and the second may begin then.
    world.call("ada", Call::Cancel { handle: third }).unwrap().unwrap();
    world.pass(5);
    let (_, ends) = span(&world, first);
    assert!(ends < 2_010, "{ends}");
    world.call("ada", Call::Cancel { handle: first }).unwrap().unwrap();
    world.pass(5);
    assert_eq!(state(&world, second), State::Active);
    assert!(world.replayed().book() == world.engine.book());
}

// Goal: who was found a way is let in, though it begins and ends a little later than was found: agents are asked meanwhile.
// Method: they answer after a second and a half.
#[test]
fn who_has_to_wait_for_others_is_let_in_all_the_same() {
    let mut world = World::star(1);
    world.reserve("a", by(1_900, 100, firm(100, 1_700))).unwrap();
    world.reserve("b", whole_node(1_700, 6_000, Some(0))).unwrap();
    for (key, seconds) in [("c", 10), ("d", 100)] {
        let call = Call::Reserve { key: key.parse().unwrap(), request: firm(80, seconds) };
        let ticket = world.begin("ada", call);
        assert!(!world.answers.contains_key(&ticket), "others are asked first");
        let span = Nanos::from_millis(1_500);
        (world.now, world.steady) =
            (world.now.saturating_add(span), world.steady.saturating_add(span));
        world.pump();
        let Ok(Answer::Reservation(found)) = &world.answers[&ticket] else {
            panic!("{:?}", world.answers[&ticket])
        };
        let handle = found.handle;
        world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
        world.pass(5);
    }
}

// A change of something else leaves what was promised for later; who states its CPU anew has just that.
#[test]
fn what_was_promised_for_later_outlives_other_changes() {
    let mut world = World::star(1);
    let job = world.reserve("a", by(120, 80, firm(80, 100))).unwrap();
    world.reserve("b", firm(60, 10)).unwrap();
    let promised = later(&world, job);
    assert!(promised.is_some());
    let asked = world.engine.book().reservations()[&job].request.clone();
    let malleable = Some(Malleable::new(at(200), CpuPpm::from_percent(80)));
    let request = Request { malleable, ..asked };
    world.call("ada", Call::Modify { handle: job, request }).unwrap().unwrap();
    assert_eq!(later(&world, job), promised);
    let request = by(200, 80, firm(30, 150));
    world.call("ada", Call::Modify { handle: job, request }).unwrap().unwrap();
    assert_eq!((form(&world, job), later(&world, job)), ((30, 150), None));
}

// It is slower until 110 s. Begun 200 s later it has as much, 200 s later; the other is in nobody's way then.
#[test]
fn what_was_promised_for_later_moves_with_its_beginning() {
    let mut world = World::star(1);
    let from = |seconds, request| Request { from_unix_nanos: Some(at(seconds)), ..request };
    let job = world.reserve("a", from(100, by(220, 80, firm(80, 100)))).unwrap();
    world.reserve("b", from(100, firm(60, 10))).unwrap();
    let (slow, until) = form(&world, job);
    let (share, turn) = later(&world, job).unwrap();
    assert!(slow < share && turn < until);
    let asked = world.engine.book().reservations()[&job].request.clone();
    let request = from(300, by(500, 80, asked));
    world.call("ada", Call::Modify { handle: job, request }).unwrap().unwrap();
    assert_eq!(form(&world, job), (slow, until + 200));
    assert_eq!(later(&world, job), Some((share, turn + 200)));
}

// A job of 60 % for 150 s may have 45 % until 200 s, and 50 % fit beside that. A moment later they do not, and that is not asked.
// It is no slower than it takes.
#[test]
fn what_ends_when_another_begins_is_let_in() {
    let mut world = World::star(1);
    let from = |seconds, request| Request { from_unix_nanos: Some(at(seconds)), ..request };
    let job = world.reserve("a", by(200, 60, firm(60, 150))).unwrap();
    world.reserve("b", from(200, firm(90, 100))).unwrap();
    world.reserve("c", from(100, firm(50, 100))).unwrap();
    assert_eq!(form(&world, job), (48, 185));
}

// 30 % of n1, where 50 % are the job's and 40 % somebody else's, and 80 % of n2.
#[test]
fn each_rank_needs_room_for_what_it_asks() {
    let mut world = World::star(2);
    world.reserve("a", by(400, 50, firm(50, 100))).unwrap();
    world.reserve("b", firm(40, 1_000)).unwrap();
    let asked = request(named(&["n1", "n2"]), 80, 0, 0, 50);
    let Ask::Resources(resources) = asked.ask.clone() else { panic!("resources were asked for") };
    let rank_cpu_ppm = [30, 80].map(CpuPpm::from_percent).to_vec();
    let ask = Ask::Resources(Resources { rank_cpu_ppm, ..resources });
    world.reserve("c", Request { ask, ..asked }).unwrap();
}

// The same, where the second has no time, is to begin when it was said, or is known to its agents: nobody is let in, and
// nothing has changed.
#[test]
fn what_would_be_late_or_is_to_begin_at_its_time_is_not_deferred() {
    for (until, earliest, passed) in
        [(4_001, Some(0), 0), (6_000, None, 0), (6_000, Some(0), 1_500)]
    {
        let mut world = World::star(1);
        world.reserve("a", whole_node(0, 3_600, None)).unwrap();
        world.reserve("b", whole_node(2_000, until, earliest)).unwrap();
        world.pass(passed);
        let live = |world: &World| -> Vec<_> {
            world.engine.book().live_reservations().cloned().collect()
        };
        let before = live(&world);
        assert!(world.reserve("c", firm(90, 1_000)).is_err());
        assert_eq!(live(&world), before);
    }
}

// It has 23 % until 12 s and 80 % then, to 109 s. At 4 s the other is given back, and two seconds later others have had their
// turn; agents have two more.
#[test]
fn what_others_leave_sooner_is_had_sooner() {
    let mut world = World::star(1);
    let job = world.reserve("a", by(120, 80, firm(80, 100))).unwrap();
    let short = world.reserve("b", firm(60, 10)).unwrap();
    world.pass(4);
    world.call("ada", Call::Cancel { handle: short }).unwrap().unwrap();
    world.pass(4);
    assert_eq!((form(&world, job), later(&world, job)), ((80, 106), None));
}

// 40 % until 12 s and 80 % to 108 s, as it is a moment later: at 5 s 7,950 are left, which are 77.2 % of 103 s.
#[test]
fn what_is_slower_for_a_while_and_lost_meanwhile_has_the_rest_elsewhere() {
    let mut world = World::star(2);
    let asked = by(120, 80, request(NodeChoice::Any(1), 80, 0, 0, 100));
    let asked = Request { on_loss: Some(OnLoss::Move), ..asked };
    let job = world.reserve("a", asked).unwrap();
    let grant =
        |world: &World, job| world.engine.book().reservations()[&job].grant.clone().unwrap();
    let node = grant(&world, job).nodes[0].clone();
    let short = request(NodeChoice::Named(vec![node.clone()]), 60, 0, 0, 10);
    world.reserve("b", short).unwrap();
    assert!(grant(&world, job).later.is_some());
    world.pass(5);
    let node = world.engine.cluster().topology().find_node(&node).unwrap();
    world.input(Input::Away { node });
    world.pump();
    let next = world.engine.book().successor(job).unwrap();
    let there = grant(&world, next);
    assert_eq!((there.cpu_ppm.get() / 1_000, there.later), (772, None));
    assert_eq!(world.engine.book().reservations()[&next].until_unix_nanos, Some(at(108)));
}

#[test]
fn the_most_urgent_stays_as_fast_as_it_can_be() {
    let mut world = World::star(1);
    let half = |seconds| by(seconds, 50, firm(50, 100));
    let (urgent, patient) =
        (world.reserve("a", half(200)).unwrap(), world.reserve("b", half(1_000)).unwrap());
    assert!(world.reserve("c", firm(30, 100)).is_ok());
    assert_eq!(form(&world, urgent), (50, 100));
    assert_eq!((form(&world, patient).0, later(&world, patient)), (14, None));
    // Of two that could be faster the same holds.
    assert!(world.reserve("d", firm(4, 50)).is_ok());
    world.pass(53);
    assert_eq!(form(&world, urgent), (50, 100));
    assert_eq!((form(&world, patient).0, later(&world, patient)), (20, None));
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
    assert_eq!((form(&world, job), later(&world, job)), ((42, 191), None));
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
    assert!(matches!(world.call("ada", consider(97)), Some(Err(CallError::Refused { .. }))));
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

fn modify(handle: Handle, request: Request) -> Call {
    Call::Modify { handle, request }
}

// A job of 60 % for 100 s leaves 40, which another has, and comes to need 70: the first has 30 at the most then. It needs more
// time, and others begin at its end: they have less then.
#[test]
fn others_make_way_for_a_change_too() {
    let mut world = World::star(1);
    let patient = world.reserve("a", by(1_000, 60, firm(60, 100))).unwrap();
    let job = world.reserve("b", firm(40, 100)).unwrap();
    world.pass(10);
    world.call("ada", modify(job, firm(70, 100))).unwrap().unwrap();
    assert_eq!(form(&world, job), (70, 100));
    let (slower, until) = form(&world, patient);
    assert!(slower <= 30 && until > 100, "{slower} % until {until}");
    let next = request(named(&["n1"]), 60, 0, 500, 100);
    let next = world.reserve("c", by(2_000, 60, next)).unwrap();
    world.call("ada", modify(job, firm(70, 550))).unwrap().unwrap();
    assert_eq!(form(&world, job), (70, 550));
    assert!(world.engine.book().reservations()[&next].until_unix_nanos > Some(at(600)));
    assert!(world.replayed().book() == world.engine.book());
}

// Goal: what cannot be had is refused as ever, and has changed nothing; a controller, which asks again and again, is refused also
// where a user is not.
#[test]
fn a_change_for_which_nobody_can_make_way_is_refused() {
    let mut world = World::star(1);
    let patient = world.reserve("a", by(1_000, 60, firm(60, 100))).unwrap();
    let job = world.reserve("b", firm(40, 100)).unwrap();
    let refusal = refused(world.call("ada", modify(job, firm(99, 1_000))).unwrap());
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    let correct = Call::Correct { handle: job, request: firm(70, 100) };
    let refusal = refused(world.call("ada", correct).unwrap());
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    assert_eq!((form(&world, patient), form(&world, job)), ((60, 100), (40, 100)));
}

// Goal: nobody stays slower for a change that is not made. Method: whoever asked is gone, or what is to change is over, while
// agents are asked; the first is as it was a moment later.
#[test]
fn who_has_made_way_for_a_change_that_comes_to_nothing_is_faster_again() {
    for is_over in [false, true] {
        let mut world = World::star(1);
        let patient = world.reserve("a", by(1_000, 60, firm(60, 100))).unwrap();
        let job = world.reserve("b", firm(40, 100)).unwrap();
        let ticket = world.begin("ada", modify(job, firm(70, 100)));
        assert!(world.engine.is_waiting(Ticket(ticket)));
        if is_over {
            world.call("ada", Call::Cancel { handle: job }).unwrap().unwrap();
            let answer = &world.answers[&ticket];
            assert!(matches!(answer, Err(CallError::Over { .. })), "{answer:?}");
        } else {
            world.input(Input::Gone { ticket: Ticket(ticket) });
            world.pump();
            assert_eq!(form(&world, job), (40, 100));
        }
        world.pass(5);
        assert_eq!(form(&world, patient).0, 60);
    }
}

// The second of two does not become slower: the change is refused, and the first is as it was a moment later.
#[test]
fn who_has_made_way_in_vain_is_faster_again() {
    let mut world = World::star(2);
    let on = |name| request(named(&[name]), 60, 0, 0, 100);
    let [first, _] = ["n1", "n2"].map(|name| world.reserve(name, by(1_000, 60, on(name))).unwrap());
    let both = |percent| request(named(&["n1", "n2"]), percent, 0, 0, 100);
    let job = world.reserve("c", both(40)).unwrap();
    world.agents[1].manner = Manner::Refuses;
    let refusal = refused(world.call("ada", modify(job, both(70))).unwrap());
    assert!(refusal.to_string().contains("CPU of n2"), "{refusal}");
    assert!(form(&world, first).0 <= 30);
    world.pass(5);
    assert_eq!(form(&world, first).0, 60);
}

// 50 % for 2,000 s are to become 96 % for 1,000. The job beside it would be slower meanwhile and last beyond 2,000 s, so that what
// begins then has no room; there is some from 1,000 s on, but for what the first has until agents have agreed. So it is refused.
#[test]
fn what_is_deferred_does_not_take_what_is_had_until_it_changes() {
    let mut world = World::star(1);
    let patient = world.reserve("a", by(3_000, 30, firm(30, 1_900))).unwrap();
    let job = world.reserve("b", firm(50, 2_000)).unwrap();
    world.reserve("c", request(named(&["n1"]), 20, 0, 2_000, 1_000)).unwrap();
    let next = by(3_000, 60, request(named(&["n1"]), 60, 0, 2_000, 900));
    let next = world.reserve("d", may_begin(Some(0), next)).unwrap();
    let refusal = refused(world.call("ada", modify(job, firm(96, 1_000))).unwrap());
    assert!(refusal.to_string().contains("CPU of n1"), "{refusal}");
    assert_eq!((form(&world, patient), form(&world, job)), ((30, 1_900), (50, 2_000)));
    assert_eq!(begins(&world, next), 2_000);
}
