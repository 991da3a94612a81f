//! What a refusal says: which resource, where and when, and what less would be admitted.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::refusal::{Lacking, NAMED_MAX, Reason, ResourceOffer};
use keeptime_engine::{Answer, Call, CallError, Policy, Refusal};
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Malleable, NodeChoice, Request};
use keeptime_model::topology::Topology;
use keeptime_model::units::{BitsPerSecond, BytesPerSecond, CpuPpm, Nanos, Share, WallTime};
use keeptime_planner::refusal::{self, Change};
use world::{World, application, at, goal, named, policy, refused, request, star};

fn lacking(resource: &str, lacking: &str, first: u64) -> Lacking {
    let (resource, lacking) = (resource.into(), lacking.into());
    Lacking { resource, lacking, first_unix_nanos: at(first) }
}

/// Reading so many MB/s on each node.
fn reading(mega_bytes: u64, mut request: Request) -> Request {
    let Ask::Resources(resources) = &mut request.ask else { panic!() };
    resources.disk_read_bytes_per_second = BytesPerSecond::from_mega_bytes(mega_bytes);
    request
}

#[test]
fn too_few_nodes_says_what_the_others_lack_and_since_when() {
    let mut world = World::star(4);
    world.reserve("a", request(named(&["n1"]), 80, 0, 1_000, 300)).unwrap();
    world.reserve("b", request(named(&["n2"]), 70, 0, 1_050, 300)).unwrap();
    world.reserve("c", reading(80, request(named(&["n3"]), 10, 0, 1_020, 300))).unwrap();
    let refusal =
        refused(world.reserve("d", reading(30, request(NodeChoice::Any(3), 50, 0, 900, 200))));
    assert_eq!(refusal.reason, Reason::TooFewNodes { needs: 3, has: 1 });
    let expected = [
        lacking("CPU of n1", "30 %", 1_000),
        lacking("CPU of n2", "20 %", 1_050),
        lacking("reading at n3", "10 MB/s", 1_020),
    ];
    assert_eq!(refusal.lacking, expected);
    assert_eq!(
        refusal.to_string(),
        "3 nodes are needed, and 1 have the CPU and disk rates free; \
         CPU of n1 lacks 30 %, first at 2026-01-01T00:16:40Z; \
         CPU of n2 lacks 20 %, first at 2026-01-01T00:17:30Z; \
         reading at n3 lacks 10 MB/s, first at 2026-01-01T00:17:00Z"
    );
    assert!(refusal.words(&|_| "noon".into()).contains("CPU of n1 lacks 30 %, first at noon"));
    // Now agents have to be there, too.
    world.disconnect(3);
    let refusal = refused(world.reserve("e", request(NodeChoice::Any(4), 10, 0, 0, 10)));
    assert_eq!(refusal.unusable, ["n4".parse::<Name>().unwrap()]);
    assert!(refusal.to_string().ends_with("not connected, or not able to enforce it: n4"));
}

/// `n1` and `n2` have 40 % for jobs, `n3` 60 %; `n2` alone has a disk.
fn unequal() -> World {
    let mut text = String::from("name = \"unequal\"\nswitches = [{ name = \"s1\" }]\n");
    let disk = "disk = { device = \"8:0\", read = \"100 MB/s\", write = \"50 MB/s\" }";
    for (node, cpu, disk) in [(1, 40, ""), (2, 40, disk), (3, 60, "")] {
        let name = format!("name = \"n{node}\"\ncpu = \"{cpu} %\"\naddress = \"10.0.0.{node}\"");
        text.push_str(&format!("[[nodes]]\n{name}\n{disk}\n"));
        text.push_str(&format!(
            "[[links]]\nbetween = [\"n{node}\", \"s1\"]\nrate = \"1 Gbit/s\"\n"
        ));
    }
    World::with(Topology::from_toml(&text).unwrap(), policy())
}

