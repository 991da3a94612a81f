//! Controllers before a real HAProxy, with a record in memory: what is left when one is killed at each
//! point of a move, and what a balancer that comes back is told.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../balancers/tests/world/mod.rs"]
mod balancers;
mod memory;

use balancers::{
    A_FIFTIETH, HaProxyDaemon, Load, Node, assert_none_lost, haproxy, posts, wait_until,
};
use keeptime_balancers::balancer::{ANSWER_WITHIN, Balancer};
use keeptime_balancers::traffic::{Traffic, Weight};
use keeptime_model::name::Name;
use keeptime_model::node_load::NodeCounters;
use keeptime_model::site::{BalancerPlace, Guarantee, HostedSite, SiteSpec};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use keeptime_sites::controller::{Controller, Now};
use keeptime_sites::cpu::Counters;
use keeptime_sites::overview::{LoadSource, NodeView};
use keeptime_sites::record::{Change, NodeStanding, Standing};
use memory::Memory;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What nodes count themselves: the part of their CPU that each uses, all the time, in percent. Others are silent.
#[derive(Debug, Clone)]
struct Published {
    used: Arc<Mutex<BTreeMap<Name, u32>>>,
    began: Instant,
}

impl Published {
    fn set(&self, node: &Name, percent: u32) {
        self.used.lock().unwrap().insert(node.clone(), percent);
    }
}

impl Counters for Published {
    fn latest(&mut self) -> Option<BTreeMap<Name, NodeCounters>> {
        let at = Nanos::from(self.began.elapsed());
        let counters = |percent: &u32| NodeCounters {
            at,
            cpu_used: Nanos::new(at.get() * u64::from(*percent) / 100),
            cpu: CpuPpm::from_percent(100),
            runnable: 1,
        };
        let used = self.used.lock().unwrap();
        Some(used.iter().map(|(node, percent)| (node.clone(), counters(percent))).collect())
    }
}

/// How busy a node is, in percent, and who says so.
fn load(node: &NodeView) -> (Option<u32>, Option<LoadSource>) {
    let percent = node.load_ppm.map(|load| (load.as_f64() * 100.0).round() as u32);
    (percent, node.known_from)
}

