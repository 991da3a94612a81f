//! Web sites and their nodes as the engine records them: what is refused, what a restart knows, and when a
//! site is gone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_engine::book::Book;
use keeptime_engine::{Answer, Call, CallError, Policy};
use keeptime_model::drain::NodeSet;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, NodeChoice, Request};
use keeptime_model::site::{BalancerPlace, Guarantee, SiteNode, SiteSpec};
use keeptime_model::units::{CpuPpm, Share};
use world::{World, policy, refused, request, star};

/// One of the world's operators.
const OPERATOR: &str = "root";

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn spec(site: &str, hard: u32) -> SiteSpec {
    let place: BalancerPlace = format!("haproxy:/run/haproxy.sock/{site}").parse().unwrap();
    SiteSpec {
        name: name(site),
        guarantee: Guarantee { hard, soft: hard, max: hard },
        priority: 1,
        cpu_ppm: Some(CpuPpm::from_percent(60)),
        services: vec![],
        port: 80,
        drain_most_nanos: None,
        balancers: vec![place],
    }
}

fn node(site: &str, node: &str) -> Request {
    let cpu_ppm = CpuPpm::from_percent(60);
    let (site, node, services) = (name(site), name(node), vec![]);
    Request::new(Ask::SiteNode(SiteNode { site, node, cpu_ppm, services }))
}

fn add(world: &mut World, site: &str, hard: u32) -> Result<Answer, CallError> {
    world.call(OPERATOR, Call::AddSite { site: Box::new(spec(site, hard)) }).unwrap()
}

fn remove(world: &mut World, site: &str) -> Result<Answer, CallError> {
    world.call(OPERATOR, Call::RemoveSite { site: name(site) }).unwrap()
}

fn field<T: std::fmt::Debug>(outcome: Result<T, CallError>) -> String {
    match outcome.unwrap_err() {
        CallError::Invalid(invalid) => invalid.field,
        other => panic!("{other}"),
    }
}

fn serves(book: &Book, node: &str) -> Option<(Handle, String)> {
    book.site_node(&name(node)).map(|(handle, held)| (handle, held.site.to_string()))
}