// Goal: what no node has at all is told as what can never be granted, with the most that ever can; what is short only now
// is not.
#[test]
fn what_nodes_do_not_have_at_all_is_told_as_never() {
    let mut world = unequal();
    let mut never = |key: &str, asked: Request| {
        let refusal = refused(world.reserve(key, asked));
        assert_eq!((&refusal.lacking, refusal.earliest_start_unix_nanos), (&Vec::new(), None));
        match &refusal.reason {
            Reason::Never(beyond) => beyond.to_string(),
            other => panic!("{key}: {other:?}"),
        }
    };
    let cpu = |nodes, percent| request(nodes, percent, 0, 1_000, 100);
    let said = |words: &str| format!("{words} for jobs");
    let cpu_of_two = "41 % of a CPU can never be granted: no 2 nodes have more than 40 % each";
    assert_eq!(never("a", cpu(NodeChoice::Any(2), 41)), said(cpu_of_two));
    let cpu_of_one = "61 % of a CPU can never be granted: no node has more than 60 %";
    assert_eq!(never("b", cpu(NodeChoice::Any(1), 61)), said(cpu_of_one));
    let named_one = "41 % of a CPU can never be granted: n1 has 40 %";
    assert_eq!(never("c", cpu(named(&["n1", "n3"]), 41)), said(named_one));
    let named_two = "61 % of a CPU can never be granted: n3, n1 have no more than 60 % each";
    assert_eq!(never("d", cpu(named(&["n3", "n1"]), 61)), said(named_two));
    let read = |nodes, rate| reading(rate, cpu(nodes, 10));
    let disk = "1 MB/s read from disk can never be granted: no disk";
    assert_eq!(never("e", read(named(&["n1"]), 1)), format!("{disk} of n1 is in the topology"));
    let of_two = format!("{disk}s of 2 nodes are in the topology");
    assert_eq!(never("f", read(NodeChoice::Any(2), 1)), of_two);
    let too_fast = "101 MB/s read from disk can never be granted: no node has more than 100 MB/s";
    assert_eq!(never("g", read(NodeChoice::Any(1), 101)), said(too_fast));
    // Each rank has its own share, and a node of those that may be had.
    let among = ["n1", "n2"].iter().map(|name| name.parse().unwrap()).collect();
    let asked = Request { among, ..cpu(NodeChoice::Any(1), 41) };
    let of_these = "41 % of a CPU can never be granted: no node has more than 40 %";
    assert_eq!(never("h", asked), said(of_these));
    let mut unequal_ranks = cpu(named(&["n3", "n1"]), 50);
    let Ask::Resources(resources) = &mut unequal_ranks.ask else { panic!() };
    resources.set_rank_cpu([50, 40].map(CpuPpm::from_percent).to_vec());
    world.reserve("i", unequal_ranks).unwrap();
    // It has that, at other times; and less of them is offered as ever.
    let refusal = refused(world.reserve("j", cpu(NodeChoice::Any(1), 60)));
    assert_eq!(refusal.reason, Reason::TooFewNodes { needs: 1, has: 0 });
    assert_eq!(refusal.earliest_start_unix_nanos, Some(at(1_100)));
    let all_of_one = refused(world.reserve("m", cpu(named(&["n1"]), 40)));
    assert!(matches!(all_of_one.reason, Reason::Lacking(_)), "{all_of_one}");
    let refusal = refused(world.reserve("k", cpu(NodeChoice::Any(2), 60)));
    assert!(matches!(refusal.reason, Reason::Never(_)), "{refusal}");
    let drained = cpu(NodeChoice::Any(4), 10);
    assert_eq!(
        refused(world.reserve("l", drained)).reason,
        Reason::TooFewNodes { needs: 4, has: 2 }
    );
}

/// Asks for the same until the latest end that a refusal of it tells, which is granted, and for a second more, which is not.
fn latest(world: &mut World, key: &str, asked: Request) -> Option<WallTime> {
    let refusal = refused(world.reserve(key, asked.clone()));
    let (end, from) = (refusal.latest_end_unix_nanos?, asked.from_unix_nanos.unwrap());
    let mut until = |end: WallTime| {
        let duration_nanos = Some(end.saturating_since(from));
        world.call("ada", Call::Consider { request: Request { duration_nanos, ..asked.clone() } })
    };
    let found = until(end);
    assert!(matches!(found, Some(Ok(Answer::Possible { .. }))), "{key}: {found:?}");
    let longer = until(end.saturating_add(Nanos::from_secs(1)));
    assert!(matches!(longer, Some(Err(CallError::Refused { .. }))), "{key}: {longer:?}");
    Some(end)
}

