//! A real nginx.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime_balancers::balancer::{ANSWER_WITHIN, Balancer, BalancerError};
use keeptime_balancers::front::Front;
use keeptime_balancers::traffic::{Change, Traffic, Weight};
use keeptime_balancers::transfer::{Progress, Transfer};
use keeptime_model::errors::chain;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::thread;
use std::time::Duration;
use world::{
    FULL, Load, NginxDaemon, Node, assert_none_lost, assert_waits_for_the_last_request, look,
    nginx, posts, settle, share_out, three_nodes, transfers, wait_until,
};

/// Two sites; the first has the first two of three nodes, the second the third.
fn two_sites(answer_after: Duration) -> (Vec<Node>, NginxDaemon, Vec<Front>) {
    let nodes = three_nodes(answer_after);
    // Without connections that clients keep: a reload closes idle ones, and a client that sends just
    // then loses its request by HTTP's own rules.
    let world = nginx(&["shop", "blog"], &nodes.iter().collect::<Vec<_>>(), "0");
    let mut fronts = world.fronts();
    share_out(&nodes, &mut fronts);
    (nodes, world, fronts)
}

#[test]
fn what_it_is_told_it_does_and_says() {
    let nodes = three_nodes(Duration::ZERO);
    let world = nginx(&["shop"], &nodes.iter().collect::<Vec<_>>(), "0");
    let mut balancer = world.balancer("shop");
    let name = &nodes[0].server.name;
    let half = Traffic::On(Weight::try_from(50).unwrap());
    assert_eq!(balancer.observe().unwrap().servers[name].traffic, Traffic::Off);
    for traffic in [half, Traffic::Drain, Traffic::Off, Traffic::On(FULL)] {
        balancer.tell(&[Change { server: name.clone(), traffic }]).unwrap();
        assert_eq!(balancer.observe().unwrap().servers[name].traffic, traffic);
        assert_eq!(world.balancer("shop").observe().unwrap().servers[name].traffic, traffic);
    }
    let second = Change { server: nodes[1].server.name.clone(), traffic: half };
    balancer.tell(&[second]).unwrap();
    assert_none_lost(&posts(&world.sites, 300.0, 500).join().unwrap());
    let shares = nodes[0].answered() as f64 / nodes[1].answered() as f64;
    assert!((1.5..2.6).contains(&shares), "weights 100 and 50: {shares}");
    assert_eq!(nodes[2].answered(), 0);
}

#[test]
fn its_log_tells_what_each_node_was_sent() {
    let nodes = three_nodes(Duration::from_millis(5));
    let world = nginx(&["shop"], &nodes.iter().collect::<Vec<_>>(), "0");
    let mut balancer = world.balancer("shop").with_log(world.logs[0]);
    let on = |node: &Node| Change { server: node.server.name.clone(), traffic: Traffic::On(FULL) };
    assert_eq!(balancer.known().unwrap().len(), 3);
    balancer.observe().unwrap();
    balancer.tell(&[on(&nodes[0]), on(&nodes[1])]).unwrap();
    assert_none_lost(&posts(&world.sites, 200.0, 500).join().unwrap());
    wait_until("all is heard of", || {
        let seen = balancer.observe().unwrap().servers;
        nodes.iter().all(|node| {
            let seen = seen[&node.server.name];
            (seen.in_flight, seen.served) == (0, Some(node.answered()))
        })
    });
    let mut second = world.balancer("shop").with_log(world.logs[0]);
    let error = second.observe().unwrap_err();
    assert!(matches!(error, BalancerError::Log { .. }), "somebody listens already: {error}");
}

#[test]
fn no_post_is_lost_over_transfers() {
    let (nodes, world, mut fronts) = two_sites(Duration::from_millis(5));
    let load = Load::start(&world.sites, 200.0);
    transfers(3, &nodes, &mut fronts);
    wait_until("all nodes have answered", || nodes.iter().all(|node| node.answered() > 0));
    assert_none_lost(&load.end());
}

#[test]
fn a_transfer_waits_for_the_workers_of_before() {
    let (nodes, world, mut fronts) = two_sites(Duration::from_millis(500));
    let load = Load::start(&world.sites[..1], 20.0);
    assert_waits_for_the_last_request(&nodes, &mut fronts);
    assert_none_lost(&load.end());
}

#[test]
fn a_transfer_that_is_hurried_leaves_what_nginx_cannot_end() {
    let (nodes, world, mut fronts) = two_sites(Duration::ZERO);
    nodes[0].hold(true);
    let load = posts(&world.sites[..1], 40.0, 500);
    wait_until("the node works", || nodes[0].working() > 0);
    let mut transfer = Transfer::new(nodes[0].server.name.clone(), FULL);
    let first = look(&mut transfer, &mut fronts[0]);
    assert!(matches!(first, Some(Progress { in_flight: 1.., .. })), "{first:?}");
    transfer.hurry();
    wait_until("the transfer ends", || look(&mut transfer, &mut fronts[0]).is_none());
    let left = transfer.unfinished().unwrap();
    let has = |part: &str| left.going_on.iter().any(|why| why.contains(part));
    assert!(left.in_flight > 0 && has("cannot end requests") && has("before a reload"), "{left:?}");
    assert!(nodes[0].working() > 0);
    nodes[0].hold(false);
    assert_none_lost(&load.join().unwrap());
}