#[test]
fn a_node_changes_hands_without_being_free_between() {
    let mut world = World::star(2);
    add(&mut world, "shop", 1).unwrap();
    add(&mut world, "blog", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    world.reserve("b", node("shop", "n2")).unwrap();
    let call = Call::Modify { handle, request: node("blog", "n1") };
    world.call("ada", call).unwrap().unwrap();
    assert_eq!(serves(world.engine.book(), "n1"), Some((handle, "blog".into())));
    assert_eq!(world.kinds()[2..], ["granted", "started", "granted", "started", "modified"]);
    assert!(world.reserve("c", request(NodeChoice::Any(2), 50, 0, 0, 60)).is_err());
    assert_eq!(world.replayed().book(), world.engine.book());
    world.restart();
    assert_eq!(serves(world.engine.book(), "n1"), Some((handle, "blog".into())));
    let snapshot = world.engine.book().snapshot();
    let restored = Book::restore(snapshot).unwrap();
    assert_eq!(serves(&restored, "n1"), Some((handle, "blog".into())));
    assert_eq!(restored.sites().len(), 2);
}

#[test]
fn what_a_site_has_by_its_hard_guarantee_goes_to_no_other() {
    let mut world = World::star(3);
    add(&mut world, "shop", 2).unwrap();
    add(&mut world, "blog", 1).unwrap();
    let first = world.reserve("a", node("shop", "n1")).unwrap();
    let second = world.reserve("b", node("shop", "n2")).unwrap();
    let take = |world: &mut World, handle, from| {
        let request = node("blog", from);
        world.call("ada", Call::Modify { handle, request }).unwrap()
    };
    assert_eq!(field(take(&mut world, first, "n1")), "ask.site-node.node");
    world.reserve("c", node("shop", "n3")).unwrap();
    world.disconnect(2);
    assert_eq!(field(take(&mut world, first, "n1")), "ask.site-node.node", "n3 may be lost");
    world.connect(2);
    take(&mut world, first, "n1").unwrap();
    assert_eq!(field(take(&mut world, second, "n2")), "ask.site-node.node");
    remove(&mut world, "shop").unwrap();
    take(&mut world, second, "n2").expect("a site that leaves keeps nothing");
}

// Goal: nothing that happens while agents are asked takes a site below its hard guarantee. Method: of two nodes one is
// offered to another site, and before its agent has answered the other is lost, or offered as well.
#[test]
fn a_site_keeps_its_hard_guarantee_whatever_happens_while_agents_are_asked() {
    for is_lost in [true, false] {
        let mut world = World::star(3);
        add(&mut world, "shop", 1).unwrap();
        add(&mut world, "blog", 1).unwrap();
        let first = world.reserve("a", node("shop", "n1")).unwrap();
        let second = world.reserve("b", node("shop", "n2")).unwrap();
        let take = |handle, from| Call::Modify { handle, request: node("blog", from) };
        let taken = world.begin("ada", take(first, "n1"));
        let other = if is_lost { Call::Cancel { handle: second } } else { take(second, "n2") };
        let other = world.begin("ada", other);
        assert_eq!(world.answers.get(&taken), None, "its agent is asked");
        world.pump();
        let answers = [taken, other].map(|ticket| world.answers[&ticket].clone());
        let granted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(granted, 1, "{answers:?}");
        let refused = answers.iter().find(|answer| answer.is_err()).unwrap();
        assert_eq!(field(refused.clone()), "ask.site-node.node");
        let served = ["n1", "n2"].map(|node| serves(world.engine.book(), node));
        let of_shop = served.iter().flatten().filter(|(_, site)| site == "shop");
        assert_eq!(of_shop.count(), 1, "{served:?}");
        assert_eq!(world.replayed().book(), world.engine.book());
    }
}

// Goal: a site that is gone gets no node, which nobody could drain. Method: it is removed while an agent is asked about its first.
#[test]
fn a_node_that_is_offered_to_a_site_which_is_removed_meanwhile_is_free_again() {
    let mut world = World::star(1);
    add(&mut world, "shop", 1).unwrap();
    let call = Call::Reserve { key: "a".parse().unwrap(), request: node("shop", "n1") };
    let asked = world.begin("ada", call);
    remove(&mut world, "shop").unwrap();
    assert_eq!(field(world.answers[&asked].clone()), "ask.site-node.site");
    assert_eq!(world.kinds(), ["site-added", "site-leaving", "site-removed"]);
    assert_eq!((serves(world.engine.book(), "n1"), world.jobs_of(0)), (None, vec![]));
    world.reserve("b", request(NodeChoice::Any(1), 60, 0, 0, 60)).unwrap();
}

// All nodes of all sites have one owner: what one user may have would keep sites from what they are guaranteed.
#[test]
fn what_one_user_may_have_does_not_limit_sites() {
    let tenth = Share::from_percent(10).unwrap();
    let limited = Policy { user_cpu: tenth, user_reservations: 1, ..policy() };
    let mut world = World::with(star(2), limited);
    add(&mut world, "shop", 1).unwrap();
    add(&mut world, "blog", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    world.reserve("b", node("shop", "n2")).unwrap();
    let call = Call::Modify { handle, request: node("blog", "n1") };
    world.call("ada", call).unwrap().unwrap();
    let request = request(NodeChoice::Any(1), 30, 0, 0, 60);
    let call = Call::Reserve { key: "c".parse().unwrap(), request };
    let error = world.call("bob", call).unwrap().unwrap_err().to_string();
    assert!(error.contains("your share of CPU (20 % in all) lacks 10 %"), "{error}");
    world.restart();
    let served = ["n1", "n2"].map(|node| serves(world.engine.book(), node).map(|(_, site)| site));
    assert_eq!(served, [Some("blog".to_string()), Some("shop".into())]);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut world = World::star(2);
    let call = Call::AddSite { site: Box::new(spec("shop", 1)) };
    let error = world.call("ada", call).unwrap().unwrap_err();
    assert!(matches!(error, CallError::OperatorsOnly { .. }), "{error}");
    add(&mut world, "shop", 1).unwrap();
    let call = Call::RemoveSite { site: "shop".parse().unwrap() };
    let error = world.call("ada", call).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "only operators may remove web sites");
    assert_eq!(field(add(&mut world, "blog", 2)), "sites.blog.hard");
    assert_eq!(field(world.reserve("a", node("blog", "n1"))), "ask.site-node.site");
    world.reserve("b", node("shop", "n1")).unwrap();
    assert_eq!(field(world.reserve("c", node("shop", "n1"))), "ask.site-node.node");
    assert_eq!(field(remove(&mut world, "blog")), "site");
    add(&mut world, "shop", 1).unwrap();
    assert_eq!(
        world.kinds(),
        ["site-added", "granted", "started"],
        "the same again is nothing new"
    );
}

// Goal: two sites that take each other's nodes out of one backend are not accepted, one that only leaves included.
#[test]
fn a_backend_is_one_sites() {
    let mut world = World::star(3);
    add(&mut world, "shop", 1).unwrap();
    let mut add_behind = |site: &str, of: &str| {
        let site = Box::new(SiteSpec { balancers: spec(of, 1).balancers, ..spec(site, 1) });
        world.call(OPERATOR, Call::AddSite { site }).unwrap()
    };
    assert_eq!(field(add_behind("blog", "shop")), "balancers");
    add_behind("blog", "blog").unwrap();
    assert_eq!(field(add_behind("shop", "blog")), "balancers", "described anew");
    add_behind("shop", "shop").unwrap();
    world.reserve("a", node("shop", "n1")).unwrap();
    remove(&mut world, "shop").unwrap();
    let site = Box::new(SiteSpec { balancers: spec("shop", 1).balancers, ..spec("wiki", 1) });
    let call = Call::AddSite { site };
    assert_eq!(field(world.call(OPERATOR, call.clone()).unwrap()), "balancers", "it drains");
    let held = serves(world.engine.book(), "n1").unwrap().0;
    world.call("ada", Call::Cancel { handle: held }).unwrap().unwrap();
    world.call(OPERATOR, call).unwrap().unwrap();
}

// Goal: what was decided before others were lost, or fell silent, takes no site below its hard guarantee.
#[test]
fn a_site_gives_back_what_it_can_do_without() {
    let mut world = World::star(3);
    add(&mut world, "shop", 1).unwrap();
    let handles = ["n1", "n2", "n3"].map(|of| world.reserve(of, node("shop", of)).unwrap());
    let spare = |world: &mut World, by, handle| world.call(by, Call::Spare { handle }).unwrap();
    let error = spare(&mut world, "ada", handles[0]).unwrap_err();
    assert!(matches!(error, CallError::OperatorsOnly { .. }), "{error}");
    spare(&mut world, OPERATOR, handles[0]).unwrap();
    world.disconnect(2);
    assert_eq!(field(spare(&mut world, OPERATOR, handles[1])), "handle", "n3 may be lost");
    world.connect(2);
    spare(&mut world, OPERATOR, handles[1]).unwrap();
    assert_eq!(field(spare(&mut world, OPERATOR, handles[2])), "handle", "it is the last");
    let job = world.reserve("job", request(NodeChoice::Any(1), 50, 0, 0, 60)).unwrap();
    assert_eq!(field(spare(&mut world, OPERATOR, job)), "handle", "it serves no site");
    remove(&mut world, "shop").unwrap();
    spare(&mut world, OPERATOR, handles[2]).expect("a site that leaves keeps nothing");
}

#[test]
fn a_site_is_gone_when_its_last_node_is_given_back() {
    let mut world = World::star(2);
    add(&mut world, "shop", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    remove(&mut world, "shop").unwrap();
    assert!(world.engine.book().sites()[&name("shop")].is_leaving);
    assert_eq!(field(world.reserve("b", node("shop", "n2"))), "ask.site-node.site");
    assert_eq!(field(add(&mut world, "shop", 1)), "name", "not before it is gone");
    world.call("ada", Call::Cancel { handle }).unwrap().unwrap();
    assert!(world.engine.book().sites().is_empty());
    assert_eq!(world.kinds()[3..], ["site-leaving", "cancelled", "site-removed"]);
    assert_eq!(serves(world.engine.book(), "n1"), None);
    add(&mut world, "shop", 2).unwrap();
    remove(&mut world, "shop").unwrap();
    assert!(world.engine.book().sites().is_empty(), "it had no nodes");
}

#[test]
fn a_site_is_gone_when_another_has_its_last_node() {
    let mut world = World::star(2);
    add(&mut world, "shop", 1).unwrap();
    add(&mut world, "blog", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    remove(&mut world, "shop").unwrap();
    let call = Call::Modify { handle, request: node("blog", "n1") };
    world.call("ada", call).unwrap().unwrap();
    assert_eq!(world.kinds()[4..], ["site-leaving", "modified", "site-removed"]);
    assert!(!world.engine.book().sites().contains_key(&name("shop")));
    assert_eq!(world.replayed().book(), world.engine.book());
}

// Goal: sites get no further drained node, whether it is a spare or another site's; one that they have stays theirs, as they
// are described by now.
#[test]
fn a_site_keeps_a_drained_node_and_gets_none() {
    let mut world = World::star(3);
    add(&mut world, "shop", 1).unwrap();
    add(&mut world, "blog", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    world.reserve("c", node("shop", "n3")).unwrap();
    let (nodes, reason) = (NodeSet::All, "new disk".parse().unwrap());
    world.call(OPERATOR, Call::Drain { nodes, reason }).unwrap().unwrap();
    let change =
        |world: &mut World, request| world.call("ada", Call::Modify { handle, request }).unwrap();
    let words = refused(world.reserve("b", node("shop", "n2"))).to_string();
    assert_eq!(words, "n2 is drained (root: new disk)");
    let words = refused(change(&mut world, node("blog", "n1"))).to_string();
    assert_eq!(words, "n1 is drained (root: new disk)");
    let Ask::SiteNode(asked) = node("shop", "n1").ask else { panic!() };
    let asked = SiteNode { cpu_ppm: CpuPpm::from_percent(80), ..asked };
    change(&mut world, Request::new(Ask::SiteNode(asked))).unwrap();
    assert_eq!(serves(world.engine.book(), "n1"), Some((handle, "shop".into())));
}

// Its users would meet a job: a node leaves its site when it is drained, and by an operator not otherwise.
#[test]
fn a_node_that_serves_a_site_is_not_made_a_job() {
    let mut world = World::star(1);
    add(&mut world, "shop", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    let request = request(NodeChoice::Any(1), 50, 0, 0, 60);
    let error = world.call(OPERATOR, Call::Modify { handle, request }).unwrap().unwrap_err();
    let words = "ask: \"resources\" is not accepted; expected site-node: n1 serves shop by it";
    assert_eq!(error.to_string(), words);
    assert_eq!(serves(world.engine.book(), "n1"), Some((handle, "shop".into())));
}

// Goal: a reservation that goes from one node of a site to another leaves the first, for those who ask the broker now and for
// the one that begins from its snapshot.
#[test]
fn who_serves_another_node_than_before_serves_the_first_no_more() {
    let mut world = World::star(2);
    add(&mut world, "shop", 1).unwrap();
    let handle = world.reserve("a", node("shop", "n1")).unwrap();
    let call = Call::Modify { handle, request: node("shop", "n2") };
    world.call("ada", call).unwrap().unwrap();
    let restored = Book::restore(world.engine.book().snapshot()).unwrap();
    for book in [world.engine.book(), world.replayed().book(), &restored] {
        assert_eq!(serves(book, "n1"), None);
        assert_eq!(serves(book, "n2"), Some((handle, "shop".into())));
    }
}