// Goal: who asks for a longer time than is free, perhaps by a default, learns how long it can be had.
#[test]
fn the_latest_end_is_told_until_which_it_would_be_admitted() {
    let mut world = World::star(4);
    world.reserve("a", request(named(&["n1", "n2", "n3"]), 80, 0, 5_000, 100)).unwrap();
    world.reserve("b", request(named(&["n4"]), 80, 0, 3_000, 100)).unwrap();
    world.reserve("c", request(named(&["n3"]), 60, 0, 4_000, 100)).unwrap();
    let long = |nodes, percent, mbit| request(nodes, percent, mbit, 1_000, 9_000);
    assert_eq!(latest(&mut world, "d", long(named(&["n1"]), 30, 0)), Some(at(5_000)));
    assert_eq!(latest(&mut world, "e", long(named(&["n1", "n3"]), 50, 0)), Some(at(4_000)));
    let ends = [(2, 5_000), (3, 4_000), (4, 3_000)];
    for (count, end) in ends {
        let asked = long(NodeChoice::Any(count), 50, 0);
        assert_eq!(latest(&mut world, &format!("any-{count}"), asked), Some(at(end)));
    }
    // Without an end, too.
    let ever = Request { duration_nanos: None, ..long(NodeChoice::Any(2), 50, 0) };
    assert_eq!(latest(&mut world, "f", ever), Some(at(5_000)));
    // By what is short first.
    world.reserve("k", reading(80, request(named(&["n1"]), 1, 0, 4_500, 100))).unwrap();
    world.reserve("l", reading(80, request(named(&["n2"]), 1, 0, 6_500, 100))).unwrap();
    let both = reading(30, long(NodeChoice::Any(1), 50, 0));
    assert_eq!(latest(&mut world, "m", both), Some(at(5_000)));
    // What has a deadline has all of its CPU by then, or is late.
    let malleable = Some(Malleable::new(at(10_000), CpuPpm::from_percent(30)));
    let by = Request { malleable, ..long(named(&["n1"]), 30, 0) };
    assert_eq!(latest(&mut world, "by", by), None);
    // Not where it does not fit for a moment, nor where time is not in the way.
    world.reserve("g", request(named(&["n1", "n2"]), 80, 0, 990, 100)).unwrap();
    assert_eq!(latest(&mut world, "h", long(NodeChoice::Any(3), 50, 0)), None);
    assert_eq!(latest(&mut world, "i", long(NodeChoice::Any(2), 10, 101)), None);
    assert_eq!(latest(&mut world, "j", long(NodeChoice::Any(5), 10, 0)), None);
}

#[test]
fn the_latest_end_is_no_later_than_links_and_shares_are_free() {
    let half = Share::from_percent(50).unwrap();
    let mut world = World::with(star(2), Policy { user_cpu: half, ..policy() });
    let request_of_bob = request(named(&["n1", "n2"]), 10, 60, 5_000, 100);
    let call = Call::Reserve { key: "a".parse().unwrap(), request: request_of_bob };
    world.call("bob", call).unwrap().unwrap();
    let long = |mbit| request(NodeChoice::Any(2), 10, mbit, 1_000, 9_000);
    assert_eq!(latest(&mut world, "b", long(50)), Some(at(5_000)));
    world.reserve("c", request(named(&["n1", "n2"]), 45, 0, 4_000, 100)).unwrap();
    assert_eq!(latest(&mut world, "d", long(50)), Some(at(4_000)));
}

