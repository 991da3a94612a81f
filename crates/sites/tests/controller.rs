//! Controllers before a real HAProxy, with a record in memory: what is left when one is killed at each
//! point of a move, and what a balancer that comes back is told.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../balancers/tests/world/mod.rs"]
mod balancers;
mod memory;

use balancers::{HaProxyDaemon, Load, Node, assert_none_lost, haproxy, posts, wait_until};
use keeptime_balancers::balancer::Balancer;
use keeptime_balancers::traffic::{Traffic, Weight};
use keeptime_model::name::Name;
use keeptime_model::site::{BalancerPlace, Guarantee, HostedSite, SiteSpec};
use keeptime_model::units::{CpuPpm, WallTime};
use keeptime_sites::controller::{Controller, Now};
use keeptime_sites::record::{Change, NodeStanding, Standing};
use memory::Memory;
use std::time::{Duration, Instant};

/// Two sites of which the shop has the higher priority, and what stands in front of them.
struct World {
    nodes: Vec<Node>,
    haproxy: HaProxyDaemon,
    record: Memory,
    began: Instant,
}

impl World {
    /// All nodes but the first serve the blog.
    fn new(count: usize, answer_after: Duration) -> Self {
        let nodes: Vec<_> =
            (1..=count).map(|n| Node::single(&format!("n{n}"), answer_after)).collect();
        let haproxy = haproxy(&["shop", "blog"], &nodes.iter().collect::<Vec<_>>());
        let record = Memory::default();
        let site = |name: &str, priority| {
            let socket = haproxy.socket.clone();
            let spec = SiteSpec {
                name: name.parse().unwrap(),
                guarantee: Guarantee { hard: 1, soft: 2, max: count as u32 },
                priority,
                cpu_ppm: CpuPpm::from_percent(10),
                port: 80,
                balancers: vec![BalancerPlace::HaProxy { socket, backend: name.into() }],
            };
            HostedSite { spec, is_leaving: false }
        };
        let standing = |(at, node): (usize, &Node)| NodeStanding {
            name: node.server.name.clone(),
            address: None,
            site: Some(if at == 0 { "shop" } else { "blog" }.parse().unwrap()),
            is_free: true,
        };
        record.0.lock().unwrap().standing = Standing {
            sites: vec![site("blog", 1), site("shop", 10)],
            nodes: nodes.iter().enumerate().map(standing).collect(),
        };
        Self { nodes, haproxy, record, began: Instant::now() }
    }

    fn controller(&self) -> Controller<Memory> {
        Controller::new(self.record.clone())
    }

    fn pass(&self, controller: &mut Controller<Memory>) {
        let steady = self.began.elapsed().into();
        let now = Now { steady, wall: WallTime::from_unix_nanos(steady.get()) };
        std::thread::sleep(controller.pass(now).unwrap());
    }

    /// Passes until something holds.
    fn until(&self, what: &str, controller: &mut Controller<Memory>, holds: impl Fn() -> bool) {
        wait_until(what, || {
            self.pass(controller);
            holds()
        });
    }

    fn asked(&self) -> Vec<Change> {
        self.record.0.lock().unwrap().asked.clone()
    }

    fn traffic(&self, site: &str, node: &Name) -> Traffic {
        self.haproxy.balancer(site).observe().unwrap().servers[node].traffic
    }

    /// Whether every balancer does what is recorded.
    fn is_told(&self) -> bool {
        let standing = self.record.0.lock().unwrap().standing.clone();
        ["shop", "blog"].iter().all(|site| {
            let seen = self.haproxy.balancer(site).observe().unwrap();
            standing.nodes.iter().all(|node| {
                let serves = node.site.as_ref().is_some_and(|name| name.as_str() == *site);
                let wanted = if serves { Traffic::On(Weight::FULL) } else { Traffic::Off };
                seen.servers[&node.name].traffic == wanted
            })
        })
    }

    fn count(&self, site: &str) -> usize {
        self.record.count(site)
    }
}

#[test]
fn a_flooded_site_gets_nodes_and_no_post_is_lost() {
    let world = World::new(4, Duration::from_millis(5));
    let mut controller = world.controller();
    world.until("all is told", &mut controller, || world.is_told());
    // A node answers 200 a second.
    let quiet = Load::start(&world.haproxy.sites[1..], 60.0);
    let flood = Load::start(&world.haproxy.sites[..1], 450.0);
    world.until("the shop has three", &mut controller, || {
        assert!(world.count("blog") >= 1, "its hard guarantee");
        world.count("shop") == 3
    });
    [&flood, &quiet].into_iter().for_each(Load::stop);
    while !(flood.has_ended() && quiet.has_ended()) {
        world.pass(&mut controller);
        assert!(world.count("blog") >= 1 && world.count("shop") >= 1, "hard guarantees");
    }
    assert_none_lost(&flood.end());
    assert_none_lost(&quiet.end());
    let overview = controller.overview();
    assert!(overview.moves.iter().all(|moved| moved.failure.is_none()), "{overview:?}");
    assert!(overview.moves[0].why.starts_with("shop needs more"), "{overview:?}");
}