/// Two sites of which the shop has the higher priority, and what stands in front of them.
struct World {
    nodes: Vec<Node>,
    haproxy: HaProxyDaemon,
    record: Memory,
    began: Instant,
    /// The controllers' clock is so far ahead of the world's: what lasts long need not be waited for.
    ahead: Cell<Duration>,
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
                cpu_ppm: Some(CpuPpm::from_percent(10)),
                services: vec![],
                port: 80,
                drain_most_nanos: None,
                balancers: vec![BalancerPlace::HaProxy { socket, backend: name.into() }],
            };
            HostedSite { spec, is_leaving: false }
        };
        let cpu = CpuPpm::from_percent(100);
        let standing = |(at, node): (usize, &Node)| NodeStanding {
            name: node.server.name.clone(),
            address: None,
            site: Some(if at == 0 { "shop" } else { "blog" }.parse().unwrap()),
            is_connected: true,
            is_out_of_service: false,
            cpu,
            cpu_free: cpu,
        };
        record.0.lock().unwrap().standing = Standing {
            sites: vec![site("blog", 1), site("shop", 10)],
            nodes: nodes.iter().enumerate().map(standing).collect(),
        };
        Self { nodes, haproxy, record, began: Instant::now(), ahead: Cell::default() }
    }

    fn controller(&self) -> Controller<Memory> {
        Controller::new(self.record.clone())
    }

    /// One by which all balancers were told what is recorded.
    fn settled(&self) -> Controller<Memory> {
        let mut controller = self.controller();
        self.until("all is told", &mut controller, || self.is_told());
        controller
    }

    /// The shop is flooded, and the controller ends when it has drained a node for it and asked for the change, which
    /// is not carried out.
    fn killed_at_a_change(&self) -> (Load, Change) {
        self.record.0.lock().unwrap().is_slow = true;
        let mut killed = self.settled();
        let flood = Load::start(&self.haproxy.sites[..1], 112.0);
        self.until("a change is asked for", &mut killed, || !self.asked().is_empty());
        (flood, self.asked().remove(0))
    }

    /// Goes on until everything is answered.
    fn end(&self, controller: &mut Controller<Memory>, loads: impl IntoIterator<Item = Load>) {
        let loads: Vec<_> = loads.into_iter().collect();
        loads.iter().for_each(Load::stop);
        while !loads.iter().all(Load::has_ended) {
            self.pass(controller);
            assert!(self.count("blog") >= 1 && self.count("shop") >= 1, "hard guarantees");
        }
        for load in loads {
            assert_none_lost(&load.end());
        }
    }

    /// The controllers' time.
    fn now(&self) -> Nanos {
        (self.began.elapsed() + self.ahead.get()).into()
    }

    /// So much of it is over.
    fn skip(&self, span: Duration) {
        self.ahead.set(self.ahead.get() + span);
    }

    fn pass(&self, controller: &mut Controller<Memory>) {
        let steady = self.now();
        let now = Now { steady, wall: WallTime::from_unix_nanos(steady.get()) };
        std::thread::sleep(controller.pass(now).unwrap());
    }

    /// Passes until something holds.
    fn until(
        &self,
        what: &str,
        controller: &mut Controller<Memory>,
        mut holds: impl FnMut() -> bool,
    ) {
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
    let world = World::new(4, A_FIFTIETH);
    let mut controller = world.settled();
    let quiet = Load::start(&world.haproxy.sites[1..], 15.0);
    let flood = Load::start(&world.haproxy.sites[..1], 112.0);
    world.until("the shop has three", &mut controller, || {
        assert!(world.count("blog") >= 1, "its hard guarantee");
        world.count("shop") == 3
    });
    world.end(&mut controller, [flood, quiet]);
    let overview = controller.overview();
    assert!(overview.moves.iter().all(|moved| moved.failure.is_none()), "{overview:?}");
    assert!(overview.moves[0].why.starts_with("shop needs more"), "{overview:?}");
}

// Goal: a node that is taken out of service is free for that, and no request is lost. Method: the blog has two and needs one;
// the last node of the shop, which is out of service, too, serves on, and people are told.
#[test]
fn nodes_that_are_out_of_service_leave_sites_that_can_do_without_them() {
    let world = World::new(3, A_FIFTIETH);
    let mut controller = world.settled();
    let load = Load::start(&world.haproxy.sites, 15.0);
    for node in &mut world.record.0.lock().unwrap().standing.nodes[..2] {
        node.is_out_of_service = true;
    }
    world.until("the blog gives its node", &mut controller, || world.count("blog") == 1);
    let nodes = world.record.0.lock().unwrap().standing.nodes.clone();
    let sites = nodes.iter().map(|node| node.site.as_ref().map(Name::as_str));
    assert_eq!(sites.collect::<Vec<_>>(), [Some("shop"), None, Some("blog")]);
    world.end(&mut controller, [load]);
    let told: Vec<_> = controller.overview().sites.iter().map(|site| &site.problems).collect();
    let kept = format!("out of service, and needed for its hard guarantee: {}", nodes[0].name);
    assert_eq!(told, [&vec![], &vec![kept]]);
}

#[test]
fn one_that_is_killed_between_drain_and_switch_leaves_the_node_where_it_was() {
    let world = World::new(3, A_FIFTIETH);
    let (flood, change) = world.killed_at_a_change();
    assert_eq!(world.traffic("blog", &change.node), Traffic::Off, "it is drained");
    let mut next = world.controller();
    world.until("all is told", &mut next, || {
        world.traffic("blog", &change.node) == Traffic::On(Weight::FULL)
    });
    assert_eq!(world.traffic("shop", &change.node), Traffic::Off);
    world.record.0.lock().unwrap().is_slow = false;
    world.until("the shop has two", &mut next, || world.count("shop") == 2);
    world.end(&mut next, [flood]);
}

