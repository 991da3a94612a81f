//! A real HAProxy.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_balancers::balancer::{Balancer, BalancerError};
use keeptime_balancers::front::Front;
use keeptime_balancers::haproxy::HaProxy;
use keeptime_balancers::traffic::{Change, Traffic, Weight};
use keeptime_balancers::transfer::{Progress, Transfer};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use world::{
    FULL, HaProxyDaemon, Load, Node, assert_none_lost, assert_waits_for_the_last_request, haproxy,
    join, look, posts, settle, share_out, three_nodes, transfers, wait_until,
};

/// Two sites; the first has the first two of three nodes, the second the third.
fn two_sites(answer_after: Duration) -> (Vec<Node>, HaProxyDaemon, [Front; 2]) {
    let nodes = three_nodes(answer_after);
    let world = haproxy(&["shop", "blog"], &nodes.iter().collect::<Vec<_>>());
    let mut fronts = ["shop", "blog"].map(|site| world.front(site));
    share_out(&nodes, &mut fronts);
    (nodes, world, fronts)
}

#[test]
fn what_it_is_told_it_does_and_says() {
    let node = Node::start("n1", Duration::ZERO);
    let world = haproxy(&["shop"], &[&node]);
    let mut balancer = world.balancer("shop");
    let name = &node.server.name;
    let half = Traffic::On(Weight::try_from(50).unwrap());
    assert_eq!(balancer.observe().unwrap().servers[name].traffic, Traffic::Off, "disabled");
    for traffic in [half, Traffic::Drain, Traffic::Off, Traffic::On(FULL), Traffic::Drain, half] {
        balancer.tell(&[Change { server: name.clone(), traffic }]).unwrap();
        assert_eq!(balancer.observe().unwrap().servers[name].traffic, traffic);
    }
    assert_none_lost(&posts(&world.sites, 100.0, 200).join().unwrap());
    let seen = balancer.observe().unwrap().servers[name];
    assert_eq!((seen.in_flight, seen.served), (0, Some(node.answered())));
}

#[test]
fn no_post_is_lost_over_many_transfers() {
    let (nodes, world, mut fronts) = two_sites(Duration::from_millis(5));
    let load = Load::start(&world.sites, 300.0);
    transfers(50, &nodes, &mut fronts);
    wait_until("all nodes have answered", || nodes.iter().all(|node| node.answered() > 0));
    assert_none_lost(&load.end());
}

#[test]
fn a_transfer_waits_for_the_last_request_of_the_node() {
    let (nodes, world, mut fronts) = two_sites(Duration::from_millis(500));
    let load = Load::start(&world.sites[..1], 20.0);
    assert_waits_for_the_last_request(&nodes, &mut fronts);
    assert_none_lost(&load.end());
}

#[test]
fn a_balancer_that_restarts_is_told_again() {
    let (nodes, mut world, [mut shop, mut blog]) = two_sites(Duration::ZERO);
    world.daemon.crash();
    // Its workers end a moment after it; until then they may still accept a connection.
    wait_until("its end is seen", || {
        matches!(shop.reconcile()[0].observed, Err(BalancerError::Ended { .. }))
    });
    world.daemon.start_again();
    let told = &shop.reconcile()[0].told;
    assert_eq!(told.len(), 2, "the configuration has all nodes disabled: {told:?}");
    settle(&mut blog);
    assert_none_lost(&posts(&world.sites, 200.0, 200).join().unwrap());
    assert!(nodes.iter().all(|node| node.answered() > 0));
}

#[test]
fn a_reload_forgets_no_drain_and_hides_no_request() {
    let (nodes, world, _) = two_sites(Duration::from_secs(3));
    let mut fronts = ["shop", "blog"].map(|site| world.front(site));
    share_out(&nodes, &mut fronts);
    let [mut shop, mut blog] = fronts;
    let load = posts(&world.sites[..1], 20.0, 400);
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    look(&mut transfer, &mut shop);
    // The master starts a new worker; the old one goes on with its requests, where nobody can ask it.
    let before = world.worker();
    world.keep_state();
    world.daemon.signal(Signal::SIGUSR2);
    wait_until("a new worker answers", || world.worker().is_some_and(|now| Some(now) != before));
    let mut held_up = false;
    wait_until("the transfer ends", || {
        let working = nodes[0].working();
        let Some(Progress { unknown, .. }) = look(&mut transfer, &mut shop) else {
            assert_eq!(working, 0, "it has left while the old process had a request there");
            return true;
        };
        held_up |= unknown.iter().any(|why| why.contains("before a reload"));
        false
    });
    assert!(held_up);
    join(&nodes[0], &mut blog);
    assert_none_lost(&load.join().unwrap());
}

// Goal: what a process of before a reload has in flight is not forgotten with the broker that saw the reload. Method: a
// balancer that is asked for the first time after it, as by the next broker.
#[test]
fn a_process_of_before_a_reload_is_found_by_who_asks_after_it() {
    let (nodes, world, _fronts) = two_sites(Duration::ZERO);
    nodes.iter().for_each(|node| node.hold(true));
    let load = posts(&world.sites[..1], 40.0, 250);
    wait_until("a node works", || nodes.iter().any(|node| node.working() > 0));
    assert_eq!(world.balancer("shop").observe().unwrap().lingering, 0);
    let before = world.worker();
    world.daemon.signal(Signal::SIGUSR2);
    wait_until("a new worker answers", || world.worker().is_some_and(|now| Some(now) != before));
    let mut next = world.balancer("shop");
    for _ in 0..3 {
        assert_eq!(next.observe().unwrap().lingering, 1);
    }
    nodes.iter().for_each(|node| node.hold(false));
    // The new process serves nothing before it is told.
    load.join().unwrap();
    wait_until("it has ended", || next.observe().unwrap().lingering == 0);
}