// Goals end where the fewest resources that will do are there no longer; what runs may be made longer until then.
#[test]
fn goals_and_what_runs_are_told_the_latest_end() {
    let mut world = World::with_application(2, "");
    world.reserve("a", goal(1_100, 5_000, 100)).unwrap();
    assert_eq!(latest(&mut world, "b", goal(1_100, 4_950, 100)), Some(at(5_000)));
    let handle = world.reserve("c", request(named(&["n1"]), 10, 0, 0, 600)).unwrap();
    world.reserve("d", request(named(&["n1"]), 80, 0, 3_600, 600)).unwrap();
    let longer = request(named(&["n1"]), 50, 0, 0, 3_700);
    let refusal = refused(world.call("ada", Call::Modify { handle, request: longer }).unwrap());
    assert_eq!(refusal.latest_end_unix_nanos, Some(at(3_600)));
}

#[test]
fn no_more_is_named_than_people_read() {
    let mut world = World::star(30);
    world.reserve("a", request(NodeChoice::Any(30), 80, 0, 1_000, 300)).unwrap();
    let refusal = refused(world.reserve("b", request(NodeChoice::Any(2), 50, 0, 1_000, 300)));
    assert_eq!(refusal.lacking.len(), NAMED_MAX);
    (0..30).for_each(|node| world.disconnect(node));
    let refusal = refused(world.reserve("c", request(NodeChoice::Any(2), 50, 0, 0, 10)));
    assert_eq!((refusal.lacking.len(), refusal.unusable.len()), (0, NAMED_MAX));
}

// Nodes that a request names itself may all lack something, as may those of a change. One that has room in its time has it
// beside what there is until agents have answered, too.
#[test]
fn no_more_of_the_nodes_that_were_named_are_told_than_people_read() {
    let mut world = World::star(30);
    let names: Vec<Name> = (1..=30).map(|n| format!("n{n}").parse().unwrap()).collect();
    let on_all = |percent, from| request(NodeChoice::Named(names.clone()), percent, 0, from, 100);
    let told = |refusal: Refusal| match refusal.reason {
        Reason::Lacking(lacks) => lacks.len(),
        other => panic!("{other:?}"),
    };
    let handle = world.reserve("a", on_all(60, 300)).unwrap();
    world.reserve("b", on_all(60, 400)).unwrap();
    assert_eq!(told(refused(world.reserve("c", on_all(50, 300)))), NAMED_MAX);
    let change = |percent| Call::Modify { handle, request: on_all(percent, 350) };
    assert_eq!(told(refused(world.call("ada", change(41)).unwrap())), NAMED_MAX);
    assert!(world.call("ada", change(40)).unwrap().is_ok());
}

#[test]
fn a_busy_link_is_named_with_what_it_lacks_and_since_when() {
    let mut world = World::star(2);
    world.reserve("a", request(named(&["n1", "n2"]), 10, 60, 1_000, 100)).unwrap();
    let refusal = refused(world.reserve("b", request(NodeChoice::Any(2), 10, 60, 900, 200)));
    let Reason::LinksBusy { link, .. } = &refusal.reason else { panic!("{refusal}") };
    assert_eq!(refusal.lacking, [lacking(&format!("link {link}"), "20 Mbit/s", 1_000)]);
    let words = refusal.to_string();
    assert!(words.starts_with("each flow needs 60 Mbit/s, and link "), "{words}");
    assert!(words.ends_with("lacks 20 Mbit/s, first at 2026-01-01T00:16:40Z"), "{words}");
}

#[test]
fn a_goal_that_is_refused_says_where_and_when_too() {
    let mut world = World::with_application(2, "");
    world.reserve("a", goal(1_100, 5_000, 100)).unwrap();
    let refusal = refused(world.reserve("b", goal(1_100, 4_950, 100)));
    let Reason::Goal(refusal::Reason::LinkBusy(short)) = &refusal.reason else {
        panic!("{refusal}")
    };
    let [lacks] = refusal.lacking.as_slice() else { panic!("{refusal}") };
    assert_eq!(lacks.resource, format!("link {}", short.link));
    assert_eq!(lacks.first_unix_nanos, at(5_000));
    world.reserve("c", request(named(&["n2"]), 90, 0, 8_000, 100)).unwrap();
    let refusal = refused(world.reserve("d", goal(3_000, 7_950, 100)));
    assert!(matches!(&refusal.reason, Reason::Goal(refusal::Reason::NodesBusy(_))), "{refusal}");
    assert_eq!(refusal.lacking, [lacking("CPU of n2", "10 %", 8_000)]);
}