#[test]
fn one_that_is_killed_between_drain_and_switch_leaves_the_node_where_it_was() {
    let world = World::new(3, Duration::from_millis(5));
    world.record.0.lock().unwrap().is_slow = true;
    let mut killed = world.controller();
    world.until("all is told", &mut killed, || world.is_told());
    let flood = Load::start(&world.haproxy.sites[..1], 450.0);
    world.until("a change is asked for", &mut killed, || !world.asked().is_empty());
    let change = world.asked().remove(0);
    assert_eq!(world.traffic("blog", &change.node), Traffic::Off, "it is drained");
    drop(killed);
    let mut next = world.controller();
    world.until("all is told", &mut next, || {
        world.traffic("blog", &change.node) == Traffic::On(Weight::FULL)
    });
    assert_eq!(world.traffic("shop", &change.node), Traffic::Off);
    world.record.0.lock().unwrap().is_slow = false;
    world.until("the shop has two", &mut next, || world.count("shop") == 2);
    flood.stop();
    while !flood.has_ended() {
        world.pass(&mut next);
    }
    assert_none_lost(&flood.end());
}

#[test]
fn one_that_is_killed_after_the_switch_is_recorded_leaves_the_node_to_the_new_site() {
    let world = World::new(3, Duration::from_millis(5));
    world.record.0.lock().unwrap().is_slow = true;
    let mut killed = world.controller();
    world.until("all is told", &mut killed, || world.is_told());
    let flood = Load::start(&world.haproxy.sites[..1], 450.0);
    world.until("a change is asked for", &mut killed, || !world.asked().is_empty());
    let change = world.asked().remove(0);
    drop(killed);
    {
        let mut kept = world.record.0.lock().unwrap();
        kept.is_slow = false;
        kept.carry_out(&change);
    }
    let mut next = world.controller();
    world.until("all is told", &mut next, || {
        world.traffic("shop", &change.node) == Traffic::On(Weight::FULL)
    });
    assert_eq!(world.traffic("blog", &change.node), Traffic::Off);
    flood.stop();
    while !flood.has_ended() {
        world.pass(&mut next);
    }
    assert_none_lost(&flood.end());
}

#[test]
fn a_balancer_that_restarts_is_told_again() {
    let mut world = World::new(3, Duration::ZERO);
    let mut controller = world.controller();
    world.until("all is told", &mut controller, || world.is_told());
    world.haproxy.daemon.crash();
    world.pass(&mut controller);
    world.haproxy.daemon.start_again();
    assert!(!world.is_told(), "its configuration has all nodes disabled");
    world.until("all is told again", &mut controller, || world.is_told());
    assert_none_lost(&posts(&world.haproxy.sites, 200.0, 200).join().unwrap());
    assert!(world.asked().is_empty(), "nothing moved: {:?}", world.asked());
}

#[test]
fn a_refused_change_leaves_the_node_where_it_was() {
    let world = World::new(2, Duration::from_millis(5));
    let mut controller = world.controller();
    let node = world.nodes[1].server.name.clone();
    {
        let mut kept = world.record.0.lock().unwrap();
        kept.is_slow = true;
        kept.standing.nodes[1].site = None;
    }
    // The blog has less than its hard guarantee, and the broker refuses it the only spare.
    world.until("it is asked for", &mut controller, || !world.asked().is_empty());
    world.record.0.lock().unwrap().answers.push((node.clone(), Err("somebody has it".into())));
    world.pass(&mut controller);
    for _ in 0..10 {
        world.pass(&mut controller);
    }
    assert_eq!(world.asked().len(), 1, "a refusal is not asked for again at once");
    let moved = controller.overview().moves[0].clone();
    assert_eq!(moved.failure.as_deref(), Some("somebody has it"));
    assert_eq!(world.traffic("blog", &node), Traffic::Off);
}

#[test]
fn a_site_that_is_removed_under_load_is_drained() {
    let world = World::new(3, Duration::from_millis(200));
    let mut controller = world.controller();
    world.until("all is told", &mut controller, || world.is_told());
    let load = Load::start(&world.haproxy.sites[1..], 10.0);
    let working = || world.nodes[1..].iter().map(Node::working).sum::<u64>();
    world.until("a node works", &mut controller, || working() > 0);
    world.record.0.lock().unwrap().standing.sites[0].is_leaving = true;
    world.until("its nodes are spares", &mut controller, || {
        for change in world.asked() {
            let node = world.nodes.iter().find(|node| node.server.name == change.node).unwrap();
            assert_eq!((change.to, node.working()), (None, 0), "it has a request in flight");
        }
        world.count("blog") == 0
    });
    load.end();
    assert_eq!((world.count("shop"), world.asked().len()), (1, 2), "the shop needs no more");
}