#[test]
fn a_balancer_that_restarts_reads_what_it_was_told() {
    let (nodes, mut world, mut fronts) = two_sites(Duration::ZERO);
    world.daemon.crash();
    wait_until("it is seen to have ended", || {
        matches!(fronts[0].reconcile()[0].observed, Err(BalancerError::Ended { .. }))
    });
    world.daemon.start_again();
    let sight = fronts[0].reconcile().remove(0);
    assert!(sight.observed.is_ok() && sight.told.is_empty(), "the file says it all: {sight:?}");
    settle(&mut fronts[1]);
    assert_none_lost(&posts(&world.sites, 200.0, 200).join().unwrap());
    assert!(nodes.iter().all(|node| node.answered() > 0));
}

#[test]
fn a_configuration_that_nginx_refuses_changes_nothing() {
    let (nodes, world, mut fronts) = two_sites(Duration::ZERO);
    let file = &world.configuration;
    let good = fs::read_to_string(file).unwrap();
    fs::write(file, good.replace("keepalive_timeout 0;", "no_such_thing on;")).unwrap();
    let upstream = file.with_file_name("shop.upstream");
    let before = fs::read_to_string(&upstream).unwrap();
    let name = &nodes[0].server.name;
    fronts[0].want(name, Traffic::Drain);
    let error = fronts[0].reconcile().remove(0).observed.unwrap_err();
    assert!(error.to_string().contains("no_such_thing"), "{error}");
    assert_eq!(fs::read_to_string(&upstream).unwrap(), before);
    fs::write(file, good).unwrap();
    wait_until("it is tried again", || is_settled(&mut fronts[0]));
    assert_eq!(world.balancer("shop").observe().unwrap().servers[name].traffic, Traffic::Drain);
    let unknown = Change { server: "n9".parse().unwrap(), traffic: Traffic::Off };
    let error = world.balancer("shop").tell(&[unknown]).unwrap_err().to_string();
    assert!(error.contains("n9") && error.contains("n1, n2, n3"), "{error}");
    let error = world.balancer("wiki").known().unwrap_err();
    assert!(chain(&error).contains("wiki.upstream"), "nobody made it: {error}");
}

fn is_settled(front: &mut Front) -> bool {
    front.reconcile().iter().all(|sight| sight.observed.is_ok())
}

// Goal: a configuration that takes longer to read than a balancer to answer is read. Method: the master is stopped for so long.
#[test]
fn a_reload_may_take_longer_than_an_answer() {
    let (nodes, world, mut fronts) = two_sites(Duration::ZERO);
    let master = Pid::from_raw(world.daemon.process() as i32);
    kill(master, Signal::SIGSTOP).unwrap();
    let resumed = thread::spawn(move || {
        thread::sleep(ANSWER_WITHIN + Duration::from_secs(1));
        kill(master, Signal::SIGCONT).unwrap();
    });
    fronts[0].want(&nodes[0].server.name, Traffic::Off);
    settle(&mut fronts[0]);
    resumed.join().unwrap();
}

// Goal: after a reload that was not seen to succeed, workers do what is told of them, and nginx is not made to reload at
// every look until then, for no site of it; what others write is set right all the same. Method: one is stopped while a node
// is taken out; those that are new have read that, and the file says again what it said before.
#[test]
fn workers_that_took_over_too_late_are_made_to_read_the_file_again() {
    let (nodes, world, mut fronts) = two_sites(Duration::ZERO);
    wait_until("workers of before have ended", || world.daemon.children().len() == 2);
    let (name, stopped) = (&nodes[0].server.name, world.daemon.children()[0]);
    kill(stopped, Signal::SIGSTOP).unwrap();
    fronts[0].want(name, Traffic::Off);
    let error = fronts[0].reconcile().remove(0).observed.unwrap_err();
    assert!(error.to_string().contains("no new workers"), "{error}");
    let reloads = world.reloads();
    for _ in 0..3 {
        let error = fronts[0].reconcile().remove(0).observed.unwrap_err();
        assert!(matches!(error, BalancerError::Paused { .. }), "{error}");
    }
    let file = world.configuration.with_file_name("shop.upstream");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, "# somebody's\n").unwrap();
    fronts[1].want(&nodes[2].server.name, Traffic::Off);
    for front in &mut fronts {
        let error = front.reconcile().remove(0).observed.unwrap_err();
        assert!(matches!(error, BalancerError::Paused { .. }), "{error}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(world.reloads(), reloads);
    kill(stopped, Signal::SIGCONT).unwrap();
    fronts[0].want(name, Traffic::On(FULL));
    wait_until("it is tried again", || is_settled(&mut fronts[0]));
    assert_none_lost(&posts(&world.sites[..1], 200.0, 300).join().unwrap());
    assert!(nodes[0].answered() > 0);
}

// Goal: what somebody else writes into the file is set right, and nobody goes by it. Method: all servers are put down there, as
// a configuration manager would do that has a file of its own, and nginx is made to read that.
#[test]
fn a_file_that_others_have_written_is_set_right() {
    let (nodes, world, mut fronts) = two_sites(Duration::ZERO);
    let file = world.configuration.with_file_name("shop.upstream");
    let before = fs::read_to_string(&file).unwrap();
    let down = nodes.iter().map(|node| format!("server {} down; ", node.server.address));
    fs::write(&file, format!("upstream shop {{ {}}}\n", down.collect::<String>())).unwrap();
    let workers = world.daemon.children();
    world.daemon.signal(Signal::SIGHUP);
    wait_until("it is read", || {
        world.daemon.children().iter().any(|worker| !workers.contains(worker))
    });
    settle(&mut fronts[0]);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_none_lost(&posts(&world.sites[..1], 200.0, 300).join().unwrap());
    assert!(nodes[0].answered() > 0);
}