#[test]
fn refusals_of_before_are_read() {
    let before = r#"{"reason": {"too-few-nodes": {"needs": 3, "has": 1}}}"#;
    let refusal: Refusal = serde_json::from_str(before).unwrap();
    assert_eq!(refusal, Reason::TooFewNodes { needs: 3, has: 1 }.into());
    assert_eq!(
        serde_json::to_string(&refusal).unwrap(),
        before.replace(": ", ":").replace(", ", ",")
    );
}

/// Asks for each offer of less at the time of the request: all would be granted.
fn offers(world: &mut World, key: &str, request: Request) -> Vec<String> {
    let refusal = refused(world.reserve(key, request.clone()));
    for offer in &refusal.resource_offers {
        let request = Request { ask: Ask::Resources(offer.resources.clone()), ..request.clone() };
        let answer = world.call("ada", Call::Consider { request });
        assert!(matches!(answer, Some(Ok(Answer::Possible { .. }))), "{offer}: {answer:?}");
    }
    refusal.resource_offers.iter().map(ResourceOffer::to_string).collect()
}

#[test]
fn less_of_the_resources_is_offered_at_the_same_time() {
    let mut world = World::star(6);
    world.reserve("a", request(named(&["n1", "n2"]), 80, 0, 1_000, 300)).unwrap();
    let five = |mbit| request(NodeChoice::Any(5), 50, mbit, 1_000, 100);
    assert_eq!(offers(&mut world, "b", five(0)), ["4 nodes"]);
    assert_eq!(offers(&mut world, "c", five(30)), ["4 nodes"], "three flows on each link");
    // Four flows on each link, where three fit: one node less, or as much as the links hold.
    let wide = request(NodeChoice::Any(4), 10, 34, 1_000, 100);
    assert_eq!(offers(&mut world, "d", wide), ["3 nodes", "33.3 Mbit/s for each flow"]);
    let named_wide = request(named(&["n3", "n4"]), 10, 101, 1_000, 100);
    assert_eq!(offers(&mut world, "e", named_wide), ["100 Mbit/s for each flow"]);
    // Less bandwidth is no help where CPU is short, nor where a node does not exist for it.
    let busy = request(named(&["n1", "n3"]), 50, 10, 1_000, 100);
    assert_eq!(offers(&mut world, "f", busy), [""; 0]);
}

#[test]
fn less_keeps_to_the_numbers_that_a_pattern_has() {
    let mut world = World::star(16);
    let mut asked = request(NodeChoice::Any(16), 10, 30, 1_000, 100);
    let Ask::Resources(resources) = &mut asked.ask else { panic!() };
    resources.pattern = Some(Pattern::Hypercube);
    assert_eq!(offers(&mut world, "a", asked), ["8 nodes", "25 Mbit/s for each flow"]);
}

#[test]
fn less_keeps_to_the_share_of_the_user() {
    let half = Share::from_percent(50).unwrap();
    let limited = Policy { user_cpu: half, user_bandwidth: half, ..policy() };
    let mut world = World::with(star(2), limited);
    let wide = request(named(&["n1", "n2"]), 1, 60, 2_000, 100);
    assert_eq!(offers(&mut world, "a", wide), ["50 Mbit/s for each flow"]);
    let both = request(NodeChoice::Any(2), 60, 0, 2_000, 100);
    assert_eq!(offers(&mut world, "b", both), ["1 node"]);
}

/// Asks for the same at the earliest start that a refusal of it tells: it would be granted.
fn earliest(world: &mut World, key: &str, asked: Request) -> Option<WallTime> {
    let refusal = refused(world.reserve(key, asked.clone()));
    let from_unix_nanos = refusal.earliest_start_unix_nanos;
    if from_unix_nanos.is_some() {
        let request = Request { from_unix_nanos, ..asked };
        let answer = world.call("ada", Call::Consider { request });
        assert!(matches!(answer, Some(Ok(Answer::Possible { .. }))), "{key}: {answer:?}");
    }
    from_unix_nanos
}