#[test]
fn one_that_is_killed_after_the_switch_is_recorded_leaves_the_node_to_the_new_site() {
    let world = World::new(3, A_FIFTIETH);
    let (flood, change) = world.killed_at_a_change();
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
    world.end(&mut next, [flood]);
}

#[test]
fn a_balancer_that_restarts_is_told_again() {
    let mut world = World::new(3, Duration::ZERO);
    let mut controller = world.settled();
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
    let world = World::new(2, A_FIFTIETH);
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

/// By the balancer all spares are alike: no request is in flight on any.
#[test]
fn a_spare_that_others_keep_busy_is_taken_last() {
    let world = World::new(4, A_FIFTIETH);
    let node = |number: usize| world.nodes[number].server.name.clone();
    world.record.0.lock().unwrap().standing.nodes[1..3].iter_mut().for_each(|n| n.site = None);
    let published = Published { used: Arc::default(), began: world.began };
    // Of the second nothing is heard.
    [0, 2, 3].into_iter().for_each(|number| published.set(&node(number), 3));
    let mut controller = world.controller().with_counters(Some(Box::new(published.clone())));
    world.until("all is told", &mut controller, || world.is_told());
    let counters = Some(LoadSource::Counters);
    wait_until("the loads are known", || {
        world.pass(&mut controller);
        controller.overview().nodes.iter().map(load).eq([
            (Some(3), counters),
            (None, None),
            (Some(3), counters),
            (Some(3), counters),
        ])
    });
    let flood = Load::start(&world.haproxy.sites[..1], 112.0);
    world.until("the shop has more", &mut controller, || !world.asked().is_empty());
    assert_eq!(world.asked()[0].node, node(2), "the first spare is silent");
    world.until("the shop has three", &mut controller, || world.count("shop") == 3);
    assert_eq!(world.asked()[1].node, node(1), "it is better than none");
    world.end(&mut controller, [flood]);
}

/// The balancer of both sites hangs: what it has in flight nobody knows, and what the nodes do they say themselves.
#[test]
fn nodes_of_a_balancer_that_hangs_are_judged_by_their_counters() {
    let world = World::new(2, Duration::ZERO);
    let published = Published { used: Arc::default(), began: world.began };
    published.set(&world.nodes[0].server.name, 90);
    let mut controller = world.controller().with_counters(Some(Box::new(published)));
    world.until("all is told", &mut controller, || world.is_told());
    let worker = Pid::from_raw(world.haproxy.worker().unwrap() as i32);
    kill(worker, Signal::SIGSTOP).unwrap();
    wait_until("nothing is heard of the sites", || {
        world.pass(&mut controller);
        controller.overview().sites.iter().all(|site| site.load.is_none())
    });
    // One more look, so that there are two of the counters.
    world.pass(&mut controller);
    let loads: Vec<_> = controller.overview().nodes.iter().map(load).collect();
    let silence = (None, None);
    assert_eq!(loads, [(Some(90), Some(LoadSource::Counters)), silence]);
    kill(worker, Signal::SIGCONT).unwrap();
    wait_until("the balancer is heard again", || {
        world.pass(&mut controller);
        controller.overview().sites.iter().all(|site| site.load.is_some())
    });
    assert!(world.asked().is_empty(), "nothing moved: {:?}", world.asked());
}

// Goal: a node that is taken away again at once is drained again. Method: the change is recorded, and the site that
// leaves has the node once more before the next look.
#[test]
fn a_node_that_is_taken_away_again_at_once_is_drained_again() {
    let world = World::new(2, Duration::ZERO);
    let mut controller = world.settled();
    let node = world.nodes[1].server.name.clone();
    {
        let mut kept = world.record.0.lock().unwrap();
        kept.is_slow = true;
        kept.standing.sites[0].is_leaving = true;
    }
    world.until("it is drained", &mut controller, || !world.asked().is_empty());
    world.record.0.lock().unwrap().answers.push((node.clone(), Ok(())));
    world.pass(&mut controller);
    assert_eq!(world.asked().len(), 1, "one look is not enough");
    assert_eq!(world.traffic("blog", &node), Traffic::Drain);
    world.until("it is drained again", &mut controller, || world.asked().len() == 2);
}

// Goal: one request that never ends holds a move up for the site's limit, and no longer; without a limit for ever.
// Method: a node that answers nothing leaves the blog, first without a limit, then with one; a look a minute.
#[test]
fn a_request_that_does_not_end_holds_a_move_up_as_long_as_the_limit() {
    let world = World::new(2, Duration::ZERO);
    let mut controller = world.settled();
    let node = &world.nodes[1];
    let name = node.server.name.clone();
    node.hold(true);
    let stuck = posts(&world.haproxy.sites[1..], 40.0, 250);
    world.until("the node works", &mut controller, || node.working() > 0);
    let began = world.now();
    world.record.0.lock().unwrap().standing.sites[0].is_leaving = true;
    world.until("it drains", &mut controller, || world.traffic("blog", &name) == Traffic::Drain);
    const MINUTE: Duration = Duration::from_secs(60);
    for _ in 0..60 {
        world.skip(MINUTE);
        world.pass(&mut controller);
        assert!(world.asked().is_empty(), "there is no limit");
    }
    assert_eq!(world.traffic("blog", &name), Traffic::Drain);
    let limit = Nanos::from(70 * MINUTE);
    world.record.0.lock().unwrap().standing.sites[0].spec.drain_most_nanos = Some(limit);
    world.until("it is a spare", &mut controller, || {
        world.skip(MINUTE);
        world.count("blog") == 0
    });
    assert!(world.now().saturating_sub(began) >= limit, "it has so long");
    assert!(node.working() > 0, "it works on what it had");
    assert_eq!(world.asked().len(), 1);
    world.pass(&mut controller);
    let overview = controller.overview();
    assert_eq!((overview.moves.len(), overview.moves_unfinished), (1, 1), "{overview:?}");
    let left = overview.moves[0].unfinished.as_ref().unwrap();
    assert!(left.in_flight > 0 && left.going_on.is_empty(), "{left:?}");
    wait_until("the balancer has ended it", || {
        let seen = world.haproxy.balancer("blog").observe().unwrap().servers[&name];
        (seen.traffic, seen.in_flight) == (Traffic::Off, 0)
    });
    node.hold(false);
    let counts = stuck.join().unwrap().all.counts;
    assert!(counts.answered < counts.intended - counts.not_sent, "what was ended: {counts:?}");
}

// Goal: a site of which one balancer fails keeps its nodes, all of which serve, and gives them when it is heard again. Method:
// a second balancer of the blog that is not there, until it is described without that.
#[test]
fn a_site_with_a_balancer_that_fails_gives_no_node() {
    let world = World::new(4, A_FIFTIETH);
    let mut controller = world.settled();
    let describe = |balancers: Vec<BalancerPlace>| {
        world.record.0.lock().unwrap().standing.sites[0].spec.balancers = balancers;
    };
    let there = world.record.0.lock().unwrap().standing.sites[0].spec.balancers.clone();
    let absent = BalancerPlace::HaProxy { socket: "/nonexistent".into(), backend: "blog".into() };
    describe([&there[..], &[absent]].concat());
    let flood = Load::start(&world.haproxy.sites[..1], 112.0);
    let began = Instant::now();
    world.until("it had time to be drained", &mut controller, || {
        assert!(world.is_told(), "each node serves as it is recorded");
        began.elapsed() > Duration::from_secs(3)
    });
    let problems = controller.overview().sites[0].problems.join("; ");
    assert!(problems.contains("cannot be reached"), "{problems}");
    describe(there);
    world.until("the shop has three", &mut controller, || world.count("shop") == 3);
    world.end(&mut controller, [flood]);
}

// Goal: a balancer that hangs keeps its own site from being looked after, and no other. Method: a second balancer of the blog that
// takes connections and never answers; the shop is looked at, and is given a spare.
#[test]
fn a_balancer_that_hangs_keeps_no_other_site_waiting() {
    let world = World::new(3, A_FIFTIETH);
    world.record.0.lock().unwrap().standing.nodes[2].site = None;
    let mut controller = world.settled();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _silent = UnixListener::bind(&socket).unwrap();
    let hung = format!("haproxy:{}/blog ", socket.display());
    let hangs = BalancerPlace::HaProxy { socket, backend: "blog".into() };
    world.record.0.lock().unwrap().standing.sites[0].spec.balancers.push(hangs);
    world.pass(&mut controller);
    let flood = Load::start(&world.haproxy.sites[..1], 112.0);
    let (began, mut passes) = (Instant::now(), 0);
    world.until("the shop has two", &mut controller, || {
        passes += 1;
        world.count("shop") == 2
    });
    world.until("it was asked again and again", &mut controller, || {
        passes += 1;
        began.elapsed() > 3 * ANSWER_WITHIN
    });
    assert!(passes > 30, "{passes} in {:?}", began.elapsed());
    let sites = &controller.overview().sites;
    assert!(sites[0].load.is_none() && sites[1].load.is_some(), "{sites:?}");
    let problems = &sites[0].problems;
    assert!(problems.len() == 1 && problems[0].starts_with(&hung), "the other answers: {sites:?}");
    world.end(&mut controller, [flood]);
}

// Goal: a node whose drain nobody can end, since its balancer is heard no more, does not serve nobody for ever. Method: the
// balancer is stopped while a node drains that works on what never ends, and goes on later.
#[test]
fn a_drain_that_is_held_up_is_given_up_and_the_node_serves_again() {
    let world = World::new(3, A_FIFTIETH);
    let mut controller = world.settled();
    let of_blog = &world.nodes[1..];
    of_blog.iter().for_each(|node| node.hold(true));
    let stuck = posts(&world.haproxy.sites[1..], 40.0, 500);
    world.until("both nodes work", &mut controller, || {
        of_blog.iter().all(|node| node.working() > 0)
    });
    let flood = Load::start(&world.haproxy.sites[..1], 112.0);
    let traffic = |node: &Node| world.traffic("blog", &node.server.name);
    world.until("one drains", &mut controller, || {
        of_blog.iter().any(|node| traffic(node) == Traffic::Drain)
    });
    let worker = Pid::from_raw(world.haproxy.worker().unwrap() as i32);
    kill(worker, Signal::SIGSTOP).unwrap();
    wait_until("it is given up", || {
        world.pass(&mut controller);
        !controller.overview().moves.is_empty()
    });
    let failure = controller.overview().moves[0].failure.clone().unwrap();
    assert!(failure.starts_with("its drain was held up: haproxy:"), "{failure}");
    kill(worker, Signal::SIGCONT).unwrap();
    world.until("both serve", &mut controller, || {
        of_blog.iter().all(|node| traffic(node) == Traffic::On(Weight::FULL))
    });
    of_blog.iter().for_each(|node| node.hold(false));
    world.until("the shop has two", &mut controller, || world.count("shop") == 2);
    world.end(&mut controller, [flood]);
    assert_none_lost(&stuck.join().unwrap());
}

#[test]
fn a_site_that_is_removed_under_load_is_drained() {
    let world = World::new(3, Duration::from_millis(200));
    let mut controller = world.settled();
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