#[test]
fn a_node_that_dies_while_it_drains_is_taken_out() {
    let (nodes, world, [mut shop, mut blog]) = two_sites(Duration::from_millis(100));
    let load = Load::start(&world.sites[..1], 50.0);
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    look(&mut transfer, &mut shop);
    nodes[0].die();
    for front in [&mut shop, &mut blog] {
        front.want(&nodes[0].server.name, Traffic::Off);
        settle(front);
    }
    load.end();
    // What it worked on is lost; nothing else is.
    assert_none_lost(&posts(&world.sites, 100.0, 300).join().unwrap());
    for site in ["shop", "blog"] {
        let seen = world.balancer(site).observe().unwrap();
        assert_eq!(seen.servers[&nodes[0].server.name].traffic, Traffic::Off);
    }
}

#[test]
fn a_server_that_its_checks_find_down_is_told_of_as_long_as_it_is_to_serve() {
    let (nodes, world, [mut shop, _blog]) = two_sites(Duration::ZERO);
    let node = &nodes[0].server.name;
    let down = || world.balancer("shop").observe().unwrap().down;
    assert!(down().is_empty(), "all that serve, and those that do not");
    // As its checks would say.
    world.command(&format!("set server shop/{node} health down"));
    assert_eq!(down(), BTreeSet::from([node.clone()]));
    shop.want(node, Traffic::Off);
    settle(&mut shop);
    assert!(down().is_empty());
}

#[test]
fn a_transfer_that_is_hurried_ends_what_is_left_of_its_node_and_of_no_other() {
    let (nodes, world, [mut shop, _blog]) = two_sites(Duration::ZERO);
    nodes.iter().for_each(|node| node.hold(true));
    let load = posts(&world.sites[..1], 40.0, 500);
    wait_until("both nodes work", || nodes[..2].iter().all(|node| node.working() > 0));
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    let first = look(&mut transfer, &mut shop);
    assert!(matches!(first, Some(Progress { in_flight: 1.., .. })), "{first:?}");
    transfer.hurry();
    wait_until("it has left", || look(&mut transfer, &mut shop).is_none());
    let left = transfer.unfinished().unwrap();
    assert!(left.in_flight > 0 && left.going_on.is_empty(), "{left:?}");
    let seen =
        |at: usize| world.balancer("shop").observe().unwrap().servers[&nodes[at].server.name];
    wait_until("it is ended", || seen(0).in_flight == 0);
    assert_eq!((seen(0).traffic, seen(1).traffic), (Traffic::Off, Traffic::On(FULL)));
    assert!(seen(1).in_flight > 0);
    nodes.iter().for_each(|node| node.hold(false));
    let counts = load.join().unwrap().all.counts;
    let sent = counts.intended - counts.not_sent;
    assert!(counts.answered > 0 && counts.answered < sent, "{counts:?}");
}

#[test]
fn a_transfer_that_is_given_up_leaves_the_node_where_it_was() {
    let (nodes, world, [mut shop, mut blog]) = two_sites(Duration::from_millis(300));
    let load = Load::start(&world.sites[..1], 50.0);
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    look(&mut transfer, &mut shop);
    transfer.undo(&mut shop);
    [&mut shop, &mut blog].into_iter().for_each(settle);
    assert_none_lost(&load.end());
    let traffic = |site| {
        let seen = world.balancer(site).observe().unwrap();
        seen.servers[&nodes[0].server.name].traffic
    };
    assert_eq!((traffic("shop"), traffic("blog")), (Traffic::On(FULL), Traffic::Off));
}

#[test]
fn several_balancers_of_one_site_are_all_waited_for() {
    let nodes: Vec<_> =
        ["n1", "n2"].map(|name| Node::start(name, Duration::from_millis(300))).into();
    let all: Vec<_> = nodes.iter().collect();
    let worlds = [haproxy(&["shop"], &all), haproxy(&["shop"], &all)];
    let balancer =
        |world: &HaProxyDaemon| -> Box<dyn Balancer> { Box::new(world.balancer("shop")) };
    let mut shop = Front::new(worlds.iter().map(balancer).collect());
    for node in &nodes {
        shop.want(&node.server.name, Traffic::On(FULL));
    }
    settle(&mut shop);
    // Only the second balancer has requests.
    let load = Load::start(&worlds[1].sites, 40.0);
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    let first = look(&mut transfer, &mut shop);
    assert!(matches!(first, Some(Progress { in_flight: 1.., .. })), "{first:?}");
    wait_until("the transfer ends", || {
        let working = nodes[0].working();
        let has_left = look(&mut transfer, &mut shop).is_none();
        assert!(!has_left || working == 0);
        has_left
    });
    assert_none_lost(&load.end());
}

#[test]
fn what_is_not_there_is_named() {
    let node = Node::start("n1", Duration::ZERO);
    let world = haproxy(&["shop"], &[&node]);
    let mut unknown = world.balancer("nobody");
    assert!(matches!(unknown.observe(), Err(BalancerError::Unexpected { .. })));
    let mut absent = HaProxy::new(Path::new("/nonexistent/socket"), "shop").unwrap();
    let error = absent.observe().unwrap_err();
    assert!(matches!(error, BalancerError::Unreachable { .. }) && error.is_retryable());
    let mut front = world.front("shop");
    front.want(&"n9".parse().unwrap(), Traffic::On(FULL));
    let error = front.reconcile().remove(0).observed.unwrap_err().to_string();
    assert!(error.contains("n9") && error.contains("n1"), "{error}");
}