#[test]
fn no_start_is_told_that_is_further_ahead_than_may_be_asked_for() {
    let ahead_max_nanos = Nanos::from_secs(7_200);
    let mut world = World::with(star(2), Policy { ahead_max_nanos, ..policy() });
    let all = |node, from, seconds| request(named(&[node]), 100, 0, from, seconds);
    world.reserve("a", all("n1", 1_000, 6_200)).unwrap();
    world.reserve("b", all("n2", 1_000, 6_201)).unwrap();
    assert_eq!(earliest(&mut world, "c", all("n1", 1_500, 60)), Some(at(7_200)));
    assert_eq!(earliest(&mut world, "d", all("n2", 1_500, 60)), None);
    let either = request(NodeChoice::Any(1), 100, 0, 1_500, 60);
    assert_eq!(earliest(&mut world, "e", either), Some(at(7_200)));
    let both = request(NodeChoice::Any(2), 100, 0, 1_500, 60);
    assert_eq!(earliest(&mut world, "f", both), None);
}

#[test]
fn no_start_is_told_from_which_what_is_malleable_would_be_late() {
    let mut world = World::star(1);
    world.reserve("a", request(named(&["n1"]), 100, 0, 1_000, 300)).unwrap();
    let by = |seconds| {
        let (by_unix_nanos, cpu_most_ppm) = (at(seconds), CpuPpm::from_percent(80));
        let malleable = Some(Malleable::new(by_unix_nanos, cpu_most_ppm));
        Request { malleable, ..request(named(&["n1"]), 80, 0, 1_000, 100) }
    };
    assert_eq!(earliest(&mut world, "b", by(1_400)), Some(at(1_300)));
    assert_eq!(earliest(&mut world, "c", by(1_399)), None);
}

/// All of both nodes of a world of two, at so many seconds.
fn both(from: u64) -> Request {
    request(named(&["n1", "n2"]), 100, 0, from, 60)
}

// Goal: what is offered on a node that is away is granted to who asks for it, at once and when people have read it.
#[test]
fn a_start_on_a_node_that_is_away_is_told_that_is_granted_a_minute_later_still() {
    let mut world = World::star(2);
    world.disconnect(0);
    let refusal = refused(world.reserve("a", both(0)));
    assert_eq!(refusal.reason, Reason::NodesAway(vec!["n1".parse().unwrap()]));
    // Agents are told ten minutes ahead, and those that are away cannot be.
    let told = earliest(&mut world, "b", both(0)).unwrap();
    assert_eq!(told.saturating_since(at(660)), Nanos::new(1));
    let any = request(NodeChoice::Any(2), 100, 0, 0, 60);
    assert_eq!(earliest(&mut world, "c", any.clone()), Some(told));
    world.pass(60);
    let request = Request { from_unix_nanos: Some(told), ..both(0) };
    assert!(world.reserve("d", request).is_ok());
    // What others have there then is in the way, and nothing after it.
    assert_eq!(earliest(&mut world, "e", both(0)), Some(told.saturating_add(Nanos::from_secs(60))));
    world.connect(0);
    assert!(world.reserve("f", Request { from_unix_nanos: None, ..any }).is_ok());
}

// Goal: the longer a node is away the further ahead it counts, for what is asked for as for what is offered.
#[test]
fn a_node_that_is_away_for_longer_counts_for_what_is_further_ahead() {
    let mut world = World::star(2);
    world.disconnect(0);
    world.pass(3_600);
    for (key, too_soon) in [("a", 3_600), ("b", 7_200), ("c", 5 * 3_600 - 1)] {
        let refusal = refused(world.reserve(key, both(too_soon)));
        assert_eq!(refusal.reason, Reason::NodesAway(vec!["n1".parse().unwrap()]));
        assert_eq!(refusal.earliest_start_unix_nanos, Some(at(3_660 + 4 * 3_660)));
    }
    assert!(world.reserve("d", both(5 * 3_600)).is_ok());
    // Whoever is back and goes once more has not been away for long.
    world.connect(0);
    world.disconnect(0);
    assert!(world.reserve("e", both(3_600 + 601)).is_ok());
}

