//! A real Apache.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_balancers::balancer::{Balancer, BalancerError};
use keeptime_balancers::front::Front;
use keeptime_balancers::traffic::{Change, Traffic, Weight};
use std::time::Duration;
use world::{
    ApacheDaemon, FULL, Load, Node, apache, assert_none_lost, assert_waits_for_the_last_request,
    posts, settle, share_out, three_nodes, transfers, wait_until,
};

/// Two sites; the first has the first two of three nodes, the second the third.
fn two_sites(answer_after: Duration) -> (Vec<Node>, ApacheDaemon, Vec<Front>) {
    let nodes = three_nodes(answer_after);
    let world = apache(&["shop", "blog"], &nodes.iter().collect::<Vec<_>>());
    let mut fronts = world.fronts();
    share_out(&nodes, &mut fronts);
    (nodes, world, fronts)
}

#[test]
fn what_it_is_told_it_does_and_says() {
    let nodes = three_nodes(Duration::ZERO);
    let world = apache(&["shop"], &nodes.iter().collect::<Vec<_>>());
    let mut balancer = world.balancer("shop");
    let name = &nodes[0].server.name;
    let half = Traffic::On(Weight::try_from(50).unwrap());
    for traffic in [half, Traffic::Drain, Traffic::Off, Traffic::On(FULL), Traffic::Drain, half] {
        balancer.tell(&[Change { server: name.clone(), traffic }]).unwrap();
        assert_eq!(balancer.observe().unwrap().servers[name].traffic, traffic);
    }
    assert_none_lost(&posts(&world.sites, 100.0, 300).join().unwrap());
    let seen = balancer.observe().unwrap().servers[name];
    assert_eq!((seen.in_flight, seen.served), (0, Some(nodes[0].answered())));
    let unknown = Change { server: "n9".parse().unwrap(), traffic: Traffic::Off };
    let error = balancer.tell(&[unknown]).unwrap_err().to_string();
    assert!(error.contains("n9") && error.contains("n1, n2, n3"), "{error}");
}

#[test]
fn no_post_is_lost_over_transfers() {
    let (nodes, world, mut fronts) = two_sites(Duration::from_millis(5));
    let load = Load::start(&world.sites, 200.0);
    transfers(10, &nodes, &mut fronts);
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
    let (nodes, mut world, mut fronts) = two_sites(Duration::ZERO);
    world.daemon.crash();
    let down = fronts[0].reconcile();
    assert!(matches!(down[0].observed, Err(BalancerError::Unreachable { .. })), "{down:?}");
    world.daemon.start_again();
    assert_eq!(fronts[0].reconcile()[0].told.len(), 3, "all nodes are disabled, none stopped");
    settle(&mut fronts[1]);
    assert_none_lost(&posts(&world.sites, 200.0, 200).join().unwrap());
    assert!(nodes.iter().all(|node| node.answered() > 0));
}