// Goal: who may have any nodes is given those that are there. Method: the one that is away has nothing else reserved.
#[test]
fn nodes_that_are_there_are_given_before_those_that_are_away() {
    let mut world = World::star(2);
    world.reserve("a", request(named(&["n2"]), 10, 0, 3_600, 60)).unwrap();
    let has = |world: &mut World, key: &str, nodes| {
        let asked = request(NodeChoice::Any(nodes), 10, 0, 7_200, 60);
        let handle = world.reserve(key, asked).unwrap();
        let grant = world.engine.book().reservations()[&handle].grant.clone();
        grant.unwrap().nodes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(has(&mut world, "b", 1), ["n1"]);
    world.disconnect(0);
    assert_eq!(has(&mut world, "c", 1), ["n2"]);
    assert_eq!(has(&mut world, "d", 2), ["n1", "n2"]);
}

#[test]
fn what_has_begun_is_told_no_later_start() {
    let mut world = World::star(1);
    let handle = world.reserve("a", request(named(&["n1"]), 50, 0, 0, 600)).unwrap();
    world.reserve("b", request(named(&["n1"]), 40, 0, 3_600, 600)).unwrap();
    let longer = request(named(&["n1"]), 70, 0, 0, 3_700);
    let refusal = refused(world.call("ada", Call::Modify { handle, request: longer }).unwrap());
    assert!(matches!(refusal.reason, Reason::Lacking(_)), "{refusal}");
    assert_eq!(refusal.earliest_start_unix_nanos, None);
}

/// Two nodes, an application, and users of whom each may have 40 Mbit/s of all that is sent.
fn world_of_shares() -> World {
    let user_bandwidth = Share::from_percent(20).unwrap();
    let mut world = World::with(star(2), Policy { user_bandwidth, ..policy() });
    let (application, profile) = application();
    let (application, profile) = (Box::new(application), Box::new(profile));
    world.call("root", Call::Register { application, profile }).unwrap().unwrap();
    world
}

// The fastest that the links hold, 80 Mbit/s for each of two flows, is more than a user may have. What is slower and
// fast enough is granted.
#[test]
fn a_goal_is_planned_with_what_its_user_may_have() {
    let mut world = world_of_shares();
    let handle = world.reserve("a", goal(2_500, 2_000, 100)).unwrap();
    let grant = world.engine.book().reservations()[&handle].grant.clone().unwrap();
    assert_eq!(grant.bits_per_second, BitsPerSecond::from_mbit(20));
    // Nothing is left of it then.
    assert_eq!(earliest(&mut world, "b", goal(2_500, 2_050, 100)), Some(at(2_100)));
}

#[test]
fn what_is_offered_instead_of_a_goal_is_no_more_than_its_user_may_have() {
    let mut world = world_of_shares();
    // The links hold the first, and not the user's share. Nobody can have the second.
    for (key, millis) in [("a", 1_100), ("b", 500)] {
        let asked = goal(millis, 2_000, 100);
        let refusal = refused(world.reserve(key, asked.clone()));
        let share = "your share of bandwidth (40 Mbit/s in all) lacks ";
        assert_eq!(refusal.to_string().starts_with(share), key == "a", "{refusal}");
        assert_eq!(refusal.earliest_start_unix_nanos, None);
        let [offer] = refusal.counter_offers.as_slice() else { panic!("{refusal:?}") };
        assert_eq!(offer.change, Change::LongerTime);
        assert_eq!(offer.bandwidth_bits_per_second, BitsPerSecond::from_mbit(20));
        let Ask::Goal { application, .. } = asked.ask.clone() else { panic!() };
        let ask = Ask::Goal { application, goal: offer.goal.clone() };
        let answer = world.call("ada", Call::Consider { request: Request { ask, ..asked } });
        assert!(matches!(answer, Some(Ok(Answer::Possible { .. }))), "{answer:?}");
    }
}
